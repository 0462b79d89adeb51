package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A ForeignTableError says that a table which has the name of one of ours belongs
// to somebody else. Reading or writing it could run that role's code with our
// rights: its columns' casts, its triggers and rules.
type ForeignTableError struct{ Table, Owner string }

func (e *ForeignTableError) Error() string {
	return fmt.Sprintf("%s belongs to role %s, and could run its code with our rights: connect as that role, or drop what was made to deceive", e.Table, e.Owner)
}

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
