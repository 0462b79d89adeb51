package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/sethvargo/go-retry"
	"golang.org/x/sync/semaphore"

	"plantstore/internal/plant"
)

// Plants deletes plants.
type Plants struct {
	db    *DB
	group group
	// own bounds the deletions that wait for a lock on a connection of their own,
	// so that there are always connections left for the others.
	own *semaphore.Weighted
}

// Plants returns the repository of plants.
func (db *DB) Plants() *Plants {
	own := max(int64(db.pool.Config().MaxConns)-maxLanes, 1)
	return &Plants{db: db, group: group{db: db}, own: semaphore.NewWeighted(own)}
}

// Back-off between attempts: doubling from first to most, each shortened or
// lengthened at random by up to half, so that requests that failed together do
// not come back together.
const (
	firstPause  = 10 * time.Millisecond
	mostPause   = 400 * time.Millisecond
	pauseJitter = 50 // per cent
)

// margin is how much earlier than we the server gives up on a statement, so that
// a lock that is not had in time is a certain "rolled back" and not a connection
// cut in mid-statement. What can't be tried with that margin is not tried.
const margin = 200 * time.Millisecond

func backoff() retry.Backoff {
	return retry.WithJitterPercent(pauseJitter, retry.WithCappedDuration(mostPause, retry.NewExponential(firstPause)))
}

// defaultTimeout bounds a deletion whose context has no deadline.
const defaultTimeout = 10 * time.Second

// Delete deletes one plant, once, and returns when the commit that removed it is
// durable. It tries until ctx's deadline, or for ten seconds where ctx has none,
// and does not need the caller to try again.
//
// A nil error means that the plant was deleted by this request or, if the
// result says Replayed, by an earlier one with the same key. Other outcomes are
// *plant.ReferencedError, *plant.DeletedEarlierError, plant.ErrNotFound,
// plant.ErrStoreRule, plant.ErrHindered, plant.ErrBusy, plant.ErrUnavailable (all:
// not deleted by this request) and plant.ErrUnknown. Any other error is a fault of
// ours; nothing was deleted.
func (p *Plants) Delete(ctx context.Context, d plant.Deletion) (plant.Result, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultTimeout)
		defer cancel()
	}
	pause := backoff()
	// unsure is set once an attempt may have been committed without our knowing.
	// From then on the ledger is asked before anything else is tried or told.
	unsure := false
	// lone is set once the deletion turned out to hold others up.
	lone := false
	// number is that of the deletion's turn.
	number := 0
	for tries := 0; ; {
		var v verdict
		if unsure || lone {
			tries++
			v = p.deleteAlone(ctx, turn{d, number}, tries, unsure)
		} else {
			v = p.group.delete(ctx, d)
			if v.next == look {
				v = p.lookAlone(ctx, d, v.err)
			}
		}
		if v.next == done && isDefinite(v.err) {
			v = p.sayNo(ctx, d, v.err, unsure)
		}
		switch v.next {
		case done:
			return v.result, conclude(unsure, v.err)
		case alone:
			number = max(number, v.turn)
			if !lone {
				lone = true
				continue // at once: it is waiting, not failing
			}
		case ask:
			unsure = true
		}
		if !rest(ctx, pause) {
			return plant.Result{}, conclude(unsure, v.err)
		}
	}
}

// rest waits before the next attempt. It reports false when the time until ctx's
// deadline would not be enough for one.
func rest(ctx context.Context, pause retry.Backoff) bool {
	left := remaining(ctx) - margin
	if left < firstPause {
		return false
	}
	wait, _ := pause.Next()
	select {
	case <-ctx.Done():
		return false
	case <-time.After(min(wait, left/2)):
		return true
	}
}

func remaining(ctx context.Context) time.Duration {
	deadline, _ := ctx.Deadline()
	return time.Until(deadline)
}

// conclude is what a deletion ends with. When an earlier attempt may have been
// committed, only what was read from the ledger since is certain.
func conclude(unsure bool, err error) error {
	if err == nil || !unsure || isDefinite(err) {
		return err
	}
	return fmt.Errorf("%w: %w", plant.ErrUnknown, err)
}

// isDefinite reports whether an error says what became of the plant.
func isDefinite(err error) bool {
	_, earlier := errors.AsType[*plant.DeletedEarlierError](err)
	_, referenced := errors.AsType[*plant.ReferencedError](err)
	return earlier || referenced || errors.Is(err, plant.ErrNotFound) || errors.Is(err, plant.ErrStoreRule)
}

// budget is how long an attempt on a connection of its own may take. The first
// ones are short, because a peer that stopped answering looks like a slow
// statement and a new connection helps; after that a deletion that is slow by
// nature gets all that is left.
func budget(ctx context.Context, attempt int) time.Duration {
	left := remaining(ctx)
	if attempt <= 2 {
		left = min(left, time.Duration(attempt)*time.Second)
	}
	return left
}

// deleteAlone makes an attempt on a connection of its own.
func (p *Plants) deleteAlone(ctx context.Context, d turn, attempt int, unsure bool) verdict {
	end := time.Now().Add(budget(ctx, attempt))
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if err := p.own.Acquire(ctx, 1); err != nil {
		return verdict{next: again, err: wrap(plant.ErrBusy, err)}
	}
	defer p.own.Release(1)
	conn, err := p.db.pool.Acquire(ctx)
	if err != nil {
		return judge(err, false)
	}
	defer conn.Release()

	if unsure {
		h, err := readHistory(ctx, conn.Conn(), d.Deletion)
		if err != nil {
			return onlyRead(err)
		}
		if h.own {
			return replay(ctx, conn.Conn(), d.Deletion, h, unsure)
		}
	}
	left := time.Until(end) - margin
	if left <= 0 {
		return verdict{next: again, err: wrap(plant.ErrUnavailable, context.DeadlineExceeded)}
	}
	deleted, _, err := deleteEach(ctx, conn.Conn(), []turn{d}, left, left)
	switch {
	case err == nil && deleted[0]:
		return verdict{}
	case err == nil:
		return explain(ctx, conn.Conn(), d, nil, unsure)
	}
	v := blame(ctx, conn.Conn(), err)
	if v.next == look {
		return explain(ctx, conn.Conn(), d, v.err, unsure)
	}
	return v
}

// lookAlone explains, on a connection of its own, why a deletion was refused (why)
// or found no row (nil).
func (p *Plants) lookAlone(ctx context.Context, d plant.Deletion, why error) verdict {
	ctx, cancel := context.WithTimeout(ctx, budget(ctx, 1))
	defer cancel()
	conn, err := p.db.pool.Acquire(ctx)
	if err != nil {
		return judge(err, false)
	}
	defer conn.Release()
	return explain(ctx, conn.Conn(), turn{Deletion: d}, why, false)
}

// sayNo makes a definite no true for good, before the client is told.
//
// An attempt whose answer was lost, or that another service made for the same
// client, stays open: it may run at any time, and no timeout excludes that. So where
// there may be one, the no is recorded, and such an attempt is rolled back. Then, or
// if the plant turns out to be deleted by such an attempt, its fate is known.
func (p *Plants) sayNo(ctx context.Context, d plant.Deletion, no error, unsure bool) verdict {
	_, deletedEarlier := errors.AsType[*plant.DeletedEarlierError](no)
	mayBeOpen := unsure || d.KeySent
	if !mayBeOpen && !deletedEarlier {
		return verdict{err: no}
	}
	ctx, cancel := context.WithTimeout(ctx, budget(ctx, 1))
	defer cancel()
	conn, err := p.db.pool.Acquire(ctx)
	if err != nil {
		return judge(err, false)
	}
	defer conn.Release()
	if !mayBeOpen {
		if err := settle(ctx, conn.Conn()); err != nil {
			return onlyRead(err)
		}
		return verdict{err: no}
	}
	refused, err := refuse(ctx, conn.Conn(), d, max(remaining(ctx)-margin, 0))
	switch {
	case err != nil:
		return onlyRead(err)
	case refused:
		return verdict{err: no}
	}
	h, err := readHistory(ctx, conn.Conn(), d)
	if err != nil {
		return onlyRead(err)
	}
	return replay(ctx, conn.Conn(), d, h, unsure)
}

// explain finds out what a DELETE that found no row, or was taken back for the
// reason why, means.
func explain(ctx context.Context, conn *pgx.Conn, d turn, why error, unsure bool) verdict {
	h, err := readHistory(ctx, conn, d.Deletion)
	switch {
	case err != nil:
		return onlyRead(err)
	case h.own:
		return replay(ctx, conn, d.Deletion, h, unsure)
	case errors.Is(why, plant.ErrBusy) && h.turn > d.number:
		return verdict{next: alone, turn: h.turn, err: why} // it met a refusal
	case errors.Is(why, plant.ErrHindered) && !h.replaced:
		return verdict{err: why}
	case h.kept:
		return verdict{err: fmt.Errorf("%w: the row is there, but DELETE did not touch it", plant.ErrStoreRule)}
	case h.hidden:
		// Also where SELECT finds the row: each command has policies of its own.
		return verdict{err: fmt.Errorf("%w: row level security may hide the plant", plant.ErrHindered)}
	case h.exists:
		err := fmt.Errorf("%w: the row came between two statements", plant.ErrBusy)
		return verdict{next: again, err: err}
	case h.deletedAt != nil:
		return verdict{err: &plant.DeletedEarlierError{At: *h.deletedAt}}
	default:
		return verdict{err: plant.ErrNotFound}
	}
}

// replay ends a deletion that was found in the ledger.
func replay(ctx context.Context, conn *pgx.Conn, d plant.Deletion, h history, unsure bool) verdict {
	if err := settle(ctx, conn); err != nil {
		v := judge(err, true)
		v.next = ask // whatever kept us from settling, the entry is there
		return v
	}
	// Under our own request id, after an attempt of ours that may have been
	// committed: that attempt was.
	ours := unsure && h.requestID != nil && *h.requestID == d.RequestID
	return verdict{result: plant.Result{Replayed: !ours}}
}
