package server

import (
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// startSpan begins the request's span. It is part of the client's trace, if the request
// has a traceparent (W3C Trace Context).
func (s *Server) startSpan(r *http.Request) trace.Span {
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	_, span := s.tracer.Start(ctx, "request", trace.WithSpanKind(trace.SpanKindServer))
	return span
}

// endSpan ends the request's span. Its attributes are fit to be stored: no token, and
// nothing that is not UTF-8, for which a collector would reject the whole batch.
func (r *requestContext) endSpan() {
	method, status := printable(r.Request().Method), r.Response().Status
	r.span.SetName(method + " " + routeOf(r))
	r.span.SetAttributes(
		attribute.String("http.request.method", method),
		attribute.String("http.route", routeOf(r)),
		attribute.String("url.path", printable(r.Request().URL.Path)),
		attribute.Int("http.response.status_code", status),
		attribute.String("client.address", r.client),
		attribute.String("plantstore.request_id", r.id))
	if r.result.Attempts > 0 {
		r.span.SetAttributes(
			attribute.String("plantstore.outcome", r.outcome),
			attribute.Int("plantstore.attempts", r.result.Attempts),
			attribute.String("plantstore.failed_attempts", strings.Join(r.result.Failed, ",")),
			attribute.Int("plantstore.batch", r.result.Batch),
			attribute.Int64("plantstore.queued_us", r.result.Queued.Microseconds()))
	}
	if status >= 500 {
		r.span.SetStatus(codes.Error, r.outcome)
	}
	r.span.End()
}
