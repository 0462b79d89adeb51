package roles_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.yaml.in/yaml/v3"

	roles "plantstore/deploy/postgres"
	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/internal/readme"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// A server has neither of the service's roles, but these: admin may make roles, owner
// may, too, and owns the database store, shop has the table plants where there is one.
type server struct{ *localpg.Server }

func newServer(t *testing.T) server {
	t.Helper()
	s, err := localpg.Start(t.Context(), localpg.Options{Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	server{s}.exec(t, "postgres", "postgres", `CREATE ROLE admin LOGIN CREATEROLE`, `CREATE ROLE owner LOGIN CREATEROLE`, `CREATE ROLE shop LOGIN`)
	return server{s}
}

// reset makes the database anew, and lets nothing of the roles remain.
func (s server) reset(t *testing.T, setUp string) {
	t.Helper()
	s.exec(t, "postgres", "postgres", `DROP DATABASE IF EXISTS store WITH (FORCE)`, `DROP ROLE IF EXISTS plantstore_owner, plantstore_app`, `CREATE DATABASE store OWNER owner`)
	s.exec(t, "postgres", "store", setUp)
}

func (s server) exec(t *testing.T, role, database string, statements ...string) {
	t.Helper()
	conn := s.connect(t, role, database)
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("as %s: %s: %v", role, sql, err)
		}
	}
}

func (s server) connect(t *testing.T, role, database string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL(role, database))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// statements are those of roles.sql. psql sends each by itself, so what one sets until its
// transaction ends is not there for the next.
func statements(t *testing.T) []string {
	t.Helper()
	all := strings.SplitAfter(roles.SQL, "\n$$;\n")
	if len(all) != 3 || strings.TrimSpace(all[2]) != "" {
		t.Fatalf("%d statements, want 2", len(all)-1)
	}
	return all[:2]
}

// run runs roles.sql as psql does, and returns the error's message; empty if all
// is done.
func (s server) run(t *testing.T, role string) (left string) {
	t.Helper()
	conn := s.connect(t, role, "store")
	for _, sql := range statements(t) {
		_, err := conn.Exec(t.Context(), sql)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "P0001" {
			return pg.Message
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return ""
}

// state is everything that could have been changed.
func (s server) state(t *testing.T) []string {
	t.Helper()
	rows, err := s.connect(t, "postgres", "store").Query(t.Context(), `
		SELECT 'role ' || row_to_json(r)::text FROM (SELECT rolname, rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication, rolbypassrls FROM pg_roles WHERE oid >= 16384) r
		UNION ALL SELECT 'database ' || coalesce(datacl::text, '') FROM pg_database WHERE datname = 'store'
		UNION ALL SELECT 'schema ' || coalesce(nspacl::text, '') FROM pg_namespace WHERE nspname = 'public'
		UNION ALL SELECT 'table ' || relname || ' ' || coalesce(relacl::text, '') FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
		UNION ALL SELECT 'default ' || defaclacl::text FROM pg_default_acl ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const (
	othersRights = `GRANT CREATE ON SCHEMA public TO PUBLIC; GRANT TEMPORARY ON DATABASE store TO PUBLIC;`
	adopted      = `CREATE TABLE plants (id bigint PRIMARY KEY, name text); INSERT INTO plants VALUES (1, 'fern'); ALTER TABLE plants OWNER TO shop;`

	left      = "this is left to do in database store, then run roles.sql again:"
	makeRoles = "\n-- for a role with CREATEROLE:\nCREATE ROLE plantstore_owner LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;" +
		"\n-- for a role with CREATEROLE:\nCREATE ROLE plantstore_app LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOINHERIT;"
	connect  = "\n-- for owner, who owns the database:\nGRANT CONNECT ON DATABASE store TO plantstore_owner, plantstore_app;"
	create   = "\n-- for owner, who owns the schema:\nGRANT USAGE, CREATE ON SCHEMA public TO plantstore_owner;"
	usage    = "\n-- for owner, who owns the schema:\nGRANT USAGE ON SCHEMA public TO plantstore_app;"
	onPlants = "\n-- for shop, who owns the table:\nGRANT TRIGGER, INSERT ON public.plants TO plantstore_owner;" +
		"\n-- for shop, who owns the table:\nGRANT SELECT, DELETE ON public.plants TO plantstore_owner WITH GRANT OPTION;"
)

func TestRoles(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, setUp, role string
		left              string // what it says is left to do
	}{
		{"superuser", ``, "postgres", ``},
		{"superuser, adopted table", adopted, "postgres", ``},
		{"superuser, others have rights", othersRights, "postgres", ``},
		{"superuser, nobody has rights", `REVOKE ALL ON DATABASE store FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC`, "postgres", ``},
		{"owner", othersRights, "owner", ``},
		{"owner of the table, too", adopted + `ALTER TABLE plants OWNER TO owner`, "owner", ``},
		{"owner, a table of somebody else's", adopted, "owner", left + onPlants},
		{"admin", ``, "admin", left + create},
		{"admin, nobody has rights", adopted + `REVOKE ALL ON SCHEMA public FROM PUBLIC; REVOKE ALL ON DATABASE store FROM PUBLIC; GRANT CONNECT ON DATABASE store TO admin`, "admin",
			left + connect + create + usage + onPlants},
		{"somebody", ``, "shop", left + makeRoles + connect + create + usage},
	}
	s := newServer(t)
	for _, tt := range tests { // one after the other: the roles are the server's
		t.Run(tt.name, func(t *testing.T) {
			s.reset(t, tt.setUp)
			everybody := `SELECT has_schema_privilege('shop', 'public', 'CREATE') || ' ' || has_database_privilege('shop', 'store', 'TEMPORARY')
				|| ' ' || has_schema_privilege('shop', 'public', 'USAGE') || ' ' || has_database_privilege('shop', 'store', 'CONNECT')`
			rights := func() (all string) {
				t.Helper()
				if err := s.connect(t, "postgres", "store").QueryRow(t.Context(), everybody).Scan(&all); err != nil {
					t.Fatal(err)
				}
				return all
			}
			before := rights()
			if diff := cmp.Diff(tt.left, s.run(t, tt.role)); diff != "" {
				t.Errorf("left to do (-want +got):\n%s", diff)
			}
			if tt.left != "" {
				s.exec(t, "postgres", "store", strings.TrimPrefix(tt.left, left))
				if again := s.run(t, tt.role); again != "" {
					t.Errorf("once that was done: %s", again)
				}
			}
			state := s.state(t)
			if again := s.run(t, tt.role); again != "" {
				t.Errorf("again: %s", again)
			}
			if diff := cmp.Diff(state, s.state(t)); diff != "" {
				t.Errorf("running it again changed something (-before +after):\n%s", diff)
			}
			if after := rights(); after != before {
				t.Errorf("rights of others were %s, are %s", before, after)
			}

			// The roles can do their job.
			if _, err := migrate.Service().Up(t.Context(), s.URL("plantstore_owner", "store"), migrate.Options{}); err != nil {
				t.Fatal(err)
			}
			s.exec(t, "plantstore_app", "store", `DELETE FROM public.plants WHERE id = 1`)
		})
	}
}

// The operator's manual says who may grant what doctor asks for.
func TestWhoMayGrantStatistics(t *testing.T) {
	t.Parallel()
	const grant = `GRANT pg_read_all_stats TO plantstore_owner`
	if guide := readme.Read(t, "deploy/README.md"); !strings.Contains(guide, "psql -d plantstore -c '"+grant+"'\n") {
		t.Fatalf("deploy/README.md does not have %q", grant)
	}
	s := newServer(t)
	s.reset(t, ``)
	if left := s.run(t, "owner"); left != "" {
		t.Fatal(left)
	}
	may := func(role string) bool {
		t.Helper()
		_, err := s.connect(t, role, "store").Exec(t.Context(), grant)
		if pg, ok := errors.AsType[*pgconn.PgError](err); err != nil && (!ok || pg.Code != "42501") {
			t.Fatal(err)
		}
		return err == nil
	}
	var version int
	if err := s.connect(t, "postgres", "store").QueryRow(t.Context(), `SELECT current_setting('server_version_num')::int / 10000`).Scan(&version); err != nil {
		t.Fatal(err)
	}
	if got, want := may("owner"), version < 16; got != want {
		t.Errorf("on PostgreSQL %d, CREATEROLE is enough: %v, want %v", version, got, want)
	}
	s.exec(t, "postgres", "store", `GRANT pg_read_all_stats TO owner WITH ADMIN OPTION`)
	for _, role := range []string{"owner", "postgres"} {
		if !may(role) {
			t.Errorf("%s may not, want it to be allowed", role)
		}
	}
}

// The DBA who runs it may be a superuser, in a database where others make objects.
func TestRolesRunNothingOfOthers(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	sprung := pgtest.SetTraps(t, database)
	conn, err := pgx.Connect(t.Context(), pgtest.WithParameters(database.Super, "application_name=plantstore"))
	if err != nil {
		t.Fatal(err)
	}
	run := func() (left string) {
		t.Helper()
		for _, sql := range statements(t) {
			_, err := conn.Exec(t.Context(), sql)
			if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "P0001" {
				left = pg.Message
			} else if err != nil {
				t.Errorf("%v, want no error", err)
			}
		}
		return left
	}
	if left := run(); left != "" {
		t.Errorf("a superuser is told: %s", left)
	}
	if _, err := conn.Exec(t.Context(), `REVOKE CREATE ON SCHEMA public FROM plantstore_owner; SET ROLE pg_monitor`); err != nil {
		t.Fatal(err)
	}
	if left := run(); !strings.Contains(left, "GRANT USAGE, CREATE ON SCHEMA public TO plantstore_owner") {
		t.Errorf("who may do nothing is told: %q, want what is left", left)
	}
	conn.Close(t.Context())
	if got := sprung(); len(got) != 0 {
		t.Errorf("these were run: %v", got)
	}
}

// psql stops at the first error.
func TestRolesStopAtTheFirstError(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	first, rest, _ := strings.Cut(string(file), "\n\\set ON_ERROR_STOP on\n")
	for line := range strings.Lines(first) {
		if !strings.HasPrefix(line, "--") && strings.TrimSpace(line) != "" {
			t.Errorf("%q comes before ON_ERROR_STOP", line)
		}
	}
	if !strings.Contains(rest, "DO $$") || strings.Contains(roles.SQL, `\set`) {
		t.Error("want ON_ERROR_STOP set in the file, and no command of psql in what is embedded")
	}
}

// What CloudNativePG is told to do makes the roles and rights that roles.sql makes, and
// the operator, who sets every attribute of a role, leaves them as they are.
func TestKubernetesMakesTheRoles(t *testing.T) {
	t.Parallel()
	file, err := os.Open("../kubernetes/base/database.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var cluster struct {
		Kind string
		Spec struct {
			Bootstrap struct {
				Initdb struct {
					Database   string
					Statements []string `yaml:"postInitApplicationSQL"`
				}
			}
			Managed struct {
				Roles []managedRole
			}
		}
	}
	if err := yaml.NewDecoder(file).Decode(&cluster); err != nil || cluster.Kind != "Cluster" {
		t.Fatalf("the first object of database.yaml is a %q, %v; want a Cluster", cluster.Kind, err)
	}
	s := newServer(t)
	const nobodyElse = `REVOKE ALL ON DATABASE store FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC`
	s.reset(t, nobodyElse)
	if left := s.run(t, "postgres"); left != "" {
		t.Fatal(left)
	}
	want := s.state(t)
	s.reset(t, nobodyElse)
	for _, sql := range cluster.Spec.Bootstrap.Initdb.Statements {
		s.exec(t, "postgres", "store", strings.ReplaceAll(sql, " DATABASE "+cluster.Spec.Bootstrap.Initdb.Database+" ", " DATABASE store "))
	}
	if diff := cmp.Diff(want, s.state(t)); diff != "" {
		t.Errorf("roles and rights (-roles.sql +CloudNativePG):\n%s", diff)
	}
	rows, err := s.connect(t, "postgres", "store").Query(t.Context(), `SELECT rolname, rolcanlogin, rolinherit, rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls
		FROM pg_roles WHERE rolname LIKE 'plantstore%' ORDER BY rolname DESC`)
	if err != nil {
		t.Fatal(err)
	}
	made, err := pgx.CollectRows(rows, pgx.RowToStructByPos[managedRole])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(made, cluster.Spec.Managed.Roles); diff != "" {
		t.Errorf("roles (-made +managed):\n%s", diff)
	}
}

// A managedRole is a role as CloudNativePG keeps it. What is not said is false, but for
// inherit, which is true: so it has to be said.
type managedRole struct {
	Name                                                    string
	Login, Inherit                                          bool
	Superuser, CreateDB, CreateRole, Replication, BypassRLS bool
}
