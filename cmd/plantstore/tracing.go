package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// newTracer returns what makes traces and sends them where OpenTelemetry's standard
// variables say. It returns nil unless one of them names an exporter or where to: then
// nothing is traced, and that costs nothing. Variables that can't be meant end the program
// like any bad setting. Traces that are lost are told to log.
func newTracer(ctx context.Context, log *slog.Logger) (*sdktrace.TracerProvider, error) {
	asked := false
	for _, name := range []string{"OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		asked = asked || os.Getenv(name) != ""
	}
	if !asked || strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return nil, nil
	}
	tracer, err := tracerAsSet(ctx)
	if err != nil {
		return nil, &exitError{exitUsage, fmt.Errorf("traces can't be exported as the OTEL_* variables say: %w", err)}
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("traces were not sent", "cause", err.Error())
	}))
	return tracer, nil
}

// tracerAsSet returns what the variables ask for: nil for the exporter "none".
func tracerAsSet(ctx context.Context) (*sdktrace.TracerProvider, error) {
	if err := checkTraceVariables(os.Getenv); err != nil {
		return nil, err
	}
	var wrong error
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { wrong = errors.Join(wrong, err) }))
	otel.SetLogger(logr.FromSlogHandler(sdkLog(func(told string) { wrong = errors.Join(wrong, errors.New("failed to "+told)) })))
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err = errors.Join(err, wrong); err != nil || autoexport.IsNoneSpanExporter(exporter) {
		return nil, err
	}
	// What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say comes last, and counts.
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "plantstore"), attribute.String("service.version", version)),
		resource.WithFromEnv())
	if err != nil {
		return nil, err
	}
	tracer := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	return tracer, wrong
}

// checkTraceVariables looks for values that OpenTelemetry's libraries take, or pass over
// in silence, and that can't be meant.
func checkTraceVariables(get func(string) string) error {
	const most, roomy = math.MaxInt32, 1 << 20 // a queue takes 16 bytes for each span, at once
	for _, n := range []struct {
		name        string
		least, most int
	}{
		{"OTEL_BSP_SCHEDULE_DELAY", 1, most}, // with 0 it would never rest
		{"OTEL_BSP_EXPORT_TIMEOUT", 0, most},
		{"OTEL_BSP_MAX_QUEUE_SIZE", 1, roomy}, // with less it would panic, or keep none
		{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1, roomy},
		{"OTEL_EXPORTER_OTLP_TIMEOUT", 0, most},
		{"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", 0, most},
		{"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", -1, most}, // -1: none
		{"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", -1, most},
		{"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", -1, most},
		{"OTEL_SPAN_EVENT_COUNT_LIMIT", -1, most},
		{"OTEL_SPAN_LINK_COUNT_LIMIT", -1, most},
		{"OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", -1, most},
		{"OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", -1, most},
	} {
		if value := get(n.name); value != "" {
			if got, err := strconv.Atoi(value); err != nil || got < n.least || got > n.most {
				return fmt.Errorf("%s is %q: it must be a number from %d to %d", n.name, value, n.least, n.most)
			}
		}
	}
	const ratio = "OTEL_TRACES_SAMPLER_ARG"
	if got, err := strconv.ParseFloat(strings.TrimSpace(get(ratio)), 64); err == nil && math.IsNaN(got) {
		return fmt.Errorf("%s is %q: it must be a number from 0 to 1", ratio, get(ratio))
	}
	// Nothing here reads baggage, so it does no harm. Without tracecontext a client's trace
	// would be continued all the same.
	const propagators = "OTEL_PROPAGATORS"
	if value := get(propagators); value != "" {
		named := strings.Split(strings.ReplaceAll(value, " ", ""), ",")
		others := slices.ContainsFunc(named, func(name string) bool { return name != "tracecontext" && name != "baggage" })
		if others || !slices.Contains(named, "tracecontext") {
			return fmt.Errorf("%s is %q: it must be tracecontext, or tracecontext,baggage", propagators, value)
		}
	}
	if exporter := get("OTEL_TRACES_EXPORTER"); exporter != "" && exporter != "otlp" {
		return nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_COMPRESSION", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION"} {
		if value := strings.TrimSpace(get(name)); value != "" && value != "gzip" && value != "none" {
			return fmt.Errorf("%s is %q: it must be gzip or none", name, value)
		}
	}
	protocol := get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
	if protocol == "" {
		protocol = get("OTEL_EXPORTER_OTLP_PROTOCOL")
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		value := strings.TrimSpace(get(name))
		if value == "" || protocol == "grpc" && !strings.HasPrefix(value, "http:") && !strings.HasPrefix(value, "https:") {
			continue // gRPC has addresses of its own, as collector:4317
		}
		if u, err := url.Parse(value); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			return fmt.Errorf("%s is no http or https URL of a host, as http://collector:4318", name)
		}
	}
	return nil
}

// An sdkLog gets what OpenTelemetry's libraries log as errors: that they failed to read a
// variable. What it has in it, such as a header for the collector, may be a secret, so it
// gets the messages only, which are the libraries' own.
type sdkLog func(told string)

// Enabled implements slog.Handler.
func (l sdkLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }

// Handle implements slog.Handler.
func (l sdkLog) Handle(_ context.Context, r slog.Record) error { l(r.Message); return nil }

// WithAttrs implements slog.Handler.
func (l sdkLog) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup implements slog.Handler.
func (l sdkLog) WithGroup(string) slog.Handler { return l }
