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
		goose.WithStore(&recorder{StoreExtender: extended, runner: r}), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("goose provider: %w", err)
	}
	return p, nil
}

// A recorder is goose's store, and keeps the checksums in step with it.
type recorder struct {
	database.StoreExtender
	*runner
	failed error // to make goose's table
}

// TableExists returns why goose could not make its table. It would try again, and tell of the
// last try only, which has met nothing but that our transaction is aborted.
func (r *recorder) TableExists(ctx context.Context, db database.DBTxConn) (bool, error) {
	if r.whole && r.failed != nil {
		return false, r.failed
	}
	return r.StoreExtender.TableExists(ctx, db)
}

func (r *recorder) CreateVersionTable(ctx context.Context, db database.DBTxConn) error {
	r.failed = r.StoreExtender.CreateVersionTable(ctx, db)
	return r.failed
}

func (r *recorder) GetMigration(ctx context.Context, db database.DBTxConn, version int64) (result *database.GetMigrationResult, err error) {
	err = r.guarded(ctx, func() error {
		result, err = r.StoreExtender.GetMigration(ctx, db, version)
		return err
	})
	return result, err
}

func (r *recorder) Insert(ctx context.Context, db database.DBTxConn, request database.InsertRequest) error {
	err := r.guarded(ctx, func() error { return r.insert(ctx, db, request) })
	if request.Version == 0 { // the first row of goose's table
		r.failed = err
	}
	return err
}

func (r *recorder) insert(ctx context.Context, db database.DBTxConn, request database.InsertRequest) error {
	if err := r.StoreExtender.Insert(ctx, db, request); err != nil {
		return err
	}
	for _, m := range r.all { // goose's version 0 is none of them
		if m.Version == request.Version {
			checksum, err := r.set.checksum(m)
			if err != nil {
				return err
			}
			r.ours[m.Version] = checksum
			return r.record(ctx, db)
		}
	}
	return nil
}

func (r *recorder) Delete(ctx context.Context, db database.DBTxConn, version int64) error {
	return r.guarded(ctx, func() error {
		if err := r.StoreExtender.Delete(ctx, db, version); err != nil {
			return err
		}
		delete(r.ours, version)
		return r.record(ctx, db)
	})
}

// record writes down what is known of the applied migrations. Where the table of
// checksums is not there, those that were applied by us are noted in a comment on
// goose's table, so that a later run knows them for ours.
func (r *runner) record(ctx context.Context, db database.DBTxConn) error {
	var exists bool
	if err := db.QueryRowContext(ctx, `SELECT to_regclass('public.plantstore_migrations') IS NOT NULL`).Scan(&exists); err != nil {
		return fmt.Errorf("look for plantstore_migrations: %w", err)
	}
	versions, checksums := make([]int64, len(r.all)), make([]string, len(r.all))
	ours := make([]bool, len(r.all))
	for i, m := range r.all {
		var err error
		versions[i] = m.Version
		if checksums[i], ours[i] = r.ours[m.Version]; ours[i] {
			continue
		}
		if checksums[i], err = r.set.checksum(m); err != nil {
			return err
		}
	}
	if exists {
		if err := r.hold(ctx); err != nil { // it may have come since
			return err
		}
		for _, sql := range []string{forgetChecksums, recordChecksums} {
			if _, err := db.ExecContext(ctx, sql, versions, checksums, ours); err != nil {
				return fmt.Errorf("record checksums: %w", err)
			}
		}
	}
	var comment string
	err := db.QueryRowContext(ctx, noteChecksums, versions, checksums, ours, exists).Scan(&comment)
	if err == nil {
		_, err = db.ExecContext(ctx, comment)
	}
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("note checksums: %w", err)
	}
	return nil
}

// forgetChecksums removes the records of known migrations that are not applied any
// more. The other parameters are there for recordChecksums.
const forgetChecksums = `
	DELETE FROM public.plantstore_migrations r USING unnest($1::bigint[], $2::text[], $3::boolean[]) AS t (version, checksum, ours)
	WHERE r.version = t.version AND NOT EXISTS (SELECT FROM public.goose_db_version g WHERE g.version_id = t.version AND g.is_applied)`

// recordChecksums records the checksum of every applied migration that has none.
// Those that we did not apply are baselines.
const recordChecksums = `
	INSERT INTO public.plantstore_migrations AS r (version, applied_as, checksum, baseline)
	SELECT g.version_id, g.id, t.checksum, NOT t.ours
	FROM unnest($1::bigint[], $2::text[], $3::boolean[]) AS t (version, checksum, ours)
	JOIN public.goose_db_version g ON g.version_id = t.version AND g.is_applied
	ON CONFLICT (version) DO UPDATE SET applied_as = excluded.applied_as, checksum = excluded.checksum,
		baseline = excluded.baseline, recorded_at = excluded.recorded_at, recorded_by = excluded.recorded_by
	WHERE r.applied_as <> excluded.applied_as`

// noteChecksums returns the statement that changes the comment, if that has to be.
// A comment of somebody else's stays, and so does one on a table of somebody else's.
const noteChecksums = `
	SELECT format('COMMENT ON TABLE public.goose_db_version IS %L', note.text) FROM pg_class c, LATERAL (
		SELECT obj_description(c.oid, 'pg_class') AS present, CASE WHEN NOT $4::boolean AND count(g.id) > 0
			THEN json_build_object('plantstore', json_agg(json_build_object('version', g.version_id, 'id', g.id, 'checksum', t.checksum) ORDER BY g.id))::text END AS text
		FROM unnest($1::bigint[], $2::text[], $3::boolean[]) AS t (version, checksum, ours)
		JOIN public.goose_db_version g ON g.version_id = t.version AND g.is_applied WHERE t.ours
	) note
	WHERE c.oid = 'public.goose_db_version'::regclass AND pg_has_role(c.relowner, 'USAGE')
		AND note.text IS DISTINCT FROM note.present AND coalesce(note.present, '{"plantstore"') LIKE '{"plantstore"%'`
