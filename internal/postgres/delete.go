package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/sethvargo/go-retry"
	"golang.org/x/sync/semaphore"

	"plantstore/internal/plant"
)

// Plants deletes plants.
type Plants struct {
	db        *DB
	group     *group    // of deletions
	budgeted  *group    // of those whose principals have a budget: others don't wait for them
	refusals  *group    // of refusals that are written down, see sayNo
	looks     *group    // of looks at the ledger: why there was nothing to delete
	fates     *group    // of looks for what became of attempts whose answer was lost
	used      usedUp    // budgets that are known to be used up
	holds     holds     // budgets that other transactions hold
	lines     lines     // of those who want the same plant
	difficult memory    // of plants that can't be deleted in a batch
	slowly    seniority // of those that are slow
	// inFlight bounds the deletions that are tried, except those that are locked or
	// slow: they wait for their own kind only.
	inFlight *semaphore.Weighted
	locked   atomic.Int64 // deletions that wait for locks
}

// Plants returns the repository of plants. It tries up to inFlight deletions at a time.
func (db *DB) Plants(inFlight int) *Plants {
	p := &Plants{db: db, used: newUsedUp(), difficult: newMemory(), slowly: seniority{free: db.shares.size[slow]}, inFlight: semaphore.NewWeighted(int64(inFlight))}
	p.group = newGroup(db, together, (*group).deleteBatch)
	p.budgeted = newGroup(db, budgeted, (*group).deleteBatch)
	p.refusals = newGroup(db, explained, (*group).refuseBatch)
	p.looks = newGroup(db, explained, (*group).lookBatch)
	p.fates = newGroup(db, lost, (*group).lookBatch)
	return p
}

// admitTimeout is how long a deletion waits for one of those in flight to end before
// it is refused. Refused at once, clients that came right back would take the time of
// the deletions that are under way.
const admitTimeout = 200 * time.Millisecond

// admit reports whether a deletion may be tried; if so, it is in flight until land is
// called, which may be more than once, by its own goroutine.
func (p *Plants) admit(ctx context.Context) (land func(), ok bool) {
	landed := false
	land = func() {
		if !landed {
			landed = true
			p.inFlight.Release(1)
		}
	}
	if p.inFlight.TryAcquire(1) {
		return land, true // also on a machine that takes longer than admitTimeout to get here
	}
	ctx, cancel := context.WithTimeout(ctx, admitTimeout)
	defer cancel()
	return land, p.inFlight.Acquire(ctx, 1) == nil
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

const (
	// lockRound is how long all of those who wait for locks take to try once each.
	lockRound = time.Second
	// leastLockTimeout is how long each tries at least, a few times what a deletion takes.
	leastLockTimeout = 5 * time.Millisecond
)

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
// plant.ErrStoreRule, *plant.OverBudgetError, plant.ErrHindered, plant.ErrBusy,
// plant.ErrUnavailable, plant.ErrOverloaded (all: not deleted by this request) and
// plant.ErrUnknown. Any other error is a fault of ours; nothing was deleted.
func (p *Plants) Delete(ctx context.Context, d plant.Deletion) (result plant.Result, err error) {
	var course plant.Course
	var lockedSince time.Time // zero until it meets a lock
	counted := false          // among those who wait for locks
	defer func() {
		if !lockedSince.IsZero() {
			course.ForLock = time.Since(lockedSince)
		}
		p.db.metrics.observe(course)
		result.Course = course
	}()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultTimeout)
		defer cancel()
	}
	came := time.Now()
	if d.Came.IsZero() {
		d.Came = came
	}
	told, err := p.lines.enter(ctx, d)
	ahead := time.Now() // of the others for its plant
	course.ForPlant = ahead.Sub(came)
	if err != nil {
		return plant.Result{}, p.db.shares.inVain(err)
	}
	if told != nil {
		p.lines.leave(d, nil)
		return plant.Result{}, told
	}
	defer func() { p.lines.leave(d, err) }()
	land, ok := p.admit(ctx)
	began := time.Now()
	course.ForOthers = began.Sub(ahead)
	if !ok {
		return plant.Result{}, plant.ErrOverloaded
	}
	defer land()
	known := p.difficult.recall(d.Plant)
	s := progress{deletion: d, land: land, began: began, most: remaining(ctx), what: known.what, least: known.least, slowSince: known.slowSince, spender: spender{holds: &p.holds, deletion: d}}
	defer s.spender.leave()
	pause := backoff()
	for ; ; s.began = time.Now() {
		if held := s.spender.waitsFor(s.unsure); held != nil {
			land()
			if v, ended := p.askTurn(ctx, &s); ended {
				return plant.Result{Replayed: v.replayed}, conclude(s.unsure, v.err)
			}
			if lockedSince.IsZero() {
				lockedSince = time.Now()
			}
			select {
			case <-held:
			case <-ctx.Done():
				return plant.Result{}, conclude(s.unsure, p.db.shares.inVain(ctx.Err()))
			}
			s.began = time.Now()
		}
		if s.what >= suspected {
			land()
		}
		if s.what == locked && !counted {
			counted = true
			p.locked.Add(1)
			defer p.locked.Add(-1)
		}
		p.lines.begin(d)
		v := p.attempt(ctx, &s)
		failed := v.failed()
		course.Note(s.began, failed)
		if failed != "" {
			p.db.metrics.failed.WithLabelValues(failed).Inc()
		}
		course.ForConnection += v.waited
		if lockedSince.IsZero() && (s.what == locked || v.what == locked) {
			lockedSince = s.began.Add(v.waited)
		}
		course.Batch = max(v.batch, 1)
		if v.next == done {
			p.used.tell(d, v.err)
			return plant.Result{Replayed: v.replayed}, conclude(s.unsure, v.err)
		}
		if s.learn(v) || rest(ctx, pause) {
			continue
		}
		if s.what == locked && ctx.Err() != nil {
			// The last attempt had what the locks left of the time. That it was cut
			// off says nothing of the database.
			v.err = p.db.shares.inVain(ctx.Err())
		}
		return plant.Result{}, conclude(s.unsure, v.err)
	}
}

// A progress is how far a deletion has come, from one attempt to the next.
type progress struct {
	deletion plant.Deletion
	spender  spender
	land     func()        // takes it out of those in flight
	began    time.Time     // the attempt under way
	most     time.Duration // for all of them
	// what is what the deletion is tried as. It turns out to be harder, never easier.
	what purpose
	// least is what the deletion is known to take at least: after so long an attempt was ended.
	least     time.Duration
	slowSince time.Time // see difficulty
	// number is that of the deletion's turn. Once that is known, a refusal of it is newer than
	// the request, whatever clocks say.
	number int
	known  bool
	// tries counts attempts for attemptTimeout. Those in batches count only if unsure.
	tries int
	// unsure is set once an attempt may have been committed without our knowing.
	// From then on the ledger is asked before anything else is tried or told.
	unsure   bool
	onItsOwn bool // others would be lost with it again, or wait for it
	askAlone bool // as others are asked for no longer than commitTimeout
}

func (s *progress) turn() turn {
	return turn{Deletion: s.deletion, number: s.number, known: s.known}
}

// attempt makes an attempt at a deletion. If it is unsure of earlier ones, the ledger is asked
// first. A definite no is true for good when attempt returns it.
func (p *Plants) attempt(ctx context.Context, s *progress) (v verdict) {
	d := s.deletion
	over := p.used.by(d, s.unsure)
	open := true
	if s.unsure || s.what != together {
		s.tries++
	}
	if s.unsure {
		v = p.fate(ctx, d, s.tries, s.askAlone || s.what != together)
		open = v.next == absent
		s.askAlone = s.askAlone || !open && time.Since(s.began) >= commitTimeout
	}
	if over == nil && open && s.what >= suspected {
		if v, ended := p.askTurn(ctx, s); ended {
			return v
		}
	}
	switch {
	case over != nil || !open:
	case s.what != together || s.onItsOwn:
		began := time.Now()
		v = p.deleteAlone(ctx, s)
		if took := time.Since(began) - v.waited; v.next == ask && s.unsure && took >= commitTimeout {
			v.what, v.least = slow, took // nobody answered, for the second time: its commit may be the cause
		}
		p.used.note(d, v.err)
	default:
		g := p.group
		if d.Budget != (plant.Budget{}) {
			g = p.budgeted
		}
		v = g.join(ctx, d)
		if over = p.used.note(d, v.err); over == nil && v.next == look {
			waited, batch := v.waited, v.batch
			v = p.lookAlone(ctx, s.turn(), v.err, s.unsure)
			v.waited, v.batch = v.waited+waited, batch
		}
	}
	if over != nil {
		s.land()
		v = p.lookWithin(ctx, d, over, s.unsure)
	}
	p.difficult.note(d.Plant, v)
	if v.what == slow {
		known := p.difficult.recall(d.Plant)
		s.least, s.slowSince = max(s.least, known.least), known.slowSince
	}
	s.spender.note(v)
	if v.next == done && isDefinite(v.err) {
		waited := v.waited
		v = p.sayNo(ctx, d, v.err, s.unsure)
		v.waited += waited
	}
	return v
}

// askTurn asks for the turn of a deletion that may have to wait for long, unless that is known:
// what is refused meanwhile must not be taken for older. It tells if the deletion has come to
// its end, and how. Where the look fails, the turn stays unknown.
func (p *Plants) askTurn(ctx context.Context, s *progress) (v verdict, ended bool) {
	if !s.deletion.KeySent || s.known {
		return verdict{}, false
	}
	switch v = p.looks.await(ctx, &member{deletion: s.deletion, explains: turnOf(s.deletion, s.unsure)}); {
	case v.next == absent:
		s.known = true
	case v.next == alone && v.turn > s.number:
		s.number, s.known = v.turn, true
		s.what = max(s.what, retried) // a batch is for first turns
	}
	return v, v.next == done && (v.err == nil || errors.Is(v.err, errMeanwhile))
}

// learn decides, by an attempt that did not bring the outcome, how the next is made. It may be
// made at once (atOnce) where the deletion is waiting, not failing.
func (s *progress) learn(v verdict) (atOnce bool) {
	switch v.next {
	case alone:
		if v.turn > s.number {
			s.number, s.known = v.turn, true
		}
		if harder := max(s.what, v.what, retried); harder != s.what {
			s.what = harder
			return true
		}
	case again:
		if v.held {
			s.tries = min(s.tries, 1) // it answers: keep the short limits of the first attempts
			if s.what != locked {
				if s.spender.first {
					s.what = locked
				}
				return true
			}
		}
	case ask:
		s.what = max(s.what, v.what)
		s.onItsOwn = s.unsure || time.Since(s.began) >= commitTimeout // of which its commit may be the cause
		s.unsure = true
	}
	return false
}

// rest waits before the next attempt. It reports false when the time until ctx's
// deadline would not be enough for one.
func rest(ctx context.Context, pause retry.Backoff) bool {
	left := remaining(ctx) - margin
	if left < firstPause {
		return false
	}
	wait, _ := pause.Next()
	return sleep(ctx, min(wait, left/2)) == nil
}

// sleep returns after d or, with its error, when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
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
	if overBudget(err) != nil {
		return wrap(plant.ErrUnknown, err) // what is unknown is not known when the budget is back
	}
	return fmt.Errorf("%w: %w", plant.ErrUnknown, err)
}

// isDefinite reports whether an error says what became of the plant.
func isDefinite(err error) bool {
	_, earlier := errors.AsType[*plant.DeletedEarlierError](err)
	_, referenced := errors.AsType[*plant.ReferencedError](err)
	return earlier || referenced || errors.Is(err, plant.ErrNotFound) || errors.Is(err, plant.ErrStoreRule)
}

// attemptTimeout is how long an attempt on a connection of its own may take. The first
// ones are short, because a peer that stopped answering looks like a slow
// statement and a new connection helps.
func attemptTimeout(ctx context.Context, attempt int) time.Duration {
	left := remaining(ctx)
	if attempt < 3 {
		left = min(left, time.Duration(attempt)*time.Second)
	}
	return left
}

// nth returns attemptTimeout for an attempt.
func nth(attempt int) func(context.Context) time.Duration {
	return func(ctx context.Context) time.Duration { return attemptTimeout(ctx, attempt) }
}

// slowTimeout is long enough for most of those that are slow.
const slowTimeout = 4 * time.Second

// timeout is how long an attempt at a slow deletion may take. It would have to begin anew if it was
// cut off. So it has twice the time in which it did not end, and if nobody waits for
// its connection, all. If that can be had, or nearly, some is left for another attempt, where nobody
// answers.
func (s *progress) timeout(ctx context.Context, others bool) time.Duration {
	left, limit := remaining(ctx), max(slowTimeout, 2*s.least)
	if !others {
		limit = left
	}
	if most := left - commitTimeout - margin; most >= max(slowTimeout, s.least*5/4) {
		limit = min(limit, most)
	}
	return min(left, limit)
}

// needs is the least time with which an attempt at a slow deletion is begun. With less it would most
// likely be in vain, and hold up those who wait or come meanwhile. A client that comes back has more,
// and an earlier turn.
func (s *progress) needs(others bool) time.Duration {
	if others {
		return min(2*s.least, s.most*4/5)
	}
	return min(s.least+margin, s.most*19/20)
}

// on borrows a connection for a purpose, for one attempt.
func (p *Plants) on(ctx context.Context, what purpose, timeout func(context.Context) time.Duration, try func(context.Context, *pgx.Conn) verdict) verdict {
	came := time.Now()
	conn, err := p.db.borrow(ctx, what, timeout(ctx))
	waited := time.Since(came)
	if err != nil {
		v := judge(err, false)
		v.waited = waited
		return v
	}
	defer conn.Release()
	ctx, cancel := context.WithTimeout(ctx, timeout(ctx))
	defer cancel()
	v := try(ctx, conn.Conn.Conn())
	v.waited = waited
	return v
}

// deleteAlone makes an attempt on a connection of what's share, or of the one for those
// who lost answers in batches.
func (p *Plants) deleteAlone(ctx context.Context, s *progress) verdict {
	if s.what == slow {
		return p.deleteSlowly(ctx, s)
	}
	share := s.what
	if share == together {
		share = lost
	}
	return p.on(ctx, share, nth(s.tries), func(ctx context.Context, conn *pgx.Conn) verdict {
		return p.deleteOn(ctx, conn, s.turn(), s.what, s.unsure)
	})
}

// deleteSlowly is deleteAlone in its turn among those that are slow.
func (p *Plants) deleteSlowly(ctx context.Context, s *progress) verdict {
	came := time.Now()
	p.db.shares.waiting[slow].Add(1)
	err := p.slowly.enter(ctx, s.slowSince)
	p.db.shares.waiting[slow].Add(-1)
	waited := time.Since(came)
	if err != nil {
		return verdict{next: again, what: slow, err: p.db.shares.inVain(err), waited: waited} // so that it is remembered
	}
	defer p.slowly.leave()
	others := p.slowly.wanted()
	if remaining(ctx) < s.needs(others) {
		return verdict{what: slow, err: fmt.Errorf("%w: it is slow, and too little time is left", plant.ErrBusy), waited: waited}
	}
	v := p.on(ctx, slow, func(ctx context.Context) time.Duration { return s.timeout(ctx, others) }, func(ctx context.Context, conn *pgx.Conn) verdict {
		return p.deleteOn(ctx, conn, s.turn(), slow, s.unsure)
	})
	v.waited += waited
	return v
}

// fate finds out what became of attempts whose answers were lost. If none of them has come to
// anything so far (absent), another may be made.
func (p *Plants) fate(ctx context.Context, d plant.Deletion, attempt int, askAlone bool) verdict {
	if !askAlone {
		return p.fates.await(ctx, &member{deletion: d, explains: fateOf(d)})
	}
	return p.on(ctx, lost, nth(attempt), func(ctx context.Context, conn *pgx.Conn) verdict {
		return explain(ctx, conn, d, fateOf(d), remaining(ctx))
	})
}

// deleteOn makes an attempt on a connection, within the limits of what.
func (p *Plants) deleteOn(ctx context.Context, conn *pgx.Conn, d turn, what purpose, unsure bool) verdict {
	left := remaining(ctx) - margin
	if left <= 0 {
		return verdict{next: again, err: wrap(plant.ErrBusy, context.DeadlineExceeded)}
	}
	lockTimeout, statementTimeout := min(left, batchLockTimeout), left
	switch what {
	case locked:
		lockTimeout = min(left, p.lockPatience())
		d.patience = lockTimeout
	case slow:
	case suspected:
		statementTimeout = min(left, 2*p.group.statementTimeout())
	default:
		statementTimeout = min(left, batchStatementTimeout)
	}
	deleted, _, _, err := deleteEach(ctx, single{conn}, []turn{d}, lockTimeout, statementTimeout, &p.db.atCommit)
	v := verdict{next: look}
	switch {
	case err == nil && deleted[0]:
		return verdict{}
	case err != nil:
		v = sendOn(blame(ctx, conn, err), err)
	}
	if v.next == look {
		v = explain(ctx, conn, d.Deletion, because(d, v.err, unsure), statementTimeout)
	}
	if v.what == suspected {
		v.what, v.least = slow, statementTimeout // it was on its own
	}
	return v
}

// lockPatience is how long a deletion waits for a lock before it lets the next one
// try its own: so long that each has its turn about once in lockRound.
func (p *Plants) lockPatience() time.Duration {
	fair := lockRound * time.Duration(p.db.shares.size[locked]) / time.Duration(max(1, p.locked.Load()))
	return max(fair, leastLockTimeout)
}

// lookAlone explains why a deletion was refused (why) or found no row (nil).
func (p *Plants) lookAlone(ctx context.Context, d turn, why error, unsure bool) verdict {
	return p.looks.await(ctx, &member{deletion: d.Deletion, explains: because(d, why, unsure)})
}

// sayNo makes a definite no true for good, before the client is told.
//
// An attempt whose answer was lost, or that another service made for the same
// client, stays open: it may run at any time, and no timeout excludes that. So where
// there may be one, the no is recorded, and such an attempt is rolled back. Then, or
// if the plant turns out to be deleted by such an attempt, its fate is known.
func (p *Plants) sayNo(ctx context.Context, d plant.Deletion, no error, unsure bool) verdict {
	if !unsure && !d.KeySent {
		return verdict{err: no}
	}
	what := lost
	if !unsure {
		if v := p.refusals.join(ctx, d); v.next == done && v.err == nil {
			return verdict{err: no}
		}
		// It may be recorded all the same. Then it is once more, in the next turn.
		what = explained
	}
	return p.on(ctx, what, nth(1), func(ctx context.Context, conn *pgx.Conn) verdict {
		left := max(remaining(ctx)-margin, 0)
		refused, err := refuse(ctx, conn, []plant.Deletion{d}, left, left, &p.db.atCommit)
		switch {
		case err != nil:
			return onlyRead(err)
		case refused[0]:
			return verdict{err: no}
		}
		h, err := readHistory(ctx, conn, d, remaining(ctx))
		if err != nil {
			return onlyRead(err)
		}
		return replay(ctx, conn, d, h, unsure)
	})
}

// An explanation is what the history of a plant means for a deletion of it. With settles,
// that holds once what was read is settled: on the same connection, as another may lead to a
// server that never had the entry.
type explanation func(history) (v verdict, settles bool)

// explain reads the history of a plant and tells what it means. It goes on alone if that takes
// longer than limit.
func explain(ctx context.Context, conn *pgx.Conn, d plant.Deletion, explains explanation, limit time.Duration) verdict {
	h, err := readHistory(ctx, conn, d, limit)
	if err != nil {
		return onlyLooked(err)
	}
	v, settles := explains(h)
	if settles {
		return settled(v, settle(ctx, conn))
	}
	return v
}

// fateOf tells whether an attempt of a deletion has come to something.
func fateOf(d plant.Deletion) explanation {
	return func(h history) (v verdict, settles bool) {
		if h.own {
			return h.replays(d, true), true
		}
		return verdict{next: absent}, false
	}
}

// because tells what a DELETE that found no row, or was taken back for the reason why, means.
func because(d turn, why error, unsure bool) explanation {
	return func(h history) (v verdict, settles bool) { return h.explains(d, why, unsure) }
}

// explains is what a history tells of a DELETE, see because.
func (h history) explains(d turn, why error, unsure bool) (v verdict, settles bool) {
	switch {
	case h.own:
		return h.replays(d.Deletion, unsure), true
	case errors.Is(why, plant.ErrBusy) && h.turn > d.number:
		return h.passes(d)
	case errors.Is(why, plant.ErrBusy) && h.exists:
		// The entry in its way is of its own transaction: several rows have the id.
		return verdict{err: fmt.Errorf("%w: the plant would be recorded twice: is the id still the primary key?", plant.ErrHindered)}, false
	case errors.Is(why, plant.ErrHindered) && !h.replaced:
		return verdict{err: why}, false
	case h.exists && overBudget(why) != nil:
		return verdict{err: why}, false
	case h.kept:
		return verdict{err: fmt.Errorf("%w: the row is there, but DELETE did not touch it", plant.ErrStoreRule)}, false
	case h.hidden:
		// Also where SELECT finds the row: each command has policies of its own.
		return verdict{err: fmt.Errorf("%w: row level security may hide the plant", plant.ErrHindered)}, false
	case h.exists:
		return verdict{next: again, err: fmt.Errorf("%w: the row came between two statements", plant.ErrBusy)}, false
	case h.deletedAt != nil:
		return verdict{err: &plant.DeletedEarlierError{At: *h.deletedAt}}, true
	default:
		// A server that others have replaced knows nothing of what came there since. Where a
		// standby is waited for, it can't settle that.
		return verdict{err: plant.ErrNotFound}, h.followed
	}
}

// passes goes on with the next turn of a deletion that met a refusal, which has
// to be older than the request. If it is not, the client was told no while this request
// was under way, perhaps given up long ago: nothing may come of it any more.
//
// Where the turn was known before, there is a newer one. Otherwise both have an age, of which
// each is a duration of one clock, that of the database and ours. A clock may be set, or stand
// still with its machine: so whoever may have to wait for a lock or a budget asks for its turn
// first. A refusal whose time is yet to come is as old as any: the clock was set back.
//
// The refusal has to outlive a failover. Otherwise an attempt of its turn could
// delete the plant there, and one of the next turn once more.
func (h history) passes(d turn) (v verdict, settles bool) {
	if d.known || 0 <= h.age && h.age <= h.readAt.Sub(d.Came).Seconds() {
		return verdict{err: errMeanwhile}, false
	}
	return verdict{next: alone, turn: h.turn, err: plant.ErrBusy}, true
}

// errMeanwhile: see passes.
var errMeanwhile = fmt.Errorf("%w: the same request was refused meanwhile", plant.ErrBusy)

// turnOf tells which turn a deletion has: the first (absent) or, as alone, another.
func turnOf(d plant.Deletion, unsure bool) explanation {
	return func(h history) (v verdict, settles bool) {
		switch {
		case h.own:
			return h.replays(d, unsure), true
		case h.turn > 0:
			return h.passes(turn{Deletion: d})
		}
		return verdict{next: absent}, false
	}
}

// replays ends a deletion that was found in the ledger.
func (h history) replays(d plant.Deletion, unsure bool) verdict {
	// Under our own request id, after an attempt of ours that may have been
	// committed: that attempt was.
	ours := unsure && h.requestID != nil && *h.requestID == d.RequestID
	return verdict{replayed: !ours}
}

// replay is replays, once that is settled.
func replay(ctx context.Context, conn *pgx.Conn, d plant.Deletion, h history, unsure bool) verdict {
	return settled(h.replays(d, unsure), settle(ctx, conn))
}

// settled is what becomes of a verdict once settling it ended, perhaps with an error.
func settled(v verdict, err error) verdict {
	switch {
	case err == nil:
		return v
	case v.next == done && v.err == nil:
		v = judge(err, true)
		v.next = ask // whatever kept us from settling, the entry is there
		return v
	default:
		return onlyRead(err)
	}
}
