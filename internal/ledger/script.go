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

// Script writes the SQL that restores a selection of plants, for psql. It returns a *RefusedError
// where the table has changed since: then only Restore can.
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
	rows, _ := r.Query(ctx, `SELECT DISTINCT relation::text FROM plantstore.cascaded WHERE deletion_id = ANY ($1) ORDER BY 1`, idsOf(entries))
	cascaded, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	settings, err := r.settings(ctx)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "BEGIN;\n%s\n", settings)
	for _, t := range triggers {
		fmt.Fprintf(out, "-- fires the trigger %s\n", printable(t))
	}
	for _, table := range cascaded {
		fmt.Fprintf(out, "-- without what left with them in %s\n", printable(table))
	}
	fmt.Fprintf(out, "INSERT INTO public.plants (%s) OVERRIDING SYSTEM VALUE\nSELECT %s\nFROM (VALUES\n", strings.Join(inserted, ", "), strings.Join(values, ", "))
	rows, err = r.Query(ctx, `SELECT literal FROM plantstore.deletions WHERE id = ANY ($1) ORDER BY id`, idsOf(entries))
	if err != nil {
		return err
	}
	var literal string
	i := 0
	if _, err := pgx.ForEachRow(rows, []any{&literal}, func() error {
		fmt.Fprintf(out, "    -- %s\n    (%s::public.plants)", entries[i], quoted(literal))
		if i++; i < len(entries) {
			out.WriteByte(',')
		}
		_, err := out.WriteString("\n")
		return err
	}); err != nil {
		return err
	}
	fmt.Fprintf(out, ") v (plant);\nUPDATE plantstore.deletions SET restored_at = clock_timestamp(), restored_by = session_user\n"+
		"WHERE restored_at IS NULL AND id IN (%s);\nCOMMIT;\n", strings.Trim(strings.ReplaceAll(fmt.Sprint(idsOf(entries)), " ", ", "), "[]"))
	return out.Flush()
}

// settings returns SQL that reads values in the form in which they were recorded.
func (r *restore) settings(ctx context.Context) (sql string, err error) {
	err = r.QueryRow(ctx, `SELECT string_agg(format('SET LOCAL %s = %L;', name, current_setting(name)), ' ' ORDER BY n)
		FROM unnest('{datestyle,intervalstyle,timezone,lc_monetary,xmloption,array_nulls}'::text[]) WITH ORDINALITY s (name, n)`).Scan(&sql)
	return sql, err
}

// quoted returns a literal of SQL in one line, without tabs, which psql takes for a request
// to complete a word.
func quoted(s string) string {
	escaped := strings.NewReplacer(`\`, `\\`, `'`, `''`, "\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(s)
	if strings.Contains(escaped, `\`) {
		return "E'" + escaped + "'"
	}
	return "'" + escaped + "'"
}
