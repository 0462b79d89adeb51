package main

import (
	"fmt"
	"testing"

	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
)

func TestMigrateCommands(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	expect := expecting(t, database.Owner)
	all := migrate.All()
	newest, before := all[len(all)-1], all[len(all)-2]
	expect(0, `VERSION +MIGRATION +APPLIED AT\n1 +00001_plants.sql +pending\n.*`, "", "migrate", "status")
	expect(exitPending, fmt.Sprintf(`database \S+ is at version 0, .*pending are %d\n.*%s .*'plantstore migrate plan --sql' prints the SQL.*`, len(all), newest.Name), "", "migrate", "plan")
	expect(exitPending, `.*\nCREATE TABLE plantstore.deletions .*`, "", "migrate", "plan", "--sql")
	expect(exitPending, `\{\n  "database": .*"pending": \[.*`, "", "migrate", "plan", "--json")
	expect(0, `nothing to do: no such migration is applied\n`, "", "migrate", "down")
	expect(0, fmt.Sprintf(`applied 00001_plants.sql in \S+s\n.*applied %s in \S+s\n`, newest.Name), "", "migrate", "up")
	expect(0, fmt.Sprintf(`nothing to do: every migration up to %d is applied\n`, newest.Version), "", "migrate", "up", "--lock-timeout=1m")
	expect(0, fmt.Sprintf(`database \S+ is at version %d, this plantstore at %[1]d: nothing to do\n.*`, newest.Version), "", "migrate", "plan")
	expect(0, fmt.Sprintf(`rolled back %s in \S+s\n`, newest.Name), "", "migrate", "down")
	expect(0, fmt.Sprintf(`rolled back %s in \S+s\n.*rolled back 00003_\S+ in \S+s\n`, before.Name), "", "migrate", "down", "--to=2")
	expect(0, fmt.Sprintf(`\[\n  \{\n    "version": 1,.*"applied_at": "[^"]*".*"version": %d,\n    "name": %q,\n    "applied_at": null\n  \}\n\]\n`, newest.Version, newest.Name),
		"", "migrate", "status", "--json")

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
