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
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, ourPrefix) || slices.Contains(known, name) || isOthers(name) {
			continue
		}
		nearest := slices.MinFunc(known, func(a, b string) int { return editDistance(a, name) - editDistance(b, name) })
		if editDistance(nearest, name) <= 2 {
			return nil, fmt.Errorf("%s is no setting: is it meant to be %s?", name, nearest)
		}
		warnings = append(warnings, fmt.Sprintf("%s is no setting of this release and counts for nothing; the nearest is %s", name, nearest))
	}
	return warnings, nil
}

// isOthers reports whether a variable with our prefix is for somebody else: for our
// tests, for docker-compose.yml, or Kubernetes' own about Services whose names begin
// with plantstore.
func isOthers(name string) bool {
	rest := strings.TrimPrefix(name, ourPrefix)
	kubernetes := regexp.MustCompile(`(?:^|_)(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)$`)
	return strings.HasPrefix(rest, "TEST_") || kubernetes.MatchString(rest) ||
		slices.Contains([]string{"VERSION", "COMMIT", "TAG", "OWNER_PASSWORD", "APP_PASSWORD"}, rest)
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
