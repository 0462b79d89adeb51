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
	uniqueViolation     = "23505"
	notNullViolation    = "23502"
	foreignKeyViolation = "23503"
	restrictViolation   = "23001"
	readOnlyTransaction = "25006"
	lockNotAvailable    = "55P03"
	queryCanceled       = "57014"
	budgetUsedUp        = "PSB01" // plantstore.charge
)

// A meaning is what an attempt's result means for its deletion.
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
)

// reasons are the labels and log words of attempts that did not bring an outcome.
var reasons = [...]string{conflict: "conflict", unexpectedRow: "unexpected_row", referenced: "referenced", storeRule: "store_rule", overBudget: "over_budget",
	busy: "busy", batchBusy: "batch_busy", unreachable: "unreachable", lost: "lost", misconfigured: "misconfigured",
	overloaded: ""} // nothing was tried

// classify returns what a statement's error means. Only an ERROR of the server proves that
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

// notAcquired is what an error of Acquire means: all connections were in use, or none could
// be made. Nothing was sent.
func notAcquired(err error) meaning {
	_, refused := errors.AsType[*pgconn.ConnectError](err)
	waited := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	if refused || !waited {
		return unreachable
	}
	return busy
}

// Codes of plantstore.outcome. 40401 to 40901 are error codes of the interface.
const (
	codeThere          = 0 // nothing is recorded, and the plant is there
	codeDeleted        = 204
	codeNotFound       = 40401
	codeDeletedEarlier = 40402
	codeReferenced     = 40900
	codeStoreRule      = 40901
	codeTriggerOff     = 50304
)

// errorOf is the error of a refusal's code. The cause is the server's error, if the refusal is
// that of this very attempt.
func errorOf(code int, at time.Time, cause error) error {
	pg, ok := errors.AsType[*pgconn.PgError](cause)
	if ok {
		cause = &serverError{pg}
	} else {
		pg = &pgconn.PgError{}
	}
	switch code {
	case codeDeletedEarlier:
		return &plant.DeletedEarlierError{At: at}
	case codeReferenced:
		return &plant.ReferencedError{Table: pg.TableName, Cause: cause}
	case codeStoreRule:
		return &plant.StoreRuleError{Constraint: pg.ConstraintName, Cause: cause}
	case codeNotFound:
		return plant.ErrNotFound
	}
	return fmt.Errorf("the ledger has a refusal with the unknown code %d", code) // of a newer plantstore
}

// A serverError is an error of the server's with where it was raised, for the log.
type serverError struct{ *pgconn.PgError }

func (e *serverError) Error() string {
	if e.Where == "" {
		return e.PgError.Error()
	}
	return e.PgError.Error() + ", at " + e.Where
}

func (e *serverError) Unwrap() error { return e.PgError }
