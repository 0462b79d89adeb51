package server

import (
	"container/list"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// speechless is how long a new connection may say nothing before it counts as idle.
	speechless = time.Second
	// flushing is how long a connection of HTTP/2 counts as busy after its last answer.
	// net/http calls it idle before it has sent the end of that.
	flushing = speechless / 10
)

// connections is a listener that bounds how many of its connections are open. At
// the limit, a new one takes the place of the one that has been idle for longest;
// if none is idle, it waits until one is.
type connections struct {
	net.Listener
	limit  int
	closed chan struct{}
	// madeRoom is called when an idle connection is ended for a new one; nil: it is not.
	madeRoom func()

	mu   sync.Mutex
	open int
	// quiet has those that no request is being answered on, in the order in which they
	// fell quiet, and all has every one that the server knows.
	quiet   *list.List
	all     map[net.Conn]*clientConn
	changed chan struct{} // gets a value when there may be room
}

type clientConn struct {
	net.Conn
	quiet   *list.Element // its place among the quiet ones; nil: it is busy
	spared  time.Time     // until when it does not make room
	leaving bool          // it makes room
	// greeted: it speaks HTTP/2, and has been idle. The first time, nothing has come but
	// the client's greeting.
	greeted bool
}

// limited bounds the connections of a server to limit.
func limited(srv *http.Server, l net.Listener, limit int) *connections {
	c := &connections{Listener: l, limit: limit, closed: make(chan struct{}), quiet: list.New(),
		all: make(map[net.Conn]*clientConn), changed: make(chan struct{}, 1)}
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
		case <-time.After(flushing):
		}
	}
	return conn, nil
}

// Close implements net.Listener.
func (c *connections) Close() error {
	close(c.closed)
	return c.Listener.Close()
}

// busy is on how many connections a request is being answered.
func (c *connections) busy() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all) - c.quiet.Len()
}

// admit makes room for one connection, if it can.
func (c *connections) admit() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := c.quiet.Front(); e != nil && c.open >= c.limit; e = e.Next() {
		if q := e.Value.(*clientConn); !time.Now().Before(q.spared) {
			// The server notices, and we are told. What its client may be sending now
			// is lost, as with any idle connection that a server ends.
			hangUp(q.Conn)
			if !q.leaving && c.madeRoom != nil {
				c.madeRoom()
			}
			q.leaving = true
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
	client := c.all[conn]
	if client == nil {
		client = &clientConn{Conn: conn}
		c.all[conn] = client
	}
	if client.quiet != nil {
		c.quiet.Remove(client.quiet)
		client.quiet = nil
	}
	switch state {
	case http.StateNew, http.StateIdle:
		var spare time.Duration
		switch {
		case state == http.StateNew:
			spare = speechless
		case !isHTTP2(conn): // its answer was sent
		case !client.greeted:
			client.greeted, spare = true, speechless
		default:
			spare = flushing
		}
		client.spared, client.leaving = time.Now().Add(spare), false
		client.quiet = c.quiet.PushBack(client)
	case http.StateClosed, http.StateHijacked:
		c.open--
		delete(c.all, conn)
	default:
		return
	}
	select {
	case c.changed <- struct{}{}:
	default:
	}
}
