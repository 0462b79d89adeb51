package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A Pooler is what stands between a client and the server.
type Pooler int

const (
	NoPooler          Pooler = iota
	SessionPooler            // each client has a server connection of its own
	TransactionPooler        // each transaction may have another server connection
)

// ErrPooler is the reason not to run through a pooler that gives each
// transaction another server connection.
var ErrPooler = errors.New("a connection pooler in transaction mode is between: " +
	"the lock that keeps two runs apart, and lock_timeout, belong to a session, and it would lend that session to others; " +
	"name the server itself in PLANTSTORE_MIGRATE_DATABASE_URL (a pooler in session mode will do)")

// FindPooler finds out what is between conn and the server. It opens a second
// connection where something is.
//
// A pooler can't pass on the process id that a client is told at connect, since
// it has not chosen a server connection then: it makes one up. That is still
// fine in session mode. In transaction mode, either our own server connection
// changes between two statements (a busy pool), or a second client is given the
// one that we just used (an idle pool).
func FindPooler(ctx context.Context, conn *pgx.Conn) (Pooler, error) {
	first, err := backendPID(ctx, conn)
	if err != nil || first == conn.PgConn().PID() {
		return NoPooler, err
	}
	other, err := pgx.ConnectConfig(ctx, conn.Config())
	if err != nil {
		return SessionPooler, fmt.Errorf("connect: %w", err)
	}
	defer other.Close(context.WithoutCancel(ctx))
	const attempts = 5 // with others about, two connections need not meet at once
	for range attempts {
		ours, err := backendPID(ctx, conn)
		if err != nil {
			return SessionPooler, err
		}
		theirs, err := backendPID(ctx, other)
		if err != nil {
			return SessionPooler, err
		}
		if ours != first || ours == theirs {
			return TransactionPooler, nil
		}
	}
	return SessionPooler, nil
}

// backendPID returns the process id of the server's end of conn. It asks in a way
// that works through any pooler, and names the function's schema: this is asked
// before the search path is pinned.
func backendPID(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	err = conn.QueryRow(ctx, `SELECT pg_catalog.pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&pid)
	if err != nil {
		return 0, fmt.Errorf("ask for the server's process: %w", err)
	}
	return pid, nil
}
