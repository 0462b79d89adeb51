package migrate

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/pressly/goose/v3"
)

// script returns what goose sends for the Up of a migration. goose has no dry
// run and exports no parser, so it runs the migration on a connection that only
// writes down.
func (s Set) script(ctx context.Context, m Migration) (*script, error) {
	written := new(script)
	db := sql.OpenDB(written)
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, db, s.Files,
		goose.WithDisableVersioning(true), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("goose provider: %w", err)
	}
	if _, err := p.ApplyVersion(ctx, m.Version, true); err != nil {
		return nil, fmt.Errorf("read migration %s: %w", m.Name, err)
	}
	return written, nil
}

// A script is a database driver and connection that writes statements down.
type script struct {
	statements  []string
	transaction bool
}

func (s *script) Connect(context.Context) (driver.Conn, error) { return s, nil }
func (s *script) Driver() driver.Driver                        { return s }
func (s *script) Open(string) (driver.Conn, error)             { return s, nil }
func (s *script) Begin() (driver.Tx, error)                    { s.transaction = true; return s, nil }
func (s *script) Commit() error                                { return nil }
func (s *script) Rollback() error                              { return nil }
func (s *script) Close() error                                 { return nil }
func (s *script) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (s *script) ExecContext(_ context.Context, sql string, _ []driver.NamedValue) (driver.Result, error) {
	s.statements = append(s.statements, sql)
	return driver.ResultNoRows, nil
}
