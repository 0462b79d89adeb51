package main

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// startProxy starts a proxy. connect returns both ends of a connection through it, on which one
// byte has passed from the client to the server.
func startProxy(t *testing.T) (p *proxy, connect func() (client, server net.Conn)) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err1 := net.Listen("unix", socket)
	p, err2 := newProxy(socket)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p, func() (client, server net.Conn) {
		client, err := net.Dial("tcp", p.listener.Addr().String())
		if err == nil {
			server, err = listener.Accept()
		}
		if err != nil {
			t.Fatal(err)
		}
		send(t, client, "x")
		if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return client, server
	}
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
			p, connect := startProxy(t)
			for i, want := range []string{"five.six", "five.six"[:8-d]} { // connect has passed a byte of the second's requests
				from, to := connect()
				if d == answers {
					from, to = to, from
				}
				if i == 0 {
					p.cutAfter(d, func() int64 { return 8 })
				}
				send(t, from, "five.sixsix")
				from.Close()
				wantAll(t, to, want)
			}
			if n := p.cuts.Load(); n != 2 {
				t.Errorf("%d cuts, want 2", n)
			}
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
			p, connect := startProxy(t)
			sender, server := connect()
			end := keepBack(p)
			send(t, sender, "DELETE")
			sender.Close()
			if name == "hold" {
				connect() // a new connection works
			}
			// If this time is too short for bytes to arrive, the test proves less but does not fail.
			if err := server.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			if n, err := server.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("read during the fault: %d bytes, error %v, want nothing", n, err)
			}
			_ = server.SetReadDeadline(time.Time{}) // wantAll reports a failure
			end()
			wantAll(t, server, "DELETE")
			if n := p.lates.Load(); name == "hold" && n != 1 {
				t.Errorf("%d times something was kept back, want 1", n)
			}
		})
	}
}
