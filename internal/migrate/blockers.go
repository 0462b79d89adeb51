package migrate

import (
	"context"
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

// oneLine makes text from others fit for a terminal, as printable does, of 80 characters
// at most.
func oneLine(s string) string {
	short := []rune(printable(s))
	if len(short) > 80 {
		return string(short[:79]) + "…"
	}
	return string(short)
}

// printable has blanks for white space, and nothing else that is not printable.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, s)
	return strings.Join(strings.Fields(s), " ")
}
