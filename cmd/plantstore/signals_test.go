//go:build unix

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"plantstore/internal/postgres"
	"plantstore/internal/readme"
)

// A serviceProcess is "plantstore serve" as a process of its own.
type serviceProcess struct {
	cmd           *exec.Cmd
	log           *syncBuffer
	public, admin string
}

func startService(t *testing.T, variables []string, args ...string) serviceProcess {
	t.Helper()
	s := serviceProcess{log: new(syncBuffer)}
	s.cmd = inProcess(t, variables, append([]string{"serve", "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s"}, args...)...)
	s.cmd.Stderr = s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.public, s.admin = (&process{log: s.log}).addresses(t)
	return s
}

// signal sends a signal.
func (s serviceProcess) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// end asks for the end and compares the exit code.
func (s serviceProcess) end(t *testing.T, code int) {
	t.Helper()
	s.signal(t, syscall.SIGTERM)
	_ = s.cmd.Wait() // the exit code tells
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("after SIGTERM: %v, want exit code %d; its log:\n%s", s.cmd.ProcessState, code, s.log)
	}
}

func TestSecondSignalIsTold(t *testing.T) {
	t.Parallel()
	s := startService(t, nil, "--database-url=host="+t.TempDir(), "--drain-delay=10m")
	s.signal(t, syscall.SIGTERM)
	if !eventually(func() bool { return strings.Contains(s.log.String(), `"msg":"draining"`) }) {
		t.Fatalf("it does not drain:\n%s", s.log)
	}
	time.Sleep(togetherFor)
	s.end(t, 1)
	if want := "plantstore: ended at once by a second signal (terminated): what was under way was cut off"; lastLine(s.log.String()) != want {
		t.Errorf("last line %q, want %q", lastLine(s.log.String()), want)
	}
}

// What sends a signal twice, such as timeout, does not mean "at once".
func TestSignalsThatComeTogetherAreOne(t *testing.T) {
	t.Parallel()
	s := startService(t, nil, "--database-url=host="+t.TempDir())
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCONT} { // of one kind, only one would be kept
		s.signal(t, sig)
	}
	if err := s.cmd.Wait(); err != nil || !strings.Contains(s.log.String(), `"msg":"stopped"`) {
		t.Errorf("after SIGINT and SIGTERM at once: %v, want an orderly end; its log:\n%s", err, s.log)
	}
}

// The end of the terminal asks for an orderly end, and none under nohup. It comes more
// than once, from the kernel and from the shell, and never means "at once".
func TestHangup(t *testing.T) {
	t.Parallel()
	s := startService(t, nil, "--database-url=host="+t.TempDir())
	s.signal(t, syscall.SIGHUP)
	if err := s.cmd.Wait(); err != nil || !strings.Contains(s.log.String(), `"msg":"stopped"`) {
		t.Errorf("after SIGHUP: %v, want an orderly end; its log:\n%s", err, s.log)
	}

	for _, first := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		s := startService(t, nil, "--database-url=host="+t.TempDir(), "--drain-delay=10m")
		s.signal(t, first)
		if !eventually(func() bool { return strings.Contains(s.log.String(), `"msg":"draining"`) }) {
			t.Fatalf("after %v, it does not drain:\n%s", first, s.log)
		}
		for range 3 {
			s.signal(t, syscall.SIGHUP)
			send(t, http.MethodGet, s.public+"/nowhere", "") // it lives, and has had time for the signal
		}
		time.Sleep(togetherFor)
		s.end(t, 1) // what is left of ten minutes
		if want := "plantstore: ended at once by a second signal (terminated)"; !strings.HasPrefix(lastLine(s.log.String()), want) {
			t.Errorf("after %v, SIGHUP and SIGTERM: last line %q, want %q", first, lastLine(s.log.String()), want)
		}
	}

	log := new(syncBuffer)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `trap "" HUP; exec "$0" "$@"`,
		os.Args[0], "serve", "--database-url=host="+t.TempDir(), "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s")
	cmd.Env, cmd.Stderr = append(os.Environ(), runMain+"=1"), log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s = serviceProcess{cmd: cmd, log: log}
	(&process{log: log}).addresses(t)
	s.signal(t, syscall.SIGHUP)
	s.end(t, 0) // it would be the second signal
}

// Go ends a program that crashes with the exit code of a bad setting, which the unit of
// systemd does not start again. What it sets tells them apart.
func TestTheUnitStartsWhatCrashedAgain(t *testing.T) {
	t.Parallel()
	unit := readme.Read(t, "deploy/systemd/plantstore.service")
	if !strings.Contains(unit, "\nStartLimitIntervalSec=0\n") || !strings.Contains(unit, "\nRestart=always\n") || !strings.Contains(unit, fmt.Sprintf("\nRestartPreventExitStatus=%d\n", exitUsage)) {
		t.Errorf("the unit does not start the service again, or also with a bad setting (exit code %d):\n%s", exitUsage, unit)
	}
	var variables []string
	for _, m := range regexp.MustCompile(`(?m)^Environment=(GO.*)$`).FindAllStringSubmatch(unit, -1) {
		variables = append(variables, m[1])
	}
	if !strings.Contains(unit, "\nLimitCORE=0\n") {
		t.Error("the unit has a crash write the memory to disk, passwords and tokens included: want LimitCORE=0")
	}
	log := new(syncBuffer)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -c 0; exec "$0" "$@"`,
		os.Args[0], "serve", "--database-url=host="+t.TempDir(), "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0")
	cmd.Env, cmd.Stderr = append(append(os.Environ(), runMain+"=1"), variables...), log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := serviceProcess{cmd: cmd, log: log}
	(&process{log: log}).addresses(t)
	s.signal(t, syscall.SIGQUIT) // Go's way to ask for a crash
	_ = cmd.Wait()               // how it ended tells
	if !strings.Contains(log.String(), "\ngoroutine ") {
		t.Errorf("no trace:\n%s", log)
	}
	if got := s.cmd.ProcessState; got.ExitCode() == exitUsage {
		t.Errorf("with %q, a crash ends with %v, want another end than that of a bad setting", variables, got)
	}
	if stderr, code := runProcess(t, variables, "serve", "--rate-limit=fast"); code != exitUsage {
		t.Errorf("with %q, a bad setting: exit code %d, %s; want %d", variables, code, stderr, exitUsage)
	}
}

// serveIntoPipe starts a service whose log is a pipe, and reads that until it serves.
func serveIntoPipe(t *testing.T, args ...string) (s serviceProcess, log *os.File) {
	t.Helper()
	log, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s.log = new(syncBuffer)
	s.cmd = inProcess(t, nil, append([]string{"serve", "--database-url=host=" + t.TempDir(), "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0"}, args...)...)
	s.cmd.Stderr = stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stderr.Close()
	for lines := bufio.NewScanner(log); lines.Scan(); {
		io.WriteString(s.log, lines.Text()+"\n")
		if strings.Contains(lines.Text(), `"msg":"serving"`) {
			break
		}
	}
	s.public, s.admin = (&process{log: s.log}).addresses(t)
	return s, log
}

// Who starts a service behind a pipe and goes away does not cut its requests off.
func TestServeDrainsWhenNobodyReadsItsLog(t *testing.T) {
	t.Parallel()
	for _, delay := range []string{"10m", "0s"} {
		s, log := serveIntoPipe(t, "--drain-delay="+delay)
		log.Close()
		// Each request is a line of the log, and the first one that nobody reads tells.
		for draining := false; !draining; {
			_, _, refused := trySend(t, http.MethodGet, s.public+"/nowhere", "")
			_, state, err := trySend(t, http.MethodGet, s.admin+"/readyz", "")
			draining = refused != nil || err != nil || state == "shutting down\n"
		}
		if delay == "0s" {
			_ = s.cmd.Wait() // the exit code tells
			if got := s.cmd.ProcessState.ExitCode(); got != 1 {
				t.Errorf("it ended with %v, want exit code 1", s.cmd.ProcessState)
			}
			continue
		}
		if code, _ := send(t, http.MethodDelete, s.public+"/plants/1", ""); code != http.StatusUnauthorized {
			t.Errorf("while it drains: %d, want 401", code)
		}
		s.signal(t, syscall.SIGINT)
		go func() { // until one counts as a second one
			for s.cmd.Process.Signal(syscall.SIGTERM) == nil {
				time.Sleep(togetherFor)
			}
		}()
		_ = s.cmd.Wait() // what is left of ten minutes
		if got := s.cmd.ProcessState.ExitCode(); got != 1 {
			t.Errorf("after SIGINT and SIGTERM: %v, want exit code 1; its log:\n%s", s.cmd.ProcessState, s.log)
		}
	}
}

// A pipe that nobody reads takes no more once it is full. Requests are answered before
// they are logged, and neither a second signal nor the end of all time limits waits for
// the log.
func TestServeWithALogWhoseReaderStalls(t *testing.T) {
	t.Parallel()
	for _, signals := range []int{1, 2} {
		delay := map[int]string{1: "0s", 2: "10m"}[signals]
		s, log := serveIntoPipe(t, "--drain-delay="+delay, "--request-timeout=500ms", "--shutdown-timeout=500ms")
		defer log.Close()
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
		for i := range 600 { // of more than 200 bytes each in the log, where a pipe holds 64 KiB
			answer, err := client.Get(fmt.Sprintf("%s/plants/%064d", s.public, i))
			if err != nil {
				t.Fatalf("request %d: %v, want an answer", i, err)
			}
			answer.Body.Close()
		}
		s.signal(t, syscall.SIGTERM)
		ended := make(chan struct{})
		if signals == 2 {
			go func() { // until one counts as a second one
				for s.cmd.Process.Signal(syscall.SIGTERM) == nil {
					time.Sleep(togetherFor)
				}
			}()
		}
		go func() {
			_ = s.cmd.Wait() // the exit code tells
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(patience):
			s.signal(t, syscall.SIGKILL)
			<-ended
		}
		if got := s.cmd.ProcessState.ExitCode(); got != 1 {
			t.Errorf("after %d of SIGTERM: %v, want exit code 1", signals, s.cmd.ProcessState)
		}
	}
}

// A dev is "plantstore dev" as a process of its own, with a folder for its database.
type dev struct {
	cmd    *exec.Cmd
	folder string
	output *syncBuffer
}

func newDev(t *testing.T, folder string) dev {
	t.Helper()
	d := dev{cmd: inProcess(t, []string{"TMPDIR=" + folder}, "dev", "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--log-format=json"), folder: folder, output: new(syncBuffer)}
	d.cmd.Stdout, d.cmd.Stderr = d.output, d.output
	return d
}

// devFolder makes a folder that PostgreSQL's account can enter, with a blank in its name.
func devFolder(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "dev test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	return folder
}

// left lists what is in the folder.
func (d dev) left(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(d.folder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (d dev) start(t *testing.T) {
	t.Helper()
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { return len(d.left(t)) > 0 }) {
		t.Fatalf("no database is made:\n%s", d.output)
	}
}

func (d dev) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
}

func TestDevLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	serving := func(d dev) bool { return strings.Contains(d.output.String(), `"msg":"serving"`) }
	for name, end := range map[string]func(*testing.T, dev){
		"two signals while it starts": func(t *testing.T, d dev) {
			d.signal(t, syscall.SIGTERM)
			d.signal(t, syscall.SIGINT)
			d.signal(t, syscall.SIGTERM)
		},
		"its terminal closes while it starts": func(t *testing.T, d dev) { d.signal(t, syscall.SIGHUP) },
		"its terminal closes": func(t *testing.T, d dev) {
			if !eventually(func() bool { return serving(d) }) {
				t.Errorf("it does not serve:\n%s", d.output)
			}
			d.signal(t, syscall.SIGHUP)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDev(t, devFolder(t))
			d.start(t)
			end(t, d)
			if err := d.cmd.Wait(); err != nil {
				t.Errorf("it ended with %v, want exit code 0; its output:\n%s", err, d.output)
			}
			if left := d.left(t); len(left) > 0 {
				t.Errorf("it left %v behind; its output:\n%s", left, d.output)
			}
		})
	}
	t.Run("its output goes to a program that ends", func(t *testing.T) {
		t.Parallel()
		d := newDev(t, devFolder(t))
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		d.cmd.Stdout, d.cmd.Stderr = w, w
		d.start(t)
		r.Close()
		w.Close()
		if err := d.cmd.Wait(); d.cmd.ProcessState.ExitCode() < 0 {
			t.Errorf("it ended with %v, want an end of its own", err)
		}
		if left := d.left(t); len(left) > 0 {
			t.Errorf("it left %v behind", left)
		}
	})
}

func TestDevRemovesWhatAKilledOneLeft(t *testing.T) {
	t.Parallel()
	folder := devFolder(t)
	lives := newDev(t, folder)
	lives.start(t)
	its := lives.left(t)
	killed := newDev(t, folder)
	killed.start(t)
	if !eventually(func() bool { return len(killed.left(t)) == 2 }) {
		t.Fatalf("no second database is made:\n%s", killed.output)
	}
	killed.signal(t, syscall.SIGKILL)
	_ = killed.cmd.Wait() // it was killed
	next := newDev(t, folder)
	next.start(t)
	if !eventually(func() bool { return strings.Contains(next.output.String(), `"msg":"serving"`) }) {
		t.Fatalf("it does not serve:\n%s", next.output)
	}
	if now := next.left(t); len(now) != 2 || !strings.Contains(next.output.String(), "removed what a killed 'plantstore dev' had left in "+folder) {
		t.Errorf("folders are %v; want those of two that live, and a word about the third:\n%s", now, next.output)
	}
	if _, err := os.Stat(filepath.Join(its[0], "data")); err != nil {
		t.Errorf("the database of one that lives: %v, want it left alone", err)
	}
	for _, d := range []dev{lives, next} {
		d.signal(t, syscall.SIGTERM)
		if err := d.cmd.Wait(); err != nil {
			t.Errorf("it ended with %v, want exit code 0; its output:\n%s", err, d.output)
		}
	}
	if left := next.left(t); len(left) > 0 {
		t.Errorf("%v stayed behind", left)
	}
}

// What the greeting of dev says about the program and its database works as it is.
func TestDevNamesProgramDatabaseAndDocs(t *testing.T) {
	t.Parallel()
	d := newDev(t, devFolder(t))
	d.start(t)
	if !eventually(func() bool { return strings.Contains(d.output.String(), `"msg":"serving"`) }) {
		t.Fatalf("it does not serve:\n%s", d.output)
	}
	var url, program, docs string
	environment := append(os.Environ(), runMain+"=1")
	for line := range strings.Lines(d.output.String()) {
		line = strings.TrimSpace(line)
		if exported, ok := strings.CutPrefix(line, "export "); ok {
			name, value, _ := strings.Cut(exported, "=")
			environment = append(environment, name+"="+strings.Trim(value, "'"))
		}
		if _, after, ok := strings.Cut(line, "psql '"); ok {
			url, _, _ = strings.Cut(after, "'")
		}
		if before, ok := strings.CutSuffix(line, " deletions list"); ok {
			program = before
		}
		if _, after, ok := strings.Cut(line, "The API in a browser: "); ok {
			docs = after
		}
	}
	list := exec.CommandContext(t.Context(), program, "deletions", "list")
	list.Env = environment
	if out, err := list.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "ID ") {
		t.Errorf("%s deletions list: %v, %s", program, err, out)
	}
	doctor := exec.CommandContext(t.Context(), program, "doctor")
	doctor.Env = environment
	if out, err := doctor.CombinedOutput(); !strings.Contains(string(out), "\n0 problems, ") { // and warnings, by the exit code
		t.Errorf("%s doctor: %v, %s; want no problem", program, err, out)
	}
	if code, _ := send(t, http.MethodGet, docs, ""); code != http.StatusOK {
		t.Errorf("%s: %d, want 200", docs, code)
	}
	if err := postgres.Script(t.Context(), url, `TABLE plant_deletions`); err != nil {
		t.Error(err)
	}
	d.signal(t, syscall.SIGINT)
	if err := d.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// dev takes any port where nobody asked for one and the usual one is taken. It hides no
// other trouble.
func TestListenOrAny(t *testing.T) {
	t.Parallel()
	taken, err := listen("--addr", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := listenOrAny("--addr", "", taken.Addr().String())
	if err != nil {
		t.Fatalf("where %s is taken: %v, want another port", taken.Addr(), err)
	}
	defer free.Close()
	if host, _, _ := net.SplitHostPort(free.Addr().String()); host != "127.0.0.1" {
		t.Errorf("where %s is taken: %s, want a port of the same host", taken.Addr(), free.Addr())
	}
	for _, tt := range []struct{ addr, preferred string }{
		{taken.Addr().String(), "127.0.0.1:0"},
		{"", "192.0.2.1:0"}, // an address of documentation: nobody's
	} {
		if l, err := listenOrAny("--addr", tt.addr, tt.preferred); err == nil {
			l.Close()
			t.Errorf("listenOrAny of %q, or else %q: %s, want an error", tt.addr, tt.preferred, l.Addr())
		}
	}
}
