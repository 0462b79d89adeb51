package main

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"plantstore/cmd/internal/witness"
)

// A load is clients that delete plants all the time.
type load struct {
	crowd   *witness.Crowd
	clients []*witness.Client
	group   *errgroup.Group
	stop    context.CancelFunc // ends the clients after their deletions
	giveUp  context.CancelFunc // ends their deletions
}

const (
	principal  = "drill" // the name of the clients' token
	bystanders = 1000    // plants that nobody asks for, with the ids up to 0
	clients    = 16      // each with a key
	perSecond  = 100     // deletions at most, of all clients together
	// slack is how much longer than the request timeout a client waits for an answer.
	slack = 30 * time.Second
)

// startLoad stocks the store for a number of events, of five minutes at most, and starts the
// clients.
func startLoad(ctx context.Context, f *front, events int) (*load, error) {
	owner := f.cluster.url("plantstore_owner", database)
	last := int64(events+1) * 300 * perSecond
	token, err := witness.Stock(ctx, owner, principal, 1-bystanders, last)
	if err != nil {
		return nil, err
	}
	crowd := &witness.Crowd{
		Address: f.address(), Token: token, Patient: f.timeout + slack,
		Began: time.Now(), Pace: rate.NewLimiter(perSecond, clients), Last: last,
		Late: true, Owner: func() string { return owner },
	}
	l := &load{crowd: crowd}
	asking, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	l.giveUp = giveUp
	group, ctx := errgroup.WithContext(ctx)
	ctx, l.stop = context.WithCancel(ctx)
	l.group = group
	for range clients {
		client := crowd.Client(true)
		l.clients = append(l.clients, client)
		group.Go(func() error { return client.Run(ctx, asking) })
	}
	return l, nil
}

// now is the time of the histories.
func (l *load) now() time.Duration { return time.Since(l.crowd.Began) }

// end returns the history, when every deletion has a final answer.
func (l *load) end() ([]witness.Deletion, error) {
	l.stop()
	timer := time.AfterFunc(patience, l.giveUp)
	defer timer.Stop()
	err := l.group.Wait()
	var history []witness.Deletion
	for _, c := range l.clients {
		history = append(history, c.History...)
	}
	slices.SortFunc(history, func(a, b witness.Deletion) int { return int(a.Plant - b.Plant) })
	return history, err
}
