package postgres

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/plant"
)

// Conditions of every deletion, beside the set_config that names the requests for the trigger.
// They are evaluated once, before the trigger, and prove that it will record the deletion: it
// is enabled, and it was found after the table was locked.
const conditions = `
	AND EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'public.plants'::regclass AND tgname = 'record_deletion' AND tgenabled IN ('O', 'A'))
	AND current_setting('transaction_isolation') = 'read committed' AND current_setting('session_replication_role') <> 'replica'`

const (
	deleteOneSQL = `DELETE FROM ONLY public.plants WHERE id = $1
	AND (SELECT set_config('plantstore.requests', $2::text, true)) IS NOT NULL` + conditions

	// Without the subquery, each array of ids would be planned anew.
	deleteManySQL = `DELETE FROM ONLY public.plants WHERE id = ANY (ARRAY(SELECT unnest($1::bigint[])))
	AND (SELECT set_config('plantstore.requests', $2::text, true)) IS NOT NULL` + conditions + `
	RETURNING id`

	// Behind a transaction pooler, lock_timeout is the role's, and all deletions set their own.
	deleteThroughPoolerSQL = `DELETE FROM ONLY public.plants WHERE id = ANY (ARRAY(SELECT unnest($1::bigint[])))
	AND (SELECT set_config('plantstore.requests', $2::text, true) || set_config('lock_timeout', $3::text, true)) IS NOT NULL` + conditions + `
	RETURNING id`
)

// deleteOne deletes one plant on a connection. The limit of its wait for locks is that of
// the session or, behind a pooler, lock.
func deleteOne(ctx context.Context, conn *pgx.Conn, d *plant.Deletion, lock time.Duration) (meaning, error) {
	if conn.PgConn().CustomData()[throughPooler] != nil {
		gone, err := deleteMany(ctx, conn, []*plant.Deletion{d}, lock)
		return meaningOf(len(gone), err), err
	}
	tag, err := conn.Exec(ctx, deleteOneSQL, int64(d.Plant), requests(d))
	if err == nil {
		err = takeCutShort(conn)
	}
	return meaningOf(int(tag.RowsAffected()), err), err
}

func meaningOf(rows int, err error) meaning {
	switch {
	case err != nil:
		return classify(err)
	case rows == 0:
		return missing
	}
	return deleted
}

// deleteMany deletes plants on a connection, all or none, and returns those that were there.
func deleteMany(ctx context.Context, conn *pgx.Conn, deletions []*plant.Deletion, lock time.Duration) ([]int64, error) {
	ids := make([]int64, len(deletions))
	for n, d := range deletions {
		ids[n] = int64(d.Plant)
	}
	sql, args := deleteManySQL, []any{ids, requests(deletions...)}
	if conn.PgConn().CustomData()[throughPooler] != nil {
		sql, args = deleteThroughPoolerSQL, append(args, strconv.FormatInt(lock.Milliseconds(), 10))
	}
	rows, _ := conn.Query(ctx, sql, args...)
	gone, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err == nil {
		err = takeCutShort(conn)
	}
	return gone, err
}

// requests is the setting plantstore.requests, see migrations/00004_record_deletions.sql.
// Deletions of a principal with a budget go alone.
func requests(deletions ...*plant.Deletion) string {
	b := append(make([]byte, 0, 160*len(deletions)), '{')
	row := func(value func(*plant.Deletion) []byte) {
		for n, d := range deletions {
			b = append(b, "{,"[min(n, 1)])
			b = value(d)
		}
		b = append(b, '}', ',')
	}
	row(func(d *plant.Deletion) []byte { return strconv.AppendInt(b, int64(d.Plant), 10) })
	row(func(d *plant.Deletion) []byte { return appendQuoted(b, d.Principal) })
	row(func(d *plant.Deletion) []byte { return appendQuoted(b, d.RequestID) })
	row(func(d *plant.Deletion) []byte { return appendQuoted(b, d.Key) })
	if deletions[0].Budget != (plant.Budget{}) {
		row(func(d *plant.Deletion) []byte { return strconv.AppendInt(b, d.Budget.Most, 10) })
		row(func(d *plant.Deletion) []byte { return strconv.AppendFloat(b, d.Budget.Period.Seconds(), 'f', -1, 64) })
	}
	b[len(b)-1] = '}'
	return string(b)
}

// appendQuoted appends an element of an array literal (PostgreSQL's manual, 8.15.2).
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for n := range len(s) {
		if s[n] == '"' || s[n] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[n])
	}
	return append(b, '"')
}
