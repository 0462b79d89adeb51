package migrate_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/migrations"
)

// adopted returns a database that has a store's own table of plants, with rows.
func adopted(t *testing.T) (pgtest.Database, *pgx.Conn) {
	t.Helper()
	database := pgtest.Empty(t)
	conn := pgtest.Connect(t, database.Owner)
	exec(t, conn, `
		CREATE TABLE plants (sku text UNIQUE, id bigint PRIMARY KEY, price numeric);
		INSERT INTO plants SELECT 'sku ' || n, n, n FROM generate_series(1, 2000) n`)
	exec(t, conn, `ANALYZE plants`)
	return database, conn
}

// extended returns the service's migrations and further ones, by file name.
func extended(t *testing.T, more map[string]string) migrate.Set {
	t.Helper()
	files := fstest.MapFS{}
	for _, m := range migrate.All() {
		text, err := migrations.Files.ReadFile(m.Name)
		if err != nil {
			t.Fatal(err)
		}
		files[m.Name] = &fstest.MapFile{Data: text}
	}
	for name, text := range more {
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return migrate.Set{Files: files, Effects: migrate.Effects()}
}

func plan(t *testing.T, set migrate.Set, url string) migrate.Plan {
	t.Helper()
	p, err := set.Plan(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func troubles(p migrate.Plan) []string {
	all := []string{}
	for _, t := range p.Trouble {
		all = append(all, string(t.Kind)+": "+t.Message)
	}
	return all
}

func TestEveryStatementHasItsEffect(t *testing.T) {
	t.Parallel()
	effects := migrate.Effects()
	for _, m := range migrate.All() {
		statements, transaction, err := migrate.StatementsOf(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := len(effects[m.Version]), len(statements); got != want {
			t.Errorf("%s has %d effects, want one for each of its %d statements", m.Name, got, want)
		}
		if !transaction {
			t.Errorf("%s runs outside a transaction: prove that it can be repeated, then name it here", m.Name)
		}
		for i, e := range effects[m.Version] {
			if e.Does == "" || e.Manual == "" {
				t.Errorf("effect %d of %s is %+v, want it to say what it does and where the manual says so", i+1, m.Name, e)
			}
		}
		delete(effects, m.Version)
	}
	if len(effects) > 0 {
		t.Errorf("effects of migrations that do not exist: %v", slices.Collect(maps.Keys(effects)))
	}
}

// The locks that effects claim are those that PostgreSQL takes, seen in pg_locks
// after each statement.
func TestLocksAreAsClaimed(t *testing.T) {
	t.Parallel()
	for _, tt := range []string{"new", "adopted"} {
		t.Run(tt, func(t *testing.T) {
			t.Parallel()
			database, conn := adopted(t)
			if tt == "new" {
				exec(t, conn, `DROP TABLE plants`)
			}
			exec(t, conn, `CREATE TABLE public.goose_db_version (id integer, version_id bigint, is_applied boolean, tstamp timestamp)`)
			observer := pgtest.Connect(t, database.Super)
			var major int
			if err := observer.QueryRow(t.Context(), `SELECT current_setting('server_version_num')::int / 10000`).Scan(&major); err != nil {
				t.Fatal(err)
			}
			for _, m := range migrate.All() {
				statements, _, err := migrate.StatementsOf(t.Context(), m)
				if err != nil {
					t.Fatal(err)
				}
				existing := query(t, conn, `SELECT oid::text FROM pg_class WHERE relkind IN ('r', 'p') AND oid >= 16384`)
				locks := func() []string {
					return query(t, observer, `SELECT relation::regclass || ' ' || mode FROM pg_locks
						WHERE pid = $1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
						AND relation::text = ANY ($2) AND granted ORDER BY 1`, conn.PgConn().PID(), existing)
				}
				exec(t, conn, `BEGIN`)
				before := locks()
				for i, sql := range statements {
					exec(t, conn, sql)
					after := locks()
					got := slices.DeleteFunc(slices.Clone(after), func(lock string) bool { return slices.Contains(before, lock) })
					before = after
					want := []string{}
					for _, l := range migrate.Effects()[m.Version][i].Locks {
						var oid *string
						if err := observer.QueryRow(t.Context(), `SELECT to_regclass($1)::oid::text`, l.Table).Scan(&oid); err != nil {
							t.Fatal(err)
						}
						if l.Since <= major && oid != nil && slices.Contains(existing, *oid) {
							want = append(want, strings.TrimPrefix(l.Table, "public.")+" "+l.Mode)
						}
					}
					for j, lock := range got {
						table, mode, _ := strings.Cut(lock, " ")
						got[j] = table + " " + migrate.ModeName(mode)
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("%s, statement %d: locks on existing tables (-claimed +taken):\n%s", m.Name, i+1, diff)
					}
				}
				exec(t, conn, `COMMIT`)
			}
		})
	}
}

func query(t *testing.T, conn *pgx.Conn, sql string, args ...any) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{}, all...)
}

func TestPlanOfANewDatabase(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	conn := pgtest.Connect(t, database.Super)
	before := schema(t, conn)
	p, err := migrate.Service().Plan(t.Context(), database.Owner)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(p.Pending), len(migrate.All()); got != want || p.Version != 0 || len(p.Trouble) != 0 {
		t.Errorf("%d migrations pending, version %d, trouble %v; want %d, version 0, none", got, p.Version, p.Trouble, want)
	}
	for _, pending := range p.Pending {
		if pending.Verdict != migrate.Safe || !pending.Transaction {
			t.Errorf("%s: %s, in a transaction: %v; want safe where nobody uses the tables, and true", pending.Name, pending.Verdict, pending.Transaction)
		}
	}
	if diff := cmp.Diff(before, schema(t, conn)); diff != "" {
		t.Errorf("the plan changed the database (-before +after):\n%s", diff)
	}

	if _, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	p, err = migrate.Service().Plan(t.Context(), database.Owner)
	if err != nil {
		t.Fatal(err)
	}
	want := migrate.Plan{Database: database.Name, Version: migrate.Latest(), Binary: migrate.Latest(),
		Pending: []migrate.PendingMigration{}, Trouble: []migrate.Trouble{}, Cautions: []migrate.Trouble{}, Unrecorded: []migrate.Migration{}, Baselines: []migrate.Migration{}}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("plan after Up (-want +got):\n%s", diff)
	}
}

// A store's own table is neither rewritten nor read, and locked for no longer
// than it takes to add a trigger.
func TestPlanOfAnAdoption(t *testing.T) {
	t.Parallel()
	database, conn := adopted(t)
	p, err := migrate.Service().Plan(t.Context(), database.Owner)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, pending := range p.Pending {
		for _, s := range pending.Statements {
			if s.Verdict == migrate.Safe {
				continue // from PostgreSQL 18 on, GRANT takes the lock of a SELECT
			}
			for _, lock := range s.Locks {
				if !lock.Exists || lock.Rows == nil || *lock.Rows != 2000 || lock.Bytes < 100_000 {
					t.Errorf("%s: lock %+v, want 2000 rows, more than 100 kB", pending.Name, lock)
				}
				got[pending.Name] += fmt.Sprintf("%s on %s: %s", lock.Mode, lock.Table, s.Verdict)
			}
		}
	}
	want := map[string]string{
		"00003_record_deletions.sql": "SHARE ROW EXCLUSIVE on public.plants: blocks writes briefly",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("locks on the store's table (-want +got):\n%s", diff)
	}

	const storage = `SELECT relfilenode::text FROM pg_class WHERE relname = 'plants' UNION ALL
		SELECT seq_tup_read::text FROM pg_stat_user_tables WHERE relname = 'plants'`
	before := query(t, conn, storage)
	if _, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, query(t, pgtest.Connect(t, database.Owner), storage)); diff != "" {
		t.Errorf("the table was rewritten or read (-before +after):\n%s", diff)
	}
}

func TestPlanOfOtherMigrations(t *testing.T) {
	t.Parallel()
	database, _ := adopted(t)
	set := extended(t, map[string]string{
		"00101_unknown.sql": "-- +goose Up\nVACUUM plants;\n",
		"00102_index.sql":   "-- +goose NO TRANSACTION\n-- +goose Up\nCREATE INDEX CONCURRENTLY i ON plants (price);\n",
		"00103_rewrite.sql": "-- +goose Up\n-- a remark\nALTER TABLE plants\n    ALTER price TYPE float8; -- all rows\nSELECT 1;\n-- +goose Down\nSELECT 2;\n",
		"00104_column.sql":  "-- +goose Up\nALTER TABLE plants ADD x int;\n",
		"00106_mode.sql":    "-- +goose Up\nSELECT 1;\n",
		"00105_short.sql":   "-- +goose Up\nSELECT 1;\nSELECT 2;\n",
	})
	all := []migrate.Lock{{Mode: "ACCESS EXCLUSIVE", Table: "public.plants"}}
	set.Effects[102] = []migrate.Effect{{Does: "builds an index", Locks: []migrate.Lock{{Mode: "SHARE UPDATE EXCLUSIVE", Table: "public.plants"}}}}
	set.Effects[103] = []migrate.Effect{{Does: "rewrites", Locks: all, Safer: "add a column, fill it in batches, swap"}, {Does: "nothing"}}
	set.Effects[104] = []migrate.Effect{{Does: "adds a column", Locks: all}}
	set.Effects[106] = []migrate.Effect{{Does: "locks", Locks: []migrate.Lock{{Mode: "SHRAE", Table: "public.plants"}}}}
	set.Effects[105] = []migrate.Effect{{Does: "one of two"}}

	got := []string{}
	for _, pending := range plan(t, set, database.Owner).Pending[len(migrate.All()):] {
		got = append(got, fmt.Sprintf("%d transaction=%v %s", pending.Version, pending.Transaction, pending.Verdict))
		for _, s := range pending.Statements {
			got = append(got, fmt.Sprintf("%s: %q", s.Verdict, s.SQL))
		}
	}
	want := []string{
		`101 transaction=true unknown`, `unknown: "VACUUM plants;"`,
		`102 transaction=false safe`, `safe: "CREATE INDEX CONCURRENTLY i ON plants (price);"`,
		`103 transaction=true rewrites or scans the table`,
		`rewrites or scans the table: "ALTER TABLE plants\n    ALTER price TYPE float8; -- all rows"`, `safe: "SELECT 1;"`,
		`104 transaction=true blocks reads and writes briefly`, `blocks reads and writes briefly: "ALTER TABLE plants ADD x int;"`,
		`105 transaction=true unknown`, `unknown: "SELECT 1;"`, `unknown: "SELECT 2;"`,
		`106 transaction=true unknown`, `unknown: "SELECT 1;"`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

// A file that can't be told from the others by a number is passed over by nobody.
func TestAFileWithoutANumber(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	set := extended(t, map[string]string{"nonsense.sql": "-- +goose Up\nSELECT 1;\n"})
	_, up := set.Up(t.Context(), database.Owner, migrate.Options{})
	_, _, status := set.Status(t.Context(), database.Owner)
	_, planned := set.Plan(t.Context(), database.Owner)
	_, statements := set.Statements(t.Context())
	for name, err := range map[string]error{"Up": up, "Status": status, "Plan": planned, "Statements": statements} {
		if want := "migration nonsense.sql: its name does not start with a number"; err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

func TestTrouble(t *testing.T) {
	t.Parallel()
	const more = "-- +goose Up\nSELECT 1;\n"
	tests := []struct {
		name    string
		applied map[string]string // beyond the service's own, when the database was migrated
		now     map[string]string // in the binary that looks
		alter   string            // in between
		want    []string
		refused bool // by up
	}{
		{name: "none", want: []string{}},
		{name: "drift", applied: map[string]string{"00101_a.sql": more}, now: map[string]string{"00101_a.sql": more + "SELECT 2;\n"},
			want: []string{`drift: 00101_a.sql has changed since it was applied here on `}},
		{name: "out of order", applied: map[string]string{"00102_b.sql": more}, now: map[string]string{"00101_a.sql": more, "00102_b.sql": more},
			want: []string{`out_of_order: 00101_a.sql is pending, but the newer 00102_b.sql is applied: 'migrate up' refuses to go back`}, refused: true},
		{name: "ahead", applied: map[string]string{"00101_a.sql": more},
			want: []string{`ahead: the database is ahead of this plantstore: migration 00101 is applied and not part of it`}},
		{name: "invalid index", alter: `UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'plant_deletions_once'::regclass`,
			want: []string{`invalid_index: index public.plant_deletions_once on public.plant_deletions is INVALID: a CREATE INDEX CONCURRENTLY of it was interrupted; it slows writes and serves no query`}},
		{name: "somebody else's index", want: []string{},
			alter: `CREATE TABLE orders (id int PRIMARY KEY); UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'orders_pkey'::regclass`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			if _, err := extended(t, tt.applied).Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
				t.Fatal(err)
			}
			exec(t, pgtest.Connect(t, database.Super), tt.alter)
			set := extended(t, tt.now)
			got := troubles(plan(t, set, database.Owner))
			if len(got) != len(tt.want) || len(got) > 0 && !strings.HasPrefix(got[0], tt.want[0]) {
				t.Errorf("plan tells %q, want %q", got, tt.want)
			}
			states, trouble, err := set.Status(t.Context(), database.Owner)
			if err != nil || len(trouble) != len(tt.want) {
				t.Errorf("status tells %v, %v; want %q", trouble, err, tt.want)
			}
			if last := states[len(states)-1]; last.Changed != (tt.name == "drift") || last.Unknown != (tt.name == "ahead") {
				t.Errorf("last state is %+v", last)
			}
			warned := []string{}
			_, err = set.Up(t.Context(), database.Owner, migrate.Options{Notify: func(e migrate.Event) {
				if e.Kind == migrate.Warned {
					warned = append(warned, e.Warning)
				}
			}})
			if refused := err != nil; refused != tt.refused {
				t.Errorf("up: %v, want it to refuse: %v", err, tt.refused)
			}
			if !tt.refused && len(warned) != len(tt.want) {
				t.Errorf("up warned of %q, want %q", warned, tt.want)
			}
		})
	}
}

// The checksums tell what was really applied: not more, when goose's own command
// did it, and nothing stale, when it took a migration back and applied another.
func TestChecksums(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	conn := pgtest.Connect(t, database.Owner)
	baselines := func(want string) {
		t.Helper()
		got := strings.Join(query(t, conn, `SELECT version::text || CASE WHEN baseline THEN ' baseline' ELSE '' END
			FROM plantstore_migrations ORDER BY version`), ", ")
		if got != want {
			t.Errorf("recorded: %s; want %s", got, want)
		}
	}
	up := func(set migrate.Set) {
		t.Helper()
		if _, err := set.Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	ours := extended(t, nil)
	// Those before the table's own were applied by the same run.
	baselines("1, 2, 3, 4, 5, 6")

	// As goose's command does: rows of its own, and no checksum.
	exec(t, conn, `TRUNCATE plantstore_migrations`)
	p := plan(t, ours, database.Owner)
	if len(p.Unrecorded) != len(migrate.All()) || len(p.Trouble) != 0 {
		t.Errorf("without checksums: unrecorded %v, trouble %v; want all, none", p.Unrecorded, p.Trouble)
	}
	exec(t, conn, `DELETE FROM goose_db_version WHERE version_id >= 5; DROP TABLE plantstore_migrations`)
	up(ours)
	baselines("1 baseline, 2 baseline, 3 baseline, 4 baseline, 5, 6")
	if p := plan(t, ours, database.Owner); len(p.Baselines) != 4 || len(p.Unrecorded) != 0 {
		t.Errorf("baselines %v, unrecorded %v; want 4, none", p.Baselines, p.Unrecorded)
	}

	// Taken back and applied again by goose, perhaps from another file.
	exec(t, conn, `DELETE FROM goose_db_version WHERE version_id = 4; INSERT INTO goose_db_version (version_id, is_applied) VALUES (4, true);
		UPDATE plantstore_migrations SET checksum = repeat('0', 64) WHERE version IN (3, 4)`)
	p = plan(t, ours, database.Owner)
	if len(p.Trouble) != 1 || !strings.Contains(p.Trouble[0].Message, "00003_record_deletions.sql has changed") || len(p.Unrecorded) != 1 {
		t.Errorf("trouble %v, unrecorded %v; want that 3 has changed, and 4", p.Trouble, p.Unrecorded)
	}

	// Our Down forgets.
	more := extended(t, map[string]string{"00101_a.sql": "-- +goose Up\nSELECT 1;\n-- +goose Down\nSELECT 2;\n"})
	up(more)
	// Another run does not forget what has changed.
	if p = plan(t, more, database.Owner); len(p.Trouble) != 1 || !strings.Contains(p.Trouble[0].Message, "00003_record_deletions.sql has changed") {
		t.Errorf("after another run: trouble %v; want that 3 has changed", p.Trouble)
	}
	if _, err := more.Down(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	if got := query(t, conn, `SELECT version::text FROM plantstore_migrations WHERE version > 100`); len(got) != 0 {
		t.Errorf("recorded after Down: %v, want nothing", got)
	}
}

// A run that did not get as far as the table of checksums leaves a note, by which
// the next one knows what was ours.
func TestChecksumsOfAPartialRun(t *testing.T) {
	t.Parallel()
	database, conn := adopted(t)
	comment := func() string {
		t.Helper()
		return query(t, conn, `SELECT coalesce(obj_description('goose_db_version'::regclass), '')`)[0]
	}
	check := func(set migrate.Set, applied int, trouble string) {
		t.Helper()
		p := plan(t, set, database.Owner)
		if got := strings.Join(troubles(p), "; "); len(p.Pending) != len(migrate.All())-applied || len(p.Unrecorded) != 0 || len(p.Baselines) != 0 || !strings.HasPrefix(got, trouble) || trouble == "" && got != "" {
			t.Errorf("%d pending, trouble %q, unrecorded %v, baselines %v; want %d, %q and nothing that something else applied",
				len(p.Pending), got, p.Unrecorded, p.Baselines, len(migrate.All())-applied, trouble)
		}
	}
	exec(t, conn, `BEGIN; INSERT INTO plants VALUES ('x', 9999)`)
	changes, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{LockTimeout: 50 * time.Millisecond, LockAttempts: 1})
	if len(changes) != 2 || err == nil {
		t.Fatalf("up: %v, %v; want 2 applied, then a lock that is not had", changes, err)
	}
	exec(t, conn, `COMMIT`)
	check(migrate.Service(), 2, "")
	check(extended(t, map[string]string{"00001_plants.sql": "-- +goose Up\nSELECT 1;\n"}), 2, "drift: 00001_plants.sql has changed since it was applied here on ")

	if _, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	check(migrate.Service(), len(migrate.All()), "")
	if got := comment(); got != "" {
		t.Errorf("comment %q, want none once the table is there", got)
	}
	if got := query(t, conn, `SELECT version::text FROM plantstore_migrations WHERE baseline`); len(got) != 0 {
		t.Errorf("baselines %v, want none", got)
	}
	if _, err := migrate.Service().DownTo(t.Context(), database.Owner, 4, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	check(migrate.Service(), 4, "")
	if _, err := migrate.Service().DownTo(t.Context(), database.Owner, 0, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	if got := comment(); got != "" {
		t.Errorf("comment %q, want none when nothing is applied", got)
	}

	// A comment of somebody else's stays. Then the next run makes baselines.
	exec(t, conn, `COMMENT ON TABLE goose_db_version IS 'the DBA''s'`)
	exec(t, conn, `BEGIN; INSERT INTO plants VALUES ('y', 9998)`)
	if _, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{LockTimeout: 50 * time.Millisecond, LockAttempts: 1}); err == nil {
		t.Fatal("up got the lock")
	}
	exec(t, conn, `COMMIT`)
	if _, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	if p := plan(t, migrate.Service(), database.Owner); comment() != "the DBA's" || len(p.Baselines) != 2 {
		t.Errorf("comment %q, baselines %v; want the DBA's, 2", comment(), p.Baselines)
	}
}
