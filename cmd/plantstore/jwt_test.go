package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
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

// Clients from many addresses, and from that of good ones, send JWTs by ever new keys that
// nobody knows, as fast as they can: the provider is asked once in 10 s, nothing of it
// reaches the database, and each good client deletes what it asks for.
func TestJWTsByMadeUpKeysMoveNobody(t *testing.T) {
	t.Parallel()
	const plants, forgers, neighbours, enough, fetches = 200_000, 48, 16, 3_000, 2
	const fetchEvery = 10 * time.Second
	database := pgtest.New(t)
	owner := pgtest.Connect(t, database.Owner)
	execute(t, owner, fmt.Sprintf(`INSERT INTO plants (id, name) SELECT i, 'Boston fern' FROM generate_series(1, %d) i`, plants))
	opaque := createToken(t, database.Owner, "shop")
	provider := authtest.New(t)
	began := time.Now()
	p := start(t, append([]string{"serve", "--database-url=" + database.App, "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s",
		"--oidc-issuer=" + provider.URL, "--oidc-audience=" + authtest.Audience, "--trusted-proxies=127.0.0.1"}, longTimeout...)...)
	public, admin := p.addresses(t)
	waitReady(t, admin, http.StatusOK)

	transport := &http.Transport{MaxIdleConnsPerHost: forgers + neighbours + 8}
	defer transport.CloseIdleConnections()
	try := func(plant int64, token, client string) (answer *http.Response, body string, took time.Duration) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, fmt.Sprintf("%s/plants/%d", public, plant), nil)
		if err != nil {
			t.Error(err)
			return new(http.Response), "", 0
		}
		request.Header.Set("Authorization", "Bearer "+token)
		request.Header.Set("X-Forwarded-For", client)
		sent := time.Now()
		answer, err = transport.RoundTrip(request)
		if err != nil {
			t.Error(err)
			return new(http.Response), "", 0
		}
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Error(err)
		}
		return answer, string(b), time.Since(sent)
	}

	const here = "192.0.2.1"
	var next, deleted, issued atomic.Int64
	var mu sync.Mutex
	var took []time.Duration
	goodOnes := func(stop *atomic.Bool) (wait func()) {
		var group sync.WaitGroup
		for i := range 5 {
			group.Go(func() {
				for !stop.Load() && !t.Failed() {
					token := opaque
					if i > 0 { // each time another one, which has to be verified
						token = provider.Sign(t, provider.Claims("back-office", map[string]any{"jti": fmt.Sprint(issued.Add(1))}), nil)
					}
					answer, body, passed := try(next.Add(1), token, here)
					if answer.StatusCode != http.StatusNoContent {
						t.Errorf("DELETE by good client %d: %d %s, want 204", i, answer.StatusCode, body)
						return
					}
					deleted.Add(1)
					mu.Lock()
					took = append(took, passed)
					mu.Unlock()
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
		return group.Wait
	}
	during := func(what string, yes func() bool) {
		t.Helper()
		var stop atomic.Bool
		wait := goodOnes(&stop)
		reached := eventually(func() bool { return yes() || t.Failed() })
		stop.Store(true)
		wait()
		if !reached {
			t.Errorf("%s: not in %s", what, patience)
		}
		slices.Sort(took)
		if n := len(took); n > 0 {
			t.Logf("%s: %d deletions by good clients, half of them within %s, 99 %% within %s", what, n, took[n/2], took[n*99/100])
		}
		took = nil
	}
	during("alone", func() bool { return deleted.Load() >= 500 })

	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	claims, signature := part(provider.Claims("forger", nil)), base64.RawURLEncoding.EncodeToString(make([]byte, ed25519.SignatureSize))
	var forged atomic.Int64
	var told sync.Map // by code
	for _, code := range []string{"40101", "42900", "50303"} {
		told.Store(code, new(atomic.Int64))
	}
	var stop atomic.Bool
	var group sync.WaitGroup
	flooded := time.Now()
	for i := range forgers + neighbours {
		group.Go(func() {
			for n := 0; !stop.Load(); n++ {
				client := here
				if i < forgers { // as many addresses as it takes to be told so at once
					client = fmt.Sprintf("10.%d.%d.%d", i, n/10/256, n/10%256)
				}
				header := part(map[string]any{"alg": "EdDSA", "typ": "at+jwt", "kid": fmt.Sprintf("forged-%d-%d", i, n)})
				answer, body, _ := try(plants-int64(i), header+"."+claims+"."+signature, client)
				var e struct{ Error int }
				_ = json.Unmarshal([]byte(body), &e)
				count, ok := told.Load(fmt.Sprint(e.Error))
				if !ok || answer.StatusCode != e.Error/100 {
					t.Errorf("DELETE with a made-up JWT: %d %s, want 40101, 42900 or 50303", answer.StatusCode, body)
					return
				}
				count.(*atomic.Int64).Add(1)
				if forged.Add(1) >= enough {
					time.Sleep(50 * time.Millisecond) // a thousand a second do until the provider may be asked again
				}
			}
		})
	}
	before := provider.Fetches.Load()
	during("beside made-up JWTs", func() bool { return forged.Load() >= enough && provider.Fetches.Load() >= before+fetches })
	stop.Store(true)
	group.Wait()
	lasted := time.Since(flooded)
	told.Range(func(code, count any) bool {
		t.Logf("%s: %d made-up JWTs", code, count.(*atomic.Int64).Load())
		return true
	})
	t.Logf("%d made-up JWTs in %s, %.0f a second", forged.Load(), lasted, float64(forged.Load())/lasted.Seconds())
	if got, most := provider.Fetches.Load(), 1+int64(time.Since(began)/fetchEvery); got > most {
		t.Errorf("the provider was asked %d times in %s, want %d at the most", got, time.Since(began), most)
	}

	var by string
	var gone, refused int64
	if err := owner.QueryRow(t.Context(), `SELECT string_agg(DISTINCT deleted_by, ', ' ORDER BY deleted_by), count(*) FILTER (WHERE plant IS NOT NULL), count(*) FILTER (WHERE plant IS NULL)
		FROM plant_deletions`).Scan(&by, &gone, &refused); err != nil {
		t.Fatal(err)
	}
	if by != "oidc:back-office, shop" || gone != deleted.Load() || refused != 0 {
		t.Errorf("the ledger has %d deletions and %d refusals by %s, want %d and 0 by oidc:back-office and shop", gone, refused, by, deleted.Load())
	}
	families := scrape(t, admin, "plantstore_token_lookups_total")
	for _, m := range families["plantstore_token_lookups_total"].GetMetric() {
		if result := m.GetLabel()[0].GetValue(); (result == "unknown" || result == "failed") && m.GetCounter().GetValue() != 0 {
			t.Errorf("%g look-ups of tokens in the database %s, want none", m.GetCounter().GetValue(), result)
		}
	}
	for _, m := range families["plantstore_deletions_total"].GetMetric() {
		if outcome := m.GetLabel()[0].GetValue(); outcome != "deleted" && m.GetCounter().GetValue() != 0 {
			t.Errorf("%g deletions ended as %s, want none", m.GetCounter().GetValue(), outcome)
		}
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

	// Who reads in the log that it is used up sees it in the list, and can change it.
	expect := expecting(t, database.Owner)
	expect(0, `PRINCIPAL.*\noidc:script +JWT +- +- +- +- +1/1h by default, 1 used\noidc:shop +JWT +- +- +- +- +1/1h by default, 1 used\n`, "", "token", "list")
	expect(0, `\[.*"name": "oidc:shop",\n +"budget": \{\n +"most": 1,\n +"period_seconds": 3600,\n +"by_default": true,\n +"used": 1\n.*`, "", "token", "list", "--json")
	expect(0, `the deletion budget of "oidc:shop" is 2/1h, .*\n`, "", "token", "budget", "oidc:shop", "2/1h")
	token := provider.Sign(t, provider.Claims("7", map[string]any{"client_id": "shop"}), nil)
	var code int
	var body string
	eventually(func() bool { // what is used up is believed for a moment
		code, body = send(t, http.MethodDelete, public+"/plants/3", token)
		return code != http.StatusTooManyRequests
	})
	if code != http.StatusNoContent {
		t.Errorf("DELETE within a budget of its own: %d %s, want 204", code, body)
	}
	if code, body := send(t, http.MethodDelete, public+"/plants/4", token); code != http.StatusTooManyRequests {
		t.Errorf("DELETE beyond a budget of its own: %d %s, want 429", code, body)
	}
	expect(0, `.*\noidc:shop .* 2/1h, 2 used\n`, "", "token", "list")
	expect(0, `"oidc:shop" has no deletion budget of its own: .*\n`, "", "token", "budget", "oidc:shop", "none")
	expect(0, `.*\noidc:shop .* 1/1h by default, 2 used\n`, "", "token", "list") // what was used counts
	for _, want := range []string{`"principal":"oidc:shop","budget":"1/1h"`, `"principal":"oidc:shop","budget":"2/1h"`, `"principal":"oidc:script","budget":"1/1h"`} {
		if got := strings.Count(p.log.String(), `"deletion budget used up",`+want); got != 1 {
			t.Errorf("the log has %d times %s, want it once:\n%s", got, want, p.log)
		}
	}
}
