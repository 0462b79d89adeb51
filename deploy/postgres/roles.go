// Package roles carries the SQL that makes the service's two database roles, so
// that the dev command and the tests run what a DBA runs.
package roles

import _ "embed"

// SQL is roles.sql: plain SQL, safe to run again, to be run as a superuser in
// the store's database.
//
//go:embed roles.sql
var SQL string
