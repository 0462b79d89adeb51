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
	sql     string // whether there are any
	what    string
	remedy  string
}

// losses are those that a migration refuses. It looks for itself, under a lock; but by then
// those that came after it are taken back, and with them the service's rights.
func losses() []loss {
	return []loss{
		{4, `SELECT EXISTS (SELECT FROM public.api_principals)`, "public.api_principals holds clients, and would be dropped",
			"-- Clients are locked out then. If that is what you want:\nDELETE FROM public.api_tokens;\nDELETE FROM public.api_principals;"},
		{2, `SELECT EXISTS (SELECT FROM public.plant_deletions)`, "public.plant_deletions holds deletions, and would be dropped",
			"Export the ledger and empty it first: without it, deleted plants cannot be restored."},
		// An adopted table stays.
		{1, `SELECT coalesce(obj_description('public.plants'::regclass, 'pg_class') = 'created by plantstore', false) AND EXISTS (SELECT FROM public.plants)`,
			"public.plants holds plants, and would be dropped", "Move the plants elsewhere or delete them first."},
	}
}

// lost returns what taking migrations back would lose.
func lost(ctx context.Context, tx pgx.Tx, work []migrate.Migration) ([]migrate.Trouble, error) {
	var all []migrate.Trouble
	for _, l := range losses() {
		if !slices.ContainsFunc(work, func(m migrate.Migration) bool { return m.Version == l.version }) {
			continue
		}
		var held bool
		if err := tx.QueryRow(ctx, l.sql).Scan(&held); err != nil {
			return nil, fmt.Errorf("look for what would be lost: %w", err)
		}
		if held {
			all = append(all, migrate.Trouble{Kind: migrate.Hindrance, Message: l.what, Remedy: l.remedy})
		}
	}
	return all, nil
}
