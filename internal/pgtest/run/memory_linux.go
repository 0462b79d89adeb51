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

// useMemory has the temporary files of the tests, those of the servers among them, kept
// in memory where there is plenty, unless TMPDIR says where: the hundreds of databases
// are then made and removed in two thirds of the time. Programs have to be allowed there,
// as tests build some.
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
