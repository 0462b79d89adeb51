package migrate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3/lock"
)

// lockID is the key of the advisory lock: the one that programs take which use
// goose as a library. The stock goose command takes none.
const lockID = lock.DefaultLockID

// waitForLock waits for the lock, as long as it takes, and tells who has it. It
// asks again and again: CREATE INDEX CONCURRENTLY would wait for a statement that
// waits.
func waitForLock(ctx context.Context, conn *pgx.Conn, notify func(Event)) error {
	var told int32
	for {
		var ours bool
		if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(lockID)).Scan(&ours); err != nil {
			return fmt.Errorf("take the migration lock: %w", err)
		}
		if ours {
			return nil
		}
		holders, err := blockers(ctx, conn, `SELECT pid FROM pg_locks
			WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
				AND classid = ($1::bigint >> 32)::oid AND objid = ($1::bigint & 4294967295)::oid AND objsubid = 1 AND granted`, int64(lockID))
		if err != nil {
			return fmt.Errorf("look who holds the migration lock: %w", err)
		}
		if len(holders) > 0 && holders[0].PID != told {
			told = holders[0].PID
			notify(Event{Kind: Queued, Blockers: holders})
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("interrupted while another run was at work: nothing was changed: %w", ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// lockTimeout returns the lock_timeout to use. An autovacuum gives way to those
// who have waited for deadlock_timeout. By default that is a second, too, and
// then the lock timeout comes first, as often as we try: so let it come later.
func lockTimeout(ctx context.Context, conn *pgx.Conn, wanted time.Duration) (time.Duration, error) {
	var milliseconds int64
	if err := conn.QueryRow(ctx, `SELECT setting::bigint FROM pg_settings WHERE name = 'deadlock_timeout'`).Scan(&milliseconds); err != nil {
		return 0, fmt.Errorf("read deadlock_timeout: %w", err)
	}
	const margin = 100 * time.Millisecond
	deadlock := time.Duration(milliseconds) * time.Millisecond
	if wanted >= deadlock && wanted < deadlock+margin {
		return deadlock + margin, nil
	}
	return wanted, nil
}

// IsLockTimeout reports whether a statement waited for a lock in vain, or for
// each other with another.
func IsLockTimeout(err error) bool {
	const lockNotAvailable, deadlockDetected = "55P03", "40P01"
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == lockNotAvailable || pg.Code == deadlockDetected)
}

// pause is half a lock timeout after the first attempt, so that those who queued
// up meanwhile get through, and doubles; a fifth of it is chance.
func pause(timeout time.Duration, attempt int) time.Duration {
	d := min(timeout/2<<min(attempt-1, 16), 10*time.Second)
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}
