package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
)

// events collects what a run tells.
type events struct {
	mu  sync.Mutex
	all []migrate.Event
	// on, if set, is called for each one.
	on func(migrate.Event)
}

func (e *events) notify(event migrate.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
	if e.on != nil {
		e.on(event)
	}
}

func (e *events) of(kind migrate.EventKind) []migrate.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(e.all), func(event migrate.Event) bool { return event.Kind != kind })
}

// hold keeps a transaction open, that of a program called report, which has read
// the plants. The function that it returns ends it.
func hold(t *testing.T, database pgtest.Database) (pid uint32, release func()) {
	t.Helper()
	conn := pgtest.Connect(t, database.Owner)
	exec(t, conn, `SET application_name = 'report'`)
	exec(t, conn, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
	exec(t, conn, "SELECT count(*)\n\tFROM plants -- "+strings.Repeat("long ", 30))
	return conn.PgConn().PID(), func() {
		if err := conn.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// deletions are made by 8 clients until stop, which returns how long each took.
// everybody returns when each client has made one from beginning to end since
// everybody was called, or fails the test after a minute.
func deletions(t *testing.T, database pgtest.Database, firstID int) (everybody func(), stop func() []time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	all := make([][]time.Duration, 8)
	done := make([]atomic.Int64, len(all))
	var wg sync.WaitGroup
	for i := range all {
		conn := pgtest.Connect(t, database.App)
		wg.Go(func() {
			for id := firstID + i; ctx.Err() == nil; id += len(all) {
				began := time.Now()
				if _, err := conn.Exec(t.Context(), `DELETE FROM plants WHERE id = $1`, id); err != nil {
					t.Errorf("delete: %v", err)
					return
				}
				all[i] = append(all[i], time.Since(began))
				done[i].Add(1)
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	everybody = func() {
		deadline := time.Now().Add(time.Minute)
		for i := range done {
			want := done[i].Load() + 2 // the first may have begun before
			for done[i].Load() < want {
				if time.Now().After(deadline) {
					t.Errorf("client %d could not delete for a minute", i)
					return
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
	stop = func() []time.Duration {
		cancel()
		wg.Wait()
		took := slices.Concat(all...)
		slices.Sort(took)
		return took
	}
	return everybody, stop
}

func describe(took []time.Duration) string {
	at := func(permille int) time.Duration {
		return took[(len(took)-1)*permille/1000].Round(time.Millisecond / 10)
	}
	return fmt.Sprintf("%d deletions, p50 %s, p99 %s, longest %s", len(took), at(500), at(990), at(1000))
}

const takesAccessExclusive = "-- +goose Up\nALTER TABLE public.plants ADD COLUMN colour text;\n"

// A report has read the plants, a migration wants them for itself, and clients go
// on deleting. The report ends when each client has got through while both were
// there.
func TestUpGivesWayToClients(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	conn := pgtest.Connect(t, database.Owner)
	exec(t, conn, `INSERT INTO plants (name) SELECT 'fern' FROM generate_series(1, 30000)`)

	everybody, stop := deletions(t, database, 1)
	everybody()
	t.Logf("no migration:         %s", describe(stop()))

	began := time.Now()
	pid, release := hold(t, database)
	everybody, stop = deletions(t, database, 10_001)
	var report sync.WaitGroup
	retried := 0
	seen := events{on: func(e migrate.Event) {
		if e.Kind != migrate.Retrying {
			return
		}
		if retried++; retried == 1 {
			report.Go(func() {
				everybody()
				release()
			})
		}
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	changes, err := extended(t, map[string]string{"00101_colour.sql": takesAccessExclusive}).
		Up(ctx, database.Owner, migrate.Options{LockAttempts: 50, Notify: seen.notify})
	took := time.Since(began)
	report.Wait()
	waits := stop()
	t.Logf("migrate up:           %s; it took %s and %d attempts", describe(waits), took.Round(time.Millisecond), len(seen.of(migrate.Retrying))+1)
	if err != nil || len(changes) != 1 {
		t.Errorf("Up = %v, %v; want the one migration applied once the report was over", changes, err)
	}
	blocked := seen.of(migrate.Blocked)
	if len(blocked) == 0 || len(seen.of(migrate.Retrying)) == 0 {
		t.Fatalf("events %v, want one of Blocked and one of Retrying", seen.all)
	}
	got := blocked[0].Blockers[0]
	if age := got.Age; age <= 0 || age > took {
		t.Errorf("the blocker's transaction is %s old, want up to %s", age, took)
	}
	got.Age = 0
	want := migrate.Blocker{PID: int32(pid), Application: "report", User: "plantstore_owner", State: "idle in transaction",
		Query: "SELECT count(*) FROM plants -- " + strings.Repeat("long ", 9) + "lon…"}
	if diff := cmp.Diff(want, got); diff != "" || blocked[0].Lock != "ACCESS EXCLUSIVE on public.plants" {
		t.Errorf("waits for %s; blocker (-want +got):\n%s", blocked[0].Lock, diff)
	}

	// What everybody does who has no lock_timeout.
	_, release = hold(t, database)
	report.Go(func() { time.Sleep(3 * time.Second); release() })
	_, stop = deletions(t, database, 20_001)
	exec(t, conn, `ALTER TABLE plants ADD COLUMN size text`)
	report.Wait()
	t.Logf("without lock_timeout: %s (the report only took 3 s)", describe(stop()))
}

// The server's deadlock_timeout, after which autovacuum gives way, is a second.
func TestLockTimeout(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	set := extended(t, map[string]string{
		"00101_a.sql": "-- +goose Up\nCREATE TABLE public.a AS SELECT 1 AS n, current_setting('lock_timeout') AS value;\nSET lock_timeout = '7s';\n",
		"00102_b.sql": "-- +goose Up\nINSERT INTO public.a SELECT 2, current_setting('lock_timeout');\n",
	})
	for timeout, want := range map[time.Duration]string{
		0: "1100ms", time.Second: "1100ms", 999 * time.Millisecond: "999ms", 2 * time.Second: "2s",
	} {
		if _, err := set.Up(t.Context(), database.Owner, migrate.Options{LockTimeout: timeout}); err != nil {
			t.Fatal(err)
		}
		conn := pgtest.Connect(t, database.Owner)
		if diff := cmp.Diff([]string{want, want}, query(t, conn, `SELECT value FROM a ORDER BY n`)); diff != "" {
			t.Errorf("LockTimeout %s: lock_timeout of two migrations (-want +got):\n%s", timeout, diff)
		}
		exec(t, conn, `DROP TABLE a; DELETE FROM goose_db_version WHERE version_id > 100`)
	}
}

func TestUpGivesUp(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	pid, release := hold(t, database)
	defer release()
	var seen events
	set := extended(t, map[string]string{"00101_a.sql": "-- +goose Up\nCREATE TABLE public.a ();\n", "00102_colour.sql": takesAccessExclusive})
	changes, err := set.Up(t.Context(), database.Owner,
		migrate.Options{LockTimeout: 5 * time.Second, LockAttempts: 3, Notify: seen.notify})
	failed, ok := errors.AsType[*migrate.FailedError](err)
	blocked, blockedToo := errors.AsType[*migrate.BlockedError](err)
	if !ok || failed.Name != "00102_colour.sql" || !blockedToo || blocked.Attempts != 3 || blocked.Blockers[0].PID != int32(pid) {
		t.Errorf("Up: %v, want a FailedError of 00102 with a BlockedError of 3 attempts and pid %d", err, pid)
	}
	if len(changes) != 1 || len(seen.of(migrate.Retrying)) != 2 {
		t.Errorf("changes %v and %d retries, want 00101 applied, and 2", changes, len(seen.of(migrate.Retrying)))
	}
	if got := len(plan(t, set, database.Owner).Pending); got != 1 {
		t.Errorf("%d pending, want 1", got)
	}
}

// To connect may take longer than a look may. Who is in the way is told all the same.
func TestUpGivesUpWhereConnectingIsSlow(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	pid, release := hold(t, database)
	defer release()
	to, err := url.Parse(pgtest.Pooler(t, database.Owner, pgtest.SessionMode))
	if err != nil {
		t.Fatal(err)
	}
	var clients atomic.Int64
	slow := pgtest.Proxy(t, to.String(), func(client net.Conn) {
		if clients.Add(1) > 1 { // the first is the run's own
			time.Sleep(1500 * time.Millisecond)
		}
		server, err := net.Dial("tcp", to.Host)
		if err != nil {
			t.Error(err)
			return
		}
		defer server.Close()
		go func() { _, _ = io.Copy(server, client); server.Close() }()
		_, _ = io.Copy(client, server)
	})
	_, err = extended(t, map[string]string{"00101_colour.sql": takesAccessExclusive}).
		Up(t.Context(), slow, migrate.Options{LockTimeout: 5 * time.Second, LockAttempts: 2})
	blocked, ok := errors.AsType[*migrate.BlockedError](err)
	if !ok || len(blocked.Blockers) != 1 || blocked.Blockers[0].PID != int32(pid) {
		t.Errorf("Up: %v, want it to name pid %d", err, pid)
	}
}

// A role that may not see what others do still learns which session it is.
func TestHiddenBlocker(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	conn := pgtest.Connect(t, database.Super)
	pid := conn.PgConn().PID()
	exec(t, conn, `BEGIN; LOCK TABLE plants IN ACCESS SHARE MODE`)
	_, err := extended(t, map[string]string{"00101_colour.sql": takesAccessExclusive}).
		Up(t.Context(), database.Owner, migrate.Options{LockTimeout: 15 * time.Second, LockAttempts: 1})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("blocked by pid %d", pid)) {
		t.Errorf("Up: %v, want it to name pid %d", err, pid)
	}
}

func TestBlockerText(t *testing.T) {
	t.Parallel()
	tests := []struct {
		blocker migrate.Blocker
		want    string
	}{
		{migrate.Blocker{}, "a prepared transaction (see pg_prepared_xacts)"},
		{migrate.Blocker{PID: 7, Hidden: true}, "pid 7, a process of the server itself; autovacuum gives way once we have waited for deadlock_timeout"},
		{migrate.Blocker{PID: 7, User: "shop", Hidden: true}, "pid 7, user shop (age and query are hidden: grant our role pg_read_all_stats)"},
		{migrate.Blocker{PID: 7, Application: "psql", User: "bob", State: "idle in transaction", Age: 62040 * time.Millisecond, Query: "SELECT 1"},
			"pid 7, application psql, user bob, idle in transaction, transaction open for 1m2s: SELECT 1"},
	}
	for _, tt := range tests {
		if got := tt.blocker.String(); got != tt.want {
			t.Errorf("got  %q\nwant %q", got, tt.want)
		}
	}
	for lock, want := range map[string]string{
		"":                              "no lock within 1s, in 2 attempts: rolled back; blocked by a prepared transaction (see pg_prepared_xacts)",
		"SHARE on a":                    "no lock SHARE on a within 1s, in 2 attempts: rolled back; blocked by a prepared transaction (see pg_prepared_xacts)",
		"the end of older transactions": "older transactions did not end within 1s, in 2 attempts: rolled back; blocked by a prepared transaction (see pg_prepared_xacts)",
	} {
		if got := (&migrate.BlockedError{Lock: lock, Blockers: []migrate.Blocker{{}}, Attempts: 2, Timeout: time.Second}).Error(); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
	if got, want := migrate.OneLine("SELECT\t1;\n\x1b[31m  --\x00é"), "SELECT 1; [31m --é"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

const sleeps = `-- +goose Up
CREATE TABLE public.a ();
SELECT pg_sleep(CASE WHEN to_regclass('public.go_on') IS NULL THEN 600 ELSE 0 END);
`

// sleeping finds who does.
const sleeping = `SELECT pid::text FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND wait_event = 'PgSleep'`

// However a run ends, the error says how the database stands, nothing goes on
// on the server, and a second run does the rest.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name      string
		migration string
		interrupt func(*testing.T, *pgx.Conn, context.CancelFunc)
		want      migrate.InterruptedState
		trouble   []string
	}{
		{"in a transaction", sleeps, func(_ *testing.T, _ *pgx.Conn, cancel context.CancelFunc) { cancel() }, migrate.Untouched, []string{}},
		{"connection lost for good", sleeps, func(t *testing.T, conn *pgx.Conn, _ context.CancelFunc) {
			exec(t, conn, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 0', current_database()); END $$`)
			exec(t, conn, `SELECT pg_terminate_backend(pid::int) FROM (`+sleeping+`) s`)
		}, migrate.Undecided, []string{}},
		{"after it was committed", "-- +goose NO TRANSACTION\n-- +goose Up\nINSERT INTO public.goose_db_version (version_id, is_applied) VALUES (101, true);\nSELECT pg_sleep(600);\n",
			func(_ *testing.T, _ *pgx.Conn, cancel context.CancelFunc) { cancel() }, migrate.Complete, []string{}},
		{"connection lost", sleeps, func(t *testing.T, conn *pgx.Conn, _ context.CancelFunc) {
			exec(t, conn, `SELECT pg_terminate_backend(pid::int) FROM (`+sleeping+`) s`)
		}, migrate.Untouched, []string{}},
		{"outside a transaction", "-- +goose NO TRANSACTION\n-- +goose Up\nDROP INDEX CONCURRENTLY IF EXISTS public.by_name;\n" +
			"CREATE INDEX CONCURRENTLY by_name ON public.plants (name);\n" + strings.TrimPrefix(sleeps, "-- +goose Up\nCREATE TABLE public.a ();\n"),
			func(_ *testing.T, _ *pgx.Conn, cancel context.CancelFunc) { cancel() }, migrate.Incomplete,
			[]string{"invalid_index: index public.by_name on public.plants is INVALID: a CREATE INDEX CONCURRENTLY of it was interrupted; it slows writes and serves no query"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			super := pgtest.Connect(t, database.Super)
			waiting := sleeping
			if tt.want == migrate.Incomplete {
				// CREATE INDEX CONCURRENTLY waits for this one.
				_, release := hold(t, database)
				defer release()
				waiting = `SELECT pid::text FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND wait_event = 'virtualxid'`
			}
			set := extended(t, map[string]string{"00101_a.sql": tt.migration})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			var seen events
			go func() {
				_, err := set.Up(ctx, database.Owner, migrate.Options{LockTimeout: time.Minute, Notify: seen.notify})
				ended <- err
			}()
			for len(query(t, super, waiting)) == 0 || tt.want == migrate.Incomplete && len(seen.of(migrate.Blocked)) == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			if blocked := seen.of(migrate.Blocked); len(blocked) > 0 && blocked[0].Lock != "the end of older transactions" {
				t.Errorf("blocked: %+v, want it to wait for the end of older transactions", blocked[0])
			}
			tt.interrupt(t, super, cancel)
			err := <-ended
			interrupted, ok := errors.AsType[*migrate.InterruptedError](err)
			if !ok || interrupted.Name != "00101_a.sql" || interrupted.State != tt.want ||
				err.Error() != fmt.Sprintf("interrupted: migration 00101_a.sql is %s", tt.want) || errors.Is(err, context.Canceled) != (ctx.Err() != nil) {
				t.Errorf("Up: %v; want 00101_a.sql to be %s", err, tt.want)
			}
			exec(t, super, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT -1', current_database()); END $$`)
			if left := query(t, super, waiting); len(left) != 0 {
				t.Errorf("left on the server: %q", left)
			}
			left := 1
			if tt.want == migrate.Complete {
				left = 0
			}
			p := plan(t, set, database.Owner)
			if diff := cmp.Diff(tt.trouble, troubles(p)); diff != "" || len(p.Pending) != left {
				t.Errorf("%d pending, want %d; trouble (-want +got):\n%s", len(p.Pending), left, diff)
			}

			exec(t, super, `CREATE TABLE go_on ();
				SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'report'`)
			if changes, err := set.Up(t.Context(), database.Owner, migrate.Options{}); err != nil || len(changes) != left {
				t.Errorf("second Up = %v, %v; want what was left", changes, err)
			}
			if p := plan(t, set, database.Owner); len(p.Pending) != 0 || len(p.Trouble) != 0 {
				t.Errorf("after the second Up: pending %v, trouble %v; want none", p.Pending, p.Trouble)
			}
		})
	}
}

// Down takes several back as one: what was done before the interruption is not there either.
func TestInterruptedDown(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	super := pgtest.Connect(t, database.Super)
	set := extended(t, map[string]string{
		"00101_a.sql": "-- +goose Up\nSELECT 1;\n-- +goose Down\nSELECT pg_sleep(600);\n",
		"00102_b.sql": "-- +goose Up\nSELECT 1;\n-- +goose Down\nCREATE TABLE public.b ();\n",
	})
	if _, err := set.Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var interrupter sync.WaitGroup
	defer interrupter.Wait()
	defer cancel()
	interrupter.Go(func() {
		for ctx.Err() == nil && len(query(t, super, sleeping)) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	})
	changes, err := set.DownTo(ctx, database.Owner, 100, migrate.Options{})
	interrupted, ok := errors.AsType[*migrate.InterruptedError](err)
	if !ok || interrupted.Name != "00101_a.sql" || interrupted.State != migrate.Untouched || len(changes) != 0 {
		t.Errorf("DownTo(100) = %v, %v; want nothing, and 00101 rolled back", changes, err)
	}
	if p := plan(t, set, database.Owner); len(p.Pending) != 0 {
		t.Errorf("pending %v, want none", p.Pending)
	}
}

func TestSecondRunWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	set := extended(t, map[string]string{"00101_a.sql": sleeps})
	super := pgtest.Connect(t, database.Super)
	first := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := set.Up(ctx, database.Owner, migrate.Options{})
		first <- err
	}()
	for len(query(t, super, sleeping)) == 0 {
		time.Sleep(10 * time.Millisecond)
	}

	impatient, leave := context.WithCancel(t.Context())
	third := events{on: func(migrate.Event) { leave() }}
	_, err := set.Up(impatient, database.Owner, migrate.Options{Notify: third.notify})
	if !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "interrupted while another run was at work: nothing was changed") {
		t.Errorf("a run that is interrupted while it waits: %v, want that nothing was changed", err)
	}

	second := events{on: func(e migrate.Event) {
		if e.Kind == migrate.Queued {
			cancel()
		}
	}}
	exec(t, super, `CREATE TABLE go_on ()`) // the second does not sleep
	changes, err := set.Up(t.Context(), database.Owner, migrate.Options{Notify: second.notify})
	if err != nil || len(changes) != 1 {
		t.Errorf("second Up = %v, %v; want it to do what the first did not", changes, err)
	}
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("first Up: %v, want it cancelled", err)
	}
	queued := second.of(migrate.Queued)
	if len(queued) == 0 || queued[0].Blockers[0].Application != "plantstore migrate" || queued[0].Blockers[0].User != "plantstore_owner" {
		t.Errorf("queued %v, want the first run named", queued)
	}
}

// What PostgreSQL warns of is passed on, whatever the database's settings are, and how
// long it took.
func TestWarningsArePassedOn(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	super := pgtest.Connect(t, database.Super)
	for _, setting := range []string{"client_min_messages = error", "standard_conforming_strings = off"} {
		exec(t, super, "ALTER DATABASE "+database.Name+" SET "+setting)
	}
	var seen events
	set := extended(t, map[string]string{"00101_a.sql": "-- +goose Up\n-- +goose StatementBegin\n" +
		"DO $$ BEGIN PERFORM pg_sleep(0.05); RAISE WARNING 'look' USING HINT = 'There.'; RAISE NOTICE 'not this'; END $$;\n-- +goose StatementEnd\n"})
	changes, err := set.Up(t.Context(), database.Owner, migrate.Options{Notify: seen.notify})
	if err != nil {
		t.Fatal(err)
	}
	if finished := seen.of(migrate.Finished); len(changes) != 1 || len(finished) != 1 || changes[0].Took < 50*time.Millisecond || finished[0].Took != changes[0].Took {
		t.Errorf("changes %v, finished %v; want one that took 50 ms at least", changes, finished)
	}
	warned := seen.of(migrate.Warned)
	if len(warned) != 1 || warned[0].Warning != "look. There." {
		t.Errorf("warned %v, want one: look. There.", warned)
	}
}

// A run that can't learn what it has to know ends before it changes anything, and so does
// one whose lock timeout can't be set.
func TestARunThatCantAskEnds(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		`REVOKE EXECUTE ON FUNCTION pg_catalog.pg_backend_pid() FROM PUBLIC`:                "ask for the server's process: ",
		`REVOKE EXECUTE ON FUNCTION pg_catalog.set_config(text, text, boolean) FROM PUBLIC`: "pin the search path: ",
		`REVOKE EXECUTE ON FUNCTION pg_catalog.pg_try_advisory_lock(bigint) FROM PUBLIC`:    "take the migration lock: ",
		`REVOKE SELECT ON pg_catalog.pg_settings FROM PUBLIC`:                               "read deadlock_timeout: ",
		`REVOKE SELECT ON pg_catalog.pg_roles FROM PUBLIC`:                                  "look who we are: ",
		`REVOKE EXECUTE ON FUNCTION pg_catalog.to_regclass(text) FROM PUBLIC`:               "look whose the tables are: ",
		`REVOKE EXECUTE ON FUNCTION pg_catalog.has_table_privilege(oid, text) FROM PUBLIC`:  "look for goose_db_version: ",
		`REVOKE SELECT ON public.goose_db_version FROM plantstore_owner`:                    "read goose_db_version: ",
		`REVOKE SELECT ON pg_catalog.pg_index FROM PUBLIC`:                                  "look for invalid indexes: ",
		`TRUNCATE public.plantstore_migrations;
			REVOKE INSERT ON public.plantstore_migrations FROM plantstore_owner`: "record checksums: ",
		`TRUNCATE public.plantstore_migrations;
			REVOKE DELETE ON public.plantstore_migrations FROM plantstore_owner`: "record checksums: ",
		`SELECT`: "migration 00101_a.sql: ERROR: invalid value for parameter \"lock_timeout\"",
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			super := pgtest.Connect(t, database.Super)
			exec(t, super, sql)
			options := migrate.Options{}
			if sql == `SELECT` {
				options.LockTimeout = 30 * 24 * time.Hour
			}
			set := extended(t, map[string]string{"00101_a.sql": "-- +goose Up\nCREATE TABLE public.a ();\n"})
			changes, err := set.Up(t.Context(), database.Owner, options)
			if err == nil || !strings.HasPrefix(err.Error(), want) || len(changes) != 0 {
				t.Errorf("Up = %v, %v; want nothing, and the error %q", changes, err, want)
			}
			if got := query(t, super, `SELECT 'a' FROM pg_class WHERE relname = 'a'`); len(got) != 0 {
				t.Error("the migration was applied")
			}
		})
	}
}

// What hinders is looked for before anything is changed. What counts is whether there is
// anything to do.
func TestHindrancesComeFirst(t *testing.T) {
	t.Parallel()
	down := func(set migrate.Set, url string, o migrate.Options) ([]migrate.Change, error) {
		return set.DownTo(t.Context(), url, 100, o)
	}
	up := func(set migrate.Set, url string, o migrate.Options) ([]migrate.Change, error) {
		return set.Up(t.Context(), url, o)
	}
	lookFails := errors.New("no look")
	hindrance := []migrate.Trouble{{Kind: migrate.Hindrance, Message: "a rule", Remedy: "Drop it."}}
	caution := []migrate.Trouble{{Kind: migrate.Caution, Message: "a trigger", Remedy: "Look at it."}}
	database := pgtest.New(t)
	for _, tt := range []struct {
		name   string
		run    func(migrate.Set, string, migrate.Options) ([]migrate.Change, error)
		asked  bool
		found  []migrate.Trouble
		err    error
		want   string // the error
		warned string
		done   int
	}{
		{"up, no look", up, true, nil, lookFails, "look for hindrances: no look", "", 0},
		{"up, hindered", up, true, hindrance, nil, "nothing was changed: a rule", "", 0},
		{"up, with caution", up, true, caution, nil, "", "a trigger. Look at it.", 1},
		{"nothing to apply, hindered", up, true, hindrance, nil, "", "a rule. Drop it.", 0},
		{"nothing to apply, with caution", up, true, caution, nil, "", "", 0},
		{"nothing to apply, no look", up, true, nil, lookFails, "look for hindrances: no look", "", 0},
		{"down, no look", down, true, nil, lookFails, "look for hindrances: no look", "", 0},
		{"down, hindered", down, true, hindrance, nil, "nothing was changed: a rule", "", 0},
		{"down, with caution", down, true, caution, nil, "", "a trigger. Look at it.", 1},
		{"nothing to take back", down, false, hindrance, nil, "", "", 0},
	} {
		var seen events
		set := extended(t, map[string]string{"00101_a.sql": "-- +goose Up\nSELECT 1;\n"})
		asked := false
		set.Hindrances = func(context.Context, pgx.Tx, bool, []migrate.Migration) ([]migrate.Trouble, error) {
			asked = true
			return tt.found, tt.err
		}
		changes, err := tt.run(set, database.Owner, migrate.Options{Notify: seen.notify})
		if (err == nil) != (tt.want == "") || err != nil && err.Error() != tt.want || len(changes) != tt.done {
			t.Errorf("%s: %v, %v; want %d and the error %q", tt.name, changes, err, tt.done, tt.want)
		}
		warned := ""
		for _, e := range seen.of(migrate.Warned) {
			warned += e.Warning
		}
		if warned != tt.warned || asked != tt.asked {
			t.Errorf("%s: warned of %q and asked: %v; want %q, %v", tt.name, warned, asked, tt.warned, tt.asked)
		}
		p, err := set.Plan(t.Context(), database.Owner)
		if tt.err != nil {
			if err == nil || err.Error() != tt.want {
				t.Errorf("%s: plan with the error %v, want %s", tt.name, err, tt.want)
			}
			continue
		}
		if all := append(p.Trouble, p.Cautions...); err != nil || len(p.Trouble) > 1 || !slices.Equal(all, tt.found) ||
			len(p.Cautions) != 0 && p.Cautions[0].Kind != migrate.Caution {
			t.Errorf("%s: plan with trouble %v and cautions %v, %v; want %v", tt.name, p.Trouble, p.Cautions, err, tt.found)
		}
	}
}

// A run where nothing can be written ends before it looks for anything else, if it has something to do.
func TestARunOnAReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	const readOnly = "default_transaction_read_only=on"
	empty, migrated, unrecorded := pgtest.Empty(t), pgtest.New(t), pgtest.New(t)
	exec(t, pgtest.Connect(t, unrecorded.Super), `TRUNCATE plantstore_migrations`)
	for name, url := range map[string]func(pgtest.Database) string{
		"the owner":   func(d pgtest.Database) string { return d.Owner },
		"a superuser": func(d pgtest.Database) string { return d.Super },
	} {
		run := func(database pgtest.Database, do func(migrate.Set, context.Context, string, migrate.Options) ([]migrate.Change, error)) error {
			set := migrate.Service()
			set.Hindrances = func(context.Context, pgx.Tx, bool, []migrate.Migration) ([]migrate.Trouble, error) { return nil, nil }
			_, err := do(set, t.Context(), pgtest.WithParameters(url(database), readOnly), migrate.Options{})
			return err
		}
		for what, err := range map[string]error{
			"Up of an empty database":     run(empty, migrate.Set.Up),
			"Up with nothing recorded":    run(unrecorded, migrate.Set.Up),
			"Down of a migrated database": run(migrated, migrate.Set.Down),
		} {
			if !errors.Is(err, migrate.ErrReadOnly) {
				t.Errorf("%s, %s: %v, want ErrReadOnly", name, what, err)
			}
		}
		if err := run(migrated, migrate.Set.Up); err != nil {
			t.Errorf("%s, nothing to do: %v, want none", name, err)
		}
	}
}

// A version is a number, not a moment: what was applied later may have a lower one.
func TestDownToAMigrationThatCameLate(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	files := map[string]string{"00101_a.sql": "-- +goose Up\nSELECT 1;\n", "00102_b.sql": "-- +goose Up\nSELECT 1;\n", "00103_c.sql": "-- +goose Up\nSELECT 1;\n"}
	set := extended(t, files)
	exec(t, pgtest.Connect(t, database.Super), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (102, true), (101, true), (103, true)`)
	changes, err := set.DownTo(t.Context(), database.Owner, 101, migrate.Options{})
	var names []string
	for _, c := range changes {
		names = append(names, c.Name)
	}
	if want := []string{"00103_c.sql", "00102_b.sql"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("DownTo(101) = %v, %v; want %v", names, err, want)
	}
}

func TestDownOfSomebodyElses(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	set := extended(t, map[string]string{"00101_a.sql": "-- +goose Up\nSELECT 1;\n"})
	if _, err := set.Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	_, err := migrate.Service().Down(t.Context(), database.Owner, migrate.Options{})
	if want := "migration 00101 is not part of this plantstore: take it back with the release that has it"; err == nil || err.Error() != want {
		t.Errorf("Down: %v, want %s", err, want)
	}
}

// The lock goes with the connection. Between two migrations as well, a run that has
// lost its connection does not get another one, without the lock.
func TestARunThatLostItsLockEnds(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	super := pgtest.Connect(t, database.Super)
	set := extended(t, map[string]string{
		"00101_a.sql": "-- +goose Up\nCREATE TABLE public.a ();\n", "00102_b.sql": "-- +goose Up\nCREATE TABLE public.b ();\n",
	})
	told := events{on: func(e migrate.Event) {
		if e.Kind == migrate.Finished {
			exec(t, super, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'plantstore migrate' AND datname = current_database()`)
			for len(query(t, super, `SELECT pid::text FROM pg_stat_activity WHERE application_name = 'plantstore migrate' AND datname = current_database()`)) > 0 {
				time.Sleep(time.Millisecond)
			}
		}
	}}
	changes, err := set.Up(t.Context(), database.Owner, migrate.Options{Notify: told.notify})
	if err == nil || len(changes) != 1 {
		t.Errorf("Up = %v, %v; want the first migration, and an error", changes, err)
	}
	if got := query(t, super, `SELECT to_regclass('public.b')::text WHERE to_regclass('public.b') IS NOT NULL`); len(got) != 0 {
		t.Error("the second migration was applied without the lock")
	}
}

// Where goose can't make its table, the reason is told, and not that of its second try.
func TestWhyGooseCannotMakeItsTable(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ event, does, want string }{
		"the table":         {"ddl_command_start", `RAISE EXCEPTION 'no tables today'`, "no tables today"},
		"the row of zeroes": {"ddl_command_end", `ALTER TABLE public.goose_db_version ADD CONSTRAINT positive CHECK (version_id > 0)`, `violates check constraint "positive"`},
	} {
		database := pgtest.Empty(t)
		exec(t, pgtest.Connect(t, database.Super), `CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN `+tt.does+`; END $$;
			CREATE EVENT TRIGGER refuse ON `+tt.event+` WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION refuse()`)
		if _, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Up: %v; want that it %s", name, err, tt.want)
		}
	}
}

// A run that can't record what others have applied ends before it applies more.
func TestChecksumsThatCannotBeRecorded(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]string{
		"recorded": `CREATE TRIGGER refuse BEFORE INSERT ON plantstore_migrations FOR EACH ROW EXECUTE FUNCTION refuse()`,
		// What an earlier run noted is to be taken back, as the table is there.
		"noted": `COMMENT ON TABLE goose_db_version IS '{"plantstore": []}';
			CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('COMMENT') EXECUTE FUNCTION refuse_command()`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			exec(t, pgtest.Connect(t, database.Super), `TRUNCATE plantstore_migrations;
				CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''disk full''; END';
				CREATE FUNCTION refuse_command() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''disk full''; END';`+refuse)
			set := extended(t, map[string]string{"00101_a.sql": "-- +goose Up\nCREATE TABLE public.a ();\n"})
			changes, err := set.Up(t.Context(), database.Owner, migrate.Options{})
			if err == nil || !strings.Contains(err.Error(), "disk full") || len(changes) != 0 {
				t.Errorf("Up = %v, %v; want nothing, and the error of the record", changes, err)
			}
		})
	}
}
