package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
	"plantstore/internal/postgres"
)

// A site is a service on a PostgreSQL of its own, which the test may break.
type site struct {
	primary       *localpg.Server
	public, admin string
	token         string
	process       *process
}

// drainDelay is that of a site's service.
const drainDelay = 300 * time.Millisecond

// newSite starts a service. With a standby, every commit waits for it, and the
// service knows both servers.
func newSite(t *testing.T, plants int, withStandby bool, flags ...string) (s site, standby *localpg.Server) {
	t.Helper()
	ctx := t.Context()
	var err error
	if s.primary, err = localpg.Start(ctx, localpg.Options{}); err != nil {
		t.Fatal(err)
	}
	closeServer := func(pg *localpg.Server) {
		if err := pg.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { closeServer(s.primary) })
	url := "host=" + socketFolder(t, s.primary)
	owner := s.primary.URL("plantstore_owner", "plantstore")
	script := func(url, sql string) {
		t.Helper()
		if err := postgres.Script(ctx, url, sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := migrate.NewStore(ctx, s.primary.URL, "plantstore"); err != nil {
		t.Fatal(err)
	}
	script(owner, fmt.Sprintf(`INSERT INTO plants (id, name) SELECT i, 'Boston fern' FROM generate_series(1, %d) i`, plants))
	if withStandby {
		if standby, err = s.primary.Standby(ctx, localpg.Options{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeServer(standby) })
		super := s.primary.URL("postgres", "postgres")
		script(super, `ALTER SYSTEM SET synchronous_standby_names = '*'`)
		script(super, `SELECT pg_reload_conf()`)
		url += "," + socketFolder(t, standby)
	}
	s.token = createToken(t, owner, "clients")
	s.process = start(t, append([]string{"serve", "--database-url", url + " user=plantstore_app dbname=plantstore",
		"--addr=127.0.0.1:0", "--admin-addr=127.0.0.1:0", "--drain-delay=" + drainDelay.String()}, flags...)...)
	s.public, s.admin = s.process.addresses(t)
	waitReady(t, s.admin, http.StatusOK)
	return s, standby
}

func socketFolder(t *testing.T, pg *localpg.Server) string {
	t.Helper()
	_, query, _ := strings.Cut(pg.URL("u", "d"), "host=")
	folder, _, _ := strings.Cut(query, "&")
	return folder
}

// longTimeout lets no request fail because an outage took long on a machine that
// is busy with other things.
var longTimeout = []string{"--request-timeout=3m", "--shutdown-timeout=3m"}

// clients delete distinct plants, 8 at a time, without retries of their own,
// until stopped or out of plants.
type clients struct {
	next    atomic.Int64
	deleted atomic.Int64
	last    int64
	stop    atomic.Bool
	wg      sync.WaitGroup
}

func (s site) clients(t *testing.T, plants int64) *clients {
	c := &clients{last: plants}
	for range 8 {
		c.wg.Go(func() {
			for !c.stop.Load() {
				id := c.next.Add(1)
				if id > c.last {
					return
				}
				code, body := send(t, http.MethodDelete, fmt.Sprintf("%s/plants/%d", s.public, id), s.token)
				if code != http.StatusNoContent {
					t.Errorf("DELETE of plant %d: %d %s; want 204", id, code, body)
				}
				c.deleted.Add(1)
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	return c
}

// more waits until n further plants are deleted.
func (c *clients) more(t *testing.T, n int64) {
	t.Helper()
	want := c.deleted.Load() + n
	if !eventually(func() bool { return c.deleted.Load() >= want }) {
		t.Fatalf("%d plants deleted, want %d by now", c.deleted.Load(), want)
	}
}

func (c *clients) end() {
	c.stop.Store(true)
	c.wg.Wait()
}

// ledgered returns how many plants are in the ledger and how many are left.
func ledgered(t *testing.T, pg *localpg.Server) (gone, left int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pg.URL("plantstore_owner", "plantstore"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if err := conn.QueryRow(t.Context(),
		`SELECT (SELECT count(*) FROM plant_deletions), (SELECT count(*) FROM plants)`).Scan(&gone, &left); err != nil {
		t.Fatal(err)
	}
	return gone, left
}

// promote makes a standby the primary. It has no standby to wait for.
func promote(t *testing.T, standby *localpg.Server) {
	t.Helper()
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	super := standby.URL("postgres", "postgres")
	for _, sql := range []string{`ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`} {
		if err := postgres.Script(t.Context(), super, sql); err != nil {
			t.Fatal(err)
		}
	}
}

func TestARestartOfPostgresIsASlow204(t *testing.T) {
	t.Parallel()
	const plants = 100_000
	s, _ := newSite(t, plants, false, longTimeout...)
	c := s.clients(t, plants)
	for _, outage := range []time.Duration{0, time.Second, 5 * time.Second} {
		c.more(t, 50)
		if err := s.primary.Stop(t.Context(), localpg.Immediate); err != nil {
			t.Fatal(err)
		}
		time.Sleep(outage)
		if err := s.primary.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c.more(t, 50)
	c.end()
	if gone, left := ledgered(t, s.primary); int64(gone) != c.deleted.Load() || gone+left != plants {
		t.Errorf("%d in the ledger, %d left; want %d and the rest of %d", gone, left, c.deleted.Load(), plants)
	}
}

func TestAFailoverIsASlow204(t *testing.T) {
	t.Parallel()
	const plants = 100_000
	s, standby := newSite(t, plants, true, longTimeout...)
	c := s.clients(t, plants)
	c.more(t, 100)
	if err := s.primary.Stop(t.Context(), localpg.Kill); err != nil {
		t.Fatal(err)
	}
	promote(t, standby)
	c.more(t, 100)
	c.end()
	waitReady(t, s.admin, http.StatusOK)
	if gone, left := ledgered(t, standby); int64(gone) != c.deleted.Load() || gone+left != plants {
		t.Errorf("%d in the ledger, %d left; want %d and the rest of %d", gone, left, c.deleted.Load(), plants)
	}
}

func TestClientsThatHangUp(t *testing.T) {
	t.Parallel()
	const plants, atOnce = 4_000, 100
	// They do not wait for each other, so the bound on what is in flight would
	// refuse some.
	s, _ := newSite(t, plants, false, append([]string{"--max-in-flight=10000"}, longTimeout...)...)
	address := strings.TrimPrefix(s.public, "http://")
	var next atomic.Int64
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for {
				id := next.Add(1)
				if id > plants {
					return
				}
				conn, err := net.Dial("tcp", address)
				if err != nil {
					t.Error(err)
					return
				}
				fmt.Fprintf(conn, "DELETE /plants/%d HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", id, s.token)
				conn.Close()
			}
		})
	}
	wg.Wait()
	var gone, left int
	if !eventually(func() bool {
		gone, left = ledgered(t, s.primary)
		return left == 0
	}) || gone != plants {
		others := slices.DeleteFunc(strings.Split(s.process.log.String(), "\n"), func(line string) bool { return strings.Contains(line, `"status":204`) })
		t.Errorf("%d in the ledger, %d left; want %d and none; in the log, other than 204:\n%s", gone, left, plants, strings.Join(others, "\n"))
	}
	// The service itself takes a connection now and then.
	var body string
	if !eventually(func() bool {
		_, body = send(t, http.MethodGet, s.admin+"/metrics", "")
		return !regexp.MustCompile(`plantstore_pool_share_in_use_connections\{.*\} [1-9]`).MatchString(body)
	}) {
		t.Errorf("connections are still in use:\n%s", body)
	}
}

func TestSIGTERMUnderLoad(t *testing.T) {
	t.Parallel()
	const plants = 100_000
	s, _ := newSite(t, plants, false)
	// These clients look at /readyz before each request, as a load balancer does
	// for them.
	var wg sync.WaitGroup
	var next, deleted atomic.Int64
	var stopping atomic.Bool
	for range 8 {
		wg.Go(func() {
			for {
				asked := time.Now()
				if code, _, err := trySend(t, http.MethodGet, s.admin+"/readyz", ""); err != nil || code != http.StatusOK {
					if stopping.Load() {
						return
					}
					continue // the machine is busy: it could not look in time
				}
				id := next.Add(1)
				code, body, err := trySend(t, http.MethodDelete, fmt.Sprintf("%s/plants/%d", s.public, id), s.token)
				if err != nil && time.Since(asked) > drainDelay {
					return // the machine is busy: the request came too late
				}
				if err != nil || code != http.StatusNoContent {
					t.Errorf("DELETE of plant %d: %d %s, %v; want 204", id, code, body, err)
				}
				deleted.Add(1)
			}
		})
	}
	if !eventually(func() bool { return deleted.Load() >= 100 }) {
		t.Errorf("%d plants deleted, want 100 by now", deleted.Load())
	}
	stopping.Store(true)
	s.process.stop(t)
	wg.Wait()
	if gone, _ := ledgered(t, s.primary); int64(gone) != deleted.Load() || gone == 0 {
		t.Errorf("%d in the ledger, want the %d that were answered with 204", gone, deleted.Load())
	}
}
