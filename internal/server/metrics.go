package server

import (
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"plantstore/internal/auth"
)

// metrics are the server's metrics. No label has values that a client controls. Every value
// is there from the start with 0, so that rate() sees the first event.
type metrics struct {
	registry   *prometheus.Registry
	requests   *prometheus.CounterVec
	deletions  *prometheus.CounterVec
	rejections *prometheus.CounterVec
	principals *prometheus.CounterVec
	reasons    *prometheus.GaugeVec
	ready      prometheus.Gauge
	durations  prometheus.Histogram

	mu    sync.Mutex
	named map[string]bool // principals that have a label of their own
}

// The outcomes of a deletion that succeeded.
const (
	outcomeDeleted  = "deleted"
	outcomeReplayed = "replayed"
)

// outcomes are the possible outcomes of a deletion that was tried: success, or that of an
// error in the catalogue.
var outcomes = [...]string{outcomeDeleted, outcomeReplayed, "not_found", "deleted_earlier", "referenced", "store_rule",
	"over_budget", "busy", "unavailable", "overloaded", "misconfigured", "unknown", "error"}

// Why requests are rejected because there are too many.
const (
	rejectedInFlight = "in_flight"
	rejectedFailures = "failed_authentications"
	rejectedRate     = "rate_limit"
	rejectedBudget   = "deletion_budget"
)

const (
	// maxNamed limits how many principals have a label of their own.
	maxNamed = 200
	// otherPrincipals is the label of further principals, and of all principals of JWTs,
	// since people may choose their names there. No principal can have this name.
	otherPrincipals = "(other)"
)

func newMetrics(c Config, inFlight *atomic.Int64, routes []*echo.Route) *metrics {
	registry := prometheus.NewRegistry()
	registered := promauto.With(registry)
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return registered.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		registry:   registry,
		requests:   vec("plantstore_http_requests_total", "Requests answered, by route, status and error code (0 without error).", "route", "status", "error"),
		deletions:  vec("plantstore_deletions_total", "Deletions that were tried, by outcome.", "outcome"),
		rejections: vec("plantstore_rejections_total", "Requests rejected because there were too many, by reason.", "reason"),
		principals: vec("plantstore_principal_deletions_total", "Plants deleted by each principal. Those of the identity provider count as other.", "principal"),
		reasons:    registered.NewGaugeVec(prometheus.GaugeOpts{Name: "plantstore_not_ready", Help: "1 at the reason why requests can't be served, else 0."}, []string{"reason"}),
		ready:      registered.NewGauge(prometheus.GaugeOpts{Name: "plantstore_ready", Help: "1 if requests can be served, else 0."}),
		durations: registered.NewHistogram(prometheus.HistogramOpts{Name: "plantstore_deletion_duration_seconds",
			Help: "Time from a request's headers to its answer 204.", Buckets: buckets(c.RequestTimeout)}),
		named: make(map[string]bool),
	}
	for _, outcome := range outcomes {
		m.deletions.WithLabelValues(outcome)
	}
	for _, reason := range []string{rejectedInFlight, rejectedFailures, rejectedRate, rejectedBudget} {
		m.rejections.WithLabelValues(reason)
	}
	m.principals.WithLabelValues(otherPrincipals)
	registered.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "plantstore_build_info",
		Help: "Always 1; the labels identify the program.",
		ConstLabels: prometheus.Labels{
			"version": c.Build.Version, "commit": c.Build.Commit, "go": runtime.Version(),
			"schema": strconv.FormatInt(c.Build.Schema, 10),
		},
	}, func() float64 { return 1 })
	registered.NewGaugeFunc(prometheus.GaugeOpts{Name: "plantstore_http_requests_in_flight", Help: "Requests being answered."},
		func() float64 { return float64(inFlight.Load()) })
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(c.Metrics...)

	for _, r := range routes {
		if r.Path == plantsRoute {
			continue
		}
		m.answer(r.Path, http.StatusOK, 0)
		for _, a := range []errorAnswer{answerTo(errNoRoute), answerTo(errMethod), catalogue[len(catalogue)-1]} {
			m.answer(r.Path, a.status(), a.code)
		}
	}
	m.answer(plantsRoute, http.StatusNoContent, 0)
	if len(c.CORSOrigins) > 0 {
		m.answer(preflightRoute, http.StatusNoContent, 0)
	}
	for _, a := range catalogue {
		route := plantsRoute
		if a.code == codeNoRoute {
			route = noRoute
		}
		m.answer(route, a.status(), a.code)
	}
	return m
}

// buckets are the bounds of a histogram of durations, up to the request's timeout and a
// second beyond.
func buckets(timeout time.Duration) []float64 {
	all := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	most := timeout.Seconds()
	return append(slices.DeleteFunc(all, func(b float64) bool { return b >= most }), most, most+1)
}

// answer returns the counter of a kind of answer.
func (m *metrics) answer(route string, status int, code int32) prometheus.Counter {
	return m.requests.WithLabelValues(route, strconv.Itoa(status), strconv.Itoa(int(code)))
}

// deletion counts a deletion that was tried, and sets its outcome.
func (m *metrics) deletion(r *requestContext, err error) {
	switch {
	case err != nil:
		r.outcome = answerTo(err).outcome
	case r.result.Replayed:
		r.outcome = outcomeReplayed
	default:
		r.outcome = outcomeDeleted
		m.principal(r.principal.Name).Inc()
	}
	m.deletions.WithLabelValues(r.outcome).Inc()
	switch r.outcome {
	case outcomeDeleted, outcomeReplayed:
		m.durations.Observe(time.Since(r.start).Seconds())
	case "overloaded":
		m.rejected(rejectedInFlight)
	case "over_budget":
		m.rejected(rejectedBudget)
	}
}

// rejected counts a request that was rejected because there were too many.
func (m *metrics) rejected(reason string) { m.rejections.WithLabelValues(reason).Inc() }

// principal returns the counter of a principal's deletions.
func (m *metrics) principal(name string) prometheus.Counter {
	m.mu.Lock()
	defer m.mu.Unlock()
	if strings.HasPrefix(name, auth.JWTPrefix) || !m.named[name] && len(m.named) >= maxNamed {
		return m.principals.WithLabelValues(otherPrincipals)
	}
	m.named[name] = true
	return m.principals.WithLabelValues(name)
}
