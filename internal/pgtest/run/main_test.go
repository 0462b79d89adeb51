package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// runMain is the variable that makes the test binary run the program.
const runMain = "PLANTSTORE_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		main()
	}
	os.Exit(m.Run())
}

// The server ends with the command, even if the reader of its output ends first, as a pager may.
func TestRunLeavesNoServer(t *testing.T) {
	t.Parallel()
	for _, isRead := range []bool{true, false} {
		t.Run(fmt.Sprint("the output has a reader: ", isRead), func(t *testing.T) {
			t.Parallel()
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
			// A run within the command uses the same server: the source is not chosen again.
			cmd := exec.CommandContext(t.Context(), os.Args[0], "sh", "-c", `echo here; test "$TEST_DATABASE_URL" -a -z "$PLANTSTORE_TEST_POSTGRES" && exit 7`)
			cmd.Env = append(os.Environ(), runMain+"=1", "TMPDIR="+temporary, "PLANTSTORE_TEST_POSTGRES=local", "TEST_DATABASE_URL=")
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
				t.Errorf("run ended with %v, want an exit code of its own", err)
			case isRead && state.ExitCode() != 7:
				t.Errorf("run ended with %v, want the command's exit code 7", err)
			}
			left, err := filepath.Glob(filepath.Join(temporary, "*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left behind %v, %v; want nothing", left, err)
			}
		})
	}
}
