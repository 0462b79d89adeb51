package doctor

import (
	"regexp"
	"strings"
	"testing"

	"plantstore/internal/pgtest"
)

// The doctor often is a superuser. Nothing that others have made runs with its
// rights.
func TestNothingOfOthersRuns(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	sprung := pgtest.SetTraps(t, database)
	for _, f := range troubles(t, examinationOf(database.Super, database.App)) {
		if !regexp.MustCompile(`plants means (evil|plantstore_owner)\.plants|^schema plantstore_owner`).MatchString(f.Message) {
			t.Errorf("%+v, want no more than that there are traps", f)
		}
	}
	if reason := unready(t, database.App); reason != "" {
		t.Errorf("not ready because of %q", reason)
	}
	if troubles, _ := planned(t, database.Owner); len(troubles) != 0 {
		t.Errorf("plan: %+v, want no trouble", troubles)
	}
	if got := sprung(); len(got) != 0 {
		t.Errorf("these were run: %v", got)
	}
}

func TestDoctorLeavesForeignTablesAlone(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	script(t, database.Super, `
		CREATE FUNCTION trap() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'caught'; END $$;
		DROP TABLE api_tokens CASCADE;
		CREATE VIEW api_tokens AS SELECT trap() AS principal, now() AS created_at, now() AS expires_at, now() AS revoked_at, now() AS last_used_at;
		ALTER VIEW api_tokens OWNER TO plantstore_app;`)
	found := troubles(t, examinationOf(database.Super, database.App))
	if len(found) != 1 || found[0].Check != "schema" || !strings.HasPrefix(found[0].Message, "public.api_tokens belongs to role plantstore_app, ") {
		t.Errorf("%+v, want only whose api_tokens is", found)
	}
}

func TestDoctorOnEncodings(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			database := pgtest.EmptyWith(t, `ENCODING '`+encoding+`' LC_COLLATE 'C' LC_CTYPE 'C'`)
			found := troubles(t, examinationOf(pgtest.WithParameters(database.Super, "pool_max_conns=3"), database.App))
			if len(found) != 1 || found[0].Check != "schema" {
				t.Errorf("%+v, want only that no migration is applied", found)
			}
		})
	}
}
