package localpg

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRemoveLeftovers runs itself as a process that is killed while its server runs.
func TestRemoveLeftovers(t *testing.T) {
	t.Parallel()
	const dirOf = "LOCALPG_TEST_LEFTOVERS"
	if dir := os.Getenv(dirOf); dir != "" {
		if _, err := Start(t.Context(), Options{Dir: dir}); err != nil {
			t.Fatal(err)
		}
		self, err := os.FindProcess(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if err := self.Kill(); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	dir := folder(t)
	lives, err := Start(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeServer(t, lives) })
	// Neither of these is a server of ours.
	others := []string{filepath.Join(dir, "postgres-1"), filepath.Join(dir, folderPrefix+"link")}
	if err := os.Mkdir(others[0], 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(others[0], others[1]); err != nil {
		t.Fatal(err)
	}
	before := entries(t, dir)
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	killed := exec.CommandContext(t.Context(), executable, "-test.run=^"+t.Name()+"$")
	killed.Env = append(os.Environ(), dirOf+"="+dir)
	if out, err := killed.CombinedOutput(); err == nil {
		t.Fatalf("it was not killed: %s", out)
	}
	if after := entries(t, dir); len(after) != len(before)+1 {
		t.Fatalf("there are %v, want those and one more: %v", after, before)
	}
	removed, err := RemoveLeftovers(dir)
	if err != nil || len(removed) != 1 {
		t.Errorf("RemoveLeftovers = %v, %v; want one folder", removed, err)
	}
	if diff := cmp.Diff(before, entries(t, dir)); diff != "" {
		t.Errorf("what is there (-want +got):\n%s", diff)
	}
	var one int
	query(t, lives, `SELECT 1`, &one)
}
