package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
)

// A sighting is what a run was seen waiting for.
type sighting struct {
	Lock     string
	Blockers []Blocker
}

// watch tells, until stop, who is in the way of the run. What it saw last is
// stop's result. Where it can't look, it says nothing.
func (r *runner) watch(ctx context.Context, event Event) (stop func() sighting) {
	quit := make(chan struct{})
	result := make(chan sighting, 1)
	every := min(100*time.Millisecond, r.options.LockTimeout/4)
	go func() {
		var last sighting
		var told string
		for {
			select {
			case <-quit:
				result <- last
				return
			case <-time.After(every):
			}
			seen, err := r.look(ctx)
			if err != nil || len(seen.Blockers) == 0 {
				continue
			}
			last = seen
			who := seen.Lock
			for _, b := range seen.Blockers {
				who += fmt.Sprint(" ", b.PID)
			}
			if who != told {
				told = who
				blocked := event
				blocked.Kind, blocked.Lock, blocked.Blockers = Blocked, seen.Lock, seen.Blockers
				r.notify(blocked)
			}
		}
	}()
	return func() sighting { close(quit); return <-result }
}

// look sees what the run waits for, and who is in the way. Both, or nothing.
func (r *runner) look(ctx context.Context) (seen sighting, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := r.openObserver(ctx); err != nil {
		return seen, err
	}
	if seen.Blockers, err = blockers(ctx, r.observer, `SELECT unnest(pg_blocking_pids($1))`, r.pid); err != nil || len(seen.Blockers) == 0 {
		return seen, err
	}
	var mode string
	var table *string
	err = r.observer.QueryRow(ctx, `SELECT mode, relation::regclass::text FROM pg_locks
		WHERE pid = $1 AND NOT granted LIMIT 1`, r.pid).Scan(&mode, &table)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // it waits no more
		return sighting{}, nil
	case err != nil:
		return sighting{}, err
	case table == nil:
		seen.Lock = endOfOlder
	default:
		seen.Lock = modeName(mode) + " on " + *table
	}
	return seen, nil
}

// endOfOlder is the lock that CREATE INDEX CONCURRENTLY waits for in the end: of no table.
const endOfOlder = "the end of older transactions"

// openObserver connects the second session, unless it is.
func (r *runner) openObserver(ctx context.Context) (err error) {
	if r.observer == nil || r.observer.IsClosed() {
		r.observer, err = pgx.ConnectConfig(ctx, r.config)
	}
	return err
}

func (r *runner) closeObserver() {
	if r.observer != nil {
		r.observer.Close(context.Background())
	}
}

// modeName turns pg_locks' name of a mode into the manual's: ShareLock is SHARE.
func modeName(mode string) string {
	var b strings.Builder
	for i, c := range strings.TrimSuffix(mode, "Lock") {
		if i > 0 && unicode.IsUpper(c) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToUpper(c))
	}
	return b.String()
}
