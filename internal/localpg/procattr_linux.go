package localpg

import "syscall"

// setAttributes puts a program that is to be started in a process group of its
// own, and has it sent last when the thread that starts it ends.
func setAttributes(a *syscall.SysProcAttr, last syscall.Signal) {
	a.Setpgid, a.Pdeathsig = true, last
}
