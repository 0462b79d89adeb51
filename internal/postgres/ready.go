package postgres

import (
	"context"
	"fmt"
	"strings"
)

// Why the service is not ready.
const (
	Unreachable   = "unreachable"   // the database does not answer, or not to us
	ReadOnly      = "read_only"     // a standby, or a demoted primary
	SchemaBehind  = "schema_behind" // migrations are missing
	Misconfigured = "misconfigured" // 'plantstore doctor' says what
)

// A NotReadyError says why the service cannot delete. Its text is for an operator.
type NotReadyError struct {
	Reason string // one of those above
	text   string
}

func (e *NotReadyError) Error() string { return e.text }

// NotReady returns the reason, for a metric.
func (e *NotReadyError) NotReady() string { return e.Reason }

// Ready returns nil when a writable primary answers, has every migration of versions and is
// fit to delete from. Otherwise it returns a *NotReadyError.
func (db *DB) Ready(ctx context.Context, versions []int64) error {
	ctx, cancel := context.WithTimeout(ctx, db.limits.control)
	defer cancel()
	conn, err := db.control.Acquire(ctx)
	if err != nil {
		return &NotReadyError{Unreachable, Explain(err, db.Setting)}
	}
	defer conn.Release()
	var readOnly, migrated bool
	if err := conn.QueryRow(ctx, `SELECT pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on',
		EXISTS (SELECT FROM pg_tables WHERE schemaname = 'plantstore' AND tablename = 'goose_db_version')`).Scan(&readOnly, &migrated); err != nil {
		return db.notReady(err)
	}
	if readOnly {
		db.reset() // with several hosts, the next connection may find the new primary
		return &NotReadyError{ReadOnly, "the database is read-only: a standby, or default_transaction_read_only is on"}
	}
	if !migrated { // then the service's role may not even look into the schema
		return &NotReadyError{SchemaBehind, "the schema is missing: apply the migrations with 'plantstore migrate up'"}
	}
	var missing []int64
	if err := conn.QueryRow(ctx, `SELECT ARRAY(SELECT v FROM unnest($1::bigint[]) v
		WHERE NOT EXISTS (SELECT FROM plantstore.goose_db_version g WHERE g.version_id = v AND g.is_applied) ORDER BY v)`, versions).Scan(&missing); err != nil {
		return db.notReady(err)
	}
	if len(missing) > 0 {
		return &NotReadyError{SchemaBehind, fmt.Sprintf("migrations %v are missing: apply them with 'plantstore migrate up'", missing)}
	}
	if _, err := conn.Exec(ctx, `SELECT FROM (`+readTokens+`) t LIMIT 0`); err != nil {
		return db.notReady(err)
	}
	var problems []string
	if err := conn.QueryRow(ctx, `SELECT ARRAY(
		SELECT unfit FROM plantstore.unfit()
		UNION ALL SELECT 'public.plants does not exist' WHERE to_regclass('public.plants') IS NULL
		UNION ALL SELECT 'the trigger record_deletion on public.plants is missing or disabled'
			WHERE NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass('public.plants') AND tgname = 'record_deletion' AND tgenabled IN ('O', 'A'))
		UNION ALL SELECT format('role %I may not delete from public.plants', current_user)
			WHERE NOT has_table_privilege(to_regclass('public.plants'), 'DELETE'))`).Scan(&problems); err != nil {
		return db.notReady(err)
	}
	if len(problems) > 0 {
		return &NotReadyError{Misconfigured, strings.Join(problems, "; ")}
	}
	return nil
}

func (db *DB) notReady(err error) error {
	if classify(err) == misconfigured {
		return &NotReadyError{Misconfigured, Explain(err, db.Setting)}
	}
	return &NotReadyError{Unreachable, Explain(err, db.Setting)}
}
