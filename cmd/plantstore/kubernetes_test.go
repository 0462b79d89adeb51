package main

import (
	"errors"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"plantstore/internal/postgres"
	"plantstore/internal/readme"
)

// manifest returns what an expression finds in a file of deploy/kubernetes.
func manifest(t *testing.T, file, expression string) [][]string {
	t.Helper()
	found := regexp.MustCompile(`(?m)`+expression).FindAllStringSubmatch(readme.Read(t, "deploy/kubernetes/"+file), -1)
	if len(found) == 0 {
		t.Fatalf("%s has nothing that matches %s", file, expression)
	}
	return found
}

func manifestNumber(t *testing.T, file, key string) int {
	t.Helper()
	n, err := strconv.Atoi(manifest(t, file, `^ +`+key+`: "?(\d+)"?$`)[0][1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// kubernetesSettings returns the settings of the service.
func kubernetesSettings(t *testing.T) map[string]string {
	t.Helper()
	settings := make(map[string]string)
	for _, folder := range []string{"base", "overlay"} { // the overlay's settings come second
		for _, m := range manifest(t, folder+"/kustomization.yaml", `^ +- (PLANTSTORE_\w+)=(.*)$`) {
			settings[m[1]] = m[2]
		}
	}
	return settings
}

// Each variable is one that the command reads, with a value that it takes. Each file that a
// variable names is mounted.
func TestKubernetesSettingsAreValid(t *testing.T) {
	t.Parallel()
	url := filepath.Join(t.TempDir(), "url")
	writeFile(t, url, "host=h")
	for file, variables := range map[string]map[string]string{"base/service.yaml": kubernetesSettings(t), "base/migrate.yaml": {}, "base/purge.yaml": {}} {
		for _, m := range manifest(t, file, `^ +- name: (\w*DATABASE_URL_FILE)$`) {
			variables[m[1]] = url
		}
		unread := maps.Clone(variables)
		parser := commandLine(t, kong.Resolvers(kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
			for _, env := range flag.Envs {
				if value, ok := variables[env]; ok {
					delete(unread, env)
					return value, nil
				}
			}
			return nil, nil
		})))
		args := strings.Split(manifest(t, file, `^ +args: \[(.*)\]$`)[0][1], ", ")
		if _, err := parser.Parse(args); err != nil || len(unread) > 0 {
			t.Errorf("%s: plantstore %q: got %v, and does not know %v", file, args, err, unread)
		}
		for _, m := range manifest(t, file, `^ +value: (/.*)$`) {
			manifest(t, file, `^ +mountPath: `+path.Dir(m[1])+`$`)
			manifest(t, file, `^ +path: `+path.Base(m[1])+`$`)
		}
	}
}

// A pod has time to answer before it ends. The database has connections for all pods, for one
// more during a rollout, and for others. Ports are those that the program listens on.
func TestKubernetesFitsTheProgram(t *testing.T) {
	t.Parallel()
	settings := kubernetesSettings(t)
	drain, err := time.ParseDuration(settings["PLANTSTORE_DRAIN_DELAY"])
	shutdown, otherErr := time.ParseDuration(settings["PLANTSTORE_SHUTDOWN_TIMEOUT"])
	const rest = 8 * time.Second // for traces, connections and the log
	grace := time.Duration(manifestNumber(t, "base/service.yaml", "terminationGracePeriodSeconds")) * time.Second
	if errors.Join(err, otherErr) != nil || grace <= drain+shutdown+rest {
		t.Errorf("a pod has %s to end; want more than %s (%v), %s (%v) and %s", grace, drain, err, shutdown, otherErr, rest)
	}
	db, err := postgres.Open(t.Context(), postgres.Config{URL: "host=h"})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const others = 20
	pods := manifestNumber(t, "base/service.yaml", "maxReplicas") + 1
	if got, want := manifestNumber(t, "base/database.yaml", "max_connections"), pods*int(db.MaxConns())+others; got < want {
		t.Errorf("max_connections is %d; %d pods with %d connections each, and others, want %d", got, pods, db.MaxConns(), want)
	}
	for _, flag := range serveFlags(t) {
		if port := slices.Index([]string{"addr", "admin-addr"}, flag.Name); port >= 0 {
			got := manifest(t, "base/service.yaml", `^ +containerPort: (\d+)$`)[port][1]
			if _, set := settings[flag.Envs[0]]; set || ":"+got != flag.Default {
				t.Errorf("the container port is %s, and %s is set: %v; want %s, the default of --%s", got, flag.Envs[0], set, flag.Default, flag.Name)
			}
		}
	}
}
