package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"plantstore/internal/postgres"
	"plantstore/internal/readme"
)

// A manifest is what the tests below want to know of an object of deploy/kubernetes.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Strategy struct {
			RollingUpdate struct {
				MaxUnavailable string `yaml:"maxUnavailable"`
				MaxSurge       int    `yaml:"maxSurge"`
			} `yaml:"rollingUpdate"`
		}
		Template    podTemplate
		JobTemplate struct {
			Spec struct{ Template podTemplate }
		} `yaml:"jobTemplate"`

		MinReplicas int `yaml:"minReplicas"`
		MaxReplicas int `yaml:"maxReplicas"`

		Ports []struct {
			TargetPort string `yaml:"targetPort"`
		}
		Endpoints []struct{ Port, Path string }
		Ingress   []struct {
			Ports []struct{ Port string }
		}

		Managed struct {
			Roles []struct {
				Name           string
				PasswordSecret struct{ Name string } `yaml:"passwordSecret"`
			}
		}
		PostgreSQL struct {
			Parameters struct {
				MaxConnections string `yaml:"max_connections"`
			}
		} `yaml:"postgresql"`
	}

	// Of a kustomization.
	ConfigMapGenerator []struct{ Literals []string } `yaml:"configMapGenerator"`
}

type podTemplate struct{ Spec podSpec }

type podSpec struct {
	Token        *bool `yaml:"automountServiceAccountToken"`
	ServiceLinks *bool `yaml:"enableServiceLinks"`
	Grace        int   `yaml:"terminationGracePeriodSeconds"`
	Security     struct {
		NonRoot bool                  `yaml:"runAsNonRoot"`
		User    int                   `yaml:"runAsUser"`
		Seccomp struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	Containers []struct {
		Args      []string
		Env       []struct{ Name, Value string }
		Ports     []containerPort
		Startup   probe `yaml:"startupProbe"`
		Liveness  probe `yaml:"livenessProbe"`
		Readiness probe `yaml:"readinessProbe"`
		Security  struct {
			Escalation   *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnly     bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities struct{ Add, Drop []string }
		} `yaml:"securityContext"`
		Mounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
		} `yaml:"volumeMounts"`
	}
	Volumes []struct {
		Name   string
		Secret struct {
			SecretName string `yaml:"secretName"`
			Items      []struct{ Key, Path string }
		}
	}
}

type containerPort struct {
	Name   string
	Number string `yaml:"containerPort"`
}

type probe struct {
	Get struct{ Path, Port string } `yaml:"httpGet"`
}

// manifests returns the objects of deploy/kubernetes by kind and name, and the settings
// that its kustomizations make.
func manifests(t *testing.T) (all map[string]manifest, settings map[string]string) {
	t.Helper()
	all, settings = make(map[string]manifest), make(map[string]string)
	for _, folder := range []string{"base", "overlay"} { // the overlay's settings come second
		files, err := filepath.Glob(filepath.Join(readme.Top(t), "deploy/kubernetes", folder, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no manifests in %s: %v", folder, err)
		}
		for _, name := range files {
			file, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			for documents := yaml.NewDecoder(file); ; {
				var m manifest
				if err := documents.Decode(&m); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if m.Kind == "CronJob" {
					m.Spec.Template = m.Spec.JobTemplate.Spec.Template
				}
				all[m.Kind+" "+m.Metadata.Name] = m
				for _, generator := range m.ConfigMapGenerator {
					for _, literal := range generator.Literals {
						name, value, _ := strings.Cut(literal, "=")
						settings[name] = value
					}
				}
			}
		}
	}
	return all, settings
}

// arguments are the flags that a container's variables stand for.
func arguments(t *testing.T, variables map[string]string, command []string) (args []string) {
	t.Helper()
	node := commandLine(t).Model.Node
	for _, name := range command {
		for _, child := range node.Children {
			if child.Name == name {
				node = child
				break
			}
		}
	}
	flags := make(map[string]string)
	for _, flag := range node.Flags {
		for _, env := range flag.Envs {
			flags[env] = flag.Name
		}
	}
	for name, value := range variables {
		if !strings.HasPrefix(name, ourPrefix) && !strings.HasPrefix(name, "DATABASE_URL") {
			continue // Go's and libpq's
		}
		flag, ok := flags[name]
		if !ok {
			t.Errorf("%s is no setting of plantstore %s", name, strings.Join(command, " "))
			continue
		}
		args = append(args, "--"+flag+"="+value)
	}
	return append(slices.Clone(command), args...)
}

// Each variable is one that the command knows, with a value that it takes.
func TestKubernetesSettings(t *testing.T) {
	t.Parallel()
	all, settings := manifests(t)
	url := filepath.Join(t.TempDir(), "url")
	writeFile(t, url, "host=h")
	for object, shared := range map[string]map[string]string{"Deployment plantstore": settings, "Job plantstore-migrate": nil, "CronJob plantstore-purge": nil} {
		pod := all[object].Spec.Template.Spec
		if len(pod.Containers) != 1 || len(pod.Containers[0].Args) == 0 {
			t.Fatalf("%s: %d containers, want one with a command", object, len(pod.Containers))
		}
		variables := make(map[string]string)
		for name, value := range shared {
			variables[name] = value
		}
		for _, env := range pod.Containers[0].Env {
			variables[env.Name] = env.Value
			if strings.HasSuffix(env.Name, "_FILE") {
				variables[env.Name] = url
			}
		}
		args := arguments(t, variables, pod.Containers[0].Args)
		if _, err := commandLine(t).Parse(args); err != nil {
			t.Errorf("%s: plantstore %s: %v", object, strings.Join(args, " "), err)
		}
	}
}

// What a variable names as a file is mounted from a Secret, and so is what the
// operator reads the same role's password from.
func TestKubernetesSecrets(t *testing.T) {
	t.Parallel()
	all, _ := manifests(t)
	for object := range all {
		if strings.HasPrefix(object, "Secret ") {
			t.Errorf("%s is among the manifests", object)
		}
	}
	passwords := make(map[string]string)
	for _, role := range all["Cluster plantstore-db"].Spec.Managed.Roles {
		passwords[role.Name] = role.PasswordSecret.Name
	}
	for object, want := range map[string]map[string]string{
		"Deployment plantstore":    {"DATABASE_URL_FILE": passwords["plantstore_app"], "PGSSLROOTCERT": "plantstore-db-ca"},
		"Job plantstore-migrate":   {"PLANTSTORE_MIGRATE_DATABASE_URL_FILE": passwords["plantstore_owner"], "PGSSLROOTCERT": "plantstore-db-ca"},
		"CronJob plantstore-purge": {"PLANTSTORE_MIGRATE_DATABASE_URL_FILE": passwords["plantstore_owner"], "PGSSLROOTCERT": "plantstore-db-ca"},
	} {
		pod := all[object].Spec.Template.Spec
		paths := make(map[string]string) // of files: the Secret
		for _, volume := range pod.Volumes {
			for _, mount := range pod.Containers[0].Mounts {
				for _, item := range volume.Secret.Items {
					if mount.Name == volume.Name {
						paths[mount.MountPath+"/"+item.Path] = volume.Secret.SecretName
					}
				}
			}
		}
		got := make(map[string]string)
		for _, env := range pod.Containers[0].Env {
			if secret, ok := paths[env.Value]; ok {
				got[env.Name] = secret
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: files from Secrets: %v, want %v", object, got, want)
		}
	}
}

// No pod is killed while it answers, or removed before another is ready.
func TestKubernetesRollout(t *testing.T) {
	t.Parallel()
	all, settings := manifests(t)
	service := all["Deployment plantstore"].Spec
	const rest = 8 * time.Second // for traces, connections and the log
	var drain, shutdown time.Duration
	for name, into := range map[string]*time.Duration{"PLANTSTORE_DRAIN_DELAY": &drain, "PLANTSTORE_SHUTDOWN_TIMEOUT": &shutdown} {
		var err error
		if *into, err = time.ParseDuration(settings[name]); err != nil {
			t.Error(err)
		}
	}
	if grace := time.Duration(service.Template.Spec.Grace) * time.Second; grace <= drain+shutdown+rest {
		t.Errorf("a pod has %s to end; want more than %s, %s and %s", grace, drain, shutdown, rest)
	}
	if service.Strategy.RollingUpdate.MaxUnavailable != "0" || all["HorizontalPodAutoscaler plantstore"].Spec.MinReplicas < 2 {
		t.Errorf("%q pods may be missing of %d; want 0 of 2 at the least", service.Strategy.RollingUpdate.MaxUnavailable, all["HorizontalPodAutoscaler plantstore"].Spec.MinReplicas)
	}
}

// The database has connections for every replica's pool, for one more during a
// rollout, for the owner, and those that it keeps for superusers.
func TestKubernetesConnections(t *testing.T) {
	t.Parallel()
	all, _ := manifests(t)
	db, err := postgres.Open(t.Context(), postgres.Config{URL: "host=h"})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	each := int(db.MaxConns())
	replicas := all["HorizontalPodAutoscaler plantstore"].Spec.MaxReplicas + all["Deployment plantstore"].Spec.Strategy.RollingUpdate.MaxSurge
	const others = 20
	got, err := strconv.Atoi(all["Cluster plantstore-db"].Spec.PostgreSQL.Parameters.MaxConnections)
	if want := replicas*each + others; err != nil || replicas < 3 || got < want {
		t.Errorf("max_connections is %d (%v); %d replicas with %d each, and others, want %d", got, err, replicas, each, want)
	}
}

// Ports have the numbers that the program listens on, and everything else names them.
func TestKubernetesPorts(t *testing.T) {
	t.Parallel()
	all, settings := manifests(t)
	defaults := make(map[string]string)
	for _, row := range readme.Table(t, settingsManual, "variable") {
		defaults[row[0]] = row[2]
	}
	container := all["Deployment plantstore"].Spec.Template.Spec.Containers[0]
	for name, variable := range map[string]string{"http": "PLANTSTORE_ADDR", "operators": "PLANTSTORE_ADMIN_ADDR"} {
		if _, set := settings[variable]; set {
			t.Errorf("%s is set: the ports below are its default", variable)
		}
		if !slices.Contains(container.Ports, containerPort{name, strings.TrimPrefix(defaults[variable], ":")}) {
			t.Errorf("ports are %v; want %s to be %s", container.Ports, name, defaults[variable])
		}
	}
	for _, tt := range []struct{ what, got, want string }{
		{"startup", container.Startup.Get.Path + " " + container.Startup.Get.Port, "/livez operators"},
		{"liveness", container.Liveness.Get.Path + " " + container.Liveness.Get.Port, "/livez operators"},
		{"readiness", container.Readiness.Get.Path + " " + container.Readiness.Get.Port, "/readyz operators"},
		{"the service", all["Service plantstore"].Spec.Ports[0].TargetPort, "http"},
		{"the operators' service", all["Service plantstore-operators"].Spec.Ports[0].TargetPort, "operators"},
		{"from the ingress", all["NetworkPolicy plantstore"].Spec.Ingress[0].Ports[0].Port, "http"},
		{"from monitoring", all["NetworkPolicy plantstore"].Spec.Ingress[1].Ports[0].Port, "operators"},
		{"monitoring", all["ServiceMonitor plantstore"].Spec.Endpoints[0].Path + " " + all["ServiceMonitor plantstore"].Spec.Endpoints[0].Port, "/metrics operators"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %q, want %q", tt.what, tt.got, tt.want)
		}
	}
}

// Pods are what the Pod Security Standard "restricted" wants, and more.
func TestKubernetesPodsAreRestricted(t *testing.T) {
	t.Parallel()
	all, _ := manifests(t)
	user := regexp.MustCompile(`(?m)^USER (\d+):`).FindStringSubmatch(readme.Read(t, "deploy/Dockerfile"))
	for _, object := range []string{"Deployment plantstore", "Job plantstore-migrate", "CronJob plantstore-purge"} {
		pod := all[object].Spec.Template.Spec
		no := func(b *bool) bool { return b != nil && !*b }
		if !no(pod.Token) || !no(pod.ServiceLinks) || !pod.Security.NonRoot || pod.Security.Seccomp.Type != "RuntimeDefault" || strconv.Itoa(pod.Security.User) != user[1] {
			t.Errorf("%s: a token, service links, root, another user than %s or no seccomp profile: %+v", object, user[1], pod.Security)
		}
		for _, c := range pod.Containers {
			if !no(c.Security.Escalation) || !c.Security.ReadOnly || !slices.Equal(c.Security.Capabilities.Drop, []string{"ALL"}) || len(c.Security.Capabilities.Add) > 0 {
				t.Errorf("%s: a container may do more than it needs: %+v", object, c.Security)
			}
		}
	}
}
