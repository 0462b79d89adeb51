package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"plantstore/internal/auth"
	"plantstore/internal/pgtest"
)

// A token that nobody got is told of: the principal is there, and of a rotation the token
// before may be no good any more.
func TestATokenThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	const want = `a token of "shop" was made, and is lost: no space left on device; 'plantstore token rotate shop' gives it another`
	for _, args := range [][]string{{"create", "shop"}, {"rotate", "shop", "--overlap=0s"}} {
		err := run(t.Context(), nil, append([]string{"token"}, append(args, "--database-url="+database.Owner)...),
			writerFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC }), io.Discard)
		if err == nil || err.Error() != want {
			t.Errorf("token %v: %v, want %s", args, err, want)
		}
	}
}

// A token that would go nowhere is not made, and takes the place of none.
func TestATokenForNobody(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	const want = "plantstore: nothing was done, as standard output is closed or the null device: the token is printed there, and this once only\n"
	for _, to := range []string{">&-", ">/dev/null"} {
		for _, args := range [][]string{{"create", "shop"}, {"rotate", "shop", "--overlap=0s"}} {
			program := exec.CommandContext(t.Context(), "sh", append([]string{"-c", `exec "$0" "$@" ` + to, os.Args[0], "token"}, append(args, "--database-url="+database.Owner)...)...)
			program.Env = append(os.Environ(), runMain+"=1")
			told, err := program.CombinedOutput()
			if code := program.ProcessState.ExitCode(); code != exitUsage || string(told) != want {
				t.Errorf("token %v %s: exit code %d, %v, %s; want %d, %s", args, to, code, err, told, exitUsage, want)
			}
		}
	}
	expecting(t, database.Owner)(0, `PRINCIPAL .*\n`, ``, "token", "list")
}

// A token is looked up again once it was known for as long as is set.
func TestTheTokenCacheIsAsLongAsSet(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	token := strings.TrimSpace(expecting(t, database.Owner)(0, `pst_.*\n`, `.*\n`, "token", "create", "shop"))
	for ttl, want := range map[string]string{"1h": "1 found, 1 cached", "0s": "2 found, 0 cached"} {
		p := start(t, "serve", "--database-url="+database.App, "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s", "--token-cache-ttl="+ttl)
		public, admin := p.addresses(t)
		waitReady(t, admin, http.StatusOK)
		for range 2 {
			if code, body := send(t, http.MethodDelete, public+"/plants/1", token); code != http.StatusNotFound {
				t.Fatalf("DELETE of no plant: %d %s, want 404", code, body)
			}
		}
		looked := map[string]float64{}
		for _, m := range scrape(t, admin, "plantstore_token_lookups_total")["plantstore_token_lookups_total"].GetMetric() {
			looked[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
		}
		if got := fmt.Sprintf("%g found, %g cached", looked["found"], looked["cached"]); got != want {
			t.Errorf("--token-cache-ttl=%s, the same token twice: %s, want %s", ttl, got, want)
		}
	}
}

// What became of the tokens before is told, or it is an error.
func TestARotationThatCannotBeTold(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	expecting(t, database.Owner)(0, `pst_.*\n`, `.*\n`, "token", "create", "shop")
	for _, overlap := range []string{"0s", "1h"} {
		err := run(t.Context(), nil, []string{"token", "rotate", "shop", "--overlap=" + overlap, "--database-url=" + database.Owner}, io.Discard,
			writerFunc(func(p []byte) (int, error) {
				if bytes.Contains(p, []byte("its earlier tokens")) {
					return 0, syscall.ENOSPC
				}
				return len(p), nil
			}))
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("token rotate --overlap=%s: %v, want that no space is left", overlap, err)
		}
	}
}

func TestAScopeIsStoredOnce(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	createToken(t, database.Owner, "shop", "--scope=plants:delete,plants:delete", "--scope=plants:delete")
	expecting(t, database.Owner)(0, `(?s).*"scopes": \[\n +"plants:delete"\n +\].*`, "", "token", "list", "--json")
}

// The owner's commands say so where the URL is the service's.
func TestStateOfAToken(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, tt := range []struct {
		token auth.Token
		old   bool
		want  string
	}{
		{auth.Token{}, false, "valid"},
		{auth.Token{ExpiresAt: now.Add(time.Second)}, true, "old"},
		{auth.Token{ExpiresAt: now.Add(-time.Second)}, true, "expired"},
		{auth.Token{ExpiresAt: now.Add(-time.Second), RevokedAt: now}, true, "revoked"},
	} {
		if got := state(tt.token, tt.old, now); got != tt.want {
			t.Errorf("state of %+v, old: %v: %s, want %s", tt.token, tt.old, got, tt.want)
		}
	}
}

func TestCommandsOfTheOwnerAsTheService(t *testing.T) {
	t.Parallel()
	expect := expecting(t, pgtest.New(t).App)
	for _, args := range []string{"deletions list", "deletions restore 1", "deletions purge --older-than=8d",
		"token list", "token create shop", "token rotate shop", "token revoke shop", "token budget shop 5/1h"} {
		expect(1, "(?:ID[^\n]*\n)?", `plantstore: [a-z :]+: permission denied for [^:]*: connect as the owner, see PLANTSTORE_MIGRATE_DATABASE_URL.*\n`, strings.Fields(args)...)
	}
}

// A client whose answer was lost changes its token, and is told with the new one what
// became of its deletion: it is the same client.
func TestRotationWithAnOpenDeletion(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	owner := pgtest.Connect(t, database.Owner)
	execute(t, owner, `INSERT INTO plants (id, name) SELECT i, 'Boston fern' FROM generate_series(1, 9) i`)
	token := func(args ...string) string {
		t.Helper()
		out, stderr, code := command(t, append(append([]string{"token"}, args...), "--database-url="+database.Owner)...)
		if code != 0 {
			t.Fatal(stderr)
		}
		return strings.TrimSpace(out)
	}
	first, other := token("create", "shop"), token("create", "another")
	// From the DELETE on the database is not heard of any more.
	var armed, silent atomic.Bool
	url := relayed(t, database.App, func(b []byte, answer bool) bool {
		if armed.Load() && !answer && bytes.Contains(b, []byte("DELETE FROM ONLY public.plants")) {
			silent.Store(true)
		}
		return !answer || !silent.Load()
	})
	// In this mode each statement is sent as text.
	p := start(t, "serve", "--database-url="+url+" default_query_exec_mode=exec", "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s",
		"--request-timeout=3s")
	public, admin := p.addresses(t)
	waitReady(t, admin, http.StatusOK)
	plant := 1
	try := func(token string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, fmt.Sprint(public, "/plants/", plant), nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		request.Header.Set("Idempotency-Key", "k")
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer.StatusCode, answer.Header.Get("Idempotency-Replayed")
	}
	if code, body := send(t, http.MethodDelete, public+"/plants/9", first); code != http.StatusNoContent {
		t.Fatalf("DELETE: %d %s, want 204", code, body)
	}
	deletions := func() (n int) {
		t.Helper()
		if err := owner.QueryRow(t.Context(), `SELECT count(*) FROM plant_deletions WHERE plant_id = $1 AND plant IS NOT NULL AND deleted_by = 'shop'`, plant).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	// A database that is slow to begin with it is told to give a deletion up: then that
	// plant is of no use here.
	for ; ; plant++ {
		armed.Store(true)
		if code, _ := try(first); code != http.StatusGatewayTimeout {
			t.Fatalf("DELETE whose answer is lost: %d, want 504", code)
		}
		armed.Store(false)
		silent.Store(false)
		if deletions() == 1 {
			break
		}
		if plant == 5 {
			t.Fatal("none of five deletions whose answer was lost was committed")
		}
		waitReady(t, admin, http.StatusOK)
	}
	second := token("rotate", "shop", "--overlap=1h")
	waitReady(t, admin, http.StatusOK)
	for name, token := range map[string]string{"the new token": second, "the old one": first} {
		if code, replayed := try(token); code != http.StatusNoContent || replayed != "true" {
			t.Errorf("the same request with %s: %d, replayed %q; want 204 and true", name, code, replayed)
		}
	}
	if code, _ := try(other); code != http.StatusNotFound {
		t.Errorf("the same key of another principal: %d, want 404", code)
	}
	if got := deletions(); got != 1 {
		t.Errorf("the ledger has %d deletions of the plant by shop, want 1", got)
	}
	out, _, _ := command(t, "deletions", "list", "--by=shop", fmt.Sprint("--plant=", plant), "--database-url="+database.Owner)
	if strings.Count(out, "\n") != 2 {
		t.Errorf("deletions list --by=shop:\n%s\nwant the one deletion", out)
	}
}
