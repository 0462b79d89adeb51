package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// A deletion is one plant's, with every answer that its client got.
type deletion struct {
	Plant int64 `json:"plant"`
	// Key is the same in every request. Empty: the client sends none, and each
	// request is a deletion of its own.
	Key     string   `json:"key,omitempty"`
	Answers []answer `json:"answers"`
	// Back is set when the plant was deleted, and then put back by SQL.
	Back bool `json:"back,omitempty"`
	// Late are the answers to the same request, sent again after that.
	Late []answer `json:"late,omitempty"`
}

// requestID is the X-Request-Id of a deletion's nth request, late ones included.
func requestID(plant int64, n int) string { return fmt.Sprintf("chaos.%d.%d", plant, n) }

// An answer is what one request came to.
type answer struct {
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

// hindered is the code of an answer that is right only while the ledger's trigger is
// disabled.
const hindered = 50304

// An effect is what an answer says of the request's own effect.
type effect int

const (
	unknown effect = iota // deleted or not
	deleted
	notThere   // not deleted, nothing to delete
	referred   // not deleted, something refers to it
	notDeleted // not deleted, worth another try
	wrong      // not an answer that these requests can get
)

// effect reads an answer as the service's contract has it.
func (a answer) effect() effect {
	switch {
	case a.Hung:
		return wrong
	case a.Status == 0 || a.Status == http.StatusGatewayTimeout && a.Code == 50400:
		return unknown
	case a.Status == http.StatusNoContent:
		return deleted
	case a.Status == http.StatusNotFound && (a.Code == 40401 || a.Code == 40402):
		return notThere
	case a.Status == http.StatusConflict && a.Code == 40900:
		return referred
	case a.Status == http.StatusServiceUnavailable && (50300 <= a.Code && a.Code <= 50302 || a.Code == hindered):
		return notDeleted
	default:
		return wrong
	}
}

// settled reports whether the client needs not ask again.
func (a answer) settled() bool {
	switch a.effect() {
	case unknown, notDeleted:
		return false
	default:
		return !a.Hung
	}
}

// String is the answer in a word or two.
func (a answer) String() string {
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

// requests are all answers of a deletion, in the order of their requests.
func (d *deletion) requests() []answer {
	if len(d.Late) == 0 {
		return d.Answers
	}
	return append(append([]answer{}, d.Answers...), d.Late...)
}

// writeHistory writes faults, deletions and tales as one JSON object a line.
func writeHistory(w io.Writer, faults []fault, history []deletion, tales []tale) error {
	buffered := bufio.NewWriter(w)
	encoder := json.NewEncoder(buffered)
	var err error
	for _, f := range faults {
		err = errors.Join(err, encoder.Encode(f))
	}
	for i := range history {
		err = errors.Join(err, encoder.Encode(&history[i]))
	}
	for i := range tales {
		err = errors.Join(err, encoder.Encode(&tales[i]))
	}
	if err = errors.Join(err, buffered.Flush()); err != nil {
		return fmt.Errorf("write the history: %w", err)
	}
	return nil
}
