package witness

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"plantstore/cmd/internal/programs"
)

// A Crowd has the settings and counters that all clients share.
type Crowd struct {
	Address string // of the service
	Token   string
	Patient time.Duration // how long a client waits for an answer
	Began   time.Time
	Pace    *rate.Limiter // of all clients together
	Next    atomic.Int64  // the plant before the next one
	Last    int64         // the last plant
	Keyless int           // one client in so many sends no key; zero: none
	Late    bool          // send late retries
	Owner   func() string // URL of the primary, as the tables' owner
}

// A Client deletes one plant after the other.
type Client struct {
	*Crowd
	http.Client
	history []Deletion
}

// lateEvery is the number of keyed deletions for each late retry. For a late retry, the plant
// is put back, and the request that deleted it is sent again.
const lateEvery = 40

// Client returns a new client of the crowd.
func (c *Crowd) Client() *Client {
	return &Client{Crowd: c, Client: http.Client{Timeout: c.Patient, Transport: &http.Transport{MaxIdleConnsPerHost: 1}}}
}

// Take waits for its turn and returns the next plant, or zero when ctx has ended.
func (c *Crowd) Take(ctx context.Context) (int64, error) {
	if c.Pace.Wait(ctx) != nil {
		return 0, nil
	}
	plant := c.Next.Add(1)
	if plant > c.Last {
		return 0, errors.New("the clients ran out of plants")
	}
	return plant, nil
}

// Delete has clients delete plants until ctx ends. The last ones are retried until they have a
// final answer, or asking ends. It returns the deletions in the order of the plants.
func (c *Crowd) Delete(ctx, asking context.Context, clients int) (history []Deletion, err error) {
	all := make([]*Client, clients)
	group, ctx := errgroup.WithContext(ctx)
	for i := range all {
		all[i] = c.Client()
		keyed := c.Keyless == 0 || i%c.Keyless != c.Keyless-1
		group.Go(func() error { return all[i].run(ctx, asking, keyed) })
	}
	err = group.Wait()
	for _, client := range all {
		history = append(history, client.history...)
	}
	slices.SortFunc(history, func(a, b Deletion) int { return cmp.Compare(a.Plant, b.Plant) })
	return history, err
}

func (c *Client) run(ctx, asking context.Context, keyed bool) error {
	defer c.CloseIdleConnections()
	for {
		plant, err := c.Take(ctx)
		if plant == 0 {
			return err
		}
		d := Deletion{Plant: plant}
		if keyed {
			d.Key = "key-" + strconv.FormatInt(plant, 10)
		}
		d.Answers = c.retry(asking, &d, 0)
		gone := d.Answers[len(d.Answers)-1].Effect() == Deleted
		if c.Late && keyed && gone && len(c.history)%lateEvery == lateEvery-1 {
			if err := c.putBack(asking, plant); err != nil {
				return err
			}
			d.Back = true
			d.Late = c.retry(asking, &d, len(d.Answers))
		}
		c.history = append(c.history, d)
	}
}

// retry sends the same request until the answer is final, and returns all answers. sent is
// how many requests there were before.
func (c *Client) retry(asking context.Context, d *Deletion, sent int) (answers []Answer) {
	for {
		a := c.Ask(asking, d, sent+len(answers)+1)
		answers = append(answers, a)
		pause := 100 * time.Millisecond // shorter than Retry-After, so that retries meet the faults
		if a.Status == 0 {
			pause = 20 * time.Millisecond
		}
		if a.IsFinal() || !programs.Sleep(asking, pause) {
			return answers
		}
	}
}

// Ask sends the nth request of a deletion.
func (c *Client) Ask(ctx context.Context, d *Deletion, n int) (a Answer) {
	a.Start = time.Since(c.Began)
	err := c.ask(ctx, d, n, &a)
	a.End = time.Since(c.Began)
	if err != nil {
		timeout, ok := errors.AsType[net.Error](err)
		hung := ok && timeout.Timeout() && ctx.Err() == nil
		dial, ok := errors.AsType[*net.OpError](err)
		return Answer{Start: a.Start, End: a.End, Lost: err.Error(), Hung: hung, Unsent: ok && dial.Op == "dial"}
	}
	return a
}

func (c *Client) ask(ctx context.Context, d *Deletion, n int, a *Answer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodDelete, fmt.Sprintf("http://%s/plants/%d", c.Address, d.Plant), nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+c.Token)
	request.Header.Set("X-Request-Id", RequestID(d.Plant, n))
	if d.Key != "" {
		// net/http repeats requests by itself when it finds this header in its own spelling.
		request.Header["idempotency-key"] = []string{d.Key}
	}
	response, err := c.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return err
	}
	a.Status = response.StatusCode
	a.Replayed = response.Header.Get("Idempotency-Replayed") == "true"
	var e struct{ Error int }
	if a.Status != http.StatusNoContent && json.Unmarshal(body, &e) == nil {
		a.Code = e.Error // zero is no code, and a violation
	}
	return nil
}

// putBack inserts a plant that was deleted, durably.
func (c *Client) putBack(ctx context.Context, plant int64) error {
	return programs.Until(ctx, 5*time.Minute, fmt.Sprintf("put plant %d back", plant), func() error {
		// The row of an earlier try may not be on the standby yet. The message makes the commit
		// wait until it is.
		return Execute(ctx, c.Owner(), fmt.Sprintf(`
			INSERT INTO public.plants (id, name) VALUES (%d, 'back') ON CONFLICT DO NOTHING;
			SELECT pg_logical_emit_message(true, 'witness', '')`, plant))
	})
}
