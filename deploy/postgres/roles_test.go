package roles_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.yaml.in/yaml/v3"

	roles "plantstore/deploy/postgres"
	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
)

// A server of the test's own, as roles belong to a server. It has none of the service's roles.
// Its role owner may create roles and owns the database store. It also has a role shop.
type server struct{ *localpg.Server }

func newServer(t *testing.T) server {
	t.Helper()
	s, err := localpg.Start(t.Context(), localpg.Options{Settings: pgtest.Settings()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	server{s}.exec(t, "postgres", "postgres", `CREATE ROLE owner LOGIN CREATEROLE`, `CREATE ROLE shop LOGIN`)
	return server{s}
}

// reset makes the database anew, and lets nothing of the service's roles remain.
func (s server) reset(t *testing.T, setUp string) {
	t.Helper()
	s.exec(t, "postgres", "postgres", `DROP DATABASE IF EXISTS store WITH (FORCE)`, `DROP ROLE IF EXISTS plantstore_owner, plantstore_app`, `CREATE DATABASE store OWNER owner`)
	s.exec(t, "postgres", "store", setUp)
}

func (s server) exec(t *testing.T, role, database string, statements ...string) {
	t.Helper()
	conn := pgtest.Connect(t, s.URL(role, database))
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("as %s: %s: %v", role, sql, err)
		}
	}
	conn.Close(t.Context()) // an open connection prevents DROP DATABASE
}

// state is everything that roles.sql changes.
func (s server) state(t *testing.T) []string {
	t.Helper()
	conn := pgtest.Connect(t, s.URL("postgres", "store"))
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `
		SELECT 'role ' || row_to_json(r)::text FROM (SELECT rolname, rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication, rolbypassrls, rolconfig FROM pg_roles WHERE oid >= 16384) r
		UNION ALL SELECT 'database ' || coalesce(datacl::text, '') FROM pg_database WHERE datname = 'store'
		UNION ALL SELECT format('schema %s of %s %s', nspname, nspowner::regrole, nspacl) FROM pg_namespace WHERE nspname IN ('public', 'plantstore')
		UNION ALL SELECT 'table ' || relname || ' ' || coalesce(relacl::text, '') FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY 1`)
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
	hardened = `REVOKE ALL ON DATABASE store FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC; GRANT CONNECT ON DATABASE store TO shop;`
	adopted  = `CREATE TABLE plants (id bigint PRIMARY KEY, name text); INSERT INTO plants VALUES (1, 'fern'); ALTER TABLE plants OWNER TO `
)

// After any permitted role runs the file, both roles can do their job. Running it again changes
// nothing.
func TestRolesFileGrantsWhatTheRolesNeed(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, test := range []struct{ name, setUp, role string }{ // one after the other: the roles are the server's
		{"superuser", ``, "postgres"},
		{"superuser, hardened", hardened, "postgres"},
		{"superuser, a table of somebody else's", hardened + adopted + `shop`, "postgres"},
		{"owner", ``, "owner"},
		{"owner, hardened", hardened + adopted + `owner`, "owner"},
	} {
		s.reset(t, test.setUp)
		s.exec(t, test.role, "store", roles.SQL)
		state := s.state(t)
		s.exec(t, test.role, "store", roles.SQL)
		if diff := cmp.Diff(state, s.state(t)); diff != "" {
			t.Errorf("%s: running it again changed something (-before +after):\n%s", test.name, diff)
		}
		if _, err := migrate.Up(t.Context(), s.URL("plantstore_owner", "store"), migrate.Options{}); err != nil {
			t.Errorf("%s: migrate up: %v", test.name, err)
		}
		s.exec(t, "plantstore_app", "store", `DELETE FROM public.plants WHERE id = 1`)
		if _, err := migrate.Down(t.Context(), s.URL("plantstore_owner", "store"), 3, migrate.Options{}); err != nil {
			t.Errorf("%s: migrate down: %v", test.name, err)
		}
	}
}

// psql runs the file as it is, and the service's sessions have the settings.
func TestRolesFileSetsTheServicesSettings(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.reset(t, ``)
	if out, err := exec.CommandContext(t.Context(), "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "roles.sql", s.URL("postgres", "store")).CombinedOutput(); err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
	conn := pgtest.Connect(t, s.URL("plantstore_app", "store"))
	for name, want := range map[string]string{"synchronous_commit": "on", "transaction_isolation": "read committed", "plan_cache_mode": "force_generic_plan", "enable_seqscan": "off",
		"jit": "off", "client_min_messages": "warning", "lock_timeout": "1s", "statement_timeout": "15s", "idle_in_transaction_session_timeout": "15s"} {
		var got string
		if err := conn.QueryRow(t.Context(), `SHOW `+name).Scan(&got); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", name, got, err, want)
		}
	}
}

// CloudNativePG makes the roles and rights that roles.sql makes, and its operator, which sets
// every attribute of a role, leaves them as they are.
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
			Managed struct{ Roles []managedRole }
		}
	}
	if err := yaml.NewDecoder(file).Decode(&cluster); err != nil || cluster.Kind != "Cluster" {
		t.Fatalf("the first object of database.yaml: got a %q, %v, want a Cluster", cluster.Kind, err)
	}
	s := newServer(t)
	s.reset(t, hardened)
	s.exec(t, "postgres", "store", roles.SQL)
	want := s.state(t)
	s.reset(t, hardened)
	for _, sql := range cluster.Spec.Bootstrap.Initdb.Statements {
		s.exec(t, "postgres", "store", strings.ReplaceAll(sql, " DATABASE "+cluster.Spec.Bootstrap.Initdb.Database+" ", " DATABASE store "))
	}
	if diff := cmp.Diff(want, s.state(t)); diff != "" {
		t.Errorf("roles and rights (-roles.sql +CloudNativePG):\n%s", diff)
	}
	rows, err := pgtest.Connect(t, s.URL("postgres", "store")).Query(t.Context(), `SELECT rolname, rolcanlogin, rolinherit, rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls
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

// A managedRole is a role in CloudNativePG's manifest. An attribute without a value is false,
// except inherit, which is true. So the manifest has to set inherit.
type managedRole struct {
	Name                                                    string
	Login, Inherit                                          bool
	Superuser, CreateDB, CreateRole, Replication, BypassRLS bool
}
