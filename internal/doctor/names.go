package doctor

// Who has names that are ours, or could make such.

const takenNames = `
	SELECT 'problem', format('there is a public.%I already, which %s would make', n.name, n.file), 'Give it another name, or drop it.'
	FROM (VALUES (2, '00002_ledger.sql', 'plant_shapes'), (2, '00002_ledger.sql', 'plant_shapes_id_seq'), (2, '00002_ledger.sql', 'plant_deletions'),
		(2, '00002_ledger.sql', 'plant_deletions_id_seq'), (2, '00002_ledger.sql', 'plant_deletions_once'), (4, '00004_api_tokens.sql', 'api_principals'),
		(4, '00004_api_tokens.sql', 'api_tokens'), (4, '00004_api_tokens.sql', 'plantstore_budgets'),
		(5, '00005_migration_checksums.sql', 'plantstore_migrations')) n (version, file, name)
	WHERE n.version = ANY (@work::bigint[]) AND (
		EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = to_regnamespace('public') AND c.relname = n.name)
		OR EXISTS (SELECT FROM pg_type t WHERE t.typnamespace = to_regnamespace('public') AND t.typname = n.name))
	UNION ALL
	SELECT 'problem', 'there is a type public.plants already, and with it no table of that name can be made', 'Give it another name, or drop it.'
	FROM pg_type t WHERE t.typnamespace = to_regnamespace('public') AND t.typname = 'plants' AND t.typrelid = 0 AND 1 = ANY (@work::bigint[])
	ORDER BY 2`

const triggersLikeOurs = `
	SELECT 'problem', format('trigger %I of public.plants has the name of one that 00003_record_deletions.sql would make', t.tgname),
		format(E'-- Once you have found out what it is for.\nALTER TRIGGER %I ON public.plants RENAME TO %I;', t.tgname, 'not_' || t.tgname)
	FROM pg_trigger t WHERE t.tgrelid = to_regclass('public.plants') AND 3 = ANY (@work::bigint[])
		AND t.tgname IN ('plantstore_record_deletion', 'plantstore_refuse_truncate') ORDER BY t.tgname`

// 00004 makes plantstore_spend and plantstore_token, 00003 the others. With other parameters a function
// can be the one that a call means.
const functionsLikeOurs = `
	SELECT 'problem', format('function %s has the name of one of ours, and is %I''s', p.oid::regprocedure, r.rolname),
		format(E'-- Once you have found out what it is for.\nALTER FUNCTION %s RENAME TO %I;', p.oid::regprocedure, 'not_' || p.proname)
	FROM pg_proc p JOIN pg_roles r ON r.oid = p.proowner
	WHERE p.pronamespace = to_regnamespace('public') AND p.proname = ANY (@names::text[])
		AND (CASE WHEN p.proname IN ('plantstore_spend', 'plantstore_token') THEN 4 ELSE 3 END = ANY (@work::bigint[])
			OR NOT @ahead::boolean AND NOT EXISTS (SELECT FROM unnest(@names::text[], @parameters::text[]) ours (name, parameters)
				WHERE ours.name = p.proname AND ours.parameters = pg_get_function_identity_arguments(p.oid)))`

// "$user" in a search path means the schema that has the name of the session's role.
const schemasLikeOurs = `
	SELECT 'warning', format('schema %I, which belongs to %I, has the name of a role of ours: in a session of that role names without a schema are looked up there first', n.nspname, r.rolname),
		format('ALTER SCHEMA %I RENAME TO %I;', n.nspname, n.nspname || '_renamed')
	FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname IN (@app::text, @owner::text) AND n.nspname <> r.rolname`

// Up to PostgreSQL 14 everybody could, and databases that were upgraded still have it.
const creators = `
	SELECT 'warning', 'everybody may make objects in schema public, also some that the store''s own code takes for its own',
		E'-- Unless somebody needs it.\nREVOKE CREATE ON SCHEMA public FROM PUBLIC;'
	FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.nspname = 'public' AND a.grantee = 0 AND a.privilege_type = 'CREATE'`
