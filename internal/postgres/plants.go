package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/plant"
)

// Plants deletes plants.
type Plants struct {
	db       *DB
	batches  *batcher
	inFlight chan struct{}

	plants     keyed[plant.ID] // one request for a plant at a time
	principals keyed[string]   // one deletion at a time for a principal with a budget
	slots      slots           // a principal's connections outside of batches
	memory     memory          // of what would harm the batches of others

	// usedUp are principals whose budget was used up a moment ago, with the end of its period.
	usedUp recent[string, time.Time]
}

// Plants returns the repository of plants.
func (db *DB) Plants() *Plants {
	return &Plants{db: db, batches: newBatcher(db), inFlight: make(chan struct{}, db.MaxInFlight)}
}

// Delete deletes one plant once, and returns when the commit is durable. It retries until
// ctx's deadline, or for Config.RequestTimeout. A nil error means that this request deleted
// the plant or, if the result is Replayed, an earlier one with the same key. Other outcomes
// are plant.ErrNotFound, *plant.DeletedEarlierError, *plant.ReferencedError,
// *plant.StoreRuleError, *plant.OverBudgetError, plant.ErrMisconfigured, plant.ErrBusy,
// plant.ErrUnavailable, plant.ErrOverloaded (all: not deleted by this request) and
// plant.ErrUnknown.
func (p *Plants) Delete(ctx context.Context, d plant.Deletion) (plant.Result, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.db.RequestTimeout)
		defer cancel()
	}
	e := execution{Plants: p, Deletion: d}
	began := time.Now()
	if d.Budget != (plant.Budget{}) { // before the plant, which others may want
		if !p.principals.lock(ctx, d.Principal) {
			return e.Result, fmt.Errorf("%w: other deletions of the principal's budget took all the time", plant.ErrBusy)
		}
		defer p.principals.unlock(d.Principal)
	}
	if !p.plants.lock(ctx, d.Plant) {
		return e.Result, fmt.Errorf("%w: other requests for the plant took all the time", plant.ErrBusy)
	}
	defer p.plants.unlock(d.Plant)
	e.Queued = time.Since(began)
	err := e.run(ctx)
	return e.Result, err
}

// An execution is one deletion with what is known of it so far.
type execution struct {
	*Plants
	plant.Deletion
	plant.Result
	lost       bool // an attempt may be committed now or later
	suspect    bool // its batch took too long, with it or another item as the reason
	stillThere int  // how often the plant was there although an attempt found no row
}

// run makes attempts until there is an outcome. While another attempt of the key may be open,
// a refusal is returned only after the ledger has recorded it: from then on, no attempt of the
// key can be committed.
func (e *execution) run(ctx context.Context) error {
	for pause := firstPause; ; {
		m, err := e.attempt(ctx)
		row := meanings[m]
		switch row.next {
		case succeed:
			return nil
		case retry:
			if m == batchBusy {
				e.suspect = true
			} else if !sleep(ctx, &pause, e.db.limits.margin) {
				return e.fail(row.err, err)
			}
			continue
		case giveUp:
			return e.fail(row.err, err)
		case refuse:
			if !e.isOpen() {
				return e.unrecorded(m, err)
			}
		case resolve:
			e.lost = e.lost || m == lost
		default:
			return e.fail(fmt.Errorf("meaning %d has no row", m), err)
		}

		r, resolveErr := e.resolve(ctx, e.Deletion, e.refusal(m))
		switch {
		case resolveErr != nil:
			return e.fail(resolveErr, err)
		case r.code == codeDeleted:
			e.Replayed = e.isReplay(r)
			return nil
		case r.code == codeTriggerOff:
			return e.fail(plant.ErrMisconfigured, errTriggerOff)
		case r.code != codeThere:
			e.Replayed = e.isReplay(r)
			if r.code != row.refusal || e.Replayed {
				err = nil // it is not the cause of this refusal
			}
			return refused(r.code, r.at, err)
		case m == overBudget && e.lost:
			return plant.ErrUnknown
		case m == overBudget:
			return e.unrecorded(m, err)
		case m == missing:
			e.stillThere++
		}
		if m != missing && !sleep(ctx, &pause, e.db.limits.margin) {
			return e.fail(plant.ErrBusy, err)
		}
	}
}

// isOpen reports whether another attempt of the key may be committed yet.
func (e *execution) isOpen() bool { return e.lost || e.KeySent }

// refusal is the code that the ledger has to record before an attempt's result can be
// returned, or 0.
func (e *execution) refusal(m meaning) int {
	switch {
	case m == missing && e.stillThere == maxStillThere:
		return codeStoreRule
	case !e.isOpen():
		return 0
	}
	return meanings[m].refusal
}

// maxStillThere is how often a plant may be there after an attempt found no row, before that
// counts as a rule of the store's. It may have come back, or be locked by an attempt.
const maxStillThere = 3

var errTriggerOff = errors.New("the trigger record_deletion on public.plants does not run: see 'plantstore doctor'")

// unrecorded is the error of a refusal that needs no record.
func (e *execution) unrecorded(m meaning, err error) error {
	if m == overBudget {
		return e.overBudget(err)
	}
	return refused(meanings[m].refusal, time.Time{}, err)
}

// isReplay reports whether the entry of a resolution is an earlier request's, and not that of
// a lost attempt or call of this one.
func (e *execution) isReplay(r resolution) bool {
	return r.by != "" && !((e.lost || r.again) && r.by == e.RequestID)
}

// fail returns an error that means "nothing was done", unless an attempt was lost.
func (e *execution) fail(err, cause error) error {
	if e.lost {
		err = plant.ErrUnknown
	}
	if cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// overBudget remembers that a budget is used up: for a few seconds, as it may be raised.
func (e *execution) overBudget(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok { // from memory
		until, _ := e.usedUp.get(e.Principal)
		return &plant.OverBudgetError{Until: until}
	}
	seconds, _ := strconv.ParseFloat(pg.Detail, 64) // of plantstore.charge
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	last := e.usedUp.add(e.Principal, until, time.Now().Add(min(time.Until(until), e.db.limits.remember)))
	return &plant.OverBudgetError{Until: until, First: until.Sub(last).Abs() > time.Second}
}

// attempt tries to delete the plant, and remembers what would harm the batches of others.
func (e *execution) attempt(ctx context.Context) (m meaning, err error) {
	limited := e.Budget != (plant.Budget{})
	if limited {
		if _, ok := e.usedUp.get(e.Principal); ok {
			return overBudget, nil
		}
	}
	route := e.memory.route(&e.Deletion)
	if route == inBatch && (e.suspect || limited) {
		route = onBatchPool
	}
	switch route {
	case inBatch:
		m, err = e.attemptInBatch(ctx)
	case onBatchPool:
		m, err = e.attemptOn(ctx, e.db.batch, e.db.limits.batch, e.db.limits.batchLock)
	case onSoloPool: // which ends early enough for the server to say that it was rolled back
		deadline, _ := ctx.Deadline()
		early, cancel := context.WithDeadline(ctx, deadline.Add(-e.db.limits.margin))
		m, err = e.attemptOn(early, e.db.solo, e.db.RequestTimeout, 0)
		cancel()
	}
	if _, ok := errors.AsType[*pgconn.PgError](err); ok || err == nil { // the database said so
		e.memory.note(&e.Deletion, m, &e.db.limits)
	}
	e.Attempts++
	if word := meanings[m].word; word != "" {
		e.db.metrics.failed[m].Inc()
		if len(e.Failed) < plant.MaxFailed {
			e.Failed = append(e.Failed, word)
		}
	}
	return m, err
}

func (e *execution) attemptInBatch(ctx context.Context) (meaning, error) {
	select {
	case e.inFlight <- struct{}{}:
	default:
		wait := time.NewTimer(e.db.limits.queue)
		defer wait.Stop()
		select {
		case e.inFlight <- struct{}{}:
		case <-wait.C:
			return overloaded, plant.ErrOverloaded
		}
	}
	defer func() { <-e.inFlight }()
	r := e.batches.delete(ctx, &e.Deletion)
	e.Batch, e.Queued = r.batch, e.Queued+r.queued
	return r.meaning, r.err
}

// attemptOn deletes the plant in a transaction of its own, on one of its principal's
// connections of a pool.
func (e *execution) attemptOn(ctx context.Context, pool *pgxpool.Pool, timeout, lock time.Duration) (meaning, error) {
	began := time.Now()
	conn, release, err := e.slots.acquire(ctx, pool, e.Principal)
	e.Queued += time.Since(began)
	if err != nil {
		return notAcquired(err), err
	}
	defer release()
	e.Batch = 1
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began = time.Now()
	m, err := deleteOne(ctx, conn, &e.Deletion, lock)
	if e.suspect && time.Since(began) > e.db.limits.batchStatement/8 {
		// It made its batch slow, as where a foreign key has no index, and would the next.
		e.memory.slow(e.Principal, &e.db.limits)
	}
	return m, err
}
