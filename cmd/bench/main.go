//go:build linux

// Command bench compares the service with the handler that a Go developer would write by hand
// (folder bare), on a private PostgreSQL with fsync on. wrk makes the load. README.md says how
// it measures.
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
	duration time.Duration
	rounds   int
	clients  []int
	rows     string
	delay    time.Duration
	quick    bool
	beside   string
	watch    bool
	pool     int
}

func parse(args []string, stderr io.Writer) (c config, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.DurationVar(&c.duration, "duration", 2*time.Second, "duration of each measurement, in whole seconds")
	flags.IntVar(&c.rounds, "rounds", 5, "number of rounds")
	clients := flags.String("clients", "1,8,32,128", "numbers of clients, separated by commas")
	flags.StringVar(&c.rows, "rows", "beside,away,commits,referred", "what to measure: rows of the table, separated by commas")
	flags.DurationVar(&c.delay, "delay", 3*time.Millisecond, "round trip to the database in the row away")
	flags.BoolVar(&c.quick, "quick", false, "one round of a second, and a pool of 32: rough")
	flags.StringVar(&c.beside, "beside", "", "path of another build of the service, to be measured in the same rounds")
	flags.BoolVar(&c.watch, "watch", false, "give each plant a row that leaves with it; the other database watches that table")
	flags.IntVar(&c.pool, "pool", 0, "database connections of the bare handler; 0: the fastest of 8, 16, 32 and 64")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if c.quick { // other flags override it
		defaults := map[string]string{"rounds": "1", "duration": "1s", "pool": "32"}
		flags.Visit(func(f *flag.Flag) { delete(defaults, f.Name) })
		for name, value := range defaults {
			if err := flags.Set(name, value); err != nil {
				return c, err
			}
		}
	}
	for row := range strings.SplitSeq(c.rows, ",") {
		if !slices.Contains([]string{"beside", "away", "commits", "referred"}, row) {
			return c, fmt.Errorf("-rows: there is no row %q", row)
		}
	}
	for field := range strings.SplitSeq(*clients, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 || n > 1024 {
			return c, errors.New("-clients must be numbers from 1 to 1024")
		}
		c.clients = append(c.clients, n)
	}
	if c.duration < time.Second || c.duration > 20*time.Second || c.rounds < 1 {
		return c, errors.New("-duration must be from 1s to 20s, -rounds at least 1")
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
	b := &bench{config: c, folder: folder, script: filepath.Join(folder, "load.lua"), progress: func(format string, a ...any) {
		fmt.Fprintf(stderr, time.Now().Format("15:04:05 ")+format+"\n", a...)
	}}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := os.WriteFile(b.script, script, 0o644); err != nil {
		return err
	}
	b.progress("building")
	for _, p := range []struct {
		path *string
		name string
	}{{&b.service, "cmd/plantstore"}, {&b.bare, "cmd/bench/bare"}, {&b.proxy, "cmd/bench/distance"}} {
		if *p.path, err = programs.Build(ctx, folder, programs.Spec{Package: p.name}); err != nil {
			return err
		}
	}
	if b.server, err = localpg.Start(ctx, localpg.Options{Settings: serverSettings}); err != nil {
		return err
	}
	sections, err := b.measure(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx) // the reason of all failures
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "`go run ./cmd/bench %s`, %s. %s, PostgreSQL %s, %d plants. Figures are medians of %d rounds of %s.\n\n",
		strings.Join(args, " "), time.Now().UTC().Format("2 January 2006"), machine(), b.server.Version(), plants, b.rounds, b.duration)
	_, err = io.WriteString(stdout, markdown(sections, b.clients))
	return err
}
