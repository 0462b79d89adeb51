//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// start starts a proxy before a server that handle serves each connection of, and
// returns a function that connects to it.
func start(t *testing.T, delay time.Duration, handle func(net.Conn)) (dial func() net.Conn) {
	t.Helper()
	folder := t.TempDir()
	server, err := net.Listen("unix", filepath.Join(folder, "server"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				handle(conn)
			}()
		}
	}()
	at := filepath.Join(folder, "proxy")
	p, err := listen(at, filepath.Join(folder, "server"), delay)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.serve() }()
	t.Cleanup(func() {
		p.stop()
		if err := <-ended; err != nil {
			t.Errorf("serve returned %v, want nil", err)
		}
		p.close()
	})
	return func() net.Conn {
		t.Helper()
		conn, err := net.Dial("unix", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
}

func echo(conn net.Conn) { _, _ = io.Copy(conn, conn) }

// TestPiecesArriveAfterTheDelayInOrder sends on many connections, again and again
// before the first response.
func TestPiecesArriveAfterTheDelayInOrder(t *testing.T) {
	t.Parallel()
	const delay, connections, pieces = 50 * time.Millisecond, 32, 10
	dial := start(t, delay, echo)
	done := make(chan error)
	exchange := func(conn net.Conn) error {
		var sent time.Time
		for i := range pieces {
			sent = time.Now()
			if _, err := conn.Write([]byte{byte(i)}); err != nil {
				return err
			}
		}
		got := make([]byte, pieces)
		if _, err := io.ReadFull(conn, got); err != nil {
			return err
		}
		if took := time.Since(sent); took < delay {
			return fmt.Errorf("the last response came %s after its request, want at least %s", took, delay)
		}
		for i, b := range got {
			if int(b) != i {
				return fmt.Errorf("got responses %v, want them in order", got)
			}
		}
		return nil
	}
	for range connections {
		conn := dial()
		go func() { done <- exchange(conn) }()
	}
	for range connections {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestEveryByteArrives sends more than sockets hold, to a server that does not read
// for a while, beside a connection that must not mind.
func TestEveryByteArrives(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	read := make(chan struct{})
	dial := start(t, time.Millisecond, func(conn net.Conn) {
		first := make([]byte, 1)
		if _, err := io.ReadFull(conn, first); err != nil {
			return
		}
		if first[0] == 'w' {
			<-read
		}
		echo(conn)
	})
	sent := make([]byte, size)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(sent)
	large, other := dial(), dial()
	written := make(chan error, 1)
	go func() {
		_, err := large.Write(append([]byte{'w'}, sent...))
		written <- err
	}()
	if err := <-written; err != nil { // the proxy takes everything
		t.Fatal(err)
	}
	if _, err := other.Write([]byte("go")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(other, make([]byte, 1)); err != nil {
		t.Fatalf("another connection got no response: %v", err)
	}
	close(read)
	got := make([]byte, size)
	if _, err := io.ReadFull(large, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, sent) {
		t.Error("other bytes came back than were sent")
	}
}

func TestHangingUpIsPassedOn(t *testing.T) {
	t.Parallel()
	gone := make(chan error, 1)
	dial := start(t, time.Millisecond, func(conn net.Conn) {
		request := make([]byte, 1)
		_, _ = io.ReadFull(conn, request)
		if request[0] == 'e' {
			_, _ = conn.Write([]byte("bye"))
			return
		}
		_, err := io.ReadFull(conn, request)
		gone <- err
	})
	ended := dial()
	if _, err := ended.Write([]byte("e")); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(ended); err != nil || string(got) != "bye" {
		t.Errorf("got %q, %v from a server that hung up, want its last words and the end", got, err)
	}
	ending := dial()
	if _, err := ending.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	ending.Close()
	if err := <-gone; err != io.EOF {
		t.Errorf("the server read %v from a client that hung up, want EOF", err)
	}
}
