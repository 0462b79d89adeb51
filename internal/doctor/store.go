package doctor

// reach begins a query with the foreign keys that a deletion of a plant has to do with: those
// to plants, and those to tables whose rows it removes. Since PostgreSQL 18 a key may be NOT
// ENFORCED; earlier versions have no such column.
const reach = `
	WITH RECURSIVE enforced AS (
		SELECT * FROM pg_constraint c WHERE c.contype = 'f' AND c.conparentid = 0 AND to_jsonb(c) ->> 'conenforced' IS DISTINCT FROM 'false'
	), reach AS (
		SELECT e.oid, e.conrelid, e.confdeltype FROM enforced e WHERE e.confrelid = to_regclass('public.plants')
		UNION SELECT e.oid, e.conrelid, e.confdeltype FROM reach r JOIN enforced e ON e.confrelid = r.conrelid WHERE r.confdeltype = 'c'
	)`

// An index helps if it begins with the key's columns, in any order.
const foreignKeys = reach + `
	SELECT CASE WHEN s.size > @scan::bigint THEN 'problem' ELSE 'advice' END,
		format('each deletion from %s scans %s (%s): foreign key %I has no index', e.confrelid::regclass, e.conrelid::regclass, pg_size_pretty(s.size), e.conname),
		format('CREATE INDEX %sON %s (%s);', CASE c.relkind WHEN 'p' THEN '' ELSE 'CONCURRENTLY ' END, e.conrelid::regclass,
			(SELECT string_agg(format('%I', a.attname), ', ' ORDER BY k.n) FROM unnest(e.conkey) WITH ORDINALITY k (attnum, n) JOIN pg_attribute a ON a.attrelid = e.conrelid AND a.attnum = k.attnum))
	FROM reach r JOIN enforced e ON e.oid = r.oid JOIN pg_class c ON c.oid = e.conrelid,
		LATERAL (SELECT coalesce(sum(pg_table_size(relid)), pg_table_size(c.oid)) FROM pg_partition_tree(c.oid)) s (size)
	WHERE NOT EXISTS (SELECT FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid JOIN pg_am m ON m.oid = ic.relam
		WHERE i.indrelid = e.conrelid AND i.indisvalid AND i.indpred IS NULL AND m.amname IN ('btree', 'hash')
			AND (i.indkey::int2[])[0:cardinality(e.conkey) - 1] @> e.conkey)
	ORDER BY s.size DESC, e.conrelid::regclass::text COLLATE "C", e.conname`

// A table that can't be watched may keep the plant instead.
const cascades = `
	SELECT level, message, remedy FROM (SELECT 0 AS depth, 'advice' AS level, format('a deletion from %s %s %s (foreign key %I), and a restore does not bring that back', k.parent,
			CASE k.action WHEN 'c' THEN 'removes rows of' ELSE 'changes rows of' END, k.relation, k.name) AS message,
		CASE WHEN u.reasons IS NULL THEN concat_ws(E'\n', (SELECT string_agg(DISTINCT m, E'\n') FROM plantstore.chain(k.relation) t, plantstore.missing(t) m), format('SELECT plantstore.watch(%L);', k.relation))
			ELSE format(E'-- It cannot be recorded: %s.\n-- If such rows should keep the plant instead:\nALTER TABLE %s DROP CONSTRAINT %I, ADD CONSTRAINT %I %s;', u.reasons, k.relation, k.name, k.name,
				regexp_replace(pg_get_constraintdef(c.oid), ' ON DELETE (CASCADE|SET NULL|SET DEFAULT)( \([^)]*\))?', '')) END AS remedy
	FROM plantstore.foreign_keys k JOIN pg_constraint c ON c.conrelid = k.relation AND c.conname = k.name,
		LATERAL (SELECT string_agg(r, '; ') FROM plantstore.unwatchable(k.relation) r) u (reasons)
	WHERE NOT plantstore.is_watched(k.relation, k.action)
	UNION ALL
	SELECT k.depth, 'problem', format('%s is watched, and a restore may not bring its rows back: %s', k.relation, u.reasons), format('SELECT plantstore.unwatch(%L);', k.relation)
	FROM (SELECT relation, min(depth) AS depth FROM plantstore.foreign_keys WHERE plantstore.is_watched(relation, action) GROUP BY relation) k,
		LATERAL (SELECT string_agg(r, '; ') FROM plantstore.unwatchable(k.relation) r) u (reasons)
	WHERE u.reasons IS NOT NULL) f
	ORDER BY depth DESC, message COLLATE "C"`

// watched is SQL for public.plants and the watched tables.
const watched = `(SELECT to_regclass('public.plants') AS relation UNION SELECT k.relation FROM plantstore.foreign_keys k WHERE plantstore.is_watched(k.relation, k.action))`

const restoreRights = `
	SELECT 'problem', format('role %I lacks rights to restore rows of %s', current_user, r.relation), g.grants
	FROM ` + watched + ` r, LATERAL (SELECT string_agg(m, E'\n') FROM plantstore.missing(r.relation) m) g (grants)
	WHERE g.grants IS NOT NULL ORDER BY r.relation::text COLLATE "C"`

// tgtype: 1 is FOR EACH ROW, 2 BEFORE, 4 INSERT, 8 DELETE, 16 UPDATE. A restore updates
// columns that were set to null or to their default.
const storeTriggers = `
	SELECT 'advice', format('trigger %I of %s %s', t.tgname, r.relation, concat_ws('; it ',
			CASE WHEN t.tgtype & 11 = 11 AND r.relation = to_regclass('public.plants') THEN 'fires before a deletion and can prevent it: the service then answers 409'
				WHEN t.tgtype & 8 > 0 THEN 'fires on DELETE: if it fails, the plant stays' END,
			CASE WHEN t.tgtype & 4 > 0 THEN 'fires on INSERT: a restore asks for --fire-triggers' END,
			CASE WHEN t.tgtype & u.updates > 0 THEN 'fires on UPDATE: a restore asks for --fire-triggers' END)),
		format(E'-- \\sf %s shows what it does. If it should not fire:\nALTER TABLE %s DISABLE TRIGGER %I;', t.tgfoid::regprocedure, r.relation, t.tgname)
	FROM ` + watched + ` r, LATERAL (SELECT coalesce(max(16), 0) FROM plantstore.foreign_keys k WHERE k.relation = r.relation AND k.action <> 'c') u (updates),
		pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
	WHERE t.tgrelid = r.relation AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & (12 | u.updates) > 0 AND p.pronamespace <> to_regnamespace('plantstore')
	ORDER BY r.relation <> to_regclass('public.plants'), r.relation::text COLLATE "C", t.tgname`
