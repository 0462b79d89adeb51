package main

import (
	"flag"
	"io"
	"os"
	"strings"
	"testing"

	"plantstore/cmd/internal/programs"
	"plantstore/cmd/internal/witness"
)

func TestFlags(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ args, want string }{
		{"-duration=10ms", "-duration must be at least 1s"},
		{"-faults=flood", `no fault "flood"`},
		{"-sabotage=fire", `no sabotage "fire"`},
		{"-h", flag.ErrHelp.Error()},
	} {
		err := command(t.Context(), []string{test.args}, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("chaos %s: got error %v, want one with %q", test.args, err, test.want)
		}
	}
}

func TestReadmeNamesEveryFault(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds() {
		if !strings.Contains(string(b), "`"+k.name+"`") {
			t.Errorf("README.md does not name the fault %s", k.name)
		}
	}
	for _, name := range programs.Sabotages() {
		if !strings.Contains(string(b), "-sabotage "+name) {
			t.Errorf("README.md does not name the sabotage %s", name)
		}
	}
}

func TestRunThatFails(t *testing.T) {
	t.Parallel()
	r := &report{kinds: []kind{{name: "freeze"}, {name: "pg-kill"}}, events: events{faults: []fault{{kind: "freeze"}}}}
	if err := r.outcome(); err == nil || err.Error() != "the fault pg-kill never happened" {
		t.Errorf("got %v, want that pg-kill never happened", err)
	}
	r.faults = append(r.faults, fault{kind: "pg-kill"})
	if err := r.outcome(); err != nil {
		t.Errorf("got %v, want none", err)
	}
	r.violations = []witness.Violation{{Rule: "a", Plant: 1, Text: "text"}}
	if err := r.outcome(); err == nil || err.Error() != "1 violations" {
		t.Errorf("got %v, want 1 violations", err)
	}
}
