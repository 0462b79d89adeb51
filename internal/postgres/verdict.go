package postgres

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/plant"
)

// SQLSTATEs that are named in this package, see PostgreSQL's manual, appendix A.
const (
	uniqueViolation       = "23505"
	readOnlyTransaction   = "25006"
	undefinedTable        = "42P01"
	insufficientPrivilege = "42501"
)

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// A fate is what a failed attempt may have done.
type fate int

const (
	// nothing: the attempt certainly had no effect.
	nothing fate = iota
	// unknown: the statement may have been committed, or may be yet.
	unknown
)

// A verdict is what a driver error of one attempt means.
type verdict struct {
	// err is what the caller is told when this was the last attempt: a sentinel
	// or type of package plant around the driver's text, or an error of no kind
	// that plant knows, which is a fault of ours.
	err  error
	fate fate
	// retry is set when another attempt may go differently.
	retry bool
}

// judge classifies an error of a deletion's attempt. sent tells whether the
// attempt had a connection, and so may have reached the server.
//
// The connection can break at any moment of a commit, also between the commit
// and its acknowledgement, so whatever ends a connection in use leaves the fate
// unknown; only the server's own ERROR, which rolls the transaction back, is
// proof that nothing happened.
func judge(err error, sent bool) verdict {
	var connect *pgconn.ConnectError
	var pg *pgconn.PgError
	isPg := errors.As(err, &pg)
	switch {
	case errors.As(err, &connect):
		// Never got as far as a statement. A refused password or a missing
		// database will be refused again; everything else may pass.
		retry := true
		if isPg {
			switch pg.Code[:2] {
			case "28", "3D": // invalid authorization, invalid catalog name
				retry = false
			}
		}
		return verdict{wrap(plant.ErrUnavailable, err), nothing, retry}
	case !sent, pgconn.SafeToRetry(err):
		if isPg && permanent(pg) {
			return verdict{wrap(plant.ErrUnavailable, err), nothing, false}
		}
		return verdict{wrap(plant.ErrUnavailable, err), nothing, true}
	case !isPg:
		return verdict{wrap(plant.ErrUnavailable, err), unknown, true}
	case pg.SeverityUnlocalized == "FATAL" || pg.SeverityUnlocalized == "PANIC" || pg.Code[:2] == "08":
		return verdict{wrap(plant.ErrUnavailable, err), unknown, true}
	}

	switch pg.Code {
	case "57P01", "57P02", "57P03": // admin_shutdown, crash_shutdown, cannot_connect_now
		return verdict{wrap(plant.ErrUnavailable, err), unknown, true}
	case "53300", readOnlyTransaction: // too_many_connections
		return verdict{wrap(plant.ErrUnavailable, err), nothing, true}
	case "55P03", "57014", "40001", "40P01": // lock_not_available, query_canceled, serialization_failure, deadlock_detected
		return verdict{wrap(plant.ErrBusy, err), nothing, true}
	case undefinedTable, "42883", "42703", "3F000": // undefined table, function, column, schema: not migrated
		return verdict{wrap(plant.ErrUnavailable, err), nothing, false}
	}
	switch pg.Code[:2] {
	case "23":
		// A row of another table stands in the way: it refers to the plant
		// (23503, and 23001 of PostgreSQL 18), or ON DELETE SET NULL met a
		// column that may not be null (23502), and so on.
		if pg.TableName != "" && pg.TableName != "plant_deletions" {
			return verdict{&plant.ReferencedError{Table: pg.TableName}, nothing, false}
		}
	case "53", "58": // insufficient resources, system error: a full disk may be mended
		return verdict{wrap(plant.ErrUnavailable, err), nothing, true}
	}
	return verdict{fmt.Errorf("delete: %s", Explain(err)), nothing, false}
}

// permanent reports whether a server that answered will say the same again.
func permanent(pg *pgconn.PgError) bool {
	switch pg.Code[:2] {
	case "28", "3D", "42":
		return true
	}
	return false
}

// wrap keeps the driver's text for the log and drops its type.
func wrap(sentinel, driver error) error {
	return fmt.Errorf("%w: %s", sentinel, Explain(driver))
}
