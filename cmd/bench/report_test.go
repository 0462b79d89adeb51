//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReadmeTakesTheReport writes a report into a copy of README.md.
func TestReadmeTakesTheReport(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "README.md")
	if err := os.WriteFile(path, readme, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeReport(path, "the figures\n"); err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(readme), reportBegins)
	_, after, _ := strings.Cut(rest, reportEnds)
	want := before + reportBegins + "\nthe figures\n\n" + reportEnds + after
	got, err := os.ReadFile(path)
	if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
		t.Errorf("got error %v and a difference (-want +got):\n%s", err, diff)
	}
}

// named is a contender that is only in reports.
type named struct {
	contender
	title string
}

func (n named) name() string { return n.title }

// TestTargets has a machine that is half as fast in each round as in the one before.
// The ratio of the median rates would be 1.00 at 8 clients.
func TestTargets(t *testing.T) {
	t.Parallel()
	trials := func() []*trial {
		return []*trial{
			{contender: named{title: plainName}, clients: 1, rounds: []measurement{{database: 50}, {database: 100}, {database: 50}}},
			{contender: named{title: plantstore}, clients: 1, rounds: []measurement{{rate: 75, database: 150}, {rate: 40, database: 290}, {rate: 20, database: 200}}},
			{contender: named{title: bareName}, clients: 1, rounds: []measurement{{rate: 100}, {rate: 50}, {rate: 25}}},
			{contender: named{title: plantstore}, clients: 8, rounds: []measurement{{rate: 80}, {rate: 50}, {rate: 20}}},
			{contender: named{title: bareName}, clients: 8, rounds: []measurement{{rate: 100}, {rate: 50}, {rate: 25}}},
			{contender: named{title: plantstore}, clients: 128, rounds: []measurement{{rate: 200, memory: 30 << 20}, {rate: 100, memory: 41 << 20}, {rate: 50, memory: 39 << 20}}},
			{contender: named{title: bareName}, clients: 128, rounds: []measurement{{rate: 100}, {rate: 50}, {rate: 25}}},
		}
	}
	r := &report{}
	for _, d := range []*distance{{}, {slowCommits: true}} {
		r.sections = append(r.sections, &section{distance: d, trials: trials()})
	}
	var got []string
	for line := range strings.Lines(r.markdown()) {
		if strings.Contains(line, "| met |") || strings.Contains(line, "| **missed** |") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{
		"| 0s, clients: 1; rate, of the bare handler's | ≥ 0.75 | 0.80 | 0.75 | met |",
		"| 0s, clients: 8; rate, of the bare handler's | ≥ 1.00 | 0.80 | 0.80 | **missed** |",
		"| 0s, clients: 128; rate, of the bare handler's | ≥ 2.00 | 2.00 | 2.00 | met |",
		"| 0s, clients: 1; the database's processor time for a deletion, of a plain DELETE's | ≤ 3.00 | 3.00 | 4.00 | met |",
		"| 0s, clients: 128; resident memory, MiB | ≤ 40.00 | 39.00 | 41.00 | met |",
		"| commits, clients: 8; rate, of the bare handler's | ≥ 0.90 | 0.80 | 0.80 | **missed** |",
		"| commits, clients: 128; rate, of the bare handler's | ≥ 1.50 | 2.00 | 2.00 | met |",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("targets differ (-want +got):\n%s", diff)
	}
}

// TestQuickDefaults holds that -quick changes only flags that are not given.
func TestQuickDefaults(t *testing.T) {
	t.Parallel()
	c, err := parse([]string{"-quick", "-rounds", "5", "-distance", "commits"}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if c.rounds != 5 || c.plants != 600_000 || c.pool != 32 || len(c.distances) != 1 || c.distances[0].name() != "commits" {
		t.Errorf("got %+v, want 5 rounds, slow commits, and the quick defaults of 600,000 plants and a pool of 32", c)
	}
}

// TestOrderOfDeletion holds that each plant comes once before one comes twice.
func TestOrderOfDeletion(t *testing.T) {
	t.Parallel()
	s := &store{plants: 1000, next: 123_456_789}
	seen := make(map[int64]bool)
	for range s.plants {
		id := s.take()
		if id < 1 || id > s.plants {
			t.Fatalf("got plant %d, want one from 1 to %d", id, s.plants)
		}
		seen[id] = true
	}
	if len(seen) != int(s.plants) {
		t.Errorf("got %d different plants, want %d", len(seen), s.plants)
	}
}
