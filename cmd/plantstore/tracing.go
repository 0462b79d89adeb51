package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// newTracer returns a provider that sends traces with OTLP over HTTP where OpenTelemetry's
// standard variables say, or nil if none of them names an endpoint. Variables that are
// rejected end the program like any bad setting. Traces that are lost are logged.
func newTracer(ctx context.Context, log *slog.Logger) (*sdktrace.TracerProvider, error) {
	asked := os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
	exporter := os.Getenv("OTEL_TRACES_EXPORTER")
	if !asked && exporter == "" || exporter == "none" || strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return nil, nil
	}
	for name, only := range map[string]string{"OTEL_TRACES_EXPORTER": "otlp",
		"OTEL_EXPORTER_OTLP_PROTOCOL": otlpProtocol, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": otlpProtocol} {
		if value := os.Getenv(name); value != "" && value != only {
			return nil, &exitError{exitUsage, fmt.Errorf("%s is %q: traces are sent with %s only", name, value, only)}
		}
	}
	// OpenTelemetry takes localhost:4318 for a URL of scheme localhost, and sends nothing.
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		if value := os.Getenv(name); value != "" && !strings.HasPrefix(value, "http://") && !strings.HasPrefix(value, "https://") {
			return nil, &exitError{exitUsage, fmt.Errorf("%s is not a URL such as http://collector:4318", name)}
		}
	}
	// OpenTelemetry reports some bad variables to global handlers only.
	var bad []error
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { bad = append(bad, err) }))
	otel.SetLogger(logr.FromSlogHandler(messages(func(text string) { bad = append(bad, errors.New(text)) })))
	client, clientErr := otlptracehttp.New(ctx)
	// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come last, so they win.
	about, aboutErr := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "plantstore"), attribute.String("service.version", version)),
		resource.WithFromEnv())
	tracer := sdktrace.NewTracerProvider(sdktrace.WithBatcher(client), sdktrace.WithResource(about))
	if err := errors.Join(append(bad, clientErr, aboutErr)...); err != nil {
		return nil, &exitError{exitUsage, fmt.Errorf("OTEL_* variables: %s", strings.ReplaceAll(err.Error(), "\n", "; "))}
	}
	lost := func(text string) { log.Warn("traces were not sent", "cause", text) }
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { lost(err.Error()) }))
	otel.SetLogger(logr.FromSlogHandler(messages(lost)))
	return tracer, nil
}

const otlpProtocol = "http/protobuf"

// endTraces sends the last traces.
func endTraces(ctx context.Context, log *slog.Logger, tracer *sdktrace.TracerProvider) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := tracer.Shutdown(ctx); err != nil {
		log.Warn("traces were not sent", "cause", err.Error())
	}
}

// messages takes the texts of errors that OpenTelemetry logs. The attributes may have a
// secret in them, such as a header for the collector.
type messages func(text string)

// Enabled implements slog.Handler.
func (m messages) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }

// Handle implements slog.Handler.
func (m messages) Handle(_ context.Context, r slog.Record) error { m(r.Message); return nil }

// WithAttrs implements slog.Handler.
func (m messages) WithAttrs([]slog.Attr) slog.Handler { return m }

// WithGroup implements slog.Handler.
func (m messages) WithGroup(string) slog.Handler { return m }
