-- The text that each migration had when it was applied, as a checksum, so that
-- a file which changes afterwards is noticed. goose keeps no such thing, and
-- migrations applied by its own command have no row here until 'plantstore
-- migrate up' runs next.

-- +goose Up
CREATE TABLE public.plantstore_migrations (
    version bigint PRIMARY KEY,
    applied_as integer NOT NULL,
    checksum text NOT NULL CHECK (checksum ~ '^[0-9a-f]{64}$'),
    baseline boolean NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    recorded_by text NOT NULL DEFAULT session_user
);
COMMENT ON TABLE public.plantstore_migrations IS 'Checksums of the migrations as they were applied. Only the migrating role needs it.';
COMMENT ON COLUMN public.plantstore_migrations.applied_as IS 'goose_db_version.id. A row whose migration was taken back, or applied again, by something else counts no more.';
COMMENT ON COLUMN public.plantstore_migrations.checksum IS 'SHA-256 of the file.';
COMMENT ON COLUMN public.plantstore_migrations.baseline IS 'True: something else applied it earlier; the checksum is that of the first plantstore that looked.';

-- +goose Down
-- Does not refuse: nobody's data is lost, and the next Up makes new baselines.
DROP TABLE public.plantstore_migrations;
