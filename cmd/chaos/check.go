package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A state is what the database holds when everything has come to rest.
type state struct {
	plants map[int64]bool    // those that are there
	ledger map[int64][]entry // by plant
}

// An entry is a row of the ledger.
type entry struct{ by, key, request string }

// readState reads the whole store.
func readState(ctx context.Context, databaseURL string) (state, error) {
	s := state{plants: make(map[int64]bool), ledger: make(map[int64][]entry)}
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return s, fmt.Errorf("read the store: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var id int64
	rows, err := conn.Query(ctx, `SELECT id FROM public.plants`)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
			s.plants[id] = true
			return nil
		})
	}
	if err != nil {
		return s, fmt.Errorf("read the plants: %w", err)
	}
	var e entry
	rows, err = conn.Query(ctx, `SELECT plant_id, deleted_by, coalesce(idempotency_key, ''), coalesce(request_id, '')
		FROM public.plant_deletions WHERE plant IS NOT NULL ORDER BY id`)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&id, &e.by, &e.key, &e.request}, func() error {
			s.ledger[id] = append(s.ledger[id], e)
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
//	   while the ledger's trigger was disabled
//	g  a late retry is told 204 again, and leaves the plant that came back
//	h  what was told of one plant, whoever did what to it, could have been told if
//	   everything had been done one after the other, see linear.go
type violation struct {
	rule  string
	plant int64
	text  string
}

// A checker holds what happened against the state that it led to.
type checker struct {
	events
	state state
	found []violation
}

// events are what happened in a run.
type events struct {
	principal string // whose history it is; nobody else deleted any plants
	history   []deletion
	tales     []tale
	faults    []fault
}

// check returns the violations of a run in which plants first to last were put
// into the store.
func check(e events, s state, first, last int64) []violation {
	c := &checker{events: e, state: s}
	asked := make(map[int64]bool, len(e.history)+len(e.tales))
	for i := range e.tales {
		t := &e.tales[i]
		asked[t.Plant] = true
		c.tale(t)
	}
	for i := range e.history {
		d := &e.history[i]
		asked[d.Plant] = true
		c.told(d)
		c.recorded(d)
		c.counted(d.Plant, d.Back)
	}
	for id := first; id <= last; id++ {
		if asked[id] {
			continue
		}
		if !s.plants[id] {
			c.violate("c", id, "nobody asked for it, and it is gone")
		}
		c.counted(id, false)
	}
	for _, id := range slices.Sorted(maps.Keys(s.ledger)) {
		if !asked[id] && (id < first || id > last) {
			c.violate("d", id, "the ledger has a plant that never was")
		}
	}
	return c.found
}

func (c *checker) violate(rule string, plant int64, format string, args ...any) {
	c.found = append(c.found, violation{rule, plant, fmt.Sprintf(format, args...)})
}

// told checks the answers to a deletion one by one: rules b, e, f and g.
func (c *checker) told(d *deletion) {
	rows, here := c.state.ledger[d.Plant], c.state.plants[d.Plant]
	didIt := func(n int) bool {
		id := requestID(d.Plant, n)
		return slices.ContainsFunc(rows, func(e entry) bool { return e.request == id })
	}
	// Without a key, a request after one that may have deleted the plant may
	// find it gone.
	unsure := false
	for i, a := range d.Answers {
		n := i + 1
		switch a.effect() {
		case notThere:
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
		case notDeleted:
			if didIt(n) {
				c.violate("b", d.Plant, "request %d was told %v, but deleted the plant itself", n, a)
			}
		case unknown:
			unsure = true
		}
		c.proper(d.Plant, n, a)
		if a.effect() == referred {
			c.violate("f", d.Plant, "request %d was answered %v, and nothing refers to the plant", n, a)
		}
	}
	if len(d.Answers) == 0 || !d.Answers[len(d.Answers)-1].settled() {
		c.violate("e", d.Plant, "the client never got a definite answer")
	}

	for i, a := range d.Late {
		switch a.effect() {
		case unknown, notDeleted:
		case deleted:
			if !a.Replayed {
				c.violate("g", d.Plant, "late request %d was answered %v, want a replay", len(d.Answers)+i+1, a)
			}
		default:
			c.violate("g", d.Plant, "late request %d was answered %v, want 204 replayed", len(d.Answers)+i+1, a)
		}
	}
	if d.Back {
		if len(d.Late) == 0 || !d.Late[len(d.Late)-1].settled() {
			c.violate("e", d.Plant, "the late request never got a definite answer")
		}
		if !here {
			c.violate("g", d.Plant, "the plant had come back, and a late retry deleted it")
		}
	}
}

// proper checks that a request may get such an answer: rule f.
func (c *checker) proper(plant int64, n int, a answer) {
	switch {
	case a.effect() == wrong:
		c.violate("f", plant, "request %d was answered: %v", n, a)
	case a.Code == hindered && !overlaps(merge(ofKind(c.faults, triggerOff)), a):
		c.violate("f", plant, "request %d was answered %v, and nobody had disabled the trigger", n, a)
	}
}

// recorded checks what is behind a deletion's 204: rule a.
func (c *checker) recorded(d *deletion) {
	n := slices.IndexFunc(d.Answers, func(a answer) bool { return a.effect() == deleted }) + 1
	if n == 0 {
		return
	}
	var rows []entry
	for _, e := range c.state.ledger[d.Plant] {
		if e.by == c.principal && (d.Key == "" || e.key == d.Key) {
			rows = append(rows, e)
		}
	}
	if len(rows) != 1 {
		c.violate("a", d.Plant, "204, but %d rows in the ledger with its key", len(rows))
	} else if itself := rows[0].request == requestID(d.Plant, n); itself == d.Answers[n-1].Replayed {
		c.violate("a", d.Plant, "request %d was told %v, but the ledger names %s", n, d.Answers[n-1], rows[0].request)
	}
	if c.state.plants[d.Plant] && !d.Back {
		c.violate("a", d.Plant, "204, but the plant is there")
	}
}

// counted checks that the ledger has a row for each time that a plant was gone:
// rule d.
func (c *checker) counted(plant int64, back bool) {
	gone := 0
	if back || !c.state.plants[plant] {
		gone = 1
	}
	if n := len(c.state.ledger[plant]); n != gone {
		c.violate("d", plant, "gone %d times, but %d rows in the ledger", gone, n)
	}
}

// describe is a violation with all that is known of its plant.
func describe(v violation, d *deletion, s state) string {
	var b strings.Builder
	fmt.Fprintf(&b, "(%s) plant %d: %s\n", v.rule, v.plant, v.text)
	if d != nil {
		key := d.Key
		if key == "" {
			key = "none"
		}
		fmt.Fprintf(&b, "    key: %s\n", key)
		for i, a := range d.requests() {
			fmt.Fprintf(&b, "    request %s, %v to %v: %v %s\n", requestID(d.Plant, i+1), a.Start, a.End, a, a.Lost)
		}
	}
	for _, e := range s.ledger[v.plant] {
		fmt.Fprintf(&b, "    ledger: by %s, key %s, request %s\n", e.by, e.key, e.request)
	}
	if len(s.ledger[v.plant]) == 0 {
		b.WriteString("    ledger: nothing\n")
	}
	return b.String()
}
