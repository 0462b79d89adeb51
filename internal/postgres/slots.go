package postgres

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"
)

// slots counts the connections that a principal has outside of batches, in each pool. Each
// may have a third of a pool, but at least two.
type slots struct {
	mu    sync.Mutex
	taken map[slotKey]*slot
}

type slotKey struct {
	pool      *pgxpool.Pool
	principal string
}

type slot struct {
	*semaphore.Weighted
	users int // that have one or wait for one
}

// acquire takes a connection of a pool that other principals need, too.
func (s *slots) acquire(ctx context.Context, pool *pgxpool.Pool, principal string) (conn *pgx.Conn, release func(), err error) {
	key := slotKey{pool, principal}
	if err := s.take(ctx, key, max(2, int64(pool.Config().MaxConns)/3)); err != nil {
		return nil, nil, err
	}
	c, err := pool.Acquire(ctx)
	if err != nil {
		s.give(key, 1)
		return nil, nil, err
	}
	return c.Conn(), func() {
		c.Release()
		s.give(key, 1)
	}, nil
}

func (s *slots) take(ctx context.Context, key slotKey, most int64) error {
	s.mu.Lock()
	if s.taken == nil {
		s.taken = make(map[slotKey]*slot)
	}
	if s.taken[key] == nil {
		s.taken[key] = &slot{Weighted: semaphore.NewWeighted(most)}
	}
	s.taken[key].users++
	slot := s.taken[key]
	s.mu.Unlock()
	err := slot.Acquire(ctx, 1)
	if err != nil {
		s.give(key, 0)
	}
	return err
}

// give returns n slots of one user.
func (s *slots) give(key slotKey, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := s.taken[key]
	slot.Release(n)
	if slot.users--; slot.users == 0 {
		delete(s.taken, key)
	}
}
