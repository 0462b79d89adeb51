package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

// Why a change of a principal was refused.
var (
	ErrPrincipalExists = errors.New("the principal exists and has a token")
	ErrPrincipalName   = errors.New("not a name of a principal")
	ErrRoleName        = errors.New("the name of a database role")
	ErrNoPrincipal     = errors.New("no such principal")
	ErrNoToken         = errors.New("all tokens of the principal are revoked")
)

// A Principal is a client of the service with every token it ever had.
type Principal struct {
	Name      string
	CreatedAt time.Time
	Budget    plant.Budget // zero: none of its own
	Used      int64        // how many plants it deleted in the period that ends at ResetsAt
	ResetsAt  time.Time    // zero where no period is under way
	Tokens    []Token      // newest first; none for a principal of JWTs
}

// A Token has the stored facts about a token. The token itself is not stored.
type Token struct {
	Scopes     []string
	CreatedAt  time.Time
	ExpiresAt  time.Time // zero: never
	RevokedAt  time.Time // zero unless revoked
	LastUsedAt time.Time // zero if never used
}

// CreatePrincipal makes a principal and returns its token, which expires at a time, or never
// if that is zero. A principal whose tokens were all revoked gets another. It returns
// ErrPrincipalExists, ErrPrincipalName or ErrRoleName: direct SQL is recorded under the names
// of roles.
func CreatePrincipal(ctx context.Context, conn *pgx.Conn, name string, scopes []string, expires time.Time, budget plant.Budget) (token string, err error) {
	if auth.ComesWithJWT(name) {
		return "", ErrPrincipalName
	}
	err = inTx(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO plantstore.principals (name) VALUES ($1) ON CONFLICT DO NOTHING`, name)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.ConstraintName == "principals_name_check" {
			return ErrPrincipalName
		}
		if err != nil {
			return err
		}
		var role, live bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = p.name),
				EXISTS (SELECT FROM plantstore.tokens t WHERE t.principal = p.name AND t.revoked_at IS NULL)
			FROM plantstore.principals p WHERE p.name = $1 FOR UPDATE`, name).Scan(&role, &live); err != nil {
			return err
		}
		switch {
		case role:
			return ErrRoleName
		case live:
			return ErrPrincipalExists
		}
		if budget != (plant.Budget{}) {
			if err := setBudget(ctx, tx, name, budget); err != nil {
				return err
			}
		}
		token, err = addToken(ctx, tx, name, scopes, expires)
		return err
	})
	return token, err
}

// RotateToken returns another token of a principal with the scopes of the newest one. The
// earlier tokens end after overlap, if not before; without overlap they are revoked. It
// returns ErrNoPrincipal or ErrNoToken.
func RotateToken(ctx context.Context, conn *pgx.Conn, name string, overlap time.Duration, expires time.Time) (token string, err error) {
	err = inTx(ctx, conn, func(tx pgx.Tx) error {
		if err := lockPrincipal(ctx, tx, name); err != nil {
			return err
		}
		var scopes []string
		err := tx.QueryRow(ctx, `SELECT scopes FROM plantstore.tokens WHERE principal = $1 AND revoked_at IS NULL
			ORDER BY created_at DESC LIMIT 1`, name).Scan(&scopes)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrNoToken
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE plantstore.tokens SET expires_at = least(expires_at, now() + make_interval(secs => $2)),
			revoked_at = CASE WHEN $2 = 0 THEN now() END WHERE principal = $1 AND revoked_at IS NULL`, name, overlap.Seconds()); err != nil {
			return err
		}
		token, err = addToken(ctx, tx, name, scopes, expires)
		return err
	})
	return token, err
}

func addToken(ctx context.Context, tx pgx.Tx, principal string, scopes []string, expires time.Time) (string, error) {
	token := auth.NewToken()
	digest, err := auth.DigestOf(token)
	if err != nil {
		return "", err
	}
	_, err = tx.Exec(ctx, `INSERT INTO plantstore.tokens (principal, digest, scopes, expires_at) VALUES ($1, $2, $3, $4)`, principal, digest[:], scopes, zeronull.Timestamptz(expires))
	return token, err
}

// RevokeTokens revokes all tokens of a principal, and returns how many were not revoked
// before. It returns ErrNoPrincipal.
func RevokeTokens(ctx context.Context, conn *pgx.Conn, name string) (revoked int64, err error) {
	err = inTx(ctx, conn, func(tx pgx.Tx) error {
		if err := lockPrincipal(ctx, tx, name); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `UPDATE plantstore.tokens SET revoked_at = now() WHERE principal = $1 AND revoked_at IS NULL`, name)
		revoked = tag.RowsAffected()
		return err
	})
	return revoked, err
}

// SetBudget sets a principal's deletion budget. Zero removes it: a principal of JWTs then has
// the service's default. Deletions in the present period count, unless the new period is
// shorter than the rest of it. A principal of JWTs need not exist; for others SetBudget returns
// ErrNoPrincipal.
func SetBudget(ctx context.Context, conn *pgx.Conn, name string, budget plant.Budget) error {
	return inTx(ctx, conn, func(tx pgx.Tx) error {
		if auth.ComesWithJWT(name) {
			if _, err := tx.Exec(ctx, `INSERT INTO plantstore.principals (name) VALUES ($1) ON CONFLICT DO NOTHING`, name); err != nil {
				return err
			}
		}
		return setBudget(ctx, tx, name, budget)
	})
}

func setBudget(ctx context.Context, tx pgx.Tx, name string, budget plant.Budget) error {
	return onPrincipal(ctx, tx, `UPDATE plantstore.principals SET budget = nullif($2::bigint, 0),
		budget_period = CASE WHEN $2::bigint > 0 THEN make_interval(secs => $3) END WHERE name = $1`, name, budget.Most, budget.Period.Seconds())
}

// ResetBudget lets a principal use its whole budget again. It returns ErrNoPrincipal.
func ResetBudget(ctx context.Context, conn *pgx.Conn, name string) error {
	return inTx(ctx, conn, func(tx pgx.Tx) error {
		return onPrincipal(ctx, tx, `UPDATE plantstore.principals SET budget_used = 0, budget_resets_at = '-infinity' WHERE name = $1`, name)
	})
}

// Principals returns all principals by name.
func Principals(ctx context.Context, conn *pgx.Conn) ([]Principal, error) {
	rows, err := conn.Query(ctx, `SELECT p.name, p.created_at, coalesce(p.budget, 0), coalesce(extract(epoch FROM p.budget_period)::float8, 0),
			CASE WHEN p.budget_resets_at > now() THEN p.budget_used ELSE 0 END, CASE WHEN p.budget_resets_at > now() THEN p.budget_resets_at END,
			t.scopes, t.created_at, t.expires_at, t.revoked_at, t.last_used_at
		FROM plantstore.principals p LEFT JOIN plantstore.tokens t ON t.principal = p.name ORDER BY p.name, t.created_at DESC`)
	if err != nil {
		return nil, err
	}
	var list []Principal
	var p Principal
	var t Token
	var seconds float64
	null := func(t *time.Time) any { return (*zeronull.Timestamptz)(t) }
	_, err = pgx.ForEachRow(rows, []any{&p.Name, &p.CreatedAt, &p.Budget.Most, &seconds, &p.Used, null(&p.ResetsAt), &t.Scopes,
		null(&t.CreatedAt), null(&t.ExpiresAt), null(&t.RevokedAt), null(&t.LastUsedAt)}, func() error {
		if len(list) == 0 || list[len(list)-1].Name != p.Name {
			p.Budget.Period = time.Duration(seconds * float64(time.Second))
			list = append(list, p)
		}
		if !t.CreatedAt.IsZero() {
			last := &list[len(list)-1]
			last.Tokens = append(last.Tokens, t)
			t.Scopes = nil // the next row scans into another
		}
		return nil
	})
	return list, err
}

// lockPrincipal locks a principal, so that nobody else changes its tokens until the
// transaction ends. It returns ErrNoPrincipal.
func lockPrincipal(ctx context.Context, tx pgx.Tx, name string) error {
	return onPrincipal(ctx, tx, `SELECT FROM plantstore.principals WHERE name = $1 FOR UPDATE`, name)
}

// onPrincipal executes a statement for a principal. It returns ErrNoPrincipal.
func onPrincipal(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	tag, err := tx.Exec(ctx, sql, args...)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrNoPrincipal
	}
	return err
}

// inTx runs do in a transaction. A revocation that was committed survives a crash, also where
// the database's synchronous_commit is off.
func inTx(ctx context.Context, conn *pgx.Conn, do func(pgx.Tx) error) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // after a commit it does nothing
	if err := do(tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'`); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
