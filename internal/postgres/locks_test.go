package postgres

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
)

func TestKeyedIsFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l keyed[string]
		var order []int
		lock := func(ctx context.Context, n int) {
			go func() {
				if l.lock(ctx, "a") {
					order = append(order, n) // guarded by the lock
				}
			}()
			synctest.Wait()
		}
		leaving, leave := context.WithCancel(t.Context())
		lock(t.Context(), 0)
		lock(t.Context(), 1)
		lock(leaving, 2)
		lock(t.Context(), 3)
		if !l.lock(t.Context(), "b") {
			t.Error("another key's lock was not had")
		}
		leave()
		for range 3 {
			l.unlock("a")
			synctest.Wait()
		}
		l.unlock("b")
		if want := []int{0, 1, 3}; !slices.Equal(order, want) {
			t.Errorf("order %v; want %v", order, want)
		}
		if len(l.waiters) != 0 {
			t.Errorf("%d keys are kept; want none", len(l.waiters))
		}
	})
}

// Whoever gets the lock in the moment of leaving passes it on.
func TestKeyedLosesNoTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for range 100 { // select takes either of two that are ready
			var l keyed[int]
			l.lock(t.Context(), 1)
			ctx, leave := context.WithCancel(t.Context())
			had := make(chan bool)
			go func() { had <- l.lock(ctx, 1) }()
			synctest.Wait()
			leave()
			l.unlock(1)
			if <-had {
				l.unlock(1)
			}
			if !l.lock(t.Context(), 1) {
				t.Fatal("the lock was not had")
			}
		}
	})
}
