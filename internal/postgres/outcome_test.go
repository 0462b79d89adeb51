package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// What a client is told must be about its own request: these are the ways to mix
// requests up.

func TestAnotherPrincipalWithTheSameKey(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.plant(t, 1)
	by := deletion(1, "k")
	if _, err := s.plants.Delete(in(t, patience), by); err != nil {
		t.Fatal(err)
	}
	by.Principal = "somebody else"
	result, err := s.plants.Delete(in(t, patience), by)
	if _, ok := errors.AsType[*plant.DeletedEarlierError](err); !ok || result.Replayed {
		t.Errorf("Delete = %+v, %v; want deleted earlier, by another", result, err)
	}
}

// The service deletes a plant, it comes back, and SQL deletes it, without a key.
func TestAReplayBeforeADeletionBySQL(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.plant(t, 1)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	s.plant(t, 1)
	s.exec(t, `DELETE FROM public.plants WHERE id = 1`)
	if result, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil || !result.Replayed {
		t.Errorf("Delete = %+v, %v; want a replay", result, err)
	}
	// And by another request of the service.
	s.plant(t, 1)
	other := deletion(1, "other")
	other.Principal = "zoe"
	if _, err := s.plants.Delete(in(t, patience), other); err != nil {
		t.Fatal(err)
	}
	if result, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil || !result.Replayed {
		t.Errorf("Delete = %+v, %v; want a replay", result, err)
	}
}

func TestDeletedEarlierTellsTheLatestTime(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.plant(t, 1)
	for _, sql := range []string{`DELETE FROM public.plants WHERE id = 1`, `INSERT INTO public.plants (id, name) VALUES (1, 'Boston fern')`,
		`UPDATE public.plant_deletions SET deleted_at = '2020-01-01Z'`, `DELETE FROM public.plants WHERE id = 1`} {
		s.exec(t, sql)
	}
	_, err := s.plants.Delete(in(t, patience), deletion(1, "k"))
	earlier, ok := errors.AsType[*plant.DeletedEarlierError](err)
	if !ok || earlier.At.Year() == 2020 {
		t.Errorf("Delete: %v, want deleted earlier, and that it was just now", err)
	}
}

// The request ends while its batch is under way: what becomes of it is not known.
func TestTheEndOfARequestWhoseBatchIsUnderWay(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]plant.Deletion{"of anybody": deletion(1, "k"), "of one with a budget": by("tester", 1, hundred)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, w := lossy(t, pgtest.New(t), "")
			s.plant(t, 1)
			g := s.plants.group
			if d.Budget == hundred {
				g = s.plants.budgeted
			}
			ctx, cancel := context.WithTimeout(t.Context(), leastToGoAlone) // not enough to run the batch itself
			defer cancel()
			ended, told := make(chan verdict), make(chan verdict, 1)
			w.sending = sync.OnceFunc(func() {
				cancel()
				told <- <-ended
			})
			go func() { ended <- g.join(ctx, d) }()
			if v := <-told; v.next != ask {
				t.Errorf("verdict %+v, want that the fate is unknown", v)
			}
		})
	}
}

// When a budget comes back says nothing of when the fate of an attempt is known.
func TestAnUnknownFateDoesNotWaitForABudget(t *testing.T) {
	t.Parallel()
	over := &plant.OverBudgetError{Until: time.Now().Add(time.Hour)}
	if err := conclude(true, over); !errors.Is(err, plant.ErrUnknown) || isOver(err) {
		t.Errorf("unsure, and over the budget: %v (over the budget: %v), want ErrUnknown alone", err, isOver(err))
	}
	if err := conclude(false, over); !isOver(err) {
		t.Errorf("over the budget: %v, want that", err)
	}
}

// A function of the store's may say that something is read-only, or out of reach. The server
// it runs on is not: its connections stay, and nobody is told that it were.
func TestAFunctionThatSpeaksOfAnotherServer(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		codes := []string{readOnlyTransaction, "53100", "53300", "08006", "26000", "42P05", "57P01", "57P03", "58030"}
		s.sample(t, len(codes)+2)
		s.exec(t, `CREATE FUNCTION plantstore_ship() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
				IF OLD.id < 10 THEN RAISE 'elsewhere' USING ERRCODE = ('{`+strings.Join(codes, ",")+`}'::text[])[OLD.id]; END IF; RETURN OLD; END$$;
			CREATE TRIGGER ship BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION plantstore_ship()`)
		// A function in C that a rule calls has no context.
		codes = append(codes, "a rule")
		script(t, pgtest.Connect(t, database.Super), `CREATE EXTENSION dblink; GRANT EXECUTE ON FUNCTION dblink_connect_u(text) TO PUBLIC`)
		s.exec(t, fmt.Sprintf(`CREATE RULE tell AS ON DELETE TO plants WHERE old.id = %d DO ALSO SELECT public.dblink_connect_u('host=127.0.0.1 port=1')`, len(codes)))
		var before []*borrowed // a connection that nobody uses meanwhile
		for range s.shares.size[watched] {
			conn, err := s.borrow(in(t, patience), watched, patience)
			if err != nil {
				t.Fatal(err)
			}
			before = append(before, conn)
		}
		for i, code := range codes {
			if _, err := s.plants.Delete(in(t, patience), deletion(int64(i+1), "k")); !errors.Is(err, plant.ErrHindered) || errors.Is(err, plant.ErrUnknown) {
				t.Errorf("Delete, %s: %v, want ErrHindered", code, err)
			}
		}
		pids := make(map[uint32]bool)
		for _, conn := range before {
			pids[conn.Conn.Conn().PgConn().PID()] = true
			conn.Release()
		}
		if _, err := s.plants.Delete(in(t, patience), deletion(int64(len(codes)+1), "k")); err != nil {
			t.Errorf("Delete of another plant: %v, want none", err)
		}
		for pid := range pids {
			var there bool
			if err := s.owner.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, pid).Scan(&there); err != nil || !there {
				t.Errorf("a connection that was there before is there: %v, %v; want it kept", there, err)
			}
		}
	})
}

// A request whose time is nearly over when there is a connection for it is not tried:
// it would not hear the answer.
func TestARequestWhoseTimeIsNearlyOverIsNotTried(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		s.plant(t, 1)
		taken := s.take(t, together)
		ended := make(chan error, 1)
		go func() {
			_, err := s.plants.Delete(in(t, time.Second), deletion(1, "k"))
			ended <- err
		}()
		time.Sleep(time.Second - margin/2)
		for _, conn := range taken {
			conn.Release()
		}
		if err := <-ended; !errors.Is(err, plant.ErrBusy) || errors.Is(err, plant.ErrUnknown) || !s.has(t, 1) {
			t.Errorf("Delete: %v, the plant is there: %v; want ErrBusy, and the plant", err, s.has(t, 1))
		}
	})
}

// A request that is given up while it waits for a connection is told that nothing
// was done; then nothing may be done later.
func TestARequestThatWasGivenUpIsNotDeleted(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.plant(t, 1)
	taken := s.take(t, together)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan verdict, 1)
	go func() { ended <- s.plants.group.join(ctx, deletion(1, "k")) }()
	s.plants.group.awaitMembers(1)
	cancel()
	if v := <-ended; v.next != done || !errors.Is(v.err, plant.ErrBusy) {
		t.Errorf("verdict %+v, want that nothing was done", v)
	}
	for _, conn := range taken {
		conn.Release()
	}
	// The lane comes to its end before the next deletion begins.
	if _, err := s.plants.Delete(in(t, patience), deletion(2, "k")); !errors.Is(err, plant.ErrNotFound) {
		t.Fatal(err)
	}
	if !s.has(t, 1) || len(s.ledger(t)) != 0 {
		t.Errorf("plant there %v, ledger %v; want it there and nothing recorded", s.has(t, 1), s.ledger(t))
	}
}

// After a lost answer no later failure is told as "not deleted".
func TestAFailureAfterALostAnswer(t *testing.T) {
	t.Parallel()
	s, w := lossy(t, pgtest.New(t), "")
	// From the second attempt on the service's role may not even read.
	s.exec(t, `CREATE FUNCTION public.lock_out() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
			'BEGIN REVOKE SELECT ON public.plant_deletions FROM plantstore_app; RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER lock_out AFTER DELETE ON public.plants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.lock_out()`)
	var err error
	id := int64(1)
	for ; id <= 10; id++ { // on a busy machine the lost answer may be that a statement took too long
		s.plant(t, id)
		s.exec(t, `GRANT SELECT ON public.plant_deletions TO plantstore_app`)
		w.loseAnswers.Store(1)
		if _, err = s.plants.Delete(in(t, patience), deletion(id, "k")); err != nil {
			break
		}
	}
	if !errors.Is(err, plant.ErrUnknown) {
		t.Errorf("Delete: %v, want ErrUnknown", err)
	}
	if s.has(t, id) {
		t.Error("the plant is there: this test tests nothing")
	}
}

func TestTheEndOfARequestAfterALostAnswer(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s, w := lossy(t, database, "")
		s.plant(t, 1)
		w.loseAnswers.Store(1 << 20)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		time.AfterFunc(time.Millisecond, cancel) // in the first pause
		if _, err := s.plants.Delete(ctx, deletion(1, "k")); !errors.Is(err, plant.ErrUnknown) {
			t.Errorf("Delete: %v, want ErrUnknown", err)
		}
	})
}

// An entry that is in the ledger but can't be made sure of is no "not deleted".
func TestAReplayThatCannotBeMadeSure(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.plant(t, 1)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	// No time is left for settling: the server cancels it (57014).
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Hour))
	defer cancel()
	v := replay(ctx, conn.Conn(), deletion(1, "k"), history{own: true}, false)
	if v.next != ask {
		t.Errorf("verdict %+v, want that it is not known", v)
	}
}

// What a connection is prepared with lets go of locks where nobody is there any more, and
// is all that it is prepared with.
func TestASessionIsPrepared(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	conn, err := s.pool.Acquire(in(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	want := map[string]string{
		"statement_timeout":                   "10000",
		"lock_timeout":                        "100",
		"idle_in_transaction_session_timeout": "5000",
		"jit":                                 "off",
		"exit_on_error":                       "off",
		"log_parameter_max_length_on_error":   "0",
		"tcp_keepalives_idle":                 "5",
		"tcp_keepalives_interval":             "1",
		"tcp_keepalives_count":                "3",
	}
	if conn.Conn().PgConn().Conn().RemoteAddr().Network() == "unix" {
		// A Unix socket has none: the server takes whatever is set, and shows 0.
		want["tcp_keepalives_idle"], want["tcp_keepalives_interval"], want["tcp_keepalives_count"] = "0", "0", "0"
	}
	rows, err := conn.Query(in(t, patience), `SELECT name, setting FROM pg_settings WHERE source = 'session'`)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	var name, setting string
	if _, err := pgx.ForEachRow(rows, []any{&name, &setting}, func() error {
		got[name] = setting
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings of a new session (-want +got):\n%s", diff)
	}
}

// A pooler hands our server connection on to others: nothing of ours may be left.
func TestNoSettingOutlivesItsTransaction(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 60)
	const ours = `SELECT name || '=' || setting FROM pg_settings WHERE source = 'session'
			AND name NOT IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'jit', 'exit_on_error', 'log_parameter_max_length_on_error', 'tcp_keepalives_idle', 'tcp_keepalives_interval', 'tcp_keepalives_count')
		UNION ALL SELECT n || '=' || current_setting(n, true) FROM unnest(ARRAY['plantstore.request', 'plantstore.batch', 'plantstore.budget', 'plantstore.recorded']) n WHERE coalesce(current_setting(n, true), '') <> ''
		UNION ALL SELECT name || '=' || setting FROM pg_settings WHERE name IN ('statement_timeout', 'lock_timeout', 'synchronous_commit', 'search_path', 'jit', 'enable_seqscan')
		ORDER BY 1`
	before := stringsOf(t, s.pool, ours)
	check := func(when string) {
		t.Helper()
		for _, conn := range s.everyConn(t) {
			rows, err := conn.Query(t.Context(), ours)
			if err != nil {
				t.Fatal(err)
			}
			after, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("settings after %s (-before +after):\n%s", when, diff)
			}
			conn.Release()
		}
	}
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	check("a deletion")
	for _, err := range s.deleteAtOnce(t, ids(2, 60)) {
		if err != nil {
			t.Error(err)
		}
	}
	check("deletions in batches")
	if _, err := s.plants.Delete(in(t, patience), keyed(1, "other")); !isDefinite(err) {
		t.Errorf("Delete with another key: %v, want that it was deleted earlier", err)
	}
	check("a look at the ledger and a refusal")
	// SQL on any of the connections is recorded under the role, without a key.
	for i, conn := range s.everyConn(t) {
		id := int64(100 + i)
		s.plant(t, id)
		if _, err := conn.Exec(t.Context(), `DELETE FROM public.plants WHERE id = $1`, id); err != nil {
			t.Fatal(err)
		}
		got := s.ledger(t)[60+i]
		if diff := cmp.Diff(ledgerRow{id, "Boston fern", "plantstore_app", nil, nil}, got); diff != "" {
			t.Errorf("ledger (-want +got):\n%s", diff)
		}
		conn.Release()
	}
}

// everyConn acquires all connections that are open, once nobody uses any.
func (s store) everyConn(t *testing.T) []*pgxpool.Conn {
	t.Helper()
	for ; ; time.Sleep(time.Millisecond) {
		conns := s.pool.AcquireAllIdle(in(t, patience))
		if len(conns) > 0 && len(conns) == int(s.pool.Stat().TotalConns()) {
			return conns
		}
		for _, conn := range conns {
			conn.Release()
		}
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDurabilityCannotBeTurnedOffForBatches(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	super := pgtest.Pool(t, database.Super)
	if _, err := super.Exec(t.Context(),
		`ALTER DATABASE `+pgx.Identifier{database.Name}.Sanitize()+` SET synchronous_commit = off`); err != nil {
		t.Fatal(err)
	}
	s := storeOn(t, database, "")
	s.exec(t, `CREATE TABLE public.seen (setting text, transaction text DEFAULT pg_current_xact_id()::text);
		CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
			$$BEGIN INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END$$;
		CREATE CONSTRAINT TRIGGER see AFTER DELETE ON public.plants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.see()`)
	s.sample(t, 200)
	for _, err := range s.deleteAtOnce(t, ids(1, 200)) {
		if err != nil {
			t.Error(err)
		}
	}
	got := stringsOf(t, s.owner, `SELECT DISTINCT setting FROM public.seen`)
	if !slices.Equal(got, []string{"on"}) {
		t.Errorf("deleted under synchronous_commit %v; want on", got)
	}
	if n := stringsOf(t, s.owner, `SELECT count(DISTINCT transaction)::text FROM public.seen`); n[0] == "200" {
		t.Error("nothing was deleted together: this test tests nothing")
	}
}

// Through a pooler a session is shared with other programs: nothing of ours may stay
// behind. Without our limits, a statement waits for a locked table while it is
// parsed, which is before anything was deleted.
func TestThroughAPooler(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	pooled := database
	pooled.App = pgtest.Pooler(t, database.App, pgtest.TransactionMode)
	s := storeOn(t, pooled, "pool_max_conns=4&default_query_exec_mode=exec")
	s.sample(t, 20)
	const changed = `SELECT name || '=' || setting FROM pg_settings WHERE source = 'session' AND name <> 'client_encoding' ORDER BY 1`
	other := pgtest.Pool(t, pooled.App)
	before := stringsOf(t, other, changed)
	for _, err := range s.deleteAtOnce(t, ids(1, 20)) {
		if err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(before, stringsOf(t, other, changed)); diff != "" {
		t.Errorf("settings of a session of others' (-before +after):\n%s", diff)
	}
}

// Nor is there a limit of ours on a session of a pooler's, and what is read has one all
// the same. Moments come as text then, in whatever form the role's is.
func TestLooksThroughAPooler(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	super := pgtest.Connect(t, database.Super)
	if _, err := super.Exec(t.Context(), `ALTER ROLE plantstore_app IN DATABASE `+database.Name+` SET datestyle = 'SQL, DMY'`); err != nil {
		t.Fatal(err)
	}
	token := create(t, issuer(t, database), "shop", time.Now().Add(time.Hour))
	database.App = pgtest.Pooler(t, database.App, pgtest.TransactionMode)
	s := storeOn(t, database, "pool_max_conns=4&default_query_exec_mode=exec")
	s.plant(t, 1)
	if _, err := s.Tokens(0).Authenticate(in(t, patience), token); err != nil {
		t.Errorf("Authenticate: %v, want none", err)
	}
	for _, replayed := range []bool{false, true} {
		if result, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil || result.Replayed != replayed {
			t.Errorf("Delete: %+v, %v; want replayed %v and no error", result, err, replayed)
		}
	}
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "other")); !isDefinite(err) {
		t.Errorf("Delete with another key: %v, want that it was deleted earlier", err)
	}

	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `LOCK TABLE public.plant_deletions IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := readHistory(in(t, patience), conn.Conn(), deletion(1, "k"), patience); sqlState(err) != lockNotAvailable {
		t.Errorf("a look at the ledger while it is locked: %v, want SQLSTATE %s", err, lockNotAvailable)
	}
}

func TestLockedTableThroughAPooler(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	pooled := database
	pooled.App = pgtest.Pooler(t, database.App, pgtest.SessionMode)
	s := storeOn(t, pooled, "")
	s.plant(t, 1)
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `LOCK TABLE public.plants IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	_, err = s.plants.Delete(in(t, commitTimeout+time.Second), deletion(1, "k"))
	if !errors.Is(err, plant.ErrUnavailable) || errors.Is(err, plant.ErrUnknown) {
		t.Errorf("Delete of a plant of a locked table: %v, want ErrUnavailable and nothing unknown", err)
	}
}

// Who turns the driver's cache off means that nothing is to be prepared, as with a pooler:
// the driver itself would refuse every statement then.
func TestWithoutTheDriversCache(t *testing.T) {
	t.Parallel()
	for _, parameters := range []string{"statement_cache_capacity=0", "default_query_exec_mode=cache_describe&description_cache_capacity=0"} {
		t.Run(parameters, func(t *testing.T) {
			t.Parallel()
			s := storeOn(t, pgtest.New(t), parameters)
			s.plant(t, 1)
			if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
				t.Errorf("Delete: %v, want no error", err)
			}
			if err := s.Ready(in(t, patience), []int64{1}); err != nil {
				t.Errorf("Ready: %v, want no error", err)
			}
			conns := s.take(t, together)
			for _, conn := range conns {
				var prepared int
				if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_prepared_statements WHERE name <> ''`).Scan(&prepared); err != nil || prepared > 0 {
					t.Errorf("%d statements are prepared, %v; want none", prepared, err)
				}
				conn.Release()
			}
		})
	}
}
