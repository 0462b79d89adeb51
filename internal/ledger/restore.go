package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A Selection names the deletions to undo: by their ids, by their plants (the newest
// deletion of each that is not undone), or all that the criteria select.
type Selection struct {
	IDs, Plants  []int64
	By, ByRole   string
	Since, Until time.Time
}

// Options accept what a restore refuses otherwise.
type Options struct {
	SkipExisting bool              // leave out plants whose ids are taken
	FireTriggers bool              // the store's triggers on INSERT fire
	Lossy        bool              // values without a place are not restored
	Rename       map[string]string // columns by their names then and now
	PlantsOnly   bool              // leave out rows of watched tables
	DryRun       bool              // roll back in the end
	LockTimeout  time.Duration     // how long to wait for each lock; 0: 30 s
}

// Restored describes a restore, or what it would have done.
type Restored struct {
	Plants       []Deletion // without rows
	Taken        []Deletion // left out, because their ids are taken
	DeletedAgain int        // left out by the criteria, because they came back and were deleted again
	Cascaded     []Cascaded // rows of watched tables that came back with the plants
	Notices      []string   // differences between the tables and the deleted rows, and their effect
}

// Cascaded counts rows of a watched table: those that were removed, or those whose column
// Changed was set to null or to its default.
type Cascaded struct {
	Table   string `json:"table"`
	Changed string `json:"changed,omitempty"`
	Rows    int    `json:"rows"`
}

// A Reason prevents a restore.
type Reason struct {
	Text string
	Flag string // the flag that accepts it, or empty
}

// A RefusedError says why nothing was restored.
type RefusedError struct {
	Reasons []Reason
	Notices []string
}

// MaxListed is how many plants or reasons a message names.
const MaxListed = 20

// Error returns several lines.
func (e *RefusedError) Error() string {
	lines, flags := []string{"nothing was restored:"}, []string(nil)
	for i, r := range e.Reasons {
		if i < MaxListed {
			lines = append(lines, "  "+r.Text)
		}
		if r.Flag != "" && !slices.Contains(flags, r.Flag) {
			flags = append(flags, r.Flag)
		}
	}
	if more := len(e.Reasons) - MaxListed; more > 0 {
		lines = append(lines, fmt.Sprintf("  and %d more", more))
	}
	for _, n := range e.Notices {
		lines = append(lines, "  also: "+n)
	}
	for _, f := range flags {
		lines = append(lines, f+" "+map[string]string{
			skipExisting: "restores the others.",
			fireTriggers: "restores and fires the triggers.",
			lossy:        "restores without these values.",
			plantsOnly:   "restores the plants alone.",
		}[f])
	}
	return strings.Join(lines, "\n")
}

const (
	skipExisting = "--skip-existing"
	fireTriggers = "--fire-triggers"
	lossy        = "--lossy"
	plantsOnly   = "--plants-only"
)

// ErrCommitUnknown is returned where the answer of the commit was lost.
var ErrCommitUnknown = errors.New("the answer to the commit was lost: check with 'plantstore deletions list' whether the plants were restored")

// Restore puts deleted plants back, all of them or none, and marks their entries, in one
// transaction. It returns a *RefusedError where that can't be done as asked, and
// ErrCommitUnknown. After any other error nothing was restored.
func Restore(ctx context.Context, conn *pgx.Conn, s Selection, o Options) (Restored, error) {
	r := restore{options: o}
	done, err := r.uncommitted(ctx, conn, s)
	if r.Tx != nil {
		defer r.Rollback(context.WithoutCancel(ctx)) // without effect after a commit
	}
	if err == nil {
		err = ctx.Err()
	}
	if _, refused := errors.AsType[*RefusedError](err); err != nil && !refused {
		err = fmt.Errorf("nothing was restored: %w", err)
	}
	if err != nil || o.DryRun || len(done.Plants) == 0 {
		return done, err
	}
	err = r.Commit(ctx)
	if pg, ok := errors.AsType[*pgconn.PgError](err); err == nil || ok && pg.SeverityUnlocalized == "ERROR" || errors.Is(err, pgx.ErrTxCommitRollback) {
		return done, err
	}
	return done, fmt.Errorf("%w (%w)", ErrCommitUnknown, err)
}

// uncommitted does all but the commit.
func (r *restore) uncommitted(ctx context.Context, conn *pgx.Conn, s Selection) (done Restored, err error) {
	if err := r.begin(ctx, conn); err != nil {
		return done, err
	}
	if done.Plants, done.DeletedAgain, err = r.lockEntries(ctx, s); err != nil {
		return done, err
	}
	if err := r.leaveOutTaken(ctx, &done); err != nil {
		return done, err
	}
	if len(done.Plants) == 0 {
		return done, r.refused()
	}
	if err := r.run(ctx, &done); err != nil {
		return Restored{}, err
	}
	done.Notices = r.notices
	return done, nil
}

// begin begins a transaction in which public.plants keeps its columns.
func (r *restore) begin(ctx context.Context, conn *pgx.Conn) (err error) {
	if r.Tx, err = conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}); err != nil {
		return err
	}
	// A deferred check would fail at the commit and name no plant. Without statistics, the
	// planner would scan the ledger for each entry.
	_, err = r.Exec(ctx, fmt.Sprintf(`
		SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout');
		SET LOCAL lock_timeout = %d;
		SET LOCAL enable_seqscan = off;
		SET LOCAL xmloption = content;
		SET LOCAL array_nulls = on;
		SET CONSTRAINTS ALL IMMEDIATE;
		LOCK TABLE public.plants IN ROW EXCLUSIVE MODE`, cmp.Or(r.options.LockTimeout, 30*time.Second).Milliseconds()), pgx.QueryExecModeSimpleProtocol)
	return err
}

// A restore is a transaction with its findings.
type restore struct {
	pgx.Tx
	options     Options
	reasons     []Reason
	notices     []string
	shapesSoFar int
}

func (r *restore) refuse(flag, format string, args ...any) {
	r.reasons = append(r.reasons, Reason{fmt.Sprintf(format, args...), flag})
}

// notice notes a difference once.
func (r *restore) notice(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(r.notices, text) {
		r.notices = append(r.notices, text)
	}
}

// refused returns the reasons so far as an error.
func (r *restore) refused() error {
	if len(r.reasons) == 0 {
		return nil
	}
	return &RefusedError{r.reasons, r.notices}
}

// lockEntries locks the selected entries, in the order of their ids, so that two restores
// never deadlock. It refuses those that can't be undone.
func (r *restore) lockEntries(ctx context.Context, s Selection) (entries []Deletion, deletedAgain int, err error) {
	ids := s.IDs
	switch {
	case len(s.Plants) > 0:
		var newest map[int64]int64
		newest, err = r.newest(ctx, s.Plants, "restored_at IS NULL")
		ids = slices.Clone(ids)
		for _, plant := range s.Plants {
			if id, ok := newest[plant]; ok {
				ids = append(ids, id)
			} else if err == nil {
				r.refuse("", "plant %d: the ledger has no deletion of it left to restore", plant)
			}
		}
	case len(ids) == 0:
		ids, deletedAgain, err = r.matching(ctx, s)
	}
	if err != nil {
		return nil, 0, err
	}
	rows, err := r.Query(ctx, `SELECT `+columns+`, `+noRow+`, `+name+`, 0 FROM plantstore.deletions WHERE id = ANY ($1) ORDER BY id FOR UPDATE`, ids)
	found, plants := make(map[int64]bool), make(map[int64]int64)
	err = each(rows, err, func(d Deletion) error {
		found[d.ID] = true
		switch other, twice := plants[d.PlantID]; {
		case d.Refused != nil:
			r.refuse("", "entry %d is a refusal: nothing was deleted", d.ID)
		case d.RestoredAt != nil:
			r.refuse("", "%s was restored by %s at %s", d, printable(*d.RestoredBy), d.RestoredAt.Format(time.RFC3339))
		case twice:
			r.refuse("", "deletions %d and %d are of the same plant %d: restore one of them", other, d.ID, d.PlantID)
		default:
			plants[d.PlantID] = d.ID
			entries = append(entries, d)
		}
		return nil
	})
	for _, id := range ids {
		if !found[id] {
			r.refuse("", "there is no deletion %d in the ledger", id)
		}
	}
	return entries, deletedAgain, cmp.Or(err, r.refused())
}

// newest returns the newest deletion of each plant, by plant.
func (r *restore) newest(ctx context.Context, plants []int64, condition string) (map[int64]int64, error) {
	rows, _ := r.Query(ctx, `SELECT plant_id, max(id) FROM plantstore.deletions WHERE plant_id = ANY ($1) AND refused IS NULL AND `+condition+` GROUP BY plant_id`, plants)
	newest := make(map[int64]int64)
	var plant, id int64
	_, err := pgx.ForEachRow(rows, []any{&plant, &id}, func() error { newest[plant] = id; return nil })
	return newest, err
}

// matching returns what the criteria select. It leaves out plants that came back and were
// deleted again later, by anybody.
func (r *restore) matching(ctx context.Context, s Selection) (ids []int64, deletedAgain int, err error) {
	where, args := Filter{By: s.By, ByRole: s.ByRole, Since: s.Since, Until: s.Until}.where()
	rows, _ := r.Query(ctx, `SELECT id, plant_id FROM plantstore.deletions WHERE restored_at IS NULL AND `+where, args...)
	var plants []int64
	var id, plant int64
	if _, err := pgx.ForEachRow(rows, []any{&id, &plant}, func() error {
		ids, plants = append(ids, id), append(plants, plant)
		return nil
	}); err != nil {
		return nil, 0, err
	}
	newest, err := r.newest(ctx, plants, "true")
	all := len(ids)
	at := -1
	ids = slices.DeleteFunc(ids, func(id int64) bool { at++; return newest[plants[at]] != id })
	return ids, all - len(ids), err
}

// leaveOutTaken moves entries whose ids are taken from Plants to Taken.
func (r *restore) leaveOutTaken(ctx context.Context, done *Restored) error {
	rows, _ := r.Query(ctx, `SELECT id FROM ONLY public.plants WHERE id = ANY ($1)`, plantsOf(done.Plants))
	taken, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	there := make(map[int64]bool, len(taken))
	for _, id := range taken {
		there[id] = true
	}
	done.Plants = slices.DeleteFunc(done.Plants, func(d Deletion) bool {
		if there[d.PlantID] {
			done.Taken = append(done.Taken, d)
			r.refuseTaken(d)
		}
		return there[d.PlantID]
	})
	return nil
}

func (r *restore) refuseTaken(d Deletion) {
	if !r.options.SkipExisting {
		r.refuse(skipExisting, "%s: its id is taken", d)
	}
}

func plantsOf(entries []Deletion) []int64 {
	ids := make([]int64, len(entries))
	for i, e := range entries {
		ids[i] = e.PlantID
	}
	return ids
}

func idsOf(entries []Deletion) []int64 {
	ids := make([]int64, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	return ids
}

// run restores done.Plants with what left with them, and marks their entries.
func (r *restore) run(ctx context.Context, done *Restored) error {
	path, err := r.pinSettings(ctx)
	if err != nil {
		return err
	}
	plants := plantsToday()
	if err := r.readColumns(ctx, plants); err != nil {
		return err
	}
	shapes, err := r.shapes(ctx, plants, idsOf(done.Plants))
	if err != nil {
		return err
	}
	if err := r.refuseTriggers(ctx, plants.name, insertTrigger); err != nil {
		return err
	}
	if !r.checkRenames(shapes, plants) {
		return r.refused()
	}
	cascades, err := r.cascades(ctx, done.Plants)
	if err != nil {
		return err
	}
	for _, c := range cascades {
		more, err := r.prepare(ctx, c)
		if err != nil {
			return err
		}
		shapes = append(shapes, more...)
	}
	for i := range shapes {
		if err := r.plan(ctx, &shapes[i]); err != nil {
			return err
		}
	}
	if err := r.refused(); err != nil {
		return err
	}
	if err := r.insert(ctx, shapes, path, done); err != nil {
		return err
	}
	for i := range shapes {
		if err := r.compare(ctx, &shapes[i]); err != nil {
			return err
		}
	}
	for _, c := range cascades {
		if err := r.finish(ctx, c, path, done); err != nil {
			return err
		}
	}
	if err := r.refused(); err != nil {
		return err
	}
	for _, s := range shapes {
		if _, err := r.Exec(ctx, fmt.Sprintf(`DROP TYPE pg_temp.text_%[1]d, pg_temp.row_%[1]d`, s.number)); err != nil {
			return err
		}
	}
	_, err = r.Exec(ctx, `UPDATE plantstore.deletions SET restored_at = clock_timestamp(), restored_by = session_user WHERE id = ANY ($1)`, idsOf(done.Plants))
	return err
}

// Kinds of triggers, as in pg_trigger.
const (
	insertTrigger = 4
	updateTrigger = 16
)

// triggers returns the store's triggers of a table and a kind.
func (r *restore) triggers(ctx context.Context, table string, kind int16) ([]string, error) {
	rows, _ := r.Query(ctx, `SELECT format('%I (function %s)', tgname, tgfoid::regproc) FROM pg_trigger
		WHERE tgrelid = $1::text::regclass AND NOT tgisinternal AND tgtype & $2 <> 0 AND tgenabled IN ('O', 'A')
			AND tgfoid IN (SELECT oid FROM pg_proc WHERE pronamespace <> 'plantstore'::regnamespace) ORDER BY tgname`, table, kind)
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func (r *restore) refuseTriggers(ctx context.Context, table string, kind int16) error {
	if r.options.FireTriggers {
		return nil
	}
	triggers, err := r.triggers(ctx, table, kind)
	verb, of := "inserting", ""
	if kind == updateTrigger {
		verb = "updating"
	}
	if table != "public.plants" {
		of = " of " + table
	}
	for _, t := range triggers {
		r.refuse(fireTriggers, "%s fires the store's trigger %s%s", verb, t, of)
	}
	return err
}

// insert inserts the planned rows. Foreign keys are checked at the end of a statement, and
// rows of different shapes and tables may refer to each other: so it is one statement.
func (r *restore) insert(ctx context.Context, shapes []shape, path string, done *Restored) error {
	var inserts, results []string
	args := []any{pgx.QueryExecModeExec}
	for i := range shapes {
		inserts = append(inserts, fmt.Sprintf("s%d AS (%s)", i, shapes[i].insertion(i+1)))
		results = append(results, fmt.Sprintf("SELECT id FROM s%d", i))
		args = append(args, shapes[i].ids)
	}
	var ids []*int64
	err := r.asTheStore(ctx, path, func() (err error) {
		rows, _ := r.Query(ctx, "WITH "+strings.Join(inserts, ", ")+" "+strings.Join(results, " UNION ALL "), args...)
		ids, err = pgx.CollectRows(rows, pgx.RowTo[*int64])
		return err
	})
	if err != nil {
		return err
	}
	inserted := make(map[int64]bool, len(ids))
	for _, id := range ids {
		if id != nil { // one of a plant
			inserted[*id] = true
		}
	}
	var missing Restored
	done.Plants = slices.DeleteFunc(done.Plants, func(d Deletion) bool {
		if !inserted[d.PlantID] {
			missing.Plants = append(missing.Plants, d)
		}
		return !inserted[d.PlantID]
	})
	if err := r.leaveOutTaken(ctx, &missing); err != nil { // taken since the first look
		return err
	}
	done.Taken = append(done.Taken, missing.Taken...)
	if len(missing.Taken) > 0 {
		for i := range shapes {
			if shapes[i].of.row != "plant" {
				r.refuse("", "an id was taken meanwhile, and what left with that plant must stay away: restore again")
				break
			}
			shapes[i].ids = slices.DeleteFunc(shapes[i].ids, func(id int64) bool {
				return slices.ContainsFunc(missing.Taken, func(d Deletion) bool { return d.ID == id })
			})
		}
	}
	for _, d := range missing.Plants {
		r.refuse("", "%s: a trigger rejected the row, or gave it another id", d)
	}
	return r.refused()
}

// asTheStore runs do with the session's search path, for functions of the store. Values and
// constraints that do not fit are refused.
func (r *restore) asTheStore(ctx context.Context, path string, do func() error) error {
	if err := r.setPath(ctx, path); err != nil {
		return err
	}
	err := do()
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains([]string{"22", "23", "P0"}, pg.Code[:2]) {
		flag := ""
		if pg.TableName != "" && (pg.TableName != "plants" || pg.SchemaName != "public") {
			flag = plantsOnly
		}
		r.refuse(flag, "%s", strings.TrimSuffix(pg.Message+": "+pg.Detail, ": "))
		return r.refused()
	}
	if err != nil {
		return err
	}
	return r.setPath(ctx, "pg_catalog, pg_temp")
}
