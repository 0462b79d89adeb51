package main

import (
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/pgtest"
)

func TestTokenCommands(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	expect := expecting(t, database.Owner)
	const token = `pst_[0-9A-Za-z]{36}\n`
	// It may be past midnight by then.
	day := func(n int) string { return time.Now().UTC().AddDate(0, 0, n).Format(time.DateOnly) }
	printed := expect(0, token, `the token of "shop" expires (`+day(1)+`|`+day(2)+`); it cannot be shown again\n`, "token", "create", "shop", "--budget=500/90m", "--days=1")
	expect(1, "", `plantstore: principal "shop" exists: 'plantstore token rotate shop' makes another token for it\n`, "token", "create", "shop")
	expect(1, "", `plantstore: "a b" cannot be a principal's name: .*\n`, "token", "create", "a b")
	expect(1, "", `plantstore: "plantstore_app" is the name of a database role, .*\n`, "token", "create", "plantstore_app")
	expect(0, `PRINCIPAL +TOKEN +SCOPES +CREATED +EXPIRES +LAST USED +BUDGET\nshop +valid +plants:delete +\S+Z +\S+Z +never +500/1h30m\n`, "", "token", "list")
	printed += expect(0, token, `the token of "shop" never expires; .*\nits earlier tokens expire in 1d at the latest\n`, "token", "rotate", "shop", "--overlap=1d", "--no-expiry")
	expect(0, `PRINCIPAL [^\n]*\nshop +valid +plants:delete +\S+ +never [^\n]*\nshop +old +plants:delete +\S+ +\S+Z [^\n]*\n`, "", "token", "list")
	printed += expect(0, token, `the token of "shop" expires .*\nits earlier tokens are revoked; services know within 5 seconds\n`, "token", "rotate", "shop", "--overlap=0s", "--days=36500")
	expect(0, `1 token of "shop" revoked; .*\n`, "", "token", "revoke", "shop")
	expect(0, `"shop" has no tokens left to revoke\n`, "", "token", "revoke", "shop")
	expect(1, "", `plantstore: all tokens of "shop" are revoked: 'plantstore token create shop' makes another\n`, "token", "rotate", "shop")
	for _, command := range []string{"revoke", "rotate", "budget 5/1h"} {
		words := strings.Fields(command)
		expect(1, "", `plantstore: there is no principal "nobody": see 'plantstore token list'\n`, append([]string{"token", words[0], "nobody"}, words[1:]...)...)
	}
	expect(0, `the deletion budget of "shop" is none; .*\n"shop" can use its whole budget again; .*\n`, "", "token", "budget", "shop", "none", "--reset")
	expect(0, `the deletion budget of "jwt:x" is 5/7d; .*\n`, "", "token", "budget", "jwt:x", "5/7d")
	expect(1, "", `plantstore: "jwt:x" has JWTs: .*\n`, "token", "rotate", "jwt:x")
	list := expect(0, `\[\n  \{\n    "name": "jwt:x",\n.*"most": 5,\n +"period_seconds": 604800,\n.*"tokens": \[\]\n.*"name": "shop".*"state": "revoked",\n +"scopes": \[\n +"plants:delete"\n.*\]\n`, "", "token", "list", "--json")
	execute(t, pgtest.Connect(t, database.Owner), `UPDATE plantstore.tokens SET expires_at = now(), revoked_at = NULL WHERE expires_at < 'infinity';
		UPDATE plantstore.principals SET budget_used = 2, budget_resets_at = now() + interval '1 hour'`, pgx.QueryExecModeSimpleProtocol)
	expect(0, `PRINCIPAL [^\n]*\njwt:x [^\n]* 5/7d, 2 used until \S+Z\nshop +expired [^\n]* none\n.*`, "", "token", "list")
	for one := range strings.Lines(printed) {
		if strings.Contains(list, strings.TrimSpace(one)) {
			t.Error("token list shows a token")
		}
	}
}

func TestTokenCommandsExplainDatabaseErrors(t *testing.T) {
	t.Parallel()
	expect := expecting(t, pgtest.Shared(t).App)
	for _, args := range []string{"token create x", "token budget x 5/1h"} {
		expect(1, "", `plantstore: ERROR: permission denied for table principals \(SQLSTATE 42501\): connect as the owner of the schema, see --migrate-database-url \(PLANTSTORE_MIGRATE_DATABASE_URL\); if this is the owner, .plantstore doctor. names the missing right\n`, strings.Fields(args)...)
	}
	expecting(t, pgtest.Empty(t).Owner)(1, "", `plantstore: ERROR: relation "plantstore.principals" does not exist \(SQLSTATE 42P01\): apply the migrations with 'plantstore migrate up'\n`, "token", "list")
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestTokenCommandsReportATokenLostInOutput(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	const want = `the new token of "shop" is lost: no space left on device: 'plantstore token rotate shop' makes another`
	for _, args := range [][]string{{"create", "shop"}, {"rotate", "shop"}} {
		err := run(t.Context(), append([]string{"token"}, append(args, "--migrate-database-url="+database.Owner)...), nil,
			writerFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC }), io.Discard)
		if err == nil || err.Error() != want {
			t.Errorf("token %v: got %v, want %s", args, err, want)
		}
	}
}
