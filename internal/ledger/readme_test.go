package ledger_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/pgtest"
	"plantstore/internal/readme"
)

// The statements for psql in the DBA's manual do what it says.
func TestStatementsOfTheManual(t *testing.T) {
	t.Parallel()
	_, section, _ := strings.Cut(readme.Read(t, "migrations/README.md"), "\n## By hand, from psql\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(section, -1)
	if len(blocks) != 3 {
		t.Fatalf("the section has %d blocks of SQL, want 3", len(blocks))
	}
	whoDeleted, bringBack, whatDoes := blocks[0][1], blocks[1][1], blocks[2][1]

	conn := pgtest.Connect(t, pgtest.New(t).Owner)
	execute(t, conn, `INSERT INTO public.plants (id, name) SELECT i, 'fern ' || i FROM generate_series(1, 4) i`)
	before := image(t, conn)
	for plant := range int64(4) {
		deleteAs(t, conn, plant+1, "back-office")
	}
	rows := func(sql string) []string {
		t.Helper()
		found, err := conn.Query(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		names, err := pgx.CollectRows(found, func(row pgx.CollectableRow) (string, error) {
			values, err := row.Values()
			if len(values) == 7 {
				return values[2].(string), err // the plant's name
			}
			return "a minute", err
		})
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return names
	}
	deleted := rows(whoDeleted)
	slices.Sort(deleted) // the clock may have been set back
	if diff := cmp.Diff([]string{"fern 1", "fern 2", "fern 3", "fern 4"}, deleted); diff != "" {
		t.Errorf("who deleted what in the last hour (-want +got):\n%s", diff)
	}
	if got := rows(whatDoes); len(got) == 0 {
		t.Error("what a principal does now: no rows, want one for each minute with deletions")
	}
	execute(t, conn, bringBack)
	execute(t, conn, strings.Replace(bringBack, "2, 3, 4", "1", 1))
	if diff := cmp.Diff(before, image(t, conn)); diff != "" {
		t.Errorf("the plants after they were brought back (-before +after):\n%s", diff)
	}
	if got := value[int64](t, conn, `SELECT count(*) FROM plantstore.deletions WHERE restored_at IS NOT NULL`); got != 4 {
		t.Errorf("%d entries are marked as restored, want 4", got)
	}
}
