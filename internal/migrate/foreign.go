package migrate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

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

const moveHistory = "CREATE SCHEMA store_migrations; ALTER TABLE public.goose_db_version SET SCHEMA store_migrations; and have that program run goose with -table store_migrations.goose_db_version."

// ownTables are those that the migrations make. Plants may be the store's.
var ownTables = []string{"plant_shapes", "plant_deletions", "api_principals", "api_tokens", "plantstore_budgets", "plantstore_migrations"}

// trustedSelf is the role that we are, in SQL, or the session's user if that is a superuser.
const trustedSelf = `(SELECT CASE WHEN s.rolsuper THEN session_user ELSE current_user END::text FROM pg_roles s WHERE s.rolname = session_user)`

// trusted says whether a row r of pg_roles is of a role whose code we may run: our own, a
// superuser, or the owner of roles.sql. Membership is no trust: up to PostgreSQL 15 any role
// can make others its members. Nor is a role that a superuser has become: the database's
// owner can choose it by a setting, and its code can take that back.
const trusted = `(r.rolsuper OR r.rolname IN ('plantstore_owner', ` + trustedSelf + `))`

// ownSequences are those of the tables that are read by themselves.
var ownSequences = []string{"plant_shapes_id_seq", "plant_deletions_id_seq"}

// refuseForeignTables returns a ForeignTableError where the migrations' tables
// were made by somebody whom we don't trust.
func refuseForeignTables(ctx context.Context, tx statements) error {
	var e ForeignTableError
	// What a name means is what it means now. An owner that can't be seen has a table
	// that is newer than the transaction's snapshot.
	err := tx.QueryRow(ctx, `
		SELECT 'public.' || quote_ident(t.name), coalesce(r.rolname, '')
		FROM unnest($1::text[]) t (name) CROSS JOIN LATERAL (SELECT to_regclass('public.' || quote_ident(t.name))::oid) today (oid)
			LEFT JOIN pg_class c ON c.oid = today.oid LEFT JOIN pg_roles r ON r.oid = c.relowner
		WHERE today.oid IS NOT NULL AND `+trusted+` IS NOT TRUE
		ORDER BY 1 LIMIT 1`, slices.Concat(ownTables, ownSequences, History)).Scan(&e.Table, &e.Owner)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look whose the tables are: %w", err)
	case e.Owner == "":
		return errMoved
	}
	return &e
}

// ForeignTable returns the first of tables, named with their schemas, whose owner we don't
// trust, or "". One that came after the transaction's first look counts as such.
func ForeignTable(ctx context.Context, tx pgx.Tx, tables ...string) (foreign string, err error) {
	err = tx.QueryRow(ctx, `SELECT coalesce(min(name), '') FROM unnest($1::text[]) t (name)
		WHERE NOT EXISTS (SELECT FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = to_regclass(name) AND `+trusted+`)`, tables).Scan(&foreign)
	return foreign, err
}

// MadePlants reports whether the first migration made public.plants, and has not adopted it.
// Whoever owns a table can say so of it: it counts where that is somebody we trust.
func MadePlants(ctx context.Context, tx pgx.Tx) (made bool, err error) {
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
		WHERE c.oid = to_regclass('public.plants') AND obj_description(c.oid, 'pg_class') = 'created by plantstore' AND `+trusted+`)`).Scan(&made)
	return made, err
}

// refuseForeignHistory returns a ForeignHistoryError where what was applied can't be ours:
// our first migration that makes tables is among it, and they are not there, or it is not,
// and newer ones are. What comes before makes nothing that tells it from another program's:
// so it has to be noted that we applied it, or that it made the table.
func (s Set) refuseForeignHistory(ctx context.Context, tx pgx.Tx, rows []appliedRow, all []Migration) error {
	first, tables, err := s.firstTables(all)
	if err != nil || len(tables) == 0 {
		return err
	}
	applied, noted, unknown := false, len(rows) == 0, int64(0)
	for _, row := range rows {
		applied = applied || row.Version == first.Version
		noted = noted || row.Checksum != nil
		if !slices.ContainsFunc(all, func(m Migration) bool { return m.Version == row.Version }) {
			unknown = row.Version
		}
	}
	switch {
	case applied:
		var exists bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('public') AND relname = ANY ($1))`, tables).Scan(&exists); err != nil {
			return fmt.Errorf("look for %s: %w", tables, err)
		}
		if !exists {
			return &ForeignHistoryError{fmt.Sprintf("public.goose_db_version says that %s is applied, and there is no public.%s", first.Name, strings.Join(tables, ", no public.")),
				otherwise("bring back what is missing from a backup")}
		}
	case unknown > 0:
		return &ForeignHistoryError{fmt.Sprintf("public.goose_db_version has migration %d, and not ours that makes tables", unknown), otherwise("bring back what is missing from a backup")}
	case !noted:
		if made, err := MadePlants(ctx, tx); err != nil || made {
			return err
		}
		return &ForeignHistoryError{fmt.Sprintf("public.goose_db_version has migration %d, and nothing tells whether it is ours", rows[len(rows)-1].Version),
			otherwise("apply the next one with goose, too")}
	}
	return nil
}

// firstTables returns the first of migrations that makes tables in public, and these.
func (s Set) firstTables(all []Migration) (first Migration, tables []string, err error) {
	makes := regexp.MustCompile(`(?m)^CREATE TABLE public\.(\w+)`)
	for _, first = range all {
		text, err := fs.ReadFile(s.Files, first.Name)
		if err != nil {
			return first, nil, err
		}
		for _, made := range makes.FindAllStringSubmatch(string(text), -1) {
			tables = append(tables, made[1])
		}
		if len(tables) > 0 {
			break
		}
	}
	return first, tables, nil
}

// otherwise is the remedy for a history that may be ours after all.
func otherwise(ours string) string {
	return "If it is the history of another program: " + moveHistory + " If it is ours, " + ours + "."
}
