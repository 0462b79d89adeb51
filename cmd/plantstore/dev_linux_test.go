package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"plantstore/internal/localpg"
)

// terminal returns both ends of a terminal: what is written to the one can be read from
// the other.
func terminal(t *testing.T) (screen, program *os.File) {
	t.Helper()
	open := func(name string) *os.File {
		f, err := os.OpenFile(name, os.O_RDWR|syscall.O_NOCTTY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	screen = open("/dev/ptmx")
	raw, err := screen.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	control := func(request uintptr, n *int32) {
		var failed syscall.Errno
		if err := raw.Control(func(fd uintptr) {
			_, _, failed = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(n)))
		}); err != nil || failed != 0 {
			t.Fatal(err, failed)
		}
	}
	var number, unlocked int32
	control(syscall.TIOCSPTLCK, &unlocked)
	control(syscall.TIOCGPTN, &number)
	return screen, open(fmt.Sprintf("/dev/pts/%d", number))
}

// On a terminal, dev tells what it is at until its greeting, once that takes a second.
func TestDevTellsWhatItIsAt(t *testing.T) {
	t.Parallel()
	folders := localpg.ProgramFolders(t.Context())
	if len(folders) == 0 {
		t.Fatal(localpg.ErrNoBinaries)
	}
	folder := devFolder(t)
	// Its initdb takes until somebody says so.
	slow, enough := filepath.Join(folder, "programs"), filepath.Join(folder, "enough")
	if err := os.Mkdir(slow, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, before := range map[string]string{"postgres": "", "initdb": "until [ -e '" + enough + "' ]; do sleep 0.1; done; "} {
		script := "#!/bin/sh\n" + before + "exec '" + filepath.Join(folders[0], name) + "' \"$@\"\n"
		func() { // no process may start that holds it open
			syscall.ForkLock.RLock()
			defer syscall.ForkLock.RUnlock()
			if err := os.WriteFile(filepath.Join(slow, name), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}()
	}
	databases := filepath.Join(folder, "databases")
	if err := os.Mkdir(databases, 0o755); err != nil {
		t.Fatal(err)
	}
	screen, program := terminal(t)
	shown := new(syncBuffer)
	go func() {
		b := make([]byte, 1<<10)
		for {
			n, err := screen.Read(b)
			if err != nil {
				return
			}
			shown.Write(b[:n])
		}
	}()
	cmd := inProcess(t, []string{"TMPDIR=" + databases, "TERM=xterm", "PATH=" + slow + ":" + os.Getenv("PATH")}, "dev", "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0")
	cmd.Stdout, cmd.Stderr = program, program
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if want := "plantstore dev: making a private PostgreSQL, "; !eventually(func() bool { return strings.Contains(shown.String(), want) }) {
		t.Errorf("on the terminal %q, want %q", shown, want)
	}
	writeFile(t, enough, "")
	if !eventually(func() bool { return strings.Contains(shown.String(), "msg=serving") }) {
		t.Errorf("on the terminal %q, want that it serves", shown)
	}
	before, after, _ := strings.Cut(shown.String(), "The plant store runs at ")
	if !strings.HasSuffix(before, "\r\x1b[K\r\n") {
		t.Errorf("above the greeting %q, want that it ends with a line that was taken away", before)
	}
	if strings.Contains(after, "\x1b[K") {
		t.Errorf("after the greeting %q, want nothing that does not stay", after)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v, want exit code 0; on the terminal:\n%s", err, shown)
	}
}
