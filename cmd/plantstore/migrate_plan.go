package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"plantstore/internal/migrate"
)

// exitPending says that migrations are pending.
const exitPending = 3

type migratePlan struct {
	ownerFlags `embed:""`
	JSON       bool `name:"json" help:"Print JSON."`
}

// Run shows what up would do.
func (c *migratePlan) Run(ctx context.Context, console *console) error {
	plan, err := migrations().Plan(ctx, c.DatabaseURL)
	if err != nil {
		return c.explained(err)
	}
	if c.JSON {
		err = writeJSON(console.out, plan)
	} else {
		_, err = io.WriteString(console.out, planText(plan))
	}
	switch {
	case err != nil:
		return err
	case len(plan.Trouble) > 0:
		return &exitError{code: 1}
	case len(plan.Pending) > 0:
		return &exitError{code: exitPending}
	}
	return nil
}

// planText is a plan for a person.
func planText(p migrate.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "database %s is at version %d, this plantstore at %d: ", p.Database, p.Version, p.Binary)
	switch len(p.Pending) {
	case 0:
		b.WriteString("nothing to do\n")
	case 1:
		b.WriteString("1 migration is pending\n")
	default:
		fmt.Fprintf(&b, "%d migrations are pending\n", len(p.Pending))
	}
	b.WriteString(troubleText(p.Trouble))
	for _, t := range p.Cautions {
		b.WriteString(labelled("caution: ", t))
	}
	if len(p.Unrecorded) > 0 {
		fmt.Fprintf(&b, "note: whether these have changed since they were applied is not known, because something else applied them or the checksums may not be read: %s\n", names(p.Unrecorded))
	}
	if len(p.Baselines) > 0 {
		fmt.Fprintf(&b, "note: something else applied these; changes are noticed only since 'migrate up' ran next: %s\n", names(p.Baselines))
	}
	if len(p.Pending) > 0 {
		b.WriteString("\n")
		table := newTable(&b, "MIGRATION", "VERDICT", "LOCKS ON TABLES IN USE")
		for _, m := range p.Pending {
			var locks []string
			for _, s := range m.Statements {
				for _, lock := range s.Locks {
					if lock.Exists {
						locks = append(locks, lockText(lock))
					}
				}
			}
			none := "none"
			if m.Verdict == migrate.Unknown {
				none = "unknown"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\n", m.Name, m.Verdict, cmp.Or(strings.Join(locks, "; "), none))
		}
		table.Flush()
	}
	for _, m := range p.Pending {
		how := "in one transaction"
		if !m.Transaction {
			how = "NOT in a transaction: what an interrupted run did stays"
		}
		fmt.Fprintf(&b, "\n%s: %s (%s)\n", m.Name, m.Verdict, how)
		for i, s := range m.Statements {
			b.WriteString(statementText(i+1, s))
		}
	}
	return b.String()
}

func statementText(number int, s migrate.Statement) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n  %d. %s: %s\n", number, s.Verdict, s.Does)
	for _, lock := range s.Locks {
		fmt.Fprintf(&b, "     lock: %s\n", lockText(lock))
	}
	if s.Verdict != migrate.Unknown && len(s.Locks) == 0 {
		b.WriteString("     lock: none on a table in use\n")
	}
	if s.Safer != "" {
		fmt.Fprintf(&b, "     safer: %s\n", s.Safer)
	}
	if s.Manual != "" {
		fmt.Fprintf(&b, "     see: %s\n", s.Manual)
	}
	b.WriteString("\n")
	for line := range strings.Lines(s.SQL) {
		b.WriteString(strings.TrimRight("       | "+line, " \n") + "\n")
	}
	return b.String()
}

func lockText(l migrate.HeldLock) string {
	about := "number of rows unknown, " + byteSize(l.Bytes)
	switch {
	case !l.Exists:
		about = "does not exist yet, nobody waits"
	case l.Rows != nil:
		about = "about " + thousands(*l.Rows) + " rows, " + byteSize(l.Bytes)
	}
	return fmt.Sprintf("%s on %s (%s)", l.Mode, l.Table, about)
}

func names(all []migrate.Migration) string {
	s := make([]string, len(all))
	for i, m := range all {
		s[i] = m.Name
	}
	return strings.Join(s, ", ")
}

func troubleText(all []migrate.Trouble) string {
	var b strings.Builder
	for _, t := range all {
		b.WriteString(labelled("TROUBLE: ", t))
	}
	return b.String()
}

// labelled is a trouble and, below it and as far to the right, its remedy.
func labelled(label string, t migrate.Trouble) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s\n", label, t.Message)
	for line := range strings.Lines(t.Remedy + "\n") {
		b.WriteString(strings.Repeat(" ", len(label)) + line)
	}
	return b.String()
}
