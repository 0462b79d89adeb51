package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
)

const (
	// fetchEvery limits how often keys are fetched. An unknown key may be a new one, but
	// anybody can make one up.
	fetchEvery = 10 * time.Second
	// refreshEvery is the age at which keys are fetched in any case, so that withdrawn keys
	// stop working.
	refreshEvery = 4 * time.Minute
	// fetchTimeout limits one fetch.
	fetchTimeout = 5 * time.Second
)

// A keyring caches the public keys of an issuer.
type keyring struct {
	fetch func(context.Context) ([]jose.JSONWebKey, error)
	log   *slog.Logger

	mu      sync.Mutex
	keys    []jose.JSONWebKey
	fetched time.Time     // when the fetch of keys began
	tried   time.Time     // when the last fetch began
	running chan struct{} // closed when the fetch under way ends; nil without one
	logged  string
}

// refresh fetches old keys from now on, whether or not JWTs come.
func (k *keyring) refresh() {
	k.get(false)
	time.AfterFunc(fetchEvery, k.refresh)
}

// get returns the keys, and when their fetch began. It starts a fetch if the keys are old, or
// if again says that they did not help. running is closed when the fetch under way ends.
func (k *keyring) get(again bool) (keys []jose.JSONWebKey, fetched time.Time, running <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if k.running == nil && (again || now.Sub(k.fetched) >= refreshEvery) && now.Sub(k.tried) >= fetchEvery {
		k.tried, k.running = now, make(chan struct{})
		go k.renew(now)
	}
	return k.keys, k.fetched, k.running
}

// renew fetches the keys, for all that wait. The old ones stay if it fails.
func (k *keyring) renew(began time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	keys, err := k.fetch(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	message, level := "the identity provider's keys are known", slog.LevelInfo
	if err != nil {
		message, level = fmt.Sprintf("the identity provider's keys can't be fetched: %.300s", err.Error()), slog.LevelWarn
	} else if k.keys, k.fetched = keys, began; len(keys) == 0 {
		message, level = "the identity provider has no key that could sign a token: no JWT is accepted", slog.LevelWarn
	}
	if message != k.logged {
		k.logged = message
		k.log.Log(ctx, level, message)
	}
	close(k.running)
	k.running = nil
}

// find tries the keys, and then fresh ones. It returns errNoKey if keys fetched after the
// call don't help, and ErrKeysUnknown if none could be fetched.
func (k *keyring) find(ctx context.Context, try func([]jose.JSONWebKey) (done bool)) error {
	start := time.Now()
	for again := false; ; again = true {
		keys, fetched, running := k.get(again)
		switch {
		case try(keys):
			return nil
		case !fetched.Before(start):
			return errNoKey
		case !again:
			continue
		case running == nil:
			return k.later()
		}
		select {
		case <-running:
		case <-ctx.Done():
			return k.later()
		}
	}
}

// later returns an ErrKeysUnknown with the time until the next fetch.
func (k *keyring) later() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &laterError{ErrKeysUnknown, time.Until(k.tried.Add(fetchEvery))}
}

// A laterError has when the keys can be fetched again.
type laterError struct {
	error
	wait time.Duration
}

func (e *laterError) Unwrap() error             { return e.error }
func (e *laterError) RetryAfter() time.Duration { return e.wait }

// An issuersKeys fetches the keys of an issuer.
type issuersKeys struct {
	issuer, jwks string // jwks may be empty: discovery
	client       *http.Client
}

func newIssuersKeys(issuer, jwks string) issuersKeys {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.RegisterProtocol("file", http.NewFileTransport(http.Dir("/")))
	return issuersKeys{issuer, jwks, &http.Client{
		Transport: transport,
		// No redirects: only the URL that was checked is fetched.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// fetch returns the keys that can sign a JWT. An issuer that withdrew its last key has none.
func (i issuersKeys) fetch(ctx context.Context) ([]jose.JSONWebKey, error) {
	from := i.jwks
	if from == "" {
		provider, err := oidc.NewProvider(oidc.ClientContext(ctx, i.client), i.issuer)
		if err != nil {
			return nil, fmt.Errorf("discovery: %w", withoutSecrets(err))
		}
		var found struct {
			JWKS string `json:"jwks_uri"`
		}
		if err := provider.Claims(&found); err != nil {
			return nil, fmt.Errorf("discovery: %w", err)
		}
		if err := CheckURL(found.JWKS, "https"); err != nil {
			return nil, fmt.Errorf("discovery: jwks_uri: %w", err)
		}
		from = found.JWKS
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, withoutSecrets(err)
	}
	answer, err := i.client.Do(request)
	if err != nil {
		return nil, withoutSecrets(err)
	}
	defer answer.Body.Close()
	from = ShownURL(from)
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", from, answer.Status)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&set); err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	if set.Keys == nil {
		return nil, fmt.Errorf("%s: not a set of keys", from)
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		// Kinds that are not known here are ignored (RFC 7517, 5).
		if json.Unmarshal(raw, &key) == nil && key.IsPublic() && (key.Use == "" || key.Use == "sig") {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// ShownURL returns a URL for the log, without user, password and query, which may be secrets.
func ShownURL(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "a URL that can't be read"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// withoutSecrets returns an error of net/http's client with the URL as ShownURL returns it.
func withoutSecrets(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("%s: %w", ShownURL(e.URL), e.Err)
	}
	return err
}

// CheckIssuer returns an error for a URL that fails CheckURL, or has a user, query or
// fragment (OpenID Connect Discovery, 3).
func CheckIssuer(text string) error {
	if err := CheckURL(text, "https"); err != nil {
		return err
	}
	if u, err := url.Parse(text); err != nil || u.User != nil || strings.ContainsAny(text, "?#") {
		return errors.New("an issuer's URL has no user, no query and no fragment")
	}
	return nil
}

// CheckURL returns an error for a URL from which keys can't safely be fetched. Allowed are
// the schemes, and http on this machine.
func CheckURL(text string, schemes ...string) error {
	u, err := url.Parse(text)
	if err != nil {
		return errors.New("not a URL")
	}
	ip := net.ParseIP(u.Hostname())
	local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	switch {
	case u.Scheme == "file" && slices.Contains(schemes, "file"):
		if u.Host != "" || u.Path == "" {
			return fmt.Errorf("%q is not the URL of a file: write three slashes and the whole path, as in file:///etc/keys.json", ShownURL(text))
		}
		return nil
	case u.Host != "" && (slices.Contains(schemes, u.Scheme) || u.Scheme == "http" && local):
		return nil
	}
	return fmt.Errorf("%q is not an %s URL: keys could be replaced on their way", ShownURL(text), schemes[0])
}
