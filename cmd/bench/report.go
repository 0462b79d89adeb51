//go:build linux

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A report is what was measured.
type report struct {
	config
	command  string
	date     time.Time
	machine  string
	postgres string // version
	sections []*section
}

// median returns the value in the middle, or the mean of the two in the middle.
func median[T ~int64 | ~float64](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// of returns the median of one figure of a trial.
func of(t *trial, figure func(measurement) float64) float64 {
	values := make([]float64, len(t.rounds))
	for i, m := range t.rounds {
		values[i] = figure(m)
	}
	return median(values)
}

func rate(m measurement) float64     { return m.rate }
func p50(m measurement) float64      { return m.p50.Seconds() }
func p99(m measurement) float64      { return m.p99.Seconds() }
func service(m measurement) float64  { return m.service }
func database(m measurement) float64 { return m.database }
func memory(m measurement) float64   { return m.memory / (1 << 20) }

func (t *trial) rate() float64 { return of(t, rate) }

// ratios divides one figure of a trial by another trial's in the same round.
func (t *trial) ratios(other *trial, figure func(measurement) float64) []float64 {
	ratios := make([]float64, len(t.rounds))
	for i := range t.rounds {
		ratios[i] = figure(t.rounds[i]) / figure(other.rounds[i])
	}
	return ratios
}

// find returns the trial of a contender with so many clients, or nil.
func (s *section) find(name string, clients int) *trial {
	for _, t := range s.trials {
		if t.contender.name() == name && t.clients == clients {
			return t
		}
	}
	return nil
}

func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "`%s`, %s. %s, PostgreSQL %s, %s plants. Each figure is a median; rounds: %d of %s.\n\n",
		r.command, r.date.UTC().Format("2 January 2006 15:04 UTC"), r.machine, r.postgres, count(r.plants), r.rounds, r.duration)
	r.writeTargets(&b)
	for _, s := range r.sections {
		fmt.Fprintf(&b, "\n### %s\n\n", s.title())
		s.writeTrials(&b)
		s.writeOtherBuild(&b)
		s.writeConditions(&b)
		s.writeOpenLoop(&b)
	}
	return b.String()
}

// writeTrials writes a row for each contender and number of clients.
func (s *section) writeTrials(b *strings.Builder) {
	b.WriteString("| clients | | deletes/s | of the bare handler's | p50, ms | p99, ms | processor for a deletion, µs: service | database | memory, MiB |\n" +
		"|--:|:--|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, t := range s.trials {
		name, share, cpu, resident := t.contender.name(), "", "", ""
		if bare := s.find(bareName, t.clients); bare != nil {
			share = fmt.Sprintf("%.2f", median(t.ratios(bare, rate)))
		}
		if name == plantstore {
			name = "**" + name + "**"
		}
		if name != plainName {
			cpu, resident = fmt.Sprintf("%.0f", of(t, service)), fmt.Sprintf("%.0f", of(t, memory))
		}
		fmt.Fprintf(b, "| %d | %s | %s | %s | %.2f | %.2f | %s | %.0f | %s |\n", t.clients, name, count(int64(t.rate())), share,
			of(t, p50)*1000, of(t, p99)*1000, cpu, of(t, database), resident)
	}
}

// writeOtherBuild compares this build with the other one, if there is one.
func (s *section) writeOtherBuild(b *strings.Builder) {
	if s.find(otherBuild, s.trials[len(s.trials)-1].clients) == nil {
		return
	}
	b.WriteString("\nThis build's figures divided by the other build's, round by round: the median (least to most).\n\n" +
		"| clients | deletes/s | p50 | p99 | processor: service | database |\n|--:|--:|--:|--:|--:|--:|\n")
	for _, t := range s.trials {
		if t.contender.name() != plantstore {
			continue
		}
		fmt.Fprintf(b, "| %d |", t.clients)
		for _, figure := range []func(measurement) float64{rate, p50, p99, service, database} {
			ratios := t.ratios(s.find(otherBuild, t.clients), figure)
			fmt.Fprintf(b, " %.2f (%.2f to %.2f) |", median(ratios), slices.Min(ratios), slices.Max(ratios))
		}
		b.WriteString("\n")
	}
}

// writeConditions writes what a reader needs to trust the table.
func (s *section) writeConditions(b *strings.Builder) {
	others := 0.0
	for _, t := range s.trials {
		for _, m := range t.rounds {
			others = max(others, m.others)
		}
	}
	fmt.Fprintf(b, "\nThe bare handler has up to %d database connections. Other programs had up to %.0f %% of the processors.", s.pool, others*100)
	if s.delay > 0 {
		priority := "without real-time priority"
		if s.late.RealTime {
			priority = "with real-time priority"
		}
		fmt.Fprintf(b, " A round trip takes %.2f ms, and %.2f without the proxy, which ran %s and released %.2f %% of %s pieces more than 100 µs late.",
			s.through.Seconds()*1000, s.direct.Seconds()*1000, priority, float64(s.late.Late)/float64(max(s.late.Pieces, 1))*100, count(s.late.Pieces))
	}
	b.WriteString("\n")
}

func (s *section) writeOpenLoop(b *strings.Builder) {
	if len(s.open) == 0 {
		return
	}
	b.WriteString("\n### Open loop\n\nRequests come at random moments, beside the database. Latency counts from the moment a request is due.\n\n" +
		"| | at half of the peak of | requests/s | p50, ms | p99, ms |\n|:--|:--|--:|--:|--:|\n")
	for i, t := range s.open {
		peak := [...]string{plantstore, bareName, bareName}[i]
		fmt.Fprintf(b, "| %s | %s | %s | %.2f | %.2f |\n", t.contender.name(), peak, count(int64(t.rate())), of(t, p50)*1000, of(t, p99)*1000)
	}
}

// A target is a figure that the service has to reach.
type target struct {
	what            string
	wanted          float64
	atMost          bool // rather than at least
	measured, worst float64
}

func (r *report) writeTargets(b *strings.Builder) {
	b.WriteString("### Targets\n\n| | wanted | measured | worst round | |\n|:--|--:|--:|--:|:--|\n")
	for _, s := range r.sections {
		for _, t := range s.targets() {
			sign, met := "≥", t.measured >= t.wanted
			if t.atMost {
				sign, met = "≤", t.measured <= t.wanted
			}
			result := "**missed**"
			if met {
				result = "met"
			}
			fmt.Fprintf(b, "| %s | %s %.2f | %.2f | %.2f | %s |\n", t.what, sign, t.wanted, t.measured, t.worst, result)
		}
	}
}

// wantedRates are shares of the bare handler's rate by number of clients.
func (d *distance) wantedRates() map[int]float64 {
	switch {
	case d.slowCommits:
		return map[int]float64{8: 0.9, 32: 0.9, 128: 1.5}
	case d.beside():
		return map[int]float64{1: 0.75, 8: 1, 32: 1.5, 128: 2}
	}
	return map[int]float64{1: 0.95, 8: 0.95, 32: 0.95, 128: 2}
}

// targets returns the targets that were measured at this distance.
func (s *section) targets() (targets []target) {
	for _, t := range s.trials {
		wanted, ok := s.wantedRates()[t.clients]
		if bare := s.find(bareName, t.clients); ok && bare != nil && t.contender.name() == plantstore {
			ratios := t.ratios(bare, rate)
			targets = append(targets, target{what: fmt.Sprintf("%s, clients: %d; rate, of the bare handler's", s.name(), t.clients),
				wanted: wanted, measured: median(ratios), worst: slices.Min(ratios)})
		}
	}
	if !s.beside() {
		return targets
	}
	if t, plain := s.find(plantstore, 1), s.find(plainName, 1); t != nil && plain != nil {
		ratios := t.ratios(plain, database)
		targets = append(targets, target{what: "0s, clients: 1; the database's processor time for a deletion, of a plain DELETE's",
			wanted: 3, atMost: true, measured: median(ratios), worst: slices.Max(ratios)})
	}
	if t := s.find(plantstore, 128); t != nil {
		worst := 0.0
		for _, m := range t.rounds {
			worst = max(worst, memory(m))
		}
		targets = append(targets, target{what: "0s, clients: 128; resident memory, MiB",
			wanted: 40, atMost: true, measured: of(t, memory), worst: worst})
	}
	return targets
}

// count formats a number with commas.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
