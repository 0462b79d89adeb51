package localpg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// All subtests use one server, as a new one takes seconds to start.
func TestServerStopsRestartsAndFailsOver(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	s, err := Start(t.Context(), Options{Dir: dir, Settings: map[string]string{"fsync": "off", "application_name": "it's set", "synchronous_standby_names": "*", "synchronous_commit": "local"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeServer(t, s) })
	var version, name string
	var backend int
	query(t, s, `SELECT split_part(current_setting('server_version'), ' ', 1), current_setting('application_name'), pg_backend_pid()`, &version, &name, &backend)
	if version != s.Version() || name != "it's set" {
		t.Errorf("got Version %q and application_name %q, want the server's %q and it's set", s.Version(), name, version)
	}
	t.Run("data outlive every kind of stop", func(t *testing.T) { stopAndStart(t, s) })
	t.Run("a standby takes over", func(t *testing.T) { failOver(t, s) })

	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	postmaster := s.process.PID()
	closeServer(t, s)
	wantEmpty(t, dir)
	for _, pid := range []int{postmaster, backend} {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d after Close: got %v, want %v", pid, err, syscall.ESRCH)
		}
	}
}

func stopAndStart(t *testing.T, s *Server) {
	query(t, s, `CREATE TABLE t (n int)`)
	modes := []Mode{Fast, Immediate, Kill}
	for _, mode := range modes {
		query(t, s, `INSERT INTO t VALUES (1)`)
		if err := s.Stop(t.Context(), mode); err != nil {
			t.Fatalf("Stop(%v): %v", syscall.Signal(mode), err)
		}
		for range 2 { // the second time, it runs already
			if err := s.Start(t.Context()); err != nil { // fails while a process of the old server is left
				t.Fatalf("Start after Stop(%v): %v", syscall.Signal(mode), err)
			}
		}
	}
	var rows int
	query(t, s, `SELECT count(*) FROM t`, &rows)
	if rows != len(modes) {
		t.Errorf("rows: got %d, want one for each of %d stops", rows, len(modes))
	}
}

// failOver leaves the primary stopped.
func failOver(t *testing.T, primary *Server) {
	standby, err := primary.Standby(t.Context(), Options{Settings: map[string]string{"work_mem": "5MB"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeServer(t, standby) })
	query(t, primary, `SET synchronous_commit = remote_apply; UPDATE t SET n = 42`) // waits for the standby
	var recovering bool
	var n int
	query(t, standby, `SELECT pg_is_in_recovery(), min(n) FROM t`, &recovering, &n)
	if !recovering || n != 42 {
		t.Errorf("the standby is in recovery: %t, with row %d; want true and 42", recovering, n)
	}
	if err := primary.Stop(t.Context(), Immediate); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	query(t, standby, `UPDATE t SET n = n + 1`)
	var workMem, fsync string
	query(t, standby, `SELECT min(n), current_setting('work_mem'), current_setting('fsync') FROM t`, &n, &workMem, &fsync)
	got := []any{n, workMem, fsync}
	if want := []any{43, "5MB", "off"}; !cmp.Equal(got, want) {
		t.Errorf("row, own setting and copied setting after promotion: got %v, want %v", got, want)
	}
}

// The test runs itself as a process, and kills it while its server runs.
func TestKilledProcessLeavesNoServer(t *testing.T) {
	t.Parallel()
	const dirOf = "LOCALPG_TEST_KILLED"
	if dir := os.Getenv(dirOf); dir != "" {
		s, err := Start(t.Context(), Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(s.URL(superuser, "postgres"))
		select {}
	}
	dir := newDir(t)
	killed := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	killed.Env = append(os.Environ(), dirOf+"="+dir)
	stdout, err := killed.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := killed.StderrPipe() // also that of the script that removes the files
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	url, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), strings.TrimSpace(url))
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.WaitForNotification(t.Context()); err == nil || t.Context().Err() != nil {
		t.Errorf("got error %v, want a connection that ends with the server", err)
	}
	if said, err := io.ReadAll(stderr); err != nil || len(said) > 0 {
		t.Errorf("got %s, error %v, want silence", said, err)
	}
	_ = killed.Wait()
	wantEmpty(t, dir)
}

func TestStartOfAServerIsCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := newDir(t)
	if _, err := Start(ctx, Options{Dir: dir}); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	wantEmpty(t, dir)
}

// The test is not parallel, as it changes this process's PATH.
func TestPostgresProgramsOnPathComeFirst(t *testing.T) {
	dir, err := filepath.EvalSymlinks(newDir(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"initdb", "postgres"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	if got, err := ProgramFolder(); err != nil || got != dir {
		t.Errorf("folder %q, error %v, want %q before that of the tests' server", got, err, dir)
	}
}

func TestServerURL(t *testing.T) {
	t.Parallel()
	s := &Server{folder: &folder{path: "/a/b c"}}
	if got, want := s.URL("shop", "plants"), "postgres://shop@/plants?host=/a/b%20c&port=5432"; got != want {
		t.Errorf("URL %s, want %s", got, want)
	}
}

// newDir returns a new folder with a short path that every account can enter, unlike that of
// t.TempDir.
func newDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "localpg-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in %s: %v, error %v; want nothing", dir, left, err)
	}
}

func closeServer(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// query runs a statement that gives one row for dest, or none without dest.
func query(t *testing.T, s *Server, sql string, dest ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL(superuser, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if len(dest) == 0 {
		_, err = conn.Exec(t.Context(), sql)
	} else {
		err = conn.QueryRow(t.Context(), sql).Scan(dest...)
	}
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
