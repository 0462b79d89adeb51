package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"

	"github.com/jackc/pgx/v5"
)

// A ForeignTableError says that a table which has the name of one of ours belongs
// to somebody else. Reading or writing it could run that role's code with our
// rights: its columns' casts, its triggers and rules.
type ForeignTableError struct{ Table, Owner string }

func (e *ForeignTableError) Error() string {
	return fmt.Sprintf("%s belongs to role %s, and could run its code with our rights. %s", e.Table, e.Owner, e.Remedy())
}

// Remedy says what helps.
func (e *ForeignTableError) Remedy() string {
	remedy := fmt.Sprintf("Find out what it is. Drop it if it was made to deceive; connect as %s if not.", e.Owner)
	if e.Table == "public.goose_db_version" {
		remedy += " If it is the history of another program: " + moveHistory
	}
	return remedy
}

// A ForeignHistoryError says that public.goose_db_version, where goose keeps the history
// of whatever it migrates unless told otherwise, is not that of our migrations.
type ForeignHistoryError struct{ Why, Remedy string }

func (e *ForeignHistoryError) Error() string { return e.Why + ". " + e.Remedy }

const (
	moveHistory = "CREATE SCHEMA store_migrations; ALTER TABLE public.goose_db_version SET SCHEMA store_migrations; and have that program run goose with -table store_migrations.goose_db_version."
	bringBack   = "If it is ours, bring back what is missing from a backup. If it is the history of another program: " + moveHistory
)

// refuseForeignTables returns a ForeignTableError where the migrations' tables
// were made by somebody whom we don't trust. Trusted are we ourselves, superusers,
// and the owner of roles.sql. Membership is no trust: up to PostgreSQL 15 any role
// can make others its members.
func refuseForeignTables(ctx context.Context, tx pgx.Tx) error {
	var e ForeignTableError
	err := tx.QueryRow(ctx, `
		SELECT c.oid::regclass::text, r.rolname
		FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
		WHERE c.relnamespace = 'public'::regnamespace
			AND c.relname IN ('goose_db_version', 'plantstore_migrations', 'plant_deletions', 'plant_shapes', 'api_principals', 'api_tokens', 'plantstore_budgets')
			AND NOT (r.rolsuper OR r.rolname IN (current_user, 'plantstore_owner'))
		ORDER BY 1 LIMIT 1`).Scan(&e.Table, &e.Owner)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look whose the tables are: %w", err)
	}
	return &e
}

var makesTable = regexp.MustCompile(`(?m)^CREATE TABLE public\.(\w+)`)

// refuseForeignHistory returns a ForeignHistoryError where what was applied has made no
// table, or none of it is ours.
func (s Set) refuseForeignHistory(ctx context.Context, tx pgx.Tx, rows []appliedRow, known map[int64]Migration) error {
	ours := 0
	var by string // the first migration that makes tables
	var tables []string
	for _, row := range rows {
		m, ok := known[row.Version]
		if !ok {
			continue
		}
		ours++
		text, err := fs.ReadFile(s.Files, m.Name)
		if err != nil {
			return err
		}
		for _, made := range makesTable.FindAllStringSubmatch(string(text), -1) {
			by = cmp.Or(by, m.Name)
			tables = append(tables, made[1])
		}
	}
	if len(rows) > 0 && ours == 0 {
		return &ForeignHistoryError{fmt.Sprintf("public.goose_db_version has migration %d, and none of ours", rows[0].Version), bringBack}
	}
	var exists bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('public') AND relname = ANY ($1))`, tables).Scan(&exists); err != nil {
		return fmt.Errorf("look for %s: %w", tables, err)
	}
	if len(tables) > 0 && !exists {
		return &ForeignHistoryError{fmt.Sprintf("public.goose_db_version says that %s is applied, and public.%s is not there, nor any other table of ours", by, tables[0]), bringBack}
	}
	return nil
}
