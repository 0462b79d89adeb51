package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/doctor"
	"plantstore/internal/migrate"
	"plantstore/internal/postgres"
)

// Exit codes of doctor, as monitoring expects them.
const (
	exitAdvice   = 1
	exitProblems = 2
	exitUnknown  = 3 // the database, or a part of it, could not be checked
)

type doctorCommand struct {
	ownerFlags `embed:""`
	Skip       []string      `env:"PLANTSTORE_DOCTOR_SKIP" placeholder:"NAME" help:"Skip a check, if its finding is intended. Repeatable."`
	Replicas   int           `default:"1" help:"How many replicas of the service run: each opens pool_max_conns connections."`
	JSON       bool          `name:"json" help:"Print JSON."`
	Timeout    time.Duration `default:"2m" help:"Longest time for all checks together."`
}

// Help adds the checks to the command's help.
func (c *doctorCommand) Help() string {
	var b strings.Builder
	b.WriteString("Exit code 0: nothing was found, 1: advice only, 2: problems, 3: the checks could not be made.\n\nThe checks:\n\n")
	for _, check := range doctor.Checks() {
		fmt.Fprintf(&b, "  %-17s %s\n", check.Name, check.About)
	}
	return b.String()
}

// Validate rejects values that cannot work.
func (c *doctorCommand) Validate() error {
	if c.Replicas < 1 {
		return fmt.Errorf("--replicas is %d: it must be at least 1", c.Replicas)
	}
	for _, name := range c.Skip {
		if !slices.ContainsFunc(doctor.Checks(), func(check doctor.Check) bool { return check.Name == name }) {
			return fmt.Errorf("--skip (PLANTSTORE_DOCTOR_SKIP): there is no check %q: see 'plantstore doctor --help'", name)
		}
	}
	return nil
}

// Run checks the database.
func (c *doctorCommand) Run(ctx context.Context, console *console) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	in := doctor.Input{Versions: migrate.Versions(), Skip: c.Skip}
	if c.service.url != "" || hasPGVariables() {
		if in.Connections, in.ServiceErr = c.connections(ctx); in.ServiceErr == nil {
			in.Service, in.ServiceErr = postgres.Connect(ctx, c.service.setting, c.service.url)
		}
	}
	if c.owner != c.service {
		in.Owner, in.OwnerErr = postgres.Connect(ctx, c.owner.setting, c.owner.url)
	}
	for _, conn := range []*pgx.Conn{in.Service, in.Owner} {
		if conn != nil {
			defer conn.Close(context.WithoutCancel(ctx))
		}
	}
	findings, failed := doctor.Run(ctx, in)
	if len(findings) > 0 || failed == nil {
		if err := c.print(console.out, findings); err != nil {
			return err
		}
	}
	code := 0
	switch {
	case slices.ContainsFunc(findings, func(f doctor.Finding) bool { return f.Level == doctor.Problem }):
		code = exitProblems
	case failed != nil:
		code = exitUnknown
	case len(findings) > 0:
		code = exitAdvice
	}
	if code == 0 {
		return nil
	}
	return &exitError{code, failed}
}

// connections is how many connections all replicas open at most.
func (c *doctorCommand) connections(ctx context.Context) (int, error) {
	db, err := postgres.Open(ctx, postgres.Config{URL: c.service.url, Setting: c.service.setting, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	return c.Replicas * int(db.MaxConns()), nil
}

// print writes findings. A remedy has lines of its own, to copy.
func (c *doctorCommand) print(w io.Writer, findings []doctor.Finding) error {
	if c.JSON {
		return writeJSON(w, append([]doctor.Finding{}, findings...))
	}
	var b strings.Builder
	problems := 0
	for _, f := range findings {
		if f.Level == doctor.Problem {
			problems++
		}
		fmt.Fprintf(&b, "%s: %s: %s\n", f.Level, f.Check, shown(f.Message))
		for line := range strings.Lines(f.Remedy) {
			fmt.Fprintf(&b, "    %s\n", shown(strings.TrimSuffix(line, "\n")))
		}
	}
	fmt.Fprintf(&b, "problems: %d, advice: %d\n", problems, len(findings)-problems)
	_, err := io.WriteString(w, b.String())
	return err
}
