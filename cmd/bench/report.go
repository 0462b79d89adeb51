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
	command    string
	date       time.Time
	machine    string
	postgres   string // version
	startup    time.Duration
	journeys   []*journey
	open       []*trial
	principals []*trial
	replicas   []*trial
	growth     []*trial
	costs      []*expense
	footprints []footprint
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

func (t *trial) rate() float64      { return of(t, func(m measurement) float64 { return m.rate }) }
func (t *trial) p50() time.Duration { return of(t, func(m measurement) time.Duration { return m.p50 }) }
func (t *trial) p999() time.Duration {
	return of(t, func(m measurement) time.Duration { return m.p999 })
}
func (t *trial) p99() time.Duration  { return of(t, func(m measurement) time.Duration { return m.p99 }) }
func (t *trial) service() float64    { return of(t, func(m measurement) float64 { return m.service }) }
func (t *trial) database() float64   { return of(t, func(m measurement) float64 { return m.database }) }
func (t *trial) generator() float64  { return of(t, func(m measurement) float64 { return m.generator }) }
func (t *trial) memory() float64     { return of(t, func(m measurement) float64 { return m.memory }) }
func (t *trial) allocs() float64     { return of(t, func(m measurement) float64 { return m.allocs }) }
func (t *trial) overHTTP() bool      { _, ok := t.contender.(*httpContender); return ok }
func (t *trial) is(name string) bool { return t.contender.name() == name }

// title is the contender's name in a table.
func (t *trial) title() string { return bold(t.contender.name()) }

func bold(name string) string {
	if name == plantstore {
		return "**" + name + "**"
	}
	return name
}

// others is the largest share of the CPU time that went elsewhere in a measurement of
// the table of those beside the database.
func (r *report) others() (most float64) {
	for _, t := range r.home() {
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

// markdown writes the report. Its plots are files in the same folder.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "From the report of `%s`, %s. %s PostgreSQL %s, %s plants; each figure is the median of %d rounds of %s.\n\n",
		r.command, r.date.UTC().Format("2 January 2006 15:04 UTC"), r.machine, r.postgres, count(r.plants), r.rounds, r.duration)
	r.writeJourneys(&b)
	if r.quick {
		return b.String()
	}
	r.writeTargets(&b)
	r.writeHome(&b)
	r.writeOpen(&b)
	r.writePrincipals(&b)
	r.writeReplicas(&b)
	r.writeCosts(&b)
	r.writeFootprints(&b)
	r.writeGrowth(&b)
	return b.String()
}

// writeHome tells more of those beside the database.
func (r *report) writeHome(b *strings.Builder) {
	trials := r.home()
	if len(trials) == 0 {
		return
	}
	b.WriteString("### Beside the database, in detail\n\n" +
		"| connections | | deletes/s | of pgbench | p50, ms | p99, ms | CPU s for 1,000: service | database | memory, MiB | allocations |\n" +
		"|--:|:--|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for i, t := range trials {
		connections := ""
		if i == 0 || trials[i-1].clients != t.clients {
			connections = strconv.Itoa(t.clients)
		}
		yardstick := pgbenchLedgered
		if t.store.plain {
			yardstick = pgbenchPlain
		}
		of := ""
		if y := find(trials, yardstick, t.clients); y != nil {
			of = fmt.Sprintf("%.2f", t.rate()/y.rate())
		}
		service, memory, allocs := "", "", ""
		if t.overHTTP() {
			service = fmt.Sprintf("%.3f", t.service())
			memory, allocs = fmt.Sprintf("%.0f", t.memory()/(1<<20)), fmt.Sprintf("%.0f", t.allocs())
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %.3f | %s | %s |\n", connections, t.title(),
			count(int64(t.rate())), of, milliseconds(t.p50()), milliseconds(t.p99()), service, t.database(), memory, allocs)
	}
	last := trials[len(trials)-1]
	if t := find(trials, plantstore, last.clients); t != nil {
		fmt.Fprintf(b, "\nThe load generator took another %.3f CPU s for 1,000 deletions, and what else ran on the machine %.0f %% of its time in the worst round.\n\n",
			t.generator(), r.others()*100)
	}
}

func (r *report) writeOpen(b *strings.Builder) {
	if len(r.open) == 0 {
		return
	}
	b.WriteString("### Open loop\n\nRequests come at random moments, at half of the rate that each reached itself with 128 connections beside the database, and those to the service at half of the bare handler's, too. " +
		"Latency counts from the moment a request is due.\n\n| | requests/s | p50, ms | p99, ms | p99.9, ms |\n|:--|--:|--:|--:|--:|\n")
	for _, t := range r.open {
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", t.title(), count(int64(t.rate())), milliseconds(t.p50()), milliseconds(t.p99()), milliseconds(t.p999()))
	}
	b.WriteString("\n")
}

func (r *report) writeReplicas(b *strings.Builder) {
	if len(r.replicas) == 0 {
		return
	}
	b.WriteString("### Two replicas on one database\n\n| connections | | deletes/s | p50, ms | p99, ms | CPU s of the database for 1,000 |\n|--:|:--|--:|--:|--:|--:|\n")
	for _, t := range r.replicas {
		fmt.Fprintf(b, "| %d | %s | %s | %s | %s | %.3f |\n", t.clients, t.title(), count(int64(t.rate())), milliseconds(t.p50()), milliseconds(t.p99()), t.database())
	}
	b.WriteString("\nEach replica has half of the connections, and the same two cores as the other.\n\n")
}

func (r *report) writeGrowth(b *strings.Builder) {
	if len(r.growth) == 0 {
		return
	}
	b.WriteString("### How cost grows\n\n| plants | ledger at the start | connections | deletes/s | of pgbench | p50, ms | p99, ms | CPU s for 1,000: service | database |\n" +
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
	without  float64 // measured of the service whose ledger costs nothing; 0: not at all
	format   string  // of the figures
	bound    float64
	atMost   bool // rather than at least
}

// writeTargets holds the figures against what was promised.
func (r *report) writeTargets(b *strings.Builder) {
	b.WriteString("### Targets\n\n| target | bound | measured | | without the ledger |\n|:--|--:|--:|:--|--:|\n")
	for _, t := range r.targets() {
		bound, met := "≥ ", t.measured >= t.bound
		if t.atMost {
			bound, met = "≤ ", t.measured <= t.bound
		}
		verdict := "missed"
		if met {
			verdict = "met"
		}
		without := ""
		if t.without > 0 {
			without = fmt.Sprintf(t.format, t.without)
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", t.what, bound+fmt.Sprintf(t.format, t.bound), fmt.Sprintf(t.format, t.measured), verdict, without)
	}
	b.WriteString("\n*Without the ledger*: what the same service reaches in the same rounds where it records nothing and proves nothing, so that its ledger costs nothing.\n\n")
}

func (r *report) targets() (targets []target) {
	for _, j := range r.journeys {
		targets = append(targets, j.targets()...)
	}
	home := r.home()
	if t, before := find(home, plantstore, 1), find(home, oneByOne, 1); t != nil && before != nil {
		targets = append(targets, target{what: "p50 at 1, of that one by one", measured: float64(t.p50()) / float64(before.p50()), format: "%.2f", bound: 1.05, atMost: true})
	}
	if t := find(home, plantstore, 128); t != nil {
		targets = append(targets, target{what: "resident memory at 128, MiB", measured: t.memory() / (1 << 20), format: "%.0f", bound: 40, atMost: true})
	}
	targets = append(targets, r.principalTargets()...)
	if e, without := r.costOf(plantstore, 1), r.costOf(forgetful, 1); e != nil && without != nil {
		targets = append(targets, target{what: "CPU of the database for a deletion alone, ms", measured: e.database(), without: without.database(),
			format: "%.3f", bound: 0.11, atMost: true})
	}
	for _, f := range r.footprints {
		if f.title == plantstore {
			targets = append(targets,
				target{what: "KiB for an idle connection", measured: f.idle / 1024, format: "%.1f", bound: 20, atMost: true},
				target{what: "KiB for a busy connection", measured: f.busy / 1024, format: "%.1f", bound: 20, atMost: true})
		}
	}
	if r.startup > 0 {
		targets = append(targets, target{what: "start to ready, ms", measured: r.startup.Seconds() * 1000, format: "%.0f", bound: 150, atMost: true})
	}
	grown := func(store string, clients int) *trial {
		for _, t := range r.growth {
			if t.is(plantstore) && t.store.name == store && t.clients == clients {
				return t
			}
		}
		return nil
	}
	if len(r.growth) > 0 {
		for _, n := range []int{32, 128} {
			base := grown("medium", n).rate()
			targets = append(targets,
				target{what: fmt.Sprintf("rate at %d with 20 million plants, of that with 1 million", n), measured: grown("large", n).rate() / base, format: "%.2f", bound: 0.9},
				target{what: fmt.Sprintf("rate at %d with a ledger of 10 million rows, of that without", n), measured: grown("old", n).rate() / base, format: "%.2f", bound: 0.9})
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
