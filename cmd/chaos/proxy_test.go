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

// echo starts a server that sends back what it gets, and a proxy before it.
func echo(t *testing.T) *proxy {
	t.Helper()
	p, l := silent(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return p
}

// silent returns a proxy before a listener.
func silent(t *testing.T) (*proxy, net.Listener) {
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
	return p, l
}

// patience limits the wait for bytes that have to come.
const patience = time.Minute

func dial(t *testing.T, p *proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// hearNothing checks that nothing comes: that takes some time, and if it is too
// short for something to come, the test only proves less.
func hearNothing(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read during a fault: %d bytes, error %v, want nothing", n, err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
}

// say sends text and returns as much of the answer as comes.
func say(t *testing.T, conn net.Conn, text string) string {
	t.Helper()
	send(t, conn, text)
	answer := make([]byte, len(text))
	n, err := io.ReadFull(conn, answer)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	return string(answer[:n])
}

func TestProxyCuts(t *testing.T) {
	t.Parallel()
	for _, d := range []direction{answers, requests} {
		p := echo(t)
		open := dial(t, p)
		if got := say(t, open, "before"); got != "before" {
			t.Fatalf("got %q before the fault", got)
		}
		end := p.cutAfter(d, func() int64 { return 8 })
		for name, conn := range map[string]net.Conn{"open": open, "new": dial(t, p)} {
			if got := say(t, conn, "five."); got != "five." {
				t.Errorf("direction %d, %s connection: got %q of the first 5 bytes", d, name, got)
			}
			// What was passed on before the cut may come back or not.
			want := "six"
			if got := say(t, conn, "sixsix"); got != want && (d == answers || got != "") {
				t.Errorf("direction %d, %s connection: got %q of 6 bytes with 3 to go, want %q", d, name, got, want)
			}
		}
		if n := p.cuts.Load(); n < 2 {
			t.Errorf("%d cuts, want at least 2", n)
		}
		spared := dial(t, p)
		end()
		if got := say(t, spared, strings.Repeat("x", 100)); len(got) != 100 {
			t.Errorf("direction %d: %d of 100 bytes after the fault", d, len(got))
		}
	}
}

// TestProxyKeepsBack checks that what was kept back arrives afterwards, though its sender has
// closed the connection.
func TestProxyKeepsBack(t *testing.T) {
	t.Parallel()
	for name, keepBack := range map[string]func(*proxy) (end func()){
		"black hole": (*proxy).blackHole,
		"hold":       func(p *proxy) func() { end := p.hold(); return func() { end() } },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, l := silent(t)
			// Once something has passed, the proxy knows the connection.
			connect := func() (sender, server net.Conn) {
				sender = dial(t, p)
				server, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { server.Close() })
				send(t, sender, "x")
				if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				return sender, server
			}
			sender, server := connect()
			end := keepBack(p)
			send(t, sender, "DELETE")
			sender.Close()
			if name == "hold" {
				connect() // a new connection works
			}
			hearNothing(t, server)
			end()
			if got, err := io.ReadAll(server); string(got) != "DELETE" || err != nil {
				t.Errorf("the server got %q, error %v, afterwards", got, err)
			}
			if n := p.lates.Load(); name == "hold" && n != 1 {
				t.Errorf("%d times something was kept back, want 1", n)
			}
		})
	}
}

func TestProxyWithoutServerResets(t *testing.T) {
	t.Parallel()
	p := echo(t)
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
