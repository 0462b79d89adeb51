package main

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"plantstore/internal/pgtest"
	"plantstore/internal/readme"
)

// scrape waits until a running service shows a metric, and returns all of them.
func scrape(t *testing.T, admin, until string) map[string]*dto.MetricFamily {
	t.Helper()
	var body string
	if !eventually(func() bool {
		_, body = send(t, http.MethodGet, admin+"/metrics", "")
		return strings.Contains(body, until)
	}) {
		t.Fatalf("/metrics has no %s:\n%s", until, body)
	}
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("promlint: %s: %s", p.Metric, p.Text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// The manual has each metric of a service at work, with its labels, and those of their
// values that it lists are the ones that there are.
func TestManualHasTheMetrics(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	p := start(t, "serve", "--database-url="+database.App, "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s")
	public, admin := p.addresses(t)
	waitReady(t, admin, http.StatusOK)
	token := createToken(t, database.Owner, "shop")
	if code, body := send(t, http.MethodDelete, public+"/plants/1", token); code != http.StatusNotFound {
		t.Fatalf("DELETE of no plant: %d %s, want 404", code, body)
	}
	families := scrape(t, admin, "plantstore_ledger_bytes")

	want := make(map[string]string)
	values := make(map[string]map[string]bool) // by name
	for name, family := range families {
		if !strings.HasPrefix(name, "plantstore_") {
			continue
		}
		values[name] = make(map[string]bool)
		var labels []string
		for _, metric := range family.GetMetric() {
			labels = nil
			for _, label := range metric.GetLabel() {
				labels = append(labels, label.GetName())
				values[name][label.GetValue()] = true
			}
		}
		slices.Sort(labels)
		want[name] = strings.Join(labels, ", ")
	}
	got := make(map[string]string)
	for _, row := range readme.Table(t, "deploy/README.md", "name") {
		labels := strings.Split(row[1], ", ")
		slices.Sort(labels)
		got[row[0]] = strings.Join(labels, ", ")
		switch row[0] {
		case "plantstore_deletions_total", "plantstore_failed_attempts_total", "plantstore_not_ready", "plantstore_pool_share_connections", "plantstore_token_lookups_total":
			_, list, _ := strings.Cut(row[2], ": ")
			listed := slices.Sorted(strings.SplitSeq(list, ", "))
			if diff := cmp.Diff(slices.Sorted(maps.Keys(values[row[0]])), listed); diff != "" {
				t.Errorf("values of %s's label (-metrics +deploy/README.md):\n%s", row[0], diff)
			}
		case "plantstore_sheds_total":
			for cause := range values[row[0]] {
				if !strings.Contains(row[2], cause) {
					t.Errorf("deploy/README.md does not tell of %s %s", row[0], cause)
				}
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics and their labels (-metrics +deploy/README.md):\n%s", diff)
	}
	p.stop(t)
}

// Whoever reads the first line of a log knows what is running, and how.
func TestServingTellsHow(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	p := start(t, "serve", "--database-url="+database.App, "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--rate-limit=5/s", "--drain-delay=0s",
		"--trusted-proxies=10.0.0.0/8,2001:db8::7", "--oidc-issuer=http://localhost:1", "--oidc-audience=plants", "--oidc-budget=500/90m", "--profiles")
	p.addresses(t)
	p.stop(t)
	var serving map[string]any
	for line := range strings.Lines(p.log.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err == nil && entry["msg"] == "serving" {
			serving = entry
		}
	}
	for _, field := range []string{"version", "commit", "go", "schema", "addr", "admin_addr", "database_host", "database", "role", "pool", "max_in_flight", "max_connections", "cores", "traces"} {
		if _, ok := serving[field]; !ok {
			t.Errorf("the line %v has no %s", serving, field)
		}
	}
	if got := serving["role"]; got != "plantstore_app" {
		t.Errorf("role %v, want plantstore_app", got)
	}
	want := map[string]any{"database_url": "set", "addr": "127.0.0.1:0", "admin_addr": "127.0.0.1:0", "rate_limit": "5/s,burst=5", "drain_delay": "0s",
		"trusted_proxies": "[10.0.0.0/8 2001:db8::7/128]", "oidc_issuer": "http://localhost:1", "oidc_audience": "plants", "oidc_budget": "500/1h30m", "profiles": "true"}
	if diff := cmp.Diff(want, serving["settings"]); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

// Whoever looks for a password that does not count learns which are set, and no more.
func TestServingTellsWhichSecretsAreSet(t *testing.T) {
	t.Parallel()
	names := []string{"DATABASE_URL", "DATABASE_URL_FILE", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "PGPASSFILE", "PGPASSWORD",
		"PGSSLKEY", "PGSSLPASSWORD", "PLANTSTORE_TLS_KEY"}
	folder := t.TempDir()
	cert, key := filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	tls := httptest.NewTLSServer(nil)
	t.Cleanup(tls.Close)
	der, err := x509.MarshalPKCS8PrivateKey(tls.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw})))
	writeFile(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	for name, tt := range map[string]struct {
		variables, args, set []string
	}{
		"one":        {nil, []string{"--database-url=host=" + folder}, []string{"DATABASE_URL"}},
		"by libpq's": {[]string{"PGHOST=" + folder, "PGPASSWORD=sekrit", "PGPASSFILE=" + folder + "/sekrit"}, nil, []string{"PGPASSWORD", "PGPASSFILE"}},
		"more": {[]string{"OTEL_EXPORTER_OTLP_HEADERS=authorization=sekrit", "DATABASE_URL=host=" + folder + " password=sekrit"},
			[]string{"--tls-cert=" + cert, "--tls-key=" + key}, []string{"DATABASE_URL", "OTEL_EXPORTER_OTLP_HEADERS", "PLANTSTORE_TLS_KEY"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, tt.variables, tt.args...)
			s.end(t, 0)
			want := make(map[string]string)
			for _, name := range names {
				want[name] = "unset"
				if slices.Contains(tt.set, name) {
					want[name] = "set"
				}
			}
			var serving struct{ Secrets map[string]string }
			for line := range strings.Lines(s.log.String()) {
				if strings.Contains(line, `"msg":"serving"`) {
					if err := json.Unmarshal([]byte(line), &serving); err != nil {
						t.Fatal(err)
					}
				}
			}
			if diff := cmp.Diff(want, serving.Secrets); diff != "" {
				t.Errorf("secrets (-want +got):\n%s", diff)
			}
			if strings.Contains(s.log.String(), "sekrit") {
				t.Errorf("the log has a secret:\n%s", s.log)
			}
		})
	}
}
