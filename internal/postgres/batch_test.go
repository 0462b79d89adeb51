package postgres

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/plant"
)

// hold has deletions wait, as if a batch took the only slot, until release makes one batch of
// them.
func (b *batcher) hold() (release func()) {
	b.slots, b.running = 1, 1
	return func() {
		b.mu.Lock()
		b.running = 0
		b.mu.Unlock()
		b.another()
	}
}

// Waiting deletions form another batch beside those under way if a slot is free, and if they
// are many or have waited long enough.
func TestBatchBeginsWhenFullOrOld(t *testing.T) {
	t.Parallel()
	const (
		beside  = 100 * time.Microsecond // a round trip to the database
		faraway = time.Millisecond
	)
	type batch struct {
		began time.Duration // after the first
		size  int
	}
	for _, test := range []struct {
		name      string
		roundTrip time.Duration
		first     time.Duration // how long the first batch takes; all others take a minute
		come      []int         // deletions that come at once, one after the other batch began
		want      []batch
	}{
		{"a lone deletion waits for nobody", beside, time.Second, []int{1}, []batch{{0, 1}}},
		{"a few wait for the first batch's end", beside, time.Millisecond, []int{1, 63}, []batch{{0, 1}, {time.Millisecond, 63}}},
		{"a few wait for 2 ms at most", beside, time.Second, []int{1, 63}, []batch{{0, 1}, {2 * time.Millisecond, 63}}},
		{"64 do not wait", beside, time.Second, []int{1, 64}, []batch{{0, 1}, {0, 64}}},
		{"four do not wait for a database far away", faraway, time.Second, []int{1, 4}, []batch{{0, 1}, {0, 4}}},
		{"fewer than four for each batch wait", faraway, time.Second, []int{1, 4, 7}, []batch{{0, 1}, {0, 4}, {2 * time.Millisecond, 7}}},
		{"all wait for a slot, and 256 go together", beside, time.Second, []int{1, 64, 64, 300}, []batch{{0, 1}, {0, 64}, {0, 64}, {time.Second, 256}, {time.Minute, 44}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &batcher{db: &DB{limits: defaults}, slots: 3}
				b.db.roundTrip.Store(int64(test.roundTrip))
				start := time.Now()
				var got []batch // guarded by b.mu
				b.execute = func(items []*batchItem) {
					b.mu.Lock()
					got = append(got, batch{time.Since(start), len(items)})
					first := len(got) == 1
					b.mu.Unlock()
					if first {
						time.Sleep(test.first)
					} else {
						time.Sleep(time.Minute)
					}
					b.answer(items, deleted, nil)
				}
				var all sync.WaitGroup
				for _, n := range test.come {
					for range n {
						all.Go(func() {
							ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
							defer cancel()
							if r := b.delete(ctx, &plant.Deletion{}); r.meaning != deleted {
								t.Errorf("one deletion: %v, %v; want deleted", r.meaning, r.err)
							}
						})
					}
					synctest.Wait()
				}
				all.Wait()
				if !slices.Equal(got, test.want) {
					t.Errorf("batches %v; want %v", got, test.want)
				}
			})
		})
	}
}

// A request returns with its own result, even if its batch goes on with others' deletions.
func TestRequestDoesNotWaitForTheRestOfItsBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &batcher{db: &DB{limits: defaults}, slots: 3}
		b.execute = func(items []*batchItem) {
			b.answer(items[len(items)-1:], deleted, nil)
			time.Sleep(time.Minute)
			b.answer(items[:len(items)-1], deleted, nil)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		b.queue = []*batchItem{{result: make(chan batchResult, 1)}}
		start := time.Now()
		if r := b.delete(ctx, &plant.Deletion{}); r.meaning != deleted || time.Since(start) != 0 {
			t.Errorf("the request: meaning %d, %v, after %s; want its deletion at once", r.meaning, r.err, time.Since(start))
		}
		time.Sleep(time.Minute) // the batch ends
	})
}

// The parts of a refused batch are tried until the batch's time is over: the plant that the
// error names and the others, or else halves. The remaining deletions then go alone.
func TestPartsOfARefusedBatchAreRetried(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		detail string        // of the refusal
		while  time.Duration // how long a transaction takes
		want   [4]meaning
		sent   []int // plants in each transaction
	}{
		{"no plant named", "", time.Millisecond, [4]meaning{deleted, referenced, deleted, deleted}, []int{4, 2, 1, 1, 2}},
		{"the plant named", `Key (id)=(1) is still referenced from table "orders".`, time.Millisecond, [4]meaning{deleted, referenced, deleted, deleted}, []int{4, 3, 1}},
		{"another plant named", "Key (number)=(3) is still referenced.", time.Millisecond, [4]meaning{deleted, referenced, deleted, deleted}, []int{4, 3, 1, 2, 1, 1, 1}},
		{"no such plant named", "Key (number)=(1001) is still referenced.", time.Millisecond, [4]meaning{deleted, referenced, deleted, deleted}, []int{4, 2, 1, 1, 2}},
		{"the time is over", "", defaults.batch, [4]meaning{batchBusy, batchBusy, batchBusy, batchBusy}, []int{4, 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &batcher{db: &DB{limits: defaults}}
				items := make([]*batchItem, 4)
				for n := range items {
					items[n] = &batchItem{Deletion: &plant.Deletion{Plant: plant.ID(n)}, result: make(chan batchResult, 1)}
				}
				var sent []int
				b.attempt(items, false, time.Now().Add(b.db.limits.batch), func(items []*batchItem) (gone []int64, err error) {
					sent = append(sent, len(items))
					time.Sleep(test.while)
					for _, i := range items {
						if i.Plant == 1 {
							return nil, &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: foreignKeyViolation, Detail: test.detail}
						}
						gone = append(gone, int64(i.Plant))
					}
					return gone, nil
				})
				if !slices.Equal(sent, test.sent) {
					t.Errorf("transactions of %v plants; want %v", sent, test.sent)
				}
				for n, i := range items {
					if r := <-i.result; r.meaning != test.want[n] {
						t.Errorf("plant %d: meaning %d, %v; want %d", n, r.meaning, r.err, test.want[n])
					}
				}
			})
		})
	}
}

// If every plant of a batch is refused, the batch is halved, although each error names a plant.
func TestBatchOfRefusedPlantsIsHalved(t *testing.T) {
	t.Parallel()
	b := &batcher{db: &DB{limits: patient}}
	items := make([]*batchItem, 64)
	for n := range items {
		items[n] = &batchItem{Deletion: &plant.Deletion{Plant: plant.ID(n)}, result: make(chan batchResult, 1)}
	}
	sent := 0
	b.attempt(items, false, time.Now().Add(time.Hour), func(items []*batchItem) ([]int64, error) {
		sent += len(items)
		return nil, &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: foreignKeyViolation, Detail: fmt.Sprintf("Key (id)=(%d) is still referenced.", items[0].Plant)}
	})
	if want := 64 * 8; sent > want {
		t.Errorf("%d plants were sent; want %d at most", sent, want)
	}
}

// If a request ends in the queue, its deletion is never sent. If it ends after its batch began,
// the outcome is unknown.
func TestRequestEndsInTheQueueOrItsBatch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		running int // batches
		want    meaning
		sent    int
	}{
		{"in the queue", 1, busy, 0},
		{"in a batch", 0, lost, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &batcher{db: &DB{limits: patient}, slots: 1, running: test.running}
				var sent int
				b.execute = func(items []*batchItem) {
					time.Sleep(time.Second)
					sent += len(items)
					b.answer(items, deleted, nil)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				if r := b.delete(ctx, &plant.Deletion{}); r.meaning != test.want {
					t.Errorf("the request: meaning %d, %v; want %d", r.meaning, r.err, test.want)
				}
				b.mu.Lock()
				b.running = 0
				b.mu.Unlock()
				b.another()
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if sent != test.sent {
					t.Errorf("%d deletions were sent; want %d", sent, test.sent)
				}
			})
		})
	}
}
