package doctor

// What the roles may do, and others with what is ours.

// Where only the service's URL is set, it is the one to migrate with.
const serviceMigrates = `
	SELECT 'problem', format('%s is the service''s role: it must not own the record of what it deletes', @app::text),
		'Migrate as plantstore_owner: see PLANTSTORE_MIGRATE_DATABASE_URL.'
	WHERE @owner::text = @app::text`

// The migrations put triggers on the table and pass rights on, and restoring plants
// reads and inserts. A trigger that is there needs no right any more. The service's role
// is not to have these rights.
const ownerRights = `
	WITH lacking AS (
		SELECT p.privilege, p.grantable, p.n FROM pg_class c JOIN pg_roles r ON r.rolname = @owner::text AND r.rolname <> @app::text, (VALUES
			(1, 'TRIGGER', false, (SELECT count(*) < 2 FROM pg_trigger t WHERE t.tgrelid = to_regclass('public.plants') AND t.tgname IN ('plantstore_record_deletion', 'plantstore_refuse_truncate'))),
			(2, 'INSERT', false, true), (3, 'SELECT', true, true), (4, 'DELETE', true, true)) p (n, privilege, grantable, needed)
		WHERE c.oid = to_regclass('public.plants') AND c.relkind = 'r' AND p.needed
			AND NOT has_table_privilege(r.oid, c.oid, p.privilege || CASE WHEN p.grantable THEN ' WITH GRANT OPTION' ELSE '' END)
	)
	SELECT 'problem', format('%s lacks %s on public.plants, which only its owner %I can give', @owner::text,
			string_agg(privilege || CASE WHEN grantable THEN ' WITH GRANT OPTION' ELSE '' END, ', ' ORDER BY n),
			(SELECT o.rolname FROM pg_class c JOIN pg_roles o ON o.oid = c.relowner WHERE c.oid = to_regclass('public.plants'))),
		concat_ws(E'\n', 'GRANT ' || string_agg(privilege, ', ' ORDER BY n) FILTER (WHERE NOT grantable) || format(' ON public.plants TO %I;', @owner::text),
			'GRANT ' || string_agg(privilege, ', ' ORDER BY n) FILTER (WHERE grantable) || format(' ON public.plants TO %I WITH GRANT OPTION;', @owner::text))
	FROM lacking HAVING count(*) > 0`

// What the trigger and the other functions do, they do with the rights of the ledger's
// owner. Who owns a table has lost a right where somebody took it away.
const recordingRights = `
	WITH ledger AS (
		SELECT r.oid, r.rolname AS owner FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = to_regclass('public.plant_deletions')
	)
	SELECT 'problem', format('%I, who owns the ledger, lacks %s on public.%I', l.owner, string_agg(p.privilege, ', ' ORDER BY p.privilege), c.relname),
		format(CASE WHEN c.relowner = l.oid THEN 'GRANT ALL ON public.%I TO %I;' ELSE 'ALTER TABLE public.%I OWNER TO %I;' END, c.relname, l.owner)
	FROM ledger l JOIN pg_class c ON c.relnamespace = to_regnamespace('public') AND c.relkind = 'r'
			AND c.relname = ANY (@tables::text[]),
		unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p (privilege)
	WHERE NOT has_table_privilege(l.oid, c.oid, p.privilege) GROUP BY l.oid, l.owner, c.relname, c.relowner
	UNION ALL
	SELECT 'problem', format('%I, who owns the ledger, lacks USAGE on schema public', l.owner), format('GRANT USAGE ON SCHEMA public TO %I;', l.owner)
	FROM ledger l WHERE NOT has_schema_privilege(l.oid, 'public', 'USAGE')
	UNION ALL
	SELECT 'problem', format('%I, who owns the ledger, lacks EXECUTE on %s', l.owner, p.oid::regprocedure), format('GRANT EXECUTE ON FUNCTION %s TO %I;', p.oid::regprocedure, l.owner)
	FROM ledger l JOIN pg_proc p ON p.pronamespace = to_regnamespace('public') AND p.proname = ANY (@names::text[]) AND p.proowner = l.oid
	WHERE NOT has_function_privilege(l.oid, p.oid, 'EXECUTE')`

// A superuser has migrated, or restored a dump without its owners.
const superusersLedger = `
	WITH theirs AS (
		SELECT 'TABLE ' || c.oid::regclass AS object, c.relowner AS owner FROM pg_class c
		WHERE c.relnamespace = to_regnamespace('public') AND c.relkind = 'r' AND (c.relname = ANY (@tables::text[]) OR c.relname IN ('goose_db_version', 'plantstore_migrations'))
		UNION ALL
		SELECT 'FUNCTION ' || p.oid::regprocedure, p.proowner FROM pg_proc p JOIN unnest(@names::text[], @parameters::text[]) s (name, parameters)
			ON p.pronamespace = to_regnamespace('public') AND p.proname = s.name AND pg_get_function_identity_arguments(p.oid) = s.parameters
	)
	SELECT 'warning', format('the ledger belongs to superuser %I: for whoever deletes a plant, the trigger runs with all rights', r.rolname),
		(SELECT string_agg(format('ALTER %s OWNER TO plantstore_owner;', t.object), E'\n' ORDER BY t.object DESC) FROM theirs t WHERE t.owner = r.oid)
	FROM pg_class l JOIN pg_roles r ON r.oid = l.relowner WHERE l.oid = to_regclass('public.plant_deletions') AND r.rolsuper`

const schemaRights = `
	SELECT 'problem', CASE WHEN n.oid IS NULL THEN 'there is no schema public' ELSE format('%s may not make tables in schema public, which its owner %I can allow', @owner::text, o.rolname) END,
		CASE WHEN n.oid IS NULL THEN 'CREATE SCHEMA public;' ELSE format('GRANT USAGE, CREATE ON SCHEMA public TO %I;', @owner::text) END
	FROM pg_roles r LEFT JOIN (pg_namespace n JOIN pg_roles o ON o.oid = n.nspowner) ON n.nspname = 'public'
	WHERE r.rolname = @owner::text AND r.rolname <> @app::text AND cardinality(@work::bigint[]) > 0
		AND NOT coalesce(has_schema_privilege(r.oid, n.oid, 'USAGE') AND has_schema_privilege(r.oid, n.oid, 'CREATE'), false)`

// The migrations are written in these, and so are the functions that they make.
const languageRights = `
	SELECT 'problem', CASE WHEN l.oid IS NULL THEN format('there is no language %s', n.name) ELSE format('%s may not use language %s', @owner::text, n.name) END,
		CASE WHEN l.oid IS NULL THEN format('CREATE EXTENSION %I;', n.name) ELSE format('GRANT USAGE ON LANGUAGE %I TO %I;', n.name, @owner::text) END
	FROM (VALUES ('plpgsql'), ('sql')) n (name) JOIN pg_roles r ON r.rolname = @owner::text LEFT JOIN pg_language l ON l.lanname = n.name
	WHERE cardinality(@work::bigint[]) > 0 AND NOT coalesce(has_language_privilege(r.oid, l.oid, 'USAGE'), false)
	ORDER BY 1, 2`

const missingRole = `
	SELECT 'warning', format('role %s does not exist: nothing will be granted to it', @app::text), 'Run deploy/postgres/roles.sql before.'
	WHERE 6 = ANY (@work::bigint[]) AND NOT EXISTS (SELECT FROM pg_roles WHERE rolname = @app::text)`

// What the doctor says of these is among the grants.
const serviceRights = `
	SELECT 'problem', format('%s lacks %s ON %s', @app::text, privilege, object), format('GRANT %s ON %s TO %I;', privilege, object, @app::text)
	FROM (VALUES
		('USAGE', 'SCHEMA public', has_schema_privilege(@app::text, to_regnamespace('public')::oid, 'USAGE')),
		('DELETE', 'public.plants', has_table_privilege(@app::text, to_regclass('public.plants')::oid, 'DELETE')),
		('SELECT (id)', 'public.plants', has_column_privilege(@app::text, to_regclass('public.plants')::oid,
			(SELECT a.attnum FROM pg_attribute a WHERE a.attrelid = to_regclass('public.plants') AND a.attname = 'id' AND NOT a.attisdropped), 'SELECT')),
		('SELECT', 'public.plant_deletions', has_table_privilege(@app::text, to_regclass('public.plant_deletions')::oid, 'SELECT')),
		('SELECT', 'SEQUENCE public.plant_deletions_id_seq', has_sequence_privilege(@app::text, to_regclass('public.plant_deletions_id_seq')::oid, 'SELECT')),
		('EXECUTE', 'FUNCTION public.plantstore_prove(bigint[], text[], text[])', has_function_privilege(@app::text, to_regprocedure('public.plantstore_prove(bigint[], text[], text[])')::oid, 'EXECUTE')),
		('EXECUTE', 'FUNCTION public.plantstore_refuse(bigint, text, text, text)', has_function_privilege(@app::text, to_regprocedure('public.plantstore_refuse(bigint, text, text, text)')::oid, 'EXECUTE')),
		('EXECUTE', 'FUNCTION public.plantstore_token(bytea)', has_function_privilege(@app::text, to_regprocedure('public.plantstore_token(bytea)')::oid, 'EXECUTE'))
	) rights (privilege, object, granted) WHERE NOT granted`

// Only members may say for whom they delete, see migrations/00003_record_deletions.sql. The
// doctor asks this on the service's own connection.
const otherService = `
	SELECT 'problem', format('the service connects as %s, who is no member of plantstore_app: what it deletes would be recorded in the name of that role, and is taken back', session_user),
		'Name the role plantstore_app in DATABASE_URL.'
	WHERE NOT coalesce(pg_has_role(session_user, to_regrole('plantstore_app'), 'MEMBER'), false)`

// The check grants covers the service's role and PUBLIC. A role that exports the ledger may
// read it, see migrations/README.md.
const rightsOfOthers = `
	WITH ours AS (
		SELECT c.oid, c.relowner AS owner, c.relname IN ('plant_deletions', 'plant_deletions_id_seq', 'plant_shapes') AS exported, CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE '' END || c.oid::regclass AS object, c.relacl AS acl
		FROM pg_class c WHERE c.relnamespace = to_regnamespace('public') AND c.relkind IN ('r', 'S') AND c.relname IN
			('plant_deletions', 'plant_deletions_id_seq', 'plant_shapes', 'plant_shapes_id_seq', 'api_principals', 'api_tokens', 'plantstore_budgets', 'plantstore_migrations', 'goose_db_version', 'goose_db_version_id_seq')
	), granted AS (
		SELECT o.object, o.owner, o.exported, a.grantor, a.grantee, a.privilege_type FROM ours o, aclexplode(o.acl) a
		UNION ALL
		SELECT o.object, o.owner, o.exported, a.grantor, a.grantee, a.privilege_type FROM ours o JOIN pg_attribute t ON t.attrelid = o.oid AND NOT t.attisdropped, aclexplode(t.attacl) a
		UNION ALL
		SELECT 'FUNCTION ' || p.oid::regprocedure, p.proowner, false, a.grantor, a.grantee, a.privilege_type FROM pg_proc p, aclexplode(p.proacl) a
		WHERE p.pronamespace = to_regnamespace('public') AND p.proname = ANY (@names::text[])
	)
	SELECT CASE WHEN bool_and(g.privilege_type IN ('SELECT', 'MAINTAIN')) THEN 'warning' ELSE 'problem' END,
		format('%I has %s ON %s, which is for the service alone', r.rolname, string_agg(DISTINCT g.privilege_type, ', '), g.object),
		format(CASE WHEN g.grantor = g.owner THEN 'REVOKE ALL ON %1$s FROM %2$I CASCADE;' ELSE E'SET ROLE %3$s;\nREVOKE ALL ON %1$s FROM %2$I CASCADE;\nRESET ROLE;' END,
			g.object, r.rolname, g.grantor::regrole)
	FROM granted g JOIN pg_roles r ON r.oid = g.grantee WHERE g.grantee <> g.owner AND r.rolname <> @app::text AND NOT (g.exported AND g.privilege_type = 'SELECT')
	GROUP BY g.object, r.rolname, g.owner, g.grantor ORDER BY g.object, r.rolname`

// The last migration takes away what they gave. They would open what comes next, and
// until then all of it. That everybody may execute functions is the system's own.
const defaultPrivileges = `
	SELECT 'warning', format('default privileges give %s to %s of what %I makes%s', string_agg(DISTINCT a.privilege_type, ', '), g.name, o.rolname,
			CASE d.defaclnamespace WHEN 0 THEN '' ELSE ' in schema public' END),
		format('ALTER DEFAULT PRIVILEGES FOR ROLE %I%s REVOKE ALL ON %s FROM %s;', o.rolname, CASE d.defaclnamespace WHEN 0 THEN '' ELSE ' IN SCHEMA public' END, k.kind, g.name)
	FROM pg_default_acl d JOIN pg_roles o ON o.oid = d.defaclrole AND o.rolname = @owner::text
		JOIN (VALUES ('r', 'TABLES'), ('S', 'SEQUENCES'), ('f', 'FUNCTIONS')) k (type, kind) ON k.type = d.defaclobjtype,
		aclexplode(d.defaclacl) a, LATERAL (SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS name) g
	WHERE d.defaclnamespace IN (0, to_regnamespace('public')) AND a.grantee <> d.defaclrole AND NOT (a.grantee = 0 AND k.type = 'f' AND d.defaclnamespace = 0)
	GROUP BY o.rolname, d.defaclnamespace, k.kind, g.name ORDER BY k.kind, g.name`

// Who may only pass the membership on, as those who make a role may since PostgreSQL
// 16, is left out.
const members = `
	SELECT 'warning', format('%s is a member of %s, and can delete in the name of whomever it likes', m.member::regrole, @app::text), format('REVOKE %I FROM %s;', @app::text, m.member::regrole)
	FROM pg_auth_members m WHERE m.roleid = (SELECT oid FROM pg_roles WHERE rolname = @app::text)
		AND (to_jsonb(m) ->> 'set_option' IS DISTINCT FROM 'false' OR to_jsonb(m) ->> 'inherit_option' IS DISTINCT FROM 'false')`

// The server says of such a password what it says of a wrong one. Whether a role has a
// password, rather than a certificate, only some may see.
const endingPasswords = `
	SELECT 'warning', format('if role %I logs in with a password, none lets it in %s', r.rolname,
			CASE WHEN r.rolvaliduntil = '-infinity' THEN 'at any time'
				ELSE CASE WHEN r.rolvaliduntil < now() THEN 'since ' ELSE 'after ' END || to_char(r.rolvaliduntil AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') END),
		format('ALTER ROLE %I VALID UNTIL ''infinity'';', r.rolname)
	FROM pg_roles r WHERE r.rolname IN (@app::text, @owner::text) AND r.rolcanlogin AND r.rolvaliduntil < now() + interval '14 days' ORDER BY r.rolname`

// 00003 put the triggers on, which takes no more than a right; to drop them takes the
// owner. Rights that the owner gave to the service stay, too.
const foreignTable = `
	WITH plants AS (
		SELECT c.oid, c.relowner, c.relacl, o.rolname AS owner FROM pg_class c JOIN pg_roles o ON o.oid = c.relowner
		WHERE c.oid = to_regclass('public.plants') AND NOT pg_has_role(c.relowner, 'USAGE') AND @owner::text <> @app::text
	)
	SELECT 'problem', format('of public.plants only its owner %I can drop what the migrations put on it; from then on the service deletes nothing', p.owner),
		string_agg(format('DROP TRIGGER %I ON public.plants;', t.tgname), E'\n' ORDER BY t.tgname)
	FROM plants p JOIN pg_trigger t ON t.tgrelid = p.oid AND t.tgname = ANY (@names::text[]) WHERE 3 = ANY (@work::bigint[]) GROUP BY p.owner
	UNION ALL
	SELECT 'warning', format('only %s can take from %s what it gave it of public.plants', a.grantor::regrole, @app::text), format('REVOKE ALL ON public.plants FROM %I;', @app::text)
	FROM (
		SELECT p.oid, p.relacl AS acl FROM plants p
		UNION ALL
		SELECT p.oid, t.attacl FROM plants p JOIN pg_attribute t ON t.attrelid = p.oid AND NOT t.attisdropped
	) g, aclexplode(g.acl) a
	WHERE 6 = ANY (@work::bigint[]) AND a.grantee = (SELECT r.oid FROM pg_roles r WHERE r.rolname = @app::text) AND a.grantor <> current_user::regrole
	GROUP BY a.grantor`

// What the migrations' statements are to an event trigger.
const (
	upTags   = "COMMENT, CREATE FUNCTION, CREATE TABLE, CREATE TRIGGER, GRANT, REVOKE"
	downTags = "COMMENT, DROP FUNCTION, DROP TABLE, DROP TRIGGER, REVOKE"
)

// eventTriggers finds those that run with statements of these kinds. They are a
// superuser's, and mean all who make something: what they do to ours can't be known.
func eventTriggers(tags string) string {
	return `
	SELECT 'warning', format('event trigger %I runs %s with statements of the migration, and can refuse or change what they make', e.evtname, p.oid::regprocedure)
			|| CASE WHEN p.prosecdef OR o.rolsuper OR o.rolname = @owner::text THEN '' ELSE format('; the function belongs to %I, and has the rights of %s then', o.rolname, @owner::text) END,
		format(E'-- If it is not meant for these. Afterwards: ALTER EVENT TRIGGER %1$I ENABLE%2$s;\nALTER EVENT TRIGGER %1$I DISABLE;', e.evtname, CASE e.evtenabled WHEN 'A' THEN ' ALWAYS' ELSE '' END)
	FROM pg_event_trigger e JOIN pg_proc p ON p.oid = e.evtfoid JOIN pg_roles o ON o.oid = p.proowner,
		string_to_array('` + tags + `', ', ') AS ours (tags)
	WHERE e.evtenabled IN ('O', 'A') AND cardinality(@work::bigint[]) > 0 AND (e.evttags IS NULL OR e.evttags && ours.tags)
		AND (e.evtevent LIKE 'ddl_command_%' OR e.evtevent = 'sql_drop' AND 'DROP TABLE' = ANY (ours.tags))
	ORDER BY e.evtname`
}
