-- TRUNCATE fires no row trigger: plants would leave without a record.

-- +goose Up
-- +goose StatementBegin
CREATE FUNCTION public.plantstore_refuse_truncate() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'TRUNCATE of %.% is refused: it would leave no record in plant_deletions',
        TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege', HINT = 'Use DELETE; every row is then recorded and can be restored.';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER plantstore_refuse_truncate BEFORE TRUNCATE ON public.plants
    FOR EACH STATEMENT EXECUTE FUNCTION public.plantstore_refuse_truncate();

-- +goose Down
DROP TRIGGER plantstore_refuse_truncate ON public.plants;
DROP FUNCTION public.plantstore_refuse_truncate();
