package server

import (
	"context"
	"fmt"
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

func TestTraceOfARequest(t *testing.T) {
	t.Parallel()
	token := auth.NewToken()
	failed := plant.Result{Attempts: 2, Batch: 3, Failed: []string{"lost", "unreachable"}, Queued: time.Second}
	for _, tt := range []struct {
		name   string
		result plant.Result
		err    error
		q      request
		span   string
		status codes.Code
		want   map[string]any
	}{
		{"deleted", plant.Result{Attempts: 1, Batch: 1}, nil, del(), "DELETE /plants/:id", codes.Unset, map[string]any{
			"http.response.status_code": int64(204), "plantstore.outcome": "deleted", "plantstore.attempts": int64(1), "plantstore.batch": int64(1)}},
		{"not found, which is no error of the service", plant.Result{Attempts: 1}, plant.ErrNotFound, del(), "DELETE /plants/:id", codes.Unset, map[string]any{
			"http.response.status_code": int64(404), "plantstore.outcome": "not_found"}},
		{"a bug", failed, errDriver, del(), "DELETE /plants/:id", codes.Error, map[string]any{
			"http.response.status_code": int64(500), "plantstore.outcome": "error", "plantstore.failed_attempts": "lost,unreachable", "plantstore.queued_us": int64(1000000)}},
		{"token in the path", plant.Result{}, nil, request{"DELETE", "/plants/" + token + "?" + token, []string{asAlice, "User-Agent: " + token}, ""},
			"DELETE /plants/:id", codes.Unset, map[string]any{"url.path": "(a token)", "http.route": "/plants/:id", "client.address": "127.0.0.1"}},
		{"token for a method", plant.Result{}, nil, request{token, "/plants/%FF", nil, ""},
			"(a token) /plants/:id", codes.Unset, map[string]any{"http.request.method": "(a token)", "url.path": "/plants/\uFFFD"}},
	} {
		spans := tracetest.NewInMemoryExporter()
		c := testConfig()
		c.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
		c.Plants = fakePlants(func(context.Context, plant.Deletion) (plant.Result, error) { return tt.result, tt.err })
		tt.q.headers = append(tt.q.headers, traceparent, "X-Request-Id: r1")
		lines := logOf(t, c, tt.q)
		all := spans.GetSpans()
		if len(all) != 1 || all[0].Name != tt.span || all[0].SpanContext.TraceID().String() != clientsTrace || all[0].Status.Code != tt.status {
			t.Fatalf("%s: spans %+v, want one %q with status %v in the client's trace", tt.name, all, tt.span, tt.status)
		}
		if lines[0]["trace_id"] != clientsTrace || lines[0]["request_id"] != "r1" {
			t.Errorf("%s: log line %v, want trace %s and request r1", tt.name, lines[0], clientsTrace)
		}
		tt.want["plantstore.request_id"] = "r1"
		got := make(map[string]any)
		for _, a := range all[0].Attributes {
			if tt.want[string(a.Key)] != nil {
				got[string(a.Key)] = a.Value.AsInterface()
			}
			if text := fmt.Sprint(a.Value.AsInterface()); strings.Contains(text, token) {
				t.Errorf("%s: attribute %s is %q, want no token", tt.name, a.Key, text)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: attributes (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestLogOfAnUnsampledTraceHasNoID(t *testing.T) {
	t.Parallel()
	c := testConfig()
	c.Tracer = sdktrace.NewTracerProvider()
	lines := logOf(t, c, del(strings.TrimSuffix(traceparent, "1")+"0"))
	if id, ok := lines[0]["trace_id"]; ok {
		t.Errorf("trace_id %v, want none", id)
	}
}
