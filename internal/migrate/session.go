package migrate

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// Config reads a database's URL. Settings of a pool are left out: who shares a
// URL with the service may have them. Text comes and goes as UTF-8, whatever the
// database's own encoding is. application is the session's name, unless the URL
// has one.
func Config(databaseURL, application string) (*pgx.ConnConfig, error) {
	pool, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	config := pool.ConnConfig
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 5 * time.Second
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = application
	}
	config.RuntimeParams["client_encoding"] = "UTF8"
	// Without the first, the driver sends no statement in the one form that every pooler
	// takes; in that form it reads moments of the second only. PgBouncer knows both.
	config.RuntimeParams["standard_conforming_strings"] = "on"
	config.RuntimeParams["datestyle"] = "ISO, YMD"
	if validate := config.ValidateConnect; validate != nil {
		config.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
			return validateSafely(ctx, conn, validate)
		}
	}
	return config, nil
}

// validateSafely is what target_session_attrs takes: the driver asks the server
// for pg_is_in_recovery(), by its bare name, before we get the connection. The
// transaction keeps the search path from a pooler's other clients.
func validateSafely(ctx context.Context, conn *pgconn.PgConn, validate pgconn.ValidateConnectFunc) error {
	if _, err := conn.Exec(ctx, `BEGIN; SET LOCAL search_path = pg_catalog, pg_temp`).ReadAll(); err != nil {
		return err
	}
	notThisOne := validate(ctx, conn)
	if _, err := conn.Exec(ctx, `ROLLBACK`).ReadAll(); err != nil {
		return err
	}
	return notThisOne // as it is: its type matters to the driver
}

// pinned makes a session safe in a database where others may make objects: names
// without a schema are the system's, and row level security is an error instead
// of somebody's function that runs with our rights. Warnings are passed on, whatever
// client_min_messages is. What a function is made with is written down as the doctor
// compares it. The schema of set_config has to be named here, and only here.
const pinned = `SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false), pg_catalog.set_config('row_security', 'off', false),
	pg_catalog.set_config('client_min_messages', 'warning', false), pg_catalog.set_config('quote_all_identifiers', 'off', false)`

// pin does so right after connecting. It is for sessions that are ours alone: a
// pooler in transaction mode would pass the settings on to others.
func pin(ctx context.Context, conn *pgconn.PgConn) error {
	if _, err := conn.Exec(ctx, pinned).ReadAll(); err != nil {
		return fmt.Errorf("pin the search path: %w", err)
	}
	return nil
}

// Connect returns a connection that is for Reading only. It works through any
// pooler.
func Connect(ctx context.Context, databaseURL, application string) (*pgx.Conn, error) {
	config, err := Config(databaseURL, application)
	if err != nil {
		return nil, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// Reading looks at a database in a transaction that can't change anything and
// sees one moment, also on a standby. It is as safe as a pinned session. Who reads rows of
// our tables with it trusts whoever can put others in their place, see Holding.
func Reading(ctx context.Context, conn *pgx.Conn, look func(pgx.Tx) error) error {
	return reading(ctx, conn, pgx.ReadOnly, look)
}

func reading(ctx context.Context, conn *pgx.Conn, access pgx.TxAccessMode, look func(pgx.Tx) error) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: access})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	// Sizes are read under a lock that reads take. Who holds it off for longer
	// keeps us from telling anything.
	_, err = tx.Exec(ctx, `
		SET LOCAL search_path = pg_catalog, pg_temp;
		SET LOCAL row_security = off;
		SET LOCAL standard_conforming_strings = on; -- a backslash is one
		SET LOCAL quote_all_identifiers = off; -- names are compared
		SET LOCAL intervalstyle = postgres; -- and constraints
		SET LOCAL lock_timeout = '5s';
		SET LOCAL statement_timeout = '30s'`)
	if err != nil {
		return err
	}
	return look(tx)
}

// applicationName is that of the migrations' sessions.
const applicationName = "plantstore migrate"

// open returns a database of one connection. When that is lost, the lock is, so
// there is no second one.
func (r *runner) open() *sql.DB {
	config := r.config.Copy()
	// A statement that runs when ctx ends is cancelled on the server, instead of
	// being left alone there.
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: 5 * time.Second}
	}
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.SeverityUnlocalized == "WARNING" {
			r.notify(Event{Kind: Warned, Warning: strings.TrimSpace(n.Message + ". " + n.Hint)})
		}
	}
	db := sql.OpenDB(&single{Connector: stdlib.GetConnector(*config), whole: &r.whole})
	db.SetMaxOpenConns(1)
	return db
}

// single is a connector that connects once.
type single struct {
	driver.Connector
	whole *bool
	done  bool
}

func (s *single) Connect(ctx context.Context) (driver.Conn, error) {
	if s.done {
		return nil, errors.New("the connection to the database was lost")
	}
	conn, err := s.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	s.done = true
	return joining{conn.(*stdlib.Conn), s.whole}, nil
}

// A joining connection begins no transactions of its own while whole says that one is open
// for all that is sent. goose would begin one for each migration.
type joining struct {
	*stdlib.Conn
	whole *bool
}

func (c joining) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	if *c.whole {
		return joined{}, nil
	}
	return c.Conn.BeginTx(ctx, options)
}

// ResetSession would take an open transaction for one that was forgotten.
func (c joining) ResetSession(ctx context.Context) error {
	if *c.whole {
		return nil
	}
	return c.Conn.ResetSession(ctx)
}

// joined is a transaction that ends with the one that it is part of.
type joined struct{}

func (joined) Commit() error   { return nil }
func (joined) Rollback() error { return nil }

// withConn lends the database's one connection out.
func withConn(ctx context.Context, db *sql.DB, do func(*pgx.Conn) error) error {
	c, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer c.Close()
	return c.Raw(func(conn any) error { return do(conn.(joining).Conn.Conn()) })
}
