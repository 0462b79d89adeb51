package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
)

const (
	// fetchEvery is how often the keys of an issuer are asked for at the most. A
	// signature by a key that is not known may mean that there is a new one, and
	// anybody can send one.
	fetchEvery = 10 * time.Second
	// refreshEvery is how often keys are asked for again while JWTs come, so that those
	// that the issuer takes back end.
	refreshEvery = 4 * time.Minute
	// believedFor is how long keys are believed without asking again. No JWT came for a
	// while if they are older: then the first ones wait for the answer.
	believedFor = 5 * time.Minute
	// fetchTimeout bounds one fetch.
	fetchTimeout = 5 * time.Second
	// maxKeys bounds what is read of an issuer's answer, in bytes.
	maxKeys = 1 << 20
)

// A keyring has the public keys of an issuer, as far as they are known.
type keyring struct {
	fetch func(context.Context) ([]jose.JSONWebKey, error)
	log   *slog.Logger

	mu    sync.Mutex
	keys  []jose.JSONWebKey
	asked time.Time // when the fetch of keys began
	tried time.Time // when the last fetch began
	// running is closed when the fetch under way ends, and nil without one.
	running chan struct{}
	failed  bool   // the last fetch that ended did, and began less than refreshEvery before the next
	said    string // what was logged last
}

// look returns the keys, and when they were asked for. It starts a fetch if one is due, or
// if these keys did not help the caller (inVain). running is closed when the fetch under way
// ends, and old says that until then the keys are not to be believed. They are if the fetch
// before failed, less than refreshEvery ago: the issuer can't be reached.
func (k *keyring) look(inVain bool) (keys []jose.JSONWebKey, asked time.Time, running <-chan struct{}, old bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if k.running == nil && (inVain || now.Sub(k.asked) >= refreshEvery) && now.Sub(k.tried) >= fetchEvery {
		if now.Sub(k.tried) >= refreshEvery {
			k.failed = false // what happened then says nothing of now
		}
		k.tried, k.running = now, make(chan struct{})
		go k.renew(now)
	}
	return k.keys, k.asked, k.running, k.running != nil && !k.failed && now.Sub(k.asked) >= believedFor
}

// renew fetches the keys. Nobody who waits for them may end it for the others. Keys that
// are known stay where it fails.
func (k *keyring) renew(began time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	keys, err := k.fetch(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	said, level := "the identity provider's keys are known", slog.LevelInfo
	if k.failed = err != nil; k.failed {
		said, level = fmt.Sprintf("the identity provider's keys can't be read: %.300s", err.Error()), slog.LevelWarn
	} else if k.keys, k.asked = keys, began; len(keys) == 0 {
		said, level = "the identity provider has no key that could sign a token: no JWT is accepted", slog.LevelWarn
	}
	if said != k.said {
		k.said = said
		k.log.Log(ctx, level, said)
	}
	close(k.running)
	k.running = nil
}

// find tries the keys, and where none is the right one, fresh ones. It returns errNoKey
// only if the issuer was asked after the call and has no such key, and ErrKeysUnknown if
// it could not be asked; if it had been a moment before, ErrKeyUnknown.
func (k *keyring) find(ctx context.Context, try func([]jose.JSONWebKey) (done bool)) error {
	came := time.Now()
	for inVain := false; ; {
		keys, asked, running, old := k.look(inVain)
		switch {
		case old: // wait
		case try(keys):
			return nil
		case !asked.Before(came):
			return errNoKey
		case !inVain:
			inVain = true
			continue
		case running == nil && came.Sub(asked) < fetchEvery:
			return k.later(ErrKeyUnknown)
		case running == nil:
			return k.later(ErrKeysUnknown)
		}
		select {
		case <-running:
		case <-ctx.Done():
			return k.later(ErrKeysUnknown)
		}
	}
}

// later is an error that passes with the next fetch of keys at the earliest.
func (k *keyring) later(err error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &laterError{err, time.Until(k.tried.Add(fetchEvery))}
}

// A laterError is an ErrKeysUnknown that knows when the keys may be fetched again.
type laterError struct {
	error
	wait time.Duration
}

func (e *laterError) Unwrap() error { return e.error }

// RetryAfter is how long it takes until then.
func (e *laterError) RetryAfter() time.Duration { return e.wait }

// An issuersKeys fetches the keys of an issuer.
type issuersKeys struct {
	issuer, jwks string // jwks may be empty: then the issuer is asked where they are
	client       *http.Client
}

func newIssuersKeys(issuer, jwks string) issuersKeys {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.RegisterProtocol("file", http.NewFileTransport(http.Dir("/")))
	return issuersKeys{issuer, jwks, &http.Client{
		Transport: bounded{transport},
		// What was checked is where it is asked.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// bounded is a transport that lets nobody send more than maxKeys.
type bounded struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(answer.Body, maxKeys), answer.Body}
	}
	return answer, err
}

// fetch asks for the keys. It returns those that can sign a JWT, which may be none: the
// issuer may take back the last one.
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
		return nil, fmt.Errorf("%s: it is no set of keys", from)
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		// Others may be of kinds that are not known here (RFC 7517, 5).
		if json.Unmarshal(raw, &key) == nil && key.IsPublic() && (key.Use == "" || key.Use == "sig") {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// ShownURL is what may be told of a URL: not the user, the password or the query, any
// of which may be a secret.
func ShownURL(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "a URL that can't be read"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// withoutSecrets is an error of net/http's client, in which the URL is as ShownURL has it.
func withoutSecrets(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("%s: %w", ShownURL(e.URL), e.Err)
	}
	return err
}

// CheckIssuer returns an error for a URL at which no issuer can be: see CheckURL. Nor has
// it a user, a query or a fragment (OpenID Connect Discovery, 3).
func CheckIssuer(text string) error {
	if err := CheckURL(text, "https"); err != nil {
		return err
	}
	if u, err := url.Parse(text); err != nil || u.User != nil || strings.ContainsAny(text, "?#") {
		return errors.New("an issuer's URL has no user, no query and no fragment")
	}
	return nil
}

// CheckURL returns an error for a URL that keys can't safely be fetched from: it has to
// have one of the schemes, or to be http on this machine.
func CheckURL(text string, schemes ...string) error {
	u, err := url.Parse(text)
	if err != nil {
		return errors.New("it is no URL")
	}
	ip := net.ParseIP(u.Hostname())
	here := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	if slices.Contains(schemes, "file") && (u.Scheme == "file" || u.Scheme == "" && strings.HasPrefix(text, "/")) {
		if u.Scheme == "file" && u.Path != "" && (u.Host == "" || u.Host == "localhost") { // no other host would be asked
			return nil
		}
		whole := url.URL{Scheme: "file", Path: path.Join("/", u.Host, u.Opaque, u.Path)}
		return fmt.Errorf("%q is no URL of a file: that has three slashes and the whole path, as %s", ShownURL(text), &whole)
	}
	if u.Host != "" && (slices.Contains(schemes, u.Scheme) || u.Scheme == "http" && here) {
		return nil
	}
	return fmt.Errorf("%q is no %s URL: whoever is between could put in keys of their own", ShownURL(text), schemes[0])
}
