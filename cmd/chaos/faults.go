package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"plantstore/cmd/internal/programs"
	"plantstore/cmd/internal/witness"
	"plantstore/internal/localpg"
)

// A kind is a kind of fault.
type kind struct {
	name, what string
	lane       lane
	strike     strike
}

// A strike makes a fault happen and returns when it is over. It reports false when there was
// nothing to hit.
type strike func(context.Context, *injector, *rand.Rand) (bool, error)

// A lane is a sequence of faults. Faults of different lanes happen at the same time.
type lane int

const (
	servers lane = iota
	network      // between the service and the database
	program      // the service itself
	lanes        // how many there are
)

// triggerOff is the only kind of fault during which 50304 is a right answer.
const triggerOff = "trigger-off"

// kinds returns all kinds of faults.
func kinds() []kind {
	return []kind{
		{"pg-kill", "kill -9 of Postgres, and start", servers, restart(localpg.Kill)},
		{"pg-fast", "fast restart of Postgres", servers, restart(localpg.Fast)},
		{"promotion", "standby promoted, old primary fenced and built again", servers, promotion},
		{"cancel-wait", "standby stopped, waits for it cancelled, and then promoted", servers, cancelledWaits},
		{"freeze", "the service's backends stopped for 0.3 to 2.5 s", servers, freeze},
		{"terminate", "the service's backends terminated", network, termination},
		{"cut-answers", "connections cut after N bytes of answers", network, cutting(answers, 400)},
		{"cut-requests", "connections cut after N bytes of requests", network, cutting(requests, 600)},
		{"black-hole", "nothing arrives for 0.25 to 1.5 s, then all of it", network, blackHole},
		{"late-bytes", "requests held back, also after their sender gave up, for 0.3 to 2.5 s", network, lateBytes},
		{triggerOff, "the ledger's trigger disabled for 0.1 to 0.4 s", network, disabledTrigger},
		{"service-kill", "kill -9 of the service, and start", program, restartService((*service).kill)},
		{"service-term", "SIGTERM of the service, and start", program, restartService((*service).stop)},
	}
}

// An injector breaks things.
type injector struct {
	config
	cluster *cluster
	service *service
	began   time.Time

	mu     sync.Mutex
	faults []fault
}

// A fault is one that happened during the run.
type fault struct {
	kind string
	witness.Span
}

// strikeTimeout limits one fault. None takes that long.
const strikeTimeout = 3 * time.Minute

// run makes faults of one lane's kinds happen until the run's duration is over and each of them
// has happened. The end of ctx ends it early. It returns when the last fault is over and
// everything runs. All kinds happen equally often, in random order. After a fault the lane
// rests for half of the fault's time, so that requests also succeed.
func (in *injector) run(ctx context.Context, kinds []kind, random *rand.Rand) error {
	turn := in.every / time.Duration(len(kinds))
	var rest time.Duration
	for end := in.duration + overtime; ; end = in.duration { // after the first round each has happened
		for _, i := range random.Perm(len(kinds)) {
			for struck := false; !struck; {
				if !programs.Sleep(ctx, max(below(random, turn), rest)) || time.Since(in.began) > end {
					return nil
				}
				start := time.Now()
				var err error
				if struck, err = in.strike(ctx, kinds[i], random); err != nil {
					return fmt.Errorf("%s: %w", kinds[i].name, err)
				}
				rest = time.Since(start) / 2
			}
		}
	}
}

func (in *injector) strike(ctx context.Context, k kind, random *rand.Rand) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), strikeTimeout)
	defer cancel()
	start := time.Since(in.began)
	struck, err := k.strike(ctx, in, random)
	if struck {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.faults = append(in.faults, fault{k.name, witness.Span{Start: start, End: time.Since(in.began)}})
	}
	return struck, err
}

func restart(mode localpg.Mode) strike {
	return func(ctx context.Context, in *injector, _ *rand.Rand) (bool, error) {
		return true, in.cluster.restart(ctx, mode)
	}
}

func promotion(ctx context.Context, in *injector, random *rand.Rand) (bool, error) {
	return true, in.cluster.failover(ctx, random.IntN(2) == 0)
}

func termination(ctx context.Context, in *injector, _ *rand.Rand) (bool, error) {
	n, err := witness.Terminate(ctx, in.cluster.url(super))
	return err == nil && n > 0, nil // no connection: another fault was there first
}

// cutting cuts the connections to the primary, each at a random place within its next most
// bytes. It ends soon after the first cut.
func cutting(d direction, most int64) strike {
	return func(ctx context.Context, in *injector, random *rand.Rand) (bool, error) {
		p := in.cluster.atPrimary().proxy
		before := p.cuts.Load()
		defer p.cutAfter(d, func() int64 { return random.Int64N(most) })()
		for start := time.Now(); p.cuts.Load() == before; programs.Sleep(ctx, time.Millisecond) {
			if time.Since(start) > 2*time.Second {
				return false, nil
			}
		}
		programs.Sleep(ctx, 30*time.Millisecond)
		return true, nil
	}
}

// blackHole makes the primary silent or, as often, the whole database.
func blackHole(ctx context.Context, in *injector, random *rand.Rand) (bool, error) {
	proxies := []*proxy{in.cluster.atPrimary().proxy}
	if random.IntN(2) == 0 {
		proxies = []*proxy{in.cluster.nodes[0].proxy, in.cluster.nodes[1].proxy}
	}
	for _, p := range proxies {
		defer p.blackHole()()
	}
	programs.Sleep(ctx, 250*time.Millisecond+below(random, 1250*time.Millisecond))
	return true, nil
}

// lateBytes holds back the bytes to the primary on the connections that are open now. New
// connections work.
func lateBytes(ctx context.Context, in *injector, random *rand.Rand) (bool, error) {
	release := in.cluster.atPrimary().proxy.hold()
	programs.Sleep(ctx, heldBack(random))
	return release() > 0, nil
}

// heldBack returns how long to hold an attempt back: mostly longer than the service waits
// for its first one.
func heldBack(random *rand.Rand) time.Duration {
	return 300*time.Millisecond + below(random, 2200*time.Millisecond)
}

// freeze stops the service's backends at the primary, as on a machine that is short of memory.
// Then they go on.
func freeze(ctx context.Context, in *injector, random *rand.Rand) (bool, error) {
	pids, err := witness.Value[[]int](ctx, in.cluster.url(super), `SELECT array(SELECT pid `+witness.Sessions+`)`)
	if err != nil {
		return false, err
	}
	frozen := 0
	for _, pid := range pids {
		if syscall.Kill(pid, syscall.SIGSTOP) == nil {
			frozen++
			defer syscall.Kill(pid, syscall.SIGCONT) // it may have been killed
		}
	}
	programs.Sleep(ctx, heldBack(random))
	return frozen > 0, nil
}

// disabledTrigger lets plants leave without a record, if the service lets them.
func disabledTrigger(ctx context.Context, in *injector, random *rand.Rand) (bool, error) {
	if err := in.cluster.trigger(ctx, "DISABLE"); err != nil {
		return false, err
	}
	programs.Sleep(ctx, 100*time.Millisecond+below(random, 300*time.Millisecond))
	return true, in.cluster.trigger(ctx, "ENABLE")
}

// cancelledWaits cancels commits' waits for replication, and loses these commits.
func cancelledWaits(ctx context.Context, in *injector, random *rand.Rand) (bool, error) {
	return in.cluster.loseUnreplicated(ctx, 200*time.Millisecond+below(random, 300*time.Millisecond))
}

func restartService(end func(*service) error) strike {
	return func(ctx context.Context, in *injector, random *rand.Rand) (bool, error) {
		if err := end(in.service); err != nil {
			return false, err
		}
		return true, in.service.start(ctx, random)
	}
}

// below returns a random duration from 0 to d.
func below(random *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(d)))
}
