package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"plantstore/internal/doctor"
	"plantstore/internal/migrate"
)

// migrations are the service's, with what knows how they can be hindered.
func migrations() migrate.Set {
	set := migrate.Service()
	set.Hindrances = doctor.Hindrances
	return set
}

type migrateCommand struct {
	Plan    migratePlan    `cmd:"" help:"Show what 'up' would do to this database, and to whom, and change nothing. Exit code 0: nothing, 3: migrations are pending, 1: trouble."`
	Up      migrateUp      `cmd:"" help:"Apply every pending migration. Gives way to the clients of the database."`
	Down    migrateDown    `cmd:"" help:"Take the newest migration back, or all down to a version. Refuses to lose rows."`
	Status  migrateStatus  `cmd:"" help:"List the migrations and whether they are applied, and what is wrong."`
	Version migrateVersion `cmd:"" help:"Print the newest applied version."`
}

// lockFlags say how hard a migration tries to get its locks.
type lockFlags struct {
	LockTimeout  time.Duration `env:"PLANTSTORE_MIGRATE_LOCK_TIMEOUT" default:"${lock_timeout}" help:"How long a statement may wait for a lock; clients may have to wait behind it as long."`
	LockAttempts int           `env:"PLANTSTORE_MIGRATE_LOCK_ATTEMPTS" default:"${lock_attempts}" help:"How often a migration is tried that did not get its lock; the pauses double, up to 10s."`
}

// Validate refuses values that can't work.
func (f *lockFlags) Validate() error {
	switch {
	case f.LockTimeout < 10*time.Millisecond || f.LockTimeout > time.Minute:
		return fmt.Errorf("--lock-timeout (PLANTSTORE_MIGRATE_LOCK_TIMEOUT) is %s: it must be from 10ms to 1m", f.LockTimeout)
	case f.LockAttempts < 1:
		return fmt.Errorf("--lock-attempts (PLANTSTORE_MIGRATE_LOCK_ATTEMPTS) is %d: it must be at least 1", f.LockAttempts)
	}
	return nil
}

func (f *lockFlags) options(p *progress) migrate.Options {
	return migrate.Options{LockTimeout: f.LockTimeout, LockAttempts: f.LockAttempts, Notify: p.notify}
}

type migrateUp struct {
	ownerFlags `embed:""`
	lockFlags  `embed:""`
}

// Run applies the pending migrations.
func (c *migrateUp) Run(ctx context.Context, console *console) error {
	progress := newProgress(console, "applied", isTerminal(console.err))
	changes, err := migrations().Up(ctx, c.DatabaseURL, c.options(progress))
	progress.end()
	if err != nil {
		return c.explained(err)
	}
	if len(changes) == 0 {
		fmt.Fprintf(console.out, "nothing to do: every migration up to %d is applied\n", migrate.Latest())
	}
	return nil
}

type migrateDown struct {
	ownerFlags `embed:""`
	lockFlags  `embed:""`
	To         *int64 `help:"Version that shall be the newest afterwards; 0 takes everything back. Default: one step." placeholder:"VERSION"`
}

// Validate refuses values that can't work.
func (c *migrateDown) Validate() error {
	if c.To != nil && *c.To < 0 {
		return fmt.Errorf("--to is %d: it must be at least 0", *c.To)
	}
	return c.lockFlags.Validate()
}

// Run takes migrations back.
func (c *migrateDown) Run(ctx context.Context, console *console) error {
	progress := newProgress(console, "took back", isTerminal(console.err))
	var changes []migrate.Change
	var err error
	if c.To == nil {
		changes, err = migrations().Down(ctx, c.DatabaseURL, c.options(progress))
	} else {
		changes, err = migrations().DownTo(ctx, c.DatabaseURL, *c.To, c.options(progress))
	}
	progress.end()
	if err != nil {
		return c.explained(err)
	}
	if len(changes) == 0 {
		fmt.Fprintln(console.out, "nothing to do: no such migration is applied")
	}
	return nil
}

type migrateStatus struct {
	ownerFlags `embed:""`
	JSON       bool `name:"json" help:"Print JSON."`
}

// Run lists the migrations.
func (c *migrateStatus) Run(ctx context.Context, console *console) error {
	states, trouble, err := migrations().Status(ctx, c.DatabaseURL)
	if err != nil {
		return c.explained(err)
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
		if s.Changed {
			rows[i].State = "applied, changed since"
		}
		if s.Unknown {
			rows[i].State = "unknown to this binary"
		}
	}
	if c.JSON {
		fmt.Fprint(console.err, troubleText(trouble))
		return writeJSON(console.out, rows)
	}
	table := newTable(console.out, "MIGRATION", "STATE", "APPLIED AT")
	for _, r := range rows {
		at := "-"
		if r.AppliedAt != nil {
			at = r.AppliedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", r.Name, r.State, at)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err = io.WriteString(console.out, troubleText(trouble))
	return err
}

type migrateVersion struct {
	ownerFlags `embed:""`
	JSON       bool `name:"json" help:"Print JSON."`
}

// Run prints the newest applied version.
func (c *migrateVersion) Run(ctx context.Context, console *console) error {
	states, _, err := migrations().Status(ctx, c.DatabaseURL)
	if err != nil {
		return c.explained(err)
	}
	var newest int64
	for _, s := range states {
		if !s.AppliedAt.IsZero() {
			newest = max(newest, s.Version)
		}
	}
	if c.JSON {
		return writeJSON(console.out, map[string]int64{"version": newest, "binary": migrate.Latest()})
	}
	fmt.Fprintln(console.out, newest)
	return nil
}
