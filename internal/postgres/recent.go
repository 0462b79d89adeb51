package postgres

import (
	"math/bits"
	"sync"
	"time"

	"plantstore/internal/plant"
)

// A route is the pool and the transaction of an attempt: with a batch, or alone.
type route int

const (
	inBatch     route = iota
	onBatchPool       // in a transaction of its own, with a batch's limits
	onSoloPool        // in a transaction of its own, with time to wait for a lock or a slow trigger
)

// A memory has the plants and principals that would harm others' batches, for a short time.
type memory struct {
	plants     recent[plant.ID, route] // plants that were locked, slow or refused
	principals recent[string, conduct]
	limits     *limits
}

// A conduct has the results of a principal's last deletions.
type conduct struct {
	refused uint8     // of the last eight, a bit for each
	slow    time.Time // until then, one that was locked or slow keeps the principal out of batches
}

// route returns the route of a plant's next attempt.
func (m *memory) route(d *plant.Deletion) route {
	if r, ok := m.plants.get(d.Plant); ok {
		return r
	}
	if c, ok := m.principals.get(d.Principal); ok && (bits.OnesCount8(c.refused) >= 4 || time.Now().Before(c.slow)) {
		return onBatchPool
	}
	return inBatch
}

// note remembers the result of an attempt. A remembered plant goes alone and harms no batch, so
// its result does not count for its principal.
func (m *memory) note(d *plant.Deletion, result meaning) {
	now := time.Now()
	_, known := m.plants.get(d.Plant)
	switch effect := meanings[result].effect; {
	case effect == slows:
		m.plants.add(d.Plant, onSoloPool, now.Add(m.limits.remember))
		if !known {
			m.slow(d.Principal)
		}
	case effect == rollsBack:
		if !known {
			m.principals.change(d.Principal, now.Add(m.limits.remember), func(c conduct) conduct { return conduct{c.refused<<1 | 1, c.slow} })
		}
		m.plants.add(d.Plant, onBatchPool, now.Add(m.limits.remember))
	case !known && (result == deleted || result == missing):
		if _, ok := m.principals.get(d.Principal); ok {
			m.principals.change(d.Principal, now, func(c conduct) conduct { return conduct{c.refused << 1, c.slow} })
		}
	}
}

// slow remembers a principal whose deletion was locked or slow.
func (m *memory) slow(principal string) {
	until := time.Now().Add(m.limits.outOfBatches)
	m.principals.change(principal, until, func(c conduct) conduct { return conduct{c.refused, until} })
}

// recent remembers values by their keys until their time is over.
type recent[K comparable, V any] struct {
	mu     sync.Mutex
	values map[K]timed[V]
}

type timed[V any] struct {
	value V
	until time.Time
}

// maxRecent limits how many keys are remembered, with those whose time is over. When there are
// more, all are forgotten. A key is added again after its next failure.
const maxRecent = 10_000

// add remembers a value until a time, or until the key's earlier value ends if that is later.
func (r *recent[K, V]) add(key K, value V, until time.Time) {
	r.change(key, until, func(V) V { return value })
}

// change is like add. change makes the new value from the remembered one.
func (r *recent[K, V]) change(key K, until time.Time, change func(V) V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.values == nil || len(r.values) >= maxRecent {
		r.values = make(map[K]timed[V])
	}
	var old timed[V]
	if v := r.values[key]; time.Now().Before(v.until) {
		old = v
	}
	if until.Before(old.until) {
		until = old.until
	}
	r.values[key] = timed[V]{change(old.value), until}
}

func (r *recent[K, V]) get(key K) (value V, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.values[key]
	return v.value, ok && time.Now().Before(v.until)
}
