// Package postgres deletes plants, authenticates tokens and tells whether the database can
// serve. It is the one place that knows what an error of the driver means for a deletion.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config says where the database is and what a request may take.
type Config struct {
	URL            string        // libpq URL or DSN
	File           string        // or a file that holds it, which is read again for each connection
	Setting        string        // the name of the setting that has the URL, for messages
	RequestTimeout time.Duration // of a deletion whose context has no deadline
	MaxInFlight    int           // deletions in batches and their queue; more are rejected
	Log            *slog.Logger

	limits *limits         // tests set their own
	dial   pgconn.DialFunc // likewise
}

// limits bound what the service waits for.
type limits struct {
	batchLock, batchStatement time.Duration // of a batch, by the server
	batch                     time.Duration // of a batch with its commit, by us
	soloLock, soloStatement   time.Duration // of a deletion that is locked or slow, by the server
	ask                       time.Duration // of one question about an outcome, and of one poll
	margin                    time.Duration // left of a request when its last attempt ends
	connect, ping, close      time.Duration
	queue                     time.Duration // for a place among those in flight
	recent, failing           time.Duration // how long a locked or slow plant, and a failing principal, keep out of batches
	often                     time.Duration // in which three refusals make a principal fail
	poll, maxAge              time.Duration // of the tokens' snapshot: from one poll to the next, and until it is stale
	used                      time.Duration // from one note of last uses to the next
}

var defaults = limits{
	batchLock: 50 * time.Millisecond, batchStatement: 150 * time.Millisecond, batch: 1500 * time.Millisecond,
	soloLock: time.Second, soloStatement: 15 * time.Second,
	ask: 2 * time.Second, margin: 250 * time.Millisecond,
	connect: 2 * time.Second, ping: 250 * time.Millisecond, close: 500 * time.Millisecond,
	queue: 200 * time.Millisecond, recent: 5 * time.Second, failing: time.Second, often: 20 * time.Millisecond,
	poll: 2 * time.Second, maxAge: 5 * time.Second, used: time.Minute,
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

	batch   *pgxpool.Pool // deletions that go together
	solo    *pgxpool.Pool // deletions of plants that are locked or slow
	ask     *pgxpool.Pool // outcomes; a missing standby can hold all of these
	control *pgxpool.Pool // one connection for tokens and readiness

	server      string       // or servers, for messages
	roundTrip   atomic.Int64 // nanoseconds, the shortest seen
	warnSession sync.Once
	warnRole    sync.Once
	metrics     *metrics
	tokens      *Tokens
}

// Open prepares the pools. It does not connect: a database that is down now may be up when
// the first request comes. Its errors are for an operator.
func Open(ctx context.Context, c Config) (*DB, error) {
	db := &DB{Config: c, limits: defaults, metrics: newMetrics()}
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
		{&db.ask, max(1, conns/8), db.limits.soloLock, db.limits.soloStatement},
		{&db.control, 1, db.limits.soloLock, db.limits.ask},
	} {
		if *p.pool, err = db.open(ctx, url, p.conns, p.lock, p.statement); err != nil {
			return nil, err
		}
	}
	db.server = servers(db.batch.Config().ConnConfig)
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
	text, ok := config.RuntimeParams["pool_max_conns"]
	if !ok {
		return defaultConns, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < minConns {
		return 0, fmt.Errorf("pool_max_conns is %s: the service needs at least %d connections", text, minConns)
	}
	return n, nil
}

func (db *DB) open(ctx context.Context, url string, conns int, lock, statement time.Duration) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(conns)
	config.PingTimeout = db.limits.ping
	conn := config.ConnConfig
	if conn.ConnectTimeout == 0 {
		conn.ConnectTimeout = db.limits.connect
	}
	conn.RuntimeParams["client_encoding"] = "UTF8"
	if conn.RuntimeParams["application_name"] == "" {
		conn.RuntimeParams["application_name"] = "plantstore"
	}
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
		return closeOnFatal(c, e)
	}
	if several(&conn.Config) && conn.ValidateConnect == nil {
		conn.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
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
	if err != nil {
		db.Log.Warn("database URL not renewed", "cause", Explain(err, db.Setting))
		return nil
	}
	c.User, c.Password = now.User, now.Password
	return nil
}

// settings apply to each of the service's sessions. A transaction pooler carries none of
// them, so deploy/postgres/roles.sql sets them for the role.
var settings = [...]struct{ name, value string }{
	{"synchronous_commit", "on"},
	{"default_transaction_isolation", "read committed"},
	{"plan_cache_mode", "force_generic_plan"}, // a custom plan is made anew for each array of ids
	{"enable_seqscan", "off"},                 // a plan made on an empty table stays good on a full one
	{"jit", "off"},
	{"client_min_messages", "warning"}, // a cut-short wait for the standby is a warning
	{"idle_in_transaction_session_timeout", "5s"},
	{"tcp_keepalives_idle", "5"},
}

// prepare makes the session's settings. Behind a pooler, which makes up the process id that
// the driver knows, the session belongs to others, too, so it is only checked.
func (db *DB) prepare(ctx context.Context, c *pgx.Conn, lock, statement time.Duration) error {
	if err := c.PgConn().Conn().SetDeadline(time.Time{}); err != nil {
		return fmt.Errorf("prepare session: %w", err)
	}
	if c.PgConn().ParameterStatus("is_superuser") == "on" {
		db.warnRole.Do(func() {
			db.Log.Warn("the service connects as a superuser: its password opens the whole server", "role", c.Config().User)
		})
	}
	ctx, cancel := context.WithTimeout(ctx, db.limits.connect)
	defer cancel()
	names := []string{"lock_timeout", "statement_timeout"}
	values := []string{fmt.Sprint(lock.Milliseconds()), fmt.Sprint(statement.Milliseconds())}
	for _, s := range settings {
		names, values = append(names, s.name), append(values, s.value)
	}
	// remote_apply and remote_write are the operator's choice.
	tag, err := c.Exec(ctx, `SELECT set_config(s.name, s.value, false) FROM unnest($1::text[], $2::text[]) s (name, value)
		WHERE pg_backend_pid() = $3::bigint AND NOT (s.name = 'synchronous_commit' AND current_setting(s.name) LIKE 'remote%')`,
		names, values, int64(c.PgConn().PID()))
	if err != nil {
		return fmt.Errorf("prepare session: %w", err)
	}
	if tag.RowsAffected() == 0 {
		c.PgConn().CustomData()[throughPooler] = true
		return db.checkSession(ctx, c)
	}
	began := time.Now()
	if err := c.Ping(ctx); err != nil {
		return fmt.Errorf("prepare session: %w", err)
	}
	took := int64(time.Since(began))
	if shortest := db.roundTrip.Load(); shortest == 0 || took < shortest {
		db.roundTrip.Store(took)
	}
	return nil
}

// throughPooler is set in the custom data of a connection that ends at a pooler.
const throughPooler = "through pooler"

// checkSession warns of settings that a role behind a pooler lacks. A deletion needs the
// isolation level; it checks that itself.
func (db *DB) checkSession(ctx context.Context, c *pgx.Conn) (err error) {
	db.warnSession.Do(func() {
		var wrong []string
		for _, s := range settings[:5] {
			var now string
			if err = c.QueryRow(ctx, `SELECT current_setting($1)`, s.name).Scan(&now); err != nil {
				return
			}
			if now != s.value && !strings.HasPrefix(now, "remote_") { // of synchronous_commit, the operator's choice
				wrong = append(wrong, s.name+" is "+now)
			}
		}
		if wrong != nil {
			db.Log.Warn("the service's role lacks settings that a pooler cannot carry: run deploy/postgres/roles.sql", "settings", strings.Join(wrong, ", "))
		}
	})
	return err
}

// reset closes all connections once they are idle.
func (db *DB) reset() {
	for _, p := range db.pools() {
		p.Reset()
	}
}

func (db *DB) pools() []*pgxpool.Pool { return []*pgxpool.Pool{db.batch, db.solo, db.ask, db.control} }

// Run does background work, such as reading the tokens, until ctx ends.
func (db *DB) Run(ctx context.Context) { db.tokens.run(ctx) }

// Tokens returns the tokens of the database.
func (db *DB) Tokens() *Tokens { return db.tokens }

// MaxConns is how many connections may be open at a time.
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
	closed := make(chan struct{})
	go func() {
		all.Wait()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(2 * time.Second):
	}
}

// cutShort is set in the custom data of a connection when a commit did not wait for its
// synchronous standby to the end.
const cutShort = "cut short"

var errCutShort = errors.New("the wait for the synchronous standby was cut short")

func noteCutShort(c *pgconn.PgConn, n *pgconn.Notice) {
	if n.Routine == "SyncRepWaitForLSN" {
		c.CustomData()[cutShort] = true
	}
}

// takeCutShort returns errCutShort if a connection's wait was cut short since the last call.
func takeCutShort(c *pgx.Conn) error {
	data := c.PgConn().CustomData()
	if data[cutShort] == nil {
		return nil
	}
	delete(data, cutShort)
	return errCutShort
}

// A quickClose is a connection that closes quickly. pgx waits 15 s for a peer that is gone,
// and the connection keeps its place in the pool meanwhile.
type quickClose struct {
	net.Conn
	timeout time.Duration
}

func (c *quickClose) SetDeadline(t time.Time) error {
	if most := time.Now().Add(c.timeout); t.After(most) {
		t = most
	}
	return c.Conn.SetDeadline(t)
}

// several reports whether a configuration names more than one server.
func several(c *pgconn.Config) bool {
	return slices.ContainsFunc(c.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.Host != c.Host || f.Port != c.Port })
}

// servers lists the servers of a configuration in the order they are tried.
func servers(c *pgx.ConnConfig) string {
	all := []string{address(c.Host, c.Port)}
	for _, f := range c.Fallbacks {
		if a := address(f.Host, f.Port); !slices.Contains(all, a) { // TLS and plain are two entries
			all = append(all, a)
		}
	}
	return strings.Join(all, ", ")
}

func address(host string, port uint16) string {
	if strings.HasPrefix(host, "/") {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
