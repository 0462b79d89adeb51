// Package witness is clients that delete plants and remember every answer, and a checker
// that holds what they were told against what the database has in the end, in the manner
// of Jepsen's set test. cmd/chaos and cmd/drill make it hard for the service meanwhile.
package witness

import (
	"fmt"
	"net/http"
	"sort"
	"time"
)

// A Deletion is one plant's, with every answer that its client got.
type Deletion struct {
	Plant int64 `json:"plant"`
	// Key is the same in every request. Empty: the client sends none, and each
	// request is a deletion of its own.
	Key     string   `json:"key,omitempty"`
	Answers []Answer `json:"answers"`
	// Back is set when the plant was deleted, and then put back by SQL.
	Back bool `json:"back,omitempty"`
	// Late are the answers to the same request, sent again after that.
	Late []Answer `json:"late,omitempty"`
}

// RequestID is the X-Request-Id of a deletion's nth request, late ones included.
func RequestID(plant int64, n int) string { return fmt.Sprintf("witness.%d.%d", plant, n) }

// An Answer is what one request came to.
type Answer struct {
	Start    time.Duration `json:"start"` // since the run began
	End      time.Duration `json:"end"`
	Status   int           `json:"status,omitempty"` // zero: none
	Code     int           `json:"code,omitempty"`   // of an error
	Replayed bool          `json:"replayed,omitempty"`
	Lost     string        `json:"lost,omitempty"` // why there is none
	// Hung is set when the client gave up waiting, long after the service should
	// have answered.
	Hung bool `json:"hung,omitempty"`
	// Unsent is set when the service was down: the request never left the client.
	Unsent bool `json:"unsent,omitempty"`
}

// hinderedCode is the code of an answer that is right only while deleting is hindered,
// see Run.Hindered.
const hinderedCode = 50304

// An Effect is what an answer says of the request's own effect.
type Effect int

const (
	Unknown Effect = iota // deleted or not
	Deleted
	NotThere   // not deleted, nothing to delete
	Referred   // not deleted, something refers to it
	NotDeleted // not deleted, worth another try
	Wrong      // not an answer that these requests can get
)

// Effect reads an answer as the service's contract has it.
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
	case a.Status == http.StatusServiceUnavailable && (50300 <= a.Code && a.Code <= 50302 || a.Code == hinderedCode):
		return NotDeleted
	default:
		return Wrong
	}
}

// Settled reports whether the client needs not ask again.
func (a Answer) Settled() bool {
	switch a.Effect() {
	case Unknown, NotDeleted:
		return false
	default:
		return !a.Hung
	}
}

// String is the answer in a word or two.
func (a Answer) String() string {
	switch {
	case a.Hung:
		return "hung"
	case a.Status == 0:
		return "lost"
	case a.Replayed:
		return fmt.Sprintf("%d replayed", a.Status)
	case a.Code != 0:
		return fmt.Sprintf("%d %d", a.Status, a.Code)
	default:
		return fmt.Sprint(a.Status)
	}
}

// Requests are all answers of a deletion, in the order of their requests.
func (d *Deletion) Requests() []Answer {
	if len(d.Late) == 0 {
		return d.Answers
	}
	return append(append([]Answer{}, d.Answers...), d.Late...)
}

// A Span is a time in a run.
type Span struct{ Start, End time.Duration }

// Overlaps reports whether a request was in flight during one of the spans, which are in
// order and apart.
func Overlaps(spans []Span, a Answer) bool {
	i := sort.Search(len(spans), func(i int) bool { return spans[i].End >= a.Start })
	return i < len(spans) && spans[i].Start <= a.End
}
