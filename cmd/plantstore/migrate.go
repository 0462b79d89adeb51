package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"plantstore/internal/migrate"
	"plantstore/internal/postgres"
)

type migrateCommand struct {
	Plan    migratePlan    `cmd:"" help:"Show what 'up' would do to this database, and to whom, and change nothing. Exit code 0: nothing, 3: migrations are pending, 1: trouble."`
	Up      migrateUp      `cmd:"" help:"Apply every pending migration. Gives way to the clients of the database."`
	Down    migrateDown    `cmd:"" help:"Take the newest migration back, or all down to a version. Refuses to lose rows."`
	Status  migrateStatus  `cmd:"" help:"List the migrations and whether they are applied, and what is wrong."`
	Version migrateVersion `cmd:"" help:"Print the newest applied version."`
}

// ownerFlags name the database for the commands that need its owner.
type ownerFlags struct {
	DatabaseURL string `name:"database-url" env:"PLANTSTORE_MIGRATE_DATABASE_URL,DATABASE_URL" help:"Database, as its owner and without a connection pooler between: libpq URL or DSN. PG* variables fill the gaps."`
}

// lockFlags say how hard a migration tries to get its locks.
type lockFlags struct {
	LockTimeout  time.Duration `env:"PLANTSTORE_MIGRATE_LOCK_TIMEOUT" default:"1s" help:"How long a statement may wait for a lock; clients may have to wait behind it as long."`
	LockAttempts int           `env:"PLANTSTORE_MIGRATE_LOCK_ATTEMPTS" default:"10" help:"How often a migration is tried that did not get its lock; the pauses double, up to 10s."`
}

// Validate refuses values that can't work.
func (f *lockFlags) Validate() error {
	switch {
	case f.LockTimeout < 10*time.Millisecond || f.LockTimeout > time.Minute:
		return fmt.Errorf("--lock-timeout (PLANTSTORE_MIGRATE_LOCK_TIMEOUT) is %s: it must be from 10ms to 1m", f.LockTimeout)
	case f.LockAttempts < 1:
		return fmt.Errorf("--lock-attempts (PLANTSTORE_MIGRATE_LOCK_ATTEMPTS) is %d: it must be at least 1", f.LockAttempts)
	}
	return nil
}

func (f *lockFlags) options(p *progress) migrate.Options {
	return migrate.Options{LockTimeout: f.LockTimeout, LockAttempts: f.LockAttempts, Notify: p.notify}
}

const exitPending = 3

type migratePlan struct {
	ownerFlags `embed:""`
	JSON       bool `name:"json" help:"Print JSON."`
}

// Run shows what up would do.
func (c *migratePlan) Run(ctx context.Context, console *console) error {
	plan, err := migrate.Service().Plan(ctx, c.DatabaseURL)
	if err != nil {
		return explained(err)
	}
	if c.JSON {
		err = writeJSON(console.out, plan)
	} else {
		_, err = io.WriteString(console.out, planText(plan))
	}
	switch {
	case err != nil:
		return err
	case len(plan.Trouble) > 0:
		return &exitError{code: 1}
	case len(plan.Pending) > 0:
		return &exitError{code: exitPending}
	}
	return nil
}

// planText is a plan for a person.
func planText(p migrate.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "database %s is at version %d, this plantstore at %d: ", p.Database, p.Version, p.Binary)
	switch len(p.Pending) {
	case 0:
		b.WriteString("nothing to do\n")
	case 1:
		b.WriteString("1 migration is pending\n")
	default:
		fmt.Fprintf(&b, "%d migrations are pending\n", len(p.Pending))
	}
	b.WriteString(troubleText(p.Trouble))
	if len(p.Unrecorded) > 0 {
		fmt.Fprintf(&b, "note: whether these have changed since they were applied is not known, because something else applied them: %s\n", names(p.Unrecorded))
	}
	if len(p.Baselines) > 0 {
		fmt.Fprintf(&b, "note: something else applied these; changes are noticed only since 'migrate up' ran next: %s\n", names(p.Baselines))
	}
	if len(p.Pending) > 0 {
		b.WriteString("\n")
		table := newTable(&b, "MIGRATION", "VERDICT", "LOCKS ON TABLES IN USE")
		for _, step := range p.Pending {
			var locks []string
			for _, s := range step.Statements {
				for _, lock := range s.Locks {
					if lock.Exists {
						locks = append(locks, lockText(lock))
					}
				}
			}
			none := "none"
			if step.Verdict == migrate.Unknown {
				none = "unknown"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\n", step.Name, step.Verdict, cmp.Or(strings.Join(locks, "; "), none))
		}
		table.Flush()
	}
	for _, step := range p.Pending {
		how := "in one transaction"
		if !step.Transaction {
			how = "NOT in a transaction: what an interrupted run did stays"
		}
		fmt.Fprintf(&b, "\n%s: %s (%s)\n", step.Name, step.Verdict, how)
		for i, s := range step.Statements {
			b.WriteString(statementText(i+1, s))
		}
	}
	return b.String()
}

func statementText(number int, s migrate.Statement) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n  %d. %s: %s\n", number, s.Verdict, s.Does)
	for _, lock := range s.Locks {
		fmt.Fprintf(&b, "     lock: %s\n", lockText(lock))
	}
	if s.Verdict != migrate.Unknown && len(s.Locks) == 0 {
		b.WriteString("     lock: none on a table in use\n")
	}
	if s.Safer != "" {
		fmt.Fprintf(&b, "     safer: %s\n", s.Safer)
	}
	if s.Manual != "" {
		fmt.Fprintf(&b, "     see: %s\n", s.Manual)
	}
	b.WriteString("\n")
	for line := range strings.Lines(s.SQL) {
		b.WriteString(strings.TrimRight("       | "+line, " \n") + "\n")
	}
	return b.String()
}

func lockText(l migrate.HeldLock) string {
	about := "rows never counted, " + byteSize(l.Bytes)
	switch {
	case !l.Exists:
		about = "does not exist yet, nobody waits"
	case l.Rows != nil:
		about = "about " + thousands(*l.Rows) + " rows, " + byteSize(l.Bytes)
	}
	return fmt.Sprintf("%s on %s (%s)", l.Mode, l.Table, about)
}

func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func byteSize(n int64) string {
	size, unit := float64(n)/1024, "kB"
	for _, larger := range []string{"MB", "GB", "TB"} {
		if size < 1000 {
			break
		}
		size, unit = size/1024, larger
	}
	return fmt.Sprintf("%.3g %s", size, unit)
}

func names(all []migrate.Migration) string {
	s := make([]string, len(all))
	for i, m := range all {
		s[i] = m.Name
	}
	return strings.Join(s, ", ")
}

func troubleText(all []migrate.Trouble) string {
	var b strings.Builder
	for _, t := range all {
		fmt.Fprintf(&b, "TROUBLE: %s\n         %s\n", t.Message, t.Remedy)
	}
	return b.String()
}

type migrateUp struct {
	ownerFlags `embed:""`
	lockFlags  `embed:""`
}

// Run applies the pending migrations.
func (c *migrateUp) Run(ctx context.Context, console *console) error {
	progress := newProgress(console, "applied", isTerminal(console.err))
	changes, err := migrate.Service().Up(ctx, c.DatabaseURL, c.options(progress))
	progress.end()
	if err != nil {
		return explained(err)
	}
	if len(changes) == 0 {
		fmt.Fprintf(console.out, "nothing to do: every migration up to %d is applied\n", migrate.Latest())
	}
	return nil
}

type migrateDown struct {
	ownerFlags `embed:""`
	lockFlags  `embed:""`
	To         *int64 `help:"Version that shall be the newest afterwards; 0 takes everything back. Default: one step." placeholder:"VERSION"`
}

// Run takes migrations back.
func (c *migrateDown) Run(ctx context.Context, console *console) error {
	progress := newProgress(console, "took back", isTerminal(console.err))
	var changes []migrate.Change
	var err error
	if c.To == nil {
		changes, err = migrate.Service().Down(ctx, c.DatabaseURL, c.options(progress))
	} else {
		changes, err = migrate.Service().DownTo(ctx, c.DatabaseURL, *c.To, c.options(progress))
	}
	progress.end()
	if err != nil {
		return explained(err)
	}
	if len(changes) == 0 {
		fmt.Fprintln(console.out, "nothing to do: no such migration is applied")
	}
	return nil
}

// A progress tells what a run does: one line on standard output for each
// migration that is done, one on standard error for what keeps it waiting. In
// between, a line on a terminal counts the seconds; elsewhere there is one every
// ten seconds.
type progress struct {
	*console
	verb     string
	terminal bool
	quit     chan struct{}
	ticking  sync.WaitGroup

	mu      sync.Mutex
	current string // what runs now, or ""
	began   time.Time
}

func newProgress(console *console, verb string, terminal bool) *progress {
	p := &progress{console: console, verb: verb, terminal: terminal, quit: make(chan struct{})}
	every := 10 * time.Second
	if terminal {
		every = 100 * time.Millisecond
	}
	p.ticking.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-p.quit:
				return
			case <-ticker.C:
				p.mu.Lock()
				p.draw()
				p.mu.Unlock()
			}
		}
	})
	return p
}

// end ends the output. It has to be called.
func (p *progress) end() {
	close(p.quit)
	p.ticking.Wait()
	p.clear()
}

// draw shows the line that does not stay, where there can be such.
func (p *progress) draw() {
	if p.current == "" {
		return
	}
	took := time.Since(p.began)
	if p.terminal {
		fmt.Fprintf(p.err, "\r\x1b[K%s %.1fs", p.current, took.Seconds())
	} else {
		fmt.Fprintf(p.err, "%s has been running for %s\n", p.current, took.Round(time.Second))
	}
}

func (p *progress) clear() {
	if p.terminal {
		fmt.Fprint(p.err, "\r\x1b[K")
	}
}

func (p *progress) notify(e migrate.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	switch e.Kind {
	case migrate.Queued:
		fmt.Fprintf(p.err, "waiting for another run to end: %s\n", blockers(e.Blockers))
	case migrate.Warned:
		fmt.Fprintf(p.err, "warning: %s\n", e.Warning)
	case migrate.Started:
		p.current, p.began = fmt.Sprintf("[%d/%d] %s", e.Number, e.Of, e.Migration.Name), time.Now()
	case migrate.Blocked:
		fmt.Fprintf(p.err, "%s waits for %s, blocked by %s\n", e.Migration.Name, e.Lock, blockers(e.Blockers))
	case migrate.Retrying:
		fmt.Fprintf(p.err, "%s did not get %s and lets others through: attempt %d of %d in %s\n",
			e.Migration.Name, cmp.Or(e.Lock, "its lock"), e.Attempt+1, e.Attempts, e.Pause.Round(time.Millisecond))
	case migrate.Finished:
		p.current = ""
		fmt.Fprintf(p.out, "%s %s (%s)\n", p.verb, e.Migration.Name, e.Took.Round(time.Millisecond))
	}
	if p.terminal {
		p.draw()
	}
}

func blockers(all []migrate.Blocker) string {
	s := make([]string, len(all))
	for i, b := range all {
		s[i] = b.String()
	}
	return strings.Join(s, "; and by ")
}

// isTerminal reports whether lines written to w can be written over.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

type migrateStatus struct {
	ownerFlags `embed:""`
	JSON       bool `name:"json" help:"Print JSON."`
}

// Run lists the migrations.
func (c *migrateStatus) Run(ctx context.Context, console *console) error {
	states, trouble, err := migrate.Service().Status(ctx, c.DatabaseURL)
	if err != nil {
		return explained(err)
	}
	type row struct {
		Version   int64      `json:"version"`
		Name      string     `json:"name"`
		State     string     `json:"state"`
		AppliedAt *time.Time `json:"applied_at"`
	}
	rows := make([]row, len(states))
	for i, s := range states {
		rows[i] = row{Version: s.Version, Name: s.Name, State: "pending"}
		if !s.AppliedAt.IsZero() {
			rows[i].State, rows[i].AppliedAt = "applied", &s.AppliedAt
		}
		if s.Changed {
			rows[i].State = "applied, changed since"
		}
		if s.Unknown {
			rows[i].State = "unknown to this binary"
		}
	}
	if c.JSON {
		fmt.Fprint(console.err, troubleText(trouble))
		return writeJSON(console.out, rows)
	}
	table := newTable(console.out, "MIGRATION", "STATE", "APPLIED AT")
	for _, r := range rows {
		at := "-"
		if r.AppliedAt != nil {
			at = r.AppliedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", r.Name, r.State, at)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err = io.WriteString(console.out, troubleText(trouble))
	return err
}

type migrateVersion struct {
	ownerFlags `embed:""`
	JSON       bool `name:"json" help:"Print JSON."`
}

// Run prints the newest applied version.
func (c *migrateVersion) Run(ctx context.Context, console *console) error {
	states, _, err := migrate.Service().Status(ctx, c.DatabaseURL)
	if err != nil {
		return explained(err)
	}
	var newest int64
	for _, s := range states {
		if !s.AppliedAt.IsZero() {
			newest = max(newest, s.Version)
		}
	}
	if c.JSON {
		return writeJSON(console.out, map[string]int64{"version": newest, "binary": migrate.Latest()})
	}
	fmt.Fprintln(console.out, newest)
	return nil
}

// explained is err in words for an operator.
func explained(err error) error {
	if e, ok := errors.AsType[*migrate.InterruptedError](err); ok {
		why := "interrupted"
		if !errors.Is(e.Err, context.Canceled) {
			why = "the connection was lost (" + postgres.Explain(e.Err) + ")"
		}
		return fmt.Errorf("%s: migration %s is %s; see 'plantstore migrate status', and run the same again to go on", why, e.Name, e.State)
	}
	failed, ok := errors.AsType[*migrate.FailedError](err)
	if !ok {
		return errors.New(postgres.Explain(err))
	}
	if e, ok := errors.AsType[*migrate.BlockedError](err); ok {
		return fmt.Errorf("migration %s: %w; end what is in the way, or try again with a larger --lock-attempts", failed.Name, e)
	}
	return fmt.Errorf("migration %s: %s", failed.Name, postgres.Explain(failed.Err))
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// newTable returns a writer that lines up tab-separated columns, with its
// heading written.
func newTable(w io.Writer, heading ...any) *tabwriter.Writer {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, h := range heading {
		if i > 0 {
			fmt.Fprint(table, "\t")
		}
		fmt.Fprint(table, h)
	}
	fmt.Fprintln(table)
	return table
}
