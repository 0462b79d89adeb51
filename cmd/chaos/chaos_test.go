package main

import (
	"errors"
	"flag"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"plantstore/cmd/internal/programs"
	"plantstore/internal/localpg"
	"plantstore/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// shortRun is what the tests run, and `make chaos` for longer.
func shortRun() config {
	return config{
		duration: 20 * time.Second, seed: newSeed(), faults: "all", every: 4 * time.Second,
		clients: 8, rate: 500, late: true, race: raceDetector,
	}
}

// TestNoAnswerLies runs every kind of fault where PostgreSQL can be run from
// local binaries, and elsewhere those that need no control of the server.
func TestNoAnswerLies(t *testing.T) {
	cluster, err := startCluster(t.Context(), nil)
	if errors.Is(err, localpg.ErrNoBinaries) {
		t.Logf("no primary and standby: %v", err)
		cluster = oneServer(t)
	} else if err != nil {
		t.Fatal(err)
	} else {
		closeAtEnd(t, cluster)
	}
	r := runAndLog(t, shortRun(), cluster)
	if err := r.verdict(); err != nil {
		t.Error(err)
	}
}

// TestCheckerCatchesABrokenLedgerCheck proves that the checker can fail: it has to
// catch a service that does not ask the ledger whether an earlier attempt of its
// own was committed.
func TestCheckerCatchesABrokenLedgerCheck(t *testing.T) {
	c := shortRun()
	c.race, c.sabotage = false, programs.ForgetLedger
	c.duration, c.faults, c.every = 4*time.Second, "cut-answers", 300*time.Millisecond
	c.late = false // without the ledger, these would never be settled
	// A run finds dozens as a rule, and on a busy machine, where little happens in
	// four seconds, perhaps none.
	for range 5 {
		r := runAndLog(t, c, oneServer(t))
		if slices.ContainsFunc(r.violations, func(v violation) bool { return v.rule == "b" }) {
			return
		}
		c.seed = newSeed()
	}
	t.Error("no violation of rule b was found")
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
		[]deletion{{Plant: 7, Key: "k", Answers: []answer{{Start: 1, End: 3, Status: 204}}}})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"fault":"refuse","start":1,"end":2}
{"plant":7,"key":"k","answers":[{"start":1,"end":3,"status":204}]}
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}
