//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"plantstore/internal/localpg"
)

// A pgbenchContender is PostgreSQL's own load generator, which talks to the
// database directly, with prepared statements.
type pgbenchContender struct {
	title  string
	store  *store
	road   *road
	script string
	folder string // for the script and logs
	// nothing: the script deletes nothing, and its latency is without what the
	// load generator was late.
	nothing bool
}

// Each of pgbench's clients keeps its variables from one transaction to the next,
// and so counts its own deletions in n. The rest is quota's order of deletion.
const nextID = `
\set n :n + 1
\set place :first + :n * :clients + :client_id
\set id 1 + :place * :stride % :plants
`

const plainDelete = nextID + `
DELETE FROM public.plants WHERE id = :id;
`

// ledgeredDelete is what the service does for one deletion: the settings that the
// trigger records and the DELETE in one implicit transaction and one round trip.
const ledgeredDelete = nextID + `
\set key 1000000000000000000 + :place
\startpipeline
SELECT set_config('plantstore.request', ARRAY[:id::text, 'pgbench', '01234567-89ab-7def-8123-456789abcdef', :key::text]::text, true);
DELETE FROM public.plants WHERE id = :id;
\endpipeline
`

func (c *pgbenchContender) name() string { return c.title }

func (c *pgbenchContender) measure(ctx context.Context, q *quota, clients int, d time.Duration, rate float64) (m measurement, err error) {
	folder, err := os.MkdirTemp(c.folder, "pgbench-")
	if err != nil {
		return m, err
	}
	defer os.RemoveAll(folder)
	cmd, err := c.command(ctx, folder, q, clients, d, rate)
	if err != nil {
		return m, err
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	p, err := localpg.StartProcess(cmd, syscall.SIGKILL)
	if err != nil {
		return m, err
	}
	watched, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() {
		<-p.Done()
		end(errors.New("it ended too soon"))
	}()
	var before, after usage
	from, to, err := c.watch(watched, folder, p.PID(), d, &before, &after)
	// By itself it would end after a number of whole seconds, those to connect included.
	// It writes the end of its log when it has lost all connections.
	if err == nil {
		err = c.store.disconnect(ctx, "pgbench")
	}
	if err != nil {
		p.Kill()
		return m, fmt.Errorf("pgbench: %w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	<-p.Done()
	latencies, err := readLogs(folder, from, to, c.nothing)
	if err != nil {
		return m, err
	}
	slices.Sort(latencies)
	m.deleted = -1
	m.rate = float64(len(latencies)) / to.Sub(from).Seconds()
	m.setUsage(before, after, len(latencies), to.Sub(from))
	return m, m.setLatencies(latencies)
}

// command is the pgbench that measure runs, with its script and its logs in
// folder.
func (c *pgbenchContender) command(ctx context.Context, folder string, q *quota, clients int, d time.Duration, rate float64) (*exec.Cmd, error) {
	script := filepath.Join(folder, "script.sql")
	if err := os.WriteFile(script, []byte(c.script), 0o600); err != nil {
		return nil, err
	}
	args := []string{
		"--no-vacuum", "--protocol=prepared", "--file=" + script, "--time=3600",
		"--client=" + strconv.Itoa(clients), "--jobs=" + strconv.Itoa(min(clients, 2)),
		"--log", "--log-prefix=" + filepath.Join(folder, "log"),
		"--define=n=-1", fmt.Sprintf("--define=first=%d", q.first), fmt.Sprintf("--define=clients=%d", clients),
		fmt.Sprintf("--define=stride=%d", q.store.stride), fmt.Sprintf("--define=plants=%d", q.store.plants),
	}
	if rate > 0 {
		args = append(args, fmt.Sprintf("--rate=%f", rate))
	}
	cmd := exec.CommandContext(ctx, filepath.Join(c.store.server.Programs(), "pgbench"), append(args, c.store.url(c.road))...)
	cmd.Env = localpg.Environ("PG")
	return cmd, nil
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
func readLogs(folder string, from, to time.Time, inTime bool) ([]time.Duration, error) {
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
		latencies, err = readLog(latencies, f, from.UnixMicro(), to.UnixMicro(), inTime)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("pgbench's log: %w", err)
		}
	}
	return latencies, nil
}

// readLog reads one log, with times in microseconds. In time, a latency is without
// the time that its transaction was late.
func readLog(latencies []time.Duration, r io.Reader, from, to int64, inTime bool) ([]time.Duration, error) {
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
		if inTime {
			if len(fields) < 7 {
				return nil, fmt.Errorf("line %q does not tell how late it was", lines.Text())
			}
			late, err := strconv.ParseInt(fields[6], 10, 64)
			if err != nil {
				return nil, err
			}
			n[0] -= late
		}
		if at := n[1]*1_000_000 + n[2]; from <= at && at < to {
			latencies = append(latencies, time.Duration(n[0])*time.Microsecond)
		}
	}
	return latencies, lines.Err()
}
