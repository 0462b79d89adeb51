//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"plantstore/internal/auth/authtest"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
)

// A service that is newer than its database waits for the migration. Then it deletes plants for
// principals with tokens of both kinds.
func TestServeWaitsForMigrationThenDeletes(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	owner := pgtest.Connect(t, database.Owner)
	execute(t, owner, `INSERT INTO plants (id, name) VALUES (1, 'Boston fern'), (2, 'Peace lily')`)
	execute(t, owner, `UPDATE plantstore.goose_db_version SET is_applied = false WHERE version_id = $1`, migrate.Latest())
	provider := authtest.New(t)
	file := filepath.Join(t.TempDir(), "url")
	writeFile(t, file, database.App+"\n")
	s := serving(t, []string{"DATABASE_URL_FILE=" + file, "PLANTSTORE_MIGRATE_LOCK_TIMEOUT=1s", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_TRACES_EXPORTER=none"}, "--rate-limit=500/s", "--trusted-proxies=10.0.0.0/8, 2001:db8::7", "--profiles",
		"--oidc-issuer="+provider.URL, "--jwks-url="+provider.URL+"/keys?secret", "--oidc-audience=web, "+authtest.Audience, "--oidc-budget=1/1h")
	var entry struct {
		Settings map[string]string
		Traces   bool
	}
	if err := json.Unmarshal([]byte(s.waitFor(t, `"msg":"serving"`)), &entry); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"database_url_file": file, "addr": "127.0.0.1:0", "admin_addr": "127.0.0.1:0", "drain_delay": "0s",
		"rate_limit": "500/s,burst=500", "trusted_proxies": "[10.0.0.0/8 2001:db8::7/128]", "profiles": "true",
		"oidc_issuer": provider.URL, "jwks_url": provider.URL + "/keys", "oidc_audience": "[web " + authtest.Audience + "]", "oidc_budget": "1/1h"}
	if diff := cmp.Diff(want, entry.Settings); diff != "" || entry.Traces {
		t.Errorf("traces: %v, want none; settings in the log (-want +got):\n%s", entry.Traces, diff)
	}
	s.waitFor(t, `"msg":"not ready"`)
	if _, stderr, code := command(t, "healthcheck", "--timeout=10m", "--admin-addr="+strings.TrimPrefix(s.admin, "http://")); code != 1 || !strings.Contains(stderr, fmt.Sprintf("migrations [%d] are missing: apply them with 'plantstore migrate up'", migrate.Latest())) {
		t.Errorf("healthcheck before the migration: got exit code %d, %q; want 1 and the migration", code, stderr)
	}
	shows := func(metric string) {
		t.Helper()
		if code, body := send(t, http.MethodGet, s.admin+"/metrics", ""); code != 200 || !strings.Contains(body, "\n"+metric+"\n") {
			t.Errorf("/metrics: got %d, want 200 with %s:\n%s", code, metric, body)
		}
	}
	shows(`plantstore_not_ready{reason="schema_behind"} 1`)

	execute(t, owner, `UPDATE plantstore.goose_db_version SET is_applied = true`)
	s.waitFor(t, `"msg":"ready"`)
	token, jwt := createToken(t, database.Owner, "shop"), provider.Token(t, "7")
	for _, d := range []struct{ path, token, replayed string }{{"/plants/1?token=" + token, token, ""}, {"/plants/1", token, "true"}, {"/plants/2", jwt, ""}} {
		code, body, replayed, err := trySend(t.Context(), http.MethodDelete, s.public+d.path, d.token, "order-7")
		if err != nil || code != http.StatusNoContent || replayed != d.replayed {
			t.Errorf("DELETE %s: got %d %s, Idempotency-Replayed %q, %v; want 204, %q", d.path, code, body, replayed, err, d.replayed)
		}
	}
	expecting(t, database.Owner)(0, `PRINCIPAL .*\njwt:7 +JWT +- +\S+ +- +- +default, 1 used until \S+\nshop .*`, "", "token", "list")
	shows(`plantstore_deletions_total{outcome="deleted"} 2`)
	s.stop(t, syscall.SIGTERM)
	if log := s.output(); strings.Contains(log, token) || strings.Contains(log, jwt) || !strings.Contains(log, `"msg":"stopped"`) {
		t.Errorf("want no token in the log, and stopped at its end:\n%s", log)
	}
}

// If the reader of the log ends, as when journald crashes, the service goes on.
func TestServeOutlivesTheReaderOfItsLog(t *testing.T) {
	t.Parallel()
	cmd := program(t, nil, "serve", "--database-url=host=127.0.0.1 port=1", "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(log).ReadString('\n'); err != nil { // it is about to serve
		t.Fatal(err)
	}
	log.Close()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil { // the service logs its end
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("got %v, want exit code 0", err)
	}
}

func TestServeSendsTraces(t *testing.T) {
	t.Parallel()
	arrived := make(chan string, 1000)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request coltrace.ExportTraceServiceRequest
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = proto.Unmarshal(body, &request)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("the collector got %s, %v", r.URL.Path, err)
		}
		arrived <- strings.Join(strings.Fields(request.String()), " ") // its blanks vary
	}))
	t.Cleanup(collector.Close)
	s := serving(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_RESOURCE_ATTRIBUTES=service.version=7"},
		"--database-url=host=/nonexistent")
	if line := s.waitFor(t, `"msg":"serving"`); !strings.Contains(line, `"traces":true`) {
		t.Errorf("the log has %s; want traces to be true", line)
	}
	send(t, http.MethodGet, s.public+"/plants/1", "")
	s.stop(t, syscall.SIGTERM) // the last spans are sent before the end
	close(arrived)
	got := ""
	for request := range arrived {
		got += request
	}
	for _, want := range []string{`key:"service.name" value:{string_value:"plantstore"}`, `key:"service.version" value:{string_value:"7"}`, `name:"GET /plants/:id"`} {
		if !strings.Contains(got, want) {
			t.Errorf("the collector got %s, want %s in it", got, want)
		}
	}
}

func TestServeReportsTracesItCannotSend(t *testing.T) {
	t.Parallel()
	s := serving(t, []string{"OTEL_EXPORTER_OTLP_HEADERS=authorization=secret", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"}, "--database-url=host=/nonexistent")
	send(t, http.MethodGet, s.public+"/nowhere", "")
	s.stop(t, syscall.SIGTERM)
	if log := s.output(); !strings.Contains(log, `"level":"WARN","msg":"traces were not sent"`) || strings.Contains(log, "secret") {
		t.Errorf("want a warning that traces were not sent, and no secret:\n%s", log)
	}
}
