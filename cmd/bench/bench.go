//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"plantstore/internal/localpg"
)

// A bench is one run of the benchmark.
type bench struct {
	config
	folder               string
	service, bare, proxy string // programs
	server               *localpg.Server
	// Each contender deletes from a database of its own: ledgered is the service's,
	// plain has no trigger, other was migrated by the build that -beside names.
	ledgered, plain, other *store
	processes              []*localpg.Process
	progress               func(format string, a ...any)
}

// The contenders' names.
const (
	plantstore = "plantstore"
	otherBuild = "plantstore, the other build"
	bareName   = "bare handler"
	plainName  = "plain DELETE"
)

// close ends all processes and removes all files.
func (b *bench) close() error {
	for _, p := range b.processes {
		p.Kill()
	}
	var err error
	for _, s := range []*store{b.ledgered, b.plain, b.other} {
		if s != nil {
			err = errors.Join(err, s.control.Close(context.Background()))
		}
	}
	if b.server != nil {
		err = errors.Join(err, b.server.Close())
	}
	return errors.Join(err, os.RemoveAll(b.folder))
}

// measure measures what the flags ask for.
func (b *bench) measure(ctx context.Context) (*report, error) {
	r := &report{config: b.config, date: time.Now(), postgres: b.server.Version()}
	var err error
	if r.machine, err = describeMachine(b.folder); err != nil {
		return nil, err
	}
	if !b.quick {
		b.progress("writing the write-ahead log's files")
		if err := fillLog(ctx, b.server); err != nil {
			return nil, err
		}
	}
	b.progress("filling databases with %s plants each", count(b.plants))
	if b.ledgered, err = newStore(ctx, b.server, "ledgered", b.service, b.plants); err != nil {
		return nil, err
	}
	if b.plain, err = newStore(ctx, b.server, "plain", b.service, b.plants); err != nil {
		return nil, err
	}
	if err := b.plain.dropLedger(ctx); err != nil {
		return nil, err
	}
	if b.beside != "" {
		if b.other, err = newStore(ctx, b.server, "other", b.beside, b.plants); err != nil {
			return nil, err
		}
	}
	if b.beside != "" && b.watch {
		if err := errors.Join(b.ledgered.addItems(ctx, false), b.other.addItems(ctx, true)); err != nil {
			return nil, err
		}
	}
	for _, d := range b.distances {
		s, err := b.measureAt(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("distance %s: %w", d.name(), err)
		}
		r.sections = append(r.sections, s)
	}
	return r, nil
}

// A section is what was measured at one distance.
type section struct {
	*distance
	pool            int           // connections of the bare handler
	direct, through time.Duration // a round trip without the proxy and through it
	late            lateness
	trials          []*trial
	open            []*trial // open loop
}

// A trial is one contender under one load.
type trial struct {
	contender contender
	store     *store
	clients   int
	pace      float64 // requests a second; 0: closed loop
	rounds    []measurement
}

// measureAt measures all contenders at one distance.
func (b *bench) measureAt(ctx context.Context, d *distance) (_ *section, err error) {
	s := &section{distance: d, pool: b.pool}
	if err := b.open(ctx, d); err != nil {
		return nil, err
	}
	if d.delay > 0 {
		if s.direct, err = roundTrip(ctx, b.plain.url(new(distance))); err != nil {
			return nil, err
		}
		if s.through, err = roundTrip(ctx, b.plain.url(d)); err != nil {
			return nil, err
		}
	}
	if s.pool == 0 {
		if s.pool, err = b.fastestPool(ctx, d); err != nil {
			return nil, err
		}
	}
	service, err := b.startService(ctx, plantstore, b.service, b.ledgered, d)
	if err != nil {
		return nil, err
	}
	defer service.process.Kill()
	bare, err := b.startBare(ctx, d, s.pool)
	if err != nil {
		return nil, err
	}
	defer bare.process.Kill()
	contenders := []*trial{{contender: service, store: b.ledgered}, {contender: bare, store: b.plain}}
	if b.beside != "" {
		other, err := b.startService(ctx, otherBuild, b.beside, b.other, d)
		if err != nil {
			return nil, err
		}
		defer other.process.Kill()
		contenders = append(contenders, &trial{contender: other, store: b.other})
	}
	for _, n := range b.clients {
		if n == 1 && d.beside() {
			s.trials = append(s.trials, &trial{contender: &direct{b.plain}, store: b.plain, clients: 1})
		}
		for _, c := range contenders {
			s.trials = append(s.trials, &trial{contender: c.contender, store: c.store, clients: n})
		}
	}
	if err := b.takeTurns(ctx, s.trials, b.duration, b.rounds); err != nil {
		return nil, err
	}
	if d.beside() && !b.quick {
		if err := b.openLoop(ctx, s); err != nil {
			return nil, err
		}
	}
	s.late, err = b.closeDistance(ctx, d)
	return s, err
}

// openLoop measures with requests at random moments: each contender at half of its
// own peak, and the service at half of the bare handler's peak, too.
func (b *bench) openLoop(ctx context.Context, s *section) error {
	service, bare := s.find(plantstore, 128), s.find(bareName, 128)
	if service == nil {
		return nil
	}
	for _, t := range []struct{ contender, peak *trial }{{service, service}, {service, bare}, {bare, bare}} {
		s.open = append(s.open, &trial{contender: t.contender.contender, store: t.contender.store, clients: 128, pace: t.peak.rate() / 2})
	}
	return b.takeTurns(ctx, s.open, b.duration, b.rounds)
}

// fastestPool returns the pool size with which the bare handler is fastest at 128
// clients.
func (b *bench) fastestPool(ctx context.Context, d *distance) (pool int, err error) {
	fastest := 0.0
	for _, size := range []int{8, 16, 32, 64} {
		bare, err := b.startBare(ctx, d, size)
		if err != nil {
			return 0, err
		}
		t := &trial{contender: bare, store: b.plain, clients: 128}
		err = b.takeTurns(ctx, []*trial{t}, time.Second, 1)
		bare.process.Kill()
		if err != nil {
			return 0, err
		}
		if t.rate() > fastest {
			pool, fastest = size, t.rate()
		}
	}
	return pool, nil
}

// takeTurns measures the trials round by round.
func (b *bench) takeTurns(ctx context.Context, trials []*trial, d time.Duration, rounds int) error {
	for round := range rounds {
		for _, t := range trials {
			m, err := t.measure(ctx, d)
			if err != nil {
				return fmt.Errorf("%s, %d clients: %w", t.contender.name(), t.clients, err)
			}
			t.rounds = append(t.rounds, m)
			b.progress("round %d/%d, %s, %d clients: %.0f/s, p50 %s, p99 %s, other programs %.0f %%", round+1, rounds,
				t.contender.name(), t.clients, m.rate, m.p50, m.p99, m.others*100)
		}
	}
	return nil
}

// measure measures once and puts the plants back. As many must be gone as the
// contender says it deleted.
func (t *trial) measure(ctx context.Context, d time.Duration) (m measurement, err error) {
	first := t.store.next
	if m, err = t.contender.measure(ctx, t.clients, d, t.pace); err != nil {
		return m, err
	}
	deleted := t.store.next - first
	if deleted > t.store.plants {
		return m, errors.New("there are not enough plants: raise -plants or lower -duration")
	}
	gone, err := t.store.refill(ctx, first)
	if err == nil && gone != deleted {
		err = fmt.Errorf("%d deletions were reported, but %d plants are gone", deleted, gone)
	}
	return m, err
}
