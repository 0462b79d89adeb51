package ledger_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/ledger"
	"plantstore/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func value[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) (v T) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// hostile are settings of a session that restores or deletes.
const hostile = `SET datestyle = 'SQL, DMY'; SET intervalstyle = 'sql_standard'; SET extra_float_digits = -15; SET bytea_output = 'escape';
	SET timezone = 'America/St_Johns'; SET xmlbinary = 'hex'; SET xmloption = 'document'; SET array_nulls = off; SET search_path = store, public;
	SET default_transaction_isolation = 'serializable'; SET default_transaction_read_only = on; SET statement_timeout = '1h'`

// replacePlants replaces public.plants by a table that sql creates, and empties the ledger.
func replacePlants(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	pgtest.Execute(t, conn, `DROP TABLE IF EXISTS public.plants CASCADE; TRUNCATE plantstore.deletions, plantstore.cascaded; `+sql+`;
		CREATE TRIGGER record_deletion AFTER DELETE ON public.plants REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION plantstore.record_deletion()`)
}

// image returns all plants as text, which is exact in the settings of a new session.
func image(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	var b bytes.Buffer
	if _, err := conn.PgConn().CopyTo(t.Context(), &b, `COPY (SELECT * FROM public.plants ORDER BY id) TO STDOUT`); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// deleteAs deletes a plant as the service does for a principal.
func deleteAs(t *testing.T, conn *pgx.Conn, plant int64, principal string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), `
		WITH requests AS MATERIALIZED (SELECT set_config('plantstore.requests', ARRAY[[$1::bigint::text], [$2], ['r-' || $1], ['k-' || $1]]::text, true))
		DELETE FROM public.plants USING requests WHERE id = $1`, plant, principal); err != nil {
		t.Fatal(err)
	}
}

func list(t *testing.T, conn *pgx.Conn, f ledger.Filter) (all []ledger.Deletion) {
	t.Helper()
	if err := ledger.List(t.Context(), conn, f, func(d ledger.Deletion) error { all = append(all, d); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

func restore(t *testing.T, conn *pgx.Conn, s ledger.Selection, o ledger.Options) ledger.Restored {
	t.Helper()
	done, err := ledger.Restore(t.Context(), conn, s, o)
	if err != nil {
		t.Fatal(err)
	}
	return done
}
