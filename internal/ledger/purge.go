package ledger

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// MinAge is the minimum age for Purge. Until then the ledger recognizes repeated requests.
const MinAge = 7 * 24 * time.Hour

const purgeBatch = 10_000

// Older returns how many entries are older than age.
func Older(ctx context.Context, conn *pgx.Conn, age time.Duration) (n int64, err error) {
	err = conn.QueryRow(ctx, `SELECT count(*) FROM plantstore.deletions WHERE deleted_at < now() - $1::interval`, age).Scan(&n)
	return n, err
}

// Purge removes entries older than age, refusals too, oldest first, and returns how many. The
// rows of watched tables go with them. Each batch is a transaction. After it, Purge pauses for
// as long as it took. Entries that a restore has locked stay.
func Purge(ctx context.Context, conn *pgx.Conn, age time.Duration) (purged int64, err error) {
	var cutoff time.Time
	if err := conn.QueryRow(ctx, `SELECT clock_timestamp() - $1::interval FROM set_config('statement_timeout', '0', false)`, age).Scan(&cutoff); err != nil {
		return purged, err
	}
	var last *int64
	for {
		began := time.Now()
		var old, gone int64
		if err := conn.QueryRow(ctx, `
			WITH page AS MATERIALIZED (
				SELECT id, deleted_at < $2 AS old FROM plantstore.deletions WHERE $1::bigint IS NULL OR id > $1 ORDER BY id LIMIT $3
			), unlocked AS MATERIALIZED (
				SELECT id FROM plantstore.deletions WHERE id IN (SELECT id FROM page WHERE old) FOR UPDATE SKIP LOCKED
			), gone AS (
				DELETE FROM plantstore.deletions WHERE id IN (SELECT id FROM unlocked) RETURNING id
			), cascaded AS (
				DELETE FROM plantstore.cascaded WHERE deletion_id IN (SELECT id FROM gone)
			)
			SELECT max(id), count(*) FILTER (WHERE old), (SELECT count(*) FROM gone) FROM page`,
			last, cutoff, purgeBatch).Scan(&last, &old, &gone); err != nil {
			return purged, err
		}
		purged += gone
		if old == 0 {
			return purged, nil
		}
		select {
		case <-ctx.Done():
			return purged, ctx.Err()
		case <-time.After(time.Since(began)):
		}
	}
}
