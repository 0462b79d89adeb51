package postgres

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// enoughRefusals ends the search for deletions that can't be restored.
const enoughRefusals = 100

// RestoreOptions say who restores, and what is accepted.
type RestoreOptions struct {
	// As is who restores, for the ledger. Empty: the database role.
	As string
	// Lossy accepts that plants do not come back as they were.
	Lossy bool
	// Superseded accepts that the restore of an earlier deletion undoes a later one
	// of the same plant, too.
	Superseded bool
	// SkipExisting leaves out plants whose id is taken again.
	SkipExisting bool
	// RunTriggers accepts what a *StrangersError is about, and that whoever restores has more
	// rights than others whose code may run.
	RunTriggers bool
	// DryRun takes everything back in the end.
	DryRun bool
	// Progress, if set, is told how many of how many plants are put back, and then
	// how many of them are compared.
	Progress func(what string, done, of int)
}

// Restored tells what a restore did.
type Restored struct {
	Plants int
	// Existing are those that were left out, see SkipExisting.
	Existing int
	// Adopted are plants that refer to one that was left out, by its id: to the plant that has
	// it today.
	Adopted []int64
	// Defaulted are columns that plants have got since: they took their default.
	Defaulted []string
	// Remade are columns that were dropped since and made again: they took the values of
	// those that had their names.
	Remade []string
	// Retyped are columns that took their values as another type, with both types: it
	// reads the same text, and may take it for something else.
	Retyped []string
	// Losses are what did not come back as it was.
	Losses []Refusal
}

// A RefusedError says why nothing was restored.
type RefusedError struct {
	Refusals []Refusal // newest first
	// More: the search ended when there were a hundred or so.
	More bool
}

// A Refusal is what of a deletion stands in the way of a restore.
type Refusal struct {
	ID    int64  // of the ledger's entry
	Plant int64  // zero when there is no such entry
	Why   string // fit for a terminal
	// Unless is the option that accepts it, "lossy", "superseded" or "skip-existing", or empty.
	Unless string
}

func (e *RefusedError) Error() string {
	first := e.Refusals[0]
	return fmt.Sprintf("nothing was restored: %d in the way, the first is deletion %d: %s", len(e.Refusals), first.ID, first.Why)
}

// Restore puts deleted plants back, all of them or none, and marks their entries.
// Each recorded value goes to the input function of the column that has its name
// today. Afterwards the table is compared with what was recorded.
//
// The error is a *RefusedError when a deletion can't be undone: because it was
// already, its id is taken again, a row that it refers to is gone, or its plant
// would not come back as it was. It is a *StrangersError when the code of others
// would run with our rights. A role that could do more to the server than the owners of what
// it meets needs RunTriggers. Any other one says that nothing was restored, or that this is
// not known.
//
// What else the deletion did is not in the ledger and does not come back: rows of
// other tables that a foreign key removed or emptied along with the plant.
//
// A dry run is a restore that is taken back when all is done and compared. It takes
// the same locks meanwhile. What is not part of a transaction stays done: numbers that
// defaults took from sequences, or what a trigger does elsewhere.
func (l *Ledger) Restore(ctx context.Context, ids []int64, o RestoreOptions) (Restored, error) {
	nothing := func(err error) (Restored, error) {
		doing := "restore: nothing was restored"
		if ctx.Err() == nil && hungUp(err) { // without a COMMIT the server takes all back
			doing += ", as the connection was lost: run it again"
		}
		return Restored{}, l.inWords(doing, err)
	}
	locking, err := l.howToLock(ctx, o.RunTriggers)
	if err != nil {
		return nothing(err)
	}
	var done Restored
	err = transact(ctx, locking, pgx.ReadCommitted, func(tx pgx.Tx) error {
		if err := refuseReplaced(ctx, tx, toRead, "plant_deletions", "plant_shapes"); err != nil {
			return err
		}
		// A check put off to the commit could not tell which plant it failed for.
		if _, err := tx.Exec(ctx, `SET CONSTRAINTS ALL IMMEDIATE;`+recordedForm); err != nil {
			return err
		}
		if err := refuseReplica(ctx, tx); err != nil {
			return err
		}
		entries, err := lockEntries(ctx, tx, ids)
		if err != nil {
			return err
		}
		r := restore{tx: tx, options: o, batch: l.restoreBatch}
		if r.path, err = storesPath(ctx, tx); err != nil {
			return err
		}
		if err := r.plan(ctx, entries); err != nil {
			return err
		}
		done, err = r.run(ctx, entries)
		if err == nil && o.DryRun {
			return errTakenBack
		}
		return err
	})
	_, lost := errors.AsType[errLostCommit](err)
	switch {
	case err == nil, errors.Is(err, errTakenBack):
		return done, nil
	case lost:
		return Restored{}, l.inWords("restore: the commit was not answered, so all is restored or nothing, and to run it again tells which", err)
	}
	return nothing(err)
}

// hungUp reports whether an error is that a connection ended that was in use. With 08P01 a pooler
// ends one for what was asked of it. The driver has no type for a connection that it has closed.
func hungUp(err error) bool {
	if _, connecting := errors.AsType[*pgconn.ConnectError](err); connecting {
		return false
	}
	if pg := pgError(err); pg != nil {
		return endsSession(pg) && pg.Code != "08P01"
	}
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, io.ErrUnexpectedEOF) || pgconn.SafeToRetry(err)
}

const (
	// lockPatience is how long a restore tries to lock the plants.
	lockPatience = 30 * time.Second
	// lockPause is how long it lets others through in between.
	lockPause = 500 * time.Millisecond
)

// lockingPlants begins transactions that lock the table before its columns are read. COPY takes
// the weaker lock anyway, which keeps ALTER TABLE out. A stranger who owns the table could make
// statistics or indexes, whose code would run with our rights: the other lock keeps those out,
// too, and lets others delete and insert. It waits for VACUUM, of which PostgreSQL's own gives
// way after deadlock_timeout, and for CREATE INDEX CONCURRENTLY. That waits in turn for each
// transaction that has a snapshot when it comes to that: so we wait in turns, each a transaction
// of its own that runs no query before it has the lock.
type lockingPlants struct {
	beginner
	lock      string // with the time limit of a turn
	strangers bool   // it is the stronger lock
}

// BeginTx begins a transaction that has the lock.
func (l lockingPlants) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	for began := time.Now(); ; {
		tx, err := l.beginner.BeginTx(ctx, o)
		if err != nil {
			return nil, err
		}
		if _, err = tx.Exec(ctx, l.lock); err == nil {
			return tx, nil
		}
		state := sqlState(err)
		_ = tx.Rollback(ctx) // it did nothing
		switch {
		case state != lockNotAvailable && state != deadlockDetected:
			return nil, err
		case time.Since(began) >= lockPatience:
			return nil, errors.New("public.plants is locked, perhaps by a VACUUM, an ANALYZE, a CREATE INDEX CONCURRENTLY, an ALTER TABLE or another restore: run it again when that has ended" + l.orElse())
		}
		if err := sleep(ctx, lockPause); err != nil {
			return nil, err
		}
	}
}

// orElse says how a restore does without the stronger lock.
func (l lockingPlants) orElse() string {
	if !l.strangers {
		return ""
	}
	return ". Only an ALTER TABLE or the like keeps one with --run-triggers out, by which the table's owner could act with your rights"
}

// howToLock returns what begins a restore. Its error may be that of refusePower.
func (l *Ledger) howToLock(ctx context.Context, runTriggers bool) (beginner, error) {
	how := lockingPlants{beginner: l.db.pool}
	err := transact(ctx, l.db.pool, pgx.ReadCommitted, func(tx pgx.Tx) error {
		if !runTriggers {
			if err := refusePower(ctx, tx); err != nil {
				return err
			}
		}
		var unlimited string
		var lacks []string
		var turn int // in milliseconds; no longer where the server looks for deadlocks late
		if err := tx.QueryRow(ctx, `
			SELECT c.relowner IN (`+strangers+`), (SELECT least(100 + setting::bigint, 10000) FROM pg_settings WHERE name = 'deadlock_timeout'),
				(SELECT string_agg('SET LOCAL ' || name || ' = 0; ', '') FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')),
				ARRAY(SELECT r FROM unnest('{SELECT,INSERT,DELETE}'::text[]) r WHERE NOT has_table_privilege(c.oid, r)
					AND has_table_privilege('public.plant_deletions', 'UPDATE')) -- without it, who connects is what is wrong
			FROM pg_class c WHERE c.oid = 'public.plants'::regclass`).Scan(&how.strangers, &turn, &unlimited, &lacks); err != nil {
			return err
		}
		mode := "SHARE UPDATE EXCLUSIVE"
		if how.strangers = how.strangers && !runTriggers; !how.strangers {
			turn, mode = int(lockPatience.Milliseconds()), "ROW EXCLUSIVE"
			lacks = slices.DeleteFunc(lacks, func(right string) bool { return right == "DELETE" }) // the other lock takes it
		}
		if role := tx.Conn().Config().User; len(lacks) > 0 {
			return fmt.Errorf("role %[1]s lacks rights. GRANT %[2]s ON public.plants TO %[1]s, or restore as a role that has them", role, strings.Join(lacks, ", "))
		}
		how.lock = fmt.Sprintf(`%sSET LOCAL lock_timeout = %d; LOCK TABLE public.plants IN %s MODE`, unlimited, turn, mode)
		return nil
	})
	return how, err
}

// refuseReplica returns an error where sessions are those of a replica: no foreign key would be
// checked, and no trigger would run.
func refuseReplica(ctx context.Context, tx pgx.Tx) error {
	var replica bool
	err := tx.QueryRow(ctx, `SELECT current_setting('session_replication_role') = 'replica'`).Scan(&replica)
	if err == nil && replica {
		err = errors.New("session_replication_role is replica in this session, so foreign keys would not be checked, and triggers would not run: " +
			"set it back, for the role or the database that has it")
	}
	return err
}

// errTakenBack ends the transaction of a dry run.
var errTakenBack = errors.New("taken back")

// recordedForm is how the trigger has values written down, and what else matters
// for reading them. Rows that row level security hides are an error, not missing.
const recordedForm = `
	SET LOCAL datestyle = 'ISO, YMD';
	SET LOCAL intervalstyle = 'postgres';
	SET LOCAL extra_float_digits = 1;
	SET LOCAL bytea_output = 'hex';
	SET LOCAL timezone = 'UTC';
	SET LOCAL lc_monetary = 'C';
	SET LOCAL quote_all_identifiers = off;
	SET LOCAL xmloption = 'content';
	SET LOCAL array_nulls = on;
	SET LOCAL row_security = off;
	SET LOCAL search_path = pg_catalog, pg_temp;`

// An entry is a deletion that is being restored.
type entry struct {
	ID, Plant int64
	Shape     int64
	Size      int // of the recorded row, in bytes
}

func idsOf(entries []entry) []int64 {
	ids := make([]int64, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	return ids
}

func plantsOf(entries []entry) []int64 {
	plants := make([]int64, len(entries))
	for i, e := range entries {
		plants[i] = e.Plant
	}
	return plants
}

// lockEntries locks the ledger's entries against another restore and a purge,
// newest first, so that two of us never wait for each other, and returns them in
// that order. It returns a *RefusedError unless each exists, is not restored, and
// is of a plant of its own.
func lockEntries(ctx context.Context, tx pgx.Tx, ids []int64) ([]entry, error) {
	rows, err := tx.Query(ctx, `
		SELECT id, plant_id, shape, octet_length(plant), restored_at, coalesce(restored_by, '')
		FROM public.plant_deletions WHERE id = ANY ($1) AND plant IS NOT NULL ORDER BY id DESC FOR UPDATE`, ids)
	if err != nil {
		return nil, err
	}
	missing := make(map[int64]bool, len(ids))
	for _, id := range ids {
		missing[id] = true
	}
	var entries []entry
	var refused []Refusal
	newest := make(map[int64]int64, len(ids)) // the entry of each plant
	var restoredAt *time.Time
	var by string
	var e entry
	_, err = pgx.ForEachRow(rows, []any{&e.ID, &e.Plant, &e.Shape, &e.Size, &restoredAt, &by}, func() error {
		delete(missing, e.ID)
		other, twice := newest[e.Plant]
		switch {
		case restoredAt != nil:
			refused = append(refused, Refusal{ID: e.ID, Plant: e.Plant,
				Why: fmt.Sprintf("it was restored by %s at %s", visible(by), restoredAt.UTC().Format(time.RFC3339))})
		case twice:
			refused = append(refused, Refusal{ID: e.ID, Plant: e.Plant,
				Why: fmt.Sprintf("deletion %d is of the same plant, and later: restore one of them", other)})
		default:
			newest[e.Plant] = e.ID
			entries = append(entries, e)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(missing)) {
		refused = append(refused, Refusal{ID: id, Why: "the ledger has no such entry; was it purged?"})
	}
	if len(refused) > 0 {
		return nil, &RefusedError{Refusals: refused}
	}
	return entries, nil
}

// A restore is one under way.
type restore struct {
	tx      pgx.Tx
	options RestoreOptions
	batch   int      // how many bytes of rows to hold at a time
	path    []string // the schemas of the search path that the store's own functions expect
	table   table
	plans   map[int64]*plan // by shape
	// of is how many entries go in, inserted and compared how many did so far.
	of, inserted, compared int
	// rows is how many rows that made: triggers may keep some out.
	rows int64
}

// tell reports progress.
func (r *restore) tell(what string, done *int, more []entry) {
	if *done += len(more); r.options.Progress != nil {
		r.options.Progress(what, *done, r.of)
	}
}

// run puts entries back, compares the table with them, and marks them.
func (r *restore) run(ctx context.Context, entries []entry) (Restored, error) {
	if err := r.refuseStrangers(ctx); err != nil {
		return Restored{}, err
	}
	asked := entries
	entries, err := r.putAllBack(ctx, entries)
	if err != nil {
		return Restored{}, err
	}
	if err := r.checkNow(ctx); err != nil {
		return Restored{}, err
	}
	// Only now, as the rows may have waited for a deletion that was under way.
	if refused, err := superseded(ctx, r.tx, entries); err != nil {
		return Restored{}, err
	} else if len(refused) > 0 && !r.options.Superseded {
		return Restored{}, &RefusedError{Refusals: refused}
	}
	losses, keptOut, more, err := r.compare(ctx, entries)
	if err != nil {
		return Restored{}, err
	}
	if r.rows > int64(len(entries)-len(keptOut)) { // what is there of another id is no plant that was deleted
		others := slices.DeleteFunc(losses, func(l Refusal) bool { return !keptOut[l.ID] })
		for i := range others {
			others[i].Why, others[i].Unless = "a trigger on plants kept the row out or gave it another id", ""
		}
		return Restored{}, &RefusedError{others, more}
	}
	if len(losses) > 0 && !r.options.Lossy {
		return Restored{}, &RefusedError{losses, more}
	}
	adopted, err := r.adopted(ctx, asked, entries)
	if err != nil {
		return Restored{}, err
	}
	// Domains and functions are not locked by what uses them.
	if err := r.refuseStrangers(ctx); err != nil {
		return Restored{}, err
	}
	// Only now, as exports wait for whoever has this lock.
	if !r.options.RunTriggers {
		if err := refuseReplaced(ctx, r.tx, toWrite, "plant_deletions"); err != nil {
			return Restored{}, err
		}
	}
	back := slices.DeleteFunc(slices.Clone(entries), func(e entry) bool { return keptOut[e.ID] })
	if _, err := r.tx.Exec(ctx, `
		UPDATE public.plant_deletions
		SET restored_at = clock_timestamp(), restored_by = coalesce(nullif($2, ''), session_user)
		WHERE id = ANY ($1)`, idsOf(back), r.options.As); err != nil {
		return Restored{}, err
	}
	return Restored{Plants: len(back), Existing: len(asked) - len(entries), Adopted: adopted, Defaulted: r.defaulted(), Remade: r.remade(), Retyped: r.retyped(), Losses: losses}, nil
}

// adopted returns those of the plants that are back that refer to one that was left out. The check
// of a foreign key looks at the id only, which another plant has.
func (r *restore) adopted(ctx context.Context, asked, back []entry) (plants []int64, err error) {
	if len(asked) == len(back) {
		return nil, nil
	}
	var refers string
	if err := r.tx.QueryRow(ctx, `
		SELECT coalesce(string_agg(format(' OR p.%1$I::bigint = ANY ($2) AND p.%1$I::bigint <> ALL ($1)', a.attname), ''), '')
		FROM pg_constraint k JOIN pg_attribute id ON id.attrelid = k.confrelid AND id.attname = 'id'
			JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[array_position(k.confkey, id.attnum)]
		WHERE k.contype = 'f' AND k.conrelid = 'public.plants'::regclass AND k.confrelid = k.conrelid
			AND a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype) -- a cast of another type is its owner's code`).Scan(&refers); err != nil {
		return nil, err
	}
	rows, err := r.tx.Query(ctx, `SELECT p.id FROM ONLY public.plants p WHERE p.id = ANY ($1::bigint[]) AND ($2::bigint[] IS NULL`+refers+`) ORDER BY p.id`, plantsOf(back), plantsOf(asked))
	if err != nil {
		return nil, err
	}
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
		plants = append(plants, id)
		return nil
	})
	return plants, err
}

// checkNow makes the checks that a trigger of the store's has put off to the commit again: what
// runs there would be compared with nothing.
func (r *restore) checkNow(ctx context.Context) error {
	refused, err := r.onStoresPath(ctx, func() error {
		_, err := r.tx.Exec(ctx, `SET CONSTRAINTS ALL IMMEDIATE`)
		return err
	})
	if err == nil && refused != nil {
		err = errors.New("what a trigger had put off to the commit fails: " + said(refused))
	}
	return err
}

// refuseStrangers returns a *StrangersError unless that is accepted.
func (r *restore) refuseStrangers(ctx context.Context) error {
	if r.options.RunTriggers {
		return nil
	}
	return refuseStrangers(ctx, r.tx, r.given(), r.path)
}

// putAllBack inserts all entries, but for those whose ids are taken where that is accepted,
// and returns them. The error is a *RefusedError if any of them can't be inserted.
func (r *restore) putAllBack(ctx context.Context, entries []entry) ([]entry, error) {
	taken, err := r.taken(ctx, entries) // of thousands, an insert would find each by itself
	if err != nil {
		return nil, err
	}
	for {
		entries = except(entries, taken)
		r.of = len(entries)
		refused, more, err := r.putAllOrNoneBack(ctx, entries)
		if err != nil {
			return nil, err
		}
		if !r.options.SkipExisting {
			refused = append(refused, taken...)
		} else if taken = accepted(refused); len(taken) > 0 { // since the look
			others, err := r.taken(ctx, except(entries, taken))
			if err != nil {
				return nil, err
			}
			taken = append(taken, others...)
			continue
		}
		if len(refused) > 0 {
			sortRefusals(refused)
			return nil, &RefusedError{refused, more}
		}
		return entries, nil
	}
}

// putAllOrNoneBack is putBack that inserts nothing unless it inserts all, and says why not.
func (r *restore) putAllOrNoneBack(ctx context.Context, entries []entry) (refused []Refusal, more bool, err error) {
	savepoint, err := r.tx.Begin(ctx)
	if err != nil {
		return nil, false, err
	}
	r.inserted, r.rows = 0, 0
	failed, why, more, err := r.putBack(ctx, entries)
	switch {
	case err != nil:
		return nil, false, err
	case len(failed) == 0:
		return nil, false, savepoint.Commit(ctx)
	}
	if err := savepoint.Rollback(ctx); err != nil {
		return nil, false, err
	}
	refused, err = r.refusals(ctx, failed, why)
	return refused, more, err
}

// putBack inserts all entries and returns none, or those that can't be with the errors, and
// whether there may be more. Newest first, a plant that others refer to comes back before
// them. One statement that deleted several may have taken them in another order. So what was
// refused is tried again as long as others go in, and then in halves, until those that are
// in the way are alone.
func (r *restore) putBack(ctx context.Context, entries []entry) (refused []entry, why []*pgconn.PgError, more bool, err error) {
	var groups, later [][]entry
	for _, batch := range inBatches(entries, r.batch) {
		groups = append(groups, alike(batch, func(e entry) string { return r.plans[e.Shape].copy })...)
	}
	for len(groups) > 0 {
		var failed [][]entry
		why = nil
		for _, group := range groups {
			pg, err := r.insert(ctx, group)
			if err != nil {
				return nil, nil, false, err
			}
			if pg != nil {
				failed, why = append(failed, group), append(why, pg)
			}
		}
		switch {
		case len(failed) == 0:
			failed, later = later, nil
		case len(failed) == len(groups):
			halves := inHalves(failed)
			if len(halves) == len(failed) {
				return slices.Concat(failed...), why, len(later) > 0, nil
			}
			enough := min(len(halves), enoughRefusals)
			failed, later = halves[:enough], append(later, halves[enough:]...)
		default:
			slices.Reverse(failed) // each may have lacked the one after it
		}
		groups = failed
	}
	return nil, nil, false, nil
}

// insert is copyIn that counts what went in.
func (r *restore) insert(ctx context.Context, entries []entry) (refused *pgconn.PgError, err error) {
	made, refused, err := r.copyIn(ctx, entries)
	if refused == nil && err == nil {
		r.rows += made
		r.tell("put back", &r.inserted, entries)
	}
	return refused, err
}

// copyIn inserts entries with the same columns and returns how many rows that made, or
// changes nothing and returns why not.
//
// COPY hands each value to the input function of its column, with no cast in
// between, and many rows are one statement, in which they may refer to each other.
// It locks the rows that the new ones refer to against deletion, and waits for
// whoever is inserting or deleting one of the same ids.
func (r *restore) copyIn(ctx context.Context, entries []entry) (made int64, refused *pgconn.PgError, err error) {
	lines, err := r.lines(ctx, entries)
	if err != nil {
		return 0, nil, err
	}
	refused, err = r.onStoresPath(ctx, func() error {
		tag, err := r.tx.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(lines), r.plans[entries[0].Shape].copy)
		made = tag.RowsAffected()
		return err
	})
	if sqlState(err) == insufficientPrivilege && !hidden(err) { // not that of the ledger: its entries are locked already
		err = lacksRight(err, "inserting into public.plants takes that right", r.tx)
	}
	return made, refused, err
}

func lacksRight(err error, what string, tx pgx.Tx) error {
	return fmt.Errorf("%s: %s: grant it to role %s, or restore as one that has it", Explain(err), what, tx.Conn().Config().User)
}

// storesPath returns the schemas in which the store's own functions find what they call. One that
// is made later is not among them: its owner may not have our rights.
func storesPath(ctx context.Context, tx pgx.Tx) (schemas []string, err error) {
	if _, err := tx.Exec(ctx, `SELECT set_config('search_path', reset_val, true) FROM pg_settings WHERE name = 'search_path'`); err != nil {
		return nil, err
	}
	err = tx.QueryRow(ctx, `SELECT pg_catalog.current_schemas(false)::pg_catalog.text[], pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)`).Scan(&schemas, nil)
	return schemas, err
}

// onStoresPath runs do with the search path that the store's own functions
// expect. Names of pg_catalog come first even so. It returns an error of the
// server's that says something about rows as refused, and nothing has happened.
// What do sends, and what the server answers, is in the encoding of the database: an
// error may have a value in it that UTF-8 has no equivalent for.
func (r *restore) onStoresPath(ctx context.Context, do func() error) (refused *pgconn.PgError, err error) {
	savepoint, err := r.tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	path := `pg_catalog`
	for _, schema := range r.path {
		path += ", " + pgx.Identifier{schema}.Sanitize()
	}
	if _, err := savepoint.Exec(ctx, `SELECT set_config('search_path', $1, true), `+itsEncoding, path); err != nil {
		return nil, err
	}
	if err := do(); err != nil {
		pg := pgError(err)
		if pg == nil || savepoint.Rollback(ctx) != nil {
			return nil, err
		}
		if err := translateError(ctx, r.tx, pg); err != nil {
			return nil, err
		}
		if !aboutRows(pg) {
			return nil, err
		}
		return pg, nil
	}
	// The store's functions may have changed more settings than the path.
	if _, err := savepoint.Exec(ctx, recordedForm+`SELECT `+ourEncoding); err != nil {
		return nil, err
	}
	return nil, savepoint.Commit(ctx)
}

// lines returns entries in COPY's text format, in the encoding of the database.
func (r *restore) lines(ctx context.Context, entries []entry) ([]byte, error) {
	rows, err := r.tx.Query(ctx, `
		SELECT id, convert_to(plant, getdatabaseencoding()) FROM public.plant_deletions
		WHERE id = ANY ($1) ORDER BY id DESC`, idsOf(entries))
	if err != nil {
		return nil, err
	}
	var lines []byte
	var plant []byte
	i := 0
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&id, &plant}, func() error {
		plan := r.plans[entries[i].Shape]
		i++
		values, err := plan.parse(id, plant)
		if err != nil {
			return err
		}
		lines = appendCopied(lines, plan.inserted(values))
		return nil
	})
	return lines, err
}

// taken returns the entries whose plant's id is taken again, as far as a look tells. Where
// those are to be left out, it tries the rest, too, before all are inserted: one that is
// found only then has all of them inserted once more.
func (r *restore) taken(ctx context.Context, entries []entry) ([]Refusal, error) {
	taken, leaving, err := existing(ctx, r.tx, entries)
	if err != nil || !r.options.SkipExisting {
		return taken, err
	}
	for tries := 1; len(leaving) > 0; tries *= 2 { // the first one may wait for the transaction that has all of them
		some := leaving[:min(tries, len(leaving))]
		refused, err := r.tryTaken(ctx, some)
		if err != nil {
			return nil, err
		}
		more, still, err := existing(ctx, r.tx, leaving[len(some):])
		if err != nil {
			return nil, err
		}
		taken, leaving = slices.Concat(taken, refused, more), still
	}
	return taken, nil
}

// tryTaken inserts entries one by one, and takes that back. It returns those whose plant's
// id is taken again.
func (r *restore) tryTaken(ctx context.Context, entries []entry) (taken []Refusal, err error) {
	savepoint, err := r.tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		_, refused, err := r.copyIn(ctx, []entry{e})
		if err != nil {
			return nil, err
		}
		if refused != nil && r.isTaken(refused) {
			taken = append(taken, takenAgain(e))
		}
	}
	return taken, savepoint.Rollback(ctx)
}

// existing looks whose plant's id is taken again. Of a plant that is leaving, which somebody
// may be deleting, only an insert knows: it waits.
//
// Whoever deletes holds a stronger lock on the table than whoever only locks rows, as the
// check of a foreign key does. Those locks are read first: what a transaction deleted that
// ends meanwhile is not seen any more.
func existing(ctx context.Context, tx pgx.Tx, entries []entry) (taken []Refusal, leaving []entry, err error) {
	if len(entries) == 0 {
		return nil, nil, nil
	}
	var writers []string
	if err := tx.QueryRow(ctx, `
		SELECT coalesce(array_agg(x.transactionid::text), '{}') FROM pg_locks x
		WHERE x.locktype = 'transactionid' AND x.granted AND x.virtualtransaction IN (SELECT l.virtualtransaction FROM pg_locks l
			WHERE l.relation = 'public.plants'::regclass AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
				AND l.granted AND l.mode NOT IN ('AccessShareLock', 'RowShareLock'))`).Scan(&writers); err != nil {
		return nil, nil, err
	}
	rows, err := tx.Query(ctx, `
		SELECT d.id, bool_and(p.xmax::text = ANY ($2::text[])) FROM public.plant_deletions d JOIN ONLY public.plants p ON p.id = d.plant_id
		WHERE d.id = ANY ($1) GROUP BY d.id`, idsOf(entries), writers)
	if err != nil {
		return nil, nil, err
	}
	written := make(map[int64]bool)
	var id int64
	var is bool
	if _, err := pgx.ForEachRow(rows, []any{&id, &is}, func() error {
		written[id] = is
		return nil
	}); err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		switch is, there := written[e.ID]; {
		case is:
			leaving = append(leaving, e)
		case there:
			taken = append(taken, takenAgain(e))
		}
	}
	return taken, leaving, nil
}

// skipExisting is the option that accepts a refusal by takenAgain.
const skipExisting = "skip-existing"

// takenAgain refuses an entry whose plant's id is that of a plant again.
func takenAgain(e entry) Refusal {
	return Refusal{ID: e.ID, Plant: e.Plant, Why: "a plant with this id exists again", Unless: skipExisting}
}

// accepted returns the refusals by takenAgain.
func accepted(refused []Refusal) []Refusal {
	return slices.DeleteFunc(slices.Clone(refused), func(f Refusal) bool { return f.Unless != skipExisting })
}

// except returns the entries that are not refused.
func except(entries []entry, refused []Refusal) []entry {
	out := make(map[int64]bool, len(refused))
	for _, f := range refused {
		out[f.ID] = true
	}
	return slices.DeleteFunc(slices.Clone(entries), func(e entry) bool { return out[e.ID] })
}

func sortRefusals(all []Refusal) {
	slices.SortStableFunc(all, func(a, b Refusal) int { return cmp.Compare(b.ID, a.ID) })
}

// superseded returns the entries whose plant was deleted again later. (OFFSET 0 keeps
// their numbers out of the plan: without statistics, as right after a deletion of many,
// the ledger would be read backwards for each.)
func superseded(ctx context.Context, tx pgx.Tx, entries []entry) ([]Refusal, error) {
	rows, err := tx.Query(ctx, `
		SELECT d.id, d.plant_id, later.id, later.deleted_by
		FROM public.plant_deletions d CROSS JOIN LATERAL (
			SELECT l.id, l.deleted_by FROM (SELECT * FROM public.plant_deletions l WHERE l.plant_id = d.plant_id OFFSET 0) l
			WHERE l.id > d.id AND l.plant IS NOT NULL ORDER BY l.id DESC LIMIT 1) later
		WHERE d.id = ANY ($1) ORDER BY d.id DESC`, idsOf(entries))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Refusal, error) {
		f := Refusal{Unless: "superseded"}
		var later int64
		var by string
		err := row.Scan(&f.ID, &f.Plant, &later, &by)
		f.Why = fmt.Sprintf("the plant was deleted again later, by %s: deletion %d", visible(by), later)
		return f, err
	})
}

// inBatches splits entries so that the rows of each batch have at most size bytes,
// unless it is of a single entry.
func inBatches(entries []entry, size int) [][]entry {
	var batches [][]entry
	total := 0
	for i, e := range entries {
		if total += e.Size; i == 0 || total > size {
			batches = append(batches, nil)
			total = e.Size
		}
		last := len(batches) - 1
		batches[last] = append(batches[last], e)
	}
	return batches
}

// alike splits entries by their key, in the order in which the keys come up.
func alike[K comparable](entries []entry, key func(entry) K) [][]entry {
	var groups [][]entry
	index := make(map[K]int)
	for _, e := range entries {
		i, known := index[key(e)]
		if !known {
			i = len(groups)
			index[key(e)] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], e)
	}
	return groups
}

// inHalves splits each group of more than one entry in two.
func inHalves(groups [][]entry) [][]entry {
	var halves [][]entry
	for _, g := range groups {
		if half := len(g) / 2; half > 0 {
			halves = append(halves, g[:half])
			g = g[half:]
		}
		halves = append(halves, g)
	}
	return halves
}
