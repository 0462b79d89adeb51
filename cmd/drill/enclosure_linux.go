package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// The drill runs in its own namespaces of processes, of mounts and, when the service is built,
// of the network. When the first process in there ends, the kernel ends all others, and drops
// the network and the files, which are in memory. So nothing can be left behind.

// enclose runs this program again in namespaces of its own, with the same arguments, and
// returns when it has ended. The end of ctx ends it at once.
func enclose(ctx context.Context) error {
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends that started the process
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = firstPart
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Setpgid:    true, // a terminal's Ctrl-C is this process's to handle
		Pdeathsig:  syscall.SIGKILL,
	}
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted: everything that it started is gone")
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("the drill makes namespaces, and this machine does not let it (a container without privileges?): %w", err)
	case err != nil:
		return errFailed
	}
	return nil
}

// beFirst runs as the first process, and returns the exit code of the second.
func beFirst(ctx context.Context, args []string, stdout, stderr io.Writer) (int, error) {
	c, err := parse(args, stderr)
	if err != nil {
		return 0, err
	}
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	if c.logs != "" { // now: it may be where something is mounted
		if err := os.Mkdir(c.logs, 0o755); err != nil {
			return 0, err
		}
		logs, err := os.Open(c.logs)
		if err != nil {
			return 0, err
		}
		files = append(files, logs)
	}
	syscall.Umask(0o022) // servers run as nobody, and read these files
	if err := mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return 0, err
	}
	if err := mount("proc", "/proc", "proc", 0, ""); err != nil {
		return 0, err
	}
	if err := mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777"); err != nil { // killed servers leave shared memory there
		return 0, err
	}
	if err := os.Mkdir(room, 0o755); err != nil {
		return 0, err
	}
	if err := build(ctx, stdout); err != nil {
		return 0, err
	}
	// Not before the build, which may need the resolver's files.
	if err := mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return 0, err
	}
	second, err := os.StartProcess("/proc/self/exe", append([]string{secondPart}, args...), &os.ProcAttr{
		// Proxies, settings of PostgreSQL's clients and the like are not for the machines here.
		Env: []string{"PATH=" + os.Getenv("PATH")}, Files: files, Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET},
	})
	if err != nil {
		return 0, err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 0, fmt.Errorf("wait for the drill: %w", err)
		case pid == second.Pid:
			if status.Signaled() {
				return 0, fmt.Errorf("the drill was ended by %v", status.Signal())
			}
			return status.ExitStatus(), nil
		}
	}
}

func mount(what, at, kind string, flags uintptr, options string) error {
	if err := syscall.Mount(what, at, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s: %w", at, err)
	}
	return nil
}
