package postgres

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/auth"
	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// A spy notes the role with whose rights it runs. Nothing of it may run with ours.
const spy = `
	CREATE SCHEMA evil;
	CREATE TABLE evil.log (who text);
	GRANT USAGE ON SCHEMA evil TO PUBLIC;
	GRANT ALL ON evil.log TO PUBLIC;
	CREATE FUNCTION evil.note() RETURNS void LANGUAGE plpgsql AS 'BEGIN INSERT INTO evil.log VALUES (current_user || '' '' || current_query()); END';`

// spiedOnNobody reports with whose rights a spy ran.
func spiedOnNobody(t *testing.T, super *pgxpool.Pool) {
	t.Helper()
	if got := stringsOf(t, super, `SELECT DISTINCT who::pg_catalog.text FROM evil.log`); len(got) > 0 {
		t.Errorf("code of others ran as:\n%s", strings.Join(got, "\n"))
	}
}

// deleteEveryWay uses the service in each way that reaches the database.
func deleteEveryWay(t *testing.T, s store, database pgtest.Database) {
	t.Helper()
	token := create(t, issuer(t, database), "shop", time.Time{})
	if err := s.Ready(in(t, patience), migrate.Versions()); err != nil {
		t.Errorf("Ready: %v, want none", err)
	}
	tokens := s.Tokens(0)
	for range 7 { // after the fifth time a plan is kept
		if _, err := tokens.Authenticate(in(t, patience), token); err != nil {
			t.Errorf("Authenticate: %v, want none", err)
		}
	}
	for id := range int64(10) {
		if _, err := s.plants.Delete(in(t, patience), deletion(id+1, "k")); err != nil {
			t.Errorf("Delete(%d): %v, want none", id+1, err)
		}
	}
	for i, err := range s.deleteAtOnce(t, ids(11, 60)) {
		if err != nil {
			t.Errorf("Delete(%d) beside others: %v, want none", i+11, err)
		}
	}
	if result, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil || !result.Replayed {
		t.Errorf("the same request again: %+v, %v; want a replay", result, err)
	}
	if _, err := s.plants.Delete(in(t, patience), deletion(99, "k")); err == nil {
		t.Error("Delete of a missing plant: no error")
	}
	if got := len(s.ledger(t)); got != 60 {
		t.Errorf("%d ledger rows, want 60", got)
	}
}

// Whoever owns the database can set a search path with functions and operators of
// their own in front of PostgreSQL's.
func TestNothingIsLookedUpWhereOthersCanWrite(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.sample(t, 60)
	var sql strings.Builder
	sql.WriteString(spy)
	for _, f := range []string{
		`set_config(text, text, boolean) RETURNS text`, `current_setting(text) RETURNS text`, `current_setting(text, boolean) RETURNS text`,
		`concat(text, text) RETURNS text`, `pg_is_in_recovery() RETURNS boolean`, `row_security_active(text) RETURNS boolean`,
		`to_regclass(text) RETURNS regclass`, `pg_current_xact_id() RETURNS xid8`, `now() RETURNS timestamptz`,
		`has_sequence_privilege(oid, text) RETURNS boolean`, `pg_sequence_last_value(regclass) RETURNS bigint`, `pg_current_snapshot() RETURNS pg_snapshot`,
		`current_database() RETURNS name`, `pg_get_serial_sequence(text, text) RETURNS text`, `clock_timestamp() RETURNS timestamptz`, `octet_length(text) RETURNS integer`,
		`plantstore_token(bytea) RETURNS TABLE (id uuid, principal text, scopes text[], created_at timestamptz, expires_at timestamptz, revoked_at timestamptz, last_used_at timestamptz, budget bigint, budget_nanoseconds bigint)`,
		`plantstore_prove(bigint[], text[], text[]) RETURNS void`, `plantstore_refuse(bigint, text, text, text) RETURNS boolean`,
	} {
		sql.WriteString(`CREATE FUNCTION evil.` + f + ` LANGUAGE plpgsql AS 'BEGIN PERFORM evil.note(); RETURN` +
			map[bool]string{true: "", false: " NULL"}[strings.Contains(f, "TABLE") || strings.HasSuffix(f, "void")] + `; END';`)
	}
	for _, o := range []struct{ name, left, right string }{
		{"=", "bigint", "bigint"}, {"=", "text", "text"}, {"=", "oid", "oid"}, {"=", "oid", "regclass"}, {"=", "xid", "xid"},
		{"=", `"char"`, `"char"`}, {"=", "integer", "integer"}, {"=", "smallint", "integer"}, {"<=", "bigint", "bigint"}, {"<", "timestamptz", "timestamptz"},
		{"=", "name", "name"}, {"=", "timestamptz", "timestamptz"}, {"<", "bigint", "bigint"},
	} {
		name := map[string]string{"=": "eq", "<=": "le", "<": "lt"}[o.name]
		sql.WriteString(`CREATE FUNCTION evil.` + name + `(a ` + o.left + `, b ` + o.right + `) RETURNS boolean LANGUAGE plpgsql AS
			'BEGIN PERFORM evil.note(); RETURN a::text OPERATOR(pg_catalog.` + o.name + `) b::text; END';
			CREATE OPERATOR evil.` + o.name + ` (LEFTARG = ` + o.left + `, RIGHTARG = ` + o.right + `, FUNCTION = evil.` + name + `);`)
	}
	for _, table := range []string{"plants", "plant_deletions", "plant_shapes", "api_principals", "api_tokens", "plantstore_budgets", "goose_db_version"} {
		sql.WriteString(`CREATE TABLE evil.` + table + ` (LIKE public.` + table + `); GRANT ALL ON evil.` + table + ` TO PUBLIC;`)
	}
	for _, kind := range []string{"text", "regclass", "xid", "bytea", "name"} {
		sql.WriteString(`CREATE DOMAIN evil.` + kind + ` AS pg_catalog.` + kind + `;`)
	}
	sql.WriteString(`ALTER DATABASE ` + pgx.Identifier{database.Name}.Sanitize() + ` SET search_path = evil, pg_catalog, public`)
	super := pgtest.Pool(t, database.Super)
	if _, err := super.Exec(t.Context(), sql.String()); err != nil {
		t.Fatal(err)
	}
	for _, parameters := range []string{"", "default_query_exec_mode=exec"} {
		victim := storeOn(t, database, parameters)
		if parameters != "" {
			s.exec(t, `DELETE FROM public.plant_deletions; DELETE FROM public.api_tokens; DELETE FROM public.api_principals`)
			s.sample(t, 60)
		}
		deleteEveryWay(t, store{victim.DB, victim.plants, s.owner}, database)
		x := exportOf(t, ledgerOf(t, pgtest.Database{Owner: pgtest.WithParameters(database.Owner, parameters)}), Cursor{}, false)
		if x.end(t); len(x.plants()) != 60 {
			t.Errorf("%d plants exported, want 60", len(x.plants()))
		}
	}
	spiedOnNobody(t, super)
}

// What a trigger of the store's leaves in our session does not stand for the catalogue.
func TestTemporaryTablesNamedLikeTheCatalogue(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.sample(t, 2)
	s.exec(t, `
		CREATE TABLE orders (plant_id bigint REFERENCES plants);
		INSERT INTO orders VALUES (2);
		CREATE FUNCTION leave() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN
				CREATE TEMP TABLE pg_constraint AS SELECT * FROM pg_catalog.pg_constraint LIMIT 0;
				RETURN OLD;
			END $$;
		CREATE TRIGGER leave BEFORE DELETE ON plants FOR EACH ROW WHEN (OLD.id = 1) EXECUTE FUNCTION leave()`)
	if _, err := s.plants.Delete(in(t, patience), deletion(1, "k")); err != nil {
		t.Fatal(err)
	}
	_, err := s.plants.Delete(in(t, patience), deletion(2, "k"))
	if _, ok := errors.AsType[*plant.ReferencedError](err); !ok {
		t.Errorf("Delete of a plant that orders refer to: %v, want a ReferencedError", err)
	}
}

// A schema named like our role comes first in everybody's default search path.
func TestASchemaNamedLikeTheRole(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.sample(t, 60)
	super := pgtest.Pool(t, database.Super)
	_, err := super.Exec(t.Context(), `
		CREATE SCHEMA plantstore_app; GRANT USAGE ON SCHEMA plantstore_app TO PUBLIC;
		CREATE FUNCTION plantstore_app.plantstore_token(bytea) RETURNS TABLE (id uuid, principal text, scopes text[], created_at timestamptz,
			expires_at timestamptz, revoked_at timestamptz, last_used_at timestamptz, budget bigint, budget_nanoseconds bigint) LANGUAGE sql
			AS $$ SELECT gen_random_uuid(), 'ceo', ARRAY['plants:delete'], now(), NULL::timestamptz, NULL::timestamptz, now(), 0::bigint, 0::bigint $$;
		CREATE TABLE plantstore_app.plants AS TABLE public.plants; GRANT ALL ON plantstore_app.plants TO PUBLIC`)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := s.Tokens(0).Authenticate(in(t, patience), auth.NewToken()); err == nil {
		t.Errorf("a made-up token is %+v, want it refused", p)
	}
	deleteEveryWay(t, s, database)
}

// Who calls the function that looks tokens up, which runs with its owner's rights,
// can't lead it to an operator of others.
func TestTheLookUpOfTokensCannotBeMisled(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "pool_max_conns=1")
	token := create(t, issuer(t, database), "shop", time.Time{})
	super := pgtest.Pool(t, database.Super)
	_, err := super.Exec(t.Context(), spy+`
		CREATE FUNCTION evil.eq(bytea, bytea) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN PERFORM evil.note(); RETURN true; END';
		CREATE OPERATOR evil.= (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = evil.eq)`)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := auth.DigestOf(token)
	if err != nil {
		t.Fatal(err)
	}
	for made, wanted := range map[int][]byte{0: []byte("made up"), 1: digest[:]} {
		tx, err := s.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.WithoutCancel(t.Context()))
		if _, err := tx.Exec(t.Context(), `SET LOCAL search_path = evil, pg_catalog`); err != nil {
			t.Fatal(err)
		}
		var found int
		if err := tx.QueryRow(t.Context(), `SELECT count(*) FROM public.plantstore_token($1)`, wanted).Scan(&found); err != nil || found != made {
			t.Errorf("%d tokens for the digest %x, %v; want %d", found, wanted, err, made)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	spiedOnNobody(t, super)
}

// The owner of an adopted table can define casts for its types and for its rows, and
// change the type of its columns. The trigger, which runs with its owner's rights,
// must not call them.
func TestTheTriggerCallsNoCast(t *testing.T) {
	t.Parallel()
	database := pgtest.Empty(t)
	super := pgtest.Pool(t, database.Super)
	_, err := super.Exec(t.Context(), spy+`
		CREATE TYPE evil.mood AS ENUM ('5', 'gone');
		CREATE TABLE public.plants (id bigint PRIMARY KEY, name text, mood evil.mood DEFAULT 'gone', moods evil.mood[] DEFAULT '{gone}');
		ALTER TABLE public.plants OWNER TO plantstore_owner;
		GRANT USAGE, CREATE ON SCHEMA evil TO plantstore_owner`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrate.Service().Up(t.Context(), database.Owner, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, cast := range []struct{ from, to, as string }{
		{"evil.mood", "json", "ASSIGNMENT"}, {"evil.mood", "jsonb", "ASSIGNMENT"}, {"evil.mood", "text", "IMPLICIT"}, {"evil.mood", "bigint", "IMPLICIT"},
		{"public.plants", "text", "IMPLICIT"}, {"public.plants", "json", "IMPLICIT"}, {"public.plants", "jsonb", "IMPLICIT"},
	} {
		value := map[string]string{"json": "json '{}'", "jsonb": "jsonb '{}'", "text": "text 'evil'", "bigint": "bigint '5'"}[cast.to]
		name := "to_" + cast.to
		_, err := super.Exec(t.Context(), `CREATE FUNCTION evil.`+name+`(`+cast.from+`) RETURNS `+cast.to+` LANGUAGE plpgsql AS
				'BEGIN PERFORM evil.note(); RETURN `+strings.ReplaceAll(value, "'", "''")+`; END';
			CREATE CAST (`+cast.from+` AS `+cast.to+`) WITH FUNCTION evil.`+name+`(`+cast.from+`) AS `+cast.as)
		if err != nil {
			t.Fatal(err)
		}
	}
	s := storeOn(t, database, "")
	s.exec(t, `INSERT INTO public.plants (id, name) SELECT i, 'Boston fern' FROM generate_series(1, 60) i`)
	deleteEveryWay(t, s, database)
	// The id itself becomes a type with a cast to bigint: nothing is deleted then.
	s.exec(t, `INSERT INTO public.plants (id, name) VALUES (5, 'Boston fern'); ALTER TABLE public.plants ALTER id TYPE evil.mood USING id::text::evil.mood`)
	for _, sql := range []string{`DELETE FROM public.plants`, `DELETE FROM public.plants WHERE true`} {
		if _, err := s.owner.Exec(t.Context(), sql); sqlState(err) != unrecorded {
			t.Errorf("%s with an id of another type: %v, want SQLSTATE %s", sql, err, unrecorded)
		}
	}
	spiedOnNobody(t, super)
}

// Who may make functions in the schema of ours can make some of the same names, for
// parameters that fit a call better than ours do.
func TestFunctionsThatFitBetter(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.sample(t, 80)
	super := pgtest.Pool(t, database.Super)
	_, err := super.Exec(t.Context(), spy+`
		DO $$
		DECLARE
			ours record;
			type text;
		BEGIN
			FOR ours IN SELECT proname, pronargs FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname LIKE 'plantstore\_%' AND pronargs > 0 LOOP
				FOREACH type IN ARRAY ARRAY['text', 'regclass', 'varchar', 'integer', 'integer[]', 'varchar[]', 'text[]', 'anyelement', 'anyarray', 'json', 'interval'] LOOP
					BEGIN
						EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS text LANGUAGE plpgsql AS ''BEGIN PERFORM evil.note(); RETURN NULL; END''',
							ours.proname, (SELECT string_agg(type, ', ') FROM generate_series(1, ours.pronargs)));
					EXCEPTION WHEN duplicate_function THEN -- ours
					END;
				END LOOP;
			END LOOP;
		END
		$$`)
	if err != nil {
		t.Fatal(err)
	}
	deleteEveryWay(t, s, database)
	s.exec(t, `CREATE FUNCTION along() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN DELETE FROM plants WHERE id = OLD.id + 10; RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER along AFTER DELETE ON plants DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.id BETWEEN 61 AND 63) EXECUTE FUNCTION along()`)
	s.exec(t, `BEGIN ISOLATION LEVEL REPEATABLE READ; DELETE FROM plants WHERE id = 80; COMMIT`)
	for i, err := range s.deleteAtOnce(t, ids(61, 65)) {
		if err != nil {
			t.Errorf("Delete(%d) beside others: %v, want none", i+61, err)
		}
	}
	if got := len(s.ledger(t)); got != 69 {
		t.Errorf("%d ledger rows, want 69", got)
	}
	spiedOnNobody(t, super)
}

// The trigger goes with a table that is renamed, and the name can then be that of a domain:
// a null of it would run the domain's check.
func TestADomainInPlaceOfTheTable(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	s := storeOn(t, database, "")
	s.sample(t, 3)
	super := pgtest.Pool(t, database.Super)
	if _, err := super.Exec(t.Context(), spy+`
		CREATE FUNCTION evil.check(anyelement) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN PERFORM evil.note(); RETURN true; END';
		ALTER TABLE public.plants RENAME TO plants_of_old;
		CREATE TYPE evil.base AS (id bigint, name text, created_at timestamptz);
		CREATE DOMAIN public.plants AS evil.base CHECK (evil.check(VALUE))`); err != nil {
		t.Fatal(err)
	}
	if _, err := super.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; DELETE FROM public.plants_of_old WHERE id = 2; COMMIT`); err != nil {
		t.Fatal(err)
	}
	if got := len(s.ledger(t)); got != 1 {
		t.Errorf("%d ledger rows, want 1", got)
	}
	spiedOnNobody(t, super)
}
