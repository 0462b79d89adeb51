package postgres

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"plantstore/internal/plant"
)

// lines has one for each plant that is asked for: requests for one plant are tried
// one after another. Who waits in line holds nothing that others wait for.
//
// A no is for all requests of one principal and key that stand in line: none of them deletes
// what that client was told no of. Who came before the attempt began that brought the no is
// told the same. Who came since may have mended what was in the way, and is told to try again.
type lines struct {
	mu   sync.Mutex
	open map[plant.ID]*line
}

type line struct {
	turn   chan struct{} // has an element while somebody is at the head
	stand  int           // how many stand in line, the head included
	behind map[deletionName]*sameDeletion
	heads  []*sameDeletion // those of the head's, from before its last attempt
}

// A deletionName is what requests for a plant have in common that are one deletion.
type deletionName struct{ principal, key string }

// A sameDeletion is the requests of one deletion that stand behind the head, and came between
// the same two of its attempts.
type sameDeletion struct {
	stand int
	told  error
}

// enter waits until its caller is at the head of a plant's line, who then has to
// leave it. It returns the no that is for its deletion, too, if any, or ctx's error if ctx ends
// before: then its caller has left.
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
	if own.stand == 1 {
		own.turn <- struct{}{} // nobody has it
		l.mu.Unlock()
		return nil, nil
	}
	others := own.join(d)
	l.mu.Unlock()
	select {
	case own.turn <- struct{}{}: // first come, first served
	case <-ctx.Done():
		err = ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	own.part(d, others)
	if err != nil {
		l.step(d.Plant, own)
		return nil, err
	}
	return others.told, nil
}

// begin tells that the head begins an attempt.
func (l *lines) begin(d plant.Deletion) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.open[d.Plant]
	name := deletionName{d.Principal, d.Key}
	if others := own.behind[name]; others != nil {
		own.heads = append(own.heads, others)
		delete(own.behind, name)
	}
}

// leave gives the head of a plant's line to the next. no is what the deletion ended with, if
// that is one.
func (l *lines) leave(d plant.Deletion, no error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.open[d.Plant]
	if d.KeySent && isDefinite(no) {
		for _, others := range own.heads {
			others.told = no
		}
		name := deletionName{d.Principal, d.Key}
		if others := own.behind[name]; others != nil {
			others.told = errMeanwhile
			delete(own.behind, name)
		}
	}
	own.heads = nil
	<-own.turn
	l.step(d.Plant, own)
}

// join adds a request to those of its deletion. It is called with mu held.
func (own *line) join(d plant.Deletion) *sameDeletion {
	if own.behind == nil {
		own.behind = make(map[deletionName]*sameDeletion)
	}
	name := deletionName{d.Principal, d.Key}
	if own.behind[name] == nil {
		own.behind[name] = new(sameDeletion)
	}
	own.behind[name].stand++
	return own.behind[name]
}

// part takes one away. It is called with mu held.
func (own *line) part(d plant.Deletion, others *sameDeletion) {
	name := deletionName{d.Principal, d.Key}
	if others.stand--; others.stand == 0 && own.behind[name] == others {
		delete(own.behind, name)
	}
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
	what      purpose
	least     time.Duration // see verdict
	slowSince time.Time     // when it was first seen to be slow: where it stands among those
	until     time.Time
}

func newMemory() memory {
	cache, err := lru.New[plant.ID, difficulty](remembered)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return memory{cache}
}

// recall returns what a deletion of the plant is tried as first.
func (m memory) recall(id plant.ID) difficulty {
	d, ok := m.cache.Get(id)
	if ok && time.Now().After(d.until) {
		m.cache.Remove(id)
		ok = false
	}
	if !ok {
		return difficulty{what: together}
	}
	return d
}

// note remembers what a verdict tells of a plant.
func (m memory) note(id plant.ID, v verdict) {
	switch {
	case v.next == alone, v.next == done && refused(v.err), v.what == slow:
		now, known := time.Now(), m.recall(id)
		if v.what == slow && known.slowSince.IsZero() {
			known.slowSince = now
		}
		m.cache.Add(id, difficulty{max(retried, v.what), max(v.least, known.least), known.slowSince, now.Add(rememberFor)})
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

// seniority lets so many in at a time. Of those who wait, whoever has the earliest since is next.
type seniority struct {
	mu      sync.Mutex
	free    int
	waiting []*waiter
}

type waiter struct {
	since time.Time
	let   chan struct{} // closed when it is let in
}

// enter waits until its caller is let in, who then has to leave; or until ctx ends.
func (q *seniority) enter(ctx context.Context, since time.Time) error {
	w := &waiter{since, make(chan struct{})}
	q.mu.Lock()
	at, _ := slices.BinarySearchFunc(q.waiting, since, func(other *waiter, since time.Time) int {
		if other.since.After(since) {
			return 1
		}
		return -1 // behind those of the same time
	})
	q.waiting = slices.Insert(q.waiting, at, w)
	q.let()
	q.mu.Unlock()
	select {
	case <-w.let:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if at := slices.Index(q.waiting, w); at >= 0 {
		q.waiting = slices.Delete(q.waiting, at, at+1)
	} else { // it was let in meanwhile
		q.free++
		q.let()
	}
	return ctx.Err()
}

func (q *seniority) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free++
	q.let()
}

// let lets in who is next, if there is room. It is called with mu held.
func (q *seniority) let() {
	for q.free > 0 && len(q.waiting) > 0 {
		q.free--
		close(q.waiting[0].let)
		q.waiting = slices.Delete(q.waiting, 0, 1)
	}
}

// wanted reports whether somebody waits.
func (q *seniority) wanted() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting) > 0
}
