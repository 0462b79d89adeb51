package server

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
	"plantstore/internal/readme"
)

// published is openapi.yaml, read.
var published = sync.OnceValue(func() *openapi3.T {
	doc, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		panic(err)
	}
	return doc
})

// deletion is the documented operation. It has the answers to requests without a route,
// too.
func deletion() *openapi3.Operation { return published().Paths.Value("/plants/{id}").Delete }

func TestOpenAPIIsValid(t *testing.T) {
	t.Parallel()
	// Validates the examples against their schemas, too.
	if err := published().Validate(t.Context(), openapi3.EnableSchemaFormatValidation()); err != nil {
		t.Error(err)
	}
}

func TestOpenAPIHasTheRoutes(t *testing.T) {
	t.Parallel()
	for path, item := range published().Paths.Map() {
		if path != "/plants/{id}" || len(item.Operations()) != 1 || item.Delete == nil {
			t.Errorf("openapi.yaml has %s with %v, want nothing but DELETE /plants/{id}", path, item.Operations())
		}
	}
	for _, r := range New(testConfig()).public.Routes() {
		if !isPage(r.Path) && r.Method+" "+r.Path != "DELETE /plants/:id" {
			t.Errorf("%s %s is not in openapi.yaml", r.Method, r.Path)
		}
	}
}

// causes has an error for each row of the catalogue, by its outcome, with the particulars
// of the examples in openapi.yaml.
var causes = map[string]error{
	"malformed_credentials": auth.ErrMalformed,
	"bad_id":                plant.ErrBadID,
	"bad_key":               errBadKey,
	"no_credentials":        auth.ErrNoCredentials,
	"invalid_token":         auth.ErrInvalidToken,
	"scope_missing":         errScope,
	"no_route":              errNoRoute,
	"not_found":             plant.ErrNotFound,
	"deleted_earlier":       &plant.DeletedEarlierError{At: time.Date(2026, 11, 20, 10, 30, 0, 0, time.FixedZone("CET", 3600))},
	"bad_method":            errMethod,
	"referenced":            &plant.ReferencedError{Table: "order_items"},
	"store_rule":            &plant.StoreRuleError{},
	"precondition_failed":   errPrecondition,
	"body_too_large":        errTooLarge,
	"too_many_failures":     errTooManyFailures,
	"too_fast":              &rateError{errTooFast, time.Second},
	"over_budget":           &plant.OverBudgetError{Until: time.Date(2026, 11, 20, 10, 30, 0, 0, time.FixedZone("CET", 3600))},
	"error":                 io.ErrUnexpectedEOF,
	"unavailable":           plant.ErrUnavailable,
	"busy":                  plant.ErrBusy,
	"overloaded":            plant.ErrOverloaded,
	"keys_unknown":          auth.ErrKeysUnknown,
	"misconfigured":         plant.ErrMisconfigured,
	"unknown":               fmt.Errorf("%w: %w", plant.ErrUnknown, plant.ErrUnavailable),
}

func TestOpenAPIHasEveryErrorCode(t *testing.T) {
	t.Parallel()
	documented, catalogued := make(map[string]errorBody), make(map[string]errorBody)
	for _, response := range deletion().Responses.Map() {
		if content := response.Value.Content["application/json"]; content != nil {
			for name, example := range content.Examples {
				documented[name] = errorOf(t, example.Value.Value)
			}
		}
	}
	for _, r := range catalogue {
		name := strconv.Itoa(int(r.code))
		if r.outcome == "too_fast" {
			name += ", your own"
		}
		if got := answerTo(causes[r.outcome]).outcome; got != r.outcome {
			t.Errorf("the cause of %s is answered as %s", r.outcome, got)
		}
		catalogued[name] = errorBody{r.code, r.message(causes[r.outcome])}
	}
	if diff := cmp.Diff(catalogued, documented); diff != "" {
		t.Errorf("catalogue (-) and openapi.yaml (+) differ:\n%s", diff)
	}
}

// errorOf reads an example.
func errorOf(t *testing.T, example any) errorBody {
	t.Helper()
	var e errorBody
	data, err := json.Marshal(example)
	if err == nil {
		err = json.Unmarshal(data, &e)
	}
	if err != nil {
		t.Fatalf("example %v: %v", example, err)
	}
	return e
}

// An attempted deletion can end with every error except those in before.
func TestMetricsHaveEveryOutcomeOfADeletion(t *testing.T) {
	t.Parallel()
	before := []string{"malformed_credentials", "bad_id", "bad_key", "no_credentials", "invalid_token", "scope_missing", "no_route", "bad_method",
		"precondition_failed", "body_too_large", "too_many_failures", "too_fast", "keys_unknown"}
	for _, r := range catalogue {
		outcome := r.outcome
		if got, want := slices.Contains(outcomes[:], outcome), !slices.Contains(before, outcome); got != want {
			t.Errorf("%s is among the outcomes of metrics.go: %t; want %t", outcome, got, want)
		}
	}
}

// Answers that net/http gives by itself are documented, too.
func TestOpenAPIHasTheAnswersOfNetHTTP(t *testing.T) {
	t.Parallel()
	const head = "DELETE /plants/1 HTTP/1.1\r\nHost: plants.example\r\n"
	_, documented, _ := strings.Cut(published().Info.Description, "Some requests get no further")
	for raw, want := range map[string]int{
		"nonsense\r\n\r\n":                                          400,
		head + "Expect: a miracle\r\n\r\n":                          417,
		head + "X: " + strings.Repeat("x", 24<<10) + "\r\n":         431,
		head + "Transfer-Encoding: gzip\r\n\r\n":                    501,
		"DELETE /plants/1 HTTP/3.0\r\nHost: plants.example\r\n\r\n": 505,
	} {
		synctest.Test(t, func(t *testing.T) {
			conn := run(t, testConfig()).public.dial(t)
			go io.WriteString(conn, raw) // the server may not read the request to the end
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || response.StatusCode != want || !response.Close || response.Header.Get(headerRequestID) != "" {
				t.Errorf("%.60q: %v, %v; want %d without X-Request-Id, and Connection: close", raw, response, err, want)
			}
			if !strings.Contains(documented, strconv.Itoa(want)+" for") {
				t.Errorf("openapi.yaml does not have %d among %s", want, documented)
			}
		})
	}
}

// README.md has each code with its status, in order.
func TestREADMEHasEveryErrorCode(t *testing.T) {
	t.Parallel()
	var want, got []string
	for _, r := range catalogue {
		want = append(want, fmt.Sprint(r.code, " ", r.status()))
	}
	for _, row := range readme.Table(t, "README.md", "error") {
		got = append(got, row[0]+" "+row[1])
	}
	slices.Sort(want)
	if diff := cmp.Diff(slices.Compact(want), got); diff != "" {
		t.Errorf("errors (-catalogue +README.md):\n%s", diff)
	}
}
