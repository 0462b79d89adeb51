package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Options allow restores that are refused without them.
type Options struct {
	SkipExisting bool // leave out plants whose ids are taken, and changed columns that have another value since
	FireTriggers bool // the store's triggers on INSERT and UPDATE fire
	PlantsOnly   bool // leave out rows of watched tables
	DryRun       bool // roll back in the end
}

// Restored has the results of a restore, or those that a dry run would have had.
type Restored struct {
	Plants       []Deletion // without rows
	Taken        []Deletion // left out, because their ids are taken
	DeletedAgain int        // left out by the criteria, because they came back and were deleted again
	Cascaded     []Cascaded // rows of watched tables that came back with the plants
	Notices      []string   // differences between the tables and the deleted rows
}

// Cascaded counts rows of a watched table: those that were removed, or those whose column
// Changed was set to null or to its default.
type Cascaded struct {
	Table   string `json:"table"`
	Changed string `json:"changed,omitempty"`
	Rows    int    `json:"rows"`
}

// count adds rows of a part, which may be one of several of its table.
func (d *Restored) count(p *part, rows int) {
	i := slices.IndexFunc(d.Cascaded, func(c Cascaded) bool { return c.Table == p.name && c.Changed == p.changed })
	if i < 0 {
		d.Cascaded = append(d.Cascaded, Cascaded{p.name, p.changed, rows})
	} else {
		d.Cascaded[i].Rows += rows
	}
}

// A Reason prevents a restore.
type Reason struct {
	Text string
	Flag string // the flag that accepts it and what it does, or empty
}

// A RefusedError says why nothing was restored.
type RefusedError struct {
	Reasons []Reason
	Notices []string
	ByHand  string // where columns have changed: SQL that restores all but them from the JSON
}

// MaxListed is how many plants, rows or reasons a message names.
const MaxListed = 20

// Error returns several lines.
func (e *RefusedError) Error() string {
	var reasons, flags []string
	for _, r := range e.Reasons {
		reasons = append(reasons, r.Text)
		if r.Flag != "" && !slices.Contains(flags, r.Flag) {
			flags = append(flags, r.Flag)
		}
	}
	lines := []string{"nothing was restored:"}
	for _, r := range limited(reasons) {
		lines = append(lines, "  "+r)
	}
	for _, n := range e.Notices {
		lines = append(lines, "  also: "+n)
	}
	lines = append(lines, flags...)
	if e.ByHand != "" {
		lines = append(lines, "By hand, without the columns that are gone or have another type, unless you add them:", e.ByHand)
	}
	return strings.Join(lines, "\n")
}

// limited returns the texts that a message names.
func limited(texts []string) []string {
	if more := len(texts) - MaxListed; more > 0 {
		return append(texts[:MaxListed], fmt.Sprintf("and %d more", more))
	}
	return texts
}

const (
	skipExisting = "--skip-existing restores the others."
	fireTriggers = "--fire-triggers restores and fires the triggers."
	plantsOnly   = "--plants-only restores the plants alone."
)

// ErrCommitUnknown is returned where the answer of the commit was lost.
var ErrCommitUnknown = errors.New("the answer to the commit was lost: check with 'plantstore deletions list' whether the plants were restored")

// Restore puts deleted plants back, all of them or none, and marks their entries, in one
// transaction. It returns a *RefusedError where that can't be done as asked, and
// ErrCommitUnknown. After any other error nothing was restored.
func Restore(ctx context.Context, conn *pgx.Conn, s Selection, o Options) (Restored, error) {
	r := restore{options: o}
	done, err := r.run(ctx, conn, s)
	if r.Tx != nil {
		defer r.Rollback(context.WithoutCancel(ctx)) // without effect after a commit
	}
	if _, refused := errors.AsType[*RefusedError](err); err != nil && !refused {
		err = fmt.Errorf("nothing was restored: %w", err)
	}
	if err != nil {
		return Restored{}, err
	}
	if o.DryRun || len(done.Plants) == 0 {
		return done, nil
	}
	err = r.Commit(ctx)
	pg, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		return done, nil
	case answered && pg.SeverityUnlocalized == "ERROR", errors.Is(err, pgx.ErrTxCommitRollback), pgconn.SafeToRetry(err):
		return Restored{}, fmt.Errorf("nothing was restored: %w", err)
	}
	return done, fmt.Errorf("%w (%w)", ErrCommitUnknown, err)
}

// begin begins a transaction in which public.plants keeps its columns. Values are read and
// written in the form in which record_deletion() wrote them.
func (r *restore) begin(ctx context.Context, conn *pgx.Conn) (err error) {
	if r.Tx, err = conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}); err != nil {
		return err
	}
	if err := r.QueryRow(ctx, `SELECT current_setting('search_path')`).Scan(&r.path); err != nil {
		return err
	}
	// A deferred check would fail at the commit and name no plant. Without statistics, the
	// planner would scan the ledger for each entry.
	_, err = r.Exec(ctx, `
		SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout');
		SET LOCAL lock_timeout = '30s';
		SET LOCAL enable_seqscan = off;
		`+settings+`
		SET CONSTRAINTS ALL IMMEDIATE;
		LOCK TABLE public.plants IN ROW EXCLUSIVE MODE;
		SELECT set_config(split_part(c, '=', 1), substr(c, position('=' in c) + 1), true)
			FROM pg_proc, unnest(proconfig) c WHERE oid = 'plantstore.record_deletion()'::regprocedure`, pgx.QueryExecModeSimpleProtocol)
	return err
}

// settings are those under which a session reads the recorded values as they were written.
// Dates, intervals, floats and bytea read the same in any session.
const settings = `SET LOCAL lc_monetary = 'C'; SET LOCAL xmloption = content; SET LOCAL array_nulls = on;`

// A restore is a transaction with its findings.
type restore struct {
	pgx.Tx
	options Options
	path    string // the session's search path
	reasons []Reason
	notices []string
	byHand  string
}

func (r *restore) refuse(flag, format string, args ...any) {
	r.reasons = append(r.reasons, Reason{fmt.Sprintf(format, args...), flag})
}

// refused returns the reasons so far as an error.
func (r *restore) refused() error {
	if len(r.reasons) == 0 {
		return nil
	}
	return &RefusedError{r.reasons, r.notices, r.byHand}
}

// run restores plants with the rows that left with them, and marks their entries. It does not
// commit.
func (r *restore) run(ctx context.Context, conn *pgx.Conn, s Selection) (done Restored, err error) {
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
	inserted, changed, err := r.parts(ctx, done.Plants)
	if err != nil {
		return done, err
	}
	for _, p := range inserted {
		if err := r.prepare(ctx, p); err != nil {
			return done, err
		}
	}
	for _, p := range changed {
		if err := r.refuseTriggers(ctx, p, updateTrigger); err != nil {
			return done, err
		}
	}
	if err := r.refused(); err != nil {
		return done, err
	}
	if err := r.insert(ctx, inserted); err != nil {
		return done, err
	}
	for _, p := range inserted {
		if err := r.compare(ctx, p); err != nil {
			return done, err
		}
		if !p.plants {
			done.count(p, len(p.ids))
		}
	}
	for _, p := range changed {
		n, err := r.changeBack(ctx, p)
		if err != nil {
			return done, err
		}
		if n > 0 {
			done.count(p, n)
		}
	}
	if err := r.refused(); err != nil {
		return done, err
	}
	done.Notices = r.notices
	_, err = r.Exec(ctx, `UPDATE plantstore.deletions SET restored_at = clock_timestamp(), restored_by = session_user WHERE id = ANY ($1)`, idsOf(done.Plants))
	return done, err
}
