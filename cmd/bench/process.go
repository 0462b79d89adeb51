//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A process is a running server. What it logs goes to /dev/null: writing a log is
// part of the work that is measured, keeping it is not.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process is gone
	how   error         // it ended, once ended is closed
}

func startProcess(program string, args, env []string) (*process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	p := &process{cmd: exec.Command(program, args...), ended: make(chan struct{})}
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PG") && !strings.HasPrefix(variable, "PLANTSTORE_") {
			p.cmd.Env = append(p.cmd.Env, variable)
		}
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = null, null
	// Ctrl-C is for this program only, which then ends the others.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // Linux ends the process with the thread that started it
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.how = p.cmd.Wait()
		}
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

// waitFor returns when a page of the process answers with 200.
func (p *process) waitFor(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		_, err := get(ctx, url)
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended by itself: %v", p.cmd.Path, p.how)
		case <-ctx.Done():
			return fmt.Errorf("%s does not become ready: %w", p.cmd.Path, err)
		case <-time.After(time.Millisecond):
		}
	}
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill() // fails if it is gone already
	<-p.ended
}

func get(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", url, response.Status, bytes.TrimSpace(body))
	}
	return body, err
}

// serviceAllocations reads how many objects the service has allocated so far.
func serviceAllocations(ctx context.Context, admin string) (float64, error) {
	body, err := get(ctx, "http://"+admin+"/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, "go_memstats_mallocs_total "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, errors.New("the service's metrics don't tell its allocations")
}

// bareAllocations is the same of the bare handler.
func bareAllocations(ctx context.Context, address string) (float64, error) {
	body, err := get(ctx, "http://"+address+"/debug/vars")
	if err != nil {
		return 0, err
	}
	var vars struct{ Memstats struct{ Mallocs float64 } }
	err = json.Unmarshal(body, &vars)
	return vars.Memstats.Mallocs, err
}

// freeAddress finds a free port on loopback, below those that systems give to
// outgoing connections: it has to be free a moment later, too.
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

// usageOf reads what the service, the database and the load generator have used,
// each given by its first process. A service of 0 is none.
func usageOf(service, database, generator int) (u usage, err error) {
	if service != 0 {
		if u.service, err = cpuTime(service, true); err != nil {
			return u, err
		}
	}
	if u.database, err = cpuTime(database, true); err != nil {
		return u, err
	}
	if u.generator, err = cpuTime(generator, false); err != nil {
		return u, err
	}
	u.machine, err = machineTime()
	return u, err
}

// ticks adds up fields of /proc that tell times, in 1/USER_HZ: a hundredth of a
// second on every platform that Go knows.
func ticks(fields []string) (time.Duration, error) {
	var sum int64
	for _, f := range fields {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / 100, nil
}

// cpuTime is what a process has used so far and, if asked for, with all of its
// descendants, also those that ended.
func cpuTime(pid int, descendants bool) (time.Duration, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	if !descendants {
		return ticks(fields[11:13]) // utime, stime
	}
	total, err := ticks(fields[11:15]) // and cutime, cstime
	if err != nil {
		return 0, err
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	for _, f := range strings.Fields(string(children)) {
		child, err := strconv.Atoi(f)
		if err != nil {
			return 0, err
		}
		t, err := cpuTime(child, true)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // it ended just now
			return 0, err
		}
		total += t
	}
	return total, nil
}

// machineTime is what all processes have used so far, and what the host of a
// virtual machine took away.
func machineTime() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	// cpu user nice system idle iowait irq softirq steal
	fields := strings.Fields(string(b))
	if len(fields) < 9 {
		return 0, fmt.Errorf("/proc/stat is not understood: %.200s", b)
	}
	return ticks(append(fields[1:4:4], fields[8]))
}

// parent is the id of the process that started another.
func parent(pid int) (int, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(fields[1])
}

// stat returns the fields of /proc/PID/stat from the third on: those after the
// name, which stands in brackets.
func stat(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 15 {
		return nil, fmt.Errorf("/proc/%d/stat is not understood: %s", pid, b)
	}
	return fields, nil
}

// resetPeakMemory makes peakMemory begin again at what is resident now.
func resetPeakMemory(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// peakMemory is how much of a process was resident at most, in bytes.
func peakMemory(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("no VmHWM in /proc")
}
