//go:build unix

package main

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"plantstore/internal/pgtest"
	"plantstore/internal/readme"
)

// metricsManual is where the table of metrics is.
const metricsManual = "deploy/docs/metrics.md"

// valuesInManual are the metrics whose label values the manual lists, after a colon.
var valuesInManual = []string{"plantstore_deletions_total", "plantstore_attempts_failed_total", "plantstore_not_ready"}

// scraped returns the metrics of a service that has deleted a plant.
func scraped(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	database := pgtest.New(t)
	execute(t, pgtest.Connect(t, database.Owner), `INSERT INTO plants (id, name) VALUES (1, 'Boston fern')`)
	s := serving(t, nil, "--database-url="+database.App)
	s.waitFor(t, `"msg":"ready"`)
	if code, body := send(t, http.MethodDelete, s.public+"/plants/1", createToken(t, database.Owner, "shop")); code != http.StatusNoContent {
		t.Fatalf("DELETE: got %d %s, want 204", code, body)
	}
	_, body := send(t, http.MethodGet, s.admin+"/metrics", "")
	s.stop(t, syscall.SIGTERM)
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

// The manual has each metric with its labels, and lists the right values of some.
func TestManualHasTheMetrics(t *testing.T) {
	t.Parallel()
	want := make(map[string]string) // labels by name
	values := make(map[string]map[string]bool)
	for name, family := range scraped(t) {
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
	for _, row := range readme.Table(t, metricsManual, "name") {
		labels := strings.Split(row[1], ", ")
		slices.Sort(labels)
		got[row[0]] = strings.Join(labels, ", ")
		if slices.Contains(valuesInManual, row[0]) {
			_, list, _ := strings.Cut(row[2], ": ")
			if diff := cmp.Diff(slices.Sorted(maps.Keys(values[row[0]])), slices.Sorted(strings.SplitSeq(list, ", "))); diff != "" {
				t.Errorf("values of the label of %s (-metrics +%s):\n%s", row[0], metricsManual, diff)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics and their labels (-metrics +%s):\n%s", metricsManual, diff)
	}
}
