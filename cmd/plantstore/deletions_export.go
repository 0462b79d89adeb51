package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/ledger"
)

type deletionsExport struct {
	ownerFlags `embed:""`
	After      cursor        `placeholder:"CURSOR" help:"Continue after this cursor, that of the last line taken. Default: from the beginning."`
	Follow     bool          `help:"Keep running, and write later deletions."`
	Poll       time.Duration `default:"1s" help:"With --follow: how often to look for new deletions."`
}

// Help adds to the command's help.
func (c *deletionsExport) Help() string {
	return `One line of JSON for each deletion, in the order of transactions, with its row and a cursor.
A consumer stores the cursor of the last line it has taken, and passes it the next time:
so each deletion arrives at least once. A line without a newline at its end was cut off.

A deletion waits until all transactions of the server that are older than its own have
ended, so none is missed. The lines have no refusals, and nothing of a later restore.
Cursors are those of one server: after a move to another, start without one.`
}

// Validate rejects values that cannot work.
func (c *deletionsExport) Validate() error {
	if c.Poll <= 0 {
		return fmt.Errorf("--poll is %s: it must be more than 0", c.Poll)
	}
	return nil
}

// A cursor is one on the command line.
type cursor ledger.Cursor

// UnmarshalText reads a cursor. A consumer that has none yet passes an empty one.
func (c *cursor) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	parsed, err := ledger.ParseCursor(string(text))
	*c = cursor(parsed)
	return err
}

// Run exports deletions.
func (c *deletionsExport) Run(ctx context.Context, console *console) error {
	poll := time.Duration(0)
	if c.Follow {
		poll = c.Poll
	}
	out := json.NewEncoder(console.out)
	out.SetEscapeHTML(false)
	return c.withLedger(ctx, func(conn *pgx.Conn) error {
		last, err := ledger.Export(ctx, conn, ledger.Cursor(c.After), poll, func(l ledger.Line) error { return out.Encode(l) })
		switch {
		case c.Follow && ctx.Err() != nil:
			return nil
		case err != nil && last != ledger.Cursor{}:
			return fmt.Errorf("%w; go on with --after=%s", err, last)
		}
		return err
	})
}
