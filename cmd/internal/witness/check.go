package witness

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A State is what the database holds when everything has come to rest.
type State struct {
	Plants map[int64]bool    // those that are there
	Ledger map[int64][]Entry // by plant
}

// An Entry is a row of the ledger.
type Entry struct{ By, Key, Request string }

// ReadState reads the whole store.
func ReadState(ctx context.Context, databaseURL string) (State, error) {
	s := State{Plants: make(map[int64]bool), Ledger: make(map[int64][]Entry)}
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return s, fmt.Errorf("read the store: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var id int64
	rows, err := conn.Query(ctx, `SELECT id FROM public.plants`)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
			s.Plants[id] = true
			return nil
		})
	}
	if err != nil {
		return s, fmt.Errorf("read the plants: %w", err)
	}
	var e Entry
	rows, err = conn.Query(ctx, `SELECT plant_id, deleted_by, coalesce(idempotency_key, ''), coalesce(request_id, '')
		FROM public.plant_deletions WHERE plant IS NOT NULL ORDER BY id`)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&id, &e.By, &e.Key, &e.Request}, func() error {
			s.Ledger[id] = append(s.Ledger[id], e)
			return nil
		})
	}
	if err != nil {
		return s, fmt.Errorf("read the ledger: %w", err)
	}
	return s, nil
}

// A violation is a broken promise. Rule is one of
//
//	a  every 204 has exactly one row in the ledger with its key, which names the
//	   request that did it, and the plant is gone
//	b  no client was told "not there" or "not deleted" of a plant that its own
//	   request deleted, nor "not there" of one that is there
//	c  no plant that nobody asked for is gone
//	d  there are as many rows in the ledger as plants gone, for each plant
//	e  every 504, every 503 and every lost connection came to a definite answer
//	   by sending the request again
//	f  there was no other answer, none kept its client waiting, and 50304 came only
//	   while deleting was hindered on purpose
//	g  a late retry is told 204 again, and leaves the plant that came back
type Violation struct {
	Rule  string
	Plant int64
	Text  string
}

// A Run is what happened in a run.
type Run struct {
	Principal string // whose history it is; nobody else deleted any plants but others
	History   []Deletion
	// Others are plants that somebody else dealt with: none of the rules is about them.
	Others map[int64]bool
	// Hindered are the times in which deleting was hindered on purpose, so that 50304 is
	// right. They are in order and apart.
	Hindered []Span
}

// A checker holds what happened against the state that it led to.
type checker struct {
	Run
	state State
	found []Violation
}

// Check returns the violations of a run in which plants first to last were put
// into the store, in the order of the history.
func (r Run) Check(s State, first, last int64) []Violation {
	c := &checker{Run: r, state: s}
	asked := maps.Clone(r.Others)
	if asked == nil {
		asked = make(map[int64]bool, len(r.History))
	}
	for i := range r.History {
		d := &r.History[i]
		asked[d.Plant] = true
		c.told(d)
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

// told checks the answers to a deletion one by one: rules b, e, f and g.
func (c *checker) told(d *Deletion) {
	rows, here := c.state.Ledger[d.Plant], c.state.Plants[d.Plant]
	didIt := func(n int) bool {
		id := RequestID(d.Plant, n)
		return slices.ContainsFunc(rows, func(e Entry) bool { return e.Request == id })
	}
	// Without a key, a request after one that may have deleted the plant may
	// find it gone.
	unsure := false
	for i, a := range d.Answers {
		n := i + 1
		switch a.Effect() {
		case NotThere:
			switch {
			case here && !d.Back:
				c.violate("b", d.Plant, "request %d was told %v, but the plant is there", n, a)
			case didIt(n):
				c.violate("b", d.Plant, "request %d was told %v, but deleted the plant itself", n, a)
			case d.Key != "" || !unsure:
				c.violate("b", d.Plant, "request %d was told %v, but nobody else asked for the plant", n, a)
			case a.Code != 40402:
				c.violate("b", d.Plant, "request %d was told %v, as if there had been no such plant", n, a)
			}
		case NotDeleted:
			if didIt(n) {
				c.violate("b", d.Plant, "request %d was told %v, but deleted the plant itself", n, a)
			}
		case Unknown:
			unsure = true
		}
		c.found = append(c.found, c.Proper(d.Plant, n, a)...)
		if a.Effect() == Referred {
			c.violate("f", d.Plant, "request %d was answered %v, and nothing refers to the plant", n, a)
		}
	}
	if len(d.Answers) == 0 || !d.Answers[len(d.Answers)-1].Settled() {
		c.violate("e", d.Plant, "the client never got a definite answer")
	}

	for i, a := range d.Late {
		switch a.Effect() {
		case Unknown, NotDeleted:
		case Deleted:
			if !a.Replayed {
				c.violate("g", d.Plant, "late request %d was answered %v, want a replay", len(d.Answers)+i+1, a)
			}
		default:
			c.violate("g", d.Plant, "late request %d was answered %v, want 204 replayed", len(d.Answers)+i+1, a)
		}
	}
	if d.Back {
		if len(d.Late) == 0 || !d.Late[len(d.Late)-1].Settled() {
			c.violate("e", d.Plant, "the late request never got a definite answer")
		}
		if !here {
			c.violate("g", d.Plant, "the plant had come back, and a late retry deleted it")
		}
	}
}

// Proper returns the violation if a request may not get such an answer: rule f.
func (r Run) Proper(plant int64, n int, a Answer) []Violation {
	switch {
	case a.Effect() == Wrong:
		return []Violation{{"f", plant, fmt.Sprintf("request %d was answered: %v %s", n, a, a.Lost)}}
	case a.Code == hinderedCode && !Overlaps(r.Hindered, a):
		return []Violation{{"f", plant, fmt.Sprintf("request %d was answered %v, and nothing hindered it", n, a)}}
	}
	return nil
}

// recorded checks what is behind a deletion's 204: rule a.
func (c *checker) recorded(d *Deletion) {
	n := slices.IndexFunc(d.Answers, func(a Answer) bool { return a.Effect() == Deleted }) + 1
	if n == 0 {
		return
	}
	var rows []Entry
	for _, e := range c.state.Ledger[d.Plant] {
		if e.By == c.Principal && (d.Key == "" || e.Key == d.Key) {
			rows = append(rows, e)
		}
	}
	if len(rows) != 1 {
		c.violate("a", d.Plant, "204, but %d rows in the ledger with its key", len(rows))
	} else if itself := rows[0].Request == RequestID(d.Plant, n); itself == d.Answers[n-1].Replayed {
		c.violate("a", d.Plant, "request %d was told %v, but the ledger names %s", n, d.Answers[n-1], rows[0].Request)
	}
	if c.state.Plants[d.Plant] && !d.Back {
		c.violate("a", d.Plant, "204, but the plant is there")
	}
}

// counted checks that the ledger has a row for each time that a plant was gone:
// rule d.
func (c *checker) counted(plant int64, back bool) {
	gone := 0
	if back || !c.state.Plants[plant] {
		gone = 1
	}
	if n := len(c.state.Ledger[plant]); n != gone {
		c.violate("d", plant, "gone %d times, but %d rows in the ledger", gone, n)
	}
}

// Describe is the violation with all that is known of its plant. d is nil if nobody asked
// for it.
func (v Violation) Describe(d *Deletion, s State) string {
	var b strings.Builder
	fmt.Fprintf(&b, "(%s) plant %d: %s\n", v.Rule, v.Plant, v.Text)
	if d != nil {
		key := d.Key
		if key == "" {
			key = "none"
		}
		fmt.Fprintf(&b, "    key: %s\n", key)
		for i, a := range d.Requests() {
			fmt.Fprintf(&b, "    request %s, %v to %v: %v %s\n", RequestID(d.Plant, i+1), a.Start, a.End, a, a.Lost)
		}
	}
	for _, e := range s.Ledger[v.Plant] {
		fmt.Fprintf(&b, "    ledger: by %s, key %s, request %s\n", e.By, e.Key, e.Request)
	}
	if len(s.Ledger[v.Plant]) == 0 {
		b.WriteString("    ledger: nothing\n")
	}
	return b.String()
}
