package main

import (
	"errors"
	"fmt"
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
	silent   sync.RWMutex // locked by a black hole; whoever passes bytes on reads it

	mu     sync.Mutex
	target string // socket of the server; empty: connections are reset
	links  map[*link]struct{}
	closed bool
	draw   func() *cut // for a new connection; nil: no cuts
}

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
	cut            atomic.Pointer[cut] // nil: none
	held           sync.RWMutex        // locked by hold; requests read it
}

// A cut ends a connection once some more bytes went in a direction.
type cut struct {
	direction
	left atomic.Int64
}

func newProxy(target string) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p := &proxy{listener: listener, target: target, links: make(map[*link]struct{})}
	p.tasks.Go(p.accept)
	return p, nil
}

// port is where the proxy listens.
func (p *proxy) port() int { return p.listener.Addr().(*net.TCPAddr).Port }

// setTarget sets the server of new connections.
func (p *proxy) setTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// cutAfter cuts every connection, open or new, until end is called. left returns for each how
// many more bytes still arrive in the direction. There is one cutAfter at a time.
func (p *proxy) cutAfter(d direction, left func() int64) (end func()) {
	set := func(draw func() *cut) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.draw = draw
		for l := range p.links {
			l.cut.Store(draw())
		}
	}
	set(func() *cut {
		c := &cut{direction: d}
		c.left.Store(left())
		return c
	})
	return func() { set(func() *cut { return nil }) }
}

// blackHole keeps back everything in both directions, also the end of connections, until end
// is called. New connections are accepted and hear nothing. Afterwards all of it arrives, also
// a statement whose sender gave up long ago. A second black hole begins when the first ends.
func (p *proxy) blackHole() (end func()) {
	p.silent.Lock()
	return p.silent.Unlock
}

// hold keeps back the bytes to the server on the connections that are open now, until release
// is called. Then the bytes arrive, even if their client has closed its side. release returns
// how often bytes were kept back. There is one hold at a time.
func (p *proxy) hold() (release func() int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.lates.Load()
	var held []*link
	for l := range p.links {
		l.held.Lock()
		held = append(held, l)
	}
	return func() int64 {
		for _, l := range held {
			l.held.Unlock()
		}
		return p.lates.Load() - before
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
	p.silent.RLock()
	defer p.silent.RUnlock()
}

// serve passes bytes between a client and the server until one of them, or a fault, ends the
// connection.
func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	p.pass()
	l := p.connect(client)
	if l == nil {
		_ = client.(*net.TCPConn).SetLinger(0) // makes the close a reset
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
	server, err := net.DialTimeout("unix", target, time.Second)
	if err != nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		server.Close()
		return nil
	}
	l := &link{client: client, server: server}
	if p.draw != nil {
		l.cut.Store(p.draw())
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
		if d == requests && n > 0 {
			if !l.held.TryRLock() {
				p.lates.Add(1)
				l.held.RLock()
			}
			l.held.RUnlock()
		}
		if c := l.cut.Load(); c != nil && c.direction == d {
			if left := c.left.Add(-int64(n)); left <= 0 {
				_, _ = dst.Write(buffer[:max(0, int64(n)+left)]) // the connection ends either way
				p.cuts.Add(1)
				return
			}
		}
		if _, werr := dst.Write(buffer[:n]); werr != nil || err != nil {
			return
		}
	}
}
