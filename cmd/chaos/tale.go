package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/postgres"

	"plantstore/cmd/internal/witness"
)

// A tale is all that was done to one plant, by several hands: it is deleted, with one
// key or another or none, comes back, is referred to and is not any more. What came of
// it is checked as a whole, see linear.go.
type tale struct {
	Plant int64 `json:"plant"`
	Tale  []op  `json:"tale"`
}

// An op is one operation of a tale.
type op struct {
	Hand  int           `json:"hand"` // who did it; one hand does one thing at a time
	Do    deed          `json:"do"`
	Start time.Duration `json:"start"` // since the run began
	End   time.Duration `json:"end"`
	// Key is the number of the key with which the plant was to be deleted, from 1;
	// zero is none. Nth counts the requests with it.
	Key int `json:"key,omitempty"`
	Nth int `json:"nth,omitempty"`
	// Answer is that to a deletion.
	Answer witness.Answer `json:"answer,omitzero"`
	// Lost is set when nobody knows whether a change by SQL was made; if it is not,
	// Made tells.
	Lost bool `json:"lost,omitempty"`
	Made bool `json:"made,omitempty"`
}

// A deed is a kind of operation.
type deed string

const (
	deleteIt  deed = "delete"
	insertIt  deed = "insert"
	restoreIt deed = "restore"
	refer     deed = "add a reference"
	unrefer   deed = "remove the reference"
)

// keysOfATale is how many keys there are: two of the first hand, one of the second.
const keysOfATale = 3

// keyOf is what a client sends as the key of a plant with a number.
func keyOf(plant int64, key int) string { return fmt.Sprintf("tale-%d-%d", plant, key) }

// A teller acts out one tale after the other.
type teller struct {
	*witness.Crowd
	random *rand.Rand
	hands  [2]*hand
	tales  []tale
}

// A hand is a client of the service that has access to the database, too.
type hand struct {
	*witness.Client
	number int
	random *rand.Rand
	plant  int64
	sent   [keysOfATale + 1]int // requests, by key
	// endless is how many of the operations have an unknown outcome.
	endless int
	ops     []op
	conn    *pgx.Conn // nil: none
}

func newTeller(c *witness.Crowd, random *rand.Rand) *teller {
	t := &teller{Crowd: c, random: random}
	for i := range t.hands {
		t.hands[i] = &hand{Client: c.Client(true), number: i, random: rand.New(rand.NewPCG(random.Uint64(), uint64(i)))}
	}
	return t
}

// run tells tales until ctx ends. The end of asking ends one in the middle.
func (t *teller) run(ctx, asking context.Context) error {
	defer func() {
		for _, h := range t.hands {
			h.HTTP.CloseIdleConnections()
			h.hangUp()
		}
	}()
	for t.Pace.Wait(ctx) == nil {
		plant := t.Next.Add(1)
		if plant > t.Last {
			return errors.New("the clients ran out of plants")
		}
		hands := t.hands[:1+t.random.IntN(2)]
		var together sync.WaitGroup
		for _, h := range hands {
			h.plant, h.ops, h.endless, h.sent = plant, nil, 0, [keysOfATale + 1]int{}
			if h.number == 0 {
				together.Go(func() { h.lead(asking) })
			} else {
				together.Go(func() { h.join(asking) })
			}
		}
		together.Wait()
		told := tale{Plant: plant}
		for _, h := range hands {
			told.Tale = append(told.Tale, h.ops...)
		}
		t.tales = append(t.tales, told)
	}
	return nil
}

// lead is the first hand's part. After a no it changes what the no was about: what is
// late then must not delete the plant.
func (h *hand) lead(ctx context.Context) {
	if h.random.IntN(2) == 0 {
		h.change(ctx, refer)
	}
	key := 1
	for range 2 + h.random.IntN(3) {
		if h.tired(ctx) {
			return
		}
		if key == 1 && h.random.IntN(6) == 0 {
			key = 2
		}
		a := h.insist(ctx, key)
		switch {
		case a.Effect() == witness.Referred:
			h.change(ctx, unrefer)
		case a.Effect() == witness.NotThere, h.random.IntN(2) == 0:
			h.change(ctx, []deed{insertIt, restoreIt}[h.random.IntN(2)])
		}
		switch h.random.IntN(5) {
		case 0:
			h.change(ctx, refer)
		case 1:
			h.insist(ctx, 0)
		}
	}
}

// join is the second hand's part: what the first does not expect.
func (h *hand) join(ctx context.Context) {
	for range 1 + h.random.IntN(3) {
		if !sleep(ctx, below(h.random, 20*time.Millisecond)) {
			return
		}
		switch h.random.IntN(4) {
		case 0:
			h.request(ctx, keysOfATale)
		case 1:
			h.change(ctx, insertIt)
		case 2:
			h.change(ctx, refer)
		case 3:
			h.change(ctx, unrefer)
		}
	}
}

// mostEndless is how many operations of one hand may have an unknown outcome: the
// search for an order has to go through all their combinations.
const mostEndless = 5

func (h *hand) add(o op) {
	h.ops = append(h.ops, o)
	if o.endless() {
		h.endless++
	}
}

// tired reports whether the tale should end here.
func (h *hand) tired(ctx context.Context) bool { return ctx.Err() != nil || h.endless >= mostEndless }

// insist sends a request until the answer is definite or, at times, gives it up.
func (h *hand) insist(ctx context.Context, key int) witness.Answer {
	for {
		a := h.request(ctx, key)
		if a.Settled() || h.tired(ctx) || h.random.IntN(10) == 0 || !sleep(ctx, 20*time.Millisecond) {
			return a
		}
	}
}

// request sends one.
func (h *hand) request(ctx context.Context, key int) witness.Answer {
	d := witness.Deletion{Plant: h.plant}
	if key > 0 {
		d.Key = keyOf(h.plant, key)
		h.sent[key]++
	}
	if h.random.IntN(4) == 0 { // the client gives it up, and perhaps comes back while it is under way
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, below(h.random, 100*time.Millisecond))
		defer cancel()
	}
	a := h.Ask(ctx, &d, 1+len(h.ops)+1000*h.number)
	if !a.Unsent {
		h.add(op{Hand: h.number, Do: deleteIt, Start: a.Start, End: a.End, Key: key, Nth: h.sent[key], Answer: a})
	}
	return a
}

// change does something to the plant by SQL, once.
func (h *hand) change(ctx context.Context, do deed) {
	o := op{Hand: h.number, Do: do, Start: time.Since(h.Began)}
	made, err := h.try(ctx, do)
	o.End, o.Lost, o.Made = time.Since(h.Began), err != nil, made
	h.add(o)
	if err != nil {
		h.hangUp() // the next is tried on another connection
	}
}

// try makes a change in one transaction, durably, and reports whether it was made.
// With an error nobody knows.
func (h *hand) try(ctx context.Context, do deed) (made bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if h.conn == nil {
		if h.conn, err = pgx.Connect(ctx, h.Owner()); err != nil {
			h.conn = nil
			return false, err
		}
	}
	var statement string
	switch do {
	case insertIt:
		statement = `INSERT INTO public.plants (id, name) VALUES ($1, 'back') ON CONFLICT DO NOTHING`
	case refer:
		statement = `INSERT INTO public.chaos_orders (plant_id) VALUES ($1) ON CONFLICT DO NOTHING`
	case unrefer:
		statement = `DELETE FROM public.chaos_orders WHERE plant_id = $1`
	case restoreIt:
		return h.restore(ctx)
	}
	var changes pgx.Batch
	changes.Queue(statement, h.plant)
	// What was seen without being changed may not be on the standby: the commit of a
	// message waits for all that came before it.
	changes.Queue(`SELECT pg_logical_emit_message(true, 'chaos', '')`)
	results := h.conn.SendBatch(ctx, &changes)
	tag, err := results.Exec()
	err = errors.Join(err, results.Close())
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "23503" {
		// That the plant is gone may not be on the standby either.
		_, err := h.conn.Exec(ctx, `SELECT pg_logical_emit_message(true, 'chaos', '')`)
		return false, err
	}
	// A reference that is there already is as good as a new one.
	return tag.RowsAffected() > 0 || do == refer, err
}

// restore undoes the last deletion, as 'plantstore deletions restore' does.
func (h *hand) restore(ctx context.Context) (bool, error) {
	var id int64
	err := h.conn.QueryRow(ctx, `SELECT id FROM public.plant_deletions WHERE plant_id = $1 AND plant IS NOT NULL AND restored_at IS NULL
		ORDER BY id DESC LIMIT 1`, h.plant).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	db, err := postgres.Open(ctx, h.Owner())
	if err != nil {
		return false, err
	}
	defer db.Close()
	_, err = db.Ledger().Restore(ctx, []int64{id}, postgres.RestoreOptions{As: "chaos"})
	if _, refused := errors.AsType[*postgres.RefusedError](err); refused {
		return false, nil
	}
	return err == nil, err
}

func (h *hand) hangUp() {
	if h.conn != nil {
		_ = h.conn.Close(context.Background()) // it is given up either way
		h.conn = nil
	}
}
