package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// sample fills plants with ids from 1 to n.
func (s store) sample(t *testing.T, n int) {
	t.Helper()
	s.exec(t, `INSERT INTO plants (id, name) SELECT i, 'Boston fern' FROM generate_series(1, $1::bigint) i`, n)
}

// request is the i-th of those that run at once, each of another key, and of one
// of three principals.
func request(id int64, i int) plant.Deletion {
	d := deletion(id, fmt.Sprint("k", i))
	d.Principal = fmt.Sprint("shop ", i%3)
	return d
}

// batchOf returns requests for the plants from 1 to n.
func batchOf(n int) (batch []*member) {
	for i := range n {
		batch = append(batch, &member{deletion: request(int64(i+1), i), verdict: make(chan verdict, 1)})
	}
	return batch
}

// inABatch has a group of the service run a batch, and those whom that sends on go alone. It
// returns what came of each.
func (s store) inABatch(t *testing.T, g *group, batch []*member) []error {
	t.Helper()
	at := place{s.pipelineOn(t)}
	at.unhurried()
	defer func() { at.leave() }()
	g.deleteBatch(&at, slices.Clone(batch))
	errs := make([]error, len(batch))
	for i, m := range batch {
		v := <-m.verdict
		if errs[i] = v.err; v.next == alone {
			_, errs[i] = s.plants.Delete(in(t, patience), m.deletion)
		}
	}
	return errs
}

// deleteInABatch deletes the plants from 1 to n, which are one batch at first.
func (s store) deleteInABatch(t *testing.T, n int) {
	t.Helper()
	if err := errors.Join(s.inABatch(t, s.plants.group, batchOf(n))...); err != nil {
		t.Errorf("deletions in a batch: %v, want none", err)
	}
}

// deleteAtOnce deletes ids concurrently, the i-th by request i, and returns what
// came of each.
func (s store) deleteAtOnce(t *testing.T, ids []int64) []error {
	t.Helper()
	errs := make([]error, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { _, errs[i] = s.plants.Delete(in(t, patience), request(id, i)) })
	}
	wg.Wait()
	return errs
}

func ids(from, to int64) []int64 {
	var all []int64
	for id := from; id <= to; id++ {
		all = append(all, id)
	}
	return all
}

func (s store) transactions(t *testing.T) (n int) {
	t.Helper()
	if err := s.owner.QueryRow(t.Context(), `SELECT count(DISTINCT xmin::text) FROM plant_deletions`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestDeletionsAreCommittedTogether(t *testing.T) {
	t.Parallel()
	const most, tries = 200, 5
	for try := 1; ; try++ { // on a busy machine a batch may take too long, and its members go on alone
		transactions, statements := deleteTogetherIn(t)
		if transactions <= most && statements <= most {
			return
		}
		if try == tries {
			t.Fatalf("400 concurrent deletions took %d transactions and %d statements in the last of %d tries, want %d at most", transactions, statements, tries, most)
		}
	}
}

// deleteTogetherIn counts what 400 concurrent deletions take.
func deleteTogetherIn(t *testing.T) (transactions, statements int) {
	t.Helper()
	s := newStore(t)
	s.sample(t, 400)
	s.exec(t, `CREATE TABLE statements ();
		CREATE FUNCTION tally() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
			'BEGIN INSERT INTO statements DEFAULT VALUES; RETURN NULL; END';
		CREATE TRIGGER tally AFTER DELETE ON plants FOR EACH STATEMENT EXECUTE FUNCTION tally()`)
	errs := s.deleteAtOnce(t, ids(1, 400))
	for i, err := range errs {
		if err != nil {
			t.Errorf("Delete(%d): %v, want none", i+1, err)
		}
	}
	s.checkLedger(t, ledgeredAll(ids(1, 400)))
	if err := s.owner.QueryRow(t.Context(), `SELECT count(*) FROM statements`).Scan(&statements); err != nil {
		t.Fatal(err)
	}
	return s.transactions(t), statements
}

// A batch is not held up by one of its plants for longer than its limit, which the server
// keeps. A deletion on its own may have more.
func TestTheServerLimitsABatch(t *testing.T) {
	t.Parallel()
	var seen int64
	for try := 0; try < 10 && seen == 0; try++ { // on a busy machine a batch may take too long before its trigger is run
		database := pgtest.New(t)
		simulated(t, func(t *testing.T) {
			s := storeOn(t, database, "")
			s.sample(t, 60)
			// In milliseconds, at the most. A sequence keeps also what a batch that took too long saw.
			s.exec(t, `CREATE SEQUENCE public.seen MINVALUE 0;
				CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN
					IF current_setting('plantstore.batch', true) <> '' THEN
						PERFORM setval('public.seen', greatest(s.last_value, (SELECT CASE p.setting WHEN '0' THEN '2147483647' ELSE p.setting END::bigint
							FROM pg_settings p WHERE p.name = 'statement_timeout'))) FROM public.seen s;
					END IF;
					RETURN NULL;
				END$$;
				CREATE TRIGGER see BEFORE DELETE ON public.plants FOR EACH STATEMENT EXECUTE FUNCTION public.see()`)
			s.deleteInABatch(t, 60)
			if err := s.owner.QueryRow(t.Context(), `SELECT last_value FROM public.seen`).Scan(&seen); err != nil {
				t.Fatal(err)
			}
		})
	}
	if seen == 0 || seen > batchStatementTimeout.Milliseconds() {
		t.Errorf("batches ran under a statement_timeout of %d ms, want one of at most %s (0: there was no batch; 2147483647: no limit)", seen, batchStatementTimeout)
	}
}

// ledgered is what the ledger has of a deletion.
func ledgered(id int64, d plant.Deletion) ledgerRow {
	return ledgerRow{id, "Boston fern", d.Principal, &d.RequestID, &d.Key}
}

// ledgeredAll is what the ledger has of ids that were deleted at once.
func ledgeredAll(ids []int64) (all []ledgerRow) {
	for i, id := range ids {
		all = append(all, ledgered(id, request(id, i)))
	}
	return all
}

var byPlant = cmpopts.SortSlices(func(a, b ledgerRow) bool { return a.PlantID < b.PlantID })

// checkLedger compares the ledger, in whatever order it was written.
func (s store) checkLedger(t *testing.T, want []ledgerRow) {
	t.Helper()
	if diff := cmp.Diff(want, s.ledger(t), byPlant); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
}

// A plant that goes with another one is recorded under the request that deleted
// that one, also when many are deleted at once.
func TestCascadesInABatch(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 200)
	s.exec(t, `ALTER TABLE plants ADD parent bigint REFERENCES plants ON DELETE CASCADE`)
	s.exec(t, `CREATE INDEX ON plants (parent)`)
	s.exec(t, `UPDATE plants SET parent = id - 100 WHERE id BETWEEN 101 AND 110`)
	errs := s.deleteAtOnce(t, ids(1, 100))
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	want := ledgeredAll(ids(1, 100))
	for i, id := range ids(1, 10) {
		cascaded := ledgered(id+100, request(id, i))
		cascaded.Key = nil // the key is about the plant that was asked for
		want = append(want, cascaded)
	}
	s.checkLedger(t, want)
}

// Code of the store's that deletes other plants may go on without where that fails. In a batch
// nobody knows for whom they are deleted, which it may not take for such a failure.
func TestDeletionsWhoseErrorsAreCaught(t *testing.T) {
	t.Parallel()
	// Each plant takes along two, the second one by itself or by the first one.
	const along = `
		CREATE FUNCTION public.take(ids bigint[]) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN
			FOR i IN 1 .. cardinality(ids) LOOP
				DELETE FROM public.plants WHERE id = ids[i] + 100;
				DELETE FROM public.plants WHERE id = ids[i] + 200;
			END LOOP;
			RETURN true;
		EXCEPTION WHEN others THEN
			RETURN true;
		END$$;
		CREATE FUNCTION public.along() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
			IF tg_level = 'STATEMENT' THEN
				PERFORM public.take(ARRAY(SELECT id FROM old_table));
			ELSE
				PERFORM public.take(ARRAY[old.id]);
			END IF;
			RETURN old;
		END$$;`
	for name, code := range map[string]string{
		"before the row": `CREATE TRIGGER along BEFORE DELETE ON public.plants FOR EACH ROW EXECUTE FUNCTION public.along()`,
		"after the row":  `CREATE TRIGGER along AFTER DELETE ON public.plants FOR EACH ROW EXECUTE FUNCTION public.along()`,
		"with a virtual column, which is of PostgreSQL 18": `CREATE TRIGGER along AFTER DELETE ON public.plants FOR EACH ROW EXECUTE FUNCTION public.along();
			DO $$BEGIN
				IF current_setting('server_version_num')::int >= 180000 THEN
					EXECUTE 'ALTER TABLE public.plants ADD n int GENERATED ALWAYS AS (length(name)) VIRTUAL';
				END IF;
			END$$`,
		"before it is recorded":    `CREATE TRIGGER along AFTER DELETE ON public.plants REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT EXECUTE FUNCTION public.along()`,
		"after it is recorded":     `CREATE TRIGGER z AFTER DELETE ON public.plants REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT EXECUTE FUNCTION public.along()`,
		"by a trigger's condition": `CREATE TRIGGER along AFTER DELETE ON public.plants FOR EACH ROW WHEN (public.take(ARRAY[old.id])) EXECUTE FUNCTION public.along()`,
		"where the ledger's principals are looked up": `CREATE TABLE public.staff (name text PRIMARY KEY); INSERT INTO public.staff VALUES ('shop 0'), ('shop 1'), ('shop 2');
			ALTER TABLE public.plant_deletions ADD FOREIGN KEY (deleted_by) REFERENCES public.staff, ADD CHECK (request_id LIKE 'request-%');
			CREATE TRIGGER along AFTER DELETE ON public.plants FOR EACH ROW EXECUTE FUNCTION public.along()`,
		"by a rule": `CREATE TABLE public.log (taken boolean); CREATE RULE along AS ON DELETE TO public.plants DO ALSO INSERT INTO public.log VALUES (public.take(ARRAY[old.id]))`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			simulated(t, func(t *testing.T) {
				s := storeOn(t, database, "")
				s.exec(t, `INSERT INTO plants (id, name) SELECT 100 * g + i, 'Boston fern' FROM generate_series(0, 2) g, generate_series(1, 10) i;`+
					along+code)
				want := ledgeredAll(ids(1, 10))
				for i, id := range ids(1, 10) {
					for _, more := range []int64{100, 200} {
						taken := ledgered(id+more, request(id, i))
						taken.Key = nil
						want = append(want, taken)
					}
				}
				s.deleteInABatch(t, 10)
				s.checkLedger(t, want)
			})
		})
	}
}

func TestFatesInABatchAreSeparate(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 300)
	s.exec(t, `CREATE TABLE order_items (plant_id bigint REFERENCES plants ON DELETE RESTRICT)`)
	s.exec(t, `CREATE TABLE baskets (plant_id bigint REFERENCES plants DEFERRABLE INITIALLY DEFERRED)`)
	s.exec(t, `INSERT INTO order_items VALUES (50), (100), (150)`)
	s.exec(t, `INSERT INTO baskets VALUES (51), (151)`)
	errs := s.deleteAtOnce(t, ids(1, 310))
	refused := map[int64]string{50: "order_items", 100: "order_items", 150: "order_items", 51: "baskets", 151: "baskets"}
	for i, err := range errs {
		id := int64(i + 1)
		var referenced *plant.ReferencedError
		switch table, is := refused[id]; {
		case is && (!errors.As(err, &referenced) || referenced.Table != table):
			t.Errorf("Delete(%d): %v, want a reference by %s", id, err, table)
		case id > 300 && !errors.Is(err, plant.ErrNotFound):
			t.Errorf("Delete(%d): %v, want ErrNotFound", id, err)
		case !is && id <= 300 && err != nil:
			t.Errorf("Delete(%d): %v, want none", id, err)
		}
	}
	if got, want := len(s.ledger(t)), 300-len(refused); got != want {
		t.Errorf("%d ledger rows, want %d", got, want)
	}
}

// A DELETE for each shows who is refused, so the others need not go one by one.
func TestWhoseDeletionIsRefused(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 3)
	s.exec(t, `CREATE TABLE order_items (plant_id bigint REFERENCES plants)`)
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	var all []turn
	for _, id := range ids(1, 3) {
		all = append(all, turn{Deletion: deletion(id, "k")})
	}
	for want, d := range all {
		s.exec(t, `INSERT INTO order_items VALUES ($1)`, int64(d.Plant))
		if _, _, at, err := deleteEach(t.Context(), single{conn.Conn()}, all, patience, patience, new(atCommit)); at != want || sqlState(err) != "23503" {
			t.Errorf("plant %d is in order_items: %v at %d, want a violation at %d", d.Plant, err, at, want)
		}
		s.exec(t, `DELETE FROM order_items`)
	}
}

// A refusal at the commit does not show who is refused. Halves do, and the others still
// don't go one by one.
func TestARefusalAtTheCommit(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) { // so that no commit takes too long
		s := storeOn(t, database, "")
		s.sample(t, maxBatch)
		s.exec(t, `CREATE TABLE baskets (plant_id bigint REFERENCES plants DEFERRABLE INITIALLY DEFERRED);
			INSERT INTO baskets VALUES (20)`)
		at := place{s.pipelineOn(t)}
		defer func() { at.leave() }()
		var batch []*member
		var told []verdict
		slow := func(v verdict) bool { return v.what == suspected }
		for try := 0; try == 0 || try < 10 && slices.ContainsFunc(told, slow); try++ { // on a busy machine a statement may take too long
			s.exec(t, `DELETE FROM plants WHERE id <> 20`)
			s.exec(t, `DELETE FROM plant_deletions; INSERT INTO plants (id, name) SELECT i, 'Boston fern' FROM generate_series(1, 64) i WHERE i <> 20`)
			batch, told = batchOf(maxBatch), nil
			s.plants.group.lanes.work = 0 // statements may take as long as in any batch
			s.plants.group.deleteBatch(&at, slices.Clone(batch))
			for _, m := range batch {
				told = append(told, <-m.verdict)
			}
		}
		for i, m := range batch {
			v := told[i]
			_, referenced := errors.AsType[*plant.ReferencedError](v.err)
			if referenced != (m.deletion.Plant == 20) || v.next != done || v.err != nil && !referenced {
				t.Errorf("plant %d: %+v (%v); want 20 referenced, and the others deleted", m.deletion.Plant, v, v.err)
			}
		}
		if got := stringsOf(t, s.owner, `SELECT DISTINCT xmin::text FROM plant_deletions`); len(got) > 6 {
			t.Errorf("%d plants were deleted in %d transactions, want 6", maxBatch-1, len(got))
		}
	})
}

// Refusals that take long, at a commit without a time limit, hold their batch up for a moment
// only.
func TestRefusalsAtTheCommitThatTakeLong(t *testing.T) {
	t.Parallel()
	for _, budget := range []plant.Budget{{}, {Most: 2, Period: time.Hour}} {
		t.Run(fmt.Sprint("a budget of ", budget.Most), func(t *testing.T) {
			t.Parallel()
			testSlowRefusals(t, budget)
		})
	}
}

func testSlowRefusals(t *testing.T, budget plant.Budget) {
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.sample(t, 16)
	s.exec(t, `CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(0.3); RAISE 'no'; END$$;
		CREATE CONSTRAINT TRIGGER refuse AFTER DELETE ON plants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (old.id < 16) EXECUTE FUNCTION public.refuse()`)
	batch := batchOf(16)
	if budget != (plant.Budget{}) {
		withBudget(t, database, budget, "a")
		batch = batchBy("a", 16, budget)
	}
	at := place{s.pipelineOn(t)}
	at.unhurried()
	defer func() { at.leave() }()
	s.plants.group.deleteBatch(&at, slices.Clone(batch))
	sentOn := 0
	for _, m := range batch {
		v := <-m.verdict
		switch id := m.deletion.Plant; {
		case v.next == alone && v.what == suspected:
			sentOn++
		case errors.Is(v.err, plant.ErrStoreRule) == (id == 16), id == 16 && v.err != nil:
			t.Errorf("plant %d: %+v; want those under 16 refused, or that it goes on alone", id, v)
		}
	}
	if sentOn == 0 {
		t.Error("all were brought to an end in one batch, which takes seconds; want that some go on alone")
	}
}

func TestLateRetriesInABatch(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 100)
	deleteAll := func() (replayed int) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for id := range int64(100) {
			wg.Go(func() {
				result, err := s.plants.Delete(in(t, patience), deletion(id+1, "same"))
				if err != nil {
					t.Errorf("Delete(%d): %v", id+1, err)
				}
				mu.Lock()
				defer mu.Unlock()
				if result.Replayed {
					replayed++
				}
			})
		}
		wg.Wait()
		return replayed
	}
	if got := deleteAll(); got != 0 {
		t.Errorf("%d of the first deletions were replays, want 0", got)
	}
	s.sample(t, 50) // half of them come back
	if got := deleteAll(); got != 100 {
		t.Errorf("%d of the retries were replays, want 100", got)
	}
	var left int
	if err := s.owner.QueryRow(t.Context(), `SELECT count(*) FROM plants`).Scan(&left); err != nil || left != 50 {
		t.Errorf("%d plants left, %v; want the 50 that came back", left, err)
	}
}

func TestALockedRowDelaysItsOwnDeletionOnly(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 500)
	unlock := s.lock(t, 250)
	deleted := make(chan error, 1)
	go func() {
		_, err := s.plants.Delete(in(t, patience), deletion(250, "k"))
		deleted <- err
	}()
	// All neighbours end while the row is locked: those that go into the first
	// batches with it, and those that come while it waits.
	for round := range int64(4) {
		if round == 1 {
			s.seeWaits(t, 1)
		}
		errs := s.deleteAtOnce(t, ids(round*50+1, round*50+50))
		if err := errors.Join(errs...); err != nil {
			t.Errorf("Delete of neighbours while a row is locked: %v, want none", err)
		}
	}
	select {
	case err := <-deleted:
		t.Errorf("Delete of the locked plant ended while it was locked: %v", err)
		deleted <- err
	default:
	}
	unlock()
	if err := <-deleted; err != nil {
		t.Errorf("Delete of the locked plant: %v, want none in the end", err)
	}
}

func TestBatchesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 200)
	// Everybody wants the same plants, in opposite orders.
	var all []int64
	for id := range int64(200) {
		all = append(all, id+1, 200-id, id+1)
	}
	errs := s.deleteAtOnce(t, all)
	deleted := 0
	for _, err := range errs {
		var earlier *plant.DeletedEarlierError
		switch {
		case err == nil:
			deleted++
		case !errors.As(err, &earlier):
			t.Errorf("Delete: %v, want none or a DeletedEarlierError", err)
		}
	}
	if deleted != 200 || len(s.ledger(t)) != 200 {
		t.Errorf("%d deletions succeeded, %d ledger rows; want 200 and 200", deleted, len(s.ledger(t)))
	}
	var deadlocks int
	if err := s.owner.QueryRow(t.Context(),
		`SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).Scan(&deadlocks); err != nil || deadlocks != 0 {
		t.Errorf("%d deadlocks, %v; want none", deadlocks, err)
	}
}

// Once the server has said that one takes long it is not cut off after a second or two: it would
// begin anew.
func TestADeletionThatIsSlowByNatureSucceeds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		remembered bool
		want       int
	}{"new": {false, 3}, "remembered": {true, 1}} { // in a batch, by itself, and with time
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			s.sample(t, 3)
			s.dawdles(t, "2.5")
			var tried []int
			for id := int64(1); id <= 3; id++ { // a busy machine may hold an attempt up
				if tt.remembered {
					s.plants.difficult.note(plant.ID(id), verdict{next: alone, what: slow})
				}
				result, err := s.plants.Delete(in(t, patience), deletion(id, "k"))
				if err != nil {
					t.Fatalf("Delete that takes 2.5s: %v, want none", err)
				}
				if got := len(s.ledger(t)); got != int(id) {
					t.Errorf("%d ledger rows, want %d", got, id)
				}
				if tried = append(tried, result.Course.Tried); result.Course.Tried == tt.want {
					return
				}
			}
			t.Errorf("three deletions that take 2.5s were tried %d times, want one of them %d times", tried, tt.want)
		})
	}
}

// What the server ended once after the time that a slow deletion is given first gets all that it
// has when the client comes back.
func TestADeletionThatTakesMostOfTheTimeSucceeds(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 3)
	s.dawdles(t, "6")
	var err error
	for id := int64(1); id <= 3; id++ { // a busy machine may hold an attempt up
		for range 2 {
			if _, err = s.plants.Delete(in(t, 9*time.Second), deletion(id, "k")); err == nil {
				return
			}
		}
	}
	t.Errorf("the second of two deletions that take 6 of 9 s: %v, want none", err)
}

// What is known to take long has more time, all if nobody waits, and leaves some for another attempt.
func TestTheTimeOfASlowDeletion(t *testing.T) {
	t.Parallel()
	simulated(t, func(t *testing.T) {
		const most = 10*time.Second - commitTimeout - margin
		for _, tt := range []struct {
			least, left            time.Duration
			beside, alone          time.Duration
			needsBeside, needAlone time.Duration
		}{
			{0, 10 * time.Second, slowTimeout, most, 0, margin},
			{0, 5 * time.Second, slowTimeout, 5 * time.Second, 0, margin},
			{0, 3 * time.Second, 3 * time.Second, 3 * time.Second, 0, margin},
			{3 * time.Second, 10 * time.Second, 6 * time.Second, most, 6 * time.Second, 3*time.Second + margin},
			{6 * time.Second, 10 * time.Second, most, most, 8 * time.Second, 6*time.Second + margin},
			{8 * time.Second, 10 * time.Second, 10 * time.Second, 10 * time.Second, 8 * time.Second, 8*time.Second + margin},
			{10 * time.Second, 9 * time.Second, 9 * time.Second, 9 * time.Second, 8 * time.Second, 9500 * time.Millisecond},
		} {
			s := progress{what: slow, least: tt.least, most: 10 * time.Second}
			for _, others := range []bool{true, false} {
				want, wantNeeds := tt.alone, tt.needAlone
				if others {
					want, wantNeeds = tt.beside, tt.needsBeside
				}
				if got := s.timeout(in(t, tt.left), others); got != want {
					t.Errorf("one that takes %v at least, with %v left, others wait: %v: it has %v, want %v", tt.least, tt.left, others, got, want)
				}
				if got := s.needs(others); got != wantNeeds {
					t.Errorf("one that takes %v at least, others wait: %v: it needs %v, want %v", tt.least, others, got, wantNeeds)
				}
			}
		}
	})
}

// How long a plant takes is known from the longest attempt at it, until it is deleted.
func TestHowLongAPlantTakesIsRemembered(t *testing.T) {
	t.Parallel()
	m := newMemory()
	for _, v := range []verdict{{next: alone, what: slow, least: 2 * time.Second}, {next: alone, what: slow, least: time.Second}, {next: alone, what: suspected}} {
		m.note(1, v)
		if got := m.recall(1).least; got != 2*time.Second {
			t.Errorf("after an attempt that was ended after %v: at least %v, want 2s", v.least, got)
		}
	}
	m.note(1, verdict{})
	if got := m.recall(1).least; got != 0 {
		t.Errorf("once it was deleted: at least %v, want nothing", got)
	}
}

// A slow deletion is not begun with less time than it is known to take, and less so while others
// wait. That it was sent away is remembered, with how long it has been slow.
func TestASlowDeletionDoesNotBeginInVain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		least   time.Duration
		others  bool
		deletes bool
	}{
		"too little beside others": {3 * time.Second, true, false},
		"enough beside others":     {2 * time.Second, true, true},
		"too little":               {6 * time.Second, false, false},
		"enough":                   {4 * time.Second, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			simulated(t, func(t *testing.T) {
				s := storeOn(t, database, "")
				s.sample(t, 2)
				s.plants.difficult.note(1, verdict{next: alone, what: slow, least: tt.least})
				s.plants.difficult.note(2, verdict{next: alone, what: slow})
				first := s.plants.difficult.recall(1)
				places := s.shares.size[slow]
				for range places {
					if err := s.plants.slowly.enter(t.Context(), time.Time{}); err != nil {
						t.Fatal(err)
					}
				}
				ended := make(chan error, 2)
				go func() {
					_, err := s.plants.Delete(in(t, defaultTimeout), deletion(1, "k"))
					ended <- err
				}()
				time.Sleep(defaultTimeout / 2)
				var all sync.WaitGroup
				if tt.others {
					all.Go(func() {
						if _, err := s.plants.Delete(in(t, defaultTimeout), deletion(2, "k")); err != nil {
							t.Errorf("Delete of the one that waits: %v, want none", err)
						}
					})
					synctest.Wait()
				}
				s.plants.slowly.leave() // the other places stay taken
				err := <-ended
				if deleted := err == nil; deleted != tt.deletes || s.has(t, 1) == deleted || !deleted && !errors.Is(err, plant.ErrBusy) {
					t.Errorf("Delete: %v, the plant is there: %v; want it deleted: %v, or ErrBusy", err, s.has(t, 1), tt.deletes)
				}
				if got := s.plants.difficult.recall(1); !tt.deletes && (got.what != slow || got.least != tt.least || !got.slowSince.Equal(first.slowSince) || !got.until.After(first.until)) {
					t.Errorf("remembered of it: %+v, was %+v; want it for longer", got, first)
				}
				all.Wait()
				for range places - 1 {
					s.plants.slowly.leave()
				}
			})
		})
	}
}

// Whoever waits in vain, for as long as his requests have, keeps his place for the next.
func TestASlowDeletionThatWaitsKeepsItsPlace(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		for range s.shares.size[slow] {
			if err := s.plants.slowly.enter(t.Context(), time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		s.plants.difficult.note(1, verdict{next: alone, what: slow, least: time.Second})
		first := s.plants.difficult.recall(1)
		for range 2 * rememberFor / defaultTimeout {
			if _, err := s.plants.Delete(in(t, defaultTimeout), deletion(1, "k")); !errors.Is(err, plant.ErrBusy) {
				t.Errorf("Delete: %v, want ErrBusy", err)
			}
		}
		if got := s.plants.difficult.recall(1); got.what != slow || got.least != first.least || !got.slowSince.Equal(first.slowSince) {
			t.Errorf("after a minute: %+v, want it slow, for at least %v, since %v", got, first.least, first.slowSince)
		}
	})
}

// Whoever comes back has the place that his plant has got: whoever waits, and came before, has none.
func TestWhoComesBackToBeSlowHasItsPlace(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		s.sample(t, 2)
		places := s.shares.size[slow]
		for range places {
			if err := s.plants.slowly.enter(t.Context(), time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range []plant.ID{1, 2} {
			s.plants.difficult.note(id, verdict{next: alone, what: slow})
			time.Sleep(time.Second)
		}
		var all sync.WaitGroup
		for _, id := range []int64{2, 1} { // who is slow the longest comes last
			all.Go(func() {
				if _, err := s.plants.Delete(in(t, defaultTimeout), deletion(id, "k")); err != nil {
					t.Errorf("Delete of %d: %v, want none", id, err)
				}
			})
			synctest.Wait()
		}
		s.plants.slowly.leave() // the other places stay taken
		all.Wait()
		if got := s.ledger(t); len(got) != 2 || got[0].PlantID != 1 {
			t.Errorf("deleted: %+v, want plant 1 first", got)
		}
		for range places - 1 {
			s.plants.slowly.leave()
		}
	})
}

// A deletion that turns out to be slow goes on with what was learnt of it: how long it takes at least,
// and since when it is slow.
func TestWhatIsLearntOfASlowDeletion(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 1)
	s.dawdles(t, "5")
	d := deletion(1, "k")
	p := progress{deletion: d, land: func() {}, began: time.Now(), most: patience, what: suspected, spender: spender{holds: &s.plants.holds, deletion: d}}
	v := s.plants.attempt(in(t, patience), &p)
	known := s.plants.difficult.recall(1)
	if v.next != alone || v.what != slow || p.least < leastStatementTimeout || p.least > 2*batchStatementTimeout || p.least != known.least {
		t.Errorf("attempt: %+v, at least %v, remembered: %v; want it slow, for at least what it had, and that remembered", v, p.least, known.least)
	}
	if p.slowSince.IsZero() || !p.slowSince.Equal(known.slowSince) {
		t.Errorf("slow since %v, remembered: %v; want the same", p.slowSince, known.slowSince)
	}
}

// Who gives up at the moment that he is let in leaves his place to the next.
func TestWhoGivesUpWhenLetInLeavesNoGap(t *testing.T) {
	t.Parallel()
	simulated(t, func(t *testing.T) {
		for range 200 {
			q := seniority{free: 1}
			if err := q.enter(t.Context(), time.Time{}); err != nil {
				t.Fatal(err)
			}
			gone, give := context.WithCancel(t.Context())
			var all sync.WaitGroup
			all.Go(func() {
				if q.enter(gone, time.Now()) == nil {
					q.leave()
				}
			})
			synctest.Wait()
			all.Go(func() {
				if err := q.enter(in(t, time.Second), time.Now()); err != nil {
					t.Errorf("the next: %v, want it let in", err)
					return
				}
				q.leave()
			})
			synctest.Wait()
			give() // and before he notices it
			q.leave()
			all.Wait()
			if q.free != 1 || q.wanted() {
				t.Fatalf("room for %d, somebody waits: %v; want room for 1", q.free, q.wanted())
			}
		}
	})
}

// Who has been slow the longest is next, however often he came back. Who gives up leaves no gap.
func TestSeniority(t *testing.T) {
	t.Parallel()
	simulated(t, func(t *testing.T) {
		q := seniority{free: 1}
		began := time.Now()
		if err := q.enter(t.Context(), began); err != nil || q.wanted() {
			t.Fatalf("the first: %v, somebody waits: %v; want it let in", err, q.wanted())
		}
		var came []int
		var all sync.WaitGroup
		enter := func(ctx context.Context, name, since int) {
			all.Go(func() {
				if err := q.enter(ctx, began.Add(time.Duration(since)*time.Second)); err == nil {
					came = append(came, name)
					q.leave()
				}
			})
			synctest.Wait()
		}
		gone, give := context.WithCancel(t.Context())
		enter(t.Context(), 3, 30)
		enter(t.Context(), 1, 10)
		enter(gone, 0, 0)
		enter(t.Context(), 4, 30)
		enter(t.Context(), 2, 20)
		give()
		synctest.Wait()
		q.leave()
		all.Wait()
		if want := []int{1, 2, 3, 4}; !slices.Equal(came, want) || q.free != 1 || q.wanted() {
			t.Errorf("let in: %v, room for %d, somebody waits: %v; want %v, and room for 1", came, q.free, q.wanted(), want)
		}
	})
}

// Those who find no row look together for what became of their plants, and each is told its
// own.
func TestLooksAreTakenTogether(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 200)
	s.exec(t, `DELETE FROM plants WHERE id <= 100`)
	for id := int64(101); id <= 110; id++ {
		if _, err := s.plants.Delete(in(t, patience), deletion(id, "k")); err != nil {
			t.Fatal(err)
		}
	}
	conns := s.take(t, explained)
	kinds := []struct {
		name        string
		first, last int64
		told        func(verdict) bool
	}{
		{"deleted by SQL", 1, 100, func(v verdict) bool {
			_, earlier := errors.AsType[*plant.DeletedEarlierError](v.err)
			return earlier
		}},
		{"deleted by the same request", 101, 110, func(v verdict) bool { return v.err == nil && v.replayed }},
		{"never there", 1001, 1100, func(v verdict) bool { return errors.Is(v.err, plant.ErrNotFound) }},
	}
	var all sync.WaitGroup
	many := 0
	for _, kind := range kinds {
		for id := kind.first; id <= kind.last; id++ {
			many++
			all.Go(func() {
				v := s.plants.lookAlone(in(t, patience), turn{Deletion: deletion(id, "k")}, nil, false)
				if !kind.told(v) {
					t.Errorf("a look for plant %d, which was %s: %+v", id, kind.name, v)
				}
			})
		}
	}
	s.plants.looks.awaitWaiting(t, many)
	before := s.plants.looks.batches()
	for _, conn := range conns {
		conn.Release()
	}
	all.Wait()
	if got := s.plants.looks.batches() - before; got == 0 || got > many/10 {
		t.Errorf("%d looks were taken in %d batches, want a fraction", many, got)
	}
}

// awaitWaiting returns when many wait for a batch.
func (g *group) awaitWaiting(t *testing.T, many int) {
	t.Helper()
	for waited := in(t, patience); ; time.Sleep(time.Millisecond) {
		g.mu.Lock()
		waiting := len(g.waiting)
		g.mu.Unlock()
		if waiting == many {
			return
		}
		if waited.Err() != nil {
			t.Fatalf("%d of %d wait for a batch", waiting, many)
		}
	}
}

// batches is how many batches were completed.
func (g *group) batches() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lanes.count
}

// What fails, or takes long, as one plant is looked for says nothing of the others, and
// they don't wait for it.
func TestALookThatFailsIsNobodyElses(t *testing.T) {
	t.Parallel()
	const raise = `RAISE 'not this one' USING ERRCODE = `
	for _, tt := range []struct {
		does string
		own  verdict // but for its error
	}{
		{raise + `'P0001'`, verdict{}},
		{raise + `'23505', SCHEMA = 'public', TABLE = 'plant_deletions', CONSTRAINT = 'plant_deletions_once'`, verdict{}},
		{raise + `'53200'`, verdict{next: alone, what: retried}},
		{raise + `'40001'`, verdict{next: again}},
		{raise + `'57014'`, verdict{next: alone, what: suspected}},
		{`PERFORM pg_sleep(600)`, verdict{next: alone, what: suspected}},
	} {
		t.Run(tt.does, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			s.sample(t, 9)
			s.exec(t, `CREATE FUNCTION public.see(id bigint) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN
					IF id = 2 THEN `+tt.does+`; END IF;
					RETURN false;
				END$$;
				ALTER TABLE plants ENABLE ROW LEVEL SECURITY;
				CREATE POLICY see ON plants USING (public.see(id))`)
			conn, err := s.borrow(in(t, patience), explained, patience)
			if err != nil {
				t.Fatal(err)
			}
			at := place{s.plants.looks.newPipeline(conn)}
			defer func() { at.leave() }()
			told := func() (all []verdict) {
				batch := batchOf(9)
				for _, m := range batch {
					m.explains = because(turn{Deletion: m.deletion}, nil, false)
				}
				s.plants.looks.lookBatch(&at, batch)
				for _, m := range batch {
					all = append(all, <-m.verdict)
				}
				return all
			}
			others := func(all []verdict) []verdict { return slices.Delete(slices.Clone(all), 1, 2) }
			slow := func(v verdict) bool { return v.what == suspected }
			all := told()
			for range 9 { // on a busy machine the others may take long, too
				if slices.ContainsFunc(others(all), slow) {
					all = told()
				}
			}
			if v := all[1]; v.err == nil || v.next != tt.own.next || v.what != tt.own.what {
				t.Errorf("plant 2: %+v; want %+v and an error", v, tt.own)
			}
			for i, v := range others(all) {
				if v.next != done || !errors.Is(v.err, plant.ErrHindered) || strings.Contains(v.err.Error(), "not this one") {
					t.Errorf("one of the others, number %d: %+v; want ErrHindered, and nothing of plant 2", i, v)
				}
			}
			if conn.Conn.Conn().IsClosed() {
				t.Error("the connection was closed, want it as it was")
			}
		})
	}
}

// Who is looked for for longer than a batch has time is told why after all.
func TestALookThatTakesLong(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 1)
	s.exec(t, `CREATE FUNCTION public.see(id bigint) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(1.5); RETURN true; END$$;
		ALTER TABLE plants ENABLE ROW LEVEL SECURITY;
		CREATE POLICY remove ON plants FOR DELETE USING (false);
		CREATE POLICY see ON plants FOR SELECT USING (public.see(id))`)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); !errors.Is(err, plant.ErrHindered) {
		t.Errorf("Delete of a plant that is hidden, and looked for for 1.5 s: %v, want ErrHindered", err)
	}
}

// A look is not planned anew each time, however many take it.
func TestPlansOfLooksAreKept(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 20_000)
	s.exec(t, `DELETE FROM plants WHERE id <= 10000; ANALYZE plants, plant_deletions`)
	conn := pgtest.Connect(t, s.pool.Config().ConnString())
	const batches = 24
	for i := range batches {
		var deletions []plant.Deletion
		for n := range 1 + i%3 {
			deletions = append(deletions, deletion(int64(9_000+100*i+n), "k"))
		}
		if _, _, err := readHistories(t.Context(), conn, deletions, patience); err != nil {
			t.Fatal(err)
		}
	}
	checkKeptPlans(t, conn, batches, 2)
}

// Who does not wait for a look to end was not deleted, and is told so.
func TestALookThatTakesTooLong(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	under := make(chan struct{})
	done := make(chan struct{})
	s.plants.looks.perform = func(_ *group, _ *place, batch []*member) {
		close(under)
		<-done
		tell(batch, verdict{err: plant.ErrNotFound})
	}
	defer close(done)
	// With more time, it would take the look itself.
	ctx, cancel := context.WithCancel(in(t, leastToGoAlone))
	go func() {
		defer cancel()
		select {
		case <-under:
		case <-ctx.Done():
		}
	}()
	if _, err := s.plants.Delete(ctx, deletion(1, "k")); !errors.Is(err, plant.ErrBusy) || errors.Is(err, plant.ErrUnknown) {
		t.Errorf("Delete of a request that ends while its look is under way: %v, want ErrBusy, and nothing unknown", err)
	}
}
