//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/localpg"
)

// A distance is what lies between a contender and the database. The zero value is
// nothing.
type distance struct {
	delay       time.Duration // of a round trip
	slowCommits bool          // each commit takes slowCommit longer

	folder  string // of the proxy's socket; empty: no proxy
	process *localpg.Process
	out     bytes.Buffer // of the proxy
}

const slowCommit = 2 * time.Millisecond

// beside reports whether the contenders reach the database directly, without slow commits.
func (d *distance) beside() bool { return d.delay == 0 && !d.slowCommits }

// name is the value of the flag -distance.
func (d *distance) name() string {
	if d.slowCommits {
		return "commits"
	}
	return d.delay.String()
}

// title is the heading in the report.
func (d *distance) title() string {
	switch {
	case d.slowCommits:
		return fmt.Sprintf("Beside the database, commits %d ms slower", slowCommit.Milliseconds())
	case d.beside():
		return "Beside the database"
	}
	return fmt.Sprintf("%g ms from the database", d.delay.Seconds()*1000)
}

func parseDistances(s string) (distances []*distance, err error) {
	for field := range strings.SplitSeq(s, ",") {
		if field == "commits" {
			distances = append(distances, &distance{slowCommits: true})
			continue
		}
		delay, err := time.ParseDuration(field)
		if err != nil || delay < 0 || delay > time.Second {
			return nil, fmt.Errorf("%q is neither a time from 0 to 1s nor commits", field)
		}
		distances = append(distances, &distance{delay: delay})
	}
	return distances, nil
}

// open starts what makes up a distance. closeDistance ends it.
func (b *bench) open(ctx context.Context, d *distance) (err error) {
	if d.slowCommits {
		return b.setCommitDelay(ctx, slowCommit)
	}
	if d.delay == 0 {
		return nil
	}
	if d.folder, err = os.MkdirTemp(b.folder, "proxy-"); err != nil {
		return err
	}
	target, err := b.plain.socket()
	if err != nil {
		return err
	}
	listen := filepath.Join(d.folder, filepath.Base(target))
	cmd := exec.Command(b.proxy, d.delay.String(), listen, target)
	cmd.Stdout, cmd.Stderr = &d.out, &d.out
	if d.process, err = localpg.StartProcess(cmd, syscall.SIGKILL); err != nil {
		return err
	}
	b.processes = append(b.processes, d.process)
	return waitFor(ctx, d.process, func() error {
		_, err := os.Stat(listen)
		return err
	})
}

// lateness is the proxy's report.
type lateness struct {
	RealTime     bool  // its thread had real-time priority
	Pieces, Late int64 // how many it released, and how many of them more than 100 µs late
}

func (b *bench) closeDistance(ctx context.Context, d *distance) (l lateness, err error) {
	if d.slowCommits {
		return l, b.setCommitDelay(ctx, 0)
	}
	if d.delay == 0 {
		return l, nil
	}
	if err := d.process.Signal(syscall.SIGTERM); err != nil {
		return l, fmt.Errorf("end the proxy: %w", err)
	}
	<-d.process.Done()
	if err := json.Unmarshal(d.out.Bytes(), &l); err != nil {
		return l, fmt.Errorf("the proxy's report: %w: %s", err, d.out.Bytes())
	}
	return l, nil
}

// setCommitDelay makes every commit of the server wait. With commit_siblings = 0 it
// also waits when no other transaction is active.
func (b *bench) setCommitDelay(ctx context.Context, d time.Duration) error {
	for _, sql := range []string{
		fmt.Sprintf("ALTER SYSTEM SET commit_delay = %d", d.Microseconds()),
		"ALTER SYSTEM SET commit_siblings = 0",
		"SELECT pg_reload_conf()",
	} {
		if _, err := b.plain.control.Exec(ctx, sql); err != nil {
			return fmt.Errorf("slow commits: %w", err)
		}
	}
	return nil
}

// roundTrip returns the median time of a statement that does nothing.
func roundTrip(ctx context.Context, url string) (time.Duration, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var times []time.Duration
	for range 200 {
		start := time.Now()
		if err := conn.Ping(ctx); err != nil {
			return 0, err
		}
		times = append(times, time.Since(start))
	}
	return median(times), nil
}
