package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"plantstore/internal/migrate"
)

type migrateCommand struct {
	Plan   migratePlan   `cmd:"" help:"Show what 'up' would do to this database, and change nothing. Exit code 0: nothing, 3: migrations are pending, 1: problems."`
	Up     migrateUp     `cmd:"" help:"Apply every pending migration. Gives way to the clients of the database."`
	Down   migrateDown   `cmd:"" help:"Roll the newest migration back, or all down to a version. Refuses to lose rows."`
	Status migrateStatus `cmd:"" help:"List the migrations and when they were applied."`
}

// lockFlags say how hard a migration tries to get its locks.
type lockFlags struct {
	LockTimeout  time.Duration `env:"PLANTSTORE_MIGRATE_LOCK_TIMEOUT" default:"${lock_timeout}" help:"Longest wait for a lock. Clients may wait behind it for that time."`
	LockAttempts int           `env:"PLANTSTORE_MIGRATE_LOCK_ATTEMPTS" default:"${lock_attempts}" help:"Attempts to get the locks of a migration. The pauses double, up to 10s."`
}

// Validate rejects values that cannot work.
func (f *lockFlags) Validate() error {
	switch {
	case f.LockTimeout < 10*time.Millisecond || f.LockTimeout > time.Minute:
		return fmt.Errorf("--lock-timeout (PLANTSTORE_MIGRATE_LOCK_TIMEOUT) is %s: it must be from 10ms to 1m", f.LockTimeout)
	case f.LockAttempts < 1:
		return fmt.Errorf("--lock-attempts (PLANTSTORE_MIGRATE_LOCK_ATTEMPTS) is %d: it must be at least 1", f.LockAttempts)
	}
	return nil
}

func (f *lockFlags) options(console *console) migrate.Options {
	return migrate.Options{LockTimeout: f.LockTimeout, LockAttempts: f.LockAttempts,
		Notify: func(message string) { fmt.Fprintln(console.out, message) }}
}

type migrateUp struct {
	ownerFlags `embed:""`
	lockFlags  `embed:""`
}

// Run applies the pending migrations.
func (c *migrateUp) Run(ctx context.Context, console *console) error {
	done, err := migrate.Up(ctx, c.owner.url, c.options(console))
	if err != nil {
		return c.explained(err)
	}
	if len(done) == 0 {
		fmt.Fprintf(console.out, "nothing to do: every migration up to %d is applied\n", migrate.Latest())
	}
	return nil
}

type migrateDown struct {
	ownerFlags `embed:""`
	lockFlags  `embed:""`
	To         int64 `default:"-1" placeholder:"VERSION" help:"Version that is the newest afterwards; 0 rolls everything back. Default: one step."`
}

// Run rolls migrations back.
func (c *migrateDown) Run(ctx context.Context, console *console) error {
	done, err := migrate.Down(ctx, c.owner.url, c.To, c.options(console))
	if err != nil {
		return c.explained(err)
	}
	if len(done) == 0 {
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
	states, err := migrate.Status(ctx, c.owner.url)
	if err != nil {
		return c.explained(err)
	}
	if c.JSON {
		return writeJSON(console.out, states)
	}
	table := newTable(console.out, "VERSION", "MIGRATION", "APPLIED AT")
	for _, s := range states {
		at := "pending"
		if s.AppliedAt != nil {
			at = date(*s.AppliedAt, "")
		}
		fmt.Fprintf(table, "%d\t%s\t%s\n", s.Version, s.Name, at)
	}
	return table.Flush()
}

// exitPending is the exit code of plan where migrations are pending.
const exitPending = 3

type migratePlan struct {
	ownerFlags `embed:""`
	SQL        bool `name:"sql" xor:"form" help:"Print the SQL that would run, for psql."`
	JSON       bool `name:"json" xor:"form" help:"Print JSON."`
}

// Run shows the migrations that up would apply, and problems that prevent them.
func (c *migratePlan) Run(ctx context.Context, console *console) error {
	plan, err := migrate.Plan(ctx, c.owner.url)
	if err != nil {
		return c.explained(err)
	}
	switch {
	case c.JSON:
		err = writeJSON(console.out, plan)
	case c.SQL:
		_, err = io.WriteString(console.out, plan.SQL())
	default:
		_, err = io.WriteString(console.out, plan.Summary())
	}
	switch {
	case err != nil:
		return err
	case len(plan.Problems) > 0:
		return &exitError{code: 1}
	case len(plan.Pending) > 0:
		return &exitError{code: exitPending}
	}
	return nil
}
