package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/auth"
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

// counted are the samples that are not 0.
func counted(t *testing.T, s *Server, prefix string) []string {
	t.Helper()
	return slices.DeleteFunc(samples(t, s, prefix), func(line string) bool { return strings.HasSuffix(line, "} 0") })
}

func TestMetricsCountRequests(t *testing.T) {
	t.Parallel()
	s := start(t, testConfig())
	names := func() (all []string) {
		for _, line := range samples(t, s.Server, "plantstore_http_requests_total") {
			all = append(all, line[:strings.LastIndexByte(line, ' ')])
		}
		return all
	}
	atTheStart := names()
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
		{method: "GET", target: "/docs", headers: []string{"If-None-Match: *"}},
		{method: "GET", target: "/docs/start.js"},
		{method: "GET", target: "/openapi.yaml"},
		{method: "PUT", target: "/openapi.yaml"},
	} {
		s.ask(t, q)
	}
	s.stop(t)
	if diff := cmp.Diff(atTheStart, names()); diff != "" {
		t.Errorf("a first answer of its kind is no rise (-at the start +now):\n%s", diff)
	}
	want := []string{
		`plantstore_http_requests_total{error="0",route="/docs",status="200"} 1`,
		`plantstore_http_requests_total{error="0",route="/docs",status="304"} 1`,
		`plantstore_http_requests_total{error="0",route="/docs/:asset",status="200"} 1`,
		`plantstore_http_requests_total{error="0",route="/openapi.yaml",status="200"} 1`,
		`plantstore_http_requests_total{error="0",route="/plants/:id",status="204"} 2`,
		`plantstore_http_requests_total{error="40001",route="/plants/:id",status="400"} 2`,
		`plantstore_http_requests_total{error="40100",route="/plants/:id",status="401"} 1`,
		`plantstore_http_requests_total{error="40400",route="/docs/:asset",status="404"} 1`,
		`plantstore_http_requests_total{error="40400",route="none",status="404"} 2`,
		`plantstore_http_requests_total{error="40500",route="/docs/:asset",status="405"} 1`,
		`plantstore_http_requests_total{error="40500",route="/openapi.yaml",status="405"} 1`,
		`plantstore_http_requests_total{error="40500",route="/plants/:id",status="405"} 2`,
	}
	if diff := cmp.Diff(want, counted(t, s.Server, "plantstore_http_requests_total")); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	want = []string{
		`plantstore_http_request_duration_seconds_count{route="/docs"} 2`,
		`plantstore_http_request_duration_seconds_count{route="/docs/:asset"} 3`,
		`plantstore_http_request_duration_seconds_count{route="/openapi.yaml"} 2`,
		`plantstore_http_request_duration_seconds_count{route="/plants/:id"} 7`,
		`plantstore_http_request_duration_seconds_count{route="none"} 2`,
	}
	if diff := cmp.Diff(want, samples(t, s.Server, "plantstore_http_request_duration_seconds_count")); diff != "" {
		t.Errorf("durations (-want +got):\n%s", diff)
	}
}

// A first 504 is a rise only if there was a 0 before.
func TestMetricsAreThereFromTheStart(t *testing.T) {
	t.Parallel()
	s := New(testConfig())
	for _, prefix := range []string{"plantstore_http_requests_total", "plantstore_deletions_total", "plantstore_deletion_duration_seconds_count",
		"plantstore_sheds_total", "plantstore_not_ready"} {
		for _, line := range samples(t, s, prefix) {
			if !strings.HasSuffix(line, "} 0") {
				t.Errorf("%s, want 0", line)
			}
		}
	}
	requests := strings.Join(samples(t, s, "plantstore_http_requests_total"), "\n")
	for _, a := range catalogue {
		route := plantsRoute
		if a.code == codeNoRoute {
			route = noRoute
		}
		want := fmt.Sprintf(`{error="%d",route=%q,status="%d"} 0`, a.code, route, a.status())
		if !strings.Contains(requests, want) {
			t.Errorf("no request with %s:\n%s", want, requests)
		}
	}
	var durations []string
	for _, route := range []string{"/docs", "/docs/:asset", "/openapi.yaml", "/plants/:id", "none"} {
		durations = append(durations, fmt.Sprintf("plantstore_http_request_duration_seconds_count{route=%q} 0", route))
	}
	if diff := cmp.Diff(durations, samples(t, s, "plantstore_http_request_duration_seconds_count")); diff != "" {
		t.Errorf("durations (-want +got):\n%s", diff)
	}
	for _, prefix := range []string{"plantstore_deletions_total", "plantstore_deletion_duration_seconds_count"} {
		if got, want := len(samples(t, s, prefix)), len(outcomes); got != want {
			t.Errorf("%s has %d outcomes, want %d", prefix, got, want)
		}
	}
}

// Whatever the request's timeout is, one that took all of it is told from longer ones.
func TestBucketsReachTheTimeout(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[time.Duration][]float64{
		time.Second:      {.5, 1, 2},
		10 * time.Second: {5, 10, 11},
		45 * time.Second: {30, 45, 46},
		10 * time.Minute: {300, 600, 601},
	} {
		got := buckets(timeout)
		if got[0] != .0001 {
			t.Errorf("buckets(%s) begin with %v, want 0.0001", timeout, got[0])
		}
		if diff := cmp.Diff(want, got[len(got)-3:]); diff != "" {
			t.Errorf("the last buckets(%s) (-want +got):\n%s", timeout, diff)
		}
	}
}

// Every error that a deletion can end with has an outcome of its own, and each outcome
// is such an error's.
func TestMetricsKnowEveryOutcome(t *testing.T) {
	t.Parallel()
	seen := map[string]int32{outcomeDeleted: 0, outcomeReplayed: 0}
	for code, err := range causes {
		if code/100 == 400 || code/100 == 401 || code/100 == 403 || code/100 == 405 || code/100 == 412 || code/100 == 413 || code == 42900 || code == 40400 || code == 50303 {
			continue // refused before a deletion was tried
		}
		got := answerTo(err).outcome
		if other, twice := seen[got]; twice {
			t.Errorf("errors %d and %d both count as %q, want an outcome each", code, other, got)
		}
		seen[got] = code
		if !slices.Contains(outcomes[:], got) {
			t.Errorf("error %d counts as %q, which is not there from the start", code, got)
		}
	}
	if len(seen) != len(outcomes) {
		t.Errorf("outcomes %q, want those of %v", outcomes, seen)
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
	if diff := cmp.Diff(want, counted(t, s.Server, "plantstore_deletions_total")); diff != "" {
		t.Errorf("deletions (-want +got):\n%s", diff)
	}
	want = []string{`plantstore_sheds_total{cause="deletion_budget"} 1`, `plantstore_sheds_total{cause="in_flight"} 1`}
	if diff := cmp.Diff(want, counted(t, s.Server, "plantstore_sheds_total")); diff != "" {
		t.Errorf("sheds (-want +got):\n%s", diff)
	}
	want = []string{`plantstore_principal_deletions_total{principal="alice"} 1`}
	if diff := cmp.Diff(want, counted(t, s.Server, "plantstore_principal_deletions_total")); diff != "" {
		t.Errorf("deletions of principals (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"plantstore_deletions_in_flight 0"}, samples(t, s.Server, "plantstore_deletions_in_flight")); diff != "" {
		t.Errorf("in flight (-want +got):\n%s", diff)
	}
}

// Who chooses their own names, or comes in numbers, gets no label.
func TestPrincipalsWithLabels(t *testing.T) {
	t.Parallel()
	m := newMetrics(testConfig())
	if got := m.label(auth.Principal{Name: auth.JWTPrefix + "mallory"}); got != otherPrincipals {
		t.Errorf("the label of a JWT's principal is %q, want %q", got, otherPrincipals)
	}
	for i := range namedPrincipals {
		if name := fmt.Sprint("client-", i); m.label(auth.Principal{Name: name}) != name {
			t.Fatalf("%s has no label of its own", name)
		}
	}
	if got := m.label(auth.Principal{Name: "one-more"}); got != otherPrincipals {
		t.Errorf("the label of principal %d is %q, want %q", namedPrincipals+1, got, otherPrincipals)
	}
	if got := m.label(auth.Principal{Name: "client-0"}); got != "client-0" {
		t.Errorf("the label of the first principal is %q now, want it to stay", got)
	}
}

func TestMetricsOfReadiness(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var answer error
	say := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		answer = err
	}
	c := testConfig()
	c.Ready = func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		return answer
	}
	var log bytes.Buffer
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	synctest.Test(t, func(t *testing.T) {
		s := New(c)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.watch(ctx)
		}()
		for _, tt := range []struct {
			err  error
			want []string
		}{
			{nil, []string{"plantstore_database_up 1", "plantstore_ready 1"}},
			{&NotReadyError{"unreachable", errDriver}, []string{"plantstore_database_up 0", `plantstore_not_ready{reason="unreachable"} 1`, "plantstore_ready 0"}},
			{&NotReadyError{"schema_behind", errDriver}, []string{"plantstore_database_up 1", `plantstore_not_ready{reason="schema_behind"} 1`, "plantstore_ready 0"}},
			{errDriver, []string{"plantstore_database_up 1", `plantstore_not_ready{reason="hindered"} 1`, "plantstore_ready 0"}},
			{nil, []string{"plantstore_database_up 1", "plantstore_ready 1"}},
		} {
			say(tt.err)
			time.Sleep(5 * watchEvery)
			synctest.Wait()
			var got []string
			for _, prefix := range []string{"plantstore_database_up", "plantstore_not_ready", "plantstore_ready"} {
				got = append(got, counted(t, s, prefix)...)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("after %v (-want +got):\n%s", tt.err, diff)
			}
		}
		cancel()
		<-done
		if got := counted(t, s, "plantstore_not_ready"); len(got) != 1 || !strings.Contains(got[0], "shutting_down") {
			t.Errorf("after the end: %v, want one that is shutting down", got)
		}
		// Each once, and the same text is the same reason: the log is about the database.
		if no, yes := strings.Count(log.String(), `msg="not ready"`), strings.Count(log.String(), "msg=ready"); no != 1 || yes != 2 {
			t.Errorf("the log says %d times that it is not ready and %d times that it is, want 1 and 2:\n%s", no, yes, &log)
		}
		s.metrics.readiness(reasonUnreachable)
		s.metrics.readiness(reasonDraining)
		if diff := cmp.Diff([]string{"plantstore_database_up 0"}, samples(t, s, "plantstore_database_up")); diff != "" {
			t.Errorf("shutting down beside a database that is down (-want +got):\n%s", diff)
		}
	})
}

func TestMetricsOfBuild(t *testing.T) {
	t.Parallel()
	c := testConfig()
	c.Build = Build{Version: "v1.2.3", Commit: "abc", Schema: 7}
	s := New(c)
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
