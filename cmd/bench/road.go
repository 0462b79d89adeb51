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

	"plantstore/internal/localpg"
)

// A road is what lies between a contender and the database.
type road struct {
	delay time.Duration // of a round trip
	// slowCommits: each commit takes slowCommit longer.
	slowCommits bool

	itself  time.Duration // what the proxy takes of the delay by its work
	folder  string        // of the socket to connect to; empty: the server's own
	process *localpg.Process
	out     bytes.Buffer // of the process
}

// home is no road at all.
var home = new(road)

// slowCommit is how much longer a commit takes on a road with slow commits.
const slowCommit = 2 * time.Millisecond

// name is the road's in tables and in the flag -distance.
func (r *road) name() string {
	if r.slowCommits {
		return "commits"
	}
	return r.delay.String()
}

// title is what a heading says of the road.
func (r *road) title() string {
	switch {
	case r.slowCommits:
		return fmt.Sprintf("Beside the database, commits %s slower", spaced(slowCommit))
	case r.delay == 0:
		return "Beside the database"
	}
	return fmt.Sprintf("%s a round trip away", spaced(r.delay))
}

// spaced writes a time with a space before its unit.
func spaced(d time.Duration) string {
	s := d.String()
	unit := strings.IndexFunc(s, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	return s[:unit] + " " + s[unit:]
}

// parseRoads reads the flag -distance.
func parseRoads(s string) (roads []*road, err error) {
	for field := range strings.SplitSeq(s, ",") {
		if field == "commits" {
			roads = append(roads, &road{slowCommits: true})
			continue
		}
		delay, err := time.ParseDuration(field)
		if err != nil || delay < 0 || delay > time.Second {
			return nil, fmt.Errorf("want times from 0 to 1s, or commits: %q", field)
		}
		roads = append(roads, &road{delay: delay})
	}
	return roads, nil
}

// openRoad makes a road ready for use. closeRoad ends it.
func (b *bench) openRoad(ctx context.Context, r *road) error {
	if r.slowCommits {
		if err := b.setCommitDelay(ctx, slowCommit); err != nil {
			return err
		}
	}
	if r.delay == 0 {
		return nil
	}
	var err error
	if r.folder, err = os.MkdirTemp(b.folder, "road-"); err != nil {
		return err
	}
	server, err := b.stores[0].socket()
	if err != nil {
		return err
	}
	cmd := exec.Command(b.distance, (r.delay - r.itself).String(), filepath.Join(r.folder, filepath.Base(server)), server)
	r.out.Reset()
	cmd.Stdout, cmd.Stderr = &r.out, &r.out
	if r.process, err = localpg.StartProcess(cmd, syscall.SIGKILL); err != nil {
		return err
	}
	b.processes = append(b.processes, r.process)
	return awaitFile(ctx, r.process, filepath.Join(r.folder, filepath.Base(server)))
}

func awaitFile(ctx context.Context, p *localpg.Process, path string) error {
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.Done():
			return fmt.Errorf("%s does not appear: %v", path, p.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// setCommitDelay makes every commit wait, for all sessions of the server. As
// commit_siblings is 0, it waits when nobody else is about to commit, too.
func (b *bench) setCommitDelay(ctx context.Context, d time.Duration) error {
	for _, sql := range []string{
		fmt.Sprintf("ALTER SYSTEM SET commit_delay = %d", d.Microseconds()),
		"ALTER SYSTEM SET commit_siblings = 0",
		"SELECT pg_catalog.pg_reload_conf()",
	} {
		if _, err := b.stores[0].control.Exec(ctx, sql); err != nil {
			return fmt.Errorf("slow commits: %w", err)
		}
	}
	return nil
}

// lateness is how late the pieces were released on a road, in microseconds.
type lateness struct {
	First                bool // the thread that releases them ran before all others
	Pieces               int64
	P50, P99, P999, Most int64
}

// closeRoad ends a road, and with a delay tells how late it released the pieces.
// Its contenders must have ended.
func (b *bench) closeRoad(ctx context.Context, r *road) (l lateness, err error) {
	if r.slowCommits {
		return l, b.setCommitDelay(ctx, 0)
	}
	if r.delay == 0 {
		return l, nil
	}
	if err := r.process.Signal(syscall.SIGTERM); err != nil {
		return l, fmt.Errorf("end the delay: %w", err)
	}
	<-r.process.Done()
	if err := json.Unmarshal(r.out.Bytes(), &l); err != nil {
		return l, fmt.Errorf("the delay's output is not understood: %w: %s", err, r.out.Bytes())
	}
	return l, nil
}
