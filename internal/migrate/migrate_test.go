package migrate

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/localpg"
	"plantstore/internal/pgtest"
	"plantstore/migrations"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestMigrateUpDownAndUpAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	var messages []string
	up, err := Up(t.Context(), db.Owner, Options{Notify: func(s string) { messages = append(messages, s) }})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(All(), up); diff != "" {
		t.Errorf("applied (-want +got):\n%s", diff)
	}
	if len(messages) != len(up) || !strings.HasPrefix(messages[0], "applied 00001_plants.sql in ") {
		t.Errorf("messages: got %q, want one for each file", messages)
	}
	before := schema(t, db)

	down, err := Down(t.Context(), db.Owner, OneStep, Options{})
	if want := []Migration{All()[len(All())-1]}; err != nil || !slices.Equal(down, want) {
		t.Errorf("one step down: got %v, %v, want %v", down, err, want)
	}
	if p, err := Plan(t.Context(), db.Owner); err != nil || !strings.Contains(p.Summary(), ": pending are 1\n") || !strings.Contains(p.Summary(), "\nrole plantstore_owner will own what they create\n") || !strings.HasSuffix(p.Summary(), "runs it\n") {
		t.Errorf("plan after one step down: got %v, %+v, want one migration with its owner and the commands", err, p)
	}
	if down, err = Down(t.Context(), db.Owner, 0, Options{}); err != nil || len(down) != len(All())-1 {
		t.Errorf("all the way down: got %v, %v, want the other migrations", down, err)
	}
	if got := query(t, db.Super, `SELECT relname FROM pg_class WHERE relnamespace IN (to_regnamespace('public'), to_regnamespace('plantstore')) AND relkind = 'r'
		UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = to_regnamespace('plantstore')`); !slices.Equal(got, []string{"goose_db_version"}) {
		t.Errorf("left after all went down: got %v, want goose's table", got)
	}
	if up, err = Up(t.Context(), db.Owner, Options{}); err != nil || len(up) != len(All()) {
		t.Errorf("up again: got %v, %v, want all migrations", up, err)
	}
	if diff := cmp.Diff(before, schema(t, db)); diff != "" {
		t.Errorf("schema after up, down and up (-first +second):\n%s", diff)
	}
	if up, err = Up(t.Context(), db.Owner, Options{}); err != nil || len(up) != 0 {
		t.Errorf("up with nothing to do: got %v, %v, want nothing", up, err)
	}
}

// schema returns columns, constraints, functions, triggers and rights.
func schema(t *testing.T, db pgtest.Database) []string {
	t.Helper()
	return query(t, db.Super, `
		WITH tables AS (SELECT * FROM pg_class WHERE relnamespace IN ('public'::regnamespace, 'plantstore'::regnamespace) AND relkind = 'r')
		SELECT format('%s.%s %s %s %s', relname, attname, format_type(atttypid, atttypmod), attnotnull, attacl) FROM tables c JOIN pg_attribute a ON attrelid = c.oid WHERE attnum > 0
		UNION ALL SELECT relname || ' ' || coalesce(relacl::text, '') FROM tables
		UNION ALL SELECT conname || ' ' || pg_get_constraintdef(k.oid) FROM pg_constraint k JOIN tables c ON c.oid = conrelid
		UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN tables c ON c.oid = indrelid
		UNION ALL SELECT pg_get_functiondef(oid) || coalesce(proacl::text, '') FROM pg_proc WHERE pronamespace = 'plantstore'::regnamespace
		UNION ALL SELECT pg_get_triggerdef(g.oid) FROM pg_trigger g JOIN tables c ON c.oid = tgrelid WHERE NOT tgisinternal
		ORDER BY 1`)
}

// If one Down would lose rows, none is rolled back: without the trigger, plants would leave
// without a record.
func TestDownRefusesToLoseRows(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	owner := pgtest.Connect(t, db.Owner)
	for _, step := range []struct{ fill, empty, want string }{
		{`INSERT INTO plantstore.principals (name, budget, budget_period) VALUES ('a', 1, '1 day')`, `DELETE FROM plantstore.principals`, "plantstore.principals has budgets"},
		{`INSERT INTO plantstore.principals (name) VALUES ('a'); INSERT INTO plantstore.tokens (principal, digest, scopes) VALUES ('a', sha256(''), '{}')`,
			`DELETE FROM plantstore.tokens`, "plantstore.tokens has tokens"},
		{`INSERT INTO plantstore.cascaded (deletion_id, relation, key, content, literal) VALUES (1, 'plants', '1', '{}', '()')`, `DELETE FROM plantstore.cascaded`, "plantstore.cascaded has rows"},
		{`INSERT INTO plantstore.deletions (plant_id, deleted_by, idempotency_key, refused) VALUES (1, 'a', 'k', 40401)`, `DELETE FROM plantstore.deletions`, "plantstore.deletions has entries"},
		{`INSERT INTO public.plants (name) VALUES ('fern')`, `DELETE FROM public.plants; DELETE FROM plantstore.deletions`, "public.plants has rows"},
	} {
		pgtest.Execute(t, owner, step.fill)
		done, err := Down(t.Context(), db.Owner, 0, Options{})
		if unmet, ok := errors.AsType[*UnmetError](err); !ok || len(unmet.Problems) != 1 || !strings.Contains(err.Error(), step.want) || len(done) > 0 {
			t.Errorf("down: got %v and %v, want %q and nothing rolled back", done, err, step.want)
		}
		pgtest.Execute(t, owner, step.empty)
	}
}

func TestLossesNameEachDroppedTable(t *testing.T) {
	t.Parallel()
	for _, m := range All() {
		text, err := migrations.Files.ReadFile(m.Name)
		if err != nil {
			t.Fatal(err)
		}
		_, down, _ := strings.Cut(string(text), "-- +goose Down\n")
		if losses[m.Version] == "" && strings.Contains(down, "DROP TABLE") {
			t.Errorf("%s: its Down drops a table, and losses in migrate.go has no query for its rows", m.Name)
		}
	}
}

func TestNewerDatabaseIsLeftAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pgtest.Execute(t, pgtest.Connect(t, db.Owner), `INSERT INTO plantstore.goose_db_version (version_id, is_applied) VALUES (99, true)`)
	if done, err := Up(t.Context(), db.Owner, Options{}); err != nil || len(done) > 0 {
		t.Errorf("up: got %v, %v, want nothing done", done, err)
	}
	_, err := Down(t.Context(), db.Owner, 0, Options{})
	if ahead, ok := errors.AsType[*AheadError](err); !ok || ahead.Version != 99 || ahead.Binary != Latest() {
		t.Errorf("down: got %v, want *AheadError with 99 and %d", err, Latest())
	}
	states, err := Status(t.Context(), db.Owner)
	if err != nil || len(states) != len(All())+1 {
		t.Fatalf("status: got %v, %v, want one more than %d", states, err, len(All()))
	}
	if last := states[len(All())]; !last.Unknown || last.Version != 99 || last.AppliedAt == nil {
		t.Errorf("the last state: got %+v, want an unknown version 99", last)
	}
	p, err := Plan(t.Context(), db.Owner)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.Summary(), fmt.Sprintf("database %s is at version 99, this plantstore at %d: a newer plantstore has migrated it\npublic.plants: %s\n", db.Name, Latest(), p.Plants); got != want {
		t.Errorf("plan: got %s, want %s", got, want)
	}
}

// A blocker is named after each attempt, and a migration that did not get its lock is rolled
// back. Those before it stay applied.
func TestBlockedMigrationNamesItsBlocker(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	pgtest.Execute(t, pgtest.Connect(t, db.Owner), `CREATE TABLE plants (id bigint PRIMARY KEY); INSERT INTO plants VALUES (1)`)
	blocker := pgtest.Connect(t, pgtest.WithParameters(db.Owner, "application_name=nightly"))
	pgtest.Execute(t, blocker, `BEGIN; DELETE FROM plants`)
	names := func(s string) bool {
		return strings.Contains(s, `it is held by pid `) && strings.Contains(s, `application "nightly", role plantstore_owner, in a transaction since 20`)
	}
	_, err := Up(t.Context(), db.Owner, Options{LockTimeout: 100 * time.Millisecond, LockAttempts: 2})
	blocked, ok := errors.AsType[*BlockedError](err)
	if !ok || blocked.Name != "00004_record_deletions.sql" || blocked.Attempts != 2 || !names(err.Error()) {
		t.Errorf("got %v, want *BlockedError of 00004_record_deletions.sql after 2 attempts, with the blocker", err)
	}
	if p, err := Plan(t.Context(), db.Owner); err != nil || p.Version != 3 {
		t.Errorf("plan afterwards: got %+v, %v, want version 3", p, err)
	}

	var messages []string
	if _, err := Up(t.Context(), db.Owner, Options{LockTimeout: 100 * time.Millisecond, LockAttempts: 1000, Notify: func(s string) {
		if messages = append(messages, s); len(messages) == 1 {
			pgtest.Execute(t, blocker, `ROLLBACK`)
		}
	}}); err != nil {
		t.Errorf("up with a blocker that ends: %v", err)
	}
	if len(messages) < 2 || !strings.HasPrefix(messages[0], "00004_record_deletions.sql did not get its lock (attempt 1 of 1000)") || !names(messages[0]) {
		t.Errorf("messages: got %q, want the blocker in the first", messages)
	}
}

// The pauses between attempts grow, so that ten attempts outlast a transaction of half a minute.
func TestPausesBetweenAttempts(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	pgtest.Execute(t, pgtest.Connect(t, db.Owner), `CREATE TABLE plants (id bigint PRIMARY KEY); INSERT INTO plants VALUES (1)`)
	pgtest.Execute(t, pgtest.Connect(t, db.Owner), `BEGIN; DELETE FROM plants`)
	now := time.Now()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(now)) // a bubble begins in the year 2000
		var got []time.Duration
		var last time.Time
		_, err := Up(t.Context(), db.Owner, Options{LockTimeout: 20 * time.Millisecond, LockAttempts: 13, Notify: func(s string) {
			if !last.IsZero() {
				got = append(got, time.Since(last))
			}
			if strings.Contains(s, "did not get its lock") {
				last = time.Now()
			}
		}})
		var want []time.Duration
		for pause := 10 * time.Millisecond; pause < 10*time.Second; pause *= 2 {
			want = append(want, pause)
		}
		if diff := cmp.Diff(append(want, 10*time.Second), got); diff != "" {
			t.Errorf("%v; pauses (-want +got):\n%s", err, diff)
		}
	})
}

// The plan, Up and the migration file itself refuse an unfit table.
func TestUnfitTableIsRefused(t *testing.T) {
	t.Parallel()
	const want = "public.plants has row level security: a hidden plant would be answered as missing"
	db := pgtest.Empty(t)
	owner := pgtest.Connect(t, db.Owner)
	pgtest.Execute(t, owner, `CREATE TABLE plants (id bigint PRIMARY KEY); ALTER TABLE plants ENABLE ROW LEVEL SECURITY`)
	p, err := Plan(t.Context(), db.Owner)
	if err != nil || !slices.Equal(p.Problems, []string{want}) || !strings.Contains(p.Summary(), "\nproblem: "+want+"\n") {
		t.Errorf("plan: got %+v, %v, want the problem %q", p, err, want)
	}
	if _, err := Up(t.Context(), db.Owner, Options{}); err == nil || err.Error() != want {
		t.Errorf("up: got %v, want %s", err, want)
	}
	_, err = owner.Exec(t.Context(), p.Pending[0].SQL)
	if err == nil || !strings.Contains(err.Error(), "the table cannot be adopted: "+want) {
		t.Errorf("the file: got %v, want it refused with %q", err, want)
	}
}

// A blocker of another role is named without its times. Only Down waits for sessions that read.
func TestBlockersOfOtherRolesAreNamed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pgtest.Execute(t, pgtest.Connect(t, db.Super), `BEGIN; LOCK TABLE plants IN ACCESS SHARE MODE`)
	conn := pgtest.Connect(t, db.Owner)
	for up, want := range map[bool]string{true: "", false: "role postgres, since when is hidden from this role"} {
		got, err := tableBlockers(t.Context(), conn, up)
		if names := strings.Join(got, "; "); err != nil || !strings.HasSuffix(names, want) || (names == "") != (want == "") {
			t.Errorf("blockers, up %v: got %q, %v, want %q", up, names, err, want)
		}
	}
}

func TestMigrationWaitsForAnother(t *testing.T) {
	t.Parallel()
	const lock = "4097083626" // of goose
	db := pgtest.New(t)
	other := pgtest.Connect(t, pgtest.WithParameters(db.Owner, "application_name=goose"))
	pgtest.Execute(t, other, `SELECT pg_advisory_lock(`+lock+`)`)
	var first string
	if _, err := Down(t.Context(), db.Owner, OneStep, Options{Notify: func(s string) {
		if first == "" {
			first = s
			pgtest.Execute(t, other, `SELECT pg_advisory_unlock(`+lock+`)`)
		}
	}}); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(first, "another migration is under way") || !strings.Contains(first, `application "goose"`) {
		t.Errorf("first message: got %q, want the other migration", first)
	}
}

func TestMigrationThroughAPoolerIsRefused(t *testing.T) {
	t.Parallel()
	url := pgtest.Pooler(t, pgtest.Empty(t).Owner)
	if _, err := Up(t.Context(), url, Options{}); !errors.Is(err, ErrPooler) {
		t.Errorf("up: got %v, want ErrPooler", err)
	}
	if _, err := Down(t.Context(), url, 0, Options{}); !errors.Is(err, ErrPooler) {
		t.Errorf("down: got %v, want ErrPooler", err)
	}
	if p, err := Plan(t.Context(), url); err != nil || !slices.Equal(p.Problems, []string{ErrPooler.Error()}) {
		t.Errorf("plan: got %+v, %v, want ErrPooler as a problem", p, err)
	}
}

// A plan names its changes to an adopted table. psql runs its script, with the same result as
// the migrations. Down leaves the table and its rows.
func TestPlanOfAnAdoptedTable(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	owner := pgtest.Connect(t, db.Owner)
	pgtest.Execute(t, owner, `CREATE TABLE plants (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, name text NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
		INSERT INTO plants (name) SELECT 'fern' FROM generate_series(1, 1500); ANALYZE plants;
		CREATE FUNCTION hide() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER "soft delete" BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION hide();
		CREATE TRIGGER audit AFTER DELETE ON plants FOR EACH ROW EXECUTE FUNCTION hide();
		CREATE TRIGGER stamp BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION hide()`)
	p, err := Plan(t.Context(), db.Owner)
	if err != nil {
		t.Fatal(err)
	}
	var files strings.Builder
	for _, m := range p.Pending {
		fmt.Fprintf(&files, "  %-30s locks: %s\n", m.Name, m.Locks)
	}
	want := fmt.Sprintf("database %s is at version 0, this plantstore at %d: pending are %d\n", db.Name, Latest(), len(All())) + files.String() + `role plantstore_owner will own what they create
public.plants: about 1500 rows, SIZE
advice: trigger "soft delete" fires before a plant is deleted: it can refuse, or handle the deletion in its own way, and the service then answers 409
'plantstore migrate plan --sql' prints the SQL, 'plantstore migrate up' runs it
`
	_, size, _ := strings.Cut(p.Plants, "rows, ")
	if diff := cmp.Diff(strings.Replace(want, "SIZE", size, 1), p.Summary()); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}

	script := p.SQL()
	p, err = Plan(t.Context(), db.Super)
	if want := "advice: role postgres is a superuser, and so are the functions that it creates: migrate as an ordinary role\nadvice: role postgres migrates, although there is a role plantstore_owner\n"; err != nil || !strings.Contains(p.Summary(), want) {
		t.Errorf("plan of a superuser: got %s, %v, want %s", p.Summary(), err, want)
	}

	psql := exec.CommandContext(t.Context(), "psql", "-X", "-q", db.Owner)
	psql.Stdin = strings.NewReader(script)
	if out, err := psql.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
	pgtest.Execute(t, owner, `DROP FUNCTION hide() CASCADE`)
	if diff := cmp.Diff(schema(t, pgtest.New(t)), schema(t, db)); diff != "" {
		t.Errorf("schema (-by the migrations +by psql):\n%s", diff)
	}
	if p, err = Plan(t.Context(), db.Owner); err != nil || len(p.Pending) != 0 || p.Version != Latest() {
		t.Errorf("plan afterwards: got %+v, %v, want nothing pending", p, err)
	}
	if _, err := Down(t.Context(), db.Owner, 0, Options{}); err != nil {
		t.Errorf("down of what psql applied: %v", err)
	}
	if got := query(t, db.Owner, `SELECT count(*) FROM plants UNION ALL SELECT count(*) FROM pg_trigger WHERE tgrelid = 'plants'::regclass`); !slices.Equal(got, []string{"1500", "0"}) {
		t.Errorf("rows and triggers after down: got %v, want 1500 and 0", got)
	}
}

// A restore names the types of the columns, which takes USAGE on their schemas.
func TestPlanNamesTheSchemasOfTypes(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	super := pgtest.Connect(t, db.Super)
	pgtest.Execute(t, super, `CREATE SCHEMA "the kinds"; CREATE TYPE "the kinds".light AS ENUM ('sun'); CREATE SCHEMA gone; CREATE TYPE gone.light AS ENUM ('sun');
		CREATE TABLE plants (id bigint PRIMARY KEY, light "the kinds".light, lights "the kinds".light[], gone gone.light);
		ALTER TABLE plants DROP gone; ALTER TABLE plants OWNER TO plantstore_owner`)
	const grant = `GRANT USAGE ON SCHEMA "the kinds" TO plantstore_owner`
	for _, want := range [][]string{{"role plantstore_owner lacks rights: " + grant}, {}} {
		p, err := Plan(t.Context(), db.Owner)
		if err != nil || !slices.Equal(p.Problems, want) {
			t.Errorf("problems: got %+v, %v, want %q", p, err, want)
		}
		pgtest.Execute(t, super, grant)
	}
}

// One ordinary role owns its database, migrates it and serves, on a server that has neither of
// the service's roles. The table may have another owner: then the GRANTs that the plan asks for
// are enough. In the end NewStore makes both roles.
func TestOneRoleMigratesAndServes(t *testing.T) {
	t.Parallel()
	s, err := localpg.Start(t.Context(), localpg.Options{Settings: pgtest.Settings()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	maintenance := pgtest.Connect(t, s.URL("postgres", "postgres"))
	pgtest.Execute(t, maintenance, `CREATE ROLE store LOGIN; CREATE ROLE shop LOGIN`)
	for _, test := range []struct{ database, setUp string }{
		{"own", ``},
		{"others", `CREATE TABLE plants (id bigint PRIMARY KEY, name text); ALTER TABLE plants OWNER TO shop; ALTER DATABASE others OWNER TO postgres; REVOKE TEMPORARY ON DATABASE others FROM PUBLIC`},
		{"service", `CREATE TABLE plants (id bigint PRIMARY KEY, name text); ALTER TABLE plants OWNER TO shop; CREATE ROLE plantstore_app LOGIN`}, // which stays
	} {
		t.Run(test.database, func(t *testing.T) {
			pgtest.Execute(t, maintenance, `CREATE DATABASE `+test.database+` OWNER store`)
			super, url := pgtest.Connect(t, s.URL("postgres", test.database)), s.URL("store", test.database)
			pgtest.Execute(t, super, test.setUp)
			_, err := Up(t.Context(), url, Options{})
			if unmet, ok := errors.AsType[*UnmetError](err); ok && test.setUp != "" {
				for _, problem := range unmet.Problems {
					_, grant, _ := strings.Cut(problem, "role store lacks rights: ")
					pgtest.Execute(t, super, grant)
				}
				_, err = Up(t.Context(), url, Options{})
			} else if test.setUp != "" {
				t.Errorf("up without rights: got %v, want *UnmetError", err)
			}
			if err != nil {
				t.Fatalf("up: %v", err)
			}
			pgtest.Execute(t, super, `INSERT INTO plants (id, name) VALUES (1, 'fern')`)
			store := pgtest.Connect(t, url)
			pgtest.Execute(t, store, `BEGIN; SELECT set_config('plantstore.requests', '{{1},{alice},{r},{k}}', true); DELETE FROM public.plants WHERE id = 1; COMMIT`)
			if got := query(t, url, `SELECT code FROM plantstore.resolve(1, 'alice', 'r2', 'k', NULL)`); !slices.Equal(got, []string{"204"}) {
				t.Errorf("resolve: got %v, want 204", got)
			}
			pgtest.Execute(t, store, `DELETE FROM plantstore.deletions`)
			if _, err := Down(t.Context(), url, 0, Options{}); err != nil {
				t.Errorf("down: %v", err)
			}
		})
	}
	const name = `plants "new"`
	if err := NewStore(t.Context(), s.URL, name); err != nil {
		t.Fatal(err)
	}
	states, err := Status(t.Context(), s.URL("plantstore_app", name))
	if err != nil || slices.ContainsFunc(states, func(s State) bool { return s.AppliedAt == nil }) {
		t.Errorf("status of a new store: got %+v, %v, want all applied", states, err)
	}
	if err := NewStore(t.Context(), s.URL, name); err == nil || !strings.Contains(err.Error(), "create database "+name) {
		t.Errorf("the same store again: got %v, want an error about creating %s", err, name)
	}
}

func TestDownNeedsPublicPlants(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pgtest.Execute(t, pgtest.Connect(t, db.Super), `DROP TABLE plants`)
	done, err := Down(t.Context(), db.Owner, 0, Options{})
	if _, ok := errors.AsType[*UnmetError](err); !ok || !strings.HasPrefix(err.Error(), "public.plants does not exist") || len(done) > 0 {
		t.Errorf("got %v, %v; want *UnmetError that says it", done, err)
	}
}

// query returns the first column as text.
func query(t *testing.T, url, sql string) []string {
	t.Helper()
	rows, err := pgtest.Connect(t, url).Query(t.Context(), sql, pgx.QueryResultFormats{pgx.TextFormatCode})
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) { return string(row.RawValues()[0]), nil })
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return all
}
