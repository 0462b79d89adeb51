// Command drill runs the service as a small production runs it, three replicas behind
// HAProxy on three PostgreSQL servers that Patroni and etcd keep, each on a machine of its
// own, and has everything happen to them that operators do and machines suffer. Clients
// delete plants all the while. In the end each answer that they got is held against the
// database, as cmd/chaos does it.
//
// The machines are network namespaces of Linux: it runs as root, and leaves nothing
// behind. The exit code is 1 when a promise was broken, a client noticed what was planned,
// or an answer took longer than a request may. README.md tells more.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"plantstore/cmd/internal/programs"
	"plantstore/cmd/internal/witness"
	"plantstore/internal/localpg"
)

// This program plays three parts, told apart by what it is called as: the one that people
// call, outside, and in namespaces of its own those below.
const (
	firstPart  = "drill: first process" // sets mounts up, builds the service, starts the drill, and buries orphans
	secondPart = "drill: the drill itself"
)

// room is where the drill keeps its files, in there.
const room = "/dev/shm/drill"

// errFailed says that what went wrong has been told already.
var errFailed = errors.New("told already")

func main() {
	var err error
	switch os.Args[0] {
	case firstPart:
		var code int
		if code, err = beFirst(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err == nil {
			os.Exit(code)
		}
	case secondPart:
		err = inside(context.Background(), os.Args[1:], os.Stdout, os.Stderr)
	default:
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		err = outside(ctx, os.Args[1:], os.Stderr)
		stop()
	}
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errFailed):
		os.Exit(1)
	default:
		fmt.Fprintf(os.Stderr, "drill: %v\n", err)
		os.Exit(1)
	}
}

// A config says what a drill is like.
type config struct {
	demand
	events      []event
	synchronous bool
	timeout     time.Duration // of a request
	programs    string        // folder of etcd, Patroni, HAProxy and ip
	logs        string        // folder for the members' logs; empty: nowhere
}

func parse(args []string, stderr io.Writer) (c config, err error) {
	flags := flag.NewFlagSet("drill", flag.ContinueOnError)
	flags.SetOutput(stderr)
	synchronous, list := "on", "all"
	flags.StringVar(&synchronous, "synchronous", synchronous, "on, or off: then commits are lost, and the checker has to see it")
	flags.StringVar(&list, "events", list, "events with commas between, or all")
	flags.DurationVar(&c.timeout, "request-timeout", 40*time.Second, "PLANTSTORE_REQUEST_TIMEOUT of the replicas")
	flags.IntVar(&c.clients, "clients", 16, "how many clients delete, each with a key")
	flags.IntVar(&c.rate, "rate", 100, "deletions a second at most, of all clients together")
	flags.StringVar(&c.programs, "programs", "", "folder of etcd, Patroni, HAProxy and ip, as .ci/drill-programs prints it")
	flags.StringVar(&c.logs, "logs", "", "new folder for the members' logs")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	if flags.NArg() > 0 {
		return c, fmt.Errorf("there is no argument %q: events have commas between, and no blanks", flags.Arg(0))
	}
	if synchronous != "on" && synchronous != "off" {
		return c, fmt.Errorf("-synchronous is %q: want on or off", synchronous)
	}
	c.synchronous = synchronous == "on"
	if c.clients < 1 || c.clients > 1000 || c.rate < 1 || c.rate > 1000 {
		return c, errors.New("-clients and -rate must be from 1 to 1000: all plants are in memory")
	}
	if c.timeout < time.Second || c.timeout > 50*time.Second {
		return c, errors.New("-request-timeout must be from 1s to 50s, as HAProxy waits for 60s")
	}
	if c.programs == "" {
		return c, errors.New("-programs is not set: run 'make drill'")
	}
	if c.events, err = chosen(list); err != nil {
		return c, err
	}
	if !c.synchronous && !slices.ContainsFunc(c.events, func(e event) bool { return e.kind == loss }) {
		return c, errors.New("-synchronous off is there to see a loss, and none of -events loses anything: add primary-cut")
	}
	return c, nil
}

// outside runs the drill in namespaces of its own.
func outside(ctx context.Context, args []string, stderr io.Writer) error {
	if _, err := parse(args, stderr); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("the drill makes networks and processes of its own, which takes root: run it as root")
	}
	return enclose(ctx)
}

//go:embed next_release.sql
var nextMigration string

// The service's programs in the room: this release, and a next one.
const oldRelease, nextRelease = "old", "next"

// build builds the service.
func build(ctx context.Context, stdout io.Writer) error {
	fmt.Fprintln(stdout, "drill: building the service, this release and a next one")
	for _, name := range []string{"TMPDIR", "GOTMPDIR"} { // what is killed leaves nothing behind
		if err := os.Setenv(name, room); err != nil {
			return err
		}
	}
	for _, spec := range []programs.Spec{
		{Package: "cmd/plantstore", Name: oldRelease},
		{Package: "cmd/plantstore", Name: nextRelease, Added: map[string]string{"migrations/00999_next_release.sql": nextMigration}},
	} {
		if _, err := programs.Build(ctx, room, spec); err != nil {
			return err
		}
	}
	return nil
}

// inside is the drill itself.
func inside(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	folders := localpg.ProgramFolders(ctx)
	if len(folders) == 0 {
		return localpg.ErrNoBinaries
	}
	d := &drill{old: filepath.Join(room, oldRelease), next: filepath.Join(room, nextRelease)}
	logs := room
	if c.logs != "" {
		syscall.CloseOnExec(3)
		logs = "/proc/self/fd/3" // see beFirst
	}
	n, err := newNetwork(ctx, c.programs, logs)
	if err != nil {
		return err
	}
	patroni, err := versionOf(ctx, c.programs, "patroni", "--version")
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "drill: starting etcd, Patroni and PostgreSQL")
	if d.cluster, err = startCluster(ctx, n, folders[0], etcdAPI(patroni), c.synchronous); err != nil {
		return err
	}
	if err := d.makeStore(ctx); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "drill: starting the replicas and HAProxy")
	if d.front, err = startFront(ctx, n, d.cluster, d.old, c.timeout); err != nil {
		return err
	}
	r := &report{synchronous: c.synchronous, timeout: c.timeout, demand: c.demand}
	if r.versions, err = d.versions(ctx, c.programs); err != nil {
		return err
	}
	if d.load, err = startLoad(ctx, d.front, c.demand, time.Duration(len(c.events)+1)*longest); err != nil {
		return err
	}
	for _, e := range c.events {
		fmt.Fprintf(stdout, "drill: %s\n", e.what)
		h, err := d.happen(ctx, e)
		r.events = append(r.events, h)
		if err != nil { // what came of it until then is told, and checked
			r.failure = err
			break
		}
	}
	r.history, r.unchecked = d.load.end()
	r.failure = errors.Join(r.failure, d.front.stop())
	if r.unchecked == nil {
		r.state, r.unchecked = d.rest(ctx)
	}
	if r.unchecked == nil {
		r.violations = witness.Run{Principal: principal, History: r.history}.Check(r.state, 1-bystanders, d.load.crowd.Last)
	}
	r.print(stdout)
	return r.verdict()
}

// versionOf is the first version number that a program tells of itself.
func versionOf(ctx context.Context, folder, program, how string) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(folder, program), how).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, how, err)
	}
	return string(regexp.MustCompile(`[0-9]+\.[0-9.]*[0-9]`).Find(out)), nil
}

// versions are those of all parts.
func (d *drill) versions(ctx context.Context, folder string) (string, error) {
	var postgres string
	if err := queryRow(ctx, d.url("postgres", database), `SELECT pg_catalog.split_part(pg_catalog.current_setting('server_version'), ' ', 1)`, &postgres); err != nil {
		return "", err
	}
	all := "PostgreSQL " + postgres
	for _, part := range [][3]string{{"Patroni", "patroni", "--version"}, {"etcd", "etcd", "--version"}, {"HAProxy", "haproxy", "-v"}} {
		version, err := versionOf(ctx, folder, part[1], part[2])
		if err != nil {
			return "", err
		}
		all += ", " + part[0] + " " + version
	}
	return all, nil
}
