package server

import (
	"container/list"
	"net"
	"net/http"
	"sync"
	"time"
)

// speechless is how long a new connection may say nothing before it counts as idle.
const speechless = time.Second

// connections is a listener that bounds how many of its connections are open. At
// the limit, a new one takes the place of the one that has been idle for longest;
// if none is idle, it waits until one is.
type connections struct {
	net.Listener
	limit  int
	closed chan struct{}

	mu   sync.Mutex
	open int
	// quiet has those that no request is being answered on, since when, in the order
	// of time.
	quiet   *list.List
	element map[net.Conn]*list.Element
	// greeted has the connections of HTTP/2 that have been idle. The first time, nothing
	// has come but the client's greeting.
	greeted map[net.Conn]bool
	changed chan struct{} // gets a value when there may be room
}

type quietConn struct {
	net.Conn
	since time.Time
	idle  bool // has been of use; else nothing came yet
}

// limited bounds the connections of a server to limit.
func limited(srv *http.Server, l net.Listener, limit int) net.Listener {
	c := &connections{Listener: l, limit: limit, closed: make(chan struct{}), quiet: list.New(),
		element: make(map[net.Conn]*list.Element), greeted: make(map[net.Conn]bool), changed: make(chan struct{}, 1)}
	srv.ConnState = c.note
	return c
}

// Accept implements net.Listener. The connection that waits for room is one more
// than the limit.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	for !c.admit() {
		select {
		case <-c.closed:
			conn.Close()
			return nil, net.ErrClosed
		case <-c.changed:
		case <-time.After(speechless / 10):
		}
	}
	return conn, nil
}

// Close implements net.Listener.
func (c *connections) Close() error {
	close(c.closed)
	return c.Listener.Close()
}

// admit makes room for one connection, if it can.
func (c *connections) admit() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := c.quiet.Front(); e != nil && c.open >= c.limit; e = e.Next() {
		if q := e.Value.(quietConn); q.idle || time.Since(q.since) >= speechless {
			// The server notices, and we are told. What its client may be sending now
			// is lost, as with any idle connection that a server ends.
			hangUp(q.Conn)
			return false
		}
	}
	if c.open >= c.limit {
		return false
	}
	c.open++
	return true
}

// note is the server's ConnState.
func (c *connections) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.element[conn]; ok {
		c.quiet.Remove(e)
		delete(c.element, conn)
	}
	switch state {
	case http.StateNew, http.StateIdle:
		idle := state == http.StateIdle
		if idle && isHTTP2(conn) && !c.greeted[conn] {
			c.greeted[conn], idle = true, false
		}
		c.element[conn] = c.quiet.PushBack(quietConn{conn, time.Now(), idle})
	case http.StateClosed, http.StateHijacked:
		c.open--
		delete(c.greeted, conn)
	default:
		return
	}
	select {
	case c.changed <- struct{}{}:
	default:
	}
}
