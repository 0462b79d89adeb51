package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"plantstore/cmd/internal/witness"
)

// A config says what a run is like.
type config struct {
	duration time.Duration
	seed     uint64
	faults   string        // see chosen
	every    time.Duration // how often each kind of fault comes
	clients  int
	players  int // of scenarios, besides the clients
	rate     int // deletions a second at most, of all clients together
	late     bool
	timeout  time.Duration // of a request; zero: another one at each start
	race     bool          // build the service with the race detector
	sabotage string        // one of programs.Sabotages; empty: none
	log      io.Writer     // for what the service and the servers log; may be nil
}

const (
	principal    = "chaos" // the name of the clients' token
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
	kinds, err := chosen(c.faults)
	if err != nil {
		return nil, err
	}
	cluster, err := startCluster(ctx, c.log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cluster.close()) }()
	owner := func() string { return cluster.url(owner) }
	// As many as the pace allows, so that some are left in the end.
	plants := int64(c.rate)*int64((c.duration+overtime)/time.Second+2) + int64(c.clients+c.players)
	token, err := witness.Stock(ctx, owner(), principal, -bystanders, plants)
	if err != nil {
		return nil, err
	}
	if err := witness.Execute(ctx, owner(), `
		CREATE TABLE public.chaos_orders (plant_id bigint PRIMARY KEY REFERENCES public.plants);
		CREATE TABLE public.chaos_pictures (plant_id bigint PRIMARY KEY REFERENCES public.plants ON DELETE CASCADE);
		INSERT INTO public.chaos_pictures SELECT id FROM public.plants;
		SELECT plantstore.watch('public.chaos_pictures')`); err != nil {
		return nil, err
	}
	service, err := launch(ctx, c, cluster.proxied())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, service.close()) }()

	crowd := &witness.Crowd{
		Address: service.address, Token: token, Patient: longestTimeout + slack,
		Began: time.Now(), Pace: rate.NewLimiter(rate.Limit(c.rate), c.rate),
		Last: plants, Late: c.late, Owner: owner,
	}
	injector := &injector{cluster: cluster, service: service, began: crowd.Began, every: c.every}
	happened, err := storm(ctx, c, crowd, injector, kinds)
	took := time.Since(crowd.Began)
	var state witness.State
	if err == nil {
		state, err = rest(ctx, service, cluster)
	}
	var lost []int64
	if err == nil {
		lost, err = witness.Value[[]int64](ctx, cluster.url(super), lostPictures)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; the service logged last: %s", err, service.log)
	}
	return &report{
		config: c, took: took, kinds: kinds, events: happened, state: state,
		violations: append(check(happened, state, -bystanders, plants), pictures(lost)...),
	}, nil
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

// pictures returns the violations of rule i.
func pictures(lost []int64) (found []witness.Violation) {
	for _, id := range lost {
		found = append(found, witness.Violation{Rule: "i", Plant: id, Text: "its picture is neither there nor in the ledger, or is there more than once"})
	}
	return found
}

// storm runs clients and faults for the duration, and returns when the faults are over and
// every deletion has a final answer.
func storm(ctx context.Context, c config, crowd *witness.Crowd, injector *injector, kinds []kind) (e events, err error) {
	asking, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	ctx, cancel := context.WithTimeout(ctx, c.duration+overtime)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for going := witness.Sleep(ctx, c.duration); going && !injector.struckAll(kinds); {
			going = witness.Sleep(ctx, 10*time.Millisecond)
		}
		cancel()
		return nil
	})

	var faults sync.WaitGroup
	for lane := range lanes {
		mine := slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return k.lane != lane })
		if len(mine) > 0 {
			random := rand.New(rand.NewPCG(c.seed, uint64(lane)))
			faults.Add(1)
			group.Go(func() error {
				defer faults.Done()
				return injector.run(ctx, mine, random)
			})
		}
	}
	group.Go(func() error {
		<-ctx.Done()
		faults.Wait()
		time.AfterFunc(endTimeout, giveUp)
		return nil
	})
	clients := make([]*witness.Client, c.clients)
	for i := range clients {
		clients[i] = crowd.Client(i%keylessEvery != keylessEvery-1)
		group.Go(func() error { return clients[i].Run(ctx, asking) })
	}
	players := make([]*player, c.players)
	for i := range players {
		players[i] = newPlayer(crowd, rand.New(rand.NewPCG(c.seed, uint64(lanes)+1+uint64(i))))
		group.Go(func() error { return players[i].run(ctx, asking) })
	}
	err = group.Wait()

	e.faults = injector.faults
	for _, client := range clients {
		e.history = append(e.history, client.History...)
	}
	for _, player := range players {
		e.scenarios = append(e.scenarios, player.scenarios...)
	}
	slices.SortFunc(e.history, func(a, b witness.Deletion) int { return int(a.Plant - b.Plant) })
	return e, err
}

// rest brings service and database to rest after the storm, and returns what the database
// holds then.
func rest(ctx context.Context, service *service, cluster *cluster) (s witness.State, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err := service.untilReady(ctx); err != nil {
		return s, err
	}
	if err := service.stop(); err != nil {
		return s, err
	}
	// Once the last session of the service has ended, nothing changes any more.
	for {
		n, err := witness.Value[int](ctx, cluster.url(super), `SELECT count(*) `+sessions)
		if err != nil {
			return s, err
		}
		if n == 0 {
			return witness.ReadState(ctx, cluster.url(super))
		}
		if !witness.Sleep(ctx, 20*time.Millisecond) {
			return s, fmt.Errorf("%d sessions of the service did not end", n)
		}
	}
}
