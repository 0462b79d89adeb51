package migrations_test

import (
	"crypto/sha256"
	"fmt"
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
		if got := fmt.Sprintf("%x", sha256.Sum256(file)); err != nil || got != want {
			t.Errorf("%s is released and has changed: put it back, and add a new migration (got SHA-256 %s, %v, want %s)", name, got, err, want)
		}
	}
	if len(released) < 6 {
		t.Fatalf("SHA256SUMS: got %q, want the 6 files of 1.0.0 and those of later releases", released)
	}
	for _, m := range migrate.All() {
		if newest := slices.Max(released); m.Name < newest && !slices.Contains(released, m.Name) {
			t.Errorf("%s comes before %s, which is released: give it the next number", m.Name, newest)
		}
	}
}
