package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
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
	errBadKey          = errors.New("malformed Idempotency-Key")
	errScope           = errors.New("scope missing")
	errNoRoute         = errors.New("no such route")
	errMethod          = errors.New("method not allowed")
	errTooLarge        = errors.New("request body too large")
	errPrecondition    = errors.New("precondition that no plant meets")
	errTooManyFailures = errors.New("authentication failed too often for this address")
	errTooFast         = errors.New("too many requests of this principal")
)

// errorBody is the body of every error answer.
type errorBody struct {
	Error   int32  `json:"error"`
	Message string `json:"message"`
}

// codeNoRoute is the code for a path without a route.
const codeNoRoute = 40400

const realm = `Bearer realm="plantstore"`

// An errorAnswer is the answer to an error.
type errorAnswer struct {
	is        func(error) bool
	code      int32  // the first three digits are the status
	outcome   string // in log and metrics
	message   func(error) string
	challenge string // WWW-Authenticate
}

func (a errorAnswer) status() int { return int(a.code / 100) }

// catalogue has every error answer. The codes are for good: clients switch on them. The
// first row that fits is taken. README.md and openapi.yaml have the same codes, held by
// tests.
var catalogue = []errorAnswer{
	{is(auth.ErrMalformed), 40000, "malformed_credentials", text("The Authorization header cannot be read: send it once, as \"Authorization: Bearer <token>\"."),
		realm + `, error="invalid_request"`},
	{is(plant.ErrBadID), 40001, "bad_id", text("The path has to end with the id of a plant: a decimal 64-bit integer such as 42, without a plus sign, leading zeros or anything after it."), ""},
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
	{isA[*plant.StoreRuleError], 40901, "store_rule", storeRule, ""},
	{is(errPrecondition), 41200, "precondition_failed", text("If-Match or If-None-Match asks for a version of the plant, and plants have no versions here. Nothing was deleted: send the request without that header."), ""},
	{is(errTooLarge), 41300, "body_too_large", text(fmt.Sprintf("The request body is larger than %d bytes: a deletion needs none.", maxBody)), ""},
	{is(errTooManyFailures), 42900, "too_many_failures", text("Authentication failed too often for requests from your address. Send a good token; only bad ones are limited."), ""},
	{is(errTooFast), 42900, "too_fast", text("You send more requests than you may. This one deleted nothing: send it again after the time in Retry-After."), ""},
	{isA[*plant.OverBudgetError], 42901, "over_budget", overBudget, ""},
	{is(plant.ErrUnknown), 50400, "unknown", text("The connection to the database was lost during the deletion: the plant may be deleted or not. Send the same request again with the Idempotency-Key of this answer to find out."), ""},
	{is(plant.ErrUnavailable), 50300, "unavailable", text("The database cannot be reached. This request deleted nothing: send it again later, with the same Idempotency-Key."), ""},
	{is(plant.ErrBusy), 50301, "busy", text("The plant, or something that its deletion needs, is locked, or the database is too slow. This request deleted nothing: send it again later, with the same Idempotency-Key."), ""},
	{is(plant.ErrOverloaded), 50302, "overloaded", text("Too many requests are in flight. This request deleted nothing: send it again later, with the same Idempotency-Key."), ""},
	{is(auth.ErrKeysUnknown), 50303, "keys_unknown", text("The identity provider's key for this token is not known now. This request deleted nothing: send it again later, with the same Idempotency-Key."), ""},
	{is(plant.ErrMisconfigured), 50304, "misconfigured", text("The database would not record the deletion, or lacks something that it needs. This request deleted nothing: tell the operators of the service the X-Request-Id of this answer, and send it again later, with the same Idempotency-Key."), ""},
	{func(error) bool { return true }, 50000, "error", text("Something went wrong in this service: tell its operators the X-Request-Id of this answer. Send the same request again with the same Idempotency-Key to find out whether the plant was deleted."), ""},
}

// replayedNote is added to a recorded refusal, instead of newKeyNote.
const replayedNote = " This is the recorded answer for this Idempotency-Key: use a new key to try again."

const newKeyNote = " Then send the request with a new Idempotency-Key."

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func isA[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

func text(s string) func(error) string {
	return func(error) string { return s }
}

func deletedEarlier(err error) string {
	e, _ := errors.AsType[*plant.DeletedEarlierError](err)
	return fmt.Sprintf("This plant was deleted earlier, at %s: there is nothing left to do.", e.At.UTC().Format(time.RFC3339))
}

func referenced(err error) string {
	e, _ := errors.AsType[*plant.ReferencedError](err)
	table := "another table"
	if e.Table != "" {
		table = fmt.Sprintf("table %q", e.Table)
	}
	return fmt.Sprintf("Rows of %s refer to this plant, or to rows that would be deleted with it: remove them.", table) + newKeyNote
}

func storeRule(err error) string {
	e, _ := errors.AsType[*plant.StoreRuleError](err)
	rule := "a trigger or constraint of the store's database refused the deletion, or handled it in its own way"
	if e.Constraint != "" {
		rule = fmt.Sprintf("the constraint %q of the store's database refused the deletion", e.Constraint)
	}
	return fmt.Sprintf("The plant's row is still there: %s. Trying again will not help: ask the people who run that database.", rule)
}

func overBudget(err error) string {
	e, _ := errors.AsType[*plant.OverBudgetError](err)
	until := e.Until.Add(time.Second - 1).UTC().Truncate(time.Second) // a retry at that second is not too early
	return fmt.Sprintf("Your deletion budget is used up until %s. This request deleted nothing: send it again then, or ask the operators for a larger budget.",
		until.Format(time.RFC3339))
}

// answerTo returns the answer to an error. The last row of the catalogue fits all.
func answerTo(err error) errorAnswer {
	if he, ok := errors.AsType[*echo.HTTPError](err); ok { // the router's
		switch he.Code {
		case http.StatusNotFound:
			err = errNoRoute
		case http.StatusMethodNotAllowed:
			err = errMethod
		}
	}
	return catalogue[slices.IndexFunc(catalogue, func(a errorAnswer) bool { return a.is(err) })]
}

// write answers a request that failed, and returns the code. It does nothing and returns 0
// if the answer has begun.
func (a errorAnswer) write(r *requestContext, err error) int32 {
	if r.Response().Committed {
		return 0
	}
	header, status := r.Response().Header(), a.status()
	if a.challenge != "" {
		header.Set(echo.HeaderWWWAuthenticate, a.challenge)
	}
	if status >= 500 || status == http.StatusTooManyRequests {
		header.Set(echo.HeaderRetryAfter, strconv.Itoa(retryAfter(err)))
	}
	if status >= 500 && r.key != "" {
		header.Set(headerIdempotencyKey, r.key) // the client may have sent none
	}
	if status == http.StatusMethodNotAllowed {
		// Without OPTIONS, which Echo adds and nobody can use here.
		methods, _ := r.Get(echo.ContextKeyHeaderAllow).(string)
		header.Set(echo.HeaderAllow, strings.TrimPrefix(methods, http.MethodOptions+", "))
	}
	message := a.message(err)
	if r.result.Replayed {
		message = strings.TrimSuffix(message, newKeyNote) + replayedNote
	}
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)                   // people read it, browsers don't render it
	_ = encoder.Encode(errorBody{a.code, message}) // can't fail
	header.Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
	r.Response().WriteHeader(status)
	_, _ = r.Response().Write(body.Bytes()) // a client that went away needs no answer
	return a.code
}

// retryAfter returns the Retry-After of an error, in whole seconds.
func retryAfter(err error) int {
	var wait time.Duration
	var e interface{ RetryAfter() time.Duration }
	if errors.As(err, &e) {
		wait = e.RetryAfter()
	}
	return max(1, int(math.Ceil(wait.Seconds())))
}
