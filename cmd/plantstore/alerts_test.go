//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"go.yaml.in/yaml/v3"

	"plantstore/internal/readme"
)

// rules are what Prometheus records and alerts on.
type rules struct {
	Groups []struct {
		Rules []rule
	}
}

type rule struct {
	Record, Alert, Expr string
	Labels, Annotations map[string]string
}

// shippedRules returns the alerts and what is recorded, by name.
func shippedRules(t *testing.T) (alerts, recorded map[string]rule) {
	t.Helper()
	var file rules
	if err := yaml.Unmarshal([]byte(readme.Read(t, "deploy/observability/rules.yml")), &file); err != nil {
		t.Fatal(err)
	}
	alerts, recorded = make(map[string]rule), make(map[string]rule)
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			if r.Alert != "" {
				alerts[r.Alert] = r
			} else {
				recorded[r.Record] = r
			}
		}
	}
	return alerts, recorded
}

// The Prometheus operator takes the same rules from an object.
func TestKubernetesHasTheRules(t *testing.T) {
	t.Parallel()
	var file, object struct{ Groups, Spec any }
	for name, into := range map[string]any{"deploy/observability/rules.yml": &file, "deploy/kubernetes/base/rules.yaml": &object} {
		if err := yaml.Unmarshal([]byte(readme.Read(t, name)), into); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(any(map[string]any{"groups": file.Groups}), object.Spec); diff != "" {
		t.Errorf("rules.yml (-) and rules.yaml (+) differ; %s has the command that renews rules.yaml:\n%s", metricsManual, diff)
	}
}

// Failed are all 5xx but locks and unknown keys. Good are 204, and what is final about a plant.
func TestAvailabilityCountsTheCatalogue(t *testing.T) {
	t.Parallel()
	var failed, good []string
	for _, row := range readme.Table(t, "README.md", "error") { // the server's tests compare it with the catalogue
		switch code := row[0]; {
		case row[1] >= "500" && code != "50301" && code != "50303":
			failed = append(failed, code)
		case (row[1] == "404" || row[1] == "409") && code != "40400":
			good = append(good, code)
		}
	}
	_, recorded := shippedRules(t)
	counted := regexp.MustCompile(`error=~"([^"]*)"`)
	for kind, want := range map[string]string{"rate": strings.Join(failed, "|"), "ratio": strings.Join(slices.Concat([]string{"0"}, good, failed), "|")} {
		seen := 0
		for name, r := range recorded {
			if !strings.HasPrefix(name, "plantstore:failed:"+kind) {
				continue
			}
			seen++
			if got := counted.FindStringSubmatch(r.Expr); got == nil || got[1] != want {
				t.Errorf("%s counts %q, want %s", name, got, want)
			}
		}
		if seen == 0 {
			t.Errorf("rules.yml records no plantstore:failed:%s", kind)
		}
	}
}

// A panel is what the dashboard shows in one place.
type panel struct {
	Title   string
	Targets []struct{ Expr, LegendFormat string }
}

// dashboardQueries returns the queries of the dashboard as Grafana would send them, by
// their panel's title, or that of the variable above the panels.
func dashboardQueries(t *testing.T) map[string][]string {
	t.Helper()
	var dashboard struct {
		Panels     []panel
		Templating struct {
			List []struct {
				Name, Type string
				Query      json.RawMessage
			}
		}
	}
	if err := json.Unmarshal([]byte(readme.Read(t, "deploy/observability/dashboard.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("$__rate_interval", "1m", "$__range", "6h", "$job", ".+")
	queries := make(map[string][]string)
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			queries[p.Title] = append(queries[p.Title], fill.Replace(target.Expr))
		}
	}
	values := regexp.MustCompile(`^label_values\((.+), *(\w+)\)$`)
	for _, v := range dashboard.Templating.List {
		if v.Type != "query" {
			continue
		}
		var is struct{ Query string }
		m := []string(nil)
		if err := json.Unmarshal(v.Query, &is); err == nil {
			m = values.FindStringSubmatch(is.Query)
		}
		if m == nil {
			t.Fatalf("the variable %s has the query %s, want label_values(...) of a label", v.Name, v.Query)
		}
		queries["variable "+v.Name] = []string{fmt.Sprintf("count by (%s) (%s)", m[2], m[1])}
	}
	return queries
}

// runbook has a part for each alert, to which its runbook_url leads.
const runbook = "deploy/docs/runbook.md"

// Each alert has a part of the runbook, and each part an alert.
func TestRunbookHasEachAlert(t *testing.T) {
	t.Parallel()
	alerts, _ := shippedRules(t)
	parts := make(map[string]string)
	for _, part := range strings.Split(readme.Read(t, runbook), "\n## ")[1:] {
		if name, text, _ := strings.Cut(part, "\n"); strings.HasPrefix(name, "Plantstore") {
			parts[name] = text
		}
	}
	for name, a := range alerts {
		if want := runbook + "#" + strings.ToLower(name); a.Annotations["runbook_url"] != want {
			t.Errorf("%s has the runbook %q, want %q", name, a.Annotations["runbook_url"], want)
		}
		if len(parts[name]) < 100 {
			t.Errorf("%s has %q under %s, want what it means, what to look at and what to do", runbook, parts[name], name)
		}
		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" || !slices.Contains([]string{"critical", "warning"}, a.Labels["severity"]) {
			t.Errorf("%s has no summary, no description or no severity: %+v", name, a)
		}
	}
	for name := range parts {
		if _, ok := alerts[name]; !ok {
			t.Errorf("%s has the alert %s, which rules.yml does not have", runbook, name)
		}
	}
	tested := readme.Read(t, "deploy/observability/rules_test.yml")
	for name := range alerts {
		if !strings.Contains(tested, `"`+name+`"`) {
			t.Errorf("rules_test.yml does not have %s fire", name)
		}
	}
}

var (
	// selector is a metric in an expression, with what is asked of its labels.
	selector = regexp.MustCompile(`\b((?:plantstore|process)[_:][\w:]*|up|ALERTS)\b(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	// histogram is what Prometheus adds to a histogram's name.
	histogram = regexp.MustCompile(`_(?:bucket|sum|count)$`)
	grouping  = regexp.MustCompile(`\b(?:by|on|without|ignoring)\s*\(([^)]*)\)`)
)

// misnamed returns what an expression names that a service does not show: a metric, a label,
// or a label's value.
func misnamed(expr string, families map[string]*dto.MetricFamily, recorded map[string]rule) (problems []string) {
	for _, s := range selector.FindAllStringSubmatch(grouping.ReplaceAllString(expr, ""), -1) {
		name := s[1]
		if _, ok := recorded[name]; ok || name == "up" || name == "ALERTS" {
			continue
		}
		family := families[name]
		if family == nil {
			family = families[histogram.ReplaceAllString(name, "")]
		}
		if family == nil || (family.GetName() != name) != (family.GetType() == dto.MetricType_HISTOGRAM) {
			problems = append(problems, "no metric "+name)
			continue
		}
		values := make(map[string][]string)
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				values[label.GetName()] = append(values[label.GetName()], label.GetValue())
			}
			for _, bucket := range metric.GetHistogram().GetBucket() {
				values["le"] = append(values["le"], strconv.FormatFloat(bucket.GetUpperBound(), 'g', -1, 64))
			}
		}
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			for value := range strings.SplitSeq(m[3], "|") {
				if m[1] != "job" && m[1] != "instance" && !slices.Contains(values[m[1]], value) {
					problems = append(problems, fmt.Sprintf("%s has no %s %q", name, m[1], value))
				}
			}
		}
	}
	return problems
}

// An alert on a metric that nobody shows never fires.
func TestAlertsAndDashboardNameWhatAServiceShows(t *testing.T) {
	t.Parallel()
	families := scraped(t)
	alerts, recorded := shippedRules(t)
	for _, named := range []map[string]rule{alerts, recorded} {
		for name, r := range named {
			for _, problem := range misnamed(r.Expr, families, recorded) {
				t.Errorf("rules.yml, %s: %s", name, problem)
			}
		}
	}
	for title, queries := range dashboardQueries(t) {
		for _, query := range queries {
			for _, problem := range misnamed(query, families, recorded) {
				t.Errorf("dashboard.json, %s: %s", title, problem)
			}
		}
	}
}
