package postgres

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
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
)

// Each meaning has a row, and what its row needs.
func TestEveryMeaningHasARow(t *testing.T) {
	t.Parallel()
	names := meaningNames(t)
	if len(names) != numMeanings {
		t.Fatalf("errors.go has the meanings %q; want %d", names, numMeanings)
	}
	words := make(map[string]string)
	for m, row := range meanings {
		name := names[m]
		if row.next == 0 {
			t.Errorf("%s has no row in meanings", name)
			continue
		}
		if wantsWord := meaning(m) != deleted && meaning(m) != missing && meaning(m) != overloaded; (row.word != "") != wantsWord {
			t.Errorf("%s: the word is %q; want one: %t", name, row.word, wantsWord)
		}
		if other := words[row.word]; other != "" {
			t.Errorf("%s has the word of %s: %q", name, other, row.word)
		}
		if row.word != "" {
			words[row.word] = name
		}
		if wantsErr := row.next == retry || row.next == giveUp; (row.err != nil) != wantsErr {
			t.Errorf("%s: the error is %v; want one: %t", name, row.err, wantsErr)
		}
		wantsRefusal := row.next == refuse || row.next == resolve
		if (row.refusal != 0) != wantsRefusal {
			t.Errorf("%s: the refusal is %d; want one: %t", name, row.refusal, wantsRefusal)
		}
	}
}

// meaningNames are the names of the constants, in their order.
func meaningNames(t *testing.T) (names []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		block, ok := d.(*ast.GenDecl)
		if !ok || block.Tok != token.CONST {
			continue
		}
		if first := block.Specs[0].(*ast.ValueSpec); first.Type == nil || first.Type.(*ast.Ident).Name != "meaning" {
			continue
		}
		for _, s := range block.Specs[:len(block.Specs)-1] { // the last one is their number
			names = append(names, s.(*ast.ValueSpec).Names[0].Name)
		}
	}
	return names
}

// The codes that plantstore.resolve records are those that have an error.
func TestEveryRefusalHasAnError(t *testing.T) {
	t.Parallel()
	codes := value[[]int](t, newStore(t), `SELECT array_agg(DISTINCT m[1]::int ORDER BY m[1]::int)
		FROM pg_proc, regexp_matches(prosrc, '\m4\d{4}\M', 'g') m WHERE oid = 'plantstore.resolve'::regproc`)
	at := time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
	pg := &pgconn.PgError{Severity: "ERROR", Code: "P0001", Message: "no", TableName: "orders", ConstraintName: "few"}
	wants := map[int]string{codeNotFound: plant.ErrNotFound.Error(), codeDeletedEarlier: "deleted earlier", codeReferenced: "referenced orders", codeStoreRule: "rule few"}
	if got := slices.Sorted(maps.Keys(wants)); !slices.Equal(got, codes) {
		t.Errorf("plantstore.resolve records the codes %d; want %d, which have errors", codes, got)
	}
	for n, row := range meanings {
		if row.refusal != 0 && wants[row.refusal] == "" {
			t.Errorf("meaning %d: plantstore.resolve records no refusal %d", n, row.refusal)
		}
	}
	for code, want := range wants {
		if got := outcomeOf(refused(code, at, fmt.Errorf("wrapped: %w", pg))); got != want {
			t.Errorf("%d: %s; want %s", code, got, want)
		}
		if got, first := outcomeOf(refused(code, at, nil)), strings.Fields(want)[0]; !strings.HasPrefix(got, first) {
			t.Errorf("%d without a cause: %s; want %s", code, got, first)
		}
	}
	if err := refused(49999, at, nil); err == nil {
		t.Error("a code of a newer plantstore has no error")
	}
}

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

// Each SQLSTATE and class that errors.go names has a case in TestClassify.
func TestEverySQLSTATEHasACase(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	_, cases, _ := strings.Cut(read("errors_test.go"), "\nfunc TestClassify(")
	cases, _, _ = strings.Cut(cases, "\n}\n")
	found := regexp.MustCompile(`(?:(\w+) += )?"([0-9A-Z]{5}|[0-9A-Z]{2})"`).FindAllStringSubmatch(read("errors.go"), -1)
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
func TestRefusalThatTheLedgerDoesNotRecord(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	d := s.sent(s.plant(t, 1), "key")
	if r, err := s.resolve(t.Context(), &d, 40999); err == nil || err.Error() != "plantstore.resolve records no refusal 40999" {
		t.Errorf("got %+v, %v; want an error that names the code", r, err)
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

// A ledger that is locked is busy, not out of reach.
func TestALockedLedgerIsBusy(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	l := patient
	l.soloLock, l.margin = time.Millisecond, 2*time.Hour // more than a request has, so there is one call
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
