package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"plantstore/internal/auth"
	"plantstore/internal/postgres"
)

type tokenCommand struct {
	Create tokenCreate `cmd:"" help:"Issue a token and print it, this once."`
	List   tokenList   `cmd:"" help:"List the tokens, without the tokens themselves."`
	Revoke tokenRevoke `cmd:"" help:"End a token."`
}

// withTokens opens the tokens of the database for use.
func (f *ownerFlags) withTokens(ctx context.Context, use func(*postgres.Tokens) error) error {
	db, err := postgres.Open(ctx, f.DatabaseURL)
	if err != nil {
		return explained(err)
	}
	defer db.Close()
	return use(db.Tokens(0))
}

type tokenCreate struct {
	ownerFlags `embed:""`
	Name       string   `arg:"" help:"Who the token is for: recorded with each deletion."`
	Days       int      `default:"90" help:"Days until it expires; 0 for never."`
	Scope      []string `default:"${scope}" enum:"${scope}" help:"What it allows: ${enum}."`
}

// Validate refuses values that can't work.
func (c *tokenCreate) Validate() error {
	if c.Days < 0 || c.Days > 36500 {
		return fmt.Errorf("--days is %d: it must be from 0 to 36500", c.Days)
	}
	return nil
}

// Run issues a token.
func (c *tokenCreate) Run(ctx context.Context, console *console) error {
	var expires time.Time
	if c.Days > 0 {
		expires = time.Now().AddDate(0, 0, c.Days)
	}
	return c.withTokens(ctx, func(tokens *postgres.Tokens) error {
		token, err := tokens.Create(ctx, c.Name, c.Scope, expires)
		switch {
		case errors.Is(err, postgres.ErrTokenExists):
			return fmt.Errorf("a token named %q exists already, and a name is never used twice: choose another", c.Name)
		case errors.Is(err, postgres.ErrTokenName):
			return fmt.Errorf("%q cannot be a token's name: use 1 to 63 letters, digits and . _ @ -, the first a letter or digit", c.Name)
		case err != nil:
			return err
		}
		// Alone on standard output, so that a script can take it.
		fmt.Fprintln(console.out, token)
		fmt.Fprintf(console.err, "token %q %s; it cannot be shown again\n", c.Name, expiry(expires))
		return nil
	})
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

// Run lists the tokens.
func (c *tokenList) Run(ctx context.Context, console *console) error {
	return c.withTokens(ctx, func(tokens *postgres.Tokens) error {
		list, err := tokens.List(ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(console.out, tokensAsJSON(list))
		}
		table := newTable(console.out, "NAME", "STATE", "SCOPES", "CREATED", "EXPIRES", "LAST USED")
		for _, t := range list {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", t.Name, state(t, time.Now()), strings.Join(t.Scopes, ","),
				date(t.CreatedAt, "-"), date(t.ExpiresAt, "never"), date(t.LastUsedAt, "never"))
		}
		return table.Flush()
	})
}

func state(t auth.Token, now time.Time) string {
	switch {
	case !t.RevokedAt.IsZero():
		return "revoked"
	case !t.ValidAt(now):
		return "expired"
	default:
		return "valid"
	}
}

type tokenJSON struct {
	Name       string    `json:"name"`
	State      string    `json:"state"`
	Scopes     []string  `json:"scopes"`
	CreatedAt  time.Time `json:"created_at"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"`
	RevokedAt  time.Time `json:"revoked_at,omitzero"`
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
}

func tokensAsJSON(list []auth.Token) []tokenJSON {
	out := make([]tokenJSON, len(list))
	for i, t := range list {
		out[i] = tokenJSON{t.Name, state(t, time.Now()), t.Scopes, t.CreatedAt, t.ExpiresAt, t.RevokedAt, t.LastUsedAt}
	}
	return out
}

type tokenRevoke struct {
	ownerFlags `embed:""`
	Name       string `arg:"" help:"The token's name."`
}

// Run ends a token.
func (c *tokenRevoke) Run(ctx context.Context, console *console) error {
	return c.withTokens(ctx, func(tokens *postgres.Tokens) error {
		before, err := tokens.Revoke(ctx, c.Name)
		switch {
		case errors.Is(err, postgres.ErrNoToken):
			return fmt.Errorf("there is no token named %q: see 'plantstore token list'", c.Name)
		case err != nil:
			return err
		case !before.IsZero():
			fmt.Fprintf(console.out, "token %q had been revoked at %s\n", c.Name, date(before, ""))
		default:
			fmt.Fprintf(console.out, "token %q is revoked; services refuse it once their cache is stale (PLANTSTORE_TOKEN_CACHE_TTL)\n", c.Name)
		}
		return nil
	})
}
