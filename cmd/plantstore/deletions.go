package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"plantstore/internal/postgres"
)

type deletionsCommand struct {
	List    deletionsList    `cmd:"" help:"List deletions, newest first."`
	Show    deletionsShow    `cmd:"" help:"Show one deletion, with the row that was deleted."`
	Restore deletionsRestore `cmd:"" help:"Put deleted plants back: all that are asked for, or none."`
	Purge   deletionsPurge   `cmd:"" help:"Remove old entries from the ledger. Their plants can no longer be restored."`
}

// withLedger opens the ledger of the database for use.
func (f *ownerFlags) withLedger(ctx context.Context, use func(*postgres.Ledger) error) error {
	db, err := postgres.Open(ctx, f.DatabaseURL)
	if err != nil {
		return explained(err)
	}
	defer db.Close()
	return use(db.Ledger())
}

type deletionsList struct {
	ownerFlags `embed:""`
	Plant      *int64 `placeholder:"ID" help:"Of this plant."`
	By         string `aliases:"principal" placeholder:"NAME" help:"By this token's holder or, for direct SQL, database role."`
	Request    string `placeholder:"ID" help:"Under this request id."`
	Since      moment `help:"At that time or later: RFC 3339, a date (midnight UTC), or how long ago, as 2h or 7d." placeholder:"TIME"`
	Until      moment `help:"Before that time." placeholder:"TIME"`
	Limit      int    `default:"50" help:"How many at most, up to 10000."`
	Before     int64  `placeholder:"ID" help:"Older than this deletion: the next page."`
	JSON       bool   `name:"json" help:"Print JSON, rows included."`
}

// Validate refuses values that can't work.
func (c *deletionsList) Validate() error {
	if c.Limit < 1 || c.Limit > 10000 {
		return fmt.Errorf("--limit is %d: it must be from 1 to 10000", c.Limit)
	}
	return nil
}

// Run lists deletions.
func (c *deletionsList) Run(ctx context.Context, console *console) error {
	return c.withLedger(ctx, func(ledger *postgres.Ledger) error {
		list, err := ledger.List(ctx, postgres.LedgerFilter{
			Plant: c.Plant, By: c.By, RequestID: c.Request, Since: c.Since.Time, Until: c.Until.Time, Before: c.Before,
		}, c.Limit)
		if err != nil {
			return err
		}
		if c.JSON {
			out := make([]deletionJSON, len(list))
			for i, r := range list {
				out[i] = deletionJSON(r)
			}
			err = writeJSON(console.out, out)
		} else {
			table := newTable(console.out, "ID", "PLANT", "DELETED AT", "BY", "REQUEST", "RESTORED AT")
			for _, r := range list {
				request := r.RequestID
				if request == "" {
					request = "-"
				}
				fmt.Fprintf(table, "%d\t%d\t%s\t%s\t%s\t%s\n", r.ID, r.PlantID, date(r.DeletedAt, ""), r.DeletedBy, request, date(r.RestoredAt, "-"))
			}
			err = table.Flush()
		}
		if err == nil && len(list) == c.Limit {
			fmt.Fprintf(console.err, "there may be more: add --before=%d for the next page\n", list[len(list)-1].ID)
		}
		return err
	})
}

type deletionJSON struct {
	ID             int64           `json:"id"`
	PlantID        int64           `json:"plant_id"`
	Plant          json.RawMessage `json:"plant"`
	DeletedAt      time.Time       `json:"deleted_at"`
	DeletedBy      string          `json:"deleted_by"`
	RequestID      string          `json:"request_id,omitempty"`
	IdempotencyKey string          `json:"idempotency_key,omitempty"`
	RestoredAt     time.Time       `json:"restored_at,omitzero"`
	RestoredBy     string          `json:"restored_by,omitempty"`
}

type deletionsShow struct {
	ownerFlags `embed:""`
	ID         int64 `arg:"" help:"The deletion, as 'deletions list' numbers it."`
	JSON       bool  `name:"json" help:"Print JSON."`
}

// Run shows a deletion.
func (c *deletionsShow) Run(ctx context.Context, console *console) error {
	return c.withLedger(ctx, func(ledger *postgres.Ledger) error {
		r, err := ledger.Get(ctx, c.ID)
		if errors.Is(err, postgres.ErrNoDeletion) {
			return fmt.Errorf("there is no deletion %d: see 'plantstore deletions list'", c.ID)
		}
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(console.out, deletionJSON(r))
		}
		table := newTable(console.out, "deletion", strconv.FormatInt(r.ID, 10))
		row := func(name, value string) {
			if value != "" {
				fmt.Fprintf(table, "%s\t%s\n", name, value)
			}
		}
		row("plant", strconv.FormatInt(r.PlantID, 10))
		row("deleted at", r.DeletedAt.UTC().Format(time.RFC3339Nano))
		row("deleted by", r.DeletedBy)
		row("request", r.RequestID)
		row("idempotency key", r.IdempotencyKey)
		if !r.RestoredAt.IsZero() {
			row("restored at", r.RestoredAt.UTC().Format(time.RFC3339Nano))
			row("restored by", r.RestoredBy)
		}
		if err := table.Flush(); err != nil {
			return err
		}
		var plant bytes.Buffer
		if err := json.Indent(&plant, r.Plant, "", "  "); err != nil {
			return err
		}
		_, err = fmt.Fprintf(console.out, "%s\n", plant.Bytes())
		return err
	})
}

type deletionsRestore struct {
	ownerFlags `embed:""`
	IDs        []int64 `arg:"" name:"id" optional:"" help:"The deletions, as 'deletions list' numbers them."`
	By         string  `placeholder:"NAME" help:"Instead of ids: everything that NAME deleted, with --since."`
	Since      moment  `placeholder:"TIME" help:"With --by: at that time or later: RFC 3339, a date (midnight UTC), or how long ago, as 2h or 7d."`
	Until      moment  `placeholder:"TIME" help:"With --by: before that time."`
	Except     []int64 `placeholder:"ID" help:"With --by: leave these deletions out."`
	Yes        bool    `help:"With --by: do not ask."`
	As         string  `placeholder:"NAME" help:"Who is restoring, for the ledger. Default: the database role."`
}

// Help adds to the command's help.
func (c *deletionsRestore) Help() string {
	return `Plants go into the columns the table has today: new ones take their default, and
values whose column is gone are named and stay in the ledger. Nothing at all is
restored when one plant can't be: because it was restored already, its id is taken
again, or a row that it refers to is gone.

What a deletion did to other tables is not in the ledger and does not come back:
rows that ON DELETE CASCADE removed, columns that ON DELETE SET NULL emptied.`
}

// Validate refuses what does not go together.
func (c *deletionsRestore) Validate() error {
	switch {
	case (len(c.IDs) > 0) == (c.By != ""):
		return errors.New("name the deletions by id, or all of somebody's with --by and --since")
	case c.By != "" && c.Since.IsZero():
		return errors.New("--by wants --since: when did the deletions to be undone begin?")
	case c.By == "" && (!c.Since.IsZero() || !c.Until.IsZero() || len(c.Except) > 0):
		return errors.New("--since, --until and --except go with --by")
	}
	return nil
}

// Run restores plants.
func (c *deletionsRestore) Run(ctx context.Context, console *console) error {
	return c.withLedger(ctx, func(ledger *postgres.Ledger) error {
		ids := c.IDs
		if c.By != "" {
			var err error
			if ids, err = c.undoable(ctx, console, ledger); err != nil {
				return err
			}
			if len(ids) == 0 {
				_, err := fmt.Fprintln(console.out, "nothing to restore")
				return err
			}
		}
		restored, err := ledger.Restore(ctx, ids, c.As)
		if refused, ok := errors.AsType[*postgres.RefusedError](err); ok {
			return c.refusal(refused.Refusals)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(console.out, "restored %s\n", counted(restored.Plants, "plant"))
		for _, note := range []struct {
			about   string
			columns []string
		}{
			{"new columns, took their default", restored.Defaulted},
			{"columns that are gone, values stay in the ledger", restored.Dropped},
			{"columns that a trigger gave another value", restored.Changed},
		} {
			if len(note.columns) > 0 {
				fmt.Fprintf(console.out, "%s: %s\n", note.about, strings.Join(note.columns, ", "))
			}
		}
		return nil
	})
}

// undoable returns what there is to restore of c.By's, once that is agreed on.
func (c *deletionsRestore) undoable(ctx context.Context, console *console, ledger *postgres.Ledger) ([]int64, error) {
	undo, err := ledger.Undoable(ctx, c.By, c.Since.Time, c.Until.Time)
	if err != nil {
		return nil, err
	}
	if undo.Superseded > 0 {
		fmt.Fprintf(console.err, "left out, because deleted again since: %s\n", counted(undo.Superseded, "plant"))
	}
	ids := slices.DeleteFunc(undo.IDs, func(id int64) bool { return slices.Contains(c.Except, id) })
	if len(ids) == 0 || c.Yes {
		return ids, nil
	}
	return ids, confirm(ctx, console.err, fmt.Sprintf("Restore %s deleted by %s from %s to %s?",
		counted(len(ids), "plant"), c.By, date(undo.First, ""), date(undo.Last, "")), errors.New("nothing was restored"))
}

// refusal says what is in the way of a restore.
func (c *deletionsRestore) refusal(refusals []postgres.Refusal) error {
	const shown = 20
	var b strings.Builder
	fmt.Fprintf(&b, "nothing was restored, because of %s:", counted(len(refusals), "deletion"))
	for i, r := range refusals {
		switch {
		case i == shown:
			fmt.Fprintf(&b, "\n  and %d more", len(refusals)-shown)
		case i < shown && r.Plant == 0:
			fmt.Fprintf(&b, "\n  deletion %d: %s", r.ID, r.Why)
		case i < shown:
			fmt.Fprintf(&b, "\n  deletion %d, plant %d: %s", r.ID, r.Plant, r.Why)
		}
	}
	if c.By != "" {
		b.WriteString("\nMend that, or leave them out with --except.")
	}
	return errors.New(b.String())
}

type deletionsPurge struct {
	ownerFlags `embed:""`
	OlderThan  age  `required:"" placeholder:"AGE" help:"How old the entries are at least, as 365d. 7d is the least: the ledger is what recognises a request that is sent again."`
	DryRun     bool `help:"Only count them."`
}

// Run purges the ledger.
func (c *deletionsPurge) Run(ctx context.Context, console *console) error {
	return c.withLedger(ctx, func(ledger *postgres.Ledger) error {
		total, err := ledger.Older(ctx, time.Duration(c.OlderThan))
		if errors.Is(err, postgres.ErrTooYoung) {
			return &exitError{exitUsage, fmt.Errorf("--older-than is %s: it must be at least %s, "+
				"because a client may still send a request again whose deletion is younger", c.OlderThan, age(postgres.IdempotencyHorizon))}
		}
		if err != nil {
			return err
		}
		if c.DryRun {
			fmt.Fprintf(console.out, "would purge %s older than %s\n", counted(total, "deletion"), c.OlderThan)
			return nil
		}
		told := time.Now()
		purged, err := ledger.Purge(ctx, time.Duration(c.OlderThan), func(purged int64) {
			if time.Since(told) >= time.Second {
				told = time.Now()
				fmt.Fprintf(console.err, "purged %d of %d\n", purged, total)
			}
		})
		if err != nil {
			return fmt.Errorf("%w; %d of %d are purged, run it again for the rest", err, purged, total)
		}
		fmt.Fprintf(console.out, "purged %s older than %s\n", counted(purged, "deletion"), c.OlderThan)
		return nil
	})
}
