package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Cursor is a place in the order of export: by transaction, then by id.
type Cursor struct {
	Transaction uint64
	ID          int64
	// After is a bound that spares reading the ledger from its beginning: all that comes
	// after the cursor has a larger id.
	After int64
}

// String returns what ParseCursor reads.
func (c Cursor) String() string { return fmt.Sprintf("%d-%d-%d", c.Transaction, c.ID, c.After) }

// ParseCursor parses a cursor of an exported line.
func ParseCursor(s string) (Cursor, error) {
	var c Cursor
	if _, err := fmt.Sscanf(s, "%d-%d-%d", &c.Transaction, &c.ID, &c.After); err != nil || c.String() != s {
		return Cursor{}, fmt.Errorf("%q is not a cursor such as 740-12-9", s)
	}
	return c, nil
}

// ErrForeignCursor is returned for a cursor that this server can't have given.
var ErrForeignCursor = errors.New("the cursor is of another server, or of one that lost transactions: start again without it")

// A Line is an exported deletion.
type Line struct {
	Cursor string `json:"cursor"`
	Deletion
}

// Export calls write with each deletion after the cursor, in the order of transactions and
// ids, and returns the cursor of the last one. A deletion waits until no transaction is
// open that is older than its own, so none is missed. With poll it does not end, and looks
// for new ones that often.
func Export(ctx context.Context, conn *pgx.Conn, from Cursor, poll time.Duration, write func(Line) error) (Cursor, error) {
	if _, err := conn.Exec(ctx, `SELECT set_config('statement_timeout', '0', false)`); err != nil {
		return from, err
	}
	for {
		var err error
		if from, err = exportRound(ctx, conn, from, write); err != nil || poll == 0 {
			return from, err
		}
		select {
		case <-ctx.Done():
			return from, ctx.Err()
		case <-time.After(poll):
		}
	}
}

// exportRound exports what is there now.
//
// A transaction has its number before its entries have theirs. So what belongs to a
// transaction later than marker has an id above last.
func exportRound(ctx context.Context, conn *pgx.Conn, from Cursor, write func(Line) error) (Cursor, error) {
	var last int64
	if err := conn.QueryRow(ctx, `SELECT last_value - (NOT is_called)::int FROM plantstore.deletions_id_seq`).Scan(&last); err != nil {
		return from, err
	}
	if last <= from.After {
		return from, nil
	}
	var marker, horizon uint64
	if err := conn.QueryRow(ctx, `SELECT pg_current_xact_id()`).Scan(&marker); err != nil {
		return from, err
	}
	if from.Transaction >= marker {
		return from, ErrForeignCursor
	}
	if err := conn.QueryRow(ctx, `SELECT pg_snapshot_xmin(pg_current_snapshot())`).Scan(&horizon); err != nil {
		return from, err
	}
	rows, err := conn.Query(ctx, `SELECT `+columns+`, `+row+`, '', 0 FROM plantstore.deletions
		WHERE id > $1 AND transaction_id < $2 AND (transaction_id, id) > ($3, $4) AND refused IS NULL
		ORDER BY transaction_id, id`, from.After, horizon, from.Transaction, from.ID)
	var held *Deletion // the last line of a round has the new bound
	flush := func(bound int64) error {
		next := Cursor{from.Transaction, from.ID, bound}
		if held != nil {
			next.Transaction, next.ID = held.TransactionID, held.ID
			if err := write(Line{next.String(), *held}); err != nil {
				return err
			}
		}
		from = next
		return nil
	}
	if err := each(rows, err, func(d Deletion) error {
		err := flush(from.After)
		held = &d
		return err
	}); err != nil {
		return from, err
	}
	if marker >= horizon { // an older transaction is open
		last = from.After
	}
	err = flush(last)
	return from, err
}
