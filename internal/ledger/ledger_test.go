package ledger_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/ledger"
	"plantstore/internal/pgtest"
)

func TestListAndGet(t *testing.T) {
	t.Parallel()
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	pgtest.Execute(t, owner, `INSERT INTO plants (id, name, created_at) SELECT i, 'Fern "' || i || '"', '2026-07-01Z' FROM generate_series(11, 14) i`)
	for i := range int64(3) {
		deleteAs(t, owner, 11+i, "shop")
	}
	pgtest.Execute(t, owner, `DELETE FROM plants; SELECT plantstore.resolve(19, 'shop', 'r', 'k', 40401)`)
	at := func(entry int) time.Time {
		return value[time.Time](t, owner, `SELECT deleted_at FROM plantstore.deletions WHERE id = $1`, entry)
	}
	plant := int64(12)
	for name, test := range map[string]struct {
		filter ledger.Filter
		want   []int64
	}{
		"principal":       {ledger.Filter{By: "shop"}, []int64{3, 2, 1}},
		"role":            {ledger.Filter{ByRole: "plantstore_owner"}, []int64{4}},
		"not a role":      {ledger.Filter{ByRole: "shop"}, nil},
		"not a principal": {ledger.Filter{By: "plantstore_owner"}, nil},
		"plant":           {ledger.Filter{Plant: &plant}, []int64{2}},
		"request":         {ledger.Filter{Request: "r-13"}, []int64{3}},
		"refusals":        {ledger.Filter{By: "shop", Refusals: true}, []int64{5, 3, 2, 1}},
		"a period":        {ledger.Filter{Since: at(2), Until: at(3)}, []int64{2}},
		"pages":           {ledger.Filter{Limit: 1, Before: 3}, []int64{2}},
	} {
		var got []int64
		for _, d := range list(t, owner, test.filter) {
			got = append(got, d.ID)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}

	got, err := ledger.Get(t.Context(), owner, 2)
	if err != nil {
		t.Fatal(err)
	}
	request, key, literal := "r-12", "k-12", `(12,"Fern ""12""","2026-07-01 00:00:00+00")`
	want := ledger.Deletion{
		ID: 2, PlantID: 12, DeletedAt: at(2).UTC(), DeletedBy: "shop", RequestID: &request, IdempotencyKey: &key, TransactionID: got.TransactionID,
		Plant:   json.RawMessage(`{"id":12,"name":"Fern \"12\"","created_at":"2026-07-01T00:00:00+00:00"}`),
		Literal: &literal, Types: []string{"bigint", "text", "timestamp with time zone"}, Name: `Fern "12"`,
	}
	if diff := cmp.Diff(want, got); diff != "" || got.TransactionID == 0 {
		t.Errorf("Get (-want +got):\n%s", diff)
	}
	if got, want := got.String(), `plant 12 "Fern \"12\"" (deletion 2, deleted by shop at `+want.DeletedAt.Format(time.RFC3339)+")"; got != want {
		t.Errorf("String: got %s, want %s", got, want)
	}
	if _, err := ledger.Get(t.Context(), owner, 1<<62); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("Get of an id that is not there: got %v, want ErrNotFound", err)
	}
}

// A plant's entries are found by a few reads, even in a large ledger and beside many refusals.
func TestLargeLedgerTakesFewReads(t *testing.T) {
	t.Parallel()
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	pgtest.Execute(t, owner, `ALTER TABLE plantstore.deletions SET (autovacuum_enabled = off); SET plan_cache_mode = force_generic_plan`) // its reads count, too; roles.sql sets that for a role that serves
	pgtest.Execute(t, owner, `
		INSERT INTO plants (id, name) VALUES (7, 'Fern'); DELETE FROM plants;
		INSERT INTO plantstore.deletions (plant_id, deleted_by, request_id, idempotency_key, refused) SELECT 7, 'shop', 'r', 'k-' || i, 40402 FROM generate_series(1, 20000) i`)
	read := func() int {
		pgtest.Execute(t, owner, `SELECT pg_stat_force_next_flush()`)
		return value[int](t, owner, `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relid = 'plantstore.deletions'::regclass`)
	}
	plant, now := int64(7), time.Now()
	period := ledger.Filter{ByRole: "script", Since: now.Add(-310 * time.Hour), Until: now.Add(-300 * time.Hour), Limit: 50}
	for _, test := range []struct {
		name, more  string     // SQL for more entries
		do          func() int // returns a number of entries
		want, reads int
	}{
		{"list of a plant", "", func() int { return len(list(t, owner, ledger.Filter{Plant: &plant, Limit: 50})) }, 1, 20},
		{"restore", "", func() int {
			return len(restore(t, owner, ledger.Selection{Plants: []int64{plant}}, ledger.Options{DryRun: true}).Plants)
		}, 1, 20},
		{"list of a period", `INSERT INTO plantstore.deletions (plant_id, deleted_at, deleted_by, plant, literal, types)
			SELECT 100 + i, now() - (40000 - i) * interval '1 minute', 'script', '{}', '(1)', '{int8}' FROM generate_series(1, 40000) i`, func() int { return len(list(t, owner, period)) }, 50, 10_000},
	} {
		pgtest.Execute(t, owner, test.more)
		pgtest.Execute(t, owner, `VACUUM ANALYZE plantstore.deletions`)
		before := read()
		if got := test.do(); got != test.want {
			t.Errorf("%s: got %d entries, want %d", test.name, got, test.want)
		}
		if got := read() - before; got > test.reads {
			t.Errorf("%s: %d entries were read, want %d at most", test.name, got, test.reads)
		}
	}
}

func TestPurge(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	owner, restorer := pgtest.Connect(t, db.Owner), pgtest.Connect(t, db.Owner)
	pgtest.Execute(t, owner, `
		INSERT INTO plantstore.deletions (plant_id, deleted_at, deleted_by, plant, literal, types)
			SELECT i, now() - interval '8 days', 'script', '{}', '(1)', '{int8}' FROM generate_series(1, 25000) i;
		INSERT INTO plantstore.deletions (plant_id, deleted_at, deleted_by, request_id, idempotency_key, refused) VALUES
			(30001, now() - interval '8 days', 'shop', 'r', 'k', 40401), (30002, now() - interval '6 days 23 hours', 'shop', 'r', 'k', 40401);
		INSERT INTO plantstore.deletions (plant_id, deleted_at, deleted_by, plant, literal, types) VALUES
			(30003, now() - interval '6 days 23 hours', 'script', '{}', '(1)', '{int8}')`)
	// Entries that a restore has locked stay, and nobody waits for it.
	pgtest.Execute(t, restorer, `BEGIN; SELECT FROM plantstore.deletions WHERE plant_id = 7 FOR UPDATE`)
	if n, err := ledger.Older(t.Context(), owner, ledger.MinAge); n != 25_001 || err != nil {
		t.Errorf("older than 7 days: got %d, %v, want 25001", n, err)
	}
	// What was purged before an error stays purged: each batch has a transaction of its own.
	pgtest.Execute(t, owner, `CREATE FUNCTION plantstore.keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
		CREATE TRIGGER keep BEFORE DELETE ON plantstore.deletions FOR EACH ROW WHEN (OLD.plant_id = 20001) EXECUTE FUNCTION plantstore.keep()`)
	if n, err := ledger.Purge(t.Context(), owner, ledger.MinAge); err == nil || n != 19_999 {
		t.Errorf("purged before entry 20001, which is kept: got %d, %v, want 19999 and an error", n, err)
	}
	pgtest.Execute(t, owner, `CREATE OR REPLACE FUNCTION plantstore.keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN OLD; END $$`)
	if n, err := ledger.Purge(t.Context(), owner, ledger.MinAge); err != nil || n != 5_001 {
		t.Errorf("purged: got %d, %v, want 5001", n, err)
	}
	if got, want := value[[]int64](t, owner, `SELECT array_agg(plant_id ORDER BY id) FROM plantstore.deletions`), []int64{7, 30002, 30003}; !slices.Equal(got, want) {
		t.Errorf("entries that stay: got those of plants %v, want %v", got, want)
	}
}
