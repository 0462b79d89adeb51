package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A proxy is the network between the service and one database server. It listens on one port
// of 127.0.0.1, and passes bytes on unless a fault is in effect.
type proxy struct {
	listener net.Listener
	tasks    sync.WaitGroup
	cuts     atomic.Int64 // connections that were cut after N bytes
	lates    atomic.Int64 // how often hold kept something back

	mu       sync.Mutex
	target   address
	links    map[*link]struct{}
	holes    int           // black holes in effect
	open     chan struct{} // closed while bytes pass
	refusing bool
	closed   bool
	draw     [2]func() int64 // by direction: how many bytes a new connection may pass
}

// An address is where a server listens: what net.Dial takes.
type address struct{ network, address string }

// A direction is which way bytes go.
type direction int

const (
	answers  direction = iota // from the server to the service
	requests                  // from the service to the server
)

// distance is how long bytes are under way, as between two data centres of one city. It keeps
// more requests in flight than a connection within one machine would.
const distance = time.Millisecond

// A link is one connection through the proxy.
type link struct {
	client, server net.Conn
	left           [2]atomic.Int64               // bytes that may pass yet, by direction
	gate           atomic.Pointer[chan struct{}] // of hold: closed when requests may arrive; nil: none
}

func newProxy(target address) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p := &proxy{listener: listener, target: target, links: make(map[*link]struct{}), open: make(chan struct{})}
	close(p.open)
	p.tasks.Go(p.accept)
	return p, nil
}

// port is where the proxy listens.
func (p *proxy) port() int { return p.listener.Addr().(*net.TCPAddr).Port }

// setTarget names the server of new connections. With the zero address they are reset.
func (p *proxy) setTarget(target address) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// cutAfter cuts every connection, open or new, once as many more bytes went in one direction
// as draw returns for it, until restore. Those bytes still arrive.
func (p *proxy) cutAfter(d direction, draw func() int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draw[d] = draw
	for l := range p.links {
		l.left[d].Store(draw())
	}
}

// restore ends cutAfter for the connections that were not cut.
func (p *proxy) restore(d direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draw[d] = nil
	for l := range p.links {
		l.left[d].Store(math.MaxInt64)
	}
}

// blackHole keeps back everything in both directions, also the end of connections, until end
// is called. New connections are accepted and hear nothing. Afterwards all of it arrives, also
// a statement whose sender gave up long ago.
func (p *proxy) blackHole() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holes == 0 {
		p.open = make(chan struct{})
	}
	p.holes++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.holes--; p.holes == 0 {
			close(p.open)
		}
	}
}

// hold keeps back what goes to the server on the connections that are open now, until release
// is called. Then it arrives, also from a client that has closed its side and gone elsewhere.
// release returns how often something was kept back. There is one hold at a time.
func (p *proxy) hold() (release func() int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, gate := p.lates.Load(), make(chan struct{})
	for l := range p.links {
		l.gate.Store(&gate)
	}
	return func() int64 {
		close(gate)
		return p.lates.Load() - before
	}
}

// refuse resets every connection, open or new, until end is called.
func (p *proxy) refuse() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusing = true
	for l := range p.links {
		reset(l.client)
		l.server.Close()
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refusing = false
	}
}

// close ends every connection and returns when nothing of the proxy is left. No fault may be
// in effect.
func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.listener.Close()
	for l := range p.links {
		l.client.Close()
		l.server.Close()
	}
	p.mu.Unlock()
	p.tasks.Wait()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of file descriptors, or the like
			time.Sleep(10 * time.Millisecond)
			continue
		}
		p.tasks.Go(func() { p.serve(client) })
	}
}

// pass waits for the end of a black hole.
func (p *proxy) pass() {
	p.mu.Lock()
	open := p.open
	p.mu.Unlock()
	<-open
}

// serve passes bytes between a client and the server until one of them, or a fault, ends the
// connection.
func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	p.pass()
	l := p.connect(client)
	if l == nil {
		reset(client)
		return
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { p.pump(l, requests, l.server, client) })
	pumps.Go(func() { p.pump(l, answers, client, l.server) })
	pumps.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// connect returns a link to the server, or nil if a fault forbids it or the server is down.
func (p *proxy) connect(client net.Conn) *link {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	if target == (address{}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	server, err := new(net.Dialer).DialContext(ctx, target.network, target.address)
	if err != nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.refusing {
		server.Close()
		return nil
	}
	l := &link{client: client, server: server}
	for d, draw := range p.draw {
		l.left[d].Store(math.MaxInt64)
		if draw != nil {
			l.left[d].Store(draw())
		}
	}
	p.links[l] = struct{}{}
	return l
}

// pump passes bytes one way. When it ends, so does the connection.
func (p *proxy) pump(l *link, d direction, dst, src net.Conn) {
	defer dst.Close()
	defer src.Close()
	buffer := make([]byte, 16<<10)
	for {
		n, err := src.Read(buffer)
		time.Sleep(distance)
		p.pass()
		if n > 0 {
			if gate := l.gate.Load(); d == requests && gate != nil {
				select {
				case <-*gate:
				default:
					p.lates.Add(1)
					<-*gate
				}
			}
			left := l.left[d].Add(-int64(n))
			if _, werr := dst.Write(buffer[:max(0, min(int64(n), int64(n)+left))]); werr != nil {
				return
			}
			if left <= 0 {
				p.cuts.Add(1)
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// reset closes a connection so that its peer sees a reset.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // the connection is given up either way
	}
	conn.Close()
}
