-- What the service's role may do: delete plants, read the ledger, look tokens
-- up and note their last use, and see which migrations are applied.

-- +goose Up
-- +goose StatementBegin
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'plantstore_app') THEN
        RAISE WARNING 'role plantstore_app does not exist, nothing was granted to it'
            USING HINT = 'Run deploy/postgres/roles.sql, then plantstore migrate down --to 5, and plantstore migrate up.';
        RETURN;
    END IF;
    -- DELETE ... WHERE id = $1 reads id.
    GRANT SELECT (id), DELETE ON public.plants TO plantstore_app;
    GRANT SELECT ON public.plant_deletions TO plantstore_app;
    GRANT EXECUTE ON FUNCTION public.plantstore_token(bytea) TO plantstore_app;
    GRANT SELECT (name, last_used_at), UPDATE (last_used_at) ON public.api_tokens TO plantstore_app;
    GRANT SELECT ON public.goose_db_version TO plantstore_app;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'plantstore_app') THEN
        REVOKE SELECT ON public.goose_db_version FROM plantstore_app;
        REVOKE SELECT (name, last_used_at), UPDATE (last_used_at) ON public.api_tokens FROM plantstore_app;
        REVOKE EXECUTE ON FUNCTION public.plantstore_token(bytea) FROM plantstore_app;
        REVOKE SELECT ON public.plant_deletions FROM plantstore_app;
        REVOKE SELECT (id), DELETE ON public.plants FROM plantstore_app;
    END IF;
END
$$;
-- +goose StatementEnd
