//go:build unix

package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/doctor"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
)

// What deletions took, through the service, by psql and in batches, is back after one command.
func TestUndoWhole(t *testing.T) {
	t.Parallel()
	const plants, clients = 1000, 8
	database := pgtest.New(t)
	owner := pgtest.Connect(t, database.Owner)
	expect := expecting(t, database.Owner)
	for _, sql := range []string{
		`CREATE TABLE order_items (id bigint PRIMARY KEY, plant_id bigint NOT NULL REFERENCES plants ON DELETE CASCADE, price numeric)`,
		`CREATE TABLE pictures (id bigint PRIMARY KEY, item_id bigint NOT NULL REFERENCES order_items ON DELETE CASCADE, data bytea)`,
		`CREATE TABLE stock (id bigint PRIMARY KEY, plant_id bigint REFERENCES plants ON DELETE SET NULL, amount int)`,
		`CREATE INDEX ON order_items (plant_id)`, `CREATE INDEX ON pictures (item_id)`, `CREATE INDEX ON stock (plant_id)`,
		`INSERT INTO plants (id, name) SELECT i, 'Fern ' || i FROM generate_series(1, 1100) i`,
		`INSERT INTO order_items SELECT i, i % 1100 + 1, i * 0.10 FROM generate_series(1, 2200) i`,
		`INSERT INTO pictures SELECT i, i % 2200 + 1, sha256(i::text::bytea) FROM generate_series(1, 4400) i`,
		`INSERT INTO stock SELECT i, i, i FROM generate_series(1, 1100) i`,
	} {
		execute(t, owner, sql)
	}
	expect(1, "", `plantstore: there is no table nowhere\n`, "ledger", "watch", "nowhere")
	expect(0, `watched: public.order_items, public.pictures\n`, "", "ledger", "watch", "pictures")
	expect(0, `TABLE               FOREIGN KEY                ON DELETE  WATCHED
public.order_items  order_items_plant_id_fkey  CASCADE    yes
public.stock        stock_plant_id_fkey        SET NULL   no
public.pictures     pictures_item_id_fkey      CASCADE    yes
`, "", "ledger", "list")
	expect(0, `no longer watched: public.order_items, public.pictures\n`, "", "ledger", "unwatch", "order_items")
	expect(0, `watched: public.order_items, public.pictures\n`, "", "ledger", "watch", "pictures")
	expect(0, `watched: public.stock\n`, "", "ledger", "watch", "stock")
	expect(0, `no longer watched: public.stock\n`, "", "ledger", "unwatch", "stock")
	expect(1, "", `plantstore: stock is not watched\n`, "ledger", "unwatch", "stock")
	expect(0, `watched: public.stock\n`, "", "ledger", "watch", "public.stock")
	expect(0, `\[\n.*"watched": true\n  \}\n\]\n`, "", "ledger", "list", "--json")

	checksums := func() (sums map[string]string) {
		t.Helper()
		sums = make(map[string]string)
		for _, table := range []string{"plants", "order_items", "pictures", "stock"} {
			var sum string
			if err := owner.QueryRow(t.Context(), `SELECT md5(string_agg(t::text, '|' ORDER BY id)) FROM `+table+` t`).Scan(&sum); err != nil {
				t.Fatal(err)
			}
			sums[table] = sum
		}
		return sums
	}
	before := checksums()
	s := serving(t, nil, "--database-url="+database.App)
	s.waitFor(t, `"msg":"ready"`)
	token := createToken(t, database.Owner, "undone")
	var group sync.WaitGroup
	for client := range clients {
		group.Go(func() {
			for id := client + 1; id <= plants/2; id += clients {
				code, body, err := trySend(t.Context(), http.MethodDelete, fmt.Sprintf("%s/plants/%d", s.public, id), token)
				if code != http.StatusNoContent {
					t.Errorf("DELETE: got %d %s, %v, want 204", code, body, err)
				}
			}
		})
	}
	group.Wait()
	for id := plants/2 + 1; id <= plants/2+100; id++ {
		execute(t, owner, `DELETE FROM plants WHERE id = $1`, id)
	}
	execute(t, owner, `DELETE FROM plants WHERE id BETWEEN $1 AND $2`, plants/2+101, plants)

	expect(0, `.*\n\d+ +500 .*deleted with 7 rows\n`, "", "deletions", "list", "--plant=500")
	var id string // an attempt that was rolled back may have taken the first
	if err := owner.QueryRow(t.Context(), `SELECT min(id)::text FROM plantstore.deletions`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	expect(0, `.*\nin other tables +7 rows\n.*`, "", "deletions", "show", id)
	expect(0, "restored 1000 plants and 7000 rows of other tables\n", `(plant [^\n]*\n){20}and 980 more
with 2000 rows of public.order_items\nwith 4000 rows of public.pictures\nwith the column "plant_id" of 1000 rows of public.stock\n`, "deletions", "restore", "--since=1h", "--yes")
	if diff := cmp.Diff(before, checksums()); diff != "" {
		t.Errorf("checksums (-before +after):\n%s", diff)
	}
}

// A restore that lacks rights prints the GRANTs, and so does doctor. After a swap of the table
// the service deletes nothing, until doctor's remedies make both work.
func TestRestoreAfterRightsAreGone(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	owner, super := pgtest.Connect(t, database.Owner), pgtest.Connect(t, database.Super)
	expect := expecting(t, database.Owner)
	for _, sql := range []string{
		`CREATE TABLE pots (id bigint PRIMARY KEY, plant_id bigint REFERENCES plants ON DELETE CASCADE)`, `SELECT plantstore.watch('pots')`,
		`INSERT INTO plants (id, name) VALUES (1, 'Fern'), (2, 'Ivy')`, `INSERT INTO pots VALUES (1, 1), (2, 2)`, `DELETE FROM plants`,
	} {
		execute(t, owner, sql)
	}
	execute(t, super, `ALTER TABLE pots OWNER TO postgres`)
	execute(t, super, `REVOKE ALL ON pots FROM plantstore_owner`)
	const grant = `GRANT SELECT, INSERT, UPDATE, TRIGGER ON public.pots TO plantstore_owner;`
	expect(1, "", `plantstore: nothing was restored: .*permission denied for table pots \(SQLSTATE 42501\): first run `+grant+`\n`, "deletions", "restore", "1", "--yes")
	execute(t, super, grant)
	expect(0, "restored 1 plant and 1 row of other tables\n", `.*`, "deletions", "restore", "1", "--yes")

	s := serving(t, nil, "--database-url="+database.App)
	s.waitFor(t, `"msg":"ready"`)
	token := createToken(t, database.Owner, "shop")
	execute(t, super, `CREATE TABLE swapped (LIKE plants INCLUDING ALL); INSERT INTO swapped TABLE plants; ALTER TABLE pots DROP CONSTRAINT pots_plant_id_fkey;
		DROP TABLE plants; ALTER TABLE swapped RENAME TO plants; ALTER TABLE pots ADD FOREIGN KEY (plant_id) REFERENCES plants ON DELETE CASCADE`, pgx.QueryExecModeSimpleProtocol)
	if code, body := send(t, http.MethodDelete, s.public+"/plants/1", token); code != http.StatusServiceUnavailable || !strings.Contains(body, "50304") {
		t.Errorf("DELETE after the swap: got %d %s, want 50304", code, body)
	}
	findings, err := doctor.Run(t.Context(), doctor.Input{Service: pgtest.Connect(t, database.App), Owner: owner, Versions: migrate.Versions(), Skip: []string{"foreign-keys", "transactions"}})
	if err != nil || len(findings) == 0 {
		t.Fatalf("doctor after the swap: got %+v, %v, want findings", findings, err)
	}
	for _, f := range findings {
		execute(t, super, f.Remedy, pgx.QueryExecModeSimpleProtocol)
	}
	expect(0, "restored 1 plant and 1 row of other tables\n", `.*`, "deletions", "restore", "2", "--yes")
	if code, body := send(t, http.MethodDelete, s.public+"/plants/1", token); code != http.StatusNoContent {
		t.Errorf("DELETE after the remedies: got %d %s, want 204", code, body)
	}
	s.stop(t, syscall.SIGTERM)
}
