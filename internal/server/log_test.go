package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

// logOf serves one request and returns what was logged, line by line.
func logOf(t *testing.T, c Config, q request) []map[string]any {
	t.Helper()
	var log bytes.Buffer
	c.Log = slog.New(slog.NewJSONHandler(&log, nil))
	s := start(t, c)
	s.ask(t, q)
	s.stop(t)
	if strings.Contains(log.String(), secret) {
		t.Errorf("log has a secret:\n%s", &log)
	}
	var lines []map[string]any
	for decoder := json.NewDecoder(&log); ; {
		var line map[string]any
		if err := decoder.Decode(&line); err == io.EOF {
			return lines
		} else if err != nil {
			t.Fatalf("log: %v", err)
		}
		if line["msg"] == "request" || line["msg"] == "panic" {
			lines = append(lines, line)
		}
	}
}

// A stalled is a reader of the log that takes the lines of requests once it is let.
type stalled struct {
	begun, let chan struct{}
}

func (w stalled) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(`"msg":"request"`)) {
		close(w.begun)
		<-w.let
	}
	return len(line), nil
}

// An answer is whole before it is logged, so that its client need not wait for who reads
// the log. Only its connection does.
func TestAnswersDoNotWaitForTheLog(t *testing.T) {
	t.Parallel()
	for want, q := range map[int]request{
		204:   del(),
		40100: {method: "DELETE", target: "/plants/1"},
		40400: {method: "HEAD", target: "/nowhere"},
		200:   {method: "GET", target: "/docs"},
	} {
		synctest.Test(t, func(t *testing.T) {
			log := stalled{make(chan struct{}), make(chan struct{})}
			c := testConfig()
			c.Log = slog.New(slog.NewJSONHandler(log, nil))
			s := run(t, c, newPipeListener(), newPipeListener())
			a := s.ask(t, q)
			if q.method == "HEAD" {
				want /= 100 // it has no body
			}
			if a.code() != want || a.header.Get("Transfer-Encoding") != "" || a.status != 204 && a.header.Get("Content-Length") == "" {
				t.Errorf("%s %s: answer %d, %v; want %d and its length", q.method, q.target, a.code(), a.header, want)
			}
			<-log.begun
			close(log.let)
			s.stop(t)
		})
	}
}

func TestLogHasOneLineForEachRequest(t *testing.T) {
	t.Parallel()
	failing := testConfig()
	failing.Plants = fakePlants(func(context.Context, plant.Deletion) (plant.Result, error) { return plant.Result{}, errDriver })
	met := testConfig()
	met.Plants = fakePlants(func(context.Context, plant.Deletion) (plant.Result, error) {
		course := plant.Course{Tried: 5, Batch: 7, ForPlant: time.Millisecond, ForOthers: 2 * time.Millisecond, ForConnection: 3 * time.Millisecond, ForLock: 3500 * time.Millisecond}
		for _, failed := range []string{"unreachable", "unreachable", "answer_lost", "unreachable", ""} {
			course.Attempts = append(course.Attempts, plant.Attempt{Failed: failed})
		}
		return plant.Result{Replayed: true, Course: course}, nil
	})
	tests := []struct {
		name string
		c    Config
		q    request
		want map[string]any
	}{
		{"deleted", testConfig(), request{"DELETE", "/plants/1?token=" + secret, []string{asAlice, "X-Request-Id: r1"}, ""}, map[string]any{
			"level": "INFO", "msg": "request", "method": "DELETE", "route": "/plants/:id", "status": 204., "error": 0.,
			"outcome": "deleted", "request_id": "r1", "client": "127.0.0.1", "principal": "alice", "plant_id": "1"}},
		{"a long way", met, del("X-Request-Id: r1"), map[string]any{
			"level": "INFO", "msg": "request", "method": "DELETE", "route": "/plants/:id", "status": 204., "error": 0.,
			"outcome": "replayed", "request_id": "r1", "client": "127.0.0.1", "principal": "alice", "plant_id": "1",
			"attempts": 5., "batch": 7., "failed_attempts": "unreachable 2, answer_lost 1, unreachable 1",
			"wait_plant_ms": 1., "wait_others_ms": 2., "wait_connection_ms": 3., "wait_lock_ms": 3500.}},
		{"bad id", testConfig(), request{"DELETE", "/plants/%0A%FFx", []string{asAlice, "X-Request-Id: r1"}, ""}, map[string]any{
			"level": "INFO", "msg": "request", "method": "DELETE", "route": "/plants/:id", "status": 400., "error": 40001.,
			"outcome": "bad_id", "request_id": "r1", "client": "127.0.0.1", "principal": "alice", "plant_id": "\n\uFFFDx"}},
		{"long id", testConfig(), request{"DELETE", "/plants/" + strings.Repeat("x", 3000), []string{asAlice, "X-Request-Id: r1"}, ""}, map[string]any{
			"level": "INFO", "msg": "request", "method": "DELETE", "route": "/plants/:id", "status": 400., "error": 40001.,
			"outcome": "bad_id", "request_id": "r1", "client": "127.0.0.1", "principal": "alice", "plant_id": strings.Repeat("x", 64) + "..."}},
		{"token for an id", testConfig(), request{"DELETE", "/plants/" + auth.NewToken(), []string{asAlice, "X-Request-Id: r1"}, ""}, map[string]any{
			"level": "INFO", "msg": "request", "method": "DELETE", "route": "/plants/:id", "status": 400., "error": 40001.,
			"outcome": "bad_id", "request_id": "r1", "client": "127.0.0.1", "principal": "alice", "plant_id": "(a token)"}},
		{"token without its prefix for an id", testConfig(), request{"DELETE", "/plants/" + auth.NewToken()[4:], []string{asAlice, "X-Request-Id: r1"}, ""}, map[string]any{
			"level": "INFO", "msg": "request", "method": "DELETE", "route": "/plants/:id", "status": 400., "error": 40001.,
			"outcome": "bad_id", "request_id": "r1", "client": "127.0.0.1", "principal": "alice", "plant_id": "(a token)"}},
		{"token in code for an id", testConfig(), request{"DELETE", "/plants/%70st_" + auth.NewToken()[4:], []string{asAlice, "X-Request-Id: r1"}, ""}, map[string]any{
			"level": "INFO", "msg": "request", "method": "DELETE", "route": "/plants/:id", "status": 400., "error": 40001.,
			"outcome": "bad_id", "request_id": "r1", "client": "127.0.0.1", "principal": "alice", "plant_id": "(a token)"}},
		{"token for a method", testConfig(), request{auth.NewToken(), "/plants/1", []string{asAlice, "X-Request-Id: r1"}, ""}, map[string]any{
			"level": "INFO", "msg": "request", "method": "(a token)", "route": "/plants/:id", "status": 405., "error": 40500.,
			"outcome": "bad_method", "request_id": "r1", "client": "127.0.0.1"}},
		{"not allowed", testConfig(), request{"DELETE", "/plants/1", []string{asBob, "X-Request-Id: r1"}, ""}, map[string]any{
			"level": "INFO", "msg": "request", "method": "DELETE", "route": "/plants/:id", "status": 403., "error": 40300.,
			"outcome": "scope_missing", "request_id": "r1", "client": "127.0.0.1", "principal": "bob", "plant_id": "1"}},
		{"no route", testConfig(), request{"GET", "/" + secret, []string{asAlice, "X-Request-Id: r1"}, ""}, map[string]any{
			"level": "INFO", "msg": "request", "method": "GET", "route": "none", "status": 404., "error": 40400.,
			"outcome": "no_route", "request_id": "r1", "client": "127.0.0.1"}},
		{"a fault of ours", failing, del("X-Request-Id: r1"), map[string]any{
			"level": "ERROR", "msg": "request", "method": "DELETE", "route": "/plants/:id", "status": 500., "error": 50000.,
			"outcome": "error", "request_id": "r1", "client": "127.0.0.1", "principal": "alice", "plant_id": "1", "cause": errDriver.Error()}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			lines := logOf(t, tt.c, tt.q)
			if len(lines) != 1 {
				t.Fatalf("%d lines %v, want one", len(lines), lines)
			}
			for _, key := range []string{"time", "duration_ms"} {
				if _, ok := lines[0][key]; !ok {
					t.Errorf("line without %s", key)
				}
				delete(lines[0], key)
			}
			delete(lines[0], "wait_token_ms") // there where this machine is busy
			if diff := cmp.Diff(tt.want, lines[0]); diff != "" {
				t.Errorf("line (-want +got):\n%s", diff)
			}
		})
	}
}

// Who sends a token as the request's id by mistake does not find it in log and ledger.
func TestATokenIsNoRequestID(t *testing.T) {
	t.Parallel()
	for _, token := range []string{auth.NewToken(), auth.NewToken()[4:], "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJzaG9wIn0.c2lnbmF0dXJl"} {
		if lines := logOf(t, testConfig(), del("X-Request-Id: "+token)); len(lines) != 1 || lines[0]["request_id"] == token {
			t.Errorf("lines %v, want one with a request id of our own", lines)
		}
	}
}

func TestLogHasTheStackOfAPanicOnce(t *testing.T) {
	t.Parallel()
	c := testConfig()
	c.Plants = fakePlants(func(context.Context, plant.Deletion) (plant.Result, error) { panic("boom") })
	lines := logOf(t, c, del("X-Request-Id: r1"))
	if len(lines) != 2 {
		t.Fatalf("%d lines %v, want one of the panic and one of the request", len(lines), lines)
	}
	got, stack := lines[0], lines[0]["stack"].(string)
	if got["msg"] != "panic" || got["panic"] != "boom" || got["request_id"] != "r1" || !strings.Contains(stack, "TestLogHasTheStack") {
		t.Errorf("first line %v, want the panic with its stack", got)
	}
	if got, want := lines[1]["cause"], "panic: boom"; got != want {
		t.Errorf("cause %q, want %q", got, want)
	}
	if _, ok := lines[1]["stack"]; ok {
		t.Errorf("line of the request %v has a stack, want it in the first only", lines[1])
	}
}

// Log, trace and metrics tell of a slow look-up of the token, whether it brought a
// principal or not.
func TestASlowLookUpOfTheTokenIsTold(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		took, want time.Duration // 0: nothing is told
		err        error
	}{
		{3 * time.Second, 3 * time.Second, nil},
		{3 * time.Second, 3 * time.Second, plant.ErrUnavailable},
		{time.Millisecond, time.Millisecond, nil},
		{time.Millisecond - 1, 0, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			spans := tracetest.NewInMemoryExporter()
			c := testConfig()
			c.Log = slog.New(slog.NewJSONHandler(&log, nil))
			c.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
			tokens := c.Tokens
			c.Tokens = fakeTokens(func(ctx context.Context, token string) (auth.Principal, error) {
				time.Sleep(tt.took)
				if tt.err != nil {
					return auth.Principal{}, tt.err
				}
				return tokens.Authenticate(ctx, token)
			})
			s := run(t, c, newPipeListener(), newPipeListener())
			s.ask(t, del())
			s.stop(t)

			var logged, traced any
			for line := range strings.Lines(log.String()) {
				var fields map[string]any
				if err := json.Unmarshal([]byte(line), &fields); err != nil {
					t.Fatalf("log: %v", err)
				}
				if fields["msg"] == "request" {
					logged = fields["wait_token_ms"]
				}
			}
			for _, span := range spans.GetSpans() {
				for _, a := range span.Attributes {
					if span.Name == "DELETE /plants/:id" && a.Key == "plantstore.wait_token_ms" {
						traced = a.Value.AsInterface()
					}
				}
			}
			var want any
			if tt.want > 0 {
				want = milliseconds(tt.want)
			}
			if logged != want || traced != want {
				t.Errorf("after a look-up of %v with error %v: wait_token_ms %v in the log and %v in the request's span, want %v", tt.took, tt.err, logged, traced, want)
			}
			sum := fmt.Sprintf(`plantstore_deletion_duration_seconds_sum{outcome="deleted"} %v`, tt.took.Seconds())
			if got := samples(t, s.Server, "plantstore_deletion_duration_seconds_sum"); tt.err == nil && !slices.Contains(got, sum) {
				t.Errorf("after a look-up of %v: %q, want %s", tt.took, got, sum)
			}
		})
	}
}
