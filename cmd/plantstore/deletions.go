package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/ledger"
)

type deletionsCommand struct {
	List    deletionsList    `cmd:"" help:"List deletions, newest first."`
	Show    deletionsShow    `cmd:"" help:"Show a deletion with the row that was deleted, or the SQL that restores it."`
	Restore deletionsRestore `cmd:"" help:"Restore deleted plants: all that are asked for, or none."`
	Purge   deletionsPurge   `cmd:"" help:"Remove old entries from the ledger. Their plants can no longer be restored."`
}

// withLedger runs use on a connection of the owner. Where a right is missing, its error has the
// GRANT.
func (f *ownerFlags) withLedger(ctx context.Context, use func(*pgx.Conn) error) error {
	return f.with(ctx, func(conn *pgx.Conn) error {
		err := use(conn)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42501" { // insufficient_privilege
			if grants, e := ledger.MissingGrants(ctx, conn); e == nil && len(grants) > 0 { // only the owner may ask
				return fmt.Errorf("%v: first run %s", err, strings.Join(grants, " "))
			}
		}
		return err
	})
}

// A period limits entries by their time.
type period struct {
	Since moment `placeholder:"TIME" help:"At that time or later: RFC 3339, a date (midnight UTC), or how long ago, as 2h or 7d."`
	Until moment `placeholder:"TIME" help:"Before that time."`
}

type deletionsList struct {
	ownerFlags `embed:""`
	period     `embed:""`
	Plant      *int64 `placeholder:"ID" help:"Of this plant."`
	By         string `aliases:"principal" xor:"by" placeholder:"NAME" help:"By this principal."`
	ByRole     string `xor:"by" placeholder:"ROLE" help:"By this database role, with SQL."`
	Request    string `placeholder:"ID" help:"Under this request id."`
	Refusals   bool   `help:"Include recorded refusals."`
	Limit      int    `default:"50" help:"How many at most, up to 10000."`
	Before     int64  `placeholder:"ID" help:"Older than this deletion: the next page."`
	JSON       bool   `name:"json" help:"Print JSON, rows included."`
}

// Validate rejects values that cannot work.
func (c *deletionsList) Validate() error {
	if c.Limit < 1 || c.Limit > 10000 {
		return fmt.Errorf("--limit is %d: it must be from 1 to 10000", c.Limit)
	}
	return inOrder(c.Since, c.Until)
}

// Run lists deletions.
func (c *deletionsList) Run(ctx context.Context, console *console) error {
	filter := ledger.Filter{Plant: c.Plant, By: c.By, ByRole: c.ByRole, Request: c.Request, Since: c.Since.Time, Until: c.Until.Time,
		Before: c.Before, Refusals: c.Refusals, Limit: c.Limit + 1, Rows: c.JSON}
	return c.withLedger(ctx, func(conn *pgx.Conn) error {
		list := []ledger.Deletion{}
		if err := ledger.List(ctx, conn, filter, func(d ledger.Deletion) error { list = append(list, d); return nil }); err != nil {
			return err
		}
		page := list[:min(len(list), c.Limit)]
		if err := c.print(console.out, page); err != nil || len(list) == len(page) {
			return err
		}
		_, err := fmt.Fprintf(console.err, "there are more: add --before=%d for the next page\n", page[len(page)-1].ID)
		return err
	})
}

func (c *deletionsList) print(w io.Writer, list []ledger.Deletion) error {
	if c.JSON {
		return writeJSON(w, list)
	}
	table := newTable(w, "ID", "PLANT", "NAME", "DELETED AT", "BY", "REQUEST", "STATE")
	for _, d := range list {
		state, by := "deleted", d.By()
		if d.Cascaded > 0 {
			state += " with " + counted(d.Cascaded, "row")
		}
		switch {
		case d.Refused != nil:
			state, by = "refused "+strconv.Itoa(*d.Refused), shown(d.DeletedBy)
		case d.RestoredAt != nil:
			state = "restored " + date(*d.RestoredAt, "")
		}
		fmt.Fprintf(table, "%d\t%d\t%s\t%s\t%s\t%s\t%s\n", d.ID, d.PlantID, shown(d.Name), date(d.DeletedAt, ""), by, orDash(d.RequestID), state)
	}
	return table.Flush()
}

func orDash(s *string) string {
	if s == nil {
		return "-"
	}
	return shown(*s)
}

type deletionsShow struct {
	ownerFlags `embed:""`
	ID         int64 `arg:"" help:"The deletion, as 'deletions list' numbers it."`
	JSON       bool  `name:"json" xor:"form" help:"Print JSON."`
	SQL        bool  `name:"sql" xor:"form" help:"Print the SQL that restores the plant, for psql."`
}

// Run shows a deletion.
func (c *deletionsShow) Run(ctx context.Context, console *console) error {
	return c.withLedger(ctx, func(conn *pgx.Conn) error {
		if c.SQL {
			return ledger.Script(ctx, conn, ledger.Selection{IDs: []int64{c.ID}}, console.out)
		}
		d, err := ledger.Get(ctx, conn, c.ID)
		if errors.Is(err, ledger.ErrNotFound) {
			return fmt.Errorf("there is no deletion %d: see 'plantstore deletions list'", c.ID)
		}
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(console.out, d)
		}
		return printDeletion(console.out, d)
	})
}

func printDeletion(w io.Writer, d ledger.Deletion) error {
	table := newTable(w, "deletion", strconv.FormatInt(d.ID, 10))
	line := func(name, value string) { fmt.Fprintf(table, "%s\t%s\n", name, value) }
	line("plant", strconv.FormatInt(d.PlantID, 10))
	if d.Refused != nil {
		line("refused", strconv.Itoa(*d.Refused))
		line("refused at", d.DeletedAt.Format(time.RFC3339Nano))
		line("asked by", shown(d.DeletedBy))
	} else {
		line("deleted at", d.DeletedAt.Format(time.RFC3339Nano))
		line("deleted by", d.By())
	}
	line("request", orDash(d.RequestID))
	line("idempotency key", orDash(d.IdempotencyKey))
	line("transaction", strconv.FormatUint(d.TransactionID, 10))
	if d.RestoredAt != nil {
		line("restored at", d.RestoredAt.Format(time.RFC3339Nano))
		line("restored by", orDash(d.RestoredBy))
	}
	if d.Cascaded > 0 {
		line("in other tables", counted(d.Cascaded, "row"))
	}
	if err := table.Flush(); err != nil || d.Plant == nil {
		return err
	}
	var row bytes.Buffer
	if err := json.Indent(&row, d.Plant, "", "  "); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", escaped(row.String()))
	return err
}

type deletionsPurge struct {
	ownerFlags `embed:""`
	OlderThan  age  `required:"" placeholder:"AGE" help:"Minimum age of the entries, as 365d; at least 7d, so that the ledger recognizes repeated requests."`
	DryRun     bool `help:"Only count them."`
	JSON       bool `name:"json" help:"Print JSON."`
}

// Validate rejects an age at which clients may still repeat their requests.
func (c *deletionsPurge) Validate() error {
	if time.Duration(c.OlderThan) < ledger.MinAge {
		return fmt.Errorf("--older-than is %s: it must be at least 7d, so that the ledger recognizes repeated requests", c.OlderThan)
	}
	return nil
}

// Run purges the ledger.
func (c *deletionsPurge) Run(ctx context.Context, console *console) error {
	age := time.Duration(c.OlderThan)
	return c.withLedger(ctx, func(conn *pgx.Conn) (err error) {
		var n int64
		what := "purged"
		if c.DryRun {
			what = "would purge"
			n, err = ledger.Older(ctx, conn, age)
		} else {
			n, err = ledger.Purge(ctx, conn, age)
		}
		switch {
		case err != nil && n > 0:
			return fmt.Errorf("%w; purged entries: %d, run the command again for the rest", err, n)
		case err != nil:
			return err
		case c.JSON:
			return writeJSON(console.out, map[string]any{"entries": n, "dry_run": c.DryRun})
		}
		_, err = fmt.Fprintf(console.out, "%s entries older than %s: %d\n", what, c.OlderThan, n)
		return err
	})
}
