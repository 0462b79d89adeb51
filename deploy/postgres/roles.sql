-- The two roles of the plant store service: plantstore_owner applies the migrations and
-- owns what they create, plantstore_app is the role that the service connects as.
-- Run it in the store's database before the first migration, as a superuser or as the
-- database's owner with CREATEROLE. It can be run again.
--
--     psql -v ON_ERROR_STOP=1 -d plantstore -f deploy/postgres/roles.sql
--
-- Then give both roles a password: \password plantstore_owner, \password plantstore_app.

DO $$
BEGIN
    IF to_regrole('plantstore_owner') IS NULL THEN
        CREATE ROLE plantstore_owner LOGIN;
    END IF;
    IF to_regrole('plantstore_app') IS NULL THEN
        CREATE ROLE plantstore_app LOGIN NOINHERIT;
    END IF;
    IF current_setting('is_superuser') = 'off' THEN
        GRANT plantstore_owner TO CURRENT_USER; -- only a member can create the schema below
    END IF;
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO plantstore_owner, plantstore_app', current_database());
    EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO plantstore_owner', current_database()); -- deletions restore needs it
    -- An existing table stays its owner's. The migrations add triggers and grant the service its rights.
    IF EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('public.plants') AND relowner <> to_regrole('plantstore_owner')) THEN
        GRANT TRIGGER, SELECT, INSERT, DELETE ON public.plants TO plantstore_owner WITH GRANT OPTION;
    END IF;
END
$$;

GRANT USAGE, CREATE ON SCHEMA public TO plantstore_owner;
GRANT USAGE ON SCHEMA public TO plantstore_app;
CREATE SCHEMA IF NOT EXISTS plantstore AUTHORIZATION plantstore_owner;

-- The settings of the service's sessions. The service sets them itself when it connects.
-- Behind a pooler in transaction mode it can't, and these take effect.
ALTER ROLE plantstore_app SET synchronous_commit = on;
ALTER ROLE plantstore_app SET default_transaction_isolation = 'read committed';
ALTER ROLE plantstore_app SET plan_cache_mode = force_generic_plan;
ALTER ROLE plantstore_app SET enable_seqscan = off; -- a plan made on an empty table would scan a full one
ALTER ROLE plantstore_app SET jit = off;
ALTER ROLE plantstore_app SET client_min_messages = warning; -- a cut-short wait for a standby is one
ALTER ROLE plantstore_app SET lock_timeout = '1s';
ALTER ROLE plantstore_app SET statement_timeout = '15s';
ALTER ROLE plantstore_app SET idle_in_transaction_session_timeout = '15s';
