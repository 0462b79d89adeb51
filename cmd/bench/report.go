//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
)

// median returns the value in the middle, or the mean of the two in the middle.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// of returns the median of one figure of a trial.
func of(t *trial, figure func(measurement) float64) float64 {
	var values []float64
	for _, m := range t.rounds {
		values = append(values, figure(m))
	}
	return median(values)
}

// share returns a trial's rate as a share of another's, the median of the rounds.
func share(t, base *trial) float64 {
	var ratios []float64
	for i, m := range t.rounds {
		ratios = append(ratios, m.rate/base.rounds[i].rate)
	}
	return median(ratios)
}

// find returns the trial that a cell of the table has, or nil.
func (s *section) find(name string, clients int) *trial {
	for _, t := range s.trials {
		if t.name == name && t.clients == clients && t.base != nil && t.retriers == "" {
			return t
		}
	}
	return nil
}

// markdown writes the table, and what is behind each row.
func markdown(sections []*section, clients []int) string {
	var b strings.Builder
	b.WriteString("| clients |")
	for _, n := range clients {
		fmt.Fprintf(&b, " %d |", n)
	}
	b.WriteString("\n|:--|" + strings.Repeat("--:|", len(clients)) + "\n")
	for _, s := range sections {
		fmt.Fprintf(&b, "| %s |", s.title)
		for _, n := range clients {
			if t := s.find(plantstore, n); t != nil {
				fmt.Fprintf(&b, " %.2f |", share(t, t.base))
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n| **wanted** |")
		for _, n := range clients {
			if wanted, ok := s.wanted[n]; ok {
				fmt.Fprintf(&b, " **%.2f** |", wanted)
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	for _, s := range sections {
		fmt.Fprintf(&b, "\n**%s**\n\n| clients | | deletes/s | share | p50, ms | p99, ms | processor for a deletion, µs: service | database | memory, MiB | of the other build |\n"+
			"|--:|:--|--:|--:|--:|--:|--:|--:|--:|--:|\n", strings.ToUpper(s.title[:1])+s.title[1:])
		others := 0.0
		for _, t := range s.trials {
			ratio, other := "", ""
			if t.base != nil {
				ratio = fmt.Sprintf("%.2f", share(t, t.base))
			}
			for _, o := range s.trials {
				if t.name == plantstore && o.name == otherBuild && o.clients == t.clients && o.what == t.what {
					other = fmt.Sprintf("%.2f", share(t, o))
				}
			}
			fmt.Fprintf(&b, "| %d | %s | %.0f | %s | %.2f | %.2f | %.0f | %.0f | %.0f | %s |\n", t.clients, strings.TrimSpace(t.name+" "+t.what),
				of(t, func(m measurement) float64 { return m.rate }), ratio,
				of(t, func(m measurement) float64 { return m.p50 }), of(t, func(m measurement) float64 { return m.p99 }),
				of(t, func(m measurement) float64 { return m.service }), of(t, func(m measurement) float64 { return m.database }),
				of(t, func(m measurement) float64 { return m.memory }), other)
			for _, m := range t.rounds {
				others = max(others, m.others)
			}
		}
		fmt.Fprintf(&b, "\n%s Other programs had up to %.0f %% of the processors.\n", s.note, others*100)
	}
	return b.String()
}
