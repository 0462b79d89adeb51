package migrate

import (
	"context"
	"fmt"
)

// Up applies every pending migration and returns those it applied, also when a
// later one failed.
func (s Set) Up(ctx context.Context, databaseURL string, o Options) ([]Change, error) {
	return s.change(ctx, databaseURL, o, true, func(r *runner, c condition) ([]Migration, error) {
		for _, t := range c.trouble {
			if t.Kind == OutOfOrder {
				return nil, fmt.Errorf("%s. %s", t.Message, t.Remedy)
			}
			r.notify(Event{Kind: Warned, Warning: t.Message + ". " + t.Remedy})
		}
		return c.pending, nil
	})
}
