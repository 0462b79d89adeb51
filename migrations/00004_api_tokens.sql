-- Who may ask for deletions, and how many: principals, their bearer tokens as digests
-- only, and their deletion budgets. The token itself is shown once, when made.
-- Everything else knows the principal alone, so that it may change its token.

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
    last_used_at timestamptz,
    -- The service knows no other moments: it would take an infinite one for none.
    CONSTRAINT api_tokens_finite CHECK (isfinite(expires_at) AND isfinite(revoked_at))
);
COMMENT ON COLUMN public.api_tokens.digest IS 'SHA-256 of the token.';
COMMENT ON COLUMN public.api_tokens.expires_at IS 'Null: never.';
COMMENT ON COLUMN public.api_tokens.last_used_at IS 'Noted at most once a minute.';

-- What principals have used of their deletion budgets: most deletions in any span of
-- time as long as period. Where most is null the budget is the service's default, for
-- principals that it knows from elsewhere; default_most and default_period are what that
-- was with the last deletion. Without a row there is no budget, or nothing used of the
-- default yet.
--
-- What was used is counted in parts, each of all that was deleted within a sixtieth of
-- the period. A part counts until its last deletion is older than the period: so no span
-- ever has more, and what was used comes back a sixtieth late at the most.
CREATE TABLE public.plantstore_budgets (
    principal text PRIMARY KEY,
    most bigint CHECK (most > 0),
    period interval CHECK (period > '0'),
    default_most bigint,
    default_period interval,
    lifted_until timestamptz NOT NULL DEFAULT '-infinity',
    used bigint NOT NULL DEFAULT 0,
    began timestamptz NOT NULL DEFAULT '-infinity',
    parts bigint[] NOT NULL DEFAULT '{}',
    ends timestamptz[] NOT NULL DEFAULT '{}',
    CONSTRAINT plantstore_budgets_whole CHECK ((most IS NULL) = (period IS NULL))
) WITH (fillfactor = 50); -- an update stays on its page
COMMENT ON TABLE public.plantstore_budgets IS 'How many plants principals may delete in a time, and how many they did.';
COMMENT ON COLUMN public.plantstore_budgets.default_most IS 'The service''s default with the last deletion. It counts where most is null.';
COMMENT ON COLUMN public.plantstore_budgets.used IS 'The sum of parts.';
COMMENT ON COLUMN public.plantstore_budgets.began IS 'When the last part had its first deletion.';
COMMENT ON COLUMN public.plantstore_budgets.ends IS 'When each part had its last deletion.';

-- The trigger on plants calls this for a principal that has a budget, with how many
-- plants it deletes. It returns null if that is within the budget, which is reduced by
-- as much; else how many it may still delete, in how many seconds it may delete those
-- that were asked for, what the budget is, and until when it was lifted last. The row is
-- locked until the transaction ends: whoever spends at the same time counts on from what
-- was committed, and waits for that as many milliseconds as patience, if that is less
-- than what is set here.
-- +goose StatementBegin
CREATE FUNCTION public.plantstore_spend(spender text, plants bigint, usual_most bigint, usual_period interval, patience bigint) RETURNS json
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET lock_timeout = '450ms'
AS $$
DECLARE
    budget public.plantstore_budgets;
    moment timestamptz;
    missing bigint;
    room timestamptz;
    part integer;
    told text;
BEGIN
    -- A commit may take longer than a batch waits for a plant. Less than half of
    -- deadlock_timeout: no transaction of the store's that comes to wait for us is ended as
    -- a deadlock.
    told := set_config('lock_timeout', greatest(1, least(patience, 450 * least(1, date_part('epoch', current_setting('deadlock_timeout')::interval))))::bigint::text, true);
    -- As a rule the last part is still open, and none is over.
    UPDATE public.plantstore_budgets b SET used = b.used + plants, default_most = usual_most, default_period = usual_period,
        parts[cardinality(b.parts)] = b.parts[cardinality(b.parts)] + plants, ends[cardinality(b.ends)] = greatest(b.ends[cardinality(b.ends)], clock_timestamp())
    WHERE b.principal = spender AND b.used + plants <= coalesce(b.most, usual_most)
        AND clock_timestamp() >= b.began AND clock_timestamp() < b.began + coalesce(b.period, usual_period) / 60
        AND clock_timestamp() < b.ends[1] + coalesce(b.period, usual_period) AND clock_timestamp() >= b.lifted_until;
    IF FOUND THEN
        RETURN NULL;
    END IF;

    IF EXISTS (SELECT FROM public.plantstore_budgets b WHERE b.principal = spender AND clock_timestamp() < b.lifted_until) THEN
        RETURN NULL;
    END IF;
    LOOP
        SELECT b.* INTO budget FROM public.plantstore_budgets b WHERE b.principal = spender FOR UPDATE;
        EXIT WHEN FOUND;
        -- The default is not for principals of ours. The service has not heard yet that
        -- this one has no budget any more.
        IF EXISTS (SELECT FROM public.api_principals p WHERE p.name = spender) THEN
            RETURN NULL;
        END IF;
        INSERT INTO public.plantstore_budgets (principal) VALUES (spender) ON CONFLICT (principal) DO NOTHING;
    END LOOP;
    budget.most := coalesce(budget.most, usual_most);
    budget.period := coalesce(budget.period, usual_period);
    moment := clock_timestamp();
    -- What was deleted later than now, by a clock that was set back, counts for two periods
    -- at the most: nobody knows when that was, and the clock may have been a year ahead. The
    -- parts are in no order then.
    IF moment - budget.period >= ANY (budget.ends) OR moment + budget.period < ANY (budget.ends) THEN
        IF budget.ends[cardinality(budget.ends)] > moment + budget.period THEN
            budget.began := '-infinity';
        END IF;
        SELECT coalesce(sum(u.n), 0)::bigint, coalesce(array_agg(u.n ORDER BY u.nth), '{}'), coalesce(array_agg(u.until ORDER BY u.nth), '{}')
        INTO budget.used, budget.parts, budget.ends
        FROM unnest(budget.parts, budget.ends) WITH ORDINALITY u (n, until, nth)
        WHERE u.until > moment - budget.period AND u.until <= moment + budget.period;
    END IF;

    missing := budget.used + plants - budget.most;
    IF missing > 0 THEN
        -- In a batch each asked for one, which is told when there is room for one.
        IF current_setting('plantstore.batch', true) <> '' THEN
            missing := greatest(budget.used + 1 - budget.most, 0);
        END IF;
        -- More than the budget is never to be had: then the end of the last part.
        SELECT coalesce(min(p.until) FILTER (WHERE p.freed >= missing), max(p.until), moment) INTO room
        FROM (SELECT u.until, sum(u.n) OVER (ORDER BY u.until) AS freed FROM unnest(budget.parts, budget.ends) u (n, until)) p;
        RETURN json_build_object('left', greatest(budget.most - budget.used + coalesce(nullif(current_setting('plantstore.spent', true), ''), '0')::bigint, 0), 'seconds',
            extract(epoch FROM room + budget.period - moment),
            'most', budget.most, 'nanoseconds', (1e9 * extract(epoch FROM budget.period))::bigint, 'lifted', nullif(budget.lifted_until, '-infinity'));
    END IF;
    IF moment < budget.began + budget.period / 60 AND cardinality(budget.parts) > 0 THEN
        part := cardinality(budget.parts);
        budget.parts[part] := budget.parts[part] + plants;
        budget.ends[part] := greatest(budget.ends[part], moment);
    ELSE
        budget.parts := budget.parts || plants;
        budget.ends := budget.ends || moment;
        budget.began := moment;
    END IF;
    UPDATE public.plantstore_budgets b SET used = budget.used + plants, began = budget.began, parts = budget.parts, ends = budget.ends,
        default_most = usual_most, default_period = usual_period
    WHERE b.principal = spender;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- What the service may learn of a token: whoever has it can look it up, nobody can
-- list digests.
-- +goose StatementBegin
CREATE FUNCTION public.plantstore_token(wanted bytea) RETURNS TABLE (
    id uuid, principal text, scopes text[], created_at timestamptz, expires_at timestamptz, revoked_at timestamptz, last_used_at timestamptz,
    budget bigint, budget_nanoseconds bigint
)
LANGUAGE sql STABLE ROWS 1
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT t.id, t.principal, t.scopes, t.created_at, t.expires_at, t.revoked_at, t.last_used_at,
        coalesce(b.most, 0), coalesce(1e9 * extract(epoch FROM b.period), 0)::bigint
    FROM public.api_tokens t LEFT JOIN public.plantstore_budgets b ON b.principal = t.principal WHERE t.digest = wanted
$$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION public.plantstore_spend(text, bigint, bigint, interval, bigint), public.plantstore_token(bytea) FROM PUBLIC;

-- +goose Down
-- +goose StatementBegin
DO $$
BEGIN
    LOCK TABLE public.api_principals, public.api_tokens, public.plantstore_budgets IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM public.api_principals) THEN
        RAISE EXCEPTION 'refusing to drop public.api_principals: it holds clients'
            USING HINT = 'Clients would be locked out. Delete their tokens and them first if that is what you want.';
    END IF;
    IF EXISTS (SELECT FROM public.plantstore_budgets WHERE most IS NOT NULL OR lifted_until > now()) THEN
        RAISE EXCEPTION 'refusing to drop public.plantstore_budgets: it holds budgets'
            USING HINT = 'Nothing would stop those clients any more. End each with plantstore token budget NAME none if that is what you want.';
    END IF;
    DROP FUNCTION public.plantstore_token(bytea);
    DROP FUNCTION public.plantstore_spend(text, bigint, bigint, interval, bigint);
    -- What is left are counts of principals that the service knows from elsewhere.
    DROP TABLE public.plantstore_budgets, public.api_tokens, public.api_principals;
END
$$;
-- +goose StatementEnd
