package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// settings apply to each of the service's sessions. A transaction pooler carries none of
// them, so deploy/postgres/roles.sql sets them for the role.
var settings = [...]struct{ name, value string }{
	{"synchronous_commit", "on"},
	{"default_transaction_isolation", "read committed"},
	{"plan_cache_mode", "force_generic_plan"}, // a custom plan is made anew for each array of ids
	{"enable_seqscan", "off"},                 // a plan made on an empty table stays good on a full one
	{"jit", "off"},
	{"client_min_messages", "warning"}, // a cut-short wait for the standby is one
}

// prepare makes the session's settings. Behind a pooler, which makes up the process id that
// the driver knows, the session belongs to others, too, so it is only checked.
func (db *DB) prepare(ctx context.Context, c *pgx.Conn, lock, statement time.Duration) error {
	if err := c.PgConn().Conn().SetDeadline(time.Time{}); err != nil {
		return fmt.Errorf("prepare session: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, db.limits.connect)
	defer cancel()
	var names, values []string
	for _, s := range settings {
		names, values = append(names, s.name), append(values, s.value)
	}
	names = append(names, "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout", "tcp_keepalives_idle")
	values = append(values, fmt.Sprint(lock.Milliseconds()), fmt.Sprint(statement.Milliseconds()), "5s", "5")
	// remote_apply and remote_write are the operator's choice.
	tag, err := c.Exec(ctx, `SELECT set_config(s.name, s.value, false) FROM unnest($1::text[], $2::text[]) s (name, value)
		WHERE pg_backend_pid() = $3::bigint AND NOT (s.name = 'synchronous_commit' AND current_setting(s.name) LIKE 'remote%')`,
		names, values, int64(c.PgConn().PID()))
	if err != nil {
		return fmt.Errorf("prepare session: %w", err)
	}
	if tag.RowsAffected() == 0 {
		c.PgConn().CustomData()[throughPooler] = true
		return db.checkSession(ctx, c, names[:len(settings)], values[:len(settings)])
	}
	began := time.Now()
	if err := c.Ping(ctx); err != nil {
		return fmt.Errorf("prepare session: %w", err)
	}
	took := int64(time.Since(began))
	if shortest := db.roundTrip.Load(); shortest == 0 || took < shortest {
		db.roundTrip.Store(took)
	}
	return nil
}

// throughPooler is set in the custom data of a connection that ends at a pooler.
const throughPooler = "through pooler"

// checkSession warns once of settings that a role behind a pooler lacks. A deletion needs the
// isolation level; it checks that itself.
func (db *DB) checkSession(ctx context.Context, c *pgx.Conn, names, values []string) error {
	var wrong string
	// The values that the last line names are as good.
	if err := c.QueryRow(ctx, `SELECT coalesce(string_agg(s.name || ' is ' || current_setting(s.name), ', ' ORDER BY s.n), '')
		FROM unnest($1::text[], $2::text[]) WITH ORDINALITY s (name, value, n)
		WHERE current_setting(s.name) NOT IN (s.value, 'remote_apply', 'remote_write', 'notice')`, names, values).Scan(&wrong); err != nil {
		return fmt.Errorf("check session: %w", err)
	}
	if wrong != "" && db.warned.CompareAndSwap(false, true) {
		db.Log.Warn("the service's role lacks settings that a pooler cannot carry: run roles.sql of the release", "settings", wrong)
	}
	return nil
}

// cutShort is set in the custom data of a connection when a commit did not wait for its
// synchronous standby to the end.
const cutShort = "cut short"

var errCutShort = errors.New("the wait for the synchronous standby was cut short")

func noteCutShort(c *pgconn.PgConn, n *pgconn.Notice) {
	if n.Routine == "SyncRepWaitForLSN" {
		c.CustomData()[cutShort] = true
	}
}

// takeCutShort returns errCutShort if a connection's wait was cut short since the last call.
func takeCutShort(c *pgx.Conn) error {
	data := c.PgConn().CustomData()
	if data[cutShort] == nil {
		return nil
	}
	delete(data, cutShort)
	return errCutShort
}

// A quickClose is a connection that closes quickly. pgx waits 15 s for a peer that is gone,
// and the connection keeps its place in the pool meanwhile.
type quickClose struct {
	net.Conn
	timeout time.Duration
}

func (c *quickClose) SetDeadline(t time.Time) error {
	if most := time.Now().Add(c.timeout); t.After(most) {
		t = most
	}
	return c.Conn.SetDeadline(t)
}
