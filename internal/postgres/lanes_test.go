package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/plant"
)

// A farDatabase is simulated: it has one processor for us, which its backends share, and a disk
// that takes its time for a commit.
type farDatabase struct {
	distance, disk time.Duration
	processor      chan struct{}
	// queue: a backend has the processor to itself, and notices its transaction only
	// when it gets it.
	queue bool
	// With shared, who commits waits for the write to the disk that is under way, and
	// makes one only if none is. It ends at flushed.
	shared  bool
	mu      sync.Mutex
	flushed time.Time
}

// work keeps the processor busy, and lets others have it now and then.
func (s *farDatabase) work(d time.Duration) {
	const slice = 50 * time.Microsecond
	for ; d > 0; d -= slice {
		s.processor <- struct{}{}
		time.Sleep(min(d, slice))
		<-s.processor
	}
}

// commit waits for the disk.
func (s *farDatabase) commit() {
	if !s.shared {
		time.Sleep(s.disk)
		return
	}
	s.mu.Lock()
	if now := time.Now(); !now.Before(s.flushed) {
		s.flushed = now.Add(s.disk)
	}
	end := s.flushed
	s.mu.Unlock()
	time.Sleep(time.Until(end))
}

// What a batch costs the database: as measured on a table of three columns.
const (
	eachBatch  = 300 * time.Microsecond
	eachMember = 20 * time.Microsecond
	eachCommit = 50 * time.Microsecond
)

// group returns a group whose batches go to the simulated database. With fixed lanes
// it learns nothing.
func (s *farDatabase) group(most, fixed int) *group {
	g := &group{db: &DB{shares: newShares(defaultConns)}, lanes: lanes{most: most}}
	if fixed > 0 {
		g.lanes = lanes{most: fixed, work: 1, overhead: time.Hour}
	}
	g.run = func(_ context.Context, most int) {
		batch := g.take(most)
		began := time.Now()
		time.Sleep(s.distance / 2)
		work := eachBatch + time.Duration(len(batch))*eachMember
		if s.queue {
			s.processor <- struct{}{}
			time.Sleep(work + eachCommit)
			<-s.processor
		} else {
			arrived := time.Now()
			s.work(work)
			work = time.Since(arrived)
			s.work(eachCommit)
		}
		worked := time.Now()
		s.commit()
		if fixed == 0 && g.commitSamples.Add(1)%sampleEvery == 1 {
			g.mu.Lock()
			g.lanes.committed(time.Since(worked))
			g.mu.Unlock()
		}
		time.Sleep(s.distance / 2)
		if fixed == 0 {
			g.took(time.Since(began), work)
		}
		tell(batch, verdict{})
	}
	return g
}

// rates has clients delete one plant after the other until the last of the moments,
// and returns how many they deleted a second before each moment since the one before.
func rates(g *group, clients int, moments ...time.Duration) (rates []float64) {
	const client = 50 * time.Microsecond // what it needs between an answer and its next request, on average
	counts := make([]int, len(moments))
	start := time.Now()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for n := range clients {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(n)))
			for i := 0; i < len(moments); {
				g.join(context.Background(), plant.Deletion{})
				time.Sleep(time.Duration(random.ExpFloat64() * float64(client)))
				for i < len(moments) && time.Since(start) >= moments[i] {
					i++
				}
				if i < len(moments) {
					mu.Lock()
					counts[i]++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	last := time.Duration(0)
	for i, moment := range moments {
		rates = append(rates, float64(counts[i])/(moment-last).Seconds())
		last = moment
	}
	return rates
}

// moments are n points of time, so far from each other.
func moments(n int, apart time.Duration) (all []time.Duration) {
	for i := range n {
		all = append(all, time.Duration(i+1)*apart)
	}
	return all
}

// At whatever distance the database is, and however many ask: the number of lanes
// settles, and gives nearly what the best number would that is known beforehand.
func TestLanesFollowTheRoad(t *testing.T) {
	t.Parallel()
	const most = 13
	for _, test := range []struct {
		distance, disk time.Duration
		clients        int
		atLeast        float64 // of the best; more than 1 where it gains that lanes do not start together
		shared         bool
	}{
		{100 * time.Microsecond, 80 * time.Microsecond, 1, 0.99, false},
		{100 * time.Microsecond, 80 * time.Microsecond, 8, 0.75, false},
		{100 * time.Microsecond, 80 * time.Microsecond, 128, 0.95, false},
		{100 * time.Microsecond, 2 * time.Millisecond, 8, 0.9, false},
		{100 * time.Microsecond, 2 * time.Millisecond, 128, 0.65, false},
		{time.Millisecond, 80 * time.Microsecond, 8, 0.85, false},
		{time.Millisecond, 80 * time.Microsecond, 32, 0.75, false},
		{time.Millisecond, 80 * time.Microsecond, 128, 0.85, false},
		{5 * time.Millisecond, 80 * time.Microsecond, 8, 0.95, false},
		{5 * time.Millisecond, 80 * time.Microsecond, 32, 0.9, false},
		{5 * time.Millisecond, 80 * time.Microsecond, 128, 0.75, false},
		{30 * time.Millisecond, 80 * time.Microsecond, 32, 0.85, false},
		{100 * time.Microsecond, 2 * time.Millisecond, 8, 1.6, true},
		{100 * time.Microsecond, 2 * time.Millisecond, 32, 1.8, true},
		{100 * time.Microsecond, 2 * time.Millisecond, 128, 1.05, true},
	} {
		t.Run(fmt.Sprint(test.distance, " ", test.disk, " ", test.clients, " ", test.shared), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db := farDatabase{distance: test.distance, disk: test.disk, processor: make(chan struct{}, 1), shared: test.shared}
				apart := max(100*time.Millisecond, 10*test.distance)
				best, lanes := 0.0, 0
				for _, n := range []int{1, 2, 4, 8, most} {
					if rate := rates(db.group(most, n), test.clients, moments(2, 2*apart)...)[1]; rate > best {
						best, lanes = rate, n
					}
				}
				g := db.group(most, 0)
				slices := rates(g, test.clients, moments(8, apart)...)[3:]
				g.mu.Lock() // a lane may not have ended
				t.Logf("%.0f a second, overhead %v work %v, best %.0f with %d lanes, %d wanted", slices, g.lanes.overhead, g.lanes.work, best, lanes, g.lanes.wanted())
				g.mu.Unlock()
				sum := 0.0
				for i, rate := range slices {
					sum += rate
					if rate < 0.8*test.atLeast*best {
						t.Errorf("slice %d: %.0f deletions a second, want %.2f of %.0f", i, rate, 0.8*test.atLeast, best)
					}
				}
				if mean := sum / float64(len(slices)); mean < test.atLeast*best {
					t.Errorf("%.0f deletions a second, want %.2f of the %.0f that %d lanes give", mean, test.atLeast, best, lanes)
				}
			})
		})
	}
}

// The distance may change while the service runs: a failover to another region and back.
func TestLanesFollowARoadThatChanges(t *testing.T) {
	t.Parallel()
	for _, clients := range []int{8, 32} {
		t.Run(fmt.Sprint(clients), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				settled := func(distance time.Duration) float64 {
					db := farDatabase{distance: distance, processor: make(chan struct{}, 1)}
					return rates(db.group(13, 0), clients, time.Second, 2*time.Second)[1]
				}
				db := farDatabase{processor: make(chan struct{}, 1)}
				g := db.group(13, 0)
				for i, distance := range []time.Duration{time.Millisecond, 6 * time.Millisecond, 0, 30 * time.Millisecond} {
					db.distance = distance
					// That it is longer has to be found by batches that go alone.
					got, want := rates(g, clients, 8*time.Second, 9*time.Second)[1], settled(distance)
					if got < 0.85*want {
						t.Errorf("distance %d, %v: %.0f deletions a second after eight seconds, want the %.0f that a new group reaches", i, distance, got, want)
					}
				}
			})
		})
	}
}

// Where the database can't keep up, batches wait for the processor. They must not take
// that for a longer overhead: more lanes would make them wait longer, up to all there are.
func TestLanesDoNotFollowAQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := farDatabase{distance: time.Millisecond, processor: make(chan struct{}, 1), queue: true}
		g := db.group(13, 0)
		rates(g, 512, 3*time.Second)
		g.mu.Lock() // a lane may not have ended
		defer g.mu.Unlock()
		if got := g.lanes.wanted(); got > 3 {
			t.Errorf("%d lanes for a database that is busy with each batch for %v of the %v that it takes, want at most 3", got, g.lanes.work, g.lanes.work+time.Millisecond)
		}
	})
}

// Clients who come back together, as their batches waited for the same write to the disk,
// must not have all lanes at once, each alone in one: whoever comes next would wait for a
// whole trip.
func TestLanesStartOneAfterTheOther(t *testing.T) {
	t.Parallel()
	const trip, tenth = 4 * time.Millisecond, 100 * time.Microsecond
	for _, tt := range []struct {
		name string
		work time.Duration
		most int
		want []int // tenths of a millisecond at which somebody who always asks gets a lane
	}{
		{"a third of a trip apart", 1400 * time.Microsecond, 13, []int{0, 14, 28}},
		{"as many as there are connections", 1400 * time.Microsecond, 2, []int{0, 14}},
		{"no overhead", trip, 13, []int{0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := lanes{most: tt.most, work: tt.work, overhead: trip - tt.work}
				var got []int
				for i := range int(trip / tenth) {
					if _, opened := l.enter(time.Now()); opened {
						got = append(got, i)
					}
					time.Sleep(tenth)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("lanes opened at these tenths of a millisecond (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A batch that something delayed does not make the overhead longer, and one that was quick by
// chance does not make it shorter.
func TestLanesForgetADelay(t *testing.T) {
	t.Parallel()
	const usual, work = 1500 * time.Microsecond, 250 * time.Microsecond
	l := lanes{most: 13}
	alone := func(trip time.Duration) {
		due, _ := l.enter(time.Now())
		l.note(trip, work)
		l.leave(due)
	}
	crowded := func(trip time.Duration) {
		l.unshared = false
		l.note(trip, work)
	}
	const want = 5
	for range len(l.last) {
		alone(usual + work)
	}
	crowded(work)
	if got := l.wanted(); got != want {
		t.Errorf("%d lanes after a batch that found its commit done, want %d", got, want)
	}
	l.crowded = mostCrowded
	alone(50 * time.Millisecond)
	crowded(usual + work)
	if got := l.wanted(); got != want {
		t.Errorf("%d lanes after a batch that took 50 ms and one that took 2 as usual, want %d", got, want)
	}
	l.crowded = mostCrowded
	alone(work)
	if got := l.wanted(); got != 1 {
		t.Errorf("%d lanes where the overhead is gone, want 1", got)
	}
}

// Another service's batches are waited for, too, by those that go alone as well. That is no
// overhead: some batches meet none of them.
func TestLanesDoNotFollowAnotherService(t *testing.T) {
	t.Parallel()
	const work = 500 * time.Microsecond
	l := lanes{most: 13}
	batch := func(unshared bool, overhead time.Duration) {
		due, _ := l.enter(time.Now())
		l.unshared = unshared
		l.note(overhead+work, work)
		l.leave(due)
	}
	for range 2 {
		l.crowded = mostCrowded
		for i := range 4 * len(l.last) {
			overhead := 10 * time.Millisecond
			if i%7 == 6 {
				overhead = localOverhead
			}
			batch(i == 0, overhead)
		}
		if got := l.wanted(); got != 1 {
			t.Errorf("%d lanes where one batch in seven shows that the overhead is short, want 1", got)
		}
	}
	for range 2 * len(l.last) {
		batch(false, 10*time.Millisecond)
	}
	l.crowded = mostCrowded
	batch(true, 10*time.Millisecond)
	if got, want := l.wanted(), 20; got != want {
		t.Errorf("%d lanes after the overhead got long for all, want %d", got, want)
	}
}

// A deletion that is alone runs its batch itself, if it can wait for it. Otherwise the
// batch is made up of whoever waits once there is a connection.
func TestWhoRunsABatch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		time  time.Duration // of the request
		inUse int           // connections of the share
		ahead int           // pipelines with batches under way
		want  int           // the most that the batch may take
	}{
		{"alone", leastToGoAlone + time.Second, 1, 0, 1},
		{"short of time", leastToGoAlone, 1, 0, maxBatch},
		{"no connection is free", leastToGoAlone + time.Second, 2, 0, maxBatch},
		{"others may be ahead", leastToGoAlone + time.Second, 1, 1, maxBatch},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db := &DB{shares: newShares(LeastConns)}
				db.shares.inUse[together].Store(int64(tt.inUse))
				g := &group{db: db, what: together, lanes: lanes{most: 2}, pipelines: make([]*pipeline, tt.ahead)}
				got := 0
				var end time.Time
				g.run = func(ctx context.Context, most int) {
					got = most
					end, _ = ctx.Deadline()
					tell(g.take(most), verdict{})
				}
				ctx := in(t, tt.time)
				g.join(ctx, plant.Deletion{})
				synctest.Wait()
				want, _ := ctx.Deadline()
				if tt.want > 1 {
					want = time.Time{} // that of no request: it may be for others, too
				}
				if got != tt.want || !end.Equal(want) {
					t.Errorf("a batch of up to %d that waits for a connection until %v, want %d and %v", got, end, tt.want, want)
				}
			})
		})
	}
}

// A panic ends the request that met it, and neither its lane nor those who wait behind it.
func TestAPanicLeavesTheLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &group{db: &DB{shares: newShares(defaultConns)}, lanes: lanes{most: 1}}
		waits := make(chan bool)
		g.run = func(_ context.Context, most int) {
			batch := g.take(most)
			if most == 1 {
				<-waits
				panic("a bug of ours")
			}
			tell(batch, verdict{})
		}
		var clients sync.WaitGroup
		clients.Go(func() {
			defer func() {
				if recover() == nil {
					t.Error("the request that met the panic went on")
				}
			}()
			g.join(context.Background(), plant.Deletion{})
		})
		synctest.Wait()
		clients.Go(func() { g.join(context.Background(), plant.Deletion{}) })
		synctest.Wait()
		close(waits)
		clients.Wait()
		synctest.Wait()
		if len(g.lanes.open) != 0 {
			t.Errorf("%d lanes are open when all is done, want none", len(g.lanes.open))
		}
	})
}

// Whoever waits behind slow batches passes them, one lane after the other, as long as
// there are connections.
func TestSlowBatchesArePassed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &group{db: &DB{shares: newShares(defaultConns)}, lanes: lanes{most: 4}}
		began, end := make(chan time.Time), make(chan bool)
		g.run = func(context.Context, int) {
			batch := g.take(1)
			began <- time.Now()
			<-end
			tell(batch, verdict{})
		}
		var clients sync.WaitGroup
		start := time.Now()
		come := func(n int) {
			for range n {
				clients.Go(func() { g.join(context.Background(), plant.Deletion{}) })
			}
		}
		lane := func(want time.Duration) {
			t.Helper()
			if got := (<-began).Sub(start); got != want {
				t.Errorf("a lane opened after %v, want %v", got, want)
			}
		}
		come(1)
		lane(0)
		come(2) // one lane does not take both, and nobody else has to come
		lane(slowBatch)
		lane(2 * slowBatch)
		time.Sleep(slowBatch) // all are slow by now, and whoever comes need not wait
		come(1)
		lane(3 * slowBatch)
		close(end)
		clients.Wait()
		synctest.Wait()
		if len(g.lanes.open) != 0 {
			t.Errorf("%d lanes are open when all is done, want none", len(g.lanes.open))
		}
	})
}

// A lane that ends early makes room for the next one earlier than it was known when somebody
// came to wait for it. Whoever waits gets it then, also if nobody else comes.
func TestTheNextLaneMayBeOpenedEarlierThanItWasKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const work, overhead = 10 * time.Millisecond, 6 * time.Millisecond
		const apart = (work + overhead) / 2 // of the two that are wanted
		g := &group{db: &DB{shares: newShares(defaultConns)}, lanes: lanes{most: 12, work: work, overhead: overhead}}
		start := time.Now()
		ends := []time.Duration{apart + 2*time.Millisecond, 10 * time.Second, 10 * time.Second} // the second is stuck
		var mu sync.Mutex
		var began []time.Duration
		g.run = func(context.Context, int) {
			batch := g.take(maxBatch)
			mu.Lock()
			end := ends[len(began)]
			began = append(began, time.Since(start))
			mu.Unlock()
			time.Sleep(time.Until(start.Add(end)))
			tell(batch, verdict{})
		}
		var clients sync.WaitGroup
		for _, comes := range []time.Duration{0, apart, apart + time.Millisecond} {
			time.Sleep(time.Until(start.Add(comes)))
			clients.Go(func() { g.join(context.Background(), plant.Deletion{}) })
		}
		clients.Wait()
		synctest.Wait()
		if diff := cmp.Diff([]time.Duration{0, apart, 2 * apart}, began); diff != "" {
			t.Errorf("batches began (-want +got):\n%s", diff)
		}
	})
}

// The database's clock may be set forward during a batch, and the overhead long once: what
// waited for a lane that counts as slow long after does not keep later ones from being
// passed in time.
func TestALongBatchDoesNotHoldLaterOnesUp(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]struct{ trip, work time.Duration }{
		"the database's clock was set forward": {time.Millisecond, time.Hour},
		"the database was stuck":               {time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := &group{db: &DB{shares: newShares(defaultConns)}, lanes: lanes{most: 12}}
				g.took(first.trip, first.work)
				g.run = func(_ context.Context, most int) {
					batch := g.take(most)
					time.Sleep(time.Millisecond)
					g.took(time.Millisecond, 900*time.Microsecond)
					tell(batch, verdict{})
				}
				for range 2 { // the second waits for the first
					go g.join(context.Background(), plant.Deletion{})
					synctest.Wait()
				}
				for range 300 {
					g.join(context.Background(), plant.Deletion{})
				}
				synctest.Wait()
				stuck := make(chan bool)
				g.run = func(context.Context, int) {
					batch := g.take(1)
					<-stuck
					tell(batch, verdict{})
				}
				go g.join(context.Background(), plant.Deletion{})
				synctest.Wait()
				g.run = func(context.Context, int) { tell(g.take(maxBatch), verdict{}) }
				came := time.Now()
				g.join(context.Background(), plant.Deletion{})
				if took := time.Since(came); took > slowBatch {
					t.Errorf("a deletion passed one that is stuck after %v, want %v at most", took, slowBatch)
				}
				close(stuck)
				synctest.Wait()
			})
		})
	}
}

// A lane that is about to take all who wait is enough for them, while it gets a connection:
// to open each of the others', too, would cost the database that.
func TestWhoWaitsGetsOneLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const overhead = 30 * time.Millisecond
		g := &group{db: &DB{shares: newShares(defaultConns)}, lanes: lanes{most: 12, work: 200 * time.Microsecond, overhead: overhead}}
		var connections atomic.Int64
		g.run = func(_ context.Context, most int) {
			connections.Add(1)
			time.Sleep(overhead) // to connect, or to see whether a connection is alive
			batch := g.take(most)
			time.Sleep(overhead)
			tell(batch, verdict{})
		}
		var clients sync.WaitGroup
		const n = 3
		for range n {
			clients.Go(func() { g.join(context.Background(), plant.Deletion{}) })
			synctest.Wait() // at one time
		}
		clients.Wait()
		time.Sleep(time.Second) // until all lanes have ended
		if got := connections.Load(); got > n {
			t.Errorf("%d deletions took %d connections, want one for each at the most", n, got)
		}
	})
}

// A lone deletion sets no alarm: that would cost it a system call.
func TestALoneDeletionSetsNoAlarm(t *testing.T) {
	t.Parallel()
	for _, what := range []purpose{together, budgeted} {
		g := &group{db: &DB{shares: newShares(defaultConns)}, what: what, lanes: lanes{most: 2}}
		g.run = func(context.Context, int) { tell(g.take(maxBatch), verdict{}) }
		g.join(t.Context(), plant.Deletion{})
		if g.alarm != nil {
			t.Errorf("share %d: a lone deletion set an alarm, want none", what)
		}
	}
}

// What a batch takes changes. So a lane may count as slow before one that was opened
// earlier.
func TestWhenTheNextLaneMayBeOpened(t *testing.T) {
	t.Parallel()
	now := time.Now()
	after := func(ms ...int) (times []time.Time) {
		for _, n := range ms {
			times = append(times, now.Add(time.Duration(n)*time.Millisecond))
		}
		return times
	}
	// Three lanes are wanted, four milliseconds apart.
	const work, overhead = 4 * time.Millisecond, 8 * time.Millisecond
	for name, c := range map[string]struct {
		open []time.Time
		want time.Duration
	}{
		"none is open":                               {nil, 0},
		"all are slow":                               {after(-1, -2), 0},
		"one is not slow yet":                        {after(-1, 30), 4 * time.Millisecond},
		"all are slow before it is time":             {after(-1, 1, 2), 2 * time.Millisecond},
		"the first is slow last":                     {after(2, 1), 2 * time.Millisecond},
		"one is slow before it is time":              {after(30, 1), 4 * time.Millisecond},
		"as many as are wanted are open":             {after(30, 40, 50), 30 * time.Millisecond},
		"the one that was opened last is slow first": {after(30, 40, 20), 20 * time.Millisecond},
	} {
		l := lanes{open: c.open, started: now, work: work, overhead: overhead}
		if got := l.next(now).Sub(now).Truncate(time.Millisecond); got != c.want {
			t.Errorf("%s: the next lane may be opened after %v, want %v", name, got, c.want)
		}
	}
}

// Whatever a network, a database and its clients do: who waits while another lane may be
// opened, and none is about to take anybody, waits for an alarm that is set in time.
func TestNobodyWaitsWithoutALane(t *testing.T) {
	t.Parallel()
	for seed := range uint64(150) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d) + 1)) }
			overhead, work, connect := upTo(20*time.Millisecond), upTo(2*time.Millisecond), upTo(60*time.Millisecond)
			g := &group{db: &DB{shares: newShares(defaultConns)}, lanes: lanes{most: 1 + random.IntN(6)}}
			principals := []string{""}
			if seed%4 == 0 {
				g.what, principals = budgeted, []string{"a", "b", "c"}
			}
			clients := 1 + random.IntN(8)
			if seed%10 == 0 {
				clients += 2 * maxBatch
			}
			var mu sync.Mutex // of random
			pick := func(d time.Duration) time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return upTo(d)
			}
			var taking atomic.Int64 // lanes that have not taken anybody yet
			g.run = func(_ context.Context, most int) {
				taking.Add(1)
				if pick(3) == 0 {
					time.Sleep(pick(connect))
				}
				batch := g.take(most)
				taking.Add(-1)
				if len(batch) == 0 {
					return
				}
				took, worked := pick(2*overhead), pick(2*work)
				time.Sleep(took + worked)
				g.took(took+worked, worked)
				tell(batch, verdict{})
			}
			var working sync.WaitGroup
			for range clients {
				working.Go(func() {
					for i := range 30 {
						time.Sleep(pick(6 * time.Millisecond))
						ctx, cancel := context.WithTimeout(t.Context(), leastToGoAlone-time.Second+pick(2*time.Second))
						g.join(ctx, plant.Deletion{Principal: principals[i%len(principals)]})
						cancel()
					}
				})
			}
			ended := make(chan bool)
			go func() {
				working.Wait()
				close(ended)
			}()
			for running := true; running; {
				time.Sleep(pick(time.Millisecond))
				synctest.Wait()
				select {
				case <-ended:
					running = false
				default:
				}
				g.mu.Lock()
				waiting, open, most := len(g.waiting), len(g.lanes.open), g.lanes.most
				got, want := g.goesOff, g.lanes.next(time.Now())
				g.mu.Unlock()
				if waiting > 0 && taking.Load() == 0 && open < most && (got.IsZero() || got.After(want)) {
					t.Errorf("seed %d, %v: %d wait with %d of %d lanes open, and the next is opened at %v, want %v",
						seed, time.Now(), waiting, open, most, got, want)
					running = false
				}
			}
			<-ended
			time.Sleep(time.Second)
			synctest.Wait()
			g.mu.Lock()
			defer g.mu.Unlock()
			if len(g.waiting) > 0 || len(g.lanes.open) > 0 {
				t.Errorf("seed %d: %d wait and %d lanes are open in the end, want none", seed, len(g.waiting), len(g.lanes.open))
			}
		})
		if t.Failed() {
			return
		}
	}
}

// A batch joins a pipeline unless it would wait there for what a connection of its own
// spares it: a commit, a batch that is slow, or a long line.
func TestWhichPipelineABatchJoins(t *testing.T) {
	t.Parallel()
	now := time.Now()
	const work, overhead = time.Millisecond, 5 * time.Millisecond
	for name, c := range map[string]struct {
		load load
		// commit is what one takes; a negative one held others up.
		commit time.Duration
		want   bool
	}{
		"one held others up lately":               {load{free: now, began: now, heard: now}, -1, false},
		"the database is done with it in time":    {load{free: now, began: now, heard: now}, 0, true},
		"a few batches are ahead":                 {load{free: now.Add(4 * work), began: now, heard: now}, work, true},
		"more than that":                          {load{free: now.Add(4*work + 1), began: now, heard: now}, work, false},
		"as many are ahead as may be":             {load{batches: 4, free: now, began: now, heard: now}, 0, true},
		"one more is":                             {load{batches: 5, free: now, began: now, heard: now}, 0, false},
		"commits take two thirds of the overhead": {load{free: now, began: now, heard: now}, overhead * 2 / 3, true},
		"the overhead is commits":                 {load{free: now, began: now, heard: now}, overhead*2/3 + 1, false},
		"the last answer is long ago":             {load{free: now, began: now.Add(-time.Second / 2), heard: now.Add(-2 * (overhead + work))}, 0, false},
		"the pool has to have its turn with it":   {load{free: now, began: now.Add(-pipelineTime), heard: now}, 0, false},
	} {
		l := lanes{work: work, overhead: overhead, commit: max(c.commit, 0)}
		if c.commit < 0 {
			l.answered(new(load), now.Add(-heldUp-1), now)
		}
		if got := l.joins(c.load, now); got != c.want {
			t.Errorf("%s: joins %v, want %v", name, got, c.want)
		}
	}
}

// A batch that was held up counts as that, and not those that only waited behind others.
func TestWhoeverHoldsOthersUpIsNoticed(t *testing.T) {
	t.Parallel()
	const work, commit = 300 * time.Microsecond, 2 * time.Millisecond
	l := lanes{work: work, overhead: 5 * time.Millisecond, commit: commit}
	now := time.Now()
	c := load{}
	first := now
	for range 2 * heldUp / (work + commit) { // all sent at once
		l.sends(&c, first)
		now = now.Add(work + commit)
		l.answered(&c, first, now)
	}
	if !c.free.Equal(now) {
		t.Errorf("the connection is free %v before the last answer, want then", now.Sub(c.free))
	}
	if !l.wary.IsZero() {
		t.Errorf("no batch joins until %v, want no limit where none was held up", l.wary)
	}
	now = now.Add(heldUp + 1)
	l.answered(&c, first, now)
	if want := now.Add(waryTime); !l.wary.Equal(want) {
		t.Errorf("no batch joins until %v after one was held up, want %v", l.wary, want)
	}
}

// Where commits are slow, three batches are under way, though those that share one with
// others show a short overhead.
func TestCommitsAreLearnt(t *testing.T) {
	t.Parallel()
	const work, commit = 500 * time.Microsecond, 2 * time.Millisecond
	const quick = 100 * time.Microsecond
	l := lanes{work: work, overhead: work}
	for i, c := range []struct{ took, want time.Duration }{
		{commit, commit}, {quick, quick}, {quick, quick}, // the first ones may be anything
		{time.Hour, quick}, {quick, quick}, {time.Hour, quick},
		{quick, quick}, {quick, quick}, {quick, quick}, {quick, quick}, {quick, quick},
		{commit, quick}, {commit, quick}, {commit, commit}, {time.Hour, commit}, {quick, commit},
	} {
		if l.committed(c.took); l.commit != c.want {
			t.Errorf("commit %d takes %v: %v is the rule, want %v", i, c.took, l.commit, c.want)
		}
	}
	if got := l.wanted(); got != 3 {
		t.Errorf("%d lanes where commits are slow, want 3", got)
	}
	l.overhead = 5 * time.Millisecond
	if got := l.wanted(); got != 10 {
		t.Errorf("%d lanes where commits are slow and the overhead is long, want the 10 for the overhead", got)
	}
	l.overhead = work
	for range 3 {
		l.committed(quick)
	}
	if got := l.wanted(); got != 1 {
		t.Errorf("%d lanes when commits are quick again, want 1", got)
	}
}
