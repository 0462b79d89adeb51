package postgres

import (
	"fmt"
	"strings"
)

// columnNames are names that SQL of ours uses, and names that are hard to spell.
func columnNames() []string {
	return append([]string{
		"g", "gone", "s", "r", "i", "a", "p", "d", "t", "c", "k", "v", "later", "part", "today",
		"shape", "plant", "plant_id", "plants", "principal", "request", "batch", "recorded", "told", "has_virtual", "known_shape", "todays_names", "seen_names",
		"todays_attributes", "us", "proved", "of_the_moment", "over", "budget",
		"request_id", "key", "attributes", "names", "types", "generated", "deleted_at", "deleted_by", "session_role",
		"idempotency_key", "restored_at", "restored_by", "plant_deletions", "plant_shapes", "session_user", "tg_relid", "old", "new",
		"select", "user", "row", "null", "ctid_", "plantstore.request",
		"Upper", `quo"te`, `back\slash`, "dot.ted", "a space", "Füße 植物", "tab\tand\nline", "com,ma", "(paren)", "'", "$1", "%s", "{}", "--", "/*",
	}, strings.Repeat("x", 63))
}

func quoted(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = `"` + strings.ReplaceAll(n, `"`, `""`) + `"`
	}
	return out
}

// named is a table with a column of each name, of one type.
func named(names []string, typ, value string) string {
	var values []string
	for range names {
		values = append(values, value)
	}
	return fmt.Sprintf("CREATE TABLE public.plants (id bigint PRIMARY KEY, %s %s);\nINSERT INTO public.plants SELECT i, %s FROM generate_series(1, 3) i;\nINSERT INTO public.plants (id) VALUES (4)",
		strings.Join(quoted(names), " "+typ+", "), typ, strings.Join(values, ", "))
}

func adoptedTables() []adopted {
	return append(append(builtinTypes(), storesOwnTypes()...), shapesOfTables()...)
}

func builtinTypes() []adopted {
	controls := make([]string, 0, 40)
	for c := 1; c < 32; c++ {
		controls = append(controls, fmt.Sprintf(`E'a\x%02xb'`, c), fmt.Sprintf(`E'\x%02x'`, c))
	}
	return []adopted{
		{name: "numeric", columns: []adoptedColumn{
			{"numeric", []string{"12.50", "0", "-0.0000000000000000000000000001", "1e300", "'NaN'", "'Infinity'", "'-Infinity'", "123456789012345678901234567890.123456789", "0.00"}},
			{"numeric(12,4)", []string{"12.5", "-99999999.9999", "'NaN'"}},
			{"numeric(4,-2)", []string{"123456", "-100"}},
		}},
		{name: "float8", columns: []adoptedColumn{
			{"float8", []string{"0.1", "1.7976931348623157e308", "5e-324", "2.2250738585072014e-308", "'NaN'", "'Infinity'", "'-Infinity'", "pi()", "1.0/3", "'-0'", "0.1::float8 + 0.2::float8"}},
		}},
		{name: "float4", columns: []adoptedColumn{
			{"float4", []string{"0.1", "3.4028235e38", "1e-45", "'NaN'", "'-Infinity'", "pi()", "'-0'", "16777217"}},
		}},
		{name: "integers", columns: []adoptedColumn{
			{"bigint", []string{"9223372036854775807", "-9223372036854775808", "0"}},
			{"integer", []string{"2147483647", "-2147483648"}},
			{"smallint", []string{"32767", "-32768"}},
		}},
		{name: "text", columns: []adoptedColumn{
			{"text", []string{`''`, `' '`, `'"quoted" \ back''s'`, `'\\'`, `'"'`, `'""'`, `'\"'`, `'(a,b)'`, `','`, `'()'`, `'Füße 🌱 植物'`,
				`'{"a":1}'`, `'null'`, `'NULL'`, `'\N'`, `'\.'`, `E'\\.\n\\.\n'`, `U&'\FEFF\200B\202E\0085\00A0\2028'`, `'\x00'`, `'$1'`, `'%s'`}},
			{"text", controls},
			{"varchar(5)", []string{`'a    '`, `''`, `'🌱🌱🌱🌱🌱'`, `E'\n\r\t\\"'`}},
			{"char(5)", []string{`'ab'`, `''`, `'     '`, `'植'`}},
			{"name", []string{`'a name'`, `''`, `repeat('n', 63)`}},
			{`"char"`, []string{`'a'`, `(-1)::"char"`, `''`, `'"'`, `'\'`, `'\001'`, `','`, `' '`}},
			{`text COLLATE "C"`, []string{`'collated'`}},
		}},
		{name: "text that is long", columns: []adoptedColumn{
			{"text", []string{`repeat('x', 3000000)`, `repeat(E'"\\\n', 100000)`, `(SELECT string_agg(md5(i::text), ' ') FROM generate_series(1, 50000) i)`}},
			{"text[]", []string{`array_fill('"a\b'::text, ARRAY[10000])`}},
		}},
		{name: "boolean", columns: []adoptedColumn{{"boolean", []string{"true", "false"}}}},
		{name: "bytea", columns: []adoptedColumn{
			{"bytea", []string{`'\x'`, `'\x00ff5c27220a'`, `(SELECT string_agg(decode(lpad(to_hex(i), 2, '0'), 'hex'), '') FROM generate_series(0, 255) i)`}},
		}},
		{name: "uuid", columns: []adoptedColumn{{"uuid", []string{`'0191e7c3-0000-7000-8000-00000000abcd'`, `'{00000000-0000-0000-0000-000000000000}'`}}}},
		{name: "timestamptz", columns: []adoptedColumn{
			{"timestamptz", []string{`'2026-11-03 04:05:06.123456+05:45'`, `'infinity'`, `'-infinity'`, `'0044-03-15 12:00:00+00 BC'`, `'1850-01-01 00:00:00 Europe/Amsterdam'`,
				`'294276-12-31 23:59:59.999999+00'`, `'4714-11-24 00:00:00+00 BC'`, `'1900-01-01 00:00:00+00:00:17'`}},
			{"timestamptz(2)", []string{`'2026-11-03 04:05:06.12+00'`}},
		}},
		{name: "timestamp", columns: []adoptedColumn{
			{"timestamp", []string{`'2026-11-03 04:05:06.123456'`, `'infinity'`, `'-infinity'`, `'4713-01-01 00:00:00 BC'`}},
			{"timestamp(0)", []string{`'2026-11-03 04:05:06'`}},
		}},
		{name: "date", columns: []adoptedColumn{{"date", []string{`'2026-11-03'`, `'infinity'`, `'-infinity'`, `'0044-03-15 BC'`, `'5874897-12-31'`, `'0001-01-01'`}}}},
		{name: "time", columns: []adoptedColumn{
			{"time", []string{`'24:00:00'`, `'04:05:06.000001'`, `'00:00'`}},
			{"timetz", []string{`'04:05:06.789-08:30'`, `'24:00:00+15:59:59'`, `'00:00-15:59'`}},
		}},
		{name: "interval", columns: []adoptedColumn{
			{"interval", []string{`'1 year -2 months 3 days -04:05:06.000007'`, `'-178000000 years'`, `'-1 day -02:03:04'`, `'-1 year -2 months'`, `'0'`, `'1 month -1 day'`,
				`'-00:00:00.000001'`, `'2562047788:00:54.775807'`, `'1 day -00:00:01'`}},
			{"interval year to month", []string{`'1-2'`}},
			{"interval(3)", []string{`'1.123 seconds'`}},
		}},
		{name: "infinite intervals", since: 17, columns: []adoptedColumn{{"interval", []string{`'infinity'`, `'-infinity'`}}}},
		{name: "network addresses", columns: []adoptedColumn{
			{"inet", []string{`'192.168.1.5/24'`, `'::1'`, `'10.0.0.1'`, `'::ffff:1.2.3.4/96'`}},
			{"cidr", []string{`'10.0.0.0/8'`, `'2001:db8::/32'`}},
			{"macaddr", []string{`'08:00:2b:01:02:03'`}},
			{"macaddr8", []string{`'08:00:2b:01:02:03:04:05'`}},
		}},
		{name: "bits", columns: []adoptedColumn{
			{"bit varying", []string{`B''`, `B'0101'`}},
			{"bit(7)", []string{`B'0101010'`}},
			{"bit varying(9)", []string{`B'000'`}},
		}},
		{name: "money", columns: []adoptedColumn{{"money", []string{`'12.50'`, `'-92233720368547758.08'`, `'1234567.89'`, `'0'`}}}},
		{name: "points and lines", columns: []adoptedColumn{
			{"point", []string{`'(0.1,-1e300)'`, `'(NaN,Infinity)'`, `'(-0,0)'`}},
			{"line", []string{`'{1,2,3}'`}},
			{"lseg", []string{`'[(0.1,2),(3,4)]'`}},
		}},
		{name: "shapes", columns: []adoptedColumn{
			{"box", []string{`'(1,1),(0,0)'`}},
			{"path", []string{`'[(0,0),(1,1.1)]'`, `'((0,0),(1,1))'`}},
			{"polygon", []string{`'((0,0),(1,1),(2,0))'`}},
			{"circle", []string{`'<(0.1,0.2),3>'`}},
			{"box[]", []string{`'{(1,1),(0,0);(2,2),(1,1)}'`}},
		}},
		{name: "ranges", columns: []adoptedColumn{
			{"int4range", []string{`'[1,3)'`, `'empty'`, `'(,)'`}},
			{"int8range", []string{`'[1,)'`}},
			{"numrange", []string{`'(1.10,2.200]'`, `'(,NaN]'`}},
			{"tsrange", []string{`'[2026-01-02 03:04:05.000006,infinity)'`, `'(,"0044-03-15 BC")'`}},
			{"tstzrange", []string{`'[2026-01-02 03:04:05.000006+00,)'`, `'empty'`}},
			{"daterange", []string{`'[2026-01-02,2026-02-03)'`, `'[2026-01-02,infinity]'`}},
		}},
		{name: "multiranges", columns: []adoptedColumn{
			{"int4multirange", []string{`'{[1,3),[7,9)}'`, `'{}'`}},
			{"int8multirange", []string{`'{(,1),[5,)}'`}},
			{"nummultirange", []string{`'{[1.10,2.2)}'`}},
			{"tsmultirange", []string{`'{[2026-01-02 03:04,2026-01-03)}'`}},
			{"tstzmultirange", []string{`'{[2026-01-02 03:04+00,2026-01-03 00:00+00)}'`}},
			{"datemultirange", []string{`'{[2026-01-02,2026-02-03),[2027-01-01,)}'`}},
			{"int4range[]", []string{`'{"[1,3)",empty,NULL}'`}},
			{"nummultirange[]", []string{`ARRAY['{[1,2)}'::nummultirange, NULL]`}},
		}},
		{name: "json", columns: []adoptedColumn{
			{"json", []string{`'{"b": 1.00,  "a" : [null]}'`, `'"\u0000"'`, `'"\ud800"'`, `'1e200000'`, `'{"a":1,"a":2}'`, `E' \n[1 ,\t2] \n'`, `'null'`, `'""'`, `'"\"\\"'`, `'-0'`}},
			{"json[]", []string{`ARRAY['{"a":"\u0000"}'::json, '[1, 2]', 'null', NULL]`}},
		}},
		{name: "jsonb", columns: []adoptedColumn{
			{"jsonb", []string{`'{"b": 1.00, "a": [null, "x", {"n": 1e400}]}'`, `'"text"'`, `'[]'`, `'null'`, `'{}'`, `'1.00'`, `'"null"'`, `'"\"\\\n"'`}},
		}},
		{name: "jsonb arrays", columns: []adoptedColumn{
			{"jsonb[]", []string{`ARRAY['[1, 2]', '[3]']::jsonb[]`, `ARRAY['[]', '{}', 'null', NULL]::jsonb[]`, `ARRAY[ARRAY['[[1]]'], ARRAY['2']]::jsonb[]`, `'{}'`}},
			{"jsonpath", []string{`'$.a[*] ? (@ > 1)'`, `'lax $."a b"'`}},
		}},
		{name: "xml", columns: []adoptedColumn{
			{"xml", []string{`'<a b="c">d &amp; e</a>'`, `XMLPARSE(CONTENT 'text <b/> and text')`, `XMLPARSE(DOCUMENT '<?xml version="1.0" standalone="yes"?><a/>')`, `''`, `E'<a>\n\t<!-- -->\n</a>'`}},
			{"xml[]", []string{`ARRAY['<a/>'::xml, NULL]`}},
		}},
		{name: "text search", columns: []adoptedColumn{
			{"tsvector", []string{`to_tsvector('simple', 'a fat cat''s "x"')`, `'a:1A,2B c:3'`, `''`, `'''quo\\te'':1'`}},
			{"tsquery", []string{`'fat & (rat | !cat)'`, `'a <3> b:*A'`, `''`}},
		}},
		{name: "names of things", columns: []adoptedColumn{
			{"regclass", []string{`'pg_catalog.pg_class'`, `0`, `4294967295`, `'shop."Odd.Table"'`, `'public.seen'`}},
			{"regtype", []string{`'integer'`, `'timestamp with time zone'`, `'shop.colour'`, `0`}},
			{"regproc", []string{`'pg_catalog.now'`, `0`}},
			{"regprocedure", []string{`'lower(text)'`, `'shop.f(integer,text[])'`, `0`}},
			{"regoper", []string{`'pg_catalog.^@'`, `0`}},
			{"regoperator", []string{`'+(integer,integer)'`, `0`}},
			{"regrole", []string{`'plantstore_owner'`, `0`}},
			{"regnamespace", []string{`'public'`, `'"odd ""schema"'`}},
			{"regconfig", []string{`'english'`}},
			{"regdictionary", []string{`'simple'`}},
			{"regcollation", []string{`'"C"'`}},
			{"oid", []string{`0`, `4294967295`}},
		}, setUp: `CREATE SCHEMA shop; CREATE SCHEMA "odd ""schema"; CREATE TYPE shop.colour AS ENUM ('green'); CREATE TABLE shop."Odd.Table" (); CREATE TABLE public.seen ();
			CREATE FUNCTION shop.f(int, text[]) RETURNS int LANGUAGE sql AS 'SELECT 1'; GRANT USAGE ON SCHEMA shop TO plantstore_owner`},
		{name: "the server's own", noBinary: true, columns: []adoptedColumn{
			{"pg_lsn", []string{`'16/B374D848'`}},
			{"xid", []string{`'4294967295'`}},
			{"xid8", []string{`'18446744073709551615'`}},
			{"cid", []string{`'7'`}},
			{"tid", []string{`'(4294967295,65535)'`}},
			{"pg_snapshot", []string{`'10:20:10,14,15'`}},
			{"txid_snapshot", []string{`'10:20:10,14,15'`}},
			{"int2vector", []string{`'1 -2 3'`, `''`}},
			{"oidvector", []string{`'1 2'`}},
			{"refcursor", []string{`'a "cursor"'`}},
			{"aclitem", []string{`'plantstore_owner=ar*/plantstore_owner'`, `'=r/plantstore_app'`}},
			{"aclitem[]", []string{`'{plantstore_owner=r/plantstore_owner}'`}},
		}},
		{name: "text arrays", columns: []adoptedColumn{
			{"text[]", []string{`'{}'`, `ARRAY['a,b', '"', NULL, 'NULL', 'null', '', '\', '{', E'\n', ' ']`, `'{{a,b},{c,d}}'`, `'[0:2]={a,b,NULL}'`, `'[-1:0][3:4]={{a,b},{c,d}}'`}},
			{"varchar(3)[]", []string{`'{abc,"a  "}'`}},
			{"char(3)[]", []string{`'{a,NULL}'`}},
			{"name[]", []string{`'{a," "}'`}},
			{`"char"[]`, []string{`'{a,"\"",","}'`}},
		}},
		{name: "arrays of numbers", columns: []adoptedColumn{
			{"float8[]", []string{`'{0.1,NaN,-Infinity,-0}'`}},
			{"int[]", []string{`'{{{1,2},{3,4}}}'`, `'[2:2]={NULL}'`}},
			{"numeric(6,2)[]", []string{`'{1.10,NaN}'`}},
			{"money[]", []string{`'{"$1,000.00",-1}'`}},
			{"bit(3)[]", []string{`'{101}'`}},
			{"boolean[]", []string{`'{t,f,NULL}'`}},
		}},
		{name: "arrays of times", columns: []adoptedColumn{
			{"timestamptz[]", []string{`'{2026-11-03 04:05:06+00,infinity}'`}},
			{"date[]", []string{`'{"0044-03-15 BC",-infinity}'`}},
			{"interval[]", []string{`ARRAY['1 year -2 days'::interval, '-1 sec']`}},
			{"timetz[]", []string{`'{04:05-08:30}'`}},
			{"daterange[]", []string{`'{"[2026-01-02,2026-02-03)"}'`}},
		}},
		{name: "arrays of other things", columns: []adoptedColumn{
			{"bytea[]", []string{`ARRAY['\x00ff'::bytea, NULL, '\x']`}},
			{"uuid[]", []string{`'{0191e7c3-0000-7000-8000-00000000abcd}'`}},
			{"inet[]", []string{`'{::1,10.0.0.1/8}'`}},
			{"point[]", []string{`'{"(1,2)","(0.1,-0)"}'`}},
			{"tsvector[]", []string{`ARRAY['a:1 ''b''':: tsvector]`}},
			{"oid[]", []string{`'{0,1}'`}},
			{"regclass[]", []string{`'{pg_catalog.pg_class}'`}},
			{"pg_lsn[]", []string{`'{0/1}'`}},
		}},
	}
}

func storesOwnTypes() []adopted {
	return []adopted{
		{name: "enum", setUp: `CREATE TYPE mood AS ENUM ('happy', 'wil"ting', '', 'a,b', 'NULL', E'line\n', '(x)')`, columns: []adoptedColumn{
			{"mood", []string{`'wil"ting'`, `''`, `'a,b'`, `'NULL'`, `E'line\n'`, `'(x)'`}},
			{"mood[]", []string{`'{happy,happy}'`, `ARRAY['wil"ting', '', 'NULL', NULL]::mood[]`}},
		}},
		{name: "enum with a cast of its owner's", setUp: `CREATE TYPE mood AS ENUM ('happy');
			CREATE FUNCTION lie(mood) RETURNS json LANGUAGE sql AS $$SELECT '"sad"'::json$$; CREATE CAST (mood AS json) WITH FUNCTION lie(mood);
			CREATE FUNCTION lie_as_text(mood) RETURNS text LANGUAGE sql AS $$SELECT 'sad'$$; CREATE CAST (mood AS text) WITH FUNCTION lie_as_text(mood) AS IMPLICIT`,
			columns: []adoptedColumn{{"mood", []string{`'happy'`}}}},
		{name: "composite", setUp: `CREATE TYPE size AS (height numeric, unit text)`, columns: []adoptedColumn{
			{"size", []string{`(12.50, 'c''m "x"')`, `ROW(NULL, NULL)`, `(NULL, '')`, `(1, '\')`, `(NULL, '(,)')`}},
			{"size[]", []string{`ARRAY[(1.10, 'cm')::size, NULL, ROW(NULL, NULL)::size]`, `ARRAY[ARRAY[(1, E'\n')::size]]`}},
		}},
		{name: "composite in composite", setUp: `CREATE TYPE inner_ AS (a text, b int[]); CREATE TYPE outer_ AS (i inner_, many inner_[], d date)`, columns: []adoptedColumn{
			{"outer_", []string{`ROW(ROW('x"\,()', '{1,NULL}'), ARRAY[ROW('', NULL)::inner_, NULL], 'infinity')`, `ROW(NULL, '{}', NULL)`, `ROW(ROW(NULL, NULL), NULL, '2026-01-01')`}},
			{"outer_[]", []string{`ARRAY[ROW(ROW('"', '{}'), NULL, NULL)::outer_]`}},
		}},
		{name: "composite of another table", setUp: `CREATE TABLE pots (id bigint, colour text, dropped int, size numeric(4,1)); ALTER TABLE pots DROP dropped`, columns: []adoptedColumn{
			{"pots", []string{`(1, 'red', 1.5)`}},
			{"pots[]", []string{`ARRAY[(1, NULL, 1.5)::pots]`}},
		}},
		{name: "composite with a column that its type lost", setUp: `CREATE TYPE size AS (height numeric, was int, unit text); ALTER TYPE size DROP ATTRIBUTE was`, columns: []adoptedColumn{
			{"size", []string{`(12.50, 'cm')`}},
		}},
		{name: "domain", setUp: `CREATE DOMAIN sku AS text CHECK (VALUE ~ '-'); CREATE DOMAIN short AS varchar(5); CREATE DOMAIN money2 AS numeric(6,2);
			CREATE DOMAIN skus AS sku CHECK (VALUE <> 'x')`, columns: []adoptedColumn{
			{"sku", []string{`'AB-1'`, `'"-"'`}},
			{"short", []string{`'a    '`}},
			{"money2", []string{`1.10`}},
			{"skus", []string{`'-'`}},
			{"sku[]", []string{`ARRAY['a-b', NULL]::sku[]`}},
		}},
		{name: "domain over array", setUp: `CREATE DOMAIN tags AS text[] CHECK (cardinality(VALUE) < 9); CREATE DOMAIN matrix AS int[][]`, columns: []adoptedColumn{
			{"tags", []string{`'{}'`, `ARRAY['a', NULL, '"']`, `'[0:0]={x}'`}},
			{"tags[]", []string{`'{"{a,\"b\"}","{}",NULL}'`}},
			{"matrix", []string{`'{{1,2},{3,4}}'`}},
		}},
		{name: "domain over composite", setUp: `CREATE TYPE size AS (height numeric, unit text); CREATE DOMAIN tall AS size CHECK ((VALUE).height > 1)`, columns: []adoptedColumn{
			{"tall", []string{`ROW(2, '"')`}},
			{"tall[]", []string{`ARRAY[ROW(2, NULL)::size]::tall[]`}},
		}},
		{name: "domain over jsonb, json and enum", setUp: `CREATE TYPE mood AS ENUM ('ok'); CREATE DOMAIN doc AS jsonb; CREATE DOMAIN raw AS json; CREATE DOMAIN moody AS mood`, columns: []adoptedColumn{
			{"doc", []string{`'null'`, `'[1]'`}},
			{"doc[]", []string{`ARRAY['[1]'::doc, 'null']`}},
			{"raw", []string{`'"\u0000"'`}},
			{"moody", []string{`'ok'`}},
		}},
		{name: "domain that may not be null", setUp: `CREATE DOMAIN code AS text NOT NULL DEFAULT 'none'`, table: `CREATE TABLE public.plants (id bigint PRIMARY KEY, code code); INSERT INTO public.plants VALUES (1, ''), (2, 'x')`},
		{name: "ranges of the store's", setUp: `CREATE TYPE floats AS RANGE (subtype = float8, subtype_diff = float8mi); CREATE TYPE words AS RANGE (subtype = text, collation = "C");
			CREATE DOMAIN age AS int4range CHECK (NOT isempty(VALUE))`, columns: []adoptedColumn{
			{"floats", []string{`'[0.1,NaN)'`, `'[-0,0.30000000000000004]'`}},
			{"words", []string{`'["a,b","c\"d")'`, `'["",)'`, `words('\', 'x)')`}},
			{"floats_multirange", []string{`'{}'`, `'{[1,2)}'`}},
			{"words_multirange", []string{`'{["a","b"]}'`}},
			{"age", []string{`'[1,2)'`}},
			{"floats[]", []string{`ARRAY['[1,2)'::floats]`}},
		}},
		{name: "types in a schema of the store's", setUp: `CREATE SCHEMA "shop floor"; CREATE TYPE "shop floor"."Light" AS ENUM ('sun'); CREATE DOMAIN "shop floor".sku AS text`, columns: []adoptedColumn{
			{`"shop floor"."Light"`, []string{`'sun'`}},
			{`"shop floor".sku[]`, []string{`'{a}'`}},
		}},
		{name: "types called like ours", setUp: `CREATE DOMAIN public.text AS pg_catalog.text CHECK (VALUE = 'ours'); CREATE TYPE public.int8 AS ENUM ('x'); CREATE TYPE public."bigint" AS ENUM ('y')`, columns: []adoptedColumn{
			{"public.text", []string{`'ours'`}},
			{"public.int8", []string{`'x'`}},
			{`public."bigint"[]`, []string{`'{y}'`}},
		}},
		{name: "hstore", setUp: `CREATE EXTENSION hstore`, columns: []adoptedColumn{
			{"hstore", []string{`'"a\"b"=>"c\\d", x=>NULL, ""=>""'`, `''`, `hstore('k', E'\n,=>')`}},
			{"hstore[]", []string{`ARRAY['a=>1'::hstore, NULL]`}},
		}},
		{name: "citext", setUp: `CREATE EXTENSION citext`, columns: []adoptedColumn{
			{"citext", []string{`'MiXed "Case"'`, `''`}},
			{"citext[]", []string{`ARRAY['A', NULL]::citext[]`}},
		}},
		{name: "ltree", setUp: `CREATE EXTENSION ltree`, columns: []adoptedColumn{
			{"ltree", []string{`'Top.Plants.Ferns'`, `''`}},
			{"lquery", []string{`'Top.*{1,2}.a|b@*'`}},
			{"ltxtquery", []string{`'a & b*@'`}},
			{"ltree[]", []string{`'{a.b,c}'`}},
		}},
		{name: "cube and seg", noBinary: true, setUp: `CREATE EXTENSION cube; CREATE EXTENSION seg`, columns: []adoptedColumn{
			{"cube", []string{`'(1,2.5),(3,4)'`, `'(0.1)'`}},
			{"seg", []string{`'1.50 .. 2.0'`, `'~6.50'`, `'<3'`}},
		}},
		{name: "isn", noBinary: true, setUp: `CREATE EXTENSION isn`, columns: []adoptedColumn{
			{"isbn13", []string{`'978-0-393-04002-9'`}},
			{"ean13", []string{`'4006381333931'`}},
		}},
		{name: "query_int", noBinary: true, setUp: `CREATE EXTENSION intarray`, columns: []adoptedColumn{{"query_int", []string{`'1&(2|!3)'`}}}},
	}
}

func shapesOfTables() []adopted {
	const fern = `INSERT INTO public.plants (name) VALUES ('fern'), ('"moss"'), (NULL);`
	var many strings.Builder
	for i := range 1599 {
		fmt.Fprintf(&many, ", column_with_a_number_%d int", i)
	}
	return []adopted{
		{name: "only an id", table: `CREATE TABLE public.plants (id bigint PRIMARY KEY); INSERT INTO public.plants VALUES (-9223372036854775808), (0), (9223372036854775807)`},
		{name: "identity by default", table: `CREATE TABLE public.plants (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, name text); ` + fern},
		{name: "identity always", table: `CREATE TABLE public.plants (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, n int DEFAULT 3); ` + fern},
		{name: "another identity", table: `CREATE TABLE public.plants (id bigserial PRIMARY KEY, name text, n bigint GENERATED ALWAYS AS IDENTITY); ` + fern},
		{name: "id is not the first column", table: `CREATE TABLE public.plants (name text, id bigserial PRIMARY KEY, n int); ` + fern},
		{name: "generated column", table: `CREATE TABLE public.plants (id bigserial PRIMARY KEY, a int GENERATED ALWAYS AS (length(name)) STORED, name text, label text GENERATED ALWAYS AS (upper(name)) STORED); ` + fern},
		{name: "virtual column", since: 18, table: `CREATE TABLE public.plants (id bigserial PRIMARY KEY, a int GENERATED ALWAYS AS (length(name)) VIRTUAL, name text, label text GENERATED ALWAYS AS (upper(name)) STORED); ` + fern},
		{name: "dropped columns", table: `CREATE TABLE public.plants (a int, id bigserial PRIMARY KEY, b text, name text, c int);
			ALTER TABLE public.plants DROP a; ` + fern + ` ALTER TABLE public.plants DROP b, DROP c, ADD d int DEFAULT 5;` + fern},
		{name: "defaults that are not the values", table: `CREATE TABLE public.plants (id bigserial PRIMARY KEY, name text DEFAULT 'x', n int DEFAULT 7, at timestamptz DEFAULT now());
			INSERT INTO public.plants (name, n, at) VALUES (NULL, NULL, NULL), ('', 0, 'infinity')`},
		{name: "constraints", table: `CREATE TABLE public.kinds (k int PRIMARY KEY); INSERT INTO public.kinds VALUES (1); GRANT SELECT ON public.kinds TO plantstore_owner;
			CREATE TABLE public.plants (id bigserial PRIMARY KEY, name text NOT NULL UNIQUE CHECK (name <> ''), kind int REFERENCES public.kinds DEFERRABLE INITIALLY DEFERRED, EXCLUDE USING gist (int8range(id, id, '[]') WITH &&));
			INSERT INTO public.plants (name, kind) VALUES ('a', 1), ('b', NULL)`},
		{name: "plants that refer to each other", cascades: true, table: `CREATE TABLE public.plants (id bigint PRIMARY KEY, parent bigint REFERENCES public.plants ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED); INSERT INTO public.plants VALUES (3, NULL), (2, 3), (1, 2), (4, 4)`},
		{name: "a table of a role of the store's", setUp: `GRANT CREATE ON SCHEMA public TO plantstore_app; SET ROLE plantstore_app`,
			table: `CREATE TABLE public.plants (id bigserial PRIMARY KEY, name text DEFAULT lower('X') CHECK (length(name) < 99)); ` + fern + ` RESET ROLE; REVOKE CREATE ON SCHEMA public FROM plantstore_app`},
		{name: "jsonb that may not be null", table: `CREATE TABLE public.plants (id bigserial PRIMARY KEY, doc jsonb NOT NULL); INSERT INTO public.plants (doc) VALUES ('null'), ('"x"')`},
		{name: "columns called like names of ours, text", table: named(columnNames(), "text", `'"v" ' || i`)},
		{name: "columns called like names of ours, bigint", table: named(columnNames(), "bigint", "-i")},
		{name: "columns called like names of ours, jsonb", table: named(columnNames(), "jsonb", `'{"id": 9, "plant": 9}'`)},
		{name: "columns called like names of ours, composite", setUp: `CREATE TYPE pair AS (id bigint, plant text)`, table: named(columnNames(), "pair", `ROW(99, 'x')::pair`)},
		{name: "a column g", table: `CREATE TABLE public.plants (id bigint PRIMARY KEY, g numeric); INSERT INTO public.plants VALUES (1, 12.5), (2, NULL)`},
		{name: "1600 columns", table: `CREATE TABLE public.plants (id bigint PRIMARY KEY` + many.String() + `);
			INSERT INTO public.plants SELECT 1` + strings.Repeat(", 7", 1599) + `; INSERT INTO public.plants (id, column_with_a_number_1598) VALUES (2, -1)`},
		{name: "many rows", table: `CREATE TABLE public.plants (id bigint PRIMARY KEY, name text, at timestamptz); INSERT INTO public.plants SELECT i, 'Fern ' || i, now() FROM generate_series(1, 300) i`},
	}
}
