package main

import (
	"testing"

	"plantstore/internal/pgtest"
)

func TestMigrateCommands(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	expect := expecting(t, database.Owner)
	expect(0, `VERSION +MIGRATION +APPLIED AT\n1 +00001_plants.sql +pending\n.*`, "", "migrate", "status")
	expect(exitPending, `database \S+ is at version 0, .*pending are 6\n.*00006_grants.sql .*'plantstore migrate plan --sql' prints the SQL.*`, "", "migrate", "plan")
	expect(exitPending, `.*\nCREATE TABLE plantstore.deletions .*`, "", "migrate", "plan", "--sql")
	expect(exitPending, `\{\n  "database": .*"pending": \[.*`, "", "migrate", "plan", "--json")
	expect(0, `nothing to do: no such migration is applied\n`, "", "migrate", "down")
	expect(0, `applied 00001_plants.sql in \S+s\n.*applied 00006_grants.sql in \S+s\n`, "", "migrate", "up")
	expect(0, `nothing to do: every migration up to 6 is applied\n`, "", "migrate", "up")
	expect(0, `database \S+ is at version 6, this plantstore at 6: nothing to do\n.*`, "", "migrate", "plan")
	expect(0, `rolled back 00006_grants.sql in \S+s\n`, "", "migrate", "down")
	expect(0, `rolled back 00005_\S+ in \S+s\nrolled back 00004_\S+ in \S+s\nrolled back 00003_\S+ in \S+s\n`, "", "migrate", "down", "--to=2")
	expect(0, `\[\n  \{\n    "version": 1,.*"applied_at": "[^"]*".*"version": 6,\n    "name": "00006_grants.sql",\n    "applied_at": null\n  \}\n\]\n`, "", "migrate", "status", "--json")

	// The service's URL does where one role owns everything, with the settings of its pool.
	_, stderr, code := command(t, "migrate", "up", "--database-url="+pgtest.WithParameters(database.Owner, "pool_max_conns=20"))
	if code != 0 {
		t.Errorf("migrate up with a URL of the service: got exit code %d, %s; want 0", code, stderr)
	}
	execute(t, pgtest.Connect(t, database.Super), `ALTER TABLE plants SET UNLOGGED`)
	expect(0, `rolled back .*`, "", "migrate", "down", "--to=1")
	expect(1, `.*\nproblem: public.plants is unlogged: .*`, "", "migrate", "plan")
	expect(1, "", `plantstore: public.plants is unlogged: .*\n`, "migrate", "up")
}
