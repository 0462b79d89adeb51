// Package ledger reads the ledger of deletions, restores plants from it and purges
// it, on a connection of the ledger's owner.
package ledger

import (
	"cmp"
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

// selects is the condition of a Filter with its arguments. A zero time is in the year 1. The
// simple protocol lets PostgreSQL plan it for these values.
const selects = `($1::bigint IS NULL OR plant_id = $1) AND ($2 = '' OR request_id IS NOT NULL AND deleted_by = $2) AND ($3 = '' OR request_id IS NULL AND deleted_by = $3)
	AND ($4 = '' OR request_id = $4) AND deleted_at >= $5 AND ($6::timestamptz = '0001-01-01Z' OR deleted_at < $6) AND ($7 = 0 OR id < $7) AND ($8 OR refused IS NULL)`

func (f Filter) arguments() []any {
	return []any{pgx.QueryExecModeSimpleProtocol, f.Plant, f.By, f.ByRole, f.Request, f.Since, f.Until, f.Before, f.Refusals}
}

// List calls yield with each entry that f selects, newest first, until it returns an error.
func List(ctx context.Context, conn *pgx.Conn, f Filter, yield func(Deletion) error) error {
	last := noRow
	if f.Rows {
		last = row
	}
	order := "id"
	if !f.Since.IsZero() {
		order = "id + 0" // the primary key's order would tempt the planner away from deletions_by_time
	}
	rows, _ := conn.Query(ctx, `SELECT `+columns+`, `+last+`, `+cascaded+`, `+name+` FROM plantstore.deletions WHERE `+selects+` ORDER BY `+order+` DESC LIMIT nullif($9, 0)`, append(f.arguments(), f.Limit)...)
	return each(rows, yield)
}

// Get returns an entry with its row, or ErrNotFound.
func Get(ctx context.Context, conn *pgx.Conn, id int64) (Deletion, error) {
	found, notFound := Deletion{}, ErrNotFound
	rows, _ := conn.Query(ctx, `SELECT `+columns+`, `+row+`, `+cascaded+`, `+name+` FROM plantstore.deletions WHERE id = $1`, id)
	err := each(rows, func(d Deletion) error { found, notFound = d, nil; return nil })
	return found, cmp.Or(err, notFound)
}

// each scans rows of columns, row, cascaded and name.
func each(rows pgx.Rows, yield func(Deletion) error) error {
	defer rows.Close()
	for rows.Next() {
		d, err := pgx.RowToStructByPos[Deletion](rows)
		if err != nil {
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
