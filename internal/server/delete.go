package server

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

// maxBody bounds a request's body in bytes, however it is framed. A deletion needs
// none (RFC 9110, 9.3.5), but some clients send an empty object.
const maxBody = 4 << 10

// bodyTimeout is how long a body may take that does not come along with its
// headers. What comes later is not waited for, and ends the connection.
const bodyTimeout = 100 * time.Millisecond

// lingerTimeout is how long a body is read that was answered before its end. A client that
// writes all of it before it reads would lose the answer if the connection was closed at once.
const lingerTimeout = 2 * time.Second

// deletePlant answers DELETE /plants/{id}.
func (s *Server) deletePlant(c echo.Context) error {
	if err := s.dropBody(c); err != nil {
		return err
	}
	key, sent, err := idempotencyKey(c.Request().Header)
	if err != nil {
		return err
	}
	id, err := plant.ParseID(c.Param("id"))
	if err != nil {
		return err
	}
	if !isUnconditional(c.Request().Header) {
		return errPrecondition
	}
	x := c.(*exchange)
	x.key = key
	if err := s.rates.admit(x.principal.Name); err != nil {
		s.metrics.sheds.WithLabelValues(shedRate).Inc()
		return err
	}

	s.metrics.inFlight.Inc()
	defer s.metrics.inFlight.Dec()
	began := time.Now() // later than the token was known: the body may have been waited for
	result, err := s.Plants.Delete(c.Request().Context(), plant.Deletion{
		Plant: id, Principal: x.principal.Name, RequestID: x.requestID, Key: key, KeySent: sent, Came: x.came,
		Budget: x.principal.Budget,
	})
	x.course = result.Course
	x.outcome = s.metrics.deletion(x.principal, result, err, time.Since(x.came))
	s.traceDeletion(c.Request(), began, x.course, x.outcome, err)
	if over, ok := errors.AsType[*plant.OverBudgetError](err); ok && over.First {
		s.Log.Warn("deletion budget used up", "principal", x.principal.Name, "budget", over.Budget.String(), "until", over.Until.UTC())
	}
	if err != nil {
		return err
	}
	if result.Replayed {
		c.Response().Header().Set(headerReplayed, "true")
	}
	return c.NoContent(http.StatusNoContent)
}

// dropBody reads the body of a request, if it has one, and returns errTooLarge for
// one that is too large. Unless all of it was there, the answer is the connection's
// last: otherwise the server would wait for the rest before it answers.
func (s *Server) dropBody(c echo.Context) error {
	r := c.Request()
	if r.ContentLength == 0 {
		return nil
	}
	c.Response().Header().Set("Connection", "close")
	if r.ContentLength > maxBody {
		return errTooLarge
	}
	connection := http.NewResponseController(c.Response().Writer)
	if err := connection.SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil {
		return nil // the connection is gone, and the deletion goes on without it
	}
	switch n, err := io.Copy(io.Discard, io.LimitReader(r.Body, maxBody+1)); {
	case n > maxBody:
		return errTooLarge
	case err == nil && connection.SetReadDeadline(time.Time{}) == nil:
		// All of it was there. The server goes on reading, for the next request.
		if !s.draining.Load() && !endIsDoubtful(r) {
			c.Response().Header().Del("Connection")
		}
	}
	return nil
}

// isUnconditional reports whether a deletion need not look at the plant's version. Plants
// have no entity tags: so "If-Match" holds with "*" only, and "If-None-Match" with anything
// else (RFC 9110, 13.1.1 and 13.1.2), also in a list. Who guards a plant against being deleted
// unseen must not lose it. Conditions on dates are to be ignored where there are none (13.1.4).
func isUnconditional(h http.Header) bool {
	isAny := func(value string) bool { return strings.TrimSpace(value) == "*" } // HTTP/2 leaves blanks at the ends
	isNotAny := func(value string) bool { return !isAny(value) }
	hasAny := func(list string) bool { return slices.ContainsFunc(strings.Split(list, ","), isAny) }
	return !slices.ContainsFunc(h["If-Match"], isNotAny) && !slices.ContainsFunc(h["If-None-Match"], hasAny)
}

// idempotencyKey returns the client's key, without the quotes of the
// structured-field form, or a new one where the client sent none.
func idempotencyKey(h http.Header) (key string, sent bool, err error) {
	values, sent := h[headerIdempotencyKey]
	if !sent {
		return newID(), false, nil
	}
	if len(values) != 1 {
		return "", true, errBadKey
	}
	key = values[0]
	if len(key) >= 2 && strings.HasPrefix(key, `"`) && strings.HasSuffix(key, `"`) {
		key = key[1 : len(key)-1]
	}
	if len(key) < 1 || len(key) > 255 || strings.ContainsFunc(key, func(c rune) bool { return c < '!' || c > '~' }) {
		return "", true, errBadKey
	}
	if auth.HasSecret(key) || auth.IsJWT(key) && auth.HasToken(key) {
		return "", true, errBadKey // pasted there by mistake: the ledger would keep it
	}
	return key, true, nil
}
