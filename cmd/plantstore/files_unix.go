//go:build unix

package main

import (
	"fmt"
	"syscall"

	"plantstore/internal/server"
)

// otherFiles is how many files the process opens beside those of connections. It has
// 20 or so.
const otherFiles = 64

// clientConnections returns how many client connections there may be: limit, or less
// where the process may not open enough files. It spares what the operators'
// connections and those to the database take, or a flood of clients would leave
// nobody able to ask whether the process is alive.
func clientConnections(limit int, pool int32) (int, error) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return 0, fmt.Errorf("how many files may be open: %w", err)
	}
	spared := uint64(server.AdminConnections) + uint64(pool) + otherFiles
	most := uint64(files.Cur) // signed on some systems
	if most <= spared {
		return 0, fmt.Errorf("the process may open %d files and needs more than %d: raise that (ulimit -n, LimitNOFILE), or lower pool_max_conns in DATABASE_URL", most, spared)
	}
	return int(min(uint64(limit), most-spared)), nil
}
