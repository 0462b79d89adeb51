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

func TestNew(t *testing.T) {
	t.Parallel()
	a, b := New(t), New(t)
	exec(t, a.Owner, `INSERT INTO plants (name) VALUES ('fern')`)
	if got := count(t, a.Super, `SELECT count(*) FROM plants`); got != 1 {
		t.Errorf("%d plants in the database they were put in, want 1", got)
	}
	if got := count(t, b.Super, `SELECT count(*) FROM plants`); got != 0 {
		t.Errorf("%d plants in another test's database, want 0", got)
	}
}

// A server's folder may have a blank in its name, which libpq does not take from a plus.
func TestURLOfAServerWithABlank(t *testing.T) {
	t.Parallel()
	s := &Server{URL: "postgres://postgres@/postgres?host=/a/b%20c&port=5432"}
	if got, want := s.databaseURL(nil, "plants"), "postgres://postgres@/plants?connect_timeout=60&host=%2Fa%2Fb%20c&port=5432"; got != want {
		t.Errorf("URL %s, want %s", got, want)
	}
}

func TestAppRoleIsLimited(t *testing.T) {
	t.Parallel()
	for name, db := range map[string]Database{"New": New(t), "Empty": Empty(t)} {
		for _, sql := range []string{
			`CREATE TABLE t (n int)`,
			`CREATE SCHEMA s`,
		} {
			const insufficientPrivilege = "42501"
			_, err := connect(t, db.App).Exec(t.Context(), sql)
			if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != insufficientPrivilege {
				t.Errorf("%s as the app role in a database of %s: %v, want SQLSTATE %s", sql, name, err, insufficientPrivilege)
			}
		}
	}
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	db := Empty(t)
	if got := count(t, db.Super, `SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`); got != 0 {
		t.Errorf("%d tables, want none", got)
	}
	exec(t, db.Owner, `CREATE TABLE t (n int)`)
}

func TestDroppedAtTheEndOfTheTest(t *testing.T) {
	t.Parallel()
	other := Empty(t)
	var name string
	t.Run("user", func(t *testing.T) {
		db := New(t)
		name = db.Name
		connect(t, db.App) // which is closed later only
	})
	conn := connect(t, other.Super)
	var exists bool
	if err := conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&exists); err != nil {
		t.Fatal(err)
	}
	if exists {
		t.Errorf("database %s outlived its test", name)
	}
}

func TestStartServerRefuses(t *testing.T) {
	t.Parallel()
	startShared(t)
	app := New(t).App
	for _, test := range []struct {
		name string
		env  map[string]string
		want string
	}{
		{"unknown source", map[string]string{"PLANTSTORE_TEST_POSTGRES": "docker"},
			`PLANTSTORE_TEST_POSTGRES is "docker", want container, local or nothing`},
		{"unknown source with a URL", map[string]string{"PLANTSTORE_TEST_POSTGRES": "Local", "TEST_DATABASE_URL": shared.server.URL},
			`PLANTSTORE_TEST_POSTGRES is "Local"`},
		{"DSN", map[string]string{"TEST_DATABASE_URL": "host=/tmp dbname=postgres"},
			"TEST_DATABASE_URL: want a URL"},
		{"nothing listens", map[string]string{"TEST_DATABASE_URL": "postgres://postgres@127.0.0.1:1/postgres"},
			"TEST_DATABASE_URL: failed to connect"},
		{"no superuser", map[string]string{"TEST_DATABASE_URL": app},
			"TEST_DATABASE_URL: want the URL of a superuser"},
		{"another version", map[string]string{"TEST_DATABASE_URL": shared.server.URL, "PLANTSTORE_TEST_POSTGRES_VERSION": "1"},
			"TEST_DATABASE_URL: PLANTSTORE_TEST_POSTGRES_VERSION is 1, and this is PostgreSQL 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, err := StartServer(t.Context(), func(name string) string { return test.env[name] })
			if err == nil {
				_ = s.Close()
				t.Fatalf("got %v, want an error", s)
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want it to say %q", err, test.want)
			}
		})
	}
}

func TestDatabaseURL(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ server, super, app string }{
		{
			"postgres://postgres:secret@localhost:5432/postgres?sslmode=disable",
			"postgres://postgres:secret@localhost:5432/a%20b?connect_timeout=60&sslmode=disable",
			"postgres://plantstore_app:plantstore-test@localhost:5432/a%20b?connect_timeout=60&sslmode=disable",
		},
		{
			"postgresql:///postgres?host=/tmp/x&user=postgres&dbname=postgres",
			"postgresql:///a%20b?connect_timeout=60&host=%2Ftmp%2Fx&user=postgres",
			"postgresql://plantstore_app:plantstore-test@/a%20b?connect_timeout=60&host=%2Ftmp%2Fx",
		},
	} {
		got := (&Server{URL: test.server}).database("a b")
		if got.Super != test.super {
			t.Errorf("Super of %s:\n got %s\nwant %s", test.server, got.Super, test.super)
		}
		if got.App != test.app {
			t.Errorf("App of %s:\n got %s\nwant %s", test.server, got.App, test.app)
		}
		if config, err := pgx.ParseConfig(got.App); err != nil || config.User != appRole || config.Database != "a b" {
			t.Errorf("%s: not understood (%v)", got.App, err)
		}
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) }) // the database may be gone
	return conn
}

func exec(t *testing.T, url, sql string) {
	t.Helper()
	if _, err := connect(t, url).Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func count(t *testing.T, url, sql string) int {
	t.Helper()
	var n int
	if err := connect(t, url).QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}
