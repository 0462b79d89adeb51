package postgres

import (
	"context"
	"time"
)

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
