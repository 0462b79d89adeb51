package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"time"

	"plantstore/cmd/internal/programs"
	"plantstore/internal/localpg"
)

// A service is the program under test. It has the same two ports in every life.
type service struct {
	*programs.Program
	config
	folder, program string // the folder is removed with the service
	databaseURL     string
	address, admin  string // of the public listener and of the operators'
}

const (
	longestTimeout = 10 * time.Second
	// slack is added to each limit, so that a busy machine does not count as hung.
	slack = 30 * time.Second
)

// build builds the service. The caller has to close it.
func build(ctx context.Context, c config) (_ *service, err error) {
	folder, err := os.MkdirTemp("", "chaos-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the service: %w", err)
	}
	s := &service{config: c, folder: folder}
	s.program, err = programs.Build(ctx, folder, programs.Spec{Package: "cmd/plantstore", Race: c.race, Sabotage: c.sabotage})
	for _, at := range []*string{&s.address, &s.admin} {
		if err == nil {
			*at, err = programs.FreeAddress()
		}
	}
	if err != nil {
		os.RemoveAll(folder)
		return nil, err
	}
	return s, nil
}

// start starts the service and returns when it listens, whether the database is there or not.
func (s *service) start(ctx context.Context, random *rand.Rand) (err error) {
	// Many outages last longer than the shortest timeout, none longer than the longest.
	timeout := cmp.Or(s.timeout, [...]time.Duration{time.Second, 2 * time.Second, longestTimeout}[random.IntN(3)])
	cmd := exec.Command(s.program, "serve", "--request-timeout", timeout.String())
	cmd.Env = append(localpg.Environ("PG", "PLANTSTORE_"),
		"DATABASE_URL="+s.databaseURL,
		"PLANTSTORE_ADDR="+s.address,
		"PLANTSTORE_ADMIN_ADDR="+s.admin,
		"PLANTSTORE_DRAIN_DELAY=50ms",
		"PLANTSTORE_LOG_LEVEL=error",
		"GORACE=halt_on_error=1 atexit_sleep_ms=0")
	if s.Program, err = programs.Start("the service", cmd, s.log); err != nil {
		return err
	}
	return programs.Until(ctx, slack, "the service does not listen", func() error {
		return cmp.Or(s.Running(), programs.Answers(ctx, "http://"+s.address+"/openapi.yaml"))
	})
}

// kill ends the service as kernels do.
func (s *service) kill() error { return s.End(syscall.SIGKILL, slack) }

// stop has the service end by itself, with success, once the requests in flight are answered.
func (s *service) stop() error { return s.End(syscall.SIGTERM, longestTimeout+slack) }

// untilReady returns when the service reports that it is ready.
func (s *service) untilReady(ctx context.Context) error {
	return programs.Until(ctx, endTimeout, "the service does not become ready", func() error {
		return programs.Answers(ctx, "http://"+s.admin+"/readyz")
	})
}

// close ends the service, and removes its folder.
func (s *service) close() error {
	if s.Program != nil {
		s.Kill()
	}
	return os.RemoveAll(s.folder)
}
