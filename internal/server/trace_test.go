package server

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

const (
	clientsTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceparent  = "traceparent: 00-" + clientsTrace + "-00f067aa0ba902b7-01"
)

// A request is part of its client's trace, and the deletion's attempts are events.
func TestTraceOfADeletion(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	c := testConfig()
	c.Tracer = provider
	requestIDs := make(chan string, 1)
	began := time.Now()
	c.Plants = fakePlants(func(_ context.Context, d plant.Deletion) (plant.Result, error) {
		requestIDs <- d.RequestID
		return plant.Result{Course: plant.Course{Tried: 2, Batch: 3, ForLock: time.Second, Attempts: []plant.Attempt{
			{Began: began, Took: time.Second, Failed: "locked"}, {Began: began.Add(time.Second), Took: time.Millisecond}}}}, plant.ErrUnavailable
	})
	lines := logOf(t, c, del(traceparent))
	byName := make(map[string]tracetest.SpanStub)
	for _, span := range spans.GetSpans() {
		byName[span.Name] = span
		if got := span.SpanContext.TraceID().String(); got != clientsTrace {
			t.Errorf("span %q is part of trace %s, want the client's, %s", span.Name, got, clientsTrace)
		}
	}
	request, deletion := byName["DELETE /plants/:id"], byName["delete plant"]
	if len(byName) != 2 || deletion.Parent.SpanID() != request.SpanContext.SpanID() {
		t.Fatalf("spans %v, want one of the request and, within it, one of the deletion", byName)
	}
	if deletion.Status.Code != codes.Error || deletion.Status.Description != "unavailable" {
		t.Errorf("status of the deletion %v, want an error, unavailable", deletion.Status)
	}
	attributes := make(map[string]any)
	for _, a := range deletion.Attributes {
		attributes[string(a.Key)] = a.Value.AsInterface()
	}
	want := map[string]any{"plantstore.outcome": "unavailable", "plantstore.attempts": int64(2), "plantstore.batch": int64(3), "plantstore.wait_lock_ms": 1000.}
	if diff := cmp.Diff(want, attributes); diff != "" {
		t.Errorf("attributes of the deletion (-want +got):\n%s", diff)
	}
	var events []string
	for _, e := range deletion.Events {
		event := e.Name + " " + e.Time.Sub(began).String()
		for _, a := range e.Attributes {
			event += fmt.Sprintf(" %s=%v", a.Key, a.Value.AsInterface())
		}
		events = append(events, event)
	}
	if diff := cmp.Diff([]string{"attempt 0s duration_ms=1000 failed=locked", "attempt 1s duration_ms=1 failed="}, events); diff != "" {
		t.Errorf("events of the deletion (-want +got):\n%s", diff)
	}
	// The client sent no request id: the ledger's leads to the trace.
	id := clientsTrace + "-" + request.SpanContext.SpanID().String()
	if got := <-requestIDs; got != id || lines[0]["request_id"] != id || lines[0]["trace_id"] != clientsTrace {
		t.Errorf("request id of the deletion %q, log line %v; want %s in both, and the trace", got, lines[0], id)
	}
}

// What the service did right is no error of its, whatever the client is told.
func TestTraceOfANo(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	c := testConfig()
	c.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	c.Plants = fakePlants(func(context.Context, plant.Deletion) (plant.Result, error) { return plant.Result{}, plant.ErrNotFound })
	logOf(t, c, del())
	for _, span := range spans.GetSpans() {
		if span.Status.Code != codes.Unset {
			t.Errorf("status of span %q: %v, want none", span.Name, span.Status)
		}
	}
}

// The client's request id goes before that of the trace.
func TestTraceLeavesTheRequestID(t *testing.T) {
	t.Parallel()
	c := testConfig()
	c.Tracer = sdktrace.NewTracerProvider()
	if lines := logOf(t, c, del(traceparent, "X-Request-Id: r1")); lines[0]["request_id"] != "r1" || lines[0]["trace_id"] != clientsTrace {
		t.Errorf("log line %v, want request id r1 and trace %s", lines[0], clientsTrace)
	}
}

// Spans carry a tracestate on as it is.
func TestATokenInATracestate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ header, want string }{
		{"tracestate: shop=a1", "shop=a1"},
		{"tracestate: shop=" + auth.NewToken(), ""},
	} {
		c := testConfig()
		spans := tracetest.NewInMemoryExporter()
		c.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
		start(t, c).ask(t, del(traceparent, tt.header))
		for _, span := range spans.GetSpans() {
			if got := span.SpanContext.TraceState().String(); got != tt.want || span.SpanContext.TraceID().String() != clientsTrace {
				t.Errorf("%s: span %q of trace %s has the state %q, want %s and %q", tt.header, span.Name, span.SpanContext.TraceID(), got, clientsTrace, tt.want)
			}
		}
		if len(spans.GetSpans()) == 0 {
			t.Errorf("%s: no span", tt.header)
		}
	}
}

// What is not sampled leads nowhere.
func TestNoTraceUnlessSampled(t *testing.T) {
	t.Parallel()
	c := testConfig()
	c.Tracer = sdktrace.NewTracerProvider()
	lines := logOf(t, c, del(strings.TrimSuffix(traceparent, "1")+"0"))
	if _, ok := lines[0]["trace_id"]; ok || strings.Contains(lines[0]["request_id"].(string), clientsTrace) {
		t.Errorf("log line %v, want no trace", lines[0])
	}
}

// Without tracing, a traceparent means nothing.
func TestNoTraceUnlessAskedFor(t *testing.T) {
	t.Parallel()
	lines := logOf(t, testConfig(), del(traceparent))
	if _, ok := lines[0]["trace_id"]; ok || strings.Contains(lines[0]["request_id"].(string), clientsTrace) {
		t.Errorf("log line %v, want no trace", lines[0])
	}
}

// Traces that are off allocate nothing: of all that a request allocates, nothing comes from
// OpenTelemetry or from what calls it. The test is not parallel, as it counts what the
// process allocates.
func TestTracesThatAreOffAllocateNothing(t *testing.T) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1 // every allocation
	const requests = 100
	allocations := func(c Config) (forTraces, all int64) {
		public := New(c).Public()
		count := func() (forTraces, all int64) {
			runtime.GC() // what was allocated counts after the second one
			runtime.GC()
			profile := make([]runtime.MemProfileRecord, 1<<16)
			n, ok := runtime.MemProfile(profile, true)
			if !ok {
				t.Fatalf("the profile has %d records, want %d at the most", n, len(profile))
			}
			for _, record := range profile[:n] {
				traced, served := false, false
				frames := runtime.CallersFrames(record.Stack())
				for more := true; more; {
					var f runtime.Frame
					f, more = frames.Next()
					traced = traced || strings.HasPrefix(f.Function, "go.opentelemetry.io/") || strings.HasSuffix(f.File, "/internal/server/trace.go")
					served = served || strings.HasSuffix(f.Function, ".ServeHTTP")
				}
				if served {
					all += record.AllocObjects
				}
				if served && traced {
					forTraces += record.AllocObjects
				}
			}
			return forTraces, all
		}
		forTracesBefore, allBefore := count()
		for range requests {
			r := httptest.NewRequest(http.MethodDelete, "/plants/1", nil)
			r.Header.Set("Authorization", strings.TrimPrefix(asAlice, "Authorization: "))
			r.Header.Set("Traceparent", strings.TrimPrefix(traceparent, "traceparent: "))
			w := httptest.NewRecorder()
			if public.ServeHTTP(w, r); w.Code != http.StatusNoContent {
				t.Fatalf("status %d, want 204", w.Code)
			}
		}
		forTraces, all = count()
		return forTraces - forTracesBefore, all - allBefore
	}
	c := testConfig()
	forTraces, all := allocations(c)
	t.Logf("%.1f allocations a request", float64(all)/requests)
	if forTraces != 0 || all < requests {
		t.Errorf("%d of %d allocations are for traces, want none of many", forTraces, all)
	}
	c.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(tracetest.NewInMemoryExporter()))
	if forTraces, all = allocations(c); forTraces < requests {
		t.Errorf("with traces, %d of %d allocations are for them, want some of each request's: the test does not find them", forTraces, all)
	}
}

// What a span has of a request is true, and no secret, whatever the log's level is.
func TestTraceOfAToken(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	c := testConfig()
	c.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	s := start(t, c)
	token := auth.NewToken()
	s.ask(t, request{"DELETE", "/plants/" + token + "?token=" + token, []string{asAlice, "X-Forwarded-For: 203.0.113.9", "User-Agent: " + token, "X-Request-Id: " + token}, ""})
	s.ask(t, request{token, "/plants/1", []string{asAlice}, ""})
	s.stop(t)
	got := make(map[string]any)
	for i, span := range spans.GetSpans() {
		if want := []string{"DELETE /plants/:id", "(a token) /plants/:id"}[i]; span.Name != want {
			t.Errorf("span %q, want %q", span.Name, want)
		}
		for _, a := range span.Attributes {
			if i == 0 || strings.Contains(fmt.Sprint(a.Value.AsInterface()), token) {
				got[string(a.Key)] = a.Value.AsInterface()
			}
		}
	}
	if text := fmt.Sprint(got); strings.Contains(text, token) || strings.Contains(text, secret) {
		t.Errorf("attributes %v, want no token", got)
	}
	if got["client.address"] != "127.0.0.1" || got["url.path"] != "(a token)" || got["http.route"] != "/plants/:id" {
		t.Errorf("attributes %v, want the address of the connection, no path that has a token, and the route", got)
	}
}

// The span of a deletion begins with it, not while the request's body is waited for.
func TestTraceOfADeletionBeginsAfterTheBody(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	c := testConfig()
	c.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	logOf(t, c, del("Content-Length: 2")) // it never comes
	began := make(map[string]time.Time)
	for _, span := range spans.GetSpans() {
		began[span.Name] = span.StartTime
	}
	if got := began["delete plant"].Sub(began["DELETE /plants/:id"]); got < bodyTimeout {
		t.Errorf("the deletion begins %v after the request, want %v at least, for which the body was waited for", got, bodyTimeout)
	}
}
