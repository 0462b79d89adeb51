package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// counts are the values of a collector's counters, and how many observations its
// histograms have, by name and labels.
func counts(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]float64)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := strings.TrimPrefix(family.GetName(), "plantstore_")
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			all[name] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return all
}

// A first fault is a rise only if there was a 0 before.
func TestMetricsAreThereFromTheStart(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	all := counts(t, s.DB)
	for _, name := range []string{
		"failed_attempts_total answer_lost", "failed_attempts_total busy", "failed_attempts_total locked", "failed_attempts_total out_of_batch",
		"failed_attempts_total slow", "failed_attempts_total unreachable", "database_faults_total connect", "database_faults_total lost",
		"token_lookups_total cached", "token_lookups_total found", "token_lookups_total unknown", "token_lookups_total failed",
		"pool_opened_connections_total", "batch_deletions", "connection_wait_seconds", "commit_wait_seconds", "lock_wait_seconds",
		"pool_share_in_use_connections batches", "pool_share_waiting locked",
	} {
		if got, ok := all[name]; !ok || got != 0 {
			t.Errorf("%s is %v (there: %v), want 0", name, got, ok)
		}
	}
	if got := all["pool_share_connections batches"]; got != 12 {
		t.Errorf("batches have %v connections, want 12", got)
	}
}

// A quantile can't be seen beyond the last bucket.
func TestBucketsOfWaitsReachAnyTimeout(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	m := newMetrics()
	registry.MustRegister(m.inLine, m.overheads, m.locks)
	families, err := registry.Gather()
	if err != nil || len(families) != 3 {
		t.Fatalf("%d histograms, %v; want 3", len(families), err)
	}
	for _, family := range families {
		buckets := family.GetMetric()[0].GetHistogram().GetBucket()
		if last := buckets[len(buckets)-1].GetUpperBound(); last < 300 {
			t.Errorf("%s ends at %v s, want 5 minutes or more", family.GetName(), last)
		}
	}
}

// A deletion tells what it met, whatever came of it: also one that was successful.
func TestCourseOfALockedDeletion(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		s.plant(t, 1)
		unlock := s.lock(t, 1)
		const held = 1500 * time.Millisecond
		time.AfterFunc(held, unlock)
		result, err := s.plants.Delete(in(t, patience), deletion(1, "k"))
		c := result.Course
		// The server's clock is not ours: it may give up on a lock at any moment of ours.
		if err != nil || c.ForLock == 0 || c.Tried < 2 || c.Attempts[0].Failed != failedLocked || c.Attempts[len(c.Attempts)-1].Failed != "" {
			t.Errorf("Delete of a locked plant: %v, %+v; want a first attempt that failed as locked, a wait for the lock, and a last one that did not fail", err, c)
		}
		all := counts(t, s.DB)
		if got := all["failed_attempts_total locked"]; got < 1 || all["lock_wait_seconds"] != 1 {
			t.Errorf("%v attempts failed as locked, %v waits for locks; want some and 1", got, all["lock_wait_seconds"])
		}
	})
}

// The wait for a lock begins with the attempt that met it, which may be a batch's.
func TestCourseOfALockThatABatchMet(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 2)
	if _, err := s.plants.Delete(in(t, patience), deletion(2, "k")); err != nil { // and has a connection made
		t.Fatal(err)
	}
	s.lock(t, 1)
	result, err := s.plants.Delete(in(t, 3*time.Second), deletion(1, "k"))
	c := result.Course
	// The first may be taken for slow: where batches are quick, patience ends before that for locks.
	first := slices.IndexFunc(c.Attempts, func(a plant.Attempt) bool { return a.Failed == failedLocked })
	if !errors.Is(err, plant.ErrBusy) || first < 0 || first == len(c.Attempts)-1 {
		t.Fatalf("Delete of a locked plant: %v, %+v; want ErrBusy after several attempts that met the lock", err, c)
	}
	last := c.Attempts[len(c.Attempts)-1]
	if want := last.Began.Add(last.Took).Sub(c.Attempts[first].Began) - c.ForConnection; c.ForLock < want {
		t.Errorf("it waited %s for the lock, want %s at least: %+v", c.ForLock, want, c)
	}
}

// The wait for a lock begins once there was a connection to meet it with.
func TestCourseOfALockAfterAWaitForAConnection(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		s.plant(t, 1)
		unlock := s.lock(t, 1)
		taken := s.take(t, together)
		const wait, held = time.Second, 3 * time.Second
		time.AfterFunc(wait, func() {
			for _, conn := range taken {
				conn.Release()
			}
		})
		time.AfterFunc(held, unlock)
		began := time.Now()
		result, err := s.plants.Delete(in(t, patience), deletion(1, "k"))
		took := time.Since(began)
		if c := result.Course; err != nil || c.ForConnection < wait || c.ForLock == 0 || c.ForLock > took-wait {
			t.Errorf("Delete of a locked plant: %v in %s, of which %s for a connection and %s for the lock; want none, %s at least, and some of the rest",
				err, took, c.ForConnection, c.ForLock, wait)
		}
	})
}

// Also the attempt with which the time was over has failed for a reason.
func TestCourseOfADeletionWhoseTimeIsOver(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		for _, conn := range s.take(t, together) {
			defer conn.Release()
		}
		result, err := s.plants.Delete(in(t, time.Second), deletion(1, "k"))
		c := result.Course
		if !errors.Is(err, plant.ErrBusy) || c.Tried != 1 || c.Attempts[0].Failed != failedBusy || counts(t, s.DB)["failed_attempts_total busy"] != 1 {
			t.Errorf("Delete while no batch can run: %v, %+v; want ErrBusy after an attempt that failed as busy", err, c)
		}
	})
}

func TestCourseOfADeletionThatIsRefused(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	result, err := s.plants.Delete(in(t, patience), deletion(1, "k"))
	for try := 1; try < 10 && result.Course.Tried > 1; try++ {
		s = newStore(t) // the machine is busy
		result, err = s.plants.Delete(in(t, patience), deletion(1, "k"))
	}
	if c := result.Course; !errors.Is(err, plant.ErrNotFound) || c.Tried != 1 || c.Batch != 1 || c.Attempts[0].Failed != "" || c.Attempts[0].Took <= 0 {
		t.Errorf("Delete of no plant: %v, %+v; want ErrNotFound by one attempt, alone in its batch", err, c)
	}
	const waits = "connection_wait_seconds"
	if got := counts(t, s.DB)[waits]; got != 1 {
		t.Errorf("%v waits for a connection were counted, want 1", got)
	}
	result, err = s.DB.Plants(0).Delete(in(t, patience), deletion(1, "k"))
	if !errors.Is(err, plant.ErrOverloaded) || result.Course.Tried != 0 {
		t.Errorf("Delete where none may be in flight: %v, %+v; want ErrOverloaded without an attempt", err, result.Course)
	}
	if got := counts(t, s.DB)[waits]; got != 1 {
		t.Errorf("%v waits for a connection were counted, want none more", got)
	}
}

func TestCourseOfADeletionWithoutADatabase(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		var log bytes.Buffer
		s.LogFaults(slog.New(slog.NewTextHandler(&log, nil)))
		down := s.unreachable(t)
		down.Store(true)
		// Many requests meet one fault, and some try for longer than their courses tell.
		var group sync.WaitGroup
		var tried atomic.Int64
		for i := range 20 {
			group.Go(func() {
				result, err := s.plants.Delete(in(t, 10*time.Second), deletion(int64(i), "k"))
				c := result.Course
				tried.Add(int64(c.Tried))
				failed := !slices.ContainsFunc(c.Attempts, func(a plant.Attempt) bool { return a.Failed != failedUnreachable })
				if !errors.Is(err, plant.ErrUnavailable) || c.Tried <= plant.MostAttempts || len(c.Attempts) != min(c.Tried, plant.MostAttempts) || !failed {
					t.Errorf("Delete without a database: %v, %+v; want ErrUnavailable after several attempts, all unreachable", err, c)
				}
			})
		}
		group.Wait()
		if got := strings.Count(log.String(), "database fault"); got != 1 {
			t.Errorf("the log tells of %d faults, want 1:\n%s", got, &log)
		}
		all := counts(t, s.DB)
		if all["failed_attempts_total unreachable"] != float64(tried.Load()) || all["database_faults_total connect"] < 5 {
			t.Errorf("%v attempts failed as unreachable, %v faults; want all of the %d", all["failed_attempts_total unreachable"], all["database_faults_total connect"], tried.Load())
		}
		// It is told again after a while, with how many there were.
		time.Sleep(tellEvery)
		s.plants.Delete(in(t, 5*time.Second), deletion(1, "k"))
		if got := strings.Count(log.String(), "database fault"); got != 2 || strings.Contains(strings.SplitN(log.String(), "\n", 2)[1], "before=0") {
			t.Errorf("the log tells of %d faults, want a second one with how many there were before:\n%s", got, &log)
		}
	})
}

// A batch is counted once, and each of its members knows its size.
func TestCourseOfABatch(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const n = 10
	s.sample(t, n)
	before := counts(t, s.DB)
	var sizes []int
	var mu sync.Mutex
	// Whoever comes while nobody can be served makes up one batch.
	conns := s.take(t, together)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			result, err := s.plants.Delete(in(t, patience), deletion(int64(i+1), fmt.Sprint("k", i)))
			if err != nil {
				t.Errorf("Delete: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, result.Course.Batch)
		})
	}
	s.plants.group.awaitMembers(n)
	for _, conn := range conns {
		conn.Release()
	}
	group.Wait()
	after := counts(t, s.DB)
	if got := after["batch_deletions"] - before["batch_deletions"]; got != 1 {
		t.Errorf("%v batches were counted, want 1", got)
	}
	want := slices.Repeat([]int{n}, n)
	if diff := cmp.Diff(want, sizes); diff != "" {
		t.Errorf("sizes of the members' batches (-want +got):\n%s", diff)
	}
}

// Connections that could not be opened are no openings.
func TestOpeningsAreCounted(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	down := s.unreachable(t)
	down.Store(true)
	s.plants.Delete(in(t, 500*time.Millisecond), deletion(1, "k"))
	if got := counts(t, s.DB)["pool_opened_connections_total"]; got != 0 {
		t.Errorf("%v connections were opened to a database that is down, want 0", got)
	}
	down.Store(false)
	s.plants.Delete(in(t, patience), deletion(1, "k"))
	if got := counts(t, s.DB)["pool_opened_connections_total"]; got < 1 {
		t.Errorf("%v connections were opened, want some", got)
	}
}

// Who breaks off a query, as the service does in its end, met no fault of the database.
func TestWhatIsBrokenOffIsNoFault(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx, cancel := context.WithCancel(in(t, patience))
	err := s.lend(ctx, watched, func(conn *pgx.Conn) error {
		time.AfterFunc(50*time.Millisecond, cancel)
		_, err := conn.Exec(ctx, `SELECT pg_catalog.pg_sleep(60)`)
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("a query that is broken off: %v, want %v", err, context.Canceled)
	}
	if got := counts(t, s.DB)["database_faults_total lost"]; got != 0 {
		t.Errorf("%v faults were counted, want none", got)
	}
}

func TestMetricsOfTokens(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	ends := time.Now().Add(time.Hour).Truncate(time.Second)
	token := create(t, issuer(t, database), "back-office", ends)
	endless := create(t, issuer(t, database), "endless", time.Time{})
	tokens := s.Tokens(time.Minute)
	for _, token := range []string{token, token, endless} {
		if _, err := tokens.Authenticate(in(t, patience), token); err != nil {
			t.Fatal(err)
		}
	}
	tokens.Authenticate(in(t, patience), "pst_"+strings.Repeat("0", 36)) // not even looked up
	want := map[string]float64{"token_expires_timestamp_seconds back-office": float64(ends.Unix())}
	if diff := cmp.Diff(want, counts(t, tokens)); diff != "" {
		t.Errorf("tokens (-want +got):\n%s", diff)
	}
	all := counts(t, s.DB)
	if all["token_lookups_total found"] != 2 || all["token_lookups_total cached"] != 1 || all["token_lookups_total unknown"] != 0 {
		t.Errorf("look-ups %v, want 2 found, 1 cached", all)
	}
}

// Nobody has to ask for a token for the metrics to tell that it is revoked, or ends sooner.
// That is no use of it.
func TestMetricsOfTokensThatNobodySends(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		owner, tokens := issuer(t, database), s.Tokens(5*time.Second)
		ends := time.Now().Add(48 * time.Hour).Truncate(time.Second)
		for _, name := range []string{"kept", "revoked", "rotated"} {
			token := create(t, owner, name, ends)
			if _, err := tokens.Authenticate(in(t, patience), token); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var watch sync.WaitGroup
		watch.Go(func() { tokens.NoteUse(ctx) })
		defer watch.Wait()
		defer cancel()
		if _, err := owner.Revoke(t.Context(), "revoked"); err != nil {
			t.Fatal(err)
		}
		if _, err := owner.Rotate(t.Context(), "rotated", time.Hour, ends); err != nil {
			t.Fatal(err)
		}
		time.Sleep(reviewEvery + time.Second)
		got := counts(t, tokens)
		sooner := got["token_expires_timestamp_seconds rotated"]
		if len(got) != 2 || got["token_expires_timestamp_seconds kept"] != float64(ends.Unix()) || sooner == 0 || sooner >= float64(ends.Unix()) {
			t.Errorf("tokens %v, want one that ends at %d, and one that ends sooner", got, ends.Unix())
		}
		time.Sleep(lately)
		if got := counts(t, tokens); len(got) > 0 {
			t.Errorf("tokens %v a day after anybody sent one, want none", got)
		}
	})
}

// The ledger's growth is counted by the database, whatever the service believes.
func TestMetricsOfTheLedger(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.plant(t, 1)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// The statistics of a session that is busy come late.
	for all := map[string]float64{}; all["ledger_rows_inserted_total"] < 1; all = counts(t, s.DB) {
		once, stop := context.WithTimeout(ctx, 100*time.Millisecond)
		s.WatchLedger(once)
		stop()
		if t.Context().Err() != nil {
			t.Fatalf("metrics %v, want a row of the ledger", all)
		}
	}
	if got := counts(t, s.DB)["ledger_bytes"]; got < 8192 {
		t.Errorf("the ledger has %v bytes, want a page at least", got)
	}
	// A replica that is cut off does not go on with what it knew.
	size := *s.DB.metrics.ledger.Load()
	size.read = size.read.Add(-ledgerFresh)
	s.DB.metrics.ledger.Store(&size)
	all := counts(t, s.DB)
	for _, name := range []string{"ledger_bytes", "ledger_rows_inserted_total"} {
		if got, there := all[name]; there {
			t.Errorf("%s is %v a minute after the ledger was read, want none", name, got)
		}
	}
}

// Whatever is deleted before the ledger is first read is growth that nobody sees, and an
// alert. So a database that comes late is asked soon.
func TestTheLedgerIsReadAsSoonAsThereIsADatabase(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	simulated(t, func(t *testing.T) {
		s := storeOn(t, database, "")
		down := s.unreachable(t)
		down.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		var watch sync.WaitGroup
		watch.Go(func() { s.WatchLedger(ctx) })
		defer watch.Wait()
		defer cancel()
		time.Sleep(time.Second)
		down.Store(false)
		time.Sleep(ledgerEvery / 3)
		if got, ok := counts(t, s.DB)["ledger_bytes"]; !ok {
			t.Errorf("the ledger has %v bytes (there: %v) after the database came, want some", got, ok)
		}
		// It is not asked again and again.
		s.exec(t, `INSERT INTO plants (name) SELECT repeat('fern', 1000) FROM generate_series(1, 100); DELETE FROM plants`)
		bytes := func() float64 { return counts(t, s.DB)["ledger_bytes"] }
		before := bytes()
		time.Sleep(ledgerEvery / 3)
		if got := bytes(); got != before {
			t.Errorf("the ledger has %v bytes before it is time to read it again, want %v as before", got, before)
		}
		time.Sleep(ledgerEvery)
		if got := bytes(); got <= before {
			t.Errorf("the ledger has %v bytes when it was read again, want more than %v", got, before)
		}
	})
}
