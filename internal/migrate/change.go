package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
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
	super       bool          // the session is a superuser's
	whole       bool          // a transaction of the session is open for all of a step
	pid         uint32        // of the session's server process
	lockTimeout time.Duration // Options.LockTimeout, or a little more
	all         []Migration   // of the set
	// ours are the checksums of migrations that this run or an earlier one of ours
	// applied, as they were then.
	ours       map[int64]string
	unrecorded bool // something else applied a migration of which there is no record yet, and up makes one

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
	if r.unrecorded {
		if err := r.guarded(ctx, func() error { return r.record(ctx, db) }); err != nil {
			return nil, err
		}
	}
	if len(work) == 0 {
		return nil, nil
	}
	for len(changes) < len(work) {
		step, err := r.step(ctx, work, len(changes))
		if err != nil {
			return changes, err
		}
		m, err := r.apply(ctx, db, step)
		if err != nil && (ctx.Err() != nil || r.session.IsClosed()) {
			db.Close() // and with it its lock, which interrupted needs
			return changes, r.interrupted(ctx, m, err)
		}
		if err != nil {
			return changes, &FailedError{m.Name, len(step) == len(work) && !up, err}
		}
		for _, event := range step {
			changes = append(changes, Change{event.Migration, event.Took})
			event.Kind = Finished
			r.notify(event)
		}
	}
	return changes, nil
}

// step returns what is done next, as a whole or not at all: a migration that is applied, or
// all that are taken back. One that runs outside a transaction is a step of its own.
func (r *runner) step(ctx context.Context, work []Migration, done int) (step []Event, err error) {
	for i, m := range work[done:] {
		step = append(step, Event{Kind: Started, Migration: m, Number: done + i + 1, Of: len(work)})
		if r.up {
			return step, nil
		}
		script, err := r.set.script(ctx, m)
		if err != nil {
			return nil, err
		}
		if !script.transaction {
			return step[:max(i, 1)], nil
		}
	}
	return step, nil
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
	if r.super, _, err = standing(ctx, session); err != nil {
		return nil, err
	}
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
	r.ours, r.unrecorded = c.ours, r.up && len(c.unrecorded) > 0
	if len(work) > 0 || r.unrecorded {
		if err := refuseReadOnly(ctx, session); err != nil {
			return nil, err
		}
	}
	return work, r.refuseHindered(ctx, session, work)
}

// refuseReadOnly returns ErrReadOnly where transactions of the session can't write.
func refuseReadOnly(ctx context.Context, session *pgx.Conn) error {
	var readOnly bool
	if err := session.QueryRow(ctx, `SELECT current_setting('transaction_read_only')::boolean`).Scan(&readOnly); err != nil {
		return fmt.Errorf("look whether we may write: %w", err)
	}
	if readOnly {
		return ErrReadOnly
	}
	return nil
}

// refuseHindered returns a HinderedError where something stands in the way of work.
// Without any work it warns of that.
func (r *runner) refuseHindered(ctx context.Context, session *pgx.Conn, work []Migration) error {
	if r.set.Hindrances == nil || !r.up && len(work) == 0 {
		return nil
	}
	var found, refused []Trouble
	err := Holding(ctx, session, r.tables(), func(tx pgx.Tx) (err error) {
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

// tables are those that a run reads or writes. Down looks for what would be lost.
func (r *runner) tables() []string {
	if r.up {
		return History
	}
	return slices.Concat(ownTables, History)
}

// unlock gives the lock back. The end of the session would, too, but the server
// may notice that after the next run has begun.
func (r *runner) unlock(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = r.session.Exec(ctx, `SELECT pg_advisory_unlock($1)`, int64(lockID))
}

// apply does a step, and tries again when a lock was not to be had. After an error it also
// returns the migration that met it.
func (r *runner) apply(ctx context.Context, db *sql.DB, step []Event) (Migration, error) {
	started := 0
	script, err := r.set.script(ctx, step[0].Migration)
	if err != nil {
		return step[0].Migration, err
	}
	for attempt := 1; ; attempt++ {
		var event Event
		var seen sighting
		do := func() error {
			for i := range step {
				event = step[i]
				if i == started {
					started++
					r.notify(event)
				}
				stop := r.watch(ctx, event)
				began := time.Now()
				err := r.try(ctx, db, step, i)
				step[i].Took = time.Since(began)
				if seen = stop(); err != nil {
					return err
				}
			}
			return nil
		}
		var err error
		if script.transaction {
			err = r.inOne(ctx, do)
		} else {
			err = do()
		}
		if err == nil {
			return Migration{}, nil
		}
		if partial, ok := errors.AsType[*goose.PartialError](err); ok {
			err = partial.Err
		}
		if ctx.Err() != nil || !IsLockTimeout(err) {
			return event.Migration, err
		}
		if attempt >= r.options.LockAttempts {
			return event.Migration, &BlockedError{seen.Lock, seen.Blockers, attempt, r.options.LockTimeout, err}
		}
		retry := event
		retry.Kind, retry.Lock, retry.Blockers = Retrying, seen.Lock, seen.Blockers
		retry.Attempt, retry.Attempts, retry.Pause = attempt, r.options.LockAttempts, pause(r.options.LockTimeout, attempt)
		r.notify(retry)
		_ = r.openObserver(ctx) // nobody waits for us now: a look has less time for it
		select {
		case <-ctx.Done():
			return event.Migration, ctx.Err()
		case <-time.After(retry.Pause):
		}
	}
}

// inOne has one transaction around all that do sends.
func (r *runner) inOne(ctx context.Context, do func() error) error {
	tx, err := r.session.Begin(ctx)
	if err != nil {
		return err
	}
	r.whole = true
	err = do()
	r.whole = false
	if err == nil {
		return tx.Commit(ctx)
	}
	if ctx.Err() == nil { // else the connection is closed next
		_ = tx.Rollback(ctx)
	}
	return err
}

// try applies one migration of a step, or takes it back.
func (r *runner) try(ctx context.Context, db *sql.DB, step []Event, i int) error {
	// Each time, because a migration may set its own.
	timeout := strconv.FormatInt(r.lockTimeout.Milliseconds(), 10)
	if _, err := db.ExecContext(ctx, pinned+`, pg_catalog.set_config('lock_timeout', $1, false)`, timeout); err != nil {
		return err
	}
	if r.whole && i == 0 {
		if err := r.hold(ctx); err != nil {
			return err
		}
		if len(step) > 1 {
			if err := r.lockFirst(ctx, db, step); err != nil {
				return err
			}
		}
	}
	p, err := r.provider(db) // each time: it takes goose's table for made, also once that was rolled back
	if err != nil {
		return err
	}
	_, err = p.ApplyVersion(ctx, step[i].Migration.Version, r.up)
	return err
}

// lockFirst locks the tables that were there before their migrations, in the order in which
// a deletion does: plants, and then what it is recorded in. Nobody else waits behind a lock
// of ours while we wait for one of these.
func (r *runner) lockFirst(ctx context.Context, db *sql.DB, step []Event) error {
	for _, event := range step {
		for _, effect := range r.set.Effects[event.Migration.Version] {
			for _, lock := range effect.Locks {
				if lock.verdict() == Safe {
					continue
				}
				// Of somebody else's table nothing can be dropped, or nothing is left on it.
				var may bool
				if err := db.QueryRowContext(ctx, `SELECT coalesce(pg_has_role(c.relowner, 'USAGE') AND has_table_privilege(c.oid, 'UPDATE, DELETE, TRUNCATE'), false)
					FROM (SELECT to_regclass($1)::oid) t (oid) LEFT JOIN pg_class c USING (oid)`, lock.Table).Scan(&may); err != nil {
					return fmt.Errorf("look whose %s is: %w", lock.Table, err)
				}
				if may {
					if _, err := db.ExecContext(ctx, `LOCK TABLE `+lock.Table+` IN ACCESS EXCLUSIVE MODE`); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func (r *runner) notify(e Event) {
	if r.options.Notify == nil {
		return
	}
	r.notifies.Lock()
	defer r.notifies.Unlock()
	r.options.Notify(e)
}
