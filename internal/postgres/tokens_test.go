package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

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
	token, err := tokens.Create(t.Context(), name, []string{auth.ScopeDelete}, expires)
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
	if _, err := issued.Revoke(t.Context(), "nobody"); !errors.Is(err, ErrNoToken) {
		t.Errorf("Revoke of no token: %v, want ErrNoToken", err)
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

// After a start, or a quiet time, every client's token is looked up at once.
func TestManyTokensAtOnceAllGetTheirTurn(t *testing.T) {
	t.Parallel()
	const clients = 2*concurrentLookups + 22
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	issued := issuer(t, database)
	all := make([]string, clients)
	for i := range all {
		all[i] = create(t, issued, fmt.Sprint("client-", i), time.Time{})
	}
	tokens := s.Tokens(time.Minute)
	errs := make(chan error)
	for _, token := range all {
		go func() {
			_, err := tokens.Authenticate(in(t, patience), token)
			errs <- err
		}()
	}
	for range clients {
		if err := <-errs; err != nil {
			t.Errorf("Authenticate: %v, want none", err)
		}
	}
	// Nobody kept a place.
	if !tokens.lookups.TryAcquire(concurrentLookups) {
		t.Error("a look-up that has ended still counts")
	}
}

func TestCreateRefusals(t *testing.T) {
	t.Parallel()
	issued := issuer(t, pgtest.New(t))
	create(t, issued, "taken", time.Time{})
	if _, err := issued.Create(t.Context(), "taken", []string{auth.ScopeDelete}, time.Time{}); !errors.Is(err, ErrTokenExists) {
		t.Errorf("Create with a taken name: %v, want ErrTokenExists", err)
	}
	for _, name := range []string{"", " ", "-x", "a b", "a\n", strings.Repeat("a", 64), "naïve"} {
		if _, err := issued.Create(t.Context(), name, []string{auth.ScopeDelete}, time.Time{}); !errors.Is(err, ErrTokenName) {
			t.Errorf("Create(%q): %v, want ErrTokenName", name, err)
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
		s := storeOn(t, database, "")
		tokens := s.Tokens(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { tokens.NoteUse(ctx); close(done) }()
		defer func() { cancel(); <-done }()

		if _, err := tokens.Authenticate(in(t, patience), token); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // until NoteUse has nothing to do
		list, err := issued.List(t.Context())
		if err != nil || len(list) != 1 || list[0].LastUsedAt.IsZero() {
			t.Errorf("tokens %+v, %v; want the last use of one noted", list, err)
		}
	})
}
