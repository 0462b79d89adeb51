//go:build unix

package localpg

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/jackc/pgx/v5/pgconn"
)

// A Bouncer is a PgBouncer in transaction mode in front of one database.
type Bouncer struct {
	*folder
	URL string // for any role: PgBouncer logs in with the role of the database's URL

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
	f, err := newFolder("")
	if err != nil {
		return nil, err
	}
	b := &Bouncer{folder: f}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	query, prepared := url.Values{"host": {b.path}, "port": {"6432"}}, "max_prepared_statements = 100"
	if major == 1 && minor < 21 {
		prepared = ""
		query.Set("default_query_exec_mode", "exec")
	}
	b.URL = socketURL(url.UserPassword(target.User, target.Password), target.Database, query)
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
`, target.Database, quote(target.Host), target.Port, quote(target.User), quote(target.Password), b.path, prepared)
	file := filepath.Join(b.path, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	if b.account != nil {
		if err := os.Chown(file, int(b.account.Uid), int(b.account.Gid)); err != nil {
			return nil, err
		}
	}
	b.process, err = startUntil(ctx, b.command(context.WithoutCancel(ctx), program, file), nil, "process up")
	return b, err
}

// Close ends PgBouncer, with the connections through it, and removes its files.
func (b *Bouncer) Close() error {
	if b.process != nil {
		b.process.Kill()
	}
	return b.remove()
}
