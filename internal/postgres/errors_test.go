package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
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
	_, constants, _ := strings.Cut(source(t, "errors.go"), "\ntype meaning int\n\nconst (")
	constants, _, _ = strings.Cut(constants, "numMeanings")
	names := regexp.MustCompile(`\n\t(\w+)`).FindAllStringSubmatch(constants, -1)
	if len(names) != numMeanings {
		t.Fatalf("errors.go has the meanings %q; want %d", names, numMeanings)
	}
	words := make(map[string]string)
	for m, row := range meanings {
		name := names[m][1]
		if row.next == 0 {
			t.Errorf("%s has no row in meanings", name)
			continue
		}
		if wantsWord := meaning(m) != deleted && meaning(m) != missing && meaning(m) != overloaded; (row.word != "") != wantsWord {
			t.Errorf("%s: the word is %q; want one: %t", name, row.word, wantsWord)
		}
		if other, ok := words[row.word]; ok && row.word != "" {
			t.Errorf("%s has the word of %s: %q", name, other, row.word)
		}
		words[row.word] = name
		if wantsErr := row.next == retry || row.next == giveUp; (row.err != nil) != wantsErr {
			t.Errorf("%s: the error is %v; want one: %t", name, row.err, wantsErr)
		}
		if wantsRefusal := row.next == refuse || row.next == resolve; (row.refusal != 0) != wantsRefusal {
			t.Errorf("%s: the refusal is %d; want one: %t", name, row.refusal, wantsRefusal)
		}
	}
}

// source returns a file of the package.
func source(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Each code that plantstore.resolve records has an error, and no other code has one.
func TestEveryRefusalHasAnError(t *testing.T) {
	t.Parallel()
	codes := value[[]int](t, newStore(t), `SELECT array_agg(DISTINCT m[1]::int ORDER BY m[1]::int)
		FROM pg_proc, regexp_matches(prosrc, '\m4\d{4}\M', 'g') m WHERE oid = 'plantstore.resolve'::regproc`)
	cause := fmt.Errorf("wrapped: %w", &pgconn.PgError{Severity: "ERROR", Code: "P0001", Message: "no", TableName: "orders", ConstraintName: "few"})
	wants := map[int][2]string{ // without a cause, and with it
		codeNotFound:       {"no such plant", "no such plant"},
		codeDeletedEarlier: {"deleted earlier", "deleted earlier"},
		codeReferenced:     {"referenced", "referenced orders"},
		codeStoreRule:      {"rule", "rule few"},
	}
	if got := slices.Sorted(maps.Keys(wants)); !slices.Equal(got, codes) {
		t.Errorf("plantstore.resolve records the codes %d; want %d, which have errors", codes, got)
	}
	for m, row := range meanings {
		if _, ok := wants[row.refusal]; row.refusal != 0 && !ok {
			t.Errorf("meaning %d: plantstore.resolve records no refusal %d", m, row.refusal)
		}
	}
	for code, want := range wants {
		if got := [2]string{outcomeOf(refused(code, time.Time{}, nil)), outcomeOf(refused(code, time.Time{}, cause))}; got != want {
			t.Errorf("%d without a cause, and with it: %q; want %q", code, got, want)
		}
	}
	if err := refused(49999, time.Time{}, nil); err == nil {
		t.Error("a code of a newer plantstore has no error")
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

func TestManualHasTheReasons(t *testing.T) {
	t.Parallel()
	var want, got []string
	for _, row := range meanings {
		if row.word != "" {
			want = append(want, row.word)
		}
	}
	for _, row := range readme.Table(t, "deploy/docs/metrics.md", "reason") {
		got = append(got, row[0])
	}
	if !slices.Equal(got, want) {
		t.Errorf("the reasons in deploy/docs/metrics.md are %q; want %q", got, want)
	}
}

// Each SQLSTATE and class that errors.go names has a case in TestClassify.
func TestEverySQLSTATEHasACase(t *testing.T) {
	t.Parallel()
	_, cases, _ := strings.Cut(source(t, "errors_test.go"), "\nfunc TestClassify(")
	cases, _, _ = strings.Cut(cases, "\n}\n")
	found := regexp.MustCompile(`(?:(\w+) += )?"([0-9A-Z]{5}|[0-9A-Z]{2})"`).FindAllStringSubmatch(source(t, "errors.go"), -1)
	if len(found) == 0 {
		t.Fatal("errors.go names no SQLSTATE")
	}
	for _, m := range found {
		if name, code := m[1], m[2]; !regexp.MustCompile(`\b`+code).MatchString(cases) && (name == "" || !strings.Contains(cases, name)) {
			t.Errorf("%s has no case in TestClassify", code)
		}
	}
}

// A meaning whose code is not in plantstore.resolve would be tried until the deadline.
func TestRefusalUnknownToTheLedgerIsAnError(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	d := s.sent(s.plant(t, 1), "key")
	if r, err := s.resolve(t.Context(), &d, 40999); err == nil || err.Error() != "plantstore.resolve records no refusal 40999" {
		t.Errorf("got %+v, %v; want an error that names the code", r, err)
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
