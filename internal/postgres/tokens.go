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
	// reviewEvery is how often tokens that were in use lately are looked at again.
	reviewEvery = time.Minute
)

// Tokens looks tokens up, and issues and revokes them.
type Tokens struct {
	db    *DB
	ttl   time.Duration
	cache *lru.Cache[auth.Digest, *cached]
	// known looks up tokens that were good when they were last read, unknown all
	// others: a flood of made-up ones has to wait for itself only.
	known, unknown lookupQueue
	used           chan [16]byte // ids of tokens whose last use is to be noted
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
	t := &Tokens{db: db, ttl: ttl, cache: cache, used: make(chan [16]byte, cachedTokens)}
	t.unknown.read = func(asked []auth.Digest) (map[auth.Digest]auth.Token, error) { return t.read(unknown, asked) }
	t.known.read = func(asked []auth.Digest) (map[auth.Digest]auth.Token, error) {
		return t.read(known, t.withDue(asked))
	}
	return t
}

// Authenticate returns whom a token was issued to. It returns
// auth.ErrInvalidToken for a token that is unknown, expired or revoked,
// plant.ErrUnavailable when the database could not be asked before ctx's
// deadline, and plant.ErrHindered when it refuses the question: the last two say
// nothing of the token.
func (t *Tokens) Authenticate(ctx context.Context, token string) (auth.Principal, error) {
	digest, err := auth.DigestOf(token)
	if err != nil {
		return auth.Principal{}, err
	}
	now := time.Now()
	c, ok := t.cache.Get(digest)
	if ok && now.Sub(c.readAt) < t.ttl {
		t.db.metrics.lookups.WithLabelValues(lookupCached).Inc()
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
	t.db.metrics.lookedUp(err)
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
func lookUp(ctx context.Context, through *lookupQueue, digest auth.Digest) (auth.Token, error) {
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
		}
		if v := judge(asked.err, true); errors.Is(v.err, plant.ErrHindered) {
			return auth.Token{}, v.err
		}
		if judge(asked.err, false).next == done {
			return auth.Token{}, wrap(plant.ErrUnavailable, asked.err)
		}
		wait, _ := pause.Next()
		if sleep(ctx, wait) != nil {
			return auth.Token{}, wrap(plant.ErrUnavailable, asked.err)
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
	readAt := time.Now()
	tokens, err := t.fetch(ctx, what, digests)
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
			case t.used <- token.ID:
			default: // it will be noted another time
			}
		}
	}
	return tokens, nil
}

// fetch asks the database for tokens, and returns those that there are.
func (t *Tokens) fetch(ctx context.Context, what purpose, digests []auth.Digest) (map[auth.Digest]auth.Token, error) {
	wanted := make([][]byte, len(digests))
	for i := range digests {
		wanted[i] = digests[i][:]
	}
	tokens := make(map[auth.Digest]auth.Token)
	err := t.db.lend(ctx, what, func(conn *pgx.Conn) error {
		return queryRows(ctx, conn, func(scan func(...any) error) error {
			var n int64
			var token auth.Token
			if err := scan(append([]any{&n}, scanToken(&token)...)...); err != nil {
				return err
			}
			tokens[digests[n-1]] = token
			return nil
		}, `
			SELECT w.n, t.id, t.principal, t.scopes, t.created_at, t.expires_at, t.revoked_at, t.last_used_at, t.budget, t.budget_nanoseconds
			FROM pg_catalog.unnest($1::pg_catalog.bytea[]) WITH ORDINALITY w (digest, n), LATERAL public.plantstore_token(w.digest) t`, wanted)
	})
	return tokens, err
}

// Knows reports, without a look-up, whether a token is good by what was last read of it,
// however long ago.
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
// request anything. It also has the metrics learn what became of tokens that nobody
// sends any more.
func (t *Tokens) NoteUse(ctx context.Context) {
	review := time.NewTicker(reviewEvery)
	defer review.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-review.C:
			t.review(ctx)
		case id := <-t.used:
			once, cancel := context.WithTimeout(ctx, connectTimeout)
			// The condition holds when several replicas noticed the same use.
			_ = t.db.lend(once, watched, func(conn *pgx.Conn) error {
				return exec(once, conn, `
					UPDATE public.api_tokens SET last_used_at = now()
					WHERE id = $1::pg_catalog.uuid AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')`, pgtype.UUID{Bytes: id, Valid: true})
			})
			cancel()
		}
	}
}

// review reads those tokens again that the metrics tell of and that nobody asked for in a
// while: they may be revoked, or end sooner. It marks no use, and readAt stays: nothing is
// believed for longer.
func (t *Tokens) review(ctx context.Context) {
	now := time.Now()
	var digests []auth.Digest
	for _, digest := range t.cache.Keys() {
		if c, ok := t.cache.Peek(digest); ok && c.endsLately(now) && now.Sub(c.readAt) >= max(t.ttl, reviewEvery/2) {
			digests = append(digests, digest)
		}
	}
	if len(digests) == 0 {
		return
	}
	once, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	tokens, err := t.fetch(once, watched, digests)
	if err != nil {
		return // the next time will do
	}
	for _, digest := range digests {
		token, ok := tokens[digest]
		c, there := t.cache.Peek(digest)
		switch {
		case !there || !c.readAt.Before(now): // it was read meanwhile
		case !ok:
			t.cache.Remove(digest)
		case token.RevokedAt != c.token.RevokedAt || token.ExpiresAt != c.token.ExpiresAt:
			t.cache.Add(digest, &cached{token: token, readAt: c.readAt})
		}
	}
}

// Errors of issuing and revoking.
var (
	// ErrPrincipalExists: a principal with that name has tokens that are not revoked.
	ErrPrincipalExists = errors.New("a principal with this name exists")
	// ErrPrincipalName: the name has other characters than letters, digits and
	// ". _ @ -", or more than 63 of them, or does not start with a letter or digit.
	ErrPrincipalName = errors.New("not a name for a principal")
	// ErrRoleName: a database role has the name. Both can delete, and people would
	// take the one for the other.
	ErrRoleName = errors.New("the name of a database role")
	// ErrNoPrincipal: there is no principal with that name.
	ErrNoPrincipal = errors.New("no principal with this name")
	// ErrRevoked: all tokens of the principal are revoked.
	ErrRevoked = errors.New("the principal is revoked")
	// ErrNoBudget: the principal has no deletion budget.
	ErrNoBudget = errors.New("the principal has no deletion budget")
)

// Create makes a principal, or lets one in again that was revoked, and returns its
// token, which is good until expires (zero: for ever). Only its digest is stored: it
// cannot be shown again. The principal gets a deletion budget, unless it is zero: then
// it keeps the one that it may have had. Create returns ErrPrincipalExists,
// ErrPrincipalName or ErrRoleName.
func (t *Tokens) Create(ctx context.Context, principal string, scopes []string, expires time.Time, budget plant.Budget) (string, error) {
	return t.issue(ctx, "create token", principal, expires, func(tx pgx.Tx) ([]string, error) {
		var role, live bool
		_, err := tx.Exec(ctx, `INSERT INTO public.api_principals (name) VALUES ($1::pg_catalog.text) ON CONFLICT (name) DO NOTHING`, principal)
		if pg := pgError(err); pg != nil && pg.ConstraintName == "api_principals_name_check" {
			return nil, ErrPrincipalName
		}
		if err == nil {
			err = lockPrincipal(ctx, tx, principal)
		}
		if err == nil {
			err = tx.QueryRow(ctx, `
				SELECT EXISTS (SELECT FROM pg_roles r WHERE r.rolname::pg_catalog.text = $1::pg_catalog.text),
					EXISTS (SELECT FROM public.api_tokens t WHERE t.principal = $1::pg_catalog.text AND t.revoked_at IS NULL)`, principal).Scan(&role, &live)
		}
		switch {
		case err != nil:
			return nil, err
		case live:
			return nil, ErrPrincipalExists
		case role:
			return nil, ErrRoleName
		case budget != plant.Budget{}:
			return scopes, setBudget(ctx, tx, principal, budget)
		}
		return scopes, nil
	})
}

// Rotate returns another token for a principal, with the scopes of the one before and
// good until expires (zero: for ever). Those before end after overlap, if not earlier.
// Without overlap they are revoked. It returns ErrNoPrincipal or ErrRevoked.
func (t *Tokens) Rotate(ctx context.Context, principal string, overlap time.Duration, expires time.Time) (string, error) {
	return t.issue(ctx, "rotate token", principal, expires, func(tx pgx.Tx) (scopes []string, err error) {
		if err := lockPrincipal(ctx, tx, principal); err != nil {
			return nil, err
		}
		err = tx.QueryRow(ctx, `
			SELECT scopes FROM public.api_tokens WHERE principal = $1::pg_catalog.text AND revoked_at IS NULL
			ORDER BY created_at DESC LIMIT 1`, principal).Scan(&scopes)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, ErrRevoked
		}
		if err != nil {
			return nil, err
		}
		// What expires does so by the clock of each replica; what is revoked is over.
		_, err = tx.Exec(ctx, `
			UPDATE public.api_tokens SET revoked_at = CASE WHEN $2::float8 = 0 THEN now() END,
				expires_at = CASE WHEN $2::float8 = 0 THEN expires_at ELSE least(expires_at, now() + make_interval(secs => $2::float8)) END
			WHERE principal = $1::pg_catalog.text AND revoked_at IS NULL`, principal, overlap.Seconds())
		return scopes, err
	})
}

// lockPrincipal keeps others from issuing or revoking tokens of a principal until the
// transaction ends. It returns ErrNoPrincipal.
func lockPrincipal(ctx context.Context, tx pgx.Tx, principal string) error {
	tag, err := tx.Exec(ctx, `SELECT FROM public.api_principals WHERE name = $1::pg_catalog.text FOR UPDATE`, principal)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrNoPrincipal
	}
	return err
}

// issue makes a token once allow has said, in the same transaction, which scopes it
// has. Errors that are not ours are put in words.
func (t *Tokens) issue(ctx context.Context, doing, principal string, expires time.Time, allow func(pgx.Tx) ([]string, error)) (string, error) {
	token := auth.NewToken()
	digest, err := auth.DigestOf(token)
	if err != nil {
		return "", err
	}
	err = t.inTx(ctx, func(tx pgx.Tx) error {
		scopes, err := allow(tx)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO public.api_tokens (principal, digest, scopes, expires_at)
			VALUES ($1::pg_catalog.text, $2::pg_catalog.bytea, $3::pg_catalog.text[], $4::pg_catalog.timestamptz)`,
			principal, digest[:], scopes, orNull(expires))
		return err
	})
	if err != nil {
		return "", t.inWords(doing, ". 'plantstore token list' tells whether there is a new token, which nobody has: rotate or revoke that, or do this again if there is none", err)
	}
	return token, nil
}

// tokenTables are those of principals, their tokens and budgets.
var tokenTables = []string{"api_principals", "api_tokens", "plantstore_budgets"}

// inTx runs do in a transaction whose names mean what they say, unless the tables were replaced.
// It waits for those who are about to commit. A crash takes no revocation back.
func (t *Tokens) inTx(ctx context.Context, do func(pgx.Tx) error) error {
	return inTransaction(ctx, t.db.pool, pgx.ReadCommitted, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), pg_catalog.set_config('lock_timeout', '8s', true), `+commitDurably); err != nil {
			return err
		}
		if err := refuseReplaced(ctx, tx, toWrite, tokenTables...); err != nil {
			return err
		}
		return durably(ctx, tx, do)
	})
}

// toDoAgain is what helps after a lost commit of what comes to the same if it is done twice.
const toDoAgain = ": do it again, which does no harm"

// inWords explains an error, unless it is one of those above, or none. lost is what helps
// where nobody knows whether it was committed.
func (t *Tokens) inWords(doing, lost string, err error) error {
	if err == nil {
		return nil
	}
	for _, ours := range []error{ErrPrincipalExists, ErrPrincipalName, ErrRoleName, ErrNoPrincipal, ErrRevoked, ErrNoBudget} {
		if errors.Is(err, ours) {
			return ours
		}
	}
	if u := unanswered(err); u != "" {
		doing += u + lost
	}
	return fmt.Errorf("%s: %w", doing, t.db.explainToOwner(err))
}

// SetBudget gives a principal a deletion budget, or takes it away if that is zero. What
// was used of one before counts, and no lift of it. Services know of it within the time
// that they believe what they read of tokens. A principal that comes with a JWT (see
// auth.ComesWithJWT) need not be known: its budget takes the place of the services' default,
// of which what was used goes on to count, and holds where they have one. SetBudget returns
// ErrNoPrincipal.
func (t *Tokens) SetBudget(ctx context.Context, principal string, budget plant.Budget) error {
	return t.changeBudget(ctx, "set budget", principal, func(tx pgx.Tx) error {
		if budget != (plant.Budget{}) {
			return setBudget(ctx, tx, principal, budget)
		}
		gone := `DELETE FROM public.plantstore_budgets WHERE principal = $1::pg_catalog.text`
		if auth.ComesWithJWT(principal) {
			gone = `UPDATE public.plantstore_budgets SET most = NULL, period = NULL, lifted_until = '-infinity' WHERE principal = $1::pg_catalog.text`
		}
		_, err := tx.Exec(ctx, gone, principal)
		return err
	})
}

func setBudget(ctx context.Context, tx pgx.Tx, principal string, budget plant.Budget) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO public.plantstore_budgets (principal, most, period)
		VALUES ($1::pg_catalog.text, $2::bigint, make_interval(secs => $3::pg_catalog.float8))
		ON CONFLICT (principal) DO UPDATE SET most = EXCLUDED.most, period = EXCLUDED.period, lifted_until = EXCLUDED.lifted_until`,
		principal, budget.Most, budget.Period.Seconds())
	return err
}

// LiftBudget lets a principal delete for some time as if it had no budget, or ends that
// if it is zero. A principal that comes with a JWT has the services' default and need not
// be known. It returns ErrNoPrincipal or ErrNoBudget.
func (t *Tokens) LiftBudget(ctx context.Context, principal string, lifted time.Duration) error {
	return t.changeBudget(ctx, "lift budget", principal, func(tx pgx.Tx) error {
		if auth.ComesWithJWT(principal) {
			if _, err := tx.Exec(ctx, `INSERT INTO public.plantstore_budgets (principal) VALUES ($1::pg_catalog.text) ON CONFLICT (principal) DO NOTHING`, principal); err != nil {
				return err
			}
		}
		tag, err := tx.Exec(ctx, `
			UPDATE public.plantstore_budgets SET lifted_until = now() + make_interval(secs => $2::pg_catalog.float8)
			WHERE principal = $1::pg_catalog.text`, principal, lifted.Seconds())
		if err == nil && tag.RowsAffected() == 0 {
			return ErrNoBudget
		}
		return err
	})
}

// changeBudget is change, also for a principal that comes with JWTs: of those there are
// budgets only.
func (t *Tokens) changeBudget(ctx context.Context, doing, principal string, do func(pgx.Tx) error) error {
	if auth.ComesWithJWT(principal) {
		return t.inWords(doing, toDoAgain, t.inTx(ctx, do))
	}
	return t.change(ctx, doing, principal, do)
}

// change runs do while nobody else changes a principal. It returns ErrNoPrincipal.
func (t *Tokens) change(ctx context.Context, doing, principal string, do func(pgx.Tx) error) error {
	return t.inWords(doing, toDoAgain, t.inTx(ctx, func(tx pgx.Tx) error {
		if err := lockPrincipal(ctx, tx, principal); err != nil {
			return err
		}
		return do(tx)
	}))
}

// A PrincipalTokens is a principal with every token that it ever had. One that comes with
// JWTs has none, and no CreatedAt.
type PrincipalTokens struct {
	Name        string
	CreatedAt   time.Time
	Budget      plant.Budget
	ByDefault   bool         // the budget is the services' default, as of the principal's last deletion; zero before
	Used        int64        // of the budget
	LiftedUntil time.Time    // the budget does not count before; zero if it was never lifted
	Tokens      []auth.Token // newest first
}

// List returns every principal that has tokens, by name, and then those that come with JWTs
// and have a budget of their own, have used some of the default, or may delete any number
// for a while.
func (t *Tokens) List(ctx context.Context) ([]PrincipalTokens, error) {
	var list []PrincipalTokens
	err := readTables(ctx, t.db.pool, pgx.ReadCommitted, func(tx pgx.Tx) error {
		tokens, err := listTokens(ctx, tx)
		if err != nil {
			return err
		}
		others, err := listOthers(ctx, tx)
		list = append(tokens, others...)
		return err
	}, tokenTables...)
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", t.db.explainToOwner(err))
	}
	return list, nil
}

func listTokens(ctx context.Context, db sender) ([]PrincipalTokens, error) {
	var list []PrincipalTokens
	err := queryRows(ctx, db, func(scan func(...any) error) error {
		var p PrincipalTokens
		var token auth.Token
		if err := scan(append([]any{&p.Name, &p.CreatedAt, (*nullTime)(&p.LiftedUntil), &p.Used}, scanToken(&token)...)...); err != nil {
			return err
		}
		if len(list) == 0 || list[len(list)-1].Name != p.Name {
			p.Budget = token.Budget
			list = append(list, p)
		}
		last := &list[len(list)-1]
		last.Tokens = append(last.Tokens, token)
		return nil
	}, `
		SELECT p.name, p.created_at, nullif(b.lifted_until, '-infinity'),
			coalesce((SELECT sum(u.n) FROM unnest(b.parts, b.ends) u (n, until) WHERE u.until > now() - b.period AND u.until <= now() + b.period), 0)::bigint,
			t.id, t.principal, t.scopes, t.created_at, t.expires_at, t.revoked_at, t.last_used_at,
			coalesce(b.most, 0), coalesce(1e9 * extract(epoch FROM b.period), 0)::bigint
		FROM public.api_principals p JOIN public.api_tokens t ON t.principal = p.name
			LEFT JOIN public.plantstore_budgets b ON b.principal = p.name ORDER BY p.name, t.created_at DESC`)
	return list, err
}

// listOthers returns the principals of whom there are budgets only.
func listOthers(ctx context.Context, db sender) ([]PrincipalTokens, error) {
	var list []PrincipalTokens
	err := queryRows(ctx, db, func(scan func(...any) error) error {
		var p PrincipalTokens
		err := scan(&p.Name, (*nullTime)(&p.LiftedUntil), &p.ByDefault, &p.Budget.Most, (*int64)(&p.Budget.Period), &p.Used)
		list = append(list, p)
		return err
	}, `
		SELECT b.principal, nullif(b.lifted_until, '-infinity'), b.most IS NULL, coalesce(b.most, b.default_most, 0),
			coalesce(1e9 * extract(epoch FROM coalesce(b.period, b.default_period)), 0)::bigint, u.used
		FROM public.plantstore_budgets b CROSS JOIN LATERAL (
			SELECT coalesce(sum(part.n), 0)::bigint AS used FROM unnest(b.parts, b.ends) part (n, until)
			WHERE part.until > now() - coalesce(b.period, b.default_period) AND part.until <= now() + coalesce(b.period, b.default_period)) u
		WHERE NOT EXISTS (SELECT FROM public.api_principals p WHERE p.name = b.principal)
			AND (b.most IS NOT NULL OR u.used > 0 OR b.lifted_until > now())
		ORDER BY b.principal`)
	return list, err
}

// Revoke ends all tokens of a principal. It returns when the last of them had been
// revoked before, zero if one was not, or ErrNoPrincipal.
func (t *Tokens) Revoke(ctx context.Context, principal string) (before time.Time, err error) {
	var at *time.Time
	err = t.change(ctx, "revoke tokens", principal, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `
			SELECT CASE WHEN bool_and(revoked_at IS NOT NULL) THEN max(revoked_at) END
			FROM public.api_tokens WHERE principal = $1::pg_catalog.text`, principal).Scan(&at); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE public.api_tokens SET revoked_at = now() WHERE principal = $1::pg_catalog.text AND revoked_at IS NULL`, principal)
		return err
	})
	if err != nil {
		return time.Time{}, err
	}
	return orZero(at), nil
}

// scanToken returns where to scan id, principal, scopes, created_at, expires_at,
// revoked_at, last_used_at and the principal's budget to. Times that are null become zero.
func scanToken(t *auth.Token) []any {
	return []any{&t.ID, &t.Name, &t.Scopes, &t.CreatedAt, (*nullTime)(&t.ExpiresAt), (*nullTime)(&t.RevokedAt), (*nullTime)(&t.LastUsedAt),
		&t.Budget.Most, (*int64)(&t.Budget.Period)}
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
