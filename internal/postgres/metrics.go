package postgres

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics count the attempts and batches of deletions. The server counts their outcomes.
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
