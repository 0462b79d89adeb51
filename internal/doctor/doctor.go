// Package doctor looks for accidents in a database: changes that an owner, a DBA or a script
// made by mistake. Each check is one query. It changes nothing.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/postgres"
)

// A Level is the severity of a finding.
type Level string

// The levels.
const (
	Problem Level = "problem" // the service fails, is slow, or breaks a promise
	Advice  Level = "advice"  // it works, and may be meant to be so
)

// A Finding is a fault that a check found.
type Finding struct {
	Check   string `json:"check"`
	Level   Level  `json:"level"`
	Message string `json:"message"`
	// Remedy is SQL for psql or commands for a shell. A step that needs a decision is a
	// comment.
	Remedy string `json:"remedy,omitempty"`
}

// Input has the connections and values that the checks need.
type Input struct {
	Service *pgx.Conn // as the service connects; nil where it cannot, or its URL is not known
	Owner   *pgx.Conn // as the schema's owner connects; nil: the service's role is the owner
	// ServiceErr and OwnerErr say why a connection is missing.
	ServiceErr, OwnerErr error
	Versions             []int64 // of this binary's migrations
	Connections          int     // how many all replicas of the service open at most
	Skip                 []string
}

// A Check is the name of a check, and a description of it.
type Check struct{ Name, About string }

// Checks returns all checks in the order in which they run.
func Checks() []Check {
	var all []Check
	for _, c := range checks() {
		all = append(all, Check{c.name, c.about})
	}
	return all
}

// A check is one query that returns a level, a message and a remedy for each finding. It knows
// the arguments of Input.arguments.
type check struct {
	name, about string
	by          role
	sql         string
	find        func(Input) []Finding // instead of by and sql
}

// A role says whose connection a check uses.
type role int

const (
	service role = 1 << iota
	owner
	both = service | owner
)

// schemaCheck is the check for pending migrations. If it fails, the later checks are not run.
const schemaCheck = "schema"

func checks() []check {
	return []check{
		{name: "connect", about: "service and owner can connect", find: connections},
		{name: "tls", about: "the connections are encrypted, unless they stay on this machine", find: encryption},
		{name: "version", about: "the version of PostgreSQL", by: owner, sql: version},
		{name: "primary", about: "the server is the primary and takes writes", by: both, sql: primary},
		{name: "connections", about: "the server has room for the service's connections", by: service, sql: poolSize},
		{name: "transactions", about: "transactions that have been open for 15 minutes, prepared ones too", by: owner, sql: transactions},
		{name: "password", about: "passwords that expire within 14 days", by: both, sql: password},
		{name: "superuser", about: "the service's role is no superuser", by: service, sql: superuser},
		{name: "session", about: "the settings of the service's sessions behind a pooler in transaction mode", by: service, sql: session},
		{name: "durability", about: "synchronous_commit is not off by default", by: both, sql: durability},
		{name: "triggers-fire", about: "session_replication_role is not replica by default", by: both, sql: triggersFire},
		{name: schemaCheck, about: "every migration is applied, and its owner can use schema public", by: owner, sql: schema},
		{name: "table", about: "the service can work with public.plants", by: owner, sql: table},
		{name: "ledger-trigger", about: "the triggers that record deletions and refuse TRUNCATE are enabled", by: owner, sql: ledgerTrigger},
		{name: "unlogged", about: "a crash does not empty the service's tables", by: owner, sql: unlogged},
		{name: "replica-identity", about: "published deletions of plants are possible", by: owner, sql: replicaIdentity},
		{name: "sequences", about: "no sequence is behind the ids, as after a logical failover", by: owner, sql: sequences},
		{name: "rights", about: "the service's role has the rights that it needs", by: service, sql: rights},
		{name: "excess-rights", about: "the service's role and PUBLIC can read and change nothing else", by: service, sql: excessRights},
		{name: "roles", about: "the service's role owns neither the ledger nor plants", by: service, sql: roles},
		{name: "foreign-keys", about: "tables that refer to plants have an index for it", by: owner, sql: foreignKeys},
		{name: "cascades", about: "unwatched foreign keys that remove or change other tables' rows", by: owner, sql: cascades},
		{name: "restore-rights", about: "the owner has the rights that a restore needs, for plants and watched tables", by: owner, sql: restoreRights},
		{name: "store-triggers", about: "triggers of the store's that a deletion or a restore fires", by: owner, sql: storeTriggers},
		{name: "ledger", about: "the ledger is purged", by: owner, sql: ledger},
		{name: "tokens", about: "tokens that expire within 14 days", by: owner, sql: tokens},
		{name: "budgets", about: "deletion budgets that are used up", by: owner, sql: budgets},
	}
}

// Run runs all checks but those to skip. If migrations are pending, it ends with that
// finding. Without a connection, its checks are left out, and "connect" says so. The error
// lists the checks that failed; the findings of the others are valid.
func Run(ctx context.Context, in Input) ([]Finding, error) {
	if in.Service == nil && in.Owner == nil {
		return nil, errors.Join(in.ServiceErr, in.OwnerErr)
	}
	if in.Owner == nil && in.OwnerErr == nil {
		in.Owner = in.Service
	}
	var findings []Finding
	var failed []error
	for _, c := range checks() {
		if slices.Contains(in.Skip, c.name) {
			continue
		}
		found, err := c.run(ctx, in)
		if err != nil {
			failed = append(failed, fmt.Errorf("check %s failed: %s", c.name, postgres.Explain(err, "")))
		}
		for _, f := range found {
			if !slices.Contains(findings, f) { // both roles may be the same
				findings = append(findings, f)
			}
		}
		if c.name == schemaCheck && slices.ContainsFunc(found, func(f Finding) bool { return f.Level == Problem }) {
			break
		}
	}
	return findings, errors.Join(failed...)
}

// run runs a check on each connection that it uses.
func (c check) run(ctx context.Context, in Input) ([]Finding, error) {
	if c.find != nil {
		found := c.find(in)
		for i := range found {
			found[i].Check = c.name
		}
		return found, nil
	}
	var conns []*pgx.Conn
	if c.by&service != 0 && in.Service != nil {
		conns = append(conns, in.Service)
	}
	if c.by&owner != 0 && in.Owner != nil && !slices.Contains(conns, in.Owner) {
		conns = append(conns, in.Owner)
	}
	var findings []Finding
	for _, conn := range conns {
		found, err := c.inTx(ctx, conn, in.arguments(conn))
		if err != nil {
			return findings, err
		}
		findings = append(findings, found...)
	}
	return findings, nil
}

// arguments returns the arguments of the queries.
func (in Input) arguments(conn *pgx.Conn) pgx.NamedArgs {
	return pgx.NamedArgs{
		"versions":    in.Versions,
		"connections": in.Connections,
		"pid":         int64(conn.PgConn().PID()), // as the driver knows it
		"oldest":      15, "newest": 18,           // versions of PostgreSQL
		"transaction": (15 * time.Minute).Seconds(),     // age of an open transaction
		"soon":        (14 * 24 * time.Hour).Seconds(),  // time until a token or password expires
		"old":         (400 * 24 * time.Hour).Seconds(), // age of the ledger's oldest entry
		"scan":        8 << 20,                          // bytes of a table that take too long to scan
	}
}

// limits are the settings of a check's transaction. The search path has the catalogue only,
// so that PostgreSQL writes the schema in front of the store's names.
const limits = `SELECT set_config('statement_timeout', '5s', true), set_config('lock_timeout', '1s', true), set_config('search_path', 'pg_catalog, pg_temp', true)`

func (c check) inTx(ctx context.Context, conn *pgx.Conn, arguments pgx.NamedArgs) (found []Finding, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, limits); err != nil {
			return err
		}
		found, err = c.query(ctx, tx, arguments)
		return err
	})
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && c.name == schemaCheck && pg.Code == "42P01" { // no such table
		return []Finding{{c.name, Problem, "no migration is applied", "plantstore migrate up"}}, nil
	}
	return found, err
}

// query returns the findings of the check's query. It uses no prepared statement, which a
// pooler could lose.
func (c check) query(ctx context.Context, tx pgx.Tx, arguments pgx.NamedArgs) ([]Finding, error) {
	rows, _ := tx.Query(ctx, c.sql, pgx.QueryExecModeExec, arguments)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Finding, error) {
		f := Finding{Check: c.name}
		err := row.Scan(&f.Level, &f.Message, &f.Remedy)
		return f, err
	})
}
