package ledger

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Selection names the deletions to undo: by their ids, by their plants (the newest
// deletion of each that is not undone), or all that the criteria select.
type Selection struct {
	IDs, Plants  []int64
	By, ByRole   string
	Since, Until time.Time
}

// lockEntries locks the selected entries, in the order of their ids, so that two restores
// never deadlock. It refuses those that can't be undone.
func (r *restore) lockEntries(ctx context.Context, s Selection) (entries []Deletion, deletedAgain int, err error) {
	ids, deletedAgain, err := r.selected(ctx, s)
	if err != nil {
		return nil, 0, err
	}
	rows, _ := r.Query(ctx, `SELECT `+columns+`, `+noRow+`, 0, `+name+` FROM plantstore.deletions WHERE id = ANY ($1) ORDER BY id FOR UPDATE`, ids)
	found, plants := make(map[int64]bool), make(map[int64]int64)
	err = each(rows, func(d Deletion) error {
		found[d.ID] = true
		switch other, twice := plants[d.PlantID]; {
		case d.Refused != nil:
			r.refuse("", "entry %d is a refusal: nothing was deleted", d.ID)
		case d.RestoredAt != nil:
			r.refuse("", "%s was restored by %s at %s", d, printable(*d.RestoredBy), d.RestoredAt.Format(time.RFC3339))
		case twice:
			r.refuse("", "deletions %d and %d are of the same plant %d: restore one of them", other, d.ID, d.PlantID)
		default:
			plants[d.PlantID] = d.ID
			entries = append(entries, d)
		}
		return nil
	})
	for _, id := range ids {
		if !found[id] {
			r.refuse("", "there is no deletion %d in the ledger", id)
		}
	}
	return entries, deletedAgain, cmp.Or(err, r.refused())
}

// selected returns the ids of a selection. Criteria leave out plants that came back and were
// deleted again later, by anybody.
func (r *restore) selected(ctx context.Context, s Selection) (ids []int64, deletedAgain int, err error) {
	ids = slices.Clone(s.IDs)
	if len(s.IDs)+len(s.Plants) > 0 {
		rows, _ := r.Query(ctx, `SELECT p.id, (SELECT max(d.id) FROM plantstore.deletions d WHERE d.plant_id = p.id AND d.refused IS NULL AND d.restored_at IS NULL)
			FROM unnest($1::bigint[]) WITH ORDINALITY p (id, n) ORDER BY p.n`, s.Plants)
		var plant int64
		var newest *int64
		_, err = pgx.ForEachRow(rows, []any{&plant, &newest}, func() error {
			if newest == nil {
				r.refuse("", "plant %d: the ledger has no deletion of it left to restore", plant)
			} else {
				ids = append(ids, *newest)
			}
			return nil
		})
		return ids, 0, err
	}
	rows, _ := r.Query(ctx, `SELECT d.id, EXISTS (SELECT FROM plantstore.deletions n WHERE n.plant_id = d.plant_id AND n.refused IS NULL AND n.id > d.id)
		FROM plantstore.deletions d WHERE restored_at IS NULL AND `+selects, Filter{By: s.By, ByRole: s.ByRole, Since: s.Since, Until: s.Until}.arguments()...)
	var id int64
	var again bool
	_, err = pgx.ForEachRow(rows, []any{&id, &again}, func() error {
		if again {
			deletedAgain++
		} else {
			ids = append(ids, id)
		}
		return nil
	})
	return ids, deletedAgain, err
}

// leaveOutTaken moves entries whose ids are taken from Plants to Taken.
func (r *restore) leaveOutTaken(ctx context.Context, done *Restored) error {
	rows, _ := r.Query(ctx, `SELECT d.id FROM plantstore.deletions d JOIN ONLY public.plants p ON p.id = d.plant_id WHERE d.id = ANY ($1)`, idsOf(done.Plants))
	taken := make(map[int64]bool)
	var id int64
	_, err := pgx.ForEachRow(rows, []any{&id}, func() error { taken[id] = true; return nil })
	done.Plants = slices.DeleteFunc(done.Plants, func(d Deletion) bool {
		if taken[d.ID] {
			done.Taken = append(done.Taken, d)
			if !r.options.SkipExisting {
				r.refuse(skipExisting, "%s: its id is taken", d)
			}
		}
		return taken[d.ID]
	})
	return err
}

func idsOf(entries []Deletion) []int64 {
	ids := make([]int64, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	return ids
}
