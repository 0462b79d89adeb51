-- Who may ask for deletions: principals, and their bearer tokens as digests only. The
-- token itself is shown once, when made. Everything else knows the principal alone, so
-- that it may change its token.

-- +goose Up
CREATE TABLE public.api_principals (
    name text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$'),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE public.api_principals IS 'Clients of the service. The ledger knows them by their names.';

CREATE TABLE public.api_tokens (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    principal text NOT NULL REFERENCES public.api_principals,
    digest bytea NOT NULL UNIQUE CHECK (octet_length(digest) = 32),
    scopes text[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz
);
COMMENT ON COLUMN public.api_tokens.digest IS 'SHA-256 of the token.';
COMMENT ON COLUMN public.api_tokens.expires_at IS 'Null: never.';
COMMENT ON COLUMN public.api_tokens.last_used_at IS 'Noted at most once a minute.';

-- What the service may learn of a token: whoever has it can look it up, nobody can
-- list digests.
-- +goose StatementBegin
CREATE FUNCTION public.plantstore_token(wanted bytea) RETURNS TABLE (
    id uuid, principal text, scopes text[], created_at timestamptz, expires_at timestamptz, revoked_at timestamptz, last_used_at timestamptz
)
LANGUAGE sql STABLE ROWS 1
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.id, t.principal, t.scopes, t.created_at, t.expires_at, t.revoked_at, t.last_used_at
    FROM public.api_tokens t WHERE t.digest = wanted
$$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION public.plantstore_token(bytea) FROM PUBLIC;

-- +goose Down
-- +goose StatementBegin
DO $$
BEGIN
    LOCK TABLE public.api_principals, public.api_tokens IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM public.api_principals) THEN
        RAISE EXCEPTION 'refusing to drop public.api_principals: it holds clients'
            USING HINT = 'Clients would be locked out. Delete their tokens and them first if that is what you want.';
    END IF;
    DROP FUNCTION public.plantstore_token(bytea);
    DROP TABLE public.api_tokens, public.api_principals;
END
$$;
-- +goose StatementEnd
