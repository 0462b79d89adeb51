package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
	"plantstore/internal/postgres"
)

// A cluster is the database under test: one server, or a primary with a
// streaming standby, each behind a proxy of its own.
//
// With two servers replication is synchronous from the start to the end: nothing
// ever takes synchronous_standby_names back, not even while there is no standby.
// So every commit that was acknowledged is on both servers, and the standby can
// be promoted at any moment, caught up or not, without losing one. The price is
// that while the standby is being built again no commit is acknowledged at all.
// Commits that were not acknowledged may survive or be lost, and may be read
// before it is decided which: that is what the service has to cope with.
//
// fsync is off: killed processes lose nothing that they wrote, the operating
// system has it. What a power failure does is not tested here.
type cluster struct {
	urls  urls // of a cluster of one server that is not ours to stop
	log   io.Writer
	nodes []*node

	mu      sync.Mutex // guards what a failover changes: primary and the nodes' servers
	primary int        // index of the primary among nodes
}

// urls are those of one database, past the proxy, for the roles that the
// migrations know.
type urls struct{ super, owner, app string }

// A node is a place for a server: the port that the service knows.
type node struct {
	proxy  *proxy
	server *localpg.Server // nil if it is not ours; closed while it is replaced
}

const database = "plantstore"

// settings returns those of both servers. Standbys call themselves walreceiver,
// where pg_basebackup has a name of its own and is never waited for.
func settings() map[string]string {
	return map[string]string{
		"synchronous_standby_names": "walreceiver",
		"fsync":                     "off",
		"shared_buffers":            "32MB",
		"wal_init_zero":             "off",
	}
}

// startCluster starts a primary and a standby from the PostgreSQL installed on
// this machine, with the schema in place. The caller has to close it.
func startCluster(ctx context.Context, log io.Writer) (_ *cluster, err error) {
	c := &cluster{log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	primary, err := localpg.Start(ctx, localpg.Options{Settings: settings(), Log: log})
	if err != nil {
		return nil, err
	}
	if err := c.add(primary); err != nil {
		return nil, err
	}
	standby, err := primary.Standby(ctx, localpg.Options{Log: log})
	if err != nil {
		return nil, err
	}
	if err := c.add(standby); err != nil {
		return nil, err
	}
	if err := migrate.NewStore(ctx, primary.URL, database); err != nil {
		return nil, err
	}
	return c, nil
}

// add makes a node of a server, which is closed with the cluster.
func (c *cluster) add(server *localpg.Server) error {
	n := &node{server: server}
	c.nodes = append(c.nodes, n)
	target, err := addressOf(server.URL("postgres", "postgres"))
	if err != nil {
		return err
	}
	n.proxy, err = newProxy(target)
	return err
}

// addressOf is where the server of a database's URL listens.
func addressOf(databaseURL string) (address, error) {
	config, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		return address{}, err
	}
	network, at := pgconn.NetworkAddress(config.Host, config.Port)
	return address{network, at}, nil
}

// ours reports whether the servers can be stopped.
func (c *cluster) ours() bool { return c.urls == urls{} }

// direct returns the URLs of the primary, past the proxy.
func (c *cluster) direct() urls {
	if !c.ours() {
		return c.urls
	}
	server := c.primaryServer()
	return urls{
		super: server.URL("postgres", database),
		owner: server.URL("plantstore_owner", database),
		app:   server.URL("plantstore_app", database),
	}
}

// proxied is the URL for the service: all nodes, through their proxies.
func (c *cluster) proxied() (string, error) {
	u, err := url.Parse(c.direct().app)
	if err != nil {
		return "", err
	}
	var hosts, ports []string
	for _, n := range c.nodes {
		hosts = append(hosts, "127.0.0.1")
		ports = append(ports, strconv.Itoa(n.proxy.port()))
	}
	u.Host = ""
	query := u.Query()
	query.Set("host", strings.Join(hosts, ","))
	query.Set("port", strings.Join(ports, ","))
	query.Set("target_session_attrs", "read-write")
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// atPrimary is the node of the primary.
func (c *cluster) atPrimary() *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[c.primary]
}

func (c *cluster) primaryServer() *localpg.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[c.primary].server
}

// restart stops the primary in one of the ways and starts it again.
func (c *cluster) restart(ctx context.Context, mode localpg.Mode) error {
	server := c.primaryServer()
	if err := server.Stop(ctx, mode); err != nil {
		return err
	}
	return server.Start(ctx)
}

// failover kills the primary, promotes the standby, and builds a new standby in
// the place of the old primary. silently, the old primary's host seems to be
// lost with it: its connections do not end before the new standby is there.
//
// The old primary is fenced before the promotion begins: Stop returns when the
// last of its processes is gone, and its data are never served again.
func (c *cluster) failover(ctx context.Context, silently bool) error {
	c.mu.Lock()
	old, next := c.nodes[c.primary], c.nodes[1-c.primary]
	lost, promoted := old.server, next.server
	c.mu.Unlock()
	if silently {
		end := old.proxy.blackHole()
		defer end()
	}
	if err := lost.Stop(ctx, localpg.Kill); err != nil {
		return err
	}
	old.proxy.setTarget(address{})
	if err := promoted.Promote(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	c.primary = 1 - c.primary
	c.mu.Unlock()

	if err := lost.Close(); err != nil {
		return err
	}
	standby, err := promoted.Standby(ctx, localpg.Options{Log: c.log})
	if err != nil {
		return err
	}
	c.mu.Lock()
	old.server = standby
	c.mu.Unlock()
	target, err := addressOf(standby.URL("postgres", "postgres"))
	if err != nil {
		return err
	}
	old.proxy.setTarget(target)
	return nil
}

// loseUnreplicated stops the standby, cancels the waits for it for a while, and then
// fails over to it: what was committed meanwhile is lost. It reports false when there
// was no wait to cancel.
func (c *cluster) loseUnreplicated(ctx context.Context, d time.Duration) (bool, error) {
	c.mu.Lock()
	standby := c.nodes[1-c.primary].server
	c.mu.Unlock()
	if err := standby.Stop(ctx, localpg.Kill); err != nil {
		return false, err
	}
	cancelled := 0
	for end := time.Now().Add(d); time.Now().Before(end); sleep(ctx, 5*time.Millisecond) {
		n, err := c.count(ctx, `SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) FROM pg_stat_activity
			WHERE usename = 'plantstore_app' AND datname = current_database() AND wait_event = 'SyncRep'`)
		if err != nil {
			return false, err
		}
		cancelled += n
	}
	// The primary goes first: nothing may reach the standby any more.
	if err := c.primaryServer().Stop(ctx, localpg.Kill); err != nil {
		return false, err
	}
	if err := standby.Start(ctx); err != nil {
		return false, err
	}
	return cancelled > 0, c.failover(ctx, false)
}

// trigger disables or enables the ledger's trigger. It tries until it is known to be
// done: other faults happen meanwhile.
func (c *cluster) trigger(ctx context.Context, what string) error {
	for {
		err := postgres.Script(ctx, c.direct().owner,
			`SET lock_timeout = '1s'; ALTER TABLE public.plants `+what+` TRIGGER plantstore_record_deletion`)
		if err == nil || !sleep(ctx, 20*time.Millisecond) {
			return err
		}
	}
}

// backends are the processes of the service's sessions at the primary.
func (c *cluster) backends(ctx context.Context) (pids []int, err error) {
	conn, err := pgx.Connect(ctx, c.direct().super)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, `SELECT pid FROM pg_stat_activity WHERE usename = 'plantstore_app' AND datname = current_database()`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int])
}

// terminate ends the service's sessions at the primary, and returns how many
// there were.
func (c *cluster) terminate(ctx context.Context) (int, error) {
	return c.count(ctx, `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE usename = 'plantstore_app' AND datname = current_database()`)
}

// quiesce returns when no session of the service is left at the primary.
func (c *cluster) quiesce(ctx context.Context) error {
	for {
		n, err := c.count(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE usename = 'plantstore_app' AND datname = current_database()`)
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d sessions of the service did not end: %w", n, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// count runs a query that gives one number, as the superuser.
func (c *cluster) count(ctx context.Context, sql string) (n int, err error) {
	conn, err := pgx.Connect(ctx, c.direct().super)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, sql).Scan(&n)
	return n, err
}

// close ends proxies and servers and removes the servers' files.
func (c *cluster) close() error {
	var err error
	for _, n := range c.nodes {
		if n.proxy != nil {
			n.proxy.close()
		}
		if n.server != nil {
			err = errors.Join(err, n.server.Close())
		}
	}
	return err
}
