package postgres

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
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
			l.mu.Lock()
			leave()
			close(l.waiters[1][0]) // as unlock does
			l.waiters[1] = nil
			l.mu.Unlock()
			if <-had {
				l.unlock(1)
			}
			if !l.lock(t.Context(), 1) {
				t.Fatal("the lock was not had")
			}
		}
	})
}

func TestRecent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r recent[int, string]
		in := func(d time.Duration) time.Time { return time.Now().Add(d) }
		check := func(key int, want string, wantOK bool) {
			t.Helper()
			if got, ok := r.get(key); ok != wantOK || ok && got != want {
				t.Errorf("get(%d) = %q, %t; want %q, %t", key, got, ok, want, wantOK)
			}
		}
		check(1, "", false)
		if last := r.add(1, "a", in(time.Minute)); last != "" {
			t.Errorf("the last value is %q; want none", last)
		}
		if last := r.add(1, "b", in(time.Second)); last != "a" {
			t.Errorf("the last value is %q; want a", last)
		}
		time.Sleep(time.Minute - 1)
		check(1, "b", true)
		time.Sleep(time.Nanosecond)
		check(1, "", false)
		if last := r.add(1, "c", in(time.Minute)); last != "b" {
			t.Errorf("the last value is %q; want b, though its time is over", last)
		}
		for n := range maxRecent + 1 {
			r.add(n+10, "many", in(time.Second))
		}
		check(1, "c", true)
		check(maxRecent+9, "", false) // there was no room
		time.Sleep(time.Second)
		r.add(2, "d", in(time.Minute))
		check(2, "d", true)
		if len(r.values) != 2 {
			t.Errorf("%d are kept; want 2", len(r.values))
		}
	})
}
