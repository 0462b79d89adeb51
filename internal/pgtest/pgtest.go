// Package pgtest gives each test a PostgreSQL database of its own. A test
// process has one server, see StartServer, which ends with it:
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
//
// Where there is no PostgreSQL, tests that ask for a database fail.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	startTimeout    = 5 * time.Minute // an image may have to be pulled
	databaseTimeout = 5 * time.Minute
)

// shared is the server of this test process. It is here because tests have
// nothing else in common.
var shared struct {
	inMain   bool
	once     sync.Once
	server   *Server
	template string
	err      error

	mu        sync.Mutex
	templates []string // databases of Templates
}

// Main runs the tests, ends the server if one of them needed it, and returns the
// exit code for TestMain, also after SIGINT or SIGTERM.
func Main(m *testing.M) int {
	shared.inMain = true
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	result := make(chan int, 1)
	go func() { result <- m.Run() }()
	var code int
	select {
	case code = <-result:
	case <-interrupted.Done():
		code = 1
	}

	// From here on no server is started; one that is being started is awaited.
	shared.once.Do(func() { shared.err = errors.New("the tests are over") })
	if shared.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
		defer cancel()
		var errs []error
		for _, name := range shared.templates {
			errs = append(errs, shared.server.dropDatabase(ctx, name))
		}
		if err := errors.Join(append(errs, shared.server.Close())...); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			code = 1
		}
	}
	return code
}

// New returns a fresh database with all migrations applied. It is dropped at the
// end of the test.
func New(t testing.TB) Database {
	t.Helper()
	startShared(t)
	return newDatabase(t, func(ctx context.Context) (Database, error) { return shared.server.copyDatabase(ctx, shared.template) })
}

// Empty returns a fresh database with the roles but no migration applied. It is
// dropped at the end of the test.
func Empty(t testing.TB) Database {
	t.Helper()
	return EmptyWith(t, "")
}

// EmptyWith is Empty with options of CREATE DATABASE, such as "ENCODING 'LATIN1'".
func EmptyWith(t testing.TB, options string) Database {
	t.Helper()
	startShared(t)
	return newDatabase(t, func(ctx context.Context) (Database, error) { return shared.server.emptyDatabase(ctx, options) })
}

// A Template is a database that several tests want copies of. Make fills an empty one, with the
// roles, when the first of them comes. No connection to it may be left.
type Template struct {
	Make func(context.Context, Database) error

	once sync.Once
	name string
	err  error
}

// New returns a fresh copy, as the function New does.
func (p *Template) New(t testing.TB) Database {
	t.Helper()
	startShared(t)
	p.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
		defer cancel()
		var db Database
		db, p.err = shared.server.emptyDatabase(ctx, "")
		p.name = db.Name
		shared.mu.Lock()
		shared.templates = append(shared.templates, p.name)
		shared.mu.Unlock()
		if p.err == nil {
			p.err = p.Make(ctx, db)
		}
	})
	if p.err != nil {
		t.Fatalf("pgtest: %v", p.err)
	}
	return newDatabase(t, func(ctx context.Context) (Database, error) { return shared.server.copyDatabase(ctx, p.name) })
}

func startShared(t testing.TB) {
	t.Helper()
	if !shared.inMain {
		t.Fatal("pgtest: TestMain has to call pgtest.Main")
	}
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		if shared.server, shared.err = StartServer(ctx, os.Getenv); shared.err == nil {
			shared.template, shared.err = shared.server.prepare(ctx)
		}
	})
	if shared.err != nil {
		t.Fatalf("pgtest: %v", shared.err)
	}
}

func newDatabase(t testing.TB, create func(context.Context) (Database, error)) Database {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), databaseTimeout)
	defer cancel()
	db, err := create(ctx)
	if db.Name != "" {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
			defer cancel()
			if err := shared.server.dropDatabase(ctx, db.Name); err != nil {
				t.Errorf("pgtest: %v", err)
			}
		})
	}
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Logf("database %s on %v", db.Name, shared.server)
	return db
}

// Pool opens a pool of connections that is closed at the end of the test.
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
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// WithParameters adds parameters, such as "pool_max_conns=1", to a database's
// URL.
func WithParameters(url, parameters string) string {
	switch {
	case parameters == "":
		return url
	case strings.Contains(url, "?"):
		return url + "&" + parameters
	default:
		return url + "?" + parameters
	}
}
