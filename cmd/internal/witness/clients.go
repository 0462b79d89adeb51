package witness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/time/rate"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
	"plantstore/internal/postgres"
)

// A Crowd is what the clients have in common.
type Crowd struct {
	Address string // of the service
	Token   string
	Patient time.Duration // how long a client waits for an answer
	Began   time.Time
	Pace    *rate.Limiter // of all clients together
	Next    atomic.Int64  // the plant before the one to be asked for next
	Last    int64         // there are no more plants
	Late    bool          // whether there are late retries
	Owner   func() string // URL of the primary, as the tables' owner
}

// A Client deletes one plant after the other.
type Client struct {
	*Crowd
	Keyed   bool // sends an Idempotency-Key
	HTTP    http.Client
	History []Deletion
}

// lateEvery is how many deletions of a client with a key there are for one that is
// followed by a late retry: the plant is put back into the store, and the request
// that deleted it is sent once more.
const lateEvery = 40

// Client returns one of the crowd.
func (c *Crowd) Client(keyed bool) *Client {
	return &Client{
		Crowd: c, Keyed: keyed,
		HTTP: http.Client{Timeout: c.Patient, Transport: &http.Transport{MaxIdleConnsPerHost: 1}},
	}
}

// Run deletes plants until ctx ends, and is done when the last of them is
// settled. The end of asking ends it at once.
func (c *Client) Run(ctx, asking context.Context) error {
	defer c.HTTP.CloseIdleConnections()
	for c.Pace.Wait(ctx) == nil {
		plant := c.Next.Add(1)
		if plant > c.Last {
			return errors.New("the clients ran out of plants")
		}
		d := Deletion{Plant: plant}
		if c.Keyed {
			d.Key = "key-" + strconv.FormatInt(plant, 10)
		}
		d.Answers = c.settle(asking, &d, 0)
		gone := d.Answers[len(d.Answers)-1].Effect() == Deleted
		if c.Late && c.Keyed && gone && len(c.History)%lateEvery == lateEvery-1 {
			if err := c.putBack(asking, plant); err != nil {
				return err
			}
			d.Back = true
			d.Late = c.settle(asking, &d, len(d.Answers))
		}
		c.History = append(c.History, d)
	}
	return nil
}

// settle sends the same request until the answer is definite, and returns all
// answers. sent is how many requests there were before.
func (c *Client) settle(asking context.Context, d *Deletion, sent int) []Answer {
	var answers []Answer
	for {
		a := c.Ask(asking, d, sent+len(answers)+1)
		answers = append(answers, a)
		if a.Settled() {
			return answers
		}
		// The service asks for a second. These clients are less polite, to be
		// there when it hurts.
		pause := 100 * time.Millisecond
		if a.Status == 0 {
			pause = 20 * time.Millisecond
		}
		select {
		case <-asking.Done():
			return answers
		case <-time.After(pause):
		}
	}
}

// Ask sends the nth request of a deletion.
func (c *Client) Ask(ctx context.Context, d *Deletion, n int) (a Answer) {
	a.Start = time.Since(c.Began)
	defer func() { a.End = time.Since(c.Began) }()
	lost := func(err error) Answer {
		timeout, ok := errors.AsType[net.Error](err)
		a.Lost, a.Hung = err.Error(), ok && timeout.Timeout() && ctx.Err() == nil
		a.Status, a.Code = 0, 0
		dial, ok := errors.AsType[*net.OpError](err)
		a.Unsent = ok && dial.Op == "dial"
		return a
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodDelete,
		fmt.Sprintf("http://%s/plants/%d", c.Address, d.Plant), nil)
	if err != nil {
		return lost(err)
	}
	request.Header.Set("Authorization", "Bearer "+c.Token)
	request.Header.Set("X-Request-Id", RequestID(d.Plant, n))
	if d.Key != "" {
		// net/http repeats requests by itself when it finds this header, spelt
		// its own way. Every retry shall be ours, and in the history.
		request.Header["idempotency-key"] = []string{d.Key}
	}
	response, err := c.HTTP.Do(request)
	if err != nil {
		return lost(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return lost(err)
	}
	a.Status = response.StatusCode
	a.Replayed = response.Header.Get("Idempotency-Replayed") == "true"
	var e struct{ Error int }
	if a.Status != http.StatusNoContent && json.Unmarshal(body, &e) == nil {
		a.Code = e.Error // zero is no code, and a violation
	}
	return a
}

// putBack puts a plant that was deleted into the store again, durably.
func (c *Client) putBack(ctx context.Context, plant int64) error {
	for {
		err := c.tryPutBack(ctx, plant)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("put plant %d back: %w", plant, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *Client) tryPutBack(ctx context.Context, plant int64) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.Owner())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// The row may be there from an earlier attempt, and not on the standby. The
	// message makes the commit wait for all that came before it.
	_, err = conn.Exec(ctx, fmt.Sprintf(`
		INSERT INTO public.plants (id, name) VALUES (%d, 'back') ON CONFLICT DO NOTHING;
		SELECT pg_logical_emit_message(true, 'chaos', '')`, plant))
	return err
}

// Stock puts plants first to last into the store of an owner's URL, and returns a token
// of the principal's for deleting them.
func Stock(ctx context.Context, owner, principal string, first, last int64) (token string, err error) {
	err = postgres.Script(ctx, owner, fmt.Sprintf(
		`INSERT INTO public.plants (id, name) SELECT id, 'plant' FROM generate_series(%d, %d) id`, first, last))
	if err != nil {
		return "", fmt.Errorf("stock the store: %w", err)
	}
	db, err := postgres.Open(ctx, owner)
	if err != nil {
		return "", err
	}
	defer db.Close()
	return db.Tokens(0).Create(ctx, principal, []string{auth.ScopeDelete}, time.Time{}, plant.Budget{})
}
