package ledger_test

import (
	"context"
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

// watchedStore has tables that leave or change with plants, with rows that are hard to write.
const watchedStore = `
	CREATE TABLE suppliers (id int PRIMARY KEY);
	CREATE TABLE order_items (gone int, id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, plant_id bigint REFERENCES plants ON DELETE CASCADE,
		supplier_id int REFERENCES suppliers ON DELETE CASCADE, price float8, note json, twice float8 GENERATED ALWAYS AS (price * 2) STORED);
	ALTER TABLE order_items DROP gone;
	CREATE TABLE pictures (code uuid DEFAULT gen_random_uuid() PRIMARY KEY, item int NOT NULL REFERENCES order_items ON DELETE CASCADE, data bytea, seen timestamptz, age interval);
	CREATE TABLE stock (shop text, bin int, plant bigint REFERENCES plants ON DELETE SET NULL, other bigint DEFAULT 0 REFERENCES plants ON DELETE SET DEFAULT, PRIMARY KEY (shop, bin));
	CREATE TABLE sales (day date, plant_id bigint REFERENCES plants ON DELETE CASCADE, n int, PRIMARY KEY (day, plant_id)) PARTITION BY RANGE (day);
	CREATE TABLE sales_old PARTITION OF sales FOR VALUES FROM (MINVALUE) TO ('2026-01-01'); CREATE TABLE sales_new (n int, plant_id bigint NOT NULL, day date NOT NULL);
	ALTER TABLE sales ATTACH PARTITION sales_new DEFAULT;
	CREATE TABLE "Odd %s" (tg_relid int PRIMARY KEY, d int DEFAULT 7, "pl'a""nt %I" bigint REFERENCES plants ON DELETE CASCADE);
	CREATE INDEX ON order_items (plant_id); CREATE INDEX ON pictures (item); CREATE INDEX ON stock (plant); CREATE INDEX ON stock (other);
	INSERT INTO plants (id, name) SELECT i, 'p' || i FROM generate_series(0, 9) i;
	INSERT INTO suppliers VALUES (1);
	INSERT INTO order_items (plant_id, price, note) SELECT i % 5, 0.1 + 0.2::float8, '{"a": 1, "a": 2, "nul": "\u0000", "lone": "\ud800"}' FROM generate_series(1, 20) i;
	INSERT INTO pictures SELECT lpad(id || '0' || n, 32, '0')::uuid, id, '\x00ff5c27', '2026-07-01 12:00:00.000001+05:30', '1 year -2 days +03:04:05.000006' FROM order_items, generate_series(1, 2) n;
	INSERT INTO stock SELECT 'say "a,b"', i, i, 9 - i FROM generate_series(0, 9) i;
	INSERT INTO sales SELECT '2025-12-30'::date + i, i, i FROM generate_series(0, 4) i;
	INSERT INTO "Odd %s" VALUES (1, NULL, 2)`

const watchAll = `SELECT plantstore.watch('pictures'), plantstore.watch('stock'), plantstore.watch('sales'), plantstore.watch('"Odd %s"')`

// cascaded returns the recorded rows as deleted plant, table, changed column and key, sorted. It
// leaves out what has no literal.
func cascaded(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	rows, _ := conn.Query(t.Context(), `SELECT format('%s: %s', d.plant_id, concat_ws(' ', c.relation, c.changed, substring(c.content::text FROM '"(?:id|bin|code)":"?[0-]*(\d+)'))) FROM plantstore.cascaded c JOIN plantstore.deletions d ON d.id = c.deletion_id WHERE c.literal <> '' ORDER BY c.id`)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// Rows that leave or change without their plant are not recorded, even in the transaction of a
// deletion.
func TestOnlyCascadesOfPlantsAreRecorded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	owner, app := pgtest.Connect(t, db.Owner), pgtest.Connect(t, db.App)
	pgtest.Execute(t, owner, watchedStore)
	pgtest.Execute(t, owner, watchAll)
	pgtest.Execute(t, owner, `ALTER TABLE order_items DROP CONSTRAINT order_items_plant_id_fkey, ADD FOREIGN KEY (plant_id) REFERENCES plants ON DELETE CASCADE ON UPDATE CASCADE;
		ALTER TABLE stock DROP CONSTRAINT stock_plant_fkey, DROP CONSTRAINT stock_other_fkey, ADD FOREIGN KEY (plant) REFERENCES plants ON DELETE SET NULL ON UPDATE CASCADE,
			ADD FOREIGN KEY (other) REFERENCES plants ON DELETE SET DEFAULT ON UPDATE CASCADE;
		UPDATE order_items SET supplier_id = 1 WHERE id IN (5, 10); DELETE FROM sales;
		CREATE TABLE audit (id int); CREATE FUNCTION tidy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			DELETE FROM order_items WHERE id = 15; UPDATE stock SET plant = NULL WHERE bin = 4; RETURN NULL; END $$;
		CREATE TRIGGER tidy AFTER INSERT ON audit FOR EACH STATEMENT EXECUTE FUNCTION tidy();
		-- All plants and items have been deleted before, and have come back.
		INSERT INTO plantstore.deletions (plant_id, deleted_by, transaction_id) SELECT id, 'kay', '3' FROM plants;
		INSERT INTO plantstore.cascaded (deletion_id, relation, key, content, literal) SELECT d.id, 'order_items', i.id, '{}', '' FROM order_items i JOIN plantstore.deletions d ON d.plant_id = i.plant_id`)
	for _, test := range []struct {
		name, sql string
		app       bool // by the service's role
		want      []string
	}{
		{name: "by itself", want: []string{}, sql: `DELETE FROM order_items WHERE id = 1; UPDATE stock SET plant = 4, other = 5; DELETE FROM suppliers; INSERT INTO audit VALUES (1); UPDATE plants SET id = 104 WHERE id = 4`},
		{name: "beside a plant", sql: `DELETE FROM plants WHERE id = 8; DELETE FROM order_items WHERE id = 1; UPDATE stock SET plant = NULL WHERE bin = 2; DELETE FROM suppliers; INSERT INTO audit VALUES (1);
				UPDATE plants SET id = 104 WHERE id = 4; DELETE FROM plants WHERE id = 9`,
			want: []string{"8: stock other 1", "8: stock plant 8", "9: stock other 0", "9: stock plant 9"}},
		{name: "a trigger that deletes a plant", sql: `CREATE FUNCTION drop_plant() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM plants WHERE id = 7; RETURN NULL; END $$;
				CREATE TRIGGER drop_plant AFTER DELETE ON suppliers FOR EACH STATEMENT EXECUTE FUNCTION drop_plant(); DELETE FROM suppliers`,
			want: []string{"7: stock other 2", "7: stock plant 7"}},
		{name: "a batch of the service", app: true, sql: `DELETE FROM public.plants WHERE id = ANY (ARRAY(SELECT unnest('{1,6}'::bigint[]))) AND (SELECT set_config('plantstore.requests', '{{1,6},{shop,shop},{r,s},{k,l}}', true)) <> ''`,
			want: []string{"1: order_items 1", "1: order_items 11", "1: order_items 16", "1: order_items 6", "1: pictures 101", "1: pictures 102", "1: pictures 1101", "1: pictures 1102", "1: pictures 1601", "1: pictures 1602",
				"1: pictures 601", "1: pictures 602", "1: stock other 8", "1: stock plant 1", "6: stock other 3", "6: stock plant 6"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.app { // the service's role can't read the ledger
				pgtest.Execute(t, app, test.sql)
			} else {
				pgtest.Execute(t, owner, `BEGIN; `+test.sql)
				defer pgtest.Execute(t, owner, `ROLLBACK`)
			}
			if diff := cmp.Diff(test.want, cascaded(t, owner)); diff != "" {
				t.Errorf("recorded (-want +got):\n%s", diff)
			}
		})
	}
}

// The work of a large deletion and of its restore grows with the rows, not with their square.
func TestLargeCascadesTakeLinearWork(t *testing.T) {
	t.Parallel()
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	pgtest.Execute(t, owner, watchedStore)
	pgtest.Execute(t, owner, watchAll)
	pgtest.Execute(t, owner, `ALTER TABLE plantstore.deletions SET (autovacuum_enabled = off); ALTER TABLE plantstore.cascaded SET (autovacuum_enabled = off)`) // its reads count, too
	const n = 500
	pgtest.Execute(t, owner, fmt.Sprintf(`INSERT INTO plants (id, name) SELECT i, 'p' FROM generate_series(1001, 1000 + %[1]d) i; INSERT INTO order_items (plant_id) SELECT generate_series(1001, 1000 + %[1]d);
		INSERT INTO pictures (item) SELECT id FROM order_items WHERE plant_id > 1000`, n))
	read := func() int {
		pgtest.Execute(t, owner, `SELECT pg_stat_force_next_flush()`)
		return value[int](t, owner, `SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_user_tables WHERE schemaname = 'plantstore'`)
	}
	before := read()
	pgtest.Execute(t, owner, `DELETE FROM plants WHERE id > 1000`)
	restore(t, owner, ledger.Selection{ByRole: "plantstore_owner", Since: time.Unix(0, 0)}, ledger.Options{})
	if got := read() - before; got > 27*n {
		t.Errorf("entries and rows that were read: got %d, want %d at most", got, 27*n)
	}
}

func TestWatchRefusesUnfitTables(t *testing.T) {
	t.Parallel()
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	const orders = `CREATE TABLE orders (id int PRIMARY KEY, plant_id bigint REFERENCES plants ON DELETE CASCADE); `
	for _, test := range []struct{ sql, table, want string }{
		{`SELECT 1`, "nowhere", "there is no table nowhere"},
		{orders + `CREATE TABLE t (id int PRIMARY KEY, o int REFERENCES orders)`, "t", "public.t loses and changes no rows when a plant is deleted"},
		{`CREATE TABLE t (plant bigint REFERENCES plants ON DELETE CASCADE)`, "t", "public.t has no primary key"},
		{`CREATE TABLE ` + strings.Repeat("t", 50) + ` (id bigint PRIMARY KEY REFERENCES plants ON DELETE CASCADE)`, strings.Repeat("t", 50), "public." + strings.Repeat("t", 50) + " has a name of more than 56 bytes"},
		{`CREATE TABLE t (id bigint PRIMARY KEY REFERENCES plants ON DELETE CASCADE); ALTER TABLE t ENABLE ROW LEVEL SECURITY`, "t", "public.t has row level security"},
		{`CREATE TABLE t (id bigint PRIMARY KEY REFERENCES plants ON DELETE CASCADE); CREATE RULE r AS ON DELETE TO t DO ALSO NOTHING`, "t", "public.t has a rule"},
		{`CREATE TABLE t (plant bigint REFERENCES plants ON DELETE CASCADE, path int[], PRIMARY KEY (plant, path))`, "t", "public.t has an array, a composite or JSON in its primary key"},
		{orders + `CREATE TRIGGER record_change BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()`, "orders",
			"public.orders has a trigger of its own that is called record_cascade or record_change"},
		{`CREATE TABLE t (id bigint PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE "P" PARTITION OF t DEFAULT; ALTER TABLE "P" ADD FOREIGN KEY (id) REFERENCES plants ON DELETE CASCADE`, `"P"`, `public."P" is a partition`},
		{orders + `ALTER TABLE orders ADD part_of int REFERENCES orders ON DELETE CASCADE`, "orders",
			"public.orders refers by orders_part_of_fkey to public.orders, and deletions reach that on paths of different lengths"},
		{orders + `ALTER TABLE plants ADD mother bigint REFERENCES plants ON DELETE CASCADE`, "orders",
			"public.orders refers by orders_plant_id_fkey to public.plants, and deletions reach that on paths of different lengths"},
		{orders + `CREATE TABLE t (id int PRIMARY KEY REFERENCES orders ON DELETE CASCADE, plant bigint REFERENCES plants ON DELETE CASCADE); CREATE TABLE u (id int PRIMARY KEY REFERENCES t ON DELETE SET NULL)`, "u",
			"public.u refers by u_id_fkey to public.t, and deletions reach that on paths of different lengths"},
		{orders + `ALTER TABLE orders ADD UNIQUE (id, plant_id); CREATE TABLE t (id int PRIMARY KEY, o int, p bigint, FOREIGN KEY (o, p) REFERENCES orders (id, plant_id) ON DELETE CASCADE)`, "t",
			"public.t refers by t_o_p_fkey to public.orders, but not to a primary key of one column"},
		{`CREATE TABLE orders (id numeric PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE); CREATE TABLE t (id int PRIMARY KEY, o numeric REFERENCES orders ON DELETE CASCADE)`, "t",
			"public.t refers by t_o_fkey to public.orders, a key that is no integer, uuid or text"},
		{orders + `ALTER TABLE orders ENABLE ROW LEVEL SECURITY; CREATE TABLE t (id int PRIMARY KEY, o int REFERENCES orders ON DELETE CASCADE)`, "t", "public.orders has row level security"},
		{orders + `REVOKE UPDATE ON orders FROM plantstore_owner`, "orders", "first run GRANT UPDATE ON public.orders TO plantstore_owner;"},
	} {
		pgtest.Execute(t, owner, `BEGIN`)
		pgtest.Execute(t, owner, test.sql)
		if _, err := ledger.Watch(t.Context(), owner, test.table); err == nil || err.Error() != test.want {
			t.Errorf("%s: got %v, want %s", test.sql, err, test.want)
		}
		pgtest.Execute(t, owner, `ROLLBACK`)
	}
}

func TestWatchAndUnwatch(t *testing.T) {
	t.Parallel()
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	pgtest.Execute(t, owner, watchedStore)
	const items, stock, pictures = "public.order_items CASCADE, ", "public.stock SET DEFAULT, public.stock SET NULL, ", "public.pictures CASCADE, "
	for _, step := range []struct {
		name    string
		do      func(context.Context, *pgx.Conn, string) ([]string, error)
		table   string
		returns string
		watched string // foreign keys
	}{
		{"watch", ledger.Watch, "pictures", "public.order_items public.pictures", items + pictures},
		{"watch changes", ledger.Watch, "stock", "public.stock", items + stock + pictures},
		{"watch again", ledger.Watch, "pictures", "public.order_items public.pictures", items + stock + pictures},
		{"unwatch a parent", ledger.Unwatch, "order_items", "public.order_items public.pictures", stock},
		{"watch after unwatch", ledger.Watch, "pictures", "public.order_items public.pictures", items + stock + pictures},
		{"unwatch a child", ledger.Unwatch, "public.pictures", "public.pictures", items + stock},
	} {
		returned, err := step.do(t.Context(), owner, step.table)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := ledger.ForeignKeys(t.Context(), owner)
		if err != nil {
			t.Fatal(err)
		}
		watched := ""
		for _, k := range keys {
			if k.Watched {
				watched += k.Table + " " + k.OnDelete + ", "
			}
		}
		if returns := strings.Join(returned, " "); returns != step.returns || watched != step.watched {
			t.Errorf("%s: got %s, and watched: %s; want %s, and %s", step.name, returns, watched, step.returns, step.watched)
		}
	}
	pgtest.Execute(t, owner, `DELETE FROM plants WHERE id = 1`)
	if got := list(t, owner, ledger.Filter{}); len(got) != 1 || got[0].Cascaded != 6 {
		t.Errorf("entries: got %+v, want one with four items and two columns of stock", got)
	}
	pgtest.Execute(t, owner, `UPDATE plantstore.deletions SET deleted_at = now() - interval '9 days'`)
	if n, err := ledger.Purge(t.Context(), owner, ledger.MinAge); n != 1 || err != nil {
		t.Fatalf("purge: got %d, %v, want 1 entry", n, err)
	}
	if got := value[int](t, owner, `SELECT count(*) FROM plantstore.cascaded`); got != 0 {
		t.Errorf("rows after the purge: got %d, want 0", got)
	}
}

// Deletions wait behind a watch that waits for its lock, so it gives up soon.
func TestWatchGivesUpOnALockedTable(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	owner, other := pgtest.Connect(t, db.Owner), pgtest.Connect(t, db.Owner)
	pgtest.Execute(t, owner, `CREATE TABLE pots (id int PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE); SELECT plantstore.watch('pots')`)
	pgtest.Execute(t, other, `BEGIN; LOCK TABLE pots IN ROW EXCLUSIVE MODE`)
	_, watchErr := ledger.Watch(t.Context(), owner, "pots")
	_, unwatchErr := ledger.Unwatch(t.Context(), owner, "pots")
	for what, err := range map[string]error{"watch": watchErr, "unwatch": unwatchErr} {
		if want := "pots is locked by another transaction: try again"; err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", what, err, want)
		}
	}
}

// Foreign keys of other kinds may be there, or come later, and tables get other parents and
// columns. Deletions continue, and Watched names what is not recorded.
func TestDeletionsContinueWhenWatchedTablesChange(t *testing.T) {
	t.Parallel()
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	pgtest.Execute(t, owner, `
		INSERT INTO plants (id, name) VALUES (1, 'Fern'), (2, 'Ivy');
		CREATE TABLE orders (id bigint PRIMARY KEY, plant_id bigint REFERENCES plants ON DELETE CASCADE, replaces bigint REFERENCES orders ON DELETE SET NULL);
		CREATE TABLE pictures (id bigint PRIMARY KEY, order_id bigint REFERENCES orders ON DELETE CASCADE);
		CREATE TABLE albums (id bigint PRIMARY KEY, plant_id bigint REFERENCES plants ON DELETE CASCADE);
		ALTER TABLE orders ADD main_picture bigint REFERENCES pictures ON DELETE SET NULL;
		CREATE TABLE thumbs (id bigint PRIMARY KEY, picture_id bigint REFERENCES pictures ON DELETE CASCADE);
		SELECT plantstore.watch('thumbs'), plantstore.watch('albums');
		ALTER TABLE plants ADD sku text UNIQUE; UPDATE plants SET sku = 's' || id;
		ALTER TABLE orders ADD sku text REFERENCES plants (sku) ON DELETE CASCADE;
		INSERT INTO orders VALUES (1, 1, NULL, NULL, 's1'), (2, 2, 1, NULL, NULL); INSERT INTO pictures VALUES (1, 1); UPDATE orders SET main_picture = 1 WHERE id = 1;
		ALTER TABLE thumbs DROP CONSTRAINT thumbs_picture_id_fkey, ADD album_id bigint REFERENCES albums ON DELETE CASCADE;
		INSERT INTO albums VALUES (1, 1); INSERT INTO thumbs VALUES (1, NULL, 1)`)
	const recorded = `SELECT string_agg(relation::text || coalesce('.' || changed, ''), ' ' ORDER BY relation::text, changed) FROM plantstore.cascaded WHERE key IS NOT NULL`
	const unwatched = `SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM plantstore.foreign_keys WHERE NOT plantstore.is_watched(relation, action)`
	for _, test := range []struct{ name, sql, unwatched, recorded string }{
		{"another parent", ``, "thumbs_album_id_fkey", "albums orders.replaces orders pictures"},
		{"watched again", `SELECT plantstore.watch('thumbs')`, "", "albums orders.replaces orders pictures thumbs"},
		{"columns dropped and renamed", `SELECT plantstore.watch('thumbs'); ALTER TABLE thumbs DROP picture_id; ALTER TABLE albums RENAME plant_id TO plant`,
			"albums_plant_id_fkey", "orders.replaces orders pictures"},
		{"a second foreign key of the column", `ALTER TABLE albums ADD FOREIGN KEY (plant_id) REFERENCES plants ON DELETE CASCADE; SELECT plantstore.watch('thumbs')`, "", "albums orders.replaces orders pictures thumbs"},
		{"another table with the name", `ALTER TABLE albums RENAME TO books; CREATE TABLE albums (id bigint PRIMARY KEY REFERENCES plants ON DELETE CASCADE); INSERT INTO albums VALUES (1); SELECT plantstore.watch('albums')`,
			"thumbs_album_id_fkey", "albums books orders.replaces orders pictures"},
		{"tables renamed", `SELECT plantstore.watch('thumbs'); ALTER TABLE albums RENAME TO books; ALTER TABLE orders RENAME TO sales`,
			"orders_main_picture_fkey orders_plant_id_fkey orders_replaces_fkey orders_sku_fkey pictures_order_id_fkey thumbs_album_id_fkey", "books sales"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pgtest.Execute(t, owner, `BEGIN; `+test.sql)
			defer pgtest.Execute(t, owner, `ROLLBACK`)
			if got := value[string](t, owner, unwatched); got != test.unwatched {
				t.Errorf("not watched: got %q, want %q", got, test.unwatched)
			}
			pgtest.Execute(t, owner, `DELETE FROM plants WHERE id = 1`)
			if got := value[string](t, owner, recorded); got != test.recorded {
				t.Errorf("recorded: got %s, want %s", got, test.recorded)
			}
		})
	}
}

// Stores have foreign keys, partitions and triggers in many ways. Each case deletes plants and
// restores some of them. A restore replaces only values that the foreign key left in a column.
func TestRestoreWithCascades(t *testing.T) {
	t.Parallel()
	const two = `CREATE TABLE t (id int PRIMARY KEY, a bigint REFERENCES plants ON DELETE CASCADE, b bigint REFERENCES plants ON DELETE %s); SELECT plantstore.watch('t'); INSERT INTO t VALUES (1, 1, 2); `
	const touched = `CREATE OR REPLACE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.n := OLD.n + 1; RETURN NEW; END $$;
		CREATE TABLE t (id int PRIMARY KEY, a bigint REFERENCES plants ON DELETE SET NULL (a), n int); SELECT plantstore.watch('t'); INSERT INTO t VALUES (1, 1, 0);
		CREATE TRIGGER touch BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION touch(); DELETE FROM plants WHERE id = 1`
	twice := `BEGIN; DELETE FROM plants WHERE id = 1; INSERT INTO plants (id, name) VALUES (1, 'p'); INSERT INTO t VALUES (%d, 1, NULL); DELETE FROM plants WHERE id = 1; COMMIT`
	const defaults = `CREATE TABLE t (id int PRIMARY KEY, a bigint DEFAULT 0 REFERENCES plants ON DELETE SET NULL, b bigint DEFAULT 0 REFERENCES plants ON DELETE SET DEFAULT);
		SELECT plantstore.watch('t'); INSERT INTO t VALUES (1, 1, NULL), (2, NULL, 1); `
	const delete1 = `DELETE FROM plants WHERE id = 1; `
	kept := func(column string, row int) string {
		return fmt.Sprintf("public.t: rows that are gone, or whose column %q has another value since: %d", column, row)
	}
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	for _, test := range []struct {
		name, sql string
		restores  []string // plants, and what the refusal says
		fire      bool
		want      string // rows of t
	}{
		{name: "two parents of which one comes back", sql: fmt.Sprintf(two, "CASCADE") + `DELETE FROM plants WHERE id IN (1, 2)`,
			restores: []string{`1: insert or update on table "t" violates foreign key constraint "t_b_fkey": Key (b)=(2) is not present in table "plants".`, "1 2"}, want: "(1,1,2)"},
		{name: "set to null, then removed", sql: fmt.Sprintf(two, "SET NULL") + `DELETE FROM plants WHERE id = 2; ` + delete1, restores: []string{"2: " + kept("b", 1), "1", "2"}, want: "(1,1,2)"},
		{name: "set to null and removed by one statement", sql: fmt.Sprintf(two, "SET NULL") + `DELETE FROM plants WHERE id IN (1, 2)`, restores: []string{"1 2"}, want: "(1,1,2)"},
		{name: "set to null by two deletions", sql: fmt.Sprintf(two, "SET NULL") + `DELETE FROM plants WHERE id = 2; UPDATE t SET b = 3; DELETE FROM plants WHERE id = 3`,
			restores: []string{"2: " + kept("b", 1), "2 3"}, want: "(1,1,3)"},
		{name: "removed by two deletions", sql: fmt.Sprintf(two, "SET NULL") + delete1 + `INSERT INTO t VALUES (1, 3, 2); DELETE FROM plants WHERE id = 3`, restores: []string{"1 3"}, want: "(1,3,2)"},
		{name: "a trigger that touches the changed row", sql: touched, restores: []string{"1: the store's triggers of public.t fire: touch (function public.touch)"}, want: "(1,,1)"},
		{name: "a trigger that touches the changed row, fired", sql: touched, fire: true, restores: []string{"1"}, want: "(1,1,2)"},
		{name: "a partition attached after the watch", sql: `CREATE TABLE t (id int PRIMARY KEY, a bigint REFERENCES plants ON DELETE CASCADE) PARTITION BY RANGE (id); SELECT plantstore.watch('t');
			CREATE TABLE p (id int NOT NULL, a bigint); ALTER TABLE t ATTACH PARTITION p DEFAULT; INSERT INTO t VALUES (1, 1), (2, NULL); ` + delete1, restores: []string{"1"}, want: "(1,1) (2,)"},
		{name: "a row removed, inserted and removed", sql: fmt.Sprintf(two, "SET NULL") + fmt.Sprintf(twice, 1), restores: []string{"1"}, want: "(1,1,)"},
		{name: "another row of a plant removed twice", sql: fmt.Sprintf(two, "SET NULL") + fmt.Sprintf(twice, 7), restores: []string{"1"}, want: "(7,1,)"},
		{name: "plants that refer to plants", sql: `ALTER TABLE plants ADD mother bigint REFERENCES plants ON DELETE SET NULL; CREATE VIEW t AS SELECT id, mother FROM plants; SELECT plantstore.watch('plants');
			UPDATE plants SET mother = 1; DELETE FROM plants WHERE id = 1; DELETE FROM plants WHERE id = 2`, restores: []string{"2", "1"}, want: "(0,1) (1,1) (2,1) (3,1)"},
		{name: "plants of two shapes that refer to each other", sql: `ALTER TABLE plants ADD next bigint; UPDATE plants SET next = (id + 1) % 4; CREATE VIEW t AS SELECT id, next FROM plants;
			DELETE FROM plants WHERE id < 2; ALTER TABLE plants ADD note text; DELETE FROM plants;
			ALTER TABLE plants ADD FOREIGN KEY (next) REFERENCES plants, ADD FOREIGN KEY (next) REFERENCES plants DEFERRABLE INITIALLY DEFERRED`, restores: []string{"0 1 2 3"}, want: "(0,1) (1,2) (2,3) (3,0)"},
		{name: "keys of more columns that are set to null", sql: `ALTER TABLE plants ADD UNIQUE (id, name); CREATE TABLE t (id int PRIMARY KEY, a bigint, n text, FOREIGN KEY (a, n) REFERENCES plants (id, name) ON DELETE SET NULL (a));
			INSERT INTO t VALUES (1, 1, 'p'), (2, NULL, NULL); ` + delete1, restores: []string{"1"}, want: "(1,,p) (2,,)"}, // watch refuses it

		{name: "null, and the default since", sql: defaults + delete1 + `UPDATE t SET a = DEFAULT WHERE id = 1`, restores: []string{"1: " + kept("a", 1)}, want: "(1,0,) (2,,0)"},
		{name: "the default, and null since", sql: defaults + delete1 + `UPDATE t SET b = NULL WHERE id = 2`, restores: []string{"1: " + kept("b", 2)}, want: "(1,,) (2,,)"},
		{name: "another default since", sql: defaults + delete1 + `ALTER TABLE t ALTER a SET DEFAULT 2, ALTER b SET DEFAULT 2`, restores: []string{"1"}, want: "(1,1,) (2,,1)"},
		{name: "another default after the watch", sql: defaults + `ALTER TABLE t ALTER b SET DEFAULT 2; ` + delete1, restores: []string{"1"}, want: "(1,1,) (2,,1)"},
		{name: "no default", sql: defaults + `ALTER TABLE t ALTER b DROP DEFAULT; ` + delete1 + `ALTER TABLE t ALTER b SET DEFAULT 2`, restores: []string{"1"}, want: "(1,1,) (2,,1)"},
		{name: "a value by hand", sql: defaults + delete1 + `INSERT INTO plants VALUES (9, 'p'); UPDATE t SET a = 9, b = 9`, restores: []string{"1: " + kept("a", 1) + "\n" + kept("b", 2)}, want: "(1,9,9) (2,9,9)"},
	} {
		t.Run(test.name, func(t *testing.T) { // one after the other, in one database
			replacePlants(t, owner, `DROP TABLE IF EXISTS t; CREATE TABLE plants (id bigint PRIMARY KEY, name text); INSERT INTO plants SELECT i, 'p' FROM generate_series(0, 3) i`)
			pgtest.Execute(t, owner, test.sql)
			for _, restore := range test.restores {
				ids, want, _ := strings.Cut(restore, ": ")
				var plants []int64
				for _, id := range strings.Fields(ids) {
					plants = append(plants, int64(id[0]-'0'))
				}
				_, err := ledger.Restore(t.Context(), owner, ledger.Selection{Plants: plants}, ledger.Options{FireTriggers: test.fire})
				if want == "" && err != nil {
					t.Fatal(err)
				}
				if want != "" && strings.Join(reasons(t, err), "\n") != want {
					t.Errorf("refused: got %v, want %s", err, want)
				}
			}
			if got := value[string](t, owner, `SELECT coalesce(string_agg(t::text, ' ' ORDER BY id), '') FROM t`); got != test.want {
				t.Errorf("rows: got %s, want %s", got, test.want)
			}
		})
	}
}

// A restore names each obstacle, and continues if a flag allows it.
func TestRestoreWithCascadesIsRefused(t *testing.T) {
	t.Parallel()
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	pgtest.Execute(t, owner, watchedStore)
	pgtest.Execute(t, owner, watchAll)
	pgtest.Execute(t, owner, `CREATE FUNCTION zero() RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'; ALTER TABLE stock ALTER other SET DEFAULT zero();
		UPDATE order_items SET supplier_id = 1; DELETE FROM plants WHERE id = 1`)
	const bin = `("say ""a,b""",`
	all := []ledger.Cascaded{{Table: "public.order_items", Rows: 4}, {Table: "public.sales", Rows: 1}, {Table: "public.pictures", Rows: 8},
		{Table: "public.stock", Changed: "other", Rows: 1}, {Table: "public.stock", Changed: "plant", Rows: 1}}
	for _, test := range []struct {
		name, sql string
		refused   string // one reason a line, with its flag
		options   ledger.Options
		notices   string
		rows      []ledger.Cascaded // the rows that come back
	}{
		{name: "nothing in the way", rows: all},
		{name: "plants only", options: ledger.Options{PlantsOnly: true}, sql: `DROP TABLE pictures, sales`},
		{name: "ids taken", sql: `INSERT INTO order_items (id, price) OVERRIDING SYSTEM VALUE VALUES (6, 1), (16, 1)`, refused: "duplicate key value violates unique constraint \"order_items_pkey\": Key (id)=(6) already exists. [--plants-only]"},
		{name: "rows changed since", sql: `UPDATE stock SET plant = 2 WHERE bin = 1; DELETE FROM stock WHERE bin = 8`,
			refused: "public.stock: rows that are gone, or whose column \"other\" has another value since: " + bin + "8) [--skip-existing]\n" +
				"public.stock: rows that are gone, or whose column \"plant\" has another value since: " + bin + "1) [--skip-existing]"},
		{name: "rows changed since, skipped", sql: `UPDATE stock SET plant = 2 WHERE bin = 1`, options: ledger.Options{SkipExisting: true},
			notices: "left out, public.stock: rows that are gone, or whose column \"plant\" has another value since: " + bin + "1)", rows: all[:4]},
		{name: "another parent gone", sql: `DELETE FROM suppliers`,
			refused: "insert or update on table \"order_items\" violates foreign key constraint \"order_items_supplier_id_fkey\": Key (supplier_id)=(1) is not present in table \"suppliers\". [--plants-only]"},
		{name: "a table gone", sql: `DROP TABLE sales`, refused: "rows are recorded of a table that was dropped (its oid was N): plantstore.cascaded keeps them [--plants-only]"},
		{name: "a function of a default gone", sql: `DROP FUNCTION zero() CASCADE`, refused: "function public.zero() does not exist [--plants-only]"},
		{name: "a column gone", sql: `ALTER TABLE pictures DROP data; ALTER TABLE pictures ADD title text DEFAULT 'x'`,
			refused: "column \"data\" of public.pictures is gone [--plants-only]"},
		{name: "a changed column renamed", sql: `ALTER TABLE stock RENAME plant TO plants`, refused: "column \"plant\" of public.stock is gone, and it was set to null or its default [--plants-only]"},
		{name: "no primary key", sql: `ALTER TABLE stock DROP CONSTRAINT stock_pkey`, refused: "public.stock has another primary key than when its rows left, or none [--plants-only]\npublic.stock has another primary key than when its rows left, or none [--plants-only]"},
		{name: "another primary key", sql: `ALTER TABLE pictures DROP CONSTRAINT pictures_pkey CASCADE, ADD number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY`,
			refused: "public.pictures has another primary key than when its rows left, or none [--plants-only]"},
		{name: "triggers", sql: `CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
				CREATE TRIGGER i BEFORE INSERT ON pictures FOR EACH ROW EXECUTE FUNCTION veto(); CREATE TRIGGER u BEFORE UPDATE ON order_items FOR EACH ROW EXECUTE FUNCTION veto(); CREATE TRIGGER d BEFORE DELETE ON stock FOR EACH ROW EXECUTE FUNCTION veto()`,
			refused: "the store's triggers of public.pictures fire: i (function public.veto) [--fire-triggers]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pgtest.Execute(t, owner, `BEGIN; `+test.sql)
			number := value[string](t, owner, `SELECT relation::oid::text FROM plantstore.cascaded WHERE literal LIKE '(2025-%'`)
			test.options.DryRun = true
			done, err := ledger.Restore(t.Context(), owner, ledger.Selection{Plants: []int64{1}}, test.options)
			var lines []string
			if refused, ok := err.(*ledger.RefusedError); ok {
				for _, r := range refused.Reasons {
					flag, _, _ := strings.Cut(r.Flag, " ")
					lines = append(lines, strings.TrimSuffix(r.Text+" ["+flag+"]", " []"))
				}
				lines, err = append(lines, refused.Notices...), nil
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.ReplaceAll(test.refused, "was N", "was "+number), strings.Join(lines, "\n")); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.notices, strings.Join(done.Notices, "\n")); diff != "" {
				t.Errorf("notices (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.rows, done.Cascaded); diff != "" {
				t.Errorf("rows that came back (-want +got):\n%s", diff)
			}
			pgtest.Execute(t, owner, `ROLLBACK`)
		})
	}
}
