//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// pieceSize is the most that is read at a time.
const pieceSize = 64 << 10

// lateness counts the pieces that were released, and those of them more than 100 µs
// late.
type lateness struct {
	RealTime     bool // with real-time priority
	Pieces, Late int64
}

// A proxy forwards bytes between the clients of one socket and the server behind
// another. Of its methods only stop may run while serve does.
type proxy struct {
	delay           time.Duration
	target          unix.Sockaddr
	epoll, listener int
	wake            int // an eventfd: stop was called
	ends            map[int32]*end
	// queue has the pieces that are not released, in the order of their due times.
	queue []piece
	head  int // index of the first piece in queue
	free  [][]byte
	// Arguments of system calls, kept to make no garbage.
	polled  [1]unix.PollFd
	timeout unix.Timespec
	begin   time.Time
	// late counts from the time quiet on: a new session makes the server fork, which
	// keeps a core busy for a millisecond.
	late  lateness
	quiet time.Duration
}

// An end is one of the two sockets of a connection.
type end struct {
	fd        int // -1: closed
	peer      *end
	server    bool
	out       []byte // released, but not yet written to the socket
	ended     bool   // close the connection when out is written
	unwatched bool   // it hung up, and epoll does not watch it
}

// A piece is what was read from a client at once.
type piece struct {
	due  time.Duration
	to   *end
	data []byte // from the free list; nil: the client hung up
}

// listen makes a proxy that accepts clients. The caller has to close it.
func listen(path, target string, delay time.Duration) (_ *proxy, err error) {
	p := &proxy{delay: delay, target: &unix.SockaddrUnix{Name: target}, ends: make(map[int32]*end), begin: time.Now(),
		epoll: -1, listener: -1, wake: -1}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	p.polled[0] = unix.PollFd{Fd: int32(p.epoll), Events: unix.POLLIN}
	if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	if p.listener, err = newSocket(); err != nil {
		return nil, err
	}
	if err := unix.Bind(p.listener, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := unix.Listen(p.listener, 4096); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return p, errors.Join(p.watch(unix.EPOLL_CTL_ADD, p.listener, unix.EPOLLIN), p.watch(unix.EPOLL_CTL_ADD, p.wake, unix.EPOLLIN))
}

func newSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	return fd, nil
}

func (p *proxy) watch(operation, fd int, events uint32) error {
	if err := unix.EpollCtl(p.epoll, operation, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// close closes everything.
func (p *proxy) close() {
	for _, e := range p.ends {
		unix.Close(e.fd)
	}
	for _, fd := range []int{p.epoll, p.listener, p.wake} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// stop makes serve return. It may be called from elsewhere.
func (p *proxy) stop() { _, _ = unix.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func (p *proxy) now() time.Duration { return time.Since(p.begin) }

// serve forwards bytes until stop is called.
func (p *proxy) serve() error {
	events := make([]unix.EpollEvent, 256)
	for {
		if err := p.release(); err != nil {
			return err
		}
		n, err := p.wait(events)
		if err != nil {
			return err
		}
		for _, event := range events[:n] {
			switch fd := int(event.Fd); {
			case fd == p.wake:
				return nil
			case fd == p.listener:
				err = p.accept()
			default:
				err = p.serveEnd(p.ends[event.Fd], event.Events)
			}
			if err != nil {
				return err
			}
		}
	}
}

// wait waits for events, at most until the next piece is due.
func (p *proxy) wait(events []unix.EpollEvent) (n int, err error) {
	timeout := -1
	if p.head < len(p.queue) {
		timeout = 0
		if left := p.queue[p.head].due - p.now(); left > 0 {
			// Unlike epoll_wait, ppoll takes times shorter than a millisecond.
			p.timeout = unix.NsecToTimespec(left.Nanoseconds())
			_, err = unix.Ppoll(p.polled[:], &p.timeout, nil)
		}
	}
	if err == nil {
		n, err = unix.EpollWait(p.epoll, events, timeout)
	}
	if err == unix.EINTR {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("wait: %w", err)
	}
	return n, nil
}

// accept accepts a client and connects to the server for it.
func (p *proxy) accept() error {
	fd, _, err := unix.Accept4(p.listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	switch err {
	case nil:
	case unix.EAGAIN, unix.ECONNABORTED, unix.EINTR:
		return nil
	default:
		return fmt.Errorf("accept: %w", err)
	}
	to, err := newSocket()
	if err == nil {
		if refused := unix.Connect(to, p.target); refused != nil {
			unix.Close(to)
			unix.Close(fd) // like a server that is down
			return nil
		}
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	p.quiet = p.now() + 100*time.Millisecond
	client, server := &end{fd: fd}, &end{fd: to, server: true}
	client.peer, server.peer = server, client
	p.ends[int32(fd)], p.ends[int32(to)] = client, server
	return errors.Join(p.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN), p.watch(unix.EPOLL_CTL_ADD, to, unix.EPOLLIN))
}

// serveEnd reads from an end and writes what is left to it. It is nil if its
// connection was closed a moment ago.
func (p *proxy) serveEnd(e *end, events uint32) error {
	if e == nil {
		return nil
	}
	if events&unix.EPOLLOUT != 0 {
		if err := p.writeRest(e); err != nil {
			return err
		}
	}
	if events&^unix.EPOLLOUT == 0 || e.fd < 0 {
		return nil
	}
	data := p.take()
	n, err := unix.Read(e.fd, data)
	if err == unix.EAGAIN || err == unix.EINTR {
		p.free = append(p.free, data)
		return nil
	}
	if err != nil || n <= 0 { // it hung up, or its connection broke
		p.free = append(p.free, data)
		data, n = nil, 0
		// Nothing more is read from it, and level-triggered events would not end.
		e.unwatched = true
		if err := p.watch(unix.EPOLL_CTL_DEL, e.fd, 0); err != nil {
			return err
		}
	}
	if e.server {
		return p.forward(e.peer, data, n)
	}
	p.queue = append(p.queue, piece{due: p.now() + p.delay, to: e.peer, data: data[:n]})
	return nil
}

// release forwards what is due.
func (p *proxy) release() error {
	for p.head < len(p.queue) {
		now := p.now()
		next := p.queue[p.head]
		if next.due > now {
			break
		}
		p.queue[p.head] = piece{}
		p.head++
		if now > p.quiet {
			p.late.Pieces++
			if now-next.due > 100*time.Microsecond {
				p.late.Late++
			}
		}
		if err := p.forward(next.to, next.data, len(next.data)); err != nil {
			return err
		}
	}
	if p.head == len(p.queue) {
		p.queue, p.head = p.queue[:0], 0
	} else if p.head > 4096 {
		p.queue = p.queue[:copy(p.queue, p.queue[p.head:])]
		p.head = 0
	}
	return nil
}

// forward writes n bytes of data to an end and returns data to the free list. With
// nil the connection ends.
func (p *proxy) forward(e *end, data []byte, n int) error {
	if data == nil {
		e.ended = true
		return p.write(e, nil)
	}
	err := p.write(e, data[:n])
	p.free = append(p.free, data[:cap(data)])
	return err
}

// write writes data to an end, after what is left. A broken connection is closed.
func (p *proxy) write(e *end, data []byte) error {
	if e.fd < 0 {
		return nil
	}
	if e.out != nil {
		e.out = append(e.out, data...)
		return nil
	}
	left, err := e.send(data)
	switch {
	case err != nil || len(left) == 0 && e.ended:
		p.hangUp(e)
	case len(left) > 0:
		e.out = bytes.Clone(left) // data goes back to the free list
		return p.watch(unix.EPOLL_CTL_MOD, e.fd, unix.EPOLLIN|unix.EPOLLOUT)
	}
	return nil
}

// writeRest writes what is left to an end.
func (p *proxy) writeRest(e *end) error {
	left, err := e.send(e.out)
	e.out = left
	if err == nil && len(left) > 0 {
		return nil
	}
	e.out = nil
	if err != nil || e.ended {
		p.hangUp(e)
		return nil
	}
	return p.watch(unix.EPOLL_CTL_MOD, e.fd, unix.EPOLLIN)
}

// send writes data and returns what is left when the socket is full.
func (e *end) send(data []byte) (left []byte, err error) {
	for len(data) > 0 {
		n, err := unix.Write(e.fd, data)
		if err == unix.EAGAIN && !e.unwatched {
			break
		}
		if err != nil && err != unix.EINTR {
			return nil, err
		}
		data = data[max(n, 0):]
	}
	return data, nil
}

// hangUp closes both ends of a connection.
func (p *proxy) hangUp(e *end) {
	for _, e := range []*end{e, e.peer} {
		if e.fd >= 0 {
			delete(p.ends, int32(e.fd))
			unix.Close(e.fd)
			e.fd = -1
		}
	}
}

// take returns a buffer from the free list.
func (p *proxy) take() []byte {
	last := len(p.free) - 1
	if last < 0 {
		return make([]byte, pieceSize)
	}
	data := p.free[last]
	p.free = p.free[:last]
	return data
}
