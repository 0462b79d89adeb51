package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/localpg"
	"plantstore/internal/pgtest"
	"plantstore/internal/postgres"
	"plantstore/internal/readme"
)

// inProcess returns the program as a process of its own, with variables beside those of
// this one.
func inProcess(t *testing.T, variables []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), runMain+"=1"), variables...)
	return cmd
}

// runProcess runs the program to its end. One that does not end is killed, and has no
// exit code: -1.
func runProcess(t *testing.T, variables []string, args ...string) (stderr string, code int) {
	t.Helper()
	cmd := inProcess(t, variables, args...)
	var b strings.Builder
	cmd.Stderr = &b
	kill := time.AfterFunc(patience, func() { _ = cmd.Cancel() })
	defer kill.Stop()
	_ = cmd.Run() // the exit code tells
	return b.String(), cmd.ProcessState.ExitCode()
}

func TestBadVariables(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ variable, args, want string }{
		{"PLANTSTORE_REQUEST_TIMEOUT=soon", "serve", `plantstore: --request-timeout: expected duration but got "soon": time: invalid duration "soon" (from envar PLANTSTORE_REQUEST_TIMEOUT="soon")`},
		{"PLANTSTORE_LOG_FORMAT=xml", "serve", `plantstore: --log-format: "xml" is no log format: want json or text (from envar PLANTSTORE_LOG_FORMAT="xml")`},
		{"PLANTSTORE_LOG_LEVEL=loud", "serve", `plantstore: --log-level: slog: level string "loud": unknown name (from envar PLANTSTORE_LOG_LEVEL="loud")`},
		{"PLANTSTORE_ADDR=8080", "serve --database-url=host=h", `plantstore: --addr (PLANTSTORE_ADDR) is "8080": missing port in address: want one as :8080 or 127.0.0.1:8080`},
		{"PLANTSTORE_ADDR=8080", "dev", `plantstore: --addr (PLANTSTORE_ADDR) is "8080": missing port in address: want one as :8080 or 127.0.0.1:8080`},
		{"PLANTSTORE_RATE_LIMT=200/s", "serve --database-url=host=h", `plantstore: PLANTSTORE_RATE_LIMT is no setting: is it meant to be PLANTSTORE_RATE_LIMIT?`},
		{"PLANTSTORE_RATE_LIMITT_=200/s", "version", `plantstore: PLANTSTORE_RATE_LIMITT_ is no setting: is it meant to be PLANTSTORE_RATE_LIMIT?`},
		{"PLANTSTORE_DATABASE_URL=host=h", "serve", `plantstore: PLANTSTORE_DATABASE_URL is no setting: is it meant to be DATABASE_URL?`},
		{"PLANTSTORE_DATABSE_URL_FILE=x", "serve --database-url=host=h", `plantstore: PLANTSTORE_DATABSE_URL_FILE is no setting: is it meant to be DATABASE_URL_FILE?`},
		{"PLANTSTORE_MIGRATE_DATABSE_URL=x", "token list --service-url=host=h", `plantstore: PLANTSTORE_MIGRATE_DATABSE_URL is no setting: is it meant to be PLANTSTORE_MIGRATE_DATABASE_URL?`},
	} {
		t.Run(tt.variable, func(t *testing.T) {
			t.Parallel()
			if stderr, code := runProcess(t, []string{tt.variable}, strings.Fields(tt.args)...); code != exitUsage || stderr != tt.want+"\n" {
				t.Errorf("exit code %d, %q\nwant      %d, %q and no more", code, stderr, exitUsage, tt.want)
			}
		})
	}
}

func TestUnknownVariablesAreTold(t *testing.T) {
	t.Parallel()
	model := commandLine(t).Model
	for _, tt := range []struct{ variable, want string }{
		{"PLANTSTORE_MAX_CONNS=7", "PLANTSTORE_MAX_CONNS is no setting of this release and counts for nothing; the nearest is PLANTSTORE_MAX_CONNECTIONS"},
		{"PLANTSTORE_LOG_FORMAT=json", ""},
		// Kubernetes tells each container of Services that are named plantstore and plantstore-admin.
		{"PLANTSTORE_SERVICE_HOST=10.96.0.7", ""},
		{"PLANTSTORE_SERVICE_PORT=80", ""},
		{"PLANTSTORE_SERVICE_PORT_HTTP=80", ""},
		{"PLANTSTORE_PORT=tcp://10.96.0.7:80", ""},
		{"PLANTSTORE_WEB_PORT=8080", "PLANTSTORE_WEB_PORT is no setting of this release and counts for nothing"},
		{"PLANTSTORE_WEB_PORT=tcp://10.96.0.9:80", ""},
		{"PLANTSTORE_PORT_80_TCP=tcp://10.96.0.7:80", ""},
		{"PLANTSTORE_PORT_80_TCP_PROTO=tcp", ""},
		{"PLANTSTORE_PORT_80_TCP_PORT=80", ""},
		{"PLANTSTORE_PORT_80_TCP_ADDR=10.96.0.7", ""},
		{"PLANTSTORE_ADMIN_SERVICE_PORT_METRICS=9090", ""},
		{"PLANTSTORE_ADMIN_PORT_9090_TCP_ADDR=10.96.0.8", ""},
		{"PLANTSTORE_TEST_POSTGRES=local", ""},
		{"OTHER_ADDR=1", ""},
	} {
		var want []string
		if tt.want != "" {
			want = []string{tt.want}
		}
		got, err := checkVariables(model, []string{tt.variable})
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", tt.variable, err, diff)
		}
	}
	names := regexp.MustCompile(`\bPLANTSTORE_\w+`).FindAllString(readme.Read(t, "docker-compose.yml"), -1)
	if len(names) == 0 {
		t.Error("docker-compose.yml has no variable of ours")
	}
	for _, name := range names {
		if got, err := checkVariables(model, []string{name + "=x"}); len(got) > 0 || err != nil {
			t.Errorf("%s of docker-compose.yml: %v, %v; want nothing", name, got, err)
		}
	}
	const variable = "PLANTSTORE_NONSENSE=1"
	stderr, code := runProcess(t, []string{variable}, "version")
	if want := "plantstore: warning: PLANTSTORE_NONSENSE is no setting of this release"; code != 0 || !strings.HasPrefix(stderr, want) {
		t.Errorf("version: exit code %d, %q; want 0, %q", code, stderr, want)
	}
	s := startService(t, []string{variable}, "--database-url=host="+t.TempDir())
	if want := `"level":"WARN","msg":"PLANTSTORE_NONSENSE is no setting of this release`; !strings.Contains(s.log.String(), want) || strings.Contains(s.log.String(), "plantstore: warning") {
		t.Errorf("the log lacks %q, or has a line that is none of a log:\n%s", want, s.log)
	}
	s.end(t, 0)
}

// What only docker-compose.yml takes does nothing to the service that has it, and to no
// other command.
func TestComposeVariablesAreTold(t *testing.T) {
	t.Parallel()
	variables := []string{"PLANTSTORE_PORT=8081", "PLANTSTORE_ADMIN_PORT=tcp://10.96.0.8:9090", "PLANTSTORE_TAG=v1", "PLANTSTORE_APP_PASSWORD=geheim"}
	s := startService(t, variables, "--database-url=host="+t.TempDir())
	s.end(t, 0)
	var told []string
	for line := range strings.Lines(s.log.String()) {
		var entry struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &entry); err == nil && entry.Level == "WARN" && strings.HasPrefix(entry.Msg, ourPrefix) {
			told = append(told, entry.Msg)
		}
	}
	slices.Sort(told)
	want := []string{
		"PLANTSTORE_APP_PASSWORD is for docker-compose.yml and counts for nothing here; the setting is PGPASSWORD",
		"PLANTSTORE_PORT is for docker-compose.yml and counts for nothing here; the setting is PLANTSTORE_ADDR",
		"PLANTSTORE_TAG is for docker-compose.yml and counts for nothing here",
	}
	if diff := cmp.Diff(want, told); diff != "" || strings.Contains(s.log.String(), "geheim") {
		t.Errorf("warnings (-want +got), or a password in them:\n%s", diff)
	}
	if stderr, code := runProcess(t, variables, "version"); code != 0 || stderr != "" {
		t.Errorf("version: exit code %d, %q; want 0 and no word", code, stderr)
	}
}

// A flag goes before the variables of the URL and of its file; two variables contradict
// each other.
func TestAURLFlagGoesBeforeAFileVariable(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	file := filepath.Join(t.TempDir(), "url")
	writeFile(t, file, database.Owner)
	const (
		nowhere = "host=/nonexistent"
		noPort  = `--addr (PLANTSTORE_ADDR) is "127.0.0.1:99999"` // so the URL is taken
	)
	for _, tt := range []struct {
		args, variables string
		code            int
		want            string
	}{
		{"token list --database-url=$OWNER", "PLANTSTORE_MIGRATE_DATABASE_URL_FILE=/nonexistent", 0, ""},
		{"token list --database-url-file=$FILE", "PLANTSTORE_MIGRATE_DATABASE_URL=" + nowhere, 0, ""},
		{"token list --database-url=$OWNER", "PLANTSTORE_MIGRATE_DATABASE_URL_FILE=/nonexistent PLANTSTORE_MIGRATE_DATABASE_URL=" + nowhere, 0, ""},
		{"token list --service-url=$OWNER", "DATABASE_URL_FILE=/nonexistent", 0, ""},
		{"token list --service-url-file=$FILE", "DATABASE_URL=" + nowhere, 0, ""},
		{"token list --database-url=", "PLANTSTORE_MIGRATE_DATABASE_URL_FILE=$FILE", 0, ""},
		{"token list --database-url=" + nowhere, "PLANTSTORE_MIGRATE_DATABASE_URL_FILE=$FILE", 1, "is --database-url right?"},
		{"token list", "DATABASE_URL=$OWNER DATABASE_URL_FILE=$FILE", 2, "both DATABASE_URL and DATABASE_URL_FILE are set"},
		{"token list --service-url=$OWNER", "PLANTSTORE_MIGRATE_DATABASE_URL=$OWNER PLANTSTORE_MIGRATE_DATABASE_URL_FILE=$FILE", 2,
			"both PLANTSTORE_MIGRATE_DATABASE_URL and PLANTSTORE_MIGRATE_DATABASE_URL_FILE are set"},
		{"token list --database-url=$OWNER --database-url-file=$FILE", "", 2, "both --database-url and --database-url-file are set"},
		{"serve --addr=127.0.0.1:99999 --database-url=host=h", "DATABASE_URL_FILE=/nonexistent", 2, noPort},
		{"serve --addr=127.0.0.1:99999 --database-url-file=$FILE", "DATABASE_URL=postgres://h:p", 2, noPort},
		{"serve --addr=127.0.0.1:99999", "DATABASE_URL=host=h DATABASE_URL_FILE=$FILE", 2, "both DATABASE_URL and DATABASE_URL_FILE are set"},
	} {
		t.Run(tt.args+" with "+tt.variables, func(t *testing.T) {
			t.Parallel()
			fields := func(s string) (list []string) {
				for _, field := range strings.Fields(s) {
					list = append(list, strings.NewReplacer("$OWNER", database.Owner, "$FILE", file).Replace(field))
				}
				return list
			}
			stderr, code := runProcess(t, fields(tt.variables), fields(tt.args)...)
			if code != tt.code || !strings.Contains(stderr, tt.want) || (stderr == "") != (tt.want == "") {
				t.Errorf("exit code %d, %q; want %d, %q", code, stderr, tt.code, tt.want)
			}
		})
	}
	// What the service connects to is what it says.
	s := startService(t, []string{"DATABASE_URL_FILE=/nonexistent"}, "--database-url="+database.App)
	s.end(t, 0)
	if log := s.log.String(); !strings.Contains(log, `"database":"`+database.Name+`"`) || strings.Contains(log, "/nonexistent") {
		t.Errorf("want database %s, and no word of the file that does not count:\n%s", database.Name, log)
	}
}

// Who can't leave a variable out leaves it empty.
func TestEmptyVariablesAreNotSet(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	for _, tt := range []struct {
		name      string
		variables []string
	}{
		{"the owner's URL", []string{"PLANTSTORE_MIGRATE_DATABASE_URL=", "DATABASE_URL=" + database.Owner}},
		{"files", []string{"DATABASE_URL_FILE=", "PLANTSTORE_MIGRATE_DATABASE_URL_FILE=", "DATABASE_URL=" + database.Owner}},
		{"a number and a time", []string{"PLANTSTORE_MIGRATE_LOCK_ATTEMPTS=", "PLANTSTORE_MIGRATE_LOCK_TIMEOUT=", "DATABASE_URL=" + database.Owner}},
	} {
		if stderr, code := runProcess(t, tt.variables, "migrate", "up"); code != 0 {
			t.Errorf("%s: exit code %d, %s; want 0", tt.name, code, stderr)
		}
	}
	s := startService(t, []string{"PLANTSTORE_REQUEST_TIMEOUT=", "PLANTSTORE_LOG_LEVEL=", "PLANTSTORE_OIDC_ISSUER=", "PLANTSTORE_RATE_LIMIT="}, "--database-url="+database.App)
	s.end(t, 0)
}

// The setting that is blamed is the one that the password came from.
func TestWrongPasswordIsBlamedRightly(t *testing.T) {
	t.Parallel()
	pg, err := localpg.Start(t.Context(), localpg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pg.Close(); err != nil {
			t.Error(err)
		}
	})
	folder := socketFolder(t, pg)
	super := pg.URL("postgres", "postgres")
	for _, sql := range []string{
		`CREATE ROLE someone LOGIN PASSWORD 'right'`,
		fmt.Sprintf(`COPY (VALUES ('local all postgres trust'), ('local all all scram-sha-256')) TO '%s/data/pg_hba.conf'`, folder),
		`SELECT pg_reload_conf()`,
	} {
		if err := postgres.Script(t.Context(), super, sql); err != nil {
			t.Fatal(err)
		}
	}
	bare := "host=" + folder + " user=someone dbname=postgres"
	file := filepath.Join(t.TempDir(), "url")
	writeFile(t, file, bare+" password=wrong")
	const orFile = ", or in the password file if there is one"
	wrong := `the password for role "someone" is wrong at ` + folder + ", or its time is over (VALID UNTIL): correct it in "
	for _, tt := range []struct {
		variables []string
		want      string
		flags     []string
	}{
		{nil, wrong + "--database-url" + orFile, []string{"--database-url=" + bare + " password=wrong"}},
		{[]string{"DATABASE_URL=host=h"}, wrong + "--service-url" + orFile, []string{"--service-url=" + bare + " password=wrong"}},
		{[]string{"PLANTSTORE_MIGRATE_PASSWORD=right"}, wrong + "--database-password or --database-url" + orFile, []string{"--database-url=" + bare, "--database-password=wrong"}},
		{[]string{"DATABASE_URL=" + bare + " password=wrong"}, wrong + "DATABASE_URL" + orFile, nil},
		{[]string{"PLANTSTORE_MIGRATE_DATABASE_URL=" + bare + " password=wrong", "DATABASE_URL=host=h"}, wrong + "PLANTSTORE_MIGRATE_DATABASE_URL" + orFile, nil},
		{[]string{"PLANTSTORE_MIGRATE_DATABASE_URL_FILE=" + file}, wrong + "the file " + file + orFile, nil},
		{[]string{"DATABASE_URL_FILE=" + file}, wrong + "the file " + file + orFile, nil},
		{[]string{"DATABASE_URL=" + bare, "PGPASSWORD=wrong"}, wrong + "PGPASSWORD", nil},
		{[]string{"PLANTSTORE_MIGRATE_DATABASE_URL=" + bare, "PLANTSTORE_MIGRATE_PASSWORD=wrong", "PGPASSWORD=right"}, wrong + "PLANTSTORE_MIGRATE_PASSWORD or PLANTSTORE_MIGRATE_DATABASE_URL" + orFile, nil},
		{[]string{"PGHOST=" + folder, "PGUSER=someone", "PGDATABASE=postgres", "PLANTSTORE_MIGRATE_PASSWORD=wrong", "PGPASSWORD=right"}, wrong + "PLANTSTORE_MIGRATE_PASSWORD or a PG* variable" + orFile, nil},
		{[]string{"PGHOST=" + folder, "PGUSER=someone", "PGDATABASE=postgres", "PGPASSWORD=right"}, wrong + "--database-password or a PG* variable" + orFile, []string{"--database-password=wrong"}},
		{[]string{"DATABASE_URL=" + bare}, `role "someone" needs a password at ` + folder + ": give it in DATABASE_URL, PGPASSWORD or a password file", nil},
	} {
		for _, command := range []string{"token list", "migrate status", "deletions list"} {
			stderr, code := runProcess(t, append(tt.variables, "PGPASSFILE=/nonexistent"), append(strings.Fields(command), tt.flags...)...)
			if code != 1 || !strings.HasSuffix(stderr, tt.want+"\n") {
				t.Errorf("%s with %s and %s: exit code %d, %q\nwant 1, %q", command, tt.variables, tt.flags, code, stderr, tt.want)
			}
		}
	}
}

// The owner's password is for the owner's URL, or for a database that PG* variables name.
func TestAPasswordThatIsForNothing(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "url")
	writeFile(t, file, "host=127.0.0.1 port=1")
	const isFor = " is the owner's password, and of the URLs only the service's is set: set PLANTSTORE_MIGRATE_DATABASE_URL, too\n"
	for _, tt := range []struct {
		variables []string
		want      string
		flags     []string
	}{
		{[]string{"PLANTSTORE_MIGRATE_PASSWORD=geheim", "DATABASE_URL=host=127.0.0.1 port=1"}, "PLANTSTORE_MIGRATE_PASSWORD" + isFor, nil},
		{[]string{"PLANTSTORE_MIGRATE_PASSWORD=geheim", "DATABASE_URL_FILE=" + file, "PGHOST=127.0.0.1"}, "PLANTSTORE_MIGRATE_PASSWORD" + isFor, nil},
		{nil, "--database-password" + isFor, []string{"--database-password=geheim", "--service-url=host=127.0.0.1 port=1"}},
		{[]string{"PLANTSTORE_MIGRATE_PASSWORD=geheim"}, "neither PLANTSTORE_MIGRATE_DATABASE_URL nor DATABASE_URL is set: " + likeURL + "\n", nil},
	} {
		for _, command := range []string{"token list", "migrate status", "deletions list", "doctor"} {
			stderr, code := runProcess(t, tt.variables, append(strings.Fields(command), tt.flags...)...)
			if code != exitUsage || stderr != "plantstore: "+tt.want {
				t.Errorf("%s with %s and %s: exit code %d, %q; want %d, %q", command, tt.variables, tt.flags, code, stderr, exitUsage, "plantstore: "+tt.want)
			}
		}
	}
}
