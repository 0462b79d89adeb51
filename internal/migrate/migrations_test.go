package migrate_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/migrations"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func exec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// schema describes what the migrations make, and what an adopted table had, in a
// form that two databases can be compared by.
func schema(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		SELECT 'column ' || table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' || coalesce(column_default, '')
			FROM information_schema.columns WHERE table_schema = 'public'
		UNION ALL SELECT 'constraint ' || conrelid::regclass || ' ' || pg_get_constraintdef(oid)
			FROM pg_constraint WHERE connamespace = 'public'::regnamespace
		UNION ALL SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'public'
		UNION ALL SELECT 'trigger ' || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
		UNION ALL SELECT 'function ' || oid::regprocedure || md5(pg_get_functiondef(oid)) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
		UNION ALL SELECT 'grant ' || c.oid::regclass || ' ' || a.privilege_type || ' to ' || a.grantee FROM pg_class c, aclexplode(c.relacl) a
			WHERE c.relnamespace = 'public'::regnamespace AND a.grantee <> c.relowner
		UNION ALL SELECT 'grant ' || c.oid::regclass || '.' || t.attname || ' ' || a.privilege_type || ' to ' || a.grantee
			FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid, aclexplode(t.attacl) a WHERE c.relnamespace = 'public'::regnamespace
		UNION ALL SELECT 'grant ' || p.oid::regprocedure || ' to ' || a.grantee FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
			WHERE p.pronamespace = 'public'::regnamespace AND a.grantee <> p.proowner
		ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func applied(t *testing.T, url string) int {
	t.Helper()
	states, _, err := migrate.Service().Status(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, s := range states {
		if !s.AppliedAt.IsZero() {
			n++
		}
	}
	return n
}

func TestNamesAreInOrder(t *testing.T) {
	t.Parallel()
	for i, m := range migrate.All() {
		if want := fmt.Sprintf("%05d_", i+1); !strings.HasPrefix(m.Name, want) {
			t.Errorf("migration %d is %s; want its name to start with %s", i+1, m.Name, want)
		}
	}
}

// upTo returns what the first n migrations make of an empty database.
func upTo(t *testing.T, n int) []string {
	t.Helper()
	files := fstest.MapFS{}
	for _, m := range migrate.All()[:n] {
		text, err := migrations.Files.ReadFile(m.Name)
		if err != nil {
			t.Fatal(err)
		}
		files[m.Name] = &fstest.MapFile{Data: text}
	}
	database := pgtest.Empty(t)
	set := migrate.Set{Files: files, Effects: migrate.Effects()}
	if _, err := set.Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	return schema(t, pgtest.Connect(t, database.Owner))
}

// Whatever the settings of a database are, it gets the same functions, and they can be told.
func TestNoSettingChangesTheMigrations(t *testing.T) {
	t.Parallel()
	const functions = `SELECT proname || ' ' || proconfig::text FROM pg_proc WHERE proname ~ '^plantstore_' ORDER BY 1`
	want := query(t, pgtest.Connect(t, pgtest.New(t).Owner), functions)
	database := pgtest.Empty(t)
	super := pgtest.Connect(t, database.Super)
	for _, setting := range []string{"datestyle = 'German, DMY'", "quote_all_identifiers = on", "standard_conforming_strings = off", "plpgsql.extra_errors = 'all'"} {
		exec(t, super, "ALTER DATABASE "+database.Name+" SET "+setting)
	}
	if _, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := migrate.Service().Status(t.Context(), database.Owner); err != nil {
		t.Errorf("Status: %v, want none", err)
	}
	if diff := cmp.Diff(want, query(t, super, functions)); diff != "" {
		t.Errorf("functions (-without settings +got):\n%s", diff)
	}
}

// Each Down must undo its Up exactly, and each Up must work again after it.
func TestEachDownUndoesItsUp(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	conn := pgtest.Connect(t, database.Owner)
	full := schema(t, conn)
	empty := pgtest.Empty(t)
	for n := len(migrate.All()) - 1; n >= 0; n-- {
		changes, err := migrate.Service().Down(t.Context(), database.Owner, migrate.Options{})
		if err != nil || len(changes) != 1 || changes[0].Version != int64(n+1) {
			t.Fatalf("Down = %v, %v; want version %d taken back", changes, err, n+1)
		}
		if got := applied(t, database.Owner); got != n {
			t.Fatalf("%d migrations applied after Down, want %d", got, n)
		}
		if n == 0 {
			break
		}
		if diff := cmp.Diff(upTo(t, n), schema(t, conn)); diff != "" {
			t.Errorf("after Down to %d (-Up to %[1]d +got):\n%s", n, diff)
		}
	}
	left := []string{}
	for _, s := range schema(t, conn) {
		if !strings.Contains(s, "goose_db_version") {
			left = append(left, s)
		}
	}
	if diff := cmp.Diff(schema(t, pgtest.Connect(t, empty.Owner)), left); diff != "" {
		t.Errorf("after all Downs (-empty database +got):\n%s", diff)
	}
	if changes, err := migrate.Service().Down(t.Context(), database.Owner, migrate.Options{}); err != nil || len(changes) != 0 {
		t.Errorf("Down of nothing = %v, %v; want nothing", changes, err)
	}
	if _, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(full, schema(t, conn)); diff != "" {
		t.Errorf("after Up again (-before +after):\n%s", diff)
	}
}

func TestADownThatWouldLoseRowsRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		row, refusal string
	}{
		{`INSERT INTO api_principals (name) VALUES ('x')`, "refusing to drop public.api_principals"},
		{`INSERT INTO plantstore_budgets (principal, most, period) VALUES ('oidc:mallory', 1, '7d')`, "refusing to drop public.plantstore_budgets: it holds budgets"},
		{`INSERT INTO plantstore_budgets (principal, lifted_until) VALUES ('oidc:mallory', now() + '1h')`, "refusing to drop public.plantstore_budgets: it holds budgets"},
		{`INSERT INTO plants (id, name) VALUES (1, 'Jade plant'); DELETE FROM plants`, "refusing to drop public.plant_deletions"},
		{`INSERT INTO plants (id, name) VALUES (1, 'Jade plant')`, "refusing to drop public.plants"},
	}
	for _, tt := range tests {
		t.Run(tt.row, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			exec(t, pgtest.Connect(t, database.Owner), tt.row)
			changes, err := migrate.Service().DownTo(t.Context(), database.Owner, 0, migrate.Options{})
			if err == nil || !strings.HasPrefix(err.Error(), "nothing was changed: ") || !strings.Contains(err.Error(), tt.refusal) || len(changes) != 0 {
				t.Errorf("DownTo(0): %v, %v; want nothing changed, and %q", changes, err, tt.refusal)
			}
			if got := applied(t, database.Owner); got != len(migrate.All()) {
				t.Errorf("%d migrations left, want all", got)
			}
		})
	}
}

// Nor does one lose rows that come while it looks.
func TestADownWaitsForRowsThatCome(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		row, refusal string
		from, to     int64
	}{
		{`INSERT INTO api_principals (name) VALUES ('x')`, "refusing to drop public.api_principals", 4, 3},
		{`INSERT INTO plants (id, name) VALUES (1, 'Jade plant')`, "refusing to drop public.plants", 1, 0},
		{`DELETE FROM plants WHERE id = 7`, "nothing was changed: migration 00002_ledger.sql: ERROR: refusing to drop public.plant_deletions", migrate.Latest(), 1},
	} {
		t.Run(tt.refusal, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			exec(t, pgtest.Connect(t, database.Owner), `INSERT INTO plants (id, name) VALUES (7, 'Agave')`)
			if _, err := migrate.Service().DownTo(t.Context(), database.Owner, tt.from, migrate.Options{}); err != nil {
				t.Fatal(err)
			}
			tx, err := pgtest.Connect(t, database.Owner).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), tt.row); err != nil {
				t.Fatal(err)
			}
			waits, committed := make(chan bool, 100), make(chan error)
			go func() {
				<-waits
				committed <- tx.Commit(t.Context())
			}()
			_, err = migrate.Service().DownTo(t.Context(), database.Owner, tt.to, migrate.Options{LockTimeout: time.Minute, Notify: func(e migrate.Event) {
				if e.Kind == migrate.Blocked {
					waits <- true
				}
			}})
			if err == nil || !strings.Contains(err.Error(), tt.refusal) {
				t.Errorf("DownTo(%d) beside a row that comes: %v, want %q", tt.to, err, tt.refusal)
			}
			waits <- true // if it never was blocked
			if err := <-committed; err != nil {
				t.Error(err)
			}
			if got := applied(t, database.Owner); got != int(tt.from) {
				t.Errorf("%d migrations left, want %d", got, tt.from)
			}
		})
	}
}

// The service's rights go first, and the triggers on the plants later. All or none go.
func TestADownThatIsBlockedTakesNothingBack(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	before := schema(t, pgtest.Connect(t, database.Owner))
	pid, release := hold(t, database)
	// Nobody waits for what it would lock after the plants.
	super := pgtest.Connect(t, database.Super)
	seen := events{on: func(e migrate.Event) {
		if e.Kind != migrate.Blocked {
			return
		}
		if locked := query(t, super, `SELECT relation::regclass::text FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
			WHERE l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.mode = 'AccessExclusiveLock' AND l.granted AND c.relkind = 'r'`); len(locked) != 0 {
			t.Errorf("locks %v while it waits for the plants, want none", locked)
		}
	}}
	changes, err := migrate.Service().DownTo(t.Context(), database.Owner, 2, migrate.Options{LockTimeout: 8 * time.Second, LockAttempts: 2, Notify: seen.notify})
	if len(seen.of(migrate.Blocked)) == 0 {
		t.Error("not told that it waits")
	}
	blocked, ok := errors.AsType[*migrate.BlockedError](err)
	if !ok || blocked.Lock != "ACCESS EXCLUSIVE on public.plants" || len(blocked.Blockers) != 1 || blocked.Blockers[0].PID != int32(pid) ||
		!strings.HasPrefix(err.Error(), "nothing was changed: ") || len(changes) != 0 {
		t.Errorf("DownTo(2) beside a reader: %v, %v; want nothing changed, and the reader named", changes, err)
	}
	if diff := cmp.Diff(before, schema(t, pgtest.Connect(t, database.Owner))); diff != "" {
		t.Errorf("after DownTo(2) beside a reader (-before +after):\n%s", diff)
	}
	release()
	if changes, err := migrate.Service().DownTo(t.Context(), database.Owner, 2, migrate.Options{}); err != nil || len(changes) != 4 {
		t.Errorf("DownTo(2) = %v, %v; want 4 taken back", changes, err)
	}
	if diff := cmp.Diff(upTo(t, 2), schema(t, pgtest.Connect(t, database.Owner))); diff != "" {
		t.Errorf("after DownTo(2) (-Up to 2 +got):\n%s", diff)
	}
}

// One that runs outside a transaction is taken back by itself.
func TestDownOutsideATransaction(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	down := func(sql string) string { return "-- +goose Up\nSELECT 1;\n-- +goose Down\n" + sql }
	set := extended(t, map[string]string{
		"00101_a.sql": down("SELECT 1 / 0;\n"), "00102_b.sql": down("SELECT 1;\n"),
		"00103_index.sql": "-- +goose NO TRANSACTION\n" + down("CREATE INDEX CONCURRENTLY late ON public.plants (name);\n"), "00104_d.sql": down("SELECT 1;\n"), "00105_e.sql": down("SELECT 1;\n"),
	})
	if _, err := set.Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	changes, err := set.DownTo(t.Context(), database.Owner, 100, migrate.Options{})
	failed, ok := errors.AsType[*migrate.FailedError](err)
	if !ok || failed.Name != "00101_a.sql" || failed.Whole || len(changes) != 3 {
		t.Errorf("DownTo(100) = %v, %v; want three taken back, and that 00101 failed", changes, err)
	}
	if got, want := applied(t, database.Owner), len(migrate.All())+2; got != want {
		t.Errorf("%d migrations left, want %d", got, want)
	}
}

func TestAdoption(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, table string
		refusal     string // "" if adopted
	}{
		{"other columns", `CREATE TABLE plants (sku text UNIQUE, id bigint PRIMARY KEY, price numeric); INSERT INTO plants VALUES ('a', 1, 9.5)`, ""},
		{"serial", `CREATE TABLE plants (id bigserial PRIMARY KEY)`, ""},
		{"integer id", `CREATE TABLE plants (id integer PRIMARY KEY)`, `cannot adopt public.plants: column "id" is of type integer, not bigint`},
		{"no id", `CREATE TABLE plants (plant_id bigint PRIMARY KEY)`, `cannot adopt public.plants: it has no column "id"`},
		{"no key", `CREATE TABLE plants (id bigint)`, `cannot adopt public.plants: its primary key is not (id)`},
		{"another key", `CREATE TABLE plants (id bigint UNIQUE, sku text PRIMARY KEY)`, `cannot adopt public.plants: its primary key is not (id)`},
		{"a wider key", `CREATE TABLE plants (id bigint, shop bigint, PRIMARY KEY (id, shop))`, `cannot adopt public.plants: its primary key is not (id)`},
		{"a key with more", `CREATE TABLE plants (sku text, id bigint, PRIMARY KEY (id) INCLUDE (sku)); INSERT INTO plants VALUES ('a', 1)`, ``},
		{"a partition", `CREATE TABLE stock (id bigint) PARTITION BY RANGE (id); CREATE TABLE plants PARTITION OF stock (PRIMARY KEY (id)) FOR VALUES FROM (1) TO (9)`,
			`cannot adopt public.plants: it is a child or partition of another table`},
		{"a child", `CREATE TABLE stock (name text); CREATE TABLE plants (id bigint PRIMARY KEY) INHERITS (stock)`, `cannot adopt public.plants: it is a child or partition of another table`},
		{"a parent", `CREATE TABLE plants (id bigint PRIMARY KEY); CREATE TABLE ferns () INHERITS (plants)`, `cannot adopt public.plants: other tables inherit from it`},
		{"unlogged", `CREATE UNLOGGED TABLE plants (id bigint PRIMARY KEY)`, `cannot adopt public.plants: it is unlogged`},
		{"a view", `CREATE VIEW plants AS SELECT 1::bigint AS id`, `cannot adopt public.plants: it is not an ordinary table`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.Empty(t)
			conn := pgtest.Connect(t, database.Owner)
			exec(t, conn, tt.table)
			before := schema(t, conn)
			_, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{})
			if tt.refusal != "" {
				if err == nil || !strings.Contains(err.Error(), tt.refusal) {
					t.Errorf("Up: %v, want %q", err, tt.refusal)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			after := strings.Join(schema(t, conn), "\n")
			for _, s := range before {
				if !strings.HasPrefix(s, "grant ") && !strings.Contains(after, s) {
					t.Errorf("adoption changed %q", s)
				}
			}
			exec(t, conn, `DELETE FROM plants`)
			exec(t, conn, `DELETE FROM plant_deletions`)
			if _, err := migrate.Service().DownTo(t.Context(), database.Owner, 0, migrate.Options{}); err != nil {
				t.Fatal(err)
			}
			exec(t, conn, `SELECT id FROM plants`) // still there
		})
	}
}

// What the program never writes, nobody else can by mistake.
func TestWhatTheTablesRefuse(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.New(t).Owner)
	exec(t, conn, `INSERT INTO plant_deletions (plant_id, deleted_by, idempotency_key) VALUES (1, 'shop', 'k');
		INSERT INTO api_principals VALUES ('shop'); INSERT INTO api_tokens (principal, digest, scopes) VALUES ('shop', sha256('1'), '{}')`)
	const null, check, unique, reference = "23502", "23514", "23505", "23503"
	for _, tt := range []struct{ sql, state, name string }{
		{`INSERT INTO plant_deletions (deleted_by, idempotency_key) VALUES ('shop', 'k')`, null, "plant_id"},
		{`INSERT INTO plant_deletions (plant_id, idempotency_key) VALUES (2, 'k')`, null, "deleted_by"},
		{`UPDATE plant_deletions SET deleted_at = NULL`, null, "deleted_at"},
		{`UPDATE plant_deletions SET session_role = NULL`, null, "session_role"},
		{`UPDATE plant_deletions SET turn = NULL`, null, "turn"},
		{`INSERT INTO plant_deletions (plant_id, deleted_by, plant, idempotency_key) VALUES (2, 'shop', '(2)', 'k')`, check, "plant_deletions_refused"},
		{`INSERT INTO plant_deletions (plant_id, deleted_by, shape, idempotency_key) VALUES (2, 'shop', 1, 'k')`, check, "plant_deletions_refused"},
		{`INSERT INTO plant_deletions (plant_id, deleted_by) VALUES (2, 'shop')`, check, "plant_deletions_refused"},
		{`UPDATE plant_deletions SET restored_at = now(), restored_by = 'ada'`, check, "plant_deletions_refused"},
		{`INSERT INTO plant_deletions (plant_id, deleted_by, shape, plant, restored_at) VALUES (2, 'shop', 1, '(2)', now())`, check, "plant_deletions_restored"},
		{`INSERT INTO plant_deletions (plant_id, deleted_by, shape, plant, restored_by) VALUES (2, 'shop', 1, '(2)', 'ada')`, check, "plant_deletions_restored"},
		{`INSERT INTO plant_deletions (plant_id, deleted_by, shape, plant, idempotency_key) VALUES (1, 'shop', 1, '(1)', 'k')`, unique, "plant_deletions_once"},
		{`INSERT INTO plant_shapes (names, types, generated) VALUES ('{id}', '{bigint}', '{f}')`, null, "attributes"},
		{`INSERT INTO plant_shapes (attributes, types, generated) VALUES ('{id}', '{bigint}', '{f}')`, null, "names"},
		{`INSERT INTO plant_shapes (attributes, names, generated) VALUES ('{id}', '{id}', '{f}')`, null, "types"},
		{`INSERT INTO plant_shapes (attributes, names, types) VALUES ('{id}', '{id}', '{bigint}')`, null, "generated"},
		{`INSERT INTO api_principals VALUES ('')`, check, "api_principals_name_check"},
		{`INSERT INTO api_principals VALUES ('oidc:shop')`, check, "api_principals_name_check"},
		{`INSERT INTO api_principals VALUES (repeat('s', 64))`, check, "api_principals_name_check"},
		{`INSERT INTO api_principals VALUES ('shop')`, unique, "api_principals_pkey"},
		{`UPDATE api_principals SET created_at = NULL`, null, "created_at"},
		{`INSERT INTO api_tokens (digest, scopes) VALUES (sha256('2'), '{}')`, null, "principal"},
		{`INSERT INTO api_tokens (principal, digest, scopes) VALUES ('nobody', sha256('2'), '{}')`, reference, "api_tokens_principal_fkey"},
		{`INSERT INTO api_tokens (principal, scopes) VALUES ('shop', '{}')`, null, "digest"},
		{`INSERT INTO api_tokens (principal, digest, scopes) VALUES ('shop', sha224('2'), '{}')`, check, "api_tokens_digest_check"},
		{`INSERT INTO api_tokens (principal, digest, scopes) VALUES ('shop', sha256('1'), '{}')`, unique, "api_tokens_digest_key"},
		{`INSERT INTO api_tokens (principal, digest) VALUES ('shop', sha256('2'))`, null, "scopes"},
		{`UPDATE api_tokens SET created_at = NULL`, null, "created_at"},
		{`INSERT INTO plantstore_budgets (principal, most, period) VALUES ('shop', 0, '1h')`, check, "plantstore_budgets_most_check"},
		{`INSERT INTO plantstore_budgets (principal, most, period) VALUES ('shop', 1, '0')`, check, "plantstore_budgets_period_check"},
		{`INSERT INTO plantstore_budgets (principal, most) VALUES ('shop', 1)`, check, "plantstore_budgets_whole"},
		{`INSERT INTO plantstore_budgets (principal, lifted_until) VALUES ('shop', NULL)`, null, "lifted_until"},
		{`INSERT INTO plantstore_budgets (principal, used) VALUES ('shop', NULL)`, null, "used"},
		{`INSERT INTO plantstore_budgets (principal, began) VALUES ('shop', NULL)`, null, "began"},
		{`INSERT INTO plantstore_budgets (principal, parts) VALUES ('shop', NULL)`, null, "parts"},
		{`INSERT INTO plantstore_budgets (principal, ends) VALUES ('shop', NULL)`, null, "ends"},
		{`UPDATE plantstore_migrations SET applied_as = NULL`, null, "applied_as"},
		{`UPDATE plantstore_migrations SET checksum = NULL`, null, "checksum"},
		{`UPDATE plantstore_migrations SET checksum = upper(checksum) || 'A'`, check, "plantstore_migrations_checksum_check"},
		{`UPDATE plantstore_migrations SET baseline = NULL`, null, "baseline"},
		{`UPDATE plantstore_migrations SET recorded_at = NULL`, null, "recorded_at"},
		{`UPDATE plantstore_migrations SET recorded_by = NULL`, null, "recorded_by"},
	} {
		_, err := conn.Exec(t.Context(), tt.sql)
		if pg, _ := errors.AsType[*pgconn.PgError](err); pg == nil || pg.Code != tt.state || pg.ConstraintName+pg.ColumnName != tt.name {
			t.Errorf("%s: %v, want SQLSTATE %s by %s", tt.sql, err, tt.state, tt.name)
		}
	}
}

func TestConcurrentUps(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	const replicas = 8
	counts := make([]int, replicas)
	var wg sync.WaitGroup
	for i := range replicas {
		wg.Go(func() {
			changes, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{})
			if err != nil {
				t.Errorf("replica %d: %v", i, err)
			}
			counts[i] = len(changes)
		})
	}
	wg.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	if want := len(migrate.All()); total != want {
		t.Errorf("%v migrations applied by the replicas, want %d in all", counts, want)
	}
}

func TestStatusOnlyReads(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	conn := pgtest.Connect(t, database.Owner)
	before := schema(t, conn)
	if got := applied(t, database.Owner); got != 0 {
		t.Errorf("%d migrations applied, want none", got)
	}
	if diff := cmp.Diff(before, schema(t, conn)); diff != "" {
		t.Errorf("Status changed the database (-before +after):\n%s", diff)
	}
}
