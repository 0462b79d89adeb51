package postgres

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics count what deletions meet in the database. The server counts their outcomes.
type metrics struct {
	failed  *prometheus.CounterVec // by a meaning's word
	size    prometheus.Histogram
	running prometheus.Gauge
}

func newMetrics() *metrics {
	m := &metrics{
		failed:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "plantstore_attempts_failed_total", Help: "Attempts at deletions that failed, by reason."}, []string{"reason"}),
		size:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "plantstore_batch_size", Help: "Deletions in a batch.", Buckets: prometheus.ExponentialBuckets(1, 2, 9)}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{Name: "plantstore_batches_in_flight", Help: "Batches that the database works on."}),
	}
	for _, row := range meanings {
		if row.word != "" {
			m.failed.WithLabelValues(row.word) // shows 0 until it is counted
		}
	}
	return m
}

var (
	connectionsDesc = prometheus.NewDesc("plantstore_pool_connections", "Connections to the database, by pool and state.", []string{"pool", "state"}, nil)
	snapshotDesc    = prometheus.NewDesc("plantstore_token_snapshot_age_seconds", "Time since the tokens were last confirmed by the database.", nil, nil)
)

// Describe implements prometheus.Collector.
func (db *DB) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(db, ch) }

// Collect implements prometheus.Collector. It does not query the database.
func (db *DB) Collect(ch chan<- prometheus.Metric) {
	db.metrics.failed.Collect(ch)
	db.metrics.size.Collect(ch)
	db.metrics.running.Collect(ch)
	names := [...]string{"batch", "solo", "outcomes", "control"}
	for n, p := range db.pools() {
		s := p.Stat()
		for _, c := range []struct {
			state string
			n     int32
		}{{"in_use", s.AcquiredConns()}, {"idle", s.IdleConns()}, {"max", s.MaxConns()}} {
			ch <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(c.n), names[n], c.state)
		}
	}
	ch <- prometheus.MustNewConstMetric(snapshotDesc, prometheus.GaugeValue, db.tokens.age().Seconds())
}
