package postgres

import (
	"context"
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
