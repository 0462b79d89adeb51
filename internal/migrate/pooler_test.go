package migrate_test

import (
	"errors"
	"testing"

	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
)

func TestPoolers(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		if got, err := migrate.FindPooler(t.Context(), pgtest.Connect(t, database.Owner)); err != nil || got != migrate.NoPooler {
			t.Errorf("direct connection: %v, %v; want NoPooler", got, err)
		}
	})
	t.Run("session", func(t *testing.T) {
		t.Parallel()
		through := pgtest.Pooler(t, database.Owner, pgtest.SessionMode)
		if got, err := migrate.FindPooler(t.Context(), pgtest.Connect(t, through)); err != nil || got != migrate.SessionPooler {
			t.Errorf("pooler in session mode: %v, %v; want SessionPooler", got, err)
		}
	})
	t.Run("transaction", func(t *testing.T) {
		t.Parallel()
		through := pgtest.Pooler(t, database.Owner, pgtest.TransactionMode)
		if _, err := migrate.Service().Up(t.Context(), through, migrate.Options{}); !errors.Is(err, migrate.ErrPooler) {
			t.Errorf("Up through a pooler in transaction mode: %v, want ErrPooler", err)
		}
		if got := applied(t, database.Owner); got != 0 {
			t.Errorf("%d migrations applied, want none", got)
		}
	})
	t.Run("plan through a pooler", func(t *testing.T) {
		t.Parallel()
		through := pgtest.Pooler(t, database.Owner, pgtest.TransactionMode)
		p, err := migrate.Service().Plan(t.Context(), through)
		if err != nil || len(p.Pending) != len(migrate.All()) {
			t.Errorf("plan of %d, %v; want all pending", len(p.Pending), err)
		}
	})
}
