package main

import (
	"bufio"
	"encoding/json"
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
// once take 700 MB, and the race detector takes its own.
func TestLargeRowsAreReadAFewAtATime(t *testing.T) {
	t.Parallel()
	const entries, each, bound = 160, 1 << 20, 200 << 20
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
			reader, writer := io.Pipe()
			peak := 0
			go func() {
				for {
					_, err := io.CopyN(writer, out, each)
					if err != nil {
						writer.CloseWithError(err)
						return
					}
					peak = max(peak, peakMemory(program.Process.Pid))
				}
			}()
			if got := countPlants(t, bufio.NewReader(reader)); got != entries {
				t.Errorf("%d plants, want %d", got, entries)
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

// countPlants counts the deletions of a JSON array or of JSON lines that have their
// row as it was.
func countPlants(t *testing.T, r *bufio.Reader) int {
	t.Helper()
	d := json.NewDecoder(r)
	if first, err := r.Peek(1); err == nil && first[0] == '[' {
		if _, err := d.Token(); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for d.More() {
		var one deletionJSON
		if err := d.Decode(&one); err != nil {
			t.Fatal(err)
		}
		if len(one.Plant) != 2 || len(*one.Plant[1].Value) < 800_000 || (*one.Plant[1].Value)[:8] != `e, "e, "` {
			t.Fatalf("deletion %d has not its row", one.ID)
		}
		n++
	}
	return n
}
