// Package migrate applies the service's migrations, rolls them back, and previews their effect
// on a database. The stock goose command runs the same files.
package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"plantstore/migrations"
)

// table is goose's table of applied migrations. Its schema has to exist before goose runs. IF NOT
// EXISTS would ask for a right on the database even then.
const (
	table        = "plantstore.goose_db_version"
	createSchema = `DO $$ BEGIN IF to_regnamespace('plantstore') IS NULL THEN CREATE SCHEMA plantstore; END IF; END $$`
)

// The limits of the command line. Clients may have to wait behind a migration that waits for a
// lock. 1.2 s is longer than deadlock_timeout, when autovacuum gives way.
const (
	DefaultLockTimeout  = 1200 * time.Millisecond
	DefaultLockAttempts = 10
)

// Options are for Up and Down. With a zero LockTimeout, a migration and the clients behind it wait
// for a lock without a limit: commands must set both limits.
type Options struct {
	LockTimeout  time.Duration // of an attempt
	LockAttempts int
	Notify       func(message string) // called for each step and each failed attempt
}

// A Migration is one file.
type Migration struct {
	Version int64  `json:"version"`
	Name    string `json:"name"` // of the file
}

// All returns the migrations of this binary, oldest first.
func All() []Migration {
	names, _ := fs.Glob(migrations.Files, "*.sql") // sorted; the pattern is valid
	all := make([]Migration, len(names))
	for i, name := range names {
		number, _, _ := strings.Cut(name, "_")
		version, _ := strconv.ParseInt(number, 10, 64) // goose takes no file without a number
		all[i] = Migration{Version: version, Name: name}
	}
	return all
}

// Versions returns the versions of All.
func Versions() []int64 {
	var versions []int64
	for _, m := range All() {
		versions = append(versions, m.Version)
	}
	return versions
}

// Latest returns the newest version of this binary.
func Latest() int64 { return slices.Max(Versions()) }

// A State is a migration and whether it is applied.
type State struct {
	Migration
	AppliedAt *time.Time `json:"applied_at"`
	Unknown   bool       `json:"unknown,omitempty"` // of a newer plantstore
}

// Status returns the migrations of this binary and of the database, oldest first. It creates
// nothing.
func Status(ctx context.Context, databaseURL string) ([]State, error) {
	conn, err := connect(ctx, databaseURL)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return status(ctx, conn)
}

// OneStep has Down roll back the newest migration only.
const OneStep = -1

// ErrPooler means that Up and Down need a direct connection.
var ErrPooler = errors.New("a connection pooler is in front of the server, and migrations need a session of their own for their locks: " +
	"name the server itself in PLANTSTORE_MIGRATE_DATABASE_URL")

// An AheadError means that a newer plantstore has migrated the database.
type AheadError struct{ Version, Binary int64 }

func (e *AheadError) Error() string {
	return fmt.Sprintf("the database is at version %d, ahead of this plantstore at %d: only the newer plantstore can roll back", e.Version, e.Binary)
}

// An UnmetError lists the problems that prevent Up or Down.
type UnmetError struct{ Problems []string }

func (e *UnmetError) Error() string { return strings.Join(e.Problems, "\n") }

// A BlockedError means that a migration did not get its lock in any attempt.
type BlockedError struct {
	Name     string
	Attempts int
	Blockers []string
	Err      error // of the last attempt
}

func (e *BlockedError) Error() string {
	return fmt.Sprintf("%s did not get its lock in %d attempts and was rolled back; %s", e.Name, e.Attempts, heldBy(e.Blockers))
}

func (e *BlockedError) Unwrap() error { return e.Err }

// Up applies all pending migrations, one transaction a file. It returns those that it applied,
// also after an error. It refuses with *UnmetError before it changes anything.
func Up(ctx context.Context, databaseURL string, o Options) ([]Migration, error) {
	conn, err := connectDirectly(ctx, databaseURL)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	p, err := preview(ctx, conn)
	if err != nil {
		return nil, err
	}
	if len(p.Pending) > 0 && len(p.Problems) > 0 {
		return nil, &UnmetError{p.Problems}
	}
	var work []Migration
	for _, m := range p.Pending {
		work = append(work, m.Migration)
	}
	return run(ctx, conn, work, true, o)
}

// Down rolls back all migrations newer than to, newest first, and returns them as Up does. If
// one of them would refuse, it returns *UnmetError and rolls none back.
func Down(ctx context.Context, databaseURL string, to int64, o Options) ([]Migration, error) {
	conn, err := connectDirectly(ctx, databaseURL)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	states, err := status(ctx, conn)
	if err != nil {
		return nil, err
	}
	var work []Migration
	for _, s := range slices.Backward(states) {
		switch {
		case s.Unknown:
			return nil, &AheadError{s.Version, Latest()}
		case s.AppliedAt != nil && s.Version > to && (to != OneStep || len(work) == 0):
			work = append(work, s.Migration)
		}
	}
	if len(work) > 0 {
		var there bool
		if err := conn.QueryRow(ctx, `SELECT to_regclass('public.plants') IS NOT NULL`).Scan(&there); err != nil {
			return nil, err
		}
		if !there {
			return nil, &UnmetError{[]string{"public.plants does not exist: 'plantstore doctor' says how to get it back"}}
		}
	}
	var problems []string
	for _, m := range work {
		if sql := losses[m.Version]; sql != "" {
			rows, _ := conn.Query(ctx, sql)
			if problems, err = pgx.AppendRows(problems, rows, pgx.RowTo[string]); err != nil {
				return nil, err
			}
		}
	}
	if problems != nil {
		return nil, &UnmetError{problems}
	}
	return run(ctx, conn, work, false, o)
}

// losses has queries by migration. Each returns the reasons why the migration's Down would refuse.
var losses = map[int64]string{
	5: `SELECT 'plantstore.cascaded has rows, and they cannot be restored without it. To go on: TRUNCATE plantstore.cascaded' WHERE EXISTS (SELECT FROM plantstore.cascaded)`,
	3: `SELECT 'plantstore.tokens has tokens, and clients would be locked out. To go on: DELETE FROM plantstore.tokens' WHERE EXISTS (SELECT FROM plantstore.tokens)
		UNION ALL SELECT 'plantstore.principals has budgets. To go on: UPDATE plantstore.principals SET budget = NULL, budget_period = NULL' WHERE EXISTS (SELECT FROM plantstore.principals WHERE budget IS NOT NULL)`,
	2: `SELECT 'plantstore.deletions has entries, and deleted plants cannot be restored without them. To go on, export them and TRUNCATE plantstore.deletions' WHERE EXISTS (SELECT FROM plantstore.deletions)`,
	1: `SELECT 'public.plants has rows: move or delete them first' WHERE EXISTS (SELECT FROM public.plants)
		AND obj_description(to_regclass('public.plants'), 'pg_class') = 'created by plantstore'`,
}

// run applies migrations (up) or rolls them back, in the order given.
func run(ctx context.Context, conn *pgx.Conn, work []Migration, up bool, o Options) (done []Migration, err error) {
	if o.Notify == nil {
		o.Notify = func(string) {}
	}
	verb := "applied"
	if !up {
		verb = "rolled back"
	}
	for _, m := range work {
		begun := time.Now()
		err := untilUnlocked(ctx, conn, m, up, o)
		switch {
		case errors.Is(err, goose.ErrAlreadyApplied), errors.Is(err, goose.ErrNotApplied):
			continue // by another run, meanwhile
		case err != nil:
			return done, err
		}
		o.Notify(fmt.Sprintf("%s %s in %s", verb, m.Name, time.Since(begun).Round(time.Millisecond)))
		done = append(done, m)
	}
	return done, nil
}

// untilUnlocked attempts one migration until it has got its locks.
func untilUnlocked(ctx context.Context, conn *pgx.Conn, m Migration, up bool, o Options) error {
	pause := o.LockTimeout / 2 // clients that queued behind this attempt go first
	for attempt := 1; ; attempt++ {
		err := once(ctx, conn.Config(), m, up, o)
		if err == nil {
			return nil
		}
		pg, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || pg.Code != lockNotAvailable && pg.Code != deadlockDetected {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		blockers, lookErr := tableBlockers(ctx, conn, up)
		if lookErr != nil {
			return errors.Join(fmt.Errorf("%s: %w", m.Name, err), lookErr)
		}
		if attempt == o.LockAttempts {
			return &BlockedError{Name: m.Name, Attempts: attempt, Blockers: blockers, Err: err}
		}
		o.Notify(fmt.Sprintf("%s did not get its lock (attempt %d of %d); %s", m.Name, attempt, o.LockAttempts, heldBy(blockers)))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, 10*time.Second)
	}
}

const (
	lockNotAvailable = "55P03"
	deadlockDetected = "40P01"
)

// once attempts one migration. Each attempt needs a goose provider of its own: a provider
// can't take its lock twice, nor search for its table twice.
func once(ctx context.Context, config *pgx.ConnConfig, m Migration, up bool, o Options) error {
	for name, value := range map[string]string{
		"lock_timeout":                        strconv.FormatInt(o.LockTimeout.Milliseconds(), 10),
		"statement_timeout":                   "0",
		"idle_in_transaction_session_timeout": "0",
		"default_transaction_isolation":       "read committed", // what follows a LOCK has to see what was committed before
	} {
		config.RuntimeParams[name] = value
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	inner, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300)) // once a second
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations.Files,
		goose.WithTableName(table), goose.WithSessionLocker(&locker{inner, o.Notify}))
	if err != nil {
		return err
	}
	_, err = provider.ApplyVersion(ctx, m.Version, up)
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		return partial.Err
	}
	return err
}

// locker is goose's lock, which excludes all programs that use goose as a library. It also
// names the holder, and creates the schema once it has the lock.
type locker struct {
	lock.SessionLocker
	notify func(message string)
}

func (l *locker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	var holder string
	err := conn.QueryRowContext(ctx, sessionNames(`SELECT pid FROM pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND classid = ($1::bigint >> 32)::oid AND objid = ($1::bigint & 4294967295)::oid AND granted AND pid <> pg_backend_pid()`), lock.DefaultLockID).Scan(&holder)
	switch {
	case err == nil:
		l.notify("another migration is under way; waiting up to 5 minutes for " + holder)
	case !errors.Is(err, sql.ErrNoRows):
		return err
	}
	if err := l.SessionLocker.SessionLock(ctx, conn); err != nil {
		if holder != "" {
			return fmt.Errorf("another migration is under way: %s: %w", holder, err)
		}
		return err
	}
	_, err = conn.ExecContext(ctx, createSchema)
	return err
}

// connect opens a connection for reading, through any pooler.
func connect(ctx context.Context, databaseURL string) (*pgx.Conn, error) {
	pool, err := pgxpool.ParseConfig(databaseURL) // the service's URL may have pool_max_conns
	if err != nil {
		return nil, err
	}
	config := pool.ConnConfig
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.RuntimeParams["application_name"] = "plantstore migrate"
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// connectDirectly is connect, and ErrPooler where a pooler is between.
func connectDirectly(ctx context.Context, databaseURL string) (*pgx.Conn, error) {
	conn, err := connect(ctx, databaseURL)
	if err != nil {
		return nil, err
	}
	pooled, err := isPooled(ctx, conn)
	if err == nil && pooled {
		err = ErrPooler
	}
	if err != nil {
		conn.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return conn, nil
}

// isPooled reports whether a pooler is in front of the server. A pooler makes up the process
// id that the driver gets, since it chooses a server session later.
func isPooled(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var pid uint32
	err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid)
	return pid != conn.PgConn().PID(), err
}

func status(ctx context.Context, conn *pgx.Conn) ([]State, error) {
	var exists bool
	if err := conn.QueryRow(ctx, `SELECT to_regclass('`+table+`') IS NOT NULL`).Scan(&exists); err != nil {
		return nil, err
	}
	applied := map[int64]time.Time{}
	if exists {
		// The column has no time zone: it is the time of the session that wrote it.
		rows, _ := conn.Query(ctx, `SELECT version_id, max(tstamp)::timestamptz FROM `+table+` WHERE is_applied AND version_id > 0 GROUP BY version_id`)
		var version int64
		var at time.Time
		if _, err := pgx.ForEachRow(rows, []any{&version, &at}, func() error { applied[version] = at; return nil }); err != nil {
			return nil, fmt.Errorf("read %s: %w", table, err)
		}
	}
	var states []State
	for _, m := range All() {
		s := State{Migration: m}
		if at, ok := applied[m.Version]; ok {
			s.AppliedAt = &at
			delete(applied, m.Version)
		}
		states = append(states, s)
	}
	for _, version := range slices.Sorted(maps.Keys(applied)) {
		at := applied[version]
		states = append(states, State{Migration: Migration{Version: version, Name: "unknown to this plantstore"}, AppliedAt: &at, Unknown: true})
	}
	return states, nil
}
