package auth

import (
	"context"
	"crypto/sha256"
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
)

// algorithms are those that may sign a JWT: the usual ones with a public key and one choice
// of parameters.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.EdDSA}

// An Issuer is an identity provider whose JWTs are accepted.
type Issuer struct {
	URL      string       // the "iss" of its JWTs
	JWKS     string       // URL of its keys; empty: found by OpenID Connect discovery
	Audience string       // the "aud" of JWTs for this service
	Claim    string       // the claim that names the principal, such as "sub"
	Budget   plant.Budget // of deletions, of each principal
}

// A Verifier authenticates by JWTs of one issuer (RFC 7519, 8725 and 9068).
type Verifier struct {
	issuer     Issuer
	ttl        time.Duration
	keys       *keyring
	remembered *lru.Cache[Digest, verified]
}

// A verified JWT is not verified again for a while.
type verified struct {
	principal   Principal
	at, expires time.Time
}

// NewVerifier makes a Verifier, which begins to fetch the issuer's keys. A verified JWT is
// remembered for ttl, at most until it expires.
func NewVerifier(issuer Issuer, ttl time.Duration, log *slog.Logger) *Verifier {
	return newVerifier(issuer, ttl, &keyring{fetch: newIssuersKeys(issuer.URL, issuer.JWKS).fetch, log: log})
}

func newVerifier(issuer Issuer, ttl time.Duration, keys *keyring) *Verifier {
	remembered, err := lru.New[Digest, verified](maxRemembered)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	v := &Verifier{issuer: issuer, ttl: ttl, keys: keys, remembered: remembered}
	v.keys.get(true)
	return v
}

// IsJWT reports whether a token has the shape of a JWT. No token of ours has a dot.
func IsJWT(token string) bool { return strings.Count(token, ".") == 2 }

// Authenticate returns the principal of a JWT. It returns ErrInvalidToken with the reason for
// one that is not acceptable, or ErrKeysUnknown.
func (v *Verifier) Authenticate(ctx context.Context, token string) (Principal, error) {
	digest, now := Digest(sha256.Sum256([]byte(token))), time.Now()
	if r, ok := v.remembered.Get(digest); ok && now.Sub(r.at) < v.ttl && now.Before(r.expires) {
		return r.principal, nil
	}
	principal, expires, err := v.verify(ctx, token, now)
	if err != nil {
		return Principal{}, err
	}
	v.remembered.Add(digest, verified{principal, now, expires})
	return principal, nil
}

// rejected returns ErrInvalidToken with a reason, which has nothing of the token.
func rejected(reason string) error { return fmt.Errorf("%w: JWT: %s", ErrInvalidToken, reason) }

// verify checks the claims first, which costs neither arithmetic nor a fetch of keys.
func (v *Verifier) verify(ctx context.Context, token string, now time.Time) (_ Principal, expires time.Time, _ error) {
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return Principal{}, expires, rejected("it can't be read, or is not signed with RS256, ES256 or EdDSA")
	}
	if err := checkHeader(parsed.Headers[0]); err != nil {
		return Principal{}, expires, err
	}
	var claims jwt.Claims
	var all map[string]any
	if parsed.UnsafeClaimsWithoutVerification(&claims, &all) != nil {
		return Principal{}, expires, rejected("its claims can't be read")
	}
	if claims.Expiry == nil {
		return Principal{}, expires, rejected("it has no exp")
	}
	expected := jwt.Expected{Issuer: v.issuer.URL, AnyAudience: jwt.Audience{v.issuer.Audience}, Time: now}
	if err := claims.ValidateWithLeeway(expected, leeway); err != nil {
		return Principal{}, expires, rejected(err.Error()) // one of the library's constants
	}
	subject, _ := all[v.issuer.Claim].(string)
	if !isSubject(subject) {
		return Principal{}, expires, rejected("its claim " + v.issuer.Claim + " is not 1 to 255 printable ASCII characters")
	}
	scopes, err := scopesOf(all)
	if err != nil {
		return Principal{}, expires, err
	}
	if err := v.checkSignature(ctx, parsed); err != nil {
		return Principal{}, expires, err
	}
	return Principal{Name: JWTPrefix + subject, Scopes: scopes, Budget: v.issuer.Budget}, claims.Expiry.Time().Add(leeway), nil
}

// checkHeader rejects what is no access token, brings its own key along, or has critical
// extensions.
func checkHeader(h jose.Header) error {
	typ, _ := h.ExtraHeaders[jose.HeaderType].(string)
	switch strings.TrimPrefix(strings.ToLower(typ), "application/") {
	case "at+jwt", "jwt":
	default:
		return rejected("its typ is neither at+jwt nor JWT")
	}
	for _, name := range []jose.HeaderKey{"jku", "x5u", "crit"} {
		if _, ok := h.ExtraHeaders[name]; ok {
			return rejected("its header has " + string(name))
		}
	}
	if h.JSONWebKey != nil {
		return rejected("its header has jwk")
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
				wrong = false
				return true
			}
			wrong = header.KeyID != ""
		}
		return false
	})
	switch {
	case err != nil && wrong:
		return rejected("its signature is wrong")
	case errors.Is(err, errNoKey):
		return rejected("none of the issuer's keys has signed it")
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

// scopesOf reads the claim scope (RFC 9068, 2.2.3: a text, divided by blanks), or scp, which
// some issuers send instead, as such a text or a list. Both together have to be equal.
func scopesOf(claims map[string]any) ([]string, error) {
	var found [][]string
	for _, name := range []string{"scope", "scp"} {
		switch claim := claims[name].(type) {
		case nil:
		case string:
			found = append(found, strings.Fields(claim))
		case []any:
			list := make([]string, len(claim))
			for i := range claim {
				list[i], _ = claim[i].(string)
			}
			found = append(found, list)
		default:
			return nil, rejected("its claim " + name + " is neither a text nor a list")
		}
	}
	for _, scopes := range found {
		slices.Sort(scopes)
	}
	switch {
	case len(found) == 0:
		return nil, nil
	case len(found) == 2 && !slices.Equal(slices.Compact(found[0]), slices.Compact(found[1])):
		return nil, rejected("its claims scope and scp differ")
	}
	return found[0], nil
}
