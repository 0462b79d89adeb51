package postgres

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/plant"
)

// A group commits deletions together. What a deletion costs most is its own round
// trip and its own commit, so whatever deletions arrive while the last batch is
// under way make up the next one: one pipelined implicit transaction, one commit.
// A deletion that arrives when nothing is under way goes at once; nobody ever waits
// for company. How many batches are under way at a time, and how far apart they start, is
// told by lanes; while one is slow, others pass it. Refusals have a group, too, and so have
// looks at the ledger and lost answers.
//
// The members of a batch share a transaction but not a fate:
//
//   - A member that the database refuses (something refers to the plant, or it is
//     in the ledger already) takes the whole transaction back. The batch runs
//     again with a DELETE for each member, which shows whose it was, and then
//     without that member. If it is refused once more, its members run one by one.
//     A refusal at the commit does not show whose it is: each half of the batch runs,
//     until whoever is refused is alone. Where that takes long, the rest go on alone.
//   - A member whose row is locked, or whose delete is slow, may hold the others
//     up for batchLockTimeout or statementTimeout only, and no second time: it is
//     sent back to its request, which waits on a connection of another share. The
//     first to be locked takes along whoever else is seen to be: all, where it is
//     a table that is locked.
//   - Where the budget of a batch is held by another transaction, it goes back whole:
//     see holds.
//   - A deletion that was refused before under the same key has another turn than
//     the first: it meets the refusal, like an entry, and goes on alone.
//   - A batch whose connection is lost leaves the fate of every member unknown, and
//     so of every other batch that is on the road there, see pipeline. They ask the
//     ledger together, too, and what is not there is tried in a batch once more. Lost
//     twice, or after commitTimeout, a member goes on alone: its plant, or a deferred
//     trigger, may be the cause.
//   - A batch that is refused goes on by itself, on a connection that no other shares.
//
// Batches lock rows in the order of the ids, so that two of them do not wait for
// each other in a circle. Should a plan take another order, batchLockTimeout ends
// the circle long before PostgreSQL looks for one.
type group struct {
	db *DB
	// what is the share that batches take connections of, and perform brings every
	// member of one to its verdict, at the place that it is given.
	what    purpose
	perform func(g *group, at *place, batch []*member)

	mu      sync.Mutex
	waiting []*member
	lanes   lanes
	// pipelines are those that have batches under way. The first is preferred.
	pipelines []*pipeline
	// commitSamples counts batches, of which some have their commits timed.
	commitSamples atomic.Int64
	// alarm opens the next lane when its time has come: at goesOff, or never if that is
	// zero. It is set only where somebody waits: to set it for each batch would cost a lone
	// deletion a system call, and another thread its sleep.
	alarm   *time.Timer
	goesOff time.Time

	run func(ctx context.Context, most int) // runBatch, or what a test has in its place
}

func newGroup(db *DB, what purpose, perform func(*group, *place, []*member)) *group {
	g := &group{db: db, what: what, perform: perform, lanes: lanes{most: db.shares.size[what]}}
	g.run = g.runBatch
	return g
}

const (
	// maxBatch bounds a batch, and with it how long its row locks are held.
	maxBatch = 64
	// batchLockTimeout bounds the wait for each row of a batch.
	batchLockTimeout = 20 * time.Millisecond
	// batchStatementTimeout bounds each statement of a batch. Where batches are
	// quick, patience with a slow member ends sooner, see statementTimeout.
	batchStatementTimeout = 250 * time.Millisecond
	// leastStatementTimeout is the least of these bounds, many times what a batch
	// takes as a rule.
	leastStatementTimeout = 30 * time.Millisecond
	// commitTimeout bounds each commit of a batch, of which there is one as a rule. A peer
	// that does not answer for so long is taken for gone.
	commitTimeout = time.Second
	// leastToGoAlone is the least time left with which a request runs its own batch: more
	// than that may take, connecting included.
	leastToGoAlone = 3 * commitTimeout
)

// A member is a deletion in a group.
type member struct {
	deletion plant.Deletion
	explains explanation  // of a member that looks at the ledger
	until    time.Time    // the request's deadline, if it has one
	verdict  chan verdict // takes one without blocking
	// taken is set once, by the lane that takes the member or by the request
	// that gives it up, whichever is first.
	taken atomic.Bool
	began time.Time // when a lane took it; read once there is a verdict
	batch int       // how many it was last tried with; read once there is a verdict
}

// join runs a deletion together with others. It returns when the batch is committed or
// has failed, or when ctx ends: then nothing is known of a batch under way.
func (g *group) join(ctx context.Context, d plant.Deletion) verdict {
	return g.await(ctx, &member{deletion: d})
}

// await is join for a member.
func (g *group) await(ctx context.Context, m *member) verdict {
	m.verdict = make(chan verdict, 1)
	came := time.Now()
	m.until, _ = ctx.Deadline()
	g.mu.Lock()
	g.waiting = append(g.waiting, m)
	first := len(g.waiting) == 1
	due, opened := g.openLane(came)
	first = first && len(g.pipelines) == 0 // else it might wait behind others, for longer than it has
	g.mu.Unlock()
	if opened && first && g.db.shares.free(g.what) && (m.until.IsZero() || time.Until(m.until) > leastToGoAlone) {
		// In the request's own goroutine: another would have to be woken, and this one
		// by it.
		g.goAlone(ctx, due)
	} else if opened {
		go g.lane(due)
	}
	select {
	case v := <-m.verdict:
		v.waited, v.batch = m.began.Sub(came), m.batch
		return v
	case <-ctx.Done():
		v := verdict{err: g.db.shares.inVain(ctx.Err()), waited: time.Since(came)}
		if !m.taken.CompareAndSwap(false, true) && (g.what == together || g.what == budgeted) { // the others delete nothing
			v.next = ask
		}
		return v
	}
}

// openLane opens a lane if somebody waits and one is wanted. The caller then has to run
// it. Whoever it has no room for gets another when that is due. It is called with mu held.
func (g *group) openLane(now time.Time) (due time.Time, opened bool) {
	if len(g.waiting) == 0 {
		return time.Time{}, false
	}
	if due, opened = g.lanes.enter(now); !opened || !g.takesAll() {
		g.watch(g.lanes.next(now))
	}
	return due, opened
}

// takesAll reports whether one batch has room for all who wait. Whoever has a budget may
// be of another principal. It is called with mu held.
func (g *group) takesAll() bool {
	return len(g.waiting) <= maxBatch && (g.what != budgeted || len(g.waiting) == 1)
}

// lane runs batches until it is not needed any more.
func (g *group) lane(due time.Time) {
	for opened := true; opened; due, opened = g.nextLane(due) {
		g.run(context.Background(), maxBatch)
	}
}

// goAlone runs a batch of one. If others wait then, a lane goes on with them, also after
// a panic, which ends the request only. (That of a lane ends the process.)
func (g *group) goAlone(ctx context.Context, due time.Time) {
	defer func() {
		if due, opened := g.nextLane(due); opened {
			go g.lane(due)
		}
	}()
	g.run(ctx, 1)
}

// nextLane closes a lane, and opens another if one is needed, see openLane.
func (g *group) nextLane(due time.Time) (next time.Time, opened bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lanes.leave(due)
	return g.openLane(time.Now())
}

// watch sees to it that a lane is opened at a time or before, if somebody waits for one
// then. Where there is no connection for it, the end of another lane will do. It is called
// with mu held.
func (g *group) watch(at time.Time) {
	if len(g.waiting) == 0 || len(g.lanes.open) >= g.lanes.most || !g.goesOff.IsZero() && !at.Before(g.goesOff) {
		return
	}
	g.goesOff = at
	if g.alarm == nil {
		g.alarm = time.AfterFunc(time.Until(at), g.openNext)
	} else {
		g.alarm.Reset(time.Until(at))
	}
}

// openNext opens a lane beside those that are open.
func (g *group) openNext() {
	g.mu.Lock()
	g.goesOff = time.Time{}
	due, opened := g.openLane(time.Now())
	if opened && g.takesAll() {
		g.watch(due) // if the connection does not come in time
	}
	g.mu.Unlock()
	if opened {
		g.lane(due)
	}
}

// runBatch runs one batch. Its members are taken when there is a connection for
// them, so that a request that gives up before knows that nothing was tried. However
// long others of the share take, each member has a deadline of its own; ctx is the one
// of a request that runs the batch itself.
func (g *group) runBatch(ctx context.Context, most int) {
	p, err := g.board(ctx)
	if err != nil {
		if ctx.Err() == nil {
			tell(g.take(math.MaxInt), judge(err, false))
		}
		return
	}
	at := place{p}
	defer func() {
		if at.pipeline != nil {
			at.leave()
		}
	}()
	if batch := g.take(most); len(batch) > 0 {
		g.perform(g, &at, batch)
	}
}

// board finds a pipeline for a batch, or a connection for one.
func (g *group) board(ctx context.Context) (*pipeline, error) {
	if p := g.joined(); p != nil {
		return p, nil
	}
	conn, err := g.db.borrow(ctx, g.what, commitTimeout)
	if err != nil {
		return nil, err
	}
	p := g.newPipeline(conn)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lanes.sends(&p.load, time.Now())
	g.pipelines = append(g.pipelines, p)
	return p, nil
}

// joined joins a batch to a pipeline, if it may. Where somebody waits for a connection,
// pipelines have to end.
func (g *group) joined() *pipeline {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.pipelines {
		if p.shareable && !p.broken.Load() && g.lanes.joins(p.load, now) && g.db.shares.waiting[g.what].Load() == 0 {
			p.load.batches++
			g.lanes.sends(&p.load, now)
			return p
		}
	}
	return nil
}

// keep leaves a pipeline to the one batch that it has. It reports false if it has more.
func (g *group) keep(p *pipeline) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.load.batches > 1 || p.broken.Load() {
		return false
	}
	p.shareable = false
	return true
}

// part takes a batch off a pipeline, and reports whether it was the last.
func (g *group) part(p *pipeline) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.load.batches--; p.load.batches > 0 {
		return false
	}
	g.pipelines = slices.DeleteFunc(g.pipelines, func(other *pipeline) bool { return other == p })
	return true
}

// heard notes that an answer came on a pipeline, see lanes.answered, and what its commit
// took if that is known.
func (g *group) heard(p *pipeline, sent time.Time, commit time.Duration) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lanes.answered(&p.load, sent, now)
	if commit > 0 {
		if known := g.lanes.commit; known > 0 && commit > 2*known {
			g.commitSamples.Store(0) // are they slow now? the next batch has its commit timed, too
		}
		g.lanes.committed(commit)
	}
}

// statementTimeout is five times what the database usually works on a batch, within
// bounds: for so long a member that is slow by nature holds the others up. On a busy
// machine all of them are slow, and going on alone would make it busier.
func (g *group) statementTimeout() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lanes.work == 0 || g.what == budgeted {
		return batchStatementTimeout // none has ended yet, or the row of a budget may be waited for
	}
	return min(max(5*g.lanes.work, leastStatementTimeout), batchStatementTimeout)
}

// took notes how long a batch took, and how much of it the database worked.
func (g *group) took(trip, work time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lanes.note(trip, work)
}

// take returns up to most of those who wait and were not given up, in the order
// of their ids. Those who have a budget are of one principal: they wait for each other
// at the row of that budget, and nobody else does.
func (g *group) take(most int) []*member {
	var batch []*member
	g.mu.Lock()
	g.waiting = slices.DeleteFunc(g.waiting, func(m *member) bool {
		fits := len(batch) < most && (g.what != budgeted || len(batch) == 0 || m.deletion.Principal == batch[0].deletion.Principal)
		if fits {
			batch = append(batch, m)
		}
		return fits
	})
	g.mu.Unlock()
	now := time.Now()
	batch = slices.DeleteFunc(batch, func(m *member) bool {
		if !m.taken.CompareAndSwap(false, true) {
			return true
		}
		m.began = now
		return false
	})
	slices.SortFunc(batch, func(a, b *member) int { return cmp.Compare(a.deletion.Plant, b.deletion.Plant) })
	return batch
}

// deleteBatch brings every member of a batch to its verdict.
func (g *group) deleteBatch(at *place, batch []*member) {
	g.deleteUntil(at, batch, time.Now().Add(commitTimeout))
}

// deleteUntil is deleteBatch. No part is begun after a time: whoever is left then goes on alone.
// Each refusal may take long, at a commit without a time limit.
func (g *group) deleteUntil(at *place, batch []*member, until time.Time) {
	if time.Now().After(until) {
		tell(batch, outOfTime)
		return
	}
	limit := g.statementTimeout()
	batch = slices.DeleteFunc(batch, func(m *member) bool {
		if m.until.IsZero() {
			return false
		}
		left := time.Until(m.until)
		if left < margin { // its end would not be waited for, and it would be told that its fate is unknown
			m.verdict <- verdict{err: wrap(plant.ErrBusy, context.DeadlineExceeded)}
			return true
		}
		limit = min(limit, left-margin/2) // if the batch is held up, it has to hear of that while it can
		return false
	})
	if len(batch) == 0 {
		return
	}
	if len(batch) > 1 {
		_, v, told := g.attempt(at, batch, deleteTogether, limit)
		if v.next == alone && v.unparsed || v.held {
			tell(batch, v) // the table is locked, and so are all of its rows; or the budget is, which they share
			return
		}
		if v.what == locked {
			if free := g.sendLockedOn(at.Conn.Conn(), batch, v); len(free) < len(batch) {
				batch = free
				_, v, told = g.attempt(at, batch, deleteTogether, limit)
			}
		}
		if told {
			return
		}
		if over := overBudget(v.err); over != nil && over.Left < int64(len(batch)) {
			if over.Left <= 0 {
				tell(batch, v)
				return
			}
			// As many as fit, and the rest: some of the first may have no plant to delete.
			g.deleteUntil(at, batch[:over.Left], until)
			g.deleteUntil(at, batch[over.Left:], until)
			return
		}
	}
	each := limit
	if len(batch) > 1 {
		each /= 2 // they had all of it together
	}
	blamed, v, told := g.attempt(at, batch, deleteEach, each)
	switch {
	case told:
		return
	case len(batch) == 1, v.next == alone && v.unparsed, v.held:
		tell(batch, v)
		return
	case blamed != nil:
		rest := slices.DeleteFunc(slices.Clone(batch), func(m *member) bool { return m == blamed })
		batch = []*member{blamed}
		if v.what == suspected || v.what == locked {
			tell(batch, v) // another look would take as long again
			batch = nil
		}
		if _, _, told := g.attempt(at, rest, deleteTogether, limit); !told {
			batch = append(batch, rest...)
		}
	case v.next == done: // at the commit, by what is put off until then
		g.deleteParts(at, [][]*member{batch[:len(batch)/2], batch[len(batch)/2:]}, limit, until)
		return
	}
	// One by one: whoever is refused now is refused for reasons of its own.
	g.deleteParts(at, slices.Collect(slices.Chunk(batch, 1)), each, until)
}

// deleteParts brings every member of parts of a batch to its verdict. A part that is refused
// is tried in halves, until whoever is refused is alone.
func (g *group) deleteParts(at *place, parts [][]*member, limit time.Duration, until time.Time) {
	tryParts(parts, func(part []*member) (divide bool) {
		if time.Now().After(until) {
			tell(part, outOfTime)
			return false
		}
		del := deleteTogether
		if len(part) == 1 {
			del = deleteEach
		}
		_, v, told := g.attempt(at, part, del, limit)
		if divide = !told && len(part) > 1 && !v.unparsed && !v.held; !told && !divide {
			tell(part, v)
		}
		return divide
	})
}

// outOfTime is told who is left of a batch that took its time.
var outOfTime = verdict{next: alone, what: suspected, err: wrap(plant.ErrBusy, context.DeadlineExceeded)}

// tryParts calls try for parts of a batch, and for both halves of each that it wants divided.
// Halves of halves come last: those who are told first wait for none of them.
func tryParts(parts [][]*member, try func(part []*member) (divide bool)) {
	for ; len(parts) > 0; parts = parts[1:] {
		if part := parts[0]; try(part) {
			half := len(part) / 2
			parts = append(parts, part[:half], part[half:])
		}
	}
}

// sendLockedOn tells those members of a batch whose rows, or tables, are seen to be
// locked the verdict v, that they are, and returns the others.
func (g *group) sendLockedOn(conn *pgx.Conn, batch []*member, v verdict) (free []*member) {
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	asked := make([]int64, len(batch))
	for i, m := range batch {
		asked[i] = int64(m.deletion.Plant)
	}
	found, all, err := lockedRows(ctx, conn, asked)
	if err != nil {
		return batch // nothing was learnt, and nothing done
	}
	for _, m := range batch {
		if all || slices.Contains(found, int64(m.deletion.Plant)) {
			m.verdict <- v
		} else {
			free = append(free, m)
		}
	}
	return free
}

// A deleteFunc is deleteTogether or deleteEach.
type deleteFunc func(ctx context.Context, on runner, deletions []turn, lockTimeout, statementTimeout time.Duration, then *atCommit) (deleted []bool, work time.Duration, at int, err error)

// attempt runs a batch and tells its members what came of it, unless the database refused it.
// Then nothing of it happened, nobody was told, v is what a member that was alone in it has
// to be told, and blamed is whose DELETE it was, or nil if that is not known. The batch is
// alone then.
func (g *group) attempt(on *place, batch []*member, del deleteFunc, statementTimeout time.Duration) (blamed *member, v verdict, told bool) {
	if len(batch) == 0 {
		return nil, verdict{}, true
	}
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	deletions := make([]turn, len(batch))
	for i, m := range batch {
		deletions[i] = turn{Deletion: m.deletion}
		m.batch = len(batch)
	}
	began := time.Now()
	deleted, work, at, err := del(ctx, on, deletions, batchLockTimeout, statementTimeout, &g.db.atCommit)
	trip := time.Since(began)
	if err == nil || errors.Is(err, context.DeadlineExceeded) { // a commit that is cut off was waited for, too
		g.db.metrics.overheads.Observe(max(trip-work, 0).Seconds())
	}
	if err == nil {
		g.took(trip, work)
		g.db.metrics.batches.Observe(float64(len(batch)))
		for i, m := range batch {
			if deleted[i] {
				m.verdict <- verdict{}
			} else {
				m.verdict <- verdict{next: look}
			}
		}
		return nil, verdict{}, true
	}
	if v = judge(err, true); errors.Is(v.err, plant.ErrUnavailable) {
		tell(batch, v)
		return nil, verdict{}, true
	}
	if err := on.alone(); err != nil {
		tell(batch, judge(err, false))
		return nil, verdict{}, true
	}
	if len(batch) == 1 {
		asking, cancel := context.WithTimeout(context.Background(), commitTimeout)
		defer cancel()
		v = blame(asking, on.Conn.Conn(), err)
	}
	v = sendOn(v, err)
	if at >= 0 {
		blamed = batch[at]
	}
	return blamed, v, false
}

// refuseBatch records refusals in one transaction. Where one of them would have to wait
// for an attempt under way, it tries each half, until that one is alone. Whoever is
// refused has the verdict done, the others go on alone.
func (g *group) refuseBatch(at *place, batch []*member) {
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	refused, err := refuse(ctx, at.Conn.Conn(), deletionsOf(batch), batchLockTimeout, batchStatementTimeout, &g.db.atCommit)
	if half := len(batch) / 2; half > 0 && err != nil && errors.Is(judge(err, true).err, plant.ErrBusy) {
		g.refuseBatch(at, batch[:half])
		g.refuseBatch(at, batch[half:])
		return
	}
	for i, m := range batch {
		v := verdict{next: alone}
		if err == nil && refused[i] {
			v.next = done
		}
		m.verdict <- v
	}
}

// lookBatch explains what deletions met. Where the server refuses the look, as it takes long
// or because of code of the store's that runs with it, each half is tried, until whoever that
// comes from is alone. Who can't be told within commitTimeout goes on alone.
func (g *group) lookBatch(at *place, batch []*member) {
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	conn, whole := at.Conn.Conn(), g.statementTimeout()
	tryParts([][]*member{batch}, func(part []*member) (divide bool) {
		limit := max(whole*time.Duration(len(part))/time.Duration(len(batch)), leastStatementTimeout)
		if remaining(ctx) < limit+margin/2 { // it would be cut off, and with it the connection
			tell(part, outOfTime)
			return false
		}
		began := time.Now()
		histories, work, err := readHistories(ctx, conn, deletionsOf(part), limit)
		switch {
		case err == nil:
			g.took(time.Since(began), work)
			tellHistories(ctx, conn, part, histories)
		case len(part) > 1 && pgError(err) != nil && !conn.IsClosed() && sqlState(err) != lockNotAvailable:
			return true
		default:
			tell(part, onlyLooked(err))
		}
		return false
	})
}

// tellHistories tells each what its history means, and settles once what has to be.
func tellHistories(ctx context.Context, conn *pgx.Conn, batch []*member, histories []history) {
	settling := make(map[*member]verdict)
	for i, m := range batch {
		v, settles := m.explains(histories[i])
		if settles {
			settling[m] = v
		} else {
			m.verdict <- v
		}
	}
	if len(settling) == 0 {
		return
	}
	err := settle(ctx, conn)
	for m, v := range settling {
		m.verdict <- settled(v, err)
	}
}

func deletionsOf(batch []*member) (all []plant.Deletion) {
	for _, m := range batch {
		all = append(all, m.deletion)
	}
	return all
}

func tell(batch []*member, v verdict) {
	for _, m := range batch {
		m.verdict <- v
	}
}
