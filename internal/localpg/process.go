package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// command returns one of the PostgreSQL programs, to be run under the server's
// account, away from the caller's folder, locale and libpq settings.
func (s *Server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.programs, name), args...)
	cmd.Dir = s.dir
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PG") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C", "TZ=UTC")
	cmd.SysProcAttr = processAttributes(s.credential)
	return cmd
}

// cancelPatience is how long run waits for a program that it interrupted.
const cancelPatience = 5 * time.Second

// run runs a program to its end, and that of its child processes, and returns
// its output. Its error quotes what the program complained of.
func (s *Server) run(ctx context.Context, name string, args ...string) (string, error) {
	runtime.LockOSThread() // see startProcess
	defer runtime.UnlockOSThread()
	cmd := s.command(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// Not a harsher signal, nor one to its child processes: initdb's would leave
	// shared memory behind, while they end soon without initdb.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = cancelPatience
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("%s: %w: %s", cmd.Path, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// A process is a running PostgreSQL.
type process struct {
	pid  int
	cmd  *exec.Cmd
	done chan struct{} // closed when the server and all its child processes are gone
	err  error         // how the server ended, once done is closed
}

func startProcess(cmd *exec.Cmd, log io.Writer) (*process, error) {
	// Not being a file, log makes os/exec use a pipe, which every process of the
	// server inherits: Wait returns when the last of them is gone, also when the
	// first was killed. Until then the data folder is in use.
	cmd.Stdout, cmd.Stderr = log, log
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Linux's parent-death signal is sent when the thread ends that started
		// the process: keep it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// signal sends a signal to the server's first process, if it is still there.
func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// A serverLog keeps the end of what a server logs and passes all of it on.
type serverLog struct {
	w io.Writer // may be nil

	mu   sync.Mutex
	last []byte
}

// tailSize is enough for the lines that tell why a server did not start.
const tailSize = 4 << 10

// Write never fails: a log that can't be passed on must not block the server.
func (l *serverLog) Write(b []byte) (int, error) {
	if l.w != nil {
		_, _ = l.w.Write(b)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = append(l.last, b...)
	if extra := len(l.last) - tailSize; extra > 0 {
		l.last = append(l.last[:0], l.last[extra:]...)
	}
	return len(b), nil
}

func (l *serverLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(l.last))
}
