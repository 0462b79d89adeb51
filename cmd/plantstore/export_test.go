package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/localpg"
	"plantstore/internal/pgtest"
)

func TestExportedLines(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	execute(t, pgtest.Connect(t, database.Owner), `
		INSERT INTO plants (id, name, created_at) SELECT i, E'Fern <"\n' || i || '>', '2026-01-01Z' FROM generate_series(1, 3) i;
		ALTER TABLE plants ADD price numeric, ADD label text GENERATED ALWAYS AS (upper(name)) STORED;
		DELETE FROM plants WHERE id = 1; DELETE FROM plants WHERE id = 2;
		UPDATE plant_deletions SET deleted_at = '2026-11-01 12:00:00.123456Z'::timestamptz + id * interval '1 second'`)
	expect := expecting(t, database.Owner)
	line := func(id int) string {
		return fmt.Sprintf(`{"cursor":"%[1]d@2026-11-01T12:00:0%[1]d.123456Z","id":%[1]d,"plant_id":%[1]d,"plant":[{"name":"id","type":"bigint","value":"%[1]d"},`+
			`{"name":"name","type":"text","value":"Fern <\"\n%[1]d>"},{"name":"created_at","type":"timestamp with time zone","value":"2026-01-01 00:00:00+00"},`+
			`{"name":"price","type":"numeric","value":null},{"name":"label","type":"text","computed":true,"value":null}],`+
			`"deleted_at":"2026-11-01T12:00:0%[1]d.123456Z","deleted_by":"plantstore_owner","direct_sql":true,"session_role":"plantstore_owner"}`+"\n", id)
	}
	for args, want := range map[string]string{
		"": line(1) + line(2), "--after=": line(1) + line(2), "--after=1@2026-11-01T12:00:01.123456Z": line(2), "--after=2@2026-11-01T12:00:02.123456Z": "",
	} {
		if got := expect(0, ".*", "", append([]string{"deletions", "export"}, strings.Fields(args)...)...); got != want {
			t.Errorf("export %s (-want +got):\n%s", args, cmp.Diff(want, got))
		}
	}
	expect(2, "", `.*plantstore: --after: "1" is no cursor: want that of a line that was exported, as 4711@2026-07-01T12:00:00.000000Z, or nothing for all[^\n]*\n`,
		"deletions", "export", "--after=1")
	expect(1, "", `plantstore: export deletions: the last number that was handed out is 2, so this is not the ledger that deletion 7 is from, or its numbers begin anew: go on from an earlier cursor, or from the beginning\n`,
		"deletions", "export", "--after=7@2026-11-01T12:00:01.123456Z")
}

// A value that has no equivalent in UTF-8 comes as bytes, and hinders no other.
func TestDeletionsOfWhatUTF8Lacks(t *testing.T) {
	t.Parallel()
	database := pgtest.EmptyWith(t, `ENCODING 'WIN1252' LC_COLLATE 'C' LC_CTYPE 'C'`)
	expect := expecting(t, database.Owner)
	expect(0, ".*", ".*", "migrate", "up")
	execute(t, pgtest.Connect(t, database.Owner), `
		INSERT INTO plants (name, created_at) SELECT convert_from(v, 'WIN1252'), '2026-01-01Z' FROM (VALUES ('ok'::bytea), ('\x78817920e4'), ('\xc381'), ('\xe4')) x (v);
		DELETE FROM plants;
		UPDATE plant_deletions SET deleted_at = '2026-11-01 12:00:00.123456Z'`)
	line := func(id int, value string) string {
		return fmt.Sprintf(`{"cursor":"%[1]d@2026-11-01T12:00:00.123456Z","id":%[1]d,"plant_id":%[1]d,"plant":[{"name":"id","type":"bigint","value":"%[1]d"},`+
			`{"name":"name","type":"text",%[2]s},{"name":"created_at","type":"timestamp with time zone","value":"2026-01-01 00:00:00+00"}],`+
			`"deleted_at":"2026-11-01T12:00:00.123456Z","deleted_by":"plantstore_owner","direct_sql":true,"session_role":"plantstore_owner"}`+"\n", id, value)
	}
	want := line(1, `"value":"ok"`) + line(2, `"value":"x�y �","bytes":"eIF5IOQ="`) + line(3, `"value":"��","bytes":"w4E="`) + line(4, `"value":"ä"`)
	if got := expect(0, ".*", "", "deletions", "export"); got != want {
		t.Errorf("export (-want +got):\n%s", cmp.Diff(want, got))
	}
	expect(0, `.*"bytes": "w4E=".*"bytes": "eIF5IOQ=".*`, "", "deletions", "list", "--json")
	expect(0, `.*"bytes": "w4E=".*`, "", "deletions", "show", "3", "--json")
	expect(0, `.*name  +text  +"x\\x81y \\xe4"\n.*`, "", "deletions", "show", "2")
	expect(0, `.*name  +text  +"\\xc3\\x81"\n.*`, "", "deletions", "show", "3")
	execute(t, pgtest.Connect(t, database.Owner), `ALTER TABLE plants DROP name, ADD price int`)
	lost := `column "name" \(text\) is gone: "x\\x81y \\xe4" has no place`
	expect(1, "", `.*`+lost+`\n--lossy restores what is not as it was, too.\n`, "deletions", "restore", "2")
	expect(0, `.*`+lost+`\n.*`, ".*", "deletions", "restore", "2", "--lossy")
}

// What could not be written is not told as written.
func TestExportOntoAFullDisk(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	execute(t, pgtest.Connect(t, database.Owner), `INSERT INTO plants (id, name) SELECT i, repeat('fern ', 100) FROM generate_series(1, 1500) i; DELETE FROM plants`)
	var out bytes.Buffer
	full := writerFunc(func(p []byte) (int, error) {
		if out.Len() > 1_000_000 { // in the second page
			return 0, syscall.ENOSPC
		}
		return out.Write(p)
	})
	for _, follow := range []string{"--follow=true", "--follow=false"} {
		out.Reset()
		err := run(t.Context(), nil, []string{"deletions", "export", follow, "--database-url=" + database.Owner}, full, io.Discard)
		lines := strings.SplitAfter(out.String(), "\n")
		if len(lines) < 1000 {
			t.Fatalf("%d lines, want a page of 1000", len(lines))
		}
		var d deletionJSON
		if err := json.Unmarshal([]byte(lines[999]), &d); err != nil {
			t.Fatal(err)
		}
		if err == nil || err.Error() != "export deletions: no space left on device; what was written ends with the cursor "+d.Cursor {
			t.Errorf("export %s: %v; want it to end with the cursor %s", follow, err, d.Cursor)
		}
	}
	// The last lines are written at the end.
	few := "--after=1490@" + cursorTime(t, database.Owner, 1490)
	err := run(t.Context(), nil, []string{"deletions", "export", few, "--database-url=" + database.Owner},
		writerFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC }), io.Discard)
	if err == nil || err.Error() != "export deletions: no space left on device" {
		t.Errorf("export %s: %v; want that no space is left, and no word of what was written", few, err)
	}
}

// cursorTime is when a deletion was, as in its cursor.
func cursorTime(t *testing.T, url string, id int64) (at string) {
	t.Helper()
	if err := pgtest.Connect(t, url).QueryRow(t.Context(), `SELECT to_char(deleted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') FROM plant_deletions WHERE id = $1`, id).Scan(&at); err != nil {
		t.Fatal(err)
	}
	return at
}

// What is cut short is not whole, and says where to go on.
func TestAnInterruptedExportSaysWhereToGoOn(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	execute(t, pgtest.Connect(t, database.Owner), `INSERT INTO plants (id, name) SELECT i, 'fern' FROM generate_series(1, 1500) i; DELETE FROM plants`)
	ctx, interrupt := context.WithCancel(t.Context())
	err := run(ctx, nil, []string{"deletions", "export", "--database-url=" + database.Owner}, writerFunc(func(p []byte) (int, error) {
		interrupt() // in the first page of a thousand
		return len(p), nil
	}), io.Discard)
	if want := "interrupted: go on with --after=1000@" + cursorTime(t, database.Owner, 1000); err == nil || err.Error() != want {
		t.Errorf("export: %v, want %s", err, want)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// An exporter is a follower that is a process of its own.
type exporter struct {
	*exec.Cmd
	lines chan string
	err   *syncBuffer
}

func startExporter(t *testing.T, args ...string) *exporter {
	t.Helper()
	e := &exporter{exec.CommandContext(t.Context(), os.Args[0], append([]string{"deletions", "export", "--follow"}, args...)...), make(chan string, 100_000), new(syncBuffer)}
	e.Env, e.Stderr = append(os.Environ(), runMain+"=1"), e.err
	out, err := e.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(e.lines)
		for r := bufio.NewReader(out); ; {
			line, err := r.ReadString('\n')
			if line != "" {
				e.lines <- line
			}
			if err != nil {
				return
			}
		}
	}()
	return e
}

// next returns the next line, or nothing once it has ended.
func (e *exporter) next(t *testing.T) (d deletionJSON, ok bool) {
	t.Helper()
	select {
	case line, open := <-e.lines:
		if !open {
			return d, false
		}
		if err := json.Unmarshal([]byte(line), &d); err != nil || !strings.HasSuffix(line, "}\n") {
			t.Fatalf("%q is no whole line: %v", line, err)
		}
		return d, true
	case <-time.After(patience):
		t.Fatalf("no line in %s; it told:\n%s", patience, e.err)
		return d, false
	}
}

// A follower that is told to end does so after a whole line, and another one goes on
// from its cursor.
func TestAFollowerEndsAndIsGoneOnFrom(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	execute(t, pgtest.Connect(t, database.Owner), `INSERT INTO plants (id, name) SELECT i, repeat('fern ', 100) FROM generate_series(1, 3000) i; DELETE FROM plants`)
	var got []int64
	after := ""
	for round := 0; len(got) < 3000; round++ {
		e := startExporter(t, "--after="+after, "--database-url="+database.Owner)
		for i := 0; ; i++ {
			d, ok := e.next(t)
			if !ok {
				break
			}
			got = append(got, d.ID)
			after = d.Cursor
			if i == 500 {
				if err := e.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			if len(got) == 3000 && i < 500 {
				if err := e.Process.Signal(os.Interrupt); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := e.Wait(); err != nil || e.err.String() != "" {
			t.Fatalf("it ended with %v, and told:\n%s", err, e.err)
		}
	}
	for i, id := range got {
		if id != int64(i+1) {
			t.Fatalf("line %d is deletion %d", i+1, id)
		}
	}
}

// Who takes no more lines ends it, without a word.
func TestExportIntoAPipeThatIsClosed(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	execute(t, pgtest.Connect(t, database.Owner), `INSERT INTO plants (id, name) SELECT i, repeat('fern ', 100) FROM generate_series(1, 3000) i; DELETE FROM plants`)
	program := exec.CommandContext(t.Context(), os.Args[0], "deletions", "export", "--follow", "--database-url="+database.Owner)
	log := new(syncBuffer)
	program.Env, program.Stderr = append(os.Environ(), runMain+"=1"), log
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	out.Close()
	ended := make(chan error, 1)
	go func() { ended <- program.Wait() }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	if log.String() != "" {
		t.Errorf("it told %q, want nothing", log)
	}
}

// The database crashes, restarts and fails over to its standby under deletions: a
// follower gets all that were committed, once, in order.
func TestAFollowerMissesNothingInOutages(t *testing.T) {
	t.Parallel()
	const plants = 100_000
	s, standby := newSite(t, plants, true, longTimeout...)
	url := "host=" + socketFolder(t, s.primary) + "," + socketFolder(t, standby) + " user=plantstore_owner dbname=plantstore"
	e := startExporter(t, "--database-url="+url)
	c := s.clients(t, plants)
	// Some delete with SQL, slowly, and lose what is under way when the database goes.
	done := make(chan struct{})
	var others sync.WaitGroup
	for i := range 4 {
		others.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				conn, err := pgx.Connect(t.Context(), url+" target_session_attrs=read-write")
				if err != nil {
					time.Sleep(10 * time.Millisecond)
					continue
				}
				for ; err == nil; n++ {
					select {
					case <-done:
						conn.Close(t.Context())
						return
					default:
					}
					_, err = conn.Exec(t.Context(), fmt.Sprintf(`BEGIN; DELETE FROM plants WHERE id = %d; SELECT pg_sleep(0.02); %s`,
						plants-(n*4+i), []string{"COMMIT", "COMMIT", "ROLLBACK"}[n%3]))
				}
				conn.Close(t.Context())
			}
		})
	}
	c.more(t, 100)
	for _, mode := range []localpg.Mode{localpg.Fast, localpg.Kill} {
		if err := s.primary.Stop(t.Context(), mode); err != nil {
			t.Fatal(err)
		}
		if err := s.primary.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.more(t, 100)
	}
	if err := s.primary.Stop(t.Context(), localpg.Kill); err != nil {
		t.Fatal(err)
	}
	// A short outage may pass between two looks. This one lasts until it is seen.
	tells := func(want string) {
		if !eventually(func() bool { return strings.Contains(e.err.String(), want) }) {
			t.Errorf("it told:\n%s\nwant %q", e.err, want)
		}
	}
	tells("waiting for the database: ")
	promote(t, standby)
	c.more(t, 100)
	c.end()
	close(done)
	others.Wait()
	rows, err := pgtest.Connect(t, standby.URL("plantstore_owner", "plantstore")).Query(t.Context(), `SELECT id FROM plant_deletions WHERE plant IS NOT NULL ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	want, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for len(got) < len(want) {
		d, ok := e.next(t)
		if !ok {
			t.Fatalf("it ended after %d of %d lines, and told:\n%s", len(got), len(want), e.err)
		}
		got = append(got, d.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("exported (-want +got):\n%s", cmp.Diff(want, got))
	}
	tells("the database is back after ")
	if err := e.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := e.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	if told := e.err.String(); strings.Count(told, "is back after ") != strings.Count(told, "waiting for the database: ") {
		t.Errorf("it told:\n%s\nwant the end of each outage once", told)
	}
}
