package localpg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

func TestStartQueryClose(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	found := ProgramFolders(t.Context())
	s, err := start(t.Context(), Options{Dir: dir, Settings: map[string]string{"application_name": "it's set"}}, append([]string{"/no/such/folder"}, found...))
	if err != nil {
		t.Fatal(err)
	}
	if s.Programs() != found[0] {
		t.Errorf("Programs() = %q, want %q, the first that work", s.Programs(), found[0])
	}
	var version, name string
	var backend int
	query(t, s, `SELECT split_part(current_setting('server_version'), ' ', 1), current_setting('application_name'), pg_backend_pid()`,
		&version, &name, &backend)
	if version != s.Version() {
		t.Errorf("Version() = %q, the server says %q", s.Version(), version)
	}
	if name != "it's set" {
		t.Errorf("application_name = %q, want the setting asked for", name)
	}
	postmaster := s.process.PID()
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
	if left := entries(t, dir); len(left) > 0 {
		t.Errorf("files left after Close: %v", left)
	}
	for _, pid := range []int{postmaster, backend} {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d after Close: %v, want %v", pid, err, syscall.ESRCH)
		}
	}
}

func TestDataSurviveEveryStop(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	query(t, s, `CREATE TABLE t (n int)`)
	modes := []Mode{Fast, Immediate, Kill}
	for _, mode := range modes {
		query(t, s, `INSERT INTO t VALUES (1)`)
		open := connect(t, s)
		if err := s.Stop(t.Context(), mode); err != nil {
			t.Fatalf("Stop(%v): %v", syscall.Signal(mode), err)
		}
		if err := open.Ping(t.Context()); err == nil {
			t.Errorf("a connection outlived Stop(%v)", syscall.Signal(mode))
		}
		if _, err := pgx.Connect(t.Context(), s.URL(superuser, "postgres")); err == nil {
			t.Errorf("a stopped server accepted a connection")
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatalf("Start after Stop(%v): %v", syscall.Signal(mode), err)
		}
		runs := s.process
		if err := s.Start(t.Context()); err != nil || s.process != runs {
			t.Errorf("Start of a server that runs: %v, with a process of its own: %v; want neither", err, s.process != runs)
		}
	}
	var rows int
	query(t, s, `SELECT count(*) FROM t`, &rows)
	if rows != len(modes) {
		t.Errorf("%d rows, want %d", rows, len(modes))
	}
}

func TestStandby(t *testing.T) {
	t.Parallel()
	primary := startServer(t, "synchronous_standby_names", "*", "synchronous_commit", "local")
	query(t, primary, `CREATE TABLE t (n int)`)
	standby, err := primary.Standby(t.Context(), Options{Settings: map[string]string{"work_mem": "5MB"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeServer(t, standby) })
	query(t, primary, `SET synchronous_commit = remote_apply; INSERT INTO t VALUES (42)`) // waits for the standby
	var recovering bool
	var n int
	query(t, standby, `SELECT pg_is_in_recovery(), n FROM t`, &recovering, &n)
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
	query(t, standby, `SELECT n, current_setting('work_mem'), current_setting('fsync') FROM t`, &n, &workMem, &fsync)
	got := []any{n, workMem, fsync}
	if want := []any{43, "5MB", "off"}; !cmp.Equal(got, want) {
		t.Errorf("row, own setting and copied setting after promotion: got %v, want %v", got, want)
	}
}

func TestStartFailures(t *testing.T) {
	t.Parallel()
	long := filepath.Join(folder(t), strings.Repeat("long", 30))
	if err := os.Mkdir(long, 0o755); err != nil {
		t.Fatal(err)
	}
	found := ProgramFolders(t.Context())
	broken := folder(t)
	for _, name := range []string{"initdb", "postgres"} {
		writeProgram(t, filepath.Join(broken, name), []byte("#!/bin/sh\necho share is missing >&2; exit 1\n"))
	}

	// Programs whose initdb says to a pipe what it does.
	heard := folder(t)
	pipe := filepath.Join(heard, "pipe")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o666), os.Chmod(pipe, 0o666)); err != nil { // whatever the umask
		t.Fatal(err)
	}
	writeProgram(t, filepath.Join(heard, "postgres"), fmt.Appendf(nil, "#!/bin/sh\nexec '%s/postgres' \"$@\"\n", found[0]))
	writeProgram(t, filepath.Join(heard, "initdb"), fmt.Appendf(nil, "#!/bin/sh\nexec '%s/initdb' \"$@\" >'%s'\n", found[0], pipe))

	// Programs whose initdb makes no more than the file for settings.
	empty := folder(t)
	writeProgram(t, filepath.Join(empty, "postgres"), fmt.Appendf(nil, "#!/bin/sh\nexec '%s/postgres' \"$@\"\n", found[0]))
	writeProgram(t, filepath.Join(empty, "initdb"), []byte("#!/bin/sh\nmkdir -m 700 \"$2\" && touch \"$2/postgresql.conf\"\n"))

	for _, test := range []struct {
		name    string
		until   string // the context ends: at once, amid initdb, or not
		o       Options
		folders []string
		is      error
		text    string
	}{
		{"no binaries", "", Options{}, nil, ErrNoBinaries, "apt-get install postgresql"},
		{"binaries that don't work", "", Options{}, []string{broken}, nil, "share is missing"},
		{"context over", "over", Options{}, found, context.Canceled, ""},
		{"context ends amid initdb", "amid", Options{}, []string{heard}, context.Canceled, ""},
		{"no such folder", "", Options{Dir: "/no/such/folder"}, found, os.ErrNotExist, ""},
		{"long path", "", Options{Dir: long}, found, nil, "choose a shorter Dir"},
		{"bad setting", "", Options{Settings: map[string]string{"fsync": "perhaps"}}, []string{empty}, nil,
			`parameter "fsync" requires a Boolean value`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.o.Dir == "" {
				test.o.Dir = folder(t)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			switch test.until {
			case "over":
				cancel()
			case "amid":
				go func() {
					out, err := os.Open(pipe)
					if err != nil {
						t.Error(err)
						cancel()
						return
					}
					defer out.Close()
					for lines := bufio.NewScanner(out); lines.Scan(); {
						if strings.HasPrefix(lines.Text(), "creating configuration files") {
							cancel()
						}
					}
				}()
			}
			s, err := start(ctx, test.o, test.folders)
			if err == nil {
				closeServer(t, s)
				t.Fatal("the server started")
			}
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("error %v, want %v", err, test.is)
			}
			if !strings.Contains(err.Error(), test.text) {
				t.Errorf("error %v, want it to say %q", err, test.text)
			}
			if left := entries(t, test.o.Dir); len(left) > 0 {
				t.Errorf("files left: %v", left)
			}
		})
	}
}

// Not parallel: PATH is this process's.
func TestProgramsOnPathComeFirst(t *testing.T) {
	dir, err := filepath.EvalSymlinks(folder(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"initdb", "postgres"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	if got := ProgramFolders(t.Context()); len(got) < 2 || got[0] != dir {
		t.Errorf("folders %q, want %q before that of the tests' server", got, dir)
	}
}

func TestURL(t *testing.T) {
	t.Parallel()
	if got, want := (&Server{dir: "/a/b c"}).URL("shop", "plants"), "postgres://shop@/plants?host=/a/b%20c&port=5432"; got != want {
		t.Errorf("URL %s, want %s", got, want)
	}
}

func TestNewestFirst(t *testing.T) {
	t.Parallel()
	got := newestFirst([]string{"/usr/lib/postgresql/9/bin", "/usr/lib/postgresql/18/bin", "/opt/postgresql/bin", "/usr/pgsql-17/bin"})
	want := []string{"/usr/lib/postgresql/18/bin", "/usr/pgsql-17/bin", "/usr/lib/postgresql/9/bin", "/opt/postgresql/bin"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestAsOrdinaryUser runs one of the other tests under an ordinary account when
// this one is root's.
func TestAsOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("all tests of this run are under an ordinary account")
	}
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := folder(t)
	program := filepath.Join(dir, "test")
	b, err := os.ReadFile(executable) // in a folder that only root can enter
	if err != nil {
		t.Fatal(err)
	}
	writeProgram(t, program, b)
	credential, err := serverCredential()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run=^(TestStartQueryClose|TestLeftoversThatStay)$", "-test.v")
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestStartQueryClose") || !strings.Contains(string(out), "--- PASS: TestLeftoversThatStay") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A server that root starts is in the groups of its account, and in no others.
func TestTheServersGroups(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("a server of an ordinary account is in the same groups as this process")
	}
	credential, err := serverCredential()
	if err != nil {
		t.Fatal(err)
	}
	account, err := user.LookupId(strconv.Itoa(int(credential.Uid)))
	if err != nil {
		t.Fatal(err)
	}
	groups := func(credential *syscall.Credential, args ...string) []string {
		t.Helper()
		cmd := exec.Command("id", append([]string{"-G"}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return slices.Sorted(slices.Values(strings.Fields(string(out))))
	}
	if got, want := groups(credential), groups(nil, account.Username); !slices.Equal(got, want) {
		t.Errorf("a server as %s is in the groups %v, want %v", account.Username, got, want)
	}
}

// folder returns a new folder with a short path that every account can enter,
// unlike that of t.TempDir.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "localpg-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// writeProgram writes a file that can be executed at once. No process may start
// meanwhile: it would hold the file open for writing until it executes its own
// program, and nobody can execute such a file.
func writeProgram(t *testing.T, path string, content []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// startServer starts a server with settings, each a name and a value.
func startServer(t *testing.T, settings ...string) *Server {
	t.Helper()
	all := map[string]string{"fsync": "off"}
	for pair := range slices.Chunk(settings, 2) {
		all[pair[0]] = pair[1]
	}
	s, err := Start(t.Context(), Options{Settings: all})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeServer(t, s) })
	return s
}

func closeServer(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func connect(t *testing.T, s *Server) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL(superuser, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the server may be gone
	return conn
}

// query runs a statement that gives one row for dest, or none without dest.
func query(t *testing.T, s *Server, sql string, dest ...any) {
	t.Helper()
	conn := connect(t, s)
	var err error
	if len(dest) == 0 {
		_, err = conn.Exec(t.Context(), sql)
	} else {
		err = conn.QueryRow(t.Context(), sql).Scan(dest...)
	}
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
