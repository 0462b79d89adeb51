package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"plantstore/internal/plant"
)

// lines has one for each plant that is asked for: requests for one plant are tried
// one after another. Who waits in line holds nothing that others wait for.
type lines struct {
	mu   sync.Mutex
	open map[plant.ID]*line
}

type line struct {
	turn  chan struct{} // has an element while somebody is at the head
	stand int           // how many stand in line, the head included
}

// enter waits until its caller is at the head of a plant's line, who then has to
// leave it. It returns ctx's error if ctx ends before.
func (l *lines) enter(ctx context.Context, id plant.ID) error {
	l.mu.Lock()
	if l.open == nil {
		l.open = make(map[plant.ID]*line)
	}
	own := l.open[id]
	if own == nil {
		own = &line{turn: make(chan struct{}, 1)}
		l.open[id] = own
	}
	own.stand++
	l.mu.Unlock()
	select {
	case own.turn <- struct{}{}: // first come, first served
		return nil
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		l.step(id, own)
		return ctx.Err()
	}
}

// leave gives the head of a plant's line to the next.
func (l *lines) leave(id plant.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.open[id]
	<-own.turn
	l.step(id, own)
}

// step takes one out of a line, and a line without anybody away. It is called with
// mu held.
func (l *lines) step(id plant.ID, own *line) {
	if own.stand--; own.stand == 0 {
		delete(l.open, id)
	}
}

const (
	// rememberFor is how long a plant counts as difficult after it held somebody up.
	rememberFor = 30 * time.Second
	// remembered bounds the plants that are known as difficult.
	remembered = 4096
)

// A memory knows which plants were difficult a moment ago: refused, locked or slow.
// In a batch they would hold others up.
type memory struct {
	cache *lru.Cache[plant.ID, difficulty]
}

type difficulty struct {
	what  purpose
	until time.Time
}

func newMemory() memory {
	cache, err := lru.New[plant.ID, difficulty](remembered)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return memory{cache}
}

// recall returns what a deletion of the plant is tried as first.
func (m memory) recall(id plant.ID) purpose {
	d, ok := m.cache.Get(id)
	switch {
	case !ok:
		return together
	case time.Now().After(d.until):
		m.cache.Remove(id)
		return together
	}
	return d.what
}

// note remembers what a verdict tells of a plant.
func (m memory) note(id plant.ID, v verdict) {
	switch {
	case v.next == alone, v.next == done && refused(v.err):
		m.cache.Add(id, difficulty{max(retried, v.what), time.Now().Add(rememberFor)})
	case v.next == done && v.err == nil:
		m.cache.Remove(id)
	}
}

// refused reports whether a deletion ended because somebody or something refuses it,
// as it will the next time.
func refused(err error) bool {
	_, referenced := errors.AsType[*plant.ReferencedError](err)
	return referenced || errors.Is(err, plant.ErrStoreRule) || errors.Is(err, plant.ErrHindered)
}
