-- Gives the roles of roles.sql the passwords that docker-compose.yml sets. The
-- image runs it with psql, once, when the data volume is new; a password is
-- changed later with \password. An unset variable ends the start with an error.

\set ON_ERROR_STOP on
\getenv owner_password PLANTSTORE_OWNER_PASSWORD
\getenv app_password PLANTSTORE_APP_PASSWORD

ALTER ROLE plantstore_owner PASSWORD :'owner_password';
ALTER ROLE plantstore_app PASSWORD :'app_password';

-- For doctor, which looks for transactions that have been open for long.
GRANT pg_read_all_stats TO plantstore_owner;
