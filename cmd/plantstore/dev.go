//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
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

// devDatabase is the name of the private database, and devSetting stands for its URL in
// messages.
const devDatabase, devSetting = "plantstore", "the private database's URL"

// Run serves a private database until ctx ends, and removes it.
func (c *devCommand) Run(ctx context.Context, console *console, parsed *kong.Context) (err error) {
	var ignored []string // libpq's variables are for another database
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "PG") {
			os.Unsetenv(name)
			ignored = append(ignored, name)
		}
	}
	if len(ignored) > 0 {
		fmt.Fprintf(console.err, "ignored, as the database is a private one: %s\n", strings.Join(ignored, ", "))
	}
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
	pg, err := localpg.Start(ctx, localpg.Options{})
	if err == nil {
		defer func() { err = errors.Join(err, pg.Close()) }()
	}
	var token string
	owner, app := "", ""
	if err == nil {
		owner, app = pg.URL("plantstore_owner", devDatabase), pg.URL("plantstore_app", devDatabase)
		token, err = prepare(ctx, pg, owner)
	}
	if ctx.Err() != nil {
		return nil // interrupted before it served
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(console.out, devGreeting, public.Addr(), token, pg.Version(), owner, admin.Addr(), program, app)
	s := c.limitFlags.service()
	s.database.URL, s.database.Setting = app, devSetting
	s.logFormat, s.logLevel = c.LogFormat, c.LogLevel
	return serve(ctx, console, s, public, admin, changed(parsed))
}

const devGreeting = `
The plant store runs at http://%[1]s on a private PostgreSQL %[3]s. Ctrl-C removes everything.

Token: %[2]s

Paste these into another terminal:

  # 204: the plant is deleted. The second time: 404 (40402), deleted earlier.
  curl -i -X DELETE http://%[1]s/plants/1 -H 'Authorization: Bearer %[2]s'

  # 404 (40401): there is no such plant.
  curl -i -X DELETE http://%[1]s/plants/999 -H 'Authorization: Bearer %[2]s'

  # 409 (40900): an order refers to the plant.
  curl -i -X DELETE http://%[1]s/plants/3 -H 'Authorization: Bearer %[2]s'

  # 401 (40100): no token.
  curl -i -X DELETE http://%[1]s/plants/2

Look inside: psql '%[4]s' -c 'TABLE plantstore.deletions'
The API in a browser: http://%[1]s/docs
Health and metrics: curl http://%[5]s/readyz http://%[5]s/metrics

Next, undo the deletion that you just made. --help lists what else the program does.

  export PLANTSTORE_MIGRATE_DATABASE_URL='%[4]s'
  export DATABASE_URL='%[7]s'
  '%[6]s' deletions list
  '%[6]s' deletions restore --plant 1 --yes

`

// prepare makes roles, schema, sample plants and a token.
func prepare(ctx context.Context, pg *localpg.Server, owner string) (token string, err error) {
	if err := migrate.NewStore(ctx, pg.URL, devDatabase); err != nil {
		return "", err
	}
	conn, err := postgres.Connect(ctx, devSetting, owner)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// Orders stand for other tables of a store that refer to its plants.
	if _, err = conn.Exec(ctx, `
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
		INSERT INTO order_items VALUES (1001, 3, 2);`); err != nil {
		return "", err
	}
	return postgres.CreatePrincipal(ctx, conn, "dev", []string{auth.ScopeDelete}, time.Time{}, plant.Budget{})
}

// listenOrAny listens on addr or, if that is empty, on preferred or else any port of the
// same host.
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
