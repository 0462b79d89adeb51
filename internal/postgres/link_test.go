package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/pgtest"
)

// A link is the network between one pool of the service and PostgreSQL. It counts
// the bytes of each direction, over all connections that are ready for work, and
// breaks the connection that passes a certain one.
//
// It is within the process and not behind a port: the clock can be simulated, so
// that silence takes no time, and who sent how much is known to the byte.
type link struct {
	mu       sync.Mutex
	breaches []breach // those to come, one after the other
	traffic  traffic  // since the last of them
	down     bool     // nobody can connect
	quiet    bool     // a connection fell silent, and cancel requests do so, too
	conns    []*linkConn
	parsed   map[string]string // the statements that were prepared, by their names
}

// A direction is which way bytes go.
type direction int

const (
	toServer direction = iota
	toService
)

func (d direction) String() string { return [...]string{"the requests", "the answers"}[d] }

// traffic is what passed in each direction.
type traffic struct {
	bytes  [2]int
	starts [2][]int // where the messages of PostgreSQL's protocol began
}

// A breach hits the connection that passes the byte after a number of others in one
// direction. That byte, and what follows it either way, does not arrive.
type breach struct {
	direction direction
	after     int
	way       way
	// outage resets all other connections, and allows no new ones until up.
	outage bool
	// first, if set, is called before that happens, and then when it has happened, before
	// the service notices.
	first, then func()
}

// A way is how a connection breaks.
type way int

const (
	// byReset: both sides see a reset.
	byReset way = iota
	// byEnd: it ends in good order. What came before is still answered.
	byEnd
	// byFatal is byEnd with a last word for the service: that the session is ended.
	byFatal
	// bySilence: neither side is told.
	bySilence
	// byHolding is bySilence, but deliver has the requests arrive after all.
	byHolding
)

func (b breach) String() string {
	s := [...]string{"reset", "end of stream", "FATAL", "silence", "held bytes"}[b.way]
	if b.outage {
		s += " and an outage"
	}
	return s + " in " + b.direction.String()
}

func (b *breach) mute() bool { return b != nil && (b.way == bySilence || b.way == byHolding) }

// newLink opens a store whose service is behind a link. Its connections have
// statements prepared, as if they had been used for a while.
func newLink(t *testing.T, database pgtest.Database, size int, prepared map[string]string) (store, *link) {
	t.Helper()
	s := storeOn(t, database, "")
	l := &link{parsed: make(map[string]string)}
	config := s.pool.Config()
	config.MaxConns = int32(size)
	dial, prepare := config.ConnConfig.DialFunc, config.AfterConnect
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		l.mu.Lock()
		down := l.down
		l.mu.Unlock()
		if down {
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		ours := conn.(*briefFarewell)
		nobody, _ := net.Pipe()
		ours.Conn = &linkConn{Conn: ours.Conn, link: l, nobody: nobody}
		return ours, nil
	}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if err := prepare(ctx, conn); err != nil {
			return err
		}
		all := parsedOn(conn.PgConn())
		for name, sql := range prepared {
			if own, _ := all.name(sql); name != own { // the driver's
				if _, err := conn.Prepare(ctx, sql, sql); err != nil {
					return err
				}
				continue
			}
			if _, err := conn.PgConn().Prepare(ctx, name, sql, nil); err != nil {
				return err
			}
			all.Store(sql, name)
		}
		c := conn.PgConn().Conn().(*briefFarewell).Conn.(*linkConn)
		l.mu.Lock()
		defer l.mu.Unlock()
		c.ready, c.pid = true, conn.PgConn().PID()
		l.conns = append(l.conns, c)
		return nil
	}
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	s.DB.pool.Close()
	s.DB.pool = p
	return s, l
}

// arm starts counting anew, towards breaches to come.
func (l *link) arm(breaches []breach) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.breaches, l.traffic, l.quiet = slices.Clone(breaches), traffic{}, false
}

// up ends an outage. It returns what passed since the last breach, and how many
// breaches did not come about.
func (l *link) up() (traffic, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
	return l.traffic, len(l.breaches)
}

// deliver has what was held arrive, and ends the connections that fell silent. It
// returns the process ids of the server's side of all broken ones.
func (l *link) deliver() (pids []uint32) {
	silent := make(map[*linkConn][]byte) // with what was held; a farewell may still come
	l.mu.Lock()
	l.conns = slices.DeleteFunc(l.conns, func(c *linkConn) bool {
		if c.broken == nil {
			return false
		}
		pids = append(pids, c.pid)
		if c.broken.mute() {
			silent[c] = c.held
		}
		return true
	})
	l.mu.Unlock()
	for c, held := range silent {
		_, _ = c.Conn.Write(held) // the server may have given the connection up
		closeWrite(c.Conn)
		_, _ = io.Copy(io.Discard, c.Conn)
		c.Conn.Close()
	}
	return pids
}

// A linkConn is a connection through a link.
type linkConn struct {
	net.Conn
	link *link
	// nobody is one end of a pipe without anybody at the other: what is read once
	// the connection is silent. It keeps the deadlines, in simulated time.
	nobody net.Conn

	// Guarded by link.mu:
	ready    bool
	pid      uint32
	broken   *breach
	held     []byte
	lastWord io.Reader
	messages [2]messages
}

// pass counts bytes, and returns how many of them arrive before a breach. The
// connection is broken then, for this side. It is called with link.mu held.
func (c *linkConn) pass(d direction, b []byte) (n int, hit bool) {
	l, n := c.link, len(b)
	if !c.ready {
		return n, false
	}
	if hit = len(l.breaches) > 0 && l.breaches[0].direction == d && l.breaches[0].after < l.traffic.bytes[d]+n; hit {
		n = l.breaches[0].after - l.traffic.bytes[d]
	}
	c.messages[d].scan(b[:n],
		func(at int) { l.traffic.starts[d] = append(l.traffic.starts[d], l.traffic.bytes[d]+at) },
		func(name, sql string) { l.parsed[name] = sql })
	l.traffic.bytes[d] += n
	if hit {
		c.broken, l.breaches, l.traffic = &l.breaches[0], l.breaches[1:], traffic{}
		l.quiet = l.quiet || c.broken.mute() || c.broken.outage
		if c.broken.way == byFatal {
			word, err := (&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "57P05", Message: "idle for too long"}).Encode(nil)
			if err != nil {
				panic(err) // a constant
			}
			c.lastWord = bytes.NewReader(word)
		}
	}
	return n, hit
}

// breakDown is what a breach does to the server's side, and to other connections.
func (c *linkConn) breakDown() {
	if c.broken.first != nil {
		c.broken.first()
	}
	switch c.broken.way {
	case byReset:
		reset(c.Conn)
	case byEnd, byFatal:
		closeWrite(c.Conn)
	}
	if c.broken.then != nil {
		c.broken.then()
	}
	if !c.broken.outage {
		return
	}
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.link.down = true
	for _, other := range c.link.conns {
		if other.broken == nil {
			other.broken = &breach{way: byReset}
			reset(other.Conn)
		}
	}
}

const cancelRequest = 80877102

func (c *linkConn) Write(b []byte) (int, error) {
	c.link.mu.Lock()
	if !c.ready && c.link.quiet && len(b) >= 16 && binary.BigEndian.Uint32(b[4:]) == cancelRequest {
		c.broken = &breach{way: bySilence}
	}
	arrive, hit := 0, false
	if c.broken == nil {
		arrive, hit = c.pass(toServer, b)
	}
	broken := c.broken
	if broken != nil && broken.way == byHolding {
		c.held = append(c.held, b[arrive:]...)
	}
	c.link.mu.Unlock()

	var err error
	if arrive > 0 {
		arrive, err = c.Conn.Write(b[:arrive])
	}
	if hit {
		c.breakDown()
	}
	switch {
	case broken == nil || err != nil:
		return arrive, err
	case broken.way == byReset:
		return arrive, syscall.ECONNRESET
	}
	return len(b), nil
}

func (c *linkConn) Read(b []byte) (int, error) {
	for {
		c.link.mu.Lock()
		broken := c.broken
		c.link.mu.Unlock()
		switch {
		case broken == nil:
		case broken.way == byReset:
			return 0, syscall.ECONNRESET
		case broken.mute():
			return c.nobody.Read(b)
		case broken.way == byFatal:
			return c.lastWord.Read(b)
		case broken.direction == toService:
			return 0, io.EOF
		}
		n, err := c.Conn.Read(b)
		c.link.mu.Lock()
		hit, meanwhile := false, c.broken != broken
		if !meanwhile && broken == nil {
			n, hit = c.pass(toService, b[:n])
		}
		c.link.mu.Unlock()
		if hit {
			c.breakDown()
		}
		if !meanwhile && (n > 0 || !hit) {
			return n, err
		}
	}
}

// SetDeadline sets what nobody keeps, in simulated time. What is between the process and the
// server takes real time, and a busy machine may take more of that than any deadline.
func (c *linkConn) SetDeadline(t time.Time) error {
	_ = c.Conn.SetDeadline(overOrNone(t)) // it may be closed already
	return c.nobody.SetDeadline(t)
}

func (c *linkConn) SetReadDeadline(t time.Time) error {
	_ = c.Conn.SetReadDeadline(overOrNone(t))
	return c.nobody.SetReadDeadline(t)
}

func (c *linkConn) SetWriteDeadline(t time.Time) error { return c.Conn.SetWriteDeadline(overOrNone(t)) }

// An unhurried connection waits for answers for as long as they take.
type unhurried struct{ net.Conn }

func (c unhurried) SetReadDeadline(t time.Time) error { return c.Conn.SetReadDeadline(overOrNone(t)) }

// overOrNone returns a deadline only if it is over.
func overOrNone(t time.Time) time.Time {
	if time.Until(t) > 0 {
		return time.Time{}
	}
	return t
}

// Close leaves the server's side of a silent connection as it is.
func (c *linkConn) Close() error {
	c.link.mu.Lock()
	if c.broken == nil {
		c.broken = &breach{way: byReset}
	}
	mute := c.broken.mute() && c.ready
	c.link.mu.Unlock()
	c.nobody.Close()
	if mute {
		return nil
	}
	return c.Conn.Close()
}

// reset closes a connection so that its peer sees a reset, where there is such a
// thing.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // the connection is given up either way
	}
	conn.Close()
}

func closeWrite(conn net.Conn) {
	_ = conn.(interface{ CloseWrite() error }).CloseWrite() // it may be closed already
}

// messages finds the messages of PostgreSQL's protocol in a stream.
type messages struct {
	current []byte // what has come of the present one: its type, length and body
}

// scan calls started with the index in b of each message that begins there, and
// parsed with the name and the statement of each Parse that is complete.
func (m *messages) scan(b []byte, started func(at int), parsed func(name, sql string)) {
	for at := range b {
		if len(m.current) == 0 {
			started(at)
		}
		m.current = append(m.current, b[at])
		if len(m.current) < 5 || len(m.current) <= int(binary.BigEndian.Uint32(m.current[1:])) {
			continue
		}
		if m.current[0] == 'P' {
			name, rest, _ := bytes.Cut(m.current[5:], []byte{0})
			sql, _, _ := bytes.Cut(rest, []byte{0})
			parsed(string(name), string(sql))
		}
		m.current = m.current[:0]
	}
}
