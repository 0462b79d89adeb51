//go:build unix

package main

import (
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"plantstore/internal/pgtest"
	"plantstore/internal/readme"
)

// metricsManual is where the table of metrics is.
const metricsManual = "deploy/docs/metrics.md"

// The manual, the rules and the dashboard name metrics that a service shows after a deletion.
func TestMetricNamesMatchManualRulesAndDashboard(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	execute(t, pgtest.Connect(t, database.Owner), `INSERT INTO plants (id, name) VALUES (1, 'Boston fern')`)
	s := serving(t, nil, "--database-url="+database.App)
	s.waitFor(t, `"msg":"ready"`)
	if code, body := send(t, http.MethodDelete, s.public+"/plants/1", createToken(t, database.Owner, "shop")); code != http.StatusNoContent {
		t.Fatalf("DELETE: got %d %s, want 204", code, body)
	}
	_, shown := send(t, http.MethodGet, s.admin+"/metrics", "")
	s.stop(t, syscall.SIGTERM)
	problems, err := promlint.New(strings.NewReader(shown)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: got %v, %v; want no problem", problems, err)
	}
	manualHasTheMetrics(t, shown)
	rules := readme.Read(t, rulesFile)
	for _, recorded := range regexp.MustCompile(`- record: (\S+)`).FindAllStringSubmatch(rules, -1) {
		shown += "\n" + recorded[1] + " 0"
	}
	wantNamed(t, "rules.yml", rules, shown)
	wantNamed(t, "dashboard.json", strings.ReplaceAll(readme.Read(t, "deploy/observability/dashboard.json"), `\"`, `"`), shown)
}

// manualHasTheMetrics compares the manual's table, with the values of labels that it lists
// after a colon.
func manualHasTheMetrics(t *testing.T, shown string) {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(shown))
	if err != nil {
		t.Fatal(err)
	}
	want, got := make(map[string]string), make(map[string]string) // labels by name
	values := make(map[string]map[string]bool)
	for name, family := range families {
		if !strings.HasPrefix(name, "plantstore_") {
			continue
		}
		values[name] = make(map[string]bool)
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, label.GetName())
				values[name][label.GetValue()] = true
			}
			slices.Sort(labels)
			want[name] = strings.Join(labels, ", ")
		}
	}
	for _, row := range readme.Table(t, metricsManual, "name") {
		labels := strings.Split(row[1], ", ")
		slices.Sort(labels)
		got[row[0]] = strings.Join(labels, ", ")
		if slices.Contains([]string{"plantstore_deletions_total", "plantstore_not_ready"}, row[0]) {
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

var (
	// selector is a metric in an expression, with the labels that it has to have.
	selector = regexp.MustCompile(`\b((?:plantstore|process)[_:][\w:]*\w)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
)

// wantNamed checks that a service shows each metric of a file, and each value of a label. An
// alert on a metric that nobody shows never fires.
func wantNamed(t *testing.T, file, text, shown string) {
	t.Helper()
	selectors := selector.FindAllStringSubmatch(text, -1)
	if len(selectors) == 0 {
		t.Errorf("%s names no metric", file)
	}
	for _, s := range selectors {
		samples := regexp.MustCompile(`(?m)^`+s[1]+`[{ ].*`).FindAllString(shown, -1)
		if len(samples) == 0 {
			t.Errorf("%s has %s, which no service shows", file, s[1])
			continue
		}
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			for value := range strings.SplitSeq(m[2], "|") {
				label := m[1] + `="` + value + `"`
				if m[1] != "job" && !slices.ContainsFunc(samples, func(sample string) bool { return strings.Contains(sample, label) }) {
					t.Errorf("%s has %s with %s, which no service shows", file, s[1], label)
				}
			}
		}
	}
}
