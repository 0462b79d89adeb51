//go:build slow

package ledger_test

import (
	"testing"

	"plantstore/internal/ledger"
	"plantstore/internal/pgtest"
)

func TestLargeRowIsRestored(t *testing.T) {
	t.Parallel()
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	execute(t, owner, `ALTER TABLE plants ADD data bytea;
		INSERT INTO plants (id, name, data) VALUES (1, repeat('Füße "🌱", \ ', 3000000), decode(repeat('00ff5c27', 6000000), 'hex'))`)
	const row = `SELECT length(p::text) || ' bytes, ' || md5(p::text) FROM plants p`
	before := value[string](t, owner, row)
	execute(t, owner, `DELETE FROM plants`)
	restore(t, owner, ledger.Selection{Plants: []int64{1}}, ledger.Options{})
	if after := value[string](t, owner, row); after != before {
		t.Errorf("restored: got %s, want %s", after, before)
	}
	t.Log(before)
}
