package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	roles "plantstore/deploy/postgres"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// An adopted is a table of plants that was there before the service.
type adopted struct {
	name string
	// setUp is what has to be there before the table.
	setUp string
	// columns are definitions, without their names, and values as SQL. Null is
	// always tried, too, unless the definition says otherwise.
	columns []adoptedColumn
	// table is the statements that make and fill the table, in place of columns.
	table string
	// since is the first version of PostgreSQL that has it.
	since int
	// noBinary: a type has no binary form.
	noBinary bool
	// cascades: a deletion may take other plants along.
	cascades bool
}

type adoptedColumn struct {
	definition string
	values     []string
}

// create returns the statements that make and fill the table.
func (a adopted) create() string {
	if a.table != "" {
		return a.table
	}
	var definitions, rows []string
	most := 0
	for i, c := range a.columns {
		definitions = append(definitions, fmt.Sprintf("c%d %s", i, c.definition))
		most = max(most, len(c.values))
	}
	for n := range most + 1 { // the last one is of nulls
		row := []string{fmt.Sprint(n)}
		for _, c := range a.columns {
			value := "NULL"
			if n < len(c.values) {
				value = c.values[n]
			}
			row = append(row, value)
		}
		rows = append(rows, "INSERT INTO public.plants VALUES ("+strings.Join(row, ", ")+");")
	}
	return "CREATE TABLE public.plants (id bigint PRIMARY KEY, " + strings.Join(definitions, ", ") + ");\n" + strings.Join(rows, "\n")
}

// adopt makes a table in an empty database and applies the migrations.
func adopt(t *testing.T, database pgtest.Database, table string) (store, *Ledger) {
	t.Helper()
	for _, sql := range []string{table, roles.SQL} {
		if err := Script(t.Context(), database.Super, sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	return storeOn(t, database, ""), ledgerOf(t, database)
}

// plantsAsText returns the plants by id, as their types' output functions write
// them under the settings of the ledger.
func plantsAsText(t *testing.T, p *pgxpool.Pool) []string {
	t.Helper()
	var plants []string
	err := pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), recordedForm); err != nil {
			return err
		}
		rows, err := tx.Query(t.Context(), `SELECT ROW(p.*)::text FROM public.plants p ORDER BY p.id`)
		if err != nil {
			return err
		}
		plants, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return plants
}

// image returns the plants as PostgreSQL writes them to a binary file.
func image(t *testing.T, p *pgxpool.Pool) []byte {
	t.Helper()
	conn, err := p.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	var b bytes.Buffer
	if _, err := conn.Conn().PgConn().CopyTo(t.Context(), &b, `COPY (SELECT * FROM public.plants ORDER BY id) TO STDOUT (FORMAT binary)`); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// serverVersion is such as 150018.
func serverVersion(t *testing.T, p *pgxpool.Pool) (version int) {
	t.Helper()
	if err := p.QueryRow(t.Context(), `SELECT current_setting('server_version_num')::int`).Scan(&version); err != nil {
		t.Fatal(err)
	}
	return version
}

// Every table comes back byte for byte, however its plants left.
func TestAdoptedTables(t *testing.T) {
	t.Parallel()
	if n := len(adoptedTables()); n < 60 {
		t.Errorf("%d tables, want at least 60", n)
	}
	for _, a := range adoptedTables() {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.Empty(t)
			super := pgtest.Pool(t, database.Super)
			if a.since > 0 && serverVersion(t, super) < a.since*10000 {
				return // there is no such table on this version
			}
			s, l := adopt(t, database, a.setUp+";"+a.create())
			testRoundTrips(t, a, s, l, super)
		})
	}
}

func testRoundTrips(t *testing.T, a adopted, s store, l *Ledger, super *pgxpool.Pool) {
	t.Helper()
	before := plantsAsText(t, super)
	var binary []byte
	if !a.noBinary {
		binary = image(t, super)
	}
	var all []int64
	if err := super.QueryRow(t.Context(), `SELECT array_agg(id ORDER BY id) FROM public.plants`).Scan(&all); err != nil {
		t.Fatal(err)
	}
	for _, way := range []struct {
		name   string
		delete func() error
	}{
		{"SQL", func() error {
			_, err := super.Exec(t.Context(), `DELETE FROM public.plants`)
			return err
		}},
		{"the service, one by one", func() error {
			for _, id := range all {
				if _, err := s.plants.Delete(in(t, patience), deletion(id, "k")); err != nil {
					return err
				}
			}
			return nil
		}},
		{"the service, in batches", func() error {
			errs := s.deleteAtOnce(t, all)
			if a.cascades { // one may be gone with another, which came first
				errs = slices.DeleteFunc(errs, func(err error) bool {
					_, earlier := errors.AsType[*plant.DeletedEarlierError](err)
					return earlier
				})
			}
			return errors.Join(errs...)
		}},
	} {
		if err := way.delete(); err != nil {
			t.Fatalf("deleting by %s: %v", way.name, err)
		}
		if left := plantsAsText(t, super); len(left) > 0 {
			t.Fatalf("after deleting by %s, %d plants are left", way.name, len(left))
		}
		if got, want := restoreAll(t, l), (Restored{Plants: len(all)}); !cmp.Equal(got, want) {
			t.Errorf("restored after deleting by %s: %+v, want %+v", way.name, got, want)
		}
		if diff := cmp.Diff(before, plantsAsText(t, super)); diff != "" {
			t.Errorf("after deleting by %s and restoring (-before +after):\n%s", way.name, cutForLog(diff))
		}
		if !a.noBinary && !bytes.Equal(binary, image(t, super)) {
			t.Errorf("after deleting by %s and restoring, the text is the same, and the binary form is not", way.name)
		}
	}
}

func cutForLog(s string) string { return s[:min(len(s), 4000)] }

// openLedgerEntries returns the entries that are not restored.
func openEntries(t *testing.T, l *Ledger) []int64 {
	t.Helper()
	var open []int64
	list, _, err := l.List(t.Context(), LedgerFilter{}, 100000, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list {
		if r.RestoredAt.IsZero() {
			open = append(open, r.ID)
		}
	}
	return open
}

func restoreAll(t *testing.T, l *Ledger) Restored {
	t.Helper()
	ids := openEntries(t, l)
	restored, err := l.Restore(t.Context(), ids, RestoreOptions{})
	if err != nil {
		t.Fatalf("Restore of %d: %v", len(ids), err)
	}
	return restored
}

// A value of 100 MB is not much to ask of a ledger.
func TestAHundredMegabytes(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	s, l := adopt(t, database, `
		ALTER DATABASE `+database.Name+` SET default_toast_compression = 'lz4'; -- the other is slow
		CREATE TABLE public.plants (id bigint PRIMARY KEY, photo bytea COMPRESSION lz4, story text);
		INSERT INTO public.plants VALUES (1, decode(repeat('00ff5c27', 26214400), 'hex'), NULL), (2, NULL, repeat(E'a"\\\n', 1000000))`)
	const sums = `SELECT string_agg(md5(ROW(p.*)::text), ' ' ORDER BY p.id) FROM public.plants p`
	super := pgtest.Pool(t, database.Super)
	var before, after string
	if err := super.QueryRow(t.Context(), sums).Scan(&before); err != nil {
		t.Fatal(err)
	}
	for _, id := range []int64{1, 2} {
		if _, err := s.plants.Delete(in(t, 10*patience), deletion(id, "k")); err != nil {
			t.Fatal(err)
		}
	}
	restoreAll(t, l)
	if err := super.QueryRow(t.Context(), sums).Scan(&after); err != nil || after != before {
		t.Errorf("the rows' sums are %s, %v; want %s", after, err, before)
	}
}

// The bytes of a database's own encoding come back, whatever they mean.
func TestAdoptedEncodings(t *testing.T) {
	t.Parallel()
	tests := []struct{ encoding, value string }{
		{"LATIN1", `convert_from('\xe4f6fca0ad80ff2241', 'LATIN1')`},
		{"SQL_ASCII", `convert_from('\xe4c3b6ff80fe2241', 'SQL_ASCII')`},
		{"WIN1251", `convert_from('\xeff0e8e2e5f2', 'WIN1251')`},
		{"EUC_JP", `convert_from('\xbfa2caaa', 'EUC_JP')`},
	}
	for _, tt := range tests {
		t.Run(tt.encoding, func(t *testing.T) {
			t.Parallel()
			database := encodedDatabase(t, tt.encoding)
			s, l := adopt(t, database, `
				CREATE TABLE public.plants (id bigint PRIMARY KEY, name text, tags text[]);
				INSERT INTO public.plants SELECT 1, v, ARRAY[v, NULL, '"'] FROM (SELECT `+tt.value+`) x (v)`)
			const bytes = `SELECT convert_to(ROW(p.*)::text, getdatabaseencoding()) FROM public.plants p`
			super := pgtest.Pool(t, database.Super)
			var before, after []byte
			if err := super.QueryRow(t.Context(), bytes).Scan(&before); err != nil {
				t.Fatal(err)
			}
			if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Get(t.Context(), openEntries(t, l)[0]); err != nil {
				t.Error(err)
			}
			restoreAll(t, l)
			if err := super.QueryRow(t.Context(), bytes).Scan(&after); err != nil || string(before) != string(after) {
				t.Errorf("the plant is %q, %v; want %q", after, err, before)
			}
		})
	}
}

// encodedDatabase returns an empty database with an encoding.
func encodedDatabase(t *testing.T, encoding string) pgtest.Database {
	t.Helper()
	database := pgtest.Empty(t)
	name := database.Name + "_" + strings.ToLower(encoding)
	super := pgtest.Pool(t, database.Super)
	rename := func(url string) string { return strings.Replace(url, database.Name, name, 1) }
	if _, err := super.Exec(t.Context(), `CREATE DATABASE `+name+` ENCODING '`+encoding+`' LOCALE 'C' TEMPLATE template0`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Script(context.Background(), database.Super, `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	return pgtest.Database{Name: name, Super: rename(database.Super), Owner: rename(database.Owner), App: rename(database.App)}
}
