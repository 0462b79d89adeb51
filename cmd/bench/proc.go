//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// usageOf reads what the service, the database and the load generator have used,
// each given by its first process. A service of 0 is none.
func usageOf(service, database, generator int) (u usage, err error) {
	if service != 0 {
		if u.service, err = cpuTime(service, true); err != nil {
			return u, err
		}
	}
	if u.database, err = cpuTime(database, true); err != nil {
		return u, err
	}
	if u.generator, err = cpuTime(generator, false); err != nil {
		return u, err
	}
	u.machine, err = machineTime()
	return u, err
}

// ticks adds up fields of /proc that tell times, in 1/USER_HZ: a hundredth of a
// second on every platform that Go knows.
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

// cpuTime is what a process has used so far and, if asked for, with all of its
// descendants, also those that ended.
func cpuTime(pid int, descendants bool) (time.Duration, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	if !descendants {
		return ticks(fields[11:13]) // utime, stime
	}
	total, err := ticks(fields[11:15]) // and cutime, cstime
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
		t, err := cpuTime(child, true)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // it ended just now
			return 0, err
		}
		total += t
	}
	return total, nil
}

// machineTime is what all processes have used so far, and what the host of a
// virtual machine took away.
func machineTime() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	// cpu user nice system idle iowait irq softirq steal
	fields := strings.Fields(string(b))
	if len(fields) < 9 {
		return 0, fmt.Errorf("/proc/stat is not understood: %.200s", b)
	}
	return ticks(append(fields[1:4:4], fields[8]))
}

// parent is the id of the process that started another.
func parent(pid int) (int, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(fields[1])
}

// stat returns the fields of /proc/PID/stat from the third on: those after the
// name, which stands in brackets.
func stat(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 15 {
		return nil, fmt.Errorf("/proc/%d/stat is not understood: %s", pid, b)
	}
	return fields, nil
}

// resetPeakMemory makes peakMemory begin again at what is resident now.
func resetPeakMemory(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// peakMemory is how much of a process was resident at most, in bytes.
func peakMemory(pid int) (int64, error) { return memory(pid, "VmHWM:") }

// memory reads a line of /proc/PID/status, in bytes.
func memory(pid int, name string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("no " + name + " in /proc")
}
