package main

import (
	"bufio"
	"cmp"
	"encoding/json"
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

// A report is what came of a run.
type report struct {
	config     config
	took       time.Duration
	kinds      []kind // those that were to happen
	events     events
	state      witness.State
	violations []witness.Violation
}

// verdict returns nil if no promise was broken and the run was worth its name.
func (r *report) verdict() error {
	var missing []string
	count := r.faultsByKind()
	for _, k := range r.kinds {
		if count[k.name] == 0 {
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

// ofKind returns those of one kind.
func ofKind(faults []fault, kind string) []fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.Kind != kind })
}

func (r *report) faultsByKind() map[string]int {
	count := make(map[string]int)
	for _, f := range r.events.faults {
		count[f.Kind]++
	}
	return count
}

// violationsShown is how many violations are told in full.
const violationsShown = 20

// print writes the report for people.
func (r *report) print(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\nFAULT\tTIMES\tA MINUTE\tTOOK ON AVERAGE\tWHAT\n")
	count := r.faultsByKind()
	lasted := make(map[string]time.Duration)
	for _, f := range r.events.faults {
		lasted[f.Kind] += f.End - f.Start
	}
	for _, k := range r.kinds {
		n := count[k.name]
		fmt.Fprintf(table, "%s\t%d\t%.1f\t%v\t%s\n", k.name, n, float64(n)/r.took.Minutes(),
			(lasted[k.name] / time.Duration(max(n, 1))).Round(time.Millisecond), k.what)
	}

	r.printCounts(table)
	r.printLatencies(table)
	table.Flush()

	fmt.Fprintf(w, "\nviolations: %d\n", len(r.violations))
	for i, v := range r.violations {
		if i == violationsShown {
			fmt.Fprintf(w, "and %d more\n", len(r.violations)-i)
			break
		}
		fmt.Fprint(w, v.Describe(r.deletion(v.Plant), r.state))
		if t := r.tale(v.Plant); t != nil {
			fmt.Fprint(w, t.describe(lookAt(r.state, v.Plant)))
		}
	}
}

// deletion is that of a plant, or nil if nobody asked for it.
func (r *report) deletion(plant int64) *witness.Deletion {
	i, ok := slices.BinarySearchFunc(r.events.history, plant, func(d witness.Deletion, plant int64) int {
		return cmp.Compare(d.Plant, plant)
	})
	if !ok {
		return nil
	}
	return &r.events.history[i]
}

// tale is that of a plant, or nil if there is none.
func (r *report) tale(plant int64) *tale {
	i := slices.IndexFunc(r.events.tales, func(t tale) bool { return t.Plant == plant })
	if i < 0 {
		return nil
	}
	return &r.events.tales[i]
}

func (r *report) printCounts(w io.Writer) {
	var keyless, retried, requests, late int
	answers := make(map[string]int)
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
			requests++
			answers[a.String()]++
		}
	}
	told := make(map[string]int)
	for i := range r.events.tales {
		for _, o := range r.events.tales[i].Tale {
			told[o.label()]++
		}
	}
	rows := 0
	for _, entries := range r.state.Ledger {
		rows += len(entries)
	}
	fmt.Fprint(w, "\nDELETIONS\n")
	fmt.Fprintf(w, "all\t%d\n", len(r.events.history))
	fmt.Fprintf(w, "without a key\t%d\n", keyless)
	fmt.Fprintf(w, "sent more than once\t%d\n", retried)
	fmt.Fprintf(w, "sent again after the plant came back\t%d\n", late)
	fmt.Fprintf(w, "rows in the ledger\t%d\n", rows)
	fmt.Fprintf(w, "\nANSWERS\nall\t%d\n", requests)
	for _, a := range slices.Sorted(maps.Keys(answers)) {
		fmt.Fprintf(w, "%s\t%d\n", a, answers[a])
	}
	fmt.Fprintf(w, "\nTALES\nall\t%d\n", len(r.events.tales))
	for _, o := range slices.Sorted(maps.Keys(told)) {
		fmt.Fprintf(w, "%s\t%d\n", o, told[o])
	}
}

func (r *report) printLatencies(w io.Writer) {
	storms := merge(r.events.faults)
	var all, through, whole []time.Duration
	for i := range r.events.history {
		d := &r.events.history[i]
		for _, a := range d.Requests() {
			if a.Status == 0 {
				continue
			}
			all = append(all, a.End-a.Start)
			if witness.Overlaps(storms, a) {
				through = append(through, a.End-a.Start)
			}
		}
		if n := len(d.Answers); n > 0 {
			whole = append(whole, d.Answers[n-1].End-d.Answers[0].Start)
		}
	}
	fmt.Fprint(w, "\nLATENCY\tP50\tP99\tMAX\tOF\n")
	for _, row := range []struct {
		name string
		of   []time.Duration
	}{
		{"requests answered", all},
		{"of these, through a fault", through},
		{"deletions, retries included", whole},
	} {
		slices.Sort(row.of)
		fmt.Fprintf(w, "%s\t%v\t%v\t%v\t%d\n", row.name,
			percentile(row.of, 50), percentile(row.of, 99), percentile(row.of, 100), len(row.of))
	}
}

// percentile returns a percentile of sorted durations, zero if there are none.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)-1)*p/100].Round(100 * time.Microsecond)
}

// merge returns the times in which there was a fault, in order and apart.
func merge(faults []fault) []witness.Span {
	sorted := slices.SortedFunc(slices.Values(faults), func(a, b fault) int { return cmp.Compare(a.Start, b.Start) })
	var spans []witness.Span
	for _, f := range sorted {
		if n := len(spans); n > 0 && f.Start <= spans[n-1].End {
			spans[n-1].End = max(spans[n-1].End, f.End)
			continue
		}
		spans = append(spans, witness.Span{Start: f.Start, End: f.End})
	}
	return spans
}

// writeHistory writes faults, deletions and tales as one JSON object a line.
func writeHistory(w io.Writer, faults []fault, history []witness.Deletion, tales []tale) error {
	buffered := bufio.NewWriter(w)
	encoder := json.NewEncoder(buffered)
	var err error
	for _, f := range faults {
		err = errors.Join(err, encoder.Encode(f))
	}
	for i := range history {
		err = errors.Join(err, encoder.Encode(&history[i]))
	}
	for i := range tales {
		err = errors.Join(err, encoder.Encode(&tales[i]))
	}
	if err = errors.Join(err, buffered.Flush()); err != nil {
		return fmt.Errorf("write the history: %w", err)
	}
	return nil
}
