package pgtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"

	roles "plantstore/deploy/postgres"
	"plantstore/internal/migrate"
	"plantstore/migrations"
)

const (
	ownerRole = "plantstore_owner"
	appRole   = "plantstore_app"

	// password is that of both roles.
	password = "plantstore-test"

	// templateLock is the advisory lock that test processes which share a server
	// make roles and the template under. Any number would do.
	templateLock = 7_526_884_111
)

// Database is a database of one test. The fields but Name are URLs.
type Database struct {
	Name  string
	Super string // as a superuser
	Owner string // as plantstore_owner, who migrates
	App   string // as plantstore_app, as the service does
}

// prepare makes the roles and the migrated database that New's are copies of,
// unless another process has, and returns its name, which tells what is in it.
func (s *Server) prepare(ctx context.Context) (template string, err error) {
	if template, err = templateName(); err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return "", fmt.Errorf("prepare the template: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) // gives the lock back
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(templateLock)); err != nil {
		return "", fmt.Errorf("prepare the template: lock: %w", err)
	}
	var exists bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, template).Scan(&exists); err != nil {
		return "", fmt.Errorf("look for the template: %w", err)
	}
	if exists {
		return template, nil
	}

	// It gets its name when it is complete: an earlier attempt may have been cut
	// short.
	unfinished := s.database(template + "_unfinished")
	if _, err := conn.Exec(ctx, dropping(unfinished.Name)); err != nil {
		return "", fmt.Errorf("drop what an earlier attempt left: %w", err)
	}
	if err := migrate.CreateDatabase(ctx, s.urlFor, unfinished.Name, "TEMPLATE template0"); err != nil {
		return "", err
	}
	for _, role := range []string{ownerRole, appRole} {
		if _, err := conn.Exec(ctx, `ALTER ROLE `+role+` PASSWORD '`+password+`'`); err != nil {
			return "", fmt.Errorf("set the password of %s: %w", role, err)
		}
	}
	if _, err := migrate.Service().Up(ctx, unfinished.Owner, migrate.Options{}); err != nil {
		return "", fmt.Errorf("migrate the template: %w", err)
	}
	// A database with connections can't be copied.
	for _, sql := range []string{
		`ALTER DATABASE ` + quote(unfinished.Name) + ` ALLOW_CONNECTIONS false`,
		`ALTER DATABASE ` + quote(unfinished.Name) + ` RENAME TO ` + quote(template),
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return "", fmt.Errorf("finish the template: %w", err)
		}
	}
	return template, nil
}

// templateName depends on everything that the template is made from.
func templateName() (string, error) {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n%s\n", password, roles.SQL)
	err := fs.WalkDir(migrations.Files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		b, err := fs.ReadFile(migrations.Files, path)
		fmt.Fprintf(hash, "%s\n%s\n", path, b)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read the migrations: %w", err)
	}
	return "plantstore_template_" + hex.EncodeToString(hash.Sum(nil)[:8]), nil
}

// emptyDatabase makes a database without anything but the roles' rights, by options of CREATE
// DATABASE.
func (s *Server) emptyDatabase(ctx context.Context, options string) (Database, error) {
	db := s.newDatabase()
	return db, migrate.CreateDatabase(ctx, s.urlFor, db.Name, "TEMPLATE template0 "+options)
}

// copyDatabase makes a copy of a database that has the roles' rights in it.
func (s *Server) copyDatabase(ctx context.Context, template string) (Database, error) {
	db := s.newDatabase()
	// Rights on a database as a whole are not copied.
	for _, sql := range []string{
		`CREATE DATABASE ` + quote(db.Name) + ` TEMPLATE ` + quote(template),
		`GRANT CONNECT ON DATABASE ` + quote(db.Name) + ` TO ` + ownerRole + `, ` + appRole,
	} {
		if _, err := s.admin.Exec(ctx, sql); err != nil {
			return db, fmt.Errorf("copy database %s: %w", template, err)
		}
	}
	return db, nil
}

func (s *Server) newDatabase() Database {
	return s.database("plantstore_test_" + strings.ToLower(rand.Text()))
}

// dropDatabase drops a database that may still have connections.
func (s *Server) dropDatabase(ctx context.Context, name string) error {
	if _, err := s.admin.Exec(ctx, dropping(name)); err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

func (s *Server) database(name string) Database {
	return Database{
		Name:  name,
		Super: s.urlFor("postgres", name),
		Owner: s.urlFor(ownerRole, name),
		App:   s.urlFor(appRole, name),
	}
}

// urlFor is a migrate.URLFunc.
func (s *Server) urlFor(role, database string) string {
	switch {
	case role != "postgres":
		return s.databaseURL(url.UserPassword(role, password), database)
	case database != "postgres":
		return s.databaseURL(nil, database)
	default:
		return s.URL
	}
}

func dropping(name string) string { return `DROP DATABASE IF EXISTS ` + quote(name) + ` WITH (FORCE)` }

func quote(identifier string) string { return pgx.Identifier{identifier}.Sanitize() }
