package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"plantstore/internal/pgtest"
)

// The standard variables are all it takes, and the trace of a deletion that was locked
// arrives with its attempts before the service ends.
func TestTraceReachesACollector(t *testing.T) {
	t.Parallel()
	arrived := make(chan *tracepb.ResourceSpans, 100)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("the collector got %s and %v, want /v1/traces", r.URL.Path, err)
		}
		var request coltrace.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &request); err != nil {
			t.Errorf("what the collector got is no OTLP: %v", err)
		}
		for _, spans := range request.ResourceSpans {
			arrived <- spans
		}
	}))
	defer collector.Close()
	database := pgtest.New(t)
	super := pgtest.Pool(t, database.Super)
	if _, err := super.Exec(t.Context(), `INSERT INTO public.plants (id, name) VALUES (1, 'Boston fern')`); err != nil {
		t.Fatal(err)
	}
	token := createToken(t, database.Owner, "shop")

	log := new(syncBuffer)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "serve", "--database-url="+database.App, "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s")
	cmd.Env = append(os.Environ(), runMain+"=1", "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
		"OTEL_RESOURCE_ATTRIBUTES=deployment.environment=test")
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	public, admin := (&process{log: log}).addresses(t)
	waitReady(t, admin, http.StatusOK)

	// What one client sends takes nobody's traces away.
	odd, err := http.NewRequestWithContext(t.Context(), http.MethodGet, public+"/%FF", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range []string{"User-Agent", "X-Forwarded-For"} {
		odd.Header.Set(header, "\xFF")
	}
	odd.Host = "\xFF"
	if answer, err := http.DefaultClient.Do(odd); err != nil {
		t.Error(err)
	} else {
		answer.Body.Close()
	}

	lock, err := super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), `SELECT FROM public.plants WHERE id = 1 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	answer := make(chan int)
	go func() {
		code, _, _ := trySend(t, http.MethodDelete, public+"/plants/1", token)
		answer <- code
	}()
	// It gives up on the lock for the first time.
	if !eventually(func() bool {
		var waits bool
		err := super.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE usename = 'plantstore_app' AND wait_event_type = 'Lock'
			AND datname = current_database() AND state_change < now() - interval '100 ms')`).Scan(&waits)
		return err != nil || waits
	}) {
		t.Error("no deletion waits for the lock")
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code := <-answer; code != http.StatusNoContent {
		t.Errorf("DELETE of a plant that was locked: %d, want 204", code)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the service ended with %v:\n%s", err, log)
	}
	close(arrived)

	spans := make(map[string]*tracepb.Span)
	resource := make(map[string]string)
	for r := range arrived {
		for _, a := range r.Resource.Attributes {
			resource[a.Key] = a.Value.GetStringValue()
		}
		for _, scope := range r.ScopeSpans {
			for _, span := range scope.Spans {
				spans[span.Name] = span
			}
		}
	}
	if resource["service.name"] != "plantstore" || resource["deployment.environment"] != "test" {
		t.Errorf("resource %v, want service plantstore in environment test", resource)
	}
	if spans["GET none"] == nil {
		t.Errorf("spans %v, want that of the request with headers that are no UTF-8 among them", spans)
	}
	request, deletion := spans["DELETE /plants/:id"], spans["delete plant"]
	if request == nil || deletion == nil || string(deletion.ParentSpanId) != string(request.SpanId) {
		t.Fatalf("spans %v, want the request's and within it the deletion's; the log:\n%s", spans, log)
	}
	if n := len(deletion.Events); n < 2 || deletion.Events[0].Attributes[1].Value.GetStringValue() != "locked" {
		t.Errorf("%d events %v of the deletion, want attempts of which the first was locked", n, deletion.Events)
	}
	if took := time.Duration(deletion.EndTimeUnixNano - deletion.StartTimeUnixNano); took < 100*time.Millisecond {
		t.Errorf("the deletion's span took %s, want the time that it waited for the lock", took)
	}
}

// What the variables can't mean ends the start like any bad setting: in one line.
func TestTracesThatGoNowhere(t *testing.T) {
	t.Parallel()
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for _, tt := range []struct{ variables, want string }{
		{"OTEL_TRACES_EXPORTER=pigeon", "unknown exporter or metrics producer"},
		{endpoint + "=collector:4318", endpoint + " is no http or https URL of a host, as http://collector:4318"},
		{endpoint + "=http://", endpoint + " is no http or https URL of a host, as http://collector:4318"},
		{endpoint + "=http://:4318", endpoint + " is no http or https URL of a host, as http://collector:4318"},
		{endpoint + "=ftp://collector OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", endpoint + " is no http or https URL of a host, as http://collector:4318"},
		{endpoint + "=http:// OTEL_EXPORTER_OTLP_PROTOCOL=grpc", endpoint + " is no http or https URL of a host, as http://collector:4318"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=unix:///run/collector", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is no http or https URL of a host, as http://collector:4318"},
		{endpoint + "=http://c OTEL_EXPORTER_OTLP_PROTOCOL=smoke", "invalid OTLP protocol - should be one of ['grpc', 'http/protobuf']"},
		{endpoint + "=http://c OTEL_EXPORTER_OTLP_CERTIFICATE=/nonexistent", "failed to read tls ca cert file"},
		{endpoint + "=http://c OTEL_TRACES_SAMPLER=dice", "unsupported sampler: dice"},
		{endpoint + "=http://c OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=2", "invalid trace ID ratio: greater than 1.0"},
		{endpoint + "=http://c OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=NaN", `OTEL_TRACES_SAMPLER_ARG is "NaN": it must be a number from 0 to 1`},
		{endpoint + "=http://c OTEL_EXPORTER_OTLP_COMPRESSION=foo", `OTEL_EXPORTER_OTLP_COMPRESSION is "foo": it must be gzip or none`},
		{endpoint + "=http://c OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_TRACES_COMPRESSION=GZIP", `OTEL_EXPORTER_OTLP_TRACES_COMPRESSION is "GZIP": it must be gzip or none`},
		{endpoint + "=http://c OTEL_PROPAGATORS=none", `OTEL_PROPAGATORS is "none": it must be tracecontext, or tracecontext,baggage`},
		{endpoint + "=http://c OTEL_PROPAGATORS=tracecontext,b3", `OTEL_PROPAGATORS is "tracecontext,b3": it must be tracecontext, or tracecontext,baggage`},
		{endpoint + "=http://c OTEL_RESOURCE_ATTRIBUTES=test", "error detecting resource: partial resource: missing value: [test]"},
		{endpoint + "=http://c OTEL_BSP_SCHEDULE_DELAY=0", `OTEL_BSP_SCHEDULE_DELAY is "0": it must be a number from 1 to 2147483647`},
		{endpoint + "=http://c OTEL_BSP_SCHEDULE_DELAY=-5", `OTEL_BSP_SCHEDULE_DELAY is "-5": it must be a number from 1 to 2147483647`},
		{endpoint + "=http://c OTEL_BSP_MAX_QUEUE_SIZE=-1", `OTEL_BSP_MAX_QUEUE_SIZE is "-1": it must be a number from 1 to 1048576`},
		{endpoint + "=http://c OTEL_BSP_MAX_QUEUE_SIZE=99999999999999999999", `OTEL_BSP_MAX_QUEUE_SIZE is "99999999999999999999": it must be a number from 1 to 1048576`},
		{endpoint + "=http://c OTEL_BSP_MAX_EXPORT_BATCH_SIZE=0", `OTEL_BSP_MAX_EXPORT_BATCH_SIZE is "0": it must be a number from 1 to 1048576`},
		{endpoint + "=http://c OTEL_BSP_EXPORT_TIMEOUT=10s", `OTEL_BSP_EXPORT_TIMEOUT is "10s": it must be a number from 0 to 2147483647`},
		{endpoint + "=http://c OTEL_EXPORTER_OTLP_TIMEOUT=-1", `OTEL_EXPORTER_OTLP_TIMEOUT is "-1": it must be a number from 0 to 2147483647`},
	} {
		t.Run(tt.variables, func(t *testing.T) {
			t.Parallel()
			stderr, code := runProcess(t, strings.Fields(tt.variables), "serve", "--database-url=host="+t.TempDir(), "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0")
			if want := "plantstore: traces can't be exported as the OTEL_* variables say: " + tt.want; code != exitUsage || lastLine(stderr) != want {
				t.Errorf("exit code %d, %s\nwant      %d, %s", code, stderr, exitUsage, want)
			}
		})
	}
}

// What a specification allows is taken.
func TestTraceVariablesThatAreFine(t *testing.T) {
	t.Parallel()
	for _, variables := range []map[string]string{
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector.example/otlp", "OTEL_BSP_EXPORT_TIMEOUT": "0", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "-1"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_EXPORTER_OTLP_COMPRESSION": " gzip", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "none", "OTEL_TRACES_SAMPLER_ARG": " 1e-3 "},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "unix:///run/collector", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "nowhere", "OTEL_TRACES_EXPORTER": "console"},
		{"OTEL_TRACES_EXPORTER": "console", "OTEL_PROPAGATORS": "tracecontext"},
		{"OTEL_TRACES_EXPORTER": "console", "OTEL_PROPAGATORS": " baggage, tracecontext"},
	} {
		if err := checkTraceVariables(func(name string) string { return variables[name] }); err != nil {
			t.Errorf("%v: %v, want no error", variables, err)
		}
	}
	s := startService(t, []string{"OTEL_TRACES_EXPORTER=pigeon", "OTEL_SDK_DISABLED=True"}, "--database-url=host="+t.TempDir())
	s.end(t, 0)
}

// A collector that is gone, or silent, is no fault of the service's: it serves, its log
// stays one of lines of JSON that say so, and it ends in order.
func TestTracesThatNobodyTakes(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprint("silent ", silent), func(t *testing.T) {
			t.Parallel()
			testTracesThatNobodyTakes(t, silent)
		})
	}
}

func testTracesThatNobodyTakes(t *testing.T, silent bool) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if silent {
		defer l.Close()
	} else {
		l.Close()
	}
	log := new(syncBuffer)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "serve", "--database-url=host="+t.TempDir(), "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s")
	cmd.Env = append(os.Environ(), runMain+"=1", "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+l.Addr().String(), "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf")
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	public, _ := (&process{log: log}).addresses(t)
	if code, _ := send(t, http.MethodGet, public+"/nowhere", ""); code != http.StatusNotFound {
		t.Errorf("answer %d without a collector, want 404", code)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the service ended with %v, want in order", err)
	}
	told := false
	for line := range strings.Lines(log.String()) {
		var entry struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Errorf("the log has %q, want JSON", line)
		}
		told = told || entry.Level == "WARN" && strings.HasPrefix(entry.Msg, "traces")
	}
	if !told {
		t.Errorf("the log does not say that traces are lost:\n%s", log)
	}
}
