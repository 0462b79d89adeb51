package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

const (
	// cachedTokens bounds the cache of tokens that are in use.
	cachedTokens = 1024
	// concurrentLookups bounds how many different tokens are looked up at a
	// time, so that a flood of made-up ones cannot fill the pool's queue. The
	// others wait for their turn.
	concurrentLookups = 64
	// lastUseEvery is how precisely a token's last use is known.
	lastUseEvery = time.Minute
)

// Tokens looks tokens up, and issues and revokes them.
type Tokens struct {
	db      *DB
	ttl     time.Duration
	cache   *lru.Cache[auth.Digest, cached]
	flights singleflight.Group
	lookups *semaphore.Weighted
	used    chan string // names of tokens whose last use is to be noted
}

type cached struct {
	token  auth.Token
	readAt time.Time
}

// Tokens returns the tokens of the database. What was read of one is believed
// for ttl: the longest that a revoked token can live.
func (db *DB) Tokens(ttl time.Duration) *Tokens {
	cache, err := lru.New[auth.Digest, cached](cachedTokens)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &Tokens{
		db: db, ttl: ttl, cache: cache,
		lookups: semaphore.NewWeighted(concurrentLookups),
		used:    make(chan string, cachedTokens),
	}
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
	if !ok || now.Sub(c.readAt) >= t.ttl {
		if c.token, err = t.lookUp(ctx, digest); err != nil {
			return auth.Principal{}, err
		}
	}
	if !c.token.ValidAt(now) {
		return auth.Principal{}, auth.ErrInvalidToken
	}
	return c.token.Principal, nil
}

// lookUp reads a token, together with whoever else wants the same one now, and
// goes on trying until the deadline.
func (t *Tokens) lookUp(ctx context.Context, digest auth.Digest) (auth.Token, error) {
	pause := backoff()
	for {
		flight := t.flights.DoChan(string(digest[:]), func() (any, error) { return t.read(digest) })
		var err error
		select {
		case <-ctx.Done():
			return auth.Token{}, wrap(plant.ErrUnavailable, ctx.Err())
		case r := <-flight:
			if r.Err == nil {
				return r.Val.(auth.Token), nil
			}
			err = r.Err
		}
		if errors.Is(err, auth.ErrInvalidToken) {
			return auth.Token{}, err
		}
		if judge(err, false).next == done {
			return auth.Token{}, wrap(plant.ErrUnavailable, err)
		}
		wait, _ := pause.Next()
		select {
		case <-ctx.Done():
			return auth.Token{}, wrap(plant.ErrUnavailable, err)
		case <-time.After(wait):
		}
	}
}

// read reads a token once. It has a time limit of its own, because no one of the
// requests that wait for it may end it for the others.
func (t *Tokens) read(digest auth.Digest) (auth.Token, error) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	if err := t.lookups.Acquire(ctx, 1); err != nil {
		return auth.Token{}, err
	}
	defer t.lookups.Release(1)

	readAt := time.Now()
	var tok auth.Token
	err := queryRow(ctx, t.db.pool, scanToken(&tok), `
		SELECT t.name, t.scopes, t.created_at, t.expires_at, t.revoked_at, t.last_used_at
		FROM public.plantstore_token($1::pg_catalog.bytea) t`, digest[:])
	if errors.Is(err, pgx.ErrNoRows) {
		t.cache.Remove(digest)
		return auth.Token{}, auth.ErrInvalidToken
	}
	if err != nil {
		return auth.Token{}, err
	}
	t.cache.Add(digest, cached{tok, readAt})
	if tok.ValidAt(readAt) && readAt.Sub(tok.LastUsedAt) >= lastUseEvery {
		select {
		case t.used <- tok.Name:
		default: // it will be noted another time
		}
	}
	return tok, nil
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
			_ = exec(once, t.db.pool, `
				UPDATE public.api_tokens SET last_used_at = now()
				WHERE name = $1::pg_catalog.text AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')`, name)
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
	tokens, err := collectTokens(results)
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", t.db.explain(err))
	}
	return tokens, nil
}

func collectTokens(results pgx.BatchResults) ([]auth.Token, error) {
	if _, err := results.Exec(); err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t auth.Token, err error) {
		err = row.Scan(scanToken(&t)...)
		return t, err
	})
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
