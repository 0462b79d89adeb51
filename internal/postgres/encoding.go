package postgres

import (
	"context"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A database's encoding can have texts that UTF-8 has no equivalent for, such as the byte
// 0x81 in WIN1252. The server does not send them in UTF-8: it fails with untranslatable.

// ourEncoding is SQL that has the server take and give texts in UTF-8. A database without
// an encoding takes and gives bytes, whatever they are.
const ourEncoding = `set_config('client_encoding', CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END, true)`

// itsEncoding is SQL that has the server take and give texts as the database has them.
const itsEncoding = `set_config('client_encoding', getdatabaseencoding(), true)`

// reading runs do in a transaction, which reads a page of the ledger. If UTF-8 has no
// equivalent for a text of the page, it runs do again, in another transaction, in which
// the page is translated text by text.
func reading(ctx context.Context, on beginner, level pgx.TxIsoLevel, do func(pgx.Tx, pageReader) error) error {
	tables := []string{"plant_deletions", "plant_shapes"}
	err := readTables(ctx, on, level, func(tx pgx.Tx) error { return do(tx, readPage) }, tables...)
	if sqlState(err) == untranslatable {
		err = readTables(ctx, on, level, func(tx pgx.Tx) error { return do(tx, readAndTranslate) }, tables...)
	}
	return err
}

// readAndTranslate is a pageReader for a page that readPage can't read. The cursor is
// there to take the parameters in UTF-8 and give the rows in the encoding of the database.
func readAndTranslate(ctx context.Context, tx pgx.Tx, page string, args ...any) (list []Recorded, more bool, err error) {
	if _, err := tx.Exec(ctx, `DECLARE page NO SCROLL CURSOR FOR `+page, args...); err != nil {
		return nil, false, err
	}
	if _, err := tx.Exec(ctx, `SELECT `+itsEncoding); err != nil {
		return nil, false, err
	}
	// In other modes, which a URL may ask for, the driver reads arrays as UTF-8, or refuses.
	if list, more, err = readPage(ctx, tx, `FETCH ALL FROM page`, pgx.QueryExecModeDescribeExec); err != nil {
		return nil, false, err
	}
	if _, err := tx.Exec(ctx, `SELECT `+ourEncoding); err != nil {
		return nil, false, err
	}
	var names []*string
	var values [][]byte
	for i := range list {
		r := &list[i]
		names = append(names, &r.DeletedBy, &r.SessionRole, &r.RequestID, &r.IdempotencyKey, &r.RestoredBy)
		for n := range r.Plant {
			names = append(names, &r.Plant[n].Column, &r.Plant[n].Type)
			values = append(values, r.Plant[n].Value)
		}
	}
	if err := translateNames(ctx, tx, names); err != nil {
		return nil, false, err
	}
	raw, err := translate(ctx, tx, values)
	if err != nil {
		return nil, false, err
	}
	for i, n := 0, 0; i < len(list); i++ {
		for v := range list[i].Plant {
			list[i].Plant[v].Value, list[i].Plant[v].Untranslated = values[n], raw[n]
			n++
		}
	}
	return list, more, nil
}

// translateError puts the texts of a server's error into UTF-8.
func translateError(ctx context.Context, tx pgx.Tx, pg *pgconn.PgError) error {
	return translateNames(ctx, tx, []*string{&pg.Message, &pg.Detail, &pg.Hint, &pg.Where, &pg.SchemaName, &pg.TableName, &pg.ColumnName, &pg.DataTypeName, &pg.ConstraintName})
}

// translateNames puts UTF-8 in the place of texts in the encoding of the database. A text
// that UTF-8 has no equivalent for keeps what of it is ASCII.
func translateNames(ctx context.Context, tx pgx.Tx, names []*string) error {
	texts := make([][]byte, len(names))
	for i, name := range names {
		texts[i] = []byte(*name)
	}
	raw, err := translate(ctx, tx, texts)
	if err != nil {
		return err
	}
	for i, name := range names {
		if *name = string(texts[i]); raw[i] {
			*name = asciiOf(texts[i])
		}
	}
	return nil
}

// translateAtOnce is how many bytes of texts one statement translates, unless a single one
// is longer.
const translateAtOnce = 4 << 20

// translate puts UTF-8 in the place of texts in the encoding of the database. It tells
// which texts UTF-8 has no equivalent for: they stay as they are.
func translate(ctx context.Context, tx pgx.Tx, texts [][]byte) (raw []bool, err error) {
	raw = make([]bool, len(texts))
	switch tx.Conn().PgConn().ParameterStatus("server_encoding") {
	case "UTF8", "SQL_ASCII":
		return raw, nil
	}
	var some []int
	size := 0
	for i, text := range texts {
		if isASCII(text) { // as it is in every encoding
			continue
		}
		if size += len(text); size > translateAtOnce && len(some) > 0 {
			if err := translateSome(ctx, tx, texts, some, raw); err != nil {
				return nil, err
			}
			some, size = nil, len(text)
		}
		some = append(some, i)
	}
	return raw, translateSome(ctx, tx, texts, some, raw)
}

// translateSome is translate for some of the texts: for all at once or, if that fails, in
// halves, until those that have no equivalent are alone.
func translateSome(ctx context.Context, tx pgx.Tx, texts [][]byte, some []int, raw []bool) error {
	if len(some) == 0 {
		return nil
	}
	all := make([][]byte, len(some))
	for i, n := range some {
		all[i] = texts[n]
	}
	var translated [][]byte
	err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
		rows, err := savepoint.Query(ctx, `
			SELECT convert_from(t.text, getdatabaseencoding()) FROM unnest($1::bytea[]) WITH ORDINALITY t (text, n) ORDER BY t.n`, all)
		if err != nil {
			return err
		}
		translated, err = pgx.CollectRows(rows, pgx.RowTo[[]byte])
		return err
	})
	switch {
	case sqlState(err) == untranslatable && len(some) == 1:
		raw[some[0]] = true
		return nil
	case sqlState(err) == untranslatable:
		half := len(some) / 2
		if err := translateSome(ctx, tx, texts, some[:half], raw); err != nil {
			return err
		}
		return translateSome(ctx, tx, texts, some[half:], raw)
	case err != nil:
		return err
	}
	for i, n := range some {
		texts[n] = translated[i]
	}
	return nil
}

func isASCII(text []byte) bool {
	for _, c := range text {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// asciiOf returns a text of another encoding with U+FFFD for each byte that is not ASCII.
func asciiOf(raw []byte) string {
	var b strings.Builder
	for _, c := range raw {
		if c < utf8.RuneSelf {
			b.WriteByte(c)
		} else {
			b.WriteRune(utf8.RuneError)
		}
	}
	return b.String()
}

// quoteRaw is strconv.Quote for a text of another encoding, which may look like UTF-8.
func quoteRaw(raw string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(raw) {
		quoted := strconv.Quote(raw[i : i+1])
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	b.WriteByte('"')
	return b.String()
}

// Text is the value in UTF-8, as far as it has an equivalent there: one that has none has
// U+FFFD for each of its bytes that is not ASCII.
func (v RecordedValue) Text() []byte {
	if v.Untranslated {
		return []byte(asciiOf(v.Value))
	}
	return v.Value
}

// Quoted is the value in quotes, for a person, with whatever can't be shown escaped.
func (v RecordedValue) Quoted() string {
	if v.Untranslated {
		return quoteRaw(string(v.Value))
	}
	return strconv.Quote(string(v.Value))
}
