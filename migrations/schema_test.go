package migrations_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/internal/readme"
	"plantstore/migrations"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// Each file says which lock it takes on public.plants, in both directions.
func TestMigrationsTakeTheLocksTheyName(t *testing.T) {
	t.Parallel()
	order := []string{"none", "ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE", "ACCESS EXCLUSIVE"}
	db := pgtest.Empty(t)
	p, err := migrate.Plan(t.Context(), db.Owner)
	if err != nil {
		t.Fatal(err)
	}
	conn := pgtest.Connect(t, db.Owner)
	mustExec(t, conn, `CREATE TABLE plantstore.goose_db_version (id int)`)
	grantLocks := lines(t, conn, `SELECT current_setting('server_version_num')::int >= 180000`)[0] == "t"
	check := func(name, locks, sql string) {
		t.Helper()
		want := "none"
		if locks, ok := strings.CutPrefix(locks, "public.plants "); ok {
			want, _, _ = strings.Cut(locks, ",")
		}
		table := lines(t, conn, `SELECT coalesce(to_regclass('public.plants')::oid, 0)`)[0]
		mustExec(t, conn, "BEGIN")
		mustExec(t, conn, sql)
		got := "none"
		for _, mode := range lines(t, conn, `SELECT upper(regexp_replace(replace(mode, 'Lock', ''), '([a-z])([A-Z])', '\1 \2', 'g')) FROM pg_locks
			WHERE pid = pg_backend_pid() AND locktype = 'relation' AND relation = $1::oid`, table) {
			if slices.Index(order, mode) > slices.Index(order, got) {
				got = mode
			}
		}
		mustExec(t, conn, "COMMIT")
		if got != want && !(got == "none" && want == "ACCESS SHARE" && !grantLocks) {
			t.Errorf("%s on public.plants: got %s, want %s as the file says", name, got, want)
		}
	}
	for _, m := range p.Pending {
		check(m.Name+" up", m.Locks, m.SQL)
	}
	for _, m := range slices.Backward(p.Pending) {
		text, err := migrations.Files.ReadFile(m.Name)
		if err != nil {
			t.Fatal(err)
		}
		_, down, _ := strings.Cut(string(text), "-- +goose Down\n")
		locks, _, _ := strings.Cut(strings.TrimPrefix(down, "-- locks: "), "\n")
		check(m.Name+" down", locks, down)
	}
}

func TestUnfitTablesAreNamed(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.Shared(t).Super)
	unfit := lines(t, conn, `SELECT prosrc FROM pg_proc WHERE oid = 'plantstore.unfit'::regproc`)[0]
	const fit = `CREATE TABLE plants (id bigint PRIMARY KEY, name text)`
	for _, test := range []struct {
		name, sql string
		want      []string // without "public.plants"
	}{
		{"a view", `CREATE VIEW plants AS SELECT 1::bigint AS id`, []string{"is not an ordinary table", "has a primary key other than (id), or a deferrable one", "has a rule: a deletion might do something else"}},
		{"partitioned", `CREATE TABLE plants (id bigint PRIMARY KEY) PARTITION BY RANGE (id)`, []string{"is not an ordinary table"}},
		{"unlogged", `CREATE UNLOGGED TABLE plants (id bigint PRIMARY KEY)`, []string{"is unlogged: a crash of the server would empty it"}},
		{"no id", `CREATE TABLE plants (no bigint PRIMARY KEY)`, []string{"has no column id", "has a primary key other than (id), or a deferrable one"}},
		{"an integer id", `CREATE TABLE plants (id integer PRIMARY KEY)`, []string{"has a column id that is not a bigint"}},
		{"no primary key", `CREATE TABLE plants (id bigint UNIQUE)`, []string{"has a primary key other than (id), or a deferrable one"}},
		{"another primary key", `CREATE TABLE plants (id bigint, shop int, PRIMARY KEY (id, shop))`, []string{"has a primary key other than (id), or a deferrable one"}},
		{"a deferrable primary key", `CREATE TABLE plants (id bigint PRIMARY KEY DEFERRABLE)`, []string{"has a primary key other than (id), or a deferrable one"}},
		{"a parent", fit + `; CREATE TABLE trees (height int) INHERITS (plants)`, []string{"has tables that inherit from it: their rows would leave without a record"}},
		{"a child", `CREATE TABLE things (id bigint); CREATE TABLE plants (id bigint PRIMARY KEY) INHERITS (things)`,
			[]string{"is a child of another table: rows deleted through that one would leave without a record"}},
		{"row level security", fit + `; ALTER TABLE plants ENABLE ROW LEVEL SECURITY`, []string{"has row level security: a hidden plant would be answered as missing"}},
		{"a rule", fit + `; CREATE RULE keep AS ON DELETE TO plants DO INSTEAD NOTHING`, []string{"has a rule: a deletion might do something else"}},
		{"a subscription", fit + `; SET LOCAL allow_system_table_mods = on; INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) VALUES (1, 'plants'::regclass, 'r')`,
			[]string{"is written by a subscription, whose deletions leave no record"}},
		{"fit", `CREATE TABLE plants ("key" text, id bigint PRIMARY KEY, up text GENERATED ALWAYS AS (lower("key")) STORED)`, []string{}},
	} {
		// Each table has a schema of its own and is rolled back, so that the cases share a database.
		mustExec(t, conn, `BEGIN; CREATE SCHEMA mine; SET LOCAL search_path = mine, pg_catalog`)
		mustExec(t, conn, test.sql)
		want := []string{}
		for _, problem := range test.want {
			want = append(want, "public.plants "+problem)
		}
		if diff := cmp.Diff(want, lines(t, conn, strings.ReplaceAll(unfit, "'public.plants'", "'mine.plants'"))); diff != "" {
			t.Errorf("%s: problems (-want +got):\n%s", test.name, diff)
		}
		mustExec(t, conn, `ROLLBACK`)
	}
}

// A stolen password of the service allows these statements, and no others.
func TestRightsOfTheService(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	// A hardened database grants nothing to everybody.
	mustExec(t, pgtest.Connect(t, db.Owner), `REVOKE ALL ON ALL FUNCTIONS IN SCHEMA plantstore FROM PUBLIC;
		CREATE TABLE public.watched (id bigint PRIMARY KEY REFERENCES public.plants ON DELETE CASCADE); SELECT plantstore.watch('public.watched')`)
	conn := pgtest.Connect(t, db.App)
	check := func(want string, statements ...string) {
		t.Helper()
		for _, sql := range statements {
			mustExec(t, conn, `BEGIN`)
			_, err := conn.Exec(t.Context(), sql)
			if got := code(err); got != want {
				t.Errorf("%s: got SQLSTATE %q (%v), want %q", sql, got, err, want)
			}
			mustExec(t, conn, `ROLLBACK`)
		}
	}
	const allowed, denied = "", "42501"
	check(allowed,
		`SELECT id FROM public.plants`,
		`DELETE FROM public.plants WHERE id = 0`,
		`SELECT id, deleted_at FROM plantstore.deletions`,
		`SELECT id, principal, digest, scopes, expires_at, revoked_at, last_used_at FROM plantstore.tokens`,
		`UPDATE plantstore.tokens SET last_used_at = now()`,
		`SELECT version FROM plantstore.tokens_version`,
		`SELECT name, budget, budget_period FROM plantstore.principals`,
		`SELECT version_id FROM plantstore.goose_db_version`,
		`SELECT plantstore.unfit()`,
		`SELECT plantstore.resolve(0, 'a', 'r', 'k', NULL)`,
	)
	check(denied,
		`SELECT name FROM public.plants`,
		`INSERT INTO public.plants DEFAULT VALUES`,
		`UPDATE public.plants SET name = ''`,
		`TRUNCATE public.plants`,
		`ALTER TABLE public.plants DISABLE TRIGGER record_deletion`,
		`CREATE TRIGGER t AFTER DELETE ON public.plants EXECUTE FUNCTION plantstore.refuse_truncate()`,
		`SELECT plant FROM plantstore.deletions`,
		`INSERT INTO plantstore.deletions (plant_id, deleted_by, literal) VALUES (1, 'a', '')`,
		`UPDATE plantstore.deletions SET deleted_by = ''`,
		`DELETE FROM plantstore.deletions`,
		`SELECT FROM plantstore.cascaded`,
		`INSERT INTO plantstore.cascaded (deletion_id, relation, key, content, literal) VALUES (1, 'public.plants', '1', '{}', '')`,
		`SELECT plantstore.watch('public.plants')`, `SELECT plantstore.unwatch('public.plants')`,
		`INSERT INTO plantstore.tokens (principal, digest, scopes) VALUES ('a', '', '{}')`,
		`UPDATE plantstore.tokens SET expires_at = NULL`,
		`DELETE FROM plantstore.tokens`,
		`UPDATE plantstore.tokens_version SET version = gen_random_uuid()`,
		`SELECT budget_used FROM plantstore.principals`,
		`INSERT INTO plantstore.principals (name) VALUES ('a')`,
		`UPDATE plantstore.principals SET budget_used = 0`,
		`DELETE FROM plantstore.principals`,
		`SELECT plantstore.charge('a', 1, 1, '1 day')`,
		`INSERT INTO plantstore.goose_db_version (version_id, is_applied) VALUES (7, true)`,
		`CREATE TABLE public.t ()`, `CREATE TABLE plantstore.t ()`, `CREATE SCHEMA s`,
		// A trigger of one's own on a table of one's own would forge entries.
		`CREATE TEMP TABLE mine (id bigint); CREATE TRIGGER t AFTER DELETE ON mine REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION plantstore.record_deletion()`,
		`CREATE TEMP TABLE mine (id bigint PRIMARY KEY); CREATE TRIGGER t AFTER DELETE ON mine REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION plantstore."record public.watched"()`,
		`SET session_replication_role = replica`, `SET ROLE plantstore_owner`,
	)
}

// deletionFields are the fields of a record, without times.
const deletionFields = `SELECT format('%s by %s, request %s, key %s', plant_id, deleted_by, coalesce(request_id, '-'), coalesce(idempotency_key, '-')) FROM plantstore.deletions ORDER BY id`

func TestLedgerRecordsPrincipalOrRole(t *testing.T) {
	t.Parallel()
	const stranger = "pg_signal_backend" // any role without rights
	db := pgtest.New(t)
	conn := pgtest.Connect(t, db.Super)
	mustExec(t, conn, `ALTER TABLE plants ADD mother bigint REFERENCES plants ON DELETE CASCADE; CREATE INDEX ON plants (mother);
		CREATE TABLE beds (id bigint PRIMARY KEY); ALTER TABLE plants ADD bed bigint REFERENCES beds ON DELETE CASCADE;
		GRANT SELECT, DELETE ON plants TO `+stranger)
	requests := func(rows string) string {
		return `SELECT set_config('plantstore.requests', '` + rows + `', true); `
	}
	const one, two = `{{1},{alice},{r1},{k1}}`, `{{1,2},{alice,bob},{r1,r2},{k1,k2}}`
	for _, test := range []struct {
		name, role, setUp, sql, err string
		want                        []string
	}{
		{name: "the service", role: "plantstore_app", sql: requests(one) + `DELETE FROM plants WHERE id = 1`, want: []string{"1 by alice, request r1, key k1"}},
		{name: "the owner", role: "plantstore_owner", sql: requests(one) + `DELETE FROM plants WHERE id = 1`, want: []string{"1 by alice, request r1, key k1"}},
		{name: "a stranger that pretends", role: stranger, sql: requests(one) + `DELETE FROM plants WHERE id = 1`, want: []string{"1 by " + stranger + ", request -, key -"}},
		{name: "a stranger that records a refusal", role: stranger, setUp: `GRANT USAGE ON SCHEMA plantstore TO ` + stranger, sql: `SELECT plantstore.resolve(1, 'alice', 'r1', 'k1', 40401)`, err: "42501 "},
		{name: "the service's role by hand", role: "plantstore_app", sql: `DELETE FROM plants WHERE id < 3`, want: []string{"1 by plantstore_app, request -, key -", "2 by plantstore_app, request -, key -"}},
		{name: "after a request in the same session", role: "plantstore_app", sql: `BEGIN; ` + requests(one) + `DELETE FROM plants WHERE id = 1; COMMIT; DELETE FROM plants WHERE id = 2`,
			want: []string{"1 by alice, request r1, key k1", "2 by plantstore_app, request -, key -"}},
		{name: "a batch", role: "plantstore_app", sql: requests(two) + `DELETE FROM plants WHERE id < 3`, want: []string{"1 by alice, request r1, key k1", "2 by bob, request r2, key k2"}},
		{name: "alone with a cascade", role: "plantstore_app", setUp: `UPDATE plants SET mother = 1 WHERE id = 2; UPDATE plants SET mother = 2 WHERE id = 3`, sql: requests(one) + `DELETE FROM plants WHERE id = 1`,
			want: []string{"1 by alice, request r1, key k1", "2 by alice, request r1, key -", "3 by alice, request r1, key -"}},
		{name: "a batch with a cascade to a plant nobody asked for", role: "plantstore_app", setUp: `UPDATE plants SET mother = 1 WHERE id = 3`, sql: requests(two) + `DELETE FROM plants WHERE id < 3`, err: "23502 deletions"},
		{name: "a batch with a cascade within it", role: "plantstore_app", setUp: `UPDATE plants SET mother = 1 WHERE id = 2`, sql: requests(two) + `DELETE FROM plants WHERE id = 1`,
			want: []string{"1 by alice, request r1, key k1", "2 by bob, request r2, key k2"}},
		{name: "a cascade from another table", role: "plantstore_owner", setUp: `INSERT INTO beds VALUES (7); UPDATE plants SET bed = 7 WHERE id < 3; GRANT DELETE, SELECT ON beds TO plantstore_owner`, sql: `DELETE FROM beds`,
			want: []string{"1 by plantstore_owner, request -, key -", "2 by plantstore_owner, request -, key -"}},
		{name: "the key of a refusal", role: "plantstore_app", setUp: `INSERT INTO plantstore.deletions (plant_id, deleted_by, idempotency_key, refused) VALUES (1, 'alice', 'k1', 40401)`, sql: requests(one) + `DELETE FROM plants WHERE id = 1`, err: "23505 deletions"},
		{name: "TRUNCATE", role: "postgres", sql: `TRUNCATE plants CASCADE`, err: "0A000 "},
		{name: "no row", role: "plantstore_app", sql: requests(`{{9},{jwt:none},{r},{k},{1},{60}}`) + `DELETE FROM plants WHERE id = 9`, want: []string{}},
		{name: "a budget", role: "plantstore_app", setUp: `UPDATE plants SET mother = 1 WHERE id = 2`, sql: requests(`{{1},{jwt:x},{r},{k},{2},{60}}`) + `DELETE FROM plants WHERE id = 1`,
			want: []string{"1 by jwt:x, request r, key k", "2 by jwt:x, request r, key -"}},
		{name: "a budget that the cascade goes beyond", role: "plantstore_app", setUp: `UPDATE plants SET mother = 1 WHERE id = 2`, sql: requests(`{{1},{jwt:x},{r},{k},{1},{60}}`) + `DELETE FROM plants WHERE id = 1`, err: "PSB01 "},
	} {
		mustExec(t, conn, `DELETE FROM plants; DELETE FROM plantstore.deletions; DELETE FROM plantstore.principals; INSERT INTO plants (id, name) SELECT i, 'fern' FROM generate_series(1, 3) i; `+test.setUp)
		mustExec(t, conn, `SET SESSION AUTHORIZATION `+test.role)
		_, err := conn.Exec(t.Context(), test.sql)
		got := ""
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
			got = pg.Code + " " + pg.TableName
		}
		mustExec(t, conn, `RESET SESSION AUTHORIZATION`)
		if got != test.err {
			t.Errorf("%s: got %v, want error %q", test.name, err, test.err)
		}
		if test.err == "" {
			if diff := cmp.Diff(test.want, lines(t, conn, deletionFields)); diff != "" {
				t.Errorf("%s: records (-want +got):\n%s", test.name, diff)
			}
		}
		if test.name == "no row" {
			if got := lines(t, conn, `SELECT name FROM plantstore.principals`); len(got) > 0 {
				t.Errorf("%s: got principal %v, want nothing charged", test.name, got)
			}
		}
	}
}

// A row that is changed with one plant and leaves with another takes its own rows along with the
// second.
func TestRowsAreLinkedToThePlantTheyLeftWith(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.New(t).Owner)
	mustExec(t, conn, `CREATE TABLE items (id int PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE, other bigint REFERENCES plants ON DELETE SET NULL);
		CREATE TABLE pictures (id int PRIMARY KEY, item int REFERENCES items ON DELETE CASCADE); SELECT plantstore.watch('pictures');
		INSERT INTO plants (id, name) VALUES (1, 'fern'), (2, 'lily'); INSERT INTO items VALUES (5, 1, 2); INSERT INTO pictures VALUES (6, 5);
		BEGIN; DELETE FROM plants WHERE id = 2; DELETE FROM plants WHERE id = 1; COMMIT`)
	got := lines(t, conn, `SELECT concat_ws(' ', d.plant_id, c.relation, c.changed) FROM plantstore.cascaded c JOIN plantstore.deletions d ON d.id = c.deletion_id ORDER BY c.id`)
	if diff := cmp.Diff([]string{"2 items other", "1 items", "1 pictures"}, got); diff != "" {
		t.Errorf("plant, table and changed column (-want +got):\n%s", diff)
	}
}

func TestResolveReturnsOutcomes(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	// The role's own limits are for a service, not for a test on a busy machine.
	url := pgtest.WithParameters(db.App, "lock_timeout=0&statement_timeout=0&idle_in_transaction_session_timeout=0")
	super, app := pgtest.Connect(t, db.Super), pgtest.Connect(t, url)
	// resolve returns code, request and "at" where there is a time, or the error.
	resolve := func(id int64, request, key string, refuse any) (answer string) {
		err := app.QueryRow(t.Context(), `SELECT concat_ws(' ', code, by_request, CASE WHEN at IS NOT NULL THEN 'at' END) FROM plantstore.resolve($1, 'alice', $2, $3, $4::int)`, id, request, key, refuse).Scan(&answer)
		if err != nil {
			return err.Error()
		}
		return answer
	}
	check := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	insert := func(id int64) {
		t.Helper()
		mustExec(t, super, fmt.Sprintf(`INSERT INTO plants (id, name) VALUES (%d, 'fern')`, id))
	}
	remove := func(conn *pgx.Conn, id int64, request, key string) error {
		_, err := conn.Exec(t.Context(), fmt.Sprintf(`WITH a AS MATERIALIZED (SELECT set_config('plantstore.requests', '{{%[1]d},{alice},{%[2]s},{%[3]s}}', true))
			DELETE FROM public.plants WHERE id = %[1]d AND (SELECT set_config FROM a) IS NOT NULL`, id, request, key))
		return err
	}
	id := pgtest.IDs(t)

	insert(id)
	check("the plant is there", resolve(id, "r", "k", nil), "0")
	check("the plant is there, nothing to refuse", resolve(id, "r", "k", 40401), "0")
	if err := remove(app, id, "r1", "k"); err != nil {
		t.Fatal(err)
	}
	check("deleted with the key", resolve(id, "r2", "k", nil), "204 r1 at")
	check("deleted with the key, refusal comes late", resolve(id, "r2", "k", 40900), "204 r1 at")
	check("deleted with another key", resolve(id, "r2", "k2", nil), "40402 at")
	check("refused", resolve(id, "r2", "k2", 40401), "40402 at")
	deletedAt := lines(t, super, `SELECT at = (SELECT deleted_at FROM plantstore.deletions WHERE plant_id = $1 ORDER BY id LIMIT 1) FROM plantstore.resolve($1, 'alice', 'r', 'k2', NULL)`, id)[0]
	check("time of a recorded 40402 is the deletion's", deletedAt, "t")
	check("refused again", resolve(id, "r3", "k2", 40900), "40402 r2 at")
	mustExec(t, super, fmt.Sprintf(`DELETE FROM plantstore.deletions WHERE plant_id = %d AND refused IS NULL`, id))
	check("refused, the deletion was purged since", resolve(id, "r3", "k2", nil), "40402 r2 at")

	id++
	check("never there", resolve(id, "r", "k", nil), "40401")
	check("never there, asked again", resolve(id, "r", "k", nil), "40401")
	check("never there, refused", resolve(id, "r1", "k", 40401), "40401")
	insert(id)
	check("refused, and the plant came", resolve(id, "r2", "k", nil), "40401 r1 at")
	if got := code(remove(app, id, "r1", "k")); got != "23505" {
		t.Errorf("a late attempt of a refused key: got %q, want 23505", got)
	}
	check("a new key of the plant that came", resolve(id, "r2", "k2", nil), "0")
	check("kept by the store", resolve(id, "r2", "k2", 40900), "40900")
	check("kept by the store, asked again", resolve(id, "r3", "k2", 40901), "40900 r2 at")
	check("kept for another reason", resolve(id, "r3", "k3", 40901), "40901")

	// An attempt under way is waited for, and decides.
	for _, end := range []struct{ sql, want string }{{"ROLLBACK", "40901"}, {"COMMIT", "204 late at"}} {
		id++
		insert(id)
		late := pgtest.Connect(t, url)
		mustExec(t, late, `BEGIN`)
		if err := remove(late, id, "late", "k"); err != nil {
			t.Fatal(err)
		}
		answer := make(chan string)
		go func() { answer <- resolve(id, "r", "k", 40901) }()
		pgtest.AwaitBlocked(t, super, late.PgConn().PID(), 1)
		mustExec(t, late, end.sql)
		check("after "+end.sql+" of an attempt under way", <-answer, end.want)
	}
}

// However many refusals a plant has, resolve reads a few entries, with statistics and
// without.
func TestResolveBesideManyRefusals(t *testing.T) {
	t.Parallel()
	super := pgtest.Connect(t, pgtest.New(t).Super)
	mustExec(t, super, `INSERT INTO plants (id, name) VALUES (1, 'fern'), (3, 'kept'); DELETE FROM plants WHERE id = 1;
		INSERT INTO plantstore.deletions (plant_id, deleted_by, request_id, idempotency_key, refused)
		SELECT plant, 'alice', 'r', 'k-' || i, code FROM (VALUES (1, 40402), (2, 40401), (3, 40900)) v (plant, code), generate_series(1, 10000) i`)
	read := func() (n int) {
		if err := super.QueryRow(t.Context(), `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relid = 'plantstore.deletions'::regclass`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, statistics := range []string{`SELECT 1`, `ANALYZE plantstore.deletions`} {
		mustExec(t, super, statistics)
		for i, want := range []string{"40402", "40401", "40900"} {
			for _, key := range []string{"k-7", "new"} {
				mustExec(t, super, `BEGIN`)
				before := read()
				code := lines(t, super, `SELECT code FROM plantstore.resolve($1, 'alice', 'r', $2, 40900)`, i+1, key)[0]
				n := read() - before
				mustExec(t, super, `ROLLBACK`)
				if code != want || n > 5 {
					t.Errorf("plant %d, key %s, after %s: got %s with %d entries read, want %s with 5 at most", i+1, key, statistics, code, n, want)
				}
			}
		}
	}
}

// Where the trigger would not record, nothing is refused: the service answers 50304.
func TestResolveWithTheTriggerOff(t *testing.T) {
	t.Parallel()
	const ask = `SELECT code FROM plantstore.resolve(1, 'alice', 'r', 'k', 40401)`
	db := pgtest.New(t)
	conn := pgtest.Connect(t, db.Super)
	for _, begin := range []string{
		`BEGIN ISOLATION LEVEL REPEATABLE READ`,
		`BEGIN; SET LOCAL session_replication_role = replica`,
		`BEGIN; ALTER TABLE plants DISABLE TRIGGER record_deletion`,
		`BEGIN; ALTER TABLE plants ENABLE REPLICA TRIGGER record_deletion`,
		`BEGIN; DROP TRIGGER record_deletion ON plants`,
		`BEGIN; DROP TABLE plants`,
	} {
		mustExec(t, conn, begin)
		if got := lines(t, conn, ask); !slices.Equal(got, []string{"50304"}) {
			t.Errorf("%s: got %v, want 50304", begin, got)
		}
		mustExec(t, conn, `ROLLBACK`)
	}
	mustExec(t, conn, `ALTER TABLE plants ENABLE ALWAYS TRIGGER record_deletion`)
	if got := lines(t, conn, ask); !slices.Equal(got, []string{"40401"}) {
		t.Errorf("with the trigger enabled always: got %v, want 40401", got)
	}
}

func TestDeletionsChargeTheBudget(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	conn, other := pgtest.Connect(t, db.Owner), pgtest.Connect(t, db.Owner)
	name := fmt.Sprintf("jwt:%d", pgtest.IDs(t))
	// charge returns how much is used then, or "refused", or another error.
	charge := func(conn *pgx.Conn, plants int) (used string) {
		_, err := conn.Exec(t.Context(), `SELECT plantstore.charge($1, $2, 3, '1 hour')`, name, plants)
		if err == nil {
			err = conn.QueryRow(t.Context(), `SELECT budget_used::text FROM plantstore.principals WHERE name = $1`, name).Scan(&used)
		}
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "PSB01" {
			if seconds, err := strconv.ParseFloat(pg.Detail, 64); err != nil || seconds < 0 || seconds > 24*3600 {
				return fmt.Sprintf("refused for %q seconds", pg.Detail)
			}
			return "refused"
		}
		if err != nil {
			return err.Error()
		}
		return used
	}
	for _, test := range []struct {
		name, set string
		plants    int
		want      string
	}{
		{"the first", "", 1, "1"},
		{"more than the rest", "", 3, "refused"},
		{"the rest", "", 2, "3"},
		{"the fourth", "", 1, "refused"},
		{"in the next period", "budget_resets_at = clock_timestamp()", 1, "1"},
		{"with a clock that was set back", "budget_used = 3, budget_resets_at = clock_timestamp() + interval '2 hours'", 1, "1"},
		{"with a budget of its own", "budget = 5, budget_period = '1 day'", 3, "4"},
	} {
		if test.set != "" {
			mustExec(t, conn, `UPDATE plantstore.principals SET `+test.set+` WHERE name = '`+name+`'`)
		}
		if got := charge(conn, test.plants); got != test.want {
			t.Errorf("%s: got %s, want %s", test.name, got, test.want)
		}
	}

	// Another charge of the principal is waited for.
	mustExec(t, other, `BEGIN`)
	if got := charge(other, 1); got != "5" {
		t.Errorf("the fifth of five: got %s, want 5", got)
	}
	sixth := make(chan string)
	go func() { sixth <- charge(conn, 1) }()
	pgtest.AwaitBlocked(t, pgtest.Connect(t, db.Super), other.PgConn().PID(), 1)
	mustExec(t, other, `COMMIT`)
	if got := <-sixth; got != "refused" {
		t.Errorf("the sixth beside the fifth: got %s, want it refused", got)
	}
}

// Services read tokens again when the version has changed: after each change of a token or a
// budget, and not after a use.
func TestTokensVersionChanges(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.New(t).Owner)
	version := lines(t, conn, `SELECT version FROM plantstore.tokens_version`)[0]
	for _, test := range []struct {
		sql   string
		moves bool
	}{
		{`INSERT INTO plantstore.principals (name) VALUES ('a')`, false},
		{`INSERT INTO plantstore.tokens (principal, digest, scopes) VALUES ('a', sha256(''), '{}')`, true},
		{`UPDATE plantstore.tokens SET last_used_at = now()`, false},
		{`UPDATE plantstore.principals SET budget_used = 1`, false},
		{`UPDATE plantstore.principals SET budget = 1, budget_period = '1 day'`, true},
		{`UPDATE plantstore.tokens SET expires_at = now()`, true},
		{`UPDATE plantstore.tokens SET revoked_at = now()`, true},
		{`DELETE FROM plantstore.tokens`, true},
		{`TRUNCATE plantstore.tokens`, true},
	} {
		mustExec(t, conn, test.sql)
		next := lines(t, conn, `SELECT version FROM plantstore.tokens_version`)[0]
		if moved := next != version; moved != test.moves {
			t.Errorf("%s: the version changed: got %v, want %v", test.sql, moved, test.moves)
		}
		version = next
	}
}

func TestManualListsTheColumnsOfTheLedger(t *testing.T) {
	t.Parallel()
	want := lines(t, pgtest.Connect(t, pgtest.Shared(t).Super), `SELECT attname FROM pg_attribute WHERE attrelid = 'plantstore.deletions'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`)
	var got []string
	for _, row := range readme.Table(t, "migrations/README.md", "column") {
		got = append(got, strings.Split(row[0], ", ")...)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("columns of plantstore.deletions (-schema +migrations/README.md):\n%s", diff)
	}
}

func TestNullableColumns(t *testing.T) {
	t.Parallel()
	got := lines(t, pgtest.Connect(t, pgtest.Shared(t).Super), `SELECT table_name || ': ' || string_agg(column_name, ' ' ORDER BY ordinal_position) FROM information_schema.columns
		WHERE table_schema IN ('plantstore', 'public') AND table_name NOT IN ('goose_db_version', 'foreign_keys', 'recorded') AND is_nullable = 'YES' GROUP BY table_name ORDER BY 1`)
	want := []string{"cascaded: changed became", "deletions: request_id idempotency_key plant literal types refused restored_at restored_by", "principals: budget budget_period",
		"tokens: expires_at revoked_at last_used_at"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
}

func mustExec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// lines returns the first column as text.
func lines(t *testing.T, conn *pgx.Conn, sql string, args ...any) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, append([]any{pgx.QueryResultFormats{pgx.TextFormatCode}}, args...)...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) { return string(row.RawValues()[0]), nil })
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return all
}

// code returns an error's SQLSTATE, and "" for nil.
func code(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	} else if err != nil {
		return err.Error()
	}
	return ""
}
