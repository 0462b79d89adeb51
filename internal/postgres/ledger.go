package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// IdempotencyHorizon is how long a deletion stays in the ledger at the least. The
// ledger is what recognises a retried request: a client that comes back with its
// key after the entry was purged is told 404 instead of 204 or, if the plant has
// come back meanwhile, deletes it again.
const IdempotencyHorizon = 7 * 24 * time.Hour

const (
	// purgeBatch is how many entries one transaction of a purge removes.
	purgeBatch = 1000
	// enoughRefusals ends the search for deletions that can't be restored.
	enoughRefusals = 100
)

// Ledger is the record of the deletions, for its owner: the service's role may
// read it only.
type Ledger struct {
	db *DB
}

// Ledger returns the ledger of the database.
func (db *DB) Ledger() *Ledger { return &Ledger{db: db} }

// A Recorded is one deletion as the ledger has it.
type Recorded struct {
	ID             int64
	PlantID        int64
	Plant          json.RawMessage // the row, as an object of its columns
	DeletedAt      time.Time
	DeletedBy      string
	RequestID      string // empty for direct SQL
	IdempotencyKey string // empty for direct SQL
	RestoredAt     time.Time
	RestoredBy     string // empty unless restored
}

// A LedgerFilter says which deletions are meant: those that fit every field that
// is set.
type LedgerFilter struct {
	Plant     *int64
	By        string // principal, or role of direct SQL
	RequestID string
	Since     time.Time // that moment or later
	Until     time.Time // before that moment
	Before    int64     // ledger entries older than this one
}

// ErrNoDeletion: the ledger has no such entry.
var ErrNoDeletion = errors.New("no such deletion")

const recordedColumns = `id, plant_id, plant, deleted_at, deleted_by, coalesce(request_id, ''),
	coalesce(idempotency_key, ''), restored_at, coalesce(restored_by, '')`

func scanRecorded(row pgx.CollectableRow) (Recorded, error) {
	var r Recorded
	var restored *time.Time
	err := row.Scan(&r.ID, &r.PlantID, &r.Plant, &r.DeletedAt, &r.DeletedBy, &r.RequestID,
		&r.IdempotencyKey, &restored, &r.RestoredBy)
	r.RestoredAt = orZero(restored)
	return r, err
}

// List returns up to limit deletions, newest first.
func (l *Ledger) List(ctx context.Context, f LedgerFilter, limit int) ([]Recorded, error) {
	var list []Recorded
	err := l.inTx(ctx, "list deletions", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+recordedColumns+` FROM public.plant_deletions
			WHERE ($1::bigint IS NULL OR plant_id = $1)
				AND ($2::text = '' OR deleted_by = $2)
				AND ($3::text = '' OR request_id = $3)
				AND ($4::timestamptz IS NULL OR deleted_at >= $4)
				AND ($5::timestamptz IS NULL OR deleted_at < $5)
				AND ($6::bigint = 0 OR id < $6)
			ORDER BY id DESC LIMIT $7`,
			f.Plant, f.By, f.RequestID, orNull(f.Since), orNull(f.Until), f.Before, limit)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, scanRecorded)
		return err
	})
	return list, err
}

// Get returns one entry, or ErrNoDeletion.
func (l *Ledger) Get(ctx context.Context, id int64) (Recorded, error) {
	var r Recorded
	err := l.inTx(ctx, "read deletion", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+recordedColumns+` FROM public.plant_deletions WHERE id = $1`, id)
		if err != nil {
			return err
		}
		r, err = pgx.CollectExactlyOneRow(rows, scanRecorded)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrNoDeletion
		}
		return err
	})
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
// is not restored yet.
func (l *Ledger) Undoable(ctx context.Context, by string, since, until time.Time) (Undo, error) {
	var u Undo
	err := l.inTx(ctx, "look for deletions", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT d.id, d.deleted_at, EXISTS (SELECT FROM public.plant_deletions later
				WHERE later.plant_id = d.plant_id AND later.id > d.id)
			FROM public.plant_deletions d
			WHERE d.restored_at IS NULL AND d.deleted_by = $1 AND d.deleted_at >= $2
				AND ($3::timestamptz IS NULL OR d.deleted_at < $3)
			ORDER BY d.id DESC`, by, since, orNull(until))
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

// Restored tells what a restore did.
type Restored struct {
	Plants int
	// Defaulted are columns that plants have got since: they took their default.
	Defaulted []string
	// Dropped are columns that plants had and have no longer: their values stay in
	// the ledger only.
	Dropped []string
	// Changed are columns that a trigger on plants gave another value than the
	// ledger's.
	Changed []string
}

// A RefusedError says why nothing was restored.
type RefusedError struct {
	Refusals []Refusal // newest first; of very many, the first hundred or so
}

// A Refusal is a deletion that stands in the way of a restore.
type Refusal struct {
	ID    int64 // of the ledger's entry
	Plant int64 // zero when there is no such entry
	Why   string
}

func (e *RefusedError) Error() string {
	first := e.Refusals[0]
	return fmt.Sprintf("nothing was restored: %d in the way, the first is deletion %d: %s", len(e.Refusals), first.ID, first.Why)
}

// Restore puts deleted plants back, all of them or none, and marks their entries
// as restored by as (empty: the database role). The rows go into the columns that
// plants has today. When a deletion can't be undone, because it was already, its
// id is taken again, or a row that it refers to is gone, the error is a
// *RefusedError.
//
// What else the deletion did is not in the ledger and does not come back: rows of
// other tables that a foreign key removed or emptied along with the plant.
func (l *Ledger) Restore(ctx context.Context, ids []int64, as string) (Restored, error) {
	var done Restored
	err := l.inTx(ctx, "restore", func(tx pgx.Tx) error {
		// INSERT takes this lock anyway. Taken before the columns are read, it
		// keeps ALTER TABLE out in between. The settings are how the ledger's
		// values were written; a check put off to the commit could not tell which
		// plant it failed for.
		if _, err := tx.Exec(ctx, `
			LOCK TABLE public.plants IN ROW EXCLUSIVE MODE;
			SET CONSTRAINTS ALL IMMEDIATE;
			SET LOCAL datestyle = 'ISO, YMD';
			SET LOCAL intervalstyle = 'postgres';
			SET LOCAL extra_float_digits = 1;`); err != nil {
			return err
		}
		columns, err := readColumns(ctx, tx)
		if err != nil {
			return err
		}
		entries, err := lockEntries(ctx, tx, ids)
		if err != nil {
			return err
		}
		r := restore{tx: tx, columns: columns, changed: make(map[string]bool)}
		if err := tx.QueryRow(ctx, `
			SELECT conname FROM pg_constraint WHERE conrelid = 'public.plants'::regclass AND contype = 'p'`).Scan(&r.primaryKey); err != nil {
			return err
		}
		if refused, err := r.putBack(ctx, entries); err != nil {
			return err
		} else if len(refused) > 0 {
			return &RefusedError{refused}
		}
		if _, err := tx.Exec(ctx, `
			UPDATE public.plant_deletions
			SET restored_at = clock_timestamp(), restored_by = coalesce(nullif($2, ''), session_user)
			WHERE id = ANY ($1)`, idsOf(entries), as); err != nil {
			return err
		}
		done = r.report(entries)
		return nil
	})
	if err != nil {
		return Restored{}, err
	}
	return done, nil
}

// A column is one of plants.
type column struct {
	Name, Type string // Type as SQL spells it
	Generated  bool   // computes itself
}

// readColumns returns today's columns of plants.
func readColumns(ctx context.Context, tx pgx.Tx) ([]column, error) {
	rows, err := tx.Query(ctx, `
		SELECT attname, format_type(atttypid, atttypmod), attgenerated <> '' FROM pg_attribute
		WHERE attrelid = 'public.plants'::regclass AND attnum > 0 AND NOT attisdropped
		ORDER BY attnum`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[column])
}

// An entry is a deletion that is being restored.
type entry struct {
	ID, Plant int64
	Columns   []string // of the recorded row, in Go's order
}

// lockEntries locks the ledger's entries against another restore and a purge,
// newest first, so that two of us never wait for each other, and returns them in
// that order. It returns a *RefusedError unless each exists, is not restored, and
// is of a plant of its own.
func lockEntries(ctx context.Context, tx pgx.Tx, ids []int64) ([]entry, error) {
	rows, err := tx.Query(ctx, `
		SELECT id, plant_id, restored_at, coalesce(restored_by, ''), ARRAY(SELECT jsonb_object_keys(plant))
		FROM public.plant_deletions WHERE id = ANY ($1) ORDER BY id DESC FOR UPDATE`, ids)
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
	_, err = pgx.ForEachRow(rows, []any{&e.ID, &e.Plant, &restoredAt, &by, &e.Columns}, func() error {
		delete(missing, e.ID)
		other, twice := newest[e.Plant]
		switch {
		case restoredAt != nil:
			refused = append(refused, Refusal{e.ID, e.Plant,
				fmt.Sprintf("it was restored by %s at %s", by, restoredAt.UTC().Format(time.RFC3339))})
		case twice:
			refused = append(refused, Refusal{e.ID, e.Plant,
				fmt.Sprintf("deletion %d is of the same plant, and later: restore one of them", other)})
		default:
			newest[e.Plant] = e.ID
			slices.Sort(e.Columns)
			entries = append(entries, e)
		}
		e.Columns = nil
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(missing)) {
		refused = append(refused, Refusal{ID: id, Why: "the ledger has no such entry; was it purged?"})
	}
	if len(refused) > 0 {
		return nil, &RefusedError{refused}
	}
	return entries, nil
}

func idsOf(entries []entry) []int64 {
	ids := make([]int64, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	return ids
}

// A restore is one under way.
type restore struct {
	tx         pgx.Tx
	columns    []column
	primaryKey string // the constraint's name
	changed    map[string]bool
}

// putBack inserts all entries and returns none, or those that can't be. Newest
// first, a plant that others refer to comes back before them. One statement that
// deleted several may have taken them in another order, so what was refused gets
// another chance as long as others go in.
func (r *restore) putBack(ctx context.Context, entries []entry) ([]Refusal, error) {
	for {
		refused, err := r.split(ctx, entries)
		if err != nil || len(refused) == 0 || len(refused) == len(entries) || len(refused) >= enoughRefusals {
			return refused, err
		}
		again := make(map[int64]bool, len(refused))
		for _, f := range refused {
			again[f.ID] = true
		}
		entries = slices.DeleteFunc(slices.Clone(entries), func(e entry) bool { return !again[e.ID] })
	}
}

// split inserts entries together or, where that is refused, in halves, until
// those that are in the way are alone.
func (r *restore) split(ctx context.Context, entries []entry) ([]Refusal, error) {
	why, err := r.insert(ctx, entries)
	switch {
	case err != nil || why == "":
		return nil, err
	case len(entries) == 1:
		return []Refusal{{entries[0].ID, entries[0].Plant, why}}, nil
	}
	half := len(entries) / 2
	refused, err := r.split(ctx, entries[:half])
	if err != nil || len(refused) >= enoughRefusals {
		return refused, err
	}
	more, err := r.split(ctx, entries[half:])
	return append(refused, more...), err
}

// insert inserts entries, or changes nothing and says why not.
func (r *restore) insert(ctx context.Context, entries []entry) (why string, err error) {
	savepoint, err := r.tx.Begin(ctx)
	if err != nil {
		return "", err
	}
	// A column that a row lacks must take its default, so rows are inserted
	// together only if they have the same columns.
	var shapes []string // in the order of entries
	byShape := make(map[string][]entry)
	for _, e := range entries {
		shape := strings.Join(e.Columns, "\x00")
		if byShape[shape] == nil {
			shapes = append(shapes, shape)
		}
		byShape[shape] = append(byShape[shape], e)
	}
	var changed []string
	for _, shape := range shapes {
		alike := byShape[shape]
		inserted, columns, err := insertAlike(ctx, savepoint, r.present(alike[0]), idsOf(alike))
		if err == nil && inserted == len(alike) {
			changed = append(changed, columns...)
			continue
		}
		why := "a trigger on plants kept the row out"
		if err != nil {
			if why = r.whyRefused(err); why == "" {
				return "", err
			}
		}
		return why, savepoint.Rollback(ctx)
	}
	for _, name := range changed {
		r.changed[name] = true
	}
	return "", savepoint.Commit(ctx)
}

// present returns the columns that e's row has a value for, to be inserted.
func (r *restore) present(e entry) []column {
	return slices.DeleteFunc(slices.Clone(r.columns), func(c column) bool { return c.Generated || !e.has(c.Name) })
}

func (e entry) has(column string) bool {
	_, found := slices.BinarySearch(e.Columns, column)
	return found
}

// insertAlike inserts the rows of ledger entries with the same columns. It
// returns how many went in under their id, and the columns that did not keep the
// value they were given.
//
// The INSERT locks the rows that the new ones refer to against deletion, and
// waits for whoever is inserting one of the same ids.
func insertAlike(ctx context.Context, tx pgx.Tx, columns []column, ids []int64) (int, []string, error) {
	names, definitions := make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		names[i] = pgx.Identifier{c.Name}.Sanitize()
		definitions[i] = names[i] + " " + c.Type
	}
	// jsonb_to_record reads only what is asked for: a column that is gone, or a
	// new type that does not allow null, can't get in the way.
	sql := fmt.Sprintf(`
		WITH image AS MATERIALIZED (
			SELECT r.* FROM public.plant_deletions d CROSS JOIN LATERAL jsonb_to_record(d.plant) AS r (%[2]s)
			WHERE d.id = ANY ($1)
		), inserted AS (
			INSERT INTO public.plants (%[1]s) OVERRIDING SYSTEM VALUE SELECT %[1]s FROM image RETURNING *
		)
		SELECT (SELECT count(*) FROM inserted JOIN image USING (id)),
			ARRAY(SELECT DISTINCT c.key FROM image i JOIN inserted p USING (id) CROSS JOIN LATERAL jsonb_each(to_jsonb(i.*)) c
				WHERE c.value IS DISTINCT FROM to_jsonb(p.*) -> c.key)`,
		strings.Join(names, ", "), strings.Join(definitions, ", "))
	var inserted int
	var changed []string
	err := tx.QueryRow(ctx, sql, ids).Scan(&inserted, &changed)
	return inserted, changed, err
}

// whyRefused returns what about the row itself kept it from being inserted, or
// nothing when the failure says nothing about the row.
func (r *restore) whyRefused(err error) string {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return ""
	}
	detail := ""
	if pg.Detail != "" {
		detail = ": " + strings.TrimSuffix(pg.Detail, ".")
	}
	switch {
	case pg.Code == uniqueViolation && pg.ConstraintName == r.primaryKey:
		return "a plant with this id exists again"
	case pg.Code == uniqueViolation:
		return "another row has a value that must be unique" + detail
	case pg.Code == "23503": // foreign_key_violation
		return "a row that it refers to is gone" + detail
	case pg.Code == "23502": // not_null_violation
		return fmt.Sprintf("column %q of %s may not be null, and the deleted row has no value for it", pg.ColumnName, pg.TableName)
	case pg.Code[:2] == "23", pg.Code[:2] == "22", pg.Code == "P0001": // other constraints, bad value, raised by a trigger
		return Explain(err) + detail
	}
	return ""
}

// report sums up a restore of entries.
func (r *restore) report(entries []entry) Restored {
	today := make(map[string]bool, len(r.columns))
	for _, c := range r.columns {
		today[c.Name] = true
	}
	defaulted, dropped := make(map[string]bool), make(map[string]bool)
	for _, e := range entries {
		for _, c := range r.columns {
			if !c.Generated && !e.has(c.Name) {
				defaulted[c.Name] = true
			}
		}
		for _, name := range e.Columns {
			if !today[name] {
				dropped[name] = true
			}
		}
	}
	return Restored{
		Plants: len(entries), Defaulted: slices.Sorted(maps.Keys(defaulted)),
		Dropped: slices.Sorted(maps.Keys(dropped)), Changed: slices.Sorted(maps.Keys(r.changed)),
	}
}

// ErrTooYoung: a purge was asked for entries within the idempotency horizon.
var ErrTooYoung = errors.New("within the idempotency horizon")

// Older counts the entries that are older than age, or returns ErrTooYoung.
func (l *Ledger) Older(ctx context.Context, age time.Duration) (int64, error) {
	if age < IdempotencyHorizon {
		return 0, ErrTooYoung
	}
	var n int64
	err := l.inTx(ctx, "count deletions", func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT count(*) FROM public.plant_deletions
			WHERE deleted_at < clock_timestamp() - make_interval(secs => $1)`, age.Seconds()).Scan(&n)
	})
	return n, err
}

// Purge removes the entries that were older than age when it began, oldest first,
// in short transactions, and calls progress after each with how many it removed so
// far. What it removed stays removed when it fails later. It returns ErrTooYoung
// for an age within the idempotency horizon.
func (l *Ledger) Purge(ctx context.Context, age time.Duration, progress func(purged int64)) (int64, error) {
	if age < IdempotencyHorizon {
		return 0, ErrTooYoung
	}
	var before time.Time
	err := l.inTx(ctx, "purge", func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT clock_timestamp() - make_interval(secs => $1)`, age.Seconds()).Scan(&before)
	})
	if err != nil {
		return 0, err
	}
	var purged int64
	for last := int64(math.MinInt64); ; {
		var n int64
		err := l.inTx(ctx, "purge", func(tx pgx.Tx) error {
			// An entry that is locked is being restored. Ids grow with time, so
			// each batch starts where the one before it ended.
			return tx.QueryRow(ctx, `
				WITH batch AS (
					SELECT id FROM public.plant_deletions WHERE id > $1 AND deleted_at < $2
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
			return purged, nil
		}
		purged += n
		progress(purged)
	}
}

// inTx runs do in a transaction without a time limit of its own: a ledger may be
// large, and an operator can wait. It returns ErrNoDeletion and *RefusedError as
// they are, and anything else in words.
func (l *Ledger) inTx(ctx context.Context, doing string, do func(pgx.Tx) error) error {
	var refused *RefusedError
	err := pgx.BeginFunc(ctx, l.db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0`); err != nil {
			return err
		}
		return do(tx)
	})
	switch {
	case err == nil, errors.Is(err, ErrNoDeletion), errors.As(err, &refused):
		return err
	case sqlState(err) == insufficientPrivilege:
		return fmt.Errorf("%s: %s: connect as the owner, see PLANTSTORE_MIGRATE_DATABASE_URL", doing, Explain(err))
	case sqlState(err) == "55P03": // lock_not_available
		return fmt.Errorf("%s: somebody else holds a lock that is needed, try again: %s", doing, Explain(err))
	}
	return fmt.Errorf("%s: %w", doing, l.db.explain(err))
}
