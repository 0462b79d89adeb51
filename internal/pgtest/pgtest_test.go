package pgtest

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestDatabaseIsDroppedAtTheEndOfItsTest(t *testing.T) {
	t.Parallel()
	other := Empty(t)
	var name string
	t.Run("a test with a database", func(t *testing.T) {
		db := New(t)
		name = db.Name
		conn, err := pgx.Connect(t.Context(), db.App)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.PgConn().Conn().Close() }) // open until the database is dropped
	})
	var exists bool
	if err := Connect(t, other.Super).QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&exists); err != nil || exists {
		t.Errorf("database %s exists after its test: got %v, %v, want false", name, exists, err)
	}
}
