// Package doctor examines a database and says what is wrong with it, and what
// helps. It changes nothing. (For a superuser it locks what it reads, see migrate.Holding.)
package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/migrate"
	"plantstore/internal/postgres"
)

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

// A Target is the database to examine, and who uses it.
type Target struct {
	Owner   string // URL of the owner's direct connection
	Service string // URL that the service connects with; empty if not known
	// OwnerSetting and ServiceSetting are what a person changes to change the URLs.
	OwnerSetting, ServiceSetting string
	// PrivateNetwork says that nobody else is on the network to the database.
	PrivateNetwork bool
	// Replicas is how many instances of the service run.
	Replicas int
	Limits   Limits
}

// serviceRole is what deploy/postgres/roles.sql calls the service's role.
const serviceRole = "plantstore_app"

// Examine examines a database. What it cannot look at is a finding, too.
func Examine(ctx context.Context, target Target) []Finding {
	e := examination{Target: target, isRemote: isRemote}
	return e.run(ctx)
}

// An examination is one call of Examine.
type examination struct {
	Target
	isRemote func(net.Addr) bool // tests have everything on one machine
	pooled   bool                // the service's connection goes through a pooler
	foreign  bool                // a table of ours is somebody else's: better not touched
	findings []Finding
}

// A check looks at one subject and returns one finding at least. Its transaction
// is the owner's and read-only.
type check struct {
	name  string
	look  func(context.Context, pgx.Tx) ([]Finding, error)
	reads []string // tables of ours, none of which may be somebody else's then
	// without: what else it looks at is worth it where one is, or is not there.
	without bool
}

func (e *examination) run(ctx context.Context) []Finding {
	e.findings, e.foreign = nil, false
	e.add("service connection", e.serviceConnection(ctx)...)
	conn, err := migrate.Connect(ctx, e.Owner, applicationName)
	if err != nil {
		e.add("connection", Finding{Grade: Problem, Message: postgres.ExplainFor(err, e.OwnerSetting), Remedy: "Mend that, and run this again: nothing else could be examined."})
		return e.findings
	}
	defer conn.Close(context.WithoutCancel(ctx))
	e.add("connection", e.ownerConnection(ctx, conn)...)
	if found := outside(ctx, conn); len(found) > 0 {
		e.add("rights", found...)
		return e.findings
	}
	e.look(ctx, conn,
		check{name: "version", look: e.version},
		check{name: "primary", look: e.primary},
		check{name: "connections", look: e.connections},
		check{name: "transactions", look: e.transactions},
		check{name: "schema", look: e.schema, reads: migrate.History, without: true},
		check{name: "plants", look: e.hindrances("plants", "nothing keeps them from being deleted, recorded and restored"), reads: migrate.History, without: true},
		check{name: "rights", look: e.hindrances("rights", "the owner can do its job, and nobody else can touch what is ours"), reads: migrate.History, without: true},
		check{name: "names", look: e.hindrances("names", "nobody else has names of ours"), reads: migrate.History, without: true},
	)
	if !e.foreign && haveTables(ctx, conn) {
		e.look(ctx, conn,
			check{name: "record", look: e.hindrances("record", "each deletion is recorded, TRUNCATE is refused"), reads: []string{"goose_db_version", "plant_deletions", "plant_shapes"}},
			check{name: "grants", look: e.grants},
			check{name: "foreign keys", look: e.foreignKeys},
			check{name: "cascades", look: e.cascades},
			check{name: "ledger", look: e.ledger, reads: []string{"plant_deletions"}},
			check{name: "tokens", look: e.tokens, reads: []string{"api_tokens"}},
		)
	}
	return e.findings
}

// hindrances returns what looks at the hindrances of one check.
func (e *examination) hindrances(about, none string) func(context.Context, pgx.Tx) ([]Finding, error) {
	return func(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
		found, err := hindrancesNow(ctx, tx, about, e.foreign)
		return orFine(found, "%s", none), err
	}
}

func (e *examination) add(check string, found ...Finding) {
	for _, f := range found {
		f.Check = check
		e.findings = append(e.findings, f)
	}
}

func (e *examination) look(ctx context.Context, conn *pgx.Conn, checks ...check) {
	for _, c := range checks {
		var found []Finding
		look := func(tx pgx.Tx) (err error) {
			found, err = c.look(ctx, tx)
			return err
		}
		var err error
		switch {
		case len(c.reads) == 0, e.foreign && c.without:
			err = migrate.Reading(ctx, conn, look)
		case e.foreign:
			continue
		case c.without:
			err = migrate.Holding(ctx, conn, c.reads, look)
		default:
			err = migrate.Holding(ctx, conn, c.reads, func(tx pgx.Tx) error {
				there, err := migrate.There(ctx, tx, c.reads...)
				if err == nil && !there {
					err = fmt.Errorf("one of %s is not there", strings.Join(c.reads, ", "))
				}
				if err != nil {
					return err
				}
				return look(tx)
			})
		}
		if foreign, ok := errors.AsType[*migrate.ForeignTableError](err); ok {
			e.foreign = true
			found = []Finding{Finding{Grade: Problem, Message: fmt.Sprintf("%s belongs to role %s, and could run its code with our rights: nothing of it was examined", foreign.Table, foreign.Owner),
				Remedy: foreign.Remedy()}.legible()}
		} else if errors.Is(err, migrate.ErrNoSchema) {
			e.foreign = true // whatever comes by that name
			found = []Finding{{Grade: Problem, Message: "there is no schema public", Remedy: "CREATE SCHEMA public;"}}
		} else if err != nil {
			found = []Finding{{Grade: Warning, Message: "could not be examined: " + postgres.Explain(err),
				Remedy: "Connect as the owner of the service's tables, see PLANTSTORE_MIGRATE_DATABASE_URL."}}
		}
		e.add(c.name, found...)
	}
}

// outside finds that the schema may not be used: nothing in it could be named.
func outside(ctx context.Context, conn *pgx.Conn) (found []Finding) {
	_ = migrate.Reading(ctx, conn, func(tx pgx.Tx) error { // where that can't be seen, the checks tell
		rows, err := tx.Query(ctx, `SELECT format('%s may not use schema public: nothing else could be examined', current_user), format('GRANT USAGE ON SCHEMA public TO %I;', current_user)
			FROM pg_namespace n WHERE n.nspname = 'public' AND NOT has_schema_privilege(n.oid, 'USAGE')`)
		if err == nil {
			found, err = collect(rows, Problem)
		}
		return err
	})
	return found
}

// haveTables tells whether the tables are there that most checks are about. Where it can't
// see, it says yes, and the checks tell that they can't either.
func haveTables(ctx context.Context, conn *pgx.Conn) (have bool) {
	err := migrate.Reading(ctx, conn, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT to_regclass('public.plants') IS NOT NULL AND to_regclass('public.plant_deletions') IS NOT NULL AND to_regclass('public.plant_shapes') IS NOT NULL
			AND to_regclass('public.plantstore_budgets') IS NOT NULL AND to_regclass('public.api_principals') IS NOT NULL AND to_regclass('public.api_tokens') IS NOT NULL`).Scan(&have)
	})
	return err != nil || have
}

// collect makes a finding of each row: message, remedy.
func collect(rows pgx.Rows, grade Grade) ([]Finding, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Finding, error) {
		f := Finding{Grade: grade}
		err := row.Scan(&f.Message, &f.Remedy)
		return f.legible(), err
	})
}

// legible has nothing in it that means something to a terminal: others may have
// chosen the names that are told, with that in mind.
func (f Finding) legible() Finding {
	escape := func(s string) string {
		var b strings.Builder
		for _, r := range s {
			if r == '\n' || unicode.IsPrint(r) {
				b.WriteRune(r)
			} else {
				fmt.Fprintf(&b, "\\u%04x", r)
			}
		}
		return b.String()
	}
	f.Message, f.Remedy = strings.ReplaceAll(escape(f.Message), "\n", "\\u000a"), escape(f.Remedy)
	return f
}

func fine(format string, args ...any) []Finding {
	return []Finding{{Grade: OK, Message: fmt.Sprintf(format, args...)}}
}

// orFine returns found or, where that is empty, that all is well.
func orFine(found []Finding, format string, args ...any) []Finding {
	if len(found) == 0 {
		return fine(format, args...)
	}
	return found
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
