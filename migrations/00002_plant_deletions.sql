-- The ledger: one row for each plant that left, whoever removed it. It is also
-- what makes a retried request safe: the same principal, plant and idempotency
-- key can be recorded once only.

-- +goose Up
CREATE TABLE public.plant_deletions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    plant_id bigint NOT NULL,
    plant jsonb NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_by text NOT NULL,
    request_id text,
    idempotency_key text,
    restored_at timestamptz,
    restored_by text,
    CONSTRAINT plant_deletions_restored CHECK ((restored_at IS NULL) = (restored_by IS NULL)),
    -- plant_id comes first so that one index also answers "was this plant
    -- deleted earlier?". Direct SQL has no key, and nulls never collide.
    CONSTRAINT plant_deletions_once UNIQUE (plant_id, deleted_by, idempotency_key)
);
COMMENT ON TABLE public.plant_deletions IS 'Every plant that was deleted: its row, by whom, when, under which request.';
COMMENT ON COLUMN public.plant_deletions.deleted_by IS 'Name of the API token, or the database role that deleted the row by direct SQL.';

-- +goose Down
-- +goose StatementBegin
DO $$
BEGIN
    LOCK TABLE public.plant_deletions IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM public.plant_deletions) THEN
        RAISE EXCEPTION 'refusing to drop public.plant_deletions: it records deletions'
            USING HINT = 'Export the ledger and empty it first; without it, deleted plants cannot be restored.';
    END IF;
    DROP TABLE public.plant_deletions;
END
$$;
-- +goose StatementEnd
