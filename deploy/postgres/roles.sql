-- The two roles of the plant store service. Run it in the store's database, before
-- the first migration:
--
--     psql -d plantstore -f deploy/postgres/roles.sql
--
-- as a superuser, or as a role with CREATEROLE, such as the administrator of a managed
-- database. It does what that role may do. What is left it tells as statements, for
-- whoever owns the database or the table plants, and ends with exit code 3. Run it
-- again then: what is done stays as it is. Rights of others are never touched.
--
--   plantstore_owner  applies the migrations and owns what they create.
--   plantstore_app    is what the service connects as. It can delete plants,
--                     read the ledger, look tokens up and note their last use;
--                     the migrations grant what that takes: 00006_grants.sql.

\set ON_ERROR_STOP on
\set SHOW_CONTEXT never

DO $$
DECLARE
    -- Types are looked up before anything runs here, so they have their schema. (SQL itself
    -- knows boolean.)
    step pg_catalog.record;
    done boolean;
    undone pg_catalog.text := '';
BEGIN
    -- From here on no name means something that others could make.
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    -- That nothing was granted is a warning, of which is told below.
    PERFORM set_config('client_min_messages', 'error', true);
    FOR step IN
        SELECT s.* FROM pg_database d JOIN pg_roles dba ON dba.oid = d.datdba
            LEFT JOIN (pg_namespace n JOIN pg_roles schema_owner ON schema_owner.oid = n.nspowner) ON n.nspname = 'public'
            -- A table that was there before the service stays its owner's: the
            -- migrations only put triggers on it and pass rights on.
            LEFT JOIN (pg_class p JOIN pg_roles store ON store.oid = p.relowner AND store.rolname <> 'plantstore_owner') ON p.relnamespace = n.oid AND p.relname = 'plants',
        LATERAL (VALUES
            (true, 'a role with CREATEROLE',
                'CREATE ROLE plantstore_owner LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION',
                'to_regrole(''plantstore_owner'') IS NOT NULL'),
            (true, 'a role with CREATEROLE',
                'CREATE ROLE plantstore_app LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOINHERIT',
                'to_regrole(''plantstore_app'') IS NOT NULL'),
            (true, quote_ident(dba.rolname) || ', who owns the database',
                format('GRANT CONNECT ON DATABASE %I TO plantstore_owner, plantstore_app', d.datname),
                'has_database_privilege(to_regrole(''plantstore_owner'')::oid, current_database(), ''CONNECT'')
                    AND has_database_privilege(to_regrole(''plantstore_app'')::oid, current_database(), ''CONNECT'')'),
            (true, quote_ident(coalesce(nullif(schema_owner.rolname, 'pg_database_owner'), dba.rolname)) || ', who owns the schema',
                'GRANT USAGE, CREATE ON SCHEMA public TO plantstore_owner',
                'has_schema_privilege(to_regrole(''plantstore_owner'')::oid, ''public'', ''USAGE'')
                    AND has_schema_privilege(to_regrole(''plantstore_owner'')::oid, ''public'', ''CREATE'')'),
            (true, quote_ident(coalesce(nullif(schema_owner.rolname, 'pg_database_owner'), dba.rolname)) || ', who owns the schema',
                'GRANT USAGE ON SCHEMA public TO plantstore_app',
                'has_schema_privilege(to_regrole(''plantstore_app'')::oid, ''public'', ''USAGE'')'),
            (p.oid IS NOT NULL, quote_ident(store.rolname) || ', who owns the table',
                'GRANT TRIGGER, INSERT ON public.plants TO plantstore_owner',
                format('has_table_privilege(to_regrole(''plantstore_owner'')::oid, %1$s::oid, ''TRIGGER'')
                    AND has_table_privilege(to_regrole(''plantstore_owner'')::oid, %1$s::oid, ''INSERT'')', p.oid)),
            (p.oid IS NOT NULL, quote_ident(store.rolname) || ', who owns the table',
                'GRANT SELECT, DELETE ON public.plants TO plantstore_owner WITH GRANT OPTION',
                format('has_table_privilege(to_regrole(''plantstore_owner'')::oid, %1$s::oid, ''SELECT WITH GRANT OPTION'')
                    AND has_table_privilege(to_regrole(''plantstore_owner'')::oid, %1$s::oid, ''DELETE WITH GRANT OPTION'')', p.oid))
        ) s (needed, who, statement, is_done)
        WHERE d.datname = current_database() AND s.needed
    LOOP
        BEGIN
            EXECUTE step.statement;
        EXCEPTION
            WHEN duplicate_object OR insufficient_privilege OR undefined_object THEN NULL;
        END;
        EXECUTE 'SELECT ' || step.is_done INTO done;
        IF done IS NOT TRUE THEN
            undone := undone || format(E'\n-- for %s:\n%s;', step.who, step.statement);
        END IF;
    END LOOP;
    PERFORM set_config('plantstore.undone', undone, false);
END
$$;

-- In a transaction of its own: an error would take the above back.
DO $$
DECLARE
    undone pg_catalog.text := pg_catalog.current_setting('plantstore.undone');
BEGIN
    PERFORM pg_catalog.set_config('plantstore.undone', '', false);
    IF undone OPERATOR(pg_catalog.<>) '' THEN
        RAISE EXCEPTION E'this is left to do in database %, then run roles.sql again:%', pg_catalog.current_database(), undone;
    END IF;
    RAISE NOTICE 'the roles are there. Give both a password (\password plantstore_owner, \password plantstore_app) or other means to log in, then run plantstore migrate plan';
END
$$;
