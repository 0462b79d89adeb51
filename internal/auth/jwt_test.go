package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"plantstore/internal/auth/authtest"
	"plantstore/internal/plant"
	"plantstore/internal/readme"
)

// verifierOf accepts the JWTs of a provider.
func verifierOf(p *authtest.Provider) *Verifier {
	return newTestVerifier(&source{provider: p}, Issuer{URL: p.URL, Audiences: []string{authtest.Audience}, Claim: "sub"})
}

func TestGoodJWTsAreAccepted(t *testing.T) {
	t.Parallel()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	both := []string{"plants:delete", "plants:read"}
	for _, tt := range []struct {
		name    string
		key     any // nil: the provider's first
		alg     jose.SignatureAlgorithm
		kid     string
		claims  map[string]any // a duration: from the moment at which the JWT is made
		headers map[string]any
		subject string   // empty: shop
		scopes  []string // nil: plants:delete
	}{
		{name: "EdDSA"},
		{name: "ES256", key: ecKey, alg: jose.ES256, kid: "ec"},
		{name: "RS256", key: rsaKey, alg: jose.RS256, kid: "rsa"},
		{name: "without kid", key: ecKey, alg: jose.ES256},
		{name: "typ with its tree", headers: map[string]any{"typ": "application/AT+JWT"}},
		{name: "subject of the usual characters", claims: map[string]any{"sub": "auth0|64 (x)@~"}, subject: "auth0|64 (x)@~"},
		{name: "longest subject", claims: map[string]any{"sub": strings.Repeat("s", 255)}, subject: strings.Repeat("s", 255)},
		{name: "expired within the leeway", claims: map[string]any{"exp": -20 * time.Second}},
		{name: "not yet within the leeway", claims: map[string]any{"nbf": 20 * time.Second}},
		{name: "scopes", claims: map[string]any{"scope": "plants:read plants:delete"}, scopes: both},
		{name: "scp as a list", claims: map[string]any{"scope": nil, "scp": both}, scopes: both},
		{name: "scp as a text", claims: map[string]any{"scope": nil, "scp": "plants:read plants:delete"}, scopes: both},
		{name: "scopes that agree", claims: map[string]any{"scope": "plants:read plants:delete", "scp": both}, scopes: both},
		{name: "no scope", claims: map[string]any{"scope": nil}, scopes: []string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := authtest.New(t)
			if tt.key != nil {
				p.Use(jose.JSONWebKey{Key: tt.key, KeyID: tt.kid, Algorithm: string(tt.alg)})
			}
			for name, value := range tt.claims {
				if d, ok := value.(time.Duration); ok {
					tt.claims[name] = time.Now().Add(d).Unix()
				}
			}
			if tt.subject == "" {
				tt.subject = "shop"
			}
			if tt.scopes == nil {
				tt.scopes = []string{ScopeDelete}
			}
			got, err := verifierOf(p).Authenticate(t.Context(), p.Sign(t, p.Claims("shop", tt.claims), tt.headers))
			if err != nil || got.Name != JWTPrefix+tt.subject || !slices.Equal(got.Scopes, tt.scopes) {
				t.Errorf("principal %q with scopes %q, %v; want %q with %q", got.Name, got.Scopes, err, JWTPrefix+tt.subject, tt.scopes)
			}
		})
	}
}

// The last key signs each JWT correctly, except where the case's name says otherwise. The error
// names the fault, for the log.
func TestBadJWTsAreRejected(t *testing.T) {
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
	goodKey := authtest.NewKey(t, "known")
	p.Use(goodKey)
	v := verifierOf(p)

	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	claims := p.Claims("shop", nil)
	with := func(claims, headers map[string]any) string { // without those that are nil
		all := p.Claims("shop", claims)
		maps.DeleteFunc(all, func(_ string, value any) bool { return value == nil })
		return p.Sign(t, all, headers)
	}
	good := p.Token(t, "shop")
	header, rest, _ := strings.Cut(good, ".")
	payload, signature, _ := strings.Cut(rest, ".")
	decoded, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		t.Fatal(err)
	}
	twice := strings.Replace(string(decoded), `{`, `{"scope":"plants:read",`, 1)

	const wantAud = `want aud ["https://plants.example"], got `
	for _, tt := range []struct{ name, token, cause string }{
		{"alg none", part(map[string]string{"alg": "none", "typ": "JWT"}) + "." + payload + ".", ""},
		{"HS256 with the public key", authtest.SignWith(t, jose.JSONWebKey{Key: publicPEM, KeyID: "rsa", Algorithm: string(jose.HS256)}, claims, nil), `want alg RS256, ES256 or EdDSA, got "HS256"`},
		{"other issuer", with(map[string]any{"iss": "https://other.example"}, nil), `want iss "` + p.URL + `", got "https://other.example"`},
		{"no audience", with(map[string]any{"aud": nil}, nil), wantAud + `none`},
		{"typ of an identity", with(nil, map[string]any{"typ": "id+jwt"}), `want typ at+jwt, JWT or none, got "id+jwt"`},
		{"expired", with(map[string]any{"exp": time.Now().Add(-31 * time.Second).Unix()}, nil), "nbf none, iat "},
		{"never expires", with(map[string]any{"exp": nil}, nil), `want exp, got none`},
		{"not yet", with(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}, nil), ""},
		{"issued in the future", with(map[string]any{"iat": time.Now().Add(time.Hour).Unix()}, nil), ""},
		{"without its signature", header + "." + payload + ".", ""},
		{"signature of something else", header + "." + part(p.Claims("owner", nil)) + "." + signature, ""},
		{"foreign key, known kid", authtest.SignWith(t, authtest.NewKey(t, "known"), claims, nil), `want a signature with the issuer's key "known", got another`},
		{"key in the header: jwk", with(nil, map[string]any{"jwk": goodKey.Public()}), ""},
		{"key in the header: jku", with(nil, map[string]any{"jku": p.URL + "/keys"}), ""},
		{"key in the header: x5u", with(nil, map[string]any{"x5u": "https://other.example/cert"}), ""},
		{"critical header", with(nil, map[string]any{"crit": []string{"exp"}, "exp": 1}), ""},
		{"two scopes claims", with(map[string]any{"scp": []string{"plants:read"}}, nil), `want scope and scp to agree, got "plants:delete" and ["plants:read"]`},
		{"scope twice", authtest.SignWith(t, goodKey, []byte(twice), nil), ""},
		{"scope is a number", with(map[string]any{"scope": 1}, nil), `want a text or a list as scope, got 1`},
		{"sub empty", with(map[string]any{"sub": ""}, nil), `want 1 to 255 printable ASCII characters as sub, got ""`},
		{"sub is a number", with(map[string]any{"sub": 7}, nil), `its claims can't be read: json: cannot unmarshal number`},
		{"sub of 256 bytes", with(map[string]any{"sub": strings.Repeat("s", 256)}, nil), ""},
		{"sub with a control", with(map[string]any{"sub": "shop\nroot"}, nil), ""},
		{"sub of other letters", with(map[string]any{"sub": "b\u00fcro\u202e"}, nil), ""},
		{"no base64 of JSON", "a.b.c", "it can't be read"},
		{"other audiences", with(map[string]any{"aud": []string{"a", "b"}}, nil), wantAud + `["a","b"]`},
		{"a long audience", with(map[string]any{"aud": strings.Repeat("a", 300)}, nil), wantAud + `"` + strings.Repeat("a", 199) + `...`},
		{"a token as its audience", with(map[string]any{"aud": good}, nil), wantAud + `a token`},
		{"identity token of Amazon Cognito", with(map[string]any{"token_use": "id"}, nil), `want token_use access or none, got "id"`},
	} {
		got, err := v.Authenticate(t.Context(), tt.token)
		if !errors.Is(err, ErrInvalidToken) || got.Name != "" || !strings.Contains(err.Error(), tt.cause) || HasToken(err.Error()) {
			t.Errorf("%s: principal %q, %v; want none, and ErrInvalidToken with %q and no token", tt.name, got.Name, err, tt.cause)
		}
	}
	if _, err := v.Authenticate(t.Context(), good); err != nil {
		t.Errorf("the good JWT: %v", err)
	}
}

// Each JWT has the form of a real provider's. The settings are those in the manual.
func TestJWTsOfKnownProvidersAreAccepted(t *testing.T) {
	t.Parallel()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p := authtest.New(t)
	p.Use(jose.JSONWebKey{Key: rsaKey, KeyID: "k1", Algorithm: string(jose.RS256)})
	now, soon := time.Now().Unix(), time.Now().Add(time.Hour).Unix()
	type object = map[string]any
	type providersToken struct {
		typ       any
		claims    object
		principal string
	}
	const account = "ACCOUNT@PROJECT.iam.gserviceaccount.com"
	tokens := map[string]providersToken{
		"Amazon Cognito": {nil, object{"sub": "plantstore", "token_use": "access", "scope": "RESOURCE/plants:read RESOURCE/plants:delete", "auth_time": now,
			"iss": "https://cognito-idp.REGION.amazonaws.com/POOL", "exp": soon, "iat": now, "version": 2, "jti": "j", "client_id": "plantstore"}, "plantstore"},
		"Microsoft Entra": {"JWT", object{"aud": "plantstore", "iss": "https://login.microsoftonline.com/TENANT/v2.0", "iat": now, "nbf": now, "exp": soon, "aio": "E2", "azp": "shop",
			"azpacr": "1", "idtyp": "app", "oid": "o", "rh": "r", "roles": []string{"plants:delete"}, "sub": "o", "tid": "TENANT", "uti": "u", "ver": "2.0"}, "shop"},
		"Auth0": {"JWT", object{"iss": "https://TENANT.auth0.com/", "sub": "shop@clients", "aud": "plantstore", "iat": now, "exp": soon, "scope": "plants:delete",
			"gty": "client-credentials", "azp": "shop", "permissions": []string{"plants:delete"}}, "shop@clients"},
		"Keycloak": {"JWT", object{"exp": soon, "iat": now, "jti": "trrtcc:j", "iss": "https://HOST/realms/REALM", "aud": []string{"plantstore", "account"}, "sub": "s", "typ": "Bearer",
			"azp": "shop", "acr": "1", "realm_access": object{"roles": []string{"offline_access"}}, "scope": "profile plants:delete email",
			"client_id": "shop", "preferred_username": "service-account-shop"}, "s"},
		"Google service account": {"JWT", object{"iss": account, "sub": account, "aud": "plantstore", "iat": now, "exp": soon, "scope": "plants:delete"}, account},
		"Google Identity Platform": {"JWT", object{"iss": "https://securetoken.google.com/PROJECT", "aud": "plantstore", "scope": "plants:delete", "auth_time": now, "user_id": "s", "sub": "s",
			"iat": now, "exp": soon, "email": "a@example.com", "firebase": object{"sign_in_provider": "password"}}, "s"},
	}
	rows := readme.Table(t, "deploy/docs/configuration.md", "provider")
	if len(rows) != len(tokens) {
		t.Errorf("the manual has %d providers, want %d", len(rows), len(tokens))
	}
	for _, row := range rows {
		token := tokens[row[0]]
		v := newTestVerifier(&source{provider: p}, Issuer{URL: row[1], Audiences: []string{"another", "plantstore"}, AudienceClaim: row[2], ScopeClaim: row[3], Scope: row[4], Claim: row[5]})
		got, err := v.Authenticate(t.Context(), p.Sign(t, token.claims, map[string]any{"typ": token.typ}))
		if err != nil || got.Name != JWTPrefix+token.principal || !got.Has(ScopeDelete) {
			t.Errorf("%s: principal %q with scopes %q, %v; want %q with %s", row[0], got.Name, got.Scopes, err, JWTPrefix+token.principal, ScopeDelete)
		}
	}
}

// A scope of another resource allows nothing, even if it has the same name.
func TestScopeOfAnotherResourceAllowsNothing(t *testing.T) {
	t.Parallel()
	p := authtest.New(t)
	v := newTestVerifier(&source{provider: p}, Issuer{URL: p.URL, Audiences: []string{authtest.Audience}, Claim: "sub", ScopeClaim: "roles", Scope: "ours/plants:delete"})
	for roles, want := range map[string]bool{"ours/plants:delete": true, "plants:delete": false, "theirs/plants:delete": false, "": false} {
		got, err := v.Authenticate(t.Context(), p.Sign(t, p.Claims("shop", map[string]any{"roles": []string{roles}, "scope": "ours/plants:delete"}), nil))
		if err != nil || got.Has(ScopeDelete) != want {
			t.Errorf("roles %q: scopes %q, %v; want the scope to delete: %v", roles, got.Scopes, err, want)
		}
	}
}

func TestJWTsWithKeysFromAFile(t *testing.T) {
	t.Parallel()
	p := authtest.New(t)
	file := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(file, p.JWKS(), 0o600); err != nil {
		t.Fatal(err)
	}
	budget := plant.Budget{Most: 7, Period: time.Hour}
	v := NewVerifier(Issuer{URL: "https://login.example", JWKS: "file://" + file, Audiences: []string{authtest.Audience}, Claim: "client_id", Budget: budget},
		slog.New(slog.DiscardHandler))
	token := p.Sign(t, p.Claims("7", map[string]any{"iss": "https://login.example", "client_id": "back-office"}), nil)
	if got, err := v.Authenticate(t.Context(), token); err != nil || got.Name != "jwt:back-office" || got.Budget != budget {
		t.Errorf("principal %+v, %v; want jwt:back-office with the budget %v", got, err, budget)
	}
}

func TestNamesOfPrincipalsWithJWTs(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"jwt:shop": true, "jwt:": false, "shop": false, "jwt:a\n": false} {
		if got := ComesWithJWT(name); got != want {
			t.Errorf("ComesWithJWT(%q): %v, want %v", name, got, want)
		}
	}
}
