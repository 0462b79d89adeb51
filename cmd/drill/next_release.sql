-- The migration of a made-up next release. It takes the strongest lock on the table that all
-- clients want, and changes what the ledger records and its own table.
-- locks: public.plants ACCESS EXCLUSIVE

-- +goose Up
ALTER TABLE public.plants ADD COLUMN drilled_at timestamptz;
ALTER TABLE plantstore.deletions ADD COLUMN drilled boolean NOT NULL DEFAULT true;

-- +goose Down
-- locks: public.plants ACCESS EXCLUSIVE
ALTER TABLE plantstore.deletions DROP COLUMN drilled;
ALTER TABLE public.plants DROP COLUMN drilled_at;
