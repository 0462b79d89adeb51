// Package auth knows bearer tokens: how they are made, how they arrive in a
// request, and what their holder may do; and it verifies the JWTs of an identity
// provider. It stores nothing.
package auth

import (
	"encoding/hex"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	"plantstore/internal/plant"
)

// ScopeDelete allows deleting plants.
const ScopeDelete = "plants:delete"

// A Principal is who a request is made for: a client, whichever of its tokens it sends.
type Principal struct {
	Name   string
	Scopes []string
	Budget plant.Budget // of deletions
}

// Has reports whether the principal was granted scope.
func (p Principal) Has(scope string) bool { return slices.Contains(p.Scopes, scope) }

// A Token is what is known of an issued token; the token itself is not.
type Token struct {
	ID [16]byte // tells it from the principal's others
	Principal
	CreatedAt  time.Time
	ExpiresAt  time.Time // zero if it never expires
	RevokedAt  time.Time // zero unless revoked
	LastUsedAt time.Time // zero if never used; noted at most once a minute
}

// ValidAt reports whether the token is not revoked, and not expired at that moment. When
// it was revoked does not matter: that is the database's clock, which may be ahead of ours.
func (t Token) ValidAt(at time.Time) bool {
	return (t.ExpiresAt.IsZero() || at.Before(t.ExpiresAt)) && t.RevokedAt.IsZero()
}

// Why a request is not authenticated.
var (
	// ErrNoCredentials: no Authorization header, or a scheme other than Bearer.
	ErrNoCredentials = errors.New("no bearer token")
	// ErrMalformed: an Authorization header that cannot be read, or several.
	ErrMalformed = errors.New("malformed Authorization header")
	// ErrInvalidToken: not one of our tokens, or unknown, expired or revoked; or a
	// JWT that is not acceptable.
	ErrInvalidToken = errors.New("invalid token")
)

// FromHeader returns the token in the values of a request's Authorization
// headers. The scheme's case does not matter (RFC 9110, 11.1); the token has the
// characters of b64token (RFC 6750, 2.1). It returns ErrNoCredentials or
// ErrMalformed, and never guesses which of two headers is meant.
func FromHeader(values []string) (string, error) {
	switch len(values) {
	case 0:
		return "", ErrNoCredentials
	case 1:
	default:
		return "", ErrMalformed
	}
	scheme, rest, _ := strings.Cut(values[0], " ")
	if scheme == "" {
		return "", ErrMalformed
	}
	if !strings.EqualFold(scheme, "Bearer") {
		return "", ErrNoCredentials
	}
	token := strings.TrimLeft(rest, " ")
	if !isB64Token(token) {
		return "", ErrMalformed
	}
	return token, nil
}

var (
	// jwtShape is that of a signed JWT: its first part is a JSON object, in base64url.
	jwtShape = regexp.MustCompile(`e[wy][\w-]+\.[\w-]+\.[\w-]*`)
	escaped  = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
)

// HasToken reports whether a text may hold a token, of ours or a JWT, also one that is
// percent-encoded, and so must not be logged. Whatever is encoded more often than by a
// mistake may be anything; and each time would cost as much as the first.
func HasToken(s string) bool {
	for range 4 {
		if strings.Contains(s, tokenPrefix) || HasSecret(s) || strings.Count(s, ".") >= 2 && jwtShape.MatchString(s) {
			return true
		}
		if !strings.Contains(s, "%") {
			return false // almost always: every request has some of this
		}
		decoded := escaped.ReplaceAllStringFunc(s, func(code string) string {
			b, _ := hex.DecodeString(code[1:])
			return string(b)
		})
		if decoded == s {
			return false
		}
		s = decoded
	}
	return true
}

// isB64Token reports whether s is 1*( ALPHA / DIGIT / "-" / "." / "_" / "~" /
// "+" / "/" ) *"=". How long it is does not matter: what reads headers bounds them.
func isB64Token(s string) bool {
	body := strings.TrimRight(s, "=")
	if body == "" {
		return false
	}
	for i := range len(body) {
		c := body[i]
		switch {
		case 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case strings.IndexByte("-._~+/", c) >= 0:
		default:
			return false
		}
	}
	return true
}
