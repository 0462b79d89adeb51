package doctor

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/migrate"
	"plantstore/internal/postgres"
)

// Readiness finds what makes deleting impossible, or leaves it without a record.
type Readiness struct {
	// catalogue and tables are the queries of the list that count here, each as one
	// statement: those that read the catalogue, and then those that read tables.
	catalogue, tables string

	// found is what the last look found: nil, or why nothing can be deleted. A look that
	// did not get to an end does not count.
	found atomic.Pointer[error]
}

// NewReadiness prepares the queries.
func NewReadiness() *Readiness {
	var catalogue, tables []string
	for _, h := range hindrances() {
		switch {
		case h.when&ready == 0:
		case h.when&last == 0:
			catalogue = append(catalogue, "SELECT * FROM ("+h.sql+") h")
		default:
			tables = append(tables, "SELECT * FROM ("+h.sql+") h")
		}
	}
	const also = "\nUNION ALL\n"
	return &Readiness{catalogue: strings.Join(catalogue, also), tables: strings.Join(tables, also)}
}

// Check looks at a database as the service, at a few rows of the catalogue. The
// error is a sentence for an operator; a *postgres.NotReadyError if the look did not
// get to an end. If that was for a lock of somebody else's, what was found before it
// holds: deletions wait for locks, so a lock makes nobody unready.
func (r *Readiness) Check(ctx context.Context, db *postgres.DB) error {
	var reasons []string
	err := db.Lend(ctx, func(conn *pgx.Conn) error {
		return migrate.Reading(ctx, conn, func(tx pgx.Tx) (err error) {
			reasons, err = r.reasons(ctx, tx)
			return err
		})
	})
	if err != nil {
		if err = db.NotReady(err); !errors.Is(err, postgres.ErrLocked) {
			return err
		}
		if before := r.found.Load(); before != nil {
			return *before
		}
		return err
	}
	if len(reasons) > 0 {
		err = errors.New(strings.Join(reasons, "; ") + ": see 'plantstore doctor'")
	}
	r.found.Store(&err)
	return err
}

func (r *Readiness) reasons(ctx context.Context, tx pgx.Tx) (reasons []string, err error) {
	s := situation{}
	// Who waits for a lock longer than a probe waits for us is no wiser.
	if err := tx.QueryRow(ctx, `SELECT current_user::text, set_config('lock_timeout', '100ms', true)`).Scan(&s.app, nil); err != nil {
		return nil, err
	}
	if err := s.compare(ctx, tx); err != nil {
		return nil, err
	}
	for _, sql := range []string{r.catalogue, r.tables} {
		found, err := look(ctx, tx, sql, s.arguments())
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			if f.Grade == Problem {
				reasons = append(reasons, f.Message)
			}
		}
		if len(reasons) > 0 {
			break
		}
	}
	return reasons, nil
}
