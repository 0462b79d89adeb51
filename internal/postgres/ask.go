package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Lend lends a connection of the pool out, for questions about the database that
// have nothing to do with a request. Who borrows it leaves the session as it was, and
// is lent another, after a pause that grows, if the connection turns out to be lost.
// Where each one is lost until the time of ctx is over, the error is that of the last.
func (db *DB) Lend(ctx context.Context, use func(*pgx.Conn) error) error {
	pause := backoff()
	var before error // of the connection that was lost last
	for {
		lost := false
		err := db.lend(ctx, watched, func(conn *pgx.Conn) error {
			err := use(conn)
			lost = conn.IsClosed()
			return err
		})
		switch {
		case err == nil:
			return nil
		case before != nil && ctx.Err() != nil:
			return before
		case !lost || !rest(ctx, pause):
			return err
		}
		before = err
	}
}
