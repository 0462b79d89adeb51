package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/pgtest"
	"plantstore/internal/postgres"
)

func TestUndoAThousandDeletionsByteForByte(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	owner := pgtest.Connect(t, database.Owner)
	execute(t, owner, `
		CREATE TABLE nurseries (id int PRIMARY KEY);
		INSERT INTO nurseries SELECT generate_series(0, 9);
		CREATE TYPE light AS ENUM ('sun', 'half "shade"', 'shade');
		CREATE TYPE size AS (height numeric, unit text);
		ALTER TABLE plants ALTER id SET GENERATED ALWAYS,
			ADD nursery int REFERENCES nurseries, ADD parent bigint REFERENCES plants, ADD sku uuid UNIQUE,
			ADD price numeric, ADD weight float8, ADD seen timestamptz, ADD photo bytea, ADD tags text[], ADD care jsonb,
			ADD light light, ADD size size, ADD every interval, ADD notes text,
			ADD label text GENERATED ALWAYS AS (upper(name)) STORED;
		INSERT INTO plants (name, created_at, nursery, parent, sku, price, weight, seen, photo, tags, care, light, size, every, notes)
		SELECT 'Plant ' || i || ' "Füße" 🌱', timestamptz '2026-01-01' + i * interval '1.000001 s', i % 10,
			CASE WHEN i % 7 = 0 THEN i - 1 END, gen_random_uuid(), (i * 1.10)::numeric(10,4),
			CASE i % 5 WHEN 0 THEN 'NaN' WHEN 1 THEN '-Infinity' ELSE exp(i * 0.5) END, CASE i % 6 WHEN 0 THEN 'infinity' ELSE now() - i * interval '1 day' END,
			sha256(i::text::bytea), CASE i % 4 WHEN 0 THEN '{}' WHEN 1 THEN NULL ELSE ARRAY['a,"b', NULL, i::text] END,
			jsonb_build_object('water', i / 3.0, 'never', NULL), (ARRAY['sun', 'half "shade"', 'shade'])[1 + i % 3]::light,
			CASE i % 3 WHEN 0 THEN ROW(i / 7.0, 'cm')::size WHEN 1 THEN ROW(NULL, NULL)::size END, i * interval '1 month -3 days 4.000005 s',
			CASE i % 2 WHEN 0 THEN E'two\nlines \\ ''quoted''' ELSE '' END
		FROM generate_series(1, 1100) i`)
	image := func() []byte {
		t.Helper()
		var b bytes.Buffer
		for _, what := range []string{
			`SELECT * FROM plants ORDER BY id`,
			`SELECT attnum, attname, format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated
				FROM pg_attribute WHERE attrelid = 'plants'::regclass AND attnum > 0 ORDER BY attnum`,
		} {
			if _, err := owner.PgConn().CopyTo(t.Context(), &b, `COPY (`+what+`) TO STDOUT (FORMAT binary)`); err != nil {
				t.Fatal(err)
			}
		}
		return b.Bytes()
	}
	before := image()

	token := createToken(t, database.Owner, "runaway")
	p := start(t, "serve", "--database-url="+database.App, "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s")
	public, admin := p.addresses(t)
	waitReady(t, admin, http.StatusOK)
	began := time.Now().Add(-time.Second).UTC().Format(time.RFC3339Nano)
	// Plants refer to the one before them, so each client begins at its end.
	const clients, each = 10, 100
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			for i := range each {
				id := 1100 - (i*clients + client)
				var code int
				var body string
				eventually(func() bool { // the one that refers to it is gone
					code, body = send(t, http.MethodDelete, fmt.Sprintf("%s/plants/%d", public, id), token)
					return code != http.StatusConflict
				})
				if code != http.StatusNoContent {
					t.Errorf("DELETE of plant %d: %d %s", id, code, body)
				}
			}
		})
	}
	wg.Wait()
	var left int
	if err := owner.QueryRow(t.Context(), `SELECT count(*) FROM plants`).Scan(&left); err != nil || left != 100 {
		t.Fatalf("%d plants left, %v; want 100", left, err)
	}

	expect := expecting(t, database.Owner)
	restore := []string{"deletions", "restore", "--by=runaway", "--since=" + began}
	expect(2, "", `(Restore 1000 plants deleted by runaway from \S+Z to \S+Z\? \[y/N\] )?plantstore: nobody is at standard input to agree: use --yes\n`, restore...)
	expect(0, "restored 1000 plants\n", "", append(restore, "--yes", "--as=Ada")...)
	if after := image(); !bytes.Equal(before, after) {
		t.Errorf("plants are %d bytes, sum of differences:\n%s", len(after), cmp.Diff(before, after))
	}
	expect(0, "nothing to restore\n", "", append(restore, "--yes")...)
	// Not every number is taken: a batch that was refused has used some up.
	var first int64
	if err := owner.QueryRow(t.Context(), `SELECT min(id) FROM plant_deletions`).Scan(&first); err != nil {
		t.Fatal(err)
	}
	expect(0, `.*"restored_by": "Ada".*`, "", "deletions", "show", fmt.Sprint(first), "--json")
}

func TestDeletions(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	owner := pgtest.Connect(t, database.Owner)
	execute(t, owner, `
		INSERT INTO plants (id, name, created_at) SELECT i, 'Fern <' || i || '>', '2026-01-01Z' FROM generate_series(1, 5) i;
		DELETE FROM plants WHERE id = 1; DELETE FROM plants WHERE id = 2; DELETE FROM plants WHERE id = 3`)
	execute(t, pgtest.Connect(t, database.App), `
		BEGIN; SELECT set_config('plantstore.request', '{4,shop,r-4,k-4}', true);
		DELETE FROM public.plants WHERE id = 4; COMMIT`)
	execute(t, owner, `
		UPDATE plant_deletions SET deleted_at = '2026-07-01 12:00:00.123456Z'::timestamptz + id * interval '1 hour'`)
	expect := expecting(t, database.Owner)

	expect(0, `ID  PLANT  DELETED AT            BY                     REQUEST  RESTORED AT
4   4      2026-07-01T16:00:00Z  shop                   r-4      -
3   3      2026-07-01T15:00:00Z  role plantstore_owner  -        -
`, `there are more: add --before=3 for the next page\n`, "deletions", "list", "--limit=2")
	expect(0, `\[.*\]\n`, `there are more: add --before=2 for the next page\n`, "deletions", "list", "--limit=3", "--json")
	expect(0, `ID.*\n1 [^\n]*\n`, "", "deletions", "list", "--limit=4")
	expect(0, `\[.*\]\n`, "", "deletions", "list", "--limit=4", "--json")
	expect(0, "\\[\\]\n", "", "deletions", "list", "--plant=99", "--json")
	expect(0, `ID.*\n2 .*\n1 [^\n]*\n`, "", "deletions", "list", "--before=3")
	expect(0, `ID.*\n3 [^\n]*\n`, "", "deletions", "list", "--by-role=plantstore_owner", "--since=2026-07-01T15:00:00Z", "--until=2026-07-02", "--plant=3")
	expect(0, `ID[^\n]*\n`, "", "deletions", "list", "--since=0s")
	out := expect(0, `.*`, "", "deletions", "list", "--request=r-4", "--json")
	var got []map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{{
		"id": 4.0, "plant_id": 4.0, "plant": []any{
			map[string]any{"name": "id", "type": "bigint", "value": "4"},
			map[string]any{"name": "name", "type": "text", "value": "Fern <4>"},
			map[string]any{"name": "created_at", "type": "timestamp with time zone", "value": "2026-01-01 00:00:00+00"},
		},
		"deleted_at": "2026-07-01T16:00:00.123456Z", "deleted_by": "shop", "session_role": "plantstore_app", "request_id": "r-4", "idempotency_key": "k-4",
	}}
	for _, m := range got { // times may come in another zone
		when, err := time.Parse(time.RFC3339, m["deleted_at"].(string))
		if err != nil {
			t.Fatal(err)
		}
		m["deleted_at"] = when.UTC().Format(time.RFC3339Nano)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("list --json (-want +got):\n%s", diff)
	}

	expect(0, `deletion         4
plant            4
deleted at       2026-07-01T16:00:00.123456Z
deleted by       shop
logged in as     plantstore_app
request          r-4
idempotency key  k-4

COLUMN      TYPE                      VALUE
id          bigint                    4
name        text                      Fern <4>
created_at  timestamp with time zone  2026-01-01 00:00:00\+00
`, "", "deletions", "show", "4")
	expect(1, "", `plantstore: there is no deletion 9: see 'plantstore deletions list'\n`, "deletions", "show", "9")

	execute(t, owner, `ALTER TABLE plants DROP created_at, ADD price numeric DEFAULT 1; INSERT INTO plants (id, name) VALUES (2, 'x')`)
	expect(1, "", `plantstore: nothing was restored, because of 2 deletions:
  deletion 8: the ledger has no such entry; was it purged\?
  deletion 9: the ledger has no such entry; was it purged\?
`, "deletions", "restore", "9", "1", "8")
	many := strings.Fields("deletions restore")
	for id := range 21 {
		many = append(many, strconv.Itoa(101+id))
	}
	expect(1, "", `plantstore: nothing was restored, because of 21 deletions:(?:\n  deletion 1\d\d: the ledger has no such entry; was it purged\?){20}\n  and 1 more\n`, many...)
	expect(1, "", `plantstore: nothing was restored, because of 1 deletion:
  deletion 2, plant 2: a plant with this id exists again
--skip-existing leaves out plants whose id is taken again.
Mend that, or leave them out with --except.
`, "deletions", "restore", "--by-role=plantstore_owner", "--since=2026-07-01", "--yes")
	expect(1, "", `plantstore: nothing was restored, because of 1 deletion:
  deletion 2, plant 2: a plant with this id exists again
`, "deletions", "restore", "2")
	untouched := func() (state string) {
		t.Helper()
		if err := owner.QueryRow(t.Context(), `SELECT concat((SELECT string_agg(p::text, ' ' ORDER BY id) FROM plants p),
			(SELECT string_agg(d::text, ' ' ORDER BY id) FROM plant_deletions d))`).Scan(&state); err != nil {
			t.Fatal(err)
		}
		return state
	}
	before := untouched()
	expect(1, "", `plantstore: nothing would be restored, because of 1 deletion:
  deletion 4, plant 4: column "created_at" \(timestamp with time zone\) is gone: "2026-01-01 00:00:00\+00" has no place
--lossy restores what is not as it was, too.
`, "deletions", "restore", "4", "--dry-run")
	expect(0, `would restore 1 plant
new columns, would take their default: price
not as it was, the ledger has the values:
  deletion 4, plant 4: column "created_at" \(timestamp with time zone\) is gone: "2026-01-01 00:00:00\+00" has no place
`, "", "deletions", "restore", "4", "--lossy", "--dry-run")
	expect(0, "would restore 2 plants\n.*", "", "deletions", "restore", "--by-role=plantstore_owner", "--since=2026-07-01", "--except=2", "--lossy", "--dry-run")
	expect(0, "would restore 2 plants\nleft out, because a plant with their id exists again: 1 plant\n.*", "", "deletions", "restore", "--by-role=plantstore_owner", "--since=2026-07-01", "--skip-existing", "--lossy", "--dry-run")
	expect(0, "would restore 0 plants\nleft out, because a plant with their id exists again: 1 plant\n.*", "", "deletions", "restore", "2", "--skip-existing", "--dry-run")
	expect(1, "", `plantstore: nothing was restored: --except names deletion 22, which is not one of those to be undone\n`,
		"deletions", "restore", "--by-role=plantstore_owner", "--since=2026-07-01", "--except=2,22", "--lossy", "--yes")
	if after := untouched(); after != before {
		t.Errorf("a dry run changed something:\n%s", cmp.Diff(before, after))
	}
	expect(1, "", `plantstore: nothing was restored, because of 1 deletion:
  deletion 4, plant 4: column "created_at" \(timestamp with time zone\) is gone: "2026-01-01 00:00:00\+00" has no place
--lossy restores what is not as it was, too.
`, "deletions", "restore", "4")
	expect(0, `restored 1 plant
new columns, took their default: price
not as it was, the ledger has the values:
  deletion 4, plant 4: column "created_at" \(timestamp with time zone\) is gone: "2026-01-01 00:00:00\+00" has no place
`, "", "deletions", "restore", "4", "--lossy")
	expect(0, `.*restored at      20.*restored by      plantstore_owner\n.*`, "", "deletions", "show", "4")
	expect(0, "restored 2 plants\n.*", "", "deletions", "restore", "--by-role=plantstore_owner", "--since=2026-07-01", "--until=2026-07-02", "--except=2", "--yes", "--lossy")
	execute(t, owner, `DELETE FROM plants WHERE id = 2`)
	expect(0, "nothing to restore\n", "left out, because deleted again since: 1 plant\n",
		"deletions", "restore", "--by-role=plantstore_owner", "--since=2026-07-01", "--until=2026-07-02", "--yes")

	expect(1, "", `plantstore: nothing was restored, because of 1 deletion:
  deletion 2, plant 2: [^\n]*
--superseded brings the earlier row back, as if the later deletion had not been.
`, "deletions", "restore", "2", "--lossy")
	execute(t, owner, `ALTER TABLE plants DROP price; ALTER TABLE plants ADD price int; INSERT INTO plants (id, name) VALUES (77, 'Yucca'); DELETE FROM plants WHERE id = 77;
		ALTER TABLE plants DROP price; ALTER TABLE plants ADD price int`)
	expect(0, "restored 2 plants\ncolumns made again since, took the values of those that had their names: price\nof another type today, took the same text: column \"price\" \\(numeric, today integer\\)\n",
		"left out, because deleted again since: 1 plant\n", "deletions", "restore", "--by-role=plantstore_owner", "--since=2026-07-01", "--yes")

	execute(t, owner, `UPDATE plant_deletions SET deleted_at = now() - interval '366 days' WHERE id < 4`)
	expect(2, "", `plantstore: --older-than is 6d: it must be at least 7d, because a client may still send a request again whose deletion is younger\n`,
		"deletions", "purge", "--older-than=6d")
	expect(0, "would purge 3 ledger rows older than 365d\n", "", "deletions", "purge", "--older-than=365d", "--dry-run")
	expect(0, "purged 3 ledger rows older than 365d\n", "", "deletions", "purge", "--older-than=365d")
	expect(0, "purged 0 ledger rows older than 365d\n", "", "deletions", "purge", "--older-than=8760h")
}

func TestDeletionsAndTokensOfADatabaseThatIsNotMigrated(t *testing.T) {
	t.Parallel()
	expect := expecting(t, pgtest.Empty(t).Owner)
	for _, args := range []string{
		"deletions list", "deletions list --json", "deletions show 1", "deletions restore 1", "deletions restore --by=shop --since=1h --yes",
		"deletions purge --older-than=365d", "token list", "token create shop", "token rotate shop", "token revoke shop", "token budget shop 5/1h",
	} {
		expect(1, "(?:ID[^\n]*\n)?", `plantstore: (?:[a-z ]+: )+the schema is behind \(relation "public\.\w+" does not exist\): apply the migrations with 'plantstore migrate up'\n`,
			strings.Fields(args)...)
	}
}

// What others wrote into settings, names and values does not reach the terminal as
// it is, nor can it be taken for something else.
func TestDeletionsAreShownEscaped(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	owner := pgtest.Connect(t, database.Owner)
	execute(t, owner, strings.ReplaceAll(`
		CREATE TYPE "ti<ESC>tle" AS ENUM ('x');
		ALTER TABLE plants DROP created_at, ADD "co<ESC>lour" text, ADD label text GENERATED ALWAYS AS (upper(name)) STORED, ADD a text, ADD b text, ADD c text, ADD d text, ADD e "ti<ESC>tle"[];
		INSERT INTO plants (id, name, "co<ESC>lour", b, c, d) VALUES (7, E'two\nlines\u202e', E'\x1b[2Jred', '', 'null', '"quoted"')`, "<ESC>", "\x1b"))
	execute(t, pgtest.Connect(t, database.App), `
		BEGIN; SELECT set_config('plantstore.request', ARRAY['7', E'shop\x1b[2J\n4  4', E'r\x07', E'k\u009b']::text, true);
		DELETE FROM public.plants WHERE id = 7; COMMIT`)
	expect := expecting(t, database.Owner)
	expect(0, `ID  PLANT  DELETED AT            BY                   REQUEST  RESTORED AT
1   7      \S+  "shop\\x1b\[2J\\n4  4"  "r\\a"    -
`, "", "deletions", "list")
	expect(0, `deletion         1
plant            7
deleted at       \S+
deleted by       "shop\\x1b\[2J\\n4  4"
logged in as     plantstore_app
request          "r\\a"
idempotency key  "k\\u009b"

COLUMN        TYPE                          VALUE
id            bigint                        7
name          text                          "two\\nlines\\u202e"
"co\\x1blour"  text                          "\\x1b\[2Jred"
label         text, computed: not recorded  
a             text                          null
b             text                          ""
c             text                          "null"
d             text                          "\\"quoted\\""
e             "public.\\"ti\\x1btle\\"\[\]"      null
`, "", "deletions", "show", "1")
	execute(t, owner, `ALTER TABLE plants DROP "co`+"\x1b"+`lour"`)
	expect(1, "", `plantstore: nothing was restored, because of 1 deletion:
  deletion 1, plant 7: column "co\\x1blour" \(text\) is gone: "\\x1b\[2Jred" has no place
--lossy restores what is not as it was, too.
`, "deletions", "restore", "1")
}

func TestRestoreAsksBeforeItRunsTheCodeOfOthers(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	execute(t, pgtest.Connect(t, database.Super), `
		CREATE SCHEMA shop AUTHORIZATION plantstore_app; GRANT USAGE ON SCHEMA shop TO PUBLIC; GRANT TRIGGER ON plants TO plantstore_app;
		INSERT INTO plants (id, name) VALUES (1, 'fern'); DELETE FROM plants; SET ROLE plantstore_app;
		CREATE FUNCTION shop."e`+"\x1b"+`vil"() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
		CREATE TRIGGER evil BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION shop."e`+"\x1b"+`vil"()`)
	expect := expecting(t, database.Owner)
	expect(1, "", `plantstore: nothing was restored: inserting into public.plants would run this, by which others could act with your rights:
  trigger evil on table public.plants calls shop."e\\x1bvil"\(\) for plantstore_app
Restore as a role that has no more rights than those, have a function that looks names up SET search_path to schemas where nobody else creates \(pg_catalog, pg_temp, if it needs no other\), or accept it with --run-triggers
`, "deletions", "restore", "1")
	expect(1, "", `plantstore: nothing would be restored: .*--run-triggers\n`, "deletions", "restore", "1", "--dry-run")
	expect(0, "would restore 1 plant\n", "", "deletions", "restore", "1", "--run-triggers", "--dry-run")
	expect(0, "restored 1 plant\n", "", "deletions", "restore", "1", "--run-triggers")
}

func TestBadDeletionsCommandLines(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"list --since=yesterday":                               `--since: "yesterday" is no time: want one as 2026-07-01T12:00:00Z, a date as 2026-07-01, or how long ago, as 2h or 7d`,
		"list --until=-2h":                                     `--until: "-2h" is no time: want one as 2026-07-01T12:00:00Z, a date as 2026-07-01, or how long ago, as 2h or 7d`,
		"list --limit=10001":                                   `deletions list: --limit is 10001: it must be from 1 to 10000`,
		"list --limit=0":                                       `deletions list: --limit is 0: it must be from 1 to 10000`,
		"restore":                                              `deletions restore: name the deletions by id, or all of somebody's with --by or --by-role, and --since`,
		"restore 1 --by=shop --since=1h":                       `deletions restore: name the deletions by id, or all of somebody's with --by or --by-role, and --since`,
		"restore --by=shop --since=1h --superseded":            `deletions restore: --superseded goes with ids: with --by and --by-role, what was deleted again later is left out`,
		"restore --by=shop":                                    `deletions restore: --by and --by-role want --since: when did the deletions to be undone begin?`,
		"restore --by=x --by-role=y --since=1h":                `deletions restore: --by and --by-role do not go together: restore the deletions of one after those of the other`,
		"restore 1 --since=1h":                                 `deletions restore: --since, --until and --except go with --by or --by-role`,
		"restore --by=x --since=2026-07-01 --until=2026-07-01": `deletions restore: --until (2026-07-01T00:00:00Z) is not after --since (2026-07-01T00:00:00Z)`,
		"list --by=x --by-role=y":                              `deletions list: --by and --by-role do not go together: nothing was deleted by both`,
		"list --since=2026-07-02 --until=2026-07-01":           `deletions list: --until (2026-07-01T00:00:00Z) is not after --since (2026-07-02T00:00:00Z)`,
		"purge":                            `missing flags: --older-than=AGE`,
		"purge --older-than=1y":            `--older-than: "1y" is no age: want one as 365d or 36h`,
		"purge --older-than=99999999999d":  `--older-than: "99999999999d" is no age: want one as 365d or 36h`,
		"show":                             `expected "<id>"`,
		"restore 1 --database-url=nowhere": `--database-url cannot be read as a PostgreSQL URL or DSN, such as postgres://user:password@host:5432/database`,
	} {
		_, stderr, code := command(t, append([]string{"deletions"}, strings.Fields(args)...)...)
		if got := lastLine(stderr); got != "plantstore: "+want || code == 0 {
			t.Errorf("deletions %s: exit code %d, %q\nwant not 0, %q", args, code, got, "plantstore: "+want)
		}
	}
}

func TestDeleter(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]postgres.Recorded{
		"shop":         {DeletedBy: "shop"},
		"role shop":    {DeletedBy: "shop", Direct: true},
		`"role shop"`:  {DeletedBy: "role shop"},
		`"ro\x1ble"`:   {DeletedBy: "ro\x1ble"},
		`role "r\x1b"`: {DeletedBy: "r\x1b", Direct: true},
	} {
		if got := deleter(r); got != want {
			t.Errorf("deleter of %+v: %s, want %s", r, got, want)
		}
	}
}

// Values come whole, large ones and such as are no text.
func TestDeletionAsJSON(t *testing.T) {
	t.Parallel()
	for name, value := range map[string][]byte{
		"text": []byte(`"fern"`), "no text": {'f', 0xff}, "large": bytes.Repeat([]byte("x"), 3*piece), "large and no text": bytes.Repeat([]byte{0xff}, 2*piece),
		"as large as a piece": bytes.Repeat([]byte("x"), piece), "a letter at the seam": []byte(strings.Repeat("x", piece-1) + "ü" + strings.Repeat("y", piece)),
		"a long letter at the seam": []byte(strings.Repeat("x", piece-3) + "🌱" + strings.Repeat("y", piece)),
	} {
		var text bytes.Buffer
		w := bufio.NewWriter(&text)
		r := postgres.Recorded{Plant: []postgres.RecordedValue{{Column: "a", Value: value}, {Column: "b", Value: []byte("b")}, {Column: "c", Value: value}}}
		if err := writeDeletion(w, "", r, "", ""); err != nil {
			t.Fatal(err)
		}
		w.Flush()
		var got deletionJSON
		if err := json.Unmarshal(text.Bytes(), &got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := []byte(nil)
		if !utf8.Valid(value) {
			want = value
		}
		for _, i := range []int{0, 2} {
			if v := got.Plant[i]; v.Value == nil || *v.Value != strings.ToValidUTF8(string(value), "\ufffd") && want == nil || !bytes.Equal(v.Bytes, want) {
				t.Errorf("%s: column %s is not what it was, or has %d bytes beside it, want %d", name, v.Name, len(v.Bytes), len(want))
			}
		}
		if b := got.Plant[1].Value; b == nil || *b != "b" {
			t.Errorf("%s: column b is %v, want b", name, b)
		}
	}
}

// A value that was not translated is not taken for UTF-8, also where it looks like that.
func TestAnUntranslatedValueAsJSON(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"a\xc3\x81", strings.Repeat("\xc3\x81", piece)} {
		var text bytes.Buffer
		w := bufio.NewWriter(&text)
		r := postgres.Recorded{Plant: []postgres.RecordedValue{{Column: "a", Value: []byte(value), Untranslated: true}}}
		if err := writeDeletion(w, "", r, "", ""); err != nil {
			t.Fatal(err)
		}
		w.Flush()
		var got deletionJSON
		if err := json.Unmarshal(text.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		want := strings.NewReplacer("\xc3", "\ufffd", "\x81", "\ufffd").Replace(value)
		if v := got.Plant[0]; v.Value == nil || *v.Value != want || string(v.Bytes) != value {
			t.Errorf("%d bytes: the value is not U+FFFD for each byte that is not ASCII, or the bytes are others", len(value))
		}
	}
}

func TestIsYes(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{"y\n": true, " Yes \n": true, "": false, "\n": false, "n\n": false, "yy\n": false, "no\n": false} {
		if got := isYes(line); got != want {
			t.Errorf("isYes(%q) = %v, want %v", line, got, want)
		}
	}
}

func TestMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for text, want := range map[string]time.Time{
			"2026-07-01":                       time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC),
			"2026-07-01T12:00:00.000001+02:00": time.Date(2026, 7, 1, 10, 0, 0, 1000, time.UTC),
			"90m":                              time.Now().Add(-90 * time.Minute),
			"7d":                               time.Now().Add(-7 * 24 * time.Hour),
		} {
			var got moment
			if err := got.UnmarshalText([]byte(text)); err != nil || !got.Equal(want) {
				t.Errorf("%q is %s, %v; want %s", text, got, err, want)
			}
		}
	})
}

// What fails in the middle says how far it got.
func TestAPurgeThatFails(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	execute(t, pgtest.Connect(t, database.Owner), `
		INSERT INTO plants (id, name) SELECT i, 'fern' FROM generate_series(1, 1500) i; DELETE FROM plants;
		UPDATE plant_deletions SET deleted_at = now() - interval '30 days';
		CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'kept'; END $$;
		CREATE TRIGGER kept BEFORE DELETE ON plant_deletions FOR EACH ROW WHEN (OLD.id > 1000) EXECUTE FUNCTION kept();
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1); RETURN OLD; END $$;
		CREATE TRIGGER slow BEFORE DELETE ON plant_deletions FOR EACH ROW WHEN (OLD.id = 1) EXECUTE FUNCTION slow()`)
	expecting(t, database.Owner)(1, "", `purged 1000 of 1500\nplantstore: .*kept.*; at least 1000 of 1500 are purged, run it again for the rest\n`, "deletions", "purge", "--older-than=8d")
}

// What is being restored is not purged, and not told as purged.
func TestAPurgeTellsWhatItPurged(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	execute(t, pgtest.Connect(t, database.Owner), `
		INSERT INTO plants (id, name) SELECT i, 'fern' FROM generate_series(1, 3) i; DELETE FROM plants;
		UPDATE plant_deletions SET deleted_at = now() - interval '30 days'`)
	execute(t, pgtest.Connect(t, database.Owner), `BEGIN; SELECT FROM plant_deletions WHERE id = 2 FOR UPDATE`)
	expect := expecting(t, database.Owner)
	expect(0, "would purge 3 ledger rows older than 8d\n", "", "deletions", "purge", "--older-than=8d", "--dry-run")
	expect(0, "purged 2 ledger rows older than 8d\n", "", "deletions", "purge", "--older-than=8d")
}

// Who leaves plants out learns which of the others refer to those ids.
func TestARestoreTellsWhatRefersToPlantsThatAreLeftOut(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	execute(t, pgtest.Connect(t, database.Owner), `ALTER TABLE plants ADD parent bigint REFERENCES plants; INSERT INTO plants (id, name, parent) VALUES (1, 'fern', NULL), (2, 'ivy', 1), (3, 'moss', 2);
		DELETE FROM plants; INSERT INTO plants (id, name) VALUES (1, 'new')`)
	expecting(t, database.Owner)(0, `restored 2 plants
left out, because a plant with their id exists again: 1 plant
these refer to one that was left out, and so to the plant that has its id now:
  plant 2
`, "", "deletions", "restore", "1", "2", "3", "--skip-existing")
}

// How many plants are put back comes before how many there are.
func TestARestoreTellsHowFarItIs(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	execute(t, pgtest.Connect(t, database.Owner), `INSERT INTO plants (id, name) SELECT i, 'fern' FROM generate_series(1, 3) i;
		DELETE FROM plants WHERE id = 1; DELETE FROM plants WHERE id = 2; DELETE FROM plants WHERE id = 3; ALTER TABLE plants ADD CHECK (id <> 2)`)
	var c deletionsRestore
	c.DatabaseURL, c.IDs = database.Owner, []int64{1, 2, 3}
	console := &console{out: io.Discard, err: io.Discard, line: newStatusLine(io.Discard, "plantstore deletions restore")}
	defer console.line.end()
	if err := c.Run(t.Context(), console); err == nil || !strings.Contains(err.Error(), "deletion 2, plant 2: ") {
		t.Errorf("%v, want that plant 2 is in the way", err)
	}
	if got, want := console.line.at, ": put back 2 of 3,"; got != want { // the last of what it told
		t.Errorf("on the terminal %q, want %q", got, want)
	}
}

// Who interrupts a restore reads what came of it.
func TestAnInterruptedRestoreSaysSo(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, hold, by, want string }{
		{"before the commit", `BEGIN; LOCK TABLE plants`, "1", "restore: nothing was restored: interrupted"},
		{"at the commit", `CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				EXECUTE 'DECLARE held CURSOR WITH HOLD FOR SELECT pg_advisory_xact_lock(1)'; RETURN NULL; END $$;
			CREATE TRIGGER held AFTER INSERT ON plants FOR EACH ROW EXECUTE FUNCTION held(); SELECT pg_advisory_lock(1)`, "1",
			"restore: the commit was not answered, so all is restored or nothing, and to run it again tells which: interrupted"},
		{"before it begins", `BEGIN; LOCK TABLE plant_deletions`, "--by-role=plantstore_owner --since=1h --yes",
			"nothing was restored: look for deletions: interrupted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			conn := pgtest.Connect(t, database.Super)
			execute(t, conn, `INSERT INTO plants (id, name) VALUES (1, 'fern'); DELETE FROM plants`)
			execute(t, conn, tt.hold)
			ctx, interrupt := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				args := append([]string{"deletions", "restore", "--database-url=" + database.Owner}, strings.Fields(tt.by)...)
				done <- run(ctx, nil, args, io.Discard, io.Discard)
			}()
			for waiting := false; !waiting; {
				if err := conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted
					AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`).Scan(&waiting); err != nil {
					t.Fatal(err)
				}
			}
			interrupt()
			if err := <-done; err == nil || err.Error() != tt.want {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

// Who agrees has to be there: what comes out of another program is no answer.
func TestNobodyAgreesThroughAPipe(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	owner := pgtest.Connect(t, database.Owner)
	execute(t, owner, `INSERT INTO plants (name) VALUES ('x'); DELETE FROM plants`)
	cmd := inProcess(t, []string{"DATABASE_URL=" + database.Owner}, "deletions", "restore", "--by-role=plantstore_owner", "--since=1h")
	cmd.Stdin = strings.NewReader("y\n")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	_ = cmd.Run() // the exit code tells
	if code, want := cmd.ProcessState.ExitCode(), "plantstore: nobody is at standard input to agree: use --yes\n"; code != exitUsage || stderr.String() != want {
		t.Errorf("exit code %d, %q; want %d, %q", code, stderr.String(), exitUsage, want)
	}
	var plants int
	if err := owner.QueryRow(t.Context(), `SELECT count(*) FROM plants`).Scan(&plants); err != nil || plants != 0 {
		t.Errorf("%d plants, %v; want none restored", plants, err)
	}
}

// A restore of somebody's deletions goes on after a yes only.
func TestAsk(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for answer, want := range map[string]error{
		"y\n": nil, "Yes\n": nil, " YES \n": nil,
		"n\n": refused, "no\n": refused, "\n": refused, "yesterday\n": refused,
		"": errNobody, "y": errNobody, // the end of the input instead of a line
	} {
		var out strings.Builder
		if got := ask(t.Context(), strings.NewReader(answer), &out, "Restore?", refused); got != want {
			t.Errorf("ask with the answer %q: %v, want %v", answer, got, want)
		}
		if got, want := out.String(), "Restore? [y/N] "; got != want {
			t.Errorf("asked %q, want %q", got, want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	silent, _ := io.Pipe()
	if got := ask(ended, silent, io.Discard, "Restore?", refused); got != refused {
		t.Errorf("ask when the command is interrupted: %v, want %v", got, refused)
	}
}
