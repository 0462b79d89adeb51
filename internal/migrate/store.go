package migrate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	roles "plantstore/deploy/postgres"
)

// NewStore creates a database with the service's roles and schema. urlFor returns the URL of a
// server's database for a role: postgres stands for a superuser, and for a database that
// exists. After an error the database may exist, unfinished.
func NewStore(ctx context.Context, urlFor func(role, database string) string, database string) error {
	if err := CreateDatabase(ctx, urlFor, database); err != nil {
		return err
	}
	_, err := Up(ctx, urlFor("plantstore_owner", database), Options{})
	return err
}

// CreateDatabase is NewStore without migrations.
func CreateDatabase(ctx context.Context, urlFor func(role, database string) string, database string) error {
	create := `CREATE DATABASE ` + pgx.Identifier{database}.Sanitize() + ` TEMPLATE template0` // nobody is connected to that one
	if err := execute(ctx, urlFor("postgres", "postgres"), create); err != nil {
		return fmt.Errorf("create database %s: %w", database, err)
	}
	if err := execute(ctx, urlFor("postgres", database), roles.SQL); err != nil {
		return fmt.Errorf("create the roles in database %s: %w", database, err)
	}
	return nil
}

// execute runs statements on a connection of their own.
func execute(ctx context.Context, databaseURL, sql string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}
