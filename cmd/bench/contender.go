//go:build linux

package main

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// warmUp runs before each measurement: connections are opened, statements prepared
// and plans cached.
const warmUp = 700 * time.Millisecond

// A contender deletes plants of a store.
type contender interface {
	name() string
	// measure deletes with a number of clients, at a rate or, if that is 0, as fast as
	// possible.
	measure(ctx context.Context, clients int, d time.Duration, rate float64) (measurement, error)
}

// A measurement is the result of one contender in one round.
type measurement struct {
	rate              float64 // deletions per second
	p50, p99          time.Duration
	service, database float64 // processor time for a deletion, in µs
	others            float64 // share of the machine's processor time that other programs had
	memory            float64 // peak resident memory of the service, in bytes
}

// measure calls run for the warm-up and then for d, and returns the figures of d. They come
// from run's sorted latencies and the processes' counters. Service 0: there is none.
func measure(service, postmaster int, d time.Duration, run func(time.Duration) ([]time.Duration, error)) (m measurement, err error) {
	if _, err := run(warmUp); err != nil {
		return m, err
	}
	if service != 0 {
		if err := resetPeakMemory(service); err != nil {
			return m, err
		}
	}
	before, err := usageOf(service, postmaster)
	if err != nil {
		return m, err
	}
	start := time.Now()
	latencies, err := run(d)
	if err != nil {
		return m, err
	}
	took := time.Since(start) // a little longer than d, for the last responses
	after, err := usageOf(service, postmaster)
	if err != nil {
		return m, err
	}
	if len(latencies) == 0 {
		return m, errors.New("nothing was deleted")
	}
	if service != 0 {
		if m.memory, err = peakMemory(service); err != nil {
			return m, err
		}
	}
	m.rate = float64(len(latencies)) / d.Seconds()
	m.p50, m.p99 = latencies[len(latencies)/2], latencies[len(latencies)*99/100]
	used := after.minus(before)
	m.service = float64(used.service.Microseconds()) / float64(len(latencies))
	m.database = float64(used.database.Microseconds()) / float64(len(latencies))
	others := used.machine - used.service - used.database - used.load
	m.others = max(others.Seconds()/took.Seconds()/float64(runtime.NumCPU()), 0)
	return m, nil
}

// A direct contender is one connection to the database that runs a plain DELETE
// again and again: what a lone deletion costs at least.
type direct struct{ store *store }

func (*direct) name() string { return plainName }

func (c *direct) measure(ctx context.Context, _ int, d time.Duration, _ float64) (m measurement, err error) {
	conn, err := pgx.Connect(ctx, c.store.url(new(distance)))
	if err != nil {
		return m, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return measure(0, c.store.postmaster, d, func(d time.Duration) (latencies []time.Duration, err error) {
		for start, end := time.Now(), time.Now().Add(d); start.Before(end); start = time.Now() {
			if _, err := conn.Exec(ctx, `DELETE FROM public.plants WHERE id = $1`, c.store.take()); err != nil {
				return nil, err
			}
			latencies = append(latencies, time.Since(start))
		}
		slices.Sort(latencies)
		return latencies, nil
	})
}
