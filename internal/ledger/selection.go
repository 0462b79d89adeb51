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
	ids := s.IDs
	switch {
	case len(s.Plants) > 0:
		var newest map[int64]int64
		newest, err = r.newest(ctx, s.Plants, "restored_at IS NULL")
		ids = slices.Clone(ids)
		for _, plant := range s.Plants {
			if id, ok := newest[plant]; ok {
				ids = append(ids, id)
			} else if err == nil {
				r.refuse("", "plant %d: the ledger has no deletion of it left to restore", plant)
			}
		}
	case len(ids) == 0:
		ids, deletedAgain, err = r.matching(ctx, s)
	}
	if err != nil {
		return nil, 0, err
	}
	rows, err := r.Query(ctx, `SELECT `+columns+`, `+noRow+`, `+name+`, 0 FROM plantstore.deletions WHERE id = ANY ($1) ORDER BY id FOR UPDATE`, ids)
	found, plants := make(map[int64]bool), make(map[int64]int64)
	err = each(rows, err, func(d Deletion) error {
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

// newest returns the newest deletion of each plant, by plant.
func (r *restore) newest(ctx context.Context, plants []int64, condition string) (map[int64]int64, error) {
	rows, _ := r.Query(ctx, `SELECT plant_id, max(id) FROM plantstore.deletions WHERE plant_id = ANY ($1) AND refused IS NULL AND `+condition+` GROUP BY plant_id`, plants)
	newest := make(map[int64]int64)
	var plant, id int64
	_, err := pgx.ForEachRow(rows, []any{&plant, &id}, func() error { newest[plant] = id; return nil })
	return newest, err
}

// matching returns what the criteria select. It leaves out plants that came back and were
// deleted again later, by anybody.
func (r *restore) matching(ctx context.Context, s Selection) (ids []int64, deletedAgain int, err error) {
	where, args := Filter{By: s.By, ByRole: s.ByRole, Since: s.Since, Until: s.Until}.where()
	rows, _ := r.Query(ctx, `SELECT id, plant_id FROM plantstore.deletions WHERE restored_at IS NULL AND `+where, args...)
	var plants []int64
	var id, plant int64
	if _, err := pgx.ForEachRow(rows, []any{&id, &plant}, func() error {
		ids, plants = append(ids, id), append(plants, plant)
		return nil
	}); err != nil {
		return nil, 0, err
	}
	newest, err := r.newest(ctx, plants, "true")
	all := len(ids)
	at := -1
	ids = slices.DeleteFunc(ids, func(id int64) bool { at++; return newest[plants[at]] != id })
	return ids, all - len(ids), err
}

// leaveOutTaken moves entries whose ids are taken from Plants to Taken.
func (r *restore) leaveOutTaken(ctx context.Context, done *Restored) error {
	rows, _ := r.Query(ctx, `SELECT id FROM ONLY public.plants WHERE id = ANY ($1)`, plantsOf(done.Plants))
	taken := make(map[int64]bool)
	var id int64
	_, err := pgx.ForEachRow(rows, []any{&id}, func() error { taken[id] = true; return nil })
	done.Plants = slices.DeleteFunc(done.Plants, func(d Deletion) bool {
		if taken[d.PlantID] {
			done.Taken = append(done.Taken, d)
			if !r.options.SkipExisting {
				r.refuse(skipExisting, "%s: its id is taken", d)
			}
		}
		return taken[d.PlantID]
	})
	return err
}

func plantsOf(entries []Deletion) []int64 {
	ids := make([]int64, len(entries))
	for i, e := range entries {
		ids[i] = e.PlantID
	}
	return ids
}

func idsOf(entries []Deletion) []int64 {
	ids := make([]int64, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	return ids
}
