package migrate

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

// Options are for runs that change a database. The zero value is fine.
type Options struct {
	// LockTimeout is how long a statement may wait for a lock, with everybody
	// who queues up behind it; 0 means DefaultLockTimeout.
	LockTimeout time.Duration
	// LockAttempts is how often a migration is tried that did not get a lock; 0
	// means DefaultLockAttempts. The pauses double, to ten seconds at most.
	LockAttempts int
	// Notify, if set, is told what goes on, by one goroutine at a time.
	Notify func(Event)
}

// What Options mean when they say nothing.
const (
	DefaultLockTimeout  = time.Second
	DefaultLockAttempts = 10
)

// An Event is something that happens during a run.
type Event struct {
	Kind EventKind
	// Migration is the Number-th of Of in this run; not for Queued and Warned.
	Migration  Migration
	Number, Of int
	// Took is for Finished.
	Took time.Duration
	// Lock that is waited for, as in "ACCESS EXCLUSIVE on plants", and who is in
	// the way, for Blocked and Retrying; who works, for Queued.
	Lock     string
	Blockers []Blocker
	// Attempt of Attempts failed, the next one comes after Pause, for Retrying.
	Attempt, Attempts int
	Pause             time.Duration
	// Warning is for Warned.
	Warning string
}

// An EventKind says what happened.
type EventKind int

const (
	Queued   EventKind = iota // another run is at work
	Warned                    // something needs attention, but the run goes on
	Started                   // a migration is tried for the first time
	Blocked                   // it waits for a lock that others hold
	Retrying                  // it did not get the lock and was rolled back
	Finished                  // it is applied, or taken back
)

// A Change is a migration that was applied or taken back.
type Change struct {
	Migration
	Took time.Duration
}

// A FailedError says which migration failed. Those before it were applied or
// taken back; of itself nothing was, unless it runs outside a transaction.
type FailedError struct {
	Name string // of the file
	Err  error  // may be a BlockedError
}

func (e *FailedError) Error() string { return fmt.Sprintf("migration %s: %v", e.Name, e.Err) }
func (e *FailedError) Unwrap() error { return e.Err }

// A BlockedError says that a lock could not be had.
type BlockedError struct {
	Lock     string    // as in an Event; empty if not seen
	Blockers []Blocker // those of the last attempt
	Attempts int
	Timeout  time.Duration
	Err      error
}

func (e *BlockedError) Error() string {
	message := fmt.Sprintf("no lock%s within %s, in %d attempts: nothing was changed", onLock(" ", e.Lock), e.Timeout, e.Attempts)
	for _, b := range e.Blockers {
		message += "; blocked by " + b.String()
	}
	return message
}

func (e *BlockedError) Unwrap() error { return e.Err }

func onLock(prefix, lock string) string {
	if lock == "" {
		return ""
	}
	return prefix + lock
}

// An InterruptedError says how a migration stands whose run was ended, or lost
// its connection.
type InterruptedError struct {
	Name  string // of the file
	State InterruptedState
	// Err is why: that of the context, or of the connection.
	Err error
}

// An InterruptedState is how an interrupted migration stands.
type InterruptedState string

const (
	Untouched  InterruptedState = "rolled back: nothing of it was changed"
	Complete   InterruptedState = "complete: it was committed before"
	Incomplete InterruptedState = "not recorded as done, but it runs outside a transaction: parts of it may have stayed"
	Undecided  InterruptedState = "either done or rolled back: the database could not be asked within 5 seconds"
)

func (e *InterruptedError) Error() string {
	return fmt.Sprintf("interrupted: migration %s is %s", e.Name, e.State)
}

func (e *InterruptedError) Unwrap() error { return e.Err }

// Up applies every pending migration and returns those it applied, also when a
// later one failed.
func (s Set) Up(ctx context.Context, databaseURL string, o Options) ([]Change, error) {
	return s.change(ctx, databaseURL, o, true, func(r *run, c condition) ([]Migration, error) {
		for _, t := range c.trouble {
			if t.Kind == OutOfOrder {
				return nil, fmt.Errorf("%s. %s", t.Message, t.Remedy)
			}
			r.notify(Event{Kind: Warned, Warning: t.Message + ". " + t.Remedy})
		}
		return c.pending, nil
	})
}

// Down takes the newest migration back. A database without any is left alone.
func (s Set) Down(ctx context.Context, databaseURL string, o Options) ([]Change, error) {
	return s.down(ctx, databaseURL, o, func(applied []Migration) []Migration {
		return applied[max(0, len(applied)-1):]
	})
}

// DownTo takes back every migration newer than version, newest first.
func (s Set) DownTo(ctx context.Context, databaseURL string, version int64, o Options) ([]Change, error) {
	return s.down(ctx, databaseURL, o, func(applied []Migration) []Migration {
		for i, m := range applied {
			if m.Version > version {
				return applied[i:]
			}
		}
		return nil
	})
}

func (s Set) down(ctx context.Context, databaseURL string, o Options, pick func(applied []Migration) []Migration) ([]Change, error) {
	return s.change(ctx, databaseURL, o, false, func(_ *run, c condition) ([]Migration, error) {
		var work []Migration
		for _, m := range pick(c.applied) {
			for _, state := range c.states {
				if state.Unknown && state.Version == m.Version {
					return nil, fmt.Errorf("migration %s is not part of this plantstore: take it back with the release that has it", m.Name)
				}
			}
			work = append([]Migration{m}, work...)
		}
		return work, nil
	})
}

// A run is one change of a database: a connection that holds the lock which
// keeps runs apart, and a second one, opened when needed, that looks who is in
// the way of the first.
type run struct {
	set     Set
	up      bool
	options Options
	config  *pgx.ConnConfig
	pid     uint32 // of the first connection's server process
	conn    *pgx.Conn
	timeout time.Duration // LockTimeout, or a little more

	observer *pgx.Conn // nil until needed

	mu  sync.Mutex // for Notify
	own []int64    // versions that this run applied
}

// change does, one after the other, what pick makes of the database's condition.
// Nobody else changes it meanwhile.
func (s Set) change(ctx context.Context, databaseURL string, o Options, up bool,
	pick func(*run, condition) ([]Migration, error)) (changes []Change, err error) {
	if o.LockTimeout == 0 {
		o.LockTimeout = DefaultLockTimeout
	}
	if o.LockAttempts == 0 {
		o.LockAttempts = DefaultLockAttempts
	}
	r := &run{set: s, up: up, options: o, own: []int64{}}
	if r.config, err = connConfig(databaseURL); err != nil {
		return nil, err
	}
	defer r.closeObserver()

	db := r.open()
	defer db.Close()
	var work []Migration
	err = withConn(ctx, db, func(conn *pgx.Conn) error {
		work, err = r.begin(ctx, conn, pick)
		return err
	})
	if err != nil || len(work) == 0 {
		return nil, err
	}

	p, err := r.provider(db)
	if err != nil {
		return nil, err
	}
	for i, m := range work {
		event := Event{Kind: Started, Migration: m, Number: i + 1, Of: len(work)}
		r.notify(event)
		event.Took, err = r.apply(ctx, db, p, event)
		if err != nil && (ctx.Err() != nil || r.conn.IsClosed()) {
			db.Close() // and with it its lock, which outcome needs
			return changes, r.interrupted(ctx, m, err)
		}
		if err != nil {
			return changes, &FailedError{m.Name, err}
		}
		changes = append(changes, Change{m, event.Took})
		event.Kind = Finished
		r.notify(event)
	}
	return changes, nil
}

// open returns a database of one connection. When that is lost, the lock is, so
// there is no second one.
func (r *run) open() *sql.DB {
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
	db := sql.OpenDB(&single{Connector: stdlib.GetConnector(*config)})
	db.SetMaxOpenConns(1)
	return db
}

// single is a connector that connects once.
type single struct {
	driver.Connector
	done bool
}

func (s *single) Connect(ctx context.Context) (driver.Conn, error) {
	if s.done {
		return nil, errors.New("the connection to the database was lost")
	}
	conn, err := s.Connector.Connect(ctx)
	s.done = err == nil
	return conn, err
}

// withConn lends the database's one connection out.
func withConn(ctx context.Context, db *sql.DB, do func(*pgx.Conn) error) error {
	c, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer c.Close()
	return c.Raw(func(conn any) error { return do(conn.(*stdlib.Conn).Conn()) })
}

// begin gets hold of the lock and finds out what to do.
func (r *run) begin(ctx context.Context, conn *pgx.Conn, pick func(*run, condition) ([]Migration, error)) ([]Migration, error) {
	pooler, err := FindPooler(ctx, conn)
	if err != nil {
		return nil, err
	}
	if pooler == TransactionPooler {
		return nil, ErrPooler
	}
	r.conn = conn
	if r.pid, err = backendPID(ctx, conn); err != nil {
		return nil, err
	}
	if err := r.queue(ctx, conn); err != nil {
		return nil, err
	}
	if r.timeout, err = lockTimeout(ctx, conn, r.options.LockTimeout); err != nil {
		return nil, err
	}
	c, err := r.set.inspect(ctx, conn)
	if err != nil {
		return nil, err
	}
	work, err := pick(r, c)
	if err != nil {
		return nil, err
	}
	if r.up && c.records && len(c.unrecorded) > 0 {
		sql, args, err := r.record()
		if err != nil {
			return nil, err
		}
		if _, err := conn.Exec(ctx, sql, args...); err != nil {
			return nil, fmt.Errorf("record checksums: %w", err)
		}
	}
	return work, nil
}

// lockID is the key of the advisory lock: the one that programs take which use
// goose as a library. The stock goose command takes none.
const lockID = lock.DefaultLockID

// queue waits for the lock, as long as it takes. It asks again and again, since
// a statement that waits is one that CREATE INDEX CONCURRENTLY would wait for.
func (r *run) queue(ctx context.Context, conn *pgx.Conn) error {
	var told int32
	for {
		var ours bool
		if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(lockID)).Scan(&ours); err != nil {
			return fmt.Errorf("take the migration lock: %w", err)
		}
		if ours {
			return nil
		}
		holders, err := blockers(ctx, conn, `SELECT pid FROM pg_locks
			WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
				AND classid = ($1::bigint >> 32)::oid AND objid = ($1::bigint & 4294967295)::oid AND objsubid = 1 AND granted`, int64(lockID))
		if err != nil {
			return fmt.Errorf("look who holds the migration lock: %w", err)
		}
		if len(holders) > 0 && holders[0].PID != told {
			told = holders[0].PID
			r.notify(Event{Kind: Queued, Blockers: holders})
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("interrupted while another run was at work: nothing was changed: %w", ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// apply applies a migration, or takes it back. It tries again when a lock was
// not to be had.
func (r *run) apply(ctx context.Context, db *sql.DB, p *goose.Provider, event Event) (time.Duration, error) {
	for attempt := 1; ; attempt++ {
		// Each time, because a migration may set one of its own.
		timeout := strconv.FormatInt(r.timeout.Milliseconds(), 10)
		if _, err := db.ExecContext(ctx, `SELECT set_config('lock_timeout', $1, false)`, timeout); err != nil {
			return 0, err
		}
		stop := r.watch(ctx, event)
		began := time.Now()
		_, err := p.ApplyVersion(ctx, event.Migration.Version, r.up)
		took := time.Since(began)
		seen := stop()
		if err == nil {
			return took, nil
		}
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			err = partial.Err
		}
		if ctx.Err() != nil || !isLockTimeout(err) {
			return 0, err
		}
		if attempt >= r.options.LockAttempts {
			return 0, &BlockedError{seen.Lock, seen.Blockers, attempt, r.options.LockTimeout, err}
		}
		retry := event
		retry.Kind, retry.Lock, retry.Blockers = Retrying, seen.Lock, seen.Blockers
		retry.Attempt, retry.Attempts, retry.Pause = attempt, r.options.LockAttempts, pause(r.options.LockTimeout, attempt)
		r.notify(retry)
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(retry.Pause):
		}
	}
}

// lockTimeout returns the lock_timeout to use. An autovacuum gives way to those
// who have waited for deadlock_timeout. By default that is a second, too, and
// then the lock timeout comes first, as often as we try: so let it come later.
func lockTimeout(ctx context.Context, conn *pgx.Conn, wanted time.Duration) (time.Duration, error) {
	var milliseconds int64
	if err := conn.QueryRow(ctx, `SELECT setting::bigint FROM pg_settings WHERE name = 'deadlock_timeout'`).Scan(&milliseconds); err != nil {
		return 0, fmt.Errorf("read deadlock_timeout: %w", err)
	}
	const margin = 100 * time.Millisecond
	deadlock := time.Duration(milliseconds) * time.Millisecond
	if wanted >= deadlock && wanted < deadlock+margin {
		return deadlock + margin, nil
	}
	return wanted, nil
}

// isLockTimeout reports whether a statement waited for a lock in vain, or for
// each other with another.
func isLockTimeout(err error) bool {
	const lockNotAvailable, deadlockDetected = "55P03", "40P01"
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == lockNotAvailable || pg.Code == deadlockDetected)
}

// pause is half a lock timeout after the first attempt, so that those who queued
// up meanwhile get through, and doubles; a fifth of it is chance.
func pause(timeout time.Duration, attempt int) time.Duration {
	d := min(timeout/2<<min(attempt-1, 16), 10*time.Second)
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}

// interrupted finds out how a migration stands after its run was cut short.
func (r *run) interrupted(ctx context.Context, m Migration, cause error) error {
	e := &InterruptedError{Name: m.Name, State: Undecided, Err: cause}
	if ctx.Err() != nil {
		e.Err = ctx.Err()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, r.config)
	if err != nil {
		return e
	}
	defer conn.Close(ctx)
	// Once the lock can be had, the server is done with what we sent before.
	quiet := &run{}
	if err := quiet.queue(ctx, conn); err != nil {
		return e
	}
	c, err := r.set.inspect(ctx, conn)
	if err != nil {
		return e
	}
	applied := false
	for _, a := range c.applied {
		applied = applied || a.Version == m.Version
	}
	if applied == r.up {
		e.State = Complete
		return e
	}
	e.State = Untouched
	if script, err := r.set.script(ctx, m); err != nil || !script.transaction {
		e.State = Incomplete
	}
	return e
}

func (r *run) notify(e Event) {
	if r.options.Notify == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.options.Notify(e)
}

// provider returns a goose provider that notes the checksum of each migration in
// the transaction that applies it.
func (r *run) provider(db *sql.DB) (*goose.Provider, error) {
	store, err := database.NewStore(goose.DialectPostgres, goose.DefaultTablename)
	if err != nil {
		return nil, fmt.Errorf("goose store: %w", err)
	}
	extended, ok := store.(database.StoreExtender)
	if !ok {
		return nil, errors.New("goose's store does not tell whether its table exists")
	}
	p, err := goose.NewProvider(goose.DialectCustom, db, r.set.Files,
		goose.WithStore(recorder{extended, r}), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("goose provider: %w", err)
	}
	return p, nil
}

// A recorder is goose's store, and keeps plantstore_migrations in step with it.
type recorder struct {
	database.StoreExtender
	run *run
}

const checksumsExist = `SELECT to_regclass('public.plantstore_migrations') IS NOT NULL`

func (r recorder) Insert(ctx context.Context, db database.DBTxConn, request database.InsertRequest) error {
	if err := r.StoreExtender.Insert(ctx, db, request); err != nil {
		return err
	}
	r.run.own = append(r.run.own, request.Version)
	var exists bool
	if err := db.QueryRowContext(ctx, checksumsExist).Scan(&exists); err != nil || !exists {
		return err
	}
	sql, args, err := r.run.record()
	if err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, sql, args...); err != nil {
		return fmt.Errorf("record checksum: %w", err)
	}
	return nil
}

func (r recorder) Delete(ctx context.Context, db database.DBTxConn, version int64) error {
	if err := r.StoreExtender.Delete(ctx, db, version); err != nil {
		return err
	}
	var exists bool
	if err := db.QueryRowContext(ctx, checksumsExist).Scan(&exists); err != nil || !exists {
		return err
	}
	_, err := db.ExecContext(ctx, `DELETE FROM public.plantstore_migrations WHERE version = $1`, version)
	return err
}

// record returns the statement that records the checksum of every applied
// migration which has none. Those that this run did not apply are baselines.
func (r *run) record() (sql string, args []any, err error) {
	all, err := r.set.all()
	if err != nil {
		return "", nil, err
	}
	versions, checksums := make([]int64, len(all)), make([]string, len(all))
	for i, m := range all {
		versions[i] = m.Version
		if checksums[i], err = r.set.checksum(m); err != nil {
			return "", nil, err
		}
	}
	return `INSERT INTO public.plantstore_migrations AS r (version, applied_as, checksum, baseline)
		SELECT g.version_id, g.id, t.checksum, NOT g.version_id = ANY ($3::bigint[])
		FROM unnest($1::bigint[], $2::text[]) AS t (version, checksum)
		JOIN public.goose_db_version g ON g.version_id = t.version AND g.is_applied
		ON CONFLICT (version) DO UPDATE SET applied_as = excluded.applied_as, checksum = excluded.checksum,
			baseline = excluded.baseline, recorded_at = excluded.recorded_at, recorded_by = excluded.recorded_by
		WHERE r.applied_as <> excluded.applied_as`, []any{versions, checksums, r.own}, nil
}
