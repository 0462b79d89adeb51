// Package pgtest gives tests PostgreSQL databases. A test process uses one server: the one
// in TEST_DATABASE_URL, as command run sets it, or a private one from this machine's
// programs.
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/localpg"
)

// timeout limits each wait, so that no test hangs forever.
const timeout = 5 * time.Minute

// process has the server that the tests of this process share. They share nothing else.
var process struct {
	inMain bool
	start  sync.Once
	server *server
	err    error

	shareDatabase sync.Once
	shared        Database
	sharedErr     error
	ranges        atomic.Int64
}

// Main runs the tests and returns the exit code for TestMain. Afterwards it stops the server
// that the tests needed.
func Main(m *testing.M) int {
	process.inMain = true
	code := m.Run()
	if process.server == nil {
		return code
	}
	var err error
	if process.shared.Name != "" {
		err = process.server.drop(process.shared.Name)
	}
	process.server.admin.Close()
	if err := errors.Join(err, process.server.stop()); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		return 1
	}
	return code
}

// New returns a fresh database with all migrations applied. It is dropped at the end of the
// test.
func New(t testing.TB) Database {
	t.Helper()
	s := start(t)
	return own(t, s, s.migrated)
}

// Empty returns a fresh database after roles.sql: it has the roles and their rights, and no
// migration. It is dropped at the end of the test.
func Empty(t testing.TB) Database {
	t.Helper()
	s := start(t)
	return own(t, s, s.empty)
}

// Shared returns the one migrated database that tests of a package use together, each with
// ids of its own: see IDs.
func Shared(t testing.TB) Database {
	t.Helper()
	s := start(t)
	process.shareDatabase.Do(func() { process.shared, process.sharedErr = s.clone(s.migrated) })
	if process.sharedErr != nil {
		t.Fatalf("pgtest: %v", process.sharedErr)
	}
	return process.shared
}

// IDs returns the first of 10,000 ids that no other test of the process gets.
func IDs(t testing.TB) int64 {
	t.Helper()
	return 1_000_000 + 10_000*process.ranges.Add(1)
}

// Pooler is a PgBouncer in transaction mode in front of a database, and returns its URL.
// PgBouncer logs in with the role of database, whatever role its client names.
func Pooler(t testing.TB, database string) string {
	t.Helper()
	b, err := localpg.StartBouncer(t.Context(), database)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return b.URL
}

// Pool opens a connection pool that is closed at the end of the test.
func Pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	p, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Connect opens a connection that is closed at the end of the test.
func Connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	return ConnectWith(t, url, func(*pgx.ConnConfig) {})
}

// ConnectWith is Connect with a changed configuration.
func ConnectWith(t testing.TB, url string, change func(*pgx.ConnConfig)) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	change(config)
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// Execute runs statements without arguments.
func Execute(t testing.TB, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Await returns when a query, run again and again, returns true: a server does not announce
// its locks. No test repeats anything else.
func Await(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), timeout)
	defer cancel()
	for {
		var is bool
		if err := conn.QueryRow(ctx, sql, args...).Scan(&is); err != nil {
			t.Fatalf("wait until %s: %v", sql, err)
		}
		if is {
			return
		}
		if _, err := conn.Exec(ctx, `SELECT pg_sleep(0.002)`); err != nil {
			t.Fatalf("wait until %s: %v", sql, err)
		}
	}
}

// AwaitBlocked returns when n sessions wait for locks of a process, directly or not.
func AwaitBlocked(t testing.TB, conn *pgx.Conn, by uint32, n int) {
	t.Helper()
	Await(t, conn, `
		WITH RECURSIVE waiting (pid) AS (
			SELECT $1::int UNION SELECT a.pid FROM waiting w, pg_stat_activity a WHERE w.pid = ANY (pg_blocking_pids(a.pid))
		) SELECT count(*) > $2 FROM waiting`, int32(by), n)
}

// WithParameters adds parameters, such as "pool_max_conns=1", to a database's URL.
func WithParameters(url, parameters string) string {
	if strings.Contains(url, "?") {
		return url + "&" + parameters
	}
	return url + "?" + parameters
}

func start(t testing.TB) *server {
	t.Helper()
	if !process.inMain {
		t.Fatal("pgtest: TestMain has to call pgtest.Main")
	}
	process.start.Do(func() { process.server, process.err = startServer(os.Getenv("TEST_DATABASE_URL")) })
	if process.err != nil {
		t.Fatalf("pgtest: %v", process.err)
	}
	return process.server
}

// own returns a clone of a template that is dropped at the end of the test.
func own(t testing.TB, s *server, template string) Database {
	t.Helper()
	db, err := s.clone(template)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := s.drop(db.Name); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return db
}
