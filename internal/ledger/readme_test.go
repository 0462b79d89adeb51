package ledger_test

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/ledger"
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

// A refusal prints SQL that restores all but a renamed column, and the manual adds it.
func TestRenamedColumnOfTheManual(t *testing.T) {
	t.Parallel()
	manual := regexp.MustCompile("(?s)```sql\n(BEGIN;\n[^`]*\"cost\".*?)\n```").FindStringSubmatch(readme.Read(t, "migrations/README.md"))
	if manual == nil {
		t.Fatal("the manual has no SQL for a renamed column")
	}
	conn := pgtest.Connect(t, pgtest.New(t).Owner)
	execute(t, conn, `ALTER TABLE plants ADD price numeric; INSERT INTO plants (id, name, price) SELECT i, 'fern', 1.10 FROM generate_series(1, 3) i`)
	for plant := range int64(3) {
		deleteAs(t, conn, plant+1, "back-office")
	}
	execute(t, conn, `ALTER TABLE plants RENAME price TO cost`)
	_, err := ledger.Restore(t.Context(), conn, ledger.Selection{IDs: []int64{3}}, ledger.Options{})
	refused, ok := errors.AsType[*ledger.RefusedError](err)
	if !ok {
		t.Fatalf("got %v, want a refusal", err)
	}
	printed := strings.NewReplacer(`, "cost"`, "", `, (e.content->>'price')::numeric`, "").Replace(manual[1])
	if diff := cmp.Diff(printed, refused.ByHand); diff != "" {
		t.Errorf("SQL of the refusal (-manual's without the column +got):\n%s", diff)
	}
	execute(t, conn, manual[1])
	if got := value[string](t, conn, `SELECT concat_ws(' ', p.id, name, cost, restored_by) FROM plants p, plantstore.deletions d WHERE d.id = 3`); got != "3 fern 1.10 plantstore_owner" {
		t.Errorf("the plant and who restored it: got %s, want 3 fern 1.10 plantstore_owner", got)
	}
}

// Both manuals copy what is in the ledger. psql's \copy is a COPY to its standard output.
func TestCopiesOfTheManual(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.New(t).Owner)
	execute(t, conn, `CREATE TABLE pots (id int PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE, name text); SELECT plantstore.watch('pots');
		INSERT INTO public.plants (id, name) SELECT i, 'fern ' || i FROM generate_series(1, 6) i; INSERT INTO pots VALUES (1, 1, 'pot 1')`)
	for plant := range int64(6) {
		deleteAs(t, conn, plant+1, "back-office")
	}
	execute(t, conn, `SELECT plantstore.resolve(7, 'shop', 'r', 'k', 40401)`)
	var got []string
	for _, manual := range []string{"migrations/README.md", "deploy/docs/install.md"} {
		for _, m := range regexp.MustCompile(`\\(copy .*) TO \S+\.csv([^'\n]*)`).FindAllStringSubmatch(readme.Read(t, manual), -1) {
			var out strings.Builder
			if _, err := conn.PgConn().CopyTo(t.Context(), &out, m[1]+" TO STDOUT"+m[2]); err != nil {
				t.Fatalf("%s: %v", m[0], err)
			}
			got = append(got, manual+": "+strings.Join(regexp.MustCompile(`fern \d|pot \d|40401`).FindAllString(out.String(), -1), ", "))
		}
	}
	const all = "fern 1, fern 1, fern 2, fern 2, fern 3, fern 3, fern 4, fern 4, fern 5, fern 5, fern 6, fern 6, 40401" // as JSON and as a literal
	want := []string{"migrations/README.md: " + all, "deploy/docs/install.md: " + all, "deploy/docs/install.md: pot 1, pot 1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entries that were copied (-want +got):\n%s", diff)
	}
}

// The copy for a SIEM has one JSON object in each line.
func TestJSONLinesOfTheManual(t *testing.T) {
	t.Parallel()
	command := regexp.MustCompile(`psql "\$URL" -XAtc "([^"]*)" >ledger.jsonl`).FindStringSubmatch(readme.Read(t, "migrations/README.md"))
	if command == nil {
		t.Fatal("the manual has no command that writes ledger.jsonl")
	}
	conn := pgtest.Connect(t, pgtest.New(t).Owner)
	const name = "say \"a b\" \\ \n new"
	execute(t, conn, `ALTER TABLE plants ADD doc json; INSERT INTO plants (id, name, doc) SELECT i, E'say "a b" \\ \n new', E'{"a":\n1}' FROM generate_series(1, 6) i; DELETE FROM plants; SELECT plantstore.resolve(7, 'shop', 'r', 'k', 40401)`)
	rows, _ := conn.Query(t.Context(), command[1], pgx.QueryExecModeSimpleProtocol)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(lines) != 2 {
		t.Fatalf("newer than entry 4: got %q, %v, want 2 lines", lines, err)
	}
	for _, line := range lines {
		var entry struct{ Plant struct{ Name string } }
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Plant.Name != name || strings.Contains(line, "\n") {
			t.Errorf("%s: got %v and the name %q, want one line of JSON with the name %q", line, err, entry.Plant.Name, name)
		}
	}
}
