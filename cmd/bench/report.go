//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
)

// median returns the middle value of a trial's rounds, or the mean of the two in the middle.
func median(t *trial, value func(round int, m measurement) float64) float64 {
	var values []float64
	for i, m := range t.rounds {
		values = append(values, value(i, m))
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// share returns a trial's rate as a share of another's, or "" without another. A share is
// taken within a round.
func share(t, of *trial) string {
	if of == nil {
		return ""
	}
	return fmt.Sprintf("%.2f", median(t, func(i int, m measurement) float64 { return m.rate / of.rounds[i].rate }))
}

// find returns the first trial that fits, or nil.
func (r *row) find(fits func(*trial) bool) *trial {
	if i := slices.IndexFunc(r.trials, fits); i >= 0 {
		return r.trials[i]
	}
	return nil
}

// markdown writes the table of shares, and the measurements of each row.
func markdown(rows []*row, clients []int) string {
	var b strings.Builder
	line := func(title string, cell func(clients int) string) {
		fmt.Fprintf(&b, "| %s |", title)
		for _, n := range clients {
			fmt.Fprintf(&b, " %s |", cell(n))
		}
		b.WriteString("\n")
	}
	line("clients", func(n int) string { return fmt.Sprint(n) })
	b.WriteString("|:--|" + strings.Repeat("--:|", len(clients)) + "\n")
	for _, r := range rows {
		line(r.title, func(n int) string {
			t := r.find(func(t *trial) bool {
				return t.name == plantstore && t.clients == n && t.base != nil && t.retriers == ""
			})
			if t == nil {
				return ""
			}
			return share(t, t.base)
		})
		line("**wanted**", func(n int) string {
			if wanted := r.wanted[n]; wanted > 0 {
				return fmt.Sprintf("**%.2f**", wanted)
			}
			return ""
		})
	}
	for _, r := range rows {
		fmt.Fprintf(&b, "\n**%s**\n\n| clients | | deletes/s | share | p50, ms | p99, ms | processor for a deletion, µs: service | database | memory, MiB | of the other build |\n"+
			"|--:|:--|--:|--:|--:|--:|--:|--:|--:|--:|\n", strings.ToUpper(r.title[:1])+r.title[1:])
		for _, t := range r.trials {
			other := r.find(func(o *trial) bool {
				return t.name == plantstore && o.name == otherBuild && o.clients == t.clients && o.what == t.what
			})
			m := func(value func(measurement) float64) float64 {
				return median(t, func(_ int, m measurement) float64 { return value(m) })
			}
			fmt.Fprintf(&b, "| %d | %s | %.0f | %s | %.2f | %.2f | %.0f | %.0f | %.0f | %s |\n", t.clients, strings.TrimSpace(t.name+" "+t.what),
				m(func(m measurement) float64 { return m.rate }), share(t, t.base),
				m(func(m measurement) float64 { return m.p50 }), m(func(m measurement) float64 { return m.p99 }),
				m(func(m measurement) float64 { return m.service }), m(func(m measurement) float64 { return m.database }),
				m(func(m measurement) float64 { return m.memory }), share(t, other))
		}
		b.WriteString(r.note)
	}
	return b.String()
}
