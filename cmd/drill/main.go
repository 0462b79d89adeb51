// Command drill runs the service as a small production does: three replicas behind HAProxy on
// three PostgreSQL servers under Patroni and etcd, each on a machine of its own. Clients
// delete plants while machines fail and operators restart, switch over and upgrade. In the end
// it compares each answer with the database, as cmd/chaos does.
//
// The machines are network namespaces of Linux: it runs as root, and leaves nothing behind.
// The exit code is 1 when a promise was broken, a client noticed a planned event, or an answer
// took longer than a request may. README.md tells more.
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

// The program starts itself twice more, in namespaces of its own. os.Args[0] says which
// process it is.
const (
	firstPart  = "drill: first process" // mounts, builds the service, starts the drill, and waits for orphans
	secondPart = "drill: the drill itself"
)

// room is the folder of the drill's files, in these namespaces.
const room = "/dev/shm/drill"

// errFailed is an error that was printed already.
var errFailed = errors.New("printed already")

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
	for _, name := range []string{"TMPDIR", "GOTMPDIR"} { // so that nothing is left behind
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
	r := &report{synchronous: c.synchronous, timeout: c.timeout}
	if r.versions, err = d.versions(ctx, c.programs); err != nil {
		return err
	}
	if d.load, err = startLoad(ctx, d.front, len(c.events)); err != nil {
		return err
	}
	for _, e := range c.events {
		fmt.Fprintf(stdout, "drill: %s\n", e.what)
		h, err := d.happen(ctx, e)
		r.events = append(r.events, h)
		if err != nil { // what happened until then is reported and checked
			r.failure = err
			break
		}
	}
	r.history, err = d.load.end()
	r.failure = errors.Join(r.failure, d.front.stop())
	if err == nil {
		r.state, err = d.rest(ctx)
	}
	if err == nil {
		r.checked = true
		r.violations = witness.Run{Principal: principal, History: r.history}.Check(r.state, 1-bystanders, d.load.crowd.Last)
	} else {
		r.failure = errors.Join(r.failure, fmt.Errorf("the answers were not checked: %w", err))
	}
	r.print(stdout)
	return r.outcome()
}

// versionOf is the first version number that a program prints.
func versionOf(ctx context.Context, folder, program, how string) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(folder, program), how).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, how, err)
	}
	return string(regexp.MustCompile(`[0-9]+\.[0-9.]*[0-9]`).Find(out)), nil
}

// versions names the versions of all parts.
func (d *drill) versions(ctx context.Context, folder string) (string, error) {
	postgres, err := witness.Value[string](ctx, d.url("postgres", database), `SELECT split_part(current_setting('server_version'), ' ', 1)`)
	all := "PostgreSQL " + postgres
	for _, part := range [][3]string{{"Patroni", "patroni", "--version"}, {"etcd", "etcd", "--version"}, {"HAProxy", "haproxy", "-v"}} {
		version, partErr := versionOf(ctx, folder, part[1], part[2])
		all, err = all+", "+part[0]+" "+version, errors.Join(err, partErr)
	}
	return all, err
}
