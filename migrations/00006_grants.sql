-- What the service's role may do: delete plants, read the ledger, look tokens up
-- and note their last use, and see which migrations are applied.

-- +goose Up
-- Default privileges of the database may have opened what was made here: whatever
-- somebody else than the owner got without being named below is taken away.
-- +goose StatementBegin
DO $$
DECLARE
    opened record;
BEGIN
    FOR opened IN
        SELECT DISTINCT o.kind, o.name, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS grantee
        FROM (
            SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind, c.oid::regclass::text AS name, c.relowner AS owner, c.relacl AS acl
            FROM pg_catalog.pg_class c
            WHERE c.relnamespace = 'public'::regnamespace AND c.relname IN ('plant_deletions', 'plant_deletions_id_seq',
                'plant_shapes', 'plant_shapes_id_seq', 'api_principals', 'api_tokens', 'plantstore_budgets', 'plantstore_migrations', 'goose_db_version', 'goose_db_version_id_seq')
            UNION ALL
            SELECT 'FUNCTION', p.oid::regprocedure::text, p.proowner, p.proacl
            FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = 'public'::regnamespace AND p.proname IN ('plantstore_prove', 'plantstore_record_deletion', 'plantstore_refuse',
                'plantstore_shape', 'plantstore_columns', 'plantstore_planned_columns', 'plantstore_refuse_truncate', 'plantstore_spend', 'plantstore_token')
        ) o, LATERAL aclexplode(o.acl) a
        WHERE a.grantee <> o.owner
    LOOP
        EXECUTE format('REVOKE ALL ON %s %s FROM %s', opened.kind, opened.name, opened.grantee);
    END LOOP;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'plantstore_app') THEN
        RAISE WARNING 'role plantstore_app does not exist, nothing was granted to it'
            USING HINT = 'Run deploy/postgres/roles.sql, then plantstore migrate down --to 5, and plantstore migrate up.';
        RETURN;
    END IF;
    -- DELETE ... WHERE id = $1 reads id, and xmax tells which rows are locked.
    GRANT SELECT (id, xmax), DELETE ON public.plants TO plantstore_app;
    GRANT SELECT ON public.plant_deletions TO plantstore_app;
    GRANT SELECT ON SEQUENCE public.plant_deletions_id_seq TO plantstore_app; -- whether it has fallen behind
    GRANT EXECUTE ON FUNCTION public.plantstore_prove(bigint[], text[], text[]) TO plantstore_app;
    GRANT EXECUTE ON FUNCTION public.plantstore_refuse(bigint, text, text, text) TO plantstore_app;
    GRANT EXECUTE ON FUNCTION public.plantstore_token(bytea) TO plantstore_app;
    GRANT SELECT (id, last_used_at), UPDATE (last_used_at) ON public.api_tokens TO plantstore_app;
    GRANT SELECT ON public.goose_db_version TO plantstore_app;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'plantstore_app') THEN
        REVOKE SELECT ON public.goose_db_version FROM plantstore_app;
        REVOKE SELECT (id, last_used_at), UPDATE (last_used_at) ON public.api_tokens FROM plantstore_app;
        REVOKE EXECUTE ON FUNCTION public.plantstore_token(bytea) FROM plantstore_app;
        REVOKE EXECUTE ON FUNCTION public.plantstore_refuse(bigint, text, text, text) FROM plantstore_app;
        REVOKE EXECUTE ON FUNCTION public.plantstore_prove(bigint[], text[], text[]) FROM plantstore_app;
        REVOKE SELECT ON SEQUENCE public.plant_deletions_id_seq FROM plantstore_app;
        REVOKE SELECT ON public.plant_deletions FROM plantstore_app;
        IF to_regclass('public.plants') IS NOT NULL THEN
            REVOKE SELECT (id, xmax), DELETE ON public.plants FROM plantstore_app;
        END IF;
    END IF;
END
$$;
-- +goose StatementEnd
