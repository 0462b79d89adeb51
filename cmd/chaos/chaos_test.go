package main

import (
	"flag"
	"io"
	"os"
	"strings"
	"testing"

	"plantstore/cmd/internal/programs"
)

func TestFlags(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-duration", "10ms"}, "-duration must be at least 1s"},
		{[]string{"-clients", "0"}, "positive"},
		{[]string{"-faults", "flood"}, `no fault "flood"`},
		{[]string{"-sabotage", "fire"}, `no sabotage "fire"`},
		{[]string{"-h"}, flag.ErrHelp.Error()},
	} {
		err := command(t.Context(), test.args, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("chaos %v: got error %v, want one with %q", test.args, err, test.want)
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
