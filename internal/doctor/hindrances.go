package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/migrate"
)

// A hindrance is something that keeps the service from its work or its promises,
// and that others can bring about: the table's owner, a DBA, another program.
type hindrance struct {
	name  string
	check string // of its findings
	when  moment
	// sql returns a row for each finding: grade, message, remedy. It works on any
	// database, migrated or not, for any role, and knows the arguments of situation.
	sql string
}

// A moment is when a hindrance counts. The doctor looks for all that can be there
// once the migrations are applied.
type moment int

const (
	byDoctor moment = 1 << iota
	beforeUp        // a problem is a reason not to apply anything
	beforeDown
	// ready: a problem makes deleting impossible, or leaves it without a record.
	// It is looked for each second, as the service's role.
	ready
	// last: the query reads tables of ours, and is worth asking only if none of the
	// others found a problem.
	last
)

// hindrances returns everything that can hinder.
func hindrances() []hindrance {
	return []hindrance{
		{"a table that is gone", "plants", byDoctor | beforeUp | ready, tableGone},
		{"plants in other schemas", "plants", byDoctor | beforeUp, plantsElsewhere},
		{"a table that is not fit", "plants", byDoctor | beforeUp, unfitTable},
		{"an id that is not fit", "plants", byDoctor | beforeUp | ready, unfitID},
		{"children and parents", "plants", byDoctor | beforeUp | ready, relatives},
		{"row level security", "plants", byDoctor | beforeUp | ready, rowSecurity},
		{"the rights of who owns what refers", "plants", byDoctor | beforeUp, referringRights},
		{"rules", "plants", byDoctor | beforeUp, rules},
		{"triggers", "plants", byDoctor | beforeUp, foreignTriggers},
		{"code that a restore runs", "plants", byDoctor | beforeUp, restoredCode()},
		{"triggers that keep rows", "plants", byDoctor | beforeUp, keepingTriggers},
		{"the replica identity", "plants", byDoctor | beforeUp | ready, replicaIdentity},
		{"session_replication_role", "plants", byDoctor | beforeUp | ready, replicationRole},
		{"transaction ids", "plants", byDoctor | ready, transactionIDs},
		{"subscriptions", "plants", byDoctor | beforeUp, subscriptions},

		{"the service's role as the migrating one", "rights", beforeUp | beforeDown, serviceMigrates},
		{"the rights of the owner", "rights", byDoctor | beforeUp, ownerRights},
		{"the rights that recording takes", "rights", byDoctor | ready, recordingRights},
		{"a superuser's ledger", "rights", byDoctor, superusersLedger},
		{"the rights to make tables", "rights", beforeUp, schemaRights},
		{"the rights to use languages", "rights", beforeUp | beforeDown, languageRights},
		{"the service's role", "rights", beforeUp, missingRole},
		{"the rights of the service", "rights", ready, serviceRights},
		{"the service as somebody else", "rights", ready, otherService},
		{"rights of others", "rights", byDoctor, rightsOfOthers},
		{"others' tables that change with ours", "rights", byDoctor, migrate.ActingReferences(allTables)},
		{"others' triggers where migrations are recorded", "rights", beforeUp | beforeDown, migrate.ActingTriggers(migrate.HistoryTables)},
		{"others' tables that change with that", "rights", beforeUp | beforeDown, migrate.ActingReferences(migrate.HistoryTables)},
		{"default privileges", "rights", byDoctor | beforeUp, defaultPrivileges},
		{"members of the service's role", "rights", byDoctor, members},
		{"passwords that end", "rights", byDoctor, endingPasswords},
		{"event triggers", "rights", beforeUp, eventTriggers(upTags)},
		{"event triggers on the way down", "rights", beforeDown, eventTriggers(downTags)},

		{"names that are taken", "names", beforeUp, takenNames},
		{"triggers with names of ours", "names", beforeUp, triggersLikeOurs},
		{"functions with names of ours", "names", byDoctor | beforeUp, functionsLikeOurs},
		{"schemas with names of ours", "names", byDoctor | beforeUp, schemasLikeOurs},
		{"who makes objects in public", "names", byDoctor | beforeUp, creators},

		{"tables that are missing", "schema", byDoctor | ready, missingTables},
		{"triggers and functions of ours", "record", byDoctor | ready, shippedObjects},
		{"the tables of ours", "record", byDoctor | ready, alteredTables},
		{"triggers that change the record", "record", ready, changingTriggers},
		{"triggers of tables of ours", "record", byDoctor, triggersOfOurs},
		{"a ledger that does not hold", "record", ready, looseLedger},
		{"columns and constraints of ours", "record", byDoctor, changedTables},
		{"rows that nobody counts", "record", byDoctor, uncountedRows()},
		{"the ledger's sequence", "record", byDoctor | ready | last, ledgerSequence},
		{"the shapes' sequence", "record", byDoctor | last, shapesSequence},
		{"shapes that are lost", "record", byDoctor | last, lostShapes},

		{"what only the table's owner can drop", "rights", beforeDown, foreignTable},
	}
}

// A situation is what the queries have to know.
type situation struct {
	app   string // the service's role
	owner string // the migrating role; empty if it does not matter
	// work are the versions that are to be applied, or taken back.
	work []int64
	// ahead: a newer release has migrated, and may have changed what ours made.
	ahead bool
	// current: the last of our migrations is applied, and none of a newer release.
	current bool
}

func (s situation) arguments() pgx.NamedArgs {
	all := maps.Clone(shippedArguments())
	all["app"], all["owner"], all["ahead"], all["work"] = s.app, s.owner, s.ahead, append([]int64{}, s.work...)
	all["current"] = s.current
	return all
}

// compare notes how far the database is, if that can be read.
func (s *situation) compare(ctx context.Context, tx pgx.Tx) error {
	var readable bool
	err := tx.QueryRow(ctx, `SELECT coalesce(has_table_privilege(g.oid, 'SELECT') AND NOT row_security_active(g.oid), false)
		FROM (SELECT (SELECT c.oid FROM pg_class c WHERE c.relnamespace = to_regnamespace('public') AND c.relname = 'goose_db_version')) g (oid)`).Scan(&readable)
	if err != nil || !readable {
		return err
	}
	return tx.QueryRow(ctx, `SELECT coalesce(max(version_id) > $1, false), coalesce(max(version_id) = $1, false) FROM public.goose_db_version WHERE is_applied`,
		migrate.Latest()).Scan(&s.ahead, &s.current)
}

// look returns what a query of the list finds.
func look(ctx context.Context, tx pgx.Tx, sql string, arguments pgx.NamedArgs) ([]Finding, error) {
	rows, err := tx.Query(ctx, sql, arguments)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (f Finding, err error) {
		err = row.Scan(&f.Grade, &f.Message, &f.Remedy)
		return f.legible(), err
	})
}

// hindrancesAt looks for what hinders at a moment. The findings are in the order of
// the list. about, if not empty, restricts them to one check.
func hindrancesAt(ctx context.Context, tx pgx.Tx, at moment, about string, s situation) ([]Finding, error) {
	if _, err := tx.Exec(ctx, `SET LOCAL jit = off`); err != nil { // to compile restoredCode takes seconds
		return nil, err
	}
	arguments := s.arguments()
	var all []Finding
	sound := true
	for _, h := range hindrances() {
		if h.when&at == 0 || about != "" && h.check != about || h.when&last != 0 && !sound {
			continue
		}
		if h.when&last != 0 { // as with the tables, see migrate.Holding: a view may have come since
			there, err := migrate.There(ctx, tx, "plant_deletions_id_seq", "plant_shapes_id_seq")
			if err == nil && !there {
				err = errors.New("a sequence of ours is not there")
			}
			if err != nil {
				return nil, fmt.Errorf("look for %s: %w", h.name, err)
			}
		}
		found, err := look(ctx, tx, h.sql, arguments)
		if err != nil {
			return nil, fmt.Errorf("look for %s: %w", h.name, err)
		}
		sound = sound && (h.when&last != 0 || Worst(found) != Problem)
		all = append(all, found...)
	}
	return all, nil
}

// hindrancesNow looks for what hinders, for one check of the doctor. Where a table is
// somebody else's, it is not asked how far the database is.
func hindrancesNow(ctx context.Context, tx pgx.Tx, about string, foreign bool) ([]Finding, error) {
	s := situation{app: serviceRole}
	// Who examines need not be who migrates.
	err := tx.QueryRow(ctx, `SELECT coalesce((SELECT r.rolname FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
		WHERE c.oid = to_regclass('public.plant_deletions')), current_user)::text`).Scan(&s.owner)
	if err == nil && !foreign {
		err = s.compare(ctx, tx)
	}
	if err != nil {
		return nil, err
	}
	return hindrancesAt(ctx, tx, byDoctor, about, s)
}

// Hindrances is for a migrate.Set: it tells what stands in the way of applying
// work, or of taking it back. Problems are reasons not to begin.
func Hindrances(ctx context.Context, tx pgx.Tx, up bool, work []migrate.Migration) ([]migrate.Trouble, error) {
	s := situation{app: serviceRole}
	for _, m := range work {
		s.work = append(s.work, m.Version)
	}
	err := tx.QueryRow(ctx, `SELECT current_user::text`).Scan(&s.owner)
	if err != nil {
		return nil, err
	}
	if err := s.compare(ctx, tx); err != nil {
		return nil, err
	}
	at := beforeDown
	if up {
		at = beforeUp
	}
	found, err := hindrancesAt(ctx, tx, at, "", s)
	if err != nil {
		return nil, err
	}
	var troubles []migrate.Trouble
	for _, f := range found {
		kind := migrate.Hindrance
		if f.Grade == Warning {
			kind = migrate.Caution
		}
		troubles = append(troubles, migrate.Trouble{Kind: kind, Message: f.Message, Remedy: f.Remedy})
	}
	if up || Worst(found) == Problem {
		return troubles, nil
	}
	losses, err := lost(ctx, tx, work)
	return append(troubles, losses...), err
}
