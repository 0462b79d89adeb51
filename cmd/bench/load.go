//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A loader sends DELETE requests over keep-alive connections, one at a time on each,
// and measures latencies.
//
// The load takes processor time from the contender, so it has to be cheap: one thread waits
// for all connections with epoll, without net/http and goroutines.
type loader struct {
	store  *store
	epoll  int
	conns  []connection
	idle   []int // indexes into conns
	ready  []unix.EpollEvent
	suffix string // of a request, after the id
	out    []byte
	begin  time.Time // all times below are since then
}

type connection struct {
	fd    int
	start time.Duration // when the request was due
	in    []byte        // what was read of its response
}

const responseTimeout = 15 * time.Second

// newLoader connects to a server on loopback that deletes from a store. The caller has
// to close the loader.
func newLoader(address string, s *store, connections int) (_ *loader, err error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	l := &loader{
		store:  s,
		suffix: " HTTP/1.1\r\nHost: " + address + "\r\nAuthorization: Bearer " + s.token + "\r\n\r\n",
		ready:  make([]unix.EpollEvent, connections),
		begin:  time.Now(),
	}
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	for i := range connections {
		fd, err := connect(at)
		if err != nil {
			l.close()
			return nil, fmt.Errorf("connect to %s: %w", address, err)
		}
		l.conns = append(l.conns, connection{fd: fd, in: make([]byte, 0, 4096)})
		l.idle = append(l.idle, i)
		if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}); err != nil {
			l.close()
			return nil, fmt.Errorf("epoll: %w", err)
		}
	}
	return l, nil
}

func connect(at netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err != nil {
		unix.Close(fd)
		return 0, err
	}
	return fd, unix.SetNonblock(fd, true)
}

func (l *loader) close() {
	for _, c := range l.conns {
		unix.Close(c.fd)
	}
	unix.Close(l.epoll)
}

// run deletes plants for as long as d, waits for the last responses and returns the
// sorted latencies of those that came in time. Any response but a 204 is an error.
//
// With a rate of 0 the loop is closed: each connection sends its next request when it
// has the response to its last. Otherwise requests are due at random moments, on
// average so many a second, and latency counts from then on, even while no connection
// is idle.
func (l *loader) run(ctx context.Context, d time.Duration, rate float64) ([]time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// By default Linux may wake a thread 50 µs late.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("timer slack: %w", err)
	}
	start := l.now()
	s := &schedule{rate: rate, random: rand.New(rand.NewPCG(1, 2)), due: start, end: start + d}
	latencies := make([]time.Duration, 0, 1<<18)
	for last := start; ctx.Err() == nil; {
		if err := l.sendDue(s); err != nil {
			return nil, err
		}
		if l.now() >= s.end && len(l.idle) == len(l.conns) {
			slices.Sort(latencies)
			return latencies, nil
		}
		n, err := l.wait(l.timeout(s))
		if err != nil {
			return nil, err
		}
		if n > 0 {
			last = l.now()
		} else if len(l.idle) < len(l.conns) && l.now() > last+responseTimeout {
			return nil, fmt.Errorf("no response within %s", responseTimeout)
		}
		for _, event := range l.ready[:n] {
			c := &l.conns[event.Fd]
			complete, err := c.read()
			if err != nil {
				return nil, err
			}
			if !complete {
				continue
			}
			l.idle = append(l.idle, int(event.Fd))
			if now := l.now(); now < s.end {
				latencies = append(latencies, now-c.start)
			}
			if err := l.sendDue(s); err != nil {
				return nil, err
			}
		}
	}
	return nil, context.Cause(ctx)
}

// A schedule has the requests that one run is to send.
type schedule struct {
	rate   float64 // 0: closed loop
	random *rand.Rand
	due    time.Duration // of the next request, if there is a rate
	end    time.Duration
}

// sendDue sends the requests that are due while a connection is idle.
func (l *loader) sendDue(s *schedule) error {
	for len(l.idle) > 0 && l.now() < s.end {
		start := l.now()
		if s.rate > 0 {
			if s.due > start || s.due >= s.end {
				return nil
			}
			start = s.due
			s.due += time.Duration(s.random.ExpFloat64() / s.rate * float64(time.Second))
		}
		if err := l.send(l.store.take(), start); err != nil {
			return err
		}
	}
	return nil
}

// timeout is how long to wait for responses before the next request is due.
func (l *loader) timeout(s *schedule) time.Duration {
	if s.rate > 0 && len(l.idle) > 0 && s.due < s.end {
		return max(s.due-l.now(), 0)
	}
	return 100 * time.Millisecond
}

func (l *loader) now() time.Duration { return time.Since(l.begin) }

// wait waits until responses can be read, and returns how many are in ready.
func (l *loader) wait(timeout time.Duration) (n int, err error) {
	if timeout%time.Millisecond != 0 {
		// Unlike epoll_wait, ppoll takes times shorter than a millisecond.
		t := unix.NsecToTimespec(timeout.Nanoseconds())
		_, err = unix.Ppoll([]unix.PollFd{{Fd: int32(l.epoll), Events: unix.POLLIN}}, &t, nil)
		timeout = 0
	}
	if err == nil {
		n, err = unix.EpollWait(l.epoll, l.ready, int(timeout.Milliseconds()))
	}
	if err == unix.EINTR {
		return 0, nil
	}
	return n, err
}

// send sends one request on an idle connection.
func (l *loader) send(id int64, start time.Duration) error {
	c := &l.conns[l.idle[len(l.idle)-1]]
	l.idle = l.idle[:len(l.idle)-1]
	c.start, c.in = start, c.in[:0]
	l.out = append(l.out[:0], "DELETE /plants/"...)
	l.out = strconv.AppendInt(l.out, id, 10)
	l.out = append(l.out, l.suffix...)
	n, err := unix.Write(c.fd, l.out)
	if err == nil && n < len(l.out) {
		err = fmt.Errorf("only %d of %d bytes were written", n, len(l.out))
	}
	if err != nil {
		return fmt.Errorf("send a request: %w", err)
	}
	return nil
}

// read reads what has come and reports whether the response is complete.
func (c *connection) read() (bool, error) {
	if len(c.in) == cap(c.in) {
		return false, fmt.Errorf("the response is too long: %.200q", c.in)
	}
	n, err := unix.Read(c.fd, c.in[len(c.in):cap(c.in)])
	if err == unix.EAGAIN || err == unix.EINTR {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read a response: %w", err)
	}
	if n == 0 {
		return false, fmt.Errorf("the server closed the connection after %.200q", c.in)
	}
	c.in = c.in[:len(c.in)+n]
	const start, end = "HTTP/1.1 204 ", "\r\n\r\n" // a 204 has no body
	if len(c.in) >= len(start) && string(c.in[:len(start)]) != start {
		return false, fmt.Errorf("not a 204: %.400q", c.in)
	}
	return bytes.HasSuffix(c.in, []byte(end)), nil
}
