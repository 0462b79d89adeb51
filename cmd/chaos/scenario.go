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

	"plantstore/cmd/internal/programs"
	"plantstore/cmd/internal/witness"
	"plantstore/internal/ledger"
)

// A scenario is all that was done to one plant by several actors: it is deleted, with one key or
// another or none, comes back, gains and loses a reference. The answers are checked
// together, see linear.go.
type scenario struct {
	plant int64
	ops   []op
}

// An op is one operation of a scenario.
type op struct {
	Actor      int // by number; one actor does one thing at a time
	Do         action
	Start, End time.Duration  // since the run began
	Key        int            // of a deletion, from 1; zero: none
	Answer     witness.Answer // to a deletion
	Lost       bool           // nobody knows whether a change by SQL was made
	Made       bool           // the change was made
}

// An action is a kind of operation.
type action string

const (
	deleteIt  action = "delete"
	insertIt  action = "insert"
	restoreIt action = "restore"
	refer     action = "add a reference"
	unrefer   action = "remove the reference"
)

// scenarioKeys is how many keys there are. The second actor has the last one.
const scenarioKeys = 4

// keyOf is the Idempotency-Key of a plant with a number.
func keyOf(plant int64, key int) string { return fmt.Sprintf("scenario-%d-%d", plant, key) }

// A player plays one scenario after the other.
type player struct {
	*witness.Crowd
	random    *rand.Rand
	actors    [2]*actor
	scenarios []scenario
}

// An actor is a client of the service that has access to the database, too.
type actor struct {
	*witness.Client
	number  int
	random  *rand.Rand
	plant   int64
	endless int // operations with an unknown outcome
	ops     []op
	conn    *pgx.Conn // nil: none
}

func newPlayer(c *witness.Crowd, random *rand.Rand) *player {
	t := &player{Crowd: c, random: random}
	for i := range t.actors {
		t.actors[i] = &actor{Client: c.Client(), number: i, random: rand.New(rand.NewPCG(random.Uint64(), uint64(i)))}
	}
	return t
}

// run plays scenarios until ctx ends. The end of asking cuts the last one short.
func (t *player) run(ctx, asking context.Context) error {
	defer func() {
		for _, h := range t.actors {
			h.CloseIdleConnections()
			h.hangUp()
		}
	}()
	for {
		plant, err := t.Take(ctx)
		if plant == 0 {
			return err
		}
		played := scenario{plant: plant}
		actors := t.actors[:1+t.random.IntN(2)]
		var together sync.WaitGroup
		for i, h := range actors {
			h.plant, h.ops, h.endless = plant, nil, 0
			together.Go(func() { []func(context.Context){h.lead, h.join}[i](asking) })
		}
		together.Wait()
		for _, h := range actors {
			played.ops = append(played.ops, h.ops...)
		}
		t.scenarios = append(t.scenarios, played)
	}
}

// lead is the first actor's part. After a refusal it removes the reason: an attempt that
// comes late must not delete the plant. Then it asks again, with the same key or a new one.
func (h *actor) lead(ctx context.Context) {
	if h.random.IntN(2) == 0 {
		h.change(ctx, refer)
	}
	key := 1
	for range 2 + h.random.IntN(4) {
		if h.isOver(ctx) {
			return
		}
		a := h.retry(ctx, key)
		switch {
		case a.Effect() == witness.Referred:
			h.change(ctx, unrefer)
		case a.Effect() == witness.NotThere, h.random.IntN(2) == 0:
			h.change(ctx, []action{insertIt, restoreIt}[h.random.IntN(2)])
		}
		switch h.random.IntN(5) {
		case 0:
			h.change(ctx, refer)
		case 1:
			h.retry(ctx, 0)
		}
		if h.random.IntN(2) == 0 {
			key = min(key+1, scenarioKeys-1)
		}
	}
}

// join is the second actor's part: it disturbs the first.
func (h *actor) join(ctx context.Context) {
	for range 1 + h.random.IntN(3) {
		if !programs.Sleep(ctx, below(h.random, 20*time.Millisecond)) {
			return
		}
		switch h.random.IntN(4) {
		case 0:
			h.request(ctx, scenarioKeys-h.random.IntN(2)) // with the second actor's own key or the first actor's last one
		case 1:
			h.change(ctx, insertIt)
		case 2:
			h.change(ctx, refer)
		case 3:
			h.change(ctx, unrefer)
		}
	}
}

// mostEndless limits the operations of one actor with an unknown outcome: the search for an
// order goes through all their combinations.
const mostEndless = 5

func (h *actor) add(o op) {
	h.ops = append(h.ops, o)
	if o.endless() {
		h.endless++
	}
}

// isOver reports whether the scenario should end here.
func (h *actor) isOver(ctx context.Context) bool { return ctx.Err() != nil || h.endless >= mostEndless }

// retry sends a request until the answer is final or, at random, gives up.
func (h *actor) retry(ctx context.Context, key int) witness.Answer {
	for {
		a := h.request(ctx, key)
		if a.IsFinal() || h.isOver(ctx) || h.random.IntN(10) == 0 || !programs.Sleep(ctx, 20*time.Millisecond) {
			return a
		}
	}
}

// request sends one request.
func (h *actor) request(ctx context.Context, key int) witness.Answer {
	d := witness.Deletion{Plant: h.plant}
	if key > 0 {
		d.Key = keyOf(h.plant, key)
	}
	if h.random.IntN(4) == 0 { // the client hangs up, and perhaps comes back while it is under way
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, below(h.random, 100*time.Millisecond))
		defer cancel()
	}
	a := h.Ask(ctx, &d, 1+len(h.ops)+1000*h.number)
	if !a.Unsent {
		h.add(op{Actor: h.number, Do: deleteIt, Start: a.Start, End: a.End, Key: key, Answer: a})
	}
	return a
}

// change does something to the plant by SQL, once.
func (h *actor) change(ctx context.Context, do action) {
	o := op{Actor: h.number, Do: do, Start: time.Since(h.Began)}
	made, err := h.try(ctx, do)
	o.End, o.Lost, o.Made = time.Since(h.Began), err != nil, made
	h.add(o)
	if err != nil {
		h.hangUp() // the next is tried on another connection
	}
}

// try makes a change in one transaction, durably, and reports whether it was made. After an
// error nobody knows.
func (h *actor) try(ctx context.Context, do action) (made bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if h.conn == nil {
		if h.conn, err = pgx.Connect(ctx, h.Owner()); err != nil {
			h.conn = nil
			return false, err
		}
	}
	statement := ""
	switch do {
	case insertIt:
		statement = `INSERT INTO public.plants (id, name) VALUES ($1, 'back') ON CONFLICT DO NOTHING`
	case refer:
		statement = `INSERT INTO public.chaos_orders (plant_id) VALUES ($1) ON CONFLICT DO NOTHING`
	case unrefer:
		statement = `DELETE FROM public.chaos_orders WHERE plant_id = $1`
	case restoreIt: // as 'plantstore deletions restore' does
		done, err := ledger.Restore(ctx, h.conn, ledger.Selection{Plants: []int64{h.plant}}, ledger.Options{})
		if _, refused := errors.AsType[*ledger.RefusedError](err); refused {
			return false, nil
		}
		return len(done.Plants) > 0, err
	}
	// A change that this transaction only saw may not be on the standby yet. The commit of a
	// message waits until it is.
	const message = `SELECT pg_logical_emit_message(true, 'chaos', '')`
	var changes pgx.Batch
	changes.Queue(statement, h.plant)
	changes.Queue(message)
	results := h.conn.SendBatch(ctx, &changes)
	tag, err := results.Exec()
	err = errors.Join(err, results.Close())
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "23503" { // likewise that the plant is gone
		_, err := h.conn.Exec(ctx, message)
		return false, err
	}
	return tag.RowsAffected() > 0 || do == refer, err // a reference that is there is as good as a new one
}

func (h *actor) hangUp() {
	if h.conn != nil {
		_ = h.conn.Close(context.Background()) // it is given up either way
		h.conn = nil
	}
}
