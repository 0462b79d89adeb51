package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// pinSettings sets what record_deletion() sets, so that rows are written as it wrote them.
// It returns the search path from before.
func (r *restore) pinSettings(ctx context.Context) (path string, err error) {
	if err := r.QueryRow(ctx, `SELECT current_setting('search_path')`).Scan(&path); err != nil {
		return "", err
	}
	_, err = r.Exec(ctx, `SELECT set_config(split_part(c, '=', 1), substr(c, position('=' in c) + 1), true)
		FROM pg_proc, unnest(proconfig) c WHERE oid = 'plantstore.record_deletion()'::regprocedure`)
	return path, err
}

func (r *restore) setPath(ctx context.Context, path string) error {
	_, err := r.Exec(ctx, `SELECT set_config('search_path', $1, true)`, path)
	return err
}

// A relation is a table that rows come back to: public.plants, or a watched one.
type relation struct {
	name    string   // in SQL, with its schema
	only    string   // name, and ONLY in front of it unless it has partitions
	ledger  string   // the table that has its rows
	content string   // the column there that has a row to read
	types   string   // likewise with the types of its columns, or NULL
	row     string   // what a row is called
	label   string   // SQL that names a row e of the ledger in messages
	join    string   // of a row e of the ledger with its row p, in SQL
	columns []column // today
}

func plantsToday() *relation {
	return &relation{name: "public.plants", only: "ONLY public.plants", ledger: "plantstore.deletions", content: "plant", types: "types::oid[]", row: "plant", label: "e.plant_id::text", join: "p.id = e.plant_id"}
}

func (t *relation) counted(rows int) string {
	if rows == 1 {
		return "1 " + t.row
	}
	return strconv.Itoa(rows) + " " + t.row + "s"
}

// column names a column in a message.
func (t *relation) column(name string) string {
	if t.row == "plant" {
		return fmt.Sprintf("column %q", name)
	}
	return fmt.Sprintf("column %q of %s", name, t.name)
}

// A column is one that a relation has today.
type column struct {
	name, typ string
	oid       uint32 // of its type
	generated string // as in pg_attribute
	required  bool   // a row has to have a value
}

func (c column) quoted() string { return pgx.Identifier{c.name}.Sanitize() }

func (r *restore) readColumns(ctx context.Context, t *relation) (err error) {
	rows, _ := r.Query(ctx, `
		SELECT attname, format_type(atttypid, atttypmod), atttypid, attgenerated::text,
			(attnotnull OR typnotnull) AND NOT atthasdef AND attidentity = '' AND typdefault IS NULL
		FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
		WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, t.name)
	t.columns, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c column, err error) {
		err = row.Scan(&c.name, &c.typ, &c.oid, &c.generated, &c.required)
		return c, err
	})
	return err
}

// A shape is the columns that some entries were recorded with.
//
// Two temporary types read the literals. text_N of the shape N has a text attribute for each
// column, row_N has the type of today's column if there is one. The attributes are c0, c1 and
// so on. A later restore in the session makes other types of these names, so no statement that
// reads them may be cached: hence pgx.QueryExecModeExec.
type shape struct {
	of     *relation
	number int
	ids    []int64 // of the entries
	names  []string
	types  []uint32
	typ    []string          // their names, or "a dropped type"
	into   map[string]column // today's columns by the recorded names; without those that are gone
}

func (r *restore) shapes(ctx context.Context, of *relation, ids []int64) ([]shape, error) {
	rows, _ := r.Query(ctx, `
		WITH entries AS MATERIALIZED (
			SELECT id, `+of.types+` AS types, ARRAY(SELECT json_object_keys(`+readable(of.content)+`)) AS names FROM `+of.ledger+` WHERE id = ANY ($1)
		)
		SELECT array_agg(id ORDER BY id), names, types,
			ARRAY(SELECT CASE WHEN t.oid IS NULL THEN 'a dropped type' ELSE format_type(u.oid, NULL) END
				FROM unnest(types) WITH ORDINALITY u (oid, n) LEFT JOIN pg_type t ON t.oid = u.oid ORDER BY n)
		FROM entries GROUP BY names, types ORDER BY min(id)`, ids)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s shape, err error) {
		s = shape{of: of, number: r.shapesSoFar, into: make(map[string]column)}
		r.shapesSoFar++
		if err = row.Scan(&s.ids, &s.names, &s.types, &s.typ); err == nil && of.row == "plant" && len(s.names) != len(s.types) {
			err = fmt.Errorf("entry %d of %s has %d columns and %d types", s.ids[0], of.ledger, len(s.names), len(s.types))
		}
		return s, err
	})
}

// checkRenames refuses renames that fit no columns, and reports whether all fit.
func (r *restore) checkRenames(shapes []shape, today *relation) bool {
	before := len(r.reasons)
	for _, was := range slices.Sorted(maps.Keys(r.options.Rename)) {
		is := r.options.Rename[was]
		switch {
		case was == "id" || is == "id":
			r.refuse("", "--rename %s=%s: the column id cannot be renamed", was, is)
		case !slices.ContainsFunc(today.columns, func(c column) bool { return c.name == is }):
			r.refuse("", "--rename %s=%s: public.plants has no column %q", was, is, is)
		case !slices.ContainsFunc(shapes, func(s shape) bool { return slices.Contains(s.names, was) }):
			r.refuse("", "--rename %s=%s: no deleted plant has a column %q", was, is, was)
		}
	}
	return len(r.reasons) == before
}

// plan finds a column for each recorded one, and names the differences.
func (r *restore) plan(ctx context.Context, s *shape) error {
	rename := r.options.Rename
	if s.of.row != "plant" {
		rename = nil
	}
	free := slices.Clone(s.of.columns) // not taken by a recorded column
	take := func(was, is string) {
		if i := slices.IndexFunc(free, func(c column) bool { return c.name == is }); i >= 0 {
			s.into[was] = free[i]
			free = slices.Delete(free, i, i+1)
		}
	}
	for _, was := range s.names { // a renamed column comes before one that had its name
		if is, ok := rename[was]; ok {
			take(was, is)
		}
	}
	for _, was := range s.names {
		if _, ok := rename[was]; !ok {
			take(was, was)
		}
	}
	texts, types := make([]string, len(s.names)), make([]string, len(s.names))
	for i, was := range s.names {
		texts[i] = fmt.Sprintf("c%d text", i)
		types[i] = texts[i]
		if c, ok := s.into[was]; ok && c.generated == "" {
			types[i] = fmt.Sprintf("c%d %s", i, c.typ)
		}
	}
	if _, err := r.Exec(ctx, fmt.Sprintf(`CREATE TYPE pg_temp.text_%d AS (%s)`, s.number, strings.Join(texts, ", "))); err != nil {
		return err
	}
	if _, err := r.Exec(ctx, fmt.Sprintf(`CREATE TYPE pg_temp.row_%d AS (%s)`, s.number, strings.Join(types, ", "))); err != nil {
		return err
	}
	for i, was := range s.names {
		c, ok := s.into[was]
		switch {
		case !ok:
			if err := r.nameGone(ctx, s, i, free); err != nil {
				return err
			}
		case c.name != was:
			r.notice("%s is %q today", s.of.column(was), c.name)
			fallthrough
		default:
			if s.types != nil && c.oid != s.types[i] {
				r.notice("%s is of type %s today, it was %s", s.of.column(c.name), c.typ, s.typ[i])
			}
		}
	}
	for _, c := range free {
		switch {
		case c.generated != "":
		case c.required && !r.options.FireTriggers: // which may fill it
			r.refuse("", "%s is NOT NULL without a default, and deleted %ss have no value for it: give it a default until they are restored%s", s.of.column(c.name), s.of.row, s.of.renamed("OLD", c.name))
		case c.required:
			r.notice("%s is new, and the triggers have to fill it", s.of.column(c.name))
		default:
			r.notice("%s is new and takes its default", s.of.column(c.name))
		}
	}
	return nil
}

// nameGone names a recorded column that the table does not have.
func (r *restore) nameGone(ctx context.Context, s *shape, i int, free []column) error {
	var values int
	if err := r.QueryRow(ctx, fmt.Sprintf(`SELECT count(*) FROM %s WHERE id = ANY ($1) AND (literal::pg_temp.text_%d).c%d IS NOT NULL`, s.of.ledger, s.number, i), pgx.QueryExecModeExec, s.ids).Scan(&values); err != nil {
		return err
	}
	if values == 0 {
		r.notice("%s is gone; it had no values", s.of.column(s.names[i]))
		return nil
	}
	text := s.of.column(s.names[i])
	if s.types != nil {
		text += " (" + s.typ[i] + ")"
	}
	text += " is gone, with the values of " + s.of.counted(values)
	if r.options.Lossy {
		r.notice("%s", text)
		return nil
	}
	is := "NEW"
	fits := slices.DeleteFunc(slices.Clone(free), func(c column) bool { return s.types != nil && c.oid != s.types[i] || c.generated != "" })
	if len(fits) == 1 {
		is = fits[0].name
	}
	r.refuse(lossy, "%s%s", text, s.of.renamed(s.names[i], is))
	return nil
}

// renamed tells how to name a column of plants that was renamed.
func (t *relation) renamed(was, is string) string {
	if t.row != "plant" {
		return ""
	}
	return "; if it was renamed: --rename " + was + "=" + is
}

// insertion returns the INSERT of the shape's rows, with the entries' ids as a parameter. It
// leaves out plants whose ids are taken, and returns the ids of the others.
func (s *shape) insertion(parameter int) string {
	var columns, values []string
	for i, was := range s.names {
		if c, ok := s.into[was]; ok && c.generated == "" {
			columns = append(columns, c.quoted())
			values = append(values, fmt.Sprintf("(d.r).c%d", i))
		}
	}
	end := "RETURNING NULL::bigint AS id"
	if s.of.row == "plant" {
		end = "ON CONFLICT (id) DO NOTHING RETURNING id"
	}
	return fmt.Sprintf(`INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s
		FROM (SELECT literal::pg_temp.row_%d AS r FROM %s WHERE id = ANY ($%d) ORDER BY id OFFSET 0) d %s`,
		s.of.name, strings.Join(columns, ", "), strings.Join(values, ", "), s.number, s.of.ledger, parameter, end)
}

// compare names the columns whose values in the table differ from the ledger. was is the
// recorded text, read is what today's type makes of it, and now is in the table. If was and
// read are equal, a trigger changed the value, which is no loss. Rows that have the recorded
// text as a whole are not compared by column.
func (r *restore) compare(ctx context.Context, s *shape) error {
	var values, whole []string
	for i, was := range s.names {
		c, ok := s.into[was]
		recorded := fmt.Sprintf("ROW((e.was).c%d)::text", i)
		if !ok || c.generated == "v" {
			whole = append(whole, "NULL")
		} else {
			whole = append(whole, "p."+c.quoted())
		}
		switch {
		case !ok:
		case c.generated == "v": // a virtual column is recorded as null
			values = append(values, fmt.Sprintf("(%d, %s, %s, CASE WHEN (e.was).c%d IS NULL THEN '()' ELSE ROW(p.%s)::text END)", i, recorded, recorded, i, c.quoted()))
		case c.generated == "s":
			values = append(values, fmt.Sprintf("(%d, %s, %s, ROW(p.%s)::text)", i, recorded, recorded, c.quoted()))
		default:
			values = append(values, fmt.Sprintf("(%d, %s, ROW((e.read).c%d)::text, ROW(p.%s)::text)", i, recorded, i, c.quoted()))
		}
	}
	const shown = `coalesce(nullif(left(substr(%[1]s, 2, length(%[1]s) - 2), 60), ''), 'null')`
	rows, _ := r.Query(ctx, fmt.Sprintf(`
		SELECT DISTINCT ON (v.i, v.was <> v.read) v.i, v.was <> v.read, count(*) OVER (PARTITION BY v.i, v.was <> v.read), e.label, `+
		fmt.Sprintf(shown, "v.was")+`, `+fmt.Sprintf(shown, "v.now")+`
		FROM (SELECT e.*, %[6]s AS label, e.literal::pg_temp.text_%[1]d AS was, e.literal::pg_temp.row_%[1]d AS read
			FROM %[4]s e JOIN %[5]s p ON %[7]s
			WHERE e.id = ANY ($1) AND ROW(%[3]s)::text <> e.literal OFFSET 0) e
		JOIN %[5]s p ON %[7]s CROSS JOIN LATERAL (VALUES %[2]s) v (i, was, read, now)
		WHERE v.was <> v.read OR v.read <> v.now
		ORDER BY v.i, v.was <> v.read, e.id`, s.number, strings.Join(values, ", "), strings.Join(whole, ", "), s.of.ledger, s.of.only, s.of.label, s.of.join), pgx.QueryExecModeExec, s.ids)
	var i, count int
	var lost bool
	var label, was, now string
	_, err := pgx.ForEachRow(rows, []any{&i, &lost, &count, &label, &was, &now}, func() error {
		c := s.into[s.names[i]]
		text := fmt.Sprintf("%s comes back changed in %s, as in %s %s from %s to %s", s.of.column(c.name), s.of.counted(count), s.of.row, printable(label), printable(was), printable(now))
		switch {
		case !lost && r.options.FireTriggers:
			r.notice("%s: by a trigger", text)
		case r.options.Lossy:
			r.notice("%s", text)
		default:
			r.refuse(lossy, "%s", text)
		}
		return nil
	})
	return err
}
