package postgres

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/plant"
)

// Every SQL of a deletion is in this file.
//
// A session's search path is not ours: whoever owns the database can set one, with
// operators, functions and types of their own in front. So each transaction sets
// its own first, in a statement that names everything with its schema: pg_catalog, with
// temporary tables last, as a trigger of the store's may have left some in our session; or,
// where such triggers run with us, pg_catalog in front of what they rely on. Then our
// operators are those of pg_catalog as long as their types fit exactly. What was parsed
// before that, to be kept as a prepared statement, is parsed again then, but its
// parameters keep the types that they got first: those are named in full, too (bigint is a
// keyword and means the same everywhere).

// commitDurably is two columns of a SELECT. They make the transaction that they are in
// wait for its commit: a cluster that has synchronous_commit off would answer before
// the commit is durable, and one that has it local before the synchronous standby has it.
// And they have the server say so if that wait is cut short, see errCutShort: it says no
// warnings where client_min_messages is error.
const commitDurably = `pg_catalog.set_config('synchronous_commit', CASE
	WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) ANY (ARRAY['off', 'local']) THEN 'on'
	ELSE pg_catalog.current_setting('synchronous_commit') END, true), pg_catalog.set_config('client_min_messages', 'warning', true)`

// bounds is the first statement of each transaction that deletes. Its settings end
// with the transaction. A limit on the whole transaction, which PostgreSQL 17 and later
// have, would end the connection of a deletion that waits for a lock, and with it what is
// known of its fate: so it is taken off.
const bounds = `SELECT pg_catalog.set_config('search_path', CASE
		WHEN pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.=) '' THEN 'pg_catalog'
		ELSE pg_catalog.concat('pg_catalog, ', pg_catalog.current_setting('search_path')) END, true),
	pg_catalog.set_config('lock_timeout', ` + lockLimit + `, true), pg_catalog.set_config('statement_timeout', $2::pg_catalog.text, true),
	` + noTransactionTimeout

// noPlanOfASmallTable is a column of a SELECT. A plan that is kept for the life of a
// connection would scan the table for each deletion, if it was made while that was small,
// until the next ANALYZE. So none is kept as long as it has less than 32 pages; from some
// 12 on, an index is cheaper for a batch.
//
// The size of a large table is that of many files, one for each gigabyte. Its visibility
// map is one file, whatever its size, which has a page for each 255 MiB that VACUUM saw
// and is cut with the table. So that is looked at first. (Both are read under the weakest
// lock, ACCESS SHARE, which a table that is locked as a whole makes wait, as DELETE would.
// IS NULL has one length, whatever the size.)
const noPlanOfASmallTable = `CASE
	WHEN pg_catalog.pg_relation_size('public.plants'::pg_catalog.regclass, 'vm') OPERATOR(pg_catalog.>) 8192::bigint THEN NULL
	WHEN pg_catalog.pg_relation_size('public.plants'::pg_catalog.regclass) OPERATOR(pg_catalog.<) 262144::bigint
	THEN pg_catalog.set_config('plan_cache_mode', 'force_custom_plan', true) END IS NULL`

// noTransactionTimeout is a column of a SELECT.
const noTransactionTimeout = `CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL
	THEN pg_catalog.set_config('transaction_timeout', '0', true) END`

// lockLimit is $1, in milliseconds, or half of the server's deadlock_timeout if that is
// less. Where a transaction of the store's comes to wait for us while we wait for it,
// we give up before the server looks for a deadlock, and would end theirs. (LEAST and
// GREATEST are grammar: no search path finds others.)
const lockLimit = `GREATEST(1::bigint, LEAST($1::bigint, (500::pg_catalog.float8 OPERATOR(pg_catalog.*)
	pg_catalog.date_part('epoch', pg_catalog.current_setting('deadlock_timeout')::pg_catalog.interval))::bigint))::pg_catalog.text`

// proof makes sure that what the DELETE before it removed is in the ledger, see
// migrations/00003_record_deletions.sql. It comes after the store's triggers, which
// may have made a commit of theirs a quick one.
//
// It also tells how many seconds the transaction took so far.
const proof = `SELECT public.plantstore_prove($1::bigint[], $2::pg_catalog.text[], $3::pg_catalog.text[]), ` + commitDurably + `,
	pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.transaction_timestamp())`

// proves is the statement that proves deletions recorded. It sets work to how long the
// database worked so far.
func proves(ids []int64, principals, keys []string, work *time.Duration) statement {
	return statement{proof, []any{ids, principals, keys}, func(scan func(...any) error) error {
		var seconds float64
		err := scan(nil, nil, nil, &seconds)
		*work = time.Duration(seconds * float64(time.Second))
		return err
	}}
}

// atCommit knows whether code of the store's may run at commits: triggers that can be
// deferred. They may take back what commitDurably did. Before the first look, they may.
type atCommit struct {
	looked atomic.Pointer[lookedAt]
}

type lookedAt struct {
	at   time.Time
	none bool
}

// lookEvery is how long it is believed that there are none, or some. To look each time, and to
// keep the commit for nothing, would cost a lone deletion a third of its time in the database.
const lookEvery = time.Second

// keepCommit makes a commit a durable one, whatever deferred triggers do, in a transaction that
// began with closeKept. See keep.
const (
	closeKept  = `CLOSE ALL`
	keepCommit = `DECLARE plantstore_durable CURSOR WITH HOLD FOR SELECT ` + commitDurably
)

// durably runs do, and has the commit that follows be a durable one.
func durably(ctx context.Context, tx pgx.Tx, do func(pgx.Tx) error) error {
	if _, err := tx.Exec(ctx, closeKept); err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, keepCommit)
	return err
}

// keep returns what begins and what ends a transaction that code of the store's may run after.
// PostgreSQL runs the query of a cursor WITH HOLD when all deferred work is done, right before the
// commit. The cursor outlives that, until the next transaction of the kind: so that begins by
// closing it. Others that outlive a transaction are of triggers, and of no use to anybody.
func (c *atCommit) keep() (first, last []statement) {
	now := time.Now()
	looked := c.looked.Load()
	known := looked != nil && now.Sub(looked.at) < lookEvery
	if known && looked.none {
		return nil, nil
	}
	first = []statement{{sql: closeKept}}
	last = []statement{{sql: keepCommit}}
	if known {
		return first, last
	}
	return first, append(last, statement{
		sql: `SELECT CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgdeferrable AND NOT t.tgisinternal) THEN 1::bigint ELSE 0::bigint END`,
		row: func(scan func(...any) error) error {
			var some int64
			err := scan(&some)
			if err == nil {
				c.looked.Store(&lookedAt{now, some == 0})
			}
			return err
		},
	})
}

// run runs statements as a transaction whose commit is kept. It returns their tags only.
func (c *atCommit) run(ctx context.Context, on runner, statements []statement) (tags []pgconn.CommandTag, err error) {
	first, last := c.keep()
	tags, err = on.run(ctx, slices.Concat(first, statements, last))
	tags = tags[min(len(first), len(tags)):]
	return tags[:min(len(statements), len(tags))], err
}

// pinned returns a queue of statements, one implicit transaction, whose names mean what
// they say.
//
// Plans are kept for the life of a connection. One that was made while a table was
// empty would scan all of it each time, until the next ANALYZE, so scans are off
// where there is an index. What they are said to cost then would call for jit.
//
// Through a pooler, the session has no limit of ours on the wait for locks. And where a
// URL has default_query_exec_mode=exec, a moment comes as text, which the driver reads in
// one form only.
func pinned() *pgx.Batch {
	queue := new(pgx.Batch)
	queue.Queue(pins)
	return queue
}

const pins = `SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
	pg_catalog.set_config('enable_seqscan', 'off', true), pg_catalog.set_config('jit', 'off', true),
	pg_catalog.set_config('lock_timeout', '` + lookLockTimeout + `', true), pg_catalog.set_config('datestyle', 'ISO, YMD', true)`

// lookLockTimeout bounds the wait for locks of what only reads.
const lookLockTimeout = "100ms"

// A sender is a connection, or a pool of them.
type sender interface {
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
}

// queryRow runs a statement in a pinned transaction of its own and scans its one
// row. It returns pgx.ErrNoRows when there is none.
func queryRow(ctx context.Context, db sender, dest []any, sql string, args ...any) error {
	none := true
	err := queryRows(ctx, db, func(scan func(...any) error) error {
		none = false
		return scan(dest...)
	}, sql, args...)
	if err == nil && none {
		return pgx.ErrNoRows
	}
	return err
}

// queryRows runs a statement in a pinned transaction of its own and calls row for each
// row.
func queryRows(ctx context.Context, db sender, row func(scan func(dest ...any) error) error, sql string, args ...any) error {
	queue := pinned()
	queue.Queue(sql, args...)
	return readSecond(ctx, db, queue, row)
}

// readSecond runs a queue of two statements, of which the second has rows.
func readSecond(ctx context.Context, db sender, queue *pgx.Batch, row func(scan func(dest ...any) error) error) error {
	results := db.SendBatch(ctx, queue)
	_, err := results.Exec()
	if err == nil {
		_, err = readResult(results, statement{row: row})
	}
	// The commit is only known when everything was read to the end.
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return err
}

// exec runs a statement in a pinned transaction of its own.
func exec(ctx context.Context, db sender, sql string, args ...any) error {
	queue := pinned()
	queue.Queue(sql, args...)
	return db.SendBatch(ctx, queue).Close()
}

// A turn is a deletion under the number that its attempts have until it is refused.
// Attempts of one turn delete once at the most, and not at all after its refusal.
type turn struct {
	plant.Deletion
	number int  // how many refusals there were before
	known  bool // see progress
	// patience is how long an attempt waits for its principal's budget at the most; none
	// leaves that to the trigger.
	patience time.Duration
}

// A statement is one of a transaction.
type statement struct {
	sql  string
	args []any // each a string, an int64, or a slice of these
	// row, if it is not nil, is called for each row of the result. It may scan it once: on a
	// pipeline into an int64 or a float64, or into nil what is of no use.
	row func(scan func(dest ...any) error) error
}

// A runner runs statements as one implicit transaction in one round trip, and returns the
// tags of those that were completed. With an error that came after the last of them,
// it came with the commit.
type runner interface {
	run(ctx context.Context, statements []statement) (tags []pgconn.CommandTag, err error)
}

// single is a runner that has a connection to itself.
type single struct{ *pgx.Conn }

func (s single) run(ctx context.Context, statements []statement) (tags []pgconn.CommandTag, err error) {
	var queue pgx.Batch
	for _, st := range statements {
		queue.Queue(st.sql, st.args...)
	}
	before, _ := written(s.PgConn().Conn())
	results := s.SendBatch(ctx, &queue)
	for _, st := range statements {
		var tag pgconn.CommandTag
		if tag, err = readResult(results, st); err != nil {
			break
		}
		tags = append(tags, tag)
	}
	if commitErr := commit(s.Conn, results); err == nil {
		err = commitErr
	}
	return tags, unlessWritten(s.PgConn().Conn(), before, err)
}

func readResult(results pgx.BatchResults, st statement) (pgconn.CommandTag, error) {
	if st.row == nil {
		return results.Exec()
	}
	rows, err := results.Query()
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer rows.Close()
	for rows.Next() {
		if err := st.row(rows.Scan); err != nil {
			return pgconn.CommandTag{}, err
		}
	}
	rows.Close() // only then there is a tag
	return rows.CommandTag(), rows.Err()
}

// deleteEach runs deletions as one implicit transaction in one round trip, and
// reports for each whether there was a row, and how long the database worked
// before the commit. With an error, at is the index of the
// deletion at which it came, or -1 if it came with the commit; nothing was deleted
// if the error is the database's, and nobody knows if the connection was lost.
//
// Each DELETE is of plants ONLY. The trigger refuses where a table inherits from it. But a
// DELETE that waited while somebody took a child away would go on with the child's rows, and
// the trigger would see no child any more.
//
// It locks its row and, by their foreign keys, looks for rows that refer
// to it (a scan of the referring table if that has no index on the column). The
// trigger plantstore_record_deletion writes the ledger from the settings made
// before it. Somebody else deleting the same row is waited for, up to
// lockTimeout; whoever comes second finds no row.
//
// What follows each DELETE is its proof, which takes the whole transaction back with
// the error unrecorded when the ledger lacks a row. What the store's triggers put off
// until the commit is done there, as a check may hold at the commit only. If it deletes
// plants, nobody knows for whom among several: in the end the settings are those of a batch
// of which all was proved, so that the commit is refused.
func deleteEach(ctx context.Context, on runner, deletions []turn, lockTimeout, statementTimeout time.Duration, then *atCommit) (deleted []bool, work time.Duration, at int, err error) {
	var statements []statement
	add := func(sql string, args ...any) { statements = append(statements, statement{sql: sql, args: args}) }
	for i, d := range deletions {
		budget := budgetOf(d)
		request := []string{strconv.FormatInt(int64(d.Plant), 10), d.Principal, d.RequestID, d.Key, strconv.Itoa(d.number)}
		if i == 0 {
			add(bounds+`, `+noPlanOfASmallTable+`, pg_catalog.set_config('plantstore.recorded', '', true), pg_catalog.set_config('plantstore.batch', '', true),
				pg_catalog.set_config('plantstore.request', $3::pg_catalog.text[]::pg_catalog.text, true), pg_catalog.set_config('plantstore.budget', $4::pg_catalog.text[]::pg_catalog.text, true)`,
				milliseconds(lockTimeout), milliseconds(statementTimeout), request, budget)
		} else {
			add(`SELECT pg_catalog.set_config('plantstore.recorded', '', true),
				pg_catalog.set_config('plantstore.request', $1::pg_catalog.text[]::pg_catalog.text, true), pg_catalog.set_config('plantstore.budget', $2::pg_catalog.text[]::pg_catalog.text, true)`,
				request, budget)
		}
		add(`DELETE FROM ONLY public.plants WHERE id = $1::bigint`, int64(d.Plant))
		statements = append(statements, proves([]int64{int64(d.Plant)}, []string{d.Principal}, []string{d.Key}, &work))
	}
	if len(deletions) > 1 {
		add(`SELECT pg_catalog.set_config('plantstore.request', '', true), pg_catalog.set_config('plantstore.proved', 'on', true), pg_catalog.set_config('plantstore.batch',
			ARRAY[ARRAY['0'], ARRAY[$1::pg_catalog.text], ARRAY[$2::pg_catalog.text], ARRAY['']]::pg_catalog.text, true)`, deletions[0].Principal, deletions[0].RequestID)
	}
	const apart = 3 // statements from one DELETE to the next
	tags, err := then.run(ctx, on, statements)
	deleted = make([]bool, len(deletions))
	for i := range deletions {
		if n := 1 + i*apart; n < len(tags) {
			deleted[i] = tags[n].RowsAffected() > 0
		}
	}
	at = -1
	if whose := len(tags) / apart; whose < len(deletions) {
		at = whose
		if err != nil && len(tags)%apart == 1 {
			err = errAtDelete{err}
		}
	}
	return deleted, work, at, err
}

// deletePlants is the DELETE of a batch. PostgreSQL keeps a plan for any array only if it
// takes that for the array at hand to be no cheaper. It believes a short array to be cheaper
// where it can see the length, and would plan each small batch anew, for 3 to 5 % of what
// the batch costs the database. Through a subquery it sees no length.
const deletePlants = `DELETE FROM ONLY public.plants WHERE id = ANY (ARRAY(SELECT pg_catalog.unnest($1::bigint[]))) RETURNING id`

// deleteTogether is deleteEach for many at about half the cost for the database:
// one DELETE for all of them, which the trigger records in one go. It can't tell
// whose deletion the database refused: at is -1 with any error.
//
// It takes the same locks, in whatever order the plan finds the rows: lockTimeout
// has to be less than deadlock_timeout. All have to be in their first turn.
func deleteTogether(ctx context.Context, on runner, deletions []turn, lockTimeout, statementTimeout time.Duration, then *atCommit) (deleted []bool, work time.Duration, at int, err error) {
	asked, first := firstOfEach(deletions)
	ids, principals, requestIDs, keys := columns(asked)
	budget := budgetOf(deletions[0]) // all are of one principal, or of principals without
	deleted = make([]bool, len(deletions))
	tags, err := then.run(ctx, on, []statement{
		{bounds + `, ` + noPlanOfASmallTable + `, pg_catalog.set_config('plantstore.recorded', '', true), pg_catalog.set_config('plantstore.request', '', true),
		pg_catalog.set_config('plantstore.batch', ARRAY[$3::bigint[]::pg_catalog.text[], $4::pg_catalog.text[], $5::pg_catalog.text[], $6::pg_catalog.text[]]::pg_catalog.text, true),
		pg_catalog.set_config('plantstore.budget', $7::pg_catalog.text[]::pg_catalog.text, true)`,
			[]any{milliseconds(lockTimeout), milliseconds(statementTimeout), ids, principals, requestIDs, keys, budget}, nil},
		{deletePlants, []any{ids}, func(scan func(...any) error) error {
			var id int64
			err := scan(&id)
			deleted[first[id]] = true
			return err
		}},
		proves(ids, principals, keys, &work),
	})
	if err != nil && len(tags) == 1 {
		err = errAtDelete{err}
	}
	return deleted, work, -1, err
}

// errCutShort: the transaction is committed here, but the wait for the synchronous
// standby was ended by a timeout or a cancel. PostgreSQL tells that in a warning
// (manual, 27.2.8), and a failover would lose the commit.
var errCutShort = errors.New("the wait for the synchronous standby was cut short")

// cutsShort reports whether a notice is that warning: one of the routine of PostgreSQL's that
// waits for the standby. The names of routines are in no language. A pooler may keep the name
// from us.
func cutsShort(severity, routine string) bool {
	return severity == "WARNING" && (routine == "SyncRepWaitForLSN" || routine == "")
}

// warned is the name of the mark that noteWarning leaves on a connection.
const warned = "plantstore.warned"

func noteWarning(conn *pgconn.PgConn, n *pgconn.Notice) {
	if cutsShort(n.SeverityUnlocalized, n.Routine) {
		conn.CustomData()[warned] = true
	}
}

// commit reads what follows the results, which have to be read before: only then is the
// commit's outcome known. It returns errCutShort when that warning came with the commit.
// Through a pooler that names no routine, it may be one of a deferred trigger of the store's;
// then asking the ledger will tell.
func commit(conn *pgx.Conn, results pgx.BatchResults) error {
	marks := conn.PgConn().CustomData()
	delete(marks, warned)
	err := results.Close()
	if err == nil && marks[warned] != nil {
		return errCutShort
	}
	return err
}

// firstOfEach returns the deletions of a batch, one for each plant: of those who ask for
// the same plant the first gets it. It also tells the index of that by plant.
func firstOfEach(deletions []turn) (asked []plant.Deletion, first map[int64]int) {
	first = make(map[int64]int, len(deletions))
	for i, d := range deletions {
		if _, taken := first[int64(d.Plant)]; !taken {
			first[int64(d.Plant)] = i
			asked = append(asked, d.Deletion)
		}
	}
	return asked, first
}

// milliseconds writes a duration as PostgreSQL's time settings have it. None is
// written as 0, which would mean no limit.
func milliseconds(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }

// A history is what the database knows of a plant.
type history struct {
	exists    bool       // the plant is there
	kept      bool       // the plant is there, and a rule or trigger of the store's may be why
	replaced  bool       // the plant is there, and a rule may have kept even the ledger's trigger from running
	hidden    bool       // row level security may hide the plant or the ledger from us
	followed  bool       // the server's commits wait for a standby
	own       bool       // the deletion that was asked about is in the ledger
	turn      int        // the first of that deletion which has no entry
	age       float64    // of its last entry, in seconds
	readAt    time.Time  // when the age was that, or a little later, by our clock
	requestID *string    // of the ledger's row
	deletedAt *time.Time // of the ledger's row: the own one, else the latest; nil without any
}

// referring is the foreign keys to plants and, further down, to what they delete along.
const referring = `
	SELECT c.conrelid, c.conname, c.confdeltype FROM pg_constraint c
	WHERE c.contype = 'f' AND c.confrelid = 'public.plants'::pg_catalog.regclass
	UNION
	SELECT c.conrelid, c.conname, c.confdeltype FROM referring r
	JOIN pg_constraint c ON c.contype = 'f' AND c.confrelid = r.conrelid WHERE r.confdeltype = 'c'`

// lockedRows returns which of some plants are locked by a transaction that is under
// way. A lock of a row stands in its xmax, which is also that of transactions that
// ended; of one that is under way the server holds the id locked. It takes no lock
// and waits for none, and may miss some: rows that several have locked, and those of
// other tables, which a cascade deletes.
//
// It also tells whether all of them are: whether somebody has locked a table that a
// deletion uses in a mode that does not go with how it uses it, or waits to. It writes
// plants, the ledger, and those whose rows it deletes or changes by a foreign key; it locks
// rows of the others that refer to any of these rows that it deletes; and it reads the
// shapes. Where plants itself is locked against reading, that shows in the error.
func lockedRows(ctx context.Context, conn *pgx.Conn, ids []int64) (found []int64, all bool, err error) {
	err = queryRow(ctx, conn, []any{&found, &all}, `
		WITH RECURSIVE referring AS (`+referring+`), used AS (
			SELECT r.conrelid AS table, r.confdeltype IN ('c', 'n', 'd') AS written FROM referring r
			UNION ALL SELECT t, true FROM unnest(ARRAY['public.plants', 'public.plant_deletions']::pg_catalog.regclass[]) t)
		SELECT ARRAY(SELECT p.id FROM public.plants p WHERE p.id = ANY ($1::bigint[])
				AND p.xmax IN (SELECT l.transactionid FROM pg_locks l WHERE l.locktype = 'transactionid' AND l.granted)),
			EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'relation' AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
				AND CASE l.mode
					WHEN 'AccessExclusiveLock' THEN l.relation = 'public.plant_shapes'::pg_catalog.regclass OR l.relation IN (SELECT u.table FROM used u)
					WHEN 'ExclusiveLock' THEN l.relation IN (SELECT u.table FROM used u)
					WHEN 'ShareRowExclusiveLock' THEN l.relation IN (SELECT u.table FROM used u WHERE u.written)
					WHEN 'ShareLock' THEN l.relation IN (SELECT u.table FROM used u WHERE u.written)
				END)`, ids)
	if sqlState(err) == lockNotAvailable {
		return nil, true, nil
	}
	return found, all, err
}

// readHistory reads what became of a plant, within limit. It takes no lock.
func readHistory(ctx context.Context, conn *pgx.Conn, d plant.Deletion, limit time.Duration) (history, error) {
	limit = max(min(limit, remaining(ctx)-margin), leastStatementTimeout)
	all, _, err := readHistories(ctx, conn, []plant.Deletion{d}, limit)
	if err != nil {
		return history{}, err
	}
	return all[0], nil
}

// readHistories is readHistory for many, in their order. It also tells how long the
// database worked.
func readHistories(ctx context.Context, conn *pgx.Conn, deletions []plant.Deletion, limit time.Duration) (all []history, work time.Duration, err error) {
	ids, principals, _, keys := columns(deletions)
	// A row trigger before the DELETE can keep the row (tgtype 1: for each row, 2:
	// before, 8: delete), and so can a rule instead of it. Without a condition ('<>')
	// the rule leaves no DELETE whose triggers would run.
	//
	// OFFSET 0 hides the length of the arrays from the planner, see deletePlants. (unnest of
	// several arrays is grammar: no search path finds another.)
	queue := new(pgx.Batch)
	queue.Queue(pins+`, pg_catalog.set_config('statement_timeout', $1::pg_catalog.text, true)`, milliseconds(limit))
	queue.Queue(`
		SELECT p.there, p.there AND (
				EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = 'public.plants'::pg_catalog.regclass AND NOT t.tgisinternal AND t.tgtype & 11 = 11)
				OR EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = 'public.plants'::pg_catalog.regclass AND r.ev_type = '4' AND r.is_instead)),
			p.there AND EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = 'public.plants'::pg_catalog.regclass AND r.ev_type = '4' AND r.is_instead
				AND r.ev_qual::pg_catalog.text = '<>'),
			row_security_active('public.plants') OR row_security_active('public.plant_deletions'), current_setting('synchronous_standby_names') <> '',
			coalesce(l.own, false), l.request_id, l.deleted_at,
			coalesce(r.turn + 1, 0), coalesce(extract(epoch FROM clock_timestamp() - r.deleted_at), 0)::float8,
			extract(epoch FROM clock_timestamp() - transaction_timestamp())::float8
		FROM (SELECT $1::bigint[] AS plants, $2::pg_catalog.text[] AS principals, $3::pg_catalog.text[] AS keys OFFSET 0) asked
		CROSS JOIN LATERAL unnest(asked.plants, asked.principals, asked.keys) WITH ORDINALITY a (plant, principal, key, number)
		CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM public.plants WHERE id = a.plant) AS there) p LEFT JOIN LATERAL (
			SELECT d.deleted_by = a.principal AND d.idempotency_key IS NOT DISTINCT FROM a.key AS own, d.request_id, d.deleted_at
			FROM public.plant_deletions d WHERE d.plant_id = a.plant AND d.plant IS NOT NULL
			ORDER BY own DESC, d.id DESC LIMIT 1
		) l ON true LEFT JOIN LATERAL (
			SELECT d.turn, d.deleted_at FROM public.plant_deletions d
			WHERE d.plant_id = a.plant AND d.deleted_by = a.principal AND d.idempotency_key = a.key
			ORDER BY d.turn DESC LIMIT 1
		) r ON true ORDER BY a.number`, ids, principals, keys)
	err = readSecond(ctx, conn, queue, func(scan func(...any) error) error {
		h := history{readAt: time.Now()}
		var seconds float64
		err := scan(&h.exists, &h.kept, &h.replaced, &h.hidden, &h.followed, &h.own, &h.requestID, &h.deletedAt, &h.turn, &h.age, &seconds)
		all, work = append(all, h), time.Duration(seconds*float64(time.Second))
		return err
	})
	return all, work, err
}

// columns returns what is asked of deletions, for the arrays of a statement.
func columns(deletions []plant.Deletion) (ids []int64, principals, requestIDs, keys []string) {
	for _, d := range deletions {
		ids, principals = append(ids, int64(d.Plant)), append(principals, d.Principal)
		requestIDs, keys = append(requestIDs, d.RequestID), append(keys, d.Key)
	}
	return ids, principals, requestIDs, keys
}

// refersToPlants reports whether a constraint or column of a table can stand in the
// way of a deletion because the table's rows refer to the plant, or to a row that
// a cascade removes along with it. Otherwise it is something else of the store's,
// such as an archive that a trigger fills. It takes no lock.
func refersToPlants(ctx context.Context, conn *pgx.Conn, e *pgconn.PgError) (bool, error) {
	var refers bool
	// A foreign key refuses by itself. With SET NULL or SET DEFAULT it changes the
	// row that refers, which then breaks any constraint of its table. (to_regclass would
	// ask for a right on the table's schema, which the service's role need not have.)
	err := queryRow(ctx, conn, []any{&refers}, `
		WITH RECURSIVE referring AS (`+referring+`)
		SELECT EXISTS (SELECT FROM referring r
			JOIN pg_class c ON c.oid = r.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = $1::pg_catalog.text AND c.relname = $2::pg_catalog.text
				AND (r.conname = $3::pg_catalog.text OR r.confdeltype IN ('n', 'd')))`,
		e.SchemaName, e.TableName, e.ConstraintName)
	return refers, err
}

// refuse records in one transaction that deletions are refused, so that no attempt of
// them under way can delete the plants any more. It reports true for each for which
// that is durable, and false where the plant was deleted under the same key after all.
// For an attempt that is about to be committed it waits up to lockTimeout. (unnest of
// several arrays is grammar: no search path finds another.)
func refuse(ctx context.Context, conn *pgx.Conn, deletions []plant.Deletion, lockTimeout, statementTimeout time.Duration, then *atCommit) (refused []bool, err error) {
	ids, principals, requestIDs, keys := columns(deletions)
	_, err = then.run(ctx, single{conn}, []statement{
		{sql: bounds, args: []any{milliseconds(lockTimeout), milliseconds(statementTimeout)}},
		{`SELECT ARRAY(SELECT public.plantstore_refuse(r.plant, r.principal, r.request_id, r.key) FROM unnest(
			$1::bigint[], $2::pg_catalog.text[], $3::pg_catalog.text[], $4::pg_catalog.text[]) r (plant, principal, request_id, key)), ` + commitDurably,
			[]any{ids, principals, requestIDs, keys}, func(scan func(...any) error) error { return scan(&refused, nil, nil) }},
	})
	return refused, err
}

// settle makes sure that what was read from the ledger outlives a failover.
//
// A row can be read before it is replicated: when the wait for a synchronous
// standby was cut short, by a crash or a cancelled session, the commit is there
// locally and only there. So settle commits a record of its own behind it (the
// smallest there is, a logical decoding message) and waits for that: the log is
// replicated in order.
func settle(ctx context.Context, conn *pgx.Conn) error {
	_, err := single{conn}.run(ctx, []statement{
		{sql: `SELECT pg_catalog.set_config('statement_timeout', $1::pg_catalog.text, true), ` + commitDurably, args: []any{milliseconds(attemptTimeout(ctx, 1))}},
		{sql: `SELECT pg_catalog.pg_logical_emit_message(true, 'plantstore', '')`},
	})
	return err
}
