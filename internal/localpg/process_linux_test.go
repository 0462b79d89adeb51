package localpg

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestProcessEndsWithItsParent runs itself as the parent, which starts a process
// and exits without ending it.
func TestProcessEndsWithItsParent(t *testing.T) {
	t.Parallel()
	const isParent = "LOCALPG_TEST_PARENT"
	if os.Getenv(isParent) != "" {
		// The signal can come twice: Linux gives the process to another thread of
		// its parent's first, and that one ends, too.
		cmd := exec.Command("sh", "-c", `trap "trap '' USR1; echo told; exit" USR1; echo ready >&2; for i in $(seq 2000); do sleep 0.01; done`)
		log, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout = os.Stdout
		if _, err := StartProcess(cmd, syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(log, make([]byte, len("ready"))); err != nil {
			t.Fatal(err)
		}
		os.Exit(0)
	}
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.CommandContext(t.Context(), executable, "-test.run=^"+t.Name()+"$")
	parent.Env = append(os.Environ(), isParent+"=yes")
	out, err := parent.Output() // to its end: the process has it, too
	if err != nil || strings.TrimSpace(string(out)) != "told" {
		t.Errorf("got %q (%v), want %q from a process whose parent is gone", out, err, "told")
	}
}
