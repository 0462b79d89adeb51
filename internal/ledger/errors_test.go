package ledger_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/ledger"
	"plantstore/internal/pgtest"
)

// A failure fails one statement of a connection.
type failure struct {
	at, seen int
	sql      string
}

func (f *failure) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if q.SQL == "rollback" {
		return ctx
	}
	if f.seen++; f.seen == f.at {
		f.sql = q.SQL
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		return cancelled
	}
	return ctx
}

func (f *failure) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Each statement that fails returns its own error, not that of a later statement. Only after a
// failed commit it is unknown whether the plants were restored.
func TestFailedStatementsReturnTheirOwnErrors(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	owner := pgtest.Connect(t, db.Owner)
	pgtest.Execute(t, owner, `
		CREATE TABLE pots (id int PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE, other bigint REFERENCES plants ON DELETE SET NULL);
		CREATE INDEX ON pots (plant); CREATE INDEX ON pots (other); SELECT plantstore.watch('pots');
		INSERT INTO plants (id, name) VALUES (1, 'p'), (2, 'p'); INSERT INTO pots VALUES (1, 1, NULL), (2, NULL, 2);
		DELETE FROM plants WHERE id = 1; ALTER TABLE plants ADD note text; DELETE FROM plants WHERE id = 2`)
	restore := func(ctx context.Context, conn *pgx.Conn) error {
		done, err := ledger.Restore(ctx, conn, ledger.Selection{ByRole: "plantstore_owner"}, ledger.Options{})
		if err == nil && (len(done.Plants) != 2 || len(done.Cascaded) != 2) {
			t.Errorf("restored: got %+v, want two plants and what left with them", done)
		}
		return err
	}
	script := func(ctx context.Context, conn *pgx.Conn) error {
		return ledger.Script(ctx, conn, ledger.Selection{Plants: []int64{2}}, io.Discard)
	}
	purge := func(ctx context.Context, conn *pgx.Conn) error {
		_, err := ledger.Purge(ctx, conn, ledger.MinAge)
		return err
	}
	f := &failure{}
	var conn *pgx.Conn
	for _, do := range []func(context.Context, *pgx.Conn) error{script, purge, restore} {
		for f.at = 1; ; f.at++ {
			if conn == nil || conn.IsClosed() { // a failed BEGIN closes the connection
				conn = pgtest.ConnectWith(t, db.Owner, func(c *pgx.ConnConfig) { c.Tracer = f })
			}
			f.seen = 0
			err := do(t.Context(), conn)
			if f.seen < f.at {
				if err != nil || f.at == 1 {
					t.Errorf("without a failure: got %v after %d statements, want none", err, f.seen)
				}
				break
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want %v from statement %d: %s", err, context.Canceled, f.at, f.sql)
			}
			if unknown := f.sql == "commit"; errors.Is(err, ledger.ErrCommitUnknown) != unknown {
				t.Errorf("got %v from %s, want ErrCommitUnknown: %v", err, f.sql, unknown)
			}
		}
	}
}
