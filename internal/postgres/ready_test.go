package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/pgtest"
)

// A connection that is lost says nothing about the database: the question is asked
// again, on another.
func TestAQuestionOutlivesItsConnection(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	pids := make(map[int]bool)
	err := s.Lend(in(t, patience), func(conn *pgx.Conn) error {
		var pid int
		if err := conn.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			return err
		}
		pids[pid] = true
		if len(pids) < 3 {
			_, err := conn.Exec(t.Context(), `SELECT pg_terminate_backend(pg_backend_pid())`)
			return err
		}
		return nil
	})
	if err != nil || len(pids) != 3 {
		t.Errorf("Lend: %v after %d connections, want none after 3", err, len(pids))
	}
	asked := 0
	err = s.Lend(in(t, patience), func(conn *pgx.Conn) error {
		asked++
		_, err := conn.Exec(t.Context(), `SELECT 1/0`)
		return err
	})
	if sqlState(err) != "22012" || asked != 1 {
		t.Errorf("Lend for a question that is wrong: %v after %d times, want the error after 1", err, asked)
	}
}

// Whatever ends each connection, such as a pooler in statement mode, is not overrun with
// more of them, and it is told.
func TestAQuestionThatEndsEachConnection(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	asked := 0
	err := s.Lend(in(t, 2*time.Second), func(conn *pgx.Conn) error {
		asked++
		_, err := conn.Exec(t.Context(), `SELECT pg_terminate_backend(pg_backend_pid())`)
		return err
	})
	const most = 30 // pauses of at least 5, 10, 20, 40, 80, 160, and then 200 ms
	if sqlState(err) != "57P01" || asked > most {
		t.Errorf("Lend: %v after %d times in 2 s, want the server's reason after %d at the most", err, asked, most)
	}
}

// A session that could hold a lock without end is not used.
func TestASessionWithoutItsLimitsIsNotUsed(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	if _, err := pgtest.Pool(t, database.Super).Exec(t.Context(), `REVOKE EXECUTE ON FUNCTION pg_catalog.pg_backend_pid() FROM PUBLIC`); err != nil {
		t.Fatal(err)
	}
	s := storeOn(t, database, "")
	lent := false
	err := s.Lend(in(t, patience), func(*pgx.Conn) error { lent = true; return nil })
	if lent || sqlState(err) != insufficientPrivilege {
		t.Errorf("Lend where sessions can't be given limits: lent %v, %v; want the refusal of the server", lent, err)
	}
}

// Without its synchronous standby the database answers, and commits nothing.
func TestNotReadyWithoutItsStandby(t *testing.T) {
	t.Parallel()
	database, _ := ownStore(t, nil)
	s, super := storeOn(t, database, ""), pgtest.Pool(t, database.Super)
	ready := func(names, reason string) {
		t.Helper()
		requireStandby(t, super, names)
		said := ""
		for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			said = ""
			if err := s.Ready(in(t, patience), nil); err != nil {
				said = err.Error()
			}
			if said == reason {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("Ready with the standby %q: %q, want %q", names, said, reason)
			}
		}
	}
	ready("", "")
	ready("nobody", `no commit ends: synchronous_standby_names is "nobody", and no such standby answers`)
	for range 5 {
		if err := s.Ready(in(t, patience), nil); err == nil || !strings.Contains(err.Error(), "standby") {
			t.Errorf("Ready: %v, want it to tell of the standby", err)
		}
	}
	ready("", "")
	// Nobody is left waiting for a standby that will not come.
	for waiting := 1; waiting > 0; {
		if err := super.QueryRow(in(t, patience), `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
}
