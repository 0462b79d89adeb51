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
func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c := config{every: 4 * time.Second, clients: 192, players: 4, late: true}
	var verbose bool
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.DurationVar(&c.duration, "duration", 20*time.Second, "how long to break things")
	flags.Uint64Var(&c.seed, "seed", newSeed(), "of the random choices")
	flags.StringVar(&c.faults, "faults", "all", "kinds of faults with commas between, or all")
	flags.StringVar(&c.sabotage, "sabotage", "", "sabotage the service when it is built: "+strings.Join(programs.Sabotages(), " or "))
	flags.BoolVar(&c.race, "race", false, "build the service with the race detector")
	flags.BoolVar(&verbose, "v", false, "show what the service and the servers log")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.duration < time.Second {
		return errors.New("-duration must be at least 1s")
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
	return r.verdict()
}

// newSeed returns a seed that is short enough to be copied by hand.
func newSeed() uint64 { return rand.Uint64N(1_000_000_000) }
