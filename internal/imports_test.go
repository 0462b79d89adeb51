// Package internal_test holds the direction of imports between the packages.
package internal_test

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "plantstore/"

// mayImport has the packages of this module that each package may import, outside its tests.
// Every package has to be in the list.
var mayImport = map[string][]string{
	"cmd/plantstore":         {"internal/auth", "internal/doctor", "internal/ledger", "internal/localpg", "internal/migrate", "internal/plant", "internal/postgres", "internal/server"},
	"cmd/chaos":              {"cmd/internal/programs", "cmd/internal/witness", "internal/ledger", "internal/localpg", "internal/migrate"},
	"cmd/bench":              {"cmd/internal/programs", "internal/localpg", "internal/migrate"},
	"cmd/bench/bare":         {},
	"cmd/drill":              {"cmd/internal/programs", "cmd/internal/witness", "internal/localpg", "internal/migrate"},
	"cmd/internal/programs":  {"internal/localpg"},
	"cmd/internal/witness":   {"cmd/internal/programs", "internal/auth", "internal/plant", "internal/postgres"},
	"deploy/postgres":        {},
	"internal/plant":         {},
	"internal/auth":          {"internal/plant"},
	"internal/auth/authtest": {},
	"internal/server":        {"internal/auth", "internal/plant"},
	"internal/postgres":      {"internal/auth", "internal/plant"},
	"internal/ledger":        {},
	"internal/doctor":        {"internal/postgres"},
	"internal/migrate":       {"deploy/postgres", "migrations"},
	"internal/localpg":       {},
	"internal/pgtest":        {"deploy/postgres", "internal/localpg", "migrations"},
	"internal/pgtest/run":    {"internal/localpg", "internal/pgtest"},
	"internal/readme":        {},
	"migrations":             {},
}

// onlyIn says which packages may import a module of somebody else's, tests aside.
var onlyIn = map[string][]string{
	"github.com/labstack/echo/":  {"internal/server", "cmd/bench/bare"},
	"github.com/jackc/pgx/":      {"internal/postgres", "internal/ledger", "internal/doctor", "internal/migrate", "internal/localpg", "internal/pgtest", "cmd/plantstore", "cmd/chaos", "cmd/drill", "cmd/bench", "cmd/bench/bare", "cmd/internal/witness"},
	"github.com/pressly/goose/":  {"internal/migrate", "internal/pgtest"},
	"github.com/testcontainers/": {"internal/pgtest/run"},
	"github.com/prometheus/":     {"internal/server", "internal/postgres", "cmd/plantstore"},
	"go.opentelemetry.io/":       {"internal/server", "cmd/plantstore"},
	"github.com/alecthomas/kong": {"cmd/plantstore"},
	"testing":                    {"internal/pgtest", "internal/readme", "internal/auth/authtest"},
	"net/http/httptest":          {"internal/auth/authtest"},
	"github.com/coreos/go-oidc/": {"internal/auth"},
	"github.com/go-jose/":        {"internal/auth", "internal/auth/authtest"},
}

func TestImportsRunOneWay(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	list := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"...")
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		name := strings.TrimPrefix(fields[0], module)
		if name == "internal" {
			continue // this test
		}
		allowed, known := mayImport[name]
		if !known {
			t.Errorf("package %s is not part of the layout: add it to mayImport if it shall be", name)
			continue
		}
		for _, path := range fields[1:] {
			if inside, ok := strings.CutPrefix(path, module); ok && !slices.Contains(allowed, inside) {
				t.Errorf("package %s imports %s; it may import %v", name, inside, allowed)
			}
			for prefix, where := range onlyIn {
				if strings.HasPrefix(path, prefix) && !slices.Contains(where, name) {
					t.Errorf("package %s imports %s; only %v may", name, path, where)
				}
			}
			if name == "internal/plant" && strings.Contains(path, ".") {
				t.Errorf("package %s imports %s; it may import the standard library only", name, path)
			}
		}
	}
}
