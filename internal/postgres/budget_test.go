package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/auth"
	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// withBudget makes principals that have a budget.
func withBudget(t *testing.T, database pgtest.Database, budget plant.Budget, principals ...string) *Tokens {
	t.Helper()
	issued := issuer(t, database)
	for _, name := range principals {
		if _, err := issued.Create(t.Context(), name, []string{auth.ScopeDelete}, time.Time{}, budget); err != nil {
			t.Fatal(err)
		}
	}
	return issued
}

// by returns the deletion of a plant by a principal that has a budget.
func by(principal string, id int64, budget plant.Budget) plant.Deletion {
	d := deletion(id, fmt.Sprint("key-", id))
	d.Principal, d.Budget = principal, budget
	return d
}

// batchBy is batchOf for a principal that has a budget.
func batchBy(principal string, n int, budget plant.Budget) []*member {
	batch := batchOf(n)
	for _, m := range batch {
		m.deletion = by(principal, int64(m.deletion.Plant), budget)
	}
	return batch
}

// isOver reports whether a deletion was refused because of a budget.
func isOver(err error) bool {
	return isA[*plant.OverBudgetError](err)
}

func isA[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

var hundred = plant.Budget{Most: 100, Period: time.Hour}

// Two services delete one plant after the other for one principal, and for one that has
// no budget: of the first exactly so many go, however the requests fall together.
func TestABudgetHoldsAcrossServices(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	withBudget(t, database, hundred, "script")
	services := []store{storeOn(t, database, ""), storeOn(t, database, "")}
	s := services[0]
	const each = 400
	s.exec(t, `INSERT INTO plants (id, name) SELECT i, 'fern' FROM generate_series(1, $1::int) i`, 2*each)
	var next, gone, others, first atomic.Int64
	var group sync.WaitGroup
	for client := range 64 {
		group.Go(func() {
			for {
				n := next.Add(1)
				if n > each {
					return
				}
				plants := services[client%2].plants
				_, err := plants.Delete(in(t, patience), by("script", n, hundred))
				over, _ := errors.AsType[*plant.OverBudgetError](err)
				switch {
				case err == nil:
					gone.Add(1)
				case over == nil:
					t.Errorf("Delete: %v, want none or an OverBudgetError", err)
				default:
					if left := time.Until(over.Until); left <= 0 || left > hundred.Period {
						t.Errorf("over budget for %s, want up to %s", left, hundred.Period)
					}
					if over.First {
						first.Add(1)
					}
				}
				if _, err := plants.Delete(in(t, patience), deletion(each+n, "k")); err != nil {
					t.Errorf("Delete by a principal without a budget: %v, want none", err)
				}
				others.Add(1)
			}
		})
	}
	group.Wait()
	if gone.Load() != hundred.Most || others.Load() != each || first.Load() != int64(len(services)) {
		t.Errorf("%d plants deleted within the budget, %d without, %d told first; want %d, %d, %d",
			gone.Load(), others.Load(), first.Load(), hundred.Most, each, len(services))
	}
	if got := stringsOf(t, s.owner, `SELECT count(*)::text FROM plant_deletions WHERE deleted_by = 'script' AND plant IS NOT NULL`); got[0] != "100" {
		t.Errorf("the ledger has %s of them, want 100", got)
	}
}

// What deletes nothing costs nothing, and is told as ever, also when the budget is used up.
func TestRepliesBeyondABudget(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	three := plant.Budget{Most: 3, Period: time.Hour}
	issued := withBudget(t, database, three, "script")
	s := storeOn(t, database, "")
	s.exec(t, `INSERT INTO plants (id, name) SELECT i, 'fern' FROM generate_series(1, 9) i;
		CREATE TABLE orders (plant bigint REFERENCES plants); INSERT INTO orders VALUES (8)`)
	try := func(id int64) (plant.Result, error) {
		return s.plants.Delete(in(t, patience), by("script", id, three))
	}
	used := func(want int64) {
		t.Helper()
		list, err := issued.List(t.Context())
		if err != nil || list[0].Used != want || list[0].Budget != three {
			t.Errorf("List = %+v, %v; want %d used of %s", list, err, want, three)
		}
	}
	repeat := func() {
		t.Helper()
		if result, err := try(1); err != nil || !result.Replayed {
			t.Errorf("the first deletion again: %+v, %v; want it replayed", result, err)
		}
		if _, err := try(99); !errors.Is(err, plant.ErrNotFound) {
			t.Errorf("no plant: %v, want ErrNotFound", err)
		}
		d := by("script", 1, three)
		d.Key = "another"
		if _, err := s.plants.Delete(in(t, patience), d); !isA[*plant.DeletedEarlierError](err) {
			t.Errorf("the first plant under another key: %v, want a DeletedEarlierError", err)
		}
	}
	for id := range int64(2) {
		if _, err := try(id + 1); err != nil {
			t.Fatal(err)
		}
	}
	repeat()
	if _, err := try(8); !isA[*plant.ReferencedError](err) {
		t.Errorf("a plant that is referred to: %v, want a ReferencedError", err)
	}
	used(2)
	if _, err := try(3); err != nil {
		t.Fatal(err)
	}
	used(3)
	// Asked twice, as the second time the service knows it already.
	for range 2 {
		if _, err := try(4); !isOver(err) {
			t.Errorf("beyond the budget: %v, want an OverBudgetError", err)
		}
		repeat()
	}
	// A restore gives nothing back, and what came back can be told from it.
	ledger := ledgerOf(t, database)
	var first int64 // not 1 where an attempt took too long, and was taken back
	if err := s.owner.QueryRow(t.Context(), `SELECT id FROM plant_deletions WHERE plant_id = 1 AND plant IS NOT NULL`).Scan(&first); err != nil {
		t.Fatal(err)
	}
	if _, err := ledger.Restore(t.Context(), []int64{first}, RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	used(3)
	if result, err := try(1); err != nil || !result.Replayed || !s.has(t, 1) {
		t.Errorf("the first deletion again, its plant restored: %+v, %v, plant there %v; want it replayed and kept", result, err, s.has(t, 1))
	}
	d := by("script", 1, three)
	d.Key = "another"
	if err := s.deleteForSure(t, d); !isOver(err) {
		t.Errorf("a plant that was restored: %v, want an OverBudgetError", err)
	}
	// More of a budget, a lift and no budget let it on, once the service asks again.
	let := func(what string, id int64, change func() error) {
		t.Helper()
		if err := change(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(believeUsedUp + 10*time.Millisecond)
		if _, err := try(id); err != nil {
			t.Errorf("after %s: %v, want the plant deleted", what, err)
		}
	}
	four := plant.Budget{Most: 4, Period: time.Hour}
	let("a larger budget", 4, func() error { return issued.SetBudget(t.Context(), "script", four) })
	let("a lift", 5, func() error { return issued.LiftBudget(t.Context(), "script", time.Minute) })
	if err := issued.LiftBudget(t.Context(), "script", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := try(6); !isOver(err) {
		t.Errorf("after the lift: %v, want an OverBudgetError", err)
	}
	let("no budget", 6, func() error { return issued.SetBudget(t.Context(), "script", plant.Budget{}) })
	if _, err := try(7); err != nil {
		t.Errorf("a service that has not heard that there is no budget: %v, want the plant deleted", err)
	}
	for want, err := range map[error]error{
		ErrNoPrincipal: issued.SetBudget(t.Context(), "nobody", three),
		ErrNoBudget:    issued.LiftBudget(t.Context(), "script", time.Minute),
	} {
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
}

// What is deleted during a lift is not counted: when the lift ends, as much of the budget
// is left as when it began.
func TestALiftedBudgetIsNotSpent(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	three := plant.Budget{Most: 3, Period: time.Hour}
	issued := withBudget(t, database, three, "script")
	s := storeOn(t, database, "")
	s.exec(t, `INSERT INTO plants (id, name) SELECT i, 'fern' FROM generate_series(1, 9) i`)
	remove := func(when string, want int64, ids ...int64) {
		t.Helper()
		for _, id := range ids {
			if _, err := s.plants.Delete(in(t, patience), by("script", id, three)); err != nil {
				t.Errorf("deletion %d, %s: %v, want the plant deleted", id, when, err)
			}
		}
		list, err := issued.List(t.Context())
		if err != nil || list[0].Used != want {
			t.Errorf("%s: List = %+v, %v; want %d used", when, list, err, want)
		}
	}
	lift := func(during time.Duration) {
		t.Helper()
		if err := issued.LiftBudget(t.Context(), "script", during); err != nil {
			t.Fatal(err)
		}
	}
	remove("before the lift", 1, 1)
	lift(time.Hour)
	remove("during the lift", 1, 2, 3, 4)
	lift(0)
	remove("after the lift", 3, 5, 6)
	if err := s.deleteForSure(t, by("script", 7, three)); !isOver(err) {
		t.Errorf("beyond the budget: %v, want an OverBudgetError", err)
	}
}

// Once for each budget: one that was raised, or lifted, can be used up again at once.
func TestABudgetThatIsUsedUpIsToldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUsedUp()
		week, more := plant.Budget{Most: 2, Period: 7 * 24 * time.Hour}, plant.Budget{Most: 4, Period: 7 * 24 * time.Hour}
		began := time.Now()
		for i, step := range []struct {
			after     time.Duration
			principal string
			budget    plant.Budget
			left      int64
			lifted    time.Duration // until when, since the beginning
			want      bool
		}{
			{0, "script", week, 1, 0, false}, // it has some left: this deletion is too large for it
			{0, "script", week, 0, 0, true},
			{time.Hour, "script", week, 0, 0, false},
			{0, "other", week, 0, 0, true},
			{0, "script", more, 0, 0, true},
			{time.Hour, "script", more, 0, 0, false},
			{time.Hour, "script", more, 0, 150 * time.Minute, true},
			{time.Hour, "script", more, 0, 150 * time.Minute, false},
			{time.Hour, "script", more, 0, 4 * time.Hour, true},
			{week.Period - time.Hour, "script", more, 0, 4 * time.Hour, false},
			{time.Hour, "script", more, 0, 4 * time.Hour, true},
		} {
			time.Sleep(step.after)
			over := &plant.OverBudgetError{Left: step.left, Budget: step.budget}
			if step.lifted > 0 {
				over.Lifted = began.Add(step.lifted).UTC()
			}
			// What the service has read with the token may be older than what counts.
			u.tell(plant.Deletion{Principal: step.principal, Budget: week}, fmt.Errorf("wrapped: %w", over))
			if over.First != step.want {
				t.Errorf("step %d, %s over %s: told first: %v, want %v", i, step.principal, step.budget, over.First, step.want)
			}
		}
	})
}

// The operators read which budget is used up, and again so once it was lifted and is used
// up anew.
func TestALiftThatEndsIsToldAnew(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	one, two := plant.Budget{Most: 1, Period: time.Hour}, plant.Budget{Most: 2, Period: time.Hour}
	issued := withBudget(t, database, one, "script")
	s := storeOn(t, database, "")
	s.sample(t, 10)
	next := int64(0)
	spend := func() *plant.OverBudgetError {
		t.Helper()
		next++
		_, err := s.plants.Delete(in(t, patience), by("script", next, one))
		over, _ := errors.AsType[*plant.OverBudgetError](err)
		if err != nil && over == nil {
			t.Fatal(err)
		}
		return over
	}
	refused := func(when string, budget plant.Budget, first bool) {
		t.Helper()
		over := spend()
		if over == nil || over.First != first || over.Budget != budget {
			t.Errorf("%s: %+v, want an OverBudgetError of %s, told first: %v", when, over, budget, first)
		}
	}
	change := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(believeUsedUp + 10*time.Millisecond)
	}
	spend()
	refused("used up", one, true)
	refused("again", one, false)
	change(issued.LiftBudget(t.Context(), "script", time.Hour))
	if over := spend(); over != nil {
		t.Errorf("during the lift: %v, want the plant deleted", over)
	}
	change(issued.LiftBudget(t.Context(), "script", 0))
	refused("after the lift", one, true)
	refused("after the lift, again", one, false)
	// The service has not heard of this budget yet, as far as it tells the database.
	change(issued.SetBudget(t.Context(), "script", two))
	if over := spend(); over != nil {
		t.Errorf("with a larger budget: %v, want the plant deleted", over)
	}
	refused("the larger one", two, true)
	refused("the larger one, again", two, false)
}

// Of a budget that is made smaller than what was used of it nothing is left, and no less.
func TestABudgetThatIsMadeSmaller(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	three, one := plant.Budget{Most: 3, Period: time.Hour}, plant.Budget{Most: 1, Period: time.Hour}
	issued := withBudget(t, database, three, "script")
	s := storeOn(t, database, "")
	s.sample(t, 4)
	s.spend(t, three, []spending{{1, -1}, {2, -1}, {3, -1}})
	if err := issued.SetBudget(t.Context(), "script", one); err != nil {
		t.Fatal(err)
	}
	s.spend(t, one, []spending{{4, 0}})
}

// A batch in whose midst budgets end deletes what they allow, and all that others want.
func TestABudgetThatEndsInMidBatch(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	ten := plant.Budget{Most: 10, Period: time.Hour}
	withBudget(t, database, ten, "a", "b", "c")
	s := storeOn(t, database, "")
	// a has 4 of 20 plants missing and 10 too many, b has as many as it may, c has used
	// all up before.
	s.exec(t, `INSERT INTO plants (id, name) SELECT i, 'fern' FROM generate_series(1, 100) i WHERE i NOT IN (1, 2, 3, 4);
		INSERT INTO plantstore_budgets (principal, used, began, parts, ends) VALUES ('c', 10, now(), '{10}', ARRAY[now()])
		ON CONFLICT (principal) DO UPDATE SET used = 10, began = now(), parts = '{10}', ends = ARRAY[now()]`)
	taken := s.take(t, budgeted)
	type told struct {
		principal string
		id        int64
		err       error
	}
	all := make(chan told, 64)
	ask := func(principal string, from, to int64) {
		for id := from; id <= to; id++ {
			go func() {
				all <- told{principal, id, s.deleteForSure(t, by(principal, id, ten))}
			}()
		}
	}
	ask("a", 1, 24)
	ask("b", 31, 40)
	ask("c", 51, 60)
	const asked = 44
	s.plants.budgeted.awaitMembers(asked)
	for _, conn := range taken {
		conn.Release()
	}
	got := map[string]int{}
	for range asked {
		r := <-all
		switch {
		case r.err == nil:
			got[r.principal+" deleted"]++
		case isOver(r.err):
			got[r.principal+" over"]++
		case errors.Is(r.err, plant.ErrNotFound):
			got[r.principal+" not found"]++
		default:
			t.Errorf("plant %d by %s: %v", r.id, r.principal, r.err)
		}
	}
	want := map[string]int{"a deleted": 10, "a over": 10, "a not found": 4, "b deleted": 10, "c over": 10}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}

// scripted returns a store after some SQL, whose principal script has a budget.
func scripted(t *testing.T, budget plant.Budget, sql string) store {
	t.Helper()
	database := pgtest.New(t)
	withBudget(t, database, budget, "script")
	s := storeOn(t, database, "")
	s.exec(t, sql)
	return s
}

// deleteForSure deletes as a client does: it asks again while the outcome is unknown. A busy
// machine may lose the first answer.
func (s store) deleteForSure(t *testing.T, d plant.Deletion) error {
	for try := 1; ; try++ {
		if _, err := s.plants.Delete(in(t, patience), d); !errors.Is(err, plant.ErrUnknown) || try == 10 {
			return err
		}
	}
}

// A spending is a deletion under a budget.
type spending struct {
	id   int64
	left int64 // of the budget, where that does not suffice; -1: deleted
}

// spend has the principal script delete plants, one after the other.
func (s store) spend(t *testing.T, budget plant.Budget, spendings []spending) {
	t.Helper()
	for _, tt := range spendings {
		_, err := s.plants.Delete(in(t, patience), by("script", tt.id, budget))
		over, ok := errors.AsType[*plant.OverBudgetError](err)
		switch {
		case tt.left < 0 && err != nil:
			t.Errorf("plant %d: %v, want it deleted", tt.id, err)
		case tt.left >= 0 && (!ok || over.Left != tt.left):
			t.Errorf("plant %d: %v (%+v), want over budget with %d left", tt.id, err, over, tt.left)
		}
	}
}

// Plants that leave by a cascade of the request count as well.
func TestCascadesCount(t *testing.T) {
	t.Parallel()
	five := plant.Budget{Most: 5, Period: time.Hour}
	s := scripted(t, five, `ALTER TABLE plants ADD parent bigint REFERENCES plants ON DELETE CASCADE;
		INSERT INTO plants (id, name, parent) VALUES (1, 'a', NULL), (2, 'b', 1), (3, 'c', 1), (4, 'd', NULL), (5, 'e', 4), (6, 'f', 4), (7, 'g', NULL), (8, 'h', NULL)`)
	s.spend(t, five, []spending{{1, -1}, {4, 2}, {7, -1}, {8, -1}, {4, 0}})
}

// Plants that a trigger of the store's deletes leave by statements of their own. What those
// took of the budget is taken back with the deletion, so it is left.
func TestWhatATriggerDeletesIsLeftWhereItIsTakenBack(t *testing.T) {
	t.Parallel()
	three := plant.Budget{Most: 3, Period: time.Hour}
	s := scripted(t, three, `INSERT INTO plants (id, name) SELECT n, 'fern' FROM generate_series(1, 9) n;
		CREATE FUNCTION along() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
			'BEGIN IF OLD.id = 1 THEN DELETE FROM public.plants WHERE id = 2; DELETE FROM public.plants WHERE id IN (3, 4); END IF; RETURN NULL; END';
		CREATE TRIGGER along AFTER DELETE ON plants FOR EACH ROW EXECUTE FUNCTION along()`)
	s.spend(t, three, []spending{{1, 3}, {5, -1}, {1, 2}, {6, -1}, {7, -1}, {1, 0}})
}

// Where such a deletion came about, nothing of it is left for those after it on the same
// connection.
func TestWhatATriggerDeletedEarlierIsNotLeft(t *testing.T) {
	t.Parallel()
	three := plant.Budget{Most: 3, Period: time.Hour}
	s := scripted(t, three, `INSERT INTO plants (id, name) SELECT n, 'fern' FROM generate_series(1, 9) n;
		CREATE FUNCTION along() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN DELETE FROM public.plants WHERE id = OLD.id + 1; RETURN NULL; END';
		CREATE TRIGGER along AFTER DELETE ON plants FOR EACH ROW WHEN (OLD.id = 1) EXECUTE FUNCTION along()`)
	s.spend(t, three, []spending{{1, -1}, {5, -1}, {6, 0}})
	left := stringsOf(t, s.pool, `SELECT coalesce(nullif(current_setting('plantstore.spent', true), ''), 'none')`)
	if !slices.Equal(left, []string{"none"}) {
		t.Errorf("plantstore.spent after the transactions: %q, want none", left)
	}
}

// clockOfOurs has budgets go by a clock in a table.
func clockOfOurs(t *testing.T, owner *pgxpool.Pool) {
	t.Helper()
	if _, err := owner.Exec(t.Context(), `
		CREATE TABLE clock (at timestamptz); INSERT INTO clock VALUES (now());
		CREATE FUNCTION clock_of_ours() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT at FROM public.clock';
		DO $$ BEGIN
			EXECUTE replace((SELECT pg_get_functiondef('plantstore_spend'::regproc)), 'clock_timestamp()', 'public.clock_of_ours()');
		END $$`); err != nil {
		t.Fatal(err)
	}
}

// A clock that is set back more than once, or a shorter period, leaves parts in no order. Each
// comes back in its time all the same.
func TestPartsOfABudgetInNoOrder(t *testing.T) {
	t.Parallel()
	owner := pgtest.Pool(t, pgtest.New(t).Owner)
	clockOfOurs(t, owner)
	type use struct{ minute, plants, left, minutes int } // left -1: it is spent
	for i, tt := range []struct {
		name       string
		parts      string
		ends       []int // in minutes
		most, hour int   // minutes of the period
		uses       []use
	}{
		{"set back twice", "{}", nil, 3, 60, []use{{0, 1, -1, 0}, {40, 1, -1, 0}, {-40, 1, -1, 0}, {-90, 1, -1, 0}, {31, 2, -1, 0}, {31, 2, 1, 60}}},
		{"the later one first, the other is over", "{1,2}", []int{-31, -71}, 3, 60, []use{{0, 3, 2, 29}, {0, 2, -1, 0}}},
		{"a shorter period", "{1,1}", []int{6 * 24 * 60, 0}, 2, 10, []use{{0, 2, 1, 10}, {0, 1, -1, 0}}},
		{"the later one first", "{2,1}", []int{0, -30}, 3, 60, []use{{0, 1, 0, 30}, {0, 2, 0, 60}, {30, 1, -1, 0}}},
	} {
		if _, err := owner.Exec(t.Context(), `
			INSERT INTO plantstore_budgets (principal, parts, ends, used)
			SELECT $1, $2::bigint[], ARRAY(SELECT timestamptz '2026-01-01' + e * interval '1 minute' FROM unnest($3::int[]) e), (SELECT coalesce(sum(n), 0) FROM unnest($2::bigint[]) n)`,
			strconv.Itoa(i), tt.parts, append([]int{}, tt.ends...)); err != nil {
			t.Fatal(err)
		}
		for _, u := range tt.uses {
			left, minutes := -1, 0
			if _, err := owner.Exec(t.Context(), `UPDATE clock SET at = timestamptz '2026-01-01' + $1 * interval '1 minute'`, u.minute); err != nil {
				t.Fatal(err)
			}
			if err := owner.QueryRow(t.Context(), `
				SELECT coalesce((o ->> 'left')::int, -1), coalesce((o ->> 'seconds')::float8 / 60, 0)::int
				FROM plantstore_spend($1, $2, $3, $4 * interval '1 minute', null) o`, strconv.Itoa(i), u.plants, tt.most, tt.hour).Scan(&left, &minutes); err != nil {
				t.Fatal(err)
			}
			if left != u.left || minutes != u.minutes {
				t.Errorf("%s, minute %d: %d more, and %d are left, in %d minutes; want %d, in %d", tt.name, u.minute, u.plants, left, minutes, u.left, u.minutes)
			}
		}
	}
}

// In no span of time as long as its period does a principal delete more than its budget,
// and a sixtieth of the period later at the most it may delete again.
func TestABudgetSlides(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	owner := pgtest.Pool(t, database.Owner)
	const most, period = 7, 6 * time.Second // in parts of 0.1 s
	clockOfOurs(t, owner)
	conn, err := owner.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	type spent struct{ at, n int }
	var all []spent
	within := func(from, to int) (n int) { // from, exclusively
		for _, s := range all {
			if from < s.at && s.at <= to {
				n += s.n
			}
		}
		return n
	}
	const tick = 10 * time.Millisecond
	const inPeriod, inPart = int(period / tick), int(period / tick / 60)
	random := uint32(1)
	now := 0
	for range 3000 {
		random = random*1664525 + 1013904223
		step := int(random>>16) % (inPeriod / 9)
		if random>>28 == 0 {
			step += inPeriod / 2
		}
		now += step
		want := 1 + int(random>>8)%3
		var seconds *float64
		if err := conn.QueryRow(t.Context(), `
			WITH tick AS (UPDATE clock SET at = at + $3 * interval '10 milliseconds' RETURNING 1)
			SELECT (plantstore_spend('script', $1 + 0 * (SELECT 1 FROM tick), $2, interval '6 seconds', null) ->> 'seconds')::float8`, want, most, step).Scan(&seconds); err != nil {
			t.Fatal(err)
		}
		switch used := within(now-inPeriod, now); {
		case seconds == nil && used+want > most:
			t.Fatalf("at %d: %d more after %d in the period, want %d at the most", now, want, used, most)
		case seconds == nil:
			all = append(all, spent{now, want})
		case within(now-inPeriod-inPart, now)+want <= most:
			t.Fatalf("at %d: %d more are refused after %d in the period and a sixtieth", now, want, within(now-inPeriod-inPart, now))
		case *seconds <= 0 || *seconds > period.Seconds():
			t.Fatalf("refused for %f s, want some up to %s", *seconds, period)
		default: // what it says is true
			until := now + int(*seconds*float64(time.Second/tick)+0.5)
			if n := within(until-inPeriod, until) + want; n > most {
				t.Fatalf("at %d: there shall be room at %d, but then it would be %d", now, until, n)
			}
			if early := until - inPart - 1; early > now && within(early-inPeriod, early)+want <= most {
				t.Fatalf("at %d: there shall be room at %d, and is at %d already", now, until, early)
			}
		}
	}
	var parts int
	if err := owner.QueryRow(t.Context(), `SELECT max(cardinality(parts)) FROM plantstore_budgets`).Scan(&parts); err != nil || parts > 61 || len(all) < 100 {
		t.Errorf("%d parts, %v, %d deletions; want 61 parts at the most and many deletions", parts, err, len(all))
	}
}

// A clock that is set back, also by a failover to a server that is behind, leaves deletions
// in the future. A budget comes back after two periods all the same.
func TestABudgetAfterAClockWasSetBack(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	budget := plant.Budget{Most: 2, Period: time.Hour}
	tokens := withBudget(t, database, budget, "shop")
	for id := range int64(6) {
		s.plant(t, id)
	}
	use := func(id int64) error { return s.deleteForSure(t, by("shop", id, budget)) }
	setBack := func(by string) {
		s.exec(t, fmt.Sprintf(`UPDATE plantstore_budgets SET began = began + interval '%[1]s', ends = ARRAY(SELECT e + interval '%[1]s' FROM unnest(ends) e)`, by))
		s = storeOn(t, database, "") // which does not know yet that the budget is used up
	}
	for id := range int64(2) {
		if err := use(id); err != nil {
			t.Fatal(err)
		}
	}
	setBack("30 minutes")
	if over := overBudget(use(2)); over == nil || time.Until(over.Until) > 2*time.Hour || time.Until(over.Until) < time.Hour {
		t.Errorf("half an hour back: %+v, want the budget used up for an hour and a half", over)
	}
	s.exec(t, `INSERT INTO plantstore_budgets (principal, default_most, default_period, used, parts, ends) SELECT 'oidc:anna', 2, '1 hour', used, parts, ends FROM plantstore_budgets`)
	setBack("90 minutes")
	if list, err := tokens.List(t.Context()); err != nil || len(list) != 1 || list[0].Used != 0 {
		t.Errorf("two hours back: %+v, %v; want one principal, with nothing used", list, err)
	}
	for id := range int64(2) {
		if err := use(2 + id); err != nil {
			t.Errorf("two hours back: %v, want the budget whole", err)
		}
	}
	if over := overBudget(use(4)); over == nil || time.Until(over.Until) > time.Hour {
		t.Errorf("after the whole budget: %+v, want it used up for an hour", over)
	}
	// What is left of a part that is in the future is not spent as if there was no end to it.
	s.exec(t, `UPDATE plantstore_budgets SET used = 1, parts = '{1}', began = began + interval '2 hours', ends = ARRAY[ends[1] + interval '2 hours']`)
	s = storeOn(t, database, "")
	for id := range int64(2) {
		if err := use(4 + id); err != nil {
			t.Errorf("one used two hours ahead: %v, want the budget whole", err)
		}
	}
}

// Principals that the service knows from elsewhere have its default. Its role can
// neither raise a budget nor reset what was used.
func TestTheDefaultBudget(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	one := plant.Budget{Most: 1, Period: time.Hour}
	withBudget(t, database, one, "ours")
	s := storeOn(t, database, "")
	for id := range int64(9) {
		s.plant(t, id)
	}
	huge := plant.Budget{Most: 1000, Period: time.Second}
	for _, tt := range []struct {
		principal string
		budget    plant.Budget
		id        int64
		over      bool
	}{
		{"idp:alice", one, 1, false}, {"idp:alice", one, 2, true}, {"idp:bob", one, 2, false}, {"idp:bob", one, 3, true},
		// Whatever the service says of them, the principals of the database have its budgets.
		{"ours", huge, 3, false}, {"ours", huge, 4, true},
	} {
		if err := s.deleteForSure(t, by(tt.principal, tt.id, tt.budget)); isOver(err) != tt.over || !tt.over && err != nil {
			t.Errorf("plant %d by %s: %v, want over budget %v", tt.id, tt.principal, err, tt.over)
		}
	}
	for _, sql := range []string{
		`UPDATE plantstore_budgets SET most = 9`, `DELETE FROM plantstore_budgets`, `SELECT * FROM plantstore_budgets`, `TRUNCATE plantstore_budgets`,
		`INSERT INTO plantstore_budgets (principal, most, period) VALUES ('x', 1, '1 hour')`,
		`SELECT plantstore_spend('ours', -5, 100, '1 hour', null)`,
	} {
		if _, err := s.pool.Exec(t.Context(), sql); sqlState(err) != insufficientPrivilege {
			t.Errorf("%s by the service: %v, want SQLSTATE %s", sql, err, insufficientPrivilege)
		}
	}
}

// The default budget can be lifted for a principal that only the identity provider
// knows, also before it has used any.
func TestTheDefaultBudgetIsLifted(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	for id := range int64(9) {
		s.plant(t, id)
	}
	one := plant.Budget{Most: 1, Period: time.Hour}
	for i, principal := range []string{"oidc:alice", "oidc:bob"} {
		if i == 0 { // one has used hers up, the other has never been here
			if _, err := s.plants.Delete(in(t, patience), by(principal, 0, one)); err != nil {
				t.Fatal(err)
			}
		}
		if err := issuer(t, database).LiftBudget(t.Context(), principal, time.Hour); err != nil {
			t.Fatal(err)
		}
		for id := range int64(3) {
			if _, err := s.plants.Delete(in(t, patience), by(principal, 3*int64(i)+id+1, one)); err != nil {
				t.Errorf("deletion %d by %s, whose budget is lifted: %v", id, principal, err)
			}
		}
	}
	if err := issuer(t, database).LiftBudget(t.Context(), "shop", time.Hour); !errors.Is(err, ErrNoPrincipal) {
		t.Errorf("LiftBudget of nobody: %v, want ErrNoPrincipal", err)
	}
	if err := issuer(t, database).LiftBudget(t.Context(), "oidc:alice", 0); err != nil {
		t.Fatal(err)
	}
	if err := s.deleteForSure(t, by("oidc:alice", 8, one)); !isOver(err) {
		t.Errorf("deletion once the budget counts again: %v, want it used up", err)
	}
}

// A provider may call its principals anything that is printable. Each is itself, in the
// ledger and where deletions are counted.
func TestPrincipalsOfOddNames(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	var printable strings.Builder
	for c := byte(' '); c <= '~'; c++ {
		printable.WriteByte(c)
	}
	var principals []string
	for _, subject := range []string{printable.String(), " ", "  ", "NULL", "null", "{}", "{a,b}", `"`, `""`, `\`, `\"`, `'`, "a,b", "%s", "$1", "--", "/*", "</a>&amp;", `\u0000`, "oidc:", "Alice", "alice", "alice ",
		strings.Repeat(`"`, 255), strings.Repeat(`\`, 255)} {
		principals = append(principals, auth.JWTPrefix+subject)
	}
	s.sample(t, 2*len(principals))
	one := plant.Budget{Most: 1, Period: time.Hour}
	var group sync.WaitGroup
	for i, principal := range principals {
		group.Go(func() {
			first, second := int64(2*i+1), int64(2*i+2)
			if result, err := s.plants.Delete(in(t, patience), by(principal, first, one)); err != nil || result.Replayed {
				t.Errorf("%q deletes: %+v, %v; want its plant deleted", principal, result, err)
			}
			if result, err := s.plants.Delete(in(t, patience), by(principal, first, one)); err != nil || !result.Replayed {
				t.Errorf("%q again: %+v, %v; want it replayed", principal, result, err)
			}
			if err := s.deleteForSure(t, by(principal, second, one)); !isOver(err) {
				t.Errorf("%q beyond its budget: %v, want an OverBudgetError", principal, err)
			}
			if _, err := s.plants.Delete(in(t, patience), by(principal, -first, one)); !errors.Is(err, plant.ErrNotFound) {
				t.Errorf("%q wants no plant deleted: %v, want ErrNotFound", principal, err)
			}
		})
	}
	group.Wait()
	if diff := cmp.Diff(principals, stringsOf(t, s.owner, `SELECT deleted_by FROM plant_deletions WHERE plant IS NOT NULL ORDER BY plant_id`)); diff != "" {
		t.Errorf("deleted by (-want +got):\n%s", diff)
	}
	list, err := issuer(t, database).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, p := range list {
		listed = append(listed, p.Name)
		if p.Budget != one || !p.ByDefault || p.Used != 1 {
			t.Errorf("listed: %+v, want 1 used of %s by default", p, one)
		}
	}
	slices.Sort(listed)
	slices.Sort(principals)
	if diff := cmp.Diff(principals, listed); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
}

// Budgets that are set, lifted, taken away and forgotten while their principals delete
// make no deletion fail for another reason than the budget.
func TestBudgetsThatChangeWhileTheyAreSpent(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	five := plant.Budget{Most: 5, Period: time.Second}
	issued, ledger := withBudget(t, database, five, "script"), ledgerOf(t, database)
	s := storeOn(t, database, "")
	const each = 300
	principals := []string{"script", "oidc:alice"}
	s.sample(t, each*len(principals))
	var deleting, changing sync.WaitGroup
	var over atomic.Bool
	for i, principal := range principals {
		var next atomic.Int64
		for range 16 {
			deleting.Go(func() {
				for n := next.Add(1); n <= each; n = next.Add(1) {
					if _, err := s.plants.Delete(in(t, patience), by(principal, int64(i*each)+n, five)); err != nil && !isOver(err) {
						t.Errorf("Delete by %s: %v, want none or an OverBudgetError", principal, err)
					}
				}
			})
		}
		changing.Go(func() {
			for n := 0; !over.Load(); n++ {
				var err error
				switch n % 4 {
				case 0:
					err = issued.SetBudget(t.Context(), principal, plant.Budget{Most: int64(n%7 + 1), Period: time.Minute})
				case 1:
					err = issued.LiftBudget(t.Context(), principal, time.Second)
				case 2:
					err = issued.LiftBudget(t.Context(), principal, 0)
				case 3:
					err = issued.SetBudget(t.Context(), principal, plant.Budget{})
				}
				if err != nil {
					t.Errorf("change %d of the budget of %s: %v", n, principal, err)
				}
				if _, err := ledger.Purge(t.Context(), IdempotencyHorizon, func(int64) {}); err != nil {
					t.Errorf("Purge: %v", err)
				}
			}
		})
	}
	deleting.Wait()
	over.Store(true)
	changing.Wait()
}

// Principals that come and go leave no rows behind for ever.
func TestPurgeForgetsBudgets(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	withBudget(t, database, hundred, "ours")
	s.exec(t, `INSERT INTO plantstore_budgets (principal, used, began, parts, ends, lifted_until) VALUES
		('oidc:gone', 1, now() - interval '9 days', '{1}', ARRAY[now() - interval '8 days'], '-infinity'),
		('oidc:late', 2, now() - interval '9 days', '{1,1}', ARRAY[now() - interval '8 days', now() - interval '6 days'], '-infinity'),
		('oidc:lifted', 0, '-infinity', '{}', '{}', now() + interval '1 hour'),
		('oidc:unused', 0, '-infinity', '{}', '{}', '-infinity')`)
	if _, err := ledgerOf(t, database).Purge(t.Context(), IdempotencyHorizon, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	left := stringsOf(t, s.owner, `SELECT principal FROM plantstore_budgets ORDER BY principal`)
	if diff := cmp.Diff([]string{"oidc:late", "oidc:lifted", "ours"}, left); diff != "" {
		t.Errorf("budgets that are left (-want +got):\n%s", diff)
	}
}

// Who has no budget pays nothing for those who have one: the budgets are not looked at.
func TestWithoutABudgetNothingIsPaid(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	withBudget(t, database, hundred, "script")
	s := storeOn(t, database, "pool_max_conns=1")
	for id := range int64(40) {
		s.plant(t, id)
	}
	looks := func() int64 {
		t.Helper()
		var n int64
		if err := pgx.BeginFunc(t.Context(), s.owner, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), `SELECT seq_scan + idx_scan FROM pg_stat_user_tables WHERE relname = 'plantstore_budgets'`).Scan(&n)
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	// Each backend tells its figures when it ends.
	tell := func() { s.pool.Reset() }
	before := looks()
	var group sync.WaitGroup
	for id := range int64(20) {
		group.Go(func() {
			if _, err := s.plants.Delete(in(t, patience), deletion(id, "k")); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if _, err := s.plants.Delete(in(t, patience), deletion(20, "k")); err != nil {
		t.Error(err)
	}
	tell()
	time.Sleep(time.Second)
	without := looks()
	if _, err := s.plants.Delete(in(t, patience), by("script", 30, hundred)); err != nil {
		t.Error(err)
	}
	tell()
	for deadline := time.Now().Add(patience); looks() == without; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the budget is not looked at where there is one: this test tests nothing")
		}
	}
	if without != before {
		t.Errorf("deletions without a budget looked at the budgets %d times, want never", without-before)
	}
}

// While a budget's row is held, by a commit that takes long, only those wait who share it.
func TestABudgetHoldsNobodyElseUp(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	withBudget(t, database, hundred, "script")
	s := storeOn(t, database, "")
	for id := range int64(40) {
		s.plant(t, id)
	}
	if _, err := s.plants.Delete(in(t, patience), by("script", 0, hundred)); err != nil {
		t.Fatal(err)
	}
	unlock := s.hold(t, `SELECT FROM plantstore_budgets FOR UPDATE`)
	var group sync.WaitGroup
	for id := range int64(8) {
		group.Go(func() {
			if _, err := s.plants.Delete(in(t, patience), by("script", 1+id, hundred)); err != nil {
				t.Errorf("Delete by a principal whose budget was held: %v, want none", err)
			}
		})
	}
	s.seeWaits(t, 1)
	for id := range int64(8) {
		if _, err := s.plants.Delete(in(t, patience), deletion(20+id, "k")); err != nil {
			t.Errorf("Delete by another principal meanwhile: %v, want none", err)
		}
	}
	unlock()
	group.Wait()
}

// While the budget of one principal is held, another that has one keeps its rate.
// Those who waited all get through once it is let go.
func TestBesideABudgetThatIsHeld(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	plenty := plant.Budget{Most: 1_000_000, Period: time.Hour}
	withBudget(t, database, plenty, "held", "other")
	s := storeOn(t, database, "pool_max_conns=1") // which has one connection for budgets
	const many = 64
	s.exec(t, `INSERT INTO plants (id, name) SELECT i, 'fern' FROM generate_series(1, 60000) i`)
	var next atomic.Int64
	s.besidesOf(t, func(id int64) plant.Deletion { return by("other", id, plenty) }, func(t *testing.T) func() {
		unlock := s.hold(t, `SELECT FROM plantstore_budgets WHERE principal = 'held' FOR UPDATE`)
		stop := crowd(many, func(int) {
			id := next.Add(1)
			if _, err := s.plants.Delete(in(t, patience), by("held", id, plenty)); err != nil {
				t.Errorf("Delete(%d) by a principal whose budget was held: %v, want none", id, err)
			}
		})
		s.seeWaits(t, 1)
		return func() {
			unlock()
			stop()
		}
	})
}

// However many budgets are held at once: a deletion that waited for a lock goes on soon
// after that is let go.
func TestBesideManyBudgetsThatAreHeld(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	const many = 24
	principals := make([]string, many)
	for i := range principals {
		principals[i] = fmt.Sprint("held-", i)
	}
	withBudget(t, database, hundred, principals...)
	s := storeOn(t, database, "pool_max_conns=1") // which has one connection for locked ones
	s.sample(t, many+1)
	inLine := func(n int64) {
		for ctx := in(t, patience); s.plants.locked.Load() != n; time.Sleep(time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatalf("%d deletions wait for locks, want %d", s.plants.locked.Load(), n)
			}
		}
	}
	letGo := s.hold(t, `SELECT FROM plantstore_budgets FOR UPDATE`)
	var held sync.WaitGroup
	for i, principal := range principals {
		held.Go(func() {
			if _, err := s.plants.Delete(in(t, patience), by(principal, int64(1+i), hundred)); err != nil {
				t.Errorf("Delete by a principal whose budget was held: %v, want none", err)
			}
		})
	}
	inLine(many)
	unlock := s.lock(t, many+1)
	var locked sync.WaitGroup
	locked.Go(func() {
		// Those before it, each with its usual patience, would take longer.
		if _, err := s.plants.Delete(in(t, 8*time.Second), deletion(many+1, "k")); err != nil {
			t.Errorf("Delete of a plant that was locked: %v, want none", err)
		}
	})
	inLine(many + 1)
	unlock()
	locked.Wait()
	letGo()
	held.Wait()
}

// A deletion that is tried with little time left is told for certain that its budget was
// held: the batch gives up before the request does.
func TestABudgetThatIsHeldAtTheEnd(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	withBudget(t, database, hundred, "held")
	s := storeOn(t, database, "")
	const tries = 20
	s.sample(t, tries)
	s.hold(t, `SELECT FROM plantstore_budgets FOR UPDATE`)
	certain := 0
	for id := range int64(tries) {
		_, err := s.plants.Delete(in(t, margin+margin/4), by("held", 1+id, hundred))
		if errors.Is(err, plant.ErrUnknown) {
			continue
		}
		certain++
		if !errors.Is(err, plant.ErrBusy) {
			t.Errorf("Delete while the budget is held: %v, want ErrBusy", err)
		}
	}
	if certain == 0 { // a busy machine may keep some answers from coming in time
		t.Errorf("none of %d deletions was told for certain, want most", tries)
	}
}

// The connection of the one that waits for a held budget falls silent. The others are not
// kept waiting for it until its time is over.
func TestTheOneThatWaitsForABudgetIsLost(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	withBudget(t, database, hundred, "held")
	simulated(t, func(t *testing.T) {
		s, w := lossy(t, database, "")
		s.sample(t, 8)
		unlock := s.hold(t, `SELECT FROM plantstore_budgets FOR UPDATE`)
		var group sync.WaitGroup
		for id := range int64(8) {
			group.Go(func() {
				if _, err := s.plants.Delete(in(t, patience), by("held", 1+id, hundred)); err != nil {
					t.Errorf("Delete by a principal whose budget was held: %v, want none", err)
				}
			})
		}
		time.Sleep(3 * time.Second) // of rests between attempts: there were several
		w.mute()
		began := time.Now()
		unlock()
		group.Wait()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("after the budget was let go, and a connection fell silent: took %s, want a few seconds", took)
		}
	})
}

// A token tells the budget of its principal, and so does the list.
func TestATokenTellsTheBudget(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	issued := issuer(t, database)
	week := plant.Budget{Most: 7, Period: plant.LongestPeriod}
	token, err := issued.Create(t.Context(), "script", []string{auth.ScopeDelete}, time.Time{}, week)
	if err != nil {
		t.Fatal(err)
	}
	second, err := issued.Rotate(t.Context(), "script", time.Hour, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	tokens := storeOn(t, database, "").Tokens(0)
	for _, budget := range []plant.Budget{week, hundred, {}} {
		if err := issued.SetBudget(t.Context(), "script", budget); err != nil {
			t.Fatal(err)
		}
		for _, token := range []string{token, second} {
			if got, err := tokens.Authenticate(in(t, patience), token); err != nil || got.Budget != budget {
				t.Errorf("Authenticate = %+v, %v; want the budget %s", got, err, budget)
			}
		}
		if list, err := issued.List(t.Context()); err != nil || len(list) != 1 || list[0].Budget != budget {
			t.Errorf("List = %+v, %v; want the budget %s", list, err, budget)
		}
	}
	// Nothing of a budget remains where there is none.
	if got := stringsOf(t, pgtest.Pool(t, database.Owner), `SELECT b::text FROM plantstore_budgets b`); !slices.Equal(got, nil) {
		t.Errorf("budgets %s, want none", strings.Join(got, ", "))
	}
}

// Principals that have a budget share no batch: one would wait for the other's.
func TestABatchHasOneBudget(t *testing.T) {
	t.Parallel()
	for what, want := range map[purpose]string{together: "[[a b a c b]]", budgeted: "[[a a] [b b] [c]]"} {
		g := &group{what: what}
		for i, principal := range []string{"a", "b", "a", "c", "b"} {
			g.waiting = append(g.waiting, &member{deletion: plant.Deletion{Plant: plant.ID(i), Principal: principal}})
		}
		var got [][]string
		for len(g.waiting) > 0 {
			var principals []string
			for _, m := range g.take(maxBatch) {
				principals = append(principals, m.deletion.Principal)
			}
			got = append(got, principals)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("batches of purpose %d: %v, want %s", what, got, want)
		}
	}
}

// A deletion of nothing leaves the budget's row alone, and a clock that was set back
// gives nothing of the budget back.
func TestABudgetIsOnlySpent(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	ten := plant.Budget{Most: 10, Period: time.Hour}
	withBudget(t, database, ten, "a")
	s := storeOn(t, database, "")
	s.sample(t, 2)
	s.exec(t, `UPDATE plantstore_budgets SET used = 8, began = now() + interval '1h', parts = '{8}', ends = ARRAY[now() + interval '1h']`)
	for _, tt := range []struct {
		id   int64
		want string
	}{{1, "9 true"}, {2, "10 true"}} {
		if _, err := s.plants.Delete(in(t, patience), by("a", tt.id, ten)); err != nil {
			t.Errorf("Delete(%d): %v, want none", tt.id, err)
		}
		if got := stringsOf(t, s.owner, `SELECT used || ' ' || (ends[1] > now() + interval '50 minutes') FROM plantstore_budgets`)[0]; got != tt.want {
			t.Errorf("used, and the end is where it was: %s, want %s", got, tt.want)
		}
	}
	version := func() string { return stringsOf(t, s.owner, `SELECT xmin::text FROM plantstore_budgets`)[0] }
	before := version()
	s.plants.difficult.note(777, verdict{next: alone})
	for _, id := range []int64{776, 777} {
		if _, err := s.plants.Delete(in(t, patience), by("a", id, ten)); !errors.Is(err, plant.ErrNotFound) {
			t.Errorf("Delete(%d): %v, want ErrNotFound", id, err)
		}
	}
	if after := version(); after != before {
		t.Errorf("the budget's row is of transaction %s after two deletions of nothing, want %s", after, before)
	}
}

// awaitMembers waits until so many deletions wait for their batch.
func (g *group) awaitMembers(n int) {
	for waiting := 0; waiting < n; time.Sleep(time.Millisecond) {
		g.mu.Lock()
		waiting = len(g.waiting)
		g.mu.Unlock()
	}
}

// inOneBatch deletes plants 1 to n by principal a, who has a budget, and returns what
// came of each, in no order.
func (s store) inOneBatch(t *testing.T, n int, budget plant.Budget, timeout time.Duration) (errs []error) {
	t.Helper()
	taken := s.take(t, budgeted)
	ended := make(chan error, n)
	for id := range int64(n) {
		go func() {
			_, err := s.plants.Delete(in(t, timeout), by("a", 1+id, budget))
			ended <- err
		}()
	}
	s.plants.budgeted.awaitMembers(n)
	for _, conn := range taken {
		conn.Release()
	}
	for range n {
		errs = append(errs, <-ended)
	}
	return errs
}

// Many deletions that are refused together are each told when there is room for one.
func TestRetryAfterOfABatch(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	ten := plant.Budget{Most: 10, Period: time.Hour}
	withBudget(t, database, ten, "a")
	s := storeOn(t, database, "")
	s.sample(t, 8)
	s.exec(t, `UPDATE plantstore_budgets SET used = 10, began = now(), parts = '{2,8}', ends = ARRAY[now() - interval '50 minutes', now()]`)
	for _, err := range s.inOneBatch(t, 8, ten, patience) {
		over, ok := errors.AsType[*plant.OverBudgetError](err)
		if !ok || time.Until(over.Until) > 11*time.Minute {
			t.Errorf("refused with %+v, want until when two have come back, in ten minutes", over)
		}
	}
}

// Any program can raise our error. A batch that it is not about is tried one by one.
func TestAnOverdraftOfNobody(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	withBudget(t, database, hundred, "a")
	s := storeOn(t, database, "")
	s.sample(t, 8)
	s.exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN IF OLD.id = 8 THEN RAISE ''no'' USING ERRCODE = ''PST02'', DETAIL = ''{"left": 9}''; END IF; RETURN OLD; END';
		CREATE TRIGGER refuse BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION refuse()`)
	deleted := 0
	for _, err := range s.inOneBatch(t, 8, hundred, 5*time.Second) {
		if err == nil {
			deleted++
		}
	}
	if deleted != 7 {
		t.Errorf("%d were deleted, want the 7 that nobody refuses", deleted)
	}
}

// Where commits are slow, those who share a budget still go in batches.
func TestABudgetWhereCommitsAreSlow(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	plenty := plant.Budget{Most: 100_000, Period: time.Hour}
	withBudget(t, database, plenty, "a")
	s := storeOn(t, database, "")
	s.exec(t, `CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN
				IF coalesce(current_setting('test.slept', true), '') = '' THEN PERFORM set_config('test.slept', 'yes', true), pg_sleep(0.04); END IF;
				RETURN NULL;
			END $$;
		CREATE CONSTRAINT TRIGGER dawdle AFTER DELETE ON plants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dawdle()`)
	took := func(budget plant.Budget) time.Duration {
		s.sample(t, 320)
		var next atomic.Int64
		var group sync.WaitGroup
		began := time.Now()
		for range 32 {
			group.Go(func() {
				for id := next.Add(1); id <= 320; id = next.Add(1) {
					if _, err := s.plants.Delete(in(t, patience), by("a", id, budget)); err != nil {
						t.Errorf("Delete(%d): %v, want none", id, err)
					}
				}
			})
		}
		group.Wait()
		return time.Since(began)
	}
	var ratio float64
	for range 4 { // a machine may be busy with something else
		without, with := took(plant.Budget{}), took(plenty)
		if ratio = with.Seconds() / without.Seconds(); ratio < 8 {
			return
		}
	}
	t.Errorf("320 deletions of 32 clients with a budget take %.1f times as long as without, want less than 8", ratio)
}

// Code of the store's may also catch the error that a budget is used up. In a batch, nothing
// is spent for plants that nobody asked for: each request spends what it takes along.
func TestABudgetWhoseErrorIsCaught(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	budget := plant.Budget{Most: 10, Period: time.Hour}
	withBudget(t, database, budget, "a")
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		s.exec(t, `INSERT INTO plants (id, name) SELECT 100 * g + i, 'Boston fern' FROM generate_series(0, 1) g, generate_series(1, 7) i;
			CREATE FUNCTION public.along() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN
				DELETE FROM public.plants WHERE id IN (SELECT id + 100 FROM old_table);
				RETURN NULL;
			EXCEPTION WHEN others THEN
				RETURN NULL;
			END$$;
			CREATE TRIGGER z AFTER DELETE ON public.plants REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT EXECUTE FUNCTION public.along()`)
		refused := 0
		batch := batchBy("a", 7, budget)
		for i, err := range s.inABatch(t, s.plants.budgeted, batch) {
			if errors.Is(err, plant.ErrBusy) { // the machine is: a batch has a time limit
				_, err = s.plants.Delete(in(t, patience), batch[i].deletion)
			}
			if isOver(err) {
				refused++
			} else if err != nil {
				t.Errorf("plant %d: %v, want it deleted, or its budget used up", i+1, err)
			}
		}
		if left := len(stringsOf(t, s.owner, `SELECT id::text FROM plants`)); refused != 2 || left != 4 {
			t.Errorf("%d requests were refused, %d plants are left; want 2, and 4: those of the two", refused, left)
		}
	})
}
