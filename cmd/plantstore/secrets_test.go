package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"plantstore/internal/pgtest"
	"plantstore/internal/postgres"
)

func writeFile(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDatabaseURLsInFiles(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	folder := t.TempDir()
	owner, app, empty := filepath.Join(folder, "owner"), filepath.Join(folder, "app"), filepath.Join(folder, "empty")
	writeFile(t, owner, database.Owner+"\n")
	writeFile(t, app, database.App)
	writeFile(t, empty, " \n")
	const missing = "/nonexistent/url"
	for _, tt := range []struct {
		name, stderr string
		code         int
		args         []string
	}{
		{"owner's", "", 0, []string{"token", "list", "--database-url-file=" + owner}},
		{"owner's beside the service's", "", 0, []string{"token", "list", "--database-url-file=" + owner, "--service-url=nowhere"}},
		{"the service's for want of the owner's", "", 0, []string{"migrate", "version", "--service-url-file=" + app}},
		{"both", "plantstore: both --database-url and --database-url-file are set: set one of them\n", 2,
			[]string{"token", "list", "--database-url-file=" + owner, "--database-url=" + database.Owner}},
		{"both of the service", "plantstore: serve: both --database-url and --database-url-file are set: set one of them\n", 2,
			[]string{"serve", "--database-url-file=" + app, "--database-url=" + database.App}},
		{"missing", "plantstore: the file with the database's URL can't be read: open " + missing + ": no such file or directory\n", 2,
			[]string{"token", "list", "--database-url-file=" + missing}},
		{"missing for the service", "plantstore: serve: the file with the database's URL can't be read: open " + missing + ": no such file or directory\n", 2,
			[]string{"serve", "--database-url-file=" + missing}},
		{"empty", "plantstore: serve: the file with the database's URL, " + empty + ", is empty\n", 2, []string{"serve", "--database-url-file=" + empty}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, stderr, code := command(t, tt.args...); code != tt.code || stderr != tt.stderr {
				t.Errorf("exit code %d, %q; want %d, %q", code, stderr, tt.code, tt.stderr)
			}
		})
	}
}

// The log tells of a URL what is no secret, and of a header for traces nothing.
func TestTheLogHasNoSecretOfASetting(t *testing.T) {
	t.Parallel()
	variables := []string{"PLANTSTORE_OIDC_ISSUER=https://login.example", "PLANTSTORE_OIDC_AUDIENCE=plants",
		"PLANTSTORE_JWKS_URL=https://svc:hunter2@127.0.0.1:1/keys?token=sekrit", "OTEL_EXPORTER_OTLP_ENDPOINT=http://svc:hunter2@127.0.0.1:1/?token=sekrit"}
	s := startService(t, append(variables, "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer sekrit"), "--database-url=host="+t.TempDir()+" password=hunter2")
	send(t, http.MethodGet, s.public+"/nowhere", "")
	if !eventually(func() bool {
		return strings.Contains(s.log.String(), "the identity provider's keys can't be read: https://127.0.0.1:1/keys: ")
	}) {
		t.Error("the log does not tell where the keys can't be read")
	}
	s.end(t, 0)
	for _, want := range []string{`"jwks_url":"https://127.0.0.1:1/keys"`, "traces were not sent"} {
		if !strings.Contains(s.log.String(), want) {
			t.Errorf("the log does not have %q:\n%s", want, s.log)
		}
	}
	logs := map[string]string{"good headers": s.log.String()}
	for _, headers := range []string{"authorization Bearer sekrit", "authorization=Bearer sekrit%zz", "sekrit sekrit=x"} {
		stderr, code := runProcess(t, append(variables, "OTEL_EXPORTER_OTLP_HEADERS="+headers), "serve", "--database-url=host="+t.TempDir(), "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0")
		if logs[headers] = stderr; code != exitUsage {
			t.Errorf("%s: exit code %d, want %d; its log:\n%s", headers, code, exitUsage, stderr)
		}
	}
	for name, log := range logs {
		for _, secret := range []string{"svc", "hunter2", "sekrit"} {
			if strings.Contains(log, secret) {
				t.Errorf("%s: the log has %q:\n%s", name, secret, log)
			}
		}
	}
}

// Of a second line, or whatever else is no character of a URL, the driver makes part of
// a name, and names are told.
func TestAURLOfTwoLinesIsNotShown(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "url")
	const has = " has a line break or another control character in it: the database's URL or DSN is one line\n"
	for _, url := range []string{
		"postgres://u:geheim@127.0.0.1:1/d\npostgres://u:geheim@127.0.0.1:1/d",
		"postgres://u:geheim@127.0.0.1:1/d\rpassword=geheim",
		"host=127.0.0.1 port=1 dbname=d\npostgres://u:geheim@127.0.0.1:1/d?sslmode=disable",
		"postgres://u:geheim@127.0.0.1:1/d\x1b[2J",
		"postgres://u:geheim@127.0.0.1:1/d\u0085geheim",
	} {
		writeFile(t, file, "\n"+url+"\n")
		for _, args := range []string{"token list", "migrate plan", "doctor", "deletions export", "serve --addr=127.0.0.1:99999"} {
			at := ""
			if strings.HasPrefix(args, "serve") {
				at = "serve: "
			}
			for flag, want := range map[string]string{"--database-url=" + url: at + "--database-url" + has, "--database-url-file=" + file: at + "the file " + file + has} {
				stdout, stderr, code := command(t, append(strings.Fields(args), flag)...)
				if code != exitUsage || stdout != "" || stderr != "plantstore: "+want {
					t.Errorf("%s %q: exit code %d, %q, %q\nwant %d and %q only", args, flag, code, stdout, stderr, exitUsage, want)
				}
			}
		}
	}
	stderr, code := runProcess(t, []string{"PLANTSTORE_MIGRATE_DATABASE_URL=host=h", "DATABASE_URL=postgres://u:geheim@h/d\ngeheim"}, "doctor")
	if want := "plantstore: DATABASE_URL" + has; code != exitUsage || stderr != want {
		t.Errorf("doctor with the owner's and the service's: exit code %d, %q; want %d, %q", code, stderr, exitUsage, want)
	}
}

// With anything before it, a URL is a parameter's name or value to the driver. The server
// would be told, and tells again.
func TestAURLWithSomethingBeforeItIsNotShown(t *testing.T) {
	t.Parallel()
	const has = " cannot be read as a PostgreSQL URL or DSN, such as postgres://user:password@host:5432/database: take out what is before postgres:// in it, such as a quotation mark or a name, and what is no parameter; only blanks divide the parameters of a DSN\n"
	file := filepath.Join(t.TempDir(), "url")
	for _, url := range []string{
		`"postgres://u:geheim@127.0.0.1:1/d?sslmode=disable"`,
		"\ufeffpostgres://u:geheim@127.0.0.1:1/d?sslmode=disable",
		"POSTGRES://u:geheim@127.0.0.1:1/d?sslmode=disable",
		"postgresql+asyncpg://u:geheim@127.0.0.1:1/d?sslmode=disable",
		"DATABASE_URL=postgres://u:geheim@127.0.0.1:1/d?sslmode=disable",
	} {
		writeFile(t, file, url+"\n")
		for _, tt := range []struct{ setting, at, command string }{
			{"DATABASE_URL", "serve: ", "serve"}, {"DATABASE_URL", "", "token list"},
			{"PLANTSTORE_MIGRATE_DATABASE_URL", "", "token list"}, {"PLANTSTORE_MIGRATE_DATABASE_URL", "", "migrate up"}, {"PLANTSTORE_MIGRATE_DATABASE_URL", "", "doctor"},
		} {
			for variable, want := range map[string]string{tt.setting + "=" + url: tt.setting + has, tt.setting + "_FILE=" + file: "the file " + file + has} {
				stderr, code := runProcess(t, []string{variable, "PGHOST=127.0.0.1", "PGPORT=1"}, strings.Fields(tt.command)...)
				if code != exitUsage || stderr != "plantstore: "+tt.at+want {
					t.Errorf("%s with %s: exit code %d, %q; want %d, %q", tt.command, variable, code, stderr, exitUsage, "plantstore: "+tt.at+want)
				}
			}
		}
	}
}

// While the database has the new password already and the file does not, connections
// are refused, and requests wait.
func TestPasswordChangesUnderLoad(t *testing.T) {
	t.Parallel()
	const plants = 100_000
	s, _ := newSite(t, plants, false)
	s.process.stop(t)
	folder := socketFolder(t, s.primary)
	super := s.primary.URL("postgres", "plantstore")
	script := func(sql string) {
		t.Helper()
		if err := postgres.Script(t.Context(), super, sql); err != nil {
			t.Fatal(err)
		}
	}
	script(fmt.Sprintf(`COPY (VALUES ('local all plantstore_app scram-sha-256'), ('local all all trust')) TO '%s/data/pg_hba.conf'; SELECT pg_reload_conf()`, folder))
	file := filepath.Join(t.TempDir(), "url")
	change := func(password string) {
		t.Helper()
		script(fmt.Sprintf(`ALTER ROLE plantstore_app PASSWORD '%s'`, password))
	}
	publish := func(password string) {
		t.Helper()
		writeFile(t, file, fmt.Sprintf("host=%s user=plantstore_app password=%s dbname=plantstore", folder, password))
	}
	change("first")
	publish("first")
	s.process = start(t, append([]string{"serve", "--database-url-file=" + file, "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s"}, longTimeout...)...)
	s.public, s.admin = s.process.addresses(t)
	waitReady(t, s.admin, http.StatusOK)
	c := s.clients(t, plants)
	c.more(t, 50)
	change("second")
	c.more(t, 50) // connections that are open live on
	const endAll = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'plantstore_app'`
	for _, password := range []string{"third", "fourth"} {
		change(password)
		script(endAll)
		if why := waitReady(t, s.admin, http.StatusServiceUnavailable); why != fmt.Sprintf("the password for role \"plantstore_app\" is wrong at %s, or its time is over (VALID UNTIL): correct it in the file %s, or in the password file if there is one\n", folder, file) {
			t.Errorf("/readyz says %q, want that the password is wrong", why)
		}
		publish(password)
		c.more(t, 50)
	}
	// Without the file, the next connection is tried with what was known at the start.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	change("first")
	script(endAll)
	c.more(t, 50)
	// The file may not lead elsewhere while attempts may be open.
	writeFile(t, file, "host=/nonexistent user=plantstore_app password=first dbname=plantstore")
	script(endAll)
	c.more(t, 50)
	c.end()
	if gone, left := ledgered(t, s.primary); int64(gone) != c.deleted.Load() || gone+left != plants {
		t.Errorf("%d in the ledger, %d left; want %d and the rest of %d", gone, left, c.deleted.Load(), plants)
	}
}
