package ledger_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/ledger"
	"plantstore/internal/pgtest"
)

// A randomTable has foreign keys, and rows with the keys 0 to n-1. Row 0 refers to nothing and
// stays.
type randomTable struct {
	name, typ string
	n         int
}

// A randomStore makes tables that a deletion of a plant reaches, all of them watched.
type randomStore struct {
	*rand.Rand
	t             *testing.T
	conn, deleter *pgx.Conn
	tables        []randomTable // the first one is plants
}

func (s *randomStore) oneOf(texts ...string) string { return texts[s.IntN(len(texts))] }

// reference adds a column to a table that refers to another one.
func (s *randomStore) reference(from, to randomTable, n int) (column string) {
	column = fmt.Sprintf(`"%s %d"`, s.oneOf("g", "gone", "tg_op", "d", `it's ""%s`, "Id"), n)
	pgtest.Execute(s.t, s.conn, fmt.Sprintf(`ALTER TABLE %s ADD %s %s %s REFERENCES %s ON DELETE %s %s`, from.name, column, to.typ,
		s.oneOf("", "DEFAULT '0'"), to.name, s.oneOf("CASCADE", "SET NULL", "SET DEFAULT"), s.oneOf("", "DEFERRABLE INITIALLY DEFERRED")))
	return column
}

// some returns a literal for a reference to a table: mostly a key.
func (s *randomStore) some(to randomTable) string {
	if to.n == 0 || s.IntN(5) == 0 {
		return "NULL"
	}
	return fmt.Sprintf("'%d'", s.IntN(to.n))
}

// add creates a table with rows, unless it can't be watched.
func (s *randomStore) add() {
	pgtest.Execute(s.t, s.conn, `BEGIN; SET CONSTRAINTS ALL IMMEDIATE`)
	n := len(s.tables)
	table := randomTable{name: fmt.Sprintf(s.oneOf(`public.t%d`, `public."T ""%%s"" %d"`, `store."gone' %d"`), n), typ: s.oneOf("int", "bigint", "smallint", "text", "varchar")}
	generated := "STORED"
	if value[int](s.t, s.conn, `SELECT current_setting('server_version_num')::int`) >= 180000 {
		generated = s.oneOf("STORED", "VIRTUAL")
	}
	create := fmt.Sprintf(`CREATE TABLE %s (id %s PRIMARY KEY, value float8, note json, twice float8 GENERATED ALWAYS AS (value * 2) %s)`, table.name, table.typ, generated)
	if s.IntN(4) == 0 {
		create += fmt.Sprintf(` PARTITION BY HASH (id); CREATE TABLE store.part%d PARTITION OF %s FOR VALUES WITH (MODULUS 2, REMAINDER 0);
			CREATE TABLE store."other part%[1]d" PARTITION OF %[2]s FOR VALUES WITH (MODULUS 2, REMAINDER 1)`, n, table.name)
	}
	pgtest.Execute(s.t, s.conn, create)
	columns := []string{"id", "value", "note"}
	var parents []randomTable
	for i := range 1 + s.IntN(3) {
		parents = append(parents, append(slices.Clone(s.tables), s.tables[0], table)[s.IntN(n+2)])
		columns = append(columns, s.reference(table, parents[i], i))
	}
	for size := 3 + s.IntN(10); table.n < size; table.n++ {
		values := []string{fmt.Sprintf("'%d'", table.n), s.oneOf("0.1 + 0.2::float8", "'-0'", "'NaN'", "NULL"), s.oneOf(`'{"a": 1,  "a": 2}'`, `'"\u0000"'`, "NULL")}
		for _, parent := range parents {
			switch {
			case table.n == 0:
				values = append(values, "NULL")
			case parent.name == table.name:
				values = append(values, s.some(table))
			default:
				values = append(values, s.some(parent))
			}
		}
		pgtest.Execute(s.t, s.conn, fmt.Sprintf(`INSERT INTO %s (%s) VALUES (%s)`, table.name, strings.Join(columns, ", "), strings.Join(values, ", ")))
	}
	all := append(s.tables, table)
	changed := all[n:]
	if n > 1 && s.IntN(2) == 0 { // an earlier table refers to this one: a cycle, and there may be other ways to all tables
		back := s.tables[1+s.IntN(n-1)]
		column := s.reference(back, table, 10+n)
		for key := 1; key < back.n; key++ {
			pgtest.Execute(s.t, s.conn, fmt.Sprintf(`UPDATE %s SET %s = %s WHERE id = '%d'`, back.name, column, s.some(table), key))
		}
		changed = all[1:]
	}
	for _, watched := range changed {
		if _, err := s.conn.Exec(s.t.Context(), `SELECT plantstore.watch($1::text::regclass)`, watched.name); err != nil {
			pgtest.Execute(s.t, s.conn, `ROLLBACK`)
			return
		}
	}
	pgtest.Execute(s.t, s.conn, `COMMIT`)
	s.tables = all
}

// rows returns all rows of the store.
func (s *randomStore) rows() (all []string) {
	for _, table := range s.tables {
		all = append(all, table.name+": "+value[string](s.t, s.conn, `SELECT coalesce(string_agg(t::text, ' ' ORDER BY id::text), '') FROM `+table.name+` t`))
	}
	return all
}

// delete deletes some plants in one of several ways. PostgreSQL itself refuses some deletions
// where an action changes a row whose other parent is gone already.
func (s *randomStore) delete() {
	del := func() string {
		return fmt.Sprintf(`DELETE FROM plants WHERE id IN (%d, %d); `, 1+s.IntN(9), 1+s.IntN(9))
	}
	sql := s.oneOf(del(), del()+del(), `BEGIN; `+del()+`SAVEPOINT a; `+del()+`ROLLBACK TO a; `+del()+`COMMIT`)
	_, err := s.deleter.Exec(s.t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "23503" {
		pgtest.Execute(s.t, s.deleter, `ROLLBACK`)
	} else if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// restore restores deletions, and reports whether it did; refused, it changes nothing.
func (s *randomStore) restore(ids []int64) bool {
	before := s.rows()
	_, err := ledger.Restore(s.t.Context(), s.conn, ledger.Selection{IDs: ids}, ledger.Options{})
	if err == nil {
		return true
	}
	s.t.Logf("refused: %q", reasons(s.t, err))
	if diff := gocmp.Diff(before, s.rows()); diff != "" {
		s.t.Errorf("rows after a refusal (-before +after):\n%s", diff)
	}
	return false
}

// Rows of watched tables that leave with plants come back with them, all at once or plant by
// plant. PLANTSTORE_TEST_SCHEMAS is the number of random stores.
func TestRandomStoresAreRestored(t *testing.T) {
	t.Parallel()
	schemas, err := strconv.Atoi(cmp.Or(os.Getenv("PLANTSTORE_TEST_SCHEMAS"), "24"))
	if err != nil {
		t.Fatalf("PLANTSTORE_TEST_SCHEMAS: %v, want a number", err)
	}
	for seed := range schemas {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			pgtest.Execute(t, pgtest.Connect(t, db.Super), `CREATE SCHEMA store AUTHORIZATION plantstore_owner`)
			conn, deleter := pgtest.Connect(t, db.Owner), pgtest.Connect(t, db.Owner)
			pgtest.Execute(t, deleter, hostile+`; SET default_transaction_read_only = off`)
			s := &randomStore{Rand: rand.New(rand.NewPCG(57, uint64(seed))), t: t, conn: conn, deleter: deleter, tables: []randomTable{{"public.plants", "bigint", 10}}}
			pgtest.Execute(t, conn, `INSERT INTO plants (id, name) SELECT i, 'p' || i FROM generate_series(0, 9) i`)
			for range 1 + s.IntN(4) {
				s.add()
			}
			before := s.rows()
			for _, oneByOne := range []bool{false, true} {
				for range 1 + s.IntN(4) {
					s.delete()
				}
				left := value[[]int64](t, conn, `SELECT coalesce(array_agg(id ORDER BY id), '{}') FROM plantstore.deletions WHERE restored_at IS NULL`)
				for n := 0; oneByOne && len(left) != n; { // rows that refer to each other come back together
					n = len(left)
					s.Shuffle(n, func(i, j int) { left[i], left[j] = left[j], left[i] })
					left = slices.DeleteFunc(left, func(id int64) bool { return s.restore([]int64{id}) })
				}
				if len(left) > 0 && !s.restore(left) {
					t.Error("got a refusal, want all restored")
				}
				if diff := gocmp.Diff(before, s.rows()); diff != "" {
					t.Errorf("rows (-before +after, one by one: %v):\n%s", oneByOne, diff)
				}
			}
		})
	}
}
