// Command chaos breaks the plant store in every way it can, at random, while clients delete
// plants. Then it checks that no answer was a lie: it compares each answer with the rows and
// the ledger in the database, in the manner of Jepsen's set test. The service is the real
// program, the database a real PostgreSQL with a synchronous standby from this machine's
// programs, and the network between them a proxy. All of it is on loopback.
//
// The promises are listed at witness.Violation and check. The exit code is 1 when one was
// broken or a kind of fault never happened. README.md tells more.
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
	// A second Ctrl-C must not leave anything behind: signals are taken to the end.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "chaos: %v\n", err)
		os.Exit(1)
	}
}

// command runs the program. The end of ctx ends the faults early.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	c := config{late: true}
	var drawing string
	var verbose bool
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.DurationVar(&c.duration, "duration", 20*time.Second, "how long to break things")
	flags.Uint64Var(&c.seed, "seed", 0, "of the random choices; 0: another one each time")
	flags.StringVar(&c.faults, "faults", "all", "kinds of faults with commas between, or all")
	flags.DurationVar(&c.every, "every", 4*time.Second, "how often each kind of fault comes")
	flags.IntVar(&c.clients, "clients", 192, "how many clients delete; every fourth sends no key")
	flags.IntVar(&c.players, "players", 4, "how many do all sorts of things to one plant after the other")
	flags.IntVar(&c.rate, "rate", 500, "deletions a second at most, of all clients together")
	flags.BoolVar(&c.race, "race", false, "build the service with the race detector")
	flags.StringVar(&c.sabotage, "sabotage", "", "sabotage the service when it is built: "+strings.Join(programs.Sabotages(), " or "))
	flags.StringVar(&drawing, "drawing", "chaos-violation.html", "file for a drawing of a scenario that cannot be true")
	flags.BoolVar(&verbose, "v", false, "show what the service and the servers log")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.duration < time.Second || c.clients < 1 || c.players < 0 || c.rate < 1 || c.every <= 0 {
		return errors.New("-duration must be at least 1s, and -clients, -rate and -every positive")
	}
	if c.seed == 0 {
		c.seed = newSeed()
	}
	if _, err := chosen(c.faults); err != nil {
		return err
	}
	if c.sabotage != "" && !slices.Contains(programs.Sabotages(), c.sabotage) {
		return fmt.Errorf("there is no sabotage %q", c.sabotage)
	}
	if verbose {
		c.log = stderr
	}
	fmt.Fprintf(stdout, "chaos: seed %d, for %v\n", c.seed, c.duration)
	r, err := run(ctx, c)
	if err != nil {
		return err
	}
	r.print(stdout)
	return errors.Join(r.outcome(), r.draw(stdout, drawing))
}

// newSeed returns a seed that is short enough to be copied by hand.
func newSeed() uint64 { return rand.Uint64N(1_000_000_000) }
