package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// unreachable makes every further connection of the service be refused, once it
// returns true.
func (s *store) unreachable(t *testing.T) *atomic.Bool {
	t.Helper()
	var down atomic.Bool
	s.beforeDialing(t, func() error {
		if down.Load() {
			return errors.New("refused by this test")
		}
		return nil
	})
	return &down
}

// beforeDialing has something happen before each connection is made, which is not made
// if that returns an error.
func (s *store) beforeDialing(t *testing.T, do func() error) {
	t.Helper()
	config := s.pool.Config()
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if err := do(); err != nil {
			return nil, &net.OpError{Op: "dial", Net: network, Err: err}
		}
		return dial(ctx, network, addr)
	}
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	s.DB.pool.Close()
	s.DB.pool = p
}

// terminateAll ends every session of the service, and returns when they are gone.
func terminateAll(t *testing.T, super *pgxpool.Pool) {
	t.Helper()
	const sessions = ` FROM pg_stat_activity WHERE usename = 'plantstore_app' AND datname = current_database()`
	if _, err := super.Exec(t.Context(), `SELECT pg_terminate_backend(pid)`+sessions); err != nil {
		t.Fatal(err)
	}
	for n := 1; n > 0; time.Sleep(time.Millisecond) {
		if err := super.QueryRow(t.Context(), `SELECT count(*)`+sessions).Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
}

// The database stops entirely while a connection to it idles. Nothing is sent on
// that, so it is certain that nothing was deleted.
func TestADatabaseThatStoppedWhileNobodyAsked(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	down := s.unreachable(t)
	s.plant(t, 1)
	s.plant(t, 2)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	down.Store(true)
	terminateAll(t, pgtest.Pool(t, database.Super))
	_, err := s.plants.Delete(in(t, time.Second), deletion(2, "k"))
	if !errors.Is(err, plant.ErrUnavailable) || errors.Is(err, plant.ErrUnknown) {
		t.Errorf("Delete: %v, want ErrUnavailable and nothing unknown", err)
	}
	if !s.has(t, 2) {
		t.Error("the plant is gone")
	}
}

// Who gives up while it connects says nothing of the database.
func TestACancelledConnectIsNoTrouble(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, test := range []struct {
		name string
		end  func(context.Context, context.CancelFunc) error // of a dial
		want error
	}{
		{"given up", func(ctx context.Context, cancel context.CancelFunc) error { cancel(); <-ctx.Done(); return ctx.Err() }, plant.ErrBusy},
		{"refused", func(context.Context, context.CancelFunc) error { return syscall.ECONNREFUSED }, plant.ErrUnavailable},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		config := s.pool.Config()
		config.ConnConfig.DialFunc = func(dial context.Context, _, _ string) (net.Conn, error) { return nil, test.end(dial, cancel) }
		p, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		s.DB.pool.Close()
		s.DB.pool = p
		if _, err := s.borrow(ctx, watched, patience); err == nil {
			t.Fatalf("%s: connected", test.name)
		}
		if err := s.shares.inVain(context.DeadlineExceeded); !errors.Is(err, test.want) {
			t.Errorf("%s: who waits for others is told %v, want %v", test.name, err, test.want)
		}
	}
}

// A connection that was lost says nothing of the database: the next one will. Those who
// wait for others meanwhile are told that they did.
func TestALostConnectionIsNoTrouble(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	conn, err := s.borrow(in(t, patience), locked, patience)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `SELECT pg_terminate_backend(pg_backend_pid())`); err == nil {
		t.Fatal("the connection was not lost")
	}
	conn.Release()
	if err := s.shares.inVain(context.DeadlineExceeded); !errors.Is(err, plant.ErrBusy) {
		t.Errorf("who waits for others is told %v, want ErrBusy", err)
	}
}

// Whose time is over with a lock, while its last attempt still waits for a connection, is
// told of the lock.
func TestALockIsToldWhenTheLastAttemptHadNoTime(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.plant(t, 1)
	s.plants.difficult.note(1, verdict{next: alone, what: locked})
	config := s.pool.Config()
	config.ConnConfig.DialFunc = func(dial context.Context, _, _ string) (net.Conn, error) { <-dial.Done(); return nil, dial.Err() }
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	s.DB.pool.Close()
	s.DB.pool = p
	if _, err := s.plants.Delete(in(t, time.Second/2), deletion(1, "k")); !errors.Is(err, plant.ErrBusy) {
		t.Errorf("Delete with no time for a second attempt: %v, want ErrBusy", err)
	}
	if _, err := s.plants.Delete(in(t, 5*time.Second), deletion(1, "k")); !errors.Is(err, plant.ErrUnavailable) {
		t.Errorf("Delete with time for several: %v, want ErrUnavailable", err)
	}
}

// The end of a connection is noticed beneath TLS, too.
func TestGone(t *testing.T) {
	t.Parallel()
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	trusted := x509.NewCertPool()
	trusted.AddCert(certified.Certificate())
	layers := map[string]struct{ client, server func(net.Conn) net.Conn }{
		"plain": {func(c net.Conn) net.Conn { return c }, func(c net.Conn) net.Conn { return c }},
		"TLS": {
			func(c net.Conn) net.Conn {
				return tls.Client(c, &tls.Config{RootCAs: trusted, ServerName: "example.com"})
			},
			func(c net.Conn) net.Conn { return tls.Server(c, certified.TLS) },
		},
	}
	ends := map[string]func(net.Conn) error{
		"a word":        func(c net.Conn) error { _, err := c.Write([]byte("FATAL")); return err },
		"end of stream": func(c net.Conn) error { return bare(c).CloseWrite() },
		"reset":         func(c net.Conn) error { return errors.Join(bare(c).SetLinger(0), bare(c).Close()) },
	}
	for layer, wrap := range layers {
		for end, do := range ends {
			t.Run(layer+", "+end, func(t *testing.T) {
				t.Parallel()
				listener, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer listener.Close()
				ours, err := net.Dial("tcp", listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer ours.Close()
				theirs, err := listener.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer theirs.Close()
				client, server := wrap.client(&briefFarewell{Conn: ours}), wrap.server(theirs)
				said := make(chan error, 1)
				go func() { _, err := server.Write([]byte("hello")); said <- err }()
				if _, err := io.ReadFull(client, make([]byte, 5)); err != nil {
					t.Fatal(err)
				}
				if err := <-said; err != nil {
					t.Fatal(err)
				}
				if gone(client) {
					t.Fatal("gone before anything happened")
				}
				if err := do(server); err != nil {
					t.Fatal(err)
				}
				for waited := in(t, patience); !gone(client); time.Sleep(time.Millisecond) {
					if waited.Err() != nil {
						t.Fatal("not gone")
					}
				}
			})
		}
	}
}

// bare returns a connection without TLS around it.
func bare(c net.Conn) *net.TCPConn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*net.TCPConn)
}

// leastPace is the share of their rate that clients keep, whatever others do.
const leastPace = 0.4

// besides holds the rate of 8 clients against their rate beside others. disturb
// starts these, and returns when they are at work. All deletions of the clients have
// to succeed. Another program may take the machine for a while, so there are several
// rounds, of which one has to do.
func (s store) besides(t *testing.T, disturb func(t *testing.T) (stop func())) {
	t.Helper()
	s.besidesOf(t, func(id int64) plant.Deletion { return deletion(id, "k") }, disturb)
}

// besidesOf is besides for clients who ask for certain deletions.
func (s store) besidesOf(t *testing.T, of func(id int64) plant.Deletion, disturb func(t *testing.T) (stop func())) {
	t.Helper()
	const first, last = 1_000_000, 1_060_000
	s.exec(t, `INSERT INTO plants (id, name) SELECT i, 'Boston fern' FROM generate_series($1::bigint, $2::bigint) i`, first, last)
	var next atomic.Int64
	next.Store(first)
	count := func() (deleted int64) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var clients sync.WaitGroup
		from := next.Load()
		for range 8 {
			clients.Go(func() {
				for id := next.Add(1); ctx.Err() == nil && id < last; id = next.Add(1) {
					if _, err := s.plants.Delete(in(t, patience), of(id)); err != nil {
						t.Errorf("Delete(%d): %v, want none", id, err)
					}
				}
			})
		}
		clients.Wait()
		return next.Load() - from
	}
	best := 0.0
	for range 6 {
		alone := count()
		stop := disturb(t)
		beside := count()
		stop()
		best = max(best, float64(beside)/float64(alone))
		t.Logf("%d deletions alone, %d beside the others", alone, beside)
		if best >= leastPace {
			return
		}
	}
	t.Errorf("beside others the clients keep %.2f of their rate, want %.2f", best, leastPace)
}

// crowd runs clients, each of which repeats what it does until stop is called.
func crowd(clients int, do func(client int)) (stop func()) {
	var over atomic.Bool
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for !over.Load() {
				do(i)
			}
		})
	}
	return func() { over.Store(true); all.Wait() }
}

// stand returns how many stand in a plant's line.
func (p *Plants) stand(id plant.ID) int {
	p.lines.mu.Lock()
	defer p.lines.mu.Unlock()
	if l := p.lines.open[id]; l != nil {
		return l.stand
	}
	return 0
}

func TestBesideManyRequestsForALockedRow(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.plant(t, 1)
	s.lock(t, 1)
	const many = 600
	s.besides(t, func(t *testing.T) func() {
		s.plants.difficult.cache.Purge() // in each round the plant is tried in a batch first
		ctx, cancel := context.WithCancel(t.Context())
		stop := crowd(many, func(i int) {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			if _, err := s.plants.Delete(ctx, request(1, i)); err == nil {
				t.Error("the locked plant was deleted")
			}
		})
		for s.plants.stand(1) < many {
			time.Sleep(time.Millisecond)
		}
		return func() { cancel(); stop() }
	})
	if got := s.plants.stand(1); got > 0 || len(s.plants.lines.open) > 0 {
		t.Errorf("%d stand in line when all have gone, and %d lines are there; want none", got, len(s.plants.lines.open))
	}
}

// lockAll has a transaction of the store's own lock plants, until the function that it
// returns is called or the test ends.
func (s store) lockAll(t *testing.T, first, last int64) (unlock func()) {
	t.Helper()
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unlock = sync.OnceFunc(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	t.Cleanup(unlock)
	if _, err := tx.Exec(t.Context(), `SELECT FROM public.plants WHERE id BETWEEN $1 AND $2 FOR UPDATE`, first, last); err != nil {
		t.Fatal(err)
	}
	return unlock
}

func TestBesideRequestsForManyLockedRows(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const many = 800
	s.sample(t, many)
	s.lockAll(t, 1, many)
	s.besides(t, func(t *testing.T) func() {
		s.plants.difficult.cache.Purge() // in each round the plants are tried in batches first
		ctx, cancel := context.WithCancel(t.Context())
		stop := crowd(many, func(i int) {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			if _, err := s.plants.Delete(ctx, request(int64(i+1), i)); err == nil {
				t.Error("a locked plant was deleted")
			}
		})
		return func() { cancel(); stop() }
	})
}

// Whose lock is gone does not wait for those whose locks stay, however many.
func TestALockThatEndsAmongManyThatStay(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const many = 800
	s.sample(t, many+1)
	s.lockAll(t, 1, many)
	unlock := s.lockAll(t, many+1, many+1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*patience)
	stop := crowd(many, func(i int) { _, _ = s.plants.Delete(ctx, request(int64(i+1), i)) })
	defer stop()
	defer cancel()
	for id := int64(1); id <= many; {
		if s.plants.difficult.recall(plant.ID(id)).what == together {
			time.Sleep(time.Millisecond) // until it is found to be locked
			continue
		}
		id++
	}
	deleted := make(chan error, 1)
	go func() {
		_, err := s.plants.Delete(in(t, patience), deletion(many+1, "k"))
		deleted <- err
	}()
	for s.plants.difficult.recall(many+1).what == together {
		time.Sleep(time.Millisecond)
	}
	unlock()
	if err := <-deleted; err != nil {
		t.Errorf("Delete of a plant that was locked for a moment: %v, want none", err)
	}
}

func TestBesideDeletionsThatAreSlowByNature(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.exec(t, `CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN IF OLD.id < 0 THEN PERFORM pg_sleep(0.3); END IF; RETURN OLD; END';
		CREATE TRIGGER dawdle BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION dawdle()`)
	s.exec(t, `INSERT INTO plants (id, name) SELECT -i, 'Boston fern' FROM generate_series(1, 5000) i`)
	var next atomic.Int64
	s.besides(t, func(t *testing.T) func() {
		const clients = 8
		var deleted atomic.Int64
		stop := crowd(clients, func(int) {
			if _, err := s.plants.Delete(in(t, patience), deletion(next.Add(-1), "k")); err != nil {
				t.Errorf("Delete of a plant that takes its time: %v, want none", err)
			}
			deleted.Add(1)
		})
		for deleted.Load() < clients { // at first all of them are found to be slow at once
			time.Sleep(time.Millisecond)
		}
		return stop
	})
}

// Where deletions are quick, patience with a slow one is short. It outlasts that with a
// lock: who waits for one is not taken for slow.
func TestALockIsNoSlowness(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 60)
	for id := range int64(50) {
		if _, err := s.plants.Delete(in(t, patience), deletion(id+1, "k")); err != nil {
			t.Fatal(err)
		}
	}
	var failed []string
	for id := int64(51); id <= 60 && !slices.Contains(failed, failedLocked); id++ { // a busy machine may hold one up
		unlock := s.lock(t, id)
		deleted := make(chan plant.Result, 1)
		go func() {
			result, err := s.plants.Delete(in(t, patience), deletion(id, "k"))
			if err != nil {
				t.Errorf("Delete of a plant that was locked for a moment: %v, want none", err)
			}
			deleted <- result
		}()
		s.seeWaits(t, 2)
		unlock()
		failed = append(failed, (<-deleted).Course.Attempts[0].Failed)
	}
	if !slices.Contains(failed, failedLocked) {
		t.Errorf("first attempts at locked plants failed because they were %q, want one of them locked", failed)
	}
}

// A deletion that a busy machine held up once is not slow by nature, and does not wait
// for those that are.
func TestADeletionThatWasHeldUpOnce(t *testing.T) {
	t.Parallel()
	s := storeOn(t, pgtest.New(t), "pool_max_conns=1")
	s.exec(t, `CREATE SEQUENCE tries;
		GRANT USAGE ON tries TO plantstore_app;
		CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN IF OLD.id = 1 OR nextval('tries') = 1 THEN PERFORM pg_sleep(0.7); END IF; RETURN OLD; END $$;
		CREATE TRIGGER hold_up BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION hold_up()`)
	s.sample(t, 2)
	conns := s.take(t, slow)
	got, err := s.plants.Delete(in(t, patience), deletion(2, "k"))
	if err != nil {
		t.Errorf("Delete while those that are slow by nature wait: %v, want none", err)
	}
	if attempts := got.Course.Attempts; len(attempts) != 2 || attempts[0].Failed != failedSlow {
		t.Errorf("attempts %+v, want one that was too slow, and one more", attempts)
	}
	for _, conn := range conns {
		conn.Release()
	}
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Errorf("Delete of a plant that is slow by nature: %v, want none", err)
	}
}

func TestBesideRefusedDeletions(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 8)
	s.exec(t, `CREATE TABLE order_items (plant_id bigint REFERENCES plants)`)
	s.exec(t, `CREATE INDEX ON order_items (plant_id)`)
	s.exec(t, `INSERT INTO order_items SELECT id FROM plants`)
	s.besides(t, func(t *testing.T) func() {
		return crowd(8, func(i int) {
			_, err := s.plants.Delete(in(t, patience), deletion(int64(i+1), "k"))
			if _, ok := errors.AsType[*plant.ReferencedError](err); !ok {
				t.Errorf("Delete of a plant that is referred to: %v, want a ReferencedError", err)
			}
		})
	})
}

// Deletions that wait for locks take nothing from those whose connection is lost.
func TestBesideLockedRowsWhileConnectionsAreLost(t *testing.T) {
	t.Parallel()
	s, w := lossy(t, pgtest.New(t), "")
	s.sample(t, 2)
	s.lock(t, 1)
	s.lock(t, 2)
	var sent atomic.Int64
	w.sending = func() {
		if sent.Add(1)%20 == 0 {
			w.loseAnswers.Store(1)
		}
	}
	s.besides(t, func(t *testing.T) func() {
		ctx, cancel := context.WithCancel(t.Context())
		stop := crowd(12, func(i int) {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			if _, err := s.plants.Delete(ctx, request(int64(i%2+1), i)); err == nil {
				t.Error("a locked plant was deleted")
			}
		})
		return func() { cancel(); stop() }
	})
}

func TestDeletionsInFlightAreBounded(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		s.sample(t, 3)
		s.plants = s.Plants(2)
		taken := s.take(t, together)
		first := make(chan error, 2)
		for id := range int64(2) {
			go func() {
				_, err := s.plants.Delete(in(t, patience), deletion(id+1, "k"))
				first <- err
			}()
		}
		synctest.Wait() // until both wait for a connection
		if _, err := s.plants.Delete(in(t, patience), deletion(3, "k")); !errors.Is(err, plant.ErrOverloaded) {
			t.Errorf("one more: %v, want ErrOverloaded", err)
		}
		for _, conn := range taken {
			conn.Release()
		}
		for range 2 {
			if err := <-first; err != nil {
				t.Errorf("one of the first: %v, want none", err)
			}
		}
		if _, err := s.plants.Delete(in(t, patience), deletion(3, "k")); err != nil {
			t.Errorf("afterwards: %v, want none", err)
		}
	})
}

// Requests for a locked row do not count as in flight, however many there are.
func TestDeletionsOfALockedRowAreNotInFlight(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 2)
	s.plants = s.Plants(1)
	unlock := s.lock(t, 1)
	var locked sync.WaitGroup
	for i := range 3 {
		locked.Go(func() {
			_, err := s.plants.Delete(in(t, patience), request(1, i))
			if _, earlier := errors.AsType[*plant.DeletedEarlierError](err); err != nil && !earlier {
				t.Errorf("Delete of a plant that was locked for a while: %v, want none, or deleted earlier", err)
			}
		})
	}
	// Until the first was found to be locked.
	for waited := in(t, patience); s.plants.stand(1) < 3 || s.plants.difficult.recall(1).what == together || !s.plants.inFlight.TryAcquire(1); {
		if waited.Err() != nil {
			t.Fatal("a deletion that waits for a lock is in flight still")
		}
		time.Sleep(time.Millisecond)
	}
	s.plants.inFlight.Release(1)
	if _, err := s.plants.Delete(in(t, patience), deletion(2, "k")); err != nil {
		t.Errorf("Delete of another plant: %v, want none", err)
	}
	unlock()
	locked.Wait()
}

// What the purposes may take adds up to the pool, and leaves none of them out.
func TestShares(t *testing.T) {
	t.Parallel()
	for conns := LeastConns; conns < 50; conns++ {
		sum := 0
		for what, size := range newShares(conns).size {
			if sum += size; size < 1 {
				t.Errorf("of %d connections purpose %d gets none", conns, what)
			}
		}
		if sum != conns {
			t.Errorf("of %d connections %d are dealt out", conns, sum)
		}
	}
	const url = "postgres://somebody@localhost/store"
	for parameters, want := range map[string]int{"": defaultConns, "?pool_max_conns=1": LeastConns, "?pool_max_conns=40": 40} {
		if got, err := PoolSize(url + parameters); err != nil || got != want {
			t.Errorf("PoolSize(%q) = %d, %v; want %d", url+parameters, got, err, want)
		}
	}
}

// Whatever others wait for, a lost answer gets a connection.
func TestALostAnswerIsFoundOutAtOnce(t *testing.T) {
	t.Parallel()
	s, w := lossy(t, pgtest.New(t), "pool_max_conns=1")
	s.plant(t, 1)
	for _, what := range []purpose{retried, suspected, slow, locked, explained, known, unknown, watched} {
		for _, conn := range s.take(t, what) {
			defer conn.Release()
		}
	}
	w.loseAnswers.Store(1)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Errorf("Delete whose answer was lost: %v, want none", err)
	}
	if w.loseAnswers.Load() >= 1 {
		t.Error("no answer was lost: this test tests nothing")
	}
}

// However long others take, why a deletion was refused is told at once, and a deletion that
// waits for a lock has it when it is free.
func TestNobodyWaitsForThoseWhoTakeLong(t *testing.T) {
	t.Parallel()
	s := storeOn(t, pgtest.New(t), "pool_max_conns=1")
	s.plant(t, 1)
	for _, what := range []purpose{retried, suspected, slow} { // as while deferred triggers of the store's run
		for _, conn := range s.take(t, what) {
			defer conn.Release()
		}
	}
	if _, err := s.plants.Delete(in(t, patience), keyed(2, "k")); !errors.Is(err, plant.ErrNotFound) {
		t.Errorf("Delete of no plant: %v, want ErrNotFound", err)
	}
	unlock := s.lock(t, 1)
	ended := make(chan error)
	go func() {
		_, err := s.plants.Delete(in(t, patience), keyed(1, "k"))
		ended <- err
	}()
	s.seeWaits(t, 2)
	unlock()
	if err := <-ended; err != nil {
		t.Errorf("Delete of a plant that was locked: %v, want none", err)
	}
}

func TestTheSmallestPoolIsNotStoppedByALockedRow(t *testing.T) {
	t.Parallel()
	s := storeOn(t, pgtest.New(t), "pool_max_conns=1")
	s.sample(t, 2)
	unlock := s.lock(t, 1)
	deleted := make(chan error, 1)
	go func() {
		_, err := s.plants.Delete(in(t, patience), deletion(1, "k"))
		deleted <- err
	}()
	s.seeWaits(t, 2)
	if _, err := s.plants.Delete(in(t, patience), deletion(2, "k")); err != nil {
		t.Errorf("Delete of another plant: %v, want none", err)
	}
	if err := s.Ready(in(t, patience), nil); err != nil {
		t.Errorf("Ready: %v, want none", err)
	}
	unlock()
	if err := <-deleted; err != nil {
		t.Errorf("Delete of the locked plant: %v, want none in the end", err)
	}
}

// A connection that is lost has its place in the pool until it is closed. Its share would
// give that place away twice.
func TestALostConnectionCountsUntilItIsClosed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var armed atomic.Bool
	closing, let := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(let) })
	t.Cleanup(goOn)
	s.beforeDialing(t, func() error {
		if armed.CompareAndSwap(true, false) { // that cancels the statement, which comes before the end of its connection
			close(closing)
			<-let
		}
		return nil
	})
	conn, err := s.borrow(in(t, patience), slow, patience)
	if err != nil {
		t.Fatal(err)
	}
	armed.Store(true)
	ctx, end := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer end()
	if _, err := conn.Exec(ctx, `SELECT pg_catalog.pg_sleep(60)`); err == nil {
		t.Fatal("it did not fail when its time was over")
	}
	<-closing
	conn.Release()
	time.Sleep(100 * time.Millisecond) // for it to go wrong
	if got := s.shares.inUse[slow].Load(); got != 1 {
		t.Errorf("%d connections of the share are in use while a lost one is not closed, want 1", got)
	}
	goOn()
	if err := s.shares.parts[slow].Acquire(in(t, patience), int64(s.shares.size[slow])); err != nil {
		t.Errorf("the whole share, once it is closed: %v, want it free", err)
	}
}

// A plant that was refused a moment ago is not tried in a batch, where it would take
// the others' deletions back.
func TestARefusedPlantKeepsOutOfBatches(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		s.plant(t, 1)
		s.exec(t, `CREATE TABLE order_items (plant_id bigint REFERENCES plants)`)
		s.exec(t, `INSERT INTO order_items VALUES (1)`)
		try := func(when string, inBatch bool) {
			t.Helper()
			_, err := s.plants.Delete(in(t, time.Second), deletion(1, "k"))
			if _, refused := errors.AsType[*plant.ReferencedError](err); refused == inBatch {
				t.Errorf("%s, while no batch can run: %v, want a ReferencedError: %v", when, err, !inBatch)
			}
		}
		try("while batches can run", false)
		taken := s.take(t, together)
		try("a moment later", false)
		time.Sleep(rememberFor + time.Second)
		try("when that was forgotten", true)
		for _, conn := range taken {
			conn.Release()
		}
	})
}

// eagerly makes a server look for deadlocks after a few milliseconds.
func eagerly(t *testing.T, database pgtest.Database) {
	t.Helper()
	if _, err := pgtest.Pool(t, database.Super).Exec(t.Context(),
		`ALTER DATABASE `+pgx.Identifier{database.Name}.Sanitize()+` SET deadlock_timeout = '16ms'`); err != nil {
		t.Fatal(err)
	}
}

// Where a table is locked, a batch waits for it once, and not for each of its members.
// Otherwise the last of them would have no time left, and their fate would be unknown.
func TestALockedTableHoldsABatchUpOnce(t *testing.T) {
	t.Parallel()
	for _, lock := range []string{"plants IN EXCLUSIVE", "plants IN ACCESS EXCLUSIVE", "plant_deletions IN EXCLUSIVE", "order_items IN EXCLUSIVE"} {
		for _, prepared := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, prepared %v", lock, prepared), func(t *testing.T) {
				t.Parallel()
				testALockedTable(t, lock, prepared)
			})
		}
	}
}

// Nor does it wait for each where the table comes to be locked between two attempts, and
// the statements of the second are not parsed yet.
func TestATableThatIsLockedBetweenTwoAttempts(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	storeOn(t, database, "").sample(t, 5)
	super := pgtest.Pool(t, database.Super)
	const locks = `pg_locks WHERE relation = 'public.plants'::regclass AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	// It fails once the table is waited for, and whoever waits gets it then.
	if _, err := super.Exec(t.Context(), `CREATE SEQUENCE public.calls;
		CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN
			PERFORM pg_catalog.nextval('public.calls');
			WHILE NOT EXISTS (SELECT FROM `+locks+` AND NOT granted) LOOP PERFORM pg_catalog.pg_sleep(0.001); END LOOP;
			RAISE EXCEPTION 'no';
		END$$;
		CREATE TRIGGER fail BEFORE DELETE ON public.plants FOR EACH STATEMENT EXECUTE FUNCTION public.fail()`); err != nil {
		t.Fatal(err)
	}
	// An attempt waits for a quarter of a second at the most. On a busy machine that may be over
	// before the table is locked: then another attempt is made, and so is another try here.
	waited := in(t, patience)
	for {
		if _, err := super.Exec(waited, `SELECT setval('public.calls', 1, false)`); err != nil {
			t.Fatalf("in no try was the table locked between the first attempt and the second: %v", err)
		}
		batch := deleteWhileItComesToBeLocked(t, storeOn(t, database, ""), func(ctx context.Context) {
			_, _ = super.Exec(ctx, `DO $$BEGIN
				WHILE NOT EXISTS (SELECT FROM `+locks+` AND mode = 'RowExclusiveLock') LOOP PERFORM pg_sleep(0.001); END LOOP;
				LOCK TABLE public.plants;
				PERFORM pg_sleep(60);
			END$$`)
		})
		var calls int
		if err := super.QueryRow(waited, `SELECT count(*) FROM public.calls WHERE is_called AND last_value = 1`).Scan(&calls); err != nil {
			t.Fatal(err)
		}
		heard := true
		for _, m := range batch {
			v := <-m.verdict
			heard = heard && v.next != ask
			if calls == 1 && v.next != ask && (v.next != alone || v.what != locked || m.batch != len(batch)) {
				t.Errorf("plant %d: next %d, as %s, last tried among %d; want it to go on alone, as locked, at once", m.deletion.Plant, v.next, v.what, m.batch)
			}
		}
		if calls == 1 && heard {
			return
		}
	}
}

// deleteWhileItComesToBeLocked runs a batch of five beside lock.
func deleteWhileItComesToBeLocked(t *testing.T, s store, lock func(context.Context)) (batch []*member) {
	t.Helper()
	at := place{s.pipelineOn(t)}
	defer func() { at.leave() }()
	batch = batchOf(5)
	ctx, cancel := context.WithCancel(t.Context())
	var locker sync.WaitGroup
	defer locker.Wait()
	defer cancel()
	locker.Go(func() { lock(ctx) })
	s.plants.group.deleteBatch(&at, slices.Clone(batch))
	return batch
}

// Only a lock that a deletion has to wait for locks all of a batch.
func TestWhichLocksLockAll(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.exec(t, `CREATE TABLE order_items (plant_id bigint REFERENCES plants, id bigint UNIQUE); CREATE TABLE returns (item bigint REFERENCES order_items (id));
		CREATE TABLE labels (plant_id bigint REFERENCES plants ON DELETE CASCADE, id bigint UNIQUE, copy_of bigint REFERENCES labels (id) ON DELETE CASCADE);
		CREATE TABLE prints (label bigint REFERENCES labels (id) ON DELETE CASCADE, id bigint UNIQUE); CREATE TABLE reprints (print bigint REFERENCES prints (id));
		CREATE TABLE others (id bigint)`)
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	modes := []string{"ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE", "ACCESS EXCLUSIVE"}
	for table, harmless := range map[string]int{"plants": 4, "plant_deletions": 4, "labels": 4, "order_items": 6, "plant_shapes": 7, "others": 8,
		"prints": 4, "reprints": 6, "returns": 8} {
		for i, mode := range modes {
			tx, err := s.owner.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `LOCK TABLE public.`+table+` IN `+mode+` MODE`); err != nil {
				t.Fatal(err)
			}
			_, all, err := lockedRows(in(t, patience), conn.Conn(), []int64{1})
			if want := i >= harmless; err != nil || all != want {
				t.Errorf("%s in %s mode: all locked %v, %v; want %v", table, mode, all, err, want)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func testALockedTable(t *testing.T, lock string, prepared bool) {
	s := newStore(t)
	s.sample(t, 30)
	s.exec(t, `CREATE TABLE order_items (plant_id bigint REFERENCES plants)`)
	if prepared {
		conns := s.take(t, together)
		for _, conn := range conns {
			for _, del := range []deleteFunc{deleteTogether, deleteEach} {
				turns := []turn{{Deletion: deletion(98, "k")}, {Deletion: deletion(99, "k")}}
				if _, _, _, err := del(in(t, patience), single{conn.Conn.Conn()}, turns, patience, patience, new(atCommit)); err != nil {
					t.Fatal(err)
				}
			}
			if _, _, err := lockedRows(in(t, patience), conn.Conn.Conn(), nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, conn := range conns {
			conn.Release()
		}
	}
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `LOCK TABLE public.`+lock+` MODE`); err != nil {
		t.Fatal(err)
	}
	// batch tells how long a batch of n took until the last of its members had a verdict,
	// and how many of them were taken for slow, as they may be on a busy machine.
	batch := func(n int) (time.Duration, int64) {
		conns := s.take(t, together)
		var slow atomic.Int64
		var group sync.WaitGroup
		for i := range n {
			group.Go(func() {
				v := s.plants.group.join(in(t, patience), deletion(int64(i+1), "k"))
				if v.what == suspected {
					slow.Add(1)
				} else if v.next != alone || v.what != locked || !errors.Is(v.err, plant.ErrBusy) {
					t.Errorf("member %d of %d of a locked table: %+v, want it to go on alone as locked", i, n, v)
				}
			})
		}
		s.plants.group.awaitMembers(n)
		began := time.Now()
		for _, conn := range conns {
			conn.Release()
		}
		group.Wait()
		return time.Since(began), slow.Load()
	}
	var tries []string
	for range 5 { // what else runs here may hold one up
		one, _ := batch(1)
		many, slow := batch(30)
		if many <= 15*one && slow == 0 {
			return
		}
		tries = append(tries, fmt.Sprintf("%s and %s, %d slow", many, one, slow))
	}
	t.Errorf("a batch of 30, and one of 1, took %s until all were sent on: want about the same, and none slow", tries)
}

// We give up before the server looks for deadlocks, and ends a transaction of the
// store's.
func TestNoWaitOutlastsTheSearchForDeadlocks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(*testing.T, pgtest.Database)
		want    []string // together, and waiting for locks
	}{
		"as PostgreSQL comes": {func(*testing.T, pgtest.Database) {}, []string{"20ms", "500ms"}},
		"eagerly":             {eagerly, []string{"8ms", "8ms"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			c.prepare(t, database)
			s := storeOn(t, database, "")
			s.exec(t, `CREATE TABLE seen (id bigint, setting text);
				CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
					$$BEGIN INSERT INTO public.seen VALUES (OLD.id, current_setting('lock_timeout')); RETURN OLD; END$$;
				CREATE TRIGGER see BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION see()`)
			s.sample(t, 2)
			s.plants.difficult.cache.Add(2, difficulty{what: locked, until: time.Now().Add(time.Hour)})
			if err := errors.Join(s.deleteAtOnce(t, ids(1, 2))...); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, stringsOf(t, s.owner, `SELECT setting FROM seen ORDER BY id`)); diff != "" {
				t.Errorf("limits of the waits for locks (-want +got):\n%s", diff)
			}
		})
	}
}

// However many rows are locked, that is the reason that is told.
func TestManyLockedRowsAreTold(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	eagerly(t, database)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "pool_max_conns=1")
		s.sample(t, 50)
		tx, err := s.owner.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.WithoutCancel(t.Context()))
		if _, err := tx.Exec(t.Context(), `SELECT FROM public.plants FOR UPDATE`); err != nil {
			t.Fatal(err)
		}
		for _, conn := range s.take(t, locked) { // by others that wait for locks
			defer conn.Release()
		}
		errs := make([]error, 50)
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() { _, errs[i] = s.plants.Delete(in(t, time.Second), deletion(int64(i+1), "k")) })
		}
		all.Wait()
		for i, err := range errs {
			if !errors.Is(err, plant.ErrBusy) || errors.Is(err, plant.ErrUnavailable) || errors.Is(err, plant.ErrUnknown) {
				t.Errorf("Delete(%d) of a locked row: %v, want ErrBusy", i+1, err)
			}
		}
	})
}
