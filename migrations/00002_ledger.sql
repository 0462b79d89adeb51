-- The ledger: one row for each plant that left, whoever removed it. It is also
-- what makes a retried request safe: the same principal, plant and idempotency
-- key can be recorded once only.
--
-- Once a client was told that a request did not delete its plant, no attempt of
-- that request may delete it any more, however late it arrives. So such an answer is
-- an entry, too, under the same unique index: a refusal, without a row. Whoever of
-- the two comes second finds the entry of the first. A request that comes with the
-- same key after that has the next turn.
--
-- A row is kept in the form in which PostgreSQL itself writes and reads it: each
-- value as its type's output function prints it. Nothing else comes back exactly.

-- +goose Up
-- What columns the plants had, in their order. Many deletions share a shape.
-- There is no unique constraint: the first deletion after an ALTER TABLE adds a
-- shape, and whoever comes next must not have to wait for that transaction. A
-- shape that is there twice does no harm.
CREATE TABLE public.plant_shapes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    attributes text[] NOT NULL,
    names text[] NOT NULL,
    types text[] NOT NULL,
    generated boolean[] NOT NULL,
    has_virtual boolean NOT NULL DEFAULT false,
    -- The columns' numbers in that table, which a column keeps whatever it is called.
    relation oid,
    attnums smallint[]
);
COMMENT ON TABLE public.plant_shapes IS 'The columns that plants had when rows were deleted.';
COMMENT ON COLUMN public.plant_shapes.attributes IS 'What the trigger knows the shape again by: each column''s number, type, type modifier, kind of generation and name.';
COMMENT ON COLUMN public.plant_shapes.generated IS 'True: the column computed itself, and its value is not kept.';
COMMENT ON COLUMN public.plant_shapes.has_virtual IS 'True: some of them were computed only when they were read (PostgreSQL 18).';

CREATE TABLE public.plant_deletions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    plant_id bigint NOT NULL,
    -- Of plant_shapes. No foreign key: shapes are never removed, and the check
    -- would cost each deletion more than the record itself.
    shape bigint,
    plant text,
    deleted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_by text NOT NULL,
    session_role text NOT NULL DEFAULT session_user,
    request_id text,
    idempotency_key text,
    turn integer NOT NULL DEFAULT 0,
    restored_at timestamptz,
    restored_by text,
    CONSTRAINT plant_deletions_refused CHECK ((plant IS NULL) = (shape IS NULL)
        AND (plant IS NOT NULL OR idempotency_key IS NOT NULL AND restored_at IS NULL)),
    CONSTRAINT plant_deletions_restored CHECK ((restored_at IS NULL) = (restored_by IS NULL)),
    -- plant_id comes first so that one index also answers "was this plant
    -- deleted earlier?". Direct SQL has no key, and nulls never collide.
    CONSTRAINT plant_deletions_once UNIQUE (plant_id, deleted_by, idempotency_key, turn)
);
COMMENT ON TABLE public.plant_deletions IS 'Every plant that was deleted: its row, by whom, when, under which request. Also refusals, where plant is null.';
COMMENT ON COLUMN public.plant_deletions.plant IS 'The row as a composite literal, ROW(...)::text, with the columns of its shape. Null: nothing was deleted, and the client was told so.';
COMMENT ON COLUMN public.plant_deletions.deleted_by IS 'The principal of the request or, where request_id is null, the database role that deleted the row by direct SQL.';
COMMENT ON COLUMN public.plant_deletions.session_role IS 'The database role that the session had logged in as.';
COMMENT ON COLUMN public.plant_deletions.request_id IS 'Null for direct SQL, and for nothing else: this tells a role from a principal of the same name.';
COMMENT ON COLUMN public.plant_deletions.idempotency_key IS 'Null for direct SQL, and for a plant that left by a cascade of the request.';
COMMENT ON COLUMN public.plant_deletions.turn IS 'How many refusals of the same principal, plant and key came before.';

-- +goose Down
-- +goose StatementBegin
DO $$
BEGIN
    LOCK TABLE public.plant_deletions, public.plant_shapes IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM public.plant_deletions) THEN
        RAISE EXCEPTION 'refusing to drop public.plant_deletions: it records deletions or refusals'
            USING HINT = 'Export the ledger and empty it first; without it, deleted plants cannot be restored.';
    END IF;
    DROP TABLE public.plant_deletions, public.plant_shapes;
END
$$;
-- +goose StatementEnd
