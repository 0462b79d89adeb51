//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"plantstore/internal/localpg"
)

// A bench is one run of the benchmark.
type bench struct {
	config
	folder string
	// programs
	service, oneByOne, bare, distance string
	server                            *localpg.Server
	stores                            []*store
	processes                         []*localpg.Process
	progress                          func(format string, a ...any)
}

// close ends and removes everything.
func (b *bench) close() error {
	for _, p := range b.processes {
		p.Kill()
	}
	var err error
	for _, s := range b.stores {
		err = errors.Join(err, s.close())
	}
	if b.server != nil {
		err = errors.Join(err, b.server.Close())
	}
	return errors.Join(err, os.RemoveAll(b.folder))
}

// A trial is one contender under one load.
type trial struct {
	contender contender
	store     *store
	clients   int
	pace      float64 // requests a second; 0: as fast as it can
	once      bool    // rather than in each round
	rounds    []measurement
}

// The names of the contenders.
const (
	pgbenchPlain    = "pgbench, plain"
	pgbenchLedgered = "pgbench, ledgered"
	plantstore      = "plantstore"
	besides         = "plantstore, the other" // see the flag -beside
	byJWT           = "plantstore, by JWT"
	withBudget      = "plantstore, with a deletion budget"
	oneByOne        = "plantstore, one by one" // without group commit
	tidyService     = "plantstore, GOGC=100"
	forgetful       = "plantstore, without the ledger"
	barePlain       = "bare handler, plain"                // with the pool that is best where it is
	bareSmall       = "bare handler, plain, 4 connections" // as many as pgxpool has by default, on up to 4 cores
	bareLedgered    = "bare handler, ledgered"
	nothing         = "net/http alone" // answers at once, without a database
)

// run measures what the flags ask for.
func (b *bench) run(ctx context.Context) (*report, error) {
	r := &report{config: b.config, date: time.Now(), postgres: b.server.Version()}
	var err error
	if r.machine, err = describeMachine(b.folder); err != nil {
		return nil, err
	}
	if !b.quick {
		if err := useLog(ctx, b.server); err != nil {
			return nil, err
		}
		b.progress("the write-ahead log has been used")
	}
	in, err := b.openAll(ctx)
	if err != nil {
		return nil, err
	}
	for _, part := range []struct {
		name string
		do   func() error
	}{
		{"distance", func() error { return b.travel(ctx, r, in) }},
		{"open", func() error { return b.openLoop(ctx, r) }},
		{"principals", func() error { return b.principals(ctx, r, in.ledgered) }},
		{"replicas", func() error { return b.replicas(ctx, r, in.ledgered) }},
		{"memory", func() error { return b.connections(ctx, r, in.ledgered) }},
		{"start", func() (err error) { r.startup, err = b.startup(ctx, in.ledgered); return err }},
		// Its checkpoints would be felt by those after it.
		{"cost", func() error { return b.cost(ctx, r, in) }},
		{"growth", func() error { return b.grow(ctx, r) }},
	} {
		if !slices.Contains(b.parts, part.name) {
			continue
		}
		if err := part.do(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// stores are the databases that most contenders delete in. What a part does not need is nil.
type stores struct {
	ledgered, plain *store
	without         *store // is ledgered, and forgets, see startForgetful
	others          *store // is of the other build's schema
}

func (b *bench) openAll(ctx context.Context) (in stores, err error) {
	specs := []struct {
		to   **store
		want bool
		storeSpec
	}{
		{&in.ledgered, true, storeSpec{name: "ledgered"}},
		{&in.plain, true, storeSpec{name: "plain", plain: true}},
		{&in.without, !b.quick && (slices.Contains(b.parts, "distance") || slices.Contains(b.parts, "cost")), storeSpec{name: "forgetful"}},
		{&in.others, b.beside != "", storeSpec{name: "others", migrated: b.beside}},
	}
	for _, s := range specs {
		if !s.want {
			continue
		}
		s.plants = b.plants
		if *s.to, err = b.open(ctx, s.storeSpec); err != nil {
			return in, err
		}
	}
	return in, nil
}

// openLoop measures with requests that come at half of the rate that each contender
// reached with 128 clients beside the database, and the service at half of the bare
// handler's, too.
func (b *bench) openLoop(ctx context.Context, r *report) error {
	trials := r.home()
	for _, t := range trials {
		if t.clients != 128 || t.is(bareSmall) || t.is(forgetful) {
			continue
		}
		r.open = append(r.open, &trial{contender: t.contender, store: t.store, clients: 128, pace: t.rate() / 2})
		if bare := find(trials, barePlain, 128); t.is(plantstore) && bare != nil {
			r.open = append(r.open, &trial{contender: t.contender, store: t.store, clients: 128, pace: bare.rate() / 2})
		}
	}
	return b.measure(ctx, r.open, b.duration, b.rounds)
}

// replicas measures two services on one database, each with half of the clients.
func (b *bench) replicas(ctx context.Context, r *report, s *store) error {
	one, err := b.startService(ctx, plantstore, b.service, s, home)
	if err != nil {
		return err
	}
	defer one.process.Kill()
	other, err := b.startService(ctx, plantstore, b.service, s, home)
	if err != nil {
		return err
	}
	defer other.process.Kill()
	for _, n := range []int{8, 32, 128} {
		r.replicas = append(r.replicas,
			&trial{contender: one, store: s, clients: n},
			&trial{contender: &pair{one, other}, store: s, clients: n})
	}
	return b.measure(ctx, r.replicas, b.duration, b.rounds)
}

// grow measures how cost grows with the number of rows.
func (b *bench) grow(ctx context.Context, r *report) error {
	// The log so far makes room for that of the next fillings.
	if _, err := b.stores[0].control.Exec(ctx, "CHECKPOINT"); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	for _, spec := range []storeSpec{
		{name: "small", plants: 100_000},
		{name: "medium", plants: 1_000_000},
		{name: "large", plants: 20_000_000},
		{name: "old", plants: 1_000_000, ledger: 10_000_000},
	} {
		s, err := b.open(ctx, spec)
		if err != nil {
			return err
		}
		service, err := b.startService(ctx, plantstore, b.service, s, home)
		if err != nil {
			return err
		}
		defer service.process.Kill()
		direct := &pgbenchContender{title: pgbenchLedgered, store: s, road: home, script: ledgeredDelete, folder: b.folder}
		for _, n := range []int{32, 128} {
			r.growth = append(r.growth,
				&trial{contender: direct, store: s, clients: n},
				&trial{contender: service, store: s, clients: n})
		}
	}
	return b.measure(ctx, r.growth, min(b.duration, 2*time.Second), b.rounds)
}

// measure goes through the trials round by round.
func (b *bench) measure(ctx context.Context, trials []*trial, d time.Duration, rounds int) error {
	for round := range rounds {
		for _, t := range trials {
			if round > 0 && t.once {
				continue
			}
			m, err := t.measure(ctx, d)
			// Whatever has the service ask the ledger again, this contender's ledger knows
			// nothing, and the plant is gone: 404. One such answer in a run has been seen.
			for tries := 1; err != nil && t.is(forgetful) && ctx.Err() == nil && tries < 3; tries++ {
				b.progress("%s, %d clients: measured again: %v", t.contender.name(), t.clients, err)
				m, err = t.measure(ctx, d)
			}
			if err != nil {
				return fmt.Errorf("%s, %d clients: %w", t.contender.name(), t.clients, err)
			}
			t.rounds = append(t.rounds, m)
			b.progress("round %d/%d, %s plants, %s, %d clients: %.0f/s, p50 %s, p99 %s, others %.0f %%", round+1, rounds,
				count(t.store.plants), t.contender.name(), t.clients, m.rate, m.p50, m.p99, m.others*100)
		}
	}
	return nil
}

// measure measures once, and puts the plants back.
func (t *trial) measure(ctx context.Context, d time.Duration) (m measurement, err error) {
	q := t.store.quota(d + 3*warmUp)
	before, err := t.store.walPosition(ctx)
	if err != nil {
		return m, err
	}
	if m, err = t.contender.measure(ctx, q, t.clients, d, t.pace); err != nil {
		_, refillErr := t.store.refill(ctx, q)
		return m, errors.Join(err, refillErr)
	}
	after, err := t.store.walPosition(ctx)
	if err != nil {
		return m, err
	}
	gone, err := t.store.refill(ctx, q)
	if err != nil {
		return m, err
	}
	if m.deleted < 0 {
		m.deleted = gone
	}
	switch measured := int64(m.rate * d.Seconds()); {
	case gone == q.count || measured > gone:
		return m, fmt.Errorf("%d deletions, but only %d plants for them: raise -plants or lower -duration", gone, q.count)
	case gone != m.deleted:
		return m, fmt.Errorf("%d deletions were reported, but %d plants are gone", m.deleted, gone)
	}
	m.wal = (after - before) / float64(gone)
	return m, nil
}

func (b *bench) open(ctx context.Context, spec storeSpec) (*store, error) {
	b.progress("filling a database with %s plants and %s ledger rows", count(spec.plants), count(spec.ledger))
	s, err := newStore(ctx, b.server, spec)
	if err != nil {
		return nil, fmt.Errorf("fill database %s: %w", spec.name, err)
	}
	b.stores = append(b.stores, s)
	return s, nil
}

func (b *bench) startService(ctx context.Context, title, program string, s *store, r *road, settings ...string) (*httpContender, error) {
	c, err := startService(ctx, title, program, s, r, settings...)
	if err != nil {
		return nil, err
	}
	b.processes = append(b.processes, c.process)
	return c, nil
}

func (b *bench) startBare(ctx context.Context, title string, s *store, r *road, pool int, settings string) (*httpContender, error) {
	c, err := startBare(ctx, title, b.bare, s, r, pool, settings)
	if err != nil {
		return nil, err
	}
	b.processes = append(b.processes, c.process)
	return c, nil
}

// startup measures how long the service takes from its start until it is ready.
func (b *bench) startup(ctx context.Context, s *store) (time.Duration, error) {
	var times []time.Duration
	for range 9 {
		start := time.Now()
		c, err := startService(ctx, plantstore, b.service, s, home)
		if err != nil {
			return 0, err
		}
		times = append(times, time.Since(start))
		c.process.Kill()
	}
	return median(times), nil
}
