package main

import (
	"encoding/json"
	"strings"
	"testing"

	"plantstore/internal/doctor"
	"plantstore/internal/pgtest"
)

func TestDoctorCommand(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	super := pgtest.Connect(t, database.Super)
	urls := []string{"--migrate-database-url=" + database.Super, "--database-url=" + database.App}
	expect := func(code int, stdout, stderr string, args ...string) {
		t.Helper()
		args = append([]string{"doctor"}, args...)
		gotOut, gotErr, gotCode := command(t, args...)
		if gotCode != code || gotOut != stdout || !strings.HasPrefix(gotErr, stderr) || stderr == "" && gotErr != "" {
			t.Errorf("%s:\ngot  exit code %d, stdout %q, stderr %q\nwant exit code %d, stdout %q, stderr %q", strings.Join(args, " "), gotCode, gotOut, gotErr, code, stdout, stderr)
		}
	}
	expect(0, "problems: 0, advice: 0\n", "", urls...)
	expect(0, "[]\n", "", append(urls, "--json")...)

	// A name with a terminal's control characters is quoted.
	execute(t, super, "CREATE TABLE \"a\x1b[2J\" (plant bigint UNIQUE REFERENCES plants ON DELETE CASCADE); ALTER TABLE plants DISABLE TRIGGER record_deletion")
	const trigger = "problem: ledger-trigger: trigger record_deletion of public.plants is disabled: plants leave without a record, and the service deletes nothing\n" +
		"    ALTER TABLE public.plants ENABLE TRIGGER record_deletion;\n"
	expect(exitProblems, trigger+`advice: cascades: "a deletion from public.plants removes rows of public.\"a\x1b[2J\" (foreign key \"a\x1b[2J_plant_fkey\"), and a restore does not bring that back"
    "-- It cannot be recorded: public.\"a\x1b[2J\" has no primary key."
    -- If such rows should keep the plant instead:
    "ALTER TABLE public.\"a\x1b[2J\" DROP CONSTRAINT \"a\x1b[2J_plant_fkey\", ADD CONSTRAINT \"a\x1b[2J_plant_fkey\" FOREIGN KEY (plant) REFERENCES public.plants(id);"
problems: 1, advice: 1
`, "", urls...)
	expect(exitProblems, trigger+"problems: 1, advice: 0\n", "", append(urls, "--skip=cascades", "--skip=tls")...)
	execute(t, super, `ALTER TABLE plants ENABLE TRIGGER record_deletion`)
	expect(0, "problems: 0, advice: 0\n", "", append(urls, "--skip=cascades")...)

	expect(exitProblems, "problem: connect: the service cannot connect, and its checks are left out: pool_max_conns is 3: the service needs at least 4 connections\nproblems: 1, advice: 0\n", "",
		urls[0], "--skip=cascades", "--database-url="+pgtest.WithParameters(database.App, "pool_max_conns=3"))
	expect(exitUnknown, "", "plantstore: cannot connect to PostgreSQL at 127.0.0.1:1: connection refused", "--database-url=postgres://127.0.0.1:1/plantstore")
	expect(exitUnknown, "advice: transactions: role plantstore_app cannot see how long transactions of other roles have been open\n    GRANT pg_read_all_stats TO plantstore_app;\n"+
		"problems: 0, advice: 1\n", "plantstore: check budgets failed: permission denied for table principals", urls[1], "--skip=cascades,restore-rights,store-triggers")
	expect(exitUnknown, "", "plantstore: cannot connect to PostgreSQL", append(urls, "--timeout=1ns")...)
	expect(exitUsage, "", `plantstore: doctor: --skip (PLANTSTORE_DOCTOR_SKIP): there is no check "everything": see 'plantstore doctor --help'`, append(urls, "--skip=everything")...)
	expect(exitUsage, "", "plantstore: doctor: --replicas is 0: it must be at least 1", append(urls, "--replicas=0")...)
	help, _, _ := command(t, "doctor", "--help")
	for _, check := range doctor.Checks() {
		if !strings.Contains(help, check.Name) {
			t.Errorf("--help does not name check %s:\n%s", check.Name, help)
		}
	}
}

// Remedies that are commands of ours work when they are pasted.
func TestRemediesOfDoctorWorkWhenPasted(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	super := pgtest.Connect(t, database.Super)
	paste := func(want string) {
		t.Helper()
		examine := []string{"doctor", "--json", "--migrate-database-url=" + database.Super, "--database-url=" + database.App}
		stdout, stderr, _ := command(t, examine...)
		var findings []doctor.Finding
		if err := json.Unmarshal([]byte(stdout), &findings); err != nil {
			t.Fatalf("%v: %s%s", err, stdout, stderr)
		}
		remedies := []string{}
		for _, f := range findings {
			remedies = append(remedies, f.Remedy)
			line, _, _ := strings.Cut(f.Remedy, " #")
			args := strings.Fields(line)[1:]
			if _, stderr, code := command(t, append(args, "--migrate-database-url="+database.Owner)...); code != 0 {
				t.Errorf("%s: got exit code %d, %s, want 0", f.Remedy, code, stderr)
			}
		}
		if got := strings.Join(remedies, "\n"); got != want {
			t.Errorf("remedies: got\n%s\nwant\n%s", got, want)
		}
		if _, stderr, code := command(t, examine...); code != 0 {
			t.Errorf("after %q: got exit code %d, %s, want 0", remedies, code, stderr)
		}
	}
	paste("plantstore migrate up")
	execute(t, super, `INSERT INTO plantstore.principals (name, budget, budget_period, budget_used, budget_resets_at) VALUES ('shop', 5, '1d', 5, now() + '1 hour');
		INSERT INTO plantstore.tokens (principal, digest, scopes, expires_at) VALUES ('shop', sha256('a'), '{}', now() + '1 hour');
		INSERT INTO plantstore.deletions (plant_id, deleted_by, deleted_at) VALUES (1, 'shop', '2020-01-01Z')`)
	paste("plantstore deletions purge --older-than 365d # their plants cannot be restored any more\nplantstore token rotate shop\nplantstore token budget --reset shop")
}
