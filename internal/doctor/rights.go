package doctor

// rights compares the service's rights with the grants of migration 00006. It reads the
// catalogue without names, which a role without USAGE on a schema could not resolve.
const rights = `
	WITH missing AS (
		SELECT w.privilege, 'SCHEMA ' || w.name AS object FROM (VALUES ('USAGE', 'public'), ('USAGE', 'plantstore')) w (privilege, name)
		JOIN pg_namespace n ON n.nspname = w.name WHERE NOT has_schema_privilege(n.oid, w.privilege)
		UNION ALL
		SELECT w.privilege, w.schema || '.' || w.name FROM (VALUES
			('DELETE', 'public', 'plants'), ('SELECT', 'plantstore', 'tokens'), ('SELECT', 'plantstore', 'tokens_version'), ('SELECT', 'plantstore', 'goose_db_version')
		) w (privilege, schema, name) JOIN pg_namespace n ON n.nspname = w.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
		WHERE NOT has_table_privilege(c.oid, w.privilege)
		UNION ALL
		SELECT format('%s (%s)', w.privilege, array_to_string(w.columns, ', ')), w.schema || '.' || w.name FROM (VALUES
			('SELECT', 'public', 'plants', '{id}'::text[]), ('SELECT', 'plantstore', 'deletions', '{id,deleted_at}'),
			('UPDATE', 'plantstore', 'tokens', '{last_used_at}'), ('SELECT', 'plantstore', 'principals', '{name,budget,budget_period}')
		) w (privilege, schema, name, columns) JOIN pg_namespace n ON n.nspname = w.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
		WHERE EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = ANY (w.columns) AND NOT has_column_privilege(c.oid, a.attnum, w.privilege))
		UNION ALL
		SELECT 'EXECUTE', 'FUNCTION ' || p.oid::regprocedure FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE n.nspname = 'plantstore' AND p.proname IN ('unfit', 'resolve') AND NOT has_function_privilege(p.oid, 'EXECUTE')
	)
	SELECT 'problem', format('role %I lacks rights: %s', current_user, string_agg(privilege || ' ON ' || object, ', ' ORDER BY object COLLATE "C", privilege)),
		string_agg(format('GRANT %s ON %s TO %I;', privilege, object, current_user), E'\n' ORDER BY object COLLATE "C", privilege)
	FROM missing HAVING count(*) > 0`

// REVOKE on a table also revokes the rights on its columns.
const excessRights = `
	SELECT CASE n.nspname WHEN 'plantstore' THEN 'problem' ELSE 'advice' END,
		format('%s may do more than the service needs: %s ON %s', g.name, string_agg(a.privilege_type, ', ' ORDER BY a.privilege_type), c.oid::regclass),
		format('REVOKE %s ON %s FROM %s;', string_agg(a.privilege_type, ', ' ORDER BY a.privilege_type), c.oid::regclass, g.name)
			|| coalesce((SELECT format(E'\nGRANT %s ON %s TO %I;', w.columns, c.oid::regclass, current_user) FROM (VALUES
				('tokens', 'UPDATE (last_used_at)'), ('deletions', 'SELECT (id, deleted_at)'), ('principals', 'SELECT (name, budget, budget_period)')
			) w (name, columns) WHERE n.nspname = 'plantstore' AND w.name = c.relname), '')
	FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, LATERAL aclexplode(c.relacl) a,
		LATERAL (SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE format('%I', current_user) END) g (name)
	WHERE a.grantee IN (0, (SELECT oid FROM pg_roles WHERE rolname = current_user)) AND a.grantee <> c.relowner
		AND (n.nspname = 'plantstore' AND (a.privilege_type <> 'SELECT' OR a.grantee = 0 OR c.relname NOT IN ('tokens', 'tokens_version', 'goose_db_version'))
			OR c.oid = to_regclass('public.plants') AND a.grantee <> 0 AND a.privilege_type NOT IN ('SELECT', 'DELETE'))
	GROUP BY n.nspname, c.oid, c.relname, g.name ORDER BY c.oid::regclass::text COLLATE "C", g.name`

// twoRoles is an SQL expression for the commands that change a database from one role to two.
const twoRoles = `format(E'psql -v ON_ERROR_STOP=1 -d %L -f roles.sql # of the release, as a superuser\nplantstore migrate down --to 5 && plantstore migrate up\n'
	'# Then let DATABASE_URL name plantstore_app, and PLANTSTORE_MIGRATE_DATABASE_URL the role of now.', current_database())`

const superuser = `
	SELECT 'advice', format('role %I of the service is a superuser', rolname),
		CASE rolname WHEN 'plantstore_app' THEN 'ALTER ROLE plantstore_app NOSUPERUSER;' ELSE ` + twoRoles + ` END
	FROM pg_roles WHERE rolname = current_user AND rolsuper`

// With two roles, the remedy for a membership is to revoke it. A role that Vault makes stays a
// member of plantstore_app.
const roles = `
	SELECT 'advice', format('role %I of the service %s: its password is enough to %s', r.rolname,
			CASE WHEN o.id = r.oid THEN 'owns ' || o.object ELSE format('is a member of %s, which owns %s', o.id::regrole, o.object) END, o.harm),
		coalesce(CASE
			WHEN o.id <> r.oid THEN (
				SELECT string_agg(format('REVOKE %s FROM %s;', m.roleid::regrole, m.member::regrole), E'\n' ORDER BY m.roleid)
				FROM pg_auth_members m, to_regrole('plantstore_app') app (id)
				WHERE m.member IN (r.oid, app.id) AND pg_has_role(r.oid, app.id, 'MEMBER') AND pg_has_role(m.roleid, o.id, 'MEMBER') AND NOT pg_has_role(m.roleid, app.id, 'MEMBER'))
			WHEN o.id <> ledger.relowner THEN format(E'ALTER TABLE public.plants OWNER TO %s;\nGRANT SELECT (id), DELETE ON public.plants TO %I;', ledger.relowner::regrole, r.rolname)
		END, ` + twoRoles + `)
	FROM pg_roles r, pg_class ledger, LATERAL (
		SELECT 1, ledger.relowner, 'the ledger', 'change the record'
		UNION ALL
		SELECT 2, p.relowner, 'public.plants', 'disable the ledger''s trigger' FROM pg_class p WHERE p.oid = to_regclass('public.plants')
	) o (n, id, object, harm)
	WHERE ledger.relname = 'deletions' AND ledger.relnamespace = to_regnamespace('plantstore') AND r.rolname = current_user AND NOT r.rolsuper AND pg_has_role(o.id, 'MEMBER')
	ORDER BY o.n LIMIT 1`
