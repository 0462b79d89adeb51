package programs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"plantstore/internal/localpg"
)

// A Program is a process that should run until it is ended.
type Program struct {
	*localpg.Process
	Log  *localpg.Tail
	name string
}

// ErrExited is in the error of a program that exited by itself.
var ErrExited = errors.New("exited by itself")

// Start starts a program. Its output goes to log, which may be nil.
func Start(name string, cmd *exec.Cmd, log io.Writer) (*Program, error) {
	p := &Program{name: name, Log: &localpg.Tail{W: log}}
	cmd.Stdout, cmd.Stderr = p.Log, p.Log
	var err error
	p.Process, err = localpg.StartProcess(cmd, syscall.SIGKILL)
	return p, err
}

// Running returns nil, or ErrExited with the end of the program's log.
func (p *Program) Running() error {
	select {
	case <-p.Done():
		return fmt.Errorf("%s %w: %v: %s", p.name, ErrExited, p.Err(), p.Log)
	default:
		return nil
	}
}

// End sends a signal to the program and waits for its end. After SIGTERM, it returns an error
// unless the program exits with success.
func (p *Program) End(signal syscall.Signal, patience time.Duration) error {
	if err := p.Running(); err != nil {
		return err
	}
	if err := p.Signal(signal); err != nil {
		return err
	}
	select {
	case <-p.Done():
	case <-time.After(patience):
		p.Kill()
		return fmt.Errorf("%s still ran %v after signal %v: %s", p.name, patience, signal, p.Log)
	}
	if err := p.Err(); err != nil && signal == syscall.SIGTERM {
		return fmt.Errorf("%s: %w after SIGTERM: %s", p.name, err, p.Log)
	}
	return nil
}

// Until returns when try succeeds. It gives up after patience, and at once when try returns
// ErrExited.
func Until(ctx context.Context, patience time.Duration, lack string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		if errors.Is(err, ErrExited) || !Sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("%s: %w", lack, err)
		}
	}
}

// Sleep returns true after d, or false when ctx ends before.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Named returns the things of a sort, such as faults, that a list names: names with commas
// between, or "all".
func Named[T any](sort string, all []T, list string, name func(T) string) (named []T, err error) {
	if list == "all" {
		return all, nil
	}
	for wanted := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(all, func(thing T) bool { return name(thing) == wanted })
		if i < 0 {
			return nil, fmt.Errorf("there is no %s %q", sort, wanted)
		}
		named = append(named, all[i])
	}
	return named, nil
}

// FreeAddress finds a port of 127.0.0.1 that nobody listens on. It is below the ports that
// systems give to outgoing connections, so none of these takes it while the program is down.
func FreeAddress() (string, error) {
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

// Answers returns nil when a program answers 200 at a URL within three seconds, else its
// answer as an error.
func Answers(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	reason, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", response.StatusCode, bytes.TrimSpace(reason))
	}
	return err
}
