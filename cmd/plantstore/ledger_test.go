package main

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/pgtest"
)

// The commands of ledger watch tables, and those of deletions count and restore their rows.
func TestLedgerCommands(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	owner, super := pgtest.Connect(t, database.Owner), pgtest.Connect(t, database.Super)
	expect := expecting(t, database.Owner)
	execute(t, owner, `CREATE TABLE order_items (id bigint PRIMARY KEY, plant_id bigint NOT NULL REFERENCES plants ON DELETE CASCADE);
		CREATE TABLE pictures (id bigint PRIMARY KEY, item_id bigint NOT NULL REFERENCES order_items ON DELETE CASCADE);
		CREATE TABLE stock (id bigint PRIMARY KEY, plant_id bigint REFERENCES plants ON DELETE SET NULL);
		INSERT INTO plants (id, name) SELECT i, 'Fern ' || i FROM generate_series(1, 22) i;
		INSERT INTO order_items SELECT i, i FROM generate_series(1, 22) i;
		INSERT INTO pictures SELECT i, i FROM generate_series(1, 22) i;
		INSERT INTO stock VALUES (1, 1)`, pgx.QueryExecModeSimpleProtocol)
	expect(1, "", `plantstore: there is no table nowhere\n`, "ledger", "watch", "nowhere")
	expect(0, `watched: public.order_items, public.pictures\n`, "", "ledger", "watch", "pictures")
	expect(0, `TABLE               FOREIGN KEY                ON DELETE  WATCHED
public.order_items  order_items_plant_id_fkey  CASCADE    yes
public.stock        stock_plant_id_fkey        SET NULL   no
public.pictures     pictures_item_id_fkey      CASCADE    yes
`, "", "ledger", "list")
	expect(0, `no longer watched: public.order_items, public.pictures\n`, "", "ledger", "unwatch", "order_items")
	expect(1, "", `plantstore: stock is not watched\n`, "ledger", "unwatch", "stock")
	expect(0, `watched: .*`, "", "ledger", "watch", "pictures")
	expect(0, `watched: public.stock\n`, "", "ledger", "watch", "public.stock")
	expect(0, `\[\n.*"watched": true\n  \}\n\]\n`, "", "ledger", "list", "--json")

	execute(t, owner, `DELETE FROM plants WHERE id = 1`)
	execute(t, owner, `DELETE FROM plants`)
	expect(0, `.*\n1 +1 .*deleted with 3 rows\n`, "", "deletions", "list", "--plant=1")
	expect(0, `.*\nin other tables +3 rows\n.*`, "", "deletions", "show", "1")
	execute(t, super, `ALTER TABLE stock OWNER TO postgres`)
	execute(t, super, `REVOKE ALL ON stock FROM plantstore_owner`)
	const grant = `GRANT SELECT, INSERT, UPDATE, TRIGGER ON public.stock TO plantstore_owner;`
	expect(1, "", `plantstore: nothing was restored: .*permission denied for table stock \(SQLSTATE 42501\): first run `+grant+`\n`, "deletions", "restore", "1", "--yes")
	execute(t, super, grant)
	expect(0, "would restore 1 plant and 2 rows of other tables\n", `.*`, "deletions", "restore", "--plant=2", "--dry-run")
	expect(0, "restored 22 plants and 45 rows of other tables\n", `(plant [^\n]*\n){20}and 2 more
with 22 rows of public.order_items\nwith 22 rows of public.pictures\nwith the column "plant_id" of 1 row of public.stock\n`, "deletions", "restore", "--since=1h", "--yes")
}
