//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/cmd/internal/programs"
	"plantstore/internal/localpg"
)

// A bench is one run of the benchmark.
type bench struct {
	config
	folder, script       string
	service, bare, proxy string // programs
	server               *localpg.Server
	// Each contender has a database of its own. other is nil without another build.
	ledgered, plain, other *store
	processes              []*localpg.Process
	progress               func(format string, a ...any)
}

// A contender is a server that deletes plants of a store.
type contender struct {
	name    string
	store   *store
	address string
	process *localpg.Process
}

const plantstore, otherBuild, bareName = "plantstore", "the other build", "bare handler"

// A section is a row of the table, and what was measured for it.
type section struct {
	name, title string
	delay       time.Duration // of a round trip to the database
	commit      time.Duration // of each commit
	wanted      map[int]float64
	note        string
	trials      []*trial
}

// A trial is one contender under one load.
type trial struct {
	*contender
	what     string // besides the contender's name
	clients  int
	base     *trial // its rates are shares of this one's
	every    int64  // one plant in so many is referred to; 0: none
	retriers string // token of eight other clients that only retry refused plants
	rounds   []measurement
}

// A measurement is the result of one trial in one round.
type measurement struct {
	rate              float64 // deletions a second
	p50, p99          float64 // ms
	service, database float64 // processor time for a deletion, in µs
	memory            float64 // peak of the contender's, in MiB
	load, others      float64 // shares of the machine's processor time: wrk, other programs
}

// close ends all processes and removes all files.
func (b *bench) close() (err error) {
	for _, p := range b.processes {
		p.Kill()
	}
	for _, s := range b.stores() {
		err = errors.Join(err, s.control.Close(context.Background()))
	}
	if b.server != nil {
		err = errors.Join(err, b.server.Close())
	}
	return errors.Join(err, os.RemoveAll(b.folder))
}

func (b *bench) stores() []*store {
	return slices.DeleteFunc([]*store{b.ledgered, b.plain, b.other}, func(s *store) bool { return s == nil })
}

// measure measures the rows that the flags ask for.
func (b *bench) measure(ctx context.Context) (sections []*section, err error) {
	b.progress("filling databases with %d plants each", plants)
	if b.ledgered, err = newStore(ctx, b.server, "ledgered", b.service); err != nil {
		return nil, err
	}
	if b.plain, err = newStore(ctx, b.server, "plain", b.service); err != nil {
		return nil, err
	}
	if err := b.plain.execute(ctx, `DROP SCHEMA plantstore CASCADE`); err != nil {
		return nil, err
	}
	if b.watch && b.beside == "" {
		b.beside = b.service
	}
	if b.beside != "" {
		if b.other, err = newStore(ctx, b.server, "other", b.beside); err != nil {
			return nil, err
		}
	}
	if b.watch {
		if err := errors.Join(b.ledgered.addItems(ctx, false), b.other.addItems(ctx, true), b.plain.addItems(ctx, false)); err != nil {
			return nil, err
		}
	}
	if !b.quick {
		b.progress("writing the write-ahead log's files")
		if err := b.plain.execute(ctx, fillLog, `CHECKPOINT`); err != nil {
			return nil, err
		}
	}
	rows := []*section{
		{name: "beside", title: "beside the database", wanted: map[int]float64{1: .75, 8: .85, 32: 1.5, 128: 2.2}},
		{name: "away", title: fmt.Sprintf("%g ms away", b.delay.Seconds()*1000), delay: b.delay, wanted: map[int]float64{1: .9, 8: .8, 32: 1.2, 128: 2.4}},
		{name: "commits", title: "commits of 5 ms, beside it", commit: 5 * time.Millisecond, wanted: map[int]float64{1: .95, 8: .9, 32: .95, 128: 2.4}},
		// The last: it adds a table that refers to plants.
		{name: "referred", title: "one plant in a hundred referred to, of the rate with none", wanted: map[int]float64{8: .95, 32: .85}},
	}
	for _, s := range rows {
		if slices.Contains(strings.Split(b.rows, ","), s.name) {
			if err := b.measureRow(ctx, s); err != nil {
				return nil, fmt.Errorf("%s: %w", s.title, err)
			}
			sections = append(sections, s)
		}
	}
	return sections, nil
}

// measureRow starts the contenders of a row and has them take turns.
func (b *bench) measureRow(ctx context.Context, s *section) (err error) {
	folder := "" // of the proxy's socket
	if s.delay > 0 {
		folder = filepath.Join(b.folder, "proxy")
		proxy, err := b.startProxy(ctx, s, folder)
		if err != nil {
			return err
		}
		defer proxy.Kill()
	}
	setDelay := func(d time.Duration) error {
		return b.plain.execute(ctx, fmt.Sprintf(`ALTER SYSTEM SET commit_delay = %d`, d.Microseconds()), `SELECT pg_reload_conf()`)
	}
	if err := setDelay(s.commit); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, setDelay(0)) }()
	var contenders []*contender
	defer func() {
		for _, c := range contenders {
			c.process.Kill()
		}
	}()
	if s.name != "referred" {
		pool := b.pool
		if pool == 0 {
			if pool, err = b.fastestPool(ctx, folder); err != nil {
				return err
			}
		}
		s.note += fmt.Sprintf("The bare handler has up to %d database connections.", pool)
		bare, err := b.startBare(ctx, folder, pool)
		if err != nil {
			return err
		}
		contenders = append(contenders, bare)
	}
	for _, s := range b.stores() {
		if s != b.plain {
			c, err := b.startService(ctx, s, folder)
			if err != nil {
				return err
			}
			contenders = append(contenders, c)
		}
	}
	if s.trials = trialsOf(contenders, b.clients); s.name == "referred" {
		s.trials = referredTrials(contenders, b.clients)
	}
	for _, c := range contenders { // opens connections and prepares statements
		if _, err := b.try(ctx, &trial{contender: c, clients: 128}, time.Second); err != nil {
			return fmt.Errorf("warm-up of %s: %w", c.name, err)
		}
	}
	for round := range b.rounds {
		for _, t := range s.trials {
			m, err := b.try(ctx, t, b.duration)
			if err != nil {
				return fmt.Errorf("%s %s, %d clients: %w", t.name, t.what, t.clients, err)
			}
			t.rounds = append(t.rounds, m)
			b.progress("round %d/%d, %s, %s %s, %d clients: %.0f/s, p99 %.1f ms, wrk %.0f %%, other programs %.0f %%",
				round+1, b.rounds, s.name, t.name, t.what, t.clients, m.rate, m.p99, m.load*100, m.others*100)
		}
	}
	return nil
}

// trialsOf has each contender's rates as shares of the first one's.
func trialsOf(contenders []*contender, clients []int) (trials []*trial) {
	for _, n := range clients {
		base := &trial{contender: contenders[0], clients: n}
		trials = append(trials, base)
		for _, c := range contenders[1:] {
			trials = append(trials, &trial{contender: c, clients: n, base: base})
		}
	}
	return trials
}

// referredTrials has rates as shares of those with no plant referred to.
func referredTrials(contenders []*contender, clients []int) (trials []*trial) {
	for _, n := range []int{8, 32} {
		for _, c := range contenders {
			if !slices.Contains(clients, n) {
				continue
			}
			none := &trial{contender: c, what: "none referred to", clients: n}
			trials = append(trials, none, &trial{contender: c, what: "one in a hundred", clients: n, base: none, every: 100})
			if n == 8 {
				trials = append(trials,
					&trial{contender: c, what: "beside 8 of another principal who only retry refused plants", clients: n, base: none, every: 10_000, retriers: c.store.others},
					&trial{contender: c, what: "beside 8 of the same principal who only retry refused plants", clients: n, base: none, every: 10_000, retriers: c.store.token})
			}
		}
	}
	return trials
}

// fastestPool returns the size with which the bare handler is fastest at 128 clients.
func (b *bench) fastestPool(ctx context.Context, folder string) (pool int, err error) {
	fastest := 0.0
	for _, size := range []int{8, 16, 32, 64} {
		bare, err := b.startBare(ctx, folder, size)
		if err != nil {
			return 0, err
		}
		m, err := b.try(ctx, &trial{contender: bare, clients: 128}, time.Second)
		bare.process.Kill()
		if err != nil {
			return 0, err
		}
		if m.rate > fastest {
			pool, fastest = size, m.rate
		}
	}
	return pool, nil
}

// try measures a trial once, and puts the plants back.
func (b *bench) try(ctx context.Context, t *trial, d time.Duration) (m measurement, err error) {
	store, pid := t.store, t.process.PID()
	if t.what != "" {
		if err := store.refer(ctx, t.every); err != nil {
			return m, err
		}
	}
	retried := make(chan error, 1)
	var retries load
	w := walk{store.next * stride % plants, stride}
	if t.retriers != "" {
		go func() {
			var err error
			// The same hundred plants again and again.
			retries, err = b.wrk(ctx, t.address, t.retriers, walk{firstReferred, t.every}, 8, d)
			retried <- err
		}()
	}
	if err := resetPeakMemory(pid); err != nil {
		return m, err
	}
	before, start := [3]time.Duration{}, time.Now()
	used := func() (u [3]time.Duration, err error) {
		service, err1 := cpuTime(pid)
		database, err2 := cpuTime(store.postmaster)
		all, err3 := machineTime()
		return [3]time.Duration{service, database, all}, errors.Join(err1, err2, err3)
	}
	if before, err = used(); err != nil {
		return m, err
	}
	l, err := b.wrk(ctx, t.address, store.token, w, t.clients, d)
	if err != nil {
		return m, err
	}
	took := time.Since(start)
	if t.retriers != "" {
		if err := <-retried; err != nil {
			return m, err
		}
		if retries.Broken > 0 || retries.Refused != retries.Requests {
			return m, fmt.Errorf("of %d retries of refused plants %d were refused", retries.Requests, retries.Refused)
		}
		l.cpu += retries.cpu
	}
	after, err := used()
	if err != nil {
		return m, err
	}
	if m.memory, err = peakMemory(pid); err != nil {
		return m, err
	}
	n := l.Requests + int64(t.clients) + 2
	gone, err := store.refill(ctx, w, n)
	store.next += n
	if err != nil {
		return m, err
	}
	deleted, err := deletedOf(l, t.every, gone, int64(t.clients))
	if err != nil {
		return m, err
	}
	perDeletion := func(i int) float64 { return float64((after[i] - before[i]).Microseconds()) / float64(deleted) }
	total := took.Seconds() * float64(runtime.NumCPU())
	m.rate = float64(deleted) * 1e6 / float64(l.Microseconds)
	m.p50, m.p99 = float64(l.P50)/1000, float64(l.P99)/1000
	m.service, m.database, m.load = perDeletion(0), perDeletion(1), l.cpu.Seconds()/total
	rest := after[2] - before[2] - (after[0] - before[0]) - (after[1] - before[1]) - l.cpu
	m.others = max(rest.Seconds()/total, 0)
	return m, nil
}

// startProxy starts the proxy that delays, and notes how long a round trip takes.
func (b *bench) startProxy(ctx context.Context, s *section, folder string) (*localpg.Process, error) {
	if err := os.Mkdir(folder, 0o700); err != nil {
		return nil, err
	}
	target := b.plain.socket()
	listen := filepath.Join(folder, filepath.Base(target))
	// As root it has priority, so that the delay is right on a busy machine.
	p, err := b.start(ctx, exec.Command("nice", "-n", "-15", b.proxy, s.delay.String(), listen, target), func() error {
		_, err := os.Stat(listen)
		return err
	})
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, b.plain.url(folder))
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	const pings = 100
	start := time.Now()
	for range pings {
		if err := conn.Ping(ctx); err != nil {
			return nil, err
		}
	}
	s.note = fmt.Sprintf("A round trip to the database takes %.2f ms. ", time.Since(start).Seconds()*1000/pings)
	return p, nil
}

func (b *bench) startService(ctx context.Context, s *store, folder string) (*contender, error) {
	c := &contender{name: plantstore, store: s}
	if s == b.other {
		c.name = otherBuild
	}
	admin, err := programs.FreeAddress()
	if err != nil {
		return nil, err
	}
	if c.address, err = programs.FreeAddress(); err != nil {
		return nil, err
	}
	cmd := exec.Command(s.program, "serve")
	cmd.Env = append(localpg.Environ("PG", "PLANTSTORE_"), "DATABASE_URL="+s.url(folder), "PLANTSTORE_ADDR="+c.address, "PLANTSTORE_ADMIN_ADDR="+admin)
	c.process, err = b.start(ctx, cmd, func() error { return programs.Answers(ctx, "http://"+admin+"/readyz") })
	return c, err
}

func (b *bench) startBare(ctx context.Context, folder string, pool int) (c *contender, err error) {
	c = &contender{name: bareName, store: b.plain}
	if c.address, err = programs.FreeAddress(); err != nil {
		return nil, err
	}
	cmd := exec.Command(b.bare)
	cmd.Env = append(localpg.Environ("PG"), fmt.Sprintf("DATABASE_URL=%s&pool_max_conns=%d", b.plain.url(folder), pool), "ADDR="+c.address)
	c.process, err = b.start(ctx, cmd, func() error {
		conn, err := net.Dial("tcp", c.address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	return c, err
}

// start starts a program and waits until it is ready. Its output goes to /dev/null.
func (b *bench) start(ctx context.Context, cmd *exec.Cmd, ready func() error) (*localpg.Process, error) {
	p, err := localpg.StartProcess(cmd, syscall.SIGKILL)
	if err != nil {
		return nil, err
	}
	b.processes = append(b.processes, p)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := ready()
		if err == nil {
			return p, nil
		}
		select {
		case <-p.Done():
			return nil, fmt.Errorf("start %s: it exited: %v", cmd.Path, p.Err())
		case <-ctx.Done():
			return nil, fmt.Errorf("start %s: it does not become ready: %w", cmd.Path, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
