package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A StrangersError says that nothing was restored, because roles that are not
// ours could act with our rights.
type StrangersError struct {
	Code []string // each what runs it, what it calls, and whose that is
}

func (e *StrangersError) Error() string {
	return "nothing was restored: inserting into public.plants runs code by which others could act with your rights: " + strings.Join(e.Code, "; ")
}

// strangersCode lists what an INSERT into public.plants calls for others. $1 is the
// columns that it has values for, $2 the schemas that the store's functions look names up in.
//
// A stored tree has the functions that an expression calls, and the type of each value in
// it. A domain's checks, and a few casts, are only looked up as it runs: so the types are
// followed to whatever is theirs. Whatever reads a table, to compare it or for a foreign
// key, has the planner work out what its indexes, checks and statistics say of constants.
//
// Where the expression is a stranger's, a function has to be harmless whatever it is given:
// one that runs with its owner's rights, or changes nothing, and looks up neither a query, a
// type or a function that it is told the name of, nor names on a search path of theirs.
// Whoever made a function, it must not look names up where a stranger may create them.
const strangersCode = `
	WITH RECURSIVE strangers (oid) AS (` + strangers + `), plants AS (
		SELECT c.oid, c.relowner, coalesce((SELECT s.oid FROM strangers s WHERE s.oid = c.relowner OR has_table_privilege(s.oid, c.oid, 'TRIGGER')
			ORDER BY s.oid <> c.relowner, s.oid LIMIT 1), c.relowner) AS triggerer -- who may have made its triggers
		FROM pg_class c WHERE c.oid = to_regclass('public.plants')
	), planned (oid) AS ( -- what a check of a foreign key reads is planned as its tables want it
		SELECT oid FROM plants
		UNION SELECT k.confrelid FROM plants p JOIN pg_constraint k ON k.conrelid = p.oid AND k.contype = 'f'
		UNION SELECT i.inhrelid FROM planned JOIN pg_inherits i ON i.inhparent = planned.oid
	), open (schema, strangers) AS MATERIALIZED ( -- pg_database_owner is nobody but the database's owner, and a schema of temporary tables our own
		SELECT n.nspname, array_agg(s.oid::regrole::text ORDER BY NOT s.rolcanlogin, s.rolname) FROM pg_namespace n JOIN pg_roles s
			ON s.oid IN (TABLE strangers) AND s.rolname <> 'pg_database_owner' AND (s.oid = n.nspowner OR has_schema_privilege(s.oid, n.oid, 'CREATE'))
		WHERE n.nspname !~ '^pg_t' GROUP BY n.nspname
	), columns AS (
		SELECT a.attnum, a.atttypid, a.atthasdef, a.attname <> ALL ($1::text[]) AS defaulted
		FROM pg_attribute a WHERE a.attrelid = (SELECT oid FROM plants) AND a.attnum > 0 AND NOT a.attisdropped
	), triggers AS (
		SELECT t.oid, t.tgfoid, t.tgqual, t.tgisinternal, p.triggerer FROM plants p JOIN pg_trigger t ON t.tgrelid = p.oid
		WHERE t.tgtype & 4 <> 0 AND t.tgenabled ` + fires + ` -- for INSERT
	), the_tables (class, object, owner, tree) AS (
		SELECT 'pg_trigger'::regclass, t.oid, t.triggerer, t.tgqual::text FROM triggers t
		UNION ALL SELECT 'pg_rewrite'::regclass, r.oid, p.relowner, concat(r.ev_qual, r.ev_action) FROM plants p JOIN pg_rewrite r ON r.ev_class = p.oid
			WHERE r.ev_type = '3' AND r.ev_enabled ` + fires + ` -- on INSERT
		UNION ALL SELECT 'pg_constraint'::regclass, k.oid, c.relowner, k.conbin::text FROM planned p JOIN pg_class c ON c.oid = p.oid JOIN pg_constraint k ON k.conrelid = c.oid
		UNION ALL SELECT 'pg_class'::regclass, i.indexrelid, c.relowner, concat(i.indexprs, i.indpred) FROM planned p JOIN pg_class c ON c.oid = p.oid JOIN pg_index i ON i.indrelid = c.oid
		UNION ALL SELECT 'pg_statistic_ext'::regclass, s.oid, c.relowner, s.stxexprs::text FROM planned p JOIN pg_class c ON c.oid = p.oid JOIN pg_statistic_ext s ON s.stxrelid = c.oid
		UNION ALL SELECT 'pg_attrdef'::regclass, d.oid, p.relowner, d.adbin::text FROM plants p JOIN pg_attrdef d ON d.adrelid = p.oid
			JOIN columns c ON c.attnum = d.adnum AND c.defaulted
		UNION ALL SELECT 'pg_type'::regclass, t.oid, t.typowner, t.typdefaultbin::text FROM columns c JOIN pg_type t ON t.oid = c.atttypid
			WHERE c.defaulted AND NOT c.atthasdef
	), types (oid) AS (
		SELECT atttypid FROM columns
		UNION SELECT m.match[1]::oid FROM the_tables CROSS JOIN LATERAL regexp_matches(tree, '` + typeInTree + `', 'g') m (match)
		UNION
		SELECT part.oid FROM types JOIN pg_type t ON t.oid = types.oid CROSS JOIN LATERAL (
			SELECT t.typbasetype UNION ALL SELECT t.typelem
			UNION ALL SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
			UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid
			UNION ALL SELECT r.rngtypid FROM pg_range r WHERE r.rngmultitypid = t.oid
			UNION ALL SELECT m.match[1]::oid FROM pg_constraint k CROSS JOIN LATERAL regexp_matches(k.conbin::text, '` + typeInTree + `', 'g') m (match)
				WHERE k.contypid = t.oid
		) part (oid) WHERE part.oid <> 0
	), expressions AS (
		TABLE the_tables
		UNION ALL SELECT 'pg_constraint'::regclass, k.oid, t.typowner, k.conbin::text FROM types JOIN pg_type t ON t.oid = types.oid
			JOIN pg_constraint k ON k.contypid = t.oid
	), calls (class, object, owner, function) AS (
		SELECT e.class, e.object, e.owner, m.match[1]::oid FROM expressions e
			CROSS JOIN LATERAL regexp_matches(e.tree, ':(?:op)?funcid ([0-9]+)', 'g') m (match)
		-- The planner may call an operator's negator or commutator in its place, and an index, a range or an array what its classes say.
		UNION SELECT e.class, e.object, e.owner, o.oprcode::oid FROM expressions e CROSS JOIN LATERAL regexp_matches(e.tree, ':opno ([0-9]+)', 'g') m (match)
			JOIN pg_operator named ON named.oid = m.match[1]::oid JOIN pg_operator o ON o.oid IN (named.oprnegate, named.oprcom)
		UNION SELECT 'pg_class'::regclass, i.indexrelid, NULL, s.amproc::oid FROM planned p JOIN pg_index i ON i.indrelid = p.oid
			JOIN pg_opclass o ON o.oid = ANY (i.indclass) JOIN pg_amproc s ON s.amprocfamily = o.opcfamily
		UNION SELECT 'pg_type'::regclass, types.oid, NULL, s.amproc::oid FROM types LEFT JOIN pg_range r ON types.oid IN (r.rngtypid, r.rngmultitypid)
			JOIN pg_opclass o ON o.oid = r.rngsubopc OR o.opcintype = types.oid AND o.opcdefault JOIN pg_amproc s ON s.amprocfamily = o.opcfamily
		UNION SELECT 'pg_constraint'::regclass, k.oid, NULL, o.oprcode::oid FROM planned p JOIN pg_constraint k ON k.conrelid = p.oid JOIN pg_operator o ON o.oid = ANY (k.conexclop)
		UNION SELECT 'pg_trigger'::regclass, t.oid, t.triggerer, t.tgfoid FROM triggers t WHERE NOT t.tgisinternal
		UNION SELECT 'pg_type'::regclass, d.objid, t.typowner, d.refobjid FROM types JOIN pg_type t ON t.oid = types.oid JOIN pg_depend d
			ON d.classid = 'pg_type'::regclass AND d.objid = types.oid AND d.refclassid = 'pg_proc'::regclass
		-- JSON is made by a cast if there is one, || and quote_literal cast to text, and foreign keys cast to the type that they name.
		UNION SELECT 'pg_cast'::regclass, x.oid, t.typowner, x.castfunc FROM types JOIN pg_type t ON t.oid = types.oid JOIN pg_cast x ON x.castsource = types.oid
			WHERE x.casttarget IN ('json'::regtype, 'text'::regtype)
				OR EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = (SELECT oid FROM plants) AND k.contype = 'f')
	)
	SELECT pg_describe_object(c.class, c.object, 0), f.oid::regprocedure::text || CASE WHEN code.strangers OR code.told THEN '' ELSE ', which looks names up in schema ' || quote_ident(open.schema) || ',' END,
		CASE WHEN code.strangers THEN ARRAY[f.proowner::regrole::text] WHEN code.told THEN ARRAY[c.owner::regrole::text] ELSE open.strangers END, CASE c.class WHEN 'pg_trigger'::regclass THEN c.object END
	FROM calls c JOIN pg_proc f ON f.oid = c.function JOIN pg_language l ON l.oid = f.prolang
		CROSS JOIN LATERAL (SELECT f.pronamespace = 'pg_catalog'::regnamespace OR l.lanname IN ('c', 'internal') AND coalesce(f.probin, '') !~ 'refint' OR f.prosqlbody IS NOT NULL
			OR EXISTS (SELECT FROM unnest(f.proconfig) setting WHERE setting ~ '^search_path=((pg_catalog)?(, pg_temp)?|"")$')
			OR EXISTS (SELECT FROM pg_depend d JOIN pg_extension x ON x.oid = d.refobjid -- its functions name the schema of what they call
				WHERE d.classid = 'pg_proc'::regclass AND d.objid = f.oid AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND x.extname = 'citext')) pinned (safe)
		-- In its own search path, however that is written, or in ours. What runs with a superuser's rights gives nobody those of another role.
		LEFT JOIN LATERAL (SELECT o.* FROM open o LEFT JOIN unnest(f.proconfig) own (path) ON own.path ~* '^search_path='
			WHERE CASE WHEN own.path IS NULL THEN o.schema = ANY ($2::text[])
				ELSE o.schema = ANY (` + pathOf + `) OR '$user' = ANY (` + pathOf + `) AND o.schema IN (current_user, session_user) END
			ORDER BY o.schema LIMIT 1) open ON NOT pinned.safe
				AND NOT (f.prosecdef AND EXISTS (SELECT FROM pg_roles r WHERE r.oid = f.proowner AND r.rolsuper) AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname IN (current_user, session_user) AND r.rolsuper))
		CROSS JOIN LATERAL (SELECT f.proowner IN (TABLE strangers), c.owner IS NOT NULL AND c.owner IN (TABLE strangers) AND NOT (f.prosecdef AND has_function_privilege(c.owner, f.oid, 'EXECUTE')
		OR (f.proname ~ '^(nextval|random|random_normal|clock_timestamp|timeofday|gen_random_uuid|uuidv[47]|uuid_generate_v[145].*|gen_random_bytes|gen_salt|tsvector_update_trigger(_column)?)$'
			OR f.provolatile <> 'v' AND f.prorettype <> 'trigger'::regtype
				AND f.proname !~ '_to_xml|_validator$|^satisfies_hash_partition$|^pg_(?!typeof$|column_size$|lsn_)' AND 'cstring'::regtype <> ALL (f.proargtypes))
			AND pinned.safe)) code (strangers, told)
	WHERE code.strangers OR code.told OR open.schema IS NOT NULL
	ORDER BY 1, 2`

// StrangersCode is SQL for what a restore by a role would refuse to run: what runs it, what it
// calls, for whom, and of a trigger its oid. It takes every column to have been there when the
// plants were deleted. The role and the schemas of its search path are expressions.
func StrangersCode(role, schemas string) string {
	return strings.NewReplacer("current_user", role, "session_user", role, "$2::text[]", schemas,
		"$1::text[]", `CASE a.attgenerated WHEN '' THEN ARRAY[a.attname::text] ELSE '{}' END`).Replace(strangersCode)
}

// strangers are the roles that have not got our rights anyway: those that we use, and those
// that we logged in with, which RESET ROLE brings back. What a role is (CREATEROLE), only who may
// become it has.
const strangers = `SELECT oid FROM pg_roles WHERE NOT rolsuper
	AND NOT (pg_has_role(oid, current_user, 'USAGE') AND pg_has_role(oid, session_user, 'USAGE') AND pg_has_role(oid, session_user, ` + becoming + `))`

// becoming is what pg_has_role asks whether a role may become another one by.
const becoming = `CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END`

// fires ends a condition on when a trigger or a rule is enabled: that it is in this session.
const fires = `NOT IN ('D', CASE current_setting('session_replication_role') WHEN 'replica' THEN 'O' ELSE 'R' END)`

// pathOf is the schemas in own.path, a function's search_path=..., which may be of whoever wrote it.
const pathOf = `ARRAY(SELECT CASE WHEN m.match[1] ~ '^"' THEN replace(substr(m.match[1], 2, length(m.match[1]) - 2), '""', '"') ELSE lower(m.match[1]) END
	FROM regexp_matches(substr(own.path, length('search_path=') + 1), '("(?:[^"]|"")*"|[^",\s]+)', 'g') m (match))`

// typeInTree finds the types of an expression's values in its stored tree.
const typeInTree = `:[a-zA-Z_]*(?:[tT]ype|[tT]ype[iI]d|typid) ([0-9]+)`

// refusePower returns an error if whoever restores could do more to the server than others whose
// code a restore may run: those to whom the plants belong, a table that they refer to, a type, the
// ledger, the schema or the database. What they put there is looked at, but they may change
// it at any moment, and put something else under its name. So nobody is to gain more by it than
// what the service's owner has.
//
// It goes by who logged in, and whoever that could become: SET ROLE, also by a setting of the
// database, can be taken back.
func refusePower(ctx context.Context, tx pgx.Tx) error {
	var powers, owned []string
	err := tx.QueryRow(ctx, `
		WITH owned (class, object, owner) AS (
			SELECT 'pg_class'::regclass, oid, relowner FROM pg_class WHERE oid IN ('public.plants'::regclass, to_regclass('public.plant_deletions'), to_regclass('public.plant_shapes'))
				OR oid IN (SELECT confrelid FROM pg_constraint WHERE contype = 'f' AND conrelid = 'public.plants'::regclass)
			UNION ALL SELECT 'pg_namespace'::regclass, oid, nspowner FROM pg_namespace WHERE nspname = 'public' -- perhaps pg_database_owner's
			UNION ALL SELECT 'pg_database'::regclass, oid, datdba FROM pg_database WHERE datname = current_database()
			UNION ALL SELECT 'pg_type'::regclass, t.oid, t.typowner FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace LEFT JOIN pg_class c ON c.oid = t.typrelid
				WHERE n.nspname !~ '^pg_temp_' AND (t.typtype IN ('d', 'e', 'r', 'm') OR c.relkind = 'c' -- others are tables' rows and arrays
					OR t.oid IN (SELECT atttypid FROM pg_attribute WHERE attrelid = 'public.plants'::regclass))
		), powers (role, power, inherited) AS (
			SELECT oid, 'SUPERUSER', false FROM pg_roles WHERE rolsuper UNION ALL SELECT oid, 'CREATEROLE', false FROM pg_roles WHERE rolcreaterole
			UNION ALL SELECT oid, 'REPLICATION', false FROM pg_roles WHERE rolreplication
			UNION ALL SELECT oid, rolname::text, true FROM pg_roles WHERE rolname IN ('pg_execute_server_program', 'pg_write_server_files', 'pg_read_server_files', 'pg_read_all_data', 'pg_write_all_data')
		)
		SELECT coalesce(array_agg(DISTINCT ours.power), '{}'), coalesce(array_agg(DISTINCT pg_describe_object(owned.class, owned.object, 0) || ' (' || o.rolname || ')'), '{}')
		FROM pg_roles r, powers ours, owned JOIN pg_roles o ON o.oid = owned.owner AND o.rolname <> 'pg_database_owner'
		WHERE r.rolname IN (session_user, $1) AND pg_has_role(r.oid, ours.role, 'MEMBER') AND r.oid <> o.oid
			AND NOT EXISTS (SELECT FROM powers theirs WHERE theirs.power = ours.power
				AND (pg_has_role(o.oid, theirs.role, `+becoming+`) OR theirs.inherited AND pg_has_role(o.oid, theirs.role, 'USAGE')))`, tx.Conn().Config().User).Scan(&powers, &owned)
	if err != nil || len(owned) == 0 {
		return err
	}
	if slices.Contains(powers, "SUPERUSER") {
		powers = []string{"SUPERUSER"} // has the others
	}
	return fmt.Errorf("role %s has more rights (%s) than the owners of what a restore meets: %s. What they put there could run with these rights. "+
		"Restore as a role without them, such as plantstore_owner, or accept that with --run-triggers",
		visible(tx.Conn().Config().User), strings.Join(powers, ", "), some(owned))
}

// some lists the first of names, and says how many more there are.
func some(names []string) string {
	const shown = 10
	if more := len(names) - shown; more > 0 {
		names = append(names[:shown:shown], fmt.Sprintf("and %d more", more))
	}
	return visible(strings.Join(names, ", "))
}

// refuseReplaced returns an error unless tables of ours are those that the migrations made. Who
// owns the database may drop them, and make views of their names, which run their code for whoever
// reads them; or tables, of which the planner looks at the indexes. A lock keeps the tables
// as they are: taken first, it also waits for who is about to do so. The schema may get another
// name all the same, see refusePower; not while a superuser reads, who may lock that, too, but for
// a standby.
//
// Where they are to be written, it also refuses triggers that others have made there. The lock for
// that keeps more of them out.
func refuseReplaced(ctx context.Context, tx pgx.Tx, lock tableLock, tables ...string) error {
	names := make([]string, len(tables))
	for i, table := range tables {
		names[i] = "public." + table
	}
	if err := keepSchema(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `LOCK TABLE ONLY `+strings.Join(names, ", ONLY ")+` IN `+string(lock)+` MODE`); err != nil {
		return err
	}
	var replaced, owners []string
	// One that is newer than the transaction's snapshot is none that this can tell of.
	err := tx.QueryRow(ctx, `
		SELECT coalesce(array_agg(coalesce(pg_describe_object('pg_class'::regclass, c.oid, 0) || ' of ' || c.relowner::regrole, t.name) ORDER BY t.name), '{}'),
			CASE WHEN bool_and(c.relkind = 'r') THEN coalesce(array_agg(DISTINCT c.relowner::regrole::text), '{}') END
		FROM unnest($1::text[]) t (name) LEFT JOIN pg_class c ON c.oid = to_regclass(t.name)
		WHERE c.oid IS NULL OR c.relkind <> 'r' OR c.relowner IN (`+strangers+`) AND c.relowner IS DISTINCT FROM to_regrole('plantstore_owner')`, names).Scan(&replaced, &owners)
	switch {
	case err != nil:
		return err
	case len(replaced) == 0 && lock == toWrite:
		return refuseTriggers(ctx, tx, names)
	case len(replaced) == 0:
		return nil
	case len(owners) == 1:
		return fmt.Errorf("a role with fewer rights than yours owns what is read, and its code could run with yours: %[1]s. If %[2]s is who migrates, do this as %[2]s. Or once you have looked at their indexes, triggers and defaults, give each to plantstore_owner (ALTER TABLE … OWNER TO plantstore_owner)",
			visible(strings.Join(replaced, ", ")), visible(owners[0]))
	}
	return fmt.Errorf("this is not what the migrations made, and its owner's code could run with your rights: %s. Find out who made it", visible(strings.Join(replaced, ", ")))
}

// A tableLock is what tables are used for.
type tableLock string

const (
	toRead  tableLock = "ACCESS SHARE"
	toWrite tableLock = "ROW EXCLUSIVE"
)

// keepSchema keeps the schema's name until the transaction ends, if a superuser is who reads, or who
// logged in: the code that it would read instead could become that one again. It is an error where
// the transaction may only read, but on a standby, which can't keep it.
func keepSchema(ctx context.Context, tx pgx.Tx) error {
	var superuser bool
	var role string
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_roles r WHERE r.rolsuper AND r.rolname IN (current_user, session_user)) AND NOT pg_is_in_recovery(),
		CASE WHEN EXISTS (SELECT FROM pg_roles r WHERE r.rolsuper AND r.rolname = session_user) THEN current_setting('role') ELSE 'none' END`).Scan(&superuser, &role)
	if err != nil || !superuser {
		return err
	}
	as := func(role string) error {
		_, err := tx.Exec(ctx, `SELECT set_config('role', $1::text, true)`, role)
		return err
	}
	if role != "none" {
		if err := as("none"); err != nil {
			return err
		}
	}
	tag, err := tx.Exec(ctx, `SELECT FROM pg_namespace WHERE nspname = 'public' FOR KEY SHARE`)
	if err == nil && tag.RowsAffected() != 1 { // it has another name since the statement began
		err = errors.New("somebody renames the schema public: try again once it is there")
	}
	if err == nil && role != "none" {
		err = as(role)
	}
	return err
}

// refuseTriggers returns an error if others could act with our rights when rows of our tables are
// written: by a trigger there, or on a table whose rows are deleted or changed along, by a foreign key.
// A trigger of such a table that is deferred runs with the rights of who commits, before PostgreSQL 18.
// Whoever may make triggers decides what they hand to a function, and when. The lock on our tables
// keeps more triggers and foreign keys out, but not triggers on the other tables.
func refuseTriggers(ctx context.Context, tx pgx.Tx, tables []string) error {
	var found []string
	err := tx.QueryRow(ctx, `
		WITH RECURSIVE others AS (
			SELECT s.oid FROM (`+strangers+`) s WHERE pg_has_role(s.oid, to_regrole('plantstore_owner'), 'MEMBER') IS NOT TRUE
		), tables (oid, fk) AS (
			SELECT t, NULL::oid FROM unnest($1::text[]::regclass[]) t
			UNION SELECT k.conrelid, k.oid FROM tables JOIN pg_constraint k ON k.confrelid = tables.oid AND k.contype = 'f' AND k.confdeltype IN ('c', 'n', 'd')
		), called AS (
			SELECT t.*, f.oid AS function, f.proowner, f.proconfig, f.provolatile = 'v' AND f.pronamespace = 'pg_catalog'::regnamespace AS does_as_told FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid
				OR f.oid IN (SELECT m.match[1]::oid FROM regexp_matches(t.tgqual::text, ':(?:op)?funcid ([0-9]+)', 'g') m (match))
			WHERE t.tgrelid IN (SELECT oid FROM tables) AND NOT t.tgisinternal AND t.tgenabled `+fires+`
		), found (what) AS (
			SELECT format('%s calls %s of %s. Drop it, or once you have read that, ALTER FUNCTION %2$s OWNER TO plantstore_owner', pg_describe_object('pg_trigger'::regclass, c.oid, 0), c.function::regprocedure, c.proowner::regrole)
			FROM called c WHERE c.proowner IN (TABLE others)
			UNION ALL SELECT format('%s calls %s in its condition, which may do what it is told to. Drop it', pg_describe_object('pg_trigger'::regclass, c.oid, 0), c.function::regprocedure)
			FROM called c WHERE c.function <> c.tgfoid AND c.does_as_told
			UNION ALL SELECT format('%s looks names up in schema %I, where %s may create them. ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', pg_describe_object('pg_proc'::regclass, c.function, 0), n.nspname, o.oid::regrole, c.function::regprocedure)
			FROM called c CROSS JOIN LATERAL unnest(c.proconfig) own (path) JOIN pg_namespace n ON n.nspname = ANY (`+pathOf+`) OR '$user' = ANY (`+pathOf+`) AND n.nspname IN (current_user, session_user, pg_get_userbyid(c.proowner))
				CROSS JOIN LATERAL (SELECT o.oid FROM others o WHERE o.oid::regrole::text <> 'pg_database_owner' AND has_schema_privilege(o.oid, n.oid, 'CREATE') ORDER BY o.oid LIMIT 1) o
			WHERE own.path ~* '^search_path=' AND n.nspname !~ '^pg_t'
			UNION ALL SELECT format('%s may be of %s, as it has arguments or a condition. Once you have read it, REVOKE TRIGGER ON %s FROM %2$s', pg_describe_object('pg_trigger'::regclass, c.oid, 0), o.oid::regrole, c.tgrelid::regclass)
			FROM called c JOIN others o ON has_table_privilege(o.oid, c.tgrelid, 'TRIGGER') WHERE c.function = c.tgfoid AND (c.tgnargs > 0 OR c.tgqual IS NOT NULL)
			UNION ALL SELECT format('%s may have triggers of %s. ALTER TABLE %s DROP CONSTRAINT %I', pg_describe_object('pg_class'::regclass, t.oid, 0), o.oid::regrole, t.oid::regclass, k.conname)
			FROM tables t JOIN pg_constraint k ON k.oid = t.fk JOIN pg_class c ON c.oid = t.oid JOIN others o ON o.oid = c.relowner OR has_table_privilege(o.oid, t.oid, 'TRIGGER')
		)
		SELECT coalesce(array_agg(DISTINCT what ORDER BY what), '{}') FROM found`, tables).Scan(&found)
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("others could act with your rights: %s", visible(strings.Join(found, "; ")))
	}
	return err
}

// refuseStrangers returns a *StrangersError if an INSERT into public.plants that has
// values for the given columns calls functions by which somebody could gain rights of ours:
// of a role that has not got ours anyway; for such an owner of the table's or a type's,
// one of anybody's that may do what it is told to; or one that looks names up in one of the given
// schemas, if such a role may create them there. A function of theirs counts even if it
// runs with their rights: it could change another one, or leave that to the commit.
// Triggers of foreign keys don't count.
func refuseStrangers(ctx context.Context, tx pgx.Tx, given, schemas []string) error {
	rows, err := tx.Query(ctx, strangersCode, given, schemas)
	if err != nil {
		return err
	}
	var code []string
	var runs, function string
	var owners []string
	if _, err := pgx.ForEachRow(rows, []any{&runs, &function, &owners, nil}, func() error {
		code = append(code, brief(runs+" calls "+function)+" for "+some(owners))
		return nil
	}); err != nil {
		return err
	}
	if len(code) > 0 {
		return &StrangersError{code}
	}
	return nil
}
