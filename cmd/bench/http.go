//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"plantstore/cmd/internal/programs"
	"plantstore/internal/localpg"
)

// An httpContender is a server that is asked over HTTP.
type httpContender struct {
	title       string
	store       *store
	token       string
	address     string
	process     *localpg.Process
	allocations func(context.Context) (float64, error)
}

// startService starts the service on a store at the end of a road.
func startService(ctx context.Context, title, program string, s *store, r *road, settings ...string) (*httpContender, error) {
	address, err := programs.FreeAddress()
	if err != nil {
		return nil, err
	}
	admin, err := programs.FreeAddress()
	if err != nil {
		return nil, err
	}
	p, err := start(program, []string{"serve"}, append([]string{
		"DATABASE_URL=" + s.url(r), "PLANTSTORE_ADDR=" + address, "PLANTSTORE_ADMIN_ADDR=" + admin,
		"PLANTSTORE_DRAIN_DELAY=0s"}, settings...))
	if err != nil {
		return nil, err
	}
	c := &httpContender{title: title, store: s, token: s.token, address: address, process: p,
		allocations: func(ctx context.Context) (float64, error) { return serviceAllocations(ctx, admin) }}
	if err := waitFor(ctx, p, "http://"+admin+"/readyz"); err != nil {
		p.Kill()
		return nil, fmt.Errorf("start %s: %w", title, err)
	}
	return c, nil
}

// startBare starts the bare handler on a store at the end of a road.
func startBare(ctx context.Context, title, program string, s *store, r *road, pool int, settings string) (*httpContender, error) {
	address, err := programs.FreeAddress()
	if err != nil {
		return nil, err
	}
	p, err := start(program, nil, []string{
		"DATABASE_URL=" + s.url(r) + "&pool_max_conns=" + strconv.Itoa(pool), "ADDR=" + address, "SETTINGS=" + settings})
	if err != nil {
		return nil, err
	}
	c := &httpContender{title: title, store: s, token: s.token, address: address, process: p,
		allocations: func(ctx context.Context) (float64, error) { return bareAllocations(ctx, address) }}
	if err := waitFor(ctx, p, "http://"+address+"/debug/vars"); err != nil {
		p.Kill()
		return nil, fmt.Errorf("start %s: %w", title, err)
	}
	return c, nil
}

func (c *httpContender) name() string { return c.title }

func (c *httpContender) measure(ctx context.Context, q *quota, clients int, d time.Duration, rate float64) (m measurement, err error) {
	load, err := newLoader(c.address, c.token, clients)
	if err != nil {
		return m, err
	}
	defer load.close()
	warm, err := load.run(ctx, q, warmUp, rate)
	if err != nil {
		return m, err
	}
	if err := resetPeakMemory(c.process.PID()); err != nil {
		return m, err
	}
	allocsBefore, err := c.allocations(ctx)
	if err != nil {
		return m, err
	}
	before, err := c.usage()
	if err != nil {
		return m, err
	}
	start := time.Now()
	t, err := load.run(ctx, q, d, rate)
	if err != nil {
		return m, err
	}
	took := time.Since(start)
	after, err := c.usage()
	if err != nil {
		return m, err
	}
	allocsAfter, err := c.allocations(ctx)
	if err != nil {
		return m, err
	}
	m.rate = float64(len(t.latencies)) / d.Seconds()
	m.deleted = warm.answered + t.answered
	m.allocs = (allocsAfter - allocsBefore) / float64(t.answered)
	m.setUsage(before, after, int(t.answered), took)
	memory, err := peakMemory(c.process.PID())
	if err != nil {
		return m, err
	}
	m.memory = float64(memory)
	return m, m.setLatencies(t.latencies)
}

func (c *httpContender) usage() (usage, error) {
	return usageOf(c.process.PID(), c.store.postmaster, os.Getpid())
}

// start starts a server. What it logs goes to /dev/null: writing a log is part of
// the work that is measured, keeping it is not.
func start(program string, args, env []string) (*localpg.Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	cmd := exec.Command(program, args...)
	cmd.Env = append(localpg.Environ("PG", "PLANTSTORE_"), env...)
	cmd.Stdout, cmd.Stderr = null, null
	return localpg.StartProcess(cmd, syscall.SIGKILL)
}

// waitFor returns when a page of a server answers with 200.
func waitFor(ctx context.Context, server *localpg.Process, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		_, err := get(ctx, url)
		if err == nil {
			return nil
		}
		select {
		case <-server.Done():
			return fmt.Errorf("it ended by itself: %v", server.Err())
		case <-ctx.Done():
			return fmt.Errorf("it does not become ready: %w", err)
		case <-time.After(time.Millisecond):
		}
	}
}

func get(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", url, response.Status, bytes.TrimSpace(body))
	}
	return body, err
}

// serviceAllocations reads how many objects the service has allocated so far.
func serviceAllocations(ctx context.Context, admin string) (float64, error) {
	body, err := get(ctx, "http://"+admin+"/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, "go_memstats_mallocs_total "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, errors.New("the service's metrics don't tell its allocations")
}

// bareAllocations is the same of the bare handler.
func bareAllocations(ctx context.Context, address string) (float64, error) {
	body, err := get(ctx, "http://"+address+"/debug/vars")
	if err != nil {
		return 0, err
	}
	var vars struct{ Memstats struct{ Mallocs float64 } }
	err = json.Unmarshal(body, &vars)
	return vars.Memstats.Mallocs, err
}
