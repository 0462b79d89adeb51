// Package roles carries the SQL that makes the service's two database roles, so
// that the dev command and the tests run what a DBA runs.
package roles

import (
	_ "embed"
	"strings"
)

//go:embed roles.sql
var file string

// SQL is roles.sql without what only psql understands: safe to run again, to be run
// as a superuser in the store's database. In one transaction it makes all or nothing.
var SQL = plain(file)

// plain leaves the lines out that are commands of psql.
func plain(script string) string {
	var b strings.Builder
	for line := range strings.Lines(script) {
		if !strings.HasPrefix(line, `\`) {
			b.WriteString(line)
		}
	}
	return b.String()
}
