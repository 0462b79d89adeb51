package main

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A proxied is a proxy before a listener.
type proxied struct {
	*proxy
	net.Listener
}

func startProxy(t *testing.T) proxied {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p, err := newProxy(address{"tcp", l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return proxied{p, l}
}

// connect returns both ends of a connection through the proxy, on which one byte has passed
// from the client to the server.
func (p proxied) connect(t *testing.T) (client, server net.Conn) {
	t.Helper()
	client, err := net.Dial("tcp", p.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if server, err = p.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	send(t, client, "x")
	if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return client, server
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// wantAll wants a text on a connection, and then its end.
func wantAll(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	if got, err := io.ReadAll(conn); string(got) != want || err != nil {
		t.Errorf("got %q, error %v, want %q", got, err, want)
	}
}

func TestProxyCutsConnections(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]direction{"answers": answers, "requests": requests} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			connect := func() (from, to net.Conn) {
				if from, to = p.connect(t); d == answers {
					return to, from
				}
				return from, to
			}
			from, to := connect()
			end := p.cutAfter(d, func() int64 { return 8 })
			send(t, from, "five.sixsix")
			wantAll(t, to, "five.six")
			from, to = connect()
			send(t, from, "five.sixsix")
			wantAll(t, to, "five.six"[:8-d]) // the first byte of the requests has passed
			if n := p.cuts.Load(); n != 2 {
				t.Errorf("%d cuts, want 2", n)
			}
			spared, to := connect()
			end()
			send(t, spared, strings.Repeat("x", 100))
			spared.Close()
			wantAll(t, to, strings.Repeat("x", 100))
		})
	}
}

// TestProxyDeliversHeldBytesAfterAClose checks that held bytes arrive afterwards, though their
// sender has closed the connection.
func TestProxyDeliversHeldBytesAfterAClose(t *testing.T) {
	t.Parallel()
	for name, keepBack := range map[string]func(*proxy) (end func()){
		"black hole": (*proxy).blackHole,
		"hold":       func(p *proxy) func() { end := p.hold(); return func() { end() } },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t)
			sender, server := p.connect(t)
			end := keepBack(p.proxy)
			send(t, sender, "DELETE")
			sender.Close()
			if name == "hold" {
				p.connect(t) // a new connection works
			}
			// If this time is too short for bytes to arrive, the test proves less but does not fail.
			if err := server.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			if n, err := server.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("read during the fault: %d bytes, error %v, want nothing", n, err)
			}
			if err := server.SetReadDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
			end()
			wantAll(t, server, "DELETE")
			if n := p.lates.Load(); name == "hold" && n != 1 {
				t.Errorf("%d times something was kept back, want 1", n)
			}
		})
	}
}

func TestProxyWithoutAServerResetsConnections(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	p.setTarget(address{})
	conn, err := net.Dial("tcp", p.listener.Addr().String()) // may fail already
	if err == nil {
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got error %v, want a reset", err)
	}
}
