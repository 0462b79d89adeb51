package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"plantstore/cmd/internal/witness"
	"plantstore/internal/readme"
)

const second = time.Second

// answered is a deletion's history from start on. Each request takes a second.
func answered(plant int64, start time.Duration, answers ...witness.Answer) witness.Deletion {
	d := witness.Deletion{Plant: plant, Key: "key"}
	for i, a := range answers {
		a.Start = start + time.Duration(i)*second
		a.End = a.Start + second
		d.Answers = append(d.Answers, a)
	}
	return d
}

var (
	yes         = witness.Answer{Status: 204}
	unavailable = witness.Answer{Status: 503, Code: 50300}
)

// madeUp is a drill of two events: a planned one, which was not noticed, and one that
// cost an answer.
func madeUp() *report {
	return &report{
		synchronous: true, checked: true,
		events: []happening{
			{name: "switchover", Span: witness.Span{Start: 0, End: 10 * second}, struck: witness.Span{Start: 2 * second, End: 4 * second}},
			{name: "kill", kind: fault, Span: witness.Span{Start: 10 * second, End: 20 * second}, struck: witness.Span{Start: 12 * second, End: 13 * second}},
		},
		history: []witness.Deletion{answered(1, 3*second, yes), answered(2, 12*second, unavailable, yes)},
	}
}

func TestDrillReport(t *testing.T) {
	t.Parallel()
	r := madeUp()
	r.violations = []witness.Violation{{Rule: "a", Plant: 2, Text: "204, and the plant is there"}}
	r.state.Ledger = map[int64][]witness.Entry{2: {{By: principal, Key: "key", Request: witness.RequestID(2, 2)}}}
	var got strings.Builder
	r.print(&got)
	want := `
Synchronous replication: true. 16 clients, 100 deletions a second at most, request timeout 40s.

| event | took | answers | slowest | longest without a 204 | violations |
|:--|--:|:--|--:|--:|--:|
| switchover | 2.0 s | 204: 1 | 1.0 s | 6.0 s | 0 |
| kill | 1.0 s | 204: 1, 503 50300: 1 | 1.0 s | 6.0 s | 1 |

violations: 1
(a) plant 2: 204, and the plant is there
    key: key
    request witness.2.1, 12s to 13s: 503 50300 
    request witness.2.2, 13s to 14s: 204 
    ledger: by drill, key key, request witness.2.2, refused 0
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("the report (-want +got):\n%s", diff)
	}
}

func TestDrillVerdict(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*report)
		want   string // part of the error; empty: none
	}{
		{"well", func(*report) {}, ""},
		{"a violation", func(r *report) { r.violations = []witness.Violation{{Rule: "a"}} }, "1 violations"},
		{"a loss that had to be", func(r *report) {
			r.synchronous, r.events[1].kind, r.violations = false, loss, []witness.Violation{{Rule: "a", Plant: 2}}
		}, ""},
		{"a loss that was not seen", func(r *report) { r.synchronous, r.events[1].kind = false, loss }, "saw no loss"},
		{"a loss beside the one that had to be", func(r *report) {
			r.synchronous, r.events[1].kind, r.violations = false, loss, []witness.Violation{{Rule: "a", Plant: 1}, {Rule: "a", Plant: 2}}
		}, "1 violations"},
		{"an event that failed", func(r *report) { r.failure = errors.New("not well") }, "not well"},
		{"a planned event that was noticed", func(r *report) { r.events[1].kind = planned }, "kill: 1 answers other than 204"},
		{"an answer that came too late", func(r *report) { r.history[1].Answers[1].End += requestTimeout + second }, "kill: an answer took 42.0 s"},
		{"no load", func(r *report) { r.history = r.history[1:] }, "switchover: there was no load"},
	} {
		r := madeUp()
		test.change(r)
		err := r.verdict()
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: got error %v, want one with %q", test.name, err, test.want)
		}
	}
}

func TestReadmeNamesEveryEvent(t *testing.T) {
	t.Parallel()
	text := readme.Read(t, "cmd/drill/README.md")
	for _, e := range allEvents() {
		if !strings.Contains(text, "| `"+e.name+"` |") {
			t.Errorf("README.md does not name the event %s", e.name)
		}
	}
}
