package pgtest

import (
	"testing"

	"plantstore/internal/localpg"
)

// Pooler is a PgBouncer in transaction mode in front of a database, and returns its URL.
// PgBouncer logs in with the role of server, whatever role its client names.
func Pooler(t testing.TB, server string) string {
	t.Helper()
	b, err := localpg.StartBouncer(t.Context(), server)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return b.URL
}
