package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Lend lends a connection of the pool out, for questions about the database that
// have nothing to do with a request. Who borrows it leaves its session as it was.
func (db *DB) Lend(ctx context.Context, use func(*pgx.Conn) error) error {
	return db.lend(ctx, watched, use)
}
