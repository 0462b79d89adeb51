package server

import (
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

// metrics are what /metrics shows. No label has values that a client controls, and each
// value is there from the start, so that the first of its kind is a rise.
type metrics struct {
	registry   *prometheus.Registry
	requests   *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	inFlight   prometheus.Gauge
	deletions  *prometheus.CounterVec
	took       *prometheus.HistogramVec
	principals *prometheus.CounterVec
	sheds      *prometheus.CounterVec
	ready      prometheus.Gauge
	database   prometheus.Gauge
	reasons    *prometheus.GaugeVec

	mu    sync.Mutex
	named map[string]bool // principals that have a label of their own
}

// What came of a deletion that succeeded.
const (
	outcomeDeleted  = "deleted"
	outcomeReplayed = "replayed"
)

// outcomes are what a deletion that was tried can end with: success, or the outcome of
// an error in the catalogue.
var outcomes = [...]string{outcomeDeleted, outcomeReplayed, "not_found", "deleted_earlier", "referenced", "store_rule",
	"over_budget", "busy", "unavailable", "overloaded", "hindered", "unknown", "error"}

// Why requests are turned away before they are tried.
const (
	shedInFlight    = "in_flight"
	shedFailures    = "failed_authentications"
	shedRate        = "rate_limit"
	shedBudget      = "deletion_budget"
	shedConnections = "client_connections"
)

const (
	// namedPrincipals bounds how many principals have a label of their own.
	namedPrincipals = 200
	// otherPrincipals is the label of further ones, and of those whom the identity
	// provider names: they may have chosen their names. No principal can be called so.
	otherPrincipals = "(other)"
)

// notReadyReasons are the values of a label: those of package postgres, and shutting_down.
var notReadyReasons = [...]string{reasonUnreachable, "read_only", "schema_behind", "standby_missing", reasonHindered, reasonDraining}

const (
	reasonUnreachable = "unreachable"
	reasonHindered    = "hindered" // what doctor tells about
	reasonDraining    = "shutting_down"
)

func newMetrics(c Config) *metrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	histogram := func(name, help, label string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets(c.RequestTimeout)}, []string{label})
	}
	m := &metrics{
		registry:   prometheus.NewRegistry(),
		requests:   vec("plantstore_http_requests_total", "Requests answered, by route, status and error code (0 without error).", "route", "status", "error"),
		durations:  histogram("plantstore_http_request_duration_seconds", "Time from a request's headers until its answer is written.", "route"),
		inFlight:   gauge("plantstore_deletions_in_flight", "Deletions being worked on."),
		deletions:  vec("plantstore_deletions_total", "Deletions that were asked for, by outcome.", "outcome"),
		took:       histogram("plantstore_deletion_duration_seconds", "Time from a request's headers until its deletion had an outcome, by outcome.", "outcome"),
		principals: vec("plantstore_principal_deletions_total", "Plants deleted for each principal. Those of the identity provider count as other.", "principal"),
		sheds:      vec("plantstore_sheds_total", "Requests and client connections that were turned away because there were too many, by cause.", "cause"),
		ready:      gauge("plantstore_ready", "Whether requests can be served: 1 or 0."),
		database:   gauge("plantstore_database_up", "Whether the database answers: 1 or 0."),
		reasons:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "plantstore_not_ready", Help: "Why requests can't be served: 1 at the reason that holds."}, []string{"reason"}),
		named:      make(map[string]bool),
	}
	for _, o := range outcomes {
		m.deletions.WithLabelValues(o)
		m.took.WithLabelValues(o)
	}
	for _, cause := range []string{shedInFlight, shedFailures, shedRate, shedBudget, shedConnections} {
		m.sheds.WithLabelValues(cause)
	}
	m.principals.WithLabelValues(otherPrincipals)
	for _, reason := range notReadyReasons {
		m.reasons.WithLabelValues(reason)
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "plantstore_build_info",
		Help: "Always 1; the labels say what is running.",
		ConstLabels: prometheus.Labels{
			"version": c.Build.Version, "commit": c.Build.Commit, "go": runtime.Version(),
			"schema": strconv.FormatInt(c.Build.Schema, 10),
		},
	})
	build.Set(1)
	m.registry.MustRegister(m.requests, m.durations, m.inFlight, m.deletions, m.took, m.principals, m.sheds, m.ready, m.database, m.reasons, build,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.registry.MustRegister(c.Metrics...)
	return m
}

// begin has each route there from the start, with every answer to it.
func (m *metrics) begin(routes []*echo.Route) {
	add := func(route string, status int, code int32) {
		m.requests.WithLabelValues(route, strconv.Itoa(status), strconv.Itoa(int(code)))
	}
	m.durations.WithLabelValues(noRoute)
	for _, r := range routes {
		m.durations.WithLabelValues(r.Path)
		if r.Path == plantsRoute {
			continue
		}
		add(r.Path, http.StatusOK, 0)
		add(r.Path, http.StatusNotModified, 0)
		for _, a := range []errorAnswer{answerTo(errNoRoute), answerTo(errMethod), catalogue[len(catalogue)-1]} {
			add(r.Path, a.status(), a.code)
		}
	}
	add(plantsRoute, http.StatusNoContent, 0)
	for _, a := range catalogue {
		route := plantsRoute
		if a.code == codeNoRoute {
			route = noRoute
		}
		add(route, a.status(), a.code)
	}
}

// buckets are the bounds of a histogram of durations: up to the request's timeout, and
// what an answer takes beyond.
func buckets(timeout time.Duration) []float64 {
	all := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	most := timeout.Seconds()
	return append(slices.DeleteFunc(all, func(b float64) bool { return b >= most }), most, most+1)
}

func (m *metrics) request(route string, status int, code int32, took time.Duration) {
	m.requests.WithLabelValues(route, strconv.Itoa(status), strconv.Itoa(int(code))).Inc()
	m.durations.WithLabelValues(route).Observe(took.Seconds())
}

// deletion notes what came of a deletion that was tried, and returns it in a word.
func (m *metrics) deletion(p auth.Principal, r plant.Result, err error, took time.Duration) (outcome string) {
	switch {
	case err == nil && r.Replayed:
		outcome = outcomeReplayed
	case err == nil:
		outcome = outcomeDeleted
		m.principals.WithLabelValues(m.label(p)).Inc()
	default:
		outcome = answerTo(err).outcome
	}
	switch outcome {
	case "overloaded":
		m.sheds.WithLabelValues(shedInFlight).Inc()
	case "over_budget":
		m.sheds.WithLabelValues(shedBudget).Inc()
	}
	m.deletions.WithLabelValues(outcome).Inc()
	m.took.WithLabelValues(outcome).Observe(took.Seconds())
	return outcome
}

// label is the principal's value of a label.
func (m *metrics) label(p auth.Principal) string {
	if strings.HasPrefix(p.Name, auth.JWTPrefix) {
		return otherPrincipals
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.named[p.Name] && len(m.named) < namedPrincipals {
		m.named[p.Name] = true
	}
	if m.named[p.Name] {
		return p.Name
	}
	return otherPrincipals
}

// readiness notes why requests can't be served; empty: they can.
func (m *metrics) readiness(reason string) {
	set := func(g prometheus.Gauge, on bool) {
		if on {
			g.Set(1)
		} else {
			g.Set(0)
		}
	}
	set(m.ready, reason == "")
	if reason != reasonDraining { // which says nothing of the database
		set(m.database, reason != reasonUnreachable)
	}
	for _, r := range notReadyReasons {
		set(m.reasons.WithLabelValues(r), r == reason)
	}
}
