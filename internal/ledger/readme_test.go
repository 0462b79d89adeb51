package ledger_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/ledger"
	"plantstore/internal/pgtest"
	"plantstore/internal/readme"
)

// manual returns the text in the DBA's manual that the first group of a pattern matches.
func manual(t *testing.T, pattern string) string {
	t.Helper()
	match := regexp.MustCompile(pattern).FindStringSubmatch(readme.Read(t, "migrations/README.md"))
	if match == nil {
		t.Fatalf("the manual has nothing like %s", pattern)
	}
	return match[1]
}

// deletedFerns returns a connection to a database in which the back office deleted n ferns,
// after SQL had changed them, and got a refusal.
func deletedFerns(t *testing.T, n int64, sql string) *pgx.Conn {
	t.Helper()
	conn := pgtest.Connect(t, pgtest.New(t).Owner)
	pgtest.Execute(t, conn, fmt.Sprintf(`INSERT INTO public.plants (id, name) SELECT i, 'fern ' || i FROM generate_series(1, %d) i; %s`, n, sql))
	for i := range n {
		deleteAs(t, conn, i+1, "back-office")
	}
	pgtest.Execute(t, conn, `SELECT plantstore.resolve(99, 'back-office', 'r', 'k', 40401)`)
	return conn
}

// A refusal prints SQL that restores all but a renamed column, and the manual adds it.
func TestManualRestoresARenamedColumn(t *testing.T) {
	t.Parallel()
	sql := manual(t, "(?s)```sql\n(BEGIN;\n[^`]*\"cost\".*?)\n```")
	conn := deletedFerns(t, 3, `ALTER TABLE plants ADD price numeric; UPDATE plants SET price = 1.10`)
	pgtest.Execute(t, conn, `ALTER TABLE plants RENAME price TO cost`)
	_, err := ledger.Restore(t.Context(), conn, ledger.Selection{IDs: []int64{3}}, ledger.Options{})
	refused, ok := errors.AsType[*ledger.RefusedError](err)
	if !ok {
		t.Fatalf("got %v, want a refusal", err)
	}
	printed := strings.NewReplacer(`, "cost"`, "", `, (e.content->>'price')::numeric`, "").Replace(sql)
	if diff := cmp.Diff(printed, refused.ByHand); diff != "" {
		t.Errorf("SQL of the refusal (-manual's without the column +got):\n%s", diff)
	}
	pgtest.Execute(t, conn, sql)
	if got := value[string](t, conn, `SELECT concat_ws(' ', p.id, name, cost, restored_by) FROM plants p, plantstore.deletions d WHERE d.id = 3`); got != "3 fern 3 1.10 plantstore_owner" {
		t.Errorf("the plant and who restored it: got %s, want 3 fern 3 1.10 plantstore_owner", got)
	}
}

// The statements of the manuals list and copy the ledger. psql's \copy is a COPY to its standard
// output. The copy for a SIEM has one JSON object in each line.
func TestStatementsOfTheManualsWork(t *testing.T) {
	t.Parallel()
	conn := deletedFerns(t, 6, `CREATE TABLE pots (id int PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE, name text); SELECT plantstore.watch('pots'); INSERT INTO pots VALUES (1, 1, 'pot 1'); ALTER TABLE plants ADD doc json`)
	pgtest.Execute(t, conn, `INSERT INTO plants (id, name, doc) VALUES (7, E'say "moss" \\ \n new', E'{"a":\n1}'); DELETE FROM plants`) // entry 8, as the refusal is 7
	lastHour := manual(t, "(?s)\n## By hand, from psql\n.*?```sql\n(.*?);\n```")
	const who = "back-office: 6, plantstore_owner: 1"
	if got := value[string](t, conn, `SELECT string_agg(deleted_by || ': ' || n, ', ' ORDER BY n DESC) FROM (SELECT deleted_by, count(*) AS n FROM (`+lastHour+`) d GROUP BY deleted_by) w`); got != who {
		t.Errorf("who deleted how much in the last hour: got %s, want %s", got, who)
	}

	var got []string
	for _, name := range []string{"migrations/README.md", "deploy/docs/install.md"} {
		for _, m := range regexp.MustCompile(`\\(copy .*) TO \S+\.csv([^'\n]*)`).FindAllStringSubmatch(readme.Read(t, name), -1) {
			var out strings.Builder
			if _, err := conn.PgConn().CopyTo(t.Context(), &out, m[1]+" TO STDOUT"+m[2]); err != nil {
				t.Fatalf("%s: %v", m[0], err)
			}
			got = append(got, name+": "+strings.Join(regexp.MustCompile(`fern \d|pot \d|40401|moss`).FindAllString(out.String(), -1), ", "))
		}
	}
	const all = "fern 1, fern 1, fern 2, fern 2, fern 3, fern 3, fern 4, fern 4, fern 5, fern 5, fern 6, fern 6, 40401, moss, moss" // as JSON and as a literal
	want := []string{"migrations/README.md: " + all, "deploy/docs/install.md: " + all, "deploy/docs/install.md: pot 1, pot 1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entries that were copied (-want +got):\n%s", diff)
	}

	rows, _ := conn.Query(t.Context(), manual(t, `psql "\$URL" -XAtc "([^"]*)" >ledger.jsonl`), pgx.QueryExecModeSimpleProtocol)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	names := make([]string, len(lines))
	for i, line := range lines {
		var entry struct{ Plant struct{ Name string } }
		if err := json.Unmarshal([]byte(line), &entry); err != nil || strings.Contains(line, "\n") {
			t.Errorf("%s: got %v, want JSON in one line", line, err)
		}
		names[i] = entry.Plant.Name
	}
	if diff := cmp.Diff([]string{"fern 5", "fern 6", "say \"moss\" \\ \n new"}, names); err != nil || diff != "" {
		t.Errorf("newer than entry 4: %v (-want +got):\n%s", err, diff)
	}
}
