package doctor

import "plantstore/internal/migrate"

// What has to be as it was made, so that each deletion is recorded.

// Only functions and triggers of ours, by name and parameters, are looked at. What a
// newer release made is not compared. 'A' is a trigger that fires on logical
// replicas, too, 'R' one that fires there only.
const shippedObjects = `
	WITH ledger AS (
		SELECT r.rolname AS owner FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
		WHERE c.oid = to_regclass('public.plant_deletions') AND to_regclass('public.plants') IS NOT NULL
	), objects AS (
		SELECT s.name, s.definition, s.parameters, l.owner, p.oid AS function, r.rolname AS function_owner, t.tgenabled,
			(SELECT f.tgname FROM pg_trigger f WHERE t.oid IS NULL AND f.tgrelid = to_regclass('public.plants') AND f.tgfoid = p.oid ORDER BY f.tgname LIMIT 1) AS alias,
			CASE WHEN @ahead::boolean AND t.oid IS NOT NULL THEN s.definition ELSE pg_get_triggerdef(t.oid) END AS made,
			s.remake || format(E'\nALTER FUNCTION public.%I(%s) OWNER TO %I;', s.name, s.parameters, l.owner) AS remake,
			@ahead::boolean OR p.prosrc = s.body AND p.prosecdef = s.as_owner AND p.provolatile::text = s.volatility AND NOT p.proisstrict
				AND s.settings = array_to_string(ARRAY(SELECT lower(c) FROM unnest(p.proconfig) c ORDER BY lower(c) COLLATE "C"), E'\n') AS same
		FROM unnest(@names::text[], @parameters::text[], @bodies::text[], @as_owner::boolean[], @volatilities::text[], @settings::text[], @triggers::text[], @remakes::text[])
			AS s (name, parameters, body, as_owner, volatility, settings, definition, remake) CROSS JOIN ledger l
			LEFT JOIN (pg_proc p JOIN pg_roles r ON r.oid = p.proowner)
				ON p.pronamespace = to_regnamespace('public') AND p.proname = s.name AND pg_get_function_identity_arguments(p.oid) = s.parameters
			LEFT JOIN pg_trigger t ON t.tgrelid = to_regclass('public.plants') AND t.tgname = s.name AND NOT t.tgisinternal
	)
	SELECT 'problem', format('function %s is missing', name), remake FROM objects WHERE definition = '' AND function IS NULL
	UNION ALL
	SELECT 'problem', format('function %s is not what the migrations made it', name), remake FROM objects WHERE definition = '' AND function IS NOT NULL AND NOT same
	UNION ALL
	SELECT 'problem', format('trigger %s is missing: plants leave without a record', name), remake FROM objects WHERE definition <> '' AND made IS NULL AND alias IS NULL
	UNION ALL
	SELECT 'problem', format('trigger %s is called %I', name, alias), format(E'ALTER TRIGGER %I ON public.plants RENAME TO %I;\n%s', alias, name, remake)
	FROM objects WHERE definition <> '' AND made IS NULL AND alias IS NOT NULL
	UNION ALL
	SELECT 'problem', format('trigger %I runs %s(), which has a trigger of its own: deletions fail, or are recorded twice', t.tgname, o.name), format('DROP TRIGGER %I ON public.plants;', t.tgname)
	FROM objects o JOIN pg_trigger t ON t.tgrelid = to_regclass('public.plants') AND t.tgfoid = o.function AND t.tgname NOT IN (o.name, coalesce(o.alias, o.name))
	WHERE NOT @ahead::boolean AND t.tgenabled <> 'D'
	UNION ALL
	SELECT 'problem', format('trigger %s or its function is not what the migrations made it', name), remake FROM objects WHERE definition <> '' AND made IS NOT NULL AND NOT coalesce(made = definition AND same, false)
	UNION ALL
	SELECT 'problem', format('trigger %s is disabled: plants leave without a record', name), format('ALTER TABLE public.plants ENABLE TRIGGER %I;', name)
	FROM objects WHERE made = definition AND same AND tgenabled IN ('D', 'R')
	UNION ALL
	SELECT 'warning', format('trigger %s fires on logical replicas, too, which get the record from here already', name), format('ALTER TABLE public.plants ENABLE TRIGGER %I;', name)
	FROM objects WHERE made = definition AND same AND tgenabled = 'A'
	UNION ALL
	SELECT 'problem', format('function %s belongs to %I, not to %I as the ledger does', name, function_owner, owner), format('ALTER FUNCTION public.%I(%s) OWNER TO %I;', name, parameters, owner)
	FROM objects WHERE same AND function_owner <> owner`

const ourTables = `
	WITH ours AS (
		SELECT oid, relname FROM pg_class
		WHERE relnamespace = to_regnamespace('public') AND relkind = 'r' AND relname = ANY (@tables::text[])
	)`

// A trigger or rule of somebody's on a table of ours can change or lose a record, and
// runs with the rights of the tables' owner. The doctor says more of the triggers.
const alteredTables = ourTables + `
	SELECT 'problem', format('row level security is on for public.%I', relname), format('ALTER TABLE public.%I DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;', relname)
	FROM pg_class WHERE relrowsecurity AND (oid IN (SELECT oid FROM ours) OR oid = to_regclass('public.goose_db_version'))
	UNION ALL
	SELECT 'problem', format('rule %I of public.%I changes what is recorded', r.rulename, o.relname), format('DROP RULE %I ON public.%I;', r.rulename, o.relname)
	FROM ours o JOIN pg_rewrite r ON r.ev_class = o.oid WHERE r.ev_enabled <> 'D'`

const changingTriggers = ourTables + `
	SELECT 'problem', format('trigger %I of public.%I can change what is recorded', t.tgname, o.relname), ''
	FROM ours o JOIN pg_trigger t ON t.tgrelid = o.oid WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND ` + beforeInsert

const beforeInsert = `t.tgtype & 6 = 6` // 2 is before, 4 is INSERT

// Those of others run with the rights of whoever deletes a plant, purges the ledger, issues a
// token or migrates. Somebody's right to make them may be gone since.
const triggersOfOurs = `
	SELECT CASE WHEN ` + migrate.OfOthers + ` OR c.relname = ANY (@tables::text[]) AND ` + beforeInsert + ` THEN 'problem' ELSE 'warning' END,
		format('trigger %I of public.%I %s', t.tgname, c.relname, CASE
			WHEN ` + migrate.OfOthers + ` THEN format('runs %s of %s with the rights of whoever writes there', f.oid::regprocedure, f.proowner::regrole)
			WHEN c.relname = ANY (@tables::text[]) AND ` + beforeInsert + ` THEN 'can change what is recorded'
			ELSE 'runs with each change of it, and can refuse it' END),
		format('DROP TRIGGER %I ON public.%I;', t.tgname, c.relname)
	FROM pg_class c JOIN pg_trigger t ON t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D' JOIN pg_proc f ON f.oid = t.tgfoid
	WHERE c.relnamespace = to_regnamespace('public') AND c.relkind = 'r' AND c.relname = ANY (` + allTables + `)`

const allTables = `@tables::text[] || ` + migrate.HistoryTables

// The server that took over from another by logical replication has the rows, and
// sequences that were not replicated. So has a database into which single tables were
// restored. Of a table that is a copy, each shape is a new one.
const ledgerSequence = `
	SELECT 'problem', format('the next number of the ledger is %s, and it has entries up to %s: nothing can be recorded', s.next, l.newest),
		format('SELECT setval(''public.plant_deletions_id_seq'', %s);', l.newest)
	FROM (SELECT last_value + is_called::int AS next FROM public.plant_deletions_id_seq) s, (SELECT max(id) AS newest FROM public.plant_deletions) l
	WHERE s.next <= l.newest`

const shapesSequence = `
	SELECT 'problem', format('the next number of public.plant_shapes is %s, and it has some up to %s: %snothing can be recorded', s.next, l.newest,
			CASE WHEN EXISTS (SELECT FROM public.plant_shapes k WHERE k.relation = to_regclass('public.plants')::oid) THEN 'once the columns of plants change, ' END),
		format('SELECT setval(''public.plant_shapes_id_seq'', %s);', l.newest)
	FROM (SELECT last_value + is_called::int AS next FROM public.plant_shapes_id_seq) s, (SELECT max(id) AS newest FROM public.plant_shapes) l
	WHERE s.next <= l.newest`
