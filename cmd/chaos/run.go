package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"plantstore/cmd/internal/programs"
	"plantstore/internal/localpg"
	"plantstore/internal/postgres"

	"plantstore/cmd/internal/witness"
)

// A config says what a run is like.
type config struct {
	duration time.Duration
	seed     uint64
	faults   string        // see chosen
	every    time.Duration // how often each kind of fault comes
	clients  int
	tellers  int       // of tales, besides the clients
	rate     int       // deletions a second at most, of all clients together
	late     bool      // follow some deletions by a late retry, see client.run
	binary   string    // the service; empty: built from this tree
	race     bool      // build it with the race detector
	sabotage string    // build it with one of programs.Sabotages; empty: as it is
	log      io.Writer // for what the service and the servers log; may be nil
}

const (
	// principal is the name of the clients' token.
	principal = "chaos"
	// bystanders is how many plants nobody asks for, besides those that are left
	// over. Theirs are the negative ids.
	bystanders = 1000
	// keylessEvery is how many clients there are for one that sends no key.
	keylessEvery = 4
	// overtime is how much longer a run may go on where a kind of fault has not
	// happened yet, on a machine that is busy with other things.
	overtime = 3 * time.Minute
	// endTimeout bounds the time that clients need to settle what they began,
	// once the last fault is over, and everything after that. (A server that crashed
	// syncs all of its files first, which takes minutes on a disk that is busy.)
	endTimeout = 5 * time.Minute
)

// run breaks a cluster for a while, under load, and reports what came of it. The
// end of ctx ends the faults early; what was done until then is checked.
//
// An error means that there is no result. The cluster is the caller's to close;
// nothing else is left.
func run(ctx context.Context, c config, cluster *cluster) (_ *report, err error) {
	kinds, err := chosen(c.faults, cluster.ours())
	if err != nil {
		return nil, err
	}
	// As many as the pace allows, so that there are always some left.
	plants := int64(c.rate)*int64((c.duration+overtime)/time.Second+2) + int64(c.clients+c.tellers)
	token, err := stock(ctx, cluster.direct().owner, plants)
	if err != nil {
		return nil, err
	}
	url, err := cluster.proxied()
	if err != nil {
		return nil, err
	}
	service, err := launch(ctx, c, url)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, service.close()) }()

	crowd := &witness.Crowd{
		Address: service.address, Token: token,
		Patient: longestTimeout + slack,
		Began:   time.Now(),
		Pace:    rate.NewLimiter(rate.Limit(c.rate), c.rate),
		Last:    plants,
		Late:    c.late,
		Owner:   func() string { return cluster.direct().owner },
	}
	injector := &injector{cluster: cluster, service: service, began: crowd.Began, every: c.every}
	clients, tellers, err := storm(ctx, c, crowd, injector, kinds)
	took := time.Since(crowd.Began)
	var state witness.State
	if err == nil {
		state, err = rest(ctx, service, cluster)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; the service's last words: %s", err, service.log)
	}
	happened := events{principal: principal, faults: injector.faults}
	for _, client := range clients {
		happened.history = append(happened.history, client.History...)
	}
	for _, teller := range tellers {
		happened.tales = append(happened.tales, teller.tales...)
	}
	slices.SortFunc(happened.history, func(a, b witness.Deletion) int { return int(a.Plant - b.Plant) })
	return &report{
		config: c, took: took, kinds: kinds, events: happened, state: state,
		violations: check(happened, state, -bystanders, plants),
	}, nil
}

// launch starts the service, built first unless there is a binary, and returns
// it when it is ready. The caller has to close it.
func launch(ctx context.Context, c config, databaseURL string) (_ *service, err error) {
	folder, err := os.MkdirTemp("", "chaos-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the service: %w", err)
	}
	s := &service{folder: folder, program: c.binary, log: &localpg.Tail{W: c.log}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.program == "" {
		spec := programs.Spec{Package: "cmd/plantstore", Race: c.race, Sabotage: c.sabotage}
		if s.program, err = programs.Build(ctx, folder, spec); err != nil {
			return nil, err
		}
	}
	if err := s.configure(databaseURL); err != nil {
		return nil, err
	}
	if err := s.start(ctx, rand.New(rand.NewPCG(c.seed, uint64(lanes)))); err != nil {
		return nil, err
	}
	if err := untilReady(ctx, s); err != nil {
		return nil, err
	}
	return s, nil
}

// stock puts plants into the store, and a few that nobody will ask for, with a table
// that can refer to them, and returns a token for deleting them.
func stock(ctx context.Context, owner string, plants int64) (token string, err error) {
	token, err = witness.Stock(ctx, owner, principal, -bystanders, plants)
	if err != nil {
		return "", err
	}
	return token, postgres.Script(ctx, owner, `CREATE TABLE public.chaos_orders (plant_id bigint PRIMARY KEY REFERENCES public.plants)`)
}

// storm runs clients and faults for the duration, and returns the clients when
// the faults are over and every deletion is settled.
func storm(ctx context.Context, c config, crowd *witness.Crowd, injector *injector, kinds []kind) ([]*witness.Client, []*teller, error) {
	asking, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	ctx, cancel := context.WithTimeout(ctx, c.duration+overtime)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for going := sleep(ctx, c.duration); going && !injector.struckAll(kinds); {
			going = sleep(ctx, 10*time.Millisecond)
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
		client := crowd.Client(i%keylessEvery != keylessEvery-1)
		clients[i] = client
		group.Go(func() error { return client.Run(ctx, asking) })
	}
	tellers := make([]*teller, c.tellers)
	for i := range tellers {
		teller := newTeller(crowd, rand.New(rand.NewPCG(c.seed, uint64(lanes)+1+uint64(i))))
		tellers[i] = teller
		group.Go(func() error { return teller.run(ctx, asking) })
	}
	return clients, tellers, group.Wait()
}

// rest brings service and database to rest when the storm is over, and returns
// what the database holds then.
func rest(ctx context.Context, service *service, cluster *cluster) (witness.State, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err := untilReady(ctx, service); err != nil {
		return witness.State{}, err
	}
	if err := service.stop(); err != nil {
		return witness.State{}, err
	}
	// When the last session of the service has ended, nothing changes any more.
	if err := cluster.quiesce(ctx); err != nil {
		return witness.State{}, err
	}
	return witness.ReadState(ctx, cluster.direct().super)
}

// untilReady returns when the service says that it is ready.
func untilReady(ctx context.Context, s *service) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	for {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		if !sleep(ctx, 10*time.Millisecond) {
			return errors.Join(errors.New("the service does not become ready"), err)
		}
	}
}
