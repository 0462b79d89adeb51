package main

import (
	"flag"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"plantstore/cmd/internal/programs"
	"plantstore/internal/pgtest"

	"plantstore/cmd/internal/witness"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// shortRun is what the tests run, and `make chaos` for longer.
func shortRun() config {
	return config{
		duration: 20 * time.Second, seed: newSeed(), faults: "all", every: 4 * time.Second,
		clients: 8, tellers: 4, rate: 500, late: true, race: raceDetector,
	}
}

// TestNoAnswerLies runs every kind of fault.
func TestNoAnswerLies(t *testing.T) {
	r := runAndLog(t, shortRun(), ourServers(t))
	if err := r.verdict(); err != nil {
		t.Error(err)
	}
}

// TestCheckerCatchesSabotage proves that the checker can fail, for each kind of fault
// that calls for a precaution of its own: without that, a lie has to be found.
func TestCheckerCatchesSabotage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		sabotage, faults string
		duration, every  time.Duration
		rule             string // that has to be broken
		ours             bool   // the servers have to be ours
	}{
		{programs.ForgetLedger, "cut-answers", 4 * time.Second, 300 * time.Millisecond, "b", false},
		{programs.ForgetRefusal, "late-bytes", 7 * time.Second, time.Second, "h", false},
		{programs.ForgetRefusal, "freeze", 7 * time.Second, time.Second, "h", true},
		{programs.ForgetProof, triggerOff, 3 * time.Second, time.Second, "d", false},
		{programs.BelieveWarnings, "cancel-wait", 4 * time.Second, time.Second, "a", true},
	} {
		t.Run(test.sabotage+", "+test.faults, func(t *testing.T) {
			t.Parallel()
			c := shortRun()
			c.race, c.sabotage, c.duration, c.faults, c.every = false, test.sabotage, test.duration, test.faults, test.every
			c.clients, c.tellers = 4, 6
			c.late = false // without the ledger, these would never be settled
			cluster := oneServer
			if test.ours {
				cluster = ourServers
			}
			// A run finds dozens as a rule, and on a busy machine, where little happens in
			// some seconds, perhaps none: each takes twice as long as the one before.
			for range 5 {
				r := runAndLog(t, c, cluster(t))
				if slices.ContainsFunc(r.violations, func(v witness.Violation) bool { return v.Rule == test.rule }) {
					return
				}
				c.seed = newSeed()
				c.duration *= 2
			}
			t.Errorf("no violation of rule %s was found", test.rule)
		})
	}
}

// ourServers is a primary with a standby, run by this machine's programs.
func ourServers(t *testing.T) *cluster {
	t.Helper()
	cluster, err := startCluster(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, cluster)
	return cluster
}

// oneServer is a cluster of whatever PostgreSQL the tests have.
func oneServer(t *testing.T) *cluster {
	t.Helper()
	db := pgtest.New(t)
	cluster, err := connectCluster(urls{super: db.Super, owner: db.Owner, app: db.App})
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, cluster)
	return cluster
}

// connectCluster makes a cluster of a migrated database whose server belongs to
// somebody else. The caller has to close it.
func connectCluster(u urls) (*cluster, error) {
	target, err := addressOf(u.app)
	if err != nil {
		return nil, err
	}
	p, err := newProxy(target)
	if err != nil {
		return nil, err
	}
	return &cluster{urls: u, nodes: []*node{{proxy: p}}}, nil
}

func closeAtEnd(t *testing.T, c *cluster) {
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
}

func runAndLog(t *testing.T, c config, cluster *cluster) *report {
	t.Helper()
	t.Logf("seed %d", c.seed)
	r, err := run(t.Context(), c, cluster)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	r.print(&b)
	t.Log(b.String())
	return r
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-duration", "10ms"}, "-duration must be at least 1s"},
		{[]string{"-clients", "0"}, "positive"},
		{[]string{"-faults", "flood"}, `no fault "flood"`},
		{[]string{"-sabotage", "fire"}, `no sabotage "fire"`},
		{[]string{"-history", "/no/such/folder/history"}, "no such file"},
		{[]string{"-h"}, flag.ErrHelp.Error()},
	} {
		err := command(t.Context(), test.args, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("chaos %v: got error %v, want one with %q", test.args, err, test.want)
		}
	}
}

func TestFaultsOfAServerThatIsNotOurs(t *testing.T) {
	t.Parallel()
	all, err := chosen("all", false)
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(all, func(k kind) bool { return k.lane == servers }); i >= 0 {
		t.Errorf("%s is among them", all[i].name)
	}
	if _, err := chosen("pg-kill", false); err == nil {
		t.Error("pg-kill was accepted")
	}
}

func TestReadmeNamesEveryFault(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds() {
		if !strings.Contains(string(b), "`"+k.name+"`") {
			t.Errorf("README.md does not name the fault %s", k.name)
		}
	}
	for _, name := range programs.Sabotages() {
		if !strings.Contains(string(b), "-sabotage "+name) {
			t.Errorf("README.md does not name the sabotage %s", name)
		}
	}
}

func TestReadmeNamesWhatTheModelAsserts(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	model, err := os.ReadFile("model/deletion.pml")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`(?m)^#ifn?def (\w+_\w+)$|assert\(.*/\* ([A-Z0-9]+)`).FindAllStringSubmatch(string(model), -1)
	if len(names) < 10 {
		t.Errorf("%d switches and assertions found in the model: %q", len(names), names)
	}
	for _, n := range names {
		if name := n[1] + n[2]; !strings.Contains(string(readme), "\n| `"+name+"` |") {
			t.Errorf("README.md does not name %s of model/deletion.pml", name)
		}
	}
}

func TestHistoryFile(t *testing.T) {
	t.Parallel()
	var got strings.Builder
	err := writeHistory(&got, []fault{{"refuse", 1, 2}},
		[]witness.Deletion{{Plant: 7, Key: "k", Answers: []witness.Answer{{Start: 1, End: 3, Status: 204}}}},
		[]tale{{Plant: 8, Tale: []op{{Do: refer, Start: 1, End: 2, Made: true}, {Do: deleteIt, Start: 3, End: 4, Answer: witness.Answer{Status: 409, Code: 40900}}}}})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"fault":"refuse","start":1,"end":2}
{"plant":7,"key":"k","answers":[{"start":1,"end":3,"status":204}]}
{"plant":8,"tale":[{"hand":0,"do":"add a reference","start":1,"end":2,"made":true},{"hand":0,"do":"delete","start":3,"end":4,"answer":{"start":0,"end":0,"status":409,"code":40900}}]}
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}
