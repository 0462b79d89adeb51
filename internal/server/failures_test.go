package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

// carol's token is good, and was not seen before.
const carol = "carol" + secret

// attempt is a deletion with a token, as it comes from an address.
func attempt(t *testing.T, s *Server, from, forwarded, token string) int {
	t.Helper()
	r := httptest.NewRequest(http.MethodDelete, "/plants/1", nil)
	r.RemoteAddr = from
	r.Header.Set("Authorization", "Bearer "+token)
	if forwarded != "" {
		r.Header.Set("X-Forwarded-For", forwarded)
	}
	w := httptest.NewRecorder()
	s.Public().ServeHTTP(w, r)
	e := checkAnswer(t, r.Method, r.URL.Path, w.Code, w.Header(), w.Body.Bytes())
	if got := w.Header().Get("Retry-After"); (got == "1") != (w.Code == http.StatusTooManyRequests || w.Code >= 500) {
		t.Errorf("Retry-After %q with status %d", got, w.Code)
	}
	if e.Error != 0 {
		return int(e.Error)
	}
	return w.Code
}

// exhaust fails as often as it may.
func exhaust(t *testing.T, s *Server, from, forwarded string) {
	t.Helper()
	for range failuresAtOnce {
		if got := attempt(t, s, from, forwarded, "made-up"); got != 40101 {
			t.Fatalf("made-up token from %s for %q: answer %d, want 40101", from, forwarded, got)
		}
	}
}

func TestFailuresAreLimitedForEachAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(testConfig())
		const here, there = "192.0.2.1:1111", "192.0.2.2:1111"
		expect := func(from, token string, want int) {
			t.Helper()
			if got := attempt(t, s, from, "", token); got != want {
				t.Errorf("%.5s from %s: answer %d, want %d", token, from, got, want)
			}
		}
		for range 2 * failuresAtOnce { // what is no failure does not count
			expect(here, "alice"+secret, 204)
			expect(here, carol, 204)
			expect(here, "bob"+secret, 40300)
		}
		exhaust(t, s, here, "")
		began := time.Now()
		var group sync.WaitGroup
		group.Go(func() { expect(here, "made-up", 42900) })
		group.Go(func() { expect("192.0.2.1:2222", "made-up", 42900) })
		group.Go(func() { expect("[::ffff:192.0.2.1]:1111", "made-up", 42900) })
		group.Go(func() { expect(here, carol, 42900) }) // not to be told from a made-up one
		group.Wait()
		if got := time.Since(began); got != failurePause {
			t.Errorf("refusals came after %s, want %s", got, failurePause)
		}
		began = time.Now()
		expect(here, "alice"+secret, 204) // who is known need not suffer for a neighbour
		expect(there, "made-up", 40101)
		expect(there, carol, 204)
		if took := time.Since(began); took != 0 {
			t.Errorf("others waited for %s, want them not to", took)
		}
		time.Sleep(failuresEvery - failurePause) // since the last failure
		expect(here, "made-up", 40101)
		expect(here, "made-up", 42900)
		time.Sleep(failuresEvery - failurePause)
		expect(here, carol, 204)
		s.shed(t, shedFailures, 5)
	})
}

// When one more failure is allowed, all who wait for that are let in: who has a good
// token need not win a race against a flood.
func TestWhoWaitsIsLetInTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(testConfig())
		const here = "192.0.2.1:1111"
		exhaust(t, s, here, "")
		time.Sleep(failuresEvery - failurePause/2)
		var group sync.WaitGroup
		for range 150 {
			group.Go(func() { attempt(t, s, here, "", "made-up") })
		}
		group.Go(func() {
			if got := attempt(t, s, here, "", carol); got != 204 {
				t.Errorf("a good token in a flood: answer %d, want 204", got)
			}
		})
		group.Wait()
	})
}

// Whoever looks into a flood learns where it comes from.
func TestWhoFailsTooOftenIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := testConfig()
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		s := New(c)
		exhaust(t, s, "10.0.0.1:1111", "198.51.100.1")
		if got := attempt(t, s, "10.0.0.1:1111", "198.51.100.1", "made-up"); got != 42900 {
			t.Fatalf("one failure more: answer %d, want 42900", got)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		for _, want := range []string{"client=198.51.100.1", "error=42900"} {
			if last := lines[len(lines)-1]; !strings.Contains(last, want) {
				t.Errorf("the last line is %s, want %s in it", last, want)
			}
		}
	})
}

func TestAddressesOfClients(t *testing.T) {
	t.Parallel()
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ffff::1/128")}
	const direct, proxy = "192.0.2.1:1111", "10.0.0.1:1111"
	tests := []struct {
		name                  string
		proxies               []netip.Prefix
		from, forwarded       string
		thenFrom, thenForward string
		same                  bool
	}{
		{"another address", nil, direct, "", "192.0.2.3:1111", "", false},
		{"a network of IPv6", nil, "[2001:db8::1]:1", "", "[2001:db8::ffff:2]:1", "", true},
		{"another network of IPv6", nil, "[2001:db8::1]:1", "", "[2001:db8:0:1::1]:1", "", false},
		{"a header that nobody vouches for", nil, direct, "198.51.100.1", direct, "198.51.100.2", true},
		{"a header from this machine", nil, "127.0.0.1:1", "198.51.100.1", "127.0.0.1:1", "198.51.100.2", true},
		{"a header from a private network", nil, proxy, "198.51.100.1", proxy, "198.51.100.2", true},
		{"a header from somebody who is no proxy", proxies, direct, "198.51.100.1", direct, "198.51.100.2", true},
		{"a header from this machine, which is no proxy", proxies, "127.0.0.1:1", "198.51.100.1", "127.0.0.1:1", "198.51.100.2", true},
		{"a header from a network that is private and no proxy", proxies, "192.168.0.1:1", "198.51.100.1", "192.168.0.1:1", "198.51.100.2", true},
		{"a header from a neighbour who is no proxy", proxies, "169.254.0.1:1", "198.51.100.1", "169.254.0.1:1", "198.51.100.2", true},
		{"clients of a proxy", proxies, proxy, "198.51.100.1", proxy, "198.51.100.2", false},
		{"one client of two proxies", proxies, proxy, "198.51.100.1", "[2001:db8:ffff::1]:1", "198.51.100.1", true},
		{"clients of a proxy that writes their ports", proxies, proxy, "198.51.100.1:4711", proxy, "198.51.100.2:4711", false},
		{"clients of IPv6 of a proxy that writes their ports", proxies, proxy, "[2001:db8::1]:4711", proxy, "[2001:db8:0:1::1]:4711", false},
		{"a client from two ports, through two proxies", proxies, proxy, "198.51.100.1:4711, 10.0.0.2:80", proxy, "198.51.100.1:4712", true},
		{"a client through two proxies", proxies, proxy, "198.51.100.1, 10.0.0.2", proxy, "198.51.100.1", true},
		{"a client that makes addresses up", proxies, proxy, "203.0.113.1, 198.51.100.1", proxy, "203.0.113.2, 198.51.100.1", true},
		{"a client that makes proxies up", proxies, proxy, "203.0.113.1, 10.0.0.9, 198.51.100.1", proxy, "203.0.113.2, 10.0.0.9, 198.51.100.1", true},
		{"a client that writes nonsense", proxies, proxy, "1, 198.51.100.1", proxy, "2, 198.51.100.1", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := testConfig()
				c.TrustedProxies = tt.proxies
				s := New(c)
				exhaust(t, s, tt.from, tt.forwarded)
				want := map[bool]int{true: 42900, false: 40101}[tt.same]
				if got := attempt(t, s, tt.thenFrom, tt.thenForward, "made-up"); got != want {
					t.Errorf("after too many failures from %s for %q, one from %s for %q: answer %d, want %d",
						tt.from, tt.forwarded, tt.thenFrom, tt.thenForward, got, want)
				}
			})
		})
	}
}

func TestAnOutageIsNoFailureOfTheClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.Tokens = fakeTokens(func(context.Context, string) (auth.Principal, error) { return auth.Principal{}, plant.ErrUnavailable })
		s := New(c)
		for range 2 * failuresAtOnce {
			if got := attempt(t, s, "192.0.2.1:1111", "", carol); got != 50300 {
				t.Errorf("answer %d, want 50300", got)
			}
		}
	})
}

func TestFailuresAreForgotten(t *testing.T) {
	t.Parallel()
	f := newFailures()
	for i := range 3 * limitedClients {
		f.note(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
	}
	if got := f.limiters.Len(); got != limitedClients {
		t.Errorf("%d addresses are kept in mind, want %d", got, limitedClients)
	}
}
