package postgres

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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

// A batcher deletes plants in batches, each one statement and one transaction. No deletion
// waits for a batch to fill: those that arrive while batches are under way form the next one.
type batcher struct {
	db      *DB
	slots   int                // batches that may be under way
	execute func([]*batchItem) // transact; tests have their own

	mu      sync.Mutex
	queue   []*batchItem
	running int         // batches under way
	began   time.Time   // when the newest of them began
	late    *time.Timer // ends when the newest is old enough for another one
}

func newBatcher(db *DB) *batcher {
	b := &batcher{db: db, slots: int(db.batch.Config().MaxConns+1) / 2}
	b.execute = b.transact
	return b
}

// delete deletes a plant in a batch. If ctx ends first, the deletion is lost, unless it is still
// in the queue.
func (b *batcher) delete(ctx context.Context, d *plant.Deletion) batchResult {
	item := &batchItem{Deletion: d, came: time.Now(), result: make(chan batchResult, 1)}
	b.mu.Lock()
	b.queue = append(b.queue, item)
	batch := b.next()
	b.mu.Unlock()
	if deadline, _ := ctx.Deadline(); len(batch) == 1 && time.Until(deadline) > 2*b.db.limits.batch {
		b.run(batch) // here, which spares a lone request two changes of goroutines
	} else if batch != nil {
		go b.run(batch) // the batch may take longer than ctx, or than this item
	}
	select {
	case r := <-item.result:
		return r
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := slices.Index(b.queue, item)
	if n < 0 {
		return batchResult{meaning: lost, err: ctx.Err(), batch: 1}
	}
	b.queue = slices.Delete(b.queue, n, n+1)
	return batchResult{meaning: busy, err: ctx.Err(), queued: time.Since(item.came)}
}

const (
	manyWait = 64                     // deletions, for a batch of their own
	lateAge  = 2 * time.Millisecond   // of a batch that has kept the queue long enough
	farAway  = 500 * time.Microsecond // to the database and back
	fewWait  = 4                      // for each batch under way, where the database is far away
)

// mayBegin reports whether a batch may begin. It may if no other is under way. Another begins
// beside it, as long as a slot is free, when 64 deletions wait, or when the newest batch is
// 2 ms old. Where the database is more than half a millisecond away, it also begins when four
// deletions wait for each batch under way.
func (b *batcher) mayBegin() bool {
	waiting, far := len(b.queue), time.Duration(b.db.roundTrip.Load()) > farAway
	switch {
	case waiting == 0 || b.running == b.slots:
		return false
	case b.running == 0 || waiting >= manyWait || time.Since(b.began) >= lateAge:
		return true
	}
	return far && waiting >= fewWait*b.running
}

// next takes the next batch from the queue, or nothing where none may begin. The caller holds
// the mutex.
func (b *batcher) next() []*batchItem {
	if !b.mayBegin() {
		return nil
	}
	n := min(len(b.queue), maxBatch)
	batch := b.queue[:n:n]
	b.queue = b.queue[n:]
	b.running++
	b.began = time.Now()
	if b.late == nil {
		b.late = time.AfterFunc(lateAge, b.another)
	} else {
		b.late.Reset(lateAge)
	}
	return batch
}

// run executes a batch. Another goroutine then executes the deletions that arrived meanwhile.
func (b *batcher) run(batch []*batchItem) {
	b.execute(batch)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		b.running--
		return
	}
	go func() {
		runtime.Gosched() // clients that were just answered come back, and make one batch and not two
		b.mu.Lock()
		b.running--
		b.mu.Unlock()
		b.another()
	}()
}

// another executes a batch of the waiting deletions, if one may begin.
func (b *batcher) another() {
	b.mu.Lock()
	batch := b.next()
	b.mu.Unlock()
	if batch != nil {
		b.run(batch)
	}
}

// transact executes a batch on a connection of the pool, and gives each item its result.
func (b *batcher) transact(items []*batchItem) {
	ctx, cancel := context.WithTimeout(context.Background(), b.db.limits.batch)
	conn, err := b.db.batch.Acquire(ctx)
	cancel()
	for _, i := range items {
		i.queued = time.Since(i.came)
	}
	if err != nil {
		b.answer(items, notAcquired(err), err)
		return
	}
	defer conn.Release()
	b.db.metrics.running.Inc()
	defer b.db.metrics.running.Dec()
	b.db.metrics.size.Observe(float64(len(items)))
	b.attempt(items, false, time.Now().Add(b.db.limits.batch), func(items []*batchItem) ([]int64, error) { return b.send(conn.Conn(), items) })
}

// attempt deletes the plants of items in one transaction. After a refusal it tries parts of the
// batch until end, down to each item alone; again means that items are such a part. After a
// wait that was too long, each item has to try alone: nobody knows which one caused the wait.
func (b *batcher) attempt(items []*batchItem, again bool, end time.Time, send func([]*batchItem) (gone []int64, err error)) {
	if len(items) == 0 {
		return
	}
	if time.Now().After(end) {
		b.answer(items, batchBusy, context.DeadlineExceeded)
		return
	}
	gone, err := send(items)
	if err == nil {
		for _, i := range items {
			m := missing
			if slices.Contains(gone, int64(i.Plant)) {
				m = deleted
			}
			i.result <- batchResult{m, nil, len(items), i.queued}
		}
		return
	}
	switch m := classify(err); {
	case len(items) == 1 || m == lost || m == unreachable:
		b.answer(items, m, err)
	case m == busy:
		b.answer(items, batchBusy, err)
	default:
		for _, part := range parts(items, again, err) {
			b.attempt(part, true, end, send)
		}
	}
}

// parts divides a batch that an error rolled back into halves. If the error names a plant, as in
// "Key (id)=(7) is still referenced", that plant is a part of its own, and the last. The others
// are tried together once: most batches have one such plant.
func parts(items []*batchItem, again bool, err error) [][]*batchItem {
	var named []*batchItem
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		_, key, _ := strings.Cut(pg.Detail, ")=(")
		key, _, _ = strings.Cut(key, ")")
		id, err := plant.ParseID(key)
		n := slices.IndexFunc(items, func(i *batchItem) bool { return i.Plant == id })
		if err == nil && n >= 0 {
			items, named = slices.Concat(items[:n], items[n+1:]), items[n:n+1]
		}
	}
	half := len(items) / 2
	if named != nil && !again {
		half = 0
	}
	return [][]*batchItem{items[:half], items[half:], named}
}

// send deletes the plants of items in one transaction on a connection, and returns those that
// were there.
func (b *batcher) send(conn *pgx.Conn, items []*batchItem) ([]int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), b.db.limits.batch)
	defer cancel()
	if len(items) == 1 {
		m, err := deleteOne(ctx, conn, items[0].Deletion, b.db.limits.batchLock)
		if m != deleted {
			return nil, err
		}
		return []int64{int64(items[0].Plant)}, nil
	}
	deletions := make([]*plant.Deletion, len(items))
	for n, i := range items {
		deletions[n] = i.Deletion
	}
	return deleteMany(ctx, conn, deletions, b.db.limits.batchLock)
}

func (b *batcher) answer(items []*batchItem, m meaning, err error) {
	for _, i := range items {
		i.result <- batchResult{m, err, len(items), i.queued}
	}
}
