-- Each row that leaves plants is written to the ledger in the same transaction,
-- whether it goes through the service, psql or a cascade.
--
-- The service names its principal, request and idempotency key in settings that
-- end with its transaction; without them the row is recorded under the session's
-- role. An AFTER trigger sees only rows that are really gone. If the same
-- principal, plant and key are in the ledger already (a late retry, and the
-- plant has come back), plant_deletions_once refuses the second record, and
-- with it the whole delete.

-- +goose Up
-- +goose StatementBegin
CREATE FUNCTION public.plantstore_record_deletion() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER -- who may delete a plant need not, and may not, write the ledger
SET search_path = pg_catalog, pg_temp
-- Whoever deletes, the row is written down in the one form that restores exactly.
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
REVOKE EXECUTE ON FUNCTION public.plantstore_record_deletion() FROM PUBLIC;
-- The plain origin trigger: a logical replica gets the ledger's row from the
-- primary and must not write a second one.
CREATE TRIGGER plantstore_record_deletion AFTER DELETE ON public.plants
    FOR EACH ROW EXECUTE FUNCTION public.plantstore_record_deletion();

-- +goose Down
DROP TRIGGER plantstore_record_deletion ON public.plants;
DROP FUNCTION public.plantstore_record_deletion();
