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
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"plantstore/cmd/internal/programs"
	"plantstore/internal/localpg"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop() // not before: a second Ctrl-C must not interrupt the cleanup
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// A config has the flags.
type config struct {
	duration, delay time.Duration
	rounds, pool    int
	clients         []int
	rows            []string
	beside          string
	watch           bool
}

func parse(args []string, stderr io.Writer) (c config, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.DurationVar(&c.duration, "duration", 2*time.Second, "duration of each measurement, in whole seconds")
	flags.IntVar(&c.rounds, "rounds", 5, "number of rounds")
	clients := flags.String("clients", "1,8,32,128", "numbers of clients, separated by commas")
	rows := flags.String("rows", "beside,away,commits,referred", "what to measure: rows of the table, separated by commas")
	flags.DurationVar(&c.delay, "delay", 3*time.Millisecond, "round trip to the database in the row away")
	flags.StringVar(&c.beside, "beside", "", "path of another build of the service, to be measured in the same rounds")
	flags.BoolVar(&c.watch, "watch", false, "give each plant a row that leaves with it; the other database watches that table")
	flags.IntVar(&c.pool, "pool", 0, "database connections of the bare handler; 0: the fastest of 8, 16, 32 and 64")
	flags.BoolFunc("quick", "rough: -rounds 1 -duration 1s -pool 32; flags behind it override these", func(string) error {
		c.rounds, c.duration, c.pool = 1, time.Second, 32
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	for r := range strings.SplitSeq(*rows, ",") {
		if !slices.Contains([]string{"beside", "away", "commits", "referred"}, r) {
			return c, fmt.Errorf("-rows: there is no row %q", r)
		}
		c.rows = append(c.rows, r)
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
	defer os.RemoveAll(folder)
	b := &bench{config: c, folder: folder, script: filepath.Join(folder, "load.lua"), progress: func(format string, a ...any) {
		fmt.Fprintf(stderr, time.Now().Format("15:04:05 ")+format+"\n", a...)
	}}
	if err := os.WriteFile(b.script, script, 0o644); err != nil {
		return err
	}
	load := match("/proc/loadavg", `^(\S+)`)
	b.progress("building")
	if b.service, err = programs.Build(ctx, folder, programs.Spec{Package: "cmd/plantstore"}); err != nil {
		return err
	}
	if b.bare, err = programs.Build(ctx, folder, programs.Spec{Package: "cmd/bench/bare"}); err != nil {
		return err
	}
	if b.server, err = localpg.Start(ctx, localpg.Options{Settings: serverSettings()}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.server.Close()) }()
	rows, err := b.measure(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx) // the reason of all failures
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "`go run ./cmd/bench %s`, %s. %s, %d cores for load, service and database together, a load of %s before the run. "+
		"Linux %s, %s, PostgreSQL %s, %d plants. Figures are medians of %d rounds of %s.\n\n",
		strings.Join(args, " "), time.Now().UTC().Format("2 January 2006"), match("/proc/cpuinfo", `model name\s*: (.*)`), runtime.NumCPU(), load,
		match("/proc/sys/kernel/osrelease", `(.*)`), runtime.Version(), b.server.Version(), plants, b.rounds, b.duration)
	_, err = io.WriteString(stdout, markdown(rows, b.clients))
	return err
}
