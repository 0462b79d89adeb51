package postgres

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"
)

// slots are semaphores, one for each key that is in use, first come, first served.
type slots[K comparable] struct {
	number func(K) int64 // how many slots a key has; nil: one
	mu     sync.Mutex
	inUse  map[K]*slot
}

type slot struct {
	*semaphore.Weighted
	users int // requests that have a slot or wait for one
}

// take waits for one of a key's slots.
func (s *slots[K]) take(ctx context.Context, key K) error {
	s.mu.Lock()
	if s.inUse == nil {
		s.inUse = make(map[K]*slot)
	}
	if s.inUse[key] == nil {
		number := int64(1)
		if s.number != nil {
			number = s.number(key)
		}
		s.inUse[key] = &slot{Weighted: semaphore.NewWeighted(number)}
	}
	slot := s.inUse[key]
	slot.users++
	s.mu.Unlock()
	err := slot.Acquire(ctx, 1)
	if err != nil {
		s.leave(key, 0)
	}
	return err
}

// give returns a slot.
func (s *slots[K]) give(key K) { s.leave(key, 1) }

func (s *slots[K]) leave(key K, taken int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := s.inUse[key]
	slot.Release(taken)
	if slot.users--; slot.users == 0 {
		delete(s.inUse, key)
	}
}

type connSlot struct {
	pool      *pgxpool.Pool
	principal string
}

// most is how many connections of a pool a principal may have: a third, or two where that is
// more, since others need them, too.
func (s connSlot) most() int64 { return max(2, int64(s.pool.Stat().MaxConns())/3) }

// acquire takes a connection of a pool for a principal. It waits while the principal has as many
// as it may have.
func (db *DB) acquire(ctx context.Context, pool *pgxpool.Pool, principal string) (conn *pgx.Conn, release func(), err error) {
	key := connSlot{pool, principal}
	if err := db.conns.take(ctx, key); err != nil {
		return nil, nil, err
	}
	c, err := pool.Acquire(ctx)
	if err != nil {
		db.conns.give(key)
		return nil, nil, err
	}
	return c.Conn(), func() {
		c.Release()
		db.conns.give(key)
	}, nil
}
