package main

import (
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

	process *localpg.Process // nil before the first start
}

// requestTimeouts returns what PLANTSTORE_REQUEST_TIMEOUT is in one life of the
// service or another: with the short one, many outages are longer than a request
// may take; with the default, none is.
func requestTimeouts() []time.Duration {
	return []time.Duration{time.Second, 2 * time.Second, longestTimeout}
}

const (
	longestTimeout = 10 * time.Second
	// slack is how much longer than it is allowed something may take before it is
	// taken for hung, on a machine that is busy with other things.
	slack = 30 * time.Second
)

// configure chooses the service's addresses and its environment.
func (s *service) configure(databaseURL string) error {
	for _, at := range []*string{&s.address, &s.admin} {
		var err error
		if *at, err = programs.FreeAddress(); err != nil {
			return err
		}
	}
	s.env = append(localpg.Environ("PG", "PLANTSTORE_"),
		"DATABASE_URL="+databaseURL,
		"PLANTSTORE_ADDR="+s.address,
		"PLANTSTORE_ADMIN_ADDR="+s.admin,
		"PLANTSTORE_DRAIN_DELAY=50ms",
		"PLANTSTORE_LOG_LEVEL=error",
		"GORACE=halt_on_error=1 atexit_sleep_ms=0")
	return nil
}

// start starts the service and returns when it listens. Whether the database is
// there makes no difference.
func (s *service) start(ctx context.Context, random *rand.Rand) error {
	timeouts := requestTimeouts()
	timeout := timeouts[random.IntN(len(timeouts))]
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

// kill ends the service as kernels do.
func (s *service) kill() error {
	select {
	case <-s.process.Done():
		return s.unexpected()
	default:
	}
	if err := s.process.Signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the service: %w", err)
	}
	<-s.process.Done()
	return nil
}

// stop asks the service to end, and holds it to its promise: it ends by itself,
// with success, as soon as the requests in flight are answered.
func (s *service) stop() error {
	select {
	case <-s.process.Done():
		return s.unexpected()
	default:
	}
	if err := s.process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the service: %w", err)
	}
	select {
	case <-s.process.Done():
	case <-time.After(longestTimeout + slack):
		return errors.Join(errors.New("the service did not end after SIGTERM"), s.kill())
	}
	if err := s.process.Err(); err != nil {
		return fmt.Errorf("the service ended after SIGTERM with %w, having logged: %s", err, s.log)
	}
	return nil
}

// close makes sure that the service is gone, and removes its folder.
func (s *service) close() error {
	if s.process != nil {
		s.process.Kill()
	}
	return os.RemoveAll(s.folder)
}

func (s *service) unexpected() error {
	return fmt.Errorf("the service ended by itself: %v, having logged: %s", s.process.Err(), s.log)
}

// ready returns nil when the service says that it can serve.
func (s *service) ready(ctx context.Context) error {
	return programs.Answers(ctx, "http://"+s.admin+"/readyz")
}
