//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// describeMachine returns a sentence about the machine. fdatasync is measured on the
// file system of folder.
func describeMachine(folder string) (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("uname: %w", err)
	}
	memory, err := memorySize()
	if err != nil {
		return "", err
	}
	sync, err := syncTime(folder)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, %d cores for load, service and database together, %d GiB, Linux %s, fdatasync of 8 KiB in %d µs, %s",
		cpuModel(), runtime.NumCPU(), memory>>30, unix.ByteSliceToString(name.Release[:]),
		sync.Microseconds(), strings.Replace(runtime.Version(), "go", "Go ", 1)), nil
}

// memorySize returns the machine's memory in bytes.
func memorySize() (uint64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("sysinfo: %w", err)
	}
	return info.Totalram * uint64(info.Unit), nil
}

func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH // not every kernel names it
}

// syncTime returns the median time of writing a page durably.
func syncTime(folder string) (_ time.Duration, err error) {
	f, err := os.Create(filepath.Join(folder, "sync"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	page := make([]byte, 8<<10)
	var times []time.Duration
	for range 500 {
		start := time.Now()
		if _, err := f.WriteAt(page, 0); err != nil {
			return 0, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
		times = append(times, time.Since(start))
	}
	return median(times), nil
}
