package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// Deletions wait for a slow batch only until the next one may begin beside it, or for a slot.
func TestDeletionsOvertakeASlowBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &batcher{db: &DB{limits: defaults}, slots: 2}
		var batches []int // guarded by b.mu
		b.execute = func(items []*batchItem) {
			b.mu.Lock()
			batches = append(batches, len(items))
			b.mu.Unlock()
			time.Sleep(time.Minute)
			b.answer(items, deleted, nil)
		}
		check := func(want ...int) {
			t.Helper()
			b.mu.Lock()
			defer b.mu.Unlock()
			if !slices.Equal(batches, want) {
				t.Errorf("batches of %d deletions; want %d", batches, want)
			}
		}
		var all sync.WaitGroup
		come := func(n int) {
			for range n {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					if r := b.delete(ctx, &plant.Deletion{}); r.meaning != deleted {
						t.Errorf("one deletion: meaning %d, %v; want deleted", r.meaning, r.err)
					}
				})
			}
			synctest.Wait()
		}
		come(1)
		come(3)
		time.Sleep(lateAge)
		synctest.Wait()
		come(maxBatch + 44)
		check(1, 3)
		all.Wait()
		check(1, 3, maxBatch, 44)
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
		{"another plant named each time", "Key (number)=(FIRST) is still referenced.", time.Millisecond, [4]meaning{deleted, referenced, deleted, deleted}, []int{4, 3, 1, 1, 1, 1}},
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
					detail := strings.ReplaceAll(test.detail, "FIRST", fmt.Sprint(items[0].Plant))
					time.Sleep(test.while)
					for _, i := range items {
						if i.Plant == 1 {
							return nil, &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: foreignKeyViolation, Detail: detail}
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

func TestRequestThatEndsInTheQueueIsNeverSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &batcher{db: &DB{limits: patient}}
		b.execute = func(items []*batchItem) { t.Errorf("%d deletions are sent; want none", len(items)) }
		release := b.hold()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if r := b.delete(ctx, &plant.Deletion{}); r.meaning != busy {
			t.Errorf("the request: meaning %d, %v; want %d", r.meaning, r.err, busy)
		}
		release()
	})
}
