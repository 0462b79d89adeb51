//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"plantstore/cmd/internal/programs"
	"plantstore/internal/localpg"
)

// A server is a contender that answers HTTP: the service or the bare handler.
type server struct {
	title   string
	store   *store
	address string
	process *localpg.Process
}

// startService starts a build of the service.
func (b *bench) startService(ctx context.Context, title, program string, s *store, d *distance) (*server, error) {
	admin, err := programs.FreeAddress()
	if err != nil {
		return nil, err
	}
	ready := func(string) error { return programs.Answers(ctx, "http://"+admin+"/readyz") }
	return b.start(ctx, title, s, ready, func(address string) *exec.Cmd {
		cmd := exec.Command(program, "serve")
		cmd.Env = append(localpg.Environ("PG", "PLANTSTORE_"),
			"DATABASE_URL="+s.url(d), "PLANTSTORE_ADDR="+address, "PLANTSTORE_ADMIN_ADDR="+admin)
		return cmd
	})
}

// startBare starts the bare handler.
func (b *bench) startBare(ctx context.Context, d *distance, pool int) (*server, error) {
	ready := func(address string) error {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	return b.start(ctx, bareName, b.plain, ready, func(address string) *exec.Cmd {
		cmd := exec.Command(b.bare)
		cmd.Env = append(localpg.Environ("PG"), "DATABASE_URL="+b.plain.url(d)+"&pool_max_conns="+strconv.Itoa(pool), "ADDR="+address)
		return cmd
	})
}

// start starts a server on a free address and waits until it is ready.
func (b *bench) start(ctx context.Context, title string, s *store, ready func(address string) error, command func(address string) *exec.Cmd) (*server, error) {
	address, err := programs.FreeAddress()
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	cmd := command(address)
	cmd.Stdout, cmd.Stderr = null, null
	c := &server{title: title, store: s, address: address}
	if c.process, err = localpg.StartProcess(cmd, syscall.SIGKILL); err != nil {
		return nil, err
	}
	b.processes = append(b.processes, c.process)
	if err := waitFor(ctx, c.process, func() error { return ready(address) }); err != nil {
		return nil, fmt.Errorf("start %s: %w", title, err)
	}
	return c, nil
}

// waitFor returns when ready returns nil.
func waitFor(ctx context.Context, p *localpg.Process, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return fmt.Errorf("it exited: %v", p.Err())
		case <-ctx.Done():
			return fmt.Errorf("it does not become ready: %w", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (c *server) name() string { return c.title }

func (c *server) measure(ctx context.Context, clients int, d time.Duration, rate float64) (m measurement, err error) {
	load, err := newLoader(c.address, c.store, clients)
	if err != nil {
		return m, err
	}
	defer load.close()
	return measure(c.process.PID(), c.store.postmaster, d, func(d time.Duration) ([]time.Duration, error) {
		return load.run(ctx, d, rate)
	})
}
