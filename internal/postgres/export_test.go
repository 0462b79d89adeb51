package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/localpg"
	"plantstore/internal/pgtest"
)

// An exported is what an export has written and told.
type exported struct {
	mu   sync.Mutex
	list []Recorded
	told []string
	// news has something for each that was told.
	news chan string
	done chan error
}

// export runs an export in the background. It ends with the test.
func exportOf(t *testing.T, l *Ledger, after Cursor, follow bool) *exported {
	t.Helper()
	x := &exported{news: make(chan string, 1000), done: make(chan error, 1)}
	go func() {
		x.done <- l.Export(t.Context(), ExportOptions{
			After: after, Follow: follow,
			Write: func(list []Recorded) error {
				x.mu.Lock()
				defer x.mu.Unlock()
				x.list = append(x.list, list...)
				return nil
			},
			Tell: func(what string) {
				x.mu.Lock()
				defer x.mu.Unlock()
				x.told = append(x.told, what)
				x.news <- what
			},
		})
	}()
	return x
}

func (x *exported) plants() []int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	ids := []int64{}
	for _, r := range x.list {
		ids = append(ids, r.PlantID)
	}
	return ids
}

// end waits for an export that does not follow.
func (x *exported) end(t *testing.T) {
	t.Helper()
	select {
	case err := <-x.done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatalf("the export does not end; told %q", x.told)
	}
}

// hear waits until an export tells something that begins so.
func (x *exported) hear(t *testing.T, what string) string {
	t.Helper()
	for {
		select {
		case heard := <-x.news:
			if strings.HasPrefix(heard, what) {
				return heard
			}
		case err := <-x.done:
			t.Fatalf("the export ended (%v) with plants %d, told %q; want to hear %q", err, x.plants(), x.told, what)
		case <-time.After(patience):
			t.Fatalf("told %q; want %q", x.told, what)
		}
	}
}

func script(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// A number that was taken early and is committed late comes in its turn, whichever way
// into the ledger it was taken.
func TestExportMissesNothingThatIsCommittedLate(t *testing.T) {
	t.Parallel()
	database, _ := ownStore(t, map[string]string{"max_prepared_transactions": "5"})
	owner := pgtest.Pool(t, pgtest.WithParameters(database.Owner, "lock_timeout=5s")) // what a case that fails leaves may be in the way
	l := ledgerOf(t, database)
	l.heldUpAfter = 0
	script(t, pgtest.Connect(t, database.Owner), `BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'bystander'`) // has not written to the ledger
	for _, tt := range []struct {
		name      string
		as        string
		open, end string
		// held, if set, is done while the export waits.
		held string
		who  string
		want []int64
	}{
		{name: "a deletion", open: `BEGIN; DELETE FROM plants WHERE id = 1`, end: `COMMIT`, who: "process ", want: []int64{1, 2}},
		{name: "one that is rolled back", open: `BEGIN; DELETE FROM plants WHERE id = 1`, end: `ROLLBACK`, who: "process ", want: []int64{2}},
		{name: "serializable", open: `BEGIN ISOLATION LEVEL SERIALIZABLE; DELETE FROM plants WHERE id = 1`, end: `COMMIT`, who: "process ", want: []int64{1, 2}},
		{name: "in a savepoint", open: `BEGIN; SAVEPOINT a; DELETE FROM plants WHERE id = 1; RELEASE a; SELECT 1`, end: `COMMIT`, who: "process ", want: []int64{1, 2}},
		{name: "in a savepoint after one that failed", open: `BEGIN; SAVEPOINT a; DELETE FROM plants WHERE id = 1; ROLLBACK TO a; DELETE FROM plants WHERE id = 1`,
			end: `COMMIT`, who: "process ", want: []int64{1, 2}},
		{name: "a cascade", open: `BEGIN; DELETE FROM pots WHERE id = 1`, end: `COMMIT`, who: "process ", want: []int64{1, 2}},
		{name: "by the service", as: database.App, open: `BEGIN; SELECT set_config('plantstore.request', '{1,shop}', true);
			DELETE FROM public.plants WHERE id = 1`, end: `COMMIT`, who: "process ", want: []int64{1, 2}},
		{name: "by the service, in a batch", as: database.App, open: `BEGIN; SELECT set_config('plantstore.batch',
			'{{1,3},{shop,shop},{r,r},{k,k}}', true);
			DELETE FROM public.plants WHERE id = ANY ('{1,3}') RETURNING id`, end: `COMMIT`, who: "process ", want: []int64{1, 3, 2}},
		{name: "after a refusal", as: database.App, open: `BEGIN; SELECT plantstore_refuse(1, 'shop', 'r', 'key');
			DELETE FROM public.plants WHERE id = 1`, end: `COMMIT`, who: "process ", want: []int64{1, 2}},
		{name: "a prepared transaction", open: `BEGIN; DELETE FROM plants WHERE id = 1; PREPARE TRANSACTION 'it''s'`, end: `COMMIT PREPARED 'it''s'`,
			who: `the prepared transaction 'it''s'`, want: []int64{1, 2}},
		{name: "one that is prepared meanwhile", open: `BEGIN; DELETE FROM plants WHERE id = 1`, held: `PREPARE TRANSACTION 'late'`, end: `COMMIT PREPARED 'late'`,
			who: "process ", want: []int64{1, 2}},
		{name: "an entry by hand", open: `BEGIN; INSERT INTO plant_deletions (plant_id, shape, plant, deleted_by) VALUES (1, 1, '(1,a,b)', 'owner')`, end: `COMMIT`,
			who: "process ", want: []int64{1, 2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := owner.Exec(t.Context(), `DELETE FROM plants; DELETE FROM plant_deletions; DROP TABLE IF EXISTS pots CASCADE; ALTER TABLE plants DROP IF EXISTS pot;
				CREATE TABLE pots (id bigint PRIMARY KEY); INSERT INTO pots VALUES (1); ALTER TABLE plants ADD pot bigint REFERENCES pots ON DELETE CASCADE;
				INSERT INTO plants (id, name, pot) VALUES (1, 'early', 1), (2, 'late', NULL), (3, 'early', NULL)`); err != nil {
				t.Fatal(err)
			}
			if tt.as == "" {
				tt.as = database.Owner
			}
			other := pgtest.Connect(t, tt.as)
			script(t, other, tt.open)
			if _, err := owner.Exec(t.Context(), `DELETE FROM plants WHERE id = 2`); err != nil {
				t.Fatal(err)
			}
			x := exportOf(t, l, Cursor{}, false)
			if heard := x.hear(t, "held up"); !strings.Contains(heard, "have not ended: "+tt.who) || strings.Contains(heard, "bystander") {
				t.Errorf("told %q, want %q to be named, and not the bystander", heard, tt.who)
			}
			if tt.held != "" {
				script(t, other, tt.held)
				time.Sleep(100 * time.Millisecond) // for it to go wrong
			}
			if got := x.plants(); len(got) > 0 {
				t.Errorf("exported plants %d while an earlier deletion is open", got)
			}
			script(t, other, tt.end)
			x.end(t)
			if diff := cmp.Diff(tt.want, x.plants()); diff != "" {
				t.Errorf("exported plants (-want +got):\n%s", diff)
			}
			if len(x.told) != 2 || !strings.HasPrefix(x.told[1], "going on after ") {
				t.Errorf("told %q, want once that it is held up, and that it goes on", x.told)
			}
		})
	}
}

// What was not on the standby could be gone after a failover, and so is not exported.
func TestExportWaitsForTheStandbyOfCommits(t *testing.T) {
	t.Parallel()
	database, _ := ownStore(t, nil)
	s := storeOn(t, database, "")
	s.sample(t, 1)
	s.exec(t, `DELETE FROM plants`)
	super := pgtest.Pool(t, database.Super)
	requireStandby(t, super, "nobody")
	// The wait is cancelled, and what it waits for not believed.
	done := make(chan error, 1)
	go func() {
		done <- ledgerOf(t, database).Export(t.Context(), ExportOptions{
			Write: func(list []Recorded) error { return fmt.Errorf("exported %d deletions, want none", len(list)) },
			Tell:  func(what string) { t.Errorf("told %q, want nothing", what) },
		})
	}()
	cancelled := false
	for !cancelled && len(done) == 0 {
		if err := super.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'`).Scan(&cancelled); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; !cancelled || err == nil || !strings.Contains(err.Error(), errCutShort.Error()) {
		t.Errorf("Export: %v, its wait was cancelled: %v; want it to wait, and not to believe", err, cancelled)
	}
	// A follower goes on.
	follower := exportOf(t, ledgerOf(t, database), Cursor{}, true)
	for len(follower.news) == 0 && len(follower.done) == 0 {
		if _, err := super.Exec(t.Context(), `SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`); err != nil {
			t.Fatal(err)
		}
	}
	follower.hear(t, "waiting for the database: "+errCutShort.Error())
	requireStandby(t, super, "")
	follower.hear(t, "the database is back")
	x := exportOf(t, ledgerOf(t, database), Cursor{}, false)
	x.end(t)
	for _, got := range [][]int64{x.plants(), follower.plants()} {
		if diff := cmp.Diff([]int64{1}, got); diff != "" {
			t.Errorf("exported plants once no standby is asked for (-want +got):\n%s", diff)
		}
	}
}

// An INSERT takes its number before its transaction has an id.
func TestExportWaitsForANumberThatComesBeforeItsTransactionId(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	l := ledgerOf(t, database)
	l.heldUpAfter = 0
	s.sample(t, 3)
	s.exec(t, `DELETE FROM plants WHERE id = 3`)
	locker, inserter := pgtest.Connect(t, database.Owner), pgtest.Connect(t, database.Owner)
	script(t, locker, `SELECT pg_advisory_lock(7)`)
	inserted := make(chan error, 1)
	// A number that is logged gives its transaction an id: the first of some is, and the
	// first after a checkpoint.
	for hasID := true; hasID; {
		go func() {
			_, err := inserter.Exec(t.Context(), `INSERT INTO plant_deletions (plant_id, shape, plant, deleted_by)
				VALUES (1, 1, '(1,a,b)', (SELECT 'owner' FROM pg_advisory_xact_lock(7)))`)
			inserted <- err
		}()
		for waiting := false; !waiting; {
			if err := s.owner.QueryRow(t.Context(), `SELECT count(*) > 0, bool_or(backend_xid IS NOT NULL) IS TRUE FROM pg_stat_activity
				WHERE pid = $1 AND wait_event = 'advisory'`, inserter.PgConn().PID()).Scan(&waiting, &hasID); err != nil {
				t.Fatal(err)
			}
		}
		if hasID {
			s.exec(t, fmt.Sprintf(`SELECT pg_cancel_backend(%d)`, inserter.PgConn().PID()))
			if err := <-inserted; err == nil {
				t.Fatal("the INSERT was not cancelled")
			}
		}
	}
	s.exec(t, `DELETE FROM plants WHERE id = 2`)
	x := exportOf(t, l, Cursor{}, false)
	x.hear(t, "held up")
	script(t, locker, `SELECT pg_advisory_unlock(7)`)
	if err := <-inserted; err != nil {
		t.Fatal(err)
	}
	x.end(t)
	if diff := cmp.Diff([]int64{3, 1, 2}, x.plants()); diff != "" {
		t.Errorf("exported plants (-want +got):\n%s", diff)
	}
}

// What can't be waited for is not passed over.
func TestExportThatCannotSeeWhoHoldsItUp(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	l := ledgerOf(t, database)
	l.heldUpAfter = 0
	s.sample(t, 2)
	script(t, pgtest.Connect(t, database.Owner), `BEGIN; DELETE FROM plants WHERE id = 1`)
	s.exec(t, `DELETE FROM plants WHERE id = 2`)
	x := exportOf(t, l, Cursor{}, false)
	x.hear(t, "held up")
	script(t, pgtest.Connect(t, database.Super), `REVOKE SELECT ON pg_catalog.pg_prepared_xacts FROM PUBLIC`)
	select {
	case err := <-x.done:
		if err == nil || len(x.plants()) > 0 {
			t.Errorf("exported plants %d, %v; want none, an error", x.plants(), err)
		}
	case <-time.After(patience):
		t.Fatalf("the export does not end; told %q", x.told)
	}
}

// Transactions that did not write to the ledger hold nothing up, however long.
func TestExportIsHeldUpByNobodyElse(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	l := ledgerOf(t, database)
	l.heldUpAfter = 0
	s.sample(t, 2)
	script(t, pgtest.Connect(t, database.Owner), `BEGIN; INSERT INTO plants (id, name) VALUES (99, 'x'); SELECT pg_current_xact_id(); LOCK TABLE plants IN ROW EXCLUSIVE MODE`)
	script(t, pgtest.Connect(t, database.Owner), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM plant_deletions; LOCK TABLE plant_deletions IN SHARE ROW EXCLUSIVE MODE`)
	locked := pgtest.Connect(t, database.Owner)
	s.exec(t, `ROLLBACK`)
	script(t, locked, `BEGIN; SELECT * FROM plants FOR UPDATE`)
	script(t, pgtest.Connect(t, database.Super), `BEGIN; CREATE TABLE elsewhere (i int)`)
	x := exportOf(t, l, Cursor{}, false)
	x.end(t)
	if len(x.told) > 0 {
		t.Errorf("told %q, want nothing", x.told)
	}
}

// Many write at once, some of them slowly, and some in vain: a follower gets what is
// committed, once, in order.
func TestAFollowerGetsEverythingOnceAndInOrder(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	const writers, each = 6, 60
	s.sample(t, writers*each)
	l := ledgerOf(t, database)
	l.pageBytes = 300 // a few rows
	x := exportOf(t, l, Cursor{}, true)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for i := range each {
				err := pgx.BeginFunc(t.Context(), s.owner, func(tx pgx.Tx) error {
					if _, err := tx.Exec(t.Context(), `DELETE FROM plants WHERE id = $1`, w*each+i+1); err != nil {
						return err
					}
					time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
					if random.IntN(4) == 0 {
						return context.Canceled
					}
					return nil
				})
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	want, err := pgx.CollectRows(must(s.owner.Query(t.Context(), `SELECT id FROM plant_deletions ORDER BY id`)), pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for deadline := time.Now().Add(patience); len(got) < len(want) && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		x.mu.Lock()
		got = nil
		for _, r := range x.list {
			got = append(got, r.ID)
		}
		x.mu.Unlock()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("exported (-want +got):\n%s", diff)
	}
	if len(want) == 0 || len(want) == writers*each {
		t.Errorf("%d of %d are committed: this test tests nothing", len(want), writers*each)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A standby shows what is committed, and not who has smaller numbers.
func TestExportFromAStandby(t *testing.T) {
	t.Parallel()
	database, primary := ownStore(t, map[string]string{"max_prepared_transactions": "5"})
	standby, err := primary.Standby(t.Context(), localpg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Close() })
	s := storeOn(t, database, "")
	s.sample(t, 4)
	there := pgtest.Pool(t, standby.URL("plantstore_owner", "plantstore"))
	replayed := func() {
		t.Helper()
		var at string
		if err := s.owner.QueryRow(t.Context(), `SELECT pg_current_wal_lsn()::text`).Scan(&at); err != nil {
			t.Fatal(err)
		}
		for done := false; !done; time.Sleep(10 * time.Millisecond) {
			if err := there.QueryRow(t.Context(), `SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`, at).Scan(&done); err != nil {
				t.Fatal(err)
			}
		}
	}
	early, late := pgtest.Connect(t, database.Owner), pgtest.Connect(t, database.Owner)
	script(t, late, `BEGIN; SELECT pg_current_xact_id()`) // so the one that is open is the newest
	script(t, early, `BEGIN; DELETE FROM plants WHERE id = 1`)
	script(t, late, `DELETE FROM plants WHERE id = 2; COMMIT`)
	replayed()
	l := ledgerOf(t, pgtest.Database{Owner: standby.URL("plantstore_owner", "plantstore")})
	l.heldUpAfter = 0
	x := exportOf(t, l, Cursor{}, false)
	if heard := x.hear(t, "held up"); !strings.Contains(heard, "of the primary") {
		t.Errorf("told %q, want the primary to be named", heard)
	}
	// Nothing is waited for on a connection that is lost.
	if _, err := there.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = current_user AND pid <> pg_backend_pid()`); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-x.done:
		if err == nil {
			t.Errorf("an export that lost its connection ended without an error, with plants %d", x.plants())
		}
	case <-time.After(patience):
		t.Fatalf("an export that lost its connection does not end; told %q", x.told)
	}
	x = exportOf(t, l, Cursor{}, false)
	x.hear(t, "held up")
	script(t, early, `PREPARE TRANSACTION 'early'`)
	time.Sleep(100 * time.Millisecond) // for it to go wrong
	script(t, early, `COMMIT PREPARED 'early'`)
	x.end(t)
	if diff := cmp.Diff([]int64{1, 2}, x.plants()); diff != "" {
		t.Errorf("exported plants (-want +got):\n%s", diff)
	}

	// It is promoted under a follower.
	x = exportOf(t, l, x.list[1].Cursor(), true)
	s.exec(t, `DELETE FROM plants WHERE id = 3`)
	replayed()
	if err := primary.Stop(t.Context(), localpg.Immediate); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	for deleted := false; !deleted; time.Sleep(10 * time.Millisecond) {
		_, err := there.Exec(t.Context(), `DELETE FROM plants WHERE id = 4`)
		deleted = err == nil
	}
	for deadline := time.Now().Add(patience); len(x.plants()) < 2 && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
	}
	if diff := cmp.Diff([]int64{3, 4}, x.plants()); diff != "" {
		t.Errorf("followed plants, told %q (-want +got):\n%s", x.told, diff)
	}
}

// An export goes on after any of its lines.
func TestExportGoesOnAfterACursor(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.sample(t, 9)
	s.exec(t, `DELETE FROM plants WHERE id < 6`)
	s.exec(t, `SELECT plantstore_refuse(77, 'shop', 'r', 'k')`)
	s.exec(t, `DELETE FROM plants`)
	l.pageBytes = 1
	all := exportOf(t, l, Cursor{}, false)
	all.end(t)
	if got := all.plants(); !slices.Equal(got, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}) {
		t.Fatalf("exported plants %d, want 1 to 9 and no refusal", got)
	}
	for i, r := range all.list {
		after, err := ParseCursor(r.Cursor().String())
		if err != nil {
			t.Fatal(err)
		}
		x := exportOf(t, l, after, false)
		x.end(t)
		if diff := cmp.Diff(all.plants()[i+1:], x.plants()); diff != "" || len(x.told) > 0 {
			t.Errorf("after %s, told %q (-want +got):\n%s", after, x.told, diff)
		}
	}
}

func TestParseCursor(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"4711", "@", "4711@", "4711@2026-07-01", "4711@2026-07-01T12:00:00Z", "4711@2026-07-01T12:00:00.000000+02:00", "x@2026-07-01T12:00:00.000000Z", " "} {
		if c, err := ParseCursor(bad); err == nil {
			t.Errorf("ParseCursor(%q) = %v, want an error", bad, c)
		}
	}
	for _, good := range []string{"", "4711@2026-07-01T12:00:00.000001Z", "-5@1999-12-31T23:59:59.999999Z"} {
		if c, err := ParseCursor(good); err != nil || c.String() != good {
			t.Errorf("ParseCursor(%q) = %v, %v", good, c, err)
		}
	}
}

// What was purged before it was exported is gone, and that is told.
func TestExportTellsOfAPurge(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.sample(t, 6)
	s.exec(t, `DELETE FROM plants`)
	s.exec(t, `UPDATE plant_deletions SET deleted_at = now() - interval '30 days' + id * interval '1 day'`)
	l.pageBytes = 1
	all := exportOf(t, l, Cursor{}, false)
	all.end(t)
	if _, err := s.owner.Exec(t.Context(), `DELETE FROM plant_deletions WHERE id < 4`); err != nil {
		t.Fatal(err)
	}
	x := exportOf(t, l, all.list[1].Cursor(), false)
	x.end(t)
	if diff := cmp.Diff([]int64{4, 5, 6}, x.plants()); diff != "" {
		t.Errorf("exported plants (-want +got):\n%s", diff)
	}
	if len(x.told) != 1 || !strings.HasPrefix(x.told[0], fmt.Sprintf("deletion %s is not in the ledger any more: it was purged, and whatever", all.list[1].Cursor())) {
		t.Errorf("told %q, want that it was purged", x.told)
	}

	// A purge overtakes an export that is under way.
	overtaken := &exported{}
	err := l.Export(t.Context(), ExportOptions{
		Write: func(list []Recorded) error {
			overtaken.list = append(overtaken.list, list...)
			_, err := s.owner.Exec(t.Context(), `DELETE FROM plant_deletions WHERE id < 6`)
			return err
		},
		Tell: func(what string) { overtaken.told = append(overtaken.told, what) },
	})
	if err != nil || len(overtaken.told) != 1 || !strings.Contains(overtaken.told[0], "it was purged") || !slices.Equal(overtaken.plants(), []int64{4, 6}) {
		t.Errorf("overtaken by a purge: plants %d, told %q, %v; want 4 and 6, and to be told", overtaken.plants(), overtaken.told, err)
	}

	// That it goes on being overtaken is told once.
	s.sample(t, 3)
	s.exec(t, `DELETE FROM plants`)
	s.exec(t, `UPDATE plant_deletions SET deleted_at = now() - interval '30 days' + id * interval '1 day'`)
	overtaken = &exported{}
	err = l.Export(t.Context(), ExportOptions{
		Write: func(list []Recorded) error {
			overtaken.list = append(overtaken.list, list...)
			_, err := s.owner.Exec(t.Context(), `DELETE FROM plant_deletions WHERE id <= $1`, list[len(list)-1].ID)
			return err
		},
		Tell: func(what string) { overtaken.told = append(overtaken.told, what) },
	})
	if err != nil || len(overtaken.told) != 1 || len(overtaken.list) != 4 {
		t.Errorf("overtaken again and again: plants %d, told %q, %v; want 4 deletions, and to be told once", overtaken.plants(), overtaken.told, err)
	}
}

// A look for the cursor that fails says nothing of a purge.
func TestACursorThatCannotBeLookedFor(t *testing.T) {
	t.Parallel()
	_, l := newLedger(t)
	e := &export{Ledger: l, ExportOptions: ExportOptions{After: Cursor{1, time.Now().Add(-30 * 24 * time.Hour)},
		Tell: func(what string) { t.Errorf("told %q, want nothing", what) }}}
	failed := errors.New("the look has failed")
	err := transact(t.Context(), l.db.pool, pgx.RepeatableRead, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT 1/0`); err == nil {
			t.Error("a division by zero: no error") // after which the transaction takes no statement
		}
		if err := e.checkCursor(t.Context(), tx); sqlState(err) != "25P02" {
			t.Errorf("the look for the cursor: %v, want the error of the transaction", err)
		}
		return failed
	})
	if !errors.Is(err, failed) {
		t.Fatal(err)
	}
}

// A follower that had all there was misses nothing when that is purged.
func TestAFollowerIsNotToldOfAPurgeOfWhatItHas(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.sample(t, 2)
	s.exec(t, `DELETE FROM plants WHERE id = 1`)
	s.exec(t, `UPDATE plant_deletions SET deleted_at = now() - interval '8 days'`)
	simulated(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var plants []int64
		var told []string
		rounds := 0
		l := ledgerOf(t, database)
		err := l.Export(ctx, ExportOptions{
			Follow: true,
			Write: func(list []Recorded) error {
				for _, r := range list {
					plants = append(plants, r.PlantID)
				}
				switch rounds++; rounds {
				case 1:
					time.AfterFunc(5*time.Second, func() {
						s.exec(t, `DELETE FROM plant_deletions`)
						time.AfterFunc(5*time.Second, func() { s.exec(t, `DELETE FROM plants WHERE id = 2`) })
					})
				case 2:
					cancel()
				}
				return nil
			},
			Tell: func(what string) { told = append(told, what) },
		})
		if !errors.Is(err, context.Canceled) || !slices.Equal(plants, []int64{1, 2}) || len(told) > 0 {
			t.Errorf("plants %d, told %q, %v; want 1 and 2, nothing told, and the end of the context", plants, told, err)
		}
	})
}

// Where the ledger is not what it was, or numbers its entries otherwise than one after
// another, an export ends instead of missing something.
func TestExportRefusesALedgerInDisorder(t *testing.T) {
	t.Parallel()
	young, old := Cursor{2, time.Now().Add(-time.Hour)}, Cursor{2, time.Now().Add(-30 * 24 * time.Hour)}
	const again = `DELETE FROM plant_deletions; ALTER TABLE plant_deletions ALTER id RESTART; ` // as in a backup
	for _, tt := range []struct {
		name, sql string
		after     Cursor
		want      string
	}{
		{"numbers in store", `ALTER TABLE plant_deletions ALTER id SET CACHE 2`, Cursor{}, "are not handed out one after another"},
		{"downwards", `ALTER TABLE plant_deletions ALTER id SET INCREMENT -1 SET MINVALUE -10`, Cursor{}, "are not handed out one after another"},
		{"round and round", `ALTER TABLE plant_deletions ALTER id SET CYCLE`, Cursor{}, "are not handed out one after another"},
		{"begun anew", `DELETE FROM plant_deletions; ALTER TABLE plant_deletions ALTER id RESTART; DELETE FROM plants WHERE id = 2`, Cursor{3, time.Now().Add(-30 * 24 * time.Hour)},
			"the last number that was handed out is 1"},
		{"another database", ``, Cursor{99, time.Now().Add(-30 * 24 * time.Hour)}, "the last number that was handed out is 3"},
		{"lost", `DELETE FROM plant_deletions WHERE id = 2`, young, "the database lost it"},
		{"another entry", ``, young, "the database lost it"},
		{"another entry, long ago", ``, old, "the database lost it"},
		{"numbers handed out again", again + `DELETE FROM plants WHERE id IN (2, 5); DELETE FROM plants WHERE id = 6`, old, "which has another entry with its number: the database lost it"},
		{"numbers handed out again, to a refusal", again + `DELETE FROM plants WHERE id = 2; SELECT plantstore_refuse(9, 'shop', 'r', 'key'); DELETE FROM plants WHERE id = 5`, old, "the database lost it"},
		{"hidden", `ALTER TABLE plant_deletions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY`, Cursor{}, "row-level security"},
		{"damaged", `UPDATE plant_deletions SET plant = '(1' WHERE id = 2`, Cursor{}, "the row of deletion 2 is damaged"},
		{"gone", `DROP TABLE plant_deletions`, Cursor{}, "the schema is behind"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, l := newLedger(t)
			s.sample(t, 6)
			s.exec(t, `DELETE FROM plants WHERE id < 4 AND id <> 2`)
			s.exec(t, `DELETE FROM plants WHERE id = 4`)
			if tt.sql != "" {
				s.exec(t, tt.sql)
			}
			for _, follow := range []bool{false, true} {
				x := exportOf(t, l, tt.after, follow)
				select {
				case err := <-x.done:
					if err == nil || !strings.Contains(err.Error(), tt.want) {
						t.Errorf("with follow %v: plants %d, %v; want an error with %q", follow, x.plants(), err, tt.want)
					}
				case <-time.After(patience):
					t.Errorf("with follow %v: it goes on, and told %q", follow, x.told)
				}
			}
		})
	}
}

// An error of who takes the lines ends the export, and they are not taken for taken.
// Somebody rewrites the ledger, as VACUUM FULL does. That is no outage.
func TestAFollowerBesideALockOfTheLedger(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.sample(t, 1)
	s.exec(t, `DELETE FROM plants`)
	locker, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locker.Exec(t.Context(), `LOCK TABLE plant_deletions`); err != nil {
		t.Fatal(err)
	}
	follower := exportOf(t, l, Cursor{}, true)
	follower.hear(t, "waiting, as somebody else has locked a table of the ledger")
	if err := locker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	follower.hear(t, "going on after ")
}

func TestExportEndsWithItsConsumer(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.sample(t, 1)
	s.exec(t, `DELETE FROM plants`)
	lost := &pgconn.PgError{Code: "57P01", Message: "the disk is full"} // in a database of the consumer's, which is none of ours
	for _, failure := range []error{errors.New("the disk is full"), lost} {
		asked := 0
		err := l.Export(t.Context(), ExportOptions{Follow: true, Tell: func(string) {}, Write: func([]Recorded) error {
			if asked++; asked > 1 {
				return errors.New("asked again")
			}
			return failure
		}})
		if err == nil || !strings.Contains(err.Error(), "the disk is full") {
			t.Errorf("Export: %v, want the consumer's error", err)
		}
	}
}

// Two rights are enough for a role that exports.
func TestARoleThatOnlyExports(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.sample(t, 3)
	s.exec(t, `DELETE FROM plants`)
	super := pgtest.Pool(t, database.Super)
	role := "siem_" + database.Name
	if _, err := super.Exec(t.Context(), fmt.Sprintf(`CREATE ROLE %[1]s LOGIN PASSWORD 'x'; GRANT SELECT ON public.plant_deletions, public.plant_shapes TO %[1]s;
		ALTER ROLE %[1]s SET default_transaction_read_only = on; ALTER ROLE %[1]s SET default_transaction_isolation = 'serializable'`, role)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := super.Exec(context.Background(), fmt.Sprintf(`DROP OWNED BY %[1]s; DROP ROLE %[1]s`, role)); err != nil {
			t.Error(err)
		}
	})
	url := strings.Replace(database.Owner, "plantstore_owner:plantstore-test", role+":x", 1)
	if url == database.Owner { // a socket in the URL, and no password
		url = strings.Replace(database.Owner, "plantstore_owner", role, 1)
	}
	database.Owner = url
	x := exportOf(t, ledgerOf(t, database), Cursor{}, false)
	x.end(t)
	if diff := cmp.Diff([]int64{1, 2, 3}, x.plants()); diff != "" {
		t.Errorf("exported plants (-want +got):\n%s", diff)
	}
}
