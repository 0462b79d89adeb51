package main

import "syscall"

// processAttributes keep a terminal's Ctrl-C from the service, and end it with
// this program, however that ends.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
