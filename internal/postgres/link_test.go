package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"plantstore/internal/pgtest"
)

// simulated runs a test in a bubble that begins at the real time, which the database has, too.
// The clock stands still while somebody waits for the database.
func simulated(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	now := time.Now()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(now)) // a bubble begins in the year 2000
		test(t)
	})
}

// A link is the network between a service and PostgreSQL. It counts the messages that
// deletions exchange with the server, on all connections, and breaks the connection that
// passes a certain one. It is within the process: silence takes simulated time only.
type link struct {
	mu        sync.Mutex
	down      bool        // nobody can connect
	breaches  []breach    // the breaches to come, one after the other
	passed    [2]int      // messages since the last breach, by direction
	exchanges int         // exchanges that ended since the last breach
	mute      []*linkConn // connections that fell silent, until finish

	log bytes.Buffer // the service's
}

type direction int

const (
	toServer direction = iota
	toService
)

func (d direction) String() string { return [...]string{"request", "answer"}[d] }

// A breach hits the connection that passes a number of messages in one direction. Either the
// connection is reset, or it falls silent: neither side is told, and later requests arrive late.
type breach struct {
	direction direction
	after     int
	silent    bool
	late      int // of a silent one: the requests arrive when so many more exchanges have ended
}

// afterAnswer is a breach.late: after the client has its answer.
const afterAnswer = -1

// simulable are the product's limits without those that the server keeps in real time.
func simulable() limits {
	l := defaults
	l.batchLock, l.batchStatement, l.soloLock, l.soloStatement = time.Hour, time.Hour, time.Hour, time.Hour
	return l
}

// linked opens a service behind a link.
func linked(t *testing.T, database pgtest.Database, l limits) (*DB, *link) {
	t.Helper()
	k := &link{}
	// The timeout is the service's own.
	url := strings.Replace(database.App, "connect_timeout=60", "sslmode=disable&pool_max_conns=8", 1)
	// A simulated minute, in which the driver closes the connections that it gave up.
	t.Cleanup(func() { time.Sleep(time.Minute) })
	return opened(t, Config{URL: url, Log: slog.New(slog.NewTextHandler(&k.log, nil)), limits: &l, dial: k.dial}), k
}

func (l *link) dial(ctx context.Context, network, address string) (net.Conn, error) {
	l.mu.Lock()
	down := l.down
	l.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	conn, err := (&net.Dialer{}).DialContext(context.WithoutCancel(ctx), network, address) // a deadline would be a real one
	if err != nil {
		return nil, err
	}
	nobody, _ := net.Pipe()
	return &linkConn{Conn: conn, link: l, nobody: nobody, begins: true}, nil
}

// setDown begins or ends an outage.
func (l *link) setDown(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
}

// arm sets the breaches to come, and begins to count.
func (l *link) arm(breaches ...breach) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.breaches, l.passed = breaches, [2]int{}
}

// disarm returns how many messages passed since the last breach, and how many breaches did not
// happen.
func (l *link) disarm() (passed [2]int, missed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	passed, missed, l.breaches = l.passed, len(l.breaches), nil
	return passed, missed
}

// pids are the server's processes behind connections that fell silent.
func (l *link) pids() (pids []int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.mute {
		pids = append(pids, int32(c.pid))
	}
	return pids
}

// finish delivers all held bytes and ends the connections that fell silent.
func (l *link) finish() {
	l.mu.Lock()
	mute := l.mute
	l.mute = nil
	l.mu.Unlock()
	for _, c := range mute {
		c.deliver()
	}
}

// A linkConn is a connection through a link.
type linkConn struct {
	net.Conn
	link *link
	// nobody is one end of a pipe whose other end is unused. A silent connection reads from it,
	// and so keeps deadlines in simulated time.
	nobody net.Conn

	deliverOnce sync.Once

	// Guarded by link.mu:
	started bool // the first message, which has no type, is over
	ready   bool // the service has prepared the session, which ends with a ping
	pid     uint32
	begins  bool // the next request begins an exchange
	pings   bool // the exchange is a ping, or another one of the simple protocol
	counts  bool // the exchange executes a statement, and its messages count
	broken  *breach
	held    []byte
	message [2][]byte // what has come of the present message
}

const cancelRequest = 80877102

// pass returns how many bytes arrive before a breach, and whether an exchange ends with them.
// It is called with link.mu held.
func (c *linkConn) pass(d direction, b []byte) (n int, hit, ended bool) {
	l := c.link
	for at, x := range b {
		if len(c.message[d]) == 0 && (d == toService || c.started) {
			if d == toServer && c.begins {
				c.begins, c.pings, c.counts = false, x == 'Q', c.ready && x == 'B'
			}
			if c.counts {
				if c.hits(d) {
					return at, true, ended
				}
				l.passed[d]++
			}
		}
		c.message[d] = append(c.message[d], x)
		if c.complete(d) {
			ended = c.completed(d) || ended
			c.message[d] = c.message[d][:0]
		}
	}
	return len(b), false, ended
}

func (c *linkConn) hits(d direction) bool {
	l := c.link
	if len(l.breaches) == 0 || l.breaches[0].direction != d || l.breaches[0].after != l.passed[d] {
		return false
	}
	c.broken, l.breaches, l.passed, l.exchanges = &l.breaches[0], l.breaches[1:], [2]int{}, 0
	if c.broken.silent {
		l.mute = append(l.mute, c)
	}
	return true
}

func (c *linkConn) complete(d direction) bool {
	m, header := c.message[d], 1
	if d == toServer && !c.started {
		header = 0
	}
	return len(m) >= header+4 && len(m) == header+int(binary.BigEndian.Uint32(m[header:]))
}

// completed reports whether a message ends an exchange that executed a statement.
func (c *linkConn) completed(d direction) bool {
	switch m := c.message[d]; {
	case d == toServer:
		c.started = true
	case m[0] == 'K':
		c.pid = binary.BigEndian.Uint32(m[5:])
	case m[0] == 'Z':
		c.begins, c.ready = true, c.ready || c.pings
		return c.counts
	}
	return false
}

// drain ends the connection and waits for the server to end its process. Before that, the server
// executes the messages that arrived.
func (c *linkConn) drain() {
	_ = c.Conn.(interface{ CloseWrite() error }).CloseWrite() // it may be closed already
	_, _ = io.Copy(io.Discard, c.Conn)
	c.Conn.Close()
}

// deliver sends the held bytes to the server.
func (c *linkConn) deliver() {
	c.deliverOnce.Do(func() {
		c.link.mu.Lock()
		held := c.held
		c.link.mu.Unlock()
		_ = c.Conn.SetDeadline(time.Time{})
		_, _ = c.Conn.Write(held) // the server may have ended the process
		c.drain()
	})
}

// deliverDue delivers the held bytes that are due now.
func (l *link) deliverDue(exchangeEnded bool) {
	l.mu.Lock()
	var due []*linkConn
	if exchangeEnded {
		l.exchanges++
	}
	for _, c := range l.mute {
		if c.broken.late == l.exchanges {
			due = append(due, c)
		}
	}
	l.mu.Unlock()
	for _, c := range due {
		c.deliver()
	}
}

func (c *linkConn) Write(b []byte) (int, error) {
	l := c.link
	l.mu.Lock()
	if !c.started && len(b) >= 16 && binary.BigEndian.Uint32(b[4:]) == cancelRequest &&
		slices.ContainsFunc(l.mute, func(m *linkConn) bool { return m.pid == binary.BigEndian.Uint32(b[8:]) }) {
		c.broken = &breach{silent: true} // a cancel request falls silent with its connection
	}
	arrive, hit := 0, false
	if c.broken == nil {
		arrive, hit, _ = c.pass(toServer, b)
	}
	broken := c.broken
	if broken != nil && broken.silent {
		c.held = append(c.held, b[arrive:]...)
	}
	l.mu.Unlock()
	var err error
	if arrive > 0 {
		arrive, err = c.Conn.Write(b[:arrive])
	}
	switch {
	case broken == nil || err != nil:
		return arrive, err
	case broken.silent:
		return len(b), nil
	case hit:
		c.drain()
	}
	return arrive, syscall.ECONNRESET
}

func (c *linkConn) Read(b []byte) (int, error) {
	for {
		c.link.mu.Lock()
		broken := c.broken
		c.link.mu.Unlock()
		switch {
		case broken != nil && broken.silent:
			n, err := c.nobody.Read(b)
			c.link.deliverDue(false) // the service gives the connection up
			return n, err
		case broken != nil:
			return 0, syscall.ECONNRESET
		}
		n, err := c.Conn.Read(b)
		c.link.mu.Lock()
		n, hit, ended := c.pass(toService, b[:n])
		c.link.mu.Unlock()
		if hit && !c.broken.silent {
			c.drain()
		}
		if ended {
			c.link.deliverDue(true)
		}
		if n > 0 || !hit {
			return n, err
		}
	}
}

// SetDeadline sets a deadline in simulated time, which only a silent connection keeps. A
// stalled machine could miss the deadline of one that works.
func (c *linkConn) SetDeadline(t time.Time) error {
	over := t
	if time.Until(t) > 0 {
		over = time.Time{} // none
	}
	_ = c.Conn.SetDeadline(over) // it may be closed already
	return c.nobody.SetDeadline(t)
}

func (c *linkConn) SetReadDeadline(t time.Time) error  { return c.SetDeadline(t) }
func (c *linkConn) SetWriteDeadline(t time.Time) error { return c.SetDeadline(t) }

// Close leaves the server's side of a silent connection as it is.
func (c *linkConn) Close() error {
	c.link.mu.Lock()
	silent := c.broken != nil && c.broken.silent && c.ready
	c.link.mu.Unlock()
	c.nobody.Close()
	if silent {
		return nil
	}
	return c.Conn.Close()
}
