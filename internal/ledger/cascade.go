package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A cascade is what some deletions did to a watched table: they removed rows, or set one
// column of them to null or to its default.
type cascade struct {
	of      *relation
	changed string  // the column, or empty
	became  string  // what the foreign key set it to, in SQL
	ids     []int64 // in plantstore.cascaded
}

// cascades returns what is to come back with plants, parents before the tables that refer to
// them, and rows before changes. The tables keep their columns from now on.
func (r *restore) cascades(ctx context.Context, plants []Deletion) (all []*cascade, err error) {
	if r.options.PlantsOnly {
		return nil, nil
	}
	rows, _ := r.Query(ctx, `SELECT relation::text, (SELECT relkind::text FROM pg_class WHERE oid = relation), coalesce(changed, ''), coalesce(became, ''), array_agg(id ORDER BY id)
		FROM plantstore.cascaded WHERE deletion_id = ANY ($1)
		GROUP BY relation, changed, became ORDER BY changed IS NOT NULL, min(id)`, idsOf(plants))
	var name, changed, became string
	var kind *string
	var ids []int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &kind, &changed, &became, &ids}, func() error {
		if kind == nil {
			r.refuse(plantsOnly, "a table (once number %s) that rows left with the plants is gone", name)
			return nil
		}
		of := &relation{name: name, only: "ONLY " + name, ledger: "plantstore.cascaded", content: "content", types: "NULL::oid[]", row: "row"}
		if *kind == "p" {
			of.only = name
		}
		all = append(all, &cascade{of, changed, became, slices.Clone(ids)})
		return nil
	}); err != nil {
		return nil, err
	}
	return all, r.refused()
}

// prepare looks at the table, refuses keys that are taken, and returns the shapes of the rows
// to insert.
func (r *restore) prepare(ctx context.Context, c *cascade) ([]shape, error) {
	if _, err := r.Exec(ctx, `LOCK TABLE `+c.of.name+` IN ROW EXCLUSIVE MODE`); err != nil {
		return nil, err
	}
	if err := r.readColumns(ctx, c.of); err != nil {
		return nil, err
	}
	rows, _ := r.Query(ctx, `SELECT attname, format_type(atttypid, -1)
		FROM pg_constraint k, unnest(k.conkey) WITH ORDINALITY c (attnum, n), pg_attribute a
		WHERE k.conrelid = $1::text::regclass AND k.contype = 'p' AND a.attrelid = k.conrelid AND a.attnum = c.attnum ORDER BY c.n`, c.of.name)
	var joins, labels []string
	var name, typ string
	if _, err := pgx.ForEachRow(rows, []any{&name, &typ}, func() error {
		value := readable("e.content") + " ->> " + quoted(name)
		labels = append(labels, value)
		joins = append(joins, fmt.Sprintf("p.%s = (%s)::%s", pgx.Identifier{name}.Sanitize(), value, typ))
		return nil
	}); err != nil {
		return nil, err
	}
	if len(joins) == 0 {
		r.refuse(plantsOnly, "%s has no primary key any more", c.of.name)
		return nil, nil
	}
	c.of.label, c.of.join = "concat_ws(', ', "+strings.Join(labels, ", ")+")", strings.Join(joins, " AND ")
	var otherKey bool
	err := r.QueryRow(ctx, `SELECT EXISTS (SELECT FROM plantstore.cascaded e WHERE id = ANY ($1)
		GROUP BY deletion_id, `+strings.Join(labels, ", ")+` HAVING $2 AND count(DISTINCT literal) > 1 OR num_nulls(`+strings.Join(labels, ", ")+`) > 0)`, c.ids, c.changed == "").Scan(&otherKey)
	if err != nil {
		return nil, err
	}
	if otherKey {
		r.refuse(plantsOnly, "%s has another primary key than when its rows left", c.of.name)
		return nil, nil
	}
	value := "literal"
	if c.changed != "" {
		value = readable("e.content") + " ->> " + quoted(c.changed)
	}
	var several *string
	if err := r.QueryRow(ctx, `SELECT string_agg(label, '; ' ORDER BY label) FROM (SELECT `+c.of.label+` AS label
		FROM plantstore.cascaded e WHERE id = ANY ($1) GROUP BY `+strings.Join(labels, ", ")+` HAVING count(DISTINCT `+value+`) > 1 LIMIT $2) e`, c.ids, MaxListed).Scan(&several); err != nil {
		return nil, err
	}
	if several != nil {
		r.refuse(plantsOnly, "%s: several of these deletions recorded these rows with different values: %s; restore one deletion at a time", c.of.name, printable(*several))
		return nil, nil
	}
	// A row that several deletions took or changed comes back once.
	err = r.QueryRow(ctx, `SELECT array_agg(id ORDER BY id) FROM (SELECT max(id) AS id FROM plantstore.cascaded e WHERE id = ANY ($1) GROUP BY `+strings.Join(labels, ", ")+`) e`, c.ids).Scan(&c.ids)
	if err != nil {
		return nil, err
	}
	if c.changed != "" {
		if !slices.ContainsFunc(c.of.columns, func(k column) bool { return k.name == c.changed }) {
			r.refuse(plantsOnly, "%s is gone, and it was set to null or its default", c.of.column(c.changed))
		}
		return nil, r.refuseTriggers(ctx, c.of.name, updateTrigger)
	}
	if err := r.refuseTriggers(ctx, c.of.name, insertTrigger); err != nil {
		return nil, err
	}
	if err := r.leaveOut(ctx, c, `EXISTS (SELECT FROM `+c.of.only+` p WHERE `+c.of.join+`)`, c.of.name+": keys that are taken"); err != nil {
		return nil, err
	}
	return r.shapes(ctx, c.of, c.ids)
}

// leaveOut leaves rows out that meet a condition, and refuses or notes them. Rows to insert are
// never skipped, because their children would attach to the row that has the key now.
func (r *restore) leaveOut(ctx context.Context, c *cascade, condition, text string) error {
	rows, _ := r.Query(ctx, `SELECT e.id, `+c.of.label+` FROM plantstore.cascaded e WHERE e.id = ANY ($1) AND `+condition+` ORDER BY e.id`, c.ids)
	left := make(map[int64]bool)
	var keys []string
	var id int64
	var key string
	if _, err := pgx.ForEachRow(rows, []any{&id, &key}, func() error {
		left[id] = true
		keys = append(keys, printable(key))
		return nil
	}); err != nil || len(keys) == 0 {
		return err
	}
	c.ids = slices.DeleteFunc(c.ids, func(id int64) bool { return left[id] })
	if n := len(keys); n > MaxListed {
		keys = append(keys[:MaxListed], fmt.Sprintf("and %d more", n-MaxListed))
	}
	text += ": " + strings.Join(keys, "; ")
	switch {
	case c.changed == "":
		r.refuse(plantsOnly, "%s", text)
	case r.options.SkipExisting:
		r.notice("left out, %s", text)
	default:
		r.refuse(skipExisting, "%s", text)
	}
	return nil
}

// finish gives changed columns their values back, and makes sure that every row is there.
func (r *restore) finish(ctx context.Context, c *cascade, path string, done *Restored) error {
	there := c.of.join
	if c.changed != "" {
		i := slices.IndexFunc(c.of.columns, func(k column) bool { return k.name == c.changed })
		today := c.of.columns[i]
		value := fmt.Sprintf("(%s ->> %s)::%s", readable("e.content"), quoted(c.changed), today.typ)
		if err := r.asTheStore(ctx, path, func() error {
			_, err := r.Exec(ctx, fmt.Sprintf(`UPDATE %s p SET %s = %s FROM plantstore.cascaded e
				WHERE e.id = ANY ($1) AND %s AND p.%[2]s IS NOT DISTINCT FROM (%[5]s)`, c.of.only, today.quoted(), value, c.of.join, c.became), c.ids)
			return err
		}); err != nil {
			return err
		}
		there += fmt.Sprintf(" AND p.%s IS NOT DISTINCT FROM %s", today.quoted(), value)
	}
	missing := c.of.name + ": rows that a trigger did not let in, or gave another key"
	if c.changed != "" {
		missing = c.of.name + ": " + fmt.Sprintf("rows that are gone, or whose column %q has another value since", c.changed)
	}
	if err := r.leaveOut(ctx, c, `NOT EXISTS (SELECT FROM `+c.of.only+` p WHERE `+there+`)`, missing); err != nil {
		return err
	}
	if len(c.ids) > 0 {
		done.Cascaded = append(done.Cascaded, Cascaded{c.of.name, c.changed, len(c.ids)})
	}
	return nil
}
