//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/auth"
	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
	"plantstore/internal/plant"
	"plantstore/internal/postgres"
)

// serverSettings are PostgreSQL's, for everybody alike. There is no checkpoint after a
// database was filled: it would fall into a measurement, or make the first change
// to each page after it be logged with the whole page, which in a measurement of
// seconds on a large table is every deletion.
func serverSettings() (map[string]string, error) {
	memory, err := memorySize()
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"fsync":              "on",
		"shared_buffers":     fmt.Sprintf("%dMB", memory/4>>20), // what PostgreSQL's manual recommends, 20.4.1
		"max_connections":    "1000",
		"max_wal_size":       "48GB",
		"min_wal_size":       fmt.Sprintf("%dMB", usedLog*16),
		"checkpoint_timeout": "1d",
	}, nil
}

// usedLog is how many files of 16 MiB the write-ahead log has before anything is
// measured.
const usedLog = 384

// useLog makes the write-ahead log one that has been in use, as on any server that is
// older than its first checkpoints: its files are written anew. To make a new file
// every commit waits until 16 MiB are written and synced, which happens every few
// seconds to whoever writes the most.
func useLog(ctx context.Context, server *localpg.Server) error {
	conn, err := pgx.Connect(ctx, server.URL("postgres", "postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for range usedLog {
		if _, err := conn.Exec(ctx, `SELECT pg_catalog.pg_logical_emit_message(false, 'bench', ''), pg_catalog.pg_switch_wal()`); err != nil {
			return fmt.Errorf("use the log: %w", err)
		}
	}
	if _, err := conn.Exec(ctx, `CHECKPOINT`); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// A storeSpec says what a database is to hold.
type storeSpec struct {
	name   string
	plants int64
	ledger int64 // deletions recorded before
	// plain leaves the trigger out that records deletions.
	plain bool
	// migrated is the path of another build, by which the database is made and its token
	// issued; empty: by this one.
	migrated string
}

// A store is one database of the server.
type store struct {
	storeSpec
	server  *localpg.Server
	control *pgx.Conn // as the superuser
	// postmaster is the id of the server's first process.
	postmaster int
	token      string // for the service
	budgeted   string // the same of a principal that has a deletion budget
	stride     int64
	next       int64 // see quota
}

// newStore makes a database by the service's own migrations and fills it.
func newStore(ctx context.Context, server *localpg.Server, spec storeSpec) (_ *store, err error) {
	s := &store{storeSpec: spec, server: server, stride: stride(spec.plants)}
	if s.migrated != "" {
		err = s.migrateByOther(ctx)
	} else if err = migrate.NewStore(ctx, server.URL, s.name); err == nil {
		err = s.issueToken(ctx, server.URL("plantstore_owner", s.name))
	}
	if err != nil {
		return nil, err
	}
	if s.control, err = pgx.Connect(ctx, server.URL("postgres", s.name)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.postmaster, err = parent(int(s.control.PgConn().PID())); err != nil {
		return nil, err
	}
	if s.plain {
		if _, err := s.control.Exec(ctx, `DROP TRIGGER plantstore_record_deletion ON public.plants`); err != nil {
			return nil, err
		}
	}
	if _, err := s.control.Exec(ctx, `
		INSERT INTO public.plants (id, name) SELECT i, 'Plant number ' || i FROM generate_series(1, $1::bigint) i`,
		s.plants); err != nil {
		return nil, err
	}
	// As if the plants there are had been deleted and restored, again and again.
	if s.ledger > 0 {
		if _, err := s.control.Exec(ctx, `
			INSERT INTO public.plant_deletions (plant_id, shape, plant, deleted_by, request_id, idempotency_key)
			SELECT p.id, s.id, ROW(p.*)::text, 'somebody', gen_random_uuid(), gen_random_uuid()
			FROM (SELECT public.plantstore_shape('public.plants'::regclass) AS id OFFSET 0) s,
				generate_series(1, $1::bigint) i JOIN public.plants p ON p.id = 1 + i % $2::bigint`,
			s.ledger, s.plants); err != nil {
			return nil, err
		}
	}
	_, err = s.control.Exec(ctx, "VACUUM (ANALYZE) public.plants, public.plant_deletions")
	return s, err
}

// migrateByOther makes the database by another build, and has it issue the token.
func (s *store) migrateByOther(ctx context.Context) error {
	if err := migrate.CreateDatabase(ctx, s.server.URL, s.name, "TEMPLATE template0"); err != nil {
		return err
	}
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, s.migrated, args...)
		cmd.Env = append(localpg.Environ("PG", "PLANTSTORE_"), "PLANTSTORE_MIGRATE_DATABASE_URL="+s.server.URL("plantstore_owner", s.name))
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("%s %s: %w", s.migrated, strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	if _, err := run("migrate", "up"); err != nil {
		return err
	}
	var err error
	s.token, err = run("token", "create", "bench")
	return err
}

func (s *store) issueToken(ctx context.Context, owner string) error {
	db, err := postgres.Open(ctx, owner)
	if err != nil {
		return err
	}
	defer db.Close()
	issue := func(name string, budget plant.Budget) (string, error) {
		return db.Tokens(0).Create(ctx, name, []string{auth.ScopeDelete}, time.Now().AddDate(0, 0, 1), budget)
	}
	if s.token, err = issue("bench", plant.Budget{}); err != nil {
		return err
	}
	s.budgeted, err = issue("budgeted", plant.Budget{Most: math.MaxInt32, Period: time.Hour})
	return err
}

// url is what everybody connects with who takes a road: a Unix socket, the runtime
// role.
func (s *store) url(r *road) string {
	direct := s.server.URL("plantstore_app", s.name)
	if r.folder == "" {
		return direct
	}
	u, err := url.Parse(direct)
	if err != nil {
		panic(err) // URL makes it
	}
	query := u.Query()
	query.Set("host", r.folder)
	u.RawQuery = query.Encode()
	return u.String()
}

// socket is the path of the server's Unix socket.
func (s *store) socket() (string, error) {
	u, err := url.Parse(s.url(home))
	return filepath.Join(u.Query().Get("host"), ".s.PGSQL.5432"), err
}

func (s *store) close() error { return s.control.Close(context.Background()) }

// disconnect ends the sessions of a program, and returns when none is left.
func (s *store) disconnect(ctx context.Context, application string) error {
	for {
		var left int
		if err := s.control.QueryRow(ctx, `SELECT count(pg_catalog.pg_terminate_backend(pid)) FROM pg_catalog.pg_stat_activity
			WHERE application_name = $1`, application).Scan(&left); err != nil || left == 0 {
			return err
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// walPosition is how many bytes of write-ahead log there have been.
func (s *store) walPosition(ctx context.Context) (position float64, err error) {
	err = s.control.QueryRow(ctx, `SELECT pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), '0/0')::double precision`).Scan(&position)
	return position, err
}

// refill puts the plants of a quota back that are gone, and returns how many
// they were. It gives every measurement the same start: all plants there, and the
// dead rows of the one before removed.
func (s *store) refill(ctx context.Context, q *quota) (int64, error) {
	if _, err := s.control.Exec(ctx, "VACUUM public.plants"); err != nil {
		return 0, fmt.Errorf("vacuum: %w", err)
	}
	tag, err := s.control.Exec(ctx, `
		INSERT INTO public.plants (id, name)
		SELECT id, 'Plant number ' || id
		FROM (SELECT 1 + i * $3::bigint % $4::bigint AS id FROM generate_series($1::bigint, $2::bigint - 1) i) ids
		ON CONFLICT DO NOTHING`, q.first, q.first+q.count, s.stride, s.plants)
	if err != nil {
		return 0, fmt.Errorf("refill: %w", err)
	}
	return tag.RowsAffected(), nil
}

// A quota is the plants that one measurement may delete.
//
// Each store has one order of deletion: place n in it belongs to the plant
// 1 + n * stride % plants. The stride is near the golden ratio of the number of
// plants and has no divisor in common with it, so that every plant comes once in
// so many places, and neighbours in the order are far from each other in the
// table: every deletion reads and writes pages of its own. A quota is a part of
// that order, and quotas don't overlap until it begins again.
type quota struct {
	store        *store
	first, count int64
	taken        int64
}

// fastest bounds how many plants are deleted in a second.
const fastest = 60_000

// quota allots plants for a time.
func (s *store) quota(d time.Duration) *quota {
	q := &quota{store: s, first: s.next, count: min(int64(d.Seconds()*fastest), s.plants)}
	s.next += q.count
	return q
}

// take returns the next plant's id.
func (q *quota) take() (int64, error) {
	if q.taken == q.count {
		return 0, fmt.Errorf("all %d plants of this measurement are deleted: raise -plants or lower -duration", q.count)
	}
	n := q.first + q.taken
	q.taken++
	return 1 + n*q.store.stride%q.store.plants, nil
}

func (q *quota) left() int64 { return q.count - q.taken }

func stride(plants int64) int64 {
	s := max(plants*618/1000, 1)
	for divisor(s, plants) != 1 {
		s++
	}
	return s
}

// divisor is the greatest that a and b have in common.
func divisor(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
