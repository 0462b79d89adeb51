-- Every row that leaves public.plants is written to the ledger in the same transaction,
-- whoever deletes it: the service, psql or a cascade. TRUNCATE is refused.
-- locks: public.plants SHARE ROW EXCLUSIVE

-- +goose Up
-- Runs once for each DELETE statement. The requests are in the setting plantstore.requests, an
-- array of rows: plants, principals, request ids and keys. The lone deletion of a principal
-- with a budget adds the amount and the period in seconds that the service knows.
-- The setting counts for members of plantstore_app and of the ledger's owner only. For
-- everybody else the record names the session's role.
--
-- The literal is that of ROW(g.*)::text. The cast through record also works with virtual
-- generated columns, which a transition table has as null.
--
-- A lone deletion is recorded with all that a cascade took along; those rows have no key.
-- In a batch, a row that no request names fails NOT NULL on deleted_by, and the service
-- tries each half of the batch by itself.
-- +goose StatementBegin
CREATE FUNCTION plantstore.record_deletion() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- One form for everybody, whatever the session has: it has to restore exactly.
SET datestyle = 'ISO, YMD'
SET intervalstyle = 'postgres'
SET extra_float_digits = 1
SET bytea_output = 'hex'
SET timezone = 'UTC'
SET lc_monetary = 'C'
SET xmlbinary = 'base64'
SET quote_all_identifiers = off
AS $$
#variable_conflict use_variable -- the store may name its columns like these
DECLARE
    requests text[];
    plant bigint;
    principal text;
    request text;
    key text;
BEGIN
    -- to_regrole is null where there is no such role, and so is pg_has_role then.
    IF pg_has_role(session_user, current_user, 'MEMBER') OR pg_has_role(session_user, to_regrole('plantstore_app'), 'MEMBER') THEN
        requests := nullif(current_setting('plantstore.requests', true), ''); -- '' where an earlier transaction set it
    END IF;
    IF array_length(requests, 2) > 1 THEN
        INSERT INTO plantstore.deletions (plant_id, deleted_by, request_id, idempotency_key, plant, literal, types)
        SELECT g.id, a.principal, a.request, a.key, row_to_json(g.*), (g.*)::record::text,
            ARRAY(SELECT t.atttypid::regtype FROM pg_attribute t WHERE t.attrelid = TG_RELID AND t.attnum > 0 AND NOT t.attisdropped ORDER BY t.attnum)
        FROM gone g LEFT JOIN unnest(requests[1:1]::bigint[], requests[2:2], requests[3:3], requests[4:4]) a (plant, principal, request, key) ON a.plant = g.id;
    ELSE
        plant := requests[1][1];
        principal := coalesce(requests[2][1], session_user);
        request := requests[3][1];
        key := requests[4][1];
        INSERT INTO plantstore.deletions (plant_id, deleted_by, request_id, idempotency_key, plant, literal, types)
        SELECT g.id, principal, request, CASE WHEN g.id = plant THEN key END, row_to_json(g.*), (g.*)::record::text,
            ARRAY(SELECT t.atttypid::regtype FROM pg_attribute t WHERE t.attrelid = TG_RELID AND t.attnum > 0 AND NOT t.attisdropped ORDER BY t.attnum)
        FROM gone g;
    END IF;
    IF array_length(requests, 1) > 4 AND FOUND THEN
        PERFORM plantstore.charge(requests[2][1], (SELECT count(*) FROM gone), requests[5][1]::bigint, make_interval(secs => requests[6][1]::float8));
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- Charges a principal's budget, or raises PSB01 with the seconds until the period ends as
-- DETAIL. The row stays locked until the transaction ends. The period begins with its
-- first deletion. A period that ends later than a whole period from now was begun by a
-- clock that was set back, or under a longer period, and begins anew.
-- +goose StatementBegin
CREATE FUNCTION plantstore.charge(spender text, plants bigint, default_budget bigint, default_period interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    p plantstore.principals;
    moment timestamptz;
BEGIN
    LOOP
        SELECT * INTO p FROM plantstore.principals WHERE name = spender FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO plantstore.principals (name) VALUES (spender) ON CONFLICT DO NOTHING; -- the first deletion with a JWT
    END LOOP;
    p.budget := coalesce(p.budget, default_budget);
    p.budget_period := coalesce(p.budget_period, default_period);
    moment := clock_timestamp();
    IF p.budget_resets_at <= moment OR p.budget_resets_at > moment + p.budget_period THEN
        p.budget_used := 0;
        p.budget_resets_at := moment + p.budget_period;
    END IF;
    IF p.budget_used + plants > p.budget THEN
        RAISE EXCEPTION 'the deletion budget of % is used up', spender
            USING ERRCODE = 'PSB01', DETAIL = extract(epoch FROM p.budget_resets_at - moment)::text;
    END IF;
    UPDATE plantstore.principals SET budget_used = p.budget_used + plants, budget_resets_at = p.budget_resets_at WHERE name = spender;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION plantstore.refuse_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'TRUNCATE of public.plants would leave no record: use DELETE' USING ERRCODE = 'feature_not_supported';
END
$$;
-- +goose StatementEnd

-- Returns what became of the deletion that principal, plant and key name: 204 or the code of
-- a recorded refusal, when, and the request that it was recorded for. Without an entry:
-- 50304, the trigger is off; 0, the plant is there; 40401 or 40402, it is not, with when it
-- was deleted. With 'refuse', the answer is recorded: 40401 or 40402 or, while the plant is
-- there, 40900 or 40901 if 'refuse' says so. The INSERT waits for an attempt of the key that
-- is under way, and an attempt that is committed wins.
--
-- What was read may not have reached the synchronous standby yet. The message makes the
-- commit of this transaction wait for it.
-- +goose StatementBegin
CREATE FUNCTION plantstore.resolve(plant bigint, principal text, request text, key text, refuse integer,
    OUT code integer, OUT at timestamptz, OUT by_request text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    entry plantstore.deletions;
BEGIN
    PERFORM pg_logical_emit_message(true, 'plantstore', '');
    FOR attempt IN 1..3 LOOP
        SELECT * INTO entry FROM plantstore.deletions d WHERE d.plant_id = plant AND d.deleted_by = principal AND d.idempotency_key = key;
        IF FOUND THEN
            code := coalesce(entry.refused, 204);
            at := entry.deleted_at;
            by_request := entry.request_id;
            IF code = 40402 THEN
                at := coalesce((SELECT max(d.deleted_at) FROM plantstore.deletions d
                    WHERE d.plant_id = plant AND d.refused IS NULL AND d.id < entry.id), at); -- that entry may be purged
            END IF;
            RETURN;
        END IF;
        IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('session_replication_role') = 'replica'
                OR NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = to_regclass('public.plants')
                    AND t.tgname = 'record_deletion' AND t.tgenabled IN ('O', 'A')) THEN
            code := 50304;
            RETURN;
        END IF;
        at := NULL;
        IF EXISTS (SELECT FROM ONLY public.plants p WHERE p.id = plant) THEN
            code := CASE WHEN refuse IN (40900, 40901) THEN refuse ELSE 0 END;
        ELSE
            SELECT max(d.deleted_at) INTO at FROM plantstore.deletions d WHERE d.plant_id = plant AND d.refused IS NULL;
            code := CASE WHEN at IS NULL THEN 40401 ELSE 40402 END;
        END IF;
        IF refuse IS NULL OR code = 0 THEN
            RETURN;
        END IF;
        INSERT INTO plantstore.deletions (plant_id, deleted_by, request_id, idempotency_key, refused)
            VALUES (plant, principal, request, key, code) ON CONFLICT ON CONSTRAINT deletions_once DO NOTHING;
        IF FOUND THEN
            RETURN;
        END IF;
        -- An attempt of the key was committed meanwhile: read its entry.
    END LOOP;
    RAISE EXCEPTION 'the ledger entry of this key keeps disappearing';
END
$$;
-- +goose StatementEnd

CREATE TRIGGER record_deletion AFTER DELETE ON public.plants REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION plantstore.record_deletion();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON public.plants
    FOR EACH STATEMENT EXECUTE FUNCTION plantstore.refuse_truncate();
-- Who could execute record_deletion() could put it on a table of their own, and forge entries.
REVOKE EXECUTE ON FUNCTION plantstore.record_deletion(), plantstore.charge(text, bigint, bigint, interval), plantstore.resolve(bigint, text, text, text, integer) FROM PUBLIC;

-- +goose Down
-- locks: public.plants ACCESS EXCLUSIVE
-- Only the owner of a table can drop its triggers, and the owner of a function those that use it.
DROP FUNCTION plantstore.record_deletion(), plantstore.refuse_truncate() CASCADE;
DROP FUNCTION plantstore.charge(text, bigint, bigint, interval), plantstore.resolve(bigint, text, text, text, integer);
