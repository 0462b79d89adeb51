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

	"github.com/jackc/pgx/v5"

	"plantstore/internal/auth/authtest"
	"plantstore/internal/localpg"
	"plantstore/internal/pgtest"
	"plantstore/internal/readme"
)

// A watcher is a Prometheus that scrapes one service, and evaluates the shipped rules without their
// patience.
type watcher struct {
	url string
	// again ends it, and starts it a while later on the same data.
	again func(pause time.Duration, flags ...string)
}

// startPrometheus has the rules say the second of each pair of texts for the first.
func startPrometheus(t *testing.T, admin string, hurry ...string) watcher {
	t.Helper()
	dir := t.TempDir()
	text := readme.Read(t, "deploy/observability/rules.yml")
	text = strings.NewReplacer(hurry...).Replace(regexp.MustCompile(`(?m)^ +(for|interval): .*\n`).ReplaceAllString(text, ""))
	writeFile(t, filepath.Join(dir, "rules.yml"), text)
	config := strings.NewReplacer("15s", "1s", "plantstore:9090", strings.TrimPrefix(admin, "http://")).
		Replace(readme.Read(t, "deploy/observability/prometheus.yml"))
	writeFile(t, filepath.Join(dir, "prometheus.yml"), config)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	log := new(syncBuffer)
	var cmd *exec.Cmd
	p := watcher{url: "http://" + address}
	start := func(flags ...string) {
		cmd = exec.Command("prometheus", append(flags, "--config.file="+filepath.Join(dir, "prometheus.yml"),
			"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)...)
		cmd.Stderr = log
		if err := cmd.Start(); err != nil {
			t.Fatalf("%v: .ci/alerts-check brings Prometheus", err)
		}
		if !eventually(func() bool {
			code, _, _ := trySend(t, http.MethodGet, p.url+"/-/ready", "")
			return code == http.StatusOK
		}) {
			t.Fatal("Prometheus does not become ready")
		}
	}
	end := func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
	}
	p.again = func(pause time.Duration, flags ...string) {
		end()
		time.Sleep(pause)
		start(flags...)
	}
	t.Cleanup(func() {
		end()
		if t.Failed() {
			t.Logf("log of Prometheus:\n%s", log)
		}
	})
	start()
	return p
}

// ask returns the results of an instant query.
func (p watcher) ask(t *testing.T, query string) (results []struct{ Metric map[string]string }) {
	t.Helper()
	var answer struct {
		Status, Error string
		Data          struct {
			Result json.RawMessage
		}
	}
	_, body := send(t, http.MethodGet, p.url+"/api/v1/query?query="+url.QueryEscape(query), "")
	if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.Status != "success" {
		t.Errorf("%s: %s %v", query, body, err)
		return nil
	}
	if err := json.Unmarshal(answer.Data.Result, &results); err != nil {
		t.Errorf("%s: %s: %v", query, body, err)
	}
	return results
}

// firing returns the descriptions of the alerts that fire, by name.
func (p watcher) firing(t *testing.T) map[string]string {
	t.Helper()
	var answer struct {
		Data struct {
			Alerts []struct {
				Labels, Annotations map[string]string
				State               string
			}
		}
	}
	_, body := send(t, http.MethodGet, p.url+"/api/v1/alerts", "")
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	firing := make(map[string]string)
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			firing[a.Labels["alertname"]] = a.Annotations["description"]
		}
	}
	return firing
}

// wait waits until alerts fire, or do no more.
func (p watcher) wait(t *testing.T, fire bool, alerts ...string) {
	t.Helper()
	var got map[string]string
	if !eventually(func() bool {
		got = p.firing(t)
		for _, name := range alerts {
			if _, fires := got[name]; fires != fire {
				return false
			}
		}
		return true
	}) {
		t.Fatalf("%v fire, want that %v do: %v", got, alerts, fire)
	}
	for name, description := range got {
		if strings.Contains(description, "error") && strings.Contains(description, "template") {
			t.Errorf("%s is described as %q", name, description)
		}
	}
}

// remove deletes plants at once, and returns how often each status was the answer.
func (s site) remove(t *testing.T, token, key string, first, last int) (answers map[int]int) {
	t.Helper()
	answers = make(map[int]int)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for id := first; id <= last; id++ {
		wg.Go(func() {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, fmt.Sprintf("%s/plants/%d", s.public, id), nil)
			if err != nil {
				t.Error(err)
				return
			}
			request.Header.Set("Authorization", "Bearer "+token)
			if key != "" {
				request.Header.Set("Idempotency-Key", key)
			}
			answer, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Error(err)
				return
			}
			answer.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			answers[answer.StatusCode]++
		})
	}
	wg.Wait()
	return answers
}

// Each alert that can be provoked within a minute fires in a real Prometheus when a real
// service is in that trouble, and those on a state clear when it is over. promtool has
// nothing to say about the metrics, and each query of the dashboard finds something.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	const plants = 400
	s, _ := newSite(t, plants, false, "--request-timeout=3s", "--shutdown-timeout=3s")
	owner := s.primary.URL("plantstore_owner", "plantstore")
	conn := pgtest.Connect(t, owner)
	prom := startPrometheus(t, s.admin, "[1m]", "[5s]")
	prom.wait(t, false, "PlantstoreNotServing", "PlantstoreNotReady", "PlantstoreReplicaDown")
	if !eventually(func() bool { return len(prom.ask(t, `plantstore:ledger_rows:max`)) == 1 }) {
		t.Fatal("Prometheus does not scrape")
	}
	if !eventually(func() bool { return len(prom.firing(t)) == 0 }) {
		t.Errorf("%v fire on a service that was just started, want none", prom.firing(t))
	}

	// All that anybody asks for is locked, and nothing was deleted yet.
	locked, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locked.Exec(t.Context(), `SELECT FROM plants FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	t.Log("locked:", s.remove(t, s.token, "", 1, 30))
	prom.wait(t, true, "PlantstoreLockedOut", "PlantstoreBusy")
	if err := locked.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	// Some plants are locked for a second.
	locked, err = conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locked.Exec(t.Context(), `SELECT FROM plants WHERE id <= 20 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	unlocked := make(chan error)
	time.AfterFunc(time.Second, func() { unlocked <- locked.Rollback(t.Context()) })
	t.Log("slow:", s.remove(t, s.token, "key", 1, 20))
	if err := <-unlocked; err != nil {
		t.Fatal(err)
	}
	prom.wait(t, true, "PlantstoreSlow", "PlantstoreSlowOften")
	prom.wait(t, false, "PlantstoreLockedOut")

	for range 2 {
		t.Log("again:", s.remove(t, s.token, "key", 1, 20))
	}
	prom.wait(t, true, "PlantstoreReplays")

	t.Log("budget:", s.remove(t, createToken(t, owner, "script", "--budget=1/1h"), "", 21, 23), s.remove(t, createToken(t, owner, "week", "--days=3"), "", 24, 24), s.remove(t, createToken(t, owner, "day", "--days=1"), "", 25, 25))
	prom.wait(t, true, "PlantstoreBudgetUsedUp", "PlantstoreTokenExpires", "PlantstoreTokenExpiresSoon")

	// The database counts nothing any more: that looks like a ledger that does not grow.
	super := pgtest.Connect(t, s.primary.URL("postgres", "postgres"))
	for _, sql := range []string{`ALTER SYSTEM SET track_counts = off`, `SELECT pg_reload_conf()`} {
		execute(t, super, sql)
	}
	if !eventually(func() bool {
		var setting string
		if err := conn.QueryRow(t.Context(), `SHOW track_counts`).Scan(&setting); err != nil {
			t.Fatal(err)
		}
		return setting == "off"
	}) {
		t.Fatal("track_counts stays on")
	}
	t.Log("uncounted:", s.remove(t, s.token, "", 101, plants))
	prom.wait(t, true, "PlantstoreLedgerNotGrowing")

	execute(t, conn, `ALTER TABLE plants DISABLE TRIGGER USER`)
	prom.wait(t, true, "PlantstoreHindered", "PlantstoreNotServing", "PlantstoreNotReady")
	t.Log("hindered:", s.remove(t, s.token, "", 26, 60))
	prom.wait(t, true, "PlantstoreFailing", "PlantstoreFailingSlowly")
	execute(t, conn, `ALTER TABLE plants ENABLE TRIGGER USER`)
	prom.wait(t, false, "PlantstoreNotServing")

	for _, change := range []struct {
		sql  string
		fire bool
	}{{`UPDATE goose_db_version SET version_id = -version_id WHERE version_id = (SELECT max(version_id) FROM goose_db_version)`, true},
		{`UPDATE goose_db_version SET version_id = -version_id WHERE version_id < 0`, false}} {
		execute(t, conn, change.sql)
		prom.wait(t, change.fire, "PlantstoreSchemaBehind", "PlantstoreNotServing")
	}

	for title, queries := range dashboardQueries(t) {
		for _, query := range queries {
			switch found := len(prom.ask(t, query)); {
			case title == "Not ready, and why": // it is ready
			case found == 0:
				t.Errorf("dashboard.json, %s: %s finds nothing", title, query)
			}
		}
	}
	_, body := send(t, http.MethodGet, s.admin+"/metrics", "")
	lint := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
	lint.Stdin = strings.NewReader(body)
	if out, err := lint.CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) != 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}

	if err := s.primary.Stop(t.Context(), localpg.Immediate); err != nil {
		t.Fatal(err)
	}
	prom.wait(t, true, "PlantstoreDatabaseDown", "PlantstoreNotServing", "PlantstoreNotReady")
	if err := s.primary.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	prom.wait(t, false, "PlantstoreDatabaseDown", "PlantstoreNotServing", "PlantstoreNotReady")
	s.process.stop(t)
	prom.wait(t, true, "PlantstoreReplicaDown", "PlantstoreNotServing")
}

// A process that keeps ending is known by when it began. Once it is down, that is known also
// to a Prometheus that was away for longer than it looks back.
func TestRestartAlertsFire(t *testing.T) {
	t.Parallel()
	// No connection of anybody's comes from this address, and so none takes the port.
	s := startService(t, nil, "--database-url=host="+t.TempDir(), "--admin-addr=127.77.0.1:0")
	prom := startPrometheus(t, s.admin, "[1m]", "[5s]")
	for restarts := 0; ; restarts++ {
		if !eventually(func() bool {
			return len(prom.ask(t, fmt.Sprintf(`changes(process_start_time_seconds[30m]) == %d`, restarts))) == 1
		}) {
			t.Fatalf("Prometheus does not see %d restarts", restarts)
		}
		if restarts == 3 {
			break
		}
		prom.wait(t, false, "PlantstoreRestarts")
		s.end(t, 0)
		s = startService(t, nil, "--database-url=host="+t.TempDir(), "--admin-addr="+strings.TrimPrefix(s.admin, "http://"))
	}
	prom.wait(t, true, "PlantstoreRestarts")
	s.end(t, 0)
	prom.wait(t, true, "PlantstoreReplicaDown")
	prom.again(6*time.Second, "--query.lookback-delta=3s")
	prom.wait(t, true, "PlantstoreReplicaDown")
}

// The others fire, too, where hours and gigabytes are seconds and bytes in their rules.
func TestPatientAlertsFire(t *testing.T) {
	t.Parallel()
	const plants = 1000
	provider := authtest.New(t)
	s, _ := newSite(t, plants, false, "--request-timeout=3s", "--shutdown-timeout=3s", "--oidc-issuer="+provider.URL, "--oidc-audience="+authtest.Audience)
	conn := pgtest.Connect(t, s.primary.URL("plantstore_owner", "plantstore"))
	prom := startPrometheus(t, s.admin, "[5m]", "[5s]", "[10m]", "[10s]", "[15m]", "[10s]", "[1h] offset 15m", "[1h] offset 5s", "2^30", "1")
	patient := []string{"PlantstoreKeysUnknown", "PlantstoreDeletionSpike", "PlantstoreErrors", "PlantstoreShareUsedUp", "PlantstoreBatchesBehind",
		"PlantstoreFailedAttempts", "PlantstoreUnknownOutcomes"}
	t.Log("first:", s.remove(t, s.token, "", 1, 1))
	prom.wait(t, true, "PlantstoreLedgerLarge")
	prom.wait(t, false, patient...)

	provider.Stop()
	provider.Rotate(t, "second")
	t.Log("by a key that can't be known:", s.remove(t, provider.Token(t, "back-office"), "", 1, 15))
	prom.wait(t, true, "PlantstoreKeysUnknown")

	t.Log("a spike:", s.remove(t, s.token, "", 2, 200))
	prom.wait(t, true, "PlantstoreDeletionSpike")

	execute(t, conn, `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no' USING ERRCODE = '57000'; END$$;
		CREATE TRIGGER fail BEFORE DELETE ON plants FOR EACH ROW WHEN (old.id = 300) EXECUTE FUNCTION fail()`)
	t.Log("a fault:", s.remove(t, s.token, "", 300, 300))
	prom.wait(t, true, "PlantstoreErrors")

	locked, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locked.Exec(t.Context(), `SELECT FROM plants FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	enough := make(chan struct{})
	for part := range 3 {
		wg.Go(func() {
			for first := 400 + 50*part; ; {
				s.remove(t, s.token, "", first, first+49)
				select {
				case <-enough:
					return
				case <-time.After(time.Second * time.Duration(part)):
				}
			}
		})
	}
	prom.wait(t, true, "PlantstoreShareUsedUp", "PlantstoreBatchesBehind")
	close(enough)
	if err := locked.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()

	// All of the server stops. The service had connections a moment ago and goes on using them.
	// The first to stop is who makes processes: otherwise one could come meanwhile, and go on.
	super := pgtest.Connect(t, s.primary.URL("postgres", "postgres"))
	stop := func(sql string) (pids []int) {
		rows, err := super.Query(t.Context(), sql)
		if err != nil {
			t.Fatal(err)
		}
		if pids, err = pgx.CollectRows(rows, pgx.RowTo[int]); err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGSTOP) // a connection may have ended
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
		}
		return pids
	}
	t.Log("before:", s.remove(t, s.token, "", 601, 700))
	pids := stop(`SELECT split_part(pg_read_file('postmaster.pid'), E'\n', 1)::integer`)
	pids = append(pids, stop(`SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()`)...)
	t.Log("stopped:", s.remove(t, s.token, "", 701, 760))
	prom.wait(t, true, "PlantstoreFailedAttempts", "PlantstoreUnknownOutcomes")
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGCONT)
	}
	prom.wait(t, false, patient...)
}
