package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/migrate"
)

// triggers judges whether plants can leave without a record.
func (e *examination) triggers(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	statements, err := migrate.Service().Statements(ctx)
	if err != nil {
		return nil, err
	}
	shipped := shippedBy(statements)
	functions, err := madeFunctions(ctx, tx)
	if err != nil {
		return nil, err
	}
	triggers, err := madeTriggers(ctx, tx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	problem := func(remedy, format string, args ...any) {
		found = append(found, Finding{Grade: Problem, Message: fmt.Sprintf(format, args...), Remedy: remedy})
	}
	for _, s := range shipped {
		trigger, hasTrigger := triggers[s.name]
		function, hasFunction := functions[s.name]
		switch {
		case s.trigger == "" && !hasFunction:
			problem(s.remake(), "function %s is missing", s.name)
		case s.trigger == "" && !function.is(s):
			problem(s.remake(), "function %s is not what the migrations made it", s.name)
		case s.trigger == "": // as it should be
		case !hasTrigger:
			problem(s.remake(), "trigger %s is missing: plants leave without a record", s.name)
		case !trigger.Enabled:
			problem(fmt.Sprintf("ALTER TABLE public.plants ENABLE TRIGGER %s;", s.name), "trigger %s is disabled: plants leave without a record", s.name)
		case trigger.Definition != s.definition() || !function.is(s):
			problem(s.remake(), "trigger %s or its function is not what the migrations made it", s.name)
		}
	}
	parents, err := parents(ctx, tx)
	return orFine(append(found, parents...), "each deletion is recorded, TRUNCATE is refused"), err
}

// A madeFunction is a function as the database has it.
type madeFunction struct {
	Name     string
	Body     string
	AsOwner  bool
	Settings []string // in lower case and in order
}

func madeFunctions(ctx context.Context, tx pgx.Tx) (map[string]madeFunction, error) {
	rows, err := tx.Query(ctx, `
		SELECT proname, prosrc, prosecdef, ARRAY(SELECT lower(s) FROM unnest(proconfig) s ORDER BY lower(s) COLLATE "C")
		FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND starts_with(proname, 'plantstore_')`)
	if err != nil {
		return nil, err
	}
	functions := make(map[string]madeFunction)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[madeFunction])
	for _, f := range list {
		functions[f.Name] = f
	}
	return functions, err
}

// A madeTrigger is a trigger on plants as the database has it.
type madeTrigger struct {
	Name, Definition string
	Enabled          bool
}

func madeTriggers(ctx context.Context, tx pgx.Tx) (map[string]madeTrigger, error) {
	// 'R' fires on a logical replica only.
	rows, err := tx.Query(ctx, `
		SELECT tgname, pg_get_triggerdef(oid), tgenabled IN ('O', 'A')
		FROM pg_trigger WHERE tgrelid = 'public.plants'::regclass AND NOT tgisinternal`)
	if err != nil {
		return nil, err
	}
	triggers := make(map[string]madeTrigger)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[madeTrigger])
	for _, t := range list {
		triggers[t.Name] = t
	}
	return triggers, err
}

// parents finds the tables that plants is a child of. What leaves through a
// parent fires no statement trigger of the child.
func parents(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	rows, err := tx.Query(ctx, `
		SELECT 'plants is a child of ' || parent || ': plants deleted through it leave without a record',
			CASE WHEN c.relispartition THEN format('ALTER TABLE %s DETACH PARTITION public.plants;', parent)
			ELSE format('ALTER TABLE public.plants NO INHERIT %s;', parent) END
		FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid, LATERAL (SELECT inhparent::regclass::text AS parent) p
		WHERE c.oid = 'public.plants'::regclass`)
	if err != nil {
		return nil, err
	}
	return collect(rows, Problem)
}
