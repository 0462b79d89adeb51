package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// pipelineOn returns a pipeline that has a connection of the store's.
func (s store) pipelineOn(t *testing.T) *pipeline {
	t.Helper()
	conn, err := s.borrow(in(t, patience), together, patience)
	if err != nil {
		t.Fatal(err)
	}
	return s.plants.group.newPipeline(conn)
}

// unhurried has batches wait for their answers for as long as they take.
func (p *pipeline) unhurried() {
	conn := p.Conn.Conn().PgConn().Conn().(*briefFarewell)
	conn.Conn = unhurried{conn.Conn}
}

// join makes a pipeline one of n batches.
func (p *pipeline) join(n int) {
	p.group.mu.Lock()
	defer p.group.mu.Unlock()
	p.load.batches = n
	p.group.pipelines = append(p.group.pipelines, p)
}

// turns are deletions of some plants.
func turns(ids ...int64) (all []turn) {
	for _, id := range ids {
		all = append(all, turn{Deletion: deletion(id, "k")})
	}
	return all
}

// Each batch of those that are on the road together gets its own answer.
func TestAnswersOnAPipelineAreNotMixedUp(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const batches = 300
	s.sample(t, 2*batches) // of each batch the first and second plant are there, or none
	s.exec(t, `CREATE TABLE order_items (plant_id bigint REFERENCES plants)`)
	s.exec(t, `INSERT INTO order_items SELECT id FROM plants WHERE id % 22 = 0`)
	p := s.pipelineOn(t)
	defer p.leave()
	p.unhurried()
	var all sync.WaitGroup
	for i := range int64(batches) {
		all.Go(func() {
			ids := []int64{2*i + 1, 2*i + 2, 1_000_000 + i}
			if i%3 == 0 {
				ids = ids[1:2]
			} else if i%7 == 0 {
				ids = ids[2:]
			}
			want := make([]bool, len(ids))
			refused := false
			for n, id := range ids {
				want[n] = id < 1_000_000
				refused = refused || want[n] && id%22 == 0
			}
			batch := turns(ids...)
			deleted, work, at, err := deleting(batch)(t.Context(), p, batch, patience, patience, new(atCommit))
			switch {
			case refused && sqlState(err) != "23503":
				t.Errorf("batch %v: %v, want a foreign key violation", ids, err)
			case refused && len(ids) == 1 && at != 0:
				t.Errorf("batch %v: refused at %d, want 0", ids, at)
			case !refused && (err != nil || !cmp.Equal(want, deleted) || work <= 0):
				t.Errorf("batch %v: deleted %v in %v, %v; want %v", ids, deleted, work, err, want)
			}
		})
	}
	all.Wait()
	if p.broken.Load() {
		t.Error("the pipeline is broken after all of it, want it in order")
	}
}

// What breaks the connection leaves the fate of every batch on the road unknown. Nobody is
// told another's answer, and the connection's place is free again.
func TestABrokenPipelineLosesAllThatIsOnTheRoad(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	next := int64(1)
	for _, way := range []way{byReset, byEnd, byFatal, bySilence} {
		b := breach{direction: toService, way: way}
		t.Run(b.String(), func(t *testing.T) {
			simulated(t, func(t *testing.T) {
				defer time.Sleep(time.Minute) // until the driver has closed what it gave up
				s, l := newLink(t, database, places, nil)
				s.exec(t, `INSERT INTO plants (id, name) SELECT i, 'fern' FROM generate_series($1::bigint, $1 + 4) i`, next)
				p := s.pipelineOn(t)
				p.join(5)
				conn := p.Conn.Conn()
				l.arm([]breach{b})
				answer := make(chan struct{}) // which the first one waits for, until all are sent
				p.last = answer
				verdicts := make(chan verdict, 5)
				for range 5 {
					all := turns(next)
					next++
					go func() {
						defer p.leave()
						_, _, _, err := deleteEach(context.Background(), p, all, patience, patience, new(atCommit))
						if err == nil {
							t.Errorf("plant %d: no error, want one", all[0].Plant)
							verdicts <- verdict{}
							return
						}
						verdicts <- judge(err, true)
					}()
					synctest.Wait()
				}
				close(answer)
				for range 5 {
					if v := <-verdicts; v.next != ask || !errors.Is(v.err, plant.ErrUnavailable) {
						t.Errorf("a batch that was on the road: %+v, want that the ledger is asked", v)
					}
				}
				if _, missed := l.up(); missed > 0 {
					t.Error("the breach did not come about")
				}
				if p := s.plants.group.joined(); p != nil {
					t.Error("a batch may join the broken pipeline, want none")
				}
				if _, _, _, err := p.send(conn, nil); err == nil || judge(err, true).next != again {
					t.Errorf("a batch that was not sent: %v, want that it is tried again", err)
				}
				for s.shares.inUse[together].Load() > 0 { // or the test ends by its time limit
					time.Sleep(time.Millisecond)
				}
			})
		})
	}
}

// An answer that comes when it is not waited for any more is not taken for that of the next
// batch.
func TestALateAnswerIsNobodys(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 1)
	s.dawdles(t, "1.3")
	p := s.pipelineOn(t)
	p.join(2)
	gone := make([]bool, 2)
	told := make([]error, 2)
	var both sync.WaitGroup
	for i := range 2 {
		sent := p.last
		both.Go(func() {
			defer p.leave()
			var deleted []bool
			if deleted, _, _, told[i] = deleteEach(t.Context(), p, turns(int64(i+1)), patience, patience, new(atCommit)); told[i] == nil {
				gone[i] = deleted[0]
			}
		})
		p.awaitSent(sent)
	}
	both.Wait()
	if !errors.Is(told[0], context.DeadlineExceeded) || !errors.Is(told[1], errBroken) {
		t.Errorf("told %v and %v, deleted %v; want no answer in time, and that the connection broke before", told[0], told[1], gone)
	}
}

// A peer that takes nothing more in the middle of a batch is given up after a time. The next
// batch is not sent to it.
func TestAPeerThatTakesNothingMore(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		defer time.Sleep(time.Minute) // until the connection has had its farewell
		p := s.pipelineOn(t)
		p.join(2)
		conn := p.Conn.Conn().PgConn().Conn().(*briefFarewell)
		nobody, _ := net.Pipe()
		conn.Conn = &fullConn{Conn: conn.Conn, nobody: nobody}
		began := time.Now()
		var told [2]verdict
		for i := range told {
			_, _, _, err := deleteEach(context.Background(), p, turns(int64(i+1)), patience, patience, new(atCommit))
			told[i] = judge(err, true)
			p.leave()
		}
		if took := time.Since(began); took != commitTimeout {
			t.Errorf("both were told after %v, want %v", took, commitTimeout)
		}
		if told[0].next != ask {
			t.Errorf("the batch that was sent in part: %+v, want that the ledger is asked", told[0])
		}
		if told[1].next != again {
			t.Errorf("the batch that was not sent: %+v, want that it is tried again", told[1])
		}
	})
}

// A fullConn takes half of what is written, and then no more.
type fullConn struct {
	net.Conn
	nobody net.Conn // one end of a pipe without anybody at the other, which keeps the deadlines
}

func (c *fullConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b[:len(b)/2])
	if err == nil {
		_, err = c.nobody.Write(b[n:])
	}
	return n, err
}

func (c *fullConn) SetWriteDeadline(t time.Time) error { return c.nobody.SetWriteDeadline(t) }

func (c *fullConn) SetDeadline(t time.Time) error {
	_ = c.nobody.SetDeadline(t)
	return c.Conn.SetDeadline(t)
}

// awaitSent returns when another batch was sent than the one with this answer, or when none
// can be any more.
func (p *pipeline) awaitSent(last chan struct{}) {
	for now := last; now == last && !p.broken.Load(); time.Sleep(time.Millisecond) {
		p.sending.Lock()
		now = p.last
		p.sending.Unlock()
	}
}

// Wherever a pipeline breaks, between two messages of the protocol: what each of its batches
// is told, or not, is true of it, also once everything has arrived that was held back.
// Without PLANTSTORE_TEST_EVERY_FAULT, every seventh case is tried.
func TestEveryFaultOnAPipeline(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	storeOn(t, database, "").exec(t, `CREATE TABLE items (plant bigint REFERENCES plants); CREATE INDEX ON items (plant)`)
	first := int64(1_000_001)
	simulated(t, func(t *testing.T) {
		defer time.Sleep(time.Minute) // until the driver has closed what it gave up
		// Of four batches on the road, the second is refused and the third finds nothing.
		const referred, missing, batches = 1, 2, 4
		give := func(s store, l *link, b *breach) (passed traffic, lies []string) {
			st := stage{store: s, link: l}
			ids := []int64{first, first + 1, first + 2, first + 3}
			first += batches
			s.exec(t, `INSERT INTO plants (id, name) SELECT i, 'fern' FROM unnest($1::bigint[]) i WHERE i <> $2`, ids, ids[missing])
			s.exec(t, `INSERT INTO items VALUES ($1)`, ids[referred])
			// The first batch has its commit looked at, each time, and no other.
			s.plants.group.commitSamples.Store(0)
			s.plants.group.lanes.commit = time.Hour
			p := s.pipelineOn(t)
			p.join(batches)
			var breaches []breach
			if b != nil {
				breaches = append(breaches, *b)
			}
			l.arm(breaches)
			told := make([]error, batches)
			gone := make([]bool, batches)
			var all sync.WaitGroup
			for i, id := range ids {
				all.Go(func() {
					defer p.leave()
					var deleted []bool
					if deleted, _, _, told[i] = deleteEach(context.Background(), p, turns(id), patience, patience, new(atCommit)); told[i] == nil {
						gone[i] = deleted[0]
					}
				})
				synctest.Wait() // until it is sent, and may be answered
			}
			all.Wait()
			passed, missed := l.up()
			if missed > 0 {
				lies = append(lies, "it did not come about")
			}
			answered := st.look(t, ids)
			st.awaitEnd(t, l.deliver())
			settled := st.look(t, ids)
			for i := range ids {
				lie := func(format string, args ...any) {
					lies = append(lies, fmt.Sprintf("batch %d was told %v, %v: ", i+1, gone[i], told[i])+fmt.Sprintf(format, args...))
				}
				want := sight{there: i != missing}
				switch {
				case told[i] == nil && gone[i]:
					if want = (sight{there: false, own: 1}); i == referred || i == missing {
						lie("want no deletion")
					}
				case told[i] == nil && i != missing:
					lie("the plant was there")
				case told[i] != nil && b == nil && i != referred:
					lie("want none")
				case told[i] != nil && judge(told[i], true).next == ask: // nobody knows
					continue
				}
				if answered[i] != want || settled[i] != want {
					lie("the plant is %+v and then %+v, want %+v", answered[i], settled[i], want)
				}
			}
			return passed, lies
		}
		s, l := newLink(t, database, places, nil)
		give(s, l, nil) // which tells the statements
		s, l = newLink(t, database, places, l.parsed)
		passed, lies := give(s, l, nil)
		for _, lie := range lies {
			t.Error("without a breach: ", lie)
		}
		step, cases := 7, 0 // a prime, so that no way is left out
		if os.Getenv("PLANTSTORE_TEST_EVERY_FAULT") != "" {
			step = 1
		}
		for i, c := range casesOf(play{}, passed, false) {
			if i%step != 0 {
				continue
			}
			cases++
			_, lies := give(s, l, &c.breach)
			for _, lie := range lies {
				t.Errorf("%v after %d bytes: %s", c.breach, c.breach.after, lie)
			}
			if t.Failed() {
				return
			}
		}
		t.Logf("%d cases", cases)
	})
}

// A batch that is refused goes on by itself, and those behind it on the pipeline do not wait.
func TestARefusedBatchLeavesThePipeline(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 6)
	s.exec(t, `CREATE TABLE order_items (plant_id bigint REFERENCES plants)`)
	s.exec(t, `INSERT INTO order_items VALUES (2)`)
	g := s.plants.group
	try := func(at *place, ids ...int64) (verdicts []verdict) {
		var batch []*member
		for _, id := range ids {
			batch = append(batch, &member{deletion: deletion(id, "k"), verdict: make(chan verdict, 1)})
		}
		g.deleteBatch(at, batch)
		for _, m := range batch {
			verdicts = append(verdicts, <-m.verdict)
		}
		return verdicts
	}
	check := func(verdicts []verdict, refused int) {
		t.Helper()
		for i, v := range verdicts {
			if v.what == suspected {
				continue // the machine was busy
			}
			_, refers := errors.AsType[*plant.ReferencedError](v.err)
			if want := i == refused; refers != want || !want && v != (verdict{}) {
				t.Errorf("member %d: %+v, want that it is referred to: %v, or deleted", i, v, want)
			}
		}
	}
	p := s.pipelineOn(t)
	p.join(2)
	others := place{p}
	at := place{p}
	check(try(&at, 1, 2, 3), 1)
	if at.pipeline == p || at.shareable || p.load.batches != 1 || !p.shareable {
		t.Errorf("a refused batch beside another goes on on the same connection: %v; that has %d batches, want another connection, and 1", at.pipeline == p, p.load.batches)
	}
	if g.lanes.commit != 0 {
		t.Errorf("a batch that was refused shows that a commit takes %v, want nothing", g.lanes.commit)
	}
	at.leave()
	check(try(&others, 4), -1)
	// The one that is left has the connection to itself, and keeps it.
	check(try(&others, 2), 0)
	if others.pipeline != p || p.shareable || g.joined() != nil {
		t.Error("a refused batch that has the connection to itself changed it, or shares it: want neither")
	}
	check(try(&others, 5), -1)
	others.leave()
	if got := s.shares.inUse[together].Load(); got != 0 || len(g.pipelines) != 0 {
		t.Errorf("%d connections in use and %d pipelines in the end, want none", got, len(g.pipelines))
	}
	broken := s.pipelineOn(t)
	broken.join(1)
	broken.broken.Store(true)
	at = place{broken}
	if err := at.alone(); err != nil || at.pipeline == broken {
		t.Errorf("a refused batch goes on alone on a connection that is broken: %v, %v; want another", at.pipeline == broken, err)
	}
	at.leave()
}

// A refused batch for which there is no other connection leaves the pipeline once. The
// connection would go back to the pool with somebody else's batch on it.
func TestARefusedBatchLeavesOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 1)
	s.exec(t, `CREATE TABLE order_items (plant_id bigint REFERENCES plants)`)
	s.exec(t, `INSERT INTO order_items VALUES (1)`)
	g := s.plants.group
	p := s.pipelineOn(t)
	p.join(1) // another batch is on the road
	defer p.leave()
	taken := int64(1)
	for ; s.shares.free(together); taken++ {
		conn, err := s.borrow(in(t, patience), together, patience)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
	m := &member{deletion: deletion(1, "k"), verdict: make(chan verdict, 1)}
	g.waiting = append(g.waiting, m)
	g.lanes.work, g.lanes.overhead = time.Millisecond, time.Hour
	p.load.began, p.load.heard = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
	g.run(t.Context(), maxBatch)
	if v := <-m.verdict; v.next != again {
		t.Errorf("told %+v, want that it is tried again", v)
	}
	if left, inUse := p.load.batches, s.shares.inUse[together].Load(); left != 1 || inUse != taken {
		t.Errorf("%d batches are left on the pipeline and %d connections in use, want 1 and %d", left, inUse, taken)
	}
}

// A statement that the session has lost, or whose result has another type now, is parsed
// again.
func TestStatementsAreParsedAgain(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 40)
	p := s.pipelineOn(t)
	p.unhurried()
	defer p.leave()
	next := int64(0)
	both := func() error {
		next += 3
		_, _, _, err := deleteTogether(t.Context(), p, turns(next-2, next-1), patience, patience, new(atCommit))
		if err == nil {
			_, _, _, err = deleteEach(t.Context(), p, turns(next), patience, patience, new(atCommit))
		}
		return err
	}
	for range 2 {
		if err := both(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.run(t.Context(), []statement{{sql: `DEALLOCATE ALL`}}); err != nil {
		t.Fatal(err)
	}
	if err := both(); sqlState(err) != "26000" {
		t.Errorf("without the statements: %v, want SQLSTATE 26000", err)
	}
	for range 2 {
		if err := both(); err != nil {
			t.Errorf("once they are parsed again: %v, want none", err)
		}
	}
	// No plant is deleted from such a table. But that is found out by the last statement.
	s.exec(t, `ALTER TABLE plants ALTER id TYPE integer`)
	for i, want := range []string{"0A000", unrecorded, unrecorded} {
		if err := both(); sqlState(err) != want {
			t.Errorf("attempt %d after the result has another type: %v, want SQLSTATE %s", i+1, err, want)
		}
	}
}

// A pipeline parses each statement once, and the plans are kept as they are elsewhere.
func TestPlansAreKeptOnAPipeline(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 20_000)
	p := s.pipelineOn(t)
	p.unhurried()
	defer p.leave()
	const batches = 12
	for i := range int64(batches) {
		for _, batch := range [][]turn{turns(3*i+1, 3*i+2), turns(3*i + 3)} {
			if _, _, _, err := deleting(batch)(t.Context(), p, batch, patience, patience, nothingLeft()); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.toPgx()
	// One that both kinds of batch share, and two for each kind.
	checkKeptPlans(t, p.Conn.Conn(), batches, 5)
}

// Only what is a session of our own, with statements that stay prepared, is shared, and
// not where batches wait for a budget.
func TestWhichConnectionsAreShared(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	pooler := database
	pooler.App = pgtest.Pooler(t, database.App, pgtest.SessionMode)
	for _, tt := range []struct {
		database   pgtest.Database
		parameters string
		what       purpose
		want       bool
	}{
		{database, "", together, true},
		{database, "", budgeted, false},
		{database, "", explained, false},
		{pooler, "", together, false},
		{database, "default_query_exec_mode=exec", together, false},
		{database, "default_query_exec_mode=simple_protocol", together, false},
		{database, "default_query_exec_mode=cache_describe", together, false},
		{database, "statement_cache_capacity=0", together, false},
	} {
		t.Run(fmt.Sprint(tt.what, tt.parameters), func(t *testing.T) {
			s := storeOn(t, tt.database, tt.parameters)
			g := map[purpose]*group{together: s.plants.group, budgeted: s.plants.budgeted, explained: s.plants.refusals}[tt.what]
			conn, err := s.borrow(in(t, patience), tt.what, patience)
			if err != nil {
				t.Fatal(err)
			}
			p := g.newPipeline(conn)
			defer p.leave()
			if p.shareable != tt.want {
				t.Errorf("shareable: %v, want %v", p.shareable, tt.want)
			}
		})
	}
}

// Where somebody waits for a connection, no batch joins a pipeline: it would never end.
func TestPipelinesEndWhereConnectionsAreWaitedFor(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	p := s.pipelineOn(t)
	defer p.leave()
	p.join(1)
	p.group.lanes.work, p.group.lanes.overhead = time.Millisecond, time.Millisecond
	p.load.began, p.load.heard = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
	s.shares.waiting[together].Add(1)
	if got := p.group.joined(); got != nil {
		t.Error("a batch joined while another waits for a connection, want it to wait, too")
	}
	s.shares.waiting[together].Add(-1)
	if got := p.group.joined(); got != p {
		t.Error("no batch joined, want one")
	} else {
		p.leave()
	}
}

// A commit that is slow by nature holds up the batches that are on the road behind it, as no
// time limit of the server's ends it. That is not to happen again soon, and no request is to
// wait for it longer than it has time.
func TestASlowCommitHoldsOthersUpOnce(t *testing.T) {
	t.Parallel()
	for _, then := range []string{"", "RAISE 'refused';"} {
		t.Run(then, func(t *testing.T) {
			t.Parallel()
			testSlowCommit(t, then)
		})
	}
}

func testSlowCommit(t *testing.T, then string) {
	s := newStore(t)
	s.sample(t, 9)
	s.exec(t, `CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF old.id = 1 THEN PERFORM pg_catalog.pg_sleep(0.7); `+then+` END IF; RETURN NULL; END$$;
		CREATE CONSTRAINT TRIGGER dawdle AFTER DELETE ON plants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.dawdle()`)
	g := s.plants.group
	p := s.pipelineOn(t)
	p.join(1)
	g.lanes.work, g.lanes.overhead = time.Millisecond, time.Second // so it does not count as slow yet
	g.mu.Lock()
	g.lanes.sends(&p.load, time.Now())
	g.mu.Unlock()
	sent := p.last
	var slow sync.WaitGroup
	var slowErr error // on a busy machine it may have no answer in time
	slow.Go(func() {
		defer p.leave()
		_, _, _, slowErr = deleteEach(t.Context(), p, turns(1), patience, patience, new(atCommit))
	})
	came := time.Now() // of the slow one, or after
	p.awaitSent(sent)
	// Whoever joins now has to be told in time that it is not known what comes of it.
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	v := g.join(ctx, deletion(2, "k"))
	if took := time.Since(began); v.next != ask && time.Since(came) < 600*time.Millisecond || took > 600*time.Millisecond && time.Since(came) < 800*time.Millisecond {
		t.Errorf("behind a slow commit: %+v after %v, want that the ledger is asked, at the request's deadline", v, took)
	}
	slow.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	if wait := time.Until(g.lanes.wary); wait <= 0 {
		t.Errorf("batches may join after one was slow, since %v; want that none does for a while", -wait)
	}
	if commit := g.lanes.commit; slowErr == nil && commit < 350*time.Millisecond { // we may be late to see it begin
		t.Errorf("a commit of 700 ms was seen to take %v", commit)
	}
}

// A disk or a standby may get slower, by less than what counts as held up. Batches that wait
// for each other's commits on a connection show that soon, though none finds it free.
func TestCommitsThatGetSlowAreNoticed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 100)
	s.exec(t, `CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF old.id > 50 THEN PERFORM pg_catalog.pg_sleep(0.05); END IF; RETURN NULL; END$$;
		CREATE CONSTRAINT TRIGGER dawdle AFTER DELETE ON plants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.dawdle()`)
	g := s.plants.group
	p := s.pipelineOn(t)
	p.unhurried()
	defer p.leave()
	remove := func(ids ...int64) {
		for _, id := range ids {
			if _, _, _, err := deleteEach(t.Context(), p, turns(id), patience, patience, new(atCommit)); err != nil {
				t.Error(err)
			}
		}
	}
	for id := range int64(5 * sampleEvery) {
		remove(id + 1)
	}
	if g.lanes.commit == 0 {
		t.Error("what a quick commit takes is not known, want it known")
	}
	var all sync.WaitGroup
	for i := range int64(4) {
		all.Go(func() {
			for n := range int64(12) {
				remove(51 + 4*n + i)
			}
		})
	}
	all.Wait()
	if got := g.lanes.commit; got < 10*time.Millisecond { // we may be late to see it begin
		t.Errorf("after 48 commits of 50 ms one is taken to take %v", got)
	}
}

// Only the warning of the wait for the standby says anything of a commit. Triggers of the
// store's warn while a statement runs, and with the commit. So does PostgreSQL, of other things:
// auto_explain between the last statement and the commit, and each new transaction id as long
// as few are left.
func TestWarningsThatSayNothingOfTheCommit(t *testing.T) {
	t.Parallel()
	const function = `CREATE FUNCTION public.warn() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE WARNING 'low stock'; RETURN old; END$$;`
	for name, sql := range map[string]string{
		"of a trigger":          function + `CREATE TRIGGER warn BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION public.warn()`,
		"of a deferred trigger": function + `CREATE CONSTRAINT TRIGGER warn AFTER DELETE ON plants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.warn()`,
		"of auto_explain": `DO $$BEGIN
			EXECUTE format('ALTER DATABASE %I SET session_preload_libraries = auto_explain', current_database());
			EXECUTE format('ALTER DATABASE %I SET auto_explain.log_min_duration = 0', current_database());
			EXECUTE format('ALTER DATABASE %I SET auto_explain.log_level = warning', current_database());
		END$$`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			storeOn(t, database, "").sample(t, 40)
			if _, err := pgtest.Pool(t, database.Super).Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
			s := storeOn(t, database, "")
			remove := func(on runner, id int64) {
				if deleted, _, _, err := deleteEach(in(t, patience), on, turns(id), patience, patience, new(atCommit)); err != nil || !deleted[0] {
					t.Errorf("by a %T: deleted %v, %v; want that it is, without an error", on, deleted, err)
				}
			}
			p := s.pipelineOn(t)
			p.unhurried()
			remove(p, 1)
			p.leave()
			if err := s.Lend(in(t, patience), func(conn *pgx.Conn) error {
				remove(single{conn}, 2)
				if stuck, err := isStuck(in(t, patience), conn); err != nil || stuck {
					t.Errorf("commits are stuck: %v, %v; want that they are not", stuck, err)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
			for i, err := range s.deleteAtOnce(t, ids(3, 40)) {
				if err != nil {
					t.Errorf("plant %d, together: %v, want none", 3+i, err)
				}
			}
			if _, err := s.plants.Delete(in(t, patience), keyed(40, "k")); err == nil || !isDefinite(err) {
				t.Errorf("under another key: %v, want that it was deleted earlier", err)
			}
			if result, err := s.plants.Delete(in(t, patience), request(40, 37)); err != nil || !result.Replayed {
				t.Errorf("once more: %+v, %v; want a replay", result, err)
			}
			if lost := counts(t, s.DB)["failed_attempts_total "+failedLost]; lost != 0 {
				t.Errorf("%v answers were lost, want none", lost)
			}
		})
	}
}

// A pooler may keep from us which routine of PostgreSQL's a warning is of.
func TestWhichWarningsCutTheWaitShort(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		severity, routine string
		want              bool
	}{
		{"WARNING", "SyncRepWaitForLSN", true},
		{"WARNING", "", true},
		{"WARNING", "GetNewTransactionId", false},
		{"WARNING", "exec_stmt_raise", false},
		{"NOTICE", "", false},
	} {
		if got := cutsShort(tt.severity, tt.routine); got != tt.want {
			t.Errorf("%s of %q: %v, want %v", tt.severity, tt.routine, got, tt.want)
		}
	}
}

// A primary that was demoted is of no use to those behind, either.
func TestADemotedPrimaryBreaksThePipeline(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	p := s.pipelineOn(t)
	p.join(1)
	defer p.leave()
	_, err := p.run(t.Context(), []statement{
		{sql: `SELECT pg_catalog.set_config('transaction_read_only', 'on', true)`}, {sql: `DELETE FROM public.plants`},
	})
	if sqlState(err) != readOnlyTransaction || !p.broken.Load() {
		t.Errorf("%v, and the pipeline is broken: %v; want SQLSTATE %s, and that it is", err, p.broken.Load(), readOnlyTransaction)
	}
}

// What a pipeline leaves behind has no time limit of its own, for whoever has the connection
// after that, and no statement that still runs.
func TestWhatAPipelineLeavesBehind(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 3)
	s.exec(t, `CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF old.id = 3 THEN PERFORM pg_catalog.pg_sleep(600); END IF; RETURN old; END$$;
		CREATE TRIGGER dawdle BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION public.dawdle()`)
	remove := func(p *pipeline, id int64) error {
		_, _, _, err := deleteEach(t.Context(), p, turns(id), 10*patience, 10*patience, new(atCommit))
		return err
	}
	kept := s.pipelineOn(t) // by a batch that was refused
	kept.join(1)
	at := place{kept}
	defer func() { at.leave() }()
	back := s.pipelineOn(t)
	back.join(1)
	pid := back.Conn.Conn().PgConn().PID()
	if err := errors.Join(remove(kept, 1), at.alone(), remove(back, 2)); err != nil || at.pipeline != kept {
		t.Fatal(err, at.pipeline == kept)
	}
	back.leave()
	conn, err := s.borrow(in(t, patience), retried, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if got := conn.Conn.Conn().PgConn().PID(); got != pid {
		t.Fatalf("the pool gave another connection than that which came back last")
	}
	broken := s.pipelineOn(t)
	broken.join(1)
	pid = broken.Conn.Conn().PgConn().PID()
	if err := remove(broken, 3); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a deletion that takes ten minutes: %v, want that it is given up", err)
	}
	broken.leave()
	// More than commitTimeout has passed for the others, too.
	for name, conn := range map[string]*borrowed{"that a refused batch kept": kept.borrowed, "that went back to the pool": conn} {
		if _, err := conn.Exec(in(t, patience), `SELECT`); err != nil {
			t.Errorf("a statement on a connection %s: %v, want no error", name, err)
		}
	}
	for running, ctx := 1, in(t, patience); running > 0; {
		if err := s.owner.QueryRow(ctx, `SELECT count(*) FROM pg_stat_get_activity($1), pg_sleep(0.01)`, pid).Scan(&running); err != nil {
			t.Fatalf("a statement that was given up runs on, or %v", err)
		}
	}
}

// Batches that are under way together share a connection, and each counts as work that is
// ahead of the next.
func TestBatchesShareAConnection(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	g := s.plants.group
	const work = time.Millisecond
	g.lanes.work, g.lanes.overhead = work, time.Hour
	first, err := g.board(in(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	defer first.leave()
	free := first.load.free
	first.load.began, first.load.heard = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
	second, err := g.board(in(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	defer second.leave()
	if second != first || first.load.batches != 2 {
		t.Errorf("the second batch has the first one's connection: %v, with %d batches; want that, and 2", second == first, first.load.batches)
	}
	if got := first.load.free.Sub(free); free.IsZero() || got < work {
		t.Errorf("the connection is free at %v and, with a second batch, %v later, want some time and %v or more", free, got, work)
	}
}

// A value that the server sends is scanned as what it is.
func TestScan(t *testing.T) {
	t.Parallel()
	var id int64
	var seconds float64
	if err := scan([][]byte{nil, []byte("-7"), []byte("0.25")}, []any{nil, &id, &seconds}); err != nil || id != -7 || seconds != 0.25 {
		t.Errorf("got %d and %v, %v; want -7 and 0.25", id, seconds, err)
	}
	for name, err := range map[string]error{
		"too few values":  scan(nil, []any{&id}),
		"no number":       scan([][]byte{[]byte("x")}, []any{&id}),
		"NULL":            scan([][]byte{nil}, []any{&seconds}),
		"an unknown type": scan([][]byte{[]byte("x")}, []any{new(string)}),
	} {
		if err == nil {
			t.Errorf("%s: no error, want one", name)
		}
	}
}
