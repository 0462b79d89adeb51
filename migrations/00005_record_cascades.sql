-- Rows of other tables that leave or change with a plant, by ON DELETE CASCADE, SET NULL or
-- SET DEFAULT. A table is recorded once it is watched: it gets triggers, and a function that
-- is written for it. Nothing else pays for this.
-- locks: none

-- +goose Up
CREATE TABLE plantstore.cascaded (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    deletion_id bigint NOT NULL,
    relation regclass NOT NULL,
    key text COLLATE "C" NOT NULL, -- as the names in the catalogue, so that the index serves
    changed text,
    became text,
    content json NOT NULL,
    literal text NOT NULL
);
CREATE INDEX cascaded_by_deletion ON plantstore.cascaded (deletion_id);
CREATE INDEX cascaded_by_key ON plantstore.cascaded (key, relation);
COMMENT ON TABLE plantstore.cascaded IS 'Rows of watched tables that left or changed with a deleted plant.';
COMMENT ON COLUMN plantstore.cascaded.deletion_id IS 'The deletion in plantstore.deletions.';
COMMENT ON COLUMN plantstore.cascaded.key IS 'The primary key: its value, or a row of its values.';
COMMENT ON COLUMN plantstore.cascaded.changed IS 'The column that was set to null or its default. Null: the row was removed.';
COMMENT ON COLUMN plantstore.cascaded.became IS 'NULL, or that default: an expression.';
COMMENT ON COLUMN plantstore.cascaded.content IS 'The row before, to read and search.';
COMMENT ON COLUMN plantstore.cascaded.literal IS 'The row as PostgreSQL writes it, to restore it exactly.';

-- All rows that a restore brings back: plants, and those of watched tables. id is that of the
-- table that has the row: plants and other rows have numbers of their own.
CREATE VIEW plantstore.recorded AS
    SELECT d.id AS deletion_id, d.id, to_regclass('public.plants') AS relation, d.plant_id::text AS key, NULL AS changed, NULL AS became, d.plant AS content, d.literal, d.types
    FROM plantstore.deletions d WHERE d.refused IS NULL
    UNION ALL SELECT c.deletion_id, c.id, c.relation, c.key, c.changed, c.became, c.content, c.literal, NULL FROM plantstore.cascaded c;

-- The foreign keys by which a deletion of a plant removes or changes rows of other tables.
-- depth is the length of the shortest path from plants to the parent, and levels is how many
-- different lengths there are. column_name is null unless the key refers to a primary key of
-- one column.
CREATE VIEW plantstore.foreign_keys AS
    WITH RECURSIVE enforced AS ( -- before PostgreSQL 18, all are
        SELECT * FROM pg_catalog.pg_constraint f WHERE f.contype = 'f' AND f.conparentid = 0 AND to_jsonb(f) ->> 'conenforced' IS DISTINCT FROM 'false'
    ), reached (relid, depth) AS (
        SELECT to_regclass('public.plants')::oid, 0
        UNION ALL SELECT f.conrelid, r.depth + 1 FROM reached r JOIN enforced f ON f.confrelid = r.relid AND f.confdeltype = 'c'
    ) CYCLE relid SET again USING path
    SELECT f.conrelid::regclass AS relation, f.conname AS name, f.confrelid::regclass AS parent, f.confdeltype AS action, f.conkey AS columns, f.confkey AS parent_columns,
        (SELECT a.attname FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_constraint p ON p.conrelid = f.confrelid AND p.contype = 'p' AND p.conkey = f.confkey
            WHERE a.attrelid = f.conrelid AND a.attnum = f.conkey[1] AND cardinality(f.conkey) = 1) AS column_name,
        (SELECT count(DISTINCT r.depth) FROM reached r WHERE r.relid = f.confrelid) AS levels,
        (SELECT min(r.depth) FROM reached r WHERE r.relid = f.confrelid) AS depth
    FROM enforced f
    WHERE f.confrelid IN (SELECT r.relid FROM reached r) AND f.confdeltype IN ('c', 'n', 'd')
        AND NOT (f.confdeltype = 'c' AND f.conrelid = to_regclass('public.plants')); -- the ledger has those

-- Returns a table and those between it and plants, parents first, as deletions lock them.
-- +goose StatementBegin
CREATE FUNCTION plantstore.chain(target regclass) RETURNS SETOF regclass LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE keys AS MATERIALIZED (
        SELECT * FROM plantstore.foreign_keys
    ), above (relation) AS (
        SELECT target
        UNION SELECT k.parent FROM above a JOIN keys k ON k.relation = a.relation AND k.parent <> 'public.plants'::regclass
    )
    SELECT a.relation FROM above a ORDER BY (SELECT min(k.depth) FROM keys k WHERE k.relation = a.relation), a.relation
$$;
-- +goose StatementEnd

-- Returns the GRANTs that the current role needs to restore rows of a table, and to watch it.
-- Plants need no watch.
-- +goose StatementBegin
CREATE FUNCTION plantstore.missing(target regclass) RETURNS SETOF text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
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
-- +goose StatementEnd

-- Why a table can't be watched, one sentence a row: its own reasons, and those of the tables
-- between it and plants. A row is recorded only after its parent row. If paths of different
-- lengths lead to the parent, PostgreSQL does not keep that order.
-- +goose StatementBegin
CREATE FUNCTION plantstore.unwatchable(target regclass) RETURNS SETOF text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
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
-- +goose StatementEnd

-- The deletion of this transaction that took a plant, and those that took a recorded row of a
-- watched table. PostgreSQL puts these functions into the statements that call them. OFFSET 0
-- keeps the order of the joins.
-- +goose StatementBegin
CREATE FUNCTION plantstore.deletion_of_plant(deleted_plant bigint) RETURNS SETOF bigint LANGUAGE sql STABLE AS $$
    SELECT t.id FROM plantstore.deletions t WHERE t.plant_id = deleted_plant AND t.refused IS NULL AND t.transaction_id = pg_catalog.pg_current_xact_id()
    ORDER BY t.id + 0 DESC LIMIT 1 -- the newest, and not by the index on the id
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION plantstore.deletions_of_row(parent regclass, parent_key text) RETURNS SETOF bigint LANGUAGE sql STABLE AS $$
    SELECT c.deletion_id FROM plantstore.cascaded c WHERE c.key = parent_key COLLATE "C" AND c.relation = parent AND c.changed IS NULL
        AND (SELECT t.transaction_id FROM plantstore.deletions t WHERE t.id = c.deletion_id) = pg_catalog.pg_current_xact_id() OFFSET 0
$$;
-- +goose StatementEnd

-- The default of a column, as an expression.
-- +goose StatementBegin
CREATE FUNCTION plantstore.default_of(target regclass, column_name text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT pg_catalog.pg_get_expr(v.adbin, v.adrelid) FROM pg_catalog.pg_attrdef v JOIN pg_catalog.pg_attribute a ON a.attrelid = v.adrelid AND a.attnum = v.adnum
        WHERE a.attrelid = target AND a.attname = column_name), 'NULL')
$$;
-- +goose StatementEnd

-- Returns the body of the trigger function of a table. The function runs for statements within
-- another trigger, as those of foreign keys are, and records the rows whose foreign key names
-- a row that this transaction deleted and recorded. The trigger of plants runs first, then
-- those of the tables that refer to them, and so on. For pictures of order_items, which refer
-- to plants by a second key with SET NULL, it does this:
--
--     IF TG_OP = 'DELETE' THEN
--         INSERT INTO plantstore.cascaded (deletion_id, relation, key, changed, became, content, literal)
--         SELECT d.id, TG_RELID, g.id::text, NULL, NULL, row_to_json(g.*), (g.*)::record::text
--         FROM gone g, LATERAL (SELECT * FROM plantstore.deletions_of_row('public.order_items', g.item_id::text)) d (id);
--     END IF;
--     IF TG_OP = 'UPDATE' THEN
--         INSERT INTO plantstore.cascaded (deletion_id, relation, key, changed, became, content, literal)
--         SELECT d.id, TG_RELID, g.id::text, 'plant_id', 'NULL', row_to_json(g.*), (g.*)::record::text
--         FROM gone g, LATERAL (SELECT * FROM plantstore.deletion_of_plant(g.plant_id)) d (id);
--     END IF;
--
-- After a foreign key was added, or a name in this text changed, the table has to be watched
-- again. Until then its rows may leave without a record.
-- +goose StatementBegin
CREATE FUNCTION plantstore.recorder(target regclass) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off AS $$
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

-- Watches a table and those between it and plants, in the order in which deletions lock them,
-- and returns these tables. SECURITY DEFINER, so that the functions belong to the ledger's owner
-- even if a superuser calls it. Others wait behind it, so it does not wait for long.
-- +goose StatementBegin
CREATE FUNCTION plantstore.watch(target regclass) RETURNS SETOF regclass LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off SET lock_timeout = '1200ms' AS $$
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
$$;
-- +goose StatementEnd

-- Drops the functions and triggers of a table and of those that are watched through it, and
-- returns these tables.
-- +goose StatementBegin
CREATE FUNCTION plantstore.unwatch(target regclass) RETURNS SETOF regclass LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1200ms' AS $$
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
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION plantstore.recorder(regclass), plantstore.is_watched(regclass, "char"), plantstore.unwatchable(regclass), plantstore.watch(regclass), plantstore.unwatch(regclass),
    plantstore.chain(regclass), plantstore.missing(regclass), plantstore.deletion_of_plant(bigint), plantstore.deletions_of_row(regclass, text), plantstore.default_of(regclass, text) FROM PUBLIC;

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
DROP FUNCTION plantstore.watch(regclass), plantstore.unwatch(regclass), plantstore.is_watched(regclass, "char"), plantstore.recorder(regclass), plantstore.unwatchable(regclass),
    plantstore.deletion_of_plant(bigint), plantstore.deletions_of_row(regclass, text), plantstore.default_of(regclass, text), plantstore.missing(regclass), plantstore.chain(regclass);
DROP VIEW plantstore.foreign_keys, plantstore.recorded;
DROP TABLE plantstore.cascaded;
