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
//
// A no is for all requests of one principal and key that stand in line when it is told: it
// never comes true that what the client was told no of is deleted by one of them.
type lines struct {
	mu   sync.Mutex
	open map[plant.ID]*line
}

type line struct {
	turn  chan struct{} // has an element while somebody is at the head
	stand int           // how many stand in line, the head included
	came  int           // how many ever came
	noes  map[name]no
}

// A name is what requests for a plant have in common that are one deletion.
type name struct{ principal, key string }

// A no was told when so many had come to its line.
type no struct {
	err  error
	came int
}

// enter waits until its caller is at the head of a plant's line, who then has to
// leave it. It returns the no that a request of its deletion was told meanwhile, if any, or ctx's
// error if ctx ends before: then its caller has left.
func (l *lines) enter(ctx context.Context, d plant.Deletion) (told, err error) {
	l.mu.Lock()
	if l.open == nil {
		l.open = make(map[plant.ID]*line)
	}
	own := l.open[d.Plant]
	if own == nil {
		own = &line{turn: make(chan struct{}, 1)}
		l.open[d.Plant] = own
	}
	own.stand++
	own.came++
	number := own.came
	l.mu.Unlock()
	select {
	case own.turn <- struct{}{}: // first come, first served
		l.mu.Lock()
		defer l.mu.Unlock()
		if n := own.noes[name{d.Principal, d.Key}]; n.came >= number {
			return n.err, nil
		}
		return nil, nil
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		l.step(d.Plant, own)
		return nil, ctx.Err()
	}
}

// leave gives the head of a plant's line to the next. told is what the deletion ended with.
func (l *lines) leave(d plant.Deletion, told error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.open[d.Plant]
	if own.stand > 1 && d.KeySent && isDefinite(told) {
		if own.noes == nil {
			own.noes = make(map[name]no)
		}
		own.noes[name{d.Principal, d.Key}] = no{told, own.came}
	}
	<-own.turn
	l.step(d.Plant, own)
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
