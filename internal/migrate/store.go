package migrate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	roles "plantstore/deploy/postgres"
)

// A URLFunc returns the URL of a server's database for a role. The role postgres
// stands for a superuser, the database postgres for one that is there already.
type URLFunc func(role, database string) string

// NewStore makes a database with the service's roles and schema, as a DBA does
// for a first installation. After an error the database may be there, unfinished.
func NewStore(ctx context.Context, url URLFunc, name string) error {
	if err := CreateDatabase(ctx, url, name, "TEMPLATE template0"); err != nil {
		return err
	}
	_, err := Service().Up(ctx, url("plantstore_owner", name), Options{})
	return err
}

// CreateDatabase makes a database by options of CREATE DATABASE, with the
// service's roles and their rights in it, and applies no migration. PostgreSQL
// refuses to copy a template that others are connected to.
func CreateDatabase(ctx context.Context, url URLFunc, name, options string) error {
	create := `CREATE DATABASE ` + pgx.Identifier{name}.Sanitize() + ` ` + options
	if err := execute(ctx, url("postgres", "postgres"), create); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	// Rights on a database as a whole are not copied, so every copy needs this.
	if err := execute(ctx, url("postgres", name), roles.SQL); err != nil {
		return fmt.Errorf("make the roles in database %s: %w", name, err)
	}
	return nil
}

// execute runs statements over a connection of their own.
func execute(ctx context.Context, databaseURL, sql string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}
