package postgres

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/pgtest"
)

func TestParseRecord(t *testing.T) {
	t.Parallel()
	value := func(s string) []byte { return []byte(s) }
	for text, want := range map[string][][]byte{
		`()`:                             {nil},
		`(,)`:                            {nil, nil},
		`("")`:                           {{}},
		`(a,"b ""q"" \\",,)`:             {value("a"), value(`b "q" \`), nil, nil},
		`("","(,)",x)`:                   {{}, value("(,)"), value("x")},
		`("""")`:                         {value(`"`)},
		`("\\""\\")`:                     {value(`\"\`)},
		"(\"a\nb\")":                     {value("a\nb")},
		"(\xe4\xf6,\"\xff \")":           {value("\xe4\xf6"), value("\xff ")},
		`(1,"(2,""x"")","{""a b"",\\}")`: {value("1"), value(`(2,"x")`), value(`{"a b",\}`)},
	} {
		got, err := parseRecord([]byte(text))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("parseRecord(%q): %v; (-want +got):\n%s", text, err, diff)
		}
	}
	for _, text := range []string{``, `(`, `)`, `a`, `(a`, `a)`, `(a)b`, `(a),`, `("a)`, `("a"b)`, `(a"b")`, `(a\b)`, `("a\b")`, `("a\)`, `(a(b)`, `(a))`, `("a",`, `(")`, `("""`} {
		if got, err := parseRecord([]byte(text)); err == nil {
			t.Errorf("parseRecord(%q) = %q, want an error", text, got)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	for _, text := range []string{`(,)`, `(a,"b ""q"" \\",,)`, `("\\""")`, "(\xe4,\"\n\")"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		values, err := parseRecord(bytes.Clone(text))
		if err != nil {
			return
		}
		// PostgreSQL may put more in quotes than it must.
		again, err := parseRecord(record(values, true))
		if diff := cmp.Diff(values, again); err != nil || diff != "" {
			t.Errorf("%q, written and read again: %v; (-first +second):\n%s", text, err, diff)
		}
	})
}

// record writes values as record_out does, or puts them all in quotes.
func record(values [][]byte, quoteAll bool) []byte {
	b := []byte("(")
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		switch {
		case v == nil:
		case quoteAll, len(v) == 0, bytes.ContainsAny(v, `"\(), `+"\t\n\v\f\r"):
			b = append(b, '"')
			b = append(b, strings.NewReplacer(`"`, `""`, `\`, `\\`).Replace(string(v))...)
			b = append(b, '"')
		default:
			b = append(b, v...)
		}
	}
	return append(b, ')')
}

// What the server writes is read as what it was, and what we write for COPY is
// read by the server as that again.
func TestRecordsOfTheServers(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	conn, err := pgtest.Pool(t, database.Owner).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `CREATE TABLE read (i int, a text, b text, c text)`); err != nil {
		t.Fatal(err)
	}
	values, random := randomValues(), rand.New(rand.NewPCG(1, 2))
	var rows [][]*string
	for range 3000 {
		pick := func() *string {
			if v := values[random.IntN(len(values))]; v != "NULL" {
				return &v
			}
			return nil
		}
		rows = append(rows, []*string{pick(), pick(), pick()})
	}
	columns := make([][]*string, 3)
	for _, row := range rows {
		for i, v := range row {
			columns[i] = append(columns[i], v)
		}
	}
	written, err := conn.Query(t.Context(), `SELECT ROW(i, a, b, c)::text FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY x (a, b, c, i) ORDER BY i`,
		columns[0], columns[1], columns[2])
	if err != nil {
		t.Fatal(err)
	}
	texts, err := pgx.CollectRows(written, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var lines []byte
	for i, text := range texts {
		got, err := parseRecord([]byte(text))
		if err != nil || len(got) != 4 {
			t.Fatalf("parseRecord(%q) = %q, %v", text, got, err)
		}
		for c, want := range rows[i] {
			if (want == nil) != (got[c+1] == nil) || want != nil && *want != string(got[c+1]) {
				t.Fatalf("parseRecord(%q): value %d is %q", text, c+1, got[c+1])
			}
		}
		if again := record(got, false); string(again) != text {
			t.Fatalf("%q, written again: %q", text, again)
		}
		lines = appendCopied(lines, got)
	}
	if _, err := conn.Conn().PgConn().CopyFrom(t.Context(), bytes.NewReader(lines), `COPY read FROM STDIN`); err != nil {
		t.Fatal(err)
	}
	copied, err := conn.Query(t.Context(), `SELECT ROW(i, a, b, c)::text FROM read ORDER BY i`)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := pgx.CollectRows(copied, pgx.RowTo[string]); err != nil || !slices.Equal(got, texts) {
		t.Errorf("%d rows, %v; want the same as were written", len(got), err)
	}
}

// randomValues returns values with every character of ASCII that PostgreSQL takes,
// with pieces that mean something to a parser, and long ones.
func randomValues() []string {
	pieces := []string{"", "NULL", "null", `\N`, `\.`, `"`, `""`, `\`, `\\`, `\"`, `(`, `)`, `,`, `{`, `}`, `植`, "é", "\u2028", "\U0001f331", "\u00a0", "\u0085"}
	for c := byte(1); c < 128; c++ {
		pieces = append(pieces, string(c))
	}
	values := slices.Clone(pieces)
	random := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		var b strings.Builder
		for range random.IntN(12) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		values = append(values, b.String())
	}
	return append(values, strings.Repeat(`a"\`, 10000))
}
