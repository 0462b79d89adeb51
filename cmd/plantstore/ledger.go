package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/ledger"
)

type ledgerCommand struct {
	Watch   ledgerWatch   `cmd:"" help:"Record the rows of a table that leave or change with a plant, so that a restore brings them back."`
	Unwatch ledgerUnwatch `cmd:"" help:"Record them no longer, nor those of tables that are watched through it. What was recorded stays."`
	List    ledgerList    `cmd:"" help:"List the tables whose rows a deletion removes or changes."`
}

type ledgerWatch struct {
	ownerFlags `embed:""`
	Table      string `arg:"" help:"The table, as 'order_items' or 'shop.order_items'. Tables between it and public.plants are watched, too."`
}

// Run watches a table.
func (c *ledgerWatch) Run(ctx context.Context, console *console) error {
	return c.withLedger(ctx, func(conn *pgx.Conn) error {
		watched, err := ledger.Watch(ctx, conn, c.Table)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(console.out, "watched: %s\n", shown(strings.Join(watched, ", ")))
		return err
	})
}

type ledgerUnwatch struct {
	ownerFlags `embed:""`
	Table      string `arg:"" help:"The table."`
}

// Run ends the watch of a table.
func (c *ledgerUnwatch) Run(ctx context.Context, console *console) error {
	return c.withLedger(ctx, func(conn *pgx.Conn) error {
		ended, err := ledger.Unwatch(ctx, conn, c.Table)
		if err != nil {
			return err
		}
		if len(ended) == 0 {
			return fmt.Errorf("%s is not watched", shown(c.Table))
		}
		_, err = fmt.Fprintf(console.out, "no longer watched: %s\n", shown(strings.Join(ended, ", ")))
		return err
	})
}

type ledgerList struct {
	ownerFlags `embed:""`
	JSON       bool `name:"json" help:"Print JSON."`
}

// Run lists the foreign keys by which a deletion of a plant removes or changes rows.
func (c *ledgerList) Run(ctx context.Context, console *console) error {
	return c.withLedger(ctx, func(conn *pgx.Conn) error {
		keys, err := ledger.ForeignKeys(ctx, conn)
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(console.out, append([]ledger.ForeignKey{}, keys...))
		}
		table := newTable(console.out, "TABLE", "FOREIGN KEY", "ON DELETE", "WATCHED")
		for _, k := range keys {
			watched := "no"
			if k.Watched {
				watched = "yes"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", shown(k.Table), shown(k.Name), k.OnDelete, watched)
		}
		return table.Flush()
	})
}
