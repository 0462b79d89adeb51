// Package authtest is an identity provider for tests: it issues JWTs, and publishes its
// keys over HTTP.
package authtest

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Audience is the audience of the provider's JWTs.
const Audience = "https://plants.example"

// A Provider issues JWTs.
type Provider struct {
	// URL is its name as an issuer.
	URL string

	mu   sync.Mutex
	keys []jose.JSONWebKey // the last one signs
}

// New starts a provider with one key, until the test is over.
func New(t testing.TB) *Provider {
	t.Helper()
	p := new(Provider)
	p.Rotate(t, "first")
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	p.URL = server.URL
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys"})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) { w.Write(p.JWKS()) })
	return p
}

// NewKey makes a key that signs with EdDSA.
func NewKey(t testing.TB, kid string) jose.JSONWebKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: key, KeyID: kid, Algorithm: string(jose.EdDSA), Use: "sig"}
}

// Rotate adds a key, with which the provider signs from now on.
func (p *Provider) Rotate(t testing.TB, kid string) {
	t.Helper()
	p.Use(NewKey(t, kid))
}

// Use adds a key of the test, which signs from now on.
func (p *Provider) Use(key jose.JSONWebKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = append(p.keys, key)
}

// Withdraw removes all keys but the last.
func (p *Provider) Withdraw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = p.keys[len(p.keys)-1:]
}

// JWKS returns the set of keys that the provider publishes (RFC 7517).
func (p *Provider) JWKS() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	// A key of an unknown kind has to be ignored.
	all := []any{map[string]string{"kty": "lattice", "kid": "tomorrow"}}
	for _, key := range p.keys {
		all = append(all, key.Public())
	}
	set, err := json.Marshal(map[string]any{"keys": all})
	if err != nil {
		panic(err) // the keys of this package can be marshalled
	}
	return set
}

// Claims returns the claims of a good JWT, some of them replaced by others.
func (p *Provider) Claims(subject string, others map[string]any) map[string]any {
	claims := map[string]any{"iss": p.URL, "aud": Audience, "sub": subject, "scope": "plants:delete",
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(claims, others)
	return claims
}

// Sign issues a JWT with claims, and headers beside alg, kid and typ at+jwt. A header that
// is nil is left out.
func (p *Provider) Sign(t testing.TB, claims, headers map[string]any) string {
	t.Helper()
	p.mu.Lock()
	key := p.keys[len(p.keys)-1]
	p.mu.Unlock()
	return SignWith(t, key, claims, headers)
}

// Token issues a good JWT.
func (p *Provider) Token(t testing.TB, subject string) string {
	t.Helper()
	return p.Sign(t, p.Claims(subject, nil), nil)
}

// SignWith issues a JWT with any key.
func SignWith(t testing.TB, key jose.JSONWebKey, claims any, headers map[string]any) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithType("at+jwt")
	for name, value := range headers {
		if value == nil {
			delete(options.ExtraHeaders, jose.HeaderKey(name))
			continue
		}
		options = options.WithHeader(jose.HeaderKey(name), value)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(key.Algorithm), Key: key}, options)
	if err != nil {
		t.Fatal(err)
	}
	payload, ok := claims.([]byte)
	if !ok {
		if payload, err = json.Marshal(claims); err != nil {
			t.Fatal(err)
		}
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}
