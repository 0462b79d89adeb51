package postgres

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

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
