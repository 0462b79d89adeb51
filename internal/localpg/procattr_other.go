//go:build unix && !linux

package localpg

import "syscall"

// setAttributes gives a program a process group of its own. This system can't end it with its
// parent.
func setAttributes(a *syscall.SysProcAttr, _ syscall.Signal) { a.Setpgid = true }
