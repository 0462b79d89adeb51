package migrate_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/migrate"
	"plantstore/internal/pgtest"
)

// Nobody who has given up is kept waiting by a server that does not answer.
func TestConnectEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancel(t.Context())
	url := pgtest.Proxy(t, pgtest.Empty(t).Owner, func(client net.Conn) {
		end()
		_, _ = io.Copy(io.Discard, client)
	})
	if _, _, err := migrate.Service().Status(ctx, url); !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "connect: ") {
		t.Errorf("Status: %v, want that connecting was cancelled", err)
	}
}

func TestNewStore(t *testing.T) {
	t.Parallel()
	neighbour := pgtest.Empty(t)
	onServer := func(role, database string) string {
		base := neighbour.Super
		if role == "plantstore_owner" {
			base = neighbour.Owner
		}
		u, err := url.Parse(base)
		if err != nil {
			t.Fatal(err)
		}
		if database != "postgres" {
			u.Path = "/" + database
		}
		return u.String()
	}
	name := neighbour.Name + ` "new"`
	if err := migrate.NewStore(t.Context(), onServer, name); err != nil {
		t.Fatal(err)
	}
	defer func() {
		drop := `DROP DATABASE ` + pgx.Identifier{name}.Sanitize() + ` WITH (FORCE)`
		if _, err := pgtest.Connect(t, neighbour.Super).Exec(t.Context(), drop); err != nil {
			t.Error(err)
		}
	}()
	if got, want := applied(t, onServer("plantstore_owner", name)), len(migrate.All()); got != want {
		t.Errorf("%d migrations applied, want all %d", got, want)
	}
	nowhere := func(string, string) string { return "postgres://nobody@127.0.0.1:1/nothing?sslmode=disable" }
	if err := migrate.CreateDatabase(t.Context(), nowhere, name, ""); err == nil || !strings.Contains(err.Error(), "create database "+name) {
		t.Errorf("a store where there is no server: error %v, want one about creating %s", err, name)
	}
	err := migrate.NewStore(t.Context(), onServer, name)
	if err == nil || !strings.Contains(err.Error(), "create database "+name) {
		t.Errorf("the same store again: error %v, want one about creating %s", err, name)
	}
}
