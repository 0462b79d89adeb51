package postgres

import (
	"bytes"
	"errors"
)

var errNoRecord = errors.New("not a row as PostgreSQL writes it")

// parseRecord returns the values of a row in the form of ROW(...)::text, nil for
// null. They may share memory with text. They are bytes in the encoding of text:
// in every encoding that a database can have, the characters that matter here are
// ASCII, and no other character has such bytes in it.
//
// PostgreSQL puts a value in quotes if it is empty or has a character in it that
// means something here, or a blank. Within quotes, quotes and backslashes are
// doubled. Anything else is no row: errNoRecord.
func parseRecord(text []byte) ([][]byte, error) {
	if len(text) < 2 || text[0] != '(' || text[len(text)-1] != ')' {
		return nil, errNoRecord
	}
	rest := text[1:]
	var values [][]byte
	for {
		var value []byte
		var err error
		if rest[0] == '"' {
			value, rest, err = quotedValue(rest[1:])
		} else if end := bytes.IndexAny(rest, `,)("\`); end > 0 {
			value, rest = rest[:end:end], rest[end:]
		}
		values = append(values, value)
		switch {
		case err != nil:
			return nil, err
		case len(rest) == 1 && rest[0] == ')':
			return values, nil
		case len(rest) > 1 && rest[0] == ',':
			rest = rest[1:]
		default:
			return nil, errNoRecord
		}
	}
}

// quotedValue returns the value that text begins with, up to a quote that is not
// doubled, and what follows that quote.
func quotedValue(text []byte) (value, rest []byte, err error) {
	value = []byte{}
	for {
		i := bytes.IndexAny(text, `"\`)
		switch {
		case i < 0:
			return nil, nil, errNoRecord
		case i+1 < len(text) && text[i+1] == text[i]:
			value = append(value, text[:i+1]...)
			text = text[i+2:]
		case text[i] == '"':
			return append(value, text[:i]...), text[i+1:], nil
		default:
			return nil, nil, errNoRecord
		}
	}
}

// appendCopied appends values as a line of COPY's text format.
func appendCopied(line []byte, values [][]byte) []byte {
	for i, value := range values {
		if i > 0 {
			line = append(line, '\t')
		}
		if value == nil {
			line = append(line, `\N`...)
			continue
		}
		for {
			special := bytes.IndexAny(value, "\\\n\r\t")
			if special < 0 {
				break
			}
			line = append(line, value[:special]...)
			switch value[special] {
			case '\\':
				line = append(line, `\\`...)
			case '\n':
				line = append(line, `\n`...)
			case '\r':
				line = append(line, `\r`...)
			case '\t':
				line = append(line, `\t`...)
			}
			value = value[special+1:]
		}
		line = append(line, value...)
	}
	return append(line, '\n')
}
