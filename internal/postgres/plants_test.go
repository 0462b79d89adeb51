package postgres

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"plantstore/internal/plant"
)

// offline are plants without a database: each batch takes a minute, and deletes. One deletion may
// be in flight.
func offline() *Plants {
	db := &DB{limits: defaults, metrics: newMetrics()}
	b := &batcher{db: db, slots: 1}
	b.execute = func(items []*batchItem) {
		time.Sleep(time.Minute)
		b.answer(items, deleted, nil)
	}
	return &Plants{db: db, batches: b, inFlight: semaphore.NewWeighted(1), memory: memory{limits: &db.limits}}
}

func TestOverloadIsRejected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := offline()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		go p.Delete(ctx, plant.Deletion{Plant: 1})
		synctest.Wait()
		began := time.Now()
		if _, err := p.Delete(ctx, plant.Deletion{Plant: 2}); !errors.Is(err, plant.ErrOverloaded) || time.Since(began) != defaults.queue {
			t.Errorf("the second deletion of one that may be in flight: %v after %s; want ErrOverloaded after %s", err, time.Since(began), defaults.queue)
		}
		time.Sleep(time.Hour) // until the first ends
	})
}

// A principal with a budget has one attempt at a time, and none is under way while a deletion waits
// for its plant.
func TestBudgetIsFreeWhileARequestWaitsForItsPlant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := offline()
		for _, principal := range []string{"a", "b"} { // whose attempts are answered from memory
			p.usedUp.add(principal, time.Now().Add(time.Hour), time.Now().Add(time.Hour))
		}
		if err := errors.Join(p.onePlant.take(t.Context(), 1), p.oneBudget.take(t.Context(), "b")); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, test := range []struct {
			id        plant.ID
			principal string
			want      string
		}{{1, "a", plant.ErrBusy.Error()}, {2, "a", "over budget"}, {3, "b", plant.ErrBusy.Error()}} {
			go func() {
				d := plant.Deletion{Plant: test.id, Principal: test.principal, Budget: plant.Budget{Most: 1, Period: time.Hour}}
				if got := inWords(p.Delete(ctx, d)); got != test.want {
					t.Errorf("plant %d: %s; want %s", test.id, got, test.want)
				}
			}()
			synctest.Wait()
		}
		<-ctx.Done()
		synctest.Wait()
	})
}

// A slow deletion takes its principal out of batches after it was in one that took too long. The
// way to the database does not count.
func TestSlowDeletionTakesItsPrincipalOutOfBatches(t *testing.T) {
	t.Parallel()
	l := patient
	l.batchStatement = 0 // any time in the database is too long
	s := limitedStore(t, l)
	first := s.plant(t, 3)
	for n, c := range []struct {
		roundTrip time.Duration
		want      route
	}{{time.Hour, inBatch}, {0, onBatchPool}} {
		acquired(t, s.batch).Release() // a new connection would find the true round trip
		s.roundTrip.Store(int64(c.roundTrip))
		e := execution{plants: s.Plants, deletion: s.of(first+plant.ID(n), "key"), suspect: true}
		if m, err := e.tryAlone(t.Context(), s.batch, time.Hour, 0); m != deleted {
			t.Fatalf("the attempt: meaning %d, %v; want it deleted", m, err)
		}
		other := s.of(first+2, "key")
		if got := s.memory.route(&other); got != c.want {
			t.Errorf("round trips of %s: another plant takes route %d; want %d", c.roundTrip, got, c.want)
		}
	}
}
