package doctor

// What the tables of ours have to be. Most of it is compared only with a database that has
// the migrations of this release, and no more.

const missingTables = `
	SELECT 'problem', format('public.%I is missing', s.name),
		format(E'-- What it held is where the table is now, or in a backup. Without that:\n%s\nALTER TABLE public.%I OWNER TO %I;', s.remake, s.name,
			coalesce((SELECT r.rolname FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
				WHERE c.relnamespace = to_regnamespace('public') AND c.relkind = 'r' AND c.relname = ANY (@tables::text[]) LIMIT 1), @owner::text))
	FROM unnest(@tables::text[], @table_remakes::text[]) s (name, remake)
	WHERE @current::boolean AND to_regclass(format('public.%I', s.name)) IS NULL`

// What the doctor says of these is among the changed tables.
const looseLedger = `
	SELECT 'problem', format('public.%I is unlogged: a crash of the server empties it', c.relname), ''
	FROM pg_class c WHERE c.oid IN (to_regclass('public.plant_deletions'), to_regclass('public.plant_shapes')) AND c.relpersistence = 'u'
	UNION ALL
	SELECT 'problem', 'constraint plant_deletions_once of public.plant_deletions is missing', ''
	WHERE @current::boolean AND to_regclass('public.plant_deletions') IS NOT NULL AND NOT EXISTS (SELECT FROM pg_constraint c
		WHERE c.conrelid = to_regclass('public.plant_deletions') AND c.conname = 'plant_deletions_once' AND c.contype = 'u')`

// The columns and constraints that the migrations make, as PostgreSQL writes them. A
// test compares the two.
const (
	shippedColumns = `(VALUES
		('plant_shapes', 'id bigint NOT NULL GENERATED ALWAYS AS IDENTITY, attributes text[] NOT NULL, names text[] NOT NULL, types text[] NOT NULL, generated boolean[] NOT NULL, has_virtual boolean NOT NULL DEFAULT false, relation oid, attnums smallint[]'),
		('plant_deletions', 'id bigint NOT NULL GENERATED ALWAYS AS IDENTITY, plant_id bigint NOT NULL, shape bigint, plant text, deleted_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(), deleted_by text NOT NULL, session_role text NOT NULL DEFAULT SESSION_USER, request_id text, idempotency_key text, turn integer NOT NULL DEFAULT 0, restored_at timestamp with time zone, restored_by text'),
		('api_principals', 'name text NOT NULL, created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()'),
		('api_tokens', 'id uuid NOT NULL DEFAULT gen_random_uuid(), principal text NOT NULL, digest bytea NOT NULL, scopes text[] NOT NULL, created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(), expires_at timestamp with time zone, revoked_at timestamp with time zone, last_used_at timestamp with time zone'),
		('plantstore_budgets', $$principal text NOT NULL, most bigint, period interval, default_most bigint, default_period interval, lifted_until timestamp with time zone NOT NULL DEFAULT '-infinity'::timestamp with time zone, used bigint NOT NULL DEFAULT 0, began timestamp with time zone NOT NULL DEFAULT '-infinity'::timestamp with time zone, parts bigint[] NOT NULL DEFAULT '{}'::bigint[], ends timestamp with time zone[] NOT NULL DEFAULT '{}'::timestamp with time zone[]$$))`
	shippedConstraints = `(VALUES
		('plant_shapes', 'plant_shapes_pkey', 'PRIMARY KEY (id)'),
		('plant_deletions', 'plant_deletions_pkey', 'PRIMARY KEY (id)'),
		('plant_deletions', 'plant_deletions_once', 'UNIQUE (plant_id, deleted_by, idempotency_key, turn)'),
		('plant_deletions', 'plant_deletions_refused', 'CHECK ((((plant IS NULL) = (shape IS NULL)) AND ((plant IS NOT NULL) OR ((idempotency_key IS NOT NULL) AND (restored_at IS NULL)))))'),
		('plant_deletions', 'plant_deletions_restored', 'CHECK (((restored_at IS NULL) = (restored_by IS NULL)))'),
		('api_principals', 'api_principals_pkey', 'PRIMARY KEY (name)'),
		('api_principals', 'api_principals_name_check', $$CHECK ((name ~ '^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$'::text))$$),
		('api_tokens', 'api_tokens_pkey', 'PRIMARY KEY (id)'),
		('api_tokens', 'api_tokens_digest_key', 'UNIQUE (digest)'),
		('api_tokens', 'api_tokens_digest_check', 'CHECK ((octet_length(digest) = 32))'),
		('api_tokens', 'api_tokens_finite', 'CHECK ((isfinite(expires_at) AND isfinite(revoked_at)))'),
		('api_tokens', 'api_tokens_principal_fkey', 'FOREIGN KEY (principal) REFERENCES public.api_principals(name)'),
		('plantstore_budgets', 'plantstore_budgets_pkey', 'PRIMARY KEY (principal)'),
		('plantstore_budgets', 'plantstore_budgets_most_check', 'CHECK ((most > 0))'),
		('plantstore_budgets', 'plantstore_budgets_period_check', $$CHECK ((period > '00:00:00'::interval))$$),
		('plantstore_budgets', 'plantstore_budgets_whole', 'CHECK (((most IS NULL) = (period IS NULL)))'))`
)

// todaysParts are the same of the database, each column and constraint by itself. A column
// that was renamed keeps its number.
const todaysParts = `
	ours AS (
		SELECT c.oid, c.relname::text AS tab, c.relpersistence FROM pg_class c
		WHERE c.relnamespace = to_regnamespace('public') AND c.relkind = 'r' AND c.relname = ANY (@tables::text[])
	), columns AS (
		SELECT o.tab, a.attnum AS n, a.attname::text AS name, format_type(a.atttypid, a.atttypmod) AS type, CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END AS needed,
			CASE WHEN a.attidentity <> '' THEN ' GENERATED ALWAYS AS IDENTITY' ELSE coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '') END AS value
		FROM ours o JOIN pg_attribute a ON a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped LEFT JOIN pg_attrdef d ON d.adrelid = o.oid AND d.adnum = a.attnum
	), constraints AS (
		SELECT o.tab, c.conname::text AS name, pg_get_constraintdef(c.oid) AS definition
		FROM ours o JOIN pg_constraint c ON c.conrelid = o.oid AND c.contype IN ('p', 'u', 'x', 'c', 'f')
	)`

// A column or constraint of somebody's can refuse a record. (A later PostgreSQL may write
// one of ours in another way. So readiness does not ask this.)
const changedTables = `
	WITH ` + todaysParts + `, made_columns AS (
		SELECT s.tab, u.n, d[1] AS name, d[2] AS type, coalesce(d[3], '') AS needed, coalesce(d[4], '') AS value
		FROM ` + shippedColumns + ` s (tab, columns), regexp_split_to_table(s.columns, ', ') WITH ORDINALITY u (definition, n),
			regexp_match(u.definition, '^([a-z_]+) ([]a-z[ ]*[]a-z])( NOT NULL)?( .+)?$') d
		WHERE s.tab IN (SELECT tab FROM ours)
	), made_constraints AS (
		SELECT s.tab, s.name, s.definition FROM ` + shippedConstraints + ` s (tab, name, definition) WHERE s.tab IN (SELECT tab FROM ours)
	), foreign_columns AS (
		SELECT c.* FROM columns c WHERE NOT EXISTS (SELECT FROM made_columns m WHERE m.tab = c.tab AND m.name = c.name)
	), foreign_constraints AS (
		SELECT c.* FROM constraints c WHERE NOT EXISTS (SELECT FROM made_constraints m WHERE m.tab = c.tab AND m.name = c.name)
	), missing_columns AS (
		SELECT m.*, f.name AS alias FROM made_columns m LEFT JOIN foreign_columns f ON f.tab = m.tab AND f.n = m.n AND f.type = m.type
		WHERE NOT EXISTS (SELECT FROM columns c WHERE c.tab = m.tab AND c.name = m.name)
	), missing_constraints AS (
		SELECT m.*, (SELECT min(f.name) FROM foreign_constraints f WHERE f.tab = m.tab AND f.definition = m.definition) AS alias FROM made_constraints m
		WHERE NOT EXISTS (SELECT FROM constraints c WHERE c.tab = m.tab AND c.name = m.name)
	), found AS (
		SELECT 1 AS n, format('public.%I is unlogged: a crash of the server empties it', tab) AS message,
			format(E'-- Writes the table anew, and keeps everybody out meanwhile.\nALTER TABLE public.%I SET LOGGED;', tab) AS remedy
		FROM ours WHERE relpersistence = 'u'
		UNION ALL
		SELECT 2, format(CASE WHEN alias IS NULL THEN 'column %I of public.%I is missing' ELSE 'column %I of public.%I is called %I' END, name, tab, alias),
			CASE WHEN alias IS NULL THEN format(E'-- What it held is in a backup only.\nALTER TABLE public.%I ADD COLUMN %I %s%s%s;', tab, name, type, value, needed)
				ELSE format(E'-- If it is that one that was renamed.\nALTER TABLE public.%I RENAME COLUMN %I TO %I;', tab, alias, name) END
		FROM missing_columns
		UNION ALL
		SELECT 3, format('column %I of public.%I is %s%s%s, not %s%s%s', m.name, m.tab, c.type, c.needed, c.value, m.type, m.needed, m.value),
			format(E'-- Keeps everybody out while it looks at all rows.\nALTER TABLE public.%I %s;', m.tab, concat_ws(', ',
				CASE WHEN c.value <> m.value AND c.value LIKE ' DEFAULT%' THEN format('ALTER COLUMN %I DROP DEFAULT', m.name) END,
				CASE WHEN c.value <> m.value AND c.value LIKE ' GENERATED%' THEN format('ALTER COLUMN %I DROP IDENTITY', m.name) END,
				CASE WHEN c.type <> m.type THEN format('ALTER COLUMN %1$I TYPE %2$s USING %1$I::%2$s', m.name, m.type) END,
				CASE WHEN c.needed <> m.needed THEN format('ALTER COLUMN %I %s', m.name, CASE m.needed WHEN '' THEN 'DROP NOT NULL' ELSE 'SET NOT NULL' END) END,
				CASE WHEN c.value <> m.value AND m.value <> '' THEN format('ALTER COLUMN %I %s%s', m.name, CASE WHEN m.value LIKE ' DEFAULT%' THEN 'SET' ELSE 'ADD' END, m.value) END))
		FROM made_columns m JOIN columns c ON c.tab = m.tab AND c.name = m.name WHERE (c.type, c.needed, c.value) <> (m.type, m.needed, m.value)
		UNION ALL
		SELECT 4, format('column %I of public.%I is not ours, and lacks a default: nothing can be recorded there', f.name, f.tab),
			format('ALTER TABLE public.%I ALTER COLUMN %I DROP NOT NULL;', f.tab, f.name)
		FROM foreign_columns f WHERE f.needed <> '' AND f.value = '' AND NOT EXISTS (SELECT FROM missing_columns m WHERE m.tab = f.tab AND m.alias = f.name)
		UNION ALL
		SELECT 5, format(CASE WHEN alias IS NULL THEN 'constraint %I of public.%I is missing' ELSE 'constraint %I of public.%I is called %I' END, name, tab, alias),
			CASE WHEN alias IS NULL THEN format(E'-- Keeps everybody out while it looks at all rows.\nALTER TABLE public.%I ADD CONSTRAINT %I %s;', tab, name, definition)
				ELSE format('ALTER TABLE public.%I RENAME CONSTRAINT %I TO %I;', tab, alias, name) END
		FROM missing_constraints
		UNION ALL
		SELECT 6, format('constraint %I of public.%I is %s, not %s', m.name, m.tab, c.definition, m.definition),
			format(E'-- Keeps everybody out while it looks at all rows.\nALTER TABLE public.%1$I DROP CONSTRAINT %2$I, ADD CONSTRAINT %2$I %3$s;', m.tab, m.name, m.definition)
		FROM made_constraints m JOIN constraints c ON c.tab = m.tab AND c.name = m.name AND c.definition <> m.definition
		WHERE NOT EXISTS (SELECT FROM missing_columns g WHERE g.tab = m.tab)
		UNION ALL
		SELECT 7, format('constraint %I of public.%I is not ours, and can refuse what is recorded there', f.name, f.tab), format('ALTER TABLE public.%I DROP CONSTRAINT %I;', f.tab, f.name)
		FROM foreign_constraints f WHERE NOT EXISTS (SELECT FROM missing_constraints m WHERE m.tab = f.tab AND m.alias = f.name)
	)
	SELECT CASE n WHEN 7 THEN 'warning' ELSE 'problem' END, message, remedy FROM found WHERE n = 1 OR @current::boolean ORDER BY n, message`

// What counts is the setting of the sessions that delete, and of the server itself:
// autovacuum goes by these counts, too. Who examines may have another.
func uncountedRows() string {
	return `
	WITH settings AS (
		SELECT 1 AS n, CASE WHEN s.setrole <> 0 THEN format(' for role %I', s.rolname) WHEN s.setdatabase = 0 THEN ' for all roles' ELSE ' in this database' END AS who,
			s.alter || ' RESET track_counts;' AS remedy
		FROM (` + settingOf("track_counts", "@app::text") + `) s WHERE NOT s.value
		UNION ALL
		SELECT 2, ' on this server', CASE WHEN source = 'configuration file' THEN E'ALTER SYSTEM SET track_counts = on;\nSELECT pg_reload_conf();' ELSE 'Take track_counts out of what the server is started with.' END
		FROM pg_settings WHERE name = 'track_counts' AND setting = 'off' AND source IN ('configuration file', 'command line', 'environment variable')
	)
	SELECT 'warning', format('track_counts is off%s: an alert will take the ledger for one that does not grow', who)
			|| CASE WHEN n = 2 THEN ', and no table is vacuumed by itself' ELSE '' END, remedy
	FROM settings ORDER BY n, who`
}

// A ledger is large: only its ends are looked at.
const lostShapes = `
	WITH ends AS (
		(SELECT d.id, d.shape FROM public.plant_deletions d ORDER BY d.id LIMIT 100) UNION ALL (SELECT d.id, d.shape FROM public.plant_deletions d ORDER BY d.id DESC LIMIT 100)
	)
	(SELECT 'problem', format('entry %s of the ledger has shape %s, which public.plant_shapes lacks: what was deleted can''t be restored', e.id, e.shape),
		'Bring that row of public.plant_shapes back from a backup, or from a copy of the database.'
	FROM ends e WHERE e.shape IS NOT NULL AND NOT EXISTS (SELECT FROM public.plant_shapes s WHERE s.id = e.shape) ORDER BY e.id DESC LIMIT 1)`
