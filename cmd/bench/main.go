//go:build linux

// Command bench measures the plant store on a private PostgreSQL with fsync on,
// side by side with two yardsticks: pgbench, which talks to the same database
// directly, and a bare handler on Echo and pgx (folder bare) without
// authentication and, in its plain form, without a ledger. It runs on Linux.
//
// Everything happens on this machine, so load, service and database share its
// cores. The network that usually lies between service and database is a delay,
// see folder distance. To be fair, all contenders connect to the same server in the
// same way, through a Unix socket as the service's own role; they take turns, round
// by round, so that a slow minute of the machine hits all of them; each measurement
// starts after a VACUUM with all plants in place; and each has to delete plants
// that exist: afterwards exactly as many must be gone as were reported, or the
// benchmark fails. A figure is the median of the rounds.
//
// The service is the real program with its default configuration. It writes its
// log, one line for each request, to /dev/null. README.md has the figures and
// tells how to read them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"plantstore/cmd/internal/programs"
	"plantstore/internal/localpg"
)

func main() {
	// Signals are taken to the end: an impatient second Ctrl-C must not leave
	// anything behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// A config is what the flags say.
type config struct {
	duration time.Duration
	rounds   int
	clients  []int
	plants   int64
	parts    []string
	roads    []*road
	quick    bool
	beside   string
	pool     int
	out      string
}

func parse(args []string, stderr io.Writer) (c config, _ error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.DurationVar(&c.duration, "duration", 1500*time.Millisecond, "how long each measurement takes")
	flags.IntVar(&c.rounds, "rounds", 3, "how often each is repeated")
	c.clients = []int{1, 8, 32, 128, 512}
	flags.Func("clients", "numbers of connections, with commas between (default 1,8,32,128,512)", func(s string) error {
		c.clients = nil
		for f := range strings.SplitSeq(s, ",") {
			n, err := strconv.Atoi(f)
			if err != nil || n < 1 || n > 1024 {
				return errors.New("want numbers from 1 to 1024")
			}
			c.clients = append(c.clients, n)
		}
		return nil
	})
	roads := flags.String("distance", "0s,1ms,5ms,commits", "round trips to the database, with commas between; commits: beside it, with slow commits")
	flags.BoolVar(&c.quick, "quick", false, "only the service and the bare handler at each distance")
	flags.StringVar(&c.beside, "beside", "", "path of another build of the service, to be measured beside it at each distance, on a database that it migrates itself")
	flags.IntVar(&c.pool, "pool", 0, "database connections of the bare handler at each distance; 0 finds the best")
	plants := flags.Float64("plants", 4e6, "how many plants there are")
	parts := flags.String("parts", "distance,open,principals,replicas,memory,start,cost", "what to measure, with commas between; also growth: "+
		"100 thousand, 1 million and 20 million plants, and a ledger of 10 million rows")
	flags.StringVar(&c.out, "out", "", "file to write the report to, as Markdown: between the lines <!-- report --> and <!-- end of report --> if it has them. The plots go beside it")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	c.plants = int64(*plants)
	c.parts = strings.Split(*parts, ",")
	if c.quick {
		c.parts = []string{"distance"}
	}
	for _, part := range c.parts {
		if !slices.Contains([]string{"distance", "open", "principals", "replicas", "memory", "start", "cost", "growth"}, part) {
			return c, fmt.Errorf("-parts: there is no part %q", part)
		}
	}
	var err error
	if c.roads, err = parseRoads(*roads); err != nil {
		return c, fmt.Errorf("-distance: %w", err)
	}
	if c.duration < 100*time.Millisecond || c.duration > 10*time.Minute || c.rounds < 1 || c.plants < 1000 {
		return c, errors.New("-duration must be from 100ms to 10m, -rounds at least 1, -plants at least 1000")
	}
	return c, nil
}

func command(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	progress := func(format string, a ...any) { fmt.Fprintf(stderr, time.Now().Format("15:04:05 ")+format+"\n", a...) }

	folder, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	b := &bench{config: c, folder: folder, progress: progress}
	defer func() { err = errors.Join(err, b.close()) }()
	progress("building")
	if b.service, err = programs.Build(ctx, folder, programs.Spec{Package: "cmd/plantstore"}); err != nil {
		return err
	}
	if !c.quick {
		if b.oneByOne, err = programs.Build(ctx, folder, programs.Spec{Package: "cmd/plantstore", Sabotage: programs.OneByOne}); err != nil {
			return err
		}
	}
	if b.distance, err = programs.Build(ctx, folder, programs.Spec{Package: "cmd/bench/distance"}); err != nil {
		return err
	}
	if b.bare, err = programs.Build(ctx, folder, programs.Spec{Package: "cmd/bench/bare"}); err != nil {
		return err
	}
	settings, err := serverSettings()
	if err != nil {
		return err
	}
	if b.server, err = localpg.Start(ctx, localpg.Options{Settings: settings}); err != nil {
		return err
	}
	r, err := b.run(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx) // which makes everything fail
		}
		return err
	}
	r.command = strings.Join(append([]string{"go run ./cmd/bench"}, args...), " ")
	text := r.markdown()
	if c.out != "" {
		if err := writeReport(c.out, text); err != nil {
			return err
		}
		if !c.quick {
			if err := r.plots(filepath.Dir(c.out)); err != nil {
				return err
			}
		}
	}
	_, err = io.WriteString(stdout, text)
	return err
}

// Between these lines a file has the report.
const reportBegins, reportEnds = "<!-- report -->\n", "<!-- end of report -->\n"

// writeReport writes a report into a file, in place of an older one if it has that
// between other things.
func writeReport(path, text string) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	before, rest, _ := strings.Cut(string(old), reportBegins)
	if _, after, found := strings.Cut(rest, reportEnds); found {
		text = before + reportBegins + "\n" + text + reportEnds + after
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
