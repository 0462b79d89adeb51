//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// manyConnections is how many client connections the memory is measured with.
const manyConnections = 2000

// A footprint is what each client connection takes of a server's memory, in bytes.
type footprint struct {
	title      string
	idle, busy float64
}

// connections measures what a client connection costs, idle and busy, of the
// service and of net/http alone.
func (b *bench) connections(ctx context.Context, r *report, s *store) error {
	service, err := startService(ctx, plantstore, b.service, s, home, "PLANTSTORE_MAX_IN_FLIGHT="+strconv.Itoa(2*manyConnections))
	if err != nil {
		return err
	}
	defer service.process.Kill()
	tidy, err := startService(ctx, tidyService, b.service, s, home, "PLANTSTORE_MAX_IN_FLIGHT="+strconv.Itoa(2*manyConnections), "GOGC=100")
	if err != nil {
		return err
	}
	defer tidy.process.Kill()
	alone, err := startBare(ctx, nothing, b.bare, s, home, 1, "nothing")
	if err != nil {
		return err
	}
	defer alone.process.Kill()
	bare, err := startBare(ctx, barePlain, b.bare, s, home, 32, "yes")
	if err != nil {
		return err
	}
	defer bare.process.Kill()
	for _, c := range []*httpContender{service, tidy, bare, alone} {
		f, err := c.footprint(ctx)
		if err != nil {
			return fmt.Errorf("%s, %d connections: %w", c.title, manyConnections, err)
		}
		b.progress("%s: %.1f KiB for each idle connection, %.1f for each busy one", f.title, f.idle/1024, f.busy/1024)
		r.footprints = append(r.footprints, f)
	}
	return nil
}

// footprint compares the server's memory with few connections, with many that wait
// for the next request after having had one, and with many that wait for an answer.
func (c *httpContender) footprint(ctx context.Context) (f footprint, err error) {
	f.title = c.title
	// A server that did some work has what it needs whatever the connections.
	if _, err := c.use(ctx, 32, time.Second, nil); err != nil {
		return f, err
	}
	few, err := memory(c.process.PID(), "VmRSS:")
	if err != nil {
		return f, err
	}
	var idle int64
	// Each connection once, then none. (A request of each at the same time would
	// make them busy.)
	if _, err := c.use(ctx, manyConnections, 0, func() error {
		idle, err = memory(c.process.PID(), "VmRSS:")
		return err
	}); err != nil {
		return f, err
	}
	busy, err := c.use(ctx, manyConnections, 2*time.Second, nil)
	if err != nil {
		return f, err
	}
	f.idle, f.busy = float64(idle-few)/manyConnections, float64(busy-few)/manyConnections
	return f, nil
}

// use has so many clients delete for a time, or once each, one after the other, calls
// then, and returns the most memory meanwhile.
func (c *httpContender) use(ctx context.Context, clients int, d time.Duration, then func() error) (most int64, err error) {
	q := c.store.quota(d + time.Duration(clients)*time.Second/fastest + time.Second)
	load, err := newLoader(c.address, c.store.token, clients)
	if err != nil {
		return 0, err
	}
	defer load.close()
	if err := resetPeakMemory(c.process.PID()); err != nil {
		return 0, err
	}
	if d == 0 {
		err = load.each(ctx, q)
	} else {
		_, err = load.run(ctx, q, d, 0)
	}
	if err == nil && then != nil {
		err = then()
	}
	if err != nil {
		return 0, err
	}
	if most, err = peakMemory(c.process.PID()); err != nil {
		return 0, err
	}
	_, err = c.store.refill(ctx, q)
	return most, err
}

func (r *report) writeFootprints(b *strings.Builder) {
	if len(r.footprints) == 0 {
		return
	}
	fmt.Fprintf(b, "### Memory of a client connection\n\n| with %s connections, KiB for each | idle | busy |\n|:--|--:|--:|\n", count(manyConnections))
	for _, f := range r.footprints {
		fmt.Fprintf(b, "| %s | %.1f | %.1f |\n", bold(f.title), f.idle/1024, f.busy/1024)
	}
	b.WriteString("\nResident, more than with few connections: *idle* after a request on each, one after the other, " +
		"*busy* at most while a request waits on each. *net/http alone* answers after 50 ms, without Echo or a database. " +
		"All but the first line are with GOGC=100, Go's default: the memory may grow to twice of what is in use.\n\n")
}
