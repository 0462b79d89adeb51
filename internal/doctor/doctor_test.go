package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// An accident is a mistaken change to a migrated database.
type accident struct {
	check string
	sql   string        // the mistake of a superuser
	as    string        // the role that looks, unless it is plantstore_owner or, for checks of the service, plantstore_app
	with  pgx.NamedArgs // instead of the usual arguments
	want  []string      // the findings, as level: message
	other string        // remedies that are not SQL
}

// Each accident is found, and goes away with its remedy. It happens in a transaction that is
// rolled back, so the order does not matter.
func TestDoctorFindsAndRemediesAccidents(t *testing.T) {
	t.Parallel()
	const clerk = `CREATE ROLE clerk; `
	const audit = `CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'; `
	const roles = "psql -v ON_ERROR_STOP=1 -d 'DB' -f roles.sql # of the release, as a superuser\nplantstore migrate down --to 5 && plantstore migrate up\n" +
		"# Then let DATABASE_URL name plantstore_app, and PLANTSTORE_MIGRATE_DATABASE_URL the role of now."
	accidents := []accident{
		{check: "version", with: pgx.NamedArgs{"oldest": 99, "newest": 100}, other: "# Upgrade the server with pg_upgrade.",
			want: []string{"problem: PostgreSQL VERSION is too old: 99 is the oldest version that works"}},
		{check: "version", with: pgx.NamedArgs{"oldest": 1, "newest": 2}, other: "# Deploy the newest plantstore.",
			want: []string{"advice: PostgreSQL VERSION is newer than this plantstore, which was tested up to 2"}},

		{check: "connections", sql: clerk + `ALTER ROLE clerk CONNECTION LIMIT 15; ALTER DATABASE DB CONNECTION LIMIT 14`, as: "clerk", with: pgx.NamedArgs{"connections": 16}, want: []string{
			"problem: the service opens up to 16 connections; role clerk allows 15, and others have 0 open", "problem: the service opens up to 16 connections; the database allows 14, and others have 0 open"}},
		{check: "connections", sql: clerk + `ALTER ROLE clerk CONNECTION LIMIT 15`, as: "clerk", with: pgx.NamedArgs{"connections": 16, "pid": 0}}, // through a pooler

		{check: "transactions", sql: clerk, as: "clerk", want: []string{"advice: role clerk cannot see how long transactions of other roles have been open"}},

		{check: "password", sql: `CREATE ROLE clerk VALID UNTIL '2020-01-01Z'`, as: "clerk", want: []string{"problem: the password of role clerk expired at 2020-01-01 00:00:00+00"}},
		{check: "password", sql: `CREATE ROLE clerk VALID UNTIL '2100-01-01Z'`, as: "clerk", with: pgx.NamedArgs{"soon": 1e10}, want: []string{"advice: the password of role clerk expires at 2100-01-01 00:00:00+00"}},
		{check: "password", sql: `CREATE ROLE clerk VALID UNTIL '2100-01-01Z'`, as: "clerk"},

		{check: "superuser", sql: `CREATE ROLE clerk SUPERUSER`, as: "clerk", want: []string{"advice: role clerk of the service is a superuser"}, other: roles},
		{check: "superuser", sql: `ALTER ROLE plantstore_app SUPERUSER`, want: []string{"advice: role plantstore_app of the service is a superuser"}},
		{check: "roles", sql: `CREATE ROLE clerk SUPERUSER`, as: "clerk"},
		{check: "roles", as: "plantstore_owner", want: []string{"advice: role plantstore_owner of the service owns the ledger: its password is enough to change the record"}, other: roles},
		{check: "roles", sql: clerk + `GRANT plantstore_owner TO clerk; GRANT clerk TO plantstore_app`, want: []string{
			"advice: role plantstore_app of the service is a member of plantstore_owner, which owns the ledger: its password is enough to change the record"}},
		{check: "roles", sql: `GRANT CREATE ON SCHEMA public TO plantstore_app; ALTER TABLE plants OWNER TO plantstore_app`, want: []string{
			"advice: role plantstore_app of the service owns public.plants: its password is enough to disable the ledger's trigger"}},
		{check: "roles", sql: clerk + `ALTER TABLE plants OWNER TO clerk; GRANT DELETE, SELECT (id) ON plants TO plantstore_app; GRANT clerk TO plantstore_app`, want: []string{
			"advice: role plantstore_app of the service is a member of clerk, which owns public.plants: its password is enough to disable the ledger's trigger"}},

		{check: "schema", sql: `DELETE FROM plantstore.goose_db_version WHERE version_id IN (2, 5)`, want: []string{"problem: pending migrations: 2, 5"}, other: "plantstore migrate up"},
		{check: "schema", sql: `REVOKE USAGE ON SCHEMA public FROM PUBLIC, plantstore_owner`, want: []string{"problem: role plantstore_owner lacks rights: USAGE ON SCHEMA public"}},
		{check: "schema", sql: `INSERT INTO plantstore.goose_db_version (version_id, is_applied) VALUES (900, true)`, want: []string{"advice: a newer plantstore has migrated the database, to version 900"},
			other: "# Deploy the newer plantstore everywhere."},

		{check: "table", sql: `ALTER TABLE plants SET UNLOGGED, ENABLE ROW LEVEL SECURITY; CREATE TABLE rare () INHERITS (plants); CREATE RULE keep AS ON DELETE TO plants DO INSTEAD NOTHING`,
			want: []string{"problem: public.plants is unlogged: a crash of the server would empty it; public.plants has tables that inherit from it: their rows would leave without a record; " +
				"public.plants has row level security: a hidden plant would be answered as missing; public.plants has a rule: a deletion might do something else"}},
		{check: "table", sql: `ALTER TABLE plants DROP CONSTRAINT plants_pkey, ALTER id TYPE integer, ADD PRIMARY KEY (name); CREATE TABLE all_plants (id integer NOT NULL); ALTER TABLE plants INHERIT all_plants`,
			want: []string{"problem: public.plants has a column id that is not a bigint; public.plants has a primary key other than (id), or a deferrable one; " +
				"public.plants is a child of another table: rows deleted through that one would leave without a record"}},
		{check: "table", sql: `ALTER TABLE plants RENAME TO "Old plants"; CREATE SCHEMA attic; ALTER TABLE "Old plants" SET SCHEMA attic`, want: []string{"problem: public.plants does not exist"}},
		{check: "table", sql: `DROP TABLE plants`, want: []string{"problem: public.plants does not exist"}, other: "# Restore the table from a backup. Then run this again: its triggers are gone with it."},
		{check: "table", sql: `CREATE SUBSCRIPTION "from" CONNECTION '' PUBLICATION p WITH (connect = false); SET LOCAL allow_system_table_mods = on;
				INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) SELECT oid, 'plants'::regclass, 'r' FROM pg_subscription WHERE subname = 'from'`,
			want:  []string{"problem: public.plants is written by a subscription, whose deletions leave no record"},
			other: "-- Remove public.plants from the publication of subscription \"from\", then:\nALTER SUBSCRIPTION \"from\" REFRESH PUBLICATION;"},

		{check: "ledger-trigger", sql: `ALTER TABLE plants DISABLE TRIGGER record_deletion, ENABLE REPLICA TRIGGER refuse_truncate`, want: []string{
			"problem: trigger record_deletion of public.plants is disabled: plants leave without a record, and the service deletes nothing",
			"problem: trigger refuse_truncate of public.plants is disabled: plants that leave by TRUNCATE leave no record"}},
		{check: "ledger-trigger", sql: `DROP TRIGGER record_deletion ON plants; DROP TRIGGER refuse_truncate ON plants`, want: []string{
			"problem: trigger record_deletion of public.plants is missing: plants leave without a record, and the service deletes nothing",
			"problem: trigger refuse_truncate of public.plants is missing: plants that leave by TRUNCATE leave no record"}},
		{check: "ledger-trigger", sql: `ALTER TABLE plants ENABLE ALWAYS TRIGGER record_deletion`},

		{check: "unlogged", sql: `ALTER TABLE plantstore.tokens SET UNLOGGED; ALTER TABLE plantstore.principals SET UNLOGGED`, want: []string{
			"problem: table plantstore.principals is unlogged: a crash of the server empties it", "problem: table plantstore.tokens is unlogged: a crash of the server empties it"}},

		{check: "replica-identity", sql: `CREATE PUBLICATION feed FOR TABLE plants; ALTER TABLE plants REPLICA IDENTITY NOTHING`,
			want: []string{"problem: publication feed publishes deletions of public.plants, which has no replica identity: PostgreSQL refuses to delete plants"}},
		{check: "replica-identity", sql: `CREATE PUBLICATION feed FOR ALL TABLES; CREATE UNIQUE INDEX i ON plants (id); ALTER TABLE plants REPLICA IDENTITY USING INDEX i; DROP INDEX i`,
			want: []string{"problem: publication feed publishes deletions of public.plants, which has no replica identity: PostgreSQL refuses to delete plants"}},
		{check: "replica-identity", sql: `CREATE PUBLICATION feed FOR TABLE plants WITH (publish = 'insert'); ALTER TABLE plants REPLICA IDENTITY NOTHING`},

		{check: "sequences", sql: `ALTER TABLE plants ALTER id RESTART; INSERT INTO plants (id, name) VALUES (5000, 'fern')`,
			want: []string{"advice: the next id of public.plants is 1, and 5000 exists already: INSERTs of the store may fail"}},
		{check: "sequences", sql: `ALTER TABLE plants ALTER id RESTART WITH 5001; INSERT INTO plants (id, name) VALUES (5000, 'fern')`},
		{check: "sequences", sql: `SELECT setval('plants_id_seq', 5000); INSERT INTO plants (id, name) VALUES (5000, 'fern')`},
		{check: "sequences", sql: `INSERT INTO plantstore.deletions (id, plant_id, deleted_by) OVERRIDING SYSTEM VALUE VALUES (7000, 1, 'shop'); ALTER TABLE plantstore.goose_db_version ALTER id RESTART WITH 2;
				INSERT INTO plantstore.cascaded (id, deletion_id, relation, key, content, literal) OVERRIDING SYSTEM VALUE VALUES (3, 7000, 'plants', '1', '{}', '')`, want: []string{
			"problem: the next id of plantstore.deletions is 1, and 7000 exists already: deletions fail",
			"problem: the next id of plantstore.cascaded is 1, and 3 exists already: deletions of plants with rows in watched tables fail", fmt.Sprintf("problem: the next id of plantstore.goose_db_version is 2, and %d exists already: migrations fail", len(migrate.All())+1)}},

		{check: "rights", sql: `REVOKE USAGE ON SCHEMA public, plantstore FROM PUBLIC, plantstore_app; REVOKE ALL ON ALL TABLES IN SCHEMA public, plantstore FROM plantstore_app;
				REVOKE ALL ON ALL FUNCTIONS IN SCHEMA plantstore FROM PUBLIC, plantstore_app`,
			want: []string{"problem: role plantstore_app lacks rights: EXECUTE ON FUNCTION plantstore.resolve(bigint,text,text,text,integer), EXECUTE ON FUNCTION plantstore.unfit(), USAGE ON SCHEMA plantstore, " +
				"USAGE ON SCHEMA public, SELECT (id, deleted_at) ON plantstore.deletions, SELECT ON plantstore.goose_db_version, SELECT (name, budget, budget_period) ON plantstore.principals, " +
				"SELECT ON plantstore.tokens, UPDATE (last_used_at) ON plantstore.tokens, SELECT ON plantstore.tokens_version, DELETE ON public.plants, SELECT (id) ON public.plants"}},
		{check: "excess-rights", sql: `GRANT SELECT, INSERT, UPDATE ON plants TO plantstore_app, PUBLIC; GRANT SELECT ON plantstore.deletions, plantstore.principals TO plantstore_app;
				GRANT INSERT ON plantstore.deletions TO PUBLIC; GRANT SELECT ON plantstore.tokens TO PUBLIC; GRANT UPDATE, DELETE ON plantstore.tokens TO plantstore_app`, want: []string{
			"problem: PUBLIC may do more than the service needs: INSERT ON plantstore.deletions", "problem: plantstore_app may do more than the service needs: SELECT ON plantstore.deletions",
			"problem: plantstore_app may do more than the service needs: SELECT ON plantstore.principals", "problem: PUBLIC may do more than the service needs: SELECT ON plantstore.tokens",
			"problem: plantstore_app may do more than the service needs: DELETE, UPDATE ON plantstore.tokens", "advice: plantstore_app may do more than the service needs: INSERT, UPDATE ON public.plants"}},

		{check: "cascades", sql: `CREATE TABLE orders (id bigint PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE);
				CREATE TABLE "Notes" (o bigint REFERENCES orders ON UPDATE CASCADE ON DELETE SET NULL (o)); CREATE TABLE kept (o bigint REFERENCES orders ON DELETE RESTRICT);
				CREATE TABLE parts (plant bigint DEFAULT 0 REFERENCES plants ON DELETE SET DEFAULT) PARTITION BY RANGE (plant); CREATE TABLE part PARTITION OF parts DEFAULT;
				ALTER TABLE plants ADD mother bigint REFERENCES plants ON DELETE CASCADE`, want: []string{
			`advice: a deletion from public.orders changes rows of public."Notes" (foreign key "Notes_o_fkey"), and a restore does not bring that back`,
			"advice: a deletion from public.plants changes rows of public.parts (foreign key parts_plant_fkey), and a restore does not bring that back",
			"advice: a deletion from public.plants removes rows of public.orders (foreign key orders_plant_fkey), and a restore does not bring that back"}},
		// A table that others are watched through: first those end.
		{check: "cascades", sql: `CREATE TABLE orders (id bigint PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE); CREATE TABLE pictures (id bigint PRIMARY KEY, o bigint REFERENCES orders ON DELETE CASCADE);
				GRANT SELECT, INSERT, UPDATE, TRIGGER ON orders, pictures TO plantstore_owner; SELECT plantstore.watch('pictures'); ALTER TABLE orders ENABLE ROW LEVEL SECURITY`,
			want: []string{"problem: public.pictures is watched, and a restore may not bring its rows back: public.orders has row level security",
				"problem: public.orders is watched, and a restore may not bring its rows back: public.orders has row level security"},
			other: "SELECT plantstore.unwatch('public.pictures');\nSELECT plantstore.unwatch('public.orders');"},
		// The rights on the tables above are in the remedy, too.
		{check: "cascades", sql: `CREATE SCHEMA attic; CREATE TABLE attic.orders (id bigint PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE); CREATE TABLE pictures (id bigint PRIMARY KEY, o bigint REFERENCES attic.orders ON DELETE CASCADE)`,
			want: []string{"advice: a deletion from attic.orders removes rows of public.pictures (foreign key pictures_o_fkey), and a restore does not bring that back",
				"advice: a deletion from public.plants removes rows of attic.orders (foreign key orders_plant_fkey), and a restore does not bring that back"}},

		{check: "restore-rights", sql: `CREATE SCHEMA attic; GRANT USAGE ON SCHEMA attic TO plantstore_owner; CREATE TABLE attic.orders (id bigint PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE);
				CREATE TABLE unwatched (id bigint PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE); GRANT SELECT, INSERT, UPDATE, TRIGGER ON attic.orders TO plantstore_owner; SELECT plantstore.watch('attic.orders');
				REVOKE ALL ON attic.orders, plants FROM plantstore_owner CASCADE; REVOKE USAGE ON SCHEMA attic FROM plantstore_owner; REVOKE ALL ON DATABASE DB FROM PUBLIC, plantstore_owner; ALTER TABLE plants OWNER TO postgres;
				REVOKE ALL ON plants FROM plantstore_owner CASCADE; GRANT DELETE, SELECT (id) ON plants TO plantstore_app`,
			want: []string{"problem: role plantstore_owner lacks rights to restore rows of attic.orders", "problem: role plantstore_owner lacks rights to restore rows of public.plants"}},

		{check: "restore-rights", sql: `CREATE SCHEMA kinds; CREATE TYPE kinds.light AS ENUM ('sun'); ALTER TABLE plants ADD light kinds.light, ADD lights kinds.light[]`,
			want: []string{"problem: role plantstore_owner lacks rights to restore rows of public.plants"}},

		{check: "store-triggers", sql: audit + `CREATE TRIGGER a BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION audit(); CREATE TRIGGER "B" AFTER INSERT OR DELETE ON plants FOR EACH STATEMENT EXECUTE FUNCTION audit();
				CREATE TRIGGER c BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION audit(); CREATE TRIGGER d AFTER UPDATE ON plants FOR EACH ROW EXECUTE FUNCTION audit();
				CREATE TRIGGER e BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION audit(); ALTER TABLE plants DISABLE TRIGGER e`, want: []string{
			`advice: trigger "B" of public.plants fires on DELETE: if it fails, the plant stays; it fires on INSERT: a restore asks for --fire-triggers`,
			"advice: trigger a of public.plants fires before a deletion and can prevent it: the service then answers 409",
			"advice: trigger c of public.plants fires on INSERT: a restore asks for --fire-triggers"}},
		{check: "store-triggers", sql: audit + `CREATE TABLE orders (id bigint PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE); CREATE TABLE stock (id bigint PRIMARY KEY, plant bigint REFERENCES plants ON DELETE SET NULL);
				GRANT SELECT, INSERT, UPDATE, TRIGGER ON orders, stock TO plantstore_owner; SELECT plantstore.watch('orders'), plantstore.watch('stock'); CREATE TABLE unwatched (id bigint PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE);
				CREATE TRIGGER a AFTER INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION audit(); CREATE TRIGGER b BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION audit();
				CREATE TRIGGER a BEFORE UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION audit(); CREATE TRIGGER a BEFORE DELETE ON unwatched FOR EACH ROW EXECUTE FUNCTION audit()`, want: []string{
			"advice: trigger a of public.orders fires on DELETE: if it fails, the plant stays; it fires on INSERT: a restore asks for --fire-triggers",
			"advice: trigger a of public.stock fires on UPDATE: a restore asks for --fire-triggers"}},

		{check: "ledger", sql: `INSERT INTO plantstore.deletions (plant_id, deleted_by, deleted_at) VALUES (1, 'shop', '2020-01-01Z'), (1, 'shop', now())`,
			want: []string{"advice: the ledger has SIZE, and its oldest entry is of 2020-01-01: nothing purges it"}, other: "plantstore deletions purge --older-than 365d # their plants cannot be restored any more"},
		{check: "ledger", sql: `INSERT INTO plantstore.deletions (plant_id, deleted_by, deleted_at) VALUES (1, 'shop', now() - interval '399 days')`},

		{check: "tokens", sql: `INSERT INTO plantstore.principals (name) VALUES ('shop'), ('soon'), ('never'), ('past'), ('revoked');
				INSERT INTO plantstore.tokens (principal, digest, scopes, expires_at, revoked_at) VALUES ('shop', sha256('a'), '{}', '2090-01-01Z', NULL), ('shop', sha256('b'), '{}', '2100-01-01Z', NULL),
					('never', sha256('c'), '{}', '2090-01-01Z', NULL), ('never', sha256('d'), '{}', NULL, NULL), ('past', sha256('e'), '{}', '2020-01-01Z', NULL), ('revoked', sha256('f'), '{}', '2090-01-01Z', now())`,
			with: pgx.NamedArgs{"soon": 1e10}, want: []string{"advice: the tokens of shop expire until 2100-01-01 00:00 UTC"}, other: "plantstore token rotate shop"},
		{check: "budgets", sql: `INSERT INTO plantstore.principals (name, budget, budget_period, budget_used, budget_resets_at) VALUES ('shop', 5, '1d', 5, '2100-01-01Z'), ('left', 5, '1d', 4, '2100-01-01Z'),
				('past', 5, '1d', 5, '2020-01-01Z'), ('jwt:it''s', 5, '1d', 6, '2100-01-01Z')`,
			want:  []string{"advice: the deletion budget of jwt:it's is used up until 2100-01-01 00:00 UTC", "advice: the deletion budget of shop is used up until 2100-01-01 00:00 UTC"},
			other: `plantstore token budget --reset 'jwt:it'\''s'` + "\nplantstore token budget --reset shop"},
	}
	database := pgtest.New(t)
	conn := pgtest.Connect(t, pgtest.WithParameters(database.Super, "timezone=UTC"))
	for i, a := range accidents {
		t.Run(fmt.Sprintf("%d %s", i, a.check), func(t *testing.T) { a.try(t, conn, database.Name) })
	}
	tried := map[string]bool{"connect": true, "tls": true, "foreign-keys": true} // by tests of their own
	for _, a := range append(accidents, defaults...) {
		tried[a.check] = true
	}
	for _, c := range Checks() {
		if !tried[c.Name] {
			t.Errorf("check %s: got no test, want one", c.Name)
		}
	}
}

func (a accident) try(t *testing.T, conn *pgx.Conn, database string) {
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	exec := func(sql string) {
		t.Helper()
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	arguments := Input{Versions: migrate.Versions()}.arguments(conn)
	maps.Copy(arguments, a.with)
	// examine returns the findings without the parts that vary, and their remedies.
	examine := func(name string) (found, remedies []string) {
		t.Helper()
		c := checkNamed(t, name)
		as := a.as
		if as == "" {
			as = map[role]string{service: "plantstore_app", owner: "plantstore_owner"}[c.by]
		}
		exec(`SET LOCAL SESSION AUTHORIZATION ` + as)
		exec(limits)
		all, err := c.query(t.Context(), tx, arguments)
		if err != nil {
			t.Fatal(err)
		}
		exec(`RESET SESSION AUTHORIZATION`)
		found, remedies = texts(all)
		for i := range found {
			found[i] = strings.ReplaceAll(found[i], conn.PgConn().ParameterStatus("server_version"), "VERSION")
			found[i] = regexp.MustCompile(`has \d+ \wB,`).ReplaceAllString(found[i], "has SIZE,")
			remedies[i] = strings.ReplaceAll(remedies[i], database, "DB")
		}
		return found, remedies
	}
	exec(strings.ReplaceAll(a.sql, "DB", database))
	found, remedies := examine(a.check)
	if diff := cmp.Diff(a.want, found); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	if remedy := strings.Join(remedies, "\n"); a.other != "" {
		if remedy != a.other {
			t.Errorf("remedy: got\n%s\nwant\n%s", remedy, a.other)
		}
		return
	}
	for _, remedy := range remedies {
		exec(strings.ReplaceAll(remedy, "DB", database))
	}
	checks := []string{a.check}
	if a.as == "" {
		checks = append(checks, "rights") // no remedy takes a right that is needed
	}
	for _, name := range checks {
		if found, _ := examine(name); found != nil {
			t.Errorf("check %s after the remedies %q: got %q, want nothing", name, remedies, found)
		}
	}
}

// look runs a check on a connection, with some arguments other than the usual ones.
func look(t *testing.T, name string, conn *pgx.Conn, with pgx.NamedArgs) []Finding {
	t.Helper()
	arguments := Input{Versions: migrate.Versions()}.arguments(conn)
	maps.Copy(arguments, with)
	found, err := checkNamed(t, name).inTx(t.Context(), conn, arguments)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// texts returns the levels and messages of findings, and their remedies.
func texts(findings []Finding) (found, remedies []string) {
	for _, f := range findings {
		found, remedies = append(found, string(f.Level)+": "+f.Message), append(remedies, f.Remedy)
	}
	return found, remedies
}

func checkNamed(t *testing.T, name string) check {
	t.Helper()
	all := checks()
	i := slices.IndexFunc(all, func(c check) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("there is no check %s", name)
	}
	return all[i]
}

// defaults are accidents that the next session meets.
var defaults = []accident{
	{check: "primary", sql: `ALTER DATABASE DB SET default_transaction_read_only = on`, want: []string{
		"problem: the transactions of role plantstore_app are read-only: default_transaction_read_only is on", "problem: the transactions of role plantstore_owner are read-only: default_transaction_read_only is on"}},
	{check: "durability", sql: `ALTER ROLE plantstore_app IN DATABASE DB SET synchronous_commit = local`, want: []string{
		"advice: synchronous_commit is local for role plantstore_app: a crash or failover can lose deletions by other programs"}},
	{check: "triggers-fire", sql: `ALTER DATABASE DB SET session_replication_role = replica`, want: []string{
		"problem: session_replication_role is replica for role plantstore_app: its deletions would leave no record, and the service refuses them",
		"problem: session_replication_role is replica for role plantstore_owner: its deletions would leave no record, and the service refuses them"}},
	{check: "session", sql: `ALTER ROLE plantstore_app IN DATABASE DB SET jit = on; ALTER ROLE plantstore_app IN DATABASE DB SET lock_timeout = 0; ALTER ROLE plantstore_app IN DATABASE DB SET synchronous_commit = remote_apply;
			ALTER ROLE plantstore_app IN DATABASE DB SET default_transaction_isolation = 'repeatable read'; ALTER ROLE plantstore_app IN DATABASE DB SET client_min_messages = error`, want: []string{
		"problem: a pooler in transaction mode is between service and server, and role plantstore_app lacks settings that the pooler cannot carry: client_min_messages is error, default_transaction_isolation is repeatable read, jit is on, lock_timeout is 0"}},
}

func TestDoctorChecksSettingsOfRoles(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	super := pgtest.Connect(t, database.Super)
	examine := func(name, serviceURL string) (found []string, remedies string) {
		t.Helper()
		in := Input{Service: pgtest.Connect(t, serviceURL), Owner: pgtest.Connect(t, database.Owner)}
		all, err := checkNamed(t, name).run(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		found, statements := texts(all)
		return found, strings.Join(statements, "\n")
	}
	direct, pooled := func() string { return database.App }, func() string { return pgtest.Pooler(t, database.App) } // with new sessions
	if found, _ := examine("session", pooled()); found != nil {
		t.Errorf("session with the settings of roles.sql: got %q, want nothing", found)
	}
	for _, a := range defaults {
		url, elsewhere := direct, pooled
		if a.check == "session" {
			url, elsewhere = pooled, direct
		}
		pgtest.Execute(t, super, strings.ReplaceAll(a.sql, "DB", database.Name))
		found, remedies := examine(a.check, url())
		if diff := cmp.Diff(a.want, found); diff != "" {
			t.Errorf("%s (-want +got):\n%s", a.check, diff)
		}
		if a.check == "session" || a.check == "durability" { // with a pooler it is the one, without it the other
			if found, _ := examine(a.check, elsewhere()); found != nil {
				t.Errorf("%s: got %q the other way, want nothing", a.check, found)
			}
		}
		pgtest.Execute(t, super, remedies)
		if found, _ := examine(a.check, url()); found != nil {
			t.Errorf("%s after its remedies: got %q, want nothing", a.check, found)
		}
	}
}

// The remedies build indexes concurrently, so they cannot be rolled back.
func TestDoctorFindsForeignKeysWithoutIndex(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	super, conn := pgtest.Connect(t, database.Super), pgtest.Connect(t, database.Owner)
	pgtest.Execute(t, super, `CREATE TABLE orders (id bigint PRIMARY KEY, "Plant" bigint REFERENCES plants ON DELETE CASCADE);
		CREATE TABLE notes (o bigint REFERENCES orders);
		CREATE TABLE parts (plant bigint REFERENCES plants) PARTITION BY RANGE (plant); CREATE TABLE part PARTITION OF parts DEFAULT;
		CREATE TABLE partly (plant bigint REFERENCES plants, open boolean);
		CREATE INDEX ON partly (plant) WHERE open; CREATE INDEX ON partly USING brin (plant); CREATE INDEX ON partly (open, plant);
		CREATE TABLE fine (plant bigint PRIMARY KEY REFERENCES plants ON DELETE RESTRICT, also bigint REFERENCES plants);
		CREATE INDEX ON fine USING hash (also); CREATE TABLE apart (fine bigint REFERENCES fine)`)
	want := []string{
		"problem: each deletion from public.orders scans public.notes (0 bytes): foreign key notes_o_fkey has no index",
		`problem: each deletion from public.plants scans public.orders (0 bytes): foreign key "orders_Plant_fkey" has no index`,
		"problem: each deletion from public.plants scans public.partly (0 bytes): foreign key partly_plant_fkey has no index",
		"problem: each deletion from public.plants scans public.parts (0 bytes): foreign key parts_plant_fkey has no index",
	}
	found, remedies := texts(look(t, "foreign-keys", conn, pgx.NamedArgs{"scan": -1}))
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("large tables (-want +got):\n%s", diff)
	}
	if small := look(t, "foreign-keys", conn, nil); len(small) != len(want) || small[0].Level != Advice {
		t.Errorf("small tables: got %+v, want advice", small)
	}
	for _, remedy := range remedies {
		pgtest.Execute(t, super, remedy)
	}
	if found := look(t, "foreign-keys", conn, nil); len(found) > 0 {
		t.Errorf("after the remedies %q: got %q, want nothing", remedies, found)
	}
}

// These accidents need other settings of the server, so they have a server of their own.
func TestDoctorChecksSettingsOfTheServer(t *testing.T) {
	t.Parallel()
	s, err := localpg.Start(t.Context(), localpg.Options{Settings: map[string]string{"fsync": "off", "max_prepared_transactions": "5", "max_connections": "20"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := migrate.NewStore(t.Context(), s.URL, "store"); err != nil {
		t.Fatal(err)
	}
	conn := pgtest.Connect(t, s.URL("postgres", "store"))
	paste := func(found []Finding, level Level, want string) {
		t.Helper()
		if len(found) != 1 || found[0].Level != level || !strings.HasPrefix(found[0].Message, want) {
			t.Fatalf("got %+v, want one %s: %s", found, level, want)
		}
		pgtest.Execute(t, conn, found[0].Remedy)
	}

	old := pgx.NamedArgs{"transaction": -1}
	script := pgtest.Connect(t, pgtest.WithParameters(s.URL("plantstore_owner", "store"), "application_name=script"))
	for want, begin := range map[string]func(){
		fmt.Sprintf("a transaction of role plantstore_owner (application script, process %d) has been open for ", script.PgConn().PID()): func() { pgtest.Execute(t, script, `BEGIN`) },
		"transaction 'left over' of role postgres has been prepared for ":                                                                func() { pgtest.Execute(t, conn, `BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'left over'`) },
	} {
		begin()
		if found := look(t, "transactions", conn, nil); len(found) > 0 {
			t.Errorf("a transaction that began a moment ago: got %+v, want nothing", found)
		}
		paste(look(t, "transactions", conn, old), Advice, want)
		if found := look(t, "transactions", conn, old); len(found) > 0 {
			t.Errorf("transactions after the remedy: got %+v, want nothing", found)
		}
	}

	pgtest.Connect(t, s.URL("plantstore_owner", "store")) // takes the place of one of the service's
	paste(look(t, "connections", conn, pgx.NamedArgs{"connections": 17}), Advice, "the service opens up to 17 connections; the server allows 17, and others have ")
	many := pgx.NamedArgs{"connections": 30}
	paste(look(t, "connections", conn, many), Problem, "the service opens up to 30 connections; the server allows 17, and others have ")
	if err := s.Stop(t.Context(), localpg.Fast); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn = pgtest.Connect(t, s.URL("postgres", "store"))
	if found := look(t, "connections", conn, many); len(found) > 0 {
		t.Errorf("connections after the remedy: got %+v, want nothing", found)
	}

	standby, err := s.Standby(t.Context(), localpg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Close() })
	found, err := Run(t.Context(), Input{Service: pgtest.Connect(t, standby.URL("plantstore_app", "store")), Owner: pgtest.Connect(t, standby.URL("postgres", "store")), Versions: migrate.Versions()})
	messages, _ := texts(found)
	if diff := cmp.Diff([]string{"problem: role plantstore_app is connected to a standby, which takes no writes", "problem: role postgres is connected to a standby, which takes no writes"}, messages); err != nil || diff != "" {
		t.Errorf("on a standby: %v (-want +got):\n%s", err, diff)
	}
}

// A migrated database has no problem, and the advice that its roles ask for.
func TestDoctorFindsNoProblemAfterMigration(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	app, owner, super := pgtest.Connect(t, database.App), pgtest.Connect(t, database.Owner), pgtest.Connect(t, database.Super)
	const blind = "advice transactions"
	down := errors.New("connection refused")
	for _, test := range []struct {
		name string
		in   Input
		want []string
	}{
		{"two roles", Input{Service: app, Owner: owner}, []string{blind}},
		{"one role", Input{Service: owner}, []string{blind, "advice roles"}},
		{"a superuser", Input{Service: super, Owner: super}, []string{"advice superuser"}},
		{"skipped", Input{Service: super, Owner: owner, Skip: []string{"transactions", "superuser"}}, nil},
		{"no URL of the service", Input{Owner: super}, []string{"advice connect"}},
		{"the service cannot connect", Input{Owner: super, ServiceErr: down}, []string{"problem connect"}},
		{"the owner cannot connect", Input{Service: app, OwnerErr: down}, []string{"problem connect"}},
	} {
		test.in.Versions = migrate.Versions()
		found, err := Run(t.Context(), test.in)
		if got := brief(found); err != nil || !cmp.Equal(got, test.want) {
			t.Errorf("%s: got %q, %v, want %q", test.name, got, err, test.want)
		}
	}
	if found, err := Run(t.Context(), Input{ServiceErr: down, OwnerErr: down}); found != nil || !errors.Is(err, down) {
		t.Errorf("nobody can connect: got %v, %v, want the error", found, err)
	}

	// A check that fails does not keep the others from running.
	found, err := Run(t.Context(), Input{Service: app, Versions: migrate.Versions()})
	want := "check budgets failed: permission denied for table principals (SQLSTATE 42501)"
	if got := brief(found); err == nil || !strings.Contains(err.Error(), want) || !cmp.Equal(got, []string{blind}) {
		t.Errorf("without an owner: got %q, %v, want %q and an error with %q", got, err, blind, want)
	}
}

func brief(findings []Finding) (all []string) {
	for _, f := range findings {
		all = append(all, string(f.Level)+" "+f.Check)
	}
	return all
}

// A check can't change the database, and it gives up soon.
func TestChecksAreReadOnlyAndLimited(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.Shared(t).Owner)
	c := check{sql: `SELECT 'advice', concat_ws(' ', current_setting('transaction_read_only'), current_setting('statement_timeout'), current_setting('lock_timeout')), ''`}
	found, err := c.inTx(t.Context(), conn, nil)
	if want := "on 5s 1s"; err != nil || len(found) != 1 || found[0].Message != want {
		t.Errorf("got %+v, %v, want %q", found, err, want)
	}
	expired, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if _, err := Run(expired, Input{Owner: conn}); err == nil || !strings.HasPrefix(err.Error(), "check version failed: the database did not answer in time") {
		t.Errorf("after the deadline: got %v, want no answer in time", err)
	}
}

// An address is a connection that seems to lead elsewhere.
type address struct {
	net.Conn
	addr net.Addr
}

func (a address) RemoteAddr() net.Addr { return a.addr }

func TestDoctorFindsUnencryptedConnections(t *testing.T) {
	t.Parallel()
	far := address{addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 5432}}
	for name, conn := range map[string]net.Conn{
		"another machine, TLS": tls.Client(far, &tls.Config{InsecureSkipVerify: true}),
		"this machine":         address{addr: &net.TCPAddr{IP: net.IPv6loopback}},
		"socket":               address{addr: &net.UnixAddr{Name: "/run/postgresql/.s.PGSQL.5432", Net: "unix"}},
	} {
		if isReadable(conn) {
			t.Errorf("%s: got a readable connection, want none", name)
		}
	}
	database := pgtest.Shared(t)
	connect := func(url string) *pgx.Conn {
		return pgtest.ConnectWith(t, url, func(c *pgx.ConnConfig) {
			c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return address{conn, far.addr}, err
			}
		})
	}
	const want = "advice: the connection of role plantstore_app to 10.0.0.7:5432 is not encrypted\nadvice: the connection of role plantstore_owner to 10.0.0.7:5432 is not encrypted"
	found, _ := texts(encryption(Input{Service: connect(database.App), Owner: connect(database.Owner)}))
	if got := strings.Join(found, "\n"); got != want {
		t.Errorf("two roles: got %s, want %s", got, want)
	}
	twice, err := Run(t.Context(), Input{Service: connect(database.Owner), Owner: connect(database.Owner), Versions: migrate.Versions()})
	if got := brief(twice); err != nil || !cmp.Equal(got, []string{"advice tls", "advice transactions", "advice roles"}) {
		t.Errorf("one role: got %q, %v, want each advice once", got, err)
	}
}
