package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

// provider returns a goose provider that notes the checksum of each migration in
// the transaction that applies it.
func (r *runner) provider(db *sql.DB) (*goose.Provider, error) {
	store, err := database.NewStore(goose.DialectPostgres, "public."+goose.DefaultTablename)
	if err != nil {
		return nil, fmt.Errorf("goose store: %w", err)
	}
	extended, ok := store.(database.StoreExtender)
	if !ok {
		return nil, errors.New("goose's store does not tell whether its table exists")
	}
	p, err := goose.NewProvider(goose.DialectCustom, db, r.set.Files,
		goose.WithStore(recorder{extended, r}), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("goose provider: %w", err)
	}
	return p, nil
}

// A recorder is goose's store, and keeps plantstore_migrations in step with it.
type recorder struct {
	database.StoreExtender
	*runner
}

const checksumsExist = `SELECT pg_catalog.to_regclass('public.plantstore_migrations') IS NOT NULL`

func (r recorder) Insert(ctx context.Context, db database.DBTxConn, request database.InsertRequest) error {
	if err := r.StoreExtender.Insert(ctx, db, request); err != nil {
		return err
	}
	r.applied = append(r.applied, request.Version)
	var exists bool
	if err := db.QueryRowContext(ctx, checksumsExist).Scan(&exists); err != nil || !exists {
		return err
	}
	sql, args, err := r.checksums()
	if err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, sql, args...); err != nil {
		return fmt.Errorf("record checksum: %w", err)
	}
	return nil
}

func (r recorder) Delete(ctx context.Context, db database.DBTxConn, version int64) error {
	if err := r.StoreExtender.Delete(ctx, db, version); err != nil {
		return err
	}
	var exists bool
	if err := db.QueryRowContext(ctx, checksumsExist).Scan(&exists); err != nil || !exists {
		return err
	}
	_, err := db.ExecContext(ctx, `DELETE FROM public.plantstore_migrations WHERE version = $1`, version)
	return err
}

// checksums returns the statement that records the checksum of every applied
// migration that has none. Those that this run did not apply are baselines.
func (r *runner) checksums() (sql string, args []any, err error) {
	all, err := r.set.all()
	if err != nil {
		return "", nil, err
	}
	versions, checksums := make([]int64, len(all)), make([]string, len(all))
	for i, m := range all {
		versions[i] = m.Version
		if checksums[i], err = r.set.checksum(m); err != nil {
			return "", nil, err
		}
	}
	return `INSERT INTO public.plantstore_migrations AS r (version, applied_as, checksum, baseline)
		SELECT g.version_id, g.id, t.checksum, NOT g.version_id = ANY ($3::bigint[])
		FROM unnest($1::bigint[], $2::text[]) AS t (version, checksum)
		JOIN public.goose_db_version g ON g.version_id = t.version AND g.is_applied
		ON CONFLICT (version) DO UPDATE SET applied_as = excluded.applied_as, checksum = excluded.checksum,
			baseline = excluded.baseline, recorded_at = excluded.recorded_at, recorded_by = excluded.recorded_by
		WHERE r.applied_as <> excluded.applied_as`, []any{versions, checksums, r.applied}, nil
}
