package postgres

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A StrangersError says that nothing was restored, because roles that are not
// ours could have their code run with our rights.
type StrangersError struct {
	Code []string // each what runs it, what it calls, and whose that is
}

func (e *StrangersError) Error() string {
	return "nothing was restored: inserting into public.plants runs the code of others with your rights: " + strings.Join(e.Code, "; ")
}

// strangersCode lists what an INSERT into public.plants calls for others. $1 is the
// columns that it has values for. An expression's functions are in its stored tree.
const strangersCode = `
	WITH RECURSIVE types (oid) AS (
		SELECT a.atttypid FROM pg_attribute a
		WHERE a.attrelid = 'public.plants'::regclass AND a.attnum > 0 AND NOT a.attisdropped
		UNION
		SELECT part.oid FROM types JOIN pg_type t ON t.oid = types.oid CROSS JOIN LATERAL (
			SELECT t.typbasetype UNION ALL SELECT t.typelem
			UNION ALL SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
			UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid
			UNION ALL SELECT r.rngtypid FROM pg_range r WHERE r.rngmultitypid = t.oid
		) part (oid) WHERE part.oid <> 0
	), expressions (class, object, owner, tree) AS (
		SELECT 'pg_trigger'::regclass, t.oid, c.relowner, t.tgqual::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
			WHERE c.oid = 'public.plants'::regclass AND t.tgtype & 4 <> 0 AND t.tgenabled <> 'D' -- for INSERT
		UNION ALL SELECT 'pg_rewrite'::regclass, r.oid, c.relowner, concat(r.ev_qual, r.ev_action) FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
			WHERE c.oid = 'public.plants'::regclass AND r.ev_type = '3' AND r.ev_enabled <> 'D' -- on INSERT
		UNION ALL SELECT 'pg_constraint'::regclass, k.oid, c.relowner, k.conbin::text FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
			WHERE c.oid = 'public.plants'::regclass
		UNION ALL SELECT 'pg_attrdef'::regclass, d.oid, c.relowner, d.adbin::text FROM pg_attrdef d JOIN pg_class c ON c.oid = d.adrelid
			JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.adnum
			WHERE c.oid = 'public.plants'::regclass AND a.attname <> ALL ($1::text[])
		UNION ALL SELECT 'pg_class'::regclass, i.indexrelid, c.relowner, concat(i.indexprs, i.indpred) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
			WHERE c.oid = 'public.plants'::regclass
		UNION ALL SELECT 'pg_constraint'::regclass, k.oid, t.typowner, k.conbin::text FROM pg_constraint k JOIN pg_type t ON t.oid = k.contypid
			WHERE t.oid IN (SELECT types.oid FROM types)
	), calls (class, object, owner, function) AS (
		SELECT e.class, e.object, e.owner, m.match[1]::oid FROM expressions e
			CROSS JOIN LATERAL regexp_matches(e.tree, ':(?:op)?funcid ([0-9]+)', 'g') m (match)
		UNION SELECT 'pg_trigger'::regclass, t.oid, NULL, t.tgfoid FROM pg_trigger t
			WHERE t.tgrelid = 'public.plants'::regclass AND NOT t.tgisinternal AND t.tgtype & 4 <> 0 AND t.tgenabled <> 'D'
		UNION SELECT 'pg_type'::regclass, d.objid, NULL, d.refobjid FROM types JOIN pg_depend d
			ON d.classid = 'pg_type'::regclass AND d.objid = types.oid AND d.refclassid = 'pg_proc'::regclass
	), strangers (oid) AS (
		SELECT oid FROM pg_roles WHERE NOT rolsuper AND NOT pg_has_role(oid, current_user, 'USAGE')
	)
	SELECT pg_describe_object(c.class, c.object, 0), f.oid::regprocedure::text,
		CASE WHEN f.proowner IN (TABLE strangers) THEN f.proowner ELSE c.owner END::regrole::text
	FROM calls c JOIN pg_proc f ON f.oid = c.function
	WHERE f.proowner IN (TABLE strangers) AND NOT f.prosecdef
		OR c.owner IN (TABLE strangers) AND (f.proname ~ '_to_xml'
			OR f.provolatile = 'v' AND f.proname !~ '^(nextval|random|clock_timestamp|timeofday|gen_random_uuid|uuidv[47]|uuid_generate_v[145].*)$')
	ORDER BY 1, 2`

// refuseStrangers returns a *StrangersError if an INSERT into public.plants that
// has values for the given columns calls functions that somebody could use to gain
// rights of ours: of a role that has not got ours anyway, or, in an expression of
// such an owner of the table's or a type's, a volatile function of anybody's, which
// may run what it is told to. Triggers of foreign keys don't count.
func refuseStrangers(ctx context.Context, tx pgx.Tx, given []string) error {
	rows, err := tx.Query(ctx, strangersCode, given)
	if err != nil {
		return err
	}
	var code []string
	var runs, function, owner string
	if _, err := pgx.ForEachRow(rows, []any{&runs, &function, &owner}, func() error {
		code = append(code, brief(runs+" calls "+function+" for "+owner))
		return nil
	}); err != nil {
		return err
	}
	if len(code) > 0 {
		return &StrangersError{code}
	}
	return nil
}
