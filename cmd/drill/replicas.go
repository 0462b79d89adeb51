package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"plantstore/cmd/internal/programs"
	"plantstore/cmd/internal/witness"
)

// A front is three replicas of the service behind HAProxy.
type front struct {
	replicas []*replica
	balancer *machine
	cluster  *cluster
	password string // of the service's role
}

// A replica is the service on a machine of its own.
type replica struct {
	*machine
	front   *front
	process *programs.Program
}

const (
	replicas  = 3
	port      = "8080"
	adminPort = "9090"
	// requestTimeout is longer than the longest failover.
	requestTimeout = 40 * time.Second
)

//go:embed haproxy.cfg
var haproxyFile string

// haproxyValues are for the template in haproxy.cfg.
type haproxyValues struct {
	Address, Port, Admin string
	Replicas             []*replica
}

// startFront starts the replicas of this release and HAProxy. It returns when all are ready.
func startFront(ctx context.Context, c *cluster) (*front, error) {
	f := &front{cluster: c}
	if err := f.setPassword(ctx, "first"); err != nil {
		return nil, err
	}
	for i := range replicas {
		m, err := c.add(ctx, fmt.Sprintf("app%d", i+1), 21+i)
		if err != nil {
			return nil, err
		}
		r := &replica{machine: m, front: f}
		f.replicas = append(f.replicas, r)
		if err := r.writeURL(); err != nil {
			return nil, err
		}
		if err := r.run(ctx, oldRelease); err != nil {
			return nil, err
		}
	}
	var err error
	if f.balancer, err = c.add(ctx, "lb", 31); err != nil {
		return nil, err
	}
	config := filepath.Join(f.balancer.folder, "haproxy.cfg")
	if err := fill(config, haproxyFile, haproxyValues{f.address(), port, adminPort, f.replicas}); err != nil {
		return nil, err
	}
	if _, err := f.balancer.start("haproxy", nil, filepath.Join(c.programs, "haproxy"), "-db", "-f", config); err != nil {
		return nil, err
	}
	return f, c.until(ctx, "HAProxy does not answer", func() error {
		return programs.Answers(ctx, "http://"+f.address()+"/openapi.yaml")
	})
}

// address returns HAProxy's address, which the clients use.
func (f *front) address() string { return f.balancer.IP + ":" + port }

// setPassword gives the service's role another password. writeURL gives it to the replicas.
func (f *front) setPassword(ctx context.Context, password string) error {
	f.password = password
	return witness.Execute(ctx, f.cluster.url("postgres"), "ALTER ROLE plantstore_app PASSWORD '"+password+"'")
}

func (r *replica) urlFile() string { return filepath.Join(r.folder, "database-url") }

// writeURL writes the database's URL to the replica's file.
func (r *replica) writeURL() error {
	u, err := url.Parse(r.front.cluster.url("plantstore_app"))
	if err != nil {
		return err
	}
	u.User = url.UserPassword("plantstore_app", r.front.password)
	next := r.urlFile() + ".next"
	if err := os.WriteFile(next, []byte(u.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(next, r.urlFile())
}

// run starts the replica with a release and returns when it is ready.
func (r *replica) run(ctx context.Context, release string) error {
	if err := r.launch(release); err != nil {
		return err
	}
	return r.untilReady(ctx)
}

// launch starts the replica with a release.
func (r *replica) launch(release string) (err error) {
	r.process, err = r.start("plantstore", []string{
		"DATABASE_URL_FILE=" + r.urlFile(),
		"PLANTSTORE_ADDR=" + r.IP + ":" + port,
		"PLANTSTORE_ADMIN_ADDR=" + r.IP + ":" + adminPort,
		"PLANTSTORE_REQUEST_TIMEOUT=" + requestTimeout.String(),
		"PLANTSTORE_SHUTDOWN_TIMEOUT=" + (requestTimeout + 10*time.Second).String(),
		"PLANTSTORE_DRAIN_DELAY=5s",
		"PLANTSTORE_TRUSTED_PROXIES=10.77.0.0/24",
		"PLANTSTORE_LOG_LEVEL=warn",
	}, filepath.Join(room, release), "serve")
	return err
}

// untilNotReady returns when /readyz gives a reason that contains a text.
func (r *replica) untilNotReady(ctx context.Context, reason string) error {
	return r.network.until(ctx, r.Name+" does not report "+reason, func() error {
		err := r.ready(ctx)
		if err != nil && strings.Contains(err.Error(), reason) {
			return nil
		}
		return fmt.Errorf("/readyz: %w", cmp.Or(err, errors.New("ready")))
	})
}

func (r *replica) ready(ctx context.Context) error {
	return programs.Answers(ctx, "http://"+r.IP+":"+adminPort+"/readyz")
}

func (r *replica) untilReady(ctx context.Context) error {
	return r.network.until(ctx, r.Name+" does not become ready", func() error { return r.ready(ctx) })
}

// stop ends the replica in order.
func (r *replica) stop() error { return r.process.End(syscall.SIGTERM, patience) }

// stop ends all replicas.
func (f *front) stop() error {
	var group errgroup.Group
	for _, r := range f.replicas {
		group.Go(r.stop)
	}
	return group.Wait()
}

// roll restarts the replicas with a release, one after the other. After each it waits until
// HAProxy has noticed.
func (f *front) roll(ctx context.Context, release string) error {
	for _, r := range f.replicas {
		if err := r.stop(); err != nil {
			return err
		}
		if err := r.run(ctx, release); err != nil {
			return err
		}
		programs.Sleep(ctx, 3*time.Second)
	}
	return nil
}
