//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A loader sends DELETE requests over keep-alive connections, one at a time on
// each, and times the answers.
//
// On a machine of two cores, what the load costs is missing from what is
// measured. That is why there is neither net/http nor a goroutine for each
// connection here: one thread waits for all of them with epoll, and a request
// costs it one write, one read and a share of a wait.
type loader struct {
	epoll  int
	conns  []connection
	idle   []int // indexes into conns
	ready  []unix.EpollEvent
	before string // what a request has before the id, and after it
	after  string
	out    []byte
	begin  time.Time // all times below are since then
}

// A connection is one of a loader's.
type connection struct {
	fd    int
	start time.Duration // when the request under way was sent, or should have been
	in    []byte        // what was read of its answer
}

// answerPatience is how long a loader waits for answers when it sends nothing.
const answerPatience = 15 * time.Second

// newLoader connects to a server on loopback. The caller has to close the loader.
func newLoader(address, token string, connections int) (_ *loader, err error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	l := &loader{
		before: "DELETE /plants/",
		after:  " HTTP/1.1\r\nHost: " + address + "\r\nAuthorization: Bearer " + token + "\r\n\r\n",
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

// A tally is what a loader counted.
type tally struct {
	answered  int64           // every 204
	latencies []time.Duration // sorted, of those within the time given
}

// run deletes plants of the quota for as long as d and waits for the last
// answers. With a rate of 0 the loop is closed: every connection sends its next
// request when it has the answer to its last. Otherwise requests are due at
// random moments, so many a second on average, whatever the server does; their
// latency counts from then on, also while all connections are taken.
//
// Any answer but a 204 is an error.
func (l *loader) run(ctx context.Context, q *quota, d time.Duration, rate float64) (t tally, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// By default Linux may wake a thread 50 µs late.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return t, fmt.Errorf("timer slack: %w", err)
	}
	t.latencies = make([]time.Duration, 0, q.left())
	start := l.now()
	plan := &plan{quota: q, rate: rate, random: rand.New(rand.NewPCG(1, 2)), due: start, end: start + d}
	for heard := start; ctx.Err() == nil; {
		if err := l.sendDue(plan); err != nil {
			return t, err
		}
		if l.now() >= plan.end && len(l.idle) == len(l.conns) {
			slices.Sort(t.latencies)
			return t, nil
		}
		n, err := l.wait(l.patience(plan))
		if err != nil {
			return t, err
		}
		if n > 0 {
			heard = l.now()
		} else if len(l.idle) < len(l.conns) && l.now() > heard+answerPatience {
			return t, fmt.Errorf("no answer within %s", answerPatience)
		}
		for _, event := range l.ready[:n] {
			if err := l.hear(int(event.Fd), plan, &t); err != nil {
				return t, err
			}
		}
	}
	return t, context.Cause(ctx)
}

// each sends one request on each connection, a few at a time.
func (l *loader) each(ctx context.Context, q *quota) error {
	const atATime = 16
	var t tally
	plan := &plan{quota: q, rate: 1, due: 1} // past its end, so hear sends nothing
	for sent, heard := 0, l.now(); t.answered < int64(len(l.conns)); {
		for ; sent < len(l.conns) && sent < int(t.answered)+atATime; sent++ {
			id, err := q.take()
			if err != nil {
				return err
			}
			// send takes the last.
			l.idle = append(l.idle[1:], l.idle[0])
			if err := l.send(id, l.now()); err != nil {
				return err
			}
		}
		n, err := l.wait(100 * time.Millisecond)
		if err != nil {
			return err
		}
		if n > 0 {
			heard = l.now()
		} else if ctx.Err() != nil || l.now() > heard+answerPatience {
			return errors.Join(context.Cause(ctx), fmt.Errorf("no answer within %s", answerPatience))
		}
		for _, event := range l.ready[:n] {
			if err := l.hear(int(event.Fd), plan, &t); err != nil {
				return err
			}
		}
	}
	return nil
}

// A plan says what one run has to send.
type plan struct {
	quota  *quota
	rate   float64 // 0: as fast as it can
	random *rand.Rand
	due    time.Duration // when the next request is to be sent, if there is a rate
	end    time.Duration
}

// sendDue sends what is due, as long as a connection is idle.
func (l *loader) sendDue(p *plan) error {
	for len(l.idle) > 0 && l.now() < p.end {
		start := l.now()
		if p.rate > 0 {
			if p.due > start || p.due >= p.end {
				return nil
			}
			start = p.due
			p.due += time.Duration(p.random.ExpFloat64() / p.rate * float64(time.Second))
		}
		id, err := p.quota.take()
		if err != nil {
			return err
		}
		if err := l.send(id, start); err != nil {
			return err
		}
	}
	return nil
}

// patience is how long to wait for answers before something else is to be done.
func (l *loader) patience(p *plan) time.Duration {
	if p.rate > 0 && len(l.idle) > 0 && p.due < p.end {
		return max(p.due-l.now(), 0)
	}
	return 100 * time.Millisecond
}

// hear reads from a connection and, if that completes an answer, counts it and
// sends what is due.
func (l *loader) hear(i int, p *plan, t *tally) error {
	c := &l.conns[i]
	complete, err := c.read()
	if err != nil || !complete {
		return err
	}
	l.idle = append(l.idle, i)
	t.answered++
	if now := l.now(); now < p.end {
		t.latencies = append(t.latencies, now-c.start)
	}
	return l.sendDue(p)
}

func (l *loader) now() time.Duration { return time.Since(l.begin) }

// wait waits until answers can be read, and returns how many are in ready.
func (l *loader) wait(patience time.Duration) (n int, err error) {
	if patience%time.Millisecond != 0 {
		// Unlike epoll_wait, ppoll takes times shorter than a millisecond.
		timeout := unix.NsecToTimespec(patience.Nanoseconds())
		_, err = unix.Ppoll([]unix.PollFd{{Fd: int32(l.epoll), Events: unix.POLLIN}}, &timeout, nil)
		patience = 0
	}
	if err == nil {
		n, err = unix.EpollWait(l.epoll, l.ready, int(patience.Milliseconds()))
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
	l.out = append(l.out[:0], l.before...)
	l.out = strconv.AppendInt(l.out, id, 10)
	l.out = append(l.out, l.after...)
	n, err := unix.Write(c.fd, l.out)
	if err == nil && n < len(l.out) {
		err = fmt.Errorf("only %d of %d bytes were taken", n, len(l.out))
	}
	if err != nil {
		return fmt.Errorf("send a request: %w", err)
	}
	return nil
}

// read reads what has come and reports whether the answer is complete.
func (c *connection) read() (bool, error) {
	if len(c.in) == cap(c.in) {
		return false, fmt.Errorf("the answer is too long: %.200q", c.in)
	}
	n, err := unix.Read(c.fd, c.in[len(c.in):cap(c.in)])
	if err == unix.EAGAIN || err == unix.EINTR {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read an answer: %w", err)
	}
	if n == 0 {
		return false, fmt.Errorf("the server hung up, having sent %.200q", c.in)
	}
	c.in = c.in[:len(c.in)+n]
	const start, end = "HTTP/1.1 204 ", "\r\n\r\n" // a 204 has no body
	if len(c.in) >= len(start) && string(c.in[:len(start)]) != start {
		return false, fmt.Errorf("not a 204: %.400q", c.in)
	}
	return bytes.HasSuffix(c.in, []byte(end)), nil
}
