// Package plant is the domain: a deletion of a plant for a principal, and its outcome. It knows
// neither HTTP nor SQL.
package plant

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// ID identifies a plant. Zero and negative numbers are valid ids.
type ID int64

// ErrBadID is returned by ParseID.
var ErrBadID = errors.New("not a canonical decimal int64")

// ParseID parses the one spelling of an id: 0, or an optional '-' and decimal digits
// without a leading zero, in the range of int64. It returns ErrBadID for anything else: two
// spellings of one id would be two resources.
func ParseID(s string) (ID, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != s {
		return 0, ErrBadID
	}
	return ID(n), nil
}

// A Deletion is a request to delete one plant.
type Deletion struct {
	Plant     ID
	Principal string // the client, by its name
	RequestID string // recorded with the deletion
	// Key makes the deletion idempotent: principal, plant and key name one deletion, whose
	// outcome is final. Never empty.
	Key string
	// KeySent: the client chose the key, so an earlier request may have used it.
	KeySent bool
	// Budget limits how many plants the principal deletes. Zero: no limit.
	Budget Budget
}

// A Result describes how a deletion went. It is valid with an error, too.
type Result struct {
	// Replayed: an earlier request with the same key got this outcome, and this one changed
	// nothing.
	Replayed bool
	Attempts int           // how often the database was asked to delete the plant
	Failed   []string      // why attempts failed, in their order, MaxFailed at most
	Batch    int           // how many deletions the last attempt had in its transaction
	Queued   time.Duration // how long the deletion waited for its turn and for connections
}

// MaxFailed limits Result.Failed.
const MaxFailed = 16

// Outcomes other than success. After all but ErrUnknown the plant was not deleted by this
// request.
var (
	// ErrNotFound: there is no such plant, and no deletion of one is on record.
	ErrNotFound = errors.New("no such plant")
	// ErrUnavailable: the database could not be reached before the deadline.
	ErrUnavailable = errors.New("database unavailable")
	// ErrBusy: the plant was locked or its deletion too slow until the deadline.
	ErrBusy = errors.New("database busy")
	// ErrMisconfigured: the database would not record the deletion, or lacks something that
	// a deletion needs. An operator has to fix it.
	ErrMisconfigured = errors.New("database misconfigured")
	// ErrOverloaded: too many deletions are in flight. Nothing was tried.
	ErrOverloaded = errors.New("too many requests in flight")
	// ErrUnknown: an attempt may have been committed, and that was not settled before the
	// deadline. The same deletion with the same key can be tried again, and settles it.
	ErrUnknown = errors.New("outcome unknown")
)

// A ReferencedError is returned for a plant that rows of another table refer to.
type ReferencedError struct {
	Table string // empty for a refusal that was recorded earlier
	Cause error
}

func (e *ReferencedError) Error() string {
	by := "rows of another table"
	if e.Table != "" {
		by = fmt.Sprintf("table %q", e.Table)
	}
	return because("referenced by "+by, e.Cause)
}
func (e *ReferencedError) Unwrap() error { return e.Cause }

// A StoreRuleError is returned where a trigger or constraint of the store keeps the plant,
// and would do so again.
type StoreRuleError struct {
	Constraint string // empty for a trigger, or a refusal that was recorded earlier
	Cause      error  // nil where a trigger kept the row without an error
}

func (e *StoreRuleError) Error() string { return because("refused by a rule of the store", e.Cause) }
func (e *StoreRuleError) Unwrap() error { return e.Cause }

// A DeletedEarlierError is returned for a plant that was deleted before, not by this
// request.
type DeletedEarlierError struct{ At time.Time }

func (e *DeletedEarlierError) Error() string {
	return "deleted earlier, at " + e.At.UTC().Format(time.RFC3339)
}

// An OverBudgetError is returned where the deletion budget of the principal is used up, until
// a new period begins.
type OverBudgetError struct{ Until time.Time }

func (e *OverBudgetError) Error() string {
	return "deletion budget used up until " + e.Until.UTC().Format(time.RFC3339)
}

// RetryAfter returns how long the budget is used up.
func (e *OverBudgetError) RetryAfter() time.Duration { return time.Until(e.Until) }

func because(s string, cause error) string {
	if cause == nil {
		return s
	}
	return s + ": " + cause.Error()
}
