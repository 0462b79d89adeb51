package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	lru "github.com/hashicorp/golang-lru/v2"

	"plantstore/internal/plant"
)

// JWTPrefix begins the name of every principal with a JWT. The names of other principals
// have no colon.
const JWTPrefix = "jwt:"

// ErrKeysUnknown: a JWT can't be verified now, because its issuer's key for it is not known.
// The error has a method RetryAfter, which returns when the issuer can be asked again.
var ErrKeysUnknown = errors.New("the identity provider's keys are not known")

var errNoKey = errors.New("no such key")

const (
	// leeway is by how much clocks may differ.
	leeway = 30 * time.Second
	// maxRemembered limits how many verified JWTs are remembered.
	maxRemembered = 1024
	// maxSubject limits a principal's name at its issuer, in bytes (OpenID Connect Core, 2).
	maxSubject = 255
	// rememberFor is how long a verified JWT is not verified again, unless it expires.
	rememberFor = 5 * time.Second
)

// algorithms may sign a JWT: the usual ones that have a public key and no parameters to
// choose.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.EdDSA}

// An Issuer is an identity provider. The service accepts its JWTs.
type Issuer struct {
	URL    string       // the "iss" of its JWTs
	JWKS   string       // URL of its keys; empty: found by OpenID Connect discovery
	Claim  string       // the claim that names the principal, such as "sub"
	Budget plant.Budget // of deletions, of each principal

	Audiences     []string // a JWT for this service names one of them
	AudienceClaim string   // the claim that names it; empty: "aud"
	ScopeClaim    string   // the claim that has the scopes; empty or "scope": that or "scp"
	Scope         string   // the scope that allows deleting plants; empty: ScopeDelete
}

// A Verifier authenticates by JWTs of one issuer (RFC 7519, 8725 and 9068).
type Verifier struct {
	issuer     Issuer
	keys       *keyring
	remembered *lru.Cache[Digest, verified]
}

// A verified JWT is not verified again for a while.
type verified struct {
	principal   Principal
	at, expires time.Time
}

// NewVerifier makes a Verifier, which fetches the issuer's keys from now on.
func NewVerifier(issuer Issuer, log *slog.Logger) *Verifier {
	return newVerifier(issuer, &keyring{fetch: newIssuersKeys(issuer.URL, issuer.JWKS).fetch, log: log})
}

func newVerifier(issuer Issuer, keys *keyring) *Verifier {
	remembered, _ := lru.New[Digest, verified](maxRemembered) // fails only for a size that is not positive
	issuer.AudienceClaim = cmp.Or(issuer.AudienceClaim, "aud")
	issuer.ScopeClaim = cmp.Or(issuer.ScopeClaim, "scope")
	issuer.Scope = cmp.Or(issuer.Scope, ScopeDelete)
	v := &Verifier{issuer: issuer, keys: keys, remembered: remembered}
	v.keys.refresh()
	return v
}

// IsJWT reports whether a token has the shape of a JWT. No token of ours has a dot.
func IsJWT(token string) bool { return strings.Count(token, ".") == 2 }

// Authenticate returns the principal of a JWT. It returns ErrInvalidToken with the reason for
// one that is not acceptable, or ErrKeysUnknown.
func (v *Verifier) Authenticate(ctx context.Context, token string) (Principal, error) {
	digest, now := Digest(sha256.Sum256([]byte(token))), time.Now()
	if r, ok := v.remembered.Get(digest); ok && now.Sub(r.at) < rememberFor && now.Before(r.expires) {
		return r.principal, nil
	}
	principal, expires, err := v.verify(ctx, token, now)
	if err != nil {
		return Principal{}, err
	}
	v.remembered.Add(digest, verified{principal, now, expires})
	return principal, nil
}

// rejected returns ErrInvalidToken with a reason for the log. The reason may have a claim in
// it, never the token.
func rejected(format string, args ...any) error {
	return fmt.Errorf("%w: JWT: %s", ErrInvalidToken, fmt.Sprintf(format, args...))
}

// maxShown limits the logged text of a claim, in bytes.
const maxShown = 200

// shown returns a claim, or a value of the header, for the log.
func shown(claim any) string {
	if claim == nil {
		return "none"
	}
	text, err := json.Marshal(claim)
	switch {
	case err != nil:
		return "what can't be shown"
	case HasToken(string(text)):
		return "a token"
	case len(text) > maxShown:
		return strings.ToValidUTF8(string(text[:maxShown]), "") + "..."
	}
	return string(text)
}

// verify checks the claims first, which costs neither arithmetic nor a fetch of keys.
func (v *Verifier) verify(ctx context.Context, token string, now time.Time) (_ Principal, expires time.Time, _ error) {
	parsed, err := jwt.ParseSigned(token, algorithms)
	if e, ok := errors.AsType[*jose.ErrUnexpectedSignatureAlgorithm](err); ok {
		return Principal{}, expires, rejected("want alg RS256, ES256 or EdDSA, got %s", shown(e.Got))
	}
	if err != nil {
		return Principal{}, expires, rejected("it can't be read")
	}
	if err := checkHeader(parsed.Headers[0]); err != nil {
		return Principal{}, expires, err
	}
	var claims jwt.Claims
	var all map[string]any
	if err := parsed.UnsafeClaimsWithoutVerification(&claims, &all); err != nil {
		return Principal{}, expires, rejected("its claims can't be read: %.200s", err.Error())
	}
	if err := v.checkClaims(claims, all, now); err != nil {
		return Principal{}, expires, err
	}
	subject, _ := all[v.issuer.Claim].(string)
	if !isSubject(subject) {
		return Principal{}, expires, rejected("want 1 to 255 printable ASCII characters as %s, got %s", v.issuer.Claim, shown(all[v.issuer.Claim]))
	}
	scopes, err := v.scopesOf(all)
	if err != nil {
		return Principal{}, expires, err
	}
	if err := v.checkSignature(ctx, parsed); err != nil {
		return Principal{}, expires, err
	}
	return Principal{Name: JWTPrefix + subject, Scopes: scopes, Budget: v.issuer.Budget}, claims.Expiry.Time().Add(leeway), nil
}

// checkHeader rejects a JWT that is no access token, has its own key, or has critical
// extensions. Some issuers send no typ: then the audience decides.
func checkHeader(h jose.Header) error {
	if typ := h.ExtraHeaders[jose.HeaderType]; typ != nil {
		text, _ := typ.(string)
		switch strings.TrimPrefix(strings.ToLower(text), "application/") {
		case "at+jwt", "jwt":
		default:
			return rejected("want typ at+jwt, JWT or none, got %s", shown(typ))
		}
	}
	for _, name := range []jose.HeaderKey{"jku", "x5u", "crit"} {
		if _, ok := h.ExtraHeaders[name]; ok {
			return rejected("want a header without %s", name)
		}
	}
	if h.JSONWebKey != nil {
		return rejected("want a header without jwk")
	}
	return nil
}

// checkClaims rejects a JWT of another issuer, for another service or another time.
func (v *Verifier) checkClaims(claims jwt.Claims, all map[string]any, now time.Time) error {
	if claims.Issuer != v.issuer.URL {
		return rejected("want iss %q, got %s", v.issuer.URL, shown(all["iss"]))
	}
	audience := all[v.issuer.AudienceClaim]
	named, _ := texts(audience)
	if !slices.ContainsFunc(named, func(a string) bool { return slices.Contains(v.issuer.Audiences, a) }) {
		return rejected("want %s %q, got %s", v.issuer.AudienceClaim, v.issuer.Audiences, shown(audience))
	}
	// Amazon Cognito's identity tokens have no typ either.
	if use := all["token_use"]; use != nil && use != "access" {
		return rejected("want token_use access or none, got %s", shown(use))
	}
	if claims.Expiry == nil {
		return rejected("want exp, got none")
	}
	if err := claims.ValidateWithLeeway(jwt.Expected{Time: now}, leeway); err != nil {
		return rejected("want exp after %d, and nbf and iat before it; got exp %d, nbf %s, iat %s",
			now.Unix(), *claims.Expiry, shown(all["nbf"]), shown(all["iat"]))
	}
	return nil
}

// checkSignature verifies the signature with the issuer's keys. A JWT that names a key is
// tried with that key only (RFC 7515, 4.1.4).
func (v *Verifier) checkSignature(ctx context.Context, token *jwt.JSONWebToken) error {
	header := token.Headers[0]
	// wrong: a key of that name did not sign it. The issuer may have replaced the key.
	wrong := false
	err := v.keys.find(ctx, func(keys []jose.JSONWebKey) (done bool) {
		wrong = false
		for _, key := range keys {
			if header.KeyID != "" && key.KeyID != header.KeyID || key.Algorithm != "" && key.Algorithm != header.Algorithm {
				continue
			}
			if token.Claims(key.Key) == nil {
				return true
			}
			wrong = header.KeyID != ""
		}
		return false
	})
	switch {
	case err != nil && wrong:
		return rejected("want a signature with the issuer's key %s, got another", shown(header.KeyID))
	case errors.Is(err, errNoKey):
		return rejected("want a signature with a key of the issuer's, got one with key %s", shown(header.KeyID))
	}
	return err
}

// ComesWithJWT reports whether a principal's name is that of one with a JWT.
func ComesWithJWT(principal string) bool {
	subject, ok := strings.CutPrefix(principal, JWTPrefix)
	return ok && isSubject(subject)
}

// isSubject reports whether a name fits into every database and log.
func isSubject(s string) bool {
	return len(s) >= 1 && len(s) <= maxSubject && !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' })
}

// scopesOf reads the claim of the scopes, as a text, divided by blanks, or a list. By
// default it is scope (RFC 9068, 2.2.3), or scp, which some issuers send instead; both
// together have to be equal.
func (v *Verifier) scopesOf(claims map[string]any) ([]string, error) {
	names := []string{v.issuer.ScopeClaim}
	if v.issuer.ScopeClaim == "scope" {
		names = append(names, "scp")
	}
	var found [][]string
	for _, name := range names {
		scopes, ok := texts(claims[name])
		if !ok {
			return nil, rejected("want a text or a list as %s, got %s", name, shown(claims[name]))
		}
		if text, ok := claims[name].(string); ok {
			scopes = strings.Fields(text)
		}
		if claims[name] != nil {
			slices.Sort(scopes)
			found = append(found, scopes)
		}
	}
	switch {
	case len(found) == 0:
		return nil, nil
	case len(found) == 2 && !slices.Equal(slices.Compact(found[0]), slices.Compact(found[1])):
		return nil, rejected("want scope and scp to agree, got %s and %s", shown(claims["scope"]), shown(claims["scp"]))
	}
	scopes := found[0]
	if v.issuer.Scope != ScopeDelete {
		scopes = slices.DeleteFunc(scopes, func(s string) bool { return s == ScopeDelete })
		if i := slices.Index(scopes, v.issuer.Scope); i >= 0 {
			scopes[i] = ScopeDelete
		}
	}
	return scopes, nil
}

// texts returns the texts of a claim that is a text or a list, or absent.
func texts(claim any) (list []string, ok bool) {
	switch claim := claim.(type) {
	case nil:
		return nil, true
	case string:
		return []string{claim}, true
	case []any:
		for _, element := range claim {
			text, _ := element.(string)
			list = append(list, text)
		}
		return list, true
	}
	return nil, false
}
