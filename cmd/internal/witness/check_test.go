package witness

import "testing"

// principal is the client of every history.
const principal = "witness"

// Answers of the service.
var (
	yes           = Answer{Status: 204}
	replay        = Answer{Status: 204, Replayed: true}
	never         = Answer{Status: 404, Code: 40401}
	earlier       = Answer{Status: 404, Code: 40402}
	unavailable   = Answer{Status: 503, Code: 50300}
	misconfigured = Answer{Status: 503, Code: 50304, Start: 10, End: 12}
	inDoubt       = Answer{Status: 504, Code: 50400}
	lost          = Answer{Lost: "unexpected EOF"}
	hung          = Answer{Lost: "timeout", Hung: true}
)

// by is the ledger's row of plant 1's nth request, which had a key.
func by(n int) Entry { return Entry{By: principal, Key: "key-1", Request: RequestID(1, n)} }

// without is the ledger's row of plant 1's nth request, which had none.
func without(n int) Entry {
	return Entry{By: principal, Key: "made-by-the-server", Request: RequestID(1, n)}
}

// TestCheckHistoriesOfAPlant goes through histories of plant 1 in a store that had plants 1 and 2.
func TestCheckHistoriesOfAPlant(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		keyless bool
		answers []Answer
		late    []Answer
		here    bool // the plant is there in the end
		ledger  []Entry
		off     Span   // when the ledger's trigger was disabled
		want    string // rules, in the order of their violations
	}{
		{name: "deleted at the third request", answers: []Answer{unavailable, inDoubt, yes}, ledger: []Entry{by(3)}},
		{name: "replayed", answers: []Answer{inDoubt, lost, replay}, ledger: []Entry{by(1)}},
		{name: "without a key, and gone", keyless: true, answers: []Answer{inDoubt, earlier}, ledger: []Entry{without(1)}},
		{name: "came back", answers: []Answer{yes}, late: []Answer{lost, replay}, here: true, ledger: []Entry{by(1)}},

		{name: "50304 while the trigger is disabled", answers: []Answer{misconfigured, yes}, off: Span{5, 10}, ledger: []Entry{by(2)}},
		{name: "50304, the trigger disabled later", answers: []Answer{misconfigured, yes}, off: Span{13, 14}, ledger: []Entry{by(2)}, want: "f"},
		{name: "50304, the trigger disabled before", answers: []Answer{misconfigured, yes}, off: Span{8, 9}, ledger: []Entry{by(2)}, want: "f"},

		{name: "204, and no record", answers: []Answer{yes}, want: "ad"},
		{name: "204, recorded, and the plant is there", answers: []Answer{yes}, here: true, ledger: []Entry{by(1)}, want: "ad"},
		{name: "204, recorded twice", answers: []Answer{lost, replay}, ledger: []Entry{by(1), by(2)}, want: "ad"},
		{name: "204, recorded under another key", answers: []Answer{yes}, ledger: []Entry{without(1)}, want: "a"},
		{name: "204, recorded under another name", answers: []Answer{yes}, ledger: []Entry{{By: "dba", Key: "key-1", Request: RequestID(1, 1)}}, want: "a"},
		{name: "204 of an earlier request's deletion", answers: []Answer{lost, yes}, ledger: []Entry{by(1)}, want: "a"},
		{name: "replay of its own deletion", answers: []Answer{lost, replay}, ledger: []Entry{by(2)}, want: "a"},

		{name: "deleted and answered 404 by the retry", answers: []Answer{lost, earlier}, ledger: []Entry{by(1)}, want: "b"},
		{name: "deleted and answered 503", answers: []Answer{unavailable, replay}, ledger: []Entry{by(1)}, want: "b"},
		{name: "answered 404, and the plant is there", answers: []Answer{never}, here: true, want: "b"},
		{name: "without a key, deleted and answered 404", keyless: true, answers: []Answer{lost, earlier}, ledger: []Entry{without(2)}, want: "b"},
		{name: "without a key, answered 404 at once", keyless: true, answers: []Answer{unavailable, earlier}, ledger: []Entry{{By: "dba"}}, want: "b"},
		{name: "without a key, answered that there never was", keyless: true, answers: []Answer{lost, never}, ledger: []Entry{without(1)}, want: "b"},

		{name: "gone without a record", answers: []Answer{inDoubt, lost}, want: "ed"},
		{name: "recorded, and there", answers: []Answer{lost, unavailable}, here: true, ledger: []Entry{by(1)}, want: "ed"},

		{name: "503 to the end", answers: []Answer{unavailable, unavailable}, here: true, want: "e"},
		{name: "late request never answered", answers: []Answer{yes}, late: []Answer{lost}, here: true, ledger: []Entry{by(1)}, want: "e"},

		{name: "a fault of the service", answers: []Answer{{Status: 500, Code: 50000}}, here: true, want: "f"},
		{name: "an error without a code", answers: []Answer{{Status: 503}}, here: true, want: "f"},
		{name: "no answer at all", answers: []Answer{hung, yes}, ledger: []Entry{by(2)}, want: "f"},

		{name: "a late retry deleted it", answers: []Answer{yes}, late: []Answer{yes}, ledger: []Entry{by(1), by(2)}, want: "ggad"},
		{name: "a late retry deleted it, and called it a replay", answers: []Answer{yes}, late: []Answer{replay}, ledger: []Entry{by(1)}, want: "g"},
		{name: "a late retry was answered 404", answers: []Answer{yes}, late: []Answer{earlier}, here: true, ledger: []Entry{by(1)}, want: "g"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := Deletion{Plant: 1, Key: "key-1", Answers: test.answers, Back: len(test.late) > 0, Late: test.late}
			if test.keyless {
				d.Key = ""
			}
			s := State{Plants: map[int64]bool{1: test.here, 2: true}, Ledger: map[int64][]Entry{1: test.ledger}}
			found := Run{Principal: principal, History: []Deletion{d}, TriggerOff: []Span{test.off}}.Check(s, 1, 2)
			got := ""
			for _, v := range found {
				got += v.Rule
				if v.Plant != 1 {
					t.Errorf("violation %+v, want one of plant 1", v)
				}
			}
			if got != test.want {
				t.Errorf("violations %q, want %q: %+v", got, test.want, found)
			}
		})
	}
}

// TestCheckPlantsWithoutARequest checks plants that no client asked to delete.
func TestCheckPlantsWithoutARequest(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		there  []int64
		ledger map[int64][]Entry
		want   string
	}{
		{"all there", []int64{-1, 0, 1}, nil, ""},
		{"one gone", []int64{0, 1}, nil, "cd"},
		{"one gone, and recorded", []int64{-1, 0}, map[int64][]Entry{1: {{By: "dba"}}}, "c"},
		{"one recorded, and there", []int64{-1, 0, 1}, map[int64][]Entry{0: {{By: principal}}}, "d"},
		{"one recorded that never was", []int64{-1, 0, 1}, map[int64][]Entry{99: {{By: principal}}}, "d"},
	} {
		state := State{Plants: make(map[int64]bool), Ledger: test.ledger}
		for _, id := range test.there {
			state.Plants[id] = true
		}
		got := ""
		for _, v := range (Run{Principal: principal}).Check(state, -1, 1) {
			got += v.Rule
		}
		if got != test.want {
			t.Errorf("%s: violations %q, want %q", test.name, got, test.want)
		}
	}
}
