package server

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"plantstore/internal/auth"
)

// with is the deletion of plant 1 with a token.
func with(token string, headers ...string) request {
	return request{method: "DELETE", target: "/plants/1", headers: append([]string{"Authorization: Bearer " + token}, headers...)}
}

// wantRejected checks how many requests were rejected for a reason.
func (s *Server) wantRejected(t *testing.T, reason string, want int) {
	t.Helper()
	line := fmt.Sprintf(`plantstore_rejections_total{reason=%q} %d`, reason, want)
	if all := samples(t, s, "plantstore_rejections_total"); !slices.Contains(all, line) {
		t.Errorf("%q, want %s", all, line)
	}
}

// Good tokens of both kinds pass beside any number of bad ones from the same address, and
// bad ones are rejected without a pause.
func TestFailedAuthenticationsAreLimitedForEachAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.JWTs = fakeTokens(func(_ context.Context, token string) (auth.Principal, error) {
			switch token {
			case "good.jwt.x":
				return auth.Principal{Name: "jwt:shop", Scopes: []string{auth.ScopeDelete}}, nil
			case "new.key.x":
				return auth.Principal{}, auth.ErrKeysUnknown
			}
			return auth.Principal{}, auth.ErrInvalidToken
		})
		s := New(c)
		const here, there = "192.0.2.1:1111", "192.0.2.2:1111"
		expect := func(from, token string, want int) {
			t.Helper()
			a := s.askFrom(t, from, with(token))
			if a.code() != want || (a.header.Get("Retry-After") == "1") != (want == 42900 || want == 50303) {
				t.Errorf("%s from %s: answer %d with Retry-After %q, want %d", token, from, a.code(), a.header.Get("Retry-After"), want)
			}
		}
		start := time.Now()
		const burst = 20
		for range burst + 1 { // none of these is a failure
			expect(here, "alice"+secret, 204)
			expect(here, "bob"+secret, 40300)
			expect(here, "new.key.x", 50303)
		}
		for i := range burst {
			expect(here, []string{"made-up", "forged.jwt.x"}[i%2], 40101)
		}
		expect(here, "made-up", 42900)
		expect("192.0.2.1:2222", "forged.jwt.x", 42900)
		expect("[::ffff:192.0.2.1]:1111", "made-up", 42900)
		expect(here, "alice"+secret, 204)
		expect(here, "good.jwt.x", 204)
		expect(here, "bob"+secret, 40300)
		expect(there, "made-up", 40101)
		if took := time.Since(start); took != 0 {
			t.Errorf("the answers took %s, want no pause", took)
		}
		time.Sleep(time.Second)
		expect(here, "made-up", 40101)
		expect(here, "made-up", 42900)
		s.wantRejected(t, rejectedFailures, 4)
	})
}

func TestClientAddressesBehindProxies(t *testing.T) {
	t.Parallel()
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ffff::1/128")}
	const direct, proxy = "192.0.2.1:1111", "10.0.0.1:1111"
	for _, tt := range []struct {
		name      string
		proxies   []netip.Prefix
		from      string
		forwarded []string
		want      string
	}{
		{"IPv6", nil, "[2001:db8::1]:1", nil, "2001:db8::1"},
		{"a header without trusted proxies", nil, proxy, []string{"198.51.100.1"}, "10.0.0.1"},
		{"a header from a stranger", proxies, direct, []string{"198.51.100.1"}, "192.0.2.1"},
		{"a header from this machine, which is no proxy", proxies, "127.0.0.1:1", []string{"198.51.100.1"}, "127.0.0.1"},
		{"a proxy's client", proxies, proxy, []string{"198.51.100.1"}, "198.51.100.1"},
		{"a proxy's client, of IPv6", proxies, "[2001:db8:ffff::1]:1", []string{"2001:db8::7"}, "2001:db8::7"},
		{"a proxy that adds ports", proxies, proxy, []string{"[2001:db8::7]:4711"}, "2001:db8::7"},
		{"two proxies", proxies, proxy, []string{"198.51.100.1:4711, 10.0.0.2:80"}, "198.51.100.1"},
		{"two headers", proxies, proxy, []string{"198.51.100.1", "10.0.0.2"}, "198.51.100.1"},
		{"a client that makes addresses up", proxies, proxy, []string{"203.0.113.1, 10.0.0.9, 198.51.100.1"}, "198.51.100.1"},
		{"nonsense", proxies, proxy, []string{"x"}, "10.0.0.1"},
		{"nothing but proxies", proxies, proxy, []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
	} {
		q := request{method: "DELETE", target: "/plants/1"}
		for _, f := range tt.forwarded {
			q.headers = append(q.headers, "X-Forwarded-For: "+f)
		}
		r := q.http(t)
		r.RemoteAddr = tt.from
		if got := clientAddress(r, tt.proxies); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	for address, want := range map[string]string{"192.0.2.1": "192.0.2.1/32", "2001:db8::1": "2001:db8::/64", "fe80::1%eth0": "fe80::/64", "::ffff:192.0.2.1": "192.0.2.1/32", "": "invalid Prefix"} {
		if got := networkOf(address).String(); got != want {
			t.Errorf("networkOf(%q) = %s, want %s", address, got, want)
		}
	}
}

func TestRateLimitOfAPrincipal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.RateLimit = Rate{Count: 2, In: time.Minute, Burst: 4}
		s := New(c)
		const tries = 20
		for _, tt := range []struct {
			name, token string
			after       time.Duration
			want        int
		}{
			{"Alice at first", "alice", 0, 4},
			{"Alice at once again", "alice", 0, 0},
			{"Carol, who has her own limit", "carol", 0, 4},
			{"Alice after a minute", "alice", time.Minute, 2},
			{"Alice after an hour", "alice", time.Hour, 4},
		} {
			time.Sleep(tt.after)
			var passed atomic.Int32
			var group sync.WaitGroup
			for range tries {
				group.Go(func() {
					// A request that fails for a reason of its own is not counted.
					s.ask(t, request{method: "DELETE", target: "/plants/01", headers: []string{asAlice}})
					switch got := s.ask(t, with(tt.token+secret)); {
					case got.status == 204:
						passed.Add(1)
					case got.code() != 42900 || got.header.Get("Retry-After") != "30" || !strings.HasPrefix(got.error.Message, "You send more"):
						t.Errorf("%s: answer %d with Retry-After %s, want 42900 with 30", tt.name, got.code(), got.header.Get("Retry-After"))
					}
				})
			}
			group.Wait()
			if got := int(passed.Load()); got != tt.want {
				t.Errorf("%s: %d of %d requests passed, want %d", tt.name, got, tries, tt.want)
			}
		}
		s.wantRejected(t, rejectedRate, 5*tries-14)
	})
}

// At the limit, new connections wait until one is closed. A shutdown does not wait for them.
// Slow deletions still get their answers.
func TestConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const slow = 28 * time.Second // more than net/http has for reading
		c := testConfig()
		c.MaxConnections = 2
		c.RequestTimeout = slow + time.Second
		c.Plants = slowPlants(slow)
		s := run(t, c)
		start := time.Now()
		var group sync.WaitGroup
		for range 3 * c.MaxConnections {
			group.Go(func() {
				if got := send(t, s.public.dial(t), del("Connection: close")); got.status != 204 {
					t.Errorf("answer %d, want 204", got.status)
				}
			})
		}
		group.Wait()
		if took := time.Since(start); took != 3*slow {
			t.Errorf("%d requests on %d connections took %s, want %s", 3*c.MaxConnections, c.MaxConnections, took, 3*slow)
		}
		for range c.MaxConnections {
			s.public.dial(t)
		}
		s.stop(t)
	})
}
