package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Answers, by what they are.
var (
	yes         = answer{Status: 204}
	replay      = answer{Status: 204, Replayed: true}
	never       = answer{Status: 404, Code: 40401}
	earlier     = answer{Status: 404, Code: 40402}
	unavailable = answer{Status: 503, Code: 50300}
	inDoubt     = answer{Status: 504, Code: 50400}
	lost        = answer{Lost: "unexpected EOF"}
	hung        = answer{Lost: "timeout", Hung: true}
)

// by is the ledger's row of plant 1's nth request, which had a key.
func by(n int) entry { return entry{principal, "key-1", requestID(1, n)} }

// without is the ledger's row of plant 1's nth request, which had none.
func without(n int) entry { return entry{principal, "made-by-the-server", requestID(1, n)} }

// TestCheck goes through histories of plant 1 in a store that had plants 1 and 2.
func TestCheck(t *testing.T) {
	t.Parallel()
	const keyless = true
	for _, test := range []struct {
		name    string
		keyless bool
		answers []answer
		late    []answer
		here    bool // the plant is there in the end
		ledger  []entry
		want    string // rules, in the order of their violations
	}{
		{name: "deleted", answers: []answer{yes}, ledger: []entry{by(1)}},
		{name: "deleted at the third request", answers: []answer{unavailable, inDoubt, yes}, ledger: []entry{by(3)}},
		{name: "replayed", answers: []answer{inDoubt, lost, replay}, ledger: []entry{by(1)}},
		{name: "without a key", keyless: keyless, answers: []answer{lost, yes}, ledger: []entry{without(2)}},
		{name: "without a key, and gone", keyless: keyless, answers: []answer{inDoubt, earlier}, ledger: []entry{without(1)}},
		{name: "came back", answers: []answer{yes}, late: []answer{lost, replay}, here: true, ledger: []entry{by(1)}},

		{name: "204, and no record", answers: []answer{yes}, want: "ad"},
		{name: "204, and the plant is there", answers: []answer{yes}, here: true, want: "aa"},
		{name: "204, recorded, and the plant is there", answers: []answer{yes}, here: true, ledger: []entry{by(1)}, want: "ad"},
		{name: "204, recorded twice", answers: []answer{lost, replay}, ledger: []entry{by(1), by(2)}, want: "ad"},
		{name: "204, recorded under another key", answers: []answer{yes}, ledger: []entry{without(1)}, want: "a"},
		{name: "204, recorded under another name", answers: []answer{yes}, ledger: []entry{{"dba", "key-1", requestID(1, 1)}}, want: "a"},
		{name: "204 of an earlier request's deletion", answers: []answer{lost, yes}, ledger: []entry{by(1)}, want: "a"},
		{name: "replay of its own deletion", answers: []answer{lost, replay}, ledger: []entry{by(2)}, want: "a"},

		{name: "deleted and told 404", answers: []answer{earlier}, ledger: []entry{by(1)}, want: "b"},
		{name: "deleted and told 404 by the retry", answers: []answer{lost, earlier}, ledger: []entry{by(1)}, want: "b"},
		{name: "deleted and told 503", answers: []answer{unavailable, replay}, ledger: []entry{by(1)}, want: "b"},
		{name: "told 404, and the plant is there", answers: []answer{never}, here: true, want: "b"},
		{name: "without a key, deleted and told 404", keyless: keyless, answers: []answer{lost, earlier}, ledger: []entry{without(2)}, want: "b"},
		{name: "without a key, told 404 at once", keyless: keyless, answers: []answer{unavailable, earlier}, ledger: []entry{{"dba", "", ""}}, want: "b"},
		{name: "without a key, told that there never was", keyless: keyless, answers: []answer{lost, never}, ledger: []entry{without(1)}, want: "b"},

		{name: "gone without a record", answers: []answer{inDoubt, lost}, want: "ed"},
		{name: "recorded, and there", answers: []answer{lost, unavailable}, here: true, ledger: []entry{by(1)}, want: "ed"},

		{name: "504 never resolved", answers: []answer{inDoubt}, ledger: []entry{by(1)}, want: "e"},
		{name: "503 to the end", answers: []answer{unavailable, unavailable}, here: true, want: "e"},
		{name: "late request never answered", answers: []answer{yes}, late: []answer{lost}, here: true, ledger: []entry{by(1)}, want: "e"},

		{name: "a fault of the service", answers: []answer{{Status: 500, Code: 50000}}, here: true, want: "f"},
		{name: "a dead database as 401", answers: []answer{{Status: 401, Code: 40101}}, here: true, want: "f"},
		{name: "an error without a code", answers: []answer{{Status: 503}}, here: true, want: "f"},
		{name: "another 200", answers: []answer{{Status: 200}}, here: true, want: "f"},
		{name: "no answer at all", answers: []answer{hung, yes}, ledger: []entry{by(2)}, want: "f"},

		{name: "a late retry deleted it", answers: []answer{yes}, late: []answer{yes}, ledger: []entry{by(1), by(2)}, want: "ggad"},
		{name: "a late retry deleted it, and called it a replay", answers: []answer{yes}, late: []answer{replay}, ledger: []entry{by(1)}, want: "g"},
		{name: "a late retry was told 404", answers: []answer{yes}, late: []answer{earlier}, here: true, ledger: []entry{by(1)}, want: "g"},
		{name: "a late retry was told 500", answers: []answer{yes}, late: []answer{{Status: 500, Code: 50000}}, here: true, ledger: []entry{by(1)}, want: "g"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := deletion{Plant: 1, Key: "key-1", Answers: test.answers, Back: len(test.late) > 0, Late: test.late}
			if test.keyless {
				d.Key = ""
			}
			s := state{plants: map[int64]bool{1: test.here, 2: true}, ledger: map[int64][]entry{1: test.ledger}}
			found := check(events{principal: principal, history: []deletion{d}}, s, 1, 2)
			got := ""
			for _, v := range found {
				got += v.rule
				if v.plant != 1 || describe(v, &d, s) == "" {
					t.Errorf("violation %+v, want one of plant 1 with a description", v)
				}
			}
			if got != test.want {
				t.Errorf("violations %q, want %q: %+v", got, test.want, found)
			}
		})
	}
}

// TestCheckPlantsThatNobodyAskedFor is about everything but a client's plants.
func TestCheckPlantsThatNobodyAskedFor(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		state state
		want  string
	}{
		{"all there", state{plants: map[int64]bool{-1: true, 0: true, 1: true}}, ""},
		{"one gone", state{plants: map[int64]bool{0: true, 1: true}}, "cd"},
		{"one gone, and recorded", state{
			plants: map[int64]bool{-1: true, 0: true},
			ledger: map[int64][]entry{1: {{by: "dba"}}},
		}, "c"},
		{"one recorded, and there", state{
			plants: map[int64]bool{-1: true, 0: true, 1: true},
			ledger: map[int64][]entry{0: {{by: principal}}},
		}, "d"},
		{"one recorded that never was", state{
			plants: map[int64]bool{-1: true, 0: true, 1: true},
			ledger: map[int64][]entry{99: {{by: principal}}},
		}, "d"},
	} {
		got := ""
		for _, v := range check(events{principal: principal}, test.state, -1, 1) {
			got += v.rule
		}
		if got != test.want {
			t.Errorf("%s: violations %q, want %q", test.name, got, test.want)
		}
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	r := &report{kinds: []kind{{name: "refuse"}, {name: "pg-kill"}}, events: events{faults: []fault{{Kind: "refuse"}}}}
	if err := r.verdict(); err == nil || !strings.Contains(err.Error(), "never happened: pg-kill") {
		t.Errorf("got %v, want pg-kill missed", err)
	}
	r.events.faults = append(r.events.faults, fault{Kind: "pg-kill"})
	if err := r.verdict(); err != nil {
		t.Errorf("got %v, want none", err)
	}
	r.violations = []violation{{"a", 1, "text"}}
	if err := r.verdict(); err == nil || err.Error() != "1 violations" {
		t.Errorf("got %v, want 1 violations", err)
	}
}

func TestRequestsThroughFaults(t *testing.T) {
	t.Parallel()
	got := merge([]fault{{"c", 20, 30}, {"a", 1, 5}, {"b", 4, 10}, {"d", 22, 25}})
	want := []span{{1, 10}, {20, 30}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(span{})); diff != "" {
		t.Errorf("times with a fault (-want +got):\n%s", diff)
	}
	for _, test := range []struct {
		start, end time.Duration
		want       bool
	}{{0, 0, false}, {0, 1, true}, {11, 19, false}, {11, 40, true}, {29, 40, true}, {31, 40, false}} {
		if o := overlaps(got, answer{Start: test.start, End: test.end}); o != test.want {
			t.Errorf("a request from %d to %d: through a fault = %v, want %v", test.start, test.end, o, test.want)
		}
	}
}
