package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"plantstore/cmd/internal/programs"
)

// A network is machines on one switch. The machine that runs the drill is on it, too, with the
// clients and the operator.
type network struct {
	config
	running map[string]*programs.Program // by name: those that have to run
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
func newNetwork(ctx context.Context, c config) (*network, error) {
	n := &network{config: c, running: make(map[string]*programs.Program)}
	return n, n.ip(ctx, "", "link set lo up",
		"link add switch type bridge", "link set switch up", "addr add "+operator+"/24 dev switch")
}

// add makes a machine and plugs it in.
func (n *network) add(ctx context.Context, name string, number int) (*machine, error) {
	m := &machine{network: n, Name: name, IP: fmt.Sprintf("10.77.0.%d", number), folder: filepath.Join(room, name)}
	if err := errors.Join(os.Mkdir(m.folder, 0o700), os.Chown(m.folder, nobody, nobody)); err != nil {
		return nil, err
	}
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

// plug connects the machine to the network again.
func (m *machine) plug(ctx context.Context) error {
	return m.network.ip(ctx, "", "link set "+m.Name+" up")
}

// nobody is the account, and the group, that servers run under: PostgreSQL refuses root.
const nobody = 65534

// start runs a program on the machine, as nobody, until it is ended or this program ends. Under
// a name, one program has to run.
func (m *machine) start(name string, env []string, program string, args ...string) (p *programs.Program, err error) {
	name = m.Name + "-" + name
	var log io.Writer
	if m.network.logs != "" {
		f, err := os.OpenFile(filepath.Join(m.network.logs, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, err
		}
		log = f
	}
	cmd := exec.Command(filepath.Join(m.network.programs, "ip"), append([]string{
		"netns", "exec", m.Name, "setpriv", "--reuid", fmt.Sprint(nobody), "--regid", fmt.Sprint(nobody), "--clear-groups", program}, args...)...)
	cmd.Dir = m.folder
	cmd.Env = append(os.Environ(), append(env, "LC_ALL=C", "HOME="+m.folder)...)
	if p, err = programs.Start(name, cmd, log); err == nil {
		m.network.running[name] = p
	}
	return p, err
}

// patience limits each wait.
const patience = 3 * time.Minute

// until returns when try succeeds, or gives up. Where a program has ended it gives up at once.
func (n *network) until(ctx context.Context, lack string, try func() error) error {
	return programs.Until(ctx, patience, lack, func() error {
		for _, p := range n.running {
			if err := p.Running(); err != nil {
				return err
			}
		}
		return try()
	})
}
