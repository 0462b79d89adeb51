-- What the service's role may do, where there is one: delete plants, ask what became of a
-- deletion, read tokens and note when one was last used. Without plantstore_app the owner
-- serves, and nothing is granted.
-- locks: public.plants ACCESS SHARE

-- +goose Up
-- +goose StatementBegin
DO $$
BEGIN
    IF to_regrole('plantstore_app') IS NULL THEN
        RAISE NOTICE 'there is no role plantstore_app: the service connects as the owner'
            USING HINT = 'For two roles run deploy/postgres/roles.sql, plantstore migrate down --to 5, plantstore migrate up.';
        RETURN;
    END IF;
    GRANT USAGE ON SCHEMA plantstore TO plantstore_app;
    GRANT SELECT (id), DELETE ON public.plants TO plantstore_app;
    GRANT SELECT (id, deleted_at) ON plantstore.deletions TO plantstore_app;
    GRANT SELECT ON plantstore.tokens, plantstore.tokens_version, plantstore.goose_db_version TO plantstore_app;
    GRANT UPDATE (last_used_at) ON plantstore.tokens TO plantstore_app;
    GRANT SELECT (name, budget, budget_period) ON plantstore.principals TO plantstore_app;
    GRANT EXECUTE ON FUNCTION plantstore.unfit(), plantstore.resolve(bigint, text, text, text, integer) TO plantstore_app;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- locks: public.plants ACCESS SHARE
-- +goose StatementBegin
DO $$
BEGIN
    IF to_regrole('plantstore_app') IS NOT NULL THEN
        REVOKE ALL ON public.plants FROM plantstore_app;
        REVOKE ALL ON ALL TABLES IN SCHEMA plantstore FROM plantstore_app;
        REVOKE ALL ON ALL FUNCTIONS IN SCHEMA plantstore FROM plantstore_app;
        REVOKE ALL ON SCHEMA plantstore FROM plantstore_app;
    END IF;
END
$$;
-- +goose StatementEnd
