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

// Deletions share a shape as long as the columns are the same, and find an earlier one again.
func TestDeletionsShareAShape(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for i, tt := range []struct {
		sql  string
		want int // shapes that there are then
	}{
		{`SELECT 1`, 1},
		{`ALTER TABLE plants ADD size integer`, 2},
		{`ALTER TABLE plants RENAME size TO height`, 3},
		{`ALTER TABLE plants ALTER height TYPE numeric(5,2)`, 4},
		{`ALTER TABLE plants ALTER height TYPE numeric(6,2)`, 5},
		{`ALTER TABLE plants ADD label text GENERATED ALWAYS AS (name) STORED`, 6},
		{`ALTER TABLE plants ALTER label DROP EXPRESSION`, 7},
		{`ALTER TABLE plants ALTER label SET DEFAULT 'fern'`, 7},
		{`ALTER TABLE plants DROP label, DROP height`, 7},
		{`ALTER TABLE plants ADD size integer`, 8}, // another column than the one of that name
	} {
		s.exec(t, tt.sql)
		s.plant(t, 1)
		if _, err := s.plants.Delete(in(t, patience), request(1, i)); err != nil {
			t.Errorf("after %s: Delete: %v, want none", tt.sql, err)
		}
		s.plant(t, 2)
		s.exec(t, `DELETE FROM plants`)
		var got, used int
		if err := s.owner.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM plant_shapes), (SELECT count(DISTINCT shape) FROM plant_deletions)`).Scan(&got, &used); err != nil || got != tt.want || used != tt.want {
			t.Errorf("after %s: %d shapes, %d of them used, %v; want %d", tt.sql, got, used, err, tt.want)
		}
	}
}
