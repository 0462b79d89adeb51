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

// TestPiecesDoNotWaitForEachOther sends on many connections, again and again
// before the first answer. One after the other, the delays would take minutes.
func TestPiecesDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	const delay, connections, pieces = 200 * time.Millisecond, 32, 10
	dial := start(t, delay, echo)
	began := time.Now()
	done := make(chan error)
	for range connections {
		conn := dial()
		go func() {
			done <- func() error {
				for i := range pieces {
					sent := time.Now()
					if _, err := conn.Write([]byte{byte(i)}); err != nil {
						return err
					}
					if i < pieces-1 {
						continue
					}
					answer := make([]byte, pieces)
					if _, err := io.ReadFull(conn, answer); err != nil {
						return err
					}
					if took := time.Since(sent); took < delay {
						return fmt.Errorf("the last answer came %s after its request, want %s at least", took, delay)
					}
					for j, b := range answer {
						if int(b) != j {
							return fmt.Errorf("got answers %v, want them in order", answer)
						}
					}
				}
				return nil
			}()
		}()
	}
	for range connections {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if took, most := time.Since(began), connections*pieces*delay/2; took > most {
		t.Errorf("it took %s, want much less than the sum of the delays, %s", took, 2*most)
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
		t.Fatalf("another connection got no answer: %v", err)
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

func TestLatenessSum(t *testing.T) {
	t.Parallel()
	var l lateness
	for late := range 1000 {
		l.add(time.Duration(late+1) * time.Microsecond)
	}
	l.add(time.Hour)
	got := l.sum()
	want := summary{Pieces: 1001, P50: 501, P99: 991, P999: 1000, Most: 20_000}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
