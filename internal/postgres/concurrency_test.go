package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// holder begins a transaction that holds locks until release.
func holder(t *testing.T, database pgtest.Database, sql string, args ...any) (pid uint32, release func()) {
	t.Helper()
	conn := pgtest.Connect(t, database.Super)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return conn.PgConn().PID(), func() {
		t.Helper()
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// all deletes plants with a number of clients, and returns the result of each.
func (s *store) all(clients int, first plant.ID, n int) []string {
	results := make([]string, n)
	var next atomic.Int64
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				_, err := s.Delete(context.Background(), s.of(first+plant.ID(i), fmt.Sprint(i)))
				results[i] = outcomeOf(err)
			}
		})
	}
	all.Wait()
	return results
}

// Requests whose time is over while they wait for a lock: what was rolled back for certain
// did nothing, also later. What is still under way is unknown, and the same key finds out.
func TestRequestsThatEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		apart   bool
		blocked int
		want    []string
	}{
		"on connections of their own": {true, 2, []string{plant.ErrBusy.Error(), plant.ErrUnavailable.Error()}}, // unavailable: waited for its turn
		"in a batch":                  {false, 1, []string{plant.ErrUnknown.Error(), plant.ErrBusy.Error()}},    // busy: in the queue
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := patient
			l.margin = 20 * time.Minute // for the server to say that it was cancelled
			s := storeOn(t, pgtest.Shared(t), pgtest.Shared(t).App, l)
			first := s.plant(t, 4)
			for n := range plant.ID(4) {
				if c.apart {
					s.memory.plants.add(first+n, onSoloPool, time.Now().Add(time.Hour))
				}
			}
			pid, release := holder(t, pgtest.Shared(t), `SELECT FROM public.plants WHERE id BETWEEN $1 AND $1 + 3 FOR UPDATE`, int64(first))
			ctx, end := context.WithTimeout(t.Context(), 90*time.Minute)
			var all sync.WaitGroup
			for n := range plant.ID(4) {
				all.Go(func() {
					_, err := s.Delete(ctx, s.of(first+n, "key"))
					if got := outcomeOf(err); !slices.Contains(c.want, got) {
						t.Errorf("plant %d: %s; want one of %q", n, got, c.want)
					}
				})
			}
			pgtest.AwaitBlocked(t, s.admin, pid, c.blocked)
			end()
			all.Wait()
			release()
			for n := range plant.ID(4) {
				d := s.sent(first+n, "key")
				d.RequestID = "again"
				lived := s.lives(t, first+n)
				if r, err := s.Delete(t.Context(), d); err != nil || c.apart && (r.Replayed || !lived) {
					t.Errorf("plant %d again: %+v, %v, and it lived: %t; want it deleted", n, r, err, lived)
				}
				if got := value[int](t, s, `SELECT count(*) FROM plantstore.deletions WHERE plant_id = $1`, int64(first+n)); got != 1 {
					t.Errorf("plant %d has %d entries; want 1", n, got)
				}
			}
		})
	}
}

func TestOverloaded(t *testing.T) {
	t.Parallel()
	l := patient
	l.queue = time.Millisecond
	s := newStore(t)
	plants, first := opened(t, Config{URL: s.url, MaxInFlight: 1, limits: &l}).Plants(), s.plant(t, 2)
	pid, release := holder(t, pgtest.Shared(t), `SELECT FROM public.plants WHERE id = $1 FOR UPDATE`, int64(first))
	waiting := make(chan error, 1)
	go func() {
		_, err := plants.Delete(context.Background(), s.of(first, "waits"))
		waiting <- err
	}()
	pgtest.AwaitBlocked(t, s.admin, pid, 1)
	if r, err := plants.Delete(t.Context(), s.of(first+1, "is too much")); !errors.Is(err, plant.ErrOverloaded) || !s.lives(t, first+1) {
		t.Errorf("Delete beside the one that may be in flight: %+v, %v; want ErrOverloaded", r, err)
	}
	release()
	if err := <-waiting; err != nil {
		t.Errorf("the one in flight: %v; want none", err)
	}
}

// opened opens a service with what a test's configuration leaves open.
func opened(t *testing.T, c Config) *DB {
	t.Helper()
	if c.limits == nil {
		l := patient
		c.limits = &l
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.MaxInFlight, c.RequestTimeout, c.Setting = max(c.MaxInFlight, 1), time.Hour, "DATABASE_URL"
	db, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// hasty are limits under which a request is over after its first failure.
func hasty() *limits {
	l := patient
	l.margin = 2 * time.Hour
	return &l
}

func TestAnOutage(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	open := func(l *limits, outage int64) *Plants {
		var dials atomic.Int64
		return opened(t, Config{URL: s.url, limits: l, dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if dials.Add(1) <= outage {
				return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}}).Plants()
	}
	id := s.plant(t, 1)
	for _, budget := range []plant.Budget{{}, {Most: 1, Period: time.Hour}} { // in a batch, and alone
		d := s.of(id, "longer than the request")
		d.Budget = budget
		r, err := open(hasty(), 1_000_000).Delete(t.Context(), d)
		if !errors.Is(err, plant.ErrUnavailable) || !errors.Is(err, syscall.ECONNREFUSED) || r.Attempts != 1 {
			t.Errorf("Delete with the budget %v: %+v, %v; want ErrUnavailable with its cause after one attempt", budget, r, err)
		}
	}
	r, err := open(nil, 5).Delete(t.Context(), s.of(id, "shorter"))
	if err != nil || r.Attempts < 2 || !slices.Contains(r.Failed, "unreachable") {
		t.Errorf("Delete: %+v, %v; want it deleted in a later attempt", r, err)
	}
}

// terminate ends all connections with an application name.
func (s *store) terminate(t *testing.T, application string) {
	t.Helper()
	if n := value[int](t, s, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()`, application); n == 0 {
		t.Errorf("%s has no connections", application)
	}
}

// Two replicas with 64 clients of one principal, and all connections of one of them end
// midway: the budget holds to the plant.
func TestABudgetHolds(t *testing.T) {
	t.Parallel()
	database := pgtest.Shared(t)
	s := newStore(t)
	other := opened(t, Config{URL: pgtest.WithParameters(database.App, "application_name=budgeted"), MaxInFlight: 512})
	conn, err := other.batch.Acquire(t.Context()) // there is one to terminate, whoever is the faster
	if err != nil {
		t.Fatal(err)
	}
	conn.Release()
	replicas := []*Plants{s.Plants, other.Plants()}
	first := s.plant(t, 256)
	type answer struct {
		id     plant.ID
		result string
	}
	answers := make(chan answer)
	for client := range plant.ID(64) {
		go func() {
			for n := range plant.ID(4) {
				d := s.of(first+4*client+n, "key")
				d.Budget = plant.Budget{Most: 100, Period: 24 * time.Hour}
				_, err := replicas[client%2].Delete(context.Background(), d)
				answers <- answer{d.Plant, outcomeOf(err)}
			}
		}()
	}
	for n := range 256 {
		a := <-answers
		switch lives := s.lives(t, a.id); {
		case a.result == "deleted" && !lives, a.result == "over budget" && lives, a.result == plant.ErrUnknown.Error():
		default:
			t.Errorf("plant %d: %s, and it is there: %t", a.id, a.result, lives)
		}
		if n == 50 {
			s.terminate(t, "budgeted")
		}
	}
	if n := value[int](t, s, `SELECT count(*) FROM plantstore.deletions WHERE deleted_by = $1`, s.who); n != 100 {
		t.Errorf("%d were deleted; want 100", n)
	}
}

// A primary that is demoted and promoted again: no connection from between is kept.
func TestADemotedPrimary(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := newStore(t, database)
	id := s.plant(t, 1)
	s.exec(t, `ALTER DATABASE `+database.Name+` SET default_transaction_read_only = on`)
	db := opened(t, Config{URL: database.App, limits: hasty()})
	for _, p := range db.pools() {
		var release []func()
		for range p.Config().MaxConns {
			conn, err := p.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			release = append(release, conn.Release)
		}
		for _, f := range release {
			f()
		}
	}
	plants := db.Plants()
	if _, err := plants.Delete(t.Context(), s.of(id, "key")); !errors.Is(err, plant.ErrUnavailable) {
		t.Errorf("Delete on a read-only database: %v; want ErrUnavailable", err)
	}
	s.exec(t, `ALTER DATABASE `+database.Name+` RESET default_transaction_read_only`)
	if r, err := plants.Delete(t.Context(), s.sent(id, "key")); err != nil || r.Attempts != 1 {
		t.Errorf("Delete afterwards: %+v, %v; want it deleted at once", r, err)
	}
}

// Of several servers, the one that takes writes is found.
func TestAStandbyIsPassedOver(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := newStore(t, database)
	id := s.plant(t, 1)
	name, readOnly := s.role(t, database, `IN ROLE plantstore_app`)
	s.exec(t, `ALTER ROLE `+name+` SET default_transaction_read_only = on`)
	u, err := url.Parse(pgtest.Pooler(t, readOnly))
	if err != nil {
		t.Fatal(err)
	}
	c, err := pgx.ParseConfig(s.url)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(c.User, c.Password)
	both := u.Query()
	both.Set("host", both.Get("host")+","+c.Host)
	both.Set("port", fmt.Sprint(both.Get("port"), ",", c.Port))
	u.RawQuery = both.Encode()
	r, err := opened(t, Config{URL: u.String(), limits: hasty()}).Plants().Delete(t.Context(), s.of(id, "key"))
	if err != nil || r.Attempts != 1 {
		t.Errorf("Delete: %+v, %v; want it deleted by the first attempt", r, err)
	}
}

// The server knows what each pool waits for at most.
func TestLimitsOfThePools(t *testing.T) {
	t.Parallel()
	l := patient
	l.batchLock, l.batchStatement, l.soloLock, l.soloStatement, l.control = time.Hour, 2*time.Hour, 3*time.Hour, 4*time.Hour, 5*time.Hour
	db := opened(t, Config{URL: pgtest.Shared(t).App, limits: &l})
	for pool, want := range map[*pgxpool.Pool]string{db.batch: "1h 2h", db.solo: "3h 4h", db.outcomes: "3h 4h", db.control: "3h 5h"} {
		var got string
		if err := pool.QueryRow(t.Context(), `SELECT current_setting('lock_timeout') || ' ' || current_setting('statement_timeout')`).Scan(&got); err != nil || got != want {
			t.Errorf("lock_timeout and statement_timeout of a pool: %s, %v; want %s", got, err, want)
		}
	}
}

// The pools together have as many connections as the URL allows, and none has no connection.
func TestPoolsShareTheConnections(t *testing.T) {
	t.Parallel()
	for _, want := range []int32{minConns, 5, 8, 9, defaultConns, 40} {
		db := opened(t, Config{URL: fmt.Sprintf("host=/nonexistent pool_max_conns=%d", want)})
		if got := db.MaxConns(); got != want {
			t.Errorf("pool_max_conns=%d: %d connections; want %[1]d", want, got)
		}
		for n, p := range db.pools() {
			if got := p.Config().MaxConns; got < 1 {
				t.Errorf("pool_max_conns=%d: pool %d has %d; want at least 1", want, n, got)
			}
		}
	}
}

// A principal's locked plants leave connections for the plants of others.
func TestAPrincipalLeavesConnectionsToOthers(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, pool := range []*pgxpool.Pool{s.solo, s.batch} {
		want := max(2, int(pool.Config().MaxConns)/3)
		for n := range want {
			_, release, err := s.DB.acquire(t.Context(), pool, s.who)
			if err != nil {
				t.Fatalf("connection %d of %d: %v", n+1, want, err)
			}
			defer release()
		}
		if _, release, err := s.DB.acquire(over, pool, s.who); err == nil {
			release()
			t.Errorf("a principal has more than %d connections", want)
		}
		_, release, err := s.DB.acquire(t.Context(), pool, "somebody else")
		if err != nil {
			t.Fatalf("a connection of another principal: %v", err)
		}
		release()
	}
}

// role makes a role that ends with the test.
func (s *store) role(t *testing.T, database pgtest.Database, options string) (name, url string) {
	t.Helper()
	name = strings.Replace(database.Name, "plantstore", "role", 1) + "_" + fmt.Sprint(s.first)
	s.exec(t, `CREATE ROLE `+name+` LOGIN PASSWORD 'first' `+options)
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), database.Super)
		if err == nil {
			_, err = conn.Exec(context.Background(), `DROP OWNED BY `+name+`; DROP ROLE `+name)
			conn.Close(context.Background())
		}
		if err != nil {
			t.Error(err)
		}
	})
	return name, as(t, database.App, name, "first")
}

// as is a URL for another role.
func as(t *testing.T, database, role, password string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, password)
	return u.String()
}

func TestThroughAPooler(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := newStore(t, database)
	first := s.plant(t, 101)
	s.exec(t, `CREATE TABLE public.orders (plant bigint REFERENCES public.plants)`)
	s.exec(t, `INSERT INTO public.orders VALUES ($1)`, int64(first))
	s.exec(t, `ALTER ROLE plantstore_app IN DATABASE `+database.Name+` SET lock_timeout = 0`) // limits that end here are the statement's
	through := func() (*store, *bytes.Buffer) {
		var log bytes.Buffer
		db := opened(t, Config{URL: pgtest.Pooler(t, database.App), MaxInFlight: 512, Log: slog.New(slog.NewTextHandler(&log, nil))})
		return &store{DB: db, Plants: db.Plants(), admin: s.admin, who: s.who}, &log
	}
	p, log := through()
	for n, got := range p.all(32, first, 100) {
		if want := map[bool]string{false: "deleted", true: "referenced orders"}[n == 0]; got != want {
			t.Errorf("plant %d: %s; want %s", n, got, want)
		}
	}
	if r, err := p.Delete(t.Context(), s.sent(first+1, "1")); err != nil || !r.Replayed {
		t.Errorf("the same key again: %+v, %v; want a replay", r, err)
	}
	_, release := holder(t, database, `SELECT FROM public.plants WHERE id = $1 FOR UPDATE`, int64(first)+100)
	conn, err := p.batch.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d := s.of(first+100, "locked")
	if m, err := deleteOne(t.Context(), conn.Conn(), &d, time.Millisecond); m != busy {
		t.Errorf("a locked plant in a batch: %v, %v; want busy", m, err)
	}
	conn.Release()
	release()
	if log.Len() > 0 {
		t.Errorf("log: %s; want none", log)
	}

	s.exec(t, `ALTER ROLE plantstore_app IN DATABASE `+database.Name+` SET default_transaction_isolation = 'repeatable read'`)
	s.exec(t, `ALTER ROLE plantstore_app IN DATABASE `+database.Name+` SET client_min_messages = error`)
	p, log = through()
	if _, err := p.Delete(t.Context(), d); !errors.Is(err, plant.ErrMisconfigured) || !s.lives(t, d.Plant) {
		t.Errorf("Delete under another isolation level: %v, and the plant is there: %t; want ErrMisconfigured, and that it is", err, s.lives(t, d.Plant))
	}
	if want := "default_transaction_isolation is repeatable read, client_min_messages is error"; strings.Count(log.String(), want) != 1 {
		t.Errorf("log: %s; want %q once", log, want)
	}
}

// Role and password are read again for each connection; those of the start stay where that fails.
func TestARenewedPassword(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := newStore(t, database)
	first, url := s.role(t, database, `IN ROLE plantstore_app`)
	id := s.plant(t, 2)
	second, _ := s.role(t, database, `IN ROLE plantstore_app`)
	file := filepath.Join(t.TempDir(), "url")
	write := func(url string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(url+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(url)
	var log bytes.Buffer
	db := opened(t, Config{File: file, limits: hasty(), Log: slog.New(slog.NewTextHandler(&log, nil))})
	plants := db.Plants()
	if _, err := plants.Delete(t.Context(), s.of(id, "key")); err != nil {
		t.Errorf("with the first role: %v", err)
	}
	s.exec(t, `ALTER ROLE `+first+` NOLOGIN`)
	write(as(t, strings.Replace(database.App, database.Name, "elsewhere", 1), second, "first"))
	db.reset()
	if _, err := plants.Delete(t.Context(), s.of(id+1, "key")); err != nil || s.lives(t, id+1) {
		t.Errorf("with the second role: %v", err)
	}
	// A test's server may ask for no password.
	for now, want := range map[string]string{as(t, database.App, second, "renewed"): second + " renewed", "": "the start's", "postgres://half written": "the start's"} {
		write(now)
		c, err := pgx.ParseConfig(as(t, database.App, "the", "start's"))
		if err != nil {
			t.Fatal(err)
		}
		if err := db.renew(t.Context(), c); err != nil || c.User+" "+c.Password != want {
			t.Errorf("a file with %q: %v, role and password %s %s; want %s", now, err, c.User, c.Password, want)
		}
	}
	if n := strings.Count(log.String(), "database URL not renewed"); n != 2 || strings.Contains(log.String(), "half written") {
		t.Errorf("log: %s; want two warnings without the file's content", &log)
	}
}

// Vault makes roles that live for an hour. The old one is dropped while its sessions work: each
// connection fails at most once, and the next one is the new role's.
func TestARoleThatIsDroppedUnderLoad(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := newStore(t, database)
	const n = 2000
	first := s.plant(t, n)
	role, url := s.role(t, database, `IN ROLE plantstore_app`)
	old := role + "_old"
	s.exec(t, `CREATE ROLE `+old+` LOGIN PASSWORD 'old' IN ROLE plantstore_app`)
	file := filepath.Join(t.TempDir(), "url")
	write := func(url string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(url), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(as(t, database.App, old, "old"))
	db := opened(t, Config{File: file, limits: hasty()})
	served := *s
	served.Plants = db.Plants()
	results := make(chan []string)
	go func() { results <- served.all(8, first, n) }()
	pgtest.Await(t, s.admin, `SELECT count(*) > 100 FROM plantstore.deletions`)
	write(url)
	s.exec(t, `DROP ROLE `+old)
	failed := 0
	for i, got := range <-results {
		if got == "deleted" {
			continue
		}
		failed++
		id := first + plant.ID(i)
		if r, err := served.Delete(t.Context(), s.of(id, fmt.Sprint(i))); got != plant.ErrMisconfigured.Error() || err != nil || r.Replayed {
			t.Errorf("plant %d: %s, and then %+v, %v; want it deleted at the first or second request", id, got, r, err)
		}
	}
	if most := int(db.MaxConns()); failed > most {
		t.Errorf("%d deletions failed; want at most one for each of %d connections", failed, most)
	}
}

// A commit that did not wait for its synchronous standby to the end is not believed, nor is an
// outcome that was read then. The test has a server of its own: the setting is the server's.
func TestACutShortWaitForTheStandby(t *testing.T) {
	t.Parallel()
	server, err := localpg.Start(t.Context(), localpg.Options{Settings: pgtest.Settings()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	if err := migrate.NewStore(t.Context(), server.URL, "plantstore"); err != nil {
		t.Fatal(err)
	}
	database := pgtest.Database{Super: server.URL("postgres", "plantstore"), App: server.URL("plantstore_app", "plantstore")}
	s := newStore(t, database)
	id := s.plant(t, 1)
	// When the setting is seen the checkpointer has been told, too, which tells commits to
	// wait, and has looked when a checkpoint begins.
	require := func(standby string) {
		s.exec(t, `ALTER SYSTEM SET synchronous_standby_names = '`+standby+`'`)
		s.exec(t, `SELECT pg_reload_conf()`)
		pgtest.Await(t, s.admin, `SELECT current_setting('synchronous_standby_names') = $1`, standby)
		s.exec(t, `CHECKPOINT`)
	}
	require("nobody")
	result := make(chan error, 1)
	go func() {
		_, err := s.Delete(context.Background(), s.of(id, "key"))
		result <- err
	}()
	var last time.Time
	for n := range 4 { // the deletion's commit, and then those of its resolution
		pgtest.Await(t, s.admin, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query_start > $1)`, last)
		last = value[time.Time](t, s, `SELECT max(query_start) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
		if n < 3 {
			s.exec(t, `SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
		}
	}
	require("")
	if err := <-result; err != nil {
		t.Errorf("Delete: %v; want none", err)
	}
	if n := value[int](t, s, `SELECT count(*) FROM plantstore.deletions WHERE plant_id = $1`, int64(id)); n != 1 || s.lives(t, id) {
		t.Errorf("%d entries, and the plant is there: %t; want one, and that it is gone", n, s.lives(t, id))
	}
}
