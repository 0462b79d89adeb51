package postgres

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

func TestADeletionIsRecordedAndReplayed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	id := s.plant(t, 1)
	d := s.sent(id, `key "1" \ {x},y`)
	r, err := s.Delete(t.Context(), d)
	if err != nil || r.Replayed || r.Attempts != 1 || r.Batch != 1 || s.lives(t, id) {
		t.Fatalf("Delete = %+v, %v, and the plant is there: %t; want one attempt, and that it is gone", r, err, s.lives(t, id))
	}
	if got := value[string](t, s, `SELECT concat_ws(' ', deleted_by, request_id, idempotency_key, plant ->> 'name') FROM plantstore.deletions WHERE plant_id = $1`, int64(id)); got !=
		fmt.Sprintf("%s %s %s plant %d", s.who, d.RequestID, d.Key, id) {
		t.Errorf("the ledger has %q", got)
	}
	d.RequestID = "another"
	if r, err := s.Delete(t.Context(), d); err != nil || !r.Replayed {
		t.Errorf("the second request with the key: %+v, %v; want a replay", r, err)
	}
	s.exec(t, `INSERT INTO public.plants (id, name) VALUES ($1, 'back again')`, int64(id))
	s.exec(t, `UPDATE plantstore.deletions SET restored_at = now() WHERE plant_id = $1`, int64(id))
	if r, err := s.Delete(t.Context(), d); err != nil || !r.Replayed || !s.lives(t, id) {
		t.Errorf("a late retry: %+v, %v, and the plant that came back is there: %t; want a replay that deletes nothing", r, err, s.lives(t, id))
	}
	if r, err := s.Delete(t.Context(), s.of(id, "another key")); err != nil || r.Replayed || s.lives(t, id) {
		t.Errorf("another key: %+v, %v, and the plant is there: %t; want it deleted", r, err, s.lives(t, id))
	}
	at := value[time.Time](t, s, `SELECT max(deleted_at) FROM plantstore.deletions WHERE plant_id = $1`, int64(id))
	_, err = s.Delete(t.Context(), s.of(id, "a third key"))
	if earlier, ok := errors.AsType[*plant.DeletedEarlierError](err); !ok || !earlier.At.Equal(at) {
		t.Errorf("a third key: %v; want that it was deleted earlier, at %s", err, at)
	}
}

// outcomeOf is an outcome in a word.
func outcomeOf(err error) string {
	var earlier *plant.DeletedEarlierError
	var referenced *plant.ReferencedError
	var rule *plant.StoreRuleError
	var budget *plant.OverBudgetError
	switch {
	case err == nil:
		return "deleted"
	case errors.As(err, &earlier):
		return "deleted earlier"
	case errors.As(err, &referenced):
		return strings.TrimSpace("referenced " + referenced.Table)
	case errors.As(err, &rule):
		return strings.TrimSpace("rule " + rule.Constraint)
	case errors.As(err, &budget):
		return "over budget"
	}
	for _, known := range []error{plant.ErrNotFound, plant.ErrBusy, plant.ErrUnavailable, plant.ErrUnknown, plant.ErrMisconfigured, plant.ErrOverloaded} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return err.Error()
}

// Each refusal is returned without a key, and with one it is final: it is returned again when its
// cause is gone and the plant is there, until another key is sent. The log has what the server
// said: its message, SQLSTATE and where it was raised.
func TestRefusals(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	for _, c := range []struct{ name, setup, want, replayed, cause, mend string }{
		{name: "no such plant", setup: `DELETE FROM public.plants WHERE id = {id}; DELETE FROM plantstore.deletions WHERE plant_id = {id}`, want: "no such plant"},
		{name: "deleted by SQL", setup: `DELETE FROM public.plants WHERE id = {id}`, want: "deleted earlier"},
		{name: "referenced", setup: `CREATE TABLE public.orders (plant bigint REFERENCES public.plants); INSERT INTO public.orders VALUES ({id})`,
			want: "referenced orders", replayed: "referenced", mend: `DROP TABLE public.orders`,
			cause: `referenced by table "orders": ERROR: update or delete on table "plants" violates foreign key constraint "orders_plant_fkey" on table "orders" (SQLSTATE 23503)`},
		{name: "restricted", setup: `CREATE TABLE public.orders (plant bigint REFERENCES public.plants ON DELETE RESTRICT); INSERT INTO public.orders VALUES ({id})`,
			want: "referenced orders", replayed: "referenced", mend: `DROP TABLE public.orders`},
		{name: "referenced at the commit", setup: `CREATE TABLE public.orders (plant bigint REFERENCES public.plants DEFERRABLE INITIALLY DEFERRED); INSERT INTO public.orders VALUES ({id})`,
			want: "referenced orders", replayed: "referenced", mend: `DROP TABLE public.orders`},
		{name: "grandchild", setup: `CREATE TABLE public.children (id bigint PRIMARY KEY REFERENCES public.plants ON DELETE CASCADE); INSERT INTO public.children VALUES ({id});
			CREATE TABLE public.grandchildren (child bigint REFERENCES public.children); INSERT INTO public.grandchildren VALUES ({id})`,
			want: "referenced grandchildren", replayed: "referenced", mend: `DELETE FROM public.grandchildren`},
		{name: "trigger raises", setup: trigger(`RAISE EXCEPTION 'plant % is in the catalogue', OLD.id`), want: "rule", mend: noTrigger,
			cause: "refused by a rule of the store: ERROR: plant {id} is in the catalogue (SQLSTATE P0001), at PL/pgSQL function rule() line 1 at RAISE"},
		{name: "trigger raises a code of its own", setup: trigger(`RAISE EXCEPTION 'no' USING ERRCODE = 'MY001'`), want: "rule", mend: noTrigger},
		{name: "constraint of a trigger's table", setup: `CREATE TABLE public.counts (n integer CONSTRAINT few CHECK (n > 0)); INSERT INTO public.counts VALUES (1); GRANT ALL ON public.counts TO PUBLIC;` +
			trigger(`UPDATE public.counts SET n = n - 1; RETURN OLD`), want: "rule few", replayed: "rule", mend: noTrigger},
		{name: "trigger keeps the row", setup: trigger(`RETURN NULL`), want: "rule", mend: noTrigger},
	} {
		t.Run(c.name, func(t *testing.T) { // one after the other, in one database
			s := newStore(t, database)
			id := s.plant(t, 1)
			s.exec(t, strings.ReplaceAll(c.setup, "{id}", fmt.Sprint(id)))
			if c.replayed == "" {
				c.replayed = c.want
			}
			ask := func(what string, d plant.Deletion, want, cause string, replayed bool) {
				t.Helper()
				r, err := s.Delete(t.Context(), d)
				if got := outcomeOf(err); got != want || r.Replayed != replayed {
					t.Errorf("%s: %s, replayed %t (%v); want %s, replayed %t", what, got, r.Replayed, err, want, replayed)
				}
				if cause = strings.ReplaceAll(cause, "{id}", fmt.Sprint(id)); cause != "" && (err == nil || err.Error() != cause) {
					t.Errorf("%s:\n got %v\nwant %s", what, err, cause)
				}
			}
			ask("without a key", s.of(id, "made"), c.want, c.cause, false)
			if n := value[int](t, s, `SELECT count(*) FROM plantstore.deletions WHERE plant_id = $1 AND refused IS NOT NULL`, int64(id)); n != 0 && c.name != "trigger keeps the row" {
				t.Errorf("without a key, %d refusals are recorded; want none", n)
			}
			ask("with a key", s.sent(id, "sent"), c.want, c.cause, false)
			if c.mend != "" {
				s.exec(t, c.mend)
			} else {
				s.exec(t, `INSERT INTO public.plants (id, name) VALUES ($1, 'back')`, int64(id))
			}
			ask("again", s.sent(id, "sent"), c.replayed, "", true)
			if !s.lives(t, id) {
				t.Error("the plant is gone")
			}
			ask("with another key", s.sent(id, "other"), "deleted", "", false)
		})
	}
}

// trigger is SQL for a BEFORE DELETE trigger.
func trigger(body string) string {
	return `CREATE FUNCTION public.rule() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ` + body + `; END $$;
		CREATE TRIGGER rule BEFORE DELETE ON public.plants FOR EACH ROW EXECUTE FUNCTION public.rule()`
}

const noTrigger = `DROP FUNCTION public.rule CASCADE`

// What may be over soon, or somebody has to fix, is never a no, and nothing is recorded.
func TestWhatIsNoRefusal(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	for _, c := range []struct{ name, setup, undo string }{
		{"trigger disabled", `ALTER TABLE public.plants DISABLE TRIGGER record_deletion`, `ALTER TABLE public.plants ENABLE TRIGGER record_deletion`},
		{"trigger for replicas only", `ALTER TABLE public.plants ENABLE REPLICA TRIGGER record_deletion`, `ALTER TABLE public.plants ENABLE ALWAYS TRIGGER record_deletion`},
		{"session as a replica's", `ALTER DATABASE ` + database.Name + ` SET session_replication_role = replica`, `ALTER DATABASE ` + database.Name + ` RESET session_replication_role`},
		{"right taken away", `REVOKE DELETE ON public.plants FROM plantstore_app`, `GRANT DELETE ON public.plants TO plantstore_app`},
		{"function of a trigger", trigger(`PERFORM missing()`), noTrigger},
		{"lock of a trigger's table", trigger(`RAISE EXCEPTION 'out of disk' USING ERRCODE = '58030'`), noTrigger},
		{"another server", trigger(`RAISE EXCEPTION 'no route' USING ERRCODE = 'HV00N'`), noTrigger},
		{"trigger dropped", `DROP TRIGGER record_deletion ON public.plants`, ``},
	} {
		t.Run(c.name, func(t *testing.T) { // one after the other, in one database
			s := newStore(t, database) // its sessions begin after the setup
			id := s.plant(t, 1)
			s.exec(t, c.setup)
			for _, d := range []plant.Deletion{s.of(id, "made"), s.sent(id, "sent")} {
				if _, err := s.Delete(t.Context(), d); !errors.Is(err, plant.ErrMisconfigured) {
					t.Errorf("key %s: %v; want ErrMisconfigured", d.Key, err)
				}
			}
			if n := value[int](t, s, `SELECT count(*) FROM plantstore.deletions`); n != 0 || !s.lives(t, id) {
				t.Errorf("the ledger has %d entries, and the plant is there: %t; want none, and that it is", n, s.lives(t, id))
			}
			s.exec(t, c.undo)
		})
	}
}

// Requests with one key get one answer, also where the cause of a refusal goes meanwhile.
func TestOneKeyAtOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t, pgtest.New(t))
	s.exec(t, `CREATE TABLE public.orders (plant bigint REFERENCES public.plants)`)
	for _, mended := range []bool{false, true} {
		another := s.DB.Plants() // as a second replica, which has no part in the first one's queues
		id := s.plant(t, 1)
		if mended {
			s.exec(t, `INSERT INTO public.orders VALUES ($1)`, int64(id))
		}
		answers := make(chan string)
		var fresh atomic.Int64
		for n := range 32 {
			go func() {
				d := s.sent(id, "one")
				d.RequestID = fmt.Sprint(n)
				r, err := []*Plants{s.Plants, another}[n%2].Delete(context.Background(), d)
				if !r.Replayed {
					fresh.Add(1)
				}
				answers <- strings.TrimSuffix(outcomeOf(err), " orders") // a replay does not know the table
			}()
		}
		want := map[bool]string{false: "deleted", true: "referenced"}[mended]
		for n := range 32 {
			if got := <-answers; got != want {
				t.Errorf("cause removed: %t, answer %d: %s; want %s", mended, n+1, got, want)
			}
			if n == 0 {
				s.exec(t, `DELETE FROM public.orders`)
			}
		}
		if n := fresh.Load(); n != 1 || s.lives(t, id) != mended {
			t.Errorf("cause removed: %t: %d answers are no replays, and the plant is there: %t; want 1, %t", mended, n, s.lives(t, id), mended)
		}
	}
}

// A batch of plants that go, were refused, are missing or take others along: each request
// gets its own outcome.
func TestABatchOfAllKinds(t *testing.T) {
	t.Parallel()
	s := newStore(t, pgtest.New(t))
	first := s.plant(t, 12)
	s.exec(t, fmt.Sprintf(`ALTER TABLE public.plants ADD parent bigint REFERENCES public.plants ON DELETE CASCADE;
		UPDATE public.plants SET parent = %d WHERE id = %d;
		CREATE TABLE public.orders (plant bigint REFERENCES public.plants);
		INSERT INTO public.orders VALUES (%d), (%d)`, first+6, first+11, first+3, first+8)) // 11 leaves with 6
	items := make([]*batchItem, 11)
	deletions := make([]plant.Deletion, 11)
	for n := range items {
		deletions[n] = s.of(first+plant.ID(n), fmt.Sprint(n))
		items[n] = &batchItem{Deletion: &deletions[n], result: make(chan batchResult, 1)}
	}
	s.exec(t, `DELETE FROM public.plants WHERE id = $1`, int64(first)+5)
	s.batches.transact(items)
	for n, i := range items {
		want := map[int]meaning{3: referenced, 5: missing, 8: referenced}[n]
		if r := <-i.result; r.meaning != want {
			t.Errorf("plant %d: %v, %v; want %v", n, r.meaning, r.err, want)
		}
	}
	if got := value[string](t, s, `SELECT concat_ws(' ', deleted_by, request_id, coalesce(idempotency_key, 'no key')) FROM plantstore.deletions WHERE plant_id = $1`, int64(first)+11); got != s.who+" request-6 no key" {
		t.Errorf("the plant that left along is recorded as %q; want that of request 6 without a key", got)
	}
	if n := value[int](t, s, `SELECT count(DISTINCT transaction_id) FROM plantstore.deletions WHERE request_id IS NOT NULL`); n > 3 {
		t.Errorf("the deletions are %d transactions; want 3, as the refusals name their plants", n)
	}
}

// A foreign key that is checked at the commit fails the whole batch, and names no plant.
func TestABatchWithReferencesThatAreDeferred(t *testing.T) {
	t.Parallel()
	s := newStore(t, pgtest.New(t))
	first := s.plant(t, 40)
	s.exec(t, `CREATE TABLE public.orders (plant bigint REFERENCES public.plants DEFERRABLE INITIALLY DEFERRED)`)
	s.exec(t, `INSERT INTO public.orders SELECT id FROM public.plants WHERE id % 9 = 0`)
	deletions := make([]plant.Deletion, 40)
	for n := range deletions {
		deletions[n] = s.sent(first+plant.ID(n), fmt.Sprint(n))
	}
	results := s.together(deletions...)
	for n, d := range deletions {
		kept := d.Plant%9 == 0
		got := <-results[n]
		if reason, outcome, _ := strings.Cut(got, ", "); kept && (reason != "referenced" || !strings.HasSuffix(outcome, "referenced orders")) || !kept && !strings.HasSuffix(got, "deleted") || s.lives(t, d.Plant) != kept {
			t.Errorf("plant %d: %s; want it refused only if an order refers to it, which is %t", d.Plant, got, kept)
		}
	}
	s.exec(t, `DELETE FROM public.orders`)
	for _, d := range deletions {
		want := map[bool]string{true: "referenced", false: "deleted"}[d.Plant%9 == 0]
		if r, err := s.Delete(t.Context(), d); outcomeOf(err) != want || !r.Replayed {
			t.Errorf("plant %d again: %v, replayed %t; want %s, replayed", d.Plant, err, r.Replayed, want)
		}
	}
}

// together sends deletions that would be one batch, and returns their results in order.
func (s *store) together(deletions ...plant.Deletion) []<-chan string {
	release := s.batches.hold()
	results := make([]<-chan string, len(deletions))
	for n, d := range deletions {
		result := make(chan string, 1)
		results[n] = result
		go func() {
			ctx, end := context.WithTimeout(context.Background(), time.Hour)
			defer end()
			r, err := s.Delete(ctx, d)
			result <- strings.Join(append(r.Failed, outcomeOf(err)), ", ")
		}()
		for s.waiting() <= n && len(result) == 0 {
			runtime.Gosched()
		}
	}
	go release()
	return results
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

// blocked waits until a session, other than an earlier one, waits for locks of a process.
func (s *store) blocked(t *testing.T, by uint32, earlier int32) (session int32) {
	t.Helper()
	const sql = ` FROM pg_stat_activity WHERE $1::int = ANY (pg_blocking_pids(pid)) AND pid <> $2`
	pgtest.Await(t, s.admin, `SELECT EXISTS (SELECT`+sql+`)`, int32(by), earlier)
	return value[int32](t, s, `SELECT pid`+sql, int32(by), earlier)
}

// cancel ends a session's statement, as its limits would.
func (s *store) cancel(t *testing.T, session int32) {
	t.Helper()
	s.exec(t, `SELECT pg_cancel_backend($1)`, session)
}

// A locked plant leaves its batch, and takes along only its own principal.
func TestABatchWithALockedPlant(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	id := s.plant(t, 3)
	pid, release := holder(t, pgtest.Shared(t), `SELECT FROM public.plants WHERE id = $1 FOR UPDATE`, int64(id)+1)
	locked := s.of(id+1, "locked")
	locked.Principal += "-locked"
	results := s.together(s.of(id, "1"), locked, s.of(id+2, "3"))
	s.cancel(t, s.blocked(t, pid, 0))
	for _, n := range []int{0, 2} {
		if got, want := <-results[n], "batch_busy, deleted"; got != want {
			t.Errorf("plant %d: %s; want %s", n, got, want)
		}
	}
	alone := s.blocked(t, pid, 0)
	s.cancel(t, alone)
	s.blocked(t, pid, alone) // the patient pool's
	release()
	if got, want := <-results[1], "batch_busy, busy, deleted"; got != want {
		t.Errorf("the locked plant: %s; want %s", got, want)
	}
	for n, want := range []route{inBatch, onSoloPool, inBatch} {
		d := s.of(id+plant.ID(n), "again")
		if got := s.memory.route(&d); got != want {
			t.Errorf("plant %d takes route %d next; want %d", n, got, want)
		}
	}
	locked.Plant = id
	if got := s.memory.route(&locked); got != onBatchPool {
		t.Errorf("another plant of the locked one's principal takes route %d next; want %d", got, onBatchPool)
	}
}

// A deletion that is slow alone made its batch slow, and its principal goes without batches.
func TestASlowDeletionLeavesItsBatch(t *testing.T) {
	t.Parallel()
	l := patient
	l.batchStatement = time.Nanosecond // the server has no limit below 1 ms
	s := storeOn(t, pgtest.Shared(t), pgtest.Shared(t).App, l)
	s.roundTrip.Store(1) // the shortest, which stays
	id := s.plant(t, 2)
	pid, release := holder(t, pgtest.Shared(t), `SELECT FROM public.plants WHERE id = $1 FOR UPDATE`, int64(id)+1)
	locked := s.of(id+1, "locked")
	locked.Principal += "-locked"
	results := s.together(s.of(id, "1"), locked)
	s.cancel(t, s.blocked(t, pid, 0))
	if got, want := <-results[0], "batch_busy, deleted"; got != want {
		t.Errorf("the slow plant: %s; want %s", got, want)
	}
	if d := s.of(id, "again"); s.memory.route(&d) != onBatchPool {
		t.Error("its principal goes on in batches")
	}
	release()
	<-results[1]
}

// Two requests for a plant are never in one batch: both would be told that they deleted it.
func TestOnePlantAtOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	id := s.plant(t, 1)
	results := s.together(s.of(id, "1"), s.of(id, "2"))
	if one, two := <-results[0], <-results[1]; one != "deleted" || two != "deleted earlier" {
		t.Errorf("%s and %s; want deleted and deleted earlier", one, two)
	}
}

// A no for a client's key is recorded although the budget is used up: the plant may come
// back, and the budget may be free again.
func TestANoWithoutBudgetIsFinal(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	id := s.plant(t, 2)
	budget := plant.Budget{Most: 1, Period: time.Hour}
	with := func(d plant.Deletion) plant.Deletion { d.Budget = budget; return d }
	if r, err := s.Delete(t.Context(), with(s.of(id, "first"))); err != nil || r.Batch != 1 {
		t.Fatalf("the first plant: %+v, %v; want it deleted alone", r, err)
	}
	if _, err := s.Delete(t.Context(), with(s.of(id+1, "second"))); outcomeOf(err) != "over budget" {
		t.Fatalf("the second plant: %v; want over budget", err)
	}
	if _, err := s.Delete(t.Context(), with(s.sent(id, "key"))); outcomeOf(err) != "deleted earlier" {
		t.Errorf("a deleted plant: %v; want deleted earlier", err)
	}
	if _, err := s.Delete(t.Context(), with(s.sent(id+1, "key"))); outcomeOf(err) != "over budget" {
		t.Errorf("a plant that is there: %v; want over budget", err)
	}
	s.exec(t, `INSERT INTO public.plants (id, name) VALUES ($1, 'back')`, int64(id))
	if r, err := s.Delete(t.Context(), s.sent(id, "key")); outcomeOf(err) != "deleted earlier" || !r.Replayed || !s.lives(t, id) {
		t.Errorf("the key again without a budget: %+v, %v, and the plant is there: %t; want the recorded no", r, err, s.lives(t, id))
	}
}
