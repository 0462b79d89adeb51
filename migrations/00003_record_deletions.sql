-- Rows that leave plants are written to the ledger in the same transaction, once
-- for each statement, whether it goes through the service, psql or a cascade.
-- TRUNCATE, which would leave no record, is refused.

-- +goose Up
-- The service calls this in each of its transactions, after the DELETE. It returns
-- if the trigger below ran, and found no row, or the ledger has got entries for those:
-- of this transaction, and under the plants, principals and keys that were asked for.
-- (Of one request the trigger may find more rows: those of a cascade. Of several it may
-- not, as nobody knows whose they are.) Otherwise it raises an error, and with it all is
-- taken back.
--
-- A plan is kept for the life of a connection. One that was made while the ledger was
-- empty would scan it for each deletion until the next ANALYZE, so no plan may scan, nor
-- join by reading a whole index: hence LATERAL with a LIMIT, one look for each plant.
-- And one plan does for all: to plan anew for one plant costs more than the look.
-- +goose StatementBegin
CREATE FUNCTION public.plantstore_prove(plants bigint[], principals text[], keys text[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    recorded text := nullif(current_setting('plantstore.recorded', true), '');
    batch text := nullif(current_setting('plantstore.batch', true), '');
    told text;
BEGIN
    IF batch IS NOT NULL THEN
        IF current_setting('plantstore.along', true) = 'on' THEN -- see plantstore_record_deletion
            RAISE EXCEPTION 'nobody in the batch asked for plants that left with it'
                USING ERRCODE = 'not_null_violation', SCHEMA = 'public', TABLE = 'plant_deletions', COLUMN = 'deleted_by';
        END IF;
        told := set_config('plantstore.proved', 'on', true); -- nobody asks for what is put off until the commit
    END IF;
    IF recorded = '0' THEN
        -- Anybody's trigger can say so. The lock of the DELETE keeps ours as it is. (With a
        -- condition, or for something else than DELETE, tgtype 8, ours may not have run.)
        IF EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = to_regclass('public.plants') AND t.tgname = 'plantstore_record_deletion'
                AND t.tgtype = 8 AND t.tgqual IS NULL AND t.tgfoid = to_regprocedure('public.plantstore_record_deletion()')
                AND (t.tgenabled = 'A' OR t.tgenabled = 'O' AND current_setting('session_replication_role') <> 'replica')) THEN
            RETURN;
        END IF;
        recorded := NULL;
    END IF;
    IF recorded IS NOT NULL AND cardinality(plants) = 1 THEN -- as below, at a fifth of the cost
        IF EXISTS (SELECT FROM public.plant_deletions d WHERE d.plant_id = plants[1] AND d.deleted_by = principals[1]
                AND d.idempotency_key = keys[1] AND d.xmin = pg_current_xact_id()::xid) THEN
            RETURN;
        END IF;
        recorded := NULL;
    END IF;
    IF recorded IS NULL OR least(recorded::bigint, cardinality(plants)) > (
            SELECT count(*) FROM unnest(plants, principals, keys) AS asked (plant, principal, key)
            CROSS JOIN LATERAL (SELECT FROM public.plant_deletions d WHERE d.plant_id = asked.plant AND d.deleted_by = asked.principal
                AND d.idempotency_key = asked.key AND d.xmin = pg_current_xact_id()::xid LIMIT 1) entry) THEN
        RAISE EXCEPTION 'the deletion is not in public.plant_deletions, so it is taken back'
            USING ERRCODE = 'PST01', HINT = 'Run plantstore doctor: the trigger plantstore_record_deletion did not do its work.';
    END IF;
END
$$;
-- +goose StatementEnd

-- Who deletes for others (members of plantstore_app) says in settings who asked:
-- plantstore.request for one request: an array of plant, principal, request id, key and
-- turn; or plantstore.batch for several, each in its first turn: an array of four, with
-- all plants, principals, request ids and keys. For everybody else the
-- settings mean nothing, and the record names the role that logged in. The record of a
-- principal has a request id, if need be an empty one; that of a role has none.
-- If all are of one principal that has a deletion budget, plantstore.budget is an array of
-- that principal, the most and period of the service's default, and patience, which may be
-- missing; without one, it is empty. See 00004: what the budget has is up to the database.
--
-- The function runs as its owner, so it must run nothing that the store can
-- define. A cast can be defined by the owner of a type, also one of a table's row
-- type, and JSON functions call such casts. A function of the name of one of ours, whose
-- parameters fit better, would be called instead: so all arguments have the very types of
-- the parameters. ROW(...)::text can't be redefined:
-- record is a pseudo-type, and writing one calls the types' output functions only.
-- The id is used as it is: a shape is known only if its id is a bigint.
-- +goose StatementBegin
CREATE FUNCTION public.plantstore_record_deletion() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER -- who may delete a plant need not, and may not, write the ledger
SET search_path = pg_catalog, pg_temp
-- Whoever deletes, the row is written down in the one form that restores exactly.
SET datestyle = 'ISO, YMD'
SET intervalstyle = 'postgres'
SET extra_float_digits = 1
SET bytea_output = 'hex'
SET timezone = 'UTC'
SET lc_monetary = 'C'
SET quote_all_identifiers = off
AS $$
#variable_conflict use_variable -- the store may call its columns like our variables
DECLARE
    request text[];
    batch text[];
    budget text[];
    over json;
    of_the_moment text[];
    proved boolean := false;
    attributes text[];
    known_shape bigint;
    has_virtual boolean;
    recorded bigint;
    told text;
BEGIN
    IF pg_has_role(session_user, to_regrole('plantstore_app'), 'MEMBER') THEN -- null where there is no such role
        -- A setting that was made in this session once and has ended reads as ''.
        request := nullif(current_setting('plantstore.request', true), '');
        batch := nullif(current_setting('plantstore.batch', true), '');
        budget := nullif(current_setting('plantstore.budget', true), '');
        IF batch IS NOT NULL THEN
            of_the_moment := ARRAY[batch[2][1], coalesce(batch[3][1], '')];
            proved := current_setting('plantstore.proved', true) = 'on';
            IF proved THEN
                batch := '{}';
            END IF;
        END IF;
    END IF;

    -- Which columns the rows have. The lock of the statement that fired us keeps ALTER TABLE
    -- out. A transaction that sees the past has to look twice, and a table that is not
    -- public.plants any more is not what plantstore_planned_columns tells of.
    IF current_setting('transaction_isolation') = 'read committed' AND TG_RELID = to_regclass('public.plants') THEN
        attributes := public.plantstore_planned_columns('public.plants'::regclass);
        SELECT s.id, s.has_virtual INTO known_shape, has_virtual FROM public.plant_shapes s WHERE s.relation = TG_RELID AND s.attributes = attributes LIMIT 1;
    END IF;
    IF known_shape IS NULL THEN
        known_shape := public.plantstore_shape(TG_RELID);
        SELECT s.has_virtual INTO has_virtual FROM public.plant_shapes s WHERE s.id = known_shape;
    END IF;

    -- Virtual columns, of PostgreSQL 18, have no value in gone and may not even be
    -- named there: such rows are written column by column.
    IF has_virtual THEN
        EXECUTE format('INSERT INTO public.plant_deletions (plant_id, shape, plant, deleted_by, session_role, request_id, idempotency_key, turn)
            SELECT g.id, $1, ROW(%s)::text, CASE
                    WHEN $2 IS NOT NULL THEN coalesce(r.principal, CASE WHEN set_config(''plantstore.along'', ''on'', true) = ''on'' THEN $4[1] END)
                    WHEN $3 IS NOT NULL THEN $3[2] ELSE session_user END, session_user,
                CASE WHEN $2 IS NOT NULL THEN coalesce(r.request_id, $4[2]) WHEN $3 IS NOT NULL THEN coalesce($3[3], '''') END,
                CASE WHEN $2 IS NOT NULL THEN r.key WHEN g.id::text = $3[1] THEN nullif($3[4], '''') END,
                CASE WHEN $2 IS NULL AND g.id::text = $3[1] THEN coalesce($3[5]::integer, 0) ELSE 0 END
            FROM gone g LEFT JOIN (SELECT $2[1][i]::bigint AS plant, $2[2][i] AS principal, $2[3][i] AS request_id, $2[4][i] AS key
                FROM generate_subscripts($2, 2) i) r ON r.plant = g.id',
            (SELECT string_agg(CASE a.attgenerated WHEN 'v' THEN 'NULL' ELSE 'g.' || quote_ident(a.attname) END, ', ' ORDER BY a.attnum)
                FROM pg_attribute a WHERE a.attrelid = TG_RELID AND a.attnum > 0 AND NOT a.attisdropped))
            USING known_shape, batch, request, of_the_moment;
    ELSIF batch IS NULL THEN
        -- A plant that left by a cascade of the request belongs to it, too, but the
        -- request's key is about another plant.
        INSERT INTO public.plant_deletions (plant_id, shape, plant, deleted_by, session_role, request_id, idempotency_key, turn)
        SELECT g.id, known_shape, ROW(g.*)::text, CASE WHEN request IS NULL THEN session_user ELSE request[2] END, session_user,
            CASE WHEN request IS NOT NULL THEN coalesce(request[3], '') END,
            CASE WHEN g.id::text = request[1] THEN nullif(request[4], '') END,
            CASE WHEN g.id::text = request[1] THEN coalesce(request[5]::integer, 0) ELSE 0 END
        FROM gone g;
    ELSE
        -- Whose a cascade is among several requests is not known here. The service then has
        -- to delete for one request at a time. To refuse the cascade is not enough: code of
        -- the store's that deletes may catch the error, and go on without. So it is recorded
        -- for the first of them for now, and plantstore_prove refuses the batch. (For a role,
        -- a constraint of the store's might refuse it.)
        INSERT INTO public.plant_deletions (plant_id, shape, plant, deleted_by, session_role, request_id, idempotency_key)
        SELECT g.id, known_shape, ROW(g.*)::text,
            coalesce(r.principal, CASE WHEN set_config('plantstore.along', 'on', true) = 'on' THEN of_the_moment[1] END),
            session_user, coalesce(r.request_id, of_the_moment[2]), r.key
        FROM gone g LEFT JOIN (SELECT batch[1][i]::bigint AS plant, batch[2][i] AS principal, batch[3][i] AS request_id, batch[4][i] AS key
            FROM generate_subscripts(batch, 2) i) r ON r.plant = g.id;
    END IF;
    GET DIAGNOSTICS recorded = ROW_COUNT;
    -- After the proof, at the commit, a batch has nobody, and is refused where no code of the
    -- store's can catch that, either: PostgreSQL runs the query of a cursor WITH HOLD when all
    -- that was deferred is done. What takes the deletion back takes the cursor with it.
    IF proved AND recorded > 0 AND NOT EXISTS (SELECT FROM pg_cursors c WHERE c.name = 'plantstore_along') THEN
        EXECUTE 'DECLARE plantstore_along CURSOR WITH HOLD FOR SELECT public.plantstore_prove(NULL::bigint[], NULL::text[], NULL::text[])';
    END IF;
    IF recorded <> 1 THEN -- in two steps, as counting takes a statement of its own
        IF recorded <> (SELECT count(*) FROM gone) THEN
            RAISE EXCEPTION 'public.plant_deletions took only % of the rows that left public.plants', recorded
                USING ERRCODE = 'PST01', HINT = 'Run plantstore doctor.';
        END IF;
    END IF;
    IF budget[1] IS NOT NULL AND recorded > 0 AND current_setting('plantstore.along', true) IS DISTINCT FROM 'on' THEN
        over := public.plantstore_spend(budget[1], recorded, budget[2]::bigint, budget[3]::interval, budget[4]::bigint);
        IF over IS NOT NULL THEN
            RAISE EXCEPTION 'a deletion budget is used up' USING ERRCODE = 'PST02', DETAIL = over::text;
        END IF;
        IF pg_trigger_depth() > 1 THEN -- a trigger of the store's deletes: where its statement is refused, this is taken back, too
            told := set_config('plantstore.spent', (coalesce(nullif(current_setting('plantstore.spent', true), ''), '0')::bigint + recorded)::text, true);
        END IF;
    END IF;
    -- Tells the service that this trigger ran, and for how many rows. The service's own
    -- statement counts, whether what the store's triggers delete comes before it or after.
    IF (request IS NOT NULL OR batch IS NOT NULL) AND (pg_trigger_depth() = 1 OR current_setting('plantstore.recorded', true) = '') THEN
        told := set_config('plantstore.recorded', recorded::text, true); -- PERFORM would be a query of its own
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- The service calls this before it tells a client that a request did not delete its
-- plant, where an attempt of that request, or of an earlier one with the same key,
-- may be under way still. It writes a refusal, and returns true: from then on such an
-- attempt finds its turn taken and is rolled back, since none is made for a turn
-- before all turns before that were refused. Or it returns false: the plant was
-- deleted under this key after all.
--
-- It waits for an attempt that has written its entry and is not committed yet, up to
-- lock_timeout.
-- +goose StatementBegin
CREATE FUNCTION public.plantstore_refuse(plant_id bigint, principal text, request_id text, key text) RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER -- who may delete a plant need not, and may not, write the ledger
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    last_turn integer;
    deleted boolean;
    taken integer; -- the turn that was tried, and is somebody else's
BEGIN
    LOOP
        -- A deletion is the last entry of its key. The others need no look: a client may
        -- have come back thousands of times.
        SELECT d.turn, d.plant IS NOT NULL INTO last_turn, deleted
        FROM public.plant_deletions d
        WHERE d.plant_id = plantstore_refuse.plant_id AND d.deleted_by = principal AND d.idempotency_key = key
        ORDER BY d.turn DESC LIMIT 1;
        IF deleted THEN
            RETURN false;
        END IF;
        IF taken > coalesce(last_turn, -1) THEN
            RAISE EXCEPTION 'public.plant_deletions did not take a refusal'
                USING ERRCODE = 'PST01', HINT = 'Run plantstore doctor.';
        END IF;
        taken := coalesce(last_turn + 1, 0);
        INSERT INTO public.plant_deletions (plant_id, deleted_by, session_role, request_id, idempotency_key, turn)
        VALUES (plantstore_refuse.plant_id, principal, session_user, plantstore_refuse.request_id, key, taken)
        ON CONFLICT DO NOTHING; -- by its name, the constraint would not be all of it during REINDEX CONCURRENTLY
        IF FOUND THEN
            RETURN true;
        END IF;
        -- Somebody else took that turn meanwhile: see who. If nobody did, a trigger or
        -- rule keeps the entry out.
    END LOOP;
END
$$;
-- +goose StatementEnd

-- The columns that a table has, as plant_shapes.attributes has them, or null if other
-- tables inherit from it. It is volatile, so that it looks with a snapshot of its own: that
-- of a statement may be older than its lock on the table (EXPLAIN ANALYZE EXECUTE).
-- +goose StatementBegin
CREATE FUNCTION public.plantstore_columns(plants oid) RETURNS text[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = plants) THEN
        RETURN NULL;
    END IF;
    RETURN ARRAY(SELECT a.attnum::text || ' ' || a.atttypid::text || ' ' || a.atttypmod::text || ' ' || a.attgenerated::text || ' ' || a.attname::text
        FROM pg_attribute a WHERE a.attrelid = plants AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum);
END
$$;
-- +goose StatementEnd

-- The same as of the last change to the table, to be called in PL/pgSQL with a constant.
-- To look at the catalogue for each deletion would cost a tenth of what the whole
-- deletion costs the database.
--
-- It is declared immutable, which it is not, so that PostgreSQL calls it when it plans the
-- expression that calls it, and keeps the result with the plan. A plan that names a table
-- as a constant of type regclass is made anew after each change to that table or to its
-- columns, and where somebody comes to inherit from it: also in the session that did so,
-- and when that is rolled back.
-- +goose StatementBegin
CREATE FUNCTION public.plantstore_planned_columns(plants regclass) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN public.plantstore_columns(plants::oid);
END
$$;
-- +goose StatementEnd

-- The rare part of the trigger: a new shape, or one to be looked at twice.
-- +goose StatementBegin
CREATE FUNCTION public.plantstore_shape(plants oid) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    todays_attributes text[] := public.plantstore_columns(plants);
    todays_names text[];
    seen_names text[];
    us bigint;
    known_shape bigint;
BEGIN
    IF todays_attributes IS NULL THEN
        RAISE EXCEPTION 'other tables inherit from public.plants: their rows would leave without a full record'
            USING ERRCODE = 'PST01', HINT = 'Run plantstore doctor.';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = plants AND a.attname = 'id' AND a.atttypid = 'int8'::regtype) THEN
        RAISE EXCEPTION 'public.plants has no column id of type bigint any more'
            USING ERRCODE = 'PST01', HINT = 'Run plantstore doctor.';
    END IF;
    -- A transaction that sees the catalogue as of an earlier moment may not see the
    -- columns that its rows have by now. The row type is always today's: it tells which
    -- have come. No value is looked at, and so no cast is called: all of them are null.
    -- EXECUTE, as a plan that was kept would go on with the row type that it was made for.
    -- Those that have gone since, or were changed, have an xmax that was committed. An xmax
    -- is the lower half of a transaction's id, and the whole one is near ours.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- (By the name of the table that fired us: public.plants may be a domain by now, whose
        -- check a null of it would run.)
        EXECUTE format('SELECT ARRAY(SELECT json_object_keys(row_to_json(today.*))) FROM (SELECT (NULL::%s).*) today',
            (SELECT c.reltype::regtype FROM pg_class c WHERE c.oid = plants)) INTO todays_names;
        us := pg_current_xact_id()::text::bigint;
        seen_names := ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = plants AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum);
        IF seen_names <> todays_names OR EXISTS (
                SELECT FROM pg_attribute a WHERE a.attrelid = plants AND a.attnum > 0 AND a.xmax <> '0'::xid
                    AND pg_xact_status((us + ((a.xmax::text::bigint - us + 2147483648) & 4294967295) - 2147483648)::text::xid8) = 'committed') THEN
            RAISE EXCEPTION 'public.plants was altered after this transaction began' USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;
    SELECT s.id INTO known_shape FROM public.plant_shapes s WHERE s.relation = plants AND s.attributes = todays_attributes ORDER BY s.id LIMIT 1;
    IF known_shape IS NULL THEN
        INSERT INTO public.plant_shapes (attributes, names, types, generated, has_virtual, relation, attnums)
        SELECT todays_attributes,
            array_agg(a.attname::text ORDER BY a.attnum), array_agg(format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum),
            array_agg(a.attgenerated <> '' ORDER BY a.attnum), bool_or(a.attgenerated = 'v'), plants, array_agg(a.attnum ORDER BY a.attnum)
        FROM pg_attribute a WHERE a.attrelid = plants AND a.attnum > 0 AND NOT a.attisdropped
        RETURNING id INTO known_shape;
    END IF;
    RETURN known_shape;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION public.plantstore_refuse_truncate() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'TRUNCATE of %.% is refused: it would leave no record in plant_deletions',
        TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege', HINT = 'Use DELETE; every row is then recorded and can be restored.';
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION public.plantstore_prove(bigint[], text[], text[]), public.plantstore_record_deletion(),
    public.plantstore_refuse(bigint, text, text, text), public.plantstore_shape(oid), public.plantstore_columns(oid),
    public.plantstore_planned_columns(regclass), public.plantstore_refuse_truncate() FROM PUBLIC;

-- Plain origin triggers: a logical replica gets the ledger's rows from the primary
-- and must not write others.
CREATE TRIGGER plantstore_record_deletion AFTER DELETE ON public.plants
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION public.plantstore_record_deletion();
CREATE TRIGGER plantstore_refuse_truncate BEFORE TRUNCATE ON public.plants
    FOR EACH STATEMENT EXECUTE FUNCTION public.plantstore_refuse_truncate();

-- +goose Down
-- Of an adopted table its owner may have dropped them already: only the owner can.
DROP TRIGGER IF EXISTS plantstore_refuse_truncate ON public.plants;
DROP TRIGGER IF EXISTS plantstore_record_deletion ON public.plants;
DROP FUNCTION public.plantstore_refuse_truncate();
DROP FUNCTION public.plantstore_record_deletion();
DROP FUNCTION public.plantstore_shape(oid);
DROP FUNCTION public.plantstore_planned_columns(regclass);
DROP FUNCTION public.plantstore_columns(oid);
DROP FUNCTION public.plantstore_refuse(bigint, text, text, text);
DROP FUNCTION public.plantstore_prove(bigint[], text[], text[]);
