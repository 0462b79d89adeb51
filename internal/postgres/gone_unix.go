//go:build unix

package postgres

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// gone reports whether a connection that nobody uses is at its end: the peer closed
// it, or said something that nobody asked for, as a server does that shuts down.
// It looks at what has arrived, and waits for nothing. A silent peer is not noticed.
func gone(c net.Conn) bool {
	for {
		if socket, ok := c.(syscall.Conn); ok {
			return hasInput(socket)
		}
		// In TLS, or in our own briefFarewell.
		wrapped, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return false
		}
		c = wrapped.NetConn()
	}
}

// hasInput reports whether a read would return at once, with whatever.
func hasInput(socket syscall.Conn) bool {
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	var peekErr error
	if err := raw.Control(func(fd uintptr) {
		for peekErr = unix.EINTR; peekErr == unix.EINTR; {
			_, _, peekErr = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		}
	}); err != nil {
		return true
	}
	return !errors.Is(peekErr, unix.EAGAIN)
}
