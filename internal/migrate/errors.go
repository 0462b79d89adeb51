package migrate

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrReadOnly is the reason not to begin a run where nothing can be written.
var ErrReadOnly = errors.New("nothing was changed: the database is read-only: a standby, or default_transaction_read_only is on. " +
	"Connect to the primary, or see 'plantstore doctor'")

// A HinderedError says what stands in the way. Nothing was changed.
type HinderedError struct{ Troubles []Trouble }

func (e *HinderedError) Error() string {
	all := make([]string, len(e.Troubles))
	for i, t := range e.Troubles {
		all[i] = t.Message
	}
	return "nothing was changed: " + strings.Join(all, "; ")
}

// A FailedError says which migration failed. Of itself nothing was applied or taken
// back, unless it runs outside a transaction. Those before it were, unless Whole.
type FailedError struct {
	Name  string // of the file
	Whole bool   // all was one transaction: nothing was changed
	Err   error  // may be a BlockedError
}

func (e *FailedError) Error() string { return e.Where() + ": " + e.Err.Error() }

// Where says which migration failed, and what of those before it.
func (e *FailedError) Where() string {
	if e.Whole {
		return "nothing was changed: migration " + e.Name
	}
	return "migration " + e.Name
}

func (e *FailedError) Unwrap() error { return e.Err }

// A BlockedError says that a lock could not be had.
type BlockedError struct {
	Lock     string    // as in an Event; empty if not seen
	Blockers []Blocker // those of the last attempt
	Attempts int
	Timeout  time.Duration
	Err      error
}

func (e *BlockedError) Error() string {
	none := "no lock"
	switch e.Lock {
	case "":
	case endOfOlder:
		none = "older transactions did not end"
	default:
		none += " " + e.Lock
	}
	message := fmt.Sprintf("%s within %s, in %d attempts: rolled back", none, e.Timeout, e.Attempts)
	for _, b := range e.Blockers {
		message += "; blocked by " + b.String()
	}
	return message
}

func (e *BlockedError) Unwrap() error { return e.Err }

// An InterruptedError says how a migration stands whose run was ended, or lost
// its connection.
type InterruptedError struct {
	Name  string // of the file
	State InterruptedState
	// Err is why: that of the context, or of the connection.
	Err error
}

// An InterruptedState is how an interrupted migration stands.
type InterruptedState string

const (
	Untouched  InterruptedState = "rolled back: nothing of it was changed"
	Complete   InterruptedState = "complete: it was committed before"
	Incomplete InterruptedState = "not recorded as done, but it runs outside a transaction: parts of it may have stayed"
	Undecided  InterruptedState = "either done or rolled back: the database could not be asked within 5 seconds"
)

func (e *InterruptedError) Error() string {
	return fmt.Sprintf("interrupted: migration %s is %s", e.Name, e.State)
}

func (e *InterruptedError) Unwrap() error { return e.Err }
