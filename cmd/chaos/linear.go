package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"plantstore/cmd/internal/witness"
)

// This is the contract of the service as a thing that does one operation at a time.
// Porcupine tries to put the operations of one plant, which overlap, in an order in
// which that thing would have given the same answers. An operation with an unknown
// outcome has no end: it may come anywhere after its start, and at the very end it
// does nothing to any answer. So each of them stands for either outcome.

// A plantState is what is known of a plant between two operations.
type plantState struct {
	there     bool
	reference tristate
	deletions int // how often it was
	// deletedBy has the keys that did it. Each does it once.
	deletedBy [keysOfATale + 1]bool
	// refused is up to which of a key's requests none may delete the plant any more: a
	// later one was told no.
	refused [keysOfATale + 1]int
}

// A tristate may be unknown: an added reference that nobody confirmed can be seen, and
// be gone after a failover.
type tristate string

const (
	absent   tristate = ""
	doubtful tristate = "doubtful"
	present  tristate = "present"
)

// A look is the last operation: what the database holds of the plant in the end.
type look struct {
	there     bool
	deletions int
	deletedBy [keysOfATale + 1]bool
}

// delete is the effect of a deletion, and reports whether it can have it.
func (s *plantState) delete(o op) bool {
	if !s.there || s.reference == present || s.deletedBy[o.Key] && o.Key > 0 || o.Key > 0 && o.Nth <= s.refused[o.Key] {
		return false
	}
	s.there, s.reference = false, absent
	s.deletions++
	s.deletedBy[o.Key] = o.Key > 0
	return true
}

// step does one operation, and reports whether it can have had that outcome.
func (s plantState) step(o op) (bool, plantState) {
	if o.Do != deleteIt {
		return s.change(o)
	}
	ok := true
	replay := o.Key > 0 && s.deletedBy[o.Key]
	switch o.Answer.Effect() {
	case witness.Deleted:
		ok = o.Answer.Replayed == replay && (replay || s.delete(o))
	case witness.NotThere:
		ok = !replay && !s.there && (o.Answer.Code == 40402) == (s.deletions > 0)
		s.refused[o.Key] = o.Nth
	case witness.Referred:
		ok = !replay && s.there && s.reference != absent
		s.refused[o.Key] = o.Nth
	case witness.Unknown:
		s.delete(o)
	case witness.NotDeleted:
		if o.Key > 0 {
			s.delete(o) // it speaks of its own attempts only
		}
	}
	return ok, s
}

// change is step for a change by SQL.
func (s plantState) change(o op) (bool, plantState) {
	ok := true
	switch o.Do {
	case insertIt:
		ok = o.Lost || o.Made != s.there
		s.there = true
	case restoreIt:
		// What keeps it from being made may be lost with a failover, too.
		ok = o.Lost || !o.Made || !s.there && s.deletions > 0
		s.there = s.there || o.Lost || o.Made
	case refer:
		ok = o.Lost || o.Made == s.there
		switch {
		case o.Made:
			s.reference = present
		case o.Lost && s.there && s.reference == absent:
			s.reference = doubtful
		}
	case unrefer:
		switch {
		case !o.Lost:
			s.reference = absent
		case s.reference == present:
			s.reference = doubtful
		}
	}
	return ok, s
}

// contract is the model for Porcupine.
func contract() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return plantState{there: true} },
		Step: func(state, input, output any) (bool, any) {
			s := state.(plantState)
			if l, ok := output.(look); ok {
				return l == look{s.there, s.deletions, s.deletedBy}, s
			}
			return s.step(input.(op))
		},
		DescribeOperation: func(input, output any) string {
			if l, ok := output.(look); ok {
				return fmt.Sprintf("in the end: %+v", l)
			}
			return input.(op).String()
		},
		DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
	}
}

func (o op) String() string {
	switch {
	case o.Do == deleteIt && o.Key == 0:
		return fmt.Sprintf("delete without a key: %v", o.Answer)
	case o.Do == deleteIt:
		return fmt.Sprintf("delete with key %d, request %d: %v", o.Key, o.Nth, o.Answer)
	case o.Lost:
		return fmt.Sprintf("%s: lost", o.Do)
	case o.Made:
		return string(o.Do)
	default:
		return fmt.Sprintf("%s: not done", o.Do)
	}
}

// label is what it is called where operations are counted.
func (o op) label() string {
	if o.Do == deleteIt {
		return fmt.Sprintf("delete: %v", o.Answer)
	}
	return o.String()
}

// endless reports whether the operation may have its effect at any time.
func (o op) endless() bool {
	e := o.Answer.Effect()
	return o.Lost || o.Do == deleteIt && (e == witness.Unknown || e == witness.Wrong || e == witness.NotDeleted && o.Key > 0)
}

// linearTimeout bounds the search for an order. Tales are short: it takes
// milliseconds.
const linearTimeout = time.Minute

// order looks for an order of a tale's operations, given what the database holds in
// the end.
func order(t *tale, end look) (porcupine.CheckResult, porcupine.LinearizationInfo) {
	var operations []porcupine.Operation
	for _, o := range t.Tale {
		last := int64(o.End)
		if o.endless() {
			last = math.MaxInt64
		}
		operations = append(operations, porcupine.Operation{ClientId: o.Hand, Input: o, Call: int64(o.Start), Return: last})
	}
	operations = append(operations, porcupine.Operation{Output: end, Call: math.MaxInt64 - 1, Return: math.MaxInt64 - 1})
	return porcupine.CheckOperationsVerbose(contract(), operations, linearTimeout)
}

// lookAt is what the database holds of a plant.
func lookAt(s witness.State, plant int64) look {
	l := look{there: s.Plants[plant], deletions: len(s.Ledger[plant])}
	for _, e := range s.Ledger[plant] {
		for key := 1; key <= keysOfATale; key++ {
			if e.Key == keyOf(plant, key) {
				l.deletedBy[key] = true
			}
		}
	}
	return l
}

// draw draws the first tale that has no order into a file, for a browser.
func (r *report) draw(w io.Writer, path string) error {
	i := slices.IndexFunc(r.violations, func(v witness.Violation) bool { return v.Rule == "h" })
	if i < 0 {
		return nil
	}
	t := r.tale(r.violations[i].Plant)
	_, info := order(t, lookAt(r.state, t.Plant))
	if err := porcupine.VisualizePath(contract(), info, path); err != nil {
		return fmt.Errorf("draw a tale: %w", err)
	}
	_, err := fmt.Fprintf(w, "the tale of plant %d is drawn in %s\n", t.Plant, path)
	return err
}

// events are what happened in a run.
type events struct {
	principal string // whose history it is; nobody else deleted any plants
	history   []witness.Deletion
	tales     []tale
	faults    []fault
}

// check returns the violations of a run in which plants first to last were put into the
// store: those of the rules of violation, and of
//
//	h  what was told of one plant, whoever did what to it, could have been told if
//	   everything had been done one after the other
func check(e events, s witness.State, first, last int64) []witness.Violation {
	r := witness.Run{
		Principal: e.principal, History: e.history,
		Others: make(map[int64]bool, len(e.tales)), Hindered: merge(ofKind(e.faults, triggerOff)),
	}
	var found []witness.Violation
	for i := range e.tales {
		t := &e.tales[i]
		r.Others[t.Plant] = true
		for n, o := range t.Tale {
			if o.Do == deleteIt {
				found = append(found, r.Proper(t.Plant, n+1, o.Answer)...)
			}
		}
		switch result, _ := order(t, lookAt(s, t.Plant)); result {
		case porcupine.Illegal:
			found = append(found, witness.Violation{Rule: "h", Plant: t.Plant, Text: "there is no order of these operations in which each has its outcome"})
		case porcupine.Unknown:
			found = append(found, witness.Violation{Rule: "h", Plant: t.Plant, Text: fmt.Sprintf("no order of these operations was found in %v", linearTimeout)})
		}
	}
	return append(found, r.Check(s, first, last)...)
}

// describe is the tale for people.
func (t *tale) describe(end look) string {
	var b strings.Builder
	for _, o := range t.Tale {
		fmt.Fprintf(&b, "    hand %d, %v to %v: %v %s\n", o.Hand, o.Start, o.End, o, o.Answer.Lost)
	}
	fmt.Fprintf(&b, "    in the end: %+v\n", end)
	return b.String()
}
