package migrate

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Statements returns what goose sends for the Up of a migration, and whether it
// does so in a transaction.
func Statements(ctx context.Context, m Migration) ([]string, bool, error) {
	s, err := Service().script(ctx, m)
	if err != nil {
		return nil, false, err
	}
	return s.statements, s.transaction, nil
}

func Effects() map[int64][]Effect { return effects() }

func ModeName(mode string) string { return modeName(mode) }

func OneLine(s string) string { return oneLine(s) }

// RefusePooler connects and asks whether a pooler is in the way.
func RefusePooler(ctx context.Context, url string) error {
	config, err := connConfig(url)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = refusePooler(ctx, conn, config)
	return err
}
