package auth

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
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

func newTestVerifier(s *source, i Issuer) *Verifier {
	return newVerifier(i, &keyring{fetch: s.fetch, log: slog.New(slog.DiscardHandler)})
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
		v.wantLater(t, second, 9*time.Second)
		time.Sleep(9 * time.Second)
		v.want(t, second, nil)
	})
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
		known := s.provider.Token(t, "shop")
		s.provider.Rotate(t, "second")
		second := s.provider.Token(t, "shop")
		time.Sleep(20*time.Minute + 6*time.Second) // a fetch failed a second ago
		began := time.Now()
		v.want(t, known, nil)
		v.wantLater(t, second, 4*time.Second)
		if took := time.Since(began); took > 0 {
			t.Errorf("two JWTs took %s, want no wait", took)
		}
		time.Sleep(4 * time.Second)
		v.want(t, second, ErrKeysUnknown)
		if took := time.Since(began); took != 9*time.Second {
			t.Errorf("the next fetch failed after %s, want 4 s until it began and its 5 s", took)
		}
		s.down.Store(false)
		s.takes.Store(0)
		time.Sleep(fetchEvery)
		v.want(t, second, nil)
	})
}

// Keys are fetched every four minutes, and no good JWT waits for that. A JWT whose key was
// withdrawn is accepted until the next fetch, and where it was verified just before, while that
// is remembered.
func TestWithdrawnKeysExpire(t *testing.T) {
	simulate(t, func(t *testing.T, s *source, v *Verifier) {
		wantFetches := func(want int64) {
			t.Helper()
			if got := s.fetches.Load(); got != want {
				t.Errorf("the issuer was asked %d times, want %d", got, want)
			}
		}
		s.takes.Store(int64(time.Second))
		stolen, known := s.provider.Token(t, "thief"), s.provider.Token(t, "shop")
		const before = 4*time.Minute - fetchEvery - time.Second // a second
		ending := s.provider.Sign(t, s.provider.Claims("shop", map[string]any{"exp": time.Now().Add(before + 2*time.Second - leeway).Unix()}), nil)
		s.provider.Rotate(t, "second")
		s.provider.Withdraw()
		time.Sleep(before)
		v.want(t, stolen, nil)
		v.want(t, ending, nil)
		wantFetches(1)
		time.Sleep(1500 * time.Millisecond)
		wantFetches(2)
		began := time.Now()
		v.want(t, known, nil)
		if took := time.Since(began); took > 0 {
			t.Errorf("during a fetch, a JWT with a known key took %s, want no wait", took)
		}
		time.Sleep(1500 * time.Millisecond)
		v.want(t, s.provider.Token(t, "shop"), nil)
		v.want(t, stolen, nil)
		v.want(t, ending, ErrInvalidToken)
		wantFetches(2)
		time.Sleep(2 * time.Second)
		v.want(t, stolen, ErrKeysUnknown)
		time.Sleep(fetchEvery)
		v.want(t, stolen, ErrInvalidToken)

		s.empty.Store(true) // the issuer withdraws its last key
		time.Sleep(4*time.Minute + 2*fetchEvery)
		v.want(t, s.provider.Token(t, "shop"), ErrInvalidToken)
	})
}

func TestProblemsWithKeysAreLoggedOnce(t *testing.T) {
	simulate(t, func(t *testing.T, s *source, v *Verifier) {
		var log strings.Builder
		v.keys = &keyring{fetch: s.fetch, log: slog.New(slog.NewTextHandler(&log, nil))}
		for i := range 9 {
			s.down.Store(i < 3)
			s.empty.Store(i < 6)
			_, _ = v.Authenticate(t.Context(), s.provider.Token(t, "shop"))
			time.Sleep(fetchEvery)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		for i, want := range []string{"the identity provider's keys can't be fetched: connection refused", "the identity provider has no key that could sign", "the identity provider's keys are known"} {
			if len(lines) != 3 || !strings.Contains(lines[i], want) {
				t.Fatalf("got %q, want three lines, and %q in line %d", lines, want, i+1)
			}
		}
	})
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
	files := make(fstest.MapFS)
	server := httptest.NewUnstartedServer(http.FileServerFS(files))
	defer server.Close()
	url := "http://" + server.Listener.Addr().String()
	discovery := func(issuer, jwks string) string {
		return fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, issuer, jwks)
	}
	const one, none = "keys: 1, error: <nil>", "keys: 0, error: <nil>"
	tests := map[string]struct {
		discovery string // empty: the keys are at /NAME/keys
		keys      string
		want      string // or a part of the error
	}{
		"good":       {"", keys(public, ""), one},
		"sig":        {"", keys(public, "sig"), one},
		"discovered": {discovery(url+"/discovered", url+"/discovered/keys"), keys(public, ""), one},
		"enc":        {"", keys(public, "enc"), none},
		"private":    {"", keys(private, ""), none},
		"withdrawn":  {"", `{"keys":[]}`, none},
		"no set":     {"", `{}`, "not a set of keys"},
		"html":       {"", "<html>", "invalid character '<' looking for beginning of value"},
		"absent":     {"", "", "404 Not Found"},
		"moved":      {"", "", "301 Moved Permanently"},
		"nowhere":    {"-", "", "discovery: 404 Not Found: "},
		"other":      {discovery("https://other.example", url+"/good/keys"), "", `discovery: oidc: issuer URL provided to client ("` + url + `/other") did not match`},
		"plain":      {discovery(url+"/plain", "http://idp.example/keys"), "", `discovery: jwks_uri: "http://idp.example/keys" is not an https URL`},
		"file":       {discovery(url+"/file", "file:///etc/passwd"), "", `discovery: jwks_uri: "file:///etc/passwd" is not an https URL`},
	}
	for name, tt := range tests {
		if tt.keys != "" {
			files[name+"/keys"] = &fstest.MapFile{Data: []byte(tt.keys)}
		}
		if strings.HasPrefix(tt.discovery, "{") {
			files[name+"/.well-known/openid-configuration"] = &fstest.MapFile{Data: []byte(tt.discovery)}
		}
	}
	files["moved/keys/index.html"] = files["good/keys"]
	server.Start()
	for name, tt := range tests {
		jwks := url + "/" + name + "/keys"
		if tt.discovery != "" {
			jwks = ""
		}
		found, err := newIssuersKeys(url+"/"+name, jwks).fetch(t.Context())
		if got := fmt.Sprintf("keys: %d, error: %v", len(found), err); !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

// Errors of a fetch or a setting leave out the parts of a URL that may be secret.
func TestKeyErrorsLeaveOutSecretsOfTheURL(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	fetch := func(issuer, jwks string) error {
		_, err := newIssuersKeys(issuer, jwks).fetch(t.Context())
		return err
	}
	const issuer, closed = "https://login.example", "http://svc:hunter2@127.0.0.1:1/keys?token=sekrit"
	for name, err := range map[string]error{
		"status":     fetch(issuer, strings.Replace(server.URL, "://", "://svc:hunter2@", 1)+"/keys?token=sekrit"),
		"refused":    fetch(issuer, closed),
		"discovery":  fetch(closed, ""),
		"unreadable": fetch(issuer, "http://svc:hunter2@[::1?token=sekrit"),
		"plain":      CheckURL("http://svc:hunter2@idp/keys?token=sekrit", "https"),
		"no URL":     CheckURL("http://svc:hunter2@[::1?token=sekrit", "https"),
		"user":       CheckIssuer("https://svc:hunter2@idp"),
		"query":      CheckIssuer("https://idp/?token=sekrit"),
		"fragment":   CheckIssuer("https://idp/#sekrit"),
	} {
		if err == nil || strings.Contains(err.Error(), "svc") || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "sekrit") {
			t.Errorf("%s: %v; want an error without a secret", name, err)
		}
	}
	if err := CheckIssuer("https://login.example/realms/shop"); err != nil {
		t.Errorf("CheckIssuer: %v, want none", err)
	}
}
