package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"plantstore/cmd/internal/programs"
	"plantstore/cmd/internal/witness"
	"plantstore/internal/localpg"
)

// A front is three replicas of the service behind HAProxy.
type front struct {
	replicas []*replica
	balancer *machine
	cluster  *cluster
	password string // of the service's role
	timeout  time.Duration
}

// A replica is the service on a machine of its own.
type replica struct {
	*machine
	front   *front
	process *localpg.Process
}

const (
	replicas   = 3
	port       = "8080"
	adminPort  = "9090"
	drainDelay = 5 * time.Second
)

//go:embed haproxy.cfg
var haproxyFile string

// startFront starts the replicas with a program, and HAProxy, and returns when all is
// ready.
func startFront(ctx context.Context, n *network, c *cluster, program string, timeout time.Duration) (*front, error) {
	f := &front{cluster: c, timeout: timeout}
	if err := f.setPassword(ctx, "first"); err != nil {
		return nil, err
	}
	for i := range replicas {
		m, err := n.add(ctx, fmt.Sprintf("app%d", i+1), 21+i)
		if err != nil {
			return nil, err
		}
		r := &replica{machine: m, front: f}
		f.replicas = append(f.replicas, r)
		if err := r.writeURL(); err != nil {
			return nil, err
		}
		if err := r.run(ctx, program); err != nil {
			return nil, err
		}
	}
	var err error
	if f.balancer, err = n.add(ctx, "lb", 31); err != nil {
		return nil, err
	}
	text, err := fill(haproxyFile, struct {
		Address, Port, Admin string
		Replicas             []*replica
	}{f.address(), port, adminPort, f.replicas})
	if err != nil {
		return nil, err
	}
	config := filepath.Join(f.balancer.folder, "haproxy.cfg")
	if err := os.WriteFile(config, text, 0o644); err != nil {
		return nil, err
	}
	if _, err := f.balancer.start("haproxy", nil, filepath.Join(n.programs, "haproxy"), "-db", "-f", config); err != nil {
		return nil, err
	}
	return f, until(ctx, "HAProxy does not answer", func() error {
		if err := n.ended(); err != nil {
			return err
		}
		return get(ctx, "http://"+f.address()+"/openapi.yaml")
	})
}

// address is where clients find the service.
func (f *front) address() string { return f.balancer.IP + ":" + port }

// setPassword gives the service's role another password. The replicas learn of it by
// writeURL.
func (f *front) setPassword(ctx context.Context, password string) error {
	err := witness.Execute(ctx, f.cluster.url("postgres", database), "ALTER ROLE plantstore_app PASSWORD '"+password+"'")
	if err == nil {
		f.password = password
	}
	return err
}

func (r *replica) urlFile() string { return filepath.Join(r.folder, "database-url") }

// writeURL puts the database's URL where the replica finds it.
func (r *replica) writeURL() error {
	u, err := url.Parse(r.front.cluster.url("plantstore_app", database))
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

// run starts the replica with a program and returns when it is ready.
func (r *replica) run(ctx context.Context, program string) (err error) {
	r.process, err = r.start("plantstore", []string{
		"DATABASE_URL_FILE=" + r.urlFile(),
		"PLANTSTORE_ADDR=" + r.IP + ":" + port,
		"PLANTSTORE_ADMIN_ADDR=" + r.IP + ":" + adminPort,
		"PLANTSTORE_REQUEST_TIMEOUT=" + r.front.timeout.String(),
		"PLANTSTORE_SHUTDOWN_TIMEOUT=" + (r.front.timeout + 10*time.Second).String(),
		"PLANTSTORE_DRAIN_DELAY=" + drainDelay.String(),
		"PLANTSTORE_TRUSTED_PROXIES=10.77.0.0/24",
		"PLANTSTORE_LOG_LEVEL=warn",
	}, program, "serve")
	if err != nil {
		return err
	}
	return r.untilReady(ctx)
}

func (r *replica) untilReady(ctx context.Context) error {
	return until(ctx, r.Name+" does not become ready", func() error {
		if err := r.network.ended(); err != nil {
			return err
		}
		return get(ctx, "http://"+r.IP+":"+adminPort+"/readyz")
	})
}

// stop ends the replica in order.
func (r *replica) stop() error {
	err := r.process.Signal(syscall.SIGTERM)
	select {
	case <-r.process.Done():
		err = cmp.Or(r.process.Err(), err)
	case <-time.After(patience):
		r.process.Kill()
		err = fmt.Errorf("it went on for %v", patience)
	}
	if err != nil {
		return fmt.Errorf("stop %s: %w", r.Name, err)
	}
	return nil
}

// stop ends all replicas.
func (f *front) stop() error {
	var group errgroup.Group
	for _, r := range f.replicas {
		group.Go(r.stop)
	}
	return group.Wait()
}

// roll restarts the replicas with a program, one after the other. After each it waits until
// HAProxy has noticed.
func (f *front) roll(ctx context.Context, program string) error {
	for _, r := range f.replicas {
		if err := r.stop(); err != nil {
			return err
		}
		if err := r.run(ctx, program); err != nil {
			return err
		}
		if !witness.Sleep(ctx, 3*time.Second) {
			return ctx.Err()
		}
	}
	return nil
}

// untilReady returns when all replicas are.
func (f *front) untilReady(ctx context.Context) error {
	for _, r := range f.replicas {
		if err := r.untilReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// get returns nil for a 200.
func get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return programs.Answers(ctx, url)
}
