package migrate

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// interrupted finds out how a migration stands after its run was cut short.
func (r *runner) interrupted(ctx context.Context, m Migration, cause error) error {
	e := &InterruptedError{Name: m.Name, State: Undecided, Err: cause}
	if ctx.Err() != nil {
		e.Err = ctx.Err()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, r.config)
	if err != nil {
		return e
	}
	defer conn.Close(ctx)
	// Once the lock can be had, the server is done with what we sent before.
	if err := waitForLock(ctx, conn, func(Event) {}); err != nil {
		return e
	}
	c, err := r.set.inspect(ctx, conn)
	if err != nil {
		return e
	}
	applied := false
	for _, a := range c.applied {
		applied = applied || a.Version == m.Version
	}
	if applied == r.up {
		e.State = Complete
		return e
	}
	e.State = Untouched
	if script, err := r.set.script(ctx, m); err != nil || !script.transaction {
		e.State = Incomplete
	}
	return e
}
