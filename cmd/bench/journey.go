//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// writeJourneys writes what was measured at each distance: the service and, beside
// it, its yardsticks.
func (r *report) writeJourneys(b *strings.Builder) {
	for _, j := range r.journeys {
		fmt.Fprintf(b, "### %s\n\n", j.road.title())
		if !r.quick {
			fmt.Fprintf(b, "![Rate and p50 over the number of clients](%s)\n\n", j.plotName())
		}
		j.writeTable(b)
		j.writePrecision(b)
	}
}

// writeTable writes a line for each number of clients.
func (j *journey) writeTable(b *strings.Builder) {
	b.WriteString("| clients | | deletes/s | p50, ms | p99, ms | rate: of the bare handler | p50: of the bare handler | rate: of pgbench |\n" +
		"|--:|:--|--:|--:|--:|--:|--:|--:|\n")
	last := 0
	for _, t := range j.trials {
		if !j.leads(t) {
			continue
		}
		clients, ofBare, p50, ofPgbench := "", "", "", ""
		if t.clients != last {
			clients, last = fmt.Sprint(t.clients), t.clients
		}
		if bare := find(j.trials, barePlain, t.clients); bare != nil {
			ofBare, p50 = fmt.Sprintf("%.2f", t.rate()/bare.rate()), fmt.Sprintf("%.2f", float64(t.p50())/float64(bare.p50()))
		}
		if direct := find(j.trials, pgbenchLedgered, t.clients); direct != nil {
			ofPgbench = fmt.Sprintf("%.2f", t.rate()/direct.rate())
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", clients, t.title(), count(int64(t.rate())),
			milliseconds(t.p50()), milliseconds(t.p99()), ofBare, p50, ofPgbench)
	}
	b.WriteString("\n")
	j.writeBeside(b)
}

// writeBeside compares two builds, if there are two. The machine's pace changes from one
// second to the next, and they are measured one right after the other: so what counts is
// the ratio in each round.
func (j *journey) writeBeside(b *strings.Builder) {
	if find(j.trials, besides, j.trials[0].clients) == nil {
		return
	}
	b.WriteString("Of the other build's figure, in the middle of the rounds (least to most), with the CPU time for a deletion:\n\n" +
		"| clients | deletes/s | p50 | p99 | CPU of the service | CPU of the database |\n|--:|--:|--:|--:|--:|--:|\n")
	for _, t := range j.trials {
		if !t.is(plantstore) {
			continue
		}
		other := find(j.trials, besides, t.clients)
		fmt.Fprintf(b, "| %d |", t.clients)
		for _, figure := range []func(measurement) float64{
			func(m measurement) float64 { return m.rate },
			func(m measurement) float64 { return m.p50.Seconds() },
			func(m measurement) float64 { return m.p99.Seconds() },
			func(m measurement) float64 { return m.service },
			func(m measurement) float64 { return m.database },
		} {
			ratios := make([]float64, len(t.rounds))
			for i := range t.rounds {
				ratios[i] = figure(t.rounds[i]) / figure(other.rounds[i])
			}
			fmt.Fprintf(b, " %.2f (%.2f to %.2f) |", median(ratios), slices.Min(ratios), slices.Max(ratios))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
}

// leads reports whether a trial is in the leading tables and plots.
func (j *journey) leads(t *trial) bool {
	return t.is(plantstore) || t.is(besides) || t.is(barePlain) || t.is(pgbenchLedgered)
}

// writePrecision tells the bare handler's pool, and how precise the delay was.
func (j *journey) writePrecision(b *strings.Builder) {
	fmt.Fprintf(b, "The bare handler has up to %d database connections", j.pool)
	if len(j.tries) > 0 {
		b.WriteString(", with which it was fastest at 128 clients:")
		for i, t := range j.tries {
			separator := ","
			if i == 0 {
				separator = ""
			}
			fmt.Fprintf(b, "%s %s/s with %d", separator, count(int64(t.rate())), pools[i])
		}
	}
	b.WriteString(".")
	if j.road.delay > 0 {
		rank := "in turn with other threads, as the system does not permit more"
		if j.late.First {
			rank = "by a thread that goes before all others"
		}
		more := func(through, direct time.Duration) string { return milliseconds(through - direct) }
		fmt.Fprintf(b, " How precise the delay is: a statement that does nothing, 4,000 times a second from 128 clients, took %s ms more with it than without "+
			"in the middle, %s at the 90th and %s at the 99th percentile (wanted: %s, of which the proxy's own work is %s). Of the %s pieces in the measurements half were released "+
			"%d µs late at most, 99 %% of them %d µs, and 99.9 %% %d µs, %s.",
			more(j.through.p50, j.direct.p50), more(j.through.p90, j.direct.p90), more(j.through.p99, j.direct.p99), milliseconds(j.road.delay), milliseconds(j.road.itself),
			count(j.late.Pieces), j.late.P50, j.late.P99, j.late.P999, rank)
	}
	b.WriteString("\n\n")
}

// without is a figure of the service whose ledger costs nothing, or 0.
func (j *journey) without(clients int, figure func(*trial) float64) float64 {
	if t := find(j.trials, forgetful, clients); t != nil {
		return figure(t)
	}
	return 0
}

// targets are those of a distance.
func (j *journey) targets() (targets []target) {
	at := j.road.name()
	rate := func(with, what string, clients int, bound float64) {
		if t, other := find(j.trials, plantstore, clients), find(j.trials, with, clients); t != nil && other != nil {
			targets = append(targets, target{what: fmt.Sprintf("%s: rate at %d, of %s", at, clients, what), measured: t.rate() / other.rate(),
				without: j.without(clients, (*trial).rate) / other.rate(), format: "%.2f", bound: bound})
		}
	}
	latency := func(figure func(*trial) time.Duration, name string, clients int, bound float64) {
		if t, other := find(j.trials, plantstore, clients), find(j.trials, barePlain, clients); t != nil && other != nil {
			seconds := func(t *trial) float64 { return figure(t).Seconds() }
			targets = append(targets, target{what: fmt.Sprintf("%s: %s at %d, of the bare handler's", at, name, clients),
				measured: seconds(t) / seconds(other), without: j.without(clients, seconds) / seconds(other), format: "%.2f", bound: bound, atMost: true})
		}
	}
	const bare, direct = "the bare handler", "pgbench with the ledger"
	switch {
	case j.road.slowCommits:
		rate(barePlain, bare, 8, 0.95)
		rate(barePlain, bare, 32, 2)
		rate(barePlain, bare, 128, 4)
	case j.road.delay == 0:
		rate(barePlain, bare, 32, 1.5)
		rate(barePlain, bare, 128, 2)
		rate(pgbenchLedgered, direct, 8, 1)
		rate(pgbenchLedgered, direct, 32, 1.8)
		rate(pgbenchLedgered, direct, 128, 2.5)
		latency((*trial).p99, "p99", 128, 0.5)
	default:
		rate(barePlain, bare, 1, 0.95)
		rate(barePlain, bare, 8, 0.95)
		rate(barePlain, bare, 32, 0.95)
		rate(barePlain, bare, 128, 2.2)
		rate(barePlain, bare, 512, 3)
		latency((*trial).p50, "p50", 8, 1.1)
		latency((*trial).p50, "p50", 32, 1.1)
	}
	return targets
}
