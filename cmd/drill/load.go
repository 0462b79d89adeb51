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
	stop    context.CancelFunc // asks them to begin no more
	giveUp  context.CancelFunc // ends what they began
}

const (
	// principal is the name of the clients' token.
	principal = "drill"
	// bystanders is how many plants nobody asks for. Theirs are the ids up to 0.
	bystanders = 1000
	// longest is for how long the plants of an event suffice.
	longest = 5 * time.Minute
	// slack is how much longer than a request may take its client waits for the answer.
	slack = 30 * time.Second
)

// A demand is how much is asked for.
type demand struct {
	clients int
	rate    int // deletions a second at most, of all clients together
}

// startLoad stocks the store for so long, and starts the clients.
func startLoad(ctx context.Context, f *front, d demand, long time.Duration) (*load, error) {
	owner := f.cluster.url("plantstore_owner", database)
	last := int64(d.rate) * int64(long/time.Second)
	token, err := witness.Stock(ctx, owner, principal, 1-bystanders, last)
	if err != nil {
		return nil, err
	}
	crowd := &witness.Crowd{
		Address: f.address(), Token: token, Patient: f.timeout + slack,
		Began: time.Now(), Pace: rate.NewLimiter(rate.Limit(d.rate), d.clients), Last: last,
		Late: true, Owner: func() string { return owner },
	}
	l := &load{crowd: crowd}
	asking, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	l.giveUp = giveUp
	group, ctx := errgroup.WithContext(ctx)
	ctx, l.stop = context.WithCancel(ctx)
	l.group = group
	for range d.clients {
		client := crowd.Client(true)
		l.clients = append(l.clients, client)
		group.Go(func() error { return client.Run(ctx, asking) })
	}
	return l, nil
}

// now is the time of the histories.
func (l *load) now() time.Duration { return time.Since(l.crowd.Began) }

// end returns what the clients were told, when all they began is settled.
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
