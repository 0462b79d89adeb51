-- The ledger: one row for each plant that was deleted, whoever did it, and one for each
-- refusal that is the final answer to a key. Principal, plant and key name one deletion:
-- the unique constraint makes its outcome final. Only the functions of 00004 and the owner
-- write it, so there are no further constraints: each deletion would pay for them.
-- locks: none

-- +goose Up
CREATE TABLE plantstore.deletions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    plant_id bigint NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_by text NOT NULL,
    request_id text,
    idempotency_key text,
    plant json,
    literal text,
    types regtype[],
    refused integer,
    transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id(),
    restored_at timestamptz,
    restored_by text,
    CONSTRAINT deletions_once UNIQUE (plant_id, deleted_by, idempotency_key)
);
-- Finds the deletions of a plant among a million refusals. Refusals cost it nothing.
CREATE INDEX deletions_by_plant ON plantstore.deletions (plant_id) WHERE refused IS NULL;
CREATE INDEX deletions_by_time ON plantstore.deletions USING brin (deleted_at) WITH (pages_per_range = 32);
COMMENT ON TABLE plantstore.deletions IS 'Every deleted plant with its row, and every recorded refusal.';
COMMENT ON COLUMN plantstore.deletions.deleted_by IS 'The principal of the request, or the database role where request_id is null.';
COMMENT ON COLUMN plantstore.deletions.request_id IS 'Null: deleted by direct SQL.';
COMMENT ON COLUMN plantstore.deletions.idempotency_key IS 'Null: deleted by direct SQL, or by a cascade of the request.';
COMMENT ON COLUMN plantstore.deletions.plant IS 'The row, to read and search.';
COMMENT ON COLUMN plantstore.deletions.literal IS 'The row as PostgreSQL writes it, to restore it exactly.';
COMMENT ON COLUMN plantstore.deletions.types IS 'The types of its columns when it was deleted.';
COMMENT ON COLUMN plantstore.deletions.refused IS 'The error code of a refusal. Then nothing was deleted, and there is no row.';
COMMENT ON COLUMN plantstore.deletions.transaction_id IS 'What has the same transaction left together.';

-- +goose Down
-- +goose StatementBegin
DO $$
BEGIN
    LOCK TABLE plantstore.deletions IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM plantstore.deletions) THEN
        RAISE EXCEPTION 'refusing to drop plantstore.deletions: it has entries'
            USING HINT = 'Export the ledger and empty it first. Deleted plants cannot be restored without it.';
    END IF;
END
$$;
-- +goose StatementEnd
DROP TABLE plantstore.deletions;
