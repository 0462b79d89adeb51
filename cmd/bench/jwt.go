//go:build linux

package main

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// jwtIssuer signs the JWT of a contender. The service reads its key from a file.
const jwtIssuer = "https://login.example"

// issueJWT returns a JWT that is signed with RS256, as most are, and the settings with
// which a service takes it.
func issueJWT(folder string) (token string, settings []string, err error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return "", nil, err
	}
	text := base64.RawURLEncoding.EncodeToString
	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err) // they are maps of texts and numbers
		}
		return text(b)
	}
	jwks, err := json.Marshal(map[string]any{"keys": []any{map[string]string{
		"kty": "RSA", "kid": "bench", "n": text(key.N.Bytes()), "e": text(big.NewInt(int64(key.E)).Bytes())}}})
	if err != nil {
		return "", nil, err
	}
	file := filepath.Join(folder, "jwks.json")
	if err := os.WriteFile(file, jwks, 0o600); err != nil {
		return "", nil, err
	}
	signed := part(map[string]string{"alg": "RS256", "typ": "at+jwt", "kid": "bench"}) + "." +
		part(map[string]any{"iss": jwtIssuer, "aud": "plants", "sub": "bench", "scope": "plants:delete", "exp": time.Now().AddDate(0, 0, 1).Unix()})
	digest := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, digest[:])
	if err != nil {
		return "", nil, err
	}
	return signed + "." + text(signature), []string{
		"PLANTSTORE_OIDC_ISSUER=" + jwtIssuer, "PLANTSTORE_OIDC_AUDIENCE=plants", "PLANTSTORE_JWKS_URL=file://" + file}, nil
}
