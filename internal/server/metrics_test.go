package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/plant"
)

// samples are the lines of /metrics whose names start so, without comments.
func samples(t *testing.T, s *Server, prefix string) []string {
	t.Helper()
	status, body := adminAnswer(s, "GET", "/metrics")
	if status != 200 {
		t.Fatalf("/metrics: %d %q, want 200", status, body)
	}
	return slices.Collect(func(yield func(string) bool) {
		for line := range strings.Lines(body) {
			if strings.HasPrefix(line, prefix) && !yield(strings.TrimSpace(line)) {
				return
			}
		}
	})
}

func TestMetricsCountRequests(t *testing.T) {
	t.Parallel()
	s := start(t, testConfig())
	for _, q := range []request{
		del(), del(),
		{method: "DELETE", target: "/plants/1"},
		{method: "DELETE", target: "/plants/x", headers: []string{asAlice}},
		{method: "DELETE", target: "/plants/1/2/3", headers: []string{asAlice}},
		{method: "MADE-UP", target: "/plants/1"},
		{method: "OPTIONS", target: "/plants/2"},
		{method: "GET", target: "/a"},
		{method: "GET", target: "/b?c=d"},
		{method: "MADE-UP", target: "/docs/e"},
		{method: "GET", target: "/docs/f"},
		{method: "GET", target: "/docs"},
		{method: "GET", target: "/openapi.yaml"},
	} {
		s.ask(t, q)
	}
	s.stop(t)
	want := []string{
		`plantstore_http_requests_total{error="0",route="/docs",status="200"} 1`,
		`plantstore_http_requests_total{error="0",route="/openapi.yaml",status="200"} 1`,
		`plantstore_http_requests_total{error="0",route="/plants/:id",status="204"} 2`,
		`plantstore_http_requests_total{error="40001",route="/plants/:id",status="400"} 2`,
		`plantstore_http_requests_total{error="40100",route="/plants/:id",status="401"} 1`,
		`plantstore_http_requests_total{error="40400",route="/docs/:asset",status="404"} 1`,
		`plantstore_http_requests_total{error="40400",route="none",status="404"} 2`,
		`plantstore_http_requests_total{error="40500",route="/docs/:asset",status="405"} 1`,
		`plantstore_http_requests_total{error="40500",route="/plants/:id",status="405"} 2`,
	}
	if diff := cmp.Diff(want, samples(t, s.Server, "plantstore_http_requests_total")); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	want = []string{
		`plantstore_http_request_duration_seconds_count{route="/docs"} 1`,
		`plantstore_http_request_duration_seconds_count{route="/docs/:asset"} 2`,
		`plantstore_http_request_duration_seconds_count{route="/openapi.yaml"} 1`,
		`plantstore_http_request_duration_seconds_count{route="/plants/:id"} 7`,
		`plantstore_http_request_duration_seconds_count{route="none"} 2`,
	}
	if diff := cmp.Diff(want, samples(t, s.Server, "plantstore_http_request_duration_seconds_count")); diff != "" {
		t.Errorf("durations (-want +got):\n%s", diff)
	}
}

func TestMetricsDurationsReachFromTenthMillisecondToTenSeconds(t *testing.T) {
	t.Parallel()
	s := New(testConfig())
	s.metrics.request("/", 204, 0, 50*time.Microsecond)
	s.metrics.request("/", 204, 0, 9*time.Second)
	s.metrics.request("/", 204, 0, 11*time.Second)
	buckets := samples(t, s, "plantstore_http_request_duration_seconds_bucket")
	for _, want := range []string{`le="0.0001"} 1`, `le="5"} 1`, `le="10"} 2`, `le="+Inf"} 3`} {
		if !slices.ContainsFunc(buckets, func(line string) bool { return strings.HasSuffix(line, want) }) {
			t.Errorf("buckets %q, want one with %s", buckets, want)
		}
	}
}

// Every error that a deletion can end with has an outcome of its own.
func TestMetricsKnowEveryOutcome(t *testing.T) {
	t.Parallel()
	seen := make(map[string]int32)
	for code, err := range causes {
		if code/100 == 400 || code/100 == 401 || code/100 == 403 || code/100 == 405 || code/100 == 413 || code/100 == 429 || code == 40400 || code == 50303 {
			continue // refused before a deletion was tried
		}
		got := outcome(plant.Result{}, err)
		if other, twice := seen[got]; twice {
			t.Errorf("errors %d and %d both count as %q, want an outcome each", code, other, got)
		}
		seen[got] = code
		if got == "error" && code != 50000 {
			t.Errorf("error %d counts as %q, want an outcome of its own", code, got)
		}
	}
}

func TestMetricsCountDeletions(t *testing.T) {
	t.Parallel()
	outcomes := []struct {
		result plant.Result
		err    error
		want   string
	}{
		{plant.Result{}, nil, "deleted"},
		{plant.Result{Replayed: true}, nil, "replayed"},
		{plant.Result{}, plant.ErrNotFound, "not_found"},
		{plant.Result{}, &plant.DeletedEarlierError{}, "deleted_earlier"},
		{plant.Result{}, &plant.ReferencedError{}, "referenced"},
		{plant.Result{}, fmt.Errorf("%w: %w", plant.ErrUnknown, plant.ErrUnavailable), "unknown"},
		{plant.Result{}, plant.ErrUnavailable, "unavailable"},
		{plant.Result{}, plant.ErrBusy, "busy"},
		{plant.Result{}, &plant.OverBudgetError{}, "over_budget"},
		{plant.Result{}, plant.ErrOverloaded, "overloaded"},
		{plant.Result{}, plant.ErrStoreRule, "store_rule"},
		{plant.Result{}, plant.ErrHindered, "hindered"},
		{plant.Result{}, errDriver, "error"},
	}
	var want []string
	next := make(chan int, 1)
	c := testConfig()
	c.Plants = fakePlants(func(context.Context, plant.Deletion) (plant.Result, error) {
		o := outcomes[<-next]
		return o.result, o.err
	})
	s := start(t, c)
	for i, o := range outcomes {
		next <- i
		s.ask(t, del())
		want = append(want, fmt.Sprintf("plantstore_deletions_total{outcome=%q} 1", o.want))
	}
	s.ask(t, request{method: "DELETE", target: "/plants/x", headers: []string{asAlice}}) // was not tried
	s.stop(t)
	slices.Sort(want)
	if diff := cmp.Diff(want, samples(t, s.Server, "plantstore_deletions_total")); diff != "" {
		t.Errorf("deletions (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"plantstore_deletions_in_flight 0"}, samples(t, s.Server, "plantstore_deletions_in_flight")); diff != "" {
		t.Errorf("in flight (-want +got):\n%s", diff)
	}
}

func TestMetricsOfBuildAndPool(t *testing.T) {
	t.Parallel()
	c := testConfig()
	c.Build = Build{Version: "v1.2.3", Commit: "abc", Schema: 7}
	c.Pool = func() PoolStats {
		return PoolStats{MaxConns: 1, TotalConns: 2, AcquiredConns: 3, IdleConns: 4,
			Acquires: 5, EmptyAcquires: 6, CanceledAcquires: 7, AcquireWait: 8500 * time.Millisecond, NewConns: 9}
	}
	s := New(c)
	want := []string{
		"plantstore_pool_acquire_wait_seconds_total 8.5",
		"plantstore_pool_acquired_connections 3",
		"plantstore_pool_acquires_total 5",
		"plantstore_pool_canceled_acquires_total 7",
		"plantstore_pool_connections 2",
		"plantstore_pool_empty_acquires_total 6",
		"plantstore_pool_idle_connections 4",
		"plantstore_pool_max_connections 1",
		"plantstore_pool_new_connections_total 9",
	}
	if diff := cmp.Diff(want, samples(t, s, "plantstore_pool_")); diff != "" {
		t.Errorf("pool (-want +got):\n%s", diff)
	}
	build := strings.Join(samples(t, s, "plantstore_build_info"), "\n")
	for _, want := range []string{`version="v1.2.3"`, `commit="abc"`, `schema="7"`, `go="go1.`} {
		if !strings.Contains(build, want) {
			t.Errorf("%q, want it to have %s", build, want)
		}
	}
	for _, name := range []string{"go_goroutines", "process_open_fds"} {
		if len(samples(t, s, name)) == 0 {
			t.Errorf("metrics without %s", name)
		}
	}
}
