package postgres

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

// metrics are what deletions and look-ups of tokens show of themselves. Each value of a
// label is there from the start, so that the first of its kind is a rise.
type metrics struct {
	failed    *prometheus.CounterVec
	faults    *prometheus.CounterVec
	opened    prometheus.Counter
	batches   prometheus.Histogram
	inLine    prometheus.Histogram
	overheads prometheus.Histogram
	locks     prometheus.Histogram
	lookups   *prometheus.CounterVec
	// ledger is what was last read of the ledger; nil before.
	ledger atomic.Pointer[ledgerSize]
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help, label string, values ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		for _, v := range values {
			c.WithLabelValues(v)
		}
		return c
	}
	histogram := func(name, help string, first, factor float64, buckets int) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(first, factor, buckets)})
	}
	// The waits have buckets of up to eight minutes, as long as anybody lets a request take.
	return &metrics{
		failed: counters("plantstore_failed_attempts_total", "Attempts at deletions that did not bring the outcome, by reason.",
			"reason", failedLost, failedUnreachable, failedLocked, failedSlow, failedTogether, failedBusy),
		faults: counters("plantstore_database_faults_total", "Connections to the database that could not be had, or were lost in use.",
			"kind", faultConnect, faultLost),
		opened:    counter("plantstore_pool_opened_connections_total", "Connections to the database that were opened."),
		batches:   histogram("plantstore_batch_deletions", "Deletions that were committed together.", 1, 2, 7),
		inLine:    histogram("plantstore_connection_wait_seconds", "Time that a deletion waited for a connection or for its batch to begin.", .0001, 3, 15),
		overheads: histogram("plantstore_commit_wait_seconds", "Time that a batch took beyond the database's work on it: the network, the batches ahead of it on its connection, the commit to disk, and the synchronous standby.", .0001, 3, 15),
		locks:     histogram("plantstore_lock_wait_seconds", "Time that a deletion took from where it met a lock of somebody else's.", .001, 3, 13),
		lookups: counters("plantstore_token_lookups_total", "Tokens that were asked for: known from the cache, found in the database, unknown there, or not to be looked up.",
			"result", lookupCached, lookupFound, lookupUnknown, lookupFailed),
	}
}

// What came of asking for a token.
const (
	lookupCached  = "cached"
	lookupFound   = "found"
	lookupUnknown = "unknown"
	lookupFailed  = "failed"
)

// observe notes how a deletion went.
func (m *metrics) observe(c plant.Course) {
	if c.Tried > 0 {
		m.inLine.Observe(c.ForConnection.Seconds())
	}
	if c.ForLock > 0 {
		m.locks.Observe(c.ForLock.Seconds())
	}
}

// lookedUp notes what came of looking a token up.
func (m *metrics) lookedUp(err error) {
	result := lookupFound
	switch {
	case errors.Is(err, auth.ErrInvalidToken):
		result = lookupUnknown
	case err != nil:
		result = lookupFailed
	}
	m.lookups.WithLabelValues(result).Inc()
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("plantstore_"+name, help, labels, nil)
}

var (
	descMax    = desc("pool_max_connections", "Connections to the database that may be open at a time.")
	descOpen   = desc("pool_connections", "Connections to the database that are open or being opened.")
	descIdle   = desc("pool_idle_connections", "Connections to the database that are open and not in use.")
	descShare  = desc("pool_share_connections", "Connections to the database that a purpose may have in use.", "purpose")
	descInUse  = desc("pool_share_in_use_connections", "Connections to the database that a purpose has in use or waits to have opened.", "purpose")
	descWait   = desc("pool_share_waiting", "Those who wait until their purpose has a connection to spare.", "purpose")
	descBytes  = desc("ledger_bytes", "Size of the ledger with its indexes.")
	descRows   = desc("ledger_rows_inserted_total", "Rows that were inserted into the ledger, as the database's own statistics count them.")
	descExpiry = desc("token_expires_timestamp_seconds", "When the token ends that a principal used within a day, as a Unix time. Of several, the first to end.", "principal")
)

// Describe implements prometheus.Collector.
func (db *DB) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(db, ch) }

// Collect implements prometheus.Collector. It asks the database nothing.
func (db *DB) Collect(ch chan<- prometheus.Metric) {
	m := db.metrics
	for _, c := range []prometheus.Collector{m.failed, m.faults, m.opened, m.batches, m.inLine, m.overheads, m.locks, m.lookups} {
		c.Collect(ch)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	s := db.pool.Stat()
	gauge(descMax, float64(s.MaxConns()))
	gauge(descOpen, float64(s.TotalConns()))
	gauge(descIdle, float64(s.IdleConns()))
	for p := range purposes {
		gauge(descShare, float64(db.shares.size[p]), p.String())
		gauge(descInUse, float64(db.shares.inUse[p].Load()), p.String())
		gauge(descWait, float64(db.shares.waiting[p].Load()), p.String())
	}
	if l := m.ledger.Load(); l != nil && time.Since(l.read) < ledgerFresh {
		gauge(descBytes, float64(l.bytes))
		ch <- prometheus.MustNewConstMetric(descRows, prometheus.CounterValue, float64(l.inserted))
	}
}

// A ledgerSize is what the server's statistics know of the ledger.
type ledgerSize struct {
	bytes, inserted int64
	read            time.Time
}

const (
	// ledgerEvery is how often the ledger's size is read.
	ledgerEvery = 15 * time.Second
	// ledgerFresh is for how long it is shown: later, it may be of statistics that were begun
	// anew since, and would hide how those grow.
	ledgerFresh = time.Minute
	// ledgerTimeout bounds that. A migration may have the table locked.
	ledgerTimeout = 2 * time.Second
	// ledgerAgain is when it is tried again after it failed.
	ledgerAgain = time.Second
)

// WatchLedger reads the ledger's size from time to time, for the metrics, until ctx ends.
func (db *DB) WatchLedger(ctx context.Context) {
	for {
		limited, cancel := context.WithTimeout(ctx, ledgerTimeout)
		var size ledgerSize
		err := db.lend(limited, watched, func(conn *pgx.Conn) error {
			return queryRow(limited, conn, []any{&size.bytes, &size.inserted}, `
				SELECT pg_total_relation_size('public.plant_deletions'::regclass), pg_stat_get_tuples_inserted('public.plant_deletions'::regclass)`)
		})
		cancel()
		wait := ledgerAgain
		if err == nil {
			size.read = time.Now()
			db.metrics.ledger.Store(&size)
			wait = ledgerEvery
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// Kinds of faults.
const (
	faultConnect = "connect"
	faultLost    = "lost"
)

// tellEvery is how often a kind of fault is logged at most.
const tellEvery = 10 * time.Second

// faults logs faults of the database once, and not for each request that they hit.
type faults struct {
	log *slog.Logger

	mu        sync.Mutex
	throttles map[string]*throttle // by kind
}

type throttle struct {
	told time.Time
	more int // faults since
}

// LogFaults has connections that can't be had, or are lost, told to a log. It is called
// before the first request.
func (db *DB) LogFaults(log *slog.Logger) { db.faults.log = log }

func (db *DB) noteFault(kind string, err error) {
	db.metrics.faults.WithLabelValues(kind).Inc()
	f := &db.faults
	if f.log == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.throttles[kind]
	if t == nil {
		t = new(throttle)
		if f.throttles == nil {
			f.throttles = make(map[string]*throttle)
		}
		f.throttles[kind] = t
	}
	if time.Since(t.told) < tellEvery {
		t.more++
		return
	}
	f.log.Warn("database fault", "kind", kind, "cause", Explain(err), "more_of_the_kind_before", t.more)
	t.told, t.more = time.Now(), 0
}

// lately is how long ago a token counts as in use for the metrics. The one that another
// has replaced is of no interest soon.
const lately = 24 * time.Hour

// endsLately reports whether a token is one that ends, is good, and was in use lately.
func (c *cached) endsLately(now time.Time) bool {
	return !c.token.ExpiresAt.IsZero() && c.token.ValidAt(now) && now.Sub(c.readAt) <= lately
}

// Describe implements prometheus.Collector.
func (t *Tokens) Describe(ch chan<- *prometheus.Desc) { ch <- descExpiry }

// Collect implements prometheus.Collector.
func (t *Tokens) Collect(ch chan<- prometheus.Metric) {
	now, ends := time.Now(), make(map[string]time.Time)
	for _, digest := range t.cache.Keys() {
		c, ok := t.cache.Peek(digest)
		if !ok || !c.endsLately(now) {
			continue
		}
		principal := c.token.Principal.Name
		if end, ok := ends[principal]; !ok || c.token.ExpiresAt.Before(end) {
			ends[principal] = c.token.ExpiresAt
		}
	}
	for principal, end := range ends {
		ch <- prometheus.MustNewConstMetric(descExpiry, prometheus.GaugeValue, float64(end.Unix()), principal)
	}
}
