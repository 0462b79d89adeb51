package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"plantstore/internal/pgtest"
	"plantstore/internal/postgres"
)

// runMain makes the test binary be the program itself, for what main does before
// and after run.
const runMain = "PLANTSTORE_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		main()
		return
	}
	// What is set on this machine must not reach the tests.
	for _, setting := range os.Environ() {
		name, _, _ := strings.Cut(setting, "=")
		if strings.HasPrefix(name, "DATABASE_URL") || strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "PLANTSTORE_") && !strings.HasPrefix(name, "PLANTSTORE_TEST_") {
			os.Unsetenv(name)
		}
	}
	// A program with the race detector sleeps for a second before it exits. Many tests run
	// this one as a child.
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	// Run by nohup, this process and its children would ignore it. What is handled here
	// is the default there.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	os.Exit(pgtest.Main(m))
}

// command runs the command line and returns what it printed and its exit code.
func command(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	err := run(t.Context(), nil, args, &out, &errOut)
	if exit, ok := errors.AsType[*exitError](err); ok {
		code = exit.code
	} else if err != nil {
		code = 1
	}
	if err != nil {
		fmt.Fprintf(&errOut, "plantstore: %v\n", err)
	}
	return out.String(), errOut.String(), code
}

// createToken runs "token create" with a principal, and flags if need be.
func createToken(t *testing.T, owner string, args ...string) string {
	t.Helper()
	out, stderr, code := command(t, append(append([]string{"token", "create"}, args...), "--database-url="+owner)...)
	if code != 0 {
		t.Fatal(stderr)
	}
	return strings.TrimSpace(out)
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// sameAddresses is what a command says of two addresses that can't be had together.
func sameAddresses(command, public, admin string) string {
	return fmt.Sprintf("plantstore: %s: --addr (PLANTSTORE_ADDR) is %q and --admin-addr (PLANTSTORE_ADMIN_ADDR) is %q: each listener needs an address of its own", command, public, admin)
}

func TestBadCommandLines(t *testing.T) {
	t.Parallel()
	tests := []struct {
		args  string
		code  int
		last  string // the last line on standard error
		usage bool
	}{
		{"", 2, `plantstore: expected one of "dev", "serve", "migrate", "token", "healthcheck", ...`, true},
		{"nonsense", 2, `plantstore: unexpected argument nonsense`, true},
		{"serve --nonsense", 2, `plantstore: unknown flag --nonsense`, false},
		{"serve nonsense", 2, `plantstore: unexpected argument nonsense`, false},
		{"token list --jsno", 2, `plantstore: unknown flag --jsno, did you mean "--json"?`, false},
		{"serve --request-timeout=soon", 2, `plantstore: --request-timeout: expected duration but got "soon": time: invalid duration "soon"`, false},
		{"serve --request-timeout=1ms", 2, `plantstore: serve: --request-timeout (PLANTSTORE_REQUEST_TIMEOUT) is 1ms: it must be from 500ms to 10m`, false},
		{"serve --request-timeout=499ms", 2, `plantstore: serve: --request-timeout (PLANTSTORE_REQUEST_TIMEOUT) is 499ms: it must be from 500ms to 10m`, false},
		{"serve --request-timeout=25s --addr=127.0.0.1:99999", 2, `plantstore: serve: --request-timeout (PLANTSTORE_REQUEST_TIMEOUT) is 25s: it must not be longer than --shutdown-timeout (PLANTSTORE_SHUTDOWN_TIMEOUT), which is 20s: the end would cut requests off`, false},
		{"serve --shutdown-timeout=9s --addr=127.0.0.1:99999", 2, `plantstore: serve: --request-timeout (PLANTSTORE_REQUEST_TIMEOUT) is 10s: it must not be longer than --shutdown-timeout (PLANTSTORE_SHUTDOWN_TIMEOUT), which is 9s: the end would cut requests off`, false},
		{"dev --request-timeout=25s --addr=127.0.0.1:99999", 2, `plantstore: dev: --request-timeout (PLANTSTORE_REQUEST_TIMEOUT) is 25s: it must not be longer than --shutdown-timeout (PLANTSTORE_SHUTDOWN_TIMEOUT), which is 20s: the end would cut requests off`, false},
		{"serve --addr=127.0.0.1:99999 --trusted-proxies=10.0.0.0/8,proxy", 2, `plantstore: --trusted-proxies: "proxy" is no address or network: want one as 10.0.0.7 or 10.0.0.0/8`, false},
		{"serve --database-url=host=h --addr=127.0.0.1:99999 --trusted-proxies=10.0.0.0/8,2001:db8::7", 2, `plantstore: --addr (PLANTSTORE_ADDR) is "127.0.0.1:99999": invalid port: want one as :8080 or 127.0.0.1:8080`, false},
		{"serve --max-in-flight=0", 2, `plantstore: serve: --max-in-flight (PLANTSTORE_MAX_IN_FLIGHT) is 0: it must be at least 1`, false},
		{"serve --max-connections=0", 2, `plantstore: serve: --max-connections (PLANTSTORE_MAX_CONNECTIONS) is 0: it must be at least 1`, false},
		{"serve --token-cache-ttl=-1s", 2, `plantstore: serve: --token-cache-ttl (PLANTSTORE_TOKEN_CACHE_TTL) is -1s: it must not be negative`, false},
		{"serve --shutdown-timeout=61m", 2, `plantstore: serve: --shutdown-timeout (PLANTSTORE_SHUTDOWN_TIMEOUT) is 1h1m0s: it must not be longer than 1h`, false},
		{"serve --request-timeout=11m --shutdown-timeout=12m", 2, `plantstore: serve: --request-timeout (PLANTSTORE_REQUEST_TIMEOUT) is 11m0s: it must be from 500ms to 10m`, false},
		// Limits are allowed, and what comes after them is looked at.
		{"serve --database-url=host=h --request-timeout=10m --shutdown-timeout=10m --drain-delay=10m --max-in-flight=1 --max-connections=1 --token-cache-ttl=0s --log-format=text --addr=nowhere", 2,
			`plantstore: --addr (PLANTSTORE_ADDR) is "nowhere": missing port in address: want one as :8080 or 127.0.0.1:8080`, false},
		{"serve --drain-delay=-1s", 2, `plantstore: serve: --drain-delay (PLANTSTORE_DRAIN_DELAY) is -1s: it must be from 0s to 10m`, false},
		{"serve --drain-delay=11m", 2, `plantstore: serve: --drain-delay (PLANTSTORE_DRAIN_DELAY) is 11m0s: it must be from 0s to 10m`, false},
		{"serve --log-format=xml", 2, `plantstore: --log-format: "xml" is no log format: want json or text`, false},
		{"serve --database-url=host=h --addr=127.0.0.1:99999", 2, `plantstore: --addr (PLANTSTORE_ADDR) is "127.0.0.1:99999": invalid port: want one as :8080 or 127.0.0.1:8080`, false},
		{"serve --database-url=host=h --addr=127.0.0.1:0 --admin-addr=9090", 2, `plantstore: --admin-addr (PLANTSTORE_ADMIN_ADDR) is "9090": missing port in address: want one as :8080 or 127.0.0.1:8080`, false},
		{"serve --database-url=host=h --addr=127.0.0.1:nonsense", 2, `plantstore: --addr (PLANTSTORE_ADDR) is "127.0.0.1:nonsense": lookup tcp/nonsense: unknown port`, false},
		{"serve", 2, `plantstore: serve: --database-url (DATABASE_URL) is not set: set it to the database's URL, as postgres://user:password@host:5432/database`, false},
		{"token list", 2, `plantstore: neither PLANTSTORE_MIGRATE_DATABASE_URL nor DATABASE_URL is set: set it to the database's URL, as postgres://user:password@host:5432/database`, false},
		{"migrate up --service-url=postgres://u:geheim@h:p/d", 2,
			`plantstore: --service-url cannot be read as a PostgreSQL URL or DSN, such as postgres://user:password@host:5432/database`, false},
		{"token list --database-url=postgres://u:geheim@h:p/d", 2,
			`plantstore: --database-url cannot be read as a PostgreSQL URL or DSN, such as postgres://user:password@host:5432/database`, false},
		{"serve --addr=127.0.0.1:0 --admin-addr=127.0.0.1:0 --database-url=postgres://u:geheim@h:p/d", 2,
			`plantstore: --database-url cannot be read as a PostgreSQL URL or DSN, such as postgres://user:password@host:5432/database`, false},
		{"migrate up --database-url=postgres://u:geheim@127.0.0.1:1/d?sslmode=disable", 1,
			`plantstore: cannot connect to PostgreSQL at 127.0.0.1:1: connection refused: is it running, and is --database-url right?`, false},
		{"migrate plan --database-url=postgres://u:geheim@127.0.0.1:1/d?sslmode=disable", 1,
			`plantstore: cannot connect to PostgreSQL at 127.0.0.1:1: connection refused: is it running, and is --database-url right?`, false},
		{"migrate down --database-url=postgres://u:geheim@127.0.0.1:1/d?sslmode=disable", 1,
			`plantstore: cannot connect to PostgreSQL at 127.0.0.1:1: connection refused: is it running, and is --database-url right?`, false},
		{"migrate status --database-url=postgres://u:geheim@127.0.0.1:1/d?sslmode=disable", 1,
			`plantstore: cannot connect to PostgreSQL at 127.0.0.1:1: connection refused: is it running, and is --database-url right?`, false},
		{"migrate version --database-url=postgres://u:geheim@127.0.0.1:1/d?sslmode=disable", 1,
			`plantstore: cannot connect to PostgreSQL at 127.0.0.1:1: connection refused: is it running, and is --database-url right?`, false},
		{"serve --database-url=host=h --addr=:80 --admin-addr=:8000 --trusted-proxies=proxy", 2, `plantstore: --trusted-proxies: "proxy" is no address or network: want one as 10.0.0.7 or 10.0.0.0/8`, false},
		{"token create shop --budget=5", 2, `plantstore: --budget: "5" is no deletion budget: want one as 500/1h or 10000/7d`, false},
		{"token budget shop 5", 2, `plantstore: [<budget>]: "5" is no deletion budget: want one as 500/1h or 10000/7d`, false},
		{"token budget shop", 2, `plantstore: token budget: say what the deletion budget of "shop" is to be, as 500/1h or none, or lift it, as --lift 30m`, false},
		{"token budget shop none --lift=5m", 2, `plantstore: token budget: a principal without a budget has none that could be lifted: leave out --lift`, false},
		{"migrate down --to=-3", 2, `plantstore: migrate down: --to is -3: it must be at least 0`, false},
		{"migrate down --lock-attempts=0", 2, `plantstore: migrate down: --lock-attempts (PLANTSTORE_MIGRATE_LOCK_ATTEMPTS) is 0: it must be at least 1`, false},
		{"dev --addr=127.0.0.1:0 --admin-addr=9090", 2, `plantstore: --admin-addr (PLANTSTORE_ADMIN_ADDR) is "9090": missing port in address: want one as :8080 or 127.0.0.1:8080`, false},
		{"serve --tls-cert=cert.pem", 2, `plantstore: serve: --tls-cert (PLANTSTORE_TLS_CERT) and --tls-key (PLANTSTORE_TLS_KEY) go together: one of them is not set`, false},
		{"serve --tls-key=key.pem", 2, `plantstore: serve: --tls-cert (PLANTSTORE_TLS_CERT) and --tls-key (PLANTSTORE_TLS_KEY) go together: one of them is not set`, false},
		{"serve --tls-cert=/nonexistent/cert.pem --tls-key=key.pem", 2, `plantstore: serve: the certificate for TLS can't be read: open /nonexistent/cert.pem: no such file or directory`, false},
		{"token rotate x --days=36501", 2, `plantstore: token rotate: --days is 36501: it must be from 0 to 36500`, false},
		{"token rotate x --overlap=-1s", 2, `plantstore: --overlap: "-1s" is no age: want one as 365d or 36h`, false},
		{"serve --rate-limit=fast", 2, `plantstore: --rate-limit: "fast" is no rate: want one as 200/s, 600/m or 200/s,burst=400`, false},
		{"serve --rate-limit=0/s", 2, `plantstore: --rate-limit: "0/s" is no rate: want one as 200/s, 600/m or 200/s,burst=400`, false},
		{"serve --rate-limit=200/s,burst=0", 2, `plantstore: --rate-limit: "200/s,burst=0" is no rate: want one as 200/s, 600/m or 200/s,burst=400`, false},
		{"serve --database-url=host=h --rate-limit=600/m,burst=50 --addr=127.0.0.1:99999", 2, `plantstore: --addr (PLANTSTORE_ADDR) is "127.0.0.1:99999": invalid port: want one as :8080 or 127.0.0.1:8080`, false},
		{"serve --oidc-issuer=https://login.example", 2, `plantstore: serve: --oidc-audience (PLANTSTORE_OIDC_AUDIENCE) is not set: without it, a JWT for any other service would do`, false},
		{"serve --jwks-url=https://login.example/keys --oidc-audience=plants", 2, `plantstore: serve: --oidc-issuer (PLANTSTORE_OIDC_ISSUER) is not set: without it, a JWT of anybody's would do`, false},
		{"serve --oidc-audience=plants", 2, `plantstore: serve: --oidc-issuer (PLANTSTORE_OIDC_ISSUER) is not set: without it, a JWT of anybody's would do`, false},
		{"serve --jwks-url=https://login.example/keys", 2, `plantstore: serve: --oidc-issuer (PLANTSTORE_OIDC_ISSUER) is not set: without it, a JWT of anybody's would do`, false},
		{"serve --oidc-budget=5/1h", 2, `plantstore: serve: --oidc-issuer (PLANTSTORE_OIDC_ISSUER) is not set: without it, a JWT of anybody's would do`, false},
		{"serve --oidc-issuer=https://login.example --oidc-audience=plants --oidc-principal-claim=", 2, `plantstore: serve: --oidc-principal-claim (PLANTSTORE_OIDC_PRINCIPAL_CLAIM) is empty`, false},
		{"serve --oidc-issuer=http://login.example --oidc-audience=plants", 2, `plantstore: serve: --oidc-issuer (PLANTSTORE_OIDC_ISSUER): "http://login.example" is no https URL: whoever is between could put in keys of their own`, false},
		{"serve --oidc-issuer=login.example --oidc-audience=plants --jwks-url=http://10.0.0.1/keys", 2, `plantstore: serve: --jwks-url (PLANTSTORE_JWKS_URL): "http://10.0.0.1/keys" is no https URL: whoever is between could put in keys of their own`, false},
		{"serve --oidc-principal-claim=client_id", 2, `plantstore: serve: --oidc-issuer (PLANTSTORE_OIDC_ISSUER) is not set: without it, a JWT of anybody's would do`, false},
		{"serve --oidc-issuer=https://login.example --oidc-audience=plants --jwks-url=/etc/jwks.json", 2, `plantstore: serve: --jwks-url (PLANTSTORE_JWKS_URL): "/etc/jwks.json" is no URL of a file: that has three slashes and the whole path, as file:///etc/jwks.json`, false},
		{"serve --oidc-issuer=https://login.example --oidc-audience=plants --jwks-url=file://etc/jwks.json", 2, `plantstore: serve: --jwks-url (PLANTSTORE_JWKS_URL): "file://etc/jwks.json" is no URL of a file: that has three slashes and the whole path, as file:///etc/jwks.json`, false},
		{"token create x --days=-1", 2, `plantstore: token create: --days is -1: it must be from 0 to 36500`, false},
		{"token create", 2, `plantstore: expected "<name>"`, true},
		{"token create x --database-url=host=h --scope=", 2, `plantstore: token create: --scope is empty: the token would allow nothing`, false},
		{"serve --database-url=host=h --addr=127.0.0.1:8080 --admin-addr=127.0.0.1:8080", 2, sameAddresses("serve", "127.0.0.1:8080", "127.0.0.1:8080"), false},
		{"serve --database-url=host=h --addr=:8080 --admin-addr=127.0.0.1:8080", 2, sameAddresses("serve", ":8080", "127.0.0.1:8080"), false},
		{"serve --database-url=host=h --addr=[::1]:8080 --admin-addr=[::]:8080", 2, sameAddresses("serve", "[::1]:8080", "[::]:8080"), false},
		{"serve --database-url=host=h --addr=localhost:9090", 2, sameAddresses("serve", "localhost:9090", ":9090"), false},
		{"dev --addr=localhost:8080 --admin-addr=localhost:8080", 2, sameAddresses("dev", "localhost:8080", "localhost:8080"), false},
		{"healthcheck --timeout=-1s", 2, `plantstore: healthcheck: --timeout is -1s: it must be longer than 0s`, false},
		{"healthcheck --timeout=0s", 2, `plantstore: healthcheck: --timeout is 0s: it must be longer than 0s`, false},
		{"healthcheck --admin-addr=nonsense", 2, `plantstore: --admin-addr (PLANTSTORE_ADMIN_ADDR) is "nonsense": address nonsense: missing port in address`, false},
		{"healthcheck --admin-addr=127.0.0.1:nonsense", 2, `plantstore: --admin-addr (PLANTSTORE_ADMIN_ADDR) is "127.0.0.1:nonsense": lookup tcp/nonsense: unknown port`, false},
		{"healthcheck --admin-addr=a%zz:9090", 2, `plantstore: --admin-addr (PLANTSTORE_ADMIN_ADDR) is "a%zz:9090": parse "http://a%zz:9090/readyz": invalid URL escape "%zz"`, false},
		{"healthcheck --admin-addr=127.0.0.1:gopher", 1, `plantstore: not healthy: nothing listens on 127.0.0.1:70: is the service running, and is PLANTSTORE_ADMIN_ADDR right?`, false},
		{"healthcheck --admin-addr=:1", 1, `plantstore: not healthy: nothing listens on localhost:1: is the service running, and is PLANTSTORE_ADMIN_ADDR right?`, false},
		{"healthcheck --admin-addr=0.0.0.0:1", 1, `plantstore: not healthy: nothing listens on localhost:1: is the service running, and is PLANTSTORE_ADMIN_ADDR right?`, false},
		{"healthcheck --admin-addr=[::]:1", 1, `plantstore: not healthy: nothing listens on localhost:1: is the service running, and is PLANTSTORE_ADMIN_ADDR right?`, false},
		{"healthcheck --admin-addr=127.0.0.1:1", 1, `plantstore: not healthy: nothing listens on 127.0.0.1:1: is the service running, and is PLANTSTORE_ADMIN_ADDR right?`, false},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			_, stderr, code := command(t, strings.Fields(tt.args)...)
			if code != tt.code || lastLine(stderr) != tt.last {
				t.Errorf("exit code %d, last line %q\nwant      %d,           %q", code, lastLine(stderr), tt.code, tt.last)
			}
			if usage := strings.HasPrefix(stderr, "Usage: plantstore"); usage != tt.usage {
				t.Errorf("usage shown: %v, want %v:\n%s", usage, tt.usage, stderr)
			}
			if strings.Contains(stderr, "geheim") {
				t.Errorf("a password is shown:\n%s", stderr)
			}
		})
	}
}

// What is blank is not set, and a blank beside a value is none that a JWT has.
func TestBlankSettingsOfJWTs(t *testing.T) {
	t.Parallel()
	const beside = ": take out what is blank around it, which no JWT has"
	for setting, want := range map[string]string{
		"--oidc-audience= ":                     "--oidc-audience (PLANTSTORE_OIDC_AUDIENCE) is not set: without it, a JWT for any other service would do",
		"--oidc-principal-claim= ":              "--oidc-principal-claim (PLANTSTORE_OIDC_PRINCIPAL_CLAIM) is empty",
		"--oidc-issuer=https://login.example\n": `--oidc-issuer (PLANTSTORE_OIDC_ISSUER) is "https://login.example\n"` + beside,
		"--oidc-audience= plants":               `--oidc-audience (PLANTSTORE_OIDC_AUDIENCE) is " plants"` + beside,
		"--oidc-principal-claim=sub ":           `--oidc-principal-claim (PLANTSTORE_OIDC_PRINCIPAL_CLAIM) is "sub "` + beside,
	} {
		_, stderr, code := command(t, "serve", "--database-url=host=h", "--addr=nowhere", "--oidc-issuer=https://login.example", "--oidc-audience=plants", setting)
		if want := "plantstore: serve: " + want; code != 2 || lastLine(stderr) != want {
			t.Errorf("%q: exit code %d, %q; want 2, %q", setting, code, lastLine(stderr), want)
		}
	}
}

func TestPortTaken(t *testing.T) {
	t.Parallel()
	l, err := listen("--addr", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, stderr, code := command(t, "serve", "--database-url=host=h", "--addr", l.Addr().String())
	want := "plantstore: cannot listen on " + l.Addr().String() + ": bind: address already in use: choose another address with --addr (PLANTSTORE_ADDR)\n"
	if code != 1 || stderr != want {
		t.Errorf("exit code %d, %q; want 1, %q", code, stderr, want)
	}
}

func TestHealthcheckSaysWhy(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	answering := func(text string) string {
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, text)
			conn.Close()
		}))
		t.Cleanup(other.Close)
		return other.Listener.Addr().String()
	}
	ready := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(ready.Close)
	// A proxy answers in the place of whoever does not. Go asks none for this machine.
	if stderr, code := runProcess(t, []string{"HTTP_PROXY=" + ready.URL, "NO_PROXY="}, "healthcheck", "--admin-addr=192.0.2.2:9", "--timeout=100ms"); code != 1 || !strings.HasPrefix(stderr, "plantstore: not healthy: ") {
		t.Errorf("behind a proxy that answers: exit code %d, %q; want 1, not healthy", code, stderr)
	}
	p := start(t, "serve", "--database-url=host="+t.TempDir()+" user=u dbname=d", "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s")
	public, admin := p.addresses(t)
	reason := waitReady(t, admin, http.StatusServiceUnavailable)
	for _, tt := range []struct{ name, addr, want string }{
		{"no database", strings.TrimPrefix(admin, "http://"), "plantstore: not healthy: " + reason},
		{"the other listener", strings.TrimPrefix(public, "http://"), strings.TrimPrefix(public, "http://") + " answers 404 Not Found and is no operators' listener: is PLANTSTORE_ADMIN_ADDR right?"},
		{"another protocol", answering("220 mail\r\n"), "malformed HTTP"},
		{"somebody who knows another one", answering("HTTP/1.1 302 Found\r\nLocation: http://" + ready.Listener.Addr().String() + "/readyz\r\nContent-Length: 0\r\n\r\n"), "answers 302 Found and is no operators' listener"},
		{"half an answer", answering("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nrea"), "plantstore: not healthy: unexpected EOF"},
		{"silence", silent.Addr().String(), "not healthy: " + silent.Addr().String() + " did not answer in 100ms"},
	} {
		timeout := patience.String()
		if tt.name == "silence" {
			timeout = "100ms"
		}
		if _, stderr, code := command(t, "healthcheck", "--admin-addr="+tt.addr, "--timeout="+timeout); code != 1 || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s: exit code %d, %q; want 1, %q", tt.name, code, stderr, tt.want)
		}
	}
}

// Who asks and gets no whole answer reads why. An empty file and exit code 0 would be
// taken for the answer.
func TestAnswersOntoAFullDisk(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	execute(t, pgtest.Connect(t, database.Owner), `INSERT INTO plants (id, name) VALUES (1, 'fern'); DELETE FROM plants`)
	for _, args := range []string{
		"migrate up", "migrate plan", "migrate plan --json", "migrate status", "migrate status --json", "migrate version", "migrate version --json",
		"token list", "token list --json", "deletions list", "deletions list --json", "deletions show 1", "deletions show 1 --json",
		"deletions purge --older-than=8d --dry-run", "deletions restore 1 --dry-run", "doctor", "doctor --json",
		"version", "completion", "complete",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			list := strings.Fields(args)
			if !slices.Contains([]string{"version", "completion", "complete"}, list[0]) {
				list = append(list, "--database-url="+database.Owner)
			}
			err := run(t.Context(), nil, list, writerFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC }), io.Discard)
			if !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("%v, want that no space is left", err)
			}
			const want = "'plantstore version' is done, but not all that it told could be written: no space left on device"
			if args == "version" && fmt.Sprint(err) != want {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
}

func TestHelpNamesEverySetting(t *testing.T) {
	t.Parallel()
	stdout, _, code := command(t, "serve", "--help")
	for _, name := range []string{
		"DATABASE_URL", "DATABASE_URL_FILE", "PLANTSTORE_TLS_CERT", "PLANTSTORE_TLS_KEY", "PLANTSTORE_OIDC_ISSUER",
		"PLANTSTORE_OIDC_AUDIENCE", "PLANTSTORE_OIDC_PRINCIPAL_CLAIM", "PLANTSTORE_JWKS_URL", "PLANTSTORE_RATE_LIMIT", "PLANTSTORE_ADDR", "PLANTSTORE_ADMIN_ADDR", "PLANTSTORE_REQUEST_TIMEOUT", "PLANTSTORE_DRAIN_DELAY",
		"PLANTSTORE_SHUTDOWN_TIMEOUT", "PLANTSTORE_MAX_IN_FLIGHT", "PLANTSTORE_MAX_CONNECTIONS", "PLANTSTORE_TRUSTED_PROXIES", "PLANTSTORE_TOKEN_CACHE_TTL",
		"PLANTSTORE_LOG_LEVEL", "PLANTSTORE_LOG_FORMAT",
	} {
		if !strings.Contains(stdout, name) {
			t.Errorf("serve --help does not name %s", name)
		}
	}
	if code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	help, _, _ := command(t, "dev", "--help")
	for _, addr := range []string{"127.0.0.1:8080", "127.0.0.1:9090"} { // as in the manuals
		if !strings.Contains(help, addr) {
			t.Errorf("dev --help does not name %s", addr)
		}
	}
}

// expecting returns a function that runs a command on a database and compares its
// exit code and what it prints with regular expressions.
func expecting(t *testing.T, url string) func(code int, stdout, stderr string, args ...string) string {
	return func(code int, stdout, stderr string, args ...string) string {
		t.Helper()
		gotOut, gotErr, gotCode := command(t, append(args, "--database-url="+url)...)
		matches := func(pattern, s string) bool { return regexp.MustCompile(`(?s)^(?:` + pattern + `)$`).MatchString(s) }
		if gotCode != code || !matches(stdout, gotOut) || !matches(stderr, gotErr) {
			t.Errorf("%s:\nexit code %d, stdout %q, stderr %q\nwant      %d,        %q,        %q",
				strings.Join(args, " "), gotCode, gotOut, gotErr, code, stdout, stderr)
		}
		return gotOut
	}
}

// A service is healthy on a full disk, too: the exit code of a healthcheck tells it all.
func TestHealthIsNotToldInWords(t *testing.T) {
	t.Parallel()
	ready := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer ready.Close()
	full := writerFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC })
	if err := run(t.Context(), nil, []string{"healthcheck", "--admin-addr=" + ready.Listener.Addr().String()}, full, io.Discard); err != nil {
		t.Errorf("healthcheck of a service that is ready, onto a full disk: %v, want none", err)
	}
}

func TestMigrateAndToken(t *testing.T) {
	t.Parallel()
	expect := expecting(t, pgtest.Empty(t).Owner)
	expect(0, "0\n", "", "migrate", "version")
	expect(0, "MIGRATION .*00001_plants.sql +pending +-\n.*", "", "migrate", "status")
	expect(0, "nothing to do: no such migration is applied\n", "", "migrate", "down")
	expect(0, "nothing to do: no such migration is applied\n", "", "migrate", "down", "--to=0")
	expect(0, `applied 00001_plants.sql \(\S+s\)\n.*applied 00006_grants.sql \(\S+s\)\n.*`, "", "migrate", "up")
	expect(0, `took back 00006_grants.sql \(\S+s\)\n`, "", "migrate", "down")
	expect(0, `applied 00006_grants.sql \(\S+s\)\n`, "", "migrate", "up")
	expect(0, `nothing to do: every migration up to \d+ is applied\n`, "", "migrate", "up")
	expect(0, `\d+\n`, "", "migrate", "version")
	expect(0, `\{\n  "binary": \d+,\n  "version": \d+\n\}\n`, "", "migrate", "version", "--json")
	token := expect(0, `pst_[0-9A-Za-z]{36}\n`, `the token of "shop" expires \d{4}-\d\d-\d\d; it cannot be shown again\n`, "token", "create", "shop")
	expect(1, "", `plantstore: there is a principal "shop" already: 'plantstore token rotate shop' gives it another token\n`, "token", "create", "shop")
	expect(1, "", `plantstore: "a b" cannot be a principal's name: .*\n`, "token", "create", "a b")
	expect(1, "", `plantstore: "plantstore_app" is the name of a database role, .*\n`, "token", "create", "plantstore_app")
	expect(0, `PRINCIPAL +TOKEN .*shop +valid +plants:delete .*never +-\n`, "", "token", "list")
	token += expect(0, `pst_[0-9A-Za-z]{36}\n`, `the token of "shop" never expires; .*\nits earlier tokens end in 7d at the latest\n`, "token", "rotate", "shop", "--overlap=7d", "--days=0")
	expect(0, `PRINCIPAL [^\n]*\nshop +valid +plants:delete +\S+ +never +never +-\nshop +old +plants:delete +\S+ +\S+Z +never +-\n`, "", "token", "list")
	token += expect(0, `pst_[0-9A-Za-z]{36}\n`, `the token of "shop" expires .*\nits earlier tokens are revoked; .*\n`, "token", "rotate", "shop", "--overlap=0s")
	expect(0, `PRINCIPAL [^\n]*\nshop +valid [^\n]*\nshop +revoked [^\n]*\nshop +revoked [^\n]*\n`, "", "token", "list")
	expect(0, `the tokens of "shop" are revoked; .*\n`, "", "token", "revoke", "shop")
	expect(0, `the tokens of "shop" had been revoked, the last at .*\n`, "", "token", "revoke", "shop")
	expect(1, "", `plantstore: all tokens of "shop" were revoked: 'plantstore token create shop' lets it in again\n`, "token", "rotate", "shop")
	for _, command := range []string{"revoke", "rotate"} {
		expect(1, "", `plantstore: there is no principal "nobody": see 'plantstore token list'\n`, "token", command, "nobody")
	}
	list := expect(0, `\[.*"name": "shop".*"state": "revoked".*\]\n`, "", "token", "list", "--json")
	for one := range strings.Lines(token) {
		if strings.Contains(list, strings.TrimSpace(one)) {
			t.Error("token list shows a token")
		}
	}
	expect(1, "", `plantstore: something is in the way, and nothing was changed\n.*public.api_principals holds clients, and would be dropped.*`,
		"migrate", "down", "--to", "3")
}

func TestNewLog(t *testing.T) {
	t.Parallel()
	for format, want := range map[logFormat]string{
		"json": `{"time":"[^"]+","level":"WARN","msg":"a warning"}\n{"time":"[^"]+","level":"INFO","msg":"told"}\n`,
		"text": `time=\S+ level=WARN msg="a warning"\ntime=\S+ level=INFO msg=told\n`,
	} {
		var out bytes.Buffer
		log := newLog(&console{err: &out, warnings: []string{"a warning"}}, format, slog.LevelInfo)
		log.Info("told")
		log.Debug("not told")
		matches(t, string(format), out.String(), want)
	}
}

// A service that can't listen any more ends, and says so.
func TestServeEndsWithItsListener(t *testing.T) {
	t.Parallel()
	db, err := postgres.Open(t.Context(), "host="+t.TempDir()+" user=u dbname=d")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s := service{db: db, log: slog.New(slog.DiscardHandler)}
	for _, l := range []*net.Listener{&s.public, &s.admin} {
		if *l, err = listen("--addr", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	s.public.Close()
	err = serve(t.Context(), serveTuning{RequestTimeout: time.Second, ShutdownTimeout: time.Second, MaxInFlight: 1, MaxConnections: 1}, s)
	if want := "serve on " + s.public.Addr().String() + ": "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("serve: %v, want %s", err, want)
	}
}

// patience is how long is waited for what has to come. No test proves that it
// comes sooner.
const patience = 3 * time.Minute

// eventually asks until the answer is yes, and reports whether it was.
func eventually(yes func() bool) bool {
	for deadline := time.Now().Add(patience); !yes(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// A process is the command line running in the background.
type process struct {
	cancel context.CancelFunc
	done   chan error
	log    *syncBuffer
	out    io.Reader
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	p := &process{cancel: cancel, done: make(chan error, 1), log: new(syncBuffer), out: r}
	go func() {
		err := run(ctx, nil, args, w, p.log)
		w.Close()
		p.done <- err
	}()
	t.Cleanup(func() { p.stop(t) })
	return p
}

func (p *process) stop(t *testing.T) {
	t.Helper()
	p.cancel()
	select {
	case err, open := <-p.done:
		if open && err != nil {
			t.Errorf("it ended with %v, want no error; its log:\n%s", err, p.log)
		}
		if open {
			close(p.done)
		}
	case <-time.After(patience):
		t.Errorf("it did not end in %s; its log:\n%s", patience, p.log)
	}
}

// address waits for the listeners' addresses in the log.
func (p *process) addresses(t *testing.T) (public, admin string) {
	t.Helper()
	serving := eventually(func() bool {
		for line := range strings.Lines(p.log.String()) {
			var entry struct{ Msg, Addr, Admin_addr string }
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "serving" {
				public, admin = "http://"+entry.Addr, "http://"+entry.Admin_addr
			}
		}
		return public != ""
	})
	if !serving {
		t.Fatalf("it does not serve; its log:\n%s", p.log)
	}
	return public, admin
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func send(t *testing.T, method, url, token string) (int, string) {
	t.Helper()
	code, body, err := trySend(t, method, url, token)
	if err != nil {
		t.Fatal(err)
	}
	return code, body
}

func trySend(t *testing.T, method, url, token string) (code int, body string, err error) {
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(b), err
}

func waitReady(t *testing.T, admin string, want int) string {
	t.Helper()
	var code int
	var body string
	if !eventually(func() bool {
		code, body = send(t, http.MethodGet, admin+"/readyz", "")
		return code == want && body != "the database did not answer in time\n" // on a busy machine it may not
	}) {
		t.Fatalf("/readyz says %d %q, want %d", code, body, want)
	}
	return body
}

func TestServeFromBehindToDeleted(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	p := start(t, "serve", "--database-url="+database.App, "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s")
	public, admin := p.addresses(t)
	reason := waitReady(t, admin, http.StatusServiceUnavailable)
	if want := "the schema is behind: migrations 1, 2, "; !strings.HasPrefix(reason, want) || !strings.HasSuffix(reason, " are missing; apply them with 'plantstore migrate up'\n") {
		t.Errorf("/readyz says %q, want %q", reason, want)
	}
	if code, body := send(t, http.MethodDelete, public+"/plants/1", "pst_unknown"); code != http.StatusUnauthorized {
		t.Errorf("a token of no shape of ours: %d %s, want 401", code, body)
	}

	command(t, "migrate", "up", "--database-url="+database.Owner)
	token := createToken(t, database.Owner, "shop")
	waitReady(t, admin, http.StatusOK)
	if stdout, stderr, code := command(t, "healthcheck", "--admin-addr="+strings.TrimPrefix(admin, "http://")); code != 0 || stdout != "healthy\n" {
		t.Errorf("healthcheck: exit code %d, %q, %q; want 0, healthy", code, stdout, stderr)
	}
	if code, body := send(t, http.MethodDelete, public+"/plants/1?token="+token, token); code != http.StatusNotFound || !strings.Contains(body, "40401") {
		t.Errorf("DELETE of no plant: %d %s, want 404 with 40401", code, body)
	}
	if code, body := send(t, http.MethodGet, admin+"/metrics", ""); code != http.StatusOK || strings.Contains(body, token) ||
		!strings.Contains(body, `plantstore_deletions_total{outcome="not_found"} 1`) {
		t.Errorf("/metrics: %d, want 200, one deletion not_found and no token:\n%s", code, body)
	}
	p.stop(t)
	if log := p.log.String(); strings.Contains(log, token) || !strings.Contains(log, `"msg":"stopped"`) {
		t.Errorf("the log holds the token, or does not end with stopped:\n%s", log)
	}
}

func TestMainTunesGoAndEndsInOrder(t *testing.T) {
	t.Parallel()
	var env []string
	for _, setting := range os.Environ() {
		if !strings.HasPrefix(setting, "GOMAXPROCS=") && !strings.HasPrefix(setting, "GOGC=") {
			env = append(env, setting)
		}
	}
	env = append(env, runMain+"=1")
	here := runtime.GOMAXPROCS(0)
	runtime.SetDefaultGOMAXPROCS()
	available := runtime.GOMAXPROCS(here)
	for _, tt := range []struct {
		env     []string
		threads int
		gogc    int
	}{
		{env, available, 200},
		{append(env, "GOMAXPROCS=7", "GOGC=50"), 7, 50},
	} {
		log := new(syncBuffer)
		cmd := exec.CommandContext(t.Context(), os.Args[0], "serve", "--database-url=host="+t.TempDir(),
			"--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s")
		cmd.Env, cmd.Stderr = tt.env, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, admin := (&process{log: log}).addresses(t)
		_, body := send(t, http.MethodGet, admin+"/metrics", "")
		for _, want := range []string{
			fmt.Sprintf("\ngo_sched_gomaxprocs_threads %d\n", tt.threads),
			fmt.Sprintf("\ngo_gc_gogc_percent %d\n", tt.gogc),
		} {
			if !strings.Contains(body, want) {
				t.Errorf("/metrics lacks %q:\n%s", want, body)
			}
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("after SIGTERM: %v, want exit code 0; its log:\n%s", err, log)
		}
	}
}

// The program may be in any folder, and what dev prints is to be pasted.
func TestThePathOfTheProgramIsFitToPaste(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/usr/local/bin/plantstore":    "/usr/local/bin/plantstore",
		"/home/Rose Fern/plantstore":   "'/home/Rose Fern/plantstore'",
		"/srv/it's $(here)/plantstore": `'/srv/it'\''s $(here)/plantstore'`,
	} {
		if got := forShell(path); got != want {
			t.Errorf("%s for the shell is %s, want %s", path, got, want)
		}
		got, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+forShell(path)).Output()
		if err != nil || string(got) != path {
			t.Errorf("the shell reads %s as %q, %v; want %s", forShell(path), got, err, path)
		}
	}
}

func TestDevPrintsCurlLinesThatWork(t *testing.T) {
	t.Parallel()
	began := time.Now()
	p := start(t, "dev", "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--log-format=json")
	type line struct{ url, token string }
	var lines []line
	curl := regexp.MustCompile(`curl -i -X DELETE (\S+)(?: -H 'Authorization: Bearer (\S+)')?$`)
	url, psql := "", ""
	for scanner := bufio.NewScanner(p.out); scanner.Scan(); {
		if m := curl.FindStringSubmatch(scanner.Text()); m != nil {
			lines = append(lines, line{m[1], m[2]})
		}
		if m := regexp.MustCompile(`'(postgres://[^']*host=([^&']+)[^']*)'`).FindStringSubmatch(scanner.Text()); m != nil {
			url, psql = m[1], m[2]
		}
		if strings.HasPrefix(scanner.Text(), "Health") {
			break
		}
	}
	if len(lines) != 4 {
		t.Fatalf("%d curl lines printed, want 4", len(lines))
	}
	want := func(l line, status int, bodyPart string) {
		t.Helper()
		code, body := send(t, http.MethodDelete, l.url, l.token)
		if code != status || !strings.Contains(body, bodyPart) {
			t.Errorf("DELETE %s: %d %s; want %d and %q", l.url, code, body, status, bodyPart)
		}
	}
	want(lines[0], http.StatusNoContent, "")
	t.Logf("from start to first 204: %s", time.Since(began).Round(time.Millisecond))
	want(lines[0], http.StatusNotFound, `"error":40402`)
	want(lines[1], http.StatusNotFound, `"error":40401`)
	want(lines[2], http.StatusConflict, `"order_items\"`)
	want(lines[3], http.StatusUnauthorized, `"error":40100`)
	expires := regexp.MustCompile(`dev +valid +plants:delete +\S+ +(\S+) `).FindStringSubmatch(expecting(t, url)(0, ".*", "", "token", "list"))
	if expires == nil {
		t.Fatal("token list does not list the token of dev")
	}
	if at, err := time.Parse(time.RFC3339, expires[1]); err != nil || at.After(time.Now().Add(25*time.Hour)) || at.Before(began.Add(22*time.Hour)) {
		t.Errorf("the token expires at %s, %v; want a day from now", expires[1], err)
	}
	p.stop(t)
	if left, _ := filepath.Glob(filepath.Join(psql, "..", filepath.Base(psql))); psql == "" || len(left) != 0 {
		t.Errorf("dev left %v behind", left)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		main            string
		settings        []debug.BuildSetting
		version, commit string
	}{
		{"", nil, "dev", "unknown"},
		{"(devel)", []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "0123456789abcdef"}}, "dev", "0123456"},
		{"v1.2.3", []debug.BuildSetting{{Key: "vcs.revision", Value: "0123"}}, "v1.2.3", "0123"},
	} {
		version, commit := builtFrom(&debug.BuildInfo{Main: debug.Module{Version: tt.main}, Settings: tt.settings}, "dev", "unknown")
		if version != tt.version || commit != tt.commit {
			t.Errorf("built from %q, %v: version %s, commit %s; want %s, %s", tt.main, tt.settings, version, commit, tt.version, tt.commit)
		}
	}
	if _, commit := builtFrom(new(debug.BuildInfo), "dev", "c0ffee"); commit != "c0ffee" {
		t.Errorf("commit %s, want the c0ffee that the linker was told", commit)
	}
	long, _, code := command(t, "version")
	flag, stderr, flagCode := command(t, "--version")
	if code != 0 || flagCode != 0 || flag != long || stderr != "" || !strings.HasPrefix(long, "plantstore dev\ncommit     unknown\ngo         go1.") {
		t.Errorf("version: %d, %q; --version: %d, %q, %q; want 0 and the same", code, long, flagCode, flag, stderr)
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ words, has, lacks string }{
		{"", "token", "complete"},
		{"", "--version", "--addr"},
		{"token", "create", "serve"},
		{"token create", "--days", "rotate"},
		{"serve --rate-limit", "--addr", "create"},
	} {
		out, stderr, code := command(t, append([]string{"complete", "--"}, strings.Fields(tt.words)...)...)
		words := strings.Split(out, "\n") // a line each
		if code != 0 || !slices.Contains(words, tt.has) || slices.Contains(words, tt.lacks) {
			t.Errorf("complete %s: exit code %d, %s, %v; want %s in it and not %s", tt.words, code, stderr, words, tt.has, tt.lacks)
		}
	}
	script, _, _ := command(t, "completion")
	shell := exec.CommandContext(t.Context(), "bash", "-c", script+`
		COMP_WORDS=("$0" token cr); COMP_CWORD=2
		_plantstore "$0"; echo "${COMPREPLY[@]}"`, os.Args[0])
	shell.Env = append(os.Environ(), runMain+"=1")
	if out, err := shell.CombinedOutput(); err != nil || string(out) != "create\n" {
		t.Errorf("bash: %v, %q; want create", err, out)
	}
}
