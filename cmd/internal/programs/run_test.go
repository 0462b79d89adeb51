package programs

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func start(t *testing.T, script string) *Program {
	t.Helper()
	p, err := Start("the script", exec.Command("sh", "-c", script), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// TestUntilEndsWhenTheProgramExits waits for a program that has exited. Until fails at once,
// with the program's log.
func TestUntilEndsWhenTheProgramExits(t *testing.T) {
	t.Parallel()
	p := start(t, "echo cannot raise FD limit; exit 3")
	<-p.Done()
	err := Until(t.Context(), time.Hour, "it does not answer", p.Running)
	if want := "it does not answer: the script exited by itself: exit status 3: cannot raise FD limit"; err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
	if err := p.End(syscall.SIGTERM, time.Minute); err == nil {
		t.Error("End of a program that has exited returned no error")
	}
}

func TestProgramEnd(t *testing.T) {
	t.Parallel()
	if err := start(t, "exec sleep 600").End(syscall.SIGKILL, time.Minute); err != nil {
		t.Errorf("SIGKILL: got error %v, want none", err)
	}
	err := start(t, "exec sleep 600").End(syscall.SIGTERM, time.Minute)
	if want := "the script: signal: terminated after SIGTERM"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("SIGTERM of a program that does not end well: got error %v, want %s", err, want)
	}
}
