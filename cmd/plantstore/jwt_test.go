package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/auth/authtest"
	"plantstore/internal/pgtest"
	"plantstore/internal/postgres"
)

// Clients with JWTs do not notice that their provider signs with a new key, that others
// send JWTs by keys that nobody knows, or that the provider is gone.
func TestJWTsUnderLoad(t *testing.T) {
	t.Parallel()
	const plants = 100_000
	database := pgtest.New(t)
	if err := postgres.Script(t.Context(), database.Owner, fmt.Sprintf(`INSERT INTO plants (id, name) SELECT i, 'Boston fern' FROM generate_series(1, %d) i`, plants)); err != nil {
		t.Fatal(err)
	}
	provider := authtest.New(t)
	p := start(t, append([]string{"serve", "--database-url=" + database.App, "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s",
		"--oidc-issuer=" + provider.URL, "--oidc-audience=" + authtest.Audience, "--token-cache-ttl=100ms"}, longTimeout...)...)
	public, admin := p.addresses(t)
	waitReady(t, admin, http.StatusOK)

	var token atomic.Value
	token.Store(provider.Token(t, "back-office"))
	var next, deleted atomic.Int64
	var stop atomic.Bool
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for !stop.Load() {
				code, body := send(t, http.MethodDelete, fmt.Sprintf("%s/plants/%d", public, next.Add(1)), token.Load().(string))
				if code != http.StatusNoContent {
					t.Errorf("DELETE with a good JWT: %d %s, want 204", code, body)
					return
				}
				deleted.Add(1)
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	defer group.Wait()
	defer stop.Store(true)
	more := func(n int64) {
		t.Helper()
		want := deleted.Load() + n
		if !eventually(func() bool { return deleted.Load() >= want || t.Failed() }) || t.Failed() {
			t.Fatalf("%d plants deleted, want %d by now", deleted.Load(), want)
		}
	}
	more(50)
	// The keys were fetched at the start. The provider is asked again for an unknown one,
	// 10 s later at the earliest.
	const fetchEvery = 10 * time.Second
	time.Sleep(fetchEvery)
	fetched := provider.Fetches.Load()
	provider.Rotate(t, "second")
	token.Store(provider.Token(t, "back-office"))
	more(100)
	if got := provider.Fetches.Load() - fetched; got != 1 {
		t.Errorf("the provider was asked %d times for its new key, want once", got)
	}

	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	forged := make([]string, 40) // twice as many as may fail at once
	for i := range forged {
		forged[i] = authtest.SignWith(t, jose.JSONWebKey{Key: key, KeyID: fmt.Sprint("forged-", i), Algorithm: "EdDSA"}, provider.Claims("back-office", nil), nil)
	}
	began := time.Now()
	for _, forged := range forged {
		code, body := send(t, http.MethodDelete, public+"/plants/1", forged)
		if code != http.StatusUnauthorized && code != http.StatusTooManyRequests && !(code == http.StatusServiceUnavailable && strings.Contains(body, "50303")) {
			t.Errorf("DELETE with a forged JWT: %d %s, want 401, 429 or 503 with 50303", code, body)
		}
	}
	more(50)
	if got, most := provider.Fetches.Load()-fetched, 2+int64(time.Since(began)/fetchEvery); got > most {
		t.Errorf("the provider was asked %d times, want %d at the most", got, most)
	}

	provider.Stop()
	more(100)
	provider.Rotate(t, "third")
	var code int
	var body string
	third := provider.Token(t, "back-office")
	eventually(func() bool { // once authentication may fail again for this address
		code, body = send(t, http.MethodDelete, public+"/plants/1", third)
		return code != http.StatusTooManyRequests
	})
	if code != http.StatusServiceUnavailable || !strings.Contains(body, "50303") {
		t.Errorf("DELETE with a JWT by a key that nobody can know: %d %s, want 503 with 50303", code, body)
	}
	stop.Store(true)
	group.Wait()
	conn, err := pgx.Connect(t.Context(), database.Owner)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var by string
	var gone int64
	if err := conn.QueryRow(t.Context(), `SELECT string_agg(DISTINCT deleted_by, ', '), count(*) FROM plant_deletions`).Scan(&by, &gone); err != nil {
		t.Fatal(err)
	}
	if by != "oidc:back-office" || gone != deleted.Load() {
		t.Errorf("the ledger has %d deletions by %s, want %d by oidc:back-office", gone, by, deleted.Load())
	}
}

// Each principal that comes with a JWT has the budget of the settings, under the name that
// the claim of the settings has.
func TestABudgetOfPrincipalsWithJWTs(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	if err := postgres.Script(t.Context(), database.Owner, `INSERT INTO plants (id, name) SELECT i, 'Boston fern' FROM generate_series(1, 4) i`); err != nil {
		t.Fatal(err)
	}
	provider := authtest.New(t)
	p := start(t, append([]string{"serve", "--database-url=" + database.App, "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s",
		"--oidc-issuer=" + provider.URL, "--oidc-audience=" + authtest.Audience, "--oidc-principal-claim=client_id", "--oidc-budget=1/1h"}, longTimeout...)...)
	public, admin := p.addresses(t)
	waitReady(t, admin, http.StatusOK)
	for _, client := range []string{"shop", "script"} {
		token := provider.Sign(t, provider.Claims("7", map[string]any{"client_id": client}), nil)
		if code, body := send(t, http.MethodDelete, public+map[string]string{"shop": "/plants/1", "script": "/plants/2"}[client], token); code != http.StatusNoContent {
			t.Errorf("the first deletion by %s: %d %s, want 204", client, code, body)
		}
		if code, body := send(t, http.MethodDelete, public+"/plants/3", token); code != http.StatusTooManyRequests || !strings.Contains(body, "42901") {
			t.Errorf("the second deletion by %s: %d %s, want 429 with 42901", client, code, body)
		}
	}
	conn := pgtest.Connect(t, database.Owner)
	var by string
	if err := conn.QueryRow(t.Context(), `SELECT string_agg(deleted_by, ', ' ORDER BY plant_id) FROM plant_deletions WHERE plant IS NOT NULL`).Scan(&by); err != nil || by != "oidc:shop, oidc:script" {
		t.Errorf("deleted by %s, %v; want oidc:shop, oidc:script", by, err)
	}
}
