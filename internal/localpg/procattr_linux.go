package localpg

import "syscall"

// processAttributes puts a program in a process group of its own, so that a
// terminal's Ctrl-C does not reach it, and ends it with the thread that started
// it (SIGQUIT is PostgreSQL's immediate shutdown).
func processAttributes(credential *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGQUIT, Credential: credential}
}
