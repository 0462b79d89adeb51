//go:build unix

// Package localpg runs private PostgreSQL servers from the programs that are
// installed on this machine, for development and for tests, PgBouncers for tests, and
// other programs that have to end with this one: see Process.
//
// A server keeps everything in one folder that only its account can enter, and
// listens on a Unix socket in that folder only. That is why it asks nobody for a
// password: whoever reaches the socket may be any role.
//
// PostgreSQL refuses to run as root. Started by root, a server runs under the
// account postgres, or nobody.
package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// superuser is the role that initdb makes.
const superuser = "postgres"

// dataFolder is where a server's folder has the data.
const dataFolder = "data"

// Options are for Start. The zero value is fine.
type Options struct {
	// Dir is where the server's folder is made; empty means os.TempDir. The path
	// of a Unix socket may have about 100 bytes, so it can't be a long one, and
	// when root starts the server, the server's account must be able to enter it.
	Dir string
	// Settings go into postgresql.conf, as in {"fsync": "off"}.
	Settings map[string]string
	// Log receives what the server logs, if set. It is written to by one
	// goroutine at a time, until Stop returns.
	Log io.Writer
}

// A Mode is a way of stopping a server, named as in pg_ctl.
type Mode syscall.Signal

const (
	// Fast rolls open transactions back and shuts down in order.
	Fast = Mode(syscall.SIGINT)
	// Immediate ends all processes at once; the next start recovers.
	Immediate = Mode(syscall.SIGQUIT)
	// Kill kills the postmaster, as the kernel does when memory runs out; the next start
	// recovers. The server's other processes notice and end, after a long computation
	// if they are in one. Without a next start, 56 bytes of shared memory stay allocated.
	Kill = Mode(syscall.SIGKILL)
)

// closePatience is how long Close gives each mode before it tries a harsher one.
const closePatience = 5 * time.Second

// A Server is a data folder and, unless stopped, the PostgreSQL that serves it.
// Its methods may be called from several goroutines; they take turns.
type Server struct {
	dir        string // holds the socket and dataFolder
	programs   string // folder of the PostgreSQL programs
	version    string
	credential *syscall.Credential // nil: this process's own
	lock       *os.File            // on dir, see lockFolder
	log        *Tail

	mu      sync.Mutex
	process *Process // nil when stopped
}

// Start makes a new database cluster with the superuser postgres and returns its
// server when it accepts connections. The caller has to Close it. On Linux the
// server also ends, leaving its files, when this process does without Close: see
// RemoveLeftovers.
//
// Start returns ErrNoBinaries when there is no PostgreSQL on this machine. The
// end of ctx ends the start, not the server. After an error nothing is left.
func Start(ctx context.Context, o Options) (*Server, error) {
	return start(ctx, o, ProgramFolders(ctx))
}

// start is Start with the folders where programs may be.
func start(ctx context.Context, o Options, folders []string) (_ *Server, err error) {
	if len(folders) == 0 {
		return nil, ErrNoBinaries
	}
	s, err := newServer(o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()

	if err := s.initialize(ctx, folders); err != nil {
		return nil, err
	}
	if err := s.configure(o.Settings); err != nil {
		return nil, err
	}
	if err := s.Start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// newServer makes the folder of a server that has no data yet.
func newServer(o Options) (*Server, error) {
	credential, err := serverCredential()
	if err != nil {
		return nil, err
	}
	dir, lock, err := makeFolder(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("make the server's folder: %w", err)
	}
	s := &Server{dir: dir, credential: credential, lock: lock, log: &Tail{W: o.Log}}
	if credential != nil {
		if err := os.Chown(s.dir, int(credential.Uid), int(credential.Gid)); err != nil {
			return nil, errors.Join(fmt.Errorf("make the server's folder: %w", err), s.Close())
		}
	}
	socket := filepath.Join(s.dir, ".s.PGSQL.5432")
	if most := len(syscall.RawSockaddrUnix{}.Path) - 1; len(socket) > most {
		return nil, errors.Join(fmt.Errorf("socket %s: its path has %d bytes where the system allows %d: choose a shorter Dir (or TMPDIR)",
			socket, len(socket), most), s.Close())
	}
	return s, nil
}

// initialize makes the cluster with the first folder of programs that work.
func (s *Server) initialize(ctx context.Context, folders []string) error {
	var failures []error
	for _, s.programs = range folders {
		err := s.initdb(ctx)
		if err == nil {
			return nil
		}
		failures = append(failures, err)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failures...)
}

func (s *Server) initdb(ctx context.Context) error {
	out, err := s.run(ctx, "postgres", "--version")
	if err != nil {
		return err
	}
	// "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"
	fields := strings.Fields(out)
	if len(fields) < 3 {
		return fmt.Errorf("%s/postgres --version: unexpected answer %q", s.programs, out)
	}
	s.version = fields[2]
	_, err = s.run(ctx, "initdb", "--pgdata", s.data(), "--username", superuser,
		"--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	return err
}

// configure appends to postgresql.conf, where the last of two settings counts.
func (s *Server) configure(settings map[string]string) error {
	f, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("configure postgres: %w", err)
	}
	defer f.Close()
	var b strings.Builder
	// Shared memory in the data folder is removed with it, also after a Kill.
	// A standby that waits for a dead primary starts its promotion only when
	// this wait, 5 s by default, is over.
	b.WriteString(`
listen_addresses = ''
dynamic_shared_memory_type = mmap
wal_retrieve_retry_interval = 100ms
`)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	if _, err := f.WriteString(b.String()); err != nil {
		return fmt.Errorf("configure postgres: %w", err)
	}
	return nil
}

// Start starts a stopped server again on its data and returns when it accepts
// connections, after recovery where that is needed. A server that runs is left
// alone. After an error the server is stopped.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running() {
		return nil
	}
	cmd := s.command(context.WithoutCancel(ctx), "postgres", "-D", s.data(), "-k", s.dir)
	// Every process of the server inherits this output, so that Done means the
	// end of the last of them, also when the first was killed. Until then the
	// data folder is in use.
	cmd.Stdout, cmd.Stderr = s.log, s.log
	p, err := StartProcess(cmd, lastSignal)
	if err != nil {
		return err
	}
	s.process = p
	if err := s.waitReady(ctx); err != nil {
		return errors.Join(err, s.stop(context.WithoutCancel(ctx), Immediate))
	}
	return nil
}

// running reports whether a process of the server is there.
func (s *Server) running() bool {
	if s.process == nil {
		return false
	}
	select {
	case <-s.process.Done():
		return false
	default:
		return true
	}
}

// waitReady returns when the server accepts connections.
func (s *Server) waitReady(ctx context.Context) error {
	pid := fmt.Sprint(s.process.PID())
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-s.process.Done():
			return fmt.Errorf("start postgres: it stopped (%v), having logged: %s", s.process.Err(), s.log)
		case <-ctx.Done():
			return fmt.Errorf("start postgres: %w, having logged: %s", context.Cause(ctx), s.log)
		case <-tick.C:
		}
		// The file may be that of an earlier start. Its first line is the process id, its
		// eighth the state.
		b, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
		lines := strings.Split(string(b), "\n")
		if err == nil && len(lines) >= 8 && lines[0] == pid && strings.TrimSpace(lines[7]) == "ready" {
			return nil
		}
	}
}

// Stop stops the server and returns when all of its processes are gone; its data
// stay. Stopping a stopped server does nothing. When ctx ends first, Stop
// returns its error and the server may still be stopping; Stop may be called
// again, with a harsher mode.
func (s *Server) Stop(ctx context.Context, mode Mode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stop(ctx, mode)
}

func (s *Server) stop(ctx context.Context, mode Mode) error {
	if s.process == nil {
		return nil
	}
	if err := s.process.Signal(syscall.Signal(mode)); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop postgres: %w", err)
	}
	select {
	case <-s.process.Done():
		s.process = nil
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop postgres: %w", context.Cause(ctx))
	}
}

// Standby makes a streaming standby of the server, with its data and settings
// and those of o on top, and returns it when it accepts (reading) connections.
// The caller has to Close it; it outlives the server it was made from. The end
// of ctx ends the making, not the standby. After an error nothing is left.
func (s *Server) Standby(ctx context.Context, o Options) (_ *Server, err error) {
	standby, err := newServer(o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, standby.Close())
		}
	}()
	standby.programs, standby.version = s.programs, s.version
	if _, err := standby.run(ctx, "pg_basebackup", "--pgdata", standby.data(), "--host", s.dir, "--port", "5432",
		"--username", superuser, "--write-recovery-conf", "--checkpoint", "fast", "--no-sync"); err != nil {
		return nil, err
	}
	if err := standby.configure(o.Settings); err != nil {
		return nil, err
	}
	if err := standby.Start(ctx); err != nil {
		return nil, err
	}
	return standby, nil
}

// Promote makes a standby a primary and returns when it accepts writes.
func (s *Server) Promote(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.run(ctx, "pg_ctl", "promote", "--wait", "--pgdata", s.data())
	return err
}

// URL returns the URL of a database for a role. Any libpq client takes it.
func (s *Server) URL(role, database string) string {
	query := url.Values{"host": {s.dir}, "port": {"5432"}}
	u := url.URL{
		Scheme: "postgres",
		User:   url.User(role),
		Path:   "/" + database,
		// libpq takes no plus for a blank. A slash needs no escape in a query, and people
		// read this one.
		RawQuery: strings.NewReplacer("+", "%20", "%2F", "/").Replace(query.Encode()),
	}
	return u.String()
}

// Version returns PostgreSQL's version, as in "15.18".
func (s *Server) Version() string { return s.version }

// Programs returns the folder of the PostgreSQL programs that the server runs.
func (s *Server) Programs() string { return s.programs }

// Close stops the server, in order if that takes no more than a few seconds, and
// removes its files. Closing a closed server does nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var stopped error
	for _, mode := range []Mode{Fast, Immediate, Kill} {
		ctx, cancel := context.WithTimeout(context.Background(), closePatience)
		stopped = s.stop(ctx, mode)
		cancel()
		if stopped == nil {
			break
		}
	}
	defer s.lock.Close() // fails if it is closed already
	if err := os.RemoveAll(s.dir); err != nil {
		return errors.Join(stopped, fmt.Errorf("remove the server's folder: %w", err))
	}
	return stopped
}

func (s *Server) data() string { return filepath.Join(s.dir, dataFolder) }
