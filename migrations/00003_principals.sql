-- Who may ask for deletions: principals with their budgets, and their tokens as digests.
-- locks: none

-- +goose Up
CREATE TABLE plantstore.principals (
    name text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$' OR starts_with(name, 'jwt:')),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    budget bigint CHECK (budget > 0),
    budget_period interval CHECK (budget_period > '0'),
    budget_used bigint NOT NULL DEFAULT 0,
    budget_resets_at timestamptz NOT NULL DEFAULT '-infinity',
    CONSTRAINT principals_budget CHECK ((budget IS NULL) = (budget_period IS NULL))
) WITH (fillfactor = 50);
COMMENT ON TABLE plantstore.principals IS 'Clients of the service. The ledger knows them by their names.';
COMMENT ON COLUMN plantstore.principals.budget IS 'How many plants the principal may delete in each period. Null: any number, or the service''s default for a principal of a JWT.';
COMMENT ON COLUMN plantstore.principals.budget_used IS 'How many it deleted in the period that ends at budget_resets_at.';

CREATE TABLE plantstore.tokens (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    principal text NOT NULL REFERENCES plantstore.principals,
    digest bytea NOT NULL UNIQUE CHECK (octet_length(digest) = 32),
    scopes text[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz CHECK (isfinite(expires_at)),
    revoked_at timestamptz CHECK (isfinite(revoked_at)),
    last_used_at timestamptz
);
COMMENT ON COLUMN plantstore.tokens.digest IS 'SHA-256 of the token.';
COMMENT ON COLUMN plantstore.tokens.expires_at IS 'Null: never.';
COMMENT ON COLUMN plantstore.tokens.last_used_at IS 'Written at most once a minute.';

-- Services keep all tokens in memory and read them again when this has changed. It is no
-- counter: a restored backup would count to the same number again.
CREATE TABLE plantstore.tokens_version (one boolean PRIMARY KEY DEFAULT true CHECK (one), version uuid NOT NULL);
INSERT INTO plantstore.tokens_version (version) VALUES (gen_random_uuid());

-- +goose StatementBegin
CREATE FUNCTION plantstore.note_token_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE plantstore.tokens_version SET version = gen_random_uuid();
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER note_change AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF principal, digest, scopes, expires_at, revoked_at
    ON plantstore.tokens FOR EACH STATEMENT EXECUTE FUNCTION plantstore.note_token_change();
CREATE TRIGGER note_change AFTER UPDATE OF name, budget, budget_period
    ON plantstore.principals FOR EACH STATEMENT EXECUTE FUNCTION plantstore.note_token_change();

-- +goose Down
-- +goose StatementBegin
DO $$
BEGIN
    LOCK TABLE plantstore.principals, plantstore.tokens IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM plantstore.tokens) THEN
        RAISE EXCEPTION 'refusing to drop plantstore.tokens: it has tokens'
            USING HINT = 'Clients would be locked out. Delete the tokens first if that is what you want.';
    END IF;
    IF EXISTS (SELECT FROM plantstore.principals WHERE budget IS NOT NULL) THEN
        RAISE EXCEPTION 'refusing to drop plantstore.principals: it has budgets'
            USING HINT = 'End each budget with plantstore token budget NAME none if that is what you want.';
    END IF;
END
$$;
-- +goose StatementEnd
DROP TABLE plantstore.tokens, plantstore.principals, plantstore.tokens_version;
DROP FUNCTION plantstore.note_token_change();
