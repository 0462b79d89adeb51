// Command plantstore deletes plants over HTTP. It also has commands for migrations, tokens, the
// ledger of deletions, a doctor, and a private database for trying it out. Each command has a
// file with its flags and output.
package main

import (
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
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(150) // the heap is small: a few per cent faster for three megabytes
	}
	unsetEmptyVariables()
	endings := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		endings = append(endings, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), endings...)
	// A second signal ends the process at once, but not one that comes with the first:
	// timeout, for one, sends each signal twice.
	context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, stop) })
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	if err == nil {
		return
	}
	e, ok := errors.AsType[*exitError](err)
	if !ok {
		e = &exitError{1, err}
	}
	if e.err != nil {
		fmt.Fprintf(os.Stderr, "plantstore: %v\n", e.err)
	}
	os.Exit(e.code)
}

// An exitError ends the program with an exit code of its own.
type exitError struct {
	code int
	err  error // nil: everything is printed already
}

func (e *exitError) Error() string { return fmt.Sprint(e.err) }
func (e *exitError) Unwrap() error { return e.err }

const exitUsage = 2

type commands struct {
	Dev         devCommand         `cmd:"" help:"Try it out: a private database, sample plants, a token, and curl lines to paste. Removes everything at the end."`
	Serve       serveCommand       `cmd:"" help:"Serve deletions over HTTP."`
	Migrate     migrateCommand     `cmd:"" help:"Change the database schema, or look at it."`
	Token       tokenCommand       `cmd:"" help:"Create principals, issue and revoke their tokens, and limit what they delete."`
	Deletions   deletionsCommand   `cmd:"" help:"Search the ledger of deletions, restore plants from it, and purge it."`
	Ledger      ledgerCommand      `cmd:"" help:"Choose the tables whose rows come back with the plants that took them along."`
	Doctor      doctorCommand      `cmd:"" help:"Check the database, and say what is wrong and how to fix it."`
	Healthcheck healthcheckCommand `cmd:"" help:"Ask a running service whether it is ready; exit code 0 if so."`
	Version     versionCommand     `cmd:"" help:"Print version, commit, Go and newest migration."`

	VersionFlag kong.VersionFlag `name:"version" help:"Print the version."`
}

// helpVariables are values of the code in the texts of help.
func helpVariables() kong.Vars {
	return kong.Vars{"scope": auth.ScopeDelete, "version": versionText(), "jwt_prefix": auth.JWTPrefix, "dev_addr": devAddr, "dev_admin_addr": devAdminAddr,
		"lock_timeout": migrate.DefaultLockTimeout.String(), "lock_attempts": strconv.Itoa(migrate.DefaultLockAttempts)}
}

// run runs the command that args name until it is done or ctx ends. Settings come from flags
// and the environment.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	helped := false
	console := &console{in: stdin, out: stdout, err: stderr}
	parser := kong.Must(&commands{},
		kong.Name("plantstore"),
		kong.Description("Deletes plants over HTTP: authenticated, recorded, and reversible."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { helped = true }),
		helpVariables(),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(console),
	)
	command, err := parser.Parse(args)
	if helped {
		return nil
	}
	console.warnings = unknownVariables(parser.Model, os.Environ())
	if err == nil && slices.Contains([]string{"serve", "dev"}, command.Selected().Name) {
		return command.Run() // serve and dev log the warnings
	}
	for _, w := range console.warnings {
		fmt.Fprintf(stderr, "plantstore: warning: %s\n", w)
	}
	if err == nil {
		return command.Run()
	}
	// Where the command is missing, or there is no such command, the usage helps.
	if e, ok := errors.AsType[*kong.ParseError](err); ok && (e.Context.Selected() == nil || len(e.Context.Selected().Children) > 0) {
		parser.Stdout = stderr
		if err := e.Context.PrintUsage(true); err != nil {
			return err
		}
	}
	return &exitError{exitUsage, err}
}
