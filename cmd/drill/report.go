package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"plantstore/cmd/internal/witness"
)

// A report is the result of a drill.
type report struct {
	versions    string // of the parts
	synchronous bool
	timeout     time.Duration // of a request
	events      []happening
	history     []witness.Deletion
	state       witness.State
	violations  []witness.Violation
	checked     bool  // the answers were compared with the database
	failure     error // why the drill or the check ended early
}

// A happening is an event with its time. There is load before, during and after it.
type happening struct {
	name string
	kind
	witness.Span
	struck witness.Span // the event itself, until all was well again
}

// A row describes an event from the clients' side.
type row struct {
	requests   int
	answers    map[string]int
	failed     int // other than 204
	slowest    time.Duration
	silence    time.Duration // the longest time without a 204
	violations int
}

// tolerance is how much longer than the request timeout an answer may take on a busy machine.
const tolerance = time.Second

// rowOf collects the requests that began within an event's time.
func (r *report) rowOf(h happening) row {
	answers := make(map[string]int)
	w := row{answers: answers}
	began := make(map[int64]bool) // by plant
	ends := []time.Duration{h.Start, h.End}
	for i := range r.history {
		d := &r.history[i]
		for n, a := range d.Requests() {
			if a.Start < h.Start || a.Start >= h.End {
				continue
			}
			began[d.Plant] = began[d.Plant] || n == 0
			w.requests++
			if a.Status == 204 {
				answers["204"]++
				ends = append(ends, min(a.End, h.End))
			} else {
				answers[a.String()]++
				w.failed++
			}
			w.slowest = max(w.slowest, a.End-a.Start)
		}
	}
	slices.Sort(ends)
	for i := range ends[1:] {
		w.silence = max(w.silence, ends[i+1]-ends[i])
	}
	for _, v := range r.violations {
		if began[v.Plant] {
			w.violations++
		}
	}
	return w
}

// print writes the report, as Markdown.
func (r *report) print(w io.Writer) {
	replication := "synchronous"
	if !r.synchronous {
		replication = "asynchronous"
	}
	fmt.Fprintf(w, "\n%s, %s replication, %d clients, %d deletions a second at most, request timeout %v.\n\n",
		r.versions, replication, clients, perSecond, r.timeout)
	fmt.Fprint(w, "| event | took | requests | answers | failed | slowest | longest without a 204 | violations |\n|:--|--:|--:|:--|--:|--:|--:|--:|\n")
	for _, h := range r.events {
		row := r.rowOf(h)
		violations := fmt.Sprint(row.violations)
		if !r.checked {
			violations = "?"
		}
		var answers []string
		for _, a := range slices.SortedFunc(maps.Keys(row.answers), func(a, b string) int {
			return cmp.Or(row.answers[b]-row.answers[a], strings.Compare(a, b))
		}) {
			answers = append(answers, fmt.Sprintf("%s: %d", a, row.answers[a]))
		}
		fmt.Fprintf(w, "| %s | %s | %d | %s | %d | %s | %s | %s |\n", h.name, seconds(h.struck.End-h.struck.Start), row.requests,
			strings.Join(answers, ", "), row.failed, seconds(row.slowest), seconds(row.silence), violations)
	}
	if !r.checked {
		fmt.Fprintf(w, "\n%d plants asked for. The answers were not checked.\n", len(r.history))
		return
	}
	rows := 0
	for _, entries := range r.state.Ledger {
		rows += len(entries)
	}
	fmt.Fprintf(w, "\n%d plants asked for, %d rows in the ledger, %d violations.\n", len(r.history), rows, len(r.violations))
	for i, v := range r.violations {
		if i == violationsShown {
			fmt.Fprintf(w, "and %d more\n", len(r.violations)-i)
			break
		}
		var deletion *witness.Deletion
		if i, ok := slices.BinarySearchFunc(r.history, v.Plant, func(d witness.Deletion, plant int64) int { return cmp.Compare(d.Plant, plant) }); ok {
			deletion = &r.history[i]
		}
		fmt.Fprint(w, v.Describe(deletion, r.state))
	}
}

// violationsShown limits the violations that are described.
const violationsShown = 10

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// outcome returns nil if no event broke its rules.
func (r *report) outcome() error {
	errs := []error{r.failure}
	violations := len(r.violations)
	for _, h := range r.events {
		row := r.rowOf(h)
		if h.kind == loss && !r.synchronous {
			violations -= row.violations
			if row.violations == 0 && r.checked {
				errs = append(errs, fmt.Errorf("%s: replication was asynchronous, and the checker saw no loss: it would not have seen any", h.name))
			}
		}
		switch {
		case row.answers["204"] == 0:
			errs = append(errs, fmt.Errorf("%s: there was no load", h.name))
		case h.kind == planned && row.failed > 0:
			errs = append(errs, fmt.Errorf("%s: %d answers other than 204, and it was planned", h.name, row.failed))
		case row.slowest > r.timeout+tolerance:
			errs = append(errs, fmt.Errorf("%s: an answer took %s, longer than a request may", h.name, seconds(row.slowest)))
		}
	}
	if violations > 0 {
		errs = append(errs, fmt.Errorf("%d violations", violations))
	}
	return errors.Join(errs...)
}
