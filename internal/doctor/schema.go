package doctor

const schema = `
	WITH applied AS (SELECT version_id AS version FROM plantstore.goose_db_version WHERE is_applied AND version_id > 0)
	SELECT 'problem', 'pending migrations: ' || string_agg(m.version::text, ', ' ORDER BY m.version), 'plantstore migrate up'
	FROM unnest(@versions::bigint[]) m (version) WHERE m.version NOT IN (SELECT version FROM applied) HAVING count(*) > 0
	UNION ALL
	SELECT 'problem', format('role %I lacks rights: USAGE ON SCHEMA public', current_user), format('GRANT USAGE ON SCHEMA public TO %I;', current_user)
	WHERE NOT has_schema_privilege(to_regnamespace('public'), 'USAGE')
	UNION ALL
	SELECT 'advice', format('a newer plantstore has migrated the database, to version %s', max(version)), '# Deploy the newer plantstore everywhere.'
	FROM applied WHERE version <> ALL (@versions::bigint[]) HAVING count(*) > 0`

const table = `
	SELECT 'problem', 'public.plants does not exist',
		coalesce((SELECT concat_ws(E'\n', CASE WHEN n.nspname <> 'public' THEN format('ALTER TABLE %s SET SCHEMA public;', c.oid::regclass) END,
				CASE WHEN c.relname <> 'plants' THEN format('ALTER TABLE public.%I RENAME TO plants;', c.relname) END)
			FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE t.tgname = 'record_deletion' AND t.tgfoid = to_regprocedure('plantstore.record_deletion()')),
			'# Restore the table from a backup. Then run this again: its triggers are gone with it.')
	WHERE to_regclass('public.plants') IS NULL
	UNION ALL
	SELECT 'problem', (SELECT string_agg(u, '; ') FROM plantstore.unfit() u), concat_ws(E'\n',
		(SELECT string_agg(format('ALTER TABLE %s NO INHERIT public.plants;', i.inhrelid::regclass), E'\n') FROM pg_inherits i WHERE i.inhparent = c.oid),
		(SELECT string_agg(format(CASE WHEN c.relispartition THEN 'ALTER TABLE %s DETACH PARTITION public.plants;' ELSE 'ALTER TABLE public.plants NO INHERIT %s;' END, i.inhparent::regclass), E'\n')
			FROM pg_inherits i WHERE i.inhrelid = c.oid),
		CASE WHEN c.relpersistence = 'u' THEN 'ALTER TABLE public.plants SET LOGGED; -- rewrites the table' END,
		CASE WHEN a.atttypid <> 'int8'::regtype THEN 'ALTER TABLE public.plants ALTER COLUMN id TYPE bigint USING id::bigint; -- rewrites the table' END,
		CASE WHEN p.conname IS NOT NULL AND p.conkey <> ARRAY[a.attnum] THEN format('ALTER TABLE public.plants DROP CONSTRAINT %I;', p.conname) END,
		CASE WHEN p.conkey IS DISTINCT FROM ARRAY[a.attnum] THEN 'ALTER TABLE public.plants ADD PRIMARY KEY (id);' END,
		CASE WHEN c.relrowsecurity THEN 'ALTER TABLE public.plants DISABLE ROW LEVEL SECURITY;' END,
		(SELECT string_agg(format('DROP RULE %I ON public.plants;', r.rulename), E'\n') FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.rulename <> '_RETURN'),
		(SELECT string_agg(format(E'-- Remove public.plants from the publication of subscription %I, then:\nALTER SUBSCRIPTION %I REFRESH PUBLICATION;', s.subname, s.subname), E'\n')
			FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid WHERE r.srrelid = c.oid))
	FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'id' AND NOT a.attisdropped LEFT JOIN pg_constraint p ON p.conrelid = c.oid AND p.contype = 'p'
	WHERE c.oid = to_regclass('public.plants') AND EXISTS (SELECT FROM plantstore.unfit())`

const ledgerTrigger = `
	SELECT 'problem', format('trigger %I of public.plants is %s: %s', w.name, CASE WHEN t.oid IS NULL THEN 'missing' ELSE 'disabled' END, w.effect),
		CASE WHEN t.oid IS NULL THEN w.make ELSE format('ALTER TABLE public.plants ENABLE TRIGGER %I;', w.name) END
	FROM (VALUES
		('record_deletion', 'plants leave without a record, and the service deletes nothing',
			'CREATE TRIGGER record_deletion AFTER DELETE ON public.plants REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION plantstore.record_deletion();'),
		('refuse_truncate', 'plants that leave by TRUNCATE leave no record',
			'CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON public.plants FOR EACH STATEMENT EXECUTE FUNCTION plantstore.refuse_truncate();')
	) w (name, effect, make) LEFT JOIN pg_trigger t ON t.tgrelid = to_regclass('public.plants') AND t.tgname = w.name
	WHERE to_regclass('public.plants') IS NOT NULL AND (t.oid IS NULL OR t.tgenabled NOT IN ('O', 'A'))`

// In the order of creation: a table must be logged before those that refer to it.
const unlogged = `
	SELECT 'problem', format('table %s is unlogged: a crash of the server empties it', oid::regclass), format('ALTER TABLE %s SET LOGGED;', oid::regclass)
	FROM pg_class WHERE relnamespace = to_regnamespace('plantstore') AND relkind = 'r' AND relpersistence = 'u' ORDER BY oid`

const replicaIdentity = `
	SELECT 'problem', format('publication %I publishes deletions of public.plants, which has no replica identity: PostgreSQL refuses to delete plants', p.pubname),
		'ALTER TABLE public.plants REPLICA IDENTITY DEFAULT;'
	FROM pg_class c JOIN pg_publication_tables pt ON pt.schemaname = 'public' AND pt.tablename = 'plants' JOIN pg_publication p ON p.pubname = pt.pubname AND p.pubdelete
	WHERE c.oid = to_regclass('public.plants')
		AND (c.relreplident = 'n' OR c.relreplident = 'i' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident))`

// The state of a sequence is in a table of its name; only query_to_xml can read that in a query.
const sequences = `
	SELECT t.level, format('the next id of %s is %s, and %s exists already: %s', t.name, s.last + 1, s.newest, t.effect),
		format('SELECT setval(%L, (SELECT max(id) FROM %s));', t.sequence, t.name)
	FROM (SELECT *, pg_get_serial_sequence(name, 'id') AS sequence FROM (VALUES
		('public.plants', 'advice', 'INSERTs of the store may fail'),
		('plantstore.deletions', 'problem', 'deletions fail'),
		('plantstore.cascaded', 'problem', 'deletions of plants with rows in watched tables fail'),
		('plantstore.goose_db_version', 'problem', 'migrations fail')
	) v (name, level, effect)) t, LATERAL (
		SELECT query_to_xml(format('SELECT last_value - 1 + is_called::int AS last, (SELECT max(id) FROM %s) AS newest FROM %s', t.name, t.sequence), false, true, '')
		WHERE has_sequence_privilege(t.sequence, 'SELECT') AND has_column_privilege(t.name, 'id', 'SELECT') OFFSET 0
	) q (x), LATERAL (SELECT (xpath('/row/last/text()', x))[1]::text::bigint, (xpath('/row/newest/text()', x))[1]::text::bigint) s (last, newest)
	WHERE s.last < s.newest`

const ledger = `
	SELECT 'advice', format('the ledger has %s, and its oldest entry is of %s: nothing purges it',
			pg_size_pretty(pg_total_relation_size('plantstore.deletions')), to_char(deleted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')),
		'plantstore deletions purge --older-than 365d # their plants cannot be restored any more'
	FROM (SELECT deleted_at FROM plantstore.deletions ORDER BY id LIMIT 1) oldest WHERE deleted_at < now() - make_interval(secs => @old)`

const tokens = `
	SELECT 'advice', format('the tokens of %s expire until %s', principal, to_char(max(expires_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI "UTC"')), format('plantstore token rotate %s', principal)
	FROM plantstore.tokens WHERE revoked_at IS NULL GROUP BY principal
	HAVING max(coalesce(expires_at, 'infinity')) BETWEEN now() AND now() + make_interval(secs => @soon) ORDER BY principal COLLATE "C"`

// The name of a principal that came with a JWT can hold any character.
const budgets = `
	SELECT 'advice', format('the deletion budget of %s is used up until %s', name, to_char(budget_resets_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI "UTC"')),
		'plantstore token budget --reset ' || CASE WHEN name ~ '^[A-Za-z0-9:._@-]+$' THEN name ELSE '''' || replace(name, '''', '''\''''') || '''' END
	FROM plantstore.principals WHERE budget_used >= budget AND budget_resets_at > now() ORDER BY name COLLATE "C"`
