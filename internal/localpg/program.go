//go:build unix

package localpg

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrNoBinaries is returned by Start when no folder with PostgreSQL's server
// programs was found.
var ErrNoBinaries = errors.New("PostgreSQL's server programs (initdb, postgres) were not found: " +
	"install them with `apt-get install postgresql` or the like, or put their folder on PATH")

// ProgramFolders lists the folders that hold initdb and postgres, the preferred
// one first: on PATH, what pg_config says, then where packages put them, the
// newest version first. Links are resolved, as PostgreSQL looks for its other
// files next to its programs. Whether a folder is fit for use only trying tells.
func ProgramFolders(ctx context.Context) []string {
	var candidates []string
	for _, name := range []string{"initdb", "postgres"} {
		if path, err := exec.LookPath(name); err == nil {
			if path, err = filepath.EvalSymlinks(path); err == nil {
				candidates = append(candidates, filepath.Dir(path))
			}
		}
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		candidates = append(candidates, strings.TrimSpace(string(out)))
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", // Debian
		"/usr/pgsql-*/bin",          // the PostgreSQL project's RPMs
		"/usr/local/pgsql/bin",      // built from source
		"/opt/homebrew/opt/postgresql*/bin",
		"/usr/local/opt/postgresql*/bin",
	} {
		found, _ := filepath.Glob(pattern) // fails for a malformed pattern only
		candidates = append(candidates, newestFirst(found)...)
	}

	var folders []string
	for _, dir := range candidates {
		if !slices.Contains(folders, dir) && isFile(dir, "initdb") && isFile(dir, "postgres") {
			folders = append(folders, dir)
		}
	}
	return folders
}

// newestFirst sorts folders by the first number in their path, descending.
func newestFirst(folders []string) []string {
	number := regexp.MustCompile(`[0-9]+`)
	version := func(dir string) int {
		n, _ := strconv.Atoi(number.FindString(dir)) // no number sorts last
		return n
	}
	slices.SortStableFunc(folders, func(a, b string) int {
		return cmp.Compare(version(b), version(a))
	})
	return folders
}

func isFile(dir, name string) bool {
	info, err := os.Stat(filepath.Join(dir, name))
	return err == nil && info.Mode().IsRegular()
}

// command returns one of the PostgreSQL programs, to be run under the server's
// account, away from the caller's folder, locale and libpq settings.
func (s *Server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.programs, name), args...)
	cmd.Dir = s.dir
	cmd.Env = append(Environ("PG"), "LC_ALL=C", "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.credential}
	return cmd
}

// lastSignal is what PostgreSQL gets when this program ends: it shuts down at
// once, with all of its processes.
const lastSignal = syscall.SIGQUIT

// cancelPatience is how long run waits for a program that it interrupted, and for its
// child processes: what they write after that stays behind. On a busy machine initdb's
// took more than five seconds.
const cancelPatience = 30 * time.Second

// run runs a program to its end, and that of its child processes, and returns
// its output. Its error quotes the program's messages.
func (s *Server) run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := s.command(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// Only the program gets the signal, and no harsher one. initdb's child processes
	// would leave shared memory behind; without initdb they end soon.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = cancelPatience
	p, err := StartProcess(cmd, lastSignal)
	if err != nil {
		return "", err
	}
	<-p.Done()
	if err := p.Err(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("%s: %w: %s", cmd.Path, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}
