// Package doctor examines a database and says what is wrong with it, and what
// helps.
package doctor

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/postgres"
)

// connectTimeout bounds one dial, unless the URL has a connect_timeout.
const connectTimeout = 2 * time.Second

// A Grade is how serious a finding is.
type Grade string

const (
	OK      Grade = "ok"
	Warning Grade = "warning" // it works, and may cost something one day
	Problem Grade = "problem" // the service fails, or does not keep a promise
)

// A Finding is what a check found.
type Finding struct {
	Check   string `json:"check"`
	Grade   Grade  `json:"grade"`
	Message string `json:"message"`
	// Remedy is SQL or a command to copy, or says which setting to change. It is
	// empty when all is well.
	Remedy string `json:"remedy,omitempty"`
}

// Limits are from where on something is worth a word.
type Limits struct {
	Transaction time.Duration // age of an open one
	LedgerBytes int64         // size of a ledger that has entries older than LedgerAge
	LedgerAge   time.Duration
	TokenExpiry time.Duration // time left to a token
	TokenUnused time.Duration // age of a token that was never used
}

// UsualLimits are those of the doctor command.
var UsualLimits = Limits{
	Transaction: 15 * time.Minute,
	LedgerBytes: 10 << 30,
	LedgerAge:   365 * 24 * time.Hour,
	TokenExpiry: 14 * 24 * time.Hour,
	TokenUnused: 30 * 24 * time.Hour,
}

// An Exam is what to examine a database with.
type Exam struct {
	Owner   string // URL of the owner's direct connection
	Service string // URL that the service connects with, if that is known
	// Replicas is how many instances of the service run.
	Replicas int
	// Triggers is the SQL that makes the triggers on plants, as the migrations do.
	Triggers string
	// Schema tells what is wrong with the migrations.
	Schema func(context.Context) []Finding
	Limits Limits

	isRemote func(net.Addr) bool // for tests; nil means the function of that name
	pooled   bool                // the service's connection goes through a pooler
}

// serviceRole is what deploy/postgres/roles.sql calls the service's role.
const serviceRole = "plantstore_app"

// A check looks at one thing and returns one finding at least. It runs in a
// read-only transaction of the owner's in which names are written out in full.
type check struct {
	name string
	run  func(context.Context, pgx.Tx) ([]Finding, error)
}

// Run examines the database. What cannot be examined is a finding, too. It
// changes nothing.
func (e *Exam) Run(ctx context.Context) []Finding {
	var findings []Finding
	add := func(name string, found ...Finding) {
		for _, f := range found {
			f.Check = name
			findings = append(findings, f)
		}
	}
	add("service connection", e.serviceConnection(ctx)...)

	config, err := pgx.ParseConfig(e.Owner)
	var conn *pgx.Conn
	if err == nil {
		conn, err = connectLimited(ctx, config)
	}
	if err != nil {
		add("connection", Finding{Grade: Problem, Message: postgres.Explain(err), Remedy: "Mend that, and run this again: nothing else could be examined."})
		return findings
	}
	defer conn.Close(context.WithoutCancel(ctx))
	add("connection", e.security(conn, "PLANTSTORE_MIGRATE_DATABASE_URL"), e.ownerPooler(ctx, conn, config))

	run := func(checks []check) {
		for _, c := range checks {
			found, err := e.examine(ctx, conn, c)
			if err != nil {
				found = []Finding{{Grade: Warning, Message: "could not be examined: " + postgres.Explain(err),
					Remedy: "Connect as the owner of the service's tables, see PLANTSTORE_MIGRATE_DATABASE_URL."}}
			}
			add(c.name, found...)
		}
	}
	run([]check{
		{"version", e.version},
		{"primary", e.primary},
		{"connections", e.connections},
		{"transactions", e.transactions},
	})
	add("schema", e.Schema(ctx)...)
	var complete bool
	err = conn.QueryRow(ctx, `SELECT to_regclass('public.plants') IS NOT NULL AND to_regclass('public.plant_deletions') IS NOT NULL
		AND to_regclass('public.api_tokens') IS NOT NULL`).Scan(&complete)
	if err == nil && complete {
		run([]check{
			{"triggers", e.triggers},
			{"grants", e.grants},
			{"foreign keys", e.foreignKeys},
			{"cascades", e.cascades},
			{"ledger", e.ledger},
			{"tokens", e.tokens},
		})
	}
	return findings
}

func (e *Exam) examine(ctx context.Context, conn *pgx.Conn, c check) (found []Finding, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL search_path = pg_catalog; SET LOCAL statement_timeout = '30s'; SET LOCAL lock_timeout = '2s'`); err != nil {
			return err
		}
		found, err = c.run(ctx, tx)
		return err
	})
	return found, err
}

func connectLimited(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	return pgx.ConnectConfig(ctx, config)
}

func fine(format string, args ...any) []Finding {
	return []Finding{{Grade: OK, Message: fmt.Sprintf(format, args...)}}
}

// orOK returns found or, without any, that all is well.
func orOK(found []Finding, format string, args ...any) []Finding {
	if len(found) == 0 {
		return fine(format, args...)
	}
	return found
}

// security judges whether others can listen to, or pose as the server of, a
// connection whose URL is that of setting.
func (e *Exam) security(conn *pgx.Conn, setting string) Finding {
	remote := e.isRemote
	if remote == nil {
		remote = isRemote
	}
	c := conn.PgConn()
	at := postgres.Address(conn.Config().Host, conn.Config().Port)
	t, encrypted := c.Conn().(*tls.Conn)
	verified := encrypted && conn.Config().TLSConfig != nil && !conn.Config().TLSConfig.InsecureSkipVerify
	switch {
	case verified:
		return Finding{Grade: OK, Message: fmt.Sprintf("%s, %s, the server's name is verified", at, tls.VersionName(t.ConnectionState().Version))}
	case !remote(c.Conn().RemoteAddr()):
		return Finding{Grade: OK, Message: fmt.Sprintf("%s, which does not leave this machine", at)}
	case encrypted:
		return Finding{Grade: Warning, Message: fmt.Sprintf("%s: encrypted, but whoever can pose as the server gets the password", at),
			Remedy: "Add sslmode=verify-full to " + setting + ", and sslrootcert=FILE where a private authority signs."}
	}
	return Finding{Grade: Warning, Message: fmt.Sprintf("%s: not encrypted: plants and credentials can be read on the way", at),
		Remedy: "Add sslmode=verify-full to " + setting + ", and sslrootcert=FILE where a private authority signs."}
}

func isRemote(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && !tcp.IP.IsLoopback()
}

// serviceConnection connects as the service does.
func (e *Exam) serviceConnection(ctx context.Context) []Finding {
	if e.Service == "" && e.Owner != "" {
		return []Finding{{Grade: Warning, Message: "not examined: DATABASE_URL is not set", Remedy: "Set DATABASE_URL as the service has it."}}
	}
	config, err := pgxpool.ParseConfig(e.Service)
	var conn *pgx.Conn
	if err == nil {
		conn, err = connectLimited(ctx, config.ConnConfig)
	}
	if err != nil {
		return []Finding{{Grade: Problem, Message: postgres.Explain(err), Remedy: "Mend that: the service can't connect with this DATABASE_URL either."}}
	}
	defer conn.Close(context.WithoutCancel(ctx))
	found := []Finding{e.security(conn, "DATABASE_URL")}
	if user := config.ConnConfig.User; user != serviceRole {
		found = append(found, Finding{Grade: Warning, Message: fmt.Sprintf("the service connects as %s and may do all that %s may", user, user),
			Remedy: "Name the role " + serviceRole + " in DATABASE_URL."})
	}

	p, err := findPooler(ctx, conn, config.ConnConfig)
	e.pooled = p.between
	switch {
	case err != nil:
		return append(found, Finding{Grade: Warning, Message: "could not find out about a pooler: " + postgres.Explain(err), Remedy: "Run this again."})
	case !p.between:
		return append(found, fine("no pooler between service and server")...)
	case !p.transactions:
		return append(found, fine("a pooler in session mode is between service and server")...)
	case conn.Config().DefaultQueryExecMode != pgx.QueryExecModeCacheStatement:
		return append(found, fine("a pooler in transaction mode is between, and the service uses no prepared statements")...)
	case p.prepares:
		return append(found, fine("a pooler in transaction mode is between, and keeps track of prepared statements")...)
	}
	return append(found, Finding{Grade: Problem,
		Message: "a pooler in transaction mode is between that mixes up the prepared statements of its clients: most deletions will fail",
		Remedy:  "Add default_query_exec_mode=exec to DATABASE_URL, or set max_prepared_statements=200 in pgbouncer.ini (PgBouncer 1.21 or later)."})
}

// ownerPooler judges whether the owner's connection is direct.
func (e *Exam) ownerPooler(ctx context.Context, conn *pgx.Conn, config *pgx.ConnConfig) Finding {
	p, err := findPooler(ctx, conn, config)
	switch {
	case err != nil:
		return Finding{Grade: Warning, Message: "could not find out about a pooler: " + postgres.Explain(err), Remedy: "Run this again."}
	case p.transactions:
		return Finding{Grade: Warning, Message: "a pooler in transaction mode is between: migrations refuse to run through it",
			Remedy: "Set PLANTSTORE_MIGRATE_DATABASE_URL to the server itself."}
	}
	return fine("fit for migrations")[0]
}

// A pooler is what is between us and the server.
type pooler struct {
	between      bool
	transactions bool // gives its server connections out for a transaction at a time
	prepares     bool // prepared statements work all the same
}

// findPooler finds out by what a pooler cannot hide: the process id that it tells
// is not that of the server process, two connections may be one on the server,
// and then statements that both prepare under one name collide.
func findPooler(ctx context.Context, a *pgx.Conn, config *pgx.ConnConfig) (pooler, error) {
	const attempts = 5 // with others about, two connections need not meet at once
	backend := func(c *pgx.Conn) (pid uint32, err error) {
		err = c.QueryRow(ctx, `SELECT pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&pid)
		return pid, err
	}
	first, err := backend(a)
	if err != nil || first == a.PgConn().PID() {
		return pooler{}, err
	}
	p := pooler{between: true}
	b, err := connectLimited(ctx, config)
	if err != nil {
		return p, err
	}
	defer b.Close(context.WithoutCancel(ctx))
	name := "plantstore_doctor_" + rand.Text()
	for range attempts {
		atA, err := backend(a)
		if err != nil {
			return p, err
		}
		atB, err := backend(b)
		if err != nil {
			return p, err
		}
		if atA != first || atA == atB {
			p.transactions = true
			break
		}
	}
	if !p.transactions {
		return p, nil
	}
	if _, err := a.PgConn().Prepare(ctx, name, `SELECT 1`, nil); err != nil {
		return p, err
	}
	defer func() { _ = a.PgConn().Deallocate(context.WithoutCancel(ctx), name) }()
	_, err = b.PgConn().Prepare(ctx, name, `SELECT 2`, nil)
	const duplicatePreparedStatement = "42P05"
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == duplicatePreparedStatement {
		return p, nil
	}
	p.prepares = err == nil
	return p, err
}

func (e *Exam) version(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	var number int
	var name string
	if err := tx.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, split_part(current_setting('server_version'), ' ', 1)`).Scan(&number, &name); err != nil {
		return nil, err
	}
	return []Finding{judgeVersion(number, name)}, nil
}

func judgeVersion(number int, name string) Finding {
	const oldest, newest = 14, 18
	switch major := number / 10000; {
	case major < oldest:
		return Finding{Grade: Problem, Message: fmt.Sprintf("PostgreSQL %s: the service is for %d to %d", name, oldest, newest),
			Remedy: fmt.Sprintf("Upgrade the server with pg_upgrade to PostgreSQL %d.", newest)}
	case major > newest:
		return Finding{Grade: Warning, Message: fmt.Sprintf("PostgreSQL %s: this release was tested with %d to %d", name, oldest, newest),
			Remedy: "Use a release of plantstore that knows this version."}
	}
	return fine("PostgreSQL %s", name)[0]
}

// primary judges whether the service can write here.
func (e *Exam) primary(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	var standby bool
	if err := tx.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&standby); err != nil {
		return nil, err
	}
	if standby {
		return []Finding{{Grade: Problem, Message: "this is a standby: nothing can be deleted here",
			Remedy: "Name every server in DATABASE_URL, with target_session_attrs=read-write. If this one shall be the primary:\nSELECT pg_promote();"}}, nil
	}
	// Where a transaction is read-only by default: for the service's role, in
	// this database, in the settings file.
	rows, err := tx.Query(ctx, `
		SELECT E'SET default_transaction_read_only = off;\n' || CASE
				WHEN s.setrole = 0 THEN format('ALTER DATABASE %I RESET default_transaction_read_only;', current_database())
				WHEN s.setdatabase = 0 THEN format('ALTER ROLE %I RESET default_transaction_read_only;', r.rolname)
				ELSE format('ALTER ROLE %I IN DATABASE %I RESET default_transaction_read_only;', r.rolname, current_database())
			END
		FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole
		WHERE s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
			AND (s.setrole = 0 OR r.rolname IN ($1, current_user))
			AND s.setconfig && '{default_transaction_read_only=on,default_transaction_read_only=true}'
		UNION ALL
		SELECT 'ALTER SYSTEM RESET default_transaction_read_only;' || E'\nSELECT pg_reload_conf();'
		FROM pg_settings WHERE name = 'default_transaction_read_only' AND source = 'configuration file' AND setting = 'on'`, serviceRole)
	if err != nil {
		return nil, err
	}
	remedies, err := pgx.CollectRows(rows, pgx.RowTo[string])
	var found []Finding
	for _, remedy := range remedies {
		found = append(found, Finding{Grade: Problem, Message: "transactions are read-only by default: nothing can be deleted", Remedy: remedy})
	}
	return orOK(found, "a primary that takes writes"), err
}

// connections judges whether the service's pools fit into what the server allows.
func (e *Exam) connections(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	config, err := pgxpool.ParseConfig(e.Service)
	if err != nil || e.Service == "" && e.Owner != "" {
		return fine("not examined: needs the service's DATABASE_URL"), nil
	}
	if e.pooled {
		return fine("not compared: the pooler in between has limits of its own"), nil
	}
	needed := int(config.MaxConns) * e.Replicas
	var server, others, ofRole, ofDatabase int
	var resetRole, resetDatabase string
	// reserved_connections came with PostgreSQL 16. Minus one is "no limit".
	err = tx.QueryRow(ctx, `
		SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
				- coalesce(current_setting('reserved_connections', true)::int, 0),
			(SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL AND pid <> pg_backend_pid() AND usename <> $1),
			coalesce((SELECT rolconnlimit FROM pg_roles WHERE rolname = $1), -1),
			(SELECT datconnlimit FROM pg_database WHERE datname = current_database()),
			format('ALTER ROLE %I CONNECTION LIMIT -1;', $1), format('ALTER DATABASE %I CONNECTION LIMIT -1;', current_database())`,
		serviceRole).Scan(&server, &others, &ofRole, &ofDatabase, &resetRole, &resetDatabase)
	if err != nil {
		return nil, err
	}
	pools := fmt.Sprintf("the service opens up to %d connections (pool_max_conns %d, replicas %d)", needed, config.MaxConns, e.Replicas)
	var found []Finding
	if needed+others > server {
		grade := Warning // until the others leave
		if needed > server {
			grade = Problem
		}
		fit := max((server-others)*8/10/e.Replicas, 1)
		found = append(found, Finding{Grade: grade, Message: fmt.Sprintf("%s, the server allows %d, and others have %d open", pools, server, others),
			Remedy: fmt.Sprintf("Set pool_max_conns=%d in DATABASE_URL, or raise max_connections.", fit)})
	}
	if ofRole >= 0 && needed > ofRole {
		found = append(found, Finding{Grade: Problem, Message: fmt.Sprintf("%s, role %s may have %d", pools, serviceRole, ofRole), Remedy: resetRole})
	}
	if ofDatabase >= 0 && needed > ofDatabase {
		found = append(found, Finding{Grade: Problem, Message: fmt.Sprintf("%s, the database takes %d", pools, ofDatabase), Remedy: resetDatabase})
	}
	return orOK(found, "%s; the server allows %d, others have %d open", pools, server, others), nil
}

// transactions finds what keeps VACUUM from removing dead rows, and migrations
// from their locks.
func (e *Exam) transactions(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	rows, err := tx.Query(ctx, `
		SELECT format('a transaction of %s (%s, process %s) is open for %s', usename, coalesce(nullif(application_name, ''), 'unnamed'), pid,
				date_trunc('second', clock_timestamp() - xact_start)),
			format('SELECT pg_terminate_backend(%s);', pid)
		FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
			AND clock_timestamp() - xact_start > make_interval(secs => $1)
		UNION ALL
		SELECT format('prepared transaction %L of %s waits for its end since %s', gid, owner, date_trunc('second', prepared)),
			format('ROLLBACK PREPARED %L;', gid)
		FROM pg_prepared_xacts WHERE database = current_database() AND clock_timestamp() - prepared > make_interval(secs => $1)
		UNION ALL
		SELECT format('replication slot %I holds old rows back and is used by nobody', slot_name),
			format('SELECT pg_drop_replication_slot(%L);', slot_name)
		FROM pg_replication_slots WHERE NOT active AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL)`, e.Limits.Transaction.Seconds())
	if err != nil {
		return nil, err
	}
	found, err := collect(rows, Warning)
	if err != nil {
		return nil, err
	}
	var all bool
	var role string
	if err := tx.QueryRow(ctx, `SELECT pg_has_role('pg_read_all_stats', 'USAGE'), format('%I', current_user)`).Scan(&all, &role); err != nil {
		return nil, err
	}
	if !all {
		found = append(found, Finding{Grade: Warning, Message: fmt.Sprintf("%s can't see how long the transactions of others are open", role),
			Remedy: fmt.Sprintf("GRANT pg_read_all_stats TO %s;", role)})
	}
	return orOK(found, "none open for longer than %s", e.Limits.Transaction), nil
}

// collect makes a finding of each row: message, remedy.
func collect(rows pgx.Rows, grade Grade) ([]Finding, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Finding, error) {
		f := Finding{Grade: grade}
		err := row.Scan(&f.Message, &f.Remedy)
		return f, err
	})
}

// triggers judges whether plants can leave without a record.
func (e *Exam) triggers(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	want := map[string]string{
		"plantstore_record_deletion": "CREATE TRIGGER plantstore_record_deletion AFTER DELETE ON public.plants REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.plantstore_record_deletion()",
		"plantstore_refuse_truncate": "CREATE TRIGGER plantstore_refuse_truncate BEFORE TRUNCATE ON public.plants FOR EACH STATEMENT EXECUTE FUNCTION public.plantstore_refuse_truncate()",
	}
	// 'R' fires on a logical replica only.
	rows, err := tx.Query(ctx, `
		SELECT t.tgname, pg_get_triggerdef(t.oid), t.tgenabled IN ('O', 'A'), p.prosrc, p.prosecdef, p.proconfig @> CASE t.tgname
				WHEN 'plantstore_record_deletion' THEN ARRAY['search_path=pg_catalog, pg_temp', 'DateStyle=ISO, YMD', 'IntervalStyle=postgres', 'extra_float_digits=1']
				ELSE ARRAY['search_path=pg_catalog, pg_temp'] END
		FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
		WHERE t.tgrelid = 'public.plants'::regclass AND t.tgname = ANY ($1)`, []string{"plantstore_record_deletion", "plantstore_refuse_truncate"})
	if err != nil {
		return nil, err
	}
	type trigger struct {
		Name, Definition string
		Enabled          bool
		Body             string
		AsOwner          bool
		Pinned           *bool
	}
	triggers, err := pgx.CollectRows(rows, pgx.RowToStructByPos[trigger])
	if err != nil {
		return nil, err
	}
	remake := strings.NewReplacer("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", "CREATE TRIGGER", "CREATE OR REPLACE TRIGGER").Replace(e.Triggers)
	var found []Finding
	for _, t := range triggers {
		pinned := t.Pinned != nil && *t.Pinned
		elevated := t.AsOwner || t.Name != "plantstore_record_deletion"
		switch {
		case !t.Enabled:
			found = append(found, Finding{Grade: Problem, Message: "trigger " + t.Name + " is disabled: plants leave without a record",
				Remedy: "ALTER TABLE public.plants ENABLE TRIGGER " + t.Name + ";"})
		case t.Definition != want[t.Name] || !strings.Contains(e.Triggers, t.Body) || !pinned || !elevated:
			found = append(found, Finding{Grade: Problem, Message: "trigger " + t.Name + " or its function is not what the migrations made it", Remedy: remake})
		}
		delete(want, t.Name)
	}
	for _, name := range []string{"plantstore_record_deletion", "plantstore_refuse_truncate"} {
		if want[name] != "" {
			found = append(found, Finding{Grade: Problem, Message: "trigger " + name + " is missing: plants leave without a record", Remedy: remake})
		}
	}
	// What leaves through a parent fires no statement trigger of the child.
	rows, err = tx.Query(ctx, `
		SELECT 'plants is a child of ' || parent || ': plants deleted through it leave without a record',
			CASE WHEN c.relispartition THEN format('ALTER TABLE %s DETACH PARTITION public.plants;', parent)
			ELSE format('ALTER TABLE public.plants NO INHERIT %s;', parent) END
		FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid, LATERAL (SELECT inhparent::regclass::text AS parent) p
		WHERE c.oid = 'public.plants'::regclass`)
	if err != nil {
		return nil, err
	}
	children, err := collect(rows, Problem)
	if err != nil {
		return nil, err
	}
	return orOK(append(found, children...), "each deletion is recorded, TRUNCATE is refused"), nil
}

// promised are the rights of the service's role, as 00006_grants.sql gives them.
var promised = []struct{ right, on string }{
	{"USAGE", "SCHEMA public"},
	{"DELETE", "public.plants"},
	{"SELECT (id)", "public.plants"},
	{"SELECT", "public.plant_deletions"},
	{"EXECUTE", "FUNCTION public.plantstore_token(bytea)"},
	{"SELECT (name)", "public.api_tokens"},
	{"SELECT (last_used_at)", "public.api_tokens"},
	{"UPDATE (last_used_at)", "public.api_tokens"},
	{"SELECT", "public.goose_db_version"},
}

// grants judges whether the service's role can do its job and nothing else.
func (e *Exam) grants(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	var exists bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)`, serviceRole).Scan(&exists); err != nil {
		return nil, err
	}
	missing := make(map[string]string, len(promised)) // right on object -> GRANT
	for _, p := range promised {
		missing[p.right+" ON "+p.on] = fmt.Sprintf("GRANT %s ON %s TO %s;", p.right, p.on, serviceRole)
	}
	if !exists {
		remedy := "CREATE ROLE " + serviceRole + " LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOINHERIT;"
		for _, p := range promised {
			remedy += "\n" + missing[p.right+" ON "+p.on]
		}
		return []Finding{{Grade: Problem, Message: "role " + serviceRole + " does not exist", Remedy: remedy}}, nil
	}

	powers, err := e.powers(ctx, tx)
	if err != nil || len(powers) > 0 {
		return powers, err // next to these, a list of tables would say nothing
	}
	// Everything granted to the role, and what everybody may do with the
	// service's own tables, with its trigger's function, or make.
	rows, err := tx.Query(ctx, `
		WITH app AS (SELECT oid FROM pg_roles WHERE rolname = $1), objects AS (
			SELECT c.relacl AS acl, '' AS suffix, CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE '' END || c.oid::regclass AS object,
				c.relnamespace = 'public'::regnamespace AND c.relname IN ('plants', 'plant_deletions', 'api_tokens', 'goose_db_version', 'plantstore_migrations') AS ours
			FROM pg_class c WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND c.relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
			UNION ALL
			SELECT a.attacl, format(' (%I)', a.attname), c.oid::regclass::text,
				c.relnamespace = 'public'::regnamespace AND c.relname IN ('plants', 'plant_deletions', 'api_tokens', 'goose_db_version', 'plantstore_migrations')
			FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
			WHERE a.attacl IS NOT NULL AND NOT a.attisdropped AND c.relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
			UNION ALL
			SELECT coalesce(proacl, acldefault('f', proowner)), '', 'FUNCTION ' || oid::regprocedure, true
			FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname IN ('plantstore_record_deletion', 'plantstore_token')
			UNION ALL
			SELECT coalesce(nspacl, acldefault('n', nspowner)), '', format('SCHEMA %I', nspname), nspname = 'public' FROM pg_namespace
			WHERE nspname !~ '^pg_|^information_schema$'
			UNION ALL
			SELECT coalesce(datacl, acldefault('d', datdba)), '', format('DATABASE %I', datname), true FROM pg_database WHERE datname = current_database()
		)
		SELECT acl.privilege_type || suffix, object, CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE $1 END, acl.is_grantable
		FROM objects, app, LATERAL aclexplode(acl) acl
		WHERE (acl.grantee = app.oid OR acl.grantee = 0 AND ours)
			AND NOT (object LIKE 'DATABASE %' AND acl.privilege_type = 'CONNECT')
		ORDER BY 2, 1, 3`, serviceRole)
	if err != nil {
		return nil, err
	}
	var found []Finding
	var right, object, grantee string
	var grantable bool
	_, err = pgx.ForEachRow(rows, []any{&right, &object, &grantee, &grantable}, func() error {
		key := right + " ON " + object
		isPublic := grantee == "PUBLIC"
		isPromised := (!isPublic || key == "USAGE ON SCHEMA public") && slices.ContainsFunc(promised, func(p struct{ right, on string }) bool { return p.right+" ON "+p.on == key })
		if isPromised {
			delete(missing, key)
		}
		switch {
		case !isPromised:
			who := serviceRole
			if isPublic {
				who = "everybody"
			}
			found = append(found, Finding{Grade: Problem, Message: fmt.Sprintf("%s has %s, which the service does not need", who, key),
				Remedy: fmt.Sprintf("REVOKE %s FROM %s CASCADE;", key, grantee)})
		case grantable:
			found = append(found, Finding{Grade: Problem, Message: fmt.Sprintf("%s may pass %s on to others", grantee, key),
				Remedy: fmt.Sprintf("REVOKE GRANT OPTION FOR %s FROM %s CASCADE;", key, grantee)})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, p := range promised {
		if grant := missing[p.right+" ON "+p.on]; grant != "" {
			found = append(found, Finding{Grade: Problem, Message: fmt.Sprintf("%s lacks %s ON %s", serviceRole, p.right, p.on), Remedy: grant})
		}
	}
	return orOK(found, "%s can do its job and nothing else", serviceRole), nil
}

// powers finds what puts the service's role above its grants: attributes,
// membership of other roles, ownership.
func (e *Exam) powers(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	rows, err := tx.Query(ctx, `
		SELECT format('%s is %s', rolname, attribute), format('ALTER ROLE %I NO%s;', rolname, attribute)
		FROM pg_roles, unnest(ARRAY[CASE WHEN rolsuper THEN 'SUPERUSER' END, CASE WHEN rolcreaterole THEN 'CREATEROLE' END,
			CASE WHEN rolcreatedb THEN 'CREATEDB' END, CASE WHEN rolreplication THEN 'REPLICATION' END, CASE WHEN rolbypassrls THEN 'BYPASSRLS' END]) attribute
		WHERE rolname = $1 AND attribute IS NOT NULL
		UNION ALL
		SELECT format('%s is a member of %s', $1, roleid::regrole), format('REVOKE %s FROM %I;', roleid::regrole, $1)
		FROM pg_auth_members WHERE member = (SELECT oid FROM pg_roles WHERE rolname = $1)
		UNION ALL
		SELECT format('%s owns %s in this database', $1, pg_describe_object(classid, objid, 0)),
			format('REASSIGN OWNED BY %I TO %s;', $1, (SELECT relowner::regrole FROM pg_class WHERE oid = 'public.plant_deletions'::regclass))
		FROM pg_shdepend WHERE deptype = 'o' AND refclassid = 'pg_authid'::regclass AND refobjid = (SELECT oid FROM pg_roles WHERE rolname = $1)
			AND dbid IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))`, serviceRole)
	if err != nil {
		return nil, err
	}
	found, err := collect(rows, Warning)
	for i := range found {
		found[i].Grade = Problem
	}
	return found, err
}

// foreignKeys finds the tables that each deletion of a plant scans in full.
func (e *Exam) foreignKeys(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	// An index helps if the key's columns are its first ones, in any order. The
	// constraints of partitions are their parent's.
	rows, err := tx.Query(ctx, `
		SELECT format('each deletion scans %s (%s): foreign key %I has no index', c.conrelid::regclass,
				pg_size_pretty(coalesce((SELECT sum(pg_table_size(relid)) FROM pg_partition_tree(c.conrelid)), pg_table_size(c.conrelid))), c.conname),
			CASE r.relkind WHEN 'p' THEN format('-- Blocks writes while it builds: CONCURRENTLY does not work on a partitioned table.' || E'\nCREATE INDEX ON %s (%s);', c.conrelid::regclass, k.columns)
				ELSE format('CREATE INDEX CONCURRENTLY ON %s (%s);', c.conrelid::regclass, k.columns) END
		FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid CROSS JOIN LATERAL (
			SELECT string_agg(format('%I', a.attname), ', ' ORDER BY u.n) AS columns
			FROM unnest(c.conkey) WITH ORDINALITY u(attnum, n) JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = u.attnum
		) k
		WHERE c.contype = 'f' AND c.confrelid = 'public.plants'::regclass AND c.conparentid = 0
			AND NOT EXISTS (
				SELECT FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid JOIN pg_am am ON am.oid = ic.relam
				WHERE i.indrelid = c.conrelid AND i.indisvalid AND i.indpred IS NULL
					AND (am.amname = 'btree' OR am.amname = 'hash' AND cardinality(c.conkey) = 1)
					AND (i.indkey::int2[])[0:cardinality(c.conkey) - 1] @> c.conkey)
		ORDER BY pg_table_size(c.conrelid) DESC, c.conname`)
	if err != nil {
		return nil, err
	}
	found, err := collect(rows, Warning)
	return orOK(found, "every table that refers to plants has an index for it"), err
}

// cascades finds what a deletion does to other tables, which no ledger records.
func (e *Exam) cascades(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	// Rows of plants that a cascade removes are in the ledger. The number of
	// rows is an estimate: -1 before the first ANALYZE.
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE reach AS (
			SELECT oid, conrelid, confrelid, confdeltype, ARRAY[confrelid, conrelid] AS path FROM pg_constraint
			WHERE contype = 'f' AND confrelid = 'public.plants'::regclass AND conparentid = 0 AND confdeltype IN ('c', 'n', 'd')
			UNION ALL
			SELECT c.oid, c.conrelid, c.confrelid, c.confdeltype, r.path || c.conrelid
			FROM reach r JOIN pg_constraint c ON c.confrelid = r.conrelid
			WHERE r.confdeltype = 'c' AND c.contype = 'f' AND c.conparentid = 0 AND c.confdeltype IN ('c', 'n', 'd') AND NOT c.conrelid = ANY (r.path)
		)
		SELECT DISTINCT format('deleting a plant also %s %s%s, which the ledger does not keep: %s',
				CASE r.confdeltype WHEN 'c' THEN 'removes rows of' WHEN 'n' THEN 'empties columns of' ELSE 'changes columns of' END,
				r.conrelid::regclass,
				CASE WHEN cardinality(r.path) > 2 THEN format(' by way of %s', array_to_string(r.path[2:cardinality(r.path) - 1]::regclass[], ', ')) ELSE '' END,
				CASE WHEN t.reltuples < 0 THEN 'ANALYZE tells how many' WHEN s.per IS NULL THEN format('%s rows in all', t.reltuples::bigint)
					ELSE format('about %s of its %s rows for each row of %s', round(s.per::numeric, 1), t.reltuples::bigint, r.confrelid::regclass) END),
			format('ALTER TABLE %s DROP CONSTRAINT %I, ADD CONSTRAINT %2$I %s%s;', r.conrelid::regclass, c.conname,
				regexp_replace(regexp_replace(pg_get_constraintdef(c.oid), ' NOT VALID$', ''), ' ON DELETE (CASCADE|SET NULL|SET DEFAULT)( \([^)]*\))?', ' ON DELETE RESTRICT'),
				CASE t.relkind WHEN 'p' THEN '' ELSE format(E' NOT VALID;\nALTER TABLE %s VALIDATE CONSTRAINT %I', r.conrelid::regclass, c.conname) END)
		FROM reach r JOIN pg_constraint c ON c.oid = r.oid JOIN pg_class t ON t.oid = r.conrelid JOIN pg_namespace n ON n.oid = t.relnamespace
		LEFT JOIN LATERAL (
			SELECT t.reltuples * (1 - p.null_frac) / nullif(CASE WHEN p.n_distinct < 0 THEN -p.n_distinct * t.reltuples ELSE p.n_distinct END, 0) AS per
			FROM pg_stats p JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = c.conkey[1] AND a.attname = p.attname
			WHERE p.schemaname = n.nspname AND p.tablename = t.relname AND p.inherited = (t.relkind = 'p')
		) s ON true
		WHERE NOT (r.conrelid = 'public.plants'::regclass AND r.confdeltype = 'c')
		ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	found, err := collect(rows, Warning)
	return orOK(found, "deleting a plant changes no other table"), err
}

// ledger tells how large the ledger is and how fast it grows.
func (e *Exam) ledger(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	var size int64
	var text string
	var old bool
	// Recent growth is that of the newest entries, of which ids are a fair count.
	err := tx.QueryRow(ctx, `
		WITH recent AS (SELECT id, deleted_at FROM public.plant_deletions ORDER BY id DESC LIMIT 10000),
			pace AS (SELECT count(*) AS n, greatest(extract(epoch FROM clock_timestamp() - min(deleted_at)) / 86400, 1) AS days FROM recent),
			oldest AS (SELECT deleted_at FROM public.plant_deletions ORDER BY id LIMIT 1),
			ledger AS (SELECT pg_total_relation_size(oid) AS size, greatest(reltuples, 0)::bigint AS n FROM pg_class WHERE oid = 'public.plant_deletions'::regclass)
		SELECT size, format('%s, since %s; lately %s deletions a day, about %s', pg_size_pretty(size),
				coalesce((SELECT to_char(deleted_at, 'YYYY-MM-DD') FROM oldest), 'never'), ceil(pace.n / days),
				pg_size_pretty((pace.n / days * coalesce((size / nullif(greatest(ledger.n, pace.n), 0)), 0))::bigint)),
			coalesce((SELECT deleted_at < clock_timestamp() - make_interval(secs => $1) FROM oldest), false)
		FROM ledger, pace`, e.Limits.LedgerAge.Seconds()).Scan(&size, &text, &old)
	if err != nil {
		return nil, err
	}
	if size > e.Limits.LedgerBytes && old {
		return []Finding{{Grade: Warning, Message: text + ": more than may be needed",
			Remedy: fmt.Sprintf("plantstore deletions purge --older-than %dd", int(e.Limits.LedgerAge.Hours()/24))}}, nil
	}
	return fine("%s", text), nil
}

// tokens finds tokens that are forgotten or soon a surprise. Names of tokens have
// no character that SQL or a shell would take for more.
func (e *Exam) tokens(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	rows, err := tx.Query(ctx, `
		WITH valid AS (
			SELECT *, last_used_at IS NULL AND created_at < now() - make_interval(secs => $2) AS unused,
				expires_at < now() + make_interval(secs => $1) AS ends,
				left(name, 52) || '-' || to_char(now(), 'YYYYMMDD') AS next
			FROM public.api_tokens WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
		)
		SELECT CASE WHEN unused THEN format('token %s was never used since %s', name, to_char(created_at, 'YYYY-MM-DD'))
				WHEN ends THEN format('token %s expires on %s', name, to_char(expires_at, 'YYYY-MM-DD'))
				ELSE format('token %s never expires', name) END,
			CASE WHEN unused THEN format('plantstore token revoke %s', name)
				WHEN ends THEN format(E'plantstore token create %s\n# and once its client has changed over:\nplantstore token revoke %s', next, name)
				ELSE format('UPDATE public.api_tokens SET expires_at = now() + interval ''90 days'' WHERE name = %L;', name) END
		FROM valid WHERE unused OR ends OR expires_at IS NULL ORDER BY name`, e.Limits.TokenExpiry.Seconds(), e.Limits.TokenUnused.Seconds())
	if err != nil {
		return nil, err
	}
	found, err := collect(rows, Warning)
	return orOK(found, "all in use and with an end"), err
}

// Worst returns the worst grade.
func Worst(findings []Finding) Grade {
	worst := OK
	for _, f := range findings {
		switch {
		case f.Grade == Problem:
			return Problem
		case f.Grade == Warning:
			worst = Warning
		}
	}
	return worst
}
