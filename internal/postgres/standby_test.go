package postgres

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// While the synchronous standby is away a commit waits. A wait that is cancelled is
// answered with success and a warning, and must not be believed.
func TestACommitWithoutItsStandbyIsNotBelieved(t *testing.T) {
	t.Parallel()
	server, err := localpg.Start(t.Context(), localpg.Options{Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	if err := migrate.NewStore(t.Context(), server.URL, "plantstore"); err != nil {
		t.Fatal(err)
	}
	database := pgtest.Database{Owner: server.URL("plantstore_owner", "plantstore"), App: server.URL("plantstore_app", "plantstore")}
	s := storeOn(t, database, "")
	s.sample(t, 20)
	super := pgtest.Pool(t, server.URL("postgres", "plantstore"))
	standby := func(names string) {
		t.Helper()
		for _, sql := range []string{`ALTER SYSTEM SET synchronous_standby_names = '` + names + `'`, `SELECT pg_reload_conf()`} {
			if _, err := super.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
		}
	}
	standby("nobody")
	// Every wait is cancelled as soon as it is seen.
	ctx, stop := context.WithCancel(t.Context())
	cancelled := make(chan int)
	go func() {
		n := 0
		for ctx.Err() == nil {
			var here int
			err := super.QueryRow(ctx, `SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) FROM pg_stat_activity
				WHERE wait_event = 'SyncRep' AND usename = 'plantstore_app'`).Scan(&here)
			if err == nil {
				n += here
			}
			time.Sleep(time.Millisecond)
		}
		cancelled <- n
	}()
	errs := make(chan error, 20)
	go func() {
		_, err := s.plants.Delete(in(t, 2*time.Second), deletion(1, "k"))
		errs <- err
	}()
	together := make(chan []error, 1)
	go func() {
		all := make([]error, 0, 19)
		results := make(chan error)
		for id := range int64(19) {
			go func() {
				_, err := s.plants.Delete(in(t, 2*time.Second), deletion(id+2, "k"))
				results <- err
			}()
		}
		for range 19 {
			all = append(all, <-results)
		}
		together <- all
	}()
	for i, err := range append(<-together, <-errs) {
		if err == nil || !errors.Is(err, plant.ErrUnknown) {
			t.Errorf("deletion %d of 20: %v, want ErrUnknown", i, err)
		}
	}
	stop()
	if n := <-cancelled; n == 0 {
		t.Error("no wait was cancelled: this test tests nothing")
	}
	standby("")
	for id := range int64(20) {
		if _, err := s.plants.Delete(in(t, patience), deletion(id+1, "k")); err != nil {
			t.Errorf("Delete(%d) once no standby is asked for: %v, want none", id+1, err)
		}
	}
	if got := len(s.ledger(t)); got != 20 {
		t.Errorf("%d ledger rows, want 20", got)
	}
}
