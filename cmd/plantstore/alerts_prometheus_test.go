//go:build prometheus

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/internal/readme"
)

// A watcher is a Prometheus that scrapes one service. Minutes are seconds in its rules.
type watcher struct{ url string }

func startPrometheus(t *testing.T, admin string) watcher {
	t.Helper()
	folder := t.TempDir()
	rules := regexp.MustCompile(`(?m)^ +(for|interval): .*\n`).ReplaceAllString(readme.Read(t, "deploy/observability/rules.yml"), "")
	writeFile(t, filepath.Join(folder, "rules.yml"), strings.NewReplacer("[1m]", "[5s]", "[5m]", "[10s]", "[10m]", "[10s]", "[15m]", "[10s]").Replace(rules))
	config := strings.NewReplacer("15s", "1s", "plantstore:9090", strings.TrimPrefix(admin, "http://")).Replace(readme.Read(t, "deploy/observability/prometheus.yml"))
	writeFile(t, filepath.Join(folder, "prometheus.yml"), config)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	cmd := exec.Command("prometheus", "--config.file="+filepath.Join(folder, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(folder, "data"), "--web.listen-address="+address)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: .ci/alerts-check fetches Prometheus", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("log of Prometheus:\n%s", &log)
		}
	})
	return watcher{"http://" + address}
}

// until polls Prometheus, which announces nothing, until the answer is yes.
func (w watcher) until(t *testing.T, yes func() bool) {
	t.Helper()
	for !yes() {
		select {
		case <-t.Context().Done():
			t.Fatal("it does not come to that")
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// get returns a part of the API's answer.
func (w watcher) get(t *testing.T, path string, into any) {
	if _, body, _, err := trySend(t.Context(), http.MethodGet, w.url+path, "", ""); err == nil {
		_ = json.Unmarshal([]byte(body), into) // what is missing is asked for again
	}
}

// finds reports whether a query has a result.
func (w watcher) finds(t *testing.T, query string) bool {
	var answer struct {
		Data struct{ Result []any }
	}
	w.get(t, "/api/v1/query?query="+url.QueryEscape(query), &answer)
	return len(answer.Data.Result) > 0
}

// wait waits until alerts fire, or do not any more.
func (w watcher) wait(t *testing.T, fire bool, alerts ...string) {
	t.Helper()
	t.Logf("waiting until %v fire: %v", alerts, fire)
	w.until(t, func() bool {
		var answer struct {
			Status string
			Data   struct {
				Alerts []struct {
					Labels map[string]string
					State  string
				}
			}
		}
		w.get(t, "/api/v1/alerts", &answer)
		firing := make(map[string]bool)
		for _, a := range answer.Data.Alerts {
			firing[a.Labels["alertname"]] = a.State == "firing"
		}
		for _, name := range alerts {
			if answer.Status != "success" || firing[name] != fire {
				return false
			}
		}
		return true
	})
}

// Alerts fire in a real Prometheus when a real service has the problem, and clear when it is
// over. Each query of the dashboard has a result.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	pg, err := localpg.Start(t.Context(), localpg.Options{Settings: pgtest.Settings()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pg.Close() })
	if err := migrate.NewStore(t.Context(), pg.URL, "plantstore"); err != nil {
		t.Fatal(err)
	}
	owner := pg.URL("plantstore_owner", "plantstore")
	conn := pgtest.Connect(t, owner)
	execute(t, conn, `INSERT INTO plants (id, name) SELECT i, 'Boston fern' FROM generate_series(1, 100) i`)
	token := createToken(t, owner, "shop")
	s := serving(t, nil, "--database-url="+pg.URL("plantstore_app", "plantstore"), "--request-timeout=500ms")
	s.waitFor(t, `"msg":"ready"`)
	w := startPrometheus(t, s.admin)
	remove := func(token string, first, last int) {
		var all sync.WaitGroup
		for id := first; id <= last; id++ {
			all.Go(func() {
				_, _, _, _ = trySend(t.Context(), http.MethodDelete, fmt.Sprintf("%s/plants/%d", s.public, id), token, "")
			})
		}
		all.Wait()
	}
	w.until(t, func() bool { return w.finds(t, "plantstore_ready == 1") })
	w.wait(t, false, "PlantstoreNotServing", "PlantstoreReplicaDown")

	execute(t, conn, `BEGIN; SELECT FROM plants FOR UPDATE`)
	remove(token, 1, 20)
	w.wait(t, true, "PlantstoreLockedOut", "PlantstoreBusy")
	execute(t, conn, `ROLLBACK`)
	remove(token, 31, 60)
	w.until(t, func() bool { return w.finds(t, `plantstore_deletions_total{outcome="deleted"} >= 30`) })
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(readme.Read(t, "deploy/observability/dashboard.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			query := strings.NewReplacer("$__rate_interval", "1m", "$__range", "6h", "$job", ".+").Replace(target.Expr)
			if !w.finds(t, query) && panel.Title != "Not ready, and why" {
				t.Errorf("dashboard.json, %s: %s finds nothing", panel.Title, query)
			}
		}
	}
	_, metrics := send(t, http.MethodGet, s.admin+"/metrics", "")
	lint := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
	lint.Stdin = strings.NewReader(metrics)
	if out, err := lint.CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) != 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}

	execute(t, conn, `ALTER TABLE plants DISABLE TRIGGER record_deletion`)
	w.wait(t, true, "PlantstoreMisconfigured", "PlantstoreNotServing", "PlantstoreReplicaDown")
	execute(t, conn, `ALTER TABLE plants ENABLE TRIGGER record_deletion`)
	w.wait(t, false, "PlantstoreNotServing", "PlantstoreReplicaDown")
	if err := pg.Stop(t.Context(), localpg.Immediate); err != nil {
		t.Fatal(err)
	}
	w.wait(t, true, "PlantstoreNotServing")
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wait(t, false, "PlantstoreNotServing")
	s.stop(t, syscall.SIGTERM)
	w.wait(t, true, "PlantstoreReplicaDown", "PlantstoreNotServing")
}
