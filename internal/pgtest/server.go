package pgtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	roles "plantstore/deploy/postgres"
	"plantstore/internal/localpg"
	"plantstore/migrations"
)

const (
	// password is the password of both roles.
	password = "plantstore-test"

	// templateLock is the advisory lock under which test processes that share a server make
	// roles and templates. Any number would do.
	templateLock = 7_526_884_111
)

// A Database is a test's database. The fields but Name are URLs.
type Database struct {
	Name  string
	Super string // as a superuser
	Owner string // as plantstore_owner, which migrates
	App   string // as plantstore_app, as the service does
}

// A server has two templates: one after roles.sql, and one with all migrations.
type server struct {
	url             *url.URL // of a superuser, in a maintenance database
	stop            func() error
	admin           *pgxpool.Pool // creates and drops databases
	empty, migrated string
}

// startServer returns the server at superuserURL or, where that is empty, one of its own.
// The server has to be one for tests: the service's roles get new passwords.
func startServer(superuserURL string) (_ *server, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	s := &server{stop: func() error { return nil }}
	if superuserURL == "" {
		pg, err := localpg.Start(ctx, localpg.Options{Settings: Settings()})
		if err != nil {
			return nil, fmt.Errorf("start a PostgreSQL for the tests: install one (apt-get install postgresql) or set TEST_DATABASE_URL to a superuser's URL: %w", err)
		}
		superuserURL, s.stop = pg.URL("postgres", "postgres"), pg.Close
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.url, err = url.Parse(superuserURL); err != nil || s.url.User == nil {
		return nil, errors.New("TEST_DATABASE_URL: want a URL, as in postgres://user:password@host:5432/database") // it may hold a password
	}
	if s.admin, err = pgxpool.New(ctx, superuserURL); err != nil {
		return nil, fmt.Errorf("TEST_DATABASE_URL: %w", err)
	}
	if err := s.prepare(ctx); err != nil {
		s.admin.Close()
		return nil, fmt.Errorf("prepare the server for tests: %w", err)
	}
	return s, nil
}

// Settings are for a server that the tests start: nobody needs its data, and tests run side
// by side with pools of their own.
func Settings() map[string]string {
	return map[string]string{"fsync": "off", "max_connections": "300"}
}

// prepare makes roles and templates, unless another process has. Their names depend on all
// that they are made from.
func (s *server) prepare(ctx context.Context) error {
	hash := sha256.New()
	fmt.Fprint(hash, password, roles.SQL)
	names, _ := fs.Glob(migrations.Files, "*.sql") // fails for a malformed pattern only
	for _, name := range names {
		text, err := fs.ReadFile(migrations.Files, name)
		if err != nil {
			return err
		}
		fmt.Fprintf(hash, "\n%s\n%s", name, text)
	}
	key := fmt.Sprintf("%.8x", hash.Sum(nil))
	s.empty, s.migrated = "plantstore_empty_"+key, "plantstore_template_"+key

	conn, err := pgx.Connect(ctx, s.url.String())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // releases the lock
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(templateLock)); err != nil {
		return err
	}
	var done bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, s.migrated).Scan(&done); done || err != nil {
		return err
	}
	// The templates get their names when they are complete: an earlier attempt may have been
	// cut short. A database with connections can't be cloned.
	server, unfinished := s.url.String(), s.database("plantstore_unfinished")
	for _, step := range []struct{ url, sql string }{
		{server, `DROP DATABASE IF EXISTS plantstore_unfinished WITH (FORCE)`},
		{server, `DROP DATABASE IF EXISTS ` + s.empty + ` WITH (FORCE)`},
		{server, `CREATE DATABASE plantstore_unfinished TEMPLATE template0`},
		{unfinished.Super, roles.SQL},
		{server, `ALTER ROLE plantstore_owner PASSWORD '` + password + `'; ALTER ROLE plantstore_app PASSWORD '` + password + `'`},
		{server, `CREATE DATABASE ` + s.empty + ` TEMPLATE plantstore_unfinished ALLOW_CONNECTIONS false`},
	} {
		if err := execute(ctx, step.url, step.sql); err != nil {
			return err
		}
	}
	if err := migrate(ctx, unfinished.Owner); err != nil {
		return err
	}
	return execute(ctx, server, `ALTER DATABASE plantstore_unfinished ALLOW_CONNECTIONS false; ALTER DATABASE plantstore_unfinished RENAME TO `+s.migrated)
}

// execute runs statements on a connection of their own.
func execute(ctx context.Context, databaseURL, sql string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// migrate applies all migrations as goose does for anybody.
func migrate(ctx context.Context, databaseURL string) error {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations.Files, goose.WithTableName("plantstore.goose_db_version"))
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}

// clone copies a template. CONNECT and TEMPORARY, which roles.sql grants on a database, are
// everybody's on a new one.
func (s *server) clone(template string) (Database, error) {
	db := s.database("plantstore_test_" + strings.ToLower(rand.Text()))
	return db, s.execute(`CREATE DATABASE ` + db.Name + ` TEMPLATE ` + template)
}

func (s *server) drop(database string) error {
	return s.execute(`DROP DATABASE IF EXISTS ` + database + ` WITH (FORCE)`)
}

func (s *server) execute(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if _, err := s.admin.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// database returns the URLs of a database. A busy machine can take long to connect.
func (s *server) database(name string) Database {
	as := func(role *url.Userinfo) string {
		u := *s.url
		u.User, u.Path = role, "/"+name
		return WithParameters(u.String(), "connect_timeout=60")
	}
	return Database{name, as(s.url.User), as(url.UserPassword("plantstore_owner", password)), as(url.UserPassword("plantstore_app", password))}
}
