package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Lend lends a connection of the pool out, for questions about the database that
// have nothing to do with a request. Who borrows it leaves the session as it was, and
// is lent another if the connection turns out to be lost.
func (db *DB) Lend(ctx context.Context, use func(*pgx.Conn) error) error {
	for {
		lost := false
		err := db.lend(ctx, watched, func(conn *pgx.Conn) error {
			err := use(conn)
			lost = conn.IsClosed()
			return err
		})
		if err == nil || !lost || ctx.Err() != nil {
			return err
		}
	}
}
