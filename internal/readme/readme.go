// Package readme reads the manuals of this module, so that tests can hold them
// against the code. Tests alone import it.
package readme

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// Read returns a file of this module by its path from the top.
func Read(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Top(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Manuals returns every manual of this module by its path from the top.
func Manuals(t testing.TB) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := fs.WalkDir(os.DirFS(Top(t)), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == ".git" || name == ".bin"):
			return fs.SkipDir
		case path.Ext(name) == ".md":
			all[name] = Read(t, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Top returns the folder that go.mod is in.
func Top(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd() // of the package under test
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod in this folder or above")
		}
		dir = parent
	}
}

// Table returns the rows of a table in a file, without marks of code. It finds the table by
// the name of its first column.
func Table(t testing.TB, name, first string) [][]string {
	t.Helper()
	_, below, found := strings.Cut(Read(t, name), "\n| "+first+" |")
	if !found {
		t.Fatalf("%s has no table whose first column is %q", name, first)
	}
	var rows [][]string
	number := 0
	for line := range strings.Lines(below) {
		number++
		if number <= 2 {
			continue // the rest of the heading, and the line below it
		}
		if !strings.HasPrefix(line, "|") {
			break
		}
		var row []string
		for cell := range strings.SplitSeq(strings.Trim(strings.TrimSpace(line), "|"), "|") {
			row = append(row, strings.TrimSpace(strings.ReplaceAll(cell, "`", "")))
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		t.Fatalf("the table %q of %s has no rows", first, name)
	}
	return rows
}
