package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"
)

// A runner changes one database. Its session holds the lock that keeps runs
// apart. A second session, opened when needed, looks who is in its way.
type runner struct {
	set     Set
	up      bool
	options Options
	config  *pgx.ConnConfig

	session     *pgx.Conn
	pid         uint32        // of the session's server process
	lockTimeout time.Duration // Options.LockTimeout, or a little more
	all         []Migration   // of the set
	// ours are the checksums of migrations that this run or an earlier one of ours
	// applied, as they were then.
	ours       map[int64]string
	unrecorded bool // something else applied a migration of which there is no record yet

	observer *pgx.Conn  // the second session; nil until needed
	notifies sync.Mutex // held during Options.Notify
}

// change does, one after the other, what pick makes of the database's condition.
// Nobody else changes it meanwhile.
func (s Set) change(ctx context.Context, databaseURL string, o Options, up bool,
	pick func(*runner, condition) ([]Migration, error)) (changes []Change, err error) {
	if o.LockTimeout == 0 {
		o.LockTimeout = DefaultLockTimeout
	}
	if o.LockAttempts == 0 {
		o.LockAttempts = DefaultLockAttempts
	}
	r := &runner{set: s, up: up, options: o}
	if r.all, err = s.all(); err != nil {
		return nil, err
	}
	if r.config, err = Config(databaseURL, applicationName); err != nil {
		return nil, err
	}
	defer r.closeObserver()

	db := r.open()
	defer db.Close()
	var work []Migration
	err = withConn(ctx, db, func(conn *pgx.Conn) error {
		work, err = r.prepare(ctx, conn, pick)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer r.unlock(ctx)
	if up && r.unrecorded {
		if err := r.record(ctx, db); err != nil {
			return nil, err
		}
	}
	if len(work) == 0 {
		return nil, nil
	}
	p, err := r.provider(db)
	if err != nil {
		return nil, err
	}
	for i, m := range work {
		event := Event{Kind: Started, Migration: m, Number: i + 1, Of: len(work)}
		r.notify(event)
		event.Took, err = r.apply(ctx, db, p, event)
		if err != nil && (ctx.Err() != nil || r.session.IsClosed()) {
			db.Close() // and with it its lock, which interrupted needs
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

// prepare gets the session ready, waits for the lock and finds out what to do.
func (r *runner) prepare(ctx context.Context, session *pgx.Conn, pick func(*runner, condition) ([]Migration, error)) ([]Migration, error) {
	pooler, err := FindPooler(ctx, session)
	if err != nil {
		return nil, err
	}
	if pooler == TransactionPooler {
		return nil, ErrPooler
	}
	// From here on a session is one to the server, and ours alone.
	r.config.AfterConnect = pin
	if err := pin(ctx, session.PgConn()); err != nil {
		return nil, err
	}
	r.session = session
	if r.pid, err = backendPID(ctx, session); err != nil {
		return nil, err
	}
	if err := waitForLock(ctx, session, r.notify); err != nil {
		return nil, err
	}
	if r.lockTimeout, err = lockTimeout(ctx, session, r.options.LockTimeout); err != nil {
		return nil, err
	}
	c, err := r.set.inspect(ctx, session)
	if err != nil {
		return nil, err
	}
	work, err := pick(r, c)
	if err != nil {
		return nil, err
	}
	if err := r.refuseHindered(ctx, session, work); err != nil {
		return nil, err
	}
	r.ours, r.unrecorded = c.ours, len(c.unrecorded) > 0
	return work, nil
}

// refuseHindered returns a HinderedError where something stands in the way of work.
// Without any work it warns of that.
func (r *runner) refuseHindered(ctx context.Context, session *pgx.Conn, work []Migration) error {
	if r.set.Hindrances == nil || !r.up && len(work) == 0 {
		return nil
	}
	var found, refused []Trouble
	err := Reading(ctx, session, func(tx pgx.Tx) (err error) {
		found, err = r.set.Hindrances(ctx, tx, r.up, work)
		return err
	})
	if err != nil {
		return fmt.Errorf("look for hindrances: %w", err)
	}
	for _, t := range found {
		switch {
		case t.Kind == Hindrance && len(work) > 0:
			refused = append(refused, t)
		case t.Kind == Hindrance, len(work) > 0:
			r.notify(Event{Kind: Warned, Warning: t.Message + ". " + t.Remedy})
		}
	}
	if len(refused) > 0 {
		return &HinderedError{refused}
	}
	return nil
}

// unlock gives the lock back. The end of the session would, too, but the server
// may notice that after the next run has begun.
func (r *runner) unlock(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = r.session.Exec(ctx, `SELECT pg_advisory_unlock($1)`, int64(lockID))
}

// apply applies a migration, or takes it back. It tries again when a lock was
// not to be had.
func (r *runner) apply(ctx context.Context, db *sql.DB, p *goose.Provider, event Event) (time.Duration, error) {
	for attempt := 1; ; attempt++ {
		// Each time, because a migration may set its own.
		timeout := strconv.FormatInt(r.lockTimeout.Milliseconds(), 10)
		if _, err := db.ExecContext(ctx, pinned+`, pg_catalog.set_config('lock_timeout', $1, false)`, timeout); err != nil {
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

func (r *runner) notify(e Event) {
	if r.options.Notify == nil {
		return
	}
	r.notifies.Lock()
	defer r.notifies.Unlock()
	r.options.Notify(e)
}
