package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"plantstore/cmd/internal/witness"
)

// A report is the result of a run.
type report struct {
	events
	took       time.Duration
	kinds      []kind // the kinds that had to happen
	state      witness.State
	violations []witness.Violation
}

// times is how often a kind of fault happened.
func (r *report) times(k kind) (n int) {
	for _, f := range r.faults {
		if f.kind == k.name {
			n++
		}
	}
	return n
}

// verdict returns nil if no promise was broken and each kind of fault happened.
func (r *report) verdict() error {
	var errs []error
	if n := len(r.violations); n > 0 {
		errs = append(errs, fmt.Errorf("%d violations", n))
	}
	for _, k := range r.kinds {
		if r.times(k) == 0 {
			errs = append(errs, fmt.Errorf("the fault %s never happened", k.name))
		}
	}
	return errors.Join(errs...)
}

// print writes the report for people.
func (r *report) print(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\nFAULT\tTIMES\tWHAT\n")
	for _, k := range r.kinds {
		fmt.Fprintf(table, "%s\t%d\t%s\n", k.name, r.times(k), k.what)
	}
	answers, operations := make(map[string]int), make(map[string]int)
	retried, late := 0, 0
	for _, d := range r.history {
		for _, a := range d.Requests() {
			answers[a.String()]++
		}
		if len(d.Answers) > 1 {
			retried++
		}
		if d.Back {
			late++
		}
	}
	for _, s := range r.scenarios {
		for _, o := range s.ops {
			o.Key = 0 // one key is like the other here
			operations[o.String()]++
		}
	}
	fmt.Fprintf(table, "\nDELETIONS\t%d\tin %v\nsent more than once\t%d\nsent again after the plant came back\t%d\n", len(r.history), r.took.Round(time.Second), retried, late)
	fmt.Fprint(table, "\nANSWERS\n")
	printSorted(table, answers)
	fmt.Fprintf(table, "\nSCENARIOS\t%d\n", len(r.scenarios))
	printSorted(table, operations)
	table.Flush()
	witness.Describe(w, r.violations, r.history, r.state)
}

func printSorted(w io.Writer, counts map[string]int) {
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(w, "%s\t%d\n", strings.ReplaceAll(what, " without a key", ""), counts[what])
	}
}
