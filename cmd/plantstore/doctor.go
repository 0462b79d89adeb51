package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"plantstore/internal/doctor"
	"plantstore/internal/migrate"
	"plantstore/migrations"
)

// exitWarnings says that doctor found warnings only.
const exitWarnings = 3

// doctorTimeout is how long an examination may take.
const doctorTimeout = 2 * time.Minute

type doctorCommand struct {
	ownerFlags `embed:""`
	ServiceURL string `name:"service-url" env:"DATABASE_URL" help:"Database as the service connects to it, pool_max_conns included."`
	Replicas   int    `default:"1" help:"How many instances of the service run: each has a pool."`
	JSON       bool   `name:"json" help:"Print JSON."`
}

// Validate refuses values that can't work.
func (c *doctorCommand) Validate() error {
	if c.Replicas < 1 {
		return fmt.Errorf("--replicas is %d: it must be at least 1", c.Replicas)
	}
	return nil
}

// Run examines the database.
func (c *doctorCommand) Run(ctx context.Context, console *console) error {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	triggers, err := upSQL("00008_record_statements.sql", "00004_refuse_truncate.sql")
	if err != nil {
		return err
	}
	exam := doctor.Exam{
		Owner: c.DatabaseURL, Service: c.ServiceURL, Replicas: c.Replicas, Triggers: triggers, Limits: doctor.UsualLimits,
		Schema: func(ctx context.Context) []doctor.Finding { return examineSchema(ctx, c.DatabaseURL) },
	}
	findings := exam.Run(ctx)
	if c.JSON {
		err = writeJSON(console.out, findings)
	} else {
		err = writeFindings(console.out, findings)
	}
	if err != nil {
		return err
	}
	switch doctor.Worst(findings) {
	case doctor.Problem:
		return &exitError{code: 1}
	case doctor.Warning:
		return &exitError{code: exitWarnings}
	}
	return nil
}

// upSQL returns what the Up parts of migrations run.
func upSQL(names ...string) (string, error) {
	var sql strings.Builder
	for _, name := range names {
		b, err := migrations.Files.ReadFile(name)
		if err != nil {
			return "", err
		}
		_, up, _ := strings.Cut(string(b), "-- +goose Up\n")
		up, _, _ = strings.Cut(up, "-- +goose Down\n")
		for line := range strings.Lines(up) {
			if !strings.HasPrefix(line, "-- +goose ") {
				sql.WriteString(line)
			}
		}
	}
	return strings.TrimSpace(sql.String()), nil
}

// examineSchema tells what is wrong with the migrations.
func examineSchema(ctx context.Context, url string) []doctor.Finding {
	states, troubles, err := migrate.Service().Status(ctx, url)
	if err != nil {
		return []doctor.Finding{{Grade: doctor.Problem, Message: "the migrations can't be read: " + explained(err).Error(),
			Remedy: "Connect as the owner, see PLANTSTORE_MIGRATE_DATABASE_URL."}}
	}
	var findings []doctor.Finding
	var pending []string
	for _, s := range states {
		if s.AppliedAt.IsZero() {
			pending = append(pending, s.Name)
		}
	}
	if len(pending) > 0 {
		findings = append(findings, doctor.Finding{Grade: doctor.Problem,
			Message: "not applied, the service stays unready: " + strings.Join(pending, ", "), Remedy: "plantstore migrate up"})
	}
	for _, t := range troubles {
		grade := doctor.Problem
		if t.Kind == migrate.Ahead || t.Kind == migrate.InvalidIndex {
			grade = doctor.Warning
		}
		findings = append(findings, doctor.Finding{Grade: grade, Message: t.Message, Remedy: t.Remedy})
	}
	if len(findings) == 0 {
		findings = []doctor.Finding{{Grade: doctor.OK, Message: fmt.Sprintf("at version %d, as it was shipped", migrate.Latest())}}
	}
	for i := range findings {
		findings[i].Check = "schema"
	}
	return findings
}

// writeFindings writes findings for a person, and how many there are.
func writeFindings(w io.Writer, findings []doctor.Finding) error {
	count := make(map[doctor.Grade]int)
	var err error
	printf := func(format string, args ...any) {
		_, e := fmt.Fprintf(w, format, args...)
		err = errors.Join(err, e)
	}
	for _, f := range findings {
		count[f.Grade]++
		printf("%-8s %s: %s\n", f.Grade, f.Check, f.Message)
		if f.Remedy != "" {
			for line := range strings.Lines(f.Remedy + "\n") {
				printf("           %s", line)
			}
		}
	}
	printf("%s, %s\n", counted(count[doctor.Problem], "problem"), counted(count[doctor.Warning], "warning"))
	return err
}
