//go:build unix

package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"plantstore/internal/pgtest"
)

// The commands that dev prints work when pasted. When the terminal is closed, dev leaves
// nothing behind.
func TestDevServesAndCleansUp(t *testing.T) {
	t.Parallel()
	folder, err := os.MkdirTemp("", "dev test-") // PostgreSQL's account has to be able to enter it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	d := launch(t, program(t, []string{"TMPDIR=" + folder, "PGSERVICE=nowhere", "PGOPTIONS=-c nonsense=1", "PGTARGETSESSIONATTRS=standby", "PGSSLROOTCERT=/nonexistent"}, "dev", "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0"))
	d.waitFor(t, "msg=ready")
	greeting := d.output()
	if want := "ignored, as the database is a private one: PG"; !strings.Contains(greeting, want) {
		t.Errorf("got %s; want %q in it", greeting, want)
	}
	curl := regexp.MustCompile(`(?m)^  curl -i -X DELETE (\S+)(?: -H 'Authorization: Bearer (\S+)')?$`).FindAllStringSubmatch(greeting, -1)
	if len(curl) != 4 {
		t.Fatalf("got %d curl lines, want 4:\n%s", len(curl), greeting)
	}
	for _, want := range []struct {
		line, code int
		part       string
	}{{0, 204, ""}, {0, 404, `"error":40402`}, {1, 404, `"error":40401`}, {2, 409, `order_items`}, {3, 401, `"error":40100`}} {
		if code, body := send(t, http.MethodDelete, curl[want.line][1], curl[want.line][2]); code != want.code || !strings.Contains(body, want.part) {
			t.Errorf("%s: got %d %s; want %d and %q", curl[want.line][0], code, body, want.code, want.part)
		}
	}
	docs := regexp.MustCompile(`The API in a browser: (\S+)`).FindStringSubmatch(greeting)
	if code, _ := send(t, http.MethodGet, docs[1], ""); code != 200 {
		t.Errorf("%s: got %d, want 200", docs[1], code)
	}
	psql := regexp.MustCompile(`Look inside: psql '([^']*)' -c '([^']*)'`).FindStringSubmatch(greeting)
	execute(t, pgtest.Connect(t, psql[1]), psql[2])
	pasted := regexp.MustCompile(`(?m)^  (export .*|.* deletions .*)$`).FindAllString(greeting, -1)
	shell := exec.CommandContext(t.Context(), "sh", "-c", strings.Join(pasted, "\n"))
	shell.Env = append(os.Environ(), runMain+"=1")
	if out, err := shell.CombinedOutput(); err != nil || len(pasted) != 4 || !strings.HasPrefix(string(out), "ID ") || !strings.HasSuffix(string(out), "restored 1 plant\n") {
		t.Errorf("%s: got %v, %s; want the list of deletions, and the plant restored", pasted, err, out)
	}
	d.stop(t, syscall.SIGHUP)
	states := regexp.MustCompile(`msg=(?:ready|"not ready")`).FindAllString(d.output(), -1)
	if changes := slices.Compact(slices.Clone(states)); len(changes) != len(states) {
		t.Errorf("the log has %q, want each change of readiness once", states)
	}
	if left, err := filepath.Glob(filepath.Join(folder, "*")); err != nil || len(left) > 0 {
		t.Errorf("dev left %v behind, %v", left, err)
	}
}

func TestDevEndsWhenInterruptedBeforeItServes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, stderr strings.Builder
	if err := run(ctx, []string{"dev", "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0"}, nil, &out, &stderr); err != nil || out.String() != "" {
		t.Errorf("got %v, %q; want no error and no greeting", err, out.String())
	}
}

// dev uses any port where the usual one is taken, unless the port was asked for. serve never does.
func TestServeAndDevReportAPortInUse(t *testing.T) {
	t.Parallel()
	l, err := listen("--addr", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	free, err := listenOrAny("--addr", "", taken)
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()
	if host, _, _ := net.SplitHostPort(free.Addr().String()); host != "127.0.0.1" {
		t.Errorf("got %s, want a port of 127.0.0.1", free.Addr())
	}
	want := "--addr (PLANTSTORE_ADDR): listen tcp " + taken + ": bind: address already in use"
	if _, err := listenOrAny("--addr (PLANTSTORE_ADDR)", taken, "127.0.0.1:0"); err == nil || err.Error() != want {
		t.Errorf("dev with --addr: got %v, want %s", err, want)
	}
	if _, stderr, code := command(t, "serve", "--database-url=host=h", "--addr="+taken); code != 1 || stderr != "plantstore: "+want+"\n" {
		t.Errorf("serve: got exit code %d, %q; want 1, %q", code, stderr, want)
	}
}
