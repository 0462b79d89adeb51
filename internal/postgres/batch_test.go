package postgres

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
