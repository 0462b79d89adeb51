package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

const (
	// cachedTokens bounds the cache of tokens that are in use.
	cachedTokens = 1024
	// lastUseEvery is how precisely a token's last use is known.
	lastUseEvery = time.Minute
)

// Tokens looks tokens up, and issues and revokes them.
type Tokens struct {
	db    *DB
	ttl   time.Duration
	cache *lru.Cache[auth.Digest, *cached]
	// known looks up tokens that were good a moment ago, unknown all others: a
	// flood of made-up ones has to wait for itself only.
	known, unknown lane
	used           chan string // names of tokens whose last use is to be noted
}

// A cached token is one that the database has, good or not.
type cached struct {
	token  auth.Token
	readAt time.Time
	// used tells whether it was authenticated since it was read, and nudged whether
	// that has led to reading it again.
	used, nudged atomic.Bool
}

// Tokens returns the tokens of the database. What was read of one is believed
// for ttl: the longest that a revoked token can live.
func (db *DB) Tokens(ttl time.Duration) *Tokens {
	cache, err := lru.New[auth.Digest, *cached](cachedTokens)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	t := &Tokens{db: db, ttl: ttl, cache: cache, used: make(chan string, cachedTokens)}
	t.unknown.read = func(asked []auth.Digest) (map[auth.Digest]auth.Token, error) { return t.read(unknown, asked) }
	t.known.read = func(asked []auth.Digest) (map[auth.Digest]auth.Token, error) {
		return t.read(known, t.withDue(asked))
	}
	return t
}

// Authenticate returns whom a token was issued to. It returns
// auth.ErrInvalidToken for a token that is unknown, expired or revoked, and
// plant.ErrUnavailable when the database could not be asked before ctx's
// deadline, which says nothing of the token.
func (t *Tokens) Authenticate(ctx context.Context, token string) (auth.Principal, error) {
	digest, err := auth.DigestOf(token)
	if err != nil {
		return auth.Principal{}, err
	}
	now := time.Now()
	c, ok := t.cache.Get(digest)
	if ok && now.Sub(c.readAt) < t.ttl {
		if !c.token.ValidAt(now) {
			return auth.Principal{}, auth.ErrInvalidToken
		}
		t.keep(c, now)
		return c.token.Principal, nil
	}
	through := &t.unknown
	if ok && c.token.ValidAt(now) {
		through = &t.known
	}
	found, err := lookUp(ctx, through, digest)
	if err != nil {
		return auth.Principal{}, err
	}
	if !found.ValidAt(now) {
		return auth.Principal{}, auth.ErrInvalidToken
	}
	return found.Principal, nil
}

// keep notes that a token is in use. From half of its time on it is read again in
// the background, so that no request has to wait for that.
func (t *Tokens) keep(c *cached, now time.Time) {
	if !c.used.Load() {
		c.used.Store(true)
	}
	if now.Sub(c.readAt) >= t.ttl/2 && c.nudged.CompareAndSwap(false, true) {
		t.known.nudge()
	}
}

// withDue adds to some tokens those that are in use and will have to be read again
// soon: it may as well be by the same statement.
func (t *Tokens) withDue(asked []auth.Digest) []auth.Digest {
	now := time.Now()
	for _, digest := range t.cache.Keys() {
		c, ok := t.cache.Peek(digest)
		if ok && c.used.Load() && c.token.ValidAt(now) && now.Sub(c.readAt) >= t.ttl/4 {
			asked = append(asked, digest)
		}
	}
	return asked
}

// lookUp has a token read and goes on trying until the deadline.
func lookUp(ctx context.Context, through *lane, digest auth.Digest) (auth.Token, error) {
	pause := backoff()
	for {
		asked := through.ask(digest)
		select {
		case <-ctx.Done():
			through.leave(asked)
			return auth.Token{}, wrap(plant.ErrUnavailable, ctx.Err())
		case <-asked.done:
		}
		switch {
		case asked.err == nil && asked.found:
			return asked.token, nil
		case asked.err == nil:
			return auth.Token{}, auth.ErrInvalidToken
		case judge(asked.err, false).next == done:
			return auth.Token{}, wrap(plant.ErrUnavailable, asked.err)
		}
		wait, _ := pause.Next()
		select {
		case <-ctx.Done():
			return auth.Token{}, wrap(plant.ErrUnavailable, asked.err)
		case <-time.After(wait):
		}
	}
}

// read reads tokens, and returns those that there are. It has a time limit of its
// own, because no one of the requests that wait for it may end it for the others.
func (t *Tokens) read(what purpose, digests []auth.Digest) (map[auth.Digest]auth.Token, error) {
	if len(digests) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	wanted := make([][]byte, len(digests))
	for i := range digests {
		wanted[i] = digests[i][:]
	}
	pipeline := pinned()
	pipeline.Queue(`
		SELECT w.n, t.name, t.scopes, t.created_at, t.expires_at, t.revoked_at, t.last_used_at
		FROM pg_catalog.unnest($1::pg_catalog.bytea[]) WITH ORDINALITY w (digest, n), LATERAL public.plantstore_token(w.digest) t`, wanted)
	readAt := time.Now()
	tokens := make(map[auth.Digest]auth.Token)
	err := t.db.lend(ctx, what, func(conn *pgx.Conn) error {
		results := conn.SendBatch(ctx, pipeline)
		err := readRows(results, func(row pgx.CollectableRow) error {
			var n int64
			var token auth.Token
			if err := row.Scan(append([]any{&n}, scanToken(&token)...)...); err != nil {
				return err
			}
			tokens[digests[n-1]] = token
			return nil
		})
		if closeErr := results.Close(); err == nil {
			err = closeErr
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, digest := range digests {
		token, ok := tokens[digest]
		if !ok {
			t.cache.Remove(digest)
			continue
		}
		t.cache.Add(digest, &cached{token: token, readAt: readAt})
		if token.ValidAt(readAt) && readAt.Sub(token.LastUsedAt) >= lastUseEvery {
			select {
			case t.used <- token.Name:
			default: // it will be noted another time
			}
		}
	}
	return tokens, nil
}

// readRows calls scan for each row of the statement that comes after the first of a
// pinned pipeline.
func readRows(results pgx.BatchResults, scan func(pgx.CollectableRow) error) error {
	if _, err := results.Exec(); err != nil {
		return err
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Knows reports whether a token was good when it was last read, however long ago.
func (t *Tokens) Knows(token string) bool {
	digest, err := auth.DigestOf(token)
	if err != nil {
		return false
	}
	c, ok := t.cache.Peek(digest)
	return ok && c.token.ValidAt(time.Now())
}

// NoteUse writes down the last use of the tokens that are authenticated, until
// ctx ends. A use that cannot be written down is forgotten: it must cost no
// request anything.
func (t *Tokens) NoteUse(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case name := <-t.used:
			once, cancel := context.WithTimeout(ctx, connectTimeout)
			// The condition holds when several replicas noticed the same use.
			_ = t.db.lend(once, watched, func(conn *pgx.Conn) error {
				return exec(once, conn, `
					UPDATE public.api_tokens SET last_used_at = now()
					WHERE name = $1::pg_catalog.text AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')`, name)
			})
			cancel()
		}
	}
}

// Errors of issuing and revoking.
var (
	// ErrTokenExists: a token with that name was issued before.
	ErrTokenExists = errors.New("a token with this name exists")
	// ErrTokenName: the name has other characters than letters, digits and
	// ". _ @ -", or more than 63 of them, or does not start with a letter or digit.
	ErrTokenName = errors.New("not a token name")
	// ErrNoToken: there is no token with that name.
	ErrNoToken = errors.New("no token with this name")
)

// Create issues a token that is good until expires (zero: for ever) and returns
// it. Only its digest is stored: it cannot be shown again. It returns
// ErrTokenExists or ErrTokenName.
func (t *Tokens) Create(ctx context.Context, name string, scopes []string, expires time.Time) (string, error) {
	token := auth.NewToken()
	digest, err := auth.DigestOf(token)
	if err != nil {
		return "", err
	}
	err = exec(ctx, t.db.pool, `
		INSERT INTO public.api_tokens (name, digest, scopes, expires_at)
		VALUES ($1::pg_catalog.text, $2::pg_catalog.bytea, $3::pg_catalog.text[], $4::pg_catalog.timestamptz)`,
		name, digest[:], scopes, orNull(expires))
	if pg := pgError(err); pg != nil {
		switch pg.ConstraintName {
		case "api_tokens_pkey":
			return "", ErrTokenExists
		case "api_tokens_name_check":
			return "", ErrTokenName
		}
	}
	if err != nil {
		return "", fmt.Errorf("create token: %w", t.db.explain(err))
	}
	return token, nil
}

// List returns every token ever issued, by name.
func (t *Tokens) List(ctx context.Context) ([]auth.Token, error) {
	pipeline := pinned()
	pipeline.Queue(`
		SELECT name, scopes, created_at, expires_at, revoked_at, last_used_at FROM public.api_tokens ORDER BY name`)
	results := t.db.pool.SendBatch(ctx, pipeline)
	defer results.Close()
	var tokens []auth.Token
	err := readRows(results, func(row pgx.CollectableRow) error {
		tokens = append(tokens, auth.Token{})
		return row.Scan(scanToken(&tokens[len(tokens)-1])...)
	})
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", t.db.explain(err))
	}
	return tokens, nil
}

// Revoke ends a token. It returns when it had been revoked before, unless zero,
// or ErrNoToken.
func (t *Tokens) Revoke(ctx context.Context, name string) (before time.Time, err error) {
	var at *time.Time
	// The subquery reads the row as it was before this statement.
	err = queryRow(ctx, t.db.pool, []any{&at}, `
		UPDATE public.api_tokens SET revoked_at = coalesce(revoked_at, now()) WHERE name = $1::pg_catalog.text
		RETURNING (SELECT t.revoked_at FROM public.api_tokens t WHERE t.name = $1::pg_catalog.text)`, name)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, ErrNoToken
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("revoke token: %w", t.db.explain(err))
	}
	return orZero(at), nil
}

// scanToken returns where to scan name, scopes, created_at, expires_at, revoked_at
// and last_used_at to. Times that are null become zero.
func scanToken(t *auth.Token) []any {
	return []any{&t.Name, &t.Scopes, &t.CreatedAt, (*nullTime)(&t.ExpiresAt), (*nullTime)(&t.RevokedAt), (*nullTime)(&t.LastUsedAt)}
}

// A nullTime scans null as the zero time.
type nullTime time.Time

// ScanTimestamptz implements pgtype.TimestamptzScanner.
func (t *nullTime) ScanTimestamptz(v pgtype.Timestamptz) error {
	*t = nullTime(v.Time)
	return nil
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
