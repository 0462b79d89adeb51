package doctor

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A right is what a role may do with an object, as GRANT writes it.
type right struct{ privilege, object string }

func (r right) String() string { return r.privilege + " ON " + r.object }

func (r right) grant() string { return fmt.Sprintf("GRANT %s TO %s;", r, serviceRole) }

// usage is what roles.sql grants. The migrations grant everything else.
var usage = right{"USAGE", "SCHEMA public"}

// promised returns the rights of the service's role, in the order in which the
// migrations grant them: one for each privilege, and for each column that a
// privilege names.
func promised(statements []string) []right {
	rights := []right{usage}
	grants := regexp.MustCompile(`(?m)^\s*GRANT (.+) ON (.+) TO ` + serviceRole + `;`)
	privileges := regexp.MustCompile(`(\w+)(?: \(([^)]+)\))?`)
	for _, grant := range grants.FindAllStringSubmatch(strings.Join(statements, "\n"), -1) {
		for _, p := range privileges.FindAllStringSubmatch(grant[1], -1) {
			if p[2] == "" {
				rights = append(rights, right{p[1], grant[2]})
				continue
			}
			for column := range strings.SplitSeq(p[2], ", ") {
				rights = append(rights, right{fmt.Sprintf("%s (%s)", p[1], column), grant[2]})
			}
		}
	}
	return rights
}

// grants judges whether the service's role can do its job and nothing else.
func (e *examination) grants(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	promised := promised(shippedStatements())
	var exists bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)`, serviceRole).Scan(&exists); err != nil {
		return nil, err
	}
	if !exists {
		remedy := "CREATE ROLE " + serviceRole + " LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOINHERIT;"
		for _, r := range promised {
			remedy += "\n" + r.grant()
		}
		return []Finding{{Grade: Problem, Message: "role " + serviceRole + " does not exist", Remedy: remedy}}, nil
	}
	powers, err := powers(ctx, tx)
	if err != nil || len(powers) > 0 {
		return powers, err // next to these, a list of tables would say nothing
	}
	granted, err := granted(ctx, tx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	lacks := slices.Clone(promised)
	for _, g := range granted {
		wanted := slices.Contains(promised, g.right) && (g.grantee != "PUBLIC" || g.right == usage)
		if wanted {
			lacks = slices.DeleteFunc(lacks, func(r right) bool { return r == g.right })
		}
		switch {
		case !wanted:
			found = append(found, Finding{Grade: Problem, Message: fmt.Sprintf("%s has %s, which the service does not need", strings.Replace(g.grantee, "PUBLIC", "everybody", 1), g.right),
				Remedy: g.by(fmt.Sprintf("REVOKE %s FROM %s CASCADE;", g.right, g.grantee))})
		case g.grantable:
			found = append(found, Finding{Grade: Problem, Message: fmt.Sprintf("%s may pass %s on to others", g.grantee, g.right),
				Remedy: g.by(fmt.Sprintf("REVOKE GRANT OPTION FOR %s FROM %s CASCADE;", g.right, g.grantee))})
		}
	}
	for _, r := range lacks {
		found = append(found, Finding{Grade: Problem, Message: fmt.Sprintf("%s lacks %s", serviceRole, r), Remedy: r.grant()})
	}
	return orFine(found, "%s can do its job and nothing else", serviceRole), nil
}

// A grantedRight is one that somebody has.
type grantedRight struct {
	right
	grantee   string // the service's role, or PUBLIC
	grantable bool   // may be passed on
	grantor   string // who gave it, if not the object's owner: only that role can take it back
}

// by has a statement run as the role that gave the right.
func (g grantedRight) by(statement string) string {
	if g.grantor == "" {
		return statement
	}
	return "SET ROLE " + g.grantor + ";\n" + statement + "\nRESET ROLE;"
}

// granted returns everything that is granted to the service's role, and what
// everybody may do with the service's own tables and functions. That everybody may
// make temporary tables is usual and does no harm; of those who make objects in
// schema public a hindrance tells.
func granted(ctx context.Context, tx pgx.Tx) ([]grantedRight, error) {
	rows, err := tx.Query(ctx, `
		WITH app AS (SELECT oid FROM pg_roles WHERE rolname = $1), objects AS (
			SELECT c.relacl AS acl, c.relowner AS owner, '' AS suffix, CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE '' END || c.oid::regclass AS object,
				c.relnamespace = 'public'::regnamespace AND (c.relname = ANY ($2::text[]) OR c.relname IN ('plants', 'goose_db_version', 'plantstore_migrations')) AS ours
			FROM pg_class c WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
			UNION ALL
			SELECT a.attacl, c.relowner, format(' (%I)', a.attname), c.oid::regclass::text,
				c.relnamespace = 'public'::regnamespace AND (c.relname = ANY ($2::text[]) OR c.relname IN ('plants', 'goose_db_version', 'plantstore_migrations'))
			FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
			WHERE a.attacl IS NOT NULL AND NOT a.attisdropped AND c.relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
			UNION ALL
			SELECT coalesce(proacl, acldefault('f', proowner)), proowner, '', 'FUNCTION ' || replace(oid::regprocedure::text, ',', ', '), true
			FROM pg_proc WHERE oid IN (to_regprocedure('public.plantstore_record_deletion()'), to_regprocedure('public.plantstore_shape(oid)'),
				to_regprocedure('public.plantstore_columns(oid)'), to_regprocedure('public.plantstore_planned_columns(regclass)'),
				to_regprocedure('public.plantstore_refuse_truncate()'), to_regprocedure('public.plantstore_prove(bigint[], text[], text[])'),
				to_regprocedure('public.plantstore_refuse(bigint, text, text, text)'), to_regprocedure('public.plantstore_spend(text, bigint, bigint, interval, bigint)'), to_regprocedure('public.plantstore_token(bytea)'))
			UNION ALL
			SELECT coalesce(nspacl, acldefault('n', nspowner)), nspowner, '', format('SCHEMA %I', nspname), nspname = 'public' FROM pg_namespace
			WHERE nspname !~ '^pg_|^information_schema$'
			UNION ALL
			SELECT coalesce(datacl, acldefault('d', datdba)), datdba, '', format('DATABASE %I', datname), true FROM pg_database WHERE datname = current_database()
		)
		SELECT acl.privilege_type || suffix, object, CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE $1 END, acl.is_grantable,
			CASE WHEN acl.grantor <> owner THEN acl.grantor::regrole::text ELSE '' END
		FROM objects, app, LATERAL aclexplode(acl) acl
		WHERE (acl.grantee = app.oid OR acl.grantee = 0 AND ours)
			AND NOT (object LIKE 'DATABASE %' AND acl.privilege_type = 'CONNECT')
			AND NOT (acl.grantee = 0 AND (object LIKE 'DATABASE %' AND acl.privilege_type = 'TEMPORARY' OR object = 'SCHEMA public' AND acl.privilege_type = 'CREATE'))
		ORDER BY 2, 1, 3`, serviceRole, shippedArguments()["tables"])
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (g grantedRight, err error) {
		err = row.Scan(&g.privilege, &g.object, &g.grantee, &g.grantable, &g.grantor)
		return g, err
	})
}

// powers finds what puts the service's role above its grants: attributes,
// membership of other roles, ownership. Where plants has row level security, the
// role needs to get past it.
func powers(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	rows, err := tx.Query(ctx, `
		SELECT format('%s is %s', rolname, attribute), format('ALTER ROLE %I NO%s;', rolname, attribute)
		FROM pg_roles, unnest(ARRAY[CASE WHEN rolsuper THEN 'SUPERUSER' END, CASE WHEN rolcreaterole THEN 'CREATEROLE' END,
			CASE WHEN rolcreatedb THEN 'CREATEDB' END, CASE WHEN rolreplication THEN 'REPLICATION' END, CASE WHEN rolbypassrls AND NOT coalesce((SELECT relrowsecurity FROM pg_class WHERE oid = to_regclass('public.plants')), false) THEN 'BYPASSRLS' END]) attribute
		WHERE rolname = $1 AND attribute IS NOT NULL
		UNION ALL
		SELECT format('%s is a member of %s', $1, roleid::regrole), format('REVOKE %s FROM %I;', roleid::regrole, $1)
		FROM pg_auth_members WHERE member = (SELECT oid FROM pg_roles WHERE rolname = $1)
		UNION ALL
		SELECT format('%s owns %s in this database', $1, pg_describe_object(classid, objid, 0)),
			format('REASSIGN OWNED BY %I TO %s;', $1, (SELECT relowner::regrole FROM pg_class WHERE oid = 'public.plant_deletions'::regclass))
		FROM pg_shdepend WHERE deptype = 'o' AND refclassid = 'pg_authid'::regclass AND refobjid = (SELECT oid FROM pg_roles WHERE rolname = $1)
			AND dbid IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))`, serviceRole)
	if err != nil {
		return nil, err
	}
	return collect(rows, Problem)
}
