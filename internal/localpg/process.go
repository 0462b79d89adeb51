//go:build unix

package localpg

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// A Process is a program that this one started and that ends with it.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // how it ended, once done is closed
}

// StartProcess starts a program in a process group of its own: a terminal's Ctrl-C does not
// reach it. If this program ends first, Linux sends last to the process. Other systems let it
// run on. The fields of cmd.SysProcAttr for these two purposes are set.
func StartProcess(cmd *exec.Cmd, last syscall.Signal) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	setAttributes(cmd.SysProcAttr, last)
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Linux sends last when the thread ends that started the process: keep it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// PID returns the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process is gone. Where its output goes to an io.Writer that is no
// file, the processes that inherited the output are gone, too.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the process ended, nil for success. Done has to be closed.
func (p *Process) Err() error { return p.err }

// Signal sends a signal to the process, or returns os.ErrProcessDone.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Kill kills the process and returns when Done is closed.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails if it is gone already
	<-p.done
}

// Environ returns the environment of this program without the variables with these prefixes.
func Environ(without ...string) []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return slices.ContainsFunc(without, func(prefix string) bool { return strings.HasPrefix(variable, prefix) })
	})
}

// startUntil starts a server and returns when its log has a text. If it ends before, or ctx
// does, the server is gone and the error quotes the log.
func startUntil(ctx context.Context, cmd *exec.Cmd, log io.Writer, text string) (*Process, error) {
	tail := &Tail{W: log, text: text, found: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = tail, tail
	p, err := StartProcess(cmd, syscall.SIGQUIT) // ends PostgreSQL at once, with all of its processes
	if err != nil {
		return nil, err
	}
	select {
	case <-tail.found:
		return p, nil
	case <-p.Done():
		err = fmt.Errorf("it stopped (%v)", p.Err())
	case <-ctx.Done():
		err = context.Cause(ctx)
		_ = p.Signal(syscall.SIGQUIT)
		<-p.Done()
	}
	return nil, fmt.Errorf("start %s: %w, having logged: %s", cmd.Path, err, tail)
}

// A Tail keeps the end of a program's log and passes all of it on to W, if that is not nil.
type Tail struct {
	W io.Writer

	mu    sync.Mutex
	last  []byte
	text  string // still to come, if not empty
	found chan struct{}
}

// tailSize is enough for the lines that tell why a program ended.
const tailSize = 8 << 10

// Write never fails: a log that can't be passed on must not block the program.
func (t *Tail) Write(b []byte) (int, error) {
	if t.W != nil {
		_, _ = t.W.Write(b)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, b...)
	if t.text != "" && bytes.Contains(t.last, []byte(t.text)) {
		t.text = ""
		close(t.found)
	}
	if extra := len(t.last) - tailSize; extra > 0 {
		t.last = append(t.last[:0], t.last[extra:]...)
	}
	return len(b), nil
}

// String returns the end of the log, without white space around it.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.last))
}
