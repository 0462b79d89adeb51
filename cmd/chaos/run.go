package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"plantstore/cmd/internal/programs"
	"plantstore/cmd/internal/witness"
)

// A config has the flags of a run.
type config struct {
	duration time.Duration
	seed     uint64
	faults   string        // names of kinds with commas between, or "all"
	every    time.Duration // how often each kind of fault comes, at most
	clients  int
	players  int           // of scenarios, besides the clients
	late     bool          // clients send late retries
	timeout  time.Duration // of a request; zero: another one at each start
	race     bool          // build the service with the race detector
	sabotage string        // one of programs.Sabotages; empty: none
	log      io.Writer     // for what the service and the servers log; may be nil
}

const (
	principal    = "chaos" // the name of the clients' token
	perSecond    = 500     // deletions at most, of all clients together
	bystanders   = 1000    // plants that nobody asks for, with the negative ids
	keylessEvery = 4       // one client in so many sends no key
	// overtime is how much longer a run may take, on a busy machine, where a kind of fault
	// has not happened yet.
	overtime = 3 * time.Minute
	// endTimeout limits what comes after the last fault. A server that crashed syncs all of
	// its files first, which takes minutes on a busy disk.
	endTimeout = 5 * time.Minute
)

// run breaks a new cluster for a while, under load, and reports the result. The end of ctx
// ends the faults early. An error means that there is no result. Nothing is left behind.
func run(ctx context.Context, c config) (_ *report, err error) {
	kinds, err := programs.Named("fault", kinds(), c.faults, func(k kind) string { return k.name })
	if err != nil {
		return nil, err
	}
	service, err := build(ctx, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, service.close()) }()
	cluster, err := startCluster(ctx, c.log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cluster.close()) }()
	owner := func() string { return cluster.url(owner) }
	// As many as the pace allows, so that some are left in the end.
	plants := perSecond*int64((c.duration+overtime)/time.Second+2) + int64(c.clients+c.players)
	token, err := witness.Stock(ctx, owner(), principal, -bystanders, plants)
	if err != nil {
		return nil, err
	}
	for _, sql := range []string{ // each within the limit of Execute
		`CREATE TABLE public.chaos_orders (plant_id bigint PRIMARY KEY REFERENCES public.plants)`,
		`CREATE TABLE public.chaos_pictures AS SELECT id AS plant_id FROM public.plants`,
		`ALTER TABLE public.chaos_pictures ADD PRIMARY KEY (plant_id)`,
		`ALTER TABLE public.chaos_pictures ADD FOREIGN KEY (plant_id) REFERENCES public.plants ON DELETE CASCADE`,
		`SELECT plantstore.watch('public.chaos_pictures')`,
	} {
		if err := witness.Execute(ctx, owner(), sql); err != nil {
			return nil, err
		}
	}
	service.databaseURL = cluster.proxied()
	if err := service.start(ctx, rand.New(rand.NewPCG(c.seed, uint64(lanes)))); err != nil {
		return nil, err
	}
	if err := service.untilReady(ctx); err != nil {
		return nil, err
	}

	crowd := &witness.Crowd{
		Address: service.address, Token: token, Patient: longestTimeout + slack,
		Began: time.Now(), Pace: rate.NewLimiter(perSecond, perSecond),
		Last: plants, Keyless: keylessEvery, Late: c.late, Owner: owner,
	}
	e, err := storm(ctx, c, crowd, &injector{config: c, cluster: cluster, service: service, began: crowd.Began}, kinds)
	r := &report{events: e, kinds: kinds, took: time.Since(crowd.Began)}
	if err == nil {
		err = service.untilReady(context.WithoutCancel(ctx))
	}
	if err == nil {
		err = service.stop()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err == nil {
		r.state, err = witness.AtRest(ctx, cluster.url(super), endTimeout)
	}
	var lost []int64
	if err == nil {
		lost, err = witness.Value[[]int64](ctx, cluster.url(super), lostPictures)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; the service logged last: %s", err, service.Log)
	}
	r.violations = check(e, r.state, -bystanders, plants)
	for _, id := range lost {
		r.violations = append(r.violations, witness.Violation{Rule: "i", Plant: id, Text: "its picture is neither there nor in the ledger, or is there more than once"})
	}
	return r, nil
}

// lostPictures returns the plants whose picture is neither there nor in the ledger with a
// deletion that is not undone, or is more than once. In the beginning each has one.
const lostPictures = `
	SELECT coalesce(array_agg(plant_id), '{}') FROM (
		SELECT plant_id FROM (
			SELECT plant_id, 1 AS n FROM public.chaos_pictures
			UNION ALL SELECT d.plant_id, 1 FROM plantstore.cascaded c JOIN plantstore.deletions d ON d.id = c.deletion_id WHERE d.restored_at IS NULL
			UNION ALL SELECT id, 0 FROM public.plants
			UNION ALL SELECT plant_id, 0 FROM plantstore.deletions WHERE refused IS NULL
		) p GROUP BY plant_id HAVING sum(n) <> 1
	) lost`

// storm runs clients and faults, and returns when the faults are over and every deletion has a
// final answer.
func storm(ctx context.Context, c config, crowd *witness.Crowd, in *injector, kinds []kind) (e events, err error) {
	asking, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	group, ctx := errgroup.WithContext(ctx)
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	var faults errgroup.Group
	for lane := range lanes {
		mine := slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return k.lane != lane })
		if len(mine) > 0 {
			faults.Go(func() error { return in.run(ctx, mine, rand.New(rand.NewPCG(c.seed, uint64(lane)))) })
		}
	}
	group.Go(func() error {
		err := faults.Wait()
		stop()
		time.AfterFunc(endTimeout, giveUp)
		return err
	})
	group.Go(func() (err error) {
		e.history, err = crowd.Delete(ctx, asking, c.clients)
		return err
	})
	players := make([]*player, c.players)
	for i := range players {
		players[i] = newPlayer(crowd, rand.New(rand.NewPCG(c.seed, uint64(lanes)+1+uint64(i))))
		group.Go(func() error { return players[i].run(ctx, asking) })
	}
	err = group.Wait()
	e.faults = in.faults
	for _, player := range players {
		e.scenarios = append(e.scenarios, player.scenarios...)
	}
	return e, err
}
