package migrate

import (
	"context"
	"fmt"
	"slices"
)

// Down takes the newest migration back. A database without any is left alone.
func (s Set) Down(ctx context.Context, databaseURL string, o Options) ([]Change, error) {
	return s.down(ctx, databaseURL, o, func(applied []Migration) []Migration {
		return applied[max(0, len(applied)-1):]
	})
}

// DownTo takes back every migration newer than version, the one that was applied last first.
func (s Set) DownTo(ctx context.Context, databaseURL string, version int64, o Options) ([]Change, error) {
	return s.down(ctx, databaseURL, o, func(applied []Migration) []Migration {
		return slices.DeleteFunc(applied, func(m Migration) bool { return m.Version <= version })
	})
}

func (s Set) down(ctx context.Context, databaseURL string, o Options, pick func(applied []Migration) []Migration) ([]Change, error) {
	return s.change(ctx, databaseURL, o, false, func(_ *runner, c condition) ([]Migration, error) {
		work := pick(slices.Clone(c.applied))
		slices.Reverse(work)
		for _, m := range work {
			for _, state := range c.states {
				if state.Unknown && state.Version == m.Version {
					return nil, fmt.Errorf("migration %s is not part of this plantstore: take it back with the release that has it", m.Name)
				}
			}
		}
		return work, nil
	})
}
