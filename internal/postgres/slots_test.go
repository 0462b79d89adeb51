package postgres

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
)

// Who comes first is served first, on each key's own slots. Who leaves keeps nobody waiting.
func TestSlotsAreFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s slots[string]
		var order []int
		served := make(chan int, 10)
		take := func(ctx context.Context, n int) {
			go func() {
				if s.take(ctx, "a", 2) == nil {
					served <- n
				}
			}()
			synctest.Wait()
		}
		leaving, leave := context.WithCancel(t.Context())
		take(t.Context(), 0)
		take(t.Context(), 1)
		take(t.Context(), 2)
		take(leaving, 3)
		take(t.Context(), 4)
		if len(served) != 2 {
			t.Errorf("%d have one of two slots; want 2", len(served))
		}
		if err := s.take(t.Context(), "b", 1); err != nil {
			t.Errorf("another key's slot: %v; want none", err)
		}
		leave()
		for range 4 {
			s.give("a")
			synctest.Wait()
		}
		s.give("b")
		close(served)
		for n := range served {
			order = append(order, n)
		}
		if want := []int{0, 1, 2, 4}; !slices.Equal(order, want) {
			t.Errorf("order %v; want %v", order, want)
		}
		if len(s.inUse) != 0 {
			t.Errorf("%d keys are kept; want none", len(s.inUse))
		}
	})
}
