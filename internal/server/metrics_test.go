package server

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

// samples returns the lines of /metrics whose names start so, without comments.
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

// counted returns the samples that are not 0.
func counted(t *testing.T, s *Server, prefix string) []string {
	t.Helper()
	return slices.DeleteFunc(samples(t, s, prefix), func(line string) bool { return strings.HasSuffix(line, "} 0") })
}

// wantSeries checks that each sample was there before: the first event of a series that appears
// with it is no rise for Prometheus.
func (s *Server) wantSeries(t *testing.T, before []string) {
	t.Helper()
	for _, line := range samples(t, s, "plantstore_") {
		series := line[:strings.LastIndexByte(line, ' ')+1]
		if !slices.ContainsFunc(before, func(b string) bool { return strings.HasPrefix(b, series) }) && !strings.Contains(series, "alice") {
			t.Errorf("%s was not there at the start", series)
		}
	}
}

func TestMetricsCountRequests(t *testing.T) {
	t.Parallel()
	s := New(testConfig())
	before := samples(t, s, "plantstore_")
	s.ask(t, del())
	s.ask(t, request{method: "DELETE", target: "/plants/x", headers: []string{asAlice}})
	for _, line := range []string{"DELETE /plants/1", "MADE-UP /plants/1", "OPTIONS /plants/2", "GET /a", "GET /b?c=d", "MADE-UP /docs/e", "GET /docs/f", "GET /docs",
		"GET /docs/start.js", "PUT /openapi.yaml"} {
		method, target, _ := strings.Cut(line, " ")
		s.ask(t, request{method: method, target: target})
	}
	s.wantSeries(t, before)
	want := []string{
		`plantstore_http_requests_total{error="0",route="/docs",status="200"} 1`,
		`plantstore_http_requests_total{error="0",route="/docs/:asset",status="200"} 1`,
		`plantstore_http_requests_total{error="0",route="/plants/:id",status="204"} 1`,
		`plantstore_http_requests_total{error="40001",route="/plants/:id",status="400"} 1`,
		`plantstore_http_requests_total{error="40100",route="/plants/:id",status="401"} 1`,
		`plantstore_http_requests_total{error="40400",route="/docs/:asset",status="404"} 1`,
		`plantstore_http_requests_total{error="40400",route="none",status="404"} 2`,
		`plantstore_http_requests_total{error="40500",route="/docs/:asset",status="405"} 1`,
		`plantstore_http_requests_total{error="40500",route="/openapi.yaml",status="405"} 1`,
		`plantstore_http_requests_total{error="40500",route="/plants/:id",status="405"} 2`,
	}
	if diff := cmp.Diff(want, counted(t, s, "plantstore_http_requests_total")); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// The last two buckets separate requests that took all of their timeout from longer ones.
func TestLatencyBucketsReachTheTimeout(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[time.Duration]string{10 * time.Second: "[0.0001 5 10 11]", 45 * time.Second: "[0.0001 30 45 46]", 10 * time.Minute: "[0.0001 300 600 601]"} {
		got := buckets(timeout)
		if ends := fmt.Sprint(append(got[:1], got[len(got)-3:]...)); ends != want {
			t.Errorf("the first and the last three buckets(%s) are %s, want %s", timeout, ends, want)
		}
	}
}

// Each metric begins at 0, and something here counts it.
func TestMetricsCountDeletions(t *testing.T) {
	t.Parallel()
	var s *Server
	var current string
	var during []string
	c := testConfig()
	c.Build = Build{Version: "v1.2.3", Commit: "abc", Schema: 7}
	c.Plants = fakePlants(func(context.Context, plant.Deletion) (plant.Result, error) {
		during = samples(t, s, "plantstore_")
		return plant.Result{Replayed: current == outcomeReplayed}, causes[current]
	})
	s = New(c)
	before := samples(t, s, "plantstore_")
	s.setReadiness(&readiness{reasonMisconfigured, errDriver})
	var want []string
	for _, current = range outcomes {
		s.ask(t, del())
		want = append(want, fmt.Sprintf("plantstore_deletions_total{outcome=%q} 1", current))
	}
	s.setReadiness(&readiness{})
	s.ask(t, request{method: "DELETE", target: "/plants/x", headers: []string{asAlice}}) // was not tried
	slices.Sort(want)
	for name, want := range map[string][]string{
		"plantstore_deletions_total":                 want,
		"plantstore_deletion_duration_seconds_count": {"plantstore_deletion_duration_seconds_count 2"},
		"plantstore_rejections_total":                {`plantstore_rejections_total{reason="deletion_budget"} 1`, `plantstore_rejections_total{reason="in_flight"} 1`},
		"plantstore_principal_deletions_total":       {`plantstore_principal_deletions_total{principal="alice"} 1`},
		"plantstore_build_info":                      {fmt.Sprintf(`plantstore_build_info{commit="abc",go=%q,schema="7",version="v1.2.3"} 1`, runtime.Version())},
		"go_info":                                    {fmt.Sprintf(`go_info{version=%q} 1`, runtime.Version())},
		"plantstore_http_requests_in_flight":         {"plantstore_http_requests_in_flight 0"},
	} {
		if diff := cmp.Diff(want, counted(t, s, name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}

	s.metrics.principal(auth.JWTPrefix + "shop") // whose series is there, too
	s.wantSeries(t, before)
	isZero := func(line string) bool { return strings.HasSuffix(line, " 0") }
	for _, line := range before {
		if !isZero(line) && !strings.HasPrefix(line, "plantstore_build_info") {
			t.Errorf("at the start: %s, want 0", line)
		}
	}
	risen := slices.DeleteFunc(append(during, samples(t, s, "plantstore_")...), isZero)
	for _, line := range samples(t, s, "# TYPE plantstore_") {
		if name := strings.Fields(line)[2]; !slices.ContainsFunc(risen, func(line string) bool { return strings.HasPrefix(line, name) }) {
			t.Errorf("nothing here counts %s", name)
		}
	}
}

// Principals that choose their own names, and those beyond a number, get no label.
func TestMetricsLimitTheLabelsOfPrincipals(t *testing.T) {
	t.Parallel()
	s := New(testConfig())
	s.metrics.principal(auth.JWTPrefix + "mallory").Inc()
	for i := range 202 {
		s.metrics.principal(fmt.Sprint("client-", i)).Inc()
	}
	s.metrics.principal("client-0").Inc()
	lines := counted(t, s, "plantstore_principal_deletions_total")
	for _, want := range []string{`{principal="(other)"} 3`, `{principal="client-0"} 2`} {
		if !slices.Contains(lines, "plantstore_principal_deletions_total"+want) || len(lines) != 201 {
			t.Errorf("%d lines %q, want %d with %s", len(lines), lines, 201, want)
		}
	}
}
