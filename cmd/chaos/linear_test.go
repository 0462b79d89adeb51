package main

import (
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"plantstore/cmd/internal/witness"
)

// Answers of the service.
var (
	yes         = witness.Answer{Status: 204}
	replay      = witness.Answer{Status: 204, Replayed: true}
	never       = witness.Answer{Status: 404, Code: 40401}
	earlier     = witness.Answer{Status: 404, Code: 40402}
	unavailable = witness.Answer{Status: 503, Code: 50300}
	inDoubt     = witness.Answer{Status: 504, Code: 50400}
	lost        = witness.Answer{Lost: "unexpected EOF"}
	referredTo  = witness.Answer{Status: 409, Code: 40900}
)

// del is a deletion with a key, or none if that is zero.
func del(key int, a witness.Answer) op { return op{Do: deleteIt, Key: key, Answer: a} }

func again(a witness.Answer) witness.Answer { a.Replayed = true; return a }

func made(do action) op    { return op{Do: do, Made: true} }
func notMade(do action) op { return op{Do: do} }
func lostOp(do action) op  { return op{Do: do, Lost: true} }

// TestCheckerOrdersSequentialOperations has histories of one plant with one operation after the
// other.
func TestCheckerOrdersSequentialOperations(t *testing.T) {
	t.Parallel()
	// ends returns the final state of a plant that is gone: its deletions, and the outcomes of
	// keys 1, 2 and so on.
	ends := func(deletions int, outcomes ...int) final {
		l := final{deletions: deletions}
		copy(l.outcomes[1:], outcomes)
		return l
	}
	back := func(l final) final { l.there = true; return l }
	there := final{there: true}
	for _, test := range []struct {
		name string
		ops  []op
		end  final
		want bool
	}{
		{"nothing", nil, there, true},
		{"replayed after a lost answer", []op{del(1, lost), del(1, replay)}, ends(1, 204), true},
		{"lost, and not deleted", []op{del(1, lost)}, there, true},
		{"lost, and deleted", []op{del(1, inDoubt)}, ends(1, 204), true},
		{"lost, and refused", []op{made(refer), del(1, lost), del(1, again(referredTo))}, back(ends(0, 40900)), true},
		{"503, and deleted by its key's lost request", []op{del(1, lost), del(1, unavailable)}, ends(1, 204), true},
		{"503, and refused", []op{del(0, yes), del(1, unavailable), made(insertIt), del(1, again(earlier))}, back(ends(1, 40402)), true},
		{"gone earlier", []op{del(1, yes), del(2, earlier)}, ends(1, 204, 40402), true},
		{"refused, and asked again", []op{made(refer), del(1, referredTo), made(unrefer), del(1, again(referredTo))}, back(ends(0, 40900)), true},
		{"refused, and deleted with another key", []op{made(refer), del(1, referredTo), made(unrefer), del(2, yes)}, ends(1, 40900, 204), true},
		{"refused without a key", []op{made(refer), del(0, referredTo), made(unrefer), del(0, yes)}, ends(1), true},
		{"a reference that may be there", []op{lostOp(refer), del(1, referredTo), del(2, yes)}, ends(1, 40900, 204), true},
		{"a late retry", []op{del(1, yes), made(insertIt), del(1, replay)}, back(ends(1, 204)), true},
		{"restored, and deleted with another key", []op{del(1, yes), made(restoreIt), del(2, yes)}, ends(2, 204, 204), true},
		{"inserted perhaps, and there", []op{del(0, yes), lostOp(insertIt)}, back(ends(1)), true},
		{"inserted perhaps, and not there", []op{del(0, yes), lostOp(insertIt)}, ends(1), true},
		{"not inserted, since it is there", []op{notMade(insertIt)}, there, true},
		{"no reference to what is gone", []op{del(1, yes), notMade(refer)}, ends(1, 204), true},

		{"204, and there", []op{del(1, yes)}, there, false},
		{"204, recorded under another key", []op{del(1, yes)}, ends(1, 0, 204), false},
		{"204 that is no replay and should be", []op{del(1, yes), made(insertIt), del(1, yes)}, ends(2, 204), false},
		{"a replay of nothing", []op{del(1, replay)}, ends(1, 204), false},
		{"204 in spite of a reference", []op{made(refer), del(1, yes)}, ends(1, 204), false},
		{"404, and there", []op{del(1, never)}, there, false},
		{"404 after its own deletion", []op{del(1, yes), del(1, earlier)}, ends(1, 40402), false},
		{"404 as if it had never been", []op{del(1, yes), del(2, never)}, ends(1, 204, 40401), false},
		{"404, and not recorded", []op{del(0, yes), del(1, earlier)}, ends(1), false},
		{"409 without a reference", []op{del(1, referredTo)}, back(ends(0, 40900)), false},
		{"409 of what is gone", []op{made(refer), made(unrefer), del(1, yes), del(2, referredTo)}, ends(1, 204, 40900), false},
		{"409, and asked again as if for the first time", []op{made(refer), del(1, referredTo), del(1, referredTo)}, back(ends(0, 40900)), false},
		{"409, and then 204", []op{made(refer), del(1, referredTo), made(unrefer), del(1, yes)}, ends(1, 204), false},
		{"409, and deleted by an earlier request of its key", []op{del(1, lost), made(refer), del(1, referredTo), made(unrefer)}, ends(1, 204), false},
		{"503, and deleted", []op{del(1, unavailable)}, ends(1, 204), false},
		{"inserted twice", []op{del(0, yes), made(insertIt), made(insertIt)}, back(ends(1)), false},
		{"restored what is there", []op{made(restoreIt)}, there, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			played := &scenario{plant: 1, ops: test.ops}
			for i := range played.ops {
				played.ops[i].Start, played.ops[i].End = time.Duration(2*i), time.Duration(2*i+1)
			}
			if got := order(played, test.end) == porcupine.Ok; got != test.want {
				t.Errorf("there is an order: %v, want %v, of\n%s", got, test.want, played.describe(test.end))
			}
		})
	}
}

// TestCheckerOrdersOverlappingOperations has two operations whose only possible order is not
// the order of their starts.
func TestCheckerOrdersOverlappingOperations(t *testing.T) {
	t.Parallel()
	end := final{deletions: 1, outcomes: [scenarioKeys + 1]int{1: 204, 3: 40402}}
	first := op{Actor: 1, Do: deleteIt, Key: 3, Answer: earlier, Start: 0, End: 10}
	second := op{Do: deleteIt, Key: 1, Answer: yes, Start: 5, End: 8}
	if got := order(&scenario{ops: []op{first, second}}, end); got != porcupine.Ok {
		t.Errorf("with an overlap: %v, want %v", got, porcupine.Ok)
	}
	first.End = 4
	if got := order(&scenario{ops: []op{first, second}}, end); got != porcupine.Illegal {
		t.Errorf("one after the other: %v, want %v", got, porcupine.Illegal)
	}
}

// TestCheckerFindsALateDeletion has a refusal. Afterwards a late attempt deleted the plant.
func TestCheckerFindsALateDeletion(t *testing.T) {
	t.Parallel()
	e := events{scenarios: []scenario{{plant: 1, ops: []op{
		{Do: refer, Made: true, Start: 0, End: 1},
		{Do: deleteIt, Key: 1, Start: 2, End: 3, Answer: referredTo},
		{Do: unrefer, Made: true, Start: 4, End: 5},
	}}}}
	s := witness.State{Ledger: map[int64][]witness.Entry{1: {{By: principal, Key: keyOf(1, 1), Request: witness.RequestID(1, 1)}}}}
	found := check(e, s, 1, 1)
	if len(found) != 1 || found[0].Rule != "h" || !strings.Contains(found[0].Text, "delete with key 1: 409 40900") {
		t.Errorf("violations %+v, want one of rule h with the refusal", found)
	}
	s = witness.State{
		Plants:   map[int64]bool{1: true},
		Refusals: map[int64][]witness.Entry{1: {{By: principal, Key: keyOf(1, 1), Refused: 40900}}},
	}
	if found := check(e, s, 1, 1); len(found) != 0 {
		t.Errorf("without a late deletion: violations %+v, want none", found)
	}
}
