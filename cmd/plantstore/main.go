// Command plantstore deletes plants over HTTP, and has what running that takes:
// migrations, tokens, the ledger of deletions, an examination of the database, and
// a private database for trying it out. It is wiring: one file a command, with the
// command's flags and output.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"plantstore/internal/auth"
	"plantstore/internal/migrate"
)

func main() {
	identify()
	tuneRuntime()
	dropEmptyVariables()
	// The first signal asks for an orderly end, a second one ends at once. The end of
	// the terminal is told by the kernel and by the shell, and stays a first one. So is
	// what comes along with the first.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, endings()...)
	ctx, end := context.WithCancel(context.Background())
	again := make(chan os.Signal, 1)
	go func() {
		<-signals
		first := time.Now()
		end()
		for s := range signals {
			if s == syscall.SIGHUP || time.Since(first) < togetherFor {
				continue
			}
			select {
			case again <- s:
			default:
			}
		}
	}()
	err := run(ctx, again, os.Args[1:], os.Stdout, os.Stderr)
	if err == nil {
		return
	}
	e, ok := errors.AsType[*exitError](err)
	if !ok {
		e = &exitError{1, err}
	}
	if e.err != nil {
		told := make(chan struct{})
		go func() {
			defer close(told)
			fmt.Fprintf(os.Stderr, "plantstore: %v\n", e.err)
		}()
		select {
		case <-told:
		case <-time.After(lastLineTimeout):
		}
	}
	os.Exit(e.code)
}

// lastLineTimeout bounds how long the end waits for who reads standard error.
const lastLineTimeout = 2 * time.Second

// togetherFor is how long after a signal another one means the same. Programs that start
// others, such as timeout, send theirs to the process, and again to its group.
const togetherFor = 500 * time.Millisecond

// endings are the signals that ask for an end: also the one that comes when the
// terminal is closed, unless nohup or the like has it ignored.
func endings() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}

// tuneRuntime sets Go's own settings where the environment does not. The heap is a
// few megabytes, so collecting it half as often costs a few more, and is 4 to 5 %
// faster.
func tuneRuntime() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
}

// An exitError ends the program with a code of its own.
type exitError struct {
	code int
	err  error // nil: nothing more to say
}

func (e *exitError) Error() string { return fmt.Sprint(e.err) }
func (e *exitError) Unwrap() error { return e.err }

const exitUsage = 2

type commands struct {
	Dev         devCommand         `cmd:"" help:"Try it out: a private database, sample plants, a token, and curl lines to paste. Removes everything on exit."`
	Serve       serveCommand       `cmd:"" help:"Serve deletions over HTTP."`
	Migrate     migrateCommand     `cmd:"" help:"Change the database schema, or look at it."`
	Token       tokenCommand       `cmd:"" help:"Make principals, issue their tokens and revoke them."`
	Healthcheck healthcheckCommand `cmd:"" help:"Ask a running service whether it is ready; exit code 0 if so."`
	Deletions   deletionsCommand   `cmd:"" help:"Look into the ledger of deletions, restore plants from it, export it and purge it."`
	Doctor      doctorCommand      `cmd:"" help:"Examine the database; say what is wrong and what helps. Exit code 0: nothing, 3: warnings, 1: problems."`
	Completion  completionCommand  `cmd:"" help:"Print what completes this command line in bash and zsh: source <(plantstore completion)."`
	Complete    completeCommand    `cmd:"" hidden:"" help:"Print the words that may come next."`
	Version     versionCommand     `cmd:"" help:"Print version, commit, Go and newest migration."`

	VersionFlag kong.VersionFlag `name:"version" help:"Print the version, and end."`
}

// Where dev listens, unless told otherwise.
const devAddr, devAdminAddr = "127.0.0.1:8080", "127.0.0.1:9090"

// helpVariables are what the texts of help take from the code.
func helpVariables() kong.Vars {
	return kong.Vars{"scope": auth.ScopeDelete, "version": versionText(), "dev_addr": devAddr, "dev_admin_addr": devAdminAddr,
		"lock_timeout": migrate.DefaultLockTimeout.String(), "lock_attempts": strconv.Itoa(migrate.DefaultLockAttempts)}
}

// run runs the command that args name. Configuration comes from flags and the
// process's environment, which libpq's PG* variables are part of. The end of ctx asks
// for an orderly end, and what comes on again for one without.
func run(ctx context.Context, again <-chan os.Signal, args []string, stdout, stderr io.Writer) error {
	helped := false
	console := &console{out: stdout, err: stderr, nowhere: isNowhere(stdout)}
	parser, err := kong.New(&commands{},
		kong.Name("plantstore"),
		kong.Description("Deletes plants over HTTP: authorised, recorded, and told truthfully."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { helped = true }),
		helpVariables(),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(console),
	)
	if err != nil {
		return err
	}
	command, err := parser.Parse(args)
	if helped {
		return nil
	}
	if err != nil {
		if parse, ok := errors.AsType[*kong.ParseError](err); ok && isIncomplete(parse.Context) {
			parser.Stdout = stderr
			if err := parse.Context.PrintUsage(true); err != nil {
				return err
			}
			return &exitError{exitUsage, err}
		}
	}
	// A misspelt setting goes first: it may be why another one is missing.
	warnings, misspelt := checkVariables(parser.Model, os.Environ())
	if err = cmp.Or(misspelt, err); err != nil {
		return &exitError{exitUsage, err}
	}
	console.warnings = warnings
	name := command.Selected().Name
	if name != "serve" && name != "dev" { // those have a log
		for _, w := range console.warnings {
			fmt.Fprintf(stderr, "plantstore: warning: %s\n", w)
		}
	}
	if isTerminal(stderr) && !tellsItself(name) {
		console.line = newStatusLine(stderr, command.Selected().FullPath())
		defer console.line.end()
		console.out, console.err = console.line.over(stdout), console.line.over(stderr)
	}
	// What a command tells may be all that there is of it, such as what a restore could not
	// bring back.
	var untold error
	console.out = watched{console.out, func(err error) { untold = cmp.Or(untold, err) }}
	done := make(chan error, 1)
	go func() { done <- command.Run() }()
	if name == "dev" {
		again = nil // it must not leave its database behind, and it needs no more than seconds
	}
	select {
	case err := <-done:
		if err == nil && untold != nil && name != "healthcheck" { // which tells it with its exit code
			return fmt.Errorf("'%s' is done, but not all that it told could be written: %w", command.Selected().FullPath(), untold)
		}
		return err
	case s := <-again:
		return fmt.Errorf("ended at once by a second signal (%v): what was under way was cut off", s)
	}
}

// tellsItself reports whether a command tells in its own way what it is at.
func tellsItself(name string) bool {
	return slices.Contains([]string{"serve", "healthcheck", "up", "down"}, name)
}

// isIncomplete reports whether a command or its argument is missing, or there is no
// such command: then the usage helps. Anything else is told in one line.
func isIncomplete(c *kong.Context) bool {
	selected := c.Selected()
	if selected == nil || len(selected.Children) > 0 {
		return true
	}
	given := slices.ContainsFunc(c.Path, func(p *kong.Path) bool { return p.Positional != nil })
	return c.Error == nil && len(selected.Positional) > 0 && !given
}
