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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
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
	p, err := newProxy(address{"tcp", l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
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

// hearNothing checks that nothing comes: that takes some time, and if it is too
// short for something to come, the test only proves less.
func hearNothing(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read in a black hole: %d bytes, error %v, want nothing", n, err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
}

// end returns with what error a connection ends that is never answered. A new one
// is made for it if there is none: then connecting may fail already.
func end(p *proxy, conn net.Conn) error {
	if conn == nil {
		var err error
		if conn, err = net.Dial("tcp", p.listener.Addr().String()); err != nil {
			return err
		}
		defer conn.Close()
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1))
	return err
}

// say sends text and returns as much of the answer as comes.
func say(t *testing.T, conn net.Conn, text string) string {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
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
		p.cutAfter(d, func() int64 { return 8 })
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
		p.restore(d)
		if got := say(t, spared, strings.Repeat("x", 100)); len(got) != 100 {
			t.Errorf("direction %d: %d of 100 bytes after the fault", d, len(got))
		}
	}
}

func TestProxyBlackHole(t *testing.T) {
	t.Parallel()
	p := echo(t)
	open := dial(t, p)
	say(t, open, "before")
	first, second := p.blackHole(), p.blackHole()
	made := dial(t, p)
	for _, conn := range []net.Conn{open, made} {
		if _, err := io.WriteString(conn, "late"); err != nil {
			t.Fatal(err)
		}
	}
	first() // of two that are in effect
	for _, conn := range []net.Conn{open, made} {
		hearNothing(t, conn)
	}
	second()
	for _, conn := range []net.Conn{open, made} {
		if got := say(t, conn, "after"); got != "latea" {
			t.Errorf("got %q first, afterwards, want %q", got, "latea")
		}
	}
}

// TestProxyDeliversLate checks that what was kept back arrives afterwards, though its
// sender has closed the connection.
func TestProxyDeliversLate(t *testing.T) {
	t.Parallel()
	t.Run("black hole", func(t *testing.T) {
		t.Parallel()
		deliverLate(t, (*proxy).blackHole)
	})
	t.Run("hold", func(t *testing.T) {
		t.Parallel()
		deliverLate(t, func(p *proxy) func() {
			release := p.hold()
			return func() {
				if n := release(); n != 1 {
					t.Errorf("%d times something was kept back, want 1", n)
				}
			}
		})
	})
}

func deliverLate(t *testing.T, keepBack func(*proxy) (end func())) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := newProxy(address{"tcp", l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	sender := dial(t, p)
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	// Once something has passed, the proxy knows the connection.
	if _, err := io.WriteString(sender, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	over := keepBack(p)
	if _, err := io.WriteString(sender, "DELETE"); err != nil {
		t.Fatal(err)
	}
	sender.Close()
	hearNothing(t, server)
	over()
	if got, err := io.ReadAll(server); string(got) != "DELETE" || err != nil {
		t.Errorf("the server got %q, error %v, afterwards", got, err)
	}
}

func TestProxyHolds(t *testing.T) {
	t.Parallel()
	p := echo(t)
	open := dial(t, p)
	say(t, open, "before")
	release := p.hold()
	if _, err := io.WriteString(open, "late"); err != nil {
		t.Fatal(err)
	}
	if got := say(t, dial(t, p), "new"); got != "new" {
		t.Errorf("got %q on a connection made meanwhile", got)
	}
	hearNothing(t, open)
	if n := release(); n != 1 {
		t.Errorf("%d times something was kept back, want 1", n)
	}
	if got := say(t, open, "after"); got != "latea" {
		t.Errorf("got %q first, afterwards, want %q", got, "latea")
	}
}

func TestProxyRefuses(t *testing.T) {
	t.Parallel()
	p := echo(t)
	open := dial(t, p)
	say(t, open, "before")
	over := p.refuse()
	for name, conn := range map[string]net.Conn{"open": open, "new": nil} {
		if err := end(p, conn); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s connection: %v, want a reset", name, err)
		}
	}
	over()
	if got := say(t, dial(t, p), "after"); got != "after" {
		t.Errorf("got %q afterwards", got)
	}
	p.setTarget(address{})
	if err := end(p, nil); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("without a server: %v, want a reset", err)
	}
}
