package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"plantstore/internal/postgres"
)

type deletionsRestore struct {
	ownerFlags   `embed:""`
	IDs          []int64 `arg:"" name:"id" optional:"" help:"The deletions, as 'deletions list' numbers them."`
	By           string  `placeholder:"NAME" help:"Instead of ids: everything that this principal deleted, with --since."`
	ByRole       string  `placeholder:"ROLE" help:"Instead of ids: everything that this database role deleted with SQL, with --since."`
	Since        moment  `placeholder:"TIME" help:"With --by or --by-role: at that time or later: RFC 3339, a date (midnight UTC), or how long ago, as 2h or 7d."`
	Until        moment  `placeholder:"TIME" help:"With --by or --by-role: before that time."`
	Except       []int64 `placeholder:"ID" help:"With --by or --by-role: leave these deletions out."`
	Yes          bool    `help:"With --by or --by-role: do not ask."`
	As           string  `placeholder:"NAME" help:"Who is restoring, for the ledger. Default: the database role."`
	Lossy        bool    `help:"Restore also what does not come back as it was, and list that."`
	DryRun       bool    `help:"Do all of it, and take it back: says what a restore would do, or what is in its way."`
	Superseded   bool    `help:"With ids: restore also an earlier row of a plant that was deleted again later."`
	SkipExisting bool    `help:"Leave out plants whose id is that of a plant again, and say how many."`
	// RunTriggers is about more than triggers, but they are what there usually is.
	RunTriggers bool `help:"Run triggers and other functions of the table although roles that are not yours could have them act with your rights."`
}

// Help adds to the command's help.
func (c *deletionsRestore) Help() string {
	return `Plants come back as they were, to the byte. Columns that are new take their default.
Nothing at all is restored when one plant can't be: because it was restored already,
its id is taken again, a row that it refers to is gone, or a value would not come
back as it was, because its column is gone or of another type, or a trigger changes
it. Each is named, with what is in the way.

--dry-run is a restore that is taken back in the end, with the locks of one until then.
Numbers that defaults take from sequences stay taken. What --run-triggers accepts runs
there, too, and what it does outside of the transaction is not taken back.

What a deletion did to other tables is not in the ledger and does not come back:
rows that ON DELETE CASCADE removed, columns that ON DELETE SET NULL emptied.`
}

// Validate refuses what does not go together.
func (c *deletionsRestore) Validate() error {
	switch {
	case c.By != "" && c.ByRole != "":
		return errors.New("--by and --by-role do not go together: restore the deletions of one after those of the other")
	case (len(c.IDs) > 0) == c.bySomebody():
		return errors.New("name the deletions by id, or all of somebody's with --by or --by-role, and --since")
	case c.bySomebody() && c.Since.IsZero():
		return errors.New("--by and --by-role want --since: when did the deletions to be undone begin?")
	case c.bySomebody() && c.Superseded:
		return errors.New("--superseded goes with ids: with --by and --by-role, what was deleted again later is left out")
	case !c.bySomebody() && (!c.Since.IsZero() || !c.Until.IsZero() || len(c.Except) > 0):
		return errors.New("--since, --until and --except go with --by or --by-role")
	}
	return inOrder(c.Since, c.Until)
}

// was is a word for what was done or, of a dry run, would be.
func (c *deletionsRestore) was(done string) string {
	if !c.DryRun {
		return done
	}
	return map[string]string{"was": "would be", "restored": "would restore", "took": "would take"}[done]
}

// bySomebody tells whether somebody's deletions are meant, and not those with ids.
func (c *deletionsRestore) bySomebody() bool { return c.By != "" || c.ByRole != "" }

// Run restores plants.
func (c *deletionsRestore) Run(ctx context.Context, console *console) error {
	return c.withLedger(ctx, func(ledger *postgres.Ledger) error {
		ids := c.IDs
		if c.bySomebody() {
			var err error
			if ids, err = c.undoable(ctx, console, ledger); err != nil {
				return err
			}
			if len(ids) == 0 {
				_, err := fmt.Fprintln(console.out, "nothing to restore")
				return err
			}
		}
		restored, err := ledger.Restore(ctx, ids, postgres.RestoreOptions{
			As: c.As, Lossy: c.Lossy, Superseded: c.Superseded, SkipExisting: c.SkipExisting, RunTriggers: c.RunTriggers, DryRun: c.DryRun,
			Progress: func(what string, done, of int) {
				console.say("%s %s of %s", what, thousands(int64(done)), thousands(int64(of)))
			},
		})
		if refused, ok := errors.AsType[*postgres.RefusedError](err); ok {
			return c.refusal(refused)
		}
		if strangers, ok := errors.AsType[*postgres.StrangersError](err); ok {
			return fmt.Errorf("nothing %s restored: inserting into public.plants would run this, by which others could act with your rights:\n  %s\n"+
				"Restore as a role that has no more rights than those, have a function that looks names up SET search_path to schemas where nobody else creates (pg_catalog, pg_temp, if it needs no other), or accept it with --run-triggers", c.was("was"), strings.Join(strangers.Code, "\n  "))
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(console.out, "%s %s\n", c.was("restored"), counted(restored.Plants, "plant"))
		if c.SkipExisting {
			fmt.Fprintf(console.out, "left out, because a plant with their id exists again: %s\n", counted(restored.Existing, "plant"))
		}
		if len(restored.Adopted) > 0 {
			fmt.Fprintf(console.out, "these refer to one that %s left out, and so to the plant that has its id now:\n", c.was("was"))
			for _, id := range restored.Adopted {
				fmt.Fprintf(console.out, "  plant %d\n", id)
			}
		}
		took := c.was("took")
		tellColumns(console, "new columns, "+took+" their default", restored.Defaulted)
		tellColumns(console, "columns made again since, "+took+" the values of those that had their names", restored.Remade)
		if len(restored.Retyped) > 0 {
			fmt.Fprintf(console.out, "of another type today, %s the same text: %s\n", took, strings.Join(restored.Retyped, "; "))
		}
		if len(restored.Losses) > 0 {
			fmt.Fprintln(console.out, "not as it was, the ledger has the values:")
			for _, l := range restored.Losses {
				fmt.Fprintf(console.out, "  deletion %d, plant %d: %s\n", l.ID, l.Plant, l.Why)
			}
		}
		return nil
	})
}

// tellColumns says something of columns, if there are any.
func tellColumns(console *console, what string, columns []string) {
	if len(columns) == 0 {
		return
	}
	names := make([]string, len(columns))
	for i, name := range columns {
		names[i] = shown(name)
	}
	fmt.Fprintf(console.out, "%s: %s\n", what, strings.Join(names, ", "))
}

// undoable returns what there is to restore of somebody's, once that is agreed on.
func (c *deletionsRestore) undoable(ctx context.Context, console *console, ledger *postgres.Ledger) ([]int64, error) {
	undo, err := ledger.Undoable(ctx, postgres.Deleter{Principal: c.By, Role: c.ByRole}, c.Since.Time, c.Until.Time, c.RunTriggers)
	if err != nil {
		return nil, fmt.Errorf("nothing was restored: %w", err)
	}
	if undo.Superseded > 0 {
		fmt.Fprintf(console.err, "left out, because deleted again since: %s\n", counted(undo.Superseded, "plant"))
	}
	for _, id := range c.Except {
		if !slices.Contains(undo.IDs, id) {
			return nil, fmt.Errorf("nothing %s restored: --except names deletion %d, which is not one of those to be undone", c.was("was"), id)
		}
	}
	ids := slices.DeleteFunc(undo.IDs, func(id int64) bool { return slices.Contains(c.Except, id) })
	if len(ids) == 0 || c.Yes || c.DryRun {
		return ids, nil
	}
	who := shown(c.By)
	if c.ByRole != "" {
		who = "role " + shown(c.ByRole)
	}
	return ids, confirm(ctx, console.err, fmt.Sprintf("Restore %s deleted by %s from %s to %s?",
		counted(len(ids), "plant"), who, date(undo.First, ""), date(undo.Last, "")), errors.New("nothing was restored"))
}

// refusal says what is in the way of a restore.
func (c *deletionsRestore) refusal(refused *postgres.RefusedError) error {
	const shown = 20
	var b strings.Builder
	ids := make(map[int64]bool)
	for _, r := range refused.Refusals {
		ids[r.ID] = true
	}
	atLeast := ""
	if refused.More {
		atLeast = "at least "
	}
	fmt.Fprintf(&b, "nothing %s restored, because of %s%s:", c.was("was"), atLeast, counted(len(ids), "deletion"))
	for i, r := range refused.Refusals {
		switch {
		case i == shown:
			fmt.Fprintf(&b, "\n  and %s%d more", atLeast, len(refused.Refusals)-shown)
		case i < shown && r.Plant == 0:
			fmt.Fprintf(&b, "\n  deletion %d: %s", r.ID, r.Why)
		case i < shown:
			fmt.Fprintf(&b, "\n  deletion %d, plant %d: %s", r.ID, r.Plant, r.Why)
		}
	}
	for _, option := range []struct{ name, accepts string }{
		{"lossy", "\n--lossy restores what is not as it was, too."},
		{"skip-existing", "\n--skip-existing leaves out plants whose id is taken again."},
		{"superseded", "\n--superseded brings the earlier row back, as if the later deletion had not been."},
	} {
		if option.name == "skip-existing" && len(c.IDs) == 1 {
			continue // that would leave nothing
		}
		if slices.ContainsFunc(refused.Refusals, func(r postgres.Refusal) bool { return r.Unless == option.name }) {
			b.WriteString(option.accepts)
		}
	}
	if c.bySomebody() {
		b.WriteString("\nMend that, or leave them out with --except.")
	}
	return errors.New(b.String())
}
