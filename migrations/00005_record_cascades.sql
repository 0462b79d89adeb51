-- Rows of other tables that leave or change with a plant, by ON DELETE CASCADE, SET NULL or
-- SET DEFAULT. A table is recorded once it is watched: it gets triggers, and a function that
-- is written for it. Nothing else pays for this.
-- locks: none

-- +goose Up
CREATE TABLE plantstore.cascaded (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    deletion_id bigint NOT NULL,
    relation regclass NOT NULL,
    key text COLLATE "C", -- as the names in the catalogue, so that the index serves
    changed text,
    content json NOT NULL,
    literal text NOT NULL
);
CREATE INDEX cascaded_by_deletion ON plantstore.cascaded (deletion_id);
CREATE INDEX cascaded_by_key ON plantstore.cascaded (key, relation) WHERE key IS NOT NULL;
COMMENT ON TABLE plantstore.cascaded IS 'Rows of watched tables that left or changed with a deleted plant.';
COMMENT ON COLUMN plantstore.cascaded.deletion_id IS 'The deletion in plantstore.deletions.';
COMMENT ON COLUMN plantstore.cascaded.key IS 'The primary key, if it is one column.';
COMMENT ON COLUMN plantstore.cascaded.changed IS 'The column that was set to null or its default. Null: the row was removed.';
COMMENT ON COLUMN plantstore.cascaded.content IS 'The row before, to read and search.';
COMMENT ON COLUMN plantstore.cascaded.literal IS 'The row as PostgreSQL writes it, to restore it exactly.';

-- The foreign keys by which a deletion of a plant removes or changes rows of other tables.
-- depth is the length of the shortest path from plants to the parent, and levels is how many
-- different lengths there are. missing is the GRANT that the current role needs to watch the
-- table and to restore its rows.
CREATE VIEW plantstore.foreign_keys AS
    WITH RECURSIVE enforced AS ( -- before PostgreSQL 18, all are
        SELECT * FROM pg_catalog.pg_constraint f WHERE f.contype = 'f' AND f.conparentid = 0 AND to_jsonb(f) ->> 'conenforced' IS DISTINCT FROM 'false'
    ), reached (relid, depth) AS (
        SELECT to_regclass('public.plants')::oid, 0
        UNION ALL SELECT f.conrelid, r.depth + 1 FROM reached r JOIN enforced f ON f.confrelid = r.relid AND f.confdeltype = 'c'
    ) CYCLE relid SET again USING path
    SELECT f.conrelid::regclass AS relation, f.conname AS name, f.confrelid::regclass AS parent, f.confdeltype AS action, f.conkey AS columns, f.confkey AS parent_columns,
        (SELECT count(DISTINCT r.depth) FROM reached r WHERE r.relid = f.confrelid) AS levels,
        (SELECT min(r.depth) FROM reached r WHERE r.relid = f.confrelid) AS depth,
        CASE WHEN NOT (has_schema_privilege(c.relnamespace, 'USAGE') AND has_table_privilege(f.conrelid, 'SELECT') AND has_table_privilege(f.conrelid, 'INSERT')
                AND has_table_privilege(f.conrelid, 'UPDATE') AND has_table_privilege(f.conrelid, 'TRIGGER'))
            THEN format('GRANT USAGE ON SCHEMA %1$s TO %2$I; GRANT SELECT, INSERT, UPDATE, TRIGGER ON %3$s TO %2$I;', c.relnamespace::regnamespace, current_user, f.conrelid::regclass) END AS missing
    FROM enforced f JOIN pg_catalog.pg_class c ON c.oid = f.conrelid
    WHERE f.confrelid IN (SELECT r.relid FROM reached r) AND f.confdeltype IN ('c', 'n', 'd')
        AND NOT (f.confdeltype = 'c' AND f.conrelid = to_regclass('public.plants')); -- the ledger has those

-- Why a table can't be watched, one sentence a row. A row is recorded only after its parent
-- row. If paths of different lengths lead to the parent, PostgreSQL does not keep that order.
-- +goose StatementBegin
CREATE FUNCTION plantstore.unwatchable(target regclass) RETURNS SETOF text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('%s %s', target, v.problem) FROM pg_class c, LATERAL (
        SELECT min(t.tgrelid::regclass::text) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
        WHERE t.tgrelid <> c.oid AND p.proname = 'record ' || target AND p.pronamespace = 'plantstore'::regnamespace
    ) namesake (name), LATERAL (VALUES
        (NOT EXISTS (SELECT FROM plantstore.foreign_keys k WHERE k.relation = target), 'loses and changes no rows when a plant is deleted'),
        (c.relispartition, 'is a partition'),
        (NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary), 'has no primary key'),
        (EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey) JOIN pg_type y ON y.oid = a.atttypid WHERE i.indrelid = c.oid AND i.indisprimary
            AND (y.typcategory IN ('A', 'C') OR y.oid = 'jsonb'::regtype OR EXISTS (SELECT FROM pg_cast WHERE castsource = y.oid AND casttarget = 'json'::regtype))),
            'has an array, a composite or JSON in its primary key'),
        (EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE t.tgrelid = c.oid AND t.tgname IN ('record_cascade', 'record_change') AND p.pronamespace <> 'plantstore'::regnamespace),
            'has a trigger of its own that is called record_cascade or record_change'),
        (namesake.name IS NOT NULL, format('has the name under which %s is watched: first unwatch %1$s', namesake.name)),
        (octet_length('record ' || target) > 63, 'has a name of more than 56 bytes'),
        (c.relrowsecurity, 'has row level security'),
        (EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid), 'has a rule')
    ) v (holds, problem) WHERE c.oid = target AND v.holds
    UNION ALL
    SELECT format('%s refers by %I to %s, %s', target, k.name, k.parent, v.problem)
    FROM plantstore.foreign_keys k
    JOIN pg_attribute a ON a.attrelid = k.relation AND a.attnum = k.columns[1]
    JOIN pg_attribute b ON b.attrelid = k.parent AND b.attnum = k.parent_columns[1], LATERAL (VALUES
        (k.levels > 1, 'and deletions reach that on paths of different lengths'),
        (cardinality(k.columns) > 1 OR NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = k.parent AND i.indisprimary AND i.indnkeyatts = 1 AND i.indkey[0] = b.attnum),
            'but not to a primary key of one column'),
        (NOT (a.atttypid = ANY ('{int2,int4,int8}'::regtype[]) AND b.atttypid = ANY ('{int2,int4,int8}'::regtype[])
            OR a.atttypid = b.atttypid AND a.atttypid = ANY ('{uuid,text,varchar}'::regtype[])), 'a key that is no integer, uuid or text'),
        (EXISTS (SELECT FROM pg_collation c WHERE c.oid IN (a.attcollation, b.attcollation) AND NOT c.collisdeterministic), 'a key with a nondeterministic collation')
    ) v (holds, problem) WHERE k.relation = target AND v.holds
$$;
-- +goose StatementEnd

-- Returns the body of the trigger function of a table. The function runs for statements within
-- another trigger, as those of foreign keys are, and records the rows whose foreign key names
-- a row that this transaction deleted and recorded. The trigger of plants runs first, then
-- those of the tables that refer to them, and so on. OFFSET 0 keeps the order of the joins.
--
-- After columns were renamed, dropped or got another type, the table has to be watched again.
-- Until then its rows leave without a record, as before it was watched.
-- +goose StatementBegin
CREATE FUNCTION plantstore.recorder(target regclass) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH lookups AS ( -- the deletions that took or changed a row, for each event and column that was changed
        SELECT CASE k.action WHEN 'c' THEN 'DELETE' ELSE 'UPDATE' END AS event, CASE WHEN k.action <> 'c' THEN a.attname END AS changed,
            string_agg(CASE k.parent WHEN 'public.plants'::regclass
                THEN format('SELECT t.id FROM plantstore.deletions t WHERE t.plant_id = g.%I AND t.refused IS NULL AND t.transaction_id = pg_current_xact_id()', a.attname)
                ELSE format('SELECT c.deletion_id FROM plantstore.cascaded c WHERE c.key = g.%I::text COLLATE "C" AND c.relation = %L::regclass AND c.changed IS NULL
                AND (SELECT t.transaction_id FROM plantstore.deletions t WHERE t.id = c.deletion_id) = pg_current_xact_id()', a.attname, k.parent) END, '
            UNION ' ORDER BY k.name) AS sql
        FROM plantstore.foreign_keys k JOIN pg_attribute a ON a.attrelid = target AND a.attnum = k.columns[1]
        -- Foreign keys that unwatchable() refuses are skipped: they may have been added after the watch.
        WHERE k.relation = target AND cardinality(k.columns) = 1
            AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = k.parent AND i.indisprimary AND i.indnkeyatts = 1 AND i.indkey[0] = k.parent_columns[1])
        GROUP BY 1, 2
    )
    SELECT format($body$
#variable_conflict use_variable -- the table may name its columns like these
BEGIN
%s    RETURN NULL;
EXCEPTION WHEN syntax_error_or_access_rule_violation THEN -- names, types and rights that changed
    RAISE WARNING 'rows of %% that left or changed with plants were not recorded: %%', TG_RELID::regclass, SQLERRM
        USING HINT = format('Run SELECT plantstore.watch(%%L);', TG_RELID::regclass);
    RETURN NULL;
END
$body$, string_agg(format($insert$    IF TG_OP = %L THEN
        INSERT INTO plantstore.cascaded (deletion_id, relation, key, changed, content, literal)
        SELECT d.id, TG_RELID, %s, %L, row_to_json(g.*), (g.*)::record::text
        FROM gone g CROSS JOIN LATERAL (
            %s OFFSET 0
        ) d (id);
    END IF;
$insert$,
        l.event,
        coalesce((SELECT format('g.%I::text', a.attname) FROM pg_index i JOIN pg_attribute a ON a.attrelid = target AND a.attnum = i.indkey[0]
            WHERE i.indrelid = target AND i.indisprimary AND i.indnkeyatts = 1), 'NULL'),
        l.changed, l.sql), '' ORDER BY l.event, l.changed))
    FROM lookups l
$$;
-- +goose StatementEnd

-- Reports whether the rows of a table's foreign keys with this action are recorded: the
-- trigger is enabled, and its function is what recorder() would write today.
-- +goose StatementBegin
CREATE FUNCTION plantstore.is_watched(target regclass, action "char") RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
        WHERE t.tgrelid = target AND t.tgname = CASE action WHEN 'c' THEN 'record_cascade' ELSE 'record_change' END
            AND t.tgenabled IN ('O', 'A') AND p.prosrc = plantstore.recorder(target))
$$;
-- +goose StatementEnd

-- Watches a table and those between it and plants, in the order in which deletions lock them.
-- SECURITY DEFINER, so that the functions belong to the ledger's owner even if a superuser
-- calls it.
-- +goose StatementBegin
CREATE FUNCTION plantstore.watch(target regclass) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- Values are written in the same form as by record_deletion().
    forms text := (SELECT string_agg(format('SET %s = %L', split_part(s, '=', 1), substr(s, strpos(s, '=') + 1)), ' ') FROM pg_proc, unnest(proconfig) s
        WHERE oid = 'plantstore.record_deletion()'::regprocedure AND NOT starts_with(s, 'search_path='));
    problem text;
    t regclass;
    trigger text;
BEGIN
    FOR t IN
        WITH RECURSIVE above (relation) AS (
            SELECT target
            UNION SELECT k.parent FROM above a JOIN plantstore.foreign_keys k ON k.relation = a.relation AND k.parent <> 'public.plants'::regclass
        )
        SELECT a.relation FROM above a ORDER BY (SELECT min(k.depth) FROM plantstore.foreign_keys k WHERE k.relation = a.relation), a.relation
    LOOP
        problem := (SELECT string_agg(p, E'\n') FROM plantstore.unwatchable(t) p);
        IF problem IS NULL THEN
            problem := (SELECT 'first run ' || min(k.missing) FROM plantstore.foreign_keys k WHERE k.relation = t);
        END IF;
        IF problem IS NOT NULL THEN
            RAISE EXCEPTION '%', problem;
        END IF;
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
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Drops the function of a table and its triggers.
-- +goose StatementBegin
CREATE FUNCTION plantstore.unwatch(target regclass) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    child regclass := (SELECT min(k.relation::oid) FROM plantstore.foreign_keys k WHERE k.parent = target AND k.relation <> target AND plantstore.is_watched(k.relation, k.action));
    f regprocedure;
BEGIN
    IF child IS NOT NULL THEN
        RAISE EXCEPTION '% is watched through %: first unwatch %', child, target, child;
    END IF;
    FOR f IN SELECT DISTINCT t.tgfoid FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
        WHERE t.tgrelid = target AND t.tgname IN ('record_cascade', 'record_change') AND p.pronamespace = 'plantstore'::regnamespace
    LOOP
        EXECUTE format('DROP FUNCTION %s CASCADE', f);
    END LOOP;
END
$$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION plantstore.recorder(regclass), plantstore.is_watched(regclass, "char"), plantstore.unwatchable(regclass), plantstore.watch(regclass), plantstore.unwatch(regclass) FROM PUBLIC;

-- +goose Down
-- +goose StatementBegin
DO $$
BEGIN
    LOCK TABLE plantstore.cascaded IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM plantstore.cascaded) THEN
        RAISE EXCEPTION 'refusing to drop plantstore.cascaded: it has rows'
            USING HINT = 'Empty it first. These rows cannot be restored without it.';
    END IF;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'plantstore'::regnamespace AND starts_with(p.proname, 'record ') LOOP
        EXECUTE format('DROP FUNCTION %s CASCADE', f); -- and its triggers
    END LOOP;
END
$$;
-- +goose StatementEnd
DROP FUNCTION plantstore.watch(regclass), plantstore.unwatch(regclass), plantstore.is_watched(regclass, "char"), plantstore.recorder(regclass), plantstore.unwatchable(regclass);
DROP VIEW plantstore.foreign_keys;
DROP TABLE plantstore.cascaded;
