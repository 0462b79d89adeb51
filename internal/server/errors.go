package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

// Errors of requests that get no further than this package.
var (
	errBadKey   = errors.New("malformed Idempotency-Key")
	errScope    = errors.New("scope missing")
	errNoRoute  = errors.New("no such route")
	errMethod   = errors.New("method not allowed")
	errTooLarge = errors.New("request body too large")

	errPrecondition    = errors.New("precondition that no plant meets")
	errTooManyFailures = errors.New("authentication failed too often for this address")
)

// errorBody is the body of every error answer.
type errorBody struct {
	Error   int32  `json:"error"`
	Message string `json:"message"`
}

// codeNoRoute is the one code that no route has.
const codeNoRoute = 40400

const realm = `Bearer realm="plantstore"`

// An errorAnswer is how an error is answered.
type errorAnswer struct {
	is        func(error) bool
	code      int32  // the first three digits are the status
	outcome   string // in the log and, of what a deletion can end with, in the metrics
	message   func(error) string
	challenge string // WWW-Authenticate
}

func (r errorAnswer) status() int { return int(r.code / 100) }

// catalogue is every error answer there is. The codes are for good: clients switch
// on them. The first row that fits is taken. README.md and openapi.yaml have the
// same codes, and tests compare them.
var catalogue = []errorAnswer{
	{is(auth.ErrMalformed), 40000, "malformed_credentials", text("The Authorization header cannot be read: send it once, as \"Authorization: Bearer <token>\"."),
		realm + `, error="invalid_request"`},
	{is(plant.ErrBadID), 40001, "bad_id", text("The id in the path is not a plant id: write it as a decimal 64-bit integer without leading zeros or signs other than a minus, such as 42."), ""},
	{is(errBadKey), 40002, "bad_key", text("The Idempotency-Key header cannot be used: send it at most once, with 1 to 255 visible ASCII characters that are no token."), ""},
	{is(auth.ErrNoCredentials), 40100, "no_credentials", text("This needs a bearer token: send \"Authorization: Bearer <token>\"."), realm},
	{is(auth.ErrInvalidToken), 40101, "invalid_token", text("The token is unknown, expired or revoked, or not made for this service: get a new one."),
		realm + `, error="invalid_token"`},
	{is(errScope), 40300, "scope_missing", text("The token does not allow deleting plants: it lacks the scope " + auth.ScopeDelete + "."),
		realm + `, error="insufficient_scope", scope="` + auth.ScopeDelete + `"`},
	{is(errNoRoute), codeNoRoute, "no_route", text("There is nothing at this path: plants are deleted with DELETE /plants/{id}."), ""},
	{is(plant.ErrNotFound), 40401, "not_found", text("There is no plant with this id, and no deletion of one is on record."), ""},
	{isA[*plant.DeletedEarlierError], 40402, "deleted_earlier", deletedEarlier, ""},
	{is(errMethod), 40500, "bad_method", text("This method is not allowed here: see the Allow header."), ""},
	{isA[*plant.ReferencedError], 40900, "referenced", referenced, ""},
	{is(plant.ErrStoreRule), 40901, "store_rule", text("A rule of the store's own, a trigger or a constraint in its database, keeps this plant. It was not deleted, and trying again will not help: ask who runs the store's database."), ""},
	{is(errPrecondition), 41200, "precondition_failed", text("The request asks for a certain version of the plant, with If-Match or If-None-Match, and plants have no versions here. So it deleted nothing: send it without that header if the plant may go as it is."), ""},
	{is(errTooLarge), 41300, "body_too_large", text(fmt.Sprintf("The request body is larger than %d bytes: a deletion needs none.", maxBody)), ""},
	{tooMany, 42900, "too_many", tooManyMessage, ""},
	{is(plant.ErrUnknown), 50400, "unknown", text("The connection to the database was lost while it was deleting: the plant may be gone or not. Send the same request again with the Idempotency-Key of this answer to find out."), ""},
	{isA[*plant.OverBudgetError], 42901, "over_budget", overBudget, ""},
	{is(plant.ErrUnavailable), 50300, "unavailable", text("The database cannot be reached. This request deleted nothing; what an earlier one with the same Idempotency-Key did is not known now. Try again later, with the Idempotency-Key of this answer if it has one."), ""},
	{is(plant.ErrBusy), 50301, "busy", text("Other work in the database has locked the plant, or something else that its deletion needs, or the database was too slow. This request deleted nothing; an earlier one with the same Idempotency-Key may have. Try again later, with the Idempotency-Key of this answer."), ""},
	{is(auth.ErrKeysUnknown), 50303, "keys_unknown", text("Whether the token is good can't be told now: the keys of the identity provider are not known. This request deleted nothing: try again later."), ""},
	{is(plant.ErrHindered), 50304, "hindered", text("Plants can't be deleted now: the database would not record it, hides plants, or lacks something that a deletion needs. This request deleted nothing; an earlier one with the same Idempotency-Key may have. The service's operators have to mend the database: plantstore doctor, or the service's log by the X-Request-Id of this answer, tells them what."), ""},
	{is(plant.ErrOverloaded), 50302, "overloaded", text("Too many requests are in flight. This request deleted nothing; an earlier one with the same Idempotency-Key may have. Try again later."), ""},
	{func(error) bool { return true }, 50000, "error", text("Something went wrong in this service. Tell its operators the X-Request-Id of this answer, and send the same request again with the Idempotency-Key of this answer to find out what became of the plant."), ""},
}

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func isA[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

func tooMany(err error) bool {
	return errors.Is(err, errTooManyFailures) || isA[*tooFastError](err)
}

func tooManyMessage(err error) string {
	if isA[*tooFastError](err) {
		return "You send more requests than you may. This one deleted nothing: send it again after the time in Retry-After, and all of them more slowly."
	}
	return "Authentication failed too often for requests from your address: send a token that is good, and not before the time in Retry-After."
}

func text(s string) func(error) string {
	return func(error) string { return s }
}

func deletedEarlier(err error) string {
	e, _ := errors.AsType[*plant.DeletedEarlierError](err)
	return fmt.Sprintf("This plant was deleted earlier, by another request, at %s.", e.At.UTC().Format(time.RFC3339))
}

func referenced(err error) string {
	e, _ := errors.AsType[*plant.ReferencedError](err)
	return fmt.Sprintf("Rows of table %q still refer to this plant: remove them first.", e.Table)
}

func overBudget(err error) string {
	e, _ := errors.AsType[*plant.OverBudgetError](err)
	if e.Left > 0 {
		return fmt.Sprintf("With this plant others would go, more than the %d that you may delete now. This request deleted nothing: ask the operators to lift your deletion budget.", e.Left)
	}
	until := e.Until.Add(time.Second - 1).UTC().Truncate(time.Second) // who tries again then is not too early
	return fmt.Sprintf("Your deletion budget is used up until %s. This request deleted nothing: try again then, or ask the operators to lift the budget.",
		until.Format(time.RFC3339))
}

// fail writes the answer to a request that failed, and returns its code. It does
// nothing and returns 0 if an answer is under way already.
func (s *Server) fail(c echo.Context, err error) int32 {
	if c.Response().Committed {
		return 0
	}
	r := answerTo(err)
	header := c.Response().Header()
	if r.challenge != "" {
		header.Set(echo.HeaderWWWAuthenticate, r.challenge)
	}
	if r.status() >= 500 || r.status() == http.StatusTooManyRequests {
		header.Set(echo.HeaderRetryAfter, strconv.Itoa(retryAfter(err)))
	}
	if r.status() >= 500 {
		// A client that sent none is told under which key it can ask again.
		if x, ok := c.(*exchange); ok && x.key != "" {
			header.Set(headerIdempotencyKey, x.key)
		}
	}
	if r.status() == http.StatusMethodNotAllowed {
		header.Set(echo.HeaderAllow, allowed(c))
	}
	var text bytes.Buffer
	body := json.NewEncoder(&text)
	body.SetEscapeHTML(false)                          // nobody renders it, people read it
	_ = body.Encode(errorBody{r.code, r.message(err)}) // there is nothing in it that can't be written
	header.Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
	header.Set(echo.HeaderContentLength, strconv.Itoa(text.Len())) // it is sent before net/http could tell
	c.Response().WriteHeader(r.status())
	_, _ = c.Response().Write(text.Bytes()) // a client that went away needs no answer
	return r.code
}

// answerTo returns how an error is answered. The last row of the catalogue takes all.
func answerTo(err error) errorAnswer {
	err = fromEcho(err)
	return catalogue[slices.IndexFunc(catalogue, func(r errorAnswer) bool { return r.is(err) })]
}

// fromEcho turns the router's own errors into ours.
func fromEcho(err error) error {
	he, ok := errors.AsType[*echo.HTTPError](err)
	switch {
	case !ok:
		return err
	case he.Code == http.StatusNotFound:
		return errNoRoute
	case he.Code == http.StatusMethodNotAllowed:
		return errMethod
	default:
		return err
	}
}

// allowed is the Allow header of a path whose method was refused. Echo's own has
// OPTIONS in it, which would be answered with a 204: the one answer that means
// "deleted" here.
func allowed(c echo.Context) string {
	methods, _ := c.Get(echo.ContextKeyHeaderAllow).(string)
	return strings.TrimPrefix(methods, http.MethodOptions+", ")
}
