package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
	"plantstore/internal/postgres"
)

type tokenCommand struct {
	Create tokenCreate `cmd:"" help:"Make a principal, a client of the service, and print its token, this once."`
	Rotate tokenRotate `cmd:"" help:"Print another token for a principal, this once. The one before goes on for a while."`
	List   tokenList   `cmd:"" help:"List the principals, their tokens, without the tokens themselves, and their budgets."`
	Budget tokenBudget `cmd:"" help:"Set or lift the deletion budget of a principal: how many plants it may delete in a time."`
	Revoke tokenRevoke `cmd:"" help:"End all tokens of a principal."`
}

// withTokens opens the tokens of the database for use.
func (f *ownerFlags) withTokens(ctx context.Context, use func(*postgres.Tokens) error) error {
	db, err := postgres.OpenFrom(ctx, f.setting, f.DatabaseURL)
	if err != nil {
		return f.explained(err)
	}
	defer db.Close()
	return use(db.Tokens(0))
}

// A lifetime is how long a new token is good.
type lifetime struct {
	Days int `default:"90" help:"Days until the token expires; 0 for never."`
}

// Validate refuses values that can't work.
func (l lifetime) Validate() error {
	if l.Days < 0 || l.Days > 36500 {
		return fmt.Errorf("--days is %d: it must be from 0 to 36500", l.Days)
	}
	return nil
}

// end is when a token expires that is made at the moment; zero for never.
func (l lifetime) end() time.Time {
	if l.Days == 0 {
		return time.Time{}
	}
	return time.Now().AddDate(0, 0, l.Days)
}

type tokenCreate struct {
	ownerFlags `embed:""`
	lifetime   `embed:""`
	Name       string   `arg:"" help:"Who the token is for: recorded with each deletion."`
	Scope      []string `default:"${scope}" enum:"${scope}" help:"What it allows: ${enum}."`
	Budget     budget   `default:"none" placeholder:"BUDGET" help:"How many plants it may delete in a time, as 500/1h or 10000/7d."`
}

// Validate refuses values that can't work.
func (c *tokenCreate) Validate() error {
	if len(c.Scope) == 0 {
		return errors.New("--scope is empty: the token would allow nothing")
	}
	return c.lifetime.Validate()
}

// Run makes a principal.
func (c *tokenCreate) Run(ctx context.Context, console *console) error {
	if console.nowhere {
		return errTokenNowhere
	}
	expires := c.end()
	return c.withTokens(ctx, func(tokens *postgres.Tokens) error {
		token, err := tokens.Create(ctx, c.Name, slices.Compact(slices.Sorted(slices.Values(c.Scope))), expires, plant.Budget(c.Budget))
		switch {
		case errors.Is(err, postgres.ErrPrincipalExists):
			return fmt.Errorf("there is a principal %q already: 'plantstore token rotate %s' gives it another token", c.Name, c.Name)
		case errors.Is(err, postgres.ErrPrincipalName):
			return fmt.Errorf("%q cannot be a principal's name: use 1 to 63 letters, digits and . _ @ -, the first a letter or digit", c.Name)
		case errors.Is(err, postgres.ErrRoleName):
			return fmt.Errorf("%q is the name of a database role, which may delete by itself: choose another", c.Name)
		case err != nil:
			return err
		}
		return printToken(console, c.Name, token, expires)
	})
}

// errTokenNowhere: the token, which is shown once, would be lost.
var errTokenNowhere = &exitError{exitUsage, errors.New("nothing was done, as standard output is closed or the null device: the token is printed there, and this once only")}

// printToken prints a token alone on standard output, so that a script can take it.
func printToken(console *console, principal, token string, expires time.Time) error {
	if _, err := fmt.Fprintln(console.out, token); err != nil {
		return fmt.Errorf("a token of %[1]q was made, and is lost: %[2]w; 'plantstore token rotate %[1]s' gives it another", principal, err)
	}
	_, err := fmt.Fprintf(console.err, "the token of %q %s; it cannot be shown again\n", principal, expiry(expires))
	return err
}

type tokenRotate struct {
	ownerFlags `embed:""`
	lifetime   `embed:""`
	Name       string `arg:"" help:"The principal."`
	Overlap    age    `default:"24h" placeholder:"AGE" help:"How long its earlier tokens go on, as 24h or 7d; 0s ends them at once."`
}

// Run gives a principal another token.
func (c *tokenRotate) Run(ctx context.Context, console *console) error {
	if console.nowhere {
		return errTokenNowhere
	}
	expires := c.end()
	return c.withTokens(ctx, func(tokens *postgres.Tokens) error {
		token, err := tokens.Rotate(ctx, c.Name, time.Duration(c.Overlap), expires)
		switch {
		case errors.Is(err, postgres.ErrNoPrincipal):
			return noPrincipal(c.Name)
		case errors.Is(err, postgres.ErrRevoked):
			return fmt.Errorf("all tokens of %q were revoked: 'plantstore token create %s' lets it in again", c.Name, c.Name)
		case err != nil:
			return err
		}
		if err := printToken(console, c.Name, token, expires); err != nil {
			return err
		}
		if c.Overlap > 0 {
			_, err = fmt.Fprintf(console.err, "its earlier tokens end in %s at the latest\n", c.Overlap)
		} else {
			_, err = fmt.Fprintf(console.err, "its earlier tokens are revoked; %s\n", onceStale)
		}
		return err
	})
}

// onceStale says when a revocation takes effect.
const onceStale = "services refuse them once their cache is stale (PLANTSTORE_TOKEN_CACHE_TTL)"

func noPrincipal(name string) error {
	if auth.ComesWithJWT(name) {
		return fmt.Errorf("%q comes with JWTs, which the identity provider issues and ends: 'plantstore token budget' with 1/7d stops it meanwhile, where services have a PLANTSTORE_OIDC_BUDGET", name)
	}
	return fmt.Errorf("there is no principal %q: see 'plantstore token list'", name)
}

func expiry(t time.Time) string {
	if t.IsZero() {
		return "never expires"
	}
	return "expires " + t.UTC().Format(time.DateOnly)
}

type tokenList struct {
	ownerFlags `embed:""`
	JSON       bool `name:"json" help:"Print JSON."`
}

// Run lists the principals.
func (c *tokenList) Run(ctx context.Context, console *console) error {
	return c.withTokens(ctx, func(tokens *postgres.Tokens) error {
		list, err := tokens.List(ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(console.out, principalsAsJSON(list))
		}
		table := newTable(console.out, "PRINCIPAL", "TOKEN", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "BUDGET")
		for _, p := range list {
			if len(p.Tokens) == 0 {
				fmt.Fprintf(table, "%s\tJWT\t-\t-\t-\t-\t%s\n", p.Name, budgetOf(p, time.Now()))
			}
			for i, t := range p.Tokens {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Name, state(t, i > 0, time.Now()), strings.Join(t.Scopes, ","),
					date(t.CreatedAt, "-"), date(t.ExpiresAt, "never"), date(t.LastUsedAt, "never"), budgetOf(p, time.Now()))
			}
		}
		return table.Flush()
	})
}

// state is what has become of a token. One that is good may be an old one, since when
// its principal was given another.
func state(t auth.Token, old bool, now time.Time) string {
	switch {
	case !t.RevokedAt.IsZero():
		return "revoked"
	case !t.ValidAt(now):
		return "expired"
	case old:
		return "old"
	default:
		return "valid"
	}
}

// budgetOf is a principal's budget, and what is used of it.
func budgetOf(p postgres.PrincipalTokens, now time.Time) string {
	budget := p.Budget.String()
	switch {
	case p.ByDefault && p.Budget == plant.Budget{}:
		budget = "default"
	case p.ByDefault:
		budget += " by default"
	case p.Budget == plant.Budget{}:
		return "-"
	}
	if now.Before(p.LiftedUntil) {
		return fmt.Sprintf("%s, lifted until %s", budget, date(p.LiftedUntil, ""))
	}
	return fmt.Sprintf("%s, %d used", budget, p.Used)
}

type principalJSON struct {
	Name      string      `json:"name"`
	CreatedAt time.Time   `json:"created_at,omitzero"`
	Budget    *budgetJSON `json:"budget,omitempty"`
	Tokens    []tokenJSON `json:"tokens"` // newest first; none if the principal comes with JWTs
}

type budgetJSON struct {
	Most          int64     `json:"most,omitzero"` // not of a default that is not known yet
	PeriodSeconds float64   `json:"period_seconds,omitzero"`
	ByDefault     bool      `json:"by_default,omitzero"`
	Used          int64     `json:"used"`
	LiftedUntil   time.Time `json:"lifted_until,omitzero"`
}

type tokenJSON struct {
	State      string    `json:"state"`
	Scopes     []string  `json:"scopes"`
	CreatedAt  time.Time `json:"created_at"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"`
	RevokedAt  time.Time `json:"revoked_at,omitzero"`
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
}

func principalsAsJSON(list []postgres.PrincipalTokens) []principalJSON {
	out := make([]principalJSON, len(list))
	for i, p := range list {
		out[i] = principalJSON{Name: p.Name, CreatedAt: p.CreatedAt, Tokens: []tokenJSON{}}
		if p.Budget != (plant.Budget{}) || p.ByDefault {
			out[i].Budget = &budgetJSON{p.Budget.Most, p.Budget.Period.Seconds(), p.ByDefault, p.Used, p.LiftedUntil}
		}
		for j, t := range p.Tokens {
			out[i].Tokens = append(out[i].Tokens, tokenJSON{state(t, j > 0, time.Now()), t.Scopes, t.CreatedAt, t.ExpiresAt, t.RevokedAt, t.LastUsedAt})
		}
	}
	return out
}

type tokenBudget struct {
	ownerFlags `embed:""`
	Name       string  `arg:"" help:"The principal; oidc:SUBJECT if it comes with JWTs."`
	Budget     *budget `arg:"" optional:"" help:"How many plants it may delete in a time, as 500/1h or 10000/7d, or none. What it has deleted under another budget counts; a lift ends."`
	Lift       *age    `placeholder:"AGE" help:"Let it delete as if it had no budget, for that time, as 30m; 0s ends that."`
}

// Help adds to the command's help.
func (c *tokenBudget) Help() string {
	return `In no span of time as long as the budget's, a principal deletes more plants than it
says, however many services there are. Beyond it they answer 429 (42901), with the time
in Retry-After. Answers that repeat an earlier one and refusals cost nothing, and a
restore gives nothing back. Services know of a budget that is new, or gone, once their
cache is stale (PLANTSTORE_TOKEN_CACHE_TTL); what one is, is up to the database.

A principal that comes with JWTs has the budget that services have for those
(PLANTSTORE_OIDC_BUDGET), or one of its own instead, until that is none again. Services
without that setting do not look at its budget.`
}

// Validate refuses what says nothing, or two things.
func (c *tokenBudget) Validate() error {
	if c.Budget == nil && c.Lift == nil {
		return fmt.Errorf("say what the deletion budget of %q is to be, as 500/1h or none, or lift it, as --lift 30m", c.Name)
	}
	if c.Budget != nil && *c.Budget == (budget{}) && c.Lift != nil && !auth.ComesWithJWT(c.Name) {
		return errors.New("a principal without a budget has none that could be lifted: leave out --lift")
	}
	return nil
}

// Run sets or lifts a budget.
func (c *tokenBudget) Run(ctx context.Context, console *console) error {
	return c.withTokens(ctx, func(tokens *postgres.Tokens) error {
		if c.Budget != nil {
			budget := plant.Budget(*c.Budget)
			if err := c.told(tokens.SetBudget(ctx, c.Name, budget)); err != nil {
				return err
			}
			switch {
			case !auth.ComesWithJWT(c.Name) && budget == plant.Budget{}:
				fmt.Fprintf(console.out, "%q has no deletion budget any more\n", c.Name)
			case !auth.ComesWithJWT(c.Name):
				fmt.Fprintf(console.out, "the deletion budget of %q is %s\n", c.Name, budget)
			case budget == plant.Budget{}:
				fmt.Fprintf(console.out, "%q has no deletion budget of its own: that of PLANTSTORE_OIDC_BUDGET counts\n", c.Name)
			default:
				fmt.Fprintf(console.out, "the deletion budget of %q is %s, instead of that of PLANTSTORE_OIDC_BUDGET; services without that setting do not look at it\n", c.Name, budget)
			}
		}
		if c.Lift != nil {
			if err := c.told(tokens.LiftBudget(ctx, c.Name, time.Duration(*c.Lift))); err != nil {
				return err
			}
			if *c.Lift > 0 {
				fmt.Fprintf(console.out, "the deletion budget of %q is lifted for %s\n", c.Name, c.Lift)
			} else {
				fmt.Fprintf(console.out, "the deletion budget of %q counts\n", c.Name)
			}
		}
		return nil
	})
}

// told puts the errors of a change into words.
func (c *tokenBudget) told(err error) error {
	switch {
	case errors.Is(err, postgres.ErrNoPrincipal):
		return noPrincipal(c.Name)
	case errors.Is(err, postgres.ErrNoBudget):
		return fmt.Errorf("%q has no deletion budget that could be lifted", c.Name)
	}
	return err
}

type tokenRevoke struct {
	ownerFlags `embed:""`
	Name       string `arg:"" help:"The principal."`
}

// Run ends the tokens of a principal.
func (c *tokenRevoke) Run(ctx context.Context, console *console) error {
	return c.withTokens(ctx, func(tokens *postgres.Tokens) error {
		before, err := tokens.Revoke(ctx, c.Name)
		switch {
		case errors.Is(err, postgres.ErrNoPrincipal):
			return noPrincipal(c.Name)
		case err != nil:
			return err
		case !before.IsZero():
			fmt.Fprintf(console.out, "the tokens of %q had been revoked, the last at %s\n", c.Name, date(before, ""))
		default:
			fmt.Fprintf(console.out, "the tokens of %q are revoked; %s\n", c.Name, onceStale)
		}
		return nil
	})
}
