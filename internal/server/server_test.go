package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

func TestOutcomes(t *testing.T) {
	t.Parallel()
	deletedAt := time.Date(2026, 11, 20, 10, 30, 0, 0, time.FixedZone("CET", 3600))
	tests := []struct {
		name     string
		result   plant.Result
		err      error
		want     int
		replayed string
		mentions string // in the message
	}{
		{name: "deleted", want: 204},
		{name: "replayed", result: plant.Result{Replayed: true}, want: 204, replayed: "true"},
		{name: "never existed", err: plant.ErrNotFound, want: 40401},
		{name: "deleted earlier", err: &plant.DeletedEarlierError{At: deletedAt}, want: 40402, mentions: "2026-11-20T09:30:00Z"},
		{name: "referred to", err: &plant.ReferencedError{Table: "order_items"}, want: 40900, mentions: `"order_items"`},
		{name: "a rule of the store's own", err: plant.ErrStoreRule, want: 40901, mentions: "not deleted"},
		{name: "hindered", err: plant.ErrHindered, want: 50304, mentions: "This request deleted nothing; an earlier one with the same Idempotency-Key may have"},
		{name: "out of reach", err: plant.ErrUnavailable, want: 50300, mentions: "This request deleted nothing; what an earlier one with the same Idempotency-Key did is not known"},
		{name: "locked", err: plant.ErrBusy, want: 50301, mentions: "This request deleted nothing; an earlier one with the same Idempotency-Key may have"},
		{name: "over budget", err: &plant.OverBudgetError{}, want: 42901, mentions: "This request deleted nothing"},
		{name: "over budget, for a part of a second", err: &plant.OverBudgetError{Until: time.Date(2026, 11, 20, 10, 29, 59, 1, time.UTC)}, want: 42901, mentions: "until 2026-11-20T10:30:00Z"},
		{name: "over budget, to the second", err: &plant.OverBudgetError{Until: time.Date(2026, 11, 20, 10, 30, 0, 0, time.UTC)}, want: 42901, mentions: "until 2026-11-20T10:30:00Z"},
		{name: "over budget, by a cascade", err: &plant.OverBudgetError{Left: 7}, want: 42901, mentions: "more than the 7"},
		{name: "overloaded", err: plant.ErrOverloaded, want: 50302, mentions: "This request deleted nothing; an earlier one with the same Idempotency-Key may have"},
		{name: "unknown", err: fmt.Errorf("%w: %w", plant.ErrUnknown, plant.ErrUnavailable), want: 50400, mentions: "Idempotency-Key of this answer"},
		{name: "a fault of ours", err: errors.New("permission denied"), want: 50000, mentions: "X-Request-Id"},
		{name: "deadline of unknown origin", err: context.DeadlineExceeded, want: 50000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := testConfig()
			c.Plants = fakePlants(func(context.Context, plant.Deletion) (plant.Result, error) {
				if tt.err != nil {
					return plant.Result{}, fmt.Errorf("delete: %w: %w", tt.err, errDriver)
				}
				return tt.result, nil
			})
			got := start(t, c).ask(t, del())
			if got.code() != tt.want {
				t.Errorf("answer %d, want %d", got.code(), tt.want)
			}
			if got := got.header.Get("Idempotency-Replayed"); got != tt.replayed {
				t.Errorf("Idempotency-Replayed: %q, want %q", got, tt.replayed)
			}
			if key := got.header.Get("Idempotency-Key"); (key != "") != (tt.want >= 50000) {
				t.Errorf("Idempotency-Key of the answer: %q, want one with every 5xx", key)
			}
			if !strings.Contains(got.error.Message, tt.mentions) {
				t.Errorf("message %q, want it to mention %s", got.error.Message, tt.mentions)
			}
		})
	}
}

func TestPanicIsAnError(t *testing.T) {
	t.Parallel()
	c := testConfig()
	c.Plants = fakePlants(func(context.Context, plant.Deletion) (plant.Result, error) { panic(errDriver) })
	s := start(t, c)
	for range 2 { // the second shows that the server survived, and freed its slot
		if got, want := s.ask(t, del()).code(), 50000; got != want {
			t.Errorf("answer %d, want %d", got, want)
		}
	}
}

func TestErrorIsPlainJSON(t *testing.T) {
	t.Parallel()
	s := start(t, testConfig())
	_, _, body := exchangeRaw(t, dial(t, s.public), request{method: "DELETE", target: "/plants/1"})
	want := `{"error":40100,"message":"This needs a bearer token: send \"Authorization: Bearer <token>\"."}` + "\n"
	if got := string(body); got != want {
		t.Errorf("body %q, want %q", got, want)
	}
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	const (
		invalidRequest = `Bearer realm="plantstore", error="invalid_request"`
		noToken        = `Bearer realm="plantstore"`
		invalidToken   = `Bearer realm="plantstore", error="invalid_token"`
		noScope        = `Bearer realm="plantstore", error="insufficient_scope", scope="plants:delete"`
	)
	tests := []struct {
		name      string
		headers   []string
		want      int
		challenge string
	}{
		{"good", []string{asAlice}, 204, ""},
		{"scheme in another case", []string{"authorization: bEaReR alice" + secret}, 204, ""},
		{"missing", nil, 40100, noToken},
		{"another scheme", []string{"Authorization: Basic " + secret}, 40100, noToken},
		{"token in another header", []string{"X-Api-Key: alice" + secret}, 40100, noToken},
		{"empty", []string{"Authorization:"}, 40000, invalidRequest},
		{"no token", []string{"Authorization: Bearer"}, 40000, invalidRequest},
		{"two tokens", []string{asAlice + " bob" + secret}, 40000, invalidRequest},
		{"two tokens with a comma", []string{asAlice + ", Bearer bob" + secret}, 40000, invalidRequest},
		{"not ASCII", []string{"Authorization: Bearer ä" + secret}, 40000, invalidRequest},
		{"sent twice", []string{asAlice, asAlice}, 40000, invalidRequest},
		{"sent twice, once good", []string{asAlice, "Authorization: Basic " + secret}, 40000, invalidRequest},
		{"unknown", []string{"Authorization: Bearer mallory" + secret}, 40101, invalidToken},
		{"scope missing", []string{asBob}, 40300, noScope},
	}
	s := start(t, testConfig())
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := s.ask(t, request{method: "DELETE", target: "/plants/1", headers: tt.headers})
			if got.code() != tt.want {
				t.Errorf("answer %d, want %d", got.code(), tt.want)
			}
			if got := got.header.Get("WWW-Authenticate"); got != tt.challenge {
				t.Errorf("WWW-Authenticate: %q, want %q", got, tt.challenge)
			}
		})
	}
}

func TestTokenThatCannotBeLookedUpIsNot401(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]int{
		plant.ErrUnavailable:  50300,
		plant.ErrOverloaded:   50302,
		errors.New("bad SQL"): 50000,
	} {
		c := testConfig()
		c.Tokens = fakeTokens(func(context.Context, string) (auth.Principal, error) {
			return auth.Principal{}, fmt.Errorf("%w: %w", err, errDriver)
		})
		if got := start(t, c).ask(t, del()).code(); got != want {
			t.Errorf("%v: answer %d, want %d", err, got, want)
		}
	}
}

func TestOrderOfChecks(t *testing.T) {
	t.Parallel()
	// Each request has every fault that a later one has.
	const badKey, badLength, badMatch = "Idempotency-Key: a b", "Content-Length: 5000", `If-Match: "v7"`
	body := strings.Repeat(" ", 5000)
	tests := []struct {
		name string
		q    request
		want int
	}{
		{"path", request{"PUT", "/plant/x", []string{"Authorization:", badKey, badLength}, body}, 40400},
		{"method", request{"PUT", "/plants/x", []string{"Authorization:", badKey, badLength}, body}, 40500},
		{"credentials", request{"DELETE", "/plants/x", []string{"Authorization:", badKey, badLength}, body}, 40000},
		{"token", request{"DELETE", "/plants/x", []string{"Authorization: Bearer x", badKey, badLength}, body}, 40101},
		{"scope", request{"DELETE", "/plants/x", []string{asBob, badKey, badLength}, body}, 40300},
		{"size", request{"DELETE", "/plants/x", []string{asAlice, badKey, badLength}, body}, 41300},
		{"key", request{"DELETE", "/plants/x", []string{asAlice, badKey, badMatch}, ""}, 40002},
		{"id", request{"DELETE", "/plants/x", []string{asAlice, badMatch}, ""}, 40001},
		{"precondition", request{"DELETE", "/plants/1", []string{asAlice, badMatch}, ""}, 41200},
	}
	c := testConfig()
	c.Plants = fakePlants(func(_ context.Context, d plant.Deletion) (plant.Result, error) {
		t.Errorf("deletion of %d was tried, want none", d.Plant)
		return plant.Result{}, nil
	})
	s := start(t, c)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := s.ask(t, tt.q).code(); got != tt.want {
				t.Errorf("answer %d, want %d", got, tt.want)
			}
		})
	}
}

// recorder is a configuration that hands the deletions over.
func recorder() (Config, <-chan plant.Deletion) {
	deletions := make(chan plant.Deletion, 1)
	c := testConfig()
	c.Plants = fakePlants(func(_ context.Context, d plant.Deletion) (plant.Result, error) {
		deletions <- d
		return plant.Result{}, nil
	})
	return c, deletions
}

func TestPreconditions(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		headers []string
		want    int
	}{
		{"a version", []string{`If-Match: "v7"`}, 41200},
		{"a weak version", []string{`If-Match: W/"v7"`}, 41200},
		{"several versions", []string{`If-Match: "v7", "v8"`}, 41200},
		{"a version in a second line", []string{"If-Match: *", `If-Match: "v7"`}, 41200},
		{"nothing", []string{"If-Match:"}, 41200},
		{"not a list", []string{"If-Match: v7"}, 41200},
		{"any version", []string{"If-Match: *"}, 204},
		{"no version", []string{"If-None-Match: *"}, 41200},
		{"no version, in a second line", []string{`If-None-Match: "v7"`, "If-None-Match: *"}, 41200},
		{"no version, in a list", []string{`If-None-Match: "v7", *`}, 41200},
		{"no version, with an empty element", []string{"If-None-Match: *,"}, 41200},
		{"another version", []string{`If-None-Match: "v7"`}, 204},
		{"other versions", []string{`If-None-Match: "v7", W/"v8*"`}, 204},
		{"a date, which plants have none of", []string{"If-Unmodified-Since: Tue, 24 Nov 2026 00:00:00 GMT"}, 204},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, deletions := recorder()
			code := start(t, c).ask(t, del(tt.headers...)).code()
			if code != tt.want || len(deletions) != map[int]int{204: 1}[tt.want] {
				t.Errorf("%q: answer %d and %d deletions, want %d", tt.headers, code, len(deletions), tt.want)
			}
		})
	}
}

func TestDeletionHasWhatTheRequestSaid(t *testing.T) {
	t.Parallel()
	c, deletions := recorder()
	s := start(t, c)
	s.ask(t, request{method: "DELETE", target: "/plants/-42?id=43", headers: []string{asAlice, "Idempotency-Key: k1", "X-Request-Id: r1"}})
	got := <-deletions
	if age := time.Since(got.Came); age < 0 || age > time.Hour {
		t.Errorf("the request came %s ago, want now", age)
	}
	want := plant.Deletion{Plant: -42, Principal: "alice", RequestID: "r1", Key: "k1", KeySent: true, Came: got.Came,
		Budget: plant.Budget{Most: 500, Period: time.Hour}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("deletion (-want +got):\n%s", diff)
	}
	s.ask(t, request{method: "DELETE", target: "/plants/1", headers: []string{asAlice}})
	if d := <-deletions; d.Key == "" || d.KeySent {
		t.Errorf("deletion without a key: %+v, want one that the client did not send", d)
	}
}

func TestID(t *testing.T) {
	t.Parallel()
	tests := map[string]int{
		"0":                       204,
		"1":                       204,
		"-1":                      204,
		"9223372036854775807":     204,
		"-9223372036854775808":    204,
		"1?x=y":                   204,
		"+1":                      40001,
		"01":                      40001,
		"-0":                      40001,
		"00":                      40001,
		"-":                       40001,
		"1.0":                     40001,
		"1e3":                     40001,
		"1_000":                   40001,
		"0x1":                     40001,
		"abc":                     40001,
		"%31":                     40001,
		"%2B1":                    40001,
		"%00":                     40001,
		"1%00":                    40001,
		"%20":                     40001,
		"1%20":                    40001,
		"%201":                    40001,
		"1%0A":                    40001,
		"1/":                      40001,
		"1/2":                     40001,
		"/1":                      40001,
		"../1":                    40001,
		"1;x":                     40001,
		"1,2":                     40001,
		"%D9%A1":                  40001, // Arabic-Indic one
		"١":                       40001, // the same, not escaped
		"%EF%BC%91":               40001, // fullwidth one
		"9223372036854775808":     40001,
		"-9223372036854775809":    40001,
		strings.Repeat("1", 5000): 40001,
		"":                        40400,
	}
	s := start(t, testConfig())
	for id, want := range tests {
		t.Run(id[:min(len(id), 20)], func(t *testing.T) {
			t.Parallel()
			if got := s.ask(t, request{method: "DELETE", target: "/plants/" + id, headers: []string{asAlice}}).code(); got != want {
				t.Errorf("DELETE /plants/%s: answer %d, want %d", id, got, want)
			}
		})
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	const header = "Idempotency-Key: "
	long := strings.Repeat("k", 255)
	tests := []struct {
		name    string
		headers []string
		want    string // empty: refused
	}{
		{"one character", []string{header + "k"}, "k"},
		{"every visible character", []string{header + `!#$%&'()*+,-./09:;<=>?@AZ[\]^_az{|}~"`}, `!#$%&'()*+,-./09:;<=>?@AZ[\]^_az{|}~"`},
		{"quoted", []string{header + `"k-1"`}, "k-1"},
		{"one quote", []string{header + `"`}, `"`},
		{"quote at the front", []string{header + `"k`}, `"k`},
		{"space around", []string{header + "  k  "}, "k"},
		{"255 characters", []string{header + long}, long},
		{"255 characters, quoted", []string{header + `"` + long + `"`}, long},
		{"two dots", []string{header + "order.17.v2"}, "order.17.v2"},
		{"empty", []string{header}, ""},
		{"empty, quoted", []string{header + `""`}, ""},
		{"256 characters", []string{header + long + "k"}, ""},
		{"space inside", []string{header + "a b"}, ""},
		{"space inside quotes", []string{header + `" k"`}, ""},
		{"tab inside", []string{header + "a\tb"}, ""},
		{"not ASCII", []string{header + "clé"}, ""},
		{"not UTF-8", []string{header + "cl\xe9"}, ""},
		{"sent twice", []string{header + "a", header + "b"}, ""},
		{"sent twice, the same", []string{header + "a", header + "a"}, ""},
		{"a token", []string{header + auth.NewToken()}, ""},
		{"a token without its prefix", []string{header + auth.NewToken()[4:]}, ""},
		{"a JWT", []string{header + "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJzaG9wIn0.c2ln"}, ""},
		{"no token, as its checksum is wrong", []string{header + "pst_" + strings.Repeat("k", 36)}, "pst_" + strings.Repeat("k", 36)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, deletions := recorder()
			code := start(t, c).ask(t, del(tt.headers...)).code()
			if tt.want == "" {
				if code != 40002 || len(deletions) > 0 {
					t.Errorf("%q: answer %d and %d deletions, want 40002 and none", tt.headers, code, len(deletions))
				}
				return
			}
			if code != 204 {
				t.Fatalf("%q: answer %d, want 204", tt.headers, code)
			}
			if got := (<-deletions).Key; got != tt.want {
				t.Errorf("%q: key %q, want %q", tt.headers, got, tt.want)
			}
		})
	}
}

func TestIdempotencyKeyIsMadeWhereThereIsNone(t *testing.T) {
	t.Parallel()
	c, deletions := recorder()
	s := start(t, c)
	seen := map[string]bool{"": true, "r1": true}
	for range 10 {
		s.ask(t, del("X-Request-Id: r1"))
		key := (<-deletions).Key
		if seen[key] {
			t.Errorf("key %q is empty, the request's id, or was used before", key)
		}
		seen[key] = true
	}
}

var uuidV7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func TestRequestID(t *testing.T) {
	t.Parallel()
	const header = "X-Request-Id: "
	long := strings.Repeat("r", 128)
	tests := []struct {
		name    string
		headers []string
		want    string // empty: a new one
	}{
		{"every character", []string{header + "azAZ09._-"}, "azAZ09._-"},
		{"128 characters", []string{header + long}, long},
		{"absent", nil, ""},
		{"empty", []string{header}, ""},
		{"129 characters", []string{header + long + "r"}, ""},
		{"space", []string{header + "a b"}, ""},
		{"quoted", []string{header + `"a"`}, ""},
		{"control", []string{header + "a\tb"}, ""},
		{"not ASCII", []string{header + "é"}, ""},
		{"sent twice", []string{header + "a", header + "a"}, ""},
	}
	c, deletions := recorder()
	s := start(t, c)
	seen := make(map[string]bool)
	for _, tt := range tests {
		got := s.ask(t, del(tt.headers...)).header.Get("X-Request-Id")
		if recorded := (<-deletions).RequestID; recorded != got {
			t.Errorf("%s: X-Request-Id %q, but %q on the deletion", tt.name, got, recorded)
		}
		switch {
		case tt.want != "" && got != tt.want:
			t.Errorf("%s: X-Request-Id %q, want %q", tt.name, got, tt.want)
		case tt.want == "" && (!uuidV7.MatchString(got) || seen[got]):
			t.Errorf("%s: X-Request-Id %q, want a new UUIDv7", tt.name, got)
		}
		seen[got] = true
	}
	refused := s.ask(t, request{method: "GET", target: "/nowhere", headers: []string{"X-Request-Id: r1"}})
	if got, want := refused.header.Get("X-Request-Id"), "r1"; got != want {
		t.Errorf("X-Request-Id %q of an error, want %q", got, want)
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		method, target string
		want           int
		allow          string
	}{
		{"GET", "/openapi.yaml", 200, ""},
		{"HEAD", "/openapi.yaml", 200, ""},
		{"GET", "/docs", 200, ""},
		{"HEAD", "/docs", 200, ""},
		{"GET", "/docs/start.js", 200, ""},
		{"HEAD", "/docs/start.js", 200, ""},
		{"GET", "/docs/swagger-ui.js", 40400, ""},
		{"GET", "/docs/../openapi.yaml", 40400, ""},
		{"GET", "/docs/", 40400, ""},
		{"GET", "/", 40400, ""},
		{"DELETE", "/", 40400, ""},
		{"DELETE", "/plants", 40400, ""},
		{"DELETE", "/plants/", 40400, ""},
		{"DELETE", "//plants/1", 40400, ""},
		{"DELETE", "/Plants/1", 40400, ""},
		{"DELETE", "/api/plants/1", 40400, ""},
		{"OPTIONS", "/nowhere", 40400, ""},
		{"OPTIONS", "*", 40400, ""},
		{"CONNECT", "plants.example:80", 40400, ""},
		{"GET", "/metrics", 40400, ""},
		{"GET", "/plants/1", 40500, "DELETE"},
		{"HEAD", "/plants/1", 405, "DELETE"},
		{"POST", "/plants/1", 40500, "DELETE"},
		{"PUT", "/plants/1", 40500, "DELETE"},
		{"PATCH", "/plants/1", 40500, "DELETE"},
		{"OPTIONS", "/plants/1", 40500, "DELETE"},
		{"TRACE", "/plants/1", 40500, "DELETE"},
		{"CONNECT", "/plants/1", 40500, "DELETE"},
		{"delete", "/plants/1", 40500, "DELETE"},
		{"PRUNE", "/plants/1", 40500, "DELETE"},
		{"echo_route_not_found", "/plants/1", 40500, "DELETE"}, // means something inside Echo
		{"GET", "/plants/x", 40500, "DELETE"},
		{"DELETE", "/openapi.yaml", 40500, "GET, HEAD"},
		{"OPTIONS", "/openapi.yaml", 40500, "GET, HEAD"},
		{"POST", "/docs", 40500, "GET, HEAD"},
		{"POST", "/docs/nowhere", 40500, "GET, HEAD"},
		{"DELETE", "http://elsewhere.example/plants/1", 40100, ""},
	}
	s := start(t, testConfig())
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.target, func(t *testing.T) {
			t.Parallel()
			got := s.ask(t, request{method: tt.method, target: tt.target}) // without a token
			if got.code() != tt.want {
				t.Errorf("answer %d, want %d", got.code(), tt.want)
			}
			if got := got.header.Get("Allow"); got != tt.allow {
				t.Errorf("Allow: %q, want %q", got, tt.allow)
			}
		})
	}
}

func TestBody(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		headers []string
		body    string
		want    int
	}{
		{"empty object", []string{"Content-Length: 2", "Content-Type: application/json"}, "{}", 204},
		{"of unknown length", []string{"Transfer-Encoding: chunked"}, "2\r\n{}\r\n0\r\n\r\n", 204},
		{"largest", []string{"Content-Length: 4096"}, strings.Repeat(" ", 4096), 204},
		{"too large", []string{"Content-Length: 4097"}, strings.Repeat(" ", 4097), 41300},
		{"too large, of unknown length", []string{"Transfer-Encoding: chunked"}, "1001\r\n" + strings.Repeat(" ", 4097) + "\r\n0\r\n\r\n", 41300},
		{"too large, in pieces without end", []string{"Transfer-Encoding: chunked"}, strings.Repeat("400\r\n"+strings.Repeat(" ", 1024)+"\r\n", 5), 41300},
		{"not chunked as announced", []string{"Transfer-Encoding: chunked"}, "xyz\r\n", 204},
	}
	s := start(t, testConfig())
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			q := del(tt.headers...)
			q.body = tt.body
			if got := s.ask(t, q).code(); got != tt.want {
				t.Errorf("answer %d, want %d", got, tt.want)
			}
		})
	}
}

// A body that is announced and does not come holds up neither the deletion nor its
// answer.
func TestBodyThatNeverComes(t *testing.T) {
	t.Parallel()
	for _, announced := range []string{"Content-Length: 10", "Transfer-Encoding: chunked"} {
		synctest.Test(t, func(t *testing.T) {
			s := run(t, testConfig(), newPipeListener(), newPipeListener())
			began := time.Now()
			got := s.ask(t, del(announced))
			if took := time.Since(began); got.code() != 204 || took > bodyTimeout {
				t.Errorf("%s: answer %d after %s, want 204 within %s", announced, got.code(), took, bodyTimeout)
			}
			if got := got.header.Get("Connection"); got != "close" {
				t.Errorf("%s: Connection: %q, want close", announced, got)
			}
			s.stop(t)
		})
	}
}

// Nor does it hold up an answer that comes before the deletion, or its connection.
func TestBodyThatNeverComesOfOtherRequests(t *testing.T) {
	t.Parallel()
	for _, announced := range []string{"Content-Length: 10", "Content-Length: 4097", "Content-Length: 1000000000", "Transfer-Encoding: chunked"} {
		for want, q := range map[int]request{
			40100: {method: "DELETE", target: "/plants/1"},
			40101: {method: "DELETE", target: "/plants/1", headers: []string{"Authorization: Bearer x"}},
			40300: {method: "DELETE", target: "/plants/1", headers: []string{asBob}},
			40400: {method: "DELETE", target: "/nowhere"},
			40500: {method: "PUT", target: "/plants/1"},
			200:   {method: "GET", target: "/docs"},
		} {
			synctest.Test(t, func(t *testing.T) {
				s := run(t, testConfig(), newPipeListener(), newPipeListener())
				client, server := net.Pipe()
				defer client.Close()
				watched := &watchedConn{Conn: server, closed: make(chan struct{})}
				s.public.(*pipeListener).conns <- watched
				began := time.Now()
				q.headers = append(q.headers, announced)
				a := askOn(t, client, q)
				if took := time.Since(began); a.code() != want || took > 0 || a.header.Get("Connection") != "close" {
					t.Errorf("%s %s with %s: answer %d after %s, Connection %q; want %d at once, and close", q.method, q.target, announced, a.code(), took, a.header.Get("Connection"), want)
				}
				<-watched.closed
				if took := time.Since(began); took > lingerTimeout {
					t.Errorf("%s %s with %s: the connection is closed after %s, want %s", q.method, q.target, announced, took, lingerTimeout)
				}
			})
		}
	}
}

// A client that writes its body to the end before it reads has its answer all the same.
func TestBodyThatComesAfterTheAnswer(t *testing.T) {
	t.Parallel()
	for want, head := range map[int]string{
		401: "DELETE /plants/1 HTTP/1.1\r\n", 405: "POST /plants/1 HTTP/1.1\r\n",
		413: "DELETE /plants/1 HTTP/1.1\r\n" + asAlice + "\r\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			s := run(t, testConfig(), newPipeListener(), newPipeListener())
			conn := dial(t, s.public)
			answer := make(chan int, 1)
			go func() {
				status := 0
				if response, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
					status = response.StatusCode
				}
				answer <- status
			}()
			_, err := io.WriteString(conn, head+"Host: plants.example\r\nContent-Length: 60000\r\n\r\n")
			for range 60 {
				if err == nil {
					time.Sleep(20 * time.Millisecond)
					_, err = conn.Write(make([]byte, 1000))
				}
			}
			if status := <-answer; err != nil || status != want {
				t.Errorf("the body is written: %v, answer %d; want %d and all written", err, status, want)
			}
		})
	}
}

// Where two headers, or two versions of HTTP, disagree about where a request ends,
// what follows it on the connection may be part of it: nothing more is read (RFC
// 9112, 6.1). Go's server hides from us that there was a Content-Length.
func TestConnectionEndsWhereARequestsEndIsDoubtful(t *testing.T) {
	t.Parallel()
	const chunked = "Transfer-Encoding: chunked"
	follows := "DELETE /plants/2 HTTP/1.1\r\nHost: plants.example\r\n" + asAlice + "\r\n\r\n"
	tests := []struct {
		name, line string
		headers    []string
		body       string
		want       int
	}{
		{"both lengths", "DELETE /plants/1 HTTP/1.1", []string{asAlice, "Content-Length: 2", chunked}, "2\r\n{}\r\n0\r\n\r\n", 204},
		{"both, the other way round", "DELETE /plants/1 HTTP/1.1", []string{asAlice, chunked, "Content-Length: 2"}, "2\r\n{}\r\n0\r\n\r\n", 204},
		{"both, refused", "DELETE /plants/1 HTTP/1.1", []string{"Content-Length: 2", chunked}, "2\r\n{}\r\n0\r\n\r\n", 401},
		{"both, another route", "GET /openapi.yaml HTTP/1.1", []string{"Content-Length: 2", chunked}, "2\r\n{}\r\n0\r\n\r\n", 200},
		{"chunked in HTTP/1.0", "DELETE /plants/1 HTTP/1.0", []string{asAlice, "Connection: keep-alive", chunked}, "0\r\n\r\n", 204},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var deleted atomic.Int32
			c := testConfig()
			c.Plants = fakePlants(func(_ context.Context, d plant.Deletion) (plant.Result, error) {
				if d.Plant != 1 {
					t.Errorf("what followed the request deleted plant %d", d.Plant)
				}
				deleted.Add(1)
				return plant.Result{}, nil
			})
			conn := dial(t, start(t, c).public)
			fmt.Fprintf(conn, "%s\r\nHost: plants.example\r\n%s\r\n\r\n%s%s", tt.line, strings.Join(tt.headers, "\r\n"), tt.body, follows)
			reader := bufio.NewReader(conn)
			response, err := http.ReadResponse(reader, nil)
			if err != nil || response.StatusCode != tt.want || !response.Close {
				t.Fatalf("answer %v, %v; want %d and Connection: close", response, err, tt.want)
			}
			if _, err := io.Copy(io.Discard, response.Body); err != nil {
				t.Errorf("body of the answer: %v", err)
			}
			if rest, _ := io.ReadAll(reader); len(rest) > 0 {
				t.Errorf("after the answer comes %q, want the connection closed", rest)
			}
			if got := deleted.Load(); tt.want == 204 && got != 1 {
				t.Errorf("%d deletions, want 1", got)
			}
		})
	}
}

func TestDeletionOutlivesItsClient(t *testing.T) {
	t.Parallel()
	started, noticed, release := make(chan context.Context), make(chan struct{}), make(chan struct{})
	c := testConfig()
	c.RequestTimeout = time.Hour
	c.Plants = fakePlants(func(ctx context.Context, _ plant.Deletion) (plant.Result, error) {
		started <- ctx
		<-release
		return plant.Result{}, nil
	})
	public := New(c).Public()
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		go func() { <-r.Context().Done(); close(noticed) }()
		public.ServeHTTP(w, r)
	}))
	t.Cleanup(listener.Close)

	conn := dial(t, listener.Listener)
	fmt.Fprintf(conn, "DELETE /plants/1 HTTP/1.1\r\nHost: plants.example\r\n%s\r\n\r\n", asAlice)
	ctx := <-started
	deadline, _ := ctx.Deadline()
	if left := time.Until(deadline); left > c.RequestTimeout || left < c.RequestTimeout-time.Minute {
		t.Errorf("deadline of the deletion in %v, want %v", left, c.RequestTimeout)
	}
	conn.Close()
	<-noticed
	if err := ctx.Err(); err != nil {
		t.Errorf("context of the deletion when its client hung up: %v, want it to go on", err)
	}
	close(release)
}
