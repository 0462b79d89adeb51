package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/plant"
)

// SQLSTATEs with a meaning of their own, see PostgreSQL's manual, appendix A.
const (
	uniqueViolation       = "23505"
	notNullViolation      = "23502"
	foreignKeyViolation   = "23503"
	restrictViolation     = "23001"
	readOnlyTransaction   = "25006"
	insufficientPrivilege = "42501"
	lockNotAvailable      = "55P03"
	queryCanceled         = "57014"
	budgetUsedUp          = "PSB01" // plantstore.charge
)

// A meaning is an attempt's result, as its deletion has to treat it.
type meaning int

const (
	deleted       meaning = iota
	missing               // no row was deleted, and there was no error
	conflict              // an outcome of the key is recorded
	unexpectedRow         // the batch would delete a plant that none of its deletions named
	referenced            // rows of a table refer to the plant
	storeRule             // a trigger or constraint of the store's keeps the plant
	overBudget            // the principal's budget is used up
	busy                  // a lock was not acquired in time, or the statement took too long
	batchBusy             // the same for a batch: each of its deletions has to go alone
	unreachable           // nothing was sent
	lost                  // the connection ended: the attempt may be committed now or later
	misconfigured         // somebody has to fix the database
	overloaded            // too many are in flight
	numMeanings   = iota
)

// A next is the step that follows an attempt.
type next int

const (
	_       next = iota
	succeed      // the attempt deleted the plant
	retry        // the attempt did nothing, and another one may succeed soon
	giveUp       // the attempt did nothing, and another one would not, either
	refuse       // the attempt did nothing, and the deletion is refused
	resolve      // only the ledger knows what became of the deletion
)

// An effect says how a deletion harms the others of its batch.
type effect int

const (
	_         effect = iota
	slows            // the others wait for the deletion
	rollsBack        // the others have to be tried again
)

// meanings has the consequences of each meaning.
var meanings = [numMeanings]struct {
	word    string // for logs and metrics; empty where no attempt failed
	next    next
	refusal int    // recorded, or returned, where the ledger has no other outcome of the key
	err     error  // returned where no further attempt is made
	effect  effect // where the database said so
}{
	deleted:       {next: succeed},
	missing:       {next: resolve, refusal: codeNotFound},
	conflict:      {word: "conflict", next: resolve, refusal: codeNotFound, effect: rollsBack},
	unexpectedRow: {word: "unexpected_row", next: giveUp, err: plant.ErrMisconfigured}, // a batch of one has no such row
	referenced:    {word: "referenced", next: refuse, refusal: codeReferenced, effect: rollsBack},
	storeRule:     {word: "store_rule", next: refuse, refusal: codeStoreRule, effect: rollsBack},
	overBudget:    {word: "over_budget", next: refuse, refusal: codeNotFound}, // the budget's own refusal is never recorded
	busy:          {word: "busy", next: retry, err: plant.ErrBusy, effect: slows},
	batchBusy:     {word: "batch_busy", next: retry, err: plant.ErrBusy},
	unreachable:   {word: "unreachable", next: retry, err: plant.ErrUnavailable},
	lost:          {word: "lost", next: resolve, refusal: codeNotFound},
	misconfigured: {word: "misconfigured", next: giveUp, err: plant.ErrMisconfigured},
	overloaded:    {next: giveUp, err: plant.ErrOverloaded},
}

// classify returns the meaning of a statement's error. Only an ERROR of the server proves that
// the transaction was rolled back. After anything else, such as a lost connection, the commit
// may have happened.
func classify(err error) meaning {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.SeverityUnlocalized != "ERROR" {
		return lost
	}
	ledger := pg.SchemaName == "plantstore" && pg.TableName == "deletions"
	switch {
	case pg.Code == uniqueViolation && ledger && pg.ConstraintName == "deletions_once":
		return conflict
	case pg.Code == uniqueViolation && pg.SchemaName == "plantstore": // a sequence is behind, as after a logical failover
		return misconfigured
	case pg.Code == notNullViolation && ledger:
		return unexpectedRow
	case pg.Code == foreignKeyViolation || pg.Code == restrictViolation:
		return referenced
	case pg.Code == budgetUsedUp:
		return overBudget
	case pg.Code == lockNotAvailable || pg.Code == queryCanceled:
		return busy
	case pg.Code == readOnlyTransaction:
		return unreachable // this is no primary
	case pg.Code == "22021" || pg.Code == "22P05": // the database's encoding lacks a character of a name or key
		return misconfigured
	}
	switch pg.Code[:min(2, len(pg.Code))] {
	case "40": // deadlock, serialization failure
		return busy
	case "53": // out of disk space, memory, connections
		return unreachable
	case "08", "25", "26", "28", "3D", "3F", "42", "54", "55", "57", "58", "HV", "XX":
		// The store's triggers can raise these, too. The cause may pass soon, so it must never
		// be recorded as a refusal.
		return misconfigured
	}
	return storeRule
}

// notAcquired returns the meaning of an error of Acquire: all connections were in use, or none
// could be made. Nothing was sent.
func notAcquired(err error) meaning {
	_, refused := errors.AsType[*pgconn.ConnectError](err)
	waited := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	if refused || !waited {
		return unreachable
	}
	return busy
}

// Codes of plantstore.resolve. 40401 to 40901 are error codes of the interface.
const (
	codeThere          = 0 // nothing is recorded, and the plant is there
	codeDeleted        = 204
	codeNotFound       = 40401
	codeDeletedEarlier = 40402
	codeReferenced     = 40900
	codeStoreRule      = 40901
	codeTriggerOff     = 50304
)

// refused returns the error of a refusal that the ledger records. The cause is the server's
// error, if this attempt was refused.
func refused(code int, at time.Time, cause error) error {
	pg, ok := errors.AsType[*pgconn.PgError](cause)
	switch {
	case !ok:
		pg, cause = new(pgconn.PgError), nil
	case pg.Where == "":
		cause = pg
	default:
		cause = fmt.Errorf("%w, at %s", pg, pg.Where)
	}
	switch code {
	case codeNotFound:
		return plant.ErrNotFound
	case codeDeletedEarlier:
		return &plant.DeletedEarlierError{At: at}
	case codeReferenced:
		return &plant.ReferencedError{Table: pg.TableName, Cause: cause}
	case codeStoreRule:
		return &plant.StoreRuleError{Constraint: pg.ConstraintName, Cause: cause}
	}
	return fmt.Errorf("the ledger has a refusal with the unknown code %d", code) // of a newer plantstore
}
