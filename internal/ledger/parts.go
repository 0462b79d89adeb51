package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A part is rows of a table that were recorded with the same columns: rows that were removed,
// or rows whose column changed was set to null or to its default.
type part struct {
	oid      uint32 // of the table
	plants   bool   // the table is public.plants, and these rows were removed
	name     string // of the table in SQL, with its schema
	only     string // name, with ONLY in front unless the table has partitions; empty if it is gone
	changed  string
	became   string  // what changed was set to, in SQL
	ids      []int64 // in plantstore.recorded
	names    []string
	types    []string // of the columns when plants were recorded
	escaped  bool     // values of type json have escapes that json's functions refuse
	today    []column
	reshaped bool   // columns are gone or have another type
	row      string // the temporary table with the recorded columns c0, c1 and so on
	fires    bool   // the table has the store's triggers on INSERT
}

// A column is one that a table has today.
type column struct {
	name      string
	typ       string // as regtype writes it
	reads     string // the type in SQL that truncates no values
	generated string // as in pg_attribute
	key       bool   // of the primary key
}

func (c column) quoted() string { return pgx.Identifier{c.name}.Sanitize() }

// refusePart refuses the part. Plants come back without rows of other tables if that is accepted.
func (r *restore) refusePart(p *part, format string, args ...any) {
	flag := plantsOnly
	if p.plants {
		flag = ""
	}
	r.refuse(flag, format, args...)
}

// of names a column in a message.
func (p *part) of(name string) string { return fmt.Sprintf("column %q of %s", name, p.name) }

// find returns today's column of a name.
func (p *part) find(name string) (column, bool) {
	i := slices.IndexFunc(p.today, func(c column) bool { return c.name == name })
	if i < 0 {
		return column{}, false
	}
	return p.today[i], true
}

// rows returns SQL for the recorded rows, as e, whose ids are in the list.
func (p *part) rows(ids string) string {
	not := ""
	if p.changed != "" {
		not = "NOT "
	}
	return fmt.Sprintf(`(SELECT * FROM plantstore.recorded WHERE relation = %s::regclass AND changed IS %sNULL AND id = ANY (%s)) e`, quoted(p.name), not, ids)
}

// then returns SQL for the recorded value of a column.
func (p *part) then(c column) string {
	return fmt.Sprintf("(%s ->> %s)::%s", readable("e.content"), quoted(c.name), c.reads)
}

// join returns SQL that joins the recorded rows e with those of the table p.
func (p *part) join() string {
	var same []string
	for _, c := range p.today {
		if c.key {
			same = append(same, fmt.Sprintf("p.%s = %s", c.quoted(), p.then(c)))
		}
	}
	return strings.Join(same, " AND ")
}

// parts reads the rows to restore: plants first, then other rows in the order in which they
// were recorded. From now on, nobody can change the tables' columns.
func (r *restore) parts(ctx context.Context, plants []Deletion) (inserted, changed []*part, err error) {
	rows, _ := r.Query(ctx, `
		WITH entries AS MATERIALIZED ( -- a row that several deletions took or changed comes back as the last one found it
			SELECT DISTINCT ON (relation, changed, became, key) relation, changed, became, id, types, ARRAY(SELECT json_object_keys(`+readable("content")+`)) AS names,
				content::text <> `+readable("content")+`::text AS escaped
			FROM plantstore.recorded WHERE deletion_id = ANY ($1) AND ($2 OR types IS NOT NULL) ORDER BY relation, changed, became, key, id DESC
		)
		SELECT relation::oid, types IS NOT NULL, relation::text, coalesce((SELECT CASE relkind WHEN 'p' THEN '' ELSE 'ONLY ' END FROM pg_class WHERE oid = relation) || relation::text, ''),
			coalesce(changed, ''), coalesce(became, ''), array_agg(id ORDER BY id), names, types::text[], bool_or(escaped)
		FROM entries GROUP BY relation, changed, became, names, types ORDER BY types IS NULL, min(id)`, idsOf(plants), !r.options.PlantsOnly)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*part, error) {
		var p part
		return &p, row.Scan(&p.oid, &p.plants, &p.name, &p.only, &p.changed, &p.became, &p.ids, &p.names, &p.types, &p.escaped)
	})
	if err != nil {
		return nil, nil, err
	}
	for n, p := range all {
		p.row = fmt.Sprintf("pg_temp.row_%d", n)
		if err := r.readColumns(ctx, p); err != nil {
			return nil, nil, err
		}
		if p.changed == "" {
			inserted = append(inserted, p)
		} else {
			changed = append(changed, p)
		}
	}
	if slices.ContainsFunc(all, func(p *part) bool { return p.reshaped }) {
		r.byHand = "BEGIN;\n" + settings + "\n"
		for _, p := range append(inserted, changed...) {
			r.byHand += p.byHand()
		}
		r.byHand += fmt.Sprintf("UPDATE plantstore.deletions SET restored_at = clock_timestamp(), restored_by = session_user WHERE id = ANY (%s);\nCOMMIT;", array(idsOf(plants)))
	}
	return inserted, changed, r.refused()
}

// array returns numbers as an array in SQL.
func array(ids []int64) string {
	return "'{" + strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]") + "}'"
}

// byHand returns SQL that restores from the JSON the values that today's columns can hold.
func (p *part) byHand() string {
	changed, ok := p.find(p.changed)
	switch {
	case p.today == nil, p.changed != "" && !ok:
		return ""
	case p.changed != "":
		return p.update(changed, array(p.ids)) + ";\n"
	}
	comment, content := "", "e.content"
	if p.escaped {
		comment, content = "-- \\u0000 and \\ud800 to \\udfff in values of type json come back as \\u0001.\n", readable("e.content")
	}
	var columns, values, types []string
	for _, c := range p.today {
		i := slices.Index(p.names, c.name)
		if c.generated != "" || i < 0 || p.plants && p.types[i] != c.typ {
			continue
		}
		columns, values = append(columns, c.quoted()), append(values, "p."+c.quoted())
		types = append(types, c.quoted()+" "+c.reads)
	}
	return fmt.Sprintf("%sINSERT INTO %s (%s) OVERRIDING SYSTEM VALUE\nSELECT %s\nFROM %s, json_to_record(%s) p (%s);\n",
		comment, p.name, strings.Join(columns, ", "), strings.Join(values, ", "), p.rows(array(p.ids)), content, strings.Join(types, ", "))
}

// readColumns locks the table, and refuses columns that have changed since.
func (r *restore) readColumns(ctx context.Context, p *part) error {
	if p.only == "" {
		r.refusePart(p, "rows are recorded of a table that was dropped (its oid was %s): plantstore.cascaded keeps them", p.name)
		return nil
	}
	if _, err := r.Exec(ctx, `LOCK TABLE `+p.name+` IN ROW EXCLUSIVE MODE`); err != nil {
		return err
	}
	rows, _ := r.Query(ctx, `
		SELECT attname, atttypid::regtype::text, format_type(atttypid, -1), attgenerated::text,
			EXISTS (SELECT FROM pg_constraint WHERE conrelid = $1 AND contype = 'p' AND attnum = ANY (conkey))
		FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, p.oid)
	var err error
	if p.today, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c column, err error) {
		err = row.Scan(&c.name, &c.typ, &c.reads, &c.generated, &c.key)
		return c, err
	}); err != nil {
		return err
	}
	if p.join() == "" || slices.ContainsFunc(p.today, func(c column) bool { return c.key && !slices.Contains(p.names, c.name) }) {
		r.refusePart(p, "%s has another primary key than when its rows left, or none", p.name)
	}
	if p.changed != "" {
		if _, ok := p.find(p.changed); !ok {
			r.refusePart(p, "%s is gone, and it was set to null or its default", p.of(p.changed))
			p.reshaped = true
		}
		return nil
	}
	for i, name := range p.names {
		c, ok := p.find(name)
		switch {
		case !ok:
			r.refusePart(p, "%s is gone", p.of(name))
		case p.plants && c.typ != p.types[i]:
			r.refusePart(p, "%s is of type %s today, it was %s", p.of(name), c.typ, p.types[i])
		default:
			continue
		}
		p.reshaped = true
	}
	return nil
}

// prepare makes a temporary table with the recorded columns, to read the literals with its row
// type. It names new columns and triggers.
func (r *restore) prepare(ctx context.Context, p *part) error {
	columns := make([]string, len(p.names))
	for i, name := range p.names {
		c, _ := p.find(name)
		columns[i] = fmt.Sprintf("c%d %s", i, c.reads)
	}
	if _, err := r.Exec(ctx, fmt.Sprintf(`CREATE TEMPORARY TABLE %s (%s) ON COMMIT DROP`, p.row, strings.Join(columns, ", "))); err != nil {
		return err
	}
	for _, c := range p.today {
		if c.generated == "" && !slices.Contains(p.names, c.name) {
			r.notice("%s is new and takes its default", p.of(c.name))
		}
	}
	return r.refuseTriggers(ctx, p, insertTrigger)
}

// notice notes a difference once.
func (r *restore) notice(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(r.notices, text) {
		r.notices = append(r.notices, text)
	}
}

// keys runs a query that returns a text a row, and lists the texts for a message.
func (r *restore) keys(ctx context.Context, sql string, args ...any) (string, error) {
	rows, _ := r.Query(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for i := range found {
		found[i] = printable(found[i])
	}
	return strings.Join(limited(found), "; "), err
}

// Kinds of triggers, as in pg_trigger.
const (
	insertTrigger = 4
	updateTrigger = 16
)

// triggers names the store's triggers of a table and a kind.
func (r *restore) triggers(ctx context.Context, table uint32, kind int16) (string, error) {
	return r.keys(ctx, `SELECT format('%I (function %s)', tgname, tgfoid::regproc) FROM pg_trigger
		WHERE tgrelid = $1 AND NOT tgisinternal AND tgtype & $2 <> 0 AND tgenabled IN ('O', 'A')
			AND tgfoid IN (SELECT oid FROM pg_proc WHERE pronamespace <> 'plantstore'::regnamespace) ORDER BY tgname`, table, kind)
}

// refuseTriggers refuses the store's triggers, unless they may fire.
func (r *restore) refuseTriggers(ctx context.Context, p *part, kind int16) error {
	triggers, err := r.triggers(ctx, p.oid, kind)
	if p.fires = triggers != ""; p.fires && !r.options.FireTriggers {
		r.refuse(fireTriggers, "the store's triggers of %s fire: %s", p.name, triggers)
	}
	return err
}

// insert inserts the removed rows. Foreign keys are checked at the end of a statement, and
// rows of different tables may refer to each other: so it is one statement.
func (r *restore) insert(ctx context.Context, parts []*part) error {
	var inserts []string
	var args []any
	for n, p := range parts {
		var columns, values []string
		for i, name := range p.names {
			if c, _ := p.find(name); c.generated == "" {
				columns, values = append(columns, c.quoted()), append(values, fmt.Sprintf("(e.r).c%d", i))
			}
		}
		args = append(args, p.ids)
		inserts = append(inserts, fmt.Sprintf(`insert_%d AS (INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM (SELECT e.literal::%s AS r FROM %s ORDER BY e.id OFFSET 0) e)`,
			n, p.name, strings.Join(columns, ", "), strings.Join(values, ", "), p.row, p.rows(fmt.Sprintf("$%d", n+1))))
	}
	_, err := r.asTheStore(ctx, "", "WITH "+strings.Join(inserts, ", ")+" SELECT", args...)
	return err
}

// asTheStore executes SQL with the session's search path, for functions of the store, and
// returns the number of rows. Values, constraints and functions that do not fit are refused,
// with the flag or that of their table.
func (r *restore) asTheStore(ctx context.Context, flag, sql string, args ...any) (n int, err error) {
	const setPath = `SELECT set_config('search_path', $1, true)`
	if _, err := r.Exec(ctx, setPath, r.path); err != nil {
		return n, err
	}
	done, err := r.Exec(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains([]string{"22", "23", "42", "P0"}, pg.Code[:2]) && pg.Code != "42501" {
		if pg.TableName != "" && pg.TableName != "plants" {
			flag = plantsOnly
		}
		r.refuse(flag, "%s", strings.TrimSuffix(pg.Message+": "+pg.Detail, ": "))
		return n, r.refused()
	}
	if err != nil {
		return n, err
	}
	_, err = r.Exec(ctx, setPath, "pg_catalog, pg_temp")
	return int(done.RowsAffected()), err
}

// compare compares the inserted rows with the recorded ones. Virtual columns were recorded as
// null.
func (r *restore) compare(ctx context.Context, p *part) error {
	columns := make([]string, len(p.names))
	for i, name := range p.names {
		c, _ := p.find(name)
		if columns[i] = "p." + c.quoted(); c.generated == "v" {
			columns[i] = "NULL"
		}
	}
	now := "ROW(" + strings.Join(columns, ", ") + ")::text"
	missing, err := r.keys(ctx, fmt.Sprintf(`SELECT e.key FROM %s LEFT JOIN %s p ON %s WHERE p.tableoid IS NULL ORDER BY e.id`, p.rows("$1"), p.only, p.join()), p.ids)
	if err != nil {
		return err
	}
	if missing != "" {
		r.refusePart(p, "%s: rows that a trigger did not let in, or gave another key: %s", p.name, missing)
	}
	different, err := r.keys(ctx, fmt.Sprintf(`SELECT format('%%s, from %%s to %%s', e.key, left(e.literal, 200), left(%s, 200)) FROM %s JOIN %s p ON %s WHERE %[1]s <> e.literal ORDER BY e.id`, now, p.rows("$1"), p.only, p.join()), p.ids)
	switch {
	case err != nil || different == "":
	case p.fires:
		r.notice("%s: rows that come back changed by a trigger: %s", p.name, different)
	default:
		r.refusePart(p, "%s: rows that come back changed: %s", p.name, different)
	}
	return err
}

// update returns SQL that gives a changed column its earlier value, if it still has the value
// that the foreign key left. A later deletion may have left the same value.
func (p *part) update(c column, ids string) string {
	unchanged := fmt.Sprintf("p.%s IS NOT DISTINCT FROM (%s)", c.quoted(), p.became)
	const newest = "NOT EXISTS (SELECT FROM plantstore.cascaded l WHERE l.key = e.key AND l.relation = e.relation AND l.changed = e.changed AND l.deletion_id > e.deletion_id)"
	return fmt.Sprintf("UPDATE %s p SET %s = %s FROM %s\nWHERE %s AND %s\n    AND %s", p.only, c.quoted(), p.then(c), p.rows(ids), p.join(), unchanged, newest)
}

// changeBack gives changed columns their values back, and names the rows that it left alone.
func (r *restore) changeBack(ctx context.Context, p *part) (int, error) {
	c, _ := p.find(p.changed)
	n, err := r.asTheStore(ctx, plantsOnly, p.update(c, "$1"), p.ids)
	if err != nil {
		return n, err
	}
	left, err := r.keys(ctx, fmt.Sprintf(`SELECT e.key FROM %s WHERE NOT EXISTS (SELECT FROM %s p WHERE %s AND p.%s IS NOT DISTINCT FROM %s) ORDER BY e.id`, p.rows("$1"), p.only, p.join(), c.quoted(), p.then(c)), p.ids)
	if err != nil || left == "" {
		return n, err
	}
	text := fmt.Sprintf("%s: rows that are gone, or whose column %q has another value since: %s", p.name, p.changed, left)
	if r.options.SkipExisting {
		r.notice("left out, %s", text)
	} else {
		r.refuse(skipExisting, "%s", text)
	}
	return n, nil
}
