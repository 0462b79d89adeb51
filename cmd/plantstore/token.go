package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
	"plantstore/internal/postgres"
)

type tokenCommand struct {
	Create tokenCreate `cmd:"" help:"Create a principal, a client of the service, and print its token once."`
	Rotate tokenRotate `cmd:"" help:"Issue another token for a principal and print it once. Earlier tokens stay valid for a while."`
	List   tokenList   `cmd:"" help:"List the principals with their tokens and budgets."`
	Revoke tokenRevoke `cmd:"" help:"Revoke all tokens of a principal."`
	Budget tokenBudget `cmd:"" help:"Limit how many plants a principal may delete in a period."`
}

// change runs do on the owner's connection, and explains its error. After a lost answer to
// the commit, the command can be run again: create then names rotate, and rotate replaces a token
// that nobody has seen.
func (f *ownerFlags) change(ctx context.Context, name string, do func(*pgx.Conn) error) error {
	err := f.with(ctx, do)
	switch {
	case errors.Is(err, postgres.ErrPrincipalExists):
		return fmt.Errorf("principal %q exists: 'plantstore token rotate %s' makes another token for it", name, name)
	case errors.Is(err, postgres.ErrPrincipalName):
		return fmt.Errorf("%q cannot be a principal's name: use 1 to 63 letters, digits and . _ @ -, the first a letter or digit", name)
	case errors.Is(err, postgres.ErrRoleName):
		return fmt.Errorf("%q is the name of a database role, under which direct SQL is recorded: choose another", name)
	case errors.Is(err, postgres.ErrNoPrincipal):
		return fmt.Errorf("there is no principal %q: see 'plantstore token list'", name)
	case errors.Is(err, postgres.ErrNoToken) && auth.ComesWithJWT(name):
		return fmt.Errorf("%q has JWTs: the identity provider issues and revokes them", name)
	case errors.Is(err, postgres.ErrNoToken):
		return fmt.Errorf("all tokens of %q are revoked: 'plantstore token create %s' makes another", name, name)
	}
	return err
}

// A lifetime is how long a new token is good.
type lifetime struct {
	Days     int  `default:"90" help:"Days until the token expires."`
	NoExpiry bool `help:"The token never expires."`
}

// Validate rejects values that cannot work.
func (l *lifetime) Validate(parsed *kong.Context) error {
	switch {
	case l.NoExpiry && isGiven(parsed, "days"):
		return errors.New("--days and --no-expiry contradict each other")
	case l.Days < 1 || l.Days > 36500:
		return fmt.Errorf("--days is %d: it must be from 1 to 36500; --no-expiry is for a token that never expires", l.Days)
	}
	return nil
}

// end returns when a token that is made now expires; zero for never.
func (l *lifetime) end() time.Time {
	if l.NoExpiry {
		return time.Time{}
	}
	return time.Now().AddDate(0, 0, l.Days)
}

type tokenCreate struct {
	ownerFlags `embed:""`
	lifetime   `embed:""`
	Name       string       `arg:"" help:"The client that gets the token: recorded with each deletion."`
	Scope      []string     `default:"${scope}" enum:"${scope}" help:"What the token allows: ${enum}."`
	Budget     plant.Budget `default:"none" placeholder:"BUDGET" help:"How many plants the principal may delete in a period, as 500/1h or 10000/7d."`
}

// Run creates a principal.
func (c *tokenCreate) Run(ctx context.Context, console *console) error {
	expires := c.end()
	if len(c.Scope) == 0 {
		return &exitError{exitUsage, errors.New("--scope is empty: the token would allow nothing")}
	}
	return c.change(ctx, c.Name, func(conn *pgx.Conn) error {
		token, err := postgres.CreatePrincipal(ctx, conn, c.Name, slices.Compact(slices.Sorted(slices.Values(c.Scope))), expires, c.Budget)
		if err != nil {
			return err
		}
		return printToken(console, c.Name, token, expires)
	})
}

// printToken prints a token alone on standard output, so that a script can read it.
func printToken(console *console, principal, token string, expires time.Time) error {
	if _, err := fmt.Fprintln(console.out, token); err != nil {
		return fmt.Errorf("the new token of %[1]q is lost: %[2]w: 'plantstore token rotate %[1]s' makes another", principal, err)
	}
	expiry := "never expires"
	if !expires.IsZero() {
		expiry = "expires " + expires.UTC().Format(time.DateOnly)
	}
	fmt.Fprintf(console.err, "the token of %q %s; it cannot be shown again\n", principal, expiry)
	return nil
}

type tokenRotate struct {
	ownerFlags `embed:""`
	lifetime   `embed:""`
	Name       string `arg:"" help:"The principal."`
	Overlap    age    `default:"24h" placeholder:"AGE" help:"How long its earlier tokens stay valid, as 24h or 7d; 0s revokes them at once."`
}

// Run makes another token for a principal.
func (c *tokenRotate) Run(ctx context.Context, console *console) error {
	expires := c.end()
	return c.change(ctx, c.Name, func(conn *pgx.Conn) error {
		token, err := postgres.RotateToken(ctx, conn, c.Name, time.Duration(c.Overlap), expires)
		if err != nil {
			return err
		}
		if err := printToken(console, c.Name, token, expires); err != nil {
			return err
		}
		if c.Overlap > 0 {
			fmt.Fprintf(console.err, "its earlier tokens expire in %s at the latest\n", c.Overlap)
		} else {
			fmt.Fprintf(console.err, "its earlier tokens are revoked; %s\n", inEffect)
		}
		return nil
	})
}

// inEffect returns a sentence about when services notice a change.
const inEffect = "services know within 5 seconds"

type tokenRevoke struct {
	ownerFlags `embed:""`
	Name       string `arg:"" help:"The principal."`
}

// Run revokes the tokens of a principal.
func (c *tokenRevoke) Run(ctx context.Context, console *console) error {
	return c.change(ctx, c.Name, func(conn *pgx.Conn) error {
		revoked, err := postgres.RevokeTokens(ctx, conn, c.Name)
		if err != nil {
			return err
		}
		if revoked == 0 {
			fmt.Fprintf(console.out, "%q has no tokens left to revoke\n", c.Name)
		} else {
			fmt.Fprintf(console.out, "%s of %q revoked; %s\n", counted(revoked, "token"), c.Name, inEffect)
		}
		return nil
	})
}

type tokenBudget struct {
	ownerFlags `embed:""`
	Name       string        `arg:"" help:"The principal; ${jwt_prefix}SUBJECT if it comes with JWTs."`
	Budget     *plant.Budget `arg:"" optional:"" help:"How many plants it may delete in a period, as 500/1h or 10000/7d, or none. Deletions of the current period count."`
	Reset      bool          `help:"Reset the used part of the budget to zero."`
}

// Help adds to the command's help.
func (c *tokenBudget) Help() string {
	return `The budget is shared by all replicas of the service. A period begins with its first
deletion. Once the budget is used up, the service answers 429 (42901) until the period ends.
Rejected and repeated requests use nothing of it, and a restore gives nothing back.

A principal that comes with JWTs has the service's PLANTSTORE_OIDC_BUDGET, unless it has a
budget of its own.`
}

// Run sets or resets a budget.
func (c *tokenBudget) Run(ctx context.Context, console *console) error {
	if c.Budget == nil && !c.Reset {
		return &exitError{exitUsage, fmt.Errorf("set the budget of %q, as 500/1h or none, or reset what is used of it with --reset", c.Name)}
	}
	return c.change(ctx, c.Name, func(conn *pgx.Conn) error {
		if c.Budget != nil {
			if err := postgres.SetBudget(ctx, conn, c.Name, *c.Budget); err != nil {
				return err
			}
			fmt.Fprintf(console.out, "the deletion budget of %q is %s; %s\n", c.Name, c.Budget, inEffect)
		}
		if c.Reset {
			if err := postgres.ResetBudget(ctx, conn, c.Name); err != nil {
				return err
			}
			fmt.Fprintf(console.out, "%q can use its whole budget again; %s\n", c.Name, inEffect)
		}
		return nil
	})
}

type tokenList struct {
	ownerFlags `embed:""`
	JSON       bool `name:"json" help:"Print JSON."`
}

// Run lists the principals.
func (c *tokenList) Run(ctx context.Context, console *console) error {
	return c.with(ctx, func(conn *pgx.Conn) error {
		list, err := postgres.Principals(ctx, conn)
		if err != nil {
			return err
		}
		now := time.Now()
		if c.JSON {
			return writeJSON(console.out, principalsAsJSON(list, now))
		}
		table := newTable(console.out, "PRINCIPAL", "TOKEN", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "BUDGET")
		for _, p := range list {
			if len(p.Tokens) == 0 {
				fmt.Fprintf(table, "%s\tJWT\t-\t%s\t-\t-\t%s\n", p.Name, date(p.CreatedAt, "-"), budgetText(p))
			}
			for i, t := range p.Tokens {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Name, state(t, i > 0, now), strings.Join(t.Scopes, ","),
					date(t.CreatedAt, "-"), date(t.ExpiresAt, "never"), date(t.LastUsedAt, "never"), budgetText(p))
			}
		}
		return table.Flush()
	})
}

// state describes a token. A valid one is old if its principal has a newer one.
func state(t postgres.Token, old bool, now time.Time) string {
	switch {
	case !t.RevokedAt.IsZero():
		return "revoked"
	case !t.ExpiresAt.IsZero() && !now.Before(t.ExpiresAt):
		return "expired"
	case old:
		return "old"
	}
	return "valid"
}

// budgetText describes a principal's budget, and what is used of it. Only a principal of JWTs
// has a default.
func budgetText(p postgres.Principal) string {
	text := p.Budget.String()
	if p.Budget == (plant.Budget{}) {
		if p.Used == 0 || !strings.HasPrefix(p.Name, auth.JWTPrefix) {
			return text
		}
		text = "default"
	}
	if p.Used > 0 {
		text += fmt.Sprintf(", %d used until %s", p.Used, date(p.ResetsAt, ""))
	}
	return text
}

type principalJSON struct {
	Name      string      `json:"name"`
	CreatedAt time.Time   `json:"created_at"`
	Budget    *budgetJSON `json:"budget,omitempty"`
	Tokens    []tokenJSON `json:"tokens"` // newest first; none if the principal comes with JWTs
}

type budgetJSON struct {
	Most          int64     `json:"most,omitzero"` // absent with the service's default
	PeriodSeconds float64   `json:"period_seconds,omitzero"`
	Used          int64     `json:"used"`
	ResetsAt      time.Time `json:"resets_at,omitzero"`
}

type tokenJSON struct {
	State      string    `json:"state"`
	Scopes     []string  `json:"scopes"`
	CreatedAt  time.Time `json:"created_at"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"`
	RevokedAt  time.Time `json:"revoked_at,omitzero"`
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
}

func principalsAsJSON(list []postgres.Principal, now time.Time) []principalJSON {
	out := make([]principalJSON, len(list))
	for i, p := range list {
		out[i] = principalJSON{Name: p.Name, CreatedAt: p.CreatedAt, Tokens: []tokenJSON{}}
		if p.Budget != (plant.Budget{}) || p.Used > 0 {
			out[i].Budget = &budgetJSON{p.Budget.Most, p.Budget.Period.Seconds(), p.Used, p.ResetsAt}
		}
		for j, t := range p.Tokens {
			out[i].Tokens = append(out[i].Tokens, tokenJSON{state(t, j > 0, now), t.Scopes, t.CreatedAt, t.ExpiresAt, t.RevokedAt, t.LastUsedAt})
		}
	}
	return out
}
