package postgres

import (
	"context"
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

// What waits makes up another batch beside those under way, as long as a slot is free, once it
// is enough or has waited long enough.
func TestWhoWaitsForABatch(t *testing.T) {
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

// A request whose batch goes on with others' deletions returns with its own result.
func TestARequestDoesNotWaitForTheRestOfItsBatch(t *testing.T) {
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

// rollingBack is a database that takes a while for a transaction, and rolls it back if a plant is
// among its plants.
func rollingBack(plant plant.ID, while time.Duration, sent *int) func([]*batchItem) ([]int64, error) {
	return func(items []*batchItem) (gone []int64, err error) {
		*sent++
		time.Sleep(while)
		for _, i := range items {
			if i.Plant == plant {
				return nil, &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: foreignKeyViolation}
			}
			gone = append(gone, int64(i.Plant))
		}
		return gone, nil
	}
}

// The parts of a batch with a refusal are tried for as long as a batch may take. What is left
// then has to go alone.
func TestABatchEnds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		while time.Duration // that a transaction takes
		sent  int
		want  [4]meaning
	}{
		{time.Millisecond, 5, [4]meaning{deleted, referenced, deleted, deleted}}, // all, two of them, each of these, the other two
		{defaults.batch, 2, [4]meaning{batchBusy, batchBusy, batchBusy, batchBusy}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &batcher{db: &DB{limits: defaults}}
			items := make([]*batchItem, 4)
			for n := range items {
				items[n] = &batchItem{Deletion: &plant.Deletion{Plant: plant.ID(n)}, result: make(chan batchResult, 1)}
			}
			var sent int
			b.attempt(slices.Clone(items), time.Now().Add(b.db.limits.batch), rollingBack(1, test.while, &sent))
			if sent != test.sent {
				t.Errorf("transactions of %s: %d; want %d", test.while, sent, test.sent)
			}
			for n, i := range items {
				if r := <-i.result; r.meaning != test.want[n] {
					t.Errorf("transactions of %s, plant %d: meaning %d, %v; want %d", test.while, n, r.meaning, r.err, test.want[n])
				}
			}
		})
	}
}

// A request that ends before its deletion is sent, or after it was rolled back, did nothing: it
// is not sent later. One that ends while its transaction is under way is lost, and is not sent again.
func TestARequestThatEndsInABatch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		timeout time.Duration
		want    meaning
		sent    int
	}{
		{"while its batch waits for a connection", time.Millisecond, busy, 0},
		{"while its batch is tried", time.Second + time.Millisecond, lost, 2},
		{"after its batch was rolled back", 2*time.Second + time.Millisecond, busy, 2},
		{"while it is tried alone", 3*time.Second + time.Millisecond, lost, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &batcher{db: &DB{limits: patient}, slots: 1}
				var sent int
				b.execute = func(items []*batchItem) {
					time.Sleep(time.Second) // for a connection
					b.attempt(items, time.Now().Add(b.db.limits.batch), rollingBack(1, time.Second, &sent))
				}
				b.queue = []*batchItem{{Deletion: &plant.Deletion{Plant: 1}, result: make(chan batchResult, 1), left: test.sent == 0}}
				ctx, cancel := context.WithTimeout(t.Context(), test.timeout)
				defer cancel()
				if r := b.delete(ctx, &plant.Deletion{Plant: 2}); r.meaning != test.want {
					t.Errorf("the request: meaning %d, %v; want %d", r.meaning, r.err, test.want)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if sent != test.sent {
					t.Errorf("%d transactions; want %d", sent, test.sent)
				}
			})
		})
	}
}
