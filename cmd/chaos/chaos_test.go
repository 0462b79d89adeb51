package main

import (
	"strings"
	"testing"

	"plantstore/cmd/internal/programs"
	"plantstore/cmd/internal/witness"
	"plantstore/internal/readme"
)

func TestReadmeNamesEveryFault(t *testing.T) {
	t.Parallel()
	text := readme.Read(t, "cmd/chaos/README.md")
	for _, k := range kinds() {
		if !strings.Contains(text, "`"+k.name+"`") {
			t.Errorf("README.md does not name the fault %s", k.name)
		}
	}
	for _, name := range programs.Sabotages() {
		if !strings.Contains(text, "-sabotage "+name) {
			t.Errorf("README.md does not name the sabotage %s", name)
		}
	}
}

func TestVerdictNamesWhatFailed(t *testing.T) {
	t.Parallel()
	r := &report{kinds: []kind{{name: "freeze"}, {name: "pg-kill"}}, events: events{faults: []fault{{kind: "freeze"}}}}
	if err := r.verdict(); err == nil || err.Error() != "the fault pg-kill never happened" {
		t.Errorf("got %v, want that pg-kill never happened", err)
	}
	r.faults = append(r.faults, fault{kind: "pg-kill"})
	if err := r.verdict(); err != nil {
		t.Errorf("got %v, want none", err)
	}
	r.violations = []witness.Violation{{Rule: "a", Plant: 1, Text: "text"}}
	if err := r.verdict(); err == nil || err.Error() != "1 violations" {
		t.Errorf("got %v, want 1 violations", err)
	}
}
