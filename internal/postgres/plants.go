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

	// slow are plants that were locked or slow a moment ago. They go to the solo pool.
	slow recent[plant.ID, struct{}]
	// failing are principals whose deletions were locked, slow or often refused a moment ago.
	// All of theirs go alone, so that they hold up nobody else's.
	failing recent[string, struct{}]
	// lastRefusals are the times of a principal's last two.
	lastRefusals recent[string, [2]time.Time]
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
	alone      bool // its batch took too long, with it or another item as the reason
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
				e.alone = true
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
	last := e.usedUp.add(e.Principal, until, time.Now().Add(min(time.Until(until), e.db.limits.recent)))
	return &plant.OverBudgetError{Until: until, First: until.Sub(last).Abs() > time.Second}
}

// attempt tries to delete the plant: in a batch, or on a connection of its own if the plant
// failed in one a moment ago.
func (e *execution) attempt(ctx context.Context) (m meaning, err error) {
	if e.Budget != (plant.Budget{}) {
		if _, ok := e.usedUp.get(e.Principal); ok {
			return overBudget, nil
		}
	}
	_, slow := e.slow.get(e.Plant)
	_, failing := e.failing.get(e.Principal)
	switch {
	case slow:
		m, err = e.attemptSolo(ctx)
	case e.alone || failing || e.Budget != (plant.Budget{}):
		began, queued := time.Now(), e.Queued
		m, err = e.attemptAlone(ctx)
		if took := time.Since(began) - (e.Queued - queued); e.alone && took > e.db.limits.batchStatement/8 {
			// It made its batch slow, as where a foreign key has no index, and would the next.
			e.failing.add(e.Principal, struct{}{}, time.Now().Add(e.db.limits.failing))
		}
	default:
		m, err = e.attemptInBatch(ctx)
	}
	e.note(m, err)
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

// attemptAlone is a batch of one.
func (e *execution) attemptAlone(ctx context.Context) (meaning, error) {
	return e.deleteOn(ctx, e.db.batch, e.db.limits.batch, e.db.limits.batchLock)
}

// attemptSolo has the patience of a lone deletion. It ends early enough for the server to
// say that it was rolled back.
func (e *execution) attemptSolo(ctx context.Context) (meaning, error) {
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithDeadline(ctx, deadline.Add(-e.db.limits.margin))
	defer cancel()
	return e.deleteOn(ctx, e.db.solo, e.db.RequestTimeout, 0)
}

func (e *execution) deleteOn(ctx context.Context, pool *pgxpool.Pool, timeout, lock time.Duration) (meaning, error) {
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
	return deleteOne(ctx, conn, &e.Deletion, lock)
}

// note remembers what would hold up the deletions of others. Three refusals in a short time
// are often: to take each out of its batch costs more than to have no batches.
func (e *execution) note(m meaning, err error) {
	if _, ok := errors.AsType[*pgconn.PgError](err); !ok {
		return // the database did not say so
	}
	now := time.Now()
	switch meanings[m].effect {
	case slows:
		e.slow.add(e.Plant, struct{}{}, now.Add(e.db.limits.recent))
		e.failing.add(e.Principal, struct{}{}, now.Add(e.db.limits.failing))
	case rollsBack:
		last, _ := e.lastRefusals.get(e.Principal)
		e.lastRefusals.add(e.Principal, [2]time.Time{last[1], now}, now.Add(e.db.limits.often))
		if now.Sub(last[0]) < e.db.limits.often {
			e.failing.add(e.Principal, struct{}{}, now.Add(e.db.limits.failing))
		}
	}
}
