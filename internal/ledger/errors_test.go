package ledger_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/ledger"
	"plantstore/internal/pgtest"
)

// A tracer is called before each statement of a connection, which may get another context.
type tracer func(ctx context.Context, conn *pgx.Conn, sql string) context.Context

func (f tracer) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return f(ctx, conn, q.SQL)
}

func (f tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func cancelled(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

// Each statement that fails returns its own error, not that of a later statement.
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
	var at, seen int
	var failed string
	fail := tracer(func(ctx context.Context, _ *pgx.Conn, sql string) context.Context {
		if sql == "rollback" {
			return ctx
		}
		if seen++; seen == at {
			failed = sql
			return cancelled(ctx)
		}
		return ctx
	})
	var conn *pgx.Conn
	for _, do := range []func(context.Context, *pgx.Conn) error{script, purge, restore} {
		for at = 1; ; at++ {
			if conn == nil || conn.IsClosed() { // a failed BEGIN closes the connection
				conn = pgtest.ConnectWith(t, db.Owner, func(c *pgx.ConnConfig) { c.Tracer = fail })
			}
			seen = 0
			err := do(t.Context(), conn)
			if seen < at {
				if err != nil || at == 1 {
					t.Errorf("without a failure: got %v after %d statements, want none", err, seen)
				}
				break
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want %v from statement %d: %s", err, context.Canceled, at, failed)
			}
		}
	}
}

// It is unknown whether plants were restored only if the answer to the commit is lost.
func TestRestoreReportsAFailedCommit(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pgtest.Execute(t, pgtest.Connect(t, db.Owner), `CREATE TABLE pots (plant bigint REFERENCES plants DEFERRABLE); INSERT INTO plants (id, name) VALUES (1, 'p'); DELETE FROM plants;
		CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER die AFTER INSERT ON pots DEFERRABLE FOR EACH ROW WHEN (NEW.plant IS NULL) EXECUTE FUNCTION die()`)
	for want, sql := range map[string]string{ // before the commit
		`nothing was restored: ERROR: insert or update on table "pots"`:  `SET CONSTRAINTS ALL DEFERRED; INSERT INTO public.pots VALUES (7)`,
		"nothing was restored: commit unexpectedly resulted in rollback": `SELECT 1 / 0`,
		"nothing was restored: timeout: context already done":            ``,
		ledger.ErrCommitUnknown.Error():                                  `SET CONSTRAINTS ALL DEFERRED; INSERT INTO public.pots VALUES (NULL)`,
	} {
		conn := pgtest.ConnectWith(t, db.Owner, func(c *pgx.ConnConfig) {
			c.Tracer = tracer(func(ctx context.Context, conn *pgx.Conn, statement string) context.Context {
				if statement != "commit" {
					return ctx
				}
				conn.PgConn().Exec(ctx, sql).ReadAll() // may fail
				if sql == "" {
					return cancelled(ctx)
				}
				return ctx
			})
		})
		done, err := ledger.Restore(t.Context(), conn, ledger.Selection{Plants: []int64{1}}, ledger.Options{})
		if unknown := want == ledger.ErrCommitUnknown.Error(); err == nil || !strings.HasPrefix(err.Error(), want) || errors.Is(err, ledger.ErrCommitUnknown) != unknown {
			t.Errorf("got %+v, %v, want %s", done, err, want)
		}
	}
}
