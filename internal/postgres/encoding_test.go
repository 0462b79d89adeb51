package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"plantstore/internal/pgtest"
)

// foreign are encodings with a text that has no equivalent in UTF-8 and one that has, as
// bytes. Where looks is set, the former looks like UTF-8.
var foreign = []struct{ name, encoding, lacking, looks, has, inUTF8 string }{
	{name: "of single bytes", encoding: "WIN1252", lacking: "x\x81y", looks: "\xc3\x81", has: "\x80\xe4", inUTF8: "€ä"},
	{name: "of several bytes", encoding: "EUC_JP", lacking: "x\xa9\xa1y", has: "\xbf\xa2\xca\xaa", inUTF8: "植物"},
}

// text is SQL for bytes as a text.
func text(encoding, bytes string) string {
	return fmt.Sprintf(`convert_from('\x%x', '%s')`, bytes, encoding)
}

// Values that have no equivalent in UTF-8 come as they are, and hinder no others.
func TestExportOfWhatUTF8Lacks(t *testing.T) {
	t.Parallel()
	for _, tt := range foreign {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := encodedDatabase(t, tt.encoding)
			lacking, has := text(tt.encoding, tt.lacking), text(tt.encoding, tt.has)
			_, l := adopt(t, database, `CREATE TABLE public.plants (id bigint PRIMARY KEY, name text, note text)`)
			script(t, pgtest.Connect(t, database.Super), `
				INSERT INTO public.plants VALUES (1, `+has+`, 'a'), (2, `+lacking+`, `+has+`), (3, `+text(tt.encoding, tt.looks)+`, NULL), (4, 'b', `+lacking+`), (5, '', `+has+`);
				DELETE FROM public.plants;
				UPDATE public.plant_deletions SET session_role = `+has+` WHERE plant_id = 1;
				UPDATE public.plant_deletions SET session_role = `+lacking+` WHERE plant_id = 5;
				UPDATE public.plant_shapes SET names = ARRAY['id', 'name', `+has+`]`)
			whole := func(s string) RecordedValue { return RecordedValue{Column: "name", Type: "text", Value: []byte(s)} }
			foreign := func(s string) RecordedValue {
				v := whole(s)
				v.Untranslated = s != ""
				return v
			}
			want := map[int64][]RecordedValue{
				1: {whole(tt.inUTF8), whole("a")},
				2: {foreign(tt.lacking), whole(tt.inUTF8)},
				3: {foreign(tt.looks), {Column: "name", Type: "text"}},
				4: {whole("b"), foreign(tt.lacking)},
				5: {whole(""), whole(tt.inUTF8)},
			}
			check := func(how string, r Recorded) {
				t.Helper()
				want := append([]RecordedValue{{Column: "id", Type: "bigint", Value: fmt.Append(nil, r.PlantID)}}, want[r.PlantID]...)
				want[2].Column = tt.inUTF8
				if diff := cmp.Diff(want, r.Plant); diff != "" {
					t.Errorf("%s of plant %d (-want +got):\n%s", how, r.PlantID, diff)
				}
				role := map[int64]string{1: tt.inUTF8, 5: "x" + strings.Repeat("\ufffd", len(tt.lacking)-2) + "y"}[r.PlantID]
				if role != "" && r.SessionRole != role {
					t.Errorf("%s of plant %d by %q, want %q", how, r.PlantID, r.SessionRole, role)
				}
			}
			for _, mode := range []string{"simple_protocol", "exec", "cache_describe"} {
				other := ledgerOf(t, pgtest.Database{Owner: pgtest.WithParameters(database.Owner, "default_query_exec_mode="+mode)})
				list, _, err := other.List(t.Context(), LedgerFilter{}, 10, true)
				if err != nil || len(list) != 5 {
					t.Fatalf("List in the mode %s = %+v, %v; want 5", mode, list, err)
				}
				for _, r := range list {
					check("List in the mode "+mode, r)
				}
			}
			for _, l.pageBytes = range []int{1, 1 << 20} {
				x := exportOf(t, l, Cursor{}, false)
				x.end(t)
				if diff := cmp.Diff([]int64{1, 2, 3, 4, 5}, x.plants()); diff != "" {
					t.Errorf("exported (-want +got):\n%s", diff)
				}
				for _, r := range x.list {
					check("export", r)
					one, err := l.Get(t.Context(), r.ID)
					if err != nil {
						t.Fatal(err)
					}
					check("Get", one)
				}
			}
			list, more, err := l.List(t.Context(), LedgerFilter{}, 4, true)
			if err != nil || len(list) != 4 || !more {
				t.Fatalf("List = %d, %v, %v; want 4 and more", len(list), more, err)
			}
			for _, r := range list {
				check("List", r)
			}
			if list, _, err = l.List(t.Context(), LedgerFilter{}, 10, false); err != nil || len(list) != 5 || list[0].Plant != nil {
				t.Errorf("List without plants = %+v, %v; want 5", list, err)
			}
			script(t, pgtest.Connect(t, database.Super), `UPDATE public.plant_deletions SET request_id = 'r', deleted_by = `+has+` WHERE plant_id = 5`)
			if list, _, err = l.List(t.Context(), LedgerFilter{By: Deleter{Principal: tt.inUTF8}}, 10, true); err != nil || len(list) != 1 {
				t.Fatalf("List of %s = %+v, %v; want one", tt.inUTF8, list, err)
			}
			check("List", list[0])
		})
	}
}

// A restore takes what UTF-8 lacks, and names it.
func TestRestoreOfWhatUTF8Lacks(t *testing.T) {
	t.Parallel()
	shown := func(s string) string { // each byte of it by itself
		var b strings.Builder
		for i := range len(s) {
			if s[i] < 0x80 {
				b.WriteByte(s[i])
			} else {
				fmt.Fprintf(&b, `\x%02x`, s[i])
			}
		}
		return b.String()
	}
	for _, tt := range foreign {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := encodedDatabase(t, tt.encoding)
			lacking, has := text(tt.encoding, tt.lacking), text(tt.encoding, tt.has)
			_, l := adopt(t, database, `CREATE TABLE public.plants (id bigint PRIMARY KEY, name text)`)
			super := pgtest.Connect(t, pgtest.WithParameters(database.Super, "client_encoding=UTF8"))
			script(t, super, `
				ALTER TABLE public.plants ADD "`+tt.inUTF8+`" text;
				CREATE FUNCTION public.spoil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.name = NEW.name || `+strings.ReplaceAll(lacking, "'", "''")+`; RETURN NEW; END';
				CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.id = 2 THEN RAISE ''no %'', NEW.name USING ERRCODE = ''42501''; END IF; RETURN NEW; END';
				CREATE TRIGGER spoil BEFORE INSERT ON public.plants FOR EACH ROW EXECUTE FUNCTION public.spoil();
				CREATE TRIGGER refuse BEFORE INSERT ON public.plants FOR EACH ROW EXECUTE FUNCTION public.refuse();
				ALTER TABLE public.plants DISABLE TRIGGER spoil, DISABLE TRIGGER refuse`)
			bytes := func() (all []string) {
				t.Helper()
				if err := super.QueryRow(t.Context(), `SELECT array_agg(convert_to(ROW(id, name, "`+tt.inUTF8+`")::text, getdatabaseencoding())::text ORDER BY id) FROM public.plants`).Scan(&all); err != nil {
					t.Fatal(err)
				}
				return all
			}
			script(t, super, `INSERT INTO public.plants VALUES (1, `+has+`, 'a'), (2, `+lacking+`, `+has+`)`)
			before := bytes()
			script(t, super, `DELETE FROM public.plants`)
			ids := openEntries(t, l)
			lossy := RestoreOptions{Lossy: true, RunTriggers: true}

			replaced := "x" + strings.Repeat("\ufffd", len(tt.lacking)-2) + "y"
			other := `column "` + tt.inUTF8 + `" (text`
			for _, step := range []struct {
				name, alter, back string
				refused           bool
				want              []string // of plants 2 and 1
			}{
				{"a column that is gone", `DROP name`, `ADD name text`, false,
					[]string{`column "name" (text) is gone: "` + shown(tt.lacking) + `" has no place`, `column "name" (text) is gone: "` + tt.inUTF8 + `" has no place`}},
				{"another column that is gone", `DROP "` + tt.inUTF8 + `"`, `ADD "` + tt.inUTF8 + `" text`, false,
					[]string{other + `) is gone: "` + tt.inUTF8 + `" has no place`, other + `) is gone: "a" has no place`}},
				{"a trigger", `ENABLE TRIGGER spoil`, `DISABLE TRIGGER spoil`, false, []string{
					`column "name" (text): "` + shown(tt.lacking) + `" becomes "` + shown(tt.lacking+tt.lacking) + `"`,
					`column "name" (text): "` + tt.inUTF8 + `" becomes "` + shown(tt.has+tt.lacking) + `"`}},
				{"another type", `ALTER name TYPE int USING NULL`, `ALTER name TYPE text`, true, []string{
					`column "name" (text, today integer): invalid input syntax for type integer: "` + replaced + `" (SQLSTATE 22P02)`,
					`column "name" (text, today integer): invalid input syntax for type integer: "` + tt.inUTF8 + `" (SQLSTATE 22P02)`}},
				{"another type of another column", `ALTER "` + tt.inUTF8 + `" TYPE int USING NULL`, `ALTER "` + tt.inUTF8 + `" TYPE text`, true, []string{
					other + `, today integer): invalid input syntax for type integer: "` + tt.inUTF8 + `" (SQLSTATE 22P02)`,
					other + `, today integer): invalid input syntax for type integer: "a" (SQLSTATE 22P02)`}},
				{"a check", `ADD CONSTRAINT short CHECK (octet_length(name) < 2)`, `DROP CONSTRAINT short`, true, []string{
					`new row for relation "plants" violates check constraint "short" (SQLSTATE 23514): Failing row contains (2, ` + replaced,
					`new row for relation "plants" violates check constraint "short" (SQLSTATE 23514): Failing row contains (1, ` + tt.inUTF8 + `, a)`}},
			} {
				script(t, super, `ALTER TABLE public.plants `+step.alter)
				restored, err := l.Restore(t.Context(), ids, RestoreOptions{RunTriggers: true})
				refused, ok := errors.AsType[*RefusedError](err)
				if !ok || len(refused.Refusals) != 2 {
					t.Fatalf("%s: Restore = %+v, %v; want it refused", step.name, restored, err)
				}
				for i, r := range refused.Refusals {
					if !strings.HasPrefix(r.Why, step.want[i]) {
						t.Errorf("%s: plant %d: %s\nwant %s", step.name, r.Plant, r.Why, step.want[i])
					}
				}
				if restored, err = l.Restore(t.Context(), ids, lossy); (err != nil) != step.refused {
					t.Errorf("%s: Restore with losses = %+v, %v", step.name, restored, err)
				} else if diff := cmp.Diff(refused.Refusals, restored.Losses); !step.refused && diff != "" {
					t.Errorf("%s: (-refused +lost):\n%s", step.name, diff)
				}
				script(t, super, `ALTER TABLE public.plants `+step.back+`; UPDATE public.plant_deletions SET restored_at = NULL, restored_by = NULL;
					SET session_replication_role = replica; DELETE FROM public.plants; RESET session_replication_role`)
			}

			script(t, super, `ALTER TABLE public.plants ENABLE TRIGGER refuse`)
			if _, err := l.Restore(t.Context(), ids, lossy); err == nil || !strings.Contains(err.Error(), "no "+replaced) {
				t.Errorf("Restore with a trigger that refuses: %v, want its message", err)
			}
			script(t, super, `DROP TRIGGER refuse ON public.plants; DROP TRIGGER spoil ON public.plants`)
			restoreAll(t, l)
			if diff := cmp.Diff(before, bytes()); diff != "" {
				t.Errorf("the plants (-before +after):\n%s", diff)
			}
		})
	}
}
