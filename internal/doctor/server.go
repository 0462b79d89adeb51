package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/postgres"
)

func (e *examination) version(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	var number int
	var name string
	if err := tx.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, split_part(current_setting('server_version'), ' ', 1)`).Scan(&number, &name); err != nil {
		return nil, err
	}
	return []Finding{judgeVersion(number, name)}, nil
}

func judgeVersion(number int, name string) Finding {
	const oldest, newest = 15, 18
	switch major := number / 10000; {
	case major < oldest:
		return Finding{Grade: Problem, Message: fmt.Sprintf("PostgreSQL %s: the service is for %d to %d", name, oldest, newest),
			Remedy: fmt.Sprintf("Upgrade the server with pg_upgrade to PostgreSQL %d.", newest)}
	case major > newest:
		return Finding{Grade: Warning, Message: fmt.Sprintf("PostgreSQL %s: this release is for %d to %d", name, oldest, newest),
			Remedy: "Use a release of plantstore that knows this version."}
	}
	return fine("PostgreSQL %s", name)[0]
}

// primary judges whether the service can write here.
func (e *examination) primary(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	var standby bool
	if err := tx.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&standby); err != nil {
		return nil, err
	}
	if standby {
		return []Finding{{Grade: Problem, Message: "this is a standby: nothing can be deleted here",
			Remedy: "Name every server in DATABASE_URL, with target_session_attrs=read-write. If this one shall be the primary:\nSELECT pg_promote();"}}, nil
	}
	// Where a transaction is read-only by default: for the service's role, in
	// this database, on the server.
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT E'SET default_transaction_read_only = off;\n' || s.alter || ' RESET default_transaction_read_only;'
		FROM unnest(ARRAY[$1, current_user]::text[]) role, LATERAL (`+settingOf("default_transaction_read_only", "role")+`) s WHERE s.value
		UNION ALL
		SELECT CASE WHEN source = 'configuration file' THEN E'ALTER SYSTEM RESET default_transaction_read_only;\nSELECT pg_reload_conf();'
			ELSE 'Take default_transaction_read_only out of what the server is started with.' END
		FROM pg_settings WHERE name = 'default_transaction_read_only' AND source IN ('configuration file', 'command line', 'environment variable') AND setting = 'on'`, serviceRole)
	if err != nil {
		return nil, err
	}
	remedies, err := pgx.CollectRows(rows, pgx.RowTo[string])
	var found []Finding
	for _, remedy := range remedies {
		found = append(found, Finding{Grade: Problem, Message: "transactions are read-only by default: nothing can be deleted", Remedy: remedy})
	}
	return orFine(found, "a primary that takes writes"), err
}

// alterSetting begins the statement that changes a setting which row s of
// pg_db_role_setting has, r being its role.
const alterSetting = `CASE WHEN s.setrole = 0 AND s.setdatabase = 0 THEN 'ALTER ROLE ALL'
	WHEN s.setrole = 0 THEN format('ALTER DATABASE %I', current_database())
	WHEN s.setdatabase = 0 THEN format('ALTER ROLE %I', r.rolname)
	ELSE format('ALTER ROLE %I IN DATABASE %I', r.rolname, current_database()) END`

// settingOf is the one of the settings in pg_db_role_setting that counts for a role's sessions in
// this database, in SQL, of a boolean setting: its row, its value, and the beginning of the
// statement that changes it.
func settingOf(setting, role string) string {
	return `SELECT s.setrole, s.setdatabase, r.rolname, split_part(c, '=', 2)::boolean AS value, ` + alterSetting + ` AS alter
		FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole, unnest(s.setconfig) c
		WHERE s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())) AND (s.setrole = 0 OR r.rolname = ` + role + `)
			AND c LIKE '` + setting + `=%'
		ORDER BY s.setrole <> 0 DESC, s.setdatabase <> 0 DESC LIMIT 1`
}

// connections judges whether the service's pools fit into what the server allows.
func (e *examination) connections(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	size, err := postgres.PoolSize(e.Service)
	if err != nil || e.Service == "" && e.Owner != "" {
		return fine("not examined: needs the service's DATABASE_URL"), nil
	}
	if e.pooled {
		return fine("not compared: the pooler in between has limits of its own"), nil
	}
	needed := size * e.Replicas
	var server, others, ofRole, ofDatabase int
	var resetRole, resetDatabase string
	// reserved_connections came with PostgreSQL 16. Minus one is "no limit". Workers of the
	// server's own, such as autovacuum's, take no connection; what kind a session is may
	// be hidden.
	err = tx.QueryRow(ctx, `
		SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
				- coalesce(current_setting('reserved_connections', true)::int, 0),
			(SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL AND pid <> pg_backend_pid() AND usename <> $1
				AND coalesce(backend_type, 'client backend') = 'client backend'),
			coalesce((SELECT rolconnlimit FROM pg_roles WHERE rolname = $1), -1),
			(SELECT datconnlimit FROM pg_database WHERE datname = current_database()),
			format('ALTER ROLE %I CONNECTION LIMIT -1;', $1), format('ALTER DATABASE %I CONNECTION LIMIT -1;', current_database())`,
		serviceRole).Scan(&server, &others, &ofRole, &ofDatabase, &resetRole, &resetDatabase)
	if err != nil {
		return nil, err
	}
	pools := fmt.Sprintf("the service opens up to %d connections (pool_max_conns %d, replicas %d)", needed, size, e.Replicas)
	var found []Finding
	if needed+others > server {
		grade := Warning // until the others leave
		if needed > server {
			grade = Problem
		}
		remedy := fmt.Sprintf("Raise max_connections, or run fewer replicas: each opens up to %d connections at the least.", postgres.LeastConns)
		if fit := (server - others) * 8 / 10 / e.Replicas; fit >= postgres.LeastConns {
			remedy = fmt.Sprintf("Set pool_max_conns=%d in DATABASE_URL, or raise max_connections.", fit)
		}
		found = append(found, Finding{Grade: grade, Message: fmt.Sprintf("%s, the server allows %d, and others have %d open", pools, server, others),
			Remedy: remedy})
	}
	if ofRole >= 0 && needed > ofRole {
		found = append(found, Finding{Grade: Problem, Message: fmt.Sprintf("%s, role %s may have %d", pools, serviceRole, ofRole), Remedy: resetRole})
	}
	if ofDatabase >= 0 && needed > ofDatabase {
		found = append(found, Finding{Grade: Problem, Message: fmt.Sprintf("%s, the database takes %d", pools, ofDatabase), Remedy: resetDatabase})
	}
	return orFine(found, "%s; the server allows %d, others have %d open", pools, server, others), nil
}

// transactions finds what keeps VACUUM from removing dead rows, and migrations
// from their locks.
func (e *examination) transactions(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
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
	return orFine(found, "none open for longer than %s", e.Limits.Transaction), nil
}
