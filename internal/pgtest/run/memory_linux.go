package main

import (
	"os"

	"golang.org/x/sys/unix"
)

const (
	// memoryFolder is a file system in memory that every user may write to.
	memoryFolder = "/dev/shm"
	// memoryNeeded is many times what the tests have there at a time.
	memoryNeeded = 8 << 30
)

// useMemory keeps the temporary files of tests and servers in memory if there is plenty,
// unless TMPDIR is set: hundreds of databases then take two thirds of the time. The file
// system has to allow programs, as tests build some.
func useMemory() error {
	var fs unix.Statfs_t
	if os.Getenv("TMPDIR") != "" || unix.Statfs(memoryFolder, &fs) != nil {
		return nil
	}
	if fs.Type != unix.TMPFS_MAGIC || fs.Flags&unix.ST_NOEXEC != 0 || fs.Bavail*uint64(fs.Bsize) < memoryNeeded {
		return nil
	}
	return os.Setenv("TMPDIR", memoryFolder)
}
