package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The server ends with the command, also where the reader of the output goes away, as a
// pager does that is ended.
func TestNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "run")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, isRead := range []bool{true, false} {
		temporary, err := os.MkdirTemp("", "plantstore-run-*")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(temporary) })
		if err := os.Chmod(temporary, 0o777); err != nil { // the server may have an account of its own
			t.Fatal(err)
		}
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), program, "sh", "-c", "echo here; exit 7")
		cmd.Env = append(os.Environ(), "TMPDIR="+temporary, "PLANTSTORE_TEST_POSTGRES=local", "TEST_DATABASE_URL=", "PLANTSTORE_TEST_POSTGRES_VERSION=")
		cmd.Stdout = writer
		if isRead {
			go func() { _, _ = io.Copy(io.Discard, reader) }()
		} else {
			reader.Close()
		}
		err = cmd.Run()
		writer.Close()
		switch state := cmd.ProcessState; {
		case state == nil || !state.Exited():
			t.Errorf("with somebody who reads: %v: run ended with %v, want an exit code of its own", isRead, err)
		case isRead && state.ExitCode() != 7:
			t.Errorf("run ended with %v, want the command's exit code 7", err)
		}
		left, err := filepath.Glob(filepath.Join(temporary, "*"))
		if err != nil || len(left) > 0 {
			t.Errorf("with somebody who reads: %v: left behind %v, %v; want nothing", isRead, left, err)
		}
	}
}
