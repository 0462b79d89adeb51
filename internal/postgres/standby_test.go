package postgres

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/auth"
	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// ownStore starts a server of the test's own, with settings, and returns a store on it.
func ownStore(t *testing.T, settings map[string]string) (pgtest.Database, *localpg.Server) {
	t.Helper()
	all := map[string]string{"fsync": "off"}
	maps.Copy(all, settings)
	server, err := localpg.Start(t.Context(), localpg.Options{Settings: all})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	if err := migrate.NewStore(t.Context(), server.URL, "plantstore"); err != nil {
		t.Fatal(err)
	}
	return pgtest.Database{
		Super: server.URL("postgres", "plantstore"), Owner: server.URL("plantstore_owner", "plantstore"), App: server.URL("plantstore_app", "plantstore"),
	}, server
}

// requireStandby makes commits of a server wait for a standby of one of names. When it
// returns they do: the checkpointer tells commits whether to wait. It has been told once a
// new session sees the setting, and has looked before the next checkpoint begins.
func requireStandby(t *testing.T, super *pgxpool.Pool, names string) {
	t.Helper()
	for _, sql := range []string{`ALTER SYSTEM SET synchronous_standby_names = '` + names + `'`, `SELECT pg_reload_conf()`} {
		if _, err := super.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	for seen := ""; ; {
		conn, err := pgx.ConnectConfig(t.Context(), super.Config().ConnConfig)
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(conn.QueryRow(t.Context(), `SHOW synchronous_standby_names`).Scan(&seen), conn.Close(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		if seen == names {
			break
		}
	}
	if _, err := super.Exec(t.Context(), `CHECKPOINT`); err != nil {
		t.Fatal(err)
	}
}

// While the synchronous standby is away a commit waits. A wait that is cancelled is
// answered with success and a warning, and must not be believed. No setting of the server's
// may keep the warning from us, nor may a trigger of the store's that runs last.
func TestACommitWithoutItsStandbyIsNotBelieved(t *testing.T) {
	t.Parallel()
	for name, hurried := range map[string]bool{"plain": false, "hurried": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testACommitWithoutItsStandby(t, hurried)
		})
	}
}

// hurry has triggers make commits of deletions and refusals quick and quiet, when they begin.
func (s store) hurry(t *testing.T) {
	t.Helper()
	s.exec(t, `CREATE FUNCTION public.hurry() RETURNS trigger LANGUAGE plpgsql AS
			$$BEGIN SET LOCAL synchronous_commit = off; SET LOCAL client_min_messages = error; RETURN NULL; END$$;
		CREATE CONSTRAINT TRIGGER hurry AFTER DELETE ON public.plants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.hurry();
		CREATE CONSTRAINT TRIGGER hurry AFTER INSERT ON public.plant_deletions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.hurry()`)
}

func testACommitWithoutItsStandby(t *testing.T, hurried bool) {
	database, _ := ownStore(t, map[string]string{"client_min_messages": "error"})
	before := storeOn(t, database, "")
	if hurried {
		before.hurry(t)
	}
	before.sample(t, 21)
	if _, err := before.plants.Delete(in(t, patience), deletion(21, "k")); err != nil {
		t.Fatal(err)
	}
	if _, err := before.plants.Delete(in(t, patience), keyed(22, "k")); !errors.Is(err, plant.ErrNotFound) {
		t.Fatalf("Delete of a missing plant: %v, want ErrNotFound", err)
	}
	before.plant(t, 22)
	super := pgtest.Pool(t, database.Super)
	requireStandby(t, super, "nobody")
	// Every wait is cancelled as soon as it is seen, in real time.
	ctx, stop := context.WithCancel(t.Context())
	cancelled := make(chan int)
	go func() {
		n := 0
		for ctx.Err() == nil {
			var here int
			err := super.QueryRow(ctx, `SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) FROM pg_stat_activity
				WHERE wait_event = 'SyncRep' AND usename = 'plantstore_app'`).Scan(&here)
			if err == nil {
				n += here
			}
			time.Sleep(time.Millisecond)
		}
		cancelled <- n
	}()
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		var wg sync.WaitGroup
		for id := range int64(20) {
			wg.Go(func() {
				_, err := s.plants.Delete(in(t, 2*time.Second), deletion(id+1, "k"))
				if !errors.Is(err, plant.ErrUnknown) {
					t.Errorf("Delete(%d): %v, want ErrUnknown", id+1, err)
				}
			})
		}
		wg.Wait()
		// What is read may not be on the standby, and what is refused is not yet.
		for _, d := range []plant.Deletion{deletion(21, "k"), deletion(21, "other"), keyed(22, "k"), keyed(23, "k"), deletion(24, "k")} {
			if _, err := s.plants.Delete(in(t, 2*time.Second), d); err == nil || isDefinite(err) {
				t.Errorf("Delete(%d) under key %q: %v, want nothing definite", d.Plant, d.Key, err)
			}
		}
	})
	stop()
	if n := <-cancelled; n == 0 {
		t.Error("no wait was cancelled: this test tests nothing")
	}
	if !before.has(t, 22) {
		t.Error("the next turn of plant 22 was tried, though its refusal is not on the standby")
	}
	requireStandby(t, super, "")
	s := storeOn(t, database, "")
	for id := range int64(20) {
		if _, err := s.plants.Delete(in(t, patience), deletion(id+1, "k")); err != nil {
			t.Errorf("Delete(%d) once no standby is asked for: %v, want none", id+1, err)
		}
	}
	if got := len(s.ledger(t)); got != 21 {
		t.Errorf("%d ledger rows, want 21", got)
	}
}

// What runs at a commit may be new. Where there was nothing of the kind, that holds for a while.
func TestTriggersThatComeLaterDoNotHurryCommits(t *testing.T) {
	t.Parallel()
	database, _ := ownStore(t, nil)
	s := storeOn(t, database, "")
	s.sample(t, 2)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	if first, last := s.atCommit.keep(); first != nil || last != nil {
		t.Error("the next deletion keeps its commit, though nothing can run before that")
	}
	s.hurry(t)
	requireStandby(t, pgtest.Pool(t, database.Super), "nobody")
	s.atCommit.looked.Store(&lookedAt{time.Now().Add(-lookEvery), true}) // as if it had been so long ago
	if _, err := s.plants.Delete(in(t, 2*time.Second), deletion(2, "k")); err == nil || isDefinite(err) {
		t.Errorf("Delete without the standby: %v, want nothing definite", err)
	}
}

// Nor do triggers hurry the commits of what owners write.
func TestWhatOwnersWriteIsDurable(t *testing.T) {
	t.Parallel()
	database, _ := ownStore(t, nil)
	s := storeOn(t, database, "")
	s.sample(t, 1)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	s.hurry(t)
	l := ledgerOf(t, database)
	tokens := l.db.Tokens(0)
	if _, err := tokens.Create(t.Context(), "shop", []string{auth.ScopeDelete}, time.Time{}, plant.Budget{}); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"plants", "api_tokens"} {
		for name, when := range map[string]string{"at_once": "NOT DEFERRABLE", "late": "DEFERRABLE INITIALLY DEFERRED"} {
			s.exec(t, `CREATE CONSTRAINT TRIGGER `+name+` AFTER INSERT OR UPDATE ON public.`+table+` `+when+` FOR EACH ROW EXECUTE FUNCTION public.hurry()`)
		}
	}
	requireStandby(t, pgtest.Pool(t, database.Super), "nobody")
	for name, write := range map[string]func(context.Context) error{
		"Restore": func(ctx context.Context) error {
			_, err := l.Restore(ctx, []int64{1}, RestoreOptions{RunTriggers: true})
			return err
		},
		"Create": func(ctx context.Context) error {
			_, err := tokens.Create(ctx, "ada", []string{auth.ScopeDelete}, time.Time{}, plant.Budget{})
			return err
		},
		"Revoke": func(ctx context.Context) error { _, err := tokens.Revoke(ctx, "shop"); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := write(in(t, 2*time.Second)); err == nil {
				t.Error("it is said to be done, though it is not on the standby")
			}
		})
	}
}

// Batches whose commit is given up are those that waited longest for it.
func TestACommitThatIsCutOffWasWaitedFor(t *testing.T) {
	t.Parallel()
	database, _ := ownStore(t, nil)
	s := storeOn(t, database, "")
	const most = 1000
	s.sample(t, most)
	requireStandby(t, pgtest.Pool(t, database.Super), "nobody")
	batches := 0
	for v := (verdict{}); v.next != ask && batches < most; {
		batches++ // before the server has read its settings again, commits don't wait
		v = s.plants.group.join(in(t, patience), deletion(int64(batches), "k"))
	}
	if got := counts(t, s.DB)["commit_wait_seconds"]; got != float64(batches) || batches == most {
		t.Errorf("%v waits for commits after %d batches, the last of which was cut off: want as many", got, batches)
	}
}

// What may run at a commit need not be on plants.
func TestATriggerOnAnotherTableMayHurryCommits(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 1)
	s.exec(t, `CREATE FUNCTION public.hurry() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN SET LOCAL synchronous_commit = off; RETURN NULL; END$$;
		CREATE CONSTRAINT TRIGGER hurry AFTER INSERT ON public.plant_deletions DEFERRABLE FOR EACH ROW EXECUTE FUNCTION public.hurry()`)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	if looked := s.atCommit.looked.Load(); looked == nil || looked.none {
		t.Errorf("looked: %+v, want that something may run", looked)
	}
}

// Triggers that are deferred do not hurry the commits of refusals, of several or of one.
func TestTriggersDoNotHurryRefusals(t *testing.T) {
	t.Parallel()
	database, _ := ownStore(t, nil)
	s := storeOn(t, database, "")
	s.sample(t, 2)
	s.exec(t, `CREATE TABLE public.baskets (plant bigint REFERENCES public.plants); INSERT INTO public.baskets VALUES (1), (2)`)
	s.hurry(t)
	requireStandby(t, pgtest.Pool(t, database.Super), "nobody")
	if _, err := s.plants.Delete(in(t, 2*time.Second), keyed(1, "k")); err == nil || isDefinite(err) {
		t.Errorf("Delete of what is referred to, without the standby: %v, want nothing definite", err)
	}
	if v := s.plants.sayNo(in(t, 2*time.Second), keyed(2, "k"), &plant.ReferencedError{}, true); v.err == nil || isDefinite(v.err) {
		t.Errorf("a no after a lost answer, without the standby: %+v, want nothing definite", v)
	}
}
