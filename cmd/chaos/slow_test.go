//go:build slow

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"plantstore/cmd/internal/programs"
	"plantstore/cmd/internal/witness"
)

// TestChaosRunFindsNoViolation runs every kind of fault.
func TestChaosRunFindsNoViolation(t *testing.T) {
	c := config{duration: 20 * time.Second, faults: "all", every: 4 * time.Second, clients: 8, players: 4, late: true, race: true}
	if err := runAndLog(t, c).verdict(); err != nil {
		t.Error(err)
	}
}

// TestCheckerCatchesSabotage shows that the checker can fail: it has to find a lie of each
// sabotaged service, under the faults that call for what is sabotaged.
func TestCheckerCatchesSabotage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		sabotage, faults string
		duration, every  time.Duration
		rule             string // the rule that the sabotage has to break
	}{
		{programs.ForgetLedger, "cut-answers", 4 * time.Second, 300 * time.Millisecond, "b"},
		{programs.ForgetLost, "promotion", 6 * time.Second, time.Second, "b"},
		{programs.ForgetRefusal, "late-bytes", 7 * time.Second, time.Second, "h"},
		{programs.ForgetRefusal, "freeze", 7 * time.Second, time.Second, "h"},
		{programs.ForgetTrigger, triggerOff, 3 * time.Second, time.Second, "d"},
		{programs.BelieveLost, "cut-requests", 4 * time.Second, 300 * time.Millisecond, "a"},
		{programs.BelieveWarnings, "cancel-wait", 4 * time.Second, time.Second, "a"},
	} {
		t.Run(test.sabotage+", "+test.faults, func(t *testing.T) {
			t.Parallel()
			c := config{
				duration: test.duration, faults: test.faults, every: test.every, sabotage: test.sabotage,
				clients: 4, players: 6, timeout: time.Second,
				late: false, // without the ledger, these would never have a final answer
			}
			// A run finds dozens as a rule and, on a busy machine, perhaps none: each takes
			// twice as long as the one before.
			for range 5 {
				r := runAndLog(t, c)
				if slices.ContainsFunc(r.violations, func(v witness.Violation) bool { return v.Rule == test.rule }) {
					return
				}
				c.duration *= 2
			}
			t.Errorf("no violation of rule %s was found", test.rule)
		})
	}
}

func runAndLog(t *testing.T, c config) *report {
	t.Helper()
	c.seed = newSeed()
	t.Logf("seed %d", c.seed)
	r, err := run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	r.print(&b)
	t.Log(b.String())
	return r
}
