package main

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
)

// A crowd is what the clients have in common.
type crowd struct {
	address string // of the service
	token   string
	patient time.Duration // how long a client waits for an answer
	began   time.Time
	pace    *rate.Limiter // of all clients together
	next    atomic.Int64  // the last plant that was asked for
	last    int64         // there are no more plants
	late    bool          // whether there are late retries
	owner   func() string // URL of the primary, as the tables' owner
}

// A client deletes one plant after the other.
type client struct {
	*crowd
	keyed   bool // sends an Idempotency-Key
	http    http.Client
	history []deletion
}

// lateEvery is how many deletions of a client with a key there are for one that is
// followed by a late retry: the plant is put back into the store, and the request
// that deleted it is sent once more.
const lateEvery = 40

func (c *crowd) client(keyed bool) *client {
	return &client{
		crowd: c, keyed: keyed,
		http: http.Client{Timeout: c.patient, Transport: &http.Transport{MaxIdleConnsPerHost: 1}},
	}
}

// run deletes plants until ctx ends, and is done when the last of them is
// settled. The end of asking ends it at once.
func (c *client) run(ctx, asking context.Context) error {
	defer c.http.CloseIdleConnections()
	for c.pace.Wait(ctx) == nil {
		plant := c.next.Add(1)
		if plant > c.last {
			return errors.New("the clients ran out of plants")
		}
		d := deletion{Plant: plant}
		if c.keyed {
			d.Key = "key-" + strconv.FormatInt(plant, 10)
		}
		d.Answers = c.settle(asking, &d, 0)
		gone := d.Answers[len(d.Answers)-1].effect() == deleted
		if c.late && c.keyed && gone && len(c.history)%lateEvery == lateEvery-1 {
			if err := c.putBack(asking, plant); err != nil {
				return err
			}
			d.Back = true
			d.Late = c.settle(asking, &d, len(d.Answers))
		}
		c.history = append(c.history, d)
	}
	return nil
}

// settle sends the same request until the answer is definite, and returns all
// answers. sent is how many requests there were before.
func (c *client) settle(asking context.Context, d *deletion, sent int) []answer {
	var answers []answer
	for {
		a := c.ask(asking, d, sent+len(answers)+1)
		answers = append(answers, a)
		if a.settled() {
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

// ask sends the nth request of a deletion.
func (c *client) ask(ctx context.Context, d *deletion, n int) (a answer) {
	a.Start = time.Since(c.began)
	defer func() { a.End = time.Since(c.began) }()
	lost := func(err error) answer {
		timeout, ok := errors.AsType[net.Error](err)
		a.Lost, a.Hung = err.Error(), ok && timeout.Timeout() && ctx.Err() == nil
		a.Status, a.Code = 0, 0
		dial, ok := errors.AsType[*net.OpError](err)
		a.Unsent = ok && dial.Op == "dial"
		return a
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodDelete,
		fmt.Sprintf("http://%s/plants/%d", c.address, d.Plant), nil)
	if err != nil {
		return lost(err)
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	request.Header.Set("X-Request-Id", requestID(d.Plant, n))
	if d.Key != "" {
		// net/http repeats requests by itself when it finds this header, spelt
		// its own way. Every retry shall be ours, and in the history.
		request.Header["idempotency-key"] = []string{d.Key}
	}
	response, err := c.http.Do(request)
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
func (c *client) putBack(ctx context.Context, plant int64) error {
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

func (c *client) tryPutBack(ctx context.Context, plant int64) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.owner())
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
