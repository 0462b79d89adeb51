package migrations_test

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"plantstore/internal/migrate"
	"plantstore/internal/readme"
	"plantstore/migrations"
)

// A released migration stays as it is: databases have applied it.
func TestReleasedMigrationsAreFrozen(t *testing.T) {
	t.Parallel()
	var released []string
	for line := range strings.Lines(readme.Read(t, "migrations/SHA256SUMS")) {
		want, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		released = append(released, name)
		file, err := migrations.Files.ReadFile(name)
		if err != nil {
			t.Errorf("%s is released and is gone: put it back, and add a new migration", name)
		} else if got := sha256.Sum256(file); hex.EncodeToString(got[:]) != want {
			t.Errorf("%s is released and has changed: put it back, and add a new migration (got SHA-256 %x, want %s)", name, got, want)
		}
	}
	if len(released) == 0 {
		t.Fatal("migrations/SHA256SUMS names no file")
	}
	newest := slices.Max(released)
	for _, m := range migrate.All() {
		if m.Name < newest && !slices.Contains(released, m.Name) {
			t.Errorf("%s comes before %s, which is released: give it the next number", m.Name, newest)
		}
	}
}
