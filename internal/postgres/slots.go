package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/plant"
)

// acquire takes a connection of a pool that other principals need, too: each may have a
// third, but at least two.
func (p *Plants) acquire(ctx context.Context, pool *pgxpool.Pool, d *plant.Deletion) (conn *pgx.Conn, release func(), err error) {
	slot := p.slot(pool, d)
	if !p.slots.lock(ctx, slot) {
		return nil, nil, ctx.Err()
	}
	c, err := pool.Acquire(ctx)
	if err != nil {
		p.slots.unlock(slot)
		return nil, nil, err
	}
	return c.Conn(), func() {
		c.Release()
		p.slots.unlock(slot)
	}, nil
}

// A slot is one of the connections of a pool that a principal may have at a time.
type slot struct {
	pool      *pgxpool.Pool
	principal string
	number    uint64
}

func (p *Plants) slot(pool *pgxpool.Pool, d *plant.Deletion) slot {
	return slot{pool, d.Principal, uint64(d.Plant) % p.quotas[pool]}
}
