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
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/cmd/internal/programs"
	"plantstore/internal/localpg"
)

// A bench is one run of the benchmark.
type bench struct {
	config
	folder, script, service, bare string // files
	server                        *localpg.Server
	ledgered, plain, other        *store // plantstore's, the bare handler's, and that of another build or nil
	postmaster                    int    // process id
	progress                      func(format string, a ...any)
}

// A contender is a server that deletes plants of a store.
type contender struct {
	name    string
	store   *store
	address string
	process *localpg.Process
}

const plantstore, otherBuild, bareName = "plantstore", "the other build", "bare handler"

// A row is a row of the table, with its measurements.
type row struct {
	name, title   string
	delay, commit time.Duration // of a round trip to the database; of each commit
	wanted        map[int]float64
	note          string
	trials        []*trial
}

// A trial is one contender under one load.
type trial struct {
	*contender
	clients  int
	base     *trial // its rates are shares of this one's
	what     string // besides the contender's name
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
}

// measure measures the rows that the flags ask for.
func (b *bench) measure(ctx context.Context) (measured []*row, err error) {
	b.progress("filling databases with %d plants each", plants)
	if b.watch && b.beside == "" {
		b.beside = b.service
	}
	for _, s := range []struct {
		store         **store
		name, program string
	}{{&b.ledgered, "ledgered", b.service}, {&b.plain, "plain", b.service}, {&b.other, "other", b.beside}} {
		if s.program == "" {
			continue
		}
		if *s.store, err = newStore(ctx, b.server, s.name, s.program); err != nil {
			return nil, err
		}
		defer (*s.store).control.Close(context.WithoutCancel(ctx))
		if s.name == "plain" {
			b.plain.program = b.bare
			if err := b.plain.execute(ctx, `DROP SCHEMA plantstore CASCADE`); err != nil {
				return nil, err
			}
		}
		if b.watch {
			if err := (*s.store).addItems(ctx, s.name == "other"); err != nil {
				return nil, err
			}
		}
	}
	if err := b.plain.control.QueryRow(ctx, `SELECT split_part(pg_read_file('postmaster.pid'), E'\n', 1)::int`).Scan(&b.postmaster); err != nil {
		return nil, err
	}
	if b.rounds > 1 {
		b.progress("writing the write-ahead log's files")
		if err := b.plain.execute(ctx, fillLog, `CHECKPOINT`); err != nil {
			return nil, err
		}
	}
	for _, r := range []*row{
		{name: "beside", title: "beside the database", wanted: map[int]float64{1: .75, 8: .85, 32: 1.5, 128: 2.2}},
		{name: "away", title: fmt.Sprintf("%g ms away", b.delay.Seconds()*1000), delay: b.delay, wanted: map[int]float64{1: .9, 8: .8, 32: 1.2, 128: 2.4}},
		{name: "commits", title: "commits of 5 ms, beside it", commit: 5 * time.Millisecond, wanted: map[int]float64{1: .95, 8: .9, 32: .95, 128: 2.4}},
		// The last: it adds a table that refers to plants.
		{name: "referred", title: "one plant in a hundred referred to, of the rate with none", wanted: map[int]float64{8: .95, 32: .85}},
	} {
		if !slices.Contains(b.rows, r.name) {
			continue
		}
		if err := b.measureRow(ctx, r); err != nil {
			return nil, fmt.Errorf("%s: %w", r.title, err)
		}
		measured = append(measured, r)
	}
	return measured, nil
}

// measureRow starts the contenders of a row and has them take turns.
func (b *bench) measureRow(ctx context.Context, r *row) error {
	folder := "" // of the socket that delays
	if r.delay > 0 {
		folder = filepath.Join(b.folder, "away")
		if err := b.startDistance(ctx, r, folder); err != nil {
			return err
		}
	}
	if err := b.plain.execute(ctx, fmt.Sprintf(`ALTER SYSTEM SET commit_delay = %d`, r.commit.Microseconds()), `SELECT pg_reload_conf()`); err != nil {
		return err
	}
	var contenders []*contender
	begin := func(name string, s *store, url string) error {
		c, err := begin(ctx, name, s, url)
		if err != nil {
			return err
		}
		contenders = append(contenders, c)
		_, err = b.try(ctx, &trial{contender: c, clients: 128}, time.Second) // opens connections and prepares statements
		return err
	}
	defer func() {
		for _, c := range contenders {
			c.process.Kill()
		}
	}()
	if r.name != "referred" {
		pool, err := b.fastestPool(ctx, folder)
		if err != nil {
			return err
		}
		r.note += fmt.Sprintf("\nThe bare handler has up to %d database connections.\n", pool)
		if err := begin(bareName, b.plain, bareURL(b.plain, folder, pool)); err != nil {
			return err
		}
	}
	if err := begin(plantstore, b.ledgered, b.ledgered.url(folder)); err != nil {
		return err
	}
	if b.other != nil {
		if err := begin(otherBuild, b.other, b.other.url(folder)); err != nil {
			return err
		}
	}
	for _, n := range b.clients {
		if r.name == "referred" {
			r.trials = append(r.trials, referredTrials(contenders, n)...)
			continue
		}
		bare := &trial{contender: contenders[0], clients: n}
		r.trials = append(r.trials, bare)
		for _, c := range contenders[1:] {
			r.trials = append(r.trials, &trial{contender: c, clients: n, base: bare})
		}
	}
	for round := range b.rounds {
		for _, t := range r.trials {
			m, err := b.try(ctx, t, b.duration)
			if err != nil {
				return fmt.Errorf("%s %s, %d clients: %w", t.name, t.what, t.clients, err)
			}
			t.rounds = append(t.rounds, m)
			b.progress("round %d/%d, %s, %s %s, %d clients: %.0f/s, p99 %.1f ms", round+1, b.rounds, r.name, t.name, t.what, t.clients, m.rate, m.p99)
		}
	}
	return nil
}

// referredTrials returns trials with referred-to plants. Their rates are shares of the rates
// without any such plant.
func referredTrials(contenders []*contender, clients int) (trials []*trial) {
	if clients != 8 && clients != 32 {
		return nil
	}
	for _, c := range contenders {
		none := &trial{contender: c, what: "none referred to", clients: clients}
		trials = append(trials, none, &trial{contender: c, what: "one in a hundred", clients: clients, base: none, every: 100})
		if clients == 8 {
			trials = append(trials,
				&trial{contender: c, what: "beside 8 of another principal who only retry refused plants", clients: clients, base: none, every: 10_000, retriers: c.store.others},
				&trial{contender: c, what: "beside 8 of the same principal who only retry refused plants", clients: clients, base: none, every: 10_000, retriers: c.store.token})
		}
	}
	return trials
}

// fastestPool returns the size with which the bare handler is fastest at 128 clients, unless a
// flag says it.
func (b *bench) fastestPool(ctx context.Context, folder string) (pool int, err error) {
	if b.pool > 0 {
		return b.pool, nil
	}
	fastest := 0.0
	for _, size := range []int{8, 16, 32, 64} {
		c, err := begin(ctx, bareName, b.plain, bareURL(b.plain, folder, size))
		if err != nil {
			return 0, err
		}
		m, err := b.try(ctx, &trial{contender: c, clients: 128}, time.Second)
		c.process.Kill()
		if err != nil {
			return 0, err
		}
		if m.rate > fastest {
			pool, fastest = size, m.rate
		}
	}
	return pool, nil
}

func bareURL(s *store, folder string, pool int) string {
	return fmt.Sprintf("%s&pool_max_conns=%d", s.url(folder), pool)
}

// try measures a trial once, and puts the plants back.
func (b *bench) try(ctx context.Context, t *trial, d time.Duration) (m measurement, err error) {
	s, pid := t.store, t.process.PID()
	if t.what != "" {
		if err := s.refer(ctx, t.every); err != nil {
			return m, err
		}
	}
	retried := make(chan error, 1)
	if t.retriers == "" {
		retried <- nil
	} else {
		go func() { // the same hundred plants again and again
			l, err := b.wrk(ctx, t.address, t.retriers, walk{firstReferred, t.every}, 8, d)
			if err == nil && (l.Broken > 0 || l.Refused != l.Requests) {
				err = fmt.Errorf("of %d retries of refused plants %d were refused", l.Requests, l.Refused)
			}
			retried <- err
		}()
	}
	if err := resetPeakMemory(pid); err != nil {
		return m, err
	}
	w := walk{s.next * stride % plants, stride}
	service, database := cpuTime(pid), cpuTime(b.postmaster)
	l, err := b.wrk(ctx, t.address, s.token, w, t.clients, d)
	if err := errors.Join(err, <-retried); err != nil {
		return m, err
	}
	service, database = cpuTime(pid)-service, cpuTime(b.postmaster)-database
	time.Sleep(100*time.Millisecond + 3*time.Duration(l.P99)*time.Microsecond) // for deletions in flight
	n := l.Requests + int64(t.clients) + 2
	gone, err := s.refill(ctx, w, n)
	s.next += n
	if err != nil {
		return m, err
	}
	deleted, err := deletedOf(l, t.every, gone, int64(t.clients))
	if err != nil {
		return m, err
	}
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(deleted) }
	return measurement{rate: float64(deleted) * 1e6 / float64(l.Microseconds), p50: float64(l.P50) / 1000, p99: float64(l.P99) / 1000,
		service: each(service), database: each(database), memory: peakMemory(pid)}, nil
}

// startDistance serves the database's socket in a folder, a delay away, and notes how long a
// round trip takes.
func (b *bench) startDistance(ctx context.Context, r *row, folder string) error {
	if err := os.Mkdir(folder, 0o700); err != nil {
		return err
	}
	socket := b.server.Socket()
	listener, err := net.Listen("unix", filepath.Join(folder, filepath.Base(socket)))
	if err != nil {
		return err
	}
	go serveDistance(listener, socket, r.delay)
	conn, err := pgx.Connect(ctx, b.plain.url(folder))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	const pings = 100
	start := time.Now()
	for range pings {
		if err := conn.Ping(ctx); err != nil {
			return err
		}
	}
	r.note = fmt.Sprintf("\nA round trip to the database takes %.2f ms.\n", time.Since(start).Seconds()*1000/pings)
	return nil
}

// begin starts a contender, and returns it when it listens. Its output goes to /dev/null.
func begin(ctx context.Context, name string, s *store, url string) (*contender, error) {
	c := &contender{name: name, store: s}
	admin, err1 := programs.FreeAddress()
	address, err2 := programs.FreeAddress()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	c.address = address
	cmd := exec.Command(s.program, "serve")
	cmd.Env = append(localpg.Environ("PG", "PLANTSTORE_"), "DATABASE_URL="+url, "PLANTSTORE_ADDR="+address, "PLANTSTORE_ADMIN_ADDR="+admin)
	var err error
	if c.process, err = localpg.StartProcess(cmd, syscall.SIGKILL); err != nil {
		return nil, err
	}
	err = programs.Until(ctx, 10*time.Second, name+" does not listen", func() error {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		c.process.Kill()
	}
	return c, err
}
