package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// A no is final, so only what is certain to stay refused may be one.
func TestClassify(t *testing.T) {
	t.Parallel()
	for want, codes := range map[meaning]string{
		referenced:    "23503 23001",
		storeRule:     "23502 23505 23514 23P01 P0001 MY001 22012",
		overBudget:    budgetUsedUp,
		busy:          "55P03 57014 40001 40P01",
		unreachable:   "25006 53100 53200 53300",
		misconfigured: "08006 22021 22P05 25P02 26000 28000 3D000 3F000 42501 54001 55000 57P01 58030 HV00N XX000",
	} {
		for code := range strings.FieldsSeq(codes) {
			err := fmt.Errorf("wrapped: %w", &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: code})
			if got := classify(err); got != want {
				t.Errorf("%s: got %v, want %v", code, got, want)
			}
			err = &pgconn.PgError{SeverityUnlocalized: "FATAL", Code: code}
			if got := classify(err); got != lost {
				t.Errorf("FATAL %s: got %v, want %v", code, got, lost)
			}
		}
	}
	ledger := pgconn.PgError{SeverityUnlocalized: "ERROR", SchemaName: "plantstore", TableName: "deletions"}
	for want, c := range map[meaning][2]string{conflict: {"23505", "deletions_once"}, misconfigured: {"23505", "deletions_pkey"}, unexpectedRow: {"23502", ""}} {
		err := ledger
		err.Code, err.ConstraintName = c[0], c[1]
		if got := classify(&err); got != want {
			t.Errorf("%s of the ledger: got %v, want %v", c, got, want)
		}
		err.SchemaName = "public"
		if got := classify(&err); got != storeRule {
			t.Errorf("%s of a table of the store's: got %v, want %v", c, got, storeRule)
		}
	}
	if got := classify(&pgconn.PgError{SeverityUnlocalized: "ERROR", SchemaName: "plantstore", TableName: "cascaded", Code: "23505", ConstraintName: "cascaded_pkey"}); got != misconfigured {
		t.Errorf("23505 of plantstore.cascaded: got %v, want %v", got, misconfigured)
	}
	if got := classify(errors.New("EOF")); got != lost {
		t.Errorf("no error of the server: got %v, want %v", got, lost)
	}
}

func TestNotAcquired(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		err  error
		want meaning
	}{
		{"all were in use", context.DeadlineExceeded, busy},
		{"the request ended", context.Canceled, busy},
		{"the database refused", &pgconn.ConnectError{}, unreachable},
		{"the database did not answer", errors.Join(&pgconn.ConnectError{}, context.DeadlineExceeded), unreachable},
		{"the pool was closed", errors.New("closed pool"), unreachable},
	} {
		if got := notAcquired(test.err); got != test.want {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}

func TestAServerErrorSaysWhere(t *testing.T) {
	t.Parallel()
	for where, want := range map[string]string{"": "ERROR: no (SQLSTATE P0001)", "function rule()": "ERROR: no (SQLSTATE P0001), at function rule()"} {
		if got := (&serverError{&pgconn.PgError{Severity: "ERROR", Code: "P0001", Message: "no", Where: where}}).Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
