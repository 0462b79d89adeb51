package doctor

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/migrate"
)

// A loss is what taking a migration back would lose: rows of a table that it made.
type loss struct {
	version int64
	table   string
	what    string
	remedy  string
}

// losses are those that a migration refuses. It looks for itself, under a lock, and names the
// first; here all are, with what to do.
func losses() []loss {
	return []loss{
		{4, "public.api_principals", "clients",
			"-- Clients are locked out then. If that is what you want:\nDELETE FROM public.api_tokens;\nDELETE FROM public.api_principals;"},
		{2, "public.plant_deletions", "deletions",
			"Export the ledger and empty it first: without it, deleted plants cannot be restored."},
		{1, "public.plants", "plants", "Move the plants elsewhere or delete them first."},
	}
}

// lost returns what taking migrations back would lose. An adopted table stays, and may be
// closed to us by now.
func lost(ctx context.Context, tx pgx.Tx, work []migrate.Migration) ([]migrate.Trouble, error) {
	var all []migrate.Trouble
	for _, l := range losses() {
		if !slices.ContainsFunc(work, func(m migrate.Migration) bool { return m.Version == l.version }) {
			continue
		}
		if l.table == "public.plants" {
			made, err := migrate.MadePlants(ctx, tx)
			if err != nil {
				return nil, fmt.Errorf("look for who made the table: %w", err)
			}
			if !made {
				continue
			}
		}
		var held bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+l.table+`)`).Scan(&held); err != nil {
			return nil, fmt.Errorf("look for what would be lost: %w", err)
		}
		if held {
			all = append(all, migrate.Trouble{Kind: migrate.Hindrance, Message: fmt.Sprintf("%s holds %s, and would be dropped", l.table, l.what), Remedy: l.remedy})
		}
	}
	return all, nil
}
