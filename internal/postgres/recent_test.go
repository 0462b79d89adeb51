package postgres

import (
	"testing"
	"testing/synctest"
	"time"

	"plantstore/internal/plant"
)

// Plants and principals go without batches for a time after they harmed one.
func TestHarmfulPlantsAndPrincipalsLeaveBatches(t *testing.T) {
	t.Parallel()
	type step struct {
		plant plant.ID // 0: one that nobody asked for yet
		times int
		meaning
		wait time.Duration
	}
	a := func(plant plant.ID, times int, m meaning) step { return step{plant: plant, times: times, meaning: m} }
	for _, test := range []struct {
		name                 string
		steps                []step // of principal a
		same, next, afterOne route  // of the first step's plant; of another one of a, at once and a second later
	}{
		{"a locked plant", []step{a(1, 1, busy)}, onSoloPool, onBatchPool, inBatch},
		{"a locked plant, retried", []step{a(1, 1, busy), {wait: defaults.outOfBatches}, a(1, 1, busy)}, onSoloPool, inBatch, inBatch},
		{"a refused plant", []step{a(1, 1, referenced)}, onBatchPool, inBatch, inBatch},
		{"one refused plant, retried", []step{a(1, 20, storeRule)}, onBatchPool, inBatch, inBatch},
		{"one in a hundred refused", []step{a(0, 99, deleted), a(0, 1, referenced), a(0, 99, deleted), a(0, 1, referenced)}, inBatch, inBatch, inBatch},
		{"three of eight refused", []step{a(0, 3, conflict), a(0, 5, deleted)}, onBatchPool, inBatch, inBatch},
		{"four of eight refused", []step{a(0, 4, conflict), a(0, 4, missing)}, onBatchPool, onBatchPool, onBatchPool},
		{"four of nine refused", []step{a(0, 4, conflict), a(0, 5, deleted)}, onBatchPool, inBatch, inBatch},
		{"four refused, and one of them gone since", []step{a(1, 1, conflict), a(0, 3, conflict), a(1, 8, missing)}, onBatchPool, onBatchPool, onBatchPool},
		{"slow batches", []step{a(1, 20, batchBusy)}, inBatch, inBatch, inBatch},
		{"lost connections", []step{a(0, 20, lost)}, inBatch, inBatch, inBatch},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := memory{limits: &defaults}
				ids := plant.ID(100)
				first := ids
				for n, s := range test.steps {
					for range s.times {
						d := plant.Deletion{Plant: s.plant, Principal: "a"}
						if s.plant == 0 {
							d.Plant, ids = ids, ids+1
						}
						if n == 0 {
							first = d.Plant
						}
						m.note(&d, s.meaning)
					}
					time.Sleep(s.wait)
				}
				check := func(what string, id plant.ID, principal string, want route) {
					t.Helper()
					if got := m.route(&plant.Deletion{Plant: id, Principal: principal}); got != want {
						t.Errorf("%s takes route %d; want %d", what, got, want)
					}
				}
				check("the same plant", first, "a", test.same)
				check("another plant of the principal", ids, "a", test.next)
				check("the same plant, of another principal", first, "b", test.same)
				check("another plant of another principal", ids, "b", inBatch)
				time.Sleep(defaults.outOfBatches)
				check("another plant of the principal, a second later", ids, "a", test.afterOne)
				time.Sleep(defaults.remember - defaults.outOfBatches - 1)
				check("the same plant at last", first, "a", test.same)
				time.Sleep(time.Nanosecond)
				check("the same plant afterwards", first, "a", inBatch)
				check("another plant of the principal afterwards", ids, "a", inBatch)
			})
		})
	}
}

func TestRecentValuesExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r recent[int, string]
		check := func(want string) { // "": none
			t.Helper()
			if got, ok := r.get(1); ok != (want != "") || ok && got != want {
				t.Errorf("get = %q, %t; want %q", got, ok, want)
			}
		}
		check("")
		r.add(1, "a", time.Now().Add(time.Minute))
		r.add(1, "b", time.Now().Add(time.Second))
		time.Sleep(time.Minute - 1)
		check("b") // for as long as a
		time.Sleep(time.Nanosecond)
		check("")
		r.change(1, time.Now().Add(time.Minute), func(old string) string { return old + "c" })
		check("c") // b is over
		for n := range 2 * maxRecent {
			r.add(n, "many", time.Now().Add(time.Minute))
		}
		if n := len(r.values); n > maxRecent {
			t.Errorf("%d are remembered; want %d at most", n, maxRecent)
		}
	})
}
