package ledger_test

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/ledger"
	"plantstore/internal/pgtest"
)

// New columns take their defaults. Where another column has changed, the refusal has SQL that
// restores the others.
func TestRestoreAfterTheTableChanged(t *testing.T) {
	t.Parallel()
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	const changed = `public.plants: rows that come back changed: 7, from (7,Fern,"2026-07-01 00:00:00+00",1.10,,5) to (7,Fern,"2026-07-01 00:00:00+00",`
	for _, test := range []struct {
		name, change string
		refused      string // reasons
		notices      []string
		want         string // the row after the restore, or after it was restored by hand
	}{
		{name: "columns dropped", change: `DROP price, DROP sku`, refused: "column \"price\" of public.plants is gone\ncolumn \"sku\" of public.plants is gone", want: `(7,Fern,"2026-07-01 00:00:00+00",5)`},
		{name: "a column of another type", change: `DROP height, ADD height text`, refused: `column "height" of public.plants is of type text today, it was integer`, want: `(7,Fern,"2026-07-01 00:00:00+00",1.10,,)`},
		// By place, the values of price and height would change places.
		{name: "columns in another order", change: `DROP price, DROP height; ALTER TABLE plants ADD height int, ADD price numeric`, want: `(7,Fern,"2026-07-01 00:00:00+00",,5,1.10)`},
		{name: "a column of another scale", change: `ALTER price TYPE numeric(5,1)`, refused: changed + `1.1,,5)`},
		{name: "new columns", change: `ADD stock int NOT NULL DEFAULT 3, ADD note text, ADD serial int GENERATED ALWAYS AS IDENTITY, ADD twice int GENERATED ALWAYS AS (height * 2) STORED NOT NULL`,
			notices: []string{`column "stock" of public.plants is new and takes its default`, `column "note" of public.plants is new and takes its default`, `column "serial" of public.plants is new and takes its default`},
			want:    `(7,Fern,"2026-07-01 00:00:00+00",1.10,,5,3,,1,10)`},
		{name: "a column generated since", change: `DROP height, ADD height int GENERATED ALWAYS AS (length(name)) STORED`, refused: changed + `1.10,,4)`},
		{name: "a new check", change: `ADD CONSTRAINT tall CHECK (height > 10) NOT VALID`,
			refused: `new row for relation "plants" violates check constraint "tall": Failing row contains (7, Fern, 2026-07-01 00:00:00+00, 1.10, null, 5).`},
	} {
		t.Run(test.name, func(t *testing.T) {
			replacePlants(t, owner, `SET timezone = 'UTC'; CREATE TABLE plants (id bigint PRIMARY KEY, name text, created_at timestamptz, price numeric, sku text, height int);
				INSERT INTO plants VALUES (7, 'Fern', '2026-07-01Z', 1.10, NULL, 5)`)
			pgtest.Execute(t, owner, `DELETE FROM plants; ALTER TABLE plants `+test.change)
			done, err := ledger.Restore(t.Context(), owner, ledger.Selection{Plants: []int64{7}}, ledger.Options{})
			if test.refused != "" {
				if diff := cmp.Diff(test.refused, strings.Join(reasons(t, err), "\n")); diff != "" {
					t.Errorf("refused (-want +got):\n%s", diff)
				}
				if strings.Contains(err.Error(), "\n--") {
					t.Errorf("got the advice of a flag, which could not help: %v", err)
				}
				if refused, _ := errors.AsType[*ledger.RefusedError](err); test.want != "" {
					pgtest.Execute(t, owner, refused.ByHand)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.notices, done.Notices); diff != "" {
				t.Errorf("notices (-want +got):\n%s", diff)
			}
			if got := value[string](t, owner, `SELECT coalesce((SELECT ROW(p.*)::text FROM plants p), '')`); got != test.want {
				t.Errorf("row: got %s, want %s", got, test.want)
			}
			if got, want := value[bool](t, owner, `SELECT restored_at IS NOT NULL FROM plantstore.deletions`), test.want != ""; got != want {
				t.Errorf("marked as restored: got %v, want %v", got, want)
			}
		})
	}
}

// The SQL by hand restores rows of watched tables, too, whatever the session's settings. It says
// which values of type json it has to change.
func TestRestoreByHand(t *testing.T) {
	t.Parallel()
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	pgtest.Execute(t, owner, `
		CREATE TABLE notes (id int PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE, gone json, note json, fragment xml, twice int GENERATED ALWAYS AS (id * 2) STORED);
		CREATE TABLE stock (id int PRIMARY KEY, plant bigint REFERENCES plants ON DELETE SET NULL, other bigint REFERENCES plants ON DELETE SET NULL);
		SELECT plantstore.watch('notes'), plantstore.watch('stock');
		INSERT INTO plants (id, name) VALUES (1, 'Fern'); INSERT INTO notes VALUES (1, 1, '"\u0000"', '"\u0000"', 'a<b/>'); INSERT INTO stock VALUES (1, 1, 1);
		DELETE FROM plants; ALTER TABLE notes DROP gone; ALTER TABLE stock RENAME plant TO renamed; SET xmloption = document`)
	_, err := ledger.Restore(t.Context(), owner, ledger.Selection{Plants: []int64{1}}, ledger.Options{})
	refused, ok := errors.AsType[*ledger.RefusedError](err)
	if !ok {
		t.Fatalf("got %v, want a refusal", err)
	}
	pgtest.Execute(t, owner, refused.ByHand)
	const want = `Fern (1,1,"""\\u0001""",a<b/>,2) (1,,1)`
	if got := value[string](t, owner, `SELECT concat_ws(' ', name, n::text, s::text) FROM plants, notes n, stock s`); got != want {
		t.Errorf("rows: got %s, want %s, by\n%s", got, want, refused.ByHand)
	}
	if want := "-- \\u0000 and \\ud800 to \\udfff in values of type json come back as \\u0001.\nINSERT INTO public.notes "; strings.Count(refused.ByHand, "\n--") != 1 || !strings.Contains(refused.ByHand, want) {
		t.Errorf("got %s, want one comment, %s", refused.ByHand, want)
	}
}

// Rows of a table count together, whatever columns the table had when they left.
func TestRestoreCountsTheRowsOfATable(t *testing.T) {
	t.Parallel()
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	pgtest.Execute(t, owner, `
		CREATE TABLE notes (id int PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE, other bigint REFERENCES plants ON DELETE SET NULL);
		CREATE TABLE stock (id int PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE); SELECT plantstore.watch('notes'), plantstore.watch('stock');
		INSERT INTO plants (id, name) VALUES (1, 'p'), (2, 'p'); INSERT INTO notes VALUES (1, 1, NULL), (2, 2, NULL), (3, NULL, 1), (4, NULL, 2); INSERT INTO stock VALUES (1, 1), (2, 2);
		DELETE FROM plants WHERE id = 1; ALTER TABLE notes ADD text text; ALTER TABLE stock ADD text text; DELETE FROM plants`)
	done := restore(t, owner, ledger.Selection{Plants: []int64{1, 2}}, ledger.Options{})
	slices.SortFunc(done.Cascaded, func(a, b ledger.Cascaded) int { return strings.Compare(a.Table+a.Changed, b.Table+b.Changed) })
	want := []ledger.Cascaded{{Table: "public.notes", Rows: 2}, {Table: "public.notes", Changed: "other", Rows: 2}, {Table: "public.stock", Rows: 2}}
	if diff := cmp.Diff(want, done.Cascaded); diff != "" {
		t.Errorf("rows that came back (-want +got):\n%s", diff)
	}
}

func reasons(t *testing.T, err error) (texts []string) {
	t.Helper()
	refused, ok := errors.AsType[*ledger.RefusedError](err)
	if !ok {
		t.Fatalf("error: got %v, want a RefusedError", err)
	}
	for _, r := range refused.Reasons {
		texts = append(texts, r.Text)
	}
	return texts
}

func TestRestoreFiresTriggers(t *testing.T) {
	t.Parallel()
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	pgtest.Execute(t, owner, `
		ALTER TABLE plants DROP created_at, ADD updated_at timestamptz, ADD day date GENERATED ALWAYS AS ((updated_at AT TIME ZONE 'UTC')::date) STORED;
		INSERT INTO plants (id, name, updated_at) SELECT i, 'p' || i, '2026-07-01Z' FROM generate_series(1, 3) i;
		DELETE FROM plants;
		CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.updated_at := '2026-08-01Z'; RETURN NEW; END $$;
		CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN CASE WHEN NEW.id <> 2 THEN NEW END; END $$;
		CREATE TRIGGER touch BEFORE INSERT OR UPDATE ON plants FOR EACH ROW EXECUTE FUNCTION touch();
		CREATE TRIGGER veto BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION veto();
		CREATE TRIGGER off BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION veto();
		CREATE TRIGGER updates BEFORE UPDATE ON plants FOR EACH ROW EXECUTE FUNCTION veto();
		ALTER TABLE plants DISABLE TRIGGER off`)
	all := ledger.Selection{Plants: []int64{1, 2, 3}}
	_, err := ledger.Restore(t.Context(), owner, all, ledger.Options{})
	if got, want := reasons(t, err), "the store's triggers of public.plants fire: touch (function public.touch); veto (function public.veto)"; !slices.Equal(got, []string{want}) {
		t.Errorf("refused: got %q, want %q", got, want)
	}
	_, err = ledger.Restore(t.Context(), owner, all, ledger.Options{FireTriggers: true, SkipExisting: true})
	if got := reasons(t, err); !slices.Equal(got, []string{"public.plants: rows that a trigger did not let in, or gave another key: 2"}) {
		t.Errorf("a row that a trigger vetoes: got %q", got)
	}
	done := restore(t, owner, ledger.Selection{Plants: []int64{1, 3}}, ledger.Options{FireTriggers: true})
	if diff := cmp.Diff([]string{
		`public.plants: rows that come back changed by a trigger: 1, from (1,p1,"2026-07-01 00:00:00+00",2026-07-01) to (1,p1,"2026-08-01 00:00:00+00",2026-08-01); ` +
			`3, from (3,p3,"2026-07-01 00:00:00+00",2026-07-01) to (3,p3,"2026-08-01 00:00:00+00",2026-08-01)`,
	}, done.Notices); diff != "" {
		t.Errorf("notices (-want +got):\n%s", diff)
	}
}

// A restore finds the selected deletions, and names those that can't be undone.
func TestSelections(t *testing.T) {
	t.Parallel()
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	pgtest.Execute(t, owner, `INSERT INTO plants (id, name) SELECT i, 'p' || i FROM generate_series(1, 7) i`)
	const jwt = "jwt:a\nb"
	for plant := range int64(3) {
		deleteAs(t, owner, plant+1, jwt)
	}
	since := value[time.Time](t, owner, `SELECT deleted_at FROM plantstore.deletions WHERE id = 2`)
	until := value[time.Time](t, owner, `SELECT clock_timestamp()`)
	deleteAs(t, owner, 4, jwt)
	deleteAs(t, owner, 5, "another")
	pgtest.Execute(t, owner, `INSERT INTO plants (id, name) VALUES (3, 'back')`)
	deleteAs(t, owner, 3, "script-2") // entry 6
	pgtest.Execute(t, owner, `DELETE FROM plants WHERE id = 6; DELETE FROM plants WHERE id = 7; INSERT INTO plants (id, name) VALUES (7, 'new'); SELECT plantstore.resolve(8, 'script', 'r', 'k', 40401)`)
	restore(t, owner, ledger.Selection{IDs: []int64{1}}, ledger.Options{})
	const left = `SELECT string_agg(id || name, ' ' ORDER BY id) FROM plants`
	before := value[string](t, owner, left)
	type plants = []int64
	for _, test := range []struct {
		name          string
		selection     ledger.Selection
		options       ledger.Options
		refused       []string
		plants, taken plants
		deletedAgain  int
	}{
		{name: "of a principal and a period", selection: ledger.Selection{By: jwt, Since: since, Until: until}, plants: plants{2}, deletedAgain: 1},
		{name: "of a role that has the principal's name", selection: ledger.Selection{ByRole: jwt, Since: since}},
		{name: "an id that is taken", selection: ledger.Selection{Plants: plants{6, 7}}, refused: []string{`plant 7 "p7" (deletion 8, deleted by role plantstore_owner at TIME): its id is taken`}},
		{name: "an id that is taken, skipped", selection: ledger.Selection{Plants: plants{6, 7}}, options: ledger.Options{SkipExisting: true}, plants: plants{6}, taken: plants{7}},
		{name: "nothing but taken ids", selection: ledger.Selection{Plants: plants{7}}, options: ledger.Options{SkipExisting: true}, taken: plants{7}},
		{name: "what can't be undone", selection: ledger.Selection{IDs: []int64{1, 3, 6, 9, 1 << 62}, Plants: plants{1, 99}}, options: ledger.Options{SkipExisting: true, FireTriggers: true}, refused: []string{
			"plant 1: the ledger has no deletion of it left to restore", "plant 99: the ledger has no deletion of it left to restore",
			`plant 1 "p1" (deletion 1, deleted by "jwt:a\nb" at TIME) was restored by plantstore_owner at TIME`, "deletions 3 and 6 are of the same plant 3: restore one of them",
			"entry 9 is a refusal: nothing was deleted", "there is no deletion 4611686018427387904 in the ledger"}},
	} {
		test.options.DryRun = true
		done, err := ledger.Restore(t.Context(), owner, test.selection, test.options)
		var refused []string
		if err != nil {
			done = ledger.Restored{}
			for _, r := range reasons(t, err) {
				refused = append(refused, regexp.MustCompile(`20[-0-9]+T[:0-9]+Z`).ReplaceAllString(r, "TIME"))
			}
		}
		if diff := cmp.Diff(test.refused, refused); diff != "" {
			t.Errorf("%s: refused (-want +got):\n%s", test.name, diff)
		}
		if !slices.Equal(plantsOf(done.Plants), test.plants) || !slices.Equal(plantsOf(done.Taken), test.taken) || done.DeletedAgain != test.deletedAgain {
			t.Errorf("%s: got %+v, want plants %v, taken %v and %d that were deleted again", test.name, done, test.plants, test.taken, test.deletedAgain)
		}
	}
	if after := value[string](t, owner, left); after != before {
		t.Errorf("plants after dry runs: got %s, want %s", after, before)
	}
}

func plantsOf(deletions []ledger.Deletion) (ids []int64) {
	for _, d := range deletions {
		ids = append(ids, d.PlantID)
	}
	return ids
}

// A restore waits for a transaction that is under way, and then either restores all plants or
// changes nothing.
func TestRestoreWaitsForATransaction(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t)
	for _, test := range []struct {
		name, holds string // SQL of the other transaction, about plant #
		want        string // the error
	}{
		{name: "another plant takes the id", holds: `INSERT INTO plants (id, name) VALUES (#, 'new')`, want: `duplicate key value violates unique constraint "plants_pkey": Key (id)=(#) already exists.`},
		{name: "another restore", holds: `UPDATE plantstore.deletions SET restored_at = now(), restored_by = 'kay' WHERE plant_id = #`, want: "was restored by kay at "},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			owner, other, super, id := pgtest.Connect(t, db.Owner), pgtest.Connect(t, db.Owner), pgtest.Connect(t, db.Super), pgtest.IDs(t)
			numbered := strings.NewReplacer("#", fmt.Sprint(id+1)).Replace
			pgtest.Execute(t, owner, fmt.Sprintf(`INSERT INTO plants (id, name) VALUES (%[1]d, 'old'), (%[1]d + 1, 'old'); DELETE FROM plants WHERE id IN (%[1]d, %[1]d + 1)`, id))
			pgtest.Execute(t, other, `BEGIN; `+numbered(test.holds))
			restored := make(chan error, 1)
			go func() {
				_, err := ledger.Restore(t.Context(), owner, ledger.Selection{Plants: []int64{id, id + 1}}, ledger.Options{SkipExisting: true})
				restored <- err
			}()
			pgtest.AwaitBlocked(t, super, other.PgConn().PID(), 1)
			pgtest.Execute(t, other, `COMMIT`)
			if err := <-restored; err == nil || !strings.Contains(err.Error(), numbered(test.want)) {
				t.Errorf("got error %v, want one with %q", err, numbered(test.want))
			}
			if n := value[int](t, other, `SELECT (SELECT count(*) FROM plants WHERE id = $1) + (SELECT count(restored_at) FROM plantstore.deletions WHERE plant_id = $1)`, id); n != 0 {
				t.Errorf("the other plant and its mark: got %d, want neither", n)
			}
		})
	}
}

func TestRefusedErrorLimitsItsReasons(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{ledger.MaxListed: "", ledger.MaxListed + 1: "  and 1 more\n"} {
		refused := &ledger.RefusedError{Notices: []string{"a notice"}, ByHand: "COMMIT;"}
		for i := range n {
			refused.Reasons = append(refused.Reasons, ledger.Reason{Text: fmt.Sprintf("reason %d", i), Flag: "--flag helps."})
		}
		want = "\n  reason 19\n" + want + "  also: a notice\n--flag helps.\nBy hand, without the columns that are gone or have another type, unless you add them:\nCOMMIT;"
		if got := refused.Error(); !strings.HasSuffix(got, want) {
			t.Errorf("%d reasons: got %q, want it to end with %q", n, got, want)
		}
	}
}

func TestScriptOfASelection(t *testing.T) {
	t.Parallel()
	owner := pgtest.Connect(t, pgtest.New(t).Owner)
	var script strings.Builder
	if err := ledger.Script(t.Context(), owner, ledger.Selection{ByRole: "nobody", Since: time.Unix(0, 0)}, &script); err != nil || script.Len() > 0 {
		t.Errorf("of no deletion: got %v and %q, want nothing", err, script.String())
	}
	pgtest.Execute(t, owner, `ALTER TABLE plants ADD a int, ADD b int; CREATE TABLE pots (id int PRIMARY KEY, plant bigint REFERENCES plants ON DELETE CASCADE); SELECT plantstore.watch('pots');
		INSERT INTO plants (id, name) VALUES (1, 'p'); INSERT INTO pots VALUES (1, 1); DELETE FROM plants;
		CREATE TRIGGER same BEFORE INSERT OR UPDATE ON plants FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()`)
	number := value[string](t, owner, `SELECT 'pots'::regclass::oid::text`)
	for table, change := range map[string]string{"public.pots": ``, number: `DROP TABLE pots`, `"public.\"a\nb\""`: `ALTER TABLE pots RENAME TO "a` + "\n" + `b"`} {
		pgtest.Execute(t, owner, `BEGIN; `+change)
		script.Reset()
		err := ledger.Script(t.Context(), owner, ledger.Selection{Plants: []int64{1}}, &script)
		if want := "\n-- fires the store's triggers same (function suppress_redundant_updates_trigger)\n-- without what left with them in " + table + "\n"; err != nil || !strings.Contains(script.String(), want) {
			t.Errorf("after %q: got %v and %s, want lines%s", change, err, script.String(), want)
		}
		pgtest.Execute(t, owner, `ROLLBACK`)
	}
	pgtest.Execute(t, owner, `ALTER TABLE plants DROP a, ADD a int`)
	err := ledger.Script(t.Context(), owner, ledger.Selection{Plants: []int64{1}}, io.Discard)
	if got := reasons(t, err); len(got) != 1 || !strings.Contains(got[0], "restore it without --sql") {
		t.Errorf("with another order of columns: got %q, want a hint at restore without --sql", got)
	}
}
