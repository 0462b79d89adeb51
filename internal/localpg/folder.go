//go:build unix

package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// A folder has all files of a server. It is removed with remove, or else when this process
// ends, even by kill -9.
type folder struct {
	path    string
	account *syscall.Credential // of the server; nil: this process's own
	guard   *exec.Cmd
	alive   io.Closer // the guard waits until it is closed
}

// guardScript removes FOLDER when its standard input ends. A server that is about to notice
// the end of its parent may still write there.
const guardScript = `cat; for i in 1 2 3 4 5 6 7 8 9; do rm -rf "$FOLDER" 2>/dev/null && exit; sleep 1; done; rm -rf "$FOLDER"`

// newFolder makes a folder in dir that only the server's account can enter. PostgreSQL and
// PgBouncer refuse to run as root, so root's servers run as postgres or, if that is missing,
// nobody.
func newFolder(dir string) (_ *folder, err error) {
	f := new(folder)
	if os.Geteuid() == 0 {
		account, err := user.Lookup("postgres")
		if err != nil {
			account, err = user.Lookup("nobody")
		}
		if err != nil {
			return nil, fmt.Errorf("PostgreSQL refuses to run as root: %w", err)
		}
		uid, err1 := strconv.ParseUint(account.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(account.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		f.account = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	if f.path, err = os.MkdirTemp(dir, "plantstore-server-"); err != nil {
		return nil, fmt.Errorf("make a folder for the server: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.remove())
		}
	}()
	f.guard = exec.Command("/bin/sh", "-c", guardScript)
	f.guard.Env = append(os.Environ(), "FOLDER="+f.path)
	f.guard.Stderr = os.Stderr
	f.guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must not end it
	if f.alive, err = f.guard.StdinPipe(); err != nil {
		return nil, err
	}
	if err := f.guard.Start(); err != nil {
		return nil, err
	}
	if f.account != nil {
		return f, os.Chown(f.path, int(f.account.Uid), int(f.account.Gid))
	}
	return f, nil
}

// remove removes the folder. Removing it again does nothing.
func (f *folder) remove() error {
	if f.guard == nil || f.guard.Process == nil {
		return os.RemoveAll(f.path)
	}
	if f.guard.ProcessState != nil {
		return nil
	}
	if err := errors.Join(f.alive.Close(), f.guard.Wait()); err != nil {
		return fmt.Errorf("remove the server's folder: %w", err)
	}
	return nil
}

// command returns a program that runs as the server's account, away from the caller's folder,
// locale and libpq settings.
func (f *folder) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = f.path
	cmd.Env = append(Environ("PG"), "LC_ALL=C", "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: f.account}
	return cmd
}
