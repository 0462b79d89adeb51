package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// newTracer returns what makes traces and sends them where OpenTelemetry's standard
// variables say. It returns nil unless one of them names an exporter or where to: then
// nothing is traced, and that costs nothing. Traces that are lost are told to log.
func newTracer(ctx context.Context, log *slog.Logger) (*sdktrace.TracerProvider, error) {
	asked := false
	for _, name := range []string{"OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		asked = asked || os.Getenv(name) != ""
	}
	if !asked || os.Getenv("OTEL_SDK_DISABLED") == "true" {
		return nil, nil
	}
	var wrong error
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { wrong = errors.Join(wrong, err) }))
	otel.SetLogger(logr.FromSlogHandler(sdkLog(func(told string) { wrong = errors.Join(wrong, errors.New("failed to "+told)) })))
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err = errors.Join(err, wrong); err != nil {
		return nil, &exitError{exitUsage, fmt.Errorf("traces can't be exported as the OTEL_* variables say: %w", err)}
	}
	if autoexport.IsNoneSpanExporter(exporter) {
		return nil, nil
	}
	// What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say comes last, and counts.
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "plantstore"), attribute.String("service.version", version)),
		resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("the OTEL_* variables say what traces can't carry: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("traces were not sent", "cause", err.Error())
	}))
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)), nil
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
