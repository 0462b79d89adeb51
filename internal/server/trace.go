package server

import (
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

const tracerName = "plantstore/internal/server"

// traced makes a span of each request. It is part of the client's trace, if the request
// has a traceparent (W3C Trace Context).
func (s *Server) traced(next http.Handler) http.Handler {
	spans := otelhttp.NewHandler(next, "request",
		otelhttp.WithTracerProvider(s.Tracer),
		otelhttp.WithMeterProvider(metricnoop.NewMeterProvider()), // /metrics has them
		otelhttp.WithPropagators(propagation.TraceContext{}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.ContainsFunc(r.Header["Tracestate"], auth.HasToken) {
			r.Header.Del("Tracestate") // spans carry it on as it is
		}
		spans.ServeHTTP(w, r)
	})
}

// mostTraced is how many characters of a header a span has.
const mostTraced = 256

// name names a request's span after its route, and corrects what was read of the request
// itself: anybody can write an X-Forwarded-For, paste a token for an id, and send what is no
// UTF-8, for which a collector would get nothing of the whole batch.
func name(span trace.Span, c echo.Context, route string, x *exchange) {
	r := c.Request()
	span.SetName(printable(r.Method, mostPrinted) + " " + route)
	span.SetAttributes(attribute.String("http.route", route), attribute.String("plantstore.request_id", x.requestID),
		attribute.String("client.address", c.RealIP()), attribute.String("url.path", printable(r.URL.Path, mostPrinted)))
	for _, w := range x.waits() {
		span.SetAttributes(w.attribute())
	}
	for key, given := range map[attribute.Key]string{"user_agent.original": r.UserAgent(), "server.address": r.Host, "http.request.method_original": r.Method} {
		if fit := printable(given, mostTraced); fit != given {
			span.SetAttributes(key.String(fit))
		}
	}
}

// attribute is a wait as a span has it.
func (w wait) attribute() attribute.KeyValue {
	return attribute.Float64("plantstore."+w.name, milliseconds(w.waited))
}

// traceDeletion makes a span of a deletion that has ended, with its attempts as events.
func (s *Server) traceDeletion(r *http.Request, began time.Time, c plant.Course, outcome string, err error) {
	if s.Tracer == nil {
		return
	}
	_, span := s.Tracer.Tracer(tracerName).Start(r.Context(), "delete plant", trace.WithTimestamp(began),
		trace.WithAttributes(attribute.String("plantstore.outcome", outcome), attribute.Int("plantstore.attempts", c.Tried),
			attribute.Int("plantstore.batch", c.Batch)))
	for _, w := range waits(c) {
		span.SetAttributes(w.attribute())
	}
	for _, a := range c.Attempts {
		span.AddEvent("attempt", trace.WithTimestamp(a.Began),
			trace.WithAttributes(attribute.Float64("duration_ms", milliseconds(a.Took)), attribute.String("failed", a.Failed)))
	}
	if err != nil && answerTo(err).status() >= 500 {
		span.SetStatus(codes.Error, outcome)
	}
	span.End()
}
