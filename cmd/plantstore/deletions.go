package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"plantstore/internal/postgres"
)

type deletionsCommand struct {
	List    deletionsList    `cmd:"" help:"List deletions, newest first."`
	Show    deletionsShow    `cmd:"" help:"Show one deletion, with the row that was deleted."`
	Export  deletionsExport  `cmd:"" help:"Write deletions as lines of JSON, for another system, and go on with new ones."`
	Restore deletionsRestore `cmd:"" help:"Put deleted plants back: all that are asked for, or none."`
	Purge   deletionsPurge   `cmd:"" help:"Remove old entries from the ledger. Their plants can no longer be restored."`
}

// withLedger opens the ledger of the database for use.
func (f *ownerFlags) withLedger(ctx context.Context, use func(*postgres.Ledger) error) error {
	db, err := postgres.OpenFrom(ctx, f.setting, f.DatabaseURL)
	if err != nil {
		return f.explained(err)
	}
	defer db.Close()
	return use(db.Ledger())
}

type deletionsList struct {
	ownerFlags `embed:""`
	Plant      *int64 `placeholder:"ID" help:"Of this plant."`
	By         string `aliases:"principal" placeholder:"NAME" help:"By this principal."`
	ByRole     string `placeholder:"ROLE" help:"By this database role, with SQL."`
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
	if c.By != "" && c.ByRole != "" {
		return errors.New("--by and --by-role do not go together: nothing was deleted by both")
	}
	return inOrder(c.Since, c.Until)
}

// Run lists deletions.
func (c *deletionsList) Run(ctx context.Context, console *console) error {
	return c.withLedger(ctx, func(ledger *postgres.Ledger) error {
		array := newDeletionsArray(console.out)
		var table *tabwriter.Writer
		if !c.JSON {
			table = newTable(console.out, "ID", "PLANT", "DELETED AT", "BY", "REQUEST", "RESTORED AT")
		}
		filter := postgres.LedgerFilter{
			Plant: c.Plant, By: postgres.Deleter{Principal: c.By, Role: c.ByRole}, RequestID: c.Request, Since: c.Since.Time, Until: c.Until.Time, Before: c.Before,
		}
		more := true
		for left := c.Limit; more && left > 0; {
			var list []postgres.Recorded
			var err error
			if list, more, err = ledger.List(ctx, filter, left, c.JSON); err != nil {
				return err
			}
			left -= len(list)
			for _, r := range list {
				filter.Before = r.ID
				if c.JSON {
					if err := array.add(r); err != nil {
						return err
					}
					continue
				}
				request := "-"
				if r.RequestID != "" {
					request = shown(r.RequestID)
				}
				fmt.Fprintf(table, "%d\t%d\t%s\t%s\t%s\t%s\n", r.ID, r.PlantID, date(r.DeletedAt, ""), deleter(r), request, date(r.RestoredAt, "-"))
			}
		}
		end := array.end
		if !c.JSON {
			end = table.Flush
		}
		err := end()
		if err == nil && more {
			fmt.Fprintf(console.err, "there are more: add --before=%d for the next page\n", filter.Before)
		}
		return err
	})
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
			out := bufio.NewWriter(console.out)
			if err := writeDeletion(out, "", r, "", "  "); err != nil {
				return err
			}
			out.WriteByte('\n')
			return out.Flush()
		}
		table := newTable(console.out, "deletion", strconv.FormatInt(r.ID, 10))
		row := func(name, value string) {
			if value != "" {
				fmt.Fprintf(table, "%s\t%s\n", name, value)
			}
		}
		row("plant", strconv.FormatInt(r.PlantID, 10))
		row("deleted at", r.DeletedAt.UTC().Format(time.RFC3339Nano))
		row("deleted by", deleter(r))
		row("logged in as", shown(r.SessionRole))
		row("request", shown(r.RequestID))
		row("idempotency key", shown(r.IdempotencyKey))
		if !r.RestoredAt.IsZero() {
			row("restored at", r.RestoredAt.UTC().Format(time.RFC3339Nano))
			row("restored by", shown(r.RestoredBy))
		}
		if err := table.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(console.out)
		table = newTable(console.out, "COLUMN", "TYPE", "VALUE")
		for _, v := range r.Plant {
			typ, value := shown(v.Type), "null"
			switch {
			case v.Computed:
				typ, value = typ+", computed: not recorded", ""
			case v.Untranslated:
				value = v.Quoted()
			case v.Value != nil:
				value = shownValue(string(v.Value))
			}
			fmt.Fprintf(table, "%s\t%s\t%s\n", shown(v.Column), typ, value)
		}
		return table.Flush()
	})
}

// deleter is who deleted, for a person.
func deleter(r postgres.Recorded) string {
	const role = "role "
	switch {
	case r.Direct:
		return role + shown(r.DeletedBy)
	case strings.HasPrefix(r.DeletedBy, role): // a principal that would be taken for one
		return strconv.Quote(r.DeletedBy)
	}
	return shown(r.DeletedBy)
}

// shownValue is a column's value for a person: as it is if that can't be mistaken
// for anything else.
func shownValue(v string) string {
	if v == "" || v == "null" || strings.TrimSpace(v) != v {
		return strconv.Quote(v)
	}
	return shown(v)
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
			fmt.Fprintf(console.out, "would purge %s older than %s\n", counted(total, "ledger row"), c.OlderThan)
			return nil
		}
		told := time.Now()
		purged, err := ledger.Purge(ctx, time.Duration(c.OlderThan), func(purged int64) {
			console.say("purged %s of %s", thousands(purged), thousands(total))
			if console.line == nil && time.Since(told) >= time.Second {
				told = time.Now()
				fmt.Fprintf(console.err, "purged %d of %d\n", purged, total)
			}
		})
		if err != nil {
			return fmt.Errorf("%w; at least %d of %d are purged, run it again for the rest", err, purged, total)
		}
		fmt.Fprintf(console.out, "purged %s older than %s\n", counted(purged, "ledger row"), c.OlderThan)
		return nil
	})
}
