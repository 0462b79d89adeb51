package ledger_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"plantstore/internal/ledger"
	"plantstore/internal/pgtest"
)

// table returns the SQL of a table with these columns beside its id, and of its rows.
func table(columns string, rows ...string) string {
	sql := `CREATE TABLE public.plants (id bigint PRIMARY KEY, ` + columns + `)`
	for i, row := range rows {
		sql += fmt.Sprintf(`; INSERT INTO public.plants VALUES (%d, %s)`, i+1, row)
	}
	return sql
}

// Rows of common kinds of tables are restored exactly, with any settings in the sessions that
// delete and restore them.
func TestTablesOfAllKindsAreRestoredExactly(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	super, dba, owner := pgtest.Connect(t, db.Super), pgtest.Connect(t, db.Super), pgtest.Connect(t, db.Owner)
	version := value[int](t, super, `SELECT current_setting('server_version_num')::int / 10000`)
	extensions := value[[]string](t, super, `SELECT array_agg(name::text) FROM pg_available_extensions`)
	pgtest.Execute(t, dba, `SET datestyle = 'German, DMY'; SET intervalstyle = 'iso_8601'; SET extra_float_digits = 0;
		SET timezone = 'Asia/Kathmandu'; SET xmloption = 'document'; SET array_nulls = off; SET quote_all_identifiers = on; SET search_path = store`)
	pgtest.Execute(t, owner, hostile)
	for _, test := range []struct {
		name, sql string
		since     int    // the oldest version of PostgreSQL that has this
		extension string // what it needs: the case is left out where the server has no such files
	}{
		// Names
		{name: "quotes, blanks and control characters in names", sql: table(`"a b" text, " " text, "it's" text, "say ""hi""" text, "a,b" text, "(a)" text, "\" text, "\u00e4" text, "\""\" text, "a`+"\n\t\x01"+`b" text, "{}" text, "$1" text, "%s%d" text`,
			`'1', '2', '3', '4', '5', '6', '7', '8', '9', '10', '11', '12', '13'`, `NULL, '', ' ', '"', ',', '()', 'it''s', '\', '\\', 'null', 'NULL', E'\t\r\n', '.'`)},
		{name: "keywords and unicode in names", sql: table(`"select" int, "primary" int, "null" text, "default" int, "current_user" text, "Größe" int, "🌱" text, "ID" int, "Id" int, "ä" text, U&"a\0308" text, "`+strings.Repeat("ü", 31)+`" int`,
			`1, 2, '3', 4, '5', 6, '🌱', 8, 9, 'one', 'two', 12`)},
		{name: "names of the ledger's columns, the trigger's variables and a restore's aliases", sql: table(`plant_id text, literal text, types regtype[], g date, plant interval, key float8, request bytea, gone money, e int, p int, r int, c0 text, c1 date, now date, "values" int`,
			`'1', '(2)', '{int,"char"}', '2026-12-31', '1 day -1:00', 0.1, '\x00ff', 1.5, 2, 4, 5, '7', '2026-07-01', '2026-01-01', 11`)},

		// Types
		{name: "integers and booleans", sql: table(`a int2, b int4, c int8, d bool, e oid`, `-32768, -2147483648, -9223372036854775808, false, 4294967295`, `32767, 2147483647, 9223372036854775807, true, 0`)},
		{name: "floats", sql: table(`a float4, b float8`, `'-0', '-0'`, `'NaN', '-Infinity'`, `1.1754944e-38, 5e-324`, `0.1, 0.30000000000000004`, `3.4028235e38, 1.7976931348623157e308`)},
		{name: "numerics", sql: table(`a numeric, b numeric(9,3), c numeric(3,-2), d numeric(2,5)`, `'NaN', 'NaN', NULL, NULL`, `'Infinity', 1.1, 12300, 0.00012`, `1.1000, '-0', 0, 0`, `1e-300, 999999.999, -99900, -0.00099`,
			`'`+strings.Repeat("9", 1000)+`.`+strings.Repeat("1", 1000)+`', 0, 0, 0`)},
		{name: "money", sql: table(`a money, b money[]`, `-92233720368547758.08, '{1.5,NULL,-0.01}'`)},
		{name: "characters", sql: table(`a text, b varchar(20), c char(6), d bpchar, e "char", f name, g text COLLATE "C"`, `'', '', '', '', '', '', ''`, `' a ', 'two ', 'ab', 'ab   ', 'x', 'n', 'Ä'`, `'null', '"', '\', ' ', '"', '(', ')'`)},
		{name: "bytes and bits", sql: table(`a bytea, b bit(5), c varbit, d "bit", e bit`, `'\x00ff5c27', '10110', '', '101', '1'`, `'', '00000', '1', '', '0'`, `'abc\\', NULL, NULL, NULL, NULL`)},
		{name: "dates and times", sql: table(`a date, b timestamp, c timestamptz, d timestamptz(0), e time, f timetz, g time(3)`, `'0044-03-15 BC', '4713-01-01 BC', '2026-07-01 12:00:00.000001+05:30', 'infinity', '24:00', '12:30:00.5-07:30', '1:02:03.4567'`,
			`'-infinity', 'infinity', '-infinity', '1800-01-01', '00:00', '00:00+15:59:59', NULL`, `'5874897-12-31', '294276-12-31 23:59:59.999999', '1900-01-01', NULL, NULL, NULL, NULL`)},
		{name: "intervals", sql: table(`a interval, b interval year to month, c interval day to second (2)`, `'1 year -2 days +03:04:05.000006', '1-2', '-3 days -04:05:06.07'`, `'-1-2 +3 -4:05:06', '0', 'P1DT2H'`, `'178000000 years', NULL, '0'`)},
		{name: "infinite intervals", since: 17, sql: table(`a interval, b interval[]`, `'infinity', '{-infinity,infinity}'`)},
		{name: "json", sql: table(`a json, b jsonb, c jsonpath`, `'{"a": 1, "a":  2, "nul": "\u0000", "lone": "\ud800", "b": "\\u0000"}', '{"b": 1.10, "a": null, "a": "\"\\"}', '$.a[*] ? (@ > 1)'`, `' null ', 'null', 'strict $'`, `'"x"', '[]', '$'`)},
		{name: "xml", sql: table(`a xml`, `'text <a b="c"/> &amp; more'`, `'<?xml version="1.0" standalone="yes"?><a>ü</a>'`, `'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'`, `''`)},
		{name: "text search", sql: table(`a tsvector, b tsquery`, `'a:1A ''b c'':2 ''it''''s'' "\\":3', 'a & !''b c'':* <-> d:AB'`, `'', ''`)},
		{name: "networks and uuids", sql: table(`a inet, b cidr, c macaddr, d macaddr8, e uuid`, `'10.0.0.7/8', '2001:db8::/32', '08:00:2b:01:02:03', '08:00:2b:01:02:03:04:05', '00000000-0000-0000-0000-00000000000f'`, `'::ffff:1.2.3.4/128', '0.0.0.0/0', NULL, NULL, NULL`)},
		{name: "geometry", sql: table(`a point, b line, c lseg, d box, e path, f path, g polygon, h circle`, `'(-0,NaN)', '{1,2,3}', '[(1,2),(3,4)]', '(3,4),(1,2)', '[(1,2),(3,4)]', '((1,2),(3,4))', '((1,2),(3,0.1),(5,6))', '<(1,2),1e-300>'`)},
		{name: "identifiers of the server's", sql: table(`a xid, b xid8, c tid, d pg_lsn, e pg_snapshot, f regclass, g regtype, h regprocedure, i regrole, j aclitem, k oidvector, l int2vector, m regconfig, n regnamespace, o refcursor, p regoperator`,
			`'7', '18446744073709551615', '(1,2)', '16/B374D848', '10:20:10,14', 'store.other', 'store.light', 'lower(text)', 'plantstore_owner', 'plantstore_owner=r/plantstore_owner', '1 2', '3 4', 'english', 'store', 'c', '+(integer,integer)'`)},
		{name: "arrays", sql: table(`a text[], b int[], c int[], d box[], e char(3)[], f date[][]`, `'{"a,b",NULL,"null","",a\\b,"q\"q"," "}', '[-1:0][2:3]={{1,NULL},{3,4}}', '{}', '{(3,4),(1,2);(1,1),(0,0)}', '{a,"  "}', '{{2026-12-31},{infinity}}'`, `'{{{NULL}}}', '[5:5]={1}', '[0:1]={1,2}', NULL, '{}', '{}'`)},
		{name: "enums", sql: table(`a store.light, b store.light[]`, `'half "shade"', '{sun,"",NULL,"null"}'`, `'', '{}'`, `'null', '[0:0]={"a,b"}'`)},
		{name: "domains", sql: `CREATE DOMAIN store.short AS varchar(5) CHECK (VALUE <> ''); CREATE DOMAIN store.filled AS text NOT NULL DEFAULT 'x'; CREATE DOMAIN store.pair AS int[] CHECK (cardinality(VALUE) = 2); ` +
			table(`a store.short, b store.filled, c store.pair, d store.short[]`, `'ab ', '', '{1,NULL}', '{a,NULL}'`, `NULL, '(', NULL, NULL`)},
		{name: "composites", sql: `CREATE TYPE store.inner AS ("a b" text, n numeric, t text[]); CREATE TYPE store.outer AS (i store.inner, all_of store.inner[], l store.light); CREATE DOMAIN store.sure AS store.inner CHECK ((VALUE).n > 0); ` +
			table(`a store.inner, b store.inner[], c store.outer, d store.sure`, `ROW(E'a "b", (c)\\\n', 1.10, '{x,NULL}'), ARRAY[ROW(NULL, NULL, '{}'), NULL]::store.inner[], ROW(ROW('"', 1, '{"\""}'), ARRAY[ROW('(,)', 2, NULL)]::store.inner[], 'null'), ROW('', 0.10, NULL)`, `ROW(NULL, NULL, NULL), '{}', ROW(NULL, NULL, ''), NULL`)},
		{name: "a row type of another table's", sql: `ALTER TABLE store.other ADD gone int, ADD note text; ALTER TABLE store.other DROP gone; ` + table(`a store.other, b store.other[]`, `ROW(1, 'a,b'), ARRAY[ROW(2, '"'), NULL]::store.other[]`)},
		{name: "ranges and multiranges", sql: `CREATE TYPE store.span AS RANGE (subtype = float8); CREATE TYPE store.names AS RANGE (subtype = text); ` + table(`a int4range, b tstzrange, c nummultirange, d store.span, e store.names, f daterange[], g datemultirange`,
			`'[1,)', '["2026-07-01 00:00+02",infinity)', '{[1.10,2),(5,)}', '[-Infinity,1e-310)', '["a,b","c\"d"]', '{"[2026-01-01,2026-02-01)",empty}', '{}'`, `'empty', '(,)', '{}', 'empty', '["",x)', '{}', '{(,)}'`)},
		{name: "hstore", extension: "hstore", sql: table(`a store.hstore`, `'a=>1, "b, c"=>NULL, "\""=>"NULL", ""=>""'`, `''`)},
		{name: "citext", extension: "citext", sql: table(`a store.citext UNIQUE, b store.citext[]`, `'MiXeD', '{A,"a b"}'`)},

		// Columns and sizes
		{name: "generated columns", sql: table(`name text, shout text GENERATED ALWAYS AS (upper(name)) STORED NOT NULL, size int GENERATED ALWAYS AS (length(name)) STORED`, `'fern'`, `''`)},
		{name: "virtual generated columns", since: 18, sql: table(`name text, shout text GENERATED ALWAYS AS (upper(name)) NOT NULL, whisper text GENERATED ALWAYS AS (lower(name)) STORED, size int GENERATED ALWAYS AS (length(name)) VIRTUAL`, `'Fern'`, `''`)},
		{name: "identity always, and its id last", sql: `CREATE TABLE public.plants (name text, id bigint GENERATED ALWAYS AS IDENTITY (START 5) PRIMARY KEY); INSERT INTO public.plants (name) VALUES ('a'), ('b')`},
		{name: "a second identity", sql: table(`number int GENERATED ALWAYS AS IDENTITY, name text`) + `; INSERT INTO public.plants OVERRIDING SYSTEM VALUE VALUES (-9223372036854775808, 7, 'a'), (9223372036854775807, DEFAULT, 'b')`},
		{name: "dropped columns", sql: `CREATE TABLE public.plants (gone1 int, id bigint, gone2 text, name text, gone3 date); ALTER TABLE public.plants DROP gone1, DROP gone2, DROP gone3, ADD PRIMARY KEY (id); INSERT INTO public.plants VALUES (1, 'a'); ALTER TABLE public.plants ADD late int`},
		{name: "columns added with defaults", sql: table(`name text`, `'a'`) + `; ALTER TABLE public.plants ADD stock int NOT NULL DEFAULT 3, ADD added timestamptz DEFAULT now(), ADD "order" text DEFAULT ''; INSERT INTO public.plants VALUES (2, 'b', 4)`},
		{name: "a row of 1 MB", sql: table(`name text, data bytea`, `repeat('Füße "🌱", \ ', 45000), decode(repeat('00ff5c27', 60000), 'hex')`)},

		// Constraints and kinds of tables
		{name: "circular references", sql: table(`cover bigint`, `1`, `2`) + `; CREATE TABLE store.pictures (id bigint PRIMARY KEY, plant bigint REFERENCES public.plants ON DELETE SET NULL);
			INSERT INTO store.pictures VALUES (1, 2), (2, 1); ALTER TABLE public.plants ADD FOREIGN KEY (cover) REFERENCES store.pictures`},
		{name: "references to itself", sql: table(`mother bigint REFERENCES public.plants, father bigint REFERENCES public.plants DEFERRABLE INITIALLY DEFERRED`) + `; INSERT INTO public.plants VALUES (1, 3, 2), (2, 1, 1), (3, 3, NULL)`},
	} {
		if version < test.since || test.extension != "" && !slices.Contains(extensions, test.extension) {
			continue
		}
		t.Run(test.name, func(t *testing.T) { // one after the other, in one database
			pgtest.Execute(t, super, `DROP SCHEMA IF EXISTS store CASCADE; CREATE SCHEMA store; GRANT USAGE ON SCHEMA store TO plantstore_owner;
				CREATE TYPE store.light AS ENUM ('sun', 'half "shade"', '', 'null', 'a,b'); CREATE TABLE store.other (n int)`)
			if test.extension != "" {
				pgtest.Execute(t, super, `CREATE EXTENSION `+test.extension+` SCHEMA store`)
			}
			replacePlants(t, super, test.sql)
			pgtest.Execute(t, super, `GRANT SELECT, INSERT ON public.plants TO plantstore_owner`)
			before := image(t, super)
			for name, bringBack := range map[string]func(ledger.Selection){
				"restore": func(gone ledger.Selection) {
					if done := restore(t, owner, gone, ledger.Options{}); done.Notices != nil {
						t.Errorf("notices: got %q, want none", done.Notices)
					}
				},
				"script": func(gone ledger.Selection) {
					var script strings.Builder
					if err := ledger.Script(t.Context(), owner, gone, &script); err != nil {
						t.Fatal(err)
					}
					pgtest.Execute(t, dba, script.String())
				},
			} {
				pgtest.Execute(t, dba, `DELETE FROM public.plants`)
				gone := value[[]int64](t, super, `SELECT array_agg(plant_id) FROM plantstore.deletions WHERE restored_at IS NULL`)
				if left := image(t, super); before == "" || left != "" || len(gone) != strings.Count(before, "\n") {
					t.Fatalf("deletions in the ledger: got %d, want one for each row of\n%.999s\nand no row left", len(gone), before)
				}
				bringBack(ledger.Selection{Plants: gone})
				if after := image(t, super); after != before {
					t.Errorf("rows after the %s: got\n%.999s\nwant\n%.999s", name, after, before)
				}
			}
		})
	}
}
