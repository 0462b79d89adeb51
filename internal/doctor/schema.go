package doctor

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/migrate"
	"plantstore/internal/postgres"
)

// schema tells what is wrong with the migrations.
func (e *examination) schema(ctx context.Context, tx pgx.Tx) ([]Finding, error) {
	states, troubles, err := migrate.Service().StatusIn(ctx, tx)
	if foreign, ok := errors.AsType[*migrate.ForeignHistoryError](err); ok {
		return []Finding{{Grade: Problem, Message: foreign.Why, Remedy: foreign.Remedy}}, nil
	}
	if err != nil {
		return []Finding{{Grade: Problem, Message: "the migrations can't be read: " + postgres.Explain(err),
			Remedy: "Connect as the owner, see PLANTSTORE_MIGRATE_DATABASE_URL."}}, nil
	}
	var found []Finding
	var pending []string
	for _, s := range states {
		if s.AppliedAt.IsZero() {
			pending = append(pending, s.Name)
		}
	}
	if len(pending) > 0 {
		found = append(found, Finding{Grade: Problem,
			Message: "not applied, the service stays unready: " + strings.Join(pending, ", "), Remedy: "plantstore migrate up"})
	}
	for _, t := range troubles {
		grade := Problem
		if t.Kind == migrate.Ahead || t.Kind == migrate.InvalidIndex {
			grade = Warning
		}
		found = append(found, Finding{Grade: grade, Message: t.Message, Remedy: t.Remedy})
	}
	missing, err := hindrancesNow(ctx, tx, "schema", false)
	if err != nil {
		return nil, err
	}
	found = append(found, missing...)
	return orFine(found, "at version %d, as it was shipped", migrate.Latest()), nil
}
