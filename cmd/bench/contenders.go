//go:build linux

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// warmUp is how long every contender runs before it is measured: connections are
// made, statements prepared and plans cached in it.
const warmUp = time.Second

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
	p50, p99  time.Duration
	service   float64 // CPU seconds of the service for 1,000 deletions
	database  float64 // the same of the database
	generator float64 // the same of the load generator
	others    float64 // share of the machine's CPU time that went elsewhere
	memory    float64 // most bytes resident in the service
	allocs    float64 // objects that the service allocates for a deletion
	deleted   int64   // all there were, with the warm-up
}

// setLatencies takes latencies in order.
func (m *measurement) setLatencies(sorted []time.Duration) error {
	if len(sorted) == 0 {
		return errors.New("nothing was deleted")
	}
	m.p50 = sorted[len(sorted)/2]
	m.p99 = sorted[len(sorted)*99/100]
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

// An httpContender is a server that is asked over HTTP.
type httpContender struct {
	title       string
	store       *store
	address     string
	process     *process
	allocations func(context.Context) (float64, error)
}

// startService starts the service on a store.
func startService(ctx context.Context, title, program string, s *store) (*httpContender, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	admin, err := freeAddress()
	if err != nil {
		return nil, err
	}
	p, err := startProcess(program, []string{"serve"}, []string{
		"DATABASE_URL=" + s.url(), "PLANTSTORE_ADDR=" + address, "PLANTSTORE_ADMIN_ADDR=" + admin,
		"PLANTSTORE_DRAIN_DELAY=0s"})
	if err != nil {
		return nil, err
	}
	c := &httpContender{title: title, store: s, address: address, process: p,
		allocations: func(ctx context.Context) (float64, error) { return serviceAllocations(ctx, admin) }}
	if err := p.waitFor(ctx, "http://"+admin+"/readyz"); err != nil {
		p.stop()
		return nil, err
	}
	return c, nil
}

// startBare starts the bare handler on a store.
func startBare(ctx context.Context, title, program string, s *store, pool int, settings string) (*httpContender, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	p, err := startProcess(program, nil, []string{
		"DATABASE_URL=" + s.url() + "&pool_max_conns=" + strconv.Itoa(pool), "ADDR=" + address, "SETTINGS=" + settings})
	if err != nil {
		return nil, err
	}
	c := &httpContender{title: title, store: s, address: address, process: p,
		allocations: func(ctx context.Context) (float64, error) { return bareAllocations(ctx, address) }}
	if err := p.waitFor(ctx, "http://"+address+"/debug/vars"); err != nil {
		p.stop()
		return nil, err
	}
	return c, nil
}

func (c *httpContender) name() string { return c.title }

func (c *httpContender) measure(ctx context.Context, q *quota, clients int, d time.Duration, rate float64) (m measurement, err error) {
	load, err := newLoader(c.address, c.store.token, clients)
	if err != nil {
		return m, err
	}
	defer load.close()
	warm, err := load.run(ctx, q, warmUp, rate)
	if err != nil {
		return m, err
	}
	if err := resetPeakMemory(c.process.cmd.Process.Pid); err != nil {
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
	memory, err := peakMemory(c.process.cmd.Process.Pid)
	if err != nil {
		return m, err
	}
	m.memory = float64(memory)
	return m, m.setLatencies(t.latencies)
}

func (c *httpContender) usage() (usage, error) {
	return usageOf(c.process.cmd.Process.Pid, c.store.postmaster, os.Getpid())
}

// A pgbenchContender is PostgreSQL's own load generator, which talks to the
// database directly, with prepared statements.
type pgbenchContender struct {
	title  string
	store  *store
	script string
	folder string // for the script and logs
}

// Each of pgbench's clients keeps its variables from one transaction to the next,
// and so counts its own deletions in n. The rest is quota's order of deletion.
const nextID = `
\set n :n + 1
\set place :first + :n * :clients + :client_id
\set id 1 + :place * :stride % :plants
`

const plainDelete = nextID + `
DELETE FROM plants WHERE id = :id;
`

// ledgeredDelete is what the service does for one deletion: the settings that the
// trigger records and the DELETE in one implicit transaction and one round trip.
const ledgeredDelete = nextID + `
\set key 1000000000000000000 + :place
\startpipeline
SELECT set_config('plantstore.principal', 'pgbench', true), set_config('plantstore.request_id', '01234567-89ab-7def-8123-456789abcdef', true), set_config('plantstore.idempotency_key', :key, true);
DELETE FROM plants WHERE id = :id;
\endpipeline
`

func (c *pgbenchContender) name() string { return c.title }

var transactions = regexp.MustCompile(`(?m)^number of transactions actually processed: (\d+)`)

func (c *pgbenchContender) measure(ctx context.Context, q *quota, clients int, d time.Duration, rate float64) (m measurement, err error) {
	folder, err := os.MkdirTemp(c.folder, "pgbench-")
	if err != nil {
		return m, err
	}
	defer os.RemoveAll(folder)
	script := filepath.Join(folder, "script.sql")
	if err := os.WriteFile(script, []byte(c.script), 0o600); err != nil {
		return m, err
	}
	// pgbench counts whole seconds, and those that its clients take to connect.
	whole := int(math.Ceil((3*warmUp + d).Seconds()))
	args := []string{
		"--no-vacuum", "--protocol=prepared", "--file=" + script, "--time=" + strconv.Itoa(whole),
		"--client=" + strconv.Itoa(clients), "--jobs=" + strconv.Itoa(min(clients, 2)),
		"--log", "--log-prefix=" + filepath.Join(folder, "log"),
		"--define=n=-1", fmt.Sprintf("--define=first=%d", q.first), fmt.Sprintf("--define=clients=%d", clients),
		fmt.Sprintf("--define=stride=%d", q.store.stride), fmt.Sprintf("--define=plants=%d", q.store.plants),
	}
	if rate > 0 {
		args = append(args, fmt.Sprintf("--rate=%f", rate))
	}
	cmd := exec.CommandContext(ctx, filepath.Join(c.store.server.Programs(), "pgbench"), append(args, c.store.url())...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return m, fmt.Errorf("start pgbench: %w", err)
	}
	watched, end := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // ProcessState tells
		end(errors.New("pgbench ended too soon"))
	}()
	var before, after usage
	from, to, err := c.watch(watched, folder, cmd.Process.Pid, d, &before, &after)
	<-ended
	if err != nil || !cmd.ProcessState.Success() {
		return m, fmt.Errorf("%w (%s): %s", cmp.Or(err, errors.New("pgbench failed")), cmd.ProcessState, bytes.TrimSpace(out.Bytes()))
	}
	found := transactions.FindSubmatch(out.Bytes())
	if found == nil {
		return m, fmt.Errorf("pgbench's output is not understood: %s", out.Bytes())
	}
	if m.deleted, err = strconv.ParseInt(string(found[1]), 10, 64); err != nil {
		return m, err
	}
	latencies, err := readLogs(folder, from, to)
	if err != nil {
		return m, err
	}
	slices.Sort(latencies)
	m.rate = float64(len(latencies)) / to.Sub(from).Seconds()
	m.setUsage(before, after, len(latencies), to.Sub(from))
	return m, m.setLatencies(latencies)
}

// watch takes the CPU time before and after that part of a run that counts. It
// begins when pgbench, having made all its connections, writes the log.
func (c *pgbenchContender) watch(ctx context.Context, folder string, pid int, d time.Duration, before, after *usage) (from, to time.Time, err error) {
	for begun := false; !begun; {
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return from, to, err
		}
		if begun, err = logged(folder); err != nil {
			return from, to, err
		}
	}
	if err := sleep(ctx, warmUp); err != nil {
		return from, to, err
	}
	if *before, err = usageOf(0, c.store.postmaster, pid); err != nil {
		return from, to, err
	}
	from = time.Now()
	if err := sleep(ctx, d); err != nil {
		return from, to, err
	}
	to = time.Now()
	*after, err = usageOf(0, c.store.postmaster, pid)
	return from, to, err
}

// logged reports whether pgbench has written a part of its log.
func logged(folder string) (bool, error) {
	names, err := logs(folder)
	for _, name := range names {
		if info, err := os.Stat(name); err != nil || info.Size() > 0 {
			return err == nil, err
		}
	}
	return false, err
}

// logs lists pgbench's logs, one for each thread.
func logs(folder string) ([]string, error) { return filepath.Glob(filepath.Join(folder, "log.*")) }

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// readLogs reads the latencies of the transactions that ended in a span of time.
func readLogs(folder string, from, to time.Time) ([]time.Duration, error) {
	names, err := logs(folder)
	if err != nil {
		return nil, err
	}
	var latencies []time.Duration
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		latencies, err = readLog(latencies, f, from.UnixMicro(), to.UnixMicro())
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("pgbench's log: %w", err)
		}
	}
	return latencies, nil
}

// readLog reads one log, with times in microseconds.
func readLog(latencies []time.Duration, r io.Reader, from, to int64) ([]time.Duration, error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		// client, transaction, latency, script, seconds, microseconds; with a
		// rate also by how much it started late, which the latency includes
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 {
			return nil, fmt.Errorf("unexpected line %q", lines.Text())
		}
		var n [3]int64
		for i, column := range [...]int{2, 4, 5} {
			var err error
			if n[i], err = strconv.ParseInt(fields[column], 10, 64); err != nil {
				return nil, err
			}
		}
		if at := n[1]*1_000_000 + n[2]; from <= at && at < to {
			latencies = append(latencies, time.Duration(n[0])*time.Microsecond)
		}
	}
	return latencies, lines.Err()
}
