package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"plantstore/cmd/internal/witness"
)

// This is the contract of the service as a sequential machine. Porcupine looks for an order of
// the overlapping operations on one plant in which the machine gives the same answers. An
// operation with an unknown outcome has no end: it may take effect at any time after its start,
// or never.

// A plantState is the state of a plant between two operations.
type plantState struct {
	final
	reference reference
}

// A final is what the database has of a plant in the end. It is the last operation.
type final struct {
	there     bool
	deletions int                   // how often it was deleted
	outcomes  [scenarioKeys + 1]int // by key: 204, the code of a recorded refusal, or zero. Key 0 stands for none.
}

// A reference is doubtful while nobody knows whether its last change was committed.
type reference string

const (
	absent   reference = ""
	doubtful reference = "doubtful"
	present  reference = "present"
)

// step returns the states that an operation with its outcome can lead to, none if it can't have
// had that outcome.
func (s plantState) step(o op) []plantState {
	if o.Do != deleteIt {
		return s.change(o)
	}
	code, known := o.Answer.Code, s.outcomes[o.Key]
	switch o.Answer.Effect() {
	case witness.Deleted:
		if o.Answer.Replayed {
			return s.when(known == 204)
		}
		return s.delete(o.Key)
	case witness.NotThere, witness.Referred:
		if o.Answer.Replayed {
			return s.when(known == code)
		}
		return s.refuse(o.Key, code)
	case witness.NotDeleted: // but a refusal may be recorded, for the next request
		return append(s.refuseAny(o.Key), s)
	}
	return append(append(s.refuseAny(o.Key), s.delete(o.Key)...), s)
}

func (s plantState) when(ok bool) []plantState {
	if !ok {
		return nil
	}
	return []plantState{s}
}

// delete is a deletion with a key: its outcome is final.
func (s plantState) delete(key int) []plantState {
	ok := s.there && s.reference != present && s.outcomes[key] == 0
	s.there, s.reference = false, absent
	s.deletions++
	if key > 0 {
		s.outcomes[key] = 204
	}
	return s.when(ok)
}

// refuse is a refusal with a code, which is final for the key.
func (s plantState) refuse(key, code int) []plantState {
	ok := s.outcomes[key] == 0
	switch code {
	case 40401:
		ok = ok && !s.there && s.deletions == 0
	case 40402:
		ok = ok && !s.there && s.deletions > 0
	case 40900:
		ok = ok && s.there && s.reference != absent
	}
	if key > 0 {
		s.outcomes[key] = code
	}
	return s.when(ok)
}

func (s plantState) refuseAny(key int) (states []plantState) {
	if key > 0 {
		for _, code := range []int{40401, 40402, 40900} {
			states = append(states, s.refuse(key, code)...)
		}
	}
	return states
}

// change is step for a change by SQL.
func (s plantState) change(o op) []plantState {
	ok := true
	switch o.Do {
	case insertIt:
		ok = o.Lost || o.Made != s.there
		s.there = true
	case restoreIt:
		// A failover may also lose the row that prevented the change.
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
	return s.when(ok)
}

// contract is the model for Porcupine.
func contract() porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Init: func() []any { return []any{plantState{final: final{there: true}}} },
		Step: func(state, input, output any) (next []any) {
			s := state.(plantState)
			if l, ok := output.(final); ok {
				if l == s.final {
					next = []any{s}
				}
				return next
			}
			for _, n := range s.step(input.(op)) {
				next = append(next, n)
			}
			return next
		},
	}
	return nondeterministic.ToModel()
}

func (o op) String() string {
	switch {
	case o.Do == deleteIt && o.Key == 0:
		return fmt.Sprintf("delete without a key: %v", o.Answer)
	case o.Do == deleteIt:
		return fmt.Sprintf("delete with key %d: %v", o.Key, o.Answer)
	case o.Lost:
		return fmt.Sprintf("%s: lost", o.Do)
	case o.Made:
		return string(o.Do)
	}
	return fmt.Sprintf("%s: not done", o.Do)
}

// endless reports whether the operation may take effect at any time.
func (o op) endless() bool {
	e := o.Answer.Effect()
	return o.Lost || o.Do == deleteIt && (e == witness.Unknown || e == witness.NotDeleted || e == witness.Wrong)
}

// linearTimeout limits the search for an order. Scenarios are short: it takes milliseconds.
const linearTimeout = time.Minute

// order looks for an order of a scenario's operations that ends in the state of the database.
func order(t *scenario, end final) porcupine.CheckResult {
	var operations []porcupine.Operation
	for _, o := range t.ops {
		last := int64(o.End)
		if o.endless() {
			last = math.MaxInt64
		}
		operations = append(operations, porcupine.Operation{ClientId: o.Actor, Input: o, Call: int64(o.Start), Return: last})
	}
	operations = append(operations, porcupine.Operation{Output: end, Call: math.MaxInt64 - 1, Return: math.MaxInt64 - 1})
	return porcupine.CheckOperationsTimeout(contract(), operations, linearTimeout)
}

// finalOf returns the final state of a plant in the database.
func finalOf(s witness.State, plant int64) final {
	l := final{there: s.Plants[plant], deletions: len(s.Ledger[plant])}
	for _, e := range slices.Concat(s.Ledger[plant], s.Refusals[plant]) {
		for key := 1; key <= scenarioKeys; key++ {
			if e.Key == keyOf(plant, key) {
				l.outcomes[key] = e.Refused
				if e.Refused == 0 {
					l.outcomes[key] = 204
				}
			}
		}
	}
	return l
}

// events has the deletions, scenarios and faults of a run.
type events struct {
	history   []witness.Deletion
	scenarios []scenario
	faults    []fault
}

// check returns the violations of a run that began with plants first to last in the store:
// those of the rules at witness.Violation, and of
//
//	h  The answers to all operations on one plant could have been given if these had been
//	   done one after the other.
func check(e events, s witness.State, first, last int64) []witness.Violation {
	r := witness.Run{
		Principal: principal, History: e.history,
		Others: make(map[int64]bool, len(e.scenarios)), TriggerOff: e.triggerOff(),
	}
	var found []witness.Violation
	for i := range e.scenarios {
		t := &e.scenarios[i]
		r.Others[t.plant] = true
		for n, o := range t.ops {
			if o.Do == deleteIt {
				found = append(found, r.Proper(t.plant, n+1, o.Answer)...)
			}
		}
		if end := finalOf(s, t.plant); order(t, end) != porcupine.Ok { // there is no order, or the search took too long
			found = append(found, witness.Violation{Rule: "h", Plant: t.plant, Text: "no order of these operations gives each its outcome:\n" + t.describe(end)})
		}
	}
	return append(found, r.Check(s, first, last)...)
}

// describe is the scenario for people.
func (t *scenario) describe(end final) string {
	var b strings.Builder
	for _, o := range t.ops {
		fmt.Fprintf(&b, "    actor %d, %v to %v: %v %s\n", o.Actor, o.Start, o.End, o, o.Answer.Lost)
	}
	fmt.Fprintf(&b, "    in the end: %+v\n", end)
	return b.String()
}

// triggerOff returns when the trigger was disabled.
func (e events) triggerOff() (spans []witness.Span) {
	for _, f := range e.faults {
		if f.kind == triggerOff {
			spans = append(spans, f.Span)
		}
	}
	return spans
}
