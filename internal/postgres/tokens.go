package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

// Tokens has all tokens in memory. It polls the database for changes.
type Tokens struct {
	db       *DB
	snapshot atomic.Pointer[snapshot]

	mu     sync.Mutex
	polled chan struct{} // closed by the next poll that succeeds
	demand chan struct{} // somebody waits for a poll
}

// A snapshot has the tokens in the database at the time of the last successful poll.
type snapshot struct {
	version   [16]byte
	tokens    map[auth.Digest]*knownToken
	confirmed time.Time
}

type knownToken struct {
	id        [16]byte
	principal auth.Principal
	expires   time.Time // zero: never
	used      *atomic.Bool
}

func newTokens(db *DB) *Tokens {
	return &Tokens{db: db, polled: make(chan struct{}), demand: make(chan struct{}, 1)}
}

// Authenticate returns the principal of a token. It returns auth.ErrInvalidToken if a poll
// that began after the call finds the token unknown, revoked or expired, and
// plant.ErrUnavailable if no poll succeeds until ctx ends.
func (t *Tokens) Authenticate(ctx context.Context, token string) (auth.Principal, error) {
	digest, err := auth.DigestOf(token)
	if err != nil {
		return auth.Principal{}, err
	}
	came := time.Now()
	for {
		t.mu.Lock()
		polled := t.polled
		t.mu.Unlock()
		if s := t.snapshot.Load(); s != nil {
			answers := !s.confirmed.Before(came) // even if the goroutine runs long after the poll
			if answers || time.Since(s.confirmed) < t.db.limits.maxAge {
				if p, ok := s.find(digest); ok {
					return p, nil
				}
			}
			if answers {
				return auth.Principal{}, auth.ErrInvalidToken
			}
		}
		select {
		case t.demand <- struct{}{}:
		default:
		}
		select {
		case <-polled:
		case <-ctx.Done():
			return auth.Principal{}, fmt.Errorf("%w: the tokens could not be read", plant.ErrUnavailable)
		}
	}
}

func (s *snapshot) find(d auth.Digest) (auth.Principal, bool) {
	token := s.tokens[d]
	if token == nil || !token.expires.IsZero() && !time.Now().Before(token.expires) {
		return auth.Principal{}, false
	}
	if !token.used.Load() {
		token.used.Store(true)
	}
	return token.principal, true
}

// age returns the time since the tokens were confirmed.
func (t *Tokens) age() time.Duration {
	if s := t.snapshot.Load(); s != nil {
		return time.Since(s.confirmed)
	}
	return 0
}

// run polls for changes until ctx ends: every two seconds, or each second while somebody
// waits. Once a minute it notes which tokens were used.
func (t *Tokens) run(ctx context.Context) {
	var failing bool
	noted := time.Now()
	for ctx.Err() == nil {
		began := time.Now()
		err := t.poll(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			t.db.Log.Warn("tokens cannot be read", "cause", Explain(err, t.db.Setting))
		}
		failing = err != nil
		if err == nil && time.Since(noted) >= t.db.limits.noteUses {
			noted = time.Now()
			if err := t.note(ctx); err != nil && ctx.Err() == nil {
				t.db.Log.Warn("last use of tokens not recorded", "cause", Explain(err, t.db.Setting))
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(t.db.limits.poll/2 - time.Since(began)):
		}
		select {
		case <-ctx.Done():
		case <-t.demand:
		case <-time.After(t.db.limits.poll / 2):
		}
	}
}

// poll confirms the snapshot or reads the tokens anew.
func (t *Tokens) poll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.db.limits.control)
	defer cancel()
	began := time.Now()
	s, err := t.read(ctx)
	if err != nil {
		return err
	}
	s.confirmed = began
	t.snapshot.Store(s)
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.polled)
	t.polled = make(chan struct{})
	return nil
}

// readTokens reads all tokens and their version, one row with nulls if there is none. A
// standby, to which a pooler may send it, returns no row: it may not know of a revocation yet.
const readTokens = `SELECT v.version, t.id, t.digest, t.principal, t.scopes, t.expires_at, coalesce(p.budget, 0),
		coalesce(extract(epoch FROM p.budget_period)::float8, 0)
	FROM plantstore.tokens_version v LEFT JOIN plantstore.tokens t ON t.revoked_at IS NULL AND (t.expires_at > now()) IS NOT FALSE
		LEFT JOIN plantstore.principals p ON p.name = t.principal
	WHERE NOT pg_is_in_recovery()`

var errNoVersion = errors.New("no version of the tokens: the database that answered is a standby, or plantstore.tokens_version is empty")

func (t *Tokens) read(ctx context.Context) (*snapshot, error) {
	conn, err := t.db.control.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	old := t.snapshot.Load()
	var version [16]byte
	if err := conn.QueryRow(ctx, `SELECT version FROM plantstore.tokens_version WHERE NOT pg_is_in_recovery()`).Scan(&version); errors.Is(err, pgx.ErrNoRows) {
		return nil, errNoVersion
	} else if err != nil {
		return nil, err
	}
	if old != nil && old.version == version {
		return &snapshot{version: version, tokens: old.tokens}, nil
	}
	// One statement has one view of the version and the tokens.
	rows, err := conn.Query(ctx, readTokens)
	if err != nil {
		return nil, err
	}
	s := &snapshot{tokens: make(map[auth.Digest]*knownToken)}
	var id zeronull.UUID
	var digest []byte
	var name zeronull.Text
	var scopes []string
	var expires zeronull.Timestamptz
	var most int64
	var seconds float64
	tag, err := pgx.ForEachRow(rows, []any{&s.version, &id, &digest, &name, &scopes, &expires, &most, &seconds}, func() error {
		if digest == nil { // there is no token at all
			return nil
		}
		token := &knownToken{id: id, expires: time.Time(expires), used: new(atomic.Bool), principal: auth.Principal{
			Name: string(name), Scopes: scopes, Budget: plant.Budget{Most: most, Period: time.Duration(seconds * float64(time.Second))}}}
		if old != nil && old.tokens[auth.Digest(digest)] != nil {
			token.used = old.tokens[auth.Digest(digest)].used
		}
		s.tokens[auth.Digest(digest)] = token
		return nil
	})
	if err == nil && tag.RowsAffected() == 0 {
		err = errNoVersion
	}
	return s, err
}

// note records when tokens were last used, or leaves that to the next call. This commit does
// not wait for the standby.
func (t *Tokens) note(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, t.db.limits.control)
	defer cancel()
	var ids [][16]byte
	for _, token := range t.snapshot.Load().tokens {
		if token.used.Swap(false) {
			ids = append(ids, token.id)
			defer func() {
				if err != nil {
					token.used.Store(true)
				}
			}()
		}
	}
	conn, err := t.db.control.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	queue := &pgx.Batch{} // one transaction
	queue.Queue(`SELECT set_config('synchronous_commit', 'off', true)`)
	queue.Queue(`UPDATE plantstore.tokens SET last_used_at = now() WHERE id = ANY ($1::uuid[])`, ids)
	return conn.SendBatch(ctx, queue).Close()
}
