package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A service is the program under test. It has the same two ports in every life.
type service struct {
	program string
	env     []string
	address string // of the public listener
	admin   string // of the operators'
	log     *tail

	process *exec.Cmd
	ended   chan struct{} // closed when the process is gone
	how     error         // it ended, once ended is closed
}

// requestTimeouts are what PLANTSTORE_REQUEST_TIMEOUT is in one life of the
// service or another: with the short one, many outages are longer than a request
// may take; with the default, none is.
var requestTimeouts = []time.Duration{time.Second, 2 * time.Second, longestTimeout}

const (
	longestTimeout = 10 * time.Second
	// slack is how much longer than it is allowed something may take before it is
	// taken for hung, on a machine that is busy with other things.
	slack = 10 * time.Second
)

// newService prepares a service. Its log goes to log, too, if that is not nil.
func newService(program, databaseURL string, log io.Writer) (*service, error) {
	s := &service{program: program, log: &tail{w: log}}
	for _, at := range []*string{&s.address, &s.admin} {
		var err error
		if *at, err = freeAddress(); err != nil {
			return nil, err
		}
	}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PG") && !strings.HasPrefix(variable, "PLANTSTORE_") {
			s.env = append(s.env, variable)
		}
	}
	s.env = append(s.env,
		"DATABASE_URL="+databaseURL,
		"PLANTSTORE_ADDR="+s.address,
		"PLANTSTORE_ADMIN_ADDR="+s.admin,
		"PLANTSTORE_DRAIN_DELAY=50ms",
		"PLANTSTORE_LOG_LEVEL=error",
		"GORACE=halt_on_error=1 atexit_sleep_ms=0")
	return s, nil
}

// freeAddress finds a port of 127.0.0.1 below those that systems give to
// outgoing connections: while the service is down, none of these may take its
// port.
func freeAddress() (string, error) {
	var err error
	for range 100 {
		at := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000))
		var l net.Listener
		if l, err = net.Listen("tcp", at); err == nil {
			return at, l.Close()
		}
	}
	return "", fmt.Errorf("no free port: %w", err)
}

// start starts the service and returns when it listens. Whether the database is
// there makes no difference.
func (s *service) start(ctx context.Context, random *rand.Rand) error {
	timeout := requestTimeouts[random.IntN(len(requestTimeouts))]
	s.process = exec.Command(s.program, "serve", "--request-timeout", timeout.String())
	s.process.Env = s.env
	s.process.Stderr = s.log
	s.process.SysProcAttr = processAttributes()
	s.ended = make(chan struct{})
	process, ended := s.process, s.ended
	started := make(chan error)
	go func() {
		// Linux ends the process with the thread that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := process.Start()
		started <- err
		if err == nil {
			s.how = process.Wait()
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start the service: %w", err)
	}
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
		case <-s.ended:
			return s.unexpected()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// kill ends the service as kernels do.
func (s *service) kill() error {
	select {
	case <-s.ended:
		return s.unexpected()
	default:
	}
	if err := s.process.Process.Kill(); err != nil {
		return fmt.Errorf("kill the service: %w", err)
	}
	<-s.ended
	return nil
}

// stop asks the service to end, and holds it to its promise: it ends by itself,
// with success, as soon as the requests in flight are answered.
func (s *service) stop() error {
	select {
	case <-s.ended:
		return s.unexpected()
	default:
	}
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the service: %w", err)
	}
	select {
	case <-s.ended:
	case <-time.After(longestTimeout + slack):
		return errors.Join(errors.New("the service did not end after SIGTERM"), s.kill())
	}
	if s.how != nil {
		return fmt.Errorf("the service ended after SIGTERM with %w, having logged: %s", s.how, s.log)
	}
	return nil
}

// close makes sure that the service is gone.
func (s *service) close() {
	if s.process == nil || s.process.Process == nil {
		return
	}
	_ = s.process.Process.Kill() // fails if it is gone already
	<-s.ended
}

func (s *service) unexpected() error {
	return fmt.Errorf("the service ended by itself: %v, having logged: %s", s.how, s.log)
}

// ready returns nil when the service says that it can serve.
func (s *service) ready(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.admin+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	reason, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d: %s", response.StatusCode, bytes.TrimSpace(reason))
	}
	return nil
}

// A tail keeps the end of a log, and passes all of it on.
type tail struct {
	w io.Writer // may be nil

	mu   sync.Mutex
	last []byte
}

const tailSize = 8 << 10

func (t *tail) Write(b []byte) (int, error) {
	if t.w != nil {
		_, _ = t.w.Write(b) // the service must not stop for it
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, b...)
	if extra := len(t.last) - tailSize; extra > 0 {
		t.last = append(t.last[:0], t.last[extra:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.last))
}
