package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Watch has the rows of a table recorded that leave or change with a plant. Tables between it
// and plants are watched, too. It returns all of them, the table last.
func Watch(ctx context.Context, conn *pgx.Conn, table string) ([]string, error) {
	return change(ctx, conn, `SELECT t::text FROM plantstore.watch($1::oid::regclass) t`, table)
}

// Unwatch ends the watch of a table and of those that are watched through it, and returns
// them. Their records stay.
func Unwatch(ctx context.Context, conn *pgx.Conn, table string) ([]string, error) {
	return change(ctx, conn, `SELECT t::text FROM plantstore.unwatch($1::oid::regclass) t ORDER BY 1`, table)
}

// change runs a query that returns names of tables.
func change(ctx context.Context, conn *pgx.Conn, sql, table string) (changed []string, err error) {
	var oid *uint32
	if err := conn.QueryRow(ctx, `SELECT to_regclass($1)::oid`, table).Scan(&oid); err != nil {
		return nil, err
	}
	if oid == nil {
		return nil, fmt.Errorf("there is no table %s", printable(table))
	}
	err = qualified(ctx, conn, func(tx pgx.Tx) (err error) {
		rows, _ := tx.Query(ctx, sql, *oid)
		changed, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	pg, _ := errors.AsType[*pgconn.PgError](err)
	switch {
	case pg == nil:
		return changed, err
	case pg.Code == "P0001": // why the table can't be watched
		return nil, errors.New(pg.Message)
	case pg.Code == "55P03":
		return nil, fmt.Errorf("%s is locked by another transaction: try again", printable(table))
	}
	return nil, err
}

// qualified runs do in a transaction in which PostgreSQL writes the schema in front of names.
func qualified(ctx context.Context, conn *pgx.Conn, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL search_path = pg_catalog, pg_temp`); err != nil {
			return err
		}
		return do(tx)
	})
}

// A ForeignKey is one by which a deletion of a plant removes or changes rows of a table.
type ForeignKey struct {
	Table    string `json:"table"`
	Name     string `json:"foreign_key"`
	OnDelete string `json:"on_delete"`
	Watched  bool   `json:"watched"`
}

// ForeignKeys returns the foreign keys by which a deletion changes rows, those to plants first.
func ForeignKeys(ctx context.Context, conn *pgx.Conn) (keys []ForeignKey, err error) {
	err = qualified(ctx, conn, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `SELECT relation::text, name, CASE action WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' ELSE 'SET DEFAULT' END, plantstore.is_watched(relation, action)
			FROM plantstore.foreign_keys ORDER BY parent <> 'public.plants'::regclass, 1, 2`)
		keys, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ForeignKey])
		return err
	})
	return keys, err
}

// MissingGrants returns the GRANTs that the connection's role needs to restore plants and rows
// of watched tables.
func MissingGrants(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, _ := conn.Query(ctx, `SELECT DISTINCT m FROM (
			SELECT to_regclass('public.plants') UNION SELECT relation FROM plantstore.foreign_keys WHERE plantstore.is_watched(relation, action)
		) r (relation), plantstore.missing(r.relation) m ORDER BY m`)
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
