// Package auth makes bearer tokens, reads them from requests, and knows their scopes. It
// verifies the JWTs of an identity provider. It stores nothing.
package auth

import (
	"errors"
	"slices"
	"strings"

	"plantstore/internal/plant"
)

// ScopeDelete allows deleting plants.
const ScopeDelete = "plants:delete"

// A Principal is a client. It may have several tokens.
type Principal struct {
	Name   string
	Scopes []string
	Budget plant.Budget // of deletions
}

// Has reports whether the principal was granted scope.
func (p Principal) Has(scope string) bool { return slices.Contains(p.Scopes, scope) }

// Why a request is not authenticated.
var (
	// ErrNoCredentials: no Authorization header, or a scheme other than Bearer.
	ErrNoCredentials = errors.New("no bearer token")
	// ErrMalformed: an Authorization header that cannot be read, or several.
	ErrMalformed = errors.New("malformed Authorization header")
	// ErrInvalidToken: a token that is unknown, expired or revoked, or a JWT that is not
	// acceptable.
	ErrInvalidToken = errors.New("invalid token")
)

// FromHeader returns the token in the values of a request's Authorization headers, or
// ErrNoCredentials or ErrMalformed. The scheme's case does not matter (RFC 9110, 11.1). The
// token has the characters of b64token (RFC 6750, 2.1).
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

// HasToken reports whether a text may hold a token, of ours or a JWT, and so must not be
// logged or stored.
func HasToken(s string) bool {
	return strings.Contains(s, tokenPrefix) || strings.Contains(s, "eyJ") && strings.Count(s, ".") >= 2
}

// isB64Token reports whether s is 1*( ALPHA / DIGIT / "-" / "." / "_" / "~" / "+" / "/" )
// *"=".
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
