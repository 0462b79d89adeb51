package postgres

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/plant"
)

// maxBatch limits a batch.
const maxBatch = 256

// A batchItem is one deletion on its way through a batch.
type batchItem struct {
	*plant.Deletion
	came   time.Time
	queued time.Duration
	result chan batchResult // has room for one
}

type batchResult struct {
	meaning meaning
	err     error
	batch   int // how many were in the transaction; 0: none was begun
	queued  time.Duration
}

// A batcher deletes plants in batches, each one statement and one transaction. A deletion
// that comes while no batch is under way begins one at once. Those that come meanwhile make
// up the next.
type batcher struct {
	db    *DB
	slots int // batches that may be under way

	mu           sync.Mutex
	queue        []*batchItem
	running      int           // batches under way
	underWay     int           // deletions in them
	began        time.Time     // when the newest of them began
	meanDuration time.Duration // how long a batch takes, on average
	timer        *time.Timer   // begins the next batch where the newest is late
	armed        bool
}

func newBatcher(db *DB) *batcher {
	return &batcher{db: db, slots: int(db.batch.Config().MaxConns+1) / 2}
}

// delete deletes a plant in a batch. If ctx ends first, the deletion leaves the queue or, if
// its batch is under way, is lost.
func (b *batcher) delete(ctx context.Context, d *plant.Deletion) batchResult {
	item := &batchItem{Deletion: d, came: time.Now(), result: make(chan batchResult, 1)}
	b.mu.Lock()
	b.queue = append(b.queue, item)
	begins := b.mayBegin(item.came)
	if begins {
		b.running++
		b.began = item.came
	}
	b.mu.Unlock()
	if deadline, _ := ctx.Deadline(); begins && time.Until(deadline) > 2*b.db.limits.batch {
		b.run() // here, which spares a lone request two changes of goroutines
	} else if begins {
		go b.run() // it may take longer than ctx
	}
	select {
	case r := <-item.result:
		return r
	case <-ctx.Done():
	}
	b.mu.Lock()
	for i, other := range b.queue {
		if other == item {
			b.queue = append(b.queue[:i:i], b.queue[i+1:]...)
			b.mu.Unlock()
			return batchResult{meaning: busy, err: ctx.Err(), queued: time.Since(item.came)}
		}
	}
	b.mu.Unlock()
	return batchResult{meaning: lost, err: ctx.Err(), batch: 1}
}

// mayBegin reports whether another batch may begin: none is under way, enough deletions wait,
// or the newest batch is late. As many as are under way are enough: then two batches of one
// size wait for their commits at the same time. The longer the round trip to the database is,
// compared with its work, the fewer are enough.
func (b *batcher) mayBegin(now time.Time) bool {
	if b.running == 0 {
		return true
	}
	if b.running == b.slots {
		return false
	}
	roundTrip := time.Duration(b.db.roundTrip.Load())
	work := max(b.meanDuration-roundTrip, 1)
	late := 2*work - now.Sub(b.began)
	if late <= 0 || float64(len(b.queue))*(1+float64(roundTrip)/float64(work)) >= float64(b.underWay) {
		return true
	}
	if !b.armed {
		b.armed = true
		if b.timer == nil {
			b.timer = time.AfterFunc(late, b.late)
		} else {
			b.timer.Reset(late)
		}
	}
	return false
}

// late begins the next batch where the newest is still under way.
func (b *batcher) late() {
	b.mu.Lock()
	b.armed = false
	begins := len(b.queue) > 0 && b.mayBegin(time.Now())
	if begins {
		b.running++
		b.began = time.Now()
	}
	b.mu.Unlock()
	if begins {
		b.run()
	}
}

// run makes one batch of the queue, and has another goroutine go on with what came meanwhile.
func (b *batcher) run() {
	b.mu.Lock()
	items := b.take()
	b.underWay += len(items)
	b.mu.Unlock()
	began := time.Now()
	clean := true
	if len(items) > 0 {
		clean = b.execute(items)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if clean && len(items) > 0 {
		b.meanDuration += (time.Since(began) - b.meanDuration) / 8
	}
	b.underWay -= len(items)
	b.running--
	if len(b.queue) == 0 || !b.mayBegin(time.Now()) {
		return
	}
	b.running++
	b.began = time.Now()
	go func() {
		runtime.Gosched() // clients that were just answered come back, and make one batch and not two
		b.run()
	}()
}

// take removes the next batch from the queue.
func (b *batcher) take() []*batchItem {
	n := min(len(b.queue), maxBatch)
	items := b.queue[:n:n]
	b.queue = b.queue[n:]
	return items
}

// execute makes a batch and gives each item its result. It reports whether one statement was
// enough.
func (b *batcher) execute(items []*batchItem) bool {
	ctx, cancel := context.WithTimeout(context.Background(), b.db.limits.batch)
	conn, err := b.db.batch.Acquire(ctx)
	cancel()
	for _, i := range items {
		i.queued = time.Since(i.came)
	}
	if err != nil {
		b.answer(items, notAcquired(err), err)
		return false
	}
	defer conn.Release()
	b.db.metrics.running.Inc()
	defer b.db.metrics.running.Dec()
	b.db.metrics.size.Observe(float64(len(items)))
	return b.attempt(conn.Conn(), items)
}

// attempt deletes the plants of items in one transaction. After a refusal the halves are
// tried, down to each item alone. After a wait that was too long, the items have to find out
// by themselves which of them it was.
func (b *batcher) attempt(conn *pgx.Conn, items []*batchItem) bool {
	if conn.IsClosed() { // earlier parts of the batch lost it
		b.answer(items, unreachable, errClosed)
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.db.limits.batch)
	defer cancel()
	if len(items) == 1 {
		m, err := deleteOne(ctx, conn, items[0].Deletion, b.db.limits.batchLock)
		b.answer(items, m, err)
		return err == nil
	}
	deletions := make([]*plant.Deletion, len(items))
	for n, i := range items {
		deletions[n] = i.Deletion
	}
	gone, err := deleteMany(ctx, conn, deletions, b.db.limits.batchLock)
	if err == nil {
		for _, i := range items {
			m := missing
			if slices.Contains(gone, int64(i.Plant)) {
				m = deleted
			}
			i.result <- batchResult{m, nil, len(items), i.queued}
		}
		return true
	}
	switch m := classify(err); m {
	case lost, unreachable:
		b.answer(items, m, err)
	case busy:
		b.answer(items, batchBusy, err)
	default:
		half := len(items) / 2
		b.attempt(conn, items[:half])
		b.attempt(conn, items[half:])
	}
	return false
}

func (b *batcher) answer(items []*batchItem, m meaning, err error) {
	for _, i := range items {
		i.result <- batchResult{m, err, len(items), i.queued}
	}
}

var errClosed = errors.New("the connection was closed")
