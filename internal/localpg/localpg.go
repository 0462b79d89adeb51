//go:build unix

// Package localpg runs private PostgreSQL servers from the programs that are installed on
// this machine, for development and for tests, PgBouncers for tests, and other programs that
// have to end with this one: see Process.
//
// A server keeps everything in one folder that only its account can enter, and listens on a
// Unix socket in that folder only. So it needs no passwords: a client may be any role.
package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// superuser is the role that initdb makes.
const superuser = "postgres"

// Options are for Start. The zero value is fine.
type Options struct {
	// Dir is where the server's folder is made; empty means os.TempDir. The path of a Unix
	// socket may have about 100 bytes, so Dir can't be long.
	Dir string
	// Settings go into postgresql.conf, as in {"fsync": "off"}.
	Settings map[string]string
	// Log receives the server's log, if set. One goroutine at a time writes to it.
	Log io.Writer
}

// A Mode is a way of stopping a server, named as in pg_ctl.
type Mode syscall.Signal

const (
	// Fast rolls open transactions back and shuts down in order.
	Fast = Mode(syscall.SIGINT)
	// Immediate ends all processes at once; the next start recovers.
	Immediate = Mode(syscall.SIGQUIT)
	// Kill kills the postmaster, as the kernel does without memory; the next start recovers.
	Kill = Mode(syscall.SIGKILL)
)

// A Server is a data folder and, unless stopped, the PostgreSQL that serves it. Its methods
// may be called from several goroutines; they take turns.
type Server struct {
	*folder
	programs, version string
	log               io.Writer

	mu      sync.Mutex
	process *Process // nil when stopped
}

// ProgramFolder returns the folder that holds initdb and postgres: that on PATH, or the one
// with the highest version where packages put them.
func ProgramFolder() (string, error) {
	var folders []string
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil { // PostgreSQL's other programs are there
			folders = append(folders, filepath.Dir(path))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", // Debian
		"/usr/pgsql-*/bin",          // the PostgreSQL project's RPMs
		"/usr/local/pgsql/bin",      // built from source
		"/opt/homebrew/opt/postgresql*/bin",
		"/usr/local/opt/postgresql*/bin",
	} {
		found, _ := filepath.Glob(pattern) // fails for a malformed pattern only
		slices.Reverse(found)
		folders = append(folders, found...)
	}
	for _, f := range folders {
		if _, err := os.Stat(filepath.Join(f, "postgres")); err == nil { // folders of the client lack it
			return f, nil
		}
	}
	return "", errors.New("PostgreSQL's server programs (initdb, postgres) were not found: " +
		"install them with `apt-get install postgresql` or the like, or put their folder on PATH")
}

// Start makes a new database cluster with the superuser postgres and returns its server when
// it accepts connections. The caller has to Close it. If this process ends without, the files
// are removed; the server ends at once on Linux, elsewhere within a minute.
//
// The end of ctx ends the start, not the server. After an error nothing is left.
func Start(ctx context.Context, o Options) (*Server, error) {
	programs, err := ProgramFolder()
	if err != nil {
		return nil, err
	}
	return start(ctx, o, programs, "initdb", "--username", superuser, "--auth", "trust", "--encoding", "UTF8", "--locale", "C")
}

// Standby makes a streaming standby of the server, with its data and settings and those of o
// on top, and returns it when it accepts (reading) connections. The caller has to Close it; it
// outlives the server that it was made from. After an error nothing is left.
func (s *Server) Standby(ctx context.Context, o Options) (*Server, error) {
	return start(ctx, o, s.programs, "pg_basebackup", "--host", s.path, "--port", "5432", "--username", superuser,
		"--write-recovery-conf", "--checkpoint", "fast")
}

// start makes a data folder with one of the programs, and starts its server.
func start(ctx context.Context, o Options, programs, program string, args ...string) (_ *Server, err error) {
	f, err := newFolder(o.Dir)
	if err != nil {
		return nil, err
	}
	s := &Server{folder: f, programs: programs, log: o.Log}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	version, err := s.run(ctx, "postgres", "--version") // "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"
	if err != nil {
		return nil, err
	}
	version, _ = strings.CutPrefix(version, "postgres (PostgreSQL) ")
	s.version, _, _ = strings.Cut(strings.TrimSpace(version), " ")
	if _, err := s.run(ctx, program, append(args, "--pgdata", s.data(), "--no-sync")...); err != nil {
		return nil, err
	}
	if err := s.configure(o.Settings); err != nil {
		return nil, err
	}
	return s, s.Start(ctx)
}

// configure appends to postgresql.conf, where the last of two settings counts.
func (s *Server) configure(settings map[string]string) error {
	f, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	// Shared memory in the data folder is removed with it, also after a Kill. A standby that
	// waits for a dead primary starts its promotion only when this wait, 5 s by default, is over.
	all := "\nlisten_addresses = ''\ndynamic_shared_memory_type = mmap\nwal_retrieve_retry_interval = 100ms\n"
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		all += fmt.Sprintf("%s = %s\n", name, quote(settings[name]))
	}
	_, err = f.WriteString(all)
	return err
}

// quote quotes a value for the files of PostgreSQL and PgBouncer.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// run runs a PostgreSQL program to its end and that of its child processes, and returns its
// output. Its error quotes the program's messages.
func (s *Server) run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := s.command(ctx, filepath.Join(s.programs, name), args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// Killed child processes of initdb would leave shared memory behind. Without initdb they end soon.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	p, err := StartProcess(cmd, syscall.SIGQUIT)
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

// Start starts a stopped server again on its data and returns when it accepts connections,
// after recovery where that is needed. A server that runs is left alone. After an error the
// server is stopped.
func (s *Server) Start(ctx context.Context) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		select {
		case <-s.process.Done():
		default:
			return nil
		}
	}
	// Every process of the server inherits its output, so that Done means the end of the last
	// of them, also when the first was killed. Until then the data folder is in use.
	cmd := s.command(context.WithoutCancel(ctx), filepath.Join(s.programs, "postgres"), "-D", s.data(), "-k", s.path)
	s.process, err = startUntil(ctx, cmd, s.log, "database system is ready to accept")
	return err
}

// Stop stops the server and returns when all of its processes are gone; its data stay.
// Stopping a stopped server does nothing. When ctx ends first, Stop returns its error and the
// server may still be stopping; Stop may be called again, with a harsher mode.
func (s *Server) Stop(ctx context.Context, mode Mode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil
	}
	_ = s.process.Signal(syscall.Signal(mode)) // fails if it is gone already
	select {
	case <-s.process.Done():
		s.process = nil
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop postgres: %w", context.Cause(ctx))
	}
}

// Promote makes a standby a primary and returns when it accepts writes.
func (s *Server) Promote(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.run(ctx, "pg_ctl", "promote", "--wait", "--pgdata", s.data())
	return err
}

// Close stops the server at once and removes its files. Closing a closed server does nothing.
func (s *Server) Close() error {
	return errors.Join(s.Stop(context.Background(), Immediate), s.remove())
}

// URL returns the URL of a database for a role. Any libpq client takes it.
func (s *Server) URL(role, database string) string {
	return socketURL(url.User(role), database, url.Values{"host": {s.path}, "port": {"5432"}})
}

// Socket returns the path of the server's socket.
func (s *Server) Socket() string { return filepath.Join(s.path, ".s.PGSQL.5432") }

// socketURL writes a URL for people to read. libpq takes no plus for a blank, and a slash needs
// no escape in a query.
func socketURL(role *url.Userinfo, database string, query url.Values) string {
	u := url.URL{Scheme: "postgres", User: role, Path: "/" + database,
		RawQuery: strings.NewReplacer("+", "%20", "%2F", "/").Replace(query.Encode())}
	return u.String()
}

// Version returns PostgreSQL's version, as in "15.18".
func (s *Server) Version() string { return s.version }

// Programs returns the folder of the PostgreSQL programs that the server runs.
func (s *Server) Programs() string { return s.programs }

func (s *Server) data() string { return filepath.Join(s.path, "data") }
