package postgres

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	roles "plantstore/deploy/postgres"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// ledgerOf returns the ledger as its owner sees it.
func ledgerOf(t *testing.T, database pgtest.Database) *Ledger {
	t.Helper()
	db, err := Open(t.Context(), database.Owner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db.Ledger()
}

func newLedger(t *testing.T) (store, *Ledger) {
	t.Helper()
	database := pgtest.New(t)
	return storeOn(t, database, ""), ledgerOf(t, database)
}

// image returns the plants as PostgreSQL writes them to a binary file.
func image(t *testing.T, p *pgxpool.Pool) []byte {
	t.Helper()
	conn, err := p.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	var b bytes.Buffer
	if _, err := conn.Conn().PgConn().CopyTo(t.Context(), &b, `COPY (SELECT * FROM plants ORDER BY id) TO STDOUT (FORMAT binary)`); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func restoreAll(t *testing.T, l *Ledger) Restored {
	t.Helper()
	list, err := l.List(t.Context(), LedgerFilter{}, 10000)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int64, len(list))
	for i, r := range list {
		ids[i] = r.ID
	}
	restored, err := l.Restore(t.Context(), ids, "")
	if err != nil {
		t.Fatalf("Restore of %d: %v", len(ids), err)
	}
	return restored
}

func TestRestoreGivesEveryTypeBackByteForByte(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, typ string
		values    []string // as SQL; null is always tried
	}{
		{"numeric", "numeric", []string{"12.50", "0", "-0.0000000000000000000000000001", "1e300", "'NaN'", "123456789012345678901234567890.123456789"}},
		{"numeric with a scale", "numeric(12,4)", []string{"12.5", "-99999999.9999"}},
		{"float8", "float8", []string{"0.1", "1.7976931348623157e308", "5e-324", "2.2250738585072014e-308", "'NaN'", "'Infinity'", "'-Infinity'", "pi()", "1.0/3"}},
		{"float4", "float4", []string{"0.1", "3.4028235e38", "1e-45", "'NaN'", "'-Infinity'", "pi()"}},
		{"bigint", "bigint", []string{"9223372036854775807", "-9223372036854775808"}},
		{"text", "text", []string{`''`, `'"quoted" \ back''s'`, `E'tab\tline\nbell\x07 end'`, `'Füße 🌱 植物'`, `'{"a":1}'`, `'null'`, `U&'\FEFF\200B'`}},
		{"varchar", "varchar(5)", []string{`'a    '`}},
		{"char", "char(5)", []string{`'ab'`}},
		{"bool", "boolean", []string{"true", "false"}},
		{"bytea", "bytea", []string{`'\x'`, `'\x00ff5c27'`}},
		{"uuid", "uuid", []string{`'0191e7c3-0000-7000-8000-00000000abcd'`}},
		{"timestamptz", "timestamptz", []string{`'2026-11-03 04:05:06.123456+05:45'`, `'infinity'`, `'-infinity'`, `'0044-03-15 12:00:00+00 BC'`, `'1850-01-01 00:00:00 Europe/Amsterdam'`, `'294276-12-31 23:59:59.999999+00'`}},
		{"timestamp", "timestamp", []string{`'2026-11-03 04:05:06.123456'`, `'infinity'`, `'4713-01-01 00:00:00 BC'`}},
		{"date", "date", []string{`'2026-11-03'`, `'infinity'`, `'0044-03-15 BC'`, `'5874897-12-31'`}},
		{"time", "time", []string{`'24:00:00'`, `'04:05:06.000001'`}},
		{"timetz", "timetz", []string{`'04:05:06.789-08:30'`}},
		{"interval", "interval", []string{`'1 year -2 months 3 days -04:05:06.000007'`, `'-178000000 years'`, `'-1 day -02:03:04'`, `'-1 year -2 months'`}},
		{"inet", "inet", []string{`'192.168.1.5/24'`, `'::1'`}},
		{"cidr", "cidr", []string{`'10.0.0.0/8'`}},
		{"macaddr", "macaddr", []string{`'08:00:2b:01:02:03'`}},
		{"bit", "bit varying", []string{`B''`, `B'0101'`}},
		{"point", "point", []string{`'(0.1,-1e300)'`}},
		{"polygon", "polygon", []string{`'((0,0),(1,1),(2,0))'`}},
		{"range of timestamps", "tstzrange", []string{`'[2026-01-02 03:04:05.000006+00,)'`, `'empty'`}},
		{"range of dates", "daterange", []string{`'[2026-01-02,2026-02-03)'`}},
		{"several ranges", "int4multirange", []string{`'{[1,3),[7,9)}'`}},
		{"jsonb", "jsonb", []string{`'{"b": 1.00, "a": [null, "x", {"n": 1e400}]}'`, `'"text"'`, `'[]'`}},
		{"full text", "tsvector", []string{`to_tsvector('simple', 'a fat cat''s "x"')`}},
		{"log position", "pg_lsn", []string{`'16/B374D848'`}},
		{"table's name", "regclass", []string{`'public.plant_deletions'`}},
		{"text array", "text[]", []string{`'{}'`, `ARRAY['a,b', '"', NULL, 'NULL', '', '\']`, `'{{a,b},{c,d}}'`}},
		{"float array", "float8[]", []string{`'{0.1,NaN,-Infinity}'`}},
		{"bytea array", "bytea[]", []string{`ARRAY['\x00ff'::bytea, NULL]`}},
		{"enum", "mood", []string{`'wil"ting'`}},
		{"enum array", "mood[]", []string{`'{happy,happy}'`}},
		{"composite", "size", []string{`(12.50, 'c''m "x"')`, `(NULL, NULL)`, `(NULL, '')`}},
		{"composite array", "size[]", []string{`ARRAY[(1.10, 'cm')::size, NULL]`}},
		{"domain", "sku", []string{`'AB-1'`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, l := newLedger(t)
			s.exec(t, `CREATE TYPE mood AS ENUM ('happy', 'wil"ting');
				CREATE TYPE size AS (height numeric, unit text);
				CREATE DOMAIN sku AS text CHECK (VALUE ~ '-');
				ALTER TABLE plants ADD "odd ""name" `+tt.typ)
			s.exec(t, `INSERT INTO plants (name, "odd ""name") VALUES ('x', (`+strings.Join(append(tt.values, "NULL"), `)), ('x', (`)+`))`)
			before := image(t, s.owner)

			s.exec(t, `DELETE FROM plants`)
			restored := restoreAll(t, l)
			if want := (Restored{Plants: len(tt.values) + 1}); !cmp.Equal(restored, want) {
				t.Errorf("Restore = %+v, want %+v", restored, want)
			}
			if after := image(t, s.owner); !bytes.Equal(before, after) {
				t.Errorf("plants\n%q\nwant\n%q", after, before)
			}
		})
	}
}

func TestRestoreIntoTodaysTable(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s, l := storeOn(t, database, ""), ledgerOf(t, database)
	s.exec(t, `
		ALTER TABLE plants ALTER id SET GENERATED ALWAYS;
		ALTER TABLE plants ADD price numeric, ADD colour text, ADD net numeric GENERATED ALWAYS AS (price / 2) STORED;
		INSERT INTO plants (name, price, colour) VALUES ('Peace lily', 12.50, 'white'), ('Aloe vera', NULL, 'green');
		DELETE FROM plants WHERE name = 'Peace lily';
		ALTER TABLE plants DROP colour, ADD stock integer NOT NULL DEFAULT 3, ADD label text GENERATED ALWAYS AS (upper(name)) STORED;
		DELETE FROM plants;
		ALTER TABLE plants RENAME price TO "Price ""EUR""";
		CREATE DOMAIN code AS text NOT NULL DEFAULT 'none';
		ALTER TABLE plants ADD code code`)

	restored, err := l.Restore(t.Context(), []int64{1, 2}, "Ada")
	want := Restored{Plants: 2, Defaulted: []string{`Price "EUR"`, "code", "stock"}, Dropped: []string{"colour", "price"}}
	if diff := cmp.Diff(want, restored); err != nil || diff != "" {
		t.Errorf("Restore: %v; (-want +got):\n%s", err, diff)
	}
	var rows []string
	if err := s.owner.QueryRow(t.Context(), `SELECT array_agg(p::text ORDER BY id) FROM plants p`).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{`,3,"PEACE LILY",none)`, `,3,"ALOE VERA",none)`} {
		if !strings.HasSuffix(rows[i], want) {
			t.Errorf("row %s, want it to end with %s", rows[i], want)
		}
	}
	r, err := l.Get(t.Context(), 1)
	if err != nil || r.RestoredBy != "Ada" || time.Since(r.RestoredAt) > time.Minute {
		t.Errorf("entry %+v, %v; want it restored by Ada now", r, err)
	}
	if _, err := l.Get(t.Context(), 3); !errors.Is(err, ErrNoDeletion) {
		t.Errorf("Get(3): %v, want ErrNoDeletion", err)
	}
}

func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, setUp, after string
		restore            []int64
		want               []Refusal
	}{
		{"an unknown entry", ``, ``, []int64{1, 9}, []Refusal{{9, 0, "the ledger has no such entry; was it purged?"}}},
		{"a taken id", ``, `INSERT INTO plants (id, name) VALUES (2, 'x')`, []int64{1, 2, 3},
			[]Refusal{{2, 2, "a plant with this id exists again"}}},
		{"several taken ids", ``, `INSERT INTO plants (id, name) VALUES (1, 'x'), (3, 'x')`, []int64{1, 2, 3},
			[]Refusal{{3, 3, "a plant with this id exists again"}, {1, 1, "a plant with this id exists again"}}},
		{"the same plant twice", ``, `INSERT INTO plants (id, name) VALUES (2, 'x'); DELETE FROM plants`, []int64{2, 4},
			[]Refusal{{2, 2, "deletion 4 is of the same plant, and later: restore one of them"}}},
		{"a row referred to", `CREATE TABLE shelves (no int PRIMARY KEY); INSERT INTO shelves VALUES (7), (8);
			ALTER TABLE plants ADD shelf int REFERENCES shelves; UPDATE plants SET shelf = 6 + id WHERE id < 3`,
			`DELETE FROM shelves WHERE no = 8`, []int64{1, 2, 3},
			[]Refusal{{2, 2, `a row that it refers to is gone: Key (shelf)=(8) is not present in table "shelves"`}}},
		{"the same at commit only", `CREATE TABLE shelves (no int PRIMARY KEY); INSERT INTO shelves VALUES (7);
			ALTER TABLE plants ADD shelf int REFERENCES shelves DEFERRABLE INITIALLY DEFERRED; UPDATE plants SET shelf = 7 WHERE id = 1`,
			`DELETE FROM shelves`, []int64{1, 2},
			[]Refusal{{1, 1, `a row that it refers to is gone: Key (shelf)=(7) is not present in table "shelves"`}}},
		{"another unique column", ``, `UPDATE plants SET name = 'Fern 2'; ALTER TABLE plants ADD UNIQUE (name); INSERT INTO plants (name) VALUES ('Fern 2')`,
			[]int64{1, 2}, []Refusal{{2, 2, "another row has a value that must be unique: Key (name)=(Fern 2) already exists"}}},
		{"a new column without a default", ``, `ALTER TABLE plants ADD price numeric NOT NULL`, []int64{3},
			[]Refusal{{3, 3, `column "price" of plants may not be null, and the deleted row has no value for it`}}},
		{"a value that no longer fits", `ALTER TABLE plants ADD size text; UPDATE plants SET size = 'big' WHERE id = 1`,
			`ALTER TABLE plants ALTER size TYPE int USING NULL`, []int64{1, 2},
			[]Refusal{{1, 1, `invalid input syntax for type integer: "big" (SQLSTATE 22P02)`}}},
		{"a constraint", ``, `ALTER TABLE plants ADD CHECK (name <> 'Fern 3')`, []int64{3},
			[]Refusal{{3, 3, `new row for relation "plants" violates check constraint "plants_name_check" (SQLSTATE 23514)`}}},
		{"a trigger", ``, `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER keep BEFORE INSERT ON plants FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION keep()`, []int64{1, 2},
			[]Refusal{{2, 2, "a trigger on plants kept the row out"}}},
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
			_, err := l.Restore(t.Context(), tt.restore, "")
			var refused *RefusedError
			if !errors.As(err, &refused) {
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
			restored, err := l.List(t.Context(), LedgerFilter{}, 10)
			if err != nil || slices.ContainsFunc(restored, func(r Recorded) bool { return !r.RestoredAt.IsZero() }) {
				t.Errorf("ledger %+v, %v; want nothing restored", restored, err)
			}
		})
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
		wg.Go(func() { _, errs[i] = l.Restore(t.Context(), mine, "") })
	}
	wg.Wait()
	done := 0
	for _, err := range errs {
		var refused *RefusedError
		switch {
		case err == nil:
			done++
		case !errors.As(err, &refused) || len(refused.Refusals) != 50 ||
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
	tests := []struct{ name, action, rows, remove string }{
		{"one by one", "", "(1, NULL), (2, 1), (3, 2)", "DELETE FROM plants WHERE id = 3; DELETE FROM plants WHERE id = 2; DELETE FROM plants WHERE id = 1"},
		{"by a cascade", "ON DELETE CASCADE", "(1, NULL), (2, 1), (3, 2), (4, 2), (5, 4)", "DELETE FROM plants WHERE id = 1"},
		{"parents before children", "", "(1, 3), (2, 1), (3, NULL), (4, 2)", "DELETE FROM plants"},
		{"children before parents", "", "(4, 3), (3, 2), (2, 1), (1, NULL)", "DELETE FROM plants"},
		{"in a circle", "", "(1, 3), (2, 1), (3, 2)", "DELETE FROM plants"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, l := newLedger(t)
			s.exec(t, `ALTER TABLE plants ALTER name DROP NOT NULL, ADD parent bigint REFERENCES plants `+tt.action)
			s.exec(t, `INSERT INTO plants (id, parent) VALUES `+tt.rows)
			before := image(t, s.owner)
			s.exec(t, tt.remove)
			// Half of the entries lack a column: they can't all go in together.
			s.exec(t, `UPDATE plant_deletions SET plant = plant - 'name' WHERE id % 2 = 0`)
			if tt.name == "in a circle" {
				s.exec(t, `UPDATE plant_deletions SET plant = plant - 'name'`)
			}
			restoreAll(t, l)
			if after := image(t, s.owner); !bytes.Equal(before, after) {
				t.Errorf("plants\n%q\nwant\n%q", after, before)
			}
		})
	}
}

func TestRestoreTellsWhatATriggerChanged(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `INSERT INTO plants (name) VALUES ('fern'); DELETE FROM plants;
		CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.name = upper(NEW.name); RETURN NEW; END';
		CREATE TRIGGER shout BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION shout()`)
	if got, want := restoreAll(t, l), (Restored{Plants: 1, Changed: []string{"name"}}); !cmp.Equal(got, want) {
		t.Errorf("Restore = %+v, want %+v", got, want)
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

func TestRestoreIntoAnAdoptedTable(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	for _, sql := range []string{`CREATE TABLE plants (id bigint PRIMARY KEY, name text); INSERT INTO plants VALUES (1, 'fern')`, roles.SQL} {
		if err := Script(t.Context(), database.Super, sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	s, l := storeOn(t, database, ""), ledgerOf(t, database)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	restoreAll(t, l)
	if !s.has(t, 1) {
		t.Error("plant 1 is not back")
	}
}

func TestTheServiceCannotRestoreOrPurge(t *testing.T) {
	t.Parallel()
	s, _ := newLedger(t)
	s.plant(t, 1)
	s.exec(t, `DELETE FROM plants; UPDATE plant_deletions SET deleted_at = '2020-01-01'`)
	const remedy = "connect as the owner, see PLANTSTORE_MIGRATE_DATABASE_URL"
	if _, err := s.Ledger().Restore(t.Context(), []int64{1}, ""); err == nil || !strings.HasSuffix(err.Error(), remedy) {
		t.Errorf("Restore as the service: %v, want it refused: %s", err, remedy)
	}
	if n, err := s.Ledger().Purge(t.Context(), IdempotencyHorizon, func(int64) {}); n != 0 || err == nil || !strings.HasSuffix(err.Error(), remedy) {
		t.Errorf("Purge as the service: %d, %v; want it refused: %s", n, err, remedy)
	}
}

func TestUndoable(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `
		INSERT INTO plant_deletions (plant_id, plant, deleted_by, deleted_at) VALUES
			(1, '{}', 'script', '2026-07-01 11:59:59.999999Z'), -- 1: too early
			(2, '{}', 'script', '2026-07-01 12:00:00Z'),
			(3, '{}', 'someone', '2026-07-01 12:00:01Z'),      -- 3: not by script
			(4, '{}', 'script', '2026-07-01 12:00:02Z'),       -- 4: again in 7
			(5, '{}', 'script', '2026-07-01 12:00:03Z'),       -- 5: again in 8, by someone
			(6, '{}', 'script', '2026-07-01 12:00:04Z'),       -- 6: restored
			(4, '{}', 'script', '2026-07-01 12:00:05Z'),
			(5, '{}', 'someone', '2026-07-01 12:00:06Z'),
			(9, '{}', 'script', '2026-07-01 13:00:00Z');       -- 9: too late, where there is an end
		UPDATE plant_deletions SET restored_at = now(), restored_by = 'x' WHERE id = 6`)
	noon := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		until time.Time
		want  Undo
	}{
		{noon.Add(time.Hour), Undo{IDs: []int64{7, 2}, First: noon, Last: noon.Add(5 * time.Second), Superseded: 2}},
		{time.Time{}, Undo{IDs: []int64{9, 7, 2}, First: noon, Last: noon.Add(time.Hour), Superseded: 2}},
	} {
		got, err := l.Undoable(t.Context(), "script", noon, tt.until)
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("Undoable until %s: %v; (-want +got):\n%s", tt.until, err, diff)
		}
	}
}

func TestListDeletions(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `
		INSERT INTO plant_deletions (plant_id, plant, deleted_by, deleted_at, request_id, idempotency_key)
		SELECT i % 10, '{"id": 1.50}', CASE i % 3 WHEN 0 THEN 'shop' ELSE 'psql' END, timestamptz '2026-07-01 00:00Z' + i * interval '1 hour',
			CASE i % 3 WHEN 0 THEN 'request-' || i END, CASE i % 3 WHEN 0 THEN 'key-' || i END
		FROM generate_series(1, 30) i`)
	at := func(hour int) time.Time { return time.Date(2026, 7, 1, hour, 0, 0, 0, time.UTC) }
	tests := []struct {
		name   string
		filter LedgerFilter
		limit  int
		want   []int64
	}{
		{"a page", LedgerFilter{}, 3, []int64{30, 29, 28}},
		{"the next one", LedgerFilter{Before: 28}, 3, []int64{27, 26, 25}},
		{"a plant", LedgerFilter{Plant: ptr(int64(4))}, 9, []int64{24, 14, 4}},
		{"plant 0", LedgerFilter{Plant: ptr(int64(0))}, 9, []int64{30, 20, 10}},
		{"a principal", LedgerFilter{By: "shop", Before: 10}, 9, []int64{9, 6, 3}},
		{"a request", LedgerFilter{RequestID: "request-12"}, 9, []int64{12}},
		{"a time", LedgerFilter{Since: at(5), Until: at(8)}, 9, []int64{7, 6, 5}},
		{"all of it", LedgerFilter{Plant: ptr(int64(6)), By: "shop", RequestID: "request-6", Since: at(6), Until: at(7)}, 9, []int64{6}},
		{"nothing", LedgerFilter{By: "nobody"}, 9, []int64{}},
	}
	for _, tt := range tests {
		list, err := l.List(t.Context(), tt.filter, tt.limit)
		got := make([]int64, len(list))
		for i, r := range list {
			got[i] = r.ID
		}
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("List of %s: %v; (-want +got):\n%s", tt.name, err, diff)
		}
	}
	got, err := l.Get(t.Context(), 12)
	want := Recorded{ID: 12, PlantID: 2, Plant: []byte(`{"id": 1.50}`), DeletedAt: at(12), DeletedBy: "shop", RequestID: "request-12", IdempotencyKey: "key-12"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Get: %v; (-want +got):\n%s", err, diff)
	}
}

func TestPurge(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `
		INSERT INTO plant_deletions (plant_id, plant, deleted_by, deleted_at)
		SELECT i, '{}', 'shop', now() - CASE WHEN i <= 2500 THEN interval '8 days 1 minute' WHEN i <= 2600 THEN interval '7 days 1 minute' ELSE interval '6 days 23 hours' END
		FROM generate_series(1, 2700) i`)
	if n, err := l.Older(t.Context(), 8*24*time.Hour); n != 2500 || err != nil {
		t.Errorf("Older = %d, %v; want 2500, none", n, err)
	}
	// One that is being restored is left alone.
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM plant_deletions WHERE id = 1200 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	var steps []int64
	n, err := l.Purge(t.Context(), 8*24*time.Hour, func(purged int64) { steps = append(steps, purged) })
	if diff := cmp.Diff([]int64{1000, 2000, 2499}, steps); n != 2499 || err != nil || diff != "" {
		t.Errorf("Purge = %d, %v; want 2499, none; progress (-want +got):\n%s", n, err, diff)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Purge(t.Context(), IdempotencyHorizon, func(int64) {}); n != 101 || err != nil {
		t.Errorf("Purge of the horizon = %d, %v; want 101, none", n, err)
	}
	if n, err := l.Purge(t.Context(), IdempotencyHorizon-time.Second, func(int64) {}); n != 0 || !errors.Is(err, ErrTooYoung) {
		t.Errorf("Purge within the horizon = %d, %v; want 0, ErrTooYoung", n, err)
	}
	if _, err := l.Older(t.Context(), IdempotencyHorizon-time.Second); !errors.Is(err, ErrTooYoung) {
		t.Errorf("Older within the horizon: %v, want ErrTooYoung", err)
	}
	if list, err := l.List(t.Context(), LedgerFilter{}, 1000); len(list) != 100 || err != nil {
		t.Errorf("%d entries left, %v; want the 100 within the horizon, none", len(list), err)
	}
}

func TestARetryWithinTheHorizonIsRecognisedAfterAPurge(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.plant(t, 1)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	s.exec(t, fmt.Sprintf(`UPDATE plant_deletions SET deleted_at = now() - interval '%d seconds'`, int(IdempotencyHorizon.Seconds())-60))
	if _, err := l.Purge(t.Context(), IdempotencyHorizon, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	var earlier *plant.DeletedEarlierError
	if result, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil || !result.Replayed {
		t.Errorf("the retry = %+v, %v; want replayed", result, err)
	}
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "other")); !errors.As(err, &earlier) {
		t.Errorf("another request: %v, want a DeletedEarlierError", err)
	}
}

// What a session makes of dates, intervals and floats must not get into the
// ledger, nor a column that the table has no more.
func TestSessionSettingsDoNotChangeTheImage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ typ, value, setting string }{
		{"float8", "0.1::float8 + 0.2::float8", "extra_float_digits = 0"},
		{"interval", "'-1 day -02:03:04'", "intervalstyle = 'sql_standard'"},
		{"daterange", "'[2026-01-02,2026-02-03)'", "datestyle = 'SQL, DMY'"},
	} {
		for _, batch := range []string{"", `[{"plant": 1, "principal": "shop"}]`} {
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
