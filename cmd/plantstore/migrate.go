package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"plantstore/internal/postgres"
	"plantstore/migrations"
)

type migrateCommand struct {
	Up      migrateUp      `cmd:"" help:"Apply every pending migration."`
	Down    migrateDown    `cmd:"" help:"Take the newest migration back, or all down to a version. Refuses to lose rows."`
	Status  migrateStatus  `cmd:"" help:"List the migrations and whether they are applied."`
	Version migrateVersion `cmd:"" help:"Print the newest applied version."`
}

// ownerFlags name the database for the commands that need its owner.
type ownerFlags struct {
	DatabaseURL string `name:"database-url" env:"PLANTSTORE_MIGRATE_DATABASE_URL,DATABASE_URL" help:"Database, as its owner and without a connection pooler between: libpq URL or DSN. PG* variables fill the gaps."`
}

type migrateUp struct {
	ownerFlags `embed:""`
}

// Run applies the pending migrations.
func (c *migrateUp) Run(ctx context.Context, console *console) error {
	changes, err := migrations.Up(ctx, c.DatabaseURL)
	report(console.out, "applied", changes)
	if err != nil {
		return explained(err)
	}
	if len(changes) == 0 {
		fmt.Fprintf(console.out, "nothing to do: the database is at version %d\n", migrations.Latest())
	}
	return nil
}

type migrateDown struct {
	ownerFlags `embed:""`
	To         *int64 `help:"Version that shall be the newest afterwards; 0 takes everything back. Default: one step." placeholder:"VERSION"`
}

// Run takes migrations back.
func (c *migrateDown) Run(ctx context.Context, console *console) error {
	var changes []migrations.Change
	var err error
	if c.To == nil {
		changes, err = migrations.Down(ctx, c.DatabaseURL)
	} else {
		changes, err = migrations.DownTo(ctx, c.DatabaseURL, *c.To)
	}
	report(console.out, "took back", changes)
	if err != nil {
		return explained(err)
	}
	if len(changes) == 0 {
		fmt.Fprintln(console.out, "nothing to do: no such migration is applied")
	}
	return nil
}

func report(w io.Writer, verb string, changes []migrations.Change) {
	for _, c := range changes {
		fmt.Fprintf(w, "%s %s (%s)\n", verb, c.Name, c.Took.Round(time.Millisecond))
	}
}

type migrateStatus struct {
	ownerFlags `embed:""`
	JSON       bool `name:"json" help:"Print JSON."`
}

// Run lists the migrations.
func (c *migrateStatus) Run(ctx context.Context, console *console) error {
	states, err := migrations.Status(ctx, c.DatabaseURL)
	if err != nil {
		return explained(err)
	}
	type row struct {
		Version   int64      `json:"version"`
		Name      string     `json:"name"`
		State     string     `json:"state"`
		AppliedAt *time.Time `json:"applied_at"`
	}
	rows := make([]row, len(states))
	for i, s := range states {
		rows[i] = row{Version: s.Version, Name: s.Name, State: "pending"}
		if !s.AppliedAt.IsZero() {
			rows[i].State, rows[i].AppliedAt = "applied", &s.AppliedAt
		}
		if s.Unknown {
			rows[i].State = "unknown to this binary"
		}
	}
	if c.JSON {
		return writeJSON(console.out, rows)
	}
	table := newTable(console.out, "MIGRATION", "STATE", "APPLIED AT")
	for _, r := range rows {
		at := "-"
		if r.AppliedAt != nil {
			at = r.AppliedAt.UTC().Format(time.RFC3339)
		}
		name := r.Name
		if name == "" {
			name = fmt.Sprintf("%05d", r.Version)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", name, r.State, at)
	}
	return table.Flush()
}

type migrateVersion struct {
	ownerFlags `embed:""`
	JSON       bool `name:"json" help:"Print JSON."`
}

// Run prints the newest applied version.
func (c *migrateVersion) Run(ctx context.Context, console *console) error {
	states, err := migrations.Status(ctx, c.DatabaseURL)
	if err != nil {
		return explained(err)
	}
	var newest int64
	for _, s := range states {
		if !s.AppliedAt.IsZero() {
			newest = max(newest, s.Version)
		}
	}
	if c.JSON {
		return writeJSON(console.out, map[string]int64{"version": newest, "binary": migrations.Latest()})
	}
	fmt.Fprintln(console.out, newest)
	return nil
}

// explained is err in words for an operator.
func explained(err error) error {
	var failed *migrations.FailedError
	if errors.As(err, &failed) {
		return fmt.Errorf("migration %s: %s", failed.Name, postgres.Explain(failed.Err))
	}
	return errors.New(postgres.Explain(err))
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// newTable returns a writer that lines up tab-separated columns, with its
// heading written.
func newTable(w io.Writer, heading ...any) *tabwriter.Writer {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, h := range heading {
		if i > 0 {
			fmt.Fprint(table, "\t")
		}
		fmt.Fprint(table, h)
	}
	fmt.Fprintln(table)
	return table
}
