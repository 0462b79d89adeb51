package postgres

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/auth"
	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

var scopes = []string{auth.ScopeDelete}

// principalNamed returns a principal as Principals does, without times that vary.
func principalNamed(t *testing.T, conn *pgx.Conn, name string) Principal {
	t.Helper()
	list, err := Principals(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("there is no principal %s in %v", name, list)
	return Principal{}
}

// states returns which tokens of a principal are revoked and which expire, newest first.
func states(p Principal) (all []string) {
	for _, t := range p.Tokens {
		switch {
		case !t.RevokedAt.IsZero():
			all = append(all, "revoked")
		case t.ExpiresAt.IsZero():
			all = append(all, "good")
		default:
			all = append(all, "expires in "+time.Until(t.ExpiresAt).Round(time.Hour).String())
		}
	}
	return all
}

func TestPrincipalsTokensRotateAndExpire(t *testing.T) {
	t.Parallel()
	ctx, conn, name := t.Context(), pgtest.Connect(t, pgtest.Shared(t).Owner), fmt.Sprint("client-", pgtest.IDs(t))
	budget := plant.Budget{Most: 500, Period: 90 * time.Minute}
	create := func(expires time.Time, budget plant.Budget) func() (string, error) {
		return func() (string, error) { return CreatePrincipal(ctx, conn, name, scopes, expires, budget) }
	}
	rotate := func(overlap time.Duration) func() (string, error) {
		return func() (string, error) { return RotateToken(ctx, conn, name, overlap, time.Time{}) }
	}
	revoke := func() (string, error) {
		n, err := RevokeTokens(ctx, conn, name)
		if n != 1 {
			t.Errorf("revoked %d tokens, want 1", n)
		}
		return "", err
	}
	tokens := map[string]bool{}
	for _, step := range []struct {
		name string
		do   func() (string, error)
		err  error
		want []string
	}{
		{"create", create(time.Now().Add(48*time.Hour), budget), nil, []string{"expires in 48h0m0s"}},
		{"create again", create(time.Time{}, budget), ErrPrincipalExists, []string{"expires in 48h0m0s"}},
		{"rotate", rotate(24 * time.Hour), nil, []string{"good", "expires in 24h0m0s"}},
		{"a longer overlap", rotate(36 * time.Hour), nil, []string{"good", "expires in 36h0m0s", "expires in 24h0m0s"}},
		{"no overlap", rotate(0), nil, []string{"good", "revoked", "revoked", "revoked"}},
		{"revoke", revoke, nil, []string{"revoked", "revoked", "revoked", "revoked"}},
		{"rotate after revoke", rotate(0), ErrNoToken, []string{"revoked", "revoked", "revoked", "revoked"}},
		{"create after revoke", create(time.Time{}, plant.Budget{}), nil, []string{"good", "revoked", "revoked", "revoked", "revoked"}},
	} {
		token, err := step.do()
		if !errors.Is(err, step.err) {
			t.Fatalf("%s: got error %v, want %v", step.name, err, step.err)
		}
		p := principalNamed(t, conn, name)
		if diff := cmp.Diff(step.want, states(p)); diff != "" {
			t.Errorf("%s: tokens (-want +got):\n%s", step.name, diff)
		}
		if p.Budget != budget {
			t.Errorf("%s: got budget %v, want %v", step.name, p.Budget, budget)
		}
		if token == "" {
			continue
		}
		digest, err := auth.DigestOf(token)
		if err != nil {
			t.Fatalf("%s: got token %q: %v", step.name, token, err)
		}
		var stored bool
		err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM plantstore.tokens WHERE digest = $1 AND principal = $2 AND scopes = $3 AND revoked_at IS NULL)`, digest[:], name, scopes).Scan(&stored)
		if err != nil || !stored || tokens[token] {
			t.Errorf("%s: the token's digest is stored: %v, %v; or was printed before: %v", step.name, stored, err, tokens[token])
		}
		tokens[token] = true
	}
}

func TestBadPrincipalNamesAreRejected(t *testing.T) {
	t.Parallel()
	ctx, conn := t.Context(), pgtest.Connect(t, pgtest.Shared(t).Owner)
	missing := fmt.Sprint("client-", pgtest.IDs(t))
	for name, want := range map[string]error{"": ErrPrincipalName, "a b": ErrPrincipalName, "-a": ErrPrincipalName, "jwt:shop": ErrPrincipalName,
		"plantstore_app": ErrRoleName, "postgres": ErrRoleName} {
		if _, err := CreatePrincipal(ctx, conn, name, scopes, time.Time{}, plant.Budget{}); !errors.Is(err, want) {
			t.Errorf("create %q: got error %v, want %v", name, err, want)
		}
	}
	_, rotate := RotateToken(ctx, conn, missing, 0, time.Time{})
	_, revoke := RevokeTokens(ctx, conn, missing)
	for doing, err := range map[string]error{"rotate": rotate, "revoke": revoke, "budget": SetBudget(ctx, conn, missing, plant.Budget{}), "reset": ResetBudget(ctx, conn, missing)} {
		if !errors.Is(err, ErrNoPrincipal) {
			t.Errorf("%s: got error %v, want %v", doing, err, ErrNoPrincipal)
		}
	}
	var made int
	if err := conn.QueryRow(ctx, `SELECT count(*) FROM plantstore.principals WHERE name IN ('jwt:shop', 'plantstore_app', 'postgres', $1)`, missing).Scan(&made); err != nil || made != 0 {
		t.Errorf("got %d principals, %v; want none", made, err)
	}
}

func TestBudgetsAreSetAndReset(t *testing.T) {
	t.Parallel()
	ctx, conn, name := t.Context(), pgtest.Connect(t, pgtest.New(t).Owner), "jwt:shop" // nobody else moves the version
	hourly, daily := plant.Budget{Most: 5, Period: time.Hour}, plant.Budget{Most: 7, Period: 24 * time.Hour}
	for _, step := range []struct {
		name   string
		do     func() error
		charge int
		budget plant.Budget
		used   int64
	}{
		{"set", func() error { return SetBudget(ctx, conn, name, hourly) }, 3, hourly, 3},
		{"set another", func() error { return SetBudget(ctx, conn, name, daily) }, 1, daily, 4},
		{"reset", func() error { return ResetBudget(ctx, conn, name) }, 2, daily, 2},                       // services ask again every few seconds
		{"none", func() error { return SetBudget(ctx, conn, name, plant.Budget{}) }, 1, plant.Budget{}, 1}, // the default has a shorter period, which begins anew
	} {
		var before, after string
		version := `SELECT version::text FROM plantstore.tokens_version`
		if err := errors.Join(conn.QueryRow(ctx, version).Scan(&before), step.do(), conn.QueryRow(ctx, version).Scan(&after)); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if (after == before) != (step.name == "reset") {
			t.Errorf("%s: the tokens' version was %s and is %s", step.name, before, after)
		}
		execute(t, conn, `SELECT plantstore.charge($1, $2, 100, '1h')`, name, step.charge)
		if p := principalNamed(t, conn, name); p.Budget != step.budget || p.Used != step.used || len(p.Tokens) > 0 {
			t.Errorf("%s: got budget %v, used %d, %d tokens; want %v, %d, none", step.name, p.Budget, p.Used, len(p.Tokens), step.budget, step.used)
		}
	}
}
