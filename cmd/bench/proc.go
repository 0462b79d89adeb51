//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// stat returns the fields of /proc/PID/stat from the third on, after the name in brackets.
func stat(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])), err
}

// parent returns the id of a process's parent.
func parent(pid int) (int, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(fields[1])
}

// ticks adds up fields of /proc in hundredths of a second.
func ticks(fields []string) time.Duration {
	sum := 0
	for _, f := range fields {
		n, _ := strconv.Atoi(f)
		sum += n
	}
	return time.Duration(sum) * time.Second / 100
}

// cpuTime returns the processor time of a process and its descendants, also those that exited.
func cpuTime(pid int) (time.Duration, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	total := ticks(fields[11:15]) // utime, stime, cutime, cstime
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, f := range strings.Fields(string(children)) {
		child, _ := strconv.Atoi(f)
		t, err := cpuTime(child)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // it exited just now
			return 0, err
		}
		total += t
	}
	return total, err
}

// machineTime returns the processor time of all processes, and what the host took.
func machineTime() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b)) // cpu user nice system idle iowait irq softirq steal
	return ticks(append(fields[1:4:4], fields[8])), nil
}

// resetPeakMemory makes peakMemory start again from what is resident now.
func resetPeakMemory(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

var peak = regexp.MustCompile(`VmHWM:\s+([0-9]+) kB`)

// peakMemory returns the peak of a process's resident memory, in MiB.
func peakMemory(pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	kb, err := strconv.ParseFloat(string(peak.FindSubmatch(status)[1]), 64)
	return kb / 1024, err
}

var model = regexp.MustCompile(`model name\s*: (.*)`)

// machine describes the machine.
func machine() string {
	cpu, release := runtime.GOARCH, ""
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil && model.Match(b) {
		cpu = string(model.FindSubmatch(b)[1])
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		release = strings.TrimSpace(string(b))
	}
	return fmt.Sprintf("%s, %d cores for load, service and database together, Linux %s, Go %s", cpu, runtime.NumCPU(), release, strings.TrimPrefix(runtime.Version(), "go"))
}
