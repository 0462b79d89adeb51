package doctor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	roles "plantstore/deploy/postgres"
	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/internal/postgres"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// examinationOf has everything but what the test's machine is.
func examinationOf(owner, service string) *examination {
	return &examination{Target: Target{Owner: owner, Service: service, OwnerSetting: "PLANTSTORE_MIGRATE_DATABASE_URL",
		ServiceSetting: "DATABASE_URL", Replicas: 1, Limits: UsualLimits}, isRemote: isRemote}
}

// troubles returns the findings that are not fine.
func troubles(t *testing.T, e *examination) []Finding {
	t.Helper()
	found := []Finding{}
	for _, f := range e.run(t.Context()) {
		if f.Check == "" || f.Grade == OK && f.Remedy != "" || f.Grade != OK && (f.Remedy == "" || f.Message == "") {
			t.Errorf("not a proper finding: %+v", f)
		}
		if f.Grade != OK {
			found = append(found, f)
		}
	}
	return found
}

// script runs SQL as psql does: statement by statement, each one that ends a line
// outside of a $$ body.
func script(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	statement := ""
	for line := range strings.Lines(sql + "\n") {
		statement += line
		if strings.HasSuffix(strings.TrimSpace(line), ";") && strings.Count(statement, "$$")%2 == 0 {
			if _, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
			statement = ""
		}
	}
	if strings.TrimSpace(statement) != "" {
		t.Fatalf("unfinished statement: %s", statement)
	}
}

// A provocation makes the doctor find something.
type provocation struct {
	name  string
	sql   string // run by a superuser; @db is the database, @somebody a role
	check string
	grade Grade
	want  string // pattern of the message
	ready bool   // the service stays ready all the same
	hints *hints
}

// hints are for provocations that need more than others.
type hints struct {
	limit func(*Limits)
	mend  string // SQL, where the remedy is in words
	found int    // how many findings there are, where it is more than one
}

// script returns the SQL of a provocation, with its names in it.
func (p provocation) script(t *testing.T, super, database string) string {
	t.Helper()
	somebody := "somebody_" + strings.ToLower(rand.Text())
	if strings.Contains(p.sql, "@somebody") {
		script(t, super, "CREATE ROLE "+somebody+";")
		t.Cleanup(func() {
			if err := postgres.Script(context.Background(), super, "DROP OWNED BY "+somebody+"; DROP ROLE "+somebody); err != nil {
				t.Error(err)
			}
		})
	}
	return strings.NewReplacer("@db", pgx.Identifier{database}.Sanitize(), "@somebody", somebody).Replace(p.sql) + ";"
}

// provoke holds that a provocation makes one finding, or more of one kind, where there was none;
// and that their remedies remove them, and make no other.
func provoke(t *testing.T, e *examination, super, database string, p provocation) {
	t.Helper()
	if p.hints != nil && p.hints.limit != nil {
		p.hints.limit(&e.Limits)
	}
	script(t, super, p.script(t, super, database))

	var remedies []string
	for _, f := range troubles(t, e) {
		if f.Check != p.check || f.Grade != p.grade || !regexp.MustCompile(`(?s)^`+p.want+`$`).MatchString(f.Message) {
			t.Errorf("finding %+v\nwant check %q, grade %s, message %s", f, p.check, p.grade, p.want)
		}
		remedies = append(remedies, f.Remedy)
	}
	if len(remedies) == 0 {
		t.Fatalf("nothing found, want %s", p.want)
	}
	if p.hints != nil && p.hints.found > 0 && len(remedies) != p.hints.found {
		t.Errorf("%d findings, want %d", len(remedies), p.hints.found)
	}
	if reason := unready(t, e.Service); (reason == "") != p.ready {
		t.Errorf("not ready because of %q, want it ready: %v", reason, p.ready)
	}
	if p.hints != nil && p.hints.mend != "" {
		remedies = []string{p.hints.mend}
	}
	for _, remedy := range remedies {
		t.Logf("remedy:\n%s", remedy)
		script(t, super, remedy)
	}
	if found := troubles(t, e); len(found) > 0 {
		t.Errorf("after the remedy: %+v, want nothing", found)
	}
	if reason := unready(t, e.Service); reason != "" {
		t.Errorf("after the remedy not ready because of %q", reason)
	}
}

func TestDoctorFindsNothingWrongWithANewDatabase(t *testing.T) {
	t.Parallel()
	database, other := pgtest.New(t), pgtest.New(t)
	script(t, other.Super, "GRANT CREATE ON DATABASE "+other.Name+" TO plantstore_app;") // which is no concern of this one
	// As a superuser: that the owner can't see everybody's transactions is a
	// finding of its own.
	e := examinationOf(database.Super, database.App)
	if found := troubles(t, e); len(found) > 0 {
		t.Errorf("%+v, want nothing", found)
	}
	checks := make(map[string]bool)
	for _, f := range e.run(t.Context()) {
		checks[f.Check] = true
	}
	if len(checks) != 16 {
		t.Errorf("checks %v, want 16", checks)
	}
}

func TestDoctorFindsAndTellsWhatHelps(t *testing.T) {
	t.Parallel()
	const orders = `CREATE TABLE "order items" (no int, "plant's" bigint CONSTRAINT "to plant" REFERENCES plants `
	unrecorded := " or its function is not what the migrations made it"
	tests := []provocation{
		{"record trigger disabled", `ALTER TABLE plants DISABLE TRIGGER plantstore_record_deletion`, "record", Problem,
			"trigger plantstore_record_deletion is disabled: plants leave without a record", false, nil},
		{"record trigger on replicas only", `ALTER TABLE plants ENABLE REPLICA TRIGGER plantstore_record_deletion`, "record", Problem,
			"trigger plantstore_record_deletion is disabled: plants leave without a record", false, nil},
		{"truncate trigger disabled", `ALTER TABLE plants DISABLE TRIGGER plantstore_refuse_truncate`, "record", Problem,
			"trigger plantstore_refuse_truncate is disabled: plants leave without a record", false, nil},
		{"record trigger missing", `DROP TRIGGER plantstore_record_deletion ON plants`, "record", Problem,
			"trigger plantstore_record_deletion is missing: .*", false, nil},
		{"truncate function missing", `DROP FUNCTION plantstore_refuse_truncate() CASCADE`, "record", Problem,
			"trigger plantstore_refuse_truncate is missing: .*", false, nil},
		{"record trigger with a condition", "DROP TRIGGER plantstore_record_deletion ON plants;\nCREATE TRIGGER plantstore_record_deletion AFTER DELETE ON plants REFERENCING OLD TABLE AS gone FOR EACH STATEMENT WHEN (current_user <> 'x') EXECUTE FUNCTION plantstore_record_deletion()",
			"record", Problem, "trigger plantstore_record_deletion" + unrecorded, false, nil},
		{"record function rewritten", `CREATE OR REPLACE FUNCTION plantstore_record_deletion() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'BEGIN RETURN NULL; END'`,
			"record", Problem, "trigger plantstore_record_deletion" + unrecorded, false, nil},
		{"record function as its caller", `ALTER FUNCTION plantstore_record_deletion() SECURITY INVOKER`, "record", Problem,
			"trigger plantstore_record_deletion" + unrecorded, false, nil},
		{"record function's path", `ALTER FUNCTION plantstore_record_deletion() SET search_path = public, pg_catalog`, "record", Problem,
			"trigger plantstore_record_deletion" + unrecorded, false, nil},

		{"insert granted", `GRANT INSERT ON plants TO plantstore_app`, "grants", Problem, "plantstore_app has INSERT ON public.plants, which .*", true, nil},
		{"ledger granted", `GRANT ALL ON plant_deletions TO plantstore_app`, "grants", Problem, `plantstore_app has \w+ ON public.plant_deletions, which .*`, true, nil},
		{"a column granted", `GRANT UPDATE (digest), SELECT (digest) ON api_tokens TO plantstore_app`, "grants", Problem,
			`plantstore_app has \w+ \(digest\) ON public.api_tokens, which .*`, true, nil},
		{"a sequence granted", `GRANT USAGE ON SEQUENCE plants_id_seq TO plantstore_app`, "grants", Problem, "plantstore_app has USAGE ON SEQUENCE public.plants_id_seq, which .*", true, nil},
		{"granted to everybody", `GRANT DELETE, TRUNCATE ON plants TO PUBLIC`, "grants", Problem, `everybody has \w+ ON public.plants, which .*`, true, nil},
		{"another table granted", "CREATE SCHEMA \"Shop\";\nCREATE TABLE \"Shop\".\"Orders\" (n int);\nGRANT SELECT ON \"Shop\".\"Orders\" TO plantstore_app", "grants", Problem,
			`plantstore_app has SELECT ON "Shop"."Orders", which .*`, true, nil},
		{"create in public", `GRANT CREATE ON SCHEMA public TO plantstore_app`, "grants", Problem, "plantstore_app has CREATE ON SCHEMA public, which .*", true, nil},
		{"the trigger's function", `GRANT EXECUTE ON FUNCTION plantstore_record_deletion() TO PUBLIC`, "grants", Problem,
			`everybody has EXECUTE ON FUNCTION public.plantstore_record_deletion\(\), which .*`, true, nil},
		{"to be passed on", `GRANT DELETE ON plants TO plantstore_app WITH GRANT OPTION`, "grants", Problem, "plantstore_app may pass DELETE ON public.plants on to others", true, nil},
		{"delete revoked", `REVOKE DELETE ON plants FROM plantstore_app`, "grants", Problem, "plantstore_app lacks DELETE ON public.plants", false, nil},
		{"everything revoked", "REVOKE ALL ON ALL TABLES IN SCHEMA public FROM plantstore_app;\nREVOKE SELECT (id, xmax) ON plants FROM plantstore_app;\nREVOKE USAGE ON SCHEMA public FROM plantstore_app, PUBLIC",
			"grants", Problem, "plantstore_app lacks .*", false, nil},
		{"an owner", `CREATE TABLE x (n int);
			ALTER TABLE x OWNER TO plantstore_app`, "grants", Problem, "plantstore_app owns table public.x in this database", true, nil},

		{"no index", orders + `)`, "foreign keys", Warning, `each deletion scans public."order items" \(0 bytes\): foreign key "to plant" has no index`, true, nil},
		{"an index for some rows", orders + ");\n" + `CREATE INDEX ON "order items" ("plant's") WHERE no > 5`, "foreign keys", Warning, `each deletion scans .*`, true, nil},
		{"an index with the column last", orders + ");\n" + `CREATE INDEX ON "order items" (no, "plant's")`, "foreign keys", Warning, `each deletion scans .*`, true, nil},
		{"an index of a block at a time", orders + ");\n" + `CREATE INDEX ON "order items" USING brin ("plant's")`, "foreign keys", Warning, `each deletion scans .*`, true, nil},
		{"an index that can't look for a bigint", "CREATE EXTENSION btree_gist;\n" + `CREATE TABLE "order items" ("plant's" int REFERENCES plants);
			CREATE INDEX ON "order items" USING gist ("plant's")`, "foreign keys", Warning, `each deletion scans .*`, true, nil},
		{"no index, in parts", "CREATE TABLE sales (day date, plant bigint REFERENCES plants) PARTITION BY RANGE (day);\nCREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');\nINSERT INTO sales VALUES ('2026-05-05')",
			"foreign keys", Warning, `each deletion scans public.sales \(8192 bytes\): foreign key sales_plant_fkey has no index`, true, nil},
		{"no index on plants itself", `ALTER TABLE plants ADD parent bigint REFERENCES plants`, "foreign keys", Warning,
			`each deletion scans public.plants \(8192 bytes\): foreign key plants_parent_fkey has no index`, true, nil},

		{"cascade", orders + "ON DELETE CASCADE);\n" + `CREATE INDEX ON "order items" ("plant's")`, "cascades", Warning,
			`deleting a plant also removes rows of public."order items", which the ledger does not keep: ANALYZE tells how many`, true, nil},
		{"cascade, analyzed", orders + "ON DELETE CASCADE DEFERRABLE);\n" + `CREATE INDEX ON "order items" ("plant's");
			INSERT INTO plants (name) SELECT 'x' FROM generate_series(1, 100);
			INSERT INTO "order items" SELECT i, 1 + i % 100 FROM generate_series(1, 350) i;
			ANALYZE "order items"`, "cascades", Warning,
			`deleting a plant also removes rows of public."order items", which the ledger does not keep: about 3.5 of its 350 rows for each row of public.plants`, true, nil},
		{"set null", orders + "ON DELETE SET NULL);\n" + `CREATE INDEX ON "order items" ("plant's")`, "cascades", Warning, `deleting a plant also empties columns of public."order items", .*`, true, nil},
		{"cascade of a cascade", `CREATE TABLE a (n int PRIMARY KEY, plant bigint UNIQUE REFERENCES plants ON DELETE CASCADE);
			CREATE TABLE b (a int REFERENCES a ON DELETE CASCADE);
			CREATE TABLE c (a int REFERENCES a ON DELETE SET DEFAULT);
			CREATE TABLE d (a int REFERENCES a)`, "cascades", Warning,
			`deleting a plant also (removes rows of public.a|removes rows of public.b by way of public.a|changes columns of public.c by way of public.a), .*`, true, nil},
		{"cascade, in parts", `CREATE TABLE sales (day date, plant bigint REFERENCES plants ON DELETE CASCADE) PARTITION BY RANGE (day);
			CREATE INDEX ON sales (plant)`, "cascades", Warning, `deleting a plant also removes rows of public.sales, .*`, true, nil},
		{"set null in plants", `ALTER TABLE plants ADD parent bigint UNIQUE REFERENCES plants ON DELETE SET NULL`, "cascades", Warning,
			`deleting a plant also empties columns of public.plants, .*`, true, nil},

		{"read-only", `ALTER DATABASE @db SET default_transaction_read_only = on`, "primary", Problem, "transactions are read-only by default: .*", true, nil},
		{"read-only for the service", `ALTER ROLE plantstore_app IN DATABASE @db SET default_transaction_read_only = Yes`, "primary", Problem, "transactions are read-only by default: .*", true, nil},
		{"few connections to the database", `ALTER DATABASE @db CONNECTION LIMIT 3`, "connections", Problem, `the service opens up to \d+ connections .*, the database takes 3`, true, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			provoke(t, examinationOf(database.Super, database.App), database.Super, database.Name, tt)
		})
	}
}

// What a cascade deletes may be published, too, and PostgreSQL refuses to delete what it
// can't publish.
func TestDoctorOnACascadeIntoWhatIsPublished(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	script(t, database.Super, `CREATE TABLE tags (plant bigint UNIQUE REFERENCES plants ON DELETE CASCADE);
		CREATE TABLE notes (n int PRIMARY KEY, plant bigint UNIQUE REFERENCES plants ON DELETE CASCADE);
		INSERT INTO plants (id, name) VALUES (1, 'Fern');
		INSERT INTO tags VALUES (1);
		CREATE PUBLICATION "Feed" FOR ALL TABLES;`)
	const remove = `DELETE FROM plants WHERE id = 1`
	super := pgtest.Connect(t, database.Super)
	if _, err := super.Exec(t.Context(), remove); err == nil {
		t.Fatal("the plant can be deleted, want that PostgreSQL refuses it")
	}
	const want = `publication "Feed" publishes what deleting a plant does to public.tags, which has no replica identity: PostgreSQL refuses to delete plants that rows of it refer to`
	told := 0
	for _, f := range troubles(t, examinationOf(database.Super, database.App)) {
		switch {
		case f.Message == want && f.Grade == Warning:
			told++
			script(t, database.Super, f.Remedy)
		case strings.HasPrefix(f.Message, "publication "):
			t.Errorf("told %+v", f)
		}
	}
	if _, err := super.Exec(t.Context(), remove); err != nil || told != 1 {
		t.Errorf("told %d times: %s\nafter the remedy: %v", told, want, err)
	}
}

// Of a key with a period an index on the other columns is enough, and one that btree can
// make. PostgreSQL has them since 18.
func TestDoctorOnAForeignKeyWithAPeriod(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	var version int
	if err := pgtest.Pool(t, database.Super).QueryRow(t.Context(), `SELECT current_setting('server_version_num')::int / 10000`).Scan(&version); err != nil {
		t.Fatal(err)
	}
	if version < 18 {
		return // there is no such key on this version
	}
	script(t, database.Super, `CREATE EXTENSION btree_gist;
		ALTER TABLE plants ADD grown daterange NOT NULL DEFAULT 'empty';
		ALTER TABLE plants ADD UNIQUE (id, grown WITHOUT OVERLAPS);`)
	provoke(t, examinationOf(database.Super, database.App), database.Super, database.Name, provocation{
		"no index", `CREATE TABLE beds (during daterange, plant bigint, FOREIGN KEY (plant, PERIOD during) REFERENCES plants (id, PERIOD grown))`, "foreign keys", Warning,
		`each deletion scans public.beds \(\d+ bytes\): foreign key beds_plant_during_fkey has no index`, true, nil})
}

func TestDoctorLeavesGoodForeignKeysAlone(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	script(t, database.Super, `
		CREATE EXTENSION btree_gist;
		CREATE TABLE bookings (plant bigint REFERENCES plants, during tstzrange, EXCLUDE USING gist (plant WITH =, during WITH &&));
		CREATE TABLE sizes (plant int REFERENCES plants);
		CREATE INDEX ON sizes (plant);`)
	var major int
	if err := pgtest.Pool(t, database.Super).QueryRow(t.Context(), `SELECT current_setting('server_version_num')::int / 10000`).Scan(&major); err != nil {
		t.Fatal(err)
	}
	if major >= 18 {
		script(t, database.Owner, `CREATE TABLE hints (plant bigint REFERENCES plants ON DELETE CASCADE NOT ENFORCED);`)
		script(t, database.Super, `ALTER TABLE plants ADD grown daterange NOT NULL DEFAULT 'empty';
			ALTER TABLE plants ADD UNIQUE (id, grown WITHOUT OVERLAPS);
			CREATE TABLE beds (plant bigint, during daterange, PRIMARY KEY (plant, during WITHOUT OVERLAPS), FOREIGN KEY (plant, PERIOD during) REFERENCES plants (id, PERIOD grown));`)
	}
	script(t, database.Owner, `
		CREATE TABLE a (plant bigint PRIMARY KEY REFERENCES plants);
		CREATE TABLE b (plant bigint REFERENCES plants ON DELETE RESTRICT, n int);
		CREATE INDEX ON b USING hash (plant);
		CREATE TABLE c (plant bigint REFERENCES plants, n int, PRIMARY KEY (plant, n));
		ALTER TABLE plants ADD parent bigint UNIQUE REFERENCES plants ON DELETE CASCADE;`)
	if found := troubles(t, examinationOf(database.Super, database.App)); len(found) > 0 {
		t.Errorf("%+v, want nothing", found)
	}
}

func TestDoctorFindsOpenTransactions(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	tx, err := pgtest.Pool(t, database.Owner).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	e := examinationOf(database.Super, database.App)
	if found := troubles(t, e); len(found) > 0 {
		t.Errorf("%+v, want nothing while it is young", found)
	}
	e.Limits.Transaction = 0
	script(t, database.Super, "SELECT pg_sleep(1);")
	found := troubles(t, e)
	if len(found) != 1 || !regexp.MustCompile(`^a transaction of plantstore_owner \(unnamed, process \d+\) is open for 00:\d\d:(0[1-9]|[1-5]\d)$`).MatchString(found[0].Message) {
		t.Fatalf("%+v, want one open transaction, since seconds ago", found)
	}
	script(t, database.Super, found[0].Remedy)
	// The terminated session ends soon, not at once.
	for deadline := time.Now().Add(time.Minute); len(found) > 0; found = troubles(t, e) {
		if time.Now().After(deadline) {
			t.Fatalf("after the remedy: %+v, want nothing", found)
		}
	}
}

func TestDoctorFindsALedgerToPurge(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	owner := pgtest.Pool(t, database.Owner)
	exec := func(sql string) {
		t.Helper()
		if _, err := owner.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	e := examinationOf(database.Super, database.App)
	if all := e.run(t.Context()); !slices.ContainsFunc(all, func(f Finding) bool {
		return f.Check == "ledger" && f.Grade == OK && regexp.MustCompile(`^empty, \d+ (bytes|kB)$`).MatchString(f.Message)
	}) {
		t.Errorf("%+v, want an empty ledger", all)
	}
	exec(`INSERT INTO plant_shapes (attributes, names, types, generated) VALUES ('{}', '{}', '{}', '{}')`)
	for _, tt := range []struct {
		entries     int
		apart, want string
	}{
		{1, "1 minute", `, 1 entry since \d{4}-\d\d-\d\d`},
		{20, "1 hour", `, 20 entries since \d{4}-\d\d-\d\d`},
		{3, "100 days", `, since \d{4}-\d\d-\d\d; lately less than 1 entry a day`},
		{10000, "90 milliseconds", `, since \d{4}-\d\d-\d\d; lately 10000 entries in 1[5-9]m\d+s, about \d+ kB`},
		{9000, "1 hour", `, since \d{4}-\d\d-\d\d; lately 24 entries a day, about \d+ (bytes|kB)`},
	} {
		exec(fmt.Sprintf(`INSERT INTO plant_deletions (plant_id, shape, plant, deleted_by, deleted_at)
			SELECT i, 1, '()', 'x', now() - i * interval '%s' FROM generate_series(%d, 1, -1) i`, tt.apart, tt.entries))
		all := e.run(t.Context())
		got := all[slices.IndexFunc(all, func(f Finding) bool { return f.Check == "ledger" })]
		if got.Grade != OK || !regexp.MustCompile(`^\d+ kB`+tt.want+`$`).MatchString(got.Message) {
			t.Errorf("with %d entries, %s apart: %+v, want %q", tt.entries, tt.apart, got, tt.want)
		}
		exec(`DELETE FROM plant_deletions`)
	}
	exec(`INSERT INTO plant_deletions (plant_id, shape, plant, deleted_by, deleted_at) SELECT i, 1, '()', 'x', now() - i * interval '1 day' FROM generate_series(400, 1, -1) i`)
	if found := troubles(t, e); len(found) > 0 {
		t.Errorf("%+v, want nothing while the ledger is small", found)
	}
	e.Limits.LedgerBytes = 1000
	found := troubles(t, e)
	if len(found) != 1 || found[0].Check != "ledger" || found[0].Remedy != "plantstore deletions purge --older-than 365d" ||
		!regexp.MustCompile(`^\d+ kB, since 20\d\d-\d\d-\d\d; lately 1 entry a day, about \d+ bytes: more than may be needed$`).MatchString(found[0].Message) {
		t.Fatalf("%+v, want the ledger to be purged", found)
	}
	exec(`DELETE FROM plant_deletions WHERE deleted_at < now() - interval '365 days'`)
	if found := troubles(t, e); len(found) > 0 {
		t.Errorf("after the remedy: %+v, want nothing", found)
	}
}

func TestDoctorComparesPoolsWithTheServer(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	e := examinationOf(database.Super, pgtest.WithParameters(database.App, "pool_max_conns=200"))
	e.Replicas = 5
	found := troubles(t, e)
	if len(found) != 1 || found[0].Check != "connections" || found[0].Grade != Problem {
		t.Fatalf("%+v, want too many connections", found)
	}
	setting := regexp.MustCompile(`pool_max_conns=\d+`).FindString(found[0].Remedy)
	e.Service = pgtest.WithParameters(database.App, setting)
	if found := troubles(t, e); len(found) > 0 {
		t.Errorf("with %s: %+v, want nothing", setting, found)
	}
	// What is too small to work is not recommended.
	e.Replicas = 50
	e.Service = pgtest.WithParameters(database.App, "pool_max_conns=1")
	want := fmt.Sprintf("Raise max_connections, or run fewer replicas: each opens up to %d connections at the least.", postgres.LeastConns)
	if found := troubles(t, e); len(found) != 1 || found[0].Remedy != want {
		t.Errorf("50 replicas: %+v, want %q", found, want)
	}
}

func TestDoctorJudgesVersions(t *testing.T) {
	t.Parallel()
	for number, want := range map[int]Grade{140023: Problem, 150000: OK, 150018: OK, 180004: OK, 190000: Warning} {
		if got := judgeVersion(number, "x"); got.Grade != want || (want == OK) != (got.Remedy == "") {
			t.Errorf("version %d: %+v, want %s", number, got, want)
		}
	}
}

func TestDoctorWithoutDatabase(t *testing.T) {
	t.Parallel()
	const nowhere = "postgres://nobody@127.0.0.1:1/none?sslmode=disable"
	found := troubles(t, examinationOf(nowhere, nowhere))
	if len(found) != 2 || found[0].Check != "service connection" || found[1].Check != "connection" ||
		!strings.Contains(found[1].Message, "127.0.0.1:1: connection refused") {
		t.Errorf("%+v, want both connections refused and nothing else", found)
	}
}

func TestDoctorOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	e := examinationOf(database.Super, database.App)
	found := troubles(t, e)
	if len(found) != 1 || found[0].Check != "schema" {
		t.Errorf("%+v, want only what is wrong with the schema", found)
	}
}

func TestDoctorOnWhatTheServiceConnectsWith(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	e := examinationOf(database.Super, database.Owner)
	found := troubles(t, e)
	const nothing = "the service connects as plantstore_owner, who is no member of plantstore_app: "
	if len(found) != 1 || found[0].Check != "service connection" || found[0].Grade != Problem || found[0].Message != nothing+"what it deletes would be recorded in the name of that role, and is taken back" {
		t.Errorf("%+v, want the service's role to be wrong", found)
	}
	if why := unready(t, database.Owner); !strings.HasPrefix(why, nothing) {
		t.Errorf("not ready: %q; want %s …", why, nothing)
	}
	if why := unready(t, database.Super); why != "" {
		t.Errorf("as a superuser, not ready: %q; want ready", why)
	}
	e.Service = database.Super
	if found := troubles(t, e); len(found) != 1 || found[0].Grade != Warning || found[0].Message != "the service connects as postgres and may do all that postgres may" {
		t.Errorf("%+v, want a warning of what the service may do", found)
	}
	e.Service = ""
	if found := troubles(t, e); len(found) != 1 || found[0].Message != "not examined: DATABASE_URL is not set" {
		t.Errorf("%+v, want the service's connection not examined", found)
	}
	// Asked by the service's role, it says what it could not look at.
	e = examinationOf(database.App, database.App)
	script(t, database.Super, `REVOKE SELECT ON api_tokens FROM plantstore_app;`)
	var hidden bool
	for _, f := range troubles(t, e) {
		hidden = hidden || f.Check == "tokens" && strings.HasPrefix(f.Message, "could not be examined: permission denied for table api_tokens")
	}
	if !hidden {
		t.Error("tokens that could not be examined are not a finding")
	}
}

// Who may not use the schema sees nothing in it, and is told of that alone.
func TestOutsideTheSchema(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	script(t, database.Super, "REVOKE ALL ON SCHEMA public FROM PUBLIC, plantstore_owner;")
	want := []Finding{{Check: "rights", Grade: Problem, Message: "plantstore_owner may not use schema public: nothing else could be examined", Remedy: "GRANT USAGE ON SCHEMA public TO plantstore_owner;"}}
	found := troubles(t, examinationOf(database.Owner, database.App))
	if diff := cmp.Diff(want, found); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	script(t, database.Super, found[0].Remedy)
	if found := troubles(t, examinationOf(database.Owner, database.App)); Worst(found) == Problem {
		t.Errorf("after the remedy: %+v, want no problem", found)
	}
}

// A look that fails is told for what it is: nothing is found that is not so, and nothing
// is said to be fine.
func TestWhatCantBeExaminedIsTold(t *testing.T) {
	t.Parallel()
	for revoked, checks := range map[string][]string{
		`EXECUTE ON FUNCTION pg_catalog.current_setting(text)`:   {"version", "connections"},
		`EXECUTE ON FUNCTION pg_catalog.pg_is_in_recovery()`:     {"primary"},
		`SELECT ON pg_catalog.pg_db_role_setting`:                {"primary"},
		`SELECT ON pg_catalog.pg_database`:                       {"primary", "connections", "grants"},
		`SELECT ON pg_catalog.pg_stat_activity`:                  {"connections", "transactions"},
		`SELECT ON pg_catalog.pg_prepared_xacts`:                 {"transactions"},
		`EXECUTE ON FUNCTION pg_catalog.pg_has_role(name, text)`: {"transactions"},
		`SELECT ON pg_catalog.pg_index`:                          {"schema", "foreign keys"},
		`SELECT ON pg_catalog.pg_roles`:                          {"schema", "plants", "rights", "names", "record", "grants"},
		`EXECUTE ON FUNCTION pg_catalog.to_regclass(text)`:       {"plants", "rights", "names", "record", "grants"},
		`SELECT ON pg_catalog.pg_rewrite`:                        {"plants", "record"},
		`SELECT ON pg_catalog.pg_default_acl`:                    {"rights"},
		`SELECT ON pg_catalog.pg_shdepend`:                       {"grants"},
		`SELECT ON pg_catalog.pg_proc`:                           {"names", "record", "grants"},
		`SELECT ON pg_catalog.pg_constraint`:                     {"foreign keys", "cascades"},
		`SELECT ON pg_catalog.pg_stats`:                          {"cascades"},
		`EXECUTE ON FUNCTION pg_catalog.pg_backend_pid()`:        {"service connection", "connection"},
		`SELECT ON public.goose_db_version`:                      {"schema"},
		`SELECT ON public.plant_deletions`:                       {"record", "ledger"},
		`SELECT ON public.api_tokens`:                            {"tokens"},
	} {
		t.Run(revoked, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			e := examinationOf(database.Owner, database.App)
			others := regexp.MustCompile(`others have \d+ open`) // other tests
			examined := func() []Finding {
				found := e.run(t.Context())
				for i := range found {
					found[i].Message = others.ReplaceAllString(found[i].Message, "others have some open")
				}
				return found
			}
			before := examined()
			script(t, database.Super, "REVOKE "+revoked+" FROM PUBLIC, plantstore_owner;")
			told := make(map[string]bool)
			for _, f := range examined() {
				failed := regexp.MustCompile(`^(could not be examined|the migrations can't be read|could not find out about a pooler): .*permission denied`).MatchString(f.Message)
				if failed && f.Grade != OK && f.Remedy != "" {
					told[f.Check] = true
				} else if !slices.Contains(before, f) && f.Message != "plantstore_owner, who owns the ledger, lacks "+strings.Replace(revoked, " ON ", " on ", 1) {
					t.Errorf("%+v is not so", f)
				}
			}
			for _, check := range checks {
				if !told[check] {
					t.Errorf("nothing is told of %q; these could not be examined: %v", check, told)
				}
			}
			if _, err := service().Plan(t.Context(), database.Owner); err == nil && (told["plants"] || told["rights"] || told["names"]) {
				t.Error("a plan was made all the same")
			}
		})
	}
}

func TestDoctorJudgesTokens(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	tests := []struct {
		name   string
		tokens string // created_at, expires_at, revoked_at, last_used_at of each: days from now
		want   string // pattern of the message; empty: all is well
		remedy string
	}{
		{"good", "(-40, 90, NULL, 0)", "", ""},
		{"new", "(-29, 90, NULL, NULL)", "", ""},
		{"forgotten", "(-31, 90, NULL, NULL)", "the token of forgotten was never used since 20.*", "revoke"},
		{"ends", "(-40, 13, NULL, 0)", "the token of ends expires on 20.*", "rotate"},
		{"ends-later", "(-40, 15, NULL, 0)", "", ""},
		{"forever", "(-40, NULL, NULL, 0)", "the token of forever never expires", "rotate"},
		{"forgotten-forever", "(-31, NULL, NULL, NULL)", "the token of forgotten-forever was never used since 20.*", "revoke"},
		{"ended", "(-40, -1, NULL, 0)", "", ""},
		{"ended-unused", "(-40, -1, NULL, NULL)", "", ""},
		{"revoked", "(-40, NULL, -1, NULL)", "", ""},
		{"not-changed-over", "(-60, 5, NULL, 0), (-31, 90, NULL, NULL)", "the newest token of not-changed-over was never used since 20.*: its client has not changed over", "rotate"},
		{"not-changed-from-forever", "(-60, NULL, NULL, 0), (-31, 90, NULL, NULL)", "the newest token of not-changed-from-forever was never used since .*", "rotate"},
		{"old-ended", "(-60, -1, NULL, 0), (-31, 90, NULL, NULL)", "the token of old-ended was never used since .*", "revoke"},
		{"old-revoked", "(-60, 90, -1, 0), (-31, 90, NULL, NULL)", "the token of old-revoked was never used since .*", "revoke"},
		{"changed-over", "(-60, 5, NULL, 0), (-20, 90, NULL, 0)", "", ""},
		{"newest-revoked", "(-60, 5, NULL, 0), (-20, 90, -1, 0)", "the token of newest-revoked expires on 20.*", "rotate"},
	}
	for _, tt := range tests {
		script(t, database.Super, fmt.Sprintf(`INSERT INTO api_principals (name) VALUES ('%s');
			INSERT INTO api_tokens (principal, digest, scopes, created_at, expires_at, revoked_at, last_used_at)
			SELECT '%[1]s', sha256(('%[1]s' || row_number() OVER ())::bytea), '{}', now() + a * interval '1 day', now() + b::int * interval '1 day',
				now() + c::int * interval '1 day', now() + d::int * interval '1 day' FROM (VALUES %s) t (a, b, c, d);`, tt.name, tt.tokens))
	}
	found := troubles(t, examinationOf(database.Super, database.App))
	for _, tt := range tests {
		i := slices.IndexFunc(found, func(f Finding) bool {
			return f.Check == "tokens" && f.Grade == Warning && f.Remedy == "plantstore token "+tt.remedy+" "+tt.name && regexp.MustCompile(`^`+tt.want+`$`).MatchString(f.Message)
		})
		switch {
		case tt.want != "" && i < 0:
			t.Errorf("%s: nothing is told, want %s, and to %s it", tt.name, tt.want, tt.remedy)
		case tt.want != "":
			found = slices.Delete(found, i, i+1)
		}
	}
	if len(found) > 0 {
		t.Errorf("%+v are told, too", found)
	}
}

// oldest makes it look as if there were about as many transactions left. The server itself
// goes on, as it has worked that out already.
func oldest(left int64) string {
	return fmt.Sprintf(`SET allow_system_table_mods = on;
UPDATE pg_database SET datfrozenxid = ((pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 4294967296 - 2144483647 + %d) %% 4294967296)::text::xid WHERE datname = 'template1';`, left)
}

// What concerns a whole server is provoked on one of its own.
func TestDoctorOnAServer(t *testing.T) {
	t.Parallel()
	server, err := localpg.Start(t.Context(), localpg.Options{Settings: map[string]string{
		"fsync": "off", "wal_level": "logical", "max_prepared_transactions": "5", "max_connections": "100"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	super := server.URL("postgres", "postgres")
	owner, app := server.URL("plantstore_owner", "postgres"), server.URL("plantstore_app", "postgres")
	if err := postgres.Script(t.Context(), super, roles.SQL); err != nil {
		t.Fatal(err)
	}
	if _, err := migrate.Service().Up(t.Context(), owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}

	blind := troubles(t, examinationOf(owner, app))
	if len(blind) != 1 || blind[0].Grade != Warning || blind[0].Message != "plantstore_owner can't see how long the transactions of others are open" {
		t.Fatalf("%+v, want the owner to be blind", blind)
	}
	script(t, super, blind[0].Remedy)
	if found := troubles(t, examinationOf(owner, app)); len(found) > 0 {
		t.Errorf("after the remedy: %+v, want nothing", found)
	}
	t.Run("as many connections as fit", func(t *testing.T) {
		script(t, super, "ALTER ROLE plantstore_app CONNECTION LIMIT 150;\nALTER DATABASE postgres CONNECTION LIMIT 150;")
		pgtest.Connect(t, app) // not one of the others
		watch, leader := pgtest.Connect(t, super), pgtest.Connect(t, owner)
		// A worker that helps a session is none.
		if _, err := leader.Exec(t.Context(), `SELECT set_config(name, 'on', false) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query')`); err != nil {
			t.Fatal(err)
		}
		ctx, wake := context.WithCancel(t.Context())
		asleep := make(chan error, 1)
		go func() {
			_, err := leader.Exec(ctx, `SELECT pg_sleep(600)`)
			asleep <- err
		}()
		defer func() { wake(); <-asleep }()
		for helpers := 0; helpers == 0; time.Sleep(time.Millisecond) {
			if err := watch.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'`).Scan(&helpers); err != nil {
				t.Fatal(err)
			}
		}
		const allowed = 97 // of 100, less those for superusers
		connections := func(pool int) (found Finding) {
			e := examinationOf(super, pgtest.WithParameters(app, fmt.Sprintf("pool_max_conns=%d", pool)))
			for _, f := range e.run(t.Context()) {
				if f.Check == "connections" {
					found = f
				}
			}
			return found
		}
		// The end of the sessions of before is seen soon, not at once.
		settled := func(pool int) Finding {
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				if found := connections(pool); strings.Contains(found.Message, "others have 2 open") || time.Now().After(deadline) {
					return found
				}
			}
		}
		for pool, want := range map[int]Grade{allowed - 2: OK, allowed - 1: Warning, allowed: Warning, allowed + 1: Problem} {
			message := fmt.Sprintf("the service opens up to %d connections (pool_max_conns %[1]d, replicas 1), the server allows %d, and others have 2 open", pool, allowed)
			if want == OK {
				message = fmt.Sprintf("the service opens up to %d connections (pool_max_conns %[1]d, replicas 1); the server allows %d, others have 2 open", pool, allowed)
			}
			if found := settled(pool); found.Grade != want || found.Message != message {
				t.Errorf("pool of %d: %+v, want %s, %s", pool, found, want, message)
			}
		}
		for limit, want := range map[int]Grade{24: Problem, 25: OK} {
			script(t, super, fmt.Sprintf("ALTER ROLE plantstore_app CONNECTION LIMIT %d;\nALTER DATABASE postgres CONNECTION LIMIT %[1]d;", limit))
			if found := connections(25); found.Grade != want {
				t.Errorf("limit of %d for a pool of 25: %+v, want %s", limit, found, want)
			}
		}
		script(t, super, "ALTER ROLE plantstore_app CONNECTION LIMIT -1;\nALTER DATABASE postgres CONNECTION LIMIT -1;")
	})
	for _, tt := range []provocation{
		{"attributes", `ALTER ROLE plantstore_app SUPERUSER CREATEROLE CREATEDB REPLICATION BYPASSRLS`, "grants", Problem,
			"plantstore_app is (SUPERUSER|CREATEROLE|CREATEDB|REPLICATION|BYPASSRLS)", true, nil},
		{"membership", `GRANT pg_read_all_data TO plantstore_app`, "grants", Problem, "plantstore_app is a member of pg_read_all_data", true, nil},
		{"a member", `GRANT plantstore_app TO @somebody`, "rights", Warning, `somebody_\w+ is a member of plantstore_app, and can delete in the name of whomever it likes`, true, nil},
		{"a password whose time is over", `ALTER ROLE plantstore_app VALID UNTIL '2026-11-01T12:00:00Z'`, "rights", Warning,
			"if role plantstore_app logs in with a password, none lets it in since 2026-11-01T12:00:00Z", true, nil},
		{"a password that never let anybody in", `ALTER ROLE plantstore_app VALID UNTIL '-infinity'`, "rights", Warning,
			"if role plantstore_app logs in with a password, none lets it in at any time", true, nil},
		{"a password whose time ends", `DO $$ BEGIN EXECUTE format('ALTER ROLE plantstore_owner VALID UNTIL %L', now() + interval '13 days'); END $$`, "rights", Warning,
			`if role plantstore_owner logs in with a password, none lets it in after \S+Z`, true, nil},
		{"rows that nobody counts", `ALTER DATABASE postgres SET track_counts = off`, "record", Warning, "track_counts is off in this database: an alert .*", true, nil},
		{"rows of the service that nobody counts", `ALTER ROLE plantstore_app SET track_counts = No`, "record", Warning, "track_counts is off for role plantstore_app: an alert .*", true, nil},
		{"rows of the service that nobody counts here", `ALTER ROLE plantstore_app IN DATABASE postgres SET track_counts = off`, "record", Warning, "track_counts is off for role plantstore_app: .*", true, nil},
		{"rows that nobody counts on the server", "ALTER SYSTEM SET track_counts = off;\nSELECT pg_reload_conf();", "record", Warning, "track_counts is off on this server: .*", true, nil},
		{"replica for all roles", `ALTER ROLE ALL SET session_replication_role = replica`, "plants", Problem, "session_replication_role is replica for all roles: plants leave without a record", false, nil},
		{"replica on the server", "ALTER SYSTEM SET session_replication_role = replica;\nSELECT pg_reload_conf();", "plants", Problem,
			"session_replication_role is replica on this server: plants leave without a record", false, nil},
		{"no transaction ids", oldest(0), "plants", Problem, "no transaction ids are left until database template1 is vacuumed: nothing can be deleted", false, &hints{mend: oldest(1_000_000_000)}},
		{"few transaction ids", oldest(36_000_000), "plants", Warning, `in 3[56]\d{6} transactions none is possible any more until database template1 is vacuumed: nothing can be deleted then`, true, &hints{mend: oldest(1_000_000_000)}},
		{"connection limit", `ALTER ROLE plantstore_app CONNECTION LIMIT 2`, "connections", Problem, `the service opens up to .*, role plantstore_app may have 2`, true, nil},
		{"prepared transaction", "BEGIN;\nINSERT INTO plants (name) VALUES ('x');\nPREPARE TRANSACTION 'it''s'", "transactions", Warning,
			`prepared transaction 'it''s' of postgres waits for its end since .*`, true, &hints{limit: func(l *Limits) { l.Transaction = time.Microsecond }}},
		{"replication slot", `SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')`, "transactions", Warning,
			"replication slot forgotten holds old rows back and is used by nobody", true, nil},
		{"read-only server", "ALTER SYSTEM SET default_transaction_read_only = on;\nSELECT pg_reload_conf();", "primary", Problem,
			"transactions are read-only by default: .*", true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) { provoke(t, examinationOf(super, app), super, "postgres", tt) })
	}
	t.Run("rows that are not counted of whoever examines", func(t *testing.T) {
		script(t, super, "ALTER ROLE postgres SET track_counts = off; ALTER ROLE plantstore_owner IN DATABASE postgres SET track_counts = off;")
		if found := troubles(t, examinationOf(super, app)); len(found) > 0 {
			t.Errorf("%+v, want nothing", found)
		}
		script(t, super, "ALTER ROLE postgres RESET track_counts; ALTER ROLE plantstore_owner IN DATABASE postgres RESET track_counts;")
	})
	t.Run("a replication slot that holds nothing back", func(t *testing.T) {
		script(t, super, "SELECT pg_create_physical_replication_slot('unused');")
		if found := troubles(t, examinationOf(super, app)); len(found) > 0 {
			t.Errorf("%+v, want nothing", found)
		}
		script(t, super, "SELECT pg_drop_replication_slot('unused');")
	})
	t.Run("row level security for others", func(t *testing.T) {
		script(t, super, "ALTER TABLE plants ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;")
		found := troubles(t, examinationOf(super, app))
		if len(found) != 1 || !strings.HasPrefix(found[0].Message, "row level security of public.plants applies to plantstore_app and plantstore_owner") {
			t.Fatalf("%+v, want it found", found)
		}
		_, instead, _ := strings.Cut(found[0].Remedy, "\n-- ")
		instead, _, _ = strings.Cut(instead, "\n")
		script(t, super, instead)
		if found := troubles(t, examinationOf(super, app)); len(found) > 0 || unready(t, app) != "" {
			t.Errorf("after the other remedy: %+v, %q; want nothing", found, unready(t, app))
		}
		script(t, super, "ALTER TABLE plants DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;\nALTER ROLE plantstore_owner NOBYPASSRLS;")
		if found := troubles(t, examinationOf(super, app)); len(found) != 1 || found[0].Message != "plantstore_app is BYPASSRLS" {
			t.Errorf("%+v, want the attribute found once nothing needs it", found)
		}
		script(t, super, "ALTER ROLE plantstore_app NOBYPASSRLS;")
	})
	t.Run("no role", func(t *testing.T) {
		script(t, super, "DROP OWNED BY plantstore_app;\nDROP ROLE plantstore_app;")
		found := troubles(t, examinationOf(super, app))
		if len(found) != 2 || found[0].Check != "service connection" || found[1].Message != "role plantstore_app does not exist" {
			t.Fatalf("%+v, want the role missing", found)
		}
		script(t, super, found[1].Remedy)
		if found := troubles(t, examinationOf(super, app)); len(found) > 0 {
			t.Errorf("after the remedy: %+v, want nothing", found)
		}
	})
	t.Run("member", func(t *testing.T) { // has the role's rights only if it inherits them
		script(t, super, "CREATE ROLE helper LOGIN NOINHERIT; GRANT plantstore_app TO helper;")
		e := examinationOf(super, server.URL("helper", "postgres"))
		of := func() []Finding {
			return slices.DeleteFunc(troubles(t, e), func(f Finding) bool { return f.Check != "service connection" })
		}
		if found := of(); len(found) != 1 || found[0].Grade != Problem || !strings.HasPrefix(found[0].Message, "helper lacks ") {
			t.Errorf("%+v, want helper to lack rights", found)
		}
		script(t, super, "DROP ROLE helper; CREATE ROLE helper LOGIN INHERIT; GRANT plantstore_app TO helper;")
		if found := of(); len(found) != 1 || found[0].Grade != Warning || found[0].Message != "the service connects as helper and may do all that helper may" {
			t.Errorf("%+v, want a warning of what helper may do", found)
		}
		script(t, super, "DROP ROLE helper;")
	})
	t.Run("standby", func(t *testing.T) {
		standby, err := server.Standby(t.Context(), localpg.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { standby.Close() })
		super, app := standby.URL("postgres", "postgres"), standby.URL("plantstore_app", "postgres")
		found := troubles(t, examinationOf(super, app))
		if len(found) != 1 || found[0].Message != "this is a standby: nothing can be deleted here" {
			t.Fatalf("%+v, want a standby", found)
		}
		_, sql, _ := strings.Cut(found[0].Remedy, "\n")
		script(t, super, sql)
		if found := troubles(t, examinationOf(super, app)); len(found) > 0 {
			t.Errorf("after the remedy: %+v, want nothing", found)
		}
	})
}

// Of the settings of a role in a database, the closest one counts.
func TestDoctorOnSettingsThatOthersOverrule(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	for _, setting := range []string{"track_counts = off", "default_transaction_read_only = on"} {
		name, value, _ := strings.Cut(setting, " = ")
		other := map[string]string{"on": "off", "off": "on"}[value]
		script(t, database.Super, `ALTER DATABASE `+database.Name+` SET `+setting+`;
			ALTER ROLE plantstore_owner IN DATABASE `+database.Name+` SET `+name+` = `+other+`;
			ALTER ROLE plantstore_app IN DATABASE `+database.Name+` SET `+name+` = `+other+`;`)
	}
	for _, f := range troubles(t, examinationOf(database.Owner, database.App)) {
		if f.Check == "primary" || f.Check == "record" {
			t.Errorf("%+v, want nothing of what is overruled", f)
		}
	}
}

func TestDoctorOnPoolers(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	e := examinationOf(database.Super, database.App)
	e.Service = pgtest.Pooler(t, database.App, pgtest.SessionMode)
	if found := troubles(t, e); len(found) > 0 {
		t.Errorf("pooler in session mode: %+v, want nothing", found)
	}
	e.Service = pgtest.Pooler(t, database.App, pgtest.TransactionMode)
	found := troubles(t, e)
	if len(found) != 1 || found[0].Check != "service connection" || found[0].Grade != Problem || !strings.Contains(found[0].Message, "mixes up") {
		t.Fatalf("pooler in transaction mode: %+v, want it to be a problem", found)
	}
	through := e.Service
	for _, remedy := range []string{regexp.MustCompile(`default_query_exec_mode=\w+`).FindString(found[0].Remedy), "statement_cache_capacity=0"} {
		e.Service = pgtest.WithParameters(through, remedy)
		if found := troubles(t, e); len(found) > 0 {
			t.Errorf("with %s: %+v, want nothing", remedy, found)
		}
	}

	e.Service = pgtest.Pooler(t, database.App, pgtest.StatementMode)
	for _, mode := range []string{"cache_statement", "exec"} {
		e.Service = pgtest.WithParameters(e.Service, "default_query_exec_mode="+mode)
		found = troubles(t, e)
		if len(found) != 1 || found[0].Grade != Problem || !strings.Contains(found[0].Message, "refuses transactions") {
			t.Errorf("pooler in statement mode with %s: %+v, want it to be a problem", mode, found)
		}
	}

	e = examinationOf(pgtest.Pooler(t, database.Super, pgtest.TransactionMode), database.App)
	found = troubles(t, e)
	if len(found) != 1 || found[0].Check != "connection" || !strings.Contains(found[0].Message, "migrations refuse") {
		t.Fatalf("owner through a pooler in transaction mode: %+v, want a warning", found)
	}
}

// Names that others chose do nothing to a terminal.
func TestFindingsAreLegible(t *testing.T) {
	t.Parallel()
	got := Finding{Check: "c", Message: "über\x1b\n!", Remedy: "DROP\x07\nIT"}.legible()
	if want := (Finding{Check: "c", Message: `über\u001b\u000a!`, Remedy: "DROP\\u0007\nIT"}); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A pooler that keeps track of prepared statements keeps those of two clients apart, as
// two sessions do.
func TestPoolerThatKeepsTrackOfStatements(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	conn := pgtest.Connect(t, database.App)
	if f := judgePooler(t.Context(), conn, migrate.TransactionPooler); f.Grade != OK || !strings.Contains(f.Message, "keeps track of prepared statements") {
		t.Errorf("%+v, want it to be fine", f)
	}
	script(t, database.Super, "ALTER DATABASE "+database.Name+" CONNECTION LIMIT 0;")
	if f := judgePooler(t.Context(), conn, migrate.TransactionPooler); f.Grade != Warning || !strings.HasPrefix(f.Message, "could not find out about a pooler: ") {
		t.Errorf("when a second client is refused: %+v, want a warning", f)
	}
}

func TestDoctorOnEncryption(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	encrypted, authority := behindTLS(t, database.App)
	exam := func(parameters string) *examination {
		e := examinationOf(database.Super, strings.ReplaceAll(encrypted, "sslmode=disable", parameters))
		// The test's server is on this machine; take only the one in front for remote.
		e.isRemote = func(a net.Addr) bool { return strings.Contains(encrypted, a.String()) }
		return e
	}
	for mode, want := range map[string]string{
		"disable": "not encrypted: plants and credentials can be read on the way",
		"require": "encrypted, but whoever can pose as the server gets the password",
	} {
		found := troubles(t, exam("sslmode="+mode))
		if len(found) != 1 || found[0].Grade != Warning || !strings.HasSuffix(found[0].Message, want) {
			t.Fatalf("sslmode=%s: %+v, want %s", mode, found, want)
		}
		private := exam("sslmode=" + mode)
		private.PrivateNetwork = true
		if found := troubles(t, private); len(found) > 0 {
			t.Errorf("sslmode=%s on a private network: %+v, want nothing", mode, found)
		}
		remedy := regexp.MustCompile(`sslmode=[a-z-]+`).FindString(found[0].Remedy) + "&sslrootcert=" + authority
		if found := troubles(t, exam(remedy)); len(found) > 0 {
			t.Errorf("after the remedy: %+v, want nothing", found)
		}
	}
}

// behindTLS puts a TLS server in front of a database, which also lets those
// through that ask for no encryption. It returns the URL, and the certificate's file.
func behindTLS(t *testing.T, server string) (through, authority string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	authority = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	network, at := pgconn.NetworkAddress(config.Host, config.Port)
	through = pgtest.Proxy(t, server, func(client net.Conn) {
		target, err := net.Dial(network, at)
		if err != nil {
			t.Error(err)
			return
		}
		defer target.Close()
		first := make([]byte, 8)
		if _, err := io.ReadFull(client, first); err != nil {
			return
		}
		const sslRequest = "\x00\x00\x00\x08\x04\xd2\x16\x2f"
		if string(first) == sslRequest {
			if _, err := client.Write([]byte("S")); err != nil {
				return
			}
			client = tls.Server(client, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
		} else if _, err := target.Write(first); err != nil {
			return
		}
		go func() { _, _ = io.Copy(target, client); target.Close() }()
		_, _ = io.Copy(client, target)
	})
	return through, authority
}
