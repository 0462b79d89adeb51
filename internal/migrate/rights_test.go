package migrate_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	roles "plantstore/deploy/postgres"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/internal/readme"
)

// An ability is a row of the page on who can do what.
type ability struct {
	// attempts are ways to do it: who succeeds with one of them can.
	attempts []string
	// done tells, asked by a superuser, whether an attempt without an error did it.
	// Empty: it did.
	done string
}

// abilities are those of the page, by their first words there.
var abilities = map[string]ability{
	"delete plants": {
		attempts: []string{`DELETE FROM public.plants WHERE id = 1`},
		done:     `SELECT count(*) = 1 FROM public.plant_deletions WHERE plant_id = 1 AND deleted_by = session_role`,
	},
	"name a principal": {
		attempts: []string{`SET LOCAL plantstore.request = '{1,alice}'; DELETE FROM public.plants WHERE id = 1`},
		done:     `SELECT count(*) = 1 FROM public.plant_deletions WHERE plant_id = 1 AND deleted_by = 'alice'`,
	},
	"delete plants without a record": {
		attempts: []string{
			`DELETE FROM ONLY public.plants WHERE id = 1`,
			`TRUNCATE public.plants`,
			`SET LOCAL session_replication_role = replica; DELETE FROM public.plants WHERE id = 1`,
			`ALTER TABLE public.plants DISABLE TRIGGER plantstore_record_deletion; DELETE FROM public.plants WHERE id = 1`,
			`ALTER TABLE public.plants DISABLE TRIGGER ALL; TRUNCATE public.plants`,
			`DROP TRIGGER plantstore_record_deletion ON public.plants; DELETE FROM public.plants WHERE id = 1`,
			`CREATE OR REPLACE FUNCTION public.plantstore_record_deletion() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; DELETE FROM public.plants WHERE id = 1`,
			`DELETE FROM public.plants WHERE id = 1; DELETE FROM public.plant_deletions WHERE plant_id = 1`,
		},
		done: `SELECT NOT EXISTS (SELECT FROM public.plants WHERE id = 1) AND NOT EXISTS (SELECT FROM public.plant_deletions WHERE plant_id = 1)`,
	},
	"read the ids of plants":          {attempts: []string{`SELECT id FROM public.plants`}},
	"read whole plants":               {attempts: []string{`SELECT * FROM public.plants`}},
	"insert plants":                   {attempts: []string{`INSERT INTO public.plants (id, name) VALUES (99, 'fern')`}},
	"update plants":                   {attempts: []string{`UPDATE public.plants SET name = 'fern'`}},
	"read the ledger":                 {attempts: []string{`SELECT * FROM public.plant_deletions`}},
	"change or erase entries":         {attempts: []string{`UPDATE public.plant_deletions SET deleted_by = 'x'`, `DELETE FROM public.plant_deletions`, `TRUNCATE public.plant_deletions`}},
	"make entries up":                 {attempts: []string{`INSERT INTO public.plant_deletions (plant_id, shape, plant, deleted_by) VALUES (99, 1, '(99)', 'alice')`}},
	"look a token up":                 {attempts: []string{`SELECT * FROM public.plantstore_token(sha256('x'))`}},
	"list the digests":                {attempts: []string{`SELECT digest FROM public.api_tokens`}},
	"issue or revoke tokens":          {attempts: []string{`INSERT INTO public.api_principals (name) VALUES ('x')`, `INSERT INTO public.api_tokens (principal, digest, scopes) VALUES ('x', sha256('x'), '{}')`, `UPDATE public.api_tokens SET revoked_at = now()`}},
	"raise or reset deletion budgets": {attempts: []string{`UPDATE public.plantstore_budgets SET most = 9`, `DELETE FROM public.plantstore_budgets`, `INSERT INTO public.plantstore_budgets (principal) VALUES ('x')`, `SELECT public.plantstore_spend('x', -1, 9, '1 hour', null)`}},
	"change the triggers' code":       {attempts: []string{`ALTER FUNCTION public.plantstore_record_deletion() RESET search_path`, `DROP FUNCTION public.plantstore_record_deletion() CASCADE`}},
	"take the triggers":               {attempts: []string{`DROP TRIGGER plantstore_record_deletion ON public.plants`, `ALTER TABLE public.plants DISABLE TRIGGER USER`}},
	"apply migrations":                {attempts: []string{`INSERT INTO public.goose_db_version (version_id, is_applied) VALUES (99, true); CREATE TABLE public.x (n integer)`}},
}

// The page on who can do what, in migrations/README.md, is tried on a store's own
// table.
func TestWhoCanDoWhat(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	conn := pgtest.Connect(t, database.Super)
	// Roles are the server's, not the database's.
	shop, clerk := database.Name+"_shop", database.Name+"_clerk"
	defer func() {
		for _, role := range []string{shop, clerk} {
			_, err := conn.Exec(context.Background(), `RESET SESSION AUTHORIZATION; DROP OWNED BY `+role+` CASCADE; DROP ROLE `+role)
			if err != nil {
				t.Error(err)
			}
		}
	}()
	exec(t, conn, `CREATE ROLE `+shop+`; CREATE ROLE `+clerk+`;
		CREATE TABLE public.plants (id bigint PRIMARY KEY, name text);
		ALTER TABLE public.plants OWNER TO `+shop)
	exec(t, conn, roles.SQL)
	if _, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `GRANT SELECT (id), DELETE ON public.plants TO `+clerk+`; INSERT INTO public.plants VALUES (1, 'fern'), (2, 'aloe')`)

	who := []string{"plantstore_app", "plantstore_owner", shop, clerk}
	tried := make(map[string]bool)
	for _, row := range readme.Table(t, "migrations/README.md", "who may") {
		name := ""
		for words := range abilities {
			if strings.HasPrefix(row[0], words) && len(words) > len(name) {
				name = words
			}
		}
		if name == "" || len(row) != len(who)+1 {
			t.Errorf("row %q of migrations/README.md: nobody knows how to try it", row)
			continue
		}
		tried[name] = true
		for i, role := range who {
			got := "no"
			if canDo(t, conn, role, abilities[name]) {
				got = "yes"
			}
			if want, _, _ := strings.Cut(row[i+1], ","); got != want {
				t.Errorf("%s can %s: %s, migrations/README.md says %s", role, row[0], got, want)
			}
		}
	}
	for name := range abilities {
		if !tried[name] {
			t.Errorf("migrations/README.md does not say who can %s", name)
		}
	}
}

// canDo reports whether a role can do something. Nothing of it stays.
func canDo(t *testing.T, conn *pgx.Conn, role string, a ability) bool {
	t.Helper()
	return slices.ContainsFunc(a.attempts, func(sql string) bool {
		exec(t, conn, `BEGIN; SET LOCAL SESSION AUTHORIZATION `+role)
		defer exec(t, conn, `ROLLBACK`)
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			return false
		}
		if a.done == "" {
			return true
		}
		exec(t, conn, `SET LOCAL SESSION AUTHORIZATION DEFAULT`)
		var done bool
		if err := conn.QueryRow(t.Context(), a.done).Scan(&done); err != nil {
			t.Fatal(err)
		}
		return done
	})
}

func TestTheManualHasTheLedgersColumns(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.New(t).Owner)
	for _, table := range []string{"plant_deletions", "plant_shapes"} {
		var want []string
		for _, row := range readme.Table(t, "migrations/README.md", "column of "+table) {
			want = append(want, row[0]+" "+row[1])
		}
		got := query(t, conn, `SELECT attname || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute
			WHERE attrelid = 'public.`+table+`'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("columns of %s (-README +database):\n%s", table, diff)
		}
	}
}
