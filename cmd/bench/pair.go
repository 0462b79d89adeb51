//go:build linux

package main

import (
	"context"
	"errors"
	"slices"
	"time"
)

// A pair is two services on one database. Half of the clients ask each.
type pair struct{ one, other *httpContender }

func (p *pair) name() string { return "plantstore, two replicas" }

func (p *pair) measure(ctx context.Context, q *quota, clients int, d time.Duration, rate float64) (m measurement, err error) {
	// Two quotas out of one: the plants of the second are the first's last.
	half := *q
	half.first, half.count = q.first+q.count/2, q.count-q.count/2
	first := *q
	first.count = q.count / 2
	var others measurement
	done := make(chan error)
	go func() {
		var err error
		others, err = p.other.measure(ctx, &half, clients/2, d, rate/2)
		done <- err
	}()
	m, err = p.one.measure(ctx, &first, clients-clients/2, d, rate/2)
	if err := errors.Join(err, <-done); err != nil {
		return m, err
	}
	m.rate += others.rate
	m.deleted += others.deleted
	m.p50 = (m.p50 + others.p50) / 2
	m.p99 = slices.Max([]time.Duration{m.p99, others.p99})
	// Each of them counted what the database did for both.
	m.database /= 2
	return m, nil
}
