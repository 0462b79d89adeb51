package ledger

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Script writes the SQL that restores a selection of plants from the ledger, for psql. It returns
// a *RefusedError where the table has changed since: then only Restore can.
func Script(ctx context.Context, conn *pgx.Conn, s Selection, w io.Writer) error {
	r := restore{options: Options{PlantsOnly: true}}
	err := r.begin(ctx, conn)
	if r.Tx != nil {
		defer r.Rollback(context.WithoutCancel(ctx)) // it only reads
	}
	if err != nil {
		return err
	}
	entries, _, err := r.lockEntries(ctx, s)
	if err != nil || len(entries) == 0 {
		return err
	}
	parts, _, err := r.parts(ctx, entries)
	if err != nil {
		return err
	}
	var names, inserted, values []string
	for _, c := range parts[0].today { // all are of plants
		names = append(names, c.name)
		if c.generated == "" {
			inserted, values = append(inserted, c.quoted()), append(values, "(v.plant)."+c.quoted())
		}
	}
	for _, p := range parts {
		if !slices.Equal(p.names, names) {
			r.refuse("", "the columns of public.plants have changed since deletion %d: restore it without --sql", p.ids[0])
		}
	}
	if err := r.refused(); err != nil {
		return err
	}
	triggers, err := r.triggers(ctx, parts[0].oid, insertTrigger)
	if err != nil {
		return err
	}
	cascaded, err := r.keys(ctx, `SELECT DISTINCT relation::text FROM plantstore.cascaded WHERE deletion_id = ANY ($1) ORDER BY 1`, idsOf(entries))
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "BEGIN;\n%s\n", settings)
	for _, e := range entries {
		fmt.Fprintf(out, "-- %s\n", e)
	}
	if triggers != "" {
		fmt.Fprintf(out, "-- fires the store's triggers %s\n", triggers)
	}
	if cascaded != "" {
		fmt.Fprintf(out, "-- without what left with them in %s\n", cascaded)
	}
	fmt.Fprintf(out, `INSERT INTO public.plants (%s) OVERRIDING SYSTEM VALUE
SELECT %s
FROM (SELECT literal::public.plants AS plant FROM plantstore.deletions WHERE restored_at IS NULL AND id = ANY (%s) ORDER BY id OFFSET 0) v;
UPDATE plantstore.deletions SET restored_at = clock_timestamp(), restored_by = session_user WHERE restored_at IS NULL AND id = ANY (%[3]s);
COMMIT;
`, strings.Join(inserted, ", "), strings.Join(values, ", "), array(idsOf(entries)))
	return out.Flush()
}

// quoted returns a literal of SQL.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
