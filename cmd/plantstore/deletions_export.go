package main

import (
	"bufio"
	"context"
	"fmt"

	"plantstore/internal/postgres"
)

type deletionsExport struct {
	ownerFlags `embed:""`
	After      cursor `placeholder:"CURSOR" help:"Go on after this deletion: the cursor of the last line that was taken. Nothing: from the beginning."`
	Follow     bool   `help:"Do not end: go on with what is deleted later, and when the database is back after an outage."`
}

// Help adds to the command's help.
func (c *deletionsExport) Help() string {
	return `One line of JSON on standard output for each deletion, in the order of their numbers,
with the row as PostgreSQL writes it and the types of its columns. Each line has a
cursor. A consumer keeps that of the last line it has taken, and comes back with it:
so each deletion arrives at least once. Lines end with a newline; what comes without
one is cut off, and comes again.

Nothing that is committed late is missed. A deletion of an open transaction holds up
those with larger numbers until it ends, and standard error says whose it is. A restore
that comes after a line is not told. Nor are refusals, which are no deletions.`
}

// A cursor is one on the command line.
type cursor postgres.Cursor

// UnmarshalText reads a cursor.
func (c *cursor) UnmarshalText(text []byte) error {
	parsed, err := postgres.ParseCursor(string(text))
	*c = cursor(parsed)
	return err
}

// Run exports deletions.
func (c *deletionsExport) Run(ctx context.Context, console *console) error {
	return c.withLedger(ctx, func(ledger *postgres.Ledger) error {
		out := bufio.NewWriterSize(console.out, 64<<10)
		last := postgres.Cursor(c.After)
		written := 0
		err := ledger.Export(ctx, postgres.ExportOptions{
			After: last, Follow: c.Follow,
			Write: func(list []postgres.Recorded) error {
				for _, r := range list {
					if err := writeDeletion(out, r.Cursor().String(), r, "", ""); err != nil {
						return err
					}
					out.WriteByte('\n')
				}
				if err := out.Flush(); err != nil {
					return err
				}
				last = list[len(list)-1].Cursor()
				written += len(list)
				console.say("wrote %s", counted(written, "line"))
				return nil
			},
			Tell: func(what string) { fmt.Fprintln(console.err, what) },
		})
		switch {
		case err == nil, c.Follow && ctx.Err() != nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted: go on with --after=%s", last)
		case written > 0:
			return fmt.Errorf("%w; what was written ends with the cursor %s", err, last)
		}
		return err
	})
}
