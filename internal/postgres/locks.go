package postgres

import (
	"context"
	"maps"
	"sync"
	"time"
)

// keyed is a set of mutexes, one for each key, first come, first served.
type keyed[K comparable] struct {
	mu      sync.Mutex
	waiters map[K][]chan struct{} // of keys that are locked
}

// lock waits for the mutex of a key. It returns false if ctx ends first.
func (l *keyed[K]) lock(ctx context.Context, key K) bool {
	l.mu.Lock()
	queue, locked := l.waiters[key]
	if !locked {
		if l.waiters == nil {
			l.waiters = make(map[K][]chan struct{})
		}
		l.waiters[key] = nil
		l.mu.Unlock()
		return true
	}
	turn := make(chan struct{})
	l.waiters[key] = append(queue, turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return true
	case <-ctx.Done():
	}
	l.mu.Lock()
	for i, w := range l.waiters[key] {
		if w == turn {
			queue := l.waiters[key]
			l.waiters[key] = append(queue[:i:i], queue[i+1:]...)
			l.mu.Unlock()
			return false
		}
	}
	l.mu.Unlock()
	l.unlock(key) // it was our turn already
	return false
}

func (l *keyed[K]) unlock(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	queue := l.waiters[key]
	if len(queue) == 0 {
		delete(l.waiters, key)
		return
	}
	close(queue[0])
	l.waiters[key] = queue[1:]
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

// maxRecent limits how many keys are remembered. What is not remembered is learned again.
const maxRecent = 10_000

// add remembers a value until a time, or until the key's earlier value ends if that is later.
// It returns the key's earlier value, which may have ended.
func (r *recent[K, V]) add(key K, value V, until time.Time) (last V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.values == nil {
		r.values = make(map[K]timed[V])
	}
	if len(r.values) >= maxRecent {
		now := time.Now()
		maps.DeleteFunc(r.values, func(_ K, v timed[V]) bool { return !now.Before(v.until) })
	}
	old := r.values[key]
	if until.Before(old.until) {
		until = old.until
	}
	if len(r.values) < maxRecent {
		r.values[key] = timed[V]{value, until}
	}
	return old.value
}

func (r *recent[K, V]) get(key K) (value V, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.values) == 0 {
		return value, false
	}
	v, ok := r.values[key]
	return v.value, ok && time.Now().Before(v.until)
}

const (
	firstPause = 10 * time.Millisecond
	maxPause   = 500 * time.Millisecond
)

// sleep waits for a pause, which it doubles. It returns false at once if ctx would end with
// less than margin left after it.
func sleep(ctx context.Context, pause *time.Duration, margin time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < *pause+margin {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(*pause):
		*pause = min(2**pause, maxPause)
		return true
	}
}
