package pgtest

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestDatabasesAreSeparate(t *testing.T) {
	t.Parallel()
	a, b := New(t), New(t)
	if _, err := Connect(t, a.Owner).Exec(t.Context(), `INSERT INTO plants (name) VALUES ('fern')`); err != nil {
		t.Fatal(err)
	}
	if got := scan[int](t, a.Super, `SELECT count(*) FROM plants`); got != 1 {
		t.Errorf("plants in their database: got %d, want 1", got)
	}
	if got := scan[int](t, b.Super, `SELECT count(*) FROM plants`); got != 0 {
		t.Errorf("plants in another database: got %d, want 0", got)
	}
	if a, b := Shared(t), Shared(t); a != b {
		t.Errorf("shared databases: got %v and %v, want the same one", a.Name, b.Name)
	}
	if a, b := IDs(t), IDs(t); max(a, b)-min(a, b) < 10_000 {
		t.Errorf("ranges of ids begin at %d and %d, want 10,000 between them", a, b)
	}
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	db := Empty(t)
	if got := scan[int](t, db.Super, `SELECT count(*) FROM pg_tables WHERE schemaname IN ('public', 'plantstore')`); got != 0 {
		t.Errorf("tables: got %d, want 0", got)
	}
	if got := scan[string](t, db.App, `SHOW plan_cache_mode`); got != "force_generic_plan" {
		t.Errorf("plan_cache_mode of the service's role: got %s, want force_generic_plan", got)
	}
}

func TestDroppedAtTheEndOfTheTest(t *testing.T) {
	t.Parallel()
	other := Empty(t)
	var name string
	t.Run("user", func(t *testing.T) {
		db := New(t)
		name = db.Name
		conn, err := pgx.Connect(t.Context(), db.App)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.PgConn().Conn().Close() }) // open until the database is dropped
	})
	if got := scan[bool](t, other.Super, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = '`+name+`')`); got {
		t.Errorf("database %s exists after its test", name)
	}
}

func TestStartServerRefuses(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"host=/tmp dbname=postgres":                "TEST_DATABASE_URL: want a URL",
		"postgres://postgres@127.0.0.1:1/postgres": "failed to connect",
	} {
		if s, err := startServer(t.Context(), url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, %v, want an error with %q", url, s, err, want)
		}
	}
}

// A server's folder may have a blank in its name, which libpq does not take from a plus.
func TestDatabaseURL(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"postgres://postgres:secret@localhost:5432/postgres?sslmode=disable": "postgres://postgres:secret@localhost:5432/plants?connect_timeout=60&sslmode=disable",
		"postgres://postgres@/postgres?host=/a/b%20c&port=5432":              "postgres://postgres@/plants?connect_timeout=60&host=%2Fa%2Fb%20c&port=5432",
	} {
		if got := databaseURL(server, nil, "plants"); got != want {
			t.Errorf("%s:\n got %s\nwant %s", server, got, want)
		}
	}
}

func TestPooler(t *testing.T) {
	t.Parallel()
	url := WithParameters(Pooler(t, Shared(t).App), "default_query_exec_mode=exec")
	conn := Connect(t, url)
	pid := func() (pid uint32) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	first, second := pid(), pid()
	if told := conn.PgConn().PID(); first == second || first == told || second == told {
		t.Errorf("processes: got %d, %d and %d as told, want three different ones", first, second, told)
	}
	// A transaction stays in its session, and ends with its client.
	if _, err := conn.Exec(t.Context(), `BEGIN; SELECT pg_current_xact_id()`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	if a, b := pid(), pid(); a != b {
		t.Errorf("processes in a transaction: got %d and %d, want the same one", a, b)
	}
	conn.Close(t.Context())
	conn = Connect(t, url)
	for range 2 {
		var ended bool
		if err := conn.QueryRow(t.Context(), `SELECT pg_current_xact_id_if_assigned() IS NULL`).Scan(&ended); err != nil || !ended {
			t.Errorf("transaction of a client that left: ended %v, %v, want true", ended, err)
		}
	}
	_, err := pgx.Connect(t.Context(), WithParameters(url, "search_path=public"))
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "08P01" {
		t.Errorf("a startup parameter: got %v, want SQLSTATE 08P01", err)
	}
}

func scan[T any](t *testing.T, url, sql string) (value T) {
	t.Helper()
	if err := Connect(t, url).QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}
