//go:build unix

package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/internal/readme"
)

// Tokens of the databases in testdata, which the script dump there writes.
const (
	dumpedToken  = "pst_backoffice000000000000000000001tmVKB"
	revokedToken = "pst_revoked000000000000000000000000EHpz8"
	limitedToken = "pst_limited000000000000000000000003QXNOa" // its budget is used up
)

// restored returns a database that a released version left.
func restored(t *testing.T, dump string) pgtest.Database {
	t.Helper()
	database := pgtest.Empty(t)
	sql, err := os.ReadFile(dump)
	if err != nil {
		t.Fatal(err)
	}
	super := pgtest.Connect(t, database.Super)
	execute(t, super, `DROP SCHEMA plantstore CASCADE; `+string(sql), pgx.QueryExecModeSimpleProtocol)
	return database
}

// This version migrates a database of each released version, answers its keys, and restores
// its deletions. It also does so beside a later version, whose migration it does not know.
func TestUpgradeFromReleasedVersions(t *testing.T) {
	t.Parallel()
	dumps, err := filepath.Glob("testdata/database-*.sql")
	if err != nil || len(dumps) == 0 {
		t.Fatalf("got %v, %v, want a dump of each released version", dumps, err)
	}
	_, later, _ := strings.Cut(readme.Read(t, "cmd/drill/next_release.sql"), "-- +goose Up\n")
	later, _, found := strings.Cut(later, "-- +goose Down")
	if !found {
		t.Fatal("cmd/drill/next_release.sql has no Up before its Down")
	}
	for _, dump := range dumps {
		for _, next := range []string{"", later + `; INSERT INTO plantstore.goose_db_version (version_id, is_applied) VALUES (999, true)`} {
			name := filepath.Base(dump)
			if next != "" {
				name += " and a later migration"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				upgrade(t, restored(t, dump), next)
			})
		}
	}
}

func upgrade(t *testing.T, database pgtest.Database, next string) {
	expect := expecting(t, database.Owner)
	expect(0, `.*`, "", "migrate", "up")
	owner := pgtest.Connect(t, database.Owner)
	if next != "" {
		execute(t, owner, next, pgx.QueryExecModeSimpleProtocol)
		expect(1, "", fmt.Sprintf(`plantstore: the database is at version 999, ahead of this plantstore at %d: .*\n`, migrate.Latest()), "migrate", "down")
	}

	s := serving(t, nil, "--database-url="+database.App)
	s.waitFor(t, `"msg":"ready"`)
	for _, test := range []struct {
		what, token, plant, key string
		code                    int
		body, replayed          string
	}{
		{"a key that deleted", dumpedToken, "1", "key-1", 204, "", "true"},
		{"a key that deleted in a batch", dumpedToken, "3", "key-3", 204, "", "true"},
		{"a key that was refused", dumpedToken, "404", "key-5", 404, `"error":40401`, "true"},
		{"a plant that was deleted by SQL", dumpedToken, "7", "key-6", 404, `"error":40402`, ""},
		{"a token that was revoked", revokedToken, "4", "key-7", 401, `"error":40101`, ""},
		{"a budget that was used up", limitedToken, "6", "key-8", 429, `"error":42901`, ""},
		{"a plant that was there", dumpedToken, "4", "key-9", 204, "", ""},
	} {
		code, body, replayed, err := trySend(t.Context(), http.MethodDelete, s.public+"/plants/"+test.plant, test.token, test.key)
		if err != nil || code != test.code || !strings.Contains(body, test.body) || replayed != test.replayed {
			t.Errorf("%s: got %d %s, Idempotency-Replayed %q, %v; want %d %s, %q", test.what, code, body, replayed, err, test.code, test.body, test.replayed)
		}
	}
	s.stop(t, syscall.SIGTERM)

	expect(0, `restored 6 plants and 5 rows of other tables\n`, `.*`, "deletions", "restore", "--since=2026-01-01", "--yes")
	for table, want := range map[string]string{
		"SELECT id, name, price, tags, planted, notes FROM plants WHERE id <= 7": `(1,"Boston fern",12.50,"{shade,""a, b""}",2026-02-28,"it's \\ ""quoted""` + "\nand long\")" +
			` (2,"Peace lily",,"[0:1]={a,NULL}",infinity,"") (3,"Snake plant",0.10,{},,größer) (4,"Rubber fig",7,,,) (5,"Aloe vera",5,,,) (6,"Jade plant",6,,,) (7,"English lavender",,,,)`,
		"SELECT id, plant_id, price FROM order_items": `(10,1,12.5) (11,1,25) (12,4,7)`,
		"SELECT id, plant_id, amount FROM stock":      `(20,1,100) (21,4,200)`,
	} {
		var got string
		if err := owner.QueryRow(t.Context(), `SELECT string_agg(r::text, ' ' ORDER BY r.id) FROM (`+table+`) r`).Scan(&got); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", table, got, err, want)
		}
	}
}
