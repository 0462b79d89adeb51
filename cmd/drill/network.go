package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"plantstore/internal/localpg"
)

// A network is machines on one switch. The machine that runs the drill is on it, too, with the
// clients and the operator.
type network struct {
	programs string // folder of ip and the others
	logs     string // folder
	machines []*machine
	running  map[string]*localpg.Process // by its log: the last that was started
}

// A machine is a member with a network of its own.
type machine struct {
	network *network
	Name    string
	IP      string
	folder  string // its disk
}

// operator is the address of the clients and of the operator.
const operator = "10.77.0.1"

// newNetwork makes the switch.
func newNetwork(ctx context.Context, programs, logs string) (*network, error) {
	n := &network{programs: programs, logs: logs, running: make(map[string]*localpg.Process)}
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		return nil, err
	}
	return n, n.ip(ctx, "", "link set lo up",
		"link add switch type bridge", "link set switch up", "addr add "+operator+"/24 dev switch")
}

// add makes a machine and plugs it in.
func (n *network) add(ctx context.Context, name string, number int) (*machine, error) {
	m := &machine{network: n, Name: name, IP: fmt.Sprintf("10.77.0.%d", number), folder: filepath.Join(room, name)}
	if err := os.Mkdir(m.folder, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chown(m.folder, nobody, nobody); err != nil {
		return nil, err
	}
	n.machines = append(n.machines, m)
	err := n.ip(ctx, "", "netns add "+name,
		"link add "+name+" type veth peer name eth0 netns "+name, "link set "+name+" master switch up")
	if err != nil {
		return nil, err
	}
	return m, n.ip(ctx, name, "link set lo up", "addr add "+m.IP+"/24 dev eth0", "link set eth0 up")
}

// ip runs commands of ip on a machine, or on the one with the switch if that is "".
func (n *network) ip(ctx context.Context, machine string, commands ...string) error {
	args := []string{"-batch", "-"}
	if machine != "" {
		args = append([]string{"-n", machine}, args...)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(n.programs, "ip"), args...)
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(commands, "; "), err, bytes.TrimSpace(out))
	}
	return nil
}

// unplug pulls the machine's cable out.
func (m *machine) unplug(ctx context.Context) error {
	return m.network.ip(ctx, "", "link set "+m.Name+" down")
}

// plug puts it back in.
func (m *machine) plug(ctx context.Context) error {
	return m.network.ip(ctx, "", "link set "+m.Name+" up")
}

// lose drops the packets that the machine sends to others, until find.
func (m *machine) lose(ctx context.Context, others ...*machine) error {
	return m.routes(ctx, "add", others)
}

func (m *machine) find(ctx context.Context, others ...*machine) error {
	return m.routes(ctx, "del", others)
}

func (m *machine) routes(ctx context.Context, do string, others []*machine) error {
	var commands []string
	for _, o := range others {
		commands = append(commands, fmt.Sprintf("route %s blackhole %s/32", do, o.IP))
	}
	return m.network.ip(ctx, m.Name, commands...)
}

// nobody is the account, and the group, that servers run under: PostgreSQL refuses root.
const nobody = 65534

// start runs a program on the machine, as nobody, until it is killed or this program ends. Its
// output goes to the folder of logs.
func (m *machine) start(log string, env []string, program string, args ...string) (*localpg.Process, error) {
	f, err := os.OpenFile(m.logFile(log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd := exec.Command(filepath.Join(m.network.programs, "ip"), append([]string{
		"netns", "exec", m.Name, "setpriv", "--reuid", fmt.Sprint(nobody), "--regid", fmt.Sprint(nobody), "--clear-groups", program}, args...)...)
	cmd.Dir = m.folder
	cmd.Env = append(os.Environ(), append(env, "LC_ALL=C", "HOME="+m.folder)...)
	cmd.Stdout, cmd.Stderr = f, f
	p, err := localpg.StartProcess(cmd, syscall.SIGKILL)
	if err == nil {
		m.network.running[f.Name()] = p
	}
	return p, err
}

var errEnded = errors.New("a program ended by itself")

// ended returns an error with the end of the log of a program that has ended. Call it while
// all programs have to run.
func (n *network) ended() error {
	for _, log := range slices.Sorted(maps.Keys(n.running)) {
		p := n.running[log]
		select {
		case <-p.Done():
			b, _ := os.ReadFile(log)
			return fmt.Errorf("%w: %s: %v: %s", errEnded, filepath.Base(log), p.Err(), bytes.TrimSpace(b[max(0, len(b)-1000):]))
		default:
		}
	}
	return nil
}

// logFile is where start writes.
func (m *machine) logFile(log string) string {
	return filepath.Join(m.network.logs, m.Name+"-"+log+".log")
}
