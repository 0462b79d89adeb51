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
	rounds    []measurement
}

// The names of the contenders.
const (
	pgbenchPlain    = "pgbench, plain"
	pgbenchLedgered = "pgbench, ledgered"
	plantstore      = "plantstore"
	oneByOne        = "plantstore, one by one" // without group commit
	barePlain       = "bare handler, plain"
	bareSmall       = "bare handler, plain, 4 connections" // as many as pgxpool has by default, on up to 4 cores
	bareLedgered    = "bare handler, ledgered"
)

// barePool is how many database connections the bare handler has unless it is
// held to 4. Of 4, 8, 16 and 32 it is fastest with 32.
const barePool = 32

// run measures everything.
func (b *bench) run(ctx context.Context) (*report, error) {
	r := &report{config: b.config, date: time.Now(), postgres: b.server.Version()}
	var err error
	if r.machine, err = describeMachine(b.folder); err != nil {
		return nil, err
	}
	ledgered, err := b.open(ctx, storeSpec{name: "ledgered", plants: b.plants})
	if err != nil {
		return nil, err
	}
	plain, err := b.open(ctx, storeSpec{name: "plain", plants: b.plants, plain: true})
	if err != nil {
		return nil, err
	}
	if r.journeys, err = b.travel(ctx, ledgered, plain); err != nil {
		return nil, err
	}
	if b.quick {
		return r, nil
	}
	if r.startup, err = b.startup(ctx, ledgered); err != nil {
		return nil, err
	}

	if r.closed, err = b.closedLoop(ctx, ledgered, plain); err != nil {
		return nil, err
	}
	if err := b.measure(ctx, r.closed, b.duration, b.rounds); err != nil {
		return nil, err
	}
	r.open = b.openLoop(r.closed)
	if err := b.measure(ctx, r.open, b.duration, b.rounds); err != nil {
		return nil, err
	}
	if b.growth {
		if err := b.grow(ctx, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// closedLoop starts the contenders and returns the trials in which each goes as
// fast as it can.
func (b *bench) closedLoop(ctx context.Context, ledgered, plain *store) (trials []*trial, err error) {
	service, err := b.startService(ctx, plantstore, b.service, ledgered, home)
	if err != nil {
		return nil, err
	}
	bare, err := b.startBare(ctx, barePlain, plain, home, barePool, "no")
	if err != nil {
		return nil, err
	}
	small, err := b.startBare(ctx, bareSmall, plain, home, 4, "no")
	if err != nil {
		return nil, err
	}
	bareWithLedger, err := b.startBare(ctx, bareLedgered, ledgered, home, barePool, "yes")
	if err != nil {
		return nil, err
	}
	direct := &pgbenchContender{title: pgbenchLedgered, store: ledgered, road: home, script: ledgeredDelete, folder: b.folder}
	directPlain := &pgbenchContender{title: pgbenchPlain, store: plain, road: home, script: plainDelete, folder: b.folder}
	for _, n := range b.clients {
		trials = append(trials,
			&trial{contender: directPlain, store: plain, clients: n},
			&trial{contender: small, store: plain, clients: n},
			&trial{contender: bare, store: plain, clients: n},
			&trial{contender: direct, store: ledgered, clients: n},
			&trial{contender: service, store: ledgered, clients: n},
			&trial{contender: bareWithLedger, store: ledgered, clients: n})
		if n == 1 {
			alone, err := b.startService(ctx, oneByOne, b.oneByOne, ledgered, home)
			if err != nil {
				return nil, err
			}
			trials = append(trials, &trial{contender: alone, store: ledgered, clients: n})
		}
	}
	return trials, nil
}

// openLoop returns the trials in which requests come at half of the rate that
// each contender reached with the most clients.
func (b *bench) openLoop(closed []*trial) (trials []*trial) {
	most := slices.Max(b.clients)
	for _, t := range closed {
		if t.clients == most && !t.is(bareSmall) && !t.is(oneByOne) {
			trials = append(trials, &trial{contender: t.contender, store: t.store, clients: most, pace: t.rate() / 2})
		}
	}
	return trials
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
			q := t.store.quota(d + beyond(t.clients))
			m, err := t.contender.measure(ctx, q, t.clients, d, t.pace)
			if err != nil {
				return fmt.Errorf("%s, %d clients: %w", t.contender.name(), t.clients, err)
			}
			if m.deleted > q.count {
				return fmt.Errorf("%s, %d clients: %d deletions, but only %d plants for them: raise -plants or lower -duration", t.contender.name(), t.clients, m.deleted, q.count)
			}
			gone, err := t.store.refill(ctx, q)
			if err != nil {
				return err
			}
			if gone != m.deleted {
				return fmt.Errorf("%s, %d clients: %d deletions were reported, but %d plants are gone",
					t.contender.name(), t.clients, m.deleted, gone)
			}
			t.rounds = append(t.rounds, m)
			b.progress("round %d/%d, %s plants, %s, %d clients: %.0f/s, p50 %s, p99 %s, others %.0f %%", round+1, rounds,
				count(t.store.plants), t.contender.name(), t.clients, m.rate, m.p50, m.p99, m.others*100)
		}
	}
	return nil
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

func (b *bench) startService(ctx context.Context, title, program string, s *store, r *road) (*httpContender, error) {
	c, err := startService(ctx, title, program, s, r)
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
