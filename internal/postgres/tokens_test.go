package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/auth"
	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// issuer returns the tokens as the owner, who may issue them, sees them.
func issuer(t *testing.T, database pgtest.Database) *Tokens {
	t.Helper()
	db, err := Open(t.Context(), database.Owner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db.Tokens(0)
}

func create(t *testing.T, tokens *Tokens, name string, expires time.Time) string {
	t.Helper()
	token, err := tokens.Create(t.Context(), name, []string{auth.ScopeDelete}, expires, plant.Budget{})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	issued := issuer(t, database)
	s := storeOn(t, database, "")
	const ttl = 200 * time.Millisecond
	tokens := s.Tokens(ttl)

	good := create(t, issued, "back-office", time.Now().Add(time.Hour))
	for name, token := range map[string]string{
		"a new token":              good,
		"one that never expires":   create(t, issued, "forever", time.Time{}),
		"the same one, from cache": good,
	} {
		if _, err := tokens.Authenticate(in(t, patience), token); err != nil {
			t.Errorf("Authenticate with %s: %v, want none", name, err)
		}
	}
	principal, err := tokens.Authenticate(in(t, patience), good)
	if diff := cmp.Diff(auth.Principal{Name: "back-office", Scopes: []string{auth.ScopeDelete}}, principal); err != nil || diff != "" {
		t.Errorf("Authenticate: %v; principal (-want +got):\n%s", err, diff)
	}
	for name, token := range map[string]string{
		"an unknown token":  auth.NewToken(),
		"an expired token":  create(t, issued, "expired", time.Now().Add(-time.Second)),
		"no token of ours":  "abc",
		"a mistyped token":  good[:len(good)-1] + "_",
		"the token's start": good[:10],
	} {
		if _, err := tokens.Authenticate(in(t, patience), token); !errors.Is(err, auth.ErrInvalidToken) {
			t.Errorf("Authenticate with %s: %v, want ErrInvalidToken", name, err)
		}
	}

	if before, err := issued.Revoke(t.Context(), "back-office"); err != nil || !before.IsZero() {
		t.Fatalf("Revoke = %v, %v; want zero, none", before, err)
	}
	time.Sleep(ttl)
	if _, err := tokens.Authenticate(in(t, patience), good); !errors.Is(err, auth.ErrInvalidToken) {
		t.Errorf("Authenticate with a token revoked %s ago: %v, want ErrInvalidToken", ttl, err)
	}
	if before, err := issued.Revoke(t.Context(), "back-office"); err != nil || before.IsZero() {
		t.Errorf("second Revoke = %v, %v; want when it was revoked, none", before, err)
	}
	forever := create(t, issued, "for-ever", time.Time{})
	for name, token := range map[string]string{"revoked": good, "never seen": forever, "of no shape of ours": "abc"} {
		if tokens.Knows(token) {
			t.Errorf("a token that is %s is known, want that it is not", name)
		}
	}
	for _, want := range []error{nil, auth.ErrInvalidToken} {
		if _, err := tokens.Authenticate(in(t, patience), forever); !errors.Is(err, want) {
			t.Errorf("Authenticate: %v, want %v", err, want)
		}
		if got := tokens.Knows(forever); got != (want == nil) {
			t.Errorf("Knows of a token after %v: %v", want, got)
		}
		s.exec(t, `DELETE FROM api_tokens WHERE principal = 'for-ever'`)
		time.Sleep(ttl)
	}
	if _, err := issued.Revoke(t.Context(), "nobody"); !errors.Is(err, ErrNoPrincipal) {
		t.Errorf("Revoke of nobody: %v, want ErrNoPrincipal", err)
	}
}

// A database that refuses the question is within reach.
func TestAuthenticateWithoutTheRight(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{`REVOKE EXECUTE ON FUNCTION public.plantstore_token FROM plantstore_app`, `DROP FUNCTION public.plantstore_token`, `DROP TABLE public.api_tokens`} {
		s := newStore(t)
		s.exec(t, sql)
		_, err := s.Tokens(time.Second).Authenticate(in(t, patience), auth.NewToken())
		if !errors.Is(err, plant.ErrHindered) || errors.Is(err, plant.ErrUnavailable) || errors.Is(err, auth.ErrInvalidToken) {
			t.Errorf("%s: Authenticate: %v, want ErrHindered", sql, err)
		}
	}
}

func TestAuthenticateWithoutDatabase(t *testing.T) {
	t.Parallel()
	simulated(t, func(t *testing.T) {
		db, err := Open(t.Context(), "postgres://nobody@127.0.0.1:1/none?sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(db.Close)
		start := time.Now()
		const deadline = 500 * time.Millisecond
		_, err = db.Tokens(time.Second).Authenticate(in(t, deadline), auth.NewToken())
		if !errors.Is(err, plant.ErrUnavailable) || errors.Is(err, auth.ErrInvalidToken) {
			t.Errorf("Authenticate without a database: %v, want ErrUnavailable", err)
		}
		if took := time.Since(start); took != deadline {
			t.Errorf("it took %s, want it to try until the deadline of %s", took, deadline)
		}
	})
}

// A gate holds look-ups of a token back after they have read it.
type gate struct{ store }

// gated puts a gate into the function that looks tokens up.
func gated(t *testing.T, s store) gate {
	t.Helper()
	s.exec(t, `
		CREATE TABLE public.held (digest bytea);
		CREATE OR REPLACE FUNCTION public.plantstore_token(wanted bytea) RETURNS TABLE (
			id uuid, principal text, scopes text[], created_at timestamptz, expires_at timestamptz, revoked_at timestamptz, last_used_at timestamptz,
			budget bigint, budget_nanoseconds bigint
		) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
		BEGIN
			RETURN QUERY SELECT t.id, t.principal, t.scopes, t.created_at, t.expires_at, t.revoked_at, t.last_used_at, 0::bigint, 0::bigint
				FROM public.api_tokens t WHERE t.digest = wanted;
			WHILE EXISTS (SELECT FROM public.held h WHERE h.digest = wanted) LOOP
				PERFORM pg_sleep(0.005);
			END LOOP;
		END
		$$`)
	return gate{s}
}

// hold closes the gate for a token.
func (g gate) hold(t *testing.T, token string) {
	t.Helper()
	digest, err := auth.DigestOf(token)
	if err != nil {
		t.Fatal(err)
	}
	g.exec(t, `INSERT INTO public.held VALUES ($1)`, digest[:])
}

func (g gate) open(t *testing.T) {
	t.Helper()
	g.exec(t, `DELETE FROM public.held`)
}

// stands waits until a look-up stands at the gate.
func (g gate) stands(t *testing.T) {
	t.Helper()
	for n := 0; n == 0; {
		if err := g.owner.QueryRow(in(t, patience), `SELECT count(*) FROM pg_locks WHERE relation = 'public.held'::regclass AND pid <> pg_backend_pid()`).Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
}

// After a start, or a quiet time, every client's token is looked up at once: in few
// statements, whatever their number. So is a flood of made-up ones.
func TestManyTokensAtOnceShareStatements(t *testing.T) {
	t.Parallel()
	const clients = 150
	database := pgtest.New(t)
	issued := issuer(t, database)
	all := make(map[string]error)
	for i := range clients {
		all[create(t, issued, fmt.Sprint("client-", i), time.Time{})] = nil
		all[auth.NewToken()] = auth.ErrInvalidToken
	}
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		tokens := s.Tokens(time.Minute)
		before := s.pool.Stat().AcquireCount()
		var group sync.WaitGroup
		for token, want := range all {
			group.Go(func() {
				if _, err := tokens.Authenticate(in(t, patience), token); !errors.Is(err, want) {
					t.Errorf("Authenticate: %v, want %v", err, want)
				}
			})
		}
		group.Wait()
		// The first, and all that came meanwhile; on a slow machine in a few parts.
		if got := s.pool.Stat().AcquireCount() - before; got > clients/5 {
			t.Errorf("%d tokens took %d statements, want few", len(all), got)
		}
	})
}

// Tokens that nobody knows wait for each other, and not the known ones for them.
func TestKnownTokensPassTheUnknown(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	gated(t, storeOn(t, database, ""))
	token := create(t, issuer(t, database), "back-office", time.Time{})
	// In simulated time, look-ups at the gate do not time out.
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		g := gate{s}
		tokens := s.Tokens(0)
		authenticate := func(token string, want error) {
			if _, err := tokens.Authenticate(in(t, patience), token); !errors.Is(err, want) {
				t.Errorf("Authenticate: %v, want %v", err, want)
			}
		}
		authenticate(token, nil)
		madeUp := auth.NewToken()
		g.hold(t, madeUp)
		var group sync.WaitGroup
		group.Go(func() { authenticate(madeUp, auth.ErrInvalidToken) })
		g.stands(t)
		for range 50 {
			group.Go(func() { authenticate(auth.NewToken(), auth.ErrInvalidToken) })
		}
		for waiting := 0; waiting < 50; {
			tokens.unknown.mu.Lock()
			waiting = len(tokens.unknown.waiting)
			tokens.unknown.mu.Unlock()
		}
		if used := s.pool.Stat().AcquiredConns(); used != 1 {
			t.Errorf("%d connections look made-up tokens up, want 1", used)
		}
		before := s.pool.Stat().AcquireCount()
		authenticate(token, nil)
		if got := s.pool.Stat().AcquireCount() - before; got != 1 {
			t.Errorf("%d statements while made-up tokens waited, want that for the known one", got)
		}
		g.open(t)
		group.Wait()
	})
}

// What was asked before a request says nothing about a token that was revoked since.
func TestNoRequestJoinsAnEarlierLookUp(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	issued := issuer(t, database)
	g := gated(t, s)
	token := create(t, issued, "back-office", time.Time{})
	tokens := s.Tokens(0)
	g.hold(t, token)
	var group sync.WaitGroup
	group.Go(func() { tokens.Authenticate(in(t, patience), token) }) // begins before the end of the token
	g.stands(t)
	if _, err := issued.Revoke(t.Context(), "back-office"); err != nil {
		t.Fatal(err)
	}
	later := make(chan error)
	go func() {
		_, err := tokens.Authenticate(in(t, patience), token)
		later <- err
	}()
	time.Sleep(100 * time.Millisecond) // it may join now; if it comes too late for that, it is right anyway
	g.open(t)
	if err := <-later; !errors.Is(err, auth.ErrInvalidToken) {
		t.Errorf("Authenticate after the token was revoked: %v, want ErrInvalidToken", err)
	}
	group.Wait()
}

// A token in use is read again before what is known of it is too old.
func TestTokensInUseAreRefreshed(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	issued := issuer(t, database)
	busy, calm, idle := create(t, issued, "busy", time.Time{}), create(t, issued, "calm", time.Time{}), create(t, issued, "idle", time.Time{})
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		const ttl = time.Minute
		tokens := s.Tokens(ttl)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		known := func(token string) bool {
			t.Helper()
			_, err := tokens.Authenticate(gone, token)
			if err != nil && !errors.Is(err, plant.ErrUnavailable) {
				t.Errorf("Authenticate: %v, want none or ErrUnavailable", err)
			}
			synctest.Wait() // until what was started is done
			return err == nil
		}
		for _, token := range []string{busy, calm, idle} {
			if _, err := tokens.Authenticate(in(t, patience), token); err != nil {
				t.Fatal(err)
			}
		}
		start := s.pool.Stat().AcquireCount()
		time.Sleep(ttl * 4 / 10)
		if !known(busy) || !known(calm) || s.pool.Stat().AcquireCount() != start {
			t.Errorf("after 0.4 of their time: busy and calm known? %d statements, want none", s.pool.Stat().AcquireCount()-start)
		}
		time.Sleep(ttl * 2 / 10)
		if !known(busy) || s.pool.Stat().AcquireCount() != start+1 {
			t.Errorf("after 0.6: %d statements for the tokens in use, want 1", s.pool.Stat().AcquireCount()-start)
		}
		time.Sleep(ttl * 6 / 10)
		if !known(busy) || !known(calm) {
			t.Error("after 1.2: a token in use was not refreshed")
		}
		if known(idle) {
			t.Error("after 1.2: a token that is not in use was refreshed, want it forgotten")
		}
		// However much it is used, it does not outlive its end by more than its time.
		if _, err := issued.Revoke(t.Context(), "busy"); err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); ; time.Sleep(ttl / 10) {
			_, err := tokens.Authenticate(in(t, patience), busy)
			if errors.Is(err, auth.ErrInvalidToken) {
				break
			}
			if lived := time.Since(began); err != nil || lived >= ttl {
				t.Fatalf("a token that was revoked %s ago: %v, want ErrInvalidToken after %s", lived, err, ttl)
			}
		}
	})
}

// A database that falls silent says nothing about a token, and keeps no place.
func TestASilentDatabaseSaysNothingOfAToken(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	token := create(t, issuer(t, database), "back-office", time.Time{})
	simulated(t, func(t *testing.T) {
		s, w := lossy(t, database, "pool_max_conns=2")
		for _, tokens := range []*Tokens{s.Tokens(0), s.Tokens(time.Second)} {
			if _, err := tokens.Authenticate(in(t, patience), token); err != nil {
				t.Fatal(err)
			}
			for range 3 { // more than there are places
				time.Sleep(time.Second)
				w.mute()
				_, err := tokens.Authenticate(in(t, 100*time.Millisecond), token)
				if !errors.Is(err, plant.ErrUnavailable) || errors.Is(err, auth.ErrInvalidToken) {
					t.Errorf("Authenticate at a silent database: %v, want ErrUnavailable", err)
				}
				if _, err := tokens.Authenticate(in(t, patience), token); err != nil {
					t.Errorf("Authenticate once the database speaks again: %v, want none", err)
				}
			}
		}
	})
}

func TestRevokedOnce(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	issued := issuer(t, database)
	create(t, issued, "back-office", time.Time{})
	revokedAt := func() time.Time {
		t.Helper()
		list, err := issued.List(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatalf("List = %+v, %v; want one principal", list, err)
		}
		return list[0].Tokens[0].RevokedAt
	}
	for range 2 {
		if _, err := issued.Revoke(t.Context(), "back-office"); err != nil {
			t.Fatal(err)
		}
	}
	first := revokedAt()
	before, err := issued.Revoke(t.Context(), "back-office")
	if last := revokedAt(); err != nil || !before.Equal(first) || !last.Equal(first) {
		t.Errorf("revoked at %s; Revoke = %s, %v, and then at %s: want the first time kept", first, before, err, last)
	}
}

func TestAListThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	issued := issuer(t, database)
	create(t, issued, "back-office", time.Time{})
	s := storeOn(t, database, "")
	if list, err := s.Tokens(0).List(t.Context()); err == nil {
		t.Errorf("List by a role that may not read tokens: %+v, want an error", list)
	}
	s.exec(t, `ALTER TABLE api_tokens RENAME scopes TO sc; ALTER TABLE api_tokens ADD scopes bigint DEFAULT 1`)
	if list, err := issued.List(t.Context()); err == nil {
		t.Errorf("List of rows that can't be read: %+v, want an error", list)
	}
}

func TestCreateRefusals(t *testing.T) {
	t.Parallel()
	issued := issuer(t, pgtest.New(t))
	create(t, issued, "taken", time.Time{})
	if _, err := issued.Create(t.Context(), "taken", []string{auth.ScopeDelete}, time.Time{}, plant.Budget{}); !errors.Is(err, ErrPrincipalExists) {
		t.Errorf("Create with a taken name: %v, want ErrPrincipalExists", err)
	}
	for _, name := range []string{"", " ", "-x", "a b", "a\n", strings.Repeat("a", 64), "naïve"} {
		if _, err := issued.Create(t.Context(), name, []string{auth.ScopeDelete}, time.Time{}, plant.Budget{}); !errors.Is(err, ErrPrincipalName) {
			t.Errorf("Create(%q): %v, want ErrPrincipalName", name, err)
		}
	}
}

func TestTheDatabaseHoldsNoToken(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	issued := issuer(t, database)
	token := create(t, issued, "back-office", time.Time{})
	s := storeOn(t, database, "")
	var row string
	if err := s.owner.QueryRow(t.Context(), `SELECT a::text || encode(digest, 'escape') FROM api_tokens a`).Scan(&row); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(row, token) || strings.Contains(row, token[4:]) {
		t.Errorf("api_tokens holds the token: %s", row)
	}
}

func TestLastUseIsNoted(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		issued := issuer(t, database)
		token := create(t, issued, "back-office", time.Time{})
		create(t, issued, "another", time.Time{})
		revoked := create(t, issued, "revoked", time.Time{})
		if _, err := issued.Revoke(t.Context(), "revoked"); err != nil {
			t.Fatal(err)
		}
		s := storeOn(t, database, "")
		tokens := s.Tokens(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { tokens.NoteUse(ctx); close(done) }()
		defer func() { cancel(); <-done }()

		if _, err := tokens.Authenticate(in(t, patience), token); err != nil {
			t.Fatal(err)
		}
		if _, err := tokens.Authenticate(in(t, patience), revoked); !errors.Is(err, auth.ErrInvalidToken) {
			t.Errorf("Authenticate by a revoked token: %v, want ErrInvalidToken", err)
		}
		synctest.Wait() // until NoteUse has nothing to do
		list, err := issued.List(t.Context())
		if err != nil || len(list) != 3 || list[1].Tokens[0].LastUsedAt.IsZero() || !list[0].Tokens[0].LastUsedAt.IsZero() || !list[2].Tokens[0].LastUsedAt.IsZero() {
			t.Errorf("tokens %+v, %v; want the last use of back-office noted, and no other", list, err)
		}
	})
}

// A principal keeps its name while its tokens change.
func TestRotate(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	issued := issuer(t, database)
	s := storeOn(t, database, "")
	tokens := s.Tokens(0)
	const scope = auth.ScopeDelete
	rotate := func(overlap time.Duration, expires time.Time) string {
		t.Helper()
		token, err := issued.Rotate(t.Context(), "shop", overlap, expires)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	expect := func(want error, all ...string) {
		t.Helper()
		for i, token := range all {
			got, err := tokens.Authenticate(in(t, patience), token)
			if !errors.Is(err, want) || err == nil && !cmp.Equal(got, auth.Principal{Name: "shop", Scopes: []string{scope}}) {
				t.Errorf("Authenticate with token %d: %+v, %v; want shop, %v", i, got, err, want)
			}
		}
	}
	expiries := func() (all []time.Duration) {
		t.Helper()
		list, err := issued.List(t.Context())
		if err != nil || len(list) != 1 || list[0].Name != "shop" {
			t.Fatalf("List = %+v, %v; want shop", list, err)
		}
		for _, token := range list[0].Tokens {
			if token.ExpiresAt.IsZero() {
				all = append(all, 0)
			} else {
				all = append(all, time.Until(token.ExpiresAt).Round(time.Hour))
			}
		}
		return all
	}
	first := create(t, issued, "shop", time.Time{})
	second := rotate(48*time.Hour, time.Now().Add(24*time.Hour))
	expect(nil, first, second)
	third := rotate(36*time.Hour, time.Time{}) // the second ends before that anyway
	expect(nil, first, second, third)
	if diff := cmp.Diff([]time.Duration{0, 24 * time.Hour, 36 * time.Hour}, expiries()); diff != "" {
		t.Errorf("the tokens end in (-want +got):\n%s", diff)
	}
	s.exec(t, `UPDATE api_tokens SET expires_at = now() - interval '1 second' WHERE expires_at IS NOT NULL`)
	expect(auth.ErrInvalidToken, first, second)
	fourth := rotate(0, time.Time{})
	expect(auth.ErrInvalidToken, first, second, third)
	expect(nil, fourth)

	// Once it expired it can still have another one; once revoked it has to be let in.
	s.exec(t, `UPDATE api_tokens SET expires_at = now() - interval '1 second'`)
	fifth, sixth := rotate(time.Hour, time.Time{}), rotate(time.Hour, time.Time{})
	expect(nil, fifth, sixth)
	if _, err := issued.Create(t.Context(), "shop", []string{scope}, time.Time{}, plant.Budget{}); !errors.Is(err, ErrPrincipalExists) {
		t.Errorf("Create of a principal that has a token: %v, want ErrPrincipalExists", err)
	}
	if _, err := issued.Revoke(t.Context(), "shop"); err != nil {
		t.Fatal(err)
	}
	expect(auth.ErrInvalidToken, first, second, third, fourth, fifth, sixth)
	if _, err := issued.Rotate(t.Context(), "shop", time.Hour, time.Time{}); !errors.Is(err, ErrRevoked) {
		t.Errorf("Rotate of a principal that was revoked: %v, want ErrRevoked", err)
	}
	expect(nil, create(t, issued, "shop", time.Time{}))
	expect(auth.ErrInvalidToken, fifth, sixth)
	if _, err := issued.Rotate(t.Context(), "nobody", time.Hour, time.Time{}); !errors.Is(err, ErrNoPrincipal) {
		t.Errorf("Rotate of nobody: %v, want ErrNoPrincipal", err)
	}
}

// Of many who make the same principal at once, one does.
func TestAPrincipalIsMadeOnce(t *testing.T) {
	t.Parallel()
	issued := issuer(t, pgtest.New(t))
	var group sync.WaitGroup
	made := make(chan string, 8)
	for range cap(made) {
		group.Go(func() {
			token, err := issued.Create(in(t, patience), "shop", []string{auth.ScopeDelete}, time.Time{}, plant.Budget{})
			switch {
			case err == nil:
				made <- token
			case !errors.Is(err, ErrPrincipalExists):
				t.Errorf("Create: %v, want none or ErrPrincipalExists", err)
			}
		})
	}
	group.Wait()
	if len(made) != 1 {
		t.Errorf("%d made the principal, want 1", len(made))
	}
}

// Who changes a principal waits for a deletion that holds its budget: a commit may take a
// while.
func TestChangesOfAPrincipalWaitForLocks(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	issued := issuer(t, database)
	s := storeOn(t, database, "")
	withBudget(t, database, plant.Budget{Most: 5, Period: time.Hour}, "shop")
	unlock := s.hold(t, `SELECT FROM plantstore_budgets WHERE principal = 'shop' FOR UPDATE`)
	changed := make(chan error, 1)
	go func() { changed <- issued.SetBudget(in(t, patience), "shop", plant.Budget{Most: 6, Period: time.Hour}) }()
	s.seeWaits(t, 1)
	select {
	case err := <-changed:
		t.Errorf("SetBudget while a deletion holds the budget: %v, want it to wait", err)
	case <-time.After(time.Second): // for it to go wrong
		unlock()
		if err := <-changed; err != nil {
			t.Errorf("SetBudget after a deletion that held the budget: %v, want none", err)
		}
	}
}

// A principal and a database role are two, also where both have one name: the role was
// made later.
func TestAPrincipalIsNoRole(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	issued := issuer(t, database)
	s := storeOn(t, database, "")
	if _, err := issued.Create(t.Context(), "plantstore_owner", []string{auth.ScopeDelete}, time.Time{}, plant.Budget{}); !errors.Is(err, ErrRoleName) {
		t.Errorf("Create of a principal that is named like a role: %v, want ErrRoleName", err)
	}
	role := fmt.Sprintf("twin-%d", time.Now().UnixNano())
	create(t, issued, role, time.Time{})
	super := pgtest.Pool(t, database.Super)
	name := pgx.Identifier{role}.Sanitize()
	if _, err := super.Exec(t.Context(), `CREATE ROLE `+name+`; GRANT DELETE, SELECT ON plants TO `+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { super.Exec(context.Background(), `DROP OWNED BY `+name+`; DROP ROLE `+name) })
	for id := range 4 {
		s.plant(t, int64(id))
	}
	if _, err := super.Exec(t.Context(), `SET SESSION AUTHORIZATION `+name+`; DELETE FROM plants WHERE id = 0; RESET SESSION AUTHORIZATION`); err != nil {
		t.Fatal(err)
	}
	for i, sql := range []string{
		`SELECT set_config('plantstore.request', ARRAY['1', $1]::text, true)`,
		`SELECT set_config('plantstore.batch', ARRAY[ARRAY['2'], ARRAY[$1], ARRAY[NULL], ARRAY['k']]::text, true)`,
	} { // as the service says it, but without a request id
		err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), sql, role); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), `DELETE FROM plants WHERE id = $1`, i+1)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.plants.Delete(in(t, patience), plant.Deletion{Plant: 3, Principal: role, RequestID: "r", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	ledger := ledgerOf(t, database)
	for _, tt := range []struct {
		by   Deleter
		want []int64
	}{
		{Deleter{Role: role}, []int64{0}},
		{Deleter{Principal: role}, []int64{3, 2, 1}},
	} {
		list, _, err := ledger.List(t.Context(), LedgerFilter{By: tt.by}, 9, false)
		var got []int64
		for _, r := range list {
			got = append(got, r.PlantID)
			if r.Direct != (tt.by.Role != "") {
				t.Errorf("deletion of plant %d by %+v: direct SQL %v", r.PlantID, tt.by, r.Direct)
			}
		}
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("plants by %+v: %v; (-want +got):\n%s", tt.by, err, diff)
		}
		undo, err := ledger.Undoable(t.Context(), tt.by, time.Time{}, time.Time{}, false)
		if err != nil || len(undo.IDs) != len(tt.want) {
			t.Errorf("undoable by %+v: %+v, %v; want %d deletions", tt.by, undo, err, len(tt.want))
		}
	}
}

// What would be read as no moment at all would make a token valid for ever.
func TestATokenEndsAtAMomentThatThereIs(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	create(t, issuer(t, database), "shop", time.Time{})
	super := pgtest.Connect(t, database.Super)
	for _, moment := range []string{"expires_at = 'infinity'", "expires_at = '-infinity'", "revoked_at = 'infinity'", "revoked_at = '-infinity', expires_at = now()"} {
		_, err := super.Exec(t.Context(), `UPDATE public.api_tokens SET `+moment)
		if want := "api_tokens_finite"; pgError(err) == nil || pgError(err).ConstraintName != want {
			t.Errorf("SET %s: %v, want constraint %s violated", moment, err, want)
		}
	}
}

// Whoever loses the connection with the commit has to look whether there is a token.
func TestATokenWhoseCommitWasNotAnswered(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	storeOn(t, database, "").exec(t, `CREATE FUNCTION quit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER quit AFTER INSERT ON api_tokens DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION quit()`)
	const want = "create token: the commit was not answered, so it may have come about. 'plantstore token list' tells"
	if _, err := issuer(t, database).Create(t.Context(), "shop", []string{auth.ScopeDelete}, time.Time{}, plant.Budget{}); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Create: %v; want %s", err, want)
	}
}
