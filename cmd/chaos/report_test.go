package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"plantstore/cmd/internal/witness"
)

func TestOutcome(t *testing.T) {
	t.Parallel()
	r := &report{kinds: []kind{{name: "refuse"}, {name: "pg-kill"}}, events: events{faults: []fault{{kind: "refuse"}}}}
	if err := r.outcome(); err == nil || !strings.Contains(err.Error(), "never happened: pg-kill") {
		t.Errorf("got %v, want pg-kill missed", err)
	}
	r.events.faults = append(r.events.faults, fault{kind: "pg-kill"})
	if err := r.outcome(); err != nil {
		t.Errorf("got %v, want none", err)
	}
	r.violations = []witness.Violation{{Rule: "a", Plant: 1, Text: "text"}}
	if err := r.outcome(); err == nil || err.Error() != "1 violations" {
		t.Errorf("got %v, want 1 violations", err)
	}
}

func TestRequestsThroughFaults(t *testing.T) {
	t.Parallel()
	got := merge([]fault{{"c", 20, 30}, {"a", 1, 5}, {"b", 4, 10}, {"d", 22, 25}})
	want := []witness.Span{{Start: 1, End: 10}, {Start: 20, End: 30}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("times with a fault (-want +got):\n%s", diff)
	}
	for _, test := range []struct {
		start, end time.Duration
		want       bool
	}{{0, 0, false}, {0, 1, true}, {11, 19, false}, {11, 40, true}, {29, 40, true}, {31, 40, false}} {
		if o := witness.Overlaps(got, witness.Answer{Start: test.start, End: test.end}); o != test.want {
			t.Errorf("a request from %d to %d: through a fault = %v, want %v", test.start, test.end, o, test.want)
		}
	}
}
