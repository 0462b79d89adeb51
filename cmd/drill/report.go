package main

import (
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
	synchronous bool
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
	w := row{answers: make(map[string]int)}
	began := make(map[int64]bool) // by plant
	ends := []time.Duration{h.Start, h.End}
	for i := range r.history {
		d := &r.history[i]
		for n, a := range d.Requests() {
			if a.Start < h.Start || a.Start >= h.End {
				continue
			}
			began[d.Plant] = began[d.Plant] || n == 0
			if a.Status == 204 {
				w.answers["204"]++
				ends = append(ends, min(a.End, h.End))
			} else {
				w.answers[a.String()]++
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
	fmt.Fprintf(w, "\nSynchronous replication: %v. %d clients, %d deletions a second at most, request timeout %v.\n\n",
		r.synchronous, clients, perSecond, requestTimeout)
	fmt.Fprint(w, "| event | took | answers | slowest | longest without a 204 | violations |\n|:--|--:|:--|--:|--:|--:|\n")
	for _, h := range r.events {
		row := r.rowOf(h)
		var answers []string
		for _, a := range slices.Sorted(maps.Keys(row.answers)) {
			answers = append(answers, fmt.Sprintf("%s: %d", a, row.answers[a]))
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %d |\n", h.name, seconds(h.struck.End-h.struck.Start),
			strings.Join(answers, ", "), seconds(row.slowest), seconds(row.silence), row.violations)
	}
	if !r.checked {
		fmt.Fprint(w, "\nTHE ANSWERS WERE NOT CHECKED.\n")
		return
	}
	witness.Describe(w, r.violations, r.history, r.state)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// verdict returns nil if no event broke its rules.
func (r *report) verdict() error {
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
		case row.slowest > requestTimeout+tolerance:
			errs = append(errs, fmt.Errorf("%s: an answer took %s, longer than a request may", h.name, seconds(row.slowest)))
		}
	}
	if violations > 0 {
		errs = append(errs, fmt.Errorf("%d violations", violations))
	}
	return errors.Join(errs...)
}
