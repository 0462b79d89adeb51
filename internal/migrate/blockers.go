package migrate

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// sessionNames returns a query that describes each session of another query in one sentence,
// the oldest transaction first. Roles without pg_read_all_stats don't see others' times.
func sessionNames(pids string) string {
	return `SELECT CASE WHEN b.pid IS NULL THEN 'a prepared transaction (see pg_prepared_xacts)' ELSE
			format('pid %s, application "%s", role %s, %s', b.pid, a.application_name, coalesce(a.usename, 'of the server itself'),
				CASE WHEN a.xact_start IS NOT NULL THEN 'in a transaction since ' || to_char(a.xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS" UTC"')
					WHEN a.state IS NOT NULL THEN 'in no transaction' ELSE 'since when is hidden from this role' END) END
		FROM (SELECT DISTINCT pid FROM (` + pids + `) p) b LEFT JOIN pg_stat_activity a USING (pid)
		ORDER BY a.xact_start, b.pid LIMIT 5`
}

// tableBlockers names the sessions that block a migration. A rollback waits for every lock on
// the tables, Up only for locks to write.
func tableBlockers(ctx context.Context, conn *pgx.Conn, up bool) ([]string, error) {
	rows, _ := conn.Query(ctx, sessionNames(`SELECT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
		WHERE l.locktype = 'relation' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND (c.oid = to_regclass('public.plants') OR c.relnamespace = to_regnamespace('plantstore'))
			AND NOT ($1 AND l.mode IN ('AccessShareLock', 'RowShareLock'))`), up)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("find the session with the lock: %w", err)
	}
	return names, nil
}

func heldBy(blockers []string) string {
	if len(blockers) == 0 {
		return "nobody has it any more"
	}
	return "it is held by " + strings.Join(blockers, "; ")
}
