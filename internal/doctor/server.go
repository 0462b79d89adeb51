package doctor

import (
	"crypto/tls"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5"
)

// connections finds connections that are missing.
func connections(in Input) []Finding {
	var found []Finding
	switch {
	case in.ServiceErr != nil:
		found = append(found, Finding{Level: Problem, Message: fmt.Sprintf("the service cannot connect, and its checks are left out: %v", in.ServiceErr)})
	case in.Service == nil:
		found = append(found, Finding{Level: Advice, Message: "the URL of the service is not set, and its checks are left out",
			Remedy: "export DATABASE_URL='postgres://plantstore_app:password@host:5432/database' # as the service has it"})
	}
	if in.OwnerErr != nil {
		found = append(found, Finding{Level: Problem, Message: fmt.Sprintf("the owner cannot connect, and its checks are left out: %v", in.OwnerErr)})
	}
	return found
}

// encryption finds connections that others on the network can read.
func encryption(in Input) []Finding {
	var found []Finding
	for _, conn := range []*pgx.Conn{in.Service, in.Owner} {
		if conn == nil || !isReadable(conn.PgConn().Conn()) {
			continue
		}
		found = append(found, Finding{Level: Advice, Message: fmt.Sprintf("the connection of role %s to %s is not encrypted", conn.Config().User, conn.PgConn().Conn().RemoteAddr()),
			Remedy: "# Add sslmode=verify-full to the URL, and sslrootcert=FILE where the authority is your own."})
	}
	return found
}

// isReadable reports whether a connection leaves this machine as plain text.
func isReadable(conn net.Conn) bool {
	_, encrypted := conn.(*tls.Conn)
	address, overNetwork := conn.RemoteAddr().(*net.TCPAddr)
	return !encrypted && overNetwork && !address.IP.IsLoopback()
}

const version = `
	SELECT CASE WHEN v.number < @oldest::int THEN 'problem' ELSE 'advice' END,
		format(CASE WHEN v.number < @oldest::int THEN 'PostgreSQL %s is too old: %s is the oldest version that works'
			ELSE 'PostgreSQL %s is newer than this plantstore, which was tested up to %3$s' END, current_setting('server_version'), @oldest::int, @newest::int),
		CASE WHEN v.number < @oldest::int THEN '# Upgrade the server with pg_upgrade.' ELSE '# Deploy the newest plantstore.' END
	FROM (VALUES (current_setting('server_version_num')::int / 10000)) v (number) WHERE v.number NOT BETWEEN @oldest::int AND @newest::int`

// reset_val is the session's default. A setting of a role in a database overrides all other
// defaults, so the remedy makes that one.
const primary = `
	SELECT 'problem', format('role %I is connected to a standby, which takes no writes', current_user),
		'# Name the primary in the URL, or all servers: of several hosts the first one that takes writes is used.'
	WHERE pg_is_in_recovery()
	UNION ALL
	SELECT 'problem', format('the transactions of role %I are read-only: default_transaction_read_only is on', current_user),
		format(E'SET default_transaction_read_only = off;\nALTER ROLE %I IN DATABASE %I SET default_transaction_read_only = off;', current_user, current_database())
	FROM pg_settings WHERE name = 'default_transaction_read_only' AND reset_val = 'on'`

// A process id other than the driver's means a pooler, which has limits of its own.
const poolSize = `
	SELECT CASE WHEN @connections::int > v.most THEN 'problem' ELSE 'advice' END,
		format('the service opens up to %s connections; %s allows %s, and others have %s open', @connections::int, v.who, v.most, v.others), v.remedy
	FROM (SELECT count(*) AS open, current_setting('superuser_reserved_connections')::int + coalesce(current_setting('reserved_connections', true)::int, 0) AS reserved
			FROM pg_stat_activity WHERE datid IS NOT NULL AND usename <> current_user) o, -- what kind a session is may be hidden
		LATERAL (VALUES
			('the server', current_setting('max_connections')::int - o.reserved, o.open,
				format('ALTER SYSTEM SET max_connections = %s; -- then restart the server', o.open + o.reserved + @connections::int)),
			(format('role %I', current_user), (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user), 0,
				format('ALTER ROLE %I CONNECTION LIMIT -1;', current_user)),
			('the database', (SELECT datconnlimit FROM pg_database WHERE datname = current_database()), 0,
				format('ALTER DATABASE %I CONNECTION LIMIT -1;', current_database()))
		) v (who, most, others, remedy)
	WHERE pg_backend_pid() = @pid::bigint AND v.most >= 0 AND @connections::int + v.others > v.most`

const transactions = `
	SELECT 'advice', format('a transaction of role %I (application %s, process %s) has been open for %s: migrations and VACUUM wait for it',
			usename, coalesce(nullif(application_name, ''), 'unknown'), pid, date_trunc('second', clock_timestamp() - xact_start)),
		format('SELECT pg_terminate_backend(%s, 5000);', pid)
	FROM pg_stat_activity
	WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND clock_timestamp() - xact_start > make_interval(secs => @transaction)
	UNION ALL
	SELECT 'advice', format('transaction %L of role %I has been prepared for %s: migrations and VACUUM wait for it', gid, owner, date_trunc('second', clock_timestamp() - prepared)),
		format('ROLLBACK PREPARED %L;', gid)
	FROM pg_prepared_xacts WHERE database = current_database() AND clock_timestamp() - prepared > make_interval(secs => @transaction)
	UNION ALL
	SELECT 'advice', format('role %I cannot see how long transactions of other roles have been open', current_user),
		format('GRANT pg_read_all_stats TO %I;', current_user)
	WHERE NOT pg_has_role('pg_read_all_stats', 'USAGE')`

const password = `
	SELECT CASE WHEN rolvaliduntil < now() THEN 'problem' ELSE 'advice' END,
		format('the password of role %I %s at %s', rolname, CASE WHEN rolvaliduntil < now() THEN 'expired' ELSE 'expires' END, rolvaliduntil),
		format('ALTER ROLE %I VALID UNTIL ''infinity'';', rolname)
	FROM pg_roles WHERE rolname = current_user AND rolvaliduntil < now() + make_interval(secs => @soon)`

// On a direct connection the service makes these settings itself.
const session = `
	SELECT 'problem', format('a pooler in transaction mode is between service and server, and role %I lacks settings that the pooler cannot carry: %s', current_user,
			string_agg(format('%s is %s', s.name, s.reset_val), ', ' ORDER BY s.name)),
		string_agg(format('ALTER ROLE %I IN DATABASE %I SET %I = %L;', current_user, current_database(), s.name, w.value), E'\n' ORDER BY s.name)
	FROM (VALUES
		('synchronous_commit', 'on', '^(on|remote_apply|remote_write)$'),
		('default_transaction_isolation', 'read committed', '^read committed$'),
		('plan_cache_mode', 'force_generic_plan', '^force_generic_plan$'),
		('enable_seqscan', 'off', '^off$'),
		('jit', 'off', '^off$'),
		('client_min_messages', 'warning', '^(debug|log|notice|warning)'), -- a cut-short wait for a standby is one
		('lock_timeout', '1s', '^[1-9]'),
		('statement_timeout', '15s', '^[1-9]')
	) w (name, value, fits) JOIN pg_settings s ON s.name = w.name
	WHERE pg_backend_pid() <> @pid::bigint AND s.reset_val !~ w.fits HAVING count(*) > 0`

const durability = `
	SELECT 'advice', format('synchronous_commit is %s for role %I: a crash or failover can lose deletions by other programs', reset_val, current_user),
		format('ALTER ROLE %I IN DATABASE %I SET synchronous_commit = on;', current_user, current_database())
	FROM pg_settings WHERE name = 'synchronous_commit' AND reset_val IN ('off', 'local') AND pg_backend_pid() = @pid::bigint`

const triggersFire = `
	SELECT 'problem', format('session_replication_role is replica for role %I: its deletions would leave no record, and the service refuses them', current_user),
		format('ALTER ROLE %I IN DATABASE %I SET session_replication_role = origin;', current_user, current_database())
	FROM pg_settings WHERE name = 'session_replication_role' AND reset_val = 'replica'`
