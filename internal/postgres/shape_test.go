package postgres

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/pgtest"
)

// A transaction that began before keeps seeing that the column is generated, so that
// its value would not come back.
func TestAColumnThatIsNotGeneratedAnyMore(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.exec(t, `ALTER TABLE public.plants ADD twice bigint GENERATED ALWAYS AS (id * 2) STORED`)
	s.sample(t, 3)
	s.exec(t, `BEGIN ISOLATION LEVEL REPEATABLE READ; DELETE FROM public.plants WHERE id = 3; COMMIT`) // nothing was altered yet
	tx, err := pgtest.Pool(t, database.Owner).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `DELETE FROM public.plant_shapes WHERE false`); err != nil { // from here on it sees the past
		t.Fatal(err)
	}
	s.exec(t, `ALTER TABLE public.plants ALTER twice DROP EXPRESSION`)
	if _, err := tx.Exec(t.Context(), `DELETE FROM public.plants WHERE id = 1`); sqlState(err) != "40001" {
		t.Errorf("DELETE after an ALTER TABLE that the transaction can't see: %v, want SQLSTATE 40001", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.exec(t, `BEGIN ISOLATION LEVEL REPEATABLE READ; DELETE FROM public.plants WHERE id = 2; COMMIT`)
	got := stringsOf(t, s.owner, `SELECT s.generated[cardinality(s.generated)]::text || substring(d.plant from ',[^,]*$')
		FROM public.plant_deletions d JOIN public.plant_shapes s ON s.id = d.shape ORDER BY d.id`)
	if want := []string{"true,6)", "false,4)"}; !slices.Equal(got, want) {
		t.Errorf("the last column's kind and value, before and after: %q; want %q", got, want)
	}
}
