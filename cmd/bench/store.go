//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
)

// Plants have the ids from 0 on. They are deleted in the order of multiples of stride, so that
// neighbours in the order are on different pages.
const plants, stride = 1_000_000, 611_953

// serverSettings are PostgreSQL's. There is no checkpoint after a database was filled: it
// would fall into a measurement.
func serverSettings() map[string]string {
	return map[string]string{
		"fsync": "on", "shared_buffers": "2GB", "max_connections": "1000",
		"max_wal_size": "48GB", "min_wal_size": "6GB", "checkpoint_timeout": "1d", "commit_siblings": "0",
	}
}

// fillLog makes the files of the write-ahead log, so that the server reuses them as in
// production. While it makes a new file, every commit waits.
const fillLog = `DO $$ BEGIN
	FOR i IN 1..384 LOOP
		PERFORM pg_logical_emit_message(false, 'bench', ''), pg_switch_wal();
	END LOOP;
END $$`

// A store is a contender's database, with the build that migrated it.
type store struct {
	name, program string
	next          int64 // place in the order of deletion
	server        *localpg.Server
	control       *pgx.Conn // as the superuser
	token, others string    // of two principals
	items         bool      // each plant has a row that leaves with it
}

func newStore(ctx context.Context, server *localpg.Server, name, program string) (_ *store, err error) {
	s := &store{name: name, program: program, server: server}
	if err := migrate.CreateDatabase(ctx, server.URL, name); err != nil {
		return nil, err
	}
	if _, err := s.command(ctx, "migrate", "up"); err != nil {
		return nil, err
	}
	if s.token, err = s.command(ctx, "token", "create", "bench"); err != nil {
		return nil, err
	}
	if s.others, err = s.command(ctx, "token", "create", "others"); err != nil {
		return nil, err
	}
	if s.control, err = pgx.Connect(ctx, server.URL("postgres", name)); err != nil {
		return nil, err
	}
	return s, s.execute(ctx, fmt.Sprintf(`INSERT INTO public.plants (id, name) SELECT i, 'Plant number ' || i FROM generate_series(0, %d) i`, plants-1), `VACUUM ANALYZE`)
}

// command runs a command of the store's build as the database's owner, and returns its output.
func (s *store) command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.program, args...)
	cmd.Env = append(localpg.Environ("PG", "PLANTSTORE_"), "PLANTSTORE_MIGRATE_DATABASE_URL="+s.server.URL("plantstore_owner", s.name))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", s.program, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (s *store) execute(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		if _, err := s.control.Exec(ctx, sql); err != nil {
			return fmt.Errorf("database %s: %.60s: %w", s.name, sql, err)
		}
	}
	return nil
}

// fillItems skips plants that are deleted at the same time.
const fillItems = `INSERT INTO public.items SELECT id, id, 9.90, 'note' FROM public.plants p
	WHERE NOT EXISTS (SELECT FROM public.items WHERE plant_id = p.id) FOR KEY SHARE OF p`

// addItems gives each plant a row that a deletion takes along.
func (s *store) addItems(ctx context.Context, watched bool) error {
	s.items = true
	err := s.execute(ctx, `CREATE TABLE public.items (id bigint PRIMARY KEY, plant_id bigint REFERENCES public.plants ON DELETE CASCADE, price numeric, note text)`,
		fillItems, `CREATE INDEX ON public.items (plant_id)`, `VACUUM ANALYZE public.items`)
	if err != nil || !watched {
		return err
	}
	return s.execute(ctx, `GRANT ALL ON public.items TO plantstore_owner`, `SELECT plantstore.watch('public.items')`)
}

const firstReferred = 50

// refer makes rows refer to one plant in every, or to none. Any walk meets them as often.
func (s *store) refer(ctx context.Context, every int64) error {
	err := s.execute(ctx, `CREATE TABLE IF NOT EXISTS public.orders (plant_id bigint PRIMARY KEY REFERENCES public.plants)`, `TRUNCATE public.orders`)
	if err != nil || every == 0 {
		return err
	}
	return s.execute(ctx, fmt.Sprintf(`INSERT INTO public.orders SELECT id FROM public.plants WHERE id %% %d = %d`, every, firstReferred), `ANALYZE public.orders`)
}

// url returns a contender's database URL, through the socket in folder if that is not empty.
func (s *store) url(folder string) string {
	direct := s.server.URL("plantstore_app", s.name)
	if folder == "" {
		return direct
	}
	return strings.Replace(direct, filepath.Dir(s.server.Socket()), folder, 1)
}

// refill puts back the first n plants of a walk, and returns how many were missing. It
// vacuums before, so that all measurements start alike.
func (s *store) refill(ctx context.Context, w walk, n int64) (int64, error) {
	if err := s.execute(ctx, `VACUUM public.plants`); err != nil {
		return 0, err
	}
	tag, err := s.control.Exec(ctx, `
		INSERT INTO public.plants (id, name)
		SELECT id, 'Plant number ' || id FROM (SELECT ($1::bigint + i * $2::bigint) % $3::bigint AS id FROM generate_series(0, $4::bigint - 1) i) ids
		ON CONFLICT DO NOTHING`, w.first, w.step, int64(plants), n)
	if err != nil {
		return 0, fmt.Errorf("refill: %w", err)
	}
	if s.items {
		err = s.execute(ctx, fillItems)
	}
	return tag.RowsAffected(), err
}
