package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ledger tells how large the ledger is and how fast it grows.
func (e *examination) ledger(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	var size int64
	var text string
	var old bool
	// Recent growth is that of the newest entries, of which ids are a fair count.
	err := tx.QueryRow(ctx, `
		WITH recent AS (SELECT id, deleted_at FROM public.plant_deletions ORDER BY id DESC LIMIT 10000),
			pace AS (SELECT count(*) AS n, greatest(extract(epoch FROM clock_timestamp() - min(deleted_at)) / 86400, 1) AS days FROM recent),
			oldest AS (SELECT deleted_at FROM public.plant_deletions ORDER BY id LIMIT 1),
			ledger AS (SELECT pg_total_relation_size(oid) AS size, greatest(reltuples, 0)::bigint AS n FROM pg_class WHERE oid = 'public.plant_deletions'::regclass)
		SELECT size, coalesce((SELECT format('%s, since %s; lately %s deletions a day, about %s', pg_size_pretty(size),
					to_char(oldest.deleted_at, 'YYYY-MM-DD'), ceil(pace.n / days), pg_size_pretty((pace.n / days * (size / greatest(ledger.n, pace.n)))::bigint))
				FROM oldest), format('empty, %s', pg_size_pretty(size))),
			coalesce((SELECT deleted_at < clock_timestamp() - make_interval(secs => $1) FROM oldest), false)
		FROM ledger, pace`, e.Limits.LedgerAge.Seconds()).Scan(&size, &text, &old)
	if err != nil {
		return nil, err
	}
	if size > e.Limits.LedgerBytes && old {
		return []Finding{{Grade: Warning, Message: text + ": more than may be needed",
			Remedy: fmt.Sprintf("plantstore deletions purge --older-than %dd", int(e.Limits.LedgerAge.Hours()/24))}}, nil
	}
	return fine("%s", text), nil
}
