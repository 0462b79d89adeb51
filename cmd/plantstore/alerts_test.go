package main

import (
	"regexp"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"plantstore/internal/readme"
)

const (
	rulesFile = "deploy/observability/rules.yml"
	runbook   = "deploy/docs/runbook.md"
)

// The Prometheus operator takes the same rules from an object.
func TestKubernetesHasTheAlertRules(t *testing.T) {
	t.Parallel()
	var file, object struct{ Groups, Spec any }
	for name, into := range map[string]any{rulesFile: &file, "deploy/kubernetes/base/rules.yaml": &object} {
		if err := yaml.Unmarshal([]byte(readme.Read(t, name)), into); err != nil {
			t.Fatal(err)
		}
	}
	if diff := gocmp.Diff(any(map[string]any{"groups": file.Groups}), object.Spec); diff != "" {
		t.Errorf("rules.yml (-) and rules.yaml (+) differ; %s has the command that renews rules.yaml:\n%s", metricsManual, diff)
	}
}

// The rule counts all 5xx as failed but locks and unknown keys. It counts 204 and the final
// refusals as good.
func TestAvailabilityRuleHasEveryErrorCode(t *testing.T) {
	t.Parallel()
	var failed []string
	good := []string{"0"}
	for _, row := range readme.Table(t, "README.md", "error") { // the server's tests compare it with the catalogue
		switch code := row[0]; {
		case row[1] >= "500" && code != "50301" && code != "50303":
			failed = append(failed, code)
		case (row[1] == "404" || row[1] == "409") && code != "40400":
			good = append(good, code)
		}
	}
	for kind, want := range map[string][]string{"rate": failed, "ratio": append(good, failed...)} {
		recorded := regexp.MustCompile(`- record: plantstore:failed:`+kind+`\w+\n +expr: (.*)`).FindAllStringSubmatch(readme.Read(t, rulesFile), -1)
		if len(recorded) == 0 {
			t.Errorf("rules.yml records no plantstore:failed:%s", kind)
		}
		for _, r := range recorded {
			if counted := `error=~"` + strings.Join(want, "|") + `"`; !strings.Contains(r[1], counted) {
				t.Errorf("plantstore:failed:%s is %s, want it to count %s", kind, r[1], counted)
			}
		}
	}
}

// Each alert fires in rules_test.yml, and leads to a section of the runbook.
func TestRunbookHasEachAlert(t *testing.T) {
	t.Parallel()
	text, tested := readme.Read(t, runbook), readme.Read(t, "deploy/observability/rules_test.yml")
	alerts := regexp.MustCompile(`(?s)- alert: (\w+)\n.*?runbook_url: (\S+)`).FindAllStringSubmatch(readme.Read(t, rulesFile), -1)
	for _, alert := range alerts {
		if want := runbook + "#" + strings.ToLower(alert[1]); alert[2] != want || !strings.Contains(text, "\n## "+alert[1]+"\n") {
			t.Errorf("%s leads to %s; want %s, a section of the runbook", alert[1], alert[2], want)
		}
		if !strings.Contains(tested, `"`+alert[1]+`"`) {
			t.Errorf("rules_test.yml does not have %s fire", alert[1])
		}
	}
	if len(alerts) == 0 {
		t.Error("rules.yml has no alert")
	}
}
