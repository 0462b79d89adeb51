package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/ledger"
)

type deletionsRestore struct {
	ownerFlags   `embed:""`
	period       `embed:""`
	IDs          []int64 `arg:"" name:"id" optional:"" help:"The deletions, as 'deletions list' numbers them."`
	Plant        []int64 `placeholder:"ID" help:"The newest deletion of this plant; beside ids or instead of them."`
	By           string  `aliases:"principal" xor:"by" placeholder:"NAME" help:"Instead of ids: all that this principal deleted, with --since."`
	ByRole       string  `xor:"by" placeholder:"ROLE" help:"Instead of ids: all that this database role deleted with SQL, with --since."`
	FireTriggers bool    `help:"Restore even if the store's triggers fire and change rows."`
	SkipExisting bool    `help:"Leave out plants whose ids are taken, and columns of watched tables that have another value since."`
	PlantsOnly   bool    `help:"Leave out the rows of watched tables."`
	DryRun       bool    `help:"Try the restore, roll it back, and print the result."`
	Yes          bool    `help:"Do not ask."`
	SQL          bool    `name:"sql" help:"Print the SQL that restores, for psql, instead of running it."`
	JSON         bool    `name:"json" help:"Print JSON."`
}

// Help adds to the command's help.
func (c *deletionsRestore) Help() string {
	return `Plants come back exactly as they were, all of them or none. New columns take their default.
Whatever is in the way is named before anything is done: an id that is taken, a column
that was dropped, renamed or has another type, a row that it refers to and that is gone.
Where a column has changed, the SQL to restore by hand is printed.

Rows of other tables that ON DELETE CASCADE removed, and columns that ON DELETE SET NULL or
SET DEFAULT changed, come back with the plants if the tables were watched at the deletion:
see 'plantstore ledger watch'.`
}

// Validate rejects flags that contradict each other.
func (c *deletionsRestore) Validate() error {
	byID := len(c.IDs)+len(c.Plant) > 0
	switch criteria := c.By != "" || c.ByRole != "" || !c.Since.IsZero() || !c.Until.IsZero(); {
	case byID == criteria:
		return errors.New("name deletions by id or --plant, or select them with --since and --until, --by or --by-role")
	case criteria && c.Since.IsZero():
		return errors.New("--since is missing: when did the deletions to be restored begin?")
	case c.SQL && (c.JSON || c.DryRun || c.FireTriggers || c.SkipExisting || c.PlantsOnly):
		return errors.New("--sql prints SQL for an unchanged table: leave out the other flags of restore")
	}
	return inOrder(c.Since, c.Until)
}

// Run restores plants. Before it asks, it tries the restore and rolls it back.
func (c *deletionsRestore) Run(ctx context.Context, console *console) error {
	selection := ledger.Selection{IDs: c.IDs, Plants: c.Plant, By: c.By, ByRole: c.ByRole, Since: c.Since.Time, Until: c.Until.Time}
	options := ledger.Options{FireTriggers: c.FireTriggers, SkipExisting: c.SkipExisting, PlantsOnly: c.PlantsOnly, DryRun: c.DryRun}
	return c.withLedger(ctx, func(conn *pgx.Conn) error {
		if c.SQL {
			return ledger.Script(ctx, conn, selection, console.out)
		}
		ask := !c.Yes && !c.DryRun
		if ask {
			trial := options
			trial.DryRun = true
			planned, err := ledger.Restore(ctx, conn, selection, trial)
			if err != nil {
				return err
			}
			if len(planned.Plants) == 0 {
				return c.print(console, planned, false)
			}
			if err := printPlants(console.err, planned); err != nil {
				return err
			}
			if err := console.confirm(ctx, fmt.Sprintf("Restore %s?", countedAll(planned)), errors.New("nothing was restored")); err != nil {
				return err
			}
			selection = ledger.Selection{} // the plants that the operator agreed to
			for _, d := range planned.Plants {
				selection.IDs = append(selection.IDs, d.ID)
			}
		}
		done, err := ledger.Restore(ctx, conn, selection, options)
		if err != nil {
			return err
		}
		return c.print(console, done, ask)
	})
}

// printPlants lists plants, and warnings about them.
func printPlants(w io.Writer, r ledger.Restored) error {
	var lines []string
	list := func(plants []ledger.Deletion, format string) {
		for i, d := range plants {
			if i == ledger.MaxListed {
				lines = append(lines, fmt.Sprintf(format, fmt.Sprintf("and %d more", len(plants)-i)))
				break
			}
			lines = append(lines, fmt.Sprintf(format, d))
		}
	}
	list(r.Plants, "%s")
	list(r.Taken, "left out, because its id is taken: %s")
	if n := r.DeletedAgain; n > 0 {
		lines = append(lines, fmt.Sprintf("left out, because they came back and were deleted again: %s", counted(n, "plant")))
	}
	for _, c := range r.Cascaded {
		if c.Changed == "" {
			lines = append(lines, fmt.Sprintf("with %s of %s", counted(c.Rows, "row"), c.Table))
		} else {
			lines = append(lines, fmt.Sprintf("with the column %q of %s of %s", c.Changed, counted(c.Rows, "row"), c.Table))
		}
	}
	for _, line := range append(lines, r.Notices...) {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// countedAll returns "2 plants", or "2 plants and 1 row of other tables".
func countedAll(r ledger.Restored) string {
	rows := 0
	for _, c := range r.Cascaded {
		rows += c.Rows
	}
	text := counted(len(r.Plants), "plant")
	if rows > 0 {
		text += " and " + counted(rows, "row") + " of other tables"
	}
	return text
}

// print prints what was restored. The plants may be listed already.
func (c *deletionsRestore) print(console *console, r ledger.Restored, listed bool) error {
	if c.JSON {
		ids := func(list []ledger.Deletion) []int64 {
			plants := make([]int64, len(list))
			for i, d := range list {
				plants[i] = d.PlantID
			}
			return plants
		}
		return writeJSON(console.out, map[string]any{"dry_run": c.DryRun, "restored": ids(r.Plants), "taken": ids(r.Taken), "deleted_again": r.DeletedAgain, "cascaded": append([]ledger.Cascaded{}, r.Cascaded...), "notices": append([]string{}, r.Notices...)})
	}
	if !listed {
		if err := printPlants(console.err, r); err != nil {
			return err
		}
	}
	restored := "restored"
	if c.DryRun {
		restored = "would restore"
	}
	_, err := fmt.Fprintf(console.out, "%s %s\n", restored, countedAll(r))
	return err
}
