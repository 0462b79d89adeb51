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

// A Blocker is a session that another one waits for.
type Blocker struct {
	PID         int32 // 0: a prepared transaction
	Application string
	User        string
	// Age of its transaction, State and Query are empty where our role may not
	// see them: Hidden.
	Age    time.Duration
	State  string
	Query  string
	Hidden bool
}

// String names the session on one line.
func (b Blocker) String() string {
	if b.PID == 0 {
		return "a prepared transaction (see pg_prepared_xacts)"
	}
	about := []string{fmt.Sprintf("pid %d", b.PID)}
	if b.User == "" {
		return about[0] + ", a process of the server itself; autovacuum gives way once we have waited for deadlock_timeout"
	}
	if b.Application != "" {
		about = append(about, "application "+b.Application)
	}
	about = append(about, "user "+b.User)
	if b.Hidden {
		return strings.Join(about, ", ") + " (age and query are hidden: grant our role pg_read_all_stats)"
	}
	if b.State != "" {
		about = append(about, b.State)
	}
	about = append(about, "transaction open for "+b.Age.Round(time.Second/10).String())
	s := strings.Join(about, ", ")
	if b.Query != "" {
		s += ": " + b.Query
	}
	return s
}

// blockers describes the sessions whose process ids a query selects, the one
// with the oldest transaction first.
func blockers(ctx context.Context, conn *pgx.Conn, pids string, args ...any) ([]Blocker, error) {
	rows, err := conn.Query(ctx, `
		SELECT b.pid, coalesce(a.application_name, ''), coalesce(a.usename, ''), coalesce(a.state, ''),
			coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, a.state_change)), 0)::float8, coalesce(a.query, ''),
			a.pid IS NOT NULL AND a.state IS NULL
		FROM (SELECT DISTINCT pid FROM (`+pids+`) p (pid)) b LEFT JOIN pg_stat_activity a USING (pid)
		ORDER BY a.xact_start NULLS LAST, b.pid`, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Blocker, error) {
		var b Blocker
		var seconds float64
		err := row.Scan(&b.PID, &b.Application, &b.User, &b.State, &seconds, &b.Query, &b.Hidden)
		b.Age = time.Duration(seconds * float64(time.Second))
		b.Application, b.User, b.Query = oneLine(b.Application), oneLine(b.User), oneLine(b.Query)
		return b, err
	})
}

// oneLine makes text from others fit for a terminal: blanks for white space,
// nothing else that is not printable, 80 characters at most.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, s)
	short := []rune(strings.Join(strings.Fields(s), " "))
	if len(short) > 80 {
		return string(short[:79]) + "…"
	}
	return string(short)
}

// A sighting is what a run was seen waiting for.
type sighting struct {
	Lock     string
	Blockers []Blocker
}

// watch tells, until stop, who is in the way of the run. What it saw last is
// stop's result. Where it can't look, it says nothing.
func (r *run) watch(ctx context.Context, event Event) (stop func() sighting) {
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

// look sees what the run waits for, and who has it. Both, or nothing.
func (r *run) look(ctx context.Context) (seen sighting, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if r.observer == nil || r.observer.IsClosed() {
		if r.observer, err = pgx.ConnectConfig(ctx, r.config); err != nil {
			return seen, err
		}
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
		seen.Lock = "the end of older transactions"
	default:
		seen.Lock = modeName(mode) + " on " + *table
	}
	return seen, nil
}

func (r *run) closeObserver() {
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
