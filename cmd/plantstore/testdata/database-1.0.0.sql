-- PostgreSQL database dump
SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
-- Name: plantstore; Type: SCHEMA; Schema: -; Owner: plantstore_owner
CREATE SCHEMA plantstore;
ALTER SCHEMA plantstore OWNER TO plantstore_owner;
-- Name: chain(regclass); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.chain(target regclass) RETURNS SETOF regclass
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    WITH RECURSIVE keys AS MATERIALIZED (
        SELECT * FROM plantstore.foreign_keys
    ), above (relation) AS (
        SELECT target
        UNION SELECT k.parent FROM above a JOIN keys k ON k.relation = a.relation AND k.parent <> 'public.plants'::regclass
    )
    SELECT a.relation FROM above a ORDER BY (SELECT min(k.depth) FROM keys k WHERE k.relation = a.relation), a.relation
$$;
ALTER FUNCTION plantstore.chain(target regclass) OWNER TO plantstore_owner;
-- Name: charge(text, bigint, bigint, interval); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.charge(spender text, plants bigint, default_budget bigint, default_period interval) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
ALTER FUNCTION plantstore.charge(spender text, plants bigint, default_budget bigint, default_period interval) OWNER TO plantstore_owner;
-- Name: default_of(regclass, text); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.default_of(target regclass, column_name text) RETURNS text
    LANGUAGE sql STABLE
    AS $$
    SELECT coalesce((SELECT pg_catalog.pg_get_expr(v.adbin, v.adrelid) FROM pg_catalog.pg_attrdef v JOIN pg_catalog.pg_attribute a ON a.attrelid = v.adrelid AND a.attnum = v.adnum
        WHERE a.attrelid = target AND a.attname = column_name), 'NULL')
$$;
ALTER FUNCTION plantstore.default_of(target regclass, column_name text) OWNER TO plantstore_owner;
-- Name: deletion_of_plant(bigint); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.deletion_of_plant(deleted_plant bigint) RETURNS SETOF bigint
    LANGUAGE sql STABLE
    AS $$
    SELECT t.id FROM plantstore.deletions t WHERE t.plant_id = deleted_plant AND t.refused IS NULL AND t.transaction_id = pg_catalog.pg_current_xact_id()
    ORDER BY t.id + 0 DESC LIMIT 1 -- the newest, and not by the index on the id
$$;
ALTER FUNCTION plantstore.deletion_of_plant(deleted_plant bigint) OWNER TO plantstore_owner;
-- Name: deletions_of_row(regclass, text); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.deletions_of_row(parent regclass, parent_key text) RETURNS SETOF bigint
    LANGUAGE sql STABLE
    AS $$
    SELECT c.deletion_id FROM plantstore.cascaded c WHERE c.key = parent_key COLLATE "C" AND c.relation = parent AND c.changed IS NULL
        AND (SELECT t.transaction_id FROM plantstore.deletions t WHERE t.id = c.deletion_id) = pg_catalog.pg_current_xact_id() OFFSET 0
$$;
ALTER FUNCTION plantstore.deletions_of_row(parent regclass, parent_key text) OWNER TO plantstore_owner;
-- Name: is_watched(regclass, "char"); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.is_watched(target regclass, action "char") RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
        WHERE t.tgrelid = target AND t.tgname = CASE action WHEN 'c' THEN 'record_cascade' ELSE 'record_change' END
            AND t.tgenabled IN ('O', 'A') AND p.prosrc = plantstore.recorder(target))
$$;
ALTER FUNCTION plantstore.is_watched(target regclass, action "char") OWNER TO plantstore_owner;
-- Name: missing(regclass); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.missing(target regclass) RETURNS SETOF text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT format('GRANT %s ON %s TO %I;', string_agg(v.privilege, ', '), v.object, current_user)
    FROM pg_class c, LATERAL (
        SELECT 1 AS n, 'TEMPORARY' AS privilege, format('DATABASE %I', current_database()) AS object, has_database_privilege(current_database(), 'TEMPORARY') AS granted
        UNION ALL (SELECT 2, 'USAGE', 'SCHEMA ' || n::regnamespace, has_schema_privilege(n, 'USAGE')
            FROM (SELECT c.relnamespace UNION SELECT t.typnamespace FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = c.oid AND a.attnum > 0) s (n))
        UNION ALL SELECT 3, p, c.oid::regclass::text, has_table_privilege(c.oid, p)
            FROM unnest(CASE WHEN EXISTS (SELECT FROM plantstore.foreign_keys k WHERE k.relation = target) THEN '{SELECT,INSERT,UPDATE,TRIGGER}' ELSE '{SELECT,INSERT}'::text[] END) p
    ) v WHERE c.oid = target AND NOT v.granted
    GROUP BY v.n, v.object ORDER BY v.n
$$;
ALTER FUNCTION plantstore.missing(target regclass) OWNER TO plantstore_owner;
-- Name: note_token_change(); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.note_token_change() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    UPDATE plantstore.tokens_version SET version = gen_random_uuid();
    RETURN NULL;
END
$$;
ALTER FUNCTION plantstore.note_token_change() OWNER TO plantstore_owner;
-- Name: record public.order_items(); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore."record public.order_items"() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET "DateStyle" TO 'ISO, YMD'
    SET "IntervalStyle" TO 'postgres'
    SET extra_float_digits TO '1'
    SET bytea_output TO 'hex'
    SET "TimeZone" TO 'UTC'
    SET lc_monetary TO 'C'
    SET xmlbinary TO 'base64'
    SET quote_all_identifiers TO 'off'
    AS $$
#variable_conflict use_variable -- the table may name its columns like these
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO plantstore.cascaded (deletion_id, relation, key, changed, became, content, literal)
        SELECT d.id, TG_RELID, g.id::text, NULL, NULL, row_to_json(g.*), (g.*)::record::text
        FROM gone g, LATERAL (SELECT * FROM plantstore.deletion_of_plant(g.plant_id)) d (id);
    END IF;
    RETURN NULL;
EXCEPTION WHEN syntax_error_or_access_rule_violation THEN -- names, types and rights that changed
    RAISE WARNING 'rows of % that left or changed with plants were not recorded: %', TG_RELID::regclass, SQLERRM
        USING HINT = format('Run SELECT plantstore.watch(%L);', TG_RELID::regclass);
    RETURN NULL;
END
$$;
ALTER FUNCTION plantstore."record public.order_items"() OWNER TO plantstore_owner;
-- Name: record public.stock(); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore."record public.stock"() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET "DateStyle" TO 'ISO, YMD'
    SET "IntervalStyle" TO 'postgres'
    SET extra_float_digits TO '1'
    SET bytea_output TO 'hex'
    SET "TimeZone" TO 'UTC'
    SET lc_monetary TO 'C'
    SET xmlbinary TO 'base64'
    SET quote_all_identifiers TO 'off'
    AS $$
#variable_conflict use_variable -- the table may name its columns like these
BEGIN
    IF TG_OP = 'UPDATE' THEN
        INSERT INTO plantstore.cascaded (deletion_id, relation, key, changed, became, content, literal)
        SELECT d.id, TG_RELID, g.id::text, 'plant_id', 'NULL', row_to_json(g.*), (g.*)::record::text
        FROM gone g, LATERAL (SELECT * FROM plantstore.deletion_of_plant(g.plant_id)) d (id);
    END IF;
    RETURN NULL;
EXCEPTION WHEN syntax_error_or_access_rule_violation THEN -- names, types and rights that changed
    RAISE WARNING 'rows of % that left or changed with plants were not recorded: %', TG_RELID::regclass, SQLERRM
        USING HINT = format('Run SELECT plantstore.watch(%L);', TG_RELID::regclass);
    RETURN NULL;
END
$$;
ALTER FUNCTION plantstore."record public.stock"() OWNER TO plantstore_owner;
-- Name: record_deletion(); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.record_deletion() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "DateStyle" TO 'ISO, YMD'
    SET "IntervalStyle" TO 'postgres'
    SET extra_float_digits TO '1'
    SET bytea_output TO 'hex'
    SET "TimeZone" TO 'UTC'
    SET lc_monetary TO 'C'
    SET xmlbinary TO 'base64'
    SET quote_all_identifiers TO 'off'
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
ALTER FUNCTION plantstore.record_deletion() OWNER TO plantstore_owner;
-- Name: recorder(regclass); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.recorder(target regclass) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET quote_all_identifiers TO 'off'
    AS $_$
    WITH primary_key (value) AS (
        SELECT format(CASE count(*) WHEN 1 THEN '%s::text' ELSE 'ROW(%s)::text' END, string_agg(format('g.%I', a.attname), ', ' ORDER BY k.n))
        FROM pg_constraint p, unnest(p.conkey) WITH ORDINALITY k (attnum, n), pg_attribute a
        WHERE p.conrelid = target AND p.contype = 'p' AND a.attrelid = target AND a.attnum = k.attnum
    ), lookups AS ( -- one for each key; those that unwatchable() refuses may have been added after the watch
        SELECT k.name, k.action, CASE k.action WHEN 'c' THEN 'DELETE' ELSE 'UPDATE' END AS event, CASE WHEN k.action <> 'c' THEN k.column_name END AS changed,
            CASE k.parent WHEN 'public.plants'::regclass THEN format('SELECT * FROM plantstore.deletion_of_plant(g.%I)', k.column_name)
                ELSE format('SELECT * FROM plantstore.deletions_of_row(%L, g.%I::text)', k.parent, k.column_name) END AS deletions
        FROM plantstore.foreign_keys k WHERE k.relation = target AND k.column_name IS NOT NULL
    ), branches AS ( -- a row that several keys took with one deletion is recorded once
        SELECT event, action, changed, string_agg(deletions, ' UNION ' ORDER BY name) AS deletions,
            CASE action WHEN 'c' THEN 'NULL' WHEN 'n' THEN quote_literal('NULL') ELSE format('(SELECT plantstore.default_of(TG_RELID, %L))', changed) END AS became
        FROM lookups GROUP BY event, action, changed
    )
    SELECT '
#variable_conflict use_variable -- the table may name its columns like these
BEGIN
' || string_agg(format($branch$    IF TG_OP = %L THEN
        INSERT INTO plantstore.cascaded (deletion_id, relation, key, changed, became, content, literal)
        SELECT d.id, TG_RELID, %s, %L, %s, row_to_json(g.*), (g.*)::record::text
        FROM gone g, LATERAL (%s) d (id);
    END IF;
$branch$, b.event, p.value, b.changed, b.became, b.deletions), '' ORDER BY b.event, b.changed, b.action) || $end$    RETURN NULL;
EXCEPTION WHEN syntax_error_or_access_rule_violation THEN -- names, types and rights that changed
    RAISE WARNING 'rows of % that left or changed with plants were not recorded: %', TG_RELID::regclass, SQLERRM
        USING HINT = format('Run SELECT plantstore.watch(%L);', TG_RELID::regclass);
    RETURN NULL;
END
$end$
    FROM branches b, primary_key p
$_$;
ALTER FUNCTION plantstore.recorder(target regclass) OWNER TO plantstore_owner;
-- Name: refuse_truncate(); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.refuse_truncate() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'TRUNCATE of public.plants would leave no record: use DELETE' USING ERRCODE = 'feature_not_supported';
END
$$;
ALTER FUNCTION plantstore.refuse_truncate() OWNER TO plantstore_owner;
-- Name: resolve(bigint, text, text, text, integer); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.resolve(plant bigint, principal text, request text, key text, refuse integer, OUT code integer, OUT at timestamp with time zone, OUT by_request text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
ALTER FUNCTION plantstore.resolve(plant bigint, principal text, request text, key text, refuse integer, OUT code integer, OUT at timestamp with time zone, OUT by_request text) OWNER TO plantstore_owner;
-- Name: unfit(); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.unfit() RETURNS SETOF text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT 'public.plants ' || v.problem
    FROM pg_class c
    LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'id' AND NOT a.attisdropped,
    LATERAL (VALUES
        (c.relkind <> 'r', 'is not an ordinary table'),
        (c.relpersistence = 'u', 'is unlogged: a crash of the server would empty it'),
        (a.attnum IS NULL, 'has no column id'),
        (a.atttypid <> 'int8'::regtype, 'has a column id that is not a bigint'),
        (NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum AND i.indimmediate),
            'has a primary key other than (id), or a deferrable one'),
        (EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid), 'has tables that inherit from it: their rows would leave without a record'),
        (EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid), 'is a child of another table: rows deleted through that one would leave without a record'),
        (c.relrowsecurity, 'has row level security: a hidden plant would be answered as missing'),
        (EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid), 'has a rule: a deletion might do something else'),
        (EXISTS (SELECT FROM pg_subscription_rel s WHERE s.srrelid = c.oid), 'is written by a subscription, whose deletions leave no record')
    ) v (holds, problem)
    WHERE c.oid = to_regclass('public.plants') AND v.holds
$$;
ALTER FUNCTION plantstore.unfit() OWNER TO plantstore_owner;
-- Name: unwatch(regclass); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.unwatch(target regclass) RETURNS SETOF regclass
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '1200ms'
    AS $$
DECLARE
    f regprocedure;
    ended regclass;
BEGIN
    FOR f, ended IN SELECT DISTINCT t.tgfoid, t.tgrelid FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
        WHERE t.tgname IN ('record_cascade', 'record_change') AND p.pronamespace = 'plantstore'::regnamespace
            AND target IN (SELECT plantstore.chain(t.tgrelid))
    LOOP
        EXECUTE format('DROP FUNCTION %s CASCADE', f);
        RETURN NEXT ended;
    END LOOP;
END
$$;
ALTER FUNCTION plantstore.unwatch(target regclass) OWNER TO plantstore_owner;
-- Name: unwatchable(regclass); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.unwatchable(target regclass) RETURNS SETOF text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    WITH chain AS MATERIALIZED (
        SELECT c.* FROM plantstore.chain(target) WITH ORDINALITY t (relation, n) JOIN pg_class c ON c.oid = t.relation ORDER BY t.n
    ), keys AS MATERIALIZED (
        SELECT k.*, a.atttypid AS type, b.atttypid AS parent_type, a.attcollation AS collation, b.attcollation AS parent_collation FROM plantstore.foreign_keys k
        JOIN pg_attribute a ON a.attrelid = k.relation AND a.attnum = k.columns[1] JOIN pg_attribute b ON b.attrelid = k.parent AND b.attnum = k.parent_columns[1]
    ), primary_keys AS (
        SELECT i.indrelid AS relation, y.oid AS type, y.typcategory AS category FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
        JOIN pg_type y ON y.oid = a.atttypid WHERE i.indisprimary
    )
    SELECT format('%s %s', c.oid::regclass, v.problem) FROM chain c, LATERAL (VALUES
        (NOT EXISTS (SELECT FROM keys k WHERE k.relation = c.oid), 'loses and changes no rows when a plant is deleted'),
        (c.relispartition, 'is a partition'),
        (NOT EXISTS (SELECT FROM primary_keys p WHERE p.relation = c.oid), 'has no primary key'),
        (EXISTS (SELECT FROM primary_keys p WHERE p.relation = c.oid AND (p.category IN ('A', 'C') OR p.type = 'jsonb'::regtype
            OR EXISTS (SELECT FROM pg_cast WHERE castsource = p.type AND casttarget = 'json'::regtype))), 'has an array, a composite or JSON in its primary key'),
        (EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE t.tgrelid = c.oid AND t.tgname IN ('record_cascade', 'record_change')
            AND p.pronamespace <> 'plantstore'::regnamespace), 'has a trigger of its own that is called record_cascade or record_change'),
        (octet_length('record ' || c.oid::regclass) > 63, 'has a name of more than 56 bytes'),
        (c.relrowsecurity, 'has row level security'),
        (EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid), 'has a rule')
    ) v (holds, problem) WHERE v.holds
    UNION ALL
    SELECT format('%s refers by %I to %s, %s', k.relation, k.name, k.parent, v.problem) FROM chain c JOIN keys k ON k.relation = c.oid, LATERAL (VALUES
        (k.levels > 1, 'and deletions reach that on paths of different lengths'),
        (k.column_name IS NULL, 'but not to a primary key of one column'),
        (NOT (k.type = ANY ('{int2,int4,int8}'::regtype[]) AND k.parent_type = ANY ('{int2,int4,int8}'::regtype[])
            OR k.type = k.parent_type AND k.type = ANY ('{uuid,text,varchar}'::regtype[])), 'a key that is no integer, uuid or text'),
        (EXISTS (SELECT FROM pg_collation l WHERE l.oid IN (k.collation, k.parent_collation) AND NOT l.collisdeterministic), 'a key with a nondeterministic collation')
    ) v (holds, problem) WHERE v.holds
$$;
ALTER FUNCTION plantstore.unwatchable(target regclass) OWNER TO plantstore_owner;
-- Name: watch(regclass); Type: FUNCTION; Schema: plantstore; Owner: plantstore_owner
CREATE FUNCTION plantstore.watch(target regclass) RETURNS SETOF regclass
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET quote_all_identifiers TO 'off'
    SET lock_timeout TO '1200ms'
    AS $_$
DECLARE
    -- Values are written in the same form as by record_deletion().
    forms text := (SELECT string_agg(format('SET %s = %L', split_part(s, '=', 1), substr(s, strpos(s, '=') + 1)), ' ') FROM pg_proc, unnest(proconfig) s
        WHERE oid = 'plantstore.record_deletion()'::regprocedure AND NOT starts_with(s, 'search_path='));
    problem text;
    t regclass;
    renamed oid;
    trigger text;
BEGIN
    problem := (SELECT string_agg(p, E'\n') FROM plantstore.unwatchable(target) p);
    IF problem IS NULL THEN
        problem := (SELECT 'first run ' || string_agg(DISTINCT m, ' ') FROM plantstore.chain(target) c, plantstore.missing(c) m);
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem;
    END IF;
    FOR t IN SELECT plantstore.chain(target) LOOP
        FOR renamed IN SELECT DISTINCT g.tgrelid FROM pg_trigger g WHERE g.tgfoid = to_regprocedure(format('plantstore.%I()', 'record ' || t)) AND g.tgrelid <> t LOOP
            EXECUTE format('ALTER FUNCTION plantstore.%I() RENAME TO %I', 'record ' || t, 'record ' || renamed); -- and that table stays watched
        END LOOP;
        EXECUTE format($create$
            CREATE OR REPLACE FUNCTION plantstore.%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
            SET search_path = pg_catalog, pg_temp
            SET enable_seqscan = off -- a plan is made for few rows and used for many
            %s AS %L$create$, 'record ' || t, forms, plantstore.recorder(t));
        EXECUTE format('REVOKE EXECUTE ON FUNCTION plantstore.%I() FROM PUBLIC', 'record ' || t);
        FOR trigger IN SELECT DISTINCT CASE k.action WHEN 'c' THEN 'record_cascade AFTER DELETE' ELSE 'record_change AFTER UPDATE' END
            FROM plantstore.foreign_keys k WHERE k.relation = t
        LOOP
            EXECUTE format('CREATE OR REPLACE TRIGGER %s ON %s REFERENCING OLD TABLE AS gone FOR EACH STATEMENT WHEN (pg_trigger_depth() > 0) EXECUTE FUNCTION plantstore.%I()', trigger, t, 'record ' || t);
        END LOOP;
        RETURN NEXT t;
    END LOOP;
END
$_$;
ALTER FUNCTION plantstore.watch(target regclass) OWNER TO plantstore_owner;
SET default_tablespace = '';
SET default_table_access_method = heap;
-- Name: cascaded; Type: TABLE; Schema: plantstore; Owner: plantstore_owner
CREATE TABLE plantstore.cascaded (
    id bigint NOT NULL,
    deletion_id bigint NOT NULL,
    relation regclass NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    changed text,
    became text,
    content json NOT NULL,
    literal text NOT NULL
);
ALTER TABLE plantstore.cascaded OWNER TO plantstore_owner;
-- Name: TABLE cascaded; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON TABLE plantstore.cascaded IS 'Rows of watched tables that left or changed with a deleted plant.';
-- Name: COLUMN cascaded.deletion_id; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.cascaded.deletion_id IS 'The deletion in plantstore.deletions.';
-- Name: COLUMN cascaded.key; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.cascaded.key IS 'The primary key: its value, or a row of its values.';
-- Name: COLUMN cascaded.changed; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.cascaded.changed IS 'The column that was set to null or its default. Null: the row was removed.';
-- Name: COLUMN cascaded.became; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.cascaded.became IS 'NULL, or that default: an expression.';
-- Name: COLUMN cascaded.content; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.cascaded.content IS 'The row before, to read and search.';
-- Name: COLUMN cascaded.literal; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.cascaded.literal IS 'The row as PostgreSQL writes it, to restore it exactly.';
-- Name: cascaded_id_seq; Type: SEQUENCE; Schema: plantstore; Owner: plantstore_owner
ALTER TABLE plantstore.cascaded ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME plantstore.cascaded_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
-- Name: deletions; Type: TABLE; Schema: plantstore; Owner: plantstore_owner
CREATE TABLE plantstore.deletions (
    id bigint NOT NULL,
    plant_id bigint NOT NULL,
    deleted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    deleted_by text NOT NULL,
    request_id text,
    idempotency_key text,
    plant json,
    literal text,
    types regtype[],
    refused integer,
    transaction_id xid8 DEFAULT pg_current_xact_id() NOT NULL,
    restored_at timestamp with time zone,
    restored_by text
);
ALTER TABLE plantstore.deletions OWNER TO plantstore_owner;
-- Name: TABLE deletions; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON TABLE plantstore.deletions IS 'Every deleted plant with its row, and every recorded refusal.';
-- Name: COLUMN deletions.deleted_by; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.deletions.deleted_by IS 'The principal of the request, or the database role where request_id is null.';
-- Name: COLUMN deletions.request_id; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.deletions.request_id IS 'Null: deleted by direct SQL.';
-- Name: COLUMN deletions.idempotency_key; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.deletions.idempotency_key IS 'Null: deleted by direct SQL, or by a cascade of the request.';
-- Name: COLUMN deletions.plant; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.deletions.plant IS 'The row, to read and search.';
-- Name: COLUMN deletions.literal; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.deletions.literal IS 'The row as PostgreSQL writes it, to restore it exactly.';
-- Name: COLUMN deletions.types; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.deletions.types IS 'The types of its columns when it was deleted.';
-- Name: COLUMN deletions.refused; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.deletions.refused IS 'The error code of a refusal. Then nothing was deleted, and there is no row.';
-- Name: COLUMN deletions.transaction_id; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.deletions.transaction_id IS 'What has the same transaction left together.';
-- Name: deletions_id_seq; Type: SEQUENCE; Schema: plantstore; Owner: plantstore_owner
ALTER TABLE plantstore.deletions ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME plantstore.deletions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
-- Name: foreign_keys; Type: VIEW; Schema: plantstore; Owner: plantstore_owner
CREATE VIEW plantstore.foreign_keys AS
 WITH RECURSIVE enforced AS (
         SELECT f_1.oid,
            f_1.conname,
            f_1.connamespace,
            f_1.contype,
            f_1.condeferrable,
            f_1.condeferred,
            f_1.convalidated,
            f_1.conrelid,
            f_1.contypid,
            f_1.conindid,
            f_1.conparentid,
            f_1.confrelid,
            f_1.confupdtype,
            f_1.confdeltype,
            f_1.confmatchtype,
            f_1.conislocal,
            f_1.coninhcount,
            f_1.connoinherit,
            f_1.conkey,
            f_1.confkey,
            f_1.conpfeqop,
            f_1.conppeqop,
            f_1.conffeqop,
            f_1.confdelsetcols,
            f_1.conexclop,
            f_1.conbin
           FROM pg_constraint f_1
          WHERE ((f_1.contype = 'f'::"char") AND (f_1.conparentid = (0)::oid) AND ((to_jsonb(f_1.*) ->> 'conenforced'::text) IS DISTINCT FROM 'false'::text))
        ), reached(relid, depth) AS (
         SELECT (to_regclass('public.plants'::text))::oid AS to_regclass,
            0 AS "?column?"
        UNION ALL
         SELECT f_1.conrelid,
            (r.depth + 1)
           FROM (reached r
             JOIN enforced f_1 ON (((f_1.confrelid = r.relid) AND (f_1.confdeltype = 'c'::"char"))))
        ) CYCLE relid SET again USING path
 SELECT (f.conrelid)::regclass AS relation,
    f.conname AS name,
    (f.confrelid)::regclass AS parent,
    f.confdeltype AS action,
    f.conkey AS columns,
    f.confkey AS parent_columns,
    ( SELECT a.attname
           FROM (pg_attribute a
             JOIN pg_constraint p ON (((p.conrelid = f.confrelid) AND (p.contype = 'p'::"char") AND (p.conkey = f.confkey))))
          WHERE ((a.attrelid = f.conrelid) AND (a.attnum = f.conkey[1]) AND (cardinality(f.conkey) = 1))) AS column_name,
    ( SELECT count(DISTINCT r.depth) AS count
           FROM reached r
          WHERE (r.relid = f.confrelid)) AS levels,
    ( SELECT min(r.depth) AS min
           FROM reached r
          WHERE (r.relid = f.confrelid)) AS depth
   FROM enforced f
  WHERE ((f.confrelid IN ( SELECT r.relid
           FROM reached r)) AND (f.confdeltype = ANY (ARRAY['c'::"char", 'n'::"char", 'd'::"char"])) AND (NOT ((f.confdeltype = 'c'::"char") AND (f.conrelid = (to_regclass('public.plants'::text))::oid))));
ALTER TABLE plantstore.foreign_keys OWNER TO plantstore_owner;
-- Name: goose_db_version; Type: TABLE; Schema: plantstore; Owner: plantstore_owner
CREATE TABLE plantstore.goose_db_version (
    id integer NOT NULL,
    version_id bigint NOT NULL,
    is_applied boolean NOT NULL,
    tstamp timestamp without time zone DEFAULT now() NOT NULL
);
ALTER TABLE plantstore.goose_db_version OWNER TO plantstore_owner;
-- Name: goose_db_version_id_seq; Type: SEQUENCE; Schema: plantstore; Owner: plantstore_owner
ALTER TABLE plantstore.goose_db_version ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME plantstore.goose_db_version_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
-- Name: principals; Type: TABLE; Schema: plantstore; Owner: plantstore_owner
CREATE TABLE plantstore.principals (
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    budget bigint,
    budget_period interval,
    budget_used bigint DEFAULT 0 NOT NULL,
    budget_resets_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    CONSTRAINT principals_budget CHECK (((budget IS NULL) = (budget_period IS NULL))),
    CONSTRAINT principals_budget_check CHECK ((budget > 0)),
    CONSTRAINT principals_budget_period_check CHECK ((budget_period > '00:00:00'::interval)),
    CONSTRAINT principals_name_check CHECK (((name ~ '^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$'::text) OR starts_with(name, 'jwt:'::text)))
)
WITH (fillfactor='50');
ALTER TABLE plantstore.principals OWNER TO plantstore_owner;
-- Name: TABLE principals; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON TABLE plantstore.principals IS 'Clients of the service. The ledger knows them by their names.';
-- Name: COLUMN principals.budget; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.principals.budget IS 'How many plants the principal may delete in each period. Null: any number, or the service''s default for a principal of a JWT.';
-- Name: COLUMN principals.budget_used; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.principals.budget_used IS 'How many it deleted in the period that ends at budget_resets_at.';
-- Name: recorded; Type: VIEW; Schema: plantstore; Owner: plantstore_owner
CREATE VIEW plantstore.recorded AS
 SELECT d.id AS deletion_id,
    d.id,
    to_regclass('public.plants'::text) AS relation,
    (d.plant_id)::text AS key,
    NULL::text AS changed,
    NULL::text AS became,
    d.plant AS content,
    d.literal,
    d.types
   FROM plantstore.deletions d
  WHERE (d.refused IS NULL)
UNION ALL
 SELECT c.deletion_id,
    c.id,
    c.relation,
    c.key,
    c.changed,
    c.became,
    c.content,
    c.literal,
    NULL::regtype[] AS types
   FROM plantstore.cascaded c;
ALTER TABLE plantstore.recorded OWNER TO plantstore_owner;
-- Name: tokens; Type: TABLE; Schema: plantstore; Owner: plantstore_owner
CREATE TABLE plantstore.tokens (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    principal text NOT NULL,
    digest bytea NOT NULL,
    scopes text[] NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    last_used_at timestamp with time zone,
    CONSTRAINT tokens_digest_check CHECK ((octet_length(digest) = 32)),
    CONSTRAINT tokens_expires_at_check CHECK (isfinite(expires_at)),
    CONSTRAINT tokens_revoked_at_check CHECK (isfinite(revoked_at))
);
ALTER TABLE plantstore.tokens OWNER TO plantstore_owner;
-- Name: COLUMN tokens.digest; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.tokens.digest IS 'SHA-256 of the token.';
-- Name: COLUMN tokens.expires_at; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.tokens.expires_at IS 'Null: never.';
-- Name: COLUMN tokens.last_used_at; Type: COMMENT; Schema: plantstore; Owner: plantstore_owner
COMMENT ON COLUMN plantstore.tokens.last_used_at IS 'Written at most once a minute.';
-- Name: tokens_version; Type: TABLE; Schema: plantstore; Owner: plantstore_owner
CREATE TABLE plantstore.tokens_version (
    one boolean DEFAULT true NOT NULL,
    version uuid NOT NULL,
    CONSTRAINT tokens_version_one_check CHECK (one)
);
ALTER TABLE plantstore.tokens_version OWNER TO plantstore_owner;
-- Name: order_items; Type: TABLE; Schema: public; Owner: plantstore_owner
CREATE TABLE public.order_items (
    id bigint NOT NULL,
    plant_id bigint NOT NULL,
    price numeric
);
ALTER TABLE public.order_items OWNER TO plantstore_owner;
-- Name: plants; Type: TABLE; Schema: public; Owner: plantstore_owner
CREATE TABLE public.plants (
    id bigint NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    price numeric,
    tags text[],
    planted date,
    notes text
);
ALTER TABLE public.plants OWNER TO plantstore_owner;
-- Name: TABLE plants; Type: COMMENT; Schema: public; Owner: plantstore_owner
COMMENT ON TABLE public.plants IS 'created by plantstore';
-- Name: plants_id_seq; Type: SEQUENCE; Schema: public; Owner: plantstore_owner
ALTER TABLE public.plants ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.plants_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
-- Name: stock; Type: TABLE; Schema: public; Owner: plantstore_owner
CREATE TABLE public.stock (
    id bigint NOT NULL,
    plant_id bigint,
    amount integer
);
ALTER TABLE public.stock OWNER TO plantstore_owner;
-- Data for Name: cascaded; Type: TABLE DATA; Schema: plantstore; Owner: plantstore_owner
INSERT INTO plantstore.cascaded OVERRIDING SYSTEM VALUE VALUES (1, 1, 'public.order_items', '10', NULL, NULL, '{"id":10,"plant_id":1,"price":12.5}', '(10,1,12.5)');
INSERT INTO plantstore.cascaded OVERRIDING SYSTEM VALUE VALUES (2, 1, 'public.order_items', '11', NULL, NULL, '{"id":11,"plant_id":1,"price":25}', '(11,1,25)');
INSERT INTO plantstore.cascaded OVERRIDING SYSTEM VALUE VALUES (3, 1, 'public.stock', '20', 'plant_id', 'NULL', '{"id":20,"plant_id":1,"amount":100}', '(20,1,100)');
-- Data for Name: deletions; Type: TABLE DATA; Schema: plantstore; Owner: plantstore_owner
INSERT INTO plantstore.deletions OVERRIDING SYSTEM VALUE VALUES (1, 1, '2026-11-29 09:31:18.06539+00', 'back-office', 'request-1', 'key-1', '{"id":1,"name":"Boston fern","created_at":"2026-11-29T09:31:17.957967+00:00","price":12.50,"tags":["shade","a, b"],"planted":"2026-02-28","notes":"it''s \\ \"quoted\"\nand long"}', '(1,"Boston fern","2026-11-29 09:31:17.957967+00",12.50,"{shade,""a, b""}",2026-02-28,"it''s \\ ""quoted""
and long")', '{bigint,text,"timestamp with time zone",numeric,text[],date,text}', NULL, '756', NULL, NULL);
INSERT INTO plantstore.deletions OVERRIDING SYSTEM VALUE VALUES (2, 2, '2026-11-29 09:31:18.069019+00', 'back-office', 'request-2', 'key-2', '{"id":2,"name":"Peace lily","created_at":"2026-11-29T09:31:17.957967+00:00","price":null,"tags":["a",null],"planted":"infinity","notes":""}', '(2,"Peace lily","2026-11-29 09:31:17.957967+00",,"[0:1]={a,NULL}",infinity,"")', '{bigint,text,"timestamp with time zone",numeric,text[],date,text}', NULL, '759', NULL, NULL);
INSERT INTO plantstore.deletions OVERRIDING SYSTEM VALUE VALUES (3, 3, '2026-11-29 09:31:18.069124+00', 'back-office', 'request-3', 'key-3', '{"id":3,"name":"Snake plant","created_at":"2026-11-29T09:31:17.957967+00:00","price":0.10,"tags":[],"planted":null,"notes":"größer"}', '(3,"Snake plant","2026-11-29 09:31:17.957967+00",0.10,{},,größer)', '{bigint,text,"timestamp with time zone",numeric,text[],date,text}', NULL, '759', NULL, NULL);
INSERT INTO plantstore.deletions OVERRIDING SYSTEM VALUE VALUES (4, 5, '2026-11-29 09:31:18.06992+00', 'limited', 'request-4', 'key-4', '{"id":5,"name":"Aloe vera","created_at":"2026-11-29T09:31:17.957967+00:00","price":5,"tags":null,"planted":null,"notes":null}', '(5,"Aloe vera","2026-11-29 09:31:17.957967+00",5,,,)', '{bigint,text,"timestamp with time zone",numeric,text[],date,text}', NULL, '760', NULL, NULL);
INSERT INTO plantstore.deletions OVERRIDING SYSTEM VALUE VALUES (5, 404, '2026-11-29 09:31:18.072229+00', 'back-office', 'request-5', 'key-5', NULL, NULL, NULL, 40401, '761', NULL, NULL);
INSERT INTO plantstore.deletions OVERRIDING SYSTEM VALUE VALUES (6, 7, '2026-11-29 09:31:18.072866+00', 'plantstore_owner', NULL, NULL, '{"id":7,"name":"English lavender","created_at":"2026-11-29T09:31:18.072478+00:00","price":null,"tags":null,"planted":null,"notes":null}', '(7,"English lavender","2026-11-29 09:31:18.072478+00",,,,)', '{bigint,text,"timestamp with time zone",numeric,text[],date,text}', NULL, '763', NULL, NULL);
-- Data for Name: goose_db_version; Type: TABLE DATA; Schema: plantstore; Owner: plantstore_owner
INSERT INTO plantstore.goose_db_version VALUES (1, 0, true, '2026-11-29 09:31:17.137221');
INSERT INTO plantstore.goose_db_version VALUES (2, 1, true, '2026-11-29 09:31:17.177413');
INSERT INTO plantstore.goose_db_version VALUES (3, 2, true, '2026-11-29 09:31:17.320044');
INSERT INTO plantstore.goose_db_version VALUES (4, 3, true, '2026-11-29 09:31:17.449959');
INSERT INTO plantstore.goose_db_version VALUES (5, 4, true, '2026-11-29 09:31:17.562827');
INSERT INTO plantstore.goose_db_version VALUES (6, 5, true, '2026-11-29 09:31:17.634956');
INSERT INTO plantstore.goose_db_version VALUES (7, 6, true, '2026-11-29 09:31:17.737982');
-- Data for Name: principals; Type: TABLE DATA; Schema: plantstore; Owner: plantstore_owner
INSERT INTO plantstore.principals VALUES ('back-office', '2026-11-29 09:31:18.058887+00', NULL, NULL, 0, '-infinity');
INSERT INTO plantstore.principals VALUES ('limited', '2026-11-29 09:31:18.059589+00', 1, '100 years', 1, '2126-11-29 09:31:18.070544+00');
-- Data for Name: tokens; Type: TABLE DATA; Schema: plantstore; Owner: plantstore_owner
INSERT INTO plantstore.tokens VALUES ('b349940d-3ffa-4c72-8133-73995309556c', 'back-office', '\x51a86317d76f3f1844fbad341a0b9dc8846b93b715c7ea90ff41792ff05a5a03', '{plants:delete}', '2026-11-29 09:31:18.061783+00', NULL, NULL, NULL);
INSERT INTO plantstore.tokens VALUES ('7757a1d0-bd0b-4353-8566-a824cf4c1114', 'back-office', '\x7286a48721765ca580f39283f17038fbcd62700b964f8eec6d316c064c628d1c', '{plants:delete}', '2026-11-29 09:31:18.062393+00', NULL, '2026-11-29 09:31:18.059804+00', NULL);
INSERT INTO plantstore.tokens VALUES ('aa40c782-b96e-4b62-8e6c-f042d9fbdbe1', 'limited', '\x51e868aad321996d98516d32c939f5f65641f79ff401908369574b4dfbc4356e', '{plants:delete}', '2026-11-29 09:31:18.062403+00', NULL, NULL, NULL);
-- Data for Name: tokens_version; Type: TABLE DATA; Schema: plantstore; Owner: plantstore_owner
INSERT INTO plantstore.tokens_version VALUES (true, '813a2eb0-49b5-45b0-9786-b7d2ccabbdad');
-- Data for Name: order_items; Type: TABLE DATA; Schema: public; Owner: plantstore_owner
INSERT INTO public.order_items VALUES (12, 4, 7);
-- Data for Name: plants; Type: TABLE DATA; Schema: public; Owner: plantstore_owner
INSERT INTO public.plants VALUES (4, 'Rubber fig', '2026-11-29 09:31:17.957967+00', 7, NULL, NULL, NULL);
INSERT INTO public.plants VALUES (6, 'Jade plant', '2026-11-29 09:31:17.957967+00', 6, NULL, NULL, NULL);
-- Data for Name: stock; Type: TABLE DATA; Schema: public; Owner: plantstore_owner
INSERT INTO public.stock VALUES (21, 4, 200);
INSERT INTO public.stock VALUES (20, NULL, 100);
-- Name: cascaded_id_seq; Type: SEQUENCE SET; Schema: plantstore; Owner: plantstore_owner
SELECT pg_catalog.setval('plantstore.cascaded_id_seq', 3, true);
-- Name: deletions_id_seq; Type: SEQUENCE SET; Schema: plantstore; Owner: plantstore_owner
SELECT pg_catalog.setval('plantstore.deletions_id_seq', 6, true);
-- Name: goose_db_version_id_seq; Type: SEQUENCE SET; Schema: plantstore; Owner: plantstore_owner
SELECT pg_catalog.setval('plantstore.goose_db_version_id_seq', 7, true);
-- Name: plants_id_seq; Type: SEQUENCE SET; Schema: public; Owner: plantstore_owner
SELECT pg_catalog.setval('public.plants_id_seq', 6, true);
-- Name: cascaded cascaded_pkey; Type: CONSTRAINT; Schema: plantstore; Owner: plantstore_owner
ALTER TABLE ONLY plantstore.cascaded
    ADD CONSTRAINT cascaded_pkey PRIMARY KEY (id);
-- Name: deletions deletions_once; Type: CONSTRAINT; Schema: plantstore; Owner: plantstore_owner
ALTER TABLE ONLY plantstore.deletions
    ADD CONSTRAINT deletions_once UNIQUE (plant_id, deleted_by, idempotency_key);
-- Name: deletions deletions_pkey; Type: CONSTRAINT; Schema: plantstore; Owner: plantstore_owner
ALTER TABLE ONLY plantstore.deletions
    ADD CONSTRAINT deletions_pkey PRIMARY KEY (id);
-- Name: goose_db_version goose_db_version_pkey; Type: CONSTRAINT; Schema: plantstore; Owner: plantstore_owner
ALTER TABLE ONLY plantstore.goose_db_version
    ADD CONSTRAINT goose_db_version_pkey PRIMARY KEY (id);
-- Name: principals principals_pkey; Type: CONSTRAINT; Schema: plantstore; Owner: plantstore_owner
ALTER TABLE ONLY plantstore.principals
    ADD CONSTRAINT principals_pkey PRIMARY KEY (name);
-- Name: tokens tokens_digest_key; Type: CONSTRAINT; Schema: plantstore; Owner: plantstore_owner
ALTER TABLE ONLY plantstore.tokens
    ADD CONSTRAINT tokens_digest_key UNIQUE (digest);
-- Name: tokens tokens_pkey; Type: CONSTRAINT; Schema: plantstore; Owner: plantstore_owner
ALTER TABLE ONLY plantstore.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (id);
-- Name: tokens_version tokens_version_pkey; Type: CONSTRAINT; Schema: plantstore; Owner: plantstore_owner
ALTER TABLE ONLY plantstore.tokens_version
    ADD CONSTRAINT tokens_version_pkey PRIMARY KEY (one);
-- Name: order_items order_items_pkey; Type: CONSTRAINT; Schema: public; Owner: plantstore_owner
ALTER TABLE ONLY public.order_items
    ADD CONSTRAINT order_items_pkey PRIMARY KEY (id);
-- Name: plants plants_pkey; Type: CONSTRAINT; Schema: public; Owner: plantstore_owner
ALTER TABLE ONLY public.plants
    ADD CONSTRAINT plants_pkey PRIMARY KEY (id);
-- Name: stock stock_pkey; Type: CONSTRAINT; Schema: public; Owner: plantstore_owner
ALTER TABLE ONLY public.stock
    ADD CONSTRAINT stock_pkey PRIMARY KEY (id);
-- Name: cascaded_by_deletion; Type: INDEX; Schema: plantstore; Owner: plantstore_owner
CREATE INDEX cascaded_by_deletion ON plantstore.cascaded USING btree (deletion_id);
-- Name: cascaded_by_key; Type: INDEX; Schema: plantstore; Owner: plantstore_owner
CREATE INDEX cascaded_by_key ON plantstore.cascaded USING btree (key, relation);
-- Name: deletions_by_plant; Type: INDEX; Schema: plantstore; Owner: plantstore_owner
CREATE INDEX deletions_by_plant ON plantstore.deletions USING btree (plant_id) WHERE (refused IS NULL);
-- Name: deletions_by_time; Type: INDEX; Schema: plantstore; Owner: plantstore_owner
CREATE INDEX deletions_by_time ON plantstore.deletions USING brin (deleted_at) WITH (pages_per_range='32');
-- Name: order_items_plant_id_idx; Type: INDEX; Schema: public; Owner: plantstore_owner
CREATE INDEX order_items_plant_id_idx ON public.order_items USING btree (plant_id);
-- Name: stock_plant_id_idx; Type: INDEX; Schema: public; Owner: plantstore_owner
CREATE INDEX stock_plant_id_idx ON public.stock USING btree (plant_id);
-- Name: principals note_change; Type: TRIGGER; Schema: plantstore; Owner: plantstore_owner
CREATE TRIGGER note_change AFTER UPDATE OF name, budget, budget_period ON plantstore.principals FOR EACH STATEMENT EXECUTE FUNCTION plantstore.note_token_change();
-- Name: tokens note_change; Type: TRIGGER; Schema: plantstore; Owner: plantstore_owner
CREATE TRIGGER note_change AFTER INSERT OR DELETE OR UPDATE OF principal, digest, scopes, expires_at, revoked_at OR TRUNCATE ON plantstore.tokens FOR EACH STATEMENT EXECUTE FUNCTION plantstore.note_token_change();
-- Name: order_items record_cascade; Type: TRIGGER; Schema: public; Owner: plantstore_owner
CREATE TRIGGER record_cascade AFTER DELETE ON public.order_items REFERENCING OLD TABLE AS gone FOR EACH STATEMENT WHEN ((pg_trigger_depth() > 0)) EXECUTE FUNCTION plantstore."record public.order_items"();
-- Name: stock record_change; Type: TRIGGER; Schema: public; Owner: plantstore_owner
CREATE TRIGGER record_change AFTER UPDATE ON public.stock REFERENCING OLD TABLE AS gone FOR EACH STATEMENT WHEN ((pg_trigger_depth() > 0)) EXECUTE FUNCTION plantstore."record public.stock"();
-- Name: plants record_deletion; Type: TRIGGER; Schema: public; Owner: plantstore_owner
CREATE TRIGGER record_deletion AFTER DELETE ON public.plants REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION plantstore.record_deletion();
-- Name: plants refuse_truncate; Type: TRIGGER; Schema: public; Owner: plantstore_owner
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON public.plants FOR EACH STATEMENT EXECUTE FUNCTION plantstore.refuse_truncate();
-- Name: tokens tokens_principal_fkey; Type: FK CONSTRAINT; Schema: plantstore; Owner: plantstore_owner
ALTER TABLE ONLY plantstore.tokens
    ADD CONSTRAINT tokens_principal_fkey FOREIGN KEY (principal) REFERENCES plantstore.principals(name);
-- Name: order_items order_items_plant_id_fkey; Type: FK CONSTRAINT; Schema: public; Owner: plantstore_owner
ALTER TABLE ONLY public.order_items
    ADD CONSTRAINT order_items_plant_id_fkey FOREIGN KEY (plant_id) REFERENCES public.plants(id) ON DELETE CASCADE;
-- Name: stock stock_plant_id_fkey; Type: FK CONSTRAINT; Schema: public; Owner: plantstore_owner
ALTER TABLE ONLY public.stock
    ADD CONSTRAINT stock_plant_id_fkey FOREIGN KEY (plant_id) REFERENCES public.plants(id) ON DELETE SET NULL;
-- Name: SCHEMA plantstore; Type: ACL; Schema: -; Owner: plantstore_owner
GRANT USAGE ON SCHEMA plantstore TO plantstore_app;
-- Name: SCHEMA public; Type: ACL; Schema: -; Owner: pg_database_owner
GRANT ALL ON SCHEMA public TO plantstore_owner;
GRANT USAGE ON SCHEMA public TO plantstore_app;
-- Name: FUNCTION chain(target regclass); Type: ACL; Schema: plantstore; Owner: plantstore_owner
REVOKE ALL ON FUNCTION plantstore.chain(target regclass) FROM PUBLIC;
-- Name: FUNCTION charge(spender text, plants bigint, default_budget bigint, default_period interval); Type: ACL; Schema: plantstore; Owner: plantstore_owner
REVOKE ALL ON FUNCTION plantstore.charge(spender text, plants bigint, default_budget bigint, default_period interval) FROM PUBLIC;
-- Name: FUNCTION default_of(target regclass, column_name text); Type: ACL; Schema: plantstore; Owner: plantstore_owner
REVOKE ALL ON FUNCTION plantstore.default_of(target regclass, column_name text) FROM PUBLIC;
-- Name: FUNCTION deletion_of_plant(deleted_plant bigint); Type: ACL; Schema: plantstore; Owner: plantstore_owner
REVOKE ALL ON FUNCTION plantstore.deletion_of_plant(deleted_plant bigint) FROM PUBLIC;
-- Name: FUNCTION deletions_of_row(parent regclass, parent_key text); Type: ACL; Schema: plantstore; Owner: plantstore_owner
REVOKE ALL ON FUNCTION plantstore.deletions_of_row(parent regclass, parent_key text) FROM PUBLIC;
-- Name: FUNCTION is_watched(target regclass, action "char"); Type: ACL; Schema: plantstore; Owner: plantstore_owner
REVOKE ALL ON FUNCTION plantstore.is_watched(target regclass, action "char") FROM PUBLIC;
-- Name: FUNCTION missing(target regclass); Type: ACL; Schema: plantstore; Owner: plantstore_owner
REVOKE ALL ON FUNCTION plantstore.missing(target regclass) FROM PUBLIC;
-- Name: FUNCTION "record public.order_items"(); Type: ACL; Schema: plantstore; Owner: plantstore_owner
REVOKE ALL ON FUNCTION plantstore."record public.order_items"() FROM PUBLIC;
-- Name: FUNCTION "record public.stock"(); Type: ACL; Schema: plantstore; Owner: plantstore_owner
REVOKE ALL ON FUNCTION plantstore."record public.stock"() FROM PUBLIC;
-- Name: FUNCTION record_deletion(); Type: ACL; Schema: plantstore; Owner: plantstore_owner
REVOKE ALL ON FUNCTION plantstore.record_deletion() FROM PUBLIC;
-- Name: FUNCTION recorder(target regclass); Type: ACL; Schema: plantstore; Owner: plantstore_owner
REVOKE ALL ON FUNCTION plantstore.recorder(target regclass) FROM PUBLIC;
-- Name: FUNCTION resolve(plant bigint, principal text, request text, key text, refuse integer, OUT code integer, OUT at timestamp with time zone, OUT by_request text); Type: ACL; Schema: plantstore; Owner: plantstore_owner
REVOKE ALL ON FUNCTION plantstore.resolve(plant bigint, principal text, request text, key text, refuse integer, OUT code integer, OUT at timestamp with time zone, OUT by_request text) FROM PUBLIC;
GRANT ALL ON FUNCTION plantstore.resolve(plant bigint, principal text, request text, key text, refuse integer, OUT code integer, OUT at timestamp with time zone, OUT by_request text) TO plantstore_app;
-- Name: FUNCTION unfit(); Type: ACL; Schema: plantstore; Owner: plantstore_owner
GRANT ALL ON FUNCTION plantstore.unfit() TO plantstore_app;
-- Name: FUNCTION unwatch(target regclass); Type: ACL; Schema: plantstore; Owner: plantstore_owner
REVOKE ALL ON FUNCTION plantstore.unwatch(target regclass) FROM PUBLIC;
-- Name: FUNCTION unwatchable(target regclass); Type: ACL; Schema: plantstore; Owner: plantstore_owner
REVOKE ALL ON FUNCTION plantstore.unwatchable(target regclass) FROM PUBLIC;
-- Name: FUNCTION watch(target regclass); Type: ACL; Schema: plantstore; Owner: plantstore_owner
REVOKE ALL ON FUNCTION plantstore.watch(target regclass) FROM PUBLIC;
-- Name: COLUMN deletions.id; Type: ACL; Schema: plantstore; Owner: plantstore_owner
GRANT SELECT(id) ON TABLE plantstore.deletions TO plantstore_app;
-- Name: COLUMN deletions.deleted_at; Type: ACL; Schema: plantstore; Owner: plantstore_owner
GRANT SELECT(deleted_at) ON TABLE plantstore.deletions TO plantstore_app;
-- Name: TABLE goose_db_version; Type: ACL; Schema: plantstore; Owner: plantstore_owner
GRANT SELECT ON TABLE plantstore.goose_db_version TO plantstore_app;
-- Name: COLUMN principals.name; Type: ACL; Schema: plantstore; Owner: plantstore_owner
GRANT SELECT(name) ON TABLE plantstore.principals TO plantstore_app;
-- Name: COLUMN principals.budget; Type: ACL; Schema: plantstore; Owner: plantstore_owner
GRANT SELECT(budget) ON TABLE plantstore.principals TO plantstore_app;
-- Name: COLUMN principals.budget_period; Type: ACL; Schema: plantstore; Owner: plantstore_owner
GRANT SELECT(budget_period) ON TABLE plantstore.principals TO plantstore_app;
-- Name: TABLE tokens; Type: ACL; Schema: plantstore; Owner: plantstore_owner
GRANT SELECT ON TABLE plantstore.tokens TO plantstore_app;
-- Name: COLUMN tokens.last_used_at; Type: ACL; Schema: plantstore; Owner: plantstore_owner
GRANT UPDATE(last_used_at) ON TABLE plantstore.tokens TO plantstore_app;
-- Name: TABLE tokens_version; Type: ACL; Schema: plantstore; Owner: plantstore_owner
GRANT SELECT ON TABLE plantstore.tokens_version TO plantstore_app;
-- Name: TABLE plants; Type: ACL; Schema: public; Owner: plantstore_owner
GRANT DELETE ON TABLE public.plants TO plantstore_app;
-- Name: COLUMN plants.id; Type: ACL; Schema: public; Owner: plantstore_owner
GRANT SELECT(id) ON TABLE public.plants TO plantstore_app;
-- PostgreSQL database dump complete
