//go:build linux

package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// An expense is what a contender's deletions cost the database.
type expense struct {
	*trial            // as the database runs
	fresh   *trial    // right after a checkpoint
	dirtied []float64 // pages that the next checkpoint has to write for each deletion
}

// cost measures what deletions cost the database, with the ledger and without. The
// last of its measurements begin right after a checkpoint.
func (b *bench) cost(ctx context.Context, r *report, in stores) error {
	service, err := b.startService(ctx, plantstore, b.service, in.ledgered, home)
	if err != nil {
		return err
	}
	defer service.process.Kill()
	forgets, err := b.startForgetful(ctx, in, home)
	if err != nil {
		return err
	}
	defer forgets.process.Kill()
	for _, n := range []int{1, 128} {
		for _, c := range []struct {
			contender
			store *store
		}{
			{service, in.ledgered}, {forgets, in.without},
			{&pgbenchContender{title: pgbenchLedgered, store: in.ledgered, road: home, script: ledgeredDelete, folder: b.folder}, in.ledgered},
			{&pgbenchContender{title: pgbenchPlain, store: in.plain, road: home, script: plainDelete, folder: b.folder}, in.plain},
		} {
			r.costs = append(r.costs, &expense{
				trial: &trial{contender: c.contender, store: c.store, clients: n},
				fresh: &trial{contender: c.contender, store: c.store, clients: n}})
		}
	}
	trials := make([]*trial, len(r.costs))
	for i, e := range r.costs {
		trials[i] = e.trial
	}
	if err := b.measure(ctx, trials, b.duration, b.rounds); err != nil {
		return err
	}
	if _, err := in.ledgered.control.Exec(ctx, `CREATE EXTENSION pg_buffercache`); err != nil {
		return fmt.Errorf("it takes PostgreSQL's contrib modules to count pages: %w", err)
	}
	for _, e := range r.costs {
		if err := e.measureFresh(ctx, in.ledgered); err != nil {
			return fmt.Errorf("%s, %d clients: %w", e.contender.name(), e.clients, err)
		}
		b.progress("%s, %d clients: %.0f bytes of log and %.1f pages for a deletion after a checkpoint",
			e.contender.name(), e.clients, of(e.fresh, wal), e.dirtied[0])
	}
	return nil
}

// freshTime is how long is measured after a checkpoint: before every page was changed.
const freshTime = 300 * time.Millisecond

func wal(m measurement) float64 { return m.wal }

// startForgetful starts the service on a database that forgets: what writes and proves the
// ledger is taken out behind its back. It found everything in order when it started.
func (b *bench) startForgetful(ctx context.Context, in stores, road *road) (*httpContender, error) {
	if err := in.without.rememberDeletions(ctx, in.ledgered); err != nil {
		return nil, err
	}
	c, err := b.startService(ctx, forgetful, b.service, in.without, road)
	if err != nil {
		return nil, err
	}
	return c, in.without.forgetDeletions(ctx)
}

// rememberDeletions takes forgetDeletions back. The proof is that of another store.
func (s *store) rememberDeletions(ctx context.Context, like *store) error {
	var proof string
	if err := like.control.QueryRow(ctx, `SELECT pg_catalog.pg_get_functiondef('public.plantstore_prove'::regproc)`).Scan(&proof); err != nil {
		return fmt.Errorf("read the proof: %w", err)
	}
	_, err := s.control.Exec(ctx, proof+`; ALTER TABLE public.plants ENABLE TRIGGER plantstore_record_deletion`)
	return err
}

func (s *store) forgetDeletions(ctx context.Context) error {
	_, err := s.control.Exec(ctx, `
		ALTER TABLE public.plants DISABLE TRIGGER plantstore_record_deletion;
		CREATE OR REPLACE FUNCTION public.plantstore_prove(plants bigint[], principals text[], keys text[]) RETURNS void
			LANGUAGE plpgsql AS 'BEGIN END'`)
	return err
}

// measureFresh measures from a checkpoint on, and counts pages over control.
func (e *expense) measureFresh(ctx context.Context, control *store) error {
	if _, err := control.control.Exec(ctx, `CHECKPOINT`); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	q := e.store.quota(freshTime + 3*warmUp)
	before, err := e.store.walPosition(ctx)
	if err != nil {
		return err
	}
	m, err := e.contender.measure(ctx, q, e.clients, freshTime, 0)
	if err != nil {
		return err
	}
	after, err := e.store.walPosition(ctx)
	if err != nil {
		return err
	}
	var dirty float64
	if err := control.control.QueryRow(ctx, `SELECT count(*)::double precision FROM public.pg_buffercache WHERE isdirty`).Scan(&dirty); err != nil {
		return fmt.Errorf("count pages: %w", err)
	}
	gone, err := e.store.refill(ctx, q)
	if err != nil {
		return err
	}
	m.wal = (after - before) / float64(gone)
	e.fresh.rounds = append(e.fresh.rounds, m)
	e.dirtied = append(e.dirtied, dirty/float64(gone))
	return nil
}

// costOf returns what a contender's deletions cost with so many clients, or nil.
func (r *report) costOf(name string, clients int) *expense {
	for _, e := range r.costs {
		if e.is(name) && e.clients == clients {
			return e
		}
	}
	return nil
}

func (r *report) writeCosts(b *strings.Builder) {
	if len(r.costs) == 0 {
		return
	}
	b.WriteString("### Cost for the database\n\n" +
		"| connections | | deletes/s | CPU s for 1,000 | bytes of log for each | right after a checkpoint: bytes of log | pages to be written |\n" +
		"|--:|:--|--:|--:|--:|--:|--:|\n")
	last := 0
	for _, e := range r.costs {
		connections := ""
		if e.clients != last {
			connections, last = fmt.Sprint(e.clients), e.clients
		}
		fmt.Fprintf(b, "| %s | %s | %s | %.3f | %s | %s | %.2f |\n", connections, e.title(), count(int64(e.rate())), e.database(),
			count(int64(of(e.trial, wal))), count(int64(of(e.fresh, wal))), median(e.dirtied))
	}
	b.WriteString("\n*Without the ledger*: the service on a database whose trigger was disabled and whose proof was emptied behind its back. " +
		"After a checkpoint the first change to each page is logged with the whole page; " +
		"how many pages have to be written is what that checkpoint's successor finds changed, over the deletions until then.\n\n")
}
