package postgres

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	roles "plantstore/deploy/postgres"
	"plantstore/internal/auth"
	"plantstore/internal/localpg"
	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// ledgerOf returns the ledger as its owner sees it.
func TestRestoreIntoTodaysTable(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `
		ALTER TABLE plants ALTER id SET GENERATED ALWAYS;
		ALTER TABLE plants ADD price numeric, ADD colour text, ADD net numeric GENERATED ALWAYS AS (price / 2) STORED;
		INSERT INTO plants (name, price) VALUES ('Peace lily', 12.50), ('Aloe vera', NULL);
		DELETE FROM plants WHERE name = 'Peace lily';
		ALTER TABLE plants DROP colour, ADD stock integer NOT NULL DEFAULT 3, ADD label text GENERATED ALWAYS AS (upper(name)) STORED;
		DELETE FROM plants;
		ALTER TABLE plants DROP net;
		CREATE DOMAIN code AS text NOT NULL DEFAULT 'none';
		ALTER TABLE plants ADD code code`)

	restored, err := l.Restore(t.Context(), []int64{1, 2}, RestoreOptions{As: "Ada"})
	want := Restored{Plants: 2, Defaulted: []string{"code", "stock"}}
	if diff := cmp.Diff(want, restored); err != nil || diff != "" {
		t.Errorf("Restore: %v; (-want +got):\n%s", err, diff)
	}
	for i, want := range []string{`,12.50,3,"PEACE LILY",none)`, `,,3,"ALOE VERA",none)`} {
		if row := plantsAsText(t, s.owner)[i]; !strings.HasSuffix(row, want) {
			t.Errorf("row %s, want it to end with %s", row, want)
		}
	}
	r, err := l.Get(t.Context(), 1)
	if err != nil || r.RestoredBy != "Ada" || r.RestoredAt.IsZero() {
		t.Errorf("entry %+v, %v; want it restored by Ada", r, err)
	}
	if _, err := l.Get(t.Context(), 3); !errors.Is(err, ErrNoDeletion) {
		t.Errorf("Get(3): %v, want ErrNoDeletion", err)
	}
}

// A column that is made again, as when its type changes step by step, takes the values of
// the old one. That is told, and nothing stands in the way of another time.
func TestRestoreTellsColumnsMadeAgain(t *testing.T) {
	t.Parallel()
	const again = `ALTER TABLE plants DROP v; ALTER TABLE plants ADD v text;`
	for _, tt := range []struct {
		name, alter string
		want        []string
	}{
		{"never", `ALTER TABLE plants ADD w text`, nil},
		{"once", again, []string{"v"}},
		{"twice", again + again, []string{"v"}},
		{"several", again + `ALTER TABLE plants DROP name; ALTER TABLE plants ADD name varchar`, []string{"name", "v"}},
		{"by way of another name", `ALTER TABLE plants ADD new text; ALTER TABLE plants DROP v; ALTER TABLE plants RENAME new TO v`, []string{"v"}},
		{"as one that computes itself", `ALTER TABLE plants DROP v; ALTER TABLE plants ADD v text GENERATED ALWAYS AS ('white') STORED`, nil},
		{"in a copy of the table", `ALTER TABLE plants RENAME TO old; CREATE TABLE plants (LIKE old); ALTER TABLE old DROP v`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, l := newLedger(t)
			s.exec(t, `ALTER TABLE plants ADD v text; INSERT INTO plants (name, v) VALUES ('Fern', 'white'); DELETE FROM plants;`+tt.alter)
			restored, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{})
			if diff := cmp.Diff(tt.want, restored.Remade); err != nil || diff != "" {
				t.Fatalf("Restore: %v; made again (-want +got):\n%s", err, diff)
			}
			s.exec(t, `DELETE FROM plants`)
			for _, id := range openEntries(t, l) { // none in the copy, which has no trigger
				if restored, err := l.Restore(t.Context(), []int64{id}, RestoreOptions{}); err != nil || restored.Remade != nil {
					t.Errorf("Restore of the plant in its new form = %+v, %v; want no column made again", restored, err)
				}
			}
		})
	}
}

// A type that reads the same text may take it for something else. That is told.
func TestRestoreTellsColumnsOfAnotherType(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, alter string
		want        []string
	}{
		{"not", `ALTER TABLE plants ADD w text`, nil},
		{"altered", `ALTER TABLE plants ALTER v TYPE varchar(20)`, []string{`column "v" (character(8), today character varying(20))`}},
		{"made again", `ALTER TABLE plants DROP v; ALTER TABLE plants ADD v text`, []string{`column "v" (character(8), today text)`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, l := newLedger(t)
			s.exec(t, `ALTER TABLE plants ADD v char(8); INSERT INTO plants (name, v) VALUES ('Fern', 'white'); DELETE FROM plants;`+tt.alter)
			restored, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{})
			if diff := cmp.Diff(tt.want, restored.Retyped); err != nil || diff != "" {
				t.Errorf("Restore: %v; of another type (-want +got):\n%s", err, diff)
			}
		})
	}
}

// What a person changed in the schema since, and what it does to recorded values.
func TestRestoreNamesWhatWouldChange(t *testing.T) {
	t.Parallel()
	const copyOf = "RENAME TO old; CREATE TABLE plants "
	// As from a dump, in a server of its own, of a table whose second column was gone.
	const ofThatOid = "; UPDATE plant_shapes SET relation = 'plants'::regclass, attnums = '{1,3,4,5}'"
	tests := []struct {
		name, column, value, alter string
		want                       string // empty: it comes back as it was
	}{
		{"a smaller scale", "numeric", "12.55", "ALTER v TYPE numeric(10,1)", `column "v" (numeric, today numeric(10,1)): "12.55" becomes "12.6"`},
		{"a time zone less", "timestamptz", "'2026-07-01 12:00+02'", "ALTER v TYPE timestamp",
			`column "v" (timestamp with time zone, today timestamp without time zone): "2026-07-01 10:00:00+00" becomes "2026-07-01 10:00:00"`},
		{"a time zone more", "timestamp", "'2026-07-01 12:00'", "ALTER v TYPE timestamptz",
			`column "v" (timestamp without time zone, today timestamp with time zone): "2026-07-01 12:00:00" becomes "2026-07-01 12:00:00+00"`},
		{"a shorter float", "float8", "pi()", "ALTER v TYPE real", `column "v" (double precision, today real): "3.141592653589793" becomes "3.1415927"`},
		{"a shorter float that fits", "float8", "0.5", "ALTER v TYPE real", ``},
		{"a larger integer", "int", "7", "ALTER v TYPE bigint", ``},
		{"text", "numeric", "7.10", "ALTER v TYPE text", ``},
		{"jsonb for json", "json", `'{"a":1}'`, "ALTER v TYPE jsonb", `column "v" (json, today jsonb): "{\"a\":1}" becomes "{\"a\": 1}"`},
		{"fewer digits of a second", "timestamptz", "'2026-07-01 12:00:00.123+00'", "ALTER v TYPE timestamptz(0)",
			`column "v" (timestamp with time zone, today timestamp(0) with time zone): "2026-07-01 12:00:00.123+00" becomes "2026-07-01 12:00:00+00"`},
		{"a padded type", "text", "'ab'", "ALTER v TYPE char(3)", `column "v" (text, today character(3)): "ab" becomes "ab "`},
		{"another enum", "text", "'ab'", "ALTER v TYPE mood USING NULL", `column "v" (text, today public.mood): invalid input value for enum mood: "ab" (SQLSTATE 22P02)`},
		{"an enum without the label", "mood", "'happy'", "ALTER v TYPE sadness USING NULL", `column "v" (public.mood, today public.sadness): invalid input value for enum sadness: "happy" (SQLSTATE 22P02)`},
		{"a domain's check", "text", "'ab'", "ALTER v TYPE sku USING NULL", `column "v" (text, today public.sku): value for domain sku violates check constraint "sku_check" (SQLSTATE 23514)`},
		{"a domain that may not be null", "text", "NULL", "ALTER v TYPE code USING 'x'", `column "v" (text, today public.code): domain code does not allow null values (SQLSTATE 23502)`},
		{"a shorter text", "text", "'abcdef'", "ALTER v TYPE varchar(5) USING NULL", `column "v" (text, today character varying(5)): value too long for type character varying(5) (SQLSTATE 22001)`},
		{"shorter bits", "bit varying", "B'1010'", "ALTER v TYPE bit(3) USING NULL", `column "v" (bit varying, today bit(3)): bit string length 4 does not match type bit(3) (SQLSTATE 22026)`},
		{"a smaller number", "numeric", "123456", "ALTER v TYPE numeric(3,1) USING NULL", `column "v" (numeric, today numeric(3,1)): numeric field overflow (SQLSTATE 22003)`},
		{"a smaller integer", "bigint", "9999999999", "ALTER v TYPE int USING NULL", `column "v" (bigint, today integer): value "9999999999" is out of range for type integer (SQLSTATE 22003)`},
		{"a table that is gone", "regclass", "'pots'", "ALTER name SET DEFAULT 'x'; DROP TABLE pots", `column "v" (regclass): relation "public.pots" does not exist (SQLSTATE 42P01)`},
		{"a composite that lost an attribute", "size", "(1, 'cm')", "ALTER name SET DEFAULT 'x'; ALTER TYPE size DROP ATTRIBUTE unit", `column "v" (public.size): malformed record literal: "(1,cm)" (SQLSTATE 22P02): Too many columns`},
		{"control characters", "text", `E'a\x1b[31m\x07\n'`, "ALTER v TYPE int USING NULL", `column "v" (text, today integer): invalid input syntax for type integer: "a\x1b[31m\a\n" (SQLSTATE 22P02)`},
		{"a column that is gone", "text", `E'white\x1b'`, "DROP v", `column "v" (text) is gone: "white\x1b" has no place`},
		{"a column of long values that is gone", "text", "'a' || repeat('植', 50)", "DROP v", `column "v" (text) is gone: "a` + strings.Repeat("植", 19) + `"… has no place`},
		{"an empty column that is gone", "text", "NULL", "DROP v", ``},
		{"a column that is called otherwise", "text", "'white'", "RENAME v TO w", `column "v" (text) is called "w" today: "white" has no place`},
		{"another column of its name", "text", "'white'", "RENAME v TO w; ALTER TABLE plants ADD v text", `column "v" (text) is called "w" today, and another one "v": "white" goes there`},
		{"a column that is called otherwise, no value, and a default", "text", "NULL", "RENAME v TO w; ALTER TABLE plants ALTER w SET DEFAULT 'white'", `column "v" (text) is called "w" today: null becomes "white"`},
		{"another column of its name, no value, and a default", "text", "NULL", "RENAME v TO w; ALTER TABLE plants ALTER w SET DEFAULT 'white', ADD v text", `column "v" (text) is called "w" today: null becomes "white"`},
		{"another column of its name, and no value", "text", "NULL", "RENAME v TO w; ALTER TABLE plants ADD v text", ``},
		{"two columns with each other's names", "text", "NULL", "RENAME v TO w; ALTER TABLE plants RENAME name TO v; ALTER TABLE plants RENAME w TO name; ALTER TABLE plants ALTER v DROP NOT NULL", `column "name" (text) is called "v" today, and another one "name": "Fern" goes there`},
		{"a column that is gone, and another one of its name", "text", "NULL", "DROP name; ALTER TABLE plants RENAME v TO name", `column "name" (text) is gone, and the one that was called "v" is called "name" today: "Fern" goes there`},
		{"a column that went and came back", "text", "'white'", "DROP v; ALTER TABLE plants ADD v text", ``},
		{"a copy of the table", "text", "'white'", copyOf + "(id bigint PRIMARY KEY, name text, created_at timestamptz, v text, w text)", ``},
		{"a copy in another order of the types", "text", "'white'", copyOf + "(name text, v text, id bigint PRIMARY KEY, created_at timestamptz)", ``},
		{"a copy without a column", "text", "NULL", copyOf + "(id bigint PRIMARY KEY, created_at timestamptz, name text)", ``},
		{"a copy, and another column of its name", "text", "'white'", copyOf + "(id bigint PRIMARY KEY, name text, created_at timestamptz, w text, v text)",
			`column "v" (text) may be called "w" today: this is a copy of the table, and its columns stand in another order: "white" goes to "v"`},
		{"a copy, and two columns with each other's names", "text", "NULL", copyOf + "(id bigint PRIMARY KEY, v text, created_at timestamptz, name text)",
			`column "name" (text) may be called "v" today: this is a copy of the table, and its columns stand in another order: "Fern" goes to "name"`},
		{"a copy that has the table's oid", "text", "'white'", copyOf + "(id bigint PRIMARY KEY, name text, created_at timestamptz, v text)" + ofThatOid, ``},
		{"a copy that has the table's oid, and got a column", "text", "'white'", copyOf + "(id bigint PRIMARY KEY, name text, created_at timestamptz, v text, w text)" + ofThatOid, ``},
		{"a copy that has the table's oid, and lost a column", "text", "NULL", copyOf + "(id bigint PRIMARY KEY, name text, created_at timestamptz, v text); ALTER TABLE plants DROP v" + ofThatOid, ``},
		{"a copy that has the table's oid, and two columns with each other's names", "text", "NULL", copyOf + "(id bigint PRIMARY KEY, v text, created_at timestamptz, name text)" + ofThatOid,
			`column "name" (text) may be called "v" today: this is a copy of the table, and its columns stand in another order: "Fern" goes to "name"`},
		{"a copy, and another id", "bigint", "NULL", copyOf + "(v bigint, id bigint PRIMARY KEY, name text, created_at timestamptz)", ``},
		{"a column that computes itself now", "text", "'Fern'", "DROP v, ADD v text GENERATED ALWAYS AS (upper(name)) STORED", `column "v" (text): "Fern" becomes "FERN"`},
		{"a column that computes itself now, the same", "text", "'FERN'", "DROP v, ADD v text GENERATED ALWAYS AS (upper(name)) STORED", ``},
		{"a column that computed itself", "text GENERATED ALWAYS AS (upper(name)) STORED", "DEFAULT", "ALTER v DROP EXPRESSION", `column "v" computed itself then and does not today: its value is not put back`},
		{"another expression", "text GENERATED ALWAYS AS (upper(name)) STORED", "DEFAULT", "DROP v, ADD v text GENERATED ALWAYS AS (lower(name)) STORED", ``},
		{"a long value, at its end", "text", "repeat('植', 50) || '1.55'", "ADD w int; CREATE TRIGGER t BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION spoil()",
			`column "v" (text): …"植植植植1.55" becomes …"植植植植!"`},
		{"a long value", "text", "repeat('a', 1000000)", "ADD w int; CREATE TRIGGER t BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION spoil()",
			`column "v" (text): …"aaaaaaaaaa`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, l := newLedger(t)
			s.exec(t, `CREATE TYPE mood AS ENUM ('happy'); CREATE TYPE sadness AS ENUM ('sad'); CREATE DOMAIN sku AS text CHECK (VALUE ~ '-');
				CREATE DOMAIN code AS text NOT NULL; CREATE TABLE pots (); CREATE TYPE size AS (height int, unit text);
				CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v = left(NEW.v, -4) || ''!''; RETURN NEW; END';
				ALTER TABLE plants ADD v `+tt.column)
			s.exec(t, `INSERT INTO plants (name, v) VALUES ('Fern', `+tt.value+`); DELETE FROM plants; ALTER TABLE plants `+tt.alter)
			restored, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{})
			if tt.want == "" {
				if err != nil || restored.Plants != 1 {
					t.Errorf("Restore = %+v, %v; want it to work", restored, err)
				}
				return
			}
			refused, ok := errors.AsType[*RefusedError](err)
			if !ok || len(refused.Refusals) != 1 || !strings.HasPrefix(refused.Refusals[0].Why, tt.want) {
				t.Fatalf("Restore: %v\nwant it refused: %s", err, tt.want)
			}
			if len(refused.Refusals[0].Why) > 1000 {
				t.Errorf("the refusal is %d bytes long", len(refused.Refusals[0].Why))
			}
			restored, err = l.Restore(t.Context(), []int64{1}, RestoreOptions{Lossy: true})
			if refused.Refusals[0].Unless != "lossy" {
				if err == nil {
					t.Errorf("Restore with losses = %+v, want it refused: today's type does not take the value", restored)
				}
				return
			}
			if diff := cmp.Diff(refused.Refusals, restored.Losses); err != nil || restored.Plants != 1 || diff != "" {
				t.Errorf("Restore with losses = %+v, %v; (-refused +lost):\n%s", restored, err, diff)
			}
		})
	}
}

// Numbers tell of doubts only: a copy of the table, in a server of its own, may have its oid,
// and numbers that fit.
func TestRestoreGoesByNames(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `ALTER TABLE plants ADD scientific text, ADD supplier text;
		INSERT INTO plants (name, scientific, supplier) VALUES ('Fern', 'Nephrolepis', 'ACME'); DELETE FROM plants;
		ALTER TABLE plants RENAME TO old; CREATE TABLE plants (id bigint PRIMARY KEY, name text, created_at timestamptz, supplier text, remark text);
		UPDATE plant_shapes SET relation = 'plants'::regclass`)
	if _, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{}); err == nil {
		t.Error("Restore: no error, want it refused: a column is gone")
	}
	if _, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{Lossy: true}); err != nil {
		t.Fatal(err)
	}
	if got := stringsOf(t, s.owner, `SELECT ROW(supplier, remark)::text FROM plants`); !slices.Equal(got, []string{"(ACME,)"}) {
		t.Errorf("supplier and remark: %q, want those of their names", got)
	}
}

func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, setUp, after string
		restore            []int64
		want               []Refusal
	}{
		{"an unknown entry", ``, ``, []int64{1, 9}, []Refusal{{ID: 9, Why: "the ledger has no such entry; was it purged?"}}},
		{"a column that is called otherwise and may not be null", ``, `ALTER TABLE plants RENAME name TO title`, []int64{1},
			[]Refusal{{ID: 1, Plant: 1, Why: `column "title" may not be null, and its value is that of "name", as it was called then: rename it back for the restore`}}},
		{"a taken id", ``, `INSERT INTO plants (id, name) VALUES (2, 'x')`, []int64{1, 2, 3},
			[]Refusal{{ID: 2, Plant: 2, Why: "a plant with this id exists again", Unless: "skip-existing"}}},
		{"several taken ids", ``, `INSERT INTO plants (id, name) VALUES (1, 'x'), (3, 'x')`, []int64{1, 2, 3},
			[]Refusal{{ID: 3, Plant: 3, Why: "a plant with this id exists again", Unless: "skip-existing"}, {ID: 1, Plant: 1, Why: "a plant with this id exists again", Unless: "skip-existing"}}},
		{"the same plant twice", ``, `INSERT INTO plants (id, name) VALUES (2, 'x'); DELETE FROM plants`, []int64{2, 4},
			[]Refusal{{ID: 2, Plant: 2, Why: "deletion 4 is of the same plant, and later: restore one of them"}}},
		{"a row referred to", `CREATE TABLE shelves (no int PRIMARY KEY); INSERT INTO shelves VALUES (7), (8);
			ALTER TABLE plants ADD shelf int REFERENCES shelves; UPDATE plants SET shelf = 6 + id WHERE id < 3`,
			`DELETE FROM shelves WHERE no = 8`, []int64{1, 2, 3},
			[]Refusal{{ID: 2, Plant: 2, Why: `a row that it refers to is not there: Key (shelf)=(8) is not present in table "shelves"`}}},
		{"the same at commit only", `CREATE TABLE shelves (no int PRIMARY KEY); INSERT INTO shelves VALUES (7);
			ALTER TABLE plants ADD shelf int REFERENCES shelves DEFERRABLE INITIALLY DEFERRED; UPDATE plants SET shelf = 7 WHERE id = 1`,
			`DELETE FROM shelves`, []int64{1, 2},
			[]Refusal{{ID: 1, Plant: 1, Why: `a row that it refers to is not there: Key (shelf)=(7) is not present in table "shelves"`}}},
		{"another unique column", ``, `UPDATE plants SET name = 'Fern 2'; ALTER TABLE plants ADD UNIQUE (name); INSERT INTO plants (name) VALUES ('Fern 2')`,
			[]int64{1, 2}, []Refusal{{ID: 2, Plant: 2, Why: "another row has a value that must be unique: Key (name)=(Fern 2) already exists"}}},
		{"a new column without a default", ``, `ALTER TABLE plants ADD price numeric NOT NULL`, []int64{3},
			[]Refusal{{ID: 3, Plant: 3, Why: `column "price" may not be null, and the deleted row has no value for it`}}},
		{"a value that no longer fits", `ALTER TABLE plants ADD size text; UPDATE plants SET size = 'big' WHERE id = 1`,
			`ALTER TABLE plants ALTER size TYPE int USING NULL`, []int64{1, 2},
			[]Refusal{{ID: 1, Plant: 1, Why: `column "size" (text, today integer): invalid input syntax for type integer: "big" (SQLSTATE 22P02)`}}},
		{"a constraint", ``, `ALTER TABLE plants ADD CHECK (name <> 'Fern 3')`, []int64{3},
			[]Refusal{{ID: 3, Plant: 3, Why: `new row for relation "plants" violates check constraint "plants_name_check" (SQLSTATE 23514)`}}},
		{"a trigger", ``, `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER keep BEFORE INSERT ON plants FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION keep()`, []int64{1, 2},
			[]Refusal{{ID: 2, Plant: 2, Why: "a trigger on plants kept the row out", Unless: "lossy"}}},
		{"a trigger after the fact", ``, `CREATE FUNCTION take() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN DELETE FROM public.plants WHERE id = 1; RETURN NULL; END';
			CREATE TRIGGER take AFTER INSERT ON plants FOR EACH ROW WHEN (NEW.id = 1) EXECUTE FUNCTION take()`, []int64{1, 2},
			[]Refusal{{ID: 1, Plant: 1, Why: "the plant was deleted again later, by plantstore_owner: deletion 4", Unless: "superseded"}}},
		{"a trigger that refuses", ``, `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no % please'', chr(7); END';
			CREATE TRIGGER no BEFORE INSERT ON plants FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION no()`, []int64{1, 2},
			[]Refusal{{ID: 2, Plant: 2, Why: `no \a please (SQLSTATE P0001)`}}},
		{"a trigger whose table refuses", ``, `CREATE TABLE audit (n int NOT NULL); CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO audit VALUES (NULL); RETURN NEW; END';
			CREATE TRIGGER note BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION note()`, []int64{2},
			[]Refusal{{ID: 2, Plant: 2, Why: `null value in column "n" of relation "audit" violates not-null constraint (SQLSTATE 23502)`}}},
		{"a trigger that is broken", ``, `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.name = nowhere(); RETURN NEW; END';
			CREATE TRIGGER no BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION no()`, []int64{2},
			[]Refusal{{ID: 2, Plant: 2, Why: `function nowhere() does not exist (SQLSTATE 42883; hint: No function matches the given name and argument types. You might need to add explicit type casts.)`}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, l := newLedger(t)
			s.exec(t, `INSERT INTO plants (name) VALUES ('Fern 1'), ('Fern 2'), ('Fern 3'); `+tt.setUp)
			for id := range int64(3) {
				s.exec(t, `DELETE FROM plants WHERE id = $1`, id+1)
			}
			s.exec(t, tt.after)
			before := image(t, s.owner)
			_, err := l.Restore(t.Context(), tt.restore, RestoreOptions{})
			refused, ok := errors.AsType[*RefusedError](err)
			if !ok {
				t.Fatalf("Restore: %v, want a RefusedError", err)
			}
			for i, r := range refused.Refusals {
				refused.Refusals[i].Why, _, _ = strings.Cut(r.Why, ": Failing row") // its text has times in it
			}
			if diff := cmp.Diff(tt.want, refused.Refusals); diff != "" {
				t.Errorf("refusals (-want +got):\n%s", diff)
			}
			if !bytes.Equal(before, image(t, s.owner)) {
				t.Error("plants were changed")
			}
			restored, _, err := l.List(t.Context(), LedgerFilter{}, 10, false)
			if err != nil || slices.ContainsFunc(restored, func(r Recorded) bool { return !r.RestoredAt.IsZero() }) {
				t.Errorf("ledger %+v, %v; want nothing restored", restored, err)
			}
		})
	}
}

// What is due to the moment, the server or our rights is no reason of a deletion's, and
// may be another one the next time.
func TestRestoreTellsWhatIsNotDueToRows(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `INSERT INTO plants (name) VALUES ('fern'); DELETE FROM plants;
		CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END';
		CREATE TRIGGER fail BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION fail()`)
	for state, want := range map[string]string{
		"08006": "no (SQLSTATE 08006)", "25006": "no (SQLSTATE 25006)", "28000": "no (SQLSTATE 28000)", "40001": "no (SQLSTATE 40001)",
		"53100": "no (SQLSTATE 53100)", "57014": "no (SQLSTATE 57014)", "58030": "no (SQLSTATE 58030)",
		lockNotAvailable:      "somebody else holds a lock that is needed, try again: no (SQLSTATE 55P03)",
		insufficientPrivilege: "no (SQLSTATE 42501): inserting into public.plants takes that right: grant it to role plantstore_owner, or restore as one that has it",
	} {
		s.exec(t, `CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no'' USING ERRCODE = ''`+state+`''; END'`)
		_, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{})
		if err == nil || err.Error() != "restore: nothing was restored: "+want {
			t.Errorf("Restore where a trigger raises %s: %v, want that nothing was restored: %s", state, err, want)
		}
	}
	s.exec(t, `DROP TRIGGER fail ON plants; DELETE FROM plant_shapes`)
	const want = "restore: nothing was restored: public.plant_shapes has no shape 1: without it, nobody knows what columns the plants had"
	if _, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{}); err == nil || err.Error() != want {
		t.Errorf("Restore without the shape: %v, want %s", err, want)
	}
}

func TestRestoreOnce(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `INSERT INTO plants (name) SELECT 'fern' FROM generate_series(1, 50); DELETE FROM plants`)
	ids := make([]int64, 50)
	for i := range ids {
		ids[i] = int64(i + 1)
	}
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		// In different orders, so that they would deadlock if they took locks so.
		mine := slices.Clone(ids)
		if i%2 == 1 {
			slices.Reverse(mine)
		}
		wg.Go(func() { _, errs[i] = l.Restore(t.Context(), mine, RestoreOptions{}) })
	}
	wg.Wait()
	done := 0
	for _, err := range errs {
		refused, ok := errors.AsType[*RefusedError](err)
		switch {
		case err == nil:
			done++
		case !ok || len(refused.Refusals) != 50 ||
			!strings.HasPrefix(refused.Refusals[0].Why, "it was restored by plantstore_owner at 20"):
			t.Errorf("Restore: %v, want a RefusedError because each was restored", err)
		}
	}
	if done != 1 {
		t.Errorf("%d restores succeeded, want 1", done)
	}
}

func TestRestorePlantsThatReferToEachOther(t *testing.T) {
	t.Parallel()
	const all = 1 << 20
	tests := []struct {
		name, action, rows, remove string
		batch                      int // bytes that are inserted together
	}{
		{"one by one", "", "(1, NULL), (2, 1), (3, 2)", "DELETE FROM plants WHERE id = 3; DELETE FROM plants WHERE id = 2; DELETE FROM plants WHERE id = 1", all},
		{"by a cascade", "ON DELETE CASCADE", "(1, NULL), (2, 1), (3, 2), (4, 2), (5, 4)", "DELETE FROM plants WHERE id = 1", all},
		{"parents before children", "", "(1, 3), (2, 1), (3, NULL), (4, 2)", "DELETE FROM plants", all},
		{"parents before children, in many batches", "", "(1, 3), (2, 1), (3, NULL), (4, 2)", "DELETE FROM plants", 1},
		{"children before parents", "", "(4, 3), (3, 2), (2, 1), (1, NULL)", "DELETE FROM plants", all},
		{"children before parents, in many batches", "", "(4, 3), (3, 2), (2, 1), (1, NULL)", "DELETE FROM plants", 1},
		{"in a circle", "", "(1, 3), (2, 1), (3, 2)", "DELETE FROM plants", all},
		{"of different shapes", "", "(1, NULL), (2, 1), (3, 4), (4, NULL)", "DELETE FROM plants WHERE id IN (2, 3); ALTER TABLE plants ADD n int; DELETE FROM plants", all},
		{"hundreds in many batches", "", "(1, NULL), " + strings.TrimSuffix(hundreds("(%d, 1), "), ", "), "DELETE FROM plants", 100},
		{"hundreds in a row in many batches", "", "(1, NULL), " + strings.TrimSuffix(hundreds("(%[1]d, %[1]d - 1), "), ", "), "DELETE FROM plants", 100},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, l := newLedger(t)
			l.restoreBatch = tt.batch
			s.exec(t, `ALTER TABLE plants ALTER name DROP NOT NULL, ADD parent bigint REFERENCES plants `+tt.action)
			s.exec(t, `INSERT INTO plants (id, parent) VALUES `+tt.rows)
			if tt.name == "of different shapes" {
				s.exec(t, tt.remove+`; ALTER TABLE plants DROP n`)
			} else {
				s.exec(t, tt.remove)
			}
			want := len(openEntries(t, l))
			if got := restoreAll(t, l).Plants; got != want {
				t.Errorf("restored %d plants, want %d", got, want)
			}
			var parents string
			if err := s.owner.QueryRow(t.Context(), `SELECT string_agg(format('(%s, %s)', id, coalesce(parent::text, 'NULL')), ', ' ORDER BY id) FROM plants`).Scan(&parents); err != nil {
				t.Fatal(err)
			}
			rows := strings.SplitAfter(tt.rows, "), ")
			for i := range rows {
				rows[i] = strings.TrimSuffix(rows[i], ", ")
			}
			for _, row := range rows {
				if !strings.Contains(parents, row) && !strings.Contains(row, " - 1") {
					t.Errorf("plants are %s, want %s among them", parents, row)
				}
			}
		})
	}
}

func hundreds(format string) string {
	var b strings.Builder
	for i := 2; i <= 300; i++ {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func TestRestoreKeepsOutWhatATriggerDoes(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `INSERT INTO plants (name) VALUES ('fern'), ('moss'), ('lily'); DELETE FROM plants;
		CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN IF NEW.id = 2 THEN RETURN NULL; END IF; IF NEW.id = 3 THEN NEW.name = upper(NEW.name); END IF; RETURN NEW; END';
		CREATE TRIGGER shout BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION shout()`)
	want := []Refusal{
		{ID: 3, Plant: 3, Why: `column "name" (text): "lily" becomes "LILY"`, Unless: "lossy"},
		{ID: 2, Plant: 2, Why: "a trigger on plants kept the row out", Unless: "lossy"},
	}
	_, err := l.Restore(t.Context(), ids(1, 3), RestoreOptions{})
	if refused, _ := errors.AsType[*RefusedError](err); refused == nil || !cmp.Equal(refused.Refusals, want) {
		t.Errorf("Restore: %v, want it refused: %+v", err, want)
	}
	got, err := l.Restore(t.Context(), ids(1, 3), RestoreOptions{Lossy: true})
	if diff := cmp.Diff(Restored{Plants: 2, Losses: want}, got); err != nil || diff != "" {
		t.Errorf("Restore with losses: %v; (-want +got):\n%s", err, diff)
	}
	if open := openEntries(t, l); !cmp.Equal(open, []int64{2}) {
		t.Errorf("not restored are %v, want 2 only", open)
	}
}

// After a mistake that took thousands, the store may have made many of them again.
func TestRestoreOfManyWhoseIDsAreTaken(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `INSERT INTO plants (name) SELECT 'fern' FROM generate_series(1, 1000); DELETE FROM plants;
		INSERT INTO plants (id, name) SELECT i, 'new' FROM generate_series(1, 700) i`)
	refused := func(o RestoreOptions) (n int, more bool) {
		_, err := l.Restore(t.Context(), ids(1, 1000), o)
		e, ok := errors.AsType[*RefusedError](err)
		if !ok {
			t.Fatalf("Restore: %v, want it refused", err)
		}
		if !slices.IsSortedFunc(e.Refusals, func(a, b Refusal) int { return int(b.ID - a.ID) }) {
			t.Errorf("refusals %v, want them newest first", e.Refusals)
		}
		return len(e.Refusals), e.More
	}
	if n, more := refused(RestoreOptions{}); n != 700 || more {
		t.Errorf("%d are in the way, more: %v; want 700, all of them", n, more)
	}
	// What else is in the way is told together with those.
	s.exec(t, `ALTER TABLE plants ADD CHECK (id NOT IN (800, 900))`)
	if n, more := refused(RestoreOptions{}); n != 702 || more {
		t.Errorf("%d are in the way, more: %v; want 702, all of them", n, more)
	}
	if n, more := refused(RestoreOptions{SkipExisting: true}); n != 2 || more {
		t.Errorf("%d are in the way beside those that exist, more: %v; want 2, all of them", n, more)
	}
	s.exec(t, `ALTER TABLE plants ADD CHECK (id <= 700)`)
	if n, more := refused(RestoreOptions{SkipExisting: true}); n >= 300 || !more {
		t.Errorf("%d of 300 are in the way, more: %v; want fewer, and that there are more", n, more)
	}
	s.exec(t, `ALTER TABLE plants DROP CONSTRAINT plants_id_check, DROP CONSTRAINT plants_id_check1, ADD shelf text`)
	got, err := l.Restore(t.Context(), ids(1, 1000), RestoreOptions{SkipExisting: true})
	if diff := cmp.Diff(Restored{Plants: 300, Existing: 700, Defaulted: []string{"shelf"}}, got); err != nil || diff != "" {
		t.Errorf("Restore: %v; (-want +got):\n%s", err, diff)
	}
	if names := stringsOf(t, s.owner, `SELECT format('%s %s', name, count(*)) FROM plants GROUP BY name ORDER BY name`); !cmp.Equal(names, []string{"fern 300", "new 700"}) {
		t.Errorf("plants %q, want 300 that came back and 700 new ones", names)
	}
}

// Plants that refer to one that is left out are another one's from then on. That is told.
func TestRestoreTellsOfPlantsThatReferToWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `ALTER TABLE plants ADD parent bigint REFERENCES plants, ADD shop int DEFAULT 1, ADD mate int, ADD UNIQUE (shop, id), ADD FOREIGN KEY (shop, mate) REFERENCES plants (shop, id);
		INSERT INTO plants (id, name, parent, mate) VALUES (1, 'fern', NULL, NULL), (2, 'its child', 1, NULL), (3, 'its mate', NULL, 1), (4, 'moss', 2, 3), (5, 'ivy', 5, NULL), (6, 'lily', NULL, NULL);
		DELETE FROM plants; INSERT INTO plants (id, name) VALUES (1, 'new'), (6, 'new')`)
	got, err := l.Restore(t.Context(), ids(1, 6), RestoreOptions{SkipExisting: true})
	if diff := cmp.Diff(Restored{Plants: 4, Existing: 2, Adopted: []int64{2, 3}}, got); err != nil || diff != "" {
		t.Errorf("Restore: %v; (-want +got):\n%s", err, diff)
	}
}

// A row that is locked looks as if somebody was deleting it. Orders come in all the time,
// and an open transaction may have thousands of them.
func TestRestoreBesidePlantsThatAreLocked(t *testing.T) {
	t.Parallel()
	const n = 2000 // are there again, and 10 are not
	const order, lock, change, remove = `INSERT INTO items SELECT i FROM generate_series(1, 2000) i`, `SELECT FROM plants FOR UPDATE`,
		`UPDATE plants SET name = 'newer'`, `DELETE FROM plants`
	for _, tt := range []struct {
		name, sql string
		end       string // of the transaction, once it is waited for; empty: it is not waited for
		existing  int
		most      int // statements that insert plants, however many are locked
	}{
		{"by orders", order, "", n, 1},
		{"by orders with several products", order + `; SAVEPOINT s; ` + order, "", n, 1},
		{"for a change", lock, "", n, 1},
		{"by whoever makes a plant, too", `INSERT INTO plants (id, name) VALUES (5000, 'new'); ` + order, "", n, n + 1}, // each is asked for once
		{"by a change", change, "COMMIT", n, 2},
		{"by a change that is taken back", change, "ROLLBACK", n, 2},
		{"by a deletion", remove, "COMMIT", 0, 2},
		{"by a deletion that is taken back", remove, "ROLLBACK", n, 2},
		{"by a deletion of every other one", lock + `; ` + remove + ` WHERE id % 2 = 0`, "COMMIT", n / 2, 2},
		{"by a deletion of an old one", order + `; DELETE FROM items WHERE plant = 1; ` + remove + ` WHERE id = 1`, "COMMIT", n - 1, n + 1},
		{"by whoever makes a plant with an id", `INSERT INTO plants (id, name) VALUES (2005, 'new')`, "COMMIT", n + 1, 30},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, l := newLedger(t)
			s.exec(t, `ALTER TABLE plants ADD mate bigint REFERENCES plants;
				INSERT INTO plants (name, mate) SELECT 'fern', CASE i WHEN 2004 THEN 2006 WHEN 2006 THEN 2004 END FROM generate_series(1, 2010) i; DELETE FROM plants;
				CREATE TABLE items (plant bigint REFERENCES plants); INSERT INTO plants (id, name) SELECT i, 'new' FROM generate_series(1, 2000) i;
				CREATE SEQUENCE inserts; CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM nextval(''public.inserts''); RETURN NULL; END';
				CREATE TRIGGER counted BEFORE INSERT ON plants EXECUTE FUNCTION counted()`)
			tx, err := s.owner.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.WithoutCancel(t.Context()))
			if _, err := tx.Exec(t.Context(), tt.sql+`; SELECT setval('inserts', 1, false)`); err != nil {
				t.Fatal(err)
			}
			type result struct {
				Restored
				err error
			}
			done := make(chan result, 1)
			go func() {
				// What was deleted again is there once: its restore is that of the later deletion, too.
				restored, err := l.Restore(t.Context(), ids(1, n+10), RestoreOptions{SkipExisting: true, Superseded: true})
				done <- result{restored, err}
			}()
			if tt.end != "" {
				s.seeWaits(t, 1)
				if _, err := tx.Exec(t.Context(), tt.end); err != nil {
					t.Fatal(err)
				}
			}
			got := <-done
			if diff := cmp.Diff(Restored{Plants: n + 10 - tt.existing, Existing: tt.existing}, got.Restored); got.err != nil || diff != "" {
				t.Errorf("Restore: %v; (-want +got):\n%s", got.err, diff)
			}
			var inserts int
			if err := s.owner.QueryRow(t.Context(), `SELECT last_value FROM inserts`).Scan(&inserts); err != nil || inserts > tt.most {
				t.Errorf("%d statements inserted plants, %v; want %d at most", inserts, err, tt.most)
			}
		})
	}
}

// A plant that a trigger gives another id did not come back: it is another one, and each
// restore would make one more.
func TestRestoreMakesNoOtherPlant(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `INSERT INTO plants (name) VALUES ('fern'), ('moss'), ('lily'); DELETE FROM plants;
		CREATE FUNCTION number() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN IF NEW.id = 1 THEN RETURN NULL; END IF; IF NEW.id = 2 THEN NEW.id = 20; END IF; RETURN NEW; END';
		CREATE TRIGGER number BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION number()`)
	const why = "a trigger on plants kept the row out or gave it another id"
	want := []Refusal{{ID: 2, Plant: 2, Why: why}, {ID: 1, Plant: 1, Why: why}}
	for _, lossy := range []bool{false, true} {
		_, err := l.Restore(t.Context(), ids(1, 3), RestoreOptions{Lossy: lossy})
		if refused, _ := errors.AsType[*RefusedError](err); refused == nil || !cmp.Equal(want, refused.Refusals) {
			t.Errorf("Restore, lossy %v: %v, want it refused: %+v", lossy, err, want)
		}
	}
	if s.has(t, 20) || s.has(t, 3) {
		t.Error("a plant came of a restore that was refused")
	}
}

// Nor does one whose row is refused for the id that a trigger gives it: no plant has its own.
func TestRestoreLeavesOutOnlyWhatExists(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `INSERT INTO plants (id, name) VALUES (9000, 'other'); INSERT INTO plants (name) VALUES ('fern'), ('moss'), ('lily'), ('palm'); DELETE FROM plants WHERE id < 9000;
		INSERT INTO plants (id, name) VALUES (4, 'new');
		CREATE FUNCTION number() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.id % 2 = 0 THEN NEW.id = 9000; END IF; RETURN NEW; END';
		CREATE TRIGGER number BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION number()`)
	gone := Refusal{ID: 2, Plant: 2, Why: "no plant has this id, but the row was refused as if one had, as where a trigger on plants gives rows other ids: Key (id)=(9000) already exists"}
	for _, tt := range []struct {
		skip bool
		want []Refusal
	}{
		{false, []Refusal{takenAgain(entry{ID: 4, Plant: 4}), gone}},
		{true, []Refusal{gone}},
	} {
		_, err := l.Restore(t.Context(), ids(1, 4), RestoreOptions{SkipExisting: tt.skip})
		if refused, _ := errors.AsType[*RefusedError](err); refused == nil || !cmp.Equal(tt.want, refused.Refusals) {
			t.Errorf("Restore that skips what exists, %v: %v, want it refused: %+v", tt.skip, err, tt.want)
		}
	}
	got, err := l.Restore(t.Context(), []int64{1, 3, 4}, RestoreOptions{SkipExisting: true})
	if diff := cmp.Diff(Restored{Plants: 2, Existing: 1}, got); err != nil || diff != "" {
		t.Errorf("Restore of the others: %v; (-want +got):\n%s", err, diff)
	}
}

func TestRestoreOfAnEarlierDeletion(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `INSERT INTO plants (id, name) VALUES (1, 'first'), (2, 'x'); DELETE FROM plants WHERE id = 1;
		INSERT INTO plants (id, name) VALUES (1, 'second'); DELETE FROM plants WHERE id = 1; DELETE FROM plants;
		INSERT INTO plants (id, name) VALUES (2, 'y'); DELETE FROM plants;
		UPDATE plant_deletions SET deleted_by = E'some\x1bbody' WHERE id = 2`)
	_, err := l.Restore(t.Context(), []int64{1, 3}, RestoreOptions{Lossy: true})
	want := []Refusal{{ID: 3, Plant: 2, Why: `the plant was deleted again later, by plantstore_owner: deletion 4`, Unless: "superseded"},
		{ID: 1, Plant: 1, Why: `the plant was deleted again later, by some\x1bbody: deletion 2`, Unless: "superseded"}}
	if refused, _ := errors.AsType[*RefusedError](err); refused == nil || !cmp.Equal(refused.Refusals, want) {
		t.Errorf("Restore: %v, want it refused: %+v", err, want)
	}
	if got, err := l.Restore(t.Context(), []int64{1, 3}, RestoreOptions{Superseded: true}); err != nil || got.Plants != 2 {
		t.Errorf("Restore of what is superseded = %+v, %v; want 2 plants", got, err)
	}
	if name := plantsAsText(t, s.owner)[0]; !strings.Contains(name, "first") {
		t.Errorf("the plant is %s, want the first", name)
	}
}

// A deletion that is under way while its plant is restored from an older entry
// is not undone: the restore waits for it, and then sees it.
func TestRestoreWaitsForALaterDeletion(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `INSERT INTO plants (id, name) VALUES (1, 'first'); DELETE FROM plants; INSERT INTO plants (id, name) VALUES (1, 'second')`)
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `DELETE FROM plants`); err != nil {
		t.Fatal(err)
	}
	restored := make(chan error)
	go func() {
		_, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{})
		restored <- err
	}()
	for waiting := false; !waiting; {
		if err := s.owner.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
			OR NOT granted AND locktype = 'transactionid' AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database()))`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-restored; err == nil || !strings.Contains(err.Error(), "deletion 2") {
		t.Errorf("Restore: %v, want it refused because of deletion 2", err)
	}
}

// The table keeps its columns from when a restore looks at them until it is done.
func TestRestoreKeepsAlterTableOut(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.plant(t, 1)
	s.exec(t, `DELETE FROM plants`)
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `SELECT FROM plant_deletions FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	restored := make(chan error, 1)
	go func() {
		_, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{})
		restored <- err
	}()
	s.seeWaits(t, 1) // for the entry, which comes before the columns
	_, err = s.owner.Exec(t.Context(), `SET lock_timeout = '10ms'; ALTER TABLE plants ADD note text`)
	if sqlState(err) != "55P03" {
		t.Errorf("ALTER TABLE during a restore: %v, want it to wait for the lock", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-restored; err != nil {
		t.Errorf("Restore: %v, want none", err)
	}
}

// Functions of the store's find what they expect on the search path, and what they
// do to settings does not get into the comparison.
func TestRestoreAmongFunctionsOfTheStores(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `ALTER TABLE plants ADD price money, ADD seen interval;
		INSERT INTO plants (name, price, seen) VALUES ('fern', 1.50, '-1 day 2 hours'); DELETE FROM plants;
		CREATE TABLE audit (name text);
		CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$BEGIN RAISE 'this is not the clock'; END$$;
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
			INSERT INTO audit VALUES (NEW.name);
			PERFORM set_config('intervalstyle', 'iso_8601', true), set_config('timezone', 'Asia/Kathmandu', true), set_config('search_path', 'public, pg_catalog', true);
			RETURN NEW; END$$;
		CREATE TRIGGER note BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION note()`)
	restoreAll(t, l)
	var n int
	if err := s.owner.QueryRow(t.Context(), `SELECT count(*) FROM audit`).Scan(&n); n != 1 || err != nil {
		t.Errorf("%d rows in audit, %v; want 1", n, err)
	}
}

func TestRestoreRefusesToRunTheCodeOfStrangers(t *testing.T) {
	t.Parallel()
	const evil = `CREATE FUNCTION shop.evil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; `
	const on = ` ON public.plants FOR EACH ROW EXECUTE FUNCTION shop.evil()`
	const check = `CREATE FUNCTION shop.fine(anyelement) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true'; `
	const domain = check + `CREATE DOMAIN shop.d AS text CHECK (shop.fine(VALUE)); `
	const ran = "constraint d_check calls shop.fine(anyelement) for shop"
	const search = `ALTER TABLE public.plants ADD words tsvector; CREATE TRIGGER t BEFORE INSERT ON public.plants FOR EACH ROW`
	const update = ` EXECUTE FUNCTION tsvector_update_trigger('words', 'pg_catalog.english', 'name')`
	const super = `RESET ROLE; CREATE FUNCTION public.supers() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; `
	const supersTrigger = `CREATE TRIGGER t BEFORE INSERT ON public.plants FOR EACH ROW EXECUTE FUNCTION public.supers('shop.v WHERE shop.fine(1)')`
	const natural = `CREATE FUNCTION shop.compare(text, text) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 0; END'; RESET ROLE;
		CREATE OPERATOR CLASS public.natural_ops FOR TYPE text USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 shop.compare(text, text); `
	const closed = `RESET ROLE; REVOKE CREATE ON SCHEMA public FROM @shop; `
	const mine = `CREATE FUNCTION public.mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; ALTER FUNCTION public.mine() OWNER TO plantstore_owner;
		CREATE TRIGGER t BEFORE INSERT ON public.plants FOR EACH ROW EXECUTE FUNCTION public.mine()`
	const mood = `CREATE TYPE shop.e AS ENUM ('a'); `
	tests := []struct {
		name, as, sql string
		want          string // empty: nobody gains
	}{
		{"nothing", "shop", ``, ``},
		{"a cast to a domain", "shop", domain + `ALTER TABLE public.plants ADD CHECK (name::shop.d IS NOT NULL)`, ran},
		{"a cast to a domain in a trigger's condition", "shop", domain + search + ` WHEN (NEW.name::shop.d IS NOT NULL)` + update, ran},
		{"a cast to a domain in an index", "shop", domain + `CREATE INDEX x ON public.plants ((name::shop.d))`, ran},
		{"a cast to a domain in an index's condition", "shop", domain + `CREATE INDEX x ON public.plants (id) WHERE name::shop.d IS NOT NULL`, ran},
		{"a cast to a domain in the default of a new column", "shop", domain + `ALTER TABLE public.plants ADD n text DEFAULT 'a'::shop.d`, ran},
		{"a cast to a domain in another domain's check", "shop", domain + `CREATE DOMAIN shop.outer AS text CHECK (VALUE::shop.d IS NOT NULL); ALTER TABLE public.plants ALTER name TYPE shop.outer`, ran},
		{"a cast to an array of a domain", "shop", domain + `ALTER TABLE public.plants ADD CHECK (ARRAY[name]::shop.d[] IS NOT NULL)`, ran},
		{"a composite from JSON", "shop", domain + `CREATE TYPE shop.c AS (a shop.d); ALTER TABLE public.plants ADD CHECK (json_populate_record(NULL::shop.c, '{"a":"x"}') IS NOT NULL)`, ran},
		{"a composite by a number", "shop", domain + `CREATE TYPE shop.c AS (a shop.d); ALTER TABLE public.plants ADD CONSTRAINT c CHECK (record_in('(x)', 'shop.c'::regtype::oid, -1) IS NOT NULL)`,
			"constraint c on table plants calls record_in(cstring,oid,integer) for shop"},
		{"the check of a function", "shop", check + `ALTER TABLE public.plants ADD CONSTRAINT c CHECK (id > 0 OR fmgr_sql_validator('shop.fine(anyelement)'::regprocedure) IS NULL)`,
			"constraint c on table plants calls fmgr_sql_validator(oid) for shop"},
		{"a cast to JSON", "shop", mood + `CREATE FUNCTION shop.to_json(shop.e) RETURNS json LANGUAGE sql AS $$SELECT json '1'$$; CREATE CAST (shop.e AS json) WITH FUNCTION shop.to_json(shop.e);
			ALTER TABLE public.plants ADD CHECK (to_json('a'::shop.e) IS NOT NULL)`, "cast from shop.e to json calls shop.to_json(shop.e) for shop"},
		{"a cast to text", "shop", mood + `CREATE FUNCTION shop.to_text(shop.e) RETURNS text LANGUAGE sql AS $$SELECT text '1'$$; CREATE CAST (shop.e AS text) WITH FUNCTION shop.to_text(shop.e);
			ALTER TABLE public.plants ADD CHECK (quote_literal('a'::shop.e) IS NOT NULL)`, "cast from shop.e to text calls shop.to_text(shop.e) for shop"},
		{"a cast of a foreign key", "shop", mood + `CREATE FUNCTION shop.to_bigint(shop.e) RETURNS bigint IMMUTABLE LANGUAGE sql AS $$SELECT bigint '1'$$; CREATE CAST (shop.e AS bigint) WITH FUNCTION shop.to_bigint(shop.e) AS IMPLICIT;
			CREATE TABLE shop.kinds (id bigint PRIMARY KEY); ALTER TABLE public.plants ADD e shop.e REFERENCES shop.kinds`, "cast from shop.e to bigint calls shop.to_bigint(shop.e) for shop"},
		{"the default of a domain", "shop", `CREATE DOMAIN shop.d AS text DEFAULT query_to_xml('SELECT 1', true, true, '')::text; ALTER TABLE public.plants ADD n shop.d`,
			"type shop.d calls query_to_xml(text,boolean,boolean,text) for shop"},
		{"the default of a domain that is not used", "shop", `CREATE DOMAIN shop.d AS text DEFAULT query_to_xml('SELECT 1', true, true, '')::text; ALTER TABLE public.plants ALTER name TYPE shop.d, ADD n shop.d DEFAULT 'x'`, ``},
		{"a trigger of theirs with a superuser's function", "shop", super + supersTrigger, "trigger t on table plants calls public.supers() for shop"},
		{"a trigger of theirs with a superuser's function, on our table", "plantstore_owner", super + `GRANT TRIGGER ON public.plants TO @shop; ` + supersTrigger, "trigger t on table plants calls public.supers() for shop"},
		{"a trigger of theirs with a superuser's function that runs as its owner", "shop", super + `ALTER FUNCTION public.supers() SECURITY DEFINER; ` + supersTrigger, ``},
		{"a trigger of PostgreSQL's", "shop", search + update, ``},
		{"a superuser's function that finds others on the search path", "shop", `RESET ROLE; CREATE FUNCTION public.slug(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN lower($1); END'; CREATE INDEX x ON public.plants (public.slug(name))`,
			"index public.x calls public.slug(text) for shop"},
		{"superusers' functions that don't", "shop", `RESET ROLE; CREATE FUNCTION public.slug(text) RETURNS text IMMUTABLE LANGUAGE plpgsql SET search_path = pg_catalog AS 'BEGIN RETURN lower($1); END';
			CREATE FUNCTION public.shout(n text) RETURNS text IMMUTABLE LANGUAGE sql RETURN upper(n); CREATE INDEX x ON public.plants (public.slug(name), public.shout(name))`, ``},
		{"what ordinary tables have", "shop", `RESET ROLE; CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE SEQUENCE shop.numbers; GRANT USAGE ON SEQUENCE shop.numbers TO PUBLIC;
			CREATE TYPE shop.e AS ENUM ('a', 'b'); CREATE DOMAIN shop.price AS numeric(10, 2) DEFAULT 1 + 1 CHECK (VALUE >= 0 AND VALUE::text ~ '[0-9]'); CREATE DOMAIN shop.mail AS public.citext CHECK (VALUE ~ '@' AND split_part(VALUE, '@', 2) <> '');
			CREATE TYPE shop.size AS (width shop.price, height int); CREATE TYPE shop.prices AS RANGE (subtype = numeric);
			CREATE TABLE shop.kinds (id int PRIMARY KEY); INSERT INTO shop.kinds VALUES (1); ALTER TABLE shop.kinds OWNER TO @shop;
			ALTER TABLE public.plants ADD price shop.price, ADD mail shop.mail DEFAULT 'a@b', ADD e shop.e DEFAULT 'b' CHECK (e IN ('a', 'b') AND e >= 'a'), ADD tags text[] DEFAULT ARRAY['x', lower('Y')] CHECK (cardinality(tags) < 9 AND 'x' = ANY (tags)),
				ADD size shop.size DEFAULT ROW(1, 2) CHECK ((size).width > 0), ADD h public.hstore DEFAULT 'a=>1' CHECK (h OPERATOR(public.->) 'a' = '1'), ADD j jsonb DEFAULT jsonb_build_object('a', 1, 'b', now()) CHECK (j ->> 'a' <> '' AND to_jsonb(1) IS NOT NULL),
				ADD r shop.prices DEFAULT '[1,2]' CHECK (NOT isempty(r) AND r @> 1.5), ADD n bigint DEFAULT nextval('shop.numbers'), ADD d date DEFAULT current_date, ADD u text DEFAULT md5(random()::text), ADD kind int DEFAULT 1 REFERENCES shop.kinds,
				ADD label text GENERATED ALWAYS AS (coalesce(name, '') || ' ' || id || upper(name)) STORED, ADD UNIQUE (name) DEFERRABLE, ADD at pg_lsn DEFAULT '0/1' CHECK (at >= '0/0'),
				ADD CHECK (num_nonnulls(name, kind) > 0 AND length(name) < 99 AND (id, name) IS NOT NULL AND CASE WHEN id = 1 THEN name::varchar(4) = 'fern' ELSE greatest(id, 2) > 1 END);
			CREATE INDEX ON public.plants (lower(name), (price * 2)) WHERE mail <> 'x' AND created_at IS NOT NULL; CREATE INDEX ON public.plants USING gin (to_tsvector('pg_catalog.english', name))`, ``},
		{"a trigger", "shop", evil + `CREATE TRIGGER t BEFORE INSERT` + on, "trigger t on table plants calls shop.evil() for shop"},
		{"a trigger after", "shop", evil + `CREATE TRIGGER t AFTER UPDATE OR INSERT` + on, "trigger t on table plants calls shop.evil() for shop"},
		{"a trigger for a statement", "shop", evil + `CREATE TRIGGER t AFTER INSERT ON public.plants EXECUTE FUNCTION shop.evil()`, "trigger t on table plants calls shop.evil() for shop"},
		{"a trigger's condition", "shop", check + search + ` WHEN (shop.fine(NEW.id))` + update, "trigger t on table plants calls shop.fine(anyelement) for shop"},
		{"a trigger for something else", "shop", evil + `CREATE TRIGGER t BEFORE UPDATE` + on, ``},
		{"a trigger that is disabled", "shop", evil + `CREATE TRIGGER t BEFORE INSERT` + on + `; ALTER TABLE public.plants DISABLE TRIGGER t`, ``},
		{"a trigger and a rule for replicas only", "shop", evil + check + `CREATE TRIGGER t BEFORE INSERT` + on + `; CREATE RULE r AS ON INSERT TO public.plants WHERE shop.fine(NEW.id) DO ALSO NOTHING;
			ALTER TABLE public.plants ENABLE REPLICA TRIGGER t, ENABLE REPLICA RULE r`, ``},
		{"a trigger that is always enabled", "shop", evil + `CREATE TRIGGER t BEFORE INSERT` + on + `; ALTER TABLE public.plants ENABLE ALWAYS TRIGGER t`, "trigger t on table plants calls shop.evil() for shop"},
		{"a trigger that runs as its owner", "shop", evil + `ALTER FUNCTION shop.evil() SECURITY DEFINER; CREATE TRIGGER t BEFORE INSERT` + on, "trigger t on table plants calls shop.evil() for shop"},
		{"a trigger of a superuser", "postgres", closed + evil + `CREATE TRIGGER t BEFORE INSERT` + on, ``},
		{"a trigger of ours", "plantstore_owner", closed + mine, ``},
		{"a trigger of ours that looks names up where others may make some", "plantstore_owner", mine, "trigger t on table plants calls public.mine(), which looks names up in schema public, for shop"},
		{"a trigger of ours that does not", "plantstore_owner", mine + `; ALTER FUNCTION public.mine() SET search_path = pg_catalog`, ``},
		{"a trigger of ours with a search path of its own", "plantstore_owner", mine + `; ALTER FUNCTION public.mine() SET search_path = pg_catalog, "public"`, "trigger t on table plants calls public.mine(), which looks names up in schema public, for shop"},
		{"a trigger of ours with a closed search path of its own", "plantstore_owner", mine + `; RESET ROLE; CREATE SCHEMA "our""s"; ALTER FUNCTION public.mine() SET search_path = "our""s"`, ``},
		{"a trigger of ours with an open one that has quotes", "plantstore_owner", closed + mine + `; CREATE SCHEMA "Their""s" AUTHORIZATION @shop; ALTER FUNCTION public.mine() SET search_path = "Their""s"`,
			`trigger t on table plants calls public.mine(), which looks names up in schema "Their""s", for shop`},
		{"a trigger of ours that runs as its owner", "plantstore_owner", mine + `; ALTER FUNCTION public.mine() SECURITY DEFINER`, "trigger t on table plants calls public.mine(), which looks names up in schema public, for shop"},
		{"a trigger in C that looks a table up", "plantstore_owner", `RESET ROLE; CREATE EXTENSION refint; CREATE TABLE public.kinds (name text); INSERT INTO public.kinds VALUES ('fern'); GRANT SELECT ON public.kinds TO plantstore_owner;
			CREATE TRIGGER t AFTER INSERT ON public.plants FOR EACH ROW EXECUTE FUNCTION check_primary_key('name', 'kinds', 'name')`, "trigger t on table plants calls public.check_primary_key(), which looks names up in schema public, for shop"},
		{"a trigger of ours, and a schema named like who restores", "plantstore_owner", closed + mine + `; CREATE SCHEMA plantstore_owner AUTHORIZATION @shop; GRANT USAGE ON SCHEMA plantstore_owner TO PUBLIC`,
			"trigger t on table plants calls public.mine(), which looks names up in schema plantstore_owner, for shop"},
		{"a check", "shop", check + `ALTER TABLE public.plants ADD CONSTRAINT c CHECK (shop.fine(id))`, "constraint c on table plants calls shop.fine(anyelement) for shop"},
		{"a check, where a backslash counts in every string", "shop", check + `ALTER TABLE public.plants ADD CONSTRAINT c CHECK (shop.fine(id)); RESET ROLE; ALTER DATABASE @db SET standard_conforming_strings = off`,
			"constraint c on table plants calls shop.fine(anyelement) for shop"},
		{"an operator", "shop", `CREATE FUNCTION shop.eq(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'; CREATE OPERATOR shop.=== (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = shop.eq);
			ALTER TABLE public.plants ADD CONSTRAINT c CHECK (id OPERATOR(shop.===) 1)`, "constraint c on table plants calls shop.eq(bigint,bigint) for shop"},
		{"an operator's negator", "shop", `CREATE FUNCTION shop.ne(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN true; END'; CREATE OPERATOR shop.=== (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = int8eq);
			CREATE OPERATOR shop.!== (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = shop.ne, NEGATOR = OPERATOR(shop.===)); ALTER TABLE public.plants ADD CONSTRAINT c CHECK (NOT (id OPERATOR(shop.===) -1))`,
			"constraint c on table plants calls shop.ne(bigint,bigint) for shop"},
		{"an operator's commutator", "shop", `CREATE FUNCTION shop.eq(text, bigint) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN true; END'; CREATE FUNCTION shop.eq(bigint, text) RETURNS boolean IMMUTABLE LANGUAGE sql RETURN true;
			CREATE OPERATOR shop.=== (LEFTARG = bigint, RIGHTARG = text, FUNCTION = shop.eq, COMMUTATOR = OPERATOR(shop.===)); CREATE OPERATOR shop.=== (LEFTARG = text, RIGHTARG = bigint, FUNCTION = shop.eq, COMMUTATOR = OPERATOR(shop.===));
			RESET ROLE; ALTER FUNCTION shop.eq(bigint, text) OWNER TO postgres; ALTER TABLE public.plants ADD CONSTRAINT c CHECK (id OPERATOR(shop.===) 'a'::text)`,
			"constraint c on table plants calls shop.eq(text,bigint) for shop"},
		{"another table's partition key", "shop", check + `CREATE TABLE shop.h (a int) PARTITION BY HASH ((a + shop.fine(1)::int)); ALTER TABLE public.plants ADD CONSTRAINT c CHECK (satisfies_hash_partition('shop.h'::regclass, 1, 0, 1) IS NOT NULL)`,
			"constraint c on table plants calls satisfies_hash_partition(oid,integer,integer,\"any\") for shop"},
		{"the class of an index", "shop", natural + `CREATE INDEX x ON public.plants (name public.natural_ops)`,
			"index public.x calls shop.compare(text,text) for shop"},
		{"the class of a range", "shop", natural + `CREATE TYPE shop.r AS RANGE (SUBTYPE = text, SUBTYPE_OPCLASS = public.natural_ops); ALTER TYPE shop.r OWNER TO @shop; ALTER TABLE public.plants ADD r shop.r`,
			"type shop.r calls shop.compare(text,text) for shop"},
		{"the class of an array's elements", "shop", mood + `CREATE FUNCTION shop.compare(shop.e, shop.e) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 0; END'; RESET ROLE;
			CREATE FUNCTION public.lt(shop.e, shop.e) RETURNS boolean IMMUTABLE LANGUAGE sql RETURN enum_lt($1, $2); CREATE OPERATOR public.< (LEFTARG = shop.e, RIGHTARG = shop.e, FUNCTION = public.lt);
			CREATE OPERATOR CLASS public.e_ops DEFAULT FOR TYPE shop.e USING btree AS OPERATOR 1 public.<, FUNCTION 1 shop.compare(shop.e, shop.e); ALTER TABLE public.plants ADD e shop.e[]; CREATE INDEX x ON public.plants (e)`,
			"type shop.e calls shop.compare(shop.e,shop.e) for shop"},
		{"an exclusion", "shop", `CREATE FUNCTION shop.same(text, text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN false; END'; RESET ROLE;
			CREATE OPERATOR shop.=== (LEFTARG = text, RIGHTARG = text, FUNCTION = shop.same, COMMUTATOR = OPERATOR(shop.===));
			CREATE OPERATOR CLASS public.natural_ops FOR TYPE text USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 shop.===, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 bttextcmp(text, text);
			ALTER TABLE public.plants ADD CONSTRAINT c EXCLUDE USING btree (name public.natural_ops WITH OPERATOR(shop.===))`, "constraint c on table plants calls shop.same(text,text) for shop"},
		{"a superuser's function in a cast of theirs", "shop", mood + `RESET ROLE; CREATE FUNCTION public.label(anyenum) RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN ''a''; END'; GRANT USAGE ON TYPE shop.e TO postgres;
			SET ROLE @shop; CREATE CAST (shop.e AS text) WITH FUNCTION public.label(anyenum); ALTER TABLE public.plants ADD CHECK (quote_literal('a'::shop.e) IS NOT NULL)`, "cast from shop.e to text calls public.label(anyenum) for shop"},
		{"a cast of a foreign key that is not implicit", "shop", mood + `CREATE FUNCTION shop.to_bigint(shop.e) RETURNS bigint IMMUTABLE LANGUAGE sql AS $$SELECT bigint '1'$$; CREATE CAST (shop.e AS bigint) WITH FUNCTION shop.to_bigint(shop.e) AS IMPLICIT;
			CREATE TABLE shop.kinds (id bigint PRIMARY KEY); ALTER TABLE public.plants ADD e shop.e REFERENCES shop.kinds; DROP CAST (shop.e AS bigint); CREATE CAST (shop.e AS bigint) WITH FUNCTION shop.to_bigint(shop.e)`,
			"cast from shop.e to bigint calls shop.to_bigint(shop.e) for shop"},
		{"a check that runs what it is told to", "shop", `ALTER TABLE public.plants ADD CONSTRAINT c CHECK (query_to_xml('SELECT 1', true, true, '') IS NOT NULL)`,
			"constraint c on table plants calls query_to_xml(text,boolean,boolean,text) for shop"},
		{"a default that is not used", "shop", check + `ALTER TABLE public.plants ALTER name SET DEFAULT shop.fine(1)`, ``},
		{"the default of a new column", "shop", check + `ALTER TABLE public.plants ADD n text DEFAULT shop.fine(1)`, "default value for column n of table plants calls shop.fine(anyelement) for shop"},
		{"harmless defaults of new columns", "shop", `ALTER TABLE public.plants ADD n serial, ADD at timestamptz DEFAULT clock_timestamp(), ADD u uuid DEFAULT gen_random_uuid(), ADD CHECK (length(name) < 99 AND at > now() - interval '1 day'); GRANT USAGE ON SEQUENCE public.plants_n_seq TO plantstore_owner`, ``},
		{"a generated column", "shop", check + `ALTER TABLE public.plants ADD n boolean GENERATED ALWAYS AS (shop.fine(id)) STORED`, "default value for column n of table plants calls shop.fine(anyelement) for shop"},
		{"an index", "shop", check + `CREATE INDEX x ON public.plants (shop.fine(id))`, "index public.x calls shop.fine(anyelement) for shop"},
		{"an index's condition", "shop", check + `CREATE INDEX x ON public.plants (id) WHERE shop.fine(id)`, "index public.x calls shop.fine(anyelement) for shop"},
		{"a domain", "shop", check + `CREATE DOMAIN shop.d AS text CHECK (shop.fine(VALUE)); ALTER TABLE public.plants ALTER name TYPE shop.d`, "constraint d_check calls shop.fine(anyelement) for shop"},
		{"a domain in an array in a composite", "shop", check + `CREATE DOMAIN shop.d AS text CHECK (shop.fine(VALUE)); CREATE TYPE shop.c AS (a shop.d[]); ALTER TABLE public.plants ADD c shop.c[]`,
			"constraint d_check calls shop.fine(anyelement) for shop"},
		{"a range of a domain", "shop", check + `CREATE DOMAIN shop.d AS text CHECK (shop.fine(VALUE)); CREATE TYPE shop.ranges AS RANGE (subtype = shop.d); ALTER TABLE public.plants ADD r shop.ranges`,
			"constraint d_check calls shop.fine(anyelement) for shop"},
		{"a check that reads a table", "shop", `ALTER TABLE public.plants ADD CONSTRAINT c CHECK (table_to_xml('pg_class', true, true, '') IS NOT NULL)`,
			"constraint c on table plants calls table_to_xml(regclass,boolean,boolean,text) for shop"},
		{"a range", "shop", `CREATE FUNCTION shop.diff(text, text) RETURNS float8 IMMUTABLE LANGUAGE sql AS 'SELECT 1::float8'; CREATE TYPE shop.rrange AS RANGE (subtype = text, subtype_diff = shop.diff); ALTER TABLE public.plants ADD c shop.rmultirange`,
			"type shop.rrange calls shop.diff(text,text) for shop"},
		{"whatever other tables have", "shop", evil + check + `CREATE DOMAIN shop.d AS text CHECK (shop.fine(VALUE));
			CREATE TABLE shop.other (id bigint CHECK (shop.fine(id)), n boolean DEFAULT shop.fine(1), d shop.d); CREATE INDEX ON shop.other (shop.fine(id)) WHERE shop.fine(id);
			CREATE RULE r AS ON INSERT TO shop.other WHERE shop.fine(NEW.id) DO ALSO NOTHING; CREATE TRIGGER t BEFORE INSERT ON shop.other FOR EACH ROW WHEN (shop.fine(NEW.id)) EXECUTE FUNCTION shop.evil()`, ``},
		{"statistics", "shop", check + `CREATE STATISTICS shop.s ON (shop.fine(id)), name FROM public.plants`, "statistics object shop.s calls shop.fine(anyelement) for shop"},
		{"an index of a table that a foreign key names", "shop", check + `CREATE TABLE shop.kinds (id int PRIMARY KEY); CREATE INDEX x ON shop.kinds (id) WHERE shop.fine(1); ALTER TABLE public.plants ADD kind int REFERENCES shop.kinds`,
			"index shop.x calls shop.fine(anyelement) for shop"},
		{"an index of a partition of a table that a foreign key names", "shop", check + `CREATE TABLE shop.kinds (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE shop.some PARTITION OF shop.kinds DEFAULT;
			CREATE INDEX x ON shop.some (id) WHERE shop.fine(1); ALTER TABLE public.plants ADD kind int REFERENCES shop.kinds`, "index shop.x calls shop.fine(anyelement) for shop"},
		{"statistics of a table that a foreign key names", "shop", check + `CREATE TABLE shop.kinds (id int PRIMARY KEY, name text); CREATE STATISTICS shop.s ON (shop.fine(id)), name FROM shop.kinds; ALTER TABLE public.plants ADD kind int REFERENCES shop.kinds`,
			"statistics object shop.s calls shop.fine(anyelement) for shop"},
		{"a superuser's function on a search path where others may make functions", "shop", `RESET ROLE; CREATE FUNCTION public.slug(text) RETURNS text IMMUTABLE LANGUAGE plpgsql SET search_path = public AS 'BEGIN RETURN lower($1); END'; CREATE INDEX x ON public.plants (public.slug(name))`,
			"index public.x calls public.slug(text) for shop"},
		{"a superuser's function that runs as its owner", "shop", `RESET ROLE; CREATE FUNCTION public.run(text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN RETURN $1; END'; ALTER TABLE public.plants ADD n text DEFAULT public.run('x')`, ``},
		{"a superuser's function that runs as its owner, and is not for them", "shop", `RESET ROLE; CREATE FUNCTION public.run(text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN RETURN $1; END'; REVOKE EXECUTE ON FUNCTION public.run FROM PUBLIC;
			GRANT EXECUTE ON FUNCTION public.run TO plantstore_owner; ALTER TABLE public.plants ADD n text DEFAULT public.run('x')`, "default value for column n of table plants calls public.run(text) for shop"},
		{"a superuser's function on a search path of schemas whose names only begin or end like such a one", "plantstore_owner", `RESET ROLE; CREATE SCHEMA log AUTHORIZATION @shop; CREATE SCHEMA audit AUTHORIZATION @shop; CREATE SCHEMA "audit_private";
			CREATE FUNCTION public.slug(text) RETURNS text IMMUTABLE LANGUAGE plpgsql SET search_path = pg_temp, audit_private, pg_catalog AS 'BEGIN RETURN lower($1); END'; CREATE INDEX x ON public.plants (public.slug(name))`, ``},
		{"a superuser's function on a search path with a name in quotes", "plantstore_owner", `RESET ROLE; CREATE SCHEMA "Log, ""1""" AUTHORIZATION @shop;
			CREATE FUNCTION public.slug(text) RETURNS text IMMUTABLE LANGUAGE plpgsql SET search_path = pg_catalog, "Log, ""1""" AS 'BEGIN RETURN lower($1); END'; CREATE INDEX x ON public.plants (public.slug(name))`,
			`index public.x calls public.slug(text), which looks names up in schema "Log, ""1""", for shop`},
		{"a superuser's function on a search path that was set by hand", "plantstore_owner", `RESET ROLE; SET search_path = PG_CATALOG,Public; CREATE FUNCTION public.slug(text) RETURNS text IMMUTABLE LANGUAGE plpgsql SET search_path FROM CURRENT AS 'BEGIN RETURN lower($1); END';
			RESET search_path; CREATE INDEX x ON public.plants (public.slug(name))`, `index public.x calls public.slug(text), which looks names up in schema public, for shop`},
		{"random defaults of pgcrypto", "shop", `RESET ROLE; CREATE EXTENSION pgcrypto; ALTER TABLE public.plants ADD n text DEFAULT encode(public.gen_random_bytes(8), 'hex') || public.gen_salt('md5')`, ``},
		{"a rule", "shop", check + `CREATE RULE r AS ON INSERT TO public.plants WHERE shop.fine(NEW.id) DO ALSO NOTHING`, "rule r on table plants calls shop.fine(anyelement) for shop"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			super := pgtest.Pool(t, database.Super)
			shop := "shop_" + strings.ToLower(rand.Text()) // roles are the server's
			owner := strings.ReplaceAll(tt.as, "shop", shop)
			t.Cleanup(func() {
				if err := Script(context.Background(), database.Super, `DROP OWNED BY `+shop+` CASCADE; DROP ROLE `+shop); err != nil {
					t.Error(err)
				}
			})
			if err := Script(t.Context(), database.Super, `
				CREATE ROLE `+shop+`; CREATE SCHEMA shop AUTHORIZATION `+shop+`; GRANT USAGE ON SCHEMA shop TO PUBLIC; GRANT CREATE, USAGE ON SCHEMA public TO `+shop+`;
				ALTER TABLE public.plants OWNER TO `+owner+`; INSERT INTO public.plants (id, name) VALUES (1, 'fern'); `+roles.SQL); err != nil {
				t.Fatal(err)
			}
			l := ledgerOf(t, database)
			if _, err := super.Exec(t.Context(), `DELETE FROM public.plants; SET ROLE `+owner+`; `+strings.NewReplacer("@db", database.Name, "@shop", shop).Replace(tt.sql)+`; RESET ROLE`); err != nil {
				t.Fatal(err)
			}
			_, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{})
			if tt.want == "" {
				if err != nil {
					t.Errorf("Restore: %v, want none", err)
				}
				return
			}
			strangers, _ := errors.AsType[*StrangersError](err)
			want := strings.ReplaceAll(strings.ReplaceAll(tt.want, "for shop", "for "+shop), "on table plants", "on table public.plants")
			want = strings.ReplaceAll(want, "of table plants", "of table public.plants")
			if strangers == nil || len(strangers.Code) != 1 || !strings.HasSuffix(strangers.Code[0], want) {
				t.Fatalf("Restore: %v\nwant it refused because of %s", err, want)
			}
			if got, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{RunTriggers: true}); err != nil || got.Plants != 1 {
				t.Errorf("Restore that runs it = %+v, %v; want 1 plant", got, err)
			}
		})
	}
}

// Of those who may make functions where one of ours looks names up, each has to be dealt with.
func TestRestoreNamesWhoMayMakeFunctions(t *testing.T) {
	t.Parallel()
	role := "maker_" + strings.ToLower(rand.Text()) // roles are the server's
	const each = `DO $$BEGIN FOR i IN 10..21 LOOP EXECUTE format('@sql', i); END LOOP; END$$; `
	forAll := func(sql string) string {
		return strings.ReplaceAll(strings.ReplaceAll(each, "@sql", sql), "@role", role)
	}
	_, super, l := deletedFern(t, forAll(`CREATE ROLE @role%s; GRANT CREATE ON SCHEMA public TO @role%1$s`)+`CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
		ALTER FUNCTION mine() OWNER TO plantstore_owner; CREATE TRIGGER t BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION mine()`)
	t.Cleanup(func() {
		if _, err := super.Exec(context.Background(), forAll(`REVOKE CREATE ON SCHEMA public FROM @role%s; DROP ROLE @role%1$s`)); err != nil {
			t.Error(err)
		}
	})
	for _, tt := range []struct{ sql, want string }{
		{`SELECT`, "10, @role11, @role12, @role13, @role14, @role15, @role16, @role17, @role18, @role19, and 2 more"},
		{`REVOKE CREATE ON SCHEMA public FROM @role10; ALTER ROLE @role21 LOGIN`, "21, @role11, @role12, @role13, @role14, @role15, @role16, @role17, @role18, @role19, and 1 more"},
		{`REVOKE CREATE ON SCHEMA public FROM @role11`, "21, @role12, @role13, @role14, @role15, @role16, @role17, @role18, @role19, @role20"},
	} {
		if _, err := super.Exec(t.Context(), strings.ReplaceAll(tt.sql, "@role", role)); err != nil {
			t.Fatal(err)
		}
		want := "trigger t on table public.plants calls public.mine(), which looks names up in schema public, for " + role + strings.ReplaceAll(tt.want, "@role", role)
		_, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{})
		if strangers, _ := errors.AsType[*StrangersError](err); strangers == nil || !cmp.Equal(strangers.Code, []string{want}) {
			t.Errorf("%s: Restore: %v; want it refused: %s", tt.sql, err, want)
		}
	}
}

// The check of a domain can be made while a restore is under way: no lock of the table's
// keeps that out.
func TestRestoreLooksForStrangersAgain(t *testing.T) {
	t.Parallel()
	s, super, l := deletedFern(t, `CREATE DOMAIN public.d AS text; ALTER TABLE public.plants ALTER name TYPE public.d;
		CREATE FUNCTION public.fine(text) RETURNS boolean LANGUAGE sql AS 'SELECT true'; ALTER FUNCTION public.fine(text) OWNER TO plantstore_app`)
	got, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{Progress: func(what string, _, _ int) {
		if what == "put back" {
			if _, err := super.Exec(t.Context(), `ALTER DOMAIN public.d ADD CONSTRAINT c CHECK (public.fine(VALUE)) NOT VALID`); err != nil {
				t.Error(err)
			}
		}
	}})
	if strangers, ok := errors.AsType[*StrangersError](err); !ok || len(strangers.Code) != 1 || s.has(t, 1) {
		t.Errorf("Restore = %+v, %v; want it refused because of the check, and nothing done", got, err)
	}
}

// Statistics and indexes have code that the planner runs for whoever reads the table. While a
// restore is under way, nobody makes any; deletions go on.
func TestNobodyMakesStatisticsDuringARestore(t *testing.T) {
	t.Parallel()
	s, super, l := deletedFern(t, strangersPlants+`; INSERT INTO plants (id, name) VALUES (2, 'ivy')`)
	got, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{Progress: func(what string, _, _ int) {
		if what == "put back" {
			for _, sql := range []string{`CREATE STATISTICS public.s ON (lower(name)), id FROM public.plants`, `CREATE INDEX ON public.plants (lower(name))`} {
				if _, err := super.Exec(t.Context(), `SET lock_timeout = '100ms'; `+sql); sqlState(err) != "55P03" {
					t.Errorf("%s: %v, want it to wait", sql, err)
				}
			}
			if _, err := s.plants.Delete(in(t, patience), deletion(2, "k")); err != nil {
				t.Errorf("Delete meanwhile: %v, want none", err)
			}
		}
	}})
	if err != nil || got.Plants != 1 {
		t.Errorf("Restore = %+v, %v; want 1 plant", got, err)
	}
}

// deletedFern is a store whose plant 1 was deleted before a superuser ran sql, as a superuser sees
// it, too, and its ledger.
func deletedFern(t *testing.T, sql string) (store, *pgxpool.Pool, *Ledger) {
	t.Helper()
	database := pgtest.New(t)
	s, super := storeOn(t, database, ""), pgtest.Pool(t, database.Super)
	s.exec(t, `INSERT INTO plants (id, name) VALUES (1, 'fern'); DELETE FROM plants`)
	if _, err := super.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	return s, super, ledgerOf(t, database)
}

// strangersPlants gives the table to somebody without rights of ours.
const strangersPlants = `ALTER TABLE public.plants OWNER TO plantstore_app; GRANT SELECT, INSERT, DELETE ON public.plants TO plantstore_owner`

// Who makes an index at a time with others waits for those who have a snapshot from before it,
// and so for a restore that waits for the index, whose lock is not to be had meanwhile.
func TestARestoreAndAnIndexThatIsBeingMade(t *testing.T) {
	t.Parallel()
	for name, pause := range map[string]time.Duration{"that is to be finished": 200 * time.Millisecond, "that others hold up": 1500 * time.Millisecond} { // PostgreSQL looks for a deadlock once, after a second of a wait
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, super, l := deletedFern(t, strangersPlants)
			unlock := s.hold(t, `INSERT INTO plants (id, name) VALUES (2, 'ivy')`)
			ends := make(chan error, 2)
			waiting := func(mode string) {
				for is := false; !is && len(ends) == 0; {
					if err := super.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
						WHERE NOT l.granted AND l.mode = $1 AND a.datname = current_database())`, mode).Scan(&is); err != nil {
						t.Fatal(err)
					}
				}
			}
			go func() {
				_, err := super.Exec(t.Context(), `CREATE INDEX CONCURRENTLY x ON public.plants (name)`)
				ends <- err
			}()
			waiting("ShareLock") // for the open transaction
			go func() {
				_, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{})
				ends <- err
			}()
			waiting("ShareUpdateExclusiveLock")
			time.Sleep(pause)
			unlock()
			for range 2 {
				if err := <-ends; err != nil {
					t.Errorf("%v, want the index to be made and the plant to be restored", err)
				}
			}
			if !s.has(t, 1) {
				t.Error("the plant is not there")
			}
		})
	}
}

// A restore waits for a lock of the whole table longer than a session's time limits allow.
func TestARestoreWaitsForALockedTable(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{"ours": `SELECT`, "a stranger's": strangersPlants} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, l := deletedFern(t, sql)
			if _, err := l.db.pool.Exec(t.Context(), `SET statement_timeout = '100ms'`); err != nil { // on the connection that the restore gets
				t.Fatal(err)
			}
			unlock := s.hold(t, `LOCK TABLE public.plants IN ACCESS EXCLUSIVE MODE`)
			time.AfterFunc(time.Second, unlock)
			if got, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{}); err != nil || got.Plants != 1 {
				t.Errorf("Restore = %+v, %v; want 1 plant", got, err)
			}
		})
	}
}

// Who could do more to the server than those who own what a restore meets does not restore,
// whatever the code there says, unless they accept it. It goes by who logged in.
func TestRestoreByARoleWithMoreRights(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s, super := storeOn(t, database, ""), pgtest.Pool(t, database.Super)
	role := "admin_" + strings.ToLower(rand.Text()) // roles are the server's
	t.Cleanup(func() {
		if err := Script(context.Background(), database.Super, `DROP OWNED BY `+role+`; DROP ROLE member_of_`+role+`, `+role); err != nil {
			t.Error(err)
		}
	})
	s.exec(t, `INSERT INTO plants (id, name) VALUES (1, 'fern'), (2, 'ivy'); DELETE FROM plants`)
	if err := Script(t.Context(), database.Super, `CREATE ROLE `+role+` LOGIN PASSWORD 'x' CREATEROLE; GRANT ALL ON ALL TABLES IN SCHEMA public TO `+role+`;
		CREATE ROLE member_of_`+role+` LOGIN PASSWORD 'x'; GRANT `+role+` TO member_of_`+role); err != nil {
		t.Fatal(err)
	}
	for _, ledger := range []func() *Ledger{
		func() *Ledger { return ledgerAt(t, database.Super) },
		func() *Ledger { return ledgerAs(t, database, role) },
		func() *Ledger { return ledgerAs(t, database, "member_of_"+role) },
	} {
		for _, set := range []string{`SET role = plantstore_owner`, `RESET role`} {
			name := pgx.Identifier{database.Name}.Sanitize()
			if _, err := super.Exec(t.Context(), `ALTER DATABASE `+name+` `+set); err != nil {
				t.Fatal(err)
			}
			const want = "table public.plants (plantstore_owner). What they put there could run with these rights. "
			if got, err := ledger().Undoable(t.Context(), Deleter{Role: "plantstore_owner"}, time.Time{}, time.Time{}, false); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: Undoable = %+v, %v; want it refused:%s", set, got, err, want)
			}
			if got, err := ledger().Restore(t.Context(), []int64{1}, RestoreOptions{DryRun: true}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: Restore = %+v, %v; want it refused:%s", set, got, err, want)
			}
		}
	}
	if got, err := ledgerAt(t, database.Super).Restore(t.Context(), []int64{1}, RestoreOptions{RunTriggers: true}); err != nil || got.Plants != 1 {
		t.Errorf("Restore that is accepted = %+v, %v; want 1 plant", got, err)
	}
	if _, err := super.Exec(t.Context(), `ALTER ROLE `+role+` NOCREATEROLE`); err != nil {
		t.Fatal(err)
	}
	if _, err := ledgerAs(t, database, role).Restore(t.Context(), []int64{2}, RestoreOptions{DryRun: true}); err != nil {
		t.Errorf("Restore by a role without more rights: %v, want none", err)
	}
}

// Whose code a restore may run is not told by who owns the plants alone, and what a role could do
// to the server not by whether it is a superuser.
func TestWhoseRightsArePowers(t *testing.T) {
	t.Parallel()
	// refused returns what a restore is refused with, with all that it meets a superuser's but for
	// what sql does.
	refused := func(t *testing.T, sql, as string) string {
		database := pgtest.New(t)
		s := storeOn(t, database, "")
		s.exec(t, `INSERT INTO plants (id, name) VALUES (1, 'fern'); DELETE FROM plants`)
		if err := Script(t.Context(), database.Super, `ALTER TABLE plants OWNER TO CURRENT_USER; ALTER TABLE plant_deletions OWNER TO CURRENT_USER; ALTER TABLE plant_shapes OWNER TO CURRENT_USER;
			ALTER SCHEMA public OWNER TO CURRENT_USER; ALTER DATABASE `+pgx.Identifier{database.Name}.Sanitize()+` OWNER TO CURRENT_USER; `+strings.ReplaceAll(sql, "@database", pgx.Identifier{database.Name}.Sanitize())); err != nil {
			t.Fatal(err)
		}
		l := ledgerAt(t, database.Super)
		if as != "" {
			l = ledgerAs(t, database, as)
		}
		_, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{DryRun: true})
		if err == nil {
			return ""
		}
		return err.Error()
	}
	const app = ` OWNER TO plantstore_app`
	for _, test := range []struct{ name, sql, want string }{
		{"nothing", ``, ``},
		{"the plants", `ALTER TABLE plants` + app, "table public.plants (plantstore_app)"},
		{"the ledger", `ALTER TABLE plant_deletions` + app, "table public.plant_deletions (plantstore_app)"},
		{"its shapes", `ALTER TABLE plant_shapes` + app, "table public.plant_shapes (plantstore_app)"},
		{"a table that plants refer to", `CREATE TABLE kinds (id bigint PRIMARY KEY); ALTER TABLE plants ADD kind bigint REFERENCES kinds; ALTER TABLE kinds` + app, "table public.kinds (plantstore_app)"},
		{"another table", `CREATE TABLE kinds (id bigint PRIMARY KEY); ALTER TABLE kinds` + app, ``},
		{"the schema", `ALTER SCHEMA public` + app, "schema public (plantstore_app)"},
		{"the database", `ALTER DATABASE @database` + app, "database "},
		{"an enum", `CREATE TYPE mood AS ENUM ('ok'); ALTER TYPE mood` + app, "type public.mood (plantstore_app)"},
		{"a domain", `CREATE DOMAIN label AS text; ALTER DOMAIN label` + app, "type public.label (plantstore_app)"},
		{"a range", `CREATE TYPE span AS RANGE (subtype = bigint); ALTER TYPE span` + app, "type public.span (plantstore_app)"},
		{"a composite type", `CREATE TYPE pair AS (a bigint); ALTER TYPE pair` + app, "type public.pair (plantstore_app)"},
		{"many types", `DO $$ BEGIN FOR i IN 101..113 LOOP EXECUTE format('CREATE TYPE e%s AS ENUM (); ALTER TYPE e%s` + app + `', i, i); END LOOP; END $$`, "type public.e110 (plantstore_app), and 3 more. What"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := refused(t, test.sql, "")
			if test.want != "" && (!strings.Contains(got, " has more rights (SUPERUSER) than the owners of what a restore meets: ") || !strings.Contains(got, test.want)) || test.want == "" && got != "" {
				t.Errorf("Restore by a superuser = %q, want %q", got, test.want)
			}
		})
	}
	for _, power := range []string{"CREATEROLE", "IN ROLE pg_execute_server_program", "IN ROLE pg_write_server_files", "IN ROLE pg_read_server_files",
		"REPLICATION", "IN ROLE pg_read_all_data", "IN ROLE pg_write_all_data"} {
		t.Run(power, func(t *testing.T) {
			t.Parallel()
			server := pgtest.New(t)
			role := "power_" + strings.ToLower(rand.Text()) // roles are the server's
			t.Cleanup(func() {
				if err := Script(context.Background(), server.Super, `DROP ROLE `+role); err != nil {
					t.Error(err)
				}
			})
			got := refused(t, `CREATE ROLE `+role+` LOGIN PASSWORD 'x' `+power+`; ALTER TABLE plants`+app, role)
			want := "role " + role + " has more rights (" + strings.TrimPrefix(power, "IN ROLE ") + ") than the owners of what a restore meets: table public.plants (plantstore_app). "
			if !strings.Contains(got, want) {
				t.Errorf("Restore = %q, want it refused: %q", got, want)
			}
		})
	}
}

// What a role is, such as CREATEROLE, it does not pass on to whoever inherits its rights. Only who
// may become it, as members did before PostgreSQL 16, could do the same. And nobody has more
// rights than oneself.
func TestWhoHasTheSamePower(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	id := strings.ToLower(rand.Text()) // roles are the server's
	named := func(sql string) string {
		return strings.NewReplacer("@boss", "boss_"+id, "@dba", "dba_"+id, "@shop", "shop_"+id, "@database", pgx.Identifier{database.Name}.Sanitize()).Replace(sql)
	}
	super := pgtest.Pool(t, database.Super)
	exec := func(sql string) {
		t.Helper()
		if _, err := super.Exec(t.Context(), named(sql)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := Script(context.Background(), database.Super, named(`ALTER DATABASE @database OWNER TO CURRENT_USER; DROP OWNED BY @boss, @shop, @dba CASCADE; DROP ROLE @boss, @shop, @dba`)); err != nil {
			t.Error(err)
		}
	})
	s.exec(t, `INSERT INTO plants (id, name) VALUES (1, 'fern'); DELETE FROM plants`)
	exec(`CREATE ROLE @dba CREATEROLE; CREATE ROLE @boss LOGIN PASSWORD 'x' NOINHERIT IN ROLE @dba; CREATE ROLE @shop;
		ALTER TABLE plants OWNER TO @boss; ALTER TABLE plant_deletions OWNER TO @boss; ALTER TABLE plant_shapes OWNER TO @boss; ALTER SCHEMA public OWNER TO @boss; ALTER DATABASE @database OWNER TO @boss`)
	l := ledgerAs(t, database, "boss_"+id)
	restore := func() error {
		_, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{DryRun: true})
		return err
	}
	if err := restore(); err != nil {
		t.Errorf("Restore by who owns all, and may become a role with CREATEROLE: %v, want none", err)
	}
	since16 := serverVersion(t, s.pool) >= 160000
	if since16 {
		exec(`GRANT @dba TO @boss WITH SET FALSE`)
		if err := restore(); err != nil {
			t.Errorf("Restore by who owns all, and is a member of a role that it may not become: %v, want none", err)
		}
		exec(`GRANT pg_read_server_files TO @boss; ALTER TABLE plants OWNER TO @shop; GRANT ALL ON plants TO @boss; REVOKE @dba FROM @boss; GRANT pg_read_server_files TO @shop WITH INHERIT TRUE, SET FALSE`)
		if err := restore(); err != nil {
			t.Errorf("Restore where the plants' owner inherits the same right: %v, want none", err)
		}
	}
	exec(`ALTER TABLE plants OWNER TO @shop; GRANT ALL ON plants TO @boss; ALTER ROLE @boss CREATEROLE; GRANT @boss TO @shop`)
	if err := restore(); err != nil {
		t.Errorf("Restore by who the plants' owner may become: %v, want none", err)
	}
	if !since16 {
		return // whoever inherits may become
	}
	exec(`GRANT @boss TO @shop WITH INHERIT TRUE, SET FALSE`)
	want := named(" has more rights (CREATEROLE) than the owners of what a restore meets: table public.plants (@shop).")
	if err := restore(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Restore by whose rights the plants' owner inherits: %v, want it refused:%s", err, want)
	}
	exec(`ALTER ROLE @boss NOCREATEROLE; REVOKE @dba FROM @boss; CREATE SCHEMA shop; CREATE FUNCTION shop.evil() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS 'BEGIN RETURN NEW; END';
		ALTER FUNCTION shop.evil() OWNER TO @shop; CREATE TRIGGER t BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION shop.evil()`)
	if _, refused := errors.AsType[*StrangersError](restore()); !refused {
		t.Error("the code of who inherits our rights, and may not become us, is not refused")
	}
}

// What a stranger is goes by who logged in, too: a trigger may take SET ROLE back.
func TestStrangersToWhoLoggedIn(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	id := strings.ToLower(rand.Text()) // roles are the server's
	t.Cleanup(func() {
		if err := Script(context.Background(), database.Super, `SET ROLE NONE; DROP OWNED BY shop_`+id+`, login_`+id+` CASCADE; DROP ROLE shop_`+id+`, login_`+id); err != nil {
			t.Error(err)
		}
	})
	s.exec(t, `INSERT INTO plants (id, name) VALUES (1, 'fern'); DELETE FROM plants`)
	if err := Script(t.Context(), database.Super, strings.NewReplacer("@shop", "shop_"+id, "@login", "login_"+id, "@database", pgx.Identifier{database.Name}.Sanitize()).Replace(`
		CREATE ROLE @shop IN ROLE plantstore_owner; CREATE ROLE @login LOGIN PASSWORD 'x' IN ROLE plantstore_owner;
		CREATE SCHEMA shop AUTHORIZATION @shop; GRANT USAGE ON SCHEMA shop TO PUBLIC;
		CREATE FUNCTION shop.evil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; ALTER FUNCTION shop.evil() OWNER TO @shop;
		CREATE TRIGGER t BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION shop.evil();
		ALTER DATABASE @database SET role = plantstore_owner`)); err != nil {
		t.Fatal(err)
	}
	if _, err := ledgerOf(t, database).Restore(t.Context(), []int64{1}, RestoreOptions{DryRun: true}); err != nil {
		t.Errorf("Restore as plantstore_owner: %v, want none", err)
	}
	_, err := ledgerAs(t, database, "login_"+id).Restore(t.Context(), []int64{1}, RestoreOptions{DryRun: true})
	if _, refused := errors.AsType[*StrangersError](err); !refused {
		t.Errorf("Restore as another who becomes plantstore_owner: %v, want it refused for strangers", err)
	}
}

// A trigger of the store's may put off to the commit what is made immediate before a restore. It is
// done before the plants are compared, and before a dry run ends.
func TestRestoreDoesAllBeforeItCompares(t *testing.T) {
	t.Parallel()
	const putOff = `CREATE FUNCTION put_off() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN SET CONSTRAINTS ALL DEFERRED; RETURN NEW; END';
		CREATE TRIGGER b BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION put_off()`
	for name, tt := range map[string]struct{ before, after, want string }{
		"a plant that is changed": {``, `CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN UPDATE public.plants SET name = 'other' WHERE id = NEW.id; RETURN NULL; END$$;
			CREATE CONSTRAINT TRIGGER a AFTER INSERT ON plants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late(); `, `"fern" becomes "other"`},
		"a row that it refers to": {`CREATE TABLE kinds (id int PRIMARY KEY); INSERT INTO kinds VALUES (1); ALTER TABLE plants ADD kind int DEFAULT 1 REFERENCES kinds DEFERRABLE INITIALLY DEFERRED; `,
			`DELETE FROM kinds; `, `what a trigger had put off to the commit fails: insert or update on table "plants" violates foreign key constraint "plants_kind_fkey" (SQLSTATE 23503): Key (kind)=(1) is not present in table "kinds"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			s, l := storeOn(t, database, ""), ledgerOf(t, database)
			s.exec(t, tt.before+`INSERT INTO plants (id, name) VALUES (1, 'fern'); DELETE FROM plants; `+tt.after+putOff)
			for _, dry := range []bool{true, false} {
				if got, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{DryRun: dry}); err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("Restore, dry run %v = %+v, %v; want %s", dry, got, err, tt.want)
				}
			}
		})
	}
}

// In a replica's session nothing is checked.
func TestRestoreInAReplicasSession(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.exec(t, `CREATE TABLE kinds (id int PRIMARY KEY); INSERT INTO kinds VALUES (1); ALTER TABLE plants ADD kind int DEFAULT 1 REFERENCES kinds;
		INSERT INTO plants (id, name) VALUES (1, 'fern'); DELETE FROM plants; DELETE FROM kinds`)
	if err := Script(t.Context(), database.Super, `ALTER DATABASE `+pgx.Identifier{database.Name}.Sanitize()+` SET session_replication_role = replica`); err != nil {
		t.Fatal(err)
	}
	const want = "session_replication_role is replica in this session"
	if got, err := ledgerOf(t, database).Restore(t.Context(), []int64{1}, RestoreOptions{}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Restore = %+v, %v; want it refused: %s", got, err, want)
	}
}

// Whoever owns the database owns the schema public, and may put something else in the ledger's
// place.
func TestRestoreFromTheLedgerOnly(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"a view":           `CREATE VIEW public.plant_deletions WITH (security_invoker) AS SELECT * FROM evil.entries WHERE evil.ran()`,
		"a stranger's own": `CREATE TABLE public.plant_deletions AS TABLE evil.entries; ALTER TABLE public.plant_deletions OWNER TO plantstore_app`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const want = "code could run with "
			sql := entries + `DROP TABLE public.plant_deletions CASCADE; ` + sql + `; GRANT ALL ON public.plant_deletions TO plantstore_owner`
			refusesUnseen(t, sql, want, RestoreOptions{RunTriggers: true})
			database, l := spiedOn(t, sql)
			for name, read := range map[string]func() error{
				"Undoable": func() error {
					_, err := l.Undoable(t.Context(), Deleter{Role: "plantstore_owner"}, time.Time{}, time.Time{}, true)
					return err
				},
				"List":  func() error { _, _, err := l.List(t.Context(), LedgerFilter{}, 9, true); return err },
				"Get":   func() error { _, err := l.Get(t.Context(), 1); return err },
				"Older": func() error { _, err := l.Older(t.Context(), IdempotencyHorizon); return err },
				"Purge": func() error { _, err := l.Purge(t.Context(), IdempotencyHorizon, func(int64) {}); return err },
				"Export": func() error {
					return l.Export(t.Context(), ExportOptions{Write: func([]Recorded) error { return nil }})
				},
			} {
				if err := read(); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v; want %s", name, err, want)
				}
			}
			spiedOnNobody(t, pgtest.Pool(t, database.Super))
		})
	}
}

// So they may in the place of tokens and budgets.
func TestTokensOfOurTablesOnly(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"api_principals", "api_tokens", "plantstore_budgets"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			const want = "code could run with "
			database, l := spiedOn(t, strings.ReplaceAll(`CREATE TABLE evil.entries AS TABLE public.@table; GRANT ALL ON evil.entries TO plantstore_owner; DROP TABLE public.@table CASCADE;
				CREATE VIEW public.@table WITH (security_invoker) AS SELECT * FROM evil.entries WHERE evil.ran(); GRANT ALL ON public.@table TO plantstore_owner`, "@table", table))
			tokens := l.db.Tokens(0)
			if got, err := tokens.List(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("List = %+v, %v; want %s", got, err, want)
			}
			if _, err := tokens.Create(t.Context(), "ada", []string{"plants:delete"}, time.Time{}, plant.Budget{}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Create: %v; want %s", err, want)
			}
			if _, err := l.Purge(t.Context(), IdempotencyHorizon, func(int64) {}); table == "plantstore_budgets" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("Purge: %v; want %s", err, want)
			}
			spiedOnNobody(t, pgtest.Pool(t, database.Super))
		})
	}
}

// A schema that gets another name takes its tables along, whoever has locked them, and another one
// may take its name. While a superuser reads it keeps it.
func TestNobodyRenamesTheSchemaWhileASuperuserReads(t *testing.T) {
	t.Parallel()
	for name, parameters := range map[string]string{"plain": "", "who acts as another role": "role=plantstore_owner"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			super := pgtest.Pool(t, pgtest.WithParameters(database.Super, parameters))
			err := readTables(t.Context(), super, pgx.ReadCommitted, func(tx pgx.Tx) error {
				const rename = `BEGIN; SET LOCAL lock_timeout = '100ms'; ALTER SCHEMA public RENAME TO gone; ROLLBACK`
				if err := Script(t.Context(), database.Super, rename); sqlState(err) != lockNotAvailable {
					t.Errorf("ALTER SCHEMA public RENAME: %v; want that it waits", err)
				}
				var role string
				if err := tx.QueryRow(t.Context(), `SELECT current_user`).Scan(&role); err != nil || parameters != "" && role != "plantstore_owner" {
					t.Errorf("it reads as %s, %v; want the role that was chosen", role, err)
				}
				return nil
			}, "plant_deletions")
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// Nor can a superuser be kept from that, unseen.
func TestASuperuserReadsNothingUnderAnotherName(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	reads := func(parameters string) error {
		return readTables(t.Context(), pgtest.Pool(t, pgtest.WithParameters(database.Super, parameters)), pgx.ReadCommitted, func(pgx.Tx) error { return nil }, "plant_deletions")
	}
	if err := reads("default_transaction_read_only=on"); sqlState(err) != readOnlyTransaction {
		t.Errorf("where transactions may only read: %v; want SQLSTATE %s", err, readOnlyTransaction)
	}
	tx, err := pgtest.Pool(t, database.Super).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `ALTER SCHEMA public RENAME TO gone; CREATE SCHEMA public; CREATE VIEW public.plant_deletions AS SELECT 1`); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() { read <- reads("") }()
	s.seeWaits(t, 1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err == nil || !strings.Contains(err.Error(), "renames the schema public") {
		t.Errorf("while another schema takes the name: %v; want that it is told", err)
	}
}

// Whoever may make triggers on our tables could act with the rights of who writes them.
func TestTriggersOfStrangersOnOurTables(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"plant_deletions", "api_principals", "api_tokens", "plantstore_budgets"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			database, l := spiedOn(t, strings.ReplaceAll(`CREATE FUNCTION evil.trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM evil.ran(); RETURN NULL; END';
				ALTER FUNCTION evil.trigger() OWNER TO plantstore_app; GRANT USAGE ON SCHEMA evil TO PUBLIC;
				CREATE CONSTRAINT TRIGGER t AFTER INSERT OR UPDATE OR DELETE ON public.@table DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION evil.trigger()`, "@table", table))
			want := "others could act with your rights: trigger t on table public." + table + " calls evil.trigger() of plantstore_app. Drop it, or once you have read that, ALTER FUNCTION evil.trigger() OWNER TO plantstore_owner"
			for name, write := range map[string]func() error{
				"Restore": func() error { _, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{}); return err },
				"Purge":   func() error { _, err := l.Purge(t.Context(), IdempotencyHorizon, func(int64) {}); return err },
				"Create": func() error {
					_, err := l.db.Tokens(0).Create(t.Context(), "ada", []string{"plants:delete"}, time.Time{}, plant.Budget{})
					return err
				},
			} {
				writes := table == "plant_deletions" && name != "Create" || table != "plant_deletions" && name == "Create" || table == "plantstore_budgets" && name == "Purge"
				if err := write(); writes && (err == nil || !strings.Contains(err.Error(), want)) || !writes && err != nil {
					t.Errorf("%s: %v; want it refused: %v, %s", name, err, writes, want)
				}
			}
			spiedOnNobody(t, pgtest.Pool(t, database.Super))
		})
	}
}

// What makes a trigger, or whatever else runs code when our tables are written, one of others. The
// remedy in the message is one.
func TestWhoseCodeRunsWhenOurTablesAreWritten(t *testing.T) {
	t.Parallel()
	const audit = `CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; `
	const trigger = `CREATE TRIGGER t AFTER DELETE ON plant_deletions FOR EACH ROW `
	const child = `CREATE SCHEMA rep; CREATE TABLE rep.r (id bigint REFERENCES plant_deletions `
	for name, tt := range map[string]struct {
		sql  string
		want string // empty: nobody's
	}{
		"an audit":                               {audit + trigger + `EXECUTE FUNCTION audit()`, ""},
		"an audit, and others may make triggers": {audit + trigger + `EXECUTE FUNCTION audit(); GRANT ALL ON ALL TABLES IN SCHEMA public TO plantstore_app`, ""},
		"an audit of another role's": {audit + trigger + `EXECUTE FUNCTION audit(); ALTER FUNCTION audit() OWNER TO plantstore_app`,
			"trigger t on table public.plant_deletions calls public.audit() of plantstore_app. Drop it, or once you have read that, ALTER FUNCTION public.audit() OWNER TO plantstore_owner"},
		"an argument": {audit + trigger + `EXECUTE FUNCTION audit('x')`, ""},
		"an argument of others": {audit + trigger + `EXECUTE FUNCTION audit('x'); GRANT TRIGGER ON plant_deletions TO plantstore_app`,
			"trigger t on table public.plant_deletions may be of plantstore_app, as it has arguments or a condition. Once you have read it, REVOKE TRIGGER ON public.plant_deletions FROM plantstore_app"},
		"a condition of others": {audit + trigger + `WHEN (OLD.id > 0) EXECUTE FUNCTION audit(); GRANT TRIGGER ON plant_deletions TO plantstore_app`,
			"trigger t on table public.plant_deletions may be of plantstore_app, as it has arguments or a condition. Once you have read it, REVOKE TRIGGER ON public.plant_deletions FROM plantstore_app"},
		"a function of others in a condition": {audit + `CREATE FUNCTION fine(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'; ` + trigger + `WHEN (fine(OLD.id)) EXECUTE FUNCTION audit(); ALTER FUNCTION fine OWNER TO plantstore_app`,
			"trigger t on table public.plant_deletions calls public.fine(bigint) of plantstore_app. Drop it, or once you have read that, ALTER FUNCTION public.fine(bigint) OWNER TO plantstore_owner"},
		"a condition that does what it is told to": {audit + trigger + `WHEN (query_to_xml('SELECT 1', true, true, '') IS NOT NULL) EXECUTE FUNCTION audit()`,
			"trigger t on table public.plant_deletions calls query_to_xml(text,boolean,boolean,text) in its condition, which may do what it is told to. Drop it"},
		"a search path of its own": {audit + `ALTER FUNCTION audit() SET search_path = public; ` + trigger + `EXECUTE FUNCTION audit()`, ""},
		"a search path where others create": {audit + `ALTER FUNCTION audit() SET search_path = public; GRANT CREATE ON SCHEMA public TO plantstore_app; ` + trigger + `EXECUTE FUNCTION audit()`,
			"function public.audit() looks names up in schema public, where plantstore_app may create them. ALTER FUNCTION public.audit() SET search_path = pg_catalog, pg_temp"},
		"rows that leave with ours": {child + `ON DELETE CASCADE)`, ""},
		"rows of others that leave with ours": {child + `ON DELETE CASCADE); ALTER TABLE rep.r OWNER TO plantstore_app`,
			"table rep.r may have triggers of plantstore_app. ALTER TABLE rep.r DROP CONSTRAINT r_id_fkey"},
		"rows of others that are changed with ours": {child + `ON DELETE SET NULL); GRANT TRIGGER ON rep.r TO plantstore_app`,
			"table rep.r may have triggers of plantstore_app. ALTER TABLE rep.r DROP CONSTRAINT r_id_fkey"},
		"rows of others that keep ours": {child + `); ALTER TABLE rep.r OWNER TO plantstore_app`, ""},
		"rows of others that leave with such": {child + `ON DELETE CASCADE UNIQUE); CREATE TABLE rep.s (id bigint REFERENCES rep.r (id) ON DELETE CASCADE); ALTER TABLE rep.s OWNER TO plantstore_app`,
			"table rep.s may have triggers of plantstore_app. ALTER TABLE rep.s DROP CONSTRAINT s_id_fkey"},
		"a trigger of others on rows that leave with ours": {audit + child + `ON DELETE CASCADE); CREATE TRIGGER t AFTER DELETE ON rep.r FOR EACH ROW EXECUTE FUNCTION audit(); ALTER FUNCTION audit() OWNER TO plantstore_app`,
			"trigger t on table rep.r calls public.audit() of plantstore_app. Drop it, or once you have read that, ALTER FUNCTION public.audit() OWNER TO plantstore_owner"},
		"rows of others that get their default": {child + `ON DELETE SET DEFAULT); GRANT TRIGGER ON rep.r TO plantstore_app`,
			"table rep.r may have triggers of plantstore_app. ALTER TABLE rep.r DROP CONSTRAINT r_id_fkey"},
		"rows of others who took their own rights": {child + `ON DELETE CASCADE); ALTER TABLE rep.r OWNER TO plantstore_app; REVOKE ALL ON rep.r FROM plantstore_app`,
			"table rep.r may have triggers of plantstore_app. ALTER TABLE rep.r DROP CONSTRAINT r_id_fkey"},
		"the search path of its owner": {audit + `ALTER FUNCTION audit() SET search_path = "$user"; ALTER FUNCTION audit() OWNER TO plantstore_owner; CREATE SCHEMA plantstore_owner; GRANT CREATE ON SCHEMA plantstore_owner TO plantstore_app; ` + trigger + `EXECUTE FUNCTION audit()`,
			"function public.audit() looks names up in schema plantstore_owner, where plantstore_app may create them. ALTER FUNCTION public.audit() SET search_path = pg_catalog, pg_temp"},
		"the search path of who runs it": {audit + `ALTER FUNCTION audit() SET search_path = "$user"; ALTER FUNCTION audit() OWNER TO plantstore_owner; CREATE SCHEMA postgres; GRANT CREATE ON SCHEMA postgres TO plantstore_app; ` + trigger + `EXECUTE FUNCTION audit()`,
			"function public.audit() looks names up in schema postgres, where plantstore_app may create them. ALTER FUNCTION public.audit() SET search_path = pg_catalog, pg_temp"},
		"an odd search path": {audit + `CREATE SCHEMA "My ""Shop"; ALTER FUNCTION audit() SET search_path = pg_catalog, "My ""Shop"; GRANT CREATE ON SCHEMA "My ""Shop" TO plantstore_app; ` + trigger + `EXECUTE FUNCTION audit()`,
			`function public.audit() looks names up in schema "My ""Shop", where plantstore_app may create them. ALTER FUNCTION public.audit() SET search_path = pg_catalog, pg_temp`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			if err := Script(t.Context(), database.Super, tt.sql); err != nil {
				t.Fatal(err)
			}
			purge := func() error {
				_, err := ledgerAt(t, database.Super).Purge(t.Context(), IdempotencyHorizon, func(int64) {})
				return err
			}
			err := purge()
			if tt.want == "" {
				if err != nil {
					t.Errorf("Purge: %v, want none", err)
				}
				return
			}
			if err == nil || !strings.HasSuffix(err.Error(), "others could act with your rights: "+tt.want) {
				t.Fatalf("Purge: %v\nwant it refused: %s", err, tt.want)
			}
			remedy := regexp.MustCompile(`(ALTER|REVOKE) .*`).FindString(tt.want)
			if remedy == "" {
				remedy = `DROP TRIGGER t ON plant_deletions`
			}
			if err := Script(t.Context(), database.Super, remedy); err != nil {
				t.Fatal(err)
			}
			if err := purge(); err != nil {
				t.Errorf("Purge after the remedy: %v, want none", err)
			}
		})
	}
}

// Who has the owner's rights could act with them anyway.
func TestTriggersOfMembersOfTheOwner(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	role := "member_" + strings.ToLower(rand.Text()) // roles are the server's
	t.Cleanup(func() {
		if err := Script(context.Background(), database.Super, `DROP OWNED BY `+role+` CASCADE; DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	if err := Script(t.Context(), database.Super, `CREATE ROLE `+role+` IN ROLE plantstore_owner; CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		ALTER FUNCTION audit() OWNER TO `+role+`; CREATE TRIGGER t AFTER DELETE ON plant_deletions FOR EACH ROW EXECUTE FUNCTION audit('x')`); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{database.Super, database.Owner} {
		if _, err := ledgerAt(t, url).Purge(t.Context(), IdempotencyHorizon, func(int64) {}); err != nil {
			t.Errorf("Purge: %v, want none", err)
		}
	}
}

// A trigger for replicas runs in their sessions only, in which others do not.
func TestTriggersOfStrangersInAReplicasSession(t *testing.T) {
	t.Parallel()
	for enabled, refused := range map[string][2]bool{"ENABLE": {true, false}, "ENABLE ALWAYS": {true, true}, "ENABLE REPLICA": {false, true}, "DISABLE": {false, false}} {
		t.Run(enabled, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			if err := Script(t.Context(), database.Super, `CREATE FUNCTION evil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; ALTER FUNCTION evil() OWNER TO plantstore_app;
				CREATE TRIGGER t AFTER DELETE ON plant_deletions FOR EACH ROW EXECUTE FUNCTION evil(); ALTER TABLE plant_deletions `+enabled+` TRIGGER t`); err != nil {
				t.Fatal(err)
			}
			for i, role := range []string{"origin", "replica"} {
				l := ledgerAt(t, pgtest.WithParameters(database.Super, "session_replication_role="+role))
				if _, err := l.Purge(t.Context(), IdempotencyHorizon, func(int64) {}); (err != nil) != refused[i] {
					t.Errorf("Purge in a session with %s: %v; want it refused: %v", role, err, refused[i])
				}
			}
		})
	}
}

// A superuser's lock of the schema is written down. What only reads does not wait for that to
// reach a standby.
func TestReadersCommitNothing(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	l := ledgerAt(t, database.Super)
	for name, read := range map[string]func() error{
		"List":   func() error { _, _, err := l.List(t.Context(), LedgerFilter{}, 9, true); return err },
		"Older":  func() error { _, err := l.Older(t.Context(), IdempotencyHorizon); return err },
		"Tokens": func() error { _, err := l.db.Tokens(0).List(t.Context()); return err },
		"Export": func() error {
			return l.Export(t.Context(), ExportOptions{Write: func([]Recorded) error { return nil }})
		},
	} {
		if err := read(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var status string
		if err := pgtest.Pool(t, database.Super).QueryRow(t.Context(), `SELECT pg_xact_status(xmax::text::xid8) FROM pg_namespace WHERE nspname = 'public'`).Scan(&status); err != nil || status != "aborted" {
			t.Errorf("%s: the transaction that locked the schema is %q, %v; want it aborted", name, status, err)
		}
	}
}

// Whoever migrates with a role of their own is told how others read its ledger.
func TestReadersOfALedgerOfAnotherRoles(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	storeOn(t, database, "")
	role := "migrator_" + strings.ToLower(rand.Text()) // roles are the server's
	t.Cleanup(func() {
		if err := Script(context.Background(), database.Super, `DROP OWNED BY `+role+` CASCADE; DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	if err := Script(t.Context(), database.Super, `CREATE ROLE `+role+`; ALTER TABLE plant_deletions OWNER TO `+role+`; ALTER TABLE plant_shapes OWNER TO `+role); err != nil {
		t.Fatal(err)
	}
	l := ledgerAt(t, database.Super)
	want := "a role with fewer rights than yours owns what is read, and its code could run with yours: table public.plant_deletions of " + role + ", table public.plant_shapes of " + role +
		". If " + role + " is who migrates, do this as " + role + ". Or once you have looked at their indexes, triggers and defaults, give each to plantstore_owner (ALTER TABLE … OWNER TO plantstore_owner)"
	if _, _, err := l.List(t.Context(), LedgerFilter{}, 9, true); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("List by a superuser: %v; want %s", err, want)
	}
	if err := Script(t.Context(), database.Super, `ALTER TABLE plant_deletions OWNER TO plantstore_owner; ALTER TABLE plant_shapes OWNER TO plantstore_owner`); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.List(t.Context(), LedgerFilter{}, 9, true); err != nil {
		t.Errorf("List after that: %v; want none", err)
	}
}

// entries is a ledger that a stranger has made.
const entries = `CREATE TABLE evil.entries AS TABLE public.plant_deletions; GRANT ALL ON evil.entries TO plantstore_owner; `

// A restore that waits for the lock of who replaces the ledger reads nothing else after it.
func TestALedgerThatIsReplacedWhileARestoreWaits(t *testing.T) {
	t.Parallel()
	database, l := spiedOn(t, entries)
	super := pgtest.Pool(t, database.Super)
	tx, err := super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `DROP TABLE public.plant_deletions CASCADE; CREATE VIEW public.plant_deletions WITH (security_invoker) AS
		SELECT * FROM evil.entries WHERE evil.ran(); GRANT ALL ON public.plant_deletions TO plantstore_owner`); err != nil {
		t.Fatal(err)
	}
	restored := make(chan error, 1)
	go func() {
		_, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{})
		restored <- err
	}()
	for waiting := false; !waiting; {
		if err := super.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	const want = "code could run with "
	if err := <-restored; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Restore: %v; want %s", err, want)
	}
	spiedOnNobody(t, super)
}

// spiedOn is a database with a deletion, in which somebody has made something of which
// evil.ran is told that it ran.
func spiedOn(t *testing.T, sql string) (pgtest.Database, *Ledger) {
	t.Helper()
	database := pgtest.New(t)
	l := ledgerOf(t, database)
	if err := Script(t.Context(), database.Super, `INSERT INTO plants (id, name) VALUES (1, 'fern'); DELETE FROM plants; `+spy+`
		CREATE FUNCTION evil.ran() RETURNS boolean LANGUAGE plpgsql AS 'BEGIN PERFORM evil.note(); RETURN true; END';
		`+sql+`; DELETE FROM evil.log`); err != nil {
		t.Fatal(err)
	}
	return database, l
}

// refusesUnseen tries to restore from, or into, something of a stranger's, which has to be
// refused before it runs.
func refusesUnseen(t *testing.T, sql, want string, options ...RestoreOptions) {
	t.Helper()
	database, l := spiedOn(t, sql)
	for _, o := range options {
		if got, err := l.Restore(t.Context(), []int64{1}, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Restore = %+v, %v; want %s", got, err, want)
		}
	}
	spiedOnNobody(t, pgtest.Pool(t, database.Super))
}

// Whoever owns the table can put something else in its place, which runs their code when
// it is read or written. Not even consent to that makes a restore of it.
func TestRestoreIntoAnOrdinaryTableOnly(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"a view": `CREATE VIEW public.plants WITH (security_invoker) AS SELECT id, name, created_at, xid '0' AS xmax FROM public.of_old WHERE evil.ran();
			CREATE FUNCTION public.instead() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM evil.note(); RETURN NEW; END';
			CREATE TRIGGER t INSTEAD OF INSERT ON public.plants FOR EACH ROW EXECUTE FUNCTION public.instead()`,
		"a partitioned table": `CREATE TABLE public.plants (LIKE public.of_old INCLUDING DEFAULTS) PARTITION BY RANGE (id);
			CREATE TABLE public.part PARTITION OF public.plants DEFAULT; ALTER TABLE public.part ADD CHECK (evil.ran())`,
		"a partition": `CREATE TABLE public.parent (LIKE public.of_old) PARTITION BY RANGE (evil.same(id));
			CREATE TABLE public.plants PARTITION OF public.parent FOR VALUES FROM (0) TO (9)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refusesUnseen(t, `CREATE FUNCTION evil.same(bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM evil.note(); RETURN $1; END';
				ALTER TABLE public.plants RENAME TO of_old; INSERT INTO public.of_old (id, name) VALUES (2, 'ivy');
				`+sql+`; GRANT ALL ON public.plants, public.of_old TO plantstore_owner`,
				"public.plants is not an ordinary table any more", RestoreOptions{}, RestoreOptions{DryRun: true}, RestoreOptions{RunTriggers: true, Lossy: true})
		})
	}
}

// Nothing of the store's runs to find out why a plant can't come back.
func TestARestoreThatIsRefusedRunsNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, sql, want string }{
		{"an id of another type, with a cast", `CREATE TYPE evil.k AS (v bigint); CREATE FUNCTION evil.id(evil.k) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN PERFORM nextval(''evil.times''); RETURN $1.v; END';
			CREATE CAST (evil.k AS bigint) WITH FUNCTION evil.id(evil.k) AS IMPLICIT; INSERT INTO plants (id, name) VALUES (2, '3');
			ALTER TABLE plants ALTER id DROP IDENTITY; ALTER TABLE plants ALTER id TYPE evil.k USING ROW(id)::evil.k`, "public.plants has no column id of type bigint"},
		{"a rule that reads a view", `CREATE FUNCTION evil.ran() RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS 'BEGIN PERFORM nextval(''evil.times''); RETURN true; END';
			CREATE VIEW evil.v AS SELECT 1 WHERE evil.ran(); CREATE RULE r AS ON INSERT TO plants DO ALSO SELECT * FROM evil.v; GRANT SELECT ON evil.v TO PUBLIC; ALTER TABLE plants ALTER name TYPE int USING 1`, `invalid input syntax for type integer: "fern"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			s := storeOn(t, database, "")
			l := ledgerOf(t, database)
			s.exec(t, `INSERT INTO plants (id, name) VALUES (1, 'fern'); DELETE FROM plants`)
			if err := Script(t.Context(), database.Super, `CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC; CREATE SEQUENCE evil.times; GRANT ALL ON SEQUENCE evil.times TO PUBLIC; `+tt.sql+`; SELECT setval('evil.times', 1, false)`); err != nil {
				t.Fatal(err)
			}
			for _, dry := range []bool{true, false} {
				if got, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{DryRun: dry}); err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("Restore = %+v, %v; want %s", got, err, tt.want)
				}
			}
			if diff := cmp.Diff([]string{"false"}, stringsOf(t, pgtest.Pool(t, database.Super), `SELECT is_called::text FROM evil.times`)); diff != "" {
				t.Errorf("whether code of others ran (-want +got):\n%s", diff)
			}
		})
	}
}

func TestALateRetryLeavesARestoredPlantAlone(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.plant(t, 1)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	restoreAll(t, l)
	result, err := s.plants.Delete(in(t, patience), deletion(1, "k"))
	if err != nil || !result.Replayed || !s.has(t, 1) {
		t.Errorf("the retry = %+v, %v, plant there: %v; want replayed, none, true", result, err, s.has(t, 1))
	}
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "another")); err != nil || s.has(t, 1) {
		t.Errorf("a new deletion: %v, plant there: %v; want none, false", err, s.has(t, 1))
	}
}

func TestTheServiceCannotRestoreOrPurge(t *testing.T) {
	t.Parallel()
	s, _ := newLedger(t)
	s.plant(t, 1)
	s.exec(t, `DELETE FROM plants; UPDATE plant_deletions SET deleted_at = '2020-01-01'`)
	const remedy = "connect as the owner, see PLANTSTORE_MIGRATE_DATABASE_URL"
	if _, err := s.Ledger().Restore(t.Context(), []int64{1}, RestoreOptions{}); err == nil || !strings.HasSuffix(err.Error(), remedy) {
		t.Errorf("Restore as the service: %v, want it refused: %s", err, remedy)
	}
	if n, err := s.Ledger().Purge(t.Context(), IdempotencyHorizon, func(int64) {}); n != 0 || err == nil || !strings.HasSuffix(err.Error(), remedy) {
		t.Errorf("Purge as the service: %d, %v; want it refused: %s", n, err, remedy)
	}
}

// What the store has put on its table since may take rights of whoever restores. To be
// told to connect as the owner would not help the owner.
func TestRestoreNamesTheRightThatItLacks(t *testing.T) {
	t.Parallel()
	const takes = " (SQLSTATE 42501): inserting into public.plants takes that right: grant it to role plantstore_owner, or restore as one that has it"
	const foreign = `ALTER TABLE public.plants OWNER TO plantstore_app; `
	for sql, want := range map[string]string{
		foreign + `GRANT SELECT, INSERT ON public.plants TO plantstore_owner; REVOKE DELETE ON public.plants FROM plantstore_owner CASCADE`: "role plantstore_owner lacks rights. GRANT DELETE ON public.plants TO plantstore_owner, or restore as a role that has them",
		foreign + `REVOKE ALL ON public.plants FROM plantstore_owner CASCADE`:                                                               "role plantstore_owner lacks rights. GRANT SELECT, INSERT, DELETE ON public.plants TO plantstore_owner, or restore as a role that has them",
		`ALTER TABLE public.plants OWNER TO plantstore_owner; REVOKE ALL ON public.plants FROM plantstore_owner`:                            "role plantstore_owner lacks rights. GRANT SELECT, INSERT ON public.plants TO plantstore_owner, or restore as a role that has them",
		`ALTER TABLE public.plants ADD n serial`:                                                                                            "permission denied for sequence plants_n_seq" + takes,
		`CREATE TABLE public.audit (id bigint); CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.audit VALUES (NEW.id); RETURN NULL; END';
			CREATE TRIGGER note AFTER INSERT ON public.plants FOR EACH ROW EXECUTE FUNCTION public.note()`: "permission denied for table audit" + takes,
	} {
		database := pgtest.Empty(t)
		s, l := adopt(t, database, `CREATE TABLE public.plants (id bigint PRIMARY KEY); INSERT INTO public.plants VALUES (1)`)
		if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
			t.Fatal(err)
		}
		if err := Script(t.Context(), database.Super, sql); err != nil {
			t.Fatal(err)
		}
		want = "restore: nothing was restored: " + want
		if _, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{}); err == nil || err.Error() != want {
			t.Errorf("Restore: %v\nwant %s", err, want)
		}
	}
}

func TestSessionSettingsDoNotChangeTheImage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ typ, value, setting string }{
		{"float8", "0.1::float8 + 0.2::float8", "extra_float_digits = 0"},
		{"interval", "'-1 day -02:03:04'", "intervalstyle = 'sql_standard'"},
		{"daterange", "'[2026-01-02,2026-02-03)'", "datestyle = 'SQL, DMY'"},
		{"regclass", "'public.plants'", "quote_all_identifiers = on"},
	} {
		for _, batch := range []string{"", `{{1},{shop}}`} {
			t.Run(c.typ+batch, func(t *testing.T) {
				t.Parallel()
				s, l := newLedger(t)
				s.exec(t, `ALTER TABLE plants ADD dropped int, ADD v `+c.typ)
				s.exec(t, `INSERT INTO plants (id, name, dropped, v) VALUES (1, 'Jade plant', 3, `+c.value+`)`)
				s.exec(t, `ALTER TABLE plants DROP dropped`)
				before := image(t, s.owner)
				s.exec(t, `SET `+c.setting+`; SET plantstore.batch = '`+batch+`'; DELETE FROM plants; RESET ALL`)
				restoreAll(t, l)
				if after := image(t, s.owner); !bytes.Equal(before, after) {
					t.Errorf("a %s deleted under %s came back as\n%s\nwant\n%s", c.typ, c.setting, after, before)
				}
			})
		}
	}
}

// Right after many were deleted, the database has no statistics of the ledger.
func TestARestoreReadsEachEntryAFewTimes(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	const n = 20_000
	s.exec(t, `ALTER TABLE plant_deletions SET (autovacuum_enabled = off)`)
	s.sample(t, n)
	s.exec(t, `DELETE FROM plants`)
	db, err := Open(t.Context(), pgtest.WithParameters(database.Owner, "application_name=restorer"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	l := db.Ledger()
	undo, err := l.Undoable(t.Context(), Deleter{Role: "plantstore_owner"}, time.Now().Add(-time.Hour), time.Time{}, false)
	if err != nil || len(undo.IDs) != n {
		t.Fatalf("%d to undo, %v; want %d", len(undo.IDs), err, n)
	}
	put, compared := 0, 0
	if restored, err := l.Restore(t.Context(), undo.IDs, RestoreOptions{Progress: func(what string, done, of int) {
		switch {
		case of != n:
			t.Errorf("%s %d of %d, want of %d", what, done, of, n)
		case what == "put back":
			put = done
		default:
			compared = done
		}
	}}); err != nil || restored.Plants != n || put != n || compared != n {
		t.Fatalf("%+v, %v; told of %d put back and %d compared; want %d", restored, err, put, compared, n)
	}
	db.Close() // the sessions tell their statistics when they end
	for {
		var sessions, read int
		if err := s.owner.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'restorer' AND datname = current_database()),
			(SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'plant_deletions') +
			(SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'plant_deletions')`).Scan(&sessions, &read); err != nil {
			t.Fatal(err)
		}
		if sessions > 0 {
			continue
		}
		if read > 30*n {
			t.Errorf("%d entries of the ledger were read for a restore of %d", read, n)
		}
		return
	}
}

// Where nothing can be written, what is to write says so, and what only reads does not mind.
func TestAReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	database, server := ownStore(t, nil)
	standby, err := server.Standby(t.Context(), localpg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Close() })
	readOnly := pgtest.WithParameters(database.Owner, "default_transaction_read_only=on")
	// On a standby nobody can keep the schema's name, and a superuser reads all the same.
	super := ledgerAt(t, standby.URL("postgres", "plantstore"))
	if _, _, err := super.List(t.Context(), LedgerFilter{}, 9, true); err != nil {
		t.Errorf("a superuser on a standby: List: %v; want none", err)
	}
	if _, err := super.db.Tokens(0).List(t.Context()); err != nil {
		t.Errorf("a superuser on a standby: List of tokens: %v; want none", err)
	}
	for name, url := range map[string]string{"a standby": standby.URL("plantstore_owner", "plantstore"), "read-only by default": readOnly} {
		l := ledgerAt(t, url)
		want := "the database at " + l.db.host + " is read-only: a standby, or default_transaction_read_only is on. Connect to the primary, or see 'plantstore doctor'"
		if _, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{}); err == nil || !strings.HasPrefix(err.Error(), "restore: nothing was restored: "+want) {
			t.Errorf("%s: Restore: %v; want that nothing was restored: %s", name, err, want)
		}
		if _, err := l.Purge(t.Context(), IdempotencyHorizon, func(int64) {}); err == nil || !strings.HasPrefix(err.Error(), "purge: "+want) {
			t.Errorf("%s: Purge: %v; want %s", name, err, want)
		}
		if _, _, err := l.List(t.Context(), LedgerFilter{}, 9, true); err != nil {
			t.Errorf("%s: List: %v; want none", name, err)
		}
		if _, err := l.db.Tokens(0).Create(t.Context(), "ann", []string{"plants:delete"}, time.Time{}, plant.Budget{}); err == nil || !strings.HasPrefix(err.Error(), "create token: "+want) {
			t.Errorf("%s: Create: %v; want %s", name, err, want)
		}
	}
}

// A pooler in transaction mode gives its clients each other's prepared statements.
func TestTheLedgerThroughAPooler(t *testing.T) {
	t.Parallel()
	pooler := pgtest.Pooler(t, pgtest.New(t).Owner, pgtest.TransactionMode)
	use := func(l *Ledger) map[string]error {
		_, restore := l.Restore(t.Context(), []int64{1}, RestoreOptions{})
		_, _, list := l.List(t.Context(), LedgerFilter{}, 9, true)
		_, purge := l.Purge(t.Context(), IdempotencyHorizon, func(int64) {})
		export := l.Export(t.Context(), ExportOptions{Write: func([]Recorded) error { return nil }})
		return map[string]error{"Restore": restore, "List": list, "Purge": purge, "Export": export}
	}
	use(ledgerAt(t, pooler))
	const want = "a pooler in transaction mode is between, which mixes up the prepared statements of its clients. Connect to the server itself, see PLANTSTORE_MIGRATE_DATABASE_URL: "
	for name, err := range use(ledgerAt(t, pooler)) {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", name, err, want)
		}
	}
}

// Row level security applies to whoever does not own a table, and with FORCE to its owner, too.
func TestRestoreUnderRowLevelSecurity(t *testing.T) {
	t.Parallel()
	const enable = ` ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY`
	for name, tt := range map[string]struct{ sql, table string }{
		"of the owner":    {`ALTER TABLE plants` + enable, "plants"},
		"of the ledger's": {`ALTER TABLE plant_deletions` + enable, "plant_deletions"},
		"of a stranger's": {strangersPlants + `; ALTER TABLE plants ENABLE ROW LEVEL SECURITY`, "plants"},
		"of what a trigger reads": {`CREATE TABLE pots (); GRANT SELECT ON pots TO PUBLIC; ALTER TABLE pots` + enable + `; CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM FROM public.pots; RETURN NEW; END';
			CREATE TRIGGER t BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION look(); ALTER FUNCTION look() OWNER TO plantstore_owner`, "pots"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, l := deletedFern(t, tt.sql)
			const want = "give role plantstore_owner BYPASSRLS, or connect as the table's owner where it has no FORCE ROW LEVEL SECURITY"
			if _, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{}); err == nil || !strings.Contains(err.Error(), `for table "`+tt.table+`"`) || !strings.HasSuffix(err.Error(), "): "+want) {
				t.Errorf("Restore: %v; want %s", err, want)
			}
		})
	}
}

// A transaction that loses its connection before its commit is sent ends without a trace. After
// that nobody knows, until it is run again.
func TestRestoreThatLosesItsConnection(t *testing.T) {
	t.Parallel()
	const nothing = "restore: nothing was restored, as the connection was lost: run it again: "
	const end = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'restore'`
	for _, tt := range []struct{ name, sql, before, want string }{
		{"while it puts plants back", ``, ``, nothing},
		{"while it waits for a lock", ``, `LOCK TABLE public.plants IN ACCESS EXCLUSIVE MODE`, nothing},
		{"in a trigger", `CREATE FUNCTION quit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN IF current_setting(''application_name'') = ''restore'' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END';
			CREATE TRIGGER t BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION quit()`, ``, nothing},
		{"at the commit", `CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN EXECUTE 'DECLARE held CURSOR WITH HOLD FOR SELECT pg_advisory_xact_lock(1)'; RETURN NULL; END$$;
			CREATE TRIGGER held AFTER INSERT ON plants FOR EACH ROW EXECUTE FUNCTION held()`, `SELECT pg_advisory_xact_lock(1)`,
			"restore: the commit was not answered, so all is restored or nothing, and to run it again tells which: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			s, l, again := storeOn(t, database, ""), ledgerAt(t, pgtest.WithParameters(database.Owner, "application_name=restore")), ledgerOf(t, database)
			s.exec(t, `INSERT INTO plants (id, name) VALUES (1, 'fern'); DELETE FROM plants; `+tt.sql)
			quit := func() { s.exec(t, end) }
			unlock := func() {}
			if tt.before != "" {
				unlock = s.hold(t, tt.before)
				go func() {
					s.seeWaits(t, 1)
					quit()
				}()
			}
			got, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{Progress: func(what string, _, _ int) {
				if what == "put back" && tt.before == "" {
					quit()
				}
			}})
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("Restore = %+v, %v; want %s", got, err, tt.want)
			}
			unlock()
			if got, err := again.Restore(t.Context(), []int64{1}, RestoreOptions{}); err != nil || got.Plants != 1 {
				t.Errorf("Restore again = %+v, %v; want 1 plant", got, err)
			}
		})
	}
}

// cutAtCommit returns the URL of a database whose server, once that is armed, is asked to commit
// and not heard.
func cutAtCommit(t *testing.T, database string) (through string, armed *atomic.Bool) {
	t.Helper()
	config, err := pgx.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	armed = new(atomic.Bool)
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	through = pgtest.Proxy(t, database, func(client net.Conn) {
		server, err := net.Dial(network, address)
		if err != nil {
			t.Error(err)
			return
		}
		defer server.Close()
		var asked atomic.Bool
		go func() {
			defer server.Close()
			buffer := make([]byte, 1<<16)
			for {
				n, err := client.Read(buffer)
				asked.Store(asked.Load() || armed.Load() && bytes.Contains(buffer[:n], []byte("commit\x00")))
				if _, writeErr := server.Write(buffer[:n]); err != nil || writeErr != nil {
					return
				}
			}
		}()
		buffer := make([]byte, 1<<16)
		for {
			n, err := server.Read(buffer)
			if err != nil || asked.Load() { // committed, and its answer goes nowhere
				return
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	})
	return through, armed
}

// What was committed without an answer is not said to be undone.
func TestACommitThatIsNotAnswered(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	through, armed := cutAtCommit(t, database.Owner)
	s, l := storeOn(t, database, ""), ledgerAt(t, through)
	s.exec(t, `INSERT INTO plants (id, name) VALUES (1, 'fern'); DELETE FROM plants`)
	const restored = "restore: the commit was not answered, so all is restored or nothing, and to run it again tells which: "
	got, err := l.Restore(t.Context(), []int64{1}, RestoreOptions{Progress: func(string, int, int) { armed.Store(true) }})
	if err == nil || !strings.HasPrefix(err.Error(), restored) {
		t.Errorf("Restore = %+v, %v; want %s", got, err, restored)
	}
	await := func(what string, come func() bool) { // the server may still be at it
		t.Helper()
		for soon := in(t, patience); !come(); {
			if sleep(soon, 10*time.Millisecond) != nil {
				t.Fatal("was not committed: " + what)
			}
		}
	}
	await("the restore", func() bool { return s.has(t, 1) })

	tokens := l.db.Tokens(0)
	const unanswered = "the commit was not answered, so it may have come about"
	_, err = tokens.Create(t.Context(), "shop", []string{auth.ScopeDelete}, time.Time{}, plant.Budget{})
	if want := "create token: " + unanswered + ". 'plantstore token list' tells"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Create: %v; want %s", err, want)
	}
	valid := func() bool {
		return len(stringsOf(t, s.owner, `SELECT principal FROM api_tokens WHERE revoked_at IS NULL`)) > 0
	}
	await("the token", valid)
	_, err = tokens.Revoke(t.Context(), "shop")
	if want := "revoke tokens: " + unanswered + ": do it again, which does no harm: "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Revoke: %v; want %s", err, want)
	}
	await("the revocation", func() bool { return !valid() })

	s.exec(t, `UPDATE plant_deletions SET deleted_at = deleted_at - interval '1 year'`)
	_, err = l.Purge(t.Context(), IdempotencyHorizon, func(int64) {})
	if want := "purge: " + unanswered + ": "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Purge: %v; want %s", err, want)
	}
	await("the purge", func() bool { return len(s.ledger(t)) == 0 })
}
