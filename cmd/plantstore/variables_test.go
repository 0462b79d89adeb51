package main

import (
	"path/filepath"
	"strings"
	"testing"

	"plantstore/internal/pgtest"
)

// A bad variable ends the start with one line, which shows no secret.
func TestBadVariablesAreRejected(t *testing.T) {
	t.Parallel()
	const collector = "OTEL_EXPORTER_OTLP_ENDPOINT=http://c|"
	for variables, want := range map[string]string{
		"PLANTSTORE_REQUEST_TIMEOUT=soon":                             `--request-timeout: expected duration but got "soon": time: invalid duration "soon" (from envar PLANTSTORE_REQUEST_TIMEOUT="soon")`,
		"PLANTSTORE_LOG_LEVEL=loud":                                   `--log-level: slog: level string "loud": unknown name`,
		"DATABASE_URL=host=h\npassword=secret":                        `DATABASE_URL has a line break or another control character in it: a database URL is one line`,
		"DATABASE_URL_FILE=/nonexistent":                              `DATABASE_URL_FILE cannot be read: open /nonexistent: no such file or directory`,
		"DATABASE_URL_FILE=/dev/null":                                 `DATABASE_URL_FILE: the file /dev/null is empty`,
		"DATABASE_URL=host=h pool_max_conns=3":                        `pool_max_conns is 3: the service needs at least 4 connections`,
		"OTEL_TRACES_EXPORTER=pigeon":                                 `OTEL_TRACES_EXPORTER is "pigeon": traces are sent with otlp only`,
		collector + "OTEL_EXPORTER_OTLP_PROTOCOL=grpc":                `OTEL_EXPORTER_OTLP_PROTOCOL is "grpc": traces are sent with http/protobuf only`,
		collector + "OTEL_EXPORTER_OTLP_CERTIFICATE=/nonexistent":     `OTEL_* variables: read tls ca cert file`,
		collector + "OTEL_EXPORTER_OTLP_HEADERS=authorization%secret": `OTEL_* variables: parse headers`,
		collector + "OTEL_TRACES_SAMPLER=pigeon":                      `OTEL_* variables: unsupported sampler: pigeon`,
		"OTEL_EXPORTER_OTLP_ENDPOINT=localhost:4318":                  `OTEL_EXPORTER_OTLP_ENDPOINT is not a URL such as http://collector:4318`,
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=127.0.0.1:4318/secret":    `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is not a URL such as http://collector:4318`,
	} {
		t.Run(variables, func(t *testing.T) {
			t.Parallel()
			all := append([]string{"OTEL_EXPORTER_OTLP_HEADERS=authorization=secret"}, strings.Split(variables, "|")...)
			if !strings.Contains(variables, "DATABASE_URL") {
				all = append(all, "DATABASE_URL=host=/nonexistent")
			}
			stderr, code := runProgram(t, all, "serve", "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0")
			if code != exitUsage || !strings.HasPrefix(stderr, "plantstore: "+want) || strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, "secret") {
				t.Errorf("got exit code %d, %q\nwant          %d, one line with %q and no secret", code, stderr, exitUsage, want)
			}
		})
	}
}

func TestUnknownVariablesAreReported(t *testing.T) {
	t.Parallel()
	model := commandLine(t).Model
	for variable, warned := range map[string]bool{
		"PLANTSTORE_RATE_LIMT=200/s":        true,
		"PLANTSTORE_DATABASE_URL=x":         true,
		"PLANTSTORE_RATE_LIMIT=200/s":       false,
		"PLANTSTORE_TEST_POSTGRES=local":    false,
		"OTHER_ADDR=1":                      false,
		"PLANTSTORE_SERVICE_HOST=10.96.0.7": false, // Kubernetes sets these for Services plantstore and plantstore-admin
		"PLANTSTORE_ADMIN_PORT_9090_TCP=x":  false,
		"PLANTSTORE_TAG=x":                  false, // of docker-compose.yml
	} {
		if got := unknownVariables(model, []string{variable}); (len(got) == 1) != warned {
			t.Errorf("%s: got %v, want a warning: %v", variable, got, warned)
		}
	}
	variables := []string{"PLANTSTORE_RATE_LIMT=1/s"}
	const want = "PLANTSTORE_RATE_LIMT is no setting"
	if stderr, code := runProgram(t, variables, "version"); code != 0 || !strings.HasPrefix(stderr, "plantstore: warning: "+want) {
		t.Errorf("version: got exit code %d, %q; want 0 and a warning", code, stderr)
	}
	if stderr, code := runProgram(t, variables, "serve"); code != exitUsage || !strings.HasPrefix(stderr, "plantstore: warning: "+want) {
		t.Errorf("serve without a database: got exit code %d, %q; want %d and a warning before the error", code, stderr, exitUsage)
	}
	serving(t, variables, "--database-url=host=/nonexistent").waitFor(t, `"level":"WARN","msg":"`+want)
}

func TestDatabaseURLSources(t *testing.T) {
	t.Parallel()
	database := pgtest.Shared(t)
	file := filepath.Join(t.TempDir(), "url")
	writeFile(t, file, "\n"+database.Owner+"\n")
	const migrate = "PLANTSTORE_MIGRATE_DATABASE_URL"
	for _, tt := range []struct {
		args, variables string
		want            string // "" for a list of tokens, or else a part of the error
	}{
		{"--migrate-database-url=$OWNER", "DATABASE_URL=host=/nowhere", ""},
		{"--database-url=$OWNER", "", ""},
		{"", "DATABASE_URL=$OWNER", ""},
		{"", migrate + "=$OWNER DATABASE_URL=host=/nowhere", ""},
		{"", migrate + "_FILE=$FILE", ""},
		{"", migrate + "= " + migrate + "_FILE= DATABASE_URL=$OWNER DATABASE_URL_FILE= PLANTSTORE_MIGRATE_PASSWORD=", ""}, // empty is not set
		{"--migrate-database-url-file=$FILE", migrate + "=host=/nowhere", ""},                                             // a flag overrides both variables
		{"--migrate-database-url=$OWNER", migrate + "_FILE=/nonexistent " + migrate + "=host=/nowhere", ""},
		{"--migrate-database-url=host=/nowhere", migrate + "=$OWNER", "at /nowhere: connection refused: is it running, and is --migrate-database-url right?"},
		{"", "PGHOST=/nowhere", "at /nowhere: connection refused: is it running, and is DATABASE_URL right?"},
		{"", "DATABASE_URL=host=/nowhere", "is DATABASE_URL right?"},
		{"", "DATABASE_URL=$OWNER DATABASE_URL_FILE=$FILE", "both DATABASE_URL and DATABASE_URL_FILE are set: set one of them"},
		{"--migrate-database-url=$OWNER --migrate-database-url-file=$FILE", "", "both --migrate-database-url and --migrate-database-url-file are set: set one of them"},
	} {
		t.Run(tt.args+" with "+tt.variables, func(t *testing.T) {
			t.Parallel()
			fields := func(s string) []string {
				return strings.Fields(strings.NewReplacer("$OWNER", database.Owner, "$FILE", file).Replace(s))
			}
			stderr, code := runProgram(t, fields(tt.variables), append([]string{"token", "list"}, fields(tt.args)...)...)
			if (code == 0) != (tt.want == "") || !strings.Contains(stderr, tt.want) || (stderr == "") != (tt.want == "") {
				t.Errorf("got exit code %d, %q; want %q", code, stderr, tt.want)
			}
		})
	}
}

func TestPasswordIsAddedToTheURL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://u@h/d":                "postgres://u@h/d?password=a%20b%2B%27%26",
		"postgres://u@h/d?sslmode=prefer": "postgres://u@h/d?sslmode=prefer&password=a%20b%2B%27%26",
		"host=h user=u":                   `host=h user=u password='a b+\'&'`,
	} {
		if got := withPassword(url, "a b+'&"); got != want {
			t.Errorf("%s with a password: got %s, want %s", url, got, want)
		}
	}
}
