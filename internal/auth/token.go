package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"hash/crc32"
	"strings"
)

// A token is the prefix, then random base62 characters, then the CRC-32 (IEEE) of both in
// base62: the shape of GitHub's tokens. Secret scanners find the prefix, and a mistyped
// token is rejected without asking the database.
const (
	tokenPrefix  = "pst_"
	randomLen    = 30
	checksumLen  = 6
	base62Digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// A Digest is the SHA-256 of a token. A token has 178 random bits, so it needs neither salt
// nor stretching.
type Digest [sha256.Size]byte

// NewToken makes a token from the system's secure random source.
func NewToken() string {
	token := make([]byte, 0, len(tokenPrefix)+randomLen+checksumLen)
	token = append(token, tokenPrefix...)
	var random [64]byte
	for len(token) < len(tokenPrefix)+randomLen {
		rand.Read(random[:]) // never fails, see crypto/rand
		for _, b := range random {
			// 248 is the largest multiple of 62 in a byte: no digit is favoured.
			if b < 248 && len(token) < len(tokenPrefix)+randomLen {
				token = append(token, base62Digits[b%62])
			}
		}
	}
	return string(append(token, checksum(string(token))...))
}

// DigestOf returns the digest of a token, or ErrInvalidToken for a string that was never
// issued as one.
func DigestOf(token string) (Digest, error) {
	if len(token) != len(tokenPrefix)+randomLen+checksumLen || !strings.HasPrefix(token, tokenPrefix) {
		return Digest{}, ErrInvalidToken
	}
	body, sum := token[:len(token)-checksumLen], token[len(token)-checksumLen:]
	if checksum(body) != sum {
		return Digest{}, ErrInvalidToken
	}
	return sha256.Sum256([]byte(token)), nil
}

func checksum(s string) string {
	var digits [checksumLen]byte
	n := crc32.ChecksumIEEE([]byte(s))
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = base62Digits[n%62]
		n /= 62
	}
	return string(digits[:])
}
