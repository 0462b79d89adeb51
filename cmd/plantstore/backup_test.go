//go:build unix

package main

import (
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/internal/readme"
)

// The commands of the DBA's manual bring a database back below a running service, and its
// rows into another one.
func TestBackupCommandsOfTheManualWork(t *testing.T) {
	t.Parallel()
	_, section, _ := strings.Cut(readme.Read(t, "migrations/README.md"), "\n## Back up and restore\n")
	section, _, _ = strings.Cut(section, "\n## ")
	lines := regexp.MustCompile(`(?m)^pg_.*$`).FindAllString(section, -1)
	if len(lines) != 4 {
		t.Fatalf("the section has the commands %q, want two of pg_dump and two of pg_restore", lines)
	}
	server, err := localpg.Start(t.Context(), localpg.Options{Settings: pgtest.Settings()}) // of pg_dump's version
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	for _, database := range []string{"shop", "new"} {
		if err := migrate.NewStore(t.Context(), server.URL, database); err != nil {
			t.Fatal(err)
		}
		execute(t, pgtest.Connect(t, server.URL("plantstore_owner", database)), `CREATE TABLE orders (id int PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE); SELECT plantstore.watch('orders')`)
	}
	folder := t.TempDir()
	run := func(line string) {
		t.Helper()
		shell := exec.CommandContext(t.Context(), "sh", "-c", line)
		shell.Dir = folder
		shell.Env = append(os.Environ(), "PATH="+server.Programs()+":"+os.Getenv("PATH"),
			"URL="+server.URL("postgres", "shop"), "NEW_URL="+server.URL("postgres", "new"))
		if out, err := shell.CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("%s: %v, %s", line, err, out)
		}
	}
	owner := server.URL("plantstore_owner", "shop")
	conn := pgtest.Connect(t, owner)
	execute(t, conn, `INSERT INTO plants (id, name) SELECT i, 'Boston fern' FROM generate_series(1, 3) i; INSERT INTO orders VALUES (5, 1)`)
	first := createToken(t, owner, "first")
	s := serving(t, nil, "--database-url="+server.URL("plantstore_app", "shop"))
	s.waitFor(t, `"msg":"ready"`)
	answers := func(plant, token string, want int) {
		t.Helper()
		if code, body := send(t, http.MethodDelete, s.public+"/plants/"+plant, token); code != want {
			t.Errorf("DELETE of plant %s: got %d %s, want %d", plant, code, body, want)
		}
	}
	answers("1", first, http.StatusNoContent)

	run(lines[0])
	expecting(t, owner)(0, ".*", ".*", "token", "revoke", "first")
	second := createToken(t, owner, "second")
	answers("2", second, http.StatusNoContent) // which is unknown: the tokens are read
	answers("3", first, http.StatusUnauthorized)
	run(lines[1])
	answers("2", first, http.StatusNoContent)
	answers("3", second, http.StatusUnauthorized)
	answers("1", first, http.StatusNotFound)
	s.stop(t, syscall.SIGTERM)

	run(lines[2])
	run(lines[3])
	const rows = `SELECT jsonb_agg(r ORDER BY r::text)::text FROM (SELECT to_jsonb(p) FROM public.plants p UNION ALL SELECT to_jsonb(d) FROM plantstore.deletions d
		UNION ALL SELECT to_jsonb(t) FROM plantstore.tokens t UNION ALL SELECT to_jsonb(p) FROM plantstore.principals p) a (r)`
	var old, restored string
	if err := conn.QueryRow(t.Context(), rows).Scan(&old); err != nil {
		t.Fatal(err)
	}
	if err := pgtest.Connect(t, server.URL("plantstore_owner", "new")).QueryRow(t.Context(), rows).Scan(&restored); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(old, restored); diff != "" || strings.Count(old, "Boston fern") != 5 { // plant 3, and two entries with row and literal
		t.Errorf("rows (-old +new):\n%s", diff)
	}

	for _, database := range []string{"shop", "new"} {
		owner := server.URL("plantstore_owner", database)
		conn := pgtest.Connect(t, owner)
		for range 2 {
			expecting(t, owner)(0, "restored 1 plant and 1 row of other tables\n", ".*", "deletions", "restore", "--plant=1", "--yes")
			execute(t, conn, `DELETE FROM plants WHERE id = 1`)
		}
	}
}
