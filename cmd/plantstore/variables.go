package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// ourPrefix begins the names of our variables, but for the database's URL.
const ourPrefix = "PLANTSTORE_"

// dropEmptyVariables makes a variable of ours that is empty one that is not set. A
// compose file or a unit can't leave a variable out, and none of them means anything
// when it is empty.
func dropEmptyVariables() {
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		if value == "" && (strings.HasPrefix(name, ourPrefix) || strings.HasPrefix(name, "DATABASE_URL")) {
			os.Unsetenv(name)
		}
	}
}

// checkVariables looks for variables with our prefix that are no settings of ours. One
// that differs by a slip of the keyboard is an error: what it was to set is not set.
// Others may belong to a release that knows more, so they are worth a warning.
func checkVariables(app *kong.Application, environ []string) (warnings []string, err error) {
	var known []string
	if err := kong.Visit(app.Node, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok {
			known = append(known, flag.Envs...)
		}
		return next(nil)
	}); err != nil {
		return nil, err
	}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, ourPrefix) || slices.Contains(known, name) || isOthers(name, value) {
			continue
		}
		distance := func(setting string) int { // also of one that lacks our prefix, as DATABASE_URL
			return editDistance(ourPrefix+strings.TrimPrefix(setting, ourPrefix), name)
		}
		nearest := slices.MinFunc(known, func(a, b string) int { return distance(a) - distance(b) })
		if distance(nearest) <= 2 {
			return nil, fmt.Errorf("%s is no setting: is it meant to be %s?", name, nearest)
		}
		warning := name + " is no setting of this release and counts for nothing"
		if 2*distance(nearest) <= max(len(name), len(nearest))-len(ourPrefix) {
			warning += "; the nearest is " + nearest
		}
		warnings = append(warnings, warning)
	}
	return warnings, nil
}

// composeNames are the variables with our prefix that docker-compose.yml takes from the
// environment. It gives none of them to the service.
var composeNames = map[string]string{
	"PLANTSTORE_PORT": "PLANTSTORE_ADDR", "PLANTSTORE_ADMIN_PORT": "PLANTSTORE_ADMIN_ADDR",
	"PLANTSTORE_APP_PASSWORD": "PGPASSWORD", "PLANTSTORE_OWNER_PASSWORD": "",
	"PLANTSTORE_VERSION": "", "PLANTSTORE_COMMIT": "", "PLANTSTORE_TAG": "",
}

// composeVariables warns of variables that are meant for docker-compose.yml. Whoever sets
// them for the service may believe that they count. In a shell from which both are run
// they are no mistake, so other commands pass over them.
func composeVariables(environ []string) (warnings []string) {
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		instead, ok := composeNames[name]
		if !ok || isKubernetes(name, value) {
			continue
		}
		warning := name + " is for docker-compose.yml and counts for nothing here"
		if instead != "" {
			warning += "; the setting is " + instead
		}
		warnings = append(warnings, warning)
	}
	return warnings
}

// isOthers reports whether a variable with our prefix is for somebody else: for our
// tests, for docker-compose.yml, or Kubernetes' own.
func isOthers(name, value string) bool {
	_, compose := composeNames[name]
	return strings.HasPrefix(name, ourPrefix+"TEST_") || compose || isKubernetes(name, value)
}

var (
	kubernetesName = regexp.MustCompile(`_(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)$`)
	kubernetesPort = regexp.MustCompile(`^(?:tcp|udp|sctp)://`)
)

// isKubernetes reports whether a variable with our prefix is one of those by which
// Kubernetes tells of Services whose names begin with plantstore.
func isKubernetes(name, value string) bool {
	return kubernetesName.MatchString(name) || strings.HasSuffix(name, "_PORT") && kubernetesPort.MatchString(value)
}

// editDistance is how many letters have to be put in, left out or changed to get from one
// name to the other.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := diagonal
			if a[i] != b[j] {
				changed++
			}
			diagonal = row[j+1]
			row[j+1] = min(changed, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
