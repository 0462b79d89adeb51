//go:build linux

// Command distance simulates a network between the benchmark's contenders and their
// database. What clients send reaches the server a delay later; what the server
// sends reaches them at once. A client that waits for a response can't distinguish
// that from half of the delay each way.
//
// Each piece has its own due time, in the order of its connection. Bandwidth is not
// limited.
//
// The delay is precise: one thread does everything, with epoll and high-resolution
// timers, and runs with real-time priority where the system permits it
// (CAP_SYS_NICE). It does not spin: on a machine of two cores that would take half of
// what is measured.
//
//	distance DELAY LISTEN TARGET
//
// DELAY is a Go duration, LISTEN and TARGET are paths of Unix sockets. On SIGTERM it
// prints, as JSON, how many pieces it released late, see [lateness].
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
	realTime, err := raisePriority()
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
	// A garbage collection would stop the thread, and there is next to no garbage.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(1 << 30)
	runtime.LockOSThread()
	// By default Linux may wake a thread 50 µs late.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	p.late.RealTime = realTime
	if err := p.serve(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(p.late)
}

// raisePriority gives all threads real-time priority and reports whether the system
// permits it. Threads inherit it from the one that starts them, so the program is
// executed again.
func raisePriority() (bool, error) {
	now, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return false, fmt.Errorf("get the priority: %w", err)
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
	return false, fmt.Errorf("execute again: %w", err)
}
