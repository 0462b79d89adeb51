package postgres

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/pgtest"
)

// A transaction that began before keeps seeing that the column is generated, so that
// its value would not come back.
func TestAColumnThatIsNotGeneratedAnyMore(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.exec(t, `ALTER TABLE public.plants ADD twice bigint GENERATED ALWAYS AS (id * 2) STORED`)
	s.sample(t, 3)
	s.exec(t, `BEGIN ISOLATION LEVEL REPEATABLE READ; DELETE FROM public.plants WHERE id = 3; COMMIT`) // nothing was altered yet
	tx, err := pgtest.Pool(t, database.Owner).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `DELETE FROM public.plant_shapes WHERE false`); err != nil { // from here on it sees the past
		t.Fatal(err)
	}
	s.exec(t, `ALTER TABLE public.plants ALTER twice DROP EXPRESSION`)
	if _, err := tx.Exec(t.Context(), `DELETE FROM public.plants WHERE id = 1`); sqlState(err) != "40001" {
		t.Errorf("DELETE after an ALTER TABLE that the transaction can't see: %v, want SQLSTATE 40001", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.exec(t, `BEGIN ISOLATION LEVEL REPEATABLE READ; DELETE FROM public.plants WHERE id = 2; COMMIT`)
	got := stringsOf(t, s.owner, `SELECT s.generated[cardinality(s.generated)]::text || substring(d.plant from ',[^,]*$')
		FROM public.plant_deletions d JOIN public.plant_shapes s ON s.id = d.shape ORDER BY d.id`)
	if want := []string{"true,6)", "false,4)"}; !slices.Equal(got, want) {
		t.Errorf("the last column's kind and value, before and after: %q; want %q", got, want)
	}
}

// Deletions share a shape as long as the columns are the same, and find an earlier one again.
func TestDeletionsShareAShape(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for i, tt := range []struct {
		sql  string
		want int // shapes that there are then
	}{
		{`SELECT 1`, 1},
		{`ALTER TABLE plants ADD size integer`, 2},
		{`ALTER TABLE plants RENAME size TO height`, 3},
		{`ALTER TABLE plants ALTER height TYPE numeric(5,2)`, 4},
		{`ALTER TABLE plants ALTER height TYPE numeric(6,2)`, 5},
		{`ALTER TABLE plants ADD label text GENERATED ALWAYS AS (name) STORED`, 6},
		{`ALTER TABLE plants ALTER label DROP EXPRESSION`, 7},
		{`ALTER TABLE plants ALTER label SET DEFAULT 'fern'`, 7},
		{`ALTER TABLE plants DROP label, DROP height`, 7},
		{`ALTER TABLE plants ADD size integer`, 8}, // another column than the one of that name
	} {
		s.exec(t, tt.sql)
		s.plant(t, 1)
		if _, err := s.plants.Delete(in(t, patience), request(1, i)); err != nil {
			t.Errorf("after %s: Delete: %v, want none", tt.sql, err)
		}
		s.plant(t, 2)
		s.exec(t, `DELETE FROM plants`)
		var got, used int
		if err := s.owner.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM plant_shapes), (SELECT count(DISTINCT shape) FROM plant_deletions)`).Scan(&got, &used); err != nil || got != tt.want || used != tt.want {
			t.Errorf("after %s: %d shapes, %d of them used, %v; want %d", tt.sql, got, used, err, tt.want)
		}
	}
}

// A session keeps the columns with a plan. Whatever happens to the table afterwards, each
// row is recorded with the columns that it had.
func TestAShapeIsThatOfTheRow(t *testing.T) {
	t.Parallel()
	const remove = `DELETE FROM public.plants WHERE id = (SELECT min(id) FROM public.plants)`
	for _, tt := range []struct {
		name  string
		setUp string
		// Statements of the session. What begins with "another: " is another session's; what
		// begins with "waits: " has to wait for that one's next statement, and what begins with
		// "refused" fails with that SQLSTATE.
		statements []string
		want       []string // the columns of each plant that was deleted
	}{
		{"altered by another session", "", []string{remove, "another: ALTER TABLE plants RENAME name TO label", remove, "another: ALTER TABLE plants ADD size int", remove},
			[]string{"id,name,created_at", "id,label,created_at", "id,label,created_at,size"}},
		{"altered and taken back", "", []string{remove, "BEGIN; ALTER TABLE plants ADD size int;" + remove, "ROLLBACK", remove, "BEGIN; ALTER TABLE plants ADD size int;" + remove, "COMMIT", remove},
			[]string{"id,name,created_at", "id,name,created_at", "id,name,created_at,size", "id,name,created_at,size"}},
		{"altered back to a savepoint", "", []string{"BEGIN;" + remove, "SAVEPOINT a; ALTER TABLE plants DROP name;" + remove, "ROLLBACK TO a;" + remove, "ALTER TABLE plants RENAME name TO label;" + remove + "; COMMIT"},
			[]string{"id,name,created_at", "id,name,created_at", "id,label,created_at"}},
		{"a transaction that sees the past", "", []string{remove, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM plant_shapes", "another: ALTER TABLE plants ADD size int",
			"refused 40001: " + remove, "ROLLBACK", remove}, []string{"id,name,created_at", "id,name,created_at,size"}},
		{"a column made again that a transaction can't see", "ALTER TABLE plants ADD v text", []string{remove, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM plant_shapes",
			"another: ALTER TABLE plants DROP v, ADD v text", "refused 40001: " + remove, "ROLLBACK", remove}, []string{"id,name,created_at,v", "id,name,created_at,v"}},
		{"a type that a transaction can't see", "ALTER TABLE plants ADD v varchar(10)", []string{remove, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT FROM plant_shapes",
			"another: ALTER TABLE plants ALTER v TYPE text", "refused 40001: " + remove, "ROLLBACK", remove}, []string{"id,name,created_at,v", "id,name,created_at,v"}},
		{"a change that was taken back, in a transaction that sees the past", "ALTER TABLE plants ADD v text", []string{"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM plant_shapes",
			"another: BEGIN; ALTER TABLE plants DROP v, ADD v text; ROLLBACK", remove, "SAVEPOINT a; ALTER TABLE plants DROP v", remove, "ROLLBACK TO a", remove, "COMMIT"},
			[]string{"id,name,created_at,v", "id,name,created_at,v"}},
		{"a plan for each call", "", []string{"SET plan_cache_mode = force_custom_plan", remove, "another: ALTER TABLE plants ADD size int", remove},
			[]string{"id,name,created_at", "id,name,created_at,size"}},
		{"a statement whose snapshot is older than its lock", "", []string{remove, "PREPARE remove AS " + remove, "another: BEGIN; ALTER TABLE plants ADD size int",
			"waits: EXPLAIN ANALYZE EXECUTE remove", "another: COMMIT", remove}, []string{"id,name,created_at", "id,name,created_at,size", "id,name,created_at,size"}},
		{"another table in its place", "", []string{remove, `another: ALTER TABLE plants RENAME TO ferns; CREATE TABLE plants (id bigint PRIMARY KEY, label text); INSERT INTO plants VALUES (7);
			CREATE TRIGGER plantstore_record_deletion AFTER DELETE ON plants REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION plantstore_record_deletion()`,
			remove, "another: ALTER TABLE ferns ADD size int", `DELETE FROM ferns WHERE id = 2`, "another: DROP TABLE plants", `DELETE FROM ferns WHERE id = 3`},
			[]string{"id,name,created_at", "id,label", "id,name,created_at,size", "id,name,created_at,size"}},
		{"a child", "", []string{remove, "another: CREATE TABLE ferns () INHERITS (plants)", "refused PST01: " + remove, "another: DROP TABLE ferns", remove, "another: ALTER TABLE plants ADD size int", remove},
			[]string{"id,name,created_at", "id,name,created_at", "id,name,created_at,size"}},
		{"a shape that was taken back", "", []string{"BEGIN;" + remove, "ROLLBACK", remove, "another: DELETE FROM plant_shapes", remove},
			[]string{"", "id,name,created_at"}},
		{"deleted by a cascade", `CREATE TABLE shelves (id int PRIMARY KEY); INSERT INTO shelves VALUES (1), (2), (3);
			ALTER TABLE plants ADD shelf int REFERENCES shelves ON DELETE CASCADE; UPDATE plants SET shelf = id WHERE id <= 3`,
			[]string{"DELETE FROM shelves WHERE id = 1", "another: ALTER TABLE plants DROP name", "DELETE FROM shelves WHERE id = 2", "another: ALTER TABLE plants ADD name text", "DELETE FROM shelves WHERE id = 3"},
			[]string{"id,name,created_at,shelf", "id,created_at,shelf", "id,created_at,shelf,name"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			s := storeOn(t, database, "")
			s.sample(t, 6)
			if tt.setUp != "" {
				s.exec(t, tt.setUp)
			}
			session, another := pgtest.Connect(t, database.Owner), pgtest.Connect(t, database.Owner)
			waited := make(chan error, 1)
			waits := false
			for _, statement := range tt.statements {
				how, sql, marked := strings.Cut(statement, ": ")
				if !marked {
					how, sql = "", statement
				}
				refused, _ := strings.CutPrefix(how, "refused ")
				switch how {
				case "waits":
					go func() { _, err := session.Exec(t.Context(), sql); waited <- err }()
					s.seeWaits(t, 1)
					waits = true
				case "another":
					if _, err := another.Exec(t.Context(), sql); err != nil {
						t.Fatalf("%s: %v", statement, err)
					}
					if waits {
						if err := <-waited; err != nil {
							t.Fatalf("the statement that waited: %v, want no error", err)
						}
						waits = false
					}
				default:
					if _, err := session.Exec(t.Context(), sql); sqlState(err) != refused || refused == "" && err != nil {
						t.Fatalf("%s: %v, want SQLSTATE %q", sql, err, refused)
					}
				}
			}
			got := stringsOf(t, s.owner, `SELECT coalesce(array_to_string(s.names, ','), '') FROM public.plant_deletions d LEFT JOIN public.plant_shapes s ON s.id = d.shape ORDER BY d.id`)
			if !slices.Equal(got, tt.want) {
				t.Errorf("the columns of the plants that were deleted: %q, want %q", got, tt.want)
			}
		})
	}
}

// To look at the catalogue for each deletion would cost the database a tenth more.
func TestColumnsAreLookedAtOnce(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	if _, err := pgtest.Pool(t, database.Super).Exec(t.Context(), `DO $$ BEGIN
			EXECUTE format('ALTER DATABASE %I SET track_functions = %L', current_database(), 'all'); END $$`); err != nil {
		t.Fatal(err)
	}
	s := storeOn(t, database, "")
	const many = 40
	s.sample(t, many)
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for id := range int64(many) {
		turns := []turn{{Deletion: deletion(id+1, "k")}}
		if deleted, _, _, err := deleteEach(t.Context(), single{conn.Conn()}, turns, time.Second, time.Minute, new(atCommit)); err != nil || !deleted[0] {
			t.Fatalf("deleteEach: %v, %v; want a deletion", deleted, err)
		}
	}
	conn.Release()
	// Autovacuum, and the new shape, make some more.
	calls := s.statistic(t, `SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname = 'plantstore_columns'`)
	if calls < 1 || calls > many/4 {
		t.Errorf("%d looks at the columns in %d deletions of one session, want a few", calls, many)
	}
}

// A DELETE that waits while a child is taken away would go on with the child's rows, of
// which the trigger knows nothing any more. The service deletes from plants alone.
func TestATableThatInheritsNoMore(t *testing.T) {
	t.Parallel()
	for kind, ids := range map[string][]int64{"one by one": {30}, "in a batch": {1, 30}} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			s.sample(t, 3)
			s.exec(t, `CREATE TABLE ferns (fronds int) INHERITS (plants); INSERT INTO ferns VALUES (30, 'Boston fern', now(), 7)`)
			var turns []turn
			for _, id := range ids {
				turns = append(turns, turn{Deletion: deletion(id, "k")})
			}
			conn, err := s.pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			remove := func() error {
				_, _, _, err := deleting(turns)(t.Context(), single{conn.Conn()}, turns, time.Minute, time.Minute, new(atCommit))
				return err
			}
			if err := remove(); sqlState(err) != unrecorded {
				t.Errorf("a deletion while a table inherits: %v, want SQLSTATE %s", err, unrecorded)
			}
			tx, err := s.owner.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `ALTER TABLE ferns NO INHERIT plants`); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- remove() }()
			for len(done) == 0 { // it need not wait
				if since, err := s.waits(t.Context()); err != nil {
					t.Fatal(err)
				} else if len(since) > 0 {
					break
				}
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-done
			if err := remove(); err != nil {
				t.Errorf("a deletion when none inherits any more: %v, want none", err)
			}
			if left := stringsOf(t, s.owner, `SELECT id::text FROM ferns`); !slices.Equal(left, []string{"30"}) {
				t.Errorf("plants in the table that inherits no more: %q, want the one that it had", left)
			}
		})
	}
}
