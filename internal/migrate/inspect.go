package migrate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// A State is a migration as a database has it.
type State struct {
	Migration
	AppliedAt time.Time // zero when pending
	Unknown   bool      // applied, but not part of this binary
	Changed   bool      // the file is not the one that was applied
}

// Status tells which migrations a database has, and what is wrong. It only
// reads: a database that was never migrated stays without goose's table.
func (s Set) Status(ctx context.Context, databaseURL string) (states []State, troubles []Trouble, err error) {
	conn, err := Connect(ctx, databaseURL, applicationName)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = Holding(ctx, conn, History, func(tx pgx.Tx) error {
		states, troubles, err = s.StatusIn(ctx, tx)
		return err
	})
	return states, troubles, err
}

// StatusIn is Status in a transaction of the caller's, of Holding.
func (s Set) StatusIn(ctx context.Context, tx pgx.Tx) ([]State, []Trouble, error) {
	c, err := s.inspectIn(ctx, tx)
	return c.states, c.trouble, err
}

// A Trouble is something about a database's migrations that wants a person.
type Trouble struct {
	Kind    TroubleKind `json:"kind"`
	Message string      `json:"message"`
	Remedy  string      `json:"remedy"`
}

// A TroubleKind is what a program can tell Troubles apart by.
type TroubleKind string

// Only OutOfOrder and Hindrance keep Up from working, and only Hindrance Down.
const (
	Drift        TroubleKind = "drift"         // an applied migration's file has changed
	OutOfOrder   TroubleKind = "out_of_order"  // one is pending that is older than an applied one
	Ahead        TroubleKind = "ahead"         // one is applied that the binary does not have
	InvalidIndex TroubleKind = "invalid_index" // an interrupted CREATE INDEX CONCURRENTLY
	Hindrance    TroubleKind = "hindrance"     // a migration would fail, or the service after it
	Caution      TroubleKind = "caution"       // it works, and may cost something one day
)

// A condition is what migrations a database has, and what is wrong with them.
type condition struct {
	states     []State     // by version
	pending    []Migration // oldest first
	applied    []Migration // in the order they were applied
	trouble    []Trouble
	unrecorded []Migration      // applied, without a checksum
	baselines  []Migration      // applied by something else, checksum taken later
	ours       map[int64]string // checksums of those that an Up of ours applied
}

// inspect finds out what the database has, and what is wrong with it.
func (s Set) inspect(ctx context.Context, conn *pgx.Conn) (c condition, err error) {
	err = Holding(ctx, conn, History, func(tx pgx.Tx) error {
		c, err = s.inspectIn(ctx, tx)
		return err
	})
	return c, err
}

func (s Set) inspectIn(ctx context.Context, tx pgx.Tx) (condition, error) {
	c := condition{ours: make(map[int64]string)}
	all, err := s.all()
	if err != nil {
		return c, err
	}
	if err := refuseForeignTables(ctx, tx); err != nil {
		return c, err
	}
	rows, err := readApplied(ctx, tx)
	if err != nil {
		return c, err
	}
	known := make(map[int64]Migration, len(all))
	for _, m := range all {
		known[m.Version] = m
	}
	if err := s.refuseForeignHistory(ctx, tx, rows, all); err != nil {
		return c, err
	}
	var newest Migration
	isApplied := make(map[int64]bool)
	for _, row := range rows {
		m, ok := known[row.Version]
		if ok {
			err = c.addApplied(s, m, row)
		} else {
			m = c.addUnknown(row)
		}
		if err != nil {
			return c, err
		}
		isApplied[m.Version] = true
		c.applied = append(c.applied, m)
		if m.Version > newest.Version {
			newest = m
		}
	}
	for _, m := range all {
		if !isApplied[m.Version] {
			c.addPending(m, newest)
		}
	}
	slices.SortFunc(c.states, func(a, b State) int { return cmp.Compare(a.Version, b.Version) })

	invalid, err := invalidIndexes(ctx, tx)
	c.trouble = append(c.trouble, invalid...)
	return c, err
}

func (c *condition) addApplied(s Set, m Migration, row appliedRow) error {
	checksum, err := s.checksum(m)
	if err != nil {
		return err
	}
	state := State{Migration: m, AppliedAt: row.AppliedAt}
	switch {
	case row.Checksum == nil:
		c.unrecorded = append(c.unrecorded, m)
	case *row.Checksum != checksum:
		state.Changed = true
		c.trouble = append(c.trouble, Trouble{Drift,
			fmt.Sprintf("%s has changed since it was applied here on %s: SHA-256 %.12s... then, %.12s... now",
				m.Name, row.AppliedAt.UTC().Format(time.DateOnly), *row.Checksum, checksum),
			"Put the file back as it was, and make the change a migration of its own."})
	}
	switch {
	case row.Baseline == nil:
	case *row.Baseline:
		c.baselines = append(c.baselines, m)
	default:
		c.ours[m.Version] = *row.Checksum
	}
	c.states = append(c.states, state)
	return nil
}

// addUnknown adds a migration that this binary does not have.
func (c *condition) addUnknown(row appliedRow) Migration {
	m := Migration{row.Version, fmt.Sprintf("%05d", row.Version)}
	c.states = append(c.states, State{Migration: m, AppliedAt: row.AppliedAt, Unknown: true})
	c.trouble = append(c.trouble, Trouble{Ahead,
		fmt.Sprintf("the database is ahead of this plantstore: migration %s is applied and not part of it", m.Name),
		"Migrate with the release that has it. An older service goes on working with a newer schema."})
	return m
}

// addPending adds a migration that is not applied. newest is the newest that is.
func (c *condition) addPending(m, newest Migration) {
	c.pending = append(c.pending, m)
	c.states = append(c.states, State{Migration: m})
	if m.Version < newest.Version {
		c.trouble = append(c.trouble, Trouble{OutOfOrder,
			fmt.Sprintf("%s is pending, but the newer %s is applied: 'migrate up' refuses to go back", m.Name, newest.Name),
			fmt.Sprintf("Give it a number above %d, or take the newer ones back first.", newest.Version)})
	}
}

// An appliedRow is a migration that the database has. Checksum and Baseline are
// nil where there is no record of it.
type appliedRow struct {
	Version   int64
	AppliedAt time.Time
	Checksum  *string
	Baseline  *bool
}

// readApplied returns what the database has in the order it was applied.
func readApplied(ctx context.Context, tx pgx.Tx) ([]appliedRow, error) {
	var migrated, readable, records bool
	// By the transaction's snapshot, see Holding: what came since is nobody's that we know.
	var owner, us string
	err := tx.QueryRow(ctx, `SELECT g.oid IS NOT NULL, coalesce(has_table_privilege(g.oid, 'SELECT'), false),
			coalesce(has_table_privilege(r.oid, 'SELECT'), false),
			coalesce(g.relowner::regrole::text, ''), quote_ident(current_user)
		FROM (VALUES (to_regnamespace('public')::oid)) n (oid)
			LEFT JOIN pg_class g ON g.relnamespace = n.oid AND g.relname = 'goose_db_version'
			LEFT JOIN pg_class r ON r.relnamespace = n.oid AND r.relname = 'plantstore_migrations'`).Scan(&migrated, &readable, &records, &owner, &us)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look for goose_db_version: %w", err)
	case !migrated:
		return nil, nil
	case !readable && owner != us:
		return nil, &ForeignHistoryError{fmt.Sprintf("public.goose_db_version belongs to %s, and %s may not read it", owner, us),
			"Connect as the role that migrates. If that is " + us + ", and a dump was restored without its owners, give it the service's tables and functions again, as " + owner +
				": ALTER TABLE public.goose_db_version OWNER TO " + us + "; and so on. If it is the history of another program: " + moveHistory}
	}
	// Until 00005 is applied, checksums are in the comment on goose's table.
	record, join := `n.checksum, CASE WHEN n.checksum IS NOT NULL THEN false END`, ``
	if records {
		record, join = `coalesce(r.checksum, n.checksum), coalesce(r.baseline, CASE WHEN n.checksum IS NOT NULL THEN false END)`,
			`LEFT JOIN public.plantstore_migrations r ON r.version = g.version_id AND r.applied_as = g.id`
	}
	// goose deletes the row of a migration that is taken back; version 0 only
	// says that the table was made. Its times are without a zone, in that of the
	// session that wrote them: the server's, unless somebody set another.
	found, err := tx.Query(ctx, `
		WITH noted AS (
			SELECT n.version, n.id, n.checksum FROM obj_description('public.goose_db_version'::regclass, 'pg_class') AS note,
				json_to_recordset(CASE WHEN note LIKE '{"plantstore"%' THEN note::json -> 'plantstore' END) AS n (version bigint, id integer, checksum text)
		)
		SELECT g.version_id, g.tstamp::timestamptz, `+record+`
		FROM public.goose_db_version g LEFT JOIN noted n ON n.version = g.version_id AND n.id = g.id `+join+`
		WHERE g.is_applied AND g.version_id > 0 ORDER BY g.id`)
	if err != nil {
		return nil, fmt.Errorf("read goose_db_version: %w", err)
	}
	rows, err := pgx.CollectRows(found, pgx.RowToStructByPos[appliedRow])
	if err != nil {
		return nil, fmt.Errorf("read goose_db_version: %w", err)
	}
	return rows, nil
}

// invalidIndexes finds what interrupted CREATE INDEX CONCURRENTLY left on our
// tables. One that is being built is left out.
func invalidIndexes(ctx context.Context, tx pgx.Tx) ([]Trouble, error) {
	rows, err := tx.Query(ctx, `
		SELECT format('%I.%I', n.nspname, i.relname), format('%I.%I', n.nspname, t.relname)
		FROM pg_index x
		JOIN pg_class i ON i.oid = x.indexrelid
		JOIN pg_class t ON t.oid = x.indrelid
		JOIN pg_namespace n ON n.oid = t.relnamespace
		WHERE NOT x.indisvalid AND n.nspname = 'public'
			AND (t.relname = 'plants' OR t.relname = ANY ($1))
			AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index p JOIN pg_locks l USING (pid)
				WHERE l.relation = t.oid AND l.database = p.datid AND p.datname = current_database()
				AND l.mode = 'ShareUpdateExclusiveLock')
		ORDER BY 1`, ownTables)
	if err != nil {
		return nil, fmt.Errorf("look for invalid indexes: %w", err)
	}
	var index, table string
	var found []Trouble
	_, err = pgx.ForEachRow(rows, []any{&index, &table}, func() error {
		found = append(found, Trouble{InvalidIndex,
			fmt.Sprintf("index %s on %s is INVALID: a CREATE INDEX CONCURRENTLY of it was interrupted; it slows writes and serves no query", index, table),
			fmt.Sprintf("DROP INDEX CONCURRENTLY %s; then 'plantstore migrate up', if the index is one of its.", index)})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for invalid indexes: %w", err)
	}
	return found, nil
}
