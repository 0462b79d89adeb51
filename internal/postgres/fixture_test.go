package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// patient are limits that no busy machine reaches. A test that needs shorter limits sets them.
var patient = limits{
	batchLock: time.Hour, batchStatement: time.Hour, batch: time.Hour,
	soloLock: time.Hour, soloStatement: time.Hour, resolve: time.Hour, control: time.Hour,
	margin: time.Second, connect: time.Minute, ping: time.Minute, close: time.Minute,
	queue: time.Hour, remember: time.Hour, outOfBatches: time.Hour, poll: time.Hour, maxAge: time.Hour, noteUses: time.Hour,
}

// A store is a service's side of a database, and a superuser's connection to that.
type store struct {
	*DB
	*Plants
	admin *pgx.Conn
	first plant.ID // of ids that no other test has
	who   string   // a principal that no other test has
	url   string
}

// newStore opens the package's database, or another one.
func newStore(t *testing.T, in ...pgtest.Database) *store {
	t.Helper()
	return limitedStore(t, patient, in...)
}

func limitedStore(t *testing.T, l limits, in ...pgtest.Database) *store {
	t.Helper()
	database := pgtest.Shared(t)
	if len(in) > 0 {
		database = in[0]
	}
	first := pgtest.IDs(t)
	s := &store{admin: pgtest.Connect(t, database.Super), first: plant.ID(first), who: fmt.Sprintf("client-%d", first), url: database.App}
	return s.on(opened(t, Config{URL: s.url, limits: &l}))
}

// on returns the same store with another service.
func (s store) on(db *DB) *store {
	s.DB, s.Plants = db, db.Plants()
	return &s
}

// opened opens a service with a test's configuration and defaults for the fields it leaves empty.
func opened(t *testing.T, c Config) *DB {
	t.Helper()
	c.limits = cmp.Or(c.limits, &patient)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	c.MaxInFlight, c.RequestTimeout, c.Setting = 512, time.Hour, "DATABASE_URL"
	db, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// acquired is a connection of a pool that the test releases.
func acquired(t *testing.T, pool *pgxpool.Pool) *pgxpool.Conn {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// exec runs SQL as a superuser.
func (s *store) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	execute(t, s.admin, sql, args...)
}

func execute(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(context.WithoutCancel(t.Context()), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value returns the one value of a query.
func value[T any](t testing.TB, s *store, sql string, args ...any) (v T) {
	t.Helper()
	if err := s.admin.QueryRow(context.WithoutCancel(t.Context()), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// plant plants n plants and returns the first one's id.
func (s *store) plant(t testing.TB, n int) plant.ID {
	t.Helper()
	id := s.first
	s.first += plant.ID(n)
	s.exec(t, `INSERT INTO public.plants (id, name) SELECT i, 'plant ' || i FROM generate_series($1::bigint, $2::bigint) i`, int64(id), int64(id)+int64(n)-1)
	return id
}

// of is a deletion by the test's principal.
func (s *store) of(id plant.ID, key string) plant.Deletion {
	return plant.Deletion{Plant: id, Principal: s.who, RequestID: "request-" + key, Key: key}
}

// sent is a deletion whose key the client sent.
func (s *store) sent(id plant.ID, key string) plant.Deletion {
	d := s.of(id, key)
	d.KeySent = true
	return d
}

// lives reports whether the plant exists.
func (s *store) lives(t testing.TB, id plant.ID) bool {
	t.Helper()
	return value[bool](t, s, `SELECT EXISTS (SELECT FROM public.plants WHERE id = $1)`, int64(id))
}

// expect deletes a plant and compares the result, in words.
func (s *store) expect(t *testing.T, d plant.Deletion, want string) {
	t.Helper()
	r, err := s.Delete(t.Context(), d)
	if got := inWords(r, err); got != want {
		t.Errorf("plant %d, key %q: %s (%+v, %v); want %s", d.Plant, d.Key, got, r, err, want)
	}
	if want == "deleted" && s.lives(t, d.Plant) {
		t.Errorf("plant %d, key %q: the plant is there", d.Plant, d.Key)
	}
}

// inWords is a result such as "deleted" or "replayed referenced".
func inWords(r plant.Result, err error) string {
	if r.Replayed {
		return "replayed " + outcomeOf(err)
	}
	return outcomeOf(err)
}

// outcomeOf is an error of Delete in words.
func outcomeOf(err error) string {
	var (
		earlier    *plant.DeletedEarlierError
		referenced *plant.ReferencedError
		rule       *plant.StoreRuleError
		budget     *plant.OverBudgetError
	)
	switch {
	case err == nil:
		return "deleted"
	case errors.As(err, &earlier):
		return "deleted earlier"
	case errors.As(err, &referenced):
		return strings.TrimSpace("referenced " + referenced.Table)
	case errors.As(err, &rule):
		return strings.TrimSpace("rule " + rule.Constraint)
	case errors.As(err, &budget):
		return "over budget"
	}
	for _, known := range []error{plant.ErrNotFound, plant.ErrBusy, plant.ErrUnavailable, plant.ErrUnknown, plant.ErrMisconfigured, plant.ErrOverloaded} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return err.Error()
}
