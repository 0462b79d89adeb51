package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/plant"
)

// SQLSTATEs that are named in this package, see PostgreSQL's manual, appendix A.
const (
	uniqueViolation       = "23505"
	readOnlyTransaction   = "25006"
	undefinedTable        = "42P01"
	undefinedColumn       = "42703"
	undefinedFunction     = "42883"
	insufficientPrivilege = "42501"
	invalidPassword       = "28P01"
	lockNotAvailable      = "55P03"
	queryCanceled         = "57014"
	serializationFailure  = "40001"
	deadlockDetected      = "40P01"
	untranslatable        = "22P05"

	// unrecorded is raised by our own functions in the database: a plant would
	// leave without its record.
	unrecorded = "PST01"
	// budgetUsedUp is raised by them, too: a principal would delete more than it may.
	budgetUsedUp = "PST02"
)

func pgError(err error) *pgconn.PgError {
	pg, _ := errors.AsType[*pgconn.PgError](err)
	return pg
}

func sqlState(err error) string {
	if pg := pgError(err); pg != nil {
		return pg.Code
	}
	return ""
}

// class is the first two characters of an error's code. That of a proxy may have none.
func class(pg *pgconn.PgError) string { return pg.Code[:min(2, len(pg.Code))] }

// A verdict is what came of an attempt at a deletion.
type verdict struct {
	next step
	// replayed: an earlier attempt with the same key had deleted the plant, if next is done
	// and err is nil.
	replayed bool
	// turn is the number to go on with, if next is alone.
	turn int
	// what is what the deletion is, if the attempt has shown that: it goes on as such if next
	// is alone, and its plant is remembered for it. If held, it is locked: that is why the
	// attempt failed.
	what purpose
	// err is what the caller is told if there is no further attempt: a sentinel
	// or type of package plant around the driver's text, or an error of no kind
	// that plant knows, which is a fault of ours.
	err error
	// unparsed: not even the statements could be prepared.
	unparsed bool
	// least is after how long an attempt was ended that the deletion had for itself.
	least time.Duration
	// held: the budget of the deletion's principal is held by another transaction.
	held bool
	// waited is how long the attempt waited for a connection, or its batch to begin, and
	// batch how many deletions that had.
	waited time.Duration
	batch  int
}

// Why an attempt did not bring the outcome of its deletion.
const (
	failedLost        = "answer_lost"  // it may have been committed
	failedUnreachable = "unreachable"  // no connection, or an error that the database has for everybody
	failedLocked      = "locked"       // a lock was not had in time
	failedSlow        = "slow"         // a statement took too long
	failedTogether    = "out_of_batch" // it can't be part of a batch
	failedBusy        = "busy"         // what else is rolled back and tried again
)

// failed returns which of these holds for an attempt; empty for one that brought the
// outcome. Time may have been over with it.
func (v verdict) failed() string {
	switch {
	case v.next == done && !errors.Is(v.err, plant.ErrUnavailable) && !errors.Is(v.err, plant.ErrBusy):
		return ""
	case v.next == ask:
		return failedLost
	case errors.Is(v.err, plant.ErrUnavailable):
		return failedUnreachable
	case v.what == locked:
		return failedLocked
	case v.what == suspected, v.what == slow:
		return failedSlow
	case v.next == alone:
		return failedTogether
	default:
		return failedBusy
	}
}

// A step is what to do after an attempt.
type step int

const (
	// done: the attempt tells it all.
	done step = iota
	// again: nothing happened, and another attempt may go differently.
	again
	// alone: nothing happened. The deletion goes on by itself, on a connection of another
	// share, perhaps in another turn.
	alone
	// look: the attempt deleted nothing, and the ledger may know why.
	look
	// ask: the attempt may have been committed, or may be yet. Nothing is told
	// or tried before the ledger was asked.
	ask
	// absent: the ledger was asked, and has no trace of the deletion.
	absent
)

// An errNotSent kept statements from being sent. Nothing came of them.
//
// What pgconn.SafeToRetry says is no proof of that: in some modes of the driver, the error of a
// connection that was lost while the answer was awaited is that of one that was closed before.
type errNotSent struct{ error }

func (e errNotSent) Unwrap() error { return e.error }

// judge classifies an error of a deletion's attempt. sent tells whether the
// attempt had a connection, and so may have reached the server, see errNotSent.
//
// The connection can break at any moment of a commit, also between the commit
// and its acknowledgement, so whatever ends a connection in use leaves the fate
// unknown; only the server's own ERROR, which rolls the transaction back, is
// proof that nothing happened.
func judge(err error, sent bool) verdict {
	pg := pgError(err)
	unavailable := func(next step) verdict { return verdict{next: next, err: wrap(plant.ErrUnavailable, err)} }
	connect, isConnect := errors.AsType[*pgconn.ConnectError](err)
	_, parsed := errors.AsType[pgx.ErrPreprocessingBatch](err)
	_, notSent := errors.AsType[errNotSent](err)
	switch {
	case errors.Is(err, plant.ErrBusy), errors.Is(err, plant.ErrUnavailable):
		return verdict{next: again, err: err} // waited in vain, see borrow
	case parsed:
		// The statements were about to be parsed, in a round trip of its own before
		// that of the deletion. What held that up may hold it up again.
		v := unavailable(alone)
		switch {
		case pg != nil && endsSession(pg):
			v = unavailable(again)
		case pg != nil:
			v = judgeError(pg, false)
		}
		if v.next == ask {
			v.next = again
		}
		v.unparsed = true
		return v
	case isConnect:
		// Never got as far as a statement. A role that may not log in or a missing
		// database will be refused again; everything else may pass, also a password
		// that is being changed: it is read again for each connection.
		if pg := pgError(connect); pg != nil && pg.Code != invalidPassword && (class(pg) == "28" || class(pg) == "3D") {
			return unavailable(done)
		}
		return unavailable(again)
	case !sent, notSent:
		if pg != nil && permanent(pg) {
			return unavailable(done)
		}
		return unavailable(again)
	case pg == nil,
		endsSession(pg),
		pg.Code == "", // not PostgreSQL's
		class(pg) == "08" && !isElsewhere(pg):
		return unavailable(ask)
	}
	_, atDelete := errors.AsType[errAtDelete](err)
	return judgeError(pg, atDelete)
}

// endsSession reports whether the server ended the session with an error, for whatever
// reason: it says nothing of the statement that it came for. Poolers send no unlocalized
// severity.
func endsSession(pg *pgconn.PgError) bool {
	severity := cmp.Or(pg.SeverityUnlocalized, pg.Severity)
	return severity == "FATAL" || severity == "PANIC"
}

// An errAtDelete is one that came at a DELETE itself, and not at another statement of the
// transaction, or at the commit.
type errAtDelete struct{ error }

func (e errAtDelete) Unwrap() error { return e.error }

// isElsewhere reports whether an ERROR tells of a connection, of a disk, or of whatever else a
// function of the store's uses, such as another server's. It says nothing of our connection,
// nor of the database. What our own functions meet is the database's, unless it is what only
// others' code raises in them.
//
// PostgreSQL never answers that the connection which it answers on has failed: its ERROR of that
// kind is about another one, also where a function in C gives no context. A pooler may answer
// so, and names no routine. 08P01 (protocol_violation) is about ours.
func isElsewhere(pg *pgconn.PgError) bool {
	if pg.Where == "" {
		return class(pg) == "08" && pg.Code != "08P01" && pg.Routine != ""
	}
	switch pg.Code {
	case "57P01", "57P02", "57P03": // see judgeError
		return true
	case readOnlyTransaction, "42P05", "26000":
		return !ourFunction.MatchString(pg.Where)
	}
	switch class(pg) {
	case "08":
		return true
	case "53", "58":
		return !ourFunction.MatchString(pg.Where)
	}
	return false
}

// ourFunction finds a function of ours in the context of an error, which is in any language.
var ourFunction = regexp.MustCompile(`\bplantstore_(record_deletion|prove|refuse|spend|shape|columns|planned_columns)\(`)

// judgeError classifies an ERROR with which the server answered a deletion. It
// rolled the transaction back. The context of an error (pg.Where) is empty unless
// it came from within a function. At a DELETE it may come from an expression of the
// store's, in a rule or policy, and has no context: all that is ours there is an int64.
func judgeError(pg *pgconn.PgError, atDelete bool) verdict {
	stores := pg.Where != "" || atDelete
	rule := verdict{err: wrap(plant.ErrStoreRule, pg)}
	hindered := verdict{err: wrap(plant.ErrHindered, pg)}
	if isElsewhere(pg) {
		return verdict{next: alone, what: retried, err: hindered.err} // it may pass, and nobody has to wait for it
	}
	switch pg.Code {
	case unrecorded:
		return verdict{next: look, err: wrap(plant.ErrHindered, pg)}
	case budgetUsedUp:
		return verdict{next: look, err: newOverBudget(pg)}
	case "57P01", "57P02", "57P03": // admin_shutdown, crash_shutdown, cannot_connect_now
		return verdict{next: ask, err: wrap(plant.ErrUnavailable, pg)}
	case "53300", readOnlyTransaction, // too_many_connections
		"42P05", "26000": // duplicate_prepared_statement, invalid_sql_statement_name: a pooler mixed sessions up
		return verdict{next: again, err: wrap(plant.ErrUnavailable, pg)}
	case lockNotAvailable, queryCanceled, serializationFailure, deadlockDetected:
		return verdict{next: again, err: wrap(plant.ErrBusy, pg)}
	case "0A000": // feature_not_supported: a rule that does not go together with RETURNING
		return rule
	}
	switch class(pg) {
	case "23": // integrity constraint violation
		if isLedgers(pg) {
			return judgeLedger(pg)
		}
		return rule // or a reference, see blame
	case "42": // access rule violation: a right or a name is missing, ours or in a condition of a policy or trigger
		return hindered
	case "08", "53", "58": // connection, insufficient resources, system error: a full disk may be mended
		if atDelete && class(pg) == "58" { // a file that an expression of the store's reads, or the page of one plant
			return verdict{next: alone, what: retried, err: wrap(plant.ErrUnavailable, pg)}
		}
		return verdict{next: again, err: wrap(plant.ErrUnavailable, pg)}
	case "54", "XX": // limits and internal errors, such as a row whose text is too large
		if stores || pg.Code == "54000" { // the latter also where no transaction ids are left
			return hindered
		}
		return fault(pg)
	case "57", "F0": // intervention, configuration
		return fault(pg)
	case "P0", "09", "27", "44": // raised by PL/pgSQL, and in triggers
		return rule
	}
	switch {
	case class(pg) == "55" && pg.Where == "": // object not in prerequisite state: its deletions can't be published
		return hindered
	case stores:
		return rule
	}
	return fault(pg)
}

func fault(err error) verdict { return verdict{err: fmt.Errorf("delete: %s", Explain(err))} }

// isLedgers reports whether a constraint of the ledger was violated.
func isLedgers(pg *pgconn.PgError) bool {
	return pg.SchemaName == "public" && (pg.TableName == "plant_deletions" || pg.TableName == "plant_shapes")
}

// judgeLedger classifies a violation of one of the ledger's constraints.
func judgeLedger(pg *pgconn.PgError) verdict {
	switch {
	case pg.Code == uniqueViolation && pg.TableName == "plant_deletions" && pg.ConstraintName != "plant_deletions_pkey":
		// A second record of the same principal, plant and key was refused, and
		// with it the DELETE. Like a row that is not there: the ledger knows why.
		// (While REINDEX CONCURRENTLY makes plant_deletions_once anew, the index that
		// refuses has another name.)
		return verdict{next: look, err: wrap(plant.ErrBusy, pg)}
	case pg.ColumnName == "deleted_by":
		// A batch took a plant along that nobody in it asked for.
		return verdict{next: alone, err: wrap(plant.ErrBusy, pg)}
	}
	return verdict{err: wrap(plant.ErrHindered, pg)} // such as a sequence that has fallen behind
}

// blame is judge for an error with which a deletion was refused on conn, which it
// asks whose constraint was in the way.
func blame(ctx context.Context, conn *pgx.Conn, err error) verdict {
	v := judge(err, true)
	pg := pgError(err)
	if pg == nil || !errors.Is(v.err, plant.ErrStoreRule) || class(pg) != "23" || pg.TableName == "" {
		return v
	}
	refers, askErr := refersToPlants(ctx, conn, pg)
	switch {
	case askErr != nil:
		return onlyRead(askErr)
	case refers:
		return verdict{err: &plant.ReferencedError{Table: pg.TableName}}
	}
	return v
}

// sendOn decides as what a locked, slow or otherwise busy deletion goes on. One that met its
// budget's lock is tried again (held): its plant is not to blame.
func sendOn(v verdict, err error) verdict {
	if v.next != again && v.next != alone || !errors.Is(v.err, plant.ErrBusy) {
		return v
	}
	// In a database whose transactions are serializable, the row may have changed meanwhile
	// instead: nobody holds it.
	if pg := pgError(err); pg != nil && pg.Code != serializationFailure && strings.Contains(pg.Where, "plantstore_spend(") {
		v.next, v.what, v.held = again, locked, true
		return v
	}
	v.next = alone
	switch sqlState(err) {
	case lockNotAvailable:
		v.what = locked
	case queryCanceled:
		v.what = suspected
	default:
		v.what = retried
	}
	return v
}

// onlyRead judges the error of a statement that deletes nothing. Code of the store's
// that ran with it (a policy, a trigger on the ledger) says nothing of the deletion.
func onlyRead(err error) verdict {
	v := judge(err, true)
	switch {
	case isDefinite(v.err):
		v.err = wrap(plant.ErrHindered, err)
	case v.next == look:
		v.next = done
	case v.next == ask:
		v.next = again
	}
	return v
}

// onlyLooked is onlyRead for a look that was given a time limit. Like a deletion that takes
// long, it goes on where it holds up its own kind only.
func onlyLooked(err error) verdict {
	v := onlyRead(err)
	if sqlState(err) == queryCanceled {
		v.next, v.what = alone, suspected
	}
	return v
}

// permanent reports whether a server that answered will say the same again.
func permanent(pg *pgconn.PgError) bool {
	switch class(pg) {
	case "28", "3D", "42":
		return true
	}
	return false
}

// wrap keeps the driver's text for the log and drops its type.
func wrap(sentinel, driver error) error {
	return fmt.Errorf("%w: %s", sentinel, Explain(driver))
}
