package postgres

import (
	"context"
	"errors"
	"time"

	"plantstore/internal/plant"
)

// An outcome is what the ledger says of a deletion.
type outcome struct {
	code int
	at   time.Time
	by   string // the request that the entry was recorded for; empty without an entry
	// again: an earlier question, whose answer was lost, may have recorded the entry.
	again bool
}

// outcome asks the ledger what became of a deletion. With refuse, a code of a refusal, it
// records that, see migrations/00004_record_deletions.sql. It tries until the deadline, and
// returns an error of package plant then, or ErrMisconfigured.
func (p *Plants) outcome(ctx context.Context, d plant.Deletion, refuse int) (o outcome, err error) {
	var recorded any
	if refuse != 0 {
		recorded = refuse
	}
	for pause, again := firstPause, false; ; again = true {
		if o, err = p.askOnce(ctx, d, recorded); err == nil {
			o.again = again
			return o, nil
		}
		switch meanings[classify(err)].next {
		case retry, resolve:
			if !sleep(ctx, &pause, p.db.limits.margin) {
				return o, errors.Join(plant.ErrUnavailable, err)
			}
		default:
			return o, errors.Join(plant.ErrMisconfigured, err)
		}
	}
}

func (p *Plants) askOnce(ctx context.Context, d plant.Deletion, refuse any) (o outcome, err error) {
	conn, release, err := p.slots.acquire(ctx, p.db.ask, d.Principal)
	if err != nil {
		return o, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, p.db.limits.ask)
	defer cancel()
	var at *time.Time
	var by *string
	err = conn.QueryRow(ctx, `SELECT code, at, by_request FROM plantstore.outcome($1, $2, $3, $4, $5)`,
		int64(d.Plant), d.Principal, d.RequestID, d.Key, refuse).Scan(&o.code, &at, &by)
	if err == nil {
		err = takeCutShort(conn)
	}
	if at != nil {
		o.at = *at
	}
	if by != nil {
		o.by = *by
	}
	return o, err
}
