package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// keyed is a deletion under a key that the client sent.
func keyed(id int64, key string) plant.Deletion {
	d := deletion(id, key)
	d.KeySent = true
	return d
}

// refusals returns plant, key and turn of the refusals that are recorded.
func (s store) refusals(t *testing.T) []string {
	t.Helper()
	return stringsOf(t, s.owner, `SELECT format('%s %s %s', plant_id, CASE WHEN idempotency_key IN ('k', 'other') THEN idempotency_key END, turn)
		FROM plant_deletions WHERE plant IS NULL ORDER BY id`)
}

// late runs an attempt of an earlier request, which was held back until now.
func (s store) late(t *testing.T, d plant.Deletion, number int) (deleted bool, err error) {
	t.Helper()
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	ids, _, _, err := deleteEach(t.Context(), single{conn.Conn()}, []turn{{Deletion: d, number: number}}, patience, patience, new(atCommit))
	return err == nil && ids[0], err
}

// insist deletes, and does again what a client does that is told that the plant is busy: on
// a busy machine a request can look as old as the refusal of the one before.
func (s store) insist(t *testing.T, d plant.Deletion) (plant.Result, error) {
	t.Helper()
	for ctx := in(t, patience); ; {
		result, err := s.plants.Delete(ctx, d)
		if !errors.Is(err, plant.ErrBusy) || ctx.Err() != nil {
			return result, err
		}
	}
}

// Whatever a client was told no of stays as it is when an attempt of that request
// comes late: whether the plant came back, came first, or was let go.
func TestAfterANoNothingOfTheRequestRuns(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		before, after string
		want          error
	}{
		{"referred to", `INSERT INTO plants VALUES (1, 'Boston fern'); CREATE TABLE items (plant bigint REFERENCES plants); INSERT INTO items VALUES (1)`,
			`DELETE FROM items`, &plant.ReferencedError{Table: "items"}},
		{"deleted earlier", `INSERT INTO plants VALUES (1, 'Boston fern'); DELETE FROM plants`,
			`INSERT INTO plants VALUES (1, 'Boston fern')`, new(plant.DeletedEarlierError)},
		{"never there", ``, `INSERT INTO plants VALUES (1, 'Boston fern')`, plant.ErrNotFound},
		{"kept by a trigger", `INSERT INTO plants VALUES (1, 'Boston fern');
			CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER keep BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION keep()`, `DROP TRIGGER keep ON plants`, plant.ErrStoreRule},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			s.exec(t, test.before)
			// Others' refusals count for others.
			for _, d := range []plant.Deletion{keyed(1, "other"), {Plant: 1, Principal: "somebody", Key: "k", KeySent: true}} {
				for range 2 {
					if _, err := s.insist(t, d); err == nil {
						t.Fatalf("Delete for %+v: no error, want %v", d, test.want)
					}
				}
			}
			for range 2 {
				_, err := s.insist(t, keyed(1, "k"))
				if fmt.Sprintf("%T", err) != fmt.Sprintf("%T", test.want) && !errors.Is(err, test.want) {
					t.Fatalf("Delete: %v, want %v", err, test.want)
				}
			}
			s.exec(t, test.after)
			for number := range 2 {
				if deleted, err := s.late(t, keyed(1, "k"), number); deleted || sqlState(err) != uniqueViolation || !s.has(t, 1) {
					t.Errorf("an attempt of turn %d that came after the no: deleted %v, %v; the plant is there: %v; want a violation of plant_deletions_once, and the plant",
						number, deleted, err, s.has(t, 1))
				}
			}
			// The client's next request is another turn.
			if result, err := s.insist(t, keyed(1, "k")); err != nil || result.Replayed {
				t.Fatalf("the next request: %+v, %v; want deleted", result, err)
			}
			s.plant(t, 1)
			for number := range 3 {
				if deleted, _ := s.late(t, keyed(1, "k"), number); deleted {
					t.Errorf("an attempt of turn %d deleted the plant that came back", number)
				}
			}
			if result, err := s.insist(t, keyed(1, "k")); err != nil || !result.Replayed || !s.has(t, 1) {
				t.Errorf("a late retry: %+v, %v, the plant is there: %v; want replayed, and the plant", result, err, s.has(t, 1))
			}
			if diff := cmp.Diff([]string{"1 other 0", "1 other 1", "1 k 0", "1 k 1", "1 k 0", "1 k 1"}, s.refusals(t)); diff != "" {
				t.Errorf("refusals (-want +got):\n%s", diff)
			}
			turns := stringsOf(t, s.owner, `SELECT turn::text FROM plant_deletions WHERE plant IS NOT NULL AND deleted_by = 'tester'`)
			if diff := cmp.Diff([]string{"2"}, turns); diff != "" {
				t.Errorf("turn of the deletion (-want +got):\n%s", diff)
			}
		})
	}
}

// A no is recorded where an attempt may be open, and costs nothing elsewhere.
func TestARefusalIsRecordedOnlyWhereAnAttemptMayBeOpen(t *testing.T) {
	t.Parallel()
	s, w := lossy(t, pgtest.New(t), "")
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); !errors.Is(err, plant.ErrNotFound) {
		t.Fatalf("Delete: %v, want ErrNotFound", err)
	}
	if got := s.refusals(t); len(got) != 0 {
		t.Errorf("after a no without a key of the client's: refusals %q, want none", got)
	}
	w.loseAnswers.Store(1)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); !errors.Is(err, plant.ErrNotFound) {
		t.Fatalf("Delete whose first answer was lost: %v, want ErrNotFound", err)
	}
	for range 2 {
		if _, err := s.plants.Delete(in(t, patience), keyed(1, "other")); !errors.Is(err, plant.ErrNotFound) {
			t.Fatalf("Delete: %v, want ErrNotFound", err)
		}
	}
	if diff := cmp.Diff([]string{"1 k 0", "1 other 0", "1 other 1"}, s.refusals(t)); diff != "" {
		t.Errorf("refusals (-want +got):\n%s", diff)
	}
}

// An attempt that is about to be committed is waited for. Once it is, the plant was
// deleted under the key after all.
func TestARefusalWaitsForAnAttemptUnderWay(t *testing.T) {
	t.Parallel()
	for _, commits := range []bool{true, false} {
		t.Run(fmt.Sprintf("commits=%v", commits), func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			s.exec(t, `CREATE TABLE items (plant bigint REFERENCES plants); INSERT INTO plants VALUES (1, 'Boston fern'); INSERT INTO items VALUES (1)`)
			tx, err := s.owner.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			// The entry of an attempt, whose answer hangs.
			if _, err := tx.Exec(t.Context(), `INSERT INTO plant_deletions (plant_id, shape, plant, deleted_by, request_id, idempotency_key)
				VALUES (1, 1, '(1)', 'tester', 'before', 'k')`); err != nil {
				t.Fatal(err)
			}
			type answer struct {
				result plant.Result
				err    error
			}
			answered := make(chan answer)
			go func() {
				result, err := s.plants.Delete(in(t, patience), keyed(1, "k"))
				answered <- answer{result, err}
			}()
			s.seeWaits(t, 1)
			end := tx.Rollback
			if commits {
				end = tx.Commit
			}
			if err := end(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := <-answered
			if _, refused := errors.AsType[*plant.ReferencedError](got.err); commits != got.result.Replayed || commits == refused {
				t.Errorf("got %+v, %v; want replayed: %v, otherwise a ReferencedError", got.result, got.err, commits)
			}
		})
	}
}

// A refusal that can't be written leaves the fate of an open attempt unknown.
func TestARefusalThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	setUp := storeOn(t, database, "")
	setUp.exec(t, `REVOKE EXECUTE ON FUNCTION plantstore_refuse FROM plantstore_app`)
	simulated(t, func(t *testing.T) {
		s, w := lossy(t, database, "")
		_, err := s.plants.Delete(in(t, time.Second), keyed(1, "k"))
		if err == nil || isDefinite(err) || errors.Is(err, plant.ErrUnknown) {
			t.Errorf("Delete: %v, want neither a definite no nor ErrUnknown, as no attempt was lost", err)
		}
		w.loseAnswers.Store(1)
		if _, err := s.plants.Delete(in(t, time.Second), keyed(2, "k")); !errors.Is(err, plant.ErrUnknown) {
			t.Errorf("Delete whose first answer was lost: %v, want ErrUnknown", err)
		}
	})
}

// What a trigger of the store's on the ledger says to a refusal is no answer about the
// plant: an attempt that is open would delete it all the same.
func TestARefusalThatTheStoreKeepsOut(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"raises":       `BEGIN RAISE 'no'; END`,
		"needs a row":  `BEGIN INSERT INTO public.audit VALUES (NEW.plant); RETURN NEW; END`,
		"says nothing": `BEGIN RETURN NULL; END`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			s.exec(t, `CREATE TABLE items (plant bigint REFERENCES plants); INSERT INTO plants VALUES (1, 'Boston fern'); INSERT INTO items VALUES (1);
				CREATE TABLE audit (record text NOT NULL);
				CREATE FUNCTION keep_out() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$`+body+`$$;
				CREATE TRIGGER keep_out BEFORE INSERT ON plant_deletions FOR EACH ROW WHEN (NEW.plant IS NULL) EXECUTE FUNCTION keep_out()`)
			for _, id := range []int64{1, 2} {
				if _, err := s.plants.Delete(in(t, patience), keyed(id, "k")); !errors.Is(err, plant.ErrHindered) {
					t.Errorf("Delete of plant %d: %v, want ErrHindered", id, err)
				}
			}
		})
	}
}

// A client that comes back again and again costs the database no more each time.
func TestManyRefusals(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.exec(t, `INSERT INTO plant_deletions (plant_id, deleted_by, idempotency_key, turn) SELECT 1, 'tester', 'k', i FROM generate_series(0, 9999) i`)
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	var refused bool
	var read int64
	if err := tx.QueryRow(t.Context(), `SELECT plantstore_refuse(1, 'tester', 'request', 'k')`).Scan(&refused); err != nil || !refused {
		t.Fatalf("plantstore_refuse = %v, %v; want true, none", refused, err)
	}
	if err := tx.QueryRow(t.Context(), `SELECT pg_stat_get_xact_tuples_fetched('plant_deletions_once'::regclass) + pg_stat_get_xact_tuples_returned('plant_deletions_once'::regclass)`).Scan(&read); err != nil || read > 10 {
		t.Errorf("after 10000 refusals, the next one read %d entries, %v; want one or two", read, err)
	}
}

// The function that writes refusals can't make a deletion up, and shows nothing.
func TestRefusalsAreNoDeletions(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.plant(t, 1)
	if _, err := s.plants.Delete(in(t, patience), keyed(1, "k")); err != nil {
		t.Fatal(err)
	}
	for _, id := range []int64{1, 2} {
		if _, err := s.plants.Delete(in(t, patience), keyed(id, "other")); err == nil {
			t.Fatal("Delete: no error, want a refusal")
		}
	}
	if diff := cmp.Diff([]string{"1 other 0", "2 other 0"}, s.refusals(t)); diff != "" {
		t.Fatalf("refusals (-want +got):\n%s", diff)
	}
	if list, _, err := l.List(t.Context(), LedgerFilter{}, 100, true); err != nil || len(list) != 1 || list[0].IdempotencyKey != "k" {
		t.Errorf("List = %+v, %v; want the one deletion", list, err)
	}
	var refusal int64
	if err := s.owner.QueryRow(t.Context(), `SELECT max(id) FROM plant_deletions`).Scan(&refusal); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Get(t.Context(), refusal); !errors.Is(err, ErrNoDeletion) {
		t.Errorf("Get of a refusal: %v, want ErrNoDeletion", err)
	}
	if _, err := l.Restore(t.Context(), []int64{refusal}, RestoreOptions{}); !isRefused(err) {
		t.Errorf("Restore of a refusal: %v, want a RefusedError", err)
	}
	undo, err := l.Undoable(t.Context(), Deleter{Principal: "tester"}, time.Now().Add(-time.Hour), time.Time{}, false)
	if err != nil || len(undo.IDs) != 1 || undo.Superseded != 0 {
		t.Errorf("Undoable = %+v, %v; want the one deletion", undo, err)
	}
	if _, err := l.Restore(t.Context(), undo.IDs, RestoreOptions{}); err != nil || !s.has(t, 1) {
		t.Errorf("Restore of a plant with a later refusal: %v, the plant is there: %v", err, s.has(t, 1))
	}
	var earlier *plant.DeletedEarlierError
	if _, err := s.plants.Delete(in(t, patience), keyed(2, "k")); !errors.Is(err, plant.ErrNotFound) || errors.As(err, &earlier) {
		t.Errorf("Delete of a plant that was only refused: %v, want ErrNotFound", err)
	}
}

func isRefused(err error) bool {
	_, ok := errors.AsType[*RefusedError](err)
	return ok
}

// A purge takes the entries of one key only together: a deletion without the
// refusals before it would not be met by a retry.
func TestAPurgeTakesAKeysEntriesTogether(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	if _, err := s.plants.Delete(in(t, patience), keyed(1, "k")); !errors.Is(err, plant.ErrNotFound) {
		t.Fatalf("Delete: %v, want ErrNotFound", err)
	}
	s.exec(t, `UPDATE plant_deletions SET deleted_at = now() - interval '30 days'`)
	s.plant(t, 1)
	if _, err := s.plants.Delete(in(t, patience), keyed(1, "k")); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Older(t.Context(), IdempotencyHorizon); n != 0 || err != nil {
		t.Errorf("Older = %d, %v; want 0, none", n, err)
	}
	if n, err := l.Purge(t.Context(), IdempotencyHorizon, func(int64) {}); n != 0 || err != nil {
		t.Errorf("Purge = %d, %v; want 0, none", n, err)
	}
	s.plant(t, 1)
	if result, err := s.plants.Delete(in(t, patience), keyed(1, "k")); err != nil || !result.Replayed || !s.has(t, 1) {
		t.Errorf("a retry after the purge: %+v, %v, the plant is there: %v; want replayed, and the plant", result, err, s.has(t, 1))
	}
	s.exec(t, `UPDATE plant_deletions SET deleted_at = now() - interval '30 days'`)
	if n, err := l.Purge(t.Context(), IdempotencyHorizon, func(int64) {}); n != 2 || err != nil {
		t.Errorf("Purge of the whole key = %d, %v; want 2, none", n, err)
	}
}

// The refusal is durable before the client is told, like a deletion, whatever a trigger on the
// ledger does.
func TestRefusalsAreDurable(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.exec(t, `CREATE TABLE commits (mode text);
		CREATE FUNCTION hurry() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN SET LOCAL synchronous_commit = off; RETURN NEW; END';
		CREATE TRIGGER hurry BEFORE INSERT ON plant_deletions FOR EACH ROW EXECUTE FUNCTION hurry();
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
			'BEGIN INSERT INTO public.commits VALUES (current_setting(''synchronous_commit'')); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER note AFTER INSERT ON plant_deletions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()`)
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `SET synchronous_commit = off`, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if refused, err := refuse(ctx, conn.Conn(), []plant.Deletion{keyed(1, "k")}, patience, patience, new(atCommit)); err != nil || !refused[0] {
		t.Fatalf("refuse = %v, %v; want true, none", refused, err)
	}
	if diff := cmp.Diff([]string{"on"}, stringsOf(t, s.owner, `SELECT mode FROM commits`)); diff != "" {
		t.Errorf("synchronous_commit at the commit (-want +got):\n%s", diff)
	}
}

// A request that is under way when its client is told no, elsewhere, gets no further:
// the client has given it up.
func TestARequestDoesNotPassANewerRefusal(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s, elsewhere := storeOn(t, database, ""), storeOn(t, database, "")
	s.plant(t, 1)
	unlock := s.lock(t, 1)
	ended := make(chan error)
	go func() {
		_, err := s.plants.Delete(in(t, patience), keyed(1, "k"))
		ended <- err
	}()
	s.seeWaits(t, 1)
	conn, err := elsewhere.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if refused, err := refuse(in(t, patience), conn.Conn(), []plant.Deletion{keyed(1, "k")}, patience, patience, new(atCommit)); err != nil || !refused[0] {
		t.Fatalf("refuse = %v, %v; want true, none", refused, err)
	}
	unlock()
	if err := <-ended; !errors.Is(err, plant.ErrBusy) || errors.Is(err, plant.ErrUnknown) || !s.has(t, 1) {
		t.Errorf("Delete: %v, the plant is there: %v; want ErrBusy, and the plant", err, s.has(t, 1))
	}
	if _, err := s.plants.Delete(in(t, patience), keyed(1, "k")); err != nil || s.has(t, 1) {
		t.Errorf("the next request: %v, the plant is there: %v; want it deleted", err, s.has(t, 1))
	}
	// One that came before, and is only tried now.
	s.plant(t, 2)
	early := keyed(2, "k")
	early.Came = time.Now()
	if refused, err := refuse(in(t, patience), conn.Conn(), []plant.Deletion{early}, patience, patience, new(atCommit)); err != nil || !refused[0] {
		t.Fatalf("refuse = %v, %v; want true, none", refused, err)
	}
	if _, err := s.plants.Delete(in(t, patience), early); !errors.Is(err, plant.ErrBusy) || !s.has(t, 2) {
		t.Errorf("Delete of a request that came before its refusal: %v, the plant is there: %v; want ErrBusy, and the plant", err, s.has(t, 2))
	}
}

// The clocks that tell a refusal's age and a request's may be set, and stand still where a
// machine is paused. A request that had to wait passes no refusal of its turn, however old that
// looks.
func TestARefusalThatLooksOlderThanItIs(t *testing.T) {
	t.Parallel()
	refuse := func(t *testing.T, s store, number int, age string) {
		t.Helper()
		s.exec(t, fmt.Sprintf(`INSERT INTO plant_deletions (plant_id, deleted_by, idempotency_key, turn, deleted_at) VALUES (1, 'tester', 'k', %d, now() - interval '%s')`, number, age))
	}
	for _, difficult := range []bool{false, true} {
		for before := range 2 {
			t.Run(fmt.Sprintf("meanwhile, difficult %v, after %d", difficult, before), func(t *testing.T) {
				t.Parallel()
				const tries = 3 // on a busy machine a deletion may not hear of its turn in time
				for try := range tries {
					s := newStore(t)
					s.plant(t, 1)
					for number := range before {
						refuse(t, s, number, "1 hour")
					}
					unlock := s.lock(t, 1)
					waits := 2 // in a batch, and then by itself
					if difficult {
						s.plants.difficult.note(1, verdict{next: alone, what: locked})
						waits = 1
					}
					ended := make(chan error)
					go func() {
						_, err := s.plants.Delete(in(t, patience), keyed(1, "k"))
						ended <- err
					}()
					s.seeWaits(t, waits)
					refuse(t, s, before, "1 hour")
					unlock()
					err := <-ended
					if errors.Is(err, errMeanwhile) && s.has(t, 1) {
						return
					}
					if try == tries-1 {
						t.Errorf("Delete: %v, the plant is there: %v; want that it was refused meanwhile, and the plant", err, s.has(t, 1))
					}
				}
			})
		}
	}
	t.Run("meanwhile, behind another that waits for their budget", func(t *testing.T) {
		t.Parallel()
		database := pgtest.New(t)
		withBudget(t, database, hundred, "tester")
		s := storeOn(t, database, "")
		s.sample(t, 3)
		first, d := by("tester", 2, hundred), by("tester", 1, hundred)
		d.Key, d.KeySent = "k", true
		if _, err := s.plants.Delete(in(t, patience), by("tester", 3, hundred)); err != nil { // so that the budget has a row
			t.Fatal(err)
		}
		unlock := s.hold(t, `SELECT FROM plantstore_budgets FOR UPDATE`)
		held := make(chan error)
		go func() {
			_, err := s.plants.Delete(in(t, patience), first)
			held <- err
		}()
		s.seeWaits(t, 1)
		ended := make(chan error)
		go func() {
			_, err := s.plants.Delete(in(t, patience), d)
			ended <- err
		}()
		asked := func() bool {
			s.plants.looks.mu.Lock()
			defer s.plants.looks.mu.Unlock()
			return s.plants.looks.lanes.work > 0
		}
		for ctx := in(t, patience); !asked(); time.Sleep(time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatal("the second deletion of a principal whose budget is held does not ask for its turn")
			}
		}
		refuse(t, s, 0, "1 hour")
		unlock()
		if err := <-held; err != nil {
			t.Errorf("Delete by a principal whose budget was held: %v, want none", err)
		}
		if err := <-ended; !errors.Is(err, errMeanwhile) || !s.has(t, 1) {
			t.Errorf("Delete: %v, the plant is there: %v; want that it was refused meanwhile, and the plant", err, s.has(t, 1))
		}
	})
	t.Run("in the future", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		s.plant(t, 1)
		refuse(t, s, 0, "-1 hour")
		if _, err := s.plants.Delete(in(t, patience), keyed(1, "k")); err != nil || s.has(t, 1) {
			t.Errorf("Delete: %v, the plant is there: %v; want it deleted", err, s.has(t, 1))
		}
	})
}

// How old a refusal was when it was read is not made less by the time that passes then: a client
// that asks again right after it is not told that it was refused meanwhile.
func TestARefusalThatWasReadAWhileAgo(t *testing.T) {
	t.Parallel()
	came := time.Now().Add(-time.Hour)
	for age, want := range map[float64]step{0.5: done, 1: done, 1.5: alone} {
		h := history{turn: 1, age: age, readAt: came.Add(time.Second)}
		v, _ := h.explains(turn{Deletion: plant.Deletion{Came: came}}, plant.ErrBusy, false)
		if v.next != want || errors.Is(v.err, errMeanwhile) != (want == done) {
			t.Errorf("a refusal that was %gs old a second after the request came: next step %d, %v; want %d", age, v.next, v.err, want)
		}
	}
}

// Requests of one deletion that are under way at a time, as where a client sends another when
// the first takes long, are told no together. None of them deletes what that client was told
// no of before.
func TestRequestsOfOneDeletionAreToldNoTogether(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.exec(t, `CREATE TABLE items (plant bigint REFERENCES plants); INSERT INTO plants VALUES (1, 'Boston fern'); INSERT INTO items VALUES (1)`)
	unlock := s.lock(t, 1)
	first := make(chan error)
	go func() { // whom the others stand behind
		_, err := s.plants.Delete(in(t, patience), keyed(1, "other"))
		first <- err
	}()
	s.seeWaits(t, 1)
	const requests = 3
	ended := make(chan error)
	for range requests {
		go func() {
			_, err := s.plants.Delete(in(t, patience), keyed(1, "k"))
			ended <- err
		}()
	}
	seeInLine(t, &s.plants.lines, 1, 1+requests)
	unlock()
	if err := <-first; !isA[*plant.ReferencedError](err) {
		t.Errorf("Delete of a plant that is referred to: %v, want a ReferencedError", err)
	}
	for range requests {
		if err := <-ended; !isA[*plant.ReferencedError](err) {
			t.Errorf("Delete of a plant that is referred to, three times at once: %v, want a ReferencedError", err)
		}
	}
	if diff := cmp.Diff([]string{"1 other 0", "1 k 0"}, s.refusals(t)); diff != "" {
		t.Errorf("refusals (-want +got):\n%s", diff)
	}
	s.exec(t, `DELETE FROM items`)
	if _, err := s.insist(t, keyed(1, "k")); err != nil || s.has(t, 1) {
		t.Errorf("Delete afterwards: %v, the plant is there: %v; want it deleted", err, s.has(t, 1))
	}
}

// seeInLine waits until so many stand in a plant's line.
func seeInLine(t *testing.T, l *lines, id plant.ID, want int) {
	t.Helper()
	for ctx := in(t, patience); ; time.Sleep(time.Millisecond) {
		stand := 0
		l.mu.Lock()
		if own := l.open[id]; own != nil {
			stand = own.stand
		}
		l.mu.Unlock()
		if stand == want {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%d requests stand in line, want %d", stand, want)
		}
	}
}

// Only who stood in line when a no was told is told it, and only for the same deletion.
func TestWhomANoIsFor(t *testing.T) {
	t.Parallel()
	var l lines
	unkeyed := deletion(1, "k")
	for _, tt := range []struct {
		name         string
		first, other plant.Deletion
		ended        error
		want         error
	}{
		{"the same", keyed(1, "k"), keyed(1, "k"), plant.ErrNotFound, plant.ErrNotFound},
		{"another key", keyed(1, "k"), keyed(1, "l"), plant.ErrNotFound, nil},
		{"another principal", keyed(1, "k"), func() plant.Deletion { d := keyed(1, "k"); d.Principal = "other"; return d }(), plant.ErrNotFound, nil},
		{"without a key of the client's", unkeyed, unkeyed, plant.ErrNotFound, nil},
		{"an error that is no answer", keyed(1, "k"), keyed(1, "k"), plant.ErrUnavailable, nil},
		{"deleted", keyed(1, "k"), keyed(1, "k"), nil, nil},
	} {
		if _, err := l.enter(t.Context(), tt.first); err != nil {
			t.Fatal(err)
		}
		told, since, late := make(chan error), make(chan error), make(chan error)
		come := func(told chan<- error) {
			no, err := l.enter(t.Context(), tt.other)
			told <- errors.Join(no, err)
		}
		go come(told)
		seeInLine(t, &l, 1, 2)
		l.begin(tt.first)
		go come(since)
		seeInLine(t, &l, 1, 3)
		l.leave(tt.first, tt.ended)
		if got := <-told; !errors.Is(got, tt.want) {
			t.Errorf("%s: a request in line was told %v, want %v", tt.name, got, tt.want)
		}
		l.leave(tt.other, nil)
		want := errMeanwhile
		if tt.want == nil {
			want = nil
		}
		if got := <-since; !errors.Is(got, want) {
			t.Errorf("%s: a request that came when the attempt was under way was told %v, want %v", tt.name, got, want)
		}
		// While that one is at the head, another comes, which came too late for the no.
		go come(late)
		seeInLine(t, &l, 1, 2)
		l.leave(tt.other, nil)
		if got := <-late; got != nil {
			t.Errorf("%s: a request that came after the no was told %v, want nothing", tt.name, got)
		}
		if left := len(l.open[1].behind); left != 0 { // a line may never be empty
			t.Errorf("%s: %d deletions are kept of those who stood in line, want none", tt.name, left)
		}
		l.leave(tt.other, nil)
	}
	if len(l.open) != 0 {
		t.Errorf("%d lines are left, want none", len(l.open))
	}
}

// Of many that are tried again after they were refused, each meets its refusal, and takes its
// batch back. Nor does a lock keep one from its turn.
func TestManyAreTriedAgainAfterARefusal(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const many = 200
	s.sample(t, many)
	s.exec(t, `INSERT INTO plant_deletions (plant_id, deleted_by, idempotency_key, deleted_at) SELECT i, 'tester', 'k', now() - interval '1 hour' FROM generate_series(1, 200) i`)
	unlock := s.lock(t, 1)
	var all sync.WaitGroup
	for id := range int64(many) {
		all.Go(func() {
			if _, err := s.plants.Delete(in(t, patience), keyed(id+1, "k")); err != nil {
				t.Errorf("Delete(%d) after a refusal: %v, want none", id+1, err)
			}
		})
	}
	s.seeWaits(t, 1)
	unlock()
	all.Wait()
}

// REINDEX CONCURRENTLY leaves the index of the ledger's constraint beside the new one, under
// another name, until every transaction that may use it has ended: an export may be long.
func TestWhileTheLedgersIndexIsMadeAnew(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.exec(t, `CREATE TABLE items (plant bigint REFERENCES plants); INSERT INTO plants VALUES (1, 'Boston fern'), (2, 'Jade plant'); INSERT INTO items VALUES (1);
		CREATE UNIQUE INDEX plant_deletions_once_ccold ON plant_deletions (plant_id, deleted_by, idempotency_key, turn);
		ALTER TABLE plant_deletions DROP CONSTRAINT plant_deletions_once; -- made again, it is looked into after the other
		ALTER TABLE plant_deletions ADD CONSTRAINT plant_deletions_once UNIQUE (plant_id, deleted_by, idempotency_key, turn)`)
	for range 2 {
		if _, err := s.insist(t, keyed(1, "k")); !isA[*plant.ReferencedError](err) {
			t.Fatalf("Delete of a plant that is referred to: %v, want a ReferencedError", err)
		}
	}
	s.exec(t, `DELETE FROM items`)
	if _, err := s.insist(t, keyed(1, "k")); err != nil || s.has(t, 1) {
		t.Errorf("Delete after a refusal: %v, the plant is there: %v; want it deleted", err, s.has(t, 1))
	}
	for replayed := range 2 {
		result, err := s.insist(t, keyed(2, "k"))
		if err != nil || result.Replayed != (replayed == 1) {
			t.Errorf("Delete %d: %+v, %v; want replayed: %v", replayed, result, err, replayed == 1)
		}
		if replayed == 0 {
			s.plant(t, 2)
		}
	}
	// A refusal that meets one of the same turn, which is committed in between.
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), `INSERT INTO plant_deletions (plant_id, deleted_by, idempotency_key) VALUES (3, 'tester', 'k')`); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := s.plants.Delete(in(t, patience), keyed(3, "k"))
		ended <- err
	}()
	s.seeWaits(t, 1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, plant.ErrNotFound) {
		t.Errorf("Delete beside another of the same request: %v, want ErrNotFound", err)
	}
	if diff := cmp.Diff([]string{"1 k 0", "1 k 1", "3 k 0", "3 k 1"}, s.refusals(t)); diff != "" {
		t.Errorf("refusals (-want +got):\n%s", diff)
	}
}

// Refusals that come at once are committed together, as deletions are.
func TestRefusalsAreCommittedTogether(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.exec(t, `CREATE TABLE items (plant bigint REFERENCES plants); INSERT INTO plants (id, name) VALUES (1, 'Boston fern'); INSERT INTO items VALUES (1)`)
	const many = 400
	var all sync.WaitGroup
	for id := range int64(many) {
		all.Go(func() {
			_, err := s.plants.Delete(in(t, patience), keyed(id+1, "k"))
			if _, referred := errors.AsType[*plant.ReferencedError](err); referred != (id == 0) || !referred && !errors.Is(err, plant.ErrNotFound) {
				t.Errorf("Delete(%d): %v, want ErrNotFound, or for the first a ReferencedError", id+1, err)
			}
		})
	}
	all.Wait()
	if got := len(s.refusals(t)); got != many {
		t.Errorf("%d refusals are recorded, want %d", got, many)
	}
	if got := s.transactions(t); got > many/2 {
		t.Errorf("%d refusals that came at once took %d transactions, want a fraction", many, got)
	}
}

// A refusal waits for an attempt under way, and the others that came with it do not.
func TestARefusalThatWaitsDelaysNoOther(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]struct {
		commit bool
		want   error
	}{"and is refused": {false, plant.ErrNotFound}, "and was deleted": {true, nil}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			tx, err := s.owner.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.WithoutCancel(t.Context()))
			if _, err := tx.Exec(t.Context(), `INSERT INTO plant_shapes (attributes, names, types, generated) VALUES ('{}', '{}', '{}', '{}');
				INSERT INTO plant_deletions (plant_id, shape, plant, deleted_by, session_role, request_id, idempotency_key)
				SELECT 30, max(id), '()', 'tester', 'another', 'request', 'k' FROM plant_shapes`); err != nil {
				t.Fatal(err)
			}
			waiting := make(chan error, 1)
			go func() {
				_, err := s.plants.Delete(in(t, patience), keyed(30, "k"))
				waiting <- err
			}()
			for round := range int64(3) {
				var all sync.WaitGroup
				for id := range int64(60) {
					if id != 30 {
						all.Go(func() {
							if _, err := s.plants.Delete(in(t, patience), keyed(id, fmt.Sprint("k", round))); !errors.Is(err, plant.ErrNotFound) {
								t.Errorf("Delete(%d) beside one that waits: %v, want ErrNotFound", id, err)
							}
						})
					}
				}
				all.Wait()
			}
			select {
			case err := <-waiting:
				t.Errorf("the refusal did not wait: %v", err)
				waiting <- err
			default:
			}
			if end.commit {
				err = tx.Commit(t.Context())
			} else {
				err = tx.Rollback(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := <-waiting; !errors.Is(err, end.want) {
				t.Errorf("Delete whose refusal waited: %v, want %v", err, end.want)
			}
		})
	}
}
