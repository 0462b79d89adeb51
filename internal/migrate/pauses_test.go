package migrate

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/pgtest"
)

// The pauses between attempts grow, so that ten attempts outlast a transaction of half a minute.
func TestPausesBetweenAttempts(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	mustExec(t, pgtest.Connect(t, db.Owner), `CREATE TABLE plants (id bigint PRIMARY KEY); INSERT INTO plants VALUES (1)`)
	mustExec(t, pgtest.Connect(t, db.Owner), `BEGIN; DELETE FROM plants`)
	now := time.Now()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(now)) // a bubble begins in the year 2000
		var got []time.Duration
		var last time.Time
		_, err := Up(t.Context(), db.Owner, Options{LockTimeout: 20 * time.Millisecond, LockAttempts: 13, Notify: func(s string) {
			if !last.IsZero() {
				got = append(got, time.Since(last))
			}
			if strings.Contains(s, "did not get its lock") {
				last = time.Now()
			}
		}})
		want := []time.Duration{}
		for pause := 10 * time.Millisecond; pause < 10*time.Second; pause *= 2 {
			want = append(want, pause)
		}
		want = append(want, 10*time.Second)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v; pauses (-want +got):\n%s", err, diff)
		}
	})
}
