package localpg

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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
	// None of these is a server of ours.
	for _, other := range []string{"postgres-1/data", folderPrefix + "backup/data", folderPrefix + "1-2/data", folderPrefix + "/data", folderPrefix + "17/notes", folderPrefix + "18/data.old"} {
		if err := os.MkdirAll(filepath.Join(dir, other), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, folderPrefix+"18", dataFolder), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("postgres-1", filepath.Join(dir, folderPrefix+"19")); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // who may give a folder to somebody else
		others := filepath.Join(dir, folderPrefix+"21")
		if err := errors.Join(os.MkdirAll(filepath.Join(others, dataFolder), 0o700), os.Chown(others, 4711, 4711)); err != nil {
			t.Fatal(err)
		}
	}
	before := entries(t, dir)
	// This is one that was killed at once.
	begun := filepath.Join(dir, folderPrefix+"20")
	if err := os.Mkdir(begun, 0o700); err != nil {
		t.Fatal(err)
	}
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	killed := exec.CommandContext(t.Context(), executable, "-test.run=^"+t.Name()+"$")
	killed.Env = append(os.Environ(), dirOf+"="+dir)
	if out, err := killed.CombinedOutput(); err == nil {
		t.Fatalf("it was not killed: %s", out)
	}
	if after := entries(t, dir); len(after) != len(before)+2 {
		t.Fatalf("there are %v, want those and two more: %v", after, before)
	}
	removed, err := RemoveLeftovers(dir)
	if err != nil || len(removed) != 2 || !slices.Contains(removed, begun) {
		t.Errorf("RemoveLeftovers = %v, %v; want %s and another one", removed, err, begun)
	}
	if diff := cmp.Diff(before, entries(t, dir)); diff != "" {
		t.Errorf("what is there (-want +got):\n%s", diff)
	}
	var one int
	query(t, lives, `SELECT 1`, &one)
	if removed, err := RemoveLeftovers(filepath.Join(dir, "none")); len(removed) != 0 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("RemoveLeftovers of no folder = %v, %v; want none, and that it is not there", removed, err)
	}
}

// What can't be removed is reported. TestAsOrdinaryUser runs this for root, who can.
func TestLeftoversThatStay(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root can remove everything")
	}
	dir := folder(t)
	data := filepath.Join(dir, folderPrefix+"20", dataFolder)
	if err := errors.Join(os.MkdirAll(filepath.Join(data, "base"), 0o700), os.Chmod(data, 0o500)); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(data, 0o700)
	if removed, err := RemoveLeftovers(dir); len(removed) != 0 || !errors.Is(err, os.ErrPermission) || !strings.HasPrefix(err.Error(), "remove what a killed process left: ") {
		t.Errorf("RemoveLeftovers = %v, %v; want none, and that it is not permitted", removed, err)
	}
}
