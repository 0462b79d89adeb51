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
// for company. As a rule one batch is under way at a time, which makes the largest
// batches; while one is slow, others pass it on a lane of their own.
//
// The members of a batch share a transaction but not a fate:
//
//   - A member that the database refuses (something refers to the plant, or it is
//     in the ledger already) takes the whole transaction back. The batch runs
//     again with a DELETE for each member, which shows whose it was, and then
//     without that member. If it is refused once more, its members run one by one.
//   - A member whose row is locked, or whose delete is slow, may hold the others
//     up for batchLockTimeout or batchStatementTimeout only. It is sent back to
//     its request, which waits on a connection of its own.
//   - A batch whose connection is lost leaves the fate of every member unknown.
//     Each request then asks the ledger for itself, as after any lost answer.
//
// Batches lock rows in the order of the ids, so that two of them do not wait for
// each other in a circle. Should a plan take another order, batchLockTimeout ends
// the circle long before PostgreSQL looks for one.
type group struct {
	db *DB

	mu      sync.Mutex
	waiting []*member
	lanes   int // batches under way
	slow    int // those of them that have taken longer than slowBatch
}

const (
	// maxLanes bounds the batches under way at a time.
	maxLanes = 2
	// slowBatch is when others no longer wait for a batch to end. Most batches
	// take a few milliseconds.
	slowBatch = 10 * time.Millisecond
	// maxBatch bounds a batch, and with it how long its row locks are held.
	maxBatch = 64
	// batchLockTimeout bounds the wait for each row of a batch.
	batchLockTimeout = 20 * time.Millisecond
	// batchStatementTimeout bounds each statement of a batch.
	batchStatementTimeout = 250 * time.Millisecond
	// batchTimeout bounds a batch as a whole: a peer that does not answer for so
	// long is taken for gone.
	batchTimeout = time.Second
)

// A member is a deletion in a group.
type member struct {
	deletion plant.Deletion
	fate     chan outcome // takes one without blocking
	// taken is set once, by the lane that takes the member or by the request
	// that gives it up, whichever is first.
	taken atomic.Bool
}

// An outcome is what came of a member. Without a verdict the DELETE was
// committed, and deleted tells whether there was a row.
type outcome struct {
	deleted bool
	*verdict
	// alone is set when the deletion needs a connection of its own, because it
	// would hold others up.
	alone bool
}

// delete deletes together with others. It returns when the batch is committed or
// has failed, or when ctx ends: then nothing is known of a batch under way.
func (g *group) delete(ctx context.Context, d plant.Deletion) outcome {
	m := &member{deletion: d, fate: make(chan outcome, 1)}
	g.mu.Lock()
	g.waiting = append(g.waiting, m)
	another := g.another()
	g.mu.Unlock()
	if another {
		go g.lane()
	}
	select {
	case o := <-m.fate:
		return o
	case <-ctx.Done():
		if m.taken.CompareAndSwap(false, true) {
			return outcome{verdict: &verdict{wrap(plant.ErrUnavailable, ctx.Err()), nothing, false}}
		}
		return outcome{verdict: &verdict{wrap(plant.ErrUnavailable, ctx.Err()), unknown, false}}
	}
}

// another reports whether somebody waits and nobody but slow batches is under
// way, and if so counts one more lane, which the caller has to run. It is called
// with mu held.
func (g *group) another() bool {
	if len(g.waiting) == 0 || g.lanes > g.slow || g.lanes >= maxLanes {
		return false
	}
	g.lanes++
	return true
}

// lane runs batches until it is not needed any more.
func (g *group) lane() {
	for g.needed() {
		overdue := time.AfterFunc(slowBatch, g.overdue)
		g.next()
		if !overdue.Stop() {
			g.mu.Lock()
			g.slow--
			g.mu.Unlock()
		}
	}
}

// needed ends a lane if nobody waits, or another lane that is not slow is there
// for those who do.
func (g *group) needed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) > 0 && g.lanes-g.slow <= 1 {
		return true
	}
	g.lanes--
	return false
}

// overdue opens a lane beside one whose batch is slow.
func (g *group) overdue() {
	g.mu.Lock()
	g.slow++
	another := g.another()
	g.mu.Unlock()
	if another {
		g.lane()
	}
}

// next runs one batch. Its members are taken when there is a connection for them,
// so that a request that gives up before knows that nothing was tried.
func (g *group) next() {
	ctx, cancel := context.WithTimeout(context.Background(), batchTimeout)
	defer cancel()
	conn, err := g.db.pool.Acquire(ctx)
	if err != nil {
		v := judge(err, false)
		tell(g.take(math.MaxInt), outcome{verdict: &v})
		return
	}
	defer conn.Release()
	if batch := g.take(maxBatch); len(batch) > 0 {
		run(conn.Conn(), batch)
	}
}

// take returns up to most of those who wait and were not given up, in the order
// of their ids.
func (g *group) take(most int) []*member {
	g.mu.Lock()
	n := min(len(g.waiting), most)
	batch := slices.Clone(g.waiting[:n])
	g.waiting = slices.Delete(g.waiting, 0, n)
	g.mu.Unlock()
	batch = slices.DeleteFunc(batch, func(m *member) bool { return !m.taken.CompareAndSwap(false, true) })
	slices.SortFunc(batch, func(a, b *member) int { return cmp.Compare(a.deletion.Plant, b.deletion.Plant) })
	return batch
}

// run brings every member of a batch to its outcome.
func run(conn *pgx.Conn, batch []*member) {
	if len(batch) > 1 && commit(conn, batch, deleteTogether) == nil {
		return
	}
	refused := commit(conn, batch, deleteEach)
	switch {
	case refused == nil:
		return
	case len(batch) == 1:
		tell(batch, refused.outcome)
		return
	case refused.member != nil:
		rest := slices.DeleteFunc(slices.Clone(batch), func(m *member) bool { return m == refused.member })
		if commit(conn, rest, deleteTogether) == nil {
			batch = []*member{refused.member}
		}
	}
	// One by one: whoever is refused now is refused for reasons of its own.
	for _, m := range batch {
		one := []*member{m}
		if r := commit(conn, one, deleteEach); r != nil {
			tell(one, r.outcome)
		}
	}
}

// A refusal is why the database took a batch back.
type refusal struct {
	member *member // whose DELETE it was; nil if it came with the commit
	outcome
}

// A deleteFunc is deleteTogether or deleteEach.
type deleteFunc func(ctx context.Context, conn *pgx.Conn, deletions []plant.Deletion, lockTimeout, statementTimeout time.Duration) (deleted []bool, at int, err error)

// commit runs a batch and tells its members what came of it, unless the database
// refused the batch: then nothing of it happened, and nobody is told.
func commit(conn *pgx.Conn, batch []*member, del deleteFunc) *refusal {
	ctx, cancel := context.WithTimeout(context.Background(), batchTimeout)
	defer cancel()
	deletions := make([]plant.Deletion, len(batch))
	for i, m := range batch {
		deletions[i] = m.deletion
	}
	deleted, at, err := del(ctx, conn, deletions, batchLockTimeout, batchStatementTimeout)
	if err == nil {
		for i, m := range batch {
			m.fate <- outcome{deleted: deleted[i]}
		}
		return nil
	}
	r := new(refusal)
	if at >= 0 {
		r.member = batch[at]
	}
	if isRecordedAlready(err) {
		return r // like a row that is not there: the ledger knows why
	}
	v := judge(err, true)
	r.verdict = &v
	if errors.Is(v.err, plant.ErrUnavailable) {
		tell(batch, r.outcome)
		return nil
	}
	r.alone = errors.Is(v.err, plant.ErrBusy)
	return r
}

func tell(batch []*member, o outcome) {
	for _, m := range batch {
		m.fate <- o
	}
}
