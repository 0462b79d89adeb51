package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/plant"
)

// IdempotencyHorizon is how long a deletion stays in the ledger at the least. The
// ledger is what recognises a retried request: a client that comes back with its
// key after the entry was purged is told 404 instead of 204 or, if the plant has
// come back meanwhile, deletes it again.
const IdempotencyHorizon = 7 * 24 * time.Hour

// purgeBatch is how many entries one transaction of a purge removes.
const purgeBatch = 1000

// Ledger is the record of the deletions, for its owner: the service's role may
// read it only.
type Ledger struct {
	db *DB
	// restoreBatch and pageBytes are how many bytes of rows a restore and a reader
	// hold in memory at a time, unless a single row is larger.
	restoreBatch, pageBytes int
	// heldUpAfter is how long an export waits for others before it says so.
	heldUpAfter time.Duration
}

// Ledger returns the ledger of the database.
func (db *DB) Ledger() *Ledger {
	return &Ledger{db: db, restoreBatch: 32 << 20, pageBytes: 4 << 20, heldUpAfter: 10 * time.Second}
}

// A Recorded is one deletion as the ledger has it.
type Recorded struct {
	ID             int64
	PlantID        int64
	Plant          []RecordedValue // the row that was deleted, in the order of its columns
	DeletedAt      time.Time
	DeletedBy      string // the principal or, for direct SQL, the database role
	Direct         bool   // by direct SQL
	SessionRole    string // the database role that had logged in
	RequestID      string // empty for direct SQL
	IdempotencyKey string // empty for direct SQL
	RestoredAt     time.Time
	RestoredBy     string // empty unless restored
}

// A RecordedValue is one of a deleted row.
type RecordedValue struct {
	Column, Type string // Type as SQL spells it
	Computed     bool   // by a generated column: its value means nothing
	Value        []byte // as PostgreSQL writes it, nil for null
	// Untranslated: UTF-8 has no equivalent for the value, so it is in the encoding of the
	// database.
	Untranslated bool
}

// A LedgerFilter says which deletions are meant: those that fit every field that
// is set.
type LedgerFilter struct {
	Plant     *int64
	By        Deleter
	RequestID string
	Since     time.Time // that moment or later
	Until     time.Time // before that moment
	Before    int64     // ledger entries older than this one
}

// A Deleter is who deleted: a principal or a database role, which may have the same
// name, or neither.
type Deleter struct{ Principal, Role string }

// ErrNoDeletion: the ledger has no such entry.
var ErrNoDeletion = errors.New("no such deletion")

// page returns a query for a pageReader: of the deletions that fit a condition the first
// $2 by their numbers, ASC or DESC. With the plants, if $1 says so, there are no more
// of them than have $3 bytes, or one. (The length of a value that is stored apart is
// known without reading it.) Refusals are no deletions.
func page(condition, order string) string {
	return fmt.Sprintf(`
		SELECT d.id, d.plant_id, d.deleted_at, d.deleted_by, d.request_id IS NULL, d.session_role, coalesce(d.request_id, ''),
			coalesce(d.idempotency_key, ''), d.restored_at, coalesce(d.restored_by, ''),
			CASE WHEN $1::boolean THEN d.plant END, s.names, s.types, s.generated, d.last
		FROM (SELECT f.*, sum(octet_length(f.plant)) OVER up_to_here AS bytes, lead(f.id) OVER up_to_here IS NULL AS last, row_number() OVER up_to_here AS n
			FROM (SELECT d.* FROM public.plant_deletions d WHERE d.plant IS NOT NULL AND %[1]s ORDER BY d.id %[2]s LIMIT $2::bigint + 1) f
			WINDOW up_to_here AS (ORDER BY f.id %[2]s)) d
		LEFT JOIN public.plant_shapes s ON $1::boolean AND s.id = d.shape
		WHERE d.n <= $2::bigint AND (NOT $1::boolean OR d.bytes <= $3 OR d.n = 1)
		ORDER BY d.id %[2]s`, condition, order)
}

// A pageReader returns the deletions of a page, and whether there are more of them.
type pageReader func(ctx context.Context, tx pgx.Tx, page string, args ...any) (list []Recorded, more bool, err error)

func readPage(ctx context.Context, tx pgx.Tx, page string, args ...any) (list []Recorded, more bool, err error) {
	rows, err := tx.Query(ctx, page, args...)
	if err != nil {
		return nil, false, err
	}
	last := true
	list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Recorded, error) { return scanRecorded(row, &last) })
	return list, !last, err
}

func scanRecorded(row pgx.CollectableRow, last *bool) (Recorded, error) {
	var r Recorded
	var restored *time.Time
	var plant []byte
	var s shape
	if err := row.Scan(&r.ID, &r.PlantID, &r.DeletedAt, &r.DeletedBy, &r.Direct, &r.SessionRole, &r.RequestID,
		&r.IdempotencyKey, &restored, &r.RestoredBy, &plant, &s.names, &s.types, &s.generated, last); err != nil {
		return r, err
	}
	r.RestoredAt = orZero(restored)
	if plant == nil {
		return r, nil
	}
	values, err := s.parse(r.ID, plant)
	if err != nil {
		return r, err
	}
	r.Plant = make([]RecordedValue, len(values))
	for i, value := range values {
		r.Plant[i] = RecordedValue{Column: s.names[i], Type: s.types[i], Computed: s.generated[i]}
		if !s.generated[i] {
			r.Plant[i].Value = value
		}
	}
	return r, nil
}

// A shape is the columns that a deleted row had.
type shape struct {
	names, types []string
	generated    []bool // computed themselves
}

// parse returns the values of the row that a ledger entry has.
func (s *shape) parse(entry int64, plant []byte) ([][]byte, error) {
	values, err := parseRecord(plant)
	if err == nil && len(values) != len(s.names) {
		err = fmt.Errorf("it has %d values for %d columns", len(values), len(s.names))
	}
	if err != nil {
		return nil, fmt.Errorf("the row of deletion %d is damaged: %w", entry, err)
	}
	return values, nil
}

// List returns up to limit deletions, newest first. Rows can be large: Plant is nil
// unless withPlants is set, and then the list ends, after one entry at the least,
// where the rows get too large to be held in memory together. It also tells whether
// there are more.
func (l *Ledger) List(ctx context.Context, f LedgerFilter, limit int, withPlants bool) (list []Recorded, more bool, err error) {
	err = l.inWords("list deletions", reading(ctx, l.db.pool, pgx.ReadCommitted, func(tx pgx.Tx, read pageReader) error {
		var err error
		list, more, err = read(ctx, tx, page(`($4::bigint IS NULL OR d.plant_id = $4)
				AND ($5::text = '' OR d.deleted_by = $5 AND d.request_id IS NOT NULL)
				AND ($6::text = '' OR d.deleted_by = $6 AND d.request_id IS NULL)
				AND ($7::text = '' OR d.request_id = $7)
				AND ($8::timestamptz IS NULL OR d.deleted_at >= $8)
				AND ($9::timestamptz IS NULL OR d.deleted_at < $9)
				AND ($10::bigint = 0 OR d.id < $10)`, "DESC"),
			withPlants, limit, l.pageBytes, f.Plant, f.By.Principal, f.By.Role, f.RequestID, orNull(f.Since), orNull(f.Until), f.Before)
		return err
	}))
	return list, more, err
}

// Get returns one entry with its plant, or ErrNoDeletion.
func (l *Ledger) Get(ctx context.Context, id int64) (Recorded, error) {
	var r Recorded
	err := l.inWords("read deletion", reading(ctx, l.db.pool, pgx.ReadCommitted, func(tx pgx.Tx, read pageReader) error {
		list, _, err := read(ctx, tx, page(`d.id = $4`, "ASC"), true, 1, l.pageBytes, id)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return ErrNoDeletion
		}
		r = list[0]
		return nil
	}))
	return r, err
}

// An Undo is what there is to restore of somebody's deletions.
type Undo struct {
	IDs []int64 // ledger entries, newest first
	// First and Last are when the oldest and the newest of them were deleted.
	First, Last time.Time
	// Superseded counts those left out because their plant came back and was
	// deleted again later: bringing back the older row would undo that one.
	Superseded int
}

// Undoable returns what by deleted from since to before until (zero: no end) and
// is not restored yet. It refuses whom a restore would, see RestoreOptions.RunTriggers.
func (l *Ledger) Undoable(ctx context.Context, by Deleter, since, until time.Time, runTriggers bool) (Undo, error) {
	var u Undo
	err := l.look(ctx, "look for deletions", func(tx pgx.Tx) error {
		if !runTriggers {
			if err := refusePower(ctx, tx); err != nil {
				return err
			}
		}
		rows, err := tx.Query(ctx, `
			SELECT d.id, d.deleted_at, EXISTS (SELECT FROM public.plant_deletions later
				WHERE later.plant_id = d.plant_id AND later.id > d.id AND later.plant IS NOT NULL)
			FROM public.plant_deletions d
			WHERE d.plant IS NOT NULL AND d.restored_at IS NULL AND d.deleted_at >= $3
				AND (d.deleted_by = $1::text AND d.request_id IS NOT NULL OR d.deleted_by = $2::text AND d.request_id IS NULL)
				AND ($4::timestamptz IS NULL OR d.deleted_at < $4)
			ORDER BY d.id DESC`, by.Principal, by.Role, since, orNull(until))
		if err != nil {
			return err
		}
		var id int64
		var at time.Time
		var superseded bool
		_, err = pgx.ForEachRow(rows, []any{&id, &at, &superseded}, func() error {
			if superseded {
				u.Superseded++
				return nil
			}
			if len(u.IDs) == 0 || at.Before(u.First) {
				u.First = at
			}
			if at.After(u.Last) {
				u.Last = at
			}
			u.IDs = append(u.IDs, id)
			return nil
		})
		return err
	})
	return u, err
}

// ErrTooYoung: a purge was asked for entries within the idempotency horizon.
var ErrTooYoung = errors.New("within the idempotency horizon")

// Older counts the entries that Purge would remove, or returns ErrTooYoung.
func (l *Ledger) Older(ctx context.Context, age time.Duration) (int64, error) {
	if age < IdempotencyHorizon {
		return 0, ErrTooYoung
	}
	var n int64
	err := l.look(ctx, "count deletions", func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT count(*) FROM public.plant_deletions d
			CROSS JOIN (SELECT clock_timestamp() - make_interval(secs => $1) AS moment) before
			WHERE d.deleted_at < before.moment AND ((SELECT k.deleted_at FROM public.plant_deletions k WHERE k.plant_id = d.plant_id
				AND k.deleted_by = d.deleted_by AND k.idempotency_key = d.idempotency_key ORDER BY k.turn DESC LIMIT 1) >= before.moment) IS NOT TRUE`, age.Seconds()).Scan(&n)
	})
	return n, err
}

// Purge removes the entries that were older than age when it began, oldest first,
// in short transactions. It calls progress after each with how many it removed so
// far. What it removed stays removed when it fails later. Entries of one principal,
// plant and key go when all of them are old enough: without the refusals before it, a
// deletion would not be met by a retry. Purge returns ErrTooYoung for an age within
// the idempotency horizon.
func (l *Ledger) Purge(ctx context.Context, age time.Duration, progress func(purged int64)) (int64, error) {
	if age < IdempotencyHorizon {
		return 0, ErrTooYoung
	}
	var before time.Time
	err := l.look(ctx, "purge", func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT clock_timestamp() - make_interval(secs => $1)`, age.Seconds()).Scan(&before)
	})
	if err != nil {
		return 0, err
	}
	var purged int64
	for last := int64(math.MinInt64); ; {
		var n int64
		err := l.purge(ctx, "plant_deletions", func(tx pgx.Tx) error {
			// An entry that is locked is being restored. Ids grow with time, so
			// each batch starts where the one before it ended.
			return tx.QueryRow(ctx, `
				WITH batch AS (
					SELECT id FROM public.plant_deletions d WHERE id > $1 AND deleted_at < $2
						AND ((SELECT k.deleted_at FROM public.plant_deletions k WHERE k.plant_id = d.plant_id
							AND k.deleted_by = d.deleted_by AND k.idempotency_key = d.idempotency_key ORDER BY k.turn DESC LIMIT 1) >= $2) IS NOT TRUE
					ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED
				), gone AS (
					DELETE FROM public.plant_deletions d USING batch WHERE d.id = batch.id RETURNING d.id
				)
				SELECT count(*), coalesce(max(id), $1) FROM gone`, last, before, purgeBatch).Scan(&n, &last)
		})
		if err != nil {
			return purged, err
		}
		if n == 0 {
			return purged, l.forgetBudgets(ctx)
		}
		purged += n
		progress(purged)
	}
}

// forgetBudgets removes what principals that the service knows from elsewhere have used
// of the default budget, once none of it can count any more.
func (l *Ledger) forgetBudgets(ctx context.Context) error {
	return l.purge(ctx, "plantstore_budgets", func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			DELETE FROM public.plantstore_budgets b WHERE b.most IS NULL AND b.lifted_until < now()
				AND (b.ends = '{}' OR b.ends[cardinality(b.ends)] < now() - make_interval(secs => $1))`, plant.LongestPeriod.Seconds())
		return err
	})
}

// look runs do, which reads the ledger's entries. Its error is in words.
func (l *Ledger) look(ctx context.Context, doing string, do func(pgx.Tx) error) error {
	return l.inWords(doing, readTables(ctx, l.db.pool, pgx.ReadCommitted, do, "plant_deletions"))
}

// readTables is transact for what only reads tables of ours, which must not be replaced. It is
// rolled back: a superuser's lock on the schema is written down, and its commit could wait for a
// standby.
func readTables(ctx context.Context, on beginner, level pgx.TxIsoLevel, do func(pgx.Tx) error, tables ...string) error {
	err := transact(ctx, on, level, func(tx pgx.Tx) error {
		if err := refuseReplaced(ctx, tx, toRead, tables...); err != nil {
			return err
		}
		return cmp.Or(do(tx), errTakenBack)
	})
	if errors.Is(err, errTakenBack) {
		return nil
	}
	return err
}

// purge runs do, which removes rows of a table. Its error is in words.
func (l *Ledger) purge(ctx context.Context, table string, do func(pgx.Tx) error) error {
	err := transact(ctx, l.db.pool, pgx.ReadCommitted, func(tx pgx.Tx) error {
		if err := refuseReplaced(ctx, tx, toWrite, table); err != nil {
			return err
		}
		return do(tx)
	})
	return l.inWords("purge"+unanswered(err), err)
}

// A beginner begins transactions: a pool, or one connection.
type beginner interface {
	BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error)
}

// patientLockTimeout is what a transaction of transact has.
const patientLockTimeout = "30s"

// transact runs do in a transaction without a time limit of its own: a ledger may be
// large, and an operator can wait. Names are looked up in pg_catalog, a backslash in
// our SQL is one, and the driver can read moments that come as text. Rows that row level
// security hides are an error, not missing. A crash takes nothing back that was told, whatever
// triggers do, see atCommit.
func transact(ctx context.Context, on beginner, level pgx.TxIsoLevel, do func(pgx.Tx) error) error {
	return inTransaction(ctx, on, level, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `
			SET LOCAL search_path = pg_catalog, pg_temp;
			SET LOCAL standard_conforming_strings = on;
			SET LOCAL statement_timeout = 0;
			SET LOCAL lock_timeout = '`+patientLockTimeout+`';
			SET LOCAL idle_in_transaction_session_timeout = '5min';
			SET LOCAL row_security = off;
			SET LOCAL datestyle = 'ISO, YMD';
			SELECT `+ourEncoding+`, `+noTransactionTimeout+`, `+commitDurably); err != nil {
			return err
		}
		return durably(ctx, tx, do)
	})
}

// An errLostCommit is of a commit that was not answered: nobody knows whether it came about.
type errLostCommit struct{ error }

func (e errLostCommit) Unwrap() error { return e.error }

// unanswered says so of an error that is one, and nothing of others.
func unanswered(err error) string {
	if _, lost := errors.AsType[errLostCommit](err); lost {
		return ": the commit was not answered, so it may have come about"
	}
	return ""
}

// inTransaction runs do in a transaction, and tells a commit whose answer was lost from what
// failed before it, which left nothing.
func inTransaction(ctx context.Context, on beginner, level pgx.TxIsoLevel, do func(pgx.Tx) error) error {
	var through net.Conn // of the commit
	var before int64
	err := pgx.BeginTxFunc(ctx, on, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
		err := do(tx)
		if err == nil {
			through = tx.Conn().PgConn().Conn()
			before, _ = written(through)
		}
		return err
	})
	if err == nil || through == nil || errors.Is(err, pgx.ErrTxCommitRollback) || judge(unlessWritten(through, before, err), true).next != ask {
		return err
	}
	return errLostCommit{err}
}

// inWords returns ErrNoDeletion, *RefusedError and *StrangersError as they are, and anything else
// in words.
func (l *Ledger) inWords(doing string, err error) error {
	_, refused := errors.AsType[*RefusedError](err)
	_, strangers := errors.AsType[*StrangersError](err)
	switch {
	case err == nil, errors.Is(err, ErrNoDeletion), refused, strangers:
		return err
	}
	return fmt.Errorf("%s: %w", doing, l.db.explainToOwner(err))
}
