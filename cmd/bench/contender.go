//go:build linux

package main

import (
	"context"
	"errors"
	"runtime"
	"time"
)

// warmUp is how long every contender runs before it is measured: connections are
// made, statements prepared and plans cached in it.
const warmUp = 700 * time.Millisecond

// A contender deletes plants of a store.
type contender interface {
	name() string
	// measure deletes plants of the quota with so many clients: at a rate, or as
	// fast as it can for a rate of 0.
	measure(ctx context.Context, q *quota, clients int, d time.Duration, rate float64) (measurement, error)
}

// A measurement is what came of it.
type measurement struct {
	rate      float64 // deletions per second
	p50, p90  time.Duration
	p99, p999 time.Duration
	service   float64 // CPU seconds of the service for 1,000 deletions
	database  float64 // the same of the database
	generator float64 // the same of the load generator
	others    float64 // share of the machine's CPU time that went elsewhere
	memory    float64 // most bytes resident in the service
	allocs    float64 // objects that the service allocates for a deletion
	wal       float64 // bytes of write-ahead log for a deletion, with the warm-up
	deleted   int64   // all there were, with the warm-up; -1: not known
}

// setLatencies takes latencies in order.
func (m *measurement) setLatencies(sorted []time.Duration) error {
	if len(sorted) == 0 {
		return errors.New("nothing was deleted")
	}
	m.p50 = sorted[len(sorted)/2]
	m.p90 = sorted[len(sorted)*90/100]
	m.p99 = sorted[len(sorted)*99/100]
	m.p999 = sorted[len(sorted)*999/1000]
	return nil
}

// usage is the CPU time used so far. Of the machine, it is what all processes and
// the machine's host used.
type usage struct{ service, database, generator, machine time.Duration }

func (m *measurement) setUsage(before, after usage, deletions int, took time.Duration) {
	each := func(before, after time.Duration) float64 {
		return (after - before).Seconds() * 1000 / float64(deletions)
	}
	m.service = each(before.service, after.service)
	m.database = each(before.database, after.database)
	m.generator = each(before.generator, after.generator)
	ours := (after.service + after.database + after.generator) - (before.service + before.database + before.generator)
	m.others = max((after.machine-before.machine-ours).Seconds()/took.Seconds()/float64(runtime.NumCPU()), 0)
}
