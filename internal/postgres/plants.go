package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"plantstore/internal/plant"
)

// Plants deletes plants.
type Plants struct {
	db        *DB
	batches   *batcher
	inFlight  *semaphore.Weighted       // deletions in batches or waiting for one
	onePlant  slots[plant.ID]           // one request for a plant at a time
	oneBudget slots[string]             // one attempt at a time for a principal with a budget
	memory    memory                    // of plants and principals that would harm others' batches
	usedUp    recent[string, time.Time] // budgets of principals, with the end of the period
}

// Plants returns the repository of plants.
func (db *DB) Plants() *Plants {
	return &Plants{db: db, batches: newBatcher(db), inFlight: semaphore.NewWeighted(int64(db.MaxInFlight)), memory: memory{limits: &db.limits}}
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
	e := execution{plants: p, deletion: d, limited: d.Budget != (plant.Budget{})}
	began := time.Now()
	if p.onePlant.take(ctx, d.Plant) != nil {
		return e.result, fmt.Errorf("%w: other requests for the plant took all the time", plant.ErrBusy)
	}
	defer p.onePlant.give(d.Plant)
	e.result.Queued = time.Since(began)
	err := e.run(ctx)
	return e.result, err
}

// An execution is the state of one deletion while it runs.
type execution struct {
	plants   *Plants
	deletion plant.Deletion
	result   plant.Result

	limited    bool // its principal has a budget
	lost       bool // an attempt may be committed now or later
	suspect    bool // its batch took too long, with it or another item as the reason
	stillThere int  // how often the plant was there although an attempt found no row
}

// run makes attempts until the deletion is settled.
func (e *execution) run(ctx context.Context) error {
	for pause := firstPause; ; {
		m, cause := e.try(ctx)
		switch row := meanings[m]; row.next {
		case succeed:
			return nil
		case giveUp:
			return e.fail(row.err, cause)
		case retry:
			e.suspect = e.suspect || m == batchBusy
		case refuse, resolve:
			if settled, err := e.settle(ctx, m, cause); settled {
				return err
			}
		}
		if m != batchBusy && m != missing && !sleep(ctx, &pause, e.plants.db.limits.margin) {
			return e.fail(cmp.Or(meanings[m].err, plant.ErrBusy), cause)
		}
	}
}

// try makes one attempt. It remembers a plant or principal that would harm others' batches.
func (e *execution) try(ctx context.Context) (m meaning, err error) {
	p, d := e.plants, &e.deletion
	if e.limited {
		began := time.Now()
		err := p.oneBudget.take(ctx, d.Principal)
		e.result.Queued += time.Since(began)
		if err != nil {
			return busy, fmt.Errorf("other deletions of the principal's budget took all the time: %w", err)
		}
		defer p.oneBudget.give(d.Principal)
		if _, ok := p.usedUp.get(d.Principal); ok {
			return overBudget, nil
		}
	}
	route := p.memory.route(d)
	if route == inBatch && (e.suspect || e.limited) {
		route = onBatchPool
	}
	switch route {
	case inBatch:
		m, err = e.tryInBatch(ctx)
	case onBatchPool:
		m, err = e.tryAlone(ctx, p.db.batch, p.db.limits.batch, p.db.limits.batchLock)
	case onSoloPool: // which ends early enough for the server to say that it was rolled back
		deadline, _ := ctx.Deadline()
		early, cancel := context.WithDeadline(ctx, deadline.Add(-p.db.limits.margin))
		m, err = e.tryAlone(early, p.db.solo, p.db.RequestTimeout, p.db.limits.soloLock)
		cancel()
	}
	if _, ok := errors.AsType[*pgconn.PgError](err); ok || err == nil { // the database said so
		p.memory.note(d, m)
	}
	e.result.Attempts++
	if word := meanings[m].word; word != "" {
		p.db.metrics.failed.WithLabelValues(word).Inc()
		if len(e.result.Failed) < plant.MaxFailed {
			e.result.Failed = append(e.result.Failed, word)
		}
	}
	return m, err
}

func (e *execution) tryInBatch(ctx context.Context) (meaning, error) {
	p := e.plants
	if !p.inFlight.TryAcquire(1) {
		wait, cancel := context.WithTimeout(ctx, p.db.limits.queue)
		defer cancel()
		if p.inFlight.Acquire(wait, 1) != nil {
			return overloaded, plant.ErrOverloaded
		}
	}
	defer p.inFlight.Release(1)
	r := p.batches.delete(ctx, &e.deletion)
	e.result.Batch, e.result.Queued = r.batch, e.result.Queued+r.queued
	return r.meaning, r.err
}

// tryAlone deletes the plant in a transaction of its own, on one of its principal's
// connections of a pool.
func (e *execution) tryAlone(ctx context.Context, pool *pgxpool.Pool, timeout, lock time.Duration) (meaning, error) {
	p := e.plants
	began := time.Now()
	conn, release, err := p.db.acquire(ctx, pool, e.deletion.Principal)
	e.result.Queued += time.Since(began)
	if err != nil {
		return notAcquired(err), err
	}
	defer release()
	e.result.Batch = 1
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began = time.Now()
	m, err := deleteOne(ctx, conn, &e.deletion, lock)
	if took := time.Since(began) - time.Duration(p.db.roundTrip.Load()); e.suspect && took > p.db.limits.batchStatement/8 {
		// The deletion made its batch slow, as a foreign key without an index does, and would make
		// the next one slow.
		p.memory.slow(e.deletion.Principal)
	}
	return m, err
}

// settle reads the deletion's outcome from the ledger, and reports whether it is final.
// While another attempt of the key may be committed, a refusal is final only when the ledger
// has recorded it: from then on, none can be.
func (e *execution) settle(ctx context.Context, m meaning, cause error) (settled bool, err error) {
	e.lost = e.lost || m == lost
	isOpen := e.lost || e.deletion.KeySent
	if meanings[m].next == refuse && !isOpen {
		return true, e.refusal(m, cause)
	}
	record := 0
	if m == missing && e.stillThere == maxStillThere {
		record = codeStoreRule
	} else if isOpen {
		record = meanings[m].refusal
	}
	r, err := e.plants.db.resolve(ctx, &e.deletion, record)
	switch {
	case err != nil:
		return true, e.fail(err, cause)
	case r.code == codeTriggerOff:
		return true, e.fail(plant.ErrMisconfigured, errTriggerOff)
	case r.code == codeThere && m == overBudget:
		return true, e.fail(e.refusal(m, cause), nil)
	case r.code == codeThere:
		if m == missing {
			e.stillThere++
		}
		return false, nil
	}
	// A lost attempt or call of this request may have written the entry.
	e.result.Replayed = r.by != "" && !((e.lost || r.again) && r.by == e.deletion.RequestID)
	if r.code == codeDeleted {
		return true, nil
	}
	if r.code != meanings[m].refusal || e.result.Replayed {
		cause = nil // of another refusal
	}
	return true, refused(r.code, r.at, cause)
}

// maxStillThere limits how often an attempt may find no row although the plant is there: it may
// have come back. After that, a rule of the store keeps it.
const maxStillThere = 3

var errTriggerOff = errors.New("the trigger record_deletion on public.plants does not run: see 'plantstore doctor'")

// refusal is the error of a refusal that the ledger does not have. A budget that is used up is
// remembered for a few seconds, as it may be raised.
func (e *execution) refusal(m meaning, cause error) error {
	if m != overBudget {
		return refused(meanings[m].refusal, time.Time{}, cause)
	}
	p, principal := e.plants, e.deletion.Principal
	pg, ok := errors.AsType[*pgconn.PgError](cause)
	if !ok { // usedUp rejected the attempt, not the database
		until, _ := p.usedUp.get(principal)
		return &plant.OverBudgetError{Until: until}
	}
	seconds, _ := strconv.ParseFloat(pg.Detail, 64) // of plantstore.charge
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	p.usedUp.add(principal, until, time.Now().Add(min(time.Until(until), p.db.limits.remember)))
	return &plant.OverBudgetError{Until: until}
}

// fail returns ErrUnknown if an attempt was lost. Otherwise it returns err: nothing was done.
func (e *execution) fail(err, cause error) error {
	if e.lost {
		err = plant.ErrUnknown
	}
	if cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
