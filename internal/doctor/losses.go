package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/migrate"
	"plantstore/internal/postgres"
)

// A loss is what taking a migration back would lose: rows of a table that it made.
type loss struct {
	version int64
	table   string
	which   string // of its rows, as a condition
	also    string // a table that the condition reads; empty if none
	what    string
	remedy  string
}

// budgetsOfOthers are those that operators set for clients of the identity provider.
const budgetsOfOthers = "(most IS NOT NULL OR lifted_until > now()) AND principal NOT IN (SELECT name FROM public.api_principals)"

// losses are those that a migration refuses. It looks for itself, under a lock, and names the
// first; here all are, with what to do.
func losses() []loss {
	return []loss{
		{4, "public.api_principals", "true", "", "clients",
			"-- Clients are locked out then. If that is what you want:\nDELETE FROM public.plantstore_budgets WHERE principal IN (SELECT name FROM public.api_principals);\n" +
				"DELETE FROM public.api_tokens;\nDELETE FROM public.api_principals;"},
		{4, "public.plantstore_budgets", budgetsOfOthers, "public.api_principals", "budgets",
			"-- 'plantstore token list' shows them. To end each, as 'plantstore token budget NAME none' does:\n" +
				"DELETE FROM public.plantstore_budgets WHERE " + budgetsOfOthers + ";"},
		{2, "public.plant_deletions", "true", "", "deletions or refusals",
			"-- Export the ledger before: without it, deleted plants cannot be restored, and repeated requests are not recognised.\nDELETE FROM public.plant_deletions;"},
		{1, "public.plants", "true", "", "plants", "Move the plants elsewhere or delete them first."},
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
		held, err := holds(ctx, tx, l)
		switch {
		case migrate.IsLockTimeout(err): // the migration names who has the lock
		case ctx.Err() != nil:
			return nil, err
		case err != nil:
			all = append(all, migrate.Trouble{Kind: migrate.Hindrance, Message: fmt.Sprintf("what would be lost of %s can't be told: %s", l.table, postgres.Explain(err)),
				Remedy: "'plantstore doctor' tells what is wrong with it."})
		case held:
			all = append(all, migrate.Trouble{Kind: migrate.Hindrance, Message: fmt.Sprintf("%s holds %s, and would be dropped", l.table, l.what), Remedy: l.remedy})
		}
	}
	return all, nil
}

// holds looks for itself: what it can't be told of one table does not keep from the next.
//
// To read a table has the planner run what its owner put into an index. Whoever owns the
// schema may put one of theirs in the place of ours, until it is locked.
func holds(ctx context.Context, tx pgx.Tx, l loss) (held bool, err error) {
	look, err := tx.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = look.Rollback(context.WithoutCancel(ctx)) }()
	tables := []string{l.table}
	if l.also != "" {
		tables = append(tables, l.also)
	}
	if _, err := look.Exec(ctx, `LOCK TABLE ONLY `+strings.Join(tables, ", ONLY ")+` IN ACCESS SHARE MODE`); err != nil {
		return false, err
	}
	foreign, err := migrate.ForeignTable(ctx, look, tables...)
	if err != nil {
		return false, err
	}
	if foreign != "" {
		return false, fmt.Errorf("%s belongs to somebody else", foreign)
	}
	err = look.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+l.table+` WHERE `+l.which+`)`).Scan(&held)
	return held, err
}
