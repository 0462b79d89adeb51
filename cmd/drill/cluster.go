package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/template"

	"plantstore/cmd/internal/programs"
	"plantstore/cmd/internal/witness"
	"plantstore/internal/migrate"
)

// A cluster is three machines, each with a member of etcd and a PostgreSQL under Patroni.
type cluster struct {
	*network
	nodes []*node
}

// A node is one of the machines.
type node struct {
	*machine
	etcd *programs.Program
}

const (
	database = "plantstore"
	// nodes is how many there are.
	nodes = 3
)

//go:embed patroni.yml
var patroniFile string

// startCluster starts the members and returns when all of them are well.
func startCluster(ctx context.Context, n *network, postgres string) (*cluster, error) {
	c := &cluster{network: n}
	var etcd []string
	for i := range nodes {
		m, err := n.add(ctx, fmt.Sprintf("pg%d", i+1), 11+i)
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, &node{machine: m})
		etcd = append(etcd, m.IP+":2379")
	}
	for _, n := range c.nodes {
		if err := c.startEtcd(n); err != nil {
			return nil, err
		}
	}
	for _, n := range c.nodes {
		if err := fill(n.config(), patroniFile, patroniValues{n.machine, n.folder, strings.Join(etcd, ", "), postgres, "patroni", operator, c.synchronous}); err != nil {
			return nil, err
		}
		if _, err := n.start("patroni", nil, filepath.Join(c.programs, "patroni"), n.config()); err != nil {
			return nil, err
		}
	}
	return c, c.untilWell(ctx)
}

// patroniValues are for the template in patroni.yml.
type patroniValues struct {
	*machine
	Folder, Etcd, Programs, Password, Operator string
	Synchronous                                bool
}

// startEtcd starts a node's member of etcd, new or again.
func (c *cluster) startEtcd(n *node) (err error) {
	var peers []string
	for _, p := range c.nodes {
		peers = append(peers, fmt.Sprintf("%s=http://%s:2380", p.Name, p.IP))
	}
	client, peer := "http://"+n.IP+":2379", "http://"+n.IP+":2380"
	n.etcd, err = n.start("etcd", nil, filepath.Join(c.programs, "etcd"),
		"--pre-vote", // without it, a member that comes back forces an election
		"--enable-v2",
		"--name", n.Name, "--data-dir", filepath.Join(n.folder, "etcd"), "--initial-cluster", strings.Join(peers, ","),
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--listen-client-urls", client, "--advertise-client-urls", client)
	return err
}

// config is the file of the node's Patroni.
func (n *node) config() string { return filepath.Join(n.folder, "patroni.yml") }

// fill writes a file from a template.
func fill(path, text string, values any) error {
	t, err := template.New(filepath.Base(path)).Parse(text)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, values); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// with returns the nodes whose Patroni says that they have a role: primary or synchronous.
func (c *cluster) with(ctx context.Context, role string) (found []*node) {
	for _, n := range c.nodes {
		if programs.Answers(ctx, "http://"+n.IP+":8008/"+role) == nil {
			found = append(found, n)
		}
	}
	return found
}

func (c *cluster) primary(ctx context.Context) (*node, error) {
	if found := c.with(ctx, "primary"); len(found) == 1 {
		return found[0], nil
	}
	return nil, errors.New("no single primary")
}

// roles returns the primary and a node that follows it, the synchronous one if there is one.
func (c *cluster) roles(ctx context.Context) (primary, standby *node, err error) {
	if primary, err = c.primary(ctx); err != nil {
		return nil, nil, err
	}
	return primary, append(c.with(ctx, "synchronous"), c.others(primary)...)[0], nil
}

// others are all nodes but one.
func (c *cluster) others(n *node) []*node {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(o *node) bool { return o == n })
}

// untilWell returns when etcd has a quorum and there is a primary that the others follow.
func (c *cluster) untilWell(ctx context.Context) error {
	return c.until(ctx, "the cluster is not well", func() error {
		for _, n := range c.nodes {
			if err := programs.Answers(ctx, "http://"+n.IP+":2379/health"); err != nil {
				return fmt.Errorf("etcd of %s: %w", n.Name, err)
			}
		}
		primary, err := c.primary(ctx)
		if err != nil {
			return err
		}
		if c.synchronous && len(c.with(ctx, "synchronous")) == 0 {
			return errors.New("no synchronous standby")
		}
		following, err := witness.Value[int](ctx, urlOf(primary, "postgres", "postgres"), `SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'`)
		if err == nil && following != nodes-1 {
			err = fmt.Errorf("%d standbys stream", following)
		}
		return err
	})
}

// url returns the database's URL for a role, with all nodes.
func (c *cluster) url(user string) string {
	var hosts []string
	for _, n := range c.nodes {
		hosts = append(hosts, n.IP)
	}
	return fmt.Sprintf("postgres://%s@%s:5432/%s?target_session_attrs=read-write&connect_timeout=2&sslmode=disable",
		user, strings.Join(hosts, ":5432,"), database)
}

// urlOf returns the URL of one node.
func urlOf(n *node, user, database string) string {
	return fmt.Sprintf("postgres://%s@%s:5432/%s?connect_timeout=2&sslmode=disable", user, n.IP, database)
}

// makeStore makes the store's database, its roles and schema. It returns when all nodes have
// them: if a standby lacks the database, pgx asks no other server.
func (c *cluster) makeStore(ctx context.Context) error {
	primary, err := c.primary(ctx)
	if err != nil {
		return err
	}
	err = migrate.NewStore(ctx, func(role, database string) string { return urlOf(primary, role, database) }, database)
	for _, n := range c.nodes {
		if err == nil {
			err = c.until(ctx, n.Name+" does not have the store", func() error {
				return witness.Execute(ctx, urlOf(n, "plantstore_owner", database), `SELECT FROM plantstore.deletions`)
			})
		}
	}
	return err
}

// switchover has Patroni make another node the primary, as an operator does.
func switchover(ctx context.Context, d *drill) error {
	from, to, err := d.roles(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(d.programs, "patronictl"), "-c", from.config(),
		"switchover", "drill", "--leader", from.Name, "--candidate", to.Name, "--force")
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "LANG=C.UTF-8")
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("Successfully switched over")) {
		return fmt.Errorf("patronictl switchover: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// killPrimary ends the primary's postmaster as kernels do; its processes follow.
func killPrimary(ctx context.Context, d *drill) error {
	primary, err := d.primary(ctx)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(primary.folder, "data", "postmaster.pid"))
	if err != nil {
		return err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		return fmt.Errorf("postmaster.pid of %s: %w", primary.Name, err)
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}
