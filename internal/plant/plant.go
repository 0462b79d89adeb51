// Package plant is the domain: which plant is to go, on whose behalf, and what
// came of it. It knows neither HTTP nor SQL.
package plant

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// ID identifies a plant. Zero and negative numbers are ids like any other.
type ID int64

// ErrBadID is returned by ParseID.
var ErrBadID = errors.New("not a canonical decimal int64")

// ParseID reads the one way of writing an id: 0, or an optional '-' and decimal
// digits without a leading zero, in the range of int64. Everything else is
// ErrBadID: two spellings of one id would be two resources that are one.
func ParseID(s string) (ID, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != s {
		return 0, ErrBadID
	}
	return ID(n), nil
}

// A Deletion is a request to delete one plant.
type Deletion struct {
	Plant ID
	// Principal is who asks: the client, by its name.
	Principal string
	// RequestID is recorded with the deletion, for finding it in the logs.
	RequestID string
	// Key makes the deletion happen once, however often it is tried: principal,
	// plant and key together name one deletion for good. Never empty.
	Key string
	// Came is when the request came; zero counts as now.
	Came time.Time
	// Budget bounds what the principal may delete; zero: nothing does.
	Budget Budget
	// KeySent is set if the client chose the key: an earlier request with it may be
	// under way still.
	KeySent bool
}

// A Result tells how a deletion came about.
type Result struct {
	// Replayed is set when an earlier request with the same key had deleted the
	// plant already. Nothing was changed this time.
	Replayed bool
	// Course is there with an error, too.
	Course Course
}

// What can come of a deletion, other than success. All but ErrUnknown mean that
// the plant was not deleted by this request.
var (
	// ErrNotFound: no such plant, and no deletion of one is on record.
	ErrNotFound = errors.New("no such plant")
	// ErrUnavailable: the database could not be reached in time.
	ErrUnavailable = errors.New("database unavailable")
	// ErrBusy: the row or table was locked, or the statement took too long, and
	// the database rolled it back.
	ErrBusy = errors.New("database busy")
	// ErrStoreRule: a trigger, rule or constraint of the store's own refuses the
	// deletion or keeps the row, and would do so again.
	ErrStoreRule = errors.New("refused by a rule of the store's own")
	// ErrHindered: the database would not record the deletion, hides plants, or lacks
	// something that a deletion needs. Somebody has to mend it.
	ErrHindered = errors.New("the database hinders deletions")
	// ErrOverloaded: too much is going on already; nothing was tried.
	ErrOverloaded = errors.New("too many requests in flight")
	// ErrUnknown: the connection was lost while the database was committing, and
	// what became of the deletion was not to be learned in time. The same
	// deletion with the same key can be tried again and will tell.
	ErrUnknown = errors.New("outcome unknown")
)

// OverBudgetError is returned for a plant that the principal may not delete yet: its
// deletion budget is used up. An earlier request with the same key may still be under way.
type OverBudgetError struct {
	// Left is how many plants the principal may still delete: too few for this request,
	// which would take others along.
	Left int64
	// Until is when there is room for the deletion, or for as much as the budget has.
	Until time.Time
	// Budget is what the database holds the principal to.
	Budget Budget
	// Lifted is until when that was lifted last; zero if it never was.
	Lifted time.Time
	// First is set once for each time that a budget is used up, for the log.
	First bool
}

// RetryAfter is how long it takes until then.
func (e *OverBudgetError) RetryAfter() time.Duration { return time.Until(e.Until) }

func (e *OverBudgetError) Error() string {
	return fmt.Sprintf("deletion budget used up until %s", e.Until.UTC().Format(time.RFC3339))
}

// DeletedEarlierError is returned for a plant that another request, or somebody
// with direct access to the database, has deleted.
type DeletedEarlierError struct {
	At time.Time
}

func (e *DeletedEarlierError) Error() string {
	return fmt.Sprintf("deleted earlier, at %s", e.At.UTC().Format(time.RFC3339))
}

// ReferencedError is returned for a plant that rows of another table refer to.
type ReferencedError struct {
	Table string
}

func (e *ReferencedError) Error() string {
	return fmt.Sprintf("referred to by table %q", e.Table)
}
