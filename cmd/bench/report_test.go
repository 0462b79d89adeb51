//go:build linux

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWriteReport(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, old, want string }{
		{"new file", "", "new\n"},
		{"between other things", "before\n" + reportBegins + "old\n" + reportEnds + "after\n",
			"before\n" + reportBegins + "\nnew\n" + reportEnds + "after\n"},
		{"without an end", "before\n" + reportBegins + "old\n", "new\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "report.md")
			if test.old != "" {
				if err := os.WriteFile(path, []byte(test.old), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := writeReport(path, "new\n"); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if diff := cmp.Diff(test.want, string(got)); err != nil || diff != "" {
				t.Errorf("%v, difference (-want +got):\n%s", err, diff)
			}
		})
	}
}

// TestReadmeHasRoomForTheReport fails when a report would take the place of the
// README's other chapters.
func TestReadmeHasRoomForTheReport(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	begin, end := strings.Index(string(text), reportBegins), strings.Index(string(text), reportEnds)
	if begin < 0 || end < begin {
		t.Errorf("got the report's begin at %d and its end at %d, want both, in this order", begin, end)
	}
}

// example is a journey on which the service has the rates that are given.
func example(r *road, rates map[int]float64) *journey {
	j := &journey{road: r, pool: 32}
	for _, clients := range []int{1, 8, 32, 128, 512} {
		for _, name := range []string{plantstore, barePlain, pgbenchLedgered} {
			m := measurement{rate: 1000, p50: 2 * time.Millisecond, p99: 10 * time.Millisecond}
			if name == plantstore {
				m.rate *= rates[clients]
				m.p50 = time.Millisecond
			}
			j.trials = append(j.trials, &trial{contender: &pgbenchContender{title: name}, store: &store{}, clients: clients, rounds: []measurement{m}})
		}
	}
	return j
}

func TestTargetsOfADistance(t *testing.T) {
	t.Parallel()
	rates := map[int]float64{1: 0.96, 8: 0.94, 32: 0.95, 128: 2.5, 512: 2.9}
	for _, test := range []struct {
		name   string
		road   *road
		missed []string
	}{
		{"far", &road{delay: time.Millisecond}, []string{"1ms: rate at 512, of the bare handler", "1ms: rate at 8, of the bare handler"}},
		{"home", home, []string{"0s: p99 at 128, of the bare handler's", "0s: rate at 32, of pgbench with the ledger",
			"0s: rate at 32, of the bare handler", "0s: rate at 8, of pgbench with the ledger"}},
		{"slow commits", &road{slowCommits: true}, []string{"commits: rate at 128, of the bare handler",
			"commits: rate at 32, of the bare handler", "commits: rate at 8, of the bare handler"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := &report{journeys: []*journey{example(test.road, rates)}}
			var missed []string
			for line := range strings.Lines(r.markdown()) {
				if strings.Contains(line, "| missed |") {
					missed = append(missed, strings.TrimSpace(strings.Split(line, "|")[1]))
				}
			}
			slices.Sort(missed)
			if diff := cmp.Diff(test.missed, missed); diff != "" {
				t.Errorf("missed targets differ (-want +got):\n%s", diff)
			}
		})
	}
}

// A target tells what the service would reach if its ledger cost nothing, where that was
// measured.
func TestTargetsTellWhatTheLedgerCosts(t *testing.T) {
	t.Parallel()
	j := example(&road{slowCommits: true}, map[int]float64{8: 0.5, 32: 1, 128: 4})
	j.trials = append(j.trials, &trial{contender: &pgbenchContender{title: forgetful}, store: &store{}, clients: 8,
		rounds: []measurement{{rate: 900}}})
	r := &report{journeys: []*journey{j}}
	for name, cpu := range map[string]float64{plantstore: 0.4, forgetful: 0.2} {
		r.costs = append(r.costs, &expense{trial: &trial{contender: &pgbenchContender{title: name}, store: &store{}, clients: 1,
			rounds: []measurement{{database: cpu}}}})
	}
	var b strings.Builder
	r.writeTargets(&b)
	var got []string
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, "missed") || strings.Contains(line, "met") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{
		"| commits: rate at 8, of the bare handler | ≥ 0.95 | 0.50 | missed | 0.90 |",
		"| commits: rate at 32, of the bare handler | ≥ 2.00 | 1.00 | missed |  |",
		"| commits: rate at 128, of the bare handler | ≥ 4.00 | 4.00 | met |  |",
		"| CPU of the database for a deletion alone, ms | ≤ 0.110 | 0.400 | missed | 0.200 |",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("targets differ (-want +got):\n%s", diff)
	}
}

// TestPrincipalsAreComparedRoundByRound has a machine that is slower in each round. The
// median rates would say that a JWT costs nothing and a budget a half.
func TestPrincipalsAreComparedRoundByRound(t *testing.T) {
	t.Parallel()
	r := &report{}
	for _, c := range []struct {
		name  string
		rates []float64
	}{{plantstore, []float64{4000, 2000, 1000}}, {byJWT, []float64{3600, 2000, 900}}, {withBudget, []float64{3800, 1000, 950}}} {
		trial := &trial{contender: &pgbenchContender{title: c.name}, store: &store{}, clients: 8}
		for _, rate := range c.rates {
			trial.rounds = append(trial.rounds, measurement{rate: rate})
		}
		r.principals = append(r.principals, trial)
	}
	type verdict struct {
		what     string
		measured float64
	}
	var got []verdict
	for _, t := range r.principalTargets() {
		got = append(got, verdict{t.what, t.measured})
	}
	want := []verdict{{"rate at 8 with a JWT, of that with a token", 0.9}, {"rate at 8 with a budget, of that without", 0.95}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(verdict{})); diff != "" {
		t.Errorf("targets differ (-want +got):\n%s", diff)
	}
}

func TestPlots(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	r := &report{journeys: []*journey{example(home, map[int]float64{1: 1, 8: 2, 32: 3, 128: 4, 512: 5})}}
	if err := r.plots(folder); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(folder, "distance-0s.svg"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var words []string
	for d := xml.NewDecoder(f); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := token.(xml.CharData); ok {
			words = append(words, strings.TrimSpace(string(text)))
		}
	}
	for _, want := range []string{plantstore, barePlain, pgbenchLedgered, "512", "p50, ms"} {
		if !slices.Contains(words, want) {
			t.Errorf("got a plot with the words %q, want %q among them", words, want)
		}
	}
}

func TestReadLog(t *testing.T) {
	t.Parallel()
	const log = "0 1 500 0 100 7 20\n1 1 900 0 100 8 30\n0 2 700 0 101 0 40\n"
	for _, test := range []struct {
		name   string
		inTime bool
		want   []time.Duration
	}{
		{"as due", false, []time.Duration{900 * time.Microsecond}},
		{"without being late", true, []time.Duration{870 * time.Microsecond}},
	} {
		got, err := readLog(nil, strings.NewReader(log), 100_000_008, 101_000_000, test.inTime)
		if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v, latencies differ (-want +got):\n%s", test.name, err, diff)
		}
	}
	if _, err := readLog(nil, strings.NewReader("0 1 500 0 100 7\n"), 0, 1, true); err == nil {
		t.Error("got no error for a line that does not tell how late it was")
	}
}
