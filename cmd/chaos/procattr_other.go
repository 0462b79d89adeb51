//go:build unix && !linux

package main

import "syscall"

// processAttributes keep a terminal's Ctrl-C from the service. This system can't
// end it with this program.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
