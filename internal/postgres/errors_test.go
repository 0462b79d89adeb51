package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
	"plantstore/internal/readme"
)

// Each meaning has a row, and the row has all values that it needs.
func TestEveryMeaningHasARow(t *testing.T) {
	t.Parallel()
	var words []string
	for m, row := range meanings {
		if row.next == 0 {
			t.Errorf("meaning %d has no row", m)
		}
		if wantsWord := meaning(m) != deleted && meaning(m) != missing && meaning(m) != overloaded; (row.word != "") != wantsWord || slices.Contains(words, row.word) {
			t.Errorf("meaning %d: the word is %q, others are %q; want one of its own: %t", m, row.word, words, wantsWord)
		}
		if row.word != "" {
			words = append(words, row.word)
		}
		if wantsErr := row.next == retry || row.next == giveUp; (row.err != nil) != wantsErr {
			t.Errorf("meaning %d: the error is %v; want one: %t", m, row.err, wantsErr)
		}
		if wantsRefusal := row.next == refuse || row.next == resolve; (row.refusal != 0) != wantsRefusal {
			t.Errorf("meaning %d: the refusal is %d; want one: %t", m, row.refusal, wantsRefusal)
		}
	}
	var got []string
	for _, row := range readme.Table(t, "deploy/docs/metrics.md", "reason") {
		got = append(got, row[0])
	}
	if !slices.Equal(got, words) {
		t.Errorf("the reasons in deploy/docs/metrics.md are %q; want %q", got, words)
	}
}

// A recorded refusal is final, so only an error with a lasting cause may be one.
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
			for severity, want := range map[string]meaning{"ERROR": want, "FATAL": lost} {
				if got := classify(fmt.Errorf("wrapped: %w", &pgconn.PgError{SeverityUnlocalized: severity, Code: code})); got != want {
					t.Errorf("%s %s: got %v, want %v", severity, code, got, want)
				}
			}
		}
	}
	for _, test := range []struct {
		schema, table, code, constraint string
		want                            meaning
	}{
		{"plantstore", "deletions", "23505", "deletions_once", conflict},
		{"plantstore", "deletions", "23505", "deletions_pkey", misconfigured},
		{"plantstore", "deletions", "23502", "", unexpectedRow},
		{"plantstore", "cascaded", "23505", "cascaded_pkey", misconfigured},
		{"public", "deletions", "23505", "deletions_once", storeRule},
		{"public", "deletions", "23502", "", storeRule},
	} {
		err := &pgconn.PgError{SeverityUnlocalized: "ERROR", SchemaName: test.schema, TableName: test.table, Code: test.code, ConstraintName: test.constraint}
		if got := classify(err); got != test.want {
			t.Errorf("%s of %s.%s: got %v, want %v", test.code, test.schema, test.table, got, test.want)
		}
	}
	if got := classify(errors.New("EOF")); got != lost {
		t.Errorf("no error of the server: got %v, want %v", got, lost)
	}
}

func TestClassifyConnectionNotAcquired(t *testing.T) {
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

// A locked ledger makes a deletion busy, not the database unreachable.
func TestLockedLedgerIsBusy(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	l := *hasty()
	l.soloLock = time.Millisecond
	s := limitedStore(t, l, database)
	_, release := holder(t, database, `LOCK TABLE plantstore.deletions IN EXCLUSIVE MODE`)
	defer release()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	d := s.sent(s.first, "key")
	if _, err := s.resolve(ctx, &d, codeNotFound); !errors.Is(err, plant.ErrBusy) {
		t.Errorf("resolve: %v; want ErrBusy", err)
	}
}
