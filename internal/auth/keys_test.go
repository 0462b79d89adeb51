package auth

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"plantstore/internal/auth/authtest"
)

// A source is an issuer whose keys are fetched in simulated time.
type source struct {
	provider *authtest.Provider
	fetches  atomic.Int64
	takes    atomic.Int64 // nanoseconds
	down     atomic.Bool
	empty    atomic.Bool
}

func (s *source) fetch(ctx context.Context) ([]jose.JSONWebKey, error) {
	s.fetches.Add(1)
	var set struct{ Keys []json.RawMessage }
	if err := json.Unmarshal(s.provider.JWKS(), &set); err != nil {
		return nil, err
	}
	if takes := time.Duration(s.takes.Load()); takes > 0 {
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if s.down.Load() {
		return nil, errors.New("connection refused")
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) == nil && !s.empty.Load() {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

const ttl = 5 * time.Second

func newTestVerifier(s *source, i Issuer) *Verifier {
	return newVerifier(i, ttl, &keyring{fetch: s.fetch, log: slog.New(slog.DiscardHandler)})
}

// simulate runs a test in simulated time, a while after the keys were first fetched.
func simulate(t *testing.T, test func(t *testing.T, s *source, v *Verifier)) {
	t.Helper()
	t.Parallel()
	provider := authtest.New(t)
	synctest.Test(t, func(t *testing.T) {
		s := &source{provider: provider}
		v := newTestVerifier(s, Issuer{URL: provider.URL, Audiences: []string{authtest.Audience}, Claim: "sub"})
		time.Sleep(fetchEvery)
		test(t, s, v)
		synctest.Wait()
	})
}

// want authenticates and compares the error.
func (v *Verifier) want(t *testing.T, token string, want error) {
	t.Helper()
	if _, err := v.Authenticate(t.Context(), token); !errors.Is(err, want) {
		t.Errorf("Authenticate: %v, want %v", err, want)
	}
}

// wantLater checks when a JWT that can't be verified now may be tried again.
func (v *Verifier) wantLater(t *testing.T, token string, want time.Duration) {
	t.Helper()
	_, err := v.Authenticate(t.Context(), token)
	later, ok := errors.AsType[interface {
		error
		RetryAfter() time.Duration
	}](err)
	if !ok || later.RetryAfter() != want {
		t.Errorf("Authenticate: %#v, want an error after which to wait %s", err, want)
	}
}

func TestUnknownKeyIsFetched(t *testing.T) {
	simulate(t, func(t *testing.T, s *source, v *Verifier) {
		forged := authtest.SignWith(t, authtest.NewKey(t, "forged"), s.provider.Claims("forger", nil), nil)
		v.want(t, forged, ErrInvalidToken) // the issuer was asked for keys
		time.Sleep(time.Second)
		s.provider.Rotate(t, "second")
		second := s.provider.Token(t, "shop")
		v.want(t, second, ErrKeysUnknown) // the issuer was asked before it had that key
		v.wantLater(t, second, fetchEvery-time.Second)
		time.Sleep(fetchEvery)
		v.want(t, second, nil)
		s.provider.Rotate(t, "third")
		time.Sleep(fetchEvery)
		v.want(t, s.provider.Token(t, "shop"), nil)
		v.want(t, second, nil)
	})
}

// An issuer publishes each key a while before it signs with it. None of its JWTs has to wait
// for keys, and none is rejected.
func TestKeyRotationWithOverlapRejectsNoJWT(t *testing.T) {
	for name, flood := range map[string]bool{"alone": false, "beside made-up keys": true} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(t *testing.T, s *source, v *Verifier) {
				signs := authtest.NewKey(t, "0")
				s.provider.Use(signs)
				v.want(t, authtest.SignWith(t, signs, s.provider.Claims("shop", nil), nil), nil)
				s.takes.Store(int64(time.Second))
				const every = 5 * time.Second // a JWT comes
				for kid := range 3 {
					s.provider.Withdraw() // the one before
					next := authtest.NewKey(t, fmt.Sprint(kid+1))
					s.provider.Use(next)
					for i := range (refreshEvery + 2*every) / every {
						if flood {
							forged := authtest.SignWith(t, authtest.NewKey(t, "forged"), s.provider.Claims("forger", nil), nil)
							go v.Authenticate(t.Context(), forged)
						}
						began := time.Now()
						v.want(t, authtest.SignWith(t, signs, s.provider.Claims("shop", map[string]any{"jti": fmt.Sprint(kid, i)}), nil), nil)
						if took := time.Since(began); took > 0 {
							t.Errorf("a JWT by key %s took %s, want no wait", signs.KeyID, took)
						}
						time.Sleep(every)
					}
					signs = next
				}
			})
		})
	}
}

// A key is for one algorithm if it says so (RFC 7517, 4.4).
func TestKeyOfAnotherAlgorithmIsNotUsed(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	simulate(t, func(t *testing.T, s *source, v *Verifier) {
		for algorithm, want := range map[jose.SignatureAlgorithm]error{jose.PS256: ErrInvalidToken, jose.RS256: nil, "": nil} {
			kid := "for " + string(algorithm)
			s.provider.Use(jose.JSONWebKey{Key: key, KeyID: kid, Algorithm: string(algorithm)})
			time.Sleep(fetchEvery)
			v.want(t, authtest.SignWith(t, jose.JSONWebKey{Key: key, KeyID: kid, Algorithm: string(jose.RS256)}, s.provider.Claims("shop", nil), nil), want)
		}
	})
}

// An issuer may replace a key and keep its name. Then good JWTs are rejected for at most ten
// seconds, and forged ones always. The keys are not fetched more often than usual.
func TestKeyReplacedUnderItsNameIsFetched(t *testing.T) {
	simulate(t, func(t *testing.T, s *source, v *Verifier) {
		key := authtest.NewKey(t, "same")
		forge := func() string { return authtest.SignWith(t, key, s.provider.Claims("forger", nil), nil) }
		s.provider.Rotate(t, "same")
		v.want(t, s.provider.Token(t, "shop"), nil)
		v.want(t, forge(), ErrInvalidToken)
		s.provider.Withdraw()
		s.provider.Rotate(t, "same")
		s.provider.Withdraw()
		fresh := s.provider.Token(t, "shop")
		v.want(t, fresh, ErrInvalidToken) // the keys were fetched a moment ago
		time.Sleep(fetchEvery)
		v.want(t, fresh, nil)
		before := s.fetches.Load()
		for range 50 {
			v.want(t, forge(), ErrInvalidToken)
		}
		if got := s.fetches.Load() - before; got > 1 {
			t.Errorf("forged JWTs had the keys fetched %d times within a moment, want once at most", got)
		}
		v.want(t, s.provider.Token(t, "other"), nil)
	})
}

func TestKnownKeysOutliveAnOutageOfTheIssuer(t *testing.T) {
	simulate(t, func(t *testing.T, s *source, v *Verifier) {
		s.down.Store(true)
		s.takes.Store(int64(time.Hour))
		for range 20 {
			v.want(t, s.provider.Token(t, "shop"), nil)
			time.Sleep(time.Minute)
		}
		known := s.provider.Token(t, "shop")
		s.provider.Rotate(t, "second")
		second := s.provider.Token(t, "shop")
		time.Sleep(fetchEvery)
		began := time.Now()
		v.want(t, second, ErrKeysUnknown)
		if took := time.Since(began); took != fetchTimeout {
			t.Errorf("it took %s to find out that the issuer is silent, want %s", took, fetchTimeout)
		}
		began = time.Now()
		v.want(t, second, ErrKeysUnknown)
		v.wantLater(t, second, fetchEvery-fetchTimeout)
		v.want(t, known, nil)
		if took := time.Since(began); took > 0 {
			t.Errorf("the next ones took %s, want no wait", took)
		}
		s.down.Store(false)
		s.takes.Store(0)
		time.Sleep(fetchEvery)
		v.want(t, second, nil)
	})
}

func TestWithdrawnKeysExpire(t *testing.T) {
	simulate(t, func(t *testing.T, s *source, v *Verifier) {
		stolen := s.provider.Sign(t, s.provider.Claims("thief", nil), nil)
		s.provider.Rotate(t, "second")
		s.provider.Withdraw()
		v.want(t, stolen, nil)
		time.Sleep(refreshEvery)
		good := s.provider.Token(t, "shop")
		v.want(t, good, nil) // and has the keys fetched
		time.Sleep(ttl)
		v.want(t, stolen, ErrKeysUnknown)
		time.Sleep(fetchEvery)
		v.want(t, stolen, ErrInvalidToken)
		v.want(t, good, nil)
	})
}

// After a pause, keys that were withdrawn meanwhile are not used, not even for a moment. An
// issuer that is down delays only the first JWT.
func TestKeysWithdrawnInAPauseAreNotUsed(t *testing.T) {
	simulate(t, func(t *testing.T, s *source, v *Verifier) {
		stolen := s.provider.Sign(t, s.provider.Claims("thief", nil), nil)
		s.provider.Rotate(t, "second")
		s.provider.Withdraw()
		s.takes.Store(int64(time.Second))
		time.Sleep(maxAge)
		v.want(t, stolen, ErrInvalidToken)
		good := s.provider.Token(t, "shop")
		v.want(t, good, nil)

		s.down.Store(true)
		time.Sleep(maxAge)
		for i, want := range []time.Duration{time.Second, 0, 0} {
			good := s.provider.Token(t, "shop")
			began := time.Now()
			v.want(t, good, nil)
			if took := time.Since(began); took != want {
				t.Errorf("JWT %d took %s while the issuer is down, want %s", i, took, want)
			}
			time.Sleep(fetchEvery)
		}

		// Once the issuer is up again, its earlier outage does not make old keys valid.
		s.down.Store(false)
		stolen = s.provider.Sign(t, s.provider.Claims("thief", nil), nil)
		s.provider.Rotate(t, "third")
		s.provider.Withdraw()
		time.Sleep(maxAge)
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() { v.want(t, stolen, ErrInvalidToken) })
		}
		both.Wait()
	})
}

// An issuer may withdraw its last key.
func TestIssuerMayWithdrawItsLastKey(t *testing.T) {
	simulate(t, func(t *testing.T, s *source, v *Verifier) {
		stolen := s.provider.Sign(t, s.provider.Claims("thief", nil), nil)
		v.want(t, stolen, nil)
		s.empty.Store(true)
		time.Sleep(maxAge)
		v.want(t, stolen, ErrInvalidToken)
		s.empty.Store(false)
		time.Sleep(fetchEvery)
		v.want(t, stolen, nil)
	})
}

// Good JWTs alone cause no fetch of keys. Keys are only fetched now and then, as the issuer may
// withdraw some.
func TestGoodJWTsFetchNoKeys(t *testing.T) {
	simulate(t, func(t *testing.T, s *source, v *Verifier) {
		for range 2 * refreshEvery / fetchEvery {
			v.want(t, s.provider.Token(t, "shop"), nil)
			time.Sleep(fetchEvery)
		}
		if got := s.fetches.Load(); got != 3 {
			t.Errorf("the issuer was asked %d times in %s, want 3", got, 2*refreshEvery)
		}
	})
}

// While a JWT is remembered, its signature is not checked.
func TestVerifiedJWTsAreCached(t *testing.T) {
	simulate(t, func(t *testing.T, s *source, v *Verifier) {
		token := s.provider.Token(t, "shop")
		last := s.provider.Sign(t, s.provider.Claims("shop", map[string]any{"exp": time.Now().Add(2*time.Second - leeway).Unix()}), nil)
		v.want(t, token, nil)
		v.want(t, last, nil)
		synctest.Wait()
		v.keys.keys = nil // nothing can be verified any more
		s.down.Store(true)
		time.Sleep(ttl - time.Second)
		v.want(t, token, nil)
		v.want(t, last, ErrInvalidToken)
		time.Sleep(time.Second)
		v.want(t, token, ErrKeysUnknown)
	})
}

func TestProblemsWithKeysAreLoggedOnce(t *testing.T) {
	simulate(t, func(t *testing.T, s *source, v *Verifier) {
		var log strings.Builder
		v.keys = &keyring{fetch: s.fetch, log: slog.New(slog.NewTextHandler(&log, nil))}
		for i := range 6 {
			s.down.Store(i < 3)
			_, _ = v.Authenticate(t.Context(), s.provider.Token(t, "shop"))
			time.Sleep(fetchEvery)
		}
		for _, want := range []string{"the identity provider's keys can't be fetched: connection refused", "the identity provider's keys are known"} {
			if got := strings.Count(log.String(), want); got != 1 {
				t.Errorf("the log says %d times %q, want it once:\n%s", got, want, log.String())
			}
		}
	})
}

// A principal with one of our tokens can't have the name of a principal with a JWT.
func TestPrincipalsOfJWTsAndTokensShareNoName(t *testing.T) {
	t.Parallel()
	migration, err := os.ReadFile("../../migrations/00003_principals.sql")
	if err != nil {
		t.Fatal(err)
	}
	rule := regexp.MustCompile(`name ~ '(\^[^']+\$)' OR starts_with\(name, '([^']+)'\)`).FindStringSubmatch(string(migration))
	if rule == nil || rule[2] != JWTPrefix || regexp.MustCompile(rule[1]).MatchString(JWTPrefix+"shop") {
		t.Errorf("the migration's rule for names is %q, want one that keeps %q for JWTs", rule, JWTPrefix)
	}
	for name, want := range map[string]bool{JWTPrefix + "shop": true, JWTPrefix: false, "shop": false, JWTPrefix + "a\n": false} {
		if got := ComesWithJWT(name); got != want {
			t.Errorf("ComesWithJWT(%q): %v, want %v", name, got, want)
		}
	}
}

// CheckURL rejects a URL if others could replace the keys on their way.
func TestCheckURL(t *testing.T) {
	t.Parallel()
	https, both := []string{"https"}, []string{"https", "file"}
	for _, tt := range []struct {
		schemes []string
		good    bool
		urls    []string
	}{
		{https, true, []string{"https://login.example/realms/shop", "http://127.0.0.1:8080", "http://localhost/x", "http://[::1]:80/"}},
		{https, false, []string{"http://login.example", "http://localhost.example", "login.example", "https://", "file:///etc/passwd", "", "https:\n//x", "ftp://127.0.0.1/"}},
		{both, true, []string{"file:///etc/jwks.json", "file:/etc/jwks.json"}},
		{both, false, []string{"file://etc/jwks.json", "file:jwks.json", "/etc/jwks.json", "login.example/keys", "http://login.example"}},
	} {
		for _, url := range tt.urls {
			if err := CheckURL(url, tt.schemes...); (err == nil) != tt.good {
				t.Errorf("CheckURL(%q, %q): %v, want it good: %v", url, tt.schemes, err, tt.good)
			}
		}
	}
}

func TestFetchedKeysAreValidated(t *testing.T) {
	t.Parallel()
	private := authtest.NewKey(t, "")
	public := private.Public()
	keys := func(key jose.JSONWebKey, use string) string {
		key.Use = use
		set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key}})
		if err != nil {
			t.Fatal(err)
		}
		return string(set)
	}
	var answers sync.Map // path to body
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := answers.Load(r.URL.Path)
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, body.(string))
	}))
	defer server.Close()
	discovery := func(issuer, jwks string) string {
		return fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, issuer, jwks)
	}
	const one, none = "keys: 1, error: <nil>", "keys: 0, error: <nil>"
	for name, tt := range map[string]struct {
		discovery string // empty: the keys are at /NAME/keys
		keys      string
		want      string // or a part of the error
	}{
		"good":       {"", keys(public, ""), one},
		"sig":        {"", keys(public, "sig"), one},
		"discovered": {discovery(server.URL+"/discovered", server.URL+"/discovered/keys"), keys(public, ""), one},
		"enc":        {"", keys(public, "enc"), none},
		"private":    {"", keys(private, ""), none},
		"withdrawn":  {"", `{"keys":[]}`, none},
		"no set":     {"", `{}`, "not a set of keys"},
		"html":       {"", "<html>", "invalid character '<' looking for beginning of value"},
		"large":      {"", strings.Repeat(" ", maxKeys) + keys(public, ""), "EOF"},
		"absent":     {"", "", "404 Not Found"},
		"nowhere":    {"-", "", "discovery: 404 Not Found: "},
		"other":      {discovery("https://other.example", server.URL+"/good/keys"), "", `discovery: oidc: issuer URL provided to client ("` + server.URL + `/other") did not match`},
		"plain":      {discovery(server.URL+"/plain", "http://idp.example/keys"), "", `discovery: jwks_uri: "http://idp.example/keys" is not an https URL`},
		"file":       {discovery(server.URL+"/file", "file:///etc/passwd"), "", `discovery: jwks_uri: "file:///etc/passwd" is not an https URL`},
	} {
		base := server.URL + "/" + name
		if tt.keys != "" {
			answers.Store("/"+name+"/keys", tt.keys)
		}
		jwks := base + "/keys"
		if tt.discovery != "" {
			jwks = ""
		}
		if strings.HasPrefix(tt.discovery, "{") {
			answers.Store("/"+name+"/.well-known/openid-configuration", tt.discovery)
		}
		found, err := newIssuersKeys(base, jwks).fetch(t.Context())
		if got := fmt.Sprintf("keys: %d, error: %v", len(found), err); !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

// Errors of a fetch or a setting leave out the parts of a URL that may be secret.
func TestKeyErrorsLeaveOutSecretsOfTheURL(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/no":
			http.Error(w, "no", http.StatusForbidden)
		case "/none":
			io.WriteString(w, `{}`)
		case "/elsewhere":
			http.Redirect(w, r, r.URL.String(), http.StatusFound)
		case "/silence":
			panic(http.ErrAbortHandler)
		}
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	for _, path := range []string{"/no", "/none", "/elsewhere", "/silence", "/nonsense"} {
		_, err := newIssuersKeys("https://login.example", "http://svc:hunter2@"+host+path+"?token=sekrit").fetch(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), server.URL+path+": ") {
			t.Errorf("fetch: %v, want an error of %s", err, server.URL+path)
		}
	}
	_, refused := newIssuersKeys("https://login.example", "http://svc:hunter2@127.0.0.1:1/keys?token=sekrit").fetch(t.Context())
	_, discovery := newIssuersKeys("http://svc:hunter2@127.0.0.1:1/?token=sekrit", "").fetch(t.Context())
	_, unreadable := newIssuersKeys("https://login.example", "http://svc:hunter2@[::1?token=sekrit").fetch(t.Context())
	for _, err := range []error{refused, discovery, unreadable, CheckURL("http://svc:hunter2@idp/keys?token=sekrit", "https"),
		CheckURL("http://svc:hunter2@[::1?token=sekrit", "https"), CheckIssuer("https://svc:hunter2@idp"), CheckIssuer("https://idp/?token=sekrit"), CheckIssuer("https://idp/#sekrit")} {
		if err == nil || strings.Contains(err.Error(), "svc") || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "sekrit") {
			t.Errorf("%v; want an error without a secret", err)
		}
	}
	if err := CheckIssuer("https://login.example/realms/shop"); err != nil {
		t.Errorf("CheckIssuer: %v, want none", err)
	}
}
