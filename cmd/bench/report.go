//go:build linux

package main

import (
	"cmp"
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
	startup  time.Duration
	journeys []*journey
	closed   []*trial
	open     []*trial
	growth   []*trial
}

// median returns the one in the middle, the upper of two.
func median[T cmp.Ordered](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// of returns the median of one figure of a trial.
func of[T cmp.Ordered](t *trial, figure func(measurement) T) T {
	values := make([]T, len(t.rounds))
	for i, m := range t.rounds {
		values[i] = figure(m)
	}
	return median(values)
}

func (t *trial) rate() float64       { return of(t, func(m measurement) float64 { return m.rate }) }
func (t *trial) p50() time.Duration  { return of(t, func(m measurement) time.Duration { return m.p50 }) }
func (t *trial) p99() time.Duration  { return of(t, func(m measurement) time.Duration { return m.p99 }) }
func (t *trial) service() float64    { return of(t, func(m measurement) float64 { return m.service }) }
func (t *trial) database() float64   { return of(t, func(m measurement) float64 { return m.database }) }
func (t *trial) generator() float64  { return of(t, func(m measurement) float64 { return m.generator }) }
func (t *trial) memory() float64     { return of(t, func(m measurement) float64 { return m.memory }) }
func (t *trial) allocs() float64     { return of(t, func(m measurement) float64 { return m.allocs }) }
func (t *trial) overHTTP() bool      { _, ok := t.contender.(*httpContender); return ok }
func (t *trial) is(name string) bool { return t.contender.name() == name }

// title is the contender's name in a table.
func (t *trial) title() string {
	if t.is(plantstore) {
		return "**" + plantstore + "**"
	}
	return t.contender.name()
}

// others is the largest share of the CPU time that went elsewhere in a measurement.
func (r *report) others() (most float64) {
	for _, t := range slices.Concat(r.closed, r.open, r.growth) {
		for _, m := range t.rounds {
			most = max(most, m.others)
		}
	}
	return most
}

// find returns the trial of a contender with so many clients, or nil.
func find(trials []*trial, name string, clients int) *trial {
	for _, t := range trials {
		if t.is(name) && t.clients == clients {
			return t
		}
	}
	return nil
}

// markdown writes the report.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "`%s`, %s. %s PostgreSQL %s, %s plants, each figure the median of %d rounds of %s.\n\n",
		r.command, r.date.UTC().Format("2 January 2006 15:04 UTC"), r.machine, r.postgres, count(r.plants), r.rounds, r.duration)
	r.writeJourneys(&b)
	if r.quick {
		return b.String()
	}
	r.writeClosed(&b)
	r.writeOpen(&b)
	r.writeGrowth(&b)
	r.writeTargets(&b)
	return b.String()
}

func (r *report) writeClosed(b *strings.Builder) {
	b.WriteString("| connections | | deletes/s | of pgbench | p50, ms | p99, ms | CPU s for 1,000: service | database | memory, MiB | allocations |\n" +
		"|--:|:--|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for i, t := range r.closed {
		connections := ""
		if i == 0 || r.closed[i-1].clients != t.clients {
			connections = strconv.Itoa(t.clients)
		}
		yardstick := pgbenchLedgered
		if t.store.plain {
			yardstick = pgbenchPlain
		}
		service, memory, allocs := "", "", ""
		if t.overHTTP() {
			service = fmt.Sprintf("%.3f", t.service())
			memory, allocs = fmt.Sprintf("%.0f", t.memory()/(1<<20)), fmt.Sprintf("%.0f", t.allocs())
		}
		fmt.Fprintf(b, "| %s | %s | %s | %.2f | %s | %s | %s | %.3f | %s | %s |\n", connections, t.title(),
			count(int64(t.rate())), t.rate()/find(r.closed, yardstick, t.clients).rate(),
			milliseconds(t.p50()), milliseconds(t.p99()), service, t.database(), memory, allocs)
	}
	fmt.Fprintf(b, "\nEach connection sends its next request when it has its answer. "+
		"*Ledgered*: with the trigger and the settings that it records; *plain*: without, in a database of its own; "+
		"*of pgbench*: of the one that does the same. *One by one*: the service built without group commit, to see what that costs a client that is alone. "+
		"The bare handler has up to %d database connections, or 4, pgx's default on a small machine; the service deletes over 1 or 2. "+
		"The load generator took another %.3f CPU s for 1,000 deletions, and what else ran on the machine %.0f %% of its time in the worst round.\n\n",
		barePool, r.generator(), r.others()*100)
}

// generator is what load costs, at the most connections.
func (r *report) generator() float64 {
	return find(r.closed, plantstore, slices.Max(r.clients)).generator()
}

func (r *report) writeOpen(b *strings.Builder) {
	fmt.Fprintf(b, "Open loop, requests due at random moments at half of each one's own peak, %d connections, "+
		"latency from the moment due:\n\n| | requests/s | p50, ms | p99, ms |\n|:--|--:|--:|--:|\n", slices.Max(r.clients))
	for _, t := range r.open {
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", t.title(), count(int64(t.rate())), milliseconds(t.p50()), milliseconds(t.p99()))
	}
	b.WriteString("\n")
}

func (r *report) writeGrowth(b *strings.Builder) {
	if len(r.growth) == 0 {
		return
	}
	b.WriteString("How cost grows:\n\n| plants | ledger at the start | connections | deletes/s | of pgbench | p50, ms | p99, ms | CPU s for 1,000: service | database |\n" +
		"|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	var direct *trial
	for _, t := range r.growth {
		if t.is(pgbenchLedgered) {
			direct = t
			continue
		}
		fmt.Fprintf(b, "| %s | %s | %d | %s | %.2f | %s | %s | %.3f | %.3f |\n", count(t.store.plants), count(t.store.ledger), t.clients,
			count(int64(t.rate())), t.rate()/direct.rate(), milliseconds(t.p50()), milliseconds(t.p99()), t.service(), t.database())
	}
	b.WriteString("\n")
}

// A target is something that the service is to reach.
type target struct {
	what     string
	measured float64
	format   string // of measured and bound
	bound    float64
	atMost   bool // rather than at least
}

// writeTargets holds the figures against what was promised.
func (r *report) writeTargets(b *strings.Builder) {
	b.WriteString("| target | bound | measured | |\n|:--|--:|--:|:--|\n")
	for _, t := range r.targets() {
		bound, met := "≥ ", t.measured >= t.bound
		if t.atMost {
			bound, met = "≤ ", t.measured <= t.bound
		}
		verdict := "missed"
		if met {
			verdict = "met"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", t.what, bound+fmt.Sprintf(t.format, t.bound), fmt.Sprintf(t.format, t.measured), verdict)
	}
}

func (r *report) targets() (targets []target) {
	compare := func(what, with string, clients int, bound float64) {
		t, other := find(r.closed, plantstore, clients), find(r.closed, with, clients)
		if t != nil {
			targets = append(targets, target{fmt.Sprintf("rate at %d, of %s", clients, what), t.rate() / other.rate(), "%.2f", bound, false})
		}
	}
	compare("pgbench with the ledger", pgbenchLedgered, 8, 0.75)
	compare("pgbench with the ledger", pgbenchLedgered, 32, 1)
	compare("pgbench with the ledger", pgbenchLedgered, 128, 1.5)
	compare("the bare handler without a ledger", barePlain, 32, 1.5)
	compare("the bare handler without a ledger, 4 connections", bareSmall, 32, 1.5)
	compare("the bare handler without a ledger", barePlain, 128, 2.5)
	compare("the bare handler without a ledger, 4 connections", bareSmall, 128, 2.5)
	if t := find(r.closed, plantstore, 128); t != nil {
		bare := find(r.closed, barePlain, 128)
		targets = append(targets,
			target{"p99 at 128, of the bare handler's without a ledger", float64(t.p99()) / float64(bare.p99()), "%.2f", 0.5, true},
			target{"resident memory at 128, MiB", t.memory() / (1 << 20), "%.0f", 40, true})
	}
	if t := find(r.closed, plantstore, 1); t != nil {
		before := find(r.closed, oneByOne, 1)
		targets = append(targets, target{"p50 at 1, of that one by one", float64(t.p50()) / float64(before.p50()), "%.2f", 1, true})
	}
	targets = append(targets, target{"start to ready, ms", r.startup.Seconds() * 1000, "%.0f", 150, true})
	for _, large := range r.growth {
		if large.is(plantstore) && large.store.name == "large" {
			for _, medium := range r.growth {
				if medium.is(plantstore) && medium.store.name == "medium" && medium.clients == large.clients {
					targets = append(targets, target{fmt.Sprintf("rate at %d with 20 million plants, of that with 1 million", large.clients),
						large.rate() / medium.rate(), "%.2f", 0.9, false})
				}
			}
		}
	}
	return targets
}

// count writes a number with commas.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()*1000) }
