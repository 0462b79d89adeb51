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
// runs before all other programs as soon as it is due (SCHED_FIFO). It does not spin:
// on a machine of two cores that would take half of what is measured. It listens on
// a Unix socket, which costs the least.
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
	first, err := hurry()
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
	// By default Linux may wake a thread 50 µs late.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	p.late.First = first
	if err := p.serve(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(p.late.sum())
}

// hurry has all threads run before those of other programs as soon as they are due,
// and reports whether they may. All, as Go's scheduler passes the work on from one to
// another now and then. It starts the program again: threads inherit this from
// the one that starts them.
func hurry() (bool, error) {
	now, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return false, fmt.Errorf("ask for the priority: %w", err)
	}
	if now.Policy == unix.SCHED_FIFO {
		return true, nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0) != nil {
		return false, nil
	}
	program, err := os.Executable()
	if err == nil {
		err = unix.Exec(program, os.Args, os.Environ())
	}
	return false, fmt.Errorf("start again: %w", err)
}
