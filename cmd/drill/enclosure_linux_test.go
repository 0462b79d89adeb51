package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// isDrill has the test's program be the drill.
const isDrill = "DRILL_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(isDrill) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestKilledInTheMiddle ends the drill while the service is built, by a go command of the
// test's own: no file is left behind, and no process.
func TestKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGQUIT} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			programs, err := os.MkdirTemp("/var/tmp", "drill-") // TMPDIR may be where the drill has files of its own
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(programs) })
			temporary, fifo := t.TempDir(), filepath.Join(programs, "fifo")
			// Who reads from the fifo sees its end when the last process is gone that has it.
			script := "#!/bin/sh\nmktemp >/dev/null && exec 3>'" + fifo + "' && echo building >&3 && exec sleep 600\n"
			if err := errors.Join(
				syscall.Mkfifo(fifo, 0o600),
				os.WriteFile(filepath.Join(programs, "go"), []byte(script), 0o755),
			); err != nil {
				t.Fatal(err)
			}
			drill := exec.CommandContext(t.Context(), "/proc/self/exe", "-programs", "none")
			drill.Env = append(os.Environ(), isDrill+"=yes", "TMPDIR="+temporary, "PATH="+programs+":"+os.Getenv("PATH"))
			var log bytes.Buffer
			drill.Stdout, drill.Stderr = &log, &log
			if err := drill.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- drill.Wait() }()
			building := make(chan *os.File, 1)
			go func() {
				if f, err := os.Open(fifo); err == nil { // when somebody writes
					t.Cleanup(func() { f.Close() })
					building <- f
				}
			}()
			var f *os.File
			select {
			case err := <-ended:
				for _, lacks := range []string{"run it as root", "this machine does not let it"} {
					if err != nil && strings.Contains(log.String(), lacks) {
						t.Skipf("no drill here: %s", &log)
					}
				}
				t.Fatalf("it ended (%v) before it was killed: %s", err, &log)
			case f = <-building:
			}
			if err := f.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(f)
			if line, err := r.ReadString('\n'); err != nil {
				t.Fatalf("the build began with %q (%v)", line, err)
			}
			if err := drill.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err == nil {
				t.Error("a drill that was killed ended with success")
			}
			if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v (%v)", left, err)
			}
			if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
				t.Errorf("the build ended with %q (%v), want nothing", rest, err)
			}
		})
	}
}
