package postgres

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// patient are limits that no busy machine reaches. The server's are of use in tests about
// them only.
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
	database := pgtest.Shared(t)
	if len(in) > 0 {
		database = in[0]
	}
	return storeOn(t, database, database.App, patient)
}

func storeOn(t *testing.T, database pgtest.Database, url string, l limits) *store {
	t.Helper()
	first := pgtest.IDs(t)
	db, err := Open(t.Context(), Config{URL: url, Setting: "DATABASE_URL", RequestTimeout: time.Hour, MaxInFlight: 512,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), limits: &l})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return &store{DB: db, Plants: db.Plants(), admin: pgtest.Connect(t, database.Super), first: plant.ID(first), who: fmt.Sprintf("client-%d", first), url: url}
}

// exec runs SQL as a superuser.
func (s *store) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := s.admin.Exec(context.WithoutCancel(t.Context()), sql, args...); err != nil {
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

// lives reports whether a plant is there.
func (s *store) lives(t testing.TB, id plant.ID) bool {
	t.Helper()
	return value[bool](t, s, `SELECT EXISTS (SELECT FROM public.plants WHERE id = $1)`, int64(id))
}
