package postgres

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

func TestDeletionIsRecordedAndReplayed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	id := s.plant(t, 1)
	d := s.sent(id, `key "1" \ {x},y`)
	if r, err := s.Delete(t.Context(), d); err != nil || r.Replayed || r.Attempts != 1 || r.Batch != 1 || s.lives(t, id) {
		t.Fatalf("Delete = %+v, %v, and the plant is there: %t; want one attempt, and that it is gone", r, err, s.lives(t, id))
	}
	got := value[string](t, s, `SELECT concat_ws(' ', deleted_by, request_id, idempotency_key, plant ->> 'name') FROM plantstore.deletions WHERE plant_id = $1`, int64(id))
	if want := fmt.Sprintf("%s %s %s plant %d", s.who, d.RequestID, d.Key, id); got != want {
		t.Errorf("the ledger has %q; want %q", got, want)
	}
	s.exec(t, `INSERT INTO public.plants (id, name) VALUES ($1, 'back again')`, int64(id))
	d.RequestID = "late retry"
	s.expect(t, d, "replayed deleted")
	if !s.lives(t, id) {
		t.Error("a late retry deleted the plant that came back")
	}
	s.expect(t, s.of(id, "another key"), "deleted")
	at := value[time.Time](t, s, `SELECT max(deleted_at) FROM plantstore.deletions WHERE plant_id = $1`, int64(id))
	_, err := s.Delete(t.Context(), s.of(id, "a third key"))
	if earlier, ok := errors.AsType[*plant.DeletedEarlierError](err); !ok || !earlier.At.Equal(at) {
		t.Errorf("a third key: %v; want that it was deleted earlier, at %s", err, at)
	}
}

// Requests with and without a key get each refusal. A key's refusal is final, even after its
// cause is gone and the plant is there. The log has the server's message, SQLSTATE and context.
func TestRefusalsAreFinal(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	for _, c := range []struct {
		name, setup string
		want, by    string // by: a table or constraint, which a replay does not know
		cause       string // the error's text, if set
		fix         string
	}{
		{name: "no such plant", setup: `DELETE FROM public.plants WHERE id = {id}; DELETE FROM plantstore.deletions WHERE plant_id = {id}`, want: "no such plant", fix: back},
		{name: "deleted by SQL", setup: `DELETE FROM public.plants WHERE id = {id}`, want: "deleted earlier", fix: back},
		{name: "referenced", setup: `CREATE TABLE public.orders (plant bigint REFERENCES public.plants); INSERT INTO public.orders VALUES ({id})`,
			want: "referenced", by: " orders", fix: `DROP TABLE public.orders`,
			cause: `referenced by table "orders": ERROR: update or delete on table "plants" violates foreign key constraint "orders_plant_fkey" on table "orders" (SQLSTATE 23503)`},
		{name: "referenced at the commit", setup: `CREATE TABLE public.orders (plant bigint REFERENCES public.plants DEFERRABLE INITIALLY DEFERRED); INSERT INTO public.orders VALUES ({id})`,
			want: "referenced", by: " orders", fix: `DROP TABLE public.orders`},
		{name: "trigger raises", setup: trigger(`RAISE EXCEPTION 'plant % is in the catalogue', OLD.id`), want: "rule", fix: noTrigger,
			cause: "refused by a rule of the store: ERROR: plant {id} is in the catalogue (SQLSTATE P0001), at PL/pgSQL function rule() line 1 at RAISE"},
		{name: "constraint of a trigger's table", setup: `CREATE TABLE public.counts (n integer CONSTRAINT few CHECK (n > 0)); INSERT INTO public.counts VALUES (1); GRANT ALL ON public.counts TO PUBLIC;` +
			trigger(`UPDATE public.counts SET n = n - 1; RETURN OLD`), want: "rule", by: " few", fix: noTrigger},
		{name: "trigger keeps the row", setup: trigger(`RETURN NULL`), want: "rule", fix: noTrigger},
	} {
		t.Run(c.name, func(t *testing.T) { // one after the other, in one database
			s := newStore(t, database)
			id := s.plant(t, 1)
			its := strings.NewReplacer("{id}", fmt.Sprint(id))
			s.exec(t, its.Replace(c.setup))
			_, err := s.Delete(t.Context(), s.of(id, "made"))
			if outcomeOf(err) != c.want+c.by || c.cause != "" && err.Error() != its.Replace(c.cause) {
				t.Errorf("without a key:\n got %v\nwant %s%s %s", err, c.want, c.by, its.Replace(c.cause))
			}
			n := value[int](t, s, `SELECT count(*) FROM plantstore.deletions WHERE plant_id = $1 AND refused IS NOT NULL`, int64(id))
			if n != 0 && c.name != "trigger keeps the row" { // which only a record can end
				t.Errorf("without a key, %d refusals are recorded; want none", n)
			}
			s.expect(t, s.sent(id, "sent"), c.want+c.by)
			s.exec(t, its.Replace(c.fix))
			s.expect(t, s.sent(id, "sent"), "replayed "+c.want)
			if !s.lives(t, id) {
				t.Error("the plant is gone")
			}
			s.expect(t, s.sent(id, "other"), "deleted")
		})
	}
}

const (
	back      = `INSERT INTO public.plants (id, name) VALUES ({id}, 'back')`
	noTrigger = `DROP FUNCTION public.rule CASCADE`
)

// trigger is SQL for a BEFORE DELETE trigger.
func trigger(body string) string {
	return `CREATE FUNCTION public.rule() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ` + body + `; END $$;
		CREATE TRIGGER rule BEFORE DELETE ON public.plants FOR EACH ROW EXECUTE FUNCTION public.rule()`
}

// An error that may be over soon, or that an operator has to fix, is no refusal and is not
// recorded.
func TestTemporaryErrorsAreNotRecorded(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	for _, c := range []struct{ name, setup, undo string }{
		{"trigger disabled", `ALTER TABLE public.plants DISABLE TRIGGER record_deletion`, `ALTER TABLE public.plants ENABLE TRIGGER record_deletion`},
		{"trigger for replicas only", `ALTER TABLE public.plants ENABLE REPLICA TRIGGER record_deletion`, `ALTER TABLE public.plants ENABLE ALWAYS TRIGGER record_deletion`},
		{"session as a replica's", `ALTER DATABASE ` + database.Name + ` SET session_replication_role = replica`, `ALTER DATABASE ` + database.Name + ` RESET session_replication_role`},
		{"right taken away", `REVOKE DELETE ON public.plants FROM plantstore_app`, `GRANT DELETE ON public.plants TO plantstore_app`},
		{"trigger out of disk space", trigger(`RAISE EXCEPTION 'no space' USING ERRCODE = '58030'`), noTrigger},
	} {
		t.Run(c.name, func(t *testing.T) { // one after the other, in one database
			s := newStore(t, database) // its sessions begin after the setup
			id := s.plant(t, 1)
			s.exec(t, c.setup)
			s.expect(t, s.of(id, "made"), plant.ErrMisconfigured.Error())
			s.expect(t, s.sent(id, "sent"), plant.ErrMisconfigured.Error())
			if n := value[int](t, s, `SELECT count(*) FROM plantstore.deletions`); n != 0 || !s.lives(t, id) {
				t.Errorf("the ledger has %d entries, and the plant is there: %t; want none, and that it is", n, s.lives(t, id))
			}
			s.exec(t, c.undo)
		})
	}
}

// Concurrent requests with one key get the same answer from two replicas, even if the cause of a
// refusal goes away meanwhile.
func TestConcurrentRequestsWithOneKey(t *testing.T) {
	t.Parallel()
	s := newStore(t, pgtest.New(t))
	replicas := []*Plants{s.Plants, s.DB.Plants()}
	s.exec(t, `CREATE TABLE public.orders (plant bigint REFERENCES public.plants)`)
	for _, want := range []string{"deleted", "referenced"} {
		id := s.plant(t, 1)
		if want == "referenced" {
			s.exec(t, `INSERT INTO public.orders VALUES ($1)`, int64(id))
		}
		answers := make(chan string)
		for n := range 32 {
			go func() {
				d := s.sent(id, "one")
				d.RequestID = fmt.Sprint(n)
				answers <- strings.TrimSuffix(inWords(replicas[n%2].Delete(context.Background(), d)), " orders")
			}()
		}
		first := 0 // answers that are no replays
		for n := range 32 {
			answer, replayed := strings.CutPrefix(<-answers, "replayed ")
			if answer != want {
				t.Errorf("answer %d: %s; want %s", n+1, answer, want)
			}
			if !replayed {
				first++
			}
			if n == 0 {
				s.exec(t, `DELETE FROM public.orders`)
			}
		}
		if lives := s.lives(t, id); first != 1 || lives != (want == "referenced") {
			t.Errorf("%s: %d answers are no replays, and the plant is there: %t; want 1", want, first, lives)
		}
	}
}

// A batch has plants that are deleted, refused, missing or that take others along. Each request
// gets its own outcome. Two requests for one plant are never in one batch: both would get a 204.
func TestBatchReturnsEachPlantsOutcome(t *testing.T) {
	t.Parallel()
	s := newStore(t, pgtest.New(t))
	first := s.plant(t, 12)
	s.exec(t, fmt.Sprintf(`ALTER TABLE public.plants ADD parent bigint REFERENCES public.plants ON DELETE CASCADE;
		UPDATE public.plants SET parent = %d WHERE id = %d;
		CREATE TABLE public.orders (plant bigint REFERENCES public.plants);
		INSERT INTO public.orders VALUES (%d), (%d);
		DELETE FROM public.plants WHERE id = %d`, first+6, first+11, first+3, first+8, first+5)) // 11 leaves with 6
	var deletions []plant.Deletion
	for n := range plant.ID(11) {
		deletions = append(deletions, s.of(first+n, fmt.Sprint(n)))
	}
	deletions = append(deletions, s.of(first, "again"))
	for n, result := range s.together(deletions...) {
		want := "deleted"
		switch n {
		case 3, 8:
			want = "referenced, referenced orders"
		case 5, 11:
			want = "deleted earlier"
		}
		if got := <-result; got != want {
			t.Errorf("deletion %d: %s; want %s", n, got, want)
		}
	}
	if n := value[int](t, s, `SELECT count(DISTINCT transaction_id) FROM plantstore.deletions WHERE request_id IS NOT NULL`); n > 3 || s.lives(t, first+11) {
		t.Errorf("the deletions are %d transactions; want 3, as the refusals name their plants, and 11 to leave with 6", n)
	}
}

// A plant may come back after an attempt found no row, and before the ledger is asked why. Then
// the deletion is tried again.
func TestPlantThatCameBackIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := newStore(t, pgtest.New(t))
	id := s.plant(t, 1)
	s.exec(t, `CREATE SEQUENCE public.attempts; GRANT USAGE ON SEQUENCE public.attempts TO PUBLIC;`+
		trigger(`RETURN CASE WHEN nextval('public.attempts') < 3 THEN NULL ELSE OLD END`))
	if r, err := s.Delete(t.Context(), s.sent(id, "key")); err != nil || r.Replayed || r.Attempts != 3 || s.lives(t, id) {
		t.Errorf("Delete: %+v, %v, and the plant is there: %t; want it deleted by the third attempt", r, err, s.lives(t, id))
	}
}

// together sends deletions that would be one batch, and returns their results in order.
func (s *store) together(deletions ...plant.Deletion) []<-chan string {
	release := s.batches.hold()
	results := make([]<-chan string, len(deletions))
	for n, d := range deletions {
		results[n] = s.begin(context.Background(), d)
		for s.waiting() <= n && len(results[n]) == 0 {
			runtime.Gosched()
		}
	}
	go release()
	return results
}

// begin sends a deletion. Its result has the reasons of failed attempts, and the outcome.
func (s *store) begin(ctx context.Context, d plant.Deletion) <-chan string {
	result := make(chan string, 1)
	go func() {
		r, err := s.Delete(ctx, d)
		result <- strings.Join(append(r.Failed, inWords(r, err)), ", ")
	}()
	return result
}

// waiting returns how many deletions are in the batches' queue, or wait for a plant.
func (s *store) waiting() int {
	s.batches.mu.Lock()
	n := len(s.batches.queue)
	s.batches.mu.Unlock()
	s.onePlant.mu.Lock()
	defer s.onePlant.mu.Unlock()
	for _, slot := range s.onePlant.inUse {
		n += slot.users - 1
	}
	return n
}

// cancel ends the statement of a session that waits for a process, as its limits would.
func (s *store) cancel(t *testing.T, by uint32) {
	t.Helper()
	pgtest.AwaitBlocked(t, s.admin, by, 1)
	s.exec(t, `SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE $1::int = ANY (pg_blocking_pids(pid))`, int32(by))
}

// A locked plant leaves its batch.
func TestLockedPlantLeavesItsBatch(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	id := s.plant(t, 3)
	pid, release := holder(t, pgtest.Shared(t), `SELECT FROM public.plants WHERE id = $1 FOR UPDATE`, int64(id)+1)
	locked := s.of(id+1, "locked")
	locked.Principal += "-locked"
	results := s.together(s.of(id, "1"), locked, s.of(id+2, "3"))
	s.cancel(t, pid)
	for _, n := range []int{0, 2} {
		if got, want := <-results[n], "batch_busy, deleted"; got != want {
			t.Errorf("plant %d: %s; want %s", n, got, want)
		}
	}
	s.cancel(t, pid) // the attempt of the locked one alone
	release()
	if got, want := <-results[1], "batch_busy, busy, deleted"; got != want {
		t.Errorf("the locked plant: %s; want %s", got, want)
	}
	if got := s.memory.route(&locked); got != onSoloPool {
		t.Errorf("the locked plant takes route %d next; want %d", got, onSoloPool)
	}
}

// A refusal of a client's key is recorded even if the budget is used up: the plant may come
// back, and the budget may be free again. Deletions with a budget go in no batch.
func TestRefusalWithoutBudgetIsFinal(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.batches.execute = func(items []*batchItem) {
		for _, i := range items {
			if i.Budget != (plant.Budget{}) {
				t.Errorf("the deletion %q of a principal with a budget is in a batch", i.RequestID)
			}
		}
		s.batches.transact(items)
	}
	id := s.plant(t, 2)
	with := func(d plant.Deletion) plant.Deletion {
		d.Budget = plant.Budget{Most: 1, Period: time.Hour}
		return d
	}
	s.expect(t, with(s.of(id, "first")), "deleted")
	s.expect(t, with(s.of(id+1, "second")), "over budget")
	if r, err := s.Delete(t.Context(), with(s.of(id+1, "third"))); outcomeOf(err) != "over budget" || r.Attempts != 0 {
		t.Errorf("once the budget is used up: %v after %d attempts; want none", err, r.Attempts)
	}
	s.expect(t, with(s.sent(id, "key")), "deleted earlier")
	s.expect(t, with(s.sent(id+1, "key")), "over budget")
	s.exec(t, `INSERT INTO public.plants (id, name) VALUES ($1, 'back')`, int64(id))
	s.expect(t, s.sent(id, "key"), "replayed deleted earlier")
	if !s.lives(t, id) {
		t.Error("the plant that came back is gone")
	}
}
