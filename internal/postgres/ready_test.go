package postgres

import (
	"errors"
	"strings"
	"testing"

	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
)

func TestReadyNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := newStore(t, database)
	check := func(db *DB, what, reason, text string, versions ...int64) {
		t.Helper()
		err := db.Ready(t.Context(), append(migrate.Versions(), versions...))
		var not *NotReadyError
		if reason == "" {
			if err != nil {
				t.Errorf("%s: %v; want that it is ready", what, err)
			}
		} else if !errors.As(err, &not) || not.Reason != reason || !strings.Contains(not.Error(), text) {
			t.Errorf("%s: %v; want %s: %s", what, err, reason, text)
		}
	}
	check(s.DB, "migrated", "", "")
	check(s.DB, "two migrations missing", SchemaBehind, "[77 99]", 99, 77)
	for _, c := range []struct{ what, do, undo, text string }{
		{"trigger disabled", `ALTER TABLE public.plants DISABLE TRIGGER record_deletion`, `ALTER TABLE public.plants ENABLE TRIGGER record_deletion`, "record_deletion"},
		{"trigger for replicas", `ALTER TABLE public.plants ENABLE REPLICA TRIGGER record_deletion`, `ALTER TABLE public.plants ENABLE ALWAYS TRIGGER record_deletion`, "record_deletion"},
		{"unfit", `ALTER TABLE public.plants ENABLE ROW LEVEL SECURITY`, `ALTER TABLE public.plants DISABLE ROW LEVEL SECURITY`, "row level security"},
		{"right to delete", `REVOKE DELETE ON public.plants FROM plantstore_app`, `GRANT DELETE ON public.plants TO plantstore_app`, "plantstore_app may not delete"},
		{"right to look", `REVOKE USAGE ON SCHEMA plantstore FROM plantstore_app`, `GRANT USAGE ON SCHEMA plantstore TO plantstore_app`, "permission denied"},
		{"right to read tokens", `REVOKE SELECT ON plantstore.tokens FROM plantstore_app`, `GRANT SELECT ON plantstore.tokens TO plantstore_app`, "permission denied"},
		{"renamed", `ALTER TABLE public.plants RENAME TO herbs`, `ALTER TABLE public.herbs RENAME TO plants`, "public.plants does not exist"},
	} {
		s.exec(t, c.do)
		check(s.DB, c.what, Misconfigured, c.text)
		s.exec(t, c.undo)
	}
	check(s.DB, "with all that undone", "", "")
	s.exec(t, `ALTER TABLE plantstore.goose_db_version RENAME TO away`)
	check(s.DB, "goose's table is gone", SchemaBehind, "plantstore migrate up")
	s.exec(t, `ALTER TABLE plantstore.away RENAME TO goose_db_version`)

	s.exec(t, `ALTER DATABASE `+database.Name+` SET default_transaction_read_only = on`)
	again := opened(t, Config{URL: database.App}) // with sessions that have the setting
	check(again, "read-only", ReadOnly, "read-only")
	s.exec(t, `ALTER DATABASE `+database.Name+` RESET default_transaction_read_only`)
	check(again, "a primary again", "", "") // on a new connection

	check(opened(t, Config{URL: pgtest.Empty(t).App}), "no migration", SchemaBehind, "plantstore migrate up")
	check(opened(t, Config{URL: "postgres://nobody@127.0.0.1:1/none?sslmode=disable"}), "no server", Unreachable, "127.0.0.1")
}

// The schema's owner and a superuser can serve, too.
func TestOwnerAndSuperuserCanServe(t *testing.T) {
	t.Parallel()
	database := pgtest.Shared(t)
	for _, url := range []string{database.Owner, database.Super} {
		s := newStore(t).on(opened(t, Config{URL: url}))
		if err := s.Ready(t.Context(), migrate.Versions()); err != nil {
			t.Errorf("%s: %v; want that it is ready", url, err)
		}
		id := s.plant(t, 1)
		s.expect(t, s.sent(id, "key"), "deleted")
		s.expect(t, s.sent(id, "key"), "replayed deleted")
	}
}
