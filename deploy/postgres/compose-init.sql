-- Gives the roles of roles.sql the passwords that docker-compose.yml sets. The image runs it
-- with psql, once, when the data volume is new. An unset variable ends the start with an
-- error. Change a password later with \password.

\set ON_ERROR_STOP on
\getenv owner_password PLANTSTORE_OWNER_PASSWORD
\getenv app_password PLANTSTORE_APP_PASSWORD

ALTER ROLE plantstore_owner PASSWORD :'owner_password';
ALTER ROLE plantstore_app PASSWORD :'app_password';

-- migrate and doctor show how long the transactions of other roles have been open.
GRANT pg_read_all_stats TO plantstore_owner;
