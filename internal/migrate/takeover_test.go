package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	goosedb "github.com/pressly/goose/v3/database"

	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/internal/readme"
	"plantstore/migrations"
)

// Nothing that others have made runs with the owner's rights, however much it is
// in the way of names that are not written in full.
func TestNothingOfOthersRuns(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	exec(t, pgtest.Connect(t, database.Owner), `CREATE TABLE plants (id bigint PRIMARY KEY, name text); INSERT INTO plants VALUES (1, 'fern')`)
	sprung := pgtest.SetTraps(t, database)
	set := extended(t, map[string]string{"00101_colour.sql": "-- +goose Up\nALTER TABLE public.plants ADD COLUMN colour text;\n-- +goose Down\nALTER TABLE public.plants DROP COLUMN colour;\n"})
	safe := pgtest.Connect(t, pgtest.WithParameters(database.Super, "search_path=pg_catalog"))

	if p := plan(t, set, database.Owner); len(p.Pending) != len(migrate.All())+1 || len(p.Trouble) != 0 {
		t.Errorf("%d pending, trouble %v; want all pending, none", len(p.Pending), p.Trouble)
	}
	// One run waits for a lock, and another for that run.
	exec(t, safe, `BEGIN`)
	exec(t, safe, `LOCK TABLE public.plants IN ACCESS SHARE MODE`)
	var seen events
	seen.on = func(e migrate.Event) {
		if e.Kind == migrate.Blocked && strings.HasPrefix(e.Migration.Name, "00101") {
			exec(t, safe, `COMMIT`)
		}
	}
	if _, err := set.Up(t.Context(), database.Owner, migrate.Options{Notify: seen.notify, LockTimeout: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	if len(seen.of(migrate.Blocked)) == 0 {
		t.Error("no run was blocked")
	}
	// The driver asks the server what it is, before the session is ours.
	states, trouble, err := set.Status(t.Context(), pgtest.WithParameters(database.Owner, "target_session_attrs=primary"))
	if err != nil || len(trouble) != 0 || states[len(states)-1].AppliedAt.IsZero() {
		t.Errorf("status %v, %v, %v; want all applied", states, trouble, err)
	}
	if p := plan(t, set, database.Owner); len(p.Pending) != 0 {
		t.Errorf("%d pending, want none", len(p.Pending))
	}
	if _, err := set.DownTo(t.Context(), database.Owner, 0, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	if got := sprung(); len(got) != 0 {
		t.Errorf("these were run: %v", got)
	}
	if got := query(t, safe, `SELECT tableoid::regclass::text FROM evil.goose_db_version UNION ALL SELECT tableoid::regclass::text FROM plantstore_owner.goose_db_version`); len(got) != 0 {
		t.Errorf("rows in %v, want them in public only", got)
	}

	// A session that nobody pinned is caught.
	naive := pgtest.Connect(t, database.Owner)
	if _, err := naive.Exec(t.Context(), `INSERT INTO goose_db_version (version_id) VALUES (length('x'))`); err != nil {
		t.Fatal(err)
	}
	naive.Close(t.Context())
	for len(sprung()) < 2 {
		time.Sleep(10 * time.Millisecond)
	}
}

// Nor does it with the stock goose command, as the manual has it. Neither goose nor the
// files name the schema of what is PostgreSQL's.
func TestNothingOfOthersRunsWithStockGoose(t *testing.T) {
	t.Parallel()
	said := regexp.MustCompile("`PGOPTIONS='([^']*)' goose -dir migrations -table (\\S+) postgres \"\\$URL\" up`").FindStringSubmatch(readme.Read(t, "migrations/README.md"))
	if said == nil {
		t.Fatal("migrations/README.md does not have the command")
	}
	for name, table := range map[string]string{"empty": ``, "adopted": `CREATE TABLE plants (id bigint PRIMARY KEY, name text)`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.Empty(t)
			exec(t, pgtest.Connect(t, database.Owner), table)
			sprung := pgtest.SetTraps(t, database)
			config, err := pgx.ParseConfig(pgtest.WithParameters(database.Super, "application_name=plantstore"))
			if err != nil {
				t.Fatal(err)
			}
			config.RuntimeParams["options"] = said[1]
			db := stdlib.OpenDB(*config)
			store, err := goosedb.NewStore(goose.DialectPostgres, said[2])
			if err != nil {
				t.Fatal(err)
			}
			p, err := goose.NewProvider(goose.DialectCustom, db, migrations.Files, goose.WithStore(store), goose.WithDisableGlobalRegistry(true))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Up(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := p.DownTo(t.Context(), 0); err != nil {
				t.Error(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			if got := sprung(); len(got) != 0 {
				t.Errorf("these were run: %v", got)
			}
		})
	}
}

// A URL that asks for another kind of server than this one is refused.
func TestTheKindOfServerThatIsAskedFor(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	for kind, want := range map[string]bool{"primary": true, "read-write": true, "standby": false, "read-only": false} {
		_, _, err := migrate.Service().Status(t.Context(), pgtest.WithParameters(database.Owner, "target_session_attrs="+kind))
		if taken := err == nil; taken != want {
			t.Errorf("a primary where the URL asks for %s: %v; want it taken: %v", kind, err, want)
		}
	}
}

// everyCommand returns what each command says of a database.
func everyCommand(t *testing.T, url string) map[string]error {
	t.Helper()
	set := migrate.Service()
	_, planErr := set.Plan(t.Context(), url)
	_, _, statusErr := set.Status(t.Context(), url)
	_, upErr := set.Up(t.Context(), url, migrate.Options{})
	_, downErr := set.Down(t.Context(), url, migrate.Options{})
	return map[string]error{"plan": planErr, "status": statusErr, "up": upErr, "down": downErr}
}

// A table with the name of ours, made by somebody who may create in public, is
// neither read nor written.
func TestForeignTables(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"goose_db_version", "plantstore_migrations", "plant_deletions", "api_principals", "api_tokens"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			database := pgtest.Empty(t)
			super := pgtest.Connect(t, database.Super)
			exec(t, super, `
				CREATE FUNCTION trap() RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''caught''; END';
				CREATE VIEW `+table+` AS SELECT 1 AS id, 1::bigint AS version_id, trap() AS is_applied, now()::timestamp AS tstamp;
				ALTER VIEW `+table+` OWNER TO plantstore_app;
				GRANT ALL ON `+table+` TO PUBLIC`)
			want := "public." + table + " belongs to role plantstore_app"
			for name, err := range everyCommand(t, database.Owner) {
				if err == nil || !strings.HasPrefix(err.Error(), want) {
					t.Errorf("%s: %v, want %s", name, err, want)
				}
			}
		})
	}
}

// A store that uses goose itself keeps its history where ours would be. It is neither taken
// for ours nor written, and once it is elsewhere both go on.
func TestTheHistoryOfAnotherProgram(t *testing.T) {
	t.Parallel()
	const missing = "public.goose_db_version says that 00002_ledger.sql is applied, and there is no public.plant_shapes, no public.plant_deletions. "
	for _, tt := range []struct{ name, sql, want string }{
		{"as long as ours", `INSERT INTO goose_db_version (version_id, is_applied) SELECT n, true FROM generate_series(0, 6) n`, missing},
		{"shorter", `INSERT INTO goose_db_version (version_id, is_applied) VALUES (0, true), (1, true), (2, true)`, missing},
		{"longer", `INSERT INTO goose_db_version (version_id, is_applied) SELECT n, true FROM generate_series(0, 60) n`, missing},
		{"by dates", `INSERT INTO goose_db_version (version_id, is_applied) VALUES (0, true), (20240301120000, true)`,
			"public.goose_db_version has migration 20240301120000, and not ours that makes tables. "},
		{"with one of ours, and by dates", `INSERT INTO goose_db_version (version_id, is_applied) VALUES (0, true), (1, true), (20240301120000, true)`,
			"public.goose_db_version has migration 20240301120000, and not ours that makes tables. "},
		{"of one migration", `INSERT INTO goose_db_version (version_id, is_applied) VALUES (0, true), (1, true)`,
			"public.goose_db_version has migration 1, and nothing tells whether it is ours. "},
		{"and a table of the name of ours", `INSERT INTO goose_db_version (version_id, is_applied) SELECT n, true FROM generate_series(0, 6) n; CREATE TABLE public.api_tokens (n int)`, missing},
		{"of somebody else's", `ALTER TABLE goose_db_version OWNER TO pg_monitor`, "public.goose_db_version belongs to role pg_monitor, "},
		{"of a superuser's", `DO 'BEGIN EXECUTE format(''ALTER TABLE goose_db_version OWNER TO %I'', (SELECT rolname FROM pg_roles WHERE oid = 10)); END'`, "public.goose_db_version belongs to "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.Empty(t)
			super := pgtest.Connect(t, database.Super)
			exec(t, super, `CREATE TABLE goose_db_version (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, version_id bigint NOT NULL, is_applied boolean NOT NULL, tstamp timestamp NOT NULL DEFAULT now());
				ALTER TABLE goose_db_version OWNER TO plantstore_owner; `+tt.sql)
			history := func(table string) (rows string) {
				t.Helper()
				if err := super.QueryRow(t.Context(), `SELECT coalesce(string_agg(h::text, '; ' ORDER BY h.id), '') FROM `+table+` h`).Scan(&rows); err != nil {
					t.Fatal(err)
				}
				return rows
			}
			before := history("public.goose_db_version")
			const remedy = "CREATE SCHEMA store_migrations; ALTER TABLE public.goose_db_version SET SCHEMA store_migrations;"
			for name, err := range everyCommand(t, database.Owner) {
				if err == nil || !strings.HasPrefix(err.Error(), tt.want) || !strings.Contains(err.Error(), remedy) {
					t.Errorf("%s: %v, want %s... %s", name, err, tt.want, remedy)
				}
			}
			exec(t, super, remedy+` DROP TABLE IF EXISTS public.api_tokens`)
			if _, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
				t.Fatalf("Up once it is elsewhere: %v", err)
			}
			if after := history("store_migrations.goose_db_version"); after != before {
				t.Errorf("the history is %s, want %s", after, before)
			}
		})
	}
}

// Ours is known by the table that it made, too, where the comment on goose's table is a DBA's.
func TestOurHistoryUnderACommentOfOthers(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	exec(t, pgtest.Connect(t, database.Super), `COMMENT ON TABLE goose_db_version IS 'migrations of the store'`)
	if _, err := migrate.Service().DownTo(t.Context(), database.Owner, 1, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	if changes, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{}); len(changes) != 5 || err != nil {
		t.Errorf("Up after DownTo(1): %d applied, %v; want 5", len(changes), err)
	}
}

// A table of somebody else's that says it is ours is not: to look for rows there has the
// planner run what its owner put into an index, and may run a policy.
func TestDownRunsNothingOfATableThatClaimsToBeOurs(t *testing.T) {
	t.Parallel()
	const claimed = `COMMENT ON TABLE plants IS 'created by plantstore';
		CREATE FUNCTION trap() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN true; END';
		ALTER TABLE plants OWNER TO plantstore_app; GRANT ALL ON plants TO plantstore_owner WITH GRANT OPTION;`
	// Its Down looks for rows. Those of later ones do not get that far.
	first := migrate.All()[0]
	text, err := migrations.Files.ReadFile(first.Name)
	if err != nil {
		t.Fatal(err)
	}
	set := migrate.Set{Files: fstest.MapFS{first.Name: {Data: text}}}
	for _, tt := range []struct{ name, sql string }{
		{"index", `CREATE INDEX trap ON plants (trap())`},
		{"policy", `INSERT INTO plants VALUES (1); ALTER TABLE plants ENABLE ROW LEVEL SECURITY; CREATE POLICY trap ON plants USING (trap())`},
	} {
		for _, early := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, before: %v", tt.name, early), func(t *testing.T) {
				t.Parallel()
				database := pgtest.Empty(t)
				super := pgtest.Connect(t, database.Super)
				theirs := `CREATE TABLE plants (id bigint PRIMARY KEY);` + claimed + tt.sql + `;
					CREATE OR REPLACE FUNCTION trap() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RAISE EXCEPTION ''caught''; END'`
				if early {
					exec(t, super, theirs)
				}
				if _, err := set.Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
					t.Fatal(err)
				}
				if early {
					if changes, err := set.Down(t.Context(), database.Owner, migrate.Options{}); len(changes) != 1 || err != nil {
						t.Errorf("Down: %d taken back, %v; want one", len(changes), err)
					}
				} else { // whoever owns the schema may drop ours, and Down waits for that
					exec(t, super, `BEGIN; DROP TABLE plants;`+theirs)
					seen := events{on: func(e migrate.Event) {
						if e.Kind == migrate.Blocked {
							exec(t, super, `COMMIT`)
						}
					}}
					changes, err := set.Down(t.Context(), database.Owner, migrate.Options{LockTimeout: time.Minute, Notify: seen.notify})
					if len(changes) != 1 || err != nil || len(seen.of(migrate.Blocked)) != 1 {
						t.Errorf("Down: %d taken back, %v, blocked %d times; want one, blocked once", len(changes), err, len(seen.of(migrate.Blocked)))
					}
				}
				if got := query(t, super, `SELECT relowner::regrole::text FROM pg_class WHERE oid = 'plants'::regclass`); !cmp.Equal(got, []string{"plantstore_app"}) {
					t.Errorf("plants of %v, want it left to plantstore_app", got)
				}
			})
		}
	}
}

// What the owner's migrations made goes, too, where a superuser takes them back.
func TestDownByASuperuser(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	if _, err := migrate.Service().DownTo(t.Context(), database.Super, 0, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	if got := query(t, pgtest.Connect(t, database.Super), `SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'`); !cmp.Equal(got, []string{"goose_db_version"}) {
		t.Errorf("tables that stay: %v, want that of goose only", got)
	}
}

func TestEncodings(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"LATIN1", "SQL_ASCII", "UTF8"} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			database := pgtest.EmptyWith(t, `ENCODING '`+encoding+`' LC_COLLATE 'C' LC_CTYPE 'C'`)
			conn := pgtest.Connect(t, pgtest.WithParameters(database.Owner, "client_encoding=UTF8"))
			exec(t, conn, `CREATE TABLE plants (id bigint PRIMARY KEY, "größe" text); INSERT INTO plants VALUES (1, 'müßig')`)
			if _, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
				t.Fatal(err)
			}
			if p := plan(t, migrate.Service(), database.Owner); len(p.Pending) != 0 || len(p.Trouble) != 0 {
				t.Errorf("pending %v, trouble %v; want none", p.Pending, p.Trouble)
			}
			if got := applied(t, database.Owner); got != len(migrate.All()) {
				t.Errorf("%d migrations applied, want all", got)
			}
			if _, err := migrate.Service().DownTo(t.Context(), database.Owner, 0, migrate.Options{}); err != nil {
				t.Fatal(err)
			}
			exec(t, conn, `SELECT "größe" FROM plants`)
		})
	}
}

// Who shares a URL with the service has a pool's settings in it.
func TestPoolSettingsAreLeftOut(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	url := pgtest.WithParameters(database.Owner, "pool_max_conns=7&pool_max_conn_lifetime=1h&pool_health_check_period=1m")
	if _, err := migrate.Service().Up(t.Context(), url, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	if got := applied(t, url); got != len(migrate.All()) {
		t.Errorf("%d migrations applied, want all", got)
	}
}

// Who owns the database can rename its schemas while a superuser looks at it or migrates it, and
// choose what sessions in it begin with.
func TestWhileSchemasAreRenamed(t *testing.T) {
	t.Parallel()
	pgtest.WhileSchemasSwap(t, func(t *testing.T, database pgtest.Database) {
		migrateUnheard(t, database, 10, true)
	})
}

// Where there is no schema, a superuser is told that, and not to try again.
func TestASuperuserWithoutTheSchema(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	exec(t, pgtest.Connect(t, database.Super), `DROP SCHEMA public`)
	_, _, status := migrate.Service().Status(t.Context(), database.Super)
	_, plan := migrate.Service().Plan(t.Context(), database.Super)
	_, up := migrate.Service().Up(t.Context(), database.Super, migrate.Options{})
	for name, err := range map[string]error{"status": status, "plan": plan, "up": up} {
		if !errors.Is(err, migrate.ErrNoSchema) {
			t.Errorf("%s: %v, want %v", name, err, migrate.ErrNoSchema)
		}
	}
}

// migrateUnheard has a superuser look at a database and, if writes, migrate it, so many times. Whether
// that succeeds is of no interest.
func migrateUnheard(t *testing.T, database pgtest.Database, times int, writes bool) {
	t.Helper()
	set := extended(t, map[string]string{"00101_a.sql": "-- +goose Up\nSELECT 1;\n", "00102_b.sql": "-- +goose NO TRANSACTION\n-- +goose Up\nSELECT 1;\n"})
	for range times {
		_, _, _ = set.Status(t.Context(), database.Super)
		_, _ = set.Plan(t.Context(), database.Super)
		if writes {
			_, _ = set.Up(t.Context(), database.Super, migrate.Options{})
			_, _ = set.DownTo(t.Context(), database.Super, 6, migrate.Options{})
		}
	}
}

// It can also put a view in place of a table, or where none is yet.
func TestWhileTablesAreReplaced(t *testing.T) {
	t.Parallel()
	const out, in = `ALTER VIEW public.goose_db_version SET SCHEMA other; ALTER VIEW public.plantstore_migrations SET SCHEMA other`,
		`ALTER VIEW other.goose_db_version SET SCHEMA public; ALTER VIEW other.plantstore_migrations SET SCHEMA public`
	for name, swap := range map[string][]string{
		"moved": {`ALTER TABLE public.goose_db_version RENAME TO g; ALTER TABLE public.plantstore_migrations RENAME TO p; ` + in,
			out + `; ALTER TABLE public.g RENAME TO goose_db_version; ALTER TABLE public.p RENAME TO plantstore_migrations`},
		"missing": {`DROP TABLE IF EXISTS public.goose_db_version, public.plantstore_migrations; ` + in, out},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			stop := pgtest.SwapSchemas(t, database, swap...)
			migrateUnheard(t, database, 30, name == "moved")
			stop()
		})
	}
}

// What is written down of migrations runs nobody else's code, whoever migrates.
func TestTriggersOfOthers(t *testing.T) {
	t.Parallel()
	const spy = `CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''caught''; END'; ALTER FUNCTION spy() OWNER TO plantstore_app; `
	const hush = `CREATE FUNCTION hush() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; ALTER FUNCTION hush() OWNER TO plantstore_owner; `
	for _, tt := range []struct{ name, sql, remedy string }{
		{"of the history", spy + `CREATE TRIGGER "Spy" AFTER INSERT OR DELETE ON goose_db_version EXECUTE FUNCTION spy()`, `DROP TRIGGER "Spy" ON public.goose_db_version;`},
		{"of checksums", spy + `CREATE CONSTRAINT TRIGGER spy AFTER INSERT OR DELETE ON plantstore_migrations DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION spy()`, `DROP TRIGGER spy ON public.plantstore_migrations;`},
		{"with a condition", hush + `CREATE TRIGGER hush AFTER INSERT OR DELETE ON goose_db_version WHEN (query_to_xml('SELECT 1', true, true, '') IS NOT NULL) EXECUTE FUNCTION hush()`, `DROP TRIGGER hush ON public.goose_db_version;`},
		{"that somebody may make", hush + `GRANT TRIGGER ON goose_db_version TO plantstore_app; CREATE TRIGGER hush AFTER INSERT OR DELETE ON goose_db_version EXECUTE FUNCTION hush('x')`, `DROP TRIGGER hush ON public.goose_db_version;`},
		{"of a table that refers to it", spy + `CREATE TABLE log (id int CONSTRAINT "To us" REFERENCES goose_db_version ON DELETE CASCADE); ALTER TABLE log OWNER TO plantstore_app;
			INSERT INTO log SELECT id FROM goose_db_version; CREATE TRIGGER spy BEFORE DELETE ON log EXECUTE FUNCTION spy()`, `ALTER TABLE public.log DROP CONSTRAINT "To us";`},
		{"with long names", spy + `CREATE TRIGGER ` + strings.Repeat("long", 15) + ` AFTER INSERT OR DELETE ON goose_db_version EXECUTE FUNCTION spy()`, `DROP TRIGGER ` + strings.Repeat("long", 15) + ` ON public.goose_db_version;`},
		{"with a condition of others", hush + `CREATE FUNCTION fine(int) RETURNS boolean LANGUAGE sql AS 'SELECT true'; CREATE TRIGGER hush AFTER INSERT ON goose_db_version FOR EACH ROW WHEN (fine(NEW.id)) EXECUTE FUNCTION hush(); ALTER FUNCTION fine OWNER TO plantstore_app`,
			`DROP TRIGGER hush ON public.goose_db_version;`},
		{"with a condition that somebody may make", hush + `GRANT TRIGGER ON goose_db_version TO plantstore_app; CREATE TRIGGER hush AFTER INSERT ON goose_db_version FOR EACH ROW WHEN (NEW.id > 0) EXECUTE FUNCTION hush()`,
			`DROP TRIGGER hush ON public.goose_db_version;`},
		{"of a table that others may make triggers on", `CREATE TABLE log (id int CONSTRAINT to_us REFERENCES goose_db_version ON DELETE SET DEFAULT); GRANT TRIGGER ON log TO plantstore_app`,
			`ALTER TABLE public.log DROP CONSTRAINT to_us;`},
		{"of a table whose owner took his own rights", `CREATE TABLE log (id int CONSTRAINT to_us REFERENCES goose_db_version ON DELETE CASCADE); ALTER TABLE log OWNER TO plantstore_app; REVOKE ALL ON log FROM plantstore_app`,
			`ALTER TABLE public.log DROP CONSTRAINT to_us;`},
		{"that are trusted", hush + `CREATE TRIGGER hush AFTER INSERT OR DELETE ON goose_db_version EXECUTE FUNCTION hush()`, ""},
		{"that are disabled", spy + `CREATE TRIGGER spy AFTER INSERT OR DELETE ON goose_db_version EXECUTE FUNCTION spy(); ALTER TABLE goose_db_version DISABLE TRIGGER spy`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			super := pgtest.Connect(t, database.Super)
			exec(t, super, tt.sql)
			set := extended(t, map[string]string{"00101_a.sql": "-- +goose Up\nCREATE TABLE public.a ();\n", "00102_b.sql": "-- +goose NO TRANSACTION\n-- +goose Up\nSELECT 1;\n-- +goose Down\nSELECT 1;\n"})
			migrates := func(up bool, url string) error {
				run := set.Down
				if up {
					run = set.Up
				}
				_, err := run(t.Context(), url, migrate.Options{})
				return err
			}
			if tt.remedy != "" {
				for _, url := range []string{database.Owner, database.Super} {
					for _, up := range []bool{true, false} {
						if err := migrates(up, url); err == nil || !strings.Contains(err.Error(), "others could act with your rights: ") || !strings.HasSuffix(err.Error(), "drop it: "+tt.remedy) {
							t.Errorf("up %v: %v, want it refused, and the remedy %s", up, err, tt.remedy)
						}
					}
				}
				if got := applied(t, database.Owner); got != len(migrate.All()) {
					t.Errorf("%d migrations applied, want those of before", got)
				}
				// What was applied by something else is not written down either.
				exec(t, super, `SET session_replication_role = replica; DELETE FROM plantstore_migrations; RESET session_replication_role`)
				if _, err := migrate.Service().Up(t.Context(), database.Super, migrate.Options{}); err == nil || !strings.Contains(err.Error(), "others could act") {
					t.Errorf("up with nothing to do but write checksums: %v, want it refused", err)
				}
				exec(t, super, tt.remedy)
			}
			if err := migrates(true, database.Super); err != nil {
				t.Errorf("up: %v, want none", err)
			}
			if err := migrates(false, database.Owner); err != nil {
				t.Errorf("down: %v, want none", err)
			}
		})
	}
}

// While a superuser reads, the schema keeps its name, whatever the database's settings are. Nobody
// else is kept from giving rights on it.
func TestHoldingKeepsTheName(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"", "default_transaction_read_only = on", "role = plantstore_app"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			other := pgtest.Connect(t, database.Super)
			if setting != "" {
				exec(t, other, `ALTER DATABASE `+pgx.Identifier{database.Name}.Sanitize()+` SET `+setting)
			}
			exec(t, other, `SET lock_timeout = '100ms'`)
			conn, err := migrate.Connect(t.Context(), database.Super, "plantstore")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			err = migrate.Holding(t.Context(), conn, []string{"api_tokens"}, func(tx pgx.Tx) error {
				exec(t, other, `GRANT USAGE ON SCHEMA public TO pg_monitor`)
				for _, sql := range []string{`ALTER SCHEMA public RENAME TO elsewhere`, `DROP TABLE api_tokens`, `ALTER TABLE api_tokens RENAME TO elsewhere`} {
					if _, err := other.Exec(t.Context(), sql); !migrate.IsLockTimeout(err) {
						t.Errorf("%s: %v, want it to wait", sql, err)
					}
				}
				var role, readOnly string
				if err := tx.QueryRow(t.Context(), `SELECT current_user::text, current_setting('transaction_read_only')`).Scan(&role, &readOnly); err != nil {
					return err
				}
				if want, chosen := strings.CutPrefix(setting, "role = "); chosen && role != want || readOnly != "on" {
					t.Errorf("role %s, read only: %s; want %s, on", role, readOnly, setting)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			exec(t, other, `ALTER SCHEMA public RENAME TO elsewhere`)
		})
	}
}

// What is renamed while somebody waits for its lock is locked no more. Then it is looked at anew.
func TestHoldingWaitsForADecoy(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	other := pgtest.Connect(t, database.Super)
	exec(t, other, `CREATE SCHEMA evil; CREATE TABLE evil.api_tokens (n int); ALTER TABLE evil.api_tokens OWNER TO plantstore_app`)
	conn, err := migrate.Connect(t.Context(), database.Super, "plantstore")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	exec(t, other, `BEGIN; ALTER SCHEMA public RENAME TO elsewhere; ALTER SCHEMA evil RENAME TO public`)
	done := make(chan error, 1)
	go func() {
		done <- migrate.Holding(t.Context(), conn, []string{"api_tokens"}, func(pgx.Tx) error { return errors.New("held") })
	}()
	for len(query(t, other, `SELECT pid::text FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'`, int32(conn.PgConn().PID()))) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	exec(t, other, `COMMIT`)
	if foreign, ok := errors.AsType[*migrate.ForeignTableError](<-done); !ok || foreign.Table != "public.api_tokens" {
		t.Errorf("Holding: %v, want it to see that api_tokens is somebody else's", foreign)
	}
}

// A run of a superuser's waits for nothing of its own: it gives rights on the schema whose name it
// keeps.
func TestMigrationsThatGrantOnTheSchema(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	set := extended(t, map[string]string{"00101_a.sql": "-- +goose Up\nGRANT USAGE ON SCHEMA public TO pg_monitor;\n-- +goose Down\nREVOKE USAGE ON SCHEMA public FROM pg_monitor;\n"})
	if _, err := set.Up(t.Context(), database.Super, migrate.Options{}); err != nil {
		t.Error(err)
	}
	if _, err := set.DownTo(t.Context(), database.Super, 0, migrate.Options{}); err != nil {
		t.Error(err)
	}
}

// While a migration runs nobody makes a trigger on what it is written down in, whoever migrates; and
// while one is taken back by a superuser, no table of ours becomes somebody else's.
func TestARunKeepsTheTablesAsTheyAre(t *testing.T) {
	t.Parallel()
	const wait = `SELECT pg_catalog.pg_advisory_xact_lock(1);`
	triggers := []string{}
	for _, table := range migrate.History {
		triggers = append(triggers, `CREATE TRIGGER plantstore_spy AFTER INSERT ON `+table+` EXECUTE FUNCTION spy()`)
	}
	moves := []string{`ALTER TABLE api_tokens RENAME TO elsewhere`, `ALTER TABLE plant_deletions OWNER TO plantstore_app`, `DROP TABLE plantstore_budgets`}
	for _, tt := range []struct {
		name  string
		super bool
		up    bool
		keeps []string
	}{
		{"up by the owner", false, true, triggers},
		{"up by a superuser", true, true, append(triggers, `ALTER SCHEMA public RENAME TO elsewhere`)},
		{"down by the owner", false, false, triggers},
		{"down by a superuser", true, false, append(triggers, append(moves, `ALTER SCHEMA public RENAME TO elsewhere`)...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			other := pgtest.Connect(t, database.Super)
			exec(t, other, `CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
			set := extended(t, map[string]string{"00101_a.sql": "-- +goose Up\n" + wait + "\n-- +goose Down\n" + wait + "\n"})
			url := database.Owner
			if tt.super {
				url = database.Super
			}
			run := set.Up
			if !tt.up {
				if _, err := set.Up(t.Context(), url, migrate.Options{}); err != nil {
					t.Fatal(err)
				}
				run = set.Down
			}
			exec(t, other, `SELECT pg_advisory_lock(1)`)
			done := make(chan error, 1)
			go func() {
				_, err := run(t.Context(), url, migrate.Options{LockTimeout: time.Minute})
				done <- err
			}()
			for len(query(t, other, `SELECT pid::text FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)) == 0 {
				select {
				case err := <-done:
					t.Fatalf("the run has ended before it waited: %v", err)
				case <-time.After(10 * time.Millisecond):
				}
			}
			exec(t, other, `SET lock_timeout = '100ms'`)
			for _, sql := range tt.keeps {
				if _, err := other.Exec(t.Context(), sql); !migrate.IsLockTimeout(err) {
					t.Errorf("%s: %v, want it to wait", sql, err)
				}
			}
			exec(t, other, `SELECT pg_advisory_unlock(1)`)
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// What becomes somebody else's after it was looked at, before a migration or by one, is neither
// read nor written.
func TestAHistoryThatIsReplacedDuringARun(t *testing.T) {
	t.Parallel()
	const replace = ` ALTER TABLE public.goose_db_version RENAME TO genuine; CREATE TABLE public.goose_db_version (LIKE public.genuine INCLUDING ALL);
		INSERT INTO public.goose_db_version SELECT * FROM public.genuine; ALTER TABLE public.goose_db_version OWNER TO plantstore_app; GRANT ALL ON public.goose_db_version TO PUBLIC;`
	const nothing = "-- +goose Up\nSELECT 1;\n-- +goose Down\nSELECT 1;\n"
	const byItself = "-- +goose Up\n-- +goose StatementBegin\nDO $$BEGIN IF current_setting('test.up', true) = 'yes' THEN" + replace + " END IF; END$$;\n-- +goose StatementEnd\n" +
		"-- +goose Down\n-- +goose StatementBegin\nDO $$BEGIN" + replace + "END$$;\n-- +goose StatementEnd\n"
	const outside = "-- +goose NO TRANSACTION\n"
	for _, tt := range []struct {
		name, file string
		super      bool // who migrates
	}{
		{"before it begins", nothing, false},
		{"before it begins, with a superuser", nothing, true},
		{"before it begins, outside of a transaction", outside + nothing, false},
		{"before it begins, outside of a transaction, with a superuser", outside + nothing, true},
		{"by itself", byItself, true},
		{"by itself, outside of a transaction", outside + byItself, true},
	} {
		for _, up := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, up %t", tt.name, up), func(t *testing.T) {
				t.Parallel()
				database := pgtest.New(t)
				super := pgtest.Connect(t, database.Super)
				set, url := extended(t, map[string]string{"00101_a.sql": tt.file}), database.Owner
				if tt.super {
					url = database.Super
				}
				run := set.Up
				if up {
					exec(t, super, `ALTER DATABASE `+database.Name+` SET test.up = 'yes'`)
				} else {
					run = set.Down
					if _, err := set.Up(t.Context(), url, migrate.Options{}); err != nil {
						t.Fatal(err)
					}
				}
				seen := events{on: func(e migrate.Event) {
					if e.Kind == migrate.Started && strings.Contains(tt.file, nothing) {
						exec(t, super, replace)
					}
				}}
				const want = "public.goose_db_version belongs to role plantstore_app"
				if _, err := run(t.Context(), url, migrate.Options{Notify: seen.notify}); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v; want it refused, as %s", err, want)
				}
			})
		}
	}
}
