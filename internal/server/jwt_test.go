package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"plantstore/internal/auth"
	"plantstore/internal/auth/authtest"
	"plantstore/internal/plant"
)

// withProvider makes a server take the JWTs of a provider. Whatever else it is asked
// fails the test.
func withProvider(t *testing.T, p *authtest.Provider, c Config) Config {
	c.JWTs = auth.NewVerifier(auth.Issuer{URL: p.URL, Audience: authtest.Audience, Claim: "sub"}, time.Minute, slog.New(slog.DiscardHandler))
	c.Tokens = fakeTokens(func(context.Context, string) (auth.Principal, error) {
		t.Error("the database was asked for a JWT")
		return auth.Principal{}, auth.ErrInvalidToken
	})
	return c
}

func bearing(token string) request {
	return request{method: "DELETE", target: "/plants/1", headers: []string{"Authorization: Bearer " + token}}
}

func TestGoodJWTs(t *testing.T) {
	t.Parallel()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name      string
		key       any // nil: the provider's first
		alg       jose.SignatureAlgorithm
		kid       string
		claims    map[string]any // a duration: from the moment at which the JWT is made
		headers   map[string]any
		principal string
		want      int
	}{
		{name: "EdDSA", principal: "oidc:shop", want: 204},
		{name: "ES256", key: ecKey, alg: jose.ES256, kid: "ec", principal: "oidc:shop", want: 204},
		{name: "RS256", key: rsaKey, alg: jose.RS256, kid: "rsa", principal: "oidc:shop", want: 204},
		{name: "without kid", key: ecKey, alg: jose.ES256, principal: "oidc:shop", want: 204},
		{name: "typ JWT", headers: map[string]any{"typ": "JWT"}, principal: "oidc:shop", want: 204},
		{name: "typ with its tree", headers: map[string]any{"typ": "application/AT+JWT"}, principal: "oidc:shop", want: 204},
		{name: "audiences", claims: map[string]any{"aud": []string{"https://other.example", authtest.Audience}}, principal: "oidc:shop", want: 204},
		{name: "subject of the usual characters", claims: map[string]any{"sub": "auth0|64 (x)@~"}, principal: "oidc:auth0|64 (x)@~", want: 204},
		{name: "longest subject", claims: map[string]any{"sub": strings.Repeat("s", 255)}, principal: "oidc:" + strings.Repeat("s", 255), want: 204},
		{name: "expired within the leeway", claims: map[string]any{"exp": -20 * time.Second}, principal: "oidc:shop", want: 204},
		{name: "not yet within the leeway", claims: map[string]any{"nbf": 20 * time.Second}, principal: "oidc:shop", want: 204},
		{name: "scopes", claims: map[string]any{"scope": "plants:read plants:delete"}, principal: "oidc:shop", want: 204},
		{name: "scp as a list", claims: map[string]any{"scope": nil, "scp": []string{"plants:delete"}}, principal: "oidc:shop", want: 204},
		{name: "scp as a text", claims: map[string]any{"scope": nil, "scp": "plants:read plants:delete"}, principal: "oidc:shop", want: 204},
		{name: "scopes that agree", claims: map[string]any{"scope": "b plants:delete", "scp": []string{"plants:delete", "b"}}, principal: "oidc:shop", want: 204},
		{name: "another scope", claims: map[string]any{"scope": "plants:read plants:delete2"}, want: 40300},
		{name: "no scope", claims: map[string]any{"scope": nil}, want: 40300},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := authtest.New(t)
			if tt.key != nil {
				p.Use(jose.JSONWebKey{Key: tt.key, KeyID: tt.kid, Algorithm: string(tt.alg)})
			}
			var principal string
			c := withProvider(t, p, testConfig())
			c.Plants = fakePlants(func(_ context.Context, d plant.Deletion) (plant.Result, error) {
				principal = d.Principal
				return plant.Result{}, nil
			})
			s := start(t, c)
			for name, value := range tt.claims {
				if d, ok := value.(time.Duration); ok {
					tt.claims[name] = time.Now().Add(d).Unix()
				}
			}
			got := s.ask(t, bearing(p.Sign(t, p.Claims("shop", tt.claims), tt.headers)))
			if got.code() != tt.want || principal != tt.principal {
				t.Errorf("answer %d for principal %q, want %d for %q", got.code(), principal, tt.want, tt.principal)
			}
		})
	}
}

// Each of these is refused in the same way, and nothing reaches the database.
func TestBadJWTs(t *testing.T) {
	t.Parallel()
	p := authtest.New(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p.Use(jose.JSONWebKey{Key: rsaKey, KeyID: "rsa", Algorithm: string(jose.RS256)})
	published, err := x509.MarshalPKIXPublicKey(rsaKey.Public())
	if err != nil {
		t.Fatal(err)
	}
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: published})
	_, foreign, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, goodEd, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	goodKey := jose.JSONWebKey{Key: goodEd, KeyID: "known", Algorithm: string(jose.EdDSA)}
	p.Use(goodKey)
	c := withProvider(t, p, testConfig())
	c.Plants = fakePlants(func(context.Context, plant.Deletion) (plant.Result, error) {
		t.Error("a deletion was tried")
		return plant.Result{}, nil
	})
	s := start(t, c)

	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	claims := p.Claims("shop", nil)
	with := func(claims, headers map[string]any) string { return p.Sign(t, p.Claims("shop", claims), headers) }
	foreignKey := jose.JSONWebKey{Key: foreign, KeyID: "known", Algorithm: string(jose.EdDSA)}
	good := p.Token(t, "shop")
	header, rest, _ := strings.Cut(good, ".")
	payload, signature, _ := strings.Cut(rest, ".")
	twice := strings.Replace(string(must(base64.RawURLEncoding.DecodeString(payload))), `{`, `{"scope":"plants:read",`, 1)

	bad := map[string]string{
		"alg none":                    part(map[string]string{"alg": "none", "typ": "JWT"}) + "." + payload + ".",
		"alg none, with a signature":  part(map[string]string{"alg": "none", "typ": "JWT", "kid": "known"}) + "." + payload + "." + signature,
		"HS256 with the public key":   authtest.SignWith(t, jose.JSONWebKey{Key: publicPEM, KeyID: "rsa", Algorithm: string(jose.HS256)}, claims, nil),
		"RS512":                       authtest.SignWith(t, jose.JSONWebKey{Key: rsaKey, KeyID: "rsa", Algorithm: string(jose.RS512)}, claims, nil),
		"PS256":                       authtest.SignWith(t, jose.JSONWebKey{Key: rsaKey, KeyID: "rsa", Algorithm: string(jose.PS256)}, claims, nil),
		"other issuer":                with(map[string]any{"iss": "https://other.example"}, nil),
		"issuer with a slash":         with(map[string]any{"iss": p.URL + "/"}, nil),
		"no issuer":                   with(map[string]any{"iss": nil}, nil),
		"other audience":              with(map[string]any{"aud": "https://other.example"}, nil),
		"no audience":                 with(map[string]any{"aud": nil}, nil),
		"audience in another case":    with(map[string]any{"aud": strings.ToUpper(authtest.Audience)}, nil),
		"typ of an identity":          with(nil, map[string]any{"typ": "id+jwt"}),
		"typ of a logout":             with(nil, map[string]any{"typ": "logout+jwt"}),
		"typ is no text":              with(nil, map[string]any{"typ": 1}),
		"no typ":                      with(nil, map[string]any{"typ": nil}),
		"expired":                     with(map[string]any{"exp": time.Now().Add(-35 * time.Second).Unix()}, nil),
		"never expires":               with(map[string]any{"exp": nil}, nil),
		"exp is a text":               with(map[string]any{"exp": "tomorrow"}, nil),
		"not yet":                     with(map[string]any{"nbf": time.Now().Add(35*time.Second + time.Minute).Unix()}, nil),
		"issued in the future":        with(map[string]any{"iat": time.Now().Add(time.Hour).Unix()}, nil),
		"cut in its signature":        good[:len(good)-10],
		"cut in its claims":           good[:len(header)+20] + ".",
		"without its signature":       header + "." + payload + ".",
		"signature of something else": header + "." + part(p.Claims("owner", nil)) + "." + signature,
		"longest that fits":           with(map[string]any{"sub": strings.Repeat("s", 10<<10)}, nil),
		"foreign key, known kid":      authtest.SignWith(t, foreignKey, claims, nil),
		"key in the header: jwk":      with(nil, map[string]any{"jwk": goodKey.Public()}),
		"key in the header: jku":      with(nil, map[string]any{"jku": p.URL + "/keys"}),
		"key in the header: x5u":      with(nil, map[string]any{"x5u": "https://other.example/cert"}),
		"critical header":             with(nil, map[string]any{"crit": []string{"exp"}, "exp": 1}),
		"critical header b64":         with(nil, map[string]any{"crit": []string{"b64"}, "b64": true}),
		"two scopes claims":           with(map[string]any{"scp": []string{"plants:read"}}, nil),
		"two scopes claims, reversed": with(map[string]any{"scope": "plants:read", "scp": []string{"plants:delete"}}, nil),
		"scope twice":                 authtest.SignWith(t, goodKey, []byte(twice), nil),
		"scope is a number":           with(map[string]any{"scope": 1}, nil),
		"sub empty":                   with(map[string]any{"sub": ""}, nil),
		"no sub":                      with(map[string]any{"sub": nil}, nil),
		"sub is a number":             with(map[string]any{"sub": 7}, nil),
		"sub of 256 bytes":            with(map[string]any{"sub": strings.Repeat("s", 256)}, nil),
		"sub with a control":          with(map[string]any{"sub": "shop\nroot"}, nil),
		"sub with NUL":                with(map[string]any{"sub": "shop\x00"}, nil),
		"sub of other letters":        with(map[string]any{"sub": "b\u00fcro\u202e"}, nil),
		"claims are a list":           authtest.SignWith(t, goodKey, []byte(`[]`), nil),
		"nothing":                     "..",
	}
	// The last key signs well, so what is wrong is what the name says.
	if s := start(t, withProvider(t, p, testConfig())); s.ask(t, bearing(good)).status != 204 {
		t.Error("the good JWT is refused")
	}
	for name, token := range bad {
		if token == "" || token == good {
			t.Fatalf("%s: no token of its own", name)
		}
		if name == "longest that fits" && (len(token) < 12<<10 || len(token) > 15<<10) {
			t.Fatalf("%s: %d bytes", name, len(token))
		}
		// From an address of its own, so that it does not wait for the others.
		s.failures.limiters.Purge()
		got := s.ask(t, bearing(token))
		if want := `Bearer realm="plantstore", error="invalid_token"`; got.code() != 40101 || got.header.Get("WWW-Authenticate") != want {
			t.Errorf("%s: answer %d, %q; want 40101, %q", name, got.code(), got.header.Get("WWW-Authenticate"), want)
		}
	}
	// What is larger than any header may be is not read to its end.
	if status, _, _ := exchangeRaw(t, dial(t, s.public), bearing(strings.Repeat("a", 100<<10)+".b.c")); status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("JWT of 100 KiB: answer %d, want 431", status)
	}
	if got := p.Fetches.Load(); got > 2 {
		t.Errorf("the provider was asked %d times, want once for each server", got)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestJWTsWithoutTheProvider(t *testing.T) {
	t.Parallel()
	p := authtest.New(t)
	token := p.Token(t, "shop")
	p.Stop()
	began := time.Now()
	s := start(t, withProvider(t, p, testConfig()))
	got := s.ask(t, bearing(token))
	if got.code() != 50303 || got.header.Get("WWW-Authenticate") != "" {
		t.Errorf("answer %d, %v; want 50303 without a challenge", got.code(), got.header)
	}
	// The provider is asked again 10 s after the first time.
	after, err := strconv.Atoi(got.header.Get("Retry-After"))
	if least := 10*time.Second - time.Since(began); err != nil || time.Duration(after)*time.Second < least || after > 10 {
		t.Errorf("Retry-After: %s, want the seconds until the provider is asked again, %s to 10s", got.header.Get("Retry-After"), least)
	}
	// What shows without the keys is told without them.
	if got := s.ask(t, bearing(p.Sign(t, p.Claims("shop", map[string]any{"aud": "other"}), nil))); got.code() != 40101 {
		t.Errorf("other audience: answer %d, want 40101", got.code())
	}
}

// A stranger can make up keys. That is counted like other failures, unless the provider
// is down, which is not its clients' fault.
func TestMadeUpKeysAreCounted(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"keys known": auth.ErrKeyUnknown, "provider down": auth.ErrKeysUnknown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := testConfig()
				c.JWTs = fakeTokens(func(context.Context, string) (auth.Principal, error) { return auth.Principal{}, err })
				s := New(c)
				var last int
				for range failuresAtOnce + 1 {
					last = attempt(t, s, "192.0.2.1:1111", "", "a.made-up.jwt")
				}
				want := 42900
				if err == auth.ErrKeysUnknown {
					want = 50303
				}
				if last != want {
					t.Errorf("answer %d to JWT %d, want %d", last, failuresAtOnce+1, want)
				}
			})
		})
	}
}

// A client whose JWT has expired goes on trying, behind the address of those whose JWTs are
// good, and new to this server.
func TestGoodJWTsBesideOneThatExpired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.JWTs = fakeTokens(func(_ context.Context, token string) (auth.Principal, error) {
			if strings.HasPrefix(token, "expired") {
				return auth.Principal{}, auth.ErrInvalidToken
			}
			return auth.Principal{Name: "oidc:shop", Scopes: []string{auth.ScopeDelete}}, nil
		})
		s := New(c)
		const here = "192.0.2.1:1111"
		for range failuresAtOnce {
			if got := attempt(t, s, here, "", "expired.by.now"); got != 40101 {
				t.Fatalf("an expired JWT: answer %d, want 40101", got)
			}
		}
		var flood sync.WaitGroup
		for range 8 {
			flood.Go(func() {
				if got := attempt(t, s, here, "", "expired.by.now"); got != 42900 {
					t.Errorf("an expired JWT, once more: answer %d, want 42900", got)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		for i := range 3 {
			if got := attempt(t, s, here, "", fmt.Sprintf("good.%d.jwt", i)); got != 204 {
				t.Errorf("a good JWT beside them: answer %d, want 204", got)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("good JWTs waited for %s, want them not to", took)
		}
		flood.Wait()
		if took := time.Since(began); took != failurePause {
			t.Errorf("those that failed were refused after %s, want %s", took, failurePause)
		}
		s.shed(t, shedFailures, 8)
	})
}

func TestJWTsByAFileOfKeys(t *testing.T) {
	t.Parallel()
	p := authtest.New(t)
	file := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(file, p.JWKS(), 0o600); err != nil {
		t.Fatal(err)
	}
	c := withProvider(t, p, testConfig())
	c.JWTs = auth.NewVerifier(auth.Issuer{URL: "https://login.example", JWKS: "file://" + file, Audience: authtest.Audience, Claim: "client_id",
		Budget: plant.Budget{Most: 7, Period: time.Hour}}, time.Minute, slog.New(slog.DiscardHandler))
	var asked plant.Deletion
	c.Plants = fakePlants(func(_ context.Context, d plant.Deletion) (plant.Result, error) {
		asked = d
		return plant.Result{}, nil
	})
	s := start(t, c)
	token := p.Sign(t, p.Claims("7", map[string]any{"iss": "https://login.example", "client_id": "back-office"}), nil)
	if got := s.ask(t, bearing(token)); got.code() != 204 || asked.Principal != "oidc:back-office" || asked.Budget.String() != "7/1h" {
		t.Errorf("answer %d for %q with the budget %s, want 204 for oidc:back-office with 7/1h", got.code(), asked.Principal, asked.Budget)
	}
}

// The operators read why a JWT was refused, the client does not.
func TestTheLogSaysWhyAJWTIsRefused(t *testing.T) {
	t.Parallel()
	p := authtest.New(t)
	c := withProvider(t, p, testConfig())
	var log strings.Builder
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := start(t, c)
	s.ask(t, bearing(p.Sign(t, p.Claims("shop", map[string]any{"aud": "other"}), nil)))
	s.stop(t)
	if want := "audience"; !strings.Contains(log.String(), want) {
		t.Errorf("the log does not say %q:\n%s", want, log.String())
	}
}

// A client of HTTP/2 has many requests on one connection. Bad JWTs that wait there for
// their refusal hold up neither the good ones beside them nor those of other connections.
func TestGoodJWTsBesideBadOnesOverHTTP2(t *testing.T) {
	t.Parallel()
	began := time.Now()
	p := authtest.New(t)
	c := withProvider(t, p, testConfig())
	c.MaxConnections = 1024 // the client connects for each of its first requests, until one connection is there
	_, trust := withTLS(t, &c)
	s := start(t, c)
	ask := func(client *http.Client, token string) (*http.Response, error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "https://plants.example/plants/1", nil)
		if err != nil {
			return nil, err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := client.Do(request)
		if err == nil {
			answer.Body.Close()
		}
		return answer, err
	}
	_, foreign, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	known := p.Token(t, "forger")
	bad := []string{
		known[:strings.LastIndexByte(known, '.')+1] + base64.RawURLEncoding.EncodeToString(make([]byte, ed25519.SignatureSize)),
		authtest.SignWith(t, jose.JSONWebKey{Key: foreign, KeyID: "forged", Algorithm: "EdDSA"}, p.Claims("forger", nil), nil),
	}
	const connections, streams, goods = 2, 60, 20
	var floods []*http.Client
	var flood, good sync.WaitGroup
	var stop atomic.Bool
	var refused atomic.Int64
	for range connections {
		client := tlsClient(t, s.public, trust, true)
		floods = append(floods, client)
		for i := range streams {
			flood.Go(func() {
				for n := 0; !stop.Load(); n++ {
					answer, err := ask(client, bad[(i+n)%len(bad)])
					if err != nil || answer.Proto != "HTTP/2.0" || answer.StatusCode != 401 && answer.StatusCode != 429 && answer.StatusCode != 503 {
						t.Errorf("a bad JWT: %v, %v; want 401, 429 or 503 by HTTP/2", answer, err)
						return
					}
					refused.Add(1)
				}
			})
		}
	}
	for refused.Load() < 2*connections*streams && !t.Failed() {
		time.Sleep(time.Millisecond)
	}
	for i := range 2 * connections {
		client := tlsClient(t, s.public, trust, true)
		if i < connections {
			client = floods[i] // on the connection of bad ones
		}
		good.Go(func() { // each time another JWT, which has to be verified
			for n := range goods {
				token := p.Sign(t, p.Claims("shop", map[string]any{"jti": fmt.Sprint(i, " ", n)}), nil)
				answer, err := ask(client, token)
				if err != nil || answer.StatusCode != 204 {
					t.Errorf("a good JWT beside bad ones: %v, %v; want 204", answer, err)
					return
				}
			}
		})
	}
	good.Wait()
	stop.Store(true)
	flood.Wait()
	if got := p.Fetches.Load(); got > 2+int64(time.Since(began)/(10*time.Second)) {
		t.Errorf("the provider was asked %d times, want once in 10 s", got)
	}
}
