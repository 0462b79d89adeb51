// Package witness has clients that delete plants and remember every answer, and a checker
// that compares the answers with the database afterwards, in the manner of Jepsen's set test.
// cmd/chaos and cmd/drill break the service meanwhile.
package witness

import (
	"fmt"
	"net/http"
	"slices"
	"time"
)

// A Deletion is the deletion of one plant with every answer that its client got.
type Deletion struct {
	Plant   int64
	Key     string // the same in every request. Empty: none is sent, and each request is a deletion of its own.
	Answers []Answer
	Back    bool     // the plant was deleted, and then put back by SQL
	Late    []Answer // to the same request, sent again after that
}

// RequestID is the X-Request-Id of a deletion's nth request, late ones included.
func RequestID(plant int64, n int) string { return fmt.Sprintf("witness.%d.%d", plant, n) }

// Requests returns the answers to all requests, in their order.
func (d *Deletion) Requests() []Answer { return slices.Concat(d.Answers, d.Late) }

// An Answer is the answer to one request.
type Answer struct {
	Start, End time.Duration // since the run began
	Status     int           // zero: none
	Code       int           // of an error
	Replayed   bool
	Lost       string // why there is no answer
	Hung       bool   // the client gave up, long after the service should have answered
	Unsent     bool   // the service was down, and the request never left the client
}

// An Effect says whether a request deleted its plant, according to its answer.
type Effect int

const (
	Unknown    Effect = iota // deleted or not
	Deleted                  // by this request or, if replayed, by an earlier one with the key
	NotThere                 // not deleted, and never by this key: there is no such plant
	Referred                 // not deleted, and never by this key: something refers to the plant
	NotDeleted               // not by this request, which can be tried again
	Wrong                    // not an answer to these requests
)

// triggerOffCode is right only while the ledger's trigger is disabled, see Run.TriggerOff.
const triggerOffCode = 50304

// Effect reads an answer by the service's contract.
func (a Answer) Effect() Effect {
	switch {
	case a.Hung:
		return Wrong
	case a.Status == 0 || a.Status == http.StatusGatewayTimeout && a.Code == 50400:
		return Unknown
	case a.Status == http.StatusNoContent:
		return Deleted
	case a.Status == http.StatusNotFound && (a.Code == 40401 || a.Code == 40402):
		return NotThere
	case a.Status == http.StatusConflict && a.Code == 40900:
		return Referred
	case a.Status == http.StatusServiceUnavailable && (50300 <= a.Code && a.Code <= 50302 || a.Code == triggerOffCode):
		return NotDeleted
	}
	return Wrong
}

// IsFinal reports whether the answer is final.
func (a Answer) IsFinal() bool { return !a.Hung && a.Effect() != Unknown && a.Effect() != NotDeleted }

func (a Answer) String() string {
	switch {
	case a.Hung:
		return "hung"
	case a.Status == 0:
		return "lost"
	}
	s := fmt.Sprint(a.Status)
	if a.Code != 0 {
		s += fmt.Sprintf(" %d", a.Code)
	}
	if a.Replayed {
		s += " replayed"
	}
	return s
}

// A Span is a time in a run.
type Span struct{ Start, End time.Duration }
