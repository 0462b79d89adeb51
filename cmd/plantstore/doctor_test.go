package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/doctor"
	"plantstore/internal/pgtest"
)

// examine runs the doctor and returns its exit code and its findings but those
// that are fine. It runs as a superuser, because that the tests' owner can't see
// everybody's transactions is a finding of its own.
func examine(t *testing.T, database pgtest.Database) (int, []doctor.Finding) {
	t.Helper()
	stdout, stderr, code := command(t, "doctor", "--json", "--database-url="+database.Super, "--service-url="+database.App)
	var all []doctor.Finding
	if err := json.Unmarshal([]byte(stdout), &all); err != nil {
		t.Fatalf("doctor --json: %v: %s%s", err, stdout, stderr)
	}
	found := []doctor.Finding{}
	for _, f := range all {
		if f.Grade != doctor.OK {
			found = append(found, f)
		}
	}
	return code, found
}

// follow does what a remedy says, with our commands on the database.
func follow(t *testing.T, database pgtest.Database, remedy string) {
	t.Helper()
	for line := range strings.Lines(remedy) {
		line = strings.TrimSpace(line)
		arguments, isCommand := strings.CutPrefix(line, "plantstore ")
		switch {
		case strings.HasPrefix(line, "#"):
		case isCommand:
			if _, stderr, code := command(t, append(strings.Fields(arguments), "--database-url="+database.Owner)...); code != 0 {
				t.Fatalf("%s: exit code %d, %s", line, code, stderr)
			}
		default:
			execute(t, pgtest.Connect(t, database.Owner), line)
		}
	}
}

func TestDoctorAndItsCommands(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, sql string
		code      int
		check     string
		want      string // start of the message
	}{
		{"a token that was never used", `UPDATE api_tokens SET created_at = now() - interval '31 days'`, 3, "tokens", "the token of shop was never used since 20"},
		{"a token that expires", `UPDATE api_tokens SET expires_at = now() + interval '13 days'`, 3, "tokens", "the token of shop expires on 20"},
		{"a token that never expires", `UPDATE api_tokens SET expires_at = NULL, last_used_at = now()`, 3, "tokens", "the token of shop never expires"},
		{"a table without index", `CREATE TABLE order_items (plant bigint REFERENCES plants)`, 3, "foreign keys", "each deletion scans public.order_items (0 bytes)"},
		{"a trigger that is off", `ALTER TABLE plants DISABLE TRIGGER ALL`, 1, "record", "trigger plantstore_re"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			command(t, "migrate", "up", "--database-url="+database.Owner)
			command(t, "token", "create", "shop", "--database-url="+database.Owner)
			if code, found := examine(t, database); code != 0 || len(found) > 0 {
				t.Fatalf("exit code %d, %+v; want 0 and nothing", code, found)
			}
			execute(t, pgtest.Connect(t, database.Owner), tt.sql)
			code, found := examine(t, database)
			if code != tt.code || len(found) == 0 {
				t.Fatalf("exit code %d, %+v; want %d and something", code, found, tt.code)
			}
			for _, f := range found {
				if f.Check != tt.check || !strings.HasPrefix(f.Message, tt.want) {
					t.Errorf("finding %+v, want %s: %s", f, tt.check, tt.want)
				}
				t.Logf("remedy:\n%s", f.Remedy)
				follow(t, database, f.Remedy)
			}
			if code, found := examine(t, database); code != 0 || len(found) > 0 {
				t.Errorf("after the remedy: exit code %d, %+v; want 0 and nothing", code, found)
			}
		})
	}
}

func TestDoctorOnTheSchema(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	code, found := examine(t, database)
	if code != 1 || len(found) != 1 || found[0].Check != "schema" || found[0].Remedy != "plantstore migrate up" {
		t.Fatalf("exit code %d, %+v; want 1 and that migrations are missing", code, found)
	}
	follow(t, database, found[0].Remedy)
	if code, found := examine(t, database); code != 0 || len(found) > 0 {
		t.Errorf("after the remedy: exit code %d, %+v; want 0 and nothing", code, found)
	}
	owner := pgtest.Connect(t, database.Owner)
	execute(t, owner, `CREATE TABLE saved AS TABLE plantstore_migrations; UPDATE plantstore_migrations SET checksum = repeat('0', 64) WHERE version = 3`)
	code, found = examine(t, database)
	if code != 1 || len(found) != 1 || found[0].Check != "schema" || !strings.HasPrefix(found[0].Message, "00003_record_deletions.sql has changed since it was applied") {
		t.Errorf("exit code %d, %+v; want 1 and that a migration has changed", code, found)
	}
	execute(t, owner, `UPDATE plantstore_migrations m SET checksum = s.checksum FROM saved s WHERE s.version = m.version;
		INSERT INTO goose_db_version (version_id, is_applied) VALUES (900, true)`)
	code, found = examine(t, database)
	if code != 3 || len(found) != 1 || found[0].Check != "schema" || !strings.HasPrefix(found[0].Message, "the database is ahead") {
		t.Errorf("exit code %d, %+v; want 3 and that the database is ahead", code, found)
	}
}

func TestDoctorForAPerson(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	execute(t, pgtest.Connect(t, database.Owner), `CREATE TABLE order_items (plant bigint REFERENCES plants)`)
	stdout, _, code := command(t, "doctor", "--database-url="+database.Super, "--service-url="+database.App)
	want := `ok       cascades: deleting a plant changes no other table
warning  foreign keys: each deletion scans public.order_items (0 bytes): foreign key order_items_plant_fkey has no index
           CREATE INDEX CONCURRENTLY ON public.order_items (plant);
`
	var got strings.Builder
	for line := range strings.Lines(stdout) {
		if strings.Contains(line, "cascades:") || strings.Contains(line, "foreign keys:") || strings.HasPrefix(line, "   ") {
			got.WriteString(line)
		}
	}
	// In the order of the checks.
	first, rest, _ := strings.Cut(want, "\n")
	if diff := cmp.Diff(rest+first+"\n", got.String()); code != 3 || diff != "" {
		t.Errorf("exit code %d, want 3; (-want +got):\n%s", code, diff)
	}
	if lastLine(stdout) != "0 problems, 1 warning" {
		t.Errorf("last line %q, want the number of findings", lastLine(stdout))
	}
	if _, stderr, code := command(t, "doctor", "--replicas=0"); code != 2 || lastLine(stderr) != "plantstore: doctor: --replicas is 0: it must be at least 1" {
		t.Errorf("doctor --replicas=0: exit code %d, %s", code, stderr)
	}
}

// That the findings can't be written is told once.
func TestFindingsOntoAFullDisk(t *testing.T) {
	t.Parallel()
	err := writeFindings(writerFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC }), make([]doctor.Finding, 3))
	if err == nil || err.Error() != "no space left on device" {
		t.Errorf("%v, want that no space is left, once", err)
	}
}

func TestReadyzTellsWhatHinders(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	owner := pgtest.Connect(t, database.Owner)
	execute(t, owner, `ALTER TABLE plants DISABLE TRIGGER USER`)
	p := start(t, "serve", "--database-url="+database.App, "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s")
	_, admin := p.addresses(t)
	want := "trigger plantstore_record_deletion is disabled: plants leave without a record; " +
		"trigger plantstore_refuse_truncate is disabled: plants leave without a record: see 'plantstore doctor'\n"
	if got := waitReady(t, admin, http.StatusServiceUnavailable); got != want {
		t.Errorf("/readyz says %q, want %q", got, want)
	}
	execute(t, owner, `ALTER TABLE plants ENABLE TRIGGER USER`)
	waitReady(t, admin, http.StatusOK)
	execute(t, owner, `ALTER TABLE plants RENAME TO old`)
	want = "public.plants is gone: nothing can be deleted (public.old has its triggers): see 'plantstore doctor'\n"
	if got := waitReady(t, admin, http.StatusServiceUnavailable); got != want {
		t.Errorf("/readyz says %q, want %q", got, want)
	}
}

// A lock on what readiness looks at makes nobody unready: deletions wait for locks. What
// was found before holds until it can be looked at again.
func TestReadyBesideALock(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	owner, super := pgtest.Connect(t, database.Owner), pgtest.Connect(t, database.Super)
	p := start(t, "serve", "--database-url="+database.App, "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s")
	_, admin := p.addresses(t)
	waitReady(t, admin, http.StatusOK)
	const all = `LOCK TABLE public.plants, public.plant_deletions, public.plant_shapes, public.api_tokens, public.goose_db_version IN ACCESS EXCLUSIVE MODE`
	execute(t, super, `BEGIN; `+all)
	want, state := http.StatusOK, "ready\n"
	for range 2 {
		var code int
		var body string
		if !eventually(func() bool {
			code, body = send(t, http.MethodGet, admin+"/readyz", "")
			return code == want && body == state
		}) {
			t.Errorf("/readyz beside a lock: %d %q, want %d %q", code, body, want, state)
		}
		execute(t, super, `ROLLBACK`)
		execute(t, owner, `ALTER TABLE plants DISABLE TRIGGER plantstore_refuse_truncate`)
		want, state = http.StatusServiceUnavailable, waitReady(t, admin, http.StatusServiceUnavailable)
		execute(t, super, `BEGIN; `+all)
	}
	// What was not looked at yet is not told as well.
	fresh := start(t, "serve", "--database-url="+database.App, "--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=0s")
	_, admin = fresh.addresses(t)
	if !eventually(func() bool {
		_, body := send(t, http.MethodGet, admin+"/readyz", "")
		return body == "a table that the service has to look at is locked\n"
	}) {
		t.Error("/readyz of a service that starts beside a lock does not tell of it")
	}
	if !eventually(func() bool {
		_, metrics := send(t, http.MethodGet, admin+"/metrics", "")
		return strings.Contains(metrics, `plantstore_not_ready{reason="hindered"} 1`) && strings.Contains(metrics, "plantstore_database_up 1")
	}) {
		t.Error("the metrics don't say that it is hindered, and the database up")
	}
	execute(t, super, `ROLLBACK`)
	execute(t, owner, `ALTER TABLE plants ENABLE TRIGGER plantstore_refuse_truncate`)
	waitReady(t, admin, http.StatusOK)
}
