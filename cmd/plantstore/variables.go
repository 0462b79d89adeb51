package main

import (
	"fmt"
	"os"
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

// maxTypos is the largest edit distance of a misspelt name. The names that Kubernetes and
// docker-compose.yml set are farther away.
const maxTypos = 3

// misspelt warns of each variable that is no setting, but almost is one.
func misspelt(app *kong.Application, environ []string) (warnings []string) {
	var settings []string
	_ = kong.Visit(app.Node, func(node kong.Visitable, next kong.Next) error { // no visit fails
		if flag, ok := node.(*kong.Flag); ok {
			settings = append(settings, flag.Envs...)
		}
		return next(nil)
	})
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, ourPrefix) || slices.Contains(settings, name) {
			continue
		}
		distance := func(setting string) int { // DATABASE_URL is tried with the prefix, too
			return editDistance(strings.TrimPrefix(setting, ourPrefix), strings.TrimPrefix(name, ourPrefix))
		}
		nearest := slices.MinFunc(settings, func(a, b string) int { return distance(a) - distance(b) })
		if distance(nearest) <= maxTypos {
			warnings = append(warnings, fmt.Sprintf("%s is no setting and has no effect: did you mean %s?", name, nearest))
		}
	}
	return warnings
}

// editDistance is how many letters have to be added, removed or replaced to get from one
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
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
