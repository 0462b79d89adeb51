package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"
	"github.com/labstack/echo/v4"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

// published is openapi.yaml, read.
var published = sync.OnceValue(func() *openapi3.T {
	doc, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		panic(err)
	}
	return doc
})

// deletion is the documented operation. It also says how requests are answered
// that have no route.
func deletion() *openapi3.Operation { return published().Paths.Value("/plants/{id}").Delete }

func TestOpenAPIIsValid(t *testing.T) {
	t.Parallel()
	// Validates the examples against their schemas, too.
	if err := published().Validate(t.Context(), openapi3.EnableSchemaFormatValidation()); err != nil {
		t.Error(err)
	}
}

// A client that is generated from it has one operation.
func TestOpenAPIHasTheRoutes(t *testing.T) {
	t.Parallel()
	var documented, routed []string
	for path, item := range published().Paths.Map() {
		for method := range item.Operations() {
			documented = append(documented, method+" "+path)
		}
	}
	param := regexp.MustCompile(`:(\w+)`)
	for _, r := range New(testConfig()).public.Routes() {
		if !isPage(r.Path) {
			routed = append(routed, r.Method+" "+param.ReplaceAllString(r.Path, "{$1}"))
		}
	}
	slices.Sort(documented)
	slices.Sort(routed)
	if diff := cmp.Diff(routed, documented); diff != "" || len(routed) != 1 {
		t.Errorf("routes (-) and openapi.yaml (+) differ, or are not one:\n%s", diff)
	}
}

// Whoever has a token of either kind may delete.
func TestOpenAPIHasBothKindsOfTokens(t *testing.T) {
	t.Parallel()
	formats := make(map[string]string)
	for name, scheme := range published().Components.SecuritySchemes {
		if scheme.Value.Type != "http" || scheme.Value.Scheme != "bearer" {
			t.Errorf("scheme %s is %s %s, want http bearer", name, scheme.Value.Type, scheme.Value.Scheme)
		}
		formats[name] = scheme.Value.BearerFormat
	}
	if diff := cmp.Diff(map[string]string{"token": "", "jwt": "JWT"}, formats); diff != "" {
		t.Errorf("schemes and their formats (-want +got):\n%s", diff)
	}
	want := &openapi3.SecurityRequirements{{"token": {auth.ScopeDelete}}, {"jwt": {auth.ScopeDelete}}}
	if diff := cmp.Diff(want, deletion().Security); diff != "" {
		t.Errorf("security of the deletion (-want +got):\n%s", diff)
	}
}

// causes has an error for every code of the catalogue, with the particulars that
// the examples in openapi.yaml have.
var causes = map[int32]error{
	40000: auth.ErrMalformed,
	40001: plant.ErrBadID,
	40002: errBadKey,
	40100: auth.ErrNoCredentials,
	40101: auth.ErrInvalidToken,
	40300: errScope,
	40400: errNoRoute,
	40401: plant.ErrNotFound,
	40402: &plant.DeletedEarlierError{At: time.Date(2026, 11, 20, 10, 30, 0, 0, time.FixedZone("CET", 3600))},
	40500: errMethod,
	40900: &plant.ReferencedError{Table: "order_items"},
	40901: plant.ErrStoreRule,
	41200: errPrecondition,
	41300: errTooLarge,
	42900: errTooManyFailures,
	42901: &plant.OverBudgetError{Until: time.Date(2026, 11, 20, 10, 30, 0, 0, time.FixedZone("CET", 3600))},
	50000: io.ErrUnexpectedEOF,
	50300: plant.ErrUnavailable,
	50301: plant.ErrBusy,
	50302: plant.ErrOverloaded,
	50303: auth.ErrKeysUnknown,
	50304: plant.ErrHindered,
	50400: fmt.Errorf("%w: %w", plant.ErrUnknown, plant.ErrUnavailable),
}

func TestOpenAPIHasTheCatalogue(t *testing.T) {
	t.Parallel()
	// What the answers to the deletion are, by status, in the document and in the
	// catalogue: which headers (true: always) and which errors.
	type answers struct {
		Headers  map[string]bool
		Examples map[string]errorBody
	}
	documented, catalogued := make(map[string]answers), make(map[string]answers)
	for status, response := range deletion().Responses.Map() {
		a := answers{make(map[string]bool), make(map[string]errorBody)}
		for name, header := range response.Value.Headers {
			a.Headers[name] = header.Value.Required
		}
		if content := response.Value.Content["application/json"]; content != nil {
			for name, example := range content.Examples {
				a.Examples[name] = errorOf(t, example.Value.Value)
			}
		}
		documented[status] = a
	}

	catalogued["204"] = answers{map[string]bool{headerRequestID: true, headerReplayed: false}, map[string]errorBody{}}
	byStatus := make(map[int][]errorAnswer)
	for _, r := range catalogue {
		byStatus[r.status()] = append(byStatus[r.status()], r)
	}
	for status, refusals := range byStatus {
		a := answers{map[string]bool{headerRequestID: true}, make(map[string]errorBody)}
		if status == http.StatusMethodNotAllowed {
			a.Headers[echo.HeaderAllow] = true
		}
		if status >= 500 || status == http.StatusTooManyRequests {
			a.Headers[echo.HeaderRetryAfter] = true
		}
		if status >= 500 {
			a.Headers[headerIdempotencyKey] = false
		}
		challenged := func(r errorAnswer) bool { return r.challenge != "" }
		if slices.ContainsFunc(refusals, challenged) {
			a.Headers[echo.HeaderWWWAuthenticate] = !slices.ContainsFunc(refusals, func(r errorAnswer) bool { return !challenged(r) })
		}
		for _, r := range refusals {
			a.Examples[strconv.Itoa(int(r.code))] = errorBody{r.code, r.message(causes[r.code])}
		}
		if status == http.StatusTooManyRequests {
			a.Examples["42900, your own"] = errorBody{42900, tooManyMessage(&tooFastError{})}
		}
		catalogued[strconv.Itoa(status)] = a
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

func TestCatalogueTakesTheFirstRowThatFits(t *testing.T) {
	t.Parallel()
	if got, want := len(causes), len(catalogue); got != want {
		t.Errorf("%d codes have a cause, want all %d of the catalogue", got, want)
	}
	for code, cause := range causes {
		wrapped := fmt.Errorf("outer: %w", cause)
		i := slices.IndexFunc(catalogue, func(r errorAnswer) bool { return r.is(wrapped) })
		if got := catalogue[i].code; got != code {
			t.Errorf("error %q has code %d, want %d", wrapped, got, code)
		}
	}
}
