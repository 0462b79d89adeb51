package pgtest

import (
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
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
		if s, err := startServer(url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, %v, want an error with %q", url, s, err, want)
		}
	}
}

func scan[T any](t *testing.T, url, sql string) (value T) {
	t.Helper()
	if err := Connect(t, url).QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}
