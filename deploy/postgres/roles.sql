-- The two roles of the plant store service. Run it as a superuser (or a role
-- with CREATEROLE that owns the database) in the store's database, before the
-- first migration:
--
--     psql -d plantstore -f deploy/postgres/roles.sql
--
-- Running it again changes nothing. Neither role gets a password here: set one
-- with \password, or use peer, certificate or LDAP authentication.
--
--   plantstore_owner  applies the migrations and owns what they create.
--   plantstore_app    is what the service connects as. It can delete plants,
--                     read the ledger, look tokens up and note their last use;
--                     the migrations grant it exactly that and no more.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'plantstore_owner') THEN
        CREATE ROLE plantstore_owner LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'plantstore_app') THEN
        CREATE ROLE plantstore_app LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOINHERIT;
    END IF;
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO plantstore_owner, plantstore_app', current_database());
    -- A plants table that was there before the service stays its owner's: the
    -- migrations only need to put triggers on it and to pass rights on.
    IF EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('public.plants')
               AND relowner <> 'plantstore_owner'::regrole) THEN
        GRANT TRIGGER ON public.plants TO plantstore_owner;
        GRANT SELECT, INSERT, DELETE ON public.plants TO plantstore_owner WITH GRANT OPTION;
    END IF;
END
$$;

GRANT USAGE, CREATE ON SCHEMA public TO plantstore_owner;
GRANT USAGE ON SCHEMA public TO plantstore_app;
