package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"plantstore/internal/postgres"
	"plantstore/internal/readme"
)

// A part is an object in deploy/kubernetes, or a piece of one.
type part struct{ any }

// at returns the part at a path of keys and indexes, such as "spec.ports.0".
func (p part) at(path string) part {
	for key := range strings.SplitSeq(path, ".") {
		switch inside := p.any.(type) {
		case map[string]any:
			p.any = inside[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(inside) {
				return part{}
			}
			p.any = inside[i]
		default:
			return part{}
		}
	}
	return p
}

// each returns the items of a list.
func (p part) each() (all []part) {
	items, _ := p.any.([]any)
	for _, item := range items {
		all = append(all, part{item})
	}
	return all
}

func (p part) String() string { return fmt.Sprint(p.any) }

// number returns a number that is written without or with quotes, or 0.
func (p part) number() int {
	n, _ := strconv.Atoi(p.String())
	return n
}

// manifests returns the objects of deploy/kubernetes by kind and name, the pods of those that
// have one, and the settings that the kustomizations make.
func manifests(t *testing.T) (all, pods map[string]part, settings map[string]string) {
	t.Helper()
	all, settings = make(map[string]part), make(map[string]string)
	for _, folder := range []string{"base", "overlay"} { // the overlay's settings come second
		files, err := filepath.Glob(filepath.Join(readme.Top(t), "deploy/kubernetes", folder, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no manifests in %s: %v", folder, err)
		}
		for _, name := range files {
			for documents := yaml.NewDecoder(strings.NewReader(readme.Read(t, "deploy/kubernetes/"+folder+"/"+filepath.Base(name)))); ; {
				var m part
				if err := documents.Decode(&m.any); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				all[m.at("kind").String()+" "+m.at("metadata.name").String()] = m
				for _, literal := range m.at("configMapGenerator.0.literals").each() {
					name, value, _ := strings.Cut(literal.String(), "=")
					settings[name] = value
				}
			}
		}
	}
	return all, map[string]part{
		"Deployment plantstore":    all["Deployment plantstore"].at("spec.template.spec"),
		"Job plantstore-migrate":   all["Job plantstore-migrate"].at("spec.template.spec"),
		"CronJob plantstore-purge": all["CronJob plantstore-purge"].at("spec.jobTemplate.spec.template.spec"),
	}, settings
}

// Each variable is one that the command knows, with a value that it takes.
func TestKubernetesSettingsAreValid(t *testing.T) {
	t.Parallel()
	_, pods, settings := manifests(t)
	url := filepath.Join(t.TempDir(), "url")
	writeFile(t, url, "host=h")
	for object, pod := range pods {
		variables := make(map[string]string)
		if object == "Deployment plantstore" {
			maps.Copy(variables, settings)
		}
		for _, env := range pod.at("containers.0.env").each() {
			name, value := env.at("name").String(), env.at("value").String()
			if strings.HasSuffix(name, "_FILE") {
				value = url
			}
			if strings.HasPrefix(name, ourPrefix) || strings.HasPrefix(name, "DATABASE_URL") { // the others are Go's and libpq's
				variables[name] = value
			}
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
		var args []string
		for _, arg := range pod.at("containers.0.args").each() {
			args = append(args, arg.String())
		}
		if _, err := parser.Parse(args); err != nil || len(unread) > 0 || len(args) == 0 {
			t.Errorf("%s: plantstore %q: got %v, and does not know %v", object, args, err, unread)
		}
	}
}

// Each file that a variable names is mounted from a Secret. The database operator reads the
// role's password from the same Secret.
func TestKubernetesMountsItsSecrets(t *testing.T) {
	t.Parallel()
	all, pods, _ := manifests(t)
	for object := range all {
		if strings.HasPrefix(object, "Secret ") {
			t.Errorf("%s is among the manifests", object)
		}
	}
	passwords := make(map[string]string)
	for _, role := range all["Cluster plantstore-db"].at("spec.managed.roles").each() {
		passwords[role.at("name").String()] = role.at("passwordSecret.name").String()
	}
	owner := map[string]string{"PLANTSTORE_MIGRATE_DATABASE_URL_FILE": passwords["plantstore_owner"], "PGSSLROOTCERT": "plantstore-db-ca"}
	for object, want := range map[string]map[string]string{
		"Deployment plantstore":    {"DATABASE_URL_FILE": passwords["plantstore_app"], "PGSSLROOTCERT": "plantstore-db-ca"},
		"Job plantstore-migrate":   owner,
		"CronJob plantstore-purge": owner,
	} {
		paths := make(map[string]string) // of files: the Secret
		for _, volume := range pods[object].at("volumes").each() {
			for _, mount := range pods[object].at("containers.0.volumeMounts").each() {
				for _, item := range volume.at("secret.items").each() {
					if mount.at("name") == volume.at("name") {
						paths[mount.at("mountPath").String()+"/"+item.at("path").String()] = volume.at("secret.secretName").String()
					}
				}
			}
		}
		got := make(map[string]string)
		for _, env := range pods[object].at("containers.0.env").each() {
			if secret, ok := paths[env.at("value").String()]; ok {
				got[env.at("name").String()] = secret
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: files from Secrets (-want +got):\n%s", object, diff)
		}
	}
}

// The database has connections for every replica's pool, for one more during a rollout, for
// the owner, and those that it keeps for superusers. A pod has time to answer before it ends.
func TestKubernetesConnectionsAndTimeoutsFit(t *testing.T) {
	t.Parallel()
	all, pods, settings := manifests(t)
	db, err := postgres.Open(t.Context(), postgres.Config{URL: "host=h"})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	each := int(db.MaxConns())
	scaler := all["HorizontalPodAutoscaler plantstore"].at("spec")
	replicas := scaler.at("maxReplicas").number() + all["Deployment plantstore"].at("spec.strategy.rollingUpdate.maxSurge").number()
	const others = 20
	got := all["Cluster plantstore-db"].at("spec.postgresql.parameters.max_connections").number()
	if want := replicas*each + others; scaler.at("minReplicas").number() < 2 || replicas < 3 || got < want {
		t.Errorf("max_connections is %d; %s with %d connections each, and others, want %d for two replicas at least", got, scaler, each, want)
	}

	const rest = 8 * time.Second // for traces, connections and the log
	drain, err := time.ParseDuration(settings["PLANTSTORE_DRAIN_DELAY"])
	shutdown, otherErr := time.ParseDuration(settings["PLANTSTORE_SHUTDOWN_TIMEOUT"])
	grace := time.Duration(pods["Deployment plantstore"].at("terminationGracePeriodSeconds").number()) * time.Second
	if errors.Join(err, otherErr) != nil || grace <= drain+shutdown+rest {
		t.Errorf("a pod has %s to end; want more than %s (%v), %s (%v) and %s", grace, drain, err, shutdown, otherErr, rest)
	}
}

// Pods meet the Pod Security Standard "restricted". Container ports have the numbers that the
// program listens on. Probes, services and policies refer to the ports by name.
func TestKubernetesPortsProbesAndRightsFit(t *testing.T) {
	t.Parallel()
	all, pods, settings := manifests(t)
	type row struct{ object, path, want string }
	expect := func(p part, want row) {
		t.Helper()
		if got := p.at(want.path).String(); got != want.want {
			t.Errorf("%s: %s is %s, want %s", want.object, want.path, got, want.want)
		}
	}
	user := regexp.MustCompile(`(?m)^USER (\d+):`).FindStringSubmatch(readme.Read(t, "deploy/Dockerfile"))
	for object, pod := range pods {
		for _, want := range []row{
			{object, "automountServiceAccountToken", "false"},
			{object, "enableServiceLinks", "false"},
			{object, "securityContext.runAsNonRoot", "true"},
			{object, "securityContext.runAsUser", user[1]},
			{object, "securityContext.seccompProfile.type", "RuntimeDefault"},
			{object, "containers.0.securityContext", "map[allowPrivilegeEscalation:false capabilities:map[drop:[ALL]] readOnlyRootFilesystem:true]"},
			{object, "containers.1", "<nil>"},
		} {
			expect(pod, want)
		}
	}
	for _, setting := range readme.Table(t, settingsManual, "variable") {
		i := slices.Index([]string{"PLANTSTORE_ADDR", "PLANTSTORE_ADMIN_ADDR"}, setting[0])
		if i < 0 {
			continue
		}
		if _, set := settings[setting[0]]; set {
			t.Errorf("%s is set: the ports are its default", setting[0])
		}
		expect(pods["Deployment plantstore"], row{"Deployment plantstore", fmt.Sprintf("containers.0.ports.%d.containerPort", i), strings.TrimPrefix(setting[2], ":")})
	}
	const container = "spec.template.spec.containers.0."
	for _, want := range []row{
		{"Deployment plantstore", "spec.strategy.rollingUpdate.maxUnavailable", "0"},
		{"Deployment plantstore", container + "ports.0.name", "http"},
		{"Deployment plantstore", container + "ports.1.name", "operators"},
		{"Deployment plantstore", container + "startupProbe.httpGet", "map[path:/livez port:operators]"},
		{"Deployment plantstore", container + "livenessProbe.httpGet", "map[path:/livez port:operators]"},
		{"Deployment plantstore", container + "readinessProbe.httpGet", "map[path:/readyz port:operators]"},
		{"Service plantstore", "spec.ports.0.targetPort", "http"},
		{"Service plantstore-operators", "spec.ports.0.targetPort", "operators"},
		{"NetworkPolicy plantstore", "spec.ingress.0.ports.0.port", "http"},
		{"NetworkPolicy plantstore", "spec.ingress.1.ports.0.port", "operators"},
		{"ServiceMonitor plantstore", "spec.endpoints.0.path", "/metrics"},
		{"ServiceMonitor plantstore", "spec.endpoints.0.port", "operators"},
	} {
		expect(all[want.object], want)
	}
}
