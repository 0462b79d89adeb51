package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"plantstore/cmd/internal/programs"
	"plantstore/cmd/internal/witness"
	"plantstore/internal/localpg"
)

// A service is the program under test. It has the same two ports in every life.
type service struct {
	folder  string // removed with the service
	program string
	env     []string
	address string // of the public listener
	admin   string // of the operators'
	log     *localpg.Tail
	timeout time.Duration // of a request; zero: another one at each start

	process *localpg.Process // nil before the first start
}

const (
	longestTimeout = 10 * time.Second
	// slack is added to each limit, so that a busy machine does not count as hung.
	slack = 30 * time.Second
)

// launch builds the service, starts it, and returns it when it is ready. The caller has to
// close it.
func launch(ctx context.Context, c config, databaseURL string) (_ *service, err error) {
	folder, err := os.MkdirTemp("", "chaos-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the service: %w", err)
	}
	s := &service{folder: folder, log: &localpg.Tail{W: c.log}, timeout: c.timeout}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.program, err = programs.Build(ctx, folder, programs.Spec{Package: "cmd/plantstore", Race: c.race, Sabotage: c.sabotage}); err != nil {
		return nil, err
	}
	for _, at := range []*string{&s.address, &s.admin} {
		if *at, err = programs.FreeAddress(); err != nil {
			return nil, err
		}
	}
	s.env = append(localpg.Environ("PG", "PLANTSTORE_"),
		"DATABASE_URL="+databaseURL,
		"PLANTSTORE_ADDR="+s.address,
		"PLANTSTORE_ADMIN_ADDR="+s.admin,
		"PLANTSTORE_DRAIN_DELAY=50ms",
		"PLANTSTORE_LOG_LEVEL=error",
		"GORACE=halt_on_error=1 atexit_sleep_ms=0")
	if err := s.start(ctx, rand.New(rand.NewPCG(c.seed, uint64(lanes)))); err != nil {
		return nil, err
	}
	return s, s.untilReady(ctx)
}

// start starts the service and returns when it listens, whether the database is there or not.
func (s *service) start(ctx context.Context, random *rand.Rand) error {
	// Many outages last longer than the shortest timeout, none longer than the longest.
	timeout := cmp.Or(s.timeout, [...]time.Duration{time.Second, 2 * time.Second, longestTimeout}[random.IntN(3)])
	cmd := exec.Command(s.program, "serve", "--request-timeout", timeout.String())
	cmd.Env = s.env
	cmd.Stderr = s.log
	process, err := localpg.StartProcess(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	s.process = process
	ctx, cancel := context.WithTimeout(ctx, slack)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("start the service: it does not listen: %w", err)
		case <-s.process.Done():
			return s.unexpected()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// end sends a signal, and returns when the service has ended.
func (s *service) end(signal syscall.Signal) error {
	select {
	case <-s.process.Done():
		return s.unexpected()
	default:
	}
	if err := s.process.Signal(signal); err != nil {
		return err
	}
	select {
	case <-s.process.Done():
		return nil
	case <-time.After(longestTimeout + slack):
		return fmt.Errorf("the service did not end after %v", signal)
	}
}

// kill ends the service as kernels do.
func (s *service) kill() error { return s.end(syscall.SIGKILL) }

// stop has the service end by itself, with success, once the requests in flight are answered.
func (s *service) stop() error {
	if err := s.end(syscall.SIGTERM); err != nil {
		return err
	}
	if err := s.process.Err(); err != nil {
		return fmt.Errorf("the service ended after SIGTERM with %w, and had logged: %s", err, s.log)
	}
	return nil
}

func (s *service) unexpected() error {
	return fmt.Errorf("the service ended by itself: %v, and had logged: %s", s.process.Err(), s.log)
}

// untilReady returns when the service reports that it is ready.
func (s *service) untilReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	for {
		err := programs.Answers(ctx, "http://"+s.admin+"/readyz")
		if err == nil {
			return nil
		}
		if !witness.Sleep(ctx, 10*time.Millisecond) {
			return fmt.Errorf("the service does not become ready: %w", err)
		}
	}
}

// close ends the service, and removes its folder.
func (s *service) close() error {
	if s.process != nil {
		s.process.Kill()
	}
	return os.RemoveAll(s.folder)
}
