package server

import (
	"errors"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"plantstore/internal/plant"
)

// PoolStats are the figures of the database connections. Counts and the wait
// are since the start.
type PoolStats struct {
	MaxConns, TotalConns, AcquiredConns, IdleConns int32
	Acquires, EmptyAcquires, CanceledAcquires      int64
	AcquireWait                                    time.Duration
	NewConns                                       int64
}

// metrics are what /metrics shows. No label has values that a client controls.
type metrics struct {
	registry  *prometheus.Registry
	requests  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	inFlight  prometheus.Gauge
	deletions *prometheus.CounterVec
}

func newMetrics(c Config) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "plantstore_http_requests_total",
			Help: "Requests answered, by route, status and error code (0 without error).",
		}, []string{"route", "status", "error"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "plantstore_http_request_duration_seconds",
			Help:    "Time from a request's headers until its answer is written.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"route"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "plantstore_deletions_in_flight",
			Help: "Deletions being worked on.",
		}),
		deletions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "plantstore_deletions_total",
			Help: "Deletions that were asked for, by outcome.",
		}, []string{"outcome"}),
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
	m.registry.MustRegister(m.requests, m.durations, m.inFlight, m.deletions, build,
		poolCollector{c.Pool},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) request(route string, status int, code int32, took time.Duration) {
	m.requests.WithLabelValues(route, strconv.Itoa(status), strconv.Itoa(int(code))).Inc()
	m.durations.WithLabelValues(route).Observe(took.Seconds())
}

func (m *metrics) deletion(r plant.Result, err error) {
	m.deletions.WithLabelValues(outcome(r, err)).Inc()
}

func outcome(r plant.Result, err error) string {
	switch {
	case err == nil && r.Replayed:
		return "replayed"
	case err == nil:
		return "deleted"
	case errors.Is(err, plant.ErrNotFound):
		return "not_found"
	case isA[*plant.DeletedEarlierError](err):
		return "deleted_earlier"
	case isA[*plant.ReferencedError](err):
		return "referenced"
	case errors.Is(err, plant.ErrUnknown):
		return "unknown"
	case isA[*plant.OverBudgetError](err):
		return "over_budget"
	case errors.Is(err, plant.ErrUnavailable):
		return "unavailable"
	case errors.Is(err, plant.ErrBusy):
		return "busy"
	case errors.Is(err, plant.ErrStoreRule):
		return "store_rule"
	case errors.Is(err, plant.ErrHindered):
		return "hindered"
	case errors.Is(err, plant.ErrOverloaded):
		return "overloaded"
	default:
		return "error"
	}
}

// A poolCollector reads the pool's figures when they are asked for.
type poolCollector struct {
	stats func() PoolStats
}

var (
	poolMax      = poolDesc("max_connections", "Connections that may be open at a time.")
	poolTotal    = poolDesc("connections", "Connections that are open or being opened.")
	poolAcquired = poolDesc("acquired_connections", "Connections in use.")
	poolIdle     = poolDesc("idle_connections", "Connections open and not in use.")
	poolAcquires = poolDesc("acquires_total", "Connections taken from the pool.")
	poolEmpty    = poolDesc("empty_acquires_total", "Takes that had to wait for a connection.")
	poolCanceled = poolDesc("canceled_acquires_total", "Takes given up before there was a connection.")
	poolWait     = poolDesc("acquire_wait_seconds_total", "Time that takes waited for a connection.")
	poolNew      = poolDesc("new_connections_total", "Connections opened.")
)

func poolDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("plantstore_pool_"+name, help, nil, nil)
}

// Describe implements prometheus.Collector.
func (c poolCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c poolCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.stats()
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	count := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v)
	}
	gauge(poolMax, float64(s.MaxConns))
	gauge(poolTotal, float64(s.TotalConns))
	gauge(poolAcquired, float64(s.AcquiredConns))
	gauge(poolIdle, float64(s.IdleConns))
	count(poolAcquires, float64(s.Acquires))
	count(poolEmpty, float64(s.EmptyAcquires))
	count(poolCanceled, float64(s.CanceledAcquires))
	count(poolWait, s.AcquireWait.Seconds())
	count(poolNew, float64(s.NewConns))
}
