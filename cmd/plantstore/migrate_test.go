package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
)

func execute(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// adopted returns a database with a store's own table of plants.
func adopted(t *testing.T) (owner string, conn *pgx.Conn) {
	t.Helper()
	owner = pgtest.Empty(t).Owner
	conn, err := pgx.Connect(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(t.Context()) })
	execute(t, conn, `CREATE TABLE plants (id bigint PRIMARY KEY); INSERT INTO plants SELECT generate_series(1, 1500)`)
	execute(t, conn, `ANALYZE plants`)
	return owner, conn
}

func matches(t *testing.T, what, got, want string) {
	t.Helper()
	if !regexp.MustCompile(`(?s)^` + want + `$`).MatchString(got) {
		t.Errorf("%s: %s\nwant %s", what, got, want)
	}
}

func TestMigratePlan(t *testing.T) {
	t.Parallel()
	owner, conn := adopted(t)
	url := "--database-url=" + owner

	stdout, stderr, code := command(t, "migrate", "plan", url)
	if code != 3 || stderr != "plantstore: <nil>\n" {
		t.Errorf("pending: exit code %d, %q; want 3 and nothing said", code, stderr)
	}
	if stderr, code := runProcess(t, nil, "migrate", "plan", url); code != 3 || stderr != "" {
		t.Errorf("pending, in a process of its own: exit code %d, %q; want 3 and nothing said", code, stderr)
	}
	matches(t, "plan", stdout, `database \S+ is at version 0, this plantstore at \d+: \d+ migrations are pending\n\n`+
		`MIGRATION +VERDICT +LOCKS ON TABLES IN USE\n.*`+
		`00003_record_deletions.sql +blocks writes briefly +SHARE ROW EXCLUSIVE on public.plants \(about 1,500 rows, \d+ kB\)\n.*`+
		`\n00003_record_deletions.sql: blocks writes briefly \(in one transaction\)\n.*`+
		`\n  9. blocks writes briefly: adds a trigger, in the catalogue only: no row is read\n`+
		`     lock: SHARE ROW EXCLUSIVE on public.plants \(about 1,500 rows, \d+ kB\)\n`+
		`     see: https://www.postgresql.org/docs/current/explicit-locking.html#LOCKING-TABLES\n\n`+
		`       \| CREATE TRIGGER plantstore_record_deletion AFTER DELETE ON public.plants\n.*`)
	if strings.Contains(stdout, "unknown") || strings.Contains(stdout, "TROUBLE") {
		t.Errorf("something is unknown, or trouble:\n%s", stdout)
	}

	stdout, _, code = command(t, "migrate", "plan", "--json", url)
	var plan migrate.Plan
	if err := json.Unmarshal([]byte(stdout), &plan); err != nil || code != 3 || len(plan.Pending) != len(migrate.All()) {
		t.Errorf("as JSON: %d pending, exit code %d, %v; want all, 3", len(plan.Pending), code, err)
	}
	lock := plan.Pending[2].Statements[8].Locks[0]
	if lock.Mode != "SHARE ROW EXCLUSIVE" || lock.Table != "public.plants" || *lock.Rows != 1500 {
		t.Errorf("lock %+v, want that of the trigger on 1500 rows", lock)
	}

	if stdout, _, code = command(t, "migrate", "status", url); code != 0 || strings.Contains(stdout, "applied ") {
		t.Errorf("status after the plan: exit code %d, %q; want nothing applied", code, stdout)
	}
	if _, stderr, code = command(t, "migrate", "up", url); code != 0 || stderr != "" {
		t.Fatalf("up: exit code %d, %s", code, stderr)
	}
	stdout, _, code = command(t, "migrate", "plan", url)
	if code != 0 {
		t.Errorf("nothing to do: exit code %d, want 0", code)
	}
	matches(t, "plan", stdout, `database \S+ is at version \d+, this plantstore at \d+: nothing to do\n`)

	execute(t, conn, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (901, true);
		UPDATE plantstore_migrations SET checksum = repeat('0', 64) WHERE version = 2;
		UPDATE goose_db_version SET tstamp = '2026-01-02 03:04:05' WHERE version_id = 2;
		DELETE FROM plantstore_migrations WHERE version = 3;
		UPDATE plantstore_migrations SET baseline = true WHERE version = 4`)
	stdout, _, code = command(t, "migrate", "plan", url)
	if code != 1 {
		t.Errorf("trouble: exit code %d, want 1", code)
	}
	matches(t, "plan", stdout, `database \S+ is at version 901, this plantstore at \d+: nothing to do\n`+
		`TROUBLE: 00002_ledger.sql has changed since it was applied here on \S+: SHA-256 000000000000... then, [0-9a-f]{12}... now\n`+
		`         Put the file back as it was, and make the change a migration of its own.\n`+
		`TROUBLE: the database is ahead of this plantstore: migration 00901 is applied and not part of it\n`+
		`         Migrate with the release that has it. .*\n`+
		`note: whether these have changed since they were applied is not known, because something else applied them or the checksums may not be read: 00003_record_deletions.sql\n`+
		`note: something else applied these; changes are noticed only since 'migrate up' ran next: 00004_api_tokens.sql\n`)
	stdout, _, code = command(t, "migrate", "status", url)
	matches(t, "status", stdout, `.*00002_ledger.sql +applied, changed since +2026-01-02T03:04:05Z\n00003_record_deletions.sql +applied +20[^\n]+Z\n.*00901 +unknown to this binary .*TROUBLE: 00002.*`)
	if code != 0 {
		t.Errorf("status: exit code %d, want 0", code)
	}
	stdout, stderr, _ = command(t, "migrate", "status", "--json", url)
	if !json.Valid([]byte(stdout)) || !strings.HasPrefix(stderr, "TROUBLE: 00002") {
		t.Errorf("status as JSON: %s\nstandard error: %s\nwant JSON, and trouble apart from it", stdout, stderr)
	}
	_, stderr, code = command(t, "migrate", "up", url)
	if code != 0 || !strings.HasPrefix(stderr, "warning: 00002_ledger.sql has changed") {
		t.Errorf("up: exit code %d, %q; want 0 and a warning", code, stderr)
	}
}

// What stands in the way is told before anything is applied.
func TestMigrateSaysWhatIsInTheWay(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	url := "--database-url=" + database.Owner
	super := pgtest.Connect(t, database.Super)
	execute(t, super, `CREATE TABLE plants (id bigint PRIMARY KEY);
		CREATE RULE keep AS ON DELETE TO plants WHERE old.id < 10 DO INSTEAD NOTHING;
		GRANT INSERT ON plants TO plantstore_owner;
		GRANT SELECT, DELETE ON plants TO plantstore_owner WITH GRANT OPTION`)
	const lacking = "plantstore_owner lacks TRIGGER on public.plants, which only its owner postgres can give\n"
	const keeping = "rule keep of public.plants may keep plants from being deleted, which clients are told as 40901"

	stdout, _, code := command(t, "migrate", "plan", url)
	if code != 1 {
		t.Errorf("plan: exit code %d, want 1", code)
	}
	matches(t, "plan", stdout, `database \S+ is at version 0, .* pending\n`+
		`TROUBLE: `+lacking+`         GRANT TRIGGER ON public.plants TO plantstore_owner;\n`+
		`caution: `+keeping+`\n         ALTER TABLE public.plants DISABLE RULE keep;\n\nMIGRATION .*`)

	stdout, stderr, code := command(t, "migrate", "up", url)
	if want := "warning: " + keeping + ". ALTER TABLE public.plants DISABLE RULE keep;\n" +
		"plantstore: something is in the way, and nothing was changed\nTROUBLE: " + lacking + "         GRANT TRIGGER ON public.plants TO plantstore_owner;\n"; code != 1 || stdout != "" || stderr != want {
		t.Errorf("up: exit code %d, %q, %q; want 1, nothing, %q", code, stdout, stderr, want)
	}
	execute(t, super, `GRANT TRIGGER ON public.plants TO plantstore_owner`)
	if _, stderr, code = command(t, "migrate", "up", url); code != 0 {
		t.Errorf("up after the remedy: exit code %d, %q; want 0", code, stderr)
	}
}

func TestMigrateUpNamesTheBlocker(t *testing.T) {
	t.Parallel()
	owner, conn := adopted(t)
	url := "--database-url=" + owner
	execute(t, conn, `SET application_name = 'till'`)
	execute(t, conn, `BEGIN`)
	execute(t, conn, `INSERT INTO plants VALUES (2000)`)

	const blocked = `00003_record_deletions.sql waits for SHARE ROW EXCLUSIVE on public.plants, blocked by pid \d+, application till, user plantstore_owner, ` +
		`idle in transaction, transaction open for \S+: INSERT INTO plants VALUES \(2000\)\n`
	// On a slow machine, lines of progress come between.
	const progress = `(?:\[\d+/\d+\] \S+ has been running for \d+s\n)*`
	// And there it takes seconds to connect and look who is in the way.
	stdout, stderr, code := command(t, "migrate", "up", "--lock-timeout=10s", "--lock-attempts=2", url)
	if code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	matches(t, "standard output", stdout, `applied 00001_plants.sql \(\S+s\)\napplied 00002_ledger.sql \(\S+s\)\n`)
	matches(t, "standard error", stderr, blocked+progress+
		`00003_record_deletions.sql did not get SHARE ROW EXCLUSIVE on public.plants and lets others through: attempt 2 of 2 in \S+s\n`+
		progress+blocked+progress+`plantstore: migration 00003_record_deletions.sql: no lock SHARE ROW EXCLUSIVE on public.plants within 10s, in 2 attempts: rolled back; `+
		`blocked by pid \d+, application till, .*; end what is in the way, or try again with a larger --lock-attempts\n`)

	// The sale ends when the migration says that it waits for it.
	var out bytes.Buffer
	told := &alarm{text: "blocked by pid", ring: func() { execute(t, conn, `COMMIT`) }}
	err := run(t.Context(), nil, []string{"migrate", "up", "--lock-timeout=10s", url}, &out, told)
	if err != nil || !strings.Contains(told.String(), told.text) || !strings.HasPrefix(out.String(), "applied 00003_record_deletions.sql") {
		t.Errorf("%v, %q, %q; want no error when the blocker is done", err, out.String(), told)
	}
}

// An alarm rings when a text is first written to it.
type alarm struct {
	syncBuffer
	text string
	ring func()
	once sync.Once
}

func (a *alarm) Write(b []byte) (int, error) {
	n, err := a.syncBuffer.Write(b)
	if strings.Contains(a.String(), a.text) {
		a.once.Do(a.ring)
	}
	return n, err
}

func TestProgress(t *testing.T) {
	t.Parallel()
	tests := []struct {
		terminal bool
		want     string // on standard error
	}{
		{false, "waiting for another run to end: pid 7, user a (age and query are hidden: grant our role pg_read_all_stats); and by pid 8, user b (age and query are hidden: grant our role pg_read_all_stats)\nwarning: w\n[2/3] a.sql has been running for 10s\n"},
		{true, "\r\x1b[Kwaiting for another run to end: pid 7, user a (age and query are hidden: grant our role pg_read_all_stats); and by pid 8, user b (age and query are hidden: grant our role pg_read_all_stats)\n\r\x1b[Kwarning: w\n\r\x1b[K\r\x1b[K[2/3] a.sql 0.0s"},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			var out, errOut bytes.Buffer
			p := newProgress(&console{out: &out, err: &errOut}, "applied", tt.terminal)
			m := migrate.Migration{Name: "a.sql"}
			p.notify(migrate.Event{Kind: migrate.Queued, Blockers: []migrate.Blocker{{PID: 7, User: "a", Hidden: true}, {PID: 8, User: "b", Hidden: true}}})
			p.notify(migrate.Event{Kind: migrate.Warned, Warning: "w"})
			p.notify(migrate.Event{Kind: migrate.Started, Migration: m, Number: 2, Of: 3})
			time.Sleep(12 * time.Second)
			p.notify(migrate.Event{Kind: migrate.Finished, Migration: m, Took: 12 * time.Second})
			p.end()
			got := errOut.String()
			if out.String() != "applied a.sql (12s)\n" || !strings.HasPrefix(got, tt.want) {
				t.Errorf("terminal %v: %q, %q; want %q on standard error", tt.terminal, out.String(), got, tt.want)
			}
			if tt.terminal && (!strings.Contains(got, "\r\x1b[K[2/3] a.sql 7.3s\r") || !strings.HasSuffix(got, "\r\x1b[K")) {
				t.Errorf("the line does not count, or stays: %q", got)
			}
			if !tt.terminal && got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestPlanText(t *testing.T) {
	t.Parallel()
	rows := int64(1500)
	got := planText(migrate.Plan{Database: "shop", Version: 1, Binary: 2, Pending: []migrate.PendingMigration{{
		Migration: migrate.Migration{Version: 2, Name: "2.sql"}, Verdict: migrate.Unknown, Statements: []migrate.Statement{{SQL: "SELECT 1;\n\nSELECT 2;", Verdict: migrate.Unknown}},
	}}})
	want := `database shop is at version 1, this plantstore at 2: 1 migration is pending

MIGRATION  VERDICT  LOCKS ON TABLES IN USE
2.sql      unknown  unknown

2.sql: unknown (NOT in a transaction: what an interrupted run did stays)

  1. unknown: ` + `

       | SELECT 1;
       |
       | SELECT 2;
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what nobody knows the effect of (-want +got):\n%s", diff)
	}
	lock := func(table string, exists bool, rows *int64) migrate.HeldLock {
		return migrate.HeldLock{Lock: migrate.Lock{Mode: "SHARE", Table: table}, Exists: exists, Rows: rows, Bytes: 8192}
	}
	got = statementText(3, migrate.Statement{Does: "rewrites", Safer: "in batches", Manual: "a page", SQL: "SELECT 1;", Verdict: migrate.Rewrites,
		Locks: []migrate.HeldLock{lock("a", true, &rows), lock("b", true, nil), lock("c", false, &rows)}})
	want = `
  3. rewrites or scans the table: rewrites
     lock: SHARE on a (about 1,500 rows, 8 kB)
     lock: SHARE on b (number of rows unknown, 8 kB)
     lock: SHARE on c (does not exist yet, nobody waits)
     safer: in batches
     see: a page

       | SELECT 1;
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what is known (-want +got):\n%s", diff)
	}
	got = statementText(1, migrate.Statement{Does: "nothing", SQL: "SELECT 1;", Verdict: migrate.Safe})
	want = "\n  1. safe: nothing\n     lock: none on a table in use\n\n       | SELECT 1;\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what is harmless (-want +got):\n%s", diff)
	}
}

func TestWhyAMigrationEnded(t *testing.T) {
	t.Parallel()
	fault := errors.New("fault")
	for want, err := range map[string]error{
		"interrupted: migration 1.sql is rolled back: nothing of it was changed; see 'plantstore migrate status', and run the same again to go on":                &migrate.InterruptedError{Name: "1.sql", State: migrate.Untouched, Err: context.Canceled},
		"the connection was lost (fault): migration 1.sql is complete: it was committed before; see 'plantstore migrate status', and run the same again to go on": &migrate.InterruptedError{Name: "1.sql", State: migrate.Complete, Err: fault},
		"migration 1.sql: fault": &migrate.FailedError{Name: "1.sql", Err: fault},
		"migration 1.sql: no lock within 1s, in 2 attempts: rolled back; end what is in the way, or try again with a larger --lock-attempts": &migrate.FailedError{Name: "1.sql",
			Err: &migrate.BlockedError{Attempts: 2, Timeout: time.Second, Err: fault}},
		"fault": fault,
	} {
		if got := explained(err, "DATABASE_URL").Error(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// The status line comes after a second, gives way to what is written, does not break
// into a question, and is gone in the end.
func TestStatusLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var terminal bytes.Buffer
		var c *console
		expect := func(want string) { // since it was called last
			t.Helper()
			time.Sleep(100 * time.Millisecond) // between two ticks
			c.line.mu.Lock()
			defer c.line.mu.Unlock()
			if got := terminal.String(); got != want {
				t.Errorf("on the terminal %q, want %q", got, want)
			}
			terminal.Reset()
		}
		c = &console{line: newStatusLine(&terminal, "plantstore x")}
		c.out = overStatus{c.line, &terminal, true}
		time.Sleep(800 * time.Millisecond)
		expect("")
		time.Sleep(100 * time.Millisecond)
		expect("\r\x1b[Kplantstore x 1.0s")
		fmt.Fprint(c.out, "Restore? [y/N] ")
		time.Sleep(900 * time.Millisecond)
		expect("\r\x1b[KRestore? [y/N] ")
		c.say("put back %d of %d", 5, 9)
		time.Sleep(100 * time.Millisecond)
		expect("\r\x1b[Kplantstore x: put back 5 of 9, 2.2s")
		c.say("%s", strings.Repeat("ü", 100))
		time.Sleep(100 * time.Millisecond)
		expect("\r\x1b[Kplantstore x: " + strings.Repeat("ü", 54) + " 2.4s") // 68 characters: a longer line would break, and its first part stay
		c.line.end()
		expect("\r\x1b[K")

		new(console).say("no terminal")
	})
}

func TestIsTerminal(t *testing.T) {
	t.Parallel()
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if isTerminal(new(bytes.Buffer)) || isTerminal(file) {
		t.Error("a buffer or a file is taken for a terminal")
	}
}

func TestBytesAndThousands(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 kB", 8192: "8 kB", 999 << 10: "999 kB", 1023 << 10: "0.999 MB", 127936 << 13: "0.976 GB", 1_500_000: "1.43 MB", 64 << 30: "64 GB", 3 << 40: "3 TB"} {
		if got := byteSize(n); got != want {
			t.Errorf("byteSize(%d) = %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 12_345_678: "12,345,678"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestMigrateUpOfBadValues(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--lock-timeout=9ms":  "plantstore: migrate up: --lock-timeout (PLANTSTORE_MIGRATE_LOCK_TIMEOUT) is 9ms: it must be from 10ms to 1m",
		"--lock-timeout=61s":  "plantstore: migrate up: --lock-timeout (PLANTSTORE_MIGRATE_LOCK_TIMEOUT) is 1m1s: it must be from 10ms to 1m",
		"--lock-timeout=0s":   "plantstore: migrate up: --lock-timeout (PLANTSTORE_MIGRATE_LOCK_TIMEOUT) is 0s: it must be from 10ms to 1m",
		"--lock-attempts=0":   "plantstore: migrate up: --lock-attempts (PLANTSTORE_MIGRATE_LOCK_ATTEMPTS) is 0: it must be at least 1",
		"--lock-timeout=soon": `plantstore: --lock-timeout: expected duration but got "soon": time: invalid duration "soon"`,
	} {
		if _, stderr, code := command(t, "migrate", "up", args); code != 2 || lastLine(stderr) != want {
			t.Errorf("%s: exit code %d, %q; want 2, %q", args, code, lastLine(stderr), want)
		}
	}
}
