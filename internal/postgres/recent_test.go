package postgres

import (
	"testing"
	"testing/synctest"
	"time"

	"plantstore/internal/plant"
)

// Plants and principals keep out of batches for as long as they would harm others there.
func TestWhoKeepsOutOfBatches(t *testing.T) {
	t.Parallel()
	type step struct {
		plant plant.ID // 0: one that nobody asked for yet
		times int
		meaning
	}
	for _, test := range []struct {
		name             string
		steps            []step // of principal a
		same, next       route  // of the first step's plant, of another one of a
		afterOne, toLast route  // of another plant of a, a second later; of the same plant just before it is forgotten
	}{
		{"a locked plant", []step{{1, 1, busy}}, onSoloPool, onBatchPool, inBatch, onSoloPool},
		{"a refused plant", []step{{1, 1, referenced}}, onBatchPool, inBatch, inBatch, onBatchPool},
		{"one refused plant, retried", []step{{1, 20, storeRule}}, onBatchPool, inBatch, inBatch, onBatchPool},
		{"one in a hundred refused", []step{{0, 99, deleted}, {0, 1, referenced}, {0, 99, deleted}, {0, 1, referenced}}, inBatch, inBatch, inBatch, inBatch},
		{"three of eight refused", []step{{0, 3, conflict}, {0, 5, deleted}}, onBatchPool, inBatch, inBatch, onBatchPool},
		{"four of eight refused", []step{{0, 4, conflict}, {0, 4, missing}}, onBatchPool, onBatchPool, onBatchPool, onBatchPool},
		{"four of nine refused", []step{{0, 4, conflict}, {0, 5, deleted}}, onBatchPool, inBatch, inBatch, onBatchPool},
		{"lost connections", []step{{0, 20, lost}}, inBatch, inBatch, inBatch, inBatch},
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
				check("the same plant at last", first, "a", test.toLast)
				time.Sleep(time.Nanosecond)
				check("the same plant afterwards", first, "a", inBatch)
				check("another plant of the principal afterwards", ids, "a", inBatch)
			})
		})
	}
}

// A plant that is remembered harms no batch. Nothing that becomes of it changes what is known of
// its principal.
func TestARememberedPlantSaysNothingOfItsPrincipal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memory{limits: &defaults}
		locked, other := plant.Deletion{Plant: 1, Principal: "a"}, plant.Deletion{Plant: 2, Principal: "a"}
		m.note(&locked, busy)
		time.Sleep(defaults.outOfBatches)
		m.note(&locked, busy)
		if got := m.route(&other); got != inBatch {
			t.Errorf("another plant takes route %d a second after the first of two waits; want %d", got, inBatch)
		}
		for n := range plant.ID(4) {
			m.note(&plant.Deletion{Plant: 3 + n, Principal: "a"}, conflict)
		}
		for range 8 {
			m.note(&locked, missing)
		}
		if got := m.route(&other); got != onBatchPool {
			t.Errorf("another plant takes route %d after four refusals of others; want %d", got, onBatchPool)
		}
	})
}

func TestRecent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r recent[int, string]
		in := func(d time.Duration) time.Time { return time.Now().Add(d) }
		check := func(key int, want string, wantOK bool) {
			t.Helper()
			if got, ok := r.get(key); ok != wantOK || ok && got != want {
				t.Errorf("get(%d) = %q, %t; want %q, %t", key, got, ok, want, wantOK)
			}
		}
		check(1, "", false)
		if last := r.add(1, "a", in(time.Minute)); last != "" {
			t.Errorf("the last value is %q; want none", last)
		}
		if last := r.add(1, "b", in(time.Second)); last != "a" {
			t.Errorf("the last value is %q; want a", last)
		}
		time.Sleep(time.Minute - 1)
		check(1, "b", true)
		time.Sleep(time.Nanosecond)
		check(1, "", false)
		if last := r.add(1, "c", in(time.Minute)); last != "b" {
			t.Errorf("the last value is %q; want b, though its time is over", last)
		}
		for n := range maxRecent + 1 {
			r.add(n+10, "many", in(time.Second/2))
		}
		check(1, "c", true)
		check(maxRecent+9, "", false) // there was no room
		r.add(1, "changed", in(time.Minute))
		check(1, "changed", true)
		time.Sleep(time.Second - 1)
		r.add(maxRecent+9, "too early", in(time.Minute)) // nothing is removed twice in a second
		check(maxRecent+9, "", false)
		time.Sleep(time.Nanosecond)
		r.add(2, "d", in(time.Minute))
		check(2, "d", true)
		if len(r.values) != 2 {
			t.Errorf("%d are kept; want 2", len(r.values))
		}
	})
}
