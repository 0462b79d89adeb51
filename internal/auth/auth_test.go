package auth

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestFromHeader(t *testing.T) {
	t.Parallel()
	tests := []struct {
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
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			token, err := FromHeader(tt.values)
			if token != tt.token || !errors.Is(err, tt.err) {
				t.Errorf("FromHeader(%q) = %q, %v; want %q, %v", tt.values, token, err, tt.token, tt.err)
			}
		})
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

func TestDigestOfRefusesMistypedTokens(t *testing.T) {
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

func TestChecksumIsPinned(t *testing.T) {
	t.Parallel()
	// Issued tokens must stay good: the checksum may never change.
	const token = "pst_0123456789abcdefghijABCDEFGHIJ"
	if got, want := checksum(token), "3q8Gcl"; got != want {
		t.Errorf("checksum(%q) = %q, want %q", token, got, want)
	}
}

func TestTokenValidAt(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name  string
		token Token
		want  bool
	}{
		{"good", Token{ExpiresAt: now.Add(time.Second)}, true},
		{"never expires", Token{}, true},
		{"expires now", Token{ExpiresAt: now}, false},
		{"expired", Token{ExpiresAt: now.Add(-time.Second)}, false},
		{"revoked", Token{ExpiresAt: now.Add(time.Hour), RevokedAt: now.Add(-time.Second)}, false},
		{"revoked, by a database whose clock is ahead of ours", Token{ExpiresAt: now.Add(time.Hour), RevokedAt: now.Add(time.Hour)}, false},
	}
	for _, tt := range tests {
		if got := tt.token.ValidAt(now); got != tt.want {
			t.Errorf("%s: ValidAt = %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestHasToken(t *testing.T) {
	t.Parallel()
	token, jwt := NewToken(), "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJzaG9wIn0.c2lnbmF0dXJl"
	encoded := ""
	for _, b := range []byte(token) {
		encoded += fmt.Sprintf("%%%02x", b)
	}
	for text, want := range map[string]bool{
		token: true, "/plants/" + token + "?": true, "%70st_" + token[4:]: true, encoded: true, strings.ReplaceAll(encoded, "%", "%25"): true, "%zz" + encoded: true,
		"%" + strings.Repeat("25", 8000): true, "%252541": false, // encoded without an end, or by a proxy or two
		token[4:]: true, "st_" + token[4:]: true, "_" + token[4:] + "/": true, "0" + token[4:] + "0": true, encoded[12:]: true,
		strings.Repeat(token[4:24], 3): false, "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7": false, // the random part alone can't be known
		jwt: true, "Bearer " + jwt: true, "idp.example/" + jwt: true, jwt + ".": true, strings.ReplaceAll(jwt, ".", "%2E"): true, "ewogICJhbGciOiAibm9uZSIKfQ.e30.": true,
		"": false, "1": false, "1.2.3": false, "192.0.2.7": false, "build.2026.11": false, "%": false, "%25": false, "0b8f-4.r1": false, "DELETE": false,
		"curl/8.5.0": false, "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36": false,
	} {
		if got := HasToken(text); got != want {
			t.Errorf("HasToken(%q): %v, want %v", text, got, want)
		}
	}
}
