package doctor

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// foreignKeys finds the tables that each deletion of a plant scans in full.
func (e *examination) foreignKeys(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	// An index helps if the key's columns are its first ones, in any order, and if it
	// can look for what equals: the operator that the foreign key compares with, its
	// sides changed, has to be one of the index's. Of BRIN that is not much help. The
	// constraints of partitions are their parent's. Since PostgreSQL 18 a key that is
	// NOT ENFORCED looks for nothing, and the last column may be a period, which needs
	// no index of its own.
	rows, err := tx.Query(ctx, `
		SELECT format('each deletion scans %s (%s): foreign key %I has no index', c.conrelid::regclass,
				pg_size_pretty(coalesce((SELECT sum(pg_table_size(relid)) FROM pg_partition_tree(c.conrelid)), pg_table_size(c.conrelid))), c.conname),
			CASE r.relkind WHEN 'p' THEN format('-- Blocks writes while it builds: CONCURRENTLY does not work on a partitioned table.' || E'\nCREATE INDEX ON %s (%s);', c.conrelid::regclass, k.columns)
				ELSE format('CREATE INDEX CONCURRENTLY ON %s (%s);', c.conrelid::regclass, k.columns) END
		FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid CROSS JOIN LATERAL (
			SELECT array_agg(u.attnum ORDER BY u.n) AS attnums, array_agg(u.equals ORDER BY u.n) AS equals, string_agg(format('%I', a.attname), ', ' ORDER BY u.n) AS columns
			FROM unnest(c.conkey, c.conpfeqop) WITH ORDINALITY u (attnum, equals, n) JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = u.attnum
			WHERE u.n < cardinality(c.conkey) OR to_jsonb(c) ->> 'conperiod' IS DISTINCT FROM 'true'
		) k
		WHERE c.contype = 'f' AND c.confrelid = 'public.plants'::regclass AND c.conparentid = 0 AND to_jsonb(c) ->> 'conenforced' IS DISTINCT FROM 'false'
			AND NOT EXISTS (
				SELECT FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid JOIN pg_am am ON am.oid = ic.relam
				WHERE i.indrelid = c.conrelid AND i.indisvalid AND i.indpred IS NULL AND am.amname <> 'brin'
					AND (i.indkey::int2[])[0:cardinality(k.attnums) - 1] @> k.attnums
					AND NOT EXISTS (
						SELECT FROM unnest(k.attnums, k.equals) AS key (attnum, equals)
						WHERE NOT EXISTS (
							SELECT FROM unnest(i.indkey::int2[], i.indclass::oid[]) AS part (attnum, class)
							JOIN pg_opclass oc ON oc.oid = part.class JOIN pg_amop ao ON ao.amopfamily = oc.opcfamily JOIN pg_operator o ON o.oid = ao.amopopr
							WHERE part.attnum = key.attnum AND o.oprcom = key.equals)))
		ORDER BY pg_table_size(c.conrelid) DESC, c.conname`)
	if err != nil {
		return nil, err
	}
	found, err := collect(rows, Warning)
	return orFine(found, "every table that refers to plants has an index for it"), err
}

// PostgreSQL looks for rows that refer to a plant, and deletes or changes them, with the rights
// of their table's owner. Where nothing says what else to do with them (NO ACTION), and to set a
// default, it looks for another row to refer to first, as the owner of the table that has it.
// These may lack rights: on their own table, or on its schema. Then nobody can delete a plant, not
// even one that nothing refers to; further down, none that a cascade begins with.
const referringRights = `
	WITH RECURSIVE keys AS (
		SELECT * FROM pg_constraint c WHERE c.contype = 'f' AND c.conparentid = 0 AND to_jsonb(c) ->> 'conenforced' IS DISTINCT FROM 'false'
	), referring AS (
		SELECT k.conname, k.conrelid, k.confrelid, k.confdeltype, true AS always FROM keys k WHERE k.confrelid = to_regclass('public.plants')
		UNION SELECT k.conname, k.conrelid, k.confrelid, k.confdeltype, false FROM referring r JOIN keys k ON k.confrelid = r.conrelid WHERE r.confdeltype = 'c'
	), asked AS (
		SELECT r.conname, r.conrelid, r.always, p.relation, p.privilege FROM referring r, LATERAL (VALUES
			(true, r.conrelid, 'SELECT'), (true, r.conrelid, CASE r.confdeltype WHEN 'c' THEN 'DELETE' ELSE 'UPDATE' END),
			(r.confdeltype IN ('a', 'd'), r.confrelid, 'SELECT'), (r.confdeltype IN ('a', 'd'), r.confrelid, 'UPDATE')) p (asked, relation, privilege) WHERE p.asked
	)
	SELECT CASE WHEN bool_or(a.always) THEN 'problem' ELSE 'warning' END,
		format('PostgreSQL refuses to delete %s: foreign key %I of %s works as %s, who lacks %s', CASE WHEN bool_or(a.always) THEN 'plants' ELSE 'some plants' END,
			a.conname, a.conrelid::regclass, o.rolname, string_agg(DISTINCT m.privilege, ', ')),
		string_agg(DISTINCT format('GRANT %s TO %I;', m.privilege, o.rolname), E'\n')
	FROM asked a JOIN pg_class t ON t.oid = a.relation JOIN pg_namespace n ON n.oid = t.relnamespace JOIN pg_roles o ON o.oid = t.relowner,
		LATERAL (VALUES
			(format('USAGE ON SCHEMA %I', n.nspname), has_schema_privilege(o.oid, n.oid, 'USAGE')),
			(format('%s ON %s', a.privilege, t.oid::regclass), CASE a.privilege WHEN 'DELETE' THEN has_table_privilege(o.oid, t.oid, 'DELETE') ELSE has_any_column_privilege(o.oid, t.oid, a.privilege) END)
		) m (privilege, granted)
	WHERE NOT m.granted GROUP BY a.conname, a.conrelid, o.rolname ORDER BY 1, 2`

// cascades finds what a deletion does to other tables, which no ledger records.
func (e *examination) cascades(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	// Rows of plants that a cascade removes are in the ledger. The number of
	// rows is an estimate: -1 before the first ANALYZE. A published row without a
	// replica identity can't be deleted or changed, and so neither its plant be deleted.
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE acting AS (
			SELECT oid, conrelid, confrelid, confdeltype FROM pg_constraint c
			WHERE contype = 'f' AND conparentid = 0 AND confdeltype IN ('c', 'n', 'd') AND to_jsonb(c) ->> 'conenforced' IS DISTINCT FROM 'false'
		), reach AS (
			SELECT *, ARRAY[confrelid, conrelid] AS path FROM acting WHERE confrelid = 'public.plants'::regclass
			UNION ALL
			SELECT a.*, r.path || a.conrelid FROM reach r JOIN acting a ON a.confrelid = r.conrelid
			WHERE r.confdeltype = 'c' AND NOT a.conrelid = ANY (r.path)
		)
		SELECT DISTINCT format('deleting a plant also %s %s%s, which the ledger does not keep: %s',
				CASE r.confdeltype WHEN 'c' THEN 'removes rows of' WHEN 'n' THEN 'empties columns of' ELSE 'changes columns of' END,
				r.conrelid::regclass,
				CASE WHEN cardinality(r.path) > 2 THEN format(' by way of %s', array_to_string(r.path[2:cardinality(r.path) - 1]::regclass[], ', ')) ELSE '' END,
				CASE WHEN t.reltuples < 0 THEN 'ANALYZE tells how many' WHEN s.per IS NULL THEN format('%s rows in all', t.reltuples::bigint)
					ELSE format('about %s of its %s rows for each row of %s', round(s.per::numeric, 1), t.reltuples::bigint, r.confrelid::regclass) END),
			format('ALTER TABLE %s DROP CONSTRAINT %I, ADD CONSTRAINT %2$I %s%s;', r.conrelid::regclass, c.conname,
				regexp_replace(regexp_replace(pg_get_constraintdef(c.oid), ' NOT VALID$', ''), ' ON DELETE (CASCADE|SET NULL|SET DEFAULT)( \([^)]*\))?', ' ON DELETE RESTRICT'),
				CASE t.relkind WHEN 'p' THEN '' ELSE format(E' NOT VALID;\nALTER TABLE %s VALIDATE CONSTRAINT %I', r.conrelid::regclass, c.conname) END)
		FROM reach r JOIN pg_constraint c ON c.oid = r.oid JOIN pg_class t ON t.oid = r.conrelid JOIN pg_namespace n ON n.oid = t.relnamespace
		LEFT JOIN LATERAL (
			SELECT t.reltuples * (1 - p.null_frac) / nullif(CASE WHEN p.n_distinct < 0 THEN -p.n_distinct * t.reltuples ELSE p.n_distinct END, 0) AS per
			FROM pg_stats p JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = c.conkey[1] AND a.attname = p.attname
			WHERE p.schemaname = n.nspname AND p.tablename = t.relname AND p.inherited = (t.relkind = 'p')
		) s ON true
		WHERE NOT (r.conrelid = 'public.plants'::regclass AND r.confdeltype = 'c')
		UNION
		SELECT format('publication %I publishes what deleting a plant does to %s, which has no replica identity: PostgreSQL refuses to delete plants that rows of it refer to', p.pubname, r.conrelid::regclass),
			format('ALTER TABLE %s REPLICA IDENTITY FULL;', r.conrelid::regclass)
		FROM reach r JOIN pg_class t ON t.oid = r.conrelid JOIN pg_namespace n ON n.oid = t.relnamespace
			JOIN pg_publication_tables l ON l.schemaname = n.nspname AND l.tablename = t.relname
			JOIN pg_publication p ON p.pubname = l.pubname AND CASE r.confdeltype WHEN 'c' THEN p.pubdelete ELSE p.pubupdate END
		WHERE t.relreplident <> 'f' AND r.conrelid <> 'public.plants'::regclass AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = t.oid
			AND CASE t.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate ELSE i.indisreplident END)
		ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	found, err := collect(rows, Warning)
	return orFine(found, "deleting a plant changes no other table"), err
}
