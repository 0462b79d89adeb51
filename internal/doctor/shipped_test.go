package doctor

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestShippedBy(t *testing.T) {
	t.Parallel()
	const record = "CREATE FUNCTION public.record() RETURNS trigger\nLANGUAGE plpgsql\nSECURITY DEFINER -- why\nSET search_path = pg_catalog, pg_temp\nSET datestyle = 'ISO, YMD'\nAS $$ new $$;"
	const trigger = "CREATE TRIGGER record AFTER DELETE ON public.plants\n    FOR EACH STATEMENT EXECUTE FUNCTION public.record();"
	all := shippedBy([]string{
		"CREATE TABLE public.t ();",
		"-- At first.\nCREATE FUNCTION public.record() RETURNS trigger AS $$ old $$;",
		"CREATE FUNCTION public.other(a text[], b int) RETURNS int\nLANGUAGE sql IMMUTABLE\nAS $$ STABLE $$;",
		"-- Then.\n" + record,
		"REVOKE EXECUTE ON FUNCTION public.record(),\n    public.other(text[], bigint) FROM PUBLIC; -- why",
		"-- And.\n" + trigger,
	})
	want := []shippedFunction{
		{"record", record, "REVOKE EXECUTE ON FUNCTION public.record() FROM PUBLIC;", trigger},
		{"other", "CREATE FUNCTION public.other(a text[], b int) RETURNS int\nLANGUAGE sql IMMUTABLE\nAS $$ STABLE $$;", "REVOKE EXECUTE ON FUNCTION public.other(text[], bigint) FROM PUBLIC;", ""},
	}
	if diff := cmp.Diff(want, all, cmp.AllowUnexported(shippedFunction{})); diff != "" {
		t.Fatalf("shippedBy (-want +got):\n%s", diff)
	}
	if got, want := all[0].definition(), "CREATE TRIGGER record AFTER DELETE ON public.plants FOR EACH STATEMENT EXECUTE FUNCTION public.record()"; got != want {
		t.Errorf("definition %s\nwant %s", got, want)
	}
	if got := all[0].volatility() + all[1].volatility() + (shippedFunction{function: "x\nLANGUAGE sql STABLE ROWS 1\nAS $$ $$"}).volatility(); got != "vis" {
		t.Errorf("volatilities %s, want vis", got)
	}
	if diff := cmp.Diff([]string{"datestyle=iso, ymd", "search_path=pg_catalog, pg_temp"}, all[0].settings()); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

func TestPromised(t *testing.T) {
	t.Parallel()
	got := promised([]string{"DO $$\nBEGIN\n    GRANT SELECT (id, name), DELETE ON public.plants TO plantstore_app;\n" +
		"    GRANT EXECUTE ON FUNCTION public.f(bytea, int) TO plantstore_app; -- why\n    GRANT SELECT ON public.x TO somebody;\nEND\n$$;"})
	want := []right{usage, {"SELECT (id)", "public.plants"}, {"SELECT (name)", "public.plants"}, {"DELETE", "public.plants"},
		{"EXECUTE", "FUNCTION public.f(bytea, int)"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(right{})); diff != "" {
		t.Errorf("promised (-want +got):\n%s", diff)
	}
}

func TestShippedTableRemakes(t *testing.T) {
	t.Parallel()
	names, remakes := shippedTables([]string{"-- Why.\nCREATE TABLE public.a (id int);", "CREATE TABLE public.plantstore_migrations ();",
		"    GRANT SELECT (id) ON public.a TO plantstore_app;\n    GRANT SELECT ON public.ab TO plantstore_app;\n    GRANT SELECT ON SEQUENCE public.a_id_seq TO plantstore_app;"})
	want := "CREATE TABLE public.a (id int);\nGRANT SELECT (id) ON public.a TO plantstore_app;\nGRANT SELECT ON SEQUENCE public.a_id_seq TO plantstore_app;"
	if !cmp.Equal([]string{"a"}, names) || !cmp.Equal([]string{want}, remakes) {
		t.Errorf("shippedTables: %q, %q; want a: %q", names, remakes, want)
	}
}
