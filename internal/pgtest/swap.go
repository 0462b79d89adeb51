package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/migrate"
)

// SwapSchemas gives the name of schema public to another one and back again, over and over, as
// who owns the database can. The other one has views of the names of our tables, which belong to
// plantstore_app and call a function of its, with the rights of whoever reads them. Other SQL
// to do so, and to undo it, may be given.
//
// stop ends that, with the schemas as they were, waits for the end of the sessions whose
// application is one of ours, and fails the test if the function was run.
func SwapSchemas(t testing.TB, db Database, swap ...string) (stop func()) {
	t.Helper()
	if len(swap) == 0 {
		swap = []string{`ALTER SCHEMA public RENAME TO genuine; ALTER SCHEMA other RENAME TO public`, `ALTER SCHEMA public RENAME TO other; ALTER SCHEMA genuine RENAME TO public`}
	}
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, WithParameters(db.Super, "search_path=pg_catalog"))
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{swapViews, `
		DO $do$ BEGIN EXECUTE format('ALTER DATABASE %I SET track_functions = ''all''', current_database()); END $do$`} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("make the other schema: %v", err)
		}
	}
	quit, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			for _, sql := range swap {
				_, err := conn.Exec(ctx, sql)
				for migrate.IsLockTimeout(err) { // we waited for each other
					_, err = conn.Exec(ctx, sql)
				}
				if err != nil {
					done <- err
					return
				}
				time.Sleep(2 * time.Millisecond)
			}
			select {
			case <-quit:
				done <- nil
				return
			default:
			}
		}
	}()
	return func() {
		t.Helper()
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		close(quit)
		if err := <-done; err != nil {
			t.Fatalf("swap the schemas: %v", err)
		}
		for ours := 1; ours > 0; {
			if err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'plantstore%'`).Scan(&ours); err != nil {
				t.Fatal(err)
			}
		}
		var ran int
		if err := conn.QueryRow(ctx, `SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE schemaname = 'other'`).Scan(&ran); err != nil {
			t.Fatal(err)
		}
		if ran > 0 {
			t.Errorf("others' code was run %d times", ran)
		}
	}
}

// WhileSchemasSwap has a superuser do something beside SwapSchemas, also where who owns the database
// has chosen what sessions in it begin with.
func WhileSchemasSwap(t *testing.T, do func(t *testing.T, db Database)) {
	for _, setting := range []string{"", "default_transaction_read_only = on", "role = plantstore_owner", "role = plantstore_app"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			db := New(t)
			stop := SwapSchemas(t, db)
			if setting != "" {
				if _, err := Connect(t, db.Super).Exec(t.Context(), `ALTER DATABASE `+quote(db.Name)+` SET `+setting); err != nil {
					t.Fatal(err)
				}
			}
			do(t, db)
			stop()
		})
	}
}

// OFFSET keeps the planner from finding out that it need not call the function.
const swapViews = `
	CREATE SCHEMA other;
	GRANT ALL ON SCHEMA other TO PUBLIC;
	CREATE FUNCTION other.run() RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN true; END';
	ALTER FUNCTION other.run() OWNER TO plantstore_app;
	DO $do$
	DECLARE
		r record;
	BEGIN
		FOR r IN SELECT c.relname, string_agg(format('%s::%s AS %I', CASE a.atttypid::regtype::text WHEN 'boolean' THEN 'true' WHEN 'bigint' THEN '1' WHEN 'integer' THEN '1'
					WHEN 'timestamp without time zone' THEN 'now()' WHEN 'timestamp with time zone' THEN 'now()' ELSE 'NULL' END, format_type(a.atttypid, a.atttypmod), a.attname), ', ' ORDER BY a.attnum) AS columns
			FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' GROUP BY c.relname
		LOOP
			EXECUTE format('CREATE VIEW other.%I AS SELECT %s WHERE other.run() OFFSET 0', r.relname, r.columns);
			EXECUTE format('ALTER VIEW other.%I OWNER TO plantstore_app', r.relname);
			EXECUTE format('GRANT ALL ON other.%I TO PUBLIC', r.relname);
		END LOOP;
	END
	$do$`
