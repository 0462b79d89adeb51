-- Rows of other tables that leave or change with a plant, by ON DELETE CASCADE, SET NULL or
-- SET DEFAULT. A table is recorded once it is watched. Nothing else pays for this.
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
-- levels counts the lengths of the paths on which deletions reach the parent, depth is the
-- shortest, and missing is what the current role lacks to watch the table and to restore its
-- rows.
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
        CASE WHEN NOT (has_table_privilege(f.conrelid, 'SELECT') AND has_table_privilege(f.conrelid, 'INSERT')
                AND has_table_privilege(f.conrelid, 'UPDATE') AND has_table_privilege(f.conrelid, 'TRIGGER'))
            THEN format('GRANT SELECT, INSERT, UPDATE, TRIGGER ON %s TO %I;', f.conrelid::regclass, current_user) END AS missing,
        EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = f.conrelid AND t.tgenabled IN ('O', 'A')
            AND t.tgname = CASE f.confdeltype WHEN 'c' THEN 'record_cascade' ELSE 'record_change' END) AS watched
    FROM enforced f
    WHERE f.confrelid IN (SELECT r.relid FROM reached r) AND f.confdeltype IN ('c', 'n', 'd')
        AND NOT (f.confdeltype = 'c' AND f.conrelid = to_regclass('public.plants')); -- the ledger has those

-- Why a table can't be watched, one sentence a row. A row is recorded because the row that
-- it refers to was recorded before it, which paths of different lengths do not ensure.
-- +goose StatementBegin
CREATE FUNCTION plantstore.unwatchable(target regclass) RETURNS SETOF text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('%s %s', target, v.problem) FROM pg_class c, LATERAL (VALUES
        (NOT EXISTS (SELECT FROM plantstore.foreign_keys k WHERE k.relation = target), 'loses and changes no rows when a plant is deleted'),
        (c.relispartition, 'is a partition'),
        (NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary), 'has no primary key'),
        (c.relrowsecurity, 'has row level security'),
        (EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid), 'has a rule')
    ) v (holds, problem) WHERE c.oid = target AND v.holds
    UNION ALL
    SELECT format('%s refers to %s by %I, %s', target, k.parent, k.name, v.problem)
    FROM plantstore.foreign_keys k
    JOIN pg_attribute a ON a.attrelid = k.relation AND a.attnum = k.columns[1]
    JOIN pg_attribute b ON b.attrelid = k.parent AND b.attnum = k.parent_columns[1], LATERAL (VALUES
        (k.levels > 1, 'which a deletion reaches on paths of different lengths'),
        (cardinality(k.columns) > 1 OR NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = k.parent AND i.indisprimary AND i.indnkeyatts = 1 AND i.indkey[0] = b.attnum),
            'but not to a primary key of one column'),
        (NOT (a.atttypid = ANY ('{int2,int4,int8}'::regtype[]) AND b.atttypid = ANY ('{int2,int4,int8}'::regtype[])
            OR a.atttypid = b.atttypid AND a.atttypid = ANY ('{uuid,text,varchar}'::regtype[])), 'a key that is no integer, uuid or text'),
        (EXISTS (SELECT FROM pg_collation c WHERE c.oid IN (a.attcollation, b.attcollation) AND NOT c.collisdeterministic), 'a key with a nondeterministic collation')
    ) v (holds, problem) WHERE k.relation = target AND v.holds
$$;
-- +goose StatementEnd

-- Runs for statements within another trigger, as those of foreign keys are, and records the
-- rows whose foreign key names a row that this transaction deleted, and recorded. The
-- trigger of plants runs first, then those of the tables that refer to them, and so on.
-- Names come from the catalogue each time: columns may be renamed.
-- +goose StatementBegin
CREATE FUNCTION plantstore.record_cascade() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off -- a plan is made for few rows and used for many; each OFFSET 0 keeps the order of joins
SET enable_hashjoin = off
SET enable_mergejoin = off
-- As in record_deletion().
SET datestyle = 'ISO, YMD'
SET intervalstyle = 'postgres'
SET extra_float_digits = 1
SET bytea_output = 'hex'
SET timezone = 'UTC'
SET lc_monetary = 'C'
SET xmlbinary = 'base64'
SET quote_all_identifiers = off
AS $$
DECLARE
    own text;
    k record;
BEGIN
    IF NOT EXISTS (SELECT FROM gone) THEN
        RETURN NULL;
    END IF;
    own := (SELECT a.attname FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = TG_RELID AND a.attnum = c.conkey[1]
        WHERE c.conrelid = TG_RELID AND c.contype = 'p' AND cardinality(c.conkey) = 1);
    FOR k IN
        SELECT c.confrelid AS parent, a.attname::text AS name FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = TG_RELID AND a.attnum = c.conkey[1]
        WHERE c.conrelid = TG_RELID AND c.contype = 'f' AND c.confdeltype IN ('c', 'n', 'd') AND (c.confdeltype = 'c') = (TG_OP = 'DELETE')
            -- A foreign key that was added since and is not as unwatchable() asks counts for nothing.
            AND cardinality(c.conkey) = 1 AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.confrelid AND i.indisprimary AND i.indnkeyatts = 1 AND i.indkey[0] = c.confkey[1])
    LOOP
        -- json takes escapes that its functions refuse. They are in values, never in keys.
        INSERT INTO plantstore.cascaded (deletion_id, relation, key, changed, content, literal)
        SELECT d.id, TG_RELID, r.readable ->> own, CASE TG_OP WHEN 'UPDATE' THEN k.name END, r.content, (g.*)::record::text
        FROM gone g CROSS JOIN LATERAL (
            SELECT j, CASE WHEN strpos(j::text, '\u') = 0 THEN j ELSE regexp_replace(j::text, '\\u(0000|[dD][89a-fA-F][0-9a-fA-F]{2})', '\\u0001', 'g')::json END
            FROM row_to_json(g.*) j OFFSET 0
        ) r (content, readable)
        CROSS JOIN LATERAL (
            SELECT t.id FROM plantstore.deletions t
            WHERE k.parent = 'public.plants'::regclass
                AND t.plant_id = (r.readable ->> k.name)::bigint AND t.refused IS NULL AND t.transaction_id = pg_current_xact_id()
            UNION ALL
            SELECT c.deletion_id FROM plantstore.cascaded c
            WHERE k.parent <> 'public.plants'::regclass
                AND c.key = r.readable ->> k.name AND c.relation = k.parent AND c.changed IS NULL
                AND (SELECT t.transaction_id FROM plantstore.deletions t WHERE t.id = c.deletion_id) = pg_current_xact_id()
            OFFSET 0
        ) d;
    END LOOP;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- Watches a table and those between it and plants, in the order in which deletions lock them.
-- +goose StatementBegin
CREATE FUNCTION plantstore.watch(target regclass) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
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
        FOR trigger IN SELECT DISTINCT CASE k.action WHEN 'c' THEN 'record_cascade AFTER DELETE' ELSE 'record_change AFTER UPDATE' END
            FROM plantstore.foreign_keys k WHERE k.relation = t
        LOOP
            EXECUTE format('CREATE OR REPLACE TRIGGER %s ON %s REFERENCING OLD TABLE AS gone FOR EACH STATEMENT WHEN (pg_trigger_depth() > 0) EXECUTE FUNCTION plantstore.record_cascade()', trigger, t);
        END LOOP;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION plantstore.unwatch(target regclass) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('DROP TRIGGER IF EXISTS record_cascade ON %s', target);
    EXECUTE format('DROP TRIGGER IF EXISTS record_change ON %s', target);
END
$$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION plantstore.record_cascade(), plantstore.unwatchable(regclass), plantstore.watch(regclass), plantstore.unwatch(regclass) FROM PUBLIC;

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
DROP FUNCTION plantstore.record_cascade() CASCADE; -- and its triggers
DROP FUNCTION plantstore.unwatchable(regclass), plantstore.watch(regclass), plantstore.unwatch(regclass);
DROP VIEW plantstore.foreign_keys;
DROP TABLE plantstore.cascaded;
