package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// exportPage is how many deletions an export reads at a time.
	exportPage = 1000
	// exportPause is how long a follower waits before it looks for more, and
	// mostExportPause before it looks whether the database is back.
	exportPause, mostExportPause = time.Second, 5 * time.Second
	// stepTimeout bounds what an export asks for, so that a server that is gone
	// without a word is noticed. Who is asked for rows has longer.
	stepTimeout, rowsTimeout = time.Minute, 10 * time.Minute
	// settleTimeout is how long a commit may wait for its standby.
	settleTimeout = 10 * time.Second
)

// A Cursor is a place in the ledger: after a deletion. The zero Cursor is before all.
type Cursor struct {
	ID        int64
	DeletedAt time.Time // tells the entry from another one with its number
}

const cursorTime = "2006-01-02T15:04:05.000000Z"

// String returns the cursor in the form that ParseCursor reads.
func (c Cursor) String() string {
	if c == (Cursor{}) {
		return ""
	}
	return strconv.FormatInt(c.ID, 10) + "@" + c.DeletedAt.UTC().Format(cursorTime)
}

// ParseCursor reads a cursor.
func ParseCursor(s string) (Cursor, error) {
	if s == "" {
		return Cursor{}, nil
	}
	number, at, _ := strings.Cut(s, "@")
	id, err := strconv.ParseInt(number, 10, 64)
	deleted, timeErr := time.Parse(cursorTime, at)
	if err != nil || timeErr != nil {
		return Cursor{}, fmt.Errorf("%q is no cursor: want that of a line that was exported, as 4711@2026-07-01T12:00:00.000000Z, or nothing for all", s)
	}
	return Cursor{id, deleted}, nil
}

// Cursor is the place after a deletion.
func (r Recorded) Cursor() Cursor { return Cursor{r.ID, r.DeletedAt} }

// ExportOptions say what is exported, and to whom.
type ExportOptions struct {
	After  Cursor
	Follow bool // go on with what is deleted later, and through outages
	// Write takes the next deletions. Those that it returned nil for are not exported
	// again.
	Write func([]Recorded) error
	// Tell takes what an operator should know, in sentences.
	Tell func(string)
}

// Export writes the deletions after a cursor, in the order of their numbers: those
// that are committed when it begins or, to follow, until ctx ends. It returns ctx's
// error then. What a restore does later to a deletion that was written is not told.
//
// Nothing is missed. A number is taken before it is committed, so one can become
// visible after a larger one. But whoever takes one holds the lock of the ledger that
// an INSERT needs, from before until the end of the transaction. So the export looks
// for the highest number that can be seen and, after that, who holds such a lock. When
// all of those have ended, it reads up to that number: whoever took a smaller one has
// ended, too. It takes no such lock, nobody waits for it, and transactions that have
// nothing to do with the ledger do not hold it up.
//
// A standby does not know the primary's locks. There it waits for every transaction
// that had begun to write.
//
// What is written outlives a crash of the server and, where commits wait for a
// standby, the loss of the primary.
func (l *Ledger) Export(ctx context.Context, o ExportOptions) error {
	e := &export{Ledger: l, ExportOptions: o}
	var lost time.Time // since when the database can't be used
	var pause time.Duration
	var back string // what is told when it can be
	for {
		passing, err := e.round(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !o.Follow, err != nil && !passing:
			return l.inWords("export deletions", err)
		case err != nil && lost.IsZero():
			lost, pause, back = time.Now(), firstPause, "the database is back"
			why := fmt.Sprintf("waiting for the database: %v", l.db.explain(err))
			if sqlState(err) == lockNotAvailable {
				why, back = "waiting, as somebody else has locked a table of the ledger", "going on"
			}
			o.Tell(why)
		case err != nil:
			pause = min(2*pause, mostExportPause)
		default:
			if pause = exportPause; !lost.IsZero() {
				o.Tell(fmt.Sprintf("%s after %s", back, time.Since(lost).Round(time.Second)))
				lost = time.Time{}
			}
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// An export is one under way.
type export struct {
	*Ledger
	ExportOptions
	broken    bool      // Write has failed
	caughtUp  time.Time // when there was nothing more to export
	toldPurge bool
}

// round exports what is committed when it begins, on one connection: another one may
// be to another server. It also tells whether an error may pass.
func (e *export) round(ctx context.Context) (passing bool, err error) {
	connecting, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	conn, err := e.db.acquire(connecting)
	if err != nil {
		return judge(err, false).next == again, err
	}
	defer conn.Release()
	if err = e.on(ctx, conn); err == nil || e.broken {
		return false, err
	}
	passing = conn.Conn().IsClosed() || errors.Is(err, errCutShort) || pgError(err) != nil && onlyRead(err).next == again
	if conn.Conn().IsClosed() && pgError(err) == nil {
		err = fmt.Errorf("the connection was lost: %w", err)
	}
	return passing, err
}

func (e *export) on(ctx context.Context, conn *pgxpool.Conn) error {
	began := time.Now()
	s, err := e.survey(ctx, conn.Conn())
	if err != nil {
		return err
	}
	if s.highest > e.from() {
		if err := e.wait(ctx, conn.Conn(), s); err != nil {
			return err
		}
		if err := e.settle(ctx, conn.Conn(), s); err != nil {
			return err
		}
	}
	for more := true; more; {
		var list []Recorded
		if list, more, err = e.read(ctx, conn, s.highest); err != nil {
			return err
		}
		if len(list) == 0 {
			break
		}
		if err := e.Write(list); err != nil {
			e.broken = true
			return err
		}
		e.After = list[len(list)-1].Cursor()
	}
	e.caughtUp = began
	return nil
}

// from is the number after which the export goes on.
func (e *export) from() int64 {
	if e.After == (Cursor{}) {
		return math.MinInt64
	}
	return e.After.ID
}

// ledgerLock is a condition on pg_locks: the lock that whoever writes to the ledger
// has.
const ledgerLock = `l.locktype = 'relation' AND l.relation = 'public.plant_deletions'::pg_catalog.regclass AND l.mode = 'RowExclusiveLock' AND l.granted
	AND l.database = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())`

// A survey is what there is to export, and who may hold smaller numbers than that.
type survey struct {
	highest int64 // number that can be seen
	standby bool
	writers []string // by their virtual transactions, which a prepared one keeps
	next    int64    // on a standby, the first transaction that had not begun to write
}

// survey looks at the ledger as it is. The snapshot of the statement is older than its
// look at the locks.
func (e *export) survey(ctx context.Context, conn *pgx.Conn) (survey, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	var s survey
	var disorderly, replica bool
	var last *int64
	err := readTables(ctx, conn, pgx.ReadCommitted, func(tx pgx.Tx) error {
		return queryRow(ctx, tx, []any{&s.highest, &s.standby, &s.writers, &s.next, &disorderly, &last, &replica}, `
		WITH numbers AS (SELECT q.* FROM pg_sequence q WHERE q.seqrelid = to_regclass(pg_get_serial_sequence('public.plant_deletions', 'id')))
		SELECT coalesce((SELECT max(d.id) FROM public.plant_deletions d), $1::bigint), pg_is_in_recovery(),
			ARRAY(SELECT l.virtualtransaction FROM pg_locks l WHERE `+ledgerLock+`),
			-- The snapshot's own end is that of the last transaction that has ended; age tells how many have begun since.
			pg_snapshot_xmax(pg_current_snapshot())::pg_catalog.text::bigint + age(pg_snapshot_xmax(pg_current_snapshot())::pg_catalog.xid),
			coalesce((SELECT n.seqcache > 1 OR n.seqincrement < 1 OR n.seqcycle FROM numbers n), false),
			(SELECT CASE WHEN has_sequence_privilege(n.seqrelid, 'SELECT, USAGE') THEN pg_sequence_last_value(n.seqrelid) END FROM numbers n),
			EXISTS (SELECT FROM pg_subscription_rel r WHERE r.srrelid = 'public.plant_deletions'::pg_catalog.regclass)`,
			int64(math.MinInt64))
	}, "plant_deletions")
	switch {
	case err != nil:
		return s, err
	case disorderly:
		return s, errors.New("the numbers of the ledger are not handed out one after another, so deletions could be missed: " +
			"ALTER TABLE public.plant_deletions ALTER COLUMN id SET CACHE 1 SET INCREMENT 1 SET NO CYCLE; then end all sessions that delete, which may have numbers in store")
	case replica:
		return s, errors.New("this is a logical replica of the ledger, in which entries do not come in the order of their numbers: export from where plants are deleted")
	case last != nil && *last < e.After.ID:
		return s, fmt.Errorf("the last number that was handed out is %d, so this is not the ledger that deletion %d is from, or its numbers begin anew: %s", *last, e.After.ID, goBack)
	}
	return s, nil
}

const goBack = "go on from an earlier cursor, or from the beginning"

// wait waits until whoever may have a smaller number than the highest one has ended.
func (e *export) wait(ctx context.Context, conn *pgx.Conn, s survey) error {
	began, told := time.Now(), false
	for pause := time.Millisecond; s.standby || len(s.writers) > 0; pause = min(2*pause, time.Second) {
		who, err := e.holdUps(ctx, conn, s)
		if err != nil {
			return err
		}
		if len(who) == 0 {
			break
		}
		if held := time.Since(began); held > e.heldUpAfter && !told {
			told = true
			e.Tell(fmt.Sprintf("held up for %s, as these may have written to the ledger and have not ended: %s", held.Round(time.Second), visible(strings.Join(who, ", "))))
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
	if told {
		e.Tell(fmt.Sprintf("going on after %s", time.Since(began).Round(time.Second)))
	}
	return nil
}

// holdUps returns who is waited for, in words.
func (e *export) holdUps(ctx context.Context, conn *pgx.Conn, s survey) (who []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if s.standby {
		var oldest int64
		err := queryRow(ctx, conn, []any{&oldest}, `SELECT pg_snapshot_xmin(pg_current_snapshot())::pg_catalog.text::bigint`)
		if err != nil || oldest >= s.next {
			return nil, err
		}
		return []string{fmt.Sprintf("the transaction %d of the primary, see backend_xid in pg_stat_activity, and pg_prepared_xacts, there", oldest)}, nil
	}
	err = queryRow(ctx, conn, []any{&who}, `
		SELECT ARRAY(SELECT DISTINCT CASE WHEN l.pid IS NULL THEN format('the prepared transaction %L, see pg_prepared_xacts', p.gid)
				ELSE format('process %s of role %s (%s), see pg_stat_activity', l.pid, a.usename, a.application_name) END
			FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
				LEFT JOIN pg_locks x ON l.pid IS NULL AND x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid'
				LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
			WHERE `+ledgerLock+` AND l.virtualtransaction = ANY ($1::pg_catalog.text[]))`, s.writers)
	return who, err
}

// settle makes sure that what can be seen outlives a failover. Standbys get what the
// primary has made sure of.
func (e *export) settle(ctx context.Context, conn *pgx.Conn, s survey) error {
	if s.standby {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	err := settle(limited, conn)
	if err != nil && limited.Err() != nil {
		return errors.New("no commit ends: does the synchronous standby answer?")
	}
	return err
}

// read returns the next deletions up to a number.
func (e *export) read(ctx context.Context, conn *pgxpool.Conn, upTo int64) (list []Recorded, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, rowsTimeout)
	defer cancel()
	err = reading(ctx, conn, pgx.RepeatableRead, func(tx pgx.Tx, read pageReader) error {
		// A plan that is made while the ledger is empty is kept for the connection.
		if _, err := tx.Exec(ctx, `SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off`); err != nil {
			return err
		}
		if err := e.checkCursor(ctx, tx); err != nil {
			return err
		}
		var err error
		list, more, err = read(ctx, tx, page(`d.id > $4 AND d.id <= $5`, "ASC"), true, exportPage, e.pageBytes, e.from(), upTo)
		return err
	})
	return list, more, err
}

// checkCursor looks for the deletion that was exported last. That it was purged is
// told, unless nothing that is missed can have been. One that is too young for that was
// lost. So was one whose number has another entry, however old: it was handed out again,
// and so were those after it.
func (e *export) checkCursor(ctx context.Context, tx pgx.Tx) error {
	if e.After == (Cursor{}) {
		return nil
	}
	var same *bool // nil: the number has no entry
	var young bool
	err := tx.QueryRow(ctx, `
		SELECT (SELECT d.deleted_at = $2 FROM public.plant_deletions d WHERE d.id = $1),
			$2 > clock_timestamp() - make_interval(secs => $3)`, e.After.ID, e.After.DeletedAt, IdempotencyHorizon.Seconds()).Scan(&same, &young)
	const lost = "the database lost it, as in a failover to a standby that was behind or when it was restored from a backup, or this is another database"
	switch {
	case err != nil || same != nil && *same:
		return err
	case same != nil:
		return fmt.Errorf("deletion %s is not in the ledger, which has another entry with its number: %s; %s", e.After, lost, goBack)
	case young:
		return fmt.Errorf("deletion %s is not in the ledger, and too young to have been purged: %s, or a standby that is behind; %s", e.After, lost, goBack)
	case !e.toldPurge && time.Since(e.caughtUp) > IdempotencyHorizon/2:
		e.toldPurge = true
		e.Tell(fmt.Sprintf("deletion %s is not in the ledger any more: it was purged, and whatever was purged after it is missing here", e.After))
	}
	return nil
}
