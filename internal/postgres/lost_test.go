package postgres

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// A wire is the connection between the service and PostgreSQL, with a fault that
// can be armed.
type wire struct {
	// loseAnswers is how many of the next answers to a DELETE are thrown away
	// with their connection: the server commits, and we are not told.
	loseAnswers atomic.Int32
	// late is how long the first part of each answer to a DELETE or a look takes to come,
	// in nanoseconds.
	late atomic.Int64
	// sending, if set, is called before a DELETE is sent. It may wait.
	sending func()
	// preparing, if set, is called before a new session is prepared.
	preparing func()
	// silences counts how often every connection that was open fell silent, as
	// when the peer is gone without a word.
	silences atomic.Int32
}

func (w *wire) mute() { w.silences.Add(1) }

type faultyConn struct {
	net.Conn
	wire  *wire
	made  int32 // the number of silences before it
	armed atomic.Bool
	late  atomic.Int64 // what the next answer is
	// silence is one end of a pipe: what is read once the connection is muted. It keeps
	// the deadlines, in simulated time. At the other end is nobody but who ends a delay.
	silence, other net.Conn
}

func (c *faultyConn) muted() bool { return c.made < c.wire.silences.Load() }

func (c *faultyConn) Write(b []byte) (int, error) {
	if c.wire.preparing != nil && bytes.Contains(b, []byte("tcp_keepalives_idle")) {
		c.wire.preparing()
	}
	if c.muted() {
		return len(b), nil
	}
	// A Bind of the DELETE, prepared or not, comes with the settings' values.
	if bytes.Contains(b, []byte("tester")) {
		if c.wire.sending != nil {
			c.wire.sending()
		}
		if c.wire.loseAnswers.Add(-1) >= 0 {
			c.armed.Store(true)
		}
		c.late.Store(c.wire.late.Load())
	}
	return c.Conn.Write(b)
}

func (c *faultyConn) Read(b []byte) (int, error) {
	if c.muted() {
		return c.silence.Read(b)
	}
	for {
		n, err := c.Conn.Read(b)
		if late := time.Duration(c.late.Swap(0)); late > 0 {
			time.AfterFunc(late, func() { _, _ = c.other.Write([]byte{0}) })
			if _, err := c.silence.Read(make([]byte, 1)); err != nil {
				return 0, err
			}
		}
		if !c.armed.Load() {
			return n, err
		}
		// Let the server answer to the end, and lose it.
		if err != nil || bytes.HasSuffix(b[:n], []byte{'Z', 0, 0, 0, 5, 'I'}) {
			c.Conn.Close()
			return 0, io.ErrUnexpectedEOF
		}
	}
}

func (c *faultyConn) SetDeadline(t time.Time) error {
	return errors.Join(c.silence.SetDeadline(t), c.Conn.SetDeadline(t))
}

func (c *faultyConn) SetReadDeadline(t time.Time) error {
	return errors.Join(c.silence.SetReadDeadline(t), c.Conn.SetReadDeadline(t))
}

func (c *faultyConn) Close() error {
	return errors.Join(c.silence.Close(), c.Conn.Close())
}

// lossy puts a wire between the service and its database.
func lossy(t *testing.T, database pgtest.Database, parameters string) (store, *wire) {
	t.Helper()
	s := storeOn(t, database, parameters)
	w := new(wire)
	config := s.pool.Config()
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		ours := conn.(*briefFarewell)
		silence, other := net.Pipe()
		ours.Conn = &faultyConn{Conn: ours.Conn, wire: w, made: w.silences.Load(), silence: silence, other: other}
		return ours, nil
	}
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	s.DB.pool.Close()
	s.DB.pool = p
	return s, w
}

func TestLostAnswerOfACommit(t *testing.T) {
	t.Parallel()
	s, w := lossy(t, pgtest.New(t), "")
	s.plant(t, 1)
	w.loseAnswers.Store(1)
	result, err := s.plants.Delete(in(t, patience), deletion(1, "k"))
	if err != nil {
		t.Fatalf("Delete whose answer was lost: %v, want none", err)
	}
	if w.loseAnswers.Load() >= 1 {
		t.Fatal("no answer was lost: this test tests nothing")
	}
	if result.Replayed {
		t.Error("Replayed is set, though the first attempt was of the same request")
	}
	if got := len(s.ledger(t)); s.has(t, 1) || got != 1 {
		t.Errorf("plant there: %v, ledger rows: %d; want gone and 1", s.has(t, 1), got)
	}
}

// The driver tells each of these ways differently that a connection is lost: in some it says
// that nothing was sent.
func TestLostAnswersUntilTheDeadline(t *testing.T) {
	t.Parallel()
	for _, parameters := range []string{
		"", "statement_cache_capacity=0", "default_query_exec_mode=cache_describe", "default_query_exec_mode=describe_exec",
		"default_query_exec_mode=exec", "default_query_exec_mode=simple_protocol",
	} {
		t.Run(parameters, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			simulated(t, func(t *testing.T) {
				s, w := lossy(t, database, parameters)
				s.plant(t, 1)
				w.loseAnswers.Store(1 << 20)
				_, err := s.plants.Delete(in(t, time.Second), deletion(1, "k"))
				if !errors.Is(err, plant.ErrUnknown) {
					t.Fatalf("Delete whose answers were all lost: %v, want ErrUnknown", err)
				}
				// The lost answer of a slow server may have been that it gave up.
				gone := !s.has(t, 1)
				w.loseAnswers.Store(0)
				result, err := s.plants.Delete(in(t, patience), deletion(1, "k"))
				if err != nil || result.Replayed != gone {
					t.Errorf("the retry = %+v, %v; want Replayed %v", result, err, gone)
				}
				if got := len(s.ledger(t)); got != 1 {
					t.Errorf("%d ledger rows, want 1", got)
				}
			})
		})
	}
}

// What never got as far as the connection is no lost answer.
func TestWhatIsNotSentIsNotAskedFor(t *testing.T) {
	t.Parallel()
	for _, parameters := range []string{"default_query_exec_mode=exec", "default_query_exec_mode=simple_protocol"} {
		s := storeOn(t, pgtest.New(t), parameters)
		conn, err := s.DB.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Conn().PgConn().Conn().Close(); err != nil {
			t.Fatal(err)
		}
		_, err = single{conn.Conn()}.run(t.Context(), []statement{{sql: `SELECT 1`}})
		if got := judge(err, true); got.next != again {
			t.Errorf("%s: judge(%v) = %+v, want that it is tried again", parameters, err, got)
		}
		conn.Release()
	}
}

// A commit that was not sent, or was refused, is not one that nobody knows of.
func TestCommitsThatAreNotLost(t *testing.T) {
	t.Parallel()
	s := storeOn(t, pgtest.New(t), "")
	for name, do := range map[string]func(pgx.Tx) error{
		"not sent": func(tx pgx.Tx) error { return tx.Conn().PgConn().Conn().Close() },
		"answered with ROLLBACK": func(tx pgx.Tx) error {
			_, _ = tx.Exec(t.Context(), `SELECT 1/0`)
			return nil
		},
	} {
		err := inTransaction(t.Context(), s.DB.pool, pgx.ReadCommitted, do)
		if err == nil || unanswered(err) != "" {
			t.Errorf("%s: %v%s, want an error that is no lost commit", name, err, unanswered(err))
		}
	}
}

func TestLostAnswerWhenSomebodyElseWasFirst(t *testing.T) {
	t.Parallel()
	s, w := lossy(t, pgtest.New(t), "")
	s.plant(t, 1)
	s.exec(t, `DELETE FROM plants WHERE id = 1`)
	w.loseAnswers.Store(1)
	_, err := s.plants.Delete(in(t, patience), deletion(1, "k"))
	var earlier *plant.DeletedEarlierError
	if !errors.As(err, &earlier) {
		t.Errorf("Delete: %v, want a DeletedEarlierError", err)
	}
}

func TestSilentPeer(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s, w := lossy(t, database, "")
		s.plant(t, 1)
		s.plant(t, 2)
		if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1100 * time.Millisecond) // idle for more than a second: it will be pinged
		w.mute()
		start := time.Now()
		if _, err := s.plants.Delete(in(t, patience), deletion(2, "k")); err != nil {
			t.Fatalf("Delete after the peer fell silent: %v, want none", err)
		}
		if took := time.Since(start); took > pingTimeout {
			t.Errorf("Delete after the peer fell silent took %s, want at most %s", took, pingTimeout)
		}
	})
}

func TestBackendsTerminated(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	super := pgtest.Pool(t, database.Super)
	const plants = 100
	s.exec(t, `INSERT INTO plants (id, name) SELECT i, 'Boston fern' FROM generate_series(1, 100) i`)
	terminated := 0
	for i := range int64(plants) {
		// Each deletion is hit up to twice, at whatever moment it has come to.
		hit := make(chan struct{})
		go func() {
			defer close(hit)
			for range 2 {
				tag, err := super.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
					WHERE usename = 'plantstore_app' AND datname = current_database()`)
				if err != nil {
					t.Errorf("terminate: %v", err)
				}
				terminated += int(tag.RowsAffected())
			}
		}()
		if _, err := s.plants.Delete(in(t, patience), deletion(i+1, "k")); err != nil {
			t.Errorf("Delete(%d) while backends are terminated: %v, want none", i+1, err)
		}
		<-hit
	}
	if terminated < plants/10 {
		t.Errorf("%d backends were terminated during %d deletions: this test tests little", terminated, plants)
	}
	if got := len(s.ledger(t)); got != plants {
		t.Errorf("%d ledger rows, want %d", got, plants)
	}
}

// All connections fall silent in mid-statement, as when the primary's host is
// gone without a word. Giving them up must not keep their places in the pool.
func TestSilentPeersDoNotKeepThePool(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s, w := lossy(t, database, "pool_max_conns=2")
		s.sample(t, 50)
		var open []*pgxpool.Conn
		for range 2 {
			conn, err := s.pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, conn)
		}
		for _, conn := range open {
			conn.Release()
		}
		w.mute()
		start := time.Now()
		if err := errors.Join(s.deleteAtOnce(t, ids(1, 50))...); err != nil {
			t.Errorf("after all peers fell silent: %v, want no error", err)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("after all peers fell silent: took %s, want a few seconds", took)
		}
		time.Sleep(20 * time.Second) // until every connection that was given up is closed
	})
}

// The pool sets no limit on what a new session is prepared with.
func TestAPeerThatFallsSilentBeforeItsFirstUse(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s, w := lossy(t, database, "")
		s.plant(t, 1)
		w.preparing = sync.OnceFunc(w.mute)
		start := time.Now()
		conn, err := s.borrow(in(t, patience), retried, patience)
		if err == nil {
			conn.Release()
			t.Fatal("a connection was had from a peer that is silent")
		}
		if took, most := time.Since(start), connectTimeout+2*farewellTimeout; took > most {
			t.Errorf("the peer fell silent: told after %s, want at most %s", took, most)
		}
		if total, inUse := s.pool.Stat().TotalConns(), s.shares.inUse[retried].Load(); total != 0 || inUse != 0 {
			t.Errorf("it keeps %d places of the pool and %d of its share, want none", total, inUse)
		}
		if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
			t.Errorf("Delete on the next connection: %v, want none", err)
		}
		time.Sleep(20 * time.Second) // until the connection that was given up is closed
	})
}

// pgx sets the deadline of its farewell in a goroutine, and may take it away right
// after that, at the end of the context whose statement had no answer.
func TestTheDeadlineOfAFarewellStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silence, _ := net.Pipe()
		c := &briefFarewell{Conn: silence}
		start := time.Now()
		if err := errors.Join(c.SetDeadline(start.Add(time.Minute)), c.SetDeadline(time.Time{})); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Minute, func() { c.Close() })
		_, err := c.Read(make([]byte, 1))
		if took := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || took != farewellTimeout {
			t.Errorf("reading from a silent peer: %v after %s, want a timeout after %s", err, took, farewellTimeout)
		}
	})
}

// A primary that was demoted answers all connections alike. An error of a function of the
// store's says nothing of the server.
func TestNoConnectionToADemotedPrimaryIsUsed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, sql string
		others    int // of the other connections that are used again
	}{
		{"demoted", `BEGIN READ ONLY; DELETE FROM public.plants WHERE id = 1`, 0},
		{"raised by a function", `DO $$BEGIN RAISE EXCEPTION USING ERRCODE = '25006'; END$$`, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			acquire := func() (conns [3]*pgxpool.Conn) {
				t.Helper()
				for i := range conns {
					var err error
					if conns[i], err = s.pool.Acquire(in(t, patience)); err != nil {
						t.Fatal(err)
					}
				}
				return conns
			}
			before := acquire()
			var others []*pgx.Conn
			for _, conn := range before[1:] {
				others = append(others, conn.Conn())
			}
			before[1].Release() // idle while the error comes, and the last one in use
			if _, err := before[0].Exec(in(t, patience), tt.sql); sqlState(err) != readOnlyTransaction {
				t.Fatalf("%s: %v, want SQLSTATE %s", tt.sql, err, readOnlyTransaction)
			}
			before[2].Release()
			got := 0
			for _, conn := range acquire() {
				if slices.Contains(others, conn.Conn()) {
					got++
				}
				defer conn.Release()
			}
			if got != tt.others {
				t.Errorf("%d of the 2 other connections were used again, want %d", got, tt.others)
			}
			before[0].Release()
		})
	}
}

// Those whose answers were lost ask the ledger together, and are told their own.
func TestManyLostAnswers(t *testing.T) {
	t.Parallel()
	s, w := lossy(t, pgtest.New(t), "")
	const many = 200
	s.sample(t, many)
	s.exec(t, `DELETE FROM plants WHERE id <= 20`) // by somebody else
	conns := s.take(t, lost)
	w.loseAnswers.Store(1 << 20)
	var all sync.WaitGroup
	for id := range int64(many) {
		id++
		all.Go(func() {
			result, err := s.plants.Delete(in(t, patience), deletion(id, "k"))
			_, earlier := errors.AsType[*plant.DeletedEarlierError](err)
			if id <= 20 && !earlier || id > 20 && (err != nil || result.Replayed) {
				t.Errorf("Delete of plant %d: %+v, %v; want that those up to 20 were deleted earlier, and the others now", id, result, err)
			}
		})
	}
	s.plants.fates.awaitWaiting(t, many)
	w.loseAnswers.Store(0)
	before := s.plants.fates.batches()
	for _, conn := range conns {
		conn.Release()
	}
	all.Wait()
	if got := s.plants.fates.batches() - before; got == 0 || got > many/10 {
		t.Errorf("%d asked in %d batches, want a fraction", many, got)
	}
	if got := len(s.ledger(t)); got != many {
		t.Errorf("%d ledger rows, want %d", got, many)
	}
}

// endSessions has each DELETE end its session until the returned function is called.
func endSessions(t *testing.T, database pgtest.Database) (stop func()) {
	t.Helper()
	super := pgtest.Pool(t, database.Super)
	exec := func(sql string) {
		t.Helper()
		if _, err := super.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE FUNCTION public.end() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END$$;
		CREATE TRIGGER "end" BEFORE DELETE ON public.plants FOR EACH STATEMENT EXECUTE FUNCTION public.end()`)
	return func() { exec(`DROP TRIGGER "end" ON public.plants`) }
}

// What nothing came of is tried in a batch again.
func TestManyLostRequests(t *testing.T) {
	t.Parallel()
	const many, tries = 200, 3 // a busy machine may lose the batch that all are in
	for try := range tries {
		if got := transactionsOfLostRequests(t, many); got <= many*3/4 {
			return
		} else if try == tries-1 {
			t.Errorf("%d were deleted in %d transactions, want a fraction", many, got)
		}
	}
}

// transactionsOfLostRequests has many requests lose their first answers at once. It returns how
// many transactions deleted their plants then.
func transactionsOfLostRequests(t *testing.T, many int) int {
	t.Helper()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.sample(t, many)
	stop := endSessions(t, database)
	conns := s.take(t, lost)
	var all sync.WaitGroup
	for id := range int64(many) {
		id++
		all.Go(func() {
			if result, err := s.plants.Delete(in(t, patience), deletion(id, "k")); err != nil || result.Replayed {
				t.Errorf("Delete of plant %d: %+v, %v; want it deleted", id, result, err)
			}
		})
	}
	s.plants.fates.awaitWaiting(t, many)
	stop()
	for _, conn := range conns {
		conn.Release()
	}
	all.Wait()
	if got := len(s.ledger(t)); got != many {
		t.Errorf("%d rows in the ledger, want %d", got, many)
	}
	return len(stringsOf(t, s.owner, `SELECT DISTINCT xmin::text FROM plant_deletions`))
}

// An attempt that nothing came of when the ledger was asked may be committed before the next.
func TestALostRequestThatArrivesLate(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s, w := lossy(t, database, "")
	elsewhere := storeOn(t, database, "")
	s.plant(t, 1)
	stop := endSessions(t, database)
	sent := 0
	w.sending = func() {
		if sent++; sent == 3 { // after the first attempt and the question what became of it
			stop()
			if _, err := elsewhere.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
				t.Error(err)
			}
		}
	}
	result, err := s.plants.Delete(in(t, patience), deletion(1, "k"))
	if err != nil || result.Replayed || sent < 3 {
		t.Errorf("Delete: %+v, %v, after %d messages; want it deleted by this request, after 3", result, err, sent)
	}
	if got := len(s.ledger(t)); got != 1 {
		t.Errorf("%d ledger rows, want 1", got)
	}
}

// A plant may be what ends connections. Who was in its batch is tried in a batch once more,
// and then without it.
func TestAPlantThatEndsSessions(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.sample(t, 40)
	if _, err := pgtest.Pool(t, database.Super).Exec(t.Context(), `
		CREATE FUNCTION public.end() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN old; END$$;
		CREATE TRIGGER "end" BEFORE DELETE ON public.plants FOR EACH ROW WHEN (old.id = 1) EXECUTE FUNCTION public.end()`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(in(t, patience))
	defer cancel()
	var culprit, others sync.WaitGroup
	culprit.Go(func() {
		if _, err := s.plants.Delete(ctx, deletion(1, "k")); !errors.Is(err, plant.ErrUnknown) {
			t.Errorf("Delete of the plant that ends sessions: %v, want ErrUnknown", err)
		}
	})
	for id := int64(2); id <= 40; id++ {
		others.Go(func() {
			result, err := s.plants.Delete(in(t, patience), deletion(id, "k"))
			losses := 0
			for _, a := range result.Course.Attempts {
				if a.Failed == failedLost {
					losses++
				}
			}
			if err != nil || losses > 2 {
				t.Errorf("Delete of plant %d: %v, after %d lost answers; want no error and 2 at most", id, err, losses)
			}
		})
	}
	others.Wait()
	cancel()
	culprit.Wait()
	if got := len(s.ledger(t)); got != 39 || !s.has(t, 1) {
		t.Errorf("%d ledger rows, and plant 1 is there: %v; want 39, and that it is", got, s.has(t, 1))
	}
}

// What takes long at the commit, as a deferred trigger does, holds a batch up once.
func TestADeferredTriggerThatTakesLong(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 1)
	s.exec(t, `CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END$$;
		CREATE CONSTRAINT TRIGGER dawdle AFTER DELETE ON plants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.dawdle()`)
	batches := 0
	s.plants.group.perform = func(g *group, at *place, batch []*member) {
		batches++
		g.deleteBatch(at, batch)
	}
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Errorf("Delete: %v, want none", err)
	}
	if batches != 1 {
		t.Errorf("it was in %d batches, want 1", batches)
	}
	if got := len(s.ledger(t)); got != 1 {
		t.Errorf("%d ledger rows, want 1", got)
	}
}

// What became of a deletion is found out however long that takes, within the request's time.
func TestALostAnswerIsAskedForLonger(t *testing.T) {
	t.Parallel()
	t.Run("where the server is slow to answer", func(t *testing.T) {
		t.Parallel()
		database := pgtest.New(t)
		simulated(t, func(t *testing.T) {
			s, w := lossy(t, database, "")
			s.plant(t, 1)
			w.loseAnswers.Store(1)
			sent := 0
			w.sending = func() {
				if sent++; sent > 1 {
					w.late.Store(int64(3 * commitTimeout / 2))
				}
			}
			if result, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil || result.Replayed {
				t.Errorf("Delete: %+v, %v; want it deleted by this request", result, err)
			}
			time.Sleep(20 * time.Second) // until every connection that was given up is closed
		})
	})
	t.Run("where a policy of the store's is slow", func(t *testing.T) {
		t.Parallel()
		s, w := lossy(t, pgtest.New(t), "")
		s.plant(t, 1)
		s.exec(t, `CREATE FUNCTION public.see() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN
				IF coalesce(current_setting('plantstore.request', true), '') = '' THEN PERFORM pg_sleep(0.6); END IF;
				RETURN true;
			END$$;
			ALTER TABLE plant_deletions ENABLE ROW LEVEL SECURITY;
			CREATE POLICY see ON plant_deletions USING (public.see())`)
		w.loseAnswers.Store(1)
		if result, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil || result.Replayed {
			t.Errorf("Delete: %+v, %v; want it deleted by this request", result, err)
		}
		if w.loseAnswers.Load() > 0 {
			t.Error("no answer was lost: this test tests nothing")
		}
	})
}

// No time limit of the server's ends a commit. What was given up twice because of that is slow: it
// has its turn, and its time, among those.
func TestADeletionWhoseCommitTakesSeconds(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 1)
	s.exec(t, `CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_catalog.pg_sleep(20); RETURN NULL; END$$;
		CREATE CONSTRAINT TRIGGER dawdle AFTER DELETE ON plants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.dawdle()`)
	if _, err := s.plants.Delete(in(t, 6*time.Second), deletion(1, "k")); err == nil {
		t.Fatal("Delete: done, in less time than it takes")
	}
	if got := s.plants.difficult.recall(1); got.what != slow || got.least < commitTimeout {
		t.Errorf("remembered: %+v, want that it is slow, and takes %v at least", got, commitTimeout)
	}
	s.exec(t, `DROP TRIGGER dawdle ON plants`)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil || s.has(t, 1) {
		t.Errorf("Delete: %v, the plant is there: %v; want it deleted", err, s.has(t, 1))
	}
}

// The connection of one that is slow may fall silent, too: another is tried while there is time.
func TestASlowDeletionOnAConnectionThatFallsSilent(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		defer time.Sleep(time.Minute) // until the driver has closed what it gave up
		s, l := newLink(t, database, places, nil)
		s.plant(t, 1)
		s.plants.difficult.note(1, verdict{next: alone, what: slow})
		l.arm([]breach{{direction: toServer, way: bySilence}})
		if _, err := s.plants.Delete(in(t, defaultTimeout), deletion(1, "k")); err != nil || s.has(t, 1) {
			t.Errorf("Delete: %v, the plant is there: %v; want it deleted", err, s.has(t, 1))
		}
		if _, missed := l.up(); missed > 0 {
			t.Error("the connection did not fall silent")
		}
		l.deliver()
	})
}

// One lost answer does not make a deletion slow: it may be the connection. A second does, and the
// deletion goes on as such.
func TestALostAnswerIsNoSlowness(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		defer time.Sleep(time.Minute) // until the driver has closed what it gave up
		s, l := newLink(t, database, places, nil)
		s.sample(t, 2)
		s.plants.difficult.note(2, verdict{next: alone, what: retried}) // its statements are parsed there
		if _, err := s.plants.Delete(in(t, defaultTimeout), deletion(2, "k")); err != nil {
			t.Fatal(err)
		}
		l.arm([]breach{{direction: toServer, way: bySilence}})
		d := deletion(1, "k")
		p := progress{deletion: d, land: func() {}, began: time.Now(), most: defaultTimeout, what: retried, spender: spender{holds: &s.plants.holds, deletion: d}}
		v := s.plants.attempt(in(t, defaultTimeout), &p)
		if v.next != ask || v.what == slow || s.plants.difficult.recall(1).what == slow {
			t.Errorf("an attempt that nobody answered: %+v, want its fate unknown, and that it is not slow", v)
		}
		l.deliver()
	})
	p := progress{what: retried, unsure: true, began: time.Now()}
	if p.learn(verdict{next: ask, what: slow}); p.what != slow {
		t.Errorf("after what made it slow it goes on as %v, want slow", p.what)
	}
}
