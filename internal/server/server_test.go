package server

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

func TestEachOutcomeHasItsAnswer(t *testing.T) {
	t.Parallel()
	midnight := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // in a synctest bubble
	replayed := plant.Result{Replayed: true}
	const recorded = "use a new key to try again"
	tests := []struct {
		name     string
		result   plant.Result
		err      error
		want     int
		replayed string
		mentions string // in the message
		after    string // Retry-After
	}{
		{name: "deleted", want: 204},
		{name: "replayed", result: replayed, want: 204, replayed: "true"},
		{name: "never existed", err: plant.ErrNotFound, want: 40401},
		{name: "never existed, recorded", result: replayed, err: plant.ErrNotFound, want: 40401, replayed: "true", mentions: recorded},
		{name: "referred to", err: &plant.ReferencedError{Table: "order_items", Cause: errDriver}, want: 40900, mentions: `Rows of table "order_items" refer to this plant, or to rows that would be deleted with it: remove them. Then send the request with a new Idempotency-Key.`},
		{name: "referred to, recorded", result: replayed, err: &plant.ReferencedError{}, want: 40900, replayed: "true", mentions: "with it: remove them. This is the recorded answer for this Idempotency-Key: " + recorded},
		{name: "a constraint", err: &plant.StoreRuleError{Constraint: "in_season", Cause: errDriver}, want: 40901, mentions: `the constraint "in_season"`},
		{name: "unavailable", err: plant.ErrUnavailable, want: 50300, mentions: "This request deleted nothing"},
		{name: "over budget, for a part of a second", err: &plant.OverBudgetError{Until: midnight.Add(89*time.Second + 1)}, want: 42901, mentions: "until 2000-01-01T00:01:30Z", after: "90"},
		{name: "over budget, to the second", err: &plant.OverBudgetError{Until: midnight.Add(90 * time.Second)}, want: 42901, mentions: "until 2000-01-01T00:01:30Z", after: "90"},
		{name: "unknown", err: fmt.Errorf("%w: %w", plant.ErrUnknown, plant.ErrUnavailable), want: 50400, mentions: "Idempotency-Key of this answer"},
		{name: "deadline of unknown origin", err: context.DeadlineExceeded, want: 50000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := testConfig()
			c.Plants = fakePlants(func(context.Context, plant.Deletion) (plant.Result, error) {
				if tt.err != nil {
					return tt.result, fmt.Errorf("delete: %w: %w", tt.err, errDriver)
				}
				return tt.result, nil
			})
			var got answer
			synctest.Test(t, func(t *testing.T) { got = New(c).ask(t, del("Idempotency-Key: k1")) })
			if got.code() != tt.want {
				t.Errorf("answer %d, want %d", got.code(), tt.want)
			}
			if got := got.header.Get("Idempotency-Replayed"); got != tt.replayed {
				t.Errorf("Idempotency-Replayed: %q, want %q", got, tt.replayed)
			}
			if after := got.header.Get("Retry-After"); tt.after != "" && after != tt.after {
				t.Errorf("Retry-After %s, want %s", after, tt.after)
			}
			if key := got.header.Get("Idempotency-Key"); (key == "k1") != (tt.want >= 50000) {
				t.Errorf("Idempotency-Key of the answer: %q, want it with every 5xx", key)
			}
			if !strings.Contains(got.error.Message, tt.mentions) {
				t.Errorf("message %q, want %q in it", got.error.Message, tt.mentions)
			}
		})
	}
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name      string
		headers   []string
		want      int
		challenge string
	}{
		{"good", []string{asAlice}, 204, ""},
		{"missing", nil, 40100, `Bearer realm="plantstore"`},
		{"sent twice, once good", []string{asAlice, "Authorization: Basic " + secret}, 40000, `Bearer realm="plantstore", error="invalid_request"`},
		{"unknown", []string{"Authorization: Bearer mallory" + secret}, 40101, `Bearer realm="plantstore", error="invalid_token"`},
		{"scope missing", []string{asBob}, 40300, `Bearer realm="plantstore", error="insufficient_scope", scope="plants:delete"`},
		// A token that cannot be checked is not 401.
		{"no database", []string{"Authorization: Bearer unavailable"}, 50300, ""},
		{"no keys", []string{"Authorization: Bearer keys"}, 50303, ""},
		{"bad SQL", []string{"Authorization: Bearer bug"}, 50000, ""},
	}
	c := testConfig()
	known := c.Tokens
	c.Tokens = fakeTokens(func(ctx context.Context, token string) (auth.Principal, error) {
		if err := map[string]error{"unavailable": plant.ErrUnavailable, "keys": auth.ErrKeysUnknown, "bug": errDriver}[token]; err != nil {
			return auth.Principal{}, fmt.Errorf("%w: %w", err, errDriver)
		}
		return known.Authenticate(ctx, token)
	})
	s := New(c)
	for _, tt := range tests {
		got := s.ask(t, request{method: "DELETE", target: "/plants/1", headers: tt.headers})
		if challenge := got.header.Get("WWW-Authenticate"); got.code() != tt.want || challenge != tt.challenge {
			t.Errorf("%s: answer %d with WWW-Authenticate %q, want %d with %q", tt.name, got.code(), challenge, tt.want, tt.challenge)
		}
	}
}

func TestRequestChecksRunInOrder(t *testing.T) {
	t.Parallel()
	// Each request also has the faults of all later requests in the list.
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
	s := New(c)
	for _, tt := range tests {
		if got := s.ask(t, tt.q).code(); got != tt.want {
			t.Errorf("%s: answer %d, want %d", tt.name, got, tt.want)
		}
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

func TestPreconditionHeaders(t *testing.T) {
	t.Parallel()
	for headers, want := range map[string]int{
		`If-Match: "v7"`: 41200, `If-Match: W/"v7"`: 41200, `If-Match: "v7", "v8"`: 41200, "If-Match: *\r\nIf-Match: \"v7\"": 41200, "If-Match:": 41200, "If-Match: v7": 41200,
		"If-Match: *": 204, "If-None-Match: *": 41200, "If-None-Match: \"v7\"\r\nIf-None-Match: *": 41200, `If-None-Match: "v7", *`: 41200,
		`If-None-Match: "v7"`: 204, `If-None-Match: "v7", W/"v8*"`: 204, "If-Unmodified-Since: Tue, 24 Nov 2026 00:00:00 GMT": 204,
	} {
		c, deletions := recorder()
		code := New(c).ask(t, del(headers)).code()
		if code != want || len(deletions) != map[int]int{204: 1}[want] {
			t.Errorf("%q: answer %d and %d deletions, want %d", headers, code, len(deletions), want)
		}
	}
}

func TestDeletionHasTheRequestsValues(t *testing.T) {
	t.Parallel()
	c, deletions := recorder()
	s := New(c)
	s.ask(t, request{method: "DELETE", target: "/plants/-42?id=43", headers: []string{asAlice, "Idempotency-Key: k1", "X-Request-Id: r1"}})
	want := plant.Deletion{Plant: -42, Principal: "alice", RequestID: "r1", Key: "k1", KeySent: true, Budget: plant.Budget{Most: 500, Period: time.Hour}}
	got := <-deletions
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("deletion (-want +got):\n%s", diff)
	}
	seen := map[string]bool{"": true, "r1": true}
	for range 2 {
		s.ask(t, del("X-Request-Id: r1"))
		d := <-deletions
		if seen[d.Key] || d.KeySent {
			t.Errorf("deletion without a key: %+v, want a new one that the client did not send", d)
		}
		seen[d.Key] = true
	}
}

// The router must not turn a path into another id than the one in it.
func TestPlantIDInThePath(t *testing.T) {
	t.Parallel()
	s := New(testConfig())
	for id, want := range map[string]int{ // plant.ParseID has its own test
		"0": 204, "-9223372036854775808": 204, "1?x=y": 204, "": 40400,
		"%31": 40001, "%00": 40001, "1%00": 40001, "1/": 40001, "1/2": 40001, "/1": 40001, "../1": 40001, "1;x": 40001, strings.Repeat("1", 5000): 40001,
	} {
		if got := s.ask(t, request{method: "DELETE", target: "/plants/" + id, headers: []string{asAlice}}).code(); got != want {
			t.Errorf("DELETE /plants/%.30s: answer %d, want %d", id, got, want)
		}
	}
}

func TestIdempotencyKeyHeader(t *testing.T) {
	t.Parallel()
	long, visible := strings.Repeat("k", 255), "!#$%&'()*+,-./09:;<=>?@AZ[\\]^_az{|}~\""
	for sent, want := range map[string]string{ // empty: 40002
		"k": "k", visible: visible, `"k-1"`: "k-1", `"`: `"`, `"k`: `"k`, "  k  ": "k", long: long, `"` + long + `"`: long, "order.17.v2": "order.17.v2",
		"": "", `""`: "", long + "k": "", "a b": "", `" k"`: "", "a\tb": "", "clé": "", "cl\xe9": "", "a\r\nIdempotency-Key: b": "", "a\r\nIdempotency-Key: a": "",
		auth.NewToken(): "", "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJzaG9wIn0.c2ln": "",
	} {
		c, deletions := recorder()
		code := New(c).ask(t, del("Idempotency-Key: "+sent)).code()
		if want == "" {
			if code != 40002 || len(deletions) > 0 {
				t.Errorf("%q: answer %d and %d deletions, want 40002 and none", sent, code, len(deletions))
			}
		} else if code != 204 || (<-deletions).Key != want {
			t.Errorf("%q: answer %d, want 204 with the key %q", sent, code, want)
		}
	}
}

var uuidV7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func TestRequestIDHeader(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("r", 128)
	c, deletions := recorder()
	s := New(c)
	seen := make(map[string]bool)
	for sent, want := range map[string]string{ // empty: a new one
		"azAZ09._-": "azAZ09._-", "r": "r", long: long,
		"": "", long + "r": "", "a b": "", `"a"`: "", "a\tb": "", "é": "", "a\r\nX-Request-Id: a": "", auth.NewToken(): "",
	} {
		got := s.ask(t, del("X-Request-Id: "+sent)).header.Get("X-Request-Id")
		if recorded := (<-deletions).RequestID; recorded != got {
			t.Errorf("%q: X-Request-Id %q, but %q on the deletion", sent, got, recorded)
		}
		if want != "" && got != want || want == "" && (!uuidV7.MatchString(got) || seen[got]) {
			t.Errorf("%q: X-Request-Id %q, want %q or, if that is empty, a new UUIDv7", sent, got, want)
		}
		seen[got] = true
	}
	if got := s.ask(t, request{method: "GET", target: "/nowhere", headers: []string{"X-Request-Id: r1"}}).header.Get("X-Request-Id"); got != "r1" {
		t.Errorf("X-Request-Id %q of an error, want r1", got)
	}
}

func TestRoutesAndMethods(t *testing.T) {
	t.Parallel()
	s := New(testConfig())
	for want, requests := range map[string][]string{
		"200 ": {"GET /openapi.yaml", "HEAD /openapi.yaml", "GET /docs", "HEAD /docs", "GET /docs/start.js", "HEAD /docs/start.js"},
		"40400 ": {"GET /docs/swagger-ui.js", "GET /docs/../openapi.yaml", "GET /docs/", "GET /", "DELETE /", "DELETE /plants", "DELETE /plants/", "DELETE //plants/1",
			"DELETE /Plants/1", "DELETE /api/plants/1", "OPTIONS /nowhere", "OPTIONS *", "CONNECT plants.example:80", "GET /metrics"},
		"40500 DELETE": {"GET /plants/1", "POST /plants/1", "PUT /plants/1", "PATCH /plants/1", "OPTIONS /plants/1", "TRACE /plants/1", "CONNECT /plants/1",
			"delete /plants/1", "PRUNE /plants/1", "echo_route_not_found /plants/1", "GET /plants/x"},
		"405 DELETE":      {"HEAD /plants/1"},
		"40500 GET, HEAD": {"DELETE /openapi.yaml", "OPTIONS /openapi.yaml", "POST /docs", "POST /docs/nowhere"},
		"40100 ":          {"DELETE http://elsewhere.example/plants/1"},
	} {
		for _, line := range requests {
			method, target, _ := strings.Cut(line, " ")
			a := s.ask(t, request{method: method, target: target}) // without a token
			if got := fmt.Sprint(a.code(), " ", a.header.Get("Allow")); got != want {
				t.Errorf("%s: code and Allow %q, want %q", line, got, want)
			}
		}
	}
}

func TestRequestBodyIsLimited(t *testing.T) {
	t.Parallel()
	s := New(testConfig())
	for _, tt := range []struct {
		header, body string
		want         int
	}{
		{"Content-Length: 2", "{}", 204},
		{"Transfer-Encoding: chunked", "2\r\n{}\r\n0\r\n\r\n", 204},
		{"Transfer-Encoding: chunked", "xyz\r\n", 204}, // not as announced
		{"Content-Length: 4096", strings.Repeat(" ", 4096), 204},
		{"Content-Length: 4097", strings.Repeat(" ", 4097), 41300},
		{"Transfer-Encoding: chunked", "1001\r\n" + strings.Repeat(" ", 4097) + "\r\n0\r\n\r\n", 41300},
		{"Transfer-Encoding: chunked", strings.Repeat("400\r\n"+strings.Repeat(" ", 1024)+"\r\n", 5), 41300}, // without end
	} {
		q := del(tt.header)
		q.body = tt.body
		if got := s.ask(t, q).code(); got != tt.want {
			t.Errorf("%s, %.10q: answer %d, want %d", tt.header, tt.body, got, tt.want)
		}
	}
}

func TestDeletionOutlivesItsClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var ctx context.Context
		c := testConfig()
		c.Plants = fakePlants(func(given context.Context, _ plant.Deletion) (plant.Result, error) {
			ctx = given
			<-release
			return plant.Result{}, nil
		})
		s := run(t, c)
		conn := s.public.dial(t)
		if _, err := conn.Write([]byte(del().String())); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if deadline, _ := ctx.Deadline(); time.Until(deadline) != c.RequestTimeout {
			t.Errorf("deadline of the deletion in %s, want %s", time.Until(deadline), c.RequestTimeout)
		}
		conn.Close()
		synctest.Wait()
		if err := ctx.Err(); err != nil {
			t.Errorf("context of the deletion when its client hung up: %v, want it to go on", err)
		}
		close(release)
	})
}
