package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"time"
	"unicode/utf8"

	"plantstore/internal/postgres"
)

type deletionJSON struct {
	Cursor         string      `json:"cursor,omitempty"` // of a line that is exported
	ID             int64       `json:"id"`
	PlantID        int64       `json:"plant_id"`
	Plant          []valueJSON `json:"plant"`
	DeletedAt      time.Time   `json:"deleted_at"`
	DeletedBy      string      `json:"deleted_by"`
	Direct         bool        `json:"direct_sql,omitempty"` // deleted_by is a database role
	SessionRole    string      `json:"session_role"`
	RequestID      string      `json:"request_id,omitempty"`
	IdempotencyKey string      `json:"idempotency_key,omitempty"`
	RestoredAt     time.Time   `json:"restored_at,omitzero"`
	RestoredBy     string      `json:"restored_by,omitempty"`
}

type valueJSON struct {
	Name     string  `json:"name"`
	Type     string  `json:"type"`
	Computed bool    `json:"computed,omitempty"` // by a generated column: not recorded
	Value    *string `json:"value"`
	// Bytes is the value, too, where it is no text in UTF-8, as it may be in a database
	// without an encoding or with another one.
	Bytes []byte `json:"bytes,omitempty"`
}

// jsonOf is a deletion as JSON. The values of which it has placeholders come with it.
func jsonOf(r postgres.Recorded) (d deletionJSON, large [][]byte) {
	d = deletionJSON{
		ID: r.ID, PlantID: r.PlantID, Plant: make([]valueJSON, len(r.Plant)), DeletedAt: r.DeletedAt.UTC(), DeletedBy: r.DeletedBy, Direct: r.Direct,
		SessionRole: r.SessionRole, RequestID: r.RequestID, IdempotencyKey: r.IdempotencyKey, RestoredAt: r.RestoredAt.UTC(), RestoredBy: r.RestoredBy,
	}
	for i, v := range r.Plant {
		d.Plant[i] = valueJSON{Name: v.Column, Type: v.Type, Computed: v.Computed}
		if v.Value == nil {
			continue
		}
		text, value := placeholder, v.Text()
		if len(value) <= piece {
			text = string(value)
		} else {
			large = append(large, value)
		}
		d.Plant[i].Value = &text
		if v.Untranslated || !utf8.Valid(v.Value) {
			d.Plant[i].Bytes = v.Value
		}
	}
	return d, large
}

const (
	// placeholder stands for a value in JSON's place. No text of PostgreSQL's has a
	// NUL in it, and within a JSON string no quote comes before a single backslash.
	placeholder     = "\x00"
	placeholderJSON = `"\u0000"`

	// piece is how many bytes of a value are written at a time.
	piece = 64 << 10
)

// writeDeletion writes a deletion as JSON, without an end of line. Large values go
// out piece by piece: with the rest, they would be in memory several times.
func writeDeletion(w *bufio.Writer, cursor string, r postgres.Recorded, prefix, indent string) error {
	d, large := jsonOf(r)
	d.Cursor = cursor
	rest, err := marshal(d, prefix, indent)
	if err != nil {
		return err
	}
	for _, value := range large {
		before, after, _ := bytes.Cut(rest, []byte(placeholderJSON))
		w.Write(before)
		writeString(w, value)
		rest = after
	}
	_, err = w.Write(rest)
	return err
}

// writeString writes a value as a JSON string. What w meets, its next write returns.
func writeString(w *bufio.Writer, value []byte) {
	w.WriteByte('"')
	for len(value) > 0 {
		n := min(piece, len(value))
		for n < len(value) && n > piece-utf8.UTFMax && !utf8.RuneStart(value[n]) {
			n--
		}
		text, _ := marshal(string(value[:n]), "", "") // any text has its JSON
		w.Write(text[1 : len(text)-1])
		value = value[n:]
	}
	w.WriteByte('"')
}

func marshal(v any, prefix, indent string) ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent(prefix, indent)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), err
}

// A deletionsArray writes deletions as a JSON array, of which it has one in memory.
type deletionsArray struct {
	w     *bufio.Writer
	begun bool
}

func newDeletionsArray(w io.Writer) *deletionsArray { return &deletionsArray{w: bufio.NewWriter(w)} }

func (a *deletionsArray) add(r postgres.Recorded) error {
	glue := "["
	if a.begun {
		glue = ","
	}
	a.begun = true
	a.w.WriteString(glue + "\n  ")
	return writeDeletion(a.w, "", r, "  ", "  ")
}

func (a *deletionsArray) end() error {
	if a.begun {
		a.w.WriteString("\n]\n")
	} else {
		a.w.WriteString("[]\n")
	}
	return a.w.Flush()
}
