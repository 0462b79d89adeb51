package main

import (
	"cmp"
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
	config     config
	took       time.Duration
	kinds      []kind // those that were to happen
	events     events
	state      witness.State
	violations []witness.Violation
}

// outcome returns nil if no promise was broken and each kind of fault happened.
func (r *report) outcome() error {
	var missing []string
	for _, k := range r.kinds {
		if len(ofKind(r.events.faults, k.name)) == 0 {
			missing = append(missing, k.name)
		}
	}
	var errs []error
	if n := len(r.violations); n > 0 {
		errs = append(errs, fmt.Errorf("%d violations", n))
	}
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("these faults never happened: %s", strings.Join(missing, ", ")))
	}
	return errors.Join(errs...)
}

// ofKind returns the faults of one kind.
func ofKind(faults []fault, kind string) []fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.kind != kind })
}

// violationsShown limits the violations that are described.
const violationsShown = 20

// print writes the report for people.
func (r *report) print(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\nFAULT\tTIMES\tTOOK ON AVERAGE\tWHAT\n")
	for _, k := range r.kinds {
		faults := ofKind(r.events.faults, k.name)
		var lasted time.Duration
		for _, f := range faults {
			lasted += f.end - f.start
		}
		fmt.Fprintf(table, "%s\t%d\t%v\t%s\n", k.name, len(faults), (lasted / time.Duration(max(len(faults), 1))).Round(time.Millisecond), k.what)
	}
	r.printCounts(table)
	table.Flush()

	fmt.Fprintf(w, "\nviolations: %d\n", len(r.violations))
	for i, v := range r.violations {
		if i == violationsShown {
			fmt.Fprintf(w, "and %d more\n", len(r.violations)-i)
			break
		}
		var d *witness.Deletion
		if i := slices.IndexFunc(r.events.history, func(d witness.Deletion) bool { return d.Plant == v.Plant }); i >= 0 {
			d = &r.events.history[i]
		}
		fmt.Fprint(w, v.Describe(d, r.state))
		if t := r.scenario(v.Plant); t != nil {
			fmt.Fprint(w, t.describe(finalOf(r.state, v.Plant)))
		}
	}
}

// scenario returns the scenario of a plant, or nil if there is none.
func (r *report) scenario(plant int64) *scenario {
	i := slices.IndexFunc(r.events.scenarios, func(t scenario) bool { return t.plant == plant })
	if i < 0 {
		return nil
	}
	return &r.events.scenarios[i]
}

// printCounts writes how often which answer came, and how long deletions took.
func (r *report) printCounts(w io.Writer) {
	var keyless, retried, late int
	var took []time.Duration
	answers, operations := make(map[string]int), make(map[string]int)
	for i := range r.events.history {
		d := &r.events.history[i]
		if d.Key == "" {
			keyless++
		}
		if len(d.Answers) > 1 {
			retried++
		}
		if d.Back {
			late++
		}
		for _, a := range d.Requests() {
			answers[a.String()]++
		}
		if n := len(d.Answers); n > 0 {
			took = append(took, d.Answers[n-1].End-d.Answers[0].Start)
		}
	}
	for i := range r.events.scenarios {
		for _, o := range r.events.scenarios[i].ops {
			if o.Do == deleteIt {
				operations[fmt.Sprintf("delete: %v", o.Answer)]++
			} else {
				operations[o.String()]++
			}
		}
	}
	fmt.Fprintf(w, "\nDELETIONS\t%d in %v\n", len(r.events.history), r.took.Round(time.Second))
	fmt.Fprintf(w, "without a key\t%d\n", keyless)
	fmt.Fprintf(w, "sent more than once\t%d\n", retried)
	fmt.Fprintf(w, "sent again after the plant came back\t%d\n", late)
	slices.Sort(took)
	if last := len(took) - 1; last >= 0 {
		fmt.Fprintf(w, "took, retries included\tp50 %v, p99 %v, at most %v\n", took[last/2].Round(time.Millisecond), took[last*99/100].Round(time.Millisecond), took[last].Round(time.Millisecond))
	}
	fmt.Fprint(w, "\nANSWERS\n")
	printSorted(w, answers)
	fmt.Fprintf(w, "\nSCENARIOS\t%d\n", len(r.events.scenarios))
	printSorted(w, operations)
}

func printSorted(w io.Writer, counts map[string]int) {
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(w, "%s\t%d\n", what, counts[what])
	}
}

// merge returns the times with a fault, in order and apart.
func merge(faults []fault) (spans []witness.Span) {
	for _, f := range slices.SortedFunc(slices.Values(faults), func(a, b fault) int { return cmp.Compare(a.start, b.start) }) {
		if n := len(spans); n > 0 && f.start <= spans[n-1].End {
			spans[n-1].End = max(spans[n-1].End, f.end)
			continue
		}
		spans = append(spans, witness.Span{Start: f.start, End: f.end})
	}
	return spans
}
