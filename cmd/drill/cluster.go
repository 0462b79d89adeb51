package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"

	"plantstore/cmd/internal/witness"
	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
)

// A cluster is three machines, each with a member of etcd and a PostgreSQL under Patroni.
type cluster struct {
	nodes       []*node
	postgres    string // folder of PostgreSQL's programs
	etcd        string // see etcdAPI
	synchronous bool
}

// A node is one of the machines.
type node struct {
	*machine
	etcd, patroni *localpg.Process
}

const (
	database = "plantstore"
	// nodes is how many there are.
	nodes = 3
)

//go:embed patroni.yml
var patroniFile string

// etcdAPI is the API of etcd that a version of Patroni is to use, by its name in Patroni's
// configuration. With etcd3, versions before 4.0.6 let a primary that was cut off take the
// leader's lock back: github.com/patroni/patroni/pull/2689 and pull/3318.
func etcdAPI(patroni string) string {
	var major, minor, patch int
	if _, err := fmt.Sscanf(patroni, "%d.%d.%d", &major, &minor, &patch); err == nil &&
		slices.Compare([]int{major, minor, patch}, []int{4, 0, 6}) < 0 {
		return "etcd"
	}
	return "etcd3"
}

// startCluster starts the members and returns when all of them are well.
func startCluster(ctx context.Context, n *network, postgres, etcd string, synchronous bool) (*cluster, error) {
	c := &cluster{postgres: postgres, etcd: etcd, synchronous: synchronous}
	for i := range nodes {
		m, err := n.add(ctx, fmt.Sprintf("pg%d", i+1), 11+i)
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, &node{machine: m})
	}
	for _, n := range c.nodes {
		if err := n.startEtcd(c); err != nil {
			return nil, err
		}
	}
	for _, n := range c.nodes {
		if err := n.configure(c); err != nil {
			return nil, err
		}
		var err error
		if n.patroni, err = n.start("patroni", nil, filepath.Join(n.network.programs, "patroni"), n.config()); err != nil {
			return nil, err
		}
	}
	return c, c.untilWell(ctx)
}

// startEtcd starts the node's member of etcd, new or again.
func (n *node) startEtcd(c *cluster) (err error) {
	var peers []string
	for _, p := range c.nodes {
		peers = append(peers, fmt.Sprintf("%s=http://%s:2380", p.Name, p.IP))
	}
	client, peer := "http://"+n.IP+":2379", "http://"+n.IP+":2380"
	args := []string{
		"--pre-vote", // without it, a member that comes back forces an election
		"--name", n.Name, "--data-dir", filepath.Join(n.folder, "etcd"), "--initial-cluster", strings.Join(peers, ","),
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--listen-client-urls", client, "--advertise-client-urls", client,
	}
	if c.etcd == "etcd" {
		args = append(args, "--enable-v2")
	}
	n.etcd, err = n.start("etcd", nil, filepath.Join(n.network.programs, "etcd"), args...)
	return err
}

func (n *node) config() string { return filepath.Join(n.folder, "patroni.yml") }

// configure writes the configuration of the node's Patroni.
func (n *node) configure(c *cluster) error {
	var etcd []string
	for _, p := range c.nodes {
		etcd = append(etcd, p.IP+":2379")
	}
	text, err := fill(patroniFile, struct {
		Name, IP, Folder, API, Etcd, Programs, Password, Operator string
		Synchronous                                               bool
	}{n.Name, n.IP, n.folder, c.etcd, strings.Join(etcd, ", "), c.postgres, "patroni", operator, c.synchronous})
	if err != nil {
		return err
	}
	return os.WriteFile(n.config(), text, 0o644)
}

// fill fills a template in.
func fill(text string, with any) ([]byte, error) {
	t, err := template.New("").Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, with)
	return b.Bytes(), err
}

// A member is a node as Patroni describes it.
type member struct {
	Name     string
	Role     string // leader, sync_standby or replica
	State    string
	Timeline int
	Lag      any // bytes, or "unknown"
}

// members asks the nodes, one after the other, until one answers.
func (c *cluster) members(ctx context.Context) ([]member, error) {
	var errs []error
	for _, n := range c.nodes {
		var answer struct{ Members []member }
		err := getJSON(ctx, "http://"+n.IP+":8008/cluster", &answer)
		if err == nil {
			return answer.Members, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func getJSON(ctx context.Context, url string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(into)
}

// unwell returns why a cluster of these members is not well, or nothing.
func unwell(members []member, synchronous bool) string {
	var leaders, standbys, others int
	timeline := 0
	for _, m := range members {
		timeline = max(timeline, m.Timeline)
	}
	for _, m := range members {
		switch {
		case m.State != "running" && m.State != "streaming":
			return fmt.Sprintf("%s, a %s, is %s", m.Name, m.Role, m.State)
		case m.Timeline != timeline:
			return fmt.Sprintf("%s, a %s, is %s on timeline %d of %d", m.Name, m.Role, m.State, m.Timeline, timeline)
		case m.Role == "leader":
			leaders++
		case m.Role == "sync_standby":
			standbys++
		default:
			others++
		}
	}
	switch {
	case leaders != 1:
		return fmt.Sprintf("%d primaries", leaders)
	case leaders+standbys+others != nodes:
		return fmt.Sprintf("%d nodes", leaders+standbys+others)
	case synchronous && standbys == 0:
		return "no synchronous standby"
	}
	return ""
}

// untilWell returns when there is a primary, and the others follow it.
func (c *cluster) untilWell(ctx context.Context) error {
	return until(ctx, "the cluster is not well", func() error {
		if err := c.nodes[0].network.ended(); err != nil {
			return err
		}
		members, err := c.members(ctx)
		if err != nil {
			return err
		}
		if lack := unwell(members, c.synchronous); lack != "" {
			return errors.New(lack)
		}
		// Patroni's answer may be old: the nodes write their state down now and then.
		primary, err := c.primary(ctx)
		if err != nil {
			return err
		}
		following, err := witness.Value[int](ctx, urlOf(primary, "postgres", "postgres"), `SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'`)
		if err == nil && following != nodes-1 {
			err = fmt.Errorf("%d standbys stream", following)
		}
		return err
	})
}

// patience limits each wait of until.
const patience = 3 * time.Minute

// until returns when try succeeds, or gives up. Where a program has ended it gives up at once.
func until(ctx context.Context, lack string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		if errors.Is(err, errEnded) || !witness.Sleep(ctx, 100*time.Millisecond) {
			return fmt.Errorf("%s: %w", lack, err)
		}
	}
}

// primary is the node that has the leader's lock, by Patroni's answer.
func (c *cluster) primary(ctx context.Context) (*node, error) {
	members, err := c.members(ctx)
	if err != nil {
		return nil, err
	}
	for i, m := range members {
		if m.Role == "leader" {
			return c.node(members[i].Name)
		}
	}
	return nil, errors.New("no primary")
}

func (c *cluster) node(name string) (*node, error) {
	for _, n := range c.nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("there is no node %s", name)
}

// standby is a node that follows the primary, the synchronous one if there is one.
func (c *cluster) standby(ctx context.Context) (*node, error) {
	members, err := c.members(ctx)
	if err != nil {
		return nil, err
	}
	name := ""
	for _, m := range members {
		if m.Role == "sync_standby" || m.Role == "replica" && name == "" {
			name = m.Name
		}
	}
	return c.node(name)
}

// others are all nodes but one.
func (c *cluster) others(n *node) []*node {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(o *node) bool { return o == n })
}

// url returns the database's URL for a role, with all nodes.
func (c *cluster) url(role, database string) string {
	var hosts []string
	for _, n := range c.nodes {
		hosts = append(hosts, n.IP)
	}
	return fmt.Sprintf("postgres://%s@%s:5432/%s?target_session_attrs=read-write&connect_timeout=2&sslmode=disable",
		role, strings.Join(hosts, ":5432,"), database)
}

// urlOf returns the URL of one node.
func urlOf(n *node, role, database string) string {
	return fmt.Sprintf("postgres://%s@%s:5432/%s?connect_timeout=2&sslmode=disable", role, n.IP, database)
}

// makeStore makes the store's database, its roles and schema, and returns when all nodes
// have them: where a standby has no such database yet, pgx asks no other server.
func (c *cluster) makeStore(ctx context.Context) error {
	primary, err := c.primary(ctx)
	if err != nil {
		return err
	}
	err = migrate.NewStore(ctx, func(role, database string) string { return urlOf(primary, role, database) }, database)
	if err != nil {
		return err
	}
	for _, n := range c.nodes {
		err := until(ctx, n.Name+" does not have the store", func() error {
			return witness.Execute(ctx, urlOf(n, "plantstore_owner", database), `SELECT FROM plantstore.deletions`)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// switchover has Patroni make another node the primary, as an operator does.
func (c *cluster) switchover(ctx context.Context) error {
	from, err := c.primary(ctx)
	if err != nil {
		return err
	}
	to, err := c.standby(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(from.network.programs, "patronictl"), "-c", from.config(),
		"switchover", "drill", "--leader", from.Name, "--candidate", to.Name, "--force")
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "LANG=C.UTF-8")
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("Successfully switched over")) {
		return fmt.Errorf("patronictl switchover: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// killPostgres ends the postmaster of a node as kernels do; its processes follow.
func (n *node) killPostgres() error {
	b, err := os.ReadFile(filepath.Join(n.folder, "data", "postmaster.pid"))
	if err != nil {
		return err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		return fmt.Errorf("postmaster.pid of %s: %w", n.Name, err)
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}
