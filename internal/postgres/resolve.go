package postgres

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"plantstore/internal/plant"
)

// A resolution is the ledger's answer about a deletion.
type resolution struct {
	code int
	at   time.Time
	by   string // the request that the entry was recorded for; empty without an entry
	// again: an earlier call, whose answer was lost, may have recorded the entry.
	again bool
}

// resolve reads a deletion's outcome from the ledger. If refuse is the code of a refusal, it
// records that refusal, see migrations/00004_record_deletions.sql. It tries until the deadline.
// Then it returns an error of package plant. It returns ErrMisconfigured at once.
func (db *DB) resolve(ctx context.Context, d *plant.Deletion, refuse int) (r resolution, err error) {
	for pause, again := firstPause, false; ; again = true {
		if r, err = db.resolveOnce(ctx, d, refuse); err == nil {
			r.again = again
			return r, nil
		}
		switch m := classify(err); meanings[m].next {
		case retry, resolve:
			if !sleep(ctx, &pause, db.limits.margin) {
				return r, errors.Join(cmp.Or(meanings[m].err, plant.ErrUnavailable), err)
			}
		default:
			return r, errors.Join(plant.ErrMisconfigured, err)
		}
	}
}

func (db *DB) resolveOnce(ctx context.Context, d *plant.Deletion, refuse int) (r resolution, err error) {
	conn, release, err := db.acquire(ctx, db.outcomes, d.Principal)
	if err != nil {
		return r, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, db.limits.resolve)
	defer cancel()
	err = conn.QueryRow(ctx, `SELECT code, at, by_request FROM plantstore.resolve($1, $2, $3, $4, $5)`,
		int64(d.Plant), d.Principal, d.RequestID, d.Key, zeronull.Int4(refuse)).
		Scan(&r.code, (*zeronull.Timestamptz)(&r.at), (*zeronull.Text)(&r.by))
	if err == nil {
		err = takeCutShort(conn)
	}
	return r, err
}
