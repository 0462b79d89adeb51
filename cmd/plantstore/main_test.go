package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/pgtest"
)

// runMain is the variable that makes the test binary run the program.
const runMain = "PLANTSTORE_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		main()
		return
	}
	// Settings of this machine must not reach the tests.
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "DATABASE_URL") || strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "OTEL_") ||
			strings.HasPrefix(name, ourPrefix) && !strings.HasPrefix(name, "PLANTSTORE_TEST_") {
			os.Unsetenv(name)
		}
	}
	// With the race detector a program sleeps for a second before it exits.
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	os.Exit(pgtest.Main(m))
}

// command runs a command line in this process.
func command(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return answering(t, strings.NewReader(""), args...)
}

// answering runs a command line that reads from standard input.
func answering(t *testing.T, stdin io.Reader, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	err := run(t.Context(), args, stdin, &out, &errOut)
	if exit, ok := errors.AsType[*exitError](err); ok {
		code, err = exit.code, exit.err
	} else if err != nil {
		code = 1
	}
	if err != nil {
		fmt.Fprintf(&errOut, "plantstore: %v\n", err)
	}
	return out.String(), errOut.String(), code
}

// expecting returns a function that runs a command as the owner of a database, and compares
// its exit code and output with regular expressions.
func expecting(t *testing.T, owner string) func(code int, stdout, stderr string, args ...string) string {
	return func(code int, stdout, stderr string, args ...string) string {
		t.Helper()
		gotOut, gotErr, gotCode := command(t, append(args, "--migrate-database-url="+owner)...)
		matches := func(pattern, s string) bool { return regexp.MustCompile(`(?s)^(?:` + pattern + `)$`).MatchString(s) }
		if gotCode != code || !matches(stdout, gotOut) || !matches(stderr, gotErr) {
			t.Errorf("%s:\ngot  exit code %d, stdout %q, stderr %q\nwant exit code %d, stdout %q, stderr %q",
				strings.Join(args, " "), gotCode, gotOut, gotErr, code, stdout, stderr)
		}
		return gotOut
	}
}

// createToken runs "token create".
func createToken(t *testing.T, owner string, args ...string) string {
	t.Helper()
	out, stderr, code := command(t, append(append([]string{"token", "create"}, args...), "--migrate-database-url="+owner)...)
	if code != 0 {
		t.Fatal(stderr)
	}
	return strings.TrimSpace(out)
}

func execute(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func writeFile(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// program returns the program as a process of its own, with variables beside those of this
// one.
func program(t *testing.T, variables []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = slices.Concat(os.Environ(), []string{runMain + "=1"}, variables)
	return cmd
}

// runProgram runs the program to its end. A program that serves instead is killed, and fails
// the test.
func runProgram(t *testing.T, variables []string, args ...string) (stderr string, code int) {
	t.Helper()
	cmd := program(t, variables, args...)
	b := killer{cmd: cmd}
	cmd.Stderr = &b
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if b.serves {
		t.Fatalf("%q with %q serves, want an error:\n%s", args, variables, &b.output)
	}
	return b.output.String(), cmd.ProcessState.ExitCode()
}

// A killer keeps the output of a program, and kills it when that says that it serves.
type killer struct {
	output bytes.Buffer
	cmd    *exec.Cmd
	serves bool
}

func (k *killer) Write(p []byte) (int, error) {
	n, err := k.output.Write(p)
	if k.serves = bytes.Contains(k.output.Bytes(), []byte(`"msg":"serving"`)); k.serves {
		_ = k.cmd.Process.Kill()
	}
	return n, err
}

// A running program is a process of its own with its output, line by line.
type running struct {
	cmd           *exec.Cmd
	public, admin string // URLs of a service

	mu    sync.Mutex
	more  *sync.Cond
	lines []string
	ended bool // there will be no more lines
}

func launch(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	r := &running{cmd: cmd}
	r.more = sync.NewCond(&r.mu)
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			r.mu.Lock()
			r.lines = append(r.lines, lines.Text())
			r.more.Broadcast()
			r.mu.Unlock()
		}
		r.mu.Lock()
		r.ended = true
		r.more.Broadcast()
		r.mu.Unlock()
	}()
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		<-read
		out.Close()
	})
	return r
}

// serving starts "plantstore serve" with ports of its own.
func serving(t *testing.T, variables []string, args ...string) *running {
	t.Helper()
	r := launch(t, program(t, variables, append([]string{"serve", "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s"}, args...)...))
	var entry struct {
		Addr      string
		AdminAddr string `json:"admin_addr"`
	}
	if err := json.Unmarshal([]byte(r.waitFor(t, `"msg":"serving"`)), &entry); err != nil {
		t.Fatal(err)
	}
	r.public, r.admin = "http://"+entry.Addr, "http://"+entry.AdminAddr
	return r
}

// waitFor waits for a line that contains a text, and returns it.
func (r *running) waitFor(t *testing.T, text string) string {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for seen := 0; ; {
		for ; seen < len(r.lines); seen++ {
			if strings.Contains(r.lines[seen], text) {
				return r.lines[seen]
			}
		}
		if r.ended {
			t.Fatalf("the program ended without a line that contains %q:\n%s", text, strings.Join(r.lines, "\n"))
		}
		r.more.Wait()
	}
}

// output is everything so far.
func (r *running) output() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "\n") + "\n"
}

// stop sends a signal and expects that the program ends in order.
func (r *running) stop(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Wait(); err != nil {
		t.Errorf("after %v: got %v, want exit code 0; its output:\n%s", sig, err, r.output())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.ended {
		r.more.Wait()
	}
}

func send(t *testing.T, method, url, token string) (code int, body string) {
	t.Helper()
	code, body, _, err := trySend(t.Context(), method, url, token, "")
	if err != nil {
		t.Fatal(err)
	}
	return code, body
}

// trySend sends a request with a token and an Idempotency-Key, each unless it is empty.
func trySend(ctx context.Context, method, url, token, key string) (code int, body, replayed string, err error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, "", "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(b), answer.Header.Get("Idempotency-Replayed"), err
}

func TestBadCommandLinesAreRejected(t *testing.T) {
	t.Parallel()
	const (
		database = " --database-url=host=h"
		service  = database + " --addr=nowhere" // it would serve otherwise
		issuer   = service + " --oidc-issuer=https://login.example"
		noPort   = `--addr (PLANTSTORE_ADDR) is "nowhere": listen tcp: address nowhere: missing port in address: use an address such as :8080 or 127.0.0.1:8080`
		noOrigin = ` is not an origin such as https://shop.example.com: write each one in full, in lower case, without wildcards, path and default port`
	)
	for _, tt := range []struct {
		args string
		code int
		last string // line of standard error
	}{
		{"", 2, `expected one of "dev", "serve", "migrate", "token", "deletions", ...`},
		{"nonsense", 2, `unexpected argument nonsense`},
		{"serve nonsense", 2, `unexpected argument nonsense`},
		{"token", 2, `expected one of "create", "rotate", "list", "revoke", "budget"`},
		{"token create", 2, `expected "<name>"`},
		{"token list --jsno", 2, `unknown flag --jsno, did you mean "--json"?`},
		{"serve", 2, `--database-url (DATABASE_URL) is not set: set it to the database's URL, as postgres://user:password@host:5432/database`},
		{"token list", 2, `neither --migrate-database-url (PLANTSTORE_MIGRATE_DATABASE_URL) nor --database-url (DATABASE_URL) is set: set it to the database's URL, as postgres://user:password@host:5432/database`},
		{"serve --database-url=postgres://u:secret@h:p/d", 2, `--database-url or a PG* variable is wrong: invalid port`},
		{"migrate up --migrate-database-url=postgres://u:sec/ret@h/d", 2, `the user or password in --migrate-database-url has a character that must be escaped in a URL: write "/" as %2F, "@" as %40, " " as %20 and "%" as %25`},
		{"doctor --database-url=host=h --migrate-database-url=postgres://u:secret@h/d?sslmode=on", 2, `--migrate-database-url or a PG* variable is wrong: failed to configure TLS (sslmode is invalid)`},
		{"token list --migrate-password=secret" + database, 2, `--migrate-password (PLANTSTORE_MIGRATE_PASSWORD) is set without --migrate-database-url (PLANTSTORE_MIGRATE_DATABASE_URL)`},
		{"token list --migrate-password=secret --migrate-database-url=postgres://u@127.0.0.1:1/d", 1, `cannot connect to PostgreSQL at 127.0.0.1:1: connection refused: is it running, and is --migrate-database-url (its password: PLANTSTORE_MIGRATE_PASSWORD) right?`},
		{"token list --database-url=postgres://u:secret@127.0.0.1:1/d", 1, `cannot connect to PostgreSQL at 127.0.0.1:1: connection refused: is it running, and is --database-url right?`},
		{"migrate up --lock-attempts=1 --lock-timeout=10ms --migrate-database-url=postgres://u:secret@127.0.0.1:1/d", 1, `cannot connect to PostgreSQL at 127.0.0.1:1: connection refused: is it running, and is --migrate-database-url right?`},
		{"serve --request-timeout=soon", 2, `--request-timeout: expected duration but got "soon": time: invalid duration "soon"`},
		{"serve --request-timeout=499ms" + service, 2, `--request-timeout (PLANTSTORE_REQUEST_TIMEOUT) is 499ms: it must be from 500ms to 10m`},
		{"dev --request-timeout=25s --addr=nowhere", 2, `--shutdown-timeout (PLANTSTORE_SHUTDOWN_TIMEOUT) is 20s: it must be from 25s, which is --request-timeout (PLANTSTORE_REQUEST_TIMEOUT), to 1h`},
		{"serve --max-in-flight=0" + service, 2, `--max-in-flight (PLANTSTORE_MAX_IN_FLIGHT) is 0: it must be at least 1`},
		{"serve --max-connections=0" + service, 2, `--max-connections (PLANTSTORE_MAX_CONNECTIONS) is 0: it must be at least 1`},
		{"serve --drain-delay=-1s" + service, 2, `--drain-delay (PLANTSTORE_DRAIN_DELAY) is -1s: it must be from 0s to 10m`},
		{"serve --drain-delay=11m" + service, 2, `--drain-delay (PLANTSTORE_DRAIN_DELAY) is 11m0s: it must be from 0s to 10m`},
		{"serve --log-format=xml", 2, `--log-format must be one of "json","text" but got "xml"`},
		{"serve --rate-limit=200/s,burst=0", 2, `--rate-limit: "200/s,burst=0" is not a rate such as 200/s, 600/m or 200/s,burst=400`},
		{"serve --rate-limit=0/s,burst=200", 2, `--rate-limit: "0/s,burst=200" is not a rate such as 200/s, 600/m or 200/s,burst=400`},
		{"serve --trusted-proxies=10.0.0.0/8,proxy", 2, `--trusted-proxies: "proxy" is not an address or network such as 10.0.0.7 or 10.0.0.0/8`},
		{"serve --cors-origins=https://a.example,*", 2, `--cors-origins: "*"` + noOrigin},
		{"serve --cors-origins=https://*.example", 2, `--cors-origins: "https://*.example"` + noOrigin},
		{"serve --cors-origins=https://a.example/", 2, `--cors-origins: "https://a.example/"` + noOrigin},
		{"serve --cors-origins=https://a.example:443", 2, `--cors-origins: "https://a.example:443"` + noOrigin},
		{"serve --cors-origins=https://A.example", 2, `--cors-origins: "https://A.example"` + noOrigin},
		{"serve --tls-cert=cert.pem" + service, 2, `--tls-cert (PLANTSTORE_TLS_CERT) and --tls-key (PLANTSTORE_TLS_KEY) go together: one of them is not set`},
		{"serve --tls-cert=/nonexistent --tls-key=/nonexistent" + service, 2, `the certificate for TLS can't be read: open /nonexistent: no such file or directory`},
		{"serve --oidc-audience=a,_" + issuer, 2, `--oidc-audience (PLANTSTORE_OIDC_AUDIENCE) has an empty name in its list: remove the comma`},
		{"serve" + issuer, 2, `--oidc-audience (PLANTSTORE_OIDC_AUDIENCE) is "": set it, without blanks around it`},
		{"serve --oidc-audience=a --oidc-scope=,_" + issuer, 2, `--oidc-scope (PLANTSTORE_OIDC_SCOPE) is ", ": set it, without blanks around it`},
		{"serve --oidc-audience=a --jwks-url=http://10.0.0.1/keys" + issuer, 2, `--jwks-url (PLANTSTORE_JWKS_URL): "http://10.0.0.1/keys" is not an https URL: keys could be replaced on their way`},
		{"serve --addr=nowhere" + database, 2, noPort},
		{"dev --addr=nowhere", 2, noPort},
		{"serve --addr=127.0.0.1:0 --admin-addr=nowhere" + database, 2, strings.ReplaceAll(strings.ReplaceAll(noPort, "--addr", "--admin-addr"), "_ADDR", "_ADMIN_ADDR")},
		// Limits are inclusive, and lists may have blanks.
		{"serve --request-timeout=10m --shutdown-timeout=10m --drain-delay=10m --rate-limit=600/m,burst=50 --trusted-proxies=10.0.0.0/8,_2001:db8::7 --cors-origins=http://localhost:5173,_https://[2001:db8::7]:8443 --addr=nowhere" + database, 2, noPort},
		{"serve --request-timeout=500ms --shutdown-timeout=1h --max-in-flight=1 --max-connections=1 --rate-limit=1/s --addr=nowhere" + database, 2, noPort},
		{"token create x --days=0" + database, 2, `token create: --days is 0: it must be from 1 to 36500; --no-expiry is for a token that never expires`},
		{"token create x --days=90 --no-expiry" + database, 2, `token create: --days and --no-expiry contradict each other`},
		{"token create x --scope=" + database, 2, `--scope is empty: the token would allow nothing`},
		{"token create x --budget=5" + database, 2, `--budget: "5" is not a deletion budget such as 500/1h or 10000/7d`},
		{"token rotate x --overlap=-1s" + database, 2, `--overlap: "-1s" is not a duration such as 365d or 36h`},
		{"token budget x" + database, 2, `set the budget of "x", as 500/1h or none, or reset what is used of it with --reset`},
		{"migrate down --lock-attempts=0" + database, 2, `migrate down: --lock-attempts (PLANTSTORE_MIGRATE_LOCK_ATTEMPTS) is 0: it must be at least 1`},
		{"migrate up --lock-timeout=61s" + database, 2, `migrate up: --lock-timeout (PLANTSTORE_MIGRATE_LOCK_TIMEOUT) is 1m1s: it must be from 10ms to 1m`},
		{"migrate plan --migrate-database-url=postgres://127.0.0.1:1/d", 1, `cannot connect to PostgreSQL at 127.0.0.1:1: connection refused: is it running, and is --migrate-database-url right?`},
		{"migrate plan --sql --json" + database, 2, `--sql and --json can't be used together`},
		{"healthcheck --admin-addr=a:b:c", 2, `--admin-addr (PLANTSTORE_ADMIN_ADDR) is "a:b:c": parse "http://a:b:c/readyz": invalid port ":b:c" after host`},
	} {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			args := strings.Fields(tt.args)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], ",_", ", ")
			}
			_, stderr, code := command(t, args...)
			lines := strings.Split(strings.TrimSpace(stderr), "\n")
			if last := lines[len(lines)-1]; code != tt.code || last != "plantstore: "+tt.last {
				t.Errorf("got exit code %d, %s\nwant          %d, plantstore: %s", code, last, tt.code, tt.last)
			}
			usage := tt.args == "" || tt.args == "nonsense" || tt.args == "token"
			if (len(lines) > 1) != usage || strings.Contains(stderr, "secret") {
				t.Errorf("want the usage: %v, and no password:\n%s", usage, stderr)
			}
		})
	}
}

func TestHealthcheckCommand(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status      int
		body        string
		code        int
		out, stderr string // "" or what they begin with
	}{
		"ready":     {200, "ready\n", 0, "healthy\n", ""},
		"not ready": {503, "the schema is behind\n", 1, "", "plantstore: not healthy: the schema is behind\n"},
		"another":   {404, "", 1, "", "plantstore: not healthy: HOST answers 404 Not Found: is --admin-addr (PLANTSTORE_ADMIN_ADDR) that of the operators' listener?\n"},
		"nobody":    {0, "", 1, "", "plantstore: not healthy: Get \"http://HOST/readyz\": "},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.body)
		}))
		t.Cleanup(s.Close)
		host := strings.TrimPrefix(s.Listener.Addr().String(), "127.0.0.1") // as in the default, :9090
		if tt.status == 0 {
			host = "127.0.0.1:1" // a port that was just closed may be another test's soon
		}
		out, stderr, code := command(t, "healthcheck", "--timeout=10m", "--admin-addr="+host)
		if code != tt.code || out != tt.out || !strings.HasPrefix(stderr, strings.ReplaceAll(tt.stderr, "HOST", host)) || (stderr == "") != (tt.stderr == "") {
			t.Errorf("%s: got %d, %q, %q; want %d, %q, %q", name, code, out, stderr, tt.code, tt.out, tt.stderr)
		}
	}
}
