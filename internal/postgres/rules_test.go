package postgres

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// A rule is something that a store, or its DBA, may have done to its plants. Plant
// 1 is the one that it is about.
type rule struct {
	name  string
	super string // SQL as a superuser, with {database} for the database's name
	sql   string // SQL as the tables' owner
	want  error  // nil: the plant is deleted and recorded
	// effects is a query for what the rule did, and is what it gives afterwards.
	effects string
	is      int
}

// archiving has a row trigger that runs a statement.
func archiving(statement string) string {
	return "CREATE TABLE public.archive (plant_id bigint UNIQUE, name text CHECK (name <> 'Boston fern'));" +
		"CREATE FUNCTION public.archive() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN " + statement + "; RETURN OLD; END$$;" +
		"CREATE TRIGGER archive BEFORE DELETE ON public.plants FOR EACH ROW WHEN (OLD.id = 1) EXECUTE FUNCTION public.archive();"
}

// keeping has a row trigger that returns null, after a statement.
func keeping(statement string) string {
	return "CREATE TABLE public.kept (id bigint);" +
		"CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN " + statement + "; RETURN NULL; END$$;" +
		"CREATE TRIGGER keep BEFORE DELETE ON public.plants FOR EACH ROW WHEN (OLD.id = 1) EXECUTE FUNCTION public.keep();"
}

// changing has a trigger that changes what goes into the ledger.
func changing(statement string) string {
	return "CREATE FUNCTION public.change() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN " + statement + "; RETURN NEW; END$$;" +
		"CREATE TRIGGER change BEFORE INSERT ON public.plant_deletions FOR EACH ROW EXECUTE FUNCTION public.change();"
}

// answering disables the ledger's trigger, and has a function that answers for it.
const answering = `ALTER TABLE public.plants DISABLE TRIGGER plantstore_record_deletion;
	CREATE FUNCTION public.answer() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN PERFORM set_config('plantstore.recorded', '0', true); RETURN true; END$$;
	CREATE FUNCTION public.answers() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM public.answer(); RETURN NULL; END$$;`

var rules = []rule{
	{name: "a trigger that raises", sql: `CREATE SEQUENCE public.tries;` + archiving(`PERFORM nextval('public.tries'); RAISE EXCEPTION 'never'`),
		want: plant.ErrStoreRule},
	{name: "a unique violation in an archive", sql: archiving(`INSERT INTO public.archive VALUES (1, 'a'), (1, 'b')`), want: plant.ErrStoreRule},
	{name: "a check violation in an archive", sql: archiving(`INSERT INTO public.archive VALUES (1, OLD.name)`), want: plant.ErrStoreRule},
	{name: "a foreign key of an archive", sql: `CREATE TABLE public.shelves (id bigint PRIMARY KEY);` +
		archiving(`INSERT INTO public.boxes VALUES (7)`) + `CREATE TABLE public.boxes (shelf bigint REFERENCES public.shelves)`, want: plant.ErrStoreRule},
	{name: "a trigger that says what must come first", sql: archiving(`RAISE EXCEPTION 'not yet' USING ERRCODE = 'object_not_in_prerequisite_state'`),
		want: plant.ErrStoreRule},
	{name: "an archive that works", sql: archiving(`INSERT INTO public.archive VALUES (OLD.id, 'a')`), effects: `SELECT count(*) FROM public.archive`, is: 1},
	{name: "a soft deletion", sql: keeping(`INSERT INTO public.kept VALUES (OLD.id)`), want: plant.ErrStoreRule,
		effects: `SELECT count(*) FROM public.kept`, is: 1},
	{name: "a trigger that keeps the row", sql: keeping(`NULL`), want: plant.ErrStoreRule},
	{name: "a rule that does nothing", sql: `CREATE RULE keep AS ON DELETE TO public.plants DO INSTEAD NOTHING`, want: plant.ErrStoreRule},
	{name: "a rule for some rows", sql: `CREATE RULE keep AS ON DELETE TO public.plants WHERE old.id = 1 DO INSTEAD NOTHING`, want: plant.ErrStoreRule},
	{name: "a rule that updates", sql: `CREATE RULE keep AS ON DELETE TO public.plants DO INSTEAD UPDATE public.plants SET name = 'gone' WHERE id = old.id;
		GRANT UPDATE ON public.plants TO plantstore_app`, want: plant.ErrStoreRule, effects: `SELECT count(*) FROM public.plants WHERE name = 'gone'`, is: 0},
	{name: "a rule besides", sql: `CREATE TABLE public.log (id bigint); CREATE RULE log AS ON DELETE TO public.plants DO ALSO INSERT INTO public.log VALUES (old.id);
		GRANT INSERT ON public.log TO plantstore_app`},
	{name: "a trigger without the rights it needs", sql: `CREATE SCHEMA audit; CREATE TABLE audit.log (id bigint);
		CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO audit.log VALUES (OLD.id); RETURN OLD; END';
		CREATE TRIGGER audit BEFORE DELETE ON public.plants FOR EACH ROW EXECUTE FUNCTION public.audit()`, want: plant.ErrHindered},
	{name: "a trigger that relies on the search path", super: `ALTER DATABASE {database} SET search_path = shop, public`,
		sql: `CREATE TABLE shop.log (id bigint); GRANT INSERT ON shop.log TO plantstore_app; GRANT USAGE ON SCHEMA shop TO plantstore_app;
		CREATE FUNCTION shop.log() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO log VALUES (OLD.id); RETURN OLD; END';
		CREATE TRIGGER log BEFORE DELETE ON public.plants FOR EACH ROW WHEN (OLD.id = 1) EXECUTE FUNCTION shop.log()`, effects: `SELECT count(*) FROM shop.log`, is: 1},
	{name: "row level security that hides", sql: `ALTER TABLE public.plants ENABLE ROW LEVEL SECURITY`, want: plant.ErrHindered},
	{name: "row level security that shows", sql: `ALTER TABLE public.plants ENABLE ROW LEVEL SECURITY;
		CREATE POLICY all_plants ON public.plants TO plantstore_app USING (true)`},
	{name: "row level security that hides from DELETE only", sql: `ALTER TABLE public.plants ENABLE ROW LEVEL SECURITY;
		CREATE POLICY see ON public.plants FOR SELECT USING (true); CREATE POLICY leave ON public.plants FOR DELETE USING (id <> 1)`, want: plant.ErrHindered},
	{name: "row level security by a setting that is not there", sql: `ALTER TABLE public.plants ENABLE ROW LEVEL SECURITY;
		CREATE POLICY tenant ON public.plants USING (name = current_setting('app.tenant'))`, want: plant.ErrHindered},
	{name: "an audit, and the ledger's trigger disabled", sql: archiving(`NULL`) + `ALTER TABLE public.plants DISABLE TRIGGER plantstore_record_deletion`,
		want: plant.ErrHindered},
	{name: "an audit, and every trigger disabled", sql: archiving(`NULL`) + `ALTER TABLE public.plants DISABLE TRIGGER USER`, want: plant.ErrHindered},
	{name: "an audit, and replica role", super: `ALTER DATABASE {database} SET session_replication_role = replica`, sql: archiving(`NULL`), want: plant.ErrHindered},
	{name: "an audit that names another principal", sql: archiving(`PERFORM set_config('plantstore.request', '{1,ceo}', true), set_config('plantstore.batch', '', true)`),
		want: plant.ErrHindered},
	{name: "the ledger's trigger disabled", sql: `ALTER TABLE public.plants DISABLE TRIGGER plantstore_record_deletion`, want: plant.ErrHindered},
	{name: "every trigger disabled", sql: `ALTER TABLE public.plants DISABLE TRIGGER USER`, want: plant.ErrHindered},
	{name: "a trigger that answers for the ledger's", sql: answering + `
		CREATE TRIGGER nothing AFTER DELETE ON public.plants FOR EACH STATEMENT EXECUTE FUNCTION public.answers()`, want: plant.ErrHindered},
	{name: "a trigger behind a cascade that answers for the ledger's", sql: answering + `CREATE TABLE public.leaves (plant bigint REFERENCES public.plants ON DELETE CASCADE);
		CREATE TRIGGER nothing AFTER DELETE ON public.leaves FOR EACH STATEMENT EXECUTE FUNCTION public.answers()`, want: plant.ErrHindered},
	{name: "a trigger behind SET NULL that answers for the ledger's", sql: answering + `CREATE TABLE public.leaves (plant bigint REFERENCES public.plants ON DELETE SET NULL);
		CREATE TRIGGER nothing AFTER UPDATE ON public.leaves FOR EACH STATEMENT EXECUTE FUNCTION public.answers()`, want: plant.ErrHindered},
	{name: "a rule that answers for the ledger's trigger", sql: answering + `CREATE TABLE public.log (answered boolean); GRANT INSERT ON public.log TO plantstore_app;
		CREATE RULE log AS ON DELETE TO public.plants DO ALSO INSERT INTO public.log VALUES (public.answer())`, want: plant.ErrHindered},
	{name: "a policy that answers for the ledger's trigger", sql: answering + `ALTER TABLE public.plants ENABLE ROW LEVEL SECURITY;
		CREATE POLICY answers ON public.plants USING (public.answer())`, want: plant.ErrHindered},
	{name: "the ledger's trigger with a condition that answers for it", sql: answering + `DROP TRIGGER plantstore_record_deletion ON public.plants;
		CREATE FUNCTION public.refuses() RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN NOT public.answer(); END';
		CREATE TRIGGER plantstore_record_deletion AFTER DELETE ON public.plants REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
			WHEN (public.refuses()) EXECUTE FUNCTION public.plantstore_record_deletion()`, want: plant.ErrHindered},
	{name: "the ledger's trigger for INSERT only, and another that answers for it", sql: answering + `DROP TRIGGER plantstore_record_deletion ON public.plants;
		CREATE TRIGGER plantstore_record_deletion AFTER INSERT ON public.plants REFERENCING NEW TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.plantstore_record_deletion();
		CREATE TRIGGER nothing AFTER DELETE ON public.plants FOR EACH STATEMENT EXECUTE FUNCTION public.answers()`, want: plant.ErrHindered},
	{name: "another function in place of the ledger's, that only answers", sql: `CREATE OR REPLACE FUNCTION public.plantstore_record_deletion() RETURNS trigger
		LANGUAGE plpgsql AS $$BEGIN PERFORM set_config('plantstore.recorded', '1', true); RETURN NULL; END$$`, want: plant.ErrHindered},
	{name: "an index whose condition names another principal while a statement is planned", sql: `CREATE FUNCTION public.names(bigint) RETURNS boolean IMMUTABLE
		LANGUAGE plpgsql AS $$BEGIN PERFORM set_config('plantstore.request', '{1,ceo}', true), set_config('plantstore.batch', '', true); RETURN true; END$$;
		CREATE INDEX ON public.plants (name) WHERE public.names(1)`, want: plant.ErrHindered},
	{name: "row level security that hides the ledger", sql: `ALTER TABLE public.plant_deletions ENABLE ROW LEVEL SECURITY`, want: plant.ErrHindered},
	{name: "a foreign key that refuses", sql: `CREATE TABLE public.orders (plant bigint REFERENCES public.plants, twice bigint REFERENCES public.plants ON DELETE RESTRICT)`},
	{name: "replica role, and a trigger that answers for the ledger's", super: `ALTER DATABASE {database} SET session_replication_role = replica`, sql: `
		CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM set_config('plantstore.recorded', '0', true); RETURN NULL; END$$;
		CREATE TRIGGER nothing AFTER DELETE ON public.plants FOR EACH STATEMENT EXECUTE FUNCTION public.nothing();
		ALTER TABLE public.plants ENABLE ALWAYS TRIGGER nothing`, want: plant.ErrHindered},
	{name: "the ledger's trigger dropped", sql: `DROP TRIGGER plantstore_record_deletion ON public.plants`, want: plant.ErrHindered},
	{name: "a table swapped", sql: `ALTER TABLE public.plants RENAME TO old_plants; CREATE TABLE public.plants AS TABLE public.old_plants;
		GRANT SELECT (id), DELETE ON public.plants TO plantstore_app`, want: plant.ErrHindered},
	{name: "a publication, and no replica identity", sql: `CREATE PUBLICATION p FOR TABLE public.plants; ALTER TABLE public.plants REPLICA IDENTITY NOTHING`, want: plant.ErrHindered},
	{name: "a publication of other columns than the identity's", sql: `CREATE PUBLICATION p FOR TABLE public.plants (name)`, want: plant.ErrHindered},
	{name: "replica role", super: `ALTER DATABASE {database} SET session_replication_role = replica`, want: plant.ErrHindered},
	{name: "a ledger that loses its rows", sql: `CREATE RULE lose AS ON INSERT TO public.plant_deletions DO INSTEAD NOTHING`, want: plant.ErrHindered},
	{name: "a ledger that forgets", sql: `CREATE FUNCTION public.forget() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN DELETE FROM public.plant_deletions; RETURN NULL; END';
		CREATE TRIGGER forget AFTER INSERT ON public.plant_deletions FOR EACH STATEMENT EXECUTE FUNCTION public.forget()`, want: plant.ErrHindered},
	{name: "a ledger that changes keys", sql: changing(`NEW.idempotency_key := 'another'`), want: plant.ErrHindered},
	{name: "a ledger that changes who deleted", sql: changing(`NEW.deleted_by := 'somebody'`), want: plant.ErrHindered},
	{name: "a ledger whose sequence is behind", sql: `INSERT INTO public.plant_deletions (id, plant_id, shape, plant, deleted_by) OVERRIDING SYSTEM VALUE
		SELECT i, 1000 + i, 1, '()', 'somebody' FROM generate_series(1, 1000) i`, want: plant.ErrHindered},
	{name: "shapes whose sequence is behind", sql: `INSERT INTO public.plant_shapes (id, attributes, names, types, generated) OVERRIDING SYSTEM VALUE
		SELECT i, '{}', '{}', '{}', '{}' FROM generate_series(1, 1000) i`, want: plant.ErrHindered},
	{name: "a child table", sql: `CREATE TABLE public.trees (height int) INHERITS (public.plants); INSERT INTO public.trees (id, name) VALUES (77, 'Oak')`, want: plant.ErrHindered},
	{name: "two plants with one id", sql: `ALTER TABLE public.plants DROP CONSTRAINT plants_pkey; CREATE INDEX ON public.plants (id); INSERT INTO public.plants (id, name) VALUES (1, 'Boston fern, earlier')`, want: plant.ErrHindered},
	{name: "a shape that is there twice, where functions are checked strictly", super: `ALTER DATABASE {database} SET plpgsql.extra_errors = 'all'`,
		sql: `INSERT INTO public.plants VALUES (1000, 'Boston fern'); DELETE FROM public.plants WHERE id = 1000;
		INSERT INTO public.plant_shapes (attributes, names, types, generated, relation, attnums) SELECT attributes, names, types, generated, relation, attnums FROM public.plant_shapes`},
	{name: "a rule that divides by zero", sql: `CREATE TABLE public.log (n bigint); GRANT INSERT ON public.log TO plantstore_app;
		CREATE RULE log AS ON DELETE TO public.plants DO ALSO INSERT INTO public.log VALUES (1 / (old.id - 1))`, want: plant.ErrStoreRule},
	{name: "a rule whose value is too long", sql: `CREATE TABLE public.log (name varchar(12)); GRANT INSERT ON public.log TO plantstore_app;
		GRANT SELECT (name) ON public.plants TO plantstore_app; UPDATE public.plants SET name = 'fern' WHERE id <> 1; UPDATE public.plants SET name = 'Boston fern, old' WHERE id = 1;
		CREATE RULE log AS ON DELETE TO public.plants DO ALSO INSERT INTO public.log VALUES (old.name)`, want: plant.ErrStoreRule},
	{name: "a policy that divides by zero", sql: `ALTER TABLE public.plants ENABLE ROW LEVEL SECURITY;
		CREATE POLICY p ON public.plants USING (1 / (id - 1) IS NOT NULL)`, want: plant.ErrStoreRule},
	{name: "a publication, and no replica identity, where errors come with parameters", super: `ALTER DATABASE {database} SET log_parameter_max_length_on_error = -1`,
		sql: `CREATE PUBLICATION p FOR TABLE public.plants; ALTER TABLE public.plants REPLICA IDENTITY NOTHING`, want: plant.ErrHindered},
	{name: "a trigger that raises, where errors end the session", super: `ALTER DATABASE {database} SET exit_on_error = on`,
		sql: archiving(`RAISE EXCEPTION 'never'`), want: plant.ErrStoreRule},
	{name: "an id that is no bigint any more", sql: `ALTER TABLE public.plants ALTER id DROP IDENTITY; ALTER TABLE public.plants ALTER id TYPE numeric`, want: plant.ErrHindered},
}

// Whatever a store has done to its table: a plant that was deleted is in the ledger
// with its row, and one that is not deleted is there, not in the ledger, and
// nobody is told that it does not exist.
// A ledger that is hidden may have a deletion of a plant that is not there.
func TestAPlantThatIsGoneAndAHiddenLedger(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.exec(t, `ALTER TABLE plant_deletions ENABLE ROW LEVEL SECURITY`)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); !errors.Is(err, plant.ErrHindered) {
		t.Errorf("Delete: %v, want ErrHindered", err)
	}
}

func TestRulesOfTheStore(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{false, true} {
		for _, r := range rules {
			name := "alone, " + r.name
			if together {
				name = "together, " + r.name
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := r.store(t)
				errs := []error{nil}
				if together {
					errs = s.deleteAtOnce(t, ids(1, 30))
				} else {
					_, errs[0] = s.plants.Delete(in(t, patience), request(1, 0))
				}
				r.check(t, s, errs[0])
				for i, err := range errs {
					id := int64(i + 1)
					if recorded := s.recorded(t, id); s.has(t, id) == recorded || recorded != (err == nil) {
						t.Errorf("plant %d: Delete %v, there %v, recorded %v; want it there or recorded, as told", id, err, s.has(t, id), recorded)
					}
				}
			})
		}
	}
}

// store makes a database with 30 plants to which the rule is applied.
func (r rule) store(t *testing.T) store {
	t.Helper()
	database := pgtest.New(t)
	before := storeOn(t, database, "")
	before.sample(t, 30)
	super := pgtest.Pool(t, database.Super)
	name := pgx.Identifier{database.Name}.Sanitize()
	for _, sql := range []string{`CREATE SCHEMA shop AUTHORIZATION plantstore_owner`,
		`GRANT CREATE ON DATABASE ` + name + ` TO plantstore_owner`, strings.ReplaceAll(r.super, "{database}", name)} {
		if _, err := super.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	before.exec(t, r.sql)
	return storeOn(t, database, "") // with the settings that new sessions get
}

func (r rule) check(t *testing.T, s store, err error) {
	t.Helper()
	if !errors.Is(err, r.want) || r.want == nil && err != nil {
		t.Errorf("Delete: %v, want %v", err, r.want)
	}
	if r.effects != "" {
		var got int
		if err := s.owner.QueryRow(t.Context(), r.effects).Scan(&got); err != nil || got != r.is {
			t.Errorf("%s: %d, %v; want %d", r.effects, got, err, r.is)
		}
	}
}

// recorded reports whether the ledger has a deletion of a plant.
func (s store) recorded(t *testing.T, id int64) bool {
	t.Helper()
	return slices.ContainsFunc(s.ledger(t), func(l ledgerRow) bool { return l.PlantID == id })
}

// A key that the ledger knows is answered from it, also where nothing can be
// deleted any more.
func TestReplayWhileDeletionsAreNotRecorded(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.plant(t, 1)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	s.plant(t, 1)
	s.exec(t, `ALTER TABLE public.plants DISABLE TRIGGER USER`)
	result, err := s.plants.Delete(in(t, patience), deletion(1, "k"))
	if err != nil || !result.Replayed || !s.has(t, 1) {
		t.Errorf("Delete = %+v, %v, plant there %v; want a replay that leaves the plant alone", result, err, s.has(t, 1))
	}
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "other")); !errors.Is(err, plant.ErrHindered) || !s.has(t, 1) {
		t.Errorf("Delete with another key: %v, plant there %v; want ErrHindered and the plant there", err, s.has(t, 1))
	}
}

// The store answers for the ledger's trigger, and the ledger has an entry of each key
// from before.
func TestEarlierEntriesProveNothing(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 30)
	for _, err := range s.deleteAtOnce(t, ids(1, 30)) {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.sample(t, 30)
	s.exec(t, `ALTER TABLE public.plants DISABLE TRIGGER plantstore_record_deletion;
		CREATE FUNCTION public.boast() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM set_config('plantstore.recorded', '30', true); RETURN NULL; END$$;
		CREATE TRIGGER boast AFTER DELETE ON public.plants FOR EACH STATEMENT EXECUTE FUNCTION public.boast()`)
	alone, err := s.plants.Delete(in(t, patience), request(1, 0))
	if err != nil || !alone.Replayed || !s.has(t, 1) {
		t.Errorf("Delete = %+v, %v, plant there %v; want a replay that leaves the plant alone", alone, err, s.has(t, 1))
	}
	for i, err := range s.deleteAtOnce(t, ids(1, 30)) {
		if id := int64(i + 1); err != nil || !s.has(t, id) {
			t.Errorf("together, plant %d: %v, there %v; want a replay that leaves it alone", id, err, s.has(t, id))
		}
	}
}

// Only the entry of the same plant, principal and key, of the same transaction, proves a
// deletion: for one, and for the last of several.
func TestWhatProvesADeletion(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const insert = `INSERT INTO public.plant_deletions (plant_id, shape, plant, deleted_by, idempotency_key) VALUES ($1, 1, '(1)', $2, $3)`
	for n := int64(1); n <= 2; n++ {
		for name, tt := range map[string]struct {
			entry    plant.Deletion
			earlier  bool
			sqlState string
		}{
			"its own":                   {plant.Deletion{Plant: plant.ID(n), Principal: "shop", Key: "k"}, false, ""},
			"that of another plant":     {plant.Deletion{Plant: 3, Principal: "shop", Key: "k"}, false, unrecorded},
			"that of another principal": {plant.Deletion{Plant: plant.ID(n), Principal: "other", Key: "k"}, false, unrecorded},
			"that under another key":    {plant.Deletion{Plant: plant.ID(n), Principal: "shop", Key: "other"}, false, unrecorded},
			"an earlier one":            {plant.Deletion{Plant: plant.ID(n), Principal: "shop", Key: "k"}, true, unrecorded},
		} {
			tx, err := s.owner.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			here := []plant.Deletion{{Plant: 1, Principal: "shop", Key: "k"}}[:n-1]
			if tt.earlier {
				s.exec(t, insert, tt.entry.Plant, tt.entry.Principal, tt.entry.Key)
			} else {
				here = append(here, tt.entry)
			}
			for _, d := range here {
				if _, err := tx.Exec(t.Context(), insert, d.Plant, d.Principal, d.Key); err != nil {
					t.Fatal(err)
				}
			}
			_, err = tx.Exec(t.Context(), `SELECT set_config('plantstore.recorded', $1::bigint::text, true),
				public.plantstore_prove(ARRAY(SELECT generate_series(1, $1::bigint)), array_fill('shop'::text, ARRAY[$1::int]), array_fill('k'::text, ARRAY[$1::int]))`, n)
			if sqlState(err) != tt.sqlState || err != nil && tt.sqlState == "" {
				t.Errorf("the proof of %d, where there is %s: %v, want SQLSTATE %q", n, name, err, tt.sqlState)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.exec(t, `DELETE FROM public.plant_deletions`)
		}
	}
}

// Where a transaction sees the catalogue as of an earlier moment, it does not see who
// answers for the ledger's trigger since.
func TestNobodysWordIsTakenUnseen(t *testing.T) {
	t.Parallel()
	for _, isolation := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(isolation), func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			s.plant(t, 1)
			tx, err := s.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: isolation})
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(t.Context())
			if _, err := tx.Exec(t.Context(), `SELECT set_config('plantstore.recorded', '', true)`); err != nil {
				t.Fatal(err)
			}
			s.exec(t, strings.Replace(answering, "'0'", "'1'", 1)+`CREATE TRIGGER nothing AFTER DELETE ON public.plants FOR EACH STATEMENT EXECUTE FUNCTION public.answers()`)
			if tag, err := tx.Exec(t.Context(), `DELETE FROM public.plants WHERE id = 1`); err != nil || tag.RowsAffected() != 1 {
				t.Fatalf("DELETE: %v, %v; want one row", tag, err)
			}
			if _, err := tx.Exec(t.Context(), proof, []int64{1}, []string{"shop"}, []string{"k"}); sqlState(err) != unrecorded {
				t.Errorf("the proof: %v, want SQLSTATE %s", err, unrecorded)
			}
		})
	}
}

// A cascade takes a plant along whose own deletion had the same key.
func TestACascadeOfAPlantWithTheSameKey(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.exec(t, `ALTER TABLE public.plants ADD parent bigint REFERENCES public.plants ON DELETE CASCADE`)
	s.plant(t, 1)
	s.plant(t, 2)
	if _, err := s.plants.Delete(in(t, patience), deletion(2, "k")); err != nil {
		t.Fatal(err)
	}
	s.exec(t, `INSERT INTO public.plants (id, name, parent) VALUES (2, 'Boston fern', 1)`)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Errorf("Delete: %v, want none", err)
	}
	by := deletion(2, "k")
	cascaded := ledgered(2, by)
	cascaded.Key = nil
	s.checkLedger(t, []ledgerRow{ledgered(2, by), cascaded, ledgered(1, by)})
}

// What the statements name is gone. The database is within reach all the same.
func TestATableWithoutItsNames(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{`ALTER TABLE public.plants RENAME id TO no`, `ALTER TABLE public.plants RENAME TO old`, `DROP TRIGGER plantstore_record_deletion ON public.plants; DROP FUNCTION public.plantstore_prove`} {
		s := newStore(t)
		s.sample(t, 30)
		s.exec(t, sql)
		_, err := s.plants.Delete(in(t, patience), request(1, 0))
		for _, err := range append(s.deleteAtOnce(t, ids(2, 30)), err) {
			if !errors.Is(err, plant.ErrHindered) {
				t.Errorf("%s: Delete: %v, want ErrHindered", sql, err)
			}
		}
	}
}

// A trigger of the store's that deletes other plants comes before the ledger's or after
// it, by its name. What was asked for is proved all the same, also that it is not there.
func TestPlantsThatATriggerDeletesAlong(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"along", "with_it"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			s.sample(t, 30)
			s.exec(t, `CREATE FUNCTION public.along() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
					$$BEGIN DELETE FROM public.plants WHERE id > 20; RETURN NULL; END$$;
				CREATE TRIGGER `+name+` AFTER DELETE ON public.plants FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION public.along()`)
			if _, err := s.plants.Delete(in(t, patience), deletion(99, "k")); !errors.Is(err, plant.ErrNotFound) {
				t.Errorf("Delete of a missing plant: %v, want ErrNotFound", err)
			}
			if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
				t.Errorf("Delete: %v, want none", err)
			}
			for id := range int64(30) {
				if id++; s.has(t, id) == s.recorded(t, id) || s.recorded(t, id) != (id == 1 || id > 20) {
					t.Errorf("plant %d: there %v, recorded %v; want 1 and those over 20 recorded, and the others there", id, s.has(t, id), s.recorded(t, id))
				}
			}
		})
	}
}

// What a trigger puts off until the commit belongs to the request that made it, also
// where others are committed with it.
func TestDeletionsThatAreDeferred(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 90)
	// In a batch nobody asked for these, so that it is deleted one by one.
	s.exec(t, `CREATE FUNCTION public.along() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
			$$BEGIN DELETE FROM public.plants WHERE id = OLD.id + 60; RETURN NULL; END$$;
		CREATE CONSTRAINT TRIGGER along AFTER DELETE ON public.plants DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW WHEN (OLD.id <= 30) EXECUTE FUNCTION public.along()`)
	for _, err := range s.deleteAtOnce(t, ids(1, 30)) {
		if err != nil {
			t.Errorf("Delete: %v, want none", err)
		}
	}
	var want []ledgerRow
	for i, id := range ids(1, 30) {
		cascaded := ledgered(id+60, request(id, i))
		cascaded.Key = nil
		want = append(want, ledgered(id, request(id, i)), cascaded)
	}
	s.checkLedger(t, want)
}

// Nor did anybody in the batch ask for what one of its plants takes along at the commit.
func TestADeletionThatIsDeferredInABatch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, does string
		along      []int64 // the plants that leave along with the third
	}{
		{name: "plainly", does: `DELETE FROM public.plants WHERE id = 20;`, along: []int64{20}},
		{name: "whose error is caught", does: `BEGIN DELETE FROM public.plants WHERE id = 20; EXCEPTION WHEN others THEN NULL; END;`, along: []int64{20}},
		{name: "twice", does: `BEGIN DELETE FROM public.plants WHERE id = 20; INSERT INTO public.plants (id, name) VALUES (20, 'Boston fern');
			DELETE FROM public.plants WHERE id = 20; EXCEPTION WHEN others THEN NULL; END;`, along: []int64{20, 20}},
		{name: "that is rolled back", does: `BEGIN DELETE FROM public.plants WHERE id = 20; RAISE 'no'; EXCEPTION WHEN others THEN NULL; END;`},
		{name: "of one of the batch, which is back", does: `BEGIN INSERT INTO public.plants (id, name) VALUES (2, 'Boston fern');
			DELETE FROM public.plants WHERE id = 2; EXCEPTION WHEN others THEN NULL; END;`, along: []int64{2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t)
			simulated(t, func(t *testing.T) {
				s := storeOn(t, database, "")
				s.sample(t, 20)
				s.exec(t, `CREATE FUNCTION public.along() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN `+tt.does+` RETURN NULL; END$$;
					CREATE CONSTRAINT TRIGGER along AFTER DELETE ON public.plants DEFERRABLE INITIALLY DEFERRED
						FOR EACH ROW WHEN (OLD.id = 3) EXECUTE FUNCTION public.along()`)
				s.deleteInABatch(t, 3)
				want := ledgeredAll(ids(1, 3))
				for _, id := range tt.along {
					along := ledgered(id, request(3, 2))
					along.Key = nil
					want = append(want, along)
				}
				s.checkLedger(t, want)
				if gone := !s.has(t, 20); gone != slices.Contains(tt.along, 20) {
					t.Errorf("the plant that the trigger deletes is gone: %v", gone)
				}
			})
		})
	}
}

// What is put off until the commit is done then, whoever else is in the batch: what it finds
// and what comes of it is as if each plant had been deleted by one statement of the store's.
func TestWhatIsDeferredWaitsForTheCommit(t *testing.T) {
	t.Parallel()
	const seen = `CREATE TABLE public.seen (plant bigint, what text);`
	const deferred = ` DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION `
	function := func(name, does string) string {
		return `CREATE FUNCTION public.` + name + `() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN ` + does + ` RETURN NULL; END$$;`
	}
	deleted := func(does string) string {
		return function("deleted", does) + `CREATE CONSTRAINT TRIGGER deleted AFTER DELETE ON public.plants` + deferred + `public.deleted();`
	}
	for _, tt := range []struct {
		name, sql string
		refused   bool
		seen      string // of each plant
	}{
		{"the entry in the ledger", seen + `ALTER TABLE public.plants ADD parent bigint REFERENCES public.plants ON DELETE CASCADE;
			INSERT INTO public.plants (id, name, parent) SELECT id + 100, 'a child', id FROM public.plants;` + deleted(`INSERT INTO public.seen VALUES (old.id, (SELECT count(*) || ' entry' FROM public.plant_deletions WHERE plant_id = old.id));`), false, "1 entry"},
		{"rows that come after one that counts them", seen + `CREATE TABLE public.lines (plant bigint);
			CREATE TABLE public.orders (plant bigint);` +
			function("total", `INSERT INTO public.seen VALUES (new.plant, (SELECT count(*) || ' lines' FROM public.lines WHERE plant = new.plant));`) +
			`CREATE CONSTRAINT TRIGGER total AFTER INSERT ON public.orders` + deferred + `public.total();` +
			deleted(`INSERT INTO public.orders VALUES (old.id); INSERT INTO public.lines VALUES (old.id), (old.id);`), false, "2 lines"},
		{"a check of rows that go after it", seen + `CREATE TABLE public.lines AS SELECT id AS plant FROM public.plants;
			CREATE TABLE public.orders (plant bigint);` +
			function("check_lines", `IF NOT EXISTS (SELECT FROM public.lines WHERE plant = new.plant) THEN RAISE 'an order without lines'; END IF;`) +
			`CREATE CONSTRAINT TRIGGER check_lines AFTER INSERT ON public.orders` + deferred + `public.check_lines();` +
			deleted(`INSERT INTO public.orders VALUES (old.id); DELETE FROM public.lines WHERE plant = old.id;`), true, ""},
		{"what refers to a row that comes later", `CREATE TABLE public.whole (id bigint PRIMARY KEY);
			CREATE TABLE public.seen (plant bigint REFERENCES public.whole DEFERRABLE INITIALLY DEFERRED, what text DEFAULT 'part');` +
			deleted(`INSERT INTO public.seen VALUES (old.id); INSERT INTO public.whole VALUES (old.id);`), false, "part"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			s.sample(t, 41)
			s.exec(t, tt.sql+`
				CREATE TABLE public.baskets (plant bigint REFERENCES public.plants);
				INSERT INTO public.baskets VALUES (41)`) // so they are deleted one by one
			if _, err := s.owner.Exec(t.Context(), `DELETE FROM public.plants WHERE id = 1`); (err != nil) != tt.refused {
				t.Fatalf("DELETE of the store's: %v; want it refused: %v", err, tt.refused)
			}
			errs := s.deleteAtOnce(t, ids(2, 41))
			for i, id := range ids(2, 40) {
				if err := errs[i]; errors.Is(err, plant.ErrStoreRule) != tt.refused || err != nil && !tt.refused {
					t.Errorf("Delete of %d: %v; want it refused: %v", id, err, tt.refused)
				}
			}
			if got := stringsOf(t, s.owner, `SELECT DISTINCT what FROM public.seen`); strings.Join(got, ", ") != tt.seen {
				t.Errorf("seen: %v, want %q for each", got, tt.seen)
			}
		})
	}
}

// A trigger of the store's makes its commits quick ones. Ours are made after it.
func TestATriggerThatTurnsDurabilityOff(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 60)
	s.exec(t, `CREATE TABLE public.seen (setting text);
		CREATE FUNCTION public.hurry() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN SET LOCAL synchronous_commit = off; RETURN OLD; END$$;
		CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
			$$BEGIN
				INSERT INTO public.seen VALUES (current_setting('synchronous_commit'));
				SET CONSTRAINTS public.see DEFERRED; -- again, where a batch made all immediate
				RETURN NULL;
			END$$;
		CREATE TRIGGER hurry BEFORE DELETE ON public.plants FOR EACH ROW EXECUTE FUNCTION public.hurry();
		CREATE CONSTRAINT TRIGGER see AFTER DELETE ON public.plants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.see()`)
	errs := s.deleteAtOnce(t, ids(2, 60))
	_, err := s.plants.Delete(in(t, patience), deletion(1, "k"))
	for _, err := range append(errs, err) {
		if err != nil {
			t.Errorf("Delete: %v, want none", err)
		}
	}
	if got := stringsOf(t, s.owner, `SELECT DISTINCT setting FROM public.seen`); !slices.Equal(got, []string{"on"}) {
		t.Errorf("committed under synchronous_commit %v, want on", got)
	}
}

// What a trigger has opened is there for those that are deferred.
func TestACursorForADeferredTrigger(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 12)
	s.exec(t, `CREATE FUNCTION public.opens() RETURNS trigger LANGUAGE plpgsql AS $$DECLARE c refcursor := 'store_' || old.id; BEGIN OPEN c FOR SELECT old.id; RETURN old; END$$;
		CREATE FUNCTION public.fetches() RETURNS trigger LANGUAGE plpgsql AS $$DECLARE c refcursor := 'store_' || old.id; n bigint;
			BEGIN FETCH c INTO n; IF n IS DISTINCT FROM old.id THEN RAISE 'fetched %', n; END IF; RETURN NULL; END$$;
		CREATE TRIGGER opens BEFORE DELETE ON public.plants FOR EACH ROW EXECUTE FUNCTION public.opens();
		CREATE CONSTRAINT TRIGGER fetches AFTER DELETE ON public.plants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.fetches()`)
	for id := range int64(2) { // the second closes what the first has left
		if _, err := s.plants.Delete(in(t, patience), deletion(id+11, "k")); err != nil {
			t.Errorf("Delete: %v, want none", err)
		}
	}
	for _, err := range s.deleteAtOnce(t, ids(1, 10)) {
		if err != nil {
			t.Errorf("Delete in a batch: %v, want none", err)
		}
	}
	s.atCommit.looked.Store(&lookedAt{time.Now(), false})
	if first, last := s.atCommit.keep(); len(first) != 1 || len(last) != 1 {
		t.Errorf("a moment after a look that found triggers: %d statements before and %d after, want 1 and 1", len(first), len(last))
	}
}

// The settings of a request count for the service's role only.
func TestNobodyElseNamesAPrincipal(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	for id := range int64(4) {
		s.plant(t, id+1)
	}
	s.exec(t, `SET plantstore.request = '{1,shop,r,k}';
		DELETE FROM public.plants WHERE id = 1`)
	s.exec(t, `SET plantstore.batch = '{{2},{shop},{r},{k}}'; DELETE FROM public.plants WHERE id = 2`)
	// Not even what can't be read, and nobody's budget is spent.
	s.exec(t, `SET plantstore.request = 'x'; SET plantstore.batch = 'x'; SET plantstore.budget = '{shop,0,1h}';
		DELETE FROM public.plants WHERE id = 4`)
	// Nor does the service's role get more than one entry for a plant.
	app := pgtest.Pool(t, database.App)
	_, err := app.Exec(t.Context(), `SET plantstore.batch = '{{3,3},{a,b},{r,r},{k,k}}';
		DELETE FROM public.plants WHERE id = 3`)
	if sqlState(err) != unrecorded {
		t.Errorf("two entries for one plant: %v, want SQLSTATE %s", err, unrecorded)
	}
	want := []ledgerRow{{1, "Boston fern", "plantstore_owner", nil, nil}, {2, "Boston fern", "plantstore_owner", nil, nil}, {4, "Boston fern", "plantstore_owner", nil, nil}}
	if diff := cmp.Diff(want, s.ledger(t)); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
}
