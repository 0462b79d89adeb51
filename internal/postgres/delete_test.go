package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
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

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// A store is a database of its own, seen by the service's role and by its owner.
type store struct {
	*DB
	plants *Plants
	owner  *pgxpool.Pool
}

func newStore(t *testing.T) store {
	t.Helper()
	return storeOn(t, pgtest.New(t), "")
}

// storeOn opens a database; parameters are added to the service's URL.
func storeOn(t *testing.T, database pgtest.Database, parameters string) store {
	t.Helper()
	db, err := Open(t.Context(), pgtest.WithParameters(database.App, parameters))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return store{db, db.Plants(1024), pgtest.Pool(t, database.Owner)}
}

func (s store) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := s.owner.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// dawdles has each DELETE of a plant take so many seconds.
func (s store) dawdles(t *testing.T, seconds string) {
	t.Helper()
	s.exec(t, `CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_catalog.pg_sleep(`+seconds+`); RETURN old; END$$;
		CREATE TRIGGER dawdle BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION public.dawdle()`)
}

func (s store) plant(t *testing.T, id int64) {
	t.Helper()
	s.exec(t, `INSERT INTO plants (id, name) VALUES ($1, 'Boston fern')`, id)
}

func (s store) has(t *testing.T, id int64) bool {
	t.Helper()
	var has bool
	if err := s.owner.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM plants WHERE id = $1)`, id).Scan(&has); err != nil {
		t.Fatal(err)
	}
	return has
}

type ledgerRow struct {
	PlantID   int64
	Name      string
	DeletedBy string
	RequestID *string
	Key       *string
}

// ledger returns the deletions that are recorded.
func (s store) ledger(t *testing.T) []ledgerRow {
	t.Helper()
	rows, err := s.owner.Query(t.Context(),
		`SELECT plant_id, btrim(split_part(plant, ',', 2), '"'), deleted_by, request_id, idempotency_key FROM plant_deletions WHERE plant IS NOT NULL ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ledgerRow])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func deletion(id int64, key string) plant.Deletion {
	return plant.Deletion{Plant: plant.ID(id), Principal: "tester", RequestID: "request-" + key, Key: key}
}

// patience is the deadline of what is meant to succeed. It is not a bound that a
// test proves: a machine that is slow for a while must not come near it.
const patience = time.Minute

// simulated runs test with a simulated clock, which starts at the present time.
// The clock stands still while anybody waits for the network, which is to say
// for the server. It jumps ahead once everybody waits for the time only. So our
// own time limits are exact, however slow the machine is.
//
// Databases have to be made before, with the outer t.
func simulated(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	now := time.Now()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(now)) // the simulated clock starts in the year 2000
		test(t)
	})
}

// in returns a context with a deadline, as the server gives one.
func in(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestDeleteIsRecorded(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.exec(t, `ALTER TABLE plants ADD price numeric, ADD tags text[]`)
	s.exec(t, `INSERT INTO plants (id, name, price, tags) VALUES (7, 'Peace lily', 12.50, '{white,shade}')`)
	s.plant(t, 8)
	const row = `SELECT ROW(p.*)::text FROM public.plants p WHERE id = 7`
	var before, image string
	utc := pgtest.Pool(t, pgtest.WithParameters(database.Owner, "timezone=UTC"))
	if err := utc.QueryRow(t.Context(), row).Scan(&before); err != nil {
		t.Fatal(err)
	}

	result, err := s.plants.Delete(in(t, patience), deletion(7, "k1"))
	if err != nil || result.Replayed {
		t.Fatalf("Delete = %+v, %v; want deleted, no error", result, err)
	}
	if s.has(t, 7) {
		t.Error("plant 7 is still there")
	}
	if !s.has(t, 8) {
		t.Error("plant 8 is gone, and nobody asked for that")
	}
	want := []ledgerRow{{7, "Peace lily", "tester", ptr("request-k1"), ptr("k1")}}
	if diff := cmp.Diff(want, s.ledger(t)); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
	if err := s.owner.QueryRow(t.Context(), `SELECT plant FROM plant_deletions`).Scan(&image); err != nil {
		t.Fatal(err)
	}
	if image != before {
		t.Errorf("the ledger has %s, want %s", image, before)
	}
}

func ptr[T any](v T) *T { return &v }

func TestDeleteOfAMissingPlant(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.plant(t, 1)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "first")); err != nil {
		t.Fatal(err)
	}
	before := time.Now()

	_, err := s.plants.Delete(in(t, patience), deletion(1, "second"))
	var earlier *plant.DeletedEarlierError
	if !errors.As(err, &earlier) {
		t.Fatalf("second Delete: %v, want a DeletedEarlierError", err)
	}
	if age := before.Sub(earlier.At).Abs(); age > time.Minute {
		t.Errorf("deleted at %s, want about %s", earlier.At, before)
	}
	for _, id := range []int64{2, 0, -1, 1<<63 - 1, -1 << 63} {
		if _, err := s.plants.Delete(in(t, patience), deletion(id, "k")); !errors.Is(err, plant.ErrNotFound) {
			t.Errorf("Delete(%d): %v, want ErrNotFound", id, err)
		}
	}
	if got := len(s.ledger(t)); got != 1 {
		t.Errorf("%d ledger rows, want 1", got)
	}
}

func TestDeleteOfAReferredToPlant(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, schema, column string }{
		{"restrict", "public", "plant_id bigint REFERENCES plants ON DELETE RESTRICT"},
		{"no action", "public", "plant_id bigint REFERENCES plants"},
		{"deferred to the commit", "public", "plant_id bigint REFERENCES plants DEFERRABLE INITIALLY DEFERRED"},
		{"set default that a check refuses", "public", "plant_id bigint DEFAULT 7 CHECK (plant_id <> 7) REFERENCES plants ON DELETE SET DEFAULT"},
		{"set null that may not be null", "public", "plant_id bigint NOT NULL REFERENCES plants ON DELETE SET NULL"},
		{"from a schema that the service has no right on", `"Our Sales"`, "plant_id bigint REFERENCES plants"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			s := storeOn(t, database, "")
			s.plant(t, 1)
			if _, err := pgtest.Connect(t, database.Super).Exec(t.Context(), `CREATE SCHEMA IF NOT EXISTS `+tt.schema+` AUTHORIZATION plantstore_owner`); err != nil {
				t.Fatal(err)
			}
			s.exec(t, `CREATE TABLE `+tt.schema+`.order_items (`+tt.column+`)`)
			s.exec(t, `INSERT INTO `+tt.schema+`.order_items VALUES (1)`)
			_, err := s.plants.Delete(in(t, patience), deletion(1, "k"))
			var referenced *plant.ReferencedError
			if !errors.As(err, &referenced) || referenced.Table != "order_items" {
				t.Fatalf("Delete: %v, want a ReferencedError that names order_items", err)
			}
			if !s.has(t, 1) || len(s.ledger(t)) != 0 {
				t.Errorf("plant there: %v, ledger %v; want it there and nothing recorded", s.has(t, 1), s.ledger(t))
			}
		})
	}
}

func TestReplay(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.plant(t, 1)
	s.plant(t, 2)
	mustDelete := func(d plant.Deletion, replayed bool) {
		t.Helper()
		result, err := s.plants.Delete(in(t, patience), d)
		if err != nil || result.Replayed != replayed {
			t.Errorf("Delete(%+v) = %+v, %v; want Replayed %v", d, result, err, replayed)
		}
	}
	mustDelete(deletion(1, "k"), false)
	mustDelete(deletion(1, "k"), true)
	// The key of another plant is that plant's own.
	mustDelete(deletion(2, "k"), false)
	// A late retry leaves a plant that came back alone.
	s.plant(t, 1)
	mustDelete(deletion(1, "k"), true)
	if !s.has(t, 1) {
		t.Fatal("a late retry deleted the plant that came back")
	}
	// The key of another principal means nothing.
	other := deletion(1, "k")
	other.Principal = "somebody else"
	mustDelete(other, false)
	if s.has(t, 1) {
		t.Error("plant 1 is still there")
	}
	if got := len(s.ledger(t)); got != 3 {
		t.Errorf("%d ledger rows, want 3", got)
	}
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	const clients = 64
	s := newStore(t)
	race := func(id int64, key func(i int) string) (deleted, replayed, earlier int) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				result, err := s.plants.Delete(in(t, patience), deletion(id, key(i)))
				mu.Lock()
				defer mu.Unlock()
				var e *plant.DeletedEarlierError
				switch {
				case errors.As(err, &e):
					earlier++
				case err != nil:
					t.Errorf("client %d: %v", i, err)
				case result.Replayed:
					replayed++
				default:
					deleted++
				}
			})
		}
		wg.Wait()
		return
	}
	s.plant(t, 1)
	if d, r, e := race(1, func(i int) string { return fmt.Sprint("key", i) }); d != 1 || r != 0 || e != clients-1 {
		t.Errorf("own keys: %d deleted, %d replayed, %d deleted earlier; want 1, 0, %d", d, r, e, clients-1)
	}
	s.plant(t, 2)
	if d, r, e := race(2, func(int) string { return "same" }); d != 1 || r != clients-1 || e != 0 {
		t.Errorf("one key: %d deleted, %d replayed, %d deleted earlier; want 1, %d, 0", d, r, e, clients-1)
	}
	if got := len(s.ledger(t)); got != 2 {
		t.Errorf("%d ledger rows, want 2", got)
	}
}

func TestLockedRow(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		s.plant(t, 1)
		// A sequence keeps the longest lock_timeout, in milliseconds, although
		// every attempt is rolled back.
		s.exec(t, `CREATE SEQUENCE longest;
			CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN
				PERFORM setval('longest', greatest((SELECT last_value FROM longest),
					(SELECT setting::bigint FROM pg_settings WHERE name = 'lock_timeout')));
				RETURN NULL;
			END$$;
			CREATE TRIGGER note BEFORE DELETE ON plants FOR EACH STATEMENT EXECUTE FUNCTION note()`)
		s.lock(t, 1)
		const deadline = 500 * time.Millisecond
		_, err := s.plants.Delete(in(t, deadline), deletion(1, "k"))
		if !errors.Is(err, plant.ErrBusy) || errors.Is(err, plant.ErrUnknown) {
			t.Errorf("Delete of a locked plant: %v, want ErrBusy and nothing unknown", err)
		}
		if !s.has(t, 1) {
			t.Error("the locked plant is gone")
		}
		if got := s.plants.locked.Load(); got != 0 {
			t.Errorf("%d deletions count as waiting for locks when there are none, want 0", got)
		}
		var longest int64
		if err := s.owner.QueryRow(t.Context(), `SELECT last_value FROM longest`).Scan(&longest); err != nil {
			t.Fatal(err)
		}
		if got, want := time.Duration(longest)*time.Millisecond, deadline-margin; got != want {
			t.Errorf("the server waits for a lock for up to %s, want %s: before our deadline of %s", got, want, deadline)
		}
	})
}

// Also where the statements are parsed for the first time, which a locked table
// holds up.
func TestLockedTable(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		s.plant(t, 1)
		tx, err := s.owner.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.WithoutCancel(t.Context()))
		if _, err := tx.Exec(t.Context(), `LOCK TABLE public.plants IN ACCESS EXCLUSIVE MODE`); err != nil {
			t.Fatal(err)
		}
		_, err = s.plants.Delete(in(t, time.Second), deletion(1, "k"))
		if !errors.Is(err, plant.ErrBusy) || errors.Is(err, plant.ErrUnknown) {
			t.Errorf("Delete of a plant of a locked table: %v, want ErrBusy and nothing unknown", err)
		}
		// In real time, the server has to give up on parsing before we do.
		var milliseconds int64
		if err := s.pool.QueryRow(t.Context(), `SELECT setting::bigint FROM pg_settings WHERE name = 'lock_timeout'`).Scan(&milliseconds); err != nil {
			t.Fatal(err)
		}
		got, most := time.Duration(milliseconds)*time.Millisecond, attemptTimeout(in(t, patience), 1)-margin
		if got <= 0 || got > most {
			t.Errorf("parsing waits for a lock for up to %s, want at most %s", got, most)
		}
	})
}

// What can't be tried before the deadline is told at once, and not when time is over.
func TestARestLeavesTimeForAnAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for left, want := range map[time.Duration]bool{margin / 2: false, margin + firstPause - 1: false, margin + firstPause: true, patience: true} {
			ctx, began := in(t, left), time.Now()
			got := rest(ctx, backoff())
			if took := time.Since(began); got != want || !got && took > 0 || got && remaining(ctx) < margin {
				t.Errorf("a rest %s before the deadline: %v after %s; want %v, and %s left for an attempt", left, got, took, want, margin)
			}
		}
	})
}

func TestAnUnlockedRowIsDeletedAtLast(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.plant(t, 1)
	unlock := s.lock(t, 1)
	var deleted sync.WaitGroup
	deleted.Go(func() {
		if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
			t.Errorf("Delete of a plant that was locked for a while: %v, want none", err)
		}
	})
	s.seeWaits(t, 2)
	unlock()
	deleted.Wait()
}

// seeWaits returns when n statements were seen that wait for a lock, one after
// the other or at once.
func (s store) seeWaits(t *testing.T, n int) {
	t.Helper()
	ctx := in(t, patience)
	for seen := make(map[time.Time]bool); len(seen) < n; time.Sleep(time.Millisecond) {
		since, err := s.waits(ctx)
		if err != nil {
			t.Fatalf("%d statements seen that wait for a lock, want %d: %v", len(seen), n, err)
		}
		for _, at := range since {
			seen[at] = true
		}
	}
}

// waits returns since when statements wait for locks.
func (s store) waits(ctx context.Context) ([]time.Time, error) {
	rows, err := s.owner.Query(ctx, `SELECT l.waitstart FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE l.waitstart IS NOT NULL AND a.datname = current_database()`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[time.Time])
}

// lock locks the row of a plant until unlock is called or the test ends.
func (s store) lock(t *testing.T, id int64) (unlock func()) {
	t.Helper()
	return s.hold(t, `SELECT FROM plants WHERE id = $1 FOR UPDATE`, id)
}

// hold runs a statement in a transaction that keeps its locks until unlock is called.
func (s store) hold(t *testing.T, sql string, args ...any) (unlock func()) {
	t.Helper()
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
	unlock = sync.OnceFunc(func() {
		if err := tx.Rollback(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(unlock)
	return unlock
}

// Deletions that wait for each other are not told that the database can't be reached,
// unless it can't.
func TestAShareThatIsTaken(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		down := s.unreachable(t)
		s.plant(t, 1)
		take := s.take(t, together)
		_, err := s.plants.Delete(in(t, 300*time.Millisecond), deletion(1, "k"))
		if !errors.Is(err, plant.ErrBusy) || errors.Is(err, plant.ErrUnknown) {
			t.Errorf("Delete without a connection: %v, want ErrBusy and nothing unknown", err)
		}
		for _, conn := range take {
			conn.Release()
		}
		down.Store(true)
		s.DB.pool.Reset()
		_, err = s.plants.Delete(in(t, 300*time.Millisecond), deletion(1, "k"))
		if !errors.Is(err, plant.ErrUnavailable) || errors.Is(err, plant.ErrUnknown) {
			t.Errorf("Delete without a database: %v, want ErrUnavailable and nothing unknown", err)
		}
		// Once a connection was of use again, the trouble is over.
		down.Store(false)
		if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
			t.Fatal(err)
		}
		for _, conn := range s.take(t, together) {
			defer conn.Release()
		}
		_, err = s.plants.Delete(in(t, 300*time.Millisecond), deletion(2, "k"))
		if !errors.Is(err, plant.ErrBusy) || errors.Is(err, plant.ErrUnavailable) {
			t.Errorf("Delete without a connection, the database being back: %v, want ErrBusy and not ErrUnavailable", err)
		}
	})
}

// take borrows all connections of a share.
func (s store) take(t *testing.T, what purpose) (all []*borrowed) {
	t.Helper()
	for range s.shares.size[what] {
		conn, err := s.borrow(in(t, patience), what, patience)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
	}
	return all
}

func TestDirectSQLIsRecorded(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.plant(t, 1)
	s.exec(t, `DELETE FROM plants WHERE id = 1`)
	s.exec(t, `
		CREATE TABLE nurseries (id bigint PRIMARY KEY);
		INSERT INTO nurseries VALUES (1), (2);
		ALTER TABLE plants ADD nursery_id bigint REFERENCES nurseries ON DELETE CASCADE;
		INSERT INTO plants (id, name, nursery_id) VALUES (2, 'Snake plant', 1), (3, 'Aloe vera', 1), (5, 'Ivy', 2);
		DELETE FROM nurseries`)
	s.exec(t, `
		ALTER TABLE plants ADD parent bigint REFERENCES plants ON DELETE CASCADE;
		INSERT INTO plants (id, name, parent) VALUES (6, 'Mother', NULL), (7, 'Daughter', 6), (8, 'Granddaughter', 7);
		DELETE FROM plants WHERE id = 6`)
	s.exec(t, `
		INSERT INTO plants (id, name) VALUES (9, 'Agave'), (10, 'Yucca'), (11, 'Fig');
		WITH a AS (DELETE FROM plants WHERE id = 9 RETURNING id), b AS (DELETE FROM plants WHERE id = 10 RETURNING id)
		DELETE FROM plants WHERE id IN (SELECT 11 FROM a, b)`)
	want := []ledgerRow{
		{1, "Boston fern", "plantstore_owner", nil, nil},
		{2, "Snake plant", "plantstore_owner", nil, nil},
		{3, "Aloe vera", "plantstore_owner", nil, nil},
		{5, "Ivy", "plantstore_owner", nil, nil},
		{6, "Mother", "plantstore_owner", nil, nil},
		{7, "Daughter", "plantstore_owner", nil, nil},
		{8, "Granddaughter", "plantstore_owner", nil, nil},
		{9, "Agave", "plantstore_owner", nil, nil},
		{10, "Yucca", "plantstore_owner", nil, nil},
		{11, "Fig", "plantstore_owner", nil, nil},
	}
	s.checkLedger(t, want)
	s.plant(t, 4)
	if _, err := s.owner.Exec(t.Context(), `TRUNCATE plants CASCADE`); sqlState(err) != insufficientPrivilege {
		t.Errorf("TRUNCATE: %v, want SQLSTATE %s", err, insufficientPrivilege)
	}
	if !s.has(t, 4) {
		t.Error("TRUNCATE removed plant 4")
	}
}

func TestDurabilityCannotBeTurnedOff(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"off", "local"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			super := pgtest.Pool(t, database.Super)
			if _, err := super.Exec(t.Context(),
				`ALTER DATABASE `+pgx.Identifier{database.Name}.Sanitize()+` SET synchronous_commit = `+setting); err != nil {
				t.Fatal(err)
			}
			s := storeOn(t, database, "")
			s.exec(t, `CREATE TABLE seen (setting text);
				CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
					$$BEGIN INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END$$;
				CREATE CONSTRAINT TRIGGER see AFTER DELETE ON plants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see();
				CREATE CONSTRAINT TRIGGER see AFTER UPDATE ON plant_deletions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see();
				CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON api_tokens DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()`)
			s.plant(t, 1)
			if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
				t.Fatal(err)
			}
			owner, err := Open(t.Context(), database.Owner)
			if err != nil {
				t.Fatal(err)
			}
			defer owner.Close()
			if _, err := owner.Ledger().Restore(t.Context(), []int64{1}, RestoreOptions{RunTriggers: true}); err != nil {
				t.Fatal(err)
			}
			tokens := owner.Tokens(0)
			if _, err := tokens.Create(t.Context(), "shop", []string{auth.ScopeDelete}, time.Time{}, plant.Budget{}); err != nil {
				t.Fatal(err)
			}
			if _, err := tokens.Revoke(t.Context(), "shop"); err != nil {
				t.Fatal(err)
			}
			if got := stringsOf(t, s.owner, `SELECT setting FROM seen`); !slices.Equal(got, []string{"on", "on", "on", "on"}) {
				t.Errorf("a deletion, its restore, a token and its end were committed under synchronous_commit %v; want each on", got)
			}
		})
	}
}

// A limit on whole transactions, of PostgreSQL 17 and later, ends the connection of what
// waits for a lock: then nobody knows what became of a deletion, or a restore is broken off.
// And to compile cheap statements takes seconds. A limit on statements, of the database or
// of the service's sessions, ends a large restore.
func TestSettingsThatAreNotForOurs(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	// The limits are ones that nothing here comes near.
	if _, err := pgtest.Pool(t, database.Super).Exec(t.Context(), `DO $$BEGIN
			EXECUTE format('ALTER DATABASE %I SET jit = on', current_database());
			EXECUTE format('ALTER DATABASE %I SET statement_timeout = %L', current_database(), '1h');
			IF current_setting('transaction_timeout', true) IS NOT NULL THEN
				EXECUTE format('ALTER DATABASE %I SET transaction_timeout = %L', current_database(), '1h');
			END IF;
		END$$`); err != nil {
		t.Fatal(err)
	}
	s, l := storeOn(t, database, ""), ledgerOf(t, database)
	s.sample(t, 60)
	s.exec(t, `CREATE TABLE public.seen (doing text);
		CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN
			IF current_setting('transaction_timeout', true) <> '0' THEN
				INSERT INTO public.seen VALUES (TG_OP || ' under a transaction_timeout');
			END IF;
			IF current_setting('jit') <> 'off' THEN
				INSERT INTO public.seen VALUES (TG_OP || ' under jit');
			END IF;
			IF TG_OP = 'INSERT' AND current_setting('statement_timeout') <> '0' THEN
				INSERT INTO public.seen VALUES (TG_OP || ' under a statement_timeout of ' || current_setting('statement_timeout'));
			END IF;
			RETURN NULL;
		END$$;
		CREATE TRIGGER see BEFORE INSERT OR DELETE ON public.plants FOR EACH STATEMENT EXECUTE FUNCTION public.see()`)
	_, err := s.plants.Delete(in(t, patience), deletion(1, "k"))
	for _, err := range append(s.deleteAtOnce(t, ids(2, 60)), err) {
		if err != nil {
			t.Errorf("Delete: %v, want none", err)
		}
	}
	var number int64 // not 1 where a busy machine had the first attempt taken back
	if err := s.owner.QueryRow(t.Context(), `SELECT id FROM plant_deletions WHERE plant_id = 1`).Scan(&number); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Restore(t.Context(), []int64{number}, RestoreOptions{}); err != nil {
		t.Errorf("Restore: %v, want none", err)
	}
	if got := stringsOf(t, s.owner, `SELECT DISTINCT doing FROM public.seen`); len(got) > 0 {
		t.Errorf("seen %q, want nothing", got)
	}
}

// Plans are kept for the life of a connection, also those that were made while the
// ledger was empty: before any ANALYZE, or known to be empty.
func TestAGrownLedgerIsNotScanned(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{"new": "SELECT", "known to be empty": "VACUUM (ANALYZE) public.plant_deletions"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testAGrownLedgerIsNotScanned(t, before)
		})
	}
}

func testAGrownLedgerIsNotScanned(t *testing.T, before string) {
	database := pgtest.New(t)
	s := storeOn(t, database, "pool_max_conns=2")
	s.exec(t, before)
	s.sample(t, 100)
	use := func(first int64) {
		t.Helper()
		for i := range int64(8) {
			if _, err := s.plants.Delete(in(t, patience), deletion(first+i, "k")); err != nil {
				t.Error(err)
			}
			if _, err := s.plants.Delete(in(t, patience), deletion(1000+i, "k")); !errors.Is(err, plant.ErrNotFound) {
				t.Error(err)
			}
		}
		for _, err := range s.deleteAtOnce(t, ids(first+10, first+40)) {
			if err != nil {
				t.Error(err)
			}
		}
	}
	use(1)
	const grown = 20_000
	s.exec(t, `INSERT INTO public.plant_deletions (plant_id, shape, plant, deleted_by) SELECT -i, 1, '()', 'somebody' FROM generate_series(1, $1::int) i`, grown)
	use(51)
	if read := s.statistic(t, `SELECT (SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'plant_deletions') +
			(SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'plant_deletions')`); read > grown {
		t.Errorf("%d rows of the ledger were read, want fewer than one scan of its %d", read, grown)
	}
}

// A table has a file for each gigabyte, and no deletion looks at all of them.
func TestALargeTableIsNotMeasured(t *testing.T) {
	t.Parallel()
	database, _ := ownStore(t, nil)
	s := storeOn(t, database, "")
	s.exec(t, `INSERT INTO public.plants (id, name) SELECT i, 'fern' FROM generate_series(1, 60000) i`)
	s.exec(t, `VACUUM (ANALYZE) public.plants`)
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	id := int64(0)
	quickest := func() time.Duration {
		least := time.Hour
		for range 100 {
			id++
			deleted, work, _, err := deleteEach(t.Context(), single{conn.Conn()}, []turn{{Deletion: deletion(id, "k")}}, time.Second, time.Minute, new(atCommit))
			if err != nil || !deleted[0] {
				t.Fatalf("plant %d deleted: %v, %v; want true, none", id, deleted, err)
			}
			least = min(least, work)
		}
		return least
	}
	before := quickest()
	var file string
	if err := pgtest.Pool(t, database.Super).QueryRow(t.Context(),
		`SELECT current_setting('data_directory') || '/' || pg_relation_filepath('public.plants')`).Scan(&file); err != nil {
		t.Fatal(err)
	}
	// Of a table that VACUUM saw all of, the second page of the map; the server does not read it.
	if err := os.Truncate(file+"_vm", 2*8192); err != nil {
		t.Fatal(err)
	}
	for n := range 3000 { // the server looks into none but the first, as that is not full
		if err := os.WriteFile(fmt.Sprintf("%s.%d", file, n+1), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if after := quickest(); after > 5*before {
		t.Errorf("the database worked on a deletion for %v, and for %v with 3000 files: want no more than 5 times as long", before, after)
	}
}

// A batch is not planned anew each time, however small: after a few, its plan is kept.
func TestPlansAreKept(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 20_000)
	for _, size := range []int{2, 3, 20} {
		conn := pgtest.Connect(t, s.pool.Config().ConnString())
		const batches = 12
		for i := range batches {
			var turns []turn
			for n := range size {
				turns = append(turns, turn{Deletion: deletion(int64(1000*size+i*size+n), "k")})
			}
			if _, _, _, err := deleteTogether(t.Context(), single{conn}, turns, time.Second, time.Minute, nothingLeft()); err != nil {
				t.Fatal(err)
			}
		}
		checkKeptPlans(t, conn, batches, 3)
	}
}

// nothingLeft tells that no code of the store's runs at commits.
func nothingLeft() *atCommit {
	c := new(atCommit)
	c.looked.Store(&lookedAt{time.Now().Add(time.Hour), true})
	return c
}

// checkKeptPlans fails unless a connection has so many statements prepared, each of which
// used a plan that is kept for half of the batches at least.
func checkKeptPlans(t *testing.T, conn *pgx.Conn, batches, want int) {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT statement, generic_plans FROM pg_prepared_statements WHERE statement !~ 'pg_prepared_statements'`, pgx.QueryExecModeExec)
	if err != nil {
		t.Fatal(err)
	}
	var statement string
	var kept, statements int
	if _, err := pgx.ForEachRow(rows, []any{&statement, &kept}, func() error {
		statements++
		if kept < batches/2 {
			t.Errorf("a plan that is kept was used %d times of %d, want %d at least: %s", kept, batches, batches/2, statement)
		}
		return nil
	}); err != nil || statements != want {
		t.Errorf("%d statements, %v; want %d", statements, err, want)
	}
}

// deleting is what a batch of some deletions is run with.
func deleting(turns []turn) deleteFunc {
	if len(turns) == 1 {
		return deleteEach
	}
	return deleteTogether
}

// A table that was empty, or small, when deletions from it were planned, and was loaded
// then, is not scanned for each of them until somebody analyses it.
func TestALoadedTableIsNotScanned(t *testing.T) {
	t.Parallel()
	const loaded = 100_000
	load := fmt.Sprintf(`INSERT INTO public.plants (id, name) SELECT i, 'fern' FROM generate_series(1, %d) i`, loaded)
	const vacuum = `VACUUM (ANALYZE) public.plants`
	for name, before := range map[string][]string{
		"known to be empty": {vacuum},
		"small":             {`INSERT INTO public.plants (id, name) SELECT -i, 'fern' FROM generate_series(1, 200) i`, vacuum},
		"large and emptied": {load, vacuum, `DELETE FROM public.plants`, vacuum},
	} {
		for kind, at := range map[string]int64{"one by one": 1, "in batches": 20} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				database := pgtest.New(t)
				s := storeOn(t, database, "")
				conn, err := s.pool.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				use := func(first int64, want int) {
					t.Helper()
					for i := range int64(8) {
						var turns []turn
						for n := range at {
							turns = append(turns, turn{Deletion: deletion(first+i*at+n, "k")})
						}
						deleted, _, _, err := deleting(turns)(t.Context(), single{conn.Conn()}, turns, time.Second, time.Minute, new(atCommit))
						if got := len(slices.DeleteFunc(deleted, func(d bool) bool { return !d })); err != nil || got != want {
							t.Errorf("%d plants deleted, %v; want %d", got, err, want)
						}
					}
				}
				for _, sql := range before {
					s.exec(t, sql)
					use(loaded+1, 0)
				}
				s.exec(t, load)
				use(1, int(at))
				use(loaded+1, 0)
				conn.Release()
				// Of that of the owner's own, its deletion of all took one scan.
				if read := s.statistic(t, `SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'plants'`); read > 2*loaded {
					t.Errorf("%d rows of plants were read in scans, want fewer than two scans of its %d", read, loaded)
				}
			})
		}
	}
}

// statistic closes the service's pool, as sessions tell their statistics when they end, and
// returns one then.
func (s store) statistic(t *testing.T, sql string) (value int) {
	t.Helper()
	s.Close()
	for sessions := 1; sessions > 0; {
		if err := s.owner.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_stat_activity WHERE usename = 'plantstore_app' AND datname = current_database()), (`+sql+`)`).
			Scan(&sessions, &value); err != nil {
			t.Fatal(err)
		}
	}
	return value
}

func TestReady(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if err := s.Ready(in(t, patience), []int64{1, 2, 3, 4, 5, 6}); err != nil {
		t.Errorf("Ready: %v, want none", err)
	}
	const behind = "the schema is behind: migrations 98, 99 are missing; apply them with 'plantstore migrate up'"
	if err := s.Ready(in(t, patience), []int64{1, 98, 99}); err == nil || err.Error() != behind {
		t.Errorf("Ready with unknown migrations: %v, want %s", err, behind)
	}
	locker, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locker.Exec(t.Context(), `LOCK TABLE public.goose_db_version`); err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(in(t, patience), []int64{1}); !errors.Is(err, ErrLocked) {
		t.Errorf("Ready while the versions are locked: %v, want ErrLocked", err)
	}
	if err := locker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.owner.Exec(t.Context(), `REVOKE SELECT ON public.goose_db_version FROM plantstore_app`); err != nil {
		t.Fatal(err)
	}
	const unseen = "the schema is behind: the migration that lets the service see which are applied is missing, or its rights were taken away: see 'plantstore doctor', or apply it with 'plantstore migrate up'"
	if err := s.Ready(in(t, patience), []int64{1, 2}); err == nil || err.Error() != unseen {
		t.Errorf("Ready where the versions can't be read: %v, want %s", err, unseen)
	}
	never := storeOn(t, pgtest.Empty(t), "")
	const all = "the schema is behind: migrations 1, 2 are missing; apply them with 'plantstore migrate up'"
	if err := never.Ready(in(t, patience), []int64{1, 2}); err == nil || err.Error() != all {
		t.Errorf("Ready on an empty database: %v, want %s", err, all)
	}
}

// A server that takes no writes is told, and passed where there may be another one.
func TestReadOnlyServers(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	config, err := pgx.ParseConfig(database.App)
	if err != nil {
		t.Fatal(err)
	}
	const readOnly = "default_transaction_read_only=on"
	url := pgtest.WithParameters(database.App, readOnly)
	second := fmt.Sprintf("host=/nonexistent,%s port=1,%d user=%s password=%s dbname=%s %s", config.Host, config.Port, config.User, config.Password, config.Database, readOnly)
	for name, tt := range map[string]struct{ url, want string }{
		"the only one":                    {url, ReadOnly},
		"where a standby will do":         {url + "&target_session_attrs=standby", Unreachable},
		"where it has to be a primary":    {url + "&target_session_attrs=primary", Unreachable},
		"the last of several":             {second, Unreachable},
		"the last, of which any would do": {second + " target_session_attrs=any", Unreachable},
	} {
		db, err := Open(t.Context(), tt.url)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		notReady, ok := errors.AsType[*NotReadyError](db.Ready(in(t, patience), nil))
		if !ok || notReady.Reason != tt.want {
			t.Errorf("%s: Ready: %v; want a NotReadyError, %s", name, notReady, tt.want)
		}
		if why := "read-only: default_transaction_read_only is on"; ok && tt.want == ReadOnly && !strings.Contains(notReady.Error(), why) {
			t.Errorf("%s: Ready: %q; want it to say %q", name, notReady, why)
		}
	}
}
