package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const history = "goose_db_version,plantstore_migrations"

// History are the tables that tell what was migrated. Each migration writes them.
var History = strings.Split(history, ",")

// errMoved says that what a name means has changed while we looked.
var errMoved = errors.New("schema public, or a table of ours in it, is gone or has just got another name: run this again")

// ErrNoSchema says that there is no place for our tables.
var ErrNoSchema = errors.New("there is no schema public: CREATE SCHEMA public")

// statements are sent in a transaction, by whoever has begun it.
type statements interface {
	Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, arguments ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row
}

// Holding is Reading, of tables of ours that stay what they are meanwhile: none becomes somebody
// else's after it was found to be ours. It returns a ForeignTableError if one is already. One
// that is not there, see There, must not be named: somebody may just be making it.
//
// Who owns the database can drop tables, and rename schema public and give its name to one of
// theirs, with views whose code runs for whoever reads them. A superuser has most to lose by
// that: it locks the tables, and the schema's row, which renames wait for and GRANTs don't.
// That takes a transaction that may write, until it has the lock. On a standby no row can be locked.
func Holding(ctx context.Context, conn *pgx.Conn, tables []string, look func(pgx.Tx) error) error {
	super, standby, err := standing(ctx, conn)
	if err != nil {
		return err
	}
	if !super {
		return Reading(ctx, conn, func(tx pgx.Tx) error {
			if err := refuseForeignTables(ctx, tx); err != nil {
				return err
			}
			return look(tx)
		})
	}
	access := pgx.ReadWrite // whatever the database's default is
	if standby {
		access = pgx.ReadOnly
	}
	const attempts = 3
	for attempt := 1; ; attempt++ {
		err := reading(ctx, conn, access, func(tx pgx.Tx) error {
			err := asSuperuser(ctx, tx, func() error {
				if !standby {
					if err := lockSchema(ctx, tx); err != nil {
						return err
					}
				}
				return lockTables(ctx, tx, tables, "ACCESS SHARE")
			})
			if err != nil {
				return err
			}
			if err := refuseForeignTables(ctx, tx); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `SET TRANSACTION READ ONLY`); err != nil {
				return err
			}
			return look(tx)
		})
		if attempt == attempts || !errors.Is(err, errMoved) {
			return err
		}
	}
}

// standing tells whether the session could be a superuser's, and whether it is on a standby.
// Of a superuser that the database's settings made another role, a view's code makes one
// again. It is asked before the search path is pinned.
func standing(ctx context.Context, conn *pgx.Conn) (super, standby bool, err error) {
	err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolsuper
			AND (r.rolname OPERATOR(pg_catalog.=) session_user OR r.rolname OPERATOR(pg_catalog.=) current_user)),
		pg_catalog.pg_is_in_recovery()`).Scan(&super, &standby)
	if err != nil {
		err = fmt.Errorf("look who we are: %w", err)
	}
	return super, standby, err
}

// asSuperuser has the session's user do something, if that is the superuser and not the role
// that it has now.
func asSuperuser(ctx context.Context, tx statements, do func() error) error {
	var is bool
	var role string
	if err := tx.QueryRow(ctx, `SELECT current_setting('is_superuser')::boolean, current_setting('role')`).Scan(&is, &role); err != nil {
		return fmt.Errorf("look who we are: %w", err)
	}
	if is {
		return do()
	}
	become := func(role string) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('role', $1, true)`, role); err != nil {
			return fmt.Errorf("become role %s: %w", role, err)
		}
		return nil
	}
	if err := become("none"); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return become(role)
}

// lockSchema keeps schema public's name until the transaction ends. It returns ErrNoSchema where
// there is none, and errMoved where it could not lock that very schema: one that is renamed while
// we wait is none, and PostgreSQL may lock nothing then, and say nothing.
func lockSchema(ctx context.Context, tx statements) error {
	tag, err := tx.Exec(ctx, `SELECT FROM pg_namespace WHERE nspname = 'public' FOR KEY SHARE`)
	const serializationFailure = "40001" // renamed since the snapshot, or given rights
	pg, refused := errors.AsType[*pgconn.PgError](err)
	switch {
	case refused && pg.Code == serializationFailure:
		return errMoved
	case err != nil:
		return fmt.Errorf("lock the name of schema public: %w", err)
	case tag.RowsAffected() == 1:
		return nil
	}
	var there bool
	if err := tx.QueryRow(ctx, `SELECT to_regnamespace('public') IS NOT NULL`).Scan(&there); err != nil {
		return fmt.Errorf("look for schema public: %w", err)
	}
	if !there {
		return ErrNoSchema
	}
	return errMoved
}

// lockTables keeps those of the tables that are there as they are.
func lockTables(ctx context.Context, tx statements, tables []string, mode string) error {
	rows, err := tx.Query(ctx, `SELECT 'public.' || quote_ident(relname) FROM pg_class
		WHERE relnamespace = to_regnamespace('public') AND relkind IN ('r', 'p', 'v') AND relname = ANY ($1) ORDER BY 1`, tables)
	if err != nil {
		return fmt.Errorf("look for tables to lock: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) == 0 {
		return err
	}
	_, err = tx.Exec(ctx, `LOCK TABLE ONLY `+strings.Join(names, ", ONLY ")+` IN `+mode+` MODE`)
	const undefinedTable = "42P01"
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == undefinedTable {
		return errMoved
	}
	return err
}

// hold is for a transaction of a run's: until it ends, what is read and written stays ours, and
// nobody else's code runs with it. See Holding.
func (r *runner) hold(ctx context.Context) error {
	lock := func() error { return lockTables(ctx, r.session, History, "ROW EXCLUSIVE") } // keeps more triggers out
	var err error
	if !r.super {
		err = lock()
	} else {
		err = asSuperuser(ctx, r.session, func() error {
			if err := lockSchema(ctx, r.session); err != nil {
				return err
			}
			if err := lock(); err != nil || r.up {
				return err
			}
			return lockTables(ctx, r.session, ownTables, "ACCESS SHARE")
		})
	}
	if err != nil {
		return err
	}
	if err := refuseForeignTables(ctx, r.session); err != nil {
		return err
	}
	return refuseOthers(ctx, r.session)
}

// guarded holds while do uses the history, in a transaction of its own if none is open: of a
// migration that runs outside of one.
func (r *runner) guarded(ctx context.Context, do func() error) error {
	const idle = 'I'
	held := func() error {
		if err := r.hold(ctx); err != nil {
			return err
		}
		return do()
	}
	if r.session.PgConn().TxStatus() != idle {
		return held() // also where it was done before: goose's table may have come since
	}
	return r.inOne(ctx, held)
}

// There tells whether the transaction's snapshot has all these tables and sequences of schema public.
func There(ctx context.Context, tx pgx.Tx, names ...string) (all bool, err error) {
	err = tx.QueryRow(ctx, `SELECT count(DISTINCT c.relname) = cardinality($1::text[]) FROM pg_class c
		WHERE c.relnamespace = to_regnamespace('public') AND c.relname = ANY ($1)`, names).Scan(&all)
	if err != nil {
		err = fmt.Errorf("look for %s: %w", strings.Join(names, ", "), err)
	}
	return all, err
}
