package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/ledger"
	"plantstore/internal/pgtest"
)

func TestListAndGet(t *testing.T) {
	t.Parallel()
	owner, id := pgtest.Connect(t, pgtest.Shared(t).Owner), pgtest.IDs(t)
	shop, role := fmt.Sprint("shop-", id), fmt.Sprint("clerk_", id)
	execute(t, owner, fmt.Sprintf(`INSERT INTO plants (id, name, created_at) SELECT i, 'Fern "' || i - %[1]d || '"', '2026-07-01Z' FROM generate_series(%[1]d, %[1]d + 4) i`, id))
	for i := range int64(3) {
		deleteAs(t, owner, id+i, shop)
	}
	execute(t, owner, fmt.Sprintf(`
		DELETE FROM plants WHERE id = %[1]d + 3;
		UPDATE plantstore.deletions SET deleted_by = '%[2]s' WHERE plant_id = %[1]d + 3;
		SELECT plantstore.resolve(%[1]d + 9, '%[3]s', 'r', 'k', 40401)`, id, role, shop))
	ids := entries(t, owner, id, id+9)
	at := func(i int) time.Time {
		return value[time.Time](t, owner, `SELECT deleted_at FROM plantstore.deletions WHERE id = $1`, ids[i])
	}
	plant := id + 1
	for name, test := range map[string]struct {
		filter ledger.Filter
		want   []int // places in ids
	}{
		"principal":       {ledger.Filter{By: shop}, []int{2, 1, 0}},
		"role":            {ledger.Filter{ByRole: role}, []int{3}},
		"not a role":      {ledger.Filter{ByRole: shop}, nil},
		"not a principal": {ledger.Filter{By: role}, nil},
		"plant":           {ledger.Filter{Plant: &plant}, []int{1}},
		"request":         {ledger.Filter{Request: fmt.Sprint("r-", id+2)}, []int{2}},
		"refusals":        {ledger.Filter{By: shop, Refusals: true}, []int{4, 2, 1, 0}},
		"a period":        {ledger.Filter{By: shop, Since: at(1), Until: at(2)}, []int{1}},
		"pages":           {ledger.Filter{By: shop, Limit: 1, Before: ids[2]}, []int{1}},
	} {
		var got, want []int64
		for _, d := range list(t, owner, test.filter) {
			got = append(got, d.ID)
		}
		for _, i := range test.want {
			want = append(want, ids[i])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}

	got, err := ledger.Get(t.Context(), owner, ids[1])
	if err != nil {
		t.Fatal(err)
	}
	request, key := fmt.Sprint("r-", plant), fmt.Sprint("k-", plant)
	literal := fmt.Sprintf(`(%d,"Fern ""1""","2026-07-01 00:00:00+00")`, plant)
	want := ledger.Deletion{
		ID: ids[1], PlantID: plant, DeletedAt: at(1).UTC(), DeletedBy: shop, RequestID: &request, IdempotencyKey: &key, TransactionID: got.TransactionID,
		Plant:   json.RawMessage(fmt.Sprintf(`{"id":%d,"name":"Fern \"1\"","created_at":"2026-07-01T00:00:00+00:00"}`, plant)),
		Literal: &literal, Types: []string{"bigint", "text", "timestamp with time zone"}, Name: `Fern "1"`,
	}
	if diff := cmp.Diff(want, got); diff != "" || got.TransactionID == 0 {
		t.Errorf("Get (-want +got):\n%s", diff)
	}
	if got, want := got.String(), fmt.Sprintf(`plant %d "Fern \"1\"" (deletion %d, deleted by %s at %s)`, plant, ids[1], shop, want.DeletedAt.Format(time.RFC3339)); got != want {
		t.Errorf("String: got %s, want %s", got, want)
	}
	if _, err := ledger.Get(t.Context(), owner, 1<<62); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("Get of an id that is not there: got %v, want ErrNotFound", err)
	}
}

func TestBy(t *testing.T) {
	t.Parallel()
	request := "r"
	for want, d := range map[string]ledger.Deletion{
		"role postgres":   {DeletedBy: "postgres"},
		"shop":            {DeletedBy: "shop", RequestID: &request},
		`"role postgres"`: {DeletedBy: "role postgres", RequestID: &request},
		`"jwt:a\nb"`:      {DeletedBy: "jwt:a\nb", RequestID: &request},
	} {
		if got := d.By(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// Values of type json may have escapes that the functions of json refuse.
func TestNamesBesideUnreadableJSON(t *testing.T) {
	t.Parallel()
	owner, id := pgtest.Connect(t, pgtest.New(t).Owner), pgtest.IDs(t)
	execute(t, owner, fmt.Sprintf(`ALTER TABLE plants ADD j json; INSERT INTO plants (id, name, j) VALUES (%d, 'Fern', '{"a": "\u0000\\u0000\ud800"}'); DELETE FROM plants`, id))
	if got := list(t, owner, ledger.Filter{Plant: &id}); len(got) != 1 || got[0].Name != "Fern" {
		t.Errorf("got %+v, want the name Fern", got)
	}
}

func TestListOfAPeriodUsesTheIndex(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	owner := pgtest.Connect(t, db.Owner)
	execute(t, owner, `
		INSERT INTO plantstore.deletions (plant_id, deleted_at, deleted_by, plant, literal, types)
		SELECT i, now() - (60000 - i) * interval '1 minute', 'script', '{}', '(1)', '{int8}' FROM generate_series(1, 60000) i`)
	execute(t, owner, `VACUUM ANALYZE plantstore.deletions`)
	config, err := pgx.ParseConfig(db.Owner)
	if err != nil {
		t.Fatal(err)
	}
	var plan explained
	config.Tracer = &plan
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	now := time.Now()
	for _, f := range []ledger.Filter{{Since: now.Add(-2 * time.Hour), Limit: 50}, {ByRole: "script", Since: now.Add(-50 * time.Hour), Until: now.Add(-48 * time.Hour), Limit: 50}} {
		if got := list(t, conn, f); len(got) != 50 {
			t.Errorf("entries: got %d, want 50", len(got))
		}
		rows, err := owner.Query(t.Context(), "EXPLAIN "+plan.sql, plan.args...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || !strings.Contains(strings.Join(lines, "\n"), "Bitmap Index Scan on deletions_by_time") {
			t.Errorf("plan (%v):\n%s\nwant deletions_by_time", err, strings.Join(lines, "\n"))
		}
	}
}

// However many refusals a plant has, its deletions are found by a few reads.
func TestDeletionsBesideManyRefusals(t *testing.T) {
	t.Parallel()
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	execute(t, owner, `ALTER TABLE plantstore.deletions SET (autovacuum_enabled = off)`) // what it reads for the BRIN index counts, too
	execute(t, owner, `
		INSERT INTO plants (id, name) VALUES (7, 'Fern'); DELETE FROM plants;
		INSERT INTO plantstore.deletions (plant_id, deleted_by, request_id, idempotency_key, refused) SELECT 7, 'shop', 'r', 'k-' || i, 40402 FROM generate_series(1, 20000) i`)
	execute(t, owner, `ANALYZE plantstore.deletions`)
	read := func() int {
		execute(t, owner, `SELECT pg_stat_force_next_flush()`)
		return value[int](t, owner, `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relid = 'plantstore.deletions'::regclass`)
	}
	plant := int64(7)
	for what, do := range map[string]func() int{
		"list": func() int { return len(list(t, owner, ledger.Filter{Plant: &plant, Limit: 50})) },
		"restore": func() int {
			return len(restore(t, owner, ledger.Selection{Plants: []int64{plant}}, ledger.Options{DryRun: true}).Plants)
		},
	} {
		before := read()
		if got := do(); got != 1 {
			t.Errorf("%s: got %d deletions, want 1", what, got)
		}
		if got := read() - before; got > 20 {
			t.Errorf("%s: %d entries were read, want 20 at most", what, got)
		}
	}
}

// explained is the last query of a connection.
type explained struct {
	sql  string
	args []any
}

func (e *explained) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	e.sql, e.args = q.SQL, q.Args
	return ctx
}

func (e *explained) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestPurge(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	owner, restorer := pgtest.Connect(t, db.Owner), pgtest.Connect(t, db.Owner)
	execute(t, owner, `
		INSERT INTO plantstore.deletions (plant_id, deleted_at, deleted_by, plant, literal, types)
			SELECT i, now() - interval '8 days', 'script', '{}', '(1)', '{int8}' FROM generate_series(1, 25000) i;
		INSERT INTO plantstore.deletions (plant_id, deleted_at, deleted_by, request_id, idempotency_key, refused) VALUES
			(30001, now() - interval '8 days', 'shop', 'r', 'k', 40401), (30002, now() - interval '6 days 23 hours', 'shop', 'r', 'k', 40401);
		INSERT INTO plantstore.deletions (plant_id, deleted_at, deleted_by, plant, literal, types) VALUES
			(30003, now() - interval '6 days 23 hours', 'script', '{}', '(1)', '{int8}')`)
	// Entries that a restore has locked stay, and nobody waits for it.
	execute(t, restorer, `BEGIN; SELECT FROM plantstore.deletions WHERE plant_id = 7 FOR UPDATE`)
	for _, age := range []time.Duration{0, ledger.MinAge - 1} {
		_, err := ledger.Older(t.Context(), owner, age)
		_, purgeErr := ledger.Purge(t.Context(), owner, age)
		if !errors.Is(err, ledger.ErrTooYoung) || !errors.Is(purgeErr, ledger.ErrTooYoung) {
			t.Errorf("entries older than %s: got %v and %v, want ErrTooYoung", age, err, purgeErr)
		}
	}
	if n, err := ledger.Older(t.Context(), owner, ledger.MinAge); n != 25_001 || err != nil {
		t.Errorf("older than 7 days: got %d, %v, want 25001", n, err)
	}
	// What was purged before an error stays purged: each batch has a transaction of its own.
	execute(t, owner, `CREATE FUNCTION plantstore.keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
		CREATE TRIGGER keep BEFORE DELETE ON plantstore.deletions FOR EACH ROW WHEN (OLD.plant_id = 20001) EXECUTE FUNCTION plantstore.keep()`)
	if n, err := ledger.Purge(t.Context(), owner, ledger.MinAge); err == nil || n != 19_999 {
		t.Errorf("purged before entry 20001, which is kept: got %d, %v, want 19999 and an error", n, err)
	}
	execute(t, owner, `CREATE OR REPLACE FUNCTION plantstore.keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN OLD; END $$`)
	if n, err := ledger.Purge(t.Context(), owner, ledger.MinAge); err != nil || n != 5_001 {
		t.Errorf("purged: got %d, %v, want 5001", n, err)
	}
	if got, want := value[[]int64](t, owner, `SELECT array_agg(plant_id ORDER BY id) FROM plantstore.deletions`), []int64{7, 30002, 30003}; !slices.Equal(got, want) {
		t.Errorf("entries that stay: got those of plants %v, want %v", got, want)
	}
}
