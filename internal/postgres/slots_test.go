package postgres

import (
	"context"
	"testing"
	"testing/synctest"
)

// Each key has its own slots, first come, first served. A request that gives up blocks no other.
func TestSlotsAreFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s slots[string]
		served := make(chan int, 4)
		leaving, leave := context.WithCancel(t.Context())
		for n, ctx := range []context.Context{t.Context(), t.Context(), leaving, t.Context()} {
			go func() {
				if s.take(ctx, "a") == nil {
					served <- n
				}
			}()
			synctest.Wait()
		}
		if err := s.take(t.Context(), "b"); err != nil {
			t.Errorf("another key's slot: %v; want it", err)
		}
		s.give("b")
		leave()
		for _, want := range []int{0, 1, 3} {
			synctest.Wait()
			if got := <-served; got != want || len(served) != 0 {
				t.Errorf("number %d has the slot, and %d others; want number %d and no other", got, len(served), want)
			}
			s.give("a")
		}
		if len(s.inUse) != 0 {
			t.Errorf("%d keys are kept; want none", len(s.inUse))
		}
	})
}
