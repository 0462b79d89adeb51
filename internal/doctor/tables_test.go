package doctor

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
)

// What the doctor compares with is what the migrations make, on each PostgreSQL.
func TestShippedTables(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.New(t).Super)
	for what, queries := range map[string][2]string{
		"columns": {`SELECT tab || ': ' || columns FROM ` + shippedColumns + ` s (tab, columns) ORDER BY 1`,
			`WITH ` + todaysParts + ` SELECT tab || ': ' || string_agg(name || ' ' || type || needed || value, ', ' ORDER BY n) FROM columns GROUP BY tab ORDER BY 1`},
		"constraints": {`SELECT tab || ': ' || name || ' ' || definition FROM ` + shippedConstraints + ` s (tab, name, definition) ORDER BY 1`,
			`WITH ` + todaysParts + ` SELECT tab || ': ' || name || ' ' || definition FROM constraints ORDER BY 1`},
	} {
		var lists [2][]string
		for i, sql := range queries {
			err := migrate.Reading(t.Context(), conn, func(tx pgx.Tx) error {
				rows, err := tx.Query(t.Context(), sql, shippedArguments())
				if err != nil {
					return err
				}
				lists[i], err = pgx.CollectRows(rows, pgx.RowTo[string])
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(lists[0], lists[1]); diff != "" {
			t.Errorf("%s (-shipped +made):\n%s", what, diff)
		}
	}
}
