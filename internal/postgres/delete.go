package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/sethvargo/go-retry"
	"golang.org/x/sync/semaphore"

	"plantstore/internal/plant"
)

// Plants deletes plants.
type Plants struct {
	db    *DB
	group group
	// alone bounds the deletions that wait for a lock on a connection of their
	// own, so that there are always connections left for the others.
	alone *semaphore.Weighted
}

// Plants returns the repository of plants.
func (db *DB) Plants() *Plants {
	own := max(int64(db.pool.Config().MaxConns)-maxLanes, 1)
	return &Plants{db: db, group: group{db: db}, alone: semaphore.NewWeighted(own)}
}

// Back-off between attempts: doubling from first to most, each shortened or
// lengthened at random by up to half, so that requests that failed together do
// not come back together.
const (
	firstPause  = 10 * time.Millisecond
	mostPause   = 400 * time.Millisecond
	pauseJitter = 50 // per cent
)

// margin is how much earlier than we the server gives up on a statement, so that
// a lock that is not had in time is a certain "rolled back" and not a connection
// cut in mid-statement. What can't be tried with that margin is not tried.
const margin = 200 * time.Millisecond

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
	// alone is set once the deletion turned out to hold others up.
	alone := false
	for lone := 0; ; {
		var result plant.Result
		var v *verdict
		if unsure || alone {
			lone++
			result, v = p.deleteAlone(ctx, d, lone, unsure)
		} else {
			o := p.group.delete(ctx, d)
			if o.alone {
				alone = true
				continue // at once: it is waiting, not failing
			}
			v = o.verdict
			if v == nil && !o.deleted {
				result, v = p.whyNotDeleted(ctx, d)
			}
		}
		if v == nil {
			return result, nil
		}
		unsure = unsure || v.fate == unknown
		if !v.retry {
			return plant.Result{}, conclude(unsure, v.err)
		}
		wait, _ := pause.Next()
		if deadline, ok := ctx.Deadline(); ok {
			left := time.Until(deadline) - margin
			if left < firstPause {
				return plant.Result{}, conclude(unsure, v.err)
			}
			wait = min(wait, left/2)
		}
		select {
		case <-ctx.Done():
			return plant.Result{}, conclude(unsure, v.err)
		case <-time.After(wait):
		}
	}
}

// conclude is what a deletion that is given up ends with. When an earlier attempt
// may have been committed, only what was read from the ledger since is certain.
func conclude(unsure bool, err error) error {
	var earlier *plant.DeletedEarlierError
	var referenced *plant.ReferencedError
	if !unsure || errors.Is(err, plant.ErrNotFound) || errors.As(err, &earlier) || errors.As(err, &referenced) {
		return err
	}
	return fmt.Errorf("%w: %w", plant.ErrUnknown, err)
}

// budget is how long an attempt on a connection of its own may take. The first
// ones are short, because a peer that stopped answering looks like a slow
// statement and a new connection helps; after that a deletion that is slow by
// nature gets all that is left.
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

// deleteAlone makes an attempt on a connection of its own. A nil verdict means
// success.
func (p *Plants) deleteAlone(ctx context.Context, d plant.Deletion, attempt int, unsure bool) (plant.Result, *verdict) {
	end := time.Now().Add(budget(ctx, attempt))
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if err := p.alone.Acquire(ctx, 1); err != nil {
		return plant.Result{}, &verdict{wrap(plant.ErrBusy, err), nothing, true}
	}
	defer p.alone.Release(1)
	conn, err := p.db.pool.Acquire(ctx)
	if err != nil {
		v := judge(err, false)
		return plant.Result{}, &v
	}
	defer conn.Release()

	if unsure {
		h, err := readHistory(ctx, conn.Conn(), d)
		if err != nil {
			return plant.Result{}, onlyRead(err)
		}
		if h.own {
			return replay(ctx, conn.Conn(), d, h, unsure)
		}
	}
	left := time.Until(end) - margin
	if left <= 0 {
		return plant.Result{}, &verdict{wrap(plant.ErrUnavailable, context.DeadlineExceeded), nothing, true}
	}
	deleted, _, err := deleteEach(ctx, conn.Conn(), []plant.Deletion{d}, left, left)
	switch {
	case err != nil && !isRecordedAlready(err):
		v := judge(err, true)
		return plant.Result{}, &v
	case err == nil && deleted[0]:
		return plant.Result{}, nil
	default:
		return explainMissing(ctx, conn.Conn(), d, unsure)
	}
}

// whyNotDeleted finds out what a DELETE that was committed without a row, or was
// refused because it is in the ledger already, means. A nil verdict means
// success.
func (p *Plants) whyNotDeleted(ctx context.Context, d plant.Deletion) (plant.Result, *verdict) {
	ctx, cancel := context.WithTimeout(ctx, budget(ctx, 1))
	defer cancel()
	conn, err := p.db.pool.Acquire(ctx)
	if err != nil {
		v := judge(err, false)
		return plant.Result{}, &v
	}
	defer conn.Release()
	return explainMissing(ctx, conn.Conn(), d, false)
}

func explainMissing(ctx context.Context, conn *pgx.Conn, d plant.Deletion, unsure bool) (plant.Result, *verdict) {
	h, err := readHistory(ctx, conn, d)
	switch {
	case err != nil:
		return plant.Result{}, onlyRead(err)
	case h.own:
		return replay(ctx, conn, d, h, unsure)
	case h.exists:
		// It came between the two statements, or something in the database
		// keeps the row although the DELETE ran.
		err := fmt.Errorf("%w: the row is there, but DELETE did not touch it", plant.ErrBusy)
		return plant.Result{}, &verdict{err, nothing, true}
	case h.deletedAt != nil:
		if err := settle(ctx, conn); err != nil {
			return plant.Result{}, onlyRead(err)
		}
		return plant.Result{}, &verdict{&plant.DeletedEarlierError{At: *h.deletedAt}, nothing, false}
	default:
		return plant.Result{}, &verdict{plant.ErrNotFound, nothing, false}
	}
}

// onlyRead judges the error of a statement that changes nothing.
func onlyRead(err error) *verdict {
	v := judge(err, true)
	v.fate = nothing
	return &v
}

// commitDurably is a column of a SELECT. It makes the transaction that it is in wait
// for its commit: a cluster that has synchronous_commit off would answer before
// the commit is durable.
const commitDurably = `set_config('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), true)`

// deleteEach runs deletions as one implicit transaction in one round trip, and
// reports for each whether there was a row. With an error at is the index of the
// deletion at which it came, or -1 if it came with the commit; nothing was deleted
// if the error is the database's, and nobody knows if the connection was lost.
//
// Each DELETE locks its row and, by their foreign keys, looks for rows that refer
// to it (a scan of the referring table if that has no index on the column). The
// trigger plantstore_record_deletion writes the ledger from the settings made
// before it. Somebody else deleting the same row is waited for, up to
// lockTimeout; whoever comes second finds no row.
//
// All settings end with the transaction.
func deleteEach(ctx context.Context, conn *pgx.Conn, deletions []plant.Deletion, lockTimeout, statementTimeout time.Duration) (deleted []bool, at int, err error) {
	var pipeline pgx.Batch
	for i, d := range deletions {
		if i == 0 {
			pipeline.Queue(`SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true),
				`+commitDurably+`, set_config('plantstore.batch', '', true), set_config('plantstore.principal', $3, true),
				set_config('plantstore.request_id', $4, true), set_config('plantstore.idempotency_key', $5, true)`,
				milliseconds(lockTimeout), milliseconds(statementTimeout), d.Principal, d.RequestID, d.Key)
		} else {
			pipeline.Queue(`SELECT set_config('plantstore.principal', $1, true),
				set_config('plantstore.request_id', $2, true), set_config('plantstore.idempotency_key', $3, true)`,
				d.Principal, d.RequestID, d.Key)
		}
		pipeline.Queue(`DELETE FROM plants WHERE id = $1`, int64(d.Plant))
	}
	results := conn.SendBatch(ctx, &pipeline)
	deleted = make([]bool, len(deletions))
	at = -1
	for i := range deletions {
		var tag pgconn.CommandTag
		if _, err = results.Exec(); err == nil {
			tag, err = results.Exec()
		}
		if err != nil {
			at = i
			break
		}
		deleted[i] = tag.RowsAffected() > 0
	}
	// The commit is only known when everything was read to the end.
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return deleted, at, err
}

// deleteTogether is deleteEach for many at about half the cost for the database:
// one DELETE for all of them, which the trigger records in one go. It can't tell
// whose deletion the database refused: at is -1 with any error.
//
// It takes the same locks, in whatever order the plan finds the rows: lockTimeout
// has to be less than deadlock_timeout.
func deleteTogether(ctx context.Context, conn *pgx.Conn, deletions []plant.Deletion, lockTimeout, statementTimeout time.Duration) (deleted []bool, at int, err error) {
	type request struct {
		Plant     plant.ID `json:"plant"`
		Principal string   `json:"principal"`
		RequestID string   `json:"request_id"`
		Key       string   `json:"key"`
	}
	// Of those who ask for the same plant the first gets it.
	member := make(map[int64]int, len(deletions))
	ids := make([]int64, 0, len(deletions))
	batch := make([]request, 0, len(deletions))
	for i, d := range deletions {
		if _, taken := member[int64(d.Plant)]; !taken {
			member[int64(d.Plant)] = i
			ids = append(ids, int64(d.Plant))
			batch = append(batch, request{d.Plant, d.Principal, d.RequestID, d.Key})
		}
	}
	requests, err := json.Marshal(batch)
	if err != nil {
		return nil, -1, fmt.Errorf("encode batch: %w", err)
	}
	var pipeline pgx.Batch
	pipeline.Queue(`SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true),
		`+commitDurably+`, set_config('plantstore.batch', $3, true), set_config('plantstore.recorded', '', true)`,
		milliseconds(lockTimeout), milliseconds(statementTimeout), string(requests))
	pipeline.Queue(`DELETE FROM plants WHERE id = ANY ($1) RETURNING id`, ids)
	// The trigger of an older schema would record all of them without their
	// requests. A division by zero takes that back; the trigger can't be replaced
	// between the two statements, as the first has locked the table.
	pipeline.Queue(`SELECT 1 / (current_setting('plantstore.recorded') = 'yes')::int`)
	results := conn.SendBatch(ctx, &pipeline)
	defer results.Close()
	if _, err = results.Exec(); err != nil {
		return nil, -1, err
	}
	rows, err := results.Query()
	if err != nil {
		return nil, -1, err
	}
	gone, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, -1, err
	}
	deleted = make([]bool, len(deletions))
	for _, id := range gone {
		deleted[member[id]] = true
	}
	// The commit is only known when everything was read to the end.
	return deleted, -1, results.Close()
}

// milliseconds writes a duration as PostgreSQL's time settings have it. None is
// written as 0, which would mean no limit.
func milliseconds(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }

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
	return h, err
}

// settle makes sure that what was read from the ledger outlives a failover.
//
// A row can be read before it is replicated: when the wait for a synchronous
// standby was cut short, by a crash or a cancelled session, the commit is there
// locally and only there. So settle commits a record of its own behind it (the
// smallest there is, a logical decoding message) and waits for that: the log is
// replicated in order.
func settle(ctx context.Context, conn *pgx.Conn) error {
	left := budget(ctx, 1)
	var pipeline pgx.Batch
	pipeline.Queue(`SELECT set_config('statement_timeout', $1, true), `+commitDurably, milliseconds(left))
	pipeline.Queue(`SELECT pg_logical_emit_message(true, 'plantstore', '')`)
	return conn.SendBatch(ctx, &pipeline).Close()
}

// replay ends a deletion that was found in the ledger.
func replay(ctx context.Context, conn *pgx.Conn, d plant.Deletion, h history, unsure bool) (plant.Result, *verdict) {
	if err := settle(ctx, conn); err != nil {
		v := judge(err, true)
		v.fate = unknown
		return plant.Result{}, &v
	}
	// Under our own request id, after an attempt of ours that may have been
	// committed: that attempt was.
	ours := unsure && h.requestID != nil && *h.requestID == d.RequestID
	return plant.Result{Replayed: !ours}, nil
}
