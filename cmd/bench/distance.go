//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

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
func (b *bench) travel(ctx context.Context, r *report, in stores) error {
	for _, road := range b.roads {
		j := &journey{road: road, pool: b.pool}
		r.journeys = append(r.journeys, j)
		if err := b.openRoad(ctx, road); err != nil {
			return err
		}
		if err := b.onRoad(ctx, j, in); err != nil {
			return fmt.Errorf("distance %s: %w", road.name(), err)
		}
		var err error
		if j.late, err = b.closeRoad(ctx, road); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) onRoad(ctx context.Context, j *journey, in stores) error {
	if j.road.delay > 0 {
		if err := b.checkDelay(ctx, j, in.plain); err != nil {
			return err
		}
	}
	if j.pool == 0 {
		if err := b.findPool(ctx, j, in.plain); err != nil {
			return err
		}
	}
	// What stands beside the database serves the other parts of the report, too.
	atHome := j.road.name() == home.name() && !b.quick
	var contenders []trial
	add := func(c contender, s *store, most int) {
		contenders = append(contenders, trial{contender: c, store: s, clients: most})
	}
	most := slices.Max(b.clients)
	for _, s := range []struct {
		title, program string
		store          *store
		most           int
	}{{plantstore, b.service, in.ledgered, most}, {besides, b.beside, in.others, most}, {oneByOne, b.oneByOne, in.ledgered, 1}} {
		if s.program == "" || s.title == oneByOne && !atHome {
			continue
		}
		c, err := b.startService(ctx, s.title, s.program, s.store, j.road)
		if err != nil {
			return err
		}
		if !atHome {
			defer c.process.Kill()
		}
		add(c, s.store, s.most)
	}
	if in.without != nil {
		c, err := b.startForgetful(ctx, in, j.road)
		if err != nil {
			return err
		}
		defer c.process.Kill()
		add(c, in.without, most)
	}
	for _, s := range []struct {
		title    string
		store    *store
		pool     int
		settings string
		most     int
	}{{barePlain, in.plain, j.pool, "no", most}, {bareSmall, in.plain, 4, "no", 128}, {bareLedgered, in.ledgered, j.pool, "yes", 128}} {
		if s.title != barePlain && !atHome {
			continue
		}
		c, err := b.startBare(ctx, s.title, s.store, j.road, s.pool, s.settings)
		if err != nil {
			return err
		}
		if !atHome {
			defer c.process.Kill()
		}
		add(c, s.store, s.most)
	}
	if !b.quick {
		add(&pgbenchContender{title: pgbenchLedgered, store: in.ledgered, road: j.road, script: ledgeredDelete, folder: b.folder}, in.ledgered, most)
	}
	if atHome {
		add(&pgbenchContender{title: pgbenchPlain, store: in.plain, road: j.road, script: plainDelete, folder: b.folder}, in.plain, 128)
	}
	for _, n := range b.clients {
		for _, c := range contenders {
			if n <= c.clients {
				_, direct := c.contender.(*pgbenchContender)
				j.trials = append(j.trials, &trial{contender: c.contender, store: c.store, clients: n, once: direct && !atHome})
			}
		}
	}
	return b.measure(ctx, j.trials, b.duration, b.rounds)
}

// pools are the sizes of the bare handler's pool that are tried.
var pools = [...]int{8, 16, 32, 64}

// findPool finds the pool size with which the bare handler is fastest at 128
// clients.
func (b *bench) findPool(ctx context.Context, j *journey, plain *store) error {
	fastest := 0.0
	for _, size := range pools {
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
		if t.rate() > fastest {
			j.pool, fastest = size, t.rate()
		}
		j.tries = append(j.tries, t)
	}
	return nil
}

// checkDelay measures the round trip of a statement that does nothing, with and
// without the delay, and makes the delay shorter by what the proxy takes itself.
func (b *bench) checkDelay(ctx context.Context, j *journey, s *store) (err error) {
	if j.direct, err = b.doNothing(ctx, s, home); err != nil {
		return err
	}
	if j.through, err = b.doNothing(ctx, s, j.road); err != nil {
		return err
	}
	j.road.itself = min(max(j.through.p50-j.direct.p50-j.road.delay, 0), mostItself)
	if _, err := b.closeRoad(ctx, j.road); err != nil {
		return err
	}
	if err := b.openRoad(ctx, j.road); err != nil {
		return err
	}
	if j.through, err = b.doNothing(ctx, s, j.road); err != nil {
		return err
	}
	b.progress("a round trip takes %s more, p90 %s, p99 %s, of which the proxy itself %s; wanted: %s", j.through.p50-j.direct.p50,
		j.through.p90-j.direct.p90, j.through.p99-j.direct.p99, j.road.itself, j.road.delay)
	return nil
}

// mostItself bounds what the proxy may be believed to take itself: more is another
// program's doing.
const mostItself = 200 * time.Microsecond

// doNothing has pgbench run a statement that does nothing from 128 clients, each at
// random moments.
func (b *bench) doNothing(ctx context.Context, s *store, r *road) (measurement, error) {
	c := &pgbenchContender{title: "nothing", store: s, road: r, script: "SELECT 1;\n", folder: b.folder, nothing: true}
	return c.measure(ctx, s.quota(0), 128, 2*time.Second, 4000)
}

// home returns what was measured beside the database.
func (r *report) home() []*trial {
	for _, j := range r.journeys {
		if j.road.name() == home.name() {
			return j.trials
		}
	}
	return nil
}
