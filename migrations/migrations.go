// Package migrations holds the service's schema as goose migrations in plain
// SQL, and applies them. The stock goose command line runs the same files.
//
// Every run opens its own connections and its own goose provider, because the
// retry budget of goose's lock is never reset. The runs of several replicas take
// turns on an advisory lock, which needs a direct connection: a PgBouncer in
// transaction mode would leave the lock behind.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// Files are the migrations.
//
//go:embed *.sql
var Files embed.FS

// lockTimeout is how long a statement of a migration may wait for a lock, with
// everything that queues up behind it.
const lockTimeout = time.Second

// A Migration is one file.
type Migration struct {
	Version int64
	Name    string // of the file, as in "00001_plants.sql"
}

// All returns the migrations of this binary, oldest first.
func All() []Migration {
	entries, err := Files.ReadDir(".")
	if err != nil {
		panic(err) // the embedded folder can always be read
	}
	all := make([]Migration, len(entries))
	for i, e := range entries {
		number, _, _ := strings.Cut(e.Name(), "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			panic(fmt.Sprintf("migration %s: its name does not start with a number", e.Name()))
		}
		all[i] = Migration{Version: version, Name: e.Name()}
	}
	return all
}

// Versions returns the versions of All.
func Versions() []int64 {
	all := All()
	versions := make([]int64, len(all))
	for i, m := range all {
		versions[i] = m.Version
	}
	return versions
}

// Latest returns the newest version of this binary.
func Latest() int64 {
	versions := Versions()
	return versions[len(versions)-1]
}

// A Change is a migration that was applied or taken back.
type Change struct {
	Migration
	Took time.Duration
}

// A State is a migration as a database has it.
type State struct {
	Migration
	AppliedAt time.Time // zero when pending
	Unknown   bool      // applied, but not part of this binary
}

// A FailedError says which migration failed. Nothing of it was applied or taken
// back; those before it were.
type FailedError struct {
	Name string // of the file
	Err  error
}

func (e *FailedError) Error() string { return fmt.Sprintf("migration %s: %v", e.Name, e.Err) }
func (e *FailedError) Unwrap() error { return e.Err }

// Up applies every pending migration and returns those it applied, also when a
// later one failed: that is a FailedError.
func Up(ctx context.Context, databaseURL string) ([]Change, error) {
	return run(ctx, databaseURL, func(p *goose.Provider) ([]*goose.MigrationResult, error) {
		return p.Up(ctx)
	})
}

// Down takes the newest migration back. A database without any is left alone.
func Down(ctx context.Context, databaseURL string) ([]Change, error) {
	return run(ctx, databaseURL, func(p *goose.Provider) ([]*goose.MigrationResult, error) {
		result, err := p.Down(ctx)
		if errors.Is(err, goose.ErrNoNextVersion) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return []*goose.MigrationResult{result}, nil
	})
}

// DownTo takes back every migration newer than version, newest first.
func DownTo(ctx context.Context, databaseURL string, version int64) ([]Change, error) {
	return run(ctx, databaseURL, func(p *goose.Provider) ([]*goose.MigrationResult, error) {
		return p.DownTo(ctx, version)
	})
}

// Status tells which migrations a database has. It only reads: a database that
// was never migrated stays without goose's table.
func Status(ctx context.Context, databaseURL string) ([]State, error) {
	config, err := connConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))

	applied, err := readApplied(ctx, conn)
	if err != nil {
		return nil, err
	}
	var states []State
	for _, m := range All() {
		at, ok := applied[m.Version]
		delete(applied, m.Version)
		if !ok {
			at = time.Time{}
		}
		states = append(states, State{Migration: m, AppliedAt: at})
	}
	for version, at := range applied {
		states = append(states, State{Migration: Migration{Version: version}, AppliedAt: at, Unknown: true})
	}
	return states, nil
}

// readApplied returns when each migration that the database has was applied.
func readApplied(ctx context.Context, conn *pgx.Conn) (map[int64]time.Time, error) {
	var exists bool
	if err := conn.QueryRow(ctx, `SELECT to_regclass('goose_db_version') IS NOT NULL`).Scan(&exists); err != nil {
		return nil, fmt.Errorf("look for goose_db_version: %w", err)
	}
	applied := make(map[int64]time.Time)
	if !exists {
		return applied, nil
	}
	// goose deletes the row of a migration that is taken back; version 0 only
	// says that the table was made.
	rows, err := conn.Query(ctx,
		`SELECT version_id, tstamp FROM goose_db_version WHERE is_applied AND version_id > 0`)
	if err != nil {
		return nil, fmt.Errorf("read goose_db_version: %w", err)
	}
	var version int64
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&version, &at}, func() error {
		applied[version] = at
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read goose_db_version: %w", err)
	}
	return applied, nil
}

// run gives do a provider of its own, locked against other runs.
func run(ctx context.Context, databaseURL string,
	do func(*goose.Provider) ([]*goose.MigrationResult, error)) ([]Change, error) {
	config, err := connConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	if err := db.PingContext(ctx); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	p, err := provider(db)
	if err != nil {
		return nil, err
	}
	results, err := do(p)
	var partial *goose.PartialError
	if errors.As(err, &partial) {
		results = partial.Applied
		err = &FailedError{Name: path.Base(partial.Failed.Source.Path), Err: partial.Err}
	}
	changes := make([]Change, len(results))
	for i, r := range results {
		changes[i] = Change{
			Migration: Migration{Version: r.Source.Version, Name: path.Base(r.Source.Path)},
			Took:      r.Duration,
		}
	}
	return changes, err
}

// provider returns a goose provider whose runs wait for each other, up to five
// minutes.
func provider(db *sql.DB) (*goose.Provider, error) {
	const everySecond, attempts = 1, 300
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(everySecond, attempts))
	if err != nil {
		return nil, fmt.Errorf("goose lock: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, Files,
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("goose provider: %w", err)
	}
	return p, nil
}

func connConfig(databaseURL string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 5 * time.Second
	}
	setDefault(config.RuntimeParams, "application_name", "plantstore migrate")
	setDefault(config.RuntimeParams, "lock_timeout", strconv.FormatInt(lockTimeout.Milliseconds(), 10))
	return config, nil
}

func setDefault(params map[string]string, name, value string) {
	if _, ok := params[name]; !ok {
		params[name] = value
	}
}
