package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync"
	"time"

	"plantstore/cmd/internal/programs"
	"plantstore/cmd/internal/witness"
	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
)

// A cluster is the database under test: a primary with a streaming standby, each behind a
// proxy of its own.
//
// Replication is synchronous from the start to the end, also while there is no standby. So
// each commit that was acknowledged is on both servers, and the standby can be promoted at
// any moment without losing one. Commits that were not acknowledged may survive or be lost,
// and may be read before that is decided: the service has to cope with it.
//
// fsync is off: killed processes lose nothing that they wrote. Power failures are not tested
// here.
type cluster struct {
	log   io.Writer
	nodes []*node

	mu      sync.Mutex // guards primary and the nodes' servers against a failover, which alone changes them
	primary int        // index of the primary among nodes
}

// A node is a place for a server: the port that the service knows.
type node struct {
	proxy  *proxy
	server *localpg.Server // closed while it is replaced
}

// Roles and database of the store.
const (
	database = "plantstore"
	super    = "postgres"
	owner    = "plantstore_owner"
	app      = "plantstore_app"
)

// startCluster starts a primary and a standby from this machine's programs, with the schema in
// place. The caller has to close it.
func startCluster(ctx context.Context, log io.Writer) (_ *cluster, err error) {
	c := &cluster{log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	primary, err := localpg.Start(ctx, localpg.Options{Log: log, Settings: map[string]string{
		// Standbys call themselves walreceiver. pg_basebackup has another name and is never waited for.
		"synchronous_standby_names": "walreceiver",
		"fsync":                     "off",
		"shared_buffers":            "32MB",
		"wal_init_zero":             "off",
	}})
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
	return c, migrate.NewStore(ctx, primary.URL, database)
}

// add makes a node of a server, which is closed with the cluster.
func (c *cluster) add(server *localpg.Server) error {
	n := &node{server: server}
	c.nodes = append(c.nodes, n)
	var err error
	n.proxy, err = newProxy(server.Socket())
	return err
}

// url returns the primary's URL for a role, without the proxy.
func (c *cluster) url(role string) string { return c.atPrimary().server.URL(role, database) }

// proxied returns the service's URL: both nodes, through their proxies.
func (c *cluster) proxied() string {
	query := url.Values{"target_session_attrs": {"read-write"}, "sslmode": {"disable"}}
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d,127.0.0.1:%d/%s?%s", app, c.nodes[0].proxy.port(), c.nodes[1].proxy.port(), database, query.Encode())
}

// atPrimary returns the primary's node as it is now.
func (c *cluster) atPrimary() node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *c.nodes[c.primary]
}

// restart stops the primary in one of the ways and starts it again.
func (c *cluster) restart(ctx context.Context, mode localpg.Mode) error {
	server := c.atPrimary().server
	if err := server.Stop(ctx, mode); err != nil {
		return err
	}
	return server.Start(ctx)
}

// failover kills the primary, promotes the standby, and builds a new standby in the place of
// the old primary. With silently, the old primary's host seems to be lost, too: connections to
// it do not end before the new standby is there.
//
// The old primary is fenced before the promotion: Stop returns when its last process is gone.
func (c *cluster) failover(ctx context.Context, silently bool) error {
	old, next := c.nodes[c.primary], c.nodes[1-c.primary]
	lost, promoted := old.server, next.server
	if silently {
		defer old.proxy.blackHole()()
	}
	if err := lost.Stop(ctx, localpg.Kill); err != nil {
		return err
	}
	old.proxy.setTarget("")
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
	old.proxy.setTarget(standby.Socket())
	return nil
}

// loseUnreplicated stops the standby, cancels the waits for it for a while, and then fails
// over to it. The commits meanwhile are lost. It returns false if there was no wait to cancel.
func (c *cluster) loseUnreplicated(ctx context.Context, d time.Duration) (bool, error) {
	standby := c.nodes[1-c.primary].server
	if err := standby.Stop(ctx, localpg.Kill); err != nil {
		return false, err
	}
	cancelled := 0
	for end := time.Now().Add(d); time.Now().Before(end); programs.Sleep(ctx, 5*time.Millisecond) {
		n, err := witness.Value[int](ctx, c.url(super), `SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) `+witness.Sessions+` AND wait_event = 'SyncRep'`)
		if err != nil {
			return false, err
		}
		cancelled += n
	}
	// The primary goes first: nothing may reach the standby any more.
	if err := c.atPrimary().server.Stop(ctx, localpg.Kill); err != nil {
		return false, err
	}
	if err := standby.Start(ctx); err != nil {
		return false, err
	}
	return cancelled > 0, c.failover(ctx, false)
}

// trigger disables or enables the ledger's trigger. It tries until that is done, as other
// faults happen meanwhile.
func (c *cluster) trigger(ctx context.Context, what string) error {
	return programs.Until(ctx, strikeTimeout, what+" the trigger", func() error {
		return witness.Execute(ctx, c.url(owner), `SET lock_timeout = '1s'; ALTER TABLE public.plants `+what+` TRIGGER record_deletion`)
	})
}

// close ends proxies and servers and removes the servers' files.
func (c *cluster) close() error {
	var err error
	for _, n := range c.nodes {
		if n.proxy != nil {
			n.proxy.close()
		}
		err = errors.Join(err, n.server.Close())
	}
	return err
}
