package doctor

import "plantstore/internal/postgres"

// What of the table itself, and of what the store has put on it, can hinder.

const tableGone = `
	SELECT 'problem', 'public.plants is gone: nothing can be deleted' || CASE WHEN t.tgrelid IS NULL THEN '' ELSE format(' (%s has its triggers)', t.tgrelid::regclass) END,
		CASE WHEN t.tgrelid IS NULL THEN 'Bring the table back, then run this again: its triggers are gone with it.'
			ELSE concat_ws(E'\n', CASE WHEN n.nspname <> 'public' THEN format('ALTER TABLE %s SET SCHEMA public;', t.tgrelid::regclass) END,
				CASE WHEN c.relname <> 'plants' THEN format('ALTER TABLE public.%I RENAME TO plants;', c.relname) END) END
	FROM (VALUES ('plantstore_record_deletion')) ours (name)
	LEFT JOIN (pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace) ON t.tgname = ours.name
	WHERE to_regclass('public.plants') IS NULL
		AND (to_regclass('public.plant_deletions') IS NOT NULL OR cardinality(@work::bigint[]) > 0 AND NOT 1 = ANY (@work::bigint[]))`

// Before the first migration a plants elsewhere may be the one that is meant.
// Afterwards it may be the one that the store's own programs work with. A session's
// own search path is pinned: its reset value is what it would be.
const plantsElsewhere = `
	WITH elsewhere AS (
		SELECT c.oid, n.nspname, c.relname = 'plants' AS same FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE lower(c.relname) = 'plants' AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname !~ '^pg_|^information_schema$'
			AND NOT (c.relname = 'plants' AND n.nspname = 'public')
	), settings AS (
		SELECT substr(c, strpos(c, '=') + 1) AS path, ` + alterSetting + ` AS who
		FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole, unnest(s.setconfig) c
		WHERE c LIKE 'search_path=%' AND s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
			AND (s.setrole = 0 OR r.rolname IN (@app::text, @owner::text))
	), paths AS (
		SELECT path, who || ' RESET search_path;' AS remedy FROM settings
		UNION ALL
		SELECT reset_val, 'Take search_path out of the options in the URL, or of postgresql.conf.' FROM pg_settings
		WHERE name = 'search_path' AND reset_val NOT IN (SELECT path FROM settings)
	), schemas AS (
		SELECT p.path, p.remedy, u.n, CASE WHEN btrim(u.item) LIKE '"%"' THEN replace(btrim(btrim(u.item), '"'), '""', '"') ELSE lower(btrim(u.item)) END AS name
		FROM paths p, unnest(string_to_array(p.path, ',')) WITH ORDINALITY u (item, n)
	), found AS (
		SELECT DISTINCT ON (e.oid) e.oid, e.same, s.path, s.remedy FROM elsewhere e
		LEFT JOIN schemas s ON e.same AND e.nspname IN (s.name, CASE s.name WHEN '$user' THEN @app::text END, CASE s.name WHEN '$user' THEN @owner::text END)
			AND s.n < coalesce((SELECT min(p.n) FROM schemas p WHERE p.path = s.path AND p.name = 'public'), s.n + 1)
		ORDER BY e.oid, s.path
	)
	SELECT CASE WHEN path IS NULL THEN 'warning' ELSE 'problem' END,
		CASE WHEN path IS NULL THEN format('public.plants does not exist and would be made, and there is %s', oid::regclass)
			ELSE format('public.plants does not exist and would be made, but plants means %s here (search_path is %s)', oid::regclass, path) END,
		format(E'-- If that is the table to delete from. If not, make public.plants before.\nALTER TABLE %s %s;', oid::regclass, CASE WHEN same THEN 'SET SCHEMA public' ELSE 'RENAME TO plants' END)
	FROM found WHERE to_regclass('public.plants') IS NULL AND to_regclass('public.plant_deletions') IS NULL
		AND (cardinality(@work::bigint[]) = 0 OR 1 = ANY (@work::bigint[]))
	UNION ALL
	SELECT 'warning', format('the service deletes from public.plants, but where no schema is named plants means %s (search_path is %s)', oid::regclass, path), remedy
	FROM found WHERE to_regclass('public.plants') IS NOT NULL AND path IS NOT NULL`

const unfitTable = `
	WITH plants AS (
		SELECT c.oid, c.relkind, c.relpersistence, a.attnum, a.atttypid, a.attgenerated,
			(SELECT conname FROM pg_constraint WHERE conrelid = c.oid AND contype = 'p') AS key,
			EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum) AS keyed
		FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'id' AND NOT a.attisdropped
		WHERE c.oid = to_regclass('public.plants')
	)
	SELECT 'problem', format('public.plants is %s, not an ordinary table', CASE relkind WHEN 'p' THEN 'a partitioned table' WHEN 'v' THEN 'a view'
			WHEN 'm' THEN 'a materialized view' WHEN 'f' THEN 'a foreign table' ELSE 'something else' END),
		'Give the name to an ordinary table: only of such a one each deletion can be recorded.'
	FROM plants WHERE relkind <> 'r'
	UNION ALL
	SELECT 'problem', 'public.plants is unlogged: a crash of the server empties it', E'-- Writes the table anew, and keeps everybody out meanwhile.\nALTER TABLE public.plants SET LOGGED;'
	FROM plants WHERE relpersistence = 'u'
	UNION ALL
	SELECT 'warning', 'column "id" of public.plants computes itself: a plant that was deleted can''t be restored', 'ALTER TABLE public.plants ALTER COLUMN id DROP EXPRESSION;'
	FROM plants WHERE relkind = 'r' AND atttypid = 'int8'::regtype AND attgenerated <> ''
	UNION ALL
	SELECT 'problem', 'the primary key of public.plants is not (id)', E'-- Keeps everybody out while it builds the index.\nALTER TABLE public.plants '
		|| CASE WHEN key IS NULL THEN '' ELSE format('DROP CONSTRAINT %I, ', key) END || 'ADD PRIMARY KEY (id);'
	FROM plants WHERE relkind = 'r' AND attnum IS NOT NULL AND NOT keyed`

// Without it no statement of ours works.
const unfitID = `
	WITH plants AS (
		SELECT a.attnum, a.atttypid, a.atttypmod
		FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'id' AND NOT a.attisdropped
		WHERE c.oid = to_regclass('public.plants') AND c.relkind = 'r'
	)
	SELECT 'problem', 'public.plants has no column "id"', 'Give it one, of type bigint, and make it the primary key.'
	FROM plants WHERE attnum IS NULL
	UNION ALL
	SELECT 'problem', format('column "id" of public.plants is of type %s, not bigint', format_type(atttypid, atttypmod)),
		CASE WHEN t.typcategory IN ('N', 'S') THEN E'-- Writes the table anew, and keeps everybody out meanwhile.\nALTER TABLE public.plants ALTER COLUMN id TYPE bigint USING id::bigint;'
			ELSE 'Plants that are known by something else than a number can''t be deleted here. Give them numbers in a column "id" of type bigint, and make it the primary key.' END
	FROM plants JOIN pg_type t ON t.oid = atttypid WHERE atttypid <> 'int8'::regtype`

// A child has columns that the table's record does not. What leaves through a
// parent fires no statement trigger of the child.
const relatives = `
	SELECT 'problem', format('%s inherits from public.plants: its rows would leave without a full record', i.inhrelid::regclass),
		format('ALTER TABLE %s NO INHERIT public.plants;', i.inhrelid::regclass)
	FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent WHERE c.oid = to_regclass('public.plants') AND c.relkind = 'r'
	UNION ALL
	SELECT 'problem', format('public.plants is a child of %s: plants deleted through it leave without a record', i.inhparent::regclass),
		CASE WHEN c.relispartition THEN format('ALTER TABLE %s DETACH PARTITION public.plants;', i.inhparent::regclass)
			ELSE format('ALTER TABLE public.plants NO INHERIT %s;', i.inhparent::regclass) END
	FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE c.oid = to_regclass('public.plants')`

// Whatever the policies are: where they apply, a plant that is not seen can't be
// told from one that is not there.
const rowSecurity = `
	SELECT 'problem', format('row level security of public.plants applies to %s, and can hide plants', string_agg(roles.name, ' and ' ORDER BY roles.n)),
		E'-- To keep it for others:\n-- ALTER ROLE ' || string_agg(roles.name || ' BYPASSRLS;', ' ALTER ROLE ' ORDER BY roles.n) || E'\nALTER TABLE public.plants DISABLE ROW LEVEL SECURITY;'
	FROM pg_class c, (VALUES (1, @app::text), (2, @owner::text)) roles (n, name) LEFT JOIN pg_roles r ON r.rolname = roles.name
	WHERE c.oid = to_regclass('public.plants') AND c.relrowsecurity AND roles.name <> ''
		AND NOT coalesce(r.rolsuper OR r.rolbypassrls OR pg_has_role(r.oid, c.relowner, 'USAGE') AND NOT c.relforcerowsecurity, false)
	HAVING count(*) > 0`

// ev_type 4 is DELETE. Rules on INSERT don't matter: plants are restored with COPY.
const rules = `
	SELECT CASE WHEN r.is_instead AND r.ev_qual::text = '<>' THEN 'problem' ELSE 'warning' END,
		CASE WHEN NOT r.is_instead THEN format('rule %I of public.plants does something else along with each deletion', r.rulename)
			WHEN r.ev_qual::text = '<>' THEN format('rule %I of public.plants keeps every plant from being deleted', r.rulename)
			ELSE format('rule %I of public.plants may keep plants from being deleted, which clients are told as 40901', r.rulename) END,
		format('ALTER TABLE public.plants DISABLE RULE %I;', r.rulename)
	FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
	WHERE c.oid = to_regclass('public.plants') AND c.relkind = 'r' AND r.ev_type = '4' AND r.ev_enabled IN ('O', 'A')`

// A trigger's function runs with the rights of whoever deletes, unless it is SECURITY
// DEFINER. What it does can't be known, only what its text names. tgtype: 2 is before,
// 8 DELETE, 16 UPDATE. So do triggers after what a foreign key does further down; those before
// it, and since PostgreSQL 18 all of them, have the rights of who owns the table there.
const foreignTriggers = `
	WITH RECURSIVE reached (relation, event, columns) AS (
		SELECT to_regclass('public.plants')::oid, 8, NULL::int2[]
		UNION SELECT c.conrelid, CASE c.confdeltype WHEN 'c' THEN 8 ELSE 16 END, coalesce(c.confdelsetcols, c.conkey) FROM reached r JOIN pg_constraint c ON c.confrelid = r.relation
		WHERE r.event = 8 AND c.contype = 'f' AND c.confdeltype IN ('c', 'n', 'd') AND current_setting('server_version_num')::int < 180000
	), theirs AS (
		SELECT t.tgname, t.tgrelid::regclass AS relation, p.oid, p.prosrc, n.nspname, o.rolname, app.oid AS app,
			NOT (o.rolsuper OR o.rolname = @owner::text) AS foreign_code, l.lanname IN ('plpgsql', 'sql') AS readable
		FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
			JOIN pg_roles o ON o.oid = p.proowner JOIN pg_language l ON l.oid = p.prolang LEFT JOIN pg_roles app ON app.rolname = @app::text
		WHERE NOT t.tgisinternal AND t.tgparentid = 0 AND t.tgenabled IN ('O', 'A') AND (t.tgrelid = to_regclass('public.plants') OR t.tgtype & 2 = 0)
			AND EXISTS (SELECT FROM reached r WHERE r.relation = t.tgrelid AND t.tgtype & r.event <> 0
				AND (r.event = 8 OR cardinality(t.tgattr::int2[]) = 0 OR t.tgattr::int2[] && r.columns))
			AND NOT p.prosecdef AND NOT (n.nspname = 'public' AND p.proname = ANY (@names::text[]))
	), judged AS (
		SELECT *, (
			SELECT string_agg(c.oid::regclass::text, ', ' ORDER BY c.oid::regclass::text) FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace
			WHERE readable AND c.relkind IN ('r', 'p', 'v', 'f') AND s.nspname !~ '^pg_|^information_schema$' AND c.oid <> to_regclass('public.plants')
				AND prosrc ~* ('\m' || regexp_replace(c.relname, '(\W)', '\\\1', 'g') || '\M')
				AND NOT (has_schema_privilege(app, s.oid, 'USAGE')
					AND (has_table_privilege(app, c.oid, 'SELECT, INSERT, UPDATE, DELETE') OR has_any_column_privilege(app, c.oid, 'SELECT, INSERT, UPDATE')))
		) AS closed FROM theirs
	)
	SELECT 'warning', format('trigger %I of %s runs %s', tgname, relation, oid::regprocedure) || CASE WHEN foreign_code
			THEN format(', which belongs to %I, with the rights of %s when a plant is deleted', rolname, @app::text) ELSE '' END
			|| CASE WHEN closed IS NULL THEN '' ELSE format('; it names %s, where %s may do nothing: deletions may fail', closed, @app::text) END,
		format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, %s%s, pg_temp;', oid::regprocedure, quote_ident(nspname), CASE nspname WHEN 'public' THEN '' ELSE ', public' END)
	FROM judged WHERE foreign_code OR closed IS NOT NULL`

// restoredCode is what a restore by the owner refuses to run, as others could act with its rights.
func restoredCode() string {
	return `
	SELECT 'warning', format('%s calls %s for %s when a plant is restored: restores are refused until somebody accepts that', c.runs, c.function,
			array_to_string(c.roles[:10], ', ') || CASE WHEN cardinality(c.roles) > 10 THEN format(', and %s more', cardinality(c.roles) - 10) ELSE '' END),
		coalesce((SELECT format(E'-- Once you have read it, restore with --run-triggers, or have the function SET search_path to schemas where nobody else creates. To have it run never:\nALTER TABLE public.plants DISABLE TRIGGER %I;', t.tgname) FROM pg_trigger t WHERE t.oid = c.trigger),
			'Once you have read it, restore with --run-triggers, or have the function SET search_path to schemas where nobody else creates.')
	FROM (` + postgres.StrangersCode(`@owner::name`, `ARRAY(SELECT CASE btrim(i) WHEN '"$user"' THEN @owner::text ELSE replace(btrim(i, ' "'), '""', '"') END
		FROM pg_settings s, unnest(string_to_array(s.reset_val, ',')) i WHERE s.name = 'search_path')`) + `) c (runs, function, roles, trigger)`
}

// A function that returns nothing but OLD keeps no row. One that inserts after the fact
// puts plants back, maybe not before the commit: the service does not see that. tgtype:
// 1 is for each row, 2 is before, 8 is DELETE.
const keepingTriggers = `
	SELECT 'warning', format('trigger %I of public.plants may keep plants from being deleted, which clients are told as 40901: whether its function %s does can''t be known', t.tgname, p.oid::regprocedure),
		format(E'-- Once you have read it. To delete whatever it says:\nALTER TABLE public.plants DISABLE TRIGGER %I;', t.tgname)
	FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_language l ON l.oid = p.prolang
	WHERE t.tgrelid = to_regclass('public.plants') AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND t.tgtype & 11 = 11
		AND NOT (l.lanname = 'plpgsql' AND p.prosrc !~* '\mreturn\M(?!\s+old\s*;)')
	UNION ALL
	SELECT 'warning', format('trigger %I of public.plants may put plants back that were deleted, which clients are told as 204: its function %s inserts into plants', t.tgname, p.oid::regprocedure),
		format(E'-- Once you have read it. To have them gone:\nALTER TABLE public.plants DISABLE TRIGGER %I;', t.tgname)
	FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_language l ON l.oid = p.prolang
	WHERE t.tgrelid = to_regclass('public.plants') AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND t.tgtype & 10 = 8 AND l.lanname IN ('plpgsql', 'sql')
		AND p.prosrc ~* '\minsert\s+into\s+("?public"?\s*\.\s*)?"?plants"?(?![\w".])'`

// From a table whose deletions are published PostgreSQL refuses them unless the replica
// identity is there and published, and is all that a filter looks at. A primary key that
// is DEFERRABLE is none. What a filter looks at is in its stored tree; since 18 generated
// columns can be left out.
const replicaIdentity = `
	WITH plants AS (
		SELECT c.oid, c.relreplident AS kind, (c.relreplident = 'f' OR k.attnums IS NOT NULL) AS identified, k.attnums AS key, p.attnums AS primary_key
		FROM pg_class c
		LEFT JOIN LATERAL (SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] AS attnums FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate) p ON true
		LEFT JOIN LATERAL (SELECT p.attnums WHERE c.relreplident = 'd'
			UNION ALL SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] FROM pg_index i WHERE c.relreplident = 'i' AND i.indrelid = c.oid AND i.indisreplident) k ON true
		WHERE c.oid = to_regclass('public.plants')
	), published AS (
		SELECT c.*, p.pubname, r.prattrs::int2[] AS list,
			r.prattrs IS NOT NULL AND NOT coalesce(c.key <@ r.prattrs::int2[], false) AS unlisted,
			c.kind <> 'f' AND EXISTS (SELECT FROM regexp_matches(r.prqual::text, ':varattno ([0-9]+)', 'g') m WHERE m[1]::int2 <> ALL (c.key)) AS misfiltered,
			EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped AND (c.kind = 'f' OR a.attnum = ANY (c.key))
				AND (a.attgenerated = 'v' OR a.attgenerated = 's' AND r.prattrs IS NULL AND to_jsonb(p) ->> 'pubgencols' = 'n')) AS ungenerated,
			(SELECT string_agg(format('%I', a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute a
				WHERE a.attrelid = c.oid AND a.attnum = ANY (r.prattrs::int2[] || CASE c.kind WHEN 'f' THEN c.primary_key ELSE c.key END)) AS columns,
			CASE WHEN r.prqual IS NULL THEN '' ELSE format(' WHERE (%s)', pg_get_expr(r.prqual, r.prrelid)) END AS filter
		FROM plants c JOIN pg_publication_tables t ON t.schemaname = 'public' AND t.tablename = 'plants' JOIN pg_publication p ON p.pubname = t.pubname AND p.pubdelete
		LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
	)
	SELECT 'problem', format('publication %I publishes deletions of public.plants, which has no replica identity: PostgreSQL refuses them', min(p.pubname)),
		CASE WHEN bool_and(p.primary_key IS NULL) THEN E'-- Its primary key is DEFERRABLE, and so is no identity.\nALTER TABLE public.plants REPLICA IDENTITY FULL;' ELSE 'ALTER TABLE public.plants REPLICA IDENTITY DEFAULT;' END
	FROM published p WHERE NOT p.identified HAVING count(*) > 0
	UNION ALL
	SELECT 'problem', format('publication %I publishes deletions of public.plants, and not all columns of its replica identity: PostgreSQL refuses them', p.pubname),
		concat_ws(E'\n', CASE p.kind WHEN 'f' THEN 'ALTER TABLE public.plants REPLICA IDENTITY DEFAULT;' END,
			format('ALTER PUBLICATION %I DROP TABLE public.plants;', p.pubname), format('ALTER PUBLICATION %I ADD TABLE public.plants (%s)%s;', p.pubname, p.columns, p.filter))
	FROM published p WHERE p.identified AND p.unlisted
	UNION ALL
	SELECT 'problem', format('publication %I publishes deletions of public.plants by a filter on columns that are not of its replica identity: PostgreSQL refuses them', p.pubname),
		CASE WHEN p.list IS NULL THEN 'ALTER TABLE public.plants REPLICA IDENTITY FULL;'
			ELSE format(E'-- Without the filter.\nALTER PUBLICATION %1$I DROP TABLE public.plants;\nALTER PUBLICATION %1$I ADD TABLE public.plants (%2$s);', p.pubname, p.columns) END
	FROM published p WHERE p.identified AND p.misfiltered
	UNION ALL
	SELECT 'problem', format('publication %I publishes deletions of public.plants, and not the generated columns of its replica identity: PostgreSQL refuses them', p.pubname),
		CASE p.kind WHEN 'f' THEN 'ALTER TABLE public.plants REPLICA IDENTITY DEFAULT;' ELSE format('ALTER PUBLICATION %I SET (publish_generated_columns = stored);', p.pubname) END
	FROM published p WHERE p.identified AND NOT p.unlisted AND p.ungenerated`

// In a session with this setting our triggers do not fire. The service's own
// session has it from somewhere else than these settings if nothing else says so.
const replicationRole = `
	WITH settings AS (
		SELECT s.setrole = 0 OR r.rolname IN (@app::text, @owner::text) AS ours,
			CASE WHEN s.setrole <> 0 THEN format('for role %I', r.rolname) WHEN s.setdatabase = 0 THEN 'for all roles' ELSE 'in this database' END AS who,
			` + alterSetting + ` || ' RESET session_replication_role;' AS remedy
		FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole, unnest(s.setconfig) c
		WHERE s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())) AND lower(c) = 'session_replication_role=replica'
		UNION ALL
		SELECT true, 'on this server', E'ALTER SYSTEM RESET session_replication_role;\nSELECT pg_reload_conf();'
		FROM pg_settings WHERE name = 'session_replication_role' AND setting = 'replica' AND source = 'configuration file'
	)
	SELECT CASE WHEN ours THEN 'problem' ELSE 'warning' END, format('session_replication_role is replica %s: plants leave without a record', who), remedy FROM settings
	UNION ALL
	SELECT 'problem', 'session_replication_role is replica in this session: plants leave without a record', 'Take session_replication_role out of the options in the URL.'
	WHERE current_setting('session_replication_role') = 'replica' AND NOT EXISTS (SELECT FROM settings WHERE ours)`

// The server counts transactions from the oldest that some database still has rows of, up
// to 2^31, and hands out no ids from 3 million before that on. It warns 40 million before.
const transactionIDs = `
	SELECT CASE WHEN n.missing <= 0 THEN 'problem' ELSE 'warning' END,
		format(CASE WHEN n.missing <= 0 THEN 'no transaction ids are left until database %I is vacuumed: nothing can be deleted'
			ELSE 'in %2$s transactions none is possible any more until database %1$I is vacuumed: nothing can be deleted then' END, d.datname, n.missing),
		format(E'-- As a superuser in database %I, once its old transactions, prepared ones and replication slots have ended.\nVACUUM;', d.datname)
	FROM pg_database d, LATERAL (SELECT 2147483647 - 3000000 - age(d.datfrozenxid)) n (missing)
	WHERE n.missing < 37000000`

// What a subscription deletes fires no trigger for statements, not even one that is
// ENABLE ALWAYS. Where the ledger comes with the plants, it has the record.
const subscriptions = `
	SELECT 'warning', format('subscription %I changes public.plants: what is deleted where it comes from leaves here without a record', s.subname),
		'Delete plants through this service only, and publish no deletions there (WITH (publish = ''insert, update'')), or have the service where the plants come from.'
	FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid
	WHERE r.srrelid = to_regclass('public.plants') AND NOT EXISTS (SELECT FROM pg_subscription_rel l WHERE l.srrelid = to_regclass('public.plant_deletions'))`
