package migrate

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// OfOthers is the condition, in SQL, that trigger t, whose function is f, runs code of a role that
// is neither @owner nor trusted otherwise, see ForeignTableError, with the rights of whoever writes
// its table. Who made a trigger nobody knows. So where others may make some, one that hands its function
// arguments, or has a condition, counts as theirs. A condition is code as well: its functions count, and
// PostgreSQL's that may do what they are told to, such as query_to_xml.
const OfOthers = `(EXISTS (SELECT FROM (` + others + `) o WHERE o.oid = f.proowner OR (t.tgnargs > 0 OR t.tgqual IS NOT NULL) AND has_table_privilege(o.oid, t.tgrelid, 'TRIGGER'))
	OR EXISTS (SELECT FROM pg_proc w WHERE w.oid IN (SELECT m.match[1]::oid FROM regexp_matches(t.tgqual::text, ':(?:op)?funcid ([0-9]+)', 'g') m (match))
		AND (w.provolatile = 'v' AND w.pronamespace = 'pg_catalog'::regnamespace OR w.proowner IN (` + others + `))))`

const others = `SELECT r.oid FROM pg_roles r WHERE NOT r.rolsuper AND r.rolname NOT IN (@owner::text, 'plantstore_owner')`

// ActingTriggers finds the triggers of others on tables of schema public, whose names are an array in SQL:
// as a grade, what it does, and what helps.
func ActingTriggers(tables string) string {
	return `
	SELECT 'problem', format('trigger %I of %s runs %s of %s with the rights of whoever writes there', t.tgname, t.tgrelid::regclass, f.oid::regprocedure, f.proowner::regrole),
		format('DROP TRIGGER %I ON %s;', t.tgname, t.tgrelid::regclass)
	FROM pg_class c JOIN pg_trigger t ON t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D' JOIN pg_proc f ON f.oid = t.tgfoid
	WHERE c.relnamespace = to_regnamespace('public') AND c.relname = ANY (` + tables + `) AND ` + OfOthers
}

// ActingReferences finds the foreign keys by which rows of others' tables change with ours, also by
// way of further tables: triggers there run with the rights of whoever changes ours.
func ActingReferences(tables string) string {
	return `
	SELECT 'problem', format('foreign key %I of %s, which belongs to %s, changes it with %s: triggers there run with the rights of whoever writes here', key.conname, c.oid::regclass, c.relowner::regrole, key.confrelid::regclass),
		format('ALTER TABLE %s DROP CONSTRAINT %I;', c.oid::regclass, key.conname)
	FROM (WITH RECURSIVE acting AS (
			SELECT k.oid, k.conname, k.conrelid, k.confrelid FROM pg_constraint k
			WHERE k.contype = 'f' AND k.conparentid = 0 AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd')) AND to_jsonb(k) ->> 'conenforced' IS DISTINCT FROM 'false'
		), reach AS (
			SELECT a.* FROM acting a JOIN pg_class c ON c.oid = a.confrelid WHERE c.relnamespace = to_regnamespace('public') AND c.relname = ANY (` + tables + `)
			UNION
			SELECT a.* FROM acting a JOIN reach r ON a.confrelid = r.conrelid
		) TABLE reach) key JOIN pg_class c ON c.oid = key.conrelid
	WHERE EXISTS (SELECT FROM (` + others + `) o WHERE o.oid = c.relowner OR has_table_privilege(o.oid, c.oid, 'TRIGGER'))`
}

// HistoryTables are those of History, as an array in SQL.
const HistoryTables = `'{` + history + `}'::text[]`

// refuseOthers returns an error where writing down what was migrated would run others' code
// with our rights.
func refuseOthers(ctx context.Context, tx statements) error {
	var owner string
	if err := tx.QueryRow(ctx, `SELECT `+trustedSelf).Scan(&owner); err != nil {
		return fmt.Errorf("look who we are: %w", err)
	}
	rows, err := tx.Query(ctx, ActingTriggers(HistoryTables)+"\nUNION ALL\n"+ActingReferences(HistoryTables), pgx.NamedArgs{"owner": owner})
	if err != nil {
		return fmt.Errorf("look for triggers of others: %w", err)
	}
	var grade, message, remedy string
	var messages, remedies []string
	_, err = pgx.ForEachRow(rows, []any{&grade, &message, &remedy}, func() error {
		messages, remedies = append(messages, printable(message)), append(remedies, printable(remedy))
		return nil
	})
	switch {
	case err != nil:
		return fmt.Errorf("look for triggers of others: %w", err)
	case len(messages) > 0:
		return fmt.Errorf("others could act with your rights: %s. Find out who made it, and drop it: %s", strings.Join(messages, "; "), strings.Join(remedies, " "))
	}
	return nil
}
