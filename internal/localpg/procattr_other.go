//go:build unix && !linux

package localpg

import "syscall"

// processAttributes puts a program in a process group of its own, so that a
// terminal's Ctrl-C does not reach it. This system can't end it with its parent.
func processAttributes(credential *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: credential}
}
