package server

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestRateLimitOfAPrincipal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.RateLimit = Rate{Count: 10, In: time.Second, Burst: 20}
		s := run(t, c, newPipeListener(), newPipeListener())
		const tries = 50
		count := func(as string) (passed int) {
			t.Helper()
			for range tries {
				switch got := s.ask(t, request{method: "DELETE", target: "/plants/1", headers: []string{as}}); {
				case got.status == 204:
					passed++
				case got.code() != 42900 || got.header.Get("Retry-After") != "1" || !strings.HasPrefix(got.error.Message, "You send more"):
					t.Errorf("answer %d, %v, want 42900 with Retry-After 1", got.code(), got)
				}
			}
			return passed
		}
		asCarol := strings.Replace(asAlice, "alice", "carol", 1)
		for _, tt := range []struct {
			who, as string
			after   time.Duration
			want    int
		}{
			{"Alice at first", asAlice, 0, 20},
			{"Alice at once again", asAlice, 0, 0},
			{"Carol, who has her own limit", asCarol, 0, 20},
			{"Alice after a second", asAlice, time.Second, 10},
			{"Alice after an hour", asAlice, time.Hour, 20},
		} {
			time.Sleep(tt.after)
			if got := count(tt.as); got != tt.want {
				t.Errorf("%s: %d of %d requests passed, want %d", tt.who, got, tt.want, tt.want)
			}
		}
		s.shed(t, shedRate, 5*tries-70)
	})
}

// What is refused takes nothing from what comes later, and is told when that is.
func TestRateLimitTellsWhen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.RateLimit = Rate{Count: 2, In: time.Minute, Burst: 1}
		s := run(t, c, newPipeListener(), newPipeListener())
		s.ask(t, del())
		for range 10 {
			if got := s.ask(t, del()); got.code() != 42900 || got.header.Get("Retry-After") != "30" {
				t.Errorf("answer %d, Retry-After %s, want 42900 and 30", got.code(), got.header.Get("Retry-After"))
			}
		}
		time.Sleep(30 * time.Second)
		if got := s.ask(t, del()).code(); got != 204 {
			t.Errorf("after 30 s: answer %d, want 204", got)
		}
	})
}

// Requests that fail for reasons of their own are not counted.
func TestRateLimitCountsWhatCouldDelete(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.RateLimit = Rate{Count: 1, In: time.Minute, Burst: 1}
		s := run(t, c, newPipeListener(), newPipeListener())
		for range 3 {
			if got := s.ask(t, request{method: "DELETE", target: "/plants/01", headers: []string{asAlice}}).code(); got != 40001 {
				t.Errorf("answer %d, want 40001", got)
			}
		}
		if got := s.ask(t, del()).code(); got != 204 {
			t.Errorf("answer %d, want 204", got)
		}
	})
}

// Requests that come together and are refused leave no debt.
func TestRateLimitForgetsAFlood(t *testing.T) {
	t.Parallel()
	r := newRates(Rate{Count: 100, In: time.Second, Burst: 1})
	var longest [8]time.Duration
	var group sync.WaitGroup
	for i := range longest {
		group.Go(func() {
			for range 20_000 {
				if err, ok := errors.AsType[*tooFastError](r.admit("alice")); ok {
					longest[i] = max(longest[i], err.wait)
				}
			}
		})
	}
	group.Wait()
	if got := slices.Max(longest[:]); got == 0 || got > 10*time.Millisecond {
		t.Errorf("at 100 requests a second the next may come after %s, want at most 10ms", got)
	}
}

func TestRateLimitsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRates(Rate{Count: 1, In: time.Minute, Burst: 1})
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for n := range limitedPrincipals {
				_ = r.admit(fmt.Sprint("oidc:", i, "-", n))
			}
		})
	}
	group.Wait()
	if got := r.limiters.Len(); got != limitedPrincipals {
		t.Errorf("%d principals are kept in mind, want %d", got, limitedPrincipals)
	}
}
