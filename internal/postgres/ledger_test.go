package postgres

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// ledgerOf returns the ledger as its owner sees it.
func ledgerOf(t *testing.T, database pgtest.Database) *Ledger {
	t.Helper()
	return ledgerAt(t, database.Owner)
}

func ledgerAt(t *testing.T, database string) *Ledger {
	t.Helper()
	db, err := Open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db.Ledger()
}

// ledgerAs returns the ledger as a role reads it whose password is x.
func ledgerAs(t *testing.T, database pgtest.Database, role string) *Ledger {
	t.Helper()
	u, err := url.Parse(database.Owner)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "x")
	return ledgerAt(t, u.String())
}

func newLedger(t *testing.T) (store, *Ledger) {
	t.Helper()
	database := pgtest.New(t)
	return storeOn(t, database, ""), ledgerOf(t, database)
}

// image returns the plants as PostgreSQL writes them to a binary file.
func TestUndoable(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `
		INSERT INTO plant_deletions (plant_id, shape, plant, deleted_by, deleted_at) VALUES
			(1, 1, '(1,x)', 'script', '2026-07-01 11:59:59.999999Z'), -- 1: too early
			(2, 1, '(1,x)', 'script', '2026-07-01 12:00:00Z'),
			(3, 1, '(1,x)', 'someone', '2026-07-01 12:00:01Z'),      -- 3: not by script
			(4, 1, '(1,x)', 'script', '2026-07-01 12:00:02Z'),       -- 4: again in 7
			(5, 1, '(1,x)', 'script', '2026-07-01 12:00:03Z'),       -- 5: again in 8, by someone
			(6, 1, '(1,x)', 'script', '2026-07-01 12:00:04Z'),       -- 6: restored
			(4, 1, '(1,x)', 'script', '2026-07-01 12:00:05Z'),
			(5, 1, '(1,x)', 'someone', '2026-07-01 12:00:06Z'),
			(9, 1, '(1,x)', 'script', '2026-07-01 13:00:00Z');       -- 9: too late, where there is an end
		INSERT INTO plant_deletions (plant_id, shape, plant, deleted_by, deleted_at, request_id) VALUES
			(10, 1, '(1,x)', 'script', '2026-07-01 12:00:01Z', '');  -- 10: by a principal of that name
		UPDATE plant_deletions SET restored_at = now(), restored_by = 'x' WHERE id = 6`)
	noon := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	script := Deleter{Role: "script"}
	for _, tt := range []struct {
		by    Deleter
		until time.Time
		want  Undo
	}{
		{script, noon.Add(time.Hour), Undo{IDs: []int64{7, 2}, First: noon, Last: noon.Add(5 * time.Second), Superseded: 2}},
		{script, time.Time{}, Undo{IDs: []int64{9, 7, 2}, First: noon, Last: noon.Add(time.Hour), Superseded: 2}},
		{Deleter{Principal: "script"}, time.Time{}, Undo{IDs: []int64{10}, First: noon.Add(time.Second), Last: noon.Add(time.Second)}},
		{Deleter{}, time.Time{}, Undo{}},
	} {
		got, err := l.Undoable(t.Context(), tt.by, noon, tt.until, false)
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("Undoable by %+v until %s: %v; (-want +got):\n%s", tt.by, tt.until, err, diff)
		}
	}
}

func TestListDeletions(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `
		INSERT INTO plant_deletions (plant_id, shape, plant, deleted_by, session_role, deleted_at, request_id, idempotency_key)
		SELECT i % 10, 1, '(' || i || ',,"",computed)', CASE i % 3 WHEN 0 THEN 'shop' ELSE 'psql' END, 'logged in', timestamptz '2026-07-01 00:00Z' + i * interval '1 hour',
			CASE i % 3 WHEN 0 THEN 'request-' || i END, CASE i % 3 WHEN 0 THEN 'key-' || i END
		FROM generate_series(1, 30) i;
		INSERT INTO plant_shapes (attributes, names, types, generated)
		VALUES ('{}', '{id,name,"odd \"name\"",label}', '{bigint,text,text,text}', '{f,f,f,t}')`)
	at := func(hour int) time.Time { return time.Date(2026, 7, 1, hour, 0, 0, 0, time.UTC) }
	tests := []struct {
		name   string
		filter LedgerFilter
		limit  int
		want   []int64
	}{
		{"a page", LedgerFilter{}, 3, []int64{30, 29, 28}},
		{"the next one", LedgerFilter{Before: 28}, 3, []int64{27, 26, 25}},
		{"a plant", LedgerFilter{Plant: ptr(int64(4))}, 9, []int64{24, 14, 4}},
		{"plant 0", LedgerFilter{Plant: ptr(int64(0))}, 9, []int64{30, 20, 10}},
		{"a principal", LedgerFilter{By: Deleter{Principal: "shop"}, Before: 10}, 9, []int64{9, 6, 3}},
		{"a role", LedgerFilter{By: Deleter{Role: "psql"}, Before: 6}, 9, []int64{5, 4, 2, 1}},
		{"a principal named like a role", LedgerFilter{By: Deleter{Principal: "psql"}}, 9, []int64{}},
		{"a role named like a principal", LedgerFilter{By: Deleter{Role: "shop"}}, 9, []int64{}},
		{"a request", LedgerFilter{RequestID: "request-12"}, 9, []int64{12}},
		{"a time", LedgerFilter{Since: at(5), Until: at(8)}, 9, []int64{7, 6, 5}},
		{"all of it", LedgerFilter{Plant: ptr(int64(6)), By: Deleter{Principal: "shop"}, RequestID: "request-6", Since: at(6), Until: at(7)}, 9, []int64{6}},
		{"nothing", LedgerFilter{By: Deleter{Principal: "nobody"}}, 9, []int64{}},
	}
	for _, tt := range tests {
		list, _, err := l.List(t.Context(), tt.filter, tt.limit, false)
		got := make([]int64, len(list))
		for i, r := range list {
			got[i] = r.ID
		}
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("List of %s: %v; (-want +got):\n%s", tt.name, err, diff)
		}
	}
	got, err := l.Get(t.Context(), 12)
	want := Recorded{ID: 12, PlantID: 2, Plant: []RecordedValue{
		{Column: "id", Type: "bigint", Value: []byte("12")}, {Column: "name", Type: "text"}, {Column: `odd "name"`, Type: "text", Value: []byte{}},
		{Column: "label", Type: "text", Computed: true},
	}, DeletedAt: at(12), DeletedBy: "shop", SessionRole: "logged in", RequestID: "request-12", IdempotencyKey: "key-12"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Get: %v; (-want +got):\n%s", err, diff)
	}
	list, _, err := l.List(t.Context(), LedgerFilter{Plant: ptr(int64(2))}, 2, true)
	if err != nil || !cmp.Equal(list[1], want) || list[0].ID != 22 {
		t.Errorf("List with plants: %+v, %v; want 22 and %+v", list, err, want)
	}
	without := want
	without.Plant = nil
	if list, _, err := l.List(t.Context(), LedgerFilter{Plant: ptr(int64(2))}, 2, false); err != nil || !cmp.Equal(list[1], without) {
		t.Errorf("List without plants: %+v, %v; want %+v", list, err, without)
	}
}

// Rows that are too large together come in several pages.
func TestListOfLargeRows(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `
		INSERT INTO plant_shapes (attributes, names, types, generated) VALUES ('{}', '{id}', '{text}', '{f}');
		INSERT INTO plant_deletions (plant_id, shape, plant, deleted_by)
		SELECT i, 1, '(' || repeat('x', CASE i WHEN 4 THEN 5000 ELSE 98 END) || ')', 'shop' FROM generate_series(1, 7) i`)
	l.pageBytes = 250
	var before int64
	for _, want := range []struct {
		ids  []int64
		more bool
	}{{[]int64{7, 6}, true}, {[]int64{5}, true}, {[]int64{4}, true}, {[]int64{3, 2}, true}, {[]int64{1}, false}} {
		list, more, err := l.List(t.Context(), LedgerFilter{Before: before}, 5, true)
		var ids []int64
		for _, r := range list {
			before = r.ID
			ids = append(ids, r.ID)
		}
		if err != nil || !slices.Equal(ids, want.ids) || more != want.more {
			t.Fatalf("%d, more %v, %v; want %d, %v", ids, more, err, want.ids, want.more)
		}
	}
	for limit, want := range map[int]bool{6: true, 7: false, 8: false} {
		if list, more, err := l.List(t.Context(), LedgerFilter{}, limit, false); len(list) != min(limit, 7) || more != want || err != nil {
			t.Errorf("with the limit %d: %d without their rows, more %v, %v; want more %v", limit, len(list), more, err, want)
		}
	}
}

// What row level security hides is not taken for what is not there.
func TestHiddenEntriesAreAnError(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `ALTER TABLE plant_deletions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY`)
	if list, _, err := l.List(t.Context(), LedgerFilter{}, 1, false); err == nil || !strings.Contains(err.Error(), "row-level security") {
		t.Errorf("List: %d deletions, %v; want an error about row-level security", len(list), err)
	}
}

func TestPurge(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `
		INSERT INTO plant_deletions (plant_id, shape, plant, deleted_by, deleted_at)
		SELECT i, 1, '()', 'shop', now() - CASE WHEN i <= 2500 THEN interval '8 days 1 minute' WHEN i <= 2600 THEN interval '7 days 1 minute' ELSE interval '6 days 23 hours' END
		FROM generate_series(1, 2700) i`)
	if n, err := l.Older(t.Context(), 8*24*time.Hour); n != 2500 || err != nil {
		t.Errorf("Older = %d, %v; want 2500, none", n, err)
	}
	// One that is being restored is left alone.
	tx, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM plant_deletions WHERE id = 1200 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	var steps []int64
	n, err := l.Purge(t.Context(), 8*24*time.Hour, func(purged int64) { steps = append(steps, purged) })
	if diff := cmp.Diff([]int64{1000, 2000, 2499}, steps); n != 2499 || err != nil || diff != "" {
		t.Errorf("Purge = %d, %v; want 2499, none; progress (-want +got):\n%s", n, err, diff)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Purge(t.Context(), IdempotencyHorizon, func(int64) {}); n != 101 || err != nil {
		t.Errorf("Purge of the horizon = %d, %v; want 101, none", n, err)
	}
	if n, err := l.Purge(t.Context(), IdempotencyHorizon-time.Second, func(int64) {}); n != 0 || !errors.Is(err, ErrTooYoung) {
		t.Errorf("Purge within the horizon = %d, %v; want 0, ErrTooYoung", n, err)
	}
	if _, err := l.Older(t.Context(), IdempotencyHorizon-time.Second); !errors.Is(err, ErrTooYoung) {
		t.Errorf("Older within the horizon: %v, want ErrTooYoung", err)
	}
	if list, _, err := l.List(t.Context(), LedgerFilter{}, 1000, false); len(list) != 100 || err != nil {
		t.Errorf("%d entries left, %v; want the 100 within the horizon, none", len(list), err)
	}
}

// A key is forgotten as a whole: not while its latest deletion is remembered, and
// whatever becomes of other plants, principals and keys.
func TestPurgeForgetsAKeyAsAWhole(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.exec(t, `
		INSERT INTO plant_deletions (plant_id, deleted_by, idempotency_key, turn, deleted_at, shape, plant)
		SELECT e.*, 1, '()' FROM (VALUES
			(1, 'shop', 'k', 0, now() - interval '8 days'),
			(1, 'shop', 'k', 1, now()),
			(1, 'shop', 'other', 0, now() - interval '8 days'),
			(1, 'till', 'k', 0, now() - interval '8 days'),
			(2, 'shop', 'k', 0, now() - interval '8 days')) e`)
	if n, err := l.Older(t.Context(), IdempotencyHorizon); n != 3 || err != nil {
		t.Errorf("Older = %d, %v; want 3, none", n, err)
	}
	if n, err := l.Purge(t.Context(), IdempotencyHorizon, func(int64) {}); n != 3 || err != nil {
		t.Errorf("Purge = %d, %v; want 3, none", n, err)
	}
	var left []int64
	if err := s.owner.QueryRow(t.Context(), `SELECT array_agg(id ORDER BY id) FROM plant_deletions`).Scan(&left); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int64{1, 2}, left); diff != "" {
		t.Errorf("entries left (-want +got):\n%s", diff)
	}
}

func TestARetryWithinTheHorizonIsRecognisedAfterAPurge(t *testing.T) {
	t.Parallel()
	s, l := newLedger(t)
	s.plant(t, 1)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	s.exec(t, fmt.Sprintf(`UPDATE plant_deletions SET deleted_at = now() - interval '%d seconds'`, int(IdempotencyHorizon.Seconds())-60))
	if _, err := l.Purge(t.Context(), IdempotencyHorizon, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	var earlier *plant.DeletedEarlierError
	if result, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil || !result.Replayed {
		t.Errorf("the retry = %+v, %v; want replayed", result, err)
	}
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "other")); !errors.As(err, &earlier) {
		t.Errorf("another request: %v, want a DeletedEarlierError", err)
	}
}

// What a session makes of dates, intervals and floats must not get into the
// ledger, nor a column that the table has no more.

// However statements are sent, and whatever form a role's moments have.
func TestTheLedgerInAnyDateStyle(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.plant(t, 1)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"cache_statement", "exec", "simple_protocol"} {
		l := ledgerAt(t, pgtest.WithParameters(database.Owner, "datestyle=SQL,%20DMY&default_query_exec_mode="+mode))
		found, _, err := l.List(t.Context(), LedgerFilter{}, 9, true)
		if err != nil || len(found) != 1 || time.Since(found[0].DeletedAt).Abs() > time.Hour {
			t.Errorf("List by %s = %+v, %v; want the deletion, of just now", mode, found, err)
		}
		if _, err := l.Purge(t.Context(), IdempotencyHorizon, func(int64) {}); err != nil {
			t.Errorf("Purge by %s: %v, want none", mode, err)
		}
	}
}
