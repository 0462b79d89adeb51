package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/trace"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

const (
	headerRequestID      = "X-Request-Id"
	headerIdempotencyKey = "Idempotency-Key"
	headerReplayed       = "Idempotency-Replayed"
)

// A requestContext is a request's context, with the facts about it that its handlers find out.
type requestContext struct {
	echo.Context
	ctx       context.Context // of the work on a deletion
	start     time.Time
	id        string
	client    string     // its IP address
	span      trace.Span // nil without tracing
	principal auth.Principal
	key       string // of the deletion, once it was read
	result    plant.Result
	outcome   string // of a deletion that was tried, or of the error
}

// observe gives each request its id, turns an error into an answer, and records the
// request in the log, the metrics and its trace.
func (s *Server) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		s.inFlight.Add(1)
		defer s.inFlight.Add(-1)
		r := &requestContext{Context: c, start: time.Now(), id: requestID(c.Request().Header), client: clientAddress(c.Request(), s.TrustedProxies)}
		if s.tracer != nil {
			r.span = s.startSpan(c.Request())
		}
		header := c.Response().Header()
		header.Set(headerRequestID, r.id)
		if s.draining.Load() {
			header.Set(echo.HeaderConnection, "close")
		}
		err := s.call(next, r)
		var code int32
		if err != nil {
			answer := answerTo(err)
			r.outcome = answer.outcome
			code = answer.write(r, err)
		}
		s.metrics.answer(routeOf(r), c.Response().Status, code).Inc()
		s.log(r, code, err)
		if r.span != nil {
			r.endSpan()
		}
		return nil
	}
}

// call runs a handler. A panic becomes an error; its stack goes to the log only.
func (s *Server) call(next echo.HandlerFunc, r *requestContext) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.Log.Error("panic", "request_id", r.id, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if r.Request().Method == http.MethodOptions {
		switch {
		case s.isPreflight(r.Request()):
			r.SetPath(preflightRoute)
		case r.Get(echo.ContextKeyHeaderAllow) != nil:
			return errMethod // Echo's own answer is a 204, which means "deleted" here
		default:
			return errNoRoute
		}
	}
	return next(r)
}

// log writes the request's line. The handler is called without slog's Logger, which would
// look up the source line of each.
func (s *Server) log(r *requestContext, code int32, err error) {
	status, level := r.Response().Status, slog.LevelInfo
	if status >= 500 {
		level = slog.LevelError
	}
	handler := s.Log.Handler()
	if !handler.Enabled(context.Background(), level) {
		return
	}
	now := time.Now()
	var space [20]slog.Attr
	attrs := append(space[:0],
		slog.String("method", printable(r.Request().Method)),
		slog.String("route", routeOf(r)),
		slog.Int("status", status),
		slog.Int("error", int(code)),
		slog.Int64("duration_us", now.Sub(r.start).Microseconds()),
		slog.String("request_id", r.id),
		slog.String("client", r.client))
	if r.outcome != "" {
		attrs = append(attrs, slog.String("outcome", r.outcome))
	}
	if r.principal.Name != "" {
		attrs = append(attrs, slog.String("principal", r.principal.Name))
	}
	if id := r.Param("id"); id != "" {
		attrs = append(attrs, slog.String("plant_id", printable(id)))
	}
	if r.result.Attempts > 0 {
		attrs = append(attrs, slog.Int("attempts", r.result.Attempts), slog.Int("batch", r.result.Batch),
			slog.Int64("queued_us", r.result.Queued.Microseconds()))
	}
	if len(r.result.Failed) > 0 {
		attrs = append(attrs, slog.String("failed_attempts", strings.Join(r.result.Failed, ",")))
	}
	if err != nil && r.result.Replayed {
		attrs = append(attrs, slog.Bool("replayed", true))
	}
	if r.span != nil && r.span.SpanContext().IsSampled() {
		attrs = append(attrs, slog.String("trace_id", r.span.SpanContext().TraceID().String()))
	}
	switch {
	case status >= 500, status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusConflict:
		attrs = append(attrs, slog.String("cause", err.Error()))
	}
	record := slog.NewRecord(now, level, "request", 0)
	record.AddAttrs(attrs...)
	_ = handler.Handle(context.Background(), record) // there is nowhere else to log
}

// maxPrinted limits the logged text of a malformed id or a method, in characters.
const maxPrinted = 64

// printable returns a client's text for log and trace. It replaces a text with a token, which
// somebody may have pasted by mistake.
func printable(sent string) string {
	if auth.HasToken(sent) {
		return "(a token)"
	}
	if len(sent) <= maxPrinted {
		return strings.ToValidUTF8(sent, "\uFFFD")
	}
	return strings.ToValidUTF8(sent[:maxPrinted], "\uFFFD") + "..."
}

// noRoute stands in log and metrics for no route.
const noRoute = "none"

// routeOf returns the route's pattern, which no client controls.
func routeOf(c echo.Context) string {
	if c.Path() == "" {
		return noRoute
	}
	return c.Path()
}

// requestID returns the client's own X-Request-Id if it can be logged and stored, or else
// a new one.
func requestID(h http.Header) string {
	if values := h[headerRequestID]; len(values) == 1 && isRequestID(values[0]) && !auth.HasToken(values[0]) {
		return values[0]
	}
	return newID()
}

func isRequestID(s string) bool {
	return len(s) >= 1 && len(s) <= 128 && !strings.ContainsFunc(s, func(c rune) bool {
		switch {
		case 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
			return false
		}
		return true
	})
}

// newID returns a UUIDv7 (RFC 9562): unique, and in order of time. It is no secret.
func newID() string { return uuid.Must(uuid.NewV7()).String() }

// deadline gives the work on a deletion its time limit. It does not end with the
// connection: a client that hangs up does not stop its deletion half-way.
func (s *Server) deadline(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.(*requestContext)
		ctx, cancel := context.WithTimeout(context.Background(), s.RequestTimeout)
		defer cancel()
		r.ctx = ctx
		return next(c)
	}
}

// bearer authenticates the request (RFC 6750, 2.1), and rejects principals without scope.
// Failures are counted after the check, so a good token is never rejected for bad ones from
// the same address.
func (s *Server) bearer(scope string, next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.(*requestContext)
		token, err := auth.FromHeader(r.Request().Header[echo.HeaderAuthorization])
		if err != nil {
			return err
		}
		tokens := s.Tokens
		if s.JWTs != nil && auth.IsJWT(token) {
			tokens = s.JWTs
		}
		r.principal, err = tokens.Authenticate(r.ctx, token)
		if errors.Is(err, auth.ErrInvalidToken) {
			if wait := s.failures.take(networkOf(r.client)); wait > 0 {
				s.metrics.rejected(rejectedFailures)
				return &rateError{errTooManyFailures, wait}
			}
		}
		if err != nil {
			return err
		}
		if !r.principal.Has(scope) {
			return fmt.Errorf("%w: want %s, got %q", errScope, scope, r.principal.Scopes)
		}
		return next(c)
	}
}
