package main

import (
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// ourPrefix begins the names of our variables, but for DATABASE_URL.
const ourPrefix = "PLANTSTORE_"

// unsetEmptyVariables unsets our variables that are empty: a compose file or a systemd unit
// cannot leave a variable out.
func unsetEmptyVariables() {
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		if value == "" && (strings.HasPrefix(name, ourPrefix) || strings.HasPrefix(name, "DATABASE_URL")) {
			os.Unsetenv(name)
		}
	}
}

// foreign are variables with our prefix that are no settings: of tests and make, of
// docker-compose.yml, and those that Kubernetes sets for Services such as plantstore-admin.
var foreign = regexp.MustCompile(`^PLANTSTORE_(TEST_\w+|NO_INSTALL|VERSION|COMMIT|TAG|OWNER_PASSWORD|APP_PASSWORD|(\w+_)?(SERVICE_HOST|SERVICE_PORT|PORT)(_\w+)?)$`)

// unknownVariables warns of each variable with our prefix that nothing reads.
func unknownVariables(app *kong.Application, environ []string) (warnings []string) {
	var settings []string
	_ = kong.Visit(app.Node, func(node kong.Visitable, next kong.Next) error { // no visit fails
		if flag, ok := node.(*kong.Flag); ok {
			settings = append(settings, flag.Envs...)
		}
		return next(nil)
	})
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, ourPrefix) && !slices.Contains(settings, name) && !foreign.MatchString(name) {
			warnings = append(warnings, name+" is no setting and has no effect: 'plantstore serve --help' lists the settings")
		}
	}
	return warnings
}
