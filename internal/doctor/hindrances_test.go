package doctor

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	roles "plantstore/deploy/postgres"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/internal/postgres"
)

// These can be there before the first migration, and come about later.
var anywhere = []provocation{
	{"child", `CREATE TABLE ferns (fronds int) INHERITS (plants)`, "plants", Problem, "public.ferns inherits from public.plants: .*", false, nil},
	{"parent", `CREATE TABLE stock (LIKE plants); ALTER TABLE plants INHERIT stock`, "plants", Problem, "public.plants is a child of public.stock: .*", false, nil},
	{"partition", `CREATE TABLE "all" (LIKE plants) PARTITION BY RANGE (id); ALTER TABLE "all" ATTACH PARTITION plants FOR VALUES FROM (MINVALUE) TO (MAXVALUE)`,
		"plants", Problem, `public.plants is a child of public."all": .*`, false, nil},
	{"unlogged", `ALTER TABLE plants SET UNLOGGED`, "plants", Problem, "public.plants is unlogged: .*", true, nil},
	{"narrow id", `ALTER TABLE plants ALTER COLUMN id TYPE int`, "plants", Problem, `column "id" of public.plants is of type integer, not bigint`, false, nil},
	{"no key", `ALTER TABLE plants DROP CONSTRAINT plants_pkey`, "plants", Problem, `the primary key of public.plants is not \(id\)`, true, nil},
	{"another key", `ALTER TABLE plants DROP CONSTRAINT plants_pkey, ADD COLUMN sku text DEFAULT gen_random_uuid(), ADD CONSTRAINT "the key" PRIMARY KEY (sku)`, "plants", Problem, `the primary key of public.plants is not \(id\)`, true, nil},
	{"row level security", `ALTER TABLE plants ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON plants USING (name = current_user)`, "plants", Problem,
		"row level security of public.plants applies to plantstore_app and plantstore_owner, and can hide plants", false, nil},
	{"rule that keeps", `CREATE RULE "Keep" AS ON DELETE TO plants DO INSTEAD NOTHING`, "plants", Problem, `rule "Keep" of public.plants keeps every plant from being deleted`, true, nil},
	{"rule that keeps some", `CREATE RULE keep AS ON DELETE TO plants WHERE old.id < 10 DO INSTEAD NOTHING`, "plants", Warning, `rule keep of public.plants may keep plants .*`, true, nil},
	{"rule that also does", "CREATE TABLE archive (id bigint);\nCREATE RULE archive AS ON DELETE TO plants DO ALSO INSERT INTO archive VALUES (old.id)", "plants", Warning,
		`rule archive of public.plants does something else along with each deletion`, true, nil},
	{"no replica identity", "CREATE PUBLICATION everything FOR ALL TABLES;\nALTER TABLE plants REPLICA IDENTITY NOTHING", "plants", Problem,
		"publication everything publishes deletions of public.plants, which has no replica identity: .*", false, nil},
	{"a key that is no replica identity", "CREATE PUBLICATION everything FOR ALL TABLES;\nALTER TABLE plants DROP CONSTRAINT plants_pkey, ADD PRIMARY KEY (id) DEFERRABLE", "plants", Problem,
		"publication everything publishes deletions of public.plants, which has no replica identity: .*", false, nil},
	{"a publication of other columns", "CREATE PUBLICATION \"Names\" FOR TABLE plants (name) WHERE (id > 5)", "plants", Problem,
		`publication "Names" publishes deletions of public.plants, and not all columns of its replica identity: PostgreSQL refuses them`, false, nil},
	{"a publication of some columns of all that are the identity", "CREATE PUBLICATION names FOR TABLE plants (id);\nALTER TABLE plants REPLICA IDENTITY FULL", "plants", Problem,
		"publication names publishes deletions of public.plants, and not all columns of its replica identity: .*", false, nil},
	{"a publication of some rows", "CREATE PUBLICATION ferns FOR TABLE plants WHERE (id > 5 AND name <> 'x')", "plants", Problem,
		"publication ferns publishes deletions of public.plants by a filter on columns that are not of its replica identity: PostgreSQL refuses them", false, nil},
	{"a publication of some columns of some rows", "CREATE PUBLICATION ferns FOR TABLE plants (id) WHERE (name <> 'x')", "plants", Problem,
		"publication ferns publishes deletions of public.plants by a filter .*", false, nil},
	{"trigger with our rights", audits("shop", "audit", "AFTER DELETE", `INSERT INTO public.ledger VALUES (old.id);`), "plants", Warning,
		`trigger "Audit" of public.plants runs shop.audit\(\), which belongs to pg_monitor, with the rights of plantstore_app when a plant is deleted`, true, nil},
	{"trigger that may fail", audits("shop", "audit", "AFTER DELETE", `INSERT INTO shop.log VALUES (old.id);`) + "\nCREATE TABLE shop.log (id bigint);", "plants", Warning,
		`trigger "Audit" of public.plants runs shop.audit\(\), which belongs to pg_monitor, .*; it names shop.log, where plantstore_app may do nothing: deletions may fail`, true, nil},
	{"trigger on insert", audits("public", "stamp", "AFTER INSERT", ``), "plants", Warning,
		`trigger Audit on table public.plants calls public.stamp\(\) for pg_monitor when a plant is restored: restores are refused until somebody accepts that`, true, nil},
	{"trigger on insert that runs as its owner", audits("public", "stamp", "AFTER INSERT", ``) + "\nALTER FUNCTION public.stamp() SECURITY DEFINER", "plants", Warning,
		`trigger Audit on table public.plants calls public.stamp\(\) for pg_monitor when a plant is restored: restores are refused until somebody accepts that`, true, nil},
	{"trigger on insert of a superuser", "CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;\nCREATE TRIGGER stamp BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION stamp()", "plants", Warning,
		`trigger stamp on table public.plants calls public.stamp\(\) for pg_monitor when a plant is restored: restores are refused until somebody accepts that`, true, nil},
	{"trigger on insert that looks names up where others may create", "CREATE SCHEMA shop;\nGRANT CREATE ON SCHEMA shop TO @somebody;\nALTER DATABASE @db SET search_path = shop, public;\n" + `CREATE FUNCTION shop.stamp() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN RETURN NEW; END $$;
		ALTER FUNCTION shop.stamp() OWNER TO plantstore_owner;
		CREATE TRIGGER stamp BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION shop.stamp()`, "plants", Warning,
		`trigger stamp on table public.plants calls shop.stamp\(\), which looks names up in schema shop, for somebody_\w+ when a plant is restored: restores are refused until somebody accepts that`, true, nil},
	{"check of a stranger's", "CREATE SCHEMA shop;\nCREATE FUNCTION shop.fine(bigint) RETURNS boolean LANGUAGE sql RETURN true;\nALTER FUNCTION shop.fine(bigint) OWNER TO pg_monitor;\nALTER TABLE plants ADD CONSTRAINT fine CHECK (shop.fine(id))", "plants", Warning,
		`constraint fine on table public.plants calls shop.fine\(bigint\) for pg_monitor when a plant is restored: restores are refused until somebody accepts that`, true, &hints{mend: "ALTER TABLE plants DROP CONSTRAINT fine;"}},
	{"a referring table that its owner can't reach", "CREATE SCHEMA sales;\nCREATE TABLE sales.orders (plant bigint PRIMARY KEY REFERENCES plants);\nALTER TABLE sales.orders OWNER TO pg_monitor", "plants", Problem,
		`PostgreSQL refuses to delete plants: foreign key orders_plant_fkey of sales.orders works as pg_monitor, who lacks USAGE ON SCHEMA sales`, true, nil},
	{"a referring table that its owner may not write", "CREATE TABLE orders (plant bigint PRIMARY KEY REFERENCES plants);\nALTER TABLE orders OWNER TO pg_monitor;\nREVOKE ALL ON orders FROM pg_monitor", "plants", Problem,
		`PostgreSQL refuses to delete plants: foreign key orders_plant_fkey of public.orders works as pg_monitor, who lacks SELECT ON public.orders, UPDATE ON public.orders`, true, nil},
	{"trigger that may keep", "CREATE FUNCTION soft() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN UPDATE plants SET name = 'gone'; RETURN NULL; END $$;\nCREATE TRIGGER soft BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION soft()",
		"plants", Warning, `trigger soft of public.plants may keep plants from being deleted, which clients are told as 40901: whether its function public.soft\(\) does can't be known`, true, nil},
	{"trigger that puts back", "CREATE FUNCTION back() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN Insert  INTO \"plants\" (id, name) VALUES (old.id, 'gone'); RETURN NULL; END $$;\nCREATE TRIGGER back AFTER DELETE ON plants FOR EACH ROW EXECUTE FUNCTION back()",
		"plants", Warning, `trigger back of public.plants may put plants back that were deleted, which clients are told as 204: its function public.back\(\) inserts into plants`, true, nil},
	{"a subscription", "CREATE SUBSCRIPTION \"Feed\" CONNECTION 'dbname=x' PUBLICATION p WITH (connect = false, slot_name = NONE);\nSET allow_system_table_mods = on;\nINSERT INTO pg_subscription_rel SELECT oid, 'plants'::regclass, 'r', NULL FROM pg_subscription WHERE subname = 'Feed'",
		"plants", Warning, `subscription "Feed" changes public.plants: what is deleted where it comes from leaves here without a record`, true, &hints{mend: `DROP SUBSCRIPTION "Feed";`}},
	{"replica in the database", `ALTER DATABASE @db SET session_replication_role = replica`, "plants", Problem, "session_replication_role is replica in this database: plants leave without a record", false, nil},
	{"replica for the service", `ALTER ROLE plantstore_app IN DATABASE @db SET session_replication_role = 'Replica'`, "plants", Problem,
		"session_replication_role is replica for role plantstore_app: plants leave without a record", false, nil},
	{"replica for another", `ALTER ROLE @somebody IN DATABASE @db SET session_replication_role = replica`, "plants", Warning,
		"session_replication_role is replica for role somebody_\\w+: plants leave without a record", true, nil},

	{"rights of the owner", `REVOKE INSERT ON plants FROM plantstore_owner`, "rights", Problem, `plantstore_owner lacks INSERT on public.plants, which only its owner pg_monitor can give`, true, nil},
	{"default privileges", "ALTER DEFAULT PRIVILEGES FOR ROLE plantstore_owner GRANT SELECT, INSERT ON TABLES TO PUBLIC;\nALTER DEFAULT PRIVILEGES FOR ROLE plantstore_owner IN SCHEMA public GRANT EXECUTE ON FUNCTIONS TO pg_monitor",
		"rights", Warning, "default privileges give (INSERT, SELECT to PUBLIC of what plantstore_owner makes|EXECUTE to pg_monitor of what plantstore_owner makes in schema public)", true, &hints{found: 2}},

	{"a function with other parameters", "CREATE FUNCTION plantstore_token(text) RETURNS text LANGUAGE sql AS 'SELECT $1'", "names", Problem,
		`function public.plantstore_token\(text\) has the name of one of ours, and is postgres's`, true, nil},
	{"a schema called like the service", "CREATE SCHEMA plantstore_app AUTHORIZATION pg_monitor", "names", Warning, "schema plantstore_app, which belongs to pg_monitor, has the name of a role of ours: .*", true, nil},
	{"objects of everybody", "GRANT CREATE ON SCHEMA public TO PUBLIC", "names", Warning, "everybody may make objects in schema public, .*", true, nil},
}

// These are about what a store has before the first migration.
var before = []provocation{
	{"no rights of the owner", `REVOKE ALL ON plants FROM plantstore_owner`, "rights", Problem,
		`plantstore_owner lacks TRIGGER, INSERT, SELECT WITH GRANT OPTION, DELETE WITH GRANT OPTION on public.plants, which only its owner pg_monitor can give`, true, nil},
	{"no trigger", `REVOKE TRIGGER ON plants FROM plantstore_owner`, "rights", Problem, `plantstore_owner lacks TRIGGER on public.plants, .*`, true, nil},
	{"nothing to pass on", `REVOKE GRANT OPTION FOR DELETE ON plants FROM plantstore_owner`, "rights", Problem, `plantstore_owner lacks DELETE WITH GRANT OPTION on public.plants, .*`, true, nil},
	{"no right to make tables", `REVOKE CREATE ON SCHEMA public FROM plantstore_owner`, "rights", Problem,
		`plantstore_owner may not make tables in schema public, which its owner pg_database_owner can allow`, true, nil},
	{"no right to use a language", `REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC`, "rights", Problem, `plantstore_owner may not use language plpgsql`, true, nil},
	{"no language", `DROP EXTENSION plpgsql CASCADE`, "rights", Problem, `there is no language plpgsql`, true, nil},
	{"an event trigger", eventTrigger("log_ddl", "ddl_command_end"), "rights", Warning, `event trigger log_ddl runs public.log_ddl\(\) with statements of the migration, and can refuse or change what they make`, true, nil},
	{"an event trigger of somebody's", eventTrigger("\"Own\"", "ddl_command_start WHEN TAG IN ('DROP VIEW', 'GRANT')") + "\nALTER FUNCTION \"Own\"() OWNER TO pg_monitor;\nALTER EVENT TRIGGER \"Own\" ENABLE ALWAYS", "rights", Warning,
		`event trigger "Own" runs public."Own"\(\) with .*; the function belongs to pg_monitor, and has the rights of plantstore_owner then`, true, nil},
	{"no column id", `ALTER TABLE plants RENAME COLUMN id TO plant_id`, "plants", Problem, `public.plants has no column "id"`, true,
		&hints{mend: `ALTER TABLE plants RENAME COLUMN plant_id TO id;`}},
	{"ids as text", `ALTER TABLE plants ALTER COLUMN id TYPE text`, "plants", Problem, `column "id" of public.plants is of type text, not bigint`, true, nil},
	{"ids that are no numbers", `ALTER TABLE plants ALTER COLUMN id TYPE bytea USING id::text::bytea`, "plants", Problem, `column "id" of public.plants is of type bytea, not bigint`, true,
		&hints{mend: `ALTER TABLE plants ALTER COLUMN id TYPE bigint USING convert_from(id, 'UTF8')::bigint;`}},
	{"ids that compute themselves", "ALTER TABLE plants RENAME COLUMN id TO n;\nALTER TABLE plants DROP CONSTRAINT plants_pkey, ADD COLUMN id bigint GENERATED ALWAYS AS (n) STORED PRIMARY KEY", "plants", Warning,
		`column "id" of public.plants computes itself: a plant that was deleted can't be restored`, true, nil},
	{"a view", "ALTER TABLE plants RENAME TO old;\nCREATE VIEW plants AS SELECT * FROM old", "plants", Problem, `public.plants is a view, not an ordinary table`, true,
		&hints{mend: "DROP VIEW plants;\nALTER TABLE old RENAME TO plants;"}},
	{"a partitioned table", "ALTER TABLE plants RENAME TO old;\nCREATE TABLE plants (LIKE old) PARTITION BY RANGE (id);\nALTER TABLE plants ADD PRIMARY KEY (id);\nCREATE TABLE part PARTITION OF plants DEFAULT",
		"plants", Problem, `public.plants is a partitioned table, not an ordinary table`, true, &hints{mend: "DROP TABLE plants;\nALTER TABLE old RENAME TO plants;"}},
	{"plants on the search path", "CREATE SCHEMA \"My Shop\";\nALTER TABLE plants SET SCHEMA \"My Shop\";\nALTER DATABASE @db SET search_path = \"My Shop\", public", "plants", Problem,
		`public.plants does not exist and would be made, but plants means "My Shop".plants here \(search_path is "My Shop", public\)`, true, &hints{mend: "ALTER TABLE \"My Shop\".plants SET SCHEMA public;"}},
	{"plants on the role's search path", "CREATE SCHEMA plantstore_app AUTHORIZATION plantstore_app;\nALTER TABLE plants SET SCHEMA plantstore_app;\nALTER ROLE plantstore_app IN DATABASE @db SET search_path = \"$user\", public", "plants", Problem,
		`public.plants does not exist and would be made, but plants means plantstore_app.plants here .*`, true, nil},
	{"plants on every search path", "CREATE SCHEMA plantstore_owner AUTHORIZATION plantstore_owner;\nALTER TABLE plants SET SCHEMA plantstore_owner", "plants", Problem,
		`public.plants does not exist and would be made, but plants means plantstore_owner.plants here \(search_path is "\$user", public\)`, true, nil},
	{"plants elsewhere", "CREATE SCHEMA shop;\nALTER TABLE plants SET SCHEMA shop", "plants", Warning, `public.plants does not exist and would be made, and there is shop.plants`, true, nil},
	{"plants with a capital", "ALTER TABLE plants RENAME TO \"Plants\"", "plants", Warning, `public.plants does not exist and would be made, and there is public."Plants"`, true, nil},
	{"a type called plants", "DROP TABLE plants;\nCREATE TYPE plants AS ENUM ()", "names", Problem, `there is a type public.plants already, and with it no table of that name can be made`, true, &hints{mend: "DROP TYPE plants;"}},
	{"a table of ours", "CREATE TABLE api_tokens (n int)", "names", Problem, `there is a public.api_tokens already, which 00004_api_tokens.sql would make`, true, &hints{mend: "DROP TABLE api_tokens;"}},
	{"a type and a view of ours", "CREATE TYPE plant_shapes AS ENUM ();\nCREATE VIEW plant_deletions_once AS SELECT 1", "names", Problem,
		`there is a public.plant_(shapes|deletions_once) already, which 00002_ledger.sql would make`, true, &hints{mend: "DROP TYPE plant_shapes;\nDROP VIEW plant_deletions_once;"}},
	{"functions of ours", "CREATE FUNCTION plantstore_token(bytea) RETURNS text LANGUAGE sql AS 'SELECT ''x''';\nCREATE FUNCTION plantstore_record_deletion() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'", "names", Problem,
		`function public.(plantstore_token\(bytea\)|plantstore_record_deletion\(\)) has the name of one of ours, and is postgres's`, true, nil},
	{"triggers of ours", "CREATE TRIGGER plantstore_record_deletion AFTER DELETE ON plants FOR EACH ROW EXECUTE FUNCTION tsvector_update_trigger();\nCREATE TRIGGER plantstore_refuse_truncate BEFORE TRUNCATE ON plants FOR EACH STATEMENT EXECUTE FUNCTION suppress_redundant_updates_trigger()", "names", Problem,
		`trigger plantstore_(record_deletion|refuse_truncate) of public.plants has the name of one that 00003_record_deletions.sql would make`, true, nil},
}

// These are about what the migrations make.
var after = []provocation{
	{"moved", "CREATE SCHEMA \"Shop\";\nALTER TABLE plants SET SCHEMA \"Shop\"", "plants", Problem, `public.plants is gone: nothing can be deleted \("Shop".plants has its triggers\)`, false, nil},
	{"renamed", "ALTER TABLE plants RENAME TO old", "plants", Problem, `public.plants is gone: nothing can be deleted \(public.old has its triggers\)`, false, nil},
	{"moved and renamed", "CREATE SCHEMA shop;\nALTER TABLE plants SET SCHEMA shop;\nALTER TABLE shop.plants RENAME TO old", "plants", Problem,
		`public.plants is gone: nothing can be deleted \(shop.old has its triggers\)`, false, nil},
	{"plants elsewhere", "CREATE SCHEMA shop;\nCREATE TABLE shop.plants (n int);\nALTER DATABASE @db SET search_path = shop, public", "plants", Warning,
		`the service deletes from public.plants, but where no schema is named plants means shop.plants \(search_path is shop, public\)`, true, nil},

	{"a reader", "GRANT SELECT ON plantstore_budgets TO pg_monitor;\nGRANT SELECT (principal) ON api_tokens TO pg_monitor", "rights", Warning,
		"pg_monitor has SELECT ON public.(plantstore_budgets|api_tokens), which is for the service alone", true, &hints{found: 2}},
	{"a writer", "GRANT INSERT ON plant_deletions TO pg_monitor;\nGRANT UPDATE (scopes) ON api_tokens TO pg_monitor;\nGRANT USAGE ON SEQUENCE plant_deletions_id_seq TO pg_monitor;\nGRANT EXECUTE ON FUNCTION plantstore_token(bytea) TO pg_monitor", "rights", Problem,
		`pg_monitor has (INSERT|UPDATE|USAGE|EXECUTE) ON (SEQUENCE |FUNCTION )?public.(plant_deletions|api_tokens|plant_deletions_id_seq|plantstore_token\(bytea\)), which .*`, true, &hints{found: 4}},
	{"another right of the service", "GRANT UPDATE ON plants TO plantstore_owner WITH GRANT OPTION;\nSET ROLE plantstore_owner;\nGRANT UPDATE ON plants TO plantstore_app;\nRESET ROLE", "grants", Problem,
		"plantstore_app has UPDATE ON public.plants, which the service does not need", true, nil},

	{"an owner without the tables", "REVOKE ALL ON plant_deletions, plant_shapes, api_tokens FROM plantstore_owner", "rights", Problem,
		"plantstore_owner, who owns the ledger, lacks DELETE, INSERT, SELECT, UPDATE on public.(plant_deletions|plant_shapes|api_tokens)", false, nil},
	{"an owner without the schema", "REVOKE ALL ON SCHEMA public FROM PUBLIC, plantstore_owner", "rights", Problem, "plantstore_owner, who owns the ledger, lacks USAGE on schema public", false, nil},
	{"a table of a superuser's", "ALTER TABLE plant_shapes OWNER TO CURRENT_USER", "rights", Problem, "plantstore_owner, who owns the ledger, lacks DELETE, INSERT, SELECT, UPDATE on public.plant_shapes", false, nil},
	{"an owner without the functions", "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA public FROM plantstore_owner", "rights", Problem, `plantstore_owner, who owns the ledger, lacks EXECUTE on public.plantstore_\w+\(.*\)`, false, nil},

	{"row level security of the ledger", "ALTER TABLE plant_deletions ENABLE ROW LEVEL SECURITY", "record", Problem, "row level security is on for public.plant_deletions", false, nil},
	{"row level security of tokens", "ALTER TABLE api_tokens ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY", "record", Problem, "row level security is on for public.api_tokens", false, nil},
	{"row level security of what is applied", "ALTER TABLE goose_db_version ENABLE ROW LEVEL SECURITY", "record", Problem, "row level security is on for public.goose_db_version", false, nil},
	{"rule of the ledger", "CREATE RULE nothing AS ON INSERT TO plant_deletions DO INSTEAD NOTHING", "record", Problem, "rule nothing of public.plant_deletions changes what is recorded", false, nil},
	{"trigger before the ledger", "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';\nCREATE TRIGGER skip BEFORE INSERT ON plant_deletions FOR EACH ROW EXECUTE FUNCTION skip()", "record", Problem,
		"trigger skip of public.plant_deletions can change what is recorded", false, nil},
	{"trigger after the ledger", "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';\nCREATE TRIGGER tell AFTER INSERT ON plant_deletions FOR EACH ROW EXECUTE FUNCTION tell()", "record", Warning,
		"trigger tell of public.plant_deletions runs with each change of it, and can refuse it", true, nil},
	{"triggers of others after the ledger and the history", strangersTrigger("AFTER DELETE ON plant_deletions") + ";\nCREATE TRIGGER spy BEFORE INSERT ON goose_db_version EXECUTE FUNCTION shop.spy();\nCREATE TRIGGER spy BEFORE INSERT ON api_tokens EXECUTE FUNCTION shop.spy();\nALTER TABLE goose_db_version ENABLE REPLICA TRIGGER spy",
		"record", Problem, `trigger "Spy" of public.plant_deletions runs shop.spy\(\) of pg_monitor with the rights of whoever writes there|trigger spy of public.(goose_db_version|api_tokens) runs .*`, false, &hints{found: 3}},
	{"a trigger with a condition", "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';\nCREATE TRIGGER tell AFTER UPDATE ON api_principals FOR EACH ROW WHEN (query_to_xml('SELECT 1', true, true, '') IS NOT NULL) EXECUTE FUNCTION tell()", "record", Problem,
		`trigger tell of public.api_principals runs public.tell\(\) of \w+ with the rights of whoever writes there`, true, nil},
	{"a trigger on the history", "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';\nCREATE TRIGGER tell BEFORE INSERT ON plantstore_migrations EXECUTE FUNCTION tell()", "record", Warning,
		`trigger tell of public.plantstore_migrations runs with each change of it, and can refuse it`, true, nil},
	{"tables of others that change with ours", "CREATE SCHEMA rep;\nCREATE TABLE rep.r (id bigint CONSTRAINT \"To us\" REFERENCES plant_deletions ON DELETE CASCADE);\nALTER TABLE rep.r OWNER TO pg_monitor;\n" +
		"CREATE TABLE rep.middle (name text PRIMARY KEY REFERENCES api_principals ON UPDATE CASCADE);\nCREATE TABLE rep.last (name text CONSTRAINT further REFERENCES rep.middle ON UPDATE SET NULL);\nGRANT TRIGGER ON rep.last TO pg_monitor;\n" +
		"CREATE TABLE rep.still (id bigint REFERENCES plant_deletions);\nALTER TABLE rep.still OWNER TO pg_monitor", "rights", Problem,
		`foreign key "To us" of rep.r, which belongs to pg_monitor, changes it with public.plant_deletions: triggers there .*|foreign key further of rep.last, which belongs to \w+, changes it with rep.middle: .*`, true, &hints{found: 2}},
	{"sequence of the ledger", "DELETE FROM plants WHERE id < 4;\nSELECT setval('plant_deletions_id_seq', 1)", "record", Problem, "the next number of the ledger is 2, and it has entries up to 3: nothing can be recorded", false, nil},
	{"sequence of the ledger, unused", "DELETE FROM plants WHERE id < 4;\nSELECT setval('plant_deletions_id_seq', 3, false)", "record", Problem,
		"the next number of the ledger is 3, and it has entries up to 3: nothing can be recorded", false, nil},
	{"sequence of the shapes", "DELETE FROM plants WHERE id < 4;\nSELECT setval('plant_shapes_id_seq', 1, false)", "record", Problem,
		"the next number of public.plant_shapes is 1, and it has some up to 1: once the columns .*", true, nil},
	{"sequences of a copy", "DELETE FROM plants WHERE id < 4;\nUPDATE plant_shapes SET relation = 1;\nSELECT setval('plant_deletions_id_seq', 1), setval('plant_shapes_id_seq', 1, false)", "record", Problem,
		"the next number of (the ledger is 2, and it has entries up to 3|public.plant_shapes is 1, and it has some up to 1): nothing can be recorded", false, nil},
	{"trigger on replicas, too", "ALTER TABLE plants ENABLE ALWAYS TRIGGER plantstore_record_deletion", "record", Warning, "trigger plantstore_record_deletion fires on logical replicas, too, .*", true, nil},
	{"a superuser's ledger", "REASSIGN OWNED BY plantstore_owner TO CURRENT_USER", "rights", Warning,
		`the ledger belongs to superuser \w+: for whoever deletes a plant, the trigger runs with all rights`, true, nil},
	{"a function of somebody's", "ALTER FUNCTION plantstore_record_deletion() OWNER TO pg_monitor", "record", Problem,
		"function plantstore_record_deletion belongs to pg_monitor, not to plantstore_owner as the ledger does", false, nil},
	{"another text of a function", "CREATE OR REPLACE FUNCTION plantstore_prove(plants bigint[], principals text[], keys text[]) RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp AS 'SELECT NULL'", "record", Problem,
		"function plantstore_prove is not what the migrations made it", false, nil},
	{"a function without its settings", "ALTER FUNCTION plantstore_record_deletion() RESET datestyle", "record", Problem, "trigger plantstore_record_deletion or its function is not what the migrations made it", false, nil},
	{"a stable function", "ALTER FUNCTION plantstore_shape(oid) STABLE", "record", Problem, "function plantstore_shape is not what the migrations made it", false, nil},
	{"a strict function", "ALTER FUNCTION plantstore_prove(bigint[], text[], text[]) STRICT", "record", Problem, "function plantstore_prove is not what the migrations made it", false, nil},
	{"a volatile function", "ALTER FUNCTION plantstore_planned_columns(regclass) VOLATILE", "record", Problem, "function plantstore_planned_columns is not what the migrations made it", false, nil},
	{"a trigger renamed", "ALTER TRIGGER plantstore_record_deletion ON plants RENAME TO zzz", "record", Problem, "trigger plantstore_record_deletion is called zzz", false, nil},
	{"a trigger renamed and off", "ALTER TRIGGER plantstore_record_deletion ON plants RENAME TO zzz;\nALTER TABLE plants DISABLE TRIGGER zzz", "record", Problem, "trigger plantstore_record_deletion is called zzz", false, nil},
	{"a further trigger", "CREATE TRIGGER \"Again\" AFTER DELETE ON plants REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION plantstore_record_deletion()", "record", Problem,
		`trigger "Again" runs plantstore_record_deletion\(\), which has a trigger of its own: deletions fail, or are recorded twice`, false, nil},
	{"a trigger renamed and one more", "ALTER TRIGGER plantstore_record_deletion ON plants RENAME TO a;\nCREATE TRIGGER b AFTER DELETE ON plants REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION plantstore_record_deletion()", "record", Problem,
		`trigger (plantstore_record_deletion is called a|b runs plantstore_record_deletion\(\), .*)`, false, nil},

	{"an unlogged ledger", "ALTER TABLE plant_deletions SET UNLOGGED", "record", Problem, "public.plant_deletions is unlogged: a crash of the server empties it", false, nil},
	{"unlogged shapes", "ALTER TABLE plant_shapes SET UNLOGGED", "record", Problem, "public.plant_shapes is unlogged: a crash of the server empties it", false, nil},
	{"unlogged tokens and budgets", "ALTER TABLE plantstore_budgets SET UNLOGGED;\nALTER TABLE api_tokens SET UNLOGGED;\nALTER TABLE api_principals SET UNLOGGED", "record", Problem,
		`public.(api_principals|api_tokens|plantstore_budgets) is unlogged: .*`, true, nil},
	{"no budgets", "DROP TABLE plantstore_budgets", "schema", Problem, "public.plantstore_budgets is missing", false, nil},
	{"no shapes", "DROP TABLE plant_shapes", "schema", Problem, "public.plant_shapes is missing", false, nil},
	{"no ledger", "DROP TABLE plant_deletions", "schema", Problem, "public.plant_deletions is missing", false, nil},
	{"no tokens", "DROP TABLE api_tokens, api_principals", "schema", Problem, "public.api_(tokens|principals) is missing", false, nil},
	{"entries without a shape", "DELETE FROM plants WHERE id < 4;\nCREATE TABLE copy AS TABLE plant_shapes;\nDELETE FROM plant_shapes", "record", Problem,
		"entry 3 of the ledger has shape 1, which public.plant_shapes lacks: what was deleted can't be restored", true,
		&hints{mend: "INSERT INTO plant_shapes OVERRIDING SYSTEM VALUE SELECT * FROM copy;\nDROP TABLE copy;"}},

	{"entries that may be there twice", "ALTER TABLE plant_deletions DROP CONSTRAINT plant_deletions_once", "record", Problem, "constraint plant_deletions_once of public.plant_deletions is missing", false, nil},
	{"no constraints", "DELETE FROM plants WHERE id < 4;\nALTER TABLE plant_shapes DROP CONSTRAINT plant_shapes_pkey;\nALTER TABLE plant_deletions DROP CONSTRAINT plant_deletions_pkey, DROP CONSTRAINT plant_deletions_refused, DROP CONSTRAINT plant_deletions_restored;\n" +
		"ALTER TABLE api_principals DROP CONSTRAINT api_principals_pkey CASCADE, DROP CONSTRAINT api_principals_name_check;\nALTER TABLE api_tokens DROP CONSTRAINT api_tokens_pkey, DROP CONSTRAINT api_tokens_digest_key, DROP CONSTRAINT api_tokens_digest_check;\n" +
		"ALTER TABLE plantstore_budgets DROP CONSTRAINT plantstore_budgets_pkey, DROP CONSTRAINT plantstore_budgets_most_check, DROP CONSTRAINT plantstore_budgets_period_check, DROP CONSTRAINT plantstore_budgets_whole",
		"record", Problem, `constraint \w+ of public.(plant|api|plantstore)_\w+ is missing`, true, nil},
	{"a constraint renamed", "ALTER TABLE plant_deletions RENAME CONSTRAINT plant_deletions_once TO \"Once\"", "record", Problem, `constraint plant_deletions_once of public.plant_deletions is called "Once"`, false, nil},
	{"another constraint of the name", "ALTER TABLE plant_deletions DROP CONSTRAINT plant_deletions_refused, ADD CONSTRAINT plant_deletions_refused CHECK (plant_id < 5)", "record", Problem,
		`constraint plant_deletions_refused of public.plant_deletions is CHECK \(\(plant_id < 5\)\), not CHECK .*`, true, nil},
	{"constraints of somebody's", "ALTER TABLE plant_deletions ADD CONSTRAINT \"Few\" CHECK (plant_id < 5) NOT VALID, ADD CONSTRAINT there FOREIGN KEY (plant_id) REFERENCES plants;\nALTER TABLE plant_shapes ADD CONSTRAINT one UNIQUE (relation)", "record", Warning,
		`constraint ("Few"|there|one) of public.plant_(deletions|shapes) is not ours, and can refuse what is recorded there`, true, nil},
	{"a column of somebody's", "ALTER TABLE plant_deletions ADD \"Why\" text NOT NULL", "record", Problem, `column "Why" of public.plant_deletions is not ours, and lacks a default: nothing can be recorded there`, true, nil},
	{"a column gone", "ALTER TABLE plantstore_budgets DROP began", "record", Problem, `column began of public.plantstore_budgets is missing`, true, nil},
	{"a column renamed", "ALTER TABLE plant_deletions RENAME plant_id TO \"Plant\"", "record", Problem,
		`(column plant_id of public.plant_deletions is called "Plant"|constraint plant_deletions_once of public.plant_deletions is UNIQUE \("Plant", .*)`, true, &hints{mend: `ALTER TABLE plant_deletions RENAME "Plant" TO plant_id;`}},
	{"other columns", "ALTER TABLE plant_deletions ALTER deleted_at DROP DEFAULT, ALTER session_role SET DEFAULT 'nobody', ALTER deleted_by DROP NOT NULL, ALTER restored_by SET NOT NULL;\nALTER TABLE plantstore_budgets ALTER used TYPE int;\nALTER TABLE plant_shapes ALTER id DROP IDENTITY", "record", Problem,
		`column (deleted_at of public.plant_deletions is timestamp with time zone NOT NULL, not timestamp with time zone NOT NULL DEFAULT clock_timestamp\(\)|(session_role|deleted_by|restored_by|used|id) of public.plant\w+ is .*, not .*)`, true, nil},
	{"a table swapped", "ALTER TABLE plants RENAME TO old;\nALTER TABLE old RENAME CONSTRAINT plants_pkey TO old_pkey;\nCREATE TABLE plants (LIKE old INCLUDING ALL);\nALTER TABLE plants OWNER TO pg_monitor;\nGRANT SELECT (id, xmax), DELETE ON plants TO plantstore_app;\nGRANT ALL ON plants TO plantstore_owner WITH GRANT OPTION;\nDROP TABLE old",
		"record", Problem, "trigger plantstore_(record_deletion|refuse_truncate) is missing: plants leave without a record", false, nil},
}

// audits returns SQL for a trigger whose function is somebody else's.
func audits(schema, function, when, statement string) string {
	return strings.NewReplacer("@schema", schema, "@function", function, "@when", when, "@statement", statement).Replace(`CREATE SCHEMA IF NOT EXISTS @schema;
		CREATE TABLE public.ledger (id bigint);
		GRANT INSERT ON public.ledger TO PUBLIC;
		CREATE FUNCTION @schema.@function() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN @statement RETURN NULL; END $$;
		ALTER FUNCTION @schema.@function() OWNER TO pg_monitor;
		CREATE TRIGGER "Audit" @when ON plants FOR EACH ROW EXECUTE FUNCTION @schema.@function();`)
}

// strangersTrigger returns SQL for a trigger of somebody who has had the right to make it.
func strangersTrigger(on string) string {
	return `CREATE SCHEMA shop;
		CREATE FUNCTION shop.spy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'caught'; END $$;
		ALTER FUNCTION shop.spy() OWNER TO pg_monitor;
		CREATE TRIGGER "Spy" ` + on + ` EXECUTE FUNCTION shop.spy()`
}

// Where others' triggers would run with what is written down of migrations, nothing is
// migrated, up or down, and the plan and the doctor tell what helps.
func TestTriggersOfOthersOnTheHistory(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		strangersTrigger("AFTER DELETE ON goose_db_version"),
		strangersTrigger("BEFORE TRUNCATE OR DELETE ON plantstore_migrations"),
		`CREATE TABLE log (id int REFERENCES goose_db_version ON DELETE CASCADE); ALTER TABLE log OWNER TO pg_monitor`,
	} {
		t.Run(sql, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			script(t, database.Super, sql+`;`)
			troubles, _ := planned(t, database.Owner)
			if len(troubles) != 1 {
				t.Fatalf("plan: %+v, want one trouble", troubles)
			}
			for _, url := range []string{database.Owner, database.Super} {
				_, err := service().Down(t.Context(), url, migrate.Options{})
				if hindered, ok := errors.AsType[*migrate.HinderedError](err); !ok || !cmp.Equal(hindered.Troubles, troubles) {
					t.Errorf("down: %v, want it refused for what the plan tells", err)
				}
			}
			script(t, database.Super, troubles[0].Remedy)
			if troubles, _ := planned(t, database.Owner); len(troubles) > 0 {
				t.Errorf("plan after the remedy: %+v, want nothing", troubles)
			}
			if _, err := service().Down(t.Context(), database.Owner, migrate.Options{}); err != nil {
				t.Errorf("down after the remedy: %v, want none", err)
			}
		})
	}
}

// eventTrigger returns SQL for an event trigger that does nothing.
func eventTrigger(name, on string) string {
	return strings.NewReplacer("@name", name, "@on", on).Replace(`CREATE FUNCTION @name() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN END $$;
		CREATE EVENT TRIGGER @name ON @on EXECUTE FUNCTION @name();`)
}

// An adopted database has a store's own table, which the migrating role has its rights on;
// in a migrated one, that is done, too.
var (
	adopted = pgtest.Template{Make: func(ctx context.Context, database pgtest.Database) error {
		return postgres.Script(ctx, database.Super, `CREATE TABLE plants (id bigint PRIMARY KEY, name text);
			INSERT INTO plants SELECT n, 'fern' FROM generate_series(1, 100) n;
			ALTER TABLE plants OWNER TO pg_monitor; `+roles.SQL)
	}}
	migrated = pgtest.Template{Make: func(ctx context.Context, database pgtest.Database) error {
		if err := adopted.Make(ctx, database); err != nil {
			return err
		}
		_, err := service().Up(ctx, database.Owner, migrate.Options{})
		return err
	}}
)

func service() migrate.Set {
	set := migrate.Service()
	set.Hindrances = Hindrances
	return set
}

// unready returns why the service is not ready, as a new process finds it.
func unready(t *testing.T, url string) string {
	t.Helper()
	db, err := postgres.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := NewReadiness().Check(t.Context(), db); err != nil {
		return err.Error()
	}
	return ""
}

// Names are compared as text, which a setting makes longer.
func TestReadyWithQuotedNames(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	script(t, database.Super, `ALTER ROLE plantstore_app IN DATABASE `+database.Name+` SET quote_all_identifiers = on;`)
	if why := unready(t, database.App); why != "" {
		t.Errorf("not ready: %s; want ready", why)
	}
}

// Where a backslash counts in every string, those in our SQL still mean what they say.
func TestUnreadyWhereBackslashesCount(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	script(t, database.Super, `CREATE PUBLICATION ferns FOR TABLE plants WHERE (name <> 'x');
		ALTER DATABASE `+database.Name+` SET standard_conforming_strings = off;`)
	const want = "publication ferns publishes deletions of public.plants by a filter"
	if why := unready(t, database.App); !strings.HasPrefix(why, want) {
		t.Errorf("not ready: %q; want %s …", why, want)
	}
}

// Each hindrance is told before anything is applied, and refused if it is a problem;
// the remedy removes it. Later the doctor tells it, and readiness if nothing can be
// deleted or recorded.
func TestHindrances(t *testing.T) {
	t.Parallel()
	for _, tt := range slices.Concat(anywhere, before) {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := adopted.New(t)
			matches := regexp.MustCompile(`(?s)^` + tt.want + `$`).MatchString
			mend := func(remedies []string) {
				t.Helper()
				if tt.hints != nil && tt.hints.mend != "" {
					remedies = []string{tt.hints.mend}
				}
				for _, remedy := range remedies {
					script(t, database.Super, remedy)
				}
			}

			script(t, database.Super, tt.script(t, database.Super, database.Name))
			troubles, cautions := planned(t, database.Owner)
			told, untold := troubles, cautions
			if tt.grade == Warning {
				told, untold = cautions, troubles
			}
			if len(told) == 0 || len(untold) > 0 || slices.ContainsFunc(told, func(t migrate.Trouble) bool { return !matches(t.Message) }) {
				t.Errorf("plan: trouble %+v, cautions %+v; want grade %s: %s", troubles, cautions, tt.grade, tt.want)
			}
			if tt.hints != nil && tt.hints.found > 0 && len(told) != tt.hints.found {
				t.Errorf("plan tells of %d, want %d", len(told), tt.hints.found)
			}
			if tt.grade == Problem {
				_, err := service().Up(t.Context(), database.Owner, migrate.Options{})
				if hindered, ok := errors.AsType[*migrate.HinderedError](err); !ok || !cmp.Equal(hindered.Troubles, troubles) {
					t.Errorf("up: %v, want it refused for what the plan tells", err)
				}
				states, _, err := service().Status(t.Context(), database.Owner)
				if err != nil || slices.ContainsFunc(states, func(s migrate.State) bool { return !s.AppliedAt.IsZero() }) {
					t.Errorf("status after up was refused: %v, %v; want nothing applied", states, err)
				}
			}
			var remedies []string
			for _, trouble := range told {
				remedies = append(remedies, trouble.Remedy)
			}
			mend(remedies)
			if troubles, cautions := planned(t, database.Owner); len(troubles)+len(cautions) > 0 {
				t.Errorf("plan after the remedy: %+v, %+v; want nothing", troubles, cautions)
			}
			if _, err := service().Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Foreign keys work with the rights of tables' owners. What is told of them is what PostgreSQL
// refuses, and the remedy is one.
func TestRightsThatForeignKeysNeed(t *testing.T) {
	t.Parallel()
	const orders = `CREATE SCHEMA sales; CREATE TABLE sales.orders (plant bigint PRIMARY KEY REFERENCES plants`
	const notes = `; CREATE TABLE sales.notes (plant bigint REFERENCES sales.orders);`
	const others = ` ALTER TABLE sales.orders OWNER TO pg_read_all_stats; GRANT USAGE ON SCHEMA sales TO pg_read_all_stats;`
	const closed = ` REVOKE ALL ON SCHEMA public FROM PUBLIC;`
	const always, some = "PostgreSQL refuses to delete plants: foreign key orders_plant_fkey of sales.orders works as ", "PostgreSQL refuses to delete some plants: foreign key notes_plant_fkey of sales.notes works as "
	for _, tt := range []struct{ name, sql, want string }{
		{"restrict", orders + ` ON DELETE RESTRICT);` + others + `REVOKE UPDATE ON sales.orders FROM pg_read_all_stats;`, always + "pg_read_all_stats, who lacks UPDATE ON sales.orders"},
		{"restrict, and plants that their owner can't reach", orders + ` ON DELETE RESTRICT);` + others + closed, ""},
		{"no action, and plants that their owner can't reach", orders + `);` + others + closed, always + "pg_monitor, who lacks USAGE ON SCHEMA public"},
		{"no action, and plants that their owner may not lock", orders + `);` + others + `REVOKE UPDATE ON plants FROM pg_monitor;`, always + "pg_monitor, who lacks UPDATE ON public.plants"},
		{"cascade", orders + ` ON DELETE CASCADE);` + others + `REVOKE UPDATE, DELETE ON sales.orders FROM pg_read_all_stats;`, always + "pg_read_all_stats, who lacks DELETE ON sales.orders"},
		{"set null", `CREATE SCHEMA sales; CREATE TABLE sales.orders (plant bigint REFERENCES plants ON DELETE SET NULL);` + others + `REVOKE ALL ON sales.orders FROM pg_read_all_stats; GRANT SELECT (plant) ON sales.orders TO pg_read_all_stats;`,
			always + "pg_read_all_stats, who lacks UPDATE ON sales.orders"},
		{"rights on columns only", orders + ` ON DELETE RESTRICT);` + others + `REVOKE ALL ON sales.orders FROM pg_read_all_stats; GRANT SELECT (plant), UPDATE (plant) ON sales.orders TO pg_read_all_stats;`, ""},
		{"further down", orders + ` ON DELETE CASCADE)` + notes + `ALTER TABLE sales.notes OWNER TO pg_read_all_stats;`, some + "pg_read_all_stats, who lacks USAGE ON SCHEMA sales"},
		{"further down than a cascade", orders + ` ON DELETE RESTRICT)` + notes + `ALTER TABLE sales.notes OWNER TO pg_read_all_stats; ALTER TABLE sales.orders OWNER TO postgres;`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := adopted.New(t)
			if err := postgres.Script(t.Context(), database.Super, tt.sql); err != nil {
				t.Fatal(err)
			}
			refused := func() bool {
				t.Helper()
				begin := `BEGIN; `
				if strings.HasPrefix(tt.want, some) {
					begin += `INSERT INTO sales.orders VALUES (7); `
				}
				err := postgres.Script(t.Context(), database.Super, begin+`DELETE FROM plants WHERE id = 7; ROLLBACK`)
				if pg, ok := errors.AsType[*pgconn.PgError](err); err != nil && (!ok || pg.Code != "42501") {
					t.Fatal(err)
				}
				return err != nil
			}
			tell := func() (found []migrate.Trouble) {
				t.Helper()
				troubles, cautions := planned(t, database.Owner)
				return slices.DeleteFunc(append(troubles, cautions...), func(trouble migrate.Trouble) bool { return !strings.Contains(trouble.Message, "foreign key") })
			}
			found := tell()
			if want := tt.want != ""; refused() != want || len(found) > 0 != want || want && found[0].Message != tt.want {
				t.Fatalf("PostgreSQL refuses it: %v, the plan tells %+v; want it refused if that tells %q", refused(), found, tt.want)
			}
			for _, trouble := range found {
				script(t, database.Super, trouble.Remedy)
			}
			if found := tell(); refused() || len(found) > 0 {
				t.Errorf("after the remedy PostgreSQL refuses it: %v, the plan tells %+v", refused(), found)
			}
		})
	}
}

// Up to PostgreSQL 17, triggers after a cascade have the rights of whoever deletes.
func TestTriggersFurtherDown(t *testing.T) {
	t.Parallel()
	database := adopted.New(t)
	script(t, database.Super, `CREATE SCHEMA sales;
		CREATE TABLE sales.orders (plant bigint REFERENCES plants ON DELETE CASCADE);
		CREATE TABLE sales.notes (plant bigint REFERENCES plants ON DELETE SET NULL);
		CREATE TABLE sales.parts (plant bigint REFERENCES plants ON DELETE CASCADE) PARTITION BY RANGE (plant);
		CREATE TABLE sales.part PARTITION OF sales.parts DEFAULT;
		CREATE TABLE sales.history (plant bigint);
		CREATE FUNCTION sales.audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO sales.history VALUES (OLD.plant); RETURN OLD; END $$;
		CREATE TRIGGER deleted AFTER DELETE ON sales.orders FOR EACH ROW EXECUTE FUNCTION sales.audit();
		CREATE TRIGGER updated AFTER UPDATE ON sales.orders FOR EACH ROW EXECUTE FUNCTION sales.audit();
		CREATE TRIGGER before BEFORE DELETE ON sales.orders FOR EACH ROW EXECUTE FUNCTION sales.audit();
		ALTER TABLE sales.notes ADD text text;
		CREATE TRIGGER emptied AFTER UPDATE OF plant ON sales.notes FOR EACH ROW EXECUTE FUNCTION sales.audit();
		CREATE TRIGGER rewritten AFTER UPDATE OF text ON sales.notes FOR EACH ROW EXECUTE FUNCTION sales.audit();
		CREATE TRIGGER whole AFTER DELETE ON sales.parts FOR EACH ROW EXECUTE FUNCTION sales.audit();
		CREATE TRIGGER part AFTER DELETE ON sales.part FOR EACH ROW EXECUTE FUNCTION sales.audit();`)
	const names = " runs sales.audit(); it names sales.history, where plantstore_app may do nothing: deletions may fail"
	want := []string{"trigger deleted of sales.orders" + names, "trigger emptied of sales.notes" + names, "trigger part of sales.part" + names, "trigger whole of sales.parts" + names}
	var version int
	if err := pgtest.Pool(t, database.Super).QueryRow(t.Context(), `SELECT current_setting('server_version_num')::int / 10000`).Scan(&version); err != nil {
		t.Fatal(err)
	}
	if version >= 18 {
		want = nil
	}
	_, cautions := planned(t, database.Owner)
	var got []string
	for _, c := range cautions {
		got = append(got, c.Message)
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("cautions (-want +got):\n%s", diff)
	}
}

// The service's role must not own what records its deletions. Who migrates with its URL is
// told so, and not how to give it the rights for that.
func TestTheServiceDoesNotMigrate(t *testing.T) {
	t.Parallel()
	database := adopted.New(t)
	want := []migrate.Trouble{{Kind: migrate.Hindrance, Message: "plantstore_app is the service's role: it must not own the record of what it deletes",
		Remedy: "Migrate as plantstore_owner: see PLANTSTORE_MIGRATE_DATABASE_URL."}}
	if troubles, _ := planned(t, database.App); !cmp.Equal(want, troubles) {
		t.Errorf("plan: %+v, want %+v", troubles, want)
	}
	_, err := service().Up(t.Context(), database.App, migrate.Options{})
	if hindered, ok := errors.AsType[*migrate.HinderedError](err); !ok || !cmp.Equal(want, hindered.Troubles) {
		t.Errorf("up: %v, want it refused: %+v", err, want)
	}
	if _, err := service().Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	if troubles, _ := planned(t, database.App); !cmp.Equal(want, troubles) {
		t.Errorf("plan when all are applied: %+v, want %+v", troubles, want)
	}
	_, err = service().DownTo(t.Context(), database.App, 0, migrate.Options{})
	if hindered, ok := errors.AsType[*migrate.HinderedError](err); !ok || !cmp.Equal(want, hindered.Troubles) {
		t.Errorf("down: %v, want it refused: %+v", err, want)
	}
}

// planned returns what the plan of the owner tells.
func planned(t *testing.T, url string) (troubles, cautions []migrate.Trouble) {
	t.Helper()
	plan, err := service().Plan(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return plan.Trouble, plan.Cautions
}

// harmless is what a store may have: it looks like a hindrance and is none. @other
// is another database.
const harmless = `
	CREATE SCHEMA shop;
	CREATE SCHEMA late;
	CREATE SCHEMA plantstore_owner AUTHORIZATION plantstore_owner;
	CREATE TABLE late.plants (n int);
	CREATE SEQUENCE shop.plants;
	ALTER DATABASE @db SET search_path = shop, public, late;
	ALTER DATABASE @db SET intervalstyle = sql_standard;
	ALTER ROLE @somebody IN DATABASE @db SET search_path = late;
	ALTER ROLE plantstore_app IN DATABASE @other SET search_path = late;

	CREATE TABLE shop.kinds (id bigint PRIMARY KEY);
	CREATE TABLE shop.seeds (kind bigint REFERENCES shop.kinds ON DELETE CASCADE) WITH (fillfactor = 50);
	CREATE TABLE shop.rare (LIKE shop.seeds) INHERITS (shop.seeds);
	CREATE UNLOGGED TABLE shop.log (id bigint);
	ALTER TABLE plants ADD kind bigint REFERENCES shop.kinds ON DELETE CASCADE;

	CREATE TABLE shop.api_tokens (id int);
	CREATE TYPE shop.plant_shapes AS ENUM ();
	CREATE FUNCTION shop.plantstore_token(text) RETURNS text LANGUAGE sql AS 'SELECT $1';
	CREATE TRIGGER plantstore_record_deletion BEFORE UPDATE ON shop.kinds FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();

	CREATE POLICY own ON plants USING (name = current_user);
	ALTER TABLE shop.seeds ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
	CREATE RULE keep AS ON DELETE TO plants DO INSTEAD NOTHING;
	ALTER TABLE plants DISABLE RULE keep;
	CREATE RULE "update" AS ON UPDATE TO plants WHERE old.id < 0 DO INSTEAD NOTHING;
	CREATE RULE keep AS ON DELETE TO shop.kinds DO INSTEAD NOTHING;

	CREATE TABLE public.ledger (id bigint);
	GRANT INSERT ON public.ledger TO PUBLIC;
	CREATE TABLE shop.closed (id bigint);
	CREATE FUNCTION shop.theirs() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO shop.closed VALUES (1); RETURN NULL; END $$;
	ALTER FUNCTION shop.theirs() OWNER TO pg_monitor;
	CREATE FUNCTION shop.definer() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO shop.closed VALUES (1); RETURN OLD; END $$;
	ALTER FUNCTION shop.definer() OWNER TO pg_monitor;
	CREATE FUNCTION shop.open() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.ledger VALUES (1); RETURN old ; END $$;
	CREATE FUNCTION shop.stamp() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO shop.closed VALUES (1); RETURN NEW; END $$;
	CREATE TRIGGER update_of_theirs AFTER UPDATE ON plants FOR EACH ROW EXECUTE FUNCTION shop.theirs();
	CREATE TRIGGER off AFTER INSERT OR DELETE ON plants FOR EACH ROW EXECUTE FUNCTION shop.theirs();
	ALTER TABLE plants DISABLE TRIGGER off;
	CREATE TRIGGER keeping_off BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION shop.theirs();
	ALTER TABLE plants DISABLE TRIGGER keeping_off;
	CREATE FUNCTION shop.hasty() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM 'synchronous_commit'; INSERT INTO plants VALUES (1); RETURN NULL; END $$;
	CREATE CONSTRAINT TRIGGER of_replicas AFTER INSERT OR DELETE ON plants DEFERRABLE FOR EACH ROW EXECUTE FUNCTION shop.hasty();
	CREATE TRIGGER keeping_of_replicas BEFORE INSERT OR DELETE ON plants FOR EACH ROW EXECUTE FUNCTION shop.theirs();
	CREATE RULE keep_of_replicas AS ON DELETE TO plants DO INSTEAD NOTHING;
	ALTER TABLE plants ENABLE REPLICA TRIGGER of_replicas, ENABLE REPLICA TRIGGER keeping_of_replicas, ENABLE REPLICA RULE keep_of_replicas;
	CREATE TRIGGER elsewhere BEFORE DELETE ON shop.kinds FOR EACH ROW EXECUTE FUNCTION shop.theirs();
	CREATE TRIGGER definer BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION shop.definer();
	CREATE TRIGGER open BEFORE DELETE ON plants FOR EACH ROW EXECUTE FUNCTION shop.open();
	CREATE TRIGGER stamp BEFORE INSERT OR UPDATE ON plants FOR EACH ROW EXECUTE FUNCTION shop.stamp();
	CREATE FUNCTION shop.statement() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
	CREATE TRIGGER statement BEFORE DELETE ON plants EXECUTE FUNCTION shop.statement();
	CREATE FUNCTION shop.keep_copy() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO plants_of_old VALUES (old.id); INSERT INTO shop.plants VALUES (old.id); UPDATE plants SET name = 'x'; RETURN NULL; END $$;
	CREATE TRIGGER keep_copy AFTER DELETE ON plants FOR EACH ROW EXECUTE FUNCTION shop.keep_copy();
	CREATE TRIGGER afterwards AFTER DELETE ON plants FOR EACH ROW EXECUTE FUNCTION shop.statement();

	CREATE FUNCTION shop.event() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not you'; END $$;
	CREATE EVENT TRIGGER of_others ON ddl_command_start WHEN TAG IN ('CREATE VIEW', 'DROP TABLE') EXECUTE FUNCTION shop.event();
	CREATE EVENT TRIGGER of_drops ON sql_drop EXECUTE FUNCTION shop.event();
	CREATE EVENT TRIGGER of_rewrites ON table_rewrite EXECUTE FUNCTION shop.event();
	CREATE EVENT TRIGGER that_is_off ON ddl_command_start EXECUTE FUNCTION shop.event();
	ALTER EVENT TRIGGER that_is_off DISABLE;

	CREATE PUBLICATION inserts FOR ALL TABLES WITH (publish = 'insert, update');
	CREATE PUBLICATION others FOR TABLE shop.kinds;
	CREATE PUBLICATION some_inserts FOR TABLE plants (name) WHERE (name <> 'x') WITH (publish = 'insert');
	ALTER TABLE plants REPLICA IDENTITY NOTHING;
	ALTER DATABASE @db SET session_replication_role = local;
	ALTER DATABASE @other SET session_replication_role = replica;
	ALTER ROLE plantstore_app IN DATABASE @other SET session_replication_role = replica;

	GRANT ALL ON shop.kinds, shop.api_tokens TO PUBLIC;
	GRANT SELECT, DELETE ON plants TO pg_monitor;
	ALTER DEFAULT PRIVILEGES FOR ROLE pg_monitor GRANT ALL ON TABLES TO PUBLIC;
	ALTER DEFAULT PRIVILEGES FOR ROLE plantstore_owner IN SCHEMA shop GRANT ALL ON TABLES TO PUBLIC;
	ALTER DEFAULT PRIVILEGES FOR ROLE plantstore_owner GRANT USAGE ON TYPES TO pg_monitor;
	ALTER DEFAULT PRIVILEGES FOR ROLE plantstore_owner GRANT EXECUTE ON FUNCTIONS TO plantstore_owner WITH GRANT OPTION`

// PostgreSQL itself says what it refuses to delete, before it runs anything.
func TestPublicationsOfDeletions(t *testing.T) {
	t.Parallel()
	database := adopted.New(t)
	script(t, database.Super, `DELETE FROM plants;
		ALTER TABLE plants ALTER name SET NOT NULL, ADD CONSTRAINT names UNIQUE (name);`)
	conn := pgtest.Connect(t, database.Super)
	var version int
	if err := conn.QueryRow(t.Context(), `SELECT current_setting('server_version_num')::int / 10000`).Scan(&version); err != nil {
		t.Fatal(err)
	}
	tables := []string{``, `ALTER TABLE plants DROP CONSTRAINT plants_pkey, ADD PRIMARY KEY (id) DEFERRABLE;`, `ALTER TABLE plants DROP CONSTRAINT plants_pkey, ADD PRIMARY KEY (id) INCLUDE (name);`,
		`ALTER TABLE plants ADD n int GENERATED ALWAYS AS (length(name)) STORED;`}
	identities := []string{`DEFAULT`, `NOTHING`, `FULL`, `USING INDEX names`}
	publications := []string{`FOR ALL TABLES`, `FOR ALL TABLES WITH (publish = 'insert, update')`, `FOR TABLES IN SCHEMA public`, `FOR TABLE plants`, `FOR TABLE plants (id)`, `FOR TABLE plants (name)`,
		`FOR TABLE plants (name, id)`, `FOR TABLE plants WHERE (id > 5)`, `FOR TABLE plants WHERE (name > 'x')`, `FOR TABLE plants (id, name) WHERE (id > 5 AND name > 'x')`, `FOR TABLE plants (name) WHERE (name > 'x')`}
	if version >= 18 {
		tables = append(tables, `ALTER TABLE plants ADD n int GENERATED ALWAYS AS (length(name)) VIRTUAL;`)
		publications = append(publications, `FOR ALL TABLES WITH (publish_generated_columns = stored)`, `FOR TABLE plants WITH (publish_generated_columns = none)`)
	}
	refused := 0
	for _, table := range tables {
		for _, identity := range identities {
			for _, publication := range publications {
				sql := table + ` ALTER TABLE plants REPLICA IDENTITY ` + identity + `; CREATE PUBLICATION p ` + publication
				tx, err := conn.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := tx.Exec(t.Context(), sql); err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
				found, err := look(t.Context(), tx, replicaIdentity, nil)
				if err != nil {
					t.Fatal(err)
				}
				_, refusal := tx.Exec(t.Context(), `EXPLAIN DELETE FROM public.plants`)
				if refusal != nil {
					refused++
				}
				if (len(found) > 0) != (refusal != nil) {
					t.Errorf("%s: found %+v, PostgreSQL says %v", sql, found, refusal)
				}
				if err := tx.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if refused < 20 {
		t.Errorf("%d of them are refused, want many", refused)
	}
}

// Whoever is warned of nothing soon reads no warning.
func TestWhatHindersNothing(t *testing.T) {
	t.Parallel()
	database, other := adopted.New(t), pgtest.Empty(t)
	all := provocation{sql: strings.ReplaceAll(harmless, "@other", other.Name)}
	script(t, database.Super, all.script(t, database.Super, database.Name))
	if troubles, cautions := planned(t, database.Owner); len(troubles)+len(cautions) > 0 {
		t.Errorf("plan: trouble %+v, cautions %+v; want none", troubles, cautions)
	}
	if _, err := service().Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	if troubles, cautions := planned(t, database.Owner); len(troubles)+len(cautions) > 0 {
		t.Errorf("plan once all is applied: trouble %+v, cautions %+v; want none", troubles, cautions)
	}
	// As migrations/README.md has it for a role that exports.
	script(t, database.Super, `GRANT SELECT ON plant_deletions, plant_shapes TO pg_monitor;
		GRANT SELECT ON SEQUENCE plant_deletions_id_seq TO pg_monitor;`)
	if found := troubles(t, examinationOf(database.Super, database.App)); len(found) > 0 {
		t.Errorf("doctor: %+v, want nothing", found)
	}
	if reason := unready(t, database.App); reason != "" {
		t.Errorf("not ready because of %q", reason)
	}
}

func TestHindrancesLater(t *testing.T) {
	t.Parallel()
	for _, tt := range slices.Concat(anywhere, after) {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := migrated.New(t)
			provoke(t, examinationOf(database.Super, database.App), database.Super, database.Name, tt)
		})
	}
}

// The migrations run no statements but those that event triggers are looked for by. On
// the way down, those that see what is dropped are told, too.
func TestEventTriggersSeeWhatIsTold(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	if err := postgres.Script(t.Context(), database.Super, roles.SQL); err != nil {
		t.Fatal(err)
	}
	script(t, database.Super, `CREATE TABLE public.seen (tag text);
		GRANT ALL ON public.seen TO PUBLIC;
		CREATE FUNCTION see() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.seen VALUES (tg_tag); END $$;
		CREATE EVENT TRIGGER see ON ddl_command_start EXECUTE FUNCTION see();
		CREATE EVENT TRIGGER see_drops ON sql_drop EXECUTE FUNCTION see();`)
	super := pgtest.Connect(t, database.Super)
	var told []string
	options := migrate.Options{Notify: func(e migrate.Event) {
		if e.Kind == migrate.Warned {
			name, _, _ := strings.Cut(e.Warning, " runs ")
			told = append(told, name)
		}
	}}
	for _, way := range []struct {
		run  func(context.Context, string, migrate.Options) ([]migrate.Change, error)
		told []string
		tags string
	}{
		{service().Up, []string{"event trigger see"}, upTags},
		{func(ctx context.Context, url string, o migrate.Options) ([]migrate.Change, error) {
			return service().DownTo(ctx, url, 0, o)
		}, []string{"event trigger see", "event trigger see_drops"}, downTags},
	} {
		told = nil
		if _, err := way.run(t.Context(), database.Owner, options); err != nil {
			t.Fatal(err)
		}
		var tags string
		if err := super.QueryRow(t.Context(), `WITH gone AS (DELETE FROM public.seen RETURNING tag) SELECT string_agg(DISTINCT tag, ', ' ORDER BY tag) FROM gone`).Scan(&tags); err != nil {
			t.Fatal(err)
		}
		if tags != way.tags || !slices.Equal(told, way.told) {
			t.Errorf("told of %q, statements %s; want %q, %s", told, tags, way.told, way.tags)
		}
	}
}

// Entries know their shapes by numbers. A table of shapes that is made again has none of theirs.
func TestShapesThatAreMadeAgain(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	const remove = "INSERT INTO plants (name) VALUES ('Fern');\nDELETE FROM plants;"
	script(t, database.Super, remove+"\nDROP TABLE plant_shapes;")
	for _, f := range troubles(t, examinationOf(database.Super, database.App)) {
		if f.Message == "public.plant_shapes is missing" {
			script(t, database.Super, f.Remedy)
		}
	}
	script(t, database.Super, remove)
	var entries, shapes int
	err := pgtest.Connect(t, database.Super).QueryRow(t.Context(), `SELECT count(*), count(DISTINCT shape) FROM plant_deletions`).Scan(&entries, &shapes)
	if err != nil || entries != 2 || shapes != 2 {
		t.Errorf("%d entries of %d shapes, %v; want 2 of 2", entries, shapes, err)
	}
}

// A table that goes between two runs is missed before the second one begins.
func TestATableGoneBetweenTwoRuns(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	if _, err := service().DownTo(t.Context(), database.Owner, 1, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	script(t, database.Super, `CREATE SCHEMA shop;
		ALTER TABLE plants SET SCHEMA shop;`)
	troubles, cautions := planned(t, database.Owner)
	if len(troubles) != 1 || troubles[0].Message != "public.plants is gone: nothing can be deleted" || len(cautions) != 0 {
		t.Errorf("plan: %+v, %+v; want only that the table is gone", troubles, cautions)
	}
}

// A release that was rolled back works with what the newer one made.
func TestANewerSchemaHindersNothing(t *testing.T) {
	t.Parallel()
	database := migrated.New(t)
	script(t, database.Owner, `
		INSERT INTO goose_db_version (version_id, is_applied) VALUES (900, true);
		ALTER FUNCTION plantstore_record_deletion() SET xmlbinary = 'hex';
		ALTER FUNCTION plantstore_shape(oid) STABLE;
		ALTER TABLE plant_deletions RENAME CONSTRAINT plant_deletions_once TO plant_deletions_only;
		ALTER TABLE plantstore_budgets DROP COLUMN began, ADD COLUMN since timestamptz NOT NULL;
		CREATE OR REPLACE TRIGGER plantstore_refuse_truncate AFTER TRUNCATE ON plants FOR EACH STATEMENT EXECUTE FUNCTION plantstore_refuse_truncate();
		CREATE FUNCTION plantstore_shape(text) RETURNS text LANGUAGE sql AS $$ SELECT '' $$;`)
	script(t, database.Super, `CREATE TRIGGER also AFTER DELETE ON plants REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION plantstore_record_deletion();`)
	if found := troubles(t, examinationOf(database.Super, database.App)); len(found) != 1 || !strings.HasPrefix(found[0].Message, "the database is ahead") {
		t.Errorf("%+v, want only that the database is ahead", found)
	}
	if reason := unready(t, database.App); reason != "" {
		t.Errorf("not ready because of %q", reason)
	}
	if troubles, cautions := planned(t, database.Owner); len(troubles) != 1 || len(cautions) != 0 {
		t.Errorf("plan: %+v, %+v; want only that the database is ahead", troubles, cautions)
	}
}

// What down would lose is told before anything is taken back: the service goes on.
func TestDownTellsWhatItWouldLose(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	script(t, database.Owner, `INSERT INTO plants (name) VALUES ('Jade plant'), ('Agave'); DELETE FROM plants WHERE name = 'Agave'; INSERT INTO api_principals (name) VALUES ('shop');
		INSERT INTO plantstore_budgets (principal, most, period) VALUES ('shop', 1, '7d'), ('oidc:mallory', 1, '7d');
		INSERT INTO plantstore_budgets (principal, used) VALUES ('oidc:shop', 1);`)
	remedies := make(map[string]string)
	down := func(to int64) (taken int, refused []string) {
		changes, err := service().DownTo(t.Context(), database.Owner, to, migrate.Options{})
		hindered, ok := errors.AsType[*migrate.HinderedError](err)
		if err != nil && !ok {
			t.Fatal(err)
		}
		if ok {
			for _, trouble := range hindered.Troubles {
				refused = append(refused, trouble.Message)
				remedies[trouble.Message] = trouble.Remedy
			}
		}
		return len(changes), refused
	}
	const clients, budgets, deletions, plants = "public.api_principals holds clients, and would be dropped", "public.plantstore_budgets holds budgets, and would be dropped",
		"public.plant_deletions holds deletions or refusals, and would be dropped", "public.plants holds plants, and would be dropped"
	for to, want := range [][]string{{clients, budgets, deletions, plants}, {clients, budgets, deletions}, {clients, budgets}, {clients, budgets}} {
		if taken, refused := down(int64(to)); taken != 0 || !cmp.Equal(want, refused) {
			t.Errorf("down to %d: %d taken back, refused with %q; want 0, %q", to, taken, refused, want)
		}
	}
	if reason := unready(t, database.App); reason != "" {
		t.Errorf("not ready because of %q, though nothing was taken back", reason)
	}
	if taken, refused := down(4); taken != 2 || refused != nil {
		t.Errorf("down to 4: %d taken back, refused with %q; want 2, as nothing is lost", taken, refused)
	}
	script(t, database.Owner, remedies[clients])
	if taken, refused := down(3); taken != 0 || !cmp.Equal([]string{budgets}, refused) {
		t.Errorf("down to 3 without clients: %d taken back, refused with %q; want 0, %q", taken, refused, budgets)
	}
	script(t, database.Owner, remedies[budgets]+"\n"+remedies[deletions]+`
		COMMENT ON TABLE plants IS 'the store''s own';`)
	if taken, refused := down(0); taken != 4 || refused != nil {
		t.Errorf("down to 0 once nothing would be lost: %d taken back, refused with %q; want 4", taken, refused)
	}
}

// Where it can't be told, that is a reason not to begin. Somebody else's lock is none: the
// migration waits for it, and names who has it.
func TestDownThatCantLook(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ sql, want string }{
		"gone":        {`DROP TABLE api_principals CASCADE`, "what would be lost of public.api_principals can't be told: .*does not exist.*"},
		"closed":      {`REVOKE ALL ON plant_deletions FROM plantstore_owner`, "what would be lost of public.plant_deletions can't be told: permission denied .*"},
		"hidden":      {`ALTER TABLE plant_deletions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY`, "what would be lost of public.plant_deletions can't be told: .*row-level security.*"},
		"locked":      {`BEGIN; LOCK TABLE api_principals`, ""},
		"locked, too": {`BEGIN; LOCK TABLE plant_deletions`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			conn := pgtest.Connect(t, database.Super)
			if _, err := conn.Exec(t.Context(), tt.sql); err != nil {
				t.Fatal(err)
			}
			_, err := service().DownTo(t.Context(), database.Owner, 1, migrate.Options{LockTimeout: 15 * time.Second, LockAttempts: 1})
			hindered, refused := errors.AsType[*migrate.HinderedError](err)
			blocked, waited := errors.AsType[*migrate.BlockedError](err)
			switch {
			case tt.want == "":
				if !waited || len(blocked.Blockers) != 1 || blocked.Blockers[0].PID != int32(conn.PgConn().PID()) {
					t.Errorf("down: %v, want it blocked by pid %d", err, conn.PgConn().PID())
				}
			case !refused || !slices.ContainsFunc(hindered.Troubles, func(trouble migrate.Trouble) bool {
				return regexp.MustCompile("^" + tt.want + "$").MatchString(trouble.Message)
			}):
				t.Errorf("down: %v, want it refused with %s", err, tt.want)
			}
		})
	}
}

// To look for rows has the planner run what the table's owner put into an index. So it looks
// into no table of others: also not into one that came by the name while it waited.
func TestDownLooksIntoNoTableOfOthers(t *testing.T) {
	t.Parallel()
	const trap = `CREATE FUNCTION trap() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN true; END';
		CREATE INDEX trap ON @table (trap()); ALTER TABLE @table OWNER TO pg_monitor;
		CREATE OR REPLACE FUNCTION trap() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RAISE EXCEPTION ''caught''; END';`
	t.Run("adopted", func(t *testing.T) {
		t.Parallel()
		database := migrated.New(t)
		script(t, database.Super, `COMMENT ON TABLE plants IS 'created by plantstore';`+strings.ReplaceAll(trap, "@table", "plants"))
		if changes, err := service().DownTo(t.Context(), database.Super, 0, migrate.Options{}); len(changes) != 6 || err != nil {
			t.Errorf("down to 0: %d taken back, %v; want all 6", len(changes), err)
		}
		script(t, database.Super, `ALTER TABLE plants RENAME TO still_there;`)
	})
	for _, table := range []string{"plants", "plant_deletions", "api_principals", "plantstore_budgets"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			conn, watch := pgtest.Connect(t, database.Super), pgtest.Connect(t, database.Super)
			replace := strings.ReplaceAll(`BEGIN; ALTER TABLE @table RENAME TO old; CREATE TABLE @table (LIKE old); COMMENT ON TABLE @table IS 'created by plantstore';`+trap, "@table", table)
			if _, err := conn.Exec(t.Context(), replace); err != nil {
				t.Fatal(err)
			}
			down := make(chan error)
			go func() {
				_, err := service().DownTo(t.Context(), database.Super, 0, migrate.Options{LockAttempts: 1})
				down <- err
			}()
			const waits = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'plantstore migrate' AND wait_event_type = 'Lock' AND wait_event = 'relation')`
			for waiting := false; !waiting; {
				if err := watch.QueryRow(t.Context(), waits).Scan(&waiting); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := conn.Exec(t.Context(), `COMMIT`); err != nil {
				t.Fatal(err)
			}
			want := "public." + table + " belongs to "
			if err := <-down; err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "caught") {
				t.Errorf("down: %v, want it refused with %q", err, want)
			}
		})
	}
}

func TestDownWithoutPlants(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	script(t, database.Owner, `DROP TABLE plants;`)
	if changes, err := service().DownTo(t.Context(), database.Owner, 0, migrate.Options{}); len(changes) != 6 || err != nil {
		t.Errorf("down to 0: %d taken back, %v; want all 6", len(changes), err)
	}
}

// To take back what is on a table of somebody else's takes its owner, who is told so
// before anything is taken back.
func TestDownOnAnAdoptedTable(t *testing.T) {
	t.Parallel()
	database := migrated.New(t)
	script(t, database.Super, `GRANT SELECT (id, xmax), SELECT, DELETE ON plants TO plantstore_app;`)
	down := func(to int64) (taken int, warned []string, err error) {
		changes, err := service().DownTo(t.Context(), database.Owner, to, migrate.Options{Notify: func(e migrate.Event) {
			if e.Kind == migrate.Warned {
				warned = append(warned, e.Warning)
			}
		}})
		return len(changes), warned, err
	}
	const grants = "only pg_monitor can take from plantstore_app what it gave it of public.plants. REVOKE ALL ON public.plants FROM plantstore_app;"
	taken, warned, err := down(0)
	hindered, ok := errors.AsType[*migrate.HinderedError](err)
	want := []migrate.Trouble{{Kind: migrate.Hindrance, Message: "of public.plants only its owner pg_monitor can drop what the migrations put on it; from then on the service deletes nothing",
		Remedy: "DROP TRIGGER plantstore_record_deletion ON public.plants;\nDROP TRIGGER plantstore_refuse_truncate ON public.plants;"}}
	if !ok || taken != 0 || !cmp.Equal(want, hindered.Troubles) || !cmp.Equal([]string{grants}, warned) {
		t.Fatalf("down: %d taken back, %+v, warned of %q; want 0, %+v, %q", taken, err, warned, want, grants)
	}
	if reason := unready(t, database.App); reason != "" {
		t.Errorf("not ready because of %q, though nothing was taken back", reason)
	}
	// As far as it takes nobody else.
	if taken, warned, err := down(3); taken != 3 || err != nil || len(warned) != 1 {
		t.Errorf("down to 3: %d taken back, %v, warned of %q; want 3", taken, err, warned)
	}
	script(t, database.Super, hindered.Troubles[0].Remedy+"\nREVOKE ALL ON public.plants FROM plantstore_app, plantstore_owner;")
	if taken, warned, err := down(0); taken != 3 || err != nil || len(warned) != 0 {
		t.Errorf("down once the owner did its part: %d taken back, %v, warned of %q; want 3 and nothing else", taken, err, warned)
	}
	var rows, triggers, rights int
	err = pgtest.Pool(t, database.Super).QueryRow(t.Context(), `SELECT (SELECT count(*) FROM plants), (SELECT count(*) FROM pg_trigger WHERE tgrelid = 'plants'::regclass),
		(SELECT count(*) FROM information_schema.column_privileges WHERE table_name = 'plants' AND grantee = 'plantstore_app')`).Scan(&rows, &triggers, &rights)
	if err != nil || rows != 100 || triggers != 0 || rights != 0 {
		t.Errorf("%d rows, %d triggers, %d rights of the service's role, %v; want the 100 rows and nothing of ours", rows, triggers, rights, err)
	}
}

func TestReadinessNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		`REVOKE DELETE ON plants FROM plantstore_app`:                                                "plantstore_app lacks DELETE ON public.plants",
		`REVOKE SELECT (id) ON plants FROM plantstore_app`:                                           "plantstore_app lacks SELECT (id) ON public.plants",
		`REVOKE SELECT ON plant_deletions FROM plantstore_app`:                                       "plantstore_app lacks SELECT ON public.plant_deletions",
		`REVOKE SELECT ON SEQUENCE plant_deletions_id_seq FROM plantstore_app`:                       "plantstore_app lacks SELECT ON SEQUENCE public.plant_deletions_id_seq",
		`REVOKE EXECUTE ON FUNCTION plantstore_prove(bigint[], text[], text[]) FROM plantstore_app`:  "plantstore_app lacks EXECUTE ON FUNCTION public.plantstore_prove(bigint[], text[], text[])",
		`REVOKE EXECUTE ON FUNCTION plantstore_refuse(bigint, text, text, text) FROM plantstore_app`: "plantstore_app lacks EXECUTE ON FUNCTION public.plantstore_refuse(bigint, text, text, text)",
		`REVOKE EXECUTE ON FUNCTION plantstore_token(bytea) FROM plantstore_app`:                     "plantstore_app lacks EXECUTE ON FUNCTION public.plantstore_token(bytea)",
		`REVOKE USAGE ON SCHEMA public FROM plantstore_app, PUBLIC`:                                  "permission denied for schema public (SQLSTATE 42501)",
		`DROP TABLE plants`:                  "public.plants is gone: nothing can be deleted",
		`ALTER TABLE plants RENAME id TO no`: `public.plants has no column "id"`,
		`ALTER TABLE plants DROP id`:         `public.plants has no column "id"`,
	} {
		t.Run(sql, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			script(t, database.Super, sql+";")
			if got := strings.TrimSuffix(unready(t, database.App), ": see 'plantstore doctor'"); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

// Settings can come with the URL, too.
func TestReadinessInASessionThatRecordsNothing(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	got := unready(t, pgtest.WithParameters(database.Super, "session_replication_role=replica"))
	if want := "session_replication_role is replica in this session: plants leave without a record: see 'plantstore doctor'"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A database that does not answer hinders nobody: it is out of reach.
func TestReadinessTellsWhyItCantLook(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	script(t, database.Super, `REVOKE USAGE ON SCHEMA public FROM plantstore_app, PUBLIC;`)
	over, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for _, tt := range []struct {
		name, url string
		ctx       context.Context
		want      string
	}{
		{"nobody listens", "host=" + t.TempDir(), t.Context(), postgres.Unreachable},
		{"no answer in time", database.App, over, postgres.Unreachable},
		{"a right is missing", database.App, t.Context(), postgres.Hindered},
	} {
		db, err := postgres.Open(t.Context(), tt.url)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		err = NewReadiness().Check(tt.ctx, db)
		if e, ok := errors.AsType[*postgres.NotReadyError](err); !ok || e.Reason != tt.want {
			t.Errorf("%s: %#v, want the reason %s", tt.name, err, tt.want)
		}
	}
}
