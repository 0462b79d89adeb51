// Package ledger reads the ledger of deletions, restores plants from it and purges
// it, on a connection of the ledger's owner.
package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// A Deletion is an entry of the ledger: a deleted plant, or a refusal, which has no row.
// --json prints it.
type Deletion struct {
	ID             int64           `json:"id"`
	PlantID        int64           `json:"plant_id"`
	DeletedAt      time.Time       `json:"deleted_at"`
	DeletedBy      string          `json:"deleted_by"`        // the principal, or the role where RequestID is null
	RequestID      *string         `json:"request_id"`        // null: direct SQL
	IdempotencyKey *string         `json:"idempotency_key"`   // null: direct SQL, or a cascade of the request
	Refused        *int            `json:"refused,omitempty"` // the error code of a refusal
	TransactionID  uint64          `json:"transaction_id"`    // what has the same transaction left together
	RestoredAt     *time.Time      `json:"restored_at"`
	RestoredBy     *string         `json:"restored_by"`
	Plant          json.RawMessage `json:"plant,omitempty"`    // the row, to read
	Literal        *string         `json:"literal,omitempty"`  // the row as PostgreSQL writes it
	Types          []string        `json:"types,omitempty"`    // of its columns
	Cascaded       int             `json:"cascaded,omitempty"` // how many rows of watched tables left or changed with the plant
	Name           string          `json:"-"`                  // the beginning of the plant's name, where plants have one
}

// By returns the principal, or the role, for a person.
func (d Deletion) By() string {
	if d.RequestID == nil {
		return "role " + printable(d.DeletedBy)
	}
	if strings.HasPrefix(d.DeletedBy, "role ") {
		return strconv.Quote(d.DeletedBy)
	}
	return printable(d.DeletedBy)
}

func (d Deletion) String() string {
	name := ""
	if d.Name != "" {
		name = " " + strconv.Quote(d.Name)
	}
	return fmt.Sprintf("plant %d%s (deletion %d, deleted by %s at %s)", d.PlantID, name, d.ID, d.By(), d.DeletedAt.UTC().Format(time.RFC3339))
}

// printable quotes a text that a terminal would not show as it is.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// A Filter selects entries. Zero fields select all but refusals.
type Filter struct {
	Plant        *int64
	By           string // a principal
	ByRole       string // a database role, by direct SQL
	Request      string
	Since, Until time.Time // at Since or later, before Until
	Before       int64     // entries with smaller ids: the next page
	Refusals     bool      // refusals, too
	Limit        int       // 0: none
	Rows         bool      // with Plant, Literal and Types
}

// ErrNotFound is returned for an id that the ledger does not have.
var ErrNotFound = errors.New("no such deletion")

// readable is a column of type json without the escapes that json takes and its functions
// refuse: NUL and surrogates. They occur in values of the type json only, never in names.
func readable(column string) string {
	return fmt.Sprintf(`(CASE WHEN position('\u' in %[1]s::text) = 0 THEN %[1]s `+
		`ELSE regexp_replace(%[1]s::text, '\\u(0000|[dD][89a-fA-F][0-9a-fA-F]{2})', '\\u0001', 'g')::json END)`, column)
}

const (
	columns  = `id, plant_id, deleted_at, deleted_by, request_id, idempotency_key, refused, transaction_id, restored_at, restored_by`
	row      = `plant, literal, types::text[]`
	noRow    = `NULL::json, NULL::text, NULL::text[]`
	cascaded = `(SELECT count(*) FROM plantstore.cascaded c WHERE c.deletion_id = deletions.id)`
)

var name = `coalesce(left(` + readable("plant") + ` ->> 'name', 60), '')`

// List calls yield with each entry that f selects, newest first, until it returns an error.
func List(ctx context.Context, conn *pgx.Conn, f Filter, yield func(Deletion) error) error {
	where, args := f.where()
	last := noRow
	if f.Rows {
		last = row
	}
	order := "id"
	if !f.Since.IsZero() || !f.Until.IsZero() {
		order = "id + 0" // the primary key's order would tempt the planner away from deletions_by_time
	}
	limit := ""
	if f.Limit > 0 {
		limit = " LIMIT " + strconv.Itoa(f.Limit)
	}
	rows, err := conn.Query(ctx, `SELECT `+columns+`, `+last+`, `+name+`, `+cascaded+` FROM plantstore.deletions WHERE `+where+` ORDER BY `+order+` DESC`+limit, args...)
	return each(rows, err, yield)
}

// where returns the condition with its arguments.
func (f Filter) where() (string, []any) {
	conditions := []string{"true"}
	var args []any
	add := func(condition string, arg any) {
		args = append(args, arg)
		conditions = append(conditions, condition+" $"+strconv.Itoa(len(args)))
	}
	if f.Plant != nil {
		add("plant_id =", *f.Plant)
	}
	if f.By != "" {
		add("request_id IS NOT NULL AND deleted_by =", f.By)
	}
	if f.ByRole != "" {
		add("request_id IS NULL AND deleted_by =", f.ByRole)
	}
	if f.Request != "" {
		add("request_id =", f.Request)
	}
	if !f.Since.IsZero() {
		add("deleted_at >=", f.Since)
	}
	if !f.Until.IsZero() {
		add("deleted_at <", f.Until)
	}
	if f.Before != 0 {
		add("id <", f.Before)
	}
	if !f.Refusals {
		conditions = append(conditions, "refused IS NULL")
	}
	return strings.Join(conditions, " AND "), args
}

// Get returns an entry with its row, or ErrNotFound.
func Get(ctx context.Context, conn *pgx.Conn, id int64) (Deletion, error) {
	found, err := Deletion{}, ErrNotFound
	rows, queryErr := conn.Query(ctx, `SELECT `+columns+`, `+row+`, `+name+`, `+cascaded+` FROM plantstore.deletions WHERE id = $1`, id)
	if e := each(rows, queryErr, func(d Deletion) error { found, err = d, nil; return nil }); e != nil {
		return Deletion{}, e
	}
	return found, err
}

// each scans rows of columns, row, name and cascaded. It takes the results of a query.
func each(rows pgx.Rows, err error, yield func(Deletion) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var d Deletion
		if err := rows.Scan(&d.ID, &d.PlantID, &d.DeletedAt, &d.DeletedBy, &d.RequestID, &d.IdempotencyKey, &d.Refused, &d.TransactionID,
			&d.RestoredAt, &d.RestoredBy, &d.Plant, &d.Literal, &d.Types, &d.Name, &d.Cascaded); err != nil {
			return err
		}
		d.DeletedAt = d.DeletedAt.UTC()
		if d.RestoredAt != nil {
			*d.RestoredAt = d.RestoredAt.UTC()
		}
		if err := yield(d); err != nil {
			return err
		}
	}
	return rows.Err()
}
