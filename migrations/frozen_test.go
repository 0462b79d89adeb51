package migrations_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"plantstore/internal/readme"
	"plantstore/migrations"
)

// A released migration stays as it is: databases have applied it.
func TestReleasedMigrationsAreFrozen(t *testing.T) {
	t.Parallel()
	for line := range strings.Lines(readme.Read(t, "migrations/SHA256SUMS")) {
		want, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		file, err := migrations.Files.ReadFile(name)
		if got := fmt.Sprintf("%x", sha256.Sum256(file)); err != nil || got != want {
			t.Errorf("%s is released and has changed: put it back, and add a new migration (got SHA-256 %s, %v, want %s)", name, got, err, want)
		}
	}
}
