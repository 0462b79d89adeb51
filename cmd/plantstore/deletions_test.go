package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/pgtest"
)

// ledgerOf makes four deletions: of plants 11 to 13 by SQL, and of 14 by a principal, each an
// hour after the one before.
func ledgerOf(t *testing.T) (owner *pgx.Conn, expect func(code int, stdout, stderr string, args ...string) string) {
	database := pgtest.New(t)
	owner = pgtest.Connect(t, database.Owner)
	for _, sql := range []string{
		`INSERT INTO plants (id, name, created_at) SELECT i, 'Fern <' || i || '>', '2026-01-01Z' FROM generate_series(11, 14) i`,
		`DELETE FROM plants WHERE id = 11`, `DELETE FROM plants WHERE id = 12`, `DELETE FROM plants WHERE id = 13`,
		`DELETE FROM plants WHERE id = 14 AND set_config('plantstore.requests', '{{14},{shop},{r-4},{k-4}}', true) <> ''`,
		`UPDATE plantstore.deletions SET deleted_at = '2026-07-01 12:00:00.123456Z'::timestamptz + id * interval '1 hour'`,
		`SELECT plantstore.resolve(15, 'shop', 'r-5', 'k-5', 40401)`,
	} {
		execute(t, owner, sql)
	}
	return owner, expecting(t, database.Owner)
}

func TestDeletionsListAndShow(t *testing.T) {
	t.Parallel()
	owner, expect := ledgerOf(t)
	expect(0, `ID  PLANT  NAME       DELETED AT            BY                     REQUEST  STATE
4   14     Fern <14>  2026-07-01T16:00:00Z  shop                   r-4      deleted
3   13     Fern <13>  2026-07-01T15:00:00Z  role plantstore_owner  -        deleted
`, `there are more: add --before=3 for the next page\n`, "deletions", "list", "--limit=2")
	expect(0, `ID[^\n]*\n2 [^\n]*\n1 [^\n]*\n`, "", "deletions", "list", "--before=3", "--limit=2")
	expect(0, `ID[^\n]*\n5 +15 +20\S+Z +shop +r-5 +refused 40401\n4 .*`, "", "deletions", "list", "--refusals")
	expect(0, `ID[^\n]*\n3 [^\n]*\n`, "", "deletions", "list", "--by-role=plantstore_owner", "--since=2026-07-01T15:00:00Z", "--until=2026-07-02", "--plant=13")
	expect(2, "", `.*--until \(2026-07-01T00:00:00Z\) is not after --since .*`, "deletions", "list", "--since=2026-07-02", "--until=2026-07-01")
	expect(2, "", `.*--limit is 0: .*`, "deletions", "list", "--limit=0")
	expect(2, "", `.*--limit is 10001: .*`, "deletions", "list", "--limit=10001")
	expect(0, `ID[^\n]*\n1 [^\n]*\n`, "", "deletions", "list", "--before=2", "--limit=10000")
	expect(0, `\[\]\n`, "", "deletions", "list", "--json", "--plant=99")
	var list []map[string]any
	if err := json.Unmarshal([]byte(expect(0, ".*", "", "deletions", "list", "--json")), &list); err != nil || len(list) != 4 {
		t.Errorf("list --json: got %d entries, %v, want 4", len(list), err)
	}
	if got := list[0]["plant"].(map[string]any)["name"]; got != "Fern <14>" {
		t.Errorf("name in list --json: got %v, want Fern <14>", got)
	}

	expect(0, `deletion         4
plant            14
deleted at       2026-07-01T16:00:00.123456Z
deleted by       shop
request          r-4
idempotency key  k-4
transaction      \d+

\{
  "id": 14,
  "name": "Fern <14>",
  "created_at": "2026-01-01T00:00:00\+00:00"
\}
`, "", "deletions", "show", "4")
	expect(0, `.*refused +40401\nrefused at +20\S+Z\nasked by +shop\nrequest +r-5\n.*`, "", "deletions", "show", "5")
	expect(0, `\{\n  "id": 4,\n.*"literal": "\(14,\\"Fern <14>\\",\\"2026-01-01 00:00:00\+00\\"\)",\n.*\}\n`, "", "deletions", "show", "4", "--json")
	expect(1, "", `plantstore: there is no deletion 9: see 'plantstore deletions list'\n`, "deletions", "show", "9")

	// Characters that a terminal would obey or hide are escaped.
	execute(t, owner, `ALTER TABLE plants ADD j json; INSERT INTO plants (id, name, j) VALUES (1, E'ä \u0085\u009b31m \u202e \u2066 \U000e0001', E'{"a":\n1}'); DELETE FROM plants`, pgx.QueryExecModeSimpleProtocol)
	expect(0, `.*\n  "name": "ä \\u0085\\u009b31m \\u202e \\u2066 \\udb40\\udc01",\n.*\n  "j": \{\n    "a": 1\n  \}\n\}\n`, "", "deletions", "show", "6")
	expecting(t, pgtest.Empty(t).Owner)(1, "", `plantstore: ERROR: relation "plantstore.deletions" does not exist .*'plantstore migrate up'\n`, "deletions", "list")
}

// If a command can't write all of its output, it fails.
func TestCommandsFailWhenOutputFails(t *testing.T) {
	t.Parallel()
	owner, _ := ledgerOf(t)
	full := errors.New("no space left")
	for _, args := range []string{
		"deletions list", "deletions list --json", "deletions list --json --plant=99", "deletions show 1", "deletions show 1 --json",
		"deletions purge --older-than=3650d", "deletions purge --older-than=3650d --json", "deletions restore 1 --dry-run", "deletions restore 1 --dry-run --json",
		"ledger list", "ledger list --json", "token list", "token list --json",
	} {
		writes := 0
		printing := func(room int) error {
			writes = 0
			return run(t.Context(), append(strings.Fields(args), "--migrate-database-url="+owner.Config().ConnString()), nil, writerFunc(func(p []byte) (int, error) {
				if writes++; writes > room {
					return 0, full
				}
				return len(p), nil
			}), io.Discard)
		}
		if err := printing(math.MaxInt); err != nil || writes == 0 {
			t.Fatalf("%s: got %d writes, %v; want some and no error", args, writes, err)
		}
		for _, room := range []int{0, writes - 1} {
			if err := printing(room); err == nil || !strings.Contains(err.Error(), full.Error()) {
				t.Errorf("%s, with room for %d writes: got %v, want %v", args, room, err, full)
			}
		}
	}
}

func TestDeletionsRestore(t *testing.T) {
	t.Parallel()
	owner, expect := ledgerOf(t)
	fern := func(plant, deletion int) string {
		return fmt.Sprintf(`plant %d "Fern <%[1]d>" \(deletion %d, deleted by role plantstore_owner at 2026-07-01T%d:00:00Z\)`, plant, deletion, deletion+12)
	}
	expect(2, "", fern(11, 1)+"\n"+fern(12, 2)+`\nRestore 2 plants\? \[y/N\] plantstore: standard input is not a terminal, so nobody can confirm: use --yes\n`, "deletions", "restore", "1", "--plant=12")
	expect(0, "would restore 1 plant\n", fern(11, 1)+"\n", "deletions", "restore", "1", "--dry-run")
	execute(t, owner, `INSERT INTO plants (id, name) VALUES (12, 'Moss')`)
	expect(1, "", "plantstore: nothing was restored:\n  "+fern(12, 2)+": its id is taken\n--skip-existing restores the others.\n", "deletions", "restore", "1", "2")
	expect(0, "restored 2 plants\n", fern(11, 1)+"\n"+fern(13, 3)+"\nleft out, because its id is taken: "+fern(12, 2)+"\n",
		"deletions", "restore", "--by-role=plantstore_owner", "--since=2026-07-01", "--skip-existing", "--yes")
	expect(0, "restored 0 plants\n", "left out, because its id is taken: "+fern(12, 2)+"\n", "deletions", "restore", "2", "--skip-existing")
	execute(t, owner, `ALTER TABLE plants ADD note text`)
	expect(0, `\{\n  "cascaded": \[\],\n  "deleted_again": 0,\n  "dry_run": false,\n  "notices": \[\n    "column \\"note\\" of public.plants is new and takes its default"\n  \],\n  "restored": \[\n    14\n  \],\n  "taken": \[\]\n\}\n`, "",
		"deletions", "restore", "--plant=14", "--yes", "--json")
	execute(t, owner, `DELETE FROM plants WHERE id = 14`)
	ids, _, err := os.Pipe() // of a shell's loop, which nobody ends
	if err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := answering(t, ids, "deletions", "restore", "--plant=14", "--migrate-database-url="+owner.Config().ConnString()); code != 2 || !strings.HasSuffix(stderr, "use --yes\n") {
		t.Errorf("restore that reads from a pipe: got exit code %d, %q; want 2 and advice", code, stderr)
	}
	for _, tt := range []struct{ answer, stdout, end string }{{"n\n", "", "plantstore: nothing was restored\n"}, {"Yes \n", "restored 1 plant\n", ""}} {
		stdout, stderr, _ := answering(t, strings.NewReader(tt.answer), "deletions", "restore", "--plant=14", "--migrate-database-url="+owner.Config().ConnString())
		if stdout != tt.stdout || !strings.HasSuffix(stderr, "\nRestore 1 plant? [y/N] "+tt.end) || strings.Count(stderr, "Fern") != 1 {
			t.Errorf("restore, answered %q: got %q, %q; want %q, and the plant, the question and %q", tt.answer, stdout, stderr, tt.stdout, tt.end)
		}
	}
	for _, args := range []string{"", "1 --by=shop", "--by=shop", "--by=shop --by-role=x --since=1h", "1 --sql --plants-only", "1 --sql --json", "1 --sql --dry-run", "1 --sql --fire-triggers", "1 --sql --skip-existing"} {
		expect(2, "", ".*plantstore: .*", append([]string{"deletions", "restore"}, strings.Fields(args)...)...)
	}
}

func TestDeletionsPrintSQL(t *testing.T) {
	t.Parallel()
	owner, expect := ledgerOf(t)
	script := expect(0, `BEGIN;
SET LOCAL [^\n]*
-- plant 12 "Fern <12>" \(deletion 2, [^\n]*\)
INSERT INTO public\.plants \("id", "name", "created_at"\) OVERRIDING SYSTEM VALUE
SELECT \(v\.plant\)\."id", \(v\.plant\)\."name", \(v\.plant\)\."created_at"
FROM [^\n]* id = ANY \('\{2\}'\) [^\n]*;
UPDATE [^\n]* id = ANY \('\{2\}'\);
COMMIT;
`, "", "deletions", "show", "2", "--sql")
	execute(t, owner, script, pgx.QueryExecModeSimpleProtocol)
	execute(t, owner, script, pgx.QueryExecModeSimpleProtocol) // nothing is left to restore
	expect(0, `.*\nrestored by +plantstore_owner\n.*`, "", "deletions", "show", "2")
	expect(0, `BEGIN;.*ANY \('\{1,3\}'\);\nCOMMIT;\n`, "", "deletions", "restore", "--by-role=plantstore_owner", "--since=2026-07-01", "--sql")
}

func TestDeletionsPurge(t *testing.T) {
	t.Parallel()
	owner, expect := ledgerOf(t)
	execute(t, owner, `UPDATE plantstore.deletions SET deleted_at = now() - interval '366 days' WHERE id < 4`)
	expect(2, "", `plantstore: .*--older-than is 6d: it must be at least 7d, so that the ledger recognizes repeated requests\n`,
		"deletions", "purge", "--older-than=6d")
	expect(0, "would purge entries older than 365d: 3\n", "", "deletions", "purge", "--older-than=365d", "--dry-run")
	expect(0, "purged entries older than 365d: 3\n", "", "deletions", "purge", "--older-than=365d")
	expect(0, `\{\n  "dry_run": false,\n  "entries": 0\n\}\n`, "", "deletions", "purge", "--older-than=8760h", "--json")
	execute(t, owner, `INSERT INTO plantstore.deletions (plant_id, deleted_at, deleted_by) SELECT i, now() - interval '8 days', 'script' FROM generate_series(1, 20000) i;
		CREATE FUNCTION plantstore.keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
		CREATE TRIGGER keep BEFORE DELETE ON plantstore.deletions FOR EACH ROW WHEN (OLD.plant_id = 20000) EXECUTE FUNCTION plantstore.keep()`)
	expect(1, "", `plantstore: .*no.*; purged entries: \d+, run the command again for the rest\n`, "deletions", "purge", "--older-than=7d")
}
