-- The ledger is written once for each statement instead of once for each row: a
-- statement that deletes many plants costs the database about half.
--
-- A statement of the service that deletes for many requests says in the setting
-- plantstore.batch who asked for which plant: a JSON array of objects with plant,
-- principal, request_id and key. The trigger answers with plantstore.recorded.
-- Without a batch the three settings of 00003 mean what they meant.
--
-- A row that leaves through a statement on a table that plants inherits from, or
-- is a partition of, fires no statement trigger of plants: so there must be none.
-- +goose Up
-- +goose StatementBegin
DO $$
DECLARE
    parent regclass;
BEGIN
    SELECT inhparent INTO parent FROM pg_inherits WHERE inhrelid = 'public.plants'::regclass;
    IF parent IS NOT NULL THEN
        RAISE EXCEPTION 'public.plants is a child of %: plants deleted through that table would leave without a record', parent
            USING HINT = 'Detach it: ALTER TABLE ... DETACH PARTITION, or ALTER TABLE public.plants NO INHERIT ....';
    END IF;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION public.plantstore_record_deletion() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER -- who may delete a plant need not, and may not, write the ledger
SET search_path = pg_catalog, pg_temp
-- Whoever deletes, the row is written down in the one form that restores exactly.
SET datestyle = 'ISO, YMD'
SET intervalstyle = 'postgres'
SET extra_float_digits = 1
AS $$
BEGIN
    -- A setting that was made in this session once and has ended reads as ''.
    IF coalesce(current_setting('plantstore.batch', true), '') = '' THEN
        INSERT INTO public.plant_deletions (plant_id, plant, deleted_by, request_id, idempotency_key)
        SELECT
            g.id,
            to_jsonb(g),
            coalesce(nullif(current_setting('plantstore.principal', true), ''), session_user),
            nullif(current_setting('plantstore.request_id', true), ''),
            nullif(current_setting('plantstore.idempotency_key', true), '')
        FROM gone g;
    ELSE
        -- Whose a plant is that nobody asked for, and that left by a cascade, is not
        -- known here. It has no principal, so deleted_by refuses it, and with it the
        -- statement: the service then deletes for one request at a time.
        INSERT INTO public.plant_deletions (plant_id, plant, deleted_by, request_id, idempotency_key)
        SELECT g.id, to_jsonb(g), b.principal, b.request_id, b.key
        FROM gone g
        LEFT JOIN json_to_recordset(current_setting('plantstore.batch')::json)
            AS b (plant bigint, principal text, request_id text, key text) ON b.plant = g.id;
        PERFORM set_config('plantstore.recorded', 'yes', true);
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION public.plantstore_record_deletion() FROM PUBLIC; -- 00003 did, unless the function was lost since
CREATE OR REPLACE TRIGGER plantstore_record_deletion AFTER DELETE ON public.plants
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION public.plantstore_record_deletion();

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION public.plantstore_record_deletion() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET datestyle = 'ISO, YMD'
SET intervalstyle = 'postgres'
SET extra_float_digits = 1
AS $$
BEGIN
    INSERT INTO public.plant_deletions (plant_id, plant, deleted_by, request_id, idempotency_key)
    VALUES (
        OLD.id,
        to_jsonb(OLD),
        -- A setting that was made in this session once and has ended reads as ''.
        coalesce(nullif(current_setting('plantstore.principal', true), ''), session_user),
        nullif(current_setting('plantstore.request_id', true), ''),
        nullif(current_setting('plantstore.idempotency_key', true), '')
    );
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE OR REPLACE TRIGGER plantstore_record_deletion AFTER DELETE ON public.plants
    FOR EACH ROW EXECUTE FUNCTION public.plantstore_record_deletion();
