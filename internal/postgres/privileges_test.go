package postgres

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/pgtest"
)

// stringsOf collects the one text column of a query's rows.
func stringsOf(t *testing.T, p *pgxpool.Pool, sql string) []string {
	t.Helper()
	rows, err := p.Query(t.Context(), sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return all
}

// The ways to more than the service's job, and how PostgreSQL refuses them.
var refusedToTheService = []struct {
	what     string
	sqlState string
	sql      []string
}{
	{"change the ledger", insufficientPrivilege, []string{
		`INSERT INTO plant_deletions (plant_id, shape, plant, deleted_by) VALUES (1, 1, '(1)', 'x')`,
		`UPDATE plant_deletions SET plant = '(1)'`,
		`UPDATE plant_deletions SET deleted_by = 'x'`,
		`UPDATE plant_deletions SET restored_at = now(), restored_by = 'x'`,
		`DELETE FROM plant_deletions`,
		`TRUNCATE plant_deletions`,
		`COPY plant_deletions (plant_id, plant, deleted_by) FROM STDIN`,
		`SELECT FROM plant_deletions FOR UPDATE`,
		`SELECT FROM plant_deletions FOR KEY SHARE`,
		`DO $$ BEGIN LOCK TABLE plant_deletions IN EXCLUSIVE MODE; END $$`,
		`ALTER TABLE plant_deletions ALTER deleted_at SET DEFAULT 'infinity'`,
		`ALTER TABLE plant_deletions DROP CONSTRAINT plant_deletions_once`,
		`CREATE RULE no_ledger AS ON INSERT TO plant_deletions DO INSTEAD NOTHING`,
		`DROP TABLE plant_deletions`,
		`SELECT nextval('plant_deletions_id_seq')`,
		`SELECT setval('plant_deletions_id_seq', 1)`,
		`COMMENT ON TABLE plant_deletions IS 'x'`,
	}},
	{"get round the ledger", insufficientPrivilege, []string{
		`ALTER TABLE plants DISABLE TRIGGER plantstore_record_deletion`,
		`ALTER TABLE plants DISABLE TRIGGER ALL`,
		`ALTER TRIGGER plantstore_record_deletion ON plants RENAME TO x`,
		`DROP TRIGGER plantstore_record_deletion ON plants`,
		`CREATE TRIGGER x BEFORE DELETE ON plants EXECUTE FUNCTION plantstore_record_deletion()`,
		`CREATE OR REPLACE FUNCTION plantstore_record_deletion() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`,
		`ALTER FUNCTION plantstore_record_deletion() SECURITY INVOKER`,
		`ALTER FUNCTION plantstore_record_deletion() RESET search_path`,
		`ALTER FUNCTION plantstore_record_deletion() OWNER TO plantstore_app`,
		`DROP FUNCTION plantstore_record_deletion()`,
		`SELECT plantstore_record_deletion()`,
		`GRANT EXECUTE ON FUNCTION plantstore_record_deletion() TO PUBLIC`,
		`TRUNCATE plants`,
		`TRUNCATE plants CASCADE`,
		`ALTER TABLE plants DISABLE TRIGGER plantstore_refuse_truncate`,
		`DROP FUNCTION plantstore_refuse_truncate() CASCADE`,
		`CREATE RULE x AS ON DELETE TO plants DO INSTEAD NOTHING`,
		`CREATE POLICY x ON plants`,
		`SET session_replication_role = replica`,
		`SELECT set_config('session_replication_role', 'local', false)`,
	}},
	{"make or change plants, or read more of them than their ids", insufficientPrivilege, []string{
		`INSERT INTO plants (name) VALUES ('x')`,
		`UPDATE plants SET name = 'x'`,
		`UPDATE plants SET id = id`,
		`SELECT * FROM plants`,
		`SELECT name FROM plants`,
		`SELECT id FROM plants WHERE name = 'fern'`,
		`SELECT p FROM plants p`,
		`SELECT FROM plants FOR UPDATE`,
		`DELETE FROM plants WHERE name = 'fern'`,
		`DELETE FROM plants RETURNING name`,
		`COPY plants TO STDOUT`,
		`ALTER TABLE plants ADD x int`,
		`ALTER TABLE plants OWNER TO plantstore_app`,
		`CREATE INDEX ON plants (name)`,
		`DROP TABLE plants`,
		`SELECT nextval('plants_id_seq')`,
	}},
	{"issue, change or end tokens", insufficientPrivilege, []string{
		`SELECT digest FROM api_tokens`,
		`SELECT FROM api_tokens WHERE digest = sha256('x')`,
		`INSERT INTO api_principals (name) VALUES ('x')`,
		`UPDATE api_principals SET name = 'x'`,
		`DELETE FROM api_principals`,
		`SELECT name FROM api_principals`,
		`INSERT INTO api_tokens (principal, digest, scopes) VALUES ('x', sha256('x'), '{plants:delete}')`,
		`UPDATE api_tokens SET digest = sha256('x')`,
		`UPDATE api_tokens SET principal = 'x'`,
		`UPDATE api_tokens SET id = gen_random_uuid()`,
		`SELECT principal FROM api_tokens`,
		`UPDATE api_tokens SET scopes = '{plants:delete}'`,
		`UPDATE api_tokens SET created_at = now()`,
		`UPDATE api_tokens SET expires_at = NULL`,
		`UPDATE api_tokens SET revoked_at = NULL`,
		`UPDATE api_tokens SET last_used_at = now(), revoked_at = NULL`,
		`INSERT INTO api_tokens (principal, digest, scopes) VALUES ('shop', sha256('x'), '{}') ON CONFLICT (digest) DO UPDATE SET digest = EXCLUDED.digest`,
		`DELETE FROM api_tokens`,
		`TRUNCATE api_tokens`,
		`ALTER TABLE api_tokens DISABLE TRIGGER ALL`,
		`DROP TABLE api_tokens`,
	}},
	{"say which migrations are applied", insufficientPrivilege, []string{
		`INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, true)`,
		`UPDATE goose_db_version SET is_applied = false`,
		`DELETE FROM goose_db_version`,
		`TRUNCATE goose_db_version`,
		`DROP TABLE goose_db_version`,
		`INSERT INTO plantstore_migrations (version, applied_as, checksum, baseline) VALUES (99, 1, repeat('0', 64), true)`,
		`UPDATE plantstore_migrations SET checksum = repeat('0', 64)`,
		`DELETE FROM plantstore_migrations`,
	}},
	{"make objects", insufficientPrivilege, []string{
		`CREATE TABLE x (n int)`,
		`CREATE TABLE x AS SELECT 1`,
		`SELECT 1 INTO x`,
		`CREATE TEMPORARY TABLE plant_deletions (n int)`,
		`CREATE TEMPORARY VIEW x AS SELECT 1`,
		`CREATE TEMPORARY SEQUENCE x`,
		`CREATE VIEW x AS SELECT 1`,
		`CREATE SEQUENCE x`,
		`CREATE TYPE x AS (n int)`,
		`CREATE DOMAIN x AS int`,
		`CREATE FUNCTION x() RETURNS int LANGUAGE sql AS 'SELECT 1'`,
		`CREATE PROCEDURE x() LANGUAGE sql AS 'SELECT 1'`,
		`CREATE SCHEMA x`,
		`CREATE FUNCTION pg_temp.x() RETURNS int LANGUAGE sql AS 'SELECT 1'`,
		`CREATE FUNCTION pg_catalog.x() RETURNS int LANGUAGE sql AS 'SELECT 1'`,
		`CREATE DATABASE x`,
		`CREATE TABLESPACE x LOCATION '/tmp'`,
		`CREATE EVENT TRIGGER x ON ddl_command_start EXECUTE FUNCTION plantstore_record_deletion()`,
		`CREATE PUBLICATION x`,
		`CREATE FOREIGN DATA WRAPPER x`,
		`CREATE EXTENSION file_fdw`,
	}},
	{"become somebody else", insufficientPrivilege, []string{
		`SET ROLE plantstore_owner`,
		`SET ROLE pg_read_all_data`,
		`SET SESSION AUTHORIZATION plantstore_owner`,
		`CREATE ROLE x`,
		`DROP ROLE plantstore_owner`,
		`ALTER ROLE plantstore_owner PASSWORD 'x'`,
		`ALTER ROLE plantstore_app SUPERUSER`,
		`ALTER ROLE plantstore_app CREATEROLE`,
		`ALTER ROLE plantstore_app CREATEDB`,
		`ALTER ROLE plantstore_app REPLICATION`,
		`ALTER ROLE plantstore_app BYPASSRLS`,
		`ALTER ROLE plantstore_app CONNECTION LIMIT 1000`,
		`GRANT plantstore_owner TO plantstore_app`,
		`GRANT pg_write_all_data TO plantstore_app`,
		`GRANT pg_execute_server_program TO plantstore_app`,
		`ALTER SCHEMA public OWNER TO plantstore_app`,
		`ALTER DEFAULT PRIVILEGES FOR ROLE plantstore_owner GRANT ALL ON TABLES TO plantstore_app`,
		`REASSIGN OWNED BY plantstore_owner TO plantstore_app`,
		`DROP OWNED BY plantstore_owner`,
		`SELECT * FROM pg_authid`,
		`SELECT * FROM pg_shadow`,
	}},
	{"change settings for others", insufficientPrivilege, []string{
		`ALTER SYSTEM SET fsync = off`,
		`ALTER ROLE ALL SET search_path = x`,
		`ALTER ROLE plantstore_owner SET search_path = x`,
		`ALTER ROLE plantstore_app SET session_replication_role = replica`,
		`SET zero_damaged_pages = on`,
		`SET session_preload_libraries = 'x'`,
		`SELECT pg_reload_conf()`,
		`UPDATE pg_settings SET setting = 'replica' WHERE name = 'session_replication_role'`,
		`UPDATE pg_proc SET prosecdef = false`,
		`UPDATE pg_trigger SET tgenabled = 'D'`,
	}},
	{"reach out of the database", insufficientPrivilege, []string{
		`COPY (SELECT 1) TO PROGRAM 'cat'`,
		`COPY plant_deletions FROM PROGRAM 'cat'`,
		`COPY (SELECT 1) TO '/tmp/x'`,
		`COPY api_tokens FROM '/etc/passwd'`,
		`SELECT pg_read_file('PG_VERSION')`,
		`SELECT pg_ls_dir('.')`,
		`SELECT lo_import('/etc/passwd')`,
		`SELECT pg_switch_wal()`,
		`SELECT pg_create_physical_replication_slot('x')`,
		`CHECKPOINT`,
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'plantstore_owner'`,
		`CREATE FUNCTION x() RETURNS int LANGUAGE c AS 'libc', 'abort'`,
		`LOAD '/usr/lib/libc.so'`,
	}},
	{"have a setting that is fixed at the start", "55P02", []string{ // cant_change_runtime_param
		`SET fsync = off`,
		`SET wal_level = minimal`,
	}},
}

func TestTheServiceRoleIsRefusedEverythingElse(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	super := pgtest.Pool(t, database.Super)
	// Everybody may make temporary objects, unless the store says otherwise.
	if _, err := super.Exec(t.Context(), `REVOKE TEMPORARY ON DATABASE `+pgx.Identifier{database.Name}.Sanitize()+` FROM PUBLIC`); err != nil {
		t.Fatal(err)
	}
	create(t, issuer(t, database), "shop", time.Time{})
	s.exec(t, `INSERT INTO plants (name) VALUES ('fern'), ('lily'); DELETE FROM plants WHERE id = 1`)
	// Everything that the statements are after: rows, definitions, rights.
	const everything = `
		SELECT 'plant ' || p::text FROM plants p
		UNION ALL SELECT 'deletion ' || d::text FROM plant_deletions d
		UNION ALL SELECT 'principal ' || p::text FROM api_principals p
		UNION ALL SELECT 'token ' || a::text FROM api_tokens a
		UNION ALL SELECT 'migration ' || g::text FROM goose_db_version g
		UNION ALL SELECT 'checksum ' || m::text FROM plantstore_migrations m
		UNION ALL SELECT 'sequence ' || s::text FROM pg_sequences s
		UNION ALL SELECT 'class ' || relname || relowner || coalesce(relacl::text, '') FROM pg_class WHERE relnamespace = 'public'::regnamespace
		UNION ALL SELECT 'column ' || attrelid::regclass || attname || attacl::text FROM pg_attribute WHERE attacl IS NOT NULL AND attrelid > 16383
		UNION ALL SELECT 'trigger ' || tgname || tgenabled::text FROM pg_trigger WHERE NOT tgisinternal
		UNION ALL SELECT 'function ' || proname || coalesce(proacl::text, '') || pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
		UNION ALL SELECT 'schema ' || nspname || coalesce(nspacl::text, '') FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_'
		UNION ALL SELECT 'member ' || m::text FROM pg_auth_members m
		ORDER BY 1`
	before := stringsOf(t, super, everything)

	run := func(sql string) error {
		conn, err := s.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		// As psql sends it: a prepared statement could be refused for another reason.
		_, err = conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll()
		return err
	}
	for _, group := range refusedToTheService {
		for _, sql := range group.sql {
			if err := run(sql); sqlState(err) != group.sqlState {
				t.Errorf("the service wants to %s: %s: %v, want SQLSTATE %s", group.what, sql, err, group.sqlState)
			}
		}
	}
	// A GRANT or REVOKE of somebody else's rights may be a mere warning.
	for _, sql := range []string{
		`GRANT ALL ON plant_deletions TO plantstore_app`,
		`GRANT UPDATE (digest) ON api_tokens TO plantstore_app`,
		`GRANT ALL ON plants TO PUBLIC`,
		`REVOKE ALL ON plants FROM plantstore_owner`,
		`GRANT CREATE ON SCHEMA public TO plantstore_app`,
		`DO $$ BEGIN EXECUTE format('GRANT ALL ON DATABASE %I TO plantstore_app', current_database()); END $$`,
	} {
		if err := run(sql); err != nil && sqlState(err) != insufficientPrivilege {
			t.Errorf("%s: %v, want none or SQLSTATE %s", sql, err, insufficientPrivilege)
		}
	}
	name := pgx.Identifier{database.Name}.Sanitize()
	for _, sql := range []string{
		`ALTER DATABASE ` + name + ` SET session_replication_role = replica`,
		`ALTER DATABASE ` + name + ` SET search_path = x`,
		`ALTER DATABASE ` + name + ` OWNER TO plantstore_app`,
		`DROP DATABASE ` + name,
	} {
		if err := run(sql); err == nil {
			t.Errorf("%s: no error", sql)
		}
	}
	if diff := cmp.Diff(before, stringsOf(t, super, everything)); diff != "" {
		t.Errorf("what the service was refused had an effect (-before +after):\n%s", diff)
	}
}

func TestTheServiceRoleMayDoItsJob(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	create(t, issuer(t, database), "shop", time.Time{})
	s.exec(t, `INSERT INTO plants (name) VALUES ('fern'), ('lily')`)
	for _, sql := range []string{
		`DELETE FROM plants WHERE id = 1`,
		`SELECT id FROM plants`,
		`SELECT * FROM plant_deletions WHERE plant_id = 1`,
		`UPDATE api_tokens SET last_used_at = now() WHERE id IS NOT NULL AND (last_used_at IS NULL OR last_used_at < now())`,
		`SELECT version_id, is_applied FROM goose_db_version`,
		`SELECT pg_logical_emit_message(true, 'plantstore', '')`,
	} {
		if tag, err := s.pool.Exec(t.Context(), sql); err != nil || tag.RowsAffected() == 0 {
			t.Errorf("%s: %v, %v; want rows and no error", sql, tag, err)
		}
	}
}

// What the role was granted, by whatever way, as PostgreSQL itself sees it.
func TestTheServiceRoleHasNoOtherRights(t *testing.T) {
	t.Parallel()
	super := pgtest.Pool(t, pgtest.New(t).Super)
	got := stringsOf(t, super, `
		SELECT format('%s ON %s', privilege, c.oid::regclass)
		FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']
			|| CASE WHEN current_setting('server_version_num')::int >= 170000 THEN ARRAY['MAINTAIN'] END) privilege
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
			AND has_table_privilege('plantstore_app', c.oid, privilege)
		UNION ALL
		SELECT format('%s (%s) ON %s', privilege, a.attname, c.oid::regclass)
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'REFERENCES']) privilege
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
			AND has_column_privilege('plantstore_app', c.oid, a.attnum, privilege) AND NOT has_table_privilege('plantstore_app', c.oid, privilege)
		UNION ALL
		SELECT 'SEQUENCE ' || c.oid::regclass FROM pg_class c
		WHERE c.relnamespace = 'public'::regnamespace AND CASE c.relkind WHEN 'S' THEN has_sequence_privilege('plantstore_app', c.oid, 'USAGE, SELECT, UPDATE') END
		UNION ALL
		SELECT 'CREATE IN ' || nspname FROM pg_namespace WHERE has_schema_privilege('plantstore_app', oid, 'CREATE')
		UNION ALL
		SELECT privilege || ' IN DATABASE' FROM unnest(ARRAY['CREATE', 'TEMPORARY']) privilege
		WHERE has_database_privilege('plantstore_app', current_database(), privilege)
		UNION ALL
		SELECT 'OWNER OF ' || classid::regclass || ' ' || objid FROM pg_shdepend WHERE deptype = 'o' AND refobjid = 'plantstore_app'::regrole
			AND dbid IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
		UNION ALL
		SELECT 'MEMBER OF ' || roleid::regrole FROM pg_auth_members WHERE member = 'plantstore_app'::regrole
		UNION ALL
		SELECT attribute FROM pg_roles, unnest(ARRAY[CASE WHEN rolsuper THEN 'SUPERUSER' END, CASE WHEN rolcreaterole THEN 'CREATEROLE' END,
			CASE WHEN rolcreatedb THEN 'CREATEDB' END, CASE WHEN rolreplication THEN 'REPLICATION' END, CASE WHEN rolbypassrls THEN 'BYPASSRLS' END]) attribute
		WHERE rolname = 'plantstore_app' AND attribute IS NOT NULL`)
	want := []string{
		"DELETE ON plants",
		"SELECT (id) ON plants",
		"SELECT (xmax) ON plants",
		"SELECT ON plant_deletions",
		"SELECT (id) ON api_tokens",
		"SELECT (last_used_at) ON api_tokens",
		"UPDATE (last_used_at) ON api_tokens",
		"SELECT ON goose_db_version",
		"SEQUENCE plant_deletions_id_seq",
		"TEMPORARY IN DATABASE", // everybody's, unless the store took it away
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rights of plantstore_app (-want +got):\n%s", diff)
	}
}

// Even a role that may make temporary tables and has a schema of its own can't
// lead the trigger, which runs with its owner's rights, to anything it made.
func TestTheTriggerCannotBeMisled(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "pool_max_conns=1") // one session
	s.exec(t, `INSERT INTO plants (id, name) VALUES (1, 'fern'), (2, 'aloe')`)
	super := pgtest.Pool(t, database.Super)
	for _, sql := range []string{
		`GRANT TEMPORARY ON DATABASE ` + pgx.Identifier{database.Name}.Sanitize() + ` TO plantstore_app`,
		`CREATE SCHEMA evil AUTHORIZATION plantstore_app`,
	} {
		if _, err := super.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, sql := range []string{
		`CREATE TEMPORARY TABLE plant_deletions (LIKE public.plant_deletions INCLUDING ALL)`,
		`CREATE TABLE evil.plant_deletions (LIKE public.plant_deletions INCLUDING ALL)`,
		`CREATE TEMPORARY TABLE gone (id bigint, name text)`,
		`CREATE FUNCTION evil.generate_subscripts(text[], integer) RETURNS SETOF integer LANGUAGE sql AS $$ SELECT 2 $$`,
		`CREATE FUNCTION evil.current_setting(text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'nobody' $$`,
		`CREATE FUNCTION evil.to_jsonb(anyelement) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb '{}' $$`,
		`CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT timestamptz '1999-01-01' $$`,
		`CREATE TYPE pg_temp.jsonb AS (n int)`,
		`SET search_path = pg_temp, evil, pg_catalog, public`,
		`DELETE FROM public.plants WHERE id = 1`,
		`SET plantstore.batch = '{{2},{shop}}'`,
		`DELETE FROM public.plants WHERE id = 2`,
	} {
		if _, err := s.pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	want := []ledgerRow{{1, "fern", "plantstore_app", nil, nil}, {2, "aloe", "shop", ptr(""), nil}}
	if diff := cmp.Diff(want, s.ledger(t)); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
	var age time.Duration
	if err := s.owner.QueryRow(t.Context(), `SELECT max(now() - deleted_at) FROM plant_deletions`).Scan(&age); err != nil || age > time.Minute {
		t.Errorf("deleted %s ago, %v; want now", age, err)
	}
	for _, table := range []string{"pg_temp.plant_deletions", "evil.plant_deletions"} {
		var n int
		if err := s.pool.QueryRow(t.Context(), fmt.Sprintf(`SELECT count(*) FROM %s`, table)).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows in %s, %v; want none", n, table, err)
		}
	}
}
