//go:build linux

package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// bareAway is the bare handler with the pool size that is best on a road.
const bareAway = "bare handler, plain, best pool"

// besides is another build of the service, see the flag -beside.
const besides = "plantstore, the other"

// A journey is what was measured on a road.
type journey struct {
	road   *road
	pool   int // connections of the bare handler
	tries  []*trial
	trials []*trial
	// How precise the delay was, where there is one: what a trivial statement took
	// of 128 clients, and what the proxy tells.
	direct, through measurement
	late            lateness
}

// travel measures the service and the yardsticks on each road.
func (b *bench) travel(ctx context.Context, ledgered, plain *store) (journeys []*journey, err error) {
	for _, r := range b.roads {
		j := &journey{road: r, pool: b.pool}
		journeys = append(journeys, j)
		if err := b.openRoad(ctx, r); err != nil {
			return nil, err
		}
		if err := b.onRoad(ctx, j, ledgered, plain); err != nil {
			return nil, fmt.Errorf("distance %s: %w", r.name(), err)
		}
		if j.late, err = b.closeRoad(ctx, r); err != nil {
			return nil, err
		}
	}
	return journeys, nil
}

func (b *bench) onRoad(ctx context.Context, j *journey, ledgered, plain *store) error {
	if j.road.delay > 0 {
		if err := b.checkDelay(ctx, j, plain); err != nil {
			return err
		}
	}
	if j.pool == 0 {
		if err := b.findPool(ctx, j, plain); err != nil {
			return err
		}
	}
	service, err := b.startService(ctx, plantstore, b.service, ledgered, j.road)
	if err != nil {
		return err
	}
	defer service.process.Kill()
	contenders := []contender{service}
	if b.beside != "" {
		other, err := b.startService(ctx, besides, b.beside, ledgered, j.road)
		if err != nil {
			return err
		}
		defer other.process.Kill()
		contenders = append(contenders, other)
	}
	bare, err := b.startBare(ctx, bareAway, plain, j.road, j.pool, "no")
	if err != nil {
		return err
	}
	defer bare.process.Kill()
	contenders = append(contenders, bare)
	if !b.quick {
		contenders = append(contenders,
			&pgbenchContender{title: pgbenchLedgered, store: ledgered, road: j.road, script: ledgeredDelete, folder: b.folder})
	}
	for _, n := range b.clients {
		for _, c := range contenders {
			s := ledgered
			if c == contender(bare) {
				s = plain
			}
			j.trials = append(j.trials, &trial{contender: c, store: s, clients: n})
		}
	}
	return b.measure(ctx, j.trials, b.duration, b.rounds)
}

// findPool finds the pool size with which the bare handler is fastest at 128
// clients.
func (b *bench) findPool(ctx context.Context, j *journey, plain *store) error {
	for _, size := range []int{8, 16, 32, 64} {
		bare, err := b.startBare(ctx, fmt.Sprintf("bare handler, pool of %d", size), plain, j.road, size, "no")
		if err != nil {
			return err
		}
		t := &trial{contender: bare, store: plain, clients: 128}
		err = b.measure(ctx, []*trial{t}, time.Second, 1)
		bare.process.Kill()
		if err != nil {
			return err
		}
		if j.pool == 0 || t.rate() > j.tries[len(j.tries)-1].rate() {
			j.pool = size
		}
		j.tries = append(j.tries, t)
	}
	return nil
}

// checkDelay measures the round trip of a statement that does nothing, with and
// without the delay, by pgbench with 128 clients, each at random moments.
func (b *bench) checkDelay(ctx context.Context, j *journey, s *store) (err error) {
	const perSecond = 4000
	for _, way := range []struct {
		road *road
		m    *measurement
	}{{home, &j.direct}, {j.road, &j.through}} {
		c := &pgbenchContender{title: "nothing", store: s, road: way.road, script: "SELECT 1;\n", folder: b.folder, nothing: true}
		if *way.m, err = c.measure(ctx, s.quota(0), 128, 2*time.Second, perSecond); err != nil {
			return err
		}
	}
	b.progress("a round trip takes %s more, p90 %s, p99 %s; wanted: %s", j.through.p50-j.direct.p50, j.through.p90-j.direct.p50,
		j.through.p99-j.direct.p50, j.road.delay)
	return nil
}

// writeJourneys writes a table for each distance.
func (r *report) writeJourneys(b *strings.Builder) {
	for _, j := range r.journeys {
		fmt.Fprintf(b, "%s, bare handler with %d connections%s\n\n", j.road.title(), j.pool, j.precision())
		b.WriteString("| clients | | deletes/s | p50, ms | p99, ms | rate of bare | p50 of bare | CPU s for 1,000: service | database |\n" +
			"|--:|:--|--:|--:|--:|--:|--:|--:|--:|\n")
		for _, t := range j.trials {
			bare := find(j.trials, bareAway, t.clients)
			fmt.Fprintf(b, "| %d | %s | %s | %s | %s | %.2f | %.2f | %.3f | %.3f |\n", t.clients, t.title(), count(int64(t.rate())),
				milliseconds(t.p50()), milliseconds(t.p99()), t.rate()/bare.rate(), float64(t.p50())/float64(bare.p50()), t.service(), t.database())
		}
		b.WriteString("\n")
	}
}

// precision tells how precise a delay was.
func (j *journey) precision() string {
	if j.road.delay == 0 {
		return ""
	}
	most := func(d time.Duration) string { return milliseconds(d - j.direct.p50) }
	rank := "in turn with other processes, as the system does not permit the proxy to go first"
	if j.late.First {
		rank = "by a thread that goes before all others"
	}
	return fmt.Sprintf("; a round trip took %s ms more with 128 clients (p90 %s, p99 %s; %s without the delay itself, p99 %s); "+
		"of %s pieces in the measurements half were released %d µs late at most, 99 %% %d, all %d, %s",
		most(j.through.p50), most(j.through.p90), most(j.through.p99), milliseconds(j.direct.p50), milliseconds(j.direct.p99),
		count(j.late.Pieces), j.late.P50, j.late.P99, j.late.Most, rank)
}
