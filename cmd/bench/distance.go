//go:build linux

package main

import (
	"io"
	"net"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A piece is the bytes that a client sent with one write.
type piece struct {
	due  time.Time
	to   net.Conn
	data []byte // nil: the client hung up
}

// serveDistance is a network between the contenders and their database. Bytes from clients of
// the listener reach the socket target a delay later. Bytes from the server reach the clients
// at once: a client can't distinguish that from half of the delay each way.
func serveDistance(listener net.Listener, target string, delay time.Duration) {
	// All pieces have the same delay, so they are due in the order in which they came.
	pieces := make(chan piece, 4096)
	go release(pieces)
	for {
		client, err := listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial("unix", target)
		if err != nil { // like a server that is down
			client.Close()
			continue
		}
		go func() {
			_, _ = io.Copy(client, server)
			client.Close()
		}()
		go func() {
			for {
				data := make([]byte, 16<<10)
				n, err := client.Read(data)
				if err != nil {
					n, data = 0, nil
				}
				pieces <- piece{time.Now().Add(delay), server, data[:n]}
				if err != nil {
					return
				}
			}
		}()
	}
}

// release forwards each piece when it is due. time.Sleep may take a millisecond longer.
func release(pieces <-chan piece) {
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	for p := range pieces {
		if left := time.Until(p.due); left > 0 {
			t := unix.NsecToTimespec(left.Nanoseconds())
			_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &t, nil)
		}
		if p.data == nil {
			p.to.Close()
			continue
		}
		_, _ = p.to.Write(p.data) // fails if the server hung up: its client learns that itself
	}
}
