//go:build unix

package localpg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// bouncerFile is PgBouncer's configuration, in its folder.
const bouncerFile = "pgbouncer.ini"

// A Bouncer is a PgBouncer in transaction mode in front of one database.
type Bouncer struct {
	URL string // for any role: PgBouncer logs in with the role of the database's URL

	dir     string
	lock    *os.File
	process *Process
}

// StartBouncer starts this machine's PgBouncer, set up as the manual recommends, and returns it
// when it listens. The caller has to Close it. After an error nothing is left.
func StartBouncer(ctx context.Context, databaseURL string) (_ *Bouncer, err error) {
	target, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer" // Debian's, which is not on everybody's PATH
	}
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("no PgBouncer on this machine: install it, as with 'sudo apt-get install pgbouncer': %w", err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(out), "PgBouncer %d.%d", &major, &minor); err != nil {
		return nil, fmt.Errorf("%s --version: unexpected answer %q", program, out)
	}
	credential, err := serverCredential()
	if err != nil {
		return nil, err
	}
	b := new(Bouncer)
	if b.dir, b.lock, err = makeFolder(""); err != nil {
		return nil, fmt.Errorf("make PgBouncer's folder: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()

	query := url.Values{"host": {b.dir}, "port": {"6432"}}
	prepared := "max_prepared_statements = 100"
	if major == 1 && minor < 21 {
		prepared = ""
		query.Set("default_query_exec_mode", "exec")
	}
	b.URL = (&url.URL{Scheme: "postgres", User: url.UserPassword(target.User, target.Password), Path: "/" + target.Database,
		RawQuery: strings.ReplaceAll(query.Encode(), "+", "%20")}).String()
	quoted := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	config := fmt.Sprintf(`[databases]
%s = host=%s port=%d user=%s password=%s
[pgbouncer]
listen_port = 6432
unix_socket_dir = %s
auth_type = any
pool_mode = transaction
default_pool_size = 50
server_login_retry = 1
server_round_robin = 1
%s
`, target.Database, quoted(target.Host), target.Port, quoted(target.User), quoted(target.Password), b.dir, prepared)
	file := filepath.Join(b.dir, bouncerFile)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	if credential != nil { // PgBouncer refuses root, too
		if err := errors.Join(os.Chown(file, int(credential.Uid), int(credential.Gid)), os.Chown(b.dir, int(credential.Uid), int(credential.Gid))); err != nil {
			return nil, err
		}
	}

	log, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, file)
	cmd.Dir, cmd.Stderr = b.dir, w
	cmd.Env = Environ("PG")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	b.process, err = StartProcess(cmd, syscall.SIGKILL)
	w.Close()
	if err != nil {
		log.Close()
		return nil, err
	}
	var said strings.Builder
	for lines := bufio.NewScanner(log); lines.Scan(); {
		if strings.Contains(lines.Text(), "process up") { // it listens
			go func() { _, _ = io.Copy(io.Discard, log); log.Close() }()
			return b, nil
		}
		fmt.Fprintln(&said, lines.Text())
	}
	log.Close()
	return nil, fmt.Errorf("start PgBouncer: it stopped, having logged: %s", strings.TrimSpace(said.String()))
}

// Close ends PgBouncer, with the connections through it, and removes its files.
func (b *Bouncer) Close() error {
	if b.process != nil {
		b.process.Kill()
	}
	defer b.lock.Close()
	return os.RemoveAll(b.dir)
}
