package postgres

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// aboutRows reports whether an error can be due to the rows that were inserted,
// and not to the moment, the server or our rights only.
func aboutRows(pg *pgconn.PgError) bool {
	switch class(pg) {
	case "08", "25", "28", "40", "53", "55", "57", "58":
		return false
	}
	return pg.Code != insufficientPrivilege && pg.SeverityUnlocalized == "ERROR"
}

// refusals says why entries were refused, once that is taken back.
func (r *restore) refusals(ctx context.Context, entries []entry, errs []*pgconn.PgError) ([]Refusal, error) {
	there, err := plantsThere(ctx, r.tx, entries)
	if err != nil {
		return nil, err
	}
	var refusals []Refusal
	for i, e := range entries {
		taken := r.isTaken(errs[i])
		if taken && slices.Contains(there, e.Plant) {
			refusals = append(refusals, takenAgain(e))
			continue
		}
		why := r.whyRefused(errs[i], r.plans[e.Shape])
		if taken {
			why = "no plant has this id, but the row was refused as if one had, as where a trigger on plants gives rows other ids" + detailOf(errs[i])
		}
		if errs[i].TableName == "" { // no constraint of a table: it may be a value that does not fit
			at, refused, err := r.misfit(ctx, e)
			if err != nil {
				return nil, err
			}
			if refused != nil {
				p := r.plans[e.Shape]
				why = columnOf(p.names[at], p.types[at], r.table.columns[p.names[at]].Type) + ": " + said(refused)
			}
		}
		refusals = append(refusals, Refusal{ID: e.ID, Plant: e.Plant, Why: why})
	}
	return refusals, nil
}

// plantsThere returns which of the entries' plants are in the table.
func plantsThere(ctx context.Context, tx pgx.Tx, entries []entry) ([]int64, error) {
	rows, err := tx.Query(ctx, `SELECT id FROM ONLY public.plants WHERE id = ANY ($1)`, plantsOf(entries))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// isPlants reports whether an error is about the table.
func isPlants(pg *pgconn.PgError) bool { return pg.SchemaName == "public" && pg.TableName == "plants" }

// isTaken reports whether a row was refused because its id is that of a plant.
func (r *restore) isTaken(pg *pgconn.PgError) bool {
	return isPlants(pg) && pg.Code == uniqueViolation && pg.ConstraintName == r.table.primaryKey
}

// whyRefused says what kept a row from being inserted.
func (r *restore) whyRefused(pg *pgconn.PgError, p *plan) string {
	switch {
	case !isPlants(pg): // such as a table that a trigger fills
	case pg.Code == uniqueViolation:
		return "another row has a value that must be unique" + detailOf(pg)
	case pg.Code == "23503": // foreign_key_violation
		return "a row that it refers to is not there" + detailOf(pg)
	case pg.Code == "23502" && p.formerly(pg.ColumnName) != "": // not_null_violation
		return fmt.Sprintf("column %s may not be null, and its value is that of %s, as it was called then: rename it back for the restore",
			strconv.Quote(pg.ColumnName), strconv.Quote(p.formerly(pg.ColumnName)))
	case pg.Code == "23502":
		return fmt.Sprintf("column %s may not be null, and the deleted row has no value for it", strconv.Quote(pg.ColumnName))
	}
	return said(pg)
}

// said is an error of the server's with its detail.
func said(pg *pgconn.PgError) string { return brief(Explain(pg)) + detailOf(pg) }

func detailOf(pg *pgconn.PgError) string {
	if pg.Detail == "" {
		return ""
	}
	return ": " + brief(strings.TrimSuffix(pg.Detail, "."))
}

// misfit looks for a value of e's row that the type of today's column does not
// take. It returns its place in the shape and the error, nil if there is none, or if nobody
// can tell: rules would be planned, too, and are others' code.
func (r *restore) misfit(ctx context.Context, e entry) (at int, refused *pgconn.PgError, err error) {
	if r.table.ruled {
		return 0, nil, nil
	}
	p := r.plans[e.Shape]
	var plant []byte
	if err := r.tx.QueryRow(ctx, `SELECT convert_to(plant, getdatabaseencoding()) FROM public.plant_deletions WHERE id = $1`, e.ID).Scan(&plant); err != nil {
		return 0, nil, err
	}
	values, err := p.parse(e.ID, plant)
	if err != nil {
		return 0, nil, err
	}
	suspects := p.into
	refused, err = r.try(ctx, p, values, suspects)
	for err == nil && refused != nil && len(suspects) > 1 {
		half := suspects[:len(suspects)/2]
		if refused, err = r.try(ctx, p, values, half); refused == nil && err == nil {
			half = suspects[len(half):]
			refused, err = r.try(ctx, p, values, half)
		}
		suspects = half
	}
	return suspects[0], refused, err
}

// try returns the error with which today's columns refuse some of a row's values, which
// are in the encoding of the database.
// A plan of an INSERT is made, for which the values are read and made to fit their
// columns. Nothing is inserted, and no trigger runs.
func (r *restore) try(ctx context.Context, p *plan, values [][]byte, some []int) (*pgconn.PgError, error) {
	var names, sources []string
	var parameters [][]byte
	for _, i := range p.into {
		names = append(names, r.table.columns[p.names[i]].quoted())
		source := "NULL"
		if slices.Contains(some, i) {
			parameters = append(parameters, values[i])
			source = "$" + strconv.Itoa(len(parameters))
		}
		sources = append(sources, source)
	}
	return r.onStoresPath(ctx, func() error {
		return r.tx.Conn().PgConn().ExecParams(ctx, fmt.Sprintf(
			`EXPLAIN INSERT INTO public.plants (%s) OVERRIDING SYSTEM VALUE VALUES (%s)`,
			strings.Join(names, ", "), strings.Join(sources, ", ")), parameters, nil, nil, nil).Read().Err
	})
}

// visible returns s with what is no visible character escaped, as others wrote it
// and it goes to a terminal.
func visible(s string) string {
	hidden := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	if !strings.ContainsFunc(s, hidden) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		if hidden(r) {
			quoted := strconv.Quote(s[:size])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteString(s[:size])
		}
		s = s[size:]
	}
	return b.String()
}

// brief returns a message, visible and of a length that fits a line or two.
func brief(message string) string { return visible(cut(message, 500)) }

// excerpt returns a value in quotes, for a message. Of a long one it shows where it
// begins to differ from other. A raw one is in another encoding than UTF-8.
func excerpt(value, other []byte, raw bool) string {
	if value == nil {
		return "null"
	}
	quote, begins := strconv.Quote, utf8.RuneStart
	if raw {
		quote, begins = quoteRaw, func(byte) bool { return true }
	}
	const shown, before = 60, 10
	same := 0
	for same < min(len(value), len(other)) && value[same] == other[same] {
		same++
	}
	lead, end := "", ""
	if from := same - before; len(value) > shown && from > 0 {
		for from > 0 && !begins(value[from]) {
			from--
		}
		lead, value = "…", value[from:]
	}
	if to := shown; len(value) > to {
		for to > 0 && !begins(value[to]) {
			to--
		}
		end, value = "…", value[:to]
	}
	return lead + quote(string(value)) + end
}

// cut returns s up to about size bytes.
func cut(s string, size int) string {
	if len(s) <= size {
		return s
	}
	for size > 0 && !utf8.RuneStart(s[size]) {
		size--
	}
	return s[:size] + "…"
}
