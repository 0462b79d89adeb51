package witness

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
	"plantstore/internal/postgres"
)

// On runs do with a connection of its own, in five seconds at most.
func On(ctx context.Context, databaseURL string, do func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return do(ctx, conn)
}

// Execute runs statements.
func Execute(ctx context.Context, databaseURL, sql string) error {
	return On(ctx, databaseURL, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	})
}

// Value returns the one value of a query.
func Value[T any](ctx context.Context, databaseURL, sql string) (v T, err error) {
	err = On(ctx, databaseURL, func(ctx context.Context, conn *pgx.Conn) error { return conn.QueryRow(ctx, sql).Scan(&v) })
	return v, err
}

// Stock inserts plants first to last, and returns a token for deleting them.
func Stock(ctx context.Context, owner, principal string, first, last int64) (token string, err error) {
	conn, err := pgx.Connect(ctx, owner)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, `INSERT INTO public.plants (id, name) SELECT id, 'plant' FROM generate_series($1::bigint, $2) id`, first, last)
	if err != nil {
		return "", fmt.Errorf("stock the store: %w", err)
	}
	return postgres.CreatePrincipal(ctx, conn, principal, []string{auth.ScopeDelete}, time.Time{}, plant.Budget{})
}

// A State is what the database holds when nothing changes any more.
type State struct {
	Plants   map[int64]bool    // those that are there
	Ledger   map[int64][]Entry // deletions by plant
	Refusals map[int64][]Entry // likewise
}

// An Entry is a row of the ledger.
type Entry struct {
	By, Key, Request string
	Refused          int // the code of a refusal; zero: a deletion
}

// ReadState reads the whole store.
func ReadState(ctx context.Context, databaseURL string) (State, error) {
	s := State{Plants: make(map[int64]bool), Ledger: make(map[int64][]Entry), Refusals: make(map[int64][]Entry)}
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return s, fmt.Errorf("read the store: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var id int64
	rows, err := conn.Query(ctx, `SELECT id FROM public.plants`)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
			s.Plants[id] = true
			return nil
		})
	}
	if err != nil {
		return s, fmt.Errorf("read the plants: %w", err)
	}
	var e Entry
	rows, err = conn.Query(ctx, `SELECT plant_id, deleted_by, coalesce(idempotency_key, ''), coalesce(request_id, ''), coalesce(refused, 0)
		FROM plantstore.deletions ORDER BY id`)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&id, &e.By, &e.Key, &e.Request, &e.Refused}, func() error {
			if e.Refused == 0 {
				s.Ledger[id] = append(s.Ledger[id], e)
			} else {
				s.Refusals[id] = append(s.Refusals[id], e)
			}
			return nil
		})
	}
	if err != nil {
		return s, fmt.Errorf("read the ledger: %w", err)
	}
	return s, nil
}
