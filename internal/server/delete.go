package server

import (
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

// maxBody limits a request's body in bytes. A deletion needs none (RFC 9110, 9.3.5), but
// some clients send an empty object.
const maxBody = 4 << 10

// deletePlant answers DELETE /plants/{id}.
func (s *Server) deletePlant(c echo.Context) error {
	r := c.(*requestContext)
	if err := discardBody(c.Request()); err != nil {
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
	r.key = key
	if s.rates != nil {
		if wait := s.rates.take(r.principal.Name); wait > 0 {
			s.metrics.rejected(rejectedRate)
			return &rateError{errTooFast, wait}
		}
	}

	r.result, err = s.Plants.Delete(r.ctx, plant.Deletion{
		Plant: id, Principal: r.principal.Name, RequestID: r.id, Key: key, KeySent: sent, Budget: r.principal.Budget,
	})
	if r.result.Replayed {
		c.Response().Header().Set(headerReplayed, "true")
	}
	s.metrics.deletion(r, err)
	if err == nil {
		err = c.NoContent(http.StatusNoContent)
		c.Response().Flush() // before the log is written: a lone client is answered sooner
	}
	return err
}

// discardBody reads the request's body, so that net/http can use the connection again. An
// incomplete body is no reason not to delete.
func discardBody(r *http.Request) error {
	if r.ContentLength > maxBody {
		return errTooLarge
	}
	if r.ContentLength == 0 {
		return nil
	}
	if n, _ := io.Copy(io.Discard, io.LimitReader(r.Body, maxBody+1)); n > maxBody {
		return errTooLarge
	}
	return nil
}

// isUnconditional reports whether the request's conditions hold for a plant, which has no
// entity tag (RFC 9110, 13.1.1 and 13.1.2): "If-Match" holds with "*" only, and
// "If-None-Match" with anything else, also in a list. Conditions on dates are ignored where
// there are none (13.1.4).
func isUnconditional(h http.Header) bool {
	isAny := func(value string) bool { return strings.TrimSpace(value) == "*" }
	isNotAny := func(value string) bool { return !isAny(value) }
	hasAny := func(list string) bool { return slices.ContainsFunc(strings.Split(list, ","), isAny) }
	return !slices.ContainsFunc(h["If-Match"], isNotAny) && !slices.ContainsFunc(h["If-None-Match"], hasAny)
}

// idempotencyKey returns the client's key, without the quotes of the structured-field
// form, or a new one where the client sent none.
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
	if auth.HasToken(key) {
		return "", true, errBadKey // pasted by mistake: the ledger would store it
	}
	return key, true, nil
}
