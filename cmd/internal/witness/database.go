package witness

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/cmd/internal/programs"
	"plantstore/internal/auth"
	"plantstore/internal/plant"
	"plantstore/internal/postgres"
)

// on runs do with a connection of its own.
func on(ctx context.Context, databaseURL string, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return do(conn)
}

// statementTimeout limits Execute and Value.
const statementTimeout = 5 * time.Second

// Execute runs statements.
func Execute(ctx context.Context, databaseURL, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	return on(ctx, databaseURL, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	})
}

// Value returns the one value of a query.
func Value[T any](ctx context.Context, databaseURL, sql string) (v T, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	err = on(ctx, databaseURL, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, sql).Scan(&v) })
	return v, err
}

// Sessions is the part of a query that selects the service's sessions.
const Sessions = `FROM pg_stat_activity WHERE usename = 'plantstore_app'`

// Terminate ends the service's sessions, and returns how many there were.
func Terminate(ctx context.Context, databaseURL string) (int, error) {
	return Value[int](ctx, databaseURL, `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) `+Sessions)
}

// Stock inserts plants first to last, and returns a token for deleting them.
func Stock(ctx context.Context, owner, principal string, first, last int64) (token string, err error) {
	err = on(ctx, owner, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `INSERT INTO public.plants (id, name) SELECT id, 'plant' FROM generate_series($1::bigint, $2) id`, first, last)
		if err != nil {
			return fmt.Errorf("stock the store: %w", err)
		}
		token, err = postgres.CreatePrincipal(ctx, conn, principal, []string{auth.ScopeDelete}, time.Time{}, plant.Budget{})
		return err
	})
	return token, err
}

// A State is the content of the database after the last change.
type State struct {
	Plants   map[int64]bool    // the plants that exist
	Ledger   map[int64][]Entry // deletions by plant
	Refusals map[int64][]Entry // recorded refusals by plant
}

// An Entry is a row of the ledger.
type Entry struct {
	By, Key, Request string
	Refused          int // the code of a refusal; zero: a deletion
}

// AtRest waits for the end of the service's last session, and reads the whole store.
func AtRest(ctx context.Context, databaseURL string, patience time.Duration) (State, error) {
	s := State{Plants: make(map[int64]bool), Ledger: make(map[int64][]Entry), Refusals: make(map[int64][]Entry)}
	err := programs.Until(ctx, patience, "wait for the end of the service's sessions", func() error {
		n, err := Value[int](ctx, databaseURL, `SELECT count(*) `+Sessions)
		if err == nil && n > 0 {
			err = fmt.Errorf("there are %d", n)
		}
		return err
	})
	if err != nil {
		return s, err
	}
	return s, on(ctx, databaseURL, func(conn *pgx.Conn) error {
		var id int64
		rows, _ := conn.Query(ctx, `SELECT id FROM public.plants`) // rows has the error, too
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			s.Plants[id] = true
			return nil
		})
		if err != nil {
			return fmt.Errorf("read the plants: %w", err)
		}
		var e Entry
		rows, _ = conn.Query(ctx, `SELECT plant_id, deleted_by, coalesce(idempotency_key, ''), coalesce(request_id, ''), coalesce(refused, 0)
			FROM plantstore.deletions ORDER BY id`)
		_, err = pgx.ForEachRow(rows, []any{&id, &e.By, &e.Key, &e.Request, &e.Refused}, func() error {
			entries := s.Ledger
			if e.Refused != 0 {
				entries = s.Refusals
			}
			entries[id] = append(entries[id], e)
			return nil
		})
		if err != nil {
			return fmt.Errorf("read the ledger: %w", err)
		}
		return nil
	})
}
