// Command run starts a PostgreSQL for the tests, runs a command with the server's URL in
// TEST_DATABASE_URL, and stops the server. So all packages under test share one server:
//
//	go run ./internal/pgtest/run go test ./...
//
// PLANTSTORE_TEST_POSTGRES=container or =local forces the source. Otherwise it is the server
// in TEST_DATABASE_URL, a container where a Docker engine has or pulls the image, or this
// machine's programs. PLANTSTORE_TEST_POSTGRES_IMAGE names another image than
// postgres:18-alpine.
//
// SIGINT, SIGTERM, SIGHUP and SIGPIPE are passed on to the command, so no server is left
// behind. The exit code is the command's, or 1 when it could not be run.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"plantstore/internal/localpg"
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

// A server is the PostgreSQL that the tests use.
type server struct {
	url    string // of a superuser
	source string
	stop   func() error
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
	s, err := start(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	fmt.Printf("postgres for the tests: %s\n", s.source)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The source is chosen: a run within the command uses the same server.
	cmd.Env = append(localpg.Environ("PLANTSTORE_TEST_POSTGRES="), "TEST_DATABASE_URL="+s.url)
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

func start(ctx context.Context) (*server, error) {
	image := cmp.Or(os.Getenv("PLANTSTORE_TEST_POSTGRES_IMAGE"), "postgres:18-alpine")
	switch source := os.Getenv("PLANTSTORE_TEST_POSTGRES"); {
	case source == "container":
		return startContainer(ctx, image)
	case source == "local":
		return startLocal(ctx)
	case source != "":
		return nil, fmt.Errorf("PLANTSTORE_TEST_POSTGRES is %q, want container, local or nothing", source)
	case os.Getenv("TEST_DATABASE_URL") != "":
		return &server{url: os.Getenv("TEST_DATABASE_URL"), source: "TEST_DATABASE_URL", stop: func() error { return nil }}, nil
	}
	s, containerErr := startContainer(ctx, image)
	if containerErr == nil {
		return s, nil
	}
	s, localErr := startLocal(ctx)
	if localErr == nil {
		return s, nil
	}
	return nil, fmt.Errorf("no PostgreSQL for the tests: start Docker, install PostgreSQL (apt-get install postgresql), "+
		"or set TEST_DATABASE_URL to a superuser's URL: %w", errors.Join(containerErr, localErr))
}

func startLocal(ctx context.Context) (*server, error) {
	s, err := localpg.Start(ctx, localpg.Options{Dir: memory(), Settings: pgtest.Settings()})
	if err != nil {
		return nil, fmt.Errorf("local programs: %w", err)
	}
	source := fmt.Sprintf("local programs %s, PostgreSQL %s", s.Programs(), s.Version())
	return &server{url: s.URL("postgres", "postgres"), source: source, stop: s.Close}, nil
}

// memory returns a folder in memory, where hundreds of databases take two thirds of the time. If
// TMPDIR is set or the folder has too little space, it returns an empty text.
func memory() string {
	const folder, needed = "/dev/shm", 8 << 30
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(folder, &fs) != nil || uint64(fs.Bavail)*uint64(fs.Bsize) < needed {
		return ""
	}
	return folder
}
