package postgres

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/plant"
)

// Conditions of every deletion, beside the set_config that tells the trigger who asked. They
// are evaluated once, before the trigger, and prove that it will record the deletion: it is
// enabled, and it was found after the table was locked.
const conditions = `
	AND EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'public.plants'::regclass AND tgname = 'record_deletion' AND tgenabled IN ('O', 'A'))
	AND current_setting('transaction_isolation') = 'read committed' AND current_setting('session_replication_role') <> 'replica'`

const (
	deleteOneSQL = `DELETE FROM ONLY public.plants WHERE id = $1
	AND (SELECT set_config('plantstore.asked', $2::text, true)) IS NOT NULL` + conditions

	// Without the subquery, each array of ids would be planned anew.
	deleteManySQL = `DELETE FROM ONLY public.plants WHERE id = ANY (ARRAY(SELECT unnest($1::bigint[])))
	AND (SELECT set_config('plantstore.asked', $2::text, true)) IS NOT NULL` + conditions + `
	RETURNING id`

	// Behind a transaction pooler, the session's lock_timeout is that of a lone deletion.
	deleteImpatientlySQL = `DELETE FROM ONLY public.plants WHERE id = ANY (ARRAY(SELECT unnest($1::bigint[])))
	AND (SELECT set_config('plantstore.asked', $2::text, true) || set_config('lock_timeout', $3::text, true)) IS NOT NULL` + conditions + `
	RETURNING id`
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
	ids := make([]int64, len(items))
	for n, i := range items {
		ids[n] = int64(i.Plant)
	}
	gone, err := deleteMany(ctx, conn, ids, asked(items), b.db.limits.batchLock)
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

// deleteOne deletes one plant on a connection. The limit of its wait for locks is that of
// the session or, behind a pooler, lock; 0 is the role's.
func deleteOne(ctx context.Context, conn *pgx.Conn, d *plant.Deletion, lock time.Duration) (meaning, error) {
	if lock > 0 && conn.PgConn().CustomData()[throughPooler] != nil {
		gone, err := deleteMany(ctx, conn, []int64{int64(d.Plant)}, askedByOne(d), lock)
		return meaningOf(len(gone), err), err
	}
	tag, err := conn.Exec(ctx, deleteOneSQL, int64(d.Plant), askedByOne(d))
	if err == nil {
		err = takeCutShort(conn)
	}
	return meaningOf(int(tag.RowsAffected()), err), err
}

func meaningOf(rows int, err error) meaning {
	switch {
	case err != nil:
		return classify(err)
	case rows == 0:
		return missing
	}
	return deleted
}

// deleteMany deletes plants on a connection, all or none, and returns those that were there.
func deleteMany(ctx context.Context, conn *pgx.Conn, ids []int64, asked string, lock time.Duration) ([]int64, error) {
	sql, args := deleteManySQL, []any{ids, asked}
	if conn.PgConn().CustomData()[throughPooler] != nil {
		sql, args = deleteImpatientlySQL, append(args, strconv.FormatInt(lock.Milliseconds(), 10))
	}
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	gone, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err == nil {
		err = takeCutShort(conn)
	}
	return gone, err
}

// askedByOne is the setting plantstore.asked of one deletion, see
// migrations/00004_record_deletions.sql.
func askedByOne(d *plant.Deletion) string {
	b := make([]byte, 0, 160)
	for n, value := range [...]string{d.Principal, d.RequestID, d.Key} {
		if n == 0 {
			b = append(strconv.AppendInt(append(b, "{{"...), int64(d.Plant), 10), '}')
		}
		b = append(appendQuoted(append(b, ",{"...), value), '}')
	}
	if d.Budget != (plant.Budget{}) {
		b = strconv.AppendInt(append(b, ",{"...), d.Budget.Most, 10)
		b = strconv.AppendFloat(append(b, "},{"...), d.Budget.Period.Seconds(), 'f', -1, 64)
		b = append(b, '}')
	}
	return string(append(b, '}'))
}

// asked is the setting of a batch.
func asked(items []*batchItem) string {
	b := make([]byte, 0, 160*len(items))
	row := func(begin string, value func([]byte, *plant.Deletion) []byte) {
		b = append(b, begin...)
		for n, i := range items {
			if n > 0 {
				b = append(b, ',')
			}
			b = value(b, i.Deletion)
		}
	}
	row("{{", func(b []byte, d *plant.Deletion) []byte { return strconv.AppendInt(b, int64(d.Plant), 10) })
	row("},{", func(b []byte, d *plant.Deletion) []byte { return appendQuoted(b, d.Principal) })
	row("},{", func(b []byte, d *plant.Deletion) []byte { return appendQuoted(b, d.RequestID) })
	row("},{", func(b []byte, d *plant.Deletion) []byte { return appendQuoted(b, d.Key) })
	return string(append(b, "}}"...))
}

// appendQuoted appends an element of an array literal (PostgreSQL's manual, 8.15.2).
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for n := range len(s) {
		if s[n] == '"' || s[n] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[n])
	}
	return append(b, '"')
}
