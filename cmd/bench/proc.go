//go:build linux

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// cpuTime returns the processor time of a process and its descendants, also those that exited.
// The kernel counts it in hundredths of a second.
func cpuTime(pid int) (total time.Duration) {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // empty if it exited just now
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for i := 11; i < min(15, len(fields)); i++ { // utime, stime, cutime, cstime
		n, _ := strconv.Atoi(fields[i])
		total += time.Duration(n) * time.Second / 100
	}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	for _, f := range strings.Fields(string(children)) {
		child, _ := strconv.Atoi(f)
		total += cpuTime(child)
	}
	return total
}

// resetPeakMemory makes peakMemory start again from the present resident memory.
func resetPeakMemory(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// peakMemory returns the peak of a process's resident memory, in MiB.
func peakMemory(pid int) float64 {
	kb, _ := strconv.ParseFloat(match(fmt.Sprintf("/proc/%d/status", pid), `VmHWM:\s+([0-9]+) kB`), 64)
	return kb / 1024
}

// match returns the text in a file that the group of a pattern matches, or "?".
func match(file, pattern string) string {
	b, _ := os.ReadFile(file)
	found := append(regexp.MustCompile(pattern).FindStringSubmatch(string(b)), "", "")
	return cmp.Or(found[1], "?")
}
