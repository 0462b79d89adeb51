// Command drill runs the service as a small production does: three replicas behind HAProxy on
// three PostgreSQL servers under Patroni and etcd, each on a machine of its own. Clients
// delete plants while machines fail and operators switch over and upgrade. In the end it
// compares each answer with the database, as cmd/chaos does.
//
// The machines are network namespaces of Linux: it runs as root. The exit code is 1 when a
// promise was broken, a client noticed a planned event, or an answer took longer than a
// request may. README.md tells more.
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
	"slices"
	"syscall"

	"plantstore/cmd/internal/programs"
	"plantstore/cmd/internal/witness"
	"plantstore/internal/localpg"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	c, err := parse(os.Args[1:], os.Stderr)
	switch {
	case err != nil:
	case os.Getenv(enclosed) == "":
		err = enclose(ctx, c)
	default:
		err = drillIn(ctx, c, os.Stdout)
	}
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errFailed):
		os.Exit(1)
	default:
		fmt.Fprintf(os.Stderr, "drill: %v\n", err)
		os.Exit(1)
	}
}

// A config has the flags of a drill.
type config struct {
	events      []event
	synchronous bool
	programs    string // folder of etcd, Patroni, HAProxy and ip
	logs        string // folder for the members' logs; empty: nowhere
}

func parse(args []string, stderr io.Writer) (c config, err error) {
	flags := flag.NewFlagSet("drill", flag.ContinueOnError)
	flags.SetOutput(stderr)
	list, synchronous := "all", "on"
	flags.StringVar(&list, "events", list, "events with commas between, or all")
	flags.StringVar(&synchronous, "synchronous", synchronous, "on, or off: then commits are lost, and the checker has to see it")
	flags.StringVar(&c.programs, "programs", "", "folder of etcd, Patroni, HAProxy and ip, as .ci/drill-programs prints it")
	flags.StringVar(&c.logs, "logs", "", "folder for the members' logs")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	c.synchronous = synchronous == "on"
	switch c.events, err = programs.Named("event", allEvents(), list, func(e event) string { return e.name }); {
	case err != nil:
		return c, err
	case flags.NArg() > 0:
		return c, fmt.Errorf("there is no argument %q: events have commas between, and no blanks", flags.Arg(0))
	case !c.synchronous && synchronous != "off":
		return c, fmt.Errorf("-synchronous is %q: want on or off", synchronous)
	case c.programs == "":
		return c, errors.New("-programs is not set: run 'make drill'")
	case !c.synchronous && !slices.ContainsFunc(c.events, func(e event) bool { return e.kind == loss }):
		return c, errors.New("-synchronous off is there to see a loss, and none of -events loses anything: add primary-cut")
	}
	return c, nil
}

// errFailed is returned for an enclosed drill that failed and has printed the reason.
var errFailed = errors.New("printed already")

// enclosed is the variable that is set in the drill's namespaces.
const enclosed = "DRILL_ENCLOSED"

// room is the folder of the drill's files, in these namespaces. They are in memory.
const room = "/dev/shm/drill"

//go:embed next_release.sql
var nextMigration string

// The service's programs in the room: this release, and a next one.
const oldRelease, nextRelease = "old", "next"

// enclosure makes the room for the programs in a folder, and runs the drill there. The shell
// is the namespace's first process, which takes orphans in.
const enclosure = `set -e
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mkdir -m 755 ` + room + `
cp "$1/` + oldRelease + `" "$1/` + nextRelease + `" ` + room + `
shift
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/netns
"$@"
exit $?`

// enclose builds the service, and runs this program again in namespaces of its own. When it
// ends, or this one does, the kernel ends all processes in there, and drops networks and files.
func enclose(ctx context.Context, c config) error {
	if os.Geteuid() != 0 {
		return errors.New("the drill makes networks of its own, which takes root: run it as root")
	}
	itself, err := os.Executable()
	if err != nil {
		return err
	}
	if c.logs != "" {
		if err := os.MkdirAll(c.logs, 0o755); err != nil {
			return err
		}
	}
	folder, err := os.MkdirTemp("", "drill-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	fmt.Println("drill: building the service, this release and a next one")
	next := map[string]string{"migrations/00999_next_release.sql": nextMigration}
	for name, added := range map[string]map[string]string{oldRelease: nil, nextRelease: next} {
		if _, err := programs.Build(ctx, folder, programs.Spec{Package: "cmd/plantstore", Name: name, Added: added}); err != nil {
			return err
		}
	}
	cmd := exec.Command("unshare", slices.Concat([]string{
		"--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc",
		"sh", "-c", enclosure, "sh", folder, itself}, os.Args[1:])...)
	// This machine's variables for proxies and PostgreSQL's clients must not reach the drill.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), enclosed + "=yes"}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	p, err := localpg.StartProcess(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
		if p.Err() != nil {
			return errFailed
		}
		return nil
	case <-ctx.Done():
		p.Kill()
		return errors.New("interrupted: everything that it started is gone")
	}
}

// drillIn is the drill itself, in its namespaces.
func drillIn(ctx context.Context, c config, stdout io.Writer) (err error) {
	folder, err := localpg.ProgramFolder()
	if err != nil {
		return err
	}
	syscall.Umask(0o022) // servers run as nobody, and read these files
	n, err := newNetwork(ctx, c)
	if err != nil {
		return err
	}
	d := &drill{}
	fmt.Fprintln(stdout, "drill: starting etcd, Patroni and PostgreSQL")
	if d.cluster, err = startCluster(ctx, n, folder); err != nil {
		return err
	}
	if err := d.makeStore(ctx); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "drill: starting the replicas and HAProxy")
	if d.front, err = startFront(ctx, d.cluster); err != nil {
		return err
	}
	if err := d.startLoad(ctx, len(c.events)); err != nil {
		return err
	}
	r := &report{synchronous: c.synchronous}
	for _, e := range c.events {
		fmt.Fprintf(stdout, "drill: %s\n", e.what)
		h, err := d.happen(ctx, e)
		r.events = append(r.events, h)
		if err != nil { // the events before the error are still reported and checked
			r.failure = err
			break
		}
	}
	err = d.endLoad()
	r.history = d.history
	r.failure = errors.Join(r.failure, d.stop())
	if err == nil {
		r.state, err = witness.AtRest(ctx, d.url("postgres"), patience)
	}
	if err == nil {
		r.checked = true
		r.violations = witness.Run{Principal: principal, History: r.history}.Check(r.state, 1-bystanders, d.crowd.Last)
	} else {
		r.failure = errors.Join(r.failure, fmt.Errorf("the answers were not checked: %w", err))
	}
	r.print(stdout)
	return r.verdict()
}
