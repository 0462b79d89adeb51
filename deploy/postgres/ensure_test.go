package roles_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The script sees no PostgreSQL: its PATH has only the programs that the test links, and sh -f
// finds no folder by a pattern. The test links programs, as executing a file that was just
// written may fail.
func TestEnsureScriptNamesWhatItInstalls(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(top, "deploy/postgres"), 0o755), os.Mkdir(filepath.Join(top, ".ci"), 0o755), os.Mkdir(filepath.Join(top, "bin"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for link, program := range map[string]string{"bin/dirname": "dirname", "bin/apt-get": "false", ".ci/install-packages": "echo"} {
		file, err := exec.LookPath(program)
		if err == nil {
			err = os.Symlink(file, filepath.Join(top, link))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	script := filepath.Join(top, "deploy/postgres/ensure.sh")
	text, err := os.ReadFile("ensure.sh")
	if err == nil {
		err = os.WriteFile(script, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	const (
		what   = "no PostgreSQL on this machine: "
		advice = what + "install it, as with 'sudo apt-get install postgresql' or 'brew install postgresql@18', or have it fetched from Debian, as with 'make "
	)
	for _, tt := range []struct {
		argument, user, variable string
		code                     int
		want                     string // each line's beginning
	}{
		{"", "0", "", 0, what + "apt-get now installs Debian's package 'postgresql' (with PLANTSTORE_NO_INSTALL=1 nothing is installed)\npostgresql"},
		{"pgbouncer", "0", "", 0, what + "apt-get now installs\npostgresql\nno PgBouncer on this machine: apt-get now installs Debian's package 'pgbouncer'\npgbouncer"},
		{"pgbouncer", "1000", "", 1, advice + "test POSTGRES=17'"},
		{"", "0", "PLANTSTORE_NO_INSTALL=", 0, what + "apt-get now installs\npostgresql"},
		{"", "0", "PLANTSTORE_NO_INSTALL=1", 1, advice + "run POSTGRES=17'"},
		{"", "1000", "", 1, advice + "run POSTGRES=17'"},
	} {
		command := exec.CommandContext(t.Context(), "/bin/sh", "-f", "-c", `id() { echo "$USER_ID"; }; . "$0"`, script, tt.argument)
		command.Env = []string{"PATH=" + filepath.Join(top, "bin"), "USER_ID=" + tt.user, tt.variable}
		out, _ := command.CombinedOutput()
		got, want := strings.Split(strings.TrimSpace(string(out)), "\n"), strings.Split(tt.want, "\n")
		ok := len(got) == len(want) && command.ProcessState.ExitCode() == tt.code
		for i := range want {
			ok = ok && strings.HasPrefix(got[i], want[i])
		}
		if !ok {
			t.Errorf("%q as user %s with %q: got exit code %d, %q; want %d, %q", tt.argument, tt.user, tt.variable, command.ProcessState.ExitCode(), out, tt.code, tt.want)
		}
	}
}
