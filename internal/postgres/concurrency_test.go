package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
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

// If a lone deletion ends while it waits for a lock, it is cancelled in the server. It did
// nothing, and does nothing later.
func TestLockedDeletionIsCancelledInTheServer(t *testing.T) {
	t.Parallel()
	l := patient
	l.margin = 20 * time.Minute // for the server to say that it was cancelled
	s := limitedStore(t, l)
	id := s.plant(t, 1)
	s.memory.plants.add(id, onSoloPool, time.Now().Add(time.Hour))
	short, cancel := context.WithTimeout(t.Context(), l.margin)
	defer cancel()
	if _, err := s.Delete(short, s.of(id, "key")); !errors.Is(err, plant.ErrBusy) || !s.lives(t, id) {
		t.Fatalf("a deletion without time for an answer: %v, and the plant is there: %t; want ErrBusy, and that it is", err, s.lives(t, id))
	}
	pid, release := holder(t, pgtest.Shared(t), `SELECT FROM public.plants WHERE id = $1 FOR UPDATE`, int64(id))
	ctx, end := context.WithTimeout(t.Context(), 90*time.Minute)
	result := s.begin(ctx, s.of(id, "key"))
	pgtest.AwaitBlocked(t, s.admin, pid, 1)
	if n := s.solo.Stat().AcquiredConns(); n != 1 {
		t.Errorf("%d connections for locked plants are in use; want 1", n)
	}
	end()
	if got, want := <-result, "busy, "+plant.ErrBusy.Error(); got != want {
		t.Errorf("the deletion: %s; want %s", got, want)
	}
	release()
	if !s.lives(t, id) {
		t.Error("the plant is gone")
	}
	s.expect(t, s.sent(id, "key"), "deleted")
}

// hasty are limits under which a request is over after its first failure.
func hasty() *limits {
	l := patient
	l.margin = 2 * time.Hour
	return &l
}

// A primary is demoted and promoted again. No connection from the time between is kept.
func TestConnectionsToADemotedPrimaryAreDropped(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := newStore(t, database)
	id := s.plant(t, 1)
	s.exec(t, `ALTER DATABASE `+database.Name+` SET default_transaction_read_only = on`)
	s = s.on(opened(t, Config{URL: database.App, limits: hasty()}))
	one, two := acquired(t, s.batch), acquired(t, s.batch)
	one.Release()
	two.Release()
	s.expect(t, s.of(id, "key"), plant.ErrUnavailable.Error())
	s.exec(t, `ALTER DATABASE `+database.Name+` RESET default_transaction_read_only`)
	s.expect(t, s.of(id, "key"), "deleted")
}

// Each pool's sessions have its limits as their settings.
func TestEachPoolSetsItsLimits(t *testing.T) {
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
func TestPrincipalLeavesConnectionsToOthers(t *testing.T) {
	t.Parallel()
	database := pgtest.Shared(t)
	simulated(t, func(t *testing.T) {
		db, _ := linked(t, database, simulable())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		acquire := func(principal string) error {
			_, release, err := db.acquire(ctx, db.batch, principal)
			if err == nil {
				t.Cleanup(release)
			}
			return err
		}
		for range db.batch.Config().MaxConns {
			go acquire("somebody")
		}
		synctest.Wait()
		if err := acquire("another"); err != nil {
			t.Errorf("a connection for another principal: %v; want it", err)
		}
		<-ctx.Done()
		synctest.Wait()
	})
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

func TestDeletionsThroughAPooler(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := newStore(t, database)
	first := s.plant(t, 101)
	s.exec(t, `CREATE TABLE public.orders (plant bigint REFERENCES public.plants)`)
	s.exec(t, `INSERT INTO public.orders VALUES ($1)`, int64(first))
	set := func(setting string) {
		s.exec(t, `ALTER ROLE plantstore_app IN DATABASE `+database.Name+` SET `+setting)
	}
	set(`lock_timeout = 0`) // limits that end here are the statement's
	through := func() (*store, *bytes.Buffer) {
		var log bytes.Buffer
		return s.on(opened(t, Config{URL: pgtest.Pooler(t, database.App), Log: slog.New(slog.NewTextHandler(&log, nil))})), &log
	}
	p, log := through()
	var results []<-chan string
	for n := range plant.ID(100) {
		results = append(results, p.begin(context.Background(), s.of(first+n, fmt.Sprint(n))))
	}
	for n, result := range results {
		got := <-result
		if want := map[bool]string{false: "deleted", true: "referenced, referenced orders"}[n == 0]; got != want {
			t.Errorf("plant %d: %s; want %s", n, got, want)
		}
	}
	p.expect(t, s.sent(first+1, "1"), "replayed deleted")
	_, release := holder(t, database, `SELECT FROM public.plants WHERE id = $1 FOR UPDATE`, int64(first)+100)
	conn := acquired(t, p.batch)
	d := s.of(first+100, "locked")
	_, err := deleteOne(t.Context(), conn.Conn(), &d, time.Millisecond)
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != lockNotAvailable {
		t.Errorf("a locked plant in a batch: %v; want SQLSTATE %s", err, lockNotAvailable)
	}
	conn.Release()
	release()
	if log.Len() > 0 {
		t.Errorf("log: %s; want none", log)
	}

	set(`default_transaction_isolation = 'repeatable read'`)
	set(`client_min_messages = error`)
	p, log = through()
	p.expect(t, d, plant.ErrMisconfigured.Error())
	if !s.lives(t, d.Plant) {
		t.Error("a plant was deleted under another isolation level")
	}
	if want := "default_transaction_isolation is repeatable read, client_min_messages is error"; strings.Count(log.String(), want) != 1 {
		t.Errorf("log: %s; want %q once", log, want)
	}
}

// Vault makes roles that live for an hour. The service reads the role from the file for each
// connection. If that fails, it uses the first one. A dropped role fails each connection once.
func TestReplacedRoleIsReadForEachConnection(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := newStore(t, database)
	id := s.plant(t, 3)
	first, second := database.Name+"_first", database.Name+"_second"
	t.Cleanup(func() { s.exec(t, `DROP ROLE IF EXISTS `+first+`, `+second) })
	for _, role := range []string{first, second} {
		s.exec(t, `CREATE ROLE `+role+` LOGIN PASSWORD 'first' IN ROLE plantstore_app`)
	}
	file := filepath.Join(t.TempDir(), "url")
	write := func(url string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(url+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(as(t, database.App, first, "first"))
	var log bytes.Buffer
	p := s.on(opened(t, Config{File: file, limits: hasty(), Log: slog.New(slog.NewTextHandler(&log, nil))}))
	p.expect(t, s.of(id, "key"), "deleted")
	for _, unusable := range []string{"", "postgres://half written"} {
		write(unusable)
		p.reset()
		acquired(t, p.batch).Release()
	}
	p.expect(t, s.of(id+1, "key"), "deleted")
	if n := strings.Count(log.String(), "database URL not renewed"); n < 2 || strings.Contains(log.String(), "half written") {
		t.Errorf("log: %s; want two warnings without the file's content", &log)
	}
	s.exec(t, `DROP ROLE `+first)
	write(as(t, strings.Replace(database.App, database.Name, "elsewhere", 1), second, "first")) // the database stays
	p.expect(t, s.of(id+2, "key"), plant.ErrMisconfigured.Error())
	p.expect(t, s.of(id+2, "key"), "deleted")
}

// ownServer starts a server for a test whose settings are the server's, with a migrated database.
func ownServer(t *testing.T) (*localpg.Server, pgtest.Database) {
	t.Helper()
	server, err := localpg.Start(t.Context(), localpg.Options{Settings: pgtest.Settings()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	if err := migrate.NewStore(t.Context(), server.URL, "plantstore"); err != nil {
		t.Fatal(err)
	}
	return server, pgtest.Database{Super: server.URL("postgres", "plantstore"), App: server.URL("plantstore_app", "plantstore")}
}

// If a commit does not wait for its synchronous standby to the end, the service does not trust
// it. Neither does it trust an outcome that was read then.
func TestCommitWithoutItsStandbyIsNotTrusted(t *testing.T) {
	t.Parallel()
	_, database := ownServer(t)
	s := newStore(t, database)
	id := s.plant(t, 1)
	// Only the checkpointer makes commits wait. It has read the setting when it begins a
	// checkpoint.
	require := func(standby string) {
		s.exec(t, `ALTER SYSTEM SET synchronous_standby_names = '`+standby+`'`)
		s.exec(t, `SELECT pg_reload_conf()`)
		pgtest.Await(t, s.admin, `SELECT current_setting('synchronous_standby_names') = $1`, standby)
		s.exec(t, `CHECKPOINT`)
	}
	require("nobody")
	result := s.begin(context.Background(), s.of(id, "key"))
	var last time.Time
	for n := range 4 { // the deletion's commit, and then those of its resolution
		pgtest.Await(t, s.admin, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query_start > $1)`, last)
		last = value[time.Time](t, s, `SELECT max(query_start) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
		if n < 3 {
			s.exec(t, `SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
		}
	}
	require("")
	if got, want := <-result, "lost, deleted"; got != want {
		t.Errorf("the deletion: %s; want %s", got, want)
	}
	if n := value[int](t, s, `SELECT count(*) FROM plantstore.deletions WHERE plant_id = $1`, int64(id)); n != 1 || s.lives(t, id) {
		t.Errorf("%d entries, and the plant is there: %t; want one, and that it is gone", n, s.lives(t, id))
	}
}
