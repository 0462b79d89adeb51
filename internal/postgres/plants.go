package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/sethvargo/go-retry"

	"plantstore/internal/plant"
)

// Plants deletes plants.
type Plants struct {
	db *DB
}

// Plants returns the repository of plants.
func (db *DB) Plants() *Plants { return &Plants{db: db} }

// Back-off between attempts: doubling from first to most, each shortened or
// lengthened at random by up to half, so that requests that failed together do
// not come back together.
const (
	firstPause  = 10 * time.Millisecond
	mostPause   = 400 * time.Millisecond
	pauseJitter = 50 // per cent
)

func backoff() retry.Backoff {
	return retry.WithJitterPercent(pauseJitter, retry.WithCappedDuration(mostPause, retry.NewExponential(firstPause)))
}

// Delete deletes one plant, once, and returns when the commit that removed it is
// durable. ctx must have a deadline; Delete tries until then and does not need
// the caller to try again.
//
// A nil error means that the plant was deleted by this request or, if the
// result says Replayed, by an earlier one with the same key. Other outcomes are
// *plant.ReferencedError, *plant.DeletedEarlierError, plant.ErrNotFound,
// plant.ErrBusy, plant.ErrUnavailable (all: not deleted by this request) and
// plant.ErrUnknown. Any other error is a fault of ours; nothing was deleted.
func (p *Plants) Delete(ctx context.Context, d plant.Deletion) (plant.Result, error) {
	pause := backoff()
	// unsure is set once an attempt may have been committed without our knowing.
	// From then on the ledger is asked before anything else is tried or told.
	unsure := false
	for attempt := 1; ; attempt++ {
		result, v := p.try(ctx, d, attempt, unsure)
		if v == nil {
			return result, nil
		}
		unsure = unsure || v.fate == unknown
		if !v.retry {
			return plant.Result{}, v.err
		}
		wait, _ := pause.Next()
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= wait {
			return plant.Result{}, last(unsure, v.err)
		}
		select {
		case <-ctx.Done():
			return plant.Result{}, last(unsure, v.err)
		case <-time.After(wait):
		}
	}
}

// last is what a deletion that ran out of time ends with.
func last(unsure bool, err error) error {
	if unsure {
		return fmt.Errorf("%w: %w", plant.ErrUnknown, err)
	}
	return err
}

// budget is how long an attempt may take. The first ones are short, because a
// peer that stopped answering looks like a slow statement and a new connection
// helps; after that a deletion that is slow by nature gets all that is left.
func budget(ctx context.Context, attempt int) time.Duration {
	left := 10 * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline)
	}
	if attempt <= 2 {
		left = min(left, time.Duration(attempt)*time.Second)
	}
	return left
}

// try makes one attempt. A nil verdict means success.
func (p *Plants) try(ctx context.Context, d plant.Deletion, attempt int, unsure bool) (plant.Result, *verdict) {
	left := budget(ctx, attempt)
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	conn, err := p.db.pool.Acquire(ctx)
	if err != nil {
		v := judge(err, false)
		return plant.Result{}, &v
	}
	defer conn.Release()

	if unsure {
		h, err := readHistory(ctx, conn.Conn(), d)
		if err != nil {
			v := judge(err, true)
			v.fate = nothing // of this attempt: it only read
			return plant.Result{}, &v
		}
		if h.own {
			return p.replay(ctx, conn.Conn(), d, h, attempt)
		}
	}

	// The server gives up before we do, so that a lock that is not had in time
	// is a certain "rolled back" and not a connection cut in mid-statement.
	deleted, err := deleteOnce(ctx, conn.Conn(), d, left*9/10)
	switch {
	case err == nil && deleted:
		return plant.Result{}, nil
	case err != nil && !isRecordedAlready(err):
		v := judge(err, true)
		return plant.Result{}, &v
	}

	// No such row, or this very deletion is in the ledger already.
	h, err := readHistory(ctx, conn.Conn(), d)
	if err != nil {
		v := judge(err, true)
		v.fate = nothing // the deletion itself came to a certain end
		return plant.Result{}, &v
	}
	switch {
	case h.own:
		return p.replay(ctx, conn.Conn(), d, h, attempt)
	case h.exists:
		// It came between the two statements, or something in the database
		// keeps the row although the DELETE ran.
		return plant.Result{}, &verdict{wrap(plant.ErrBusy, errors.New("the row is there, but DELETE did not touch it")), nothing, true}
	case h.deletedAt != nil:
		return plant.Result{}, &verdict{&plant.DeletedEarlierError{At: *h.deletedAt}, nothing, false}
	default:
		return plant.Result{}, &verdict{plant.ErrNotFound, nothing, false}
	}
}

// deleteOnce runs the deletion as one implicit transaction in one round trip and
// reports whether there was a row.
//
// The DELETE locks the row and, by their foreign keys, looks for rows that refer
// to it (a scan of the referring table if that has no index on the column). The
// trigger plantstore_record_deletion writes the ledger from the settings made
// before it, which end with the transaction. Somebody else deleting the same row
// is waited for; whoever comes second finds no row.
func deleteOnce(ctx context.Context, conn *pgx.Conn, d plant.Deletion, timeout time.Duration) (bool, error) {
	var batch pgx.Batch
	batch.Queue(`SELECT set_config('plantstore.principal', $1, true),
		set_config('plantstore.request_id', $2, true),
		set_config('plantstore.idempotency_key', $3, true),
		set_config('statement_timeout', $4, true)`,
		d.Principal, d.RequestID, d.Key, strconv.FormatInt(max(timeout.Milliseconds(), 1), 10))
	batch.Queue(`DELETE FROM plants WHERE id = $1`, int64(d.Plant))
	results := conn.SendBatch(ctx, &batch)
	_, err := results.Exec()
	var tag pgconn.CommandTag
	if err == nil {
		tag, err = results.Exec()
	}
	// The commit is only known when everything was read to the end.
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return false, err
	}
	return tag.RowsAffected() > 0, nil
}

// isRecordedAlready reports whether the ledger refused a second record of the
// same principal, plant and key, and so undid the delete.
func isRecordedAlready(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == uniqueViolation && pg.ConstraintName == "plant_deletions_once"
}

// A history is what the database knows of a plant.
type history struct {
	exists    bool       // the plant is there
	own       bool       // the deletion that was asked about is in the ledger
	requestID *string    // of the ledger's row
	deletedAt *time.Time // of the ledger's row: the own one, else the latest; nil without any
}

// readHistory reads the ledger. It takes no lock.
func readHistory(ctx context.Context, conn *pgx.Conn, d plant.Deletion) (history, error) {
	var h history
	err := conn.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM plants WHERE id = $1), coalesce(l.own, false), l.request_id, l.deleted_at
		FROM (SELECT) one LEFT JOIN LATERAL (
			SELECT deleted_by = $2 AND idempotency_key IS NOT DISTINCT FROM $3 AS own, request_id, deleted_at
			FROM plant_deletions WHERE plant_id = $1
			ORDER BY own DESC, id DESC LIMIT 1
		) l ON true`,
		int64(d.Plant), d.Principal, d.Key).Scan(&h.exists, &h.own, &h.requestID, &h.deletedAt)
	h.own = h.own && ledgerIsAsked
	return h, err
}

// replay ends a deletion that was found in the ledger.
//
// A row can be read before it is replicated: when the wait for a synchronous
// standby was cut short, by a crash or a cancelled session, the commit is there
// locally and only there. The answer must outlive a failover like any other, so
// replay commits a record of its own behind it (the smallest there is, a logical
// decoding message) and waits for that: the log is replicated in order.
func (p *Plants) replay(ctx context.Context, conn *pgx.Conn, d plant.Deletion, h history, attempt int) (plant.Result, *verdict) {
	if _, err := conn.Exec(ctx, `SELECT pg_logical_emit_message(true, 'plantstore', '')`); err != nil {
		v := judge(err, true)
		v.fate = unknown
		return plant.Result{}, &v
	}
	// Found at a later attempt under our own request id: an earlier attempt of
	// this request was committed after all.
	ours := attempt > 1 && h.requestID != nil && *h.requestID == d.RequestID
	return plant.Result{Replayed: !ours}, nil
}
