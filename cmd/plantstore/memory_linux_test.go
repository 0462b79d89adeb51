package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"plantstore/internal/pgtest"
)

// peakMemory returns the most memory that a program had so far, in bytes, or nothing
// once it has ended.
func peakMemory(pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	m := regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB$`).FindSubmatch(status)
	if m == nil {
		return 0
	}
	kB, _ := strconv.Atoi(string(m[1]))
	return kB << 10
}

// A ledger of any size is read with the memory that a few rows take. All of these at
// once take 450 MB, and the race detector takes its own.
func TestLargeRowsAreReadAFewAtATime(t *testing.T) {
	t.Parallel()
	const entries, each, bound = 100, 1 << 20, 200 << 20
	database := pgtest.New(t)
	execute(t, pgtest.Connect(t, database.Owner), fmt.Sprintf(`
		INSERT INTO plant_shapes (attributes, names, types, generated) VALUES ('{}', '{id,name}', '{bigint,text}', '{f,f}');
		INSERT INTO plant_deletions (plant_id, shape, plant, deleted_by)
		SELECT i, 1, format('(%%s,"%%s")', i, repeat('e, ""', %d)), 'shop' FROM generate_series(1, %d) i`, each/5, entries))
	for _, args := range [][]string{
		{"deletions", "list", "--json", "--limit=1000"}, {"deletions", "export"},
	} {
		t.Run(args[1], func(t *testing.T) {
			t.Parallel()
			program := exec.CommandContext(t.Context(), os.Args[0], append(args, "--database-url="+database.Owner)...)
			program.Env = append(os.Environ(), runMain+"=1")
			program.Stderr = os.Stderr
			out, err := program.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			// Each quotation mark of a row has a backslash before it, and nothing else has.
			marks, peak := 0, 0
			for piece := make([]byte, each); err == nil; {
				var n int
				n, err = io.ReadFull(out, piece)
				marks += bytes.Count(piece[:n], []byte{'\\'})
				peak = max(peak, peakMemory(program.Process.Pid))
			}
			if want := entries * (each / 5); marks != want {
				t.Errorf("%d quotation marks in %d rows (%v), want %d", marks, entries, err, want)
			}
			if err := program.Wait(); err != nil {
				t.Error(err)
			}
			if peak == 0 || peak > bound {
				t.Errorf("%d MB of memory for rows of %d MB in all, want %d at the most", peak>>20, entries*each>>20, bound>>20)
			}
		})
	}
}
