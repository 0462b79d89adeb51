// Package postgres deletes plants, authenticates tokens and tells whether the database can
// serve. Only this package knows the meaning of a driver's error for a deletion.
package postgres

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// Config has the database's address and the limits of a request.
type Config struct {
	URL            string        // libpq URL or DSN
	File           string        // or a file that holds it, which is read again for each connection
	Setting        string        // the name of the setting that has the URL, for messages
	RequestTimeout time.Duration // of a deletion whose context has no deadline
	MaxInFlight    int           // deletions in batches and their queue; more are rejected
	Log            *slog.Logger

	limits *limits         // tests set their own
	dial   pgconn.DialFunc // tests set their own
}

// limits bound the service's waits.
type limits struct {
	batchLock, batchStatement time.Duration // of a batch, by the server
	batch                     time.Duration // of a batch with its commit, by us
	soloLock, soloStatement   time.Duration // of a deletion that is locked or slow, by the server
	resolve                   time.Duration // of one call of plantstore.resolve
	control                   time.Duration // of one poll of the tokens, and of one look for readiness
	margin                    time.Duration // left of a request when its last attempt ends
	connect, ping, close      time.Duration
	queue                     time.Duration // for a place among those in flight
	remember                  time.Duration // how long plants, and principals' last deletions, are remembered
	outOfBatches              time.Duration // how long a locked or slow deletion keeps its principal out of batches
	poll, maxAge              time.Duration // of the tokens' snapshot: from one poll to the next, and until it is stale
	noteUses                  time.Duration // from one record of the tokens' last uses to the next
}

var defaults = limits{
	batchLock: 50 * time.Millisecond, batchStatement: 150 * time.Millisecond, batch: 1500 * time.Millisecond,
	soloLock: time.Second, soloStatement: 15 * time.Second,
	resolve: 2 * time.Second, control: 2 * time.Second, margin: 250 * time.Millisecond,
	connect: 2 * time.Second, ping: 250 * time.Millisecond, close: 500 * time.Millisecond,
	queue: 200 * time.Millisecond, remember: 5 * time.Second, outOfBatches: time.Second,
	poll: 2 * time.Second, maxAge: 5 * time.Second, noteUses: time.Minute,
}

const (
	defaultConns = 16
	minConns     = 4 // one for each pool
)

// DB is the store's database, reached through four pools. A wait in one pool never takes a
// connection of another.
type DB struct {
	Config
	limits limits

	batch    *pgxpool.Pool   // deletions that go together
	solo     *pgxpool.Pool   // deletions of plants that are locked or slow
	outcomes *pgxpool.Pool   // plantstore.resolve; a missing standby can hold all of these
	control  *pgxpool.Pool   // one connection for tokens and readiness
	conns    slots[connSlot] // of principals outside of batches

	roundTrip atomic.Int64 // nanoseconds, the shortest seen
	warned    atomic.Bool  // of a role's settings behind a pooler
	metrics   *metrics
	tokens    *Tokens
}

// Open prepares the pools. It does not connect: a database that is down now may be up when
// the first request comes. Its errors are for an operator.
func Open(ctx context.Context, c Config) (*DB, error) {
	db := &DB{Config: c, limits: defaults, metrics: newMetrics(), conns: slots[connSlot]{number: connSlot.most}}
	if c.limits != nil {
		db.limits = *c.limits
	}
	url, err := c.url()
	if err != nil {
		return nil, err
	}
	conns, err := poolSize(url)
	if err != nil {
		return nil, err
	}
	for _, p := range []struct {
		pool            **pgxpool.Pool
		conns           int
		lock, statement time.Duration
	}{
		{&db.batch, conns - 1 - max(1, conns/8) - max(1, conns/4), db.limits.batchLock, db.limits.batchStatement},
		{&db.solo, max(1, conns/4), db.limits.soloLock, db.limits.soloStatement},
		{&db.outcomes, max(1, conns/8), db.limits.soloLock, db.limits.soloStatement},
		{&db.control, 1, db.limits.soloLock, db.limits.control},
	} {
		if *p.pool, err = db.open(ctx, url, p.conns, p.lock, p.statement); err != nil {
			return nil, err
		}
	}
	db.tokens = newTokens(db)
	return db, nil
}

// url returns the URL, read from the file if there is one.
func (c Config) url() (string, error) {
	url := c.URL
	if c.File != "" {
		b, err := os.ReadFile(c.File)
		if err != nil {
			return "", fmt.Errorf("the file with the database's URL cannot be read: %w", err)
		}
		if url = strings.TrimSpace(string(b)); url == "" { // which would mean the PG* variables
			return "", fmt.Errorf("the file with the database's URL, %s, is empty", c.File)
		}
	}
	return url, CheckURL(c.Setting, url)
}

// poolSize is how many connections a URL asks for, in all pools together.
func poolSize(url string) (int, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return 0, err
	}
	n, _ := strconv.Atoi(cmp.Or(config.RuntimeParams["pool_max_conns"], strconv.Itoa(defaultConns))) // CheckURL found it to be a number
	if n < minConns {
		return 0, fmt.Errorf("pool_max_conns is %d: the service needs at least %d connections", n, minConns)
	}
	return n, nil
}

func (db *DB) open(ctx context.Context, url string, conns int, lock, statement time.Duration) (*pgxpool.Pool, error) {
	config, err := parse(url, db.limits.connect)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(conns)
	config.PingTimeout = db.limits.ping
	conn := config.ConnConfig
	dial := db.dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: conn.ConnectTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 3}}).DialContext
	}
	conn.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		// This deadline is for cancel requests, to which pgx gives 15 s. prepare removes it from
		// all other connections.
		return &quickClose{Conn: c, timeout: db.limits.close}, c.SetDeadline(time.Now().Add(conn.ConnectTimeout))
	}
	// A deadline becomes a cancel request, and the connection is kept: the server's answer
	// says whether the deletion was rolled back.
	conn.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: db.limits.margin / 2}
	}
	conn.OnNotice = noteCutShort
	closeOnFatal := conn.OnPgError
	conn.OnPgError = func(c *pgconn.PgConn, e *pgconn.PgError) bool {
		if e.Code == readOnlyTransaction { // a demoted primary: no connection to it is of use
			db.reset()
			return false
		}
		if e.Code == insufficientPrivilege && db.File != "" { // its role was perhaps replaced, and dropped
			return false
		}
		return closeOnFatal(c, e)
	}
	if db.File != "" {
		config.BeforeConnect = db.renew
	}
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error { return db.prepare(ctx, c, lock, statement) }
	return pgxpool.NewWithConfig(ctx, config)
}

// renew reads role and password again. If the file cannot be read, those of the start stay.
// Server and database always stay those of the start, since the ledger there knows the
// outcomes of lost attempts.
func (db *DB) renew(_ context.Context, c *pgx.ConnConfig) error {
	url, err := db.url()
	if err != nil {
		db.Log.Warn("database URL not renewed", "cause", err.Error())
		return nil
	}
	now, err := pgx.ParseConfig(url)
	if err == nil {
		c.User, c.Password = now.User, now.Password
	}
	return err
}

// reset closes all connections once they are idle.
func (db *DB) reset() {
	for _, p := range db.pools() {
		p.Reset()
	}
}

func (db *DB) pools() []*pgxpool.Pool {
	return []*pgxpool.Pool{db.batch, db.solo, db.outcomes, db.control}
}

// Run does background work, such as reading the tokens, until ctx ends.
func (db *DB) Run(ctx context.Context) { db.tokens.run(ctx) }

// Tokens returns the tokens of the database.
func (db *DB) Tokens() *Tokens { return db.tokens }

// MaxConns returns the limit of open connections.
func (db *DB) MaxConns() int32 {
	var n int32
	for _, p := range db.pools() {
		n += p.Config().MaxConns
	}
	return n
}

// Close ends all connections. It waits two seconds for those in use.
func (db *DB) Close() {
	var all sync.WaitGroup
	for _, p := range db.pools() {
		all.Go(p.Close)
	}
	wait, closed := context.WithTimeout(context.Background(), 2*time.Second)
	go func() {
		all.Wait()
		closed()
	}()
	<-wait.Done()
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
