//go:build linux

// Command bench compares the service with the handler that a Go developer would
// write by hand (folder bare: Echo, pgx, one DELETE a request, no ledger, no
// tokens), on a private PostgreSQL with fsync on. It runs on Linux.
//
// Load, service and database share this machine's cores. A network between the
// service and the database is simulated by a proxy, see folder distance.
//
// All contenders connect to the same server, through a Unix socket, with the
// service's role. They take turns, round by round, so a slow minute hits all of
// them, and ratios are taken within a round. Each measurement starts after a
// VACUUM, with all plants in the table. Each request has to delete a plant that
// exists, or the run fails. A figure is the median of the rounds.
//
// The service is the real program with its default configuration. Its log goes
// to /dev/null.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"plantstore/cmd/internal/programs"
	"plantstore/internal/localpg"
)

func main() {
	// A second Ctrl-C must not interrupt the cleanup, so stop comes last.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// A config has the flags.
type config struct {
	duration  time.Duration
	rounds    int
	clients   []int
	plants    int64
	distances []*distance
	quick     bool
	beside    string
	watch     bool
	pool      int
	out       string
}

// quickDefaults are the flags' defaults with -quick.
func quickDefaults() map[string]string {
	return map[string]string{"duration": "500ms", "rounds": "1", "distance": "0s,1ms", "plants": "6e5", "pool": "32"}
}

func parse(args []string, stderr io.Writer) (c config, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.DurationVar(&c.duration, "duration", 1500*time.Millisecond, "duration of each measurement")
	flags.IntVar(&c.rounds, "rounds", 3, "number of rounds")
	clients := flags.String("clients", "1,8,32,128", "numbers of clients, separated by commas")
	distances := flags.String("distance", "0s,1ms,5ms,commits", "round trips to the database, separated by commas; commits: no delay, but slow commits")
	flags.BoolVar(&c.quick, "quick", false, "one short round, without the open loop; other flags override its defaults")
	flags.StringVar(&c.beside, "beside", "", "path of another build of the service, to be measured in the same rounds")
	flags.BoolVar(&c.watch, "watch", false, "with -beside: each plant takes a row of another table along, which the other build's database watches")
	flags.IntVar(&c.pool, "pool", 0, "database connections of the bare handler; 0: the fastest of 8, 16, 32 and 64")
	plants := flags.Float64("plants", 4e6, "number of plants")
	flags.StringVar(&c.out, "out", "", "file whose report to replace, such as cmd/bench/README.md")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if c.quick {
		defaults := quickDefaults()
		flags.Visit(func(f *flag.Flag) { delete(defaults, f.Name) })
		for name, value := range defaults {
			if err := flags.Set(name, value); err != nil {
				return c, err
			}
		}
	}
	for field := range strings.SplitSeq(*clients, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 || n > 1024 {
			return c, errors.New("-clients must be numbers from 1 to 1024")
		}
		c.clients = append(c.clients, n)
	}
	if c.distances, err = parseDistances(*distances); err != nil {
		return c, fmt.Errorf("-distance: %w", err)
	}
	c.plants = int64(*plants)
	if c.duration < 100*time.Millisecond || c.rounds < 1 || c.plants < 1000 || c.plants > maxPlants {
		return c, errors.New("-duration must be at least 100ms, -rounds at least 1, -plants from 1000 to 1e9")
	}
	return c, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	b := &bench{config: c, folder: folder, progress: func(format string, a ...any) {
		fmt.Fprintf(stderr, time.Now().Format("15:04:05 ")+format+"\n", a...)
	}}
	defer func() { err = errors.Join(err, b.close()) }()

	b.progress("building")
	for _, p := range []struct {
		path *string
		name string
	}{{&b.service, "cmd/plantstore"}, {&b.bare, "cmd/bench/bare"}, {&b.proxy, "cmd/bench/distance"}} {
		if *p.path, err = programs.Build(ctx, folder, programs.Spec{Package: p.name}); err != nil {
			return err
		}
	}
	settings, err := serverSettings()
	if err != nil {
		return err
	}
	if b.server, err = localpg.Start(ctx, localpg.Options{Settings: settings}); err != nil {
		return err
	}
	r, err := b.measure(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx) // the reason of all failures
	}
	if err != nil {
		return err
	}
	r.command = strings.Join(append([]string{"go run ./cmd/bench"}, args...), " ")
	text := r.markdown()
	if c.out != "" {
		if err := writeReport(c.out, text); err != nil {
			return err
		}
	}
	_, err = io.WriteString(stdout, text)
	return err
}

// README.md has the report between these two lines.
const reportBegins, reportEnds = "<!-- report -->\n", "<!-- end of report -->\n"

// writeReport replaces the report in a file.
func writeReport(path, report string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), reportBegins)
	_, after, ended := strings.Cut(rest, reportEnds)
	if !found || !ended {
		return fmt.Errorf("%s lacks the lines %q and %q", path, reportBegins, reportEnds)
	}
	return os.WriteFile(path, []byte(before+reportBegins+"\n"+report+"\n"+reportEnds+after), 0o644)
}
