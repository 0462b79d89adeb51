// Command run starts the PostgreSQL that the tests use, says which, runs a
// command with the server's URL in TEST_DATABASE_URL, and ends the server. So
// all packages under test share one server:
//
//	go run ./internal/pgtest/run go test ./...
//
// SIGINT, SIGTERM, SIGHUP and SIGPIPE are passed on to the command: whatever happens to
// the terminal or to the reader of the output, no server is left behind. The exit code is
// the command's, or 1 when it could not be run.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"plantstore/internal/pgtest"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(args []string) (code int, err error) {
	if len(args) == 0 {
		return 0, errors.New("usage: run COMMAND [ARGUMENT...]")
	}
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, ends...)
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	if err := useMemory(); err != nil {
		return 0, err
	}
	server, err := pgtest.StartServer(ctx, os.Getenv)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	fmt.Println("postgres for the tests:", server)

	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The choice of a server is made.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "PLANTSTORE_TEST_POSTGRES=")
	})
	cmd.Env = append(cmd.Env, "TEST_DATABASE_URL="+server.URL)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // fails only when the command has ended
		}
	}()
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}
