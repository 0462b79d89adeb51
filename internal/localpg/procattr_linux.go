package localpg

import "syscall"

// setAttributes gives a program a process group of its own. When the thread that starts it
// ends, the program gets the signal last.
func setAttributes(a *syscall.SysProcAttr, last syscall.Signal) {
	a.Setpgid, a.Pdeathsig = true, last
}
