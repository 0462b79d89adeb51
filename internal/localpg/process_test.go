package localpg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

func TestProcessReportsItsExit(t *testing.T) {
	t.Parallel()
	var log Tail
	cmd := exec.Command("sh", "-c", "echo begun; read line; exit 3")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = &log
	p, err := StartProcess(cmd, syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	if group, err := syscall.Getpgid(p.PID()); err != nil || group != p.PID() {
		t.Errorf("process group %d (%v), want its own, %d", group, err, p.PID())
	}
	stdin.Close()
	<-p.Done()
	if exit, ok := errors.AsType[*exec.ExitError](p.Err()); !ok || exit.ExitCode() != 3 {
		t.Errorf("it ended with %v, want exit status 3", p.Err())
	}
	if got := log.String(); got != "begun" {
		t.Errorf("log %q, want %q", got, "begun")
	}
	p.Kill() // it is gone: this does nothing
	if _, err := StartProcess(exec.Command("/no/such/program"), syscall.SIGKILL); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "start /no/such/program") {
		t.Errorf("got error %v, want one about /no/such/program", err)
	}
}

func TestTailKeepsTheEndOfTheLog(t *testing.T) {
	t.Parallel()
	var passedOn strings.Builder
	tail := &Tail{W: &passedOn}
	text := strings.Repeat("a", tailSize) + "the end"
	for _, part := range strings.SplitAfter(text, "aaa") {
		fmt.Fprint(tail, part)
	}
	if passedOn.String() != text {
		t.Error("not all of the log was passed on")
	}
	if got, want := tail.String(), text[len(text)-tailSize:]; got != want {
		t.Errorf("tail of %d bytes ending in %q, want the last %d bytes", len(got), got[max(0, len(got)-20):], tailSize)
	}
}
