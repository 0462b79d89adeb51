//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// usage is the processor time used so far. machine includes all programs and the host of the
// virtual machine.
type usage struct{ service, database, load, machine time.Duration }

func (u usage) minus(v usage) usage {
	return usage{u.service - v.service, u.database - v.database, u.load - v.load, u.machine - v.machine}
}

// usageOf returns what a service, a database and this process have used. Service 0 is
// none.
func usageOf(service, database int) (u usage, err error) {
	if service != 0 {
		if u.service, err = cpuTime(service); err != nil {
			return u, err
		}
	}
	if u.database, err = cpuTime(database); err != nil {
		return u, err
	}
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return u, fmt.Errorf("getrusage: %w", err)
	}
	u.load = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	u.machine, err = machineTime()
	return u, err
}

// ticks adds up fields of /proc in 1/USER_HZ, a hundredth of a second on every
// platform that Go supports.
func ticks(fields []string) (time.Duration, error) {
	var sum int64
	for _, f := range fields {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / 100, nil
}

// cpuTime returns what a process and its descendants have used so far, including those
// that exited.
func cpuTime(pid int) (time.Duration, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	total, err := ticks(fields[11:15]) // utime, stime, cutime, cstime
	if err != nil {
		return 0, err
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	for _, f := range strings.Fields(string(children)) {
		child, err := strconv.Atoi(f)
		if err != nil {
			return 0, err
		}
		t, err := cpuTime(child)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // it exited just now
			return 0, err
		}
		total += t
	}
	return total, nil
}

// machineTime returns what all processes and the virtual machine's host have used so
// far.
func machineTime() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	// cpu user nice system idle iowait irq softirq steal
	fields := strings.Fields(string(b))
	if len(fields) < 9 {
		return 0, fmt.Errorf("/proc/stat has an unexpected format: %.200s", b)
	}
	return ticks(append(fields[1:4:4], fields[8]))
}

// parent returns the id of a process's parent.
func parent(pid int) (int, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(fields[1])
}

// stat returns the fields of /proc/PID/stat from the third on, after the name in
// brackets.
func stat(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 15 {
		return nil, fmt.Errorf("/proc/%d/stat has an unexpected format: %s", pid, b)
	}
	return fields, nil
}

// resetPeakMemory makes peakMemory start again from what is resident now.
func resetPeakMemory(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// peakMemory returns the peak of a process's resident memory, in bytes.
func peakMemory(pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return kb * 1024, err
		}
	}
	return 0, errors.New("no VmHWM in /proc")
}
