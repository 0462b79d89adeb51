package migrate

import "context"

// StatementsOf returns what goose sends for the Up of a migration, and whether it
// does so in a transaction.
func StatementsOf(ctx context.Context, m Migration) ([]string, bool, error) {
	s, err := Service().script(ctx, m)
	if err != nil {
		return nil, false, err
	}
	return s.statements, s.transaction, nil
}

func Effects() map[int64][]Effect { return effects() }

func ModeName(mode string) string { return modeName(mode) }

func OneLine(s string) string { return oneLine(s) }
