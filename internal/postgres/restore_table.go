package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A table is public.plants as it is today.
type table struct {
	encoding   string // of the database
	primaryKey string // the constraint's name, empty if there is none
	oid        uint32
	ruled      bool // it has rules for INSERT
	columns    map[string]column
	names      map[int16]string // of the columns, by their numbers
	dropped    map[int16]bool   // the numbers of those that are gone
}

// A column is one of plants.
type column struct {
	Number     int16
	Name, Type string // Type as SQL spells it
	Generated  string // how it computes itself: s (stored), v (virtual) or empty
	raw        []byte // Name in the encoding of the database
}

// quoted is the column's name as SQL, in the encoding of the database.
func (c column) quoted() string { return pgx.Identifier{string(c.raw)}.Sanitize() }

// readTable reads the table in its present form, which a lock keeps as it is. A view runs
// its query for whoever reads it, and a partition what its parent's key calls: where the
// name is no longer that of an ordinary table, nothing may be asked of it.
func readTable(ctx context.Context, tx pgx.Tx) (table, error) {
	t := table{columns: make(map[string]column), names: make(map[int16]string), dropped: make(map[int16]bool)}
	var ordinary bool
	if err := tx.QueryRow(ctx, `SELECT relkind = 'r' AND NOT relispartition FROM pg_class
		WHERE oid = 'public.plants'::regclass`).Scan(&ordinary); err != nil {
		return t, err
	}
	if !ordinary {
		return t, errors.New("public.plants is not an ordinary table any more: plants are restored into one only; see 'plantstore doctor'")
	}
	rows, err := tx.Query(ctx, `
		SELECT attnum, attname, convert_to(attname::text, getdatabaseencoding()), format_type(atttypid, atttypmod), attgenerated::text, attisdropped FROM pg_attribute
		WHERE attrelid = 'public.plants'::regclass AND attnum > 0`)
	if err != nil {
		return t, err
	}
	var c column
	var dropped bool
	if _, err := pgx.ForEachRow(rows, []any{&c.Number, &c.Name, &c.raw, &c.Type, &c.Generated, &dropped}, func() error {
		if dropped {
			t.dropped[c.Number] = true
		} else {
			t.columns[c.Name], t.names[c.Number] = c, c.Name
		}
		return nil
	}); err != nil {
		return t, err
	}
	if id, there := t.columns["id"]; !there || id.Generated != "" || id.Type != "bigint" { // a cast of another type is its owner's code
		return t, errors.New("public.plants has no column id of type bigint that can be written any more")
	}
	return t, tx.QueryRow(ctx, `
		SELECT 'public.plants'::regclass::oid, getdatabaseencoding(), coalesce((SELECT conname FROM pg_constraint
			WHERE conrelid = 'public.plants'::regclass AND contype = 'p'), ''),
			EXISTS (SELECT FROM pg_rewrite WHERE ev_class = 'public.plants'::regclass AND ev_type = '3')`).Scan(&t.oid, &t.encoding, &t.primaryKey, &t.ruled)
}

// A plan is how rows of a shape go into today's table.
type plan struct {
	shape
	into []int    // which values are inserted
	copy string   // the statement that inserts them, in the encoding of the database
	read []string // the values of the row that they make, of the table as p, as in the shape
	// unrecorded are columns that computed themselves and do so no longer.
	unrecorded []string
	defaulted  []string // columns that the shape has no value for
	// remade are columns that have the name of one of the shape, which is gone.
	remade  []string
	retyped []string // columns that have another type today, and both types
	// renamed are columns, by their places in the shape, that are called otherwise today;
	// doubted are those that may be while another one has their name.
	renamed, doubted map[int]string
	// replaced are columns that are gone while another one of the shape has their name: with
	// what that was called.
	replaced map[int]string
}

// plan reads the table and makes plans for all shapes of entries.
func (r *restore) plan(ctx context.Context, entries []entry) error {
	var err error
	if r.table, err = readTable(ctx, r.tx); err != nil {
		return err
	}
	shapes := make(map[int64]bool)
	for _, e := range entries {
		shapes[e.Shape] = true
	}
	rows, err := r.tx.Query(ctx, `SELECT id, names, types, generated, coalesce(relation, 0), attnums FROM public.plant_shapes WHERE id = ANY ($1)`,
		slices.Collect(maps.Keys(shapes)))
	if err != nil {
		return err
	}
	r.plans = make(map[int64]*plan)
	var id int64
	var s shape
	var relation uint32
	var numbers []int16
	if _, err := pgx.ForEachRow(rows, []any{&id, &s.names, &s.types, &s.generated, &relation, &numbers}, func() error {
		p := r.table.plan(s)
		if relation == r.table.oid && r.table.had(numbers) {
			p.identify(r.table, numbers)
		} else { // a copy of the table, as from a dump, has numbers of its own
			p.doubted = r.table.doubted(s)
		}
		r.plans[id] = p
		s, numbers = shape{}, nil
		return nil
	}); err != nil {
		return err
	}
	for id := range shapes {
		if r.plans[id] == nil {
			return fmt.Errorf("public.plant_shapes has no shape %d: without it, nobody knows what columns the plants had", id)
		}
	}
	return nil
}

func (t *table) plan(s shape) *plan {
	p := &plan{shape: s}
	var names []string
	has := make(map[string]bool)
	for i, name := range s.names {
		c, there := t.columns[name]
		switch {
		case !there, s.generated[i] && c.Generated == "v":
			p.read = append(p.read, "NULL")
		default:
			p.read = append(p.read, "p."+pgx.Identifier{name}.Sanitize())
		}
		if !there || c.Generated != "" {
			continue
		}
		if s.generated[i] {
			p.unrecorded = append(p.unrecorded, name)
			continue
		}
		has[name] = true
		p.into = append(p.into, i)
		names = append(names, c.quoted())
		if c.Type != s.types[i] {
			p.retyped = append(p.retyped, columnOf(name, s.types[i], c.Type))
		}
	}
	for name, c := range t.columns {
		if !has[name] && c.Generated == "" {
			p.defaulted = append(p.defaulted, name)
		}
	}
	p.copy = fmt.Sprintf(`COPY public.plants (%s) FROM STDIN (ENCODING '%s')`, strings.Join(names, ", "), t.encoding)
	return p
}

// had reports whether this table can have had columns with these numbers, and at that
// time no others. A column keeps its number, also when it is dropped, and new ones come
// last. A copy that was made from a dump numbers its columns anew, without those that are
// gone; in a server of its own it may have the table's oid all the same. So numbers tell of
// doubts, and not where a value goes.
func (t *table) had(numbers []int16) bool {
	for n := range slices.Max(append([]int16{0}, numbers...)) {
		_, there := t.names[n+1]
		if !t.dropped[n+1] && !(there && slices.Contains(numbers, n+1)) {
			return false
		}
	}
	return true
}

// identify finds out which of a shape's columns today's are, by the numbers that they had.
func (p *plan) identify(t table, numbers []int16) {
	p.renamed, p.replaced = make(map[int]string), make(map[int]string)
	for i, number := range numbers {
		name := p.names[i]
		c, there := t.columns[name]
		today, alive := t.names[number]
		switch {
		case alive && today != name:
			p.renamed[i] = today
			if !slices.Contains(p.names, today) { // nothing of the row goes there, and its default may
				p.read[i] = "p." + pgx.Identifier{today}.Sanitize()
			}
		case alive || !there || !slices.Contains(p.into, i):
		case slices.Contains(numbers, c.Number):
			p.replaced[i] = p.names[slices.Index(numbers, c.Number)]
		default:
			p.remade = append(p.remade, name)
		}
	}
}

// formerly returns what a column of today was called, if it was called otherwise.
func (p *plan) formerly(today string) string {
	for i, name := range p.renamed {
		if name == today {
			return p.names[i]
		}
	}
	return ""
}

// doubted returns for those columns of a shape that may be called otherwise in a copy of
// the table, while another one has their name, what they may be called. A copy keeps the
// order of the columns, and new ones come last. So where two of a type stand the other
// way round, or one stands behind a new one of its type, there was a renaming.
func (t *table) doubted(s shape) map[int]string {
	doubted := make(map[int]string)
	var before []string
	for _, number := range slices.Sorted(maps.Keys(t.names)) {
		name := t.names[number]
		i := slices.Index(s.names, name)
		for _, other := range before {
			switch o := slices.Index(s.names, other); {
			case i < 0 || o >= 0 && o < i:
			case o < 0 && s.types[i] == t.columns[other].Type:
				doubted[i] = other
			case o >= 0 && (s.types[i] == t.columns[other].Type || s.types[o] == t.columns[name].Type):
				doubted[i], doubted[o] = other, name
			}
		}
		before = append(before, name)
	}
	delete(doubted, slices.Index(s.names, "id")) // each deletion has its plant's id beside the row
	return doubted
}

// inserted returns those of a row's values that go into the table.
func (p *plan) inserted(values [][]byte) [][]byte {
	picked := make([][]byte, len(p.into))
	for i, n := range p.into {
		picked[i] = values[n]
	}
	return picked
}

// given returns the columns that every row has a value for.
func (r *restore) given() []string {
	defaulted := r.defaulted()
	var given []string
	for name, c := range r.table.columns {
		if _, found := slices.BinarySearch(defaulted, name); !found && c.Generated == "" {
			given = append(given, name)
		}
	}
	return given
}

// defaulted returns the columns that some row has no value for, sorted.
func (r *restore) defaulted() []string {
	return r.columns(func(p *plan) []string { return p.defaulted })
}

// remade returns the columns that took the values of others of their names, sorted.
func (r *restore) remade() []string {
	return r.columns(func(p *plan) []string { return p.remade })
}

// retyped returns the columns that took values as another type, in words, sorted.
func (r *restore) retyped() []string {
	return r.columns(func(p *plan) []string { return p.retyped })
}

// columns returns the names that some plan has, sorted.
func (r *restore) columns(of func(*plan) []string) []string {
	names := make(map[string]bool)
	for _, p := range r.plans {
		for _, name := range of(p) {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// compare returns what of entries is not in the table as it was recorded, and which
// of them are not there at all. Unless losses are accepted, it stops when it has
// found enough, and tells if there may be more.
//
// A row that is as it was recorded has the same text. Only the others are looked at
// column by column.
func (r *restore) compare(ctx context.Context, entries []entry) (losses []Refusal, keptOut map[int64]bool, more bool, err error) {
	keptOut = make(map[int64]bool)
	for _, batch := range inBatches(entries, r.batch) {
		for _, same := range alike(batch, func(e entry) int64 { return e.Shape }) {
			found, err := r.compareAlike(ctx, same, keptOut)
			if err != nil {
				return nil, nil, false, err
			}
			losses = append(losses, found...)
			r.tell("compared", &r.compared, same)
			if len(losses) >= enoughRefusals && !r.options.Lossy {
				return losses, keptOut, r.compared < len(entries), nil
			}
		}
	}
	sortRefusals(losses)
	return losses, keptOut, false, nil
}

// compareAlike is compare for entries of one shape.
func (r *restore) compareAlike(ctx context.Context, entries []entry, keptOut map[int64]bool) ([]Refusal, error) {
	p := r.plans[entries[0].Shape]
	row := "ROW(" + strings.Join(p.read, ", ") + ")::text"
	rows, err := r.tx.Query(ctx, fmt.Sprintf(`
		SELECT d.id, d.plant_id, p.id IS NULL, convert_to(d.plant, getdatabaseencoding()), convert_to(%[1]s, getdatabaseencoding())
		FROM public.plant_deletions d LEFT JOIN ONLY public.plants p ON p.id = d.plant_id
		WHERE d.id = ANY ($1) AND (p.id IS NULL OR $2 OR d.plant COLLATE "C" <> %[1]s COLLATE "C")
		ORDER BY d.id DESC`, row), idsOf(entries), len(p.unrecorded)+len(p.renamed)+len(p.replaced)+len(p.doubted) > 0)
	if err != nil {
		return nil, err
	}
	var all []difference
	var id, plant int64
	var missing bool
	var was, is []byte
	if _, err := pgx.ForEachRow(rows, []any{&id, &plant, &missing, &was, &is}, func() error {
		if missing {
			keptOut[id] = true
			all = append(all, difference{id: id, plant: plant, why: func(_, _ string) string { return "a trigger on plants kept the row out" }})
			return nil
		}
		found, err := r.differences(id, p, was, is)
		for _, d := range found {
			d.id, d.plant = id, plant
			all = append(all, d)
		}
		return err
	}); err != nil {
		return nil, err
	}
	texts := make([][]byte, 0, 2*len(all))
	for _, d := range all {
		texts = append(texts, d.was, d.is)
	}
	raw, err := translate(ctx, r.tx, texts)
	if err != nil {
		return nil, err
	}
	var losses []Refusal
	for i, d := range all {
		was, is := texts[2*i], texts[2*i+1]
		losses = append(losses, Refusal{ID: d.id, Plant: d.plant, Unless: "lossy", Why: d.why(excerpt(was, is, raw[2*i]), excerpt(is, was, raw[2*i+1]))})
	}
	return losses, nil
}

// A difference is what of a deletion is not in the table as it was recorded.
type difference struct {
	id, plant int64
	was, is   []byte // the values that it tells of, in the encoding of the database
	why       func(was, is string) string
}

// differences returns in which columns the row that is there differs from the one that
// was recorded.
func (r *restore) differences(entry int64, p *plan, recorded, present []byte) ([]difference, error) {
	was, err := p.parse(entry, recorded)
	if err != nil {
		return nil, err
	}
	is, err := p.parse(entry, present)
	if err != nil {
		return nil, err
	}
	var all []difference
	for i, name := range p.names {
		c, there := r.table.columns[name]
		switch {
		case p.generated[i] && slices.Contains(p.unrecorded, name):
			all = append(all, difference{why: func(_, _ string) string {
				return fmt.Sprintf("column %s computed itself then and does not today: its value is not put back", strconv.Quote(name))
			}})
		case p.generated[i]:
		case p.renamed[i] != "" && was[i] != nil:
			where := " goes there"
			also := fmt.Sprintf(", and another one %s", strconv.Quote(name))
			if !there {
				where, also = " has no place", ""
			}
			all = append(all, difference{was: was[i], why: func(was, _ string) string {
				return fmt.Sprintf("column %s (%s) is called %s today%s: %s%s", strconv.Quote(name), visible(p.types[i]), strconv.Quote(p.renamed[i]), also, was, where)
			}})
		case p.renamed[i] != "" && is[i] != nil && !slices.Contains(p.names, p.renamed[i]):
			all = append(all, difference{is: is[i], why: func(_, is string) string {
				return fmt.Sprintf("column %s (%s) is called %s today: null becomes %s", strconv.Quote(name), visible(p.types[i]), strconv.Quote(p.renamed[i]), is)
			}})
		case p.replaced[i] != "" && was[i] != nil:
			all = append(all, difference{was: was[i], why: func(was, _ string) string {
				return fmt.Sprintf("column %[1]s (%[2]s) is gone, and the one that was called %[3]s is called %[1]s today: %[4]s goes there",
					strconv.Quote(name), visible(p.types[i]), strconv.Quote(p.replaced[i]), was)
			}})
		case !there && was[i] != nil:
			all = append(all, difference{was: was[i], why: func(was, _ string) string {
				return fmt.Sprintf("column %s (%s) is gone: %s has no place", strconv.Quote(name), visible(p.types[i]), was)
			}})
		case there && ((was[i] == nil) != (is[i] == nil) || !bytes.Equal(was[i], is[i])):
			all = append(all, difference{was: was[i], is: is[i], why: func(was, is string) string {
				return fmt.Sprintf("%s: %s becomes %s", columnOf(name, p.types[i], c.Type), was, is)
			}})
		case p.doubted[i] != "" && was[i] != nil:
			all = append(all, difference{was: was[i], why: func(was, _ string) string {
				return fmt.Sprintf("column %[1]s (%[2]s) may be called %[3]s today: this is a copy of the table, and its columns stand in another order: %[4]s goes to %[1]s",
					strconv.Quote(name), visible(p.types[i]), strconv.Quote(p.doubted[i]), was)
			}})
		}
	}
	return all, nil
}

// columnOf names a column and its types, then and now.
func columnOf(name, then, now string) string {
	if then == now {
		return fmt.Sprintf("column %s (%s)", strconv.Quote(name), visible(now))
	}
	return fmt.Sprintf("column %s (%s, today %s)", strconv.Quote(name), visible(then), visible(now))
}
