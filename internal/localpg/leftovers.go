//go:build unix

package localpg

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// folderPrefix begins the names of servers' folders. Digits follow.
const folderPrefix = "plantstore-postgres-"

// makeFolder makes a folder for a server in dir and locks it.
func makeFolder(dir string) (string, *os.File, error) {
	for {
		folder, err := os.MkdirTemp(dir, folderPrefix) // 0700: see the package comment
		if err != nil {
			return "", nil, err
		}
		if folder, err = filepath.Abs(folder); err != nil {
			return "", nil, errors.Join(err, os.RemoveAll(folder))
		}
		lock, err := lockFolder(folder, syscall.LOCK_EX)
		if err == nil {
			// RemoveLeftovers may have come between.
			if _, err = os.Lstat(folder); err == nil {
				return folder, lock, nil
			}
			lock.Close()
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", nil, errors.Join(err, os.RemoveAll(folder))
		}
	}
}

// lockFolder locks a folder for as long as the file that it returns is open, and this
// process lives: the programs that it starts do not inherit the lock.
func lockFolder(folder string, how int) (*os.File, error) {
	f, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// RemoveLeftovers removes the files of servers that were left because this program was
// killed before Close. It returns their folders. dir is as in Options.
func RemoveLeftovers(dir string) (removed []string, err error) {
	dir = cmp.Or(dir, os.TempDir())
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("look for leftovers: %w", err)
	}
	account, err := serverCredential()
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		info, err := entry.Info()
		number, ok := strings.CutPrefix(entry.Name(), folderPrefix)
		if err != nil || !info.IsDir() || !ok || number == "" || strings.Trim(number, "0123456789") != "" {
			continue // or gone meanwhile
		}
		// What others made is not ours, whatever its name is.
		owner := info.Sys().(*syscall.Stat_t).Uid
		if owner != uint32(os.Geteuid()) && (account == nil || owner != account.Uid) {
			continue
		}
		folder := filepath.Join(dir, entry.Name())
		lock, err := lockFolder(folder, syscall.LOCK_EX|syscall.LOCK_NB)
		if err != nil {
			continue // its process lives
		}
		ours := isServers(folder)
		if ours {
			err = removeDying(folder)
		}
		lock.Close()
		switch {
		case err != nil:
			return removed, fmt.Errorf("remove what a killed process left: %w", err)
		case ours:
			removed = append(removed, folder)
		}
	}
	return removed, nil
}

// isServers reports whether a folder is a server's or PgBouncer's: it has what they have, or nothing
// yet.
func isServers(folder string) bool {
	entries, err := os.ReadDir(folder)
	isData := func(e os.DirEntry) bool {
		return e.Name() == dataFolder && e.IsDir() || e.Name() == bouncerFile
	}
	return err == nil && (len(entries) == 0 || slices.ContainsFunc(entries, isData))
}

// removeDying removes a folder in which a server may still write, because it is about
// to notice that its parent is gone.
func removeDying(folder string) (err error) {
	for range 100 {
		if err = os.RemoveAll(folder); !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}
