//go:build linux

package main

import (
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// TestPiecesArriveInOrderAfterTheDelay sends again and again before the first answer.
func TestPiecesArriveInOrderAfterTheDelay(t *testing.T) {
	t.Parallel()
	const delay = 50 * time.Millisecond
	folder := t.TempDir()
	var listeners []net.Listener
	for _, name := range []string{"server", "proxy"} {
		l, err := net.Listen("unix", filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		listeners = append(listeners, l)
	}
	go func() {
		if conn, err := listeners[0].Accept(); err == nil {
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}
	}()
	go func() { _ = serve(listeners[1], filepath.Join(folder, "server"), delay) }()
	conn, err := net.Dial("unix", filepath.Join(folder, "proxy"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var sent time.Time
	for i := range 10 {
		sent = time.Now()
		if _, err := conn.Write([]byte{byte('0' + i)}); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 10)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "0123456789" {
		t.Errorf("got %q, error %v, want the digits in order", got, err)
	}
	if took := time.Since(sent); took < delay {
		t.Errorf("the last answer came after %s, want at least %s", took, delay)
	}
}
