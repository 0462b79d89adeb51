//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"plantstore/internal/auth"
	"plantstore/internal/localpg"
	"plantstore/internal/migrate"
	"plantstore/internal/plant"
	"plantstore/internal/postgres"
)

// database is the name of the private database.
const database = "plantstore"

// Run serves a private database until ctx ends, and removes it.
func (c *devCommand) Run(ctx context.Context, console *console, parsed *kong.Context) (err error) {
	ctx, console = untilUnread(ctx, console)
	program, err := os.Executable()
	if err != nil {
		return err
	}
	public, err := listenOrAny("--addr (PLANTSTORE_ADDR)", c.Addr, devAddr)
	if err != nil {
		return err
	}
	admin, err := listenOrAny("--admin-addr (PLANTSTORE_ADMIN_ADDR)", c.AdminAddr, devAdminAddr)
	if err != nil {
		return err
	}
	left, err := localpg.RemoveLeftovers("")
	for _, folder := range left {
		fmt.Fprintf(console.err, "removed what a killed 'plantstore dev' had left in %s\n", folder)
	}
	if err != nil {
		return err
	}
	console.say("making a private PostgreSQL")
	pg, err := localpg.Start(ctx, localpg.Options{})
	if err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before it had begun
		}
		return err
	}
	defer func() { err = errors.Join(err, pg.Close()) }()
	token, err := prepare(ctx, console, pg)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return explained(err, "the private database's URL")
	}
	owner, app := pg.URL("plantstore_owner", database), pg.URL("plantstore_app", database)
	console.said()
	fmt.Fprintf(console.out, devGreeting, public.Addr(), token, pg.Version(), owner, admin.Addr(), forShell(program), app)
	log := newLog(console, c.LogFormat, c.LogLevel)
	db, err := postgres.Open(context.WithoutCancel(ctx), app)
	if err != nil {
		return explained(err, "the private database's URL")
	}
	defer db.Close()
	return serve(ctx, c.serveTuning, service{db: db, log: log, public: public, admin: admin, settings: changed(parsed)})
}

const devGreeting = `
The plant store runs at http://%[1]s on a private PostgreSQL %[3]s. Ctrl-C removes everything.

Token: %[2]s

Paste these into another terminal:

  # 204: the plant is gone. The second time: 404 (40402), deleted earlier.
  curl -i -X DELETE http://%[1]s/plants/1 -H 'Authorization: Bearer %[2]s'

  # 404 (40401): there never was such a plant.
  curl -i -X DELETE http://%[1]s/plants/999 -H 'Authorization: Bearer %[2]s'

  # 409 (40900): an order still refers to the plant.
  curl -i -X DELETE http://%[1]s/plants/3 -H 'Authorization: Bearer %[2]s'

  # 401 (40100): no token.
  curl -i -X DELETE http://%[1]s/plants/2

The program, and the database for it to use:

  export PLANTSTORE_MIGRATE_DATABASE_URL='%[4]s'
  export DATABASE_URL='%[7]s'
  %[6]s deletions list
  %[6]s --help

Look inside: psql '%[4]s' -c 'TABLE plant_deletions'
The API in a browser: http://%[1]s/docs
Health and metrics: curl http://%[5]s/readyz http://%[5]s/metrics

`

// forShell is a path as it is pasted into a shell.
func forShell(path string) string {
	if !regexp.MustCompile(`[^A-Za-z0-9_./-]`).MatchString(path) {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// prepare makes roles, schema, sample plants and a token.
func prepare(ctx context.Context, console *console, pg *localpg.Server) (token string, err error) {
	console.say("applying the migrations")
	if err := migrate.NewStore(ctx, pg.URL, database); err != nil {
		return "", err
	}
	owner := pg.URL("plantstore_owner", database)
	console.say("planting sample plants")
	// Orders are not the service's own: they stand for whatever else a store
	// has that refers to its plants.
	err = postgres.Script(ctx, owner, `
		INSERT INTO plants (name) VALUES
			('Monstera deliciosa'), ('Boston fern'), ('Peace lily'), ('Snake plant'), ('Rubber fig'),
			('Golden pothos'), ('Aloe vera'), ('Jade plant'), ('English lavender'), ('Japanese maple');
		CREATE TABLE order_items (
			order_id bigint NOT NULL,
			plant_id bigint NOT NULL REFERENCES plants ON DELETE RESTRICT,
			quantity integer NOT NULL,
			PRIMARY KEY (order_id, plant_id)
		);
		CREATE INDEX ON order_items (plant_id);
		INSERT INTO order_items VALUES (1001, 3, 2);`)
	if err != nil {
		return "", err
	}
	db, err := postgres.Open(ctx, owner)
	if err != nil {
		return "", err
	}
	defer db.Close()
	return db.Tokens(0).Create(ctx, "dev", []string{auth.ScopeDelete}, time.Now().AddDate(0, 0, 1), plant.Budget{})
}

// listenOrAny listens on addr or, if that is empty, on preferred or else any
// port of the same host.
func listenOrAny(setting, addr, preferred string) (net.Listener, error) {
	if addr != "" {
		return listen(setting, addr)
	}
	l, err := net.Listen("tcp", preferred)
	if errors.Is(err, syscall.EADDRINUSE) {
		host, _, _ := net.SplitHostPort(preferred)
		l, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	return l, err
}
