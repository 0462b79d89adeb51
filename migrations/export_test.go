package migrations

import (
	"context"
	"io/fs"

	"github.com/jackc/pgx/v5"
)

// A Set is a folder of migrations that a test makes.
type Set struct {
	Files   fs.FS
	Effects map[int64][]Effect
}

func (s Set) set() set { return set{s.Files, s.Effects} }

func (s Set) Up(ctx context.Context, url string, o Options) ([]Change, error) {
	return s.set().up(ctx, url, o)
}

func (s Set) Down(ctx context.Context, url string) ([]Change, error) {
	return s.set().down(ctx, url, Options{}, newest)
}

func (s Set) Plan(ctx context.Context, url string) (Plan, error) { return s.set().plan(ctx, url) }

func (s Set) Status(ctx context.Context, url string) ([]State, []Trouble, error) {
	return s.set().status(ctx, url)
}

// Statements returns what goose sends for the Up of a migration, and whether it
// does so in a transaction.
func Statements(ctx context.Context, m Migration) ([]string, bool, error) {
	s, err := service().script(ctx, m)
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
