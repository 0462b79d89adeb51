//go:build linux

package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
)

// logFiles is how many files of 16 MiB the write-ahead log has before the first
// measurement.
const logFiles = 384

// serverSettings are PostgreSQL's, the same for all contenders. There is no
// checkpoint after a database was filled: it would fall into a measurement, or the
// first change to each page after it would be logged with the whole page.
func serverSettings() (map[string]string, error) {
	memory, err := memorySize()
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"fsync":              "on",
		"shared_buffers":     fmt.Sprintf("%dMB", memory/4>>20),
		"max_connections":    "1000",
		"max_wal_size":       "48GB",
		"min_wal_size":       fmt.Sprintf("%dMB", logFiles*16),
		"checkpoint_timeout": "1d",
	}, nil
}

// fillLog fills the write-ahead log, so that the server reuses its files, as one in
// production does. While a new file is made, every commit waits.
func fillLog(ctx context.Context, server *localpg.Server) error {
	conn, err := pgx.Connect(ctx, server.URL("postgres", "postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for range logFiles {
		if _, err := conn.Exec(ctx, `SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()`); err != nil {
			return fmt.Errorf("fill the write-ahead log: %w", err)
		}
	}
	if _, err := conn.Exec(ctx, `CHECKPOINT`); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// A store is one database of the server.
//
// It has one order of deletion: place n belongs to the plant 1 + n * stride %
// plants. The stride is a prime above maxPlants, so each plant comes once in so many
// places, and neighbours in the order are on different pages of the table.
type store struct {
	name       string
	plants     int64
	next       int64 // place in the order of deletion
	server     *localpg.Server
	control    *pgx.Conn // as the superuser
	postmaster int       // process id
	token      string    // for the service
	items      bool      // each plant takes a row along
}

const stride, maxPlants = 2_654_435_761, 1_000_000_000

// newStore creates a database, has a build of the service migrate it and issue a
// token, and fills it.
func newStore(ctx context.Context, server *localpg.Server, name, program string, plants int64) (_ *store, err error) {
	s := &store{name: name, plants: plants, server: server}
	if err := migrate.CreateDatabase(ctx, server.URL, name); err != nil {
		return nil, err
	}
	if _, err := s.command(ctx, program, "migrate", "up"); err != nil {
		return nil, err
	}
	if s.token, err = s.command(ctx, program, "token", "create", "bench"); err != nil {
		return nil, err
	}
	if s.control, err = pgx.Connect(ctx, server.URL("postgres", name)); err != nil {
		return nil, err
	}
	if s.postmaster, err = parent(int(s.control.PgConn().PID())); err != nil {
		return nil, err
	}
	if _, err := s.control.Exec(ctx, `INSERT INTO public.plants (id, name) SELECT i, 'Plant number ' || i FROM generate_series(1, $1::bigint) i`, plants); err != nil {
		return nil, fmt.Errorf("fill database %s: %w", name, err)
	}
	_, err = s.control.Exec(ctx, `VACUUM ANALYZE`)
	return s, err
}

const fillItems = `INSERT INTO public.items (id, plant_id, price, note) SELECT p.id, p.id, 9.90, 'note' FROM public.plants p ON CONFLICT DO NOTHING`

// addItems gives each plant a row that a deletion takes along.
func (s *store) addItems(ctx context.Context, watched bool) error {
	s.items = true
	statements := []string{`CREATE TABLE public.items (id bigint PRIMARY KEY, plant_id bigint REFERENCES public.plants ON DELETE CASCADE, price numeric, note text)`,
		fillItems, `CREATE INDEX ON public.items (plant_id)`, `VACUUM ANALYZE public.items`}
	if watched {
		statements = append(statements, `GRANT ALL ON public.items TO plantstore_owner`, `SELECT plantstore.watch('public.items')`)
	}
	for _, sql := range statements {
		if _, err := s.control.Exec(ctx, sql); err != nil {
			return fmt.Errorf("add items: %w", err)
		}
	}
	return nil
}

// command runs a command of the service as the database's owner and returns its
// output.
func (s *store) command(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(localpg.Environ("PG", "PLANTSTORE_"), "PLANTSTORE_MIGRATE_DATABASE_URL="+s.server.URL("plantstore_owner", s.name))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// dropLedger leaves a table that nothing of the service is attached to.
func (s *store) dropLedger(ctx context.Context) error {
	_, err := s.control.Exec(ctx, `DROP SCHEMA plantstore CASCADE`)
	return err
}

// url is what a contender connects with.
func (s *store) url(d *distance) string {
	direct := s.server.URL("plantstore_app", s.name)
	if d.folder == "" {
		return direct
	}
	u, err := url.Parse(direct)
	if err != nil {
		panic(err) // URL returns valid URLs
	}
	query := u.Query()
	query.Set("host", d.folder)
	u.RawQuery = query.Encode()
	return u.String()
}

// socket is the path of the server's Unix socket.
func (s *store) socket() (string, error) {
	u, err := url.Parse(s.server.URL("postgres", s.name))
	if err != nil {
		return "", err
	}
	return filepath.Join(u.Query().Get("host"), ".s.PGSQL.5432"), nil
}

// take returns the next plant to delete.
func (s *store) take() int64 {
	s.next++
	return 1 + (s.next-1)*stride%s.plants
}

// refill puts back the plants deleted since first, a place in the order, and returns how
// many were missing. It vacuums before, so that all measurements start alike.
func (s *store) refill(ctx context.Context, first int64) (int64, error) {
	if _, err := s.control.Exec(ctx, `VACUUM public.plants`); err != nil {
		return 0, fmt.Errorf("vacuum: %w", err)
	}
	tag, err := s.control.Exec(ctx, `
		INSERT INTO public.plants (id, name)
		SELECT id, 'Plant number ' || id
		FROM (SELECT 1 + i * $3::bigint % $4::bigint AS id FROM generate_series($1::bigint, $2::bigint - 1) i) ids
		ON CONFLICT DO NOTHING`, first, s.next, int64(stride), s.plants)
	if err != nil {
		return 0, fmt.Errorf("refill: %w", err)
	}
	if s.items {
		if _, err := s.control.Exec(ctx, fillItems); err != nil {
			return 0, fmt.Errorf("refill items: %w", err)
		}
	}
	return tag.RowsAffected(), nil
}
