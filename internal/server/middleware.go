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

// An exchange is a request's context, with what is known of it while it is served.
type exchange struct {
	echo.Context
	came      time.Time
	requestID string
	forToken  time.Duration // how long it waited for what tells whose token it is
	principal auth.Principal
	key       string // of the deletion, once it was read
	outcome   string // in a word; empty unless a deletion was tried
	course    plant.Course
}

// observe gives each request its id, turns an error into an answer, and notes what
// happened: in one line of the log, and in the metrics.
func (s *Server) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		start := time.Now()
		span := trace.SpanFromContext(c.Request().Context()) // without tracing, one that does nothing
		x := &exchange{Context: c, came: start, requestID: requestID(c.Request(), span.SpanContext())}
		header := c.Response().Header()
		header.Set(headerRequestID, x.requestID)
		if s.draining.Load() || endIsDoubtful(c.Request()) {
			header.Set("Connection", "close")
		}
		connection := http.NewResponseController(c.Response().Writer)
		http1 := c.Request().ProtoMajor == 1
		hasBody := http1 && c.Request().ContentLength != 0
		if hasBody {
			// net/http reads a body before it answers, unless the answer is the connection's
			// last. A deletion may do better: see dropBody.
			header.Set("Connection", "close")
		}

		var err error
		if c.Request().Method == http.MethodOptions && c.Get(echo.ContextKeyHeaderAllow) != nil {
			err = errMethod // see allowed
		} else {
			err = next(x)
		}
		var code int32
		if err != nil {
			code = s.fail(x, err)
		}

		took := time.Since(start)
		status := c.Response().Status
		route := routeOf(c)
		s.metrics.request(route, status, code, took)
		if span.IsRecording() {
			name(span, c, route, x)
		}
		level := slog.LevelInfo
		if status >= 500 {
			level = slog.LevelError
		}
		if hasBody && header.Get("Connection") == "close" {
			_ = connection.SetReadDeadline(time.Now().Add(lingerTimeout)) // of a connection that is gone, nothing is read
		}
		if !s.Log.Enabled(context.Background(), level) {
			return nil
		}
		// Who reads the log may stall. Over HTTP/2 an answer ends with its handler only.
		if http1 {
			_ = connection.Flush() // a client that went away needs no answer
		}
		attrs := make([]slog.Attr, 0, 20)
		attrs = append(attrs,
			slog.String("method", printable(c.Request().Method, mostPrinted)),
			slog.String("route", route),
			slog.Int("status", status),
			slog.Int("error", int(code)))
		switch {
		case x.outcome != "":
			attrs = append(attrs, slog.String("outcome", x.outcome))
		case err != nil:
			attrs = append(attrs, slog.String("outcome", answerTo(err).outcome))
		}
		attrs = append(attrs,
			slog.Float64("duration_ms", milliseconds(took)),
			slog.String("request_id", x.requestID),
			slog.String("client", c.RealIP()))
		if traced := span.SpanContext(); traced.IsSampled() {
			attrs = append(attrs, slog.String("trace_id", traced.TraceID().String()))
		}
		if x.principal.Name != "" {
			attrs = append(attrs, slog.String("principal", x.principal.Name))
		}
		if id := c.Param("id"); id != "" {
			attrs = append(attrs, slog.String("plant_id", printable(id, mostPrinted)))
		}
		attrs = appendWay(attrs, x)
		if status >= 500 || status == http.StatusUnauthorized {
			attrs = append(attrs, slog.String("cause", err.Error()))
		}
		s.Log.LogAttrs(context.Background(), level, "request", attrs...)
		return nil
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// mostPrinted is how many characters of a malformed id, or method, are logged.
const mostPrinted = 64

// printable is what a client gave, as it is logged and traced: up to most characters of
// it. Who pastes a token there by mistake must not find it in the log.
func printable(given string, most int) string {
	if auth.HasToken(given) {
		return "(a token)"
	}
	given = strings.ToValidUTF8(given, "\uFFFD")
	if cut := []rune(given); len(cut) > most {
		return string(cut[:most]) + "..."
	}
	return given
}

// appendWay adds what a request and its deletion met on their way: most meet nothing.
func appendWay(attrs []slog.Attr, x *exchange) []slog.Attr {
	c := x.course
	if c.Tried > 0 {
		attrs = append(attrs, slog.Int("attempts", c.Tried), slog.Int("batch", c.Batch))
	}
	if failed := failedAttempts(c); failed != "" {
		attrs = append(attrs, slog.String("failed_attempts", failed))
	}
	for _, w := range append(x.waits(), waits(c)...) {
		attrs = append(attrs, slog.Float64(w.name, milliseconds(w.waited)))
	}
	return attrs
}

// A wait is how long a request or its deletion waited for something, and what the log
// calls that.
type wait struct {
	name   string
	waited time.Duration
}

// waits are those before a deletion is tried.
func (x *exchange) waits() []wait { return longWaits(wait{"wait_token_ms", x.forToken}) }

// waits are those of a deletion.
func waits(c plant.Course) []wait {
	return longWaits(wait{"wait_plant_ms", c.ForPlant}, wait{"wait_others_ms", c.ForOthers}, wait{"wait_connection_ms", c.ForConnection}, wait{"wait_lock_ms", c.ForLock})
}

// longWaits are those that took a millisecond or more.
func longWaits(all ...wait) []wait {
	var long []wait
	for _, w := range all {
		if w.waited >= time.Millisecond {
			long = append(long, w)
		}
	}
	return long
}

// failedAttempts tells why attempts failed, in order: "unreachable 3, answer_lost 1".
func failedAttempts(c plant.Course) string {
	var told []string
	for i, n := 0, 1; i < len(c.Attempts) && c.Attempts[i].Failed != ""; i, n = i+1, n+1 {
		if i+1 == len(c.Attempts) || c.Attempts[i+1].Failed != c.Attempts[i].Failed {
			told = append(told, fmt.Sprintf("%s %d", c.Attempts[i].Failed, n))
			n = 0
		}
	}
	return strings.Join(told, ", ")
}

// endIsDoubtful reports whether somebody between the client and us may take the
// request to end elsewhere than net/http does. That drops a Content-Length that
// comes together with a Transfer-Encoding, and a Transfer-Encoding of HTTP/1.0, and
// does not tell us: so it is any request that can have been one of these. Nothing
// more may be read from its connection (RFC 9112, 6.1).
func endIsDoubtful(r *http.Request) bool {
	return len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1)
}

// noRoute is what log and metrics have where no route matches.
const noRoute = "none"

// routeOf is the route's pattern, which no client controls.
func routeOf(c echo.Context) string {
	if c.Path() == "" {
		return noRoute
	}
	return c.Path()
}

// requestID returns the client's own X-Request-Id if it is fit to be logged and
// stored, else a new one: that of the request's trace and span, if these are kept.
func requestID(r *http.Request, traced trace.SpanContext) string {
	if values := r.Header[headerRequestID]; len(values) == 1 && isRequestID(values[0]) && !auth.HasToken(values[0]) {
		return values[0]
	}
	if traced.IsSampled() {
		return traced.TraceID().String() + "-" + traced.SpanID().String()
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

// Nobody is let in by an id, so its random bits may lie in memory before they are used:
// that spares most ids a call of the system.
func init() { uuid.EnableRandPool() }

// newID returns a UUIDv7 (RFC 9562): unique, and in order of time.
func newID() string {
	return uuid.Must(uuid.NewV7()).String() // the random source never fails, see crypto/rand
}

// recover makes a panic an error like any other. The panic's text and stack go to
// the log only.
func (s *Server) recover(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) (err error) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			s.Log.Error("panic", "request_id", c.(*exchange).requestID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}()
		return next(c)
	}
}

// deadline gives the work on a deletion its time limit, and detaches it from the
// connection: a client that hangs up does not stop its deletion half-way.
func (s *Server) deadline(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), s.RequestTimeout)
		defer cancel()
		c.SetRequest(r.WithContext(ctx))
		return next(c)
	}
}

// bearer authenticates the request (RFC 6750, 2.1).
func (s *Server) bearer(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		token, err := auth.FromHeader(c.Request().Header[echo.HeaderAuthorization])
		if err != nil {
			return err
		}
		authenticate := s.byToken
		if s.JWTs != nil && auth.IsJWT(token) {
			authenticate = s.byJWT
		}
		x := c.(*exchange)
		x.principal, err = authenticate(c, token)
		x.forToken = time.Since(x.came) // all that came before took no time
		if err != nil {
			return err
		}
		return next(c)
	}
}

// byToken authenticates by a token of ours. Where that failed too often for the client's
// address, only tokens that are known go through: a look-up takes the database. Whether it
// did is asked first, as it costs less than to know a token.
func (s *Server) byToken(c echo.Context, token string) (auth.Principal, error) {
	if s.failures.pause(c.RealIP()) > 0 && !s.Tokens.Knows(token) {
		if err := s.admit(c); err != nil {
			return auth.Principal{}, err
		}
	}
	principal, err := s.Tokens.Authenticate(c.Request().Context(), token)
	if errors.Is(err, auth.ErrInvalidToken) {
		s.failures.note(c.RealIP())
	}
	return principal, err
}

// byJWT authenticates by a JWT. To verify one takes no look-up in the database. So it is
// always done, and only those that fail are limited: who has a good one need not suffer
// for a neighbour.
func (s *Server) byJWT(c echo.Context, token string) (auth.Principal, error) {
	principal, err := s.JWTs.Authenticate(c.Request().Context(), token)
	if !errors.Is(err, auth.ErrInvalidToken) && !errors.Is(err, auth.ErrKeyUnknown) {
		return principal, err
	}
	if limited := s.admit(c); limited != nil {
		return auth.Principal{}, limited
	}
	s.failures.note(c.RealIP())
	return auth.Principal{}, err
}

// admit refuses a request of an address for which authentication failed too often.
func (s *Server) admit(c echo.Context) error {
	err := s.failures.admit(c.Request().Context(), c.RealIP())
	if err != nil {
		s.metrics.sheds.WithLabelValues(shedFailures).Inc()
	}
	return err
}

// requireScope refuses principals without scope.
func requireScope(scope string) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if !c.(*exchange).principal.Has(scope) {
				return errScope
			}
			return next(c)
		}
	}
}
