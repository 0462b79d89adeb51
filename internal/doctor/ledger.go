package doctor

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// ledger tells how large the ledger is and how fast it grows.
func (e *examination) ledger(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	const many = 10000
	var size int64
	var recent, days float64
	var sizeText, since, growth string
	var old bool
	// Recent growth is that of the newest entries, of which ids are a fair count.
	err := tx.QueryRow(ctx, `
		WITH recent AS (SELECT id, deleted_at FROM public.plant_deletions ORDER BY id DESC LIMIT $2),
			pace AS (SELECT count(*)::float8 AS n, coalesce(extract(epoch FROM clock_timestamp() - min(deleted_at)) / 86400, 0)::float8 AS days FROM recent),
			ledger AS (SELECT pg_total_relation_size(oid) AS size, greatest(reltuples, 1)::bigint AS n,
					(SELECT deleted_at FROM public.plant_deletions ORDER BY id LIMIT 1) AS oldest
				FROM pg_class WHERE oid = 'public.plant_deletions'::regclass)
		SELECT size, pg_size_pretty(size), pace.n, days, coalesce(to_char(oldest, 'YYYY-MM-DD'), ''),
			pg_size_pretty((pace.n / greatest(days, 1) * (size / greatest(ledger.n, pace.n)))::bigint),
			coalesce(oldest < clock_timestamp() - make_interval(secs => $1), false)
		FROM ledger, pace`, e.Limits.LedgerAge.Seconds(), many).Scan(&size, &sizeText, &recent, &days, &since, &growth, &old)
	if err != nil {
		return nil, err
	}
	entries := func(n float64) string { // deletions, and refusals told under a key
		if n == 1 {
			return "1 entry"
		}
		return fmt.Sprintf("%.f entries", n)
	}
	text := fmt.Sprintf("%s, since %s; lately ", sizeText, since)
	switch aDay := math.Round(recent / max(days, 1)); {
	case recent == 0:
		text = "empty, " + sizeText
	case days < 1 && recent < many: // these are all, and no pace yet
		text = fmt.Sprintf("%s, %s since %s", sizeText, entries(recent), since)
	case days < 1: // there are more of the day than were read
		text += fmt.Sprintf("%s in %s, about %s", entries(recent), time.Duration(days*float64(24*time.Hour)).Round(time.Second), growth)
	case aDay < 1:
		text += "less than 1 entry a day"
	default:
		text += fmt.Sprintf("%s a day, about %s", entries(aDay), growth)
	}
	if size > e.Limits.LedgerBytes && old {
		return []Finding{{Grade: Warning, Message: text + ": more than may be needed",
			Remedy: fmt.Sprintf("plantstore deletions purge --older-than %dd", int(e.Limits.LedgerAge.Hours()/24))}}, nil
	}
	return fine("%s", text), nil
}
