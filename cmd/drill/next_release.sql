-- The migration of a made-up next release. It takes the strongest lock there is, on the
-- table that all clients want, and changes the rows that the ledger records.

-- +goose Up
ALTER TABLE public.plants ADD COLUMN drilled_at timestamptz;

-- +goose Down
ALTER TABLE public.plants DROP COLUMN drilled_at;
