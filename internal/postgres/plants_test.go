package postgres

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// A principal with a budget is not stopped by a plant that others want, too.
func TestABudgetIsFreeWhileAPlantIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := &DB{limits: defaults, metrics: newMetrics()}
		p := &Plants{db: db, memory: memory{limits: &db.limits}}
		p.usedUp.add("a", time.Now().Add(time.Hour), time.Now().Add(time.Hour)) // which is answered from memory
		d := plant.Deletion{Plant: 1, Principal: "a", Budget: plant.Budget{Most: 1, Period: time.Hour}}
		if err := p.onePlant.take(t.Context(), d.Plant, 1); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		waits := make(chan error)
		go func() {
			_, err := p.Delete(ctx, d)
			waits <- err
		}()
		synctest.Wait()
		d.Plant = 2
		if _, err := p.Delete(ctx, d); outcomeOf(err) != "over budget" {
			t.Errorf("a deletion of another plant: %v; want that it is over the budget", err)
		}
		if err := <-waits; !errors.Is(err, plant.ErrBusy) {
			t.Errorf("the deletion that waits for its plant: %v; want ErrBusy", err)
		}
	})
}

// A slow deletion takes its principal out of batches after it was in one that took too long. The
// way to the database does not count.
func TestWhoMadeABatchSlow(t *testing.T) {
	t.Parallel()
	l := patient
	l.batchStatement = 0 // any time in the database is too long
	s := storeOn(t, pgtest.Shared(t), pgtest.Shared(t).App, l)
	first := s.plant(t, 3)
	for n, c := range []struct {
		roundTrip time.Duration
		want      route
	}{{time.Hour, inBatch}, {0, onBatchPool}} {
		conn, err := s.batch.Acquire(t.Context()) // a new one would find the true round trip
		if err != nil {
			t.Fatal(err)
		}
		conn.Release()
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
