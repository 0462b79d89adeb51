package auth

import (
	"errors"
	"regexp"
	"strings"
	"testing"
)

func TestFromHeader(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		values []string
		token  string
		err    error
	}{
		{"absent", nil, "", ErrNoCredentials},
		{"bearer", []string{"Bearer abc"}, "abc", nil},
		{"scheme in another case", []string{"bEARER abc"}, "abc", nil},
		{"several spaces", []string{"Bearer   abc"}, "abc", nil},
		{"every character of b64token", []string{"Bearer aZ09-._~+/=="}, "aZ09-._~+/==", nil},
		{"basic", []string{"Basic dXNlcjpwYXNz"}, "", ErrNoCredentials},
		{"scheme only of another kind", []string{"Negotiate"}, "", ErrNoCredentials},
		{"empty", []string{""}, "", ErrMalformed},
		{"no token", []string{"Bearer"}, "", ErrMalformed},
		{"blank token", []string{"Bearer "}, "", ErrMalformed},
		{"two tokens", []string{"Bearer abc def"}, "", ErrMalformed},
		{"tab for space", []string{"Bearer\tabc"}, "", ErrNoCredentials},
		{"padding only", []string{"Bearer =="}, "", ErrMalformed},
		{"padding inside", []string{"Bearer a=b"}, "", ErrMalformed},
		{"comma", []string{"Bearer a,b"}, "", ErrMalformed},
		{"not ASCII", []string{"Bearer töken"}, "", ErrMalformed},
		{"sent twice", []string{"Bearer abc", "Bearer abc"}, "", ErrMalformed},
	} {
		if token, err := FromHeader(tt.values); token != tt.token || !errors.Is(err, tt.err) {
			t.Errorf("%s: FromHeader(%q) = %q, %v; want %q, %v", tt.name, tt.values, token, err, tt.token, tt.err)
		}
	}
}

func TestNewToken(t *testing.T) {
	t.Parallel()
	shape := regexp.MustCompile(`^pst_[0-9A-Za-z]{36}$`)
	seen := make(map[string]bool)
	for range 1000 {
		token := NewToken()
		if !shape.MatchString(token) {
			t.Fatalf("NewToken() = %q, want it to match %s", token, shape)
		}
		if seen[token] {
			t.Fatalf("NewToken() gave %q twice", token)
		}
		seen[token] = true
		if _, err := FromHeader([]string{"Bearer " + token}); err != nil {
			t.Errorf("FromHeader of a new token: %v", err)
		}
		if _, err := DigestOf(token); err != nil {
			t.Errorf("DigestOf(%q): %v", token, err)
		}
	}
}

func TestDigestOfRejectsMistypedTokens(t *testing.T) {
	t.Parallel()
	token := NewToken()
	for i := range len(token) {
		replacement := byte('a')
		if token[i] == replacement {
			replacement = 'b'
		}
		mistyped := token[:i] + string(replacement) + token[i+1:]
		if _, err := DigestOf(mistyped); !errors.Is(err, ErrInvalidToken) {
			t.Errorf("DigestOf with character %d changed: error %v, want ErrInvalidToken", i, err)
		}
	}
	for _, s := range []string{"", "pst_", token + "0", token[:len(token)-1], strings.ToUpper(token)} {
		if _, err := DigestOf(s); !errors.Is(err, ErrInvalidToken) {
			t.Errorf("DigestOf(%q): error %v, want ErrInvalidToken", s, err)
		}
	}
}

func TestTokenChecksumIsPinned(t *testing.T) {
	t.Parallel()
	// Issued tokens must stay good: the checksum may never change.
	const token = "pst_0123456789abcdefghijABCDEFGHIJ"
	if got, want := checksum(token), "3q8Gcl"; got != want {
		t.Errorf("checksum(%q) = %q, want %q", token, got, want)
	}
}

func TestHasToken(t *testing.T) {
	t.Parallel()
	token, jwt := NewToken(), "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJzaG9wIn0.c2lnbmF0dXJl"
	for text, want := range map[string]bool{
		token: true, "/plants/" + token + "?": true, jwt: true, "Bearer " + jwt: true, jwt + ".": true,
		"eyJhbGciOiJFUzI1NiJ9": false, "eyJhbGciOiJFUzI1NiJ9.e30": false,
		"": false, "1": false, "1.2.3": false, "192.0.2.7": false, "build.2026.11": false, "DELETE": false,
		"4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7": false,
	} {
		if got := HasToken(text); got != want {
			t.Errorf("HasToken(%q): %v, want %v", text, got, want)
		}
	}
}
