// Package migrations holds the service's schema as goose migrations in plain
// SQL. Package internal/migrate applies them; the stock goose command line runs
// the same files. README.md is the manual for DBAs.
package migrations

import "embed"

// Files are the migrations.
//
//go:embed *.sql
var Files embed.FS
