// Package roles embeds the SQL that creates the service's two database roles, so that the
// dev command and the tests run what a DBA runs.
package roles

import _ "embed"

// SQL is roles.sql: to be run as a superuser in the store's database, as often as you like.
//
//go:embed roles.sql
var SQL string
