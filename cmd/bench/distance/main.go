//go:build linux

// Command distance puts a network between the benchmark's contenders and their
// database: what clients send reaches the server a delay later, and what the
// server sends reaches them at once. Whoever sends and waits for an answer can't
// tell that from half of the delay on each way.
//
// Every piece is released at its own time, in the order of its connection; no
// piece waits for another connection's. There is no limit of bandwidth.
//
// The delay is precise because one thread does everything, with epoll and the
// kernel's high-resolution timers, and, where the system permits it (CAP_SYS_NICE),
// runs before all others as soon as it is due (SCHED_FIFO). It does not spin: on a
// machine of two cores that would take half of what is measured. It listens on a
// Unix socket, which costs the least.
//
//	distance DELAY LISTEN TARGET
//
// DELAY is a Go duration, LISTEN and TARGET are paths of sockets. On SIGTERM it
// tells, as JSON, how late it released the pieces, see [lateness].
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "distance: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: distance DELAY LISTEN TARGET")
	}
	delay, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	p, err := listen(args[1], args[2], delay)
	if err != nil {
		return err
	}
	defer p.close()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		<-signals
		p.stop()
	}()
	// A collection stops the thread, and is made by threads that others hold up. There
	// is next to no garbage.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(1 << 30)
	runtime.LockOSThread()
	p.late.First = hurry()
	if err := p.serve(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(p.late.sum())
}

// hurry has the thread run before others as soon as it is due, and reports
// whether it may.
func hurry() bool {
	// By default Linux may wake a thread 50 µs late.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	const resetOnFork = 1 // other threads are not to inherit it
	return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Flags: resetOnFork, Priority: 1}, 0) == nil
}
