package witness

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
)

// A Violation is a broken promise. Rule is one of
//
//	a  Every 204 has exactly one row in the ledger with its key, which names the request
//	   that deleted the plant, and the plant is gone.
//	b  No client got a refusal for a plant that its own request deleted, nor "no such plant"
//	   for one that is there.
//	c  No plant that nobody asked for is gone.
//	d  The ledger has as many rows as plants are gone, for each plant.
//	e  Every 504, every 503 and every lost connection came to a final answer by sending the
//	   request again.
//	f  There was no other answer, none took too long, and 50304 came only while the
//	   ledger's trigger was disabled on purpose.
//	g  A late retry gets the 204 again, and leaves the plant that came back.
type Violation struct {
	Rule  string
	Plant int64
	Text  string
}

// A Run has the history of a run.
type Run struct {
	Principal  string // of the history; nobody else deleted any plants but Others
	History    []Deletion
	Others     map[int64]bool // plants to which the rules do not apply
	TriggerOff []Span         // when the ledger's trigger was disabled on purpose
}

// A checker compares a run with the state of the store afterwards.
type checker struct {
	Run
	state State
	found []Violation
}

// Check returns the violations of a run that began with plants first to last in the store,
// in the order of the history.
func (r Run) Check(s State, first, last int64) []Violation {
	c := &checker{Run: r, state: s}
	asked := make(map[int64]bool, len(r.History)+len(r.Others))
	maps.Copy(asked, r.Others)
	for i := range r.History {
		d := &r.History[i]
		asked[d.Plant] = true
		c.answers(d)
		c.late(d)
		c.recorded(d)
		c.counted(d.Plant, d.Back)
	}
	for id := first; id <= last; id++ {
		if asked[id] {
			continue
		}
		if !s.Plants[id] {
			c.violate("c", id, "nobody asked for it, and it is gone")
		}
		c.counted(id, false)
	}
	for _, id := range slices.Sorted(maps.Keys(s.Ledger)) {
		if !asked[id] && (id < first || id > last) {
			c.violate("d", id, "the ledger has a plant that never was")
		}
	}
	return c.found
}

func (c *checker) violate(rule string, plant int64, format string, args ...any) {
	c.found = append(c.found, Violation{rule, plant, fmt.Sprintf(format, args...)})
}

// answers checks the answers to a deletion one by one: rules b, e and f.
func (c *checker) answers(d *Deletion) {
	unknown := false // an earlier request may have deleted the plant
	for i, a := range d.Answers {
		n, e := i+1, a.Effect()
		no := e == NotThere || e == Referred || e == NotDeleted
		did := slices.ContainsFunc(c.state.Ledger[d.Plant], func(e Entry) bool { return e.Request == RequestID(d.Plant, n) })
		switch {
		case no && did:
			c.violate("b", d.Plant, "request %d was answered %v, but deleted the plant", n, a)
		case e == NotThere && c.state.Plants[d.Plant] && !d.Back:
			c.violate("b", d.Plant, "request %d was answered %v, but the plant is there", n, a)
		case e == NotThere && (d.Key != "" || !unknown):
			c.violate("b", d.Plant, "request %d was answered %v, but nobody else asked for the plant", n, a)
		case e == NotThere && a.Code != 40402:
			c.violate("b", d.Plant, "request %d was answered %v, as if there had been no such plant", n, a)
		case e == Referred:
			c.violate("f", d.Plant, "request %d was answered %v, and nothing refers to the plant", n, a)
		}
		c.found = append(c.found, c.Proper(d.Plant, n, a)...)
		unknown = unknown || e == Unknown
	}
	if n := len(d.Answers); n == 0 || !d.Answers[n-1].IsFinal() {
		c.violate("e", d.Plant, "the client never got a final answer")
	}
}

// late checks the answers to late retries: rules e and g.
func (c *checker) late(d *Deletion) {
	if !d.Back {
		return
	}
	for i, a := range d.Late {
		if a.IsFinal() && !(a.Effect() == Deleted && a.Replayed) {
			c.violate("g", d.Plant, "late request %d was answered %v, want 204 replayed", len(d.Answers)+i+1, a)
		}
	}
	if n := len(d.Late); n == 0 || !d.Late[n-1].IsFinal() {
		c.violate("e", d.Plant, "the late request never got a final answer")
	}
	if !c.state.Plants[d.Plant] {
		c.violate("g", d.Plant, "the plant had come back, and a late retry deleted it")
	}
}

// Proper returns the violation if requests may not get such an answer: rule f.
func (r Run) Proper(plant int64, n int, a Answer) []Violation {
	switch {
	case a.Effect() == Wrong:
		return []Violation{{"f", plant, fmt.Sprintf("request %d was answered: %v %s", n, a, a.Lost)}}
	case a.Code == triggerOffCode && !slices.ContainsFunc(r.TriggerOff, func(s Span) bool { return s.Start <= a.End && a.Start <= s.End }):
		return []Violation{{"f", plant, fmt.Sprintf("request %d was answered %v, but the trigger was enabled", n, a)}}
	}
	return nil
}

// recorded checks the record of a deletion with a 204: rule a.
func (c *checker) recorded(d *Deletion) {
	n := slices.IndexFunc(d.Answers, func(a Answer) bool { return a.Effect() == Deleted }) + 1
	if n == 0 {
		return
	}
	rows := slices.DeleteFunc(slices.Clone(c.state.Ledger[d.Plant]), func(e Entry) bool {
		return e.By != c.Principal || d.Key != "" && e.Key != d.Key
	})
	if len(rows) != 1 {
		c.violate("a", d.Plant, "204, but %d rows in the ledger with its key", len(rows))
	} else if itself := rows[0].Request == RequestID(d.Plant, n); itself == d.Answers[n-1].Replayed {
		c.violate("a", d.Plant, "request %d was answered %v, but the ledger names %s", n, d.Answers[n-1], rows[0].Request)
	}
	if c.state.Plants[d.Plant] && !d.Back {
		c.violate("a", d.Plant, "204, but the plant is there")
	}
}

// counted compares a plant's number of deletions with its rows in the ledger: rule d.
func (c *checker) counted(plant int64, back bool) {
	gone := 0
	if back || !c.state.Plants[plant] {
		gone = 1
	}
	if n := len(c.state.Ledger[plant]); n != gone {
		c.violate("d", plant, "gone %d times, but %d rows in the ledger", gone, n)
	}
}

// violationsShown limits the violations that are described.
const violationsShown = 20

// Describe writes the first violations, with the history and the rows of their plants. The
// history is in the order of the plants.
func Describe(w io.Writer, found []Violation, history []Deletion, s State) {
	fmt.Fprintf(w, "\nviolations: %d\n", len(found))
	for _, v := range found[:min(len(found), violationsShown)] {
		fmt.Fprintf(w, "(%s) plant %d: %s\n", v.Rule, v.Plant, v.Text)
		i, ok := slices.BinarySearchFunc(history, v.Plant, func(d Deletion, plant int64) int { return cmp.Compare(d.Plant, plant) })
		if ok {
			fmt.Fprintf(w, "    key: %s\n", cmp.Or(history[i].Key, "none"))
			for n, a := range history[i].Requests() {
				fmt.Fprintf(w, "    request %s, %v to %v: %v %s\n", RequestID(v.Plant, n+1), a.Start, a.End, a, a.Lost)
			}
		}
		for _, e := range slices.Concat(s.Ledger[v.Plant], s.Refusals[v.Plant]) {
			fmt.Fprintf(w, "    ledger: by %s, key %s, request %s, refused %d\n", e.By, e.Key, e.Request, e.Refused)
		}
	}
}
