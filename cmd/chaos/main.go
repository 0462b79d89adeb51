// Command chaos breaks the plant store in every way it can, at random, while
// clients delete plants, and then checks that no answer was a lie: each answer
// that a client got is held against the rows and the ledger in the database, in
// the manner of Jepsen's set test. The service is the real program, the
// database a real PostgreSQL with a synchronous standby from this machine's
// binaries, and the network between them a proxy. All of it is on loopback.
//
// The promises that are checked are listed at violation. The exit code is 1 when
// one was broken or a kind of fault never happened. README.md tells more.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"plantstore/cmd/internal/programs"
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
		fmt.Fprintf(os.Stderr, "chaos: %v\n", err)
		os.Exit(1)
	}
}

// command runs the program that args ask for. The end of ctx ends the faults
// early.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	c := config{late: true}
	var history, drawing, plot string
	var verbose bool
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.DurationVar(&c.duration, "duration", 20*time.Second, "how long to break things")
	flags.Uint64Var(&c.seed, "seed", 0, "where the random faults start from; 0: another one each time")
	flags.StringVar(&c.faults, "faults", "all", "kinds of faults with commas between, all, or network")
	flags.DurationVar(&c.every, "every", 4*time.Second, "how often each kind of fault comes")
	flags.IntVar(&c.clients, "clients", 192, "how many clients delete; every fourth sends no key")
	flags.IntVar(&c.tellers, "tellers", 4, "how many do all sorts of things to one plant after the other, to be held against a model")
	flags.IntVar(&c.rate, "rate", 500, "deletions a second at most, of all clients together")
	flags.StringVar(&c.binary, "binary", "", "the plantstore program to test; by default it is built from this tree")
	flags.BoolVar(&c.race, "race", false, "build the program with the race detector")
	flags.StringVar(&c.sabotage, "sabotage", "", "sabotage the program when it is built: "+strings.Join(programs.Sabotages(), " or "))
	flags.StringVar(&history, "history", "", "file for every fault and answer, one JSON object a line")
	flags.StringVar(&drawing, "drawing", "chaos-violation.html", "file for a drawing of a tale that can't be true, if there is one")
	flags.StringVar(&plot, "plot", "", "file for a plot of every answer's latency, with the faults, as in chaos.svg")
	flags.BoolVar(&verbose, "v", false, "show what the service and the servers log")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.duration < time.Second || c.clients < 1 || c.tellers < 0 || c.rate < 1 || c.every <= 0 {
		return errors.New("-duration must be at least 1s, and -clients, -rate and -every positive")
	}
	if c.seed == 0 {
		c.seed = newSeed()
	}
	if _, err := chosen(c.faults, true); err != nil {
		return err
	}
	if c.sabotage != "" && !slices.Contains(programs.Sabotages(), c.sabotage) {
		return fmt.Errorf("there is no sabotage %q", c.sabotage)
	}
	if verbose {
		c.log = stderr
	}
	fmt.Fprintf(stdout, "chaos: seed %d, for %v\n", c.seed, c.duration)
	record := io.Discard
	if history != "" {
		f, createErr := os.Create(history) // now: a long run must not be in vain
		if createErr != nil {
			return createErr
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		record = f
	}

	cluster, err := startCluster(ctx, c.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.close()) }()
	r, err := run(ctx, c, cluster)
	if err != nil {
		return err
	}
	r.print(stdout)
	if plot != "" {
		err = r.plot(plot)
	}
	return errors.Join(err, r.verdict(), r.draw(stdout, drawing), writeHistory(record, r.events.faults, r.events.history, r.events.tales))
}

// newSeed returns a seed that is short enough to be copied by hand.
func newSeed() uint64 { return rand.Uint64N(1_000_000_000) }
